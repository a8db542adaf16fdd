//! Starts a gantryd that serves its API, and a blocking client for it.
//!
//! [`Gantry::serve`] starts one on a unix socket of its own; [`Served::api`] connects. Each call has two forms: the
//! plain one fails the test when the call fails, the one prefixed `try_` returns the status. Streams are read message
//! by message ([`Incoming`]), so a test decides when its client reads.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gantry_proto::rkt::v1alpha::public_api_client::PublicApiClient;
use gantry_proto::rkt::v1alpha::{
    Event, EventFilter, GetInfoRequest, GetLogsRequest, GetLogsResponse, Image, ImageFilter, Info, InspectImageRequest,
    InspectPodRequest, ListImagesRequest, ListPodsRequest, ListenEventsRequest, ListenEventsResponse, Pod, PodFilter,
    PodState,
};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::runtime::Runtime;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::gantry::Gantry;
use crate::output::Out;
use crate::running::Running;
use crate::wait::{DEADLINE, wait_for};

/// The size limit of a list reply, in bytes. Messages of a stream keep gRPC's default limit of 4 MiB.
const MAX_LIST_BYTES: usize = 256 << 20;

/// A running gantryd that serves its API. Dropping it before [`Served::end`] kills the process.
#[derive(Debug)]
pub struct Served {
    daemon: Running,
    address: String,
}

impl Gantry {
    /// Starts gantryd with its API on a unix socket of this gantry, and waits until it serves. Unless `args` name a
    /// configuration, gantryd marks no garbage after its first round, so an ended pod stays Exited.
    #[track_caller]
    #[must_use]
    pub fn serve(&self, args: &[&str]) -> Served {
        let address = format!("unix:{}", self.api_socket().display());
        if args.contains(&"--config") {
            return self.serve_on(&[&["--listen", &address], args].concat());
        }
        let config = self.write("gantryd.toml", "gc-interval = '1h'\n");
        self.serve_on(&[&["--listen", &address, "--config", &config], args].concat())
    }

    /// Like [`Self::serve`], but listens where `args` say; the client connects to the first address that gantryd
    /// prints.
    #[track_caller]
    #[must_use]
    pub fn serve_on(&self, args: &[&str]) -> Served {
        Served::wait_ready(self.spawn_command(&mut self.daemon(args)))
    }

    /// The command line of a gantryd without listen options.
    #[track_caller]
    #[must_use]
    pub fn daemon_with_default_listen(&self, args: &[&str]) -> Command {
        let told = self.daemon(args);
        let mut command = Command::new(told.get_program());
        let own = |arg: &&OsStr| !arg.as_encoded_bytes().starts_with(b"--listen=");
        copy_environment(&told, command.args(told.get_args().filter(own)));
        command
    }

    /// This command in a simulated next boot of the host.
    #[must_use]
    #[track_caller]
    pub fn in_next_boot(&self, model: &Command) -> Command {
        let boot = self.write_boot_id();
        let mut command = Command::new("unshare");
        let script = r#"mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@""#;
        command.args(["--mount", "--propagation=private", "sh", "-c", script, &boot]);
        copy_environment(model, command.arg(model.get_program()).args(model.get_args()));
        command
    }

    /// Runs gantry with these arguments in a simulated next boot of the host.
    #[track_caller]
    pub fn run_in_next_boot(&self, args: &[&str]) -> Out {
        self.spawn_command(&mut self.in_next_boot(&self.command(args))).wait()
    }

    /// The file with the id of the simulated boot. It is written only once, because running processes of that boot may
    /// read it at any time.
    #[track_caller]
    fn write_boot_id(&self) -> String {
        let path = self.scratch().join("boot-id");
        if path.exists() {
            return path.display().to_string();
        }
        self.write("boot-id", "7d5f6c1e-0000-4000-8000-00000000b007\n")
    }

    /// This command in a mount namespace of its own, in which a directory is on a shared mount.
    #[must_use]
    #[track_caller]
    pub fn in_shared_mount(&self, model: &Command, dir: &std::path::Path) -> Command {
        let mut command = Command::new("unshare");
        let script = r#"mount --bind "$0" "$0" && mount --make-shared "$0" && exec "$@""#;
        command.args(["--mount", "--propagation=private", "sh", "-c", script]).arg(dir);
        copy_environment(model, command.arg(model.get_program()).args(model.get_args()));
        command
    }

