//! The pod's PID 1, a fork of this program. It reaps orphans, and the pod ends with it.
//!
//! It dies with the supervisor (parent-death signal), and then the kernel kills every process of the PID namespace.
//! Apps have no access to it: the kernel drops signals to PID 1 from inside, it is not dumpable, and it keeps
//! capabilities that no app has, so that ptrace, /proc/1/root and /proc/1/exe are refused.
//!
//! An app with CAP_SYS_PTRACE can trace and control every process it sees, PID 1 included. Therefore PID 1 gives access
//! to nothing: its root is an empty file system in a mount namespace of its own (the supervisor's has the host's
//! /proc), its system call filter allows only what waiting for children takes, and its executable is on a read-only
//! mount ([`crate::reexec`]).

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::pipe::PipeFlags;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions};

use crate::failure::{Attempt, Result, failure};
use crate::pod::user_namespace::UserNamespace;
use crate::reaper::reap_all;
use crate::seccomp;
use crate::sys::{self, ForkedChild, Insn, ProcessMemory, SingleThreaded};

/// The system calls that PID 1 needs to report that it is ready, to close its descriptors and to give back its memory,
/// to wait for children, and to exit.
const SYSTEM_CALLS: [&str; 9] = [
    "close_range",
    "exit",
    "exit_group",
    "madvise",
    "restart_syscall",
    "rt_sigreturn",
    "rt_sigtimedwait",
    "wait4",
    "write",
];

/// Timeout of the end of a PID namespace: a process may be stuck in the kernel.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often children are reaped while PID 1 exits.
const REAP_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// PID 1, which may still be setting itself up.
pub(crate) struct Init {
    /// Its PID on the host.
    pub(crate) pid: Pid,
    /// To wait for it and to kill it.
    pub(crate) pidfd: OwnedFd,
    /// Where it reports that it is set up.
    reports: OwnedFd,
}

impl Init {
    /// Whether it was killed: it does not exit by itself. The kernel first marks it as exiting, then kills the other
    /// processes of its PID namespace; its pidfd is readable only after all of those were reaped.
    pub(crate) fn is_exiting(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| gantry_contract::is_exiting(&stat) == Some(true))
    }

    /// Waits until it is set up. Before, it has rights that no app may take over: no app runs until then.
    pub(crate) fn wait_until_ready(&self) -> Result<()> {
        match rustix::io::read(&self.reports, &mut [0u8; 1]) {
            Ok(1) => Ok(()),
            _ => Err(failure(gantry_model::ErrorKind::Internal, "the pod's PID 1 ended before it was set up")),
        }
    }

    /// Kills it, and with it every process of the pod, and waits until they are gone.
    pub(crate) fn end(&self) {
        let deadline = Instant::now() + EXIT_TIMEOUT;
        // It fails only if PID 1 has exited.
        let _already_ended = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        while Instant::now() < deadline {
            // PID 1 exits when every process of its namespace was reaped; apps and execs are children of this process.
            reap_all();
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            if poll(&mut fds, Some(&REAP_INTERVAL)).is_ok_and(|ready| ready > 0) {
                reap_all();
                return;
            }
        }
    }
}

/// Starts PID 1 of a new PID namespace; with a user namespace of the pod, in that.
pub(crate) fn start(thread: SingleThreaded, user: Option<&UserNamespace>) -> Result<Init> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(|| "cannot make a pipe")?;
    let filter = seccomp::only(&SYSTEM_CALLS)?;
    let pid = match user {
        // It lists its memory itself: the supervisor does not wait for that.
        None => {
            sys::fork(thread, libc::CLONE_NEWPID, |process| run(&process, &writer, &filter, &ProcessMemory::list()))
        }
        Some(user) => {
            let memory = ProcessMemory::list();
            fork_in(thread, user, |process| run(&process, &writer, &filter, &memory))
        }
    };
    let pid = pid.attempt(|| "cannot make the pod's PID namespace")?;
    drop(writer);
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(|| "cannot open the pod's PID 1")?;
    Ok(Init { pid, pidfd, reports: reader })
}

