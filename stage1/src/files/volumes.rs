//! The volumes of an app: where they are mounted in its root, and their initial contents.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use gantry_contract::plan::{App, Mount, Plan};
use gantry_host::lock::LockMode;
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::mount_options::{MountOptions, Propagation};
use gantry_model::spec::{
    TmpfsMount, VolumeKind, VolumeSpec, is_at_or_below, is_device, is_provided, may_cover, normal,
};
use gantry_model::systemd::NOTIFY_DIR;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use crate::app::own_namespaces::AppNamespaces;
use crate::cgroup::view::CGROUP_MOUNT;
use crate::failure::{Attempt, Result, failure};
use crate::files::copy::{self, Budget, CopyError};
use crate::files::covered_paths::CoveredPaths;
use crate::files::root::open_in;
use crate::files::{mounts, targets};
use crate::notify;
use crate::pod::jail;
use crate::pod::user_namespace::{MappedDir, UserNamespace};

/// A mount in an app's root, in the terms of the OCI runtime specification (config.md, "Mounts").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AppMount {
    /// Absolute path in the app's root, without links.
    pub(crate) target: String,
    /// The type of the file system; [`BIND`] for a bind mount.
    pub(crate) kind: &'static str,
    /// For a bind mount: the path in the supervisor's tree.
    pub(crate) source: String,
    /// Options of mount(8).
    pub(crate) options: Vec<String>,
    /// Whether the ids of its files are those of the pod, if that has a user namespace.
    pub(crate) has_ids_of_pod: bool,
    /// The propagation of a bind mount.
    pub(crate) propagation: Propagation,
}

impl AppMount {
    /// Whether files can only be read in a bind mount and in those below it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.has_option(READ_ONLY)
    }

    /// Whether files can only be read in a bind mount, and those below it stay as they are.
    pub(crate) fn is_read_only_at_top(&self) -> bool {
        self.has_option(READ_ONLY_TOP)
    }

    /// Whether device nodes and set-user-ID programs in a bind mount work.
    pub(crate) fn allows_devices(&self) -> bool {
        !self.has_option(NO_DEVICES)
    }

    fn has_option(&self, name: &str) -> bool {
        self.options.iter().any(|option| option == name)
    }

    /// Whether it is a file system in memory.
    pub(crate) fn is_tmpfs(&self) -> bool {
        self.kind == TMPFS
    }
}

/// The option of a bind mount that makes it and the mounts below it read-only.
const READ_ONLY: &str = "rro";
/// The option of a bind mount that makes it alone read-only.
const READ_ONLY_TOP: &str = "ro";
/// The option without which device nodes in a bind mount work.
const NO_DEVICES: &str = "rnodev";
/// The type of a bind mount.
const BIND: &str = "bind";
/// The type of a file system in memory.
const TMPFS: &str = "tmpfs";

/// A mount that the plan asks for.
#[derive(Clone, Copy)]
enum MountRequest<'a> {
    Volume(&'a Mount),
    Tmpfs(&'a TmpfsMount),
}

impl<'a> MountRequest<'a> {
    fn target(self) -> &'a str {
        match self {
            Self::Volume(mount) => &mount.target,
            Self::Tmpfs(tmpfs) => &tmpfs.target,
        }
    }

    /// Whether the image asks for it.
    fn is_declared(self) -> bool {
        matches!(self, Self::Volume(mount) if mount.declared)
    }
}

