//! The keeper: reconciles pods as soon as something changes, collects garbage on a timer, and makes commits durable
//! within a second.
//!
//! # One loop, level-triggered
//!
//! | event | wake-up | action |
//! |---|---|---|
//! | a supervisor ended | its pidfd | reconcile the pod: remove cgroups, row Exited, events |
//! | an app of a running pod ended | inotify on its directory (journal) | reconcile the pod: the app's row and event |
//! | a command started a pod | a commit ([`CommitWatcher`]) | watch its supervisor |
//! | a preparing command was killed | poll while a pod is preparing | reconcile the pod after [`PREPARE_TIMEOUT`] |
//! | a pod waits to be started again | a timer | start it, in another thread ([`PodRestarts`]) |
//! | a schedule was changed, or its time has come | a commit, or a timer | bring its pods in line, in another thread ([`ScheduleRuns`]) |
//! | a commit | the same | sync within a second |
//! | timers | | collect garbage and back up the database, in another thread |
//!
//! A missed wake-up is found by comparing the WAL's size and time every second, and at the latest by the
//! next collection, which reconciles every pod. A failure is logged once and retried every second. A pod that another
//! process has locked is retried as well, so that it does not delay other pods ([`Engine::into_background`]), and
//! logged if it is still locked a second later.
//!
//! Idle pods are not examined: ten thousand of them cost one `stat` a second. Only pods whose directories cannot be
//! watched are reconciled every second.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gantry_api::{Metrics, Operation};
use gantry_engine::{CommitWatcher, Engine, PodError, PodRow, PodView};
use gantry_host::stamp::FileStamp;
use gantry_logging::RepeatedFailure;
use gantry_model::query::PodQuery;
use gantry_model::{AppName, AppState, Phase, PhaseName, PodId};
use tracing::{debug, error, info, info_span, warn};

use crate::collector::Collector;
use crate::configuration::Configuration;
use crate::heap::HeapTimer;
use crate::network::Networking;
use crate::restarts::PodRestarts;
use crate::schedules::ScheduleRuns;
use crate::signals::Signals;
use crate::timed_work::TimedWork;
use crate::timers::Timers;
use crate::watcher::{WakeUps, Watcher};

/// Age at which a preparing pod is reconciled, in case its command was killed. Preparing rarely takes longer.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a pod could not be reconciled.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    reason: String,
    is_logged: bool,
}

/// See the module.
pub(crate) struct Keeper {
    configuration: Configuration,
    engine: Engine,
    signals: Signals,
    watcher: Watcher,
    metrics: Arc<Metrics>,
    timers: Timers,
    heap: HeapTimer,
    collector: Collector,
    restarts: TimedWork<PodRestarts>,
    schedules: TimedWork<ScheduleRuns>,
    /// The apps of each watched pod whose end was logged.
    logged_ends: HashMap<PodId, BTreeSet<AppName>>,
    /// Pods to reconcile again, with the last failure.
    retries: BTreeMap<PodId, Failure>,
    /// Of reading the rows.
    read_failure: RepeatedFailure,
    /// Of syncing the database.
    sync_failure: RepeatedFailure,
    /// Whether the open database is no longer the file in the directory. Its writes would be lost.
    removed: bool,
    /// Whether a pod was preparing when the rows were read last.
    preparing: bool,
    /// Whether the rows are read once more at the next poll, because the last wake-up may have come before its commit
    /// was visible: SQLite writes the WAL first, and then publishes the commit.
    read_again: bool,
    /// The WAL when the rows were read last. A commit changes it.
    last_stamp: Option<FileStamp>,
}

impl Keeper {
    /// A keeper of this engine's data directory; the caller holds the lock.
    pub(crate) fn new(
        configuration: Configuration,
        engine: Engine,
        signals: Signals,
        commits: &CommitWatcher,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        let watcher = Watcher::new(&signals, commits).context("cannot watch the pods")?;
        Ok(Self {
            configuration,
            engine: engine.into_background(),
            signals,
            watcher,
            collector: Collector::new(Arc::clone(&metrics)),
            metrics,
            timers: Timers::new(Instant::now()),
            heap: HeapTimer::new(Instant::now()),
            restarts: TimedWork::default(),
            schedules: TimedWork::default(),
            logged_ends: HashMap::new(),
            retries: BTreeMap::new(),
            read_failure: RepeatedFailure::default(),
            sync_failure: RepeatedFailure::default(),
            removed: false,
            preparing: false,
            read_again: false,
            last_stamp: None,
        })
    }

    /// Reconciles all pods that are not exited, and watches the running ones.
    pub(crate) fn start(&mut self) {
        // A killed command may have left them; running pods are examined below.
        let left = self.engine.store().pods(&PodQuery::in_phases(unfinished_except(PhaseName::Running)));
        for row in left.unwrap_or_default() {
            if self.signals.end() {
                return;
            }
            self.reconcile(row.id);
        }
        // Logs a failure to read the rows.
        self.read_rows();
        info!("running pods: {}", self.watcher.count());
    }

