//! Brings the pods of schedules in line with them, when a schedule or a pod has changed and when a time has come.
//!
//! The rows say what is due ([`Engine::due_schedules`]); this module only keeps the times, and works on each schedule
//! in a thread of its own, so that a slow start or stop does not delay the keeper. gantryd may be killed at any point:
//! the next one reads the same rows.
//!
//! Times are of the wall clock. They are computed again every [`READ_INTERVAL`], so that a changed clock counts.

use std::collections::HashMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gantry_engine::{Engine, Options, Running};
use gantry_model::{ScheduleName, Timestamp};
use tracing::{error, info, warn};

/// Maximum number of schedules that are worked on at the same time.
const MAX_THREADS: usize = 4;
/// Minimum time between two attempts for one schedule.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the times are computed again.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// The schedules with times, and those that are worked on.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    /// The times when the rows were read last, the earliest first.
    due: Vec<(ScheduleName, Timestamp)>,
    /// When they were read; `None`: they are to be read.
    read: Option<Instant>,
    threads: HashMap<ScheduleName, JoinHandle<Vec<Running>>>,
    /// The last attempt for each schedule that is due.
    attempts: HashMap<ScheduleName, Instant>,
    /// The supervisors that this process has started and has to reap.
    supervisors: Vec<Running>,
    /// The last failure to read the rows.
    last_failure: Option<String>,
}

impl Schedules {
    /// Reads the rows again, because of a commit.
    pub(crate) fn read_again(&mut self) {
        self.read = None;
    }

    /// Time until [`Self::apply_due`] has work; `None`: not before another event.
    pub(crate) fn until_due(&self, now: Timestamp) -> Option<Duration> {
        if self.threads.len() >= MAX_THREADS {
            return None;
        }
        let idle = self.due.iter().filter(|(name, _)| !self.threads.contains_key(name));
        idle.map(|(name, at)| at.since(now).max(self.until_retry(name))).min()
    }

    fn until_retry(&self, name: &ScheduleName) -> Duration {
        let last = self.attempts.get(name);
        last.map_or(Duration::ZERO, |last| MIN_RETRY_INTERVAL.saturating_sub(last.elapsed()))
    }

    /// Works on the schedules whose time has come.
    pub(crate) fn apply_due(&mut self, engine: &Engine, options: &Options) {
        self.reap();
        if self.read.is_none_or(|read| read.elapsed() >= READ_INTERVAL) {
            self.read_due(engine);
        }
        let now = gantry_engine::now();
        let is_due = |(name, at): &&(ScheduleName, Timestamp)| {
            *at <= now && !self.threads.contains_key(name) && self.until_retry(name).is_zero()
        };
        let free = MAX_THREADS.saturating_sub(self.threads.len());
        let due: Vec<ScheduleName> = self.due.iter().filter(is_due).take(free).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.attempts.insert(name.clone(), Instant::now());
            let (options, of_thread) = (options.clone(), name.clone());
            let thread = std::thread::Builder::new().name("schedule".to_owned());
            match thread.spawn(move || apply(options, &of_thread)) {
                Ok(thread) => drop(self.threads.insert(name, thread)),
                Err(error) => warn!("cannot start a thread for schedule '{name}': {error}"),
            }
        }
    }

    fn read_due(&mut self, engine: &Engine) {
        self.read = Some(Instant::now());
        match engine.due_schedules() {
            Ok(due) => {
                self.attempts.retain(|name, last| {
                    last.elapsed() < MIN_RETRY_INTERVAL || due.iter().any(|(known, _)| known == name)
                });
                self.due = due;
                self.last_failure = None;
            }
            Err(error) => {
                let text = format!("{:#}", anyhow::Error::from(error));
                if self.last_failure.as_ref() != Some(&text) {
                    error!("{text}; reading the schedules again in {READ_INTERVAL:?}");
                    self.last_failure = Some(text);
                }
            }
        }
    }

    /// Collects finished threads, and reaps supervisors that have ended.
    fn reap(&mut self) {
        let finished: Vec<ScheduleName> =
            self.threads.iter().filter(|(_, thread)| thread.is_finished()).map(|(name, _)| name.clone()).collect();
        for name in finished {
            match self.threads.remove(&name).map(JoinHandle::join) {
                Some(Ok(started)) => self.supervisors.extend(started),
                Some(Err(_)) => error!("working on schedule '{name}' panicked"),
                None => {}
            }
            self.read = None;
        }
        // Dropping one reaps it.
        self.supervisors.retain(|running| !running.has_ended());
    }
}

fn apply(options: Options, name: &ScheduleName) -> Vec<Running> {
    let applied = Engine::open(options).map_err(anyhow::Error::from);
    match applied.and_then(|engine| engine.apply_schedule(name).map_err(anyhow::Error::from)) {
        Ok(started) => {
            for running in &started {
                info!("schedule '{name}': pod {} is started", running.id);
                for warning in &running.ready.warnings {
                    warn!("pod {}: {warning}", running.id);
                }
            }
            started
        }
        Err(error) => {
            warn!("schedule '{name}': {error:#}");
            Vec::new()
        }
    }
}
