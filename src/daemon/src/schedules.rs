//! Brings the pods of schedules in line with them, when a schedule or a pod has changed and when a time has come.
//!
//! The rows say what is due ([`Engine::due_schedules`]), and [`TimedWork`] keeps the times.

use gantry_engine::{Engine, Options, Running};
use gantry_model::{ScheduleName, Timestamp};
use tracing::{info, warn};

use crate::timed_work::{TimedWork, WorkKey};

/// The schedules with times, and those that are worked on.
pub(crate) type Schedules = TimedWork<ScheduleName>;

impl WorkKey for ScheduleName {
    const KIND: &'static str = "schedule";
    const ALL: &'static str = "schedules";

    fn read_due(engine: &Engine) -> anyhow::Result<Vec<(Self, Timestamp)>> {
        Ok(engine.due_schedules()?)
    }

    fn perform(&self, options: Options) -> Vec<Running> {
        let applied = Engine::open(options).map_err(anyhow::Error::from);
        match applied.and_then(|engine| engine.apply_schedule(self).map_err(anyhow::Error::from)) {
            Ok(started) => {
                for running in &started {
                    info!("schedule '{self}': pod {} is started", running.id);
                    for warning in &running.ready.warnings {
                        warn!("pod {}: {warning}", running.id);
                    }
                }
                started
            }
            Err(error) => {
                warn!("schedule '{self}': {error:#}");
                Vec::new()
            }
        }
    }
}
