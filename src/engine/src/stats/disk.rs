//! The disk usage of running apps and of volumes, counted in the background.
//!
//! Counting reads all directories of a tree, so samples never count. gantryd counts one tree at a time, beginning with
//! the one that was counted longest ago; samples carry the latest counts with their times. An app's writable layer and
//! logs are not counted if it has a storage limit: the file system does.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gantry_contract::files;
use gantry_host::project;
use gantry_host::tree::{self, TreeUsage};
use gantry_model::spec::PodFlavor;
use gantry_model::stats::{DiskUsage, PodStats};
use gantry_model::{AppId, PodId, VolumeName};
use gantry_store::PodRow;

use super::SampleSet;

/// The names of a tree that are counted; the usage of a larger one is a lower bound. Bounds the memory for the names
/// and hard links of a hostile app.
const MAX_ENTRIES: u64 = 1_000_000;

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
}

#[derive(Debug)]
struct DiskCount {
    begun: Instant,
    /// `None`: the tree cannot be read.
    usage: Option<DiskUsage>,
}

/// A tree whose usage is to be counted.
#[derive(Debug)]
pub struct DiskTarget {
    tree: DiskTree,
    dir: PathBuf,
    /// The pod to which it belongs; `None`: a named volume.
    pub(super) pod: Option<PodId>,
}

impl DiskCounts {
    /// Forgets the trees of pods that have ended and of volumes that were removed. Returns the trees that were not
    /// counted within the interval, the one that was counted longest ago first.
    pub(super) fn due(&mut self, set: &SampleSet, interval: Duration) -> Vec<DiskTarget> {
        let mut targets: Vec<DiskTarget> = set.pods.iter().flat_map(|pod| targets(&pod.view, &pod.stats)).collect();
        targets.extend(set.volumes.iter().map(|volume| DiskTarget {
            tree: DiskTree::Volume(volume.name.clone()),
            dir: volume.dir.clone(),
            pod: None,
        }));
        let mut before = std::mem::take(&mut self.trees);
        let kept = targets.iter().filter_map(|target| before.remove_entry(&target.tree));
        self.trees = kept.collect();
        let begun = |target: &DiskTarget| self.trees.get(&target.tree).map(|count| count.begun);
        targets.retain(|target| begun(target).is_none_or(|begun| begun.elapsed() >= interval));
        // None, a tree without a count, is the least.
        targets.sort_by_key(begun);
        targets
    }

    pub(super) fn insert(&mut self, target: DiskTarget, begun: Instant, usage: Option<DiskUsage>) {
        self.trees.insert(target.tree, DiskCount { begun, usage });
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
    let target = |tree, dir: PathBuf| DiskTarget { tree, dir, pod: Some(pod) };
    let mut targets = Vec::new();
    if has_root {
        targets.push(target(DiskTree::PodVolumes(pod), view.dir.join(files::VOLUMES)));
    }
    for app in stats.apps.iter().filter(|app| app.storage.is_none()) {
        let Some(row) = view.row.apps.iter().find(|row| row.name == app.name) else { continue };
        if has_root {
            let dir = view.dir.join(files::APPS).join(app.name.as_str());
            targets.push(target(DiskTree::Layer(row.id.clone()), dir));
        }
        targets.push(target(DiskTree::Logs(row.id.clone()), view.dir.join(files::LOGS).join(app.name.as_str())));
    }
    targets
}

impl DiskTarget {
    /// Counts the tree as long as `proceed` returns true. `None`: it cannot be read.
    pub(super) fn count(&self, proceed: &mut dyn FnMut() -> bool) -> Option<DiskUsage> {
        let counted = match project::open_directory(&self.dir) {
            Ok(dir) => tree::measure_while(dir.as_fd(), MAX_ENTRIES, proceed).ok()?,
            // Logs at a path that the caller chose are the caller's.
            Err(error) if error.kind() == io::ErrorKind::NotFound && matches!(self.tree, DiskTree::Logs(_)) => {
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