    /// Writes a file below the scratch directory; returns its path.
    #[track_caller]
    #[must_use]
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.scratch().join(name);
        match std::fs::write(&path, text) {
            Ok(()) => path.display().to_string(),
            Err(error) => panic!("cannot write {}: {error}", path.display()),
        }
    }
}

/// Copies the environment and the working directory of one command to another.
pub fn copy_environment(from: &Command, to: &mut Command) {
    for (name, value) in from.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
    if let Some(dir) = from.get_current_dir() {
        to.current_dir(dir);
    }
}

impl Served {
    /// Wraps a started gantryd and waits until it serves.
    #[track_caller]
    #[must_use]
    pub fn wait_ready(mut daemon: Running) -> Self {
        daemon.wait_for_stderr("info: API service running");
        let mut served = Self { daemon, address: String::new() };
        served.address = served.addresses().first().cloned().unwrap_or_default();
        served
    }

    /// The addresses that gantryd printed, in its order: `unix:/path`, `tcp:HOST:PORT`.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        let said = self.daemon.stderr();
        said.lines().filter_map(|line| line.split_once("info: serving on ")).map(|(_, to)| to.to_owned()).collect()
    }

    /// The first address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A client with a connection of its own.
    #[track_caller]
    #[must_use]
    pub fn api(&self) -> Api {
        Api::connect(&self.address)
    }

    /// The process.
    pub fn daemon(&mut self) -> &mut Running {
        &mut self.daemon
    }

    /// The resident memory of the process in KiB.
    #[must_use]
    #[track_caller]
    pub fn rss_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    /// A memory size of the process in KiB: a field of proc_pid_status(5).
    #[must_use]
    #[track_caller]
    pub fn memory_kib(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.daemon.pid());
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let found = status.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse().ok());
        found.unwrap_or_else(|| panic!("{path} has no memory size: {status}"))
    }

    /// Terminates gantryd, which must exit within 30 seconds, on a busy machine too, with code 0 and without an error.
    #[track_caller]
    pub fn end(self) -> Out {
        let begin = Instant::now();
        self.daemon.signal(crate::Signal::TERM);
        let out = self.daemon.wait().ok();
        assert!(begin.elapsed() < Duration::from_secs(30), "it took {:?} to end: {out}", begin.elapsed());
        assert!(!out.stderr.contains("error:") && !out.stderr.contains("panicked"), "{out}");
        out
    }

    /// Kills gantryd, without any clean-up.
    #[track_caller]
    pub fn kill(self) {
        self.daemon.signal(crate::Signal::KILL);
        let _ = self.daemon.wait().exits(137);
    }
}

/// A client with one connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Api {
    runtime: Arc<Runtime>,
    channel: Channel,
}

/// The URI of an address, for [`Endpoint`].
fn uri(address: &str) -> String {
    match address.strip_prefix("tcp:") {
        Some(rest) => format!("http://{rest}"),
        None => address.to_owned(),
    }
}

/// Makes `count` connections to a socket file as another user. The kernel records the credentials of the thread that
/// connects.
///
/// # Panics
/// When this process may not become that user.
#[must_use]
pub fn connect_unix_as(path: &std::path::Path, uid: u32, gid: u32, count: usize) -> Vec<UnixStream> {
    use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
    let connect = || {
        let become_user = set_thread_groups(&[])
            .and_then(|()| set_thread_gid(rustix::fs::Gid::from_raw(gid)))
            .and_then(|()| set_thread_uid(rustix::fs::Uid::from_raw(uid)));
        become_user.unwrap_or_else(|error| panic!("cannot become user {uid}: {error}"));
        (0..count).map_while(|_| UnixStream::connect(path).ok()).collect()
    };
    std::thread::scope(|scope| scope.spawn(connect).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Hands an existing connection to the first caller.
struct Once(Option<UnixStream>);

impl Service<Uri> for Once {
    type Response = TokioIo<tokio::net::UnixStream>;
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let stream = self.0.take().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected));
        let tokio = |stream: UnixStream| {
            stream.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(stream)
        };
        std::future::ready(stream.and_then(tokio).map(TokioIo::new))
    }
}

impl Api {
    /// Connects to `unix:/path` or `tcp:HOST:PORT`.
    ///
    /// # Panics
    /// When the connection fails.
    #[track_caller]
    #[must_use]
    pub fn connect(address: &str) -> Self {
        match Self::try_connect(address, None) {
            Ok(api) => api,
            Err(error) => panic!("cannot connect to {address}: {error:?}"),
        }
    }

