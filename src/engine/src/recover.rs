//! gantryd's start: a database that is sound, restored, or served read-only. Commands never restore.
//!
//! | the database is | and | becomes |
//! |---|---|---|
//! | sound | | [`Condition::Sound`] |
//! | damaged | there is a good backup | [`Condition::Restored`] from the newest |
//! | damaged | there is none, and all its rows can be read | [`Condition::ReadOnly`]: nothing is lost that was not lost before |
//! | damaged | there is none, and it cannot be read, or is gone | [`Condition::Restored`] from the disk alone |
//! | damaged | it cannot be restored (the disk is full), and can be read | [`Condition::ReadOnly`] |
//! | unknown, because the disk fails or is full | it can be read | [`Condition::ReadOnly`], for gantryd only |
//! | another program's, newer, or not ours to use | | refused |
//!
//! How a restore is made, step by step, is told in the store's `restore.rs`; what its rows are made of, in
//! [`crate::adopt`]. Pods run on through all of it: nothing here touches one that is locked.

use gantry_model::{ErrorKind, Kind as _, Timestamp};
use gantry_store::{Home, Keeper, KeeperLock, Record};

use crate::adopt::Adopted;
use crate::engine::check_parent;
use crate::{Engine, OpenError, Options, PodError};

/// In what state the database is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// As it was.
    Sound,
    /// It was damaged, and has been replaced.
    Restored {
        /// What was damaged, by what it was replaced.
        record: Record,
        /// What was found on the disk and is on record again.
        adopted: Box<Adopted>,
    },
    /// It is damaged and there is nothing better: it can be read, and every command that changes something fails.
    ReadOnly {
        /// What is wrong with it.
        why: String,
    },
}

impl Condition {
    /// Whether pods can be kept: settled, collected, and changed by commands.
    #[must_use]
    pub fn can_write(&self) -> bool {
        !matches!(self, Self::ReadOnly { .. })
    }
}

/// What gantryd starts with.
pub struct Keeping {
    /// Opened for writing, unless the condition is [`Condition::ReadOnly`].
    pub engine: Engine,
    /// In what state the database is.
    pub condition: Condition,
    /// What was restored before, as long as nobody has deleted the record of it.
    pub restored_before: Option<Record>,
    /// The right to keep the directory; gantryd holds it for its life.
    pub lock: KeeperLock,
}

/// Opens a data directory for the one who keeps it, putting its database in order first.
///
/// # Errors
/// [`OpenError`], also when somebody else keeps it.
pub fn open_for_keeping(options: Options) -> Result<Keeping, OpenError> {
    check_parent(&options.cgroup_parent)?;
    let home = Home::open(&options.dir)?;
    let lock = match home.lock_keeper().map_err(gantry_store::OpenError::from)? {
        Keeper::Ours(lock) => lock,
        Keeper::Other { pid } => return Err(OpenError::Kept { dir: options.dir, pid }),
    };
    let before = Record::load(home.layout()).map_err(gantry_store::OpenError::from)?;
    let condition = match put_in_order(&home, &options) {
        Err(error) if is_failure(&error) && home.can_be_read() => Condition::ReadOnly { why: chain(&error) },
        other => other?,
    };
    let engine = match condition {
        Condition::ReadOnly { .. } => Engine::open_read_only(options)?,
        Condition::Sound | Condition::Restored { .. } => Engine::open(options)?,
    };
    let condition = match condition {
        Condition::Restored { record, adopted } => {
            // Commands that had the damaged database open may have made pods until it was replaced.
            let adopted = adopted.and(engine.adopt_pods().map_err(OpenError::Recover)?);
            Condition::Restored { record, adopted: Box::new(adopted) }
        }
        other => other,
    };
    let restored_before = if matches!(condition, Condition::Restored { .. }) { None } else { before };
    Ok(Keeping { engine, condition, restored_before, lock })
}

