//! The files of apps: copying them out and in, and what an app changed.
//!
//! `root` opens the root of an app, `copy` copies below it, `diff` lists its changes. No code of an app runs, and no
//! path is resolved by joining strings: everything is opened beneath the root (openat2).

pub(crate) mod copy;
pub(crate) mod diff;
mod root;

use gantry_model::{ErrorKind, Kind};

use crate::EngineError;

/// An operation on a file of an app or of the host that failed.
fn failed(doing: &str, path: &str, error: impl Into<std::io::Error>) -> EngineError {
    let error = error.into();
    let text = format!("cannot {doing} '{}'", gantry_model::id::shown(path));
    EngineError::new(ErrorKind::of_named_file(&error), text).caused_by(error)
}

fn refused(text: impl Into<String>) -> EngineError {
    EngineError::new(ErrorKind::Refused, text)
}

fn invalid(text: impl Into<String>) -> EngineError {
    EngineError::new(ErrorKind::Invalid, text)
}

fn from_cause<E: std::error::Error + Kind + Send + Sync + 'static>(error: E) -> EngineError {
    EngineError::from_cause(error)
}
