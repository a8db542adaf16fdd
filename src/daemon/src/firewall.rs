//! Restores gantry's nftables after another program has removed parts of them (`nft flush ruleset`, a reload of a
//! firewall). A thread subscribes to the kernel's notifications of changes.
//!
//! Only `gantry-stage1` knows and writes the contents of the tables; its own changes are ignored. Repairs are
//! debounced: they wait until there was no further removal for [`DEBOUNCE`], but at most [`MAX_DEBOUNCE`], because a
//! removal rarely comes alone. They are at least [`MIN_INTERVAL`] apart, so that two programs that undo each other's
//! changes do not spin.
//!
//! At the start, after the keeper's first reconciliation, the tables are restored once and networks without a pod are
//! removed. Without notifications the tables are restored every [`UNWATCHED_INTERVAL`].

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gantry_engine::{Engine, FirewallChange, FirewallMonitor, Options};
use gantry_logging::RepeatedFailure;
use gantry_model::PhaseName;
use gantry_model::query::PodQuery;
use tracing::{error, info, warn};

/// Poll interval of the flag that ends the thread.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time without a further removal before the tables are restored.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Maximum delay of a repair by debouncing.
const MAX_DEBOUNCE: Duration = Duration::from_millis(500);
/// Minimum time between two repairs, and the first retry delay.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of repairs without notifications, and maximum retry delay.
const UNWATCHED_INTERVAL: Duration = Duration::from_secs(30);

/// The thread. Dropping this ends it.
pub(crate) struct Firewall {
    options: Arc<Mutex<Options>>,
    ended: Arc<AtomicBool>,
}

impl Firewall {
    /// Starts it.
    ///
    /// # Errors
    /// The process can start no more threads.
    pub(crate) fn start(options: &Options) -> io::Result<Self> {
        let firewall = Self { options: Arc::new(Mutex::new(options.clone())), ended: Arc::default() };
        let theirs = Self { options: Arc::clone(&firewall.options), ended: Arc::clone(&firewall.ended) };
        std::thread::Builder::new().name("firewall".to_owned()).spawn(move || theirs.run())?;
        Ok(firewall)
    }

    /// Uses these options from now on.
    pub(crate) fn reload(&self, options: &Options) {
        options.clone_into(&mut self.options.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn engine(&self) -> anyhow::Result<Engine> {
        let options = self.options.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Engine::open(options)?)
    }

    fn run(&self) {
        let mut subscription = Subscription::default();
        let mut due = RepairSchedule::at(Instant::now());
        let mut unrepaired = RepeatedFailure::default();
        while !self.ended.load(Ordering::Relaxed) {
            if due.is_now(Instant::now()) {
                // Before the repair, so that later changes are received.
                subscription.open(self);
                self.repair(&mut due, &mut unrepaired);
            }
            match subscription.wait(due.time_left(Instant::now())) {
                Some(change) => due.note(&change, Instant::now()),
                None if subscription.monitor.is_none() => due.repair_after(UNWATCHED_INTERVAL),
                None => {}
            }
        }
    }

    /// Restores the tables; the first time, removes networks without a pod. Logs the defects that only the user can
    /// repair when they change.
    fn repair(&self, due: &mut RepairSchedule, unrepaired: &mut RepeatedFailure) {
        let done = self.engine().and_then(|engine| {
            match engine.reload_networks()?.join("; ") {
                none if none.is_empty() => unrepaired.clear(),
                defects => unrepaired.record(&defects, |defects| warn!("{defects}")),
            }
            if !due.has_repaired {
                engine
                    .sweep_networks(false)?
                    .iter()
                    .for_each(|line| info!("removed an unused network resource: {line}"));
            }
            Ok(engine)
        });
        let now = Instant::now();
        match done {
            Ok(engine) => {
                log_repair(&due.by, &engine);
                due.done(now);
            }
            Err(error) => due.failed(now, &error),
        }
    }
}

impl Drop for Firewall {
    /// The thread sees it within a poll interval. A running `gantry-stage1` ends with this process; the next start
    /// repeats its work.
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Logs which programs made the repair necessary, if running pods needed it.
fn log_repair(by: &BTreeSet<String>, engine: &Engine) {
    if by.is_empty() {
        return;
    }
    let running = engine.store().pods(&PodQuery::in_phases([PhaseName::Running])).unwrap_or_default();
    let pods = running.iter().filter(|row| !row.networks.is_empty()).count();
    if pods > 0 {
        let by = by.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        warn!("nftables were changed by {by}: restored the rules of {pods} pods");
    }
}

/// The subscription to changes of the tables.
#[derive(Default)]
struct Subscription {
    monitor: Option<FirewallMonitor>,
    /// Whether the failure to subscribe was logged.
    is_failure_logged: bool,
}

impl Subscription {
    /// Subscribes if it is not subscribed. Logs a failure once.
    fn open(&mut self, firewall: &Firewall) {
        if self.monitor.is_some() {
            return;
        }
        let opened = firewall.engine().and_then(|engine| Ok(engine.watch_firewall()?));
        match opened {
            Ok(monitor) => (self.monitor, self.is_failure_logged) = (Some(monitor), false),
            Err(error) => self.lost(&error),
        }
    }

