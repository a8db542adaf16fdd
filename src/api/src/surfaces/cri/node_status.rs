//! `Status` and `RuntimeConfig`: the conditions of the runtime, and its cgroup driver.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, OnceLock};

use gantry_engine::Engine;
use gantry_host::cgroup::{Hierarchy, Version, mounted_hierarchies};
use gantry_model::cgroup::CgroupManager;
use gantry_model::error::messages;
use gantry_model::{ErrorKind, Kind as _};
use gantry_proto::cri::v1::{
    CgroupDriver, LinuxRuntimeConfiguration, RuntimeCondition, RuntimeConfigResponse, RuntimeFeatures, RuntimeHandler,
    RuntimeHandlerFeatures, RuntimeStatus, StatusResponse,
};
use tonic::Status;

use crate::status::{from_error, invalid_field};

/// Types of conditions (k8s.io/cri-api, `constants.go`).
const RUNTIME_READY: &str = "RuntimeReady";
const NETWORK_READY: &str = "NetworkReady";
/// Controllers of cgroup v1 that pods use, and need one of on a host without cgroup v2.
const CONTROLLERS: [&str; 6] = ["memory", "cpu", "cpuacct", "pids", "blkio", "freezer"];

/// The features of the handler that depend on the host. They are found out once: a process is started for it.
#[derive(Debug, Clone, Default)]
pub(super) struct HandlerFeatures {
    user_namespaces: Arc<OnceLock<bool>>,
}

impl HandlerFeatures {
    fn user_namespaces(&self, engine: &Engine) -> bool {
        *self.user_namespaces.get_or_init(|| match engine.check_user_namespaces() {
            Ok(()) => true,
            Err(error) => {
                tracing::info!("pods share the user namespace of the host: {}", messages(&error).join(": "));
                false
            }
        })
    }
}

/// The conditions. No program is started for them: a kubelet asks every five seconds.
pub(super) fn read(engine: &Engine, features: &HandlerFeatures, verbose: bool) -> StatusResponse {
    let network = match engine.sandbox_network() {
        Ok(_) => ready(NETWORK_READY),
        Err(error) => failing(NETWORK_READY, "NetworkPluginNotReady", messages(&error).join(": ")),
    };
    let mut status = response(vec![runtime(mounted_hierarchies()), network], features.user_namespaces(engine));
    if verbose {
        let dir = engine.store().layout().root().display().to_string();
        // The names are those of containerd, which crictl's users look up.
        let config = serde_json::json!({ "stateDir": dir, "containerdRootDir": dir });
        status.info = HashMap::from([("config".to_owned(), config.to_string())]);
    }
    status
}

/// The condition of the runtime on a host with these cgroup hierarchies: without one, no sandbox starts.
fn runtime(hierarchies: io::Result<Vec<Hierarchy>>) -> RuntimeCondition {
    let is_usable = |hierarchy: &Hierarchy| {
        hierarchy.version == Version::V2 || CONTROLLERS.iter().any(|name| hierarchy.has_v1_controller(name))
    };
    let why = match hierarchies {
        Ok(found) if found.iter().any(is_usable) => return ready(RUNTIME_READY),
        Ok(_) => "no cgroup hierarchy is mounted: mount cgroup2 at /sys/fs/cgroup".to_owned(),
        Err(error) => format!("cannot read the cgroup hierarchies of this host: {error}"),
    };
    failing(RUNTIME_READY, "CgroupsNotReady", why)
}

/// The conditions when the store cannot be opened.
pub(super) fn not_ready(error: &Status) -> StatusResponse {
    let runtime = failing(RUNTIME_READY, "StoreNotReady", error.message().to_owned());
    let network = failing(NETWORK_READY, "StoreNotReady", "the networks were not examined".to_owned());
    response(vec![runtime, network], false)
}

/// The response to RuntimeConfig.
pub(super) fn runtime_config(engine: &Engine) -> RuntimeConfigResponse {
    let driver = match engine.options().cgroup_parent.manager() {
        CgroupManager::Cgroupfs => CgroupDriver::Cgroupfs,
        CgroupManager::Systemd => CgroupDriver::Systemd,
    };
    RuntimeConfigResponse { linux: Some(LinuxRuntimeConfiguration { cgroup_driver: driver.into() }) }
}

/// Stores the pod CIDR of UpdateRuntimeConfig.
///
/// # Errors
/// `INVALID_ARGUMENT` if it is malformed, and the engine's errors.
pub(super) fn set_pod_cidr(engine: &Engine, cidr: &str) -> Result<(), Status> {
    engine.set_pod_cidrs(cidr).map_err(|error| match error.kind() {
        ErrorKind::Invalid => invalid_field("runtime_config.network_config.pod_cidr", &error.to_string()),
        _ => from_error(&error),
    })
}

/// A status with these conditions. The handler without a name is the default one; a feature that is not named there is
/// one that kubelets do not ask for.
fn response(conditions: Vec<RuntimeCondition>, user_namespaces: bool) -> StatusResponse {
    let features = RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces };
    StatusResponse {
        status: Some(RuntimeStatus { conditions }),
        info: HashMap::new(),
        runtime_handlers: vec![RuntimeHandler { name: String::new(), features: Some(features) }],
        features: Some(RuntimeFeatures { supplemental_groups_policy: true, ..RuntimeFeatures::default() }),
    }
}

fn ready(kind: &str) -> RuntimeCondition {
    RuntimeCondition { r#type: kind.to_owned(), status: true, ..RuntimeCondition::default() }
}

fn failing(kind: &str, reason: &str, message: String) -> RuntimeCondition {
    RuntimeCondition { r#type: kind.to_owned(), status: false, reason: reason.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_host::cgroup::parse_mountinfo;

    #[test]
    fn the_runtime_needs_a_cgroup_hierarchy() {
        const NAMED: &str = "30 31 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
        const V1: &str = "32 31 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        const V2: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        for (mounts, is_ready) in [(V2, true), (V1, true), (NAMED, false), ("", false)] {
            let condition = runtime(Ok(parse_mountinfo(mounts)));
            assert_eq!((condition.status, condition.reason.is_empty()), (is_ready, is_ready), "{condition:?}");
        }
        let unread = runtime(Err(io::ErrorKind::PermissionDenied.into()));
        assert!(!unread.status && unread.reason == "CgroupsNotReady");
    }
}
