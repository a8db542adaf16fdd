//! Mounts the volumes of an app into its root, by descriptor.
//!
//! Other apps and other pods may have the same volume mounted and exchange directories and links in it at any moment.
//! Every path that is looked up again could lead somewhere else: a mount would land on /proc of the app, or a directory
//! would be made on the host (CVE-2021-30465). So a target is opened once, beneath the app's root, without following
//! any link; the volume is attached to that descriptor (move_mount(2)); and missing directories are made by mkdirat(2)
//! in a directory that was opened the same way. Afterwards the path must lead to the mount.
//!
//! The volumes are mounted in a second mount of the app's root, on top of the first, through which the supervisor
//! itself sees the root without them. libcontainer binds the second with everything below it. It then mounts /proc,
//! /sys and /dev over the root, which would cover volumes there: [`crate::late_mounts`] mounts those afterwards.
//! Targets below /dev are therefore left to libcontainer. No other app has that tmpfs; but a volume inside a volume
//! there would be mounted by path, which [`check_targets`] refuses.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;

use gantry_contract::Failure;
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};

use crate::failure::{Attempt, Result, failure};
use crate::late_mounts::LateMounts;
use crate::sys::{self, MountAttributes};
use crate::user_namespace::{self, UserNamespace};
use crate::volumes::AppMount;

/// How often a mount inside a volume is tried whose directories another app may exchange meanwhile. Half of the tries
/// fail where that happens in a tight loop.
const MAX_ATTEMPTS: usize = 64;

/// The pause between two tries. Without it, all would see the state in which the scheduler interrupted the other app.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The mount of an app's root with its volumes, if it has any. It is unmounted when this is dropped.
pub(crate) struct AttachedMounts(Option<OwnedFd>);

impl Drop for AttachedMounts {
    fn drop(&mut self) {
        if let Some(root) = &self.0 {
            // With everything below it: each unmount waits for a grace period.
            let _ends_with_the_pod = unmount(format!("/proc/self/fd/{}", root.as_raw_fd()), UnmountFlags::DETACH);
        }
    }
}

impl AttachedMounts {
    /// The app's root with these mounts.
    fn root<'a>(&'a self, bare: &'a OwnedFd) -> &'a OwnedFd {
        self.0.as_ref().unwrap_or(bare)
    }
}

/// Whether libcontainer mounts at this target: below /dev, where it mounts a file system itself.
pub(crate) fn is_left_to_libcontainer(mount: &AppMount) -> bool {
    mount.target.starts_with("/dev/") && !mount.is_late
}

/// Whether it is mounted before libcontainer makes the app's process.
fn is_early(mount: &AppMount) -> bool {
    !mount.is_late && !is_left_to_libcontainer(mount)
}

/// Refuses mounts that libcontainer would make by path in a directory that other apps can change: inside a volume,
/// which running pods may share; and once apps of the pod run, in its `/dev/shm`.
pub(crate) fn check_targets(mounts: &[AppMount], do_apps_run: bool) -> Result<()> {
    for mount in mounts.iter().filter(|mount| is_left_to_libcontainer(mount)) {
        let is_shared = |outer: &AppMount| !outer.is_tmpfs() && is_inside(mount, outer);
        let is_in_shm = do_apps_run && mount.target.starts_with("/dev/shm/");
        if is_in_shm || mounts.iter().any(is_shared) {
            let target = shown(&mount.target);
            let why = "other apps can change its directory; mount it outside of /dev";
            return Err(failure(ErrorKind::Refused, format!("cannot mount a volume at '{target}': {why}")));
        }
    }
    Ok(())
}

/// Mounts the volumes at their resolved targets, outer ones first, and prepares those that are mounted later.
///
/// `user`: the pod's user namespace, whose ids the volumes get.
pub(crate) fn attach(
    root: &OwnedFd,
    mounts: &[AppMount],
    user: Option<&UserNamespace>,
) -> Result<(AttachedMounts, LateMounts)> {
    let attached = attach_early(root, mounts, user)?;
    let late = LateMounts::prepare(attached.root(root), mounts, user)?;
    Ok((attached, late))
}

