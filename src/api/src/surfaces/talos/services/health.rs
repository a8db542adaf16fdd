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
use tonic::{Request, Response, Status};

use super::super::node::{MessageStream, Node};
use super::super::targets::Targets;
use crate::peer::Peer;
use crate::status;

/// Minimum interval of Watch.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub(in super::super) struct NodeHealth(pub(in super::super) Arc<Node>);

impl NodeHealth {
    /// Refuses a call for another node.
    async fn check_node<Q>(&self, request: &Request<Q>) -> Result<(), Status> {
        match self.0.targets(Peer::of(request.extensions()), request.metadata()).await?.include_this_node() {
            true => Ok(()),
            false => Err(Targets::not_forwarded()),
        }
    }

    /// Whether gantryd reconciles pods, as grpc.health.v1 reports it of the service `gantryd`.
    fn is_healthy(&self) -> bool {
        self.0.context.config.reconciles
    }
}

fn health_of(is_healthy: bool) -> HealthCheckResponse {
    let status = if is_healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { messages: vec![HealthCheck { status: status.into() }] }
}

fn readiness_of(is_healthy: bool) -> ReadyCheckResponse {
    let status = if is_healthy { ReadyStatus::Ready } else { ReadyStatus::NotReady };
    ReadyCheckResponse { messages: vec![ReadyCheck { status: status.into() }] }
}

#[tonic::async_trait]
impl Health for NodeHealth {
    type WatchStream = MessageStream<HealthCheckResponse>;

    async fn check(&self, request: Request<()>) -> Result<Response<HealthCheckResponse>, Status> {
        self.check_node(&request).await?;
        Ok(Response::new(health_of(self.is_healthy())))
    }

    async fn ready(&self, request: Request<()>) -> Result<Response<ReadyCheckResponse>, Status> {
        self.check_node(&request).await?;
        Ok(Response::new(readiness_of(self.is_healthy())))
    }

    async fn watch(&self, request: Request<HealthWatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.check_node(&request).await?;
        let permit = self.0.streams.acquire(Peer::of(request.extensions()))?;
        let seconds = u64::try_from(request.get_ref().interval_seconds);
        let seconds = seconds.map_err(|_| Status::invalid_argument("interval_seconds: it is negative"))?;
        let interval = Duration::from_secs(seconds).max(MIN_INTERVAL);
        let (sender, receiver) = mpsc::channel(1);
        let (context, health) = (Arc::clone(&self.0.context), health_of(self.is_healthy()));
        tokio::spawn(async move {
            let _permit = permit;
            while sender.send(Ok(health.clone())).await.is_ok() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_whether_gantryd_reconciles() {
        for (reconciles, health, readiness) in [
            (true, ServingStatus::Serving, ReadyStatus::Ready),
            (false, ServingStatus::NotServing, ReadyStatus::NotReady),
        ] {
            assert_eq!(health_of(reconciles).messages[0].status(), health);
            assert_eq!(readiness_of(reconciles).messages[0].status(), readiness);
        }
    }
}
