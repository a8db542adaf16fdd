//! System calls without a safe wrapper in rustix. All `unsafe` code of the supervisor is here, each block with its
//! argument.
//!
//! A function makes one call, or the few that belong together, and returns the error. Where soundness depends on the
//! caller, a type carries the proof, so that no caller needs `unsafe`:
//!
//! | type | proves | made by |
//! |---|---|---|
//! | [`SingleThreaded`] | the process has one thread: it may fork | looking at `/proc/self/status` |
//! | [`ForkedChild`] | this is a forked process that never returns to the frames below: their descriptors may be closed | [`fork`] |
//! | [`InheritedFds`] | no value owns these descriptors: they may be adopted or closed | looking at their flags |
//!
//! Allocating and releasing memory is in [`memory`].
#![expect(unsafe_code, reason = "all unsafe code is in this module")]

mod memory;

use std::convert::Infallible;
use std::ffi::CString;
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::mount::MountAttrFlags;
use rustix::process::Pid;

pub(crate) use memory::{Allocator, ProcessMemory, close_supervisor_arena, open_supervisor_arena};

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Proof that this process has one thread. A fork of a process with several threads may deadlock in the
/// child: a lock that another thread held is never released there.
///
/// Nothing in this program starts a thread (`tidy` checks it), so the proof stays true, also in forked processes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SingleThreaded {
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl SingleThreaded {
    /// Reads the number of threads from `/proc/self/status`, the first time in this process and in those that it forks.
    pub(crate) fn check() -> io::Result<Self> {
        static IS_CHECKED: AtomicBool = AtomicBool::new(false);
        if IS_CHECKED.load(Relaxed) {
            return Ok(Self { thread: PhantomData });
        }
        let status = std::fs::read_to_string("/proc/self/status")?;
        if status.lines().any(|line| line.split_whitespace().eq(["Threads:", "1"])) {
            IS_CHECKED.store(true, Relaxed);
            Ok(Self { thread: PhantomData })
        } else {
            Err(io::Error::other("the supervisor has more than one thread"))
        }
    }
}

/// Proof that this is a forked process in which the frames that existed at the fork are never returned to: their
/// descriptors, copies of the parent's, are neither used nor closed by their owners any more.
pub(crate) struct ForkedChild {
    /// Neither `Send` nor `Sync`.
    process: PhantomData<*const ()>,
}

impl ForkedChild {
    /// Closes the descriptors above stdio except these numbers.
    pub(crate) fn close_all_but(&self, kept: &[RawFd]) -> io::Result<()> {
        let mut kept: Vec<libc::c_uint> = kept.iter().filter_map(|&fd| fd.try_into().ok()).collect();
        kept.sort_unstable();
        let mut first = 3;
        for end in kept.into_iter().map(Some).chain([None]) {
            let last = end.map_or(libc::c_uint::MAX, |fd| fd.saturating_sub(1));
            if first <= last {
                // SAFETY: the owners are in frames that never run again (see the type); the caller keeps what it uses.
                check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
            }
            first = end.map_or(libc::c_uint::MAX, |fd| first.max(fd + 1));
        }
        Ok(())
    }

    /// Closes these descriptors.
    pub(crate) fn close(&self, descriptors: &[RawFd]) {
        for fd in descriptors {
            // SAFETY: as in close_all_but.
            unsafe { libc::close(*fd) };
        }
    }

    /// Closes all descriptors, stdio included.
    pub(crate) fn close_everything(&self) -> io::Result<()> {
        // SAFETY: as in close_all_but.
        check(unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) }).map(drop)
    }
}

fn run_child(child: impl FnOnce(ForkedChild) -> Infallible) -> ! {
    // A panic must not unwind into the frames below.
    std::panic::set_hook(Box::new(|panic| {
        let _nothing_left_to_do = writeln!(io::stderr(), "gantry-stage1: a forked process {panic}");
        exit_now(127)
    }));
    match child(ForkedChild { process: PhantomData }) {}
}

/// Returns the result of a fork in the parent, and runs `child` in the new process, where it is 0.
fn after_fork(result: libc::c_long, child: impl FnOnce(ForkedChild) -> Infallible) -> io::Result<Pid> {
    match i32::try_from(check(result)?).ok().and_then(Pid::from_raw) {
        Some(pid) => Ok(pid),
        None => run_child(child),
    }
}

