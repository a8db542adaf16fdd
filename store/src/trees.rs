//! Layers: one directory each, shared by all images that contain the layer, in the form that overlayfs mounts.
//!
//! To add one: lock its name, check whether it is committed ([`Store::layer`]), else [`Trees::stage_layer`], fill the
//! staging directory, [`Store::commit_layers`], and keep the lock, shared from then on ([`Trees::share`]), until the
//! image that refers to it is committed. To use one that is committed: [`Trees::try_share_layer`], then check.
//!
//! The lock of a layer may be held for long, by a fetch from a slow registry. A fetch that has waited long enough
//! stages the layer without it ([`Trees::stage_unlocked_layer`]). So commits exclude each other, and the collector, by
//! another lock, that of the directory of all layers: the second one finds the layer committed.
//!
//! A `kill -9` leaves an unlocked staging directory or, after the rename, a tree without a row. Neither counts as a
//! layer, and both are garbage-collected.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gantry_model::{Digest, ErrorKind, Kind};
use rusqlite::{OptionalExtension as _, Transaction, params};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;

use crate::contents::FreshList;
use crate::db::Sync;
use crate::lock::{LockMode, lock_within, open_dir, open_lock_file, still_named, sync_dir, try_lock};
use crate::pods::row::Columns;
use crate::tmp::{self, Scrap};
use crate::{DirInDeletion, Layout, Store, StoreError, Sums, contents};

/// Timeout of waiting for another process that commits or collects layers: it renames directories and writes rows, of
/// which each may wait for the disk.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A committed layer, or one to be committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerRow {
    /// Its chain id (OCI image specification, config, "Layer `ChainID`").
    pub chain: Digest,
    /// The digest of its tar archive.
    pub diff_id: Digest,
    /// The chain id of the layer below; `None` for the lowest.
    pub parent: Option<Digest>,
    /// Bytes of its files.
    pub size: u64,
    /// Number of its files, directories and links.
    pub entries: u64,
}

/// Layers could not be committed.
#[derive(Debug, Error)]
pub enum CommitLayersError {
    /// The directory was staged for another layer.
    #[error("layer {row} cannot be committed from what was staged for {staged}")]
    Mismatch {
        /// The layer that was staged.
        staged: Digest,
        /// The layer to be committed.
        row: Digest,
    },
    /// The layer below is not committed, and not among these.
    #[error("layer {chain} cannot be committed without the layer below it, {parent}")]
    NoParent {
        /// The layer.
        chain: Digest,
        /// The layer below.
        parent: Digest,
    },
    /// The database or the disk.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for CommitLayersError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Mismatch { .. } => ErrorKind::Internal,
            Self::NoParent { .. } => ErrorKind::NotFound,
            Self::Store(error) => error.kind(),
        }
    }
}

/// The exclusive right to a layer: to stage and commit it, or to collect it. Ends on drop, and with its process.
#[derive(Debug)]
pub struct LayerLock {
    chain: Digest,
    file: OwnedFd,
}

impl LayerLock {
    /// The layer.
    #[must_use]
    pub fn chain(&self) -> &Digest {
        &self.chain
    }
}

/// A shared lock of a committed layer, which is not collected while the lock is held. Ends on drop, and with its
/// process.
#[derive(Debug)]
pub struct SharedLayerLock {
    _file: OwnedFd,
}

/// An empty directory to unpack a layer into. Removed on drop unless it was committed.
#[derive(Debug)]
pub struct Staging {
    chain: Digest,
    path: PathBuf,
    // Before `dir`: it is removed while it is still locked.
    scrap: Scrap,
    dir: OwnedFd,
    sums: Option<Sums>,
    disk: Arc<OwnedFd>,
    /// Whether the caller holds the lock of the layer.
    is_locked: bool,
}

/// A layer that was listed and synced, to be committed.
struct FinishedLayer {
    staging: Staging,
    row: LayerRow,
    /// `None`: the layer has no checksums.
    list: Option<FreshList>,
}

/// What a commit leaves to its caller.
struct Placed {
    /// Shares of the locks of layers that were staged without them.
    locks: Vec<SharedLayerLock>,
    orphans: Vec<DirInDeletion>,
    /// Layers that were committed before.
    unneeded: Vec<FinishedLayer>,
}

impl Staging {
    /// Records the checksums of the files written into this directory, so that later damage is found.
    pub fn set_sums(&mut self, sums: Sums) {
        self.sums = Some(sums);
    }

    /// The directory, opened (and locked through this descriptor: duplicates keep the lock).
    #[must_use]
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Its path until it is committed.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The layer it is staged for.
    #[must_use]
    pub fn chain(&self) -> &Digest {
        &self.chain
    }
}

