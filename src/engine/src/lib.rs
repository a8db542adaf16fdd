//! The operations on pods and images, each a method of [`Engine`]. Synchronous.
//!
//! What it may import: ARCHITECTURE.md, Layers (checked by tests/tidy). Knows nothing of the command line or of any
//! API; must never know tokio or SQL. It starts one program only, `gantry-stage1` (`host::stage1`).
//!
//! Start reading at `pods::prepare` and `pods::run`, then `pods::reconcile`: every call first reconciles the rows it
//! reads with the facts (locks, journals), so that every command reports the truth whatever was killed before.
//!
//! | module | what it holds |
//! |---|---|
//! | `engine` | [`Engine`], [`Options`]: opening a data directory |
//! | `pods` | the life of a pod: prepare, run, exec, stop, reconcile, rm, gc |
//! | `manifest` | the pod manifest, and appc's |
//! | `logs` | log files: repair, read, merge, follow |
//! | `images` | fetch, list, inspect, tag, save, remove; registry credentials |
//! | `files` | copying files of apps, and what an app changed |
//! | `host` | processes, cgroups and networks of the host |
//! | `doctor` | checks of the host, the store and the pods |
//! | `recovery` | gantryd's start with a damaged or restored database |
//! | [`pki`] | certificates of the node API |
//! | `stats` | samples of what pods and apps use |
//! | `usage`, `prune` | the disk usage, and how to reclaim it |
//! | `info` | facts about the host and the store |
//! | `observer` | the read-only handle for surfaces |
//! | `commits` | waiting for commits to the database |
//! | `freshness` | whether a cached description of a pod is still valid |
//! | `events`, `volumes`, `settings` | events of pods, named volumes, the configuration file |
//! | `error` | [`PodError`], the failures that most operations share |
//!
//! Most modules are private. The items that the command line, the API and gantryd use are exported here.

mod commits;
mod doctor;
mod engine;
mod error;
mod events;
mod files;
mod freshness;
mod host;
mod images;
mod info;
mod logs;
mod manifest;
mod observer;
pub mod pki;
mod pods;
mod prune;
mod recovery;
mod row_writes;
mod schedules;
mod seccomp;
mod settings;
mod stats;
mod usage;
mod volumes;

pub use commits::{CommitSubscription, CommitWatcher, Commits};
pub use doctor::certificates::examine_certificates;
pub use doctor::store::examine;
pub use engine::{Engine, NetworkOptions, OpenError, Options};
pub use error::{Cause, EngineError, PodError};
pub use events::{COMMIT_TIMEOUT, EventPage};
pub use files::copy::{CopyOptions, CopySource, CopyTarget};
pub use files::diff::{FileChange, FileChangeKind, FileChanges};
pub use freshness::{CommitCounter, PodFilesStamp};
pub use host::interfaces::{HostInterface, HostRoute, NetlinkError, list_interfaces, list_routes};
pub use host::network::{FirewallChange, FirewallMonitor, FirewallPart};
pub use host::process::StoppedProcess;
pub use host::sandbox_network::{SandboxNetwork, SandboxNetworkChoice};
pub use images::inspect::{HistoryStep, ImageDetails, LayerDetails};
pub use images::login;
pub use images::node::{ImageDiskUsage, repository_of};
pub use images::remove::ImageRemoved;
pub use images::save::ImageSaveError;
pub use images::view::{ImageView, name_and_version};
pub use images::{ImageError, ImageGc};
pub use info::{HostInfo, Info, StoreInfo};
pub use logs::files::split_log_path;
pub use logs::reader::{LineRef, LogReader, Pulled};
pub use logs::{LogQuery, LogSink, LogsError};
pub use manifest::appc::{Secrets, VERSION as APPC_VERSION};
pub use manifest::{ManifestError, parse as parse_manifest, to_value as manifest_to_value};
pub use observer::Observer;
pub use pods::app_stop::AppStop;
pub use pods::control::{ControlError, SentRequest};
pub use pods::exec::{Exec, ExecError, ExecRequest, ExecStart, Stdio};
pub use pods::exec_tree::ExecTree;
pub use pods::gc::{GcAction, GcOptions, GcReport, GcStep};
pub use pods::host_command::{CapturedOutput, CapturedStream, CommandError, CommandOwner, StartedCommand};
pub use pods::kill::KillError;
pub use pods::kubelet::{CONTAINER_NAME, CONTAINER_START_ERROR, SANDBOX_NAME, is_kubelet_sandbox};
pub use pods::output::{Chunk, Notification, OutputError, OutputStream, Show};
pub use pods::plan::PlanError;
pub use pods::prepare::{Embryo, Prepare, PrepareError};
pub use pods::rm::{RmError, RunningPod};
pub use pods::run::{RunOptions, Running, StartError};
pub use pods::sockets::PodSockets;
pub use pods::stop::{StopError, Stopped};
pub use pods::update::LimitsUpdate;
pub use pods::view::PodView;
pub use pods::wait::{EndWatch, Ended, PodWait};
pub use prune::{PruneOptions, PruneReport};
pub use recovery::adopt::Adopted;
pub use recovery::startup::{Condition, Keeping, can_be_kept, open_for_keeping};
pub use schedules::{EndedApp, SCHEDULE_LABEL, ScheduleError, ScheduleState, ScheduleView};
pub use seccomp::read_seccomp_profile;
pub use settings::{KeeperSettings, MachineCommands, Settings, TlsSettings};
pub use stats::{
    AppDetails, CounterSelection, CpuRates, DiskTarget, FileSystemSpace, PodDetails, ProcessInfo, SampleCache,
    SampleError, SampleScope, SampleSet, SampledPod, SampledVolume, Sampler, list_processes, read_details,
};
pub use usage::{AppDiskUsage, ImageUsage, PodDiskUsage, StoreUsage, VolumeUsage};
pub use volumes::VolumeError;

/// The items of the crates below that callers need, so that they import the engine alone.
pub use gantry_contract::control::Notified;
pub use gantry_contract::control::{HealthReport, HealthResult};
pub use gantry_contract::network::{Bandwidth, KubernetesNetworking, Member, Network};
pub use gantry_contract::{plan::LogLimits, start::Ready};
pub use gantry_fetch::export::{ArchiveFormat, ExportError, tar};
pub use gantry_fetch::{
    Cancellation, Config as FetchConfig, Credentials, FetchCredentials, FetchError, Fetched, Insecure, LocalImages,
    Note, Platform, Progress, PullPolicy, platform::PlatformError,
};
pub use gantry_host::memory::share_arenas;
pub use gantry_host::tree::TreeUsage;
pub use gantry_store::{
    AppRow, Backup, FAILURE, Finding, ImageFormat, ImageRow, Keeper, KeeperLock, PodRow, Record, RemoveVolumeError,
    SchedulePod, ScheduleRow, Severity, Store, Swept, VolumeRow, now,
};
pub use gantry_store::{HealthRecord, NetworkSummary, Networks, OomRecord};
