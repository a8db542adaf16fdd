//! The thread that samples the counters of all running pods at an interval, for the surfaces and the metrics.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gantry_api::{Metrics, Operation};
use gantry_engine::{Observer, Options, SampleCache};
use rustix::process::{Resource, getrlimit};
use tracing::{error, warn};

/// The share of the limit of open files that the sampler leaves to pods, clients and the database: one of this many
/// parts.
const LIMIT_PARTS: u64 = 4;
/// Maximum held descriptors without a limit of open files.
const MAX_DESCRIPTORS: u64 = 1 << 20;

/// An empty cache of samples, sized by this process' limit of open files.
pub(crate) fn sample_cache() -> SampleCache {
    let limit = getrlimit(Resource::Nofile).current.map_or(MAX_DESCRIPTORS, |limit| limit - limit / LIMIT_PARTS);
    SampleCache::new(usize::try_from(limit.min(MAX_DESCRIPTORS)).unwrap_or(0))
}

/// The sampling thread. Dropping this ends it.
pub(crate) struct Sampling {
    ending: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Sampling {
    /// Starts the thread. Without one, samples are taken when they are requested.
    pub(crate) fn start(
        options: Options,
        samples: Arc<SampleCache>,
        metrics: Arc<Metrics>,
        interval: Duration,
    ) -> Self {
        let ending: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let thread_ending = Arc::clone(&ending);
        let thread = std::thread::Builder::new().name("sampler".to_owned());
        let thread = thread.spawn(move || run(&options, &samples, &metrics, interval, &thread_ending));
        let thread = thread.inspect_err(|error| warn!("cannot start a thread to sample pods: {error}")).ok();
        Self { ending, thread }
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        let (flag, changed) = &*self.ending;
        *flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            error!("the thread that samples pods panicked");
        }
    }
}

fn run(
    options: &Options,
    samples: &SampleCache,
    metrics: &Metrics,
    interval: Duration,
    (flag, changed): &(Mutex<bool>, Condvar),
) {
    let mut observer: Option<Observer> = None;
    let mut last_failure = None;
    loop {
        let result = sample(options, samples, metrics, &mut observer);
        let failure = result.err().map(|error| format!("{error:#}"));
        if let Some(text) = failure.as_ref().filter(|_| failure != last_failure) {
            warn!("cannot sample the running pods: {text}; retrying every {interval:?}");
        }
        last_failure = failure;
        let ending = flag.lock().unwrap_or_else(PoisonError::into_inner);
        let ending = changed.wait_timeout_while(ending, interval, |ending| !*ending);
        if *ending.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
    }
}

/// Takes a sample; opens the database again when its file was replaced or reading it failed.
fn sample(
    options: &Options,
    samples: &SampleCache,
    metrics: &Metrics,
    kept: &mut Option<Observer>,
) -> anyhow::Result<()> {
    let observer = match kept.take().filter(Observer::is_current) {
        Some(observer) => observer,
        None => Observer::open(options.clone())?,
    };
    metrics.time(Operation::Sample, || samples.sample(&observer, Duration::ZERO))?;
    *kept = Some(observer);
    Ok(())
}
