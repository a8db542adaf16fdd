//! The keeper: brings rows up to the facts as soon as the facts change, has garbage collected on a timer, and makes what
//! was committed durable within a second.
//!
//! # One loop, level-triggered
//!
//! | what happened | wakes by | what is done |
//! |---|---|---|
//! | a supervisor ended, however | its pidfd | the pod is settled: cgroups removed, row Exited, events |
//! | an app of a running pod ended | the pod directory (journal) | the app's row and event |
//! | a pod was started, by anybody | the WAL | its supervisor is watched from now on |
//! | a preparer was killed | a look once a second while anybody prepares | the pod is settled, when it is older than [`PREPARING`] |
//! | anything was committed | the WAL | synced within [`SYNC`] |
//! | the timers | | garbage is collected and the database backed up, in another thread |
//!
//! Whatever a wake-up misses is found once a second by comparing the WAL's size and time ([`LOOK`]), and at the latest
//! by the next collection, which looks at every pod. What fails is said once and tried again every second; so is a pod
//! that somebody else is at, for no pod may keep us from the others for long ([`Engine::into_background`]). What keeps a pod from
//! being settled is said when it has not gone away within a second.
//!
//! No pod is looked at without a reason: ten thousand idle ones cost one `stat` a second. Only those whose directories
//! the kernel does not watch for us are looked at every second.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use gantry_engine::{Engine, PodError, PodRow, PodView, Settings};
use gantry_model::query::PodQuery;
use gantry_model::{AppName, AppState, Phase, PodId};
use tracing::{debug, error, info, info_span, warn};

use crate::Args;
use crate::collector::{Collector, Due};
use crate::network::Networking;
use crate::signals::Signals;
use crate::watcher::{Watcher, Woken};

/// How often it is looked whether a wake-up was missed, and failures are tried again.
const LOOK: Duration = Duration::from_secs(1);
/// At least this long between two looks at the rows, however many commits there are.
const BREATH: Duration = Duration::from_millis(20);
/// How long a commit may wait for its sync.
const SYNC: Duration = Duration::from_secs(1);
/// How long nobody asks whether a preparer still lives. It rarely takes longer.
const PREPARING: Duration = Duration::from_secs(5);

/// How often it is looked at least whether a backup is due: after a restart the last one may be of any age.
const BACKUP_LOOK: Duration = Duration::from_secs(60);

/// The phases in which somebody is at a pod.
const ACTIVE: [&str; 3] = ["embryo", "preparing", "running"];

/// What a WAL looks like from outside; another one after a commit.
type Stamp = Option<(SystemTime, u64)>;

/// What keeps us from settling a pod.
#[derive(Debug, PartialEq, Eq)]
struct Trouble {
    why: String,
    said: bool,
}

/// See the module.
pub(crate) struct Keeper {
    args: Args,
    settings: Settings,
    engine: Engine,
    signals: Signals,
    watcher: Watcher,
    collector: Collector,
    /// Of each watched pod: the apps whose end was told.
    told: HashMap<PodId, BTreeSet<AppName>>,
    /// Pods to be tried again, with what kept us from settling them.
    later: BTreeMap<PodId, Trouble>,
    /// Why the rows could not be looked at or synced the last time.
    trouble: Option<String>,
    /// Whether the database is not the one in the directory any more. Going on would write where nobody reads.
    removed: bool,
    /// Whether somebody was preparing at the last look.
    preparing: bool,
    seen: Stamp,
    /// When the first commit came that is not synced.
    unsynced: Option<Instant>,
    /// When the rows are to be looked at.
    look: Option<Instant>,
    looked: Instant,
    tick: Instant,
    collect: Instant,
    back_up: Instant,
}

impl Keeper {
    /// A keeper of this engine's data directory; the caller holds the lock.
    pub(crate) fn new(args: Args, settings: Settings, engine: Engine, signals: Signals) -> anyhow::Result<Self> {
        let watcher = Watcher::new(&signals, engine.store()).context("cannot watch the data directory")?;
        let now = Instant::now();
        Ok(Self {
            args,
            settings,
            engine: engine.into_background(),
            signals,
            watcher,
            collector: Collector::new(),
            told: HashMap::new(),
            later: BTreeMap::new(),
            trouble: None,
            removed: false,
            preparing: false,
            seen: None,
            // What was committed while nobody kept the directory.
            unsynced: Some(now),
            look: None,
            looked: now,
            tick: now,
            collect: now,
            back_up: now,
        })
    }

