//! When a failed request is tried again, and how long before: bounded in number, in time and in politeness.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::{MAX_RETRY_AFTER, RegistryError};
use crate::settings::Timeouts;

/// Tries of one request, the first included.
const MAX_TRIES: u32 = 5;

/// The longest wait of our own choosing.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Bytes that must have come since the last failure for a download to count as getting on: a peer that gives a
/// byte per connection does not keep us for ever.
pub(crate) const PROGRESS: u64 = 1 << 20;

/// The failures of one request so far.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failed: u32,
    since: Option<Instant>,
}

impl Attempts {
    /// Takes note of a failure: the wait before the next try, or the error when there is to be none.
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

    /// The request is getting on; its earlier failures are forgotten.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Says to everybody waiting that there is no use any more.
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

    /// Waits, unless and until cancelled.
    pub(crate) fn wait(&self, time: Duration) -> Result<(), RegistryError> {
        let flag = self.flag.lock().unwrap_or_else(PoisonError::into_inner);
        let (flag, _) =
            self.raised.wait_timeout_while(flag, time, |raised| !*raised).unwrap_or_else(PoisonError::into_inner);
        if *flag { Err(RegistryError::Cancelled) } else { Ok(()) }
    }
}

/// Reads a `Retry-After` header (RFC 9110 section 10.2.3): seconds, or a date, which is compared with `now`
/// (seconds of the epoch). What is neither counts as absent.
pub(crate) fn retry_after(text: &str, now: i64) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let then = http_date(text)?;
    Some(Duration::from_secs(u64::try_from(then.saturating_sub(now)).unwrap_or(0)))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` as seconds of the epoch (RFC 9110 section 5.6.7, the preferred format only).
fn http_date(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let rest = text.split_once(", ")?.1.strip_suffix(" GMT")?;
    let mut words = rest.split(' ');
    let day: i64 = words.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let name = words.next()?;
    let month = i64::try_from(MONTHS.iter().position(|month| *month == name)?).ok()? + 1;
    let year: i64 = words.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut clock = words.next()?.splitn(3, ':').map(|part| part.parse::<u8>().ok().map(i64::from));
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if words.next().is_some() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days from a civil date, counted in years that begin in March, so that a leap day is a year's last.
    let shifted = if month > 2 { year } else { year - 1 };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = shifted * 365 + shifted / 4 - shifted / 100 + shifted / 400 + of_year - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn retry_after_headers() {
        for (text, want) in [
            ("0", Some(0)),
            (" 7 ", Some(7)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(37)),
            ("Sun, 06 Nov 1994 08:48:00 GMT", Some(0)),
            ("Thu, 29 Feb 2024 00:00:00 GMT", Some(1_709_164_800 - 784_111_740)),
            ("-1", None),
            ("soon", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 32 Nov 1994 08:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(retry_after(text, 784_111_740), want.map(Duration::from_secs), "{text}");
        }
    }

    fn busy(retry_after: Option<u64>) -> RegistryError {
        let retry_after = retry_after.map(Duration::from_secs);
        RegistryError::Status { host: "h".into(), what: "x".into(), status: 503, message: String::new(), retry_after }
    }

    #[test]
    fn waits_grow_and_end() {
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
    fn a_cancelled_wait_ends_at_once() {
        let cancel = Cancel::default();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cancel.wait(Duration::from_secs(600)));
            cancel.raise();
            assert!(matches!(waiter.join().unwrap(), Err(RegistryError::Cancelled)));
        });
    }

    proptest! {
        #[test]
        fn never_panics(text: String, now: i64) {
            let _ = retry_after(&text, now);
        }
    }
}
