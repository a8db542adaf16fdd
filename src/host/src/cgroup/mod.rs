//! Control groups (cgroups(7)): version 1, version 2, and version 2 beside version 1 (hybrid).
//!
//! | type or function | what it is |
//! |---|---|
//! | [`Hierarchy`] | a mounted hierarchy, from mountinfo |
//! | [`Cgroup`] | a cgroup in one hierarchy, by descriptor |
//! | [`CgroupSet`] | a cgroup in all hierarchies, with its limits and counters |
//! | [`CounterFiles`], [`CountersAt`] | the files of its counters: held open for sampling, or read once |
//! | [`remove_tree`] | kills and removes a cgroup by its path, with all cgroups below it |
//!
//! A cgroup opened before a process leaves the host's mount tree can be used after it. Moving a process may wait for a
//! grace period (RCU) of the kernel; [`Cgroup::add`] and [`Cgroup::join`] say when.

mod counters;
mod group;
mod hierarchy;
mod set;
mod tree;
mod usage;

pub use counters::{CounterFiles, CountersAt};
pub use group::{Cgroup, is_removed};
pub use hierarchy::{Hierarchy, Version, mounted_hierarchies, parse_mountinfo};
pub use set::CgroupSet;
pub use tree::{has_processes, remove_tree};
pub use usage::{
    CpuLimits, CpuUsage, DeviceIo, MemoryEvents, MemoryUsage, PidsUsage, PressureTime, PressureUsage, ReadCounters,
};
