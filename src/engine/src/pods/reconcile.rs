//! Reconciles a pod's row with the facts: its lock, its journal, its supervisor. Idempotent.
//!
//! # Locks
//!
//! A held lock on a pod directory means that the pod has a living owner: its preparer or starter, its supervisor, or
//! the process that deletes it. The kernel releases the lock when the holder dies. Probing takes it for a moment, so a
//! second prober may find the lock of a dead pod held. Where the row names a supervisor that is dead, this module
//! therefore waits for the lock. Where the supervisor that the row names runs and has not recorded the end of its pod,
//! it holds the lock, which is not probed then. The record lock on its journal, which no other process takes, shows
//! that it runs: listing many pods opens one file of each.
//!
//! A pod without a directory has no lock. Its supervisor decides: as long as that runs, the row stays as it is, and the
//! directory may be put back. Afterwards the pod has ended.
//!
//! # What was killed when, and the outcome
//!
//! | killed | found | becomes |
//! |---|---|---|
//! | the preparer | Embryo or Preparing, lock free | AbortedPrepare |
//! | `run` before it passed on the plan | Embryo or none, lock held until the supervisor exits | AbortedPrepare |
//! | `run` after it did | Embryo, Preparing or Prepared, lock held, journal says ready | Running |
//! | the same, and the pod has ended since | the same, lock free | Running, then Exited |
//! | a supervisor that had not become ready, and its starter | Embryo or Preparing, lock free | AbortedPrepare |
//! | a supervisor of a running pod, or the host | Running, lock free | Exited |
//! | `start` after it spawned | Starting, lock held, journal says ready | Running |
//! | the same, and the pod has ended since | Starting, lock free, journal says ready | Running, then Exited |
//! | `start` before that, and a supervisor that had not become ready | Starting, lock free | Exited, as before |
//! | nothing; the directory was moved away or replaced | Running, no directory, supervisor alive | the same |
//! | the supervisor, after that | Running, no directory, supervisor dead | Exited, exit code lost |
//!
//! A Prepared pod whose lock is free and whose journal has no ready record stays Prepared. A pod of `run --rm` that
//! becomes Exited or AbortedPrepare is removed at once.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gantry_contract::files;
use gantry_contract::journal::{self, Fact, Parsed};
use gantry_contract::start::Ready;
use gantry_host::file::read_open_file;
use gantry_host::lock::{LockMode, try_lock};
use gantry_host::parallel;
use gantry_host::stamp::FileStamp;
use gantry_model::query::PodQuery;
use gantry_model::{AppState, BootId, Phase, PodId, PodPrefix, Process};
use gantry_store::{PodLock, PodRow, PodState};
use rustix::fs::{CWD, Mode, OFlags};

use crate::Engine;
use crate::error::PodError;
use crate::host::process::{self, Deadline};
use crate::pods::apps::unknown_apps;
use crate::pods::pod_dir;
use crate::pods::restart::START_INTERRUPTED;
use crate::pods::rm::RemovalSync;
use crate::pods::transition::{cannot_be_written, ready_record};
use crate::pods::wait::has_end;

/// The maximum adjustment of the wall clock while the host is up; beyond it, a pod seems to be of an earlier boot.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// A list records the stamps of the journals that it has read if there are at least this many. Otherwise, reading them
/// again is cheaper.
const MIN_RECORDED: usize = 32;
/// It also records them if they have at least this many bytes together, not counting journals that were changed within
/// [`RECENT_CHANGE`].
const MIN_RECORDED_BYTES: u64 = 64 << 10;
/// A journal that was changed less than this long ago will probably change again: it is not recorded, because
/// recording wakes gantryd.
const RECENT_CHANGE: Duration = Duration::from_secs(10);

