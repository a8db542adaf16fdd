//! Errors of a pod's networks.

use std::error::Error;
use std::io;

use gantry_model::{ErrorKind, Kind};

use crate::config::ConfigError;
use crate::nft::{self, HostPort};

/// The result of an operation.
pub(super) type Result<T> = std::result::Result<T, NetworkError>;

/// An operation on a pod's networks failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A published port is in use.
    #[error("port {port} of the host is in use by {by}: choose another port, or stop what uses it")]
    PortTaken {
        /// The port, with the address on which it is in use.
        port: HostPort,
        /// The pod or process that uses it, as far as it is known.
        by: String,
    },
    /// Another process held a lock until the timeout.
    #[error("{path} was locked by another process for {seconds} s: try again")]
    Locked {
        /// The file.
        path: String,
        /// The timeout.
        seconds: u64,
    },
    /// Attaching a pod failed, and so did removing what had been created.
    #[error(
        "{}; removing what had been created failed too, 'gantry gc' retries it: {}",
        with_causes(cause),
        with_causes(left)
    )]
    NotUndone {
        /// Why attaching failed.
        cause: Box<NetworkError>,
        /// Why removing failed.
        left: Box<NetworkError>,
    },
    /// Several steps failed; the others were done.
    #[error("{}", .0.iter().map(with_causes).collect::<Vec<_>>().join("; "))]
    Several(Vec<NetworkError>),
    /// Any other failure.
    #[error("{message}")]
    Failed {
        /// The attempted operation, or the problem and its remedy.
        message: String,
        /// How callers react to it.
        kind: ErrorKind,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}

impl NetworkError {
    /// `Ok` without errors, a single error as it is.
    pub(super) fn from_all(errors: Vec<Self>) -> Result<()> {
        crate::all_of(errors, Self::Several)
    }

    /// A problem that this code found itself.
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), kind, source: None }
    }

    /// "cannot {doing}", because of an error of another module.
    pub(super) fn attempt<E: Error + Kind + Send + Sync + 'static>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |source| {
            let (message, kind) = (format!("cannot {doing}"), source.kind());
            Self::Failed { message, kind, source: Some(Box::new(source)) }
        }
    }

    /// "cannot {doing}", because a system call failed.
    pub(super) fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |source| {
            let source = source.into();
            let (message, kind) = (format!("cannot {doing}"), ErrorKind::of_io(&source));
            Self::Failed { message, kind, source: Some(Box::new(source)) }
        }
    }

    /// The record of a pod cannot be understood.
    pub(super) fn damaged(pod: &str, problem: &str) -> Self {
        let message =
            format!("the record of the networks of pod {pod} is damaged ({problem}): 'gantry gc' frees its resources");
        Self::new(ErrorKind::Damaged, message)
    }

    /// The record of a pod was written by a later gantry.
    pub(super) fn newer(pod: &str, version: u32) -> Self {
        let message = format!(
            "the record of the networks of pod {pod} has version {version}, which this gantry does not know: use the gantry that \
             wrote it"
        );
        Self::new(ErrorKind::Refused, message)
    }

    /// No configuration has these names. `broken`: errors of the files whose network's name is unknown.
    pub(super) fn no_networks(names: &[String], broken: &[String]) -> Self {
        let missing = match names {
            [name] => format!("there is no network '{name}'"),
            names => format!("there are no networks '{}'", names.join("', '")),
        };
        let invalid = if broken.is_empty() { String::new() } else { format!("; invalid files: {}", broken.join("; ")) };
        let message = format!("{missing}: 'gantry network list' shows the networks of this host{invalid}");
        Self::new(ErrorKind::NotFound, message)
    }

    /// Whether other programs changed nftables too often for a change of gantry's to succeed.
    pub(super) fn is_contended(&self) -> bool {
        let Self::Failed { source: Some(source), .. } = self else { return false };
        matches!(source.downcast_ref(), Some(nft::Error::Contended { .. }))
    }
}

/// An error with its causes in one line, for a message that contains several errors.
pub(super) fn with_causes(error: &NetworkError) -> String {
    gantry_model::error::messages(error).join(": ")
}

impl Kind for NetworkError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(error) => error.kind(),
            Self::PortTaken { .. } => ErrorKind::AlreadyExists,
            Self::Locked { .. } => ErrorKind::TimedOut,
            Self::NotUndone { cause, .. } => cause.kind(),
            Self::Several(errors) => errors.first().map_or(ErrorKind::Internal, Kind::kind),
            Self::Failed { kind, .. } => *kind,
        }
    }
}
