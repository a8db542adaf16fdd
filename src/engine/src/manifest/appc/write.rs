//! Converts a pod or an image to its appc manifest. The manifest of a pod has the effective command, environment and
//! mounts that its supervisor was given, including those from the image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gantry_contract::plan::{self, Plan};
use gantry_fetch::config::ImageConfig;
use gantry_model::net::PodPort;
use gantry_model::spec::{Limits, Seccomp, VolumeKind, VolumeSpec};
use gantry_model::{ImageId, errno};
use gantry_store::PodRow;
use serde_json::{Value, json};

use crate::ImageView;
use crate::images::view::name_and_version;
use crate::manifest::appc::{
    App, ExposedPort, IMAGE, ImageManifest, Isolator, Mount, MountPoint, POD, Pair, PodManifest, Port, RuntimeApp,
    RuntimeImage, Secrets, VERSION, Volume, identifier, is_identifier, is_variable, isolator,
};

/// Annotations whose values appc checks (a date, two URLs): written as annotations of the user instead.
const CHECKED: [&str; 3] = ["created", "homepage", "documentation"];
/// The user and group of an image that names none.
const ROOT: &str = "0";

/// Looks up the configuration of an image.
pub(crate) type Configs<'a> = dyn Fn(&ImageId) -> Option<Arc<ImageConfig>> + 'a;

/// The manifest of a pod.
pub(crate) fn pod(row: &PodRow, plan: &Plan, configs: &Configs<'_>, secrets: Secrets) -> PodManifest {
    let apps = row.apps.iter().map(|app| {
        let planned = plan.apps.iter().find(|planned| planned.name == app.name.as_str());
        let config = app.image.as_ref().and_then(configs);
        let (annotations, others) = annotations(&app.annotations);
        let (name, version) = name_and_version(&app.image_name);
        let mounts = planned.map(|planned| planned.mounts.as_slice()).unwrap_or_default();
        RuntimeApp {
            name: app.name.to_string(),
            image: RuntimeImage {
                name: identifier(name),
                id: app.image.as_ref().map(|image| image.to_appc()),
                labels: labels(version, config.as_deref()),
            },
            app: planned.map(|planned| App { user_annotations: others, ..app_of(planned, config.as_deref(), secrets) }),
            read_only_root: planned.is_some_and(|planned| planned.options.read_only_root),
            mounts: mounts.iter().map(mount).collect(),
            annotations,
        }
    });
    let (annotations, user_annotations) = annotations(&row.user_annotations);
    let ports: &[PodPort] = match &plan.net {
        plan::Net::Networks(networks) => &networks.ports,
        plan::Net::None | plan::Net::Host => &[],
    };
    PodManifest {
        ac_version: VERSION.to_owned(),
        ac_kind: POD.to_owned(),
        apps: apps.collect(),
        volumes: plan.volumes.iter().map(|of| volume(of, &plan.volumes_dir)).collect(),
        isolators: Vec::new(),
        annotations,
        ports: ports.iter().map(exposed).collect(),
        user_annotations,
        user_labels: row.user_labels.clone(),
    }
}

/// The manifest of an image.
pub(crate) fn image(view: &ImageView, secrets: Secrets) -> ImageManifest {
    let id = view.row.id.to_appc();
    ImageManifest {
        ac_kind: IMAGE.to_owned(),
        ac_version: VERSION.to_owned(),
        // An image without a name has to have one here.
        name: identifier(&view.name).unwrap_or(id),
        labels: labels(&view.version, view.config.as_deref()),
        app: view.config.as_deref().map(|config| app_of_image(config, secrets)),
        annotations: annotations(&view.annotations).0,
    }
}

fn app_of(app: &plan::App, config: Option<&ImageConfig>, secrets: Secrets) -> App {
    let (user, group) = identity(app.user.as_deref(), app.group.as_deref());
    let variables = app.env.iter().filter_map(|variable| variable.split_once('='));
    App {
        exec: app.argv.clone(),
        event_handlers: Vec::new(),
        user,
        group,
        supplementary_gids: app.options.supplementary_gids.clone(),
        working_directory: app.cwd.clone(),
        environment: environment(variables, secrets),
        mount_points: app.mounts.iter().map(mount_point).collect(),
        ports: config.map(ports).unwrap_or_default(),
        isolators: isolators(app),
        user_annotations: BTreeMap::new(),
        user_labels: BTreeMap::new(),
    }
}

