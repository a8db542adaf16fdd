//! Makes the plan for a supervisor from the user's specification and the images' configurations. Pure.
//!
//! An image may set: program and arguments, environment, user, working directory, stop signal, and volumes. Its labels
//! have no effect, and its ports are names for `--port`.

use std::collections::BTreeSet;

use gantry_contract::plan as out;
use gantry_fetch::config::ImageConfig;
use gantry_model::cgroup::CgroupParent;
use gantry_model::health::HealthSettings;
use gantry_model::id::shown;
use gantry_model::mount_options::MountOptions;
use gantry_model::namespaces::{IpcMode, PidMode, UtsMode};
use gantry_model::spec::{
    self, AppOptions, Capabilities, PodFlavor, Seccomp, SpecError, TmpfsMount, VolumeKind, VolumeSpec,
};
use gantry_model::systemd::{self, SdNotify, SystemdMode};
use gantry_model::terminal::TERM;
use gantry_model::{AddedAppSpec, AppName, AppSpec, Digest, ErrorKind, Kind, NetMode, PodId, PodSpec};
use gantry_store::Layout;
use thiserror::Error;

use crate::NetworkOptions;
use crate::pods::plan_net;

/// The PATH of an app whose image sets none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// SIGTERM.
const STOP_SIGNAL: u8 = 15;
/// The longest command and environment of an app together, in bytes: the kernel's own limit is 2 MiB by default.
const MAX_STRINGS: usize = 1 << 20;

/// The most layers of an image: their names fit into the options of a mount.
pub(super) const MAX_LAYERS: usize = 128;

/// The specification and the images do not give a valid plan: the app or the port, the reason and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct PlanError {
    message: String,
    kind: ErrorKind,
    source: Option<SpecError>,
}

impl PlanError {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, source: None }
    }

    pub(super) fn caused_by(self, source: SpecError) -> Self {
        Self { source: Some(source), ..self }
    }

    /// The host lacks something.
    pub(super) fn unavailable(missing: String) -> Self {
        Self::new(ErrorKind::Unavailable, missing)
    }

    /// Neither the image nor the user names a program.
    fn no_command(app: &AppName) -> Self {
        let message = format!("app '{app}' has no command: its image names none; give one with --exec or after --");
        Self::new(ErrorKind::Invalid, message)
    }
}

impl From<SpecError> for PlanError {
    fn from(error: SpecError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl Kind for PlanError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// The settings that all apps of a pod share.
#[derive(Debug, Clone)]
pub(crate) struct Setting<'a> {
    pub(crate) id: PodId,
    pub(crate) layout: &'a Layout,
    pub(crate) network: &'a NetworkOptions,
    pub(crate) cgroup_parent: &'a CgroupParent,
    pub(crate) log: out::LogLimits,
    pub(crate) stop_grace_ms: u64,
}

/// An app's image.
#[derive(Debug, Clone)]
pub(crate) struct Image<'a> {
    pub(crate) config: &'a ImageConfig,
    /// Chain ids, bottom layer first.
    pub(crate) chains: Vec<&'a Digest>,
    /// The size of its layers.
    pub(crate) size: Option<out::ImageSize>,
}

/// The host name of a pod; by default with as many digits of its id as in lists, so that a prompt stays short.
pub(crate) fn hostname(spec: &PodSpec, id: PodId) -> String {
    if spec.uts == UtsMode::Host {
        return rustix::system::uname().nodename().to_string_lossy().into_owned();
    }
    spec.hostname.clone().unwrap_or_else(|| format!("gantry-{}", id.short()))
}

/// The parent of a pod's cgroup; `default` is the configured one.
pub(crate) fn resolve_cgroup_parent(spec: &PodSpec, default: &CgroupParent) -> CgroupParent {
    match (&spec.cgroup_parent, spec.cgroup_manager) {
        (Some(parent), _) => parent.clone(),
        (None, Some(manager)) if manager != default.manager() => manager.default_parent(),
        (None, _) => default.clone(),
    }
}

