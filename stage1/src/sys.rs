//! The only `unsafe` of the project: system calls that have no safe wrapper in rustix, each block argued.
//!
//! Nothing here decides anything. A function does one call, or the few that belong together, and returns its error.
//! The supervisor has one thread ([`assert_single_threaded`]); several arguments below rest on that.
#![expect(unsafe_code, reason = "this module is the fence around it")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;

/// Which side of a fork this is.
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The old one, with the new one's PID.
    Parent(Pid),
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Refuses to go on with more than one thread: a fork of a threaded process, and libcontainer's raw `clone3`, deadlock.
pub(crate) fn assert_single_threaded() -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    if status.lines().any(|line| line.split_whitespace().eq(["Threads:", "1"])) {
        Ok(())
    } else {
        Err(io::Error::other("the supervisor has more than one thread"))
    }
}

/// A fork into new namespaces of these flags; without any it is the C library's, which remembers the new process's number: its
/// `abort` would hit the parent otherwise.
pub(crate) fn fork(namespaces: libc::c_int) -> io::Result<Fork> {
    let pid = if namespaces == 0 {
        // SAFETY: there is one thread, so the child has all that a lock may be held by.
        libc::c_long::from(unsafe { libc::fork() })
    } else {
        let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
        // SAFETY: a null stack with neither CLONE_VM nor CLONE_THREAD makes this a fork: the child gets a copy of the
        // address space. There is one thread, so no lock can be held by a thread that the child lacks.
        unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) }
    };
    match i32::try_from(check(pid)?).ok().and_then(Pid::from_raw) {
        Some(pid) => Ok(Fork::Parent(pid)),
        None => Ok(Fork::Child),
    }
}

/// The process group of the parent; `None` where it has no number in this PID namespace, or is the kernel's own (0). rustix
/// takes both for impossible.
pub(crate) fn group_of_parent() -> Option<Pid> {
    // SAFETY: both calls take and give numbers only.
    let (parent, group) = unsafe {
        let parent = libc::getppid();
        (parent, libc::getpgid(parent))
    };
    if parent > 0 && group > 0 { Pid::from_raw(group) } else { None }
}

/// Ends this process without running destructors or flushing: what a forked child must do.
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

/// Takes over a descriptor that was inherited by number. `None` when it is not open.
///
/// The caller passes each number once, before anything else could have opened it.
pub(crate) fn inherited(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_GETFD reads a flag; a closed descriptor gives an error.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: it is open (just checked), above stdio, and nobody else in this process owns it: it was inherited and
    // this is called first thing in main.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC).ok()?;
    Some(owned)
}

/// Groups, group and user, in the order that leaves the right to do the next.
pub(crate) fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of one slice; the kernel copies it.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: plain numbers. Raw system calls, since there is one thread and nothing to synchronise.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }).map(drop)
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
    // SAFETY: `program` has the layout of struct sock_fprog and outlives the call; `filter` points to `len` instructions.
    check(unsafe { libc::syscall(libc::SYS_seccomp, 1, 0, &raw const program) }).map(drop)
}

/// A program with its arguments and environment as execve takes them.
pub(crate) struct Executable {
    path: CString,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    /// What the pointers point to.
    _texts: [Vec<CString>; 2],
}

impl Executable {
    /// Makes all that execve needs.
    pub(crate) fn new(path: CString, argv: Vec<CString>, env: Vec<CString>) -> Self {
        Self { path, argv: pointers(&argv), env: pointers(&env), _texts: [argv, env] }
    }

    /// Replaces this process; returns only the error. It allocates nothing.
    pub(crate) fn execute(&self) -> io::Error {
        // SAFETY: both lists end with a null pointer, and their strings live in `_texts`, whose contents do not move with it.
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
    // SAFETY: the descriptor is open for the call, the path is empty and ends with a NUL byte, and both lists end with a null
    // pointer; their strings live in the slices of the caller.
    unsafe { libc::syscall(libc::SYS_execveat, program.as_raw_fd(), c"".as_ptr(), argv.as_ptr(), env.as_ptr(), flags) };
    io::Error::last_os_error()
}

/// Makes a mount read-only (and nosuid, nodev) and takes it out of its peer group, so that nothing propagates to it.
pub(crate) fn make_mount_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    /// `struct mount_attr` of linux/mount.h.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    const RDONLY: u64 = 0x1;
    const NOSUID: u64 = 0x2;
    const NODEV: u64 = 0x4;
    let attributes =
        Attributes { set: RDONLY | NOSUID | NODEV, clear: 0, propagation: libc::MS_PRIVATE, user_namespace: 0 };
    let flags = libc::c_long::from(libc::AT_EMPTY_PATH);
    // SAFETY: the descriptor is open for the call, the path is empty and ends with a NUL byte, and the kernel reads as many bytes
    // of `attributes` as it is told.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    })
    .map(drop)
}

/// Puts the signal mask and every disposition back to what a fresh process has. Children of a supervisor would
/// otherwise inherit its blocked signals and the ignored SIGPIPE of Rust programs.
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

