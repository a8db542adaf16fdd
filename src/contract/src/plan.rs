//! The plan: everything the supervisor needs to run a pod, resolved by the engine.
//!
//! The engine has validated the names in it. The image behind `layers` is untrusted: the supervisor resolves users,
//! groups, programs and working directories inside the mounted root, beneath it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use gantry_model::cgroup::CgroupParent;
use gantry_model::mount_options::{MountOptions, Propagation};
use gantry_model::namespaces::{IpcMode, UtsMode};
use gantry_model::net::{DnsSpec, HostsSpec, NetworkRequest, PodPort};
use gantry_model::spec::{AppOptions, Limits, PodFlavor, VolumeSpec};
use gantry_model::sysctl::SysctlName;
use gantry_model::user_namespace::IdMappings;
use gantry_model::{AppId, PodLogDir, PodNamespace};
use serde::{Deserialize, Serialize};

/// A pod to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`crate::VERSION`] of the writer.
    pub version: u32,
    /// The pod's UUID.
    pub pod: String,
    /// The pod directory, absolute.
    pub pod_dir: String,
    /// The directory of the layers, absolute.
    pub trees_dir: String,
    /// Its namespace. The supervisor does not use it.
    #[serde(default, skip_serializing_if = "PodNamespace::is_default")]
    pub namespace: PodNamespace,
    /// Hostname in the pod.
    pub hostname: String,
    /// The IPC namespace.
    #[serde(default, skip_serializing_if = "IpcMode::is_pod")]
    pub ipc: IpcMode,
    /// The UTS namespace. With the host's, `hostname` is the host's name.
    #[serde(default, skip_serializing_if = "UtsMode::is_pod")]
    pub uts: UtsMode,
    /// The ids of the pod's own user namespace; `None`: it is in the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_ids: Option<IdMappings>,
    /// The size of `/dev/shm` in bytes.
    #[serde(default = "default_shm_size")]
    pub shm_size: u64,
    /// Kernel settings of the pod's namespaces, by name.
    #[serde(default)]
    pub sysctls: BTreeMap<SysctlName, String>,
    /// The network.
    pub net: Net,
    /// The addresses of the former run of the pod, which it gets again if they are free.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_addresses: Vec<IpAddr>,
    /// `/etc/resolv.conf`.
    #[serde(default)]
    pub resolv: DnsSpec,
    /// `/etc/hosts`.
    #[serde(default)]
    pub hosts: HostsSpec,
    /// The parent of the pod's cgroup: a path below each hierarchy's root, or a slice of systemd.
    pub cgroup_parent: CgroupParent,
    /// The directory of the named volumes, absolute. A volume's directory has the content for apps in `data`, and a
    /// file `fresh` until the first app mounts it, which fills the volume.
    pub volumes_dir: String,
    /// Volumes by name. Directories that the supervisor creates for the pod are in [`crate::files::VOLUMES`].
    pub volumes: Vec<VolumeSpec>,
    /// The apps, in the order in which they are started.
    pub apps: Vec<App>,
    /// Rotation of log files.
    pub log: LogLimits,
    /// The directory of log files at chosen paths ([`AppOptions::log_path`]). They are not rotated, and all starts of
    /// an app append to one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_dir: Option<PodLogDir>,
    /// The time between the stop signal and SIGKILL for the other apps when one failed, in milliseconds.
    pub stop_grace_ms: u64,
    /// Whether the pod may have no apps and ends only when it is stopped: an app that exits or fails neither ends the
    /// pod nor stops the other apps.
    #[serde(default)]
    pub sandbox: bool,
    /// How the apps are isolated. Apps of a host pod have no layers.
    #[serde(default, skip_serializing_if = "PodFlavor::is_container")]
    pub flavor: PodFlavor,
    /// Whether apps of it may be privileged: then the devices of each app are confined on their own, where cgroup v2
    /// allows that, instead of those of the pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub privileged: bool,
    /// Resource limits of all apps together: those of the pod's cgroup.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// The number of the last recorded change of these limits, in former runs of the pod.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limit_changes: u32,
}

impl Plan {
    /// The path of the pod's cgroup below each hierarchy's root; an app's is one below. The engine records it in the
    /// pod's row.
    #[must_use]
    pub fn pod_cgroup(&self) -> String {
        self.cgroup_parent.pod_path(&self.pod)
    }
}

fn default_shm_size() -> u64 {
    gantry_model::spec::DEFAULT_SHM_SIZE
}

/// The network of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Net {
    /// A namespace with loopback only.
    None,
    /// The host's.
    Host,
    /// A namespace with networks.
    Networks(Networks),
}

