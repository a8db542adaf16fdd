//! Opens the root of an app.
//!
//! | the app | its root |
//! |---|---|
//! | runs | `/proc/PID/root`: its mounts included; with a user namespace, the owners of files are users of the host |
//! | does not run | an overlay of its layers and its writable layer, with its volumes, mounted in a mount namespace of one thread |
//!
//! Nothing is written to a volume that the first start of the pod makes or fills: it would be lost, or keep the volume
//! from being filled.
//!
//! The mounts of the second kind are seen by no other process, and the kernel removes them with the thread: a `kill -9`
//! leaves nothing behind. They are made only of what the plan names, and no symbolic link of the image is followed out
//! of the root.

use std::ffi::CString;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_contract::files;
use gantry_contract::plan::{App, Plan};
use gantry_host::attributes::copy_directory_attributes;
use gantry_host::mounts::{CloneSource, ReadOnlyMounts, Restrictions, clone_restricted};
use gantry_model::spec::{PodFlavor, VolumeKind, VolumeSpec};
use gantry_model::user_namespace::IdMappings;
use gantry_model::{AppName, AppState, ErrorKind, Kind as _, Phase, PodId};
use gantry_store::{PodLock, PodRow, PodState};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, StatxFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, mount, mount_change, move_mount};

use super::{failed, from_cause, refused};
use crate::host::process;
use crate::{Engine, EngineError, PodView};

/// Maximum length of mount options: one page (mount(2)).
const MAX_MOUNT_OPTIONS: usize = 4095;
/// Maximum number of attempts to resolve a path while an app renames directories.
const MAX_RETRIES: usize = 64;

/// An access to the files of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileAccess {
    Read,
    Write,
}

/// The root of an app.
pub(super) struct AppRoot {
    /// Its directory.
    pub(super) file: OwnedFd,
    /// The ids of the pod's user namespace, if the owners of files are seen as users of the host.
    pub(super) ids: Option<IdMappings>,
    /// The mount points that [`StoredVolume::protect`] keeps.
    unfilled: Vec<String>,
}

/// The root of an app that does not run, as paths.
#[derive(Debug)]
pub(super) struct StoredRoot {
    /// The directory of the layers.
    trees: PathBuf,
    /// The names of the layers in it, the topmost first.
    layers: Vec<String>,
    /// The pod's directory of apps, over which the root is mounted.
    mount_point: PathBuf,
    /// The app's writable layer, and the work directory beside it.
    pub(super) upper: PathBuf,
    work: PathBuf,
    volumes: Vec<StoredVolume>,
    /// Its working directory, and where file systems in memory are mounted.
    directories: Vec<String>,
}

/// A volume of an app that does not run.
#[derive(Debug)]
struct StoredVolume {
    source: PathBuf,
    target: String,
    recursive: bool,
    read_only: ReadOnlyMounts,
    /// Whether the next start of the pod makes it, or may fill it from the image.
    is_unfilled: bool,
}

impl Engine {
    /// Calls `work` with the root of an app; the second argument takes warnings.
    pub(super) fn with_app_root<T: Send>(
        &self,
        id: PodId,
        app: &AppName,
        access: FileAccess,
        work: impl FnOnce(&AppRoot, &mut Vec<String>) -> Result<T, EngineError> + Send,
    ) -> Result<T, EngineError> {
        let view = self.status(id).map_err(from_cause)?;
        refuse_host_pod(&view.row)?;
        if let Some(pid) = running_pid(&view.row, app) {
            let ids = self.plan(id).map_err(from_cause)?.user_ids;
            let root = AppRoot { file: open_running_root(&view, app, pid)?, ids, unfilled: Vec::new() };
            return match (ids, access) {
                (Some(ids), FileAccess::Write) => as_pod_root(ids, || work(&root, &mut Vec::new())),
                (Some(_), FileAccess::Read) | (None, _) => work(&root, &mut Vec::new()),
            };
        }
        let _lock = self.check_stored(&view.row, app, access)?;
        let stored = self.stored_root(&view, app)?;
        if access == FileAccess::Write {
            stored.make_writable_layer()?;
        }
        in_mount_namespace(|| {
            let mut warnings = Vec::new();
            // On disk, the ids of a pod with a user namespace are plain.
            let file = stored.mount(access, &mut warnings)?;
            let unfilled = stored.volumes.iter().filter(|volume| volume.is_unfilled && access == FileAccess::Write);
            let unfilled = unfilled.map(|volume| volume.target.clone()).collect();
            work(&AppRoot { file, ids: None, unfilled }, &mut warnings)
        })
    }