/// The transition that makes a row agree with the facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Correction<'a> {
    /// The row is true.
    None,
    /// Its preparation died.
    Abort,
    /// It runs, but its row does not say so.
    MarkRunning(&'a Ready),
    /// A start after its end failed.
    RecordFailedStart,
    /// It ran and ended, but its row does not even say that it ran.
    MarkRunningAndFinalize(&'a Ready),
    /// It ended.
    Finalize,
    /// It runs; some apps may have started or ended, or may have been added or removed.
    RecordAppChanges,
}

/// The table in the module's head. `ready`: the record of the journal that the pod became ready.
fn correction<'a>(phase: &Phase, held: bool, ready: Option<&'a Ready>) -> Correction<'a> {
    match (phase, held, ready) {
        (Phase::Embryo | Phase::Preparing | Phase::Prepared { .. } | Phase::Starting { .. }, held, Some(ready)) => {
            match held {
                true => Correction::MarkRunning(ready),
                false => Correction::MarkRunningAndFinalize(ready),
            }
        }
        (Phase::Starting { .. }, false, None) => Correction::RecordFailedStart,
        (Phase::Embryo | Phase::Preparing, false, None) => Correction::Abort,
        (Phase::Running { .. }, false, _) => Correction::Finalize,
        (Phase::Running { .. }, true, _) => Correction::RecordAppChanges,
        (Phase::Embryo | Phase::Preparing | Phase::Prepared { .. } | Phase::Starting { .. }, true, None)
        | (Phase::Prepared { .. }, false, None) => Correction::None,
        (Phase::AbortedPrepare { .. } | Phase::Exited { .. } | Phase::Garbage { .. }, _, _) => Correction::None,
    }
}

/// A row after it was reconciled.
struct Reconciled {
    row: PodRow,
    /// Whether the pod was of `run --rm`, had ended or was aborted, and was removed now.
    is_removed: bool,
}

/// What reconciling does with a pod of `run --rm` that has ended or was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    Keep,
    Remove,
}

impl Engine {
    /// Reads and reconciles the row of a pod.
    ///
    /// # Errors
    /// [`PodError`], also when the pod does not exist.
    pub(crate) fn reconcile_pod(&self, id: PodId) -> Result<PodRow, PodError> {
        let row = self.store.pod(id)?;
        row.map(|row| self.reconcile(row)).transpose()?.flatten().ok_or(PodError::NotFound(PodPrefix::from(id)))
    }

    /// Reconciles a row, and removes a pod of `run --rm` that has ended or was aborted. `None` when the row was deleted
    /// in the meantime.
    pub(crate) fn reconcile(&self, row: PodRow) -> Result<Option<PodRow>, PodError> {
        let journal = self.live_journal(&row);
        // The caller still learns how a pod ended that was removed now.
        Ok(self.reconcile_read(row, journal.as_deref(), AtEnd::Remove)?.map(|reconciled| reconciled.row))
    }

    /// Reads the requested rows, without reconciling them, and meanwhile what [`Self::reconcile_listed`] needs.
    pub(crate) fn list_rows(&self, query: &PodQuery) -> Result<(Vec<Box<PodRow>>, LiveJournals), PodError> {
        let boot = self.store.boot();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Without it, each lock is probed.
        let pods = rustix::fs::open(self.store.layout().pods_dir(), flags, Mode::empty()).ok();
        let read = |(supervisor, recorded): (Supervisor, Option<FileStamp>)| {
            let pod_dir = supervisor.pod.to_string();
            let file = pods.as_ref().and_then(|pods| open_live_journal(pods, Path::new(&pod_dir), &supervisor));
            (supervisor.pod, file.and_then(|file| LiveJournal::read_unless(recorded, file)))
        };
        let (rows, journals) = parallel::map_fed(read, |feed| {
            self.store.pods_showing(query, &mut |row, recorded| {
                let supervisor = Supervisor::of_phase(row.id, &row.phase, boot);
                supervisor.into_iter().for_each(|supervisor| feed((supervisor, recorded)));
            })
        });
        Ok((rows.map_err(PodError::store)?, LiveJournals(journals)))
    }

