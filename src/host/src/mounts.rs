//! Peer groups of mounts (mount_namespaces(7)), and restricted copies.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, OpenTreeFlags, open_tree};

use crate::file::read_bounded;
use crate::sys;

/// The attributes of mounts without set-user-ID programs and devices.
const QUIET: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// The largest mount table that is read, in bytes: that of a node with 100 000 mounts.
const MAX_MOUNTINFO: u64 = 64 << 20;

/// Makes a read-only mount of a file, without set-user-ID programs and devices, that is attached to no mount namespace:
/// once the descriptor is closed, nothing can make it writable again. Requires CAP_SYS_ADMIN.
///
/// # Errors
/// The file cannot be opened, or is on such a mount already, or the kernel refuses.
pub fn clone_read_only(path: &Path) -> io::Result<OwnedFd> {
    clone_restricted(
        CloneSource::Path(path),
        Restrictions { read_only: ReadOnlyMounts::All, ..Restrictions::default() },
    )
}

/// Which mounts of a copy are made read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadOnlyMounts {
    /// None: each stays as it is.
    #[default]
    None,
    /// The one at the top.
    Top,
    /// The one at the top, and all below it.
    All,
}

/// The restrictions of a mount. By default it is private, and has no set-user-ID programs and no devices.
#[derive(Debug, Clone, Copy)]
pub struct Restrictions {
    /// The mounts whose files can only be read.
    pub read_only: ReadOnlyMounts,
    /// Whether the mounts below it belong to it, and are restricted too.
    pub recursive: bool,
    /// Whether set-user-ID programs and devices are usable on it.
    pub allows_devices: bool,
    /// Its propagation; private takes it out of its peer group, so that nothing propagates to it.
    pub propagation: MountPropagationFlags,
}

impl Default for Restrictions {
    fn default() -> Self {
        let (read_only, propagation) = (ReadOnlyMounts::None, MountPropagationFlags::PRIVATE);
        Self { read_only, recursive: false, allows_devices: false, propagation }
    }
}

/// Makes a mount of a file or directory with these restrictions that is attached nowhere: closing the descriptor
/// unmounts it. Requires CAP_SYS_ADMIN.
///
/// # Errors
/// The kernel refuses, also because the source is on such a mount already.
pub fn clone_restricted(source: CloneSource<'_>, restrictions: Restrictions) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if restrictions.recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let mount = match source {
        CloneSource::Open(file) => open_tree(file, "", flags | OpenTreeFlags::AT_EMPTY_PATH)?,
        CloneSource::Path(path) => open_tree(CWD, path, flags)?,
    };
    restrict(mount.as_fd(), restrictions)?;
    Ok(mount)
}

/// The file or directory that a mount is made of.
#[derive(Debug, Clone, Copy)]
pub enum CloneSource<'s> {
    /// An open one.
    Open(BorrowedFd<'s>),
    /// The one at this path. An automount point is mounted first.
    Path(&'s Path),
}

/// Restricts a mount that is attached nowhere.
fn restrict(mount: BorrowedFd<'_>, restrictions: Restrictions) -> io::Result<()> {
    let Restrictions { read_only, recursive, allows_devices, propagation } = restrictions;
    let quiet = if allows_devices { MountAttrFlags::empty() } else { QUIET };
    let all = if read_only == ReadOnlyMounts::All { quiet | MountAttrFlags::MOUNT_ATTR_RDONLY } else { quiet };
    sys::set_mount_attributes(mount, all, propagation, recursive)?;
    if read_only == ReadOnlyMounts::Top {
        sys::set_mount_attributes(mount, MountAttrFlags::MOUNT_ATTR_RDONLY, MountPropagationFlags::empty(), false)?;
    }
    Ok(())
}

/// The membership of a mount in peer groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerGroups {
    /// It shares mounts with its peers.
    pub is_shared: bool,
    /// It receives mounts of a group.
    pub is_slave: bool,
}

/// The peer groups of the mount that a path is on, in the mount namespace of this process.
///
/// # Errors
/// The path cannot be opened or the mount table cannot be read; [`io::ErrorKind::NotFound`] if the table lacks the
/// mount.
pub fn peer_groups(path: &Path) -> io::Result<PeerGroups> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let id = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id;
    let table = read_bounded(Path::new("/proc/self/mountinfo"), MAX_MOUNTINFO)?;
    let missing = || io::Error::new(io::ErrorKind::NotFound, "its mount is not in /proc/self/mountinfo");
    find(&String::from_utf8_lossy(&table), id).ok_or_else(missing)
}

/// The fields of a line: id, parent, device, root, mount point, options, optional fields until `-`, …
/// (proc_pid_mountinfo(5)).
fn find(table: &str, id: u64) -> Option<PeerGroups> {
    let line = table.lines().find(|line| line.split(' ').next().and_then(|text| text.parse().ok()) == Some(id))?;
    let optional = || line.split(' ').skip(6).take_while(|field| *field != "-");
    let has = |prefix: &str| optional().any(|field| field.starts_with(prefix));
    Some(PeerGroups { is_shared: has("shared:"), is_slave: has("master:") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_name_the_groups() {
        let table = "1 0 8:1 / / rw - ext4 shared:x rw\n\
            20 1 0:5 / /a rw shared:2 - tmpfs none rw\n\
            2 1 0:5 / /b rw shared:2 master:1 propagate_from:3 - tmpfs none rw\n";
        let groups = |is_shared, is_slave| Some(PeerGroups { is_shared, is_slave });
        assert_eq!(find(table, 1), groups(false, false));
        assert_eq!(find(table, 20), groups(true, false));
        assert_eq!(find(table, 2), groups(true, true));
        assert_eq!(find(table, 3), None);
    }

    #[test]
    fn own_mounts_are_found() {
        peer_groups(Path::new("/proc")).unwrap();
        assert!(peer_groups(Path::new("/no/such/path")).is_err());
    }
}
