//! Waiting for a pod to end, or to run. The end of a supervisor wakes the waiter (pidfd); a pod that was not started
//! yet is polled.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use gantry_contract::journal::{Fact, Parsed};
use gantry_model::phase::FormerPhase;
use gantry_model::{AppName, AppState, EventKind, EventRecord, Phase, PodEnd, PodId, Process, Timestamp};
use gantry_store::{AppRow, PodRow};

use crate::host::process::{self, Deadline};
use crate::pods::app_history::AppHistories;
use crate::pods::outcome::{self, Observation, Outcome};
use crate::pods::output::OutputStream;
use crate::pods::pod_dir;
use crate::pods::transition::ready_record;
use crate::pods::view::PodView;
use crate::{Engine, PodError};

/// Poll interval for a pod without a supervisor.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Keeps a running pod's journal open, so that its end is known even if the pod is removed as soon as it has ended. A
/// journal that the supervisor has replaced meanwhile lacks the end; then the event of the end has it.
#[derive(Debug)]
pub struct EndWatch {
    id: PodId,
    /// Whether the pod is a sandbox.
    sandbox: bool,
    journal: WatchedJournal,
}

/// The journal of a pod whose end is waited for.
#[derive(Debug)]
enum WatchedJournal {
    Open(File),
    /// It was read to the end of the pod, and closed.
    Ended(Parsed),
}

impl WatchedJournal {
    fn read(&self) -> io::Result<Cow<'_, Parsed>> {
        match self {
            Self::Open(file) => pod_dir::read_journal(file).map(Cow::Owned),
            Self::Ended(journal) => Ok(Cow::Borrowed(journal)),
        }
    }

    /// Closes the file if it has the end. If it stayed open until the pod is removed, closing it would free its blocks,
    /// which may wait for the disk.
    fn close_if_ended(&mut self) -> io::Result<()> {
        let journal = self.read()?;
        if has_end(&journal) {
            *self = Self::Ended(journal.into_owned());
        }
        Ok(())
    }
}

/// Whether the supervisor has recorded the end of the pod.
pub(crate) fn has_end(journal: &Parsed) -> bool {
    journal.records.iter().any(|record| record.fact == Fact::Ended)
}

/// How a pod ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Exit code, failed app and reason.
    pub end: PodEnd,
    /// Apps of which the kernel killed a process because memory ran out.
    pub out_of_memory: Vec<AppName>,
}

impl Ended {
    fn new(end: PodEnd, apps: impl IntoIterator<Item = (AppName, AppState)>) -> Self {
        let killed = |state: &AppState| matches!(state, AppState::Exited { end, .. } if end.oom);
        let out_of_memory = apps.into_iter().filter(|(_, state)| killed(state)).map(|(name, _)| name).collect();
        Self { end, out_of_memory }
    }
}

/// A pod as a wait last saw it: the pod may be removed before its end is seen.
#[derive(Debug, Default)]
pub(crate) struct LastSeen {
    row: Option<PodRow>,
    /// The last run that was seen.
    run: Option<WatchedRun>,
}

/// A run of a pod, and its journal.
#[derive(Debug)]
struct WatchedRun {
    supervisor: Process,
    /// The number of the newest event when it was first seen: a later start has a higher one.
    seen_at: u64,
    end: EndWatch,
}

/// A pod that is waited for. It may be removed as soon as it has ended (`run --rm`): each wait still returns that end,
/// if [`Self::look`] or an earlier wait has seen the pod.
pub struct PodWait<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) id: PodId,
    pub(crate) seen: LastSeen,
}

