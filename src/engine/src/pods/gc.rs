//! `gc`: deletes the pods whose grace period is over, and collects the leftovers of killed processes.
//!
//! 1. Exited and aborted pods stay as they are for `grace`, counted from their end; then they are marked as garbage and
//!    deleted in the same pass. Until then, polling clients see the state in which they ended.
//! 2. With `mark_only`, exited and aborted pods are marked at once and nothing is deleted. The grace period of a pod
//!    that was marked so counts from the mark, as in rkt.
//! 3. Prepared pods older than `expire_prepared` are marked and deleted. A deletion that was begun is finished.
//! 4. Cgroups that dead pods left are removed, and resources of networks that dead pods left or that belong to no pod.
//! 5. Ended and aborted pods of `run --rm` are deleted, without a grace period.
//! 6. The pods of commands whose caller is gone are stopped and deleted, without a grace period.
//!
//! A pod that gantryd is to start again stays. So do ended pods whose owner removes them: those of a kubelet (in the
//! namespace `k8s.io`), and those of a schedule, which would otherwise run again.
//!
//! A dry run changes nothing: rows are not reconciled either.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use gantry_model::phase::FormerPhase;
use gantry_model::query::PodQuery;
use gantry_model::spec::PodFlavor;
use gantry_model::{Edge, ErrorKind, Kind as _, Phase, PodId, PodNamespace, Timestamp};
use gantry_store::{Change, PodRow, PodState, SchedulePod};

use crate::error::need_root;
use crate::pods::pod_dir;
use crate::pods::rm::{RemovalSync, RmError};
use crate::recovery::images::Images;
use crate::{Engine, EngineError, PodError};

/// The time for which a network plugin may fail to delete its resources, from the beginning of the pod's deletion.
/// After that `gc` deletes the pod without it: an uninstalled plugin does not come back.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Options of `gc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcOptions {
    /// The time an exited or aborted pod stays, from its end or from the mark.
    pub grace: Duration,
    /// The time a prepared pod may wait to be started.
    pub expire_prepared: Duration,
    /// Mark only.
    pub mark_only: bool,
    /// Change nothing; report what would be done.
    pub dry_run: bool,
}

impl Default for GcOptions {
    /// rkt's defaults: half an hour, a day.
    fn default() -> Self {
        let (grace, expire_prepared) = (Duration::from_secs(30 * 60), Duration::from_secs(24 * 3600));
        Self { grace, expire_prepared, mark_only: false, dry_run: false }
    }
}

/// The time a pod directory stays in `lost-pods/`, during which `doctor` reports it.
pub(crate) const LOST_PODS_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);

/// An action on a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcAction {
    /// It is marked as garbage.
    Mark,
    /// It is deleted.
    Delete,
}

/// One pod that was (or would be) marked or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcStep {
    /// The pod.
    pub id: PodId,
    /// The action.
    pub action: GcAction,
    /// The reason, as shown to users.
    pub why: &'static str,
}

/// The results of `gc`.
#[derive(Debug, Default)]
pub struct GcReport {
    /// Pods, in the order of their creation.
    pub steps: Vec<GcStep>,
    /// Pods that could not be marked or deleted; the next `gc` tries again.
    pub failures: Vec<(PodId, RmError)>,
    /// Resources that network plugins may have kept of pods that were deleted without them, a line each.
    pub abandoned: Vec<(PodId, String)>,
    /// Network resources that were (or would be) removed, a line each.
    pub networks: Vec<String>,
    /// Why networks could not be collected; the next `gc` tries again.
    pub networks_failure: Option<EngineError>,
    /// Directories in `lost-pods/` that were deleted, or would be.
    pub lost_pods: Vec<PathBuf>,
    /// Why parts of the data directory could not be collected; the next `gc` tries again.
    pub store_failures: Vec<PodError>,
}

