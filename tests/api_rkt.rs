//! Clients of rkt's API work with gantryd: the kubelet's old integration, from an appc manifest to the logs, and the
//! queries of cAdvisor. Manifests are validated by the rules of appc's schema.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_proto::rkt::v1alpha::{AppState, GetLogsRequest, ImageFilter, KeyValue, Pod, PodFilter, PodState};
use gantry_tests::api::Api;
use gantry_tests::appc::{check_image_manifest, check_pod_manifest};
use gantry_tests::{DebianRegistry, Gantry, pod_id};
use serde_json::{Value, json};

const MANAGED: &str = "rkt.kubernetes.io/managed-by-kubelet";
const UID: &str = "rkt.kubernetes.io/uid";
const NAME: &str = "rkt.kubernetes.io/name";
const RESTARTS: &str = "rkt.kubernetes.io/restart-count";
const HASH: &str = "rkt.kubernetes.io/container-hash";

fn pair(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: value.to_owned() }
}

fn get<'a>(pairs: &'a [KeyValue], key: &str) -> Option<&'a str> {
    pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value.as_str())
}

/// The manifest of a pod as the kubelet unmarshals it.
fn manifest_of(pod: &Pod) -> Value {
    let manifest = serde_json::from_slice(&pod.manifest).unwrap();
    check_pod_manifest(&manifest).unwrap_or_else(|why| panic!("{why}: {manifest:#}"));
    manifest
}

/// kubelet's `getImageID` and `getImageManifest`: name and tag to id and manifest.
fn image_of(api: &Api, name: &str, tag: &str) -> (String, Value) {
    let filter =
        ImageFilter { keywords: vec![name.to_owned()], labels: vec![pair("version", tag)], ..ImageFilter::default() };
    let image =
        api.list_images(vec![filter], true).pop().unwrap_or_else(|| panic!("cannot find the image {name}:{tag}"));
    let manifest = serde_json::from_slice(&image.manifest).unwrap();
    check_image_manifest(&manifest).unwrap_or_else(|why| panic!("{why}: {manifest:#}"));
    (image.id, manifest)
}

/// A pod manifest as the kubelet generated it from a Kubernetes pod.
fn kubelet_manifest(uid: &str, image: &str, image_manifest: &Value, exec: &[&str]) -> Value {
    let hash = image.replace("sha256:", "sha512-");
    let app = json!({
        "exec": exec, "user": "0", "group": "0",
        "environment": [{ "name": "TOKEN", "value": "hunter2" }],
        "mountPoints": [{ "name": "data", "path": "/data" }],
        "isolators": [
            { "name": "resource/memory", "value": { "default": false, "request": "16M", "limit": "64M" } },
            { "name": "os/linux/no-new-privileges", "value": true },
        ],
    });
    json!({
        "acVersion": "0.8.11", "acKind": "PodManifest",
        "apps": [{
            "name": "it",
            "image": { "id": hash, "name": image_manifest["name"], "labels": image_manifest["labels"] },
            "app": app,
            "mounts": [{ "volume": "data", "path": "/data" }],
            "annotations": [{ "name": HASH, "value": "1234" }],
        }],
        "volumes": [{ "name": "data", "kind": "empty" }],
        "isolators": null,
        "annotations": [
            { "name": MANAGED, "value": "true" }, { "name": UID, "value": uid },
            { "name": NAME, "value": "web-0" }, { "name": RESTARTS, "value": "0" },
        ],
        "ports": null,
    })
}

