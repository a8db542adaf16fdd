//! The JSON of the pod manifest, and its conversion to and from the model. Both directions name every field, so that a
//! new one breaks the build.
//!
//! ```json
//! { "version": 1,
//!   "net": "default",                           as --net: "none", "host", "default,other:IP=10.0.0.7";
//!                                               absent: the default
//!   "ports": [ { "host_ip": "127.0.0.1", "host_port": 8080, "to": { "name": "80-tcp" } },
//!              { "host_port": 5000, "to": { "port": { "port": 500, "count": 1, "protocol": "udp" } } } ],
//!   "dns": "network",                           network | host | none | {"given": {"servers": [...], "search": [...],
//!                                               "options": [...], "domain": "example.com"}}
//!   "hosts": { "entries": [ { "address": "10.0.0.1", "names": ["db"] } ] },          {"entries": [...]} | "host"
//!   "hostname": "web-1",                        optional
//!   "ipc": "host",                              pod | none | host; default pod
//!   "uts": "host",                              pod | host; default pod
//!   "userns": {"mapped": {"uids": {"host": 100000, "length": 65536}, "gids": {"host": 100000, "length": 65536}}},
//!                                               host | auto | {"mapped": …}; default host
//!   "flavor": "host",                           apps without images on the host's file system; default container
//!   "namespace": "batch",                      as --namespace; absent: taloscontainers, or k8s.io for a kubelet's pod
//!   "sandbox": true,                            may have no apps, runs until it is stopped; default false
//!   "privileged": true,                         apps of it may be privileged; default: if one of `apps` is
//!   "shm_size": 67108864,
//!   "sysctls": { "net.core.somaxconn": "1024" },
//!   "cgroup_parent": "/batch",                  a path or a slice; absent: that of the configuration
//!   "cgroup_manager": "cgroupfs",               cgroupfs | systemd; absent: that of the parent
//!   "limits": { "memory": 1073741824 },          of all apps together; fields as in an app's
//!   "log_dir": "/var/log/pods/web",             the directory of log files at chosen paths; absent: none
//!   "apps": [ {
//!     "name": "web", "image": "registry.example/web:1",
//!     "exec": "/bin/web", "args": ["-v"],
//!     "user": "www", "group": "www", "supplementary_gids": [10], "supplementary_groups": ["audio"],
//!     "working_dir": "/srv",
//!     "environment": [ { "name": "A", "value": "b" } ],
//!     "mounts": [ { "volume": "data", "target": "/data", "read_only": false,
//!                   "options": { "propagation": "slave", "writable_submounts": true } } ],   private | slave | shared
//!     "tmpfs": [ { "target": "/run", "size": 65536, "mode": 1023, "uid": 0, "gid": 0, "exec": false, "read_only": false } ],
//!     "read_only_root": false,
//!     "limits": { "memory": 67108864, "memory_swap": -1, "memory_high": 60000000, "memory_reservation": 33554432,
//!                 "cpu_milli": 500, "cpu_quota": 50000, "cpu_period": 100000, "cpu_shares": 512,
//!                 "cpuset_cpus": "0-3", "cpuset_mems": "0", "pids": 100, "io_weight": 100,
//!                 "io_devices": [ { "path": "/dev/sda", "read_bps": 1048576, "write_bps": 1048576,
//!                                   "read_iops": 100, "write_iops": 100 } ],
//!                 "hugetlb": { "2MB": 4194304 }, "unified": { "memory.high": "max" } },
//!                                               all optional; cpu_milli or cpu_quota
//!     "devices": [ { "source": "/dev/fuse", "target": "/dev/fuse", "read": true, "write": true } ],
//!     "ulimits": [ { "name": "nofile", "soft": 1024, "hard": null } ],                 null: unlimited
//!     "restart": "no",                          no | always | {"on-failure": {"max_restarts": 3}}
//!     "capabilities": "default",                default | all | {"retain": [...]} | {"remove": [...]} |
//!                                               {"adjust": {"add": [...], "drop": [...]}} |
//!                                               {"kubernetes": {"add": [...], "drop": [...], "ambient": [...]}}
//!     "seccomp": "default",                     default | unconfined | {"retain": {"names": [...], "errno": 1}} |
//!                                               {"remove": ...} | {"profile": {"default": "allow", "rules":
//!                                               [ { "names": ["chmod"], "action": {"errno": 1} } ]}}
//!     "new_privileges": false, "oom_score_adj": 100, "stop_signal": 15,
//!     "health": { "probe": {"command": ["/bin/sh", "-c", "…"]},    | "disabled" | {"tcp": {"host": …, "port": 5432}} |
//!                                               {"http": {"host": "127.0.0.1", "port": 80, "path": "/"}}
//!                 "interval_ms": 30000, "timeout_ms": 30000, "retries": 3, "start_period_ms": 0,
//!                 "start_interval_ms": 5000, "on_failure": "none" },  | "restart" | "stop" | "kill"
//!     "stop_timeout_ms": 30000, "privileged": false, "storage_limit": 1073741824,
//!     "log_path": "web/0.log",                  the log file, below log_dir; absent: one in the pod directory
//!     "pid": "pod",                             pod | app | host
//!     "pid_target": "main",                     the app whose PID namespace it joins, in place of "pid"
//!     "groups_policy": "merge",                 unless-group | merge | strict; default unless-group
//!     "masked_paths": [], "read_only_paths": [],   absent: gantry's
//!     "terminal": false, "stdin": false,
//!     "sdnotify": "app",                        ready | app | none; default ready
//!     "systemd": "always",                      auto | always | false; default auto
//!     "annotations": {}, "labels": {} } ],
//!   "volumes": [ { "name": "data", "read_only": false,
//!                  "kind": { "host": { "source": "/srv/data", "recursive": false } } },
//!                { "name": "db", "kind": { "named": { "volume": "pgdata" } } },
//!                { "name": "own", "kind": "anonymous" },
//!                { "name": "assets", "kind": { "image": { "image": "registry.example/assets:1", "sub_path": "web" } },
//!                  "read_only": true },
//!                { "name": "tmp", "kind": { "empty": { "mode": 493, "uid": 0, "gid": 0 } } } ],
//!   "annotations": {}, "labels": {} }
//! ```
//!
//! All fields but `name` and `image` are optional. Unknown fields are an error, so that a misspelt limit is not
//! ignored. At most 1 MiB.

