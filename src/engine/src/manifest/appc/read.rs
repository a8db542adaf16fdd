//! Reads an appc pod manifest given by a user (`--pod-manifest`). Unsupported parts are errors that name them and are
//! never ignored: running a pod without a requested limit is worse than not starting it.

use std::collections::BTreeMap;

use gantry_model::mount_options::MountOptions;
use gantry_model::net::{PortSpec, PortTarget, Protocol};
use gantry_model::spec::{self, MountSpec, PodSpec, VolumeKind, VolumeSpec};
use gantry_model::{AppName, AppSpec, RequestedImage, errno, quantity};
use serde::Deserialize;
use serde_json::Value;

use crate::ManifestError;
use crate::manifest::appc::{
    App, ExposedPort, Isolator, MountPoint, POD, Pair, PodManifest, Port, RuntimeApp, RuntimeImage, Volume, isolator,
};

/// Whether a document is an appc manifest.
pub(crate) fn is_appc(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(rename = "acKind")]
        _kind: Value,
    }
    serde_json::from_slice::<Kind>(bytes).is_ok()
}

/// Reads a pod manifest.
pub(crate) fn pod(bytes: &[u8]) -> Result<PodSpec, ManifestError> {
    let manifest: PodManifest = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
    let PodManifest {
        ac_version,
        ac_kind,
        apps,
        volumes,
        isolators,
        annotations,
        ports,
        user_annotations,
        user_labels,
    } = manifest;
    if ac_kind != POD {
        return Err(refuse(format!("it is a '{ac_kind}', not a {POD}")));
    }
    // 0.5.1 is the oldest version with all fields that are read here.
    if !ac_version.starts_with("0.") {
        return Err(refuse(format!("it is of version '{ac_version}' of appc, which is not known")));
    }
    if let Some(isolator) = isolators.first() {
        return Err(refuse(format!(
            "isolator '{}' of the whole pod is not supported: give it to the apps",
            isolator.name
        )));
    }
    let mut volumes: Vec<VolumeSpec> = volumes.into_iter().map(volume).collect::<Result<_, _>>()?;
    let mut declared = Vec::new();
    let apps = apps.into_iter().map(|one| app(one, &mut volumes, &mut declared)).collect::<Result<_, _>>()?;
    Ok(PodSpec {
        apps,
        volumes,
        ports: ports.into_iter().map(|one| port(one, &declared)).collect::<Result<_, _>>()?,
        user_annotations: together(annotations, user_annotations),
        user_labels,
        ..PodSpec::default()
    })
}

fn refuse(why: impl Into<String>) -> ManifestError {
    ManifestError::Appc(why.into())
}

fn together(annotations: Vec<Pair>, others: BTreeMap<String, String>) -> BTreeMap<String, String> {
    others.into_iter().chain(annotations.into_iter().map(|Pair { name, value }| (name, value))).collect()
}

/// Adds implied volumes to those of the pod, and the ports that the app declares to those of the other apps.
fn app(app: RuntimeApp, volumes: &mut Vec<VolumeSpec>, declared: &mut Vec<Port>) -> Result<AppSpec, ManifestError> {
    let RuntimeApp { name, image, app, read_only_root, mounts, annotations } = app;
    let name: AppName = name.parse()?;
    let mut spec = AppSpec::new(name, RequestedImage::new(reference(image)?));
    spec.options.read_only_root = read_only_root;
    let mut points = Vec::new();
    let mut user_annotations = BTreeMap::new();
    if let Some(app) = app {
        let App {
            exec,
            event_handlers,
            user,
            group,
            supplementary_gids,
            working_directory,
            environment,
            mount_points,
            ports,
            isolators,
            user_annotations: others,
            user_labels,
        } = app;
        if !event_handlers.is_empty() {
            return Err(refuse(format!("event handlers (of app '{}') are not supported", spec.name)));
        }
        let mut exec = exec.into_iter();
        (spec.exec, spec.args) = (exec.next(), exec.collect());
        (spec.user, spec.group) = (Some(user), Some(group));
        spec.options.supplementary_gids = supplementary_gids;
        spec.working_dir = Some(working_directory).filter(|dir| !dir.is_empty());
        spec.environment = environment.into_iter().map(|Pair { name, value }| (name, value)).collect();
        spec.user_labels = user_labels;
        // As in rkt: no-new-privileges is off by default.
        spec.options.new_privileges = true;
        isolators.into_iter().try_for_each(|isolator| apply(&mut spec, isolator))?;
        declared.extend(ports);
        (points, user_annotations) = (mount_points, others);
    }
    spec.user_annotations = together(annotations, user_annotations);
    for mount in mounts {
        if mount.app_volume.is_some() {
            return Err(refuse(format!(
                "appVolume (of app '{}') is not supported: name a volume of the pod",
                spec.name
            )));
        }
        let at = points.iter().position(|point| point.path == mount.path || point.name == mount.path);
        let point = at.map(|at| points.swap_remove(at));
        let target = point.as_ref().map_or(mount.path, |point| point.path.clone());
        let read_only = point.is_some_and(|point| point.read_only);
        spec.mounts.push(MountSpec {
            volume: mount.volume.parse()?,
            target,
            read_only,
            options: MountOptions::default(),
        });
    }
    points.into_iter().try_for_each(|point| mount_declared(&mut spec, point, volumes))?;
    Ok(spec)
}

