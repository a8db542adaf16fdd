//! The gRPC surfaces of gantryd: their shared parts, and one folder for each surface.
//!
//! What it may import: ARCHITECTURE.md, Layers (checked by tests/tidy). Knows nothing of the keeper. Emits events with
//! `tracing` and prints nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | [`server`] | the servers, one per surface: limits, start, drain |
//! | `surface`, `root_only` | `Surface`, the trait of all surfaces: services, descriptors; access rules |
//! | `context` | what surfaces work with: configuration, engine, events, log directories |
//! | `bridge` | from async tasks to the synchronous engine: read-only and read-write handles |
//! | `live_settings` | the settings that change with the configuration |
//! | `hub`, `events` | events as they are committed; cursors of subscribers |
//! | `pulls` | fetches of images, each on a thread of its own |
//! | `kubernetes` | sandboxes and containers that a kubelet made |
//! | `logs`, `dir_watch` | streams of log lines; changes of log directories |
//! | `daemon_log`, `daemon_log_stream` | the newest lines of gantryd's own log; streams of them |
//! | [`listen`], `accept`, `stream`, `peer`, `quota` | sockets, connections, their clients, and the limits of each |
//! | `tls`, `handshake` | mutual TLS: certificates, their reload, the identity of a client |
//! | `audit` | the log and the events of calls that change something |
//! | `deadline`, `responses` | deadlines of calls, memory of responses |
//! | [`metrics`] | what gantryd counts, and `/metrics` |
//! | `text_body` | the body of a plain HTTP response |
//! | `request`, `status`, `client_fault`, `health` | checks of fields, gRPC status codes, grpc.health.v1 |
//! | `warnings` | the limit on warnings about failed calls |
//! | `surfaces` | one folder per surface: [`aurae`], [`cri`], [`rkt`], [`talos`] |
//!
//! # A new surface
//!
//! A folder below `surfaces` with a type that implements `Surface` and a function that makes its [`Endpoint`]; its
//! contract in the crate `gantry_proto`; an export here; its sockets in gantryd. Nothing else here names a surface, and
//! no surface imports another (tests/tidy). Start reading at [`server`], then `surface`.
#![forbid(unsafe_code)]

mod accept;
mod audit;
mod bridge;
mod claims;
mod clean_path;
mod client_fault;
mod context;
mod daemon_log;
mod daemon_log_stream;
mod deadline;
mod dir_watch;
mod events;
mod handshake;
mod health;
mod hub;
mod kubernetes;
pub mod listen;
mod live_settings;
mod logs;
pub mod metrics;
mod peer;
mod pulls;
mod quota;
mod request;
mod responses;
mod root_only;
pub mod server;
mod status;
mod stream;
mod supervisors;
mod surface;
mod surfaces;
mod text_body;
mod tls;
mod warnings;

pub use context::Config;
pub use daemon_log::DaemonLog;
pub use listen::{Address, AddressError, ListenError, Listener, SocketAccess};
pub use live_settings::{ApiSettings, LiveSettings};
pub use metrics::{Metrics, Operation, Removal};
pub use server::{Running, ServeError, serve};
pub use surface::Endpoint;
pub use surfaces::{aurae, cri, rkt, talos};
pub use tls::{MutualTls, TlsError, TlsFiles};
