//! The one place of the tests where time passes.

use std::time::{Duration, Instant};

/// How long anything may take before a test calls it hung. Generous: many tests share two cores.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `fact` gives something, looking every few milliseconds. Level-triggered: it asks what is, and can
/// miss nothing.
///
/// # Panics
/// When [`DEADLINE`] passes first; `what` says what was waited for.
#[track_caller]
pub fn wait_for<T>(what: &str, fact: impl FnMut() -> Option<T>) -> T {
    match within(DEADLINE, fact) {
        Some(value) => value,
        None => panic!("waited {} s in vain for {what}", DEADLINE.as_secs()),
    }
}

/// The same with another deadline and no panic.
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
