//! Mounts the volumes of an app into its root, by descriptor.
//!
//! Other apps and other pods may have the same volume mounted and exchange directories and links in it at any moment.
//! Every path that is looked up again could lead somewhere else: a mount would land on /proc of the app, or a directory
//! would be made on the host (CVE-2021-30465). So a target is opened once, beneath the app's root, without following
//! any link; the volume is attached to that descriptor (move_mount(2)); and missing directories are made by mkdirat(2)
//! in a directory that was opened the same way. Afterwards the path must lead to the mount.
//!
//! The maker opens what is mounted ([`DetachedMounts::prepare`]), with the supervisor's rights and in its mount
//! namespace; the app's process attaches it in its own ([`DetachedMounts::attach`]).
//!
//! A volume's mount stays in the peer group of the host's mount from the moment it is cloned, if it propagates. The
//! supervisor keeps such a mount in its tree ([`crate::pod::jail`]), so that later starts of the app find it there.
//! Unmounting a shared mount would also unmount the host's mounts below it, so it is made private first. The end of a
//! mount namespace does not propagate.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use gantry_contract::Failure;
use gantry_host::mounts::{CloneSource, ReadOnlyMounts, Restrictions, clone_restricted};
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::mount_options::Propagation;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::failure::{Attempt, Result, failure};
use crate::files::covered_paths::CoveredPaths;
use crate::files::volumes::AppMount;
use crate::pod::user_namespace::UserNamespace;

/// Maximum number of attempts to mount inside a volume whose directories another app may exchange meanwhile. Half of
/// them fail where that happens in a tight loop.
const MAX_ATTEMPTS: usize = 64;

/// The pause between two tries. Without it, all would see the state in which the scheduler interrupted the other app.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The attributes of file systems that hold neither programs nor devices.
pub(crate) const QUIET: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV).union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// The volumes of an app as mounts that are attached nowhere, outer ones first.
pub(crate) struct DetachedMounts(Vec<DetachedMount>);

struct DetachedMount {
    tree: OwnedFd,
    target: String,
    is_dir: bool,
    /// Whether the target is in another volume.
    is_nested: bool,
    /// Whether what is mounted inside it appears on the host.
    is_shared: bool,
}

impl DetachedMounts {
    /// Opens what is mounted. `user`: the pod's user namespace, whose ids the volumes get.
    pub(crate) fn prepare(mounts: &[AppMount], user: Option<&UserNamespace>) -> Result<Self> {
        let detach = |mount: &AppMount| {
            let what = || format!("cannot mount at '{}'", shown(&mount.target));
            let tree = open_mount(mount, user)?;
            let is_dir = is_directory(&tree).attempt(what)?;
            // Also in the pod's /dev/shm, which its apps share.
            let is_nested = mounts.iter().any(|outer| is_inside(mount, outer)) || mount.target.starts_with("/dev/shm/");
            let is_shared = mount.propagation == Propagation::Shared;
            Ok(DetachedMount { tree, target: mount.target.clone(), is_dir, is_nested, is_shared })
        };
        mounts.iter().map(detach).collect::<Result<_>>().map(Self)
    }

    /// Whether the app has no volumes.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Attaches all but the shared ones in the mount namespace of this process, and makes the missing mount points.
    pub(crate) fn attach(&self, root: &OwnedFd) -> Result<()> {
        self.attach_those(root, false)
    }

    /// Attaches the shared ones, after everything else: a mount inside one would appear on the host, and stay there.
    pub(crate) fn attach_shared(&self, root: &OwnedFd) -> Result<()> {
        self.attach_those(root, true)
    }

    fn attach_those(&self, root: &OwnedFd, shared: bool) -> Result<()> {
        for DetachedMount { tree, target, is_dir, is_nested, .. } in self.0.iter().filter(|it| it.is_shared == shared) {
            let what = || format!("cannot mount at '{}'", shown(target));
            let mut attempts = if *is_nested { MAX_ATTEMPTS } else { 1 };
            while !is_attached(root, tree, target, *is_dir).or_else(|error| match attempts {
                0 | 1 => Err(mount_failure(error, root, target, *is_dir)),
                _ => Ok(false),
            })? {
                attempts = attempts.saturating_sub(1);
                if attempts == 0 {
                    let why = "its directory was replaced while it was mounted";
                    return Err(failure(ErrorKind::Refused, format!("{}: {why}", what())));
                }
                std::thread::sleep(RETRY_INTERVAL);
            }
        }
        Ok(())
    }
}

/// A mount failed, perhaps because only one of the volume and its target is a directory.
fn mount_failure(error: Errno, root: &OwnedFd, target: &str, is_dir: bool) -> Failure {
    let what = format!("cannot mount at '{}'", shown(target));
    let found = open_beneath(root, target, OFlags::PATH).and_then(|found| is_directory(&found));
    let why = match (is_dir, found) {
        (true, Ok(false)) => "the volume is a directory, and in the app a file has this path",
        (false, Ok(true)) => "the volume is a file, and in the app a directory has this path",
        _ => {
            let error = std::io::Error::from(error);
            return failure(ErrorKind::of_io(&error), format!("{what}: {error}"));
        }
    };
    failure(ErrorKind::Invalid, format!("{what}: {why}"))
}

