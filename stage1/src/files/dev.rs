//! Makes the /dev of an app: a tmpfs of its own with the devices and links of the OCI runtime specification ("Default
//! Devices", "Dev symbolic links") and the devices of the host that the app was given.
//!
//! The maker makes it detached, with the supervisor's rights: root of a user namespace could not make the nodes. In
//! such a namespace the nodes work nevertheless, because the file system belongs to the host.

use std::os::fd::OwnedFd;

use gantry_contract::plan::{App, Plan};
use gantry_model::id::shown;
use gantry_model::namespaces::IpcMode;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use crate::cgroup::devices::Device;
use crate::failure::{Attempt, Result};
use crate::files::mounts::{self, open_beneath, open_or_make_dir};
use crate::pod::user_namespace::UserNamespace;

/// Maximum total size of the files in an app's /dev.
const SIZE: &str = "65536k";

/// Mount points in every /dev; `shm` is added if the pod has a /dev/shm.
const MOUNT_POINTS: [&str; 2] = ["mqueue", "pts"];

/// The links in it, with their targets.
const LINKS: [(&str, &str); 6] = [
    ("core", "/proc/kcore"),
    ("fd", "/proc/self/fd"),
    ("ptmx", "pts/ptmx"),
    ("stderr", "/proc/self/fd/2"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
];

/// The mount point of the terminal, in an app with one.
pub(crate) const CONSOLE: &str = "console";

/// The node of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceNode<'a> {
    /// Its path, below /dev.
    pub(crate) path: &'a str,
    /// Whether it is a block device; otherwise a character device.
    pub(crate) is_block: bool,
    /// Its major number.
    pub(crate) major: u32,
    /// Its minor number.
    pub(crate) minor: u32,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Its owner in the pod.
    pub(crate) uid: u32,
    /// Its group in the pod.
    pub(crate) gid: u32,
}

/// The devices of every app.
const DEFAULT_NODES: [DeviceNode<'static>; 6] = [
    default_node("/dev/null", 1, 3),
    default_node("/dev/zero", 1, 5),
    default_node("/dev/full", 1, 7),
    default_node("/dev/random", 1, 8),
    default_node("/dev/urandom", 1, 9),
    default_node("/dev/tty", 5, 0),
];

const fn default_node(path: &'static str, major: u32, minor: u32) -> DeviceNode<'static> {
    DeviceNode { path, is_block: false, major, minor, mode: 0o666, uid: 0, gid: 0 }
}

/// Makes the /dev of an app as a mount that is attached nowhere.
pub(crate) fn make(plan: &Plan, app: &App, devices: &[Device], user: Option<&UserNamespace>) -> Result<OwnedFd> {
    let what = || "cannot make the app's /dev";
    let (uid, gid) = user.map_or((0, 0), |user| (user.ids.uids.host, user.ids.gids.host));
    let options = ["mode=755".to_owned(), format!("size={SIZE}"), format!("uid={uid}"), format!("gid={gid}")];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_STRICTATIME;
    let dev = mounts::make_file_system("tmpfs", &options, attributes).attempt(what)?;
    // Files made from here on belong to root of the pod.
    let _as_root = user.map(UserNamespace::as_root).transpose()?;
    for name in MOUNT_POINTS.into_iter().chain((plan.ipc != IpcMode::None).then_some("shm")) {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755)).attempt(what)?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, &dev, name).attempt(what)?;
    }
    if app.options.terminal {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&dev, CONSOLE, flags, Mode::from_raw_mode(0o600)).attempt(what)?;
    }
    let umask = rustix::process::umask(Mode::empty());
    let made = DEFAULT_NODES.iter().try_for_each(|node| make_node(&dev, node).map(drop));
    let given = || devices.iter().try_for_each(|device| make_given_node(&dev, &device.as_node(), user));
    let made = made.and_then(|()| given());
    rustix::process::umask(umask);
    made.map(|()| dev)
}

/// Makes the node of a device of the host, with its owner.
fn make_given_node(dev: &OwnedFd, node: &DeviceNode<'_>, user: Option<&UserNamespace>) -> Result<()> {
    let name = make_node(dev, node)?;
    // An owner that the pod does not have is replaced by its root.
    let (uid, gid) = user.map_or((Some(node.uid), Some(node.gid)), |user| {
        (user.ids.uids.to_host(node.uid), user.ids.gids.to_host(node.gid))
    });
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(dev, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).attempt(|| what(node))
}

/// Makes a node with its permissions, and the directories above it; returns its path in /dev.
fn make_node<'a>(dev: &OwnedFd, node: &DeviceNode<'a>) -> Result<&'a str> {
    let what = || what(node);
    let name = node.path.strip_prefix("/dev/").ok_or(Errno::INVAL).attempt(what)?;
    if let Some((parents, _)) = name.rsplit_once('/') {
        let mut dir = open_beneath(dev, "/", OFlags::PATH | OFlags::DIRECTORY).attempt(what)?;
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            dir = open_or_make_dir(&dir, part).attempt(what)?;
        }
    }
    let kind = if node.is_block { FileType::BlockDevice } else { FileType::CharacterDevice };
    let number = rustix::fs::makedev(node.major, node.minor);
    rustix::fs::mknodat(dev, name, kind, Mode::from_raw_mode(node.mode), number).attempt(what)?;
    Ok(name)
}

fn what(node: &DeviceNode<'_>) -> String {
    format!("cannot make the device {}", shown(node.path))
}