    /// Runs the loop until a signal ends it.
    pub(crate) fn run(&mut self, networking: &mut Networking) -> anyhow::Result<()> {
        loop {
            let requests = self.signals.take_requests();
            if requests.end {
                // Commits of the last reconciliations.
                self.sync_if_due(true);
                return Ok(());
            }
            if requests.reload {
                self.reload(networking);
            }
            let wake_ups = self.watcher.wait(self.until_due()).context("cannot wait for events")?;
            self.react(&wake_ups);
            if self.removed {
                let db = self.engine.store().layout().db();
                anyhow::bail!("{} was removed or replaced while it was used; start again to restore it", db.display());
            }
        }
    }

    fn react(&mut self, wake_ups: &WakeUps) {
        for &id in &wake_ups.pods {
            if self.signals.end() {
                return;
            }
            self.reconcile(id);
        }
        let now = Instant::now();
        if wake_ups.database {
            self.note_commit(now);
        }
        if self.timers.take_poll(now) {
            self.poll(now);
        }
        if self.timers.is_read_due(now) {
            self.read_rows();
        }
        self.sync_if_due(false);
        let options = &self.configuration.current().options;
        self.restarts.start_due(&self.engine, options);
        self.schedules.start_due(&self.engine, options);
        self.start_due_work(now);
    }

    /// Starts due work in the collector's thread; retries in a second while that is busy.
    fn start_due_work(&mut self, now: Instant) {
        let settings = self.configuration.current();
        let due = self.timers.due_work(now, &settings.keeper);
        if !due.collect && !due.back_up {
            return;
        }
        let started = self.collector.start(&settings.options, settings.keeper, due);
        self.timers.repeat_work(due, started, now, &settings.keeper);
    }

    /// Time until the next timer.
    fn until_due(&self) -> Duration {
        let next = self.timers.next(&self.configuration.current().keeper);
        let until_next = next.saturating_duration_since(Instant::now());
        let now = gantry_engine::now();
        [self.restarts.until_due(now), self.schedules.until_due(now)]
            .into_iter()
            .flatten()
            .fold(until_next, Duration::min)
    }

    fn note_commit(&mut self, now: Instant) {
        self.timers.note_commit(now);
        self.read_again = true;
    }

    /// Every second: retries failures, finds missed wake-ups, and gives back memory.
    fn poll(&mut self, now: Instant) {
        self.heap.release_if_due(now);
        // If the file cannot be examined, assume that it was not removed.
        self.removed = self.engine.store().is_current().is_ok_and(|current| !current);
        for id in self.retries.keys().copied().chain(self.watcher.without_inotify()).collect::<Vec<_>>() {
            if self.signals.end() {
                return;
            }
            self.reconcile(id);
        }
        if self.wal_stamp() != self.last_stamp {
            self.note_commit(now);
        } else if std::mem::take(&mut self.read_again) || self.preparing || self.read_failure.is_failing() {
            self.timers.read_at_once(now);
        }
    }

    fn wal_stamp(&self) -> Option<FileStamp> {
        FileStamp::read(&self.engine.store().layout().wal())
    }

    /// Reads the rows: watches running pods, and reconciles pods that have been preparing for long.
    fn read_rows(&mut self) {
        self.timers.begin_read(Instant::now());
        // Before the rows are read, so that a later commit changes it.
        self.last_stamp = self.wal_stamp();
        // No process works on a prepared pod.
        let read = || self.engine.store().pods(&PodQuery::in_phases(unfinished_except(PhaseName::Prepared)));
        let rows = match self.metrics.time(Operation::ReadRows, read) {
            Ok(rows) => rows,
            Err(error) => return self.read_failure.record(&anyhow::Error::from(error), log_retry),
        };
        self.restarts.read_again();
        self.schedules.read_again();
        self.read_failure.clear();
        self.preparing = false;
        let now = gantry_engine::now();
        for row in rows {
            if self.signals.end() {
                return;
            }
            match row.phase {
                Phase::Running { .. } if self.watcher.has(row.id) || self.retries.contains_key(&row.id) => {}
                Phase::Running { .. } => self.watch(&row),
                // The pod is being prepared.
                _ => {
                    self.preparing = true;
                    if now.since(row.created) >= PREPARE_TIMEOUT {
                        self.reconcile(row.id);
                    }
                }
            }
        }
    }

    /// Watches a running pod, then reconciles it, to see changes from before the watch.
    fn watch(&mut self, row: &PodRow) {
        let id = row.id;
        let pidfd = match self.engine.supervisor_fd(row) {
            Ok(pidfd) => pidfd,
            Err(error) => return self.retry_after(id, error),
        };
        if let Some(pidfd) = pidfd {
            let dir = self.engine.store().layout().pod_dir(&id);
            if let Err(error) = self.watcher.watch(id, pidfd, &dir) {
                return self.retry_later(id, format!("cannot watch it: {error}"));
            }
            info!("pod {id} runs");
            self.logged_ends.insert(id, ended_apps(row));
        }
        self.reconcile(id);
    }

