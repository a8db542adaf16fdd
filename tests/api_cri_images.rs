//! Images of the Kubernetes CRI, from Debian's registry and a faulty one, by a client that shares only the .proto
//! files.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_fixtures::{Image, Layer};
use gantry_tests::cri::serve;
use gantry_tests::faulty_registry::{self, Access, Fault, FaultyRegistry};
use gantry_tests::python::run_script;
use gantry_tests::{DebianRegistry, Gantry, json_lines, talos, wait_for, write_index};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The reply of a call of ImageService.
#[track_caller]
fn call(address: &str, method: &str, request: &Value) -> Value {
    talos::call(address, &format!("runtime.v1.ImageService/{method}"), request).remove(0)
}

/// The code and the text of a call of ImageService that fails.
#[track_caller]
fn failure(address: &str, method: &str, request: &Value) -> (String, String) {
    talos::failure(address, &format!("runtime.v1.ImageService/{method}"), request)
}

fn named(name: &str) -> Value {
    json!({ "image": { "image": name } })
}

#[track_caller]
fn pull(address: &str, name: &str) -> String {
    call(address, "PullImage", &named(name))["image_ref"].as_str().unwrap().to_owned()
}

#[track_caller]
fn status(address: &str, name: &str) -> Value {
    call(address, "ImageStatus", &named(name))["image"].take()
}

#[track_caller]
fn list(address: &str, filter: &Value) -> Vec<Value> {
    call(address, "ListImages", filter)["images"].as_array().cloned().unwrap_or_default()
}

#[track_caller]
fn remove(address: &str, name: &str) {
    assert_eq!(call(address, "RemoveImage", &named(name)), json!({}));
}

fn app(g: &Gantry, text: &str) -> gantry_fixtures::ImageBuilder {
    let layer = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755).file("text", text, 0o644);
    Image::builder().layer(layer).entrypoint(&["/bin/app"])
}

fn push(g: &Gantry, registry: &DebianRegistry, image: &Image, names: &[&str]) {
    let from = format!("{}:latest", g.layout(&image.id()[7..19], image));
    names.iter().for_each(|name| registry.push(&from, name));
}

#[test]
fn all_references_lead_to_one_image() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let (image, host) = (app(&g, "one").build().unwrap(), registry.host());
    push(&g, &registry, &image, &["app:1", "app:latest", "other:2"]);
    let (served, address) = serve(&g);
    assert_eq!(list(&address, &json!({})), Vec::<Value>::new());
    assert_eq!(status(&address, &format!("{host}/app:1")), Value::Null);
    for name in ["app:1", "app", "other:2"] {
        assert_eq!(pull(&address, &format!("{host}/{name}")), image.id());
    }
    let found = status(&address, &image.id());
    let tags = ["app:1", "app:latest", "other:2"].map(|name| format!("{host}/{name}"));
    let digests = ["app", "other"].map(|name| format!("{host}/{name}@{}", image.id()));
    assert_eq!((&found["id"], &found["repo_tags"]), (&json!(image.id()), &json!(tags)));
    assert_eq!(found["repo_digests"], json!(digests));
    assert!(found["size"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{found}");
    let bare = image.id().trim_start_matches("sha256:").to_owned();
    let prefix = bare[..12].to_owned();
    for name in tags.iter().chain(&digests).chain([&image.id(), &bare, &prefix, &format!("{host}/app")]) {
        assert_eq!(status(&address, name), found, "{name}");
        assert_eq!(list(&address, &json!({ "filter": named(name) })), std::slice::from_ref(&found), "{name}");
    }
    for name in [format!("{host}/app:2"), format!("{host}/none@{}", image.id()), "0".repeat(64)] {
        assert_eq!(status(&address, &name), Value::Null, "{name}");
        assert_eq!(list(&address, &json!({ "filter": named(&name) })), Vec::<Value>::new(), "{name}");
    }
    assert_eq!(list(&address, &json!({})), std::slice::from_ref(&found));
    let streamed = talos::call(&address, "runtime.v1.ImageService/StreamImages", &json!({}));
    assert_eq!(streamed, [json!({ "images": [found] })]);
    served.kill();
    let (served, address) = serve(&g);
    assert_eq!(status(&address, &tags[0]), found, "after a restart of gantryd");
    served.end();
}

#[test]
fn a_reloaded_configuration_counts_for_calls() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let image = app(&g, "one").build().unwrap();
    push(&g, &registry, &image, &["app:1"]);
    let (mut served, address) = serve(&g);
    assert_eq!(status(&address, "app:1"), Value::Null);
    let host = registry.host();
    let _config = g.write("gantryd.toml", &format!("gc-interval = '1h'\ndefault-registry = '{host}'\n"));
    served.daemon().signal(Signal::HUP);
    served.daemon().wait_for_stderr("configuration reloaded");
    assert_eq!(pull(&address, "app:1"), image.id());
    assert_eq!(status(&address, "app:1")["repo_tags"], json!([format!("{host}/app:1")]));
    remove(&address, "app:1");
    assert_eq!(status(&address, &image.id()), Value::Null);
    served.end();
}

