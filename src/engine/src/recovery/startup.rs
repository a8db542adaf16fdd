//! gantryd's start: a database that is sound, restored, or served read-only. Commands never restore.
//!
//! | the database is | and | becomes |
//! |---|---|---|
//! | sound | | [`Condition::Sound`] |
//! | damaged | there is a good backup | [`Condition::Restored`] from the newest whose rows can all be read |
//! | damaged | there is none, and all its rows can be read | [`Condition::ReadOnly`]: nothing is lost that was not lost before |
//! | damaged | there is none, and it cannot be read, or is gone | [`Condition::Restored`] from the disk alone |
//! | damaged | it cannot be restored (the disk is full), and can be read | [`Condition::ReadOnly`] |
//! | unknown, because the disk fails or is full | it can be read | [`Condition::ReadOnly`], for gantryd only |
//! | another program's, newer, or not accessible | | refused |
//!
//! The store's `restore.rs` describes the steps of a restore; its rows are described in
//! [`crate::recovery::adopt`]. Running pods are not affected: nothing here touches a locked one.

use std::path::Path;

use gantry_model::error::chain;
use gantry_model::{ErrorKind, Kind as _, Timestamp};
use gantry_store::{Backup, Damage, DataDir, Keeper, KeeperLock, Record};

use crate::recovery::adopt::Adopted;
use crate::{Engine, OpenError, Options, PodError};

/// The condition in which the database is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Intact.
    Sound,
    /// It was damaged, and has been replaced.
    Restored {
        /// The damage, and the replacement.
        record: Record,
        /// The objects that were re-imported from the disk.
        adopted: Box<Adopted>,
    },
    /// Damaged, without a usable backup: it can be read, and every command that changes something fails.
    ReadOnly {
        /// The cause.
        why: String,
    },
}

impl Condition {
    /// Whether rows can be written.
    #[must_use]
    pub fn can_write(&self) -> bool {
        !matches!(self, Self::ReadOnly { .. })
    }
}

/// The result of gantryd's start.
pub struct Keeping {
    /// Opened for writing, unless the condition is [`Condition::ReadOnly`].
    pub engine: Engine,
    /// The condition of the database.
    pub condition: Condition,
    /// The objects that a sound database lacked and that were re-imported.
    pub found: Adopted,
    /// An earlier restore, as long as its record exists.
    pub restored_before: Option<Record>,
    /// The ownership of the data directory, which gantryd holds as long as it runs.
    pub lock: KeeperLock,
}

/// Opens a data directory for gantryd, which owns it: checks the database first, and restores it if it is damaged.
///
/// # Errors
/// [`OpenError`], also when another gantryd owns it.
pub fn open_for_keeping(options: Options) -> Result<Keeping, OpenError> {
    let home = DataDir::open(&options.dir)?;
    let lock = match home.lock_keeper().map_err(gantry_store::OpenError::from)? {
        Keeper::Ours(lock) => lock,
        Keeper::Other { pid } => return Err(OpenError::Kept { dir: options.dir, pid }),
    };
    // Informational: a record that cannot be read does not keep gantryd from starting, and `doctor` reports it.
    let before = Record::load(home.layout()).unwrap_or_default();
    let condition = match put_in_order(&home, &options) {
        Err(error) if is_failure(&error) && home.can_be_read() => Condition::ReadOnly { why: chain(&error) },
        other => other?,
    };
    let (engine, condition) = match condition {
        Condition::ReadOnly { .. } => (Engine::open_read_only(options)?, condition),
        Condition::Sound | Condition::Restored { .. } => match Engine::open(options.clone()) {
            // The disk is so full that not even the new boot can be recorded.
            Err(error) if is_failure(&error) => {
                (Engine::open_read_only(options)?, Condition::ReadOnly { why: chain(&error) })
            }
            other => (other?, condition),
        },
    };
    let (condition, found) = match condition {
        Condition::Restored { record, adopted } => {
            let adopted = Box::new(adopted.and(engine.adopt_late(true)));
            (Condition::Restored { record, adopted }, Adopted::default())
        }
        // Rows can be lost without damage; and the image of a pod that was not adopted may exist now.
        Condition::Sound => (Condition::Sound, engine.adopt_late(false)),
        other @ Condition::ReadOnly { .. } => (other, Adopted::default()),
    };
    let restored_before = if matches!(condition, Condition::Restored { .. }) { None } else { before };
    Ok(Keeping { engine, condition, found, restored_before, lock })
}

