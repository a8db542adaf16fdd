//! Errors of opening a data directory.

use std::io;
use std::path::{Path, PathBuf};

use gantry_model::{ErrorKind, Kind, id::shown};
use thiserror::Error;

use crate::StoreError;

/// The data directory cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no store, and this command creates none.
    #[error("there is no gantry data in {}: nothing was ever fetched or prepared there, or --dir is wrong", dir.display())]
    Absent {
        /// The data directory.
        dir: PathBuf,
    },
    /// A database of another program.
    #[error("{} is not a database of gantry", path.display())]
    Foreign {
        /// The database.
        path: PathBuf,
    },
    /// gantryd serves the database read-only, because it is damaged and there is no good backup.
    #[error("the database in {} is read-only{}; 'gantry doctor' says what to do", dir.display(), because(why))]
    ReadOnly {
        /// The data directory.
        dir: PathBuf,
        /// The damage; empty if it is unknown.
        why: String,
    },
    /// Any other problem that prevents the use of the directory or its database.
    #[error("{message}")]
    Unusable {
        /// The problem, and how to solve it.
        message: String,
        /// The kind of the failure.
        kind: ErrorKind,
        /// The cause, where it is an error of the system.
        #[source]
        source: Option<io::Error>,
    },
    /// An operation of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A reason, as the rest of a sentence.
fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {}", shown(why)) }
}

impl OpenError {
    fn unusable(kind: ErrorKind, message: String) -> Self {
        Self::Unusable { message, kind, source: None }
    }

    pub(super) fn io(message: String, source: io::Error) -> Self {
        Self::Unusable { message, kind: ErrorKind::of_io(&source), source: Some(source) }
    }

    /// A symbolic link or a file.
    pub(super) fn not_a_directory(dir: &Path) -> Self {
        let message = format!(
            "{} is not a directory (symbolic links are refused): name the directory itself with --dir",
            dir.display()
        );
        Self::unusable(ErrorKind::Invalid, message)
    }

    /// Other users have access.
    pub(super) fn mode(dir: &Path, mode: u32) -> Self {
        let message = format!(
            "{} has mode {mode:04o}, so other users have access: run 'chmod 0700' on it if its contents can be trusted",
            dir.display()
        );
        Self::unusable(ErrorKind::Denied, message)
    }

    /// Another user's directory.
    pub(super) fn owner(dir: &Path, owner: u32, user: u32) -> Self {
        let message = format!(
            "{} belongs to user {owner} and gantry runs as user {user}: run as that user or name another --dir",
            dir.display()
        );
        Self::unusable(ErrorKind::Denied, message)
    }

    /// Written by a later gantry.
    pub(super) fn newer(path: &Path, found: usize, known: usize) -> Self {
        let message = format!(
            "{} has format {found} and this gantry knows formats up to {known}: use a newer gantry",
            path.display()
        );
        Self::unusable(ErrorKind::Refused, message)
    }

    /// Written by a later gantry, with an unknown feature.
    pub(super) fn feature(path: &Path, feature: &str) -> Self {
        let feature = shown(feature);
        let message =
            format!("{} uses '{feature}', which this gantry does not know: use a newer gantry", path.display());
        Self::unusable(ErrorKind::Refused, message)
    }

    /// Needs a migration, which only commands that write do.
    pub(super) fn older(path: &Path, found: usize) -> Self {
        let message = format!(
            "{} has the old format {found}: run any gantry command that changes something, such as 'gantry gc'",
            path.display()
        );
        Self::unusable(ErrorKind::Refused, message)
    }

    /// The database is `missing` or `empty`, and its counterparts (`pods`, `layers`, `volumes` or `backups`) exist.
    pub(super) fn lost(path: &Path, how: &str, what: &str) -> Self {
        let message = format!(
            "{} is {how}, but there are {what} beside it: start gantryd, which restores the newest of its backups, or run \
             'gantry doctor'",
            path.display()
        );
        Self::unusable(ErrorKind::Damaged, message)
    }

    /// Commits are missing: the WAL was lost, or the file is a copy.
    pub(super) fn rolled_back(path: &Path) -> Self {
        let message = format!(
            "{} was rolled back: its newest commits are missing, so nothing is changed; start gantryd, which recreates what \
             is missing from the directories of images and pods, or run 'gantry doctor'",
            path.display()
        );
        Self::unusable(ErrorKind::Damaged, message)
    }
}

impl Kind for OpenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Absent { .. } => ErrorKind::NotFound,
            Self::Foreign { .. } => ErrorKind::Invalid,
            Self::ReadOnly { .. } => ErrorKind::Refused,
            Self::Unusable { kind, .. } => *kind,
            Self::Store(error) => error.kind(),
        }
    }
}