fn app_of_image(config: &ImageConfig, secrets: Secrets) -> App {
    let (user, group) = identity(config.user.as_deref(), None);
    let mount_point = |(number, path): (usize, &String)| {
        let name = format!("volume-{number}");
        path.starts_with('/').then(|| MountPoint { name, path: path.clone(), read_only: false })
    };
    let dir = config.working_dir.clone().filter(|dir| dir.starts_with('/'));
    let variables = config.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    App {
        exec: config.entrypoint.iter().chain(&config.cmd).cloned().collect(),
        event_handlers: Vec::new(),
        user,
        group,
        supplementary_gids: Vec::new(),
        working_directory: dir.unwrap_or_default(),
        environment: environment(variables, secrets),
        mount_points: config.volumes.iter().enumerate().filter_map(mount_point).collect(),
        ports: ports(config),
        isolators: Vec::new(),
        user_annotations: BTreeMap::new(),
        user_labels: config.labels.clone(),
    }
}

/// User and group; of an image both may be in one text.
fn identity(user: Option<&str>, group: Option<&str>) -> (String, String) {
    let (user, own) = match user.unwrap_or_default().split_once(':') {
        Some((user, own)) => (user, own),
        None => (user.unwrap_or_default(), ""),
    };
    let or_root = |text: &str| if text.is_empty() { ROOT.to_owned() } else { text.to_owned() };
    (or_root(user), or_root(group.filter(|group| !group.is_empty()).unwrap_or(own)))
}

/// The last value of a name counts, as for the app.
fn environment<'a>(variables: impl Iterator<Item = (&'a str, &'a str)>, secrets: Secrets) -> Vec<Pair> {
    let mut environment: Vec<Pair> = Vec::new();
    for (name, value) in variables.filter(|(name, _)| is_variable(name)) {
        let value = if secrets == Secrets::Shown { value.to_owned() } else { String::new() };
        match environment.iter_mut().find(|known| known.name == name) {
            Some(known) => known.value = value,
            None => environment.push(Pair { name: name.to_owned(), value }),
        }
    }
    environment
}

/// Annotations for appc, and those that appc does not allow.
fn annotations(all: &BTreeMap<String, String>) -> (Vec<Pair>, BTreeMap<String, String>) {
    let (fit, others): (Vec<_>, Vec<_>) =
        all.iter().partition(|(name, _)| is_identifier(name) && !CHECKED.contains(&name.as_str()));
    let pair = |(name, value): (&String, &String)| Pair { name: name.clone(), value: value.clone() };
    let owned = |(name, value): (&String, &String)| (name.clone(), value.clone());
    (fit.into_iter().map(pair).collect(), others.into_iter().map(owned).collect())
}

/// Version, operating system and architecture; the last two in appc's words, where it has some.
fn labels(version: &str, config: Option<&ImageConfig>) -> Vec<Pair> {
    let label = |name: &str, value: &str| Pair { name: name.to_owned(), value: value.to_owned() };
    let mut labels = vec![label("version", version)];
    if let Some(config) = config.filter(|config| config.os == "linux") {
        labels.push(label("os", "linux"));
        let arch = match (config.architecture.as_str(), config.variant.as_deref()) {
            ("386", _) => Some("i386"),
            ("arm64", _) => Some("aarch64"),
            ("arm", Some("v7")) => Some("armv7l"),
            ("arm", _) => Some("armv6l"),
            (known @ ("amd64" | "ppc64" | "ppc64le" | "s390x"), _) => Some(known),
            _ => None,
        };
        labels.extend(arch.map(|arch| label("arch", arch)));
    }
    labels
}

fn mount(mount: &plan::Mount) -> Mount {
    Mount { volume: mount.volume.clone(), path: mount.target.clone(), app_volume: None }
}

fn mount_point(mount: &plan::Mount) -> MountPoint {
    MountPoint { name: mount.volume.clone(), path: mount.target.clone(), read_only: mount.read_only }
}

