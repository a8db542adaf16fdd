//! Errors of plugins.

use std::fmt::Display;
use std::io;

use gantry_model::error::chain;
use gantry_model::{ErrorKind, Kind};

/// The operation that failed if a program was not started.
pub(super) const START: &str = "start";

/// A failure of a plugin, of running one, or of the cache. The variants are those that the order of undoing and the
/// choice of a CNI version decide on; all other failures are [`PluginError::Failed`].
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The plugin never ran, so that there is nothing to undo.
    #[error("{message}")]
    NotStarted {
        /// The attempted operation and the plugin.
        message: String,
        /// The kind of failure.
        kind: ErrorKind,
        /// The cause.
        source: Option<io::Error>,
    },
    /// The plugin reported an error (CNI specification 1.1.0, section 5, error).
    #[error("plugin '{plugin}' failed to {command}: {message} (code {code}){}", said(stderr))]
    Reported {
        /// Its type.
        plugin: String,
        /// The CNI command.
        command: &'static str,
        /// The code: 1 to 99 are the specification's.
        code: u64,
        /// Message and details.
        message: String,
        /// Its output on stderr.
        stderr: String,
    },
    /// A file of the cache is damaged: DEL runs without it.
    #[error("'{file}' in the network cache is damaged: {problem}")]
    Damaged {
        /// Its name.
        file: String,
        /// The problem.
        problem: String,
    },
    /// Any other failure.
    #[error("{message}")]
    Failed {
        /// The attempted operation and its object, or the problem.
        message: String,
        /// The kind of failure.
        kind: ErrorKind,
        /// The cause, unless the message includes it.
        source: Option<io::Error>,
    },
}

impl PluginError {
    fn failed(kind: ErrorKind, message: String) -> Self {
        Self::Failed { message, kind, source: None }
    }

    /// No directory has the program. `problem`: a file that was found but cannot be used, or empty.
    pub(super) fn not_installed(plugin: &str, dirs: &str, problem: &str) -> Self {
        let message = format!("plugin '{plugin}' is not installed (looked in {dirs}){}", said(problem));
        Self::NotStarted { message, kind: ErrorKind::NotFound, source: None }
    }

    /// A system call failed. `doing`: [`START`], `wait for`, …
    pub(super) fn run(doing: &str, plugin: &str, error: io::Error) -> Self {
        let (message, kind) = (format!("cannot {doing} plugin '{plugin}'"), ErrorKind::of_io(&error));
        if doing == START {
            Self::NotStarted { message, kind, source: Some(error) }
        } else {
            Self::Failed { message, kind, source: Some(error) }
        }
    }

    /// The plugin did not end before the timeout, and its process group was killed.
    pub(super) fn timed_out(plugin: &str, command: &str, millis: u128, stderr: &str) -> Self {
        let message =
            format!("plugin '{plugin}' did not end {command} within {millis} ms and was killed{}", said(stderr));
        Self::failed(ErrorKind::TimedOut, message)
    }

    /// The plugin failed without a valid error object. `output`: on stderr or stdout.
    pub(super) fn crashed(plugin: &str, command: &str, status: impl Display, output: &str) -> Self {
        let message = format!("plugin '{plugin}' failed to {command}: {status}{}", said(output));
        Self::failed(ErrorKind::Unavailable, message)
    }

    /// The plugin's output is invalid.
    pub(super) fn bad_output(plugin: &str, command: &str, problem: impl Display, stderr: &str) -> Self {
        let message = format!("plugin '{plugin}' answered {command} with {problem}{}", said(stderr));
        Self::failed(ErrorKind::Unavailable, message)
    }

    /// The plugin supports none of the network's versions.
    pub(super) fn version(plugin: &str, supported: &str, network: &str, needed: &str) -> Self {
        let message = format!("plugin '{plugin}' supports CNI {supported}, but network '{network}' needs {needed}");
        Self::failed(ErrorKind::Invalid, message)
    }

    /// The network's version lacks the command.
    pub(super) fn unsupported(network: &str, version: &str, command: &str) -> Self {
        let message = format!("network '{network}' is written for CNI {version}, which has no {command}");
        Self::failed(ErrorKind::Refused, message)
    }

    /// The attachment exists, perhaps incomplete.
    pub(super) fn attached(attachment: impl Display) -> Self {
        Self::failed(ErrorKind::AlreadyExists, format!("{attachment} is attached already: it must be deleted first"))
    }

    /// The attachment does not exist.
    pub(super) fn not_attached(attachment: impl Display) -> Self {
        Self::failed(ErrorKind::NotFound, format!("{attachment} is not attached"))
    }

    /// A name or number is invalid.
    pub(super) fn invalid(problem: impl Into<String>) -> Self {
        Self::failed(ErrorKind::Invalid, problem.into())
    }

    /// The cache cannot be read or written. `doing`: the attempted operation, with its file.
    pub(super) fn cache(doing: &str, error: io::Error) -> Self {
        let (message, kind) = (format!("cannot {doing} in the network cache"), ErrorKind::of_io(&error));
        Self::Failed { message, kind, source: Some(error) }
    }

    /// ADD failed, and so did undoing it: the attachment must be deleted again.
    pub(super) fn not_undone(cause: &Self, undo: &Self) -> Self {
        Self::failed(cause.kind(), format!("{}; and could not be undone: {}", chain(cause), chain(undo)))
    }

    /// Whether the plugin never ran, so that there is nothing to undo.
    pub(super) fn is_before_start(&self) -> bool {
        matches!(self, Self::NotStarted { .. })
    }

    /// `Ok` without errors, the error itself when there is one; else one with all messages and the kind of the first.
    pub(super) fn all(errors: Vec<Self>) -> Result<(), Self> {
        crate::all_of(errors, |errors| {
            let kind = errors.first().map_or(ErrorKind::Internal, Kind::kind);
            let messages: Vec<String> = errors.iter().map(|error| chain(error)).collect();
            Self::failed(kind, messages.join("; "))
        })
    }
}

fn said(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; it said: {stderr}") }
}

impl Kind for PluginError {
    fn kind(&self) -> ErrorKind {
        match self {
            // The specification's codes: 3 unknown container, 11 try again later, 1 to 7 gantry's input.
            Self::Reported { code, .. } => match code {
                3 => ErrorKind::NotFound,
                11 => ErrorKind::Busy,
                1..=7 => ErrorKind::Invalid,
                _ => ErrorKind::Unavailable,
            },
            Self::Damaged { .. } => ErrorKind::Damaged,
            Self::NotStarted { kind, .. } | Self::Failed { kind, .. } => *kind,
        }
    }
}