impl PodWait<'_> {
    /// The pod.
    #[must_use]
    pub fn id(&self) -> PodId {
        self.id
    }

    /// Looks at the pod before another one is waited for. `watches_run`: also opens the journal of its run, which has
    /// the ends of its apps, until this value is dropped.
    ///
    /// # Errors
    /// [`PodError`]. A pod that is gone is no failure here.
    pub fn look(&mut self, watches_run: bool) -> Result<(), PodError> {
        if let Some(row) = self.engine.store.pod(self.id)? {
            match watches_run {
                true => self.engine.remember(&row, &mut self.seen)?,
                false => self.seen.row = Some(row),
            }
        }
        Ok(())
    }

    /// Waits until the pod is in a final phase. `None`: the deadline passed.
    ///
    /// # Errors
    /// [`PodError`], also when the pod is gone by then and never ran.
    pub fn exited(&mut self, deadline: Option<Duration>) -> Result<Option<PodView>, PodError> {
        self.until(deadline, Phase::is_final)
    }

    /// Waits until the pod runs, or never will, as [`Self::exited`] does.
    ///
    /// # Errors
    /// As [`Self::exited`].
    pub fn running(&mut self, deadline: Option<Duration>) -> Result<Option<PodView>, PodError> {
        self.until(deadline, |phase| matches!(phase, Phase::Running { .. }) || phase.is_final())
    }

    fn until(
        &mut self,
        deadline: Option<Duration>,
        reached: impl Fn(&Phase) -> bool,
    ) -> Result<Option<PodView>, PodError> {
        let Self { engine, id, seen } = self;
        engine.wait_looking(|| engine.status_or_end(*id, seen), Deadline::from(deadline), reached)
    }
}

/// The row as it was before the removal of the pod was begun: a wait that saw the pod run shows the same, however far
/// another process has removed it.
fn before_removal(row: PodRow) -> PodRow {
    match row.phase {
        Phase::Garbage { was: FormerPhase::Exited { started, at, end }, deleting: Some(_), .. } => {
            PodRow { phase: Phase::Exited { started, at, end }, ..row }
        }
        // Its removal was not begun, or it had not run.
        _ => row,
    }
}

/// The end of a run whose journal was kept open.
fn outcome_of_watched(apps: &[(AppName, AppState)], journal: &Parsed, sandbox: bool) -> Outcome {
    let observation = Observation { now: gantry_store::now(), restarted: false, sandbox };
    outcome::outcome(apps, journal, observation)
}

impl Engine {
    /// Opens everything needed to wait for the end of a running pod.
    ///
    /// # Errors
    /// [`PodError`]: it has no journal, so it does not run.
    pub fn watch_end(&self, id: PodId) -> Result<EndWatch, PodError> {
        let sandbox = self.store.pod(id)?.is_some_and(|row| row.sandbox);
        self.watch_end_of(id, sandbox)
    }

    /// The same, for a caller that knows the pod's row.
    pub(crate) fn watch_end_of(&self, id: PodId, sandbox: bool) -> Result<EndWatch, PodError> {
        Ok(EndWatch { id, sandbox, journal: WatchedJournal::Open(self.open_journal(id)?) })
    }

