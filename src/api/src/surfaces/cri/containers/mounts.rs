//! The mounts and the devices of a container. A mount becomes a volume of the pod that only this container mounts.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use gantry_engine::Engine;
use gantry_model::AppName;
use gantry_model::device::DeviceSpec;
use gantry_model::id::{hex, shown};
use gantry_model::mount_options::{MountOptions, Propagation};
use gantry_model::spec::{AddedAppSpec, MountSpec, VolumeKind, VolumeSpec};
use gantry_proto::cri::v1::{CdiDevice, Device, IdMapping, ImageSpec, Mount, MountPropagation, UserNamespace};
use sha2::{Digest as _, Sha256};
use tonic::Status;

use super::config::{invalid, stored_image, unsupported};
use crate::clean_path::clean_path;
use crate::status::invalid_field;

/// Replaces the image of each mount by its id, so that it stays the same whatever becomes of its names; ContainerStatus
/// shows the id as well.
///
/// # Errors
/// `INVALID_ARGUMENT` if it cannot be the name of an image, and `NOT_FOUND` if the image is not in the store.
pub(super) fn resolve_images(engine: &Engine, mounts: &mut [Mount]) -> Result<(), Status> {
    for image in mounts.iter_mut().filter_map(|mount| mount.image.as_mut()).filter(|image| !image.image.is_empty()) {
        image.image_ref = stored_image(engine, image)?.to_string();
    }
    Ok(())
}

/// Adds the mounts to the app, and their volumes. Labels of SELinux mean nothing here, so `selinux_relabel` is ignored.
///
/// `user` is the sandbox's user namespace. Its mappings apply to every mount, so a mount may name these or none.
///
/// # Errors
/// `INVALID_ARGUMENT` or `UNIMPLEMENTED`, with the field and the reason.
pub(super) fn translate(
    mounts: Vec<Mount>,
    user: Option<&UserNamespace>,
    spec: &mut AddedAppSpec,
) -> Result<(), Status> {
    let owner = Sha256::digest(spec.app.name.as_str().as_bytes());
    let owner = hex(&owner[..8]);
    for (number, mount) in mounts.into_iter().enumerate() {
        let field = format!("config.mounts[{number}]");
        check_mappings(&field, &mount, user)?;
        let volume: AppName = format!("m{number}-{owner}").parse().map_err(|error| invalid(&field, &error))?;
        let (kind, options) = (kind(&field, &mount)?, options(&field, &mount)?);
        let is_image = matches!(kind, VolumeKind::Image { .. });
        spec.volumes.push(VolumeSpec { name: volume.clone(), kind, read_only: is_image });
        let Mount { container_path, readonly: read_only, .. } = mount;
        // Relative to the root, as containerd reads it. The supervisor finds it beneath the root.
        let target = clean_path(&container_path);
        spec.app.mounts.push(MountSpec { volume, target, read_only, options });
    }
    Ok(())
}

fn check_mappings(field: &str, mount: &Mount, user: Option<&UserNamespace>) -> Result<(), Status> {
    let own = |of: fn(&UserNamespace) -> &Vec<IdMapping>| user.map_or(&[][..], |user| of(user));
    for (name, mappings, own) in [
        ("uidMappings", &mount.uid_mappings, own(|user| &user.uids)),
        ("gidMappings", &mount.gid_mappings, own(|user| &user.gids)),
    ] {
        if !mappings.is_empty() && *mappings != own {
            let why = "the mappings of a mount must be empty or equal those of its sandbox's user namespace";
            return Err(invalid_field(&format!("{field}.{name}"), why));
        }
    }
    Ok(())
}