    /// Checks that the files of an app that does not run may be used. For writing, the pod's lock is held meanwhile, so
    /// that the pod is neither started nor removed: two overlays must not write into one directory.
    fn check_stored(&self, row: &PodRow, app: &AppName, access: FileAccess) -> Result<Option<PodLock>, EngineError> {
        let id = row.id;
        match (&row.phase, access) {
            (Phase::Prepared { .. } | Phase::Exited { .. } | Phase::Running { .. }, FileAccess::Read) => {
                if self.has_pod_dir(id) { Ok(None) } else { Err(no_directory(id)) }
            }
            (Phase::Running { .. }, FileAccess::Write) => Err(refused(format!(
                "app '{app}' of pod {id} does not run, and its pod does: start the app or stop the pod, and copy then"
            ))),
            (Phase::Prepared { .. } | Phase::Exited { .. }, FileAccess::Write) => {
                let lock = match self.lock_in_time(id).map_err(from_cause)? {
                    PodState::Free(lock) => Some(lock),
                    PodState::Absent => None,
                    PodState::Held => {
                        let why = format!("pod {id} is in use by another command: try again");
                        return Err(EngineError::new(ErrorKind::Busy, why));
                    }
                };
                // Read under the lock: the pod may have been started or removed before it was taken.
                match self.store.pod(id).map_err(from_cause)?.map(|row| row.phase) {
                    Some(Phase::Prepared { .. } | Phase::Exited { .. }) => {
                        lock.map(Some).ok_or_else(|| no_directory(id))
                    }
                    // In every other phase, another command works on it.
                    _ => Err(EngineError::new(ErrorKind::Busy, format!("pod {id} is in use: try again"))),
                }
            }
            (other, _) => Err(refused(format!("pod {id} is {}: it has no files to copy", other.name()))),
        }
    }

    /// The root of an app that does not run, or the layers of one that does.
    pub(super) fn stored_root(&self, view: &PodView, name: &AppName) -> Result<StoredRoot, EngineError> {
        let id = view.row.id;
        let plan = self.present_plan(&view.row).map_err(from_cause)?;
        let app = plan.apps.iter().find(|app| app.name == name.as_str());
        let app = app.ok_or_else(|| refused(format!("the plan of pod {id} has no app '{name}'")))?;
        let dir = self.pod_dir(id);
        let own = dir.join(files::APPS).join(name.as_str());
        Ok(StoredRoot {
            trees: PathBuf::from(&plan.trees_dir),
            layers: app.layers.clone(),
            mount_point: dir.join(files::APPS),
            upper: own.join("upper"),
            work: own.join("work"),
            volumes: self.stored_volumes(&plan, app, &dir),
            directories: app.options.tmpfs.iter().map(|tmpfs| tmpfs.target.clone()).chain([app.cwd.clone()]).collect(),
        })
    }

    fn stored_volumes(&self, plan: &Plan, app: &App, dir: &Path) -> Vec<StoredVolume> {
        let mut volumes: Vec<StoredVolume> = Vec::new();
        for place in &app.mounts {
            let Some(volume) = plan.volumes.iter().find(|volume| volume.name.as_str() == place.volume) else {
                continue;
            };
            let VolumeSpec { name, kind, read_only } = volume;
            let (source, recursive, is_unfilled) = match kind {
                VolumeKind::Host { source, recursive } => (PathBuf::from(source), *recursive, false),
                VolumeKind::Named { volume } => {
                    (self.volume_data(volume), false, self.store.layout().volume_fresh(volume).exists())
                }
                // Its image has the files.
                VolumeKind::Image { .. } => continue,
                VolumeKind::Anonymous | VolumeKind::Empty { .. } => {
                    let source = dir.join(files::VOLUMES).join(name.as_str());
                    let is_unfilled = !source.exists();
                    (source, false, is_unfilled)
                }
            };
            let read_only = match (*read_only || place.read_only, place.options.writable_submounts) {
                (false, _) => ReadOnlyMounts::None,
                (true, true) => ReadOnlyMounts::Top,
                (true, false) => ReadOnlyMounts::All,
            };
            volumes.push(StoredVolume { source, target: place.target.clone(), recursive, read_only, is_unfilled });
        }
        volumes.sort_by_key(|volume| volume.target.matches('/').count());
        volumes
    }
}

