//! The error of most store operations. An operation with failures of its own has an enum that contains this one.

use std::io;
use std::path::{Path, PathBuf};

use gantry_model::{ErrorKind, Kind};
use thiserror::Error;

/// The cause of a database error. It hides the library from other crates.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The database or the file system did not do what it was asked for.
#[derive(Debug, Error)]
pub enum StoreError {
    /// No space left for the database.
    #[error("cannot {doing}: the disk is full; free space (gantry gc, gantry image gc) and try again")]
    Full {
        /// What was attempted.
        doing: &'static str,
        /// The error of the database.
        #[source]
        source: Cause,
    },
    /// Others wrote for longer than the busy timeout.
    #[error("cannot {doing}: the database was busy for too long; try again")]
    Busy {
        /// What was attempted.
        doing: &'static str,
        /// The error of the database.
        #[source]
        source: Cause,
    },
    /// A write through a read-only handle, or to a read-only file system.
    #[error("cannot {doing}: the database is read-only; is its file system mounted read-only?")]
    ReadOnly {
        /// What was attempted.
        doing: &'static str,
        /// The error of the database.
        #[source]
        source: Cause,
    },
    /// The database contains what gantry never wrote.
    #[error(
        "cannot {doing}: the database is damaged; start gantryd again, which restores the newest of its backups, or run 'gantry doctor'"
    )]
    Damaged {
        /// What was attempted.
        doing: &'static str,
        /// The error of the database.
        #[source]
        source: Cause,
    },
    /// The database that was opened has been replaced by a restored one, or removed.
    #[error("cannot {doing}: the database was replaced or removed meanwhile; try again")]
    Replaced {
        /// What was attempted.
        doing: &'static str,
    },
    /// Any other failure of the database.
    #[error("cannot {doing}: the database failed")]
    Database {
        /// What was attempted.
        doing: &'static str,
        /// The error of the database.
        #[source]
        source: Cause,
    },
    /// A file or directory of the store.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A lock was held by others for too long.
    #[error("cannot lock {}: others held it for {seconds} s; try again", path.display())]
    Locked {
        /// The lock's file or directory.
        path: PathBuf,
        /// How long this call waited.
        seconds: u64,
    },
}

impl StoreError {
    /// Makes a closure for `map_err` on a result of the database.
    pub(crate) fn sql(doing: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |error| Self::of_sql(doing, error)
    }

    /// Makes a closure for `map_err` on a result of the file system.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { doing, path, source: error.into() }
    }

    fn of_sql(doing: &'static str, error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        let unreadable = matches!(
            error,
            rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::Utf8Error(..)
        );
        // The shared memory beside the WAL is a file as well; SQLite has no plainer word for having no room for it.
        let no_room = matches!(&error, rusqlite::Error::SqliteFailure(code, _)
            if code.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
        let code = error.sqlite_error_code();
        let source = Box::new(error);
        match code {
            _ if unreadable => Self::Damaged { doing, source },
            _ if no_room => Self::Full { doing, source },
            Some(ErrorCode::DiskFull) => Self::Full { doing, source },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { doing, source },
            Some(ErrorCode::ReadOnly) => Self::ReadOnly { doing, source },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged { doing, source },
            _ => Self::Database { doing, source },
        }
    }

    /// Whether a file or directory is not there.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.kind() == ErrorKind::NotFound
    }

    /// Whether there was no space, in the database or beside it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kind() == ErrorKind::Exhausted
    }
}

impl Kind for StoreError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Full { .. } => ErrorKind::Exhausted,
            Self::Busy { .. } | Self::Locked { .. } | Self::Replaced { .. } => ErrorKind::Busy,
            Self::ReadOnly { .. } => ErrorKind::Denied,
            Self::Damaged { .. } => ErrorKind::Damaged,
            Self::Database { .. } => ErrorKind::Internal,
            Self::Io { source, .. } => ErrorKind::of_io(source),
        }
    }
}
