//! Sandboxes of the Kubernetes CRI, by a client that shares only the .proto files.

use std::os::unix::fs::PermissionsExt as _;

use gantry_tests::cri::{call, call_parallel, failure, serve, serve_with_network};
use gantry_tests::python::run_script;
use gantry_tests::talos::decode_base64;
use gantry_tests::{Gantry, Space, wait_for};
use serde_json::{Value, json};

/// The configuration of a sandbox as critest makes it.
fn config(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "uid": "6733c088-a507", "namespace": "tests", "attempt": 2 },
        "labels": { "app": name, "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "tests" },
        "annotations": { "example.org/text": "a\nb=c" },
    })
}

/// Runs a sandbox and returns its id.
#[track_caller]
fn run(address: &str, config: &Value) -> String {
    let reply = call(address, "RunPodSandbox", &json!({ "config": config }));
    reply["pod_sandbox_id"].as_str().unwrap_or_else(|| panic!("no id: {reply}")).to_owned()
}

#[track_caller]
fn stop(address: &str, id: &str) {
    assert_eq!(call(address, "StopPodSandbox", &json!({ "pod_sandbox_id": id })), json!({}));
}

#[track_caller]
fn remove(address: &str, id: &str) {
    assert_eq!(call(address, "RemovePodSandbox", &json!({ "pod_sandbox_id": id })), json!({}));
}

#[track_caller]
fn status(address: &str, id: &str) -> Value {
    call(address, "PodSandboxStatus", &json!({ "pod_sandbox_id": id }))["status"].clone()
}

/// The ids that a filter selects.
#[track_caller]
fn list(address: &str, filter: &Value) -> Vec<String> {
    let reply = call(address, "ListPodSandbox", &json!({ "filter": filter }));
    let items = reply["items"].as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|item| item["id"].as_str().map(str::to_owned)).collect()
}

#[test]
fn sandboxes_run_stop_and_are_removed() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let id = run(&address, &config("web"));
    let ready = status(&address, &id);
    // proto3 leaves out READY, which is 0.
    assert_eq!((&ready["state"], &ready["id"]), (&Value::Null, &json!(id)));
    assert_ne!(ready["created_at"], Value::Null);
    let pod = g.status(&id);
    assert_eq!(
        (&pod["phase"], &pod["namespace"], &pod["sandbox"]),
        (&json!("running"), &json!("k8s.io"), &json!(true))
    );
    assert_eq!(pod["name"], "web_tests_6733c088-a507_2");
    for _ in 0..2 {
        stop(&address, &id);
        assert_eq!(status(&address, &id)["state"], "SANDBOX_NOTREADY");
    }
    assert_eq!(list(&address, &json!({})), [id.as_str()]);
    for _ in 0..2 {
        remove(&address, &id);
    }
    assert_eq!(list(&address, &json!({})), [""; 0]);
    assert_eq!(failure(&address, "PodSandboxStatus", &json!({ "pod_sandbox_id": id })).0, "NOT_FOUND");
    served.end();
}

#[test]
fn attributes_of_sandboxes_are_kept() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let mut asked = config("web");
    asked["hostname"] = json!("front");
    asked["linux"] = json!({
        "security_context": { "namespace_options": { "pid": "CONTAINER" } },
        "sysctls": { "kernel.shm_rmid_forced": "1" },
    });
    let id = run(&address, &asked);
    let reply = call(&address, "PodSandboxStatus", &json!({ "pod_sandbox_id": id, "verbose": true }));
    let found = &reply["status"];
    let listed = &call(&address, "ListPodSandbox", &json!({}))["items"][0];
    for key in ["metadata", "labels", "annotations"] {
        assert_eq!((&found[key], &listed[key]), (&asked[key], &asked[key]), "{key}");
    }
    assert_eq!(found["linux"]["namespaces"]["options"], json!({ "pid": "CONTAINER" }));
    assert!(reply["info"]["info"].as_str().is_some_and(|text| text.contains("front")), "{reply}");
    assert_eq!(g.status(&id)["hostname"], "front");
    remove(&address, &id);
    served.end();
}

