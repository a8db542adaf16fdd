//! Linux primitives that several crates use: each kernel interface is wrapped once.
//!
//! | module | contents |
//! |---|---|
//! | `cgroup` | cgroups of v1, v2 and hybrid hosts: create, join, kill, freeze, limits, counters, remove |
//! | `device` | device nodes of the host |
//! | `file` | bounded reads |
//! | `inotify` | changes of directories |
//! | `lock` | flock(2) with a timeout |
//! | `stamp` | whether a file is still the same |
//! | `tree` | the space that a directory tree uses |
//!
//! Imports nothing of the workspace and knows no pods.
#![forbid(unsafe_code)]

pub mod cgroup;
pub mod device;
pub mod file;
pub mod inotify;
pub mod lock;
pub mod stamp;
pub mod tree;