/// Propagation, and whether mounts below a read-only one are read-only as well.
fn options(field: &str, mount: &Mount) -> Result<MountOptions, Status> {
    if !mount.mount_options.is_empty() {
        return Err(unsupported(&format!("{field}.mount_options"), "mounts have no such option"));
    }
    let propagation = match MountPropagation::try_from(mount.propagation) {
        Ok(MountPropagation::PropagationPrivate) => Propagation::Private,
        Ok(MountPropagation::PropagationHostToContainer) => Propagation::Slave,
        Ok(MountPropagation::PropagationBidirectional) => Propagation::Shared,
        Err(_) => return Err(invalid_field(&format!("{field}.propagation"), "there is no such propagation")),
    };
    if mount.recursive_read_only && (!mount.readonly || propagation.propagates()) {
        let why = "it needs readonly, and PROPAGATION_PRIVATE";
        return Err(invalid_field(&format!("{field}.recursive_read_only"), why));
    }
    let is_host_path = mount.image.as_ref().is_none_or(|image| image.image.is_empty());
    let writable_submounts = is_host_path && mount.readonly && !mount.recursive_read_only;
    Ok(MountOptions { propagation, writable_submounts })
}

fn kind(field: &str, mount: &Mount) -> Result<VolumeKind, Status> {
    match mount.image.as_ref().filter(|image| !image.image.is_empty()) {
        Some(image) => image_kind(field, mount, image),
        None if !mount.image_sub_path.is_empty() => {
            Err(invalid_field(&format!("{field}.image_sub_path"), "the mount has no image"))
        }
        None => host_kind(&format!("{field}.host_path"), &mount.host_path),
    }
}

fn image_kind(field: &str, mount: &Mount, image: &ImageSpec) -> Result<VolumeKind, Status> {
    if !mount.host_path.is_empty() {
        return Err(invalid_field(&format!("{field}.host_path"), "the mount is an image"));
    }
    if !mount.readonly {
        return Err(invalid_field(&format!("{field}.readonly"), "images are mounted read-only"));
    }
    Ok(VolumeKind::Image { image: image.image_ref.clone(), sub_path: mount.image_sub_path.clone(), layers: Vec::new() })
}

/// Symbolic links are resolved before the mount. A missing path is created as a directory, since kubelets rely on it.
fn host_kind(field: &str, path: &str) -> Result<VolumeKind, Status> {
    if !Path::new(path).is_absolute() {
        return Err(invalid_field(field, "expected an absolute path"));
    }
    let failed =
        |what: &str, error: &io::Error| invalid_field(field, &format!("cannot {what} '{}': {error}", shown(path)));
    let source = match Path::new(path).canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|error| failed("create", &error))?;
            Path::new(path).canonicalize()
        }
        found => found,
    };
    let source = source.map_err(|error| failed("find", &error))?;
    let source = source.into_os_string().into_string().map_err(|_| invalid_field(field, "it is not UTF-8"))?;
    Ok(VolumeKind::Host { source, recursive: true })
}

/// Adds the devices to the app.
///
/// # Errors
/// `INVALID_ARGUMENT` or `UNIMPLEMENTED`, with the field and the reason.
pub(super) fn translate_devices(
    devices: Vec<Device>,
    cdi_devices: &[CdiDevice],
    spec: &mut AddedAppSpec,
) -> Result<(), Status> {
    if !cdi_devices.is_empty() {
        return Err(unsupported("config.CDI_devices", "specifications of CDI are not read"));
    }
    for (number, device) in devices.into_iter().enumerate() {
        let Device { container_path, host_path, permissions } = device;
        let target = if container_path.is_empty() { &host_path } else { &container_path };
        let text = match permissions.as_str() {
            "" => format!("{host_path}:{target}"),
            permissions => format!("{host_path}:{target}:{permissions}"),
        };
        let field = format!("config.devices[{number}]");
        let device: DeviceSpec = text.parse().map_err(|error| invalid(&field, &error))?;
        spec.app.options.devices.push(device);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_any_access() {
        for (permissions, access) in [
            ("", (true, true)),
            ("r", (true, false)),
            ("w", (false, true)),
            ("m", (false, false)),
            ("rm", (true, false)),
            ("mw", (false, true)),
            ("rwm", (true, true)),
        ] {
            let host_path = "/dev/fuse".to_owned();
            let device = Device { host_path, permissions: permissions.to_owned(), ..Device::default() };
            let app = gantry_model::AppSpec::new("a".parse().unwrap(), None);
            let mut spec = AddedAppSpec { app, volumes: Vec::new() };
            translate_devices(vec![device], &[], &mut spec).unwrap();
            let device = spec.app.options.devices.remove(0);
            assert_eq!((device.read, device.write), access, "{permissions:?}");
        }
    }
}
