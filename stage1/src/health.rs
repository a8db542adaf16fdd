//! The health of an app: the schedule of its probes, and the state that follows from their results.
//! [`crate::supervise`] runs the probes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gantry_contract::control::{HealthReport, HealthResult, MAX_HEALTH_OUTPUT, MAX_HEALTH_RESULTS};
use gantry_contract::journal::Fact;
use gantry_model::HealthState;
use gantry_model::health::{HealthAction, HealthCheck, HealthSettings};

use crate::app::probe::Probe;

/// The changes of an app's health that are journaled before [`JOURNAL_INTERVAL`] applies. An app whose health changes
/// with every probe must not fill the disk.
const MAX_JOURNAL_BURST: u32 = 60;

/// The time in which one more change may be journaled.
const JOURNAL_INTERVAL: Duration = Duration::from_secs(60);

/// The maximum length of the output in the journal, in bytes.
const MAX_JOURNAL_OUTPUT: usize = 512;

/// The health of an app with a health check.
pub(crate) struct AppHealth {
    check: HealthCheck,
    state: HealthState,
    /// Failures in a row.
    failures: u32,
    /// The start of the app that the state belongs to.
    attempt: u32,
    started: Instant,
    next_probe: Instant,
    /// The probe that runs.
    pub(crate) probe: Option<Probe>,
    results: VecDeque<HealthResult>,
    journaled: JournaledHealth,
}

/// The part of the health that the journal has.
struct JournaledHealth {
    /// The attempt and state of the last record.
    last: Option<(u32, HealthState)>,
    /// The number of the last record.
    number: u32,
    /// How many changes may still be journaled.
    quota: u32,
    /// When the quota was last raised.
    raised: Instant,
}

impl AppHealth {
    /// The health of an app that is about to be started, and of which so many changes were recorded; `None`: it has no
    /// health check.
    pub(crate) fn new(settings: &HealthSettings, changes: u32, now: Instant) -> Option<Box<Self>> {
        let check = settings.resolve()?;
        let journaled = JournaledHealth { last: None, number: changes, quota: MAX_JOURNAL_BURST, raised: now };
        let health = Self {
            check,
            state: HealthState::Starting,
            failures: 0,
            attempt: 0,
            started: now,
            next_probe: now,
            probe: None,
            results: VecDeque::new(),
            journaled,
        };
        Some(Box::new(health))
    }

    /// The app was started.
    pub(crate) fn begin(&mut self, attempt: u32, now: Instant) {
        self.state = HealthState::Starting;
        self.failures = 0;
        self.attempt = attempt;
        self.started = now;
        self.schedule(now);
    }

    /// The settings.
    pub(crate) fn check(&self) -> &HealthCheck {
        &self.check
    }

    /// The state.
    pub(crate) fn state(&self) -> HealthState {
        self.state
    }

    /// When the probe that runs times out, or the next one begins.
    pub(crate) fn deadline(&self) -> Instant {
        self.probe.as_ref().map_or(self.next_probe, |probe| probe.deadline)
    }

    /// Whether a probe is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.probe.is_none() && self.next_probe <= now
    }

    /// Postpones the next probe: the last one has ended, or cannot begin.
    pub(crate) fn schedule(&mut self, now: Instant) {
        let delay = if self.is_in_start_period(now) { self.check.start_interval } else { self.check.interval };
        self.next_probe = now + delay;
    }

    fn is_in_start_period(&self, now: Instant) -> bool {
        self.state == HealthState::Starting && now < self.started + self.check.start_period
    }

    /// Records the result of a probe; returns the action if the app has become unhealthy.
    pub(crate) fn record(&mut self, result: HealthResult, now: Instant) -> Option<HealthAction> {
        let success = result.success;
        if self.results.len() == MAX_HEALTH_RESULTS {
            self.results.pop_front();
        }
        self.results.push_back(result);
        let action = match success {
            true => {
                self.failures = 0;
                self.state = HealthState::Healthy;
                None
            }
            false if self.is_in_start_period(now) => None,
            false => {
                self.failures = self.failures.saturating_add(1);
                let is_new = self.failures >= self.check.retries && self.state != HealthState::Unhealthy;
                is_new.then(|| {
                    self.state = HealthState::Unhealthy;
                    self.check.on_failure
                })
            }
        };
        self.schedule(now);
        action
    }

    /// The fact to be journaled, if the state has changed since the last one and the quota allows it.
    pub(crate) fn take_change(&mut self, app: &str, now: Instant) -> Option<Fact> {
        let journaled = &mut self.journaled;
        if journaled.last == Some((self.attempt, self.state)) {
            return None;
        }
        while journaled.quota < MAX_JOURNAL_BURST && journaled.raised + JOURNAL_INTERVAL <= now {
            journaled.raised += JOURNAL_INTERVAL;
            journaled.quota += 1;
        }
        if journaled.quota == MAX_JOURNAL_BURST {
            journaled.raised = now;
        }
        // A start has records of its own, and is not limited here.
        if self.state != HealthState::Starting {
            journaled.quota = journaled.quota.checked_sub(1)?;
        }
        journaled.number += 1;
        journaled.last = Some((self.attempt, self.state));
        let last = self.results.back().filter(|_| self.state != HealthState::Starting);
        let output = last.map(|result| clip(&result.output, MAX_JOURNAL_OUTPUT).to_owned());
        Some(Fact::HealthChanged {
            app: app.to_owned(),
            attempt: self.attempt,
            number: journaled.number,
            health: self.state,
            failures: self.failures,
            output: output.unwrap_or_default(),
        })
    }

    /// The reply to a client.
    pub(crate) fn report(&self) -> HealthReport {
        HealthReport { state: self.state, failures: self.failures, results: self.results.iter().cloned().collect() }
    }
}