#[test]
fn digests_of_an_index_are_kept() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let (ours, arm) = (app(&g, "amd").build().unwrap(), app(&g, "arm").platform("linux", "arm64").build().unwrap());
    let dir = g.scratch().join("index");
    write_index(&dir, &[&arm, &ours]);
    registry.push(&format!("oci:{}:latest", dir.display()), "many:1");
    let (served, address) = serve(&g);
    let name = format!("{}/many", registry.host());
    assert_eq!(pull(&address, &format!("{name}:1")), ours.id());
    let by_tag = status(&address, &ours.id());
    let digest = by_tag["repo_digests"][0].as_str().unwrap().to_owned();
    assert!(digest.starts_with(&format!("{name}@sha256:")) && !digest.ends_with(&ours.id()), "{by_tag}");
    remove(&address, &digest);
    // The digest can be pulled again. Without a tag, it is the only name.
    assert_eq!(pull(&address, &digest), ours.id());
    let by_digest = status(&address, &digest);
    assert_eq!((&by_digest["repo_tags"], &by_digest["repo_digests"]), (&Value::Null, &json!([digest])));
    assert_eq!(pull(&address, &format!("{name}@{}", ours.id())), ours.id());
    served.end();
}

#[test]
fn users_and_configurations_are_shown() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let (served, address) = serve(&g);
    for (name, user, key, want) in [
        ("uid", "1002", "uid", json!({ "value": "1002" })),
        ("uid-group", "1003:1004", "uid", json!({ "value": "1003" })),
        ("username", "www-data", "username", json!("www-data")),
        ("username-group", "www-data:1004", "username", json!("www-data")),
    ] {
        let image = app(&g, name).user(user).build().unwrap();
        push(&g, &registry, &image, &[&format!("{name}:1")]);
        let name = format!("{}/{name}:1", registry.host());
        let _ = pull(&address, &name);
        let reply = call(&address, "ImageStatus", &json!({ "image": { "image": name }, "verbose": true }));
        let found = &reply["image"];
        assert_eq!(found[key], want, "{found}");
        assert_eq!(found["uid"].is_null(), key != "uid", "{found}");
        let info: Value = serde_json::from_str(reply["info"]["info"].as_str().unwrap()).unwrap();
        assert_eq!(info["imageSpec"]["config"]["User"], user, "{info}");
    }
    assert_eq!(list(&address, &json!({})).len(), 4);
    let info = call(&address, "ImageFsInfo", &json!({}));
    let images = &info["image_filesystems"][0];
    assert!(std::path::Path::new(images["fs_id"]["mountpoint"].as_str().unwrap()).is_dir(), "{info}");
    for key in ["used_bytes", "inodes_used"] {
        assert!(images[key]["value"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{info}");
    }
    assert!(images["timestamp"].is_string(), "{info}");
    served.end();
}

#[test]
fn a_removed_image_loses_all_names() {
    let (g, one, two) = (Gantry::new(), DebianRegistry::start(), DebianRegistry::start());
    let image = app(&g, "one").build().unwrap();
    for registry in [&one, &two] {
        push(&g, registry, &image, &["app:1", "app:2", "app:3"]);
    }
    let (served, address) = serve(&g);
    let names = [(&one, 1), (&one, 2), (&two, 3)].map(|(registry, tag)| format!("{}/app:{tag}", registry.host()));
    let digest = format!("{}/app@{}", two.host(), image.id());
    for by in [&names[0], &names[2], &digest, &image.id(), &image.id()[7..19].to_owned()] {
        for name in &names {
            assert_eq!(pull(&address, name), image.id());
        }
        remove(&address, by);
        for name in names.iter().chain([&digest, &image.id()]) {
            assert_eq!(status(&address, name), Value::Null, "{name} after the removal of {by}");
        }
        assert_eq!(list(&address, &json!({})), Vec::<Value>::new());
        remove(&address, by);
    }
    remove(&address, &"0".repeat(64));
    let _ = pull(&address, &names[0]);
    let request = named(&image.id()).to_string();
    let args = ["--parallel", "5", &address, "runtime.v1.ImageService/RemoveImage", &request];
    assert_eq!(json_lines(&run_script("node_client.py", &args).ok().stdout), [(); 5].map(|()| json!({})));
    assert_eq!(status(&address, &image.id()), Value::Null);
    assert_eq!(g.json(&["image", "list"]), json!([]));
    served.end();
}

#[test]
fn a_removed_image_stays_while_used() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let image = app(&g, "one").build().unwrap();
    push(&g, &registry, &image, &["app:1"]);
    let (served, address) = serve(&g);
    let name = format!("{}/app:1", registry.host());
    let _ = pull(&address, &name);
    let pod = g.run(&["run", "--detach", "--net=none", &name, "--", "sleep", "1000"]).ok().text().to_owned();
    remove(&address, &name);
    assert_eq!(status(&address, &name), Value::Null);
    let unnamed = status(&address, &image.id());
    assert_eq!((&unnamed["repo_tags"], &unnamed["repo_digests"]), (&Value::Null, &Value::Null), "{unnamed}");
    assert_eq!(g.run(&["exec", &pod, "/bin/app", "cat", "/text"]).ok().stdout, "one");
    let _ = g.run(&["rm", "--force", &pod]).ok();
    remove(&address, &image.id());
    assert_eq!(list(&address, &json!({})), Vec::<Value>::new());
    served.end();
}

