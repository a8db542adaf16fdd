//! Restart policies of apps: when an app that has ended is started again, and after which delay.
//!
//! The supervisor restarts the apps of its pod, as long as it lives itself. An app that was stopped on request is never
//! restarted by its policy. A pod whose supervisor died, because it was killed or the host was restarted, is started
//! again by gantryd ([`PodRestart`]).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;
use crate::{AppName, AppOutcome, Timestamp};

/// The delay before the first restart. Each further one doubles it.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// The longest delay.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// The doublings of the shortest delay after which the longest one would be exceeded.
const MAX_DOUBLINGS: u32 = 8;
/// An app that ran this long was healthy: its restarts are counted anew.
pub const HEALTHY_RUN: Duration = Duration::from_secs(10);

/// The delay before gantryd starts a pod again whose last start failed or did not last. Each further one doubles it.
const MIN_POD_BACKOFF: Duration = Duration::from_secs(1);
/// The longest of these delays.
const MAX_POD_BACKOFF: Duration = Duration::from_secs(300);

/// How far the clock may be set back without ending a delay early: steps of time synchronization.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

/// When an app that has ended is started again (docker's `--restart`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// Never.
    #[default]
    No,
    /// When it has failed: exited with another code than 0, or was killed by a signal.
    OnFailure {
        /// Maximum restarts in a row, without a run of [`HEALTHY_RUN`] in between; `None`: any number.
        #[serde(default)]
        max_restarts: Option<u32>,
    },
    /// Always.
    Always,
}

impl RestartPolicy {
    /// Whether an app that has ended so is started again, after this many restarts in a row.
    #[must_use]
    pub fn restarts(self, end: AppOutcome, restarts: u32) -> bool {
        match self {
            Self::No => false,
            Self::OnFailure { max_restarts } => !end.is_success() && max_restarts.is_none_or(|max| restarts < max),
            Self::Always => true,
        }
    }

    /// Whether a pod with such an app is started again when its supervisor died, after this many tries in a row.
    #[must_use]
    pub fn restarts_pod(self, tries: u32) -> bool {
        self.restarts(AppOutcome::Lost, tries)
    }
}

/// The restarts of a pod by gantryd, as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodRestart {
    /// When gantryd starts the pod again, which has ended. `None`: it does not.
    pub at: Option<Timestamp>,
    /// Starts by gantryd in a row, without a run of [`HEALTHY_RUN`] after one of them.
    pub tries: u32,
    /// Starts by gantryd since the last start on request.
    pub count: u32,
    /// Why the last start failed; `None`: it did not, or was not the last one.
    pub failure: Option<String>,
    /// The request to stop the pod since its last start.
    pub stop_request: Option<StopRequest>,
    /// The apps that were stopped on request before the pod ended: gantryd does not start them with the pod.
    pub held_apps: BTreeSet<AppName>,
}

/// How long a request to stop a pod keeps gantryd from starting it again. The later variant outweighs the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopRequest {
    /// Until the host is started again: the host is being shut down.
    UntilBoot,
    /// Until the pod is started on request.
    UntilStarted,
}

/// Why a pod that has ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartCause {
    /// On request.
    Request,
    /// By gantryd, because the pod waits for it.
    Restart,
}

impl PodRestart {
    /// Whether gantryd will start the pod again, which has ended: at a known time, or when the host is started again.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.at.is_some() || self.is_waiting_for_boot()
    }

    /// Whether gantryd will start the pod again when the host is started again.
    #[must_use]
    pub fn is_waiting_for_boot(&self) -> bool {
        self.stop_request == Some(StopRequest::UntilBoot)
    }

    /// Before the pod is started again.
    #[must_use]
    pub fn before_start(&self, cause: StartCause) -> Self {
        match cause {
            StartCause::Request => Self { at: self.at, ..Self::default() },
            StartCause::Restart => {
                let (tries, count) = (self.tries.saturating_add(1), self.count.saturating_add(1));
                Self { tries, count, ..self.clone() }
            }
        }
    }

    /// After the start.
    #[must_use]
    pub fn after_start(&self) -> Self {
        let held_apps = self.held_apps.clone();
        Self { tries: self.tries, count: self.count, held_apps, ..Self::default() }
    }

    /// After a start that failed. A pod that waited to be started again still does, unless it was stopped meanwhile.
    #[must_use]
    pub fn after_failed_start(&self, failure: String, now: Timestamp) -> Self {
        let at = self.at.filter(|_| self.stop_request.is_none()).map(|_| now.after(pod_backoff(self.tries)));
        Self { at, failure: Some(failure), ..self.clone() }
    }

    /// After the end of a run of this length. `is_lost`: the supervisor did not end by itself or on request; then the
    /// policies of the pod's apps decide, but for those that are held.
    #[must_use]
    pub fn after_end(
        &self,
        is_lost: bool,
        policies: impl IntoIterator<Item = RestartPolicy>,
        ran: Duration,
        now: Timestamp,
    ) -> Self {
        let tries = if ran >= HEALTHY_RUN { 0 } else { self.tries };
        let is_restarted = policies.into_iter().any(|policy| policy.restarts_pod(tries));
        let is_due = is_lost && is_restarted && self.stop_request.is_none();
        let stop_request = match self.stop_request {
            Some(StopRequest::UntilBoot) if !is_restarted => Some(StopRequest::UntilStarted),
            other => other,
        };
        Self { at: is_due.then(|| now.after(pod_backoff(tries))), tries, stop_request, ..self.clone() }
    }

    /// After a request to stop it.
    #[must_use]
    pub fn after_stop_request(&self, request: StopRequest) -> Self {
        Self { at: None, stop_request: self.stop_request.max(Some(request)), ..self.clone() }
    }
}