/// A declared mount point without a mount takes the volume of its name; if there is none, an empty volume is created.
fn mount_declared(spec: &mut AppSpec, point: MountPoint, volumes: &mut Vec<VolumeSpec>) -> Result<(), ManifestError> {
    let MountPoint { name, path, read_only } = point;
    let volume: AppName = name.parse()?;
    if !volumes.iter().any(|known| known.name == volume) {
        let kind = VolumeKind::Empty { mode: 0o755, uid: 0, gid: 0 };
        volumes.push(VolumeSpec { name: volume.clone(), kind, read_only: false });
    }
    spec.mounts.push(MountSpec { volume, target: path, read_only, options: MountOptions::default() });
    Ok(())
}

/// An image by its id, else by its name and the label `version`.
fn reference(image: RuntimeImage) -> Result<String, ManifestError> {
    let RuntimeImage { name, id, labels } = image;
    let version = labels.into_iter().find(|label| label.name == "version").map(|label| label.value);
    match (id, name, version) {
        (Some(id), _, _) => Ok(id),
        (None, Some(name), Some(version)) => Ok(format!("{name}:{version}")),
        (None, Some(name), None) => Ok(name),
        (None, None, _) => Err(refuse("an image has neither an id nor a name")),
    }
}

fn volume(volume: Volume) -> Result<VolumeSpec, ManifestError> {
    let Volume { name, kind, source, read_only, recursive, mode, uid, gid } = volume;
    let kind = match kind.as_str() {
        "host" => VolumeKind::Host { source, recursive: recursive.unwrap_or(true) },
        "empty" => {
            let mode = mode.as_deref().unwrap_or("0755");
            let mode = u32::from_str_radix(mode, 8).ok().filter(|&mode| mode <= 0o7777);
            let mode = mode.ok_or_else(|| refuse(format!("the mode of volume '{name}' is not an octal number")))?;
            VolumeKind::Empty { mode, uid: uid.unwrap_or(0), gid: gid.unwrap_or(0) }
        }
        other => return Err(refuse(format!("volume '{name}' is of kind '{other}': known are host and empty"))),
    };
    Ok(VolumeSpec { name: name.parse()?, kind, read_only: read_only.unwrap_or(false) })
}

/// A port of the host. It leads to the given port of the pod; without one, to the port that an app of the manifest
/// declares under its name, else to that of an image.
fn port(port: ExposedPort, declared: &[Port]) -> Result<PortSpec, ManifestError> {
    let ExposedPort { name, host_port, host_ip, pod_port } = port;
    let host_ip = host_ip.map(|ip| ip.parse()).transpose();
    let host_ip = host_ip.map_err(|_| refuse(format!("the hostIP of port '{name}' is not an IP address")))?;
    let mut of_apps = declared.iter().filter(|declared| declared.name == name);
    let to = match (&pod_port, of_apps.next(), of_apps.next()) {
        (Some(port), ..) | (None, Some(port), None) => numbered(port, &name)?,
        (None, None, _) => PortTarget::Named(name),
        // As in rkt, even where all mean the same port.
        (None, Some(_), Some(_)) => {
            return Err(refuse(format!("port '{name}' is ambiguous: its apps declare it more than once")));
        }
    };
    Ok(PortSpec { to, host_ip, host_port })
}

