//! Linux primitives that several crates use: each kernel interface is wrapped once.
//!
//! | module | contents |
//! |---|---|
//! | `attributes` | the attributes of directories |
//! | `boot` | the boot id |
//! | `cgroup` | cgroups of v1, v2 and hybrid hosts: create, join, kill, freeze, limits, counters, remove |
//! | `device` | device nodes of the host |
//! | `file` | bounded reads, files that get their name when they are complete, sync |
//! | `file_id` | whether two paths or descriptors lead to the same file |
//! | `inotify` | changes of directories |
//! | `lock` | flock(2) with a timeout |
//! | `lock_holders` | the processes that hold a lock of flock(2) |
//! | `memory` | the heap, and the settings of the C library's allocator |
//! | `mounts` | peer groups and restricted clones of mounts |
//! | `parallel` | work on many items by several threads |
//! | `project` | project quotas |
//! | `random` | random bytes of the kernel |
//! | `remove` | deletes trees that an app has made |
//! | `signals` | the dispositions that a program inherits |
//! | `stamp` | whether a file is still the same |
//! | `tree` | the space that a directory tree uses |
//!
//! Imports nothing of the workspace and knows no pods.

pub mod attributes;
pub mod boot;
pub mod cgroup;
pub mod device;
pub mod file;
pub mod file_id;
pub mod inotify;
pub mod lock;
pub mod lock_holders;
pub mod memory;
pub mod mounts;
pub mod parallel;
pub mod project;
pub mod random;
pub mod remove;
pub mod signals;
pub mod stamp;
mod sys;
pub mod tree;