/// Whether [`open_for_keeping`] would now open a database for writing, or restore it, after it was opened read-only
/// because the disk failed. A database that is closed for writing, because it is damaged, stays closed.
#[must_use]
pub fn can_be_kept(options: &Options) -> bool {
    let examine = || -> Result<(), OpenError> {
        Engine::open(options.clone())?;
        // Damaged or not: what matters is that the disk can be read.
        DataDir::open(&options.dir)?.damage()?;
        Ok(())
    };
    examine().is_ok()
}

/// Under the lock of the directory, so that no command creates a new database in the meantime.
fn put_in_order(home: &DataDir, options: &Options) -> Result<Condition, OpenError> {
    let store = gantry_store::OpenError::from;
    let _lock = home.lock().map_err(store)?;
    let Some(damage) = home.damage()? else {
        home.open_for_writing().map_err(store)?;
        return Ok(Condition::Sound);
    };
    for source in home.sources(&damage).map_err(store)? {
        match restore(home, options, &damage, Some(&source)) {
            // Of an older format, or in rows that only adopting reads: an older backup may be good.
            Err(error) if error.kind() == ErrorKind::Damaged => {}
            done => return or_read_only(home, &damage, done),
        }
    }
    if home.can_be_read() {
        return serve_read_only(home, format!("{}, and there is no good backup", damage.what));
    }
    or_read_only(home, &damage, restore(home, options, &damage, None))
}

/// Replaces the database by this backup, or by an empty one, and adopts the objects on the disk.
fn restore(home: &DataDir, options: &Options, damage: &Damage, source: Option<&Backup>) -> Result<Condition, PodError> {
    let mut adopted = Adopted::default();
    let record = home.restore(damage, source, |store| -> Result<_, PodError> {
        let engine = Engine::from_store(store, options.clone());
        adopted = engine.adopt_all()?;
        Ok(engine.store)
    })?;
    home.open_for_writing()?;
    Ok(Condition::Restored { record, adopted: Box::new(adopted) })
}

fn or_read_only(home: &DataDir, damage: &Damage, done: Result<Condition, PodError>) -> Result<Condition, OpenError> {
    match done.map_err(OpenError::Recover) {
        Err(error) if home.can_be_read() => {
            serve_read_only(home, format!("{}, and it cannot be restored: {}", damage.what, chain(&error)))
        }
        other => other,
    }
}

fn serve_read_only(home: &DataDir, why: String) -> Result<Condition, OpenError> {
    home.close_for_writing(&why).map_err(gantry_store::OpenError::from)?;
    Ok(Condition::ReadOnly { why })
}

/// Whether the disk failed, which does not prove that the database is damaged.
fn is_failure(error: &OpenError) -> bool {
    match error {
        OpenError::Store(gantry_store::OpenError::Store(error)) => {
            matches!(error.kind(), ErrorKind::Internal | ErrorKind::Exhausted | ErrorKind::Unavailable)
        }
        _ => false,
    }
}

impl Condition {
    /// Messages as shown to users, a line each; none for a sound database.
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

/// A record in one line.
pub(crate) fn restored(record: &Record) -> String {
    let from = match &record.backup {
        Some((path, at)) => format!("from {}, made {}", path.display(), shown(*at)),
        None => "from the directories of the pods alone, for there was no good backup".to_owned(),
    };
    format!("{}; it was restored at {} {from}{}", record.damage, shown(record.at), damaged_in(record))
}

/// Where the damaged database is, as the end of a sentence. Empty for one that was missing.
fn damaged_in(record: &Record) -> String {
    if has_entries(&record.aside) {
        return format!("; the damaged one is in {}", record.aside.display());
    }
    // A restore that was killed may have moved it to a directory of its own.
    let Some(all) = record.aside.parent() else { return String::new() };
    let dirs = std::fs::read_dir(all).into_iter().flatten().flatten();
    match dirs.map(|dir| dir.path()).any(|dir| has_entries(&dir)) {
        true => format!("; damaged ones are in {}", all.display()),
        false => String::new(),
    }
}

/// Whether a directory is not empty, or cannot be read.
fn has_entries(dir: &Path) -> bool {
    std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_some())
}

fn images_since(record: &Record) -> String {
    let since = record.backup.as_ref().map_or(String::new(), |(_, at)| format!(" fetched since {}", shown(*at)));
    format!("images{since} have lost their names: fetch them again")
}

