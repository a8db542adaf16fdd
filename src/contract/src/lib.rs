//! The versioned ABI between the engine and the supervisor (`gantry-stage1`): the plan, the start reply, the journal,
//! and the control socket.
//!
//! Imports `gantry_model` only; no I/O. A newer engine works with an old supervisor, so fields are only added, with a
//! default. Any other change increments [`VERSION`].
//!
//! Start reading at [`plan`], then [`start`], [`journal`], [`control`], [`output`], [`network`].
//!
//! # The file descriptors of a supervisor
//!
//! | fd | what |
//! |---|---|
//! | 0 | the plan as JSON, until end of file |
//! | 1 | one line of JSON: [`start::StartReply`] |
//! | 2 | diagnostics; the engine stores them in `supervisor.log` of the pod directory |
//! | `--lock-fd N` | the pod directory, opened and locked by the engine; the supervisor takes over the lock |
//! | `--output-fd N` | optional: the pipe of a foreground, for the apps' output from its first byte ([`output`]) |
//!
//! `--terminal-size ROWSxCOLUMNS` sets the initial size of the apps' terminals.

pub mod control;
pub mod journal;
pub mod limits;
pub mod network;
pub mod output;
pub mod plan;
pub mod start;

#[cfg(test)]
mod version_1_tests;

use gantry_model::ErrorKind;
use serde::{Deserialize, Serialize};

/// The version of this ABI.
pub const VERSION: u32 = 1;

/// The names of files in a pod directory. They are part of the ABI.
pub mod files {
    /// The plan (written by the engine at prepare).
    pub const PLAN: &str = "plan.json";
    /// The journal.
    pub const JOURNAL: &str = "journal";
    /// A shorter journal that is about to replace it.
    pub const NEW_JOURNAL: &str = "journal.new";
    /// The control socket (Unix seqpacket, mode 0600). Deep data directories make its path longer than `sun_path`:
    /// both sides go through `/proc/self/fd/N/control`.
    pub const CONTROL: &str = "control";
    /// Exists if the pod is removed as soon as it has ended, by the first process that notices (`run --rm`).
    pub const REMOVE_WHEN_ENDED: &str = "remove-when-ended";
    /// Standard error of the supervisor.
    pub const SUPERVISOR_LOG: &str = "supervisor.log";
    /// Directory of log files: `logs/APP/ATTEMPT.log`, older ones `ATTEMPT.log.1` … The directory of an app whose log
    /// is at a chosen path stays empty.
    pub const LOGS: &str = "logs";
    /// Directory of the apps' writable layers: `apps/APP/upper`, `apps/APP/work`.
    pub const APPS: &str = "apps";
    /// The record of the pod's network state on the host: written before any of it is created, removed after all of it
    /// is removed (see [`crate::network`]).
    pub const NETWORK: &str = "network.json";
    /// The lock (flock) of processes that run network plugins for the pod.
    pub const PLUGINS: &str = "plugins.lock";
    /// The limits that were changed while the pod ran ([`crate::limits`]).
    pub const LIMITS: &str = "limits.json";
    /// Directory of empty volumes: `volumes/NAME`.
    pub const VOLUMES: &str = "volumes";
}

/// A failure, as sent across the interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its kind; that of an unknown one, such as another version's, is internal.
    pub kind: ErrorKind,
    /// The error message with its causes, in one line.
    pub message: String,
    /// The app it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
}

/// The start time of a process in clock ticks since boot, from its `/proc/PID/stat` (proc_pid_stat(5), field 22). The
/// command's name (field 2) is in parentheses and may contain anything: the other fields follow the last one.
#[must_use]
pub fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whether a process has begun to exit, from its `/proc/PID/stat`: the flags are field 9 of proc_pid_stat(5).
#[must_use]
pub fn is_exiting(stat: &str) -> Option<bool> {
    /// `PF_EXITING` of the kernel's `sched.h`, which has not changed since Linux 2.6.
    const EXITING: u32 = 0x4;
    let flags: u32 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(6)?.parse().ok()?;
    Some(flags & EXITING != 0)
}

/// The exit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessExit {
    /// It called exit with this code.
    Code(u8),
    /// This signal ended it.
    Signal(u8),
}

impl ProcessExit {
    /// The end by SIGKILL.
    pub const KILLED: Self = Self::Signal(9);
}

impl From<ProcessExit> for gantry_model::AppOutcome {
    fn from(how: ProcessExit) -> Self {
        match how {
            ProcessExit::Code(code) => Self::Exited(code),
            ProcessExit::Signal(signal) => Self::Signaled(signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_found_after_any_command_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9\n";
        assert_eq!(start_ticks(stat), Some(4711));
        assert_eq!(start_ticks(""), None);
        assert_eq!(start_ticks("1 (x) S 1"), None);
    }

    #[test]
    fn flags_are_found_after_any_command_name() {
        let stat = |flags: u32| format!("7 (a) b (c) S 1 7 7 0 -1 {flags} 1 2 3\n");
        assert_eq!(is_exiting(&stat(4_194_560)), Some(false));
        assert_eq!(is_exiting(&stat(4_194_564)), Some(true));
        assert_eq!(is_exiting("1 (x) S 1"), None);
    }
}