#[test]
fn all_conditions_of_a_list_hold() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let (first, second) = (run(&address, &config("a")), run(&address, &config("b")));
    stop(&address, &second);
    // Not a sandbox of the CRI.
    let other = g.run(&["app", "sandbox", "--net=none"]).ok().stdout.trim().to_owned();
    let both = [first.as_str(), second.as_str()];
    assert_eq!(list(&address, &json!({})), both);
    let streamed = call(&address, "StreamPodSandboxes", &json!({}));
    assert_eq!(streamed["pod_sandboxes"], call(&address, "ListPodSandbox", &json!({}))["items"]);
    let ready = json!({ "state": { "state": "SANDBOX_READY" } });
    for (filter, expected) in [
        (ready.clone(), &both[..1]),
        (json!({ "state": { "state": "SANDBOX_NOTREADY" } }), &both[1..]),
        (json!({ "id": second }), &both[1..]),
        (json!({ "id": &second[..13] }), &both[1..]),
        (json!({ "label_selector": { "app": "a" } }), &both[..1]),
        (json!({ "label_selector": { "app": "a" }, "id": second }), &[]),
        (json!({ "id": other }), &[]),
    ] {
        assert_eq!(list(&address, &filter), expected, "{filter}");
    }
    assert_eq!(failure(&address, "PodSandboxStatus", &json!({ "pod_sandbox_id": other })).0, "NOT_FOUND");
    remove(&address, &other);
    assert_eq!(g.status(&other)["phase"], "running");
    g.run(&["stop", "--force", &other]).succeeded();
    both.into_iter().for_each(|id| remove(&address, id));
    served.end();
}

#[test]
fn names_are_reserved_until_removal() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    // The supervisor cannot start this one.
    let mut broken = config("web");
    broken["linux"] = json!({ "sysctls": { "kernel.shm_rmid_forced": "no number" } });
    let (code, details) = failure(&address, "RunPodSandbox", &json!({ "config": broken }));
    assert!(code != "ALREADY_EXISTS" && details.contains("shm_rmid_forced"), "{code} {details}");
    assert_eq!(list(&address, &json!({})), [""; 0]);
    let id = run(&address, &config("web"));
    let again = json!({ "config": config("web") });
    assert_eq!(failure(&address, "RunPodSandbox", &again).0, "ALREADY_EXISTS");
    stop(&address, &id);
    assert_eq!(failure(&address, "RunPodSandbox", &again).0, "ALREADY_EXISTS");
    remove(&address, &id);
    let id = run(&address, &config("web"));
    remove(&address, &id);
    served.end();
}

#[test]
fn cancelled_calls_release_their_names() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let request = json!({ "config": config("web") }).to_string();
    for deadline in ["0.001", "0.01", "0.03"] {
        // The call may succeed in time.
        run_script(
            "node_client.py",
            &["--deadline", deadline, &address, "runtime.v1.RuntimeService/RunPodSandbox", &request],
        );
        let id = wait_for("the name, or the sandbox that has it", || {
            if let Some(id) = list(&address, &json!({})).pop() {
                return Some(id);
            }
            let args = [&address, "runtime.v1.RuntimeService/RunPodSandbox", &request];
            let out = run_script("node_client.py", &args);
            out.stdout.contains("pod_sandbox_id").then(|| list(&address, &json!({})).pop())?
        });
        // A call may still be under way that found its client gone.
        wait_for("removal", || {
            remove(&address, &id);
            list(&address, &json!({})).is_empty().then_some(())
        });
    }
    served.end();
}

#[test]
fn unknown_sandboxes_are_stopped_and_removed() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    for id in ["6733c088-a507-4694-aabf-ec79c0a8ac9a", "no-id", &"a7".repeat(32)] {
        stop(&address, id);
        remove(&address, id);
        assert_eq!(failure(&address, "PodSandboxStatus", &json!({ "pod_sandbox_id": id })).0, "NOT_FOUND");
    }
    for method in ["StopPodSandbox", "RemovePodSandbox", "PodSandboxStatus"] {
        assert_eq!(failure(&address, method, &json!({})).0, "INVALID_ARGUMENT", "{method}");
    }
    served.end();
}

