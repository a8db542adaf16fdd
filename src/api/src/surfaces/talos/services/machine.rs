//! `machine.MachineService`.

use std::sync::Arc;

use gantry_proto::talos::machine::machine_service_server::MachineService;
use gantry_proto::talos::{common, machine};
use tonic::{Request, Response, Status};

use super::super::node::{MessageStream, Node};
use super::super::refusals::{control_plane, machine_control, not_served};

/// See the module.
pub(in super::super) struct Machine(pub(in super::super) Arc<Node>);

#[tonic::async_trait]
impl MachineService for Machine {
    type CopyStream = MessageStream<common::Data>;
    type DiskUsageStream = MessageStream<machine::DiskUsageInfo>;
    type DmesgStream = MessageStream<common::Data>;
    type EventsStream = MessageStream<machine::Event>;
    type ImageListStream = MessageStream<machine::ImageListResponse>;
    type KubeconfigStream = MessageStream<common::Data>;
    type ListStream = MessageStream<machine::FileInfo>;
    type LogsStream = MessageStream<common::Data>;
    type ReadStream = MessageStream<common::Data>;

    async fn apply_configuration(
        &self,
        _: Request<machine::ApplyConfigurationRequest>,
    ) -> Result<Response<machine::ApplyConfigurationResponse>, Status> {
        Err(not_served("ApplyConfiguration"))
    }

    async fn bootstrap(
        &self,
        _: Request<machine::BootstrapRequest>,
    ) -> Result<Response<machine::BootstrapResponse>, Status> {
        Err(control_plane("bootstrap"))
    }

    async fn cpu_info(&self, request: Request<()>) -> Result<Response<machine::CpuInfoResponse>, Status> {
        self.0.cpu_info(request).await
    }

    async fn containers(
        &self,
        request: Request<machine::ContainersRequest>,
    ) -> Result<Response<machine::ContainersResponse>, Status> {
        self.0.containers(request).await
    }

    async fn copy(&self, request: Request<machine::CopyRequest>) -> Result<Response<Self::CopyStream>, Status> {
        self.0.copy(request).await
    }

    async fn disk_stats(&self, request: Request<()>) -> Result<Response<machine::DiskStatsResponse>, Status> {
        self.0.disk_stats(request).await
    }

    async fn disk_usage(
        &self,
        request: Request<machine::DiskUsageRequest>,
    ) -> Result<Response<Self::DiskUsageStream>, Status> {
        self.0.disk_usage(request).await
    }

    async fn dmesg(&self, request: Request<machine::DmesgRequest>) -> Result<Response<Self::DmesgStream>, Status> {
        self.0.dmesg(request).await
    }

    async fn etcd_forfeit_leadership(
        &self,
        _: Request<machine::EtcdForfeitLeadershipRequest>,
    ) -> Result<Response<machine::EtcdForfeitLeadershipResponse>, Status> {
        Err(control_plane("etcd"))
    }

    async fn etcd_leave_cluster(
        &self,
        _: Request<machine::EtcdLeaveClusterRequest>,
    ) -> Result<Response<machine::EtcdLeaveClusterResponse>, Status> {
        Err(control_plane("etcd"))
    }

    async fn etcd_member_list(
        &self,
        _: Request<machine::EtcdMemberListRequest>,
    ) -> Result<Response<machine::EtcdMemberListResponse>, Status> {
        Err(control_plane("etcd"))
    }

    async fn events(&self, request: Request<machine::EventsRequest>) -> Result<Response<Self::EventsStream>, Status> {
        self.0.events(request).await
    }

    async fn generate_configuration(
        &self,
        _: Request<machine::GenerateConfigurationRequest>,
    ) -> Result<Response<machine::GenerateConfigurationResponse>, Status> {
        Err(not_served("GenerateConfiguration"))
    }

    async fn hostname(&self, request: Request<()>) -> Result<Response<machine::HostnameResponse>, Status> {
        self.0.hostname(request).await
    }

    async fn image_list(
        &self,
        request: Request<machine::ImageListRequest>,
    ) -> Result<Response<Self::ImageListStream>, Status> {
        self.0.image_list(request).await
    }

