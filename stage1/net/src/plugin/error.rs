//! Why a plugin did not do what was asked.

use std::io;

use gantry_model::{ErrorKind, Kind};

/// What was attempted when a program was not started.
pub(super) const START: &str = "start";

/// A failure of a plugin, of running one, or of the cache.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// No directory has the program.
    #[error("plugin '{kind}' is not installed (looked in {dirs}){}", said(problem))]
    NotFound {
        /// Its type.
        kind: String,
        /// Where it was looked for.
        dirs: String,
        /// What was there and cannot be used.
        problem: String,
    },
    /// The program cannot be run.
    #[error("cannot {doing} plugin '{kind}': {source}")]
    Run {
        /// What was attempted: `start`, `wait for`, …
        doing: &'static str,
        /// Its type.
        kind: String,
        /// Why.
        source: io::Error,
    },
    /// It did not end in time and was killed, with its process group.
    #[error("plugin '{kind}' did not end {command} within {millis} ms and was killed{}", said(stderr))]
    TimedOut {
        /// Its type.
        kind: String,
        /// The CNI command.
        command: &'static str,
        /// The limit.
        millis: u128,
        /// What it said.
        stderr: String,
    },
    /// It says that it failed (CNI specification 1.1.0, section 5, error).
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
        /// What else it said.
        stderr: String,
    },
    /// It ended badly and did not say why in the way it should.
    #[error("plugin '{kind}' failed to {command}: {status}{}", said(stderr))]
    Crashed {
        /// Its type.
        kind: String,
        /// The CNI command.
        command: &'static str,
        /// How it ended.
        status: String,
        /// What it said, on stderr or on stdout.
        stderr: String,
    },
    /// What it printed cannot be.
    #[error("plugin '{kind}' answered {command} with {problem}{}", said(stderr))]
    BadOutput {
        /// Its type.
        kind: String,
        /// The CNI command.
        command: &'static str,
        /// What is wrong with it.
        problem: String,
        /// What it said.
        stderr: String,
    },
    /// No version of the specification suits the network and its plugins.
    #[error("plugin '{kind}' speaks CNI {speaks}, and network '{network}' wants {wants}")]
    Version {
        /// The plugin's type.
        kind: String,
        /// Its versions.
        speaks: String,
        /// Which network.
        network: String,
        /// The network's versions.
        wants: String,
    },
    /// The network's version has no such command.
    #[error("network '{network}' is written for CNI {version}, which has no {command}")]
    Unsupported {
        /// Which network.
        network: String,
        /// Its version.
        version: &'static str,
        /// The CNI command.
        command: &'static str,
    },
    /// There is an attachment of this name, or one was begun: it must be deleted first.
    #[error("{attachment} is attached already: it must be deleted first")]
    Attached {
        /// Network, container and interface.
        attachment: String,
    },
    /// Nothing is known of this attachment.
    #[error("{attachment} is not attached")]
    NotAttached {
        /// Network, container and interface.
        attachment: String,
    },
    /// A name or number is out of bounds.
    #[error("{0}")]
    Invalid(String),
    /// The cache cannot be read or written.
    #[error("cannot {doing} in the network cache: {source}")]
    Cache {
        /// What was attempted, with its file.
        doing: String,
        /// Why.
        source: io::Error,
    },
    /// A file of the cache is damaged.
    #[error("'{file}' in the network cache is damaged: {problem}")]
    Damaged {
        /// Its name.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An ADD failed, and undoing it did as well: the attachment must be deleted again.
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
    /// Whether the plugin never ran, so that there is nothing of it to undo.
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
            // The specification's codes: 3 unknown container, 11 try again later, 1 to 7 our input.
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