/// Makes the missing volumes of an app. Returns its mounts, outer ones first, with their targets resolved in the app's
/// root. A mount that would cover one of gantry's is an error, or left out if the image declares it.
pub(crate) fn prepare_mounts(
    plan: &Plan,
    app: &App,
    root: &OwnedFd,
    user: Option<&UserNamespace>,
) -> Result<Vec<AppMount>> {
    let volumes = plan.volumes.iter().map(|volume| (volume.name.as_str(), volume)).collect();
    let mut preparation =
        MountPreparation { app, root, user, volumes, prepared: Vec::new(), budget: Budget::from_image(app.image_size) };
    let volumes = app.mounts.iter().map(MountRequest::Volume);
    let mut order = Vec::new();
    for request in volumes.chain(app.options.tmpfs.iter().map(MountRequest::Tmpfs)) {
        // Resolved without the other mounts, which is enough to sort them.
        order.push((preparation.resolve(request)?, request));
    }
    let depth = |target: &str| target.matches('/').count();
    order.sort_by_key(|(target, request)| (depth(target), request.is_declared()));
    let targets: Vec<&String> = order.iter().map(|(target, _)| target).collect();
    for (_, request) in &order {
        preparation.prepare(*request, &targets)?;
    }
    if preparation.prepared.iter().any(|mount| mount.propagation == Propagation::Shared) {
        let covered = CoveredPaths::of_app(app).resolved(|path| preparation.resolve_path(path))?;
        mounts::check_shared(&preparation.prepared, &covered)?;
    }
    let mut prepared = preparation.prepared;
    if notify::has_socket(app) {
        let options = ["rbind", NO_DEVICES, "rnosuid", READ_ONLY].map(str::to_owned).to_vec();
        let source = notify::directory(&app.name);
        let (target, propagation) = (NOTIFY_DIR.to_owned(), Propagation::Private);
        // Every user of the app may send to the socket.
        let has_ids_of_pod = false;
        prepared.push(AppMount { target, kind: BIND, source, options, has_ids_of_pod, propagation });
    }
    Ok(prepared)
}

/// Whether this path is, or is below, one that the app's process uses after the volumes of a pod with a user namespace
/// are attached: it would use the volume instead, or cover it.
fn is_attached_after_volumes(target: &str) -> bool {
    ["/dev/null", "/dev/pts", "/dev/console", "/proc"].iter().any(|path| is_at_or_below(target, path))
}

struct MountPreparation<'a> {
    app: &'a App,
    root: &'a OwnedFd,
    user: Option<&'a UserNamespace>,
    volumes: BTreeMap<&'a str, &'a VolumeSpec>,
    /// Outer ones first.
    prepared: Vec<AppMount>,
    /// Shared by the volumes that the image declares.
    budget: Budget,
}

impl<'a> MountPreparation<'a> {
    /// The target of a mount, given the mounts prepared before.
    fn resolve(&self, request: MountRequest<'_>) -> Result<String> {
        self.resolve_path(request.target())
    }

    fn resolve_path(&self, path: &str) -> Result<String> {
        targets::resolve(path, |path| self.link(path))
    }

    /// The target of the link at a path, if there is one: in the volume that is mounted there, or in the image.
    fn link(&self, path: &str) -> Result<Option<String>> {
        let inside = |mount: &&AppMount| path.strip_prefix(mount.target.as_str()).filter(|rest| rest.starts_with('/'));
        if self.prepared.iter().any(|mount| mount.target == path) {
            return Ok(None);
        }
        let found = match self.prepared.iter().rev().find(|mount| inside(mount).is_some()) {
            Some(mount) if mount.kind == TMPFS => return Ok(None),
            Some(mount) => {
                let top = open_top(mount)?;
                read_link(&top, path.strip_prefix(mount.target.as_str()).unwrap_or_default())
            }
            None => read_link(self.root, path),
        };
        found.attempt(|| format!("cannot inspect '{}' of the app", shown(path)))
    }

