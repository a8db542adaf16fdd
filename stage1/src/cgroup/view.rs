//! An app's view of its cgroups: they are the root of a cgroup namespace, and mounted read-only at `/sys/fs/cgroup`,
//! writable for a privileged app. Language runtimes size their heaps and thread pools by their limits.
//!
//! | hierarchies | `/sys/fs/cgroup` |
//! |---|---|
//! | v2 alone | the app's cgroup |
//! | v1, or v1 beside v2 | a tmpfs with a directory for each v1 hierarchy that the app is in, as with docker |
//!
//! The namespace begins at the cgroups of the process that makes it, and so does each hierarchy that is mounted in it.
//! No mount of the app has the files of other cgroups, such as `release_agent`.
//!
//! The maker ([`crate::app::maker`]) makes the namespace before it forks the app's process. It makes the mounts, which
//! take half a millisecond, while that process attaches its other file systems. In a pod with a user namespace, which
//! has to own the cgroup namespace, the app's process makes both.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use gantry_host::cgroup::CgroupSet;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};

use crate::files::mounts::{NO_OPTIONS, QUIET, attach, make_file_system};
use crate::sys;

/// Where systemd and other programs expect the cgroup file system.
pub(crate) const CGROUP_MOUNT: &str = "/sys/fs/cgroup";
/// The magic number of sysfs (statfs(2)).
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// The hierarchies that an app sees.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hierarchies {
    /// The v2 hierarchy.
    V2,
    /// The v1 hierarchies, by their controllers.
    V1(Vec<Vec<String>>),
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CgroupView {
    hierarchies: Hierarchies,
    is_writable: bool,
}

impl CgroupView {
    /// The view of an app in these cgroups.
    pub(crate) fn from_cgroups(cgroups: &CgroupSet, is_writable: bool) -> Self {
        let v1 = cgroups.iter().filter(|cgroup| !cgroup.is_v2());
        let v1: Vec<Vec<String>> = v1.map(|cgroup| cgroup.hierarchy().controllers.clone()).collect();
        let hierarchies = if v1.is_empty() { Hierarchies::V2 } else { Hierarchies::V1(v1) };
        Self { hierarchies, is_writable }
    }

    /// The attribute that the mounts have besides [`QUIET`].
    fn access(&self) -> MountAttrFlags {
        if self.is_writable { MountAttrFlags::empty() } else { MountAttrFlags::MOUNT_ATTR_RDONLY }
    }

    /// Makes the mounts of the view in the cgroup namespace of this process, attached nowhere: the v2 hierarchy, or the
    /// tmpfs and then the v1 hierarchies.
    pub(crate) fn make_mounts(&self) -> io::Result<Vec<OwnedFd>> {
        let attributes = QUIET | self.access();
        let Hierarchies::V1(hierarchies) = &self.hierarchies else {
            return Ok(vec![make_file_system("cgroup2", NO_OPTIONS, attributes)?]);
        };
        let top = make_file_system("tmpfs", &["mode=755"], QUIET)?;
        let mut v1 = Vec::with_capacity(hierarchies.len());
        for controllers in hierarchies {
            let name = controllers.join(",");
            rustix::fs::mkdirat(&top, &name, Mode::from_raw_mode(0o755))?;
            for controller in controllers.iter().filter(|controller| **controller != name) {
                rustix::fs::symlinkat(&name, &top, controller)?;
            }
            v1.push(make_file_system("cgroup", controllers, attributes)?);
        }
        Ok(std::iter::once(top).chain(v1).collect())
    }

    /// Attaches these mounts in the root of this process, the app's. After a failure nothing is attached: an app that
    /// looks at its cgroup finds none.
    pub(crate) fn attach_mounts(&self, mounts: &[OwnedFd]) -> io::Result<()> {
        let missing = || io::Error::other("a mount is missing");
        let (top, hierarchies) = mounts.split_first().ok_or_else(missing)?;
        let target = open_cgroup_mount_point()?;
        if u64::try_from(rustix::fs::fstatfs(&target)?.f_type) != Ok(SYSFS_MAGIC) {
            return Err(io::Error::other("it is not in sysfs"));
        }
        attach(top, &target)?;
        let Hierarchies::V1(names) = &self.hierarchies else { return Ok(()) };
        complete(top, names, hierarchies, self.access()).inspect_err(|_| {
            // The mount is still writable, and must not be left to the app.
            let _empty_at_worst = unmount(CGROUP_MOUNT, UnmountFlags::DETACH);
        })
    }
}

/// Opens the directory at [`CGROUP_MOUNT`] in the root of this process. A volume at /sys may have links, which are not
/// followed.
pub(crate) fn open_cgroup_mount_point() -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, CGROUP_MOUNT, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Attaches the v1 hierarchies in directories of the tmpfs, and adds an attribute to its mount.
fn complete(top: &OwnedFd, names: &[Vec<String>], hierarchies: &[OwnedFd], access: MountAttrFlags) -> io::Result<()> {
    for (controllers, hierarchy) in names.iter().zip(hierarchies) {
        let dir = rustix::fs::openat(top, controllers.join(","), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        attach(hierarchy, &dir)?;
    }
    sys::add_mount_attributes(top.as_fd(), access, false)
}
