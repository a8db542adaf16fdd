//! The gantryd daemon: configuration, wiring, the keeper loop. Synchronous; the server of the API has its own threads.
//!
//! What it may import: ARCHITECTURE.md, Layers (checked by tests/tidy). It holds no policy of its own: the engine
//! defines the operations on a pod, the daemon only their time. Pods never depend on it: it may be killed, upgraded and
//! started again while they run, and the next reconciliation, its own or a command's, finds all unfinished work.
//!
//! Start reading at [`keeper`] (the loop), then [`watcher`] and [`timers`] (what wakes it), [`configuration`] (read
//! again at SIGHUP), [`collector`] (garbage and backups), [`timed_work`] ([`restarts`]: pods whose supervisor died;
//! [`schedules`]), [`serve`] (the API), [`sampling`] (the counters of running pods) and [`network`] (the resolver, and
//! [`firewall`]: restores gantry's nftables). It always starts: [`condition`] reports a damaged database,
//! `open_for_keeping` handles it.
#![forbid(unsafe_code)]

mod collector;
mod condition;
mod configuration;
mod firewall;
mod heap;
mod keeper;
mod network;
mod notify;
mod restarts;
mod sampling;
mod schedules;
mod serve;
mod signals;
mod timed_work;
mod timers;
mod watcher;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser as _;
use gantry_api::{DaemonLog, ListenError, Listener, LiveSettings};
use gantry_engine::{CommitWatcher, Keeping, Settings};
use gantry_logging::{Filter, LogFormat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::level_filters::LevelFilter;
use tracing::{error, info, warn};

use crate::configuration::Configuration;
use crate::keeper::Keeper;
use crate::network::Networking;
use crate::serve::{Api, ListenAddresses, SurfaceSettings};
use crate::signals::Signals;

/// The time in which gantryd ends after its last reconciliation: open queries and calls may finish until then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// gantryd reconciles pods, collects garbage, backs up the database, and serves rkt's PublicAPI, the Talos node API,
/// Aurae's API, the Kubernetes CRI, metrics, and DNS for the networks of pods. Pods run without it.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "gantryd", version, after_help = "Exit codes: 0 ended by a signal, 1 failed, 2 invalid command line.")]
pub(crate) struct Args {
    /// Data directory [default: /var/lib/gantry; environment: GANTRY_DIR]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Configuration file [default: /etc/gantry/config.toml; environment: GANTRY_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of rkt's PublicAPI: unix:/PATH, HOST:PORT or [IPV6]:PORT; can be repeated; or 'none'. Every client that
    /// can connect to a TCP address sees all pods, images and logs. With this flag and without --run-dir, the other
    /// APIs and the metrics are off unless their own flags or keys in the configuration are given [default:
    /// unix:/run/gantry/api.sock]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Address of the Talos node API: unix:/PATH, HOST:PORT or [IPV6]:PORT; can be repeated; or 'none'. Root is an
    /// administrator, members of the group gantry have the role os:reader. TCP needs the certificates of
    /// 'machine-tls' in the configuration [default: unix:/run/gantry/machine.sock; with certificates also port 50000
    /// of all addresses]
    #[arg(long, value_name = "ADDR")]
    machine_listen: Vec<String>,
    /// Address of Aurae's API: unix:/PATH; can be repeated; or 'none'. Only root may call [default:
    /// unix:/run/gantry/aurae.sock]
    #[arg(long, value_name = "ADDR")]
    aurae_listen: Vec<String>,
    /// Address of the Kubernetes CRI: unix:/PATH; can be repeated; or 'none'. Only root may call [default:
    /// unix:/run/gantry/cri.sock]
    #[arg(long, value_name = "ADDR")]
    cri_listen: Vec<String>,
    /// Address of exec, attach and port-forward of the Kubernetes CRI: HOST:PORT or [IPV6]:PORT; or 'none'. Clients get
    /// it, with a token that is valid once, from the CRI [default: 127.0.0.1:0, any free port]
    #[arg(long, value_name = "ADDR")]
    cri_stream_listen: Option<String>,
    /// Address of the metrics for Prometheus, served at /metrics: HOST:PORT, [IPV6]:PORT or unix:/PATH; can be
    /// repeated; or 'none'. Every client that can connect sees the names of all pods and images [default:
    /// 127.0.0.1:15442]
    #[arg(long, value_name = "ADDR")]
    metrics_listen: Vec<String>,
    /// Directory of the default sockets, created if absent [default: /run/gantry]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Log events of this level and above: off, error, warning, info, debug or trace; MODULE=LEVEL sets the level of
    /// one module, with commas between several [default: info; environment: GANTRY_LOG]
    #[arg(long, value_name = "FILTER")]
    log_level: Option<Filter>,
    /// Format of log lines: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

impl Args {
    /// The settings from these flags, the environment and the configuration file.
    pub(crate) fn settings(&self) -> Result<Settings, gantry_engine::EngineError> {
        let settings = Settings::read(self.dir.as_deref(), self.config.as_deref())?;
        Ok(Settings { options: settings.options.sharing_journals(), ..settings })
    }
}

fn main() -> ExitCode {
    // Before any thread starts: it removes variables from the environment.
    let passed = Listener::passed();
    gantry_host::signals::set_dispositions();
    gantry_engine::share_arenas();
    let args = Args::parse();
    let daemon_log = Arc::new(DaemonLog::default());
    match start_logging(&args, &daemon_log).and_then(|()| run(args, passed, daemon_log)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs with the default filter where the environment's is invalid, so that this failure is logged, too.
fn start_logging(args: &Args, daemon_log: &Arc<DaemonLog>) -> anyhow::Result<()> {
    let filter = Filter::from_flag_or_env(args.log_level.clone());
    let (filter, result) = match filter {
        Ok(filter) => (filter, Ok(())),
        Err(error) => (None, Err(error.into())),
    };
    let daemon_log = Arc::clone(daemon_log);
    let filter = filter.unwrap_or_else(|| Filter::level(LevelFilter::INFO));
    gantry_logging::init_with_copy(filter, args.log_format, move |line| daemon_log.add(line));
    gantry_logging::log_panics();
    result
}

/// Returns after SIGTERM or SIGINT. A running collection ends with the process, as with `kill -9`; the next one
/// continues it.
fn run(args: Args, passed: Result<Vec<Listener>, ListenError>, daemon_log: Arc<DaemonLog>) -> anyhow::Result<()> {
    let settings = args.settings()?;
    let passed = passed?;
    if !rustix::process::geteuid().is_root() {
        bail!("gantryd needs root");
    }
    // Before any work, so that a signal cannot interrupt it.
    let signals = Signals::catch().context("cannot catch signals")?;
    let end_signal = signals.end_signal();
    let keeping = gantry_engine::open_for_keeping(settings.options.clone())?;
    condition::log_condition(&keeping);
    let Keeping { engine, condition, lock: _lock, .. } = keeping;
    let dir = settings.options.dir.display();
    raise_descriptor_limit();
    let surface_settings = SurfaceSettings::load(&settings)?;
    // Makes the directory of the default sockets, in which that of the metrics may be, too.
    let endpoints = serve::endpoints(passed, ListenAddresses::new(&args, &settings), surface_settings.clone())?;
    let metrics_listeners = serve::metrics_listeners(ListenAddresses::new(&args, &settings))?;
    let commits = CommitWatcher::start(&settings.options).context("cannot watch the database")?;
    if let Err(error) = commits.check() {
        let sysctls = "sysctls fs.inotify.max_user_instances and max_user_watches";
        warn!("cannot watch {dir} for commits: {error}; polling the database instead ({sysctls})");
    }
    let live = surface_settings.live();
    let config = api_config(&settings, live.clone(), commits.clone(), condition.can_write(), daemon_log);
    let (samples, metrics) = (Arc::clone(&config.samples), Arc::clone(&config.metrics));
    let api = Api::start(config, endpoints, metrics_listeners)?;
    sampling::start(live, samples, Arc::clone(&metrics));
    let (ended, networking) = if condition.can_write() {
        let configuration = Configuration::new(args, settings.clone(), surface_settings);
        let mut keeper = Keeper::new(configuration, engine, signals, &commits, metrics)?;
        keeper.start();
        // After the first reconciliation has released the networks of pods that ended in the meantime.
        let mut networking = Networking::start(&settings, commits);
        info!("reconciling the pods of {dir}");
        notify::send_state("READY=1");
        (keeper.run(&mut networking), Some(networking))
    } else {
        warn!("only serving {dir}: pods continue to run and are not reconciled");
        notify::send_state("READY=1");
        (condition::serve_read_only(&signals, &condition, &settings.options), None)
    };
    notify::send_state("STOPPING=1");
    let deadline = Instant::now() + DRAIN_TIMEOUT;
    if let Some(networking) = networking {
        networking.drain(deadline);
    }
    api.drain(deadline);
    ended?;
    info!("stopped by {}; pods continue to run", end_signal.name());
    Ok(())
}

/// The configuration of the API server.
fn api_config(
    settings: &Settings,
    live: LiveSettings,
    commits: CommitWatcher,
    reconciles: bool,
    daemon_log: Arc<DaemonLog>,
) -> gantry_api::Config {
    gantry_api::Config {
        settings: live,
        commits,
        config_dir: settings.config.parent().map(Path::to_owned).unwrap_or_default(),
        reconciles,
        daemon_log,
        samples: Arc::new(sampling::sample_cache()),
        metrics: Arc::default(),
    }
}

/// A running pod needs a descriptor: with the usual soft limit, a thousand pods would be the maximum.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        warn!("cannot raise the limit of open files: {errno}");
    }
}