    /// Reconciles each of these rows, in their order; those that were deleted in the meantime are left out.
    pub(crate) fn reconcile_listed(
        &self,
        rows: Vec<Box<PodRow>>,
        mut journals: LiveJournals,
    ) -> Result<Vec<Box<PodRow>>, PodError> {
        let mut reconciled = Vec::with_capacity(rows.len());
        let are_recorded = self.row_writes.are_enabled() && journals.are_worth_recording();
        let mut recorded = Vec::new();
        for row in rows {
            let row = match journals.take(row.id) {
                Some(LiveJournal::Recorded) if !has_unfinished_add(&row) => Some(row),
                Some(LiveJournal::Recorded) => {
                    let journal = self.live_journal(&row);
                    self.reconcile_listed_row(row, journal.as_deref())?
                }
                Some(LiveJournal::Read { stamp, journal, .. }) => {
                    let listed = are_recorded.then(|| row.clone());
                    let row = self.reconcile_listed_row(row, Some(&journal))?;
                    // A row that was changed may not be stored, or may need another change: the next list records it.
                    let unchanged = row.as_ref().filter(|row| listed.as_ref() == Some(row));
                    if let Some(row) = unchanged.filter(|row| has_all_facts(row, &journal)) {
                        recorded.push((row.id, row.generation, stamp));
                    }
                    row
                }
                None => self.reconcile_listed_row(row, None)?,
            };
            reconciled.extend(row);
        }
        if !recorded.is_empty() {
            let _read_again_by_the_next_list = self.store.record_journals(&recorded);
        }
        Ok(reconciled)
    }

    /// The journal of a single pod whose supervisor runs. `None`: the pod's lock has to be probed.
    fn live_journal(&self, row: &PodRow) -> Option<Arc<Parsed>> {
        let supervisor = Supervisor::of_phase(row.id, &row.phase, self.store.boot())?;
        let file = open_live_journal(CWD, &self.pod_dir(row.id), &supervisor)?;
        let journal = self.options.journals.read(row.id, file).ok()?;
        (!has_end(&journal)).then_some(journal)
    }

    /// [`Self::reconcile_read`] of a row that is listed. `None` also for a pod that was removed now.
    fn reconcile_listed_row(
        &self,
        row: Box<PodRow>,
        journal: Option<&Parsed>,
    ) -> Result<Option<Box<PodRow>>, PodError> {
        // Keeps the box: a final row does not change.
        if row.phase.is_final() {
            return Ok(Some(row));
        }
        let reconciled = self.reconcile_read(*row, journal, AtEnd::Remove)?;
        Ok(reconciled.filter(|reconciled| !reconciled.is_removed).map(|reconciled| Box::new(reconciled.row)))
    }

    /// The row as it would be after [`Self::reconcile`], without changing anything.
    pub(crate) fn preview(&self, row: PodRow) -> Result<Option<PodRow>, PodError> {
        let shown = self.row_writes.suspend(|| self.reconcile_stored(row, None, AtEnd::Keep));
        Ok(shown?.map(|reconciled| reconciled.row))
    }

    /// Reconciles a row; removes nothing of a pod that has ended.
    pub(crate) fn reconcile_row(&self, row: PodRow) -> Result<Option<PodRow>, PodError> {
        let journal = self.live_journal(&row);
        let reconciled = self.reconcile_read(row, journal.as_deref(), AtEnd::Keep)?;
        Ok(reconciled.map(|reconciled| reconciled.row))
    }

    /// [`Self::reconcile`] with the journal of a running supervisor.
    fn reconcile_read(
        &self,
        row: PodRow,
        journal: Option<&Parsed>,
        at_end: AtEnd,
    ) -> Result<Option<Reconciled>, PodError> {
        let id = row.id;
        match self.reconcile_stored(row, journal, at_end) {
            // Reading a pod must not need space on the disk. The next command that can write records it.
            Err(error) if !self.row_writes.are_required() && cannot_be_written(&error) => {
                self.row_writes.keep_failure(&error);
                let row = self.store.pod(id)?;
                let previewed = row.map_or(Ok(None), |row| self.preview(row))?;
                // Removing a pod frees the space that recording its end needs.
                Ok(previewed.map(|row| self.remove_if_ended(row, at_end)))
            }
            other => other,
        }
    }

