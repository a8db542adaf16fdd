//! Changes limits while the pod runs.
//!
//! A memory limit below the memory in use makes the kernel reclaim page cache, which may take seconds. A helper process
//! sets such a limit ([`Reclaim`]); the rest of the change follows when it has exited. Memory that cannot be reclaimed
//! is refused before ([`crate::cgroup::limits`]). On cgroup v1, the first limit of a controller that pods do not use
//! otherwise (cpuset, hugetlb) moves the app's processes, each of which may wait for a grace period.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::control::{Reply, UpdateLimits};
use gantry_contract::journal::Fact;
use gantry_model::ErrorKind;
use gantry_model::restart::RestartPolicy;
use gantry_model::spec::Limits;
use rustix::process::{PidfdFlags, Signal};

use super::Supervisor;
use crate::cgroup::limits::{IneffectiveLimit, LimitedCgroup, LimitsOwner, extra_controllers, warnings};
use crate::cgroup::updated_limits::{self, Durability};
use crate::control;
use crate::failure::{Attempt as _, OfApp as _, Result, failure};
use crate::output::pace::Pace;
use crate::pod::{Pod, no_such_app};
use crate::reaper::reap;
use crate::sys::{self, SingleThreaded};
use crate::table::Token;

/// Timeout of lowering a memory limit.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(5);

/// A helper process that lowers a memory limit below the memory in use. SIGKILL ends the reclaim.
pub(super) struct Reclaim {
    pub(super) helper: OwnedFd,
    pub(super) deadline: Instant,
    update: UpdateLimits,
    client: OwnedFd,
}

impl Pod {
    /// Records all limits in effect if their record was removed or damaged.
    fn restore_lost_record(&self) -> Result<()> {
        let dir = self.jail.pod_dir.as_fd();
        if !updated_limits::is_lost(dir) {
            return Ok(());
        }
        updated_limits::change(dir, self.limits_durability(), |record| {
            let apps = self.apps.values().map(|app| &app.plan);
            record.apps = apps.map(|plan| (plan.name.clone(), plan.options.limits.clone())).collect();
            record.pod = Some(self.plan.limits.clone());
        })
    }

    /// Records the limits of an app or of the pod (`None`).
    fn record_limits(&self, app: Option<&str>, limits: &Limits) -> Result<()> {
        updated_limits::change(self.jail.pod_dir.as_fd(), self.limits_durability(), |record| match app {
            Some(name) => drop(record.apps.insert(name.to_owned(), limits.clone())),
            None => record.pod = Some(limits.clone()),
        })
    }

    /// Starts a helper process if the new memory limit is below the memory in use.
    fn start_reclaim(&self, update: &UpdateLimits) -> Result<Option<OwnedFd>> {
        let pod;
        let limited = match &update.app {
            Some(name) => self.app(name)?.cgroup.limited(&self.resources.block_devices),
            None => {
                pod = self.resources.cgroups.open_pod()?;
                LimitedCgroup { cgroups: &pod, owner: LimitsOwner::Pod, devices: &self.resources.block_devices }
            }
        };
        if !limited.needs_reclaim(&update.old, &update.new)? {
            return Ok(None);
        }
        let what = || "cannot start a process that lowers the memory limit";
        let pid = sys::fork(SingleThreaded::check().attempt(what)?, 0, |process| {
            let _best_effort = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let kept: Vec<_> = limited.cgroups.iter().map(|cgroup| cgroup.as_fd().as_raw_fd()).collect();
            if process.close_all_but(&kept).is_err() {
                sys::exit_now(1);
            }
            let lowered = limited.lower_memory(&update.old, &update.new);
            sys::exit_now(i32::from(lowered.is_err()))
        });
        let helper = rustix::process::pidfd_open(pid.attempt(what)?, PidfdFlags::empty()).attempt(what)?;
        Ok(Some(helper))
    }

    /// After a power cut, gantryd restarts only pods with a restart policy.
    pub(super) fn limits_durability(&self) -> Durability {
        match self.apps.values().any(|app| app.plan.options.restart != RestartPolicy::No) {
            true => Durability::OldOrNew,
            false => Durability::Any,
        }
    }

    /// Sets the former limits again after a failure.
    fn restore_limits(&mut self, update: &UpdateLimits) -> Result<Vec<IneffectiveLimit>> {
        match &update.app {
            Some(name) => self.change_app_limits(name, &update.new, &update.old, false),
            None => self.change_pod_limits(&update.new, &update.old, false),
        }
    }