    fn volume(&self, mount: &Mount) -> Result<&'a VolumeSpec> {
        let missing = || {
            let name = shown(&mount.volume);
            failure(ErrorKind::Invalid, format!("the plan mounts volume '{name}', which it does not have"))
        };
        self.volumes.get(mount.volume.as_str()).copied().ok_or_else(missing)
    }

    fn prepare(&mut self, request: MountRequest<'_>, targets: &[&String]) -> Result<()> {
        let target = self.resolve(request)?;
        let is_late = self.user.is_some() && is_attached_after_volumes(&target);
        let is_refused = is_late || (is_provided(&target) && !self.may_cover(request, &target));
        if is_refused || (request.is_declared() && is_device(&target)) {
            return self.refuse(request, &target);
        }
        if self.prepared.iter().any(|prepared| prepared.target == target) {
            if request.is_declared() {
                return Ok(());
            }
            let (given, app) = (shown(request.target()), &self.app.name);
            let why = format!("app '{app}' mounts twice at '{}' ('{given}' leads there)", shown(&target));
            return Err(failure(ErrorKind::Invalid, why));
        }
        let mount = match request {
            MountRequest::Volume(mount) => self.prepare_volume(mount, target, targets)?,
            MountRequest::Tmpfs(tmpfs) => tmpfs_mount(tmpfs, target),
        };
        self.prepared.push(mount);
        Ok(())
    }

    /// Whether a mount may cover what gantry provides at its resolved target.
    fn may_cover(&self, request: MountRequest<'_>, target: &str) -> bool {
        let privileged = self.app.options.privileged;
        // An image must not lead a volume there by a link.
        let is_named = privileged || normal(request.target()) == target;
        // The app mounts its own cgroup there.
        let is_replaced =
            !privileged && AppNamespaces::manages_cgroup(self.app) && is_at_or_below(target, CGROUP_MOUNT);
        !request.is_declared() && is_named && !is_replaced && may_cover(target, privileged)
    }

    fn prepare_volume(&mut self, mount: &Mount, target: String, targets: &[&String]) -> Result<AppMount> {
        let volume = self.volume(mount)?;
        let seed = mount.seed.then(|| open_in(self.root, &target, OFlags::DIRECTORY).ok()).flatten();
        let from = seed.as_ref();
        match volume.kind {
            VolumeKind::Anonymous | VolumeKind::Empty { .. } => {
                let inside =
                    |other: &&String| other.strip_prefix(target.as_str())?.strip_prefix('/').map(PathBuf::from);
                let covered = targets.iter().filter_map(inside).collect();
                let budget = &mut self.budget;
                let contents = InitialContents { volume, from, user: self.user, budget, covered: &covered };
                make_empty(contents, &self.app.name)?;
            }
            VolumeKind::Named { .. } => {
                // Complete: other pods may have no mounts inside it.
                let (budget, covered) = (&mut Budget::from_image(self.app.image_size), &BTreeSet::new());
                fill_named(InitialContents { volume, from, user: self.user, budget, covered })?;
            }
            VolumeKind::Host { .. } | VolumeKind::Image { .. } => {}
        }
        let MountOptions { propagation, writable_submounts } = mount.options;
        // The recursive options apply to mounts below it as well.
        let mut options = vec!["rbind".to_owned()];
        if !self.app.options.privileged {
            options.extend([NO_DEVICES.to_owned(), "rnosuid".to_owned()]);
        }
        if volume.read_only || mount.read_only {
            options.push(if writable_submounts { READ_ONLY_TOP } else { READ_ONLY }.to_owned());
        }
        if self.user.is_some() && propagation == Propagation::Shared {
            let why = "mounts of a pod with a user namespace of its own cannot be shared with the host";
            return Err(failure(ErrorKind::Invalid, format!("cannot mount rshared at '{}': {why}", shown(&target))));
        }
        // The layers of an image have the ids of the pod already, and an overlay cannot be mapped.
        let has_ids_of_pod = !matches!(volume.kind, VolumeKind::Image { .. });
        let source = source(volume);
        Ok(AppMount { target, kind: BIND, source, options, has_ids_of_pod, propagation })
    }

    /// Leaves out a volume that the image declares; fails for a volume that the user mounts.
    fn refuse(&self, request: MountRequest<'_>, target: &str) -> Result<()> {
        let leads = if request.target() == target {
            String::new()
        } else {
            format!(" ('{}' leads there in the image)", shown(request.target()))
        };
        let what =
            format!("app '{}' cannot mount over '{}': it is provided by gantry{leads}", self.app.name, shown(target));
        if !request.is_declared() {
            return Err(failure(ErrorKind::Invalid, what));
        }
        tracing::warn!("{what}; the image's volume is left out");
        Ok(())
    }
}

