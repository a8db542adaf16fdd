//! The protocol of the control socket: JSON messages over a Unix seqpacket socket, with file descriptors attached.
//!
//! A connection carries one request, with exactly one [`Reply`]. The exception is `Exec`: `Started` and, when the
//! process has ended, `Ended`. Closing the connection of a running `Exec` kills its process (SIGKILL), since its output
//! and exit code can no longer be delivered. A client that wants the process to continue sends [`Request::Detach`] on
//! the same connection first.
//!
//! # Apps of a running pod
//!
//! [`Request::AddApp`], [`Request::StartApp`], [`Request::StopApp`], [`Request::RestartApp`] and [`Request::RemoveApp`]
//! change the apps of a running pod, sandbox or not. Each is written to the journal before its reply is sent, and may
//! be repeated by a client that lost the reply. A supervisor that is older than these requests sends no
//! [`Status::apps`] and fails to parse them.
//!
//! ```text
//!            AddApp            StartApp               exit
//! (no app) ─────────▶ created ─────────▶ running ─────────────▶ exited
//!     ▲                  │                   ▲                   │  │
//!     │                  │                   └─── StartApp ──────┘  │
//!     └──── RemoveApp ───┴───────────────── RemoveApp ──────────────┘
//! ```

use std::collections::BTreeMap;

use gantry_model::HealthState;
use gantry_model::spec::{Limits, VolumeSpec};
use serde::{Deserialize, Serialize};

use crate::{Failure, ProcessExit, plan, start};

/// The maximum length of a message, in bytes. Seqpacket messages are bounded by the socket's send buffer (212 992 by
/// default), of which the kernel uses part for itself.
pub const MAX_MESSAGE: usize = 128 << 10;

/// The maximum length of a [`Request::Long`], in bytes.
pub const MAX_LONG_REQUEST: usize = 8 << 20;

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
    /// Send the other end of an app's stdin: the terminal's master, or the writing end of its pipe.
    Attach {
        /// The app.
        app: String,
        /// Whether the supervisor keeps its copy of the pipe, so that more clients can attach and none ends the app's
        /// stdin. Without it, the pipe is sent once, and the client's close is the app's end of file. A supervisor that
        /// is older than this field ignores it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        keep: bool,
    },
    /// Send the apps' output from this moment: the writing end of a pipe comes with the request (see
    /// [`crate::output`]).
    Output,
    /// Send the output of one app from this moment to its exit: the writing end of a pipe comes with the request (see
    /// [`crate::output`]). Refused if it does not run. A supervisor that is older than this request fails to parse it.
    AppOutput {
        /// The app.
        app: String,
    },
    /// Over the connection of a running `Exec`: let its program run on when the connection is closed. The master of its
    /// terminal, if it has one, comes with the request; the supervisor keeps it open and discards what the program
    /// writes to it. An older supervisor refuses it for a program without a terminal.
    Detach,
    /// Reopen the log file of an app, after it was renamed (CRI `ReopenContainerLog`).
    ReopenLog {
        /// The app.
        app: String,
    },
    /// Report the health of an app and the last results of its probe. Replied to by `Health`; refused if the app has no
    /// health check. A supervisor that is older than health checks fails to parse it.
    Health {
        /// The app.
        app: String,
    },
    /// Create an app in the running pod: its cgroup, root, mounts, user and log. A command that is missing or not
    /// executable fails here. Replied to by `Done`, or as `StartApp` if it is started, too: a failure of the start
    /// leaves it created. A name that is in use fails as already-exists, a pod that is stopping refuses.
    AddApp(Box<AddApp>),
    /// Execute the program of an app that was created or has exited. Replied to by `AppStarted`. The client chooses the
    /// attempt: if that attempt runs, the reply is its `Started`; if it has run, or another one runs, the request is
    /// refused.
    StartApp {
        /// The app.
        app: String,
        /// The number of the start: greater than those before, 0 for the first.
        attempt: u32,
    },
    /// Stop an app: its stop signal, SIGKILL after the grace. Replied to by `Done` when the app has exited. An app that
    /// was stopped on request has not failed: the pod's other apps run on. An app that does not run stays in its state,
    /// and the reply is `Done`.
    StopApp {
        /// The app.
        app: String,
        /// Milliseconds until SIGKILL; 0 kills at once.
        grace_ms: u64,
    },
    /// `StopApp` and `StartApp` as one: a pod whose last app is restarted does not end. Replied to by `AppStarted`.
    RestartApp {
        /// The app.
        app: String,
        /// The number of the start, as for `StartApp`.
        attempt: u32,
        /// Milliseconds until SIGKILL; 0 kills at once.
        grace_ms: u64,
    },
    /// Freeze the processes of a running app, or of every running app. Replied to by `Done` when they are frozen. While
    /// the pod is paused as a whole, no app of it is started. Nothing changes for what is paused already.
    Pause {
        /// The app; `None`: the pod.
        app: Option<String>,
    },
    /// Thaw the processes of an app, or of every app. A stop of the pod or of the app, its stop signal, and SIGKILL do
    /// the same.
    Unpause {
        /// The app; `None`: the pod.
        app: Option<String>,
    },
    /// Remove an app that does not run, with its writable layer, its logs, the volumes that were added with it and that
    /// no other app mounts, and the programs executed in it. Its name is free afterwards. Replied to by `Done`, also if
    /// the pod has no such app; refused while it runs.
    RemoveApp {
        /// The app.
        app: String,
    },
    /// Change the limits of an app or of the pod, all or none of them. They are in effect, and in the record of the
    /// pod's limits ([`crate::limits`]), when the reply is sent: `LimitsUpdated`.
    UpdateLimits(Box<UpdateLimits>),
    /// A request that is longer than [`MAX_MESSAGE`], such as an app with the environment of a large cluster: a JSON
    /// document in a file in memory (memfd_create(2)), which is the first descriptor; the descriptors of the request
    /// follow it. An older supervisor refuses it as unknown.
    Long {
        /// The length of the document.
        bytes: usize,
    },
}

