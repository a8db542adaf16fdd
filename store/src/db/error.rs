//! Errors of opening a data directory.

use std::io;
use std::path::PathBuf;

use gantry_model::{ErrorKind, Kind, id::shown};
use thiserror::Error;

use super::BOOT_ID;
use crate::StoreError;

/// The data directory cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is no store, and this command makes none.
    #[error("there is no gantry data in {}: nothing was ever fetched or prepared there, or --dir is wrong", dir.display())]
    Absent {
        /// The data directory.
        dir: PathBuf,
    },
    /// A symbolic link or a file.
    #[error("{} is not a directory (symbolic links are refused): name the directory itself with --dir", dir.display())]
    NotADirectory {
        /// The data directory.
        dir: PathBuf,
    },
    /// Others could get in.
    #[error("{} has mode {mode:04o}, so that others can get in: run 'chmod 0700' on it if what it contains can be trusted", dir.display())]
    Mode {
        /// The data directory.
        dir: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Somebody else's.
    #[error("{} belongs to user {owner} and gantry runs as user {user}: run as that user or name another --dir", dir.display())]
    Owner {
        /// The data directory.
        dir: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who we are.
        user: u32,
    },
    /// It cannot be made or looked at.
    #[error("cannot {doing} the data directory {}", dir.display())]
    Directory {
        /// What was attempted.
        doing: &'static str,
        /// The data directory.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Written by a later gantry.
    #[error("{} has format {found} and this gantry knows formats up to {known}: use a newer gantry", path.display())]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its format.
        found: usize,
        /// Ours.
        known: usize,
    },
    /// Written by a later gantry that uses something we do not know.
    #[error("{} uses '{}', which this gantry does not know: use a newer gantry", path.display(), shown(feature))]
    Feature {
        /// The database.
        path: PathBuf,
        /// What it uses.
        feature: String,
    },
    /// Has to be migrated, by a command that may write.
    #[error("{} has the old format {found}: run any gantry command that changes something, such as 'gantry gc'", path.display())]
    Older {
        /// The database.
        path: PathBuf,
        /// Its format.
        found: usize,
    },
    /// A database of another program.
    #[error("{} is not a database of gantry", path.display())]
    Foreign {
        /// The database.
        path: PathBuf,
    },
    /// The database is gone, and what it knew of is still there.
    #[error("{} is {how}, but there are {what} beside it: start gantryd, which restores the newest of its backups, or run 'gantry doctor'", path.display())]
    Lost {
        /// The database.
        path: PathBuf,
        /// `missing` or `empty`.
        how: &'static str,
        /// What it knew of: `pods`, `layers` or `backups`.
        what: &'static str,
    },
    /// Commits are missing that were there: its WAL was lost, or it is a copy.
    #[error(
        "{} was rolled back: its newest commits are missing, and nothing is changed for that reason; start gantryd, which \
         makes what is missing from the directories of images and pods, or run 'gantry doctor'",
        path.display()
    )]
    RolledBack {
        /// The database.
        path: PathBuf,
    },
    /// gantryd serves the database read-only, because it is damaged and there is no good backup.
    #[error("the database in {} is read-only: {}; 'gantry doctor' says what to do", dir.display(), shown(why))]
    ReadOnly {
        /// The data directory.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel does not tell its boot id.
    #[error("cannot read the boot id from {BOOT_ID}: is /proc mounted?")]
    Boot {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for OpenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Absent { .. } => ErrorKind::NotFound,
            Self::NotADirectory { .. } | Self::Foreign { .. } => ErrorKind::Invalid,
            Self::Mode { .. } | Self::Owner { .. } => ErrorKind::Denied,
            Self::Directory { source, .. } => ErrorKind::of_io(source),
            Self::Newer { .. } | Self::Feature { .. } | Self::Older { .. } => ErrorKind::Refused,
            Self::Boot { .. } => ErrorKind::Unavailable,
            Self::Lost { .. } | Self::RolledBack { .. } => ErrorKind::Damaged,
            Self::ReadOnly { .. } => ErrorKind::Refused,
            Self::Store(error) => error.kind(),
        }
    }
}