#[test]
fn stops_at_the_same_time_all_succeed() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let id = run(&address, &config("web"));
    let request = json!({ "pod_sandbox_id": id });
    assert_eq!(call_parallel(&address, "StopPodSandbox", &request, 8), vec![json!({}); 8]);
    assert_eq!(status(&address, &id)["state"], "SANDBOX_NOTREADY");
    remove(&address, &id);
    for n in 0..4 {
        let id = run(&address, &config(&format!("web-{n}")));
        let request = json!({ "pod_sandbox_id": id });
        let (other, same) = (address.clone(), request.clone());
        let removals = std::thread::spawn(move || call_parallel(&other, "RemovePodSandbox", &same, 8));
        assert_eq!(call_parallel(&address, "StopPodSandbox", &request, 8), vec![json!({}); 8]);
        assert_eq!(removals.join().expect("the removals"), vec![json!({}); 8]);
    }
    assert_eq!(list(&address, &json!({})), [""; 0]);
    served.end();
}

#[test]
fn missing_log_directories_are_made() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let logs = g.scratch().join("pods/web");
    let mut asked = config("web");
    asked["log_directory"] = json!(logs);
    let id = run(&address, &asked);
    for dir in [logs.as_path(), &g.scratch().join("pods")] {
        let mode = std::fs::metadata(dir).expect("the directory").permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "{}", dir.display());
    }
    remove(&address, &id);
    assert!(logs.is_dir(), "it is the kubelet's");
    // What is no directory stays as it is, and nothing is made in gantry's own.
    let (link, inside) = (g.scratch().join("link"), g.dir().join("logs/web"));
    std::os::unix::fs::symlink(g.scratch().join("absent"), &link).expect("a link");
    for path in [&link, &link.join("web"), &g.write("file", "").into(), &inside] {
        asked["log_directory"] = json!(path);
        let (code, details) = failure(&address, "RunPodSandbox", &json!({ "config": asked }));
        assert!(code == "FAILED_PRECONDITION" && details.contains("log directory"), "{code} {details}");
    }
    assert!(!inside.exists() && !g.scratch().join("absent").exists());
    served.end();
}

#[test]
fn name_servers_may_have_zones() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let mut asked = config("web");
    asked["dns_config"] = json!({ "servers": ["10.0.0.1", "fe80::1%eth0"] });
    let id = run(&address, &asked);
    let image = g.fixture();
    let metadata = json!({ "name": "a" });
    let container =
        json!({ "metadata": metadata, "image": { "image": image }, "command": ["/bin/app", "sleep", "60"] });
    let request = json!({ "pod_sandbox_id": id, "config": container, "sandbox_config": asked });
    let container = call(&address, "CreateContainer", &request)["container_id"].clone();
    call(&address, "StartContainer", &json!({ "container_id": container }));
    let cat = json!({ "container_id": container, "cmd": ["/bin/app", "cat", "/etc/resolv.conf"] });
    let text = call(&address, "ExecSync", &cat)["stdout"].as_str().map(decode_base64).unwrap_or_default();
    assert_eq!(String::from_utf8_lossy(&text), "nameserver 10.0.0.1\nnameserver fe80::1%eth0\n");
    remove(&address, &id);
    served.end();
}