    /// A client with a receive window of 64 KiB: until it reads, the server must buffer everything beyond that.
    #[track_caller]
    #[must_use]
    pub fn connect_with_small_window(address: &str) -> Self {
        match Self::try_connect(address, Some(65_535)) {
            Ok(api) => api,
            Err(error) => panic!("cannot connect to {address}: {error:?}"),
        }
    }

    /// Connects, with a receive window of this many bytes.
    ///
    /// # Errors
    /// When the connection fails.
    ///
    /// # Panics
    /// When the address is invalid.
    pub fn try_connect(address: &str, window: Option<u32>) -> Result<Self, tonic::transport::Error> {
        // One thread besides the test's: it answers pings while the test is busy.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = Arc::new(runtime.unwrap_or_else(|error| panic!("cannot start a runtime: {error}")));
        let endpoint = Endpoint::from_shared(uri(address)).unwrap_or_else(|error| panic!("{address}: {error}"));
        let endpoint = endpoint.initial_stream_window_size(window).initial_connection_window_size(window);
        let channel = runtime.block_on(endpoint.connect_timeout(DEADLINE).connect())?;
        Ok(Self { runtime, channel })
    }

    /// Connects to `unix:/path` as this user and group, without supplementary groups and capabilities.
    ///
    /// # Panics
    /// When the connection fails.
    #[track_caller]
    #[must_use]
    pub fn connect_as(address: &str, uid: u32, gid: u32) -> Self {
        let path = address.strip_prefix("unix:").unwrap_or_else(|| panic!("{address} is no socket file")).to_owned();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = Arc::new(runtime.unwrap_or_else(|error| panic!("cannot start a runtime: {error}")));
        let mut streams = connect_unix_as(std::path::Path::new(&path), uid, gid, 1);
        let stream = streams.pop().unwrap_or_else(|| panic!("user {uid} cannot connect to {path}"));
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = runtime.block_on(endpoint.connect_with_connector(Once(Some(stream))));
        let channel = channel.unwrap_or_else(|error| panic!("user {uid} is not answered on {path}: {error:?}"));
        Self { runtime, channel }
    }

    /// The generated client, for calls without a method here; run them with [`Self::block_on`].
    #[must_use]
    pub fn raw(&self) -> PublicApiClient<Channel> {
        PublicApiClient::new(self.channel.clone()).max_encoding_message_size(usize::MAX)
    }