/// The plan of a valid spec; `images` has one entry per app, in order.
pub(crate) fn plan(spec: &PodSpec, images: &[Image<'_>], setting: &Setting<'_>) -> Result<out::Plan, PlanError> {
    let on_host;
    let spec = match spec.flavor {
        PodFlavor::Container => spec,
        PodFlavor::Host => {
            on_host = host_settings(spec);
            &on_host
        }
    };
    let hostname = hostname(spec, setting.id);
    let mut volumes = Volumes::new(spec);
    let mut apps = Vec::with_capacity(spec.apps.len());
    for (app, image) in spec.apps.iter().zip(images) {
        apps.push(plan_app(app, image, spec.flavor, &hostname, &mut volumes)?);
    }
    let configs: Vec<(&AppName, &ImageConfig)> =
        spec.apps.iter().zip(images).map(|(app, image)| (&app.name, image.config)).collect();
    let ports = plan_net::ports(&spec.ports, &configs)?;
    let mode = spec.net.as_ref().unwrap_or(&setting.network.default);
    let cgroup_parent = resolve_cgroup_parent(spec, setting.cgroup_parent);
    Ok(out::Plan {
        version: gantry_contract::VERSION,
        pod: setting.id.to_string(),
        pod_dir: setting.layout.pod_dir(&setting.id).to_string_lossy().into_owned(),
        trees_dir: setting.layout.trees_dir().to_string_lossy().into_owned(),
        namespace: spec.resolved_namespace(),
        hostname,
        ipc: spec.ipc,
        uts: spec.uts,
        // Assigned when the pod has a directory, which records them.
        user_ids: None,
        shm_size: spec.shm_size.unwrap_or(spec::DEFAULT_SHM_SIZE),
        sysctls: spec.sysctls.clone(),
        net: plan_net::net(mode, ports, plan_net::host(setting.network, setting.layout))?,
        former_addresses: Vec::new(),
        resolv: spec.dns.clone(),
        hosts: plan_net::hosts(&spec.hosts),
        cgroup_parent,
        volumes_dir: setting.layout.volumes_dir().to_string_lossy().into_owned(),
        volumes: volumes.list,
        apps,
        log: setting.log,
        log_dir: spec.log_dir.clone(),
        stop_grace_ms: setting.stop_grace_ms,
        sandbox: spec.sandbox,
        flavor: spec.flavor,
        privileged: spec.privileged || spec.apps.iter().any(|app| app.options.privileged),
        limits: spec.limits.clone(),
        limit_changes: 0,
    })
}

/// The plan of an app that is added to a running pod.
pub(crate) struct AddedAppPlan {
    pub(crate) app: out::App,
    /// The volumes that it brings along.
    pub(crate) volumes: Vec<VolumeSpec>,
}

/// The plan of an app that is added to a running pod of this host name and with these volumes.
pub(crate) fn added_app(
    spec: &AddedAppSpec,
    image: &Image<'_>,
    hostname: &str,
    known: Vec<VolumeSpec>,
) -> Result<AddedAppPlan, PlanError> {
    let before = known.len();
    let all = known.into_iter().chain(spec.volumes.iter().cloned()).collect();
    let mut volumes = Volumes::new(&PodSpec { volumes: all, ..PodSpec::default() });
    let app = plan_app(&spec.app, image, PodFlavor::Container, hostname, &mut volumes)?;
    Ok(AddedAppPlan { app, volumes: volumes.list.split_off(before) })
}

/// The specification of a host pod with what its flavor implies.
fn host_settings(spec: &PodSpec) -> PodSpec {
    let mut spec = PodSpec { net: Some(NetMode::Host), ipc: IpcMode::Host, uts: UtsMode::Host, ..spec.clone() };
    for app in &mut spec.apps {
        (app.options.privileged, app.options.pid) = (true, PidMode::Host);
    }
    spec
}

fn plan_app(
    app: &AppSpec,
    image: &Image<'_>,
    flavor: PodFlavor,
    hostname: &str,
    volumes: &mut Volumes,
) -> Result<out::App, PlanError> {
    let config = image.config;
    let argv = argv(app, config)?;
    let hostname = (flavor == PodFlavor::Container).then_some(hostname);
    let env = environment(app, config, hostname)?;
    if argv.iter().chain(&env).map(|text| text.len() + 1).sum::<usize>() > MAX_STRINGS {
        let message = format!("app '{}': its command and environment together are longer than 1 MiB", app.name);
        return Err(PlanError::new(ErrorKind::Exhausted, message));
    }
    let (user, group) = identity(app, config)?;
    let mounts = mounts(app, config, volumes)?;
    let options = AppOptions { health: health(app, config)?, ..options(app, &argv, &mounts) };
    let (capabilities, options) = confinement(app, options);
    let default_stop_signal = match options.systemd {
        SystemdMode::Always => systemd::HALT_SIGNAL,
        SystemdMode::Auto | SystemdMode::False => STOP_SIGNAL,
    };
    Ok(out::App {
        name: app.name.to_string(),
        id: app.id.clone(),
        attempt: 0,
        health_changes: 0,
        limit_changes: 0,
        is_held: false,
        oom_kills: 0,
        layers: match flavor {
            PodFlavor::Container => layers(app, image)?,
            PodFlavor::Host => Vec::new(),
        },
        image_size: image.size,
        argv,
        env,
        cwd: working_dir(app, config)?,
        user,
        group,
        mounts,
        capabilities: capabilities.names().into_iter().collect(),
        required_capabilities: capabilities.required().into_iter().collect(),
        ambient_capabilities: capabilities.ambient().into_iter().collect(),
        stop_signal: app.stop_signal.or(config.stop_signal).unwrap_or(default_stop_signal),
        options,
    })
}

/// The health check: the user's settings, then the image's. Settings without a probe would have no effect.
fn health(app: &AppSpec, config: &ImageConfig) -> Result<HealthSettings, PlanError> {
    let user = &app.options.health;
    let health = user.clone().or_image(&config.health);
    if !user.is_empty() && health.probe.is_none() {
        let why = "its image has no health check, and none is given: add --health-cmd, --health-http or --health-tcp";
        return Err(PlanError::new(ErrorKind::Invalid, format!("app '{}': {why}", app.name)));
    }
    Ok(health)
}

/// The options of the plan: those of the user, and for systemd the file systems in memory that it expects
/// (<https://systemd.io/CONTAINER_INTERFACE>), unless others are mounted there.
fn options(app: &AppSpec, argv: &[String], mounts: &[out::Mount]) -> AppOptions {
    let program = argv.first().map_or("", String::as_str);
    let systemd = match (app.options.systemd, app.options.pid) {
        // In the host's PID namespace it cannot be PID 1.
        (SystemdMode::Auto, PidMode::Host) => SystemdMode::False,
        (mode, _) => mode.resolve(program),
    };
    let mut options = AppOptions { systemd, ..app.options.clone() };
    if options.systemd == SystemdMode::Always {
        options.pid = PidMode::App;
        for (target, mode) in [("/run", 0o755), ("/run/lock", 0o1777), ("/tmp", 0o1777)] {
            let is_mounted = mounts.iter().any(|mount| mount.target == target)
                || options.tmpfs.iter().any(|tmpfs| spec::normal(&tmpfs.target) == target);
            if !is_mounted {
                let target = target.to_owned();
                options.tmpfs.push(TmpfsMount {
                    target,
                    size: None,
                    mode,
                    uid: 0,
                    gid: 0,
                    exec: true,
                    read_only: false,
                });
            }
        }
    }
    options
}

/// The capabilities and options of an app. A privileged one has every capability and no filter unless others were
/// given, and its programs may gain privileges.
fn confinement(app: &AppSpec, mut options: AppOptions) -> (Capabilities, AppOptions) {
    let mut capabilities = app.capabilities.clone();
    if options.privileged {
        options.new_privileges = true;
        if options.seccomp == Seccomp::Default {
            options.seccomp = Seccomp::Unconfined;
        }
        if capabilities == Capabilities::Default {
            capabilities = Capabilities::All;
        }
    }
    (capabilities, options)
}

fn layers(app: &AppSpec, image: &Image<'_>) -> Result<Vec<String>, PlanError> {
    match image.chains.len() {
        0 => Err(PlanError::new(
            ErrorKind::Invalid,
            format!("app '{}' cannot run: its image has no layers, so there is no program in it", app.name),
        )),
        1..=MAX_LAYERS => Ok(image.chains.iter().rev().map(|chain| Layout::tree_name(chain)).collect()),
        layers => Err(PlanError::new(
            ErrorKind::Exhausted,
            format!("app '{}' cannot run: its image has {layers} layers, {MAX_LAYERS} can be mounted", app.name),
        )),
    }
}

/// `--exec` replaces the image's entrypoint and command; arguments replace the command, as docker and podman do.
fn argv(app: &AppSpec, config: &ImageConfig) -> Result<Vec<String>, PlanError> {
    let mut argv = app.exec.as_ref().map_or_else(|| config.entrypoint.clone(), |exec| vec![exec.clone()]);
    if !app.args.is_empty() {
        argv.extend(app.args.iter().cloned());
    } else if app.exec.is_none() {
        argv.extend(config.cmd.iter().cloned());
    }
    match argv.first() {
        Some(program) if !program.is_empty() => Ok(argv),
        _ => Err(PlanError::no_command(&app.name)),
    }
}

/// In increasing precedence: gantry's, the image's, the user's. The last value of a name wins and keeps the first
/// position. `hostname` is the pod's; `None`: a host pod.
fn environment(app: &AppSpec, config: &ImageConfig, hostname: Option<&str>) -> Result<Vec<String>, PlanError> {
    let term = app.options.terminal.then_some(("TERM", TERM));
    // An app of a host pod is in no container.
    let of_container = hostname.map(|hostname| [("HOSTNAME", hostname), ("container", "gantry")]);
    let ours = std::iter::once(("PATH", PATH)).chain(of_container.into_iter().flatten()).chain(term);
    let given = config.env.iter().chain(&app.environment).map(|(name, value)| (name.as_str(), value.as_str()));
    let mut merged: Vec<(&str, &str)> = Vec::new();
    let mut places: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
    for (name, value) in ours.chain(given) {
        spec::environment_name(name).map_err(|_| {
            let why = "cannot be the name of an environment variable";
            refuse(app, "environment variable", name, why)
        })?;
        // Many programs put HOME into passwd(5) lines, where a line break would start another line.
        if name == "HOME" && value.chars().any(char::is_control) {
            return Err(refuse(app, "HOME", value, "contains control characters"));
        }
        match places.entry(name) {
            std::collections::hash_map::Entry::Occupied(at) => merged[*at.get()].1 = value,
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(merged.len());
                merged.push((name, value));
            }
        }
    }
    if app.options.sdnotify == SdNotify::App {
        // One of the image or of the caller would name a socket outside of the pod.
        merged.retain(|(name, _)| *name != "NOTIFY_SOCKET");
        merged.push(("NOTIFY_SOCKET", systemd::NOTIFY_SOCKET));
    }
    Ok(merged.into_iter().map(|(name, value)| format!("{name}={value}")).collect())
}