/// Forks PID 1 of a PID namespace that belongs to the user namespace: through a process that joins that one, since this
/// process cannot leave it again.
fn fork_in(
    thread: SingleThreaded,
    user: &UserNamespace,
    first: impl FnOnce(ForkedChild) -> Infallible,
) -> std::io::Result<Pid> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let forker = sys::fork(thread, 0, |_| {
        // Not as another user, who cannot open the file that this changes.
        let _best_effort = replace_arguments("gantry-init");
        let forked = user.join().and_then(|()| sys::fork(thread, libc::CLONE_NEWPID | libc::CLONE_PARENT, first));
        let number = match &forked {
            Ok(pid) => pid.as_raw_nonzero().get(),
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        // Without the number, PID 1 is killed with its reader's pipe.
        let _supervisor_has_gone = rustix::io::write(&writer, &number.to_ne_bytes());
        sys::exit_now(0)
    })?;
    drop(writer);
    let mut bytes = [0u8; 4];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(&reader, &mut bytes));
    let _reaped = rustix::process::waitpid(Some(forker), WaitOptions::empty());
    match (read, i32::from_ne_bytes(bytes)) {
        (Ok(4), number) if number < 0 => Err(std::io::Error::from_raw_os_error(-number)),
        (Ok(4), number) => Pid::from_raw(number).ok_or_else(|| std::io::Error::from_raw_os_error(libc::EIO)),
        _ => Err(std::io::Error::other("the process that forks PID 1 was killed")),
    }
}

fn run(process: &ForkedChild, ready: &OwnedFd, filter: &[Insn], memory: &ProcessMemory) -> ! {
    if prepare(ready, filter).is_err() {
        sys::exit_now(1);
    }
    // It keeps neither the lock, nor the control socket, nor the logs. It can go on if this fails: nothing uses them.
    let _descriptors_leak = process.close_everything();
    memory.drop_all(process, || {
        loop {
            while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_)) | Err(rustix::io::Errno::INTR)) {}
            sys::wait_for_child_signal();
        }
    })
}

fn prepare(ready: &OwnedFd, filter: &[Insn]) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Names are for ps(1): a pod does not fail without them.
    let _best_effort = rustix::thread::set_name(c"gantry-init");
    let _best_effort = replace_arguments("gantry-init");
    sys::reset_signals();
    sys::block_child_signal();
    leave_all_files()?;
    rustix::thread::set_no_new_privs(true)?;
    sys::load_seccomp(filter)?;
    // If the supervisor died before the parent-death signal was set, this fails with EPIPE, or SIGPIPE kills the
    // process.
    rustix::io::write(ready, b"1")?;
    Ok(())
}

/// Enters a mount namespace of its own with an empty root. A chroot would not do: another process can leave it by `..`.
fn leave_all_files() -> std::io::Result<()> {
    sys::unshare(libc::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let nothing = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Any directory serves: this mount namespace has no other process.
    mount("tmpfs", "/volumes", "tmpfs", nothing, c"mode=0555,size=4k,nr_inodes=2")?;
    rustix::process::chdir("/volumes")?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// Overwrites the supervisor's arguments in memory, where execve put them, as setproctitle(3) does. If the last byte of
/// the arguments is not NUL, `/proc/PID/cmdline` ends at the first NUL byte.
fn replace_arguments(title: &str) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let Some((start, end)) = argument_addresses(&stat) else { return Err(std::io::ErrorKind::InvalidData.into()) };
    let mut text = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
    if text.len() < title.len() + 2 {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    text[..title.len()].copy_from_slice(title.as_bytes());
    if let Some(last) = text.last_mut() {
        *last = b' ';
    }
    std::fs::OpenOptions::new().write(true).open("/proc/self/mem")?.write_all_at(&text, start)
}

/// The addresses where the arguments begin and end: fields 48 and 49 of proc_pid_stat(5), counted after the command's
/// name, which may contain spaces and parentheses.
fn argument_addresses(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(45);
    Some((fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, WaitId, WaitIdOptions};

    #[test]
    fn an_exiting_process_is_recognised() {
        assert_eq!(gantry_contract::is_exiting(&std::fs::read_to_string("/proc/self/stat").unwrap()), Some(false));
        assert_eq!(gantry_contract::is_exiting("1 (x) S 1"), None);
        let mut child = Command::new("true").spawn().unwrap();
        let id = WaitId::Pid(Pid::from_child(&child));
        // It stays until it is reaped.
        rustix::process::waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        assert_eq!(gantry_contract::is_exiting(&stat), Some(true), "{stat}");
        child.wait().unwrap();
    }

    #[test]
    fn arguments_are_found_after_any_process_name() {
        let fields: Vec<String> = (4..=52).map(|number| (number * 10).to_string()).collect();
        let stat = format!("7 (a) b (c) S {}\n", fields.join(" "));
        assert_eq!(super::argument_addresses(&stat), Some((480, 490)));
        assert_eq!(super::argument_addresses("1 (x) S 1"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (start, end) = super::argument_addresses(&own).unwrap();
        let length = std::fs::read("/proc/self/cmdline").unwrap().len();
        assert_eq!(end - start, length as u64);
    }
}
