//! The services of the Talos node API: the parts of gantryd, and pods.

use gantry_tests::python::run_script;
use gantry_tests::{Gantry, json_lines, pod_id, wait_for};
use serde_json::{Value, json};

/// The exit code of a client whose call failed.
const FAILED: i32 = 3;

/// The reply of a call, or its code and text.
#[track_caller]
fn call(address: &str, method: &str, request: &Value) -> Result<Value, (String, String)> {
    let method = format!("machine.MachineService/{method}");
    let out = run_script("talos.py", &[address, &method, &request.to_string()]);
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
    assert_eq!(health("bad", Value::Null)["last_message"], "an app is unhealthy");
    served.end();
    g.remove_all();
}
