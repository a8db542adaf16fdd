//! Valid filters, and refusals by field name.

use super::*;
use crate::request::{MAX_TEXT, MAX_VALUES};

const POD: &str = "6733c088-a507-4694-aabf-ec79c0a8ac9a";

fn image_id() -> String {
    format!("sha256:{}", "a".repeat(64))
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

fn one_pod(filter: PodFilter) -> query::PodFilter {
    pods(vec![filter]).unwrap().remove(0)
}

#[test]
fn pod_filter_fields_are_converted() {
    let pair = KeyValue { key: "k".to_owned(), value: "v".to_owned() };
    let all = PodFilter {
        ids: texts(&[POD]),
        states: vec![PodState::Running.into(), PodState::Deleting.into(), PodState::Running.into()],
        app_names: texts(&["web"]),
        image_ids: vec![image_id()],
        network_names: texts(&["host"]),
        annotations: vec![pair],
        cgroups: texts(&["", "/gantry/x"]),
        pod_sub_cgroups: texts(&["/gantry/x/web"]),
    };
    let want = query::PodFilter {
        ids: vec![POD.parse().unwrap()],
        phases: vec![PhaseName::Running, PhaseName::Deleting],
        app_names: vec!["web".parse().unwrap()],
        images: vec![image_id().parse().unwrap()],
        networks: texts(&["host"]),
        annotations: vec![("k".to_owned(), "v".to_owned())],
        never: false,
        cgroups: texts(&["", "/gantry/x"]),
        sub_cgroups: texts(&["/gantry/x/web"]),
    };
    assert_eq!(one_pod(all), want);
    assert_eq!(one_pod(PodFilter::default()), query::PodFilter::default());
}

#[test]
fn impossible_values_match_no_pod() {
    let ids = |ids: &[&str]| PodFilter { ids: texts(ids), ..PodFilter::default() };
    let states = |states: &[i32]| PodFilter { states: states.to_vec(), ..PodFilter::default() };
    let apps = |names: &[&str]| PodFilter { app_names: texts(names), ..PodFilter::default() };
    let images = |ids: &[&str]| PodFilter { image_ids: texts(ids), ..PodFilter::default() };
    let (upper, image) = (POD.to_uppercase(), image_id());
    for (filter, never) in [
        (ids(&["x"]), true),
        (ids(&[""]), true),
        (ids(&["6733"]), true),
        (ids(&[&upper]), true),
        (ids(&["x", POD]), false),
        (states(&[0]), true),
        (states(&[0, 4]), false),
        (apps(&["Not A Name"]), true),
        (apps(&["web", "Not A Name"]), true),
        (apps(&["web"]), false),
        (images(&["sha512-short"]), true),
        (images(&[&image, "x"]), true),
        (images(&[&image]), false),
    ] {
        assert_eq!(one_pod(filter.clone()).never, never, "{filter:?}");
    }
}

#[test]
fn image_filter_fields_are_converted() {
    let pair = |key: &str| vec![KeyValue { key: key.to_owned(), value: "v".to_owned() }];
    let all = ImageFilter {
        ids: vec![image_id(), "x".to_owned()],
        prefixes: texts(&["a"]),
        base_names: texts(&["b"]),
        keywords: texts(&["c"]),
        labels: pair("l"),
        imported_after: 1,
        imported_before: 2,
        annotations: pair("n"),
        full_names: texts(&["d"]),
    };
    let want = query::ImageFilter {
        ids: vec![image_id().parse().unwrap()],
        never: false,
        prefixes: texts(&["a"]),
        base_names: texts(&["b"]),
        keywords: texts(&["c"]),
        full_names: texts(&["d"]),
        labels: vec![("l".to_owned(), "v".to_owned())],
        annotations: vec![("n".to_owned(), "v".to_owned())],
        imported_after: Some(1),
        imported_before: Some(2),
    };
    assert_eq!(images(vec![all]).unwrap(), [want]);
    for seconds in [0, -1, i64::MIN] {
        let filter = ImageFilter { imported_after: seconds, imported_before: seconds, ..ImageFilter::default() };
        assert_eq!(images(vec![filter]).unwrap(), [query::ImageFilter::default()]);
    }
    let never = ImageFilter { ids: texts(&["sha512-x"]), ..ImageFilter::default() };
    assert!(images(vec![never]).unwrap()[0].never);
}

#[test]
fn errors_name_the_field() {
    let long = "x".repeat(MAX_TEXT + 1);
    let many = |count: usize| vec![String::new(); count];
    for (filters, want) in [
        (vec![PodFilter { states: vec![99], ..PodFilter::default() }], "filters[0].states: there is no PodState 99"),
        (vec![PodFilter { states: vec![-1], ..PodFilter::default() }], "filters[0].states: there is no PodState -1"),
        (vec![PodFilter::default(); MAX_FILTERS + 1], "filters: a request may have 256, this one has 257"),
        (
            vec![PodFilter::default(), PodFilter { ids: vec![long.clone()], ..PodFilter::default() }],
            "filters[1].ids: a text may have 4096 bytes, this one has 4097",
        ),
        (
            vec![PodFilter { cgroups: many(MAX_VALUES), ids: many(1), ..PodFilter::default() }],
            "filters[0].cgroups: a request may have 10000 values in all",
        ),
        (
            vec![PodFilter {
                annotations: vec![KeyValue { key: "k".to_owned(), value: long.clone() }],
                ..PodFilter::default()
            }],
            "filters[0].annotations: a text may have 4096 bytes, this one has 4097",
        ),
    ] {
        let status = pods(filters).unwrap_err();
        assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, want));
    }
    assert!(pods(vec![PodFilter { cgroups: many(MAX_VALUES), ..PodFilter::default() }]).is_ok());
    assert!(images(vec![ImageFilter { keywords: vec![long], ..ImageFilter::default() }]).is_err());
    assert!(images(vec![ImageFilter::default(); MAX_FILTERS + 1]).is_err());
}
