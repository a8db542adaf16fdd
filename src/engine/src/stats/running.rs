//! A sample of all running pods as a whole, for which most rows are not reconciled.

use std::collections::HashMap;

use gantry_model::query::PodQuery;
use gantry_model::stats::PodStats;
use gantry_model::{Phase, PodId};
use gantry_store::PodRow;

use super::{SampleScope, Sampler};
use crate::{Engine, PodError, PodView};

impl Engine {
    /// Samples the running pods without their apps, in the order of their rows.
    ///
    /// A row is believed where the pod's cgroup has processes: its supervisor runs, since its processes end with it.
    /// The rest is reconciled first: a pod that has ended, a sandbox without apps, or a host that does not count
    /// processes.
    ///
    /// # Errors
    /// [`PodError`]
    pub fn sample_running_pods(&self, sampler: &mut Sampler) -> Result<Vec<PodStats>, PodError> {
        let rows = self.store.pods(&PodQuery::in_phases(&["running"])).map_err(PodError::store)?;
        let views: Vec<PodView> = rows.into_iter().map(|row| self.view(row)).collect();
        let mut sample = |views: &[PodView]| sampler.sample(views, SampleScope::Pods).into_iter();
        let mut samples: HashMap<PodId, PodStats> =
            sample(&views).filter(has_processes).map(|stats| (stats.id, stats)).collect();
        let rest = views.iter().map(|view| &view.row).filter(|row| !samples.contains_key(&row.id));
        let rest: Vec<PodRow> = rest.cloned().collect();
        if !rest.is_empty() {
            let is_running = |row: &PodRow| matches!(row.phase, Phase::Running { .. });
            let running = self.reconcile_all(rest)?.into_iter().filter(is_running);
            let running: Vec<PodView> = running.map(|row| self.view(row)).collect();
            samples.extend(sample(&running).map(|stats| (stats.id, stats)));
        }
        Ok(views.iter().filter_map(|view| samples.remove(&view.row.id)).collect())
    }
}

fn has_processes(stats: &PodStats) -> bool {
    stats.usage.pids.is_some_and(|pids| pids.current > 0)
}
