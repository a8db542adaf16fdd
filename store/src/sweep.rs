//! Garbage collection: deletes what nothing refers to and no process works on. Idempotent; the next run completes one
//! that was killed.
//!
//! Deletion takes the lock of the object, and checks again under the lock. An object whose lock is held is skipped,
//! without waiting: the holder of the lock is about to use it.

use std::collections::{BTreeSet, HashSet};
use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use gantry_host::remove;
use gantry_model::{Digest, PodId};

use crate::db::Sync;
use crate::keeper::KEEPER_LOCK;
use crate::layout::VOLUMES_LOCK;
use crate::lock::{LockMode, open_dir, open_lock_file, sync_dir, try_lock};
use crate::pods::row::Columns;
use crate::trees::{layer_of_replaced, try_lock_commits, try_lock_tree};
use crate::{DirInDeletion, Layout, PodState, Store, StoreError, contents, reserve, tmp};

/// The amounts that a garbage collection has deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Bytes of the disk that were freed.
    pub bytes: u64,
    /// Layers, with and without a row.
    pub layers: u64,
    /// Manifests and configurations.
    pub blobs: u64,
}

/// Timeout of waiting for the rows of pods that hold their directories: creating one takes a few milliseconds.
pub(crate) const ROW_TIMEOUT: Duration = Duration::from_millis(500);

/// A layer without a reference from an image or another layer.
const UNUSED: &str = "NOT EXISTS (SELECT 1 FROM image_layer WHERE image_layer.chain = layer.chain)
    AND NOT EXISTS (SELECT 1 FROM layer AS child WHERE child.parent = layer.chain)";

impl Store {
    /// Deletes unreferenced layers and blobs that no process works on, and stale temporaries. On a full disk, data is
    /// deleted before rows. While a pod without a row runs, only temporaries are deleted. Ends this store's claim on
    /// blobs that it has put and not committed.
    ///
    /// # Errors
    /// [`StoreError`], after everything that could be deleted was.
    pub fn sweep_images(&self) -> Result<Swept, StoreError> {
        self.end_blob_lease();
        let temporaries = self.sweep_temporaries();
        let mut swept = Swept { bytes: *temporaries.as_ref().unwrap_or(&0), ..Swept::default() };
        if !self.has_running_pod_without_row()? {
            // All of them: one file that cannot be deleted must not keep the others on the disk.
            let parts = [
                self.sweep_orphans(&mut swept),
                self.sweep_layers(&mut swept),
                self.sweep_blobs(&mut swept),
                self.sweep_locks(),
                self.sweep_contents(),
            ];
            let _filled_by_the_next_collection = self.refill_reserve();
            parts.into_iter().collect::<Result<(), _>>()?;
        }
        temporaries.map(|_| swept)
    }