    /// Settles what is found and watches what runs.
    pub(crate) fn begin(&mut self) {
        let prepared = self.engine.store().pods(&PodQuery::in_phases(&["embryo", "preparing", "prepared"]));
        for row in prepared.unwrap_or_default() {
            if self.signals.end() {
                return;
            }
            // Killed while it was prepared, or started by a command that died before it could say so.
            self.settle(row.id);
        }
        // Says so where the rows cannot be read.
        self.look_at_rows();
        info!("running pods: {}", self.watcher.count());
    }

    /// Keeps until a signal ends it.
    pub(crate) fn run(&mut self, networking: &mut Networking) -> anyhow::Result<()> {
        loop {
            let asked = self.signals.take();
            if asked.end {
                // What it has settled itself was committed a moment ago.
                self.sync_if_due(Duration::ZERO);
                return Ok(());
            }
            if asked.reload {
                self.reload(networking);
            }
            let woken = self.watcher.wait(self.until_due()).context("cannot wait for events")?;
            self.react(&woken);
            if self.removed {
                let db = self.engine.store().layout().db();
                anyhow::bail!("{} was removed or replaced while it was used; start again to restore it", db.display());
            }
        }
    }

    fn react(&mut self, woken: &Woken) {
        for &id in &woken.pods {
            if self.signals.end() {
                return;
            }
            self.settle(id);
        }
        let now = Instant::now();
        if woken.database {
            self.note_commit(now);
        }
        if now >= self.tick {
            self.tick = now + LOOK;
            self.catch_up(now);
        }
        if self.look.is_some_and(|due| now >= due) {
            self.look_at_rows();
        }
        self.sync_if_due(SYNC);
        self.use_collector(now);
    }

    /// Has the other thread do what is due; once more in a second while it is busy.
    fn use_collector(&mut self, now: Instant) {
        let settings = self.settings.keeper;
        let due = Due { collect: now >= self.collect, back_up: now >= self.back_up && !settings.backup.is_zero() };
        if !due.collect && !due.back_up {
            return;
        }
        let begun = self.collector.begin(&self.settings.options, settings, due);
        if due.collect {
            self.collect = now + if begun { settings.interval } else { LOOK.min(settings.interval) };
        }
        if due.back_up {
            self.back_up = now + if begun { settings.backup.min(BACKUP_LOOK) } else { LOOK.min(settings.backup) };
        }
    }

