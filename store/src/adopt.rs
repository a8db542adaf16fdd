//! Brings a restored database in line with the disk: layers and blobs without rows, images whose files are gone since
//! the backup, and pod directories from which no pod can be made.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_model::{Digest, PodId, Timestamp};
use rustix::fs::{Mode, RenameFlags};
use rustix::io::Errno;

use crate::db::Sync;
use crate::lock::{still_named, sync_dir};
use crate::sweep::list_names;
use crate::{ImageRow, LayerRow, Layout, PodLock, Store, StoreError, tmp, trees};

/// In a directory of `lost-pods/`: when it was moved there, in nanoseconds since the epoch.
const LOST_AT: &str = "lost-at";
const MAX_LOST_AT: u64 = 32;

impl Store {
    /// Manifests and configurations in the store that belong to no image in the database.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn unknown_blobs(&self) -> Result<Vec<Digest>, StoreError> {
        let needed = self.needed_blobs()?;
        let mut unknown = Vec::new();
        for algorithm in ["sha256", "sha512"] {
            for hex in list_names(&self.layout.blobs_dir().join(algorithm))? {
                let text = format!("{algorithm}:{hex}");
                // Files whose names are not digests are not blobs.
                unknown.extend(text.parse().ok().filter(|_| !needed.contains(&text)));
            }
        }
        unknown.sort();
        Ok(unknown)
    }

    /// Writes rows for layers that have their directories: those are durable before they get their names. Lowest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn adopt_layers(&self, rows: &[LayerRow]) -> Result<(), StoreError> {
        const DOING: &str = "take over layers";
        self.write(DOING, Sync::Now, |tx| {
            for row in rows {
                trees::insert_unless_known(tx, row).map_err(StoreError::sql(DOING))?;
            }
            Ok(())
        })
    }

    /// Whether the layers, the manifest and the configuration of an image exist. Does not read their contents.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn has_files_of(&self, image: &ImageRow) -> Result<bool, StoreError> {
        for layer in &image.layers {
            if !self.has_tree(&layer.chain)? {
                return Ok(false);
            }
        }
        Ok(self.has_blob(&image.id)? && self.has_blob(&image.config)?)
    }

    fn has_tree(&self, chain: &Digest) -> Result<bool, StoreError> {
        let path = self.layout.tree_dir(chain);
        match rustix::fs::lstat(&path) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(StoreError::io("examine", &path)(errno)),
        }
    }

    /// Deletes the rows of layers whose directories are gone and that no image refers to; returns how many.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn forget_lost_layers(&self) -> Result<usize, StoreError> {
        let mut forgotten = 0;
        loop {
            let mut now = 0;
            // A layer above another keeps it: one round frees the next.
            for chain in self.unused_layers()? {
                if !self.has_tree(&chain)? {
                    now += usize::from(self.remove_layer_row(&chain)?);
                }
            }
            if now == 0 {
                return Ok(forgotten);
            }
            forgotten += now;
        }
    }

    /// Moves a directory from which no pod can be made to `lost-pods/`, durably, and returns its path there. It stays
    /// there until [`Self::delete_lost_pods`].
    ///
    /// # Errors
    /// [`StoreError::Io`]; [`StoreError::Locked`] when the lock is not that of this directory.
    pub fn move_to_lost(&self, lock: PodLock, id: PodId) -> Result<PathBuf, StoreError> {
        let (from, above) = (self.layout.pod_dir(&id), self.layout.lost_pods_dir());
        if !still_named(&lock, &from).map_err(StoreError::io("examine", &from))? {
            return Err(StoreError::Locked { path: from, seconds: 0 });
        }
        match rustix::fs::mkdir(&above, Mode::RWXU) {
            Ok(()) => sync_dir(self.layout.root())?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(StoreError::io("create", &above)(errno)),
        }
        // On a full disk, the directory's ctime has to do.
        let _left_to_ctime = fs::write(from.join(LOST_AT), crate::now().0.to_string());
        let mut to = above.join(id.to_string());
        let cwd = rustix::fs::CWD;
        let mut moved = rustix::fs::renameat_with(cwd, &from, cwd, &to, RenameFlags::NOREPLACE);
        if moved == Err(Errno::EXIST) {
            to = above.join(tmp::fresh_name(&id.to_string())?);
            moved = rustix::fs::renameat_with(cwd, &from, cwd, &to, RenameFlags::NOREPLACE);
        }
        moved.map_err(StoreError::io("move", &from))?;
        // Its new name before the loss of its old one.
        sync_dir(&above)?;
        sync_dir(&self.layout.pods_dir())?;
        drop(lock);
        Ok(to)
    }
}

impl Store {
    /// Deletes the directories in `lost-pods/` that were moved there longer ago than this, and returns their paths.
    /// With `dry_run` it only returns them.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn delete_lost_pods(&self, kept: Duration, dry_run: bool) -> Result<Vec<PathBuf>, StoreError> {
        let now = crate::now();
        let mut due = Vec::new();
        for path in lost_pods(&self.layout)? {
            if !kept.is_zero() && now.since(lost_at(&path)?) < kept {
                continue;
            }
            if !dry_run {
                // Another process may be deleting it.
                let Some(aside) = tmp::move_aside(&self.layout, &path, "deleted-lost-pod")? else { continue };
                aside.delete()?;
            }
            due.push(path);
        }
        Ok(due)
    }
}

/// When a directory was moved to `lost-pods/`: by its stamp, which outlives a copy of the data directory and a change
/// of the directory's mode or owner; its ctime does not.
fn lost_at(path: &Path) -> Result<Timestamp, StoreError> {
    let stamp = path.join(LOST_AT);
    let is_stamp = |found: fs::Metadata| found.is_file() && found.len() <= MAX_LOST_AT;
    if fs::symlink_metadata(&stamp).is_ok_and(is_stamp)
        && let Some(at) = fs::read_to_string(&stamp).ok().and_then(|text| text.trim().parse().ok())
    {
        return Ok(Timestamp(at));
    }
    let found = rustix::fs::lstat(path).map_err(StoreError::io("examine", path))?;
    Ok(Timestamp(found.st_ctime.saturating_mul(1_000_000_000)))
}

/// The directories in `lost-pods/`.
///
/// # Errors
/// [`StoreError::Io`].
pub fn lost_pods(layout: &Layout) -> Result<Vec<PathBuf>, StoreError> {
    let dir = layout.lost_pods_dir();
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut all: Vec<PathBuf> = list_names(&dir)?.into_iter().map(|name| dir.join(name)).collect();
    all.sort();
    Ok(all)
}