/// The actions due on a pod, in order.
fn decide(phase: &Phase, now: Timestamp, options: &GcOptions) -> Vec<(GcAction, &'static str)> {
    use GcAction::{Delete, Mark};
    let old = |at: Timestamp, age: Duration| age.is_zero() || now.since(at) >= age;
    let over = |at: Timestamp, why| match (options.mark_only, old(at, options.grace)) {
        (false, false) => vec![],
        _ => vec![(Mark, why), (Delete, "its grace period is over")],
    };
    let mut due = match phase {
        Phase::Embryo | Phase::Preparing | Phase::Running { .. } | Phase::Starting { .. } => vec![],
        Phase::AbortedPrepare { at } => over(*at, "its preparation was aborted"),
        Phase::Prepared { at } if old(*at, options.expire_prepared) && !options.mark_only => {
            vec![(Mark, "it was prepared too long ago"), (Delete, "it was prepared too long ago")]
        }
        Phase::Prepared { .. } => vec![],
        Phase::Exited { at, .. } => over(*at, "it has exited"),
        Phase::Garbage { deleting: Some(_), .. } => vec![(Delete, "its deletion was begun")],
        Phase::Garbage { marked, was, deleting: None } => match was {
            FormerPhase::Prepared => vec![(Delete, "it was given up before it ran")],
            FormerPhase::Aborted | FormerPhase::Exited { .. } if old(*marked, options.grace) => {
                vec![(Delete, "its grace period is over")]
            }
            FormerPhase::Aborted | FormerPhase::Exited { .. } => vec![],
        },
    };
    if options.mark_only {
        due.retain(|(action, _)| *action == Mark);
    }
    due
}

/// What a collection does with a pod.
enum Collection {
    /// Removes an ended pod of `run --rm`.
    RemoveEnded,
    /// Ends a command whose caller is gone, and removes its pod.
    EndCommand,
    /// Takes these actions in order, each with its reason; there may be none.
    Actions(Vec<(GcAction, &'static str)>),
}

impl Collection {
    /// The actions, as reported.
    fn steps(&self, id: PodId) -> Vec<GcStep> {
        let actions = match self {
            Self::RemoveEnded => &[(GcAction::Delete, "it was run with --rm and has ended")][..],
            Self::EndCommand => &[(GcAction::Delete, "the caller of its command is gone")],
            Self::Actions(actions) => actions,
        };
        actions.iter().map(|&(action, why)| GcStep { id, action, why }).collect()
    }
}

/// Whether a pod is over, or was when it was marked as garbage; its deletion was not begun.
fn is_or_was_over(phase: &Phase) -> bool {
    match phase {
        Phase::Garbage { was: FormerPhase::Exited { .. } | FormerPhase::Aborted, deleting, .. } => deleting.is_none(),
        // Any other garbage never ran.
        other => other.is_over(),
    }
}

/// Whether a pod was started, or its preparation was aborted; its deletion was not begun.
fn has_run(phase: &Phase) -> bool {
    match phase {
        Phase::Running { .. } | Phase::Exited { .. } | Phase::AbortedPrepare { .. } => true,
        Phase::Garbage { deleting, .. } => deleting.is_none(),
        Phase::Embryo | Phase::Preparing | Phase::Prepared { .. } | Phase::Starting { .. } => false,
    }
}

/// Whether the deletion of a pod was begun longer than [`ABANDON_TIMEOUT`] ago.
fn is_overdue(phase: &Phase, now: Timestamp) -> bool {
    matches!(phase, Phase::Garbage { deleting: Some(begun), .. } if now.since(*begun) >= ABANDON_TIMEOUT)
}

impl Engine {
    /// Collects garbage.
    ///
    /// # Errors
    /// [`PodError`] when the pods cannot be listed. Failures of single pods are in the report.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport, PodError> {
        need_root("collect garbage")?;
        let rows = self.store.pods(&PodQuery::default())?;
        let mut report = GcReport::default();
        let known: HashSet<PodId> = rows.iter().map(|row| row.id).collect();
        let scheduled = self.scheduled_pods()?;
        for row in rows {
            let id = row.id;
            if let Err(error) = self.collect(*row, &scheduled, options, &mut report) {
                report.failures.push((id, error));
            }
        }
        if !options.mark_only {
            let swept = self.sweep_orphans(&known, options, &mut report);
            report.store_failures.extend(swept.err());
            match self.sweep_networks(options.dry_run) {
                Ok(lines) => report.networks = lines,
                Err(error) => report.networks_failure = Some(error),
            }
        }
        if !options.mark_only && !options.dry_run {
            // Free space first, which the database may need.
            let swept = self.store.sweep_temporaries().map(drop);
            let settled = self.store.settle_volumes();
            report.store_failures.extend([swept, settled].into_iter().filter_map(Result::err).map(PodError::store));
        }
        if !options.mark_only {
            match self.store.delete_lost_pods(LOST_PODS_RETENTION, options.dry_run).map_err(PodError::store) {
                Ok(lost) => report.lost_pods = lost,
                Err(error) => report.store_failures.push(error),
            }
        }
        if !options.mark_only && !options.dry_run {
            self.remove_empty_cgroup_parent();
            report.store_failures.extend(self.store.refill_reserve().map_err(PodError::store).err());
        }
        Ok(report)
    }

    /// Deletes the oldest events beyond the number that is kept; returns how many.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn trim_events(&self) -> Result<usize, PodError> {
        self.store.trim_events(self.options.events_kept).map_err(PodError::store)
    }