/// Forks into new namespaces (CLONE_NEW…) or with CLONE_PARENT, and runs `child` in the new process. Returns its PID.
pub(crate) fn fork(
    _: SingleThreaded,
    flags: libc::c_int,
    child: impl FnOnce(ForkedChild) -> Infallible,
) -> io::Result<Pid> {
    let pid = if flags == 0 {
        // SAFETY: there is one thread, so no lock is held by a thread that the child lacks. The C library's fork,
        // because it updates the thread ID that the library remembers.
        libc::c_long::from(unsafe { libc::fork() })
    } else {
        let flags = libc::c_long::from(flags | libc::SIGCHLD);
        // SAFETY: a null stack with neither CLONE_VM nor CLONE_THREAD makes this a fork: the child gets a copy of the
        // address space. There is one thread, as above.
        unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) }
    };
    after_fork(pid, child)
}

/// The place of a PID in the memory of a file, which [`fork_recorded`] has the kernel write. No process that this one
/// forks has that memory.
pub(crate) struct PidRecord {
    place: *mut libc::pid_t,
}

impl PidRecord {
    /// The place at the beginning of `file`, which has at least the length of a PID.
    pub(crate) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        let (length, access) = (size_of::<libc::pid_t>(), libc::PROT_READ | libc::PROT_WRITE);
        // In advance: the kernel ignores that it cannot write the PID.
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: the kernel chooses the address, so that nothing is replaced.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, file.as_raw_fd(), 0) };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping was made above. Forked processes, which lack it, do not use it: only the kernel does.
        check(unsafe { libc::madvise(place, length, libc::MADV_DONTFORK) }.into())?;
        Ok(Self { place: place.cast() })
    }
}

/// As [`fork`]. The PID is also in `record`, before the new process runs, even if this one is killed meanwhile.
pub(crate) fn fork_recorded(
    _: SingleThreaded,
    flags: libc::c_int,
    record: &PidRecord,
    child: impl FnOnce(ForkedChild) -> Infallible,
) -> io::Result<Pid> {
    let flags = libc::c_long::from(flags | libc::CLONE_PARENT_SETTID | libc::SIGCHLD);
    // SAFETY: as in fork. The kernel writes a PID to the place, which stays mapped: nothing unmaps it.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, record.place, 0, 0) };
    after_fork(pid, child)
}

/// Replaces musl's abort(3), which sends SIGABRT to the thread ID that the library remembers. A process made by a raw
/// `clone` or `clone3` remembers its parent's: an allocation failure in it would kill the supervisor. The linker takes
/// this definition before that of the static library.
#[cfg(target_env = "musl")]
// SAFETY: the symbol has the type of the C library's, and does what that documents: it ends the process by SIGABRT.
#[unsafe(no_mangle)]
extern "C" fn abort() -> ! {
    // SAFETY: as in reset_signals: SIG_DFL for SIGABRT, an empty mask. tgkill and kill take numbers only. The raw calls
    // ask the kernel for this process and thread.
    unsafe {
        let default = [0u64; 4];
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGABRT, default.as_ptr(), std::ptr::null::<u64>(), 8);
        let empty: u64 = 0;
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const empty, std::ptr::null::<u64>(), 8);
        let (process, thread) = (libc::syscall(libc::SYS_getpid), libc::syscall(libc::SYS_gettid));
        libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGABRT);
        // PID 1 of a namespace does not get signals of its own namespace with the default action.
        libc::_exit(127)
    }
}

/// Forks into a cgroup v2 directory (`CLONE_INTO_CGROUP`, Linux 5.7) and runs `child` in the new process. The error
/// ENOSYS says that a system call filter denies `clone3`.
pub(crate) fn fork_into_cgroup(
    _: SingleThreaded,
    cgroup: BorrowedFd<'_>,
    child: impl FnOnce(ForkedChild) -> Infallible,
) -> io::Result<Pid> {
    /// `struct clone_args` of linux/sched.h, as of version 2 (`CLONE_ARGS_SIZE_VER2`).
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let args = CloneArgs {
        flags: CLONE_INTO_CGROUP,
        exit_signal: libc::SIGCHLD.unsigned_abs().into(),
        cgroup: cgroup.as_raw_fd().unsigned_abs().into(),
        ..CloneArgs::default()
    };
    // SAFETY: as in fork: no stack, neither CLONE_VM nor CLONE_THREAD, one thread. The kernel reads `size_of` bytes of
    // `args`.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    after_fork(pid, child)
}

