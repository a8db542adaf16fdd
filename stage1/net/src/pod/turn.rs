//! Whose turn it is to run the plugins of a pod. One process's at a time, and that of what it starts.
//!
//! A plugin does not end with the process that started it: after a `kill -9` in the middle of ADD it goes on, and must not go
//! on while DEL takes away what it makes. So it inherits the descriptor of a lock, and as long as it runs, or something that it
//! started, nobody else gets the lock. It is given some time to end by itself, and then killed.
//!
//! What a plugin leaves behind on purpose (a daemon) has the descriptor too, and nothing locked: whoever sees his plugins end
//! lets go of the lock for all who have it. (Begun under one who was killed, it cannot be told from a plugin.)

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use gantry_contract::files::PLUGINS;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::{NetworkError, Result};
use super::holders::holders;
use crate::flock::{self, Flock};

/// How long plugins may go on whose starter is dead; most are done within that. gantryd gives a dead pod's networks two
/// seconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long killed ones may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code, reason = "it is held")] Flock<OwnedFd>);

impl Turn {
    /// Takes the turn before anything is added. The caller has the pod's lock; `dir` is the pod's directory.
    pub(super) fn first(dir: BorrowedFd<'_>, pod: &str) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(dir, PLUGINS, flags, Mode::RUSR | Mode::WUSR).map_err(failed("make", pod))?;
        Self::of(file, pod)
    }

    /// Takes the turn before something is deleted; `None` where nobody ever had one. The caller has the pod's lock.
    pub(super) fn next(dir: BorrowedFd<'_>, pod: &str) -> Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(dir, PLUGINS, flags, Mode::empty()) {
            Ok(file) => Self::of(file, pod).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("open", pod)(errno)),
        }
    }

    fn of(file: OwnedFd, pod: &str) -> Result<Self> {
        let mut processes = Vec::new();
        let locked = flock::lock(file, false, PATIENCE + GONE_WITHIN, |file, elapsed| {
            if elapsed >= PATIENCE {
                let holders = holders(file)?;
                holders.kill();
                processes = holders.pids();
            }
            Ok(())
        });
        let locked = locked.map_err(failed("lock", pod))?;
        let locked = locked.ok_or_else(|| NetworkError::Orphans { pod: pod.to_owned(), processes })?;
        locked.inherit().map_err(failed("lock", pod))?;
        Ok(Self(locked))
    }
}

fn failed<E: Into<std::io::Error>>(doing: &'static str, pod: &str) -> impl FnOnce(E) -> NetworkError {
    let failed = NetworkError::file(format!("{doing} {PLUGINS} of pod {pod}"));
    move |error| failed(error.into())
}

#[cfg(test)]
#[path = "turn_tests.rs"]
mod tests;
