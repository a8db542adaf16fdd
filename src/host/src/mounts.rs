//! Peer groups of mounts (mount_namespaces(7)), and restricted copies.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::file::read_bounded;
use crate::sys;

/// The largest mount table that is read, in bytes: that of a node with 100 000 mounts.
const MAX_MOUNTINFO: u64 = 64 << 20;

/// Makes a read-only mount of a file, without set-user-ID programs and devices, that is attached to no mount namespace:
/// once the descriptor is closed, nothing can make it writable again. Requires CAP_SYS_ADMIN.
///
/// # Errors
/// The file cannot be opened, or is on such a mount already, or the kernel refuses.
pub fn clone_read_only(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(CWD, path, flags)?;
    sys::restrict_mount(mount.as_fd(), true, false)?;
    Ok(mount)
}

/// Which mounts of a copy are made read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnlyMounts {
    /// None: each stays as it is.
    None,
    /// The one at the top.
    Top,
    /// The one at the top, and all below it.
    All,
}

/// Makes a private mount of an opened file or directory, without set-user-ID programs and devices, that is attached
/// nowhere: closing the descriptor unmounts it. `recursive`: with the mounts below it. Requires CAP_SYS_ADMIN.
///
/// # Errors
/// The file is on such a mount already, or the kernel refuses.
pub fn clone_restricted(source: BorrowedFd<'_>, recursive: bool, read_only: ReadOnlyMounts) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let mount = open_tree(source, "", flags)?;
    sys::restrict_mount(mount.as_fd(), read_only == ReadOnlyMounts::All, true)?;
    if read_only == ReadOnlyMounts::Top {
        sys::restrict_mount(mount.as_fd(), true, false)?;
    }
    Ok(mount)
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
