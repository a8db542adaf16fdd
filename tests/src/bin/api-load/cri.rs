//! The Kubernetes CRI, as a kubelet calls it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gantry_proto::cri::v1::{
    ContainerConfig, ContainerMetadata, ContainerStatusRequest, ContainerStatusResponse, CreateContainerRequest,
    CreateContainerResponse, ImageSpec, LinuxPodSandboxConfig, ListContainerStatsRequest, ListContainerStatsResponse,
    ListContainersRequest, ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse, PodSandboxConfig,
    PodSandboxMetadata, PodSandboxStatusRequest, PodSandboxStatusResponse, PullImageRequest, PullImageResponse,
    RemoveContainerRequest, RemoveContainerResponse, RemovePodSandboxRequest, RemovePodSandboxResponse,
    RunPodSandboxRequest, RunPodSandboxResponse, StartContainerRequest, StartContainerResponse, StatusRequest,
    StatusResponse, StopContainerRequest, StopContainerResponse, StopPodSandboxRequest, StopPodSandboxResponse,
};
use serde_json::{Map, Value, json};
use tonic::transport::Channel;

use crate::node::unary;
use crate::{connect, nanos};

/// The grace period of a stop in seconds, as critest's benchmark has it.
const GRACE: i64 = 60;

/// A client, and the durations of its calls in nanoseconds.
struct Kubelet {
    channel: Channel,
    image: String,
    times: Map<String, Value>,
}

macro_rules! calls {
    ($($name:ident: $service:literal, $method:literal, $request:ty => $response:ty;)+) => {
        impl Kubelet {
            $(async fn $name(&mut self, request: $request) -> Result<$response> {
                let begin = Instant::now();
                let path = concat!("/runtime.v1.", $service, "/", $method);
                let reply = unary(&self.channel, path, request).await.context($method)?;
                self.record($method, nanos(begin.elapsed()));
                Ok(reply)
            })+
        }
    };
}

calls! {
    pull_image: "ImageService", "PullImage", PullImageRequest => PullImageResponse;
    status: "RuntimeService", "Status", StatusRequest => StatusResponse;
    run_pod: "RuntimeService", "RunPodSandbox", RunPodSandboxRequest => RunPodSandboxResponse;
    pod_status: "RuntimeService", "PodSandboxStatus", PodSandboxStatusRequest => PodSandboxStatusResponse;
    stop_pod: "RuntimeService", "StopPodSandbox", StopPodSandboxRequest => StopPodSandboxResponse;
    remove_pod: "RuntimeService", "RemovePodSandbox", RemovePodSandboxRequest => RemovePodSandboxResponse;
    list_pods: "RuntimeService", "ListPodSandbox", ListPodSandboxRequest => ListPodSandboxResponse;
    create: "RuntimeService", "CreateContainer", CreateContainerRequest => CreateContainerResponse;
    start: "RuntimeService", "StartContainer", StartContainerRequest => StartContainerResponse;
    container_status: "RuntimeService", "ContainerStatus", ContainerStatusRequest => ContainerStatusResponse;
    stop: "RuntimeService", "StopContainer", StopContainerRequest => StopContainerResponse;
    remove: "RuntimeService", "RemoveContainer", RemoveContainerRequest => RemoveContainerResponse;
    list: "RuntimeService", "ListContainers", ListContainersRequest => ListContainersResponse;
    stats: "RuntimeService", "ListContainerStats", ListContainerStatsRequest => ListContainerStatsResponse;
}

fn sandbox_config(number: usize) -> PodSandboxConfig {
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: format!("bench-{number}"),
            uid: format!("6733c088-{number}"),
            namespace: "bench".into(),
            attempt: 0,
        }),
        linux: Some(LinuxPodSandboxConfig::default()),
        ..PodSandboxConfig::default()
    }
}

impl Kubelet {
    async fn connect(address: &str, image: &str) -> Result<Self> {
        Ok(Self { channel: connect(address).await?, image: image.to_owned(), times: Map::new() })
    }

    fn record(&mut self, method: &str, ns: u64) {
        let samples = self.times.entry(method).or_insert_with(|| json!([]));
        if let Value::Array(samples) = samples {
            samples.push(ns.into());
        }
    }

    /// The image that containers are made of, by the id that the pull returned.
    async fn pull(&mut self) -> Result<()> {
        let image = Some(ImageSpec { image: self.image.clone(), ..ImageSpec::default() });
        self.image = self.pull_image(PullImageRequest { image, ..PullImageRequest::default() }).await?.image_ref;
        Ok(())
    }

    async fn run_sandbox(&mut self, number: usize) -> Result<String> {
        let config = Some(sandbox_config(number));
        let request = RunPodSandboxRequest { config, runtime_handler: String::new() };
        Ok(self.run_pod(request).await?.pod_sandbox_id)
    }

    async fn end_sandbox(&mut self, id: &str) -> Result<()> {
        self.stop_pod(StopPodSandboxRequest { pod_sandbox_id: id.into() }).await?;
        self.remove_pod(RemovePodSandboxRequest { pod_sandbox_id: id.into() }).await?;
        Ok(())
    }

