//! Named volumes: directories that outlive the pods that mount them.
//!
//! On creation, a volume's directory is complete and durable before its row is written. On removal, the row is durably
//! marked as being removed before the directory is moved to `tmp/`; its content is deleted after the row, without the
//! lock. So a `kill -9` or a power cut leaves either a directory without a row, for which [`Store::settle_volumes`]
//! writes one (data is never lost because a row is missing), or a marked row, whose removal is finished. Creating and
//! removing volumes takes a lock. Referring to a volume ([`Store::insert_pod`]) needs no lock: a marked row cannot be
//! referred to, and a row that is referred to cannot be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use gantry_model::{ErrorKind, Kind, PodId, Timestamp, VolumeName};
use rusqlite::{Connection, OptionalExtension as _, params};
use rustix::fs::{Mode, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::db::{BUSY_TIMEOUT, Sync};
use crate::lock::{LockMode, lock_within, open_lock_file, sync_dir, try_lock};
use crate::pods::row::{Columns, map_text};
use crate::sweep::list_names;
use crate::tmp::{self, DirInDeletion, Scrap};
use crate::{Store, StoreError};

/// A named volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRow {
    /// Its name.
    pub name: VolumeName,
    /// The time of its creation.
    pub created: Timestamp,
    /// Labels of the user.
    pub labels: BTreeMap<String, String>,
    /// The pods that mount it, in any phase.
    pub pods: BTreeSet<PodId>,
}

/// A copy of the row in the volume's directory, in case the row is lost.
#[derive(Serialize, Deserialize)]
struct Description {
    created: i64,
    labels: BTreeMap<String, String>,
}

/// A named volume could not be removed.
#[derive(Debug, Error)]
pub enum RemoveVolumeError {
    /// There is none.
    #[error("there is no volume '{0}': 'gantry volume list' lists the volumes")]
    NotFound(VolumeName),
    /// Pods refer to it.
    #[error("volume '{name}' is used by {}", users_text(pods))]
    InUse {
        /// The volume.
        name: VolumeName,
        /// The pods that use it, at least one.
        pods: BTreeSet<PodId>,
    },
    /// The database or the disk.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for RemoveVolumeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::InUse { .. } => ErrorKind::Refused,
            Self::Store(error) => error.kind(),
        }
    }
}

/// `pod X: remove it first`, or the pods.
fn users_text(pods: &BTreeSet<PodId>) -> String {
    const SHOWN: usize = 5;
    let mut some: Vec<String> = pods.iter().take(SHOWN).map(PodId::to_string).collect();
    if pods.len() > SHOWN {
        some.push(format!("{} more", pods.len() - SHOWN));
    }
    match pods.len() {
        1 => format!("pod {}: remove it first", some.concat()),
        _ => format!("pods {}: remove those first", some.join(", ")),
    }
}

