//! Errors of plugins.

use std::io;

use gantry_model::{ErrorKind, Kind};

/// The operation that failed if a program was not started.
pub(super) const START: &str = "start";

/// A failure of a plugin, of running one, or of the cache.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// No directory has the program.
    #[error("plugin '{kind}' is not installed (looked in {dirs}){}", said(problem))]
    NotFound {
        /// Its type.
        kind: String,
        /// The directories that were searched.
        dirs: String,
        /// A file that was found but cannot be used.
        problem: String,
    },
    /// The program cannot be run.
    #[error("cannot {doing} plugin '{kind}': {source}")]
    Run {
        /// The attempted operation: `start`, `wait for`, …
        doing: &'static str,
        /// Its type.
        kind: String,
        /// The cause.
        source: io::Error,
    },
    /// It did not end before the timeout, and its process group was killed.
    #[error("plugin '{kind}' did not end {command} within {millis} ms and was killed{}", said(stderr))]
    TimedOut {
        /// Its type.
        kind: String,
        /// The CNI command.
        command: &'static str,
        /// The limit.
        millis: u128,
        /// Its output on stderr.
        stderr: String,
    },
    /// It reported an error (CNI specification 1.1.0, section 5, error).
    #[error("plugin '{kind}' failed to {command}: {message} (code {code}){}", said(stderr))]
    Failed {
        /// Its type.
        kind: String,
        /// The CNI command.
        command: &'static str,
        /// The code: 1 to 99 are the specification's.
        code: u64,
        /// Message and details.
        message: String,
        /// Its output on stderr.
        stderr: String,
    },
    /// It failed without a valid error object.
    #[error("plugin '{kind}' failed to {command}: {status}{}", said(stderr))]
    Crashed {
        /// Its type.
        kind: String,
        /// The CNI command.
        command: &'static str,
        /// The end of the process.
        status: String,
        /// Its output on stderr or stdout.
        stderr: String,
    },
    /// Its output is invalid.
    #[error("plugin '{kind}' answered {command} with {problem}{}", said(stderr))]
    BadOutput {
        /// Its type.
        kind: String,
        /// The CNI command.
        command: &'static str,
        /// The problem.
        problem: String,
        /// Its output on stderr.
        stderr: String,
    },
    /// The plugin supports none of the network's versions.
    #[error("plugin '{kind}' supports CNI {speaks}, but network '{network}' needs {wants}")]
    Version {
        /// The plugin's type.
        kind: String,
        /// Its versions.
        speaks: String,
        /// The network.
        network: String,
        /// The network's versions.
        wants: String,
    },
    /// The network's version lacks the command.
    #[error("network '{network}' is written for CNI {version}, which has no {command}")]
    Unsupported {
        /// The network.
        network: String,
        /// Its version.
        version: &'static str,
        /// The CNI command.
        command: &'static str,
    },
    /// The attachment exists, perhaps incomplete: it must be deleted first.
    #[error("{attachment} is attached already: it must be deleted first")]
    Attached {
        /// Network, container and interface.
        attachment: String,
    },
    /// The attachment does not exist.
    #[error("{attachment} is not attached")]
    NotAttached {
        /// Network, container and interface.
        attachment: String,
    },
    /// A name or number is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The cache cannot be read or written.
    #[error("cannot {doing} in the network cache: {source}")]
    Cache {
        /// The attempted operation, with its file.
        doing: String,
        /// The cause.
        source: io::Error,
    },
    /// A file of the cache is damaged.
    #[error("'{file}' in the network cache is damaged: {problem}")]
    Damaged {
        /// Its name.
        file: String,
        /// The problem.
        problem: String,
    },
    /// ADD failed, and so did undoing it: the attachment must be deleted again.
    #[error("{cause}; and could not be undone: {undo}")]
    NotUndone {
        /// Why ADD failed.
        cause: Box<PluginError>,
        /// Why DEL failed.
        undo: Box<PluginError>,
    },
    /// Several plugins failed; the others were run.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<PluginError>),
}

impl PluginError {
    /// Whether the plugin never ran, so that there is nothing to undo.
    pub(super) fn is_before_start(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Run { doing: START, .. })
    }

    /// `Ok` without errors, the error itself when there is one.
    pub(super) fn all(errors: Vec<Self>) -> Result<(), Self> {
        crate::all_of(errors, Self::Several)
    }
}

fn said(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; it said: {stderr}") }
}

impl Kind for PluginError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } | Self::NotAttached { .. } => ErrorKind::NotFound,
            Self::Run { source, .. } | Self::Cache { source, .. } => ErrorKind::of_io(source),
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            // The specification's codes: 3 unknown container, 11 try again later, 1 to 7 gantry's input.
            Self::Failed { code, .. } => match code {
                3 => ErrorKind::NotFound,
                11 => ErrorKind::Busy,
                1..=7 => ErrorKind::Invalid,
                _ => ErrorKind::Unavailable,
            },
            Self::Crashed { .. } | Self::BadOutput { .. } => ErrorKind::Unavailable,
            Self::Version { .. } | Self::Invalid(_) => ErrorKind::Invalid,
            Self::Unsupported { .. } => ErrorKind::Refused,
            Self::Attached { .. } => ErrorKind::AlreadyExists,
            Self::Damaged { .. } => ErrorKind::Damaged,
            Self::NotUndone { cause, .. } => cause.kind(),
            Self::Several(errors) => errors.first().map_or(ErrorKind::Internal, Kind::kind),
        }
    }
}
