//! A sample of all running pods as a whole, for which most rows are not reconciled.

use gantry_model::PhaseName;
use gantry_model::query::PodQuery;
use gantry_model::stats::PodStats;

use super::{SampleScope, Sampler};
use crate::{Engine, PodError, PodView};

impl Engine {
    /// Samples the running pods without their apps, in the order of their creation. Pods are sampled while the rows of
    /// others are read.
    ///
    /// A row is believed where the pod's cgroup has processes: its supervisor runs, since its processes end with it.
    /// The rest is reconciled first: a pod that has ended, a sandbox without apps, or a host that does not count
    /// processes.
    ///
    /// # Errors
    /// [`PodError`]
    pub fn sample_running_pods(&self, sampler: &mut Sampler) -> Result<Vec<PodStats>, PodError> {
        let running = PodQuery::in_phases([PhaseName::Running]);
        let (read, mut samples) =
            sampler.sample_fed(|feed| self.store.pods_without_apps(&running, &mut |row| feed(self.view(row))));
        read.map_err(PodError::store)?;
        samples.sort_by_key(|(view, _)| (view.row.created, view.row.id));
        let mut taken = Vec::with_capacity(samples.len());
        for (view, stats) in samples {
            match stats.filter(has_processes) {
                Some(stats) => taken.push(stats),
                None => taken.extend(self.sample_reconciled(&view, sampler)?),
            }
        }
        Ok(taken)
    }

    /// The sample of a pod if it still runs.
    fn sample_reconciled(&self, view: &PodView, sampler: &mut Sampler) -> Result<Option<PodStats>, PodError> {
        match self.reconcile_pod(view.row.id) {
            Ok(row) => Ok(sampler.sample(&[self.view(row)], SampleScope::Pods).pop()),
            // It was removed meanwhile.
            Err(PodError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn has_processes(stats: &PodStats) -> bool {
    stats.usage.pids.is_some_and(|pids| pids.current > 0)
}
