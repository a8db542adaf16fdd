//! The file systems of an app: its root, the kernel's file systems, /dev, and its volumes.
//!
//! The maker ([`crate::app::maker`]) prepares them as mounts that are attached nowhere, with the supervisor's rights.
//! The app's process attaches them in its own mount namespace, and then makes the app's root its root. Every mount
//! point is opened beneath that root without following links, and mounts are attached to descriptors, so that no swap
//! of a path in a shared volume moves a mount ([`crate::files::mounts`]).
//!
//! | file system | made by | because |
//! |---|---|---|
//! | `/dev`, with its nodes ([`crate::files::dev`]), `/dev/shm`, volumes | the maker | root of a user namespace could not |
//! | `/sys`, `/dev/mqueue` | the maker | it is in the pod's network and IPC namespaces |
//! | `/proc` | the app's process | it shows the PID namespace of the process that mounts it |
//! | `/dev/pts` | the app's process | terminals belong to the users of its user namespace |
//!
//! The order is: these file systems, the terminal, the volumes from the outer to the inner ones, the covered paths
//! ([`crate::files::covered_paths`]), the root, the app's cgroups, the volumes that are shared with the host, and the
//! working directory, which may be in any of them.
//!
//! In a pod with a user namespace, the mounts of the maker and the volumes are attached in a mount namespace of the
//! host's user namespace. The mount namespace that belongs to the pod is a copy of it, in which the kernel locks their
//! flags (mount_namespaces(7)): an app with CAP_SYS_ADMIN cannot make a read-only volume writable.

use std::os::fd::{AsFd as _, OwnedFd};

use gantry_contract::plan::{App, Plan};
use gantry_model::namespaces::IpcMode;
use gantry_model::spec::{is_at_or_below, normal};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_change, move_mount,
    open_tree, unmount,
};

use crate::app::terminal;
use crate::cgroup::devices::Device;
use crate::failure::{Attempt, Result};
use crate::files::covered_paths::CoveredPaths;
use crate::files::dev;
use crate::files::mounts::{DetachedMounts, NO_OPTIONS, QUIET, attach, make_file_system, open_beneath, open_target};
use crate::files::root::{make_missing_working_dir, root_path};
use crate::files::volumes::AppMount;
use crate::pod::user_namespace::UserNamespace;
use crate::sys;

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
    /// Whether the pod has a user namespace of its own.
    has_user_namespace: bool,
}

/// What an app's process takes from its file systems before it is confined.
pub(crate) struct Opened {
    /// The app's `/dev/null`.
    pub(crate) null: OwnedFd,
    /// The master and the other end of the app's terminal, if it has one.
    pub(crate) terminal: Option<(OwnedFd, OwnedFd)>,
}