/// The process group of the parent; `None` if it has no number in this PID namespace (0) or is the kernel's own (0).
/// rustix does not expect a 0.
pub(crate) fn group_of_parent() -> Option<Pid> {
    // SAFETY: both calls take and give numbers only.
    let (parent, group) = unsafe {
        let parent = libc::getppid();
        (parent, libc::getpgid(parent))
    };
    if parent > 0 && group > 0 { Pid::from_raw(group) } else { None }
}

/// Ends this process without running destructors or flushing buffers, as a forked child must.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions and does not return.
    unsafe { libc::_exit(code) }
}

/// `unshare` of namespaces (not of the descriptor table).
pub(crate) fn unshare(namespaces: libc::c_int) -> io::Result<()> {
    // SAFETY: only namespace flags are passed, so no table shared with other code is affected; there is one thread.
    check(unsafe { libc::unshare(namespaces) }.into()).map(drop)
}

/// `setns` with a namespace file or a pidfd.
pub(crate) fn setns(fd: BorrowedFd<'_>, namespaces: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call; there is one thread.
    check(unsafe { libc::setns(fd.as_raw_fd(), namespaces) }.into()).map(drop)
}

/// The descriptors above stdio that this process inherited.
///
/// No value owns them: they lack FD_CLOEXEC (execve would have closed them otherwise), and every descriptor that this
/// program opens has it.
pub(crate) struct InheritedFds(Vec<RawFd>);

impl InheritedFds {
    /// Lists them.
    pub(crate) fn list() -> io::Result<Self> {
        let mut inherited = descriptors()?;
        // SAFETY: F_GETFD reads a flag; a closed descriptor gives an error.
        inherited.retain(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } == 0);
        Ok(Self(inherited))
    }

    /// Adopts one of them, close-on-exec from now on; `None` if it is not one of them.
    pub(crate) fn adopt(&mut self, fd: RawFd) -> Option<OwnedFd> {
        let at = self.0.iter().position(|&inherited| inherited == fd)?;
        self.0.swap_remove(at);
        // SAFETY: it is open, and no value owned it (see the type); it has left the list, so it is adopted once.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC).ok()?;
        Some(owned)
    }

    /// Closes those that were not adopted.
    pub(crate) fn close(self) {
        for fd in self.0 {
            // SAFETY: no value owns it (see the type).
            unsafe { libc::close(fd) };
        }
    }
}

/// Sets groups, group and user, in the order in which each step leaves the right to do the next.
pub(crate) fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of one slice; the kernel copies it.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: plain numbers. The raw call sets them for this thread; there is only one.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }).map(drop)
}

/// Sets the ids that files are accessed and made with (setfsuid(2)). They are this thread's own.
pub(crate) fn set_file_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain numbers. Both calls return the former id and no error; with an invalid id they change nothing.
    let set = unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        (libc::syscall(libc::SYS_setfsuid, u32::MAX), libc::syscall(libc::SYS_setfsgid, u32::MAX))
    };
    if set == (uid.into(), gid.into()) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

/// One instruction of a classic BPF program (`struct sock_filter` of linux/filter.h).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Insn {
    /// Operation.
    pub(crate) code: u16,
    /// Instructions to skip when true.
    pub(crate) jt: u8,
    /// Instructions to skip when false.
    pub(crate) jf: u8,
    /// Operand.
    pub(crate) k: u32,
}

/// Installs a seccomp filter for this process and all it becomes.
pub(crate) fn load_seccomp(program: &[Insn]) -> io::Result<()> {
    #[repr(C)]
    struct Program {
        len: u16,
        filter: *const Insn,
    }
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
    let program = Program { len, filter: program.as_ptr() };
    // SAFETY: `program` has the layout of struct sock_fprog and outlives the call; `filter` points to `len`
    // instructions.
    check(unsafe { libc::syscall(libc::SYS_seccomp, 1, 0, &raw const program) }).map(drop)
}

/// A program with its arguments and environment as execve takes them.
pub(crate) struct Executable {
    path: CString,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    /// The strings behind the pointers.
    _texts: [Vec<CString>; 2],
}

impl Executable {
    /// Makes all that execve needs.
    pub(crate) fn new(path: CString, argv: Vec<CString>, env: Vec<CString>) -> Self {
        Self { path, argv: pointers(&argv), env: pointers(&env), _texts: [argv, env] }
    }