#[test]
fn credentials_of_a_request_are_used_once() {
    let (g, registry) = (Gantry::new(), DebianRegistry::protected());
    let image = app(&g, "one").build().unwrap();
    push(&g, &registry, &image, &["app:1"]);
    let (served, address) = serve(&g);
    let host = registry.host();
    let name = format!("{host}/app:1");
    let request = |auth: Value| json!({ "image": { "image": name }, "auth": auth });
    for (auth, says) in [
        (json!({}), "needs credentials"),
        (json!({ "username": "user", "password": "wrong-one" }), "credentials of the request are not accepted"),
        (json!({ "username": "user", "password": "secret", "server_address": "other.example" }), "needs credentials"),
    ] {
        let (code, details) = failure(&address, "PullImage", &request(auth));
        assert!(code == "PERMISSION_DENIED" && details.contains(says), "{code} {details}");
        assert!(!details.contains("wrong-one") && !details.contains("secret"), "{details}");
    }
    assert_eq!(failure(&address, "PullImage", &request(json!({ "auth": "?" }))).0, "INVALID_ARGUMENT");
    // base64 of user:secret
    for auth in [
        json!({ "username": "user", "password": "secret" }),
        json!({ "auth": "dXNlcjpzZWNyZXQ=", "server_address": format!("https://{host}/v1/") }),
    ] {
        assert_eq!(call(&address, "PullImage", &request(auth))["image_ref"], image.id());
    }
    // The image is in the store, but a request without credentials has no access to it.
    assert_eq!(failure(&address, "PullImage", &request(json!({}))).0, "PERMISSION_DENIED");
    let log = served.end();
    assert!(!log.stderr.contains("secret") && !log.stderr.contains("wrong-one"), "{log}");
}

