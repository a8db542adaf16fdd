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
//! | a pod waits to be started again | a timer | start it, in another thread ([`Restarts`]) |
//! | a schedule was changed, or its time has come | a commit, or a timer | bring its pods in line, in another thread ([`Schedules`]) |
//! | a commit | the same | sync within [`SYNC_DELAY`] |
//! | timers | | collect garbage and back up the database, in another thread |
//!
//! A missed wake-up is found by comparing the WAL's size and time every [`POLL_INTERVAL`], and at the latest by the
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
use gantry_api::{Metrics, Operation, RepeatedFailure};
use gantry_engine::{CommitWatcher, Engine, PodError, PodRow, PodView, Settings};
use gantry_host::stamp::FileStamp;
use gantry_model::query::PodQuery;
use gantry_model::{AppName, AppState, Phase, PhaseName, PodId};
use tracing::{debug, error, info, info_span, warn};

use crate::Args;
use crate::collector::{Collector, DueWork};
use crate::network::Networking;
use crate::restarts::Restarts;
use crate::schedules::Schedules;
use crate::serve::SurfaceSettings;
use crate::signals::Signals;
use crate::watcher::{WakeUps, Watcher};

/// Poll interval for missed wake-ups, and delay before a retry.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two reads of the rows, however many commits there are.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time from a commit to its sync.
const SYNC_DELAY: Duration = Duration::from_secs(1);
/// Age at which a preparing pod is reconciled, in case its command was killed. Preparing rarely takes longer.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time between two checks whether a backup is due: after a restart the last backup can be of any age.
const BACKUP_INTERVAL: Duration = Duration::from_secs(60);

/// Why a pod could not be reconciled.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    reason: String,
    is_logged: bool,
}

/// See the module.
pub(crate) struct Keeper {
    args: Args,
    settings: Settings,
    /// The settings at the start, whose addresses are used.
    first_settings: Settings,
    engine: Engine,
    signals: Signals,
    watcher: Watcher,
    /// Follow the configuration.
    surface_settings: Option<SurfaceSettings>,
    metrics: Arc<Metrics>,
    collector: Collector,
    restarts: Restarts,
    schedules: Schedules,
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
    /// Time of the first commit that is not synced.
    unsynced: Option<Instant>,
    /// Time of the next read of the rows.
    next_read: Option<Instant>,
    last_read: Instant,
    next_poll: Instant,
    next_collection: Instant,
    next_backup: Instant,
}

