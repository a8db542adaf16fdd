//! The specification of a pod: what the user asks for. Validated here, once; all later code relies on it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use crate::app_options::{AppOptions, GroupsPolicy, Seccomp, check_group_name};
pub use crate::capabilities::{ALL_CAPABILITIES, CAPABILITIES, Capabilities, DEFAULT_CAPABILITIES};
use crate::cgroup::{CgroupManager, CgroupParent};
use crate::id::shown;
pub use crate::limits::{
    CgroupFile, CpusetList, DEFAULT_CPU_PERIOD, DEFAULT_PIDS_LIMIT, DeviceIoLimits, DeviceIoRate, HugePageSize,
    LimitChange, Limits,
};
use crate::mount_options::MountOptions;
use crate::namespaces::{IpcMode, UtsMode};
use crate::net::{DnsSpec, HostsSpec, NetMode, PortSpec};
use crate::sysctl::SysctlName;
pub use crate::tmpfs::TmpfsMount;
use crate::user_namespace::UserNamespaceMode;
use crate::{AppId, AppName, PodLogDir, PodNamespace, RequestedImage, VolumeName};

/// How the apps of a pod are isolated (`--stage1`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodFlavor {
    /// Each app runs in a container with the file system of its image.
    #[default]
    Container,
    /// The apps have no image: they run in the namespaces and the file system of the host, unconfined except for their
    /// cgroups, as in rkt's stage1-fly.
    Host,
}

impl PodFlavor {
    /// The value of `--stage1`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Host => "host",
        }
    }

    /// Whether the pod has the default.
    #[must_use]
    pub fn is_container(&self) -> bool {
        *self == Self::Container
    }
}

impl std::str::FromStr for PodFlavor {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "container" => Ok(Self::Container),
            "host" => Ok(Self::Host),
            _ => Err(SpecError::new(format!("'{}' is neither container nor host", shown(text)))),
        }
    }
}

/// The image name in the records of an app of a host pod, which has no image.
pub const HOST_IMAGE_NAME: &str = "host";

/// A request to create a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSpec {
    /// The apps, in the order given. At least one, except in a sandbox.
    pub apps: Vec<AppSpec>,
    /// How the apps are isolated.
    pub flavor: PodFlavor,
    /// Its namespace; `None`: `k8s.io` if a kubelet made it, else the default.
    pub namespace: Option<PodNamespace>,
    /// Whether it is a sandbox: a pod that may have no apps, is not ended by the end or failure of an app, and runs
    /// until it is stopped.
    pub sandbox: bool,
    /// Whether apps of it may be privileged, also those that are added while it runs.
    pub privileged: bool,
    /// The volumes that apps may mount, by name.
    pub volumes: Vec<VolumeSpec>,
    /// The networks; `None`: the engine's default.
    pub net: Option<NetMode>,
    /// Ports of the host that lead to the pod.
    pub ports: Vec<PortSpec>,
    /// The contents of `/etc/resolv.conf`.
    pub dns: DnsSpec,
    /// The contents of `/etc/hosts`.
    pub hosts: HostsSpec,
    /// Hostname in the pod; `None`: `gantry-<uuid>`.
    pub hostname: Option<String>,
    /// The IPC namespace.
    pub ipc: IpcMode,
    /// The UTS namespace.
    pub uts: UtsMode,
    /// The user namespace.
    pub userns: UserNamespaceMode,
    /// The size of `/dev/shm`, which the apps share, in bytes; `None`: [`DEFAULT_SHM_SIZE`].
    pub shm_size: Option<u64>,
    /// Kernel settings of the pod's namespaces, by name.
    pub sysctls: BTreeMap<SysctlName, String>,
    /// The parent of its cgroup; `None`: the engine's.
    pub cgroup_parent: Option<CgroupParent>,
    /// The maker of its cgroup; `None`: that of the parent.
    pub cgroup_manager: Option<CgroupManager>,
    /// Resource limits of all its apps together.
    pub limits: Limits,
    /// The directory of the log files whose paths are chosen ([`AppOptions::log_path`]).
    pub log_dir: Option<PodLogDir>,
    /// Free-form annotations (rkt's `userAnnotations`). They never configure gantry.
    pub user_annotations: BTreeMap<String, String>,
    /// Free-form labels (rkt's `userLabels`).
    pub user_labels: BTreeMap<String, String>,
}

