//! `pause` and `unpause`: the supervisor freezes the processes of apps, and thaws them.
//!
//! # What a kill leaves behind
//!
//! The supervisor journals a pause once all processes are frozen, before it replies, and [`Engine::reconcile`] brings
//! the row up to the journal. A command that is killed before that leaves a pod that is paused or will be, with its row
//! behind until the next reconciliation. A pod whose supervisor dies is not paused: its processes are killed.

use std::collections::BTreeSet;
use std::time::Duration;

use gantry_contract::control::{Reply, Request};
use gantry_contract::journal::{Fact, Parsed};
use gantry_model::{AppName, Phase, PodId};
use gantry_store::{Moved, PauseState, PodRow};

use crate::error::need_root;
use crate::pods::control::unexpected;
use crate::pods::exec::{running, select_app};
use crate::{Engine, EngineError, PodError};

/// The timeout of pausing: the supervisor gives up first.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(30);

impl Engine {
    /// Freezes the processes of an app, or of every running app. While a pod is paused as a whole, no app of it is
    /// started. Does nothing if they are frozen already.
    ///
    /// # Errors
    /// [`EngineError`]: the pod or the app does not run; the host cannot freeze; a process does not freeze in time, and
    /// all run on.
    pub fn pause(&self, id: PodId, app: Option<&AppName>) -> Result<(), EngineError> {
        need_root("pause a pod").map_err(EngineError::from_cause)?;
        self.change_pause(id, app, |app| Request::Pause { app })
    }

    /// Thaws the processes of an app, or of every app of a pod. Does nothing if they are not frozen.
    ///
    /// # Errors
    /// [`EngineError`]
    pub fn unpause(&self, id: PodId, app: Option<&AppName>) -> Result<(), EngineError> {
        need_root("resume a pod").map_err(EngineError::from_cause)?;
        self.change_pause(id, app, |app| Request::Unpause { app })
    }

    fn change_pause(
        &self,
        id: PodId,
        app: Option<&AppName>,
        request: impl Fn(Option<String>) -> Request,
    ) -> Result<(), EngineError> {
        let row = self.reconcile_pod(id).map_err(EngineError::from_cause)?;
        let row = running(row).map_err(EngineError::from_cause)?;
        let app = app.map(|app| select_app(&row, Some(app))).transpose().map_err(EngineError::from_cause)?;
        let request = request(app.map(|app| app.to_string()));
        match self.ask_app(id, &request, &[], FREEZE_TIMEOUT).map_err(EngineError::from_cause)? {
            Reply::Done => self.reconcile_pod(id).map(drop).map_err(EngineError::from_cause),
            other => Err(EngineError::from_cause(unexpected(id, &other))),
        }
    }

    /// Brings the row of a running pod up to the pauses in the journal.
    pub(crate) fn record_pauses(&self, mut row: PodRow, journal: &Parsed) -> Result<Option<PodRow>, PodError> {
        if with_pauses(&row, &pauses(journal)).is_none() {
            return Ok(Some(row));
        }
        // The row may be newer than the journal that was read: another process may have recorded app changes.
        let state = pauses(&*self.journal(row.id)?);
        let Some(wanted) = with_pauses(&row, &state) else { return Ok(Some(row)) };
        if !self.row_writes.are_enabled() {
            return Ok(Some(wanted));
        }
        match self.store.record_pauses(row.id, row.generation, &state)? {
            Moved::Yes(Some(moved)) => row = moved,
            // Another process has changed the row, perhaps after a newer journal.
            Moved::Lost(Some(moved)) => {
                let journal = self.journal(moved.id)?;
                return self.record_pauses(moved, &journal);
            }
            Moved::Yes(None) | Moved::Lost(None) => return Ok(None),
        }
        Ok(Some(row))
    }
}

/// A row with these pauses; `None`: it has them, or the pod does not run.
fn with_pauses(row: &PodRow, state: &PauseState) -> Option<PodRow> {
    let is_paused = row.paused || row.apps.iter().any(|app| app.paused);
    // Most pods are never paused: their rows are not copied.
    if !matches!(row.phase, Phase::Running { .. }) || !is_paused && *state == PauseState::default() {
        return None;
    }
    let mut wanted = row.clone();
    state.apply_to(&mut wanted);
    (wanted != *row).then_some(wanted)
}

/// The parts of a pod that are paused at the end of a journal.
fn pauses(journal: &Parsed) -> PauseState {
    let mut state = PauseState::default();
    let is_of_pause = |fact: &Fact| matches!(fact, Fact::Paused { .. } | Fact::Resumed { .. });
    if !journal.records.iter().any(|record| is_of_pause(&record.fact)) {
        return state;
    }
    let mut running: BTreeSet<&str> = BTreeSet::new();
    for record in &journal.records {
        match &record.fact {
            Fact::Ready(ready) => running.extend(ready.apps.iter().map(|app| app.app.as_str())),
            Fact::AppStarted(started) => drop(running.insert(&started.app)),
            Fact::AppExited { app, .. } | Fact::AppRemoved { app } => {
                running.remove(app.as_str());
                state.apps.remove(app);
            }
            Fact::Paused { app: Some(app) } => drop(state.apps.insert(app.clone())),
            Fact::Paused { app: None } => {
                state.pod = true;
                state.apps = running.iter().map(|&app| app.to_owned()).collect();
            }
            Fact::Resumed { app: Some(app) } => drop(state.apps.remove(app)),
            Fact::Resumed { app: None } => state = PauseState::default(),
            // They neither pause nor end an app.
            _ => {}
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_contract::ProcessExit;
    use gantry_contract::journal::Record;
    use gantry_contract::start::Started;

    #[test]
    fn the_journal_tells_what_is_paused() {
        let started = |app: &str| Fact::AppStarted(Started { app: app.into(), attempt: 0, pid: 7, at: 50 });
        let exited = |app: &str| Fact::AppExited {
            app: app.into(),
            attempt: 0,
            how: ProcessExit::Code(0),
            oom: false,
            restart_at: None,
        };
        let paused = |app: Option<&str>| Fact::Paused { app: app.map(str::to_owned) };
        let resumed = |app: Option<&str>| Fact::Resumed { app: app.map(str::to_owned) };
        let both = || vec![started("a"), started("b")];
        let then = |facts: Vec<Fact>| both().into_iter().chain(facts).collect::<Vec<_>>();
        for (facts, pod, apps) in [
            (both(), false, ""),
            (then(vec![paused(Some("a"))]), false, "a"),
            (then(vec![paused(Some("a")), resumed(Some("a"))]), false, ""),
            (then(vec![paused(Some("a")), exited("a")]), false, ""),
            (then(vec![paused(None)]), true, "a b"),
            (then(vec![exited("b"), paused(None)]), true, "a"),
            (then(vec![paused(None), resumed(Some("b")), exited("b")]), true, "a"),
            (then(vec![paused(None), resumed(None)]), false, ""),
        ] {
            let shown = format!("{facts:?}");
            let records = facts.into_iter().map(|fact| Record { at: 1, fact }).collect();
            let state = pauses(&Parsed { records, damaged: 0 });
            let names: Vec<_> = state.apps.iter().map(String::as_str).collect();
            assert_eq!((state.pod, names.join(" ").as_str()), (pod, apps), "{shown}");
        }
    }
}