    /// A container that sleeps until it is stopped; not started.
    async fn create_container(&mut self, sandbox: &str, number: usize, name: usize) -> Result<String> {
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: format!("app-{name}"), attempt: 0 }),
            image: Some(ImageSpec { image: self.image.clone(), ..ImageSpec::default() }),
            command: ["/bin/app", "sleep", "forever"].map(str::to_owned).to_vec(),
            ..ContainerConfig::default()
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(sandbox_config(number)),
        };
        Ok(self.create(request).await?.container_id)
    }

    async fn start_container(&mut self, id: &str) -> Result<()> {
        self.start(StartContainerRequest { container_id: id.into() }).await.map(drop)
    }
}

/// Pods from run to removal, and a container in a pod of its own from creation to removal, ROUNDS times one after the
/// other; the first two are not counted.
pub(crate) async fn lives(address: &str, rounds: usize, image: &str) -> Result<Value> {
    const WARM: usize = 2;
    let mut kubelet = Kubelet::connect(address, image).await?;
    kubelet.pull().await?;
    let (mut pods, mut containers) = (Vec::new(), Vec::new());
    for round in 0..WARM + rounds {
        if round == WARM {
            kubelet.times.clear();
        }
        let begin = Instant::now();
        let pod = kubelet.run_sandbox(round).await?;
        kubelet.pod_status(PodSandboxStatusRequest { pod_sandbox_id: pod.clone(), verbose: true }).await?;
        kubelet.end_sandbox(&pod).await?;
        let took = nanos(begin.elapsed());
        let pod = kubelet.run_sandbox(round).await?;
        let begin = Instant::now();
        let id = kubelet.create_container(&pod, round, 0).await?;
        kubelet.start_container(&id).await?;
        kubelet.container_status(ContainerStatusRequest { container_id: id.clone(), verbose: true }).await?;
        kubelet.stop(StopContainerRequest { container_id: id.clone(), timeout: GRACE }).await?;
        kubelet.remove(RemoveContainerRequest { container_id: id.clone() }).await?;
        let container = nanos(begin.elapsed());
        kubelet.end_sandbox(&pod).await?;
        if round >= WARM {
            pods.push(took);
            containers.push(container);
        }
    }
    Ok(json!({ "ns": kubelet.times, "pods": pods, "containers": containers }))
}

/// Runs PODS sandboxes with CONTAINERS containers each; starts them if START is `start`.
pub(crate) async fn fill(address: &str, pods: usize, containers: usize, image: &str, start: bool) -> Result<Value> {
    let mut kubelet = Kubelet::connect(address, image).await?;
    kubelet.pull().await?;
    for number in 0..pods {
        let pod = kubelet.run_sandbox(number).await?;
        for name in 0..containers {
            let id = kubelet.create_container(&pod, number, name).await?;
            if start {
                kubelet.start_container(&id).await?;
            }
        }
    }
    Ok(json!({ "ns": kubelet.times }))
}

/// ListContainers and ListPodSandbox without a filter, ROUNDS times.
pub(crate) async fn lists(address: &str, rounds: usize) -> Result<Value> {
    const WARM: usize = 2;
    let mut kubelet = Kubelet::connect(address, "").await?;
    let mut rows = [0, 0];
    for round in 0..WARM + rounds {
        if round == WARM {
            kubelet.times.clear();
        }
        rows[0] = kubelet.list(ListContainersRequest::default()).await?.containers.len();
        rows[1] = kubelet.list_pods(ListPodSandboxRequest::default()).await?.items.len();
    }
    Ok(json!({ "ns": kubelet.times, "rows": rows }))
}

/// The calls of a kubelet to an idle node, for SECONDS: lists every second, the state of the runtime every five,
/// statistics every ten.
pub(crate) async fn poll(address: &str, seconds: u64) -> Result<Value> {
    let mut kubelet = Kubelet::connect(address, "").await?;
    let mut interval = tokio::time::interval(Duration::from_secs(1));
    for second in 0..seconds {
        interval.tick().await;
        kubelet.list_pods(ListPodSandboxRequest::default()).await?;
        kubelet.list(ListContainersRequest::default()).await?;
        if second % 5 == 0 {
            kubelet.status(StatusRequest::default()).await?;
        }
        if second % 10 == 0 {
            kubelet.stats(ListContainerStatsRequest::default()).await?;
        }
    }
    Ok(json!({ "ns": kubelet.times }))
}

/// Ends all sandboxes.
pub(crate) async fn clear(address: &str) -> Result<Value> {
    let mut kubelet = Kubelet::connect(address, "").await?;
    let pods = kubelet.list_pods(ListPodSandboxRequest::default()).await?.items;
    for pod in &pods {
        kubelet.end_sandbox(&pod.id).await?;
    }
    let left = kubelet.list_pods(ListPodSandboxRequest::default()).await?.items.len();
    ensure!(left == 0, "{left} sandboxes are left");
    Ok(json!({ "ns": kubelet.times }))
}
