//! Everything that survives a reboot: pods, events, images, blobs and layers, in one data directory.
//!
//! Imports `gantry_model` and `gantry_host`. Knows nothing of fetching images, running pods or wire formats, and is the
//! only crate that uses SQLite. No thread outlives a call.
//!
//! ```text
//! DIR/                 mode 0700, owned by the user of gantry, not a symbolic link
//!   gantry.db          SQLite, WAL (with -wal and -shm beside it); the schema is in migrate.rs
//!   backups/           backups, made before migrations and on a timer: backup.rs
//!   damaged/TIME/      damaged databases that were replaced, the newest three: restore.rs
//!   restored           the record of the last restore, until an operator deletes it: record.rs
//!   read-only          exists while gantryd serves a damaged database: why writes fail
//!   lost-pods/UUID/    pod directories that could not be imported again after a restore
//!   blobs/ALG/HEX      manifests and configurations, by digest
//!   trees/NAME/        unpacked layers; NAME is base32 of 128 bits of the chain id. replaced-NAME-…: damaged, in use
//!   contents/NAME      the list of a layer's files: contents.rs
//!   pods/UUID/         pod directories; the engine manages their contents
//!   volumes/NAME/      named volumes: `data` is what apps see, `volume.json` copies the row, `fresh` exists until the
//!                      first mount
//!   tmp/               being created or deleted; unlocked entries are stale
//!   locks/NAME         one per layer being worked on, `blobs`, `volumes` and `gantryd.lock`
//!   pod-cidr           the pod CIDR of a Kubernetes node: pod_cidr.rs
//!   sequence           the high-water mark of event numbers and durable commits: high_water.rs
//!   reserve            disk space that is released when the disk is full: reserve.rs
//! ```
//!
//! **Files before rows.** A file or directory is durable before the row that relies on it, and a row is deleted before
//! its files. So a `kill -9` leaves files without rows, never rows without files; [`Store::sweep_images`] collects them
//! (and the engine's `reconcile` collects pods without rows). Apps of pods refer to images, images to blobs and layers,
//! layers to the layers below them. [`Store::check`] verifies these references.
//!
//! **Locks.** All are flock(2) or SQLite's own; the kernel releases them when their holder dies. In locking order:
//!
//! * `locks/gantryd.lock`: the only keeper of the directory. Taken first and held for its lifetime; never waited for.
//!   When the keeper dies, the next one takes over.
//! * `DIR`: creating, migrating, restoring, entering a boot. Waited for 10 s. The next opener starts over.
//! * `pods/UUID`: a pod, for the process that prepares, runs or deletes it. Never waited for. A free lock means that
//!   the process is gone: reconcile reads the records.
//! * `locks/NAME`: exclusive to stage, commit or collect a layer, then shared until its image is committed. Of several,
//!   the lowest layer first. The exclusive lock is waited for until the caller's deadline; a shared one, and the
//!   collector's, is only tried. A staging directory without its lock is collected.
//! * `trees`: placing synced layers and writing their rows, collecting a layer. Waited for 60 s; the collector only
//!   tries it. A tree without a row is replaced or collected.
//! * `locks/blobs`: blobs without an image, shared by importers, exclusive for the collector, which never waits. Waited
//!   for 10 s. Blobs without an image are collected.
//! * `locks/volumes`: creating and removing named volumes, except the deletion of their content. Waited for 10 s;
//!   listing pods never waits. The next holder finishes the removal.
//! * `tmp`: the time between creating a name there and locking it. Waited for 10 s.
//! * `tmp/…`: one temporary file or directory. Never waited for. An unlocked one is collected.
//! * The database's: every write is one `BEGIN IMMEDIATE` without other I/O in it. Waited for 10 s. SQLite rolls back.
//!
//! Start reading at `db.rs` ([`Store::open`]), then `pods.rs`: the compare-and-set.

mod adopt;
mod backup;
mod blobs;
mod constraints;
mod contents;
mod damage;
mod data_version;
mod db;
mod error;
mod events;
mod fsck;
mod high_water;
mod images;
mod keeper;
mod layout;
mod lock;
mod migrate;
mod pod_cidr;
mod pod_dir;
mod pods;
mod record;
mod reserve;
mod restore;
mod schedules;
mod sweep;
#[cfg(any(test, target_env = "musl"))]
mod sys;
mod tmp;
mod trees;
mod volumes;
mod wal_index;

#[cfg(test)]
mod tests;

pub use adopt::lost_pods;
pub use backup::{Backup, Verdict, backups};
pub use blobs::BlobError;
pub use contents::Sums;
pub use damage::Damage;
pub use db::{OpenError, Store, now};
pub use error::{Cause, DatabaseFailure, StoreError};
pub use events::EVENTS_KEPT;
pub use fsck::{Depth, Finding, Severity};
pub use images::{CommitImageError, ImageFormat, ImageRow, LayerRef, NewImage, RemoveImageError, Removed};
pub use keeper::{Keeper, KeeperLock};
pub use layout::Layout;
pub use pod_dir::{MakePodDirError, PodData, PodLock, PodState};
pub use pods::pause::PauseState;
pub use pods::{
    AddAppError, AppChanges, AppRow, CgroupCondition, Change, FAILURE, InsertPodError, Moved, NetworkSummary, Networks,
    NewApp, NewPod, PodRow, PodWhere, ReadyReport, RenamePodError, ResolveError, StepError,
};
pub use pods::{HealthChange, HealthRecord, LimitUpdate, OomRecord, OomReport, SupervisorReport};
pub use record::Record;
pub use reserve::MIN_ROOM as RESERVE_MIN_ROOM;
pub use restore::{DataDir, DataDirLock};
pub use schedules::{NewSchedule, PodSchedule, SchedulePod, ScheduleRow, ScheduleRun};
pub use sweep::Swept;
pub use tmp::DirInDeletion;
pub use trees::{CommitLayersError, LayerLock, LayerRow, SharedLayerLock, Staging, Trees};
pub use volumes::{RemoveVolumeError, VolumeRow};