    fn change_app_limits(
        &mut self,
        name: &str,
        old: &Limits,
        new: &Limits,
        has_extra: bool,
    ) -> Result<Vec<IneffectiveLimit>> {
        let app = self.apps.values_mut().find(|app| app.plan.name == name).ok_or_else(|| no_such_app(name))?;
        if has_extra {
            self.resources.cgroups.extend_app(name, &mut app.cgroup)?;
        }
        let ineffective = app.cgroup.change_limits(old, new, &self.resources.block_devices)?;
        app.plan.options.limits = new.clone();
        if old.cpu_limit_milli() != new.cpu_limit_milli() {
            app.output.pace = Pace::new(new.cpu_limit_milli(), Instant::now());
        }
        Ok(ineffective)
    }

    fn change_pod_limits(&mut self, old: &Limits, new: &Limits, has_extra: bool) -> Result<Vec<IneffectiveLimit>> {
        let cgroups = &self.resources.cgroups;
        if has_extra {
            for app in self.apps.values_mut() {
                cgroups.extend_app(&app.plan.name, &mut app.cgroup).of_app(&app.plan.name)?;
            }
        }
        // On v1, an app has a list of its own even if none was given for it: never one that its pod lacks.
        for app in self.apps.values().filter(|_| has_extra) {
            app.cgroup.follow_cpuset(&app.plan.options.limits, new);
        }
        let ineffective = cgroups.set_pod_limits(Some(old), new, &self.resources.block_devices)?;
        for app in self.apps.values().filter(|_| has_extra) {
            app.cgroup.follow_cpuset(&app.plan.options.limits, new);
        }
        self.plan.limits = new.clone();
        Ok(ineffective)
    }
}

impl Supervisor {
    /// Begins a change of limits; the client gets its reply when it is complete.
    pub(super) fn begin_update(&mut self, update: UpdateLimits, client: OwnedFd) {
        match self.check_update(&update).and_then(|()| self.pod.start_reclaim(&update)) {
            Ok(None) => self.finish_update(&update, &client, false),
            Ok(Some(helper)) => {
                let deadline = Instant::now() + RECLAIM_TIMEOUT;
                self.reclaims.insert(Reclaim { helper, deadline, update, client });
            }
            Err(why) => {
                // A client that compares with a lost record would be refused each time.
                if let Err(error) = self.pod.restore_lost_record() {
                    tracing::warn!("the record of limits is not restored: {}", error.message);
                }
                control::reply(&client, &Reply::Failed(why), None);
            }
        }
    }

    fn check_update(&self, update: &UpdateLimits) -> Result<()> {
        self.shutdown.check_is_open()?;
        let known = match &update.app {
            Some(name) => &self.pod.app(name)?.plan.options.limits,
            None => &self.pod.plan.limits,
        };
        let is_under_way = self.reclaims.values().any(|reclaim| reclaim.update.app == update.app);
        if *known != update.old || is_under_way {
            return Err(failure(ErrorKind::Busy, "another client is changing the limits or has: try again"));
        }
        Ok(())
    }

    /// The helper process has exited.
    pub(super) fn handle_reclaim(&mut self, token: Token<Reclaim>) {
        let Some(how) = self.reclaims.get(token).and_then(|reclaim| reap(&reclaim.helper)) else { return };
        let Some(reclaim) = self.reclaims.remove(token) else { return };
        if how == gantry_contract::ProcessExit::Code(0) {
            return self.finish_update(&reclaim.update, &reclaim.client, true);
        }
        let why = failure(ErrorKind::Refused, "its memory in use cannot be reclaimed");
        self.fail_reclaim(&reclaim.update, &reclaim.client, why);
    }

    /// Ends helper processes that take too long.
    pub(super) fn check_reclaims(&mut self, now: Instant) {
        let late = self.reclaims.iter().filter(|(_, reclaim)| reclaim.deadline <= now);
        for token in late.map(|(token, _)| token).collect::<Vec<_>>() {
            let Some((update, client)) = self.end_reclaim(token) else { continue };
            let seconds = RECLAIM_TIMEOUT.as_secs();
            let why = format!("its memory in use was not reclaimed within {seconds} s");
            self.fail_reclaim(&update, &client, failure(ErrorKind::TimedOut, why));
        }
    }