    /// Replaces this process; returns only the error. It allocates nothing.
    pub(crate) fn execute(&self) -> io::Error {
        // SAFETY: both lists end with a null pointer, and their strings live in `_texts`, which stay where they are
        // when the vectors move.
        unsafe { libc::execve(self.path.as_ptr(), self.argv.as_ptr(), self.env.as_ptr()) };
        io::Error::last_os_error()
    }
}

fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Replaces this process by the program behind a descriptor; returns only the error.
pub(crate) fn execveat(program: BorrowedFd<'_>, argv: &[CString], env: &[CString]) -> io::Error {
    let (argv, env) = (pointers(argv), pointers(env));
    let flags = libc::c_long::from(libc::AT_EMPTY_PATH);
    // SAFETY: the descriptor is open for the call, the path is empty and ends with a NUL byte, and both lists end with
    // a null pointer; their strings live in the slices of the caller.
    unsafe { libc::syscall(libc::SYS_execveat, program.as_raw_fd(), c"".as_ptr(), argv.as_ptr(), env.as_ptr(), flags) };
    io::Error::last_os_error()
}

/// Adds attributes to a mount: read-only, nosuid, nodev, noexec. `recursive`: also to the mounts below it.
pub(crate) fn add_mount_attributes(
    mount: BorrowedFd<'_>,
    attributes: MountAttrFlags,
    recursive: bool,
) -> io::Result<()> {
    let set = attributes.bits().into();
    set_mount_attributes(mount, &MountAttr { set, ..MountAttr::default() }, recursive)
}

/// Gives the files of a detached mount, and of the mounts below it, the owners that their ids have in a user namespace
/// (idmapped mounts, Linux 5.12). EINVAL: a file system does not support it.
pub(crate) fn map_ids_of_mount(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let user_namespace = user_namespace.as_raw_fd().unsigned_abs().into();
    set_mount_attributes(mount, &MountAttr { set: IDMAP, user_namespace, ..MountAttr::default() }, true)
}

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn set_mount_attributes(mount: BorrowedFd<'_>, attributes: &MountAttr, recursive: bool) -> io::Result<()> {
    let recursive = if recursive { libc::AT_RECURSIVE } else { 0 };
    let flags = libc::c_long::from(libc::AT_EMPTY_PATH | recursive);
    let size = size_of::<MountAttr>();
    // SAFETY: the descriptor is open for the call, the path is empty and ends with a NUL byte, and the kernel reads
    // `size` bytes of `attributes`.
    check(unsafe {
        libc::syscall(libc::SYS_mount_setattr, mount.as_raw_fd(), c"".as_ptr(), flags, &raw const *attributes, size)
    })
    .map(drop)
}

/// Resets the signal mask and every disposition to the default. Children of a supervisor would otherwise inherit its
/// blocked signals and the ignored SIGPIPE of Rust programs.
pub(crate) fn reset_signals() {
    // struct kernel_sigaction, all zero: SIG_DFL, no flags, empty mask.
    let default = [0u64; 4];
    for signal in 1..=64 {
        // SAFETY: `default` is at least as large as the kernel's structure, which has a mask of 8 bytes. The raw call,
        // because libc keeps signals 32 and 33 to itself. For 9 and 19 it fails and changes nothing.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), 8) };
    }
    // SAFETY: the all-zero bit pattern is a valid sigset_t (empty); both pointers are valid for the call.
    unsafe {
        let empty: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut());
    }
}

/// Blocks these signals and returns a non-blocking descriptor that becomes readable when one of them is pending.
pub(crate) fn signalfd(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is the empty set; the calls get valid pointers; the returned descriptor is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into())?;
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(fd.into())?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Reads the numbers of the signals pending on a [`signalfd`].
pub(crate) fn read_signals(fd: &OwnedFd) -> Vec<u32> {
    let mut buffer = [0u8; 128 * 16];
    let length = rustix::io::read(fd, &mut buffer).unwrap_or(0);
    buffer[..length].chunks_exact(128).map(|info| u32::from_ne_bytes([info[0], info[1], info[2], info[3]])).collect()
}

/// A child that has exited and was not reaped yet.
pub(crate) fn exited_child() -> Option<Pid> {
    // SAFETY: an all-zero siginfo_t is valid, and waitid fills it in; si_pid is 0 if no child has exited.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        check(libc::waitid(libc::P_ALL, 0, &raw mut info, options).into()).ok()?;
        Pid::from_raw(info.si_pid())
    }
}

