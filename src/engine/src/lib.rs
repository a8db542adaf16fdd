//! What can be done with pods and images: one file per verb, each a method of [`Engine`]. Synchronous.
//!
//! May import `gantry_model`, `gantry_store`, `gantry_fetch` and `gantry_contract`. Knows nothing of the command line or
//! of any API; must never know tokio, SQL or libcontainer. It starts one program only, `gantry-stage1` (see [`mod@run`] and
//! [`mod@network`]).
//!
//! Start reading at [`prepare`] and [`mod@run`], then [`reconcile`]: every call begins by bringing the rows it looks at up to
//! the facts (locks, journals), so that every command tells the truth whatever was killed before.
//!
//! # The operations of [`Engine`]
//!
//! ```text
//! open(Options) -> Result<Engine, OpenError>              open_read_only(Options) -> Result<Engine, OpenError>
//! store() -> &Store        options() -> &Options
//! fetch(&ImageRef, PullPolicy, Option<&mut dyn Read>, &dyn Progress) -> Result<Fetched, FetchError>
//! prepare(Prepare) -> Result<PodId, PrepareError>
//! start(PodId, Option<NetMode>, RunOptions) -> Result<Running, StartError>
//! run(Prepare, RunOptions) -> Result<Running, RunError>
//! wait(PodId, Option<Duration>) -> Result<Option<PodView>, PodError>              None: the deadline passed
//! watch_end(PodId) -> Result<EndWatch, PodError>          wait_end(&EndWatch) -> Result<Ended, PodError>
//! wait_ready(PodId, Option<Duration>) -> Result<Option<PodView>, PodError>        running, or over for good
//! resolve(&PodPrefix) -> Result<PodId, PodError>
//! find_pod(&str) -> Result<PodId, PodError>                                      by id, app name or host name
//! list(&PodQuery) -> Result<Vec<PodView>, PodError>       status(PodId) -> Result<PodView, PodError>
//! inspect(PodId) -> Result<serde_json::Value, ManifestError>
//! manifest(PodId) -> Result<serde_json::Value, ManifestError>
//! stop(PodId, Duration, bool) -> Result<Stopped, StopError>
//! kill(PodId, Option<&AppName>, u8) -> Result<(), KillError>
//! exec(PodId, ExecRequest, Stdio) -> Result<Exec, ExecError>
//! attach(PodId, Option<&AppName>) -> Result<OwnedFd, ExecError>
//! output(PodId) -> Result<Option<OutputStream>, ExecError>
//! logs(PodId, &LogQuery, &mut dyn LogSink) -> Result<(), LogsError>
//! open_logs(PodId, &LogQuery) -> Result<LogReader, LogsError>
//! pull_logs(&mut LogReader, most: usize, &mut dyn FnMut(LineRef)) -> Result<Pulled, LogsError>
//! rm(PodId, force: bool) -> Result<(), RmError>           gc(&GcOptions) -> Result<GcReport, GcError>
//! image_list() -> Result<Vec<ImageRow>, ImageError>       image_find(&ImageRef) -> Result<ImageRow, ImageError>
//! image_rm(&ImageRef, force: bool) -> Result<ImageRemoved, ImageError>
//! image_inspect(&ImageRef) -> Result<ImageDetails, ImageError>
//! image_tag(&ImageRef, &str) -> Result<(String, Option<ImageId>), ImageError>
//! image_save(&[ImageRef], ArchiveFormat, &mut dyn Write) -> Result<(), ImageSaveError>
//! image_gc(Duration, dry_run) -> Result<ImageGc, ImageError>
//! image_manifest(&ImageRef) -> Result<serde_json::Value, ImageError>
//! events_start(&EventQuery, now) -> Result<u64, PodError>
//! events_after(cursor, most) -> Result<EventPage, PodError>                       commits() -> io::Result<Commits>
//! networks() -> Result<Vec<Network>, NetworkError>        network(&str) -> Result<Network, NetworkError>
//! reload_networks() -> Result<(), NetworkError>           sweep_networks(dry_run) -> Result<Vec<String>, NetworkError>
//! volume_create(&VolumeName, &labels) -> Result<bool, VolumeError>        volumes() -> Result<Vec<VolumeRow>, VolumeError>
//! volume(&VolumeName) -> Result<VolumeRow, VolumeError>                   volume_rm(&VolumeName) -> Result<u64, VolumeError>
//! doctor(deep: bool) -> Result<Vec<Finding>, PodError>
//! examine(Options, deep) -> Result<Vec<Finding>, OpenError | PodError>           doctor, also of a damaged database
//! open_for_keeping(Options) -> Result<Keeping, OpenError>                         gantryd's start: restores or serves
//! supervisor_fd(&PodRow) -> Option<OwnedFd>               readable when the supervisor has ended
//! ```

