//! Starts pods again that wait for it: their supervisor died, and an app of them has a restart policy.
//!
//! The rows say which pods wait, and until when ([`crate::timed_work`]). A start is recorded in the row before anything
//! else, and the lock on the pod directory passes to its supervisor. So gantryd, killed at any point, neither forgets a
//! pod nor starts it twice.

use gantry_engine::{Engine, Options, Running};
use gantry_model::restart::{PodRestart, due_time, pod_backoff};
use gantry_model::{Phase, PodId, Timestamp};
use tracing::{debug, info, info_span, warn};

use crate::timed_work::TimedTask;

/// Starts the pods that wait.
pub(crate) struct PodRestarts;

impl TimedTask for PodRestarts {
    type Key = PodId;

    const KIND: &'static str = "pod";
    const ALL: &'static str = "pods that are to be started again";

    fn read_due(engine: &Engine) -> anyhow::Result<Vec<(PodId, Timestamp)>> {
        let (waiting, now) = (engine.store().pods_to_restart()?, gantry_engine::now());
        let mut due: Vec<_> =
            waiting.into_iter().map(|(id, at, tries)| (id, due_time(at, pod_backoff(tries), now))).collect();
        due.sort_by_key(|(_, at)| *at);
        Ok(due)
    }

    fn perform(&id: &PodId, options: Options) -> Vec<Running> {
        let _span = info_span!("pod", pod = %id).entered();
        match start(options, id) {
            Ok(Some(running)) => {
                info!("pod {id} is started again");
                for warning in &running.ready.warnings {
                    warn!("pod {id}: {warning}");
                }
                vec![running]
            }
            Ok(None) => {
                debug!("pod {id} no longer waits to be started again");
                Vec::new()
            }
            Err(error) => {
                warn!("cannot start pod {id} again: {error:#}");
                Vec::new()
            }
        }
    }
}

fn start(options: Options, id: PodId) -> anyhow::Result<Option<Running>> {
    let engine = Engine::open(options)?;
    bring_forward(&engine, id)?;
    Ok(engine.start_waiting_pod(id)?)
}

/// Corrects the time in the row of a waiting pod, which the engine checks, after the clock was set back.
fn bring_forward(engine: &Engine, id: PodId) -> anyhow::Result<()> {
    let Some(row) = engine.store().pod(id)? else { return Ok(()) };
    let now = gantry_engine::now();
    let Some(at) = row.restart.at.filter(|_| matches!(row.phase, Phase::Exited { .. })) else { return Ok(()) };
    let due = due_time(at, pod_backoff(row.restart.tries), now);
    if due == at {
        return Ok(());
    }
    info!("pod {id} would wait for longer than its delay: the clock was set back");
    let restart = PodRestart { at: Some(due), ..row.restart.clone() };
    // If another process has changed the row, nothing is written; the start reads it again.
    let _changed_or_outdated = engine.store().set_restart(id, row.generation, restart, false)?;
    Ok(())
}
