//! Starts pods again that wait for it: their supervisor died, and an app of them has a restart policy.
//!
//! The rows say which pods wait, and until when; this module only keeps the time and starts each in a thread of its
//! own, so that a slow start does not delay the keeper. A start is recorded in the row before anything else, and the
//! lock on the pod directory passes to its supervisor. So gantryd, killed at any point, neither forgets a pod nor
//! starts it twice.

use std::collections::HashMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gantry_engine::{Engine, Options, Running};
use gantry_model::{PodId, Timestamp};
use tracing::{debug, error, info, info_span, warn};

/// The maximum number of pods that are started at the same time.
const MAX_STARTS: usize = 4;
/// The minimum time between two starts of a pod, also if the row could not be changed.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The pods that wait, and those that are being started.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    /// The pods that waited when the rows were read last, the earliest first.
    waiting: Vec<(PodId, Timestamp)>,
    /// Starts in progress.
    starts: HashMap<PodId, JoinHandle<Option<Running>>>,
    /// The last start of each pod that waits still.
    last_starts: HashMap<PodId, Instant>,
    /// The supervisors that this process has started and has to reap.
    supervisors: Vec<Running>,
}

impl Restarts {
    /// Replaces the list of pods that wait.
    pub(crate) fn set_waiting(&mut self, waiting: Vec<(PodId, Timestamp)>) {
        self.last_starts.retain(|id, _| waiting.iter().any(|(waits, _)| waits == id));
        self.waiting = waiting;
    }

    /// Time until [`Self::start_due`] has work; `None`: not before another event.
    pub(crate) fn until_due(&self, now: Timestamp) -> Option<Duration> {
        if self.starts.len() >= MAX_STARTS {
            return None;
        }
        let waiting = self.waiting.iter().filter(|(id, _)| !self.starts.contains_key(id));
        waiting.map(|(id, at)| at.since(now).max(self.until_retry(*id))).min()
    }

    fn until_retry(&self, id: PodId) -> Duration {
        let last = self.last_starts.get(&id);
        last.map_or(Duration::ZERO, |last| MIN_RETRY_INTERVAL.saturating_sub(last.elapsed()))
    }

    /// Starts the pods whose time has come.
    pub(crate) fn start_due(&mut self, options: &Options) {
        self.reap();
        let now = gantry_engine::now();
        let is_due = |(id, at): &&(PodId, Timestamp)| {
            *at <= now && !self.starts.contains_key(id) && self.until_retry(*id).is_zero()
        };
        let free = MAX_STARTS.saturating_sub(self.starts.len());
        let due: Vec<PodId> = self.waiting.iter().filter(is_due).take(free).map(|(id, _)| *id).collect();
        for id in due {
            self.last_starts.insert(id, Instant::now());
            let options = options.clone();
            let thread = std::thread::Builder::new().name("restart".to_owned());
            match thread.spawn(move || start(options, id)) {
                Ok(thread) => drop(self.starts.insert(id, thread)),
                Err(error) => warn!("cannot start a thread to start pod {id} again: {error}"),
            }
        }
    }

    /// Collects finished starts, and reaps supervisors that have ended.
    pub(crate) fn reap(&mut self) {
        let finished: Vec<PodId> =
            self.starts.iter().filter(|(_, thread)| thread.is_finished()).map(|(id, _)| *id).collect();
        for id in finished {
            match self.starts.remove(&id).map(JoinHandle::join) {
                Some(Ok(running)) => self.supervisors.extend(running),
                Some(Err(_)) => error!("starting pod {id} again panicked"),
                None => {}
            }
        }
        // Dropping one reaps it.
        self.supervisors.retain(|running| !running.has_ended());
    }
}

fn start(options: Options, id: PodId) -> Option<Running> {
    let _span = info_span!("pod", pod = %id).entered();
    let engine = match Engine::open(options) {
        Ok(engine) => engine,
        Err(error) => {
            warn!("cannot start pod {id} again: {:#}", anyhow::Error::from(error));
            return None;
        }
    };
    match engine.start_waiting_pod(id) {
        Ok(Some(running)) => {
            info!("pod {id} is started again");
            for warning in &running.ready.warnings {
                warn!("pod {id}: {warning}");
            }
            Some(running)
        }
        Ok(None) => {
            debug!("pod {id} no longer waits to be started again");
            None
        }
        Err(error) => {
            warn!("cannot start pod {id} again: {:#}", anyhow::Error::from(error));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_due_at_their_time() {
        let mut restarts = Restarts::default();
        let now = Timestamp(1_000_000_000_000);
        assert_eq!(restarts.until_due(now), None);
        let id = |n| PodId::from_random([n; 16]);
        let later = now.after(Duration::from_secs(7));
        restarts.set_waiting(vec![(id(1), later), (id(2), later.after(Duration::from_secs(1)))]);
        assert_eq!(restarts.until_due(now), Some(Duration::from_secs(7)));
        assert_eq!(restarts.until_due(later), Some(Duration::ZERO));
        restarts.last_starts.insert(id(1), Instant::now());
        let wait = restarts.until_due(later).unwrap();
        assert!(!wait.is_zero() && wait <= MIN_RETRY_INTERVAL, "{wait:?}");
        restarts.set_waiting(vec![(id(2), later)]);
        assert!(restarts.last_starts.is_empty());
    }
}
