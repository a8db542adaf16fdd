//! Collects garbage, trims the history of events and backs up the database in a thread of its own, so that deleting a
//! large pod or copying a large database does not delay the keeper.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use gantry_api::{Metrics, Operation, Removal};
use gantry_engine::{Engine, GcAction, KeeperSettings, Options};
use tracing::{error, info, warn};

/// Work that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DueWork {
    /// Collect garbage.
    pub(crate) collect: bool,
    /// Back up the database, if it has changed and the last backup is old enough.
    pub(crate) back_up: bool,
}

/// The thread: at most one at a time.
#[derive(Debug)]
pub(crate) struct Collector {
    metrics: Arc<Metrics>,
    thread: Option<JoinHandle<()>>,
    /// Time of the last collection of layers and blobs without an image.
    last_image_sweep: Instant,
}

impl Collector {
    /// A collector without a thread.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, thread: None, last_image_sweep: Instant::now() }
    }

    /// Starts due work. `false`: nothing was started, because earlier work is under way or no thread can be made.
    pub(crate) fn start(&mut self, options: &Options, settings: KeeperSettings, due: DueWork) -> bool {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return false;
        }
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            error!("the last garbage collection panicked");
        }
        // A sweep also removes the layers of an interrupted fetch, from which the next fetch resumes: sweeps are rare.
        let images = due.collect && self.last_image_sweep.elapsed() >= settings.gc.grace.max(settings.interval);
        let (options, metrics) = (options.clone(), Arc::clone(&self.metrics));
        let thread = std::thread::Builder::new().name("collector".to_owned());
        match thread.spawn(move || work(options, settings, due, images, &metrics)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                warn!("cannot start a thread to collect garbage: {error}");
                return false;
            }
        }
        if images {
            self.last_image_sweep = Instant::now();
        }
        true
    }
}

fn work(options: Options, settings: KeeperSettings, due: DueWork, images: bool, metrics: &Metrics) {
    let engine = match Engine::open(options) {
        Ok(engine) => engine,
        Err(error) => {
            return warn!("cannot collect garbage or make a backup: {:#}", anyhow::Error::from(error));
        }
    };
    // The backup first, so that it has what the collection deletes.
    if due.back_up {
        back_up(&engine, settings, metrics);
    }
    if due.collect {
        collect(&engine, settings, images, metrics);
    }
}

fn back_up(engine: &Engine, settings: KeeperSettings, metrics: &Metrics) {
    match metrics.time(Operation::Backup, || engine.store().back_up_if_due(settings.backup)) {
        Ok(Some(backup)) => info!("backed up the database: {}", backup.path.display()),
        Ok(None) => {}
        Err(error) => error!("{:#}", anyhow::Error::from(error)),
    }
}

fn collect(engine: &Engine, settings: KeeperSettings, images: bool, metrics: &Metrics) {
    if let Err(error) = metrics.time(Operation::CollectPods, || collect_pods(engine, settings, metrics)) {
        warn!("cannot collect garbage: {error:#}");
    }
    if let Err(error) = metrics.time(Operation::TrimEvents, || trim_events(engine, metrics)) {
        warn!("cannot trim the history of events: {error:#}");
    }
    if images && let Err(error) = metrics.time(Operation::CollectImages, || sweep_images(engine, metrics)) {
        warn!("cannot collect unused layers and blobs: {error:#}");
    }
}

/// Trims after the pods are removed, because their removal adds events.
fn trim_events(engine: &Engine, metrics: &Metrics) -> anyhow::Result<()> {
    let trimmed = engine.trim_events()?;
    metrics.count_removed(Removal::Events, trimmed as u64);
    if trimmed > 0 {
        info!("deleted the {trimmed} oldest events: events-kept is {}", engine.options().events_kept);
    }
    Ok(())
}

fn collect_pods(engine: &Engine, settings: KeeperSettings, metrics: &Metrics) -> anyhow::Result<()> {
    let report = engine.gc(&settings.gc)?;
    for step in report.steps {
        let done = match step.action {
            GcAction::Mark => "marked",
            GcAction::Delete => {
                metrics.count_removed(Removal::Pods, 1);
                "removed"
            }
        };
        info!("{done} pod {}: {}", step.id, step.why);
    }
    for path in report.lost_pods {
        info!("removed the directory of a lost pod: {}", path.display());
    }
    for line in report.networks {
        info!("removed an unused network resource: {line}");
    }
    for (id, line) in &report.abandoned {
        warn!("pod {id} is removed, but a network plugin may have leaked resources: {line}");
    }
    if let Some(error) = report.networks_failure {
        warn!("{:#}", anyhow::Error::from(error));
    }
    for error in report.store_failures {
        warn!("{:#}", anyhow::Error::from(error));
    }
    for (id, error) in report.failures {
        // anyhow prints the chain of causes.
        warn!("cannot collect pod {id}: {:#}", anyhow::Error::from(error));
    }
    Ok(())
}

fn sweep_images(engine: &Engine, metrics: &Metrics) -> anyhow::Result<()> {
    let swept = engine.store().sweep_images()?;
    for (removal, count) in
        [(Removal::Layers, swept.layers), (Removal::Blobs, swept.blobs), (Removal::ImageBytes, swept.bytes)]
    {
        metrics.count_removed(removal, count);
    }
    if swept.layers + swept.blobs > 0 {
        let (layers, blobs, bytes) = (swept.layers, swept.blobs, swept.bytes);
        info!("removed {layers} layers and {blobs} blobs without an image: {bytes} bytes");
    }
    Ok(())
}