fn no_directory(id: PodId) -> EngineError {
    refused(format!("pod {id} has no directory, and so no files: put it back, or remove the pod with 'gantry rm {id}'"))
}

/// Refuses a pod whose apps use the host's files.
pub(super) fn refuse_host_pod(row: &PodRow) -> Result<(), EngineError> {
    match row.flavor() {
        PodFlavor::Container => Ok(()),
        PodFlavor::Host => Err(refused(format!(
            "pod {} was started with --stage1=host: it has no files of its own and uses those of the host",
            row.id
        ))),
    }
}

impl AppRoot {
    /// Adds what to do to the failure of a copy to this path, if it leads into a volume that no app has used.
    pub(super) fn explain_refusal(&self, destination: &Path, error: EngineError) -> EngineError {
        if error.kind() != ErrorKind::Denied {
            return error;
        }
        let mount_of = |path: &Path| {
            let file = open_beneath(&self.file, path.as_os_str(), OFlags::PATH).ok()?;
            Some(rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?.stx_mnt_id)
        };
        // The file itself may not exist.
        let Some(mount) = Path::new("/").join(destination).ancestors().find_map(mount_of) else { return error };
        match self.unfilled.iter().find(|target| mount_of(Path::new(target)) == Some(mount)) {
            Some(target) => {
                let target = gantry_model::id::shown(target);
                let why = format!("cannot copy into a volume that no app has used yet ({target})");
                refused(format!("{why}: start the pod once, then copy")).caused_by(error)
            }
            None => error,
        }
    }
}

impl StoredRoot {
    /// The paths at which gantry makes directories and files: mount points, and the working directory.
    pub(super) fn mount_targets(&self) -> impl Iterator<Item = &str> {
        self.volumes.iter().map(|volume| volume.target.as_str()).chain(self.directories.iter().map(String::as_str))
    }

    /// Makes the writable layer of an app that was never started, as its first start does: with the attributes of the
    /// image's root.
    fn make_writable_layer(&self) -> Result<(), EngineError> {
        let make = |dir: &Path| match rustix::fs::mkdir(dir, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(failed("make directory", &dir.to_string_lossy(), error)),
        };
        make(self.upper.parent().unwrap_or(&self.upper))?;
        make(&self.upper)?;
        // Made last: it shows that the attributes are complete.
        if self.work.exists() {
            return Ok(());
        }
        if let Some(top) = self.layers.first() {
            copy_directory_attributes(&self.trees.join(top), &self.upper)
                .map_err(|error| failed("set the attributes of", &self.upper.to_string_lossy(), error))?;
        }
        make(&self.work)
    }

    /// Mounts the root in the mount namespace of this thread, and opens it.
    fn mount(&self, access: FileAccess, warnings: &mut Vec<String>) -> Result<OwnedFd, EngineError> {
        let upper = open_path(&self.upper);
        let root = match (upper, access) {
            (Ok(upper), FileAccess::Write) => {
                let work =
                    open_path(&self.work).map_err(|error| failed("open", &self.work.to_string_lossy(), error))?;
                let options =
                    format!("upperdir=/proc/self/fd/{},workdir=/proc/self/fd/{}", upper.as_raw_fd(), work.as_raw_fd());
                self.mount_overlay(&self.layers, Some(options))?
            }
            (Ok(upper), FileAccess::Read) => {
                let mut layers = vec![format!("/proc/self/fd/{}", upper.as_raw_fd())];
                layers.extend(self.layers.iter().cloned());
                self.mount_overlay(&layers, None)?
            }
            // It was never started: there is nothing but the image.
            (Err(Errno::NOENT), _) => self.mount_layers()?,
            (Err(error), _) => return Err(failed("open", &self.upper.to_string_lossy(), error)),
        };
        for volume in &self.volumes {
            if access == FileAccess::Write && volume.is_unfilled {
                match volume.protect(&root) {
                    Ok(()) => {}
                    // A volume above it is read-only already.
                    Err(error) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem => {}
                    Err(error) => return Err(failed("keep files out of the unused volume", &volume.target, error)),
                }
            } else if let Err(error) = volume.mount(&root) {
                warnings
                    .push(format!("the volume at {} is left out: {error}", gantry_model::id::shown(&volume.target)));
            }
        }
        Ok(root)
    }

