//! `storage.StorageService`.

use std::sync::Arc;

use gantry_proto::talos::storage::DisksResponse;
use gantry_proto::talos::storage::storage_service_server::StorageService;
use tonic::{Request, Response, Status};

use super::super::host;
use super::super::node::Node;

/// See the module.
pub(in super::super) struct Storage(pub(in super::super) Arc<Node>);

#[tonic::async_trait]
impl StorageService for Storage {
    /// The reply is one message without a list of nodes: if several nodes are named, it is that of this node.
    async fn disks(&self, request: Request<()>) -> Result<Response<DisksResponse>, Status> {
        let mut replies = self.0.read_host(request, host::block_devices::read).await?;
        let is_own = |reply: &DisksResponse| reply.metadata.as_ref().is_none_or(|metadata| metadata.error.is_empty());
        let chosen = replies.iter().position(is_own).unwrap_or(0);
        Ok(Response::new(replies.swap_remove(chosen)))
    }
}