    /// Drives a future to completion, within [`DEADLINE`].
    ///
    /// # Panics
    /// When the deadline passes.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self.runtime.block_on(async { tokio::time::timeout(DEADLINE, future).await }) {
            Ok(output) => output,
            Err(_) => panic!("no answer within {} s", DEADLINE.as_secs()),
        }
    }

    /// Spawns a future on this client's own thread.
    pub fn spawn<F>(&self, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.runtime.spawn(future)
    }

    #[track_caller]
    fn unary<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
        self.block_on(call).map(Response::into_inner)
    }

    /// GetInfo.
    ///
    /// # Errors
    /// The call's status.
    #[track_caller]
    pub fn try_info(&self) -> Result<Info, Status> {
        self.unary(self.raw().get_info(GetInfoRequest {})).map(|answer| answer.info.unwrap_or_default())
    }

    /// GetInfo.
    #[track_caller]
    pub fn info(&self) -> Info {
        self.try_info().unwrap_or_else(|status| panic!("GetInfo: {status}"))
    }

    /// ListPods.
    ///
    /// # Errors
    /// The call's status.
    #[track_caller]
    pub fn try_list_pods(&self, filters: Vec<PodFilter>, detail: bool) -> Result<Vec<Pod>, Status> {
        let mut client = self.raw().max_decoding_message_size(MAX_LIST_BYTES);
        self.unary(client.list_pods(ListPodsRequest { filters, detail })).map(|answer| answer.pods)
    }

    /// ListPods.
    #[track_caller]
    #[must_use]
    pub fn list_pods(&self, filters: Vec<PodFilter>, detail: bool) -> Vec<Pod> {
        self.try_list_pods(filters, detail).unwrap_or_else(|status| panic!("ListPods: {status}"))
    }

    /// All pods without detail.
    #[track_caller]
    #[must_use]
    pub fn pods(&self) -> Vec<Pod> {
        self.list_pods(Vec::new(), false)
    }

    /// The ids of the pods that match one filter.
    #[track_caller]
    #[must_use]
    pub fn pod_ids(&self, filter: PodFilter) -> Vec<String> {
        self.list_pods(vec![filter], false).into_iter().map(|pod| pod.id).collect()
    }

    /// InspectPod.
    ///
    /// # Errors
    /// The call's status.
    #[track_caller]
    pub fn try_inspect_pod(&self, id: &str) -> Result<Pod, Status> {
        let answer = self.unary(self.raw().inspect_pod(InspectPodRequest { id: id.to_owned() }))?;
        Ok(answer.pod.unwrap_or_default())
    }

    /// InspectPod.
    #[track_caller]
    #[must_use]
    pub fn inspect_pod(&self, id: &str) -> Pod {
        self.try_inspect_pod(id).unwrap_or_else(|status| panic!("InspectPod {id}: {status}"))
    }

    /// Waits until the server reports the pod in this state, and returns the pod.
    #[track_caller]
    pub fn wait_state(&self, id: &str, state: PodState) -> Pod {
        self.wait_pod(id, &format!("be {state:?}"), |pod| pod.state() == state)
    }

    /// Waits until the pod that the server reports satisfies a predicate, and returns the pod.
    #[track_caller]
    pub fn wait_pod(&self, id: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Pod {
        let one = || PodFilter { ids: vec![id.to_owned()], ..PodFilter::default() };
        wait_for(&format!("pod {id} to {what}"), || self.list_pods(vec![one()], false).into_iter().find(&holds))
    }

    /// ListImages.
    ///
    /// # Errors
    /// The call's status.
    #[track_caller]
    pub fn try_list_images(&self, filters: Vec<ImageFilter>, detail: bool) -> Result<Vec<Image>, Status> {
        let mut client = self.raw().max_decoding_message_size(MAX_LIST_BYTES);
        self.unary(client.list_images(ListImagesRequest { filters, detail })).map(|answer| answer.images)
    }

    /// ListImages.
    #[track_caller]
    #[must_use]
    pub fn list_images(&self, filters: Vec<ImageFilter>, detail: bool) -> Vec<Image> {
        self.try_list_images(filters, detail).unwrap_or_else(|status| panic!("ListImages: {status}"))
    }

    /// The ids of the images that match one filter.
    #[track_caller]
    #[must_use]
    pub fn image_ids(&self, filter: ImageFilter) -> Vec<String> {
        self.list_images(vec![filter], false).into_iter().map(|image| image.id).collect()
    }

    /// InspectImage.
    ///
    /// # Errors
    /// The call's status.
    #[track_caller]
    pub fn try_inspect_image(&self, id: &str) -> Result<Image, Status> {
        let answer = self.unary(self.raw().inspect_image(InspectImageRequest { id: id.to_owned() }))?;
        Ok(answer.image.unwrap_or_default())
    }

    /// InspectImage.
    #[track_caller]
    #[must_use]
    pub fn inspect_image(&self, id: &str) -> Image {
        self.try_inspect_image(id).unwrap_or_else(|status| panic!("InspectImage {id}: {status}"))
    }

    /// ListenEvents; returns as soon as the server sent the response headers.
    ///
    /// # Errors
    /// The call's status.
    #[track_caller]
    pub fn try_listen(&self, filter: Option<EventFilter>) -> Result<Incoming<ListenEventsResponse>, Status> {
        let stream = self.unary(self.raw().listen_events(ListenEventsRequest { filter }))?;
        Ok(Incoming::new(self.clone(), stream))
    }

    /// ListenEvents; returns as soon as the server sent the response headers.
    #[track_caller]
    #[must_use]
    pub fn listen(&self, filter: EventFilter) -> Incoming<ListenEventsResponse> {
        self.try_listen(Some(filter)).unwrap_or_else(|status| panic!("ListenEvents: {status}"))
    }

    /// GetLogs; returns as soon as the server sent the response headers.
    ///
    /// # Errors
    /// The call's status.
    #[track_caller]
    pub fn try_logs(&self, request: GetLogsRequest) -> Result<Incoming<GetLogsResponse>, Status> {
        let stream = self.unary(self.raw().get_logs(request))?;
        Ok(Incoming::new(self.clone(), stream))
    }

    /// GetLogs; returns as soon as the server sent the response headers.
    #[track_caller]
    #[must_use]
    pub fn logs(&self, request: GetLogsRequest) -> Incoming<GetLogsResponse> {
        let shown = format!("{request:?}");
        self.try_logs(request).unwrap_or_else(|status| panic!("GetLogs of {shown}: {status}"))
    }

    /// The grpc.health.v1 status of a service: 1 serving, 2 not serving.
    ///
    /// # Errors
    /// The call's status; NOT_FOUND for an unknown service.
    #[track_caller]
    pub fn health(&self, service: &str) -> Result<i32, Status> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest { service: service.to_owned() };
        self.unary(client.check(request)).map(|answer| answer.status)
    }
}