/// Sends a signal by its number, the real-time ones included (rustix knows only those with names).
pub(crate) fn send_signal(pidfd: BorrowedFd<'_>, number: u8) -> io::Result<()> {
    let number = libc::c_int::from(number);
    // SAFETY: the descriptor is open for the call; a null pointer asks for the details that kill(2) would send.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), number, 0, 0) }).map(drop)
}

/// Marks every descriptor above stdio as close-on-exec (CVE-2024-21626).
pub(crate) fn close_all_on_exec() -> io::Result<()> {
    const CLOEXEC: libc::c_uint = 4;
    // SAFETY: only sets a flag on descriptors; closes none.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOEXEC) }).map(drop)
}

/// Joins a new session keyring without a name, which holds nothing.
pub(crate) fn join_new_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: a null pointer asks for a keyring without a name.
    check(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) }).map(drop)
}

/// Resets the personality to the default, which randomises addresses.
pub(crate) fn reset_personality() -> io::Result<()> {
    // SAFETY: a plain number: PER_LINUX without flags.
    check(unsafe { libc::syscall(libc::SYS_personality, 0) }).map(drop)
}

/// Resets the scheduling policy and the I/O priority to the default.
pub(crate) fn reset_scheduling() -> io::Result<()> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    let priority: libc::c_int = 0;
    // SAFETY: struct sched_param is one int. The raw call, because musl's wrapper only fails.
    check(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_OTHER, &raw const priority) })?;
    // SAFETY: plain numbers: this process, no class.
    check(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, 0) }).map(drop)
}

/// Makes this terminal the controlling one of the session this process leads.
pub(crate) fn controlling_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes an integer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSCTTY as _, 0) }.into()).map(drop)
}

/// Opens the other end of a pseudo-terminal by its master, not by a path, which an app could have replaced.
pub(crate) fn terminal_peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const TIOCGPTPEER: libc::c_int = 0x5441;
    let unlock: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads an int; TIOCGPTPEER takes open flags as an integer and returns a new descriptor.
    unsafe {
        check(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK as _, &raw const unlock).into())?;
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        let peer = libc::ioctl(master.as_raw_fd(), TIOCGPTPEER as _, flags);
        check(peer.into())?;
        Ok(OwnedFd::from_raw_fd(peer))
    }
}

/// One instruction of an eBPF program (`struct bpf_insn`).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct EbpfInsn {
    /// Operation.
    pub(crate) code: u8,
    /// Destination register in the low, source register in the high four bits.
    pub(crate) registers: u8,
    /// Offset.
    pub(crate) offset: i16,
    /// Immediate.
    pub(crate) immediate: i32,
}

/// Loads a `BPF_PROG_TYPE_CGROUP_DEVICE` program and attaches it to a cgroup2 directory, in place of another program if
/// one is given (Linux 5.6). It lives as long as the cgroup.
pub(crate) fn attach_device_program(
    program: &[EbpfInsn],
    cgroup: BorrowedFd<'_>,
    in_place_of: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    #[derive(Default)]
    struct Load {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        rest: [u64; 12],
    }
    #[repr(C)]
    #[derive(Default)]
    struct Attach {
        target: u32,
        program: u32,
        attach_type: u32,
        flags: u32,
        replaced: u32,
        padding: u32,
        rest: [u64; 4],
    }
    const PROG_LOAD: libc::c_long = 5;
    const PROG_ATTACH: libc::c_long = 8;
    const TYPE_CGROUP_DEVICE: u32 = 15;
    const ATTACH_DEVICE: u32 = 6;
    const ALLOW_MULTI: u32 = 2;
    const REPLACE: u32 = 4;
    let load = Load {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt: u32::try_from(program.len()).unwrap_or(u32::MAX),
        insns: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        ..Load::default()
    };
    // SAFETY: `load` begins like union bpf_attr for BPF_PROG_LOAD, the rest is zero, its size is passed; the pointers
    // in it live until the call returns. The returned descriptor is new.
    let loaded = unsafe {
        let fd = check(libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>()))?;
        OwnedFd::from_raw_fd(RawFd::try_from(fd).unwrap_or(-1))
    };
    let attach = Attach {
        target: cgroup.as_raw_fd().unsigned_abs(),
        program: loaded.as_raw_fd().unsigned_abs(),
        attach_type: ATTACH_DEVICE,
        flags: ALLOW_MULTI | if in_place_of.is_some() { REPLACE } else { 0 },
        replaced: in_place_of.map_or(0, |program| program.as_raw_fd().unsigned_abs()),
        ..Attach::default()
    };
    // SAFETY: as above, for BPF_PROG_ATTACH; all descriptors are open.
    check(unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, &raw const attach, size_of::<Attach>()) })?;
    Ok(loaded)
}