/// One app of a pod as asked for. What is `None` comes from the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppSpec {
    /// Its name in the pod.
    pub name: AppName,
    /// Its id; `None`: a random one.
    pub id: Option<AppId>,
    /// Its image; `None` in a host pod, and only there.
    pub image: Option<RequestedImage>,
    /// Replaces the image's entrypoint and arguments.
    pub exec: Option<String>,
    /// Arguments after `--`: appended to `exec`, or in place of the image's command (`Cmd`) as docker and podman do.
    pub args: Vec<String>,
    /// User: name, number, `user:group`, or an absolute path in the image whose owner is used.
    pub user: Option<String>,
    /// Group: name, number, or an absolute path in the image.
    pub group: Option<String>,
    /// Working directory, absolute in the image.
    pub working_dir: Option<String>,
    /// Environment on top of the image's.
    pub environment: Vec<(String, String)>,
    /// Volumes mounted into this app.
    pub mounts: Vec<MountSpec>,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Signal that asks it to stop, as a number; `None`: the image's `StopSignal`, or SIGTERM.
    pub stop_signal: Option<u8>,
    /// Options that the plan takes over unchanged.
    pub options: AppOptions,
    /// Free-form annotations of the app.
    pub user_annotations: BTreeMap<String, String>,
    /// Free-form labels of the app.
    pub user_labels: BTreeMap<String, String>,
}

impl AppSpec {
    /// An app of this name and image with every default.
    #[must_use]
    pub fn new(name: AppName, image: Option<RequestedImage>) -> Self {
        Self {
            name,
            id: None,
            image,
            exec: None,
            args: Vec::new(),
            user: None,
            group: None,
            working_dir: None,
            environment: Vec::new(),
            mounts: Vec::new(),
            capabilities: Capabilities::Default,
            stop_signal: None,
            options: AppOptions::default(),
            user_annotations: BTreeMap::new(),
            user_labels: BTreeMap::new(),
        }
    }
}

/// A volume that apps may mount (rkt's `--volume`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Its name in the pod.
    pub name: AppName,
    /// Its kind.
    pub kind: VolumeKind,
    /// Read-only for every app.
    pub read_only: bool,
}

/// The kind of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeKind {
    /// A file or directory of the host.
    Host {
        /// Absolute path on the host.
        source: String,
        /// Whether mounts below the source come along (rbind).
        recursive: bool,
    },
    /// A volume that outlives pods; made if it is not there, and filled from the image when it is first mounted.
    Named {
        /// The volume's name.
        volume: VolumeName,
    },
    /// A directory that lives as long as the pod and is filled from the image.
    Anonymous,
    /// An empty directory that lives as long as the pod.
    Empty {
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// The files of an image, which can only be read.
    Image {
        /// The image.
        image: String,
        /// The file or directory of the image that is mounted; empty: its root. Links in it are followed in the image.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        sub_path: String,
        /// Directories of the layers, topmost first; empty in a request.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        layers: Vec<String>,
    },
}

impl VolumeKind {
    /// The mode, user and group of a directory that the supervisor creates for the pod; `None` for other volumes.
    #[must_use]
    pub fn created_with(&self) -> Option<(u32, u32, u32)> {
        match *self {
            Self::Anonymous => Some((0o755, 0, 0)),
            Self::Empty { mode, uid, gid } => Some((mode, uid, gid)),
            Self::Host { .. } | Self::Named { .. } | Self::Image { .. } => None,
        }
    }
}

/// A volume's place in an app (rkt's `--mount`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSpec {
    /// Which volume.
    pub volume: AppName,
    /// Where: absolute in the app's root, without `..`.
    pub target: String,
    /// Read-only in this app.
    pub read_only: bool,
    /// Other options.
    pub options: MountOptions,
}

/// The size of `/dev/shm` if none is given, in bytes: docker's and podman's.
pub const DEFAULT_SHM_SIZE: u64 = 64 << 20;

