//! The error of a command: any error of the workspace with its kind, and how it is printed.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use gantry_model::error::messages;
use gantry_model::{ErrorKind, Kind, PhaseName};
use thiserror::Error as ThisError;

use crate::exit::{CommandKind, ExitStatus};
use crate::relay;
use crate::render::escape;

/// The error of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something failed.
    Error {
        kind: ErrorKind,
        error: Box<dyn Error + Send + Sync>,
        /// Advice, printed on a line of its own.
        hint: Option<String>,
    },
    /// Standard output was closed. Nothing is printed, as by a process killed by SIGPIPE.
    BrokenPipe,
}

impl<E: Error + Kind + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error { kind: error.kind(), error: Box::new(error), hint: None }
    }
}

/// Errors of the command line itself.
#[derive(Debug, ThisError)]
pub(crate) enum CliError {
    /// An operation on a file or descriptor failed.
    #[error("cannot {attempt} {}", gantry_model::id::shown(.what))]
    Io {
        attempt: &'static str,
        what: String,
        #[source]
        source: std::io::Error,
    },
    /// An argument is not UTF-8.
    #[error("argument {0} is not UTF-8: gantry accepts text only")]
    NotText(usize),
    /// The arguments are invalid.
    #[error("{0}")]
    Usage(String),
    /// The content of a file is invalid; `why` completes a sentence that begins with the path.
    #[error("{} {}", .path.display(), .why)]
    Content { path: PathBuf, why: String },
    /// The source of a host volume does not exist.
    #[error("{} does not exist on this host: create it first; gantry does not create directories for --volume", gantry_model::id::shown(.0))]
    NoVolumeSource(String),
    /// The file of `--cidfile` exists.
    #[error("the file of --cidfile exists, {}: its pod may be running; remove the file, or use --uuid-file-save to replace it", .0.display())]
    IdFileExists(PathBuf),
    /// An app is named where the command takes pods.
    #[error(
        "'{}' names an app, and the command takes pods: name the pod alone, '{}'{}",
        gantry_model::id::shown(.text), gantry_model::id::shown(.pod),
        .instead.as_ref().map(|command| format!(", or use 'gantry {command} {}'", gantry_model::id::shown(.text))).unwrap_or_default()
    )]
    AppForPod {
        /// POD/APP.
        text: String,
        /// The pod of it.
        pod: String,
        /// The command that does the same to an app.
        instead: Option<String>,
    },
    /// The command requires root.
    #[error("'gantry {0}' needs root")]
    NeedsRoot(String),
    /// A command that only reads was given a data directory that does not exist.
    #[error("there is no data directory '{}': 'gantry run' or 'gantry fetch' creates it", .0.display())]
    NoDataDirectory(PathBuf),
    /// `--latest` without any pod.
    #[error("there are no pods; 'gantry run' creates one")]
    NoPods,
    /// `wait` for a pod that has ended without having run.
    #[error("pod {id} is {phase} and has no exit code: it was never started")]
    NeverStarted { id: gantry_model::PodId, phase: PhaseName },
    /// A pod did not reach the state within the timeout. The phrase says which: "did not start".
    #[error("pod {} {}{}", .0, .1, limit_text(*.2))]
    TimedOut(gantry_model::PodId, &'static str, std::time::Duration),
    /// A port of a pod that is not published.
    #[error("port {port} of pod {id} is not published; 'gantry port {id}' lists the published ports")]
    NotPublished {
        id: gantry_model::PodId,
        /// With its protocol.
        port: String,
    },
    /// The pod's state does not allow the command.
    #[error("{0}")]
    Refused(String),
}

impl Kind for CliError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => ErrorKind::of_named_file(source),
            Self::NotText(_)
            | Self::Usage(_)
            | Self::NoVolumeSource(_)
            | Self::AppForPod { .. }
            | Self::Content { .. } => ErrorKind::Invalid,
            Self::IdFileExists(_) => ErrorKind::AlreadyExists,
            Self::NeedsRoot(_) => ErrorKind::Denied,
            // Not `NotFound`: exit code 1 says that a pod, app or image does not exist.
            Self::NoDataDirectory(_) => ErrorKind::Unavailable,
            Self::TimedOut(..) => ErrorKind::TimedOut,
            Self::NotPublished { .. } | Self::NoPods => ErrorKind::NotFound,
            Self::Refused(_) | Self::NeverStarted { .. } => ErrorKind::Refused,
        }
    }
}

/// The time that a wait took, if it was one.
fn limit_text(limit: std::time::Duration) -> String {
    if limit.is_zero() { " yet".to_owned() } else { format!(" within {limit:?}") }
}

