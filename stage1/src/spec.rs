//! Makes the OCI runtime configuration that libcontainer reads. It holds only what libcontainer 0.7.0 supports; gantry
//! itself does what that ignores (seccomp, resources) or does not offer it (propagation).

use gantry_contract::plan::{App, Plan};
use gantry_model::namespaces::{IpcMode, PidMode};
use serde_json::{Value, json};

use crate::confine::{ADMIN, Confinement, names};
use crate::creation::JoinedNamespaces;
use crate::devices::Device;
use crate::mounts::is_left_to_libcontainer;
use crate::own_namespaces::AppNamespaces;
use crate::root::root_path;
use crate::ulimits;
use crate::user::Ids;
use crate::volumes::AppMount;

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
    pub(crate) masked: Vec<String>,
    pub(crate) read_only: Vec<String>,
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
}

/// The files of an app on top of those that every app has.
pub(crate) struct AppFiles<'a> {
    /// Its volumes and file systems.
    pub(crate) mounts: &'a [AppMount],
    /// The devices of the host that it gets.
    pub(crate) devices: &'a [Device],
}

/// The `config.json` of an app. [`crate::mounts`] has mounted the mounts that are not below /dev.
pub(crate) fn config(
    plan: &Plan,
    app: &App,
    files: &AppFiles<'_>,
    ids: &Ids,
    confinement: &Confinement,
    joined: &JoinedNamespaces,
) -> Value {
    let covered = &confinement.namespaces.covered;
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": root_path(&app.name), "readonly": app.options.read_only_root },
        "process": process(app, ids, confinement),
        "mounts": mounts(plan, files.mounts, app.options.privileged),
        "linux": {
            // Never empty and never the root: libcontainer kills the processes in this cgroup when it cleans up.
            "cgroupsPath": format!("{}/{}", plan.pod_cgroup(), app.name),
            "namespaces": namespaces(app, joined),
            "devices": files.devices.iter().map(Device::node).collect::<Vec<_>>(),
            "maskedPaths": covered.masked,
            "readonlyPaths": covered.read_only,
        },
    })
}

/// The namespaces of the process that libcontainer makes. One with a PID namespace of its own gets that later, inside
/// the pod's ([`crate::own_namespaces`]).
fn namespaces(app: &App, joined: &JoinedNamespaces) -> Value {
    let of = |kind: &str, path: &String| json!({ "type": kind, "path": path });
    let pid = match app.options.pid {
        PidMode::Pod | PidMode::App => joined.pid_path.as_ref(),
        PidMode::Host => None,
    };
    let user = joined.user_path();
    let joined = user.iter().map(|path| of("user", path)).chain(pid.map(|path| of("pid", path)));
    [json!({ "type": "mount" })].into_iter().chain(joined).collect()
}

fn process(app: &App, ids: &Ids, confinement: &Confinement) -> Value {
    // They are dropped when the process is locked down (confine.rs).
    let own = confinement.sets(ids.uid).permitted | ADMIN;
    let bounding = confinement.capabilities | own;
    let mut process = json!({
        "terminal": app.options.terminal,
        "user": { "uid": ids.uid, "gid": ids.gid, "additionalGids": ids.groups, "umask": 0o022 },
        "args": app.argv,
        "env": environment(&app.env, ids),
        "cwd": app.cwd,
        "capabilities": { "bounding": names(bounding), "effective": names(own), "permitted": names(own) },
    });
    // Lower limits come later (confine.rs): they could stop libcontainer.
    let raised = ulimits::raised_for_libcontainer(&app.options.ulimits);
    if !raised.is_empty() {
        process["rlimits"] = json!(raised);
    }
    // Only if it is true: libcontainer treats an explicit false as true.
    if !confinement.new_privileges {
        process["noNewPrivileges"] = json!(true);
    }
    process
}

/// The app's environment with HOME. Without it libcontainer would read the image's passwd through the C library.
pub(crate) fn environment(env: &[String], ids: &Ids) -> Vec<String> {
    let mut env = env.to_vec();
    if !env.iter().any(|entry| entry.starts_with("HOME=")) {
        env.push(format!("HOME={}", ids.home));
    }
    env
}

fn mounts(plan: &Plan, own: &[AppMount], is_privileged: bool) -> Vec<Value> {
    let mount = |target: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": target, "type": kind, "source": source, "options": options });
    let quiet = ["nosuid", "noexec", "nodev"];
    let mut pts = vec!["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"];
    // The group of terminals, unless the pod has no such group.
    if plan.user_ids.is_none_or(|ids| ids.gids.to_host(5).is_some()) {
        pts.push("gid=5");
    }
    let mut mounts = vec![
        mount("/proc", "proc", "proc", &quiet),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount("/dev/pts", "devpts", "devpts", &pts),
        mount("/dev/shm", "bind", "/shm", &["bind", "nosuid", "noexec", "nodev"]),
        mount("/dev/mqueue", "mqueue", "mqueue", &quiet),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", if is_privileged { "rw" } else { "ro" }]),
    ];
    if plan.ipc == IpcMode::None {
        mounts.retain(|mount| mount["destination"] != "/dev/shm");
    }
    let left = own.iter().filter(|mount| is_left_to_libcontainer(mount));
    mounts.extend(left.map(|mount| {
        let AppMount { target, kind, source, options, .. } = mount;
        json!({ "destination": target, "type": kind, "source": source, "options": options })
    }));
    mounts
}