    /// The pods of schedules that exist.
    fn scheduled_pods(&self) -> Result<HashSet<PodId>, PodError> {
        let schedules = self.store.schedules()?;
        let pods = self.store.schedule_pods(None)?;
        let is_current = |pod: &SchedulePod| {
            schedules.iter().any(|schedule| schedule.name == pod.schedule && schedule.revision == pod.revision)
        };
        Ok(pods.into_iter().filter(is_current).map(|pod| pod.id).collect())
    }

    fn collect(
        &self,
        row: PodRow,
        scheduled: &HashSet<PodId>,
        options: &GcOptions,
        report: &mut GcReport,
    ) -> Result<(), RmError> {
        // Without removing an ended pod of `run --rm`, which is a deletion like any other here.
        let reconciled = if options.dry_run { self.preview(row) } else { self.reconcile_row(row) };
        let Some(row) = reconciled? else { return Ok(()) };
        let (id, now) = (row.id, gantry_store::now());
        let plan = self.plan_collection(&row, scheduled, now, options);
        let steps = plan.steps(id);
        if options.dry_run {
            report.steps.extend(steps);
            return Ok(());
        }
        match plan {
            Collection::RemoveEnded => match self.dispose_synced(id, RemovalSync::Name) {
                // The command that ran it removes it.
                Err(RmError::Busy(_)) => return Ok(()),
                removed => removed?,
            },
            Collection::EndCommand => self.end_orphaned_command(id)?,
            Collection::Actions(_) => return self.take_steps(row, steps, now, options, report),
        }
        report.steps.extend(steps);
        Ok(())
    }

    fn plan_collection(
        &self,
        row: &PodRow,
        scheduled: &HashSet<PodId>,
        now: Timestamp,
        options: &GcOptions,
    ) -> Collection {
        let (id, phase) = (row.id, &row.phase);
        if !options.mark_only && is_or_was_over(phase) && pod_dir::is_to_be_removed(&self.pod_dir(id)) {
            return Collection::RemoveEnded;
        }
        let may_be_orphaned = !options.mark_only && row.flavor() == PodFlavor::Host && has_run(phase);
        if may_be_orphaned && self.is_orphaned_command(id) {
            return Collection::EndCommand;
        }
        let has_owner = row.namespace == PodNamespace::KUBERNETES || scheduled.contains(&id);
        // gantryd starts it again, or its owner removes it.
        let stays = row.restart.is_waiting() || (has_owner && matches!(phase, Phase::Exited { .. }));
        Collection::Actions(if stays { Vec::new() } else { decide(phase, now, options) })
    }

