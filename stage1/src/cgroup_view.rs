//! An app's view of its cgroups: they are the root of a cgroup namespace, and mounted read-only at `/sys/fs/cgroup`.
//! Language runtimes size their heaps and thread pools by their limits.
//!
//! | hierarchies | `/sys/fs/cgroup` |
//! |---|---|
//! | v2 alone | the app's cgroup |
//! | v1, or v1 beside v2 | a tmpfs with a directory for each v1 hierarchy that the app is in, as with docker |
//!
//! The app's process mounts it after the move to its cgroups and before it is locked down: the namespace begins at the
//! cgroups of the process that makes it, and so does each hierarchy that is mounted in it. No mount of the app has the
//! files of other cgroups, such as `release_agent`. The process still has all capabilities then.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use gantry_host::cgroup::CgroupSet;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};

use crate::mounts::{QUIET, attach, make_file_system};
use crate::sys;

const PATH: &str = "/sys/fs/cgroup";
const READ_ONLY: MountAttrFlags = QUIET.union(MountAttrFlags::MOUNT_ATTR_RDONLY);
const NO_OPTIONS: &[&str] = &[];
/// The magic number of sysfs (statfs(2)).
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// The hierarchies that an app sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CgroupView {
    /// The v2 hierarchy.
    V2,
    /// The v1 hierarchies, by their controllers.
    V1(Vec<Vec<String>>),
}

impl CgroupView {
    /// The view of an app in these cgroups.
    pub(crate) fn from_cgroups(cgroups: &CgroupSet) -> Self {
        let v1 = cgroups.iter().filter(|cgroup| !cgroup.is_v2());
        let v1: Vec<Vec<String>> = v1.map(|cgroup| cgroup.hierarchy().controllers.clone()).collect();
        if v1.is_empty() { Self::V2 } else { Self::V1(v1) }
    }

    /// Moves this process, the app's, to a cgroup namespace and mounts the view. After a failure nothing is mounted: an
    /// app that looks at its cgroup finds none.
    pub(crate) fn enter(&self) -> io::Result<()> {
        // Without the namespace, the mounts would show every cgroup of the host.
        sys::unshare(libc::CLONE_NEWCGROUP)?;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let target = rustix::fs::openat2(CWD, PATH, flags, Mode::empty(), resolve)?;
        if u64::try_from(rustix::fs::fstatfs(&target)?.f_type) != Ok(SYSFS_MAGIC) {
            return Err(io::Error::other("it is not in sysfs"));
        }
        match self {
            Self::V2 => Ok(attach(&make_file_system("cgroup2", NO_OPTIONS, READ_ONLY)?, &target)?),
            Self::V1(hierarchies) => {
                let top = make_file_system("tmpfs", &["mode=755"], QUIET)?;
                attach(&top, &target)?;
                fill(&top, hierarchies).inspect_err(|_| {
                    // The mount is still writable, and must not be left to the app.
                    let _empty_at_worst = unmount(PATH, UnmountFlags::DETACH);
                })
            }
        }
    }
}

/// Mounts the v1 hierarchies in directories of the tmpfs, and makes it read-only.
fn fill(top: &OwnedFd, hierarchies: &[Vec<String>]) -> io::Result<()> {
    for controllers in hierarchies {
        let name = controllers.join(",");
        rustix::fs::mkdirat(top, &name, Mode::from_raw_mode(0o755))?;
        let dir = rustix::fs::openat(top, &name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        attach(&make_file_system("cgroup", controllers, READ_ONLY)?, &dir)?;
        for controller in controllers.iter().filter(|controller| **controller != name) {
            rustix::fs::symlinkat(&name, top, controller)?;
        }
    }
    sys::add_mount_attributes(top.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, false)
}
