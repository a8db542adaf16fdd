//! The protocol of the control socket: JSON messages over a Unix seqpacket socket, with file descriptors attached.
//!
//! A connection carries one request, with exactly one [`Reply`]. The exception is `Exec`: `Started` and, when the
//! process has ended, `Ended`. Closing the connection of a running `Exec` kills its process (SIGKILL), since its output
//! and exit code can no longer be delivered. A client that wants the process to continue sends [`Request::Detach`] on
//! the same connection first.

use serde::{Deserialize, Serialize};

use crate::{Failure, ProcessExit, start};

/// The maximum length of a message, in bytes. Seqpacket messages are bounded by the socket's send buffer (212 992 by
/// default), of which the kernel uses part for itself.
pub const MAX_MESSAGE: usize = 128 << 10;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Report the status.
    Status,
    /// End the pod: the stop signal to every app, SIGKILL after the grace. The reply comes at once.
    Stop {
        /// Milliseconds until SIGKILL; 0 kills at once.
        grace_ms: u64,
    },
    /// Send a signal to the main process of one app, or of every app.
    Kill {
        /// Its number.
        signal: u8,
        /// The app; `None`: all.
        app: Option<String>,
    },
    /// Run a program in an app, confined as the app is. Without `terminal`, three descriptors come with the request:
    /// stdin, stdout, stderr. With it, none; the terminal's master comes with `Started`.
    Exec(Exec),
    /// Send the other end of an app's stdin: the terminal's master, or the writing end of its pipe (once: the
    /// supervisor closes its own copy, so that the client's close is the app's end of file).
    Attach {
        /// The app.
        app: String,
    },
    /// Send the apps' output from this moment: the writing end of a pipe comes with the request (see
    /// [`crate::output`]).
    Output,
    /// Over the connection of a running `Exec` with a terminal: let its program run on when the connection is closed.
    /// The terminal's master comes with the request; the supervisor keeps it open and discards what the program writes.
    Detach,
    /// Reopen the log file of an app, after it was renamed (CRI `ReopenContainerLog`).
    ReopenLog {
        /// The app.
        app: String,
    },
}

/// A program to run in an app. `None` means the app's own setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// The app.
    pub app: String,
    /// Program (looked up in the app's PATH) and arguments.
    pub argv: Vec<String>,
    /// `NAME=VALUE` on top of the app's environment.
    pub env: Vec<String>,
    /// Working directory.
    pub cwd: Option<String>,
    /// User, as in a plan.
    pub user: Option<String>,
    /// Group, as in a plan.
    pub group: Option<String>,
    /// The size of its pseudo-terminal (rows, columns), if it gets one.
    pub terminal: Option<(u16, u16)>,
}

/// A reply of the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Done (or begun, for `Stop`). For `Attach` a descriptor comes along.
    Done,
    /// To `Status`.
    Status(Status),
    /// The program was executed. With a terminal, its master comes along.
    Started {
        /// Its PID on the host.
        pid: u32,
    },
    /// The program has ended.
    Ended {
        /// The end of the process.
        how: ProcessExit,
    },
    /// It could not be done.
    Failed(Failure),
}

/// The status of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`crate::VERSION`] of the supervisor.
    pub version: u32,
    /// Whether it has received a stop request.
    pub stopping: bool,
    /// The supervisor, PID 1 and the apps as they were started.
    pub ready: start::Ready,
    /// The apps that still run, by name.
    pub running: Vec<String>,
    /// Bytes of log output dropped since the start.
    pub log_bytes_dropped: u64,
}