fn identity(app: &AppSpec, config: &ImageConfig) -> Result<(Option<String>, Option<String>), PlanError> {
    let user = app.user.clone().or_else(|| config.user.clone()).filter(|user| !user.is_empty());
    let group = app.group.clone().filter(|group| !group.is_empty());
    for (what, value) in [("user", &user), ("group", &group)] {
        if let Some(value) = value.as_ref().filter(|value| value.len() > 4096 || value.chars().any(char::is_control)) {
            return Err(refuse(app, what, value, "is too long or contains control characters"));
        }
    }
    Ok((user, group))
}

/// Below `/proc` a working directory could be one of the host's (`/proc/self/fd/7`): refused, as is `..`.
fn working_dir(app: &AppSpec, config: &ImageConfig) -> Result<String, PlanError> {
    let Some(dir) = app.working_dir.as_ref().or(config.working_dir.as_ref()).filter(|dir| !dir.is_empty()) else {
        return Ok("/".to_owned());
    };
    let what = "working directory";
    if !dir.starts_with('/') || dir.len() >= 4096 || dir.contains('\0') || dir.split('/').any(|part| part == "..") {
        return Err(refuse(app, what, dir, "is not an absolute path without '..'"));
    }
    let dir = spec::normal(dir);
    if spec::is_at_or_below(&dir, "/proc") {
        return Err(refuse(app, what, &dir, "is below /proc"));
    }
    Ok(dir)
}

