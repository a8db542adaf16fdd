//! The error of most store operations. An operation with failures of its own has an enum that contains this one.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use gantry_model::{ErrorKind, Kind};
use thiserror::Error;

/// The cause of a database error. It hides the library from other crates.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// The database or the file system failed to do what was requested.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The database.
    #[error("cannot {doing}: {failure}")]
    Database {
        /// The attempted operation.
        doing: &'static str,
        /// The kind of the failure.
        failure: DatabaseFailure,
        /// The error of the database.
        #[source]
        source: Cause,
    },
    /// The database that was opened has been replaced by a restored one, or removed.
    #[error("cannot {doing}: the database was replaced or removed meanwhile; try again")]
    Replaced {
        /// The attempted operation.
        doing: &'static str,
    },
    /// A file or directory of the store.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The attempted operation.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// Other processes held a lock for too long.
    #[error("cannot lock {}: others held it for {seconds} s; try again", path.display())]
    Locked {
        /// The lock's file or directory.
        path: PathBuf,
        /// The duration of the wait.
        seconds: u64,
    },
}

/// The kind of a failure of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseFailure {
    /// No space is left.
    Full,
    /// Other processes wrote for longer than the busy timeout.
    Busy,
    /// A write through a read-only handle, or to a read-only file system.
    ReadOnly,
    /// The database contains what gantry never writes.
    Damaged,
    /// Any other failure.
    Other,
}

impl fmt::Display for DatabaseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the disk is full; free space (gantry gc, gantry image gc) and try again",
            Self::Busy => "the database was busy for too long; try again",
            Self::ReadOnly => "the database is read-only; is its file system mounted read-only?",
            Self::Damaged => {
                "the database is damaged; start gantryd again, which restores the newest of its backups, or run 'gantry doctor'"
            }
            Self::Other => "the database failed",
        })
    }
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

    /// Content that gantry never writes.
    pub(crate) fn damaged(doing: &'static str, what: impl Into<Cause>) -> Self {
        Self::Database { doing, failure: DatabaseFailure::Damaged, source: what.into() }
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
        // SQLite has no own code for a full disk when it allocates the WAL index.
        let no_room = matches!(&error, rusqlite::Error::SqliteFailure(code, _)
            if code.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE);
        let failure = match error.sqlite_error_code() {
            _ if unreadable => DatabaseFailure::Damaged,
            _ if no_room => DatabaseFailure::Full,
            Some(ErrorCode::DiskFull) => DatabaseFailure::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => DatabaseFailure::Busy,
            Some(ErrorCode::ReadOnly) => DatabaseFailure::ReadOnly,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => DatabaseFailure::Damaged,
            _ => DatabaseFailure::Other,
        };
        Self::Database { doing, failure, source: Box::new(error) }
    }

    /// The same error, as that of a full disk if the database could not write and `is_exhausted` finds no space. SQLite
    /// knows only ENOSPC: it reports an exhausted quota (EDQUOT) like the failure of a disk.
    pub(crate) fn or_full(self, is_exhausted: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Database { doing, source, .. } if is_failed_write(&source) && is_exhausted() => {
                Self::Database { doing, failure: DatabaseFailure::Full, source }
            }
            other => other,
        }
    }

    /// Whether a file or directory does not exist.
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

fn is_failed_write(cause: &Cause) -> bool {
    matches!(cause.downcast_ref(), Some(rusqlite::Error::SqliteFailure(code, _))
        if code.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE)
}

impl Kind for StoreError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Database { failure, .. } => match failure {
                DatabaseFailure::Full => ErrorKind::Exhausted,
                DatabaseFailure::Busy => ErrorKind::Busy,
                DatabaseFailure::ReadOnly => ErrorKind::Denied,
                DatabaseFailure::Damaged => ErrorKind::Damaged,
                DatabaseFailure::Other => ErrorKind::Internal,
            },
            Self::Locked { .. } | Self::Replaced { .. } => ErrorKind::Busy,
            Self::Io { source, .. } => ErrorKind::of_io(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn failed(code: i32) -> StoreError {
        StoreError::of_sql("write", rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))
    }

    #[test]
    fn failed_writes_without_space_mean_full() {
        assert!(failed(ffi::SQLITE_IOERR_WRITE).or_full(|| true).is_full());
        assert!(!failed(ffi::SQLITE_IOERR_WRITE).or_full(|| false).is_full());
        assert!(failed(ffi::SQLITE_FULL).or_full(|| panic!("it is known")).is_full());
        assert!(!failed(ffi::SQLITE_IOERR_READ).or_full(|| panic!("it is no write")).is_full());
    }
}
