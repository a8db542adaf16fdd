//! A server on a unix socket with a store and a client. Running pods are tested from outside; two surfaces side by side
//! in `surface_tests.rs`.

use std::path::{Path, PathBuf};

use gantry_engine::{CommitWatcher, Engine, Note, Observer, Options, Prepare, Progress, PullPolicy, SampleCache};
use gantry_model::spec::{AppSpec, PodSpec};
use gantry_model::{AppName, PodId};
use gantry_proto::rkt::v1alpha::public_api_client::PublicApiClient;
use gantry_proto::rkt::v1alpha::{self as wire, EventType};
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::*;
use crate::listen::{Address, Listener};
use crate::live_settings::{ApiSettings, LiveSettings};
use crate::rkt;

/// The time limit of every operation on a slow machine.
const DEADLINE: Duration = Duration::from_secs(20);

struct Quiet;

impl Progress for Quiet {
    fn notify(&self, _note: Note) {}
}

/// A data directory with a server, and a runtime for clients.
struct Home {
    dir: tempfile::TempDir,
    engine: Engine,
    server: Option<Running>,
    runtime: tokio::runtime::Runtime,
}

impl Home {
    fn new() -> Self {
        Self::with(|_| Vec::new())
    }

    /// With further surfaces, whose sockets are in this directory.
    fn with(further: impl FnOnce(&Path) -> Vec<crate::Endpoint>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::open(Options::new(dir.path().join("data"))).unwrap();
        let options = engine.options().clone();
        let commits = CommitWatcher::start(&options).unwrap();
        let config = Config {
            settings: LiveSettings::new(ApiSettings { options, time_server: None, sample_interval: DEADLINE }),
            commits,
            config_dir: "/etc/gantry".into(),
            reconciles: true,
            daemon_log: Arc::default(),
            samples: Arc::new(SampleCache::new(64)),
            metrics: Arc::default(),
        };
        let listeners = Listener::open(&Address::Unix(dir.path().join("api.sock")), rkt::SOCKET_ACCESS).unwrap();
        let mut endpoints = further(dir.path());
        endpoints.push(rkt::endpoint(listeners));
        let server = serve(config, endpoints, Vec::new()).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { dir, engine, server: Some(server), runtime }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// Runs a test's client, which must end.
    fn client<T>(&self, test: impl AsyncFnOnce(Channel) -> T) -> T {
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket().display())).unwrap();
        self.runtime.block_on(async {
            let channel = endpoint.connect().await.unwrap();
            tokio::time::timeout(DEADLINE, test(channel)).await.unwrap()
        })
    }

    /// Imports an image of this name whose only file is `text`; makes one event.
    fn image(&self, name: &str, text: &str) -> String {
        let layer = gantry_fixtures::Layer::new().file("bin/app", text, 0o755);
        let image = gantry_fixtures::Image::builder().layer(layer).entrypoint(&["/bin/app"]).build().unwrap();
        let archive = self.dir.path().join("image.tar");
        gantry_fixtures::write_oci_archive(&archive, &[(&image, name)]).unwrap();
        let reference = format!("oci-archive:{}", archive.display()).parse().unwrap();
        self.engine.fetch(&reference, PullPolicy::New, None, &Quiet).unwrap();
        image.id()
    }

    /// Prepares a pod of one app; makes one event.
    fn pod(&self, image: &str, app: &str) -> PodId {
        let app = AppSpec::new(app.parse().unwrap(), gantry_model::RequestedImage::new(image));
        let spec = PodSpec { apps: vec![app], ..PodSpec::default() };
        let prepare = Prepare::new(spec, PullPolicy::Never, &Quiet).unwrap();
        self.engine.create(prepare).unwrap().prepare().unwrap()
    }
}

#[path = "surface_tests.rs"]
mod surfaces;

fn refused<T>(answer: Result<T, tonic::Status>) -> (Code, String) {
    let status = answer.err().unwrap();
    (status.code(), status.message().to_owned())
}

