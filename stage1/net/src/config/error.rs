//! What can be wrong with network configurations.

use std::io;
use std::path::PathBuf;

use gantry_model::{ErrorKind, Kind};

/// A configuration that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A directory or file could not be read.
    #[error("cannot read the network configuration {}: {source}", path.display())]
    Read {
        /// Of what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file or directory is beyond its limit.
    #[error("the network configuration {} is too large: {limit}", path.display())]
    TooLarge {
        /// Of what.
        path: PathBuf,
        /// Which limit.
        limit: String,
    },
    /// A file says something that cannot be.
    #[error("{origin}, line {line}{}: {problem}", if field.is_empty() { String::new() } else { format!(", {field}") })]
    Malformed {
        /// The file, or the name of the built-in network.
        origin: String,
        /// Counted from 1.
        line: usize,
        /// The path of the key, such as `plugins[0].ipam.ranges[0][0].subnet`; empty when the text is no JSON.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No network has this name.
    #[error("network '{name}' not found{}", unreadable(broken))]
    NotFound {
        /// The name.
        name: String,
        /// Files that have no readable name, one of which may have been meant.
        broken: Vec<String>,
    },
}

fn unreadable(broken: &[String]) -> String {
    if broken.is_empty() { String::new() } else { format!("; not readable: {}", broken.join("; ")) }
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