/// Blocks these signals and gives a non-blocking descriptor that becomes readable when one of them is pending.
pub(crate) fn signalfd(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is the empty set; the calls get valid pointers; the descriptor returned is new and ours.
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

/// The numbers of the signals pending on a [`signalfd`]; takes them off.
pub(crate) fn take_signals(fd: &OwnedFd) -> Vec<u32> {
    let mut buffer = [0u8; 128 * 16];
    let taken = rustix::io::read(fd, &mut buffer).unwrap_or(0);
    buffer[..taken].chunks_exact(128).map(|info| u32::from_ne_bytes([info[0], info[1], info[2], info[3]])).collect()
}

/// Sends a signal by its number, the real-time ones included (rustix knows only those with names).
pub(crate) fn send_signal(pidfd: BorrowedFd<'_>, number: u8) -> io::Result<()> {
    let number = libc::c_int::from(number);
    // SAFETY: the descriptor is open for the call; a null pointer asks for the details that kill(2) would send.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), number, 0, 0) }).map(drop)
}

/// Marks every descriptor from 3 on as close-on-exec, whoever opened it (CVE-2024-21626).
pub(crate) fn close_all_on_exec() -> io::Result<()> {
    const CLOEXEC: libc::c_uint = 4;
    // SAFETY: only sets a flag on descriptors; closes none.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOEXEC) }).map(drop)
}

/// Joins a new session keyring without a name, which holds nothing.
pub(crate) fn join_new_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: a null pointer is no name.
    check(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) }).map(drop)
}

/// The personality that a process has by default: randomised addresses, for instance.
pub(crate) fn reset_personality() -> io::Result<()> {
    // SAFETY: a plain number: PER_LINUX without flags.
    check(unsafe { libc::syscall(libc::SYS_personality, 0) }).map(drop)
}

/// The scheduling policy and the I/O priority that a process has by default.
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

/// Opens the other end of a pseudo-terminal by its master, not by a path that somebody could have replaced.
pub(crate) fn terminal_peer(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const TIOCGPTPEER: libc::c_int = 0x5441;
    let unlock: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads an int; TIOCGPTPEER takes open flags as an integer and returns a new descriptor, ours.
    unsafe {
        check(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK as _, &raw const unlock).into())?;
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        let peer = libc::ioctl(master.as_raw_fd(), TIOCGPTPEER as _, flags);
        check(peer.into())?;
        Ok(OwnedFd::from_raw_fd(peer))
    }
}

/// Gives the page cache back the clean pages of this range of our address space; they come again when touched.
///
/// # Safety argument for callers
/// The range must be a file mapping without private changes: those would be lost.
pub(crate) fn drop_clean_pages(start: usize, len: usize) {
    // SAFETY: the caller read from smaps that the range is a read-only file mapping with no anonymous page, so every
    // page comes back from the file with the same bytes. No reference can observe a difference.
    unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_DONTNEED) };
}

/// Closes every descriptor above stdio but these. Only for a process in which nothing else is owned, or a forked one that goes
/// on in a function which never returns to the owners.
pub(crate) fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<libc::c_uint> = kept.iter().filter_map(|fd| fd.as_raw_fd().try_into().ok()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for end in kept.into_iter().map(Some).chain([None]) {
        let last = end.map_or(libc::c_uint::MAX, |fd| fd.saturating_sub(1));
        if first <= last {
            // SAFETY: the carrier of an exec calls this; the closed descriptors' owners are on its stack below a call
            // that ends in _exit or execve, so none of them is used or dropped afterwards. The supervisor calls it before
            // it owns any descriptor but those that are kept.
            check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })?;
        }
        first = end.map_or(libc::c_uint::MAX, |fd| first.max(fd + 1));
    }
    Ok(())
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

/// Loads a `BPF_PROG_TYPE_CGROUP_DEVICE` program and attaches it to a cgroup2 directory. It lives as long as the cgroup.
pub(crate) fn attach_device_program(program: &[EbpfInsn], cgroup: BorrowedFd<'_>) -> io::Result<()> {
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
        rest: [u64; 4],
    }
    const PROG_LOAD: libc::c_long = 5;
    const PROG_ATTACH: libc::c_long = 8;
    const TYPE_CGROUP_DEVICE: u32 = 15;
    const ATTACH_DEVICE: u32 = 6;
    const ALLOW_MULTI: u32 = 2;
    let load = Load {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt: u32::try_from(program.len()).unwrap_or(u32::MAX),
        insns: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        ..Load::default()
    };
    // SAFETY: `load` begins like union bpf_attr for BPF_PROG_LOAD, the rest is zero, its size is passed; the pointers in it
    // live until the call returns. The descriptor returned is new and ours.
    let loaded = unsafe {
        let fd = check(libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>()))?;
        OwnedFd::from_raw_fd(RawFd::try_from(fd).unwrap_or(-1))
    };
    let attach = Attach {
        target: cgroup.as_raw_fd().unsigned_abs(),
        program: loaded.as_raw_fd().unsigned_abs(),
        attach_type: ATTACH_DEVICE,
        flags: ALLOW_MULTI,
        ..Attach::default()
    };
    // SAFETY: as above, for BPF_PROG_ATTACH; both descriptors are open.
    check(unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, &raw const attach, size_of::<Attach>()) }).map(drop)
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
    // Without the one the list was read by.
    // SAFETY: F_GETFD reads a flag; a closed descriptor gives an error.
    open.retain(|&fd| fd > 2 && unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0);
    Ok(open)
}

/// Closes these. Only for a forked process that never returns to their owners.
pub(crate) fn close_all_of(descriptors: &[RawFd]) {
    for fd in descriptors {
        // SAFETY: a forked process calls this on its way to execve or _exit; the descriptors' owners are on its stack below a
        // call that ends in one of these, so none of them is used or dropped afterwards.
        unsafe { libc::close(*fd) };
    }
}

/// Closes every descriptor from `first` on. Only for a process that owns none of them in Rust's sense any more.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: called by PID 1 right after its fork, in a function that never returns, so that no OwnedFd of it is used or dropped
    // later; and by the role for networks before it opens anything.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) }).map(drop)
}
