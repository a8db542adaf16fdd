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
//! files of other cgroups, such as `release_agent`. The process has the capabilities for it ([`crate::confine::ADMIN`])
//! until it is locked down.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use gantry_host::cgroup::CgroupSet;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

use crate::sys::{self, MountAttributes};

const PATH: &str = "/sys/fs/cgroup";
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
            Self::V2 => attach(&make_mount("cgroup2", &[], MountAttrFlags::MOUNT_ATTR_RDONLY)?, &target),
            Self::V1(hierarchies) => {
                let top = make_mount("tmpfs", &[], MountAttrFlags::empty())?;
                attach(&top, &target)?;
                fill(&top, hierarchies).inspect_err(|_| {
                    // The app's program may still change this mount: it is not read-only yet.
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
        attach(&make_mount("cgroup", controllers, MountAttrFlags::MOUNT_ATTR_RDONLY)?, &dir)?;
        for controller in controllers.iter().filter(|controller| **controller != name) {
            rustix::fs::symlinkat(&name, top, controller)?;
        }
    }
    sys::restrict_mount(top.as_fd(), MountAttributes { read_only: true, ..Default::default() })
}

fn make_mount(kind: &str, options: &[String], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Shown in mountinfo, as mount(8) would.
    fsconfig_set_string(&fs, "source", kind)?;
    for option in options {
        match option.split_once('=') {
            Some((key, value)) => fsconfig_set_string(&fs, key, value)?,
            None => fsconfig_set_flag(&fs, option.as_str())?,
        }
    }
    if kind == "tmpfs" {
        fsconfig_set_string(&fs, "mode", "755")?;
    }
    fsconfig_create(&fs)?;
    let quiet =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, quiet | attributes)?)
}

fn attach(mount: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", target, "", flags)?)
}