/// Locks and staging directories of layers, which need no database. For threads, which cannot share a [`Store`].
#[derive(Debug, Clone)]
pub struct Trees {
    layout: Layout,
    /// A directory of the file system, opened before the first layer was staged. The kernel reports an error of writing
    /// back once to each open file: this one misses none, whoever else syncs.
    disk: Arc<OnceLock<Arc<OwnedFd>>>,
}

impl Trees {
    /// Locks a layer, waiting until the deadline; `waiting` is called once when another process holds it.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when the deadline has passed; [`StoreError::Io`].
    pub fn lock_layer(
        &self,
        chain: &Digest,
        deadline: Duration,
        waiting: &mut dyn FnMut(),
    ) -> Result<LayerLock, StoreError> {
        let path = lock_path(&self.layout, &Layout::tree_name(chain));
        loop {
            let file = open_lock_file(&path)?;
            lock_within(&file, LockMode::Exclusive, &path, deadline, waiting)?;
            // The collector removes the files of layers that are gone, and may just have done so.
            if still_named(&file, &path).map_err(StoreError::io("examine", &path))? {
                return Ok(LayerLock { chain: chain.clone(), file });
            }
        }
    }

    /// Locks a layer together with others that use it, without waiting. `None` if it is being staged, committed or
    /// collected.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn try_share_layer(&self, chain: &Digest) -> Result<Option<SharedLayerLock>, StoreError> {
        let file = try_lock_name(&self.layout, &Layout::tree_name(chain), LockMode::Shared)?;
        Ok(file.map(|file| SharedLayerLock { _file: file }))
    }

    /// Shares the lock of a layer that is committed now: others may use it, but not collect it.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another process took the lock during the change; [`StoreError::Io`].
    pub fn share(&self, lock: LayerLock) -> Result<SharedLayerLock, StoreError> {
        let path = lock_path(&self.layout, &Layout::tree_name(&lock.chain));
        // flock(2) does not promise an atomic change of the mode, but Linux makes one: the collector cannot get the
        // lock in between.
        match try_lock(&lock.file, LockMode::Shared).map_err(StoreError::io("lock", &path))? {
            true => Ok(SharedLayerLock { _file: lock.file }),
            false => Err(StoreError::Locked { path, seconds: 0 }),
        }
    }

    /// Makes an empty directory, mode 0755, to unpack the locked layer into.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn stage_layer(&self, lock: &LayerLock) -> Result<Staging, StoreError> {
        self.stage(&lock.chain, true)
    }

    /// The same for a layer whose lock another process keeps for too long. Both may commit it: the first one counts.
    /// Until an image refers to it, only the other's lock or a share of it keeps it from being collected.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn stage_unlocked_layer(&self, chain: &Digest) -> Result<Staging, StoreError> {
        self.stage(chain, false)
    }

    fn stage(&self, chain: &Digest, is_locked: bool) -> Result<Staging, StoreError> {
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        let disk = self.disk()?;
        let (dir, path) = tmp::make_dir(&self.layout, "layer", mode)?;
        let scrap = Scrap::new(&self.layout, path.clone());
        Ok(Staging { chain: chain.clone(), path, scrap, dir, sums: None, disk, is_locked })
    }

    /// Writes what has been staged so far to the disk, so that the commit has less to write. An error is reported to
    /// the commit.
    pub fn sync_early(&self) {
        if let Ok(dir) = open_dir(&self.layout.trees_dir()) {
            let _found_by_the_commit = rustix::fs::syncfs(&dir);
        }
    }

    fn disk(&self) -> Result<Arc<OwnedFd>, StoreError> {
        if let Some(disk) = self.disk.get() {
            return Ok(Arc::clone(disk));
        }
        let trees = self.layout.trees_dir();
        let opened = open_dir(&trees).map_err(StoreError::io("open", &trees))?;
        Ok(Arc::clone(self.disk.get_or_init(|| Arc::new(opened))))
    }
}

fn lock_path(layout: &Layout, name: &str) -> PathBuf {
    layout.locks_dir().join(name)
}

/// The right to collect the tree of this name, unless another process holds it or a share of it.
pub(crate) fn try_lock_tree(layout: &Layout, name: &str) -> Result<Option<OwnedFd>, StoreError> {
    try_lock_name(layout, name, LockMode::Exclusive)
}

/// Excludes other commits, and the collection of layers, until the descriptor is closed. For short steps only.
fn lock_commits(layout: &Layout) -> Result<OwnedFd, StoreError> {
    let trees = layout.trees_dir();
    let dir = open_dir(&trees).map_err(StoreError::io("open", &trees))?;
    lock_within(&dir, LockMode::Exclusive, &trees, COMMIT_TIMEOUT, &mut || {})?;
    Ok(dir)
}