/// A request for a pod that breaks a rule. The message says what is wrong, and what to do or what is expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct SpecError {
    message: String,
}

impl SpecError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl crate::Kind for SpecError {
    fn kind(&self) -> crate::ErrorKind {
        crate::ErrorKind::Invalid
    }
}

const MAX_APPS: usize = 100;
const MAX_MOUNTS: usize = 200;
const MAX_SYSCTLS: usize = 200;
const MAX_TEXT: usize = 128 << 10;

impl PodSpec {
    /// The volumes that outlive the pod.
    #[must_use]
    pub fn named_volumes(&self) -> BTreeSet<VolumeName> {
        let name = |volume: &VolumeSpec| match &volume.kind {
            VolumeKind::Named { volume } => Some(volume.clone()),
            VolumeKind::Host { .. } | VolumeKind::Anonymous | VolumeKind::Empty { .. } | VolumeKind::Image { .. } => {
                None
            }
        };
        self.volumes.iter().filter_map(name).collect()
    }

    /// The namespace that the pod gets.
    #[must_use]
    pub fn resolved_namespace(&self) -> PodNamespace {
        let default = || match crate::pod_namespace::kubernetes_id(&self.user_labels, &self.user_annotations) {
            Some(_) => PodNamespace::KUBERNETES,
            None => PodNamespace::CONTAINERS,
        };
        self.namespace.clone().unwrap_or_else(default)
    }

    /// Checks everything that can be checked without looking at the host or an image.
    ///
    /// # Errors
    /// The first [`SpecError`] found.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.apps.is_empty() && !self.sandbox {
            return Err(SpecError::new("a pod needs at least one app: name an image"));
        }
        check_count("apps", self.apps.len(), MAX_APPS)?;
        self.limits.validate().map_err(|error| SpecError::new(format!("limits of the pod: {error}")))?;
        let mut names = BTreeSet::new();
        let mut volumes = BTreeMap::new();
        for volume in &self.volumes {
            if volumes.insert(&volume.name, volume).is_some() {
                return Err(SpecError::new(format!("two volumes are called '{}'", volume.name)));
            }
            volume.validate()?;
        }
        for app in &self.apps {
            if !names.insert(&app.name) {
                let name = &app.name;
                return Err(SpecError::new(format!("two apps are called '{name}': rename one of them with --name")));
            }
            app.validate(&volumes)?;
            app.options.limits.validate_within(app.name.as_str(), &self.limits)?;
        }
        let interactive = self.apps.iter().any(|app| app.options.terminal || app.options.stdin);
        if interactive && self.apps.len() > 1 {
            let apps = self.apps.len();
            return Err(SpecError::new(format!("--interactive needs exactly one app; this pod has {apps}")));
        }
        crate::host_pod::check(self)?;
        crate::net_check::check(self)?;
        crate::log_path::check(self)?;
        crate::user_namespace::check(self)?;
        self.validate_sysctls()?;
        if let (Some(parent), Some(manager)) = (&self.cgroup_parent, self.cgroup_manager)
            && parent.manager() != manager
        {
            return Err(SpecError::new(format!(
                "--cgroup-parent={parent} cannot be combined with --cgroup-manager={}: systemd needs a slice, cgroupfs a \
                 path",
                manager.as_str()
            )));
        }
        check_memory_size("--shm-size", self.shm_size)?;
        self.validate_namespaces()?;
        self.hostname.as_deref().map_or(Ok(()), check_hostname)
    }

    fn validate_namespaces(&self) -> Result<(), SpecError> {
        let host_setting = self.sysctls.keys().find(|name| {
            let is_ipc = self.ipc == IpcMode::Host && name.is_ipc();
            is_ipc || (self.uts == UtsMode::Host && name.path() == "kernel/domainname")
        });
        if let Some(name) = host_setting {
            let name = name.path().replace('/', ".");
            return Err(SpecError::new(format!(
                "sysctl {name} cannot be set: the pod shares that namespace with the host"
            )));
        }
        if self.uts == UtsMode::Host && self.hostname.is_some() {
            return Err(SpecError::new("--hostname cannot be combined with --uts=host"));
        }
        if self.ipc != IpcMode::Pod && self.shm_size.is_some() {
            return Err(SpecError::new("--shm-size needs a /dev/shm of the pod's own: leave out --ipc"));
        }
        Ok(())
    }
}

