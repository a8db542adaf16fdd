//! The CPU time per second of pods and apps, from the samples that gantryd takes anyway.
//!
//! A rate is the difference between a sample and one that was taken at least a second before: surfaces may sample more
//! often, and a short interval shows the ticks of the scheduler. Until then, it is the mean since the start.

use std::collections::HashMap;

use gantry_model::stats::{PodStats, ResourceUsage};
use gantry_model::{AppName, PodId, Timestamp};

/// The shortest interval, in nanoseconds.
const MIN_INTERVAL: i64 = 1_000_000_000;

/// The rates of a pod and its running apps, in billionths of a core.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuRates {
    /// Of the pod; `None`: the host has no CPU controller.
    pub pod: Option<u64>,
    /// Of its apps.
    pub apps: HashMap<AppName, u64>,
}

/// A pod, or an app of it with the number of its start.
type RateKey = (PodId, Option<(AppName, u32)>);

/// The kept samples.
#[derive(Debug, Default)]
pub(super) struct RateBases {
    bases: HashMap<RateKey, RateBase>,
}

#[derive(Debug, Clone, Copy)]
struct RateBase {
    at: Timestamp,
    total_ns: u64,
    /// The rate of the interval that ended here; `None`: the base is the start.
    rate: Option<u64>,
}

impl RateBases {
    /// The rates as of these samples, of all running pods in their order. Those of others are forgotten.
    pub(super) fn update(&mut self, pods: &[&PodStats]) -> Vec<CpuRates> {
        let mut former = std::mem::take(&mut self.bases);
        let mut rates = Vec::with_capacity(pods.len());
        for pod in pods {
            let mut rate = |key: RateKey, started, usage: &ResourceUsage| {
                let total_ns = usage.cpu.as_ref()?.total_ns;
                let base = former.remove(&key).unwrap_or(RateBase { at: started, total_ns: 0, rate: None });
                let (base, rate) = base.advance(pod.sampled, total_ns);
                self.bases.insert(key, base);
                Some(rate)
            };
            let of_pod = rate((pod.id, None), pod.started, &pod.usage);
            let apps = pod.apps.iter().filter_map(|app| {
                let key = (pod.id, Some((app.name.clone(), app.attempt)));
                Some((app.name.clone(), rate(key, app.started, &app.usage)?))
            });
            rates.push(CpuRates { apps: apps.collect(), pod: of_pod });
        }
        rates
    }
}

impl RateBase {
    /// The base for the next sample, and the rate at this one.
    fn advance(self, at: Timestamp, total_ns: u64) -> (Self, u64) {
        let interval = at.0.saturating_sub(self.at.0);
        if interval < 0 {
            // The clock was set back: the rate is measured from here on.
            let rate = self.rate.unwrap_or(0);
            return (Self { at, total_ns, rate: Some(rate) }, rate);
        }
        if interval < MIN_INTERVAL
            && let Some(rate) = self.rate
        {
            return (self, rate);
        }
        let used = u128::from(total_ns.saturating_sub(self.total_ns));
        let elapsed = u128::try_from(interval.max(1)).unwrap_or(1);
        let rate = u64::try_from(used * 1_000_000_000 / elapsed).unwrap_or(u64::MAX);
        if interval < MIN_INTERVAL {
            return (self, rate);
        }
        (Self { at, total_ns, rate: Some(rate) }, rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_a_second_at_least() {
        const SECOND: i64 = 1_000_000_000;
        let base = RateBase { at: Timestamp(0), total_ns: 0, rate: None };
        let (base, young) = base.advance(Timestamp(SECOND / 2), 250_000_000);
        assert_eq!((young, base.rate), (500_000_000, None), "the mean since the start");
        let (base, first) = base.advance(Timestamp(2 * SECOND), 1_000_000_000);
        let (base, soon) = base.advance(Timestamp(2 * SECOND + 1), 1_500_000_000);
        let (after_second, second) = base.advance(Timestamp(3 * SECOND), 3_000_000_000);
        assert_eq!((first, soon, second), (500_000_000, 500_000_000, 2_000_000_000));
        assert_eq!(base.advance(Timestamp(9 * SECOND), 0).1, 0, "the counter of a new cgroup");
        let (base, kept) = after_second.advance(Timestamp(SECOND), 4_000_000_000);
        let (_, next) = base.advance(Timestamp(2 * SECOND), 4_500_000_000);
        assert_eq!((kept, next), (2_000_000_000, 500_000_000), "the clock was set back");
    }
}
