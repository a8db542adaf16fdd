//! The devices of the host that an app gets which is added to a running pod. Those of other apps the supervisor reads
//! itself, before it leaves the host's files.

use gantry_contract::plan::HostDevice;
use gantry_host::device::{DeviceNode, list_devices};
use gantry_model::ErrorKind;
use gantry_model::device::is_provided;
use gantry_model::id::shown;
use gantry_model::spec::AppOptions;

use crate::EngineError;

/// Reads the nodes of an app's devices: of a directory, all below it; of a privileged app, all of /dev.
pub(crate) fn read_devices(options: &AppOptions) -> Result<Vec<HostDevice>, EngineError> {
    let mut devices = Vec::new();
    for spec in &options.devices {
        let what = || format!("cannot use '{}' as a device", shown(&spec.source));
        let nodes = list_devices(&spec.source, |_| false)
            .map_err(|error| EngineError::new(ErrorKind::of_io(&error), what()).caused_by(error))?;
        if nodes.is_empty() {
            return Err(EngineError::new(ErrorKind::Invalid, format!("{}: no device is below it", what())));
        }
        devices
            .extend(nodes.iter().map(|node| host_device(spec.target_of(&node.below), node, (spec.read, spec.write))));
    }
    if options.privileged {
        let nodes = list_devices("/dev", is_provided).map_err(|error| {
            EngineError::new(ErrorKind::of_io(&error), "cannot list the devices of the host").caused_by(error)
        })?;
        for node in nodes {
            let target = format!("/dev/{}", node.below);
            if devices.iter().all(|known| known.target != target) {
                devices.push(host_device(target, &node, (true, true)));
            }
        }
    }
    Ok(devices)
}

fn host_device(target: String, node: &DeviceNode, (read, write): (bool, bool)) -> HostDevice {
    let DeviceNode { below: _, is_block, major, minor, mode, uid, gid } = *node;
    HostDevice { target, is_block, major, minor, read, write, mode, uid, gid }
}