/// The networks of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networks {
    /// The network settings of this host.
    pub host: crate::network::Host,
    /// The networks, in order: they get eth0, eth1 …
    pub wanted: Vec<NetworkRequest>,
    /// Every network that is configured, and the default one; `wanted` has the arguments of some.
    pub all: bool,
    /// Ports of the host that lead to the pod.
    #[serde(default)]
    pub ports: Vec<PodPort>,
    /// The settings of a Kubernetes pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Box<crate::network::KubernetesNetworking>>,
}

/// A device of the host, as its node was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDevice {
    /// The path of its node in the app, below `/dev`.
    pub target: String,
    /// Whether it is a block device; otherwise a character device.
    pub is_block: bool,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Whether the app may read it.
    pub read: bool,
    /// Whether the app may write it.
    pub write: bool,
    /// Permission bits of the node.
    pub mode: u32,
    /// Owner of the node.
    pub uid: u32,
    /// Group of the node.
    pub gid: u32,
}

/// A volume's place in an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Name of the volume.
    pub volume: String,
    /// Absolute path in the app's root; created if it does not exist, symlinks are followed beneath the root.
    pub target: String,
    /// Read-only in this app.
    pub read_only: bool,
    /// Whether an empty volume gets a copy of the image's directory at the target when it is first created: content,
    /// owner and mode.
    #[serde(default)]
    pub seed: bool,
    /// Whether the image declares it: such a mount gives way to other mounts, and to the supervisor's own.
    #[serde(default)]
    pub declared: bool,
    /// Other options.
    #[serde(default, skip_serializing_if = "MountOptions::is_default")]
    pub options: MountOptions,
}

/// The propagation that the mounts of a volume need.
#[must_use]
pub fn propagation<'a>(mounts: impl IntoIterator<Item = &'a Mount>, volume: &VolumeSpec) -> Propagation {
    let of_volume = mounts.into_iter().filter(|mount| mount.volume == volume.name.as_str());
    of_volume.map(|mount| mount.options.propagation).max().unwrap_or_default()
}

/// The size of an image, as counted when its layers were unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSize {
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of its files, directories and links.
    pub entries: u64,
}

/// An app to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct App {
    /// Its name.
    pub name: String,
    /// Its id; `None` in plans of older engines. The supervisor does not use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<AppId>,
    /// The number of the start, from 0.
    pub attempt: u32,
    /// The number of the last recorded change of its health, in former runs of the pod.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health_changes: u32,
    /// Whether it is created and not started, until a request starts it; `attempt` is that of its last start then.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_held: bool,
    /// The number of the last recorded change of its limits, in former runs of the pod.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limit_changes: u32,
    /// The number of its processes that the OOM killer killed in former runs of the pod.
    #[serde(default, skip_serializing_if = "is_default")]
    pub oom_kills: u64,
    /// Directories below `trees_dir`, topmost layer first; at most 128.
    pub layers: Vec<String>,
    /// The size of the layers, which bounds the copies made of them. `None` in plans of older engines.
    #[serde(default)]
    pub image_size: Option<ImageSize>,
    /// The command: program (looked up in PATH of `env` when it has no slash) and arguments.
    pub argv: Vec<String>,
    /// The whole environment, `NAME=VALUE`. HOME is added by the supervisor when it is missing.
    pub env: Vec<String>,
    /// Working directory; created if it does not exist.
    pub cwd: String,
    /// User: name, number, `user:group`, or an absolute path whose owner is used; `None`: root.
    pub user: Option<String>,
    /// Group: name, number or an absolute path; `None`: the user's.
    pub group: Option<String>,
    /// Volumes.
    pub mounts: Vec<Mount>,
    /// Capabilities by name, for the bounding, effective and permitted set. Capabilities that the supervisor lacks are
    /// left out.
    pub capabilities: Vec<String>,
    /// The subset of `capabilities` without which the app must not start.
    #[serde(default)]
    pub required_capabilities: Vec<String>,
    /// The subset of `capabilities` that processes of other users than root hold too.
    #[serde(default)]
    pub ambient_capabilities: Vec<String>,
    /// The stop signal of the app.
    pub stop_signal: u8,
    /// The options that do not depend on the image.
    #[serde(flatten)]
    pub options: AppOptions,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Rotation of log files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// The size in bytes at which a file is rotated.
    pub max_bytes: u64,
    /// The number of files to keep, the current one included.
    pub max_files: u32,
}

impl Default for LogLimits {
    /// The kubelet's defaults: five files of 10 MiB.
    fn default() -> Self {
        Self { max_bytes: 10 << 20, max_files: 5 }
    }
}
