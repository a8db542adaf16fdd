//! The calls that read files of the host and the kernel log.

use gantry_proto::talos::common::Data;
use gantry_proto::talos::machine as wire;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::files::{self, FileAccess, FileJob, FileScope, ListSelection, UsageSelection};
use super::host;
use super::node::{MessageStream, Node};
use super::roles::is_administrator;
use crate::peer::Peer;

impl Node {
    /// Dmesg, also of `os.OSService`.
    pub(super) async fn dmesg(
        &self,
        request: Request<wire::DmesgRequest>,
    ) -> Result<Response<MessageStream<Data>>, Status> {
        let open = async |peer, request| host::kernel_log::stream(&self.context, self.streams.acquire(peer)?, &request);
        Ok(Response::new(self.stream(request, open).await?))
    }

    /// List.
    pub(super) async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<MessageStream<wire::FileInfo>>, Status> {
        let open = async |peer, request| {
            let selection = ListSelection::parse(self.name_access(peer), request)?;
            self.start_file_job(peer, selection)
        };
        Ok(Response::new(self.stream(request, open).await?))
    }

    /// DiskUsage.
    pub(super) async fn disk_usage(
        &self,
        request: Request<wire::DiskUsageRequest>,
    ) -> Result<Response<MessageStream<wire::DiskUsageInfo>>, Status> {
        let open = async |peer, request| {
            let selection = UsageSelection::parse(self.name_access(peer), request)?;
            self.start_file_job(peer, selection)
        };
        Ok(Response::new(self.stream(request, open).await?))
    }

    /// Read.
    pub(super) async fn read(
        &self,
        request: Request<wire::ReadRequest>,
    ) -> Result<Response<MessageStream<Data>>, Status> {
        let open = async |peer, request: wire::ReadRequest| {
            if request.path.is_empty() {
                return Err(Status::invalid_argument("path can't be empty"));
            }
            let access = self.content_access(peer);
            self.start_file_job(peer, move |sender: &_| files::read(&access, &request.path, sender))
        };
        Ok(Response::new(self.stream(request, open).await?))
    }

    /// Copy.
    pub(super) async fn copy(
        &self,
        request: Request<wire::CopyRequest>,
    ) -> Result<Response<MessageStream<Data>>, Status> {
        let open = async |peer, request: wire::CopyRequest| {
            let access = self.content_access(peer);
            self.start_file_job(peer, move |sender: &_| files::copy(&access, &request.root_path, sender))
        };
        Ok(Response::new(self.stream(request, open).await?))
    }

    /// The access of List and DiskUsage.
    fn name_access(&self, peer: Peer) -> FileAccess {
        let scope = if is_administrator(peer) { FileScope::Host } else { FileScope::DataDir };
        FileAccess::new(&self.context.config.settings.current().options.dir, scope)
    }

    /// The access of Read and Copy, which only operators and administrators may call.
    fn content_access(&self, peer: Peer) -> FileAccess {
        let scope = if is_administrator(peer) { FileScope::Host } else { FileScope::PodLogs };
        FileAccess::new(&self.context.config.settings.current().options.dir, scope)
    }

    fn start_file_job<M: Send + 'static>(
        &self,
        peer: Peer,
        job: impl FileJob<M>,
    ) -> Result<ReceiverStream<Result<M, Status>>, Status> {
        let permits = [self.streams.acquire(peer)?, self.file_jobs.acquire(peer)?];
        files::spawn(self.context.draining.clone(), permits, job)
    }
}
