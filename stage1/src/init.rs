//! The pod's PID 1: this program in another role. It reaps what is orphaned to it, and its death is the pod's.
//!
//! It dies with the supervisor (parent-death signal) and then the kernel kills every process of the PID namespace. An
//! app cannot touch it: signals to PID 1 from inside are dropped by the kernel, it is not dumpable, and it keeps
//! capabilities that no app has, so that ptrace, /proc/1/root and /proc/1/exe are refused.

use std::os::fd::OwnedFd;

use rustix::pipe::PipeFlags;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions};

use crate::failure::{Attempt, Result, failure};
use crate::sys::{self, Fork};

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
    match sys::fork(libc::CLONE_NEWPID).attempt(|| "cannot make the pod's PID namespace")? {
        Fork::Child => {
            drop(reader);
            run(writer)
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

fn run(ready: OwnedFd) -> ! {
    if prepare(&ready).is_err() {
        sys::exit_now(1);
    }
    // From here on it owns nothing: not the lock (the supervisor's descriptor keeps that), not the socket, not the logs.
    let _ = close_everything();
    loop {
        while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_)) | Err(rustix::io::Errno::INTR)) {}
        sys::wait_for_child_signal();
    }
}

fn prepare(ready: &OwnedFd) -> rustix::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = rustix::thread::set_name(c"gantry-init");
    sys::reset_signals();
    sys::block_child_signal();
    // If the supervisor died before the parent-death signal was set, nobody reads: EPIPE (or SIGPIPE) ends this process.
    rustix::io::write(ready, b"1").map(drop)
}

fn close_everything() -> std::io::Result<()> {
    sys::close_from(0)
}