mod adopt;
pub mod appc;
mod appc_read;
mod appc_write;
pub mod cgroup;
pub mod control;
pub mod doctor;
mod doctor_pods;
mod doctor_store;
pub mod engine;
pub mod error;
pub mod events;
pub mod exec;
pub mod fetch;
mod foreign;
pub mod gc;
pub mod image_inspect;
pub mod image_rm;
pub mod image_save;
pub mod image_view;
pub mod images;
pub mod kill;
mod log_files;
mod log_line;
mod log_merge;
pub mod log_reader;
mod log_repair;
mod log_source;
pub mod login;
pub mod logs;
pub mod look;
pub mod manifest;
mod manifest_json;
mod manifest_net;
pub mod network;
pub mod observer;
mod old_pods;
pub mod output;
pub mod plan;
pub mod plan_net;
pub mod pod_dir;
mod pod_filter;
pub mod prepare;
pub mod process;
pub mod reconcile;
pub mod recover;
pub mod rm;
pub mod run;
pub mod settings;
pub mod settle;
pub mod stop;
pub mod supervisor;
pub mod volumes;
pub mod wait;

pub use adopt::Adopted;
pub use appc::Secrets;
pub use control::ControlError;
pub use doctor_store::examine;
pub use engine::{Engine, NetworkOptions, OpenError, Options};
pub use error::{Cause, PodError};
pub use events::{Commits, EventPage};
pub use exec::{Exec, ExecError, ExecRequest, Stdio};
pub use gc::{GcAction, GcError, GcOptions, GcReport, GcStep};
pub use image_inspect::{HistoryStep, ImageDetails, LayerDetails};
pub use image_rm::ImageRemoved;
pub use image_save::ImageSaveError;
pub use image_view::ImageView;
pub use images::{ImageError, ImageGc};
pub use kill::KillError;
pub use log_reader::{LineRef, LogReader, Pulled};
pub use logs::{LogQuery, LogSink, LogsError};
pub use look::PodView;
pub use manifest::ManifestError;
pub use network::NetworkError;
pub use observer::Observer;
pub use output::{Chunk, OutputError, OutputStream, Show};
pub use plan::PlanError;
pub use prepare::{Prepare, PrepareError};
pub use recover::{Condition, Keeping, open_for_keeping};
pub use rm::RmError;
pub use run::{RunError, RunOptions, Running, StartError};
pub use settings::{KeeperSettings, Settings, SettingsError};
pub use stop::{StopError, Stopped};
pub use supervisor::SupervisorError;
pub use volumes::VolumeError;
pub use wait::{EndWatch, Ended};

/// What callers need from the crates below, so that they import the engine alone.
pub use gantry_contract::network::{Attached, Member, Network};
pub use gantry_contract::{plan::LogLimits, up::Ready};
pub use gantry_fetch::export::{ArchiveFormat, ExportError};
pub use gantry_fetch::{
    Config as FetchConfig, FetchError, Fetched, Insecure, Note, Platform, Progress, PullPolicy, platform::PlatformError,
};
pub use gantry_model as model;
pub use gantry_store::{
    AppRow, Backup, FAILURE, Finding, ImageFormat, ImageRow, Keeper, KeeperLock, PodRow, Record, RemoveVolumeError,
    Severity, Store, Swept, VolumeRow, now,
};
pub use gantry_store::{Glance, Networks};