impl Keeper {
    /// A keeper of this engine's data directory; the caller holds the lock.
    pub(crate) fn new(
        args: Args,
        settings: Settings,
        engine: Engine,
        signals: Signals,
        commits: &CommitWatcher,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Self> {
        let watcher = Watcher::new(&signals, commits).context("cannot watch the pods")?;
        let now = Instant::now();
        Ok(Self {
            args,
            first_settings: settings.clone(),
            settings,
            engine: engine.into_background(),
            signals,
            watcher,
            surface_settings: None,
            collector: Collector::new(Arc::clone(&metrics)),
            metrics,
            restarts: Restarts::default(),
            schedules: Schedules::default(),
            logged_ends: HashMap::new(),
            retries: BTreeMap::new(),
            read_failure: RepeatedFailure::default(),
            sync_failure: RepeatedFailure::default(),
            removed: false,
            preparing: false,
            read_again: false,
            last_stamp: None,
            // Commits from before this start.
            unsynced: Some(now),
            next_read: None,
            last_read: now,
            next_poll: now,
            next_collection: now,
            next_backup: now,
        })
    }

    /// Reads these settings again with the configuration.
    pub(crate) fn with_surface_settings(self, surface_settings: SurfaceSettings) -> Self {
        Self { surface_settings: Some(surface_settings), ..self }
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
                self.sync_if_due(Duration::ZERO);
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
        if now >= self.next_poll {
            self.next_poll = now + POLL_INTERVAL;
            self.poll(now);
        }
        if self.next_read.is_some_and(|due| now >= due) {
            self.read_rows();
        }
        self.sync_if_due(SYNC_DELAY);
        self.restarts.start_due(&self.engine, &self.settings.options);
        self.schedules.start_due(&self.engine, &self.settings.options);
        self.start_due_work(now);
    }

    /// Starts due work in the collector's thread; retries in a second while that is busy.
    fn start_due_work(&mut self, now: Instant) {
        let settings = self.settings.keeper;
        let due = DueWork {
            collect: now >= self.next_collection,
            back_up: now >= self.next_backup && !settings.backup.is_zero(),
        };
        if !due.collect && !due.back_up {
            return;
        }
        let started = self.collector.start(&self.settings.options, settings, due);
        if due.collect {
            self.next_collection = now + if started { settings.interval } else { POLL_INTERVAL.min(settings.interval) };
        }
        if due.back_up {
            self.next_backup =
                now + if started { settings.backup.min(BACKUP_INTERVAL) } else { POLL_INTERVAL.min(settings.backup) };
        }
    }

    /// Time until the next timer.
    fn until_due(&self) -> Duration {
        let sync = self.unsynced.map(|since| since + SYNC_DELAY);
        let back_up = (!self.settings.keeper.backup.is_zero()).then_some(self.next_backup);
        let first = [Some(self.next_poll), Some(self.next_collection), back_up, self.next_read, sync]
            .into_iter()
            .flatten()
            .min();
        let until_first = first.map_or(POLL_INTERVAL, |due| due.saturating_duration_since(Instant::now()));
        let now = gantry_engine::now();
        [self.restarts.until_due(now), self.schedules.until_due(now)]
            .into_iter()
            .flatten()
            .fold(until_first, Duration::min)
    }

    fn note_commit(&mut self, now: Instant) {
        self.unsynced.get_or_insert(now);
        self.read_again = true;
        self.next_read.get_or_insert(now.max(self.last_read + MIN_READ_INTERVAL));
    }

    /// Every second: retries failures and finds missed wake-ups.
    fn poll(&mut self, now: Instant) {
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
            self.next_read.get_or_insert(now);
        }
    }

    fn wal_stamp(&self) -> Option<FileStamp> {
        FileStamp::read(&self.engine.store().layout().wal())
    }

    /// Reads the rows: watches running pods, and reconciles pods that have been preparing for long.
    fn read_rows(&mut self) {
        (self.next_read, self.last_read) = (None, Instant::now());
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

    fn sync_if_due(&mut self, after: Duration) {
        if self.unsynced.is_none_or(|since| since.elapsed() < after) {
            return;
        }
        // Before the sync, so that a later commit schedules another one.
        self.unsynced = None;
        match self.metrics.time(Operation::Sync, || self.engine.store().make_durable()) {
            Ok(()) => self.sync_failure.clear(),
            Err(error) => {
                self.unsynced = Some(Instant::now());
                self.sync_failure.record(&anyhow::Error::from(error), log_retry);
            }
        }
    }

    /// Reads the configuration again. An invalid one is logged and has no effect.
    fn reload(&mut self, networking: &mut Networking) {
        let read = self.args.settings().map_err(anyhow::Error::from).and_then(|settings| {
            if settings.options.dir != self.settings.options.dir {
                anyhow::bail!("the data directory cannot be changed while gantryd runs: restart it");
            }
            let engine = Engine::open(settings.options.clone())?;
            Ok((settings, engine))
        });
        match read {
            Ok((settings, engine)) => {
                (self.settings, self.engine) = (settings, engine.into_background());
                self.next_collection = self.next_collection.min(Instant::now() + self.settings.keeper.interval);
                self.next_backup = self.next_backup.min(Instant::now() + self.settings.keeper.backup);
                networking.reload(&self.settings);
                if let Some(surfaces) = &self.surface_settings {
                    surfaces.reload(&self.settings);
                }
                let addresses = self.args.listen_addresses(&self.first_settings);
                addresses.warn_of_differences(self.args.listen_addresses(&self.settings));
                info!("configuration read again");
            }
            Err(error) => error!("configuration not read again, the old one stays in effect: {error:#}"),
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
