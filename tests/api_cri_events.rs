//! GetContainerEvents of the Kubernetes CRI, by a client that shares only the .proto files.

use gantry_tests::cri::{Sandbox, call, serve};
use gantry_tests::python::spawn_script;
use gantry_tests::{Gantry, Running, Signal, json_lines, wait_for};
use serde_json::{Value, json};

/// A client that follows the events of containers.
struct Follower {
    client: Running,
    /// The sandbox that showed that the client is subscribed.
    first: String,
}

impl Follower {
    /// Subscribes; with `stall`, the client stops reading after so many messages, until [`Self::resume`].
    fn subscribe(g: &Gantry, address: &str, stall: &str) -> Self {
        let args =
            ["--deadline", "300", "--stall", stall, address, "runtime.v1.RuntimeService/GetContainerEvents", "{}"];
        let client = spawn_script("node_client.py", &args);
        let mut tries = 0;
        let first = wait_for("the first event", || {
            tries += 1;
            let sandbox = Sandbox::run(g, address, &format!("probe-{tries}"));
            sandbox.remove();
            json_lines(&whole_lines(&client)).last().and_then(|it| it["container_id"].as_str().map(str::to_owned))
        });
        Self { client, first }
    }

    /// The events so far of sandboxes and containers besides the first one: what, and of which.
    fn seen(&self) -> Vec<(String, String)> {
        self.messages().iter().map(|event| (kind(event), text(event, "container_id"))).collect()
    }

    fn messages(&self) -> Vec<Value> {
        let all = json_lines(&whole_lines(&self.client));
        let is_probe = |event: &Value| {
            let name = &event["pod_sandbox_status"]["metadata"]["name"];
            name.as_str().is_some_and(|name| name.starts_with("probe-"))
        };
        all.into_iter().filter(|event| !is_probe(event) && event["container_id"] != self.first.as_str()).collect()
    }

    /// Waits for the DELETED of this sandbox, which is its last event.
    fn until_deleted(&self, id: &str) -> Vec<(String, String)> {
        wait_for("the last event", || {
            Some(self.seen()).filter(|seen| seen.contains(&("DELETED".to_owned(), id.to_owned())))
        })
    }

    fn resume(&self) {
        self.client.signal(Signal::USR1);
    }
}

/// The complete lines that a client has printed.
fn whole_lines(client: &Running) -> String {
    let said = client.stdout();
    said.get(..said.rfind('\n').map_or(0, |end| end + 1)).unwrap_or_default().to_owned()
}

fn text(event: &Value, key: &str) -> String {
    event[key].as_str().unwrap_or_default().to_owned()
}

/// CREATED, STARTED, STOPPED or DELETED; proto3 leaves out the first one, which is 0.
fn kind(event: &Value) -> String {
    let kind = event["container_event_type"].as_str().unwrap_or("CONTAINER_CREATED_EVENT");
    kind.trim_start_matches("CONTAINER_").trim_end_matches("_EVENT").to_owned()
}

fn expected(events: &[(&str, &str)]) -> Vec<(String, String)> {
    events.iter().map(|(kind, id)| ((*kind).to_owned(), (*id).to_owned())).collect()
}

