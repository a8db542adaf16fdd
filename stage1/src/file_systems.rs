//! The file systems of an app: its root, the kernel's file systems, /dev, and its volumes.
//!
//! The maker ([`crate::maker`]) prepares them as mounts that are attached nowhere, with the supervisor's rights. The
//! app's process attaches them in its own mount namespace, and then makes the app's root its root. Every place is
//! opened beneath that root without following links, and mounts are attached to descriptors, so that no swap of a path
//! in a shared volume moves a mount ([`crate::mounts`]).
//!
//! | file system | made by | because |
//! |---|---|---|
//! | `/dev`, with its nodes ([`crate::dev`]), `/dev/shm`, volumes | the maker | root of a user namespace could not |
//! | `/sys`, `/dev/mqueue` | the maker | it is in the pod's network and IPC namespaces |
//! | `/proc` | the app's process | it shows the PID namespace of the process that mounts it |
//! | `/dev/pts` | the app's process | terminals belong to the users of its user namespace |
//!
//! The order is: these file systems, the volumes from the outer to the inner ones, the covered paths
//! ([`crate::covered_paths`]), the root.

use std::os::fd::{AsFd as _, OwnedFd};

use gantry_contract::plan::{App, Plan};
use gantry_model::namespaces::IpcMode;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_change, move_mount,
    open_tree, unmount,
};

use crate::covered_paths::CoveredPaths;
use crate::devices::Device;
use crate::failure::{Attempt, Result};
use crate::mounts::{DetachedMounts, QUIET, attach, make_file_system, open_beneath, open_target};
use crate::root::root_path;
use crate::user_namespace::UserNamespace;
use crate::volumes::AppMount;
use crate::{dev, sys, terminal};

const NO_OPTIONS: &[&str] = &[];

/// The group of terminals.
const TTY: u32 = 5;

/// The file systems of an app, attached nowhere.
pub(crate) struct FileSystems<'a> {
    app: &'a App,
    dev: OwnedFd,
    /// `None` in a pod without one (`--ipc=none`).
    shm: Option<OwnedFd>,
    mqueue: OwnedFd,
    sys: OwnedFd,
    /// Whether the user namespace of the app has the group of terminals.
    has_tty_group: bool,
    volumes: DetachedMounts,
}

/// What an app's process takes from its file systems before it is confined.
pub(crate) struct Opened {
    /// The app's `/dev/null`.
    pub(crate) null: OwnedFd,
    /// The master and the other end of the app's terminal, if it has one.
    pub(crate) terminal: Option<(OwnedFd, OwnedFd)>,
}

impl<'a> FileSystems<'a> {
    /// Makes what the app's process could not make. `root` is the app's, in which the missing mount points are made.
    pub(crate) fn prepare(
        plan: &Plan,
        app: &'a App,
        root: &OwnedFd,
        devices: &[Device],
        volumes: &[AppMount],
        user: Option<&UserNamespace>,
    ) -> Result<Self> {
        let as_root = user.map(UserNamespace::as_root).transpose()?;
        for path in ["/proc", "/dev", "/sys"] {
            open_target(root, path, true).attempt(|| format!("cannot make {path} in the app's root"))?;
        }
        drop(as_root);
        let sys =
            QUIET | if app.options.privileged { MountAttrFlags::empty() } else { MountAttrFlags::MOUNT_ATTR_RDONLY };
        Ok(Self {
            app,
            dev: dev::make(plan, app, devices, user)?,
            shm: (plan.ipc != IpcMode::None).then(clone_shm).transpose()?,
            mqueue: make_file_system("mqueue", NO_OPTIONS, QUIET).attempt(|| "cannot make the app's /dev/mqueue")?,
            sys: make_file_system("sysfs", NO_OPTIONS, sys).attempt(|| "cannot make the app's /sys")?,
            has_tty_group: plan.user_ids.is_none_or(|ids| ids.gids.to_host(TTY).is_some()),
            volumes: DetachedMounts::prepare(volumes, user)?,
        })
    }

