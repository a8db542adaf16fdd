//! rkt's PublicAPI, package `v1alpha`: what its words mean in gantry's. The contract is `proto/rkt/v1alpha/api.proto`.

mod convert;
mod events;
mod filters;
mod images;
mod lines;
mod logs;
mod manifests;
mod pods;
mod service;

use std::sync::Arc;

use gantry_proto::rkt::server::public_api_server::PublicApiServer;

use crate::answers::Holding;
use crate::server::{Config, Shared};

pub(crate) use events::encode as encode_event;

/// Its name in reflection and health.
pub(crate) const NAME: &str = "v1alpha.PublicAPI";

/// The most bytes of a request.
const MOST_REQUEST: usize = 1 << 20;

/// The service, ready to be added to a server.
pub(crate) fn service(shared: Arc<Shared>, config: &Config) -> Holding<PublicApiServer<service::Service>> {
    Holding(PublicApiServer::new(service::Service::new(shared, config)).max_decoding_message_size(MOST_REQUEST))
}
