//! Whether what was read of a pod still holds, without reading it again: no commit since, and the same files.
//!
//! What [`Observer::pod`](crate::Observer::pod), [`Observer::image`](crate::Observer::image) and
//! [`Observer::pod_manifest`](crate::Observer::pod_manifest) return depends on the database, on three files of the pod
//! directory, and on the documents of images ([`Observer::knows_image`](crate::Observer::knows_image)).

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use gantry_contract::files;
use gantry_store::Store;

use crate::pods::added::ADDED;
use crate::{OpenError, Options};

/// A plan changed less than this long ago is not settled: another change may give the file the same time again.
const MIN_AGE: Duration = Duration::from_secs(1);

/// Counts the commits to the database. Uses its own database handle and never blocks.
#[derive(Debug)]
pub struct CommitCounter {
    store: Store,
}

impl CommitCounter {
    /// Opens an existing data directory.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let store = Store::open_read_only(&options.dir)?;
        store.never_wait().map_err(gantry_store::OpenError::from)?;
        Ok(Self { store })
    }

    /// A number that changes with each commit; every commit that ended before this call counts. `None`: the database
    /// was replaced, or cannot be read now; open it again.
    #[must_use]
    pub fn count(&self) -> Option<i64> {
        if !self.store.is_current().unwrap_or(false) {
            return None;
        }
        self.store.data_version().ok()
    }
}

/// The state of the files of a pod from which its manifest is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFilesStamp([Option<Stamp>; 3]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl PodFilesStamp {
    /// The present state of a pod directory. `None`: it cannot be examined.
    #[must_use]
    pub fn read(dir: &Path) -> Option<Self> {
        let mut stamps = [None; 3];
        for (stamp, name) in stamps.iter_mut().zip([files::PLAN, ADDED, files::LIMITS]) {
            *stamp = match dir.join(name).symlink_metadata() {
                Ok(found) => Some(Stamp {
                    device: found.dev(),
                    inode: found.ino(),
                    size: found.len(),
                    changed: (found.ctime(), found.ctime_nsec()),
                }),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(_) => return None,
            };
        }
        Some(Self(stamps))
    }

    /// Whether a manifest made now stays valid while the stamp is the same. Ask at once: the answer depends on the
    /// present time, because every later change of the plan must give another stamp. Never true for a pod with records
    /// of added apps or changed limits: a record that could not be read just now is treated as absent.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let [Some(plan), None, None] = &self.0 else { return false };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanos) = plan.changed;
        let changed = u64::try_from(seconds).ok().zip(u32::try_from(nanos).ok());
        changed.is_some_and(|(seconds, nanos)| Duration::new(seconds, nanos) + MIN_AGE <= now)
    }
}

#[cfg(test)]
#[path = "freshness_tests.rs"]
mod tests;
