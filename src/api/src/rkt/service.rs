//! The methods: what comes in is checked here, what goes out is made on the bridge's threads.

use std::sync::Arc;

use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::server::public_api_server::PublicApi;
use gantry_proto::rkt::v1alpha::{
    GetInfoRequest, GetInfoResponse, GetLogsRequest, GlobalFlags, Info, InspectImageRequest, InspectImageResponse,
    InspectPodRequest, InspectPodResponse, ListImagesRequest, ListPodsRequest, ListenEventsRequest,
};
use prost::Message as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::manifests::Shows;
use super::{events, filters, images, logs, pods};
use crate::answers::{Answers, Turn};
use crate::bridge::Weight;
use crate::peer::Peer;
use crate::places::Places;
use crate::server::{Config, Shared};

/// How many streams of logs there may be.
const MOST_READERS: usize = 1024;

/// See the module.
pub(crate) struct Service {
    shared: Arc<Shared>,
    info: Info,
    answers: Answers,
    listeners: Arc<events::Listeners>,
    readers: Places,
}

impl Service {
    pub(super) fn new(shared: Arc<Shared>, config: &Config) -> Self {
        Self {
            shared,
            info: info(config),
            answers: Answers::default(),
            listeners: Arc::default(),
            readers: Places::new(MOST_READERS),
        }
    }
}

/// What does not change while the server runs.
fn info(config: &Config) -> Info {
    // The directory is there: the daemon holds its lock.
    let dir = config.options.dir.canonicalize().unwrap_or_else(|_| config.options.dir.clone());
    Info {
        rkt_version: concat!("1.30.0+gantry.", env!("CARGO_PKG_VERSION")).to_owned(),
        appc_version: gantry_engine::APPC_VERSION.to_owned(),
        api_version: "1.0.0-alpha".to_owned(),
        global_flags: Some(GlobalFlags {
            dir: dir.display().to_string(),
            system_config_dir: config.config_dir.display().to_string(),
            local_config_dir: String::new(),
            user_config_dir: String::new(),
            insecure_flags: "none".to_owned(),
            trust_keys_from_https: false,
        }),
    }
}

#[tonic::async_trait]
impl PublicApi for Service {
    type ListenEventsStream = ReceiverStream<Result<Encoded, Status>>;
    type GetLogsStream = ReceiverStream<Result<Encoded, Status>>;

    async fn get_info(&self, request: Request<GetInfoRequest>) -> Result<Response<GetInfoResponse>, Status> {
        let GetInfoRequest {} = request.into_inner();
        Ok(Response::new(GetInfoResponse { info: Some(self.info.clone()) }))
    }

    async fn list_pods(&self, request: Request<ListPodsRequest>) -> Result<Response<Encoded>, Status> {
        let (_, extensions, ListPodsRequest { filters, detail }) = request.into_parts();
        let filters = filters::pods(filters)?;
        let turn = Turn::of(&extensions).await;
        let peer = Peer::of(&extensions);
        let shows = Shows::to(peer, detail);
        let ask = self.shared.bridge.ask(peer, Weight::Heavy, move |observer| pods::list(observer, &filters, shows));
        let answer = ask.await?;
        let bytes = answer.0.len();
        self.answers.hold(turn, answer, bytes)
    }

    async fn inspect_pod(&self, request: Request<InspectPodRequest>) -> Result<Response<InspectPodResponse>, Status> {
        let (_, extensions, InspectPodRequest { id }) = request.into_parts();
        let peer = Peer::of(&extensions);
        let shows = Shows::to(peer, true);
        let ask = self.shared.bridge.ask(peer, Weight::Light, move |observer| pods::inspect(observer, &id, shows));
        let answer = ask.await?;
        let bytes = answer.encoded_len();
        self.answers.hold(Turn::free(peer), answer, bytes)
    }

    async fn list_images(&self, request: Request<ListImagesRequest>) -> Result<Response<Encoded>, Status> {
        let (_, extensions, ListImagesRequest { filters, detail }) = request.into_parts();
        let filters = filters::images(filters)?;
        let turn = Turn::of(&extensions).await;
        let peer = Peer::of(&extensions);
        let shows = Shows::to(peer, detail);
        let ask = self.shared.bridge.ask(peer, Weight::Heavy, move |observer| images::list(observer, &filters, shows));
        let answer = ask.await?;
        let bytes = answer.0.len();
        self.answers.hold(turn, answer, bytes)
    }

    async fn inspect_image(
        &self,
        request: Request<InspectImageRequest>,
    ) -> Result<Response<InspectImageResponse>, Status> {
        let (_, extensions, InspectImageRequest { id }) = request.into_parts();
        let peer = Peer::of(&extensions);
        let shows = Shows::to(peer, true);
        let ask = self.shared.bridge.ask(peer, Weight::Light, move |observer| images::inspect(observer, &id, shows));
        let answer = ask.await?;
        let bytes = answer.encoded_len();
        self.answers.hold(Turn::free(peer), answer, bytes)
    }

    async fn listen_events(
        &self,
        request: Request<ListenEventsRequest>,
    ) -> Result<Response<Self::ListenEventsStream>, Status> {
        let peer = Peer::of(request.extensions());
        let wanted = events::Wanted::of(request.into_inner())?;
        let stream = events::listen(&self.shared, &self.listeners, peer, wanted).await?;
        Ok(Response::new(stream))
    }

    async fn get_logs(&self, request: Request<GetLogsRequest>) -> Result<Response<Self::GetLogsStream>, Status> {
        let peer = Peer::of(request.extensions());
        let wanted = logs::Wanted::of(request.into_inner())?;
        let stream = logs::read(&self.shared, &self.readers, peer, wanted).await?;
        Ok(Response::new(stream))
    }
}
