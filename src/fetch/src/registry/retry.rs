//! Retries of failed requests, limited in number and total time, with exponential back-off.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::error::{MAX_RETRY_AFTER, RegistryError};
use crate::settings::Timeouts;

/// Maximum number of attempts of one request, including the first.
const MAX_TRIES: u32 = 5;

/// Maximum back-off.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Number of bytes that must have arrived since the last failure for a download to count as making progress: a peer
/// that sends a byte per connection must not hold the fetch forever.
pub(crate) const MIN_PROGRESS: u64 = 1 << 20;

/// The failures of one request.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failed: u32,
    since: Option<Instant>,
}

impl Attempts {
    /// Records a failure. Returns the delay before the next attempt, or the error if there is none.
    pub(crate) fn next(&mut self, error: RegistryError, timeouts: &Timeouts) -> Result<Duration, RegistryError> {
        if !error.is_transient() {
            return Err(error);
        }
        let asked = error.retry_after();
        if let (Some(asked), RegistryError::Status { host, .. }) = (asked, &error)
            && asked > MAX_RETRY_AFTER
        {
            return Err(RegistryError::RateLimited { host: host.clone(), asked });
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        self.failed += 1;
        let own = timeouts.backoff.saturating_mul(1 << (self.failed - 1).min(16)).min(MAX_BACKOFF);
        let wait = asked.unwrap_or(own);
        if self.failed >= MAX_TRIES || since.elapsed() + wait > timeouts.total_retry {
            return Err(RegistryError::GaveUp { tries: self.failed, after: since.elapsed(), source: Box::new(error) });
        }
        Ok(wait)
    }

    /// Forgets earlier failures, because the request makes progress.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Cancels all waiting threads.
#[derive(Debug, Default)]
pub(crate) struct Cancel {
    flag: Mutex<bool>,
    raised: Condvar,
}

impl Cancel {
    pub(crate) fn raise(&self) {
        *self.flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.raised.notify_all();
    }

    pub(crate) fn is_raised(&self) -> bool {
        *self.flag.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `time`; fails as soon as it is cancelled.
    pub(crate) fn wait(&self, time: Duration) -> Result<(), RegistryError> {
        let flag = self.flag.lock().unwrap_or_else(PoisonError::into_inner);
        let (flag, _) =
            self.raised.wait_timeout_while(flag, time, |raised| !*raised).unwrap_or_else(PoisonError::into_inner);
        if *flag { Err(RegistryError::Cancelled) } else { Ok(()) }
    }
}

/// Reads a `Retry-After` header (RFC 9110 section 10.2.3): seconds, or a date, which is compared with `now`. Anything
/// else counts as absent.
pub(crate) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn retry_after_headers_are_parsed() {
        for (text, want) in [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(37)),
            ("Sun, 06 Nov 1994 08:48:00 GMT", Some(0)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(37)),
            ("Sun Nov  6 08:49:37 1994", Some(37)),
            ("Thu, 29 Feb 2024 00:00:00 GMT", Some(1_709_164_800 - 784_111_740)),
            ("-1", None),
            ("soon", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 32 Nov 1994 08:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(
                retry_after(text, UNIX_EPOCH + Duration::from_secs(784_111_740)),
                want.map(Duration::from_secs),
                "{text}"
            );
        }
    }

    fn busy(retry_after: Option<u64>) -> RegistryError {
        let retry_after = retry_after.map(Duration::from_secs);
        RegistryError::Status { host: "h".into(), what: "x".into(), status: 503, message: String::new(), retry_after }
    }

    #[test]
    fn back_off_grows_and_ends() {
        let timeouts = Timeouts::default();
        let mut attempts = Attempts::default();
        let waits: Vec<_> = (0..4).map(|_| attempts.next(busy(None), &timeouts).unwrap().as_millis()).collect();
        assert_eq!(waits, [250, 500, 1000, 2000]);
        assert!(matches!(attempts.next(busy(None), &timeouts), Err(RegistryError::GaveUp { tries: 5, .. })));
        attempts.reset();
        assert_eq!(attempts.next(busy(Some(3)), &timeouts).unwrap(), Duration::from_secs(3));
        assert!(matches!(attempts.next(busy(Some(61)), &timeouts), Err(RegistryError::RateLimited { .. })));
        assert!(matches!(attempts.next(RegistryError::Cancelled, &timeouts), Err(RegistryError::Cancelled)));
    }

    #[test]
    fn cancellation_ends_a_wait() {
        let cancel = Cancel::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cancel.wait(Duration::from_secs(600)));
            cancel.raise();
            assert!(matches!(waiter.join().unwrap(), Err(RegistryError::Cancelled)));
        });
    }

    proptest! {
        #[test]
        fn parser_never_panics(text: String, now: u32) {
            let _ignored = retry_after(&text, UNIX_EPOCH + Duration::from_secs(now.into()));
        }
    }
}
