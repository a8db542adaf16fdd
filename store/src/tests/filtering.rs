//! The pods and images that a filter matches, field by field.

use std::collections::BTreeMap;

use gantry_model::query::{ImageFilter, PodFilter, PodQuery};
use gantry_model::{ImageId, PhaseName};
use rusqlite::params_from_iter;

use super::*;
use crate::pods::{condition::Condition, list};
use crate::{CgroupCondition, PodWhere, StoreError};

/// A text that JSON must escape.
const ODD: &str = "a\"b\\c\n\u{1}é😀'%_$.k[0]";

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A pod that is walked along these edges, and gets these networks when it is started.
fn pod(store: &Store, new: NewPod, edges: &[Edge], names: &[&str]) {
    let row = store.insert_pod(&new).unwrap();
    let networks: Vec<PodNetwork> =
        names.iter().map(|&name| PodNetwork { name: name.into(), ..full_network() }).collect();
    let networks = Networks::from_list(&networks).unwrap();
    let change = |step: &Edge| Change { networks: networks.clone(), ..edge(step.clone()) };
    edges.iter().fold(row, |row, step| moved(store, row.id, row.generation, change(step)));
}

/// Ten pods, one in each state that matters, and the images of their apps.
fn ten_pods() -> (Home, ImageId, ImageId) {
    let home = Home::new();
    let store = &home.store;
    let (one, two) = (image(store, "one", &[]), image(store, "two", &[]));
    let t = Timestamp(1);
    let to_prepared = vec![Edge::Prepare, Edge::Prepared(t)];
    let to_running = [to_prepared.clone(), vec![Edge::Started { at: t, supervisor: supervisor() }]].concat();
    let to_exited = [to_running.clone(), vec![Edge::Ended { at: t, end: end() }]].concat();
    let to_garbage = [to_exited.clone(), vec![Edge::Marked(t)]].concat();
    let walks = [
        vec![],
        vec![Edge::Prepare],
        vec![Edge::Aborted(t)],
        to_prepared.clone(),
        to_running.clone(),
        to_exited,
        to_garbage.clone(),
        [to_prepared, vec![Edge::Discarded(t)]].concat(),
        [to_garbage, vec![Edge::Deleting(t)]].concat(),
        to_running,
    ];
    for (n, walk) in (1..).zip(walks) {
        let mut new = new_pod(pod_id(n), &one, if n == 5 { &["web", "db"] } else { &["web"] });
        let names: &[&str] = match n {
            4 | 5 | 7 | 10 => &["default", "back"],
            9 => &["default"],
            _ => &[],
        };
        new.net = match names {
            [] if n == 8 => NetMode::None,
            [] => NetMode::Host,
            names => names.join(",").parse().unwrap(),
        };
        new.user_annotations = match n {
            4 => BTreeMap::new(),
            5 => pairs(&[("tier", "front"), ("zone", "a"), (ODD, ODD)]).into_iter().collect(),
            _ => pairs(&[("tier", "back"), ("n", "1")]).into_iter().collect(),
        };
        if n == 5 {
            new.apps[1].image = Some(two.clone());
        }
        pod(store, new, &walk, names);
    }
    (home, one, two)
}

/// The numbers of the pods for which some filter holds.
fn found(store: &Store, filters: &[PodFilter]) -> Vec<u128> {
    let filters: Vec<PodWhere<'_>> = filters.iter().map(|filter| PodWhere { filter, cgroups: vec![] }).collect();
    numbers(store, &filters)
}