/// The delay before gantryd starts a pod again, after this many tries in a row: none, 1 s, doubled each time, at most
/// five minutes.
#[must_use]
pub fn pod_backoff(tries: u32) -> Duration {
    match tries.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => MIN_POD_BACKOFF
            .saturating_mul(1_u32.checked_shl(doublings.min(30)).unwrap_or(u32::MAX))
            .min(MAX_POD_BACKOFF),
    }
}

/// The time of a start that was planned for `at`, after this delay. A time further ahead than the delay was recorded
/// before the clock was set back: the start is due.
#[must_use]
pub fn due_time(at: Timestamp, delay: Duration, now: Timestamp) -> Timestamp {
    if at.since(now) > delay + CLOCK_TOLERANCE { now } else { at }
}

/// The delay before the next start, after this many restarts in a row: 100 ms, doubled each time, at most 30 s, and up
/// to a fifth more or less, so that apps that failed together are not started together. `random` may be any number.
#[must_use]
pub fn backoff(restarts: u32, random: u32) -> Duration {
    let doubled = MIN_BACKOFF.saturating_mul(1_u32.checked_shl(restarts.min(30)).unwrap_or(u32::MAX));
    let delay = doubled.min(MAX_BACKOFF);
    // Per mille, from 800 to 1200.
    delay.saturating_mul(800 + random % 401) / 1000
}

/// The number of restarts in a row before a [`backoff`] of this length; the longest one also stands for more.
#[must_use]
pub fn restarts_before(delay: Duration) -> u32 {
    // Between the longest and the shortest delay of two neighbours.
    let limit = |restarts: u32| MIN_BACKOFF.saturating_mul(1 << restarts).saturating_mul(14) / 10;
    (0..MAX_DOUBLINGS).find(|&restarts| delay <= limit(restarts)).unwrap_or(MAX_DOUBLINGS)
}

impl FromStr for RestartPolicy {
    type Err = SpecError;

    /// Parses `no`, `always`, `unless-stopped`, `on-failure` or `on-failure:N`.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let invalid = || {
            let text = shown(text);
            SpecError::new(format!("'{text}' is not a restart policy: expected no, on-failure, on-failure:N or always"))
        };
        match text.split_once(':') {
            None => match text {
                "no" | "never" => Ok(Self::No),
                "on-failure" => Ok(Self::OnFailure { max_restarts: None }),
                // An app that was stopped on request is not restarted by `always` either.
                "always" | "unless-stopped" => Ok(Self::Always),
                _ => Err(invalid()),
            },
            Some(("on-failure", max)) if max.bytes().all(|digit| digit.is_ascii_digit()) => {
                let max: u32 = max.parse().map_err(|_| invalid())?;
                // As in docker: 0 is no limit.
                Ok(Self::OnFailure { max_restarts: (max > 0).then_some(max) })
            }
            Some(_) => Err(invalid()),
        }
    }
}

