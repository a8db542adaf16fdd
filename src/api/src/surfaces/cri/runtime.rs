//! `runtime.v1.RuntimeService`: checks requests here, and works on the bridge's threads.

use std::sync::Arc;

use gantry_engine::{Engine, Observer};
use gantry_proto::cri::v1::runtime_service_server::RuntimeService;
use gantry_proto::cri::v1::{
    AttachRequest, AttachResponse, ContainerEventResponse, ContainerStatsRequest, ContainerStatsResponse,
    ContainerStatusRequest, ContainerStatusResponse, CreateContainerRequest, CreateContainerResponse, ExecRequest,
    ExecResponse, ExecSyncRequest, ExecSyncResponse, GetEventsRequest, ListContainerStatsRequest,
    ListContainerStatsResponse, ListContainersRequest, ListContainersResponse, ListMetricDescriptorsRequest,
    ListMetricDescriptorsResponse, ListPodSandboxMetricsRequest, ListPodSandboxMetricsResponse, ListPodSandboxRequest,
    ListPodSandboxResponse, ListPodSandboxStatsRequest, ListPodSandboxStatsResponse, PodSandboxStatsRequest,
    PodSandboxStatsResponse, PodSandboxStatusRequest, PodSandboxStatusResponse, PortForwardRequest,
    PortForwardResponse, RemoveContainerRequest, RemoveContainerResponse, RemovePodSandboxRequest,
    RemovePodSandboxResponse, ReopenContainerLogRequest, ReopenContainerLogResponse, RunPodSandboxRequest,
    RunPodSandboxResponse, RuntimeConfigRequest, RuntimeConfigResponse, StartContainerRequest, StartContainerResponse,
    StatusRequest, StatusResponse, StopContainerRequest, StopContainerResponse, StopPodSandboxRequest,
    StopPodSandboxResponse, StreamContainerStatsRequest, StreamContainerStatsResponse, StreamContainersRequest,
    StreamContainersResponse, StreamPodSandboxMetricsRequest, StreamPodSandboxMetricsResponse,
    StreamPodSandboxStatsRequest, StreamPodSandboxStatsResponse, StreamPodSandboxesRequest, StreamPodSandboxesResponse,
    UpdateContainerResourcesRequest, UpdateContainerResourcesResponse, UpdatePodSandboxResourcesRequest,
    UpdatePodSandboxResourcesResponse, UpdateRuntimeConfigRequest, UpdateRuntimeConfigResponse, VersionRequest,
    VersionResponse,
};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::containers::{self, ContainerSelector};
use super::node_status::{self, HandlerFeatures};
use super::observe::{self, ContainerEvents, StatsFilter};
use super::sandbox::{self, CallGuard, SandboxFilter, SandboxRequest};
use super::streaming::StreamingServer;
use crate::bridge::{Bridge, Weight};
use crate::context::Context;
use crate::peer::Peer;
use crate::status::invalid_field;
use crate::supervisors::Supervisors;

/// The version of the contract between kubelet and runtime. Kubelets compare it; it is not that of the package.
const KUBELET_API_VERSION: &str = "0.1.0";
/// Maximum sandboxes or containers in a message of a stream.
const MAX_STREAMED: usize = 1000;
/// Maximum statistics or metrics of a pod in a message of a stream: a container has some 15 KiB of metrics.
const MAX_STREAMED_STATS: usize = 50;
/// The version of the protobuf package `runtime.v1`.
const RUNTIME_API_VERSION: &str = "v1";

/// See the module.
pub(super) struct CriRuntime {
    context: Arc<Context>,
    writer: Arc<Bridge<Engine>>,
    supervisors: Supervisors,
    events: Arc<ContainerEvents>,
    features: HandlerFeatures,
    streaming: StreamingServer,
}