fn volume(volume: &VolumeSpec, volumes_dir: &str) -> Volume {
    let VolumeSpec { name, kind, read_only } = volume;
    let blank = Volume {
        name: name.to_string(),
        kind: String::new(),
        source: String::new(),
        read_only: Some(*read_only),
        recursive: None,
        mode: None,
        uid: None,
        gid: None,
    };
    match kind {
        VolumeKind::Host { source, recursive } => {
            Volume { kind: "host".to_owned(), source: source.clone(), recursive: Some(*recursive), ..blank }
        }
        // appc has no volumes that outlive pods; its clients see a directory of the host.
        VolumeKind::Named { volume } => {
            let source = format!("{volumes_dir}/{volume}/data");
            Volume { kind: "host".to_owned(), source, recursive: Some(false), ..blank }
        }
        VolumeKind::Anonymous | VolumeKind::Empty { .. } | VolumeKind::Image { .. } => {
            let created = kind.created_with();
            Volume {
                kind: "empty".to_owned(),
                mode: created.map(|(mode, ..)| format!("{mode:04o}")),
                uid: created.map(|(_, uid, _)| uid),
                gid: created.map(|(.., gid)| gid),
                ..blank
            }
        }
    }
}

/// The ports that an image declares, such as `80/tcp`, under the names that `--port` has for them.
fn ports(config: &ImageConfig) -> Vec<Port> {
    let port = |declared: &String| {
        let (port, protocol) = declared.split_once('/').unwrap_or((declared, "tcp"));
        let port = port.parse().ok().filter(|&port| port > 0)?;
        let known = ["tcp", "udp", "sctp"].contains(&protocol);
        let name = format!("{port}-{protocol}");
        known.then(|| Port { name, protocol: protocol.to_owned(), port, count: 1, socket_activated: false })
    };
    config.exposed_ports.iter().filter_map(port).collect()
}

fn exposed(port: &PodPort) -> ExposedPort {
    let PodPort { host_ip, host_port, pod_port, count, protocol } = port;
    let protocol = protocol.as_str();
    let name = format!("{pod_port}-{protocol}");
    let to = Port {
        name: name.clone(),
        protocol: protocol.to_owned(),
        port: *pod_port,
        count: *count,
        socket_activated: false,
    };
    ExposedPort { name, host_port: *host_port, host_ip: host_ip.map(|ip| ip.to_string()), pod_port: Some(to) }
}

fn isolators(app: &plan::App) -> Vec<Isolator> {
    let Limits { memory, cpu_milli, cpu_shares, .. } = app.options.limits;
    let limit = |limit: String| json!({ "default": false, "request": null, "limit": limit });
    let set = |set: &[String]| json!({ "set": set });
    let calls =
        |set: &BTreeSet<String>, number: u16| json!({ "set": set, "errno": errno::name(number).unwrap_or_default() });
    let filter = match &app.options.seccomp {
        Seccomp::Retain { names, errno } if !names.is_empty() => Some((isolator::RETAIN_CALLS, calls(names, *errno))),
        Seccomp::Remove { names, errno } if !names.is_empty() => Some((isolator::REMOVE_CALLS, calls(names, *errno))),
        Seccomp::Unconfined => Some((isolator::REMOVE_CALLS, json!({ "set": [isolator::NO_CALLS] }))),
        // appc has lists of names only.
        Seccomp::Default | Seccomp::Retain { .. } | Seccomp::Remove { .. } | Seccomp::Profile(_) => None,
    };
    let all = [
        memory.map(|bytes| (isolator::MEMORY, limit(bytes.to_string()))),
        cpu_milli.map(|milli| (isolator::CPU, limit(format!("{milli}m")))),
        cpu_shares.map(|shares| (isolator::CPU_SHARES, json!(shares))),
        app.options.oom_score_adj.map(|score| (isolator::OOM_SCORE_ADJ, json!(score))),
        (!app.options.new_privileges).then_some((isolator::NO_NEW_PRIVILEGES, Value::Bool(true))),
        (!app.capabilities.is_empty()).then(|| (isolator::RETAIN_CAPABILITIES, set(&app.capabilities))),
        filter,
    ];
    all.into_iter().flatten().map(|(name, value)| Isolator { name: name.to_owned(), value }).collect()
}
