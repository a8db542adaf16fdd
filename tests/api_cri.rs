//! The Kubernetes CRI: its contract by reflection, and the state of the runtime, by a client that shares only the
//! .proto files.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use gantry_tests::Gantry;
use gantry_tests::cri::{call, failure, serve, serve_with_network};
use gantry_tests::python::{repository, run_script};
use gantry_tests::talos::FAILED;
use serde_json::{Value, json};

/// The condition of this type in a reply to Status.
fn condition<'v>(status: &'v Value, kind: &str) -> &'v Value {
    let conditions = status["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|it| it["type"] == kind)).unwrap_or(&Value::Null)
}

#[test]
fn descriptors_match_the_contract() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let path = g.scratch().join("reflected").display().to_string();
    run_script("client.py", &[&address, "reflect", &path]).succeeded();
    let table = repository().join("proto/cri/v1.tsv").display().to_string();
    let checked = run_script("wire.py", &["check", &table, &path]).ok();
    assert!(checked.stdout.trim_end().ends_with("634 of 634 rows hold"), "{checked}");
    served.end();
}

#[test]
fn the_runtime_is_ready_at_once() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    for request in [json!({}), json!({ "version": "0.1.0" })] {
        let version = call(&address, "Version", &request);
        assert_eq!(version["version"], "0.1.0");
        assert_eq!((&version["runtime_name"], &version["runtime_api_version"]), (&json!("gantry"), &json!("v1")));
        assert!(version["runtime_version"].is_string(), "{version}");
    }
    let status = call(&address, "Status", &json!({}));
    for kind in ["RuntimeReady", "NetworkReady"] {
        assert_eq!(condition(&status, kind)["status"], true, "{status}");
    }
    // The default handler has no name, and proto3 leaves empty fields out.
    let features = json!({ "recursive_read_only_mounts": true, "user_namespaces": true });
    assert_eq!(status["runtime_handlers"], json!([{ "features": features }]));
    assert_eq!(status["info"], Value::Null);
    let verbose = call(&address, "Status", &json!({ "verbose": true }));
    let info: Value = serde_json::from_str(verbose["info"]["config"].as_str().unwrap_or_default()).unwrap_or_default();
    assert_eq!(info["stateDir"], g.dir().display().to_string());
    let config = call(&address, "RuntimeConfig", &json!({}));
    assert_eq!(config["linux"]["cgroup_driver"], "CGROUPFS");
    served.end();
}

#[test]
fn unusable_networks_are_named_in_conditions() {
    let g = Gantry::new();
    let (served, address) = serve_with_network(&g, "cluster");
    let status = call(&address, "Status", &json!({}));
    let network = condition(&status, "NetworkReady");
    assert_eq!((&network["status"], &network["reason"]), (&Value::Null, &json!("NetworkPluginNotReady")), "{status}");
    assert!(network["message"].as_str().is_some_and(|text| text.contains("cluster")), "{status}");
    assert_eq!(condition(&status, "RuntimeReady")["status"], true);
    served.end();
}

#[test]
fn pod_cidrs_are_stored() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let config = |cidr: &str| json!({ "runtime_config": { "network_config": { "pod_cidr": cidr } } });
    let stored = || std::fs::read_to_string(g.dir().join("pod-cidr")).ok();
    assert_eq!(call(&address, "UpdateRuntimeConfig", &config("")), json!({}));
    let (code, details) = failure(&address, "UpdateRuntimeConfig", &config("10.9.0.0/33"));
    assert!(code == "INVALID_ARGUMENT" && details.contains("10.9.0.0/33"), "{code} {details}");
    assert_eq!(stored(), None);
    for (given, kept) in [("10.9.0.0/24", "10.9.0.0/24\n"), ("10.8.0.9/24,fd08::/64", "10.8.0.0/24,fd08::/64\n")] {
        assert_eq!(call(&address, "UpdateRuntimeConfig", &config(given)), json!({}));
        assert_eq!(stored().as_deref(), Some(kept));
    }
    served.end();
}

#[test]
fn calls_that_are_not_built_are_unimplemented() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    for method in ["CheckpointContainer", "CheckpointPod", "RestorePod"] {
        assert_eq!(failure(&address, method, &json!({})).0, "UNIMPLEMENTED", "{method}");
    }
    served.end();
}

#[test]
fn only_root_may_call() {
    let g = Gantry::new();
    let dir = std::path::PathBuf::from(format!("/tmp/gantry-cri-{}", std::process::id()));
    let open = Permissions::from_mode(0o755);
    std::fs::create_dir_all(&dir).and_then(|()| std::fs::set_permissions(&dir, open)).unwrap();
    let socket = dir.join("cri.sock");
    let address = format!("unix:{}", socket.display());
    let served = g.serve(&["--cri-listen", &address]);
    assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o660);
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let out = run_script("node_client.py", &["--uid", "65534", &address, "runtime.v1.RuntimeService/Version"]);
    let out = out.exits(FAILED);
    assert!(out.stdout.contains("PERMISSION_DENIED") && out.stdout.contains("only root may call"), "{out}");
    served.end();
    std::fs::remove_dir_all(&dir).unwrap();
}