impl VolumeSpec {
    fn validate(&self) -> Result<(), SpecError> {
        match &self.kind {
            VolumeKind::Host { source, .. } => check_path("volume source", source),
            VolumeKind::Image { image, sub_path, layers: _ } => {
                check_text("the image of a volume", image, 4096)?;
                check_text("the path in the image of a volume", sub_path, 4095)?;
                if !self.read_only {
                    let name = &self.name;
                    return Err(SpecError::new(format!("volume '{name}' is an image: it must be read-only")));
                }
                match sub_path.split('/').any(|part| part == "..") {
                    true => Err(SpecError::new(format!("the path '{}' in an image contains '..'", shown(sub_path)))),
                    false => Ok(()),
                }
            }
            VolumeKind::Named { .. } | VolumeKind::Anonymous | VolumeKind::Empty { .. } => Ok(()),
        }
    }
}

/// An app to be added to a running pod, with the volumes that it brings along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedAppSpec {
    /// The app. Its mounts name volumes of the pod, or of `volumes`.
    pub app: AppSpec,
    /// New volumes of the pod.
    pub volumes: Vec<VolumeSpec>,
}

impl AddedAppSpec {
    /// Checks everything that can be checked without looking at the host or an image. `pod` is the pod as created, with
    /// the apps and volumes that it has now.
    ///
    /// # Errors
    /// The first [`SpecError`] found.
    pub fn validate(&self, pod: &PodSpec) -> Result<(), SpecError> {
        if self.app.options.privileged && !pod.privileged {
            return Err(SpecError::new(
                "a privileged app can be added only to a pod that was started with --privileged",
            ));
        }
        let mut whole = pod.clone();
        whole.apps.push(self.app.clone());
        // Only the foreground of `run` shows a single interactive app.
        for app in &mut whole.apps {
            (app.options.terminal, app.options.stdin) = (false, false);
        }
        whole.volumes.extend(self.volumes.iter().cloned());
        whole.validate()
    }
}

impl PodSpec {
    fn validate_sysctls(&self) -> Result<(), SpecError> {
        check_count("sysctls", self.sysctls.len(), MAX_SYSCTLS)?;
        self.sysctls.iter().try_for_each(|(name, value)| crate::sysctl::validate_value(name, value))?;
        match self.sysctls.keys().find(|name| name.is_network()) {
            Some(name) if self.net == Some(NetMode::Host) => Err(SpecError::new(format!(
                "sysctl {name} would change the host: a pod with --net=host has no network namespace of its own"
            ))),
            _ => Ok(()),
        }
    }
}

impl AppSpec {
    fn validate(&self, volumes: &BTreeMap<&AppName, &VolumeSpec>) -> Result<(), SpecError> {
        for (what, value) in [("--exec", &self.exec), ("--user", &self.user), ("--group", &self.group)] {
            value.as_deref().map_or(Ok(()), |value| check_text(what, value, 4096))?;
        }
        for arg in &self.args {
            check_text("an argument", arg, MAX_TEXT)?;
        }
        for (name, value) in &self.environment {
            environment_name(name)?;
            check_text("an environment variable", value, MAX_TEXT)?;
        }
        self.working_dir.as_deref().map_or(Ok(()), |dir| check_path("working directory", dir))?;
        self.options.validate()?;
        if let Some(signal) = self.stop_signal.filter(|signal| !(1..=64).contains(signal)) {
            return Err(out_of_range("stop signal", signal, "1 to 64"));
        }
        let unknown = self.capabilities.given().into_iter().find(|name| !CAPABILITIES.contains(&name.as_str()));
        if let Some(name) = unknown {
            let name = shown(name);
            return Err(SpecError::new(format!("'{name}' is not a capability: expected a name such as CAP_NET_RAW")));
        }
        self.validate_mounts(volumes)
    }