fn attach_early(root: &OwnedFd, mounts: &[AppMount], user: Option<&UserNamespace>) -> Result<AttachedMounts> {
    if !mounts.iter().any(is_early) {
        return Ok(AttachedMounts(None));
    }
    let attached = attach_root(root).attempt(|| "cannot mount the app's root for its volumes")?;
    let attached = AttachedMounts(Some(attached));
    let root = attached.root(root);
    for mount in mounts.iter().filter(|mount| is_early(mount)) {
        let what = || format!("cannot mount at '{}'", shown(&mount.target));
        let tree = open_mount(mount, user)?;
        let is_dir = is_directory(&tree).attempt(what)?;
        let mut attempts = if mounts.iter().any(|outer| is_inside(mount, outer)) { MAX_ATTEMPTS } else { 1 };
        while !is_attached(root, &tree, &mount.target, is_dir).or_else(|error| match attempts {
            0 | 1 => Err(error).attempt(what),
            _ => Ok(false),
        })? {
            attempts = attempts.saturating_sub(1);
            if attempts == 0 {
                return Err(replaced(&mount.target));
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
    Ok(attached)
}

/// The mounts with sources that have the ids of the pod, where libcontainer mounts a volume. They are attached in the
/// mount namespace of this process, the maker, below its /dev.
pub(crate) fn map_sources(mounts: &[AppMount], user: &UserNamespace) -> Result<Vec<AppMount>> {
    let mut mapped = mounts.to_vec();
    let of_libcontainer = |mount: &&mut AppMount| mount.has_ids_of_pod && is_left_to_libcontainer(mount);
    for (number, mount) in mapped.iter_mut().filter(of_libcontainer).enumerate() {
        let what = || format!("cannot mount at '{}'", shown(&mount.target));
        let tree = clone_volume(mount).attempt(what)?;
        user.map_mount(&tree, &format!("'{}'", shown(&mount.target)))?;
        let source = format!("{}/volume-{number}", user_namespace::DEV);
        if is_directory(&tree).attempt(what)? {
            rustix::fs::mkdirat(CWD, &source, Mode::RWXU).attempt(what)?;
        } else {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::open(&source, flags, Mode::RUSR).attempt(what)?;
        }
        move_mount(&tree, "", CWD, &source, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).attempt(what)?;
        mount.source = source;
    }
    Ok(mapped)
}

/// Moves a mount to its target, also from where an earlier attempt has put it; returns whether the target's path leads
/// to it.
fn is_attached(root: &OwnedFd, tree: &OwnedFd, path: &str, is_dir: bool) -> rustix::io::Result<bool> {
    let target = open_target(root, path, is_dir)?;
    if mount_id(&target)? == mount_id(tree)? {
        // Where an earlier attempt has left it.
        return Ok(true);
    }
    move_to(root, tree, &target, path)
}

/// Moves a mount to its opened target; returns whether the target's path leads to it.
pub(crate) fn move_to(root: &OwnedFd, tree: &OwnedFd, target: &OwnedFd, path: &str) -> rustix::io::Result<bool> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags)?;
    let found = open_beneath(root, path, OFlags::PATH);
    Ok(found.and_then(|found| Ok(mount_id(&found)? == mount_id(tree)?)) == Ok(true))
}

/// The failure of a mount whose path does not lead to it.
pub(crate) fn replaced(target: &str) -> Failure {
    let why = "its directory was replaced while it was mounted";
    failure(ErrorKind::Refused, format!("cannot mount at '{}': {why}", shown(target)))
}

/// Whether a mount's target is in the directory that another mount covers.
pub(crate) fn is_inside(mount: &AppMount, outer: &AppMount) -> bool {
    path_inside(&mount.target, &outer.target).is_some()
}

/// The rest of a target in the directory that another one covers, from its slash on; `None`: it is not in there.
pub(crate) fn path_inside<'a>(target: &'a str, outer: &str) -> Option<&'a str> {
    target.strip_prefix(outer).filter(|rest| rest.starts_with('/'))
}

/// Mounts the root a second time, on top of itself.
fn attach_root(root: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(root, "", flags)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&tree, "", root, "", flags)?;
    Ok(tree)
}