/// The requested mounts, and an empty volume for each path that the image declares as a volume and no mount covers.
/// Shallow targets come first, so that none covers another.
fn mounts(app: &AppSpec, config: &ImageConfig, volumes: &mut Volumes) -> Result<Vec<out::Mount>, PlanError> {
    let mut mounts: Vec<out::Mount> = Vec::new();
    for mount in &app.mounts {
        let target = spec::normal(&mount.target);
        let volume = mount.volume.to_string();
        let seed = volumes.seeded.contains(&volume);
        mounts.push(out::Mount {
            volume,
            target,
            read_only: mount.read_only,
            seed,
            declared: false,
            options: mount.options,
        });
    }
    let mut taken: BTreeSet<String> = mounts.iter().map(|mount| mount.target.clone()).collect();
    for declared in config.volumes.iter().filter(|declared| !is_ignored(declared)) {
        let target = declared_target(app, declared)?;
        if taken.insert(target.clone()) {
            let volume = volumes.add_implicit(app);
            mounts.push(out::Mount {
                volume,
                target,
                read_only: false,
                seed: true,
                declared: true,
                options: MountOptions::default(),
            });
        }
    }
    mounts.sort_by_key(|mount| mount.target.matches('/').count());
    Ok(mounts)
}

fn declared_target(app: &AppSpec, declared: &str) -> Result<String, PlanError> {
    let fits = declared.starts_with('/')
        && declared.len() < 4096
        && !declared.contains('\0')
        && !declared.split('/').any(|part| part == "..");
    if !fits {
        return Err(refuse(app, "the image's volume", declared, "is not an absolute path without '..'"));
    }
    Ok(spec::normal(declared))
}

