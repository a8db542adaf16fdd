//! The disk usage of running apps and of volumes, counted in the background.
//!
//! Counting reads all directories of a tree, so samples never count. gantryd counts one tree at a time, beginning with
//! the one that was counted longest ago; samples carry the latest counts with their times. An app's writable layer and
//! logs are not counted if it has a storage limit: the file system does.
//!
//! A tree of an app that has not run since it was counted is counted less often: only others, such as `gantry cp`, can
//! have changed it.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gantry_contract::files;
use gantry_host::project;
use gantry_host::tree::{self, TreeUsage};
use gantry_model::spec::PodFlavor;
use gantry_model::stats::{DiskUsage, PodStats, ResourceUsage};
use gantry_model::{AppId, PodId, VolumeName};
use gantry_store::PodRow;

use super::SampleSet;

/// The names of a tree that are counted; the usage of a larger one is a lower bound. Bounds the memory for the names
/// and hard links of a hostile app.
const MAX_ENTRIES: u64 = 1_000_000;

/// A tree whose app has not run is counted after this many intervals.
const ASLEEP_INTERVALS: u32 = 5;

/// A tree that is counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum DiskTree {
    Layer(AppId),
    Logs(AppId),
    /// The volumes that were created for the pod and end with it.
    PodVolumes(PodId),
    Volume(VolumeName),
}

/// The counts of running pods and of named volumes.
#[derive(Debug, Default)]
pub(super) struct DiskCounts {
    trees: HashMap<DiskTree, DiskCount>,
    /// The sample in which no tree was due, and the time until which none will be.
    idle: Option<(Instant, Instant)>,
}

#[derive(Debug)]
struct DiskCount {
    begun: Instant,
    /// See [`DiskTarget::cpu_ns`].
    cpu_ns: Option<u64>,
    /// `None`: the tree cannot be read.
    usage: Option<DiskUsage>,
}

impl DiskCount {
    /// The time at which a tree with this count is due again, if `target` is its present state.
    fn due_at(&self, target: &DiskTarget, interval: Duration) -> Option<Instant> {
        let is_asleep = target.cpu_ns.is_some() && target.cpu_ns == self.cpu_ns;
        let is_complete = self.usage.is_some_and(|usage| usage.is_complete);
        let intervals = if is_asleep && is_complete { ASLEEP_INTERVALS } else { 1 };
        self.begun.checked_add(interval.saturating_mul(intervals))
    }
}

/// A tree whose usage is to be counted.
#[derive(Debug)]
pub struct DiskTarget {
    tree: DiskTree,
    dir: PathBuf,
    /// The pod to which it belongs; `None`: a named volume.
    pub(super) pod: Option<PodId>,
    /// The CPU time of the app or pod when it was sampled; `None`: others may write to the tree, too.
    cpu_ns: Option<u64>,
}

impl DiskCounts {
    /// The trees that were not counted within the interval, the one that was counted longest ago first.
    pub(super) fn due(&mut self, set: &SampleSet, interval: Duration) -> Vec<DiskTarget> {
        let now = Instant::now();
        if self.idle.is_some_and(|(begun, until)| begun == set.begun && now < until) {
            return Vec::new();
        }
        let mut targets = self.targets(set);
        let due_at = |target: &DiskTarget| self.trees.get(&target.tree).map(|count| count.due_at(target, interval));
        // A tree without a count is due; `Some(None)` never is.
        let next = targets.iter().filter_map(|target| due_at(target).unwrap_or(Some(now))).min();
        targets.retain(|target| due_at(target).is_none_or(|at| at.is_some_and(|at| at <= now)));
        self.idle = next.or(now.checked_add(interval)).filter(|_| targets.is_empty()).map(|next| (set.begun, next));
        // None, a tree without a count, is the least.
        targets.sort_by_key(|target| self.trees.get(&target.tree).map(|count| count.begun));
        targets
    }

    /// The trees of pods that were never counted.
    pub(super) fn missing(&mut self, set: &SampleSet) -> Vec<DiskTarget> {
        let mut targets = self.targets(set);
        targets.retain(|target| target.pod.is_some() && !self.trees.contains_key(&target.tree));
        targets
    }

    /// All trees. Forgets those of pods that have ended and of volumes that were removed.
    fn targets(&mut self, set: &SampleSet) -> Vec<DiskTarget> {
        let mut targets: Vec<DiskTarget> = set.pods.iter().flat_map(|pod| targets(&pod.view, &pod.stats)).collect();
        targets.extend(set.volumes.iter().map(|volume| DiskTarget {
            tree: DiskTree::Volume(volume.name.clone()),
            dir: volume.dir.clone(),
            pod: None,
            cpu_ns: None,
        }));
        let mut before = std::mem::take(&mut self.trees);
        let kept = targets.iter().filter_map(|target| before.remove_entry(&target.tree));
        self.trees = kept.collect();
        targets
    }

