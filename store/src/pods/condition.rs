//! Filters of pods as SQL conditions: the only place that defines what a pod filter matches.
//!
//! Each list is bound as one value, a JSON array that `json_each` expands. So the text of a statement depends only on
//! which fields a filter has, not on their lengths: there are few statements, they are cached, and SQLite's limits of
//! variables and expression depth do not matter. Several filters are evaluated one after the other.

use std::collections::BTreeSet;

use gantry_model::query::{PodFilter, PodQuery};
use gantry_model::{AppName, ImageId, PhaseName, PodId};
use rusqlite::types::Value;
use serde_json::json;

use super::row::stored_name;

/// Pods by the paths of their cgroups; a pod has one while it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupCondition {
    /// Any of these with this cgroup, while it runs. The path of a pod's cgroup has its id.
    pub running: Vec<(PodId, String)>,
    /// And every pod that does not run.
    pub not_running: bool,
}

/// A filter, with the pods of its cgroups, which the caller has resolved: their texts are not compared here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodWhere<'a> {
    /// The filter.
    pub filter: &'a PodFilter,
    /// The pods of `cgroups` and `sub_cgroups` of the filter, where they are not empty. Each must hold.
    pub cgroups: Vec<CgroupCondition>,
}

const IDS: &str = "pod.id IN (SELECT value FROM json_each(?))";
const PHASES: &str = "pod.phase IN (SELECT value FROM json_each(?))";
const BEING_DELETED: &str = "pod.id IN (SELECT d.id FROM pod AS d WHERE d.deleting_at IS NOT NULL)";
const APPS: &str = "pod.id IN (SELECT a.pod FROM app AS a WHERE a.name IN (SELECT value FROM json_each(?))
    GROUP BY a.pod HAVING count(DISTINCT a.name) = ?)";
const IMAGES: &str = "pod.id IN (SELECT a.pod FROM app AS a WHERE a.image IN (SELECT value FROM json_each(?))
    GROUP BY a.pod HAVING count(DISTINCT a.image) = ?)";
/// No wanted network is missing from the pod's. Only the innermost select defines these: `host` once the pod was
/// started, and the networks that it got; none for a pod without networks.
const NETWORKS: &str = "NOT EXISTS (SELECT 1 FROM json_each(?) AS wanted WHERE wanted.value NOT IN
    (SELECT 'host' WHERE pod.net = 'host' AND pod.started_at IS NOT NULL
        UNION ALL SELECT got.value ->> 'name' FROM json_each(pod.networks) AS got))";
/// No wanted pair is missing from the pod's annotations.
const ANNOTATIONS: &str = "NOT EXISTS (SELECT 1 FROM json_each(?) AS wanted WHERE NOT EXISTS
    (SELECT 1 FROM json_each(pod.user_annotations) AS has
        WHERE has.key = wanted.value ->> 0 AND has.value = wanted.value ->> 1))";
const IN_CGROUPS: &str = "pod.phase = 'running' AND pod.id IN (SELECT value FROM json_each(?))
    AND pod.cgroup IN (SELECT value FROM json_each(?))";
const IN_CGROUPS_OR_NOT_RUNNING: &str = "(pod.phase <> 'running' OR (pod.id IN (SELECT value FROM json_each(?))
    AND pod.cgroup IN (SELECT value FROM json_each(?))))";

/// A condition on rows of `pod`: terms that must all hold, and the values in them, in order.
#[derive(Debug, Default)]
pub(crate) struct Condition {
    terms: Vec<&'static str>,
    pub(crate) values: Vec<Value>,
}

impl Condition {
    pub(super) fn of_query(query: &PodQuery) -> Self {
        let PodQuery { phases, created_since, app, image } = query;
        let mut condition = Self::default();
        condition.phases(phases);
        if let Some(since) = created_since {
            condition.and("pod.created >= ?", [since.0.into()]);
        }
        condition.apps(app);
        condition.images(image);
        condition
    }