    /// Reconciles a pod, logs the outcome, and keeps watching it if it runs.
    fn reconcile(&mut self, id: PodId) {
        let _span = info_span!("pod", pod = %id).entered();
        debug!("reconciling pod {id}");
        let begun = Instant::now();
        let result = self.engine.status(id);
        let succeeded = matches!(result, Ok(_) | Err(PodError::NotFound(_)));
        self.metrics.record(Operation::Reconcile, begun.elapsed(), succeeded);
        let view = match result {
            Ok(view) => view,
            Err(PodError::NotFound(_)) => return self.forget(id),
            Err(error) => return self.retry_after(id, error),
        };
        match &view.row.phase {
            Phase::Running { .. } => self.check_running(&view),
            // Not running. Its start will be a commit, which wakes the loop.
            Phase::Embryo | Phase::Preparing | Phase::Prepared { .. } | Phase::Starting { .. } => self.forget(id),
            Phase::AbortedPrepare { .. } => {
                info!("pod {id}: preparation aborted");
                self.forget(id);
            }
            phase => {
                if let Some((_, end)) = phase.end() {
                    info!("pod {id} exited with code {}: {}", end.exit_code, end.reason);
                }
                self.forget(id);
            }
        }
    }

    fn check_running(&mut self, view: &PodView) {
        let id = view.row.id;
        let pidfd = match self.engine.supervisor_fd(&view.row) {
            Ok(Some(pidfd)) => pidfd,
            // Another process deletes or reconciles the pod.
            Ok(None) => {
                return self.retry_later(id, "its supervisor has ended and its directory is still locked".to_owned());
            }
            Err(error) => return self.retry_after(id, error),
        };
        if rustix::event::poll(&mut [readable(&pidfd)], Some(&rustix::event::Timespec::default())) != Ok(0) {
            return self.retry_later(id, "its supervisor is ending and its directory is still locked".to_owned());
        }
        self.retries.remove(&id);
        if !self.watcher.has(id) {
            return self.watch(&view.row);
        }
        let logged = self.logged_ends.entry(id).or_default();
        for app in ended_apps(&view.row) {
            if logged.insert(app.clone()) {
                info!("app {app} of pod {id} ended");
            }
        }
    }

    /// Stops watching a pod that needs no further reconciliation.
    fn forget(&mut self, id: PodId) {
        self.engine.forget_journal(id);
        self.watcher.forget(id);
        self.logged_ends.remove(&id);
        self.retries.remove(&id);
    }

    /// [`Self::retry_later`] after an error.
    fn retry_after(&mut self, id: PodId, error: PodError) {
        self.retry_later(id, format!("{:#}", anyhow::Error::from(error)));
    }

    /// Retries a pod in a second. It is not watched until then, because its pidfd may stay readable.
    fn retry_later(&mut self, id: PodId, reason: String) {
        self.watcher.forget(id);
        match self.retries.get_mut(&id).filter(|known| known.reason == reason) {
            Some(Failure { is_logged: true, .. }) => {}
            Some(Failure { is_logged, .. }) => {
                *is_logged = true;
                warn!("cannot reconcile pod {id}: {reason}; retrying every second");
            }
            // Usually another process reconciles it at the same moment: log only if it is not done by the next try.
            None => drop(self.retries.insert(id, Failure { reason, is_logged: false })),
        }
    }

    fn sync_if_due(&mut self, at_once: bool) {
        // Before the sync, so that a later commit schedules another one.
        if !self.timers.take_sync(at_once) {
            return;
        }
        match self.metrics.time(Operation::Sync, || self.engine.store().make_durable()) {
            Ok(()) => self.sync_failure.clear(),
            Err(error) => {
                self.timers.retry_sync(Instant::now());
                self.sync_failure.record(&anyhow::Error::from(error), log_retry);
            }
        }
    }

    /// Reads the configuration again. An invalid one is logged and has no effect.
    fn reload(&mut self, networking: &mut Networking) {
        match self.configuration.reload() {
            Ok(engine) => {
                self.engine = engine.into_background();
                let settings = self.configuration.current();
                self.timers.follow(&settings.keeper, Instant::now());
                networking.reload(settings);
                info!("configuration reloaded");
            }
            Err(error) => error!("configuration not reloaded, the old one stays in effect: {error:#}"),
        }
    }
}

fn log_retry(failure: &str) {
    error!("{failure}; retrying every second");
}

fn readable(fd: &std::os::fd::OwnedFd) -> rustix::event::PollFd<'_> {
    rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)
}

fn unfinished_except(phase: PhaseName) -> impl Iterator<Item = PhaseName> {
    PhaseName::unfinished().filter(move |name| *name != phase)
}

fn ended_apps(row: &PodRow) -> BTreeSet<AppName> {
    let ended = row.apps.iter().filter(|app| matches!(app.state, AppState::Exited { .. }));
    ended.map(|app| app.name.clone()).collect()
}