/// The mount of a tmpfs; the options are those of tmpfs(5).
fn tmpfs_mount(tmpfs: &TmpfsMount, target: String) -> AppMount {
    let TmpfsMount { target: _, size, mode, uid, gid, exec, read_only } = tmpfs;
    let mut options = vec!["nosuid".to_owned(), "nodev".to_owned()];
    options.extend([format!("mode={mode:o}"), format!("uid={uid}"), format!("gid={gid}")]);
    options.extend(size.map(|size| format!("size={size}")));
    options.extend((!exec).then(|| "noexec".to_owned()));
    options.extend(read_only.then(|| "ro".to_owned()));
    let (propagation, has_ids_of_pod) = (Propagation::Private, false);
    AppMount { target, kind: TMPFS, source: TMPFS.to_owned(), options, has_ids_of_pod, propagation }
}

/// Opens the top of what is mounted.
fn open_top(mount: &AppMount) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(&mount.source, flags, Mode::empty())
        .attempt(|| format!("cannot open the volume that is mounted at '{}'", shown(&mount.target)))
}

/// Reads the link at a path beneath a directory, if there is one. The path's parents must not be links.
fn read_link(top: &OwnedFd, path: &str) -> std::io::Result<Option<String>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let found = match rustix::fs::openat2(top, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        other => other?,
    };
    if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::Symlink {
        return Ok(None);
    }
    let text = rustix::fs::readlinkat(&found, "", Vec::new())?;
    let text = text.into_string().map_err(|_| std::io::Error::other("it is a link to a path that is not UTF-8"))?;
    Ok(Some(text))
}

/// The path of a volume in the supervisor's tree.
pub(crate) fn source(volume: &VolumeSpec) -> String {
    match volume.kind {
        VolumeKind::Host { .. } | VolumeKind::Image { .. } => jail::volume_path(volume.name.as_str()),
        VolumeKind::Named { .. } => format!("{}/{NAMED_DATA}", jail::volume_path(volume.name.as_str())),
        VolumeKind::Anonymous | VolumeKind::Empty { .. } => {
            format!("/pod/{}/{}", gantry_contract::files::VOLUMES, volume.name)
        }
    }
}

/// The initial contents of a new volume.
struct InitialContents<'a> {
    volume: &'a VolumeSpec,
    /// The image's directory; `None`: the volume stays empty.
    from: Option<&'a OwnedFd>,
    /// The pod's user namespace, if it has one of its own.
    user: Option<&'a UserNamespace>,
    budget: &'a mut Budget,
    /// Paths in it that other volumes will cover.
    covered: &'a BTreeSet<PathBuf>,
}

/// The path of an empty volume while it is made for this app.
pub(crate) fn temporary(volume: &VolumeSpec, app: &str) -> String {
    // Names of volumes and apps have no dots.
    format!("{}.{app}.new", source(volume))
}

/// Makes an empty volume for an app unless another app of the pod has made it. It is renamed when it is complete, so
/// that a process that is killed leaves no incomplete volume to the next start. Of two apps that make it at once, the
/// first to complete it wins: nothing is written to a volume that may be in use.
fn make_empty(contents: InitialContents<'_>, app: &str) -> Result<()> {
    let path = source(contents.volume);
    let what = || format!("cannot make volume '{}'", contents.volume.name);
    match rustix::fs::lstat(&path) {
        Ok(_) => return Ok(()),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error).attempt(what),
    }
    let new = temporary(contents.volume, app);
    match rustix::fs::mkdirat(CWD, format!("/pod/{}", gantry_contract::files::VOLUMES), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error).attempt(what),
    }
    remove_tree(&new).attempt(what)?;
    rustix::fs::mkdirat(CWD, &new, Mode::RWXU).attempt(what)?;
    let dir = rustix::fs::open(&new, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
    let dir = dir.attempt(what)?;
    match contents.from {
        Some(_) => fill(contents, &dir).inspect_err(|_| {
            let _left_for_next_start = remove_tree(&new);
        })?,
        None => {
            if let Some((mode, uid, gid)) = contents.volume.kind.created_with() {
                rustix::fs::fchown(&dir, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).attempt(what)?;
                rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode & 0o7777)).attempt(what)?;
            }
        }
    }
    match rustix::fs::renameat_with(CWD, &new, CWD, &path, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => remove_tree(&new).attempt(what),
        other => other.attempt(|| format!("cannot rename volume {path}")),
    }
}