    /// Mounts the image alone in the mount namespace of this thread, and opens it.
    fn mount_layers(&self) -> Result<OwnedFd, EngineError> {
        match &self.layers[..] {
            // An overlay without a writable layer needs two directories.
            [only] => {
                let path = self.trees.join(only);
                open_path(&path).map_err(|error| failed("open", &path.to_string_lossy(), error))
            }
            layers => self.mount_overlay(layers, None),
        }
    }

    fn mount_overlay(&self, lower: &[String], upper: Option<String>) -> Result<OwnedFd, EngineError> {
        let doing = |error: Errno| failed("mount the app's root over", &self.mount_point.to_string_lossy(), error);
        let mut options = format!("lowerdir={}", lower.join(":"));
        if let Some(upper) = &upper {
            options = format!("{options},{upper}");
        }
        if options.len() > MAX_MOUNT_OPTIONS {
            return Err(refused("the image has too many layers for one overlay mount"));
        }
        let options = CString::new(options).map_err(|_| refused("the name of a layer has a NUL byte"))?;
        // With relative paths the options of 128 layers fit into a page. The working directory is this thread's own.
        rustix::process::chdir(&self.trees).map_err(|error| failed("enter", &self.trees.to_string_lossy(), error))?;
        let flags = match upper {
            Some(_) => MountFlags::NODEV | MountFlags::NOSUID,
            None => MountFlags::NODEV | MountFlags::NOSUID | MountFlags::RDONLY,
        };
        mount("overlay", &self.mount_point, "overlay", flags, options.as_c_str()).map_err(doing)?;
        open_path(&self.mount_point).map_err(doing)
    }

    /// Calls `work` with the root of the image alone.
    pub(super) fn with_layers<T: Send>(
        &self,
        work: impl FnOnce(&OwnedFd) -> Result<T, EngineError> + Send,
    ) -> Result<T, EngineError> {
        in_mount_namespace(|| work(&self.mount_layers()?))
    }
}

impl StoredVolume {
    /// Mounts the volume as a running app has it. The mount is attached when it is complete, so a failure leaves none.
    fn mount(&self, root: &OwnedFd) -> Result<(), std::io::Error> {
        let source = open_path(&self.source)?;
        let target = open_beneath(root, self.target.as_str(), OFlags::PATH)?;
        let (recursive, read_only) = (self.recursive, self.read_only);
        let restrictions = Restrictions { recursive, read_only, ..Restrictions::default() };
        let volume = clone_restricted(CloneSource::Open(source.as_fd()), restrictions)?;
        Ok(attach(&volume, &target)?)
    }

    /// Makes the mount point of a volume read-only in its place: a file that is written there would be covered by the
    /// volume later, and the first file in a volume keeps it from being filled.
    fn protect(&self, root: &OwnedFd) -> Result<(), std::io::Error> {
        let target = make_directories(root, &self.target)?;
        let restrictions = Restrictions { read_only: ReadOnlyMounts::All, ..Restrictions::default() };
        Ok(attach(&clone_restricted(CloneSource::Open(target.as_fd()), restrictions)?, &target)?)
    }
}

