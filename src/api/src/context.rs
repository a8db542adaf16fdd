//! The parts that all surfaces share: the configuration, the read-only bridge to the engine, events, and changes of log
//! directories. Knows no surface.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gantry_engine::{CommitWatcher, Observer, SampleCache, SampleSet};
use tokio::sync::watch;
use tonic::Status;

use crate::bridge::Bridge;
use crate::daemon_log::DaemonLog;
use crate::dir_watch::DirWatch;
use crate::hub::Hub;
use crate::live_settings::LiveSettings;
use crate::metrics::{Metrics, Operation};
use crate::status;

/// The configuration of the server.
#[derive(Debug, Clone)]
pub struct Config {
    /// The settings that change with the configuration.
    pub settings: LiveSettings,
    /// Watches the commits to that data directory.
    pub commits: CommitWatcher,
    /// Directory of the configuration file.
    pub config_dir: PathBuf,
    /// Whether gantryd reconciles and collects garbage; health reports it as the service `gantryd`.
    pub reconciles: bool,
    /// gantryd's own log.
    pub daemon_log: Arc<DaemonLog>,
    /// The samples of running pods.
    pub samples: Arc<SampleCache>,
    /// The metrics of gantryd.
    pub metrics: Arc<Metrics>,
}

/// The time of a call for counting disk usage.
const MAX_DISK_TIME: Duration = Duration::from_millis(250);

/// See the module. A surface that changes something gets its read-write bridge from [`crate::surface::Services`].
pub(crate) struct Context {
    /// The server's configuration.
    pub(crate) config: Config,
    /// Read-only access to the engine.
    pub(crate) reader: Arc<Bridge<Observer>>,
    /// Events as they are committed.
    pub(crate) hub: Hub,
    /// Changes of log directories.
    pub(crate) dir_watch: DirWatch,
    /// Becomes true when streams have to end.
    pub(crate) draining: watch::Receiver<bool>,
}

impl Context {
    /// A sample of all running pods that is at most this old. Blocks while one is taken.
    ///
    /// # Errors
    /// The status of the engine's error.
    pub(crate) fn sample(&self, observer: &Observer, max_age: Duration) -> Result<Arc<SampleSet>, Status> {
        let Config { samples, metrics, .. } = &self.config;
        let begun = Instant::now();
        let result = samples.sample(observer, max_age).map_err(|error| status::from_error(&error));
        if result.as_ref().map_or(true, |set| set.begun >= begun) {
            metrics.record(Operation::Sample, begun.elapsed(), result.is_ok());
        }
        result
    }

    /// The same, with the disk usage of apps that were started since it was counted last. The time for that is limited:
    /// what is not counted then is in a later sample.
    ///
    /// # Errors
    /// The status of the engine's error.
    pub(crate) fn sample_with_disk(&self, observer: &Observer, max_age: Duration) -> Result<Arc<SampleSet>, Status> {
        let set = self.sample(observer, max_age)?;
        Ok(self.config.samples.with_missing_disk(set, MAX_DISK_TIME))
    }

    /// Returns when streams have to end.
    pub(crate) async fn drained(&self) {
        let mut draining = self.draining.clone();
        // An error means that the server no longer exists.
        let _ended_either_way = draining.wait_for(|draining| *draining).await;
    }
}