/// Blocks SIGCHLD, so that [`wait_for_child_signal`] cannot miss one.
pub(crate) fn block_child_signal() {
    // SAFETY: an all-zero sigset_t is empty; the pointers are valid for the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Sleeps until a child has ended; returns at once when one ended since the last call.
pub(crate) fn wait_for_child_signal() {
    // SAFETY: as in block_child_signal; sigwaitinfo may be given no place for the details.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigwaitinfo(&raw const set, std::ptr::null_mut());
    }
}

/// The numbers of this process's descriptors above stdio.
pub(crate) fn descriptors() -> io::Result<Vec<RawFd>> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|number| number.parse::<RawFd>().ok()));
    }
    // The one that the list was read through is closed by now.
    // SAFETY: F_GETFD reads a flag; a closed descriptor gives an error.
    open.retain(|&fd| fd > 2 && unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0);
    Ok(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the child of the next test.
    #[cfg(target_env = "musl")]
    const ABORT: &str = "GANTRY_TEST_ABORT";

    /// In a process of its own, which musl's abort in the forked process would kill.
    #[test]
    #[cfg(target_env = "musl")]
    fn abort_in_a_raw_clone() {
        let Ok(way) = std::env::var(ABORT) else { return };
        // The test's main thread sleeps, and holds no lock.
        let thread = SingleThreaded { thread: PhantomData };
        let child = fork(thread, libc::CLONE_NEWUTS, |_| {
            if way == "allocation" {
                std::alloc::handle_alloc_error(std::alloc::Layout::new::<u64>());
            }
            std::process::abort()
        });
        let status = rustix::process::waitpid(child.ok(), rustix::process::WaitOptions::empty()).unwrap().unwrap().1;
        assert_eq!(status.terminating_signal(), Some(libc::SIGABRT), "{status:?}");
        exit_now(42);
    }

    /// In a process of its own, as above.
    #[test]
    #[cfg(target_env = "musl")]
    fn forked_processes_lack_their_record() {
        if std::env::var(ABORT).as_deref() != Ok("record") {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "sys::tests::forked_processes_lack_their_record", "--test-threads=1", "--nocapture"])
                .env(ABORT, "record")
                .output()
                .unwrap();
            assert_eq!(child.status.code(), Some(42), "{child:?}");
            return;
        }
        use std::os::fd::AsFd as _;
        let file = gantry_host::file::in_memory("a-pid", &0i32.to_ne_bytes()).unwrap();
        let record = PidRecord::map(file.as_fd()).unwrap();
        let has_record = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("memfd:a-pid");
        assert!(has_record());
        let pid = fork_recorded(SingleThreaded { thread: PhantomData }, 0, &record, |_| {
            exit_now(if has_record() { 1 } else { 7 })
        });
        let pid = pid.unwrap();
        let mut recorded = [0u8; 4];
        rustix::io::pread(&file, &mut recorded, 0).unwrap();
        assert_eq!(i32::from_ne_bytes(recorded), pid.as_raw_nonzero().get());
        let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap().unwrap().1;
        assert_eq!(status.exit_status(), Some(7), "{status:?}");
        exit_now(42);
    }

    #[test]
    #[cfg(target_env = "musl")]
    fn abort_in_a_raw_clone_spares_its_parent() {
        for way in ["abort", "allocation"] {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "sys::tests::abort_in_a_raw_clone", "--test-threads=1", "--nocapture"])
                .env(ABORT, way)
                .output()
                .unwrap();
            assert_eq!(child.status.code(), Some(42), "{way}: {child:?}");
        }
    }

    /// This test program has threads and other tests' descriptors: only its own are looked at.
    #[test]
    fn only_descriptors_without_cloexec_are_inherited() {
        let (one, other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::fcntl_setfd(&one, rustix::io::FdFlags::empty()).unwrap();
        let mut inherited = InheritedFds::list().unwrap();
        assert!(!inherited.0.contains(&other.as_raw_fd()) && inherited.adopt(other.as_raw_fd()).is_none());
        let number = std::os::fd::IntoRawFd::into_raw_fd(one);
        let adopted = inherited.adopt(number).unwrap();
        assert!(inherited.adopt(number).is_none(), "adopted once");
        assert!(rustix::io::fcntl_getfd(&adopted).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }
}