/// The same without waiting. `None`: another process commits or collects layers.
pub(crate) fn try_lock_commits(layout: &Layout) -> Result<Option<OwnedFd>, StoreError> {
    let trees = layout.trees_dir();
    let dir = open_dir(&trees).map_err(StoreError::io("open", &trees))?;
    let is_free = try_lock(&dir, LockMode::Exclusive).map_err(StoreError::io("lock", &trees))?;
    Ok(is_free.then_some(dir))
}

fn try_lock_name(layout: &Layout, name: &str, mode: LockMode) -> Result<Option<OwnedFd>, StoreError> {
    let path = lock_path(layout, name);
    let file = open_lock_file(&path)?;
    let ours = try_lock(&file, mode).map_err(StoreError::io("lock", &path))?
        && still_named(&file, &path).map_err(StoreError::io("examine", &path))?;
    Ok(ours.then_some(file))
}

/// Whether a process holds the lock of this tree, or a share of it. Creates no file.
pub(crate) fn is_locked(layout: &Layout, name: &str) -> Result<bool, StoreError> {
    let path = lock_path(layout, name);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(file) => {
            let free = try_lock(&file, LockMode::Exclusive).map_err(StoreError::io("lock", &path))?;
            Ok(!free)
        }
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(StoreError::io("open the lock", &path)(errno)),
    }
}

impl Store {
    /// Locks and staging directories without the database.
    #[must_use]
    pub fn trees(&self) -> Trees {
        Trees { layout: self.layout.clone(), disk: Arc::default() }
    }

    /// [`Trees::lock_layer`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn lock_layer(
        &self,
        chain: &Digest,
        deadline: Duration,
        waiting: &mut dyn FnMut(),
    ) -> Result<LayerLock, StoreError> {
        self.trees().lock_layer(chain, deadline, waiting)
    }

    /// [`Trees::stage_layer`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn stage_layer(&self, lock: &LayerLock) -> Result<Staging, StoreError> {
        self.trees().stage_layer(lock)
    }

    /// A committed layer: one that has both its row and its directory.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn layer(&self, chain: &Digest) -> Result<Option<LayerRow>, StoreError> {
        let row = self
            .conn
            .prepare_cached("SELECT chain, diff_id, parent, size, entries FROM layer WHERE chain = ?1")
            .and_then(|mut one| one.query_row([chain.to_string()], read).optional())
            .map_err(StoreError::sql("read the layer"))?;
        let path = self.layout.tree_dir(chain);
        match rustix::fs::lstat(&path) {
            Ok(_) => Ok(row),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(StoreError::io("examine", &path)(errno)),
        }
    }

    /// The same, unless it was found damaged: a layer that a fetch can use.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn sound_layer(&self, chain: &Digest) -> Result<Option<LayerRow>, StoreError> {
        Ok(self.layer(chain)?.filter(|_| !self.is_damaged(chain)))
    }

    /// Commits layers, durably: all of the file system is synced, the directories are renamed into place, then the rows
    /// are written. The caller holds their locks, but for those that it staged without one. Returns the locks of these
    /// that it could share; the others are still held by the processes that stage them. A layer that is committed
    /// already is left as it is, unless it is damaged.
    ///
    /// # Errors
    /// [`CommitLayersError`]; then no row was written, and renamed directories are collected or replaced later.
    pub fn commit_layers(&self, layers: Vec<(Staging, LayerRow)>) -> Result<Vec<SharedLayerLock>, CommitLayersError> {
        let finished = self.sync_layers(layers)?;
        let commits = lock_commits(&self.layout)?;
        let Placed { locks, orphans, unneeded } = self.place_layers(finished)?;
        // Deleting whole directories may take long.
        drop(commits);
        drop(unneeded);
        for orphan in orphans {
            let _left_for_the_next_collection = orphan.delete();
        }
        Ok(locks)
    }

    /// Lists staged layers and syncs them, before other commits are excluded: it may take long.
    fn sync_layers(&self, layers: Vec<(Staging, LayerRow)>) -> Result<Vec<FinishedLayer>, CommitLayersError> {
        let mut finished = Vec::new();
        for (staging, row) in layers {
            if staging.chain != row.chain {
                return Err(CommitLayersError::Mismatch { staged: staging.chain.clone(), row: row.chain });
            }
            let list = staging.sums.as_ref().map(|sums| contents::write(&self.layout, staging.dir.as_fd(), sums));
            let list = list.transpose()?;
            finished.push(FinishedLayer { staging, row, list });
        }
        let mut disks: Vec<&Arc<OwnedFd>> = finished.iter().map(|layer| &layer.staging.disk).collect();
        disks.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for disk in disks {
            let trees = self.layout.trees_dir();
            rustix::fs::syncfs(disk).map_err(StoreError::io("sync the file system of", &trees))?;
        }
        Ok(finished)
    }

    /// Places synced layers and writes their rows, while other commits are excluded.
    fn place_layers(&self, layers: Vec<FinishedLayer>) -> Result<Placed, CommitLayersError> {
        const DOING: &str = "commit the layers";
        let among: BTreeSet<Digest> = layers.iter().map(|layer| layer.row.chain.clone()).collect();
        let (mut fresh, mut unneeded, mut locks) = (Vec::new(), Vec::new(), Vec::new());
        for layer in layers {
            let row = &layer.row;
            for parent in row.parent.iter().filter(|&parent| !among.contains(parent)) {
                if self.layer(parent)?.is_none() {
                    return Err(CommitLayersError::NoParent { chain: row.chain.clone(), parent: parent.clone() });
                }
            }
            // Before the row: the process that held the lock may have ended in the meantime.
            if !layer.staging.is_locked {
                locks.extend(self.trees().try_share_layer(&row.chain)?);
            }
            match self.sound_layer(&row.chain)? {
                Some(_) => unneeded.push(layer),
                None => fresh.push(layer),
            }
        }
        let (mut rows, mut orphans) = (Vec::new(), Vec::new());
        for FinishedLayer { staging, row, list } in fresh {
            orphans.extend(self.place(staging)?);
            contents::publish(&self.layout, &Layout::tree_name(&row.chain), list)?;
            rows.push(row);
        }
        if !rows.is_empty() {
            sync_dir(&self.layout.trees_dir())?;
            self.write(DOING, Sync::Now, |tx| insert(tx, &rows).map_err(StoreError::sql(DOING)))?;
        }
        Ok(Placed { locks, orphans, unneeded })
    }

    /// Renames a staged directory to its final name. An existing directory without a row was left by a `kill -9`, and
    /// is returned for deletion. One with a row is damaged; it stays under another name as long as pods may have it
    /// mounted ([`Self::sweep_images`]).
    fn place(&self, staging: Staging) -> Result<Option<DirInDeletion>, StoreError> {
        let path = self.layout.tree_dir(&staging.chain);
        let orphan = if self.layer(&staging.chain)?.is_some() {
            let replaced = tmp::fresh_name(&replaced_name(&Layout::tree_name(&staging.chain)))?;
            match rustix::fs::rename(&path, self.layout.trees_dir().join(replaced)) {
                Ok(()) | Err(Errno::NOENT) => None,
                Err(errno) => return Err(StoreError::io("move out of the way", &path)(errno)),
            }
        } else {
            tmp::move_layer_aside(&self.layout, &path, "orphan")?
        };
        rustix::fs::rename(&staging.path, &path).map_err(StoreError::io("rename a layer to", &path))?;
        staging.scrap.keep();
        Ok(orphan)
    }
}