/// A streamed message that holds several items.
pub trait Batch: Message + Default {
    /// The type of the items.
    type Item;
    /// The items of this message.
    fn items(self) -> Vec<Self::Item>;
}

impl Batch for ListenEventsResponse {
    type Item = Event;

    fn items(self) -> Vec<Event> {
        self.events
    }
}

impl Batch for GetLogsResponse {
    type Item = String;

    fn items(self) -> Vec<String> {
        self.lines
    }
}

/// A server stream. Dropping it cancels the call.
#[derive(Debug)]
pub struct Incoming<T: Batch> {
    api: Api,
    stream: Streaming<T>,
    ready: VecDeque<T::Item>,
    /// The number of messages received.
    pub messages: usize,
    /// The size of the largest message, in bytes.
    pub largest: usize,
}

impl<T: Batch> Incoming<T> {
    fn new(api: Api, stream: Streaming<T>) -> Self {
        Self { api, stream, ready: VecDeque::new(), messages: 0, largest: 0 }
    }

    /// The next item, within this time; `Ok(None)` at the end of the stream, `Err(None)` on timeout.
    ///
    /// # Errors
    /// The status that ended the stream.
    pub fn next_within(&mut self, time: Duration) -> Result<Option<T::Item>, Option<Status>> {
        let end = Instant::now() + time;
        while self.ready.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            let stream = &mut self.stream;
            let came = self.api.runtime.block_on(async { tokio::time::timeout(left, stream.message()).await });
            match came {
                Err(_) => return Err(None),
                Ok(Err(status)) => return Err(Some(status)),
                Ok(Ok(None)) => return Ok(None),
                Ok(Ok(Some(message))) => {
                    self.messages += 1;
                    self.largest = self.largest.max(message.encoded_len());
                    self.ready.extend(message.items());
                }
            }
        }
        Ok(self.ready.pop_front())
    }

    /// The next item, or the end of the stream.
    ///
    /// # Errors
    /// The status that ended the stream.
    #[track_caller]
    pub fn try_next(&mut self) -> Result<Option<T::Item>, Status> {
        match self.next_within(DEADLINE) {
            Ok(item) => Ok(item),
            Err(Some(status)) => Err(status),
            Err(None) => panic!("the stream gave nothing more for {} s", DEADLINE.as_secs()),
        }
    }

    /// The next item; fails the test if the stream ends.
    #[track_caller]
    pub fn take_one(&mut self) -> T::Item {
        match self.try_next() {
            Ok(Some(item)) => item,
            Ok(None) => panic!("the stream has ended"),
            Err(status) => panic!("the stream was broken off: {status}"),
        }
    }

    /// All items until the stream ends without an error.
    #[track_caller]
    pub fn rest(&mut self) -> Vec<T::Item> {
        let mut all = Vec::new();
        loop {
            match self.try_next() {
                Ok(Some(item)) => all.push(item),
                Ok(None) => return all,
                Err(status) => panic!("the stream was broken off after {} items: {status}", all.len()),
            }
        }
    }

    /// All items up to and including the first that satisfies the predicate.
    #[track_caller]
    pub fn until(&mut self, mut last: impl FnMut(&T::Item) -> bool) -> Vec<T::Item> {
        let mut all = Vec::new();
        loop {
            let item = self.take_one();
            let over = last(&item);
            all.push(item);
            if over {
                return all;
            }
        }
    }
}

/// The value of a key in an event's data.
#[must_use]
pub fn data<'a>(event: &'a Event, key: &str) -> Option<&'a str> {
    event.data.iter().find(|pair| pair.key == key).map(|pair| pair.value.as_str())
}

/// An event's number.
///
/// # Panics
/// When the event has none.
#[must_use]
#[track_caller]
pub fn sequence(event: &Event) -> u64 {
    let found = data(event, "sequence").and_then(|text| text.parse().ok());
    found.unwrap_or_else(|| panic!("no sequence number in {event:?}"))
}
