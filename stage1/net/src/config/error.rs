//! Errors of reading network configurations.

use std::io;
use std::path::PathBuf;

use gantry_model::{ErrorKind, Kind};

/// A configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A directory or file could not be read.
    #[error("cannot read the network configuration {}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file or directory exceeds its limit.
    #[error("the network configuration {} is too large: {limit}", path.display())]
    TooLarge {
        /// The file or directory.
        path: PathBuf,
        /// The limit.
        limit: String,
    },
    /// A configuration is invalid.
    #[error("{origin}: {problem}")]
    Malformed {
        /// The file, or `built in`.
        origin: String,
        /// The path of the invalid key, such as `plugins[0].ipam.ranges[0][0].subnet`, and the problem; or line and
        /// column, if the text is not JSON.
        problem: String,
    },
    /// No network has this name.
    #[error("network '{name}' not found{}", unreadable(broken))]
    NotFound {
        /// The requested name.
        name: String,
        /// Errors of the files whose network's name is unknown: one of them may define the network.
        broken: Vec<String>,
    },
}

fn unreadable(broken: &[String]) -> String {
    if broken.is_empty() { String::new() } else { format!("; invalid files: {}", broken.join("; ")) }
}

impl Kind for ConfigError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { source, .. } => ErrorKind::of_io(source),
            Self::TooLarge { .. } | Self::Malformed { .. } => ErrorKind::Invalid,
            Self::NotFound { .. } => ErrorKind::NotFound,
        }
    }
}