/// The prefix of names of replaced directories of this layer.
fn replaced_name(tree: &str) -> String {
    format!("{REPLACED}{tree}")
}

/// The name of the layer whose damaged directory this was.
pub(crate) fn layer_of_replaced(name: &str) -> Option<&str> {
    name.strip_prefix(REPLACED)?.split('-').next()
}

const REPLACED: &str = "replaced-";

fn insert(tx: &Transaction<'_>, rows: &[LayerRow]) -> rusqlite::Result<()> {
    // The row of a lost directory exists already, and is now true again.
    let mut insert = tx.prepare_cached(
        "INSERT INTO layer (chain, diff_id, parent, size, entries) VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT (chain) DO UPDATE SET diff_id = excluded.diff_id, parent = excluded.parent,
                size = excluded.size, entries = excluded.entries",
    )?;
    for row in rows {
        let parent = row.parent.as_ref().map(ToString::to_string);
        insert.execute(params![row.chain.to_string(), row.diff_id.to_string(), parent, row.size, row.entries])?;
    }
    Ok(())
}

/// For a layer that was found on the disk: an existing row has better data.
pub(crate) fn insert_unless_known(tx: &Transaction<'_>, row: &LayerRow) -> rusqlite::Result<()> {
    let known = tx.prepare_cached("SELECT 1 FROM layer WHERE chain = ?1")?.exists([row.chain.to_string()])?;
    if known { Ok(()) } else { insert(tx, std::slice::from_ref(row)) }
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<LayerRow> {
    let mut columns = Columns::new(row);
    Ok(LayerRow {
        chain: columns.parsed()?,
        diff_id: columns.parsed()?,
        parent: columns.parsed_option()?,
        size: columns.get()?,
        entries: columns.get()?,
    })
}