mod app;

use std::collections::{BTreeMap, BTreeSet};

use gantry_contract::plan::{self, Plan};
use gantry_model::cgroup::{CgroupManager, CgroupParent};
use gantry_model::device::DeviceSpec;
use gantry_model::mount_options::MountOptions;
use gantry_model::namespaces::{IpcMode, PidMode, UtsMode};
use gantry_model::net::PortSpec;
use gantry_model::restart::RestartPolicy;
use gantry_model::seccomp_profile::SeccompProfile;
use gantry_model::spec::{self, PodSpec};
use gantry_model::sysctl::SysctlName;
use gantry_model::systemd::{SdNotify, SystemdMode};
use gantry_model::user_namespace::UserNamespaceMode;
use gantry_model::{AppLogPath, AppName, AppSpec, PodLogDir, PodNamespace, ulimit};
use serde::{Deserialize, Serialize};

use crate::ManifestError;
use crate::manifest::health::Health;
use crate::manifest::limits;
use crate::manifest::net::{Hosts, Port, Resolver};
use crate::manifest::volumes::Volume;

/// Whether a setting has its default and is left out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pod {
    pub(crate) version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    net: Option<String>,
    #[serde(default)]
    ports: Vec<Port>,
    #[serde(default)]
    dns: Resolver,
    #[serde(default)]
    hosts: Hosts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    ipc: IpcMode,
    #[serde(default, skip_serializing_if = "is_default")]
    uts: UtsMode,
    #[serde(default, skip_serializing_if = "is_default")]
    userns: UserNamespaceMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<PodNamespace>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sandbox: bool,
    #[serde(default, skip_serializing_if = "spec::PodFlavor::is_container")]
    flavor: spec::PodFlavor,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    privileged: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shm_size: Option<u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    sysctls: BTreeMap<SysctlName, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cgroup_parent: Option<CgroupParent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cgroup_manager: Option<CgroupManager>,
    #[serde(default, skip_serializing_if = "spec::Limits::is_empty", with = "limits")]
    limits: spec::Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_dir: Option<PodLogDir>,
    apps: Vec<App>,
    #[serde(default)]
    volumes: Vec<Volume>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct App {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    image: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exec: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default)]
    supplementary_gids: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    supplementary_groups: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    working_dir: Option<String>,
    #[serde(default)]
    environment: Vec<Variable>,
    #[serde(default)]
    mounts: Vec<Mount>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tmpfs: Vec<Tmpfs>,
    #[serde(default)]
    read_only_root: bool,
    #[serde(default, with = "limits")]
    limits: spec::Limits,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    devices: Vec<Device>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ulimits: Vec<Ulimit>,
    #[serde(default, skip_serializing_if = "Health::is_empty")]
    health: Health,
    #[serde(default)]
    restart: RestartPolicy,
    #[serde(default)]
    capabilities: Capabilities,
    #[serde(default)]
    seccomp: Seccomp,
    #[serde(default)]
    new_privileges: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    oom_score_adj: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stop_signal: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stop_timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    privileged: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pid: PidMode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid_target: Option<AppName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    storage_limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    log_path: Option<AppLogPath>,
    #[serde(default, skip_serializing_if = "is_default")]
    groups_policy: spec::GroupsPolicy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    masked_paths: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_only_paths: Option<Vec<String>>,
    #[serde(default)]
    terminal: bool,
    #[serde(default)]
    stdin: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    sdnotify: SdNotify,
    #[serde(default, skip_serializing_if = "is_default")]
    systemd: SystemdMode,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mount {
    volume: String,
    target: String,
    #[serde(default)]
    read_only: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    options: MountOptions,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tmpfs {
    target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(default = "tmpfs_mode")]
    mode: u32,
    #[serde(default)]
    uid: u32,
    #[serde(default)]
    gid: u32,
    #[serde(default)]
    exec: bool,
    #[serde(default)]
    read_only: bool,
}

