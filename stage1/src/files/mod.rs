//! The files of an app: its root, the file systems in it, and its volumes. All are mounted by descriptor, because apps
//! that run already can change the paths.

pub(crate) mod copy;
pub(crate) mod covered_paths;
pub(crate) mod dev;
pub(crate) mod file_systems;
pub(crate) mod image_volume;
pub(crate) mod mounts;
pub(crate) mod root;
pub(crate) mod targets;
pub(crate) mod volumes;
