//! Schedules: pods that gantryd keeps running, or starts at certain times.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::id::shown;
use crate::spec::SpecError;

/// The maximum length of a schedule's name, in bytes.
const MAX_NAME: usize = 255;
/// The maximum length of a schedule's comment, in bytes.
const MAX_COMMENT: usize = 4096;
/// The minimum period of a timer.
const MIN_PERIOD: Duration = Duration::from_secs(1);
/// The maximum number of calendar events of a timer.
const MAX_CALENDAR_EVENTS: usize = 32;
/// The maximum period of a timer, and the maximum time after a boot.
const MAX_PERIOD: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The name of a schedule: any text without control characters. A schedule that was enabled without a name has its
/// command as its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScheduleName(String);

impl ScheduleName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ScheduleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ScheduleName {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let fits = (1..=MAX_NAME).contains(&text.len())
            && !text.chars().any(char::is_control)
            && !text.starts_with(|c: char| c == '-' || c.is_whitespace())
            && !text.ends_with(char::is_whitespace);
        match fits {
            true => Ok(Self(text.to_owned())),
            false => Err(SpecError::new(format!(
                "'{}' is not the name of a schedule: expected 1 to {MAX_NAME} bytes without control characters, that \
                 do not begin with '-' or a space",
                shown(text)
            ))),
        }
    }
}

/// Checks the length of a schedule's comment.
///
/// # Errors
/// [`SpecError`].
pub fn validate_comment(comment: &str) -> Result<(), SpecError> {
    match comment.len() {
        0..=MAX_COMMENT => Ok(()),
        _ => Err(SpecError::new(format!("the comment is longer than {MAX_COMMENT} bytes"))),
    }
}

/// The treatment of a run that is due while the previous one has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overlap {
    /// It is skipped.
    #[default]
    Refuse,
    /// One run starts when the previous one has ended.
    Queue,
}

impl Overlap {
    /// The word of the flag.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Queue => "queue",
        }
    }
}

impl FromStr for Overlap {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "refuse" => Ok(Self::Refuse),
            "queue" => Ok(Self::Queue),
            _ => Err(SpecError::new(format!("'{}' is neither refuse nor queue", shown(text)))),
        }
    }
}

/// When the pods of a schedule are started. A run that is due for several reasons is started once.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Timer {
    /// This long after the last run was started, or after the schedule was enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// Once per boot, this long after it, or at once if that time has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_boot: Option<Duration>,
    /// At each of these calendar events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calendar: Vec<String>,
    /// Each run is delayed by a time below this one ([`Timer::delay_run`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub randomized_delay: Option<Duration>,
    /// The treatment of a run that is due while the previous one has not ended.
    #[serde(default)]
    pub overlap: Overlap,
}

impl Timer {
    /// Checks the times.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.every.is_none() && self.on_boot.is_none() && self.calendar.is_empty() {
            let flag = if self.randomized_delay.is_some() { "--randomized-delay" } else { "--on-overlap" };
            return Err(SpecError::new(format!("{flag} needs a timer: --every, --on-boot or --on-calendar")));
        }
        if self.calendar.len() > MAX_CALENDAR_EVENTS {
            return Err(SpecError::new(format!("a schedule has at most {MAX_CALENDAR_EVENTS} calendar events")));
        }
        if self.every.is_some_and(|every| !(MIN_PERIOD..=MAX_PERIOD).contains(&every)) {
            return Err(SpecError::new("--every must be between one second and ten years"));
        }
        if self.on_boot.is_some_and(|after| after > MAX_PERIOD) {
            return Err(SpecError::new("--on-boot must be at most ten years"));
        }
        if self.randomized_delay.is_some_and(|delay| delay > MAX_PERIOD) {
            return Err(SpecError::new("--randomized-delay must be at most ten years"));
        }
        Ok(())
    }

    /// Whether pods are started after a boot only.
    #[must_use]
    pub fn is_only_on_boot(&self) -> bool {
        self.every.is_none() && self.calendar.is_empty()
    }

    /// The time of a run that is due at this time, with its delay (`RandomizedDelaySec=` of systemd.timer(5)). The
    /// delay depends on the schedule's name and the due time alone, so that another gantryd computes the same one.
    #[must_use]
    pub fn delay_run(&self, name: &ScheduleName, due: Timestamp) -> Timestamp {
        self.delay(due, hash(name, &due.0.to_le_bytes()))
    }

    /// The time of the run after a boot, with its random delay. The delay depends on the boot's id, not on its time:
    /// the time is computed from two clocks and varies.
    #[must_use]
    pub fn delay_boot_run(&self, name: &ScheduleName, boot: &str, due: Timestamp) -> Timestamp {
        self.delay(due, hash(name, boot.as_bytes()))
    }

    fn delay(&self, due: Timestamp, hash: u64) -> Timestamp {
        let limit = self.randomized_delay.map_or(0, |delay| u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
        hash.checked_rem(limit).map_or(due, |delay| due.after(Duration::from_nanos(delay)))
    }

    /// The time of the next periodic run without its random delay, which may have passed. `handled`: all runs that were
    /// due until then were started or skipped.
    #[must_use]
    pub fn next_period(&self, handled: Timestamp) -> Option<Timestamp> {
        self.every.map(|every| handled.after(every))
    }

    /// The time of the run of the boot at this time, without its random delay, which may have passed.
    #[must_use]
    pub fn boot_run(&self, booted: Timestamp) -> Option<Timestamp> {
        self.on_boot.map(|after| booted.after(after))
    }
}

