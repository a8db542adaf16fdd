//! How much one asker may have of us, and how much all of them: what is beyond is dropped, as if it had been lost on the
//! way, and is asked again by whoever means it.
//!
//! What is under way for all is shared by dynamic thresholds (Choudhury and Hahne, 1998): an asker may have as much as is free.
//! So n askers that want all they can get have an nth each, and as much stays free for the next one, however many they are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Questions of one asker within [`WINDOW`].
const RATE: u32 = 1000;
/// See [`RATE`].
const WINDOW: Duration = Duration::from_secs(1);
/// Askers that are remembered. Who can take any address of a big subnet can be more; then the new ones wait.
const MOST_ASKERS: usize = 8192;

/// What is under way for somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A question to the servers of the host.
    Forward,
    /// A connection.
    Connection,
}

/// How many of each there may be. An asker may also have no more than are free.
#[derive(Debug, Clone, Copy)]
struct Most {
    of_one: u32,
    of_all: u32,
}

impl Work {
    fn most(self) -> Most {
        match self {
            Self::Forward => Most { of_one: 64, of_all: 512 },
            Self::Connection => Most { of_one: 8, of_all: 128 },
        }
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Asker {
    /// Since when questions are counted.
    since: Option<Instant>,
    questions: u32,
    forwards: u32,
    connections: u32,
}

impl Asker {
    fn under_way(&mut self, work: Work) -> &mut u32 {
        match work {
            Work::Forward => &mut self.forwards,
            Work::Connection => &mut self.connections,
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    askers: HashMap<IpAddr, Asker>,
    all: Asker,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits(Arc<Mutex<Counts>>);

/// Something that is under way; over when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    limits: Limits,
    asker: IpAddr,
    work: Work,
}

impl Limits {
    /// Counts a question; whether it is to be looked at.
    pub(crate) fn admit(&self, asker: IpAddr, now: Instant) -> bool {
        let mut counts = self.lock();
        let Some(known) = counts.asker(asker, now) else { return false };
        if known.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (known.since, known.questions) = (Some(now), 0);
        }
        known.questions = known.questions.saturating_add(1);
        known.questions <= RATE
    }

    /// Begins something, if it may be.
    pub(crate) fn begin(&self, asker: IpAddr, work: Work, now: Instant) -> Option<Ticket> {
        let most = work.most();
        let mut counts = self.lock();
        let free = most.of_all.saturating_sub(*counts.all.under_way(work));
        let of_one = counts.asker(asker, now)?.under_way(work);
        if *of_one >= most.of_one.min(free) {
            return None;
        }
        *of_one += 1;
        *counts.all.under_way(work) += 1;
        drop(counts);
        Some(Ticket { limits: self.clone(), asker, work })
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// What is known of an asker; none when there are too many of them.
    fn asker(&mut self, asker: IpAddr, now: Instant) -> Option<&mut Asker> {
        if self.askers.len() >= MOST_ASKERS && !self.askers.contains_key(&asker) {
            self.forget(now);
            if self.askers.len() >= MOST_ASKERS {
                return None;
            }
        }
        Some(self.askers.entry(asker).or_default())
    }

    /// Forgets those who want nothing now.
    fn forget(&mut self, now: Instant) {
        self.askers.retain(|_, asker| {
            let asking = asker.since.is_some_and(|since| now.saturating_duration_since(since) < WINDOW);
            asking || asker.forwards + asker.connections > 0
        });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut counts = self.limits.lock();
        let all = counts.all.under_way(self.work);
        *all = all.saturating_sub(1);
        if let Some(asker) = counts.askers.get_mut(&self.asker) {
            let of_one = asker.under_way(self.work);
            *of_one = of_one.saturating_sub(1);
        }
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