/// The output of a probe as text: without control characters, which could act on the terminal of a reader.
pub(crate) fn printable(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let shown = |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { '\u{fffd}' } else { c };
    let text: String = text.trim_end().chars().map(shown).collect();
    clip(&text, MAX_HEALTH_OUTPUT).to_owned()
}

/// The beginning of a text, in bytes.
fn clip(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::health::HealthProbe;

    fn health(start_period_ms: u64) -> (Box<AppHealth>, Instant) {
        let settings = HealthSettings {
            probe: Some(HealthProbe::shell("true")),
            retries: Some(2),
            interval_ms: Some(30_000),
            start_period_ms: Some(start_period_ms),
            on_failure: Some(HealthAction::Restart),
            ..HealthSettings::default()
        };
        let now = Instant::now();
        let mut health = AppHealth::new(&settings, 0, now).unwrap();
        health.begin(0, now);
        (health, now)
    }

    fn result(success: bool) -> HealthResult {
        HealthResult { started: 0, ended: 1, success, exit_code: None, output: "x".into() }
    }

    #[test]
    fn consecutive_failures_make_an_app_unhealthy() {
        let (mut health, now) = health(0);
        assert_eq!(health.deadline(), now + Duration::from_secs(30), "no start period");
        let mut seen = Vec::new();
        for success in [false, true, false, false, false, true] {
            let action = health.record(result(success), now);
            seen.push((health.state(), action));
        }
        use HealthState::{Healthy, Starting, Unhealthy};
        let restart = Some(HealthAction::Restart);
        let none = None;
        let want = [(Starting, none), (Healthy, none), (Healthy, none), (Unhealthy, restart), (Unhealthy, none)];
        assert_eq!(seen[..5], want);
        assert_eq!(seen[5], (Healthy, none));
        assert_eq!(health.report().results.len(), MAX_HEALTH_RESULTS);
    }

    #[test]
    fn failures_of_the_start_period_do_not_count() {
        let (mut health, now) = health(60_000);
        assert_eq!(health.deadline(), now + Duration::from_secs(5), "the interval of the start period");
        let later = now + Duration::from_secs(61);
        for at in [now, now, now, later] {
            assert_eq!(health.record(result(false), at), None);
        }
        assert_eq!(health.deadline(), later + Duration::from_secs(30));
        assert_eq!(health.record(result(false), later), Some(HealthAction::Restart));
        health.begin(1, later);
        assert_eq!(health.state(), HealthState::Starting);
        // After a success, failures count although the period has not passed.
        health.record(result(true), later);
        assert_eq!(health.record(result(false), later), None);
        assert_eq!(health.record(result(false), later), Some(HealthAction::Restart));
    }

    #[test]
    fn flapping_apps_do_not_fill_the_journal() {
        let (mut health, now) = health(0);
        let mut flap = |rounds: u32, at: Instant| {
            let mut facts = 0;
            for _ in 0..rounds {
                health.record(result(true), at);
                facts += u32::from(health.take_change("a", at).is_some());
                health.record(result(false), at);
                health.record(result(false), at);
                facts += u32::from(health.take_change("a", at).is_some());
            }
            facts
        };
        assert_eq!(flap(1000, now), MAX_JOURNAL_BURST);
        assert_eq!(flap(1000, now + JOURNAL_INTERVAL * 3), 3);
    }

    #[test]
    fn output_is_printable_and_short() {
        assert_eq!(printable(b"ok\x1b[2J\xff\n\n"), "ok\u{fffd}[2J\u{fffd}");
        assert_eq!(printable(&vec![0xff; 10_000]).len(), MAX_HEALTH_OUTPUT / 3 * 3);
    }
}
