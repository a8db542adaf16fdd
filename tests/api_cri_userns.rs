//! User namespaces of the Kubernetes CRI: the specs of critest's group "UserNamespaces", each by its name.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use gantry_tests::cri::{self, Sandbox, call, failure, serve};
use gantry_tests::{Gantry, Out, wait_for};
use serde_json::{Value, json};

/// The configuration of a sandbox with these options for its user namespace.
fn config(userns: &Value) -> Value {
    json!({
        "metadata": { "name": "user", "uid": "6733c088-a507", "namespace": "tests", "attempt": 2 },
        "linux": { "security_context": { "namespace_options": { "userns_options": userns } } },
    })
}

fn mapping(container_id: u32) -> Value {
    json!({ "host_id": 1000, "container_id": container_id, "length": 100_000 })
}

#[track_caller]
fn run(address: &str, userns: &Value) -> String {
    let reply = call(address, "RunPodSandbox", &json!({ "config": config(userns) }));
    reply["pod_sandbox_id"].as_str().unwrap_or_else(|| panic!("no id: {reply}")).to_owned()
}

#[track_caller]
fn refuse(address: &str, userns: &Value) {
    let (code, details) = failure(address, "RunPodSandbox", &json!({ "config": config(userns) }));
    assert!(code == "INVALID_ARGUMENT" && details.contains("userns_options"), "{userns}: {code} {details}");
}

/// Runs a program in a new container of a sandbox.
#[track_caller]
fn container(g: &Gantry, sandbox: &str, verb: &[&str]) -> Out {
    let image = g.fixture();
    let add = ["app", "add", sandbox, &image, "--name=web", "--start", "--", "sleep", "forever"];
    g.run(&add).succeeded();
    g.run(&[&["exec", sandbox, "--", "/bin/app"], verb].concat()).ok()
}

#[track_caller]
fn user_options(address: &str, sandbox: &str) -> Value {
    let status = call(address, "PodSandboxStatus", &json!({ "pod_sandbox_id": sandbox }));
    status["status"]["linux"]["namespaces"]["options"]["userns_options"].clone()
}

#[track_caller]
fn remove(address: &str, sandbox: &str) {
    assert_eq!(call(address, "StopPodSandbox", &json!({ "pod_sandbox_id": sandbox })), json!({}));
    assert_eq!(call(address, "RemovePodSandbox", &json!({ "pod_sandbox_id": sandbox })), json!({}));
}

fn numbers(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// "when Host idmap mount support is needed runtime should support NamespaceMode_POD"
#[test]
fn mode_pod_maps_ids() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let features = &call(&address, "Status", &json!({}))["runtime_handlers"][0]["features"];
    assert_eq!(features["user_namespaces"], true);
    let asked = json!({ "uids": [mapping(0)], "gids": [mapping(0)] });
    let sandbox = run(&address, &asked);
    let maps = container(&g, &sandbox, &["cat", "/proc/self/uid_map", "/proc/self/gid_map"]);
    assert_eq!(numbers(&maps.stdout), ["0", "1000", "100000", "0", "1000", "100000"]);
    // proto3 leaves out id 0.
    let want = json!([{ "host_id": 1000, "length": 100_000 }]);
    let options = user_options(&address, &sandbox);
    assert_eq!((&options["uids"], &options["gids"]), (&want, &want), "{options}");
    remove(&address, &sandbox);
    served.end();
}

/// The volumes of a container have the ids of its sandbox, as a kubelet asks for.
#[test]
fn mounts_of_containers_have_the_sandboxes_ids() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let asked = json!({ "uids": [mapping(0)], "gids": [mapping(0)] });
    let options = json!({ "security_context": { "namespace_options": { "userns_options": asked } } });
    let sandbox = Sandbox::run_with(&g, &address, "user", &json!({ "linux": options }));
    let volume = g.scratch().join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::os::unix::fs::chown(&volume, Some(1000), Some(1000)).unwrap();
    let message = g.scratch().join("message");
    std::fs::write(&message, "").unwrap();
    let mount = |path: &Path, target: &str, mappings: &Value| json!({ "host_path": path, "container_path": target, "uidMappings": mappings, "gidMappings": mappings });
    let own = json!([mapping(0)]);
    let mounts = [mount(&volume, "/volume", &own), mount(&message, "/dev/termination-log", &json!([]))];
    let script =
        ["seq", "stat", "/volume", "--", "write", "/volume/file", "x", "--", "write", "/dev/termination-log", "over"];
    let more = json!({ "mounts": mounts, "linux": options });
    let id = sandbox.create_with(&script, &more);
    sandbox.start(&id);
    let exited = wait_for("the exit", || {
        Some(cri::container(&address, &id)).filter(|status| status["state"] == "CONTAINER_EXITED")
    });
    assert_eq!(exited["reason"], "Completed", "{exited}");
    let owner = |path: PathBuf| std::fs::metadata(path).map(|file| file.uid()).unwrap();
    assert_eq!((owner(volume.join("file")), std::fs::read_to_string(&message).unwrap().trim()), (0, "over"));
    assert!(g.run(&["logs", &sandbox.id]).ok().stdout.contains(" 1000 1000 "));
    let other = json!([{ "host_id": 5000, "container_id": 0, "length": 100_000 }]);
    let more = json!({ "mounts": [mount(&volume, "/volume", &other)] });
    let (code, details) = failure(&address, "CreateContainer", &sandbox.request(&["true"], &more));
    assert!(code == "INVALID_ARGUMENT" && details.contains("uidMappings"), "{code} {details}");
    sandbox.remove();
    served.end();
}

/// "runtime should support NamespaceMode_NODE"
#[test]
fn mode_node_shares_the_ids_of_the_host() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = run(&address, &json!({ "mode": "NODE" }));
    let host = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let map = container(&g, &sandbox, &["cat", "/proc/self/uid_map"]);
    assert_eq!(numbers(&map.stdout), numbers(&host));
    assert_eq!(user_options(&address, &sandbox), json!({ "mode": "NODE" }));
    remove(&address, &sandbox);
    served.end();
}

/// "runtime should fail if more than one mapping provided", "… if container ID 0 is not mapped", "… with
/// NamespaceMode_CONTAINER" and "… with NamespaceMode_TARGET"
#[test]
fn other_mappings_and_modes_fail() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    refuse(&address, &json!({ "uids": [mapping(0), mapping(100_000)], "gids": [mapping(0), mapping(100_000)] }));
    refuse(&address, &json!({ "uids": [mapping(0)], "gids": [mapping(0), mapping(100_000)] }));
    refuse(&address, &json!({ "uids": [mapping(1)], "gids": [mapping(1)] }));
    refuse(&address, &json!({ "uids": [mapping(0)] }));
    for mode in ["CONTAINER", "TARGET"] {
        refuse(&address, &json!({ "mode": mode }));
        refuse(&address, &json!({ "mode": mode, "uids": [mapping(0)], "gids": [mapping(0)] }));
    }
    // The namespaces of the host have no owner in the pod's.
    for name in ["network", "ipc"] {
        let mut asked = config(&json!({ "uids": [mapping(0)], "gids": [mapping(0)] }));
        asked["linux"]["security_context"]["namespace_options"][name] = json!("NODE");
        let (code, details) = failure(&address, "RunPodSandbox", &json!({ "config": asked }));
        assert!(code == "INVALID_ARGUMENT" && details.contains("user namespace"), "{name}: {code} {details}");
    }
    let list = call(&address, "ListPodSandbox", &json!({}));
    assert_eq!(list, json!({}), "nothing is left of them");
    served.end();
}