    pub(super) fn insert(&mut self, target: DiskTarget, begun: Instant, usage: Option<DiskUsage>) {
        self.trees.insert(target.tree, DiskCount { begun, cpu_ns: target.cpu_ns, usage });
    }

    /// Adds the latest counts to a sample.
    pub(super) fn fill(&self, row: &PodRow, stats: &mut PodStats) {
        stats.volumes = self.usage(&DiskTree::PodVolumes(row.id));
        for app in &mut stats.apps {
            let Some(row) = row.apps.iter().find(|row| row.name == app.name) else { continue };
            app.disk = self.usage(&DiskTree::Layer(row.id.clone()));
            app.logs = self.usage(&DiskTree::Logs(row.id.clone()));
        }
    }

    /// The latest count of a named volume.
    pub(super) fn volume(&self, name: &VolumeName) -> Option<DiskUsage> {
        self.usage(&DiskTree::Volume(name.clone()))
    }

    fn usage(&self, tree: &DiskTree) -> Option<DiskUsage> {
        self.trees.get(tree).and_then(|count| count.usage)
    }
}

/// The trees of a running pod. A host pod has logs only.
fn targets(view: &crate::PodView, stats: &PodStats) -> Vec<DiskTarget> {
    let pod = view.row.id;
    let has_root = view.row.flavor() == PodFlavor::Container;
    let target = |tree, dir: PathBuf, usage: &ResourceUsage| {
        let cpu_ns = usage.cpu.map(|cpu| cpu.total_ns);
        DiskTarget { tree, dir, pod: Some(pod), cpu_ns }
    };
    let mut targets = Vec::new();
    if has_root {
        targets.push(target(DiskTree::PodVolumes(pod), view.dir().join(files::VOLUMES), &stats.usage));
    }
    for app in stats.apps.iter().filter(|app| app.storage.is_none()) {
        let Some(row) = view.row.apps.iter().find(|row| row.name == app.name) else { continue };
        if has_root {
            let dir = view.dir().join(files::APPS).join(app.name.as_str());
            targets.push(target(DiskTree::Layer(row.id.clone()), dir, &app.usage));
        }
        let dir = view.dir().join(files::LOGS).join(app.name.as_str());
        targets.push(target(DiskTree::Logs(row.id.clone()), dir, &app.usage));
    }
    targets
}

impl DiskTarget {
    /// Counts the tree as long as `proceed` returns true. `None`: it cannot be read.
    pub(super) fn count(&self, proceed: &mut dyn FnMut() -> bool) -> Option<DiskUsage> {
        let counted = match project::open_directory(&self.dir) {
            Ok(dir) => tree::measure_while(dir.as_fd(), MAX_ENTRIES, proceed).ok()?,
            // Logs at a path that the caller chose are the caller's; a pod may have no volumes.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !matches!(self.tree, DiskTree::Layer(_)) => {
                TreeUsage { is_complete: true, ..TreeUsage::default() }
            }
            Err(_) => return None,
        };
        Some(DiskUsage {
            bytes: counted.bytes,
            inodes: counted.entries,
            is_complete: counted.is_complete,
            counted: gantry_store::now(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_apps_are_counted_less_often() {
        const MINUTE: Duration = Duration::from_secs(60);
        let usage = DiskUsage { bytes: 0, inodes: 0, is_complete: true, counted: gantry_store::now() };
        let count = DiskCount { begun: Instant::now(), cpu_ns: Some(5), usage: Some(usage) };
        let tree = DiskTree::PodVolumes("67f3a3cb-3a9c-4d43-8b7d-5e4d8f5d5f9d".parse().unwrap());
        let target = |cpu_ns| DiskTarget { tree: tree.clone(), dir: PathBuf::new(), pod: None, cpu_ns };
        let after = |count: &DiskCount, cpu_ns| count.due_at(&target(cpu_ns), MINUTE).unwrap() - count.begun;
        assert_eq!(after(&count, Some(5)), MINUTE * ASLEEP_INTERVALS);
        assert_eq!(after(&count, Some(6)), MINUTE, "it has run");
        assert_eq!(after(&DiskCount { cpu_ns: None, ..count }, None), MINUTE, "others may write");
        let part = DiskCount { begun: Instant::now(), cpu_ns: Some(5), usage: None };
        assert_eq!(after(&part, Some(5)), MINUTE, "it was not counted");
    }
}