    /// Gives up lowering the memory limit of an app that is removed, or of all.
    pub(super) fn abort_reclaims(&mut self, app: Option<&str>) {
        for (_, client) in self.end_reclaims(app) {
            let why = failure(ErrorKind::Refused, "cannot lower the memory limit: the app or the pod ends");
            control::reply(&client, &Reply::Failed(why), None);
        }
    }

    /// Sets the limits that wait for a reclaim in the former cgroup of an app: the new one has no memory to reclaim.
    pub(super) fn finish_reclaims(&mut self, app: &str) {
        for (update, client) in self.end_reclaims(Some(app)) {
            self.finish_update(&update, &client, false);
        }
    }

    /// Ends a helper process that lowers a memory limit; returns the update and its client.
    fn end_reclaim(&mut self, token: Token<Reclaim>) -> Option<(UpdateLimits, OwnedFd)> {
        let Reclaim { helper, update, client, .. } = self.reclaims.remove(token)?;
        self.reaper.kill(helper);
        Some((update, client))
    }

    /// The same for all updates of an app, or all.
    fn end_reclaims(&mut self, app: Option<&str>) -> Vec<(UpdateLimits, OwnedFd)> {
        let concerns = |reclaim: &Reclaim| app.is_none() || reclaim.update.app.as_deref() == app;
        let tokens: Vec<_> =
            self.reclaims.iter().filter(|(_, reclaim)| concerns(reclaim)).map(|(token, _)| token).collect();
        tokens.into_iter().filter_map(|token| self.end_reclaim(token)).collect()
    }

    fn fail_reclaim(&mut self, update: &UpdateLimits, client: &OwnedFd, why: gantry_contract::Failure) {
        // The helper may have set some of the new limits.
        let _former_limits = self.pod.restore_limits(update);
        let message = format!("cannot lower the memory limit: {}", why.message);
        control::reply(client, &Reply::Failed(gantry_contract::Failure { message, ..why }), None);
    }

    fn finish_update(&mut self, update: &UpdateLimits, client: &OwnedFd, is_memory_lowered: bool) {
        let updated = self.update_limits(update, is_memory_lowered);
        if updated.is_err() && is_memory_lowered {
            // The helper has set these limits; they may be in force although the rest was refused.
            let _former_limits = self.pod.restore_limits(update);
        }
        let reply = match updated {
            Ok(warnings) => Reply::LimitsUpdated { warnings },
            Err(why) => Reply::Failed(why),
        };
        control::reply(client, &reply, None);
    }

    /// Sets and records new limits; returns warnings about those without effect.
    fn update_limits(&mut self, update: &UpdateLimits, is_memory_lowered: bool) -> Result<Vec<String>> {
        self.check_update(update)?;
        let mut old = update.old.clone();
        if is_memory_lowered && self.pod.resources.cgroups.has_v2_memory() {
            // Writing memory.high once more would reclaim once more.
            old.memory_high = update.new.memory_high;
        }
        self.pod.resources.block_devices.extend(update.block_devices.clone());
        let extra: Vec<_> = extra_controllers(&update.new).chain(extra_controllers(&update.old)).collect();
        self.pod.resources.cgroups.require_controllers(&extra)?;
        let ineffective = match &update.app {
            Some(name) => self.pod.change_app_limits(name, &old, &update.new, !extra.is_empty()).of_app(name)?,
            None => self.pod.change_pod_limits(&old, &update.new, !extra.is_empty())?,
        };
        if let Err(why) = self.pod.record_limits(update.app.as_deref(), &update.new) {
            // Without the record, a restart of the pod would lose the limits.
            let _former_limits = self.pod.restore_limits(update);
            return Err(why);
        }
        self.record_update(update);
        self.pod.watch_limited_apps();
        Ok(warnings(&ineffective))
    }

    /// Journals a change under its number. A request that changed nothing is no change.
    fn record_update(&mut self, update: &UpdateLimits) {
        let changes = update.old.changes_to(&update.new);
        if changes.is_empty() {
            return;
        }
        let (number, attempt) = match &update.app {
            Some(name) => {
                let changed = self.pod.apps.values_mut().find(|app| app.plan.name == *name);
                let Some(app) = changed else { return };
                let is_running = app.running.is_some();
                (
                    &mut app.plan.limit_changes,
                    app.started.as_ref().filter(|_| is_running).map(|started| started.attempt),
                )
            }
            None => (&mut self.pod.plan.limit_changes, None),
        };
        *number = number.saturating_add(1);
        let number = *number;
        self.journal.append(Fact::LimitsUpdated { app: update.app.clone(), attempt, number, changes });
    }
}