impl CriRuntime {
    /// The service of a server. Called inside the runtime.
    pub(super) fn new(context: Arc<Context>, writer: Arc<Bridge<Engine>>, streaming: StreamingServer) -> Self {
        Self {
            events: Arc::new(ContainerEvents::new(Arc::clone(&context))),
            context,
            writer,
            streaming,
            supervisors: Supervisors::new(tokio::runtime::Handle::current()),
            features: HandlerFeatures::default(),
        }
    }
}

#[tonic::async_trait]
impl RuntimeService for CriRuntime {
    async fn version(&self, request: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        let VersionRequest { version: _any } = request.into_inner();
        Ok(Response::new(VersionResponse {
            version: KUBELET_API_VERSION.to_owned(),
            runtime_name: "gantry".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: RUNTIME_API_VERSION.to_owned(),
        }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let (_, extensions, StatusRequest { verbose }) = request.into_parts();
        let features = self.features.clone();
        let read = move |engine: &Engine| Ok(node_status::read(engine, &features, verbose));
        let status = self.writer.call(Peer::of(&extensions), Weight::Light, read).await;
        // A kubelet shows the condition of its node; a failed call only says that it knows none.
        Ok(Response::new(status.unwrap_or_else(|error| node_status::not_ready(&error))))
    }

    async fn runtime_config(
        &self,
        request: Request<RuntimeConfigRequest>,
    ) -> Result<Response<RuntimeConfigResponse>, Status> {
        let (_, extensions, RuntimeConfigRequest {}) = request.into_parts();
        let read = |engine: &Engine| Ok(node_status::runtime_config(engine));
        self.writer.call(Peer::of(&extensions), Weight::Light, read).await.map(Response::new)
    }

    /// Stores the pod CIDR, which new sandboxes get addresses of if the host has no network configuration. An empty one
    /// changes nothing.
    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Result<Response<UpdateRuntimeConfigResponse>, Status> {
        let (_, extensions, UpdateRuntimeConfigRequest { runtime_config }) = request.into_parts();
        let network = runtime_config.and_then(|config| config.network_config).unwrap_or_default();
        if !network.pod_cidr.is_empty() {
            let set = move |engine: &Engine| node_status::set_pod_cidr(engine, &network.pod_cidr);
            self.writer.call(Peer::of(&extensions), Weight::Light, set).await?;
        }
        Ok(Response::new(UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Result<Response<RunPodSandboxResponse>, Status> {
        let (_, extensions, RunPodSandboxRequest { config, runtime_handler }) = request.into_parts();
        let config = config.ok_or_else(|| invalid_field("config", "it is missing"))?;
        let request = SandboxRequest { config, runtime_handler };
        let guard = CallGuard::default();
        let (ended, supervisors) = (guard.ended(), self.supervisors.clone());
        let run = move |engine: &Engine| sandbox::run(engine, &supervisors, request, &ended);
        let id = self.writer.call(Peer::of(&extensions), Weight::Start, run).await?;
        Ok(Response::new(RunPodSandboxResponse { pod_sandbox_id: id.to_string() }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Result<Response<StopPodSandboxResponse>, Status> {
        let (_, extensions, StopPodSandboxRequest { pod_sandbox_id }) = request.into_parts();
        let stop = move |engine: &Engine| sandbox::stop(engine, &pod_sandbox_id);
        self.writer.call(Peer::of(&extensions), Weight::Stop, stop).await?;
        Ok(Response::new(StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Result<Response<RemovePodSandboxResponse>, Status> {
        let (_, extensions, RemovePodSandboxRequest { pod_sandbox_id }) = request.into_parts();
        let remove = move |engine: &Engine| sandbox::remove(engine, &pod_sandbox_id);
        self.writer.call(Peer::of(&extensions), Weight::Stop, remove).await?;
        Ok(Response::new(RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Result<Response<PodSandboxStatusResponse>, Status> {
        let (_, extensions, PodSandboxStatusRequest { pod_sandbox_id, verbose }) = request.into_parts();
        let read = move |observer: &Observer| sandbox::status(observer, &pod_sandbox_id, verbose);
        self.context.reader.call(Peer::of(&extensions), Weight::Light, read).await.map(Response::new)
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        let (_, extensions, ListPodSandboxRequest { filter }) = request.into_parts();
        let filter = SandboxFilter::parse(filter)?;
        let list = move |observer: &Observer| sandbox::list(observer, &filter);
        self.context.reader.call(Peer::of(&extensions), Weight::Heavy, list).await.map(Response::new)
    }

    async fn exec(&self, request: Request<ExecRequest>) -> Result<Response<ExecResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let url = self.streaming.exec(Peer::of(&extensions), request).await?;
        Ok(Response::new(ExecResponse { url }))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<AttachResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let url = self.streaming.attach(Peer::of(&extensions), request).await?;
        Ok(Response::new(AttachResponse { url }))
    }

    async fn port_forward(
        &self,
        request: Request<PortForwardRequest>,
    ) -> Result<Response<PortForwardResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let url = self.streaming.port_forward(Peer::of(&extensions), request).await?;
        Ok(Response::new(PortForwardResponse { url }))
    }

    /// The list of [`Self::list_pod_sandbox`] in messages of bounded size. The stream ends with the list.
    async fn stream_pod_sandboxes(
        &self,
        request: Request<StreamPodSandboxesRequest>,
    ) -> Result<Response<BoxStream<StreamPodSandboxesResponse>>, Status> {
        let request = request.map(|StreamPodSandboxesRequest { filter }| ListPodSandboxRequest { filter });
        let mut sandboxes = self.list_pod_sandbox(request).await?.into_inner().items.into_iter().peekable();
        let messages = std::iter::from_fn(move || {
            sandboxes.peek()?;
            Some(Ok(StreamPodSandboxesResponse { pod_sandboxes: sandboxes.by_ref().take(MAX_STREAMED).collect() }))
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Result<Response<CreateContainerResponse>, Status> {
        // The sandbox has its configuration already.
        let (_, extensions, CreateContainerRequest { pod_sandbox_id, config, sandbox_config: _ }) =
            request.into_parts();
        let config = config.ok_or_else(|| invalid_field("config", "it is missing"))?;
        let guard = CallGuard::default();
        let ended = guard.ended();
        let create = move |engine: &Engine| containers::create(engine, &pod_sandbox_id, config, &ended);
        let id = self.writer.call(Peer::of(&extensions), Weight::Create, create).await?;
        Ok(Response::new(CreateContainerResponse { container_id: id.to_string() }))
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Result<Response<StartContainerResponse>, Status> {
        let (_, extensions, StartContainerRequest { container_id }) = request.into_parts();
        let start = move |engine: &Engine| containers::start(engine, &container_id);
        self.writer.call(Peer::of(&extensions), Weight::Create, start).await?;
        Ok(Response::new(StartContainerResponse {}))
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Result<Response<StopContainerResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        containers::stop(&self.writer, Peer::of(&extensions), request).await?;
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Result<Response<RemoveContainerResponse>, Status> {
        let (_, extensions, RemoveContainerRequest { container_id }) = request.into_parts();
        let remove = move |engine: &Engine| containers::remove(engine, &container_id);
        self.writer.call(Peer::of(&extensions), Weight::Stop, remove).await?;
        Ok(Response::new(RemoveContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let (_, extensions, ListContainersRequest { filter }) = request.into_parts();
        let filter = ContainerSelector::parse(filter)?;
        let list = move |observer: &Observer| containers::list(observer, &filter);
        let containers = self.context.reader.call(Peer::of(&extensions), Weight::Heavy, list).await?;
        Ok(Response::new(ListContainersResponse { containers }))
    }

    /// The list of [`Self::list_containers`] in messages of bounded size. The stream ends with the list.
    async fn stream_containers(
        &self,
        request: Request<StreamContainersRequest>,
    ) -> Result<Response<BoxStream<StreamContainersResponse>>, Status> {
        let request = request.map(|StreamContainersRequest { filter }| ListContainersRequest { filter });
        let mut containers = self.list_containers(request).await?.into_inner().containers.into_iter().peekable();
        let messages = std::iter::from_fn(move || {
            containers.peek()?;
            Some(Ok(StreamContainersResponse { containers: containers.by_ref().take(MAX_STREAMED).collect() }))
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let (_, extensions, ContainerStatusRequest { container_id, verbose }) = request.into_parts();
        let read = move |observer: &Observer| containers::status(observer, &container_id, verbose);
        self.context.reader.call(Peer::of(&extensions), Weight::Light, read).await.map(Response::new)
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> Result<Response<ReopenContainerLogResponse>, Status> {
        let (_, extensions, ReopenContainerLogRequest { container_id }) = request.into_parts();
        let reopen = move |engine: &Engine| containers::reopen_log(engine, &container_id);
        self.writer.call(Peer::of(&extensions), Weight::Heavy, reopen).await?;
        Ok(Response::new(ReopenContainerLogResponse {}))
    }

    /// Annotations of the request are for plugins of runtimes.
    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Result<Response<UpdateContainerResourcesResponse>, Status> {
        let (_, extensions, UpdateContainerResourcesRequest { container_id, linux, windows, annotations: _ }) =
            request.into_parts();
        if windows.is_some() {
            return Err(invalid_field("windows", "this is a Linux host"));
        }
        let resources = linux.unwrap_or_default();
        let update = move |engine: &Engine| containers::update_resources(engine, &container_id, resources);
        self.writer.call(Peer::of(&extensions), Weight::Heavy, update).await?;
        Ok(Response::new(UpdateContainerResourcesResponse {}))
    }

    async fn container_stats(
        &self,
        request: Request<ContainerStatsRequest>,
    ) -> Result<Response<ContainerStatsResponse>, Status> {
        let (_, extensions, ContainerStatsRequest { container_id }) = request.into_parts();
        let context = Arc::clone(&self.context);
        let read = move |observer: &Observer| observe::container(&context, observer, &container_id);
        let stats = self.context.reader.call(Peer::of(&extensions), Weight::Heavy, read).await?;
        Ok(Response::new(ContainerStatsResponse { stats: Some(stats) }))
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> Result<Response<ListContainerStatsResponse>, Status> {
        let (_, extensions, ListContainerStatsRequest { filter }) = request.into_parts();
        let (context, filter) = (Arc::clone(&self.context), StatsFilter::of_containers(filter)?);
        let read = move |observer: &Observer| observe::list_containers(&context, observer, &filter);
        let stats = self.context.reader.call(Peer::of(&extensions), Weight::Heavy, read).await?;
        Ok(Response::new(ListContainerStatsResponse { stats }))
    }

    /// The list of [`Self::list_container_stats`] in messages of bounded size. The stream ends with the list.
    async fn stream_container_stats(
        &self,
        request: Request<StreamContainerStatsRequest>,
    ) -> Result<Response<BoxStream<StreamContainerStatsResponse>>, Status> {
        let request = request.map(|StreamContainerStatsRequest { filter }| ListContainerStatsRequest { filter });
        let stats = self.list_container_stats(request).await?.into_inner().stats;
        Ok(chunked(stats, |container_stats| StreamContainerStatsResponse { container_stats }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<PodSandboxStatsRequest>,
    ) -> Result<Response<PodSandboxStatsResponse>, Status> {
        let (_, extensions, PodSandboxStatsRequest { pod_sandbox_id }) = request.into_parts();
        let context = Arc::clone(&self.context);
        let read = move |observer: &Observer| observe::sandbox_stats(&context, observer, &pod_sandbox_id);
        let stats = self.context.reader.call(Peer::of(&extensions), Weight::Heavy, read).await?;
        Ok(Response::new(PodSandboxStatsResponse { stats: Some(stats) }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> Result<Response<ListPodSandboxStatsResponse>, Status> {
        let (_, extensions, ListPodSandboxStatsRequest { filter }) = request.into_parts();
        let (context, filter) = (Arc::clone(&self.context), StatsFilter::of_sandboxes(filter)?);
        let read = move |observer: &Observer| observe::list_sandboxes(&context, observer, &filter);
        let stats = self.context.reader.call(Peer::of(&extensions), Weight::Heavy, read).await?;
        Ok(Response::new(ListPodSandboxStatsResponse { stats }))
    }

    /// The list of [`Self::list_pod_sandbox_stats`] in messages of bounded size. The stream ends with the list.
    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<StreamPodSandboxStatsRequest>,
    ) -> Result<Response<BoxStream<StreamPodSandboxStatsResponse>>, Status> {
        let request = request.map(|StreamPodSandboxStatsRequest { filter }| ListPodSandboxStatsRequest { filter });
        let stats = self.list_pod_sandbox_stats(request).await?.into_inner().stats;
        Ok(chunked(stats, |pod_sandbox_stats| StreamPodSandboxStatsResponse { pod_sandbox_stats }))
    }

    async fn list_metric_descriptors(
        &self,
        request: Request<ListMetricDescriptorsRequest>,
    ) -> Result<Response<ListMetricDescriptorsResponse>, Status> {
        let ListMetricDescriptorsRequest {} = request.into_inner();
        Ok(Response::new(ListMetricDescriptorsResponse { descriptors: observe::descriptors() }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        request: Request<ListPodSandboxMetricsRequest>,
    ) -> Result<Response<ListPodSandboxMetricsResponse>, Status> {
        let (_, extensions, ListPodSandboxMetricsRequest {}) = request.into_parts();
        let context = Arc::clone(&self.context);
        let read = move |observer: &Observer| observe::list_metrics(&context, observer);
        let pod_metrics = self.context.reader.call(Peer::of(&extensions), Weight::Heavy, read).await?;
        Ok(Response::new(ListPodSandboxMetricsResponse { pod_metrics }))
    }

    /// The list of [`Self::list_pod_sandbox_metrics`] in messages of bounded size. The stream ends with the list.
    async fn stream_pod_sandbox_metrics(
        &self,
        request: Request<StreamPodSandboxMetricsRequest>,
    ) -> Result<Response<BoxStream<StreamPodSandboxMetricsResponse>>, Status> {
        let request = request.map(|StreamPodSandboxMetricsRequest {}| ListPodSandboxMetricsRequest {});
        let metrics = self.list_pod_sandbox_metrics(request).await?.into_inner().pod_metrics;
        Ok(chunked(metrics, |pod_sandbox_metrics| StreamPodSandboxMetricsResponse { pod_sandbox_metrics }))
    }

    async fn get_container_events(
        &self,
        request: Request<GetEventsRequest>,
    ) -> Result<Response<BoxStream<ContainerEventResponse>>, Status> {
        let GetEventsRequest {} = request.into_inner();
        Ok(Response::new(Box::pin(self.events.subscribe().await?)))
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Result<Response<ExecSyncResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        containers::exec_sync(&self.writer, Peer::of(&extensions), request).await.map(Response::new)
    }

    /// Records the resources, which kubelets have set in the cgroup above the sandbox's before.
    async fn update_pod_sandbox_resources(
        &self,
        request: Request<UpdatePodSandboxResourcesRequest>,
    ) -> Result<Response<UpdatePodSandboxResourcesResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let update = move |engine: &Engine| sandbox::update_resources(engine, request);
        self.writer.call(Peer::of(&extensions), Weight::Heavy, update).await?;
        Ok(Response::new(UpdatePodSandboxResourcesResponse {}))
    }
}

/// A stream of a list in messages of bounded size.
fn chunked<T, M>(list: Vec<T>, message: impl Fn(Vec<T>) -> M + Send + 'static) -> Response<BoxStream<M>>
where
    T: Send + 'static,
    M: Send + 'static,
{
    let mut list = list.into_iter().peekable();
    let messages = std::iter::from_fn(move || {
        list.peek()?;
        Some(Ok(message(list.by_ref().take(MAX_STREAMED_STATS).collect())))
    });
    Response::new(Box::pin(tokio_stream::iter(messages)))
}
