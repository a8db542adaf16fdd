//! `health.Health`. Its messages carry no name of a node.

use std::sync::Arc;
use std::time::Duration;

use gantry_proto::talos::health::health_check::ServingStatus;
use gantry_proto::talos::health::health_server::Health;
use gantry_proto::talos::health::ready_check::ReadyStatus;
use gantry_proto::talos::health::{
    HealthCheck, HealthCheckResponse, HealthWatchRequest, ReadyCheck, ReadyCheckResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::super::node::{MessageStream, Node};
use super::super::targets::Targets;
use crate::peer::Peer;
use crate::status;

/// Minimum interval of Watch.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub(in super::super) struct NodeHealth(pub(in super::super) Arc<Node>);

/// Refuses a call for another node.
fn check_node(metadata: &MetadataMap) -> Result<(), Status> {
    match Targets::parse(metadata)?.include_this_node() {
        true => Ok(()),
        false => Err(Status::permission_denied("no request forwarding")),
    }
}

fn serving() -> HealthCheckResponse {
    HealthCheckResponse { messages: vec![HealthCheck { status: ServingStatus::Serving.into() }] }
}

#[tonic::async_trait]
impl Health for NodeHealth {
    type WatchStream = MessageStream<HealthCheckResponse>;

    async fn check(&self, request: Request<()>) -> Result<Response<HealthCheckResponse>, Status> {
        check_node(request.metadata())?;
        Ok(Response::new(serving()))
    }

    async fn ready(&self, request: Request<()>) -> Result<Response<ReadyCheckResponse>, Status> {
        check_node(request.metadata())?;
        Ok(Response::new(ReadyCheckResponse { messages: vec![ReadyCheck { status: ReadyStatus::Ready.into() }] }))
    }

    async fn watch(&self, request: Request<HealthWatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        check_node(request.metadata())?;
        let permit = self.0.streams.acquire(Peer::of(request.extensions()))?;
        let seconds = u64::try_from(request.get_ref().interval_seconds);
        let seconds = seconds.map_err(|_| Status::invalid_argument("interval_seconds: it is negative"))?;
        let interval = Duration::from_secs(seconds).max(MIN_INTERVAL);
        let (sender, receiver) = mpsc::channel(1);
        let context = Arc::clone(&self.0.context);
        tokio::spawn(async move {
            let _permit = permit;
            while sender.send(Ok(serving())).await.is_ok() {
                tokio::select! {
                    () = tokio::time::sleep(interval) => {}
                    () = sender.closed() => return,
                    () = context.drained() => {
                        let _client_may_have_gone = sender.send(Err(status::draining())).await;
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
