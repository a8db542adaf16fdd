//! Brings the pods of schedules in line with them, when a schedule or a pod has changed and when a time has come.
//!
//! The rows say what is due ([`Engine::due_schedules`]), and [`crate::timed_work`] keeps the times.

use gantry_engine::{Engine, Options, Running};
use gantry_model::{ScheduleName, Timestamp};
use tracing::{info, warn};

use crate::timed_work::TimedTask;

/// Brings the pods of schedules in line.
pub(crate) struct ScheduleRuns;

impl TimedTask for ScheduleRuns {
    type Key = ScheduleName;

    const KIND: &'static str = "schedule";
    const ALL: &'static str = "schedules";

    fn read_due(engine: &Engine) -> anyhow::Result<Vec<(ScheduleName, Timestamp)>> {
        Ok(engine.due_schedules()?)
    }

    fn perform(name: &ScheduleName, options: Options) -> Vec<Running> {
        let applied = Engine::open(options).map_err(anyhow::Error::from);
        match applied.and_then(|engine| engine.apply_schedule(name).map_err(anyhow::Error::from)) {
            Ok(started) => {
                for running in &started {
                    info!("schedule '{name}': pod {} is started", running.id);
                    for warning in &running.ready.warnings {
                        warn!("pod {}: {warning}", running.id);
                    }
                }
                started
            }
            Err(error) => {
                warn!("schedule '{name}': {error:#}");
                Vec::new()
            }
        }
    }
}