fn numbers(store: &Store, filters: &[PodWhere<'_>]) -> Vec<u128> {
    let rows = store.pods_where(filters).unwrap();
    assert!(rows.is_sorted_by_key(|row| row.id));
    rows.iter().map(|row| number(row)).collect()
}

fn number(row: &PodRow) -> u128 {
    assert_eq!(row.apps.len(), if row.id == pod_id(5) { 2 } else { 1 }, "with its apps");
    (1..=10).find(|n| pod_id(*n) == row.id).unwrap()
}

#[test]
fn pods_are_filtered_by_each_field() {
    let (home, one, two) = ten_pods();
    let f = PodFilter::default;
    let states = |phases: &[PhaseName]| PodFilter { phases: phases.to_vec(), ..f() };
    let apps = |names: &[&str]| PodFilter { app_names: names.iter().map(|n| n.parse().unwrap()).collect(), ..f() };
    let images = |ids: &[&ImageId]| PodFilter { images: ids.iter().map(|&id| id.clone()).collect(), ..f() };
    let nets = |names: &[&str]| PodFilter { networks: names.iter().map(|n| (*n).to_owned()).collect(), ..f() };
    let notes = |all: &[(&str, &str)]| PodFilter { annotations: pairs(all), ..f() };
    let ids = |all: &[u128]| PodFilter { ids: all.iter().map(|n| pod_id(*n)).collect(), ..f() };
    let all: Vec<u128> = (1..=10).collect();
    let but_4_and_5 = vec![1, 2, 3, 6, 7, 8, 9, 10];
    let rows: Vec<(PodFilter, Vec<u128>)> = vec![
        (f(), all.clone()),
        (PodFilter { never: true, ..f() }, vec![]),
        (PodFilter { never: true, ..ids(&[1]) }, vec![]),
        (ids(&[3]), vec![3]),
        (ids(&[9, 3, 3, 77]), vec![3, 9]),
        (ids(&[77]), vec![]),
        (states(&[PhaseName::Embryo]), vec![1]),
        (states(&[PhaseName::Preparing]), vec![2]),
        (states(&[PhaseName::AbortedPrepare]), vec![3]),
        (states(&[PhaseName::Prepared]), vec![4]),
        (states(&[PhaseName::Running]), vec![5, 10]),
        (states(&[PhaseName::Exited]), vec![6]),
        (states(&[PhaseName::Garbage]), vec![7, 8]),
        (states(&[PhaseName::Deleting]), vec![9]),
        (states(&[PhaseName::Deleting, PhaseName::Deleting]), vec![9]),
        (states(&[PhaseName::Deleting, PhaseName::Garbage]), vec![7, 8, 9]),
        (states(&[PhaseName::Deleting, PhaseName::Exited]), vec![6, 9]),
        (states(&[PhaseName::Garbage, PhaseName::Exited]), vec![6, 7, 8]),
        (states(&[PhaseName::Running, PhaseName::Embryo]), vec![1, 5, 10]),
        (states(&PhaseName::ALL), all.clone()),
        (apps(&["web"]), all.clone()),
        (apps(&["db"]), vec![5]),
        (apps(&["web", "db"]), vec![5]),
        (apps(&["db", "db"]), vec![5]),
        (apps(&["db", "none"]), vec![]),
        (images(&[&one]), all.clone()),
        (images(&[&two]), vec![5]),
        (images(&[&two, &one, &two]), vec![5]),
        (images(&[&one, &digest("absent")]), vec![]),
        (notes(&[("tier", "back")]), but_4_and_5.clone()),
        (notes(&[("tier", "front"), ("zone", "a")]), vec![5]),
        (notes(&[("tier", "back"), ("tier", "back")]), but_4_and_5),
        (notes(&[("tier", "front"), ("zone", "b")]), vec![]),
        (notes(&[("tier", "front"), ("tier", "back")]), vec![]),
        (notes(&[("back", "tier")]), vec![]),
        (notes(&[("tier", "")]), vec![]),
        (notes(&[("none", "")]), vec![]),
        (notes(&[("n", "1")]).clone(), vec![1, 2, 3, 6, 7, 8, 9, 10]),
        (notes(&[("n", "1.0")]), vec![]),
        (notes(&[(ODD, ODD)]), vec![5]),
        (notes(&[(ODD, "x")]), vec![]),
        (notes(&[("$.tier", "front")]), vec![]),
        // Together: none of them holds, some, all.
        (PodFilter { app_names: apps(&["no"]).app_names, networks: nets(&["no"]).networks, ..ids(&[77]) }, vec![]),
        (PodFilter { networks: nets(&["default"]).networks, ..states(&[PhaseName::Prepared]) }, vec![]),
        (PodFilter { networks: nets(&["back"]).networks, ..states(&[PhaseName::Running]) }, vec![5, 10]),
        (
            PodFilter {
                ids: ids(&[5, 6]).ids,
                app_names: apps(&["db"]).app_names,
                images: images(&[&two]).images,
                networks: nets(&["back"]).networks,
                annotations: pairs(&[("zone", "a")]),
                ..states(&[PhaseName::Running])
            },
            vec![5],
        ),
    ];
    for (filter, want) in &rows {
        assert_eq!(found(&home.store, std::slice::from_ref(filter)), *want, "{filter:?}");
        // Twice the same, or together with one that never holds, is the same; with one for all, it is all.
        let never = PodFilter { never: true, ..f() };
        assert_eq!(found(&home.store, &[never, filter.clone(), filter.clone()]), *want, "{filter:?}");
        assert_eq!(found(&home.store, &[filter.clone(), f()]), all, "{filter:?}");
    }
}

/// Pods that were started: running, exited, garbage that ran. Names are their networks' names, or `host`.
#[test]
fn pods_are_filtered_by_network() {
    let (home, ..) = ten_pods();
    let rows: [(&[&str], &[u128]); 10] = [
        (&["host"], &[6]),
        (&["host", "host"], &[6]),
        (&["default"], &[5, 7, 9, 10]),
        (&["back"], &[5, 7, 10]),
        (&["back", "default", "back"], &[5, 7, 10]),
        (&["default", "host"], &[]),
        (&["default,back"], &[]),
        (&["none"], &[]),
        (&["eth0"], &[]),
        (&[""], &[]),
    ];
    for (names, want) in rows {
        let networks = names.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(found(&home.store, &[PodFilter { networks, ..PodFilter::default() }]), want, "{names:?}");
    }
}

#[test]
fn a_pod_may_match_any_filter() {
    let (home, ..) = ten_pods();
    let state = |phase| PodFilter { phases: vec![phase], ..PodFilter::default() };
    let app = |name: &str| PodFilter { app_names: vec![name.parse().unwrap()], ..PodFilter::default() };
    let rows = [
        (vec![], (1..=10).collect()),
        (vec![app("none"), PodFilter { networks: vec!["none".into()], ..PodFilter::default() }], vec![]),
        (vec![app("db"), app("none")], vec![5]),
        (vec![app("none"), state(PhaseName::Exited)], vec![6]),
        (vec![app("db"), state(PhaseName::Running), state(PhaseName::Exited)], vec![5, 6, 10]),
    ];
    for (filters, want) in rows {
        assert_eq!(found(&home.store, &filters), want, "{filters:?}");
    }
}

#[test]
fn pods_are_filtered_by_cgroup() {
    let (home, ..) = ten_pods();
    let all = PodFilter::default();
    let at = |running: &[u128], not_running| CgroupCondition {
        running: running.iter().map(|n| (pod_id(*n), format!("/gantry/{}", pod_id(*n)))).collect(),
        not_running,
    };
    let rows = [
        (vec![at(&[5], false)], vec![5]),
        (vec![at(&[5, 10, 6, 77], false)], vec![5, 10]),
        (vec![at(&[], false)], vec![]),
        (vec![at(&[], true)], vec![1, 2, 3, 4, 6, 7, 8, 9]),
        (vec![at(&[10], true)], vec![1, 2, 3, 4, 6, 7, 8, 9, 10]),
        (vec![at(&[5, 10], false), at(&[10], false)], vec![10]),
        (vec![at(&[5], false), at(&[10], false)], vec![]),
        (vec![at(&[5], true), at(&[5], false)], vec![5]),
    ];
    for (cgroups, want) in rows {
        let got = numbers(&home.store, &[PodWhere { filter: &all, cgroups: cgroups.clone() }]);
        assert_eq!(got, want, "{cgroups:?}");
    }
}

/// As many filters and values as a caller may send, and then some.
#[test]
fn many_filters_and_values_are_accepted() {
    let (home, one, _) = ten_pods();
    let many = |n: u128| PodFilter {
        ids: (1..=40).map(|i| pod_id(n * 100 + i)).collect(),
        phases: PhaseName::ALL.to_vec(),
        app_names: vec!["web".parse().unwrap()],
        images: vec![one.clone()],
        networks: vec!["default".into()],
        annotations: pairs(&[("tier", "back")]),
        ..PodFilter::default()
    };
    assert_eq!(found(&home.store, &(0..256).map(many).collect::<Vec<_>>()), [7, 9, 10]);
    let ids = PodFilter { ids: (1..=10_000).map(pod_id).collect(), ..PodFilter::default() };
    assert_eq!(found(&home.store, &[ids]).len(), 10);
    let pair = |n: u32| (format!("k{n}"), "v".to_owned());
    let notes = PodFilter { annotations: (0..10_000).map(pair).collect(), ..PodFilter::default() };
    assert_eq!(found(&home.store, &[notes]), []);
    let app = |n: u32| format!("app-{n}").parse().unwrap();
    let apps = PodFilter { app_names: (0..10_000).map(app).collect(), ..PodFilter::default() };
    assert_eq!(found(&home.store, &[apps]), []);
    assert_eq!(found(&home.store, &vec![PodFilter { never: true, ..PodFilter::default() }; 2000]), []);
}

/// SQLite's plan for a filter: it reads no row of a pod that an index did not point to.
#[test]
fn filters_use_indexes() {
    let (home, one, _) = ten_pods();
    let f = PodFilter::default;
    let id = || vec![pod_id(5)];
    let names = || vec!["web".parse().unwrap(), "db".parse().unwrap()];
    let rows: Vec<(&str, PodFilter, Vec<&str>)> = vec![
        ("ids", PodFilter { ids: id(), ..f() }, vec!["SEARCH pod USING PRIMARY KEY (id=?)"]),
        (
            "a state",
            PodFilter { phases: vec![PhaseName::Running], ..f() },
            vec!["SEARCH pod USING INDEX pod_phase (phase=?)"],
        ),
        (
            "garbage",
            PodFilter { phases: vec![PhaseName::Garbage], ..f() },
            vec!["SEARCH pod USING INDEX pod_phase (phase=?)"],
        ),
        (
            "deleting",
            PodFilter { phases: vec![PhaseName::Deleting], ..f() },
            vec!["SEARCH pod USING PRIMARY KEY (id=?)", "d USING COVERING INDEX pod_deleting"],
        ),
        (
            "both",
            PodFilter { phases: vec![PhaseName::Deleting, PhaseName::Running], ..f() },
            vec!["SEARCH pod USING INDEX pod_phase (phase=?)"],
        ),
        (
            "apps",
            PodFilter { app_names: names(), ..f() },
            vec!["SEARCH pod USING PRIMARY KEY (id=?)", "SEARCH a USING COVERING INDEX app_name (name=?)"],
        ),
        (
            "images",
            PodFilter { images: vec![one], ..f() },
            vec!["SEARCH pod USING PRIMARY KEY (id=?)", "SEARCH a USING COVERING INDEX app_image (image=?)"],
        ),
        (
            "ids and a state",
            PodFilter { ids: id(), phases: vec![PhaseName::Running], ..f() },
            vec!["SEARCH pod USING PRIMARY KEY (id=?)"],
        ),
    ];
    for (what, filter, wanted) in rows {
        let condition = Condition::of_filter(&PodWhere { filter: &filter, cgroups: vec![] });
        let text = list::text(&condition);
        let plan = plan(&home.store, &text, params_from_iter(&condition.values));
        let scans = plan.iter().any(|line| ["SCAN pod", "SCAN a", "SCAN d"].contains(&line.as_str()));
        assert!(!scans, "{what}: {plan:#?}");
        for want in wanted {
            assert!(plan.iter().any(|line| line.contains(want)), "{what}: {want} is not in {plan:#?}");
        }
    }
    let since = plan(&home.store, "SELECT min(+seq) FROM event WHERE at >= 5", []);
    assert!(since.iter().any(|line| line.contains("event_at")), "{since:?}");
}

fn plan(store: &Store, text: &str, values: impl rusqlite::Params) -> Vec<String> {
    let mut explained = store.conn.prepare(&format!("EXPLAIN QUERY PLAN {text}")).unwrap();
    explained.query_map(values, |row| row.get(3)).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn filter_and_query_forms_agree() {
    let (home, one, two) = ten_pods();
    let ids = |query: &PodQuery| home.store.pods(query).unwrap().iter().map(|row| number(row)).collect::<Vec<_>>();
    for phase in PhaseName::ALL {
        let filter = PodFilter { phases: vec![phase], ..PodFilter::default() };
        assert_eq!(ids(&PodQuery::in_phases([phase])), found(&home.store, &[filter]), "{phase}");
    }
    let query = PodQuery { image: Some(two), app: Some("db".parse().unwrap()), ..PodQuery::default() };
    assert_eq!(ids(&query), [5]);
    assert_eq!(ids(&PodQuery { image: Some(one), app: Some("db".parse().unwrap()), ..PodQuery::default() }), [5]);
}

/// Rows select the candidate images: by ids and times. Times are to the second, strictly.
#[test]
fn images_are_filtered_by_id_and_time() {
    const SECOND: i64 = 1_000_000_000;
    let home = Home::new();
    let store = &home.store;
    let images: Vec<ImageId> = ["a", "b", "c"].into_iter().map(|name| image(store, name, &[])).collect();
    for (n, id) in (0..).zip(&images) {
        let imported = (10 + n) * SECOND + n;
        let changed = store.conn.execute("UPDATE image SET imported = ?2 WHERE id = ?1", (id.to_string(), imported));
        assert_eq!(changed.unwrap(), 1);
    }
    let f = ImageFilter::default;
    let after = |second| ImageFilter { imported_after: Some(second), ..f() };
    let before = |second| ImageFilter { imported_before: Some(second), ..f() };
    let ids = |all: &[&ImageId]| ImageFilter { ids: all.iter().map(|&id| id.clone()).collect(), ..f() };
    let rows = [
        (f(), vec![0, 1, 2]),
        (ImageFilter { never: true, ..f() }, vec![]),
        (ids(&[&images[1]]), vec![1]),
        (ids(&[&images[1], &images[0], &digest("no")]), vec![0, 1]),
        (ids(&[&digest("no")]), vec![]),
        (after(9), vec![0, 1, 2]),
        (after(10), vec![1, 2]),
        (after(11), vec![2]),
        (after(12), vec![]),
        (after(i64::MAX), vec![]),
        (after(i64::MIN), vec![0, 1, 2]),
        (before(10), vec![]),
        (before(11), vec![0]),
        (before(12), vec![0, 1]),
        (before(i64::MAX), vec![0, 1, 2]),
        (before(i64::MIN), vec![]),
        (ImageFilter { imported_before: Some(12), ..after(10) }, vec![1]),
        (ImageFilter { imported_before: Some(12), ids: vec![images[2].clone()], ..after(10) }, vec![]),
        // The caller compares the values that rows lack.
        (ImageFilter { labels: pairs(&[("a", "b")]), ..f() }, vec![0, 1, 2]),
    ];
    let one = |filter: &ImageFilter, want: &[usize], store: &Store| -> Result<(), StoreError> {
        let never = ImageFilter { never: true, ..ImageFilter::default() };
        let found = store.images_where(&[never, filter.clone()])?;
        assert!(found.is_sorted_by_key(|(row, _)| row.id.to_string()));
        assert!(found.iter().all(|(row, places)| *places == [1] && row.names.len() == 1), "{filter:?}");
        let mut found: Vec<usize> =
            found.iter().map(|(row, _)| images.iter().position(|id| *id == row.id).unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, want, "{filter:?}");
        Ok(())
    };
    for (filter, want) in rows {
        one(&filter, &want, store).unwrap();
    }
    assert_eq!(store.images_where(&[]).unwrap().len(), 3);
    let several = store.images_where(&[ids(&[&images[0]]), ids(&[&images[0], &images[1]])]).unwrap();
    let mut places: Vec<Vec<usize>> = several.into_iter().map(|(_, places)| places).collect();
    places.sort();
    assert_eq!(places, [vec![0, 1], vec![1]]);
}
