//! The filters of ListPods, end to end: one table per field, on real pods in every state that a filter can tell apart.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_proto::rkt::v1alpha::{KeyValue, PodFilter, PodState};
use gantry_tests::api::Api;
use gantry_tests::{Gantry, app, pod_id};
use serde_json::json;

/// A filter without any condition.
fn any() -> PodFilter {
    PodFilter::default()
}

fn texts(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<KeyValue> {
    pairs.iter().map(|&(key, value)| KeyValue { key: key.to_owned(), value: value.to_owned() }).collect()
}

fn states(states: &[PodState]) -> Vec<i32> {
    states.iter().map(|&state| state.into()).collect()
}

/// Three pods: `a` runs two apps in the host's network, `b` has exited, `c` was prepared only.
struct Three {
    a: String,
    b: String,
    c: String,
    image: String,
    other: String,
}

impl Three {
    /// The letters of these pods, in alphabetical order.
    fn letters(&self, ids: &[String]) -> String {
        assert!(ids.is_sorted(), "by id: {ids:?}");
        let all = [(&self.a, 'a'), (&self.b, 'b'), (&self.c, 'c')];
        assert!(ids.iter().all(|id| all.iter().any(|(one, _)| *one == id)), "{ids:?}");
        all.iter().filter(|(one, _)| ids.contains(one)).map(|(_, letter)| letter).collect()
    }

    #[track_caller]
    fn assert_matches(&self, api: &Api, rows: Vec<(&str, PodFilter, &str)>) {
        for (what, filter, want) in rows {
            assert_eq!(self.letters(&api.pod_ids(filter.clone())), want, "{what}: {filter:?}");
        }
    }
}

fn three(g: &Gantry, api: &Api) -> Three {
    let image = g.fixture();
    let other = gantry_fixtures::Image::builder().label("kind", "other");
    let other = other.layer(gantry_fixtures::Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755));
    let other = g.import("other", &other.entrypoint(&["/bin/app"]).build().unwrap());
    let app = |name: &str, image: &str, verb: &[&str]| json!({ "name": name, "image": image, "exec": "/bin/app", "args": verb });
    let pod = |file: &str, net: &str, apps: serde_json::Value, annotations: serde_json::Value| {
        g.write(file, &json!({ "version": 1, "net": net, "apps": apps, "annotations": annotations }).to_string())
    };
    let sleep = ["sleep", "forever"];
    let a = pod(
        "a",
        "host",
        json!([app("web", &image, &sleep), app("job", &other, &sleep)]),
        json!({ "k": "v", "tier": "1" }),
    );
    let b = pod("b", "none", json!([app("web", &image, &["true"])]), json!({ "k": "w", "tier": "1" }));
    let c = pod("c", "host", json!([app("batch", &other, &["true"])]), json!({}));
    let a = pod_id(&g.run(&["run", "-d", "--pod-manifest", &a]).ok());
    let b = pod_id(&g.run(&["run", "-d", "--pod-manifest", &b]).ok());
    let c = pod_id(&g.run(&["prepare", "--pod-manifest", &c]).ok());
    api.wait_state(&a, PodState::Running);
    api.wait_state(&b, PodState::Exited);
    Three { a, b, c, image, other }
}

#[test]
fn each_filter_field_selects_pods() {
    let g = Gantry::new();
    g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let it = three(&g, &api);
    let cgroup = api.inspect_pod(&it.a).cgroup;
    ids_and_states(&api, &it);
    apps_and_images(&api, &it);
    networks_and_annotations(&api, &it);
    cgroups(&api, &it, &cgroup);
    together(&api, &it, &cgroup);
    // The list shows all details of a selected pod.
    let picked = api.list_pods(vec![PodFilter { app_names: texts(&["web", "job"]), ..any() }], true);
    assert_eq!(picked, [api.inspect_pod(&it.a)]);
    assert_eq!(app(&g.status(&it.a), "job")["image_id"], it.other);
    drop(api);
    served.end();
}

#[track_caller]
fn ids_and_states(api: &Api, it: &Three) {
    let ids = |ids: &[&str]| PodFilter { ids: texts(ids), ..any() };
    it.assert_matches(
        api,
        vec![
            ("one", ids(&[&it.a]), "a"),
            ("any of them", ids(&[&it.c, &it.a]), "ac"),
            ("twice the same", ids(&[&it.b, &it.b]), "b"),
            ("one that is not there", ids(&[&it.b, "00000000-0000-4000-8000-000000000000"]), "b"),
            ("whole ids only", ids(&[&it.a[..35]]), ""),
            ("no id at all", ids(&["no id"]), ""),
            ("no id, and one", ids(&["no id", &it.c]), "c"),
            ("the empty one", ids(&[""]), ""),
        ],
    );
    let in_state = |list: &[PodState]| PodFilter { states: states(list), ..any() };
    it.assert_matches(
        api,
        vec![
            ("running", in_state(&[PodState::Running]), "a"),
            ("exited", in_state(&[PodState::Exited]), "b"),
            ("any of them", in_state(&[PodState::Prepared, PodState::Exited, PodState::Garbage]), "bc"),
            ("none such", in_state(&[PodState::Garbage, PodState::Deleting, PodState::Embryo]), ""),
            ("no pod is in no state", in_state(&[PodState::Undefined]), ""),
        ],
    );
}