#[test]
fn kubelet_prepares_runs_lists_and_reads_logs() {
    let g = Gantry::new();
    let registry = DebianRegistry::start();
    let served = g.serve(&[]);
    let api = served.api();
    let info = api.info();
    assert!(info.rkt_version.starts_with("1.30.0") && info.api_version == "1.0.0-alpha", "{info:?}");
    let dir = g.scratch().join("fixture");
    gantry_fixtures::write_standard(&dir, g.app_bytes()).unwrap();
    registry.push(&format!("oci:{}", dir.join("layout").display()), "web:v1");
    let name = format!("{}/web", registry.host());
    g.run(&["--insecure-options=http", "fetch", &format!("{name}:v1")]).succeeded();

    let (image, image_manifest) = image_of(&api, &name, "v1");
    let asked = kubelet_manifest("uid-1", &image, &image_manifest, &["/bin/app", "lines", "3"]);
    let file = g.write("pod.json", &asked.to_string());
    let pod = pod_id(&g.run(&["prepare", "--quiet", "--pod-manifest", &file]).ok());
    g.run(&["run-prepared", "--net=none", &pod]).succeeded();

    // GetPods: by annotation; the manifest, then its contents about each app.
    let managed = || PodFilter { annotations: vec![pair(MANAGED, "true")], ..PodFilter::default() };
    let mine = || PodFilter { annotations: vec![pair(UID, "uid-1")], ..managed() };
    let other = PodFilter { annotations: vec![pair(UID, "uid-2")], ..managed() };
    assert!(api.list_pods(vec![other], true).is_empty());
    let listed = api.list_pods(vec![mine()], true);
    assert_eq!(listed.len(), 1);
    let shown = &listed[0];
    let manifest = manifest_of(shown);
    let told = |name: &str| get(&shown.annotations, name);
    assert_eq!((told(UID), told(NAME), told(RESTARTS)), (Some("uid-1"), Some("web-0"), Some("0")));
    let app = &shown.apps[0];
    assert_eq!((app.name.as_str(), get(&app.annotations, HASH)), ("it", Some("1234")));
    let runtime = &manifest["apps"][0];
    assert_eq!(runtime["name"], "it");
    assert_eq!(runtime["annotations"], json!([{ "name": HASH, "value": "1234" }]));
    assert_eq!(runtime["image"], asked["apps"][0]["image"], "the image it was made from");
    assert_eq!(runtime["mounts"], asked["apps"][0]["mounts"]);
    let inner = &runtime["app"];
    assert_eq!(
        (&inner["exec"], &inner["user"], &inner["group"]),
        (&json!(["/bin/app", "lines", "3"]), &json!("0"), &json!("0"))
    );
    let variables = inner["environment"].as_array().unwrap();
    assert!(variables.contains(&json!({ "name": "TOKEN", "value": "hunter2" })), "{inner}");
    let of_app = app.image.as_ref().unwrap();
    assert_eq!((&of_app.id, &of_app.name, of_app.version.as_str()), (&image, &name, "v1"));

    // GetPodStatus: dead pods have times, states and exit codes.
    let ended = api.wait_state(&pod, PodState::Exited);
    assert!(ended.created_at > 0 && ended.started_at >= ended.created_at, "{ended:?}");
    assert_eq!((ended.apps[0].state(), ended.apps[0].exit_code), (AppState::Exited, 0));
    assert_eq!(api.list_pods(vec![PodFilter { states: vec![PodState::Exited.into()], ..mine() }], true).len(), 1);

    // The id from the manifest works as well.
    let hash = runtime["image"]["id"].as_str().unwrap();
    assert_eq!(api.inspect_image(hash).id, image);
    let of_image = PodFilter { image_ids: vec![hash.to_owned()], ..PodFilter::default() };
    assert_eq!(api.pod_ids(of_image), std::slice::from_ref(&pod));

    // GetContainerLogs: split at MESSAGE=, then a time in the layout 2006-01-02 15:04:05 -0700 MST.
    let request = GetLogsRequest { pod_id: pod.clone(), app_name: "it".to_owned(), ..GetLogsRequest::default() };
    let lines = api.logs(request).rest();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines {
        let (time, message) = line.split_once(" MESSAGE=").unwrap();
        assert!(message.starts_with("line ") && time.ends_with(" +0000 UTC"), "{line}");
    }
    // A printed manifest can be used as input.
    let printed = g.run(&["cat-manifest", "--appc", &pod]).ok().stdout;
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), manifest);
    let again = g.write("again.json", &printed);
    let again = pod_id(&g.run(&["prepare", "--quiet", "--pod-manifest", &again]).ok());
    g.run(&["run-prepared", "--net=none", &again]).succeeded();
    drop(api);
    served.end();
}

#[test]
fn every_pod_has_a_valid_appc_manifest() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let rows: [&[&str]; 6] = [
        &[&image, "--name=a", "--", "true"],
        &["--environment=we.ird=1", "--environment=9x=2", &image, "--name=a", "--user=1:2", "--", "true"],
        &["--volume=v,kind=empty,mode=0700", "--mount=volume=v,target=/v", &image, "--name=a", "--", "true"],
        &[
            "--volume=v,kind=host,source=/usr",
            "--mount=volume=v,target=/v",
            &image,
            "--name=a",
            "--readonly-rootfs=true",
        ],
        &["--memory=64Mi", "--cpu=500m", "--cap-retain=CAP_CHOWN", &image, "--name=a"],
        &["--seccomp=mode=remove,errno=ENOSYS,mount", &image, "--name=a", "--", "true", "---", &image, "--name=b"],
    ];
    for row in rows {
        let pod = pod_id(&g.run(&[&["prepare", "--quiet", "--net=none"], row].concat()).ok());
        let manifest = manifest_of(&api.inspect_pod(&pod));
        assert_eq!(manifest["apps"][0]["name"], "a", "{row:?}");
        let file = g.write("it.json", &manifest.to_string());
        let again = pod_id(&g.run(&["prepare", "--quiet", "--pod-manifest", &file]).ok());
        let apps = |manifest: &Value| manifest["apps"].clone();
        assert_eq!(apps(&manifest_of(&api.inspect_pod(&again))), apps(&manifest), "{row:?}: the manifest round-trips");
    }
    drop(api);
    served.end();
}

/// Unsupported parts of an appc manifest are errors; gantry's own manifests are accepted as before.
#[test]
fn unsupported_appc_manifests_are_rejected() {
    let g = Gantry::new();
    let image = g.fixture();
    let base = kubelet_manifest("u", &image, &json!({ "name": "x", "labels": [] }), &["/bin/app", "true"]);
    for (pointer, value, want) in [
        ("/apps/0/app/isolators/0/name", json!("resource/network-bandwidth"), "resource/network-bandwidth"),
        ("/isolators", json!([{ "name": "resource/memory", "value": {} }]), "resource/memory"),
        ("/volumes/0/kind", json!("tape"), "tape"),
        ("/apps/0/image/id", json!("sha512-0000000000000000"), "no image in the store"),
        ("/acKind", json!("ImageManifest"), "ImageManifest"),
    ] {
        let mut bad = base.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        let file = g.write("bad.json", &bad.to_string());
        let _ = g.run(&["prepare", "--pod-manifest", &file]).exits(125).stderr_contains(&[want]);
    }
    assert!(g.list().is_empty());
    let good = g.write("good.json", &base.to_string());
    let pod = pod_id(&g.run(&["prepare", "--quiet", "--pod-manifest", &good]).ok());
    g.run(&["run-prepared", "--net=none", &pod]).succeeded();
}