/// The directory that apps see, in the directory of a named volume.
const NAMED_DATA: &str = "data";
/// Exists until an app mounts the volume for the first time.
const NAMED_FRESH: &str = "fresh";
/// Temporary directory in which the volume is filled before it replaces the data directory.
const NAMED_FILLING: &str = "filling";
/// Timeout of waiting for another pod that fills the volume.
const NAMED_TIMEOUT: Duration = Duration::from_secs(40);

/// Fills a named volume from the image if it is mounted for the first time and is empty. The copy replaces the empty
/// directory when it is complete and synced, so that a kill or a power cut leaves the volume unchanged.
fn fill_named(contents: InitialContents<'_>) -> Result<()> {
    let volume = contents.volume;
    let what = || format!("cannot fill volume '{}'", volume.name);
    let path = |name: &str| format!("{}/{name}", jail::volume_path(volume.name.as_str()));
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let top = rustix::fs::open(path("."), flags, Mode::empty()).attempt(what)?;
    if matches!(rustix::fs::statat(&top, NAMED_FRESH, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
        return Ok(());
    }
    lock_named(&top, volume.name.as_str())?;
    match rustix::fs::statat(&top, NAMED_FRESH, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        other => drop(other.attempt(what)?),
    }
    let is_empty = std::fs::read_dir(path(NAMED_DATA)).attempt(what)?.next().is_none();
    if is_empty && contents.from.is_some() {
        remove_tree(&path(NAMED_FILLING)).attempt(what)?;
        rustix::fs::mkdirat(&top, NAMED_FILLING, Mode::from_raw_mode(0o700)).attempt(what)?;
        let dir = rustix::fs::openat(&top, NAMED_FILLING, flags, Mode::empty()).attempt(what)?;
        fill(contents, &dir).inspect_err(|_| {
            let _left_for_next_start = remove_tree(&path(NAMED_FILLING));
        })?;
        copy::sync_tree(&dir).attempt(what)?;
        rustix::fs::renameat(&top, NAMED_FILLING, &top, NAMED_DATA).attempt(what)?;
    }
    // From here on apps may use it, so it is never filled again.
    rustix::fs::fsync(&top).attempt(what)?;
    rustix::fs::unlinkat(&top, NAMED_FRESH, AtFlags::empty()).attempt(what)?;
    rustix::fs::fsync(&top).attempt(what)
}

/// Waits until no other pod is filling the volume. Closing the descriptor releases the lock.
fn lock_named(top: &OwnedFd, name: &str) -> Result<()> {
    let locked = gantry_host::lock::lock_within(top, LockMode::Exclusive, NAMED_TIMEOUT, |_| Ok(()));
    match locked.attempt(|| format!("cannot lock volume '{name}'"))? {
        true => Ok(()),
        false => Err(failure(ErrorKind::Busy, format!("volume '{name}' is still being filled by another pod"))),
    }
}

/// Copies the image's directory into a new one.
fn fill(contents: InitialContents<'_>, to: &OwnedFd) -> Result<()> {
    let InitialContents { volume, from, user, budget, covered } = contents;
    let Some(from) = from else { return Ok(()) };
    let what = || format!("cannot fill volume '{}' from the image", volume.name);
    // The image's files are seen with the ids of the pod: the copies are made where theirs mean the same.
    let (mapped, _as_root) = match user {
        Some(user) => {
            let mapped = user.open_mapped(to, &format!("volume '{}'", volume.name))?;
            (Some(mapped), Some(user.as_root()?))
        }
        None => (None, None),
    };
    let to = mapped.as_ref().map_or(to, MappedDir::dir);
    copy::copy_tree(from, to, budget, covered).or_else(|why| match why {
        CopyError::Io(error) => Err(error).attempt(what),
        CopyError::TooDeep => {
            Err(failure(ErrorKind::Invalid, format!("{}: its directories are nested too deep", what())))
        }
        CopyError::OverBudget => {
            let why = "its files are larger or more numerous than when the image was fetched";
            Err(failure(ErrorKind::Exhausted, format!("{}: {why}; fetch the image again", what())))
        }
    })
}

/// Removes a directory tree without following links.
fn remove_tree(path: &str) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