/// The declared volumes that are ignored because they would cover gantry's own mounts.
pub(crate) fn ignored_volumes(config: &ImageConfig) -> impl Iterator<Item = &String> {
    config.volumes.iter().filter(|declared| is_ignored(declared))
}

fn is_ignored(declared: &str) -> bool {
    let target = spec::normal(declared);
    declared.starts_with('/') && (spec::is_provided(&target) || spec::is_device(&target))
}

/// The volumes of a pod while its apps are planned.
struct Volumes {
    list: Vec<VolumeSpec>,
    names: BTreeSet<AppName>,
    /// The volumes that are filled from the image.
    seeded: BTreeSet<String>,
}

impl Volumes {
    fn new(spec: &PodSpec) -> Self {
        let list = spec.volumes.clone();
        let names = list.iter().map(|volume| volume.name.clone()).collect();
        let is_seeded = |volume: &&VolumeSpec| matches!(volume.kind, VolumeKind::Named { .. } | VolumeKind::Anonymous);
        let seeded = spec.volumes.iter().filter(is_seeded).map(|volume| volume.name.to_string()).collect();
        Self { list, names, seeded }
    }

    /// Adds a volume that an image declares, with a name of its own.
    fn add_implicit(&mut self, app: &AppSpec) -> String {
        let base: String = app.name.as_str().chars().take(48).collect();
        let taken = (self.list.len()..).map(|n| format!("{base}-image-{n}"));
        let mut free = taken.filter_map(|name| name.parse::<AppName>().ok()).filter(|name| !self.names.contains(name));
        let Some(name) = free.next() else { return base };
        self.names.insert(name.clone());
        self.list.push(VolumeSpec { name: name.clone(), kind: VolumeKind::Anonymous, read_only: false });
        name.to_string()
    }
}

/// A setting of the image or of the user is unusable.
fn refuse(app: &AppSpec, what: &str, value: &str, why: &str) -> PlanError {
    PlanError::new(ErrorKind::Invalid, format!("app '{}': {what} '{}' {why}", app.name, shown(value)))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
