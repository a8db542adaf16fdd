//! The services of a Talos node that gantryd does not serve. Their calls answer UNIMPLEMENTED instead of `unknown
//! service`.

use gantry_proto::talos::cluster::cluster_service_server::ClusterService;
use gantry_proto::talos::inspect::inspect_service_server::InspectService;
use gantry_proto::talos::securityapi::security_service_server::SecurityService;
use gantry_proto::talos::{cluster, inspect, securityapi};
use tonic::{Request, Response, Status};

use super::super::node::MessageStream;
use super::super::refusals::{control_plane, not_served};

/// See the module.
#[derive(Clone, Copy)]
pub(in super::super) struct Others;

#[tonic::async_trait]
impl ClusterService for Others {
    type HealthCheckStream = MessageStream<cluster::HealthCheckProgress>;

    async fn health_check(
        &self,
        _: Request<cluster::HealthCheckRequest>,
    ) -> Result<Response<Self::HealthCheckStream>, Status> {
        Err(control_plane("HealthCheck"))
    }
}

#[tonic::async_trait]
impl InspectService for Others {
    async fn controller_runtime_dependencies(
        &self,
        _: Request<()>,
    ) -> Result<Response<inspect::ControllerRuntimeDependenciesResponse>, Status> {
        Err(not_served("ControllerRuntimeDependencies"))
    }
}

#[tonic::async_trait]
impl SecurityService for Others {
    async fn certificate(
        &self,
        _: Request<securityapi::CertificateRequest>,
    ) -> Result<Response<securityapi::CertificateResponse>, Status> {
        Err(not_served("Certificate"))
    }

    async fn read_file(
        &self,
        _: Request<securityapi::ReadFileRequest>,
    ) -> Result<Response<securityapi::ReadFileResponse>, Status> {
        Err(not_served("ReadFile"))
    }

    async fn write_file(
        &self,
        _: Request<securityapi::WriteFileRequest>,
    ) -> Result<Response<securityapi::WriteFileResponse>, Status> {
        Err(not_served("WriteFile"))
    }
}