#[test]
fn unsupported_sandboxes_are_refused() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let namespaces = |options: Value| json!({ "linux": { "security_context": { "namespace_options": options } } });
    let user = |mode: &str| namespaces(json!({ "userns_options": { "mode": mode } }));
    let cases = [
        (json!({ "metadata": null }), "INVALID_ARGUMENT", "config.metadata"),
        (json!({ "windows": {} }), "UNIMPLEMENTED", "config.windows"),
        (json!({ "log_directory": "here" }), "INVALID_ARGUMENT", "config.log_directory"),
        (json!({ "dns_config": { "servers": ["here"] } }), "INVALID_ARGUMENT", "config.dns_config"),
        (json!({ "linux": { "cgroup_parent": "here" } }), "INVALID_ARGUMENT", "config.linux.cgroup_parent"),
        (json!({ "linux": { "sysctls": { "kernel.panic": "1" } } }), "INVALID_ARGUMENT", "config.linux.sysctls"),
        (json!({ "annotations": { "gantry/sandbox-uid": "" } }), "INVALID_ARGUMENT", "config.annotations"),
        (namespaces(json!({ "network": "CONTAINER" })), "INVALID_ARGUMENT", "network"),
        (namespaces(json!({ "pid": "TARGET" })), "INVALID_ARGUMENT", "pid"),
        (namespaces(json!({ "target_id": "x" })), "INVALID_ARGUMENT", "target_id"),
        (user("POD"), "INVALID_ARGUMENT", "userns_options"),
        (user("CONTAINER"), "INVALID_ARGUMENT", "userns_options"),
        (user("TARGET"), "INVALID_ARGUMENT", "userns_options"),
        (
            json!({ "port_mappings": [{ "host_port": 70000, "container_port": 80 }] }),
            "INVALID_ARGUMENT",
            "config.port_mappings",
        ),
    ];
    for (change, code, field) in cases {
        let mut asked = config("web");
        for (key, value) in change.as_object().into_iter().flatten() {
            asked[key] = value.clone();
        }
        let (found, details) = failure(&address, "RunPodSandbox", &json!({ "config": asked }));
        assert!(found == code && details.contains(field), "{change}: {found} {details}");
    }
    // The client knows no flags of the command line.
    let mapping = json!([{ "host_id": 100_000, "container_id": 0, "length": 65_536 }]);
    let userns = json!({ "mode": "POD", "uids": mapping, "gids": mapping });
    let context = json!({ "privileged": true, "namespace_options": { "userns_options": userns } });
    let mut asked = config("web");
    asked["linux"] = json!({ "security_context": context });
    let (code, details) = failure(&address, "RunPodSandbox", &json!({ "config": asked }));
    assert_eq!(code, "INVALID_ARGUMENT");
    assert!(details.contains("security_context.privileged") && !details.contains("--"), "{details}");
    let handler = json!({ "config": config("web"), "runtime_handler": "kata" });
    assert_eq!(failure(&address, "RunPodSandbox", &handler).0, "INVALID_ARGUMENT");
    assert_eq!(failure(&address, "RunPodSandbox", &json!({})).0, "INVALID_ARGUMENT");
    assert_eq!(list(&address, &json!({})), [""; 0]);
    served.end();
}

#[test]
fn sandboxes_outlive_gantryd() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let (stays, ends) = (run(&address, &config("a")), run(&address, &config("b")));
    served.kill();
    g.run(&["stop", "--force", &ends]).succeeded();
    let (served, address) = serve(&g);
    assert_eq!(status(&address, &stays)["state"], Value::Null);
    assert_eq!(status(&address, &ends)["state"], "SANDBOX_NOTREADY");
    assert_eq!(failure(&address, "RunPodSandbox", &json!({ "config": config("a") })).0, "ALREADY_EXISTS");
    [stays, ends].iter().for_each(|id| remove(&address, id));
    served.end();
}

#[test]
fn networks_of_sandboxes_are_as_requested() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    let (served, address) = serve_with_network(&g, "default");
    let mut asked = config("web");
    asked["dns_config"] = json!({ "servers": ["10.9.8.7"], "searches": ["cluster.local"], "options": ["ndots:5"] });
    asked["port_mappings"] = json!([{ "host_port": 8080, "container_port": 80 }, { "container_port": 81 }]);
    let id = run(&address, &asked);
    assert_eq!(status(&address, &id)["network"]["ip"], g.ip4(&id));
    let ports = g.network_status(&id)[0]["ports"].clone();
    assert_eq!(ports.as_array().map(Vec::len), Some(1), "{ports}");
    assert_eq!((&ports[0]["host_port"], &ports[0]["pod_port"]), (&json!(8080), &json!(80)));
    let image = g.fixture();
    g.run(&["app", "add", "--start", &id, &image, "--name=main", "--", "cat", "/etc/resolv.conf"]).succeeded();
    let log = wait_for("the last line of resolv.conf", || {
        Some(g.run(&["logs", &id]).stdout).filter(|log| log.contains("ndots:5"))
    });
    assert!(log.contains("nameserver 10.9.8.7") && log.contains("search cluster.local"), "{log}");
    stop(&address, &id);
    assert_eq!(status(&address, &id)["network"], json!({}));
    remove(&address, &id);
    served.end();
}