impl Store {
    /// Creates a named volume durably; false if it exists already.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn create_volume(&self, name: &VolumeName, labels: &BTreeMap<String, String>) -> Result<bool, StoreError> {
        let lock = self.lock_volumes()?;
        let removed = match self.volume_state(name)? {
            Some(State::Kept) => return Ok(false),
            Some(State::Deleting) => self.finish_removal(name)?,
            None => None,
        };
        let description = Description { created: crate::now().0, labels: labels.clone() };
        let is_new = self.make_volume_dir(name, &description)?;
        // An existing directory is kept and described as it is.
        let description = if is_new { description } else { self.describe(name) };
        self.insert_volume(name, &description)?;
        drop(lock);
        if let Some(removed) = removed {
            // The new volume does not depend on it; the next collection reports why it cannot be deleted.
            let _left_for_the_sweep = removed.delete();
        }
        Ok(is_new)
    }

    /// All named volumes, by name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn volumes(&self) -> Result<Vec<VolumeRow>, StoreError> {
        self.read_volumes(None)
    }

    /// The volume with this name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn volume(&self, name: &VolumeName) -> Result<Option<VolumeRow>, StoreError> {
        Ok(self.read_volumes(Some(name))?.pop())
    }

    fn read_volumes(&self, name: Option<&VolumeName>) -> Result<Vec<VolumeRow>, StoreError> {
        const DOING: &str = "read the volumes";
        let read = |conn: &Connection| -> rusqlite::Result<Vec<VolumeRow>> {
            let mut all = conn.prepare_cached(
                "SELECT name, created, labels FROM volume WHERE deleting = 0 AND (?1 IS NULL OR name = ?1) ORDER BY name",
            )?;
            let mut pods = conn.prepare_cached("SELECT pod FROM pod_volume WHERE volume = ?1")?;
            let rows = all.query_map([name.map(VolumeName::as_str)], |row| {
                let mut columns = Columns::new(row);
                let (name, created) = (columns.parsed::<VolumeName>()?, Timestamp(columns.get()?));
                Ok(VolumeRow { name, created, labels: columns.map()?, pods: BTreeSet::new() })
            })?;
            rows.map(|row| {
                let mut row = row?;
                let users = pods.query_map([row.name.as_str()], |row| Columns::new(row).parsed())?;
                row.pods = users.collect::<rusqlite::Result<_>>()?;
                Ok(row)
            })
            .collect()
        };
        self.read(DOING, |tx| read(tx).map_err(StoreError::sql(DOING)))
    }

    /// Durably removes a volume that no pod refers to, with its contents; returns the bytes freed.
    ///
    /// # Errors
    /// [`RemoveVolumeError`]. [`Store::settle_volumes`] finishes a removal that failed or was killed; the next garbage
    /// collection deletes the rest in `tmp/`.
    pub fn remove_volume(&self, name: &VolumeName) -> Result<u64, RemoveVolumeError> {
        const DOING: &str = "remove the volume";
        let lock = self.lock_volumes()?;
        let mark = || {
            self.write(DOING, Sync::Now, |tx| -> Result<(), RemoveVolumeError> {
                let sql = || StoreError::sql(DOING);
                let users = tx.prepare_cached("SELECT pod FROM pod_volume WHERE volume = ?1");
                let pods: BTreeSet<PodId> = users
                    .and_then(|mut users| users.query_map([name.as_str()], |row| Columns::new(row).parsed())?.collect())
                    .map_err(sql())?;
                if !pods.is_empty() {
                    return Err(RemoveVolumeError::InUse { name: name.clone(), pods });
                }
                let marked = tx
                    .prepare_cached("UPDATE volume SET deleting = 1 WHERE name = ?1")
                    .and_then(|mut update| update.execute([name.as_str()]))
                    .map_err(sql())?;
                if marked == 0 { Err(RemoveVolumeError::NotFound(name.clone())) } else { Ok(()) }
            })
        };
        match mark() {
            // Removal has to work on a full disk, so release the reserved space for it.
            Err(RemoveVolumeError::Store(error)) if error.is_full() => {
                self.make_room()?;
                mark()?;
            }
            other => other?,
        }
        let removed = self.finish_removal(name)?;
        drop(lock);
        match removed {
            Some(removed) => Ok(removed.delete()?),
            None => Ok(0),
        }
    }

    /// Finishes interrupted removals, and writes rows for directories that have none. Idempotent.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn settle_volumes(&self) -> Result<(), StoreError> {
        if self.unfinished_volumes()?.is_empty() {
            return Ok(());
        }
        let lock = self.lock_volumes()?;
        self.settle_locked(lock)
    }

    /// [`Self::settle_volumes`], but does nothing while another process holds the lock.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn try_settle_volumes(&self) -> Result<(), StoreError> {
        if self.unfinished_volumes()?.is_empty() {
            return Ok(());
        }
        let path = self.layout.volumes_lock();
        let lock = open_lock_file(&path)?;
        if try_lock(&lock, LockMode::Exclusive).map_err(StoreError::io("lock", &path))? {
            self.settle_locked(lock)?;
        }
        Ok(())
    }

    /// [`Self::settle_volumes`] for a database that was restored from a backup. Where a row says that a removal has
    /// begun and the directory exists, the directory is kept: the backup may be of the middle of that removal, and the
    /// directory that of a volume made since under the same name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn adopt_volumes(&self) -> Result<(), StoreError> {
        if self.unfinished_volumes()?.is_empty() {
            return Ok(());
        }
        let lock = self.lock_volumes()?;
        for text in self.unfinished_volumes()? {
            let Ok(name) = text.parse::<VolumeName>() else { continue };
            if matches!(self.volume_state(&name)?, Some(State::Deleting)) && self.has_volume_dir(&name)? {
                self.cancel_removal(&name, &self.describe(&name))?;
            }
        }
        self.settle_locked(lock)
    }

    fn has_volume_dir(&self, name: &VolumeName) -> Result<bool, StoreError> {
        let path = self.layout.volume_dir(name);
        match rustix::fs::lstat(&path) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(StoreError::io("examine", &path)(errno)),
        }
    }

    /// Makes a volume whose removal has begun an ordinary one again, with the description in its directory.
    fn cancel_removal(&self, name: &VolumeName, description: &Description) -> Result<(), StoreError> {
        const DOING: &str = "keep the volume";
        self.write(DOING, Sync::Now, |tx| {
            tx.prepare_cached("UPDATE volume SET deleting = 0, created = ?2, labels = ?3 WHERE name = ?1")
                .and_then(|mut update| {
                    update.execute(params![name.as_str(), description.created, map_text(&description.labels)?])
                })
                .map(drop)
                .map_err(StoreError::sql(DOING))
        })
    }

    /// Settles the volumes, releases the lock, and then deletes the content of those that were removed.
    fn settle_locked(&self, lock: OwnedFd) -> Result<(), StoreError> {
        let mut removed = Vec::new();
        for text in self.unfinished_volumes()? {
            // Skip entries that are not names of volumes; `check` reports them.
            let Ok(name) = text.parse::<VolumeName>() else { continue };
            match self.volume_state(&name)? {
                Some(State::Deleting) => removed.extend(self.finish_removal(&name)?),
                Some(State::Kept) => {}
                None => self.insert_volume(&name, &self.describe(&name))?,
            }
        }
        drop(lock);
        for aside in removed {
            aside.delete()?;
        }
        Ok(())
    }

    /// Names in `volumes/` without a row, and those of rows marked for removal. Another process may be working on them.
    pub(crate) fn unfinished_volumes(&self) -> Result<Vec<String>, StoreError> {
        let mut known = BTreeMap::new();
        let rows = self.conn.prepare_cached("SELECT name, deleting FROM volume");
        let rows = rows.and_then(|mut all| {
            let rows = all.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?)))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        });
        known.extend(rows.map_err(StoreError::sql("read the volumes"))?);
        let dir = self.layout.volumes_dir();
        let mut unfinished: Vec<String> =
            known.iter().filter(|(_, deleting)| **deleting).map(|(name, _)| name.clone()).collect();
        if dir.is_dir() {
            unfinished.extend(list_names(&dir)?.into_iter().filter(|name| !known.contains_key(name)));
        }
        Ok(unfinished)
    }

    pub(crate) fn lock_volumes(&self) -> Result<OwnedFd, StoreError> {
        let path = self.layout.volumes_lock();
        let lock = open_lock_file(&path)?;
        lock_within(&lock, LockMode::Exclusive, &path, BUSY_TIMEOUT, &mut || {})?;
        Ok(lock)
    }

    fn volume_state(&self, name: &VolumeName) -> Result<Option<State>, StoreError> {
        let state = self
            .conn
            .prepare_cached("SELECT deleting FROM volume WHERE name = ?1")
            .and_then(|mut one| one.query_row([name.as_str()], |row| row.get::<_, bool>(0)).optional());
        let deleting = state.map_err(StoreError::sql("read the volume"))?;
        Ok(deleting.map(|deleting| if deleting { State::Deleting } else { State::Kept }))
    }

    fn insert_volume(&self, name: &VolumeName, description: &Description) -> Result<(), StoreError> {
        const DOING: &str = "write down the volume";
        self.write(DOING, Sync::Now, |tx| {
            tx.prepare_cached("INSERT INTO volume (name, created, labels) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING")
                .and_then(|mut insert| {
                    insert.execute(params![name.as_str(), description.created, map_text(&description.labels)?])
                })
                .map(drop)
                .map_err(StoreError::sql(DOING))
        })
    }

    /// Creates the directory of a volume durably; false if it exists already.
    fn make_volume_dir(&self, name: &VolumeName, description: &Description) -> Result<bool, StoreError> {
        let above = self.layout.volumes_dir();
        match rustix::fs::mkdir(&above, Mode::RWXU) {
            Ok(()) => sync_dir(self.layout.root())?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(StoreError::io("create", &above)(errno)),
        }
        let (_lock, temporary) = tmp::make_dir(&self.layout, "volume", Mode::RWXU)?;
        let scrap = Scrap::new(&self.layout, temporary.clone());
        let data = temporary.join("data");
        rustix::fs::mkdir(&data, Mode::RWXU).map_err(StoreError::io("create", &data))?;
        rustix::fs::chmod(&data, Mode::from_raw_mode(0o755)).map_err(StoreError::io("change the mode of", &data))?;
        let text = serde_json::to_vec(description).map_err(std::io::Error::from);
        let path = temporary.join("volume.json");
        text.and_then(|text| write_synced(&path, &text)).map_err(StoreError::io("write", &path))?;
        let path = temporary.join("fresh");
        write_synced(&path, b"").map_err(StoreError::io("write", &path))?;
        sync_dir(&data)?;
        sync_dir(&temporary)?;
        let (path, cwd) = (self.layout.volume_dir(name), rustix::fs::CWD);
        match rustix::fs::renameat_with(cwd, &temporary, cwd, &path, RenameFlags::NOREPLACE) {
            Ok(()) => scrap.keep(),
            Err(Errno::EXIST) => return Ok(false),
            Err(errno) => return Err(StoreError::io("create", &path)(errno)),
        }
        sync_dir(&above)?;
        Ok(true)
    }

    /// The description in a volume's directory; without one, the volume was created when the directory was last
    /// changed.
    fn describe(&self, name: &VolumeName) -> Description {
        let dir = self.layout.volume_dir(name);
        let said = std::fs::read(dir.join("volume.json")).ok().and_then(|text| serde_json::from_slice(&text).ok());
        said.unwrap_or_else(|| {
            let modified = std::fs::symlink_metadata(&dir).and_then(|found| found.modified());
            let modified = modified.ok().filter(|time| *time >= std::time::UNIX_EPOCH).map(Timestamp::from);
            Description { created: modified.unwrap_or_else(crate::now).0, labels: BTreeMap::new() }
        })
    }

    /// Moves the directory of a volume whose removal has begun to `tmp/`, durably, and deletes its row. The caller
    /// holds the lock, and deletes the directory when it has released it.
    fn finish_removal(&self, name: &VolumeName) -> Result<Option<DirInDeletion>, StoreError> {
        let aside = tmp::move_aside(&self.layout, &self.layout.volume_dir(name), "deleted-volume")?;
        if aside.is_some() {
            sync_dir(&self.layout.volumes_dir())?;
        }
        match (self.delete_row_of_removed(name), &aside) {
            // A full disk has no room to delete the row: deleting the content first makes it.
            (Err(error), Some(aside)) if error.is_full() => {
                aside.delete()?;
                self.delete_row_of_removed(name)?;
            }
            (deleted, _) => deleted?,
        }
        Ok(aside)
    }

    fn delete_row_of_removed(&self, name: &VolumeName) -> Result<(), StoreError> {
        const DOING: &str = "remove the volume";
        self.write(DOING, Sync::Soon, |tx| {
            tx.prepare_cached("DELETE FROM volume WHERE name = ?1 AND deleting = 1")
                .and_then(|mut delete| delete.execute([name.as_str()]))
                .map(drop)
                .map_err(StoreError::sql(DOING))
        })
    }
}

/// The state of a volume's row.
enum State {
    Kept,
    Deleting,
}

fn write_synced(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::File::options().write(true).create_new(true).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}