/// Under the lock on the directory, so that no command makes a new database in between.
fn put_in_order(home: &Home, options: &Options) -> Result<Condition, OpenError> {
    let store = gantry_store::OpenError::from;
    let _lock = home.lock().map_err(store)?;
    let Some(damage) = home.damage()? else {
        home.open_for_writing().map_err(store)?;
        return Ok(Condition::Sound);
    };
    let source = home.source(&damage).map_err(store)?;
    if source.is_none() && home.can_be_read() {
        return serve_read_only(home, format!("{}, and there is no good backup", damage.what));
    }
    let mut adopted = Adopted::default();
    let restored = home.restore(&damage, source.as_ref(), |store| -> Result<_, PodError> {
        let engine = Engine::of(store, options.clone());
        adopted = engine.adopt_all()?;
        Ok(engine.store)
    });
    match restored {
        Ok(record) => {
            home.open_for_writing().map_err(store)?;
            Ok(Condition::Restored { record, adopted: Box::new(adopted) })
        }
        Err(error) => {
            let error = OpenError::Recover(error);
            if !home.can_be_read() {
                return Err(error);
            }
            serve_read_only(home, format!("{}, and it cannot be restored: {}", damage.what, chain(&error)))
        }
    }
}

fn serve_read_only(home: &Home, why: String) -> Result<Condition, OpenError> {
    home.close_for_writing(&why).map_err(gantry_store::OpenError::from)?;
    Ok(Condition::ReadOnly { why })
}

/// Whether the disk did not do what it should, which says nothing of the database.
fn is_failure(error: &OpenError) -> bool {
    match error {
        OpenError::Store(gantry_store::OpenError::Store(error)) => {
            matches!(error.kind(), ErrorKind::Internal | ErrorKind::Exhausted | ErrorKind::Unavailable)
        }
        _ => false,
    }
}

/// A failure with its causes, in one line.
fn chain(error: &OpenError) -> String {
    let mut text = error.to_string();
    let mut last = text.clone();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let message = error.to_string();
        // A transparent wrapper shows as what it wraps: once is enough.
        if message != last {
            text = format!("{text}: {message}");
        }
        last = message;
        cause = error.source();
    }
    text
}

impl Condition {
    /// What is to be said of it, for people: one line each; nothing of a sound one.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Sound => Vec::new(),
            Self::ReadOnly { why } => vec![format!("{why}: serving it read-only; 'gantry doctor' says what to do")],
            Self::Restored { record, adopted } => {
                let mut lines = vec![restored(record)];
                lines.extend(adopted.lines());
                lines.push(images_since(record));
                lines
            }
        }
    }
}

/// What a record says, in one line.
pub(crate) fn restored(record: &Record) -> String {
    let from = match &record.backup {
        Some((path, at)) => format!("from {}, made {}", path.display(), shown(*at)),
        None => "from the directories of the pods alone, for there was no good backup".to_owned(),
    };
    format!(
        "{}; it was restored at {} {from}; the damaged one is in {}",
        record.damage,
        shown(record.at),
        record.aside.display()
    )
}

fn images_since(record: &Record) -> String {
    let since = record.backup.as_ref().map_or(String::new(), |(_, at)| format!(" fetched since {}", shown(*at)));
    format!("images{since} have lost their names: fetch them again")
}

/// To the second, for people.
fn shown(at: Timestamp) -> String {
    at.rfc3339().as_str().get(..19).unwrap_or_default().to_owned() + "Z"
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_store::StoreError;

    #[test]
    fn a_disk_that_fails_says_nothing_of_the_database() {
        let cause = || "disk I/O error".to_owned().into();
        let of = |error: StoreError| OpenError::Store(gantry_store::OpenError::Store(error));
        let doing = "check the database";
        for (error, want) in [
            (of(StoreError::Database { doing, source: cause() }), true),
            (of(StoreError::Full { doing, source: cause() }), true),
            (of(StoreError::Damaged { doing, source: cause() }), false),
            (of(StoreError::ReadOnly { doing, source: cause() }), false),
            (OpenError::CgroupParent("x".to_owned()), false),
        ] {
            assert_eq!(is_failure(&error), want, "{error}");
        }
        let failed = chain(&of(StoreError::Database { doing, source: cause() }));
        assert_eq!(failed, "cannot check the database: the database failed: disk I/O error");
    }

    #[test]
    fn one_keeper_and_a_fresh_directory_is_sound() {
        let home = tempfile::tempdir().unwrap();
        let options = Options::new(home.path().join("data"));
        let keeping = open_for_keeping(options.clone()).map_err(|error| error.to_string()).unwrap();
        assert_eq!((&keeping.condition, keeping.condition.lines().len()), (&Condition::Sound, 0));
        assert!(keeping.condition.can_write() && keeping.restored_before.is_none());
        let second = open_for_keeping(options).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(second.contains(&format!("process {}", std::process::id())), "{second}");
    }
}
