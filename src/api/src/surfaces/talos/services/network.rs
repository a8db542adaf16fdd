//! `network.NetworkService`.

use std::sync::Arc;

use gantry_proto::talos::network::network_service_server::NetworkService;
use gantry_proto::talos::network::{InterfacesResponse, RoutesResponse};
use tonic::{Request, Response, Status};

use super::super::host;
use super::super::node::Node;

/// See the module.
pub(in super::super) struct Network(pub(in super::super) Arc<Node>);

#[tonic::async_trait]
impl NetworkService for Network {
    async fn interfaces(&self, request: Request<()>) -> Result<Response<InterfacesResponse>, Status> {
        let messages = self.0.read_host(request, host::network::interfaces).await?;
        Ok(Response::new(InterfacesResponse { messages }))
    }

    async fn routes(&self, request: Request<()>) -> Result<Response<RoutesResponse>, Status> {
        let messages = self.0.read_host(request, host::network::routes).await?;
        Ok(Response::new(RoutesResponse { messages }))
    }
}
