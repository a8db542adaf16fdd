//! Statistics and metrics of the Kubernetes CRI, by a client that shares only the .proto files.

use std::collections::BTreeMap;

use gantry_tests::cri::{Sandbox, call, failure, serve, serve_with_network};
use gantry_tests::{Gantry, Space, wait_for};
use serde_json::{Value, json};

/// The names that critest expects with a value on this kind of host (cri-tools, pkg/validate/pod.go).
const REQUIRED: [&str; 40] = [
    "container_cpu_cfs_periods_total",
    "container_cpu_cfs_throttled_periods_total",
    "container_cpu_cfs_throttled_seconds_total",
    "container_cpu_system_seconds_total",
    "container_cpu_usage_seconds_total",
    "container_cpu_user_seconds_total",
    "container_file_descriptors",
    "container_fs_inodes_free",
    "container_fs_inodes_total",
    "container_fs_limit_bytes",
    "container_fs_usage_bytes",
    "container_last_seen",
    "container_memory_cache",
    "container_memory_failcnt",
    "container_memory_failures_total",
    "container_memory_kernel_usage",
    "container_memory_mapped_file",
    "container_memory_max_usage_bytes",
    "container_memory_rss",
    "container_memory_swap",
    "container_memory_usage_bytes",
    "container_memory_working_set_bytes",
    "container_network_receive_bytes_total",
    "container_network_receive_errors_total",
    "container_network_receive_packets_dropped_total",
    "container_network_receive_packets_total",
    "container_network_transmit_bytes_total",
    "container_network_transmit_errors_total",
    "container_network_transmit_packets_dropped_total",
    "container_network_transmit_packets_total",
    "container_oom_events_total",
    "container_processes",
    "container_sockets",
    "container_spec_cpu_period",
    "container_spec_cpu_shares",
    "container_spec_memory_limit_bytes",
    "container_spec_memory_swap_limit_bytes",
    "container_start_time_seconds",
    "container_threads",
    "container_threads_max",
];

/// A number of a message: 64-bit numbers are strings, and wrapped ones objects.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Object(wrapped) => Some(wrapped.get("value").map_or(0, |inner| number(inner).unwrap_or(0))),
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    }
}

#[track_caller]
fn list(address: &str, method: &str, filter: &Value) -> Vec<Value> {
    call(address, method, &json!({ "filter": filter }))["stats"].as_array().cloned().unwrap_or_default()
}

/// The ids of statistics.
#[track_caller]
fn ids(address: &str, method: &str, filter: &Value) -> Vec<String> {
    let id = |stats: &Value| stats["attributes"]["id"].as_str().map(str::to_owned);
    let mut ids: Vec<String> = list(address, method, filter).iter().filter_map(id).collect();
    ids.sort();
    ids
}

#[test]
fn running_containers_have_statistics() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let labelled = json!({ "labels": { "tier": "front" },
        "linux": { "resources": { "memory_limit_in_bytes": "67108864" } } });
    let one = sandbox.create_with(&["burn", "600"], &labelled);
    sandbox.start(&one);
    let two = sandbox.launch(&["sleep", "forever"]);
    let created = sandbox.create(&["sleep", "forever"]);
    let stats = wait_for("the use of the CPU", || {
        let stats = call(&address, "ContainerStats", &json!({ "container_id": one }))["stats"].clone();
        number(&stats["cpu"]["usage_nano_cores"]).filter(|rate| *rate > 0).map(|_| stats)
    });
    assert_eq!(stats["attributes"]["labels"], json!({ "tier": "front" }));
    assert_eq!(stats["attributes"]["metadata"]["name"], "container-0");
    let values = [
        &stats["cpu"]["timestamp"],
        &stats["cpu"]["usage_core_nano_seconds"],
        &stats["memory"]["timestamp"],
        &stats["memory"]["working_set_bytes"],
        &stats["memory"]["usage_bytes"],
        &stats["memory"]["rss_bytes"],
        &stats["memory"]["page_faults"],
        &stats["memory"]["available_bytes"],
        &stats["writable_layer"]["timestamp"],
    ];
    assert!(values.iter().all(|value| number(value).is_some_and(|value| value > 0)), "{stats}");
    assert!(number(&stats["memory"]["available_bytes"]).is_some_and(|bytes| bytes < 64 << 20), "{stats}");
    assert!(stats["memory"]["major_page_faults"].is_object() && stats["writable_layer"]["used_bytes"].is_object());
    let mountpoint = g.dir().join("pods").display().to_string();
    assert_eq!(stats["writable_layer"]["fs_id"]["mountpoint"], mountpoint);
    let mut both = [one.clone(), two.clone()];
    both.sort();
    for (filter, expected) in [
        (json!({}), &both[..]),
        (json!({ "id": one }), std::slice::from_ref(&one)),
        (json!({ "id": &one[..13] }), std::slice::from_ref(&one)),
        (json!({ "id": created }), &[]),
        (json!({ "pod_sandbox_id": sandbox.id }), &both[..]),
        (json!({ "pod_sandbox_id": "0000" }), &[]),
        (json!({ "label_selector": { "tier": "front" } }), std::slice::from_ref(&one)),
        (json!({ "label_selector": { "tier": "back" } }), &[]),
    ] {
        assert_eq!(ids(&address, "ListContainerStats", &filter), expected, "{filter}");
    }
    let streamed = call(&address, "StreamContainerStats", &json!({ "filter": { "id": two } }));
    assert_eq!(streamed["container_stats"][0]["attributes"]["id"], two);
    let failed = |id: &str| failure(&address, "ContainerStats", &json!({ "container_id": id })).0;
    assert_eq!((failed(&created).as_str(), failed("ab").as_str()), ("FAILED_PRECONDITION", "NOT_FOUND"));
    call(&address, "StopContainer", &json!({ "container_id": two, "timeout": 0 }));
    assert_eq!(ids(&address, "ListContainerStats", &json!({})), [one]);
    sandbox.remove();
    assert_eq!(ids(&address, "ListContainerStats", &json!({})), [""; 0]);
    served.end();
}