impl fmt::Display for RestartPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("no"),
            Self::OnFailure { max_restarts: None } => f.write_str("on-failure"),
            Self::OnFailure { max_restarts: Some(max) } => write!(f, "on-failure:{max}"),
            Self::Always => f.write_str("always"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn policies_are_parsed_and_shown() {
        for text in ["no", "on-failure", "on-failure:3", "always"] {
            assert_eq!(text.parse::<RestartPolicy>().unwrap().to_string(), text);
        }
        assert_eq!("unless-stopped".parse::<RestartPolicy>().unwrap(), RestartPolicy::Always);
        assert_eq!("on-failure:0".parse::<RestartPolicy>().unwrap(), RestartPolicy::OnFailure { max_restarts: None });
        for bad in ["", "yes", "always:3", "on-failure:", "on-failure:-1", "on-failure:+1", "on-failure:99999999999"] {
            assert!(bad.parse::<RestartPolicy>().is_err(), "{bad}");
        }
    }

    #[test]
    fn failures_are_restarted_up_to_the_limit() {
        let (good, bad) = (AppOutcome::Exited(0), AppOutcome::Signaled(9));
        let limited = RestartPolicy::OnFailure { max_restarts: Some(2) };
        assert_eq!([0, 1, 2].map(|restarts| limited.restarts(bad, restarts)), [true, true, false]);
        assert!(!limited.restarts(good, 0));
        assert!(RestartPolicy::OnFailure { max_restarts: None }.restarts(bad, u32::MAX));
        assert!(RestartPolicy::Always.restarts(good, u32::MAX) && !RestartPolicy::No.restarts(bad, 0));
    }

    #[test]
    fn lost_pods_wait_longer_after_each_try() {
        let now = Timestamp(1_000_000_000_000);
        let always = [RestartPolicy::No, RestartPolicy::Always];
        let seconds = |restart: &PodRestart| restart.at.map(|at| at.since(now).as_secs());
        let mut restart = PodRestart::default().after_end(true, always, Duration::ZERO, now);
        assert_eq!(seconds(&restart), Some(0));
        for want in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            restart = restart.before_start(StartCause::Restart).after_failed_start("port in use".into(), now);
            assert_eq!(seconds(&restart), Some(want), "{restart:?}");
        }
        let started = restart.before_start(StartCause::Restart).after_start();
        assert_eq!((started.at, started.count, started.failure.clone()), (None, 12, None));
        assert_eq!(seconds(&started.after_end(true, always, Duration::from_secs(9), now)), Some(300));
        assert_eq!(seconds(&started.after_end(true, always, HEALTHY_RUN, now)), Some(0));
        assert_eq!(restart.before_start(StartCause::Request).after_start(), PodRestart::default());
    }

    #[test]
    fn a_clock_set_back_delays_no_start() {
        let now = Timestamp(1_000_000_000_000_000);
        let after = |seconds| now.after(Duration::from_secs(seconds));
        for tries in [0, 1, 5, u32::MAX] {
            let delay = pod_backoff(tries);
            let due = |seconds| due_time(after(delay.as_secs() + seconds), delay, now);
            assert_eq!(due(0), after(delay.as_secs()), "{tries}");
            assert_eq!(due(1), after(delay.as_secs() + 1), "a small step of the clock after {tries} tries");
            assert_eq!((due(2), due(5 * 3600)), (now, now), "{tries}");
        }
        let passed = Timestamp(1);
        assert_eq!(due_time(passed, Duration::ZERO, now), passed);
    }

    #[test]
    fn only_lost_pods_are_restarted() {
        let now = Timestamp(5);
        let after = |restart: &PodRestart, is_lost, policy| {
            restart.after_end(is_lost, [policy], Duration::ZERO, now).at.is_some()
        };
        let none = PodRestart::default();
        let limited = RestartPolicy::OnFailure { max_restarts: Some(1) };
        assert!(after(&none, true, RestartPolicy::Always) && after(&none, true, limited));
        assert!(!after(&none, true, RestartPolicy::No) && !after(&none, false, RestartPolicy::Always));
        assert!(!after(&none.before_start(StartCause::Restart), true, limited));
        let stopped = none.after_stop_request(StopRequest::UntilStarted);
        assert!(!after(&stopped, true, RestartPolicy::Always));
        let waiting =
            none.after_end(true, [RestartPolicy::Always], Duration::ZERO, now).before_start(StartCause::Restart);
        let stopped_waiting = waiting.after_stop_request(StopRequest::UntilStarted);
        assert_eq!(stopped_waiting.after_failed_start("x".into(), now).at, None);
        assert!(after(&stopped.before_start(StartCause::Request), true, RestartPolicy::Always));
    }

    #[test]
    fn pods_stopped_until_the_boot_wait_for_it() {
        let end = |restart: &PodRestart, policy| restart.after_end(false, [policy], Duration::ZERO, Timestamp(5));
        let stopped = PodRestart::default().after_stop_request(StopRequest::UntilBoot);
        let ended = end(&stopped, RestartPolicy::Always);
        assert!(ended.is_waiting_for_boot() && ended.is_waiting() && ended.at.is_none(), "{ended:?}");
        let other = end(&stopped, RestartPolicy::No);
        assert_eq!((other.is_waiting(), other.stop_request), (false, Some(StopRequest::UntilStarted)));
        for restart in [&stopped, &ended] {
            let stopped = restart.after_stop_request(StopRequest::UntilStarted);
            assert!(!end(&stopped, RestartPolicy::Always).is_waiting(), "a stop outweighs a shutdown: {stopped:?}");
            assert_eq!(stopped.after_stop_request(StopRequest::UntilBoot), stopped);
        }
        assert_eq!(ended.before_start(StartCause::Request).after_start(), PodRestart::default());
    }

    proptest! {
        #[test]
        fn delays_double_up_to_a_maximum(restarts: u32, random: u32) {
            let delay = backoff(restarts, random);
            let middle = MIN_BACKOFF.saturating_mul(1 << restarts.min(20)).min(MAX_BACKOFF);
            prop_assert!(delay >= middle * 4 / 5 && delay <= middle * 6 / 5, "{delay:?} {middle:?}");
            prop_assert_eq!(restarts_before(delay), restarts.min(MAX_DOUBLINGS));
        }
    }
}