/// For `map_err`: an I/O error as "cannot ATTEMPT WHAT".
pub(crate) fn io<E: Into<std::io::Error>>(attempt: &'static str, what: impl Into<String>) -> impl FnOnce(E) -> Failure {
    move |error| CliError::Io { attempt, what: what.into(), source: error.into() }.into()
}

/// For `map_err`: writing to standard output failed.
pub(crate) fn output(error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
        _ => CliError::Io { attempt: "write to", what: "standard output".into(), source: error }.into(),
    }
}

/// For `map_err`: an error of reading or printing logs.
pub(crate) fn logs(error: gantry_engine::LogsError) -> Failure {
    match error {
        gantry_engine::LogsError::Write { source, .. } => output(source),
        error => error.into(),
    }
}

impl Failure {
    /// The arguments are invalid.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        CliError::Usage(text.into()).into()
    }

    /// The same failure with advice.
    pub(crate) fn with_hint(self, text: impl Into<String>) -> Self {
        match self {
            Self::Error { kind, error, .. } => Self::Error { kind, error, hint: Some(text.into()) },
            Self::BrokenPipe => self,
        }
    }

    /// Turns "not found" into "unavailable", for failures to open the engine: a missing data directory or configuration
    /// file is not a missing pod, app or image, which exit code 1 reports.
    pub(crate) fn not_a_missing_object(self) -> Self {
        match self {
            Self::Error { kind: ErrorKind::NotFound, error, hint } => {
                Self::Error { kind: ErrorKind::Unavailable, error, hint }
            }
            other => other,
        }
    }

    /// The kind of the failure.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Error { kind, .. } => *kind,
            Self::BrokenPipe => ErrorKind::Unavailable,
        }
    }

    /// The exit code.
    pub(crate) fn exit_status(&self, command: CommandKind) -> ExitStatus {
        match self {
            Self::Error { kind, .. } => ExitStatus::of_failure(*kind, command),
            Self::BrokenPipe => ExitStatus::BROKEN_PIPE,
        }
    }

    /// The message and its causes: on one line, or on a line each with `debug`. `None`: nothing is printed.
    pub(crate) fn text(&self, debug: bool) -> Option<String> {
        let Self::Error { kind, error, hint } = self else { return None };
        let chain: Vec<_> = messages(&**error).iter().map(|message| escape::text(message).into_owned()).collect();
        let mut text = format!("gantry: {}", chain.join(if debug { "\n  caused by: " } else { ": " }));
        if debug {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  kind: {}", kind.as_str());
        }
        if let Some(hint) = hint {
            // Writing to a String cannot fail.
            let _ = write!(text, "\ngantry: {hint}");
        }
        Some(text)
    }

    /// Prints it to standard error.
    pub(crate) fn print(&self, debug: bool) {
        if let Some(text) = self.text(debug) {
            print_stderr(&format!("{text}\n"));
        }
    }
}

/// Writes to standard error, in one piece.
pub(crate) fn print_stderr(text: &str) {
    // If standard error is closed, the message cannot be reported anywhere; the exit code still tells of a failure.
    let _no_reader = relay::write_all(rustix::stdio::stderr(), text.as_bytes());
}

/// Prints a warning of a command that succeeds.
pub(crate) fn warn(text: &str) {
    print_stderr(&format!("gantry: warning: {}\n", escape::text(text)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        let source = std::io::Error::other("no \u{1b}[31mspace");
        CliError::Io { attempt: "write", what: "/x".into(), source }.into()
    }

    #[test]
    fn failures_are_escaped_lines_or_chains() {
        assert_eq!(failure().text(false).unwrap(), "gantry: cannot write /x: no \\u{1b}[31mspace");
        let debug = failure().text(true).unwrap();
        assert_eq!(debug.lines().count(), 3, "{debug}");
        assert!(debug.contains("\n  caused by: no \\u{1b}"));
    }

    #[test]
    fn waits_of_no_time_name_none() {
        let text =
            |limit| CliError::TimedOut("6733c088-a507-4694-aabf-ec79c0a8ac9a".parse().unwrap(), "did not exit", limit);
        assert!(text(std::time::Duration::ZERO).to_string().ends_with("did not exit yet"));
        assert!(text(std::time::Duration::from_secs(2)).to_string().ends_with("did not exit within 2s"));
    }

    #[test]
    fn a_hint_comes_last() {
        let text = failure().with_hint("do this").text(false).unwrap();
        assert_eq!(text.lines().last(), Some("gantry: do this"));
    }

    #[test]
    fn a_closed_pipe_is_silent() {
        let failure = output(std::io::ErrorKind::BrokenPipe.into());
        assert_eq!((failure.text(true), failure.exit_status(CommandKind::Action)), (None, ExitStatus::BROKEN_PIPE));
    }
}