    /// Attaches them in this process's mount namespace, a copy of the supervisor's that belongs to this process alone,
    /// and makes the app's root the root. `uid` becomes the owner of the terminal.
    pub(crate) fn enter(self, covered: &CoveredPaths, uid: u32) -> Result<Opened> {
        // Otherwise unmounting the supervisor's tree would propagate.
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .attempt(|| "cannot make the app's mounts private")?;
        let root = open_root(&self.app.name).attempt(|| "cannot mount the app's root")?;
        let terminals = self.attach_own(&root)?;
        self.volumes.attach(&root)?;
        let terminal = self.app.options.terminal.then(|| open_terminal(&root, &terminals, uid)).transpose();
        let terminal = terminal.attempt(|| "cannot make the app's terminal")?;
        covered.cover(&root)?;
        if self.app.options.read_only_root {
            sys::add_mount_attributes(root.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, false)
                .attempt(|| "cannot make the app's root read-only")?;
        }
        let null = terminal::open_null(&root).attempt(|| "cannot open /dev/null of the app")?;
        change_root(&root).attempt(|| "cannot make the app's root the root")?;
        Ok(Opened { null, terminal })
    }

    /// Attaches the file systems that every app has; returns that of the terminals.
    fn attach_own(&self, root: &OwnedFd) -> Result<OwnedFd> {
        let place = |mount: &OwnedFd, path: &str| {
            open_beneath(root, path, OFlags::PATH | OFlags::DIRECTORY)
                .and_then(|target| attach(mount, &target))
                .attempt(|| format!("cannot mount the app's {path}"))
        };
        place(&make_file_system("proc", NO_OPTIONS, QUIET).attempt(|| "cannot make the app's /proc")?, "/proc")?;
        place(&self.dev, "/dev")?;
        let mut options = vec!["ptmxmode=0666", "mode=0620"];
        options.extend(self.has_tty_group.then_some("gid=5"));
        let terminals = make_file_system("devpts", &options, QUIET - MountAttrFlags::MOUNT_ATTR_NODEV)
            .attempt(|| "cannot make the app's /dev/pts")?;
        place(&terminals, "/dev/pts")?;
        if let Some(shm) = &self.shm {
            place(shm, "/dev/shm")?;
        }
        place(&self.mqueue, "/dev/mqueue")?;
        place(&self.sys, "/sys")?;
        Ok(terminals)
    }
}

/// The pod's `/dev/shm`, as a mount of this app's own.
fn clone_shm() -> Result<OwnedFd> {
    let what = || "cannot mount the pod's /dev/shm";
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let shm = open_tree(CWD, "/shm", flags).attempt(what)?;
    sys::add_mount_attributes(shm.as_fd(), QUIET, false).attempt(what)?;
    Ok(shm)
}

/// Mounts the app's root a second time, on top of itself: the first mount cannot become the root in a user namespace,
/// where the mounts of the supervisor's namespace are locked (mount_namespaces(7)).
fn open_root(app: &str) -> rustix::io::Result<OwnedFd> {
    let path = root_path(app);
    let root = open_tree(CWD, &path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    move_mount(&root, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(root)
}

/// Makes a terminal of the app and mounts it at /dev/console. It comes from the app's file system of terminals, opened
/// by that mount (CVE-2025-52565).
fn open_terminal(root: &OwnedFd, terminals: &OwnedFd, uid: u32) -> std::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let master = rustix::fs::openat2(terminals, "ptmx", flags, Mode::empty(), ResolveFlags::BENEATH)?;
    let peer = sys::terminal_peer(master.as_fd())?;
    rustix::fs::fchown(&peer, Some(rustix::fs::Uid::from_raw(uid)), None)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let console = open_tree(&peer, "", flags)?;
    let target = open_beneath(root, &format!("/dev/{}", dev::CONSOLE), OFlags::PATH)?;
    attach(&console, &target)?;
    Ok((master, peer))
}

/// Makes a mount the root, and unmounts the former root.
fn change_root(root: &OwnedFd) -> rustix::io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}
