//! The services of the Talos node API: the parts of gantryd, and pods.

use gantry_tests::python::{run_script, spawn_script};
use gantry_tests::talos::messages_until;
use gantry_tests::{Gantry, json_lines, pod_id, wait_for};
use serde_json::{Value, json};

/// The exit code of a client whose call failed.
const FAILED: i32 = 3;

/// The reply of a call, or its code and text.
#[track_caller]
fn call(address: &str, method: &str, request: &Value) -> Result<Value, (String, String)> {
    let method = format!("machine.MachineService/{method}");
    let out = run_script("node_client.py", &[address, &method, &request.to_string()]);
    assert!([0, FAILED].contains(&out.code), "{out}");
    let reply = json_lines(&out.stdout).remove(0);
    if out.code == 0 {
        return Ok(reply["messages"][0].clone());
    }
    let text = |key: &str| reply[key].as_str().unwrap_or_default().to_owned();
    Err((text("code"), text("details")))
}

/// The services by their ids.
#[track_caller]
fn service(address: &str, id: &str) -> Value {
    let list = call(address, "ServiceList", &json!({})).unwrap_or_else(|error| panic!("no list: {error:?}"));
    let services = list["services"].as_array().cloned().unwrap_or_default();
    let ids: Vec<&str> = services.iter().filter_map(|service| service["id"].as_str()).collect();
    assert!(ids.is_sorted(), "{ids:?}");
    // Old clients do not check that these are present.
    assert!(services.iter().all(|service| service["events"].is_object() && service["health"].is_object()), "{list}");
    services.iter().find(|service| service["id"] == id).cloned().unwrap_or_default()
}

