//! The value of `--mount`.

use gantry_model::AppName;
use gantry_model::mount_options::{MountOptions, Propagation};
use gantry_model::spec::{MountSpec, TmpfsMount};

use super::draft::{Bind, BindSource};
use super::values::{ValueError, boolean, invalid};

/// A mount: rkt's `volume=NAME,target=/p`, or docker's `type=bind|volume|tmpfs,source=/h,target=/p`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mount {
    /// A volume that `--volume` defines.
    Volume(MountSpec),
    /// A directory of the host, a named volume, or an anonymous one.
    Bind(Bind),
    /// A file system in memory.
    Tmpfs(TmpfsMount),
}

/// The keys and values of a mount.
#[derive(Default)]
struct MountKeys<'a> {
    volume: Option<AppName>,
    kind: Option<&'a str>,
    source: Option<&'a str>,
    target: Option<&'a str>,
    read_only: bool,
    propagation: Propagation,
    sub_path: Option<&'a str>,
    /// Options of a tmpfs as `--tmpfs` takes them.
    tmpfs: Vec<String>,
}

pub(super) fn parse(value: &str) -> Result<Mount, ValueError> {
    let mut keys = MountKeys::default();
    for part in value.split(',') {
        let (key, value) = part.split_once('=').unwrap_or((part, "true"));
        match key {
            "volume" => keys.volume = Some(value.parse::<AppName>()?),
            "type" => keys.kind = Some(value),
            "source" | "src" => keys.source = Some(value),
            "target" | "dst" | "destination" => keys.target = Some(value),
            "readOnly" | "readonly" | "ro" => keys.read_only = boolean(value)?,
            "tmpfs-size" => keys.tmpfs.push(format!("size={value}")),
            "tmpfs-mode" => keys.tmpfs.push(format!("mode={value}")),
            "bind-propagation" => keys.propagation = value.parse()?,
            "subpath" | "volume-subpath" | "image-subpath" => keys.sub_path = Some(value),
            // Only SELinux has a use for it.
            "relabel" => {}
            _ => {
                return invalid(
                    key,
                    "a key of a mount: volume, target or readOnly; or type, source, target, bind-propagation, subpath, tmpfs-size \
                     or tmpfs-mode",
                );
            }
        }
    }
    if !keys.tmpfs.is_empty() && keys.kind != Some("tmpfs") {
        return Err(ValueError::Invalid("tmpfs-size and tmpfs-mode need type=tmpfs".into()));
    }
    if keys.sub_path.is_some() && keys.kind != Some("image") {
        return Err(ValueError::Invalid("subpath needs type=image".into()));
    }
    if keys.propagation.propagates() && keys.kind != Some("bind") {
        return Err(ValueError::Invalid("bind-propagation needs type=bind".into()));
    }
    let MountKeys { volume, kind, source, target, read_only, propagation, sub_path, tmpfs } = keys;
    // Later mounts of the host below a volume are as writable as there.
    let options = MountOptions { propagation, writable_submounts: propagation.propagates() };
    let bind = |source, target: &str| Mount::Bind(Bind { source, target: target.to_owned(), read_only, options });
    match (volume, kind, source, target) {
        (Some(volume), None, None, Some(target)) => {
            Ok(Mount::Volume(MountSpec { volume, target: target.to_owned(), read_only, options }))
        }
        (None, Some("bind"), Some(source), Some(target)) => Ok(bind(BindSource::Host(source.to_owned()), target)),
        // docker's default is a volume.
        (None, Some("volume") | None, source, Some(target)) => {
            let source = source.map(|name| name.parse()).transpose()?;
            Ok(bind(source.map_or(BindSource::Anonymous, BindSource::Named), target))
        }
        (None, Some("image"), Some(image), Some(target)) => {
            let sub_path = sub_path.unwrap_or_default().trim_matches('/').to_owned();
            Ok(bind(BindSource::Image { image: image.to_owned(), sub_path }, target))
        }
        (None, Some("tmpfs"), None, Some(target)) => {
            let read_only = read_only.then(|| "ro".to_owned());
            let options: Vec<_> = tmpfs.into_iter().chain(read_only).collect();
            let text = [target, ":", &options.join(",")].concat();
            Ok(Mount::Tmpfs(text.trim_end_matches(':').parse()?))
        }
        (None, Some(kind), _, _) if !matches!(kind, "bind" | "volume" | "tmpfs" | "image") => {
            invalid(kind, "a type of mount: bind, volume, image or tmpfs")
        }
        _ => invalid(value, "volume=NAME,target=/path or type=bind,source=/host/path,target=/path"),
    }
}
