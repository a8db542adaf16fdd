//! `Status` and `RuntimeConfig`: the conditions of the runtime, and its cgroup driver.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use gantry_engine::Engine;
use gantry_engine::model::cgroup::CgroupManager;
use gantry_engine::model::error::messages;
use gantry_engine::model::{ErrorKind, Kind as _};
use gantry_proto::cri::v1::{
    CgroupDriver, LinuxRuntimeConfiguration, RuntimeCondition, RuntimeConfigResponse, RuntimeFeatures, RuntimeHandler,
    RuntimeHandlerFeatures, RuntimeStatus, StatusResponse,
};
use tonic::Status;

use crate::status::{from_error, invalid_field};

/// Types of conditions (k8s.io/cri-api, `constants.go`).
const RUNTIME_READY: &str = "RuntimeReady";
const NETWORK_READY: &str = "NetworkReady";

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
    let mut status = response(vec![ready(RUNTIME_READY), network], features.user_namespaces(engine));
    if verbose {
        let dir = engine.store().layout().root().display().to_string();
        // The names are those of containerd, which crictl's users look up.
        let config = serde_json::json!({ "stateDir": dir, "containerdRootDir": dir });
        status.info = HashMap::from([("config".to_owned(), config.to_string())]);
    }
    status
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
/// INVALID_ARGUMENT: it is malformed; those of the engine.
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
