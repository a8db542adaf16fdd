//! The system calls missing from the standard library, and the only `unsafe` of this package.
//!
//! `main` is here too, without the Rust runtime in front of it: the runtime would ignore SIGPIPE and open /dev/null
//! over closed descriptors, and the verbs `sigmask` and `fds` exist to show the inherited state.

#![expect(unsafe_code, reason = "the one file of this package that talks to libc")]

use std::ffi::{CString, c_int, c_long};
use std::io;

/// The entry point for C. Collects the arguments and calls `run`.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, values: *const *const std::ffi::c_char) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    let args: Vec<String> = (0..count)
        .map(|i| {
            // SAFETY: C guarantees `count` pointers to NUL-terminated strings that live as long as the process.
            let text = unsafe { std::ffi::CStr::from_ptr(*values.add(i)) };
            text.to_string_lossy().into_owned()
        })
        .collect();
    c_int::from(crate::run(&args))
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Forks. `None` in the child.
pub(crate) fn fork() -> io::Result<Option<i32>> {
    // SAFETY: this program has one thread whenever it forks, so the child may do everything the parent may.
    let pid = checked(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

/// Waits for any child; `None` without children.
pub(crate) fn wait() -> io::Result<Option<i32>> {
    loop {
        // SAFETY: a null status pointer is allowed (wait(2)).
        match checked(unsafe { libc::wait(std::ptr::null_mut()) }) {
            Ok(pid) => return Ok(Some(pid)),
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Ends the process at once, without running anything else.
pub(crate) fn exit_now(code: u8) -> ! {
    // SAFETY: _exit has no precondition.
    unsafe { libc::_exit(c_int::from(code)) }
}

/// Sends a signal.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes plain numbers.
    checked(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Sets a signal to its default action and unblocks it.
pub(crate) fn default_action(signal: i32) -> io::Result<()> {
    // SAFETY: SIG_DFL is a valid disposition; the set is initialised by sigemptyset before it is read.
    unsafe {
        if libc::signal(signal, libc::SIG_DFL) == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        checked(libc::sigemptyset(&raw mut set))?;
        checked(libc::sigaddset(&raw mut set, signal))?;
        checked(libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut())).map(drop)
    }
}

/// Blocks signals, so that [`next_signal`] receives them.
pub(crate) fn block(signals: &[i32]) -> io::Result<libc::sigset_t> {
    // SAFETY: the set is initialised by sigemptyset before it is read; the old mask is not requested.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        checked(libc::sigemptyset(&raw mut set))?;
        for &signal in signals {
            checked(libc::sigaddset(&raw mut set, signal))?;
        }
        checked(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
        Ok(set)
    }
}

/// Waits for one of the blocked signals.
pub(crate) fn next_signal(set: &libc::sigset_t) -> io::Result<i32> {
    loop {
        // SAFETY: the set is initialised (it comes from `block`); a null info pointer is allowed.
        match checked(unsafe { libc::sigwaitinfo(set, std::ptr::null_mut()) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Whether a descriptor is a terminal.
pub(crate) fn is_terminal(fd: i32) -> bool {
    // SAFETY: isatty takes a plain number.
    unsafe { libc::isatty(fd) == 1 }
}

/// Rows and columns of the terminal.
pub(crate) fn window_size(fd: i32) -> io::Result<(u16, u16)> {
    // SAFETY: TIOCGWINSZ writes one winsize, which is plain data.
    unsafe {
        let mut size = std::mem::zeroed::<libc::winsize>();
        checked(libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size))?;
        Ok((size.ws_row, size.ws_col))
    }
}

/// Soft and hard limit; -1 means unlimited.
pub(crate) fn limit(resource: u32) -> io::Result<(i64, i64)> {
    let shown = |value: libc::rlim_t| if value == libc::RLIM_INFINITY { -1 } else { value.cast_signed() };
    // SAFETY: getrlimit writes one rlimit, which is plain data. The type of `resource` differs between libcs.
    unsafe {
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        checked(libc::getrlimit(resource as _, &raw mut limit))?;
        Ok((shown(limit.rlim_cur), shown(limit.rlim_max)))
    }
}

/// Clears the parent-death signal and returns the previous one.
pub(crate) fn clear_parent_death_signal() -> io::Result<i32> {
    let mut was: c_int = 0;
    // SAFETY: PR_GET_PDEATHSIG writes one int; PR_SET_PDEATHSIG takes a number.
    unsafe {
        checked(libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut was))?;
        checked(libc::prctl(libc::PR_SET_PDEATHSIG, 0))?;
    }
    Ok(was)
}

fn c_path(path: &str) -> io::Result<CString> {
    CString::new(path).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Makes a character device.
pub(crate) fn make_device(path: &str, major: u32, minor: u32) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is NUL-terminated and outlives the call.
    checked(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(major, minor)) }).map(drop)
}

/// Makes a FIFO.
pub(crate) fn make_fifo(path: &str) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is NUL-terminated and outlives the call.
    checked(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }).map(drop)
}

/// Exchanges two files atomically.
pub(crate) fn exchange(one: &str, other: &str) -> io::Result<()> {
    let (one, other) = (c_path(one)?, c_path(other)?);
    let (here, flags) = (c_long::from(libc::AT_FDCWD), c_long::from(libc::RENAME_EXCHANGE));
    // SAFETY: both paths are NUL-terminated and outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_renameat2, here, one.as_ptr(), here, other.as_ptr(), flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts a tmpfs.
pub(crate) fn mount_tmpfs(path: &str) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: all strings are NUL-terminated and outlive the call; no data is given.
    let result = unsafe { libc::mount(c"none".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()) };
    checked(result).map(drop)
}

/// Clears the flags of a mount, such as read-only.
pub(crate) fn clear_mount_flags(path: &str) -> io::Result<()> {
    let path = c_path(path)?;
    let flags = libc::MS_REMOUNT | libc::MS_BIND;
    // SAFETY: all strings are NUL-terminated and outlive the call; no data is given.
    let result = unsafe { libc::mount(c"none".as_ptr(), path.as_ptr(), std::ptr::null(), flags, std::ptr::null()) };
    checked(result).map(drop)
}

/// Makes a user namespace.
pub(crate) fn unshare_user() -> io::Result<()> {
    // SAFETY: the process has one thread and shares nothing that this call unshares.
    checked(unsafe { libc::unshare(libc::CLONE_NEWUSER) }).map(drop)
}

fn descriptor(result: c_long) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // The process ends right after, and releases everything that the call created.
    Ok(())
}

/// Sets an extended attribute to "1".
pub(crate) fn set_xattr(path: &str, name: &str) -> io::Result<()> {
    let (path, name) = (c_path(path)?, c_path(name)?);
    // SAFETY: both strings are NUL-terminated and outlive the call; the value is one byte long.
    checked(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), c"1".as_ptr().cast(), 1, 0) }).map(drop)
}

