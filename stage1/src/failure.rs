//! Failures of the supervisor: what was attempted on what, the cause, and the kind; in the form that is sent to the
//! engine.

use std::fmt::Display;
use std::io;

use gantry_contract::Failure;
use gantry_model::error::chain;
use gantry_model::{ErrorKind, Kind};

/// The result of a step.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// A failure of this kind.
pub(crate) fn failure(kind: ErrorKind, message: impl Into<String>) -> Failure {
    Failure { kind, message: message.into(), app: None }
}

/// The failure for an error of another crate.
pub(crate) fn of<E: std::error::Error + Kind>(error: &E) -> Failure {
    failure(error.kind(), chain(error))
}

/// Adds to a failed system call what was attempted.
pub(crate) trait Attempt<T> {
    /// `what` has the form "cannot make the cgroup /x".
    fn attempt<W: Display>(self, what: impl FnOnce() -> W) -> Result<T>;
}

impl<T, E: Into<io::Error>> Attempt<T> for std::result::Result<T, E> {
    fn attempt<W: Display>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(|error| {
            let error = error.into();
            failure(ErrorKind::of_io(&error), format!("{}: {error}", what()))
        })
    }
}

/// Adds to a failure the app that it concerns.
pub(crate) trait OfApp<T> {
    /// Adds the app's name.
    fn of_app(self, app: &str) -> Result<T>;
}

impl<T> OfApp<T> for Result<T> {
    fn of_app(self, app: &str) -> Self {
        self.map_err(|failure| Failure { app: Some(app.to_owned()), ..failure })
    }
}
