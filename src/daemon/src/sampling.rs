//! The thread that samples the counters of all running pods at an interval, for the surfaces and the metrics, and the
//! thread that counts disk usage in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gantry_api::{ApiSettings, LiveSettings, Metrics, Operation};
use gantry_engine::{Observer, SampleCache};
use gantry_logging::RepeatedFailure;
use rustix::process::{Resource, getrlimit, setpriority_process};
use tracing::warn;

/// The share of the limit of open files that the sampler leaves to pods, clients and the database: one of this many
/// parts.
const LIMIT_PARTS: u64 = 4;
/// Maximum held descriptors without a limit of open files.
const MAX_DESCRIPTORS: u64 = 1 << 20;
/// The least time between two counts of a tree.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);
/// After counting, the thread rests this many times as long as that took: it uses 2 % of a core at most.
const COUNT_REST: u32 = 49;
/// The thread counts small trees together for this long, and then rests: each wake-up finds cold caches.
const MIN_COUNT_TIME: Duration = Duration::from_millis(2);
/// The time for a tree; what was counted by then is a lower bound. Also bounds the rest that delays the other trees.
const MAX_COUNT_TIME: Duration = Duration::from_secs(2);
/// The time after which the thread looks for new trees.
const COUNT_POLL: Duration = Duration::from_secs(1);
/// The time after which the order of the trees is determined anew.
const MAX_PLAN_AGE: Duration = Duration::from_secs(10);
/// The lowest priority of a thread.
const LOWEST_PRIORITY: i32 = 19;

/// An empty cache of samples, sized by this process' limit of open files.
pub(crate) fn sample_cache() -> SampleCache {
    let limit = getrlimit(Resource::Nofile).current.map_or(MAX_DESCRIPTORS, |limit| limit - limit / LIMIT_PARTS);
    SampleCache::new(usize::try_from(limit.min(MAX_DESCRIPTORS)).unwrap_or(0))
}

/// Starts the threads, which end with the process: they only read. Without them, samples are taken when they are
/// requested, and no disk usage is counted.
pub(crate) fn start(settings: LiveSettings, samples: Arc<SampleCache>, metrics: Arc<Metrics>) {
    let counted = Arc::clone(&samples);
    let sampler = std::thread::Builder::new().name("sampler".to_owned());
    let sampler = sampler.spawn(move || run(&settings, &samples, &metrics));
    let counter = std::thread::Builder::new().name("disk-usage".to_owned());
    let counter = counter.spawn(move || count_disk(&counted));
    for error in [sampler.err(), counter.err()].into_iter().flatten() {
        warn!("cannot start a thread to sample pods: {error}");
    }
}

fn run(settings: &LiveSettings, samples: &SampleCache, metrics: &Metrics) -> ! {
    let mut observer: Option<(Arc<ApiSettings>, Observer)> = None;
    let mut failure = RepeatedFailure::default();
    loop {
        let settings = settings.current();
        let interval = settings.sample_interval;
        match sample(&settings, samples, metrics, &mut observer) {
            Ok(()) => failure.clear(),
            Err(error) => failure.record(&error, |failure| {
                warn!("cannot sample the running pods: {failure}; retrying every {interval:?}");
            }),
        }
        std::thread::sleep(interval);
    }
}

/// Counts the disk usage of one tree after the other.
fn count_disk(samples: &SampleCache) -> ! {
    // Of this thread alone (setpriority(2), NOTES). At the normal priority it works, too. The kernel derives the
    // priority of its I/O from it.
    if let Err(error) = setpriority_process(None, LOWEST_PRIORITY) {
        warn!("cannot lower the priority of counting disk usage: {error}");
    }
    loop {
        std::thread::sleep(COUNT_POLL);
        let planned = Instant::now();
        let mut worked = Duration::ZERO;
        for target in samples.due_disk_counts(COUNT_INTERVAL) {
            let begun = Instant::now();
            worked += samples.count_disk(target, &|| begun.elapsed() < MAX_COUNT_TIME);
            if worked < MIN_COUNT_TIME {
                continue;
            }
            std::thread::sleep(std::mem::take(&mut worked).saturating_mul(COUNT_REST));
            // After a large tree, new apps come first.
            if planned.elapsed() > MAX_PLAN_AGE {
                break;
            }
        }
    }
}

/// Takes a sample; opens the database again when its file or the settings were replaced, or reading it failed.
fn sample(
    settings: &Arc<ApiSettings>,
    samples: &SampleCache,
    metrics: &Metrics,
    kept: &mut Option<(Arc<ApiSettings>, Observer)>,
) -> anyhow::Result<()> {
    let is_current = |(of, observer): &(Arc<ApiSettings>, Observer)| Arc::ptr_eq(of, settings) && observer.is_current();
    let observer = match kept.take().filter(is_current) {
        Some((_, observer)) => observer,
        None => Observer::open(settings.options.clone())?,
    };
    metrics.time(Operation::Sample, || samples.sample(&observer, Duration::ZERO))?;
    *kept = Some((Arc::clone(settings), observer));
    Ok(())
}
