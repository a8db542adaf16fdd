//! The supervisor's jail: the pod's namespaces, and a mount tree with nothing but the pod's files.
//!
//! ```text
//! /                tmpfs; unmounted with the last process of this mount namespace
//! /proc            the host's PID namespace, for /proc/PID/ns/pid
//! /pod /trees      the pod directory and the layers, bound
//! /volumes/NAME    host volumes, cloned before the host's tree was unmounted
//! /shm             /dev/shm of every app of the pod
//! /bundles/APP     root (the overlay), and the socket for messages of the app's readiness
//! /mapped          with a user namespace: the pod directory with its ids
//! ```
//!
//! Without the host's mounts, a pod keeps none of them busy, its overlay mounts are visible nowhere else, the cost of
//! starting an app does not depend on the host's mount table, and `kill -9` unmounts everything.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use gantry_contract::plan::{Plan, propagation};
use gantry_model::mount_options::Propagation;
use gantry_model::namespaces::{IpcMode, UtsMode};
use gantry_model::spec::{PodFlavor, VolumeKind};
use gantry_model::{ErrorKind, PodLogDir};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind, mount_change,
    move_mount, open_tree, unmount,
};

use crate::failure::{Attempt, Result, failure};
use crate::files::image_volume;
use crate::pod::user_namespace::UserNamespace;
use crate::sys;

/// Descriptors of the pod's files.
pub(crate) struct Jail {
    /// The pod directory.
    pub(crate) pod_dir: OwnedFd,
    /// `/dev/null` of the host.
    pub(crate) null: OwnedFd,
    /// The host's file system, in a host pod.
    pub(crate) host: Option<Rc<HostFileSystem>>,
    /// The directory of log files at chosen paths.
    pub(crate) log_dir: Option<OwnedFd>,
    /// The pod's user namespace, if it has one of its own.
    pub(crate) user: Option<Rc<UserNamespace>>,
}

/// The host's file system, for the apps of a host pod: they are outside of the jail.
#[derive(Debug)]
pub(crate) struct HostFileSystem {
    /// The host's root directory.
    pub(crate) root: OwnedFd,
    /// The host's mount namespace.
    pub(crate) namespace: OwnedFd,
}

impl HostFileSystem {
    /// Opens it, in the host's mount namespace.
    fn open() -> Result<Self> {
        let root = open_dir("/").attempt(|| "cannot open the host's root directory")?;
        let namespace = rustix::fs::open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .attempt(|| "cannot open the host's mount namespace")?;
        Ok(Self { root, namespace })
    }
}

/// Enters the pod's namespaces, except the network namespace ([`crate::pod::network`]), and a mount tree of its own.
/// The order of the steps matters for security.
pub(crate) fn enter(plan: &Plan, user: Option<UserNamespace>) -> Result<Jail> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .attempt(|| "cannot open /dev/null")?;
    let host = match plan.flavor {
        PodFlavor::Container => None,
        PodFlavor::Host => Some(Rc::new(HostFileSystem::open()?)),
    };
    let of_ipc = if plan.ipc == IpcMode::Host { 0 } else { libc::CLONE_NEWIPC };
    let of_uts = if plan.uts == UtsMode::Host { 0 } else { libc::CLONE_NEWUTS };
    let (made, entered) = if user.is_some() { (0, of_ipc | of_uts) } else { (of_ipc | of_uts, 0) };
    sys::unshare(libc::CLONE_NEWNS | made).attempt(|| "cannot make the pod's namespaces")?;
    user.as_ref().map_or(Ok(()), |user| user.enter(entered)).attempt(|| "cannot enter the pod's namespaces")?;
    if plan.uts == UtsMode::Pod {
        rustix::system::sethostname(plan.hostname.as_bytes()).attempt(|| "cannot set the pod's hostname")?;
    }
    // A mount leaves its peer group by the next step.
    let mut volumes = clone_volumes(plan, |propagation| propagation == Propagation::Shared)?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .attempt(|| "cannot make the pod's mounts invisible to the host")?;
    // Opened in this mount namespace: a mount of another one cannot be bound.
    let pod_dir = open_dir(&plan.pod_dir).attempt(|| format!("cannot open the pod directory {}", plan.pod_dir))?;
    let trees = open_dir(&plan.trees_dir).attempt(|| format!("cannot open the layers in {}", plan.trees_dir))?;
    volumes.extend(clone_volumes(plan, |propagation| propagation != Propagation::Shared)?);
    let log_dir = plan.log_dir.as_ref().map(clone_log_dir).transpose()?;
    build_root(plan, user.as_ref(), &pod_dir, &trees)?;
    let (propagating, private): (Vec<_>, Vec<_>) =
        volumes.into_iter().partition(|volume| volume.propagation.propagates());
    for volume in &private {
        attach_volume(&volume.name, &volume.tree, volume.is_file)?;
    }
    // Not before these trees are in this namespace. Later mounts of the host below a volume must not propagate to apps:
    // they would be writable, and neither nosuid nor nodev.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .attempt(|| "cannot keep later mounts of the host out of the pod")?;
    for volume in &propagating {
        attach_volume(&volume.name, &volume.tree, volume.is_file)?;
    }
    for volume in &plan.volumes {
        if let VolumeKind::Image { layers, sub_path, .. } = &volume.kind {
            add_volume(volume.name.as_str(), &image_volume::open(layers, sub_path)?, Propagation::Private)?;
        }
    }
    let pod_dir = open_dir("/pod").attempt(|| "cannot open the pod directory from inside")?;
    Ok(Jail { pod_dir, null, host, log_dir, user: user.map(Rc::new) })
}

