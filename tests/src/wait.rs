//! Waiting with a deadline: the only place in the tests that sleeps.

use std::time::{Duration, Instant};

/// The time after which a test counts an operation as hung. Generous: many tests share two cores.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Polls `fact` every few milliseconds until it returns a value. Level-triggered: it checks the present state, so it
/// misses nothing.
///
/// # Panics
/// When [`DEADLINE`] passes first; `what` names the awaited fact.
#[track_caller]
pub fn wait_for<T>(what: &str, fact: impl FnMut() -> Option<T>) -> T {
    match within(DEADLINE, fact) {
        Some(value) => value,
        None => panic!("waited {} s in vain for {what}", DEADLINE.as_secs()),
    }
}

/// Sleeps for a time that is part of what is tested: the moment of a kill, the interval between two signals. To wait
/// for a condition, see [`wait_for`].
pub fn let_pass(time: Duration) {
    std::thread::sleep(time);
}

/// Like [`wait_for`], with another deadline and no panic.
pub(crate) fn within<T>(time: Duration, mut fact: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + time;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(value) = fact() {
            return Some(value);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