/// An app to create in a running pod.
///
/// A detached mount (open_tree(2) with `OPEN_TREE_CLONE`) of its source comes with the request for each host and named
/// volume in `volumes`, in that order: the supervisor does not see the host's mounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddApp {
    /// The app. Its `attempt` is not used; the first [`Request::StartApp`] chooses it.
    pub app: plan::App,
    /// Whether to start it once it is created, as attempt 0.
    #[serde(default)]
    pub start: bool,
    /// Volumes that the app mounts besides those that the pod has. One that the pod has already must have the same
    /// specification.
    #[serde(default)]
    pub volumes: Vec<VolumeSpec>,
    /// The initial size of its terminal (rows, columns), if it gets one.
    #[serde(default)]
    pub terminal_size: Option<(u16, u16)>,
    /// The block devices in its limits: major and minor number by path. The supervisor does not see the host's files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub block_devices: BTreeMap<String, (u32, u32)>,
    /// The devices of the host that it gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<plan::HostDevice>,
}

/// A change of limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateLimits {
    /// The app; `None`: the pod.
    pub app: Option<String>,
    /// The limits before. If others are set, another client has changed them meanwhile, and the request fails as busy.
    pub old: Limits,
    /// The limits to set. Those without effect on this host are in the reply, as warnings.
    pub new: Limits,
    /// The block devices in the new limits: major and minor number by path.
    #[serde(default)]
    pub block_devices: BTreeMap<String, (u32, u32)>,
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
    /// To `Health`.
    Health(HealthReport),
    /// To `StartApp` and `RestartApp`: the app's program was executed.
    AppStarted(start::Started),
    /// To `UpdateLimits`.
    LimitsUpdated {
        /// The limits that have no effect on this host, with the cause.
        warnings: Vec<String>,
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
    /// Every app, in the order in which they were created. `None`: the supervisor is older than apps that are added to
    /// a running pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apps: Option<Vec<AppStatus>>,
    /// Whether the pod is paused as a whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// The status of an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppStatus {
    /// Its name.
    pub app: String,
    /// Its number in the output protocol ([`crate::output`]), which no other app of the pod gets.
    pub number: u16,
    /// Its state.
    pub state: AppState,
    /// Whether its processes are frozen on request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// What it has sent to its notification socket since its last start; `None`: it has no such socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notified: Option<Notified>,
    /// Its health, while it runs; `None`: it has no health check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthState>,
}

/// The health of an app. After its end: the health at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    /// The state.
    pub state: HealthState,
    /// The number of failures in a row. Those of the start period do not count.
    pub failures: u32,
    /// The last results, oldest first; at most [`MAX_HEALTH_RESULTS`].
    pub results: Vec<HealthResult>,
}

/// The number of results of probes that the supervisor keeps for each app.
pub const MAX_HEALTH_RESULTS: usize = 5;

/// The maximum length of the output of a probe that is kept, in bytes.
pub const MAX_HEALTH_OUTPUT: usize = 4096;

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthResult {
    /// When it began, in nanoseconds since the epoch.
    pub started: i64,
    /// When it ended, in nanoseconds since the epoch.
    pub ended: i64,
    /// Whether the app is healthy by it.
    pub success: bool,
    /// The exit code of a command that was executed and has exited; 128 + n after signal n.
    pub exit_code: Option<i32>,
    /// The beginning of the output of a command, the status line of an HTTP server, or the error. Without control
    /// characters other than tabs and newlines.
    pub output: String,
}

/// What an app has sent to its notification socket (sd_notify(3)) since its last start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Notified {
    /// Whether it has sent `READY=1`.
    pub ready: bool,
    /// Whether it has sent `STOPPING=1`.
    pub stopping: bool,
    /// Its last `STATUS=`; at most [`MAX_STATUS_TEXT`] bytes.
    pub status: String,
}

/// The maximum length of an app's status text in bytes.
pub const MAX_STATUS_TEXT: usize = 256;

/// The state of an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppState {
    /// Its program was never executed.
    Created,
    /// Its main process runs.
    Running(start::Started),
    /// Its main process has exited.
    Exited {
        /// The last start.
        started: start::Started,
        /// The exit of the main process.
        how: ProcessExit,
        /// When its restart policy starts it again, in nanoseconds since the epoch. `None`: it does not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restart_at: Option<i64>,
    },
}
