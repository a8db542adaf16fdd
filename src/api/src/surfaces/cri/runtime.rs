//! `runtime.v1.RuntimeService`: checks requests here, and works on the bridge's threads.

use std::sync::Arc;

use gantry_engine::Engine;
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
use tracing::Instrument as _;

use super::call::Call;
use super::containers::{self, ContainerSelector};
use super::node_status::{self, HandlerFeatures};
use super::observe::{self, ContainerEvents, StatsFilter};
use super::sandbox::{self, CallGuard, SandboxFilter, SandboxRequest};
use super::streaming::StreamingServer;
use crate::bridge::{Bridge, Weight};
use crate::context::Context;
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

    fn call<M: Send + 'static>(&self, request: Request<M>) -> Call<'_, M> {
        Call::new(&self.context, &self.writer, request)
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
        let features = self.features.clone();
        let call = self.call(request);
        let status = call.write(Weight::Light, move |engine, StatusRequest { verbose }| {
            Ok(node_status::read(engine, &features, verbose))
        });
        // A kubelet shows the condition of its node; a failed call only says that it knows none.
        Ok(Response::new(status.await.unwrap_or_else(|error| node_status::not_ready(&error))))
    }

    async fn runtime_config(
        &self,
        request: Request<RuntimeConfigRequest>,
    ) -> Result<Response<RuntimeConfigResponse>, Status> {
        let call = self.call(request);
        call.write(Weight::Light, |engine, RuntimeConfigRequest {}| Ok(node_status::runtime_config(engine)))
            .await
            .map(Response::new)
    }

    /// Stores the pod CIDR, which new sandboxes get addresses of if the host has no network configuration. An empty one
    /// changes nothing.
    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Result<Response<UpdateRuntimeConfigResponse>, Status> {
        let call = self.call(request).map(|UpdateRuntimeConfigRequest { runtime_config }| {
            runtime_config.and_then(|config| config.network_config).unwrap_or_default().pod_cidr
        });
        if !call.message.is_empty() {
            call.write(Weight::Light, |engine, pod_cidr| node_status::set_pod_cidr(engine, &pod_cidr)).await?;
        }
        Ok(Response::new(UpdateRuntimeConfigResponse {}))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Result<Response<RunPodSandboxResponse>, Status> {
        let call = self.call(request).try_map(|RunPodSandboxRequest { config, runtime_handler }| {
            let config = config.ok_or_else(|| invalid_field("config", "it is missing"))?;
            Ok(SandboxRequest { config, runtime_handler })
        })?;
        let guard = CallGuard::default();
        let (ended, supervisors) = (guard.ended(), self.supervisors.clone());
        call.write(Weight::Start, move |engine, request| {
            let id = sandbox::run(engine, &supervisors, request, &ended)?;
            Ok(RunPodSandboxResponse { pod_sandbox_id: id.to_string() })
        })
        .await
        .map(Response::new)
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Result<Response<StopPodSandboxResponse>, Status> {
        let Call { peer, message, .. } = self.call(request);
        sandbox::stop(&self.writer, peer, message.pod_sandbox_id).await?;
        Ok(Response::new(StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Result<Response<RemovePodSandboxResponse>, Status> {
        let Call { peer, message, .. } = self.call(request);
        sandbox::remove(&self.writer, peer, message.pod_sandbox_id).await?;
        Ok(Response::new(RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Result<Response<PodSandboxStatusResponse>, Status> {
        let call = self.call(request);
        call.read(Weight::Light, |observer, PodSandboxStatusRequest { pod_sandbox_id, verbose }| {
            sandbox::status(observer, &pod_sandbox_id, verbose)
        })
        .await
        .map(Response::new)
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        let call = self.call(request).try_map(|ListPodSandboxRequest { filter }| SandboxFilter::parse(filter))?;
        call.read(Weight::Heavy, |observer, filter| sandbox::list(observer, &filter)).await.map(Response::new)
    }

    async fn exec(&self, request: Request<ExecRequest>) -> Result<Response<ExecResponse>, Status> {
        let Call { peer, message, .. } = self.call(request);
        let url = self.streaming.exec(peer, message).await?;
        Ok(Response::new(ExecResponse { url }))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<AttachResponse>, Status> {
        let Call { peer, message, .. } = self.call(request);
        let url = self.streaming.attach(peer, message).await?;
        Ok(Response::new(AttachResponse { url }))
    }

    async fn port_forward(
        &self,
        request: Request<PortForwardRequest>,
    ) -> Result<Response<PortForwardResponse>, Status> {
        let Call { peer, message, .. } = self.call(request);
        let url = self.streaming.port_forward(peer, message).await?;
        Ok(Response::new(PortForwardResponse { url }))
    }

    /// The list of [`Self::list_pod_sandbox`] in messages of bounded size. The stream ends with the list.
    async fn stream_pod_sandboxes(
        &self,
        request: Request<StreamPodSandboxesRequest>,
    ) -> Result<Response<BoxStream<StreamPodSandboxesResponse>>, Status> {
        let request = request.map(|StreamPodSandboxesRequest { filter }| ListPodSandboxRequest { filter });
        let sandboxes = self.list_pod_sandbox(request).await?.into_inner().items;
        Ok(chunked(sandboxes, MAX_STREAMED, |pod_sandboxes| StreamPodSandboxesResponse { pod_sandboxes }))
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Result<Response<CreateContainerResponse>, Status> {
        // The sandbox has its configuration already.
        let check = |CreateContainerRequest { pod_sandbox_id, config, sandbox_config: _ }| {
            Ok((pod_sandbox_id, config.ok_or_else(|| invalid_field("config", "it is missing"))?))
        };
        let call = self.call(request).try_map(check)?;
        let guard = CallGuard::default();
        let ended = guard.ended();
        call.write(Weight::Create, move |engine, (sandbox_id, config)| {
            let id = containers::create(engine, &sandbox_id, config, &ended)?;
            Ok(CreateContainerResponse { container_id: id.to_string() })
        })
        .await
        .map(Response::new)
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Result<Response<StartContainerResponse>, Status> {
        self.call(request)
            .write(Weight::Create, |engine, message| containers::start(engine, &message.container_id))
            .await?;
        Ok(Response::new(StartContainerResponse {}))
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Result<Response<StopContainerResponse>, Status> {
        let Call { peer, message, .. } = self.call(request);
        containers::stop(&self.writer, peer, message).await?;
        Ok(Response::new(StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Result<Response<RemoveContainerResponse>, Status> {
        self.call(request)
            .write(Weight::Stop, |engine, message| containers::remove(engine, &message.container_id))
            .await?;
        Ok(Response::new(RemoveContainerResponse {}))
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let call = self.call(request).try_map(|ListContainersRequest { filter }| ContainerSelector::parse(filter))?;
        call.read(Weight::Heavy, |observer, filter| {
            Ok(ListContainersResponse { containers: containers::list(observer, &filter)? })
        })
        .await
        .map(Response::new)
    }

    /// The list of [`Self::list_containers`] in messages of bounded size. The stream ends with the list.
    async fn stream_containers(
        &self,
        request: Request<StreamContainersRequest>,
    ) -> Result<Response<BoxStream<StreamContainersResponse>>, Status> {
        let request = request.map(|StreamContainersRequest { filter }| ListContainersRequest { filter });
        let containers = self.list_containers(request).await?.into_inner().containers;
        Ok(chunked(containers, MAX_STREAMED, |containers| StreamContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let call = self.call(request);
        call.read(Weight::Light, |observer, ContainerStatusRequest { container_id, verbose }| {
            containers::status(observer, &container_id, verbose)
        })
        .await
        .map(Response::new)
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> Result<Response<ReopenContainerLogResponse>, Status> {
        let Call { peer, message, .. } = self.call(request);
        containers::reopen_log(&self.writer, peer, message.container_id).await?;
        Ok(Response::new(ReopenContainerLogResponse {}))
    }

    /// Annotations of the request are for plugins of runtimes.
    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Result<Response<UpdateContainerResourcesResponse>, Status> {
        let check = |UpdateContainerResourcesRequest { container_id, linux, windows, annotations: _ }| match windows {
            Some(_) => Err(invalid_field("windows", "this is a Linux host")),
            None => Ok((container_id, linux.unwrap_or_default())),
        };
        let Call { peer, message: (container_id, resources), .. } = self.call(request).try_map(check)?;
        let writer = Arc::clone(&self.writer);
        // Not dropped with the call: a change that is in effect has to be recorded.
        let update = async move { containers::update_resources(&writer, peer, container_id, resources).await };
        let updated = tokio::spawn(update.in_current_span()).await;
        updated.map_err(|_| Status::internal("the change of the resources has panicked"))??;
        Ok(Response::new(UpdateContainerResourcesResponse {}))
    }

    async fn container_stats(
        &self,
        request: Request<ContainerStatsRequest>,
    ) -> Result<Response<ContainerStatsResponse>, Status> {
        let call = self.call(request);
        call.sample(|context, observer, ContainerStatsRequest { container_id }| {
            Ok(ContainerStatsResponse { stats: Some(observe::container(context, observer, &container_id)?) })
        })
        .await
        .map(Response::new)
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> Result<Response<ListContainerStatsResponse>, Status> {
        let check = |ListContainerStatsRequest { filter }| StatsFilter::of_containers(filter);
        let call = self.call(request).try_map(check)?;
        call.sample(|context, observer, filter| {
            Ok(ListContainerStatsResponse { stats: observe::list_containers(context, observer, &filter)? })
        })
        .await
        .map(Response::new)
    }

    /// The list of [`Self::list_container_stats`] in messages of bounded size. The stream ends with the list.
    async fn stream_container_stats(
        &self,
        request: Request<StreamContainerStatsRequest>,
    ) -> Result<Response<BoxStream<StreamContainerStatsResponse>>, Status> {
        let request = request.map(|StreamContainerStatsRequest { filter }| ListContainerStatsRequest { filter });
        let stats = self.list_container_stats(request).await?.into_inner().stats;
        Ok(chunked(stats, MAX_STREAMED_STATS, |container_stats| StreamContainerStatsResponse { container_stats }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<PodSandboxStatsRequest>,
    ) -> Result<Response<PodSandboxStatsResponse>, Status> {
        let call = self.call(request);
        call.sample(|context, observer, PodSandboxStatsRequest { pod_sandbox_id }| {
            Ok(PodSandboxStatsResponse { stats: Some(observe::sandbox_stats(context, observer, &pod_sandbox_id)?) })
        })
        .await
        .map(Response::new)
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> Result<Response<ListPodSandboxStatsResponse>, Status> {
        let check = |ListPodSandboxStatsRequest { filter }| StatsFilter::of_sandboxes(filter);
        let call = self.call(request).try_map(check)?;
        call.sample(|context, observer, filter| {
            Ok(ListPodSandboxStatsResponse { stats: observe::list_sandboxes(context, observer, &filter)? })
        })
        .await
        .map(Response::new)
    }

    /// The list of [`Self::list_pod_sandbox_stats`] in messages of bounded size. The stream ends with the list.
    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<StreamPodSandboxStatsRequest>,
    ) -> Result<Response<BoxStream<StreamPodSandboxStatsResponse>>, Status> {
        let request = request.map(|StreamPodSandboxStatsRequest { filter }| ListPodSandboxStatsRequest { filter });
        let stats = self.list_pod_sandbox_stats(request).await?.into_inner().stats;
        Ok(chunked(stats, MAX_STREAMED_STATS, |pod_sandbox_stats| StreamPodSandboxStatsResponse { pod_sandbox_stats }))
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
        let call = self.call(request);
        call.sample(|context, observer, ListPodSandboxMetricsRequest {}| {
            Ok(ListPodSandboxMetricsResponse { pod_metrics: observe::list_metrics(context, observer)? })
        })
        .await
        .map(Response::new)
    }

    /// The list of [`Self::list_pod_sandbox_metrics`] in messages of bounded size. The stream ends with the list.
    async fn stream_pod_sandbox_metrics(
        &self,
        request: Request<StreamPodSandboxMetricsRequest>,
    ) -> Result<Response<BoxStream<StreamPodSandboxMetricsResponse>>, Status> {
        let request = request.map(|StreamPodSandboxMetricsRequest {}| ListPodSandboxMetricsRequest {});
        let metrics = self.list_pod_sandbox_metrics(request).await?.into_inner().pod_metrics;
        Ok(chunked(metrics, MAX_STREAMED_STATS, |pod_sandbox_metrics| StreamPodSandboxMetricsResponse {
            pod_sandbox_metrics,
        }))
    }

    async fn get_container_events(
        &self,
        request: Request<GetEventsRequest>,
    ) -> Result<Response<BoxStream<ContainerEventResponse>>, Status> {
        let GetEventsRequest {} = request.into_inner();
        Ok(Response::new(Box::pin(self.events.subscribe().await?)))
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> Result<Response<ExecSyncResponse>, Status> {
        let Call { peer, message, .. } = self.call(request);
        containers::exec_sync(&self.writer, peer, message).await.map(Response::new)
    }

    /// Records the resources, which kubelets have set in the cgroup above the sandbox's before.
    async fn update_pod_sandbox_resources(
        &self,
        request: Request<UpdatePodSandboxResourcesRequest>,
    ) -> Result<Response<UpdatePodSandboxResourcesResponse>, Status> {
        self.call(request).write(Weight::Heavy, sandbox::update_resources).await?;
        Ok(Response::new(UpdatePodSandboxResourcesResponse {}))
    }
}

/// A stream of a list in messages of at most `max` elements.
fn chunked<T, M>(list: Vec<T>, max: usize, message: impl Fn(Vec<T>) -> M + Send + 'static) -> Response<BoxStream<M>>
where
    T: Send + 'static,
    M: Send + 'static,
{
    let mut list = list.into_iter().peekable();
    let messages = std::iter::from_fn(move || {
        list.peek()?;
        Some(Ok(message(list.by_ref().take(max).collect())))
    });
    Response::new(Box::pin(tokio_stream::iter(messages)))
}
