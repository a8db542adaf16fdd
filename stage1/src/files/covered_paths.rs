//! The paths of the kernel's file systems that an app cannot see, or can only read.

use std::os::fd::{AsFd as _, OwnedFd};

use gantry_contract::plan::App;
use gantry_model::id::shown;
use gantry_model::namespaces::PidMode;
use gantry_model::spec::is_at_or_below;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};

use crate::app::own_namespaces::AppNamespaces;
use crate::failure::{Attempt, Result};
use crate::files::mounts::{self, QUIET, attach};
use crate::files::root::open_in;
use crate::sys;

/// Paths hidden from apps: the list of docker and podman, with rkt's additions.
const MASKED: [&str; 15] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/dev/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/selinux",
];

/// Paths that apps may only read: podman's list, and files whose mode alone would let root of any container write them:
/// PID 1's settings (its OOM score, for instance) and the kernel's dynamic debug messages.
const READ_ONLY: [&str; 7] =
    ["/proc/1", "/proc/bus", "/proc/dynamic_debug", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The paths that an app cannot see, and those that it can only read.
#[derive(Debug)]
pub(crate) struct CoveredPaths {
    masked: Vec<String>,
    read_only: Vec<String>,
}

impl CoveredPaths {
    /// Those of an app: its own lists, or gantry's, which do not apply to a privileged app.
    pub(crate) fn of_app(app: &App) -> Self {
        let paths = |given: &Option<Vec<String>>, own: &[&str]| match given {
            Some(paths) => paths.clone(),
            None if app.options.privileged => Vec::new(),
            None => own.iter().map(|&path| path.to_owned()).collect(),
        };
        let masked = paths(&app.options.masked_paths, &MASKED);
        let mut read_only = paths(&app.options.read_only_paths, &READ_ONLY);
        if app.options.read_only_paths.is_none() && AppNamespaces::pid_mode(app) == PidMode::App {
            // It is the app itself.
            read_only.retain(|path| path != "/proc/1");
        }
        Self { masked, read_only }
    }

    /// These paths with the links in them resolved.
    pub(crate) fn resolved(&self, resolve: impl Fn(&str) -> Result<String>) -> Result<Self> {
        let all = |paths: &[String]| paths.iter().map(|path| resolve(path)).collect::<Result<_>>();
        Ok(Self { masked: all(&self.masked)?, read_only: all(&self.read_only)? })
    }

    /// The first covered path inside a directory.
    pub(crate) fn inside(&self, dir: &str) -> Option<&str> {
        self.all().find(|path| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/')))
    }

    /// The first covered path that is this one, or contains it.
    pub(crate) fn around(&self, target: &str) -> Option<&str> {
        self.all().find(|path| is_at_or_below(target, path))
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        self.masked.iter().chain(&self.read_only).map(String::as_str)
    }

    /// Covers those that exist, in an app's own mount namespace. `null` is the app's null device: a volume may have any
    /// file at its path (CVE-2025-31133).
    pub(crate) fn cover(&self, root: &OwnedFd, null: &OwnedFd) -> Result<()> {
        for path in &self.read_only {
            let what = || format!("cannot make '{}' of the app read-only", shown(path));
            if let Some(found) = find(root, path).attempt(what)? {
                protect(&found).attempt(what)?;
            }
        }
        let mut masks = Masks { null, empty: None };
        for path in &self.masked {
            let what = || format!("cannot hide '{}' from the app", shown(path));
            if let Some(found) = find(root, path).attempt(what)? {
                masks.mask(&found).attempt(what)?;
            }
        }
        Ok(())
    }
}

/// Opens a path, if it exists. Links are resolved inside the app's root.
fn find(root: &OwnedFd, path: &str) -> rustix::io::Result<Option<OwnedFd>> {
    match open_in(root, path, OFlags::PATH) {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        other => other.map(Some),
    }
}

/// Makes a file or directory read-only, with what is mounted in it.
fn protect(file: &OwnedFd) -> std::io::Result<()> {
    let copy = clone_mount(file, OpenTreeFlags::AT_RECURSIVE)?;
    sys::add_mount_attributes(copy.as_fd(), QUIET | MountAttrFlags::MOUNT_ATTR_RDONLY, true)?;
    Ok(attach(&copy, file)?)
}

/// Mounts that hide files and directories.
struct Masks<'a> {
    null: &'a OwnedFd,
    /// The file system that hides a directory, once it is mounted.
    empty: Option<OwnedFd>,
}

impl Masks<'_> {
    fn mask(&mut self, found: &OwnedFd) -> std::io::Result<()> {
        if FileType::from_raw_mode(rustix::fs::fstat(found)?.st_mode) != FileType::Directory {
            return Ok(attach(&clone_mount(self.null, OpenTreeFlags::empty())?, found)?);
        }
        let mount = match &self.empty {
            Some(empty) => clone_mount(empty, OpenTreeFlags::empty())?,
            None => {
                let attributes = QUIET | MountAttrFlags::MOUNT_ATTR_RDONLY;
                mounts::make_file_system("tmpfs", &["mode=555", "size=4k"], attributes)?
            }
        };
        attach(&mount, found)?;
        self.empty.get_or_insert(mount);
        Ok(())
    }
}

/// A second mount of a file or directory, attached nowhere.
fn clone_mount(file: &OwnedFd, recursive: OpenTreeFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(file, "", flags | recursive)
}
