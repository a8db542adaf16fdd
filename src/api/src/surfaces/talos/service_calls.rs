//! The calls about services.

use gantry_engine::Observer;
use gantry_proto::talos::machine as wire;
use tonic::{Request, Response, Status};

use super::node::Node;
use super::service_control::{ServiceAction, change_service};
use super::service_list;
use crate::bridge::Weight;

impl Node {
    /// ServiceList.
    pub(super) async fn service_list(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::ServiceListResponse>, Status> {
        let list = |peer, ()| {
            let (config, started) = (self.context.config.clone(), self.started);
            let list = move |observer: &Observer| service_list::list(observer, &config, started);
            self.context.reader.call(peer, Weight::Heavy, list)
        };
        let messages = self.unary(request, list).await?;
        Ok(Response::new(wire::ServiceListResponse { messages }))
    }

    /// ServiceStart.
    pub(super) async fn service_start(
        &self,
        request: Request<wire::ServiceStartRequest>,
    ) -> Result<Response<wire::ServiceStartResponse>, Status> {
        let start = async |peer, wire::ServiceStartRequest { id }| {
            let resp = change_service(self, peer, ServiceAction::Start, id).await?;
            Ok(wire::ServiceStart { metadata: None, resp })
        };
        let messages = self.unary(request, start).await?;
        Ok(Response::new(wire::ServiceStartResponse { messages }))
    }

    /// ServiceStop.
    pub(super) async fn service_stop(
        &self,
        request: Request<wire::ServiceStopRequest>,
    ) -> Result<Response<wire::ServiceStopResponse>, Status> {
        let stop = async |peer, wire::ServiceStopRequest { id }| {
            let resp = change_service(self, peer, ServiceAction::Stop, id).await?;
            Ok(wire::ServiceStop { metadata: None, resp })
        };
        let messages = self.unary(request, stop).await?;
        Ok(Response::new(wire::ServiceStopResponse { messages }))
    }

    /// ServiceRestart.
    pub(super) async fn service_restart(
        &self,
        request: Request<wire::ServiceRestartRequest>,
    ) -> Result<Response<wire::ServiceRestartResponse>, Status> {
        let restart = async |peer, wire::ServiceRestartRequest { id }| {
            let resp = change_service(self, peer, ServiceAction::Restart, id).await?;
            Ok(wire::ServiceRestart { metadata: None, resp })
        };
        let messages = self.unary(request, restart).await?;
        Ok(Response::new(wire::ServiceRestartResponse { messages }))
    }
}
