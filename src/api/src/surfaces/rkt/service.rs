//! The methods: check requests here, make responses on the bridge's threads. Lists are encoded there, too: encoding a
//! long one on a thread of the server would delay the calls of other clients. Only a response to InspectPod that is
//! known and still holds is sent from here.

use std::sync::Arc;

use gantry_engine::Observer;
use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::server::public_api_server::PublicApi;
use gantry_proto::rkt::v1alpha::{
    GetInfoRequest, GetInfoResponse, GetLogsRequest, GlobalFlags, Info, InspectImageRequest, InspectImageResponse,
    InspectPodRequest, ListImagesRequest, ListPodsRequest, ListenEventsRequest,
};
use prost::Message as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::detail::Detail;
use super::pod_cache::{self, PodCache};
use super::{events, filters, images, logs, pods};
use crate::bridge::Weight;
use crate::context::{Config, Context};
use crate::peer::Peer;
use crate::quota::Quota;
use crate::responses::{ListPermit, ResponseBudget};

/// Maximum streams of logs.
const MAX_LOG_STREAMS: usize = 1024;

/// See the module.
pub(crate) struct Service {
    info: Info,
    budget: ResponseBudget,
    subscribers: Arc<events::Subscribers>,
    log_streams: Quota,
    pods: Arc<PodCache>,
    context: Arc<Context>,
}

impl Service {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            info: info(&context.config),
            budget: ResponseBudget::default(),
            subscribers: Arc::new(events::Subscribers::new(&context.hub)),
            log_streams: Quota::new(MAX_LOG_STREAMS),
            // It only opens the database, whose directory stays the same.
            pods: Arc::new(PodCache::new(context.config.settings.current().options.clone())),
            context,
        }
    }
}

/// The response to GetInfo, which does not change while the server runs.
fn info(config: &Config) -> Info {
    // The directory exists: gantryd holds its lock.
    let dir = config.settings.current().options.dir.clone();
    let dir = dir.canonicalize().unwrap_or(dir);
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
        let permit = ListPermit::acquire(&extensions).await;
        let peer = Peer::of(&extensions);
        let detail = Detail::for_peer(peer, detail);
        let list = move |observer: &Observer| pods::list(observer, &filters, detail);
        let response = self.context.reader.call(peer, Weight::Heavy, list).await?;
        let bytes = response.0.len();
        self.budget.hold(permit, response, bytes)
    }

    async fn inspect_pod(&self, request: Request<InspectPodRequest>) -> Result<Response<Encoded>, Status> {
        let (_, extensions, InspectPodRequest { id }) = request.into_parts();
        let peer = Peer::of(&extensions);
        let detail = Detail::for_peer(peer, true);
        let asked = pod_cache::Request { id, shows_secrets: peer.sees_secrets() };
        // On this thread: handing the call to the bridge's threads and back costs several times as much.
        let response = match self.pods.find(&asked) {
            Some(response) => response,
            None => {
                let cache = Arc::clone(&self.pods);
                let inspect = move |observer: &Observer| pods::inspect(observer, &cache, asked, detail);
                self.context.reader.call(peer, Weight::Light, inspect).await?
            }
        };
        let bytes = response.0.len();
        self.budget.hold(ListPermit::not_needed(peer), response, bytes)
    }

    async fn list_images(&self, request: Request<ListImagesRequest>) -> Result<Response<Encoded>, Status> {
        let (_, extensions, ListImagesRequest { filters, detail }) = request.into_parts();
        let filters = filters::images(filters)?;
        let permit = ListPermit::acquire(&extensions).await;
        let peer = Peer::of(&extensions);
        let detail = Detail::for_peer(peer, detail);
        let list = move |observer: &Observer| images::list(observer, &filters, detail);
        let response = self.context.reader.call(peer, Weight::Heavy, list).await?;
        let bytes = response.0.len();
        self.budget.hold(permit, response, bytes)
    }

    async fn inspect_image(
        &self,
        request: Request<InspectImageRequest>,
    ) -> Result<Response<InspectImageResponse>, Status> {
        let (_, extensions, InspectImageRequest { id }) = request.into_parts();
        let peer = Peer::of(&extensions);
        let detail = Detail::for_peer(peer, true);
        let inspect = move |observer: &Observer| images::inspect(observer, &id, detail);
        let response = self.context.reader.call(peer, Weight::Light, inspect).await?;
        let bytes = response.encoded_len();
        self.budget.hold(ListPermit::not_needed(peer), response, bytes)
    }

    async fn listen_events(
        &self,
        request: Request<ListenEventsRequest>,
    ) -> Result<Response<Self::ListenEventsStream>, Status> {
        let peer = Peer::of(request.extensions());
        let filter = events::EventSelection::parse(request.into_inner())?;
        let stream = events::subscribe(&self.context, &self.subscribers, peer, filter).await?;
        Ok(Response::new(stream))
    }

    async fn get_logs(&self, request: Request<GetLogsRequest>) -> Result<Response<Self::GetLogsStream>, Status> {
        let peer = Peer::of(request.extensions());
        let selection = logs::LogSelection::parse(request.into_inner())?;
        let stream = logs::stream(&self.context, self.log_streams.acquire(peer)?, selection).await?;
        Ok(Response::new(stream))
    }
}