    fn validate_mounts(&self, volumes: &BTreeMap<&AppName, &VolumeSpec>) -> Result<(), SpecError> {
        check_count("mounts", self.mounts.len() + self.options.tmpfs.len(), MAX_MOUNTS)?;
        for mount in &self.mounts {
            let (app, volume) = (&self.name, &mount.volume);
            let Some(spec) = volumes.get(volume) else {
                return Err(SpecError::new(format!(
                    "app '{app}' mounts volume '{volume}', which is not defined: add --volume {volume},kind=…"
                )));
            };
            check_path("mount target", &mount.target)?;
            mount.validate_options(spec)?;
        }
        self.options.tmpfs.iter().try_for_each(TmpfsMount::validate)?;
        let mut targets = BTreeSet::new();
        let given = self.mounts.iter().map(|mount| &mount.target);
        for target in given.chain(self.options.tmpfs.iter().map(|tmpfs| &tmpfs.target)) {
            let (app, target) = (&self.name, normal(target));
            if is_provided(&target) && !may_cover(&target, self.options.privileged) {
                let target = shown(&target);
                return Err(SpecError::new(format!("app '{app}' cannot mount over '{target}': gantry provides it")));
            }
            if !targets.insert(target.clone()) {
                return Err(SpecError::new(format!("app '{app}' mounts twice at '{}'", shown(&target))));
            }
        }
        Ok(())
    }
}

/// Whether a mount at this normal path would cover what every app gets: the root, `/dev`, and all of `/proc` and
/// `/sys`.
#[must_use]
pub fn is_provided(target: &str) -> bool {
    matches!(target, "/" | "/dev") || is_at_or_below(target, "/proc") || is_at_or_below(target, "/sys")
}

/// Whether a normal path is this directory or below it. The directory is not the root.
#[must_use]
pub fn is_at_or_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The files of `/proc` that a volume may cover, as with runc: programs such as lxcfs give containers their own.
/// Everything else there is what the kernel says of the app's own processes, which a volume must not imitate.
const COVERABLE_PROC_FILES: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/sys/crypto/fips_enabled",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/uptime",
];

/// Whether an app may mount at this normal path over what gantry provides: at `/sys` and below, and over some files of
/// `/proc`; a privileged app also over `/dev`.
#[must_use]
pub fn may_cover(target: &str, privileged: bool) -> bool {
    is_at_or_below(target, "/sys") || COVERABLE_PROC_FILES.contains(&target) || (privileged && target == "/dev")
}

impl MountSpec {
    fn validate_options(&self, volume: &VolumeSpec) -> Result<(), SpecError> {
        let MountOptions { propagation, writable_submounts } = self.options;
        let target = || shown(&self.target);
        let is_recursive = matches!(volume.kind, VolumeKind::Host { recursive: true, .. });
        if propagation.propagates() && !is_recursive {
            let why = "only the mounts below a path of the host, mounted with them, can be seen on the other side";
            return Err(SpecError::new(format!("'{}' cannot be mounted {}: {why}", target(), propagation.as_str())));
        }
        let is_read_only = self.read_only || volume.read_only;
        if propagation.propagates() && is_read_only && !writable_submounts {
            let why = "later mounts of the host would be writable: leave out one of both";
            let how = propagation.as_str();
            return Err(SpecError::new(format!("'{}' cannot be {how} and recursively read-only: {why}", target())));
        }
        Ok(())
    }
}

/// Whether this normal path is below `/dev`, `/dev/shm` excepted.
#[must_use]
pub fn is_device(target: &str) -> bool {
    target.strip_prefix("/dev/").is_some_and(|rest| rest != "shm" && !rest.starts_with("shm/"))
}

/// A path with repeated and trailing slashes and `.` elements taken out.
#[must_use]
pub fn normal(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("/{}", parts.join("/"))
}

/// Whether this can be the name of an environment variable: not empty, no `=`, no control characters.
///
/// # Errors
/// [`SpecError`].
pub fn environment_name(name: &str) -> Result<(), SpecError> {
    if name.is_empty() || name.len() > 4096 || name.contains('=') || name.chars().any(char::is_control) {
        let name = shown(name);
        return Err(SpecError::new(format!("'{name}' cannot be the name of an environment variable")));
    }
    Ok(())
}