#[track_caller]
fn change(address: &str, action: &str, id: &str) -> String {
    let reply = call(address, &format!("Service{action}"), &json!({ "id": id }));
    let reply = reply.unwrap_or_else(|error| panic!("Service{action} {id}: {error:?}"));
    reply["resp"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn pods_are_services() {
    let g = Gantry::new();
    let address = format!("unix:{}", g.scratch().join("machine.sock").display());
    let served = g.serve(&["--machine-listen", &address]);
    let image = g.fixture();
    let words = ["run", "--net=none", "-d", "--pod-name=web", &image, "--name=a", "--", "sleep", "600"];
    let pod = pod_id(&g.run(&words).ok());
    let web = service(&address, "web");
    assert_eq!((&web["state"], &web["health"]["unknown"]), (&json!("Running"), &json!(true)), "{web}");
    let events = web["events"]["events"].as_array().cloned().unwrap_or_default();
    let states: Vec<&str> = events.iter().filter_map(|event| event["state"].as_str()).collect();
    assert_eq!(states, ["Preparing", "Running", "Running"], "{web}");
    assert_eq!(web["id"], "web");
    assert!(events.iter().any(|event| event["msg"].as_str().is_some_and(|msg| msg.starts_with("a: app-started"))));
    // A restart keeps the pod and starts its apps again.
    let before = g.app_pid(&pod, "a");
    assert_eq!(change(&address, "Restart", "web"), "Service \"web\" restarted");
    assert_ne!(g.app_pid(&pod, "a"), before);
    // What is in the wanted state already is a success.
    assert_eq!(change(&address, "Start", "web"), "Service \"web\" started");
    for _ in 0..2 {
        assert_eq!(change(&address, "Stop", "web"), "Service \"web\" stopped");
        g.wait_state(&pod, "exited");
    }
    assert!(["Finished", "Failed"].map(Value::from).contains(&service(&address, "web")["state"]));
    // An exited pod is started again, by its UUID, too.
    assert_eq!(change(&address, "Start", &pod), format!("Service \"{pod}\" started"));
    wait_for("the pod to run", || (service(&address, "web")["state"] == "Running").then_some(()));
    change(&address, "Stop", "web");
    assert_eq!(change(&address, "Restart", "web"), "Service \"web\" restarted");
    wait_for("the pod to run", || (service(&address, "web")["state"] == "Running").then_some(()));
    for action in ["Start", "Stop", "Restart"] {
        let refused = call(&address, &format!("Service{action}"), &json!({ "id": "nosuchservice" }));
        let want = ("NOT_FOUND".to_owned(), "service \"nosuchservice\" not defined".to_owned());
        assert_eq!(refused, Err(want));
    }
    served.end();
    g.remove_all();
}

/// The services and states of all events of a pod so far, which is a part of each message or their service.
#[track_caller]
fn states(address: &str, request: &Value, pod: &str, until: &str) -> Vec<(String, String)> {
    let client = spawn_script("node_client.py", &[address, "machine.MachineService/Events", &request.to_string()]);
    let events = messages_until(&client, until);
    drop(client);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ids: Vec<String> = events.iter().map(|event| text(&event["id"])).collect();
    assert!(request["tail_events"].is_null() || ids[1..].is_sorted_by(|one, other| one < other), "{ids:?}");
    let events = events.iter().map(|event| &event["data"]);
    let own = events.filter(|data| text(&data["message"]).ends_with(&format!(" pod={pod}")) || data["service"] == pod);
    own.map(|data| (text(&data["service"]), text(&data["action"]))).collect()
}

#[test]
fn events_follow_services_in_order() {
    let g = Gantry::new();
    let address = format!("unix:{}", g.scratch().join("machine.sock").display());
    let served = g.serve(&["--machine-listen", &address]);
    let image = g.fixture();
    let words = ["run", "--net=none", "-d", "--pod-name=web", &image, "--name=a", "--", "sleep", "600"];
    let pod = pod_id(&g.run(&words).ok());
    let pairs = |rows: &[(&str, &str)]| -> Vec<(String, String)> {
        rows.iter().map(|&(service, state)| (service.to_owned(), state.to_owned())).collect()
    };
    let begin = [("web", "PREPARING"), ("web", "RUNNING"), ("web:a", "RUNNING")];
    let all = json!({ "tail_events": -1 });
    assert_eq!(states(&address, &all, &pod, "\"app-started"), pairs(&begin));
    // The service restarts its apps.
    change(&address, "Restart", "web");
    let restart = [("web:a", "STOPPING"), ("web:a", "FINISHED"), ("web:a", "STARTING"), ("web:a", "RUNNING")];
    let seen = states(&address, &all, &pod, "\"RUNNING\", \"message\": \"app-started attempt=1");
    assert_eq!(seen, pairs(&[&begin[..], &restart].concat()));
    let history = service(&address, "web")["events"]["events"].as_array().cloned().unwrap_or_default();
    let history: Vec<&str> = history.iter().filter_map(|event| event["state"].as_str()).collect();
    assert_eq!(history, ["Preparing", "Running", "Running", "Stopping", "Finished", "Starting", "Running"]);
    // A stop and a start; the events of the past have the new name, too.
    g.run(&["rename", "web", "shop"]).succeeded();
    change(&address, "Stop", "shop");
    g.wait_state(&pod, "exited");
    let stopped = service(&address, "shop");
    assert_eq!(stopped["state"], "Finished", "{stopped}");
    change(&address, "Start", "shop");
    let last = "\"RUNNING\", \"message\": \"app-started attempt=2";
    let seen = states(&address, &all, &pod, last);
    assert!(seen.iter().all(|(service, _)| service == "shop" || service == "shop:a"), "{seen:?}");
    let cycle = |id: &str| seen.iter().filter(|(service, _)| service == id).map(|(_, state)| &state[..]).collect();
    let (of_pod, of_app): (Vec<&str>, Vec<&str>) = (cycle("shop"), cycle("shop:a"));
    assert_eq!(of_pod, ["PREPARING", "RUNNING", "STOPPING", "FINISHED", "STARTING", "RUNNING"]);
    assert_eq!(of_app[5..], ["FINISHED", "STARTING", "RUNNING"], "{of_app:?}");
    // A tail that begins between the request and the end knows of the request.
    let tail = states(&address, &json!({ "tail_events": 6 }), &pod, last);
    assert_eq!(tail, seen[seen.len() - 6..]);
    // A pod that was removed keeps its last name, also after a restart of gantryd.
    let mut live = spawn_script("node_client.py", &[&address, "machine.MachineService/Events", "{}"]);
    live.wait_for_stdout("\n");
    g.run(&["rm", "--force", &pod]).succeeded();
    let shown = messages_until(&live, "SKIPPED");
    let last = &shown[shown.len() - 1]["data"];
    assert_eq!((&last["service"], &last["action"]), (&json!("shop"), &json!("SKIPPED")), "{last}");
    drop(live);
    let seen = states(&address, &all, &pod, "SKIPPED");
    assert!(seen.len() > 10 && seen.iter().all(|(service, _)| service == "shop" || service == "shop:a"), "{seen:?}");
    served.end();
    let served = g.serve(&["--machine-listen", &address]);
    assert_eq!(states(&address, &all, &pod, "SKIPPED"), seen);
    let tail = states(&address, &json!({ "tail_events": 4 }), &pod, "SKIPPED");
    assert_eq!(tail, seen[seen.len() - 4..]);
    served.end();
}

#[test]
fn parts_of_gantryd_cannot_be_stopped() {
    let g = Gantry::new();
    let address = format!("unix:{}", g.scratch().join("machine.sock").display());
    let served = g.serve(&["--machine-listen", &address]);
    for part in ["gantryd", "gantryd-engine"] {
        let found = service(&address, part);
        assert_eq!((&found["state"], &found["health"]["healthy"]), (&json!("Running"), &json!(true)), "{found}");
    }
    assert_eq!(change(&address, "Start", "gantryd"), "Service \"gantryd\" started");
    for (action, name) in [("Stop", "stop"), ("Restart", "restart")] {
        let want = format!("service \"gantryd\" doesn't support {name} operation via API");
        let refused = call(&address, &format!("Service{action}"), &json!({ "id": "gantryd" }));
        assert_eq!(refused, Err(("FAILED_PRECONDITION".to_owned(), want)));
    }
    served.end();
}

#[test]
fn health_checks_are_the_health_of_services() {
    let g = Gantry::new();
    let address = format!("unix:{}", g.scratch().join("machine.sock").display());
    let served = g.serve(&["--machine-listen", &address]);
    let image = g.fixture();
    let run_checked = |name: &str, code: &str| {
        let pod_name = format!("--pod-name={name}");
        let health = format!("--health-cmd={}", json!(["/bin/app", "exit", code]));
        let words = ["run", "--net=none", "-d", &pod_name, &health, "--health-interval=200ms", "--health-retries=1"];
        g.run(&[&words[..], &[&image, "--name=a", "--", "sleep", "600"]].concat()).succeeded();
    };
    run_checked("good", "0");
    run_checked("bad", "1");
    let health = |id: &str, want: Value| {
        wait_for("the health of the service", || {
            let health = service(&address, id)["health"].clone();
            (health["healthy"] == want && health["unknown"] != true).then_some(health)
        })
    };
    assert!(health("good", json!(true))["last_change"].is_string());
    // A restarted service runs and becomes healthy again.
    let before = g.app_pid("good", "a");
    let restart = json!({ "namespace": "taloscontainers", "id": "good" });
    assert_eq!(call(&address, "Restart", &restart), Ok(json!({})));
    assert_ne!(g.app_pid("good", "a"), before);
    health("good", json!(true));
    assert_eq!(service(&address, "good")["state"], "Running");
    assert_eq!(health("bad", Value::Null)["last_message"], "an app is unhealthy");
    served.end();
    g.remove_all();
}