/// Attaches a mount to an opened directory or file. No path is looked up again: it could lead somewhere else.
fn attach(mount: &OwnedFd, target: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

/// Opens a directory beneath the root of an app, which is made if it is missing, as the start of the app does.
fn make_directories(root: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let mut directory = open_beneath(root, "/", OFlags::PATH | OFlags::DIRECTORY)?;
    let mut above = PathBuf::from("/");
    for name in path.split('/').filter(|name| !name.is_empty()) {
        match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        above.push(name);
        directory = open_beneath(root, &above, OFlags::PATH | OFlags::DIRECTORY)?;
    }
    Ok(directory)
}

fn open_path(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a file beneath the root of an app, following symbolic links as the app does. Links of /proc that lead
/// elsewhere are refused.
pub(super) fn open_beneath(
    root: &OwnedFd,
    path: impl rustix::path::Arg + Copy,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut result = Err(Errno::AGAIN);
    for _ in 0..MAX_RETRIES {
        result = rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
        // A rename elsewhere makes the kernel unable to prove that the path stays beneath the root.
        if !matches!(result, Err(Errno::AGAIN)) {
            break;
        }
    }
    result
}

/// Runs `work` in a thread that makes files as root of a pod with a user namespace: on the idmapped mounts of its apps,
/// root of the host has no id to make any with. The thread keeps its capabilities.
fn as_pod_root<T: Send>(
    ids: IdMappings,
    work: impl FnOnce() -> Result<T, EngineError> + Send,
) -> Result<T, EngineError> {
    let become_root = || -> Result<(), Errno> {
        let capabilities = rustix::thread::capabilities(None)?;
        let (uid, gid) = (Uid::from_raw(ids.uids.host), Gid::from_raw(ids.gids.host));
        rustix::thread::set_thread_res_gid(None, gid, None)?;
        rustix::thread::set_thread_res_uid(None, uid, None)?;
        // The change has cleared the effective set (capabilities(7)).
        rustix::thread::set_capabilities(None, capabilities)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_root().map_err(|error| failed("write as root of", "the pod", error))?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `work` in a thread with a mount namespace of its own.
fn in_mount_namespace<T: Send>(work: impl FnOnce() -> Result<T, EngineError> + Send) -> Result<T, EngineError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare_mounts().map_err(|error| failed("make a mount namespace for", "the app's root", error))?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn unshare_mounts() -> Result<(), Errno> {
    // rustix deprecates it because CLONE_FILES is unsound in threads. CLONE_NEWNS changes neither descriptors nor the
    // memory of the process; with it, the working directory becomes the thread's own.
    #[expect(deprecated, reason = "the safe function is sound with this flag")]
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
}

/// The main process of an app that runs.
fn running_pid(row: &PodRow, name: &AppName) -> Option<u32> {
    let Phase::Running { .. } = row.phase else { return None };
    let app = row.apps.iter().find(|app| app.name == *name)?;
    match app.state {
        AppState::Started { pid, .. } => Some(pid),
        AppState::Waiting | AppState::Creating | AppState::Created | AppState::Exited { .. } => None,
    }
}

/// Opens the root of a process that is proven to be the app's while its pidfd shows that it lives: it is in the app's
/// cgroup, which it cannot leave.
fn open_running_root(view: &PodView, app: &AppName, pid: u32) -> Result<OwnedFd, EngineError> {
    let ended = || refused(format!("app '{app}' of pod {} has just ended: try again", view.row.id));
    let pidfd = process::found(process::open_pid(pid))
        .map_err(|error| failed("open the main process of app", app.as_str(), error))?
        .ok_or_else(ended)?;
    let cgroups = process::found(std::fs::read_to_string(format!("/proc/{pid}/cgroup")))
        .map_err(|error| failed("read the cgroups of app", app.as_str(), error))?
        .ok_or_else(ended)?;
    let own = format!("{}/{app}", view.row.cgroup);
    let is_own = cgroups.lines().any(|line| line.ends_with(&own) || line.contains(&format!("{own}/")));
    let root = rustix::fs::open(format!("/proc/{pid}/root"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt"));
    let namespaces = (namespace(&pid.to_string()), namespace("self"));
    let has_ended = !matches!(process::readable(&[pidfd.as_fd()], process::Deadline::after(Duration::ZERO)), Ok(None));
    if has_ended || !is_own {
        return Err(ended());
    }
    match namespaces {
        (Ok(theirs), Ok(ours)) if theirs != ours => {}
        _ => return Err(refused(format!("app '{app}' has no mount namespace of its own"))),
    }
    root.map_err(|error| failed("open the root of app", app.as_str(), error))
}
