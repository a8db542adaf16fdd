//! Limits the warnings about failed calls: a client that repeats a failing call must not fill the log.
//!
//! In each interval the first failures are logged. The others are counted, and their number is logged at the end of the
//! interval. Debug logging shows each of them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument as _, debug, warn};

/// See [`MAX_WARNINGS`].
const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum warnings in an [`INTERVAL`], besides the number of suppressed ones.
const MAX_WARNINGS: u32 = 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WarningLimit {
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    /// Start of the interval; `None` before the first failure.
    begin: Option<Instant>,
    warnings: u32,
    /// Failures that were not logged and whose number was not logged yet.
    suppressed: u64,
}

/// The treatment of a failure.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    /// It is logged.
    Log,
    /// It is counted. The number is logged at this time, if this is the first one.
    Suppress(Option<Instant>),
}

impl WarningLimit {
    /// Without any failure so far.
    pub(crate) const fn new() -> Self {
        Self { window: Mutex::new(Window { begin: None, warnings: 0, suppressed: 0 }) }
    }

    /// Logs the failure of a call, within the limit. Call it inside the runtime.
    pub(crate) fn log_failure(&'static self, message: &str) {
        match self.admit(Instant::now()) {
            Admission::Log => warn!("call failed: {message}"),
            Admission::Suppress(report_at) => {
                debug!("call failed: {message}");
                if let Some(at) = report_at {
                    // Outside the span of this call, since it reports others.
                    tokio::spawn(self.report_suppressed(at).instrument(tracing::Span::none()));
                }
            }
        }
    }

    fn admit(&self, now: Instant) -> Admission {
        let mut window = self.lock();
        let begin = match window.begin.filter(|begin| now.saturating_duration_since(*begin) < INTERVAL) {
            Some(begin) => begin,
            None => {
                (window.begin, window.warnings) = (Some(now), 0);
                now
            }
        };
        if window.warnings < MAX_WARNINGS {
            window.warnings += 1;
            return Admission::Log;
        }
        window.suppressed += 1;
        Admission::Suppress((window.suppressed == 1).then_some(begin + INTERVAL))
    }

    async fn report_suppressed(&self, at: Instant) {
        tokio::time::sleep_until(at).await;
        let count = std::mem::take(&mut self.lock().suppressed);
        let seconds = INTERVAL.as_secs();
        warn!("{count} more calls failed within {seconds} s; debug logging shows each");
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "warnings_tests.rs"]
mod tests;
