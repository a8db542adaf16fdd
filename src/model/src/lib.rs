//! The domain model: identities, specification, phases, apps, events, queries and error kinds.
//!
//! Imports no other crate of the workspace and does no I/O: time and randomness come in as arguments.
//!
//! Plans, the database, control messages and `-o json` share the types of this crate: one type for one fact. So the
//! names of serialized fields and variants never change; fields are added, with a default. Only the
//! pod manifest (`src/engine`) and the wire protocols (`src/api`) have types of their own.
//!
//! Start reading at [`phase`], the state machine of a pod. Then [`spec`] (the user's request) and [`event`].

pub mod app;
mod app_id;
mod app_options;
mod capabilities;
pub mod cgroup;
pub mod command_line;
pub mod device;
pub mod errno;
pub mod error;
pub mod event;
pub mod health;
pub mod host_command;
mod host_pod;
pub mod id;
pub mod image_ref;
mod limits;
pub mod log_path;
pub mod mount_options;
mod name_server;
pub mod namespaces;
pub mod net;
mod net_check;
pub mod oom;
pub mod phase;
pub mod pod_namespace;
pub mod quantity;
pub mod query;
mod requested_image;
pub mod resolv_conf;
pub mod restart;
pub mod schedule;
pub mod seccomp_profile;
pub mod signal;
pub mod spec;
pub mod stats;
pub mod sysctl;
pub mod systemd;
pub mod terminal;
pub mod time;
mod tmpfs;
pub mod ulimit;
pub mod user_namespace;

pub use app::{AppEnd, AppOutcome, AppState};
pub use app_id::AppId;
pub use command_line::{quote_command, split_command};
pub use error::{ErrorKind, Kind};
pub use event::{EventKind, EventRecord, EventSubject, NewEvent};
pub use health::HealthState;
pub use id::{AppName, BootId, Digest, Generation, ImageId, PodId, PodName, PodPrefix, VolumeName};
pub use image_ref::{ImageRef, RegistryRef};
pub use log_path::{AppLogPath, PodLogDir};
pub use net::{NetMode, PodNetwork};
pub use oom::{OomLevel, OomVictim};
pub use phase::{Edge, FormerPhase, Phase, PhaseName, PodEnd, Process, Refused, step};
pub use pod_namespace::PodNamespace;
pub use requested_image::RequestedImage;
pub use schedule::ScheduleName;
pub use spec::{AddedAppSpec, AppSpec, PodSpec};
pub use systemd::Readiness;
pub use time::Timestamp;
