//! `runtime.v1.RuntimeService`: checks requests here, and works on the bridge's threads.

use std::sync::Arc;

use gantry_engine::Engine;
use gantry_proto::cri::v1::runtime_service_server::RuntimeService;
use gantry_proto::cri::v1::{
    RuntimeConfigRequest, RuntimeConfigResponse, StatusRequest, StatusResponse, UpdateRuntimeConfigRequest,
    UpdateRuntimeConfigResponse, VersionRequest, VersionResponse,
};
use tonic::{Request, Response, Status};

use super::node_status;
use crate::bridge::{Bridge, Weight};
use crate::peer::Peer;

/// The version of the contract between kubelet and runtime. Kubelets compare it; it is not that of the package.
const KUBELET_API_VERSION: &str = "0.1.0";
/// The version of the package.
const RUNTIME_API_VERSION: &str = "v1";

/// See the module.
pub(super) struct CriRuntime {
    writer: Arc<Bridge<Engine>>,
}

impl CriRuntime {
    /// The service of a server.
    pub(super) fn new(writer: Arc<Bridge<Engine>>) -> Self {
        Self { writer }
    }
}

#[tonic::async_trait]
impl RuntimeService for CriRuntime {
    async fn version(&self, request: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        let VersionRequest { version: _any } = request.into_inner();
        Ok(Response::new(VersionResponse {
            version: KUBELET_API_VERSION.to_owned(),
            runtime_name: "gantry".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: RUNTIME_API_VERSION.to_owned(),
        }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let (_, extensions, StatusRequest { verbose }) = request.into_parts();
        let read = move |engine: &Engine| Ok(node_status::read(engine, verbose));
        let status = self.writer.call(Peer::of(&extensions), Weight::Light, read).await;
        // A kubelet shows the condition of its node; a failed call only says that it knows none.
        Ok(Response::new(status.unwrap_or_else(|error| node_status::not_ready(&error))))
    }

    async fn runtime_config(
        &self,
        request: Request<RuntimeConfigRequest>,
    ) -> Result<Response<RuntimeConfigResponse>, Status> {
        let (_, extensions, RuntimeConfigRequest {}) = request.into_parts();
        let read = |engine: &Engine| Ok(node_status::runtime_config(engine));
        self.writer.call(Peer::of(&extensions), Weight::Light, read).await.map(Response::new)
    }

    /// Accepts a configuration without a pod CIDR. Addresses come from the configured networks, so a CIDR that they do
    /// not follow is refused.
    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Result<Response<UpdateRuntimeConfigResponse>, Status> {
        let config = request.into_inner().runtime_config.and_then(|config| config.network_config);
        match config.map(|network| network.pod_cidr).filter(|cidr| !cidr.is_empty()) {
            None => Ok(Response::new(UpdateRuntimeConfigResponse {})),
            Some(cidr) => Err(Status::unimplemented(format!(
                "pod CIDR {}: addresses of pods come from the configurations of networks; give it to a network there",
                gantry_engine::model::id::shown(&cidr)
            ))),
        }
    }
}
