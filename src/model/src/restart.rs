//! Restart policies of apps: when an app that has ended is started again, and after which delay.
//!
//! The supervisor restarts the apps of its pod, as long as it lives itself. An app that was stopped on request is never
//! restarted by its policy.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::AppOutcome;
use crate::id::shown;
use crate::spec::SpecError;

/// The delay before the first restart. Each further one doubles it.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// The longest delay.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// An app that ran this long was healthy: its restarts are counted anew.
pub const HEALTHY_RUN: Duration = Duration::from_secs(10);

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

    proptest! {
        #[test]
        fn delays_double_up_to_a_maximum(restarts: u32, random: u32) {
            let delay = backoff(restarts, random);
            let middle = MIN_BACKOFF.saturating_mul(1 << restarts.min(20)).min(MAX_BACKOFF);
            prop_assert!(delay >= middle * 4 / 5 && delay <= middle * 6 / 5, "{delay:?} {middle:?}");
        }
    }
}