/// FNV-1a, mixed by the last steps of SplitMix64: a hash that is the same in each version of gantry.
fn hash(name: &ScheduleName, run: &[u8]) -> u64 {
    let bytes = name.as_str().bytes().chain(run.iter().copied());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: i64) -> Timestamp {
        Timestamp(count * 1_000_000_000)
    }

    #[test]
    fn names_are_text_without_control_characters() {
        for good in ["a", "/bin/sleep 100", "grüße", "a.b"] {
            assert_eq!(good.parse::<ScheduleName>().unwrap().as_str(), good);
        }
        for bad in ["", " a", "a ", "-a", "a\nb", "a\u{1b}[0m", &"a".repeat(256)] {
            assert!(bad.parse::<ScheduleName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn random_delays_are_stable_and_spread() {
        let name = |text: &str| text.parse::<ScheduleName>().unwrap();
        let timer = Timer { randomized_delay: Some(Duration::from_secs(100)), ..Timer::default() };
        assert_eq!(Timer::default().delay_run(&name("a"), seconds(5)), seconds(5));
        let delay = |text: &str, due: i64| timer.delay_run(&name(text), seconds(due)).since(seconds(due)).as_secs();
        let delays: Vec<u64> = (0..1000).map(|due| delay("a", due)).collect();
        assert_eq!(delays, (0..1000).map(|due| delay("a", due)).collect::<Vec<_>>());
        for tenth in 0..10 {
            let count = delays.iter().filter(|delay| **delay / 10 == tenth).count();
            assert!((60..=140).contains(&count), "{tenth}: {count}");
        }
        assert!((0..100).filter(|due| delay("a", *due) == delay("b", *due)).count() < 10);
        let of_boot =
            |boot: &str, due| timer.delay_boot_run(&name("a"), boot, Timestamp(due)).since(Timestamp(due)).as_nanos();
        assert_eq!(of_boot("x", 5), of_boot("x", 6), "the time of a boot is not exact");
        assert_ne!(of_boot("x", 5), of_boot("y", 5));
        assert!(timer.validate().is_err(), "no timer");
    }

    #[test]
    fn runs_are_due_by_period_and_boot() {
        let timer =
            Timer { every: Some(Duration::from_secs(60)), on_boot: Some(Duration::from_secs(5)), ..Timer::default() };
        assert_eq!(timer.boot_run(seconds(900)), Some(seconds(905)));
        assert_eq!(timer.next_period(seconds(990)), Some(seconds(1050)));
        let only_boot = Timer { every: None, ..timer };
        assert_eq!(only_boot.next_period(seconds(990)), None);
        assert!(only_boot.validate().is_ok() && Timer::default().validate().is_err());
        assert!(Timer { every: Some(Duration::from_millis(999)), ..Timer::default() }.validate().is_err());
    }
}