/// To the second, as shown to users.
fn shown(at: Timestamp) -> String {
    at.rfc3339().as_str().get(..19).unwrap_or_default().to_owned() + "Z"
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_store::{DatabaseFailure, StoreError};

    #[test]
    fn io_errors_are_not_database_damage() {
        let cause = || "disk I/O error".to_owned().into();
        let of = |error: StoreError| OpenError::Store(gantry_store::OpenError::Store(error));
        let doing = "check the database";
        for (error, want) in [
            (of(StoreError::Database { doing, failure: DatabaseFailure::Other, source: cause() }), true),
            (of(StoreError::Database { doing, failure: DatabaseFailure::Full, source: cause() }), true),
            (of(StoreError::Database { doing, failure: DatabaseFailure::Damaged, source: cause() }), false),
            (of(StoreError::Database { doing, failure: DatabaseFailure::ReadOnly, source: cause() }), false),
        ] {
            assert_eq!(is_failure(&error), want, "{error}");
        }
        let failed = chain(&of(StoreError::Database { doing, failure: DatabaseFailure::Other, source: cause() }));
        assert_eq!(failed, "cannot check the database: the database failed: disk I/O error");
    }

    #[test]
    fn restores_name_the_damaged_database() {
        let temp = tempfile::tempdir().unwrap();
        let damaged = temp.path().join("damaged");
        for dir in ["killed", "now"] {
            std::fs::create_dir_all(damaged.join(dir)).unwrap();
        }
        let record = Record {
            at: Timestamp(0),
            damage: "the database is missing".to_owned(),
            backup: None,
            aside: damaged.join("now"),
            first_event: 1,
        };
        assert!(restored(&record).ends_with("for there was no good backup"), "{}", restored(&record));
        for (dir, want) in [("killed", "; damaged ones are in DIR"), ("now", "; the damaged one is in DIR/now")] {
            std::fs::write(damaged.join(dir).join("gantry.db"), "").unwrap();
            let want = want.replace("DIR", &damaged.display().to_string());
            assert!(restored(&record).ends_with(&want), "{}", restored(&record));
        }
    }

    #[test]
    fn databases_closed_for_writing_cannot_be_kept() {
        let temp = tempfile::tempdir().unwrap();
        let options = Options::new(temp.path().join("data"));
        assert!(can_be_kept(&options));
        let home = DataDir::open(&options.dir).unwrap();
        home.close_for_writing("damaged").unwrap();
        assert!(!can_be_kept(&options));
        home.open_for_writing().unwrap();
        assert!(can_be_kept(&options));
    }

    /// A restore that finds out late that its backup is unusable continues with an older one.
    #[test]
    fn unusable_backups_fall_back_to_older_ones() {
        let temp = tempfile::tempdir().unwrap();
        let options = Options::new(temp.path().join("data"));
        let (store, chain) = (Engine::open(options.clone()).unwrap().store, format!("sha256:{}", "7".repeat(64)));
        let first = store.back_up_if_due(std::time::Duration::ZERO).unwrap().unwrap();
        let id: gantry_model::Digest = chain.parse().unwrap();
        let lock = store.lock_layer(&id, std::time::Duration::ZERO, &mut || {}).unwrap();
        let row = gantry_store::LayerRow { chain: id.clone(), diff_id: id, parent: None, size: 0, entries: 0 };
        store.commit_layers(vec![(store.stage_layer(&lock).unwrap(), row)]).unwrap();
        let second = store.back_up_if_due(std::time::Duration::ZERO).unwrap().unwrap();
        // No image has the layer, so that only the collection of unused layers reads the row.
        let mut bytes = std::fs::read(&second.path).unwrap();
        let at: Vec<usize> = (0..bytes.len() - 71).filter(|&at| bytes[at..at + 71] == *chain.as_bytes()).collect();
        at.iter().for_each(|&at| bytes[at + 70] = b'x');
        assert!(!at.is_empty());
        std::fs::write(&second.path, bytes).unwrap();
        let (db, wal) = (store.layout().db(), store.layout().wal());
        drop((lock, store));
        std::fs::remove_file(wal).unwrap();
        std::fs::write(db, [7; 50_000]).unwrap();
        let keeping = open_for_keeping(options).map_err(|error| gantry_model::error::chain(&error)).unwrap();
        let Condition::Restored { record, .. } = keeping.condition else { panic!("{:?}", keeping.condition) };
        assert_eq!(record.backup, Some((first.path, first.at)));
    }

    #[test]
    fn only_one_keeper_opens_a_fresh_directory() {
        let home = tempfile::tempdir().unwrap();
        let options = Options::new(home.path().join("data"));
        let keeping = open_for_keeping(options.clone()).map_err(|error| error.to_string()).unwrap();
        assert_eq!((&keeping.condition, keeping.condition.lines().len()), (&Condition::Sound, 0));
        assert!(keeping.condition.can_write() && keeping.restored_before.is_none());
        let second = open_for_keeping(options).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(second.contains(&format!("process {}", std::process::id())), "{second}");
    }
}