    /// Marks and deletes a pod, or does one of both, and removes what is left of one that does not run.
    fn take_steps(
        &self,
        mut row: PodRow,
        steps: Vec<GcStep>,
        now: Timestamp,
        options: &GcOptions,
        report: &mut GcReport,
    ) -> Result<(), RmError> {
        let id = row.id;
        let deletes = steps.iter().any(|step| step.action == GcAction::Delete);
        for step in steps {
            match step.action {
                GcAction::Mark => match self.mark(&row, now) {
                    Ok(Some(next)) => row = next,
                    Ok(None) => return Ok(()),
                    // The disk is full: deleting it makes the room that marking it needs.
                    Err(error) if deletes && error.kind() == ErrorKind::Exhausted => continue,
                    Err(error) => return Err(error),
                },
                GcAction::Delete => match self.dispose_synced(id, RemovalSync::Name) {
                    // The process that began the deletion is alive and finishes it.
                    Err(RmError::Busy(_)) if matches!(row.phase, Phase::Garbage { deleting: Some(_), .. }) => {
                        return Ok(());
                    }
                    // Its plugins have failed for long enough.
                    Err(RmError::Network { .. }) if is_overdue(&row.phase, now) => {
                        let kept = self.abandon_networks(id)?;
                        report.abandoned.extend(kept.into_iter().map(|line| (id, line)));
                        self.dispose_synced(id, RemovalSync::Name)?;
                    }
                    done => done?,
                },
            }
            report.steps.push(step);
        }
        if options.mark_only { Ok(()) } else { self.remove_remains(&row) }
    }

    /// Removes the cgroups and networks of a pod that does not run: its processes did not end in time, its supervisor
    /// was killed, or a plugin failed.
    fn remove_remains(&self, row: &PodRow) -> Result<(), RmError> {
        // Its cgroups and networks are in use, and probing its lock could refuse it to a command.
        if matches!(row.phase, Phase::Running { .. } | Phase::Starting { .. }) {
            return Ok(());
        }
        let id = row.id;
        let cgroups = self.pod_cgroups(&row.cgroup).map_err(|source| RmError::Cgroup { id, source })?;
        if cgroups.is_empty() && !self.has_network_record(id) || self.check_runs_nowhere_else(id, &row.cgroup).is_err()
        {
            return Ok(());
        }
        // A pod that was started again meanwhile is locked.
        let PodState::Free(_lock) = self.store.try_lock_pod(id)? else { return Ok(()) };
        // Try both. The processes first, since they may be plugins of a killed supervisor.
        let cgroups = self.remove_cgroups(&row.cgroup);
        self.network_down(id).map_err(|source| RmError::Network { id, source })?;
        cgroups.map_err(|source| RmError::Cgroup { id, source })
    }

    /// Marks a pod as garbage, and returns its row. `None`: another process changed the pod first, and has perhaps
    /// started it again; or it is gone.
    fn mark(&self, row: &PodRow, now: Timestamp) -> Result<Option<PodRow>, RmError> {
        let (edge, _lock) = match row.phase {
            // Needs the lock, since another process may be starting the pod. Without a directory there is no lock, and
            // the pod cannot be started.
            Phase::Prepared { .. } => match self.lock_in_time(row.id)? {
                PodState::Held => return Ok(None),
                free_or_absent => (Edge::Discarded(now), Some(free_or_absent)),
            },
            // A process that starts an exited pod at the same time is either first, or refused.
            _ => (Edge::Marked(now), None),
        };
        Ok(self.step(row, Change::along(edge))?.filter(is_garbage))
    }

