//! Pods, apps and images as resources of the Talos node API.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_tests::python::spawn_script;
use gantry_tests::talos::{call, decode_base64, failure, message, serve};
use gantry_tests::{Gantry, json_lines, pod_id, wait_for};
use serde_json::{Value, json};

const GET: &str = "resource.ResourceService/Get";
const LIST: &str = "resource.ResourceService/List";
const WATCH: &str = "resource.ResourceService/Watch";

/// The version of a resource.
#[track_caller]
fn version(address: &str, kind: &str, id: &str) -> String {
    let message = message(address, GET, &json!({ "type": kind, "id": id }));
    message["resource"]["metadata"]["version"].as_str().unwrap_or_default().to_owned()
}

/// The specification of a resource as YAML.
fn yaml(resource: &Value) -> String {
    String::from_utf8(decode_base64(resource["spec"]["yaml"].as_str().unwrap_or_default())).unwrap()
}

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().filter_map(|row| row["resource"]["metadata"]["id"].as_str().map(str::to_owned)).collect()
}

#[test]
fn resources_are_listed_with_their_definition() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    let run = ["run", "--net=none", "-d", "--pod-name=web", "--label=tier=a: \"b\"", &image];
    let pod = pod_id(&g.run(&[&run[..], &["--name=a", "--", "sleep", "600"]].concat()).ok());

    for alias in ["pods", "Pod", "pods.gantry.dev"] {
        let rows = call(&address, LIST, &json!({ "type": alias }));
        assert_eq!(rows[0]["definition"]["metadata"]["type"], "ResourceDefinitions.meta.cosi.dev", "{rows:?}");
        assert!(yaml(&rows[0]["definition"]).contains("displayType: \"Pod\"\n"));
        assert_eq!(ids(&rows), [pod.as_str()]);
    }
    let pod_message = message(&address, GET, &json!({ "namespace": "runtime", "type": "pod", "id": "web" }));
    let resource = &pod_message["resource"];
    assert_eq!(resource["metadata"]["type"], "Pods.gantry.dev");
    assert_eq!((&resource["metadata"]["id"], &resource["metadata"]["namespace"]), (&json!(pod), &json!("runtime")));
    let spec = yaml(resource);
    assert!(spec.contains("name: \"web\"\nnamespace: \"taloscontainers\"\nstate: \"running\"\n"), "{spec}");
    assert!(spec.contains("  \"tier\": \"a: \\\"b\\\"\"\n"), "{spec}");
    let app = message(&address, GET, &json!({ "type": "apps", "id": format!("{pod}:a") }));
    assert!(yaml(&app["resource"]).contains(&format!("pid: {}\n", g.app_pid(&pod, "a"))), "{app}");
    assert_eq!(ids(&call(&address, LIST, &json!({ "type": "image" }))), [image.as_str()]);
    let definitions = ids(&call(&address, LIST, &json!({ "type": "rd" })));
    assert_eq!(definitions.len(), 4, "{definitions:?}");
    for (request, text) in [
        (json!({ "type": "nodes", "id": "x" }), "resource \"nodes\" is not registered"),
        (json!({ "type": "pods", "namespace": "x", "id": "x" }), "namespace \"x\" is not registered"),
        (json!({ "type": "pods", "id": "x" }), "resource Pods.gantry.dev(runtime/x@undefined) doesn't exist"),
    ] {
        assert_eq!(failure(&address, GET, &request), ("NOT_FOUND".to_owned(), text.to_owned()));
    }
    served.end();
    g.remove_all();
}

#[test]
fn watchers_learn_of_all_changes() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let first = g.detached(&[], &["sleep", "600"]);
    let client = spawn_script("node_client.py", &[&address, WATCH, &json!({ "type": "pods" }).to_string()]);
    // The type of an event is absent when it is CREATED, the default.
    let has = |event: Option<&str>, pod: &str, text: &str| {
        let said = client.stdout();
        let complete = said.rfind('\n').map_or("", |end| &said[..=end]);
        let matches = |row: &Value| {
            let is_kind = row["event_type"].as_str() == event;
            is_kind && row["resource"]["metadata"]["id"] == pod && yaml(&row["resource"]).contains(text)
        };
        json_lines(complete).iter().any(matches).then_some(())
    };
    wait_for("the pod that exists", || has(None, &first, "state: \"running\""));
    let second = g.detached(&[], &["sleep", "600"]);
    wait_for("the new pod", || has(None, &second, "").or_else(|| has(Some("UPDATED"), &second, "")));
    g.run(&["stop", "--time=0", &second]).succeeded();
    wait_for("its end", || has(Some("UPDATED"), &second, "state: \"exited\""));
    g.run(&["rm", &second]).succeeded();
    wait_for("its removal", || has(Some("DELETED"), &second, ""));
    // These changes have no event.
    let version = |id: &str| version(&address, "pods", id);
    let before = version(&first);
    g.run(&["rename", &first, "shop"]).succeeded();
    wait_for("its name", || has(Some("UPDATED"), &first, "name: \"shop\""));
    assert!(version("shop").parse::<u64>().ok() > before.parse().ok(), "{before}");
    g.run(&["stop", "--time=0", &first]).succeeded();
    wait_for("its end", || has(Some("UPDATED"), &first, "state: \"exited\""));
    g.run(&["gc", "--mark-only"]).succeeded();
    wait_for("the mark", || has(Some("UPDATED"), &first, "state: \"garbage\""));
    drop(client);
    // Without a type, all are watched.
    let client = spawn_script("node_client.py", &[&address, WATCH]);
    wait_for("resources of all types", || {
        let said = client.stdout();
        ["Pods.gantry.dev", "Apps.gantry.dev", "Images.gantry.dev"].iter().all(|kind| said.contains(kind)).then_some(())
    });
    drop(client);
    served.end();
    g.remove_all();
}

#[test]
fn watchers_learn_of_names_of_images() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    let mut client = spawn_script("node_client.py", &[&address, WATCH, &json!({ "type": "images" }).to_string()]);
    client.wait_for_stdout(&image);
    let version = || version(&address, "images", &image).parse::<u64>().unwrap();
    let mut before = version();
    for words in [&["image", "tag", &image, "mine"][..], &["image", "rm", "mine"]] {
        let updates = client.stdout().matches("UPDATED").count();
        g.run(words).succeeded();
        wait_for("the change", || (client.stdout().matches("UPDATED").count() > updates).then_some(()));
        let after = version();
        assert!(after > before, "{words:?}: {before} to {after}");
        before = after;
    }
    drop(client);
    served.end();
}

#[test]
fn a_pod_is_watched_by_its_name() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let pod = g.detached(&["--pod-name=web"], &["sleep", "600"]);
    let request = json!({ "type": "pods", "id": "web" }).to_string();
    let mut client = spawn_script("node_client.py", &[&address, WATCH, &request]);
    client.wait_for_stdout(&pod);
    // It stays the same pod under another name.
    g.run(&["rename", &pod, "shop"]).succeeded();
    wait_for("its change", || client.stdout().contains("UPDATED").then_some(()));
    assert!(!client.stdout().contains("DELETED"));
    drop(client);
    served.end();
    g.remove_all();
}
