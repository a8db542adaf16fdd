//! Changes limits while the pod runs.
//!
//! Lowering a memory limit makes the kernel reclaim page cache, during which the event loop waits; memory that cannot
//! be reclaimed is refused before ([`crate::limits`]). On cgroup v1, the first limit of a controller that pods do not
//! use otherwise (cpuset, hugetlb) moves the app's processes, each of which may wait for a grace period.

use std::os::fd::AsFd as _;
use std::time::Instant;

use gantry_contract::control::UpdateLimits;
use gantry_contract::journal::Fact;
use gantry_model::ErrorKind;
use gantry_model::spec::Limits;

use super::{Supervisor, no_such_app};
use crate::failure::{OfApp as _, Result, failure};
use crate::limits::{IneffectiveLimit, extra_controllers, warnings};
use crate::pace::Pace;
use crate::updated_limits;

impl Supervisor {
    /// Sets and records new limits; returns warnings about those without effect.
    pub(super) fn update_limits(&mut self, update: &UpdateLimits) -> Result<Vec<String>> {
        self.check_is_open()?;
        let known = match &update.app {
            Some(name) => &self.app(self.find_app(name)?)?.plan.options.limits,
            None => &self.pod.plan.limits,
        };
        if *known != update.old {
            return Err(failure(ErrorKind::Busy, "another client has changed the limits meanwhile: try again"));
        }
        self.pod.block_devices.extend(update.block_devices.clone());
        let extra: Vec<_> = extra_controllers(&update.new).chain(extra_controllers(&update.old)).collect();
        self.pod.cgroups.require_controllers(&extra)?;
        let ineffective = match &update.app {
            Some(name) => self.change_app_limits(name, &update.old, &update.new, !extra.is_empty()).of_app(name)?,
            None => self.change_pod_limits(&update.old, &update.new, !extra.is_empty())?,
        };
        let recorded = updated_limits::change(self.pod.jail.pod_dir.as_fd(), |limits| match &update.app {
            Some(name) => drop(limits.apps.insert(name.clone(), update.new.clone())),
            None => limits.pod = Some(update.new.clone()),
        });
        if let Err(why) = recorded {
            // Without the record, a restart of the pod would lose the limits.
            let _former_limits = match &update.app {
                Some(name) => self.change_app_limits(name, &update.new, &update.old, false),
                None => self.change_pod_limits(&update.new, &update.old, false),
            };
            return Err(why);
        }
        self.journal.append(Fact::LimitsUpdated { app: update.app.clone() });
        Ok(warnings(&ineffective))
    }

    fn change_app_limits(
        &mut self,
        name: &str,
        old: &Limits,
        new: &Limits,
        has_extra: bool,
    ) -> Result<Vec<IneffectiveLimit>> {
        let token = self.find_app(name)?;
        let app = self.pod.apps.get_mut(token).ok_or_else(|| no_such_app(name))?;
        if has_extra {
            self.pod.cgroups.extend_app(name, &mut app.cgroup)?;
        }
        let ineffective = app.cgroup.change_limits(old, new, &self.pod.block_devices)?;
        app.plan.options.limits = new.clone();
        if old.cpu_limit_milli() != new.cpu_limit_milli() {
            app.output.pace = Pace::new(new.cpu_limit_milli(), Instant::now());
        }
        Ok(ineffective)
    }

    fn change_pod_limits(&mut self, old: &Limits, new: &Limits, has_extra: bool) -> Result<Vec<IneffectiveLimit>> {
        let cgroups = &self.pod.cgroups;
        if has_extra {
            for app in self.pod.apps.values_mut() {
                cgroups.extend_app(&app.plan.name, &mut app.cgroup).of_app(&app.plan.name)?;
            }
        }
        // On v1, an app has a list of its own even if none was given for it: never one that its pod lacks.
        for app in self.pod.apps.values().filter(|_| has_extra) {
            app.cgroup.follow_cpuset(&app.plan.options.limits, new);
        }
        let ineffective = cgroups.set_pod_limits(Some(old), new, &self.pod.block_devices)?;
        for app in self.pod.apps.values().filter(|_| has_extra) {
            app.cgroup.follow_cpuset(&app.plan.options.limits, new);
        }
        self.pod.plan.limits = new.clone();
        Ok(ineffective)
    }
}
