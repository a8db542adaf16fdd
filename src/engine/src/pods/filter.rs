//! Resolves the cgroups in a filter to pods.
//!
//! A pod's cgroup is `PARENT/UUID` while it runs; a pod that does not run has none. So the id is in the path, and no
//! cgroup is read.

use gantry_model::PodId;
use gantry_model::query::PodFilter;
use gantry_store::{CgroupCondition, PodWhere};

/// The filter for the store. `parent` is the parent of the pods' cgroups, below each hierarchy's root.
pub(crate) fn resolved<'a>(filter: &'a PodFilter, parent: &str) -> PodWhere<'a> {
    let mut cgroups = Vec::new();
    if !filter.cgroups.is_empty() {
        let running = filter.cgroups.iter().filter_map(|path| pod_at(path, parent, false)).collect();
        cgroups.push(CgroupCondition { running, not_running: filter.cgroups.iter().any(String::is_empty) });
    }
    if !filter.sub_cgroups.is_empty() {
        let running = filter.sub_cgroups.iter().filter_map(|path| pod_at(path, parent, true)).collect();
        cgroups.push(CgroupCondition { running, not_running: false });
    }
    PodWhere { filter, cgroups }
}

/// The pod whose cgroup has this path, or (with `below`) contains it. Names are compared whole; repeated and trailing
/// slashes do not matter. `.` and `..` are no names of cgroups.
fn pod_at(path: &str, parent: &str, below: bool) -> Option<PodId> {
    let mut names = path.strip_prefix('/')?.split('/').filter(|name| !name.is_empty());
    for above in parent.split('/').filter(|name| !name.is_empty()) {
        if names.next() != Some(above) {
            return None;
        }
    }
    let name = names.next()?;
    // The parser accepts capital letters too, which name other cgroups.
    let id: PodId = name.parse().ok().filter(|id: &PodId| id.to_string() == name)?;
    (below || names.next().is_none()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "6733c088-a507-4694-aabf-ec79c0a8ac9a";

    /// Path, whether it is the pod's cgroup, whether it is the pod's cgroup or lies in it.
    #[test]
    fn cgroup_paths_match_their_pod() {
        let rows = [
            ("/gantry/ID", true, true),
            ("/gantry/ID/", true, true),
            ("//gantry///ID//", true, true),
            ("/gantry/ID/app", false, true),
            ("/gantry/ID//app/x/", false, true),
            ("/gantry/IDx", false, false),
            ("/gantry/IDx/app", false, false),
            ("/gantry/ID0", false, false),
            ("/gantry", false, false),
            ("/gantry/", false, false),
            ("/gantryx/ID", false, false),
            ("/other/ID", false, false),
            ("/x/gantry/ID", false, false),
            ("gantry/ID", false, false),
            ("/gantry/./ID", false, false),
            ("/gantry/x/../ID", false, false),
            ("/gantry/6733C088-A507-4694-AABF-EC79C0A8AC9A", false, false),
            ("/ID", false, false),
            ("/", false, false),
            ("", false, false),
        ];
        for (path, is, below) in rows {
            let path = path.replace("ID", ID);
            let got = [false, true].map(|below| pod_at(&path, "/gantry", below).is_some());
            assert_eq!(got, [is, below], "{path:?}");
        }
        assert!(pod_at(&format!("/a/b.slice/{ID}"), "/a/b.slice", false).is_some());
        assert!(pod_at(&format!("/a/{ID}"), "/a/b.slice", true).is_none());
    }

    #[test]
    fn an_empty_path_selects_pods_not_running() {
        let filter = PodFilter {
            cgroups: vec![String::new(), format!("/gantry/{ID}")],
            sub_cgroups: vec![String::new()],
            ..PodFilter::default()
        };
        let want = [
            CgroupCondition { running: vec![ID.parse().unwrap()], not_running: true },
            CgroupCondition { running: vec![], not_running: false },
        ];
        assert_eq!(resolved(&filter, "/gantry").cgroups, want);
        assert!(resolved(&PodFilter::default(), "/gantry").cgroups.is_empty());
    }
}
