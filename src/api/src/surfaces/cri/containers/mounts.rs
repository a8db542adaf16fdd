//! The mounts and the devices of a container. A mount becomes a volume of the pod that only this container mounts.

use std::path::Path;

use gantry_engine::model::AppName;
use gantry_engine::model::device::DeviceSpec;
use gantry_engine::model::id::shown;
use gantry_engine::model::mount_options::MountOptions;
use gantry_engine::model::spec::{AddedAppSpec, MountSpec, VolumeKind, VolumeSpec};
use gantry_proto::cri::v1::{CdiDevice, Device, IdMapping, Mount, MountPropagation, UserNamespace};
use sha2::{Digest as _, Sha256};
use tonic::Status;

use super::config::{invalid, unsupported};
use crate::status::invalid_field;

/// Adds the mounts to the app, and their volumes. Labels of SELinux mean nothing here, so `selinux_relabel` is ignored.
///
/// `user` is the user namespace of the sandbox, whose ids every mount has; so a mount may name them, and no others.
///
/// # Errors
/// INVALID_ARGUMENT, UNIMPLEMENTED: the field and the reason.
pub(super) fn translate(
    mounts: Vec<Mount>,
    user: Option<&UserNamespace>,
    spec: &mut AddedAppSpec,
) -> Result<(), Status> {
    let owner = Sha256::digest(spec.app.name.as_str().as_bytes());
    let owner: String = owner.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    for (number, mount) in mounts.into_iter().enumerate() {
        let field = format!("config.mounts[{number}]");
        check_mappings(&field, &mount, user)?;
        let volume: AppName = format!("m{number}-{owner}").parse().map_err(|error| invalid(&field, &error))?;
        spec.volumes.push(VolumeSpec { name: volume.clone(), kind: kind(&field, &mount)?, read_only: false });
        let Mount { container_path: target, readonly: read_only, .. } = mount;
        spec.app.mounts.push(MountSpec { volume, target, read_only, options: MountOptions::default() });
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
            let why = "the mappings of a mount are those of the user namespace of its sandbox, or none";
            return Err(invalid_field(&format!("{field}.{name}"), why));
        }
    }
    Ok(())
}

fn kind(field: &str, mount: &Mount) -> Result<VolumeKind, Status> {
    for (name, is_set) in [
        ("propagation", mount.propagation() != MountPropagation::PropagationPrivate),
        ("recursive_read_only", mount.recursive_read_only),
        ("image", mount.image.as_ref().is_some_and(|image| !image.image.is_empty())),
        ("image_sub_path", !mount.image_sub_path.is_empty()),
        ("mount_options", !mount.mount_options.is_empty()),
    ] {
        if is_set {
            return Err(unsupported(&format!("{field}.{name}"), "mounts have no such option"));
        }
    }
    let field = format!("{field}.host_path");
    let path = Path::new(&mount.host_path);
    if !path.is_absolute() {
        return Err(invalid_field(&field, "expected an absolute path"));
    }
    // The target of a link is mounted.
    let source = path
        .canonicalize()
        .map_err(|error| invalid_field(&field, &format!("cannot find '{}': {error}", shown(&mount.host_path))))?;
    let source = source.into_os_string().into_string().map_err(|_| invalid_field(&field, "it is not UTF-8"))?;
    Ok(VolumeKind::Host { source, recursive: true })
}

/// Adds the devices to the app.
///
/// # Errors
/// INVALID_ARGUMENT, UNIMPLEMENTED: the field and the reason.
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