pub(crate) fn out_of_range(what: &str, value: impl std::fmt::Display, range: &str) -> SpecError {
    SpecError::new(format!("{what} {value} is out of range: {range}"))
}

/// Checks an amount of memory in bytes.
pub(crate) fn check_memory_size(what: &str, bytes: Option<u64>) -> Result<(), SpecError> {
    match bytes {
        Some(bytes) if !(4096..=i64::MAX.unsigned_abs()).contains(&bytes) => {
            Err(out_of_range(what, bytes, "at least 4096 bytes, and less than 8 EiB"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_count(what: &str, count: usize, max: usize) -> Result<(), SpecError> {
    if count <= max {
        return Ok(());
    }
    Err(SpecError::new(format!("{count} {what} are too many: {max} is the limit")))
}

fn check_text(what: &str, text: &str, max: usize) -> Result<(), SpecError> {
    if text.len() <= max && !text.contains('\0') {
        return Ok(());
    }
    Err(SpecError::new(format!("{what} is longer than {max} bytes or contains a NUL byte")))
}

pub(crate) fn check_path(what: &str, path: &str) -> Result<(), SpecError> {
    let ok =
        path.starts_with('/') && path.len() < 4096 && !path.contains('\0') && !path.split('/').any(|part| part == "..");
    if ok {
        return Ok(());
    }
    Err(SpecError::new(format!("{what} '{}' is not an absolute path without '..' and NUL", shown(path))))
}

fn check_hostname(name: &str) -> Result<(), SpecError> {
    let ok = (1..=64).contains(&name.len())
        && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.'))
        && !name.starts_with(['-', '.'])
        && !name.ends_with(['-', '.']);
    if ok {
        return Ok(());
    }
    let name = shown(name);
    Err(SpecError::new(format!("'{name}' is not a host name of at most 64 letters, digits, '-' and '.'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> AppName {
        text.parse().unwrap()
    }

    fn pod(edit: impl FnOnce(&mut PodSpec)) -> Result<(), SpecError> {
        let mut spec = PodSpec { apps: vec![AppSpec::new(name("a"), RequestedImage::new("x"))], ..PodSpec::default() };
        spec.volumes.push(VolumeSpec {
            name: name("v"),
            kind: VolumeKind::Empty { mode: 0o755, uid: 0, gid: 0 },
            read_only: false,
        });
        edit(&mut spec);
        spec.validate()
    }

    fn mount(target: &str) -> MountSpec {
        MountSpec { volume: name("v"), target: target.into(), read_only: false, options: MountOptions::default() }
    }

    #[test]
    fn invalid_specifications_are_rejected() {
        assert_eq!(pod(|_| {}), Ok(()));
        assert!(pod(|s| s.apps.clear()).is_err());
        assert_eq!(pod(|s| (s.sandbox, s.apps) = (true, Vec::new())), Ok(()));
        let twice = pod(|s| s.apps.push(s.apps[0].clone())).unwrap_err();
        assert!(twice.to_string().contains("two apps are called"), "{twice}");
        for target in ["/", "/proc", "//proc/", "/proc/x", "/dev", "a", "/a/../b", "/./", "/sys/../proc"] {
            assert!(pod(|s| s.apps[0].mounts.push(mount(target))).is_err(), "{target}");
        }
        for target in ["/data", "/dev/mine", "/procfs", "/sys", "//sys/./fs/bpf/", "/proc//meminfo"] {
            assert_eq!(pod(|s| s.apps[0].mounts.push(mount(target))), Ok(()), "{target}");
        }
        assert!(pod(|s| s.apps[0].mounts.extend([mount("/d"), mount("//d/")])).is_err());
        assert!(pod(|s| s.apps[0].environment.push(("a=b".into(), String::new()))).is_err());
        assert!(pod(|s| s.apps[0].working_dir = Some("proc/self/fd/7".into())).is_err());
        assert!(pod(|s| s.hostname = Some("a\nb".into())).is_err());
        assert!(pod(|s| s.apps[0].options.limits.memory = Some(10)).is_err());
        assert!(pod(|s| s.apps[0].options.oom_score_adj = Some(2000)).is_err());
        assert!(pod(|s| s.apps[0].capabilities = Capabilities::Retain(["CAP_X".to_owned()].into())).is_err());
    }

    #[test]
    fn tmpfs_options() {
        let parse = |text: &str| text.parse::<TmpfsMount>();
        let plain = parse("/run").unwrap();
        assert_eq!((plain.target.as_str(), plain.size, plain.mode, plain.exec), ("/run", None, 0o1777, false));
        let given = parse("/t:rw,size=64m,mode=0750,uid=7,gid=8,exec,nosuid,nodev").unwrap();
        assert_eq!((given.size, given.mode, given.uid, given.gid, given.exec), (Some(64 << 20), 0o750, 7, 8, true));
        assert!(parse("/t:ro").unwrap().read_only);
        let bad = ["", "t", "/a/../b", "/t:size=0", "/t:size=x", "/t:mode=8", "/t:mode=17777", "/t:uid=-1", "/t:suid"];
        for bad in bad.into_iter().chain(["/t:dev", "/t:exec=1", "/t:size", "/t:mode=+7"]) {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let tmpfs = |target: &str| pod(|s| s.apps[0].options.tmpfs.push(parse(target).unwrap()));
        assert_eq!(tmpfs("/run"), Ok(()));
        for target in ["/", "/proc/x", "/dev/"] {
            assert!(tmpfs(target).unwrap_err().to_string().contains("cannot mount over"), "{target}");
        }
        let twice = pod(|s| {
            s.apps[0].mounts.push(mount("/d"));
            s.apps[0].options.tmpfs.push(parse("//d/").unwrap());
        });
        assert!(twice.unwrap_err().to_string().contains("mounts twice"));
    }

    #[test]
    fn mounts_cover_sys_and_some_files_of_proc() {
        for target in ["/sys", "/sys/fs/cgroup", "/proc/cpuinfo", "/proc/sys/kernel/ns_last_pid"] {
            assert!(is_provided(target) && may_cover(target, false) && may_cover(target, true), "{target}");
        }
        for target in ["/", "/proc", "/proc/self", "/proc/cpuinfo/x", "/proc/sys", "/proc/1/stat", "/proc/net/dev"] {
            assert!(is_provided(target) && !may_cover(target, false) && !may_cover(target, true), "{target}");
        }
        assert!(may_cover("/dev", true) && !may_cover("/dev", false) && !may_cover("/system", true));
    }

    #[test]
    fn removed_capabilities_are_absent() {
        let left = Capabilities::Remove(["CAP_CHOWN".to_owned()].into()).names();
        assert_eq!(left.len(), DEFAULT_CAPABILITIES.len() - 1);
        assert!(!left.contains("CAP_CHOWN"));
    }

    #[test]
    fn added_capabilities_are_held_by_every_user() {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        let adjust = |add: &[&str], drop: &[&str]| Capabilities::Adjust { add: set(add), drop: set(drop) };
        let one = adjust(&["CAP_NET_RAW"], &[ALL_CAPABILITIES]);
        assert_eq!((one.names(), one.required(), one.ambient()), (set(&["CAP_NET_RAW"]), one.names(), one.names()));
        let added = adjust(&["CAP_NET_RAW"], &["CAP_CHOWN"]);
        assert_eq!(added.names().len(), DEFAULT_CAPABILITIES.len());
        assert_eq!(added.ambient(), set(&["CAP_NET_RAW"]), "of the default set only root holds any");
        let all = adjust(&[ALL_CAPABILITIES, "CAP_CHOWN"], &["CAP_SYS_BOOT"]);
        assert_eq!((all.names().len(), all.ambient().len()), (CAPABILITIES.len() - 1, CAPABILITIES.len() - 1));
        assert_eq!(all.required(), set(&["CAP_CHOWN"]), "ALL depends on the host");
        assert_eq!((Capabilities::All.names().len(), Capabilities::All.ambient().len()), (CAPABILITIES.len(), 0));
        assert!(pod(|s| s.apps[0].capabilities = adjust(&["CAP_X"], &[])).is_err());
        assert_eq!(pod(|s| s.apps[0].capabilities = all.clone()), Ok(()));
    }
}