/// Clones the mount of the log directory, of which only the supervisor has a descriptor.
fn clone_log_dir(dir: &PodLogDir) -> Result<OwnedFd> {
    let refused = |why: &str| {
        let dir = gantry_model::id::shown(dir.as_str());
        failure(ErrorKind::Refused, format!("cannot use '{dir}' as log directory: {why}"))
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = match open_tree(CWD, dir.as_path(), flags) {
        Ok(tree) => tree,
        Err(rustix::io::Errno::NOENT) => return Err(refused("it does not exist: make it first")),
        Err(errno) => return Err(refused(&errno.to_string())),
    };
    let stat = rustix::fs::fstat(&tree).map_err(|errno| refused(&errno.to_string()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(tree),
        // A symbolic link, too: its target may be another one at each start.
        _ => Err(refused("it is not a directory")),
    }
}

/// The mount tree of a volume.
struct ClonedVolume {
    name: String,
    tree: OwnedFd,
    is_file: bool,
    propagation: Propagation,
}

/// Clones the mount tree of each host volume with such a propagation while the host's paths are reachable. Every source
/// is opened once and checked by that descriptor, so that replacing it meanwhile has no effect.
fn clone_volumes(plan: &Plan, is_wanted: impl Fn(Propagation) -> bool) -> Result<Vec<ClonedVolume>> {
    let mut trees = Vec::new();
    for volume in &plan.volumes {
        let propagation = propagation(plan.apps.iter().flat_map(|app| &app.mounts), volume);
        if !is_wanted(propagation) {
            continue;
        }
        let (source, recursive) = match &volume.kind {
            VolumeKind::Host { source, recursive } => (source.clone(), *recursive),
            VolumeKind::Named { volume } => (format!("{}/{volume}", plan.volumes_dir), false),
            VolumeKind::Anonymous | VolumeKind::Empty { .. } | VolumeKind::Image { .. } => continue,
        };
        let what = || format!("cannot use '{}' as volume '{}'", gantry_model::id::shown(&source), volume.name);
        check_peers(&source, propagation)?;
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        if recursive {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        let tree = open_tree(CWD, source.as_str(), flags).attempt(what)?;
        let stat = rustix::fs::fstat(&tree).attempt(what)?;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        trees.push(ClonedVolume { name: volume.name.to_string(), tree, is_file: !is_dir, propagation });
    }
    Ok(trees)
}

/// Refuses a source whose mount cannot propagate.
fn check_peers(source: &str, propagation: Propagation) -> Result<()> {
    if !propagation.propagates() {
        return Ok(());
    }
    let groups = gantry_host::mounts::peer_groups(source.as_ref())
        .attempt(|| format!("cannot inspect the mount of '{}'", gantry_model::id::shown(source)))?;
    propagation
        .check_source(source, groups.is_shared, groups.is_slave)
        .map_err(|error| failure(ErrorKind::Invalid, error.to_string()))
}

/// Mounts what is /dev/shm in the apps.
fn mount_shm(plan: &Plan) -> std::io::Result<()> {
    match plan.ipc {
        IpcMode::Pod => {
            let (uid, gid) = plan.user_ids.map_or((0, 0), |ids| (ids.uids.host, ids.gids.host));
            let options = CString::new(format!("mode=1777,size={},uid={uid},gid={gid}", plan.shm_size))?;
            let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            Ok(mount("shm", "shm", "tmpfs", quiet, options.as_c_str())?)
        }
        IpcMode::Host => Ok(mount_bind("/dev/shm", "shm")?),
        IpcMode::None => Ok(()),
    }
}

/// Mounts the new root over the pod directory, fills it and makes it the root.
fn build_root(plan: &Plan, user: Option<&UserNamespace>, pod_dir: &OwnedFd, trees: &OwnedFd) -> Result<()> {
    let over = plan.pod_dir.as_str();
    let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    // Root of a user namespace must reach the mount points below it while it makes an app; no app sees this tree.
    let (mode, options) = match user {
        Some(_) => (0o711, c"mode=0711,size=16m"),
        None => (0o700, c"mode=0700,size=16m"),
    };
    mount("tmpfs", over, "tmpfs", quiet, options).attempt(|| "cannot mount the supervisor's root")?;
    rustix::process::chdir(over).attempt(|| "cannot enter the supervisor's root")?;
    let dirs = ["proc", "pod", "trees", "volumes", "shm", "bundles"];
    let of_user_namespace: &[_] = if user.is_some() { &["mapped"] } else { &[] };
    for dir in dirs.iter().chain(of_user_namespace) {
        rustix::fs::mkdirat(CWD, *dir, Mode::from_raw_mode(mode))
            .attempt(|| format!("cannot make /{dir} of the supervisor's root"))?;
    }
    mount_bind(fd_path(pod_dir), "pod").attempt(|| "cannot bind the pod directory")?;
    match user {
        Some(user) => {
            mount_mapped(user, pod_dir, "mapped", &plan.pod_dir)?;
            mount_mapped(user, trees, "trees", &plan.trees_dir)?;
        }
        None => mount_bind(fd_path(trees), "trees").attempt(|| "cannot bind the layers")?,
    }
    mount("proc", "proc", "proc", quiet, None).attempt(|| "cannot mount /proc for the supervisor")?;
    mount_shm(plan).attempt(|| "cannot mount the pod's /dev/shm")?;
    rustix::process::pivot_root(".", ".").attempt(|| {
        // pivot_root fails with EINVAL if the root is the initramfs.
        "cannot make the supervisor's root the root (a host that runs from its initramfs must switch_root to a tmpfs first)"
    })?;
    unmount(".", UnmountFlags::DETACH).attempt(|| "cannot unmount the host's mounts")?;
    rustix::process::chdir("/").attempt(|| "cannot enter /")
}

/// Mounts a directory of the host with the ids of the pod. `shown` is its path on the host.
fn mount_mapped(user: &UserNamespace, dir: &OwnedFd, target: &str, shown: &str) -> Result<()> {
    let what = || format!("cannot mount {shown} for the pod's user namespace");
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(dir, "", flags).attempt(what)?;
    user.map_mount(&tree, shown)?;
    move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).attempt(what)
}

fn attach_volume(name: &str, tree: &OwnedFd, is_file: bool) -> Result<()> {
    let what = || format!("cannot mount volume '{name}'");
    let path = volume_path(name);
    if is_file {
        rustix::fs::open(
            &path,
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )
        .attempt(what)?;
    } else {
        rustix::fs::mkdirat(CWD, &path, Mode::from_raw_mode(0o700)).attempt(what)?;
    }
    move_mount(tree, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .attempt(what)
        .inspect_err(|_| remove_volume(name))
}

/// Adds the volume that this detached mount is to the running pod. It stays in the peer group of the host's mount if
/// that is shared and an app is to share it, and receives the host's later mounts if an app is to see them.
pub(crate) fn add_volume(name: &str, tree: &OwnedFd, propagation: Propagation) -> Result<()> {
    let what = || format!("cannot mount volume '{name}'");
    let is_dir = FileType::from_raw_mode(rustix::fs::fstat(tree).attempt(what)?.st_mode) == FileType::Directory;
    attach_volume(name, tree, !is_dir)?;
    let flags = match propagation {
        Propagation::Shared => return Ok(()),
        Propagation::Slave => MountPropagationFlags::DOWNSTREAM,
        // As in `enter`: later mounts of the host below it must not propagate to apps.
        Propagation::Private => MountPropagationFlags::PRIVATE,
    };
    mount_change(volume_path(name), flags | MountPropagationFlags::REC)
        .attempt(what)
        .inspect_err(|_| remove_volume(name))
}

/// Unmounts a volume of the running pod that no app mounts any more.
pub(crate) fn remove_volume(name: &str) {
    let path = volume_path(name);
    // Unmounting a shared mount would unmount what is mounted below it on the host, too.
    match mount_change(&path, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC) {
        // It is not mounted.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(error) => {
            tracing::warn!("volume '{name}' stays mounted until the pod ends: it cannot be made private: {error}");
            return;
        }
    }
    // A mount that stays ends with the pod. Until then, adding a volume of this name fails.
    let _ends_with_the_pod = unmount(&path, UnmountFlags::DETACH);
    let _is_file = rustix::fs::unlinkat(CWD, &path, AtFlags::REMOVEDIR);
    let _is_directory = rustix::fs::unlinkat(CWD, &path, AtFlags::empty());
}

/// The path of a host volume in the supervisor's tree.
pub(crate) fn volume_path(name: &str) -> String {
    format!("/volumes/{name}")
}

fn fd_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn open_dir(path: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
}

/// Checks that the kernel has openat2, pidfds and the mount calls used here.
pub(crate) fn check_kernel() -> Result<()> {
    require_kernel((5, 12), "gantry needs 5.12 or newer")
}

/// Checks the version of the kernel.
pub(crate) fn require_kernel(wanted: (u32, u32), needs: &str) -> Result<()> {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < wanted {
        return Err(failure(ErrorKind::Unavailable, format!("Linux {release} is too old: {needs}")));
    }
    Ok(())
}
