//! Limits the supervisor's CPU time for an app's output and notifications to the app's CPU limit.
//!
//! Processing a line costs the supervisor more than writing it costs the app: a timestamp, a record, a log rotation. An
//! app limited to 5 % of a core could make its supervisor, which is not in the app's cgroup, use a whole core. So each
//! app with a CPU limit has a token bucket of the supervisor's CPU time, which fills at the rate of the limit and pays
//! for reading the app's output and its notifications. While the balance is negative, neither is read: the pipe and the
//! socket's queue fill, and the app blocks in write(2) and sendmsg(2) as on a slow disk.

use std::time::{Duration, Instant};

/// Maximum balance, as time at the app's rate, so that an app that writes occasionally never waits.
const MAX_SAVED: Duration = Duration::from_secs(1);

/// Minimum rate of an account, in thousandths of a processor: the kernel's smallest quota
/// (`cfs_quota_us` of 1000 in a period of 100 000).
const MIN_MILLI: u64 = 10;

/// The account of one app.
pub(crate) struct Pace {
    /// Thousandths of a processor; `None`: no limit.
    cpu_milli: Option<u64>,
    /// CPU time that may be used, in nanoseconds; negative after overdrawing.
    balance: i64,
    /// The time of the balance.
    at: Instant,
}

impl Pace {
    /// The account of an app with this limit, full.
    pub(crate) fn new(cpu_milli: Option<u64>, now: Instant) -> Self {
        let cpu_milli = cpu_milli.map(|milli| milli.max(MIN_MILLI));
        let balance = cpu_milli.map_or(0, |milli| earned(MAX_SAVED, milli));
        Self { cpu_milli, balance, at: now }
    }

    /// Whether there is a limit to keep.
    pub(crate) fn is_limited(&self) -> bool {
        self.cpu_milli.is_some()
    }

    /// Removes the limit.
    pub(crate) fn lift(&mut self) {
        self.cpu_milli = None;
    }

    /// Subtracts the cost of reading.
    pub(crate) fn charge(&mut self, cost: Duration, now: Instant) {
        let Some(milli) = self.cpu_milli else { return };
        let earned = earned(now.saturating_duration_since(self.at), milli);
        let cost = i64::try_from(cost.as_nanos()).unwrap_or(i64::MAX);
        self.balance = self.balance.saturating_add(earned).min(self::earned(MAX_SAVED, milli)).saturating_sub(cost);
        self.at = now;
    }

    /// When the output may be read again; `None`: now.
    pub(crate) fn resumes_at(&self, now: Instant) -> Option<Instant> {
        let milli = self.cpu_milli?;
        let debt = u64::try_from(self.balance.saturating_neg()).ok().filter(|debt| *debt > 0)?;
        let at = self.at + Duration::from_nanos(debt.saturating_mul(1000) / milli);
        (at > now).then_some(at)
    }
}

/// The CPU time that a limit earns in an interval, in nanoseconds.
fn earned(time: Duration, milli: u64) -> i64 {
    i64::try_from(time.as_nanos().saturating_mul(milli.into()) / 1000).unwrap_or(i64::MAX)
}

/// The CPU time that this process has used.
pub(crate) fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(used.tv_sec).unwrap_or(0), u32::try_from(used.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_app_without_a_limit_never_waits() {
        let now = Instant::now();
        let mut pace = Pace::new(None, now);
        pace.charge(3600 * 1000 * MS, now);
        assert_eq!(pace.resumes_at(now), None);
    }

    #[test]
    fn debt_after_a_burst_decays_at_the_limit() {
        let now = Instant::now();
        let mut pace = Pace::new(Some(50), now);
        pace.charge(50 * MS, now);
        assert_eq!(pace.resumes_at(now), None, "a second's worth was saved");
        pace.charge(10 * MS, now);
        assert_eq!(pace.resumes_at(now), Some(now + 200 * MS), "10 ms at 5 %");
        assert_eq!(pace.resumes_at(now + 200 * MS), None);
        pace.charge(Duration::ZERO, now + 400 * MS);
        pace.charge(20 * MS, now + 400 * MS);
        assert_eq!(pace.resumes_at(now + 400 * MS), Some(now + 600 * MS), "10 ms were left");
    }

    /// A limit of 0.001 processors would pay off a millisecond of reading in a second; the kernel gives the app more.
    #[test]
    fn tiny_limits_accrue_at_the_kernel_minimum() {
        let now = Instant::now();
        let mut pace = Pace::new(Some(1), now);
        pace.charge(11 * MS, now);
        assert_eq!(pace.resumes_at(now), Some(now + 100 * MS), "1 ms above the savings of 10 ms, at 1 %");
    }

    #[test]
    fn unused_allowance_is_capped() {
        let now = Instant::now();
        let mut pace = Pace::new(Some(1000), now);
        let later = now + 3600 * 1000 * MS;
        pace.charge(1001 * MS, later);
        assert_eq!(pace.resumes_at(later), Some(later + MS));
    }

    #[test]
    fn long_term_use_stays_at_the_limit() {
        let mut now = Instant::now();
        let begin = now;
        let mut pace = Pace::new(Some(50), now);
        let mut used = Duration::ZERO;
        while now < begin + 60_000 * MS {
            match pace.resumes_at(now) {
                Some(at) => now = at,
                None => {
                    now += 25 * MS;
                    used += 25 * MS;
                    pace.charge(25 * MS, now);
                }
            }
        }
        assert!(used <= 3100 * MS, "5 % of a minute and a burst: {used:?}");
    }
}