impl<'a> FileSystems<'a> {
    /// Makes what needs the supervisor's rights. `root` is the app's, in which the missing mount points are made.
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
            has_user_namespace: user.is_some(),
        })
    }

    /// Attaches the maker's mounts and the volumes. The process then joins the pod's user namespace and copies its
    /// mount namespace there. It must be alone in its present mount namespace.
    pub(crate) fn attach_before_joining(&self, user: &UserNamespace) -> Result<()> {
        let root = self.begin()?;
        // Missing mount points belong to root of the pod.
        let _as_root = user.as_root()?;
        self.attach_made(&root)?;
        self.volumes.attach(&root)
    }

    /// Attaches the rest in this process's mount namespace, which belongs to this process alone, and makes the app's
    /// root the root. `uid` becomes the owner of the terminal. [`Self::complete`] is the last step.
    pub(crate) fn enter(&self, covered: &CoveredPaths, uid: u32) -> Result<Opened> {
        let root = if self.has_user_namespace {
            // It contains copies of what `attach_before_joining` has attached.
            open_root(&self.app.name).attempt(|| "cannot mount the app's root")?
        } else {
            let root = self.begin()?;
            self.attach_made(&root)?;
            root
        };
        // Opened now, because a volume that is attached below may cover it.
        let dev =
            open_beneath(&root, "/dev", OFlags::PATH | OFlags::DIRECTORY).attempt(|| "cannot open the app's /dev")?;
        let terminals = self.attach_own(&root)?;
        let null = terminal::open_null(&dev).attempt(|| "cannot open /dev/null of the app")?;
        let terminal = self.app.options.terminal.then(|| open_terminal(&dev, &terminals, uid)).transpose();
        let terminal = terminal.attempt(|| "cannot make the app's terminal")?;
        if !self.has_user_namespace {
            self.volumes.attach(&root)?;
        }
        covered.cover(&root, &null)?;
        change_root(&root).attempt(|| "cannot make the app's root the root")?;
        Ok(Opened { null, terminal })
    }

    /// Attaches the volumes that are shared with the host, makes the working directory, and makes a read-only root
    /// read-only.
    pub(crate) fn complete(&self) -> Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, Mode::empty()).attempt(|| "cannot open the app's root")?;
        self.volumes.attach_shared(&root)?;
        // The volumes may cover the working directory that was made in the image.
        if self.may_cover_working_dir() {
            make_missing_working_dir(&root, &self.app.cwd)?;
        }
        if self.app.options.read_only_root {
            sys::add_mount_attributes(root.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, false)
                .attempt(|| "cannot make the app's root read-only")?;
        }
        Ok(())
    }

    /// Whether a volume or the app's `/dev` may cover the working directory. A link in the image may lead to any
    /// volume.
    fn may_cover_working_dir(&self) -> bool {
        let cwd = normal(&self.app.cwd);
        cwd != "/" && (!self.volumes.is_empty() || is_at_or_below(&cwd, "/dev"))
    }

    /// Attaches the app's root.
    fn begin(&self) -> Result<OwnedFd> {
        // Otherwise unmounting the supervisor's tree would propagate.
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .attempt(|| "cannot make the app's mounts private")?;
        open_root(&self.app.name).attempt(|| "cannot mount the app's root")
    }

    /// Attaches the file systems that the maker has made for every app.
    fn attach_made(&self, root: &OwnedFd) -> Result<()> {
        place(root, &self.dev, "/dev")?;
        if let Some(shm) = &self.shm {
            place(root, shm, "/dev/shm")?;
        }
        place(root, &self.mqueue, "/dev/mqueue")?;
        place(root, &self.sys, "/sys")
    }

    /// Makes and attaches the file systems of the app's own namespaces; returns that of the terminals.
    fn attach_own(&self, root: &OwnedFd) -> Result<OwnedFd> {
        let proc = make_file_system("proc", NO_OPTIONS, QUIET).attempt(|| "cannot make the app's /proc")?;
        place(root, &proc, "/proc")?;
        let mut options = vec!["ptmxmode=0666", "mode=0620"];
        options.extend(self.has_tty_group.then_some("gid=5"));
        let terminals = make_file_system("devpts", &options, QUIET - MountAttrFlags::MOUNT_ATTR_NODEV)
            .attempt(|| "cannot make the app's /dev/pts")?;
        place(root, &terminals, "/dev/pts")?;
        Ok(terminals)
    }
}

/// Attaches a mount at a path in an app's root.
fn place(root: &OwnedFd, mount: &OwnedFd, path: &str) -> Result<()> {
    open_beneath(root, path, OFlags::PATH | OFlags::DIRECTORY)
        .and_then(|target| attach(mount, &target))
        .attempt(|| format!("cannot mount the app's {path}"))
}

/// The pod's `/dev/shm`, as a mount of this app's own.
fn clone_shm() -> Result<OwnedFd> {
    let what = || "cannot mount the pod's /dev/shm";
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let shm = open_tree(CWD, "/shm", flags).attempt(what)?;
    sys::add_mount_attributes(shm.as_fd(), QUIET, false).attempt(what)?;
    Ok(shm)
}

/// Mounts the app's root a second time, on top of itself, with the mounts in it: the first mount cannot become the root
/// in a user namespace, where the mounts of the former namespace are locked (mount_namespaces(7)).
fn open_root(app: &str) -> rustix::io::Result<OwnedFd> {
    let path = root_path(app);
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let root = open_tree(CWD, &path, flags)?;
    move_mount(&root, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(root)
}

/// Makes a terminal of the app and mounts it at /dev/console. It comes from the app's file system of terminals, opened
/// by that mount (CVE-2025-52565).
fn open_terminal(devices: &OwnedFd, terminals: &OwnedFd, uid: u32) -> std::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let master = rustix::fs::openat2(terminals, "ptmx", flags, Mode::empty(), ResolveFlags::BENEATH)?;
    let peer = sys::terminal_peer(master.as_fd())?;
    rustix::fs::fchown(&peer, Some(rustix::fs::Uid::from_raw(uid)), None)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let console = open_tree(&peer, "", flags)?;
    let target = open_beneath(devices, dev::CONSOLE, OFlags::PATH)?;
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