    /// Waits until the pod has ended. `output`, which has been read to its end, closes as soon as a pod of `run --rm`
    /// can be removed.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn wait_end(&self, mut watch: EndWatch, output: Option<&OutputStream>) -> Result<Ended, PodError> {
        let journal = self.read_watched(&watch)?;
        let watched = ready_record(&journal).map(|ready| (ready.supervisor, ready.start_ticks));
        drop(journal);
        if let (Some(output), Some((pid, start_ticks))) = (output, watched) {
            let supervisor = Process { pid, start_ticks, boot: self.store.boot().clone() };
            self.wait_closed(output, &supervisor).map_err(PodError::io("wait for", self.pod_dir(watch.id)))?;
            let path = self.pod_dir(watch.id).join(gantry_contract::files::JOURNAL);
            watch.journal.close_if_ended().map_err(PodError::io("read the journal", path))?;
        }
        // gantryd may have started the pod again.
        let is_other_run = |phase: &Phase| match phase {
            Phase::Running { supervisor, .. } => {
                watched.is_some_and(|watched| watched != (supervisor.pid, supervisor.start_ticks))
            }
            Phase::Starting { .. } => true,
            // It does not run again.
            _ => false,
        };
        let ended = self.wait_until(watch.id, Deadline::NEVER, |phase| phase.is_final() || is_other_run(phase));
        match ended {
            Ok(Some(PodView { row, .. })) if is_other_run(&row.phase) => self.end_by_journal(&watch),
            Ok(Some(PodView { row, .. })) => match row.phase.end() {
                Some((_, end)) => {
                    let end = end.clone();
                    Ok(Ended::new(end, row.apps.into_iter().map(|app| (app.name, app.state))))
                }
                None => self.end_by_journal(&watch),
            },
            // `rm` and `gc` remove only pods that have ended.
            Ok(None) | Err(PodError::NotFound(_)) => self.end_by_journal(&watch),
            Err(error) => Err(error),
        }
    }

    /// Waits until the output is closed, or the supervisor has ended.
    fn wait_closed(&self, output: &OutputStream, supervisor: &Process) -> io::Result<()> {
        match process::open(supervisor, self.store.boot()) {
            Ok(Some(process)) => process::readable(&[output.as_fd(), process.as_fd()], Deadline::NEVER).map(drop),
            // If it cannot be opened, the caller waits for the end by polling.
            Ok(None) | Err(_) => Ok(()),
        }
    }

    fn end_by_journal(&self, watch: &EndWatch) -> Result<Ended, PodError> {
        let journal = self.read_watched(watch)?;
        if !has_end(&journal)
            && let Some((_, end)) = self.recorded_end(watch.id)?
        {
            return Ok(Ended { end, out_of_memory: Vec::new() });
        }
        let apps: Vec<_> = AppHistories::from_journal(&journal).names().map(|app| (app, AppState::Waiting)).collect();
        let outcome = outcome_of_watched(&apps, &journal, watch.sandbox);
        Ok(Ended::new(outcome.end, outcome.apps.states))
    }

    fn read_watched<'a>(&self, watch: &'a EndWatch) -> Result<Cow<'a, Parsed>, PodError> {
        let path = self.pod_dir(watch.id).join(gantry_contract::files::JOURNAL);
        watch.journal.read().map_err(PodError::io("read the journal", path))
    }

    /// When and how a pod ended, from its event.
    fn recorded_end(&self, id: PodId) -> Result<Option<(Timestamp, PodEnd)>, PodError> {
        let event = self.store.last_event(EventKind::PodExited, &id.to_string())?;
        let end = |event: EventRecord| {
            let (at, data) = (event.event.at, event.event.data);
            let exit_code = data.get("exit_code")?.parse().ok()?;
            let failed_app = data.get("failed_app").and_then(|app| app.parse().ok());
            Some((at, PodEnd { exit_code, failed_app, reason: data.get("reason").cloned().unwrap_or_default() }))
        };
        Ok(event.and_then(end))
    }

    /// One pod, reconciled; or its end, if another process has removed it since it was first seen (`run --rm`).
    ///
    /// # Errors
    /// [`PodError`], also when the pod is gone and never ran.
    pub(crate) fn status_or_end(&self, id: PodId, seen: &mut LastSeen) -> Result<PodView, PodError> {
        if let Some(row) = self.store.pod(id)? {
            self.remember(&row, seen)?;
            if let Some(row) = self.reconcile(row)? {
                let has_seen_it_run = seen.run.is_some();
                return Ok(self.view(if has_seen_it_run { before_removal(row) } else { row }));
            }
        }
        let row = seen.row.clone().ok_or(PodError::NotFound(id.into()))?;
        self.end_of_removed(row, seen).map(|row| self.view(row))
    }

    /// Keeps the row, and the journal of a run that it shows for the first time.
    fn remember(&self, row: &PodRow, seen: &mut LastSeen) -> Result<(), PodError> {
        if let Phase::Running { supervisor, .. } = &row.phase
            && seen.run.as_ref().is_none_or(|run| run.supervisor != *supervisor)
        {
            // Before the journal is opened: if the pod has been started again by now, the journal names another
            // supervisor.
            let seen_at = self.store.last_seq()?;
            let run = |end| WatchedRun { supervisor: supervisor.clone(), seen_at, end };
            // Without the journal, the event has the end of the pod.
            seen.run = self.watch_end_of(row.id, row.sandbox).ok().map(run);
        }
        seen.row = Some(row.clone());
        Ok(())
    }

    /// The journal of a run. `None`: it is that of another run, or the pod was started again since.
    fn journal_of_last_run<'a>(&self, run: &'a WatchedRun) -> Result<Option<Cow<'a, Parsed>>, PodError> {
        let journal = self.read_watched(&run.end)?;
        let Process { pid, start_ticks, .. } = run.supervisor;
        let is_of_run =
            ready_record(&journal).is_some_and(|ready| (ready.supervisor, ready.start_ticks) == (pid, start_ticks));
        if !is_of_run {
            return Ok(None);
        }
        let last_start = self.store.last_event(EventKind::PodStarted, &run.end.id.to_string())?;
        Ok(last_start.is_none_or(|start| start.seq <= run.seen_at).then_some(journal))
    }

    /// The row of a removed pod, as it was after its end: from the journal of its last run if that has the end, else
    /// from its event. Apps whose ends are unknown are lost.
    fn end_of_removed(&self, mut row: PodRow, seen: &LastSeen) -> Result<PodRow, PodError> {
        let recorded = self.recorded_end(row.id)?;
        let journal = seen.run.as_ref().map_or(Ok(None), |run| self.journal_of_last_run(run))?;
        if recorded.is_none() && journal.is_none() {
            return Err(PodError::NotFound(row.id.into()));
        }
        let journal = journal.unwrap_or_default();
        let apps: Vec<_> = row.apps.iter().map(|app| (app.name.clone(), app.state)).collect();
        let outcome = outcome_of_watched(&apps, &journal, row.sandbox);
        outcome.apps.apply_to(&mut row.apps, |app| &app.name, AppRow::set_state);
        let (at, end) = match recorded {
            Some(recorded) if !has_end(&journal) => recorded,
            _ => (outcome.at, outcome.end),
        };
        let started = row.phase.started_at().unwrap_or(at);
        Ok(PodRow { phase: Phase::Exited { started, at, end }, paused: false, ..row })
    }

    /// A pod to wait for, at which no wait has looked yet.
    #[must_use]
    pub fn pod_wait(&self, id: PodId) -> PodWait<'_> {
        PodWait { engine: self, id, seen: LastSeen::default() }
    }

    /// [`PodWait::exited`] for a pod that is waited for once.
    ///
    /// # Errors
    /// As [`PodWait::exited`].
    pub fn wait(&self, id: PodId, deadline: Option<Duration>) -> Result<Option<PodView>, PodError> {
        self.pod_wait(id).exited(deadline)
    }

    /// Waits until the pod is in such a phase. `None`: the deadline passed. Fails when the pod is gone by then.
    pub(crate) fn wait_until(
        &self,
        id: PodId,
        deadline: Deadline,
        reached: impl Fn(&Phase) -> bool,
    ) -> Result<Option<PodView>, PodError> {
        self.wait_looking(|| self.status(id), deadline, reached)
    }

    fn wait_looking(
        &self,
        mut look: impl FnMut() -> Result<PodView, PodError>,
        deadline: Deadline,
        reached: impl Fn(&Phase) -> bool,
    ) -> Result<Option<PodView>, PodError> {
        loop {
            let view = look()?;
            if reached(&view.row.phase) {
                return Ok(Some(view));
            }
            if deadline.passed() {
                return Ok(None);
            }
            // A supervisor that cannot be opened, because descriptors are short, is polled.
            match self.supervisor_fd(&view.row).ok().flatten() {
                Some(fd) => {
                    process::readable(&[fd.as_fd()], deadline)
                        .map_err(PodError::io("wait for the supervisor of", &view.dir()))?;
                }
                None => {
                    process::readable(&[], deadline.at_most(POLL_INTERVAL))
                        .map_err(PodError::io("wait for", &view.dir()))?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gantry_contract::start::{Ready, Started};
    use gantry_model::{AppOutcome, Edge};
    use gantry_store::Change;

    use super::*;
    use crate::pods::reconcile::tests::{embryo, engine, exited, ready, write_journal};

    /// The supervisor replaced the journal after it was opened.
    #[test]
    fn outdated_journals_yield_to_the_event() {
        let temp = tempfile::tempdir().unwrap();
        let (engine, image) = engine(temp.path());
        let (row, lock) = embryo(&engine, &image, 1);
        let id = row.id;
        let mut pod = engine.pod_wait(id);
        write_journal(&engine, id, vec![Fact::Ready(ready())]);
        engine.mark_running(row, &ready()).unwrap();
        pod.look(true).unwrap();
        write_journal(&engine, id, vec![Fact::Ready(ready()), exited(3), Fact::Ended]);
        drop(lock);
        engine.reconcile_pod(id).unwrap();
        engine.dispose(id).unwrap();
        let row = pod.exited(None).unwrap().unwrap().row;
        assert_eq!(row.phase.end().unwrap().1.exit_code, 3);
        let AppState::Exited { end, .. } = row.apps[0].state else { panic!("{:?}", row.apps[0].state) };
        assert_eq!(end.how, AppOutcome::Lost, "the end of the app is not in the event");
        // A wait after it, and a pod that was never seen.
        assert!(pod.exited(None).unwrap().is_some());
        assert!(matches!(engine.wait(id, None), Err(PodError::NotFound(_))));
    }

    #[test]
    fn earlier_runs_do_not_count() {
        let temp = tempfile::tempdir().unwrap();
        let (engine, image) = engine(temp.path());
        let (row, lock) = embryo(&engine, &image, 1);
        let id = row.id;
        let mut pod = engine.pod_wait(id);
        write_journal(&engine, id, vec![Fact::Ready(ready()), exited(3), Fact::Ended]);
        engine.mark_running(row, &ready()).unwrap();
        pod.look(true).unwrap();
        drop(lock);
        let row = engine.reconcile_pod(id).unwrap();
        assert_eq!(row.phase.end().unwrap().1.exit_code, 3);

        let row = engine.step(&row, Change::along(Edge::Restart)).unwrap().unwrap();
        let app = Started { attempt: 1, ..ready().apps.remove(0) };
        let again = Ready { start_ticks: 2, apps: vec![app], ..ready() };
        let end = Fact::AppExited {
            app: "a".into(),
            attempt: 1,
            how: gantry_contract::ProcessExit::Code(4),
            oom: false,
            restart_at: None,
        };
        write_journal(&engine, id, vec![Fact::Ready(again.clone()), end, Fact::Ended]);
        engine.mark_running(row, &again).unwrap();
        let row = engine.reconcile_pod(id).unwrap();
        let steps = [Edge::Marked, Edge::Deleting].map(|edge| Change::along(edge(gantry_store::now())));
        engine.steps(&row, steps.into()).unwrap();
        let being_removed = pod.exited(None).unwrap().unwrap().row.phase;
        engine.dispose(id).unwrap();
        let removed = pod.exited(None).unwrap().unwrap().row.phase;
        for phase in [being_removed, removed] {
            assert!(matches!(&phase, Phase::Exited { end, .. } if end.exit_code == 4), "{phase:?}");
        }
    }
}
