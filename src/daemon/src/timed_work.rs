//! Work on pods or schedules when its time has come, each in a thread of its own, so that a slow start or stop does not
//! delay the keeper.
//!
//! The rows say what is due; this module only keeps the times. gantryd may be killed at any point: the next one reads
//! the same rows.
//!
//! Times are of the wall clock. They are read again every [`READ_INTERVAL`], so that a changed clock counts.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gantry_engine::{Engine, Options, Running};
use gantry_logging::RepeatedFailure;
use gantry_model::Timestamp;
use tracing::{error, warn};

/// Maximum number of threads of a kind of work.
const MAX_THREADS: usize = 4;
/// Minimum time between two attempts for the same key, also if its row could not be changed.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the times are read again.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// A kind of work, and how it is done.
pub(crate) trait TimedTask {
    /// What the work is for.
    type Key: Clone + Eq + Hash + Display + Send + 'static;

    /// The kind, in the names of threads and in messages.
    const KIND: &'static str;
    /// The keys, in messages about all of them.
    const ALL: &'static str;

    /// Reads from the rows what is due, or will be, each with its time, the earliest first.
    ///
    /// # Errors
    /// The rows cannot be read.
    fn read_due(engine: &Engine) -> anyhow::Result<Vec<(Self::Key, Timestamp)>>;

    /// Does the work for this key, and logs a failure. Returns the pods that it has started.
    fn perform(key: &Self::Key, options: Options) -> Vec<Running>;
}

/// See the module.
pub(crate) struct TimedWork<T: TimedTask> {
    /// The times when the rows were read last, the earliest first.
    due: Vec<(T::Key, Timestamp)>,
    /// When they were read; `None`: they are to be read.
    read: Option<Instant>,
    /// Work in progress.
    threads: HashMap<T::Key, JoinHandle<Vec<Running>>>,
    /// The last attempt for each key that is due, or was tried within [`MIN_RETRY_INTERVAL`].
    attempts: HashMap<T::Key, Instant>,
    /// The supervisors that this process has started and has to reap.
    supervisors: Vec<Running>,
    /// Of reading the rows.
    failure: RepeatedFailure,
}

impl<T: TimedTask> Default for TimedWork<T> {
    fn default() -> Self {
        Self {
            due: Vec::new(),
            read: None,
            threads: HashMap::new(),
            attempts: HashMap::new(),
            supervisors: Vec::new(),
            failure: RepeatedFailure::default(),
        }
    }
}

impl<T: TimedTask> TimedWork<T> {
    /// Reads the rows again, because of a commit.
    pub(crate) fn read_again(&mut self) {
        self.read = None;
    }

    /// Time until [`Self::start_due`] has work; `None`: not before another event.
    pub(crate) fn until_due(&self, now: Timestamp) -> Option<Duration> {
        if self.threads.len() >= MAX_THREADS {
            return None;
        }
        let idle = self.due.iter().filter(|(key, _)| !self.threads.contains_key(key));
        idle.map(|(key, at)| at.since(now).max(self.until_retry(key))).min()
    }

    fn until_retry(&self, key: &T::Key) -> Duration {
        let last = self.attempts.get(key);
        last.map_or(Duration::ZERO, |last| MIN_RETRY_INTERVAL.saturating_sub(last.elapsed()))
    }

    /// Starts the work whose time has come.
    pub(crate) fn start_due(&mut self, engine: &Engine, options: &Options) {
        self.reap();
        if self.read.is_none_or(|read| read.elapsed() >= READ_INTERVAL) {
            self.read_due(engine);
        }
        for key in self.due_keys(gantry_engine::now()) {
            self.attempts.insert(key.clone(), Instant::now());
            let (options, of_thread) = (options.clone(), key.clone());
            let thread = std::thread::Builder::new().name(T::KIND.to_owned());
            match thread.spawn(move || T::perform(&of_thread, options)) {
                Ok(thread) => drop(self.threads.insert(key, thread)),
                Err(error) => warn!("cannot start a thread for {} {key}: {error}", T::KIND),
            }
        }
    }

    /// The keys whose time has come, as many as there are free threads.
    fn due_keys(&self, now: Timestamp) -> Vec<T::Key> {
        let is_due = |(key, at): &&(T::Key, Timestamp)| {
            *at <= now && !self.threads.contains_key(key) && self.until_retry(key).is_zero()
        };
        let free = MAX_THREADS.saturating_sub(self.threads.len());
        self.due.iter().filter(is_due).take(free).map(|(key, _)| key.clone()).collect()
    }

    fn read_due(&mut self, engine: &Engine) {
        let now = Instant::now();
        self.read = Some(now);
        match T::read_due(engine) {
            Ok(due) => {
                self.set_due(due, now);
                self.failure.clear();
            }
            Err(error) => self.failure.record(&error, |failure| {
                error!("{failure}; reading the {} again in {READ_INTERVAL:?}", T::ALL);
            }),
        }
    }

    /// Replaces the times. Forgets the attempts for keys that are no longer due.
    fn set_due(&mut self, due: Vec<(T::Key, Timestamp)>, now: Instant) {
        self.attempts.retain(|key, last| {
            now.saturating_duration_since(*last) < MIN_RETRY_INTERVAL || due.iter().any(|(known, _)| known == key)
        });
        self.due = due;
    }

    /// Collects finished threads, and reaps supervisors that have ended.
    fn reap(&mut self) {
        let finished: Vec<T::Key> =
            self.threads.iter().filter(|(_, thread)| thread.is_finished()).map(|(key, _)| key.clone()).collect();
        for key in finished {
            match self.threads.remove(&key).map(JoinHandle::join) {
                Some(Ok(started)) => self.supervisors.extend(started),
                Some(Err(_)) => error!("working on {} {key} panicked", T::KIND),
                None => {}
            }
            self.read = None;
        }
        // Dropping one reaps it.
        self.supervisors.retain(|running| !running.has_ended());
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::PodId;

    use super::*;
    use crate::restarts::PodRestarts;

    #[test]
    fn pods_are_due_at_their_time() {
        let mut work = TimedWork::<PodRestarts>::default();
        let now = Timestamp(1_000_000_000_000);
        assert_eq!(work.until_due(now), None);
        let id = |n| PodId::from_random([n; 16]);
        let later = now.after(Duration::from_secs(7));
        let tried = Instant::now();
        work.set_due(vec![(id(1), later), (id(2), later.after(Duration::from_secs(1)))], tried);
        assert_eq!(work.until_due(now), Some(Duration::from_secs(7)));
        assert_eq!(work.until_due(later), Some(Duration::ZERO));
        assert_eq!((work.due_keys(now), work.due_keys(later)), (vec![], vec![id(1)]));
        work.attempts.insert(id(1), tried);
        let wait = work.until_due(later).unwrap();
        assert!(!wait.is_zero() && wait <= MIN_RETRY_INTERVAL, "{wait:?}");
        work.set_due(vec![(id(2), later)], tried + MIN_RETRY_INTERVAL);
        assert!(work.attempts.is_empty());
    }

    #[test]
    fn recent_attempts_are_remembered() {
        let mut work = TimedWork::<PodRestarts>::default();
        let (id, tried) = (PodId::from_random([1; 16]), Instant::now());
        work.attempts.insert(id, tried);
        work.set_due(Vec::new(), tried);
        assert!(work.attempts.contains_key(&id), "a pod that ends at once would be started again at once");
    }
}
