//! Everything that survives a reboot: pods, events, images, blobs and layers, in one data directory.
//!
//! May import `gantry_model` only. Must never know how an image is fetched, how a pod is run, or any wire format; and
//! nobody else in the workspace knows SQLite. No thread outlives a call.
//!
//! ```text
//! DIR/                 0700, ours, no symbolic link
//!   gantry.db          SQLite, WAL (with -wal and -shm beside it); the schema is in migrate.rs
//!   backups/           copies of it, from before migrations and on a timer: backup.rs
//!   damaged/TIME/      damaged databases that were replaced, the newest three: restore.rs
//!   restored           what was restored last, until somebody deletes it: record.rs
//!   read-only          there while gantryd serves a damaged database: why nothing may be written
//!   lost-pods/UUID/    pod directories that could not be made pods again after a restore
//!   blobs/ALG/HEX      manifests and configurations, by digest
//!   trees/NAME/        layers, unpacked; NAME is base32 of 128 bits of the chain id. replaced-NAME-…: damaged ones that pods use
//!   contents/NAME      what is in a layer's directory: contents.rs
//!   pods/UUID/         pod directories; their contents are the engine's
//!   volumes/NAME/      named volumes: `data` is what apps see, `volume.json` says what the row says, `fresh` that no app has
//!                      mounted it yet
//!   tmp/               being made or deleted; unlocked means left by the dead
//!   locks/NAME         one per layer being worked on, `blobs`, `volumes` and `gantryd.lock`
//!   sequence           how far the numbers of events had come: high_water.rs
//!   reserve            space to be given back when the disk is full
//! ```
//!
//! **Facts first.** A file or directory is durable before the row that relies on it, and a row is gone before what it
//! relied on. So a `kill -9` leaves files without rows, never rows without files; [`Store::sweep_images`] deletes them
//! (and the engine's `reconcile` pods without rows). Roots of the collection: the apps of pods refer to images, images
//! to blobs and layers, layers to the layers below them. [`Store::check`] compares all of it.
//!
//! **Locks.** All are flock(2) or SQLite's own; the kernel ends them with their holder. In the order in which they may
//! be taken together (a later one never waits for an earlier one):
//!
//! | lock | protects | waits | when the holder dies |
//! |---|---|---|---|
//! | `DIR` | making, migrating, restoring, entering a boot | 10 s | the next opener does it over |
//! | `pods/UUID` | a pod: its preparer, supervisor or deleter | never | the lock is free: reconcile reads what is there |
//! | `locks/NAME` | staging, committing or sweeping a layer; kept until its image is committed. Several: lowest layer first | the caller's deadline | its staging directory is unlocked, and swept |
//! | `locks/blobs` | blobs without an image: shared by importers, exclusive by the sweeper | 10 s; the sweeper never | blobs without an image are swept |
//! | `locks/volumes` | making and removing named volumes, without the deletion of their content | 10 s; listing pods never | the next one finishes what was begun |
//! | `locks/gantryd.lock` | the one keeper of the directory; held for its life, before everything else | never | the next keeper takes over |
//! | `tmp` | the moment between making a name there and locking it | 10 s | nothing |
//! | `tmp/…` | one temporary | never | it is swept |
//! | the database's | every write is one `BEGIN IMMEDIATE` without other I/O in it | 10 s | SQLite rolls back |
//!
//! Start reading at `db.rs` ([`Store::open`]), then `pods.rs`: the compare-and-set.

mod adopt;
mod backup;
mod blobs;
mod contents;
mod damage;
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
mod pod_dir;
mod pods;
mod record;
mod remove;
mod reserve;
mod restore;
mod sweep;
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
pub use error::{Cause, StoreError};
pub use events::EVENTS_KEPT;
pub use fsck::{Finding, Severity};
pub use images::{CommitImageError, ImageFormat, ImageRow, LayerRef, NewImage, RemoveImageError, Removed};
pub use keeper::{Keeper, KeeperLock};
pub use layout::Layout;
pub use pod_dir::{MakePodDirError, PodLock, PodState};
pub use pods::{
    AppRow, Change, FAILURE, Glance, InCgroups, InsertPodError, Moved, Networks, NewApp, NewPod, PodRow, PodWhere,
    ResolveError, StepError,
};
pub use record::Record;
pub use restore::{Home, HomeLock};
pub use sweep::Swept;
pub use trees::{CommitLayersError, LayerLock, LayerRow, Staging, Trees};
pub use volumes::{RemoveVolumeError, VolumeRow};
