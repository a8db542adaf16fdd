//! Images, and gantryd's own log, by the Talos node API.

use gantry_tests::faulty_registry::{FaultyRegistry, Image};
use gantry_tests::python::{run_script, spawn_script};
use gantry_tests::talos::{call, failure, message, serve, stream_bytes};
use gantry_tests::{Gantry, json_lines};
use serde_json::{Value, json};

const LIST: &str = "machine.MachineService/ImageList";
const PULL: &str = "machine.MachineService/ImagePull";
const LOGS: &str = "machine.MachineService/Logs";

#[test]
fn images_are_pulled_and_listed() {
    let g = Gantry::new();
    let registry = FaultyRegistry::start().unwrap_or_else(|error| panic!("cannot start the registry: {error}"));
    let digest = registry.put_image("team/app", "1", &Image::of(&[("file", b"x")]));
    let (served, address) = serve(&g);
    assert_eq!(call(&address, LIST, &json!({ "namespace": "NS_CRI" })), Vec::<Value>::new());
    let name = format!("{}/team/app:1", registry.host());
    let pull = json!({ "namespace": "NS_CRI", "reference": name });
    assert_eq!(message(&address, PULL, &pull), json!({}));
    for namespace in ["NS_CRI", "NS_UNKNOWN"] {
        let rows = call(&address, LIST, &json!({ "namespace": namespace }));
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!((&rows[0]["name"], &rows[0]["digest"]), (&json!(name), &json!(digest)), "{rows:?}");
        assert!(rows[0]["size"].is_string() && rows[0]["created_at"].is_string(), "{rows:?}");
    }
    assert_eq!(call(&address, LIST, &json!({ "namespace": "NS_SYSTEM" })), Vec::<Value>::new());
    // The image is a name of gantry's store like any other.
    assert_eq!(g.json(&["image", "list"])[0]["id"], digest);
    // Pulling it again asks the registry, and changes nothing.
    assert_eq!(message(&address, PULL, &pull), json!({}));
    assert_eq!(call(&address, LIST, &json!({})).len(), 1);

    let refused = |reference: &str| failure(&address, PULL, &json!({ "namespace": "NS_CRI", "reference": reference }));
    let (code, text) = refused(&format!("{}/team/app:none", registry.host()));
    assert!(code == "NOT_FOUND" && text.contains("app:none"), "{code}: {text}");
    let (code, text) = refused("127.0.0.1:1/app:1");
    assert_eq!(code, "UNAVAILABLE", "{text}");
    for reference in ["/etc/passwd", "-", "oci:/tmp", ""] {
        let (code, text) = refused(reference);
        assert_eq!(code, "INVALID_ARGUMENT", "{reference}: {text}");
    }
    let (code, text) = failure(&address, PULL, &json!({ "namespace": "NS_SYSTEM", "reference": name }));
    assert_eq!(code, "INVALID_ARGUMENT", "{text}");
    let (code, text) = failure(&address, LIST, &json!({ "namespace": 7 }));
    assert_eq!((&code[..], &text[..]), ("INVALID_ARGUMENT", "unsupported namespace 7"));
    // With a node, each row has its name.
    let out = run_script("node_client.py", &["--nodes", "localhost", &address, LIST]).ok();
    assert_eq!(json_lines(&out.stdout)[0]["metadata"]["hostname"], "localhost");
    served.end();
}

#[test]
fn daemon_log_belongs_to_the_system_namespace() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let request = |tail: i32| json!({ "namespace": "system", "id": "gantryd", "tail_lines": tail });
    let text = |request: &Value| String::from_utf8_lossy(&stream_bytes(&call(&address, LOGS, request))).into_owned();
    let all = text(&request(-1));
    let line = all.lines().find(|line| line.contains("info: serving on")).unwrap_or_else(|| panic!("{all}"));
    assert!(line.starts_with("20") && line[..31].contains("Z "), "{line}");
    assert!(all.ends_with('\n'));
    assert_eq!(text(&request(2)).lines().count(), 2);
    assert_eq!(text(&request(0)), "");
    assert_eq!(text(&json!({ "namespace": "system", "id": "gantryd" })), "");
    let ids = message(&address, "machine.MachineService/LogsContainers", &json!({}));
    assert_eq!(ids["ids"], json!(["gantryd"]));
    let (code, said) = failure(&address, LOGS, &json!({ "namespace": "system", "id": "nosuchservice" }));
    assert_eq!((&code[..], &said[..]), ("NOT_FOUND", "log \"nosuchservice\" was not registered"));
    // A follower gets new lines: gantryd logs the pull.
    let follow = json!({ "namespace": "system", "id": "gantryd", "tail_lines": 1, "follow": true }).to_string();
    let mut client = spawn_script("node_client.py", &[&address, LOGS, &follow]);
    let first = client.wait_for_stdout("\n");
    let registry = FaultyRegistry::start().unwrap_or_else(|error| panic!("cannot start the registry: {error}"));
    let _digest = registry.put_image("app", "1", &Image::of(&[("file", b"x")]));
    let pull = json!({ "namespace": "NS_CRI", "reference": format!("{}/app:1", registry.host()) });
    assert_eq!(message(&address, PULL, &pull), json!({}));
    let all = gantry_tests::wait_for("the line of the pull", || {
        let said = client.stdout();
        let complete = &said[..=said.rfind('\n')?];
        let text = String::from_utf8_lossy(&stream_bytes(&json_lines(complete))).into_owned();
        text.contains("fetched ").then_some(text)
    });
    assert!(all.lines().count() >= 2, "{first} {all}");
    drop(client);
    served.end();
}
