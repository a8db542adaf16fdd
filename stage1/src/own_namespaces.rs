//! The namespaces of an app that is PID 1 of a PID namespace of its own; if it is systemd, it manages its cgroup, too.
//!
//! libcontainer makes the app's process in the pod's PID namespace. Before that process is locked down, it enters its
//! cgroup namespace (systemd: one whose root is the app's delegated cgroup, which it mounts), and forks PID 1 of the
//! new PID namespace. With CLONE_PARENT that process is a child of the supervisor (or of the maker), which waits for it
//! like for any app; the first process exits. The new namespace is nested in the pod's: it ends with the pod's PID 1.
//!
//! /proc shows the PID namespace of its mount, so it is mounted again. That uncovers the paths that libcontainer has
//! masked or made read-only, and they are covered again before the app is executed.

use std::io;
use std::rc::Rc;

use gantry_contract::plan::App;
use gantry_model::ErrorKind;
use gantry_model::namespaces::PidMode;
use gantry_model::systemd::SystemdMode;
use rustix::fs::{CWD, FileType};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, mount, mount_bind_recursive, mount_remount, move_mount, unmount,
};

use crate::failure::{Result, failure};
use crate::spec::CoveredPaths;
use crate::sys;
use crate::user::Ids;

/// Where systemd and other programs expect the cgroup file system.
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// The namespaces of an app's process.
#[derive(Debug, Clone)]
pub(crate) struct AppNamespaces {
    /// Its PID namespace.
    pub(crate) pid: PidMode,
    /// Whether it manages the cgroup that is delegated to it.
    pub(crate) manages_cgroup: bool,
    /// The paths that are covered, also in /proc of its own PID namespace.
    pub(crate) covered: Rc<CoveredPaths>,
}

impl AppNamespaces {
    /// Those that an app's options ask for.
    pub(crate) fn from_app(app: &App) -> Self {
        let (pid, manages_cgroup) = (Self::pid_mode(app), Self::manages_cgroup(app));
        Self { pid, manages_cgroup, covered: Rc::new(CoveredPaths::of_app(app)) }
    }

    /// Whether an app manages the cgroup that is delegated to it.
    pub(crate) fn manages_cgroup(app: &App) -> bool {
        app.options.systemd == SystemdMode::Always
    }

    /// The PID namespace of an app.
    pub(crate) fn pid_mode(app: &App) -> PidMode {
        if Self::manages_cgroup(app) { PidMode::App } else { app.options.pid }
    }
}

/// Refuses a user that systemd cannot run as.
pub(crate) fn check_user(ids: &Ids) -> Result<()> {
    let why = "systemd must run as root: leave out --user, or run it like any program with --systemd=false";
    if ids.uid == 0 { Ok(()) } else { Err(failure(ErrorKind::Invalid, why)) }
}

/// Enters a cgroup namespace and mounts the app's cgroup, which the app may change.
pub(crate) fn enter_delegated_cgroup() -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWCGROUP)?;
    Ok(mount("cgroup2", CGROUP_MOUNT, "cgroup2", QUIET, None)?)
}

/// Replaces /proc of the pod's PID namespace by that of this process's. In a user namespace, the kernel lets a process
/// mount /proc only while it sees one: the new one is made before the old one is unmounted.
fn replace_proc() -> io::Result<()> {
    let fs = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", "proc")?;
    fsconfig_create(&fs)?;
    let quiet =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let proc = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, quiet)?;
    unmount("/proc", UnmountFlags::DETACH)?;
    Ok(move_mount(&proc, "", CWD, "/proc", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Makes this process, PID 1 of a new PID namespace, the leader of a session, and mounts /proc of the namespace.
pub(crate) fn set_up_first_process(namespaces: &AppNamespaces, has_terminal: bool) -> io::Result<()> {
    rustix::process::setsid()?;
    if has_terminal {
        // The process that forked this one may not have exited; its session has the terminal until then.
        sys::steal_controlling_terminal(rustix::stdio::stdin())?;
    }
    replace_proc()?;
    let in_proc = |path: &&String| path.starts_with("/proc/");
    let CoveredPaths { masked, read_only } = &*namespaces.covered;
    masked.iter().filter(in_proc).try_for_each(|path| mask(path))?;
    read_only.iter().filter(in_proc).try_for_each(|path| protect(path))
}

/// Hides a file or directory, if it exists.
fn mask(path: &str) -> io::Result<()> {
    match rustix::fs::lstat(path) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            Ok(mount("tmpfs", path, "tmpfs", QUIET | MountFlags::RDONLY, c"mode=0555,size=4k")?)
        }
        Ok(_) => Ok(mount_bind_recursive("/dev/null", path)?),
    }
}

/// Makes a file or directory read-only, if it exists.
fn protect(path: &str) -> io::Result<()> {
    match mount_bind_recursive(path, path) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => Ok(other.and_then(|()| mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | QUIET, c""))?),
    }
}
