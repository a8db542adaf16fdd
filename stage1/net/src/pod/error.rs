//! What can go wrong.

use gantry_model::{ErrorKind, Kind};

/// A network could not be made or taken away.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Not there yet.
    #[error("not there yet")]
    Missing,
}

impl Kind for NetworkError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Unavailable
    }
}