    /// Pod directories whose creators were killed before they wrote a row, and those of pods whose rows were lost.
    fn sweep_orphans(
        &self,
        known: &HashSet<PodId>,
        options: &GcOptions,
        report: &mut GcReport,
    ) -> Result<(), PodError> {
        let mut images = None;
        for id in self.store.pod_dirs()?.into_iter().filter(|id| !known.contains(id)) {
            match self.sweep_orphan(id, options, &mut images) {
                Ok(false) => {}
                Ok(true) => {
                    let why = "the process that created it was killed before the pod was recorded";
                    report.steps.push(GcStep { id, action: GcAction::Delete, why });
                }
                Err(error) => report.failures.push((id, error)),
            }
        }
        Ok(())
    }

    /// Returns whether it was (or would be) deleted. The images are read when the first pod needs them.
    fn sweep_orphan(&self, id: PodId, options: &GcOptions, images: &mut Option<Images>) -> Result<bool, RmError> {
        if !self.is_orphan(id)? {
            return Ok(false);
        }
        // Its row was lost with a database or in a power cut, and is written again; first that of its image, if lost
        // too.
        if self.was_pod(id) {
            if !options.dry_run {
                let images = match images {
                    Some(images) => images,
                    None => {
                        self.adopt_images()?;
                        images.insert(Images::read(&self.store)?)
                    }
                };
                self.adopt_pod(id, images)?;
            }
            return Ok(false);
        }
        if !options.dry_run {
            self.dispose(id)?;
        }
        Ok(true)
    }

    /// Collects the leftovers of a command that was killed before it wrote a row. Cheap when there are none: it lists
    /// the directory of temporaries, and compares the link count of the pods' directory (two, and one for each
    /// subdirectory, where the file system counts them) with the number of rows. The rest is left for `gc`.
    pub(crate) fn sweep_orphans_if_any(&self, rows: &[Box<PodRow>]) {
        let temporaries = std::fs::read_dir(self.store.layout().tmp_dir());
        if self.row_writes.are_enabled() && temporaries.is_ok_and(|mut entries| entries.next().is_some()) {
            let _left_for_gc = self.store.sweep_temporaries();
        }
        if self.row_writes.are_enabled() {
            let _left_for_gc = self.store.try_settle_volumes();
        }
        let links = rustix::fs::stat(self.store.layout().pods_dir())
            .map_or(0, |stat| usize::try_from(stat.st_nlink).unwrap_or(0));
        if self.row_writes.are_enabled() && links > rows.len() + 2 {
            let known = rows.iter().map(|row| row.id).collect();
            let _left_for_gc = self.sweep_orphans(&known, &GcOptions::default(), &mut GcReport::default());
        }
    }

    /// Whether this directory has neither a row nor an owner. It was locked before it got its name, so a free lock
    /// means that its creator is dead; the row is read under the lock, since a living creator has written it by then.
    fn is_orphan(&self, id: PodId) -> Result<bool, PodError> {
        let PodState::Free(_lock) = self.store.try_lock_pod(id)? else { return Ok(false) };
        // A replaced database has no rows of later pods.
        Ok(self.store.pod(id)?.is_none() && self.store.is_current()?)
    }
}

