//! Waiting for a supervisor that may be stopped, by SIGSTOP or a debugger: it does not reply until it is continued.
//!
//! A wait is cut into slices. After each slice without a reply, the state of the supervisor's process is read: a reply
//! within the first slice costs nothing more.
//!
//! # What a request leaves behind
//!
//! A supervisor that is continued executes the requests that it was sent, also those of commands that have failed. What
//! they change is in its journal, and the next command on the pod reconciles it, as after a kill of the command
//! (`crate::pods::apps`): an app is recorded or removed, starts, stops and pauses are recorded. A program of `exec` is
//! killed, since its connection is closed.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use gantry_contract::files;
use gantry_model::PodId;
use rustix::fs::{Mode, OFlags};

use crate::host::process::{self, Deadline, StoppedProcess};
use crate::pods::control::ControlError;

/// How long a wait lasts before the supervisor's process is examined.
pub(super) const SLICE: Duration = Duration::from_secs(1);

/// How long a supervisor may be stopped, without interruption, while it is waited for.
const STOPPED_TIMEOUT: Duration = Duration::from_secs(10);

/// A wait for a supervisor, in slices.
pub(super) struct SupervisorWait<'a> {
    id: PodId,
    pod_dir: &'a Path,
    deadline: Deadline,
    /// The time it had at the deadline, for a message.
    limit: Duration,
    /// Since when each slice has found it stopped.
    stopped: Option<(StoppedProcess, Instant)>,
}

impl<'a> SupervisorWait<'a> {
    pub(super) fn new(id: PodId, pod_dir: &'a Path, deadline: Deadline, limit: Duration) -> Self {
        Self { id, pod_dir, deadline, limit, stopped: None }
    }

    /// The end of the next slice.
    pub(super) fn slice(&self) -> Deadline {
        self.deadline.at_most(SLICE)
    }

    /// Called after a slice in vain.
    ///
    /// # Errors
    /// [`ControlError::Stopped`], or [`ControlError::Silent`] at the deadline.
    pub(super) fn go_on(&mut self) -> Result<(), ControlError> {
        let id = self.id;
        let now = Instant::now();
        let since = |process| match &self.stopped {
            Some((before, since)) if *before == process => (process, *since),
            _ => (process, now),
        };
        self.stopped = stopped_supervisor(self.pod_dir).map(since);
        match self.stopped {
            Some((process, since)) if self.deadline.passed() || now.duration_since(since) >= STOPPED_TIMEOUT => {
                Err(ControlError::Stopped { id, process })
            }
            None if self.deadline.passed() => Err(ControlError::silent(id, self.limit)),
            Some(_) | None => Ok(()),
        }
    }
}

/// The supervisor of a pod, if it is stopped now. It is the process that has locked the journal; `None` also for an
/// older one, which has not.
pub(super) fn stopped_supervisor(pod_dir: &Path) -> Option<StoppedProcess> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let journal = rustix::fs::open(pod_dir.join(files::JOURNAL), flags, Mode::empty()).map(File::from).ok()?;
    process::stopped_lock_holder(&journal)
}