#[test]
fn each_step_of_a_container_is_an_event() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let follower = Follower::subscribe(&g, &address, "100000");
    let sandbox = Sandbox::run(&g, &address, "web");
    let (one, two) = (sandbox.launch(&["sleep", "forever"]), sandbox.create(&["sleep", "forever"]));
    call(&address, "StopContainer", &json!({ "container_id": one, "timeout": 0 }));
    call(&address, "RemoveContainer", &json!({ "container_id": one }));
    sandbox.stop();
    sandbox.remove();
    let seen = follower.until_deleted(&sandbox.id);
    let (id, one, two) = (sandbox.id.as_str(), one.as_str(), two.as_str());
    let all = expected(&[
        ("CREATED", id),
        ("STARTED", id),
        ("CREATED", one),
        ("STARTED", one),
        ("CREATED", two),
        ("STOPPED", one),
        ("DELETED", one),
        ("STOPPED", two),
        ("STOPPED", id),
        ("DELETED", two),
        ("DELETED", id),
    ]);
    assert_eq!(seen, all);
    for event in follower.messages() {
        let is_of_one = event["container_id"] == one;
        let status = event["containers_statuses"].as_array().into_iter().flatten().find(|it| it["id"] == one);
        let state = status.map(|status| status["state"].as_str().unwrap_or("CONTAINER_CREATED"));
        assert_eq!(event["pod_sandbox_status"]["id"], id, "{event}");
        assert!(event["created_at"].as_str().is_some_and(|at| at.len() == 19), "{event}");
        match (is_of_one, kind(&event).as_str()) {
            (true, "STOPPED") => assert_eq!(state, Some("CONTAINER_EXITED"), "{event}"),
            (true, "DELETED") => assert_eq!(state, None, "{event}"),
            (false, "STOPPED" | "DELETED") if event["container_id"] == id => {
                assert_eq!(event["pod_sandbox_status"]["state"], "SANDBOX_NOTREADY", "{event}");
            }
            _ => {}
        }
    }
    served.end();
}

#[test]
fn commands_cause_events() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let follower = Follower::subscribe(&g, &address, "100000");
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.launch(&["sleep", "forever"]);
    let image = g.fixture();
    // Neither a pod that is no sandbox nor an app that is no container has events.
    let other = g.detached(&[], &["sleep", "forever"]);
    g.run(&["app", "add", "--start", &sandbox.id, &image, "--name=extra", "--", "sleep", "forever"]).succeeded();
    g.run(&["stop", "--force", &sandbox.id, &other]).succeeded();
    g.run(&["rm", &sandbox.id, &other]).succeeded();
    let seen = follower.until_deleted(&sandbox.id);
    let (sandbox, id) = (sandbox.id.as_str(), id.as_str());
    let all = expected(&[
        ("CREATED", sandbox),
        ("STARTED", sandbox),
        ("CREATED", id),
        ("STARTED", id),
        ("STOPPED", id),
        ("STOPPED", sandbox),
        ("DELETED", id),
        ("DELETED", sandbox),
    ]);
    assert_eq!(seen, all);
    served.end();
}

#[test]
fn slow_clients_miss_nothing() {
    let g = Gantry::new();
    let (mut served, address) = serve(&g);
    let follower = Follower::subscribe(&g, &address, "1");
    let before = served.rss_kib();
    let sandbox = Sandbox::run(&g, &address, "web");
    let mut all = expected(&[("CREATED", &sandbox.id), ("STARTED", &sandbox.id)]);
    for _ in 0..5 {
        let id = sandbox.launch(&["sleep", "forever"]);
        call(&address, "RemoveContainer", &json!({ "container_id": id }));
        all.extend(expected(&[("CREATED", &id), ("STARTED", &id), ("STOPPED", &id), ("DELETED", &id)]));
    }
    sandbox.remove();
    all.extend(expected(&[("STOPPED", &sandbox.id), ("DELETED", &sandbox.id)]));
    assert!(served.rss_kib() < before + (64 << 10), "gantryd buffers events");
    follower.resume();
    assert_eq!(follower.until_deleted(&sandbox.id), all);
    // The status of a sandbox carries those of its containers, and its time.
    let sandbox = Sandbox::run(&g, &address, "again");
    let id = sandbox.launch(&["sleep", "forever"]);
    let reply = call(&address, "PodSandboxStatus", &json!({ "pod_sandbox_id": sandbox.id }));
    assert_eq!(reply["containers_statuses"][0]["id"], id, "{reply}");
    assert!(reply["timestamp"].as_str().is_some_and(|at| at.len() == 19), "{reply}");
    sandbox.remove();
    let _ = served.daemon();
    served.end();
}
