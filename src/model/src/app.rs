//! The state machine of an app within its pod: Waiting, Started, Exited.

use crate::Timestamp;

/// How the main process of an app ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AppOutcome {
    /// It called exit with this code (0 to 255).
    Exited(u8),
    /// A signal (its number) ended it.
    Signaled(u8),
    /// Unknown: the supervisor or the host died first.
    Lost,
}

/// The end of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AppEnd {
    /// How its main process ended.
    pub how: AppOutcome,
    /// Whether the kernel killed a process of the app because a memory limit was reached.
    pub oom: bool,
    /// When the supervisor saw it end.
    pub at: Timestamp,
}

impl AppOutcome {
    /// The code a shell would show: the code itself, or 128 + n for signal n; 137 (SIGKILL) when it is unknown.
    #[must_use]
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Exited(code) => i32::from(code),
            Self::Signaled(signal) => 128 + i32::from(signal),
            Self::Lost => 137,
        }
    }

    /// Whether it ended as it should: exit code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }
}

/// The state of an app. `attempt` counts its starts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AppState {
    /// Not started yet (its pod is being prepared, is prepared, or is starting).
    Waiting,
    /// Its main process runs.
    Started {
        /// When it was started.
        at: Timestamp,
        /// Its main process, in the host's PID namespace.
        pid: u32,
        /// Which start this is, from 0.
        attempt: u32,
    },
    /// Its main process has ended.
    Exited {
        /// When it was started; `None` when it never was.
        started: Option<Timestamp>,
        /// How and when it ended.
        end: AppEnd,
        /// Which start this was, from 0.
        attempt: u32,
    },
}

impl AppState {
    /// The word for tables and JSON: `waiting`, `running` or `exited`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Started { .. } => "running",
            Self::Exited { .. } => "exited",
        }
    }
}