#[test]
fn info_health_and_reflection_are_served() {
    let home = Home::new();
    let dir = home.engine.options().dir.canonicalize().unwrap().display().to_string();
    home.client(async |channel| {
        let info = PublicApiClient::new(channel.clone()).get_info(wire::GetInfoRequest {}).await.unwrap();
        let info = info.into_inner().info.unwrap();
        assert_eq!(info.rkt_version, format!("1.30.0+gantry.{}", env!("CARGO_PKG_VERSION")));
        assert_eq!((info.appc_version.as_str(), info.api_version.as_str()), ("0.8.11", "1.0.0-alpha"));
        let flags = info.global_flags.unwrap();
        assert_eq!(
            (flags.dir, flags.system_config_dir.as_str(), flags.insecure_flags.as_str()),
            (dir, "/etc/gantry", "none")
        );

        let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
        for (service, want) in
            [("", Ok(1)), ("v1alpha.PublicAPI", Ok(1)), ("gantryd", Ok(1)), ("x", Err(Code::NotFound))]
        {
            let answer = health.check(tonic_health::pb::HealthCheckRequest { service: service.to_owned() }).await;
            assert_eq!(answer.map(|it| it.into_inner().status).map_err(|it| it.code()), want, "{service}");
        }

        use tonic_reflection::pb::v1 as reflection;
        let mut client = reflection::server_reflection_client::ServerReflectionClient::new(channel);
        let ask = reflection::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(reflection::server_reflection_request::MessageRequest::ListServices(String::new())),
        };
        let mut answers = client.server_reflection_info(tokio_stream::once(ask)).await.unwrap().into_inner();
        let answer = answers.next().await.unwrap().unwrap().message_response.unwrap();
        let reflection::server_reflection_response::MessageResponse::ListServicesResponse(list) = answer else {
            panic!("{answer:?}");
        };
        let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
        for name in ["v1alpha.PublicAPI", "grpc.health.v1.Health"] {
            assert!(names.iter().any(|it| it == name), "{names:?}");
        }
    });
}

