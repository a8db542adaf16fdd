//! The calls that are served. `os.OSService` has some of them too.

use std::sync::Arc;

use gantry_engine::{Observer, now};
use gantry_proto::talos::common::Data;
use gantry_proto::talos::machine as wire;
use tonic::{Request, Response, Status};

use super::control::MachineAction;
use super::logs::LogSelection;
use super::node::{MessageStream, Node};
use super::{containers, events, host, logs, names, restart, stats};
use crate::bridge::Weight;

impl Node {
    /// Containers, also of `os.OSService`.
    pub(super) async fn containers(
        &self,
        request: Request<wire::ContainersRequest>,
    ) -> Result<Response<wire::ContainersResponse>, Status> {
        let list = |peer, request| {
            let list = move |observer: &Observer| containers::list(observer, &request);
            self.context.reader.call(peer, Weight::Heavy, list)
        };
        let messages = self.unary(request, list).await?;
        Ok(Response::new(wire::ContainersResponse { messages }))
    }

    /// Restart, also of `os.OSService`.
    pub(super) async fn restart(
        &self,
        request: Request<wire::RestartRequest>,
    ) -> Result<Response<wire::RestartResponse>, Status> {
        let restart = async |peer, request| {
            restart::restart(self, peer, request).await?;
            Ok(wire::Restart::default())
        };
        let messages = self.unary(request, restart).await?;
        Ok(Response::new(wire::RestartResponse { messages }))
    }

    /// Reboot.
    pub(super) async fn reboot(&self, request: Request<()>) -> Result<Response<wire::RebootResponse>, Status> {
        let reboot = async |peer, ()| {
            self.control.execute(peer, MachineAction::Reboot).await?;
            Ok(wire::Reboot::default())
        };
        let messages = self.unary(request, reboot).await?;
        Ok(Response::new(wire::RebootResponse { messages }))
    }

    /// Shutdown.
    pub(super) async fn shutdown(&self, request: Request<()>) -> Result<Response<wire::ShutdownResponse>, Status> {
        let shutdown = async |peer, ()| {
            self.control.execute(peer, MachineAction::Shutdown).await?;
            Ok(wire::Shutdown::default())
        };
        let messages = self.unary(request, shutdown).await?;
        Ok(Response::new(wire::ShutdownResponse { messages }))
    }

    /// Memory, also of `os.OSService`.
    pub(super) async fn memory(&self, request: Request<()>) -> Result<Response<wire::MemoryResponse>, Status> {
        let messages = self.read_host(request, host::memory::read).await?;
        Ok(Response::new(wire::MemoryResponse { messages }))
    }

    /// Processes, also of `os.OSService`.
    pub(super) async fn processes(&self, request: Request<()>) -> Result<Response<wire::ProcessesResponse>, Status> {
        let messages = self.read_host(request, host::processes::read).await?;
        Ok(Response::new(wire::ProcessesResponse { messages }))
    }

    /// Logs.
    pub(super) async fn logs(
        &self,
        request: Request<wire::LogsRequest>,
    ) -> Result<Response<MessageStream<Data>>, Status> {
        let open = async |peer, request| {
            let selection = LogSelection::parse(request, now())?;
            logs::stream(&self.context, self.streams.acquire(peer)?, selection).await
        };
        Ok(Response::new(self.stream(request, open).await?))
    }

    /// Stats, also of `os.OSService`.
    pub(super) async fn stats(
        &self,
        request: Request<wire::StatsRequest>,
    ) -> Result<Response<wire::StatsResponse>, Status> {
        let sample = |peer, request| {
            let context = Arc::clone(&self.context);
            let sample = move |observer: &Observer| stats::sample(&context, observer, &request);
            self.context.reader.call(peer, Weight::Heavy, sample)
        };
        let messages = self.unary(request, sample).await?;
        Ok(Response::new(wire::StatsResponse { messages }))
    }

    /// Events.
    pub(super) async fn events(
        &self,
        request: Request<wire::EventsRequest>,
    ) -> Result<Response<MessageStream<wire::Event>>, Status> {
        let open = async |peer, request| {
            let selection = events::EventSelection::parse(request)?;
            events::subscribe(&self.context, &self.service_ids, self.streams.acquire(peer)?, selection).await
        };
        Ok(Response::new(self.stream(request, open).await?))
    }

    /// LogsContainers: the ids of all pods and apps that were started.
    pub(super) async fn logs_containers(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::LogsContainersResponse>, Status> {
        let list = |peer, ()| self.context.reader.call(peer, Weight::Heavy, names::log_ids);
        let messages = self.unary(request, list).await?;
        Ok(Response::new(wire::LogsContainersResponse { messages }))
    }

    /// Version.
    pub(super) async fn version(&self, request: Request<()>) -> Result<Response<wire::VersionResponse>, Status> {
        let messages = self.read_host(request, || Ok(host::version())).await?;
        Ok(Response::new(wire::VersionResponse { messages }))
    }

    /// Hostname.
    pub(super) async fn hostname(&self, request: Request<()>) -> Result<Response<wire::HostnameResponse>, Status> {
        let messages = self.read_host(request, || Ok(host::hostname())).await?;
        Ok(Response::new(wire::HostnameResponse { messages }))
    }

    /// LoadAvg.
    pub(super) async fn load_avg(&self, request: Request<()>) -> Result<Response<wire::LoadAvgResponse>, Status> {
        let messages = self.read_host(request, host::load_average).await?;
        Ok(Response::new(wire::LoadAvgResponse { messages }))
    }

    /// SystemStat.
    pub(super) async fn system_stat(&self, request: Request<()>) -> Result<Response<wire::SystemStatResponse>, Status> {
        let messages = self.read_host(request, host::cpu::system_stat).await?;
        Ok(Response::new(wire::SystemStatResponse { messages }))
    }

    /// CpuInfo.
    pub(super) async fn cpu_info(&self, request: Request<()>) -> Result<Response<wire::CpuInfoResponse>, Status> {
        let messages = self.read_host(request, host::cpu::cpu_info).await?;
        Ok(Response::new(wire::CpuInfoResponse { messages }))
    }

    /// DiskStats.
    pub(super) async fn disk_stats(&self, request: Request<()>) -> Result<Response<wire::DiskStatsResponse>, Status> {
        let messages = self.read_host(request, host::devices::disks).await?;
        Ok(Response::new(wire::DiskStatsResponse { messages }))
    }

    /// NetworkDeviceStats.
    pub(super) async fn network_device_stats(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::NetworkDeviceStatsResponse>, Status> {
        let messages = self.read_host(request, host::devices::networks).await?;
        Ok(Response::new(wire::NetworkDeviceStatsResponse { messages }))
    }

    /// Mounts.
    pub(super) async fn mounts(&self, request: Request<()>) -> Result<Response<wire::MountsResponse>, Status> {
        let messages = self.read_host(request, host::mounts::read).await?;
        Ok(Response::new(wire::MountsResponse { messages }))
    }
}
