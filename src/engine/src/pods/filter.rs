//! Resolves the cgroups in a filter to pods.
//!
//! A pod's cgroup is `PARENT/UUID` while it runs; a pod that does not run has none. So the id is in the path, its row
//! has the whole path, and no cgroup is read.

use gantry_model::PodId;
use gantry_model::query::PodFilter;
use gantry_store::{CgroupCondition, PodWhere};

/// The filter for the store.
pub(crate) fn resolved(filter: &PodFilter) -> PodWhere<'_> {
    let mut cgroups = Vec::new();
    if !filter.cgroups.is_empty() {
        let running = filter.cgroups.iter().flat_map(|path| pods_at(path, false)).collect();
        cgroups.push(CgroupCondition { running, not_running: filter.cgroups.iter().any(String::is_empty) });
    }
    if !filter.sub_cgroups.is_empty() {
        let running = filter.sub_cgroups.iter().flat_map(|path| pods_at(path, true)).collect();
        cgroups.push(CgroupCondition { running, not_running: false });
    }
    PodWhere { filter, cgroups }
}

/// The pods whose cgroup may have this path, or (with `below`) contain it, each with the path that its row must have.
/// Names are compared whole; repeated and trailing slashes do not matter. `.` and `..` are no names of cgroups.
fn pods_at(path: &str, below: bool) -> Vec<(PodId, String)> {
    let mut pods = Vec::new();
    let Some(path) = path.strip_prefix('/') else { return pods };
    let mut above = String::new();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        if !below {
            pods.clear();
        }
        above = format!("{above}/{name}");
        // The parser accepts capital letters too, which name other cgroups.
        if let Some(id) = name.parse().ok().filter(|id: &PodId| id.to_string() == name) {
            pods.push((id, above.clone()));
        }
    }
    pods
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
            let cgroup = (ID.parse().unwrap(), format!("/gantry/{ID}"));
            let got = [false, true].map(|below| pods_at(&path, below).contains(&cgroup));
            assert_eq!(got, [is, below], "{path:?}");
        }
        let nested = pods_at(&format!("/{ID}//{ID}/x"), true);
        assert_eq!(nested.iter().map(|(_, path)| path.len()).collect::<Vec<_>>(), [37, 74]);
    }

    #[test]
    fn an_empty_path_selects_pods_not_running() {
        let filter = PodFilter {
            cgroups: vec![String::new(), format!("/gantry/{ID}")],
            sub_cgroups: vec![String::new()],
            ..PodFilter::default()
        };
        let want = [
            CgroupCondition { running: vec![(ID.parse().unwrap(), format!("/gantry/{ID}"))], not_running: true },
            CgroupCondition { running: vec![], not_running: false },
        ];
        assert_eq!(resolved(&filter).cgroups, want);
        assert!(resolved(&PodFilter::default()).cgroups.is_empty());
    }
}