#[test]
fn pods_and_images_are_listed() {
    let home = Home::new();
    let image = home.image("one", "text");
    let pods = [home.pod(&image, "web"), home.pod(&image, "job")];
    let mut ids = pods.map(|id| id.to_string());
    ids.sort();
    home.client(async |channel| {
        let mut client = PublicApiClient::new(channel);
        let list = |filters: Vec<wire::PodFilter>, detail| wire::ListPodsRequest { filters, detail };
        let all = client.list_pods(list(vec![], false)).await.unwrap().into_inner().pods;
        assert_eq!(all.iter().map(|pod| pod.id.clone()).collect::<Vec<_>>(), ids);
        let pod = all.iter().find(|pod| pod.id == pods[0].to_string()).unwrap();
        assert_eq!((pod.state(), pod.pid, pod.manifest.len(), pod.started_at), (wire::PodState::Prepared, -1, 0, 0));
        assert!(pod.created_at > 1_700_000_000_000_000_000);
        let app = &pod.apps[0];
        assert_eq!((app.name.as_str(), app.state(), app.exit_code), ("web", wire::AppState::Undefined, 0));
        let of_app = app.image.as_ref().unwrap();
        assert_eq!(
            (of_app.id.as_str(), of_app.base_format.as_ref().unwrap().r#type()),
            (image.as_str(), wire::ImageType::Oci)
        );

        let by_app = wire::PodFilter { app_names: vec!["job".to_owned()], ..wire::PodFilter::default() };
        let found = client.list_pods(list(vec![by_app], true)).await.unwrap().into_inner().pods;
        assert_eq!(found.len(), 1);
        assert!(found[0].id == pods[1].to_string() && found[0].manifest.starts_with(b"{"));

        let mut inspect = async |id: &str| client.inspect_pod(wire::InspectPodRequest { id: id.to_owned() }).await;
        let upper = ids[0].to_uppercase();
        let one = inspect(&upper[..35]).await.unwrap().into_inner().pod.unwrap();
        assert!(one.id == ids[0] && !one.manifest.is_empty());
        for (id, code, text) in [
            ("", Code::InvalidArgument, "unable to resolve UUID: UUID cannot be empty"),
            ("FFFFFFFFFF", Code::NotFound, "unable to resolve UUID: no matches found for \"ffffffffff\""),
            ("x\n", Code::NotFound, "unable to resolve UUID: no matches found for \"x\\n\""),
        ] {
            assert_eq!(refused(inspect(id).await), (code, text.to_owned()));
        }
        let (code, text) = refused(inspect(&"Z".repeat(1 << 19)).await);
        assert!(code == Code::NotFound && text.len() < 500, "{code} {text}");

        let images = wire::ListImagesRequest { filters: vec![], detail: false };
        let images = client.list_images(images).await.unwrap().into_inner().images;
        assert_eq!((images.len(), images[0].id.as_str(), images[0].manifest.len()), (1, image.as_str(), 0));
        let one = client.inspect_image(wire::InspectImageRequest { id: image.clone() }).await.unwrap();
        let one = one.into_inner().image.unwrap();
        assert!(one.manifest.starts_with(b"{") && one.size == images[0].size && one.name == images[0].name);
        let short = client.inspect_image(wire::InspectImageRequest { id: image[7..20].to_owned() }).await;
        assert_eq!(short.unwrap().into_inner().image.unwrap().id, image);
        let none = client.inspect_image(wire::InspectImageRequest { id: "sha256:xyz".to_owned() }).await;
        let text = "ACI info not found with blob key \"sha256:xyz\"".to_owned();
        assert_eq!(refused(none), (Code::NotFound, text));

        let bad = wire::PodFilter { states: vec![42], ..wire::PodFilter::default() };
        assert_eq!(refused(client.list_pods(list(vec![bad], false)).await).0, Code::InvalidArgument);
        let big = wire::PodFilter { ids: vec!["x".repeat(2 << 20)], ..wire::PodFilter::default() };
        assert_eq!(refused(client.list_pods(list(vec![big], false)).await).0, Code::ResourceExhausted);
    });
}

type Events = tonic::Streaming<wire::ListenEventsResponse>;

async fn listen(client: &mut PublicApiClient<Channel>, filter: wire::EventFilter) -> Events {
    client.listen_events(wire::ListenEventsRequest { filter: Some(filter) }).await.unwrap().into_inner()
}

/// The next events, at least this many: their numbers and types.
async fn take(events: &mut Events, count: usize) -> Vec<(u64, EventType)> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let message = events.next().await.unwrap().unwrap();
        taken.extend(message.events.iter().map(|event| {
            let number = event.data.iter().find(|pair| pair.key == "sequence").unwrap();
            (number.value.parse().unwrap(), event.r#type())
        }));
    }
    taken
}

fn seconds() -> i64 {
    gantry_engine::now().seconds()
}

#[test]
fn past_and_future_events_are_streamed() {
    let home = Home::new();
    let image = home.image("one", "1");
    home.client(async |channel| {
        let mut client = PublicApiClient::new(channel);
        let past = || wire::EventFilter { since_time: seconds() - 1000, ..wire::EventFilter::default() };
        let mut all = listen(&mut client, past()).await;
        let mut new = listen(&mut client, wire::EventFilter::default()).await;
        let pods = wire::EventFilter { types: vec![EventType::PodPrepared.into()], ..past() };
        let mut pods = listen(&mut client, pods).await;
        assert_eq!(take(&mut all, 1).await, [(1, EventType::ImageImported)]);
        let mut want = Vec::new();
        for round in 0..5 {
            home.pod(&image, "web");
            home.image(&format!("image{round}"), &format!("text {round}"));
            want.extend([(2 * round + 2, EventType::PodPrepared), (2 * round + 3, EventType::ImageImported)]);
        }
        assert_eq!(take(&mut all, 10).await, want);
        assert_eq!(take(&mut new, 10).await, want);
        want.retain(|(_, kind)| *kind == EventType::PodPrepared);
        assert_eq!(take(&mut pods, 5).await, want);

        // All of the past, then the end.
        let mut over = listen(&mut client, wire::EventFilter { until_time: seconds() + 1, ..past() }).await;
        assert_eq!(take(&mut over, 11).await.len(), 11);
        assert!(over.next().await.is_none());
        let nothing = wire::EventFilter { until_time: 1, ..wire::EventFilter::default() };
        assert!(listen(&mut client, nothing).await.next().await.is_none());

        let unknown = wire::EventFilter { types: vec![10], ..wire::EventFilter::default() };
        let unknown = client.listen_events(wire::ListenEventsRequest { filter: Some(unknown) }).await;
        assert_eq!(refused(unknown).0, Code::InvalidArgument);
    });
}

