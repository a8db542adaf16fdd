//! `time.TimeService`.

use std::sync::Arc;

use gantry_proto::talos::time::time_service_server::TimeService;
use gantry_proto::talos::time::{TimeRequest, TimeResponse};
use tonic::{Request, Response, Status};

use super::super::node::Node;

/// See the module.
pub(in super::super) struct Clock(pub(in super::super) Arc<Node>);

#[tonic::async_trait]
impl TimeService for Clock {
    async fn time(&self, request: Request<()>) -> Result<Response<TimeResponse>, Status> {
        self.time_check(request.map(|()| TimeRequest::default())).await
    }

    async fn time_check(&self, request: Request<TimeRequest>) -> Result<Response<TimeResponse>, Status> {
        let check = async |_, TimeRequest { server }: TimeRequest| {
            let settings = self.0.context.config.settings.current();
            let configured = settings.time_server.as_deref().unwrap_or_default();
            self.0.time_checks.check(if server.is_empty() { configured } else { &server }).await
        };
        Ok(Response::new(TimeResponse { messages: self.0.unary(request, check).await? }))
    }
}
