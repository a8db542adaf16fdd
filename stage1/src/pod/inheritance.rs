//! Drops what the supervisor inherited from gantry's caller by fork and execve, so that a pod does not depend on its
//! caller: session and terminal, descriptors, supplementary groups, session keyring, personality, resource limits, OOM
//! score, scheduling, capabilities.
//!
//! The engine has already reset the environment, the working directory and the signal mask. Every process of the pod is
//! a fork of this one, so the reset applies to PID 1, the apps and everything executed in them. Except the OOM score:
//! the supervisor and PID 1 get a low one, and a process that executes a program of an app or of the host gets its own.

use std::io;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CpuSet};

use crate::failure::{Attempt, Result};
use crate::sys::{self, SingleThreaded};

const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// The `oom_score_adj` of the supervisor and of PID 1. Killing one of them ends the whole pod and frees next to
/// nothing, so the kernel is to choose any other process first.
const LAST_CHOICE: &str = "-999";
const UNLIMITED: Option<u64> = None;
const MEBIBYTE: u64 = 1 << 20;

/// Soft and hard limits of every process of a pod: those of the kernel's first process, except open files and processes
/// (podman's defaults) and core files (none: they would be written into the app's root).
const LIMITS: [(Resource, Option<u64>, Option<u64>); 16] = [
    (Resource::As, UNLIMITED, UNLIMITED),
    (Resource::Core, Some(0), UNLIMITED),
    (Resource::Cpu, UNLIMITED, UNLIMITED),
    (Resource::Data, UNLIMITED, UNLIMITED),
    (Resource::Fsize, UNLIMITED, UNLIMITED),
    (Resource::Locks, UNLIMITED, UNLIMITED),
    (Resource::Memlock, Some(8 * MEBIBYTE), Some(8 * MEBIBYTE)),
    (Resource::Msgqueue, Some(819_200), Some(819_200)),
    (Resource::Nice, Some(0), Some(0)),
    (Resource::Nofile, Some(1 << 20), Some(1 << 20)),
    (Resource::Nproc, Some(1 << 22), Some(1 << 22)),
    (Resource::Rss, UNLIMITED, UNLIMITED),
    (Resource::Rtprio, Some(0), Some(0)),
    (Resource::Rttime, UNLIMITED, UNLIMITED),
    (Resource::Sigpending, Some(1 << 16), Some(1 << 16)),
    (Resource::Stack, Some(8 * MEBIBYTE), UNLIMITED),
];

/// Resets everything but descriptors ([`sys::InheritedFds`]). Signals that a terminal sends must be blocked.
pub(crate) fn reset(thread: SingleThreaded) -> Result<()> {
    leave_session(thread)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::thread::set_thread_groups(&[]).attempt(|| "cannot drop supplementary groups")?;
    join_new_keyring().attempt(|| "cannot join a new session keyring")?;
    clear_inheritable_capabilities().attempt(|| "cannot clear inheritable capabilities")?;
    sys::reset_personality().attempt(|| "cannot reset the personality")?;
    for (resource, soft, hard) in LIMITS {
        set_limit(resource, soft, hard).attempt(|| format!("cannot set the resource limit {resource:?}"))?;
    }
    // The following settings are optional: if the kernel refuses one, the pod keeps the caller's value.
    warn("set oom_score_adj", lower_oom_score());
    warn("set the nice value to 0", reset_nice_value());
    warn("set the scheduling policy to the default", sys::reset_scheduling());
    warn("use all processors", rustix::thread::sched_setaffinity(None, &all_processors()).map_err(io::Error::from));
    Ok(())
}

/// Starts a session without a terminal. setsid(2) fails for the leader of a process group, which this process is, so
/// that signals of the caller's terminal do not reach it. So it first joins the group of the engine, or else that of a
/// child: the engine's has no number in this PID namespace if the engine is outside, or was killed.
fn leave_session(thread: SingleThreaded) -> Result<()> {
    let what = || "cannot leave the session of the caller";
    if rustix::process::getpgrp() == rustix::process::getpid() {
        let joined = sys::group_of_parent().map(|group| rustix::process::setpgid(None, Some(group)));
        if !matches!(joined, Some(Ok(()))) {
            join_group_of_child(thread).attempt(what)?;
        }
    }
    rustix::process::setsid().attempt(what).map(drop)
}

/// Joins the process group of a child that exits at once. The group exists until its leader is reaped.
fn join_group_of_child(thread: SingleThreaded) -> io::Result<()> {
    let child = sys::fork(thread, 0, |_| sys::exit_now(0))?;
    let joined =
        rustix::process::setpgid(Some(child), Some(child)).and_then(|()| rustix::process::setpgid(None, Some(child)));
    rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())?;
    Ok(joined?)
}

/// Nothing is inherited if the kernel has no keyrings (ENOSYS), or if a filter denies them to this process and its
/// children (EPERM).
pub(crate) fn join_new_keyring() -> io::Result<()> {
    match sys::join_new_session_keyring() {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
        other => other,
    }
}

fn clear_inheritable_capabilities() -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    if !sets.inheritable.is_empty() {
        // The ambient set loses what the inheritable set does.
        sets.inheritable = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets)?;
    }
    Ok(())
}

/// Sets a limit. Without CAP_SYS_RESOURCE a hard limit can only be lowered, so the caller's is the maximum then.
fn set_limit(resource: Resource, soft: Option<u64>, hard: Option<u64>) -> rustix::io::Result<()> {
    match setrlimit(resource, Rlimit { current: soft, maximum: hard }) {
        Err(Errno::PERM) => {
            let limit = within(soft, hard, getrlimit(resource).maximum);
            setrlimit(resource, limit)
        }
        other => other,
    }
}

/// The nearest limits below a ceiling.
fn within(soft: Option<u64>, hard: Option<u64>, ceiling: Option<u64>) -> Rlimit {
    let lower = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
    let maximum = lower(hard, ceiling);
    Rlimit { current: lower(soft, maximum), maximum }
}

/// Makes this process, and those it forks, the last choice of the OOM killer. Without CAP_SYS_RESOURCE a score cannot
/// be lowered; it is reset then.
fn lower_oom_score() -> io::Result<()> {
    match std::fs::write(OOM_SCORE, LAST_CHOICE) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => reset_oom_score(),
        other => other,
    }
}

/// Sets the score of this process to 0, the kernel's default: programs of the host must not inherit the supervisor's.
pub(crate) fn reset_oom_score() -> io::Result<()> {
    if std::fs::read_to_string(OOM_SCORE)?.trim() == "0" { Ok(()) } else { std::fs::write(OOM_SCORE, "0") }
}

fn reset_nice_value() -> io::Result<()> {
    if rustix::process::getpriority_process(None)? != 0 {
        rustix::process::setpriority_process(None, 0)?;
    }
    Ok(())
}

/// All processors; the kernel uses those that exist and that the cpuset allows.
fn all_processors() -> CpuSet {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|number| all.set(number));
    all
}

fn warn(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!("cannot {what}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_stay_below_the_ceiling() {
        let rows = [
            ((Some(0), None, Some(5)), (Some(0), Some(5))),
            ((Some(9), Some(9), Some(5)), (Some(5), Some(5))),
            ((None, None, Some(5)), (Some(5), Some(5))),
            ((Some(3), Some(4), None), (Some(3), Some(4))),
        ];
        for ((soft, hard, ceiling), want) in rows {
            let limit = within(soft, hard, ceiling);
            assert_eq!((limit.current, limit.maximum), want);
        }
    }
}