/// Refuses a mount inside one that is shared with the host, where it would appear, and a covered path inside one,
/// because covering it takes a mount. Shared mounts are attached last, so one at a covered path, or inside it, would
/// uncover it: that is refused, too. `mounts`: outer ones first.
pub(crate) fn check_shared(mounts: &[AppMount], covered: &CoveredPaths) -> Result<()> {
    const WHY: &str = "it is inside a volume that is mounted rshared, and would appear on the host";
    for outer in mounts.iter().filter(|mount| mount.propagation == Propagation::Shared) {
        if let Some(mount) = mounts.iter().find(|mount| is_inside(mount, outer)) {
            return Err(failure(ErrorKind::Invalid, format!("cannot mount at '{}': {WHY}", shown(&mount.target))));
        }
        if let Some(path) = covered.inside(&outer.target) {
            return Err(failure(ErrorKind::Invalid, format!("cannot hide or protect '{}': {WHY}", shown(path))));
        }
        if let Some(path) = covered.around(&outer.target) {
            let what = format!("cannot mount rshared at '{}'", shown(&outer.target));
            let why = format!("'{}' is hidden or read-only in the app", shown(path));
            return Err(failure(ErrorKind::Invalid, format!("{what}: {why}")));
        }
    }
    Ok(())
}

/// Moves a mount to its target, also from where an earlier attempt has put it; returns whether the target's path leads
/// to it.
fn is_attached(root: &OwnedFd, tree: &OwnedFd, path: &str, is_dir: bool) -> rustix::io::Result<bool> {
    let target = open_target(root, path, is_dir)?;
    if mount_id(&target)? == mount_id(tree)? {
        // Where an earlier attempt has left it.
        return Ok(true);
    }
    attach(tree, &target)?;
    let found = open_beneath(root, path, OFlags::PATH);
    Ok(found.and_then(|found| Ok(mount_id(&found)? == mount_id(tree)?)) == Ok(true))
}

/// Attaches a mount to an opened directory or file.
pub(crate) fn attach(mount: &OwnedFd, target: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

/// Whether a mount's target is in the directory that another mount covers.
fn is_inside(mount: &AppMount, outer: &AppMount) -> bool {
    mount.target.strip_prefix(outer.target.as_str()).is_some_and(|rest| rest.starts_with('/'))
}

/// What is mounted, as a mount that is attached nowhere.
fn open_mount(mount: &AppMount, user: Option<&UserNamespace>) -> Result<OwnedFd> {
    let what = || format!("cannot mount at '{}'", shown(&mount.target));
    let tree = if mount.is_tmpfs() { make_tmpfs(mount, user)? } else { clone_volume(mount).attempt(what)? };
    if let Some(user) = user.filter(|_| mount.has_ids_of_pod) {
        user.map_mount(&tree, &format!("'{}'", shown(&mount.target)))?;
    }
    Ok(tree)
}

/// The volume as a mount of its own, with the restrictions of this app.
fn clone_volume(mount: &AppMount) -> std::io::Result<OwnedFd> {
    let read_only = match (mount.is_read_only(), mount.is_read_only_at_top()) {
        (true, _) => ReadOnlyMounts::All,
        (false, true) => ReadOnlyMounts::Top,
        (false, false) => ReadOnlyMounts::None,
    };
    let propagation = match mount.propagation {
        Propagation::Private => MountPropagationFlags::PRIVATE,
        Propagation::Slave => MountPropagationFlags::DOWNSTREAM,
        Propagation::Shared => MountPropagationFlags::SHARED,
    };
    let restrictions = Restrictions { read_only, recursive: true, allows_devices: mount.allows_devices(), propagation };
    clone_restricted(CloneSource::Path(Path::new(&mount.source)), restrictions)
}

/// A new file system in memory. Its owner is one of the pod.
fn make_tmpfs(mount: &AppMount, user: Option<&UserNamespace>) -> Result<OwnedFd> {
    let what = || format!("cannot mount at '{}'", shown(&mount.target));
    let mut attributes = MountAttrFlags::empty();
    let mut options = Vec::new();
    for option in &mount.options {
        match (option.as_str(), option.split_once('='), user) {
            ("nosuid", ..) => attributes |= MountAttrFlags::MOUNT_ATTR_NOSUID,
            ("nodev", ..) => attributes |= MountAttrFlags::MOUNT_ATTR_NODEV,
            ("noexec", ..) => attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC,
            ("ro", ..) => attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY,
            (_, Some(("uid", id)), Some(user)) => options.push(format!("uid={}", user.host_uid(parse_id(id)?)?)),
            (_, Some(("gid", id)), Some(user)) => options.push(format!("gid={}", user.host_gid(parse_id(id)?)?)),
            (option, ..) => options.push(option.to_owned()),
        }
    }
    make_file_system("tmpfs", &options, attributes).attempt(what)
}

/// For a file system without options.
pub(crate) const NO_OPTIONS: &[&str] = &[];

/// Makes a mount of a new file system that is attached nowhere. The options are those of mount(8).
pub(crate) fn make_file_system(
    kind: &str,
    options: &[impl AsRef<str>],
    attributes: MountAttrFlags,
) -> rustix::io::Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Shown in mountinfo, as mount(8) would.
    fsconfig_set_string(&fs, "source", kind)?;
    for option in options {
        match option.as_ref().split_once('=') {
            Some((key, value)) => fsconfig_set_string(&fs, key, value)?,
            None => fsconfig_set_flag(&fs, option.as_ref())?,
        }
    }
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn parse_id(text: &str) -> Result<u32> {
    text.parse().map_err(|_| failure(ErrorKind::Internal, format!("the owner '{}' is not a number", shown(text))))
}

fn is_directory(file: &OwnedFd) -> rustix::io::Result<bool> {
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

/// Opens a directory in another one, and makes it if it does not exist.
pub(crate) fn open_or_make_dir(dir: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let open = || open_beneath(dir, name, OFlags::PATH | OFlags::DIRECTORY);
    match open() {
        Err(Errno::NOENT) => match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => open(),
            Err(error) => Err(error),
        },
        other => other,
    }
}
