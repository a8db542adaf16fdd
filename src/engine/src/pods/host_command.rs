//! Commands of a caller that run on the host as pods of their own, and end with their caller.
//!
//! The caller holds a lock on a file in the pod's directory for as long as the command may run. A file cannot be forged
//! by a manifest, as a label could, and the kernel releases the lock when the caller dies. So the garbage collector
//! finds the commands whose caller is gone, and ends them.
//!
//! | caller killed after | found | becomes |
//! |---|---|---|
//! | the pod was created | a preparation whose lock is free | aborted preparation; removed by `gc` |
//! | the owner file was locked | the same, with an owner that is gone | removed by `gc` at once |
//! | the pod was started | a running pod, with an owner that is gone | stopped and removed by `gc` |
//! | the command has ended | an exited pod, with an owner that is gone | removed by `gc` at once |
//! | the removal was begun | garbage that is being deleted | removed by `gc` at once |
//!
//! gantryd collects garbage when it starts.

use std::os::fd::OwnedFd;
use std::time::Duration;

use gantry_fetch::PullPolicy;
use gantry_fetch::progress::Silent;
use gantry_host::lock::{LockMode, try_lock};
use gantry_model::spec::SpecError;
use gantry_model::{AppEnd, AppState, ErrorKind, Kind, PodId, PodSpec};
use thiserror::Error;

use crate::pods::output::{OutputError, OutputStream, Show};
use crate::pods::pod_dir;
use crate::pods::prepare::{Prepare, PrepareError};
use crate::pods::rm::{RmError, RunningPod};
use crate::pods::run::{RunOptions, Running, StartError};
use crate::{Engine, PodError};

/// The time between the stop signal and SIGKILL for a command whose caller is gone.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// The time in which the end of a command whose output has ended is recorded.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// A command could not be started.
#[derive(Debug, Error)]
pub enum CommandError {
    /// Its specification is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Its pod could not be created.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// Its pod could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Its directory could not be written.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for CommandError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Spec(error) => error.kind(),
            Self::Prepare(error) => error.kind(),
            Self::Start(error) => error.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

/// The caller's ownership of a command. When it is dropped, the next collection ends the command.
#[derive(Debug)]
pub struct CommandOwner {
    _locked: OwnedFd,
}

/// A command that was started.
#[derive(Debug)]
pub struct StartedCommand {
    /// Its pod.
    pub id: PodId,
    /// To be kept until it has ended.
    pub owner: CommandOwner,
    /// The pod, with its output, which must be read.
    pub running: Running,
}

/// The beginning of an output stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapturedStream {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether more followed, which was discarded.
    pub cut: bool,
}

impl CapturedStream {
    fn add(&mut self, bytes: &[u8], max: usize) {
        let room = max.saturating_sub(self.bytes.len());
        self.cut |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// The output of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapturedOutput {
    /// Standard output.
    pub stdout: CapturedStream,
    /// Standard error.
    pub stderr: CapturedStream,
}

impl OutputStream {
    /// Reads the output to its end, and keeps at most `max` bytes of each stream. Blocks while the command runs.
    ///
    /// # Errors
    /// [`OutputError`]: the output before it was captured.
    pub fn capture(&mut self, max: usize, captured: &mut CapturedOutput) -> Result<(), OutputError> {
        while let Some(chunk) = self.next_chunk()? {
            let stream = if chunk.stderr { &mut captured.stderr } else { &mut captured.stdout };
            stream.add(chunk.bytes, max);
        }
        Ok(())
    }
}

impl Engine {
    /// Creates and starts the pod of a command ([`gantry_model::host_command`]).
    ///
    /// # Errors
    /// [`CommandError`]; nothing is left of the pod then.
    pub fn start_command(&self, spec: PodSpec) -> Result<StartedCommand, CommandError> {
        let prepare = Prepare::new(spec, PullPolicy::New, &Silent)?;
        let options = RunOptions { show: Show::Output { terminal_size: None }, remove: false };
        let pod = self.create(prepare.to_be_started(options))?;
        let id = pod.id();
        let owner = CommandOwner { _locked: pod_dir::lock_owner(&self.pod_dir(id))? };
        match pod.start() {
            Ok(running) => Ok(StartedCommand { id, owner, running }),
            Err(error) => {
                let _left_for_gc = self.rm(id, RunningPod::Stop);
                Err(error.into())
            }
        }
    }

    /// How a command ended whose output has ended. `None`: that was not recorded.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn command_end(&self, id: PodId) -> Result<Option<AppEnd>, PodError> {
        let view = self.wait(id, Some(END_TIMEOUT))?;
        let state = view.and_then(|view| view.row.apps.into_iter().next()).map(|app| app.state);
        Ok(match state {
            Some(AppState::Exited { end, .. }) => Some(end),
            // The pod did not end in time, or its supervisor was killed.
            _ => None,
        })
    }

    /// Stops a command, with SIGKILL after the grace period, and removes its pod.
    ///
    /// # Errors
    /// [`RmError`]. The next collection tries again when the owner is gone.
    pub fn end_command(&self, id: PodId, grace: Duration) -> Result<(), RmError> {
        let ended = match self.stop(id, grace) {
            Ok(_) => self.rm(id, RunningPod::Stop),
            Err(source) if source.kind() == ErrorKind::NotFound => Ok(()),
            Err(source) => Err(RmError::Stop { id, source: Box::new(source) }),
        };
        match ended {
            Err(RmError::Pod(PodError::NotFound(_))) => Ok(()),
            ended => ended,
        }
    }

    /// Whether the pod is that of a command whose caller is gone.
    pub(crate) fn is_orphaned_command(&self, id: PodId) -> bool {
        // A file that cannot be opened is examined again by the next collection.
        let owner = pod_dir::open_owner(&self.pod_dir(id)).ok().flatten();
        owner.is_some_and(|owner| try_lock(&owner, LockMode::Exclusive).unwrap_or(false))
    }

    /// Ends a command whose caller is gone.
    pub(crate) fn end_orphaned_command(&self, id: PodId) -> Result<(), RmError> {
        self.end_command(id, ORPHAN_GRACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_streams_are_cut_at_their_maximum() {
        let mut stream = CapturedStream::default();
        stream.add(b"abc", 5);
        assert_eq!((&stream.bytes[..], stream.cut), (&b"abc"[..], false));
        stream.add(b"de", 5);
        assert!(!stream.cut);
        stream.add(b"f", 5);
        assert_eq!((&stream.bytes[..], stream.cut), (&b"abcde"[..], true));
    }
}