    pub(crate) fn of_filter(wanted: &PodWhere<'_>) -> Self {
        let PodWhere { filter, cgroups } = wanted;
        // `cgroups` has the resolved pods of the last two fields.
        let PodFilter { ids, phases, app_names, images, networks, annotations, never, cgroups: _, sub_cgroups: _ } =
            filter;
        let mut condition = Self::default();
        if *never {
            condition.and("0", []);
        }
        if !ids.is_empty() {
            condition.of_these(ids);
        }
        condition.phases(phases);
        condition.apps(app_names);
        condition.images(images);
        if !networks.is_empty() {
            condition.and(NETWORKS, [json!(networks).to_string().into()]);
        }
        if !annotations.is_empty() {
            condition.and(ANNOTATIONS, [json!(annotations).to_string().into()]);
        }
        for CgroupCondition { running, not_running } in cgroups {
            let term = if *not_running { IN_CGROUPS_OR_NOT_RUNNING } else { IN_CGROUPS };
            let paths: Vec<&str> = running.iter().map(|(_, path)| path.as_str()).collect();
            condition.and(term, [texts(running.iter().map(|(id, _)| id)), json!(paths).to_string().into()]);
        }
        condition
    }

    /// The pods with these ids.
    pub(super) fn of_ids<'a>(ids: impl IntoIterator<Item = &'a PodId>) -> Self {
        let mut condition = Self::default();
        condition.of_these(ids);
        condition
    }

    /// Whether it holds for every pod.
    pub(super) fn is_all(&self) -> bool {
        self.terms.is_empty()
    }

    /// The WHERE clause; empty where all are wanted.
    pub(super) fn clause(&self) -> String {
        if self.is_all() { String::new() } else { format!("WHERE {}", self.terms.join(" AND ")) }
    }

    fn and<const N: usize>(&mut self, term: &'static str, values: [Value; N]) {
        self.terms.push(term);
        self.values.extend(values);
    }

    fn of_these<'a>(&mut self, ids: impl IntoIterator<Item = &'a PodId>) {
        self.and(IDS, [texts(ids)]);
    }

    /// A pod being deleted is garbage with a time in a separate column.
    fn phases(&mut self, names: &[PhaseName]) {
        let (garbage, deleting) = (names.contains(&PhaseName::Garbage), names.contains(&PhaseName::Deleting));
        let stored: BTreeSet<&str> = names.iter().copied().map(stored_name).collect();
        if stored.is_empty() {
            return;
        }
        if deleting && !garbage && stored.len() == 1 {
            // Few, and in an index of their own.
            return self.and(BEING_DELETED, []);
        }
        self.and(PHASES, [json!(stored).to_string().into()]);
        match (garbage, deleting) {
            (true, false) => self.and("pod.deleting_at IS NULL", []),
            (false, true) => self.and("(pod.phase <> 'garbage' OR pod.deleting_at IS NOT NULL)", []),
            (true, true) | (false, false) => {}
        }
    }

    fn apps<'a>(&mut self, names: impl IntoIterator<Item = &'a AppName>) {
        self.all_of(APPS, names);
    }

    fn images<'a>(&mut self, ids: impl IntoIterator<Item = &'a ImageId>) {
        self.all_of(IMAGES, ids);
    }

    /// A term that counts how many of the wanted values exist, each once.
    fn all_of<T: ToString>(&mut self, term: &'static str, wanted: impl IntoIterator<Item = T>) {
        let wanted: BTreeSet<String> = wanted.into_iter().map(|one| one.to_string()).collect();
        if !wanted.is_empty() {
            let many = i64::try_from(wanted.len()).unwrap_or(i64::MAX);
            self.and(term, [json!(wanted).to_string().into(), many.into()]);
        }
    }
}

/// Ids as one value for `json_each`.
pub(super) fn texts<'a>(ids: impl IntoIterator<Item = &'a PodId>) -> Value {
    let ids: Vec<String> = ids.into_iter().map(ToString::to_string).collect();
    json!(ids).to_string().into()
}
