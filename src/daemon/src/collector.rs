//! Collecting garbage, trimming the history of events and backing up the database in a thread of its own, so that
//! deleting a big pod or copying a big database delays nobody's end.

use std::thread::JoinHandle;
use std::time::Instant;

use gantry_engine::{Engine, GcAction, KeeperSettings, Options};
use tracing::{error, info, warn};

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    /// Collect garbage.
    pub(crate) collect: bool,
    /// Back up the database, if it has changed and the last backup is old enough.
    pub(crate) back_up: bool,
}

/// At most one collection at a time.
#[derive(Debug)]
pub(crate) struct Collector {
    under_way: Option<JoinHandle<()>>,
    /// When layers and blobs without an image were swept last.
    swept: Instant,
}

impl Collector {
    /// One that has nothing to do yet.
    pub(crate) fn new() -> Self {
        Self { under_way: None, swept: Instant::now() }
    }

    /// Begins what is due; `false`, and nothing is begun, while the last is under way.
    pub(crate) fn begin(&mut self, options: &Options, settings: KeeperSettings, due: Due) -> bool {
        if self.under_way.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return false;
        }
        if let Some(Err(_)) = self.under_way.take().map(JoinHandle::join) {
            error!("the last collection of garbage panicked");
        }
        // Layers of a fetch that was cut short are worth keeping for a while: the next one starts from them.
        let images = due.collect && self.swept.elapsed() >= settings.gc.grace.max(settings.interval);
        if images {
            self.swept = Instant::now();
        }
        let options = options.clone();
        let thread = std::thread::Builder::new().name("collector".to_owned());
        match thread.spawn(move || work(options, settings, due, images)) {
            Ok(thread) => self.under_way = Some(thread),
            Err(error) => warn!("cannot start a thread to collect garbage: {error}"),
        }
        true
    }
}

fn work(options: Options, settings: KeeperSettings, due: Due, images: bool) {
    let engine = match Engine::open(options) {
        Ok(engine) => engine,
        Err(error) => {
            return warn!("cannot collect garbage or make a backup: {:#}", anyhow::Error::from(error));
        }
    };
    // First: what is collected is gone.
    if due.back_up {
        back_up(&engine, settings);
    }
    if due.collect {
        collect(&engine, settings, images);
    }
}

fn back_up(engine: &Engine, settings: KeeperSettings) {
    match engine.store().back_up_if_due(settings.backup) {
        Ok(Some(backup)) => info!("backed up the database: {}", backup.path.display()),
        Ok(None) => {}
        Err(error) => error!("{:#}", anyhow::Error::from(error)),
    }
}

fn collect(engine: &Engine, settings: KeeperSettings, images: bool) {
    if let Err(error) = add_annotations(engine) {
        warn!("cannot write down the annotations of old pods: {error:#}");
    }
    if let Err(error) = collect_pods(engine, settings) {
        warn!("cannot collect garbage: {error:#}");
    }
    if let Err(error) = trim_events(engine) {
        warn!("cannot trim the history of events: {error:#}");
    }
    if images && let Err(error) = sweep_images(engine) {
        warn!("cannot sweep images: {error:#}");
    }
}

/// So that listing them is as cheap as listing others.
fn add_annotations(engine: &Engine) -> anyhow::Result<()> {
    let old = engine.add_annotations_of_old_pods()?;
    if old > 0 {
        info!("annotations that only manifests had were written down, of pods: {old}");
    }
    Ok(())
}

/// After the pods: their removal is told by events too.
fn trim_events(engine: &Engine) -> anyhow::Result<()> {
    let trimmed = engine.trim_events()?;
    if trimmed > 0 {
        info!("deleted the {trimmed} oldest events: events-kept is {}", engine.options().events_kept);
    }
    Ok(())
}

fn collect_pods(engine: &Engine, settings: KeeperSettings) -> anyhow::Result<()> {
    let report = engine.gc(&settings.gc)?;
    for step in report.steps {
        let done = match step.action {
            GcAction::Mark => "marked",
            GcAction::Delete => "removed",
        };
        info!("{done} pod {}: {}", step.id, step.why);
    }
    for path in report.lost_pods {
        info!("removed what was left of a lost pod: {}", path.display());
    }
    for line in report.networks {
        info!("removed what no pod needs: {line}");
    }
    for (id, line) in &report.abandoned {
        warn!("pod {id} is removed, but a network plugin may have kept something of it: {line}");
    }
    if let Some(error) = report.networks_failure {
        warn!("{:#}", anyhow::Error::from(error));
    }
    for error in report.temporaries_failure.into_iter().chain(report.lost_pods_failure) {
        warn!("{:#}", anyhow::Error::from(error));
    }
    for (id, error) in report.failures {
        // Wrapped only for the chain of its causes.
        warn!("cannot collect pod {id}: {:#}", anyhow::Error::from(error));
    }
    Ok(())
}

fn sweep_images(engine: &Engine) -> anyhow::Result<()> {
    let swept = engine.store().sweep_images()?;
    if swept.layers + swept.blobs > 0 {
        let (layers, blobs, bytes) = (swept.layers, swept.blobs, swept.bytes);
        info!("swept {layers} layers and {blobs} blobs that no image needs: {bytes} bytes");
    }
    Ok(())
}