/// A faulty registry with an image of one large layer under `app:1`, and the path of the layer.
fn faulty() -> (FaultyRegistry, String) {
    let registry = FaultyRegistry::start().unwrap();
    let image = faulty_registry::Image::of(&[("big", &vec![7; 3 << 20])]);
    registry.put_image("app", "1", &image);
    let layer = format!("/v2/app/blobs/{}", faulty_registry::digest(&image.layers[0]));
    (registry, layer)
}

#[test]
fn tokens_of_a_request_are_sent() {
    let (g, (registry, _)) = (Gantry::new(), faulty());
    registry.protect(Access::Token(None));
    let (served, address) = serve(&g);
    let request = |auth: Value| json!({ "image": { "image": format!("{}/app:1", registry.host()) }, "auth": auth });
    assert_eq!(failure(&address, "PullImage", &request(json!({ "registry_token": "abc" }))).0, "PERMISSION_DENIED");
    let sent = |value: &str| {
        registry.seen().iter().any(|seen| seen.headers.get("authorization").is_some_and(|it| it == value))
    };
    assert!(sent("Bearer abc"), "{:?}", registry.seen());
    let _ = call(&address, "PullImage", &request(json!({ "identity_token": "refresh-me" })));
    assert!(registry.seen().iter().any(|seen| seen.body.contains("refresh_token=refresh-me")), "{:?}", registry.seen());
    served.end();
}

#[test]
fn cancelled_pulls_leave_nothing() {
    let (g, (registry, layer)) = (Gantry::new(), faulty());
    registry.fault(&layer, [Fault::Stall(1 << 20)]);
    let (served, address) = serve(&g);
    let request = named(&format!("{}/app:1", registry.host())).to_string();
    let method = "runtime.v1.ImageService/PullImage";
    let out = run_script("node_client.py", &["--deadline", "3", &address, method, &request]).exits(talos::FAILED);
    assert!(out.stdout.contains("DEADLINE_EXCEEDED"), "{out}");
    assert_eq!(registry.count(&layer), 1, "the layer was not begun");
    let tmp = g.dir().join("tmp");
    wait_for("the fetch to end", || std::fs::read_dir(&tmp).unwrap().next().is_none().then_some(()));
    assert_eq!(list(&address, &json!({})), Vec::<Value>::new());
    assert_eq!(registry.count(&layer), 1, "the fetch went on");
    let _ = call(&address, "PullImage", &serde_json::from_str(&request).unwrap());
    assert_eq!(list(&address, &json!({})).len(), 1);
    served.end();
}

#[test]
fn pulls_and_removals_may_run_at_once() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let image = app(&g, "one").build().unwrap();
    push(&g, &registry, &image, &["app:1"]);
    let (served, address) = serve(&g);
    let request = named(&format!("{}/app:1", registry.host())).to_string();
    let calls = |method: &str| {
        let args = ["--parallel", "8", &address, &format!("runtime.v1.ImageService/{method}"), &request];
        gantry_tests::python::spawn_script("node_client.py", &args)
    };
    for _ in 0..3 {
        let clients = [calls("PullImage"), calls("RemoveImage"), calls("PullImage")];
        clients.into_iter().for_each(|client| client.wait().succeeded());
    }
    assert_eq!(pull(&address, &format!("{}/app:1", registry.host())), image.id());
    assert_eq!(list(&address, &json!({})).len(), 1);
    served.end();
}

#[test]
fn unusable_references_are_refused() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let id = format!("sha256:{}", "0".repeat(64));
    for name in ["", "-", "/etc/passwd", "oci:/x", "UPPER/case", &id, &"x".repeat(5000)] {
        let (code, details) = failure(&address, "PullImage", &named(name));
        assert_eq!(code, "INVALID_ARGUMENT", "{name}: {details}");
    }
    assert_eq!(failure(&address, "PullImage", &json!({})).0, "INVALID_ARGUMENT");
    assert_eq!(failure(&address, "PullImage", &named("registry.invalid/app:1")).0, "UNAVAILABLE");
    served.end();
}