    /// How long until something is due by itself.
    fn until_due(&self) -> Duration {
        let sync = self.unsynced.map(|since| since + SYNC);
        let back_up = (!self.settings.keeper.backup.is_zero()).then_some(self.back_up);
        let first = [Some(self.tick), Some(self.collect), back_up, self.look, sync].into_iter().flatten().min();
        first.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()))
    }

    fn note_commit(&mut self, now: Instant) {
        self.unsynced.get_or_insert(now);
        self.look.get_or_insert(now.max(self.looked + BREATH));
    }

    /// Once a second: what failed, and what no wake-up told.
    fn catch_up(&mut self, now: Instant) {
        // What cannot be looked at is not known to be gone.
        self.removed = self.engine.store().is_current().is_ok_and(|current| !current);
        for id in self.later.keys().copied().chain(self.watcher.blind()).collect::<Vec<_>>() {
            if self.signals.end() {
                return;
            }
            self.settle(id);
        }
        if self.stamp() != self.seen {
            self.note_commit(now);
        } else if self.preparing || self.trouble.is_some() {
            self.look.get_or_insert(now);
        }
    }

    fn stamp(&self) -> Stamp {
        let found = std::fs::metadata(self.engine.store().layout().wal()).ok()?;
        Some((found.modified().ok()?, found.len()))
    }

    /// Watches the pods that run and are not watched yet; asks after those that are being prepared for long.
    fn look_at_rows(&mut self) {
        (self.look, self.looked) = (None, Instant::now());
        // Taken before the rows are read: what is committed after that shows as another one.
        self.seen = self.stamp();
        let rows = match self.engine.store().pods(&PodQuery::in_phases(&ACTIVE)) {
            Ok(rows) => rows,
            Err(error) => return self.note_trouble(&anyhow::Error::from(error)),
        };
        self.trouble = None;
        self.preparing = false;
        let now = gantry_engine::now();
        for row in rows {
            if self.signals.end() {
                return;
            }
            match row.phase {
                Phase::Running { .. } if self.watcher.has(row.id) || self.later.contains_key(&row.id) => {}
                Phase::Running { .. } => self.adopt(&row),
                _ => {
                    self.preparing = true;
                    if now.since(row.created) >= PREPARING {
                        self.settle(row.id);
                    }
                }
            }
        }
    }

    /// Watches a running pod, then looks at it: what happened before the watch was there is seen by the look.
    fn adopt(&mut self, row: &PodRow) {
        let id = row.id;
        if let Some(pidfd) = self.engine.supervisor_fd(row) {
            let dir = self.engine.store().layout().pod_dir(&id);
            if let Err(error) = self.watcher.watch(id, pidfd, &dir) {
                return self.postpone(id, format!("cannot watch it: {error}"));
            }
            info!("pod {id} runs");
            self.told.insert(id, ended_apps(row));
        }
        self.settle(id);
    }

    /// Brings a pod's row up to the facts, says what it became, and watches it on if it runs.
    fn settle(&mut self, id: PodId) {
        let _span = info_span!("pod", pod = %id).entered();
        debug!("reconciling pod {id}");
        let view = match self.engine.status(id) {
            Ok(view) => view,
            Err(PodError::NotFound(_)) => return self.leave(id),
            Err(error) => return self.postpone(id, format!("{:#}", anyhow::Error::from(error))),
        };
        match &view.row.phase {
            Phase::Running { .. } => self.still_runs(&view),
            // Nobody's business until somebody starts it; its start is a commit.
            Phase::Embryo | Phase::Preparing | Phase::Prepared { .. } => self.leave(id),
            Phase::AbortedPrepare { .. } => {
                info!("pod {id}: its preparation was aborted");
                self.leave(id);
            }
            phase => {
                if let Some((_, end)) = phase.end() {
                    info!("pod {id} exited with code {}: {}", end.exit_code, end.reason);
                }
                self.leave(id);
            }
        }
    }

    fn still_runs(&mut self, view: &PodView) {
        let id = view.row.id;
        let Some(pidfd) = self.engine.supervisor_fd(&view.row) else {
            // Without a free descriptor nothing can be said of its supervisor.
            if let Err(error) = std::fs::File::open("/dev/null") {
                return self.postpone(id, format!("cannot look at its supervisor: {error}"));
            }
            // Its supervisor is dead and somebody else is at the pod: whoever deletes or settles it.
            return self.postpone(id, "its supervisor has ended and its directory is still locked".to_owned());
        };
        if rustix::event::poll(&mut [readable(&pidfd)], Some(&rustix::event::Timespec::default())) != Ok(0) {
            return self.postpone(id, "its supervisor is ending and its directory is still locked".to_owned());
        }
        self.later.remove(&id);
        if !self.watcher.has(id) {
            return self.adopt(&view.row);
        }
        let told = self.told.entry(id).or_default();
        for app in ended_apps(&view.row) {
            if told.insert(app.clone()) {
                info!("app {app} of pod {id} ended");
            }
        }
    }

    /// Nothing more to be done for this pod.
    fn leave(&mut self, id: PodId) {
        self.watcher.forget(id);
        self.told.remove(&id);
        self.later.remove(&id);
    }

    /// This pod is tried again in a second. Its pidfd stays readable, so it is not watched meanwhile.
    fn postpone(&mut self, id: PodId, why: String) {
        self.watcher.forget(id);
        match self.later.get_mut(&id).filter(|known| known.why == why) {
            Some(Trouble { said: true, .. }) => {}
            Some(Trouble { said, .. }) => {
                *said = true;
                warn!("cannot settle pod {id}: {why}; trying again");
            }
            // Mostly somebody else who settles it as well, and has done so in a moment.
            None => drop(self.later.insert(id, Trouble { why, said: false })),
        }
    }

    fn sync_if_due(&mut self, after: Duration) {
        if self.unsynced.is_none_or(|since| since.elapsed() < after) {
            return;
        }
        // Before the sync: what is committed meanwhile wakes us again.
        self.unsynced = None;
        if let Err(error) = self.engine.store().make_durable() {
            self.unsynced = Some(Instant::now());
            self.note_trouble(&anyhow::Error::from(error));
        }
    }

    /// Says it, unless it is what was said the last time.
    fn note_trouble(&mut self, error: &anyhow::Error) {
        let text = format!("{error:#}");
        if self.trouble.as_ref() != Some(&text) {
            error!("{text}; trying again every second");
            self.trouble = Some(text);
        }
    }

    /// Reads the configuration again. What is wrong with it is said, and everything stays as it was.
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
                self.collect = self.collect.min(Instant::now() + self.settings.keeper.interval);
                self.back_up = self.back_up.min(Instant::now() + self.settings.keeper.backup);
                networking.reload(&self.settings);
                info!("configuration read again");
            }
            Err(error) => error!("configuration not read again, going on as before: {error:#}"),
        }
    }
}

fn readable(fd: &std::os::fd::OwnedFd) -> rustix::event::PollFd<'_> {
    rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)
}

fn ended_apps(row: &PodRow) -> BTreeSet<AppName> {
    let ended = row.apps.iter().filter(|app| matches!(app.state, AppState::Exited { .. }));
    ended.map(|app| app.name.clone()).collect()
}
