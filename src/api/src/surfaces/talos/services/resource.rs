//! `resource.ResourceService`.

use std::sync::Arc;

use gantry_engine::Observer;
use gantry_proto::talos::resource::resource_service_server::ResourceService;
use gantry_proto::talos::resource::{GetRequest, GetResponse, ListRequest, ListResponse, WatchRequest, WatchResponse};
use tonic::{Request, Response, Status};

use super::super::node::{MessageStream, Node};
use super::super::resources::{self, WatchSelection};
use crate::bridge::Weight;

/// See the module.
pub(in super::super) struct Resources(pub(in super::super) Arc<Node>);

#[tonic::async_trait]
impl ResourceService for Resources {
    type ListStream = MessageStream<ListResponse>;
    type WatchStream = MessageStream<WatchResponse>;

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        let get = |peer, request| {
            let get = move |observer: &Observer| resources::get(observer, &request);
            self.0.context.reader.call(peer, Weight::Heavy, get)
        };
        Ok(Response::new(GetResponse { messages: self.0.unary(request, get).await? }))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let open = async |peer, request| {
            let list = move |observer: &Observer| resources::list(observer, &request);
            let messages = self.0.context.reader.call(peer, Weight::Heavy, list).await?;
            Ok(tokio_stream::iter(messages.into_iter().map(Ok)))
        };
        Ok(Response::new(self.0.stream(request, open).await?))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let open = async |peer, request| {
            let selection = WatchSelection::parse(request)?;
            let permits = [self.0.streams.acquire(peer)?, self.0.watches.acquire(peer)?];
            Ok(resources::watch(&self.0.context, permits, selection))
        };
        Ok(Response::new(self.0.stream(request, open).await?))
    }
}