/// A declared port as a target.
fn numbered(port: &Port, name: &str) -> Result<PortTarget, ManifestError> {
    let protocol = match port.protocol.as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        other => return Err(refuse(format!("port '{name}' has protocol '{other}': known are tcp, udp and sctp"))),
    };
    Ok(PortTarget::Numbered { port: port.port, count: port.count.max(1), protocol })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resource {
    #[serde(default, rename = "default")]
    _default: bool,
    #[serde(default)]
    request: Option<String>,
    #[serde(default)]
    limit: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    set: Vec<String>,
    #[serde(default)]
    errno: String,
}

fn apply(spec: &mut AppSpec, isolator: Isolator) -> Result<(), ManifestError> {
    let Isolator { name, value } = isolator;
    let bad = |why: String| refuse(format!("isolator '{name}' of app '{}': {why}", spec.name));
    let json = |error: serde_json::Error| bad(error.to_string());
    match name.as_str() {
        isolator::MEMORY => {
            let limit = limit(value, |text| quantity::bytes(text).map_err(|error| error.to_string()));
            spec.options.limits.memory = limit.map_err(bad)?;
        }
        isolator::CPU => {
            let limit = limit(value, |text| quantity::millicpu(text).map_err(|error| error.to_string()));
            spec.options.limits.cpu_milli = limit.map_err(bad)?;
        }
        isolator::CPU_SHARES => spec.options.limits.cpu_shares = Some(serde_json::from_value(value).map_err(json)?),
        isolator::OOM_SCORE_ADJ => spec.options.oom_score_adj = Some(serde_json::from_value(value).map_err(json)?),
        isolator::NO_NEW_PRIVILEGES => {
            spec.options.new_privileges = !serde_json::from_value::<bool>(value).map_err(json)?
        }
        isolator::RETAIN_CAPABILITIES | isolator::REMOVE_CAPABILITIES => {
            if spec.capabilities != spec::Capabilities::Default {
                return Err(bad("there is one set of capabilities already".to_owned()));
            }
            let Set { set, errno: _ } = serde_json::from_value(value).map_err(json)?;
            let set = set.into_iter().collect();
            spec.capabilities = match name.as_str() {
                isolator::RETAIN_CAPABILITIES => spec::Capabilities::Retain(set),
                _ => spec::Capabilities::Remove(set),
            };
        }
        isolator::RETAIN_CALLS | isolator::REMOVE_CALLS => {
            if spec.options.seccomp != spec::Seccomp::Default {
                return Err(bad("there is one set of system calls already".to_owned()));
            }
            let Set { set, errno } = serde_json::from_value(value).map_err(json)?;
            let errno = if errno.is_empty() { Some(1) } else { errno::number(&errno) };
            let errno = errno.ok_or_else(|| bad("its errno is not known".to_owned()))?;
            spec.options.seccomp = calls(name == isolator::RETAIN_CALLS, set, errno).map_err(bad)?;
        }
        _ => return Err(bad("it is not supported".to_owned())),
    }
    Ok(())
}

/// gantry has one value for limit and request, as rkt had: the limit, or the request where there is no limit.
fn limit(value: Value, parse: impl Fn(&str) -> Result<u64, String>) -> Result<Option<u64>, String> {
    let Resource { _default: _, request, limit } = serde_json::from_value(value).map_err(|error| error.to_string())?;
    limit.or(request).map(|text| parse(&text)).transpose()
}

fn calls(retain: bool, set: Vec<String>, errno: u16) -> Result<spec::Seccomp, String> {
    if !retain && set == [isolator::NO_CALLS] {
        return Ok(spec::Seccomp::Unconfined);
    }
    if let Some(wildcard) = set.iter().find(|name| name.starts_with('@')) {
        return Err(format!("the group '{wildcard}' of system calls is not known"));
    }
    let names = set.into_iter().collect();
    Ok(if retain { spec::Seccomp::Retain { names, errno } } else { spec::Seccomp::Remove { names, errno } })
}