#[test]
fn sandboxes_that_are_ready_have_statistics() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    let (served, address) = serve_with_network(&g, "default");
    let sandbox = Sandbox::run(&g, &address, "web");
    let container = sandbox.launch(&["sleep", "forever"]);
    let other = Sandbox::run(&g, &address, "other");
    let request = |id: &str| json!({ "pod_sandbox_id": id });
    let stats = call(&address, "PodSandboxStats", &request(&sandbox.id))["stats"].clone();
    assert_eq!(
        (&stats["attributes"]["id"], &stats["attributes"]["labels"]["app"]),
        (&json!(sandbox.id), &json!("web"))
    );
    let linux = &stats["linux"];
    for path in ["/cpu/usage_core_nano_seconds", "/memory/working_set_bytes", "/process/process_count"] {
        assert!(linux.pointer(path).and_then(number).is_some_and(|value| value > 0), "{path}: {stats}");
    }
    assert_eq!(linux["network"]["default_interface"]["name"], "eth0", "{stats}");
    assert!(linux["network"]["default_interface"]["rx_bytes"].is_object(), "{stats}");
    assert_eq!(linux["containers"][0]["attributes"]["id"], container, "{stats}");
    let mut both = [sandbox.id.clone(), other.id.clone()];
    both.sort();
    for (filter, expected) in [
        (json!({}), &both[..]),
        (json!({ "id": sandbox.id }), std::slice::from_ref(&sandbox.id)),
        (json!({ "label_selector": { "app": "other" } }), std::slice::from_ref(&other.id)),
        (json!({ "id": sandbox.id, "label_selector": { "app": "other" } }), &[]),
    ] {
        assert_eq!(ids(&address, "ListPodSandboxStats", &filter), expected, "{filter}");
    }
    let streamed = call(&address, "StreamPodSandboxStats", &json!({ "filter": { "id": other.id } }));
    assert_eq!(streamed["pod_sandbox_stats"][0]["attributes"]["id"], other.id);
    other.stop();
    assert_eq!(failure(&address, "PodSandboxStats", &request(&other.id)).0, "FAILED_PRECONDITION");
    assert_eq!(ids(&address, "ListPodSandboxStats", &json!({})), [sandbox.id.as_str()]);
    other.remove();
    assert_eq!(failure(&address, "PodSandboxStats", &request(&other.id)).0, "NOT_FOUND");
    sandbox.remove();
    served.end();
}

#[test]
fn metrics_have_cadvisors_names() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    let (served, address) = serve_with_network(&g, "default");
    let listed = call(&address, "ListMetricDescriptors", &json!({}))["descriptors"].clone();
    let mut keys: BTreeMap<String, usize> = BTreeMap::new();
    for descriptor in listed.as_array().into_iter().flatten() {
        assert!(descriptor["help"].as_str().is_some_and(|help| !help.is_empty()), "{descriptor}");
        let count = descriptor["label_keys"].as_array().map_or(0, Vec::len);
        assert!(count > 0, "{descriptor}");
        keys.insert(descriptor["name"].as_str().unwrap_or_default().to_owned(), count);
    }
    let sandbox = Sandbox::run(&g, &address, "web");
    let limits = json!({ "linux": { "resources": { "cpu_period": 100_000, "cpu_quota": 20_000, "cpu_shares": 1024,
        "memory_limit_in_bytes": "67108864", "memory_swap_limit_in_bytes": "67108864" } } });
    let container = sandbox.create_with(&["sleep", "forever"], &limits);
    sandbox.start(&container);
    let metrics = call(&address, "ListPodSandboxMetrics", &json!({}))["pod_metrics"][0].clone();
    assert_eq!(metrics["pod_sandbox_id"], sandbox.id);
    assert_eq!(metrics["container_metrics"][0]["container_id"], container);
    let of_pod = metrics["metrics"].as_array().cloned().unwrap_or_default();
    let of_container = metrics["container_metrics"][0]["metrics"].as_array().cloned().unwrap_or_default();
    let mut found: BTreeMap<&str, &Value> = BTreeMap::new();
    for metric in of_pod.iter().chain(&of_container) {
        let name = metric["name"].as_str().unwrap_or_default();
        let count = metric["label_values"].as_array().map_or(0, Vec::len);
        assert_eq!(keys.get(name), Some(&count), "{metric}");
        assert!(metric["value"].is_object() && metric["timestamp"].is_string(), "{metric}");
        found.insert(name, metric);
    }
    let missing: Vec<&&str> = REQUIRED.iter().filter(|name| !found.contains_key(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let value = |name: &str| found.get(name).and_then(|metric| number(&metric["value"])).unwrap_or_default();
    assert_eq!(value("container_spec_memory_limit_bytes"), 64 << 20);
    assert_eq!((value("container_spec_cpu_period"), value("container_spec_cpu_quota")), (100_000, 20_000));
    assert!(value("container_file_descriptors") > 0 && value("container_processes") > 0);
    assert_eq!(found["container_threads"]["label_values"][0], "container-0");
    let streamed = call(&address, "StreamPodSandboxMetrics", &json!({}));
    assert_eq!(streamed["pod_sandbox_metrics"][0]["pod_sandbox_id"], sandbox.id);
    sandbox.remove();
    assert_eq!(call(&address, "ListPodSandboxMetrics", &json!({})), json!({}));
    served.end();
}