/// What is mounted, as a mount that is attached nowhere.
pub(crate) fn open_mount(mount: &AppMount, user: Option<&UserNamespace>) -> Result<OwnedFd> {
    let what = || format!("cannot mount at '{}'", shown(&mount.target));
    let tree = if mount.is_tmpfs() { make_tmpfs(mount, user)? } else { clone_volume(mount).attempt(what)? };
    if let Some(user) = user.filter(|_| mount.has_ids_of_pod) {
        user.map_mount(&tree, &format!("'{}'", shown(&mount.target)))?;
    }
    Ok(tree)
}

/// The volume as a mount of its own, with the restrictions of this app.
fn clone_volume(mount: &AppMount) -> std::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, mount.source.as_str(), flags)?;
    let (propagation, allows_devices) = (mount.propagation, mount.allows_devices());
    let all = MountAttributes { read_only: mount.is_read_only(), recursive: true, allows_devices, propagation };
    sys::restrict_mount(tree.as_fd(), all)?;
    if mount.is_read_only_at_top() {
        sys::restrict_mount(tree.as_fd(), MountAttributes { read_only: true, recursive: false, ..all })?;
    }
    Ok(tree)
}

/// A new file system in memory. Its owner is one of the pod.
fn make_tmpfs(mount: &AppMount, user: Option<&UserNamespace>) -> Result<OwnedFd> {
    let what = || format!("cannot mount at '{}'", shown(&mount.target));
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).attempt(what)?;
    // Shown in mountinfo, as mount(8) would.
    fsconfig_set_string(&fs, "source", "tmpfs").attempt(what)?;
    let mut attributes = MountAttrFlags::empty();
    for option in &mount.options {
        match (option.as_str(), option.split_once('='), user) {
            ("nosuid", ..) => attributes |= MountAttrFlags::MOUNT_ATTR_NOSUID,
            ("nodev", ..) => attributes |= MountAttrFlags::MOUNT_ATTR_NODEV,
            ("noexec", ..) => attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC,
            ("ro", ..) => attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY,
            (_, Some(("uid", id)), Some(user)) => {
                fsconfig_set_string(&fs, "uid", user.host_uid(parse_id(id)?)?.to_string()).attempt(what)?;
            }
            (_, Some(("gid", id)), Some(user)) => {
                fsconfig_set_string(&fs, "gid", user.host_gid(parse_id(id)?)?.to_string()).attempt(what)?;
            }
            (_, Some((key, value)), _) => fsconfig_set_string(&fs, key, value).attempt(what)?,
            (flag, None, _) => fsconfig_set_flag(&fs, flag).attempt(what)?,
        }
    }
    fsconfig_create(&fs).attempt(what)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes).attempt(what)
}

fn parse_id(text: &str) -> Result<u32> {
    text.parse().map_err(|_| failure(ErrorKind::Internal, format!("the owner '{}' is not a number", shown(text))))
}

pub(crate) fn is_directory(file: &OwnedFd) -> rustix::io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) == FileType::Directory)
}

/// The number of the mount that a file was opened on, which is unique as long as the mount exists.
fn mount_id(file: &OwnedFd) -> rustix::io::Result<u64> {
    // statx has the field since Linux 5.8.
    Ok(rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

/// Opens a path beneath the root without following a link.
pub(crate) fn open_beneath(root: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Opens the directory or file that a volume covers, and makes it if it does not exist.
pub(crate) fn open_target(root: &OwnedFd, path: &str, is_dir: bool) -> rustix::io::Result<OwnedFd> {
    let kind = if is_dir { OFlags::DIRECTORY } else { OFlags::empty() };
    match open_beneath(root, path, OFlags::PATH | kind) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut dir = open_beneath(root, "/", OFlags::PATH | OFlags::DIRECTORY)?;
    for part in parents.split('/').filter(|part| !part.is_empty()) {
        dir = open_or_make_dir(&dir, part)?;
    }
    if is_dir {
        return open_or_make_dir(&dir, name);
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::WRONLY;
    match rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o755)) {
        Ok(_) | Err(Errno::EXIST) => open_beneath(&dir, name, OFlags::PATH),
        Err(error) => Err(error),
    }
}

fn open_or_make_dir(dir: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let open = || open_beneath(dir, name, OFlags::PATH | OFlags::DIRECTORY);
    match open() {
        Err(Errno::NOENT) => match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => open(),
            Err(error) => Err(error),
        },
        other => other,
    }
}