    /// Waits up to `timeout` for a change by another program.
    fn wait(&mut self, timeout: Duration) -> Option<FirewallChange> {
        let Some(monitor) = &mut self.monitor else {
            std::thread::sleep(timeout);
            return None;
        };
        match monitor.wait(timeout) {
            Ok(change) => change,
            Err(error) => {
                self.monitor = None;
                self.lost(&error.into());
                None
            }
        }
    }

    fn lost(&mut self, error: &anyhow::Error) {
        if !self.is_failure_logged {
            self.is_failure_logged = true;
            let every = UNWATCHED_INTERVAL.as_secs();
            warn!("cannot watch nftables: {error:#}; restoring the rules every {every} s instead");
        }
    }
}

/// The time of the next repair, and its cause.
#[derive(Debug, Default)]
struct RepairSchedule {
    /// The time; `None` if no repair is due.
    at: Option<Instant>,
    /// Time of the first removal since the last repair.
    first: Option<Instant>,
    /// Time of the last repair or attempt.
    last: Option<Instant>,
    /// The programs that made the changes.
    by: BTreeSet<String>,
    /// Failed attempts since the last repair.
    failures: u32,
    /// Whether a repair has succeeded.
    has_repaired: bool,
    failure: RepeatedFailure,
}

impl RepairSchedule {
    /// A repair at this time.
    fn at(when: Instant) -> Self {
        Self { at: Some(when), ..Self::default() }
    }

    /// Schedules a repair after a removal by another program.
    fn note(&mut self, change: &FirewallChange, now: Instant) {
        // Additions are left alone: they are the administrator's.
        if !change.removed {
            return;
        }
        let first = *self.first.get_or_insert(now);
        let quiet = (now + DEBOUNCE).min(first + MAX_DEBOUNCE);
        self.at = Some(self.last.map_or(quiet, |last| quiet.max(last + MIN_INTERVAL)));
        // For a log line: a few names are enough.
        if self.by.len() < 8 {
            self.by
                .insert(change.by.as_ref().map_or_else(|| "an unknown program".to_owned(), |name| format!("'{name}'")));
        }
    }

    /// Schedules a repair this long after the last one, if none is scheduled.
    fn repair_after(&mut self, interval: Duration) {
        self.at = self.at.or(self.last.map(|last| last + interval));
    }

    fn is_now(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| now >= at)
    }

    /// Time until the next repair, at most a poll interval.
    fn time_left(&self, now: Instant) -> Duration {
        self.at.map_or(POLL_INTERVAL, |at| at.saturating_duration_since(now).min(POLL_INTERVAL))
    }

    fn done(&mut self, now: Instant) {
        *self = Self { last: Some(now), has_repaired: true, ..Self::default() };
    }

    /// Schedules a retry with exponential back-off. Logs the failure if it is not the same as the last one.
    fn failed(&mut self, now: Instant, error: &anyhow::Error) {
        self.failure.record(error, |failure| error!("{failure}; retrying"));
        let pause = MIN_INTERVAL.saturating_mul(1 << self.failures.min(5)).min(UNWATCHED_INTERVAL);
        self.failures = self.failures.saturating_add(1);
        (self.at, self.last) = (Some(now + pause), Some(now));
    }
}

#[cfg(test)]
mod tests {
    use gantry_engine::FirewallPart;

    use super::*;

    fn change(removed: bool, by: Option<&str>) -> FirewallChange {
        FirewallChange { removed, part: FirewallPart::Table, by: by.map(str::to_owned) }
    }

    #[test]
    fn removals_are_debounced() {
        let (mut due, start) = (RepairSchedule::default(), Instant::now());
        let ms = |n| start + Duration::from_millis(n);
        due.note(&change(false, Some("nft")), start);
        assert!(!due.is_now(ms(1000)) && due.time_left(start) == POLL_INTERVAL, "something was added");
        due.note(&change(true, Some("nft")), start);
        assert!(!due.is_now(ms(99)) && due.is_now(ms(100)));
        assert_eq!(due.time_left(ms(40)), Duration::from_millis(60));
        for n in 0..20 {
            due.note(&change(true, None), ms(n * 50));
        }
        assert!(!due.is_now(ms(499)) && due.is_now(ms(500)), "the delay is limited");
        assert_eq!(due.by, BTreeSet::from(["'nft'".to_owned(), "an unknown program".to_owned()]));
        due.done(ms(500));
        assert!(!due.is_now(ms(9999)) && due.by.is_empty());
        due.note(&change(true, Some("other")), ms(510));
        assert!(!due.is_now(ms(1499)) && due.is_now(ms(1500)), "repairs have a minimum interval");
        assert!(MAX_DEBOUNCE + MIN_INTERVAL < Duration::from_secs(2), "the tables are restored within two seconds");
    }

    #[test]
    fn failures_are_retried_with_back_off() {
        let (mut due, start) = (RepairSchedule::at(Instant::now()), Instant::now());
        let pauses: Vec<u64> = (0..8)
            .map(|_| {
                due.failed(start, &anyhow::anyhow!("no"));
                due.at.unwrap().duration_since(start).as_secs()
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        // A change does not wait for the back-off.
        due.note(&change(true, None), start);
        assert!(due.is_now(start + MIN_INTERVAL));
        due.done(start);
        assert!(due.has_repaired && due.at.is_none());
    }
}
