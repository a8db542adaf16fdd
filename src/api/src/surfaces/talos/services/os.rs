//! `os.OSService`: the calls of Talos 0.6 that `machine.MachineService` has in later releases.

use std::sync::Arc;

use gantry_proto::talos::os::os_service_server::OsService;
use gantry_proto::talos::{common, machine};
use tonic::{Request, Response, Status};

use super::super::node::{MessageStream, Node};

/// See the module.
pub(in super::super) struct Os(pub(in super::super) Arc<Node>);

#[tonic::async_trait]
impl OsService for Os {
    type DmesgStream = MessageStream<common::Data>;

    async fn containers(
        &self,
        request: Request<machine::ContainersRequest>,
    ) -> Result<Response<machine::ContainersResponse>, Status> {
        self.0.containers(request).await
    }

    async fn dmesg(&self, request: Request<machine::DmesgRequest>) -> Result<Response<Self::DmesgStream>, Status> {
        self.0.dmesg(request).await
    }

    async fn memory(&self, request: Request<()>) -> Result<Response<machine::MemoryResponse>, Status> {
        self.0.memory(request).await
    }

    async fn processes(&self, request: Request<()>) -> Result<Response<machine::ProcessesResponse>, Status> {
        self.0.processes(request).await
    }

    async fn restart(
        &self,
        request: Request<machine::RestartRequest>,
    ) -> Result<Response<machine::RestartResponse>, Status> {
        self.0.restart(request).await
    }

    async fn stats(&self, request: Request<machine::StatsRequest>) -> Result<Response<machine::StatsResponse>, Status> {
        self.0.stats(request).await
    }
}