    fn reconcile_stored(
        &self,
        row: PodRow,
        live: Option<&Parsed>,
        at_end: AtEnd,
    ) -> Result<Option<Reconciled>, PodError> {
        if row.phase.is_final() {
            return Ok(Some(Reconciled { row, is_removed: false }));
        }
        let moved = match live {
            Some(journal) => self.reconcile_with(row, true, journal)?,
            None => match self.probe(&row)? {
                PodState::Free(lock) => return self.reconcile_dead(row, lock, at_end),
                PodState::Held => {
                    let journal = self.journal(row.id)?;
                    self.reconcile_with(row, true, &journal)?
                }
                PodState::Absent if self.runs_without_directory(&row) => Some(row),
                PodState::Absent => self.reconcile_with(row, false, &Parsed::default())?,
            },
        };
        // Another process may have recorded the end since the row was read.
        Ok(moved.map(|row| self.remove_if_ended(row, at_end)))
    }

    /// Reconciles the row of a pod whose lock was free, and removes an ended or aborted pod of `run --rm`. The lock is
    /// held until both are done: no other process starts or deletes the pod meanwhile.
    fn reconcile_dead(&self, row: PodRow, lock: PodLock, at_end: AtEnd) -> Result<Option<Reconciled>, PodError> {
        let journal = self.journal(row.id)?;
        let removes = self.removes(row.id, at_end);
        let ran = matches!(row.phase, Phase::Running { .. }) || ready_record(&journal).is_some();
        // Without the record of the end, processes of the pod may still write. If no descriptor is left, the removal
        // deletes the data.
        let data = if removes && ran && has_end(&journal) { lock.data().ok() } else { None };
        let reconcile = || {
            let Some(row) = self.reconcile_with(row, false, &journal)? else { return Ok(None) };
            let is_removed = removes && row.phase.is_over() && {
                // If it fails, `gc` continues the removal.
                self.dispose_locked(row.id, Some(lock), RemovalSync::Nothing).is_ok()
            };
            Ok(Some(Reconciled { row, is_removed }))
        };
        match data {
            Some(data) => parallel::run_beside(|| data.delete(), reconcile).1,
            None => reconcile(),
        }
    }

    /// Whether reconciling removes this pod when it has ended or was aborted.
    fn removes(&self, id: PodId, at_end: AtEnd) -> bool {
        at_end == AtEnd::Remove && self.row_writes.are_enabled() && pod_dir::is_to_be_removed(&self.pod_dir(id))
    }

    /// Removes a pod of `run --rm` that has ended or was aborted. If that fails, `gc` continues the removal.
    fn remove_if_ended(&self, row: PodRow, at_end: AtEnd) -> Reconciled {
        let is_removed = row.phase.is_over() && self.removes(row.id, at_end) && self.dispose(row.id).is_ok();
        Reconciled { row, is_removed }
    }

    /// Whether the pod has an owner. Waits for other probers if the supervisor is known to be dead.
    fn probe(&self, row: &PodRow) -> Result<PodState, PodError> {
        let state = self.store.try_lock_pod(row.id)?;
        let Phase::Running { supervisor, .. } = &row.phase else { return Ok(state) };
        if !matches!(state, PodState::Held) || self.may_run(supervisor) {
            return Ok(state);
        }
        self.lock_in_time(row.id)
    }

    /// Whether the supervisor of a pod without a directory may run: the directory was moved away. In a copy of the data
    /// directory, the pod does not run.
    fn runs_without_directory(&self, row: &PodRow) -> bool {
        matches!(&row.phase, Phase::Running { supervisor, .. } if self.may_run(supervisor))
            && self.check_runs_nowhere_else(row.id, &row.cgroup).is_ok()
    }

