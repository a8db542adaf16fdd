//! Reports kills by the OOM killer.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use gantry_contract::journal::Fact;
use rustix::event::PollFlags;

use super::{EventSource, Supervisor};
use crate::app::App;
use crate::cgroup::oom::OomCounters;
use crate::pod::Pod;
use crate::table::Token;

impl Pod {
    /// The descriptors of watches to poll.
    pub(super) fn watched_oom(&self) -> impl Iterator<Item = (EventSource, BorrowedFd<'_>, PollFlags)> {
        let running = self.apps.iter().filter(|(_, app)| app.running.is_some());
        running.filter_map(|(token, app)| app.oom.watched().map(|(fd, events)| (EventSource::Oom(token), fd, events)))
    }

    /// When [`Supervisor::check_oom`] has work.
    pub(super) fn oom_deadlines(&self) -> impl Iterator<Item = Instant> {
        self.apps.values().filter(|app| app.running.is_some()).filter_map(|app| app.oom.deadline())
    }

    /// An app was started again: its cgroup is new, and so are its counters.
    pub(super) fn reset_oom_counters(&mut self, token: Token<App>) {
        let pod_is_limited = self.plan.limits.memory.is_some();
        let pod_failures = if pod_is_limited { self.resources.cgroups.memory_failures(0) } else { 0 };
        let Some(app) = self.apps.get_mut(token) else { return };
        app.oom.seen = OomCounters { kills: app.oom_kills_before, app_failures: 0, pod_failures };
        app.oom.watch(None);
        self.watch_limited_apps();
    }

    /// Watches every app that runs and to which a memory limit applies.
    pub(super) fn watch_limited_apps(&mut self) {
        let pod_is_limited = self.plan.limits.memory.is_some();
        for app in self.apps.values_mut() {
            let is_limited = pod_is_limited || app.plan.options.limits.memory.is_some();
            if app.running.is_some() && is_limited && !app.oom.is_watching() {
                app.oom.watch(app.cgroup.memory());
            }
        }
    }

    /// A kill may have happened or be about to. The counters are read later: by then, an exit of the main process that
    /// was killed has been handled.
    pub(super) fn handle_oom(&mut self, token: Token<App>) {
        if let Some(app) = self.apps.get_mut(token) {
            app.oom.handle_notification(Instant::now());
        }
    }
}

impl Supervisor {
    /// Reads the counters of apps that were notified of a kill.
    pub(super) fn check_oom(&mut self, now: Instant) {
        for token in self.pod.apps.tokens() {
            let Some(app) = self.pod.apps.get_mut(token) else { continue };
            if app.running.is_some() && app.oom.is_due(now) {
                self.record_oom_kills(token, false);
            }
        }
    }

    /// Journals the kills since the last call; returns the kernel's counter. `main`: the main process was killed by
    /// SIGKILL.
    pub(super) fn record_oom_kills(&mut self, token: Token<App>, main: bool) -> u64 {
        let Some(app) = self.pod.apps.get_mut(token) else { return 0 };
        let kills = app.cgroup.oom_kills();
        let killed = kills.saturating_sub(app.oom.seen.kills);
        if killed == 0 {
            return kills;
        }
        let (app_is_limited, pod_is_limited) =
            (app.plan.options.limits.memory.is_some(), self.pod.plan.limits.memory.is_some());
        let now = OomCounters {
            kills,
            app_failures: app.cgroup.memory_failures(kills),
            pod_failures: self.pod.resources.cgroups.memory_failures(kills),
        };
        // The kernel log is exact. On v1, the counters tell only that a limit was reached at some time.
        let log = self.pod.resources.kernel_log.as_mut();
        let logged = log.and_then(|log| log.take_last_kill(&self.pod.plan.pod, &app.plan.name));
        let level = match &logged {
            Some(kill) => kill.level,
            None => now.level_since(&app.oom.seen, app_is_limited, pod_is_limited),
        };
        app.oom.seen = now;
        app.oom.total += killed;
        self.journal.append(Fact::AppOomKilled {
            app: app.plan.name.clone(),
            attempt: app.plan.attempt,
            kills: killed,
            total: app.oom.total,
            level,
            main,
            victim: logged.map(|kill| kill.victim),
        });
        kills
    }
}