fn tmpfs_mode() -> u32 {
    0o1777
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    source: String,
    target: String,
    #[serde(default)]
    read: bool,
    #[serde(default)]
    write: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ulimit {
    name: ulimit::Resource,
    // Without this, serde takes a missing field for null.
    #[serde(deserialize_with = "Option::deserialize")]
    soft: Option<u64>,
    #[serde(deserialize_with = "Option::deserialize")]
    hard: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Capabilities {
    #[default]
    Default,
    Retain(BTreeSet<String>),
    Remove(BTreeSet<String>),
    Adjust {
        #[serde(default)]
        add: BTreeSet<String>,
        #[serde(default)]
        drop: BTreeSet<String>,
    },
    Kubernetes {
        #[serde(default)]
        add: BTreeSet<String>,
        #[serde(default)]
        drop: BTreeSet<String>,
        #[serde(default)]
        ambient: BTreeSet<String>,
    },
    All,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Seccomp {
    #[default]
    Default,
    Unconfined,
    Retain(Calls),
    Remove(Calls),
    Profile(Box<SeccompProfile>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Calls {
    names: BTreeSet<String>,
    errno: u16,
}

impl From<&PodSpec> for Pod {
    fn from(spec: &PodSpec) -> Self {
        let PodSpec {
            apps,
            namespace,
            sandbox,
            flavor,
            privileged,
            volumes,
            net,
            ports,
            dns,
            hosts,
            hostname,
            ipc,
            uts,
            userns,
            shm_size,
            sysctls,
            cgroup_parent,
            cgroup_manager,
            limits,
            log_dir,
            user_annotations,
            user_labels,
        } = spec;
        Self {
            version: crate::manifest::VERSION,
            net: net.as_ref().map(ToString::to_string),
            ports: ports.iter().map(Port::from).collect(),
            dns: dns.into(),
            hosts: hosts.into(),
            hostname: hostname.clone(),
            ipc: *ipc,
            uts: *uts,
            userns: *userns,
            namespace: namespace.clone(),
            sandbox: *sandbox,
            flavor: *flavor,
            privileged: *privileged,
            shm_size: *shm_size,
            sysctls: sysctls.clone(),
            cgroup_parent: cgroup_parent.clone(),
            cgroup_manager: *cgroup_manager,
            limits: limits.clone(),
            log_dir: log_dir.clone(),
            apps: apps.iter().map(App::from).collect(),
            volumes: volumes.iter().map(Volume::from).collect(),
            annotations: user_annotations.clone(),
            labels: user_labels.clone(),
        }
    }
}

impl TryFrom<Pod> for PodSpec {
    type Error = ManifestError;

    fn try_from(pod: Pod) -> Result<Self, ManifestError> {
        let Pod {
            version: _,
            net,
            ports,
            dns,
            hosts,
            hostname,
            ipc,
            uts,
            userns,
            namespace,
            sandbox,
            flavor,
            privileged,
            shm_size,
            sysctls,
            cgroup_parent,
            cgroup_manager,
            limits,
            log_dir,
            apps,
            volumes,
            annotations,
            labels,
        } = pod;
        Ok(Self {
            apps: apps.into_iter().map(AppSpec::try_from).collect::<Result<_, _>>()?,
            volumes: volumes.into_iter().map(spec::VolumeSpec::try_from).collect::<Result<_, _>>()?,
            net: net.map(|net| net.parse()).transpose()?,
            ports: ports.into_iter().map(PortSpec::from).collect(),
            dns: dns.into(),
            hosts: hosts.into(),
            hostname,
            ipc,
            uts,
            userns,
            namespace,
            sandbox,
            flavor,
            privileged,
            shm_size,
            sysctls,
            cgroup_parent,
            cgroup_manager,
            limits,
            log_dir,
            user_annotations: annotations,
            user_labels: labels,
        })
    }
}

/// The limits of a pod and of its apps, as in the manifest.
pub(crate) fn limits_of_plan(plan: &Plan) -> serde_json::Value {
    let of_app = |app: &plan::App| (app.name.clone(), limits::to_value(&app.options.limits));
    let apps: serde_json::Map<_, _> = plan.apps.iter().map(of_app).collect();
    serde_json::json!({ "pod": limits::to_value(&plan.limits), "apps": apps })
}

impl From<&spec::TmpfsMount> for Tmpfs {
    fn from(tmpfs: &spec::TmpfsMount) -> Self {
        let spec::TmpfsMount { target, size, mode, uid, gid, exec, read_only } = tmpfs.clone();
        Self { target, size, mode, uid, gid, exec, read_only }
    }
}

impl From<Tmpfs> for spec::TmpfsMount {
    fn from(tmpfs: Tmpfs) -> Self {
        let Tmpfs { target, size, mode, uid, gid, exec, read_only } = tmpfs;
        Self { target, size, mode, uid, gid, exec, read_only }
    }
}

impl From<&DeviceSpec> for Device {
    fn from(device: &DeviceSpec) -> Self {
        let DeviceSpec { source, target, read, write } = device.clone();
        Self { source, target, read, write }
    }
}

impl From<Device> for DeviceSpec {
    fn from(device: Device) -> Self {
        let Device { source, target, read, write } = device;
        Self { source, target, read, write }
    }
}

impl From<&ulimit::Ulimit> for Ulimit {
    fn from(ulimit: &ulimit::Ulimit) -> Self {
        let ulimit::Ulimit { resource, soft, hard } = *ulimit;
        Self { name: resource, soft, hard }
    }
}

impl From<Ulimit> for ulimit::Ulimit {
    fn from(ulimit: Ulimit) -> Self {
        let Ulimit { name, soft, hard } = ulimit;
        Self { resource: name, soft, hard }
    }
}

impl From<&spec::Seccomp> for Seccomp {
    fn from(seccomp: &spec::Seccomp) -> Self {
        let calls = |names: &BTreeSet<String>, errno: &u16| Calls { names: names.clone(), errno: *errno };
        match seccomp {
            spec::Seccomp::Default => Self::Default,
            spec::Seccomp::Unconfined => Self::Unconfined,
            spec::Seccomp::Retain { names, errno } => Self::Retain(calls(names, errno)),
            spec::Seccomp::Remove { names, errno } => Self::Remove(calls(names, errno)),
            spec::Seccomp::Profile(profile) => Self::Profile(profile.clone()),
        }
    }
}

impl From<Seccomp> for spec::Seccomp {
    fn from(seccomp: Seccomp) -> Self {
        match seccomp {
            Seccomp::Default => Self::Default,
            Seccomp::Unconfined => Self::Unconfined,
            Seccomp::Retain(Calls { names, errno }) => Self::Retain { names, errno },
            Seccomp::Remove(Calls { names, errno }) => Self::Remove { names, errno },
            Seccomp::Profile(profile) => Self::Profile(profile),
        }
    }
}