#[test]
fn logs_of_a_pod_are_streamed() {
    let home = Home::new();
    let image = home.image("one", "1");
    let id = home.pod(&image, "web");
    let view = Observer::open(home.engine.options().clone()).unwrap().pod(&id.into()).unwrap();
    let log = view.log(&"web".parse::<AppName>().unwrap(), 0);
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    let line = |n: u32| format!("2016-05-19T10:00:{:02}.{n:09}Z stdout F line {n}\n", n / 10_000);
    std::fs::write(&log, (0..50_000).map(line).collect::<String>()).unwrap();
    home.client(async |channel| {
        let mut client = PublicApiClient::new(channel);
        let ask = wire::GetLogsRequest { pod_id: id.to_string(), ..wire::GetLogsRequest::default() };
        let mut stream = client.get_logs(ask.clone()).await.unwrap().into_inner();
        let mut lines = Vec::new();
        while let Some(message) = stream.next().await {
            lines.extend(message.unwrap().lines);
        }
        assert_eq!(lines.len(), 50_000);
        assert_eq!(lines[12_345], "2016-05-19 10:00:01.000012345 +0000 UTC MESSAGE=line 12345");

        let last = wire::GetLogsRequest { lines: 2, until_time: 1_463_652_002, ..ask.clone() };
        let mut stream = client.get_logs(last).await.unwrap().into_inner();
        let lines = stream.next().await.unwrap().unwrap().lines;
        assert!(lines.len() == 2 && lines[1].ends_with("MESSAGE=line 19999"), "{lines:?}");
        assert!(stream.next().await.is_none());

        for (ask, code, text) in [
            (wire::GetLogsRequest { app_name: "job".to_owned(), ..ask.clone() }, Code::NotFound, "no app 'job'"),
            (wire::GetLogsRequest { app_name: "No\n".to_owned(), ..ask.clone() }, Code::NotFound, "no app 'No\\n'"),
            (wire::GetLogsRequest { pod_id: "f".repeat(36), ..ask.clone() }, Code::NotFound, "no matches found"),
            (wire::GetLogsRequest { lines: -1, ..ask }, Code::InvalidArgument, "lines"),
        ] {
            let (found, said) = refused(client.get_logs(ask).await);
            assert!(found == code && said.contains(text), "{found} {said}");
        }
    });
}

#[test]
fn draining_ends_streams_and_removes_the_socket() {
    let mut home = Home::new();
    let image = home.image("one", "1");
    let id = home.pod(&image, "web");
    let (mut events, mut logs) = home.client(async |channel| {
        let mut client = PublicApiClient::new(channel);
        let events = listen(&mut client, wire::EventFilter::default()).await;
        let ask = wire::GetLogsRequest { pod_id: id.to_string(), follow: true, ..wire::GetLogsRequest::default() };
        (events, client.get_logs(Request::new(ask)).await.unwrap().into_inner())
    });
    let begin = std::time::Instant::now();
    home.server.take().unwrap().drain(Duration::from_secs(10)).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert!(!home.socket().exists());
    home.runtime.block_on(async {
        for status in [events.message().await.unwrap_err(), logs.message().await.unwrap_err()] {
            assert_eq!((status.code(), status.message()), (Code::Unavailable, "gantryd is ending: ask again"));
        }
    });
}
