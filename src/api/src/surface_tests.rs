//! A second surface beside rkt's: with a socket, an access rule, an event encoding and write access of its own.

use std::convert::Infallible;
use std::task::{Context as TaskContext, Poll};

use gantry_model::query::EventQuery;
use gantry_model::{EventRecord, Timestamp};
use gantry_proto::encoded::Encoded;
use prost::Message as _;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::{Response, Status};
use tonic_prost::ProstCodec;

use super::*;
use crate::bridge::Weight;
use crate::events::EventCursor;
use crate::hub::EventEncoder;
use crate::listen::SocketAccess;
use crate::peer::{Caller, Peer};
use crate::surface::Surface;

/// Only root may connect. No client may call `Forbidden`, watch health, or use reflection.
struct VolumeSurface;

impl Surface for VolumeSurface {
    fn descriptors(&self) -> &'static [u8] {
        &[]
    }

    fn start(self: Box<Self>, mut start: SurfaceStart<'_>) -> io::Result<Services> {
        let (context, writer) = (start.context(), start.writer()?);
        let encoder = context.hub.register(|event: &EventRecord| format!("{} ", event.seq).into_bytes());
        let mut services = start.services(VolumeRules);
        services.add(VolumeService { context, writer, encoder });
        Ok(services)
    }
}

struct VolumeRules;

impl AccessRules for VolumeRules {
    fn admits(&self, peer: Peer) -> bool {
        peer == Peer::Root
    }

    fn authorize(&self, _caller: &Caller, method: &str) -> Result<(), Status> {
        match method {
            "test.Volumes/Create" | "test.Volumes/Events" | "grpc.health.v1.Health/Check" => Ok(()),
            _ => Err(Status::permission_denied("no peer may call this method")),
        }
    }
}

/// `Create` creates a named volume, which rkt's surface cannot do; `Events` returns all events.
#[derive(Clone)]
struct VolumeService {
    context: Arc<Context>,
    writer: Arc<Bridge<Engine>>,
    encoder: EventEncoder,
}

impl NamedService for VolumeService {
    const NAME: &'static str = "test.Volumes";
}

impl Service<http::Request<Body>> for VolumeService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = VolumeMethod { service: self.clone(), path: request.uri().path().to_owned() };
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<Encoded, Encoded>::default());
            Ok(grpc.unary(method, request).await)
        })
    }
}

struct VolumeMethod {
    service: VolumeService,
    path: String,
}

impl UnaryService<Encoded> for VolumeMethod {
    type Response = Encoded;
    type Future = BoxFuture<Response<Encoded>, Status>;

    fn call(&mut self, _request: Request<Encoded>) -> Self::Future {
        let VolumeService { context, writer, encoder } = self.service.clone();
        let path = self.path.clone();
        Box::pin(async move {
            let mut text = Vec::new();
            match path.as_str() {
                "/test.Volumes/Create" => {
                    let create = |engine: &Engine| {
                        let name = "data".parse().map_err(|_| Status::internal("the name is invalid"))?;
                        let created = engine.volume_create(&name, &std::collections::BTreeMap::new());
                        created.map_err(|error| crate::status::from_error(&error))
                    };
                    writer.call(Peer::Root, Weight::Heavy, create).await?;
                }
                "/test.Volumes/Events" => {
                    let since = Some(Timestamp(1));
                    let mut cursor =
                        EventCursor::start(&context, EventQuery { since, ..EventQuery::default() }).await?;
                    if let Some(batch) = cursor.next(std::future::pending()).await? {
                        batch.events.iter().for_each(|event| text.extend_from_slice(&event.encoded(encoder)));
                    }
                }
                _ => return Err(Status::unimplemented("no such method")),
            }
            Ok(Response::new(Encoded(Bytes { text }.encode_to_vec().into())))
        })
    }
}

/// Calls a method of the second surface.
async fn call(channel: Channel, method: &'static str) -> Result<Vec<u8>, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<Encoded, Bytes>::default();
    let reply = client.unary(Request::new(Encoded::default()), PathAndQuery::from_static(method), codec).await?;
    Ok(reply.into_inner().text)
}

/// Reads the field that contains the events.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Bytes {
    #[prost(bytes = "vec", tag = "1")]
    text: Vec<u8>,
}

#[test]
fn two_surfaces_are_served_side_by_side() {
    let open = |address: Address| Listener::open(&address, SocketAccess { mode: 0o600, group: None }).unwrap();
    let mut tcp = String::new();
    let home = Home::with(|dir| {
        let mut listeners = open(Address::Unix(dir.join("volumes.sock")));
        listeners.extend(open("127.0.0.1:0".parse().unwrap()));
        let endpoint = crate::Endpoint::new(VolumeSurface, listeners);
        tcp = endpoint.addresses().find_map(|name| name.strip_prefix("tcp:")).unwrap().to_owned();
        vec![endpoint]
    });
    home.image("one", "1");
    let connect = |uri: String| async move { Endpoint::from_shared(uri).unwrap().connect().await.unwrap() };
    let volumes = home.dir.path().join("volumes.sock");
    home.client(async |rkt| {
        let volumes = connect(format!("unix://{}", volumes.display())).await;
        // It writes, by a bridge that rkt's surface has not.
        call(volumes.clone(), "/test.Volumes/Create").await.unwrap();
        assert_eq!(home.engine.volumes().unwrap().len(), 1);
        // The same events in the encodings of both.
        let text = call(volumes.clone(), "/test.Volumes/Events").await.unwrap();
        assert_eq!(text, b"1 ");
        let mut client = PublicApiClient::new(rkt.clone());
        let past = wire::EventFilter { since_time: 1, ..wire::EventFilter::default() };
        let mut events = listen(&mut client, past).await;
        assert_eq!(take(&mut events, 1).await, [(1, EventType::ImageImported)]);
        // Each has its access rules and its methods.
        let forbidden = call(volumes.clone(), "/test.Volumes/Forbidden").await.unwrap_err();
        assert_eq!(forbidden.code(), Code::PermissionDenied);
        let absent = call(rkt.clone(), "/test.Volumes/Create").await.unwrap_err();
        assert_eq!(absent.code(), Code::Unimplemented);
        let absent = PublicApiClient::new(volumes.clone()).get_info(wire::GetInfoRequest {}).await.unwrap_err();
        assert_eq!(absent.code(), Code::Unimplemented);
        // A peer that is not admitted is disconnected.
        let network = Endpoint::from_shared(format!("http://{tcp}")).unwrap().connect_lazy();
        assert!(call(network, "/test.Volumes/Create").await.is_err());
        // Health knows the services of both by their names.
        let mut health = tonic_health::pb::health_client::HealthClient::new(volumes.clone());
        for service in ["", "v1alpha.PublicAPI", "test.Volumes", "gantryd"] {
            let request = tonic_health::pb::HealthCheckRequest { service: service.to_owned() };
            assert_eq!(health.check(request).await.unwrap().into_inner().status, 1, "{service}");
        }
        // The access rules cover health and reflection, which every surface has.
        let watched = health.watch(tonic_health::pb::HealthCheckRequest::default()).await;
        assert_eq!(refused(watched).0, Code::PermissionDenied);
        for method in [
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ] {
            assert_eq!(refused(call(volumes.clone(), method).await).0, Code::PermissionDenied, "{method}");
        }
    });
    let mode = std::os::unix::fs::PermissionsExt::mode(&volumes.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let mut home = home;
    home.server.take().unwrap().drain(Duration::from_secs(10)).unwrap();
    assert!(!volumes.exists() && !home.socket().exists());
}
