//! The samples that gantryd takes: one sampler with held descriptors, whose latest samples all surfaces share.
//!
//! A thread of gantryd takes a sample at an interval. A surface states how old its sample may be: within that time it
//! gets the latest one without any reading, so that clients that ask often cost nothing; else it takes the next one
//! itself, on its own thread. One sample is taken at a time. A pod or an app that was started since the last sample
//! always leads to a new one.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gantry_model::query::PodFilter;
use gantry_model::stats::{AppStats, DiskUsage, PodStats};
use gantry_model::{AppName, AppState, ErrorKind, Kind, PhaseName, PodId, VolumeName};
use thiserror::Error;

use super::disk::{DiskCounts, DiskTarget};
use super::rates::{CpuRates, RateBases};
use super::{SampleScope, Sampler};
use crate::{Observer, PodError, PodView, VolumeError};

/// No sample could be taken.
#[derive(Debug, Error)]
pub enum SampleError {
    /// The running pods cannot be listed.
    #[error("cannot list the running pods")]
    Pods(#[source] PodError),
    /// The volumes cannot be listed.
    #[error("cannot list the volumes")]
    Volumes(#[source] VolumeError),
    /// The cgroup hierarchies cannot be opened.
    #[error("cannot open the cgroup hierarchies")]
    Cgroups(#[source] io::Error),
}

impl Kind for SampleError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Pods(error) => error.kind(),
            Self::Volumes(error) => error.kind(),
            Self::Cgroups(error) => ErrorKind::of_io(error),
        }
    }
}

/// A running pod and its sample, with its apps.
#[derive(Debug, Clone)]
pub struct SampledPod {
    /// The pod when it was sampled.
    pub view: PodView,
    /// Its sample.
    pub stats: PodStats,
    /// Its CPU time per second.
    pub rates: CpuRates,
}

impl SampledPod {
    /// Whether the sample has the start of the pod and of each app that this later view shows.
    fn is_current(&self, view: &PodView) -> bool {
        let mut running = view.row.apps.iter().filter_map(|app| match app.state {
            AppState::Started { attempt, .. } => Some((&app.name, attempt)),
            // Only running apps have a sample.
            _ => None,
        });
        let is_sampled = |(name, attempt): (&AppName, u32)| {
            self.view.row.apps.iter().any(|app| {
                app.name == *name
                    && matches!(app.state, AppState::Started { attempt: sampled, .. } if sampled == attempt)
            })
        };
        self.view.row.phase == view.row.phase && running.all(is_sampled)
    }
}

/// One sample of all running pods, in the order of their ids.
#[derive(Debug, Clone)]
pub struct SampleSet {
    /// When it was begun.
    pub begun: Instant,
    /// The time that it took.
    pub duration: Duration,
    /// The number of descriptors that the sampler holds since.
    pub descriptors: usize,
    /// The pods. One that ended while it was sampled is left out.
    pub pods: Vec<SampledPod>,
    /// The named volumes, by name.
    pub volumes: Vec<SampledVolume>,
}

/// A named volume, and its disk usage.
#[derive(Debug, Clone)]
pub struct SampledVolume {
    /// Its name.
    pub name: VolumeName,
    /// The directory of its contents.
    pub(super) dir: PathBuf,
    /// Its usage as it was last counted; `None`: it was not counted yet, or cannot be read.
    pub usage: Option<DiskUsage>,
}

impl SampleSet {
    /// The sample of a pod.
    #[must_use]
    pub fn pod(&self, id: PodId) -> Option<&SampledPod> {
        let at = self.pods.binary_search_by_key(&id, |pod| pod.view.row.id).ok()?;
        self.pods.get(at)
    }

    /// The set without the pods and apps that have ended, given the pods that run now.
    fn without_ended(self: Arc<Self>, views: &[PodView]) -> Arc<Self> {
        let views: HashMap<PodId, &PodView> = views.iter().map(|view| (view.row.id, view)).collect();
        let runs = |view: &PodView, app: &AppStats| {
            let mut rows = view.row.apps.iter().filter(|row| row.name == app.name);
            rows.any(|row| matches!(row.state, AppState::Started { attempt, .. } if attempt == app.attempt))
        };
        let is_current = |pod: &SampledPod| {
            views.get(&pod.view.row.id).is_some_and(|view| pod.stats.apps.iter().all(|app| runs(view, app)))
        };
        if self.pods.iter().all(is_current) {
            return self;
        }
        let mut set = Self::clone(&self);
        set.pods.retain_mut(|pod| {
            let Some(view) = views.get(&pod.view.row.id) else { return false };
            pod.stats.apps.retain(|app| runs(view, app));
            true
        });
        Arc::new(set)
    }

    /// Whether the set has each of these running pods and apps.
    fn covers(&self, views: &[PodView]) -> bool {
        views.iter().all(|view| self.pod(view.row.id).is_some_and(|pod| pod.is_current(view)))
    }
}

/// See the module.
#[derive(Debug)]
pub struct SampleCache {
    /// `None`: not opened yet, or it failed.
    sampler: Mutex<Option<Sampler>>,
    latest: Mutex<Option<Arc<SampleSet>>>,
    disk: Mutex<DiskCounts>,
    rates: Mutex<RateBases>,
    max_held: usize,
}

