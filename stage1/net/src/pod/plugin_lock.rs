//! The lock of a pod's plugins: only one process at a time runs them, or processes that it has started.
//!
//! A plugin does not end with the process that started it: after a `kill -9` during ADD it continues, but must not do
//! so while DEL removes what it creates. So it inherits the descriptor of a lock, which stays locked as long as the
//! plugin or a child of it runs. It is given some time to end, and then killed.
//!
//! A daemon that a plugin starts on purpose inherits the descriptor as well, but no lock: a supervisor whose plugins
//! have ended unlocks the file for all processes that have the descriptor. (If the supervisor was killed, such a daemon
//! cannot be told from a plugin.)

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use gantry_contract::files::PLUGINS;
use gantry_host::lock::{LockMode, LockedFile};
use gantry_model::ErrorKind;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::{NetworkError, Result};
use super::lock_holders::find_lock_holders;

/// How long plugins may run after their supervisor was killed; most end within that. gantryd detaches a dead pod within
/// two seconds.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long killed plugins may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The lock, held until dropped.
#[derive(Debug)]
pub(super) struct PluginLock(#[expect(dead_code, reason = "it is held")] LockedFile<OwnedFd>);

impl PluginLock {
    /// Acquires the lock for ADD, creating the file. The caller has the pod's lock; `dir` is the pod's directory.
    pub(super) fn create(dir: BorrowedFd<'_>, pod: &str) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(dir, PLUGINS, flags, Mode::RUSR | Mode::WUSR).map_err(failed("create", pod))?;
        Self::acquire(file, pod)
    }

    /// Acquires the lock for DEL; `None` if no plugin was ever run for the pod. The caller has the pod's lock.
    pub(super) fn open(dir: BorrowedFd<'_>, pod: &str) -> Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(dir, PLUGINS, flags, Mode::empty()) {
            Ok(file) => Self::acquire(file, pod).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("open", pod)(errno)),
        }
    }

    fn acquire(file: OwnedFd, pod: &str) -> Result<Self> {
        let mut processes = Vec::new();
        let locked =
            LockedFile::lock_within(file, LockMode::Exclusive, ORPHAN_TIMEOUT + KILL_TIMEOUT, |file, elapsed| {
                if elapsed >= ORPHAN_TIMEOUT {
                    let holders = find_lock_holders(file)?;
                    holders.kill();
                    processes = holders.pids();
                }
                Ok(())
            });
        let locked = locked.map_err(failed("lock", pod))?;
        let locked = locked.ok_or_else(|| orphans(pod, &processes))?;
        locked.make_inheritable().map_err(failed("lock", pod))?;
        Ok(Self(locked))
    }
}

fn failed<E: Into<std::io::Error>>(doing: &'static str, pod: &str) -> impl FnOnce(E) -> NetworkError {
    NetworkError::io(format!("{doing} {PLUGINS} of pod {pod}"))
}

fn orphans(pod: &str, processes: &[i32]) -> NetworkError {
    let processes = processes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let message = format!(
        "plugins of pod {pod}, whose supervisor is dead, cannot be killed (process {processes}): find out what they wait for, end \
         them, and try again"
    );
    NetworkError::new(ErrorKind::TimedOut, message)
}

#[cfg(test)]
#[path = "plugin_lock_tests.rs"]
mod tests;