#[track_caller]
fn apps_and_images(api: &Api, it: &Three) {
    let apps = |names: &[&str]| PodFilter { app_names: texts(names), ..any() };
    it.assert_matches(
        api,
        vec![
            ("one", apps(&["web"]), "ab"),
            ("all of them", apps(&["web", "job"]), "a"),
            ("all of them", apps(&["web", "batch"]), ""),
            ("not a part of the name", apps(&["we"]), ""),
            ("an invalid app name", apps(&["web", "NO NAME"]), ""),
        ],
    );
    let images = |ids: &[&str]| PodFilter { image_ids: texts(ids), ..any() };
    it.assert_matches(
        api,
        vec![
            ("one", images(&[&it.image]), "ab"),
            ("the other", images(&[&it.other]), "ac"),
            ("all of them", images(&[&it.image, &it.other]), "a"),
            ("whole ids only", images(&[&it.image[..20]]), ""),
            ("no id", images(&[&it.image, "?"]), ""),
        ],
    );
}

#[track_caller]
fn networks_and_annotations(api: &Api, it: &Three) {
    let nets = |names: &[&str]| PodFilter { network_names: texts(names), ..any() };
    it.assert_matches(
        api,
        vec![
            ("one that was never run is in none", nets(&["host"]), "a"),
            ("none is no network", nets(&["none"]), ""),
            ("all of them", nets(&["host", "default"]), ""),
        ],
    );
    let noted = |list: &[(&str, &str)]| PodFilter { annotations: pairs(list), ..any() };
    it.assert_matches(
        api,
        vec![
            ("one", noted(&[("tier", "1")]), "ab"),
            ("key and value", noted(&[("k", "w")]), "b"),
            ("all of them", noted(&[("tier", "1"), ("k", "v")]), "a"),
            ("all of them", noted(&[("tier", "1"), ("k", "x")]), ""),
            ("no value is not any value", noted(&[("k", "")]), ""),
            ("a key of no pod", noted(&[("K", "v")]), ""),
            ("no part of a path or a pattern", noted(&[("$.k", "v")]), ""),
            ("quotes", noted(&[("k\"'", "v")]), ""),
        ],
    );
}

#[track_caller]
fn cgroups(api: &Api, it: &Three, cgroup: &str) {
    let exact = |list: &[&str]| PodFilter { cgroups: texts(list), ..any() };
    it.assert_matches(
        api,
        vec![
            ("the pod's", exact(&[cgroup]), "a"),
            ("any of them", exact(&["/x", cgroup]), "a"),
            ("every pod that does not run", exact(&[""]), "bc"),
            ("both", exact(&["", cgroup]), "abc"),
            ("not a child cgroup", exact(&[&format!("{cgroup}/web")]), ""),
        ],
    );
    let below = |list: &[&str]| PodFilter { pod_sub_cgroups: texts(list), ..any() };
    it.assert_matches(
        api,
        vec![
            ("the pod's own", below(&[cgroup]), "a"),
            ("an app's", below(&[&format!("{cgroup}/web")]), "a"),
            ("the boundary", below(&[&format!("{cgroup}x/web")]), ""),
            ("the boundary", below(&[&cgroup[..cgroup.len() - 1]]), ""),
            ("any of them", below(&["/x", &format!("{cgroup}/job/deep")]), "a"),
            ("what lies above", below(&["/gantry"]), ""),
        ],
    );
}

/// Conditions of one filter are combined with "and", filters with "or".
#[track_caller]
fn together(api: &Api, it: &Three, cgroup: &str) {
    let running = || PodFilter { states: states(&[PodState::Running]), ..any() };
    it.assert_matches(
        api,
        vec![
            ("nothing asked for", any(), "abc"),
            ("both hold", PodFilter { app_names: texts(&["web"]), ..running() }, "a"),
            ("one does not", PodFilter { app_names: texts(&["batch"]), ..running() }, ""),
            (
                "all fields",
                PodFilter {
                    ids: texts(&[&it.a]),
                    states: states(&[PodState::Running]),
                    app_names: texts(&["job"]),
                    image_ids: texts(&[&it.other]),
                    network_names: texts(&["host"]),
                    annotations: pairs(&[("k", "v")]),
                    cgroups: texts(&[cgroup]),
                    pod_sub_cgroups: texts(&[cgroup]),
                },
                "a",
            ),
        ],
    );
    let list = |filters: Vec<PodFilter>| {
        let ids: Vec<String> = api.list_pods(filters, false).into_iter().map(|pod| pod.id).collect();
        it.letters(&ids)
    };
    let of = |id: &str| PodFilter { ids: texts(&[id]), ..any() };
    for (what, filters, want) in [
        ("no filter", vec![], "abc"),
        ("either", vec![running(), of(&it.c)], "ac"),
        ("the same pod once", vec![running(), of(&it.a)], "a"),
        ("one of nothing is of all", vec![of("no id"), any()], "abc"),
        ("neither", vec![of("no id"), of("nor this")], ""),
    ] {
        assert_eq!(list(filters), want, "{what}");
    }
}