/// Attaches to a process and stops it until [`let_go`].
pub(crate) fn seize(pid: i32) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests access no memory of this process; null options mean none.
    unsafe {
        ptrace_checked(libc::ptrace(libc::PTRACE_SEIZE, pid, none, none))?;
        ptrace_checked(libc::ptrace(libc::PTRACE_INTERRUPT, pid, none, none))?;
        checked(libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL)).map(drop)
    }
}

/// Attaches to a process, which runs on.
pub(crate) fn trace(pid: i32) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: as in `seize`.
    ptrace_checked(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, none, none) })
}

/// Lets every process trace this one, where Yama restricts that.
pub(crate) fn allow_tracers() {
    // SAFETY: this operation takes numbers only. It fails where there is nothing to allow.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
}

/// Detaches from a process stopped by [`seize`].
pub(crate) fn let_go(pid: i32) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: as in `seize`.
    ptrace_checked(unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, none, none) })
}

fn ptrace_checked(result: c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, create)`.
pub(crate) fn session_keyring() -> io::Result<()> {
    // SAFETY: this operation takes numbers only (keyctl(2)).
    descriptor(unsafe { libc::syscall(libc::SYS_keyctl, 0, -3, 1) })
}

const SESSION_KEYRING: c_int = -3;
const KEY_NAME: &std::ffi::CStr = c"gantry-fixture";

/// Adds a key to a new session keyring.
pub(crate) fn add_session_key() -> io::Result<()> {
    let payload = b"secret";
    // SAFETY: KEYCTL_JOIN_SESSION_KEYRING takes a name or null; the strings are NUL-terminated, the payload has the
    // length given.
    unsafe {
        descriptor(libc::syscall(libc::SYS_keyctl, 1, std::ptr::null::<u8>()))?;
        descriptor(libc::syscall(
            libc::SYS_add_key,
            c"user".as_ptr(),
            KEY_NAME.as_ptr(),
            payload.as_ptr(),
            payload.len(),
            SESSION_KEYRING,
        ))
    }
}

/// Looks for the key of [`add_session_key`] in the session keyring.
pub(crate) fn find_session_key() -> io::Result<()> {
    // SAFETY: KEYCTL_SEARCH takes a keyring, two NUL-terminated strings and no destination.
    descriptor(unsafe { libc::syscall(libc::SYS_keyctl, 10, SESSION_KEYRING, c"user".as_ptr(), KEY_NAME.as_ptr(), 0) })
}

/// `io_uring_setup` with one entry.
pub(crate) fn io_uring() -> io::Result<()> {
    let mut parameters = [0u8; 120];
    // SAFETY: struct io_uring_params is 120 bytes of plain data, and zero is valid (io_uring_setup(2)).
    descriptor(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
}

/// `bpf(BPF_MAP_CREATE)` of an array of one.
pub(crate) fn bpf_map() -> io::Result<()> {
    // map_type array, key 4 bytes, value 4 bytes, 1 entry; the rest of the union is zero.
    let mut attributes = [0u32; 32];
    attributes[..4].copy_from_slice(&[2, 4, 4, 1]);
    // SAFETY: the kernel reads 128 bytes, the given size (bpf(2)).
    descriptor(unsafe { libc::syscall(libc::SYS_bpf, 0, attributes.as_ptr(), size_of_val(&attributes)) })
}

/// `syslog(SYSLOG_ACTION_SIZE_BUFFER)`.
pub(crate) fn kernel_log_size() -> io::Result<()> {
    // SAFETY: this action takes no buffer (syslog(2)).
    descriptor(unsafe { libc::syscall(libc::SYS_syslog, 10, std::ptr::null::<u8>(), 0) })
}

/// `perf_event_open` of this process's CPU clock, the kernel included.
pub(crate) fn cpu_clock_event() -> io::Result<()> {
    // type software, size 64 (PERF_ATTR_SIZE_VER0), event cpu-clock; the rest is zero.
    let mut attributes = [0u32; 16];
    attributes[..2].copy_from_slice(&[1, 64]);
    // SAFETY: the kernel reads the given size; pid 0: this process, on any CPU (perf_event_open(2)).
    descriptor(unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0) })
}

/// `userfaultfd`.
pub(crate) fn userfaultfd() -> io::Result<()> {
    // SAFETY: the call takes flags only (userfaultfd(2)).
    descriptor(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) })
}

/// `socket`.
pub(crate) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    descriptor(unsafe { libc::socket(family, kind, protocol) }.into())
}

/// `socketpair` of streams.
pub(crate) fn socket_pair(family: i32) -> io::Result<()> {
    let mut pair = [0; 2];
    // SAFETY: the kernel writes two descriptors into the array.
    descriptor(unsafe { libc::socketpair(family, libc::SOCK_STREAM, 0, pair.as_mut_ptr()) }.into())
}

/// `ioctl(SIOCGIFCONF)` with an empty buffer: the size of the list of interfaces.
pub(crate) fn list_interfaces(fd: i32) -> io::Result<()> {
    // struct ifconf: a length, padding, and a pointer, null here: the kernel writes the length only.
    let mut request = [0u64; 2];
    // SAFETY: the kernel reads and writes the 16 bytes of a struct ifconf.
    checked(unsafe { libc::ioctl(fd, 0x8912, request.as_mut_ptr()) }).map(drop)
}
