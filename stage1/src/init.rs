//! The pod's PID 1: this program in another role. It reaps what is orphaned to it, and its death is the pod's.
//!
//! It dies with the supervisor (parent-death signal) and then the kernel kills every process of the PID namespace. An
//! app cannot touch it: signals to PID 1 from inside are dropped by the kernel, it is not dumpable, and it keeps
//! capabilities that no app has, so that ptrace, /proc/1/root and /proc/1/exe are refused.
//!
//! None of that holds against an app with CAP_SYS_PTRACE, which may look into and take over every process it sees. So PID 1
//! has nothing to take: its root is an empty file system in a mount namespace of its own (the supervisor's has the host's
//! /proc), a system call filter leaves it waiting for children and nothing else, whatever controls it, and its executable is on a
//! read-only mount ([`crate::reexec`]).

use std::os::fd::OwnedFd;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::pipe::PipeFlags;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions};

use crate::failure::{Attempt, Result, failure};
use crate::seccomp;
use crate::sys::{self, Fork, Insn};
use crate::trim;

/// All that PID 1 still has to do: say that it is ready, let go of its descriptors, wait, and end.
const SYSTEM_CALLS: [&str; 8] =
    ["close_range", "exit", "exit_group", "restart_syscall", "rt_sigreturn", "rt_sigtimedwait", "wait4", "write"];

/// The running PID 1.
pub(crate) struct Init {
    /// Its PID on the host.
    pub(crate) pid: Pid,
    /// To wait for it and to end it.
    pub(crate) pidfd: OwnedFd,
}

/// Starts PID 1 of a new PID namespace.
pub(crate) fn start() -> Result<Init> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(|| "cannot make a pipe")?;
    let filter = seccomp::only(&SYSTEM_CALLS)?;
    let clean = trim::clean();
    match sys::fork(libc::CLONE_NEWPID).attempt(|| "cannot make the pod's PID namespace")? {
        Fork::Child => {
            drop(reader);
            run(&writer, &filter, &clean)
        }
        Fork::Parent(pid) => {
            drop(writer);
            let pidfd =
                rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(|| "cannot open the pod's PID 1")?;
            let mut word = [0u8; 1];
            match rustix::io::read(&reader, &mut word) {
                Ok(1) => Ok(Init { pid, pidfd }),
                _ => Err(failure(gantry_model::ErrorKind::Internal, "the pod's PID 1 ended at once")),
            }
        }
    }
}

fn run(ready: &OwnedFd, filter: &[Insn], clean: &[(usize, usize)]) -> ! {
    if prepare(ready, filter, clean).is_err() {
        sys::exit_now(1);
    }
    // From here on it owns nothing: not the lock (the supervisor's descriptor keeps that), not the socket, not the logs.
    let _ = close_everything();
    loop {
        while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_)) | Err(rustix::io::Errno::INTR)) {}
        sys::wait_for_child_signal();
    }
}

fn prepare(ready: &OwnedFd, filter: &[Insn], clean: &[(usize, usize)]) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = rustix::thread::set_name(c"gantry-init");
    // A matter of looks in `ps`, like the name before it: no reason for a pod to fail.
    let _ = replace_arguments("gantry-init");
    sys::reset_signals();
    sys::block_child_signal();
    leave_all_files()?;
    rustix::thread::set_no_new_privs(true)?;
    // What it took to come here is not needed any more, and the filter lets nothing of it go.
    trim::drop_pages(clean);
    sys::load_seccomp(filter)?;
    // If the supervisor died before the parent-death signal was set, nobody reads: EPIPE (or SIGPIPE) ends this process.
    rustix::io::write(ready, b"1")?;
    Ok(())
}

/// A mount namespace of its own with nothing in it. Not a chroot: `..` leads out of another process's.
fn leave_all_files() -> std::io::Result<()> {
    sys::unshare(libc::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let nothing = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", "/state", "tmpfs", nothing, c"mode=0555,size=4k,nr_inodes=2")?;
    rustix::process::chdir("/state")?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// Puts a title in the place of the supervisor's arguments, which are in memory where the kernel put them for execve.
/// `/proc/PID/cmdline` ends at the first NUL byte when the last one of the arguments was overwritten (setproctitle(3) in other
/// systems).
fn replace_arguments(title: &str) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let Some((start, end)) = arguments_in(&stat) else { return Err(std::io::ErrorKind::InvalidData.into()) };
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

/// Where the arguments begin and end: fields 48 and 49 of proc_pid_stat(5), counted behind the command's name.
fn arguments_in(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(45);
    Some((fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?))
}

fn close_everything() -> std::io::Result<()> {
    sys::close_from(0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_arguments_are_found_behind_any_name() {
        let fields: Vec<String> = (4..=52).map(|number| (number * 10).to_string()).collect();
        let stat = format!("7 (a) b (c) S {}\n", fields.join(" "));
        assert_eq!(super::arguments_in(&stat), Some((480, 490)));
        assert_eq!(super::arguments_in("1 (x) S 1"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        let (start, end) = super::arguments_in(&own).unwrap();
        let length = std::fs::read("/proc/self/cmdline").unwrap().len();
        assert_eq!(end - start, length as u64);
    }
}