    /// Deletes the leftovers of dead processes in `tmp/`; returns the bytes freed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn sweep_temporaries(&self) -> Result<u64, StoreError> {
        tmp::sweep(&self.layout)
    }

    /// Frees what can be freed without writing new pages. The next collection reports what could not be deleted.
    pub(crate) fn make_room(&self) -> Result<(), StoreError> {
        reserve::spend(&self.layout)?;
        let _left_for_the_next = (self.sweep_temporaries(), self.sweep_orphans(&mut Swept::default()));
        self.copy_wal();
        // While the space that was set aside is free: the next commits find these pages in the file.
        let _tried_by_the_next_removal = self.add_spare_pages();
        Ok(())
    }

    /// Sets space aside again after a removal has freed some: the reserve, and unused pages of the database file.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn refill_reserve(&self) -> Result<(), StoreError> {
        reserve::fill(&self.layout).and(self.add_spare_pages())
    }

    fn add_spare_pages(&self) -> Result<(), StoreError> {
        let added = reserve::add_spare_pages(&self.conn, &self.layout);
        match added.map_err(|error| error.or_full(|| reserve::is_exhausted(&self.layout))) {
            Ok(true) => self.copy_wal(),
            Ok(false) => {}
            // Another program, or a quota, was faster.
            Err(error) if error.is_full() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Copies the WAL into the database file. A WAL that was copied whole is written from its beginning again, where it
    /// has blocks. If it cannot be copied, it stays as long as it is.
    fn copy_wal(&self) {
        let _stays_as_long = self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }

    /// Whether this database knows all references. A database that is being restored does not yet, and a replaced one
    /// no longer does. Checked under each lock: it may be replaced in the middle of a garbage collection.
    fn is_authoritative(&self) -> Result<bool, StoreError> {
        Ok(self.file.is_some() && self.is_current()?)
    }

    /// Trees without a row.
    fn sweep_orphans(&self, swept: &mut Swept) -> Result<(), StoreError> {
        if !self.is_authoritative()? || self.has_running_pod_without_row()? {
            return Ok(());
        }
        let known = self.tree_names()?;
        let mut done = Ok(());
        for name in list_names(&self.layout.trees_dir())?.into_iter().filter(|name| !known.contains(name)) {
            if let Some(layer) = layer_of_replaced(&name)
                && self.is_of_a_pod(layer)?
            {
                continue;
            }
            done = done.and(self.sweep_orphan(&name, swept));
        }
        done
    }

    /// Whether a pod that may have been started uses this layer: the directory it mounted may have been replaced since.
    fn is_of_a_pod(&self, tree: &str) -> Result<bool, StoreError> {
        let mut chains = self
            .conn
            .prepare_cached(
                "SELECT DISTINCT chain FROM pod
                    JOIN (SELECT pod, image FROM app UNION SELECT pod, image FROM pod_image) AS used ON used.pod = pod.id
                    JOIN image_layer USING (image) WHERE phase IN ('embryo', 'preparing', 'prepared', 'starting', 'running')",
            )
            .map_err(StoreError::sql("list the layers of pods"))?;
        let chains = chains.query_map([], |row| Columns::new(row).parsed::<Digest>());
        let chains: Vec<Digest> =
            chains.and_then(Iterator::collect).map_err(StoreError::sql("list the layers of pods"))?;
        Ok(chains.iter().any(|chain| Layout::tree_name(chain) == tree))
    }

    /// Whether a process holds the directory of a pod that has no row. It may be a pod whose row was lost. Then the
    /// layers of its roots are unknown, so none may be deleted before it has ended or has a row again.
    fn has_running_pod_without_row(&self) -> Result<bool, StoreError> {
        let deadline = Instant::now() + ROW_TIMEOUT;
        let dirs = self.pod_dirs()?;
        let known: HashSet<String> = self
            .conn
            .prepare_cached("SELECT id FROM pod")
            .and_then(|mut all| all.query_map([], |row| row.get(0))?.collect())
            .map_err(StoreError::sql("list the pods"))?;
        for id in dirs.into_iter().filter(|id| !known.contains(&id.to_string())) {
            if self.is_held_without_row(id, deadline)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a process holds the directory of a pod that gets no row before the deadline. A pod in creation has a
    /// locked directory first, and its row soon after.
    pub(crate) fn is_held_without_row(&self, id: PodId, deadline: Instant) -> Result<bool, StoreError> {
        while matches!(self.try_lock_pod(id)?, PodState::Held) && self.pod(id)?.is_none() {
            if Instant::now() >= deadline {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(false)
    }

    /// A tree that had no row a moment ago.
    pub(crate) fn sweep_orphan(&self, name: &str, swept: &mut Swept) -> Result<(), StoreError> {
        let Some(locks) = self.try_lock_to_collect(name)? else { return Ok(()) };
        // It may have been committed before it was locked here.
        if self.is_authoritative()? && !self.has_row_of_tree(name)? {
            self.collect_tree(name, locks, swept)?;
        }
        Ok(())
    }

    /// Deletes a tree. The locks end as soon as it has lost its name: deleting its files may take long.
    fn collect_tree(&self, name: &str, locks: (OwnedFd, OwnedFd), swept: &mut Swept) -> Result<(), StoreError> {
        let aside = unname_tree(&self.layout, name)?;
        drop(locks);
        swept.bytes += aside.map_or(Ok(0), |aside| aside.delete())?;
        swept.layers += 1;
        Ok(())
    }

    /// The right to collect a layer: its lock, and that of commits, because a fetch may commit it without its lock.
    pub(crate) fn try_lock_to_collect(&self, name: &str) -> Result<Option<(OwnedFd, OwnedFd)>, StoreError> {
        let Some(layer) = try_lock_tree(&self.layout, name)? else { return Ok(None) };
        Ok(try_lock_commits(&self.layout)?.map(|commits| (layer, commits)))
    }

    /// Whether a layer with this directory has a row.
    fn has_row_of_tree(&self, name: &str) -> Result<bool, StoreError> {
        let Some(hex) = Layout::hex_of_tree(name) else { return Ok(false) };
        // The character after the last digit.
        let mut one = self
            .conn
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM layer WHERE chain >= 'sha256:' || ?1 AND chain < 'sha256:' || ?1 || 'g')
                     OR EXISTS (SELECT 1 FROM layer WHERE chain >= 'sha512:' || ?1 AND chain < 'sha512:' || ?1 || 'g')",
            )
            .map_err(StoreError::sql("look for the layer"))?;
        one.query_row([hex], |row| row.get(0)).map_err(StoreError::sql("look for the layer"))
    }

    /// Layers without a reference. A child goes before its parent, so one pass may free the next.
    fn sweep_layers(&self, swept: &mut Swept) -> Result<(), StoreError> {
        let mut tried = HashSet::new();
        loop {
            let before = tried.len();
            for chain in self.unused_layers()? {
                if tried.insert(chain.clone()) {
                    self.sweep_layer(&chain, swept)?;
                }
            }
            if tried.len() == before {
                return Ok(());
            }
        }
    }

    pub(crate) fn unused_layers(&self) -> Result<Vec<Digest>, StoreError> {
        self.conn
            .prepare_cached(&format!("SELECT chain FROM layer WHERE {UNUSED} ORDER BY chain"))
            .and_then(|mut all| all.query_map([], |row| Columns::new(row).parsed())?.collect())
            .map_err(StoreError::sql("list the layers"))
    }

    /// The row first, so that a kill in between leaves a tree without a row; except on a full disk, where deleting the
    /// tree makes room for the row's removal. A row without a tree counts as absent ([`Store::layer`]).
    fn sweep_layer(&self, chain: &Digest, swept: &mut Swept) -> Result<(), StoreError> {
        let name = Layout::tree_name(chain);
        let Some(locks) = self.try_lock_to_collect(&name)? else { return Ok(()) };
        let gone = match self.remove_layer_row(chain) {
            Err(error) if error.is_full() && self.is_authoritative()? && self.is_unused(chain)? => {
                swept.bytes += delete_tree(&self.layout, &name)?;
                self.remove_layer_row(chain)?
            }
            other => other?,
        };
        if gone {
            self.collect_tree(&name, locks, swept)?;
        }
        Ok(())
    }

    fn is_unused(&self, chain: &Digest) -> Result<bool, StoreError> {
        self.conn
            .query_row(
                &format!("SELECT count(*) FROM layer WHERE chain = ?1 AND {UNUSED}"),
                [chain.to_string()],
                |row| row.get::<_, u32>(0),
            )
            .map(|count| count == 1)
            .map_err(StoreError::sql("look at the layer"))
    }

    pub(crate) fn remove_layer_row(&self, chain: &Digest) -> Result<bool, StoreError> {
        const DOING: &str = "remove the layer";
        self.write(DOING, Sync::Soon, |tx| {
            tx.prepare_cached(&format!("DELETE FROM layer WHERE chain = ?1 AND {UNUSED}"))
                .and_then(|mut delete| delete.execute([chain.to_string()]))
                .map(|deleted| deleted == 1)
                .map_err(StoreError::sql(DOING))
        })
    }

    fn sweep_blobs(&self, swept: &mut Swept) -> Result<(), StoreError> {
        let path = self.layout.blobs_lock();
        let lock = open_lock_file(&path)?;
        if !try_lock(&lock, LockMode::Exclusive).map_err(StoreError::io("lock", &path))? {
            return Ok(());
        }
        if !self.is_authoritative()? {
            return Ok(());
        }
        let needed = self.needed_blobs()?;
        for algorithm in ["sha256", "sha512"] {
            let dir = self.layout.blobs_dir().join(algorithm);
            let mut changed = false;
            for hex in list_names(&dir)?.into_iter().filter(|hex| !needed.contains(&format!("{algorithm}:{hex}"))) {
                swept.bytes += delete(&dir, &hex)?;
                swept.blobs += 1;
                changed = true;
            }
            if changed {
                sync_dir(&dir)?;
            }
        }
        Ok(())
    }

    /// The manifests and configurations of all images.
    pub(crate) fn needed_blobs(&self) -> Result<BTreeSet<String>, StoreError> {
        self.conn
            .prepare_cached("SELECT id FROM image UNION SELECT config FROM image")
            .and_then(|mut all| all.query_map([], |row| row.get(0))?.collect())
            .map_err(StoreError::sql("list the blobs"))
    }

    /// The names of the directories of all layers that have a row.
    pub(crate) fn tree_names(&self) -> Result<BTreeSet<String>, StoreError> {
        self.conn
            .prepare_cached("SELECT chain FROM layer")
            .and_then(|mut all| all.query_map([], |row| Ok(Layout::tree_name(&Columns::new(row).parsed()?)))?.collect())
            .map_err(StoreError::sql("list the layers"))
    }

    /// Deletes lists and damage marks of layers that are gone.
    fn sweep_contents(&self) -> Result<(), StoreError> {
        // A commit names the list before it writes the row.
        let Some(_commits) = try_lock_commits(&self.layout)? else { return Ok(()) };
        if !self.is_authoritative()? {
            return Ok(());
        }
        let known = self.tree_names()?;
        contents::sweep(&self.layout, |name| known.contains(name))
    }

    /// Deletes lock files of layers that are gone. A process that waits for one notices that its name is gone and
    /// retries.
    fn sweep_locks(&self) -> Result<(), StoreError> {
        let (dir, known) = (self.layout.locks_dir(), self.tree_names()?);
        let stays = |name: &str| name == "blobs" || name == VOLUMES_LOCK || name == KEEPER_LOCK || known.contains(name);
        for name in list_names(&dir)?.into_iter().filter(|name| !stays(name)) {
            if let Some(_lock) = try_lock_tree(&self.layout, &name)? {
                delete(&dir, &name)?;
            }
        }
        Ok(())
    }
}

/// The names in a directory of the store.
pub(crate) fn list_names(dir: &Path) -> Result<Vec<String>, StoreError> {
    let entries = std::fs::read_dir(dir).map_err(StoreError::io("list", dir))?;
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        // gantry creates no names that are not UTF-8; `check` reports unknown ones.
        entry.map(|entry| entry.file_name().into_string().ok()).transpose()
    };
    entries.filter_map(name).collect::<std::io::Result<_>>().map_err(StoreError::io("list", dir))
}

/// Moves a tree to `tmp/`, durably, and deletes it there.
pub(crate) fn delete_tree(layout: &Layout, name: &str) -> Result<u64, StoreError> {
    unname_tree(layout, name)?.map_or(Ok(0), |aside| aside.delete())
}

/// Moves a tree to `tmp/`, durably. Its deletion there needs no lock.
fn unname_tree(layout: &Layout, name: &str) -> Result<Option<DirInDeletion>, StoreError> {
    let trees = layout.trees_dir();
    let aside = tmp::move_layer_aside(layout, &trees.join(name), "deleted-layer")?;
    if aside.is_some() {
        sync_dir(&trees)?;
        contents::forget(layout, name)?;
    }
    Ok(aside)
}

fn delete(dir: &Path, name: &str) -> Result<u64, StoreError> {
    let path = dir.join(name);
    let parent = open_dir(dir).map_err(StoreError::io("open", dir))?;
    let name = CString::new(name).map_err(|error| StoreError::io("delete", &path)(std::io::Error::other(error)))?;
    remove::remove(parent.as_fd(), &name).map_err(StoreError::io("delete", &path))
}
