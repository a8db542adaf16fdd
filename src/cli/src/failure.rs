//! Failures on their way to the user: any error of the workspace with its kind, printed by one chain printer.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use gantry_model::error::messages;
use gantry_model::{ErrorKind, Kind};
use thiserror::Error as ThisError;

use crate::exit::{self, Asking};
use crate::render::escape;

/// Why a command did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something failed; it is to be said.
    Error {
        kind: ErrorKind,
        error: Box<dyn Error + Send + Sync>,
        /// What may help, said on a line of its own.
        hint: Option<String>,
    },
    /// Nobody reads our standard output. Nothing is said, as of a program that SIGPIPE ended.
    BrokenPipe,
}

impl<E: Error + Kind + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Error { kind: error.kind(), error: Box::new(error), hint: None }
    }
}

/// What the command line itself can run into.
#[derive(Debug, ThisError)]
pub(crate) enum CliError {
    /// A file or descriptor.
    #[error("cannot {attempt} {}", gantry_model::id::shown(.what))]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// On what.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// An argument that is not text.
    #[error("argument {0} is not UTF-8: gantry takes text only")]
    NotText(usize),
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
    /// A file's content is not what it must be.
    #[error("{} {}", .path.display(), .why)]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A volume's place on the host is not there.
    #[error("{} does not exist on this host: make it first; gantry makes no directories for --volume", gantry_model::id::shown(.0))]
    NoVolumeSource(String),
    /// Only root may.
    #[error("'gantry {0}' needs root")]
    NeedsRoot(String),
    /// There is not one pod.
    #[error("there is no pod: 'gantry run' makes one")]
    NoPods,
    /// A pod without an exit code.
    #[error("pod {id} is {phase} and has no exit code: it was never started")]
    NeverStarted {
        /// Which pod.
        id: gantry_model::PodId,
        /// Where it stands.
        phase: &'static str,
    },
    /// The wait is over and the pod is not where it was waited for.
    #[error("pod {0} was not {1} within {2:?}")]
    TimedOut(gantry_model::PodId, &'static str, std::time::Duration),
    /// A port of a pod that no port of the host leads to.
    #[error("port {port} of pod {id} is not published; 'gantry port {id}' shows those that are")]
    NotPublished {
        /// Which pod.
        id: gantry_model::PodId,
        /// The port with its protocol.
        port: String,
    },
    /// A pod ended before it could be done.
    #[error("{0}")]
    Refused(String),
}

impl Kind for CliError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => ErrorKind::of_io(source),
            Self::NotText(_) | Self::Usage(_) | Self::NoVolumeSource(_) | Self::Content { .. } => ErrorKind::Invalid,
            Self::NeedsRoot(_) => ErrorKind::Denied,
            Self::TimedOut(..) => ErrorKind::TimedOut,
            Self::NotPublished { .. } | Self::NoPods => ErrorKind::NotFound,
            Self::Refused(_) | Self::NeverStarted { .. } => ErrorKind::Refused,
        }
    }
}

/// For `map_err`: this was attempted on that.
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

/// For `map_err`: logs could not be shown.
pub(crate) fn logs(error: gantry_engine::LogsError) -> Failure {
    match error {
        gantry_engine::LogsError::Write { source, .. } => output(source),
        error => error.into(),
    }
}

impl Failure {
    /// The arguments make no sense.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        CliError::Usage(text.into()).into()
    }

    /// The same with something that may help.
    pub(crate) fn with_hint(self, text: impl Into<String>) -> Self {
        match self {
            Self::Error { kind, error, .. } => Self::Error { kind, error, hint: Some(text.into()) },
            Self::BrokenPipe => self,
        }
    }

    /// A failure to begin at all: what is missing here is no pod, app or image, so its absence is no answer.
    pub(crate) fn of_gantry_itself(self) -> Self {
        match self {
            Self::Error { kind: ErrorKind::NotFound, error, hint } => {
                Self::Error { kind: ErrorKind::Unavailable, error, hint }
            }
            other => other,
        }
    }

    /// Which kind of failure it is.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Error { kind, .. } => *kind,
            Self::BrokenPipe => ErrorKind::Unavailable,
        }
    }

    /// The exit code it means.
    pub(crate) fn code(&self, asking: Asking) -> u8 {
        match self {
            Self::Error { kind, .. } => exit::of_failure(*kind, asking),
            Self::BrokenPipe => exit::BROKEN_PIPE,
        }
    }

    /// What is said of it on standard error: message and causes on one line, or one line each with `debug`.
    pub(crate) fn text(&self, debug: bool) -> Option<String> {
        let Self::Error { kind, error, hint } = self else { return None };
        let said: Vec<_> = messages(&**error).iter().map(|message| escape::text(message).into_owned()).collect();
        let mut text = format!("gantry: {}", said.join(if debug { "\n  caused by: " } else { ": " }));
        if debug {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  kind: {}", kind.as_str());
        }
        if let Some(hint) = hint {
            let _ = write!(text, "\ngantry: {hint}");
        }
        Some(text)
    }

    /// Says it on standard error. Failing to do so has nowhere to be said.
    pub(crate) fn print(&self, debug: bool) {
        use std::io::Write as _;
        if let Some(text) = self.text(debug) {
            let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
        }
    }
}

/// Says on standard error what an operator should know although the command succeeds. Failing to do so has nowhere to be said.
pub(crate) fn warn(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "gantry: warning: {}", escape::text(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        let source = std::io::Error::other("no \u{1b}[31mspace");
        CliError::Io { attempt: "write", what: "/x".into(), source }.into()
    }

    #[test]
    fn one_line_or_a_chain_and_never_an_escape_sequence() {
        assert_eq!(failure().text(false).unwrap(), "gantry: cannot write /x: no \\u{1b}[31mspace");
        let debug = failure().text(true).unwrap();
        assert_eq!(debug.lines().count(), 3, "{debug}");
        assert!(debug.contains("\n  caused by: no \\u{1b}"));
    }

    #[test]
    fn a_hint_comes_last() {
        let text = failure().with_hint("do this").text(false).unwrap();
        assert_eq!(text.lines().last(), Some("gantry: do this"));
    }

    #[test]
    fn a_closed_pipe_is_silent() {
        let failure = output(std::io::ErrorKind::BrokenPipe.into());
        assert_eq!((failure.text(true), failure.code(Asking::Action)), (None, 141));
    }
}