    async fn image_pull(
        &self,
        request: Request<machine::ImagePullRequest>,
    ) -> Result<Response<machine::ImagePullResponse>, Status> {
        self.0.image_pull(request).await
    }

    async fn kubeconfig(&self, _: Request<()>) -> Result<Response<Self::KubeconfigStream>, Status> {
        Err(control_plane("kubeconfig"))
    }

    async fn list(&self, request: Request<machine::ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        self.0.list(request).await
    }

    async fn load_avg(&self, request: Request<()>) -> Result<Response<machine::LoadAvgResponse>, Status> {
        self.0.load_avg(request).await
    }

    async fn logs(&self, request: Request<machine::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        self.0.logs(request).await
    }

    async fn logs_containers(&self, request: Request<()>) -> Result<Response<machine::LogsContainersResponse>, Status> {
        self.0.logs_containers(request).await
    }

    async fn memory(&self, request: Request<()>) -> Result<Response<machine::MemoryResponse>, Status> {
        self.0.memory(request).await
    }

    async fn mounts(&self, request: Request<()>) -> Result<Response<machine::MountsResponse>, Status> {
        self.0.mounts(request).await
    }

    async fn network_device_stats(
        &self,
        request: Request<()>,
    ) -> Result<Response<machine::NetworkDeviceStatsResponse>, Status> {
        self.0.network_device_stats(request).await
    }

    async fn processes(&self, request: Request<()>) -> Result<Response<machine::ProcessesResponse>, Status> {
        self.0.processes(request).await
    }

    async fn read(&self, request: Request<machine::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        self.0.read(request).await
    }

    async fn reboot(&self, request: Request<()>) -> Result<Response<machine::RebootResponse>, Status> {
        self.0.reboot(request).await
    }

    async fn recover(&self, _: Request<machine::RecoverRequest>) -> Result<Response<machine::RecoverResponse>, Status> {
        Err(Status::unimplemented("not supported since Talos 0.9"))
    }

    async fn reset(&self, _: Request<machine::ResetRequest>) -> Result<Response<machine::ResetResponse>, Status> {
        Err(machine_control())
    }

    async fn restart(
        &self,
        request: Request<machine::RestartRequest>,
    ) -> Result<Response<machine::RestartResponse>, Status> {
        self.0.restart(request).await
    }

    async fn rollback(
        &self,
        _: Request<machine::RollbackRequest>,
    ) -> Result<Response<machine::RollbackResponse>, Status> {
        Err(machine_control())
    }

    async fn service_list(&self, request: Request<()>) -> Result<Response<machine::ServiceListResponse>, Status> {
        self.0.service_list(request).await
    }

    async fn service_restart(
        &self,
        request: Request<machine::ServiceRestartRequest>,
    ) -> Result<Response<machine::ServiceRestartResponse>, Status> {
        self.0.service_restart(request).await
    }

    async fn service_start(
        &self,
        request: Request<machine::ServiceStartRequest>,
    ) -> Result<Response<machine::ServiceStartResponse>, Status> {
        self.0.service_start(request).await
    }

    async fn service_stop(
        &self,
        request: Request<machine::ServiceStopRequest>,
    ) -> Result<Response<machine::ServiceStopResponse>, Status> {
        self.0.service_stop(request).await
    }

    async fn shutdown(&self, request: Request<()>) -> Result<Response<machine::ShutdownResponse>, Status> {
        self.0.shutdown(request).await
    }

    async fn stats(&self, request: Request<machine::StatsRequest>) -> Result<Response<machine::StatsResponse>, Status> {
        self.0.stats(request).await
    }

    async fn system_stat(&self, request: Request<()>) -> Result<Response<machine::SystemStatResponse>, Status> {
        self.0.system_stat(request).await
    }

    async fn upgrade(&self, _: Request<machine::UpgradeRequest>) -> Result<Response<machine::UpgradeResponse>, Status> {
        Err(machine_control())
    }

    async fn version(&self, request: Request<()>) -> Result<Response<machine::VersionResponse>, Status> {
        self.0.version(request).await
    }
}
