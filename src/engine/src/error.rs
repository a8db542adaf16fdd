//! The errors that all operations share, and the wrapper for errors of the crates below.

use std::fmt;
use std::path::PathBuf;

use gantry_model::{ErrorKind, Kind, PodId, PodPrefix};
use gantry_store::ResolveError;
use thiserror::Error;

/// An error of a crate below, with its kind. Displays as that error.
#[derive(Debug)]
pub struct Cause {
    kind: ErrorKind,
    error: Box<dyn std::error::Error + Send + Sync>,
}

impl<E: std::error::Error + Kind + Send + Sync + 'static> From<E> for Cause {
    fn from(error: E) -> Self {
        Self { kind: error.kind(), error: Box::new(error) }
    }
}

impl Cause {
    /// An I/O error with the kind it has for callers.
    #[must_use]
    pub fn io(error: std::io::Error) -> Self {
        Self { kind: ErrorKind::of_io(&error), error: Box::new(error) }
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The original error, if it is of this type.
    #[must_use]
    pub fn get<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// An operation failed for a reason on which no caller decides: the operation, its object, the cause, and the kind of
/// failure.
#[derive(Debug)]
pub struct EngineError {
    kind: ErrorKind,
    /// Empty: the source's own.
    text: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl EngineError {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), source: None }
    }

    /// An error of a crate below, as it is.
    pub(crate) fn from_cause<E: std::error::Error + Kind + Send + Sync + 'static>(error: E) -> Self {
        Self::new(error.kind(), "").caused_by(error)
    }

    /// Whether a reader of the output has closed it.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        let mut cause = self.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static));
        while let Some(error) = cause {
            if error
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
            {
                return true;
            }
            cause = error.source();
        }
        false
    }

    pub(crate) fn caused_by(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Box::new(source)), ..self }
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) if self.text.is_empty() => source.fmt(f),
            _ => f.write_str(&self.text),
        }
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let source = self.source.as_deref()?;
        if self.text.is_empty() { source.source() } else { Some(source) }
    }
}

impl Kind for EngineError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// A pod could not be read.
#[derive(Debug, Error)]
pub enum PodError {
    /// No such pod.
    #[error("there is no pod {0}: 'gantry list' lists the pods")]
    NotFound(PodPrefix),
    /// No pod has this id or name.
    #[error("there is no pod '{}': 'gantry list' lists the pods", gantry_model::id::shown(.0))]
    NoSuchPod(String),
    /// No pod has this id or name, and none had it.
    #[error("there is no pod '{}', and no event of one: 'gantry list' lists the pods", gantry_model::id::shown(.0))]
    NoSuchPodInEvents(String),
    /// Several pods have this name.
    #[error(
        "{matches} pods have an app or a host of the name '{}', among them {}: give the id",
        gantry_model::id::shown(.name), some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    AmbiguousName {
        /// The name.
        name: String,
        /// How many pods have the name.
        matches: usize,
        /// Some of them.
        some: Vec<PodId>,
    },
    /// The store failed.
    #[error(transparent)]
    Store(Cause),
    /// The file system failed.
    #[error("cannot {attempt} {}", .path.display())]
    Io {
        /// The attempted operation.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file in the pod directory is not what it must be.
    #[error("{} of pod {id} is damaged: {why}; remove the pod with 'gantry rm {id}'", .file)]
    Damaged {
        /// The pod.
        id: PodId,
        /// The file.
        file: &'static str,
        /// The fault.
        why: String,
    },
    /// Only root may.
    #[error("cannot {0} as an ordinary user: it needs root")]
    NeedsRoot(&'static str),
}

impl Kind for PodError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) | Self::NoSuchPod(_) | Self::NoSuchPodInEvents(_) => ErrorKind::NotFound,
            Self::AmbiguousName { .. } => ErrorKind::Invalid,
            Self::Store(cause) => cause.kind(),
            Self::Io { source, .. } => ErrorKind::of_io(source),
            Self::Damaged { .. } => ErrorKind::Damaged,
            Self::NeedsRoot(_) => ErrorKind::Denied,
        }
    }
}

impl PodError {
    /// How many pods match, when the error is an ambiguous prefix.
    #[must_use]
    pub fn ambiguous(&self) -> Option<u64> {
        match self {
            Self::Store(cause) => match cause.get::<ResolveError>()? {
                ResolveError::Ambiguous { matches, .. } => Some(*matches),
                ResolveError::NotFound { .. } | ResolveError::Store(_) => None,
            },
            _ => None,
        }
    }

    /// For `map_err`: the store failed.
    pub(crate) fn store<E: std::error::Error + Kind + Send + Sync + 'static>(error: E) -> Self {
        Self::Store(error.into())
    }

    /// For `map_err`: the file system failed at this.
    pub(crate) fn io<E: Into<std::io::Error>>(
        attempt: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        move |error| Self::Io { attempt, path: path.into(), source: error.into() }
    }
}

impl From<gantry_store::StoreError> for PodError {
    fn from(error: gantry_store::StoreError) -> Self {
        Self::store(error)
    }
}

/// Fails for callers other than root, before anything is changed.
///
/// # Errors
/// [`PodError::NeedsRoot`].
pub(crate) fn need_root(what: &'static str) -> Result<(), PodError> {
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(PodError::NeedsRoot(what)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_reported_once() {
        use gantry_model::error::messages;
        let io = || std::io::Error::other("it broke");
        let error = EngineError::new(ErrorKind::Internal, "cannot do it").caused_by(io());
        assert_eq!(messages(&error), ["cannot do it", "it broke"]);
        let below = PodError::io("open", "/x")(io());
        let error = EngineError::from_cause(below);
        assert_eq!(
            (error.kind(), messages(&error)),
            (ErrorKind::Internal, vec!["cannot open /x".into(), "it broke".into()])
        );
    }

    #[test]
    fn a_wrapped_failure_keeps_its_kind_and_text() {
        let error = PodError::store("x".parse::<gantry_model::PodId>().unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("UUID"), "{error}");
        let none = PodError::NeedsRoot("run a pod");
        assert_eq!((none.kind(), none.to_string().contains("root")), (ErrorKind::Denied, true));
    }
}