impl SampleCache {
    /// A cache without a sample, whose sampler holds at most `max_held` descriptors.
    #[must_use]
    pub fn new(max_held: usize) -> Self {
        Self {
            sampler: Mutex::default(),
            latest: Mutex::default(),
            disk: Mutex::default(),
            rates: Mutex::default(),
            max_held,
        }
    }

    /// The latest sample, if there is one.
    #[must_use]
    pub fn latest(&self) -> Option<Arc<SampleSet>> {
        lock(&self.latest).clone()
    }

    /// A sample of all running pods that was begun at most `max_age` ago: the latest one without what has ended since,
    /// or a new one. Waits while another thread takes one.
    ///
    /// # Errors
    /// [`SampleError`].
    pub fn sample(&self, observer: &Observer, max_age: Duration) -> Result<Arc<SampleSet>, SampleError> {
        let mut sampler = lock(&self.sampler);
        let begun = Instant::now();
        let running = PodFilter { phases: vec![PhaseName::Running], ..PodFilter::default() };
        let views = observer.pods(&[running]).map_err(SampleError::Pods)?;
        if let Some(latest) = self.latest()
            && begun.saturating_duration_since(latest.begun) < max_age
            && latest.covers(&views)
        {
            return Ok(latest.without_ended(&views));
        }
        let opened = match sampler.take() {
            Some(sampler) => sampler,
            None => Sampler::open().map_err(SampleError::Cgroups)?.holding_descriptors(self.max_held),
        };
        let sampler = sampler.insert(opened);
        let mut stats: HashMap<PodId, PodStats> =
            sampler.sample(&views, SampleScope::Apps).into_iter().map(|stats| (stats.id, stats)).collect();
        let pods = views.into_iter().filter_map(|view| {
            let mut stats = stats.remove(&view.row.id)?;
            lock(&self.disk).fill(&view.row, &mut stats);
            Some(SampledPod { view, stats, rates: CpuRates::default() })
        });
        let mut pods: Vec<SampledPod> = pods.collect();
        pods.sort_by_key(|pod| pod.view.row.id);
        let rates = lock(&self.rates).update(&pods.iter().map(|pod| &pod.stats).collect::<Vec<_>>());
        pods.iter_mut().zip(rates).for_each(|(pod, rates)| pod.rates = rates);
        let (duration, descriptors) = (begun.elapsed(), sampler.held_descriptors());
        let volumes = observer.volumes().map_err(SampleError::Volumes)?.into_iter().map(|row| SampledVolume {
            dir: observer.volume_data(&row.name),
            usage: lock(&self.disk).volume(&row.name),
            name: row.name,
        });
        let set = Arc::new(SampleSet { begun, duration, descriptors, pods, volumes: volumes.collect() });
        *lock(&self.latest) = Some(Arc::clone(&set));
        Ok(set)
    }

    /// The trees of running pods, and the named volumes, whose disk usage was not counted within the interval.
    pub fn due_disk_counts(&self, interval: Duration) -> Vec<DiskTarget> {
        self.latest().map_or_else(Vec::new, |set| lock(&self.disk).due(&set, interval))
    }

    /// Counts the disk usage of the trees in this set that were never counted, within this time, and returns the set
    /// with it. Trees that are large, or many, are left to [`Self::count_disk`].
    pub fn with_missing_disk(&self, set: Arc<SampleSet>, time: Duration) -> Arc<SampleSet> {
        let begun = Instant::now();
        let missing = lock(&self.disk).missing(&set);
        let mut has_counted = false;
        for target in missing {
            if begun.elapsed() >= time {
                break;
            }
            let mut is_complete = true;
            let usage = target.count(&mut || {
                is_complete = begun.elapsed() < time;
                is_complete
            });
            if is_complete {
                lock(&self.disk).insert(target, begun, usage);
                has_counted = true;
            }
        }
        if !has_counted {
            return set;
        }
        let mut set = SampleSet::clone(&set);
        for pod in &mut set.pods {
            lock(&self.disk).fill(&pod.view.row, &mut pod.stats);
        }
        let set = Arc::new(set);
        let mut latest = lock(&self.latest);
        // Another thread may have taken a newer sample.
        if latest.as_ref().is_some_and(|latest| latest.begun == set.begun) {
            *latest = Some(Arc::clone(&set));
        }
        set
    }

    /// Counts the disk usage of a tree, for the next samples. Ends early, with a lower bound, when its pod has
    /// ended or `proceed` returns false. Returns the time that it took.
    pub fn count_disk(&self, target: DiskTarget, proceed: &dyn Fn() -> bool) -> Duration {
        let begun = Instant::now();
        let is_running = || target.pod.is_none_or(|pod| self.latest().is_some_and(|set| set.pod(pod).is_some()));
        let usage = target.count(&mut || proceed() && is_running());
        lock(&self.disk).insert(target, begun, usage);
        begun.elapsed()
    }
}

/// After a panic, the contents are still whole: each is replaced at once.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