fn is_garbage(row: &PodRow) -> bool {
    matches!(row.phase, Phase::Garbage { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::reconcile::tests::{embryo, engine};
    use gantry_model::{BootId, PodEnd, Process};

    const MINUTE: i64 = 60_000_000_000;

    fn exited(at: i64) -> Phase {
        let end = PodEnd { exit_code: 0, failed_app: None, reason: String::new() };
        Phase::Exited { started: Timestamp(at), at: Timestamp(at), end }
    }

    fn garbage(marked: i64, was: FormerPhase) -> Phase {
        Phase::Garbage { marked: Timestamp(marked), was, deleting: None }
    }

    fn deleting(was: FormerPhase) -> Phase {
        Phase::Garbage { marked: Timestamp(59 * MINUTE), was, deleting: Some(Timestamp(59 * MINUTE)) }
    }

    fn was_exited() -> FormerPhase {
        let end = PodEnd { exit_code: 0, failed_app: None, reason: String::new() };
        FormerPhase::Exited { started: Timestamp(0), at: Timestamp(0), end }
    }

    #[test]
    fn only_garbage_is_deleted_after_its_mark() {
        let temp = tempfile::tempdir().unwrap();
        let (engine, image) = engine(temp.path());
        let (row, _lock) = embryo(&engine, &image, 1);
        let aborted = engine.step(&row, Change::along(Edge::Aborted(Timestamp(1)))).unwrap().unwrap();
        assert!(engine.mark(&row, Timestamp(2)).unwrap().is_none(), "the row has changed since it was read");
        assert!(engine.mark(&aborted, Timestamp(2)).unwrap().is_some_and(|row| is_garbage(&row)));
    }

    #[test]
    fn plugins_are_given_up_after_a_day() {
        let begun = deleting(FormerPhase::Prepared);
        let day = 24 * 60 * MINUTE;
        assert!(!is_overdue(&begun, Timestamp(59 * MINUTE + day - 1)));
        assert!(is_overdue(&begun, Timestamp(59 * MINUTE + day)));
        assert!(!is_overdue(&garbage(0, FormerPhase::Prepared), Timestamp(10 * day)), "its deletion has not started");
    }

    /// Phase, what a usual gc does after an hour, with `mark_only`, and with no grace at all. M marks, D deletes.
    #[test]
    fn phase_age_and_options_select_garbage() {
        let supervisor = Process { pid: 1, start_ticks: 1, boot: BootId("b".into()) };
        let now = Timestamp(60 * MINUTE);
        let usual = GcOptions::default();
        let mark_only = GcOptions { mark_only: true, ..usual };
        let none = GcOptions { grace: Duration::ZERO, expire_prepared: Duration::ZERO, ..usual };
        let rows = [
            (Phase::Embryo, ["", "", ""]),
            (Phase::Preparing, ["", "", ""]),
            (Phase::Running { since: Timestamp(0), supervisor }, ["", "", ""]),
            (Phase::AbortedPrepare { at: now }, ["", "M", "MD"]),
            (Phase::AbortedPrepare { at: Timestamp(30 * MINUTE) }, ["MD", "M", "MD"]),
            (Phase::Prepared { at: Timestamp(0) }, ["", "", "MD"]),
            (Phase::Prepared { at: Timestamp(-24 * 60 * MINUTE) }, ["MD", "", "MD"]),
            (exited(0), ["MD", "M", "MD"]),
            (exited(30 * MINUTE), ["MD", "M", "MD"]),
            (exited(31 * MINUTE), ["", "M", "MD"]),
            (exited(90 * MINUTE), ["", "M", "MD"]),
            (garbage(0, was_exited()), ["D", "", "D"]),
            (garbage(31 * MINUTE, was_exited()), ["", "", "D"]),
            (garbage(30 * MINUTE, was_exited()), ["D", "", "D"]),
            (garbage(90 * MINUTE, was_exited()), ["", "", "D"]),
            (garbage(59 * MINUTE, FormerPhase::Aborted), ["", "", "D"]),
            (garbage(30 * MINUTE, FormerPhase::Aborted), ["D", "", "D"]),
            (garbage(59 * MINUTE, FormerPhase::Prepared), ["D", "", "D"]),
            (deleting(was_exited()), ["D", "", "D"]),
            (deleting(FormerPhase::Prepared), ["D", "", "D"]),
        ];
        for (phase, want) in rows {
            let got = [&usual, &mark_only, &none].map(|options| {
                let letter = |(action, _): &(GcAction, &str)| if *action == GcAction::Mark { 'M' } else { 'D' };
                decide(&phase, now, options).iter().map(letter).collect::<String>()
            });
            assert_eq!(got, want, "{phase:?}");
        }
    }
}