    /// Whether the supervisor runs (a zombie does not), or cannot be examined.
    pub(crate) fn may_run(&self, supervisor: &Process) -> bool {
        match process::open(supervisor, self.store.boot()) {
            Ok(Some(fd)) => !matches!(process::readable(&[fd.as_fd()], Deadline::after(Duration::ZERO)), Ok(Some(_))),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Takes a pod's lock; waits for a holder within the engine's timeout.
    pub(crate) fn lock_in_time(&self, id: PodId) -> Result<PodState, PodError> {
        let deadline = Deadline::after(self.timeouts.lock);
        let mut pause = Duration::from_millis(1);
        loop {
            let state = self.store.try_lock_pod(id)?;
            if !matches!(state, PodState::Held) || deadline.passed() {
                return Ok(state);
            }
            // The usual holder is another prober, which takes less than a millisecond.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// The lock; `None` when another process holds it, or the directory does not exist.
    pub(crate) fn lock_pod(&self, id: PodId) -> Result<Option<PodLock>, PodError> {
        match self.lock_in_time(id)? {
            PodState::Free(lock) => Ok(Some(lock)),
            PodState::Held | PodState::Absent => Ok(None),
        }
    }

    /// A second handle of a pod's lock. A starter keeps it until the start or its failure is recorded. A failed
    /// supervisor closes its own handle, and a free lock would mean to other processes that the starter was killed.
    pub(crate) fn share_lock(&self, id: PodId, lock: &PodLock) -> Result<PodLock, PodError> {
        lock.try_clone().map_err(PodError::io("share the lock of", self.pod_dir(id)))
    }

    /// Moves a row to the phase that its lock and its journal show.
    pub(crate) fn reconcile_with(&self, row: PodRow, held: bool, journal: &Parsed) -> Result<Option<PodRow>, PodError> {
        match correction(&row.phase, held, ready_record(journal)) {
            Correction::None => Ok(Some(row)),
            Correction::RecordAppChanges => {
                let Some(row) = self.record_app_changes(row, journal)? else { return Ok(None) };
                let Some(row) = self.record_pauses(row, journal)? else { return Ok(None) };
                self.undo_abandoned_adds(row, journal)
            }
            Correction::Abort => self.abort(&row, None),
            Correction::RecordFailedStart => self.record_failed_start(&row, START_INTERRUPTED.to_owned()),
            Correction::Finalize => self.finalize(&row, journal),
            Correction::MarkRunning(ready) => self.mark_running(row, ready),
            Correction::MarkRunningAndFinalize(ready) => match self.mark_running(row, ready)? {
                Some(row) if matches!(row.phase, Phase::Running { .. }) => {
                    // No record has the boot in which it ran; its start time has to do.
                    let at = row.phase.started_at().unwrap_or_default();
                    self.finalize_as_of(&row, journal, at < process::booted_at().before(CLOCK_SLACK))
                }
                other => Ok(other),
            },
        }
    }
}

/// Whether an app is being added, or adding it was interrupted. The journal does not show this.
fn has_unfinished_add(row: &PodRow) -> bool {
    row.apps.iter().any(|app| app.state == AppState::Creating)
}

/// Whether the rows of a pod that was reconciled without a change have all facts of its journal.
fn has_all_facts(row: &PodRow, journal: &Parsed) -> bool {
    matches!(row.phase, Phase::Running { .. })
        && !has_unfinished_add(row)
        && unknown_apps(row, journal).is_empty()
        // A newer gantry understands these.
        && journal.damaged == 0
        && !journal.records.iter().any(|record| record.fact == Fact::Unknown)
}

/// The journal of a listed pod whose supervisor runs and has not ended the pod.
enum LiveJournal {
    /// Its stamp is the recorded one: the row has all of its facts.
    Recorded,
    /// Its stamp before it was read, and its facts. `settled_bytes`: its length, or 0 if it was changed within
    /// [`RECENT_CHANGE`].
    Read { stamp: FileStamp, settled_bytes: u64, journal: Parsed },
}

impl LiveJournal {
    /// Reads an open journal unless its stamp is the recorded one. `None`: the pod's lock has to be probed.
    fn read_unless(recorded: Option<FileStamp>, file: File) -> Option<Self> {
        // An append after this changes the stamp, so the next list reads the journal again.
        let metadata = file.metadata().ok()?;
        let stamp = FileStamp::from(&metadata);
        if recorded == Some(stamp) {
            return Some(Self::Recorded);
        }
        // A time in the future counts as recent.
        let age = metadata.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
        let settled_bytes = if age >= RECENT_CHANGE { metadata.len() } else { 0 };
        Some(Self::Read { stamp, settled_bytes, journal: read_live_journal(file)? })
    }
}

/// The journals of the listed pods that run, in the order of ids.
pub(crate) struct LiveJournals(Vec<(PodId, Option<LiveJournal>)>);

impl LiveJournals {
    /// Whether the journals that were read, because their stamps had changed, are many or long.
    fn are_worth_recording(&self) -> bool {
        let lengths = self.0.iter().filter_map(|(_, journal)| match journal {
            Some(LiveJournal::Read { settled_bytes, .. }) => Some(*settled_bytes),
            Some(LiveJournal::Recorded) | None => None,
        });
        let (count, bytes) = lengths.fold((0, 0), |(count, bytes), length| (count + 1, bytes + length));
        count >= MIN_RECORDED || bytes >= MIN_RECORDED_BYTES
    }

    /// The journal of a pod; `None`: its lock has to be probed.
    fn take(&mut self, pod: PodId) -> Option<LiveJournal> {
        let at = self.0.binary_search_by_key(&pod, |(id, _)| *id).ok()?;
        self.0.get_mut(at)?.1.take()
    }
}

/// The supervisor that the row of a running pod names, of this boot.
struct Supervisor {
    pod: PodId,
    pid: u32,
    start_ticks: u64,
}

impl Supervisor {
    fn of_phase(pod: PodId, phase: &Phase, boot: &BootId) -> Option<Self> {
        match phase {
            Phase::Running { supervisor: Process { pid, start_ticks, boot: of_process }, .. } if of_process == boot => {
                Some(Self { pod, pid: *pid, start_ticks: *start_ticks })
            }
            // No other phase names one.
            _ => None,
        }
    }
}

/// Opens the journal of a pod whose supervisor runs; the path of the pod's directory is relative to `dir`. `None`: the
/// pod's lock has to be probed.
fn open_live_journal(dir: impl AsFd, pod_dir: &Path, supervisor: &Supervisor) -> Option<File> {
    // A directory that was removed, and a file that cannot be opened, are handled under the lock.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&dir, pod_dir.join(files::JOURNAL), flags, Mode::empty()).map(File::from).ok()?;
    // An older supervisor has not locked its journal, and one that replaces it opens it anew. In a copy of the data
    // directory, the supervisor of the original has locked neither.
    let runs = process::holds_record_lock(supervisor.pid, &file)
        || process::is_running(supervisor.pid, supervisor.start_ticks) && is_locked(&dir, pod_dir);
    runs.then_some(file)
}

/// Whether another process has locked the directory of a pod.
fn is_locked(dir: impl AsFd, pod_dir: &Path) -> bool {
    let opened = rustix::fs::openat(dir, pod_dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    opened.is_ok_and(|pod_dir| matches!(try_lock(pod_dir, LockMode::Shared), Ok(false)))
}

/// Reads the journal of a running supervisor. `None`: it cannot be read, or the supervisor has ended its pod and may
/// have released the lock before it exits.
fn read_live_journal(file: File) -> Option<Parsed> {
    let journal = journal::parse(&read_open_file(file, pod_dir::MAX_JOURNAL).ok()?);
    (!has_end(&journal)).then_some(journal)
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
pub(crate) mod tests;
