//! Containers of the Kubernetes CRI, by a client that shares only the .proto files.

use gantry_tests::cri::{self, Sandbox, call, failure, serve};
use gantry_tests::{Gantry, wait_for};
use serde_json::{Value, json};

#[test]
fn containers_live_as_kubelets_expect() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.create(&["sleep", "60"]);
    assert_eq!(id.len(), 64);
    let status = |id: &str| cri::container(&address, id);
    // proto3 leaves out CREATED, which is 0.
    assert_eq!(status(&id)["state"], Value::Null);
    sandbox.start(&id);
    assert_eq!(status(&id)["state"], "CONTAINER_RUNNING");
    assert_eq!(failure(&address, "StartContainer", &json!({ "container_id": id })).0, "FAILED_PRECONDITION");
    for _ in 0..2 {
        call(&address, "StopContainer", &json!({ "container_id": id, "timeout": 30 }));
    }
    let exited = status(&id);
    assert_eq!(
        (&exited["state"], &exited["reason"], &exited["exit_code"]),
        (&json!("CONTAINER_EXITED"), &json!("Error"), &json!(143))
    );
    for _ in 0..2 {
        call(&address, "RemoveContainer", &json!({ "container_id": id }));
    }
    assert_eq!(failure(&address, "ContainerStatus", &json!({ "container_id": id })).0, "NOT_FOUND");
    sandbox.remove();
    served.end();
}

#[test]
fn ends_of_containers_have_reasons() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    for (command, reason, code) in [(&["exit", "0"], "Completed", Value::Null), (&["exit", "7"], "Error", json!(7))] {
        let id = sandbox.create(command);
        sandbox.start(&id);
        let exited = wait_for("the exit", || {
            Some(cri::container(&address, &id)).filter(|status| status["state"] == "CONTAINER_EXITED")
        });
        assert_eq!((&exited["reason"], &exited["exit_code"]), (&json!(reason), &code));
        let time = |key: &str| exited[key].as_str().and_then(|text| text.parse::<i64>().ok()).unwrap_or_default();
        assert!(0 < time("created_at") && time("created_at") < time("started_at"), "{exited}");
        assert!(time("started_at") <= time("finished_at"), "{exited}");
    }
    sandbox.remove();
    served.end();
}
