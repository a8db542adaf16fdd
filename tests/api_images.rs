//! ListImages and InspectImage: the same facts as the command line, and the filters, one table per field.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_fixtures::{Image as Made, Layer, Style};
use gantry_proto::rkt::v1alpha::{EventFilter, Image, ImageFilter, ImageType, KeyValue, PodState};
use gantry_tests::api::{Api, data};
use gantry_tests::appc::check_image_manifest;
use gantry_tests::{DebianRegistry, Gantry, nanos, pod_id, wait_for};
use serde_json::Value;

fn any() -> ImageFilter {
    ImageFilter::default()
}

fn texts(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<KeyValue> {
    pairs.iter().map(|&(key, value)| KeyValue { key: key.to_owned(), value: value.to_owned() }).collect()
}

fn get<'a>(pairs: &'a [KeyValue], key: &str) -> Option<&'a str> {
    pairs.iter().find(|pair| pair.key == key).map(|pair| pair.value.as_str())
}

/// An image with its own label and annotation.
fn image(style: Style, label: (&str, &str), note: Option<(&'static str, &'static str)>) -> Made {
    let layer = Layer::new().file("hello", format!("{label:?}\n"), 0o644);
    let built = Made::builder().layer(layer).style(style).label(label.0, label.1).label("all", "1");
    let built = built.edit_manifest(move |manifest| {
        if let Some((key, value)) = note {
            manifest["annotations"] = serde_json::json!({ key: value, "common": "yes" });
        }
    });
    built.build().unwrap()
}

/// Compares one image with the output of `image list` and `image cat-manifest --appc`.
#[track_caller]
fn same(g: &Gantry, image: &Image, listed: &[Value]) {
    let row =
        listed.iter().find(|row| row["id"] == image.id).unwrap_or_else(|| panic!("{} is not in {listed:?}", image.id));
    assert_eq!(image.import_timestamp, nanos(row["imported"].as_str().unwrap()).div_euclid(1_000_000_000), "{row}");
    assert_eq!(image.size, row["size"].as_i64().unwrap(), "{row}");
    let names: Vec<&str> = row["names"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if image.name.is_empty() {
        assert!(names.is_empty(), "{row}");
    } else {
        assert!(names.contains(&&*format!("{}:{}", image.name, image.version)), "{row} {image:?}");
    }
    let manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
    assert_eq!(manifest, g.run(&["image", "cat-manifest", "--appc", &image.id]).ok().json());
    check_image_manifest(&manifest).unwrap();
    assert_eq!(g.run(&["image", "cat-manifest", &image.id]).ok().json()["schemaVersion"], 2, "as it came");
}

#[test]
fn images_match_the_command_line() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    assert!(api.list_images(Vec::new(), true).is_empty());
    let oci = image(Style::Oci, ("kind", "oci"), Some(("note", "x")));
    let docker = image(Style::Docker, ("kind", "docker"), None);
    let ids = [g.import("first", &oci), g.import("second", &docker), g.fixture()];
    let listed = g.json(&["image", "list"]).as_array().unwrap().clone();
    let images = api.list_images(Vec::new(), false);
    assert_eq!(images.len(), 3, "{images:?}");
    assert!(images.is_sorted_by(|a, b| a.id < b.id), "by id");
    let detailed = api.list_images(Vec::new(), true);
    for (plain, detailed) in images.iter().zip(&detailed) {
        assert!(plain.manifest.is_empty(), "only with detail");
        same(&g, detailed, &listed);
        assert_eq!(*detailed, api.inspect_image(&plain.id));
        assert_eq!(Image { manifest: Vec::new(), ..detailed.clone() }, *plain);
        assert_eq!((get(&plain.labels, "os"), get(&plain.labels, "arch")), (Some("linux"), Some("amd64")));
    }
    let [oci, docker, standard] = ids.map(|id| api.inspect_image(&id));
    let format = |image: &Image| image.base_format.as_ref().map(|format| (format.r#type(), format.version.clone()));
    assert_eq!(format(&oci), Some((ImageType::Oci, "1.1.0".into())));
    assert_eq!(format(&docker), Some((ImageType::Docker, "2.2".into())));
    assert_eq!((get(&oci.annotations, "note"), get(&oci.annotations, "common")), (Some("x"), Some("yes")));
    assert_eq!((get(&oci.labels, "kind"), get(&docker.labels, "kind")), (Some("oci"), Some("docker")));
    assert!(docker.annotations.is_empty());
    assert_eq!(get(&standard.labels, "org.opencontainers.image.title"), Some("gantry-fixture"));

    // Each form of the id finds the image, whole or shortened.
    let hex = oci.id.trim_start_matches("sha256:");
    for id in [hex, &hex[..20], &oci.id[..30], &format!("sha512-{hex}"), &format!("sha512-{}", &hex[..20])] {
        assert_eq!(api.inspect_image(id), oci, "{id}");
    }
    for id in ["sha256:", "", "no id", "\u{1b}[2J", &format!("sha256:{}", "0".repeat(64))] {
        let status = api.try_inspect_image(id).unwrap_err();
        assert_eq!(status.code(), tonic::Code::NotFound, "{id}: {status}");
        assert!(status.message().starts_with("ACI info not found with blob key \""), "{status}");
        assert!(!status.message().contains('\u{1b}'), "{status:?}");
    }
    g.run(&["image", "rm", &docker.id]).succeeded();
    assert_eq!(api.try_inspect_image(&docker.id).unwrap_err().code(), tonic::Code::NotFound);
    assert_eq!(api.list_images(Vec::new(), false).len(), 2);
    drop(api);
    served.end();
    damaged(&g, &oci);
}

/// An image whose manifest is lost is listed with the facts of its row, by a server that has not read the manifest
/// before.
#[track_caller]
fn damaged(g: &Gantry, whole: &Image) {
    let id = &whole.id;
    let blobs = g.dir().join("blobs");
    let path = blobs.join("sha256").join(id.trim_start_matches("sha256:"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    std::fs::remove_file(&path).unwrap();
    let served = g.serve(&[]);
    let api = served.api();
    assert_eq!(api.list_images(Vec::new(), true).len(), 2, "it is still listed");
    let shown = api.inspect_image(id);
    assert!(shown.annotations.is_empty() && !whole.annotations.is_empty(), "its manifest is lost: {shown:?}");
    assert_eq!((&shown.id, shown.size, &shown.name), (id, whole.size, &whole.name));
    drop(api);
    served.end();
    std::fs::write(&path, bytes).unwrap();
    g.run(&["doctor"]).succeeded();
}

#[test]
fn each_filter_field_selects_images() {
    let g = Gantry::new();
    let registry = DebianRegistry::start();
    let served = g.serve(&[]);
    let api = served.api();
    let one = image(Style::Oci, ("kind", "one"), Some(("note", "x")));
    let two = image(Style::Oci, ("kind", "two"), Some(("note", "y")));
    // The first two are imported in different seconds; the third has no name.
    let fetch = |layout: &str, name: &str| {
        registry.push(layout, name);
        let reference = format!("{}/{name}", registry.host());
        g.run(&["--insecure-options=http", "fetch", &reference]).ok().stdout.trim().to_owned()
    };
    let first = fetch(&g.layout("one", &one), "coreos.com/etcd:v1");
    let at = |id: &str| api.inspect_image(id).import_timestamp;
    let second_of_first = at(&first);
    wait_for("the next second", || (gantry_tests::now_ns() / 1_000_000_000 > second_of_first).then_some(()));
    let second = fetch(&g.layout("two", &two), "k8s.io/etcd-backup:v2");
    let host = registry.host();
    let shown = api.inspect_image(&first);
    assert_eq!((shown.name, shown.version), (format!("{host}/coreos.com/etcd"), "v1".to_owned()));
    let it = Two { host, times: (at(&first), at(&second)), first, second };
    assert!(it.times.0 < it.times.1);
    it.assert_matches(&api, names(&it.host));
    it.assert_matches(&api, facts(&it));
    let either = |filters: Vec<ImageFilter>| api.list_images(filters, false).len();
    assert_eq!(either(vec![bases(&["etcd"]), notes(&[("note", "y")])]), 2);
    assert_eq!(either(vec![bases(&["etcd"]), notes(&[("note", "x")])]), 1);
    assert_eq!(either(vec![bases(&["x"]), any()]), 2);
    assert_eq!(either(vec![bases(&["x"]), words(&["y"])]), 0);
    drop(api);
    served.end();
}

/// Two images with names of a registry on `host`, and the seconds in which they were imported.
struct Two {
    host: String,
    first: String,
    second: String,
    times: (i64, i64),
}

impl Two {
    /// A description, the filter, and the numbers of the matching images.
    #[track_caller]
    fn assert_matches(&self, api: &Api, rows: Vec<(&str, ImageFilter, &str)>) {
        for (what, filter, want) in rows {
            let ids = api.image_ids(filter.clone());
            let both = [(&self.first, '1'), (&self.second, '2')];
            let found: String = both.iter().filter(|(id, _)| ids.contains(id)).map(|(_, it)| *it).collect();
            assert_eq!(found, want, "{what}: {filter:?}");
        }
    }
}

fn bases(list: &[&str]) -> ImageFilter {
    ImageFilter { base_names: texts(list), ..any() }
}

fn words(list: &[&str]) -> ImageFilter {
    ImageFilter { keywords: texts(list), ..any() }
}

fn labels(list: &[(&str, &str)]) -> ImageFilter {
    ImageFilter { labels: pairs(list), ..any() }
}

fn notes(list: &[(&str, &str)]) -> ImageFilter {
    ImageFilter { annotations: pairs(list), ..any() }
}

/// Filters by name.
fn names(host: &str) -> Vec<(&'static str, ImageFilter, &'static str)> {
    let on_host = |list: &[&str]| list.iter().map(|it| format!("{host}/{it}")).collect();
    let prefixes = |list: &[&str]| ImageFilter { prefixes: on_host(list), ..any() };
    let full = |list: &[&str]| ImageFilter { full_names: on_host(list), ..any() };
    vec![
        ("nothing asked for", any(), "12"),
        ("prefix", prefixes(&["core"]), "1"),
        ("any prefix", prefixes(&["x", "k8s.io/", "core"]), "12"),
        ("of the whole name", ImageFilter { prefixes: texts(&["coreos.com"]), ..any() }, ""),
        ("base name", bases(&["etcd"]), "1"),
        ("any base name", bases(&["etcd", "etcd-backup"]), "12"),
        ("no part of it", bases(&["coreos.com/etcd", "backup"]), ""),
        ("keyword", words(&["etcd"]), "12"),
        ("any keyword", words(&["nothing", "back"]), "2"),
        ("not the tag", words(&["v1"]), ""),
        ("no pattern", words(&["et%"]), ""),
        ("full name", full(&["coreos.com/etcd"]), "1"),
        ("any full name", full(&["coreos.com/etcd", "k8s.io/etcd-backup"]), "12"),
        ("without tag", full(&["coreos.com/etcd:v1"]), ""),
    ]
}

/// Filters by the other fields, and by several fields at once.
fn facts(it: &Two) -> Vec<(&'static str, ImageFilter, &'static str)> {
    let ids = |list: &[&str]| ImageFilter { ids: texts(list), ..any() };
    let after = |time: i64| ImageFilter { imported_after: time, ..any() };
    let before = |time: i64| ImageFilter { imported_before: time, ..any() };
    let (t1, t2) = it.times;
    let all = ImageFilter {
        base_names: texts(&["etcd"]),
        prefixes: vec![format!("{}/c", it.host)],
        full_names: vec![format!("{}/coreos.com/etcd", it.host)],
        keywords: texts(&["core"]),
        labels: pairs(&[("kind", "one")]),
        annotations: pairs(&[("note", "x")]),
        imported_after: t1 - 1,
        imported_before: t2,
        ids: texts(&[&it.first]),
    };
    vec![
        ("id", ids(&[&it.first]), "1"),
        ("any id", ids(&[&it.first, &it.second, "x"]), "12"),
        ("appc's id", ids(&[&it.first.replace("sha256:", "sha512-")]), "1"),
        ("digits", ids(&[&it.first.replace("sha256:", "")]), "1"),
        ("whole ids", ids(&[&it.first[..20]]), ""),
        ("label", labels(&[("kind", "one")]), "1"),
        ("all labels", labels(&[("kind", "one"), ("all", "1")]), "1"),
        ("all labels", labels(&[("kind", "one"), ("all", "2")]), ""),
        ("label of both", labels(&[("all", "1"), ("os", "linux")]), "12"),
        ("annotation", notes(&[("note", "y")]), "2"),
        ("all annotations", notes(&[("note", "y"), ("common", "yes")]), "2"),
        ("all annotations", notes(&[("note", "y"), ("common", "no")]), ""),
        ("after", after(t1), "2"),
        ("after is not at", after(t2), ""),
        ("after", after(t1 - 1), "12"),
        ("before", before(t2), "1"),
        ("before is not at", before(t1), ""),
        ("before", before(t2 + 1), "12"),
        ("0 and less ask for nothing", ImageFilter { imported_after: 0, imported_before: -5, ..any() }, "12"),
        ("between", ImageFilter { imported_after: t1 - 1, imported_before: t1 + 1, ..any() }, "1"),
        ("both hold", ImageFilter { keywords: texts(&["etcd"]), ..labels(&[("kind", "two")]) }, "2"),
        ("one does not", ImageFilter { keywords: texts(&["backup"]), ..labels(&[("kind", "one")]) }, ""),
        ("all fields", all, "1"),
    ]
}

/// Two names of one image, and labels of its configuration with the same names as the image's own.
#[test]
fn images_are_found_by_every_name_and_tag() {
    let g = Gantry::new();
    let registry = DebianRegistry::start();
    let served = g.serve(&[]);
    let api = served.api();
    let made = Made::builder().layer(Layer::new().file("hello", "x", 0o644)).label("kind", "k");
    let made = made.label("version", "9.9").label("os", "plan9").label("name", "other").build().unwrap();
    let layout = g.layout("it", &made);
    let mut id = String::new();
    for name in ["fixture:1", "fixture:one", "other/thing:2"] {
        registry.push(&layout, name);
        let reference = format!("{}/{name}", registry.host());
        id = g.run(&["--insecure-options=http", "fetch", &reference]).ok().stdout.trim().to_owned();
    }
    let shown = api.inspect_image(&id);
    let own: Vec<_> = ["name", "version", "os", "arch", "kind"].iter().map(|key| get(&shown.labels, key)).collect();
    assert_eq!(own, [None, Some("1"), Some("linux"), Some("amd64"), Some("k")], "{shown:?}");
    // The kubelet's query for an image: the name as a keyword, the tag as the label `version`.
    let found = |name: &str, version: &str| {
        let name = format!("{}/{name}", registry.host());
        !api.image_ids(ImageFilter { keywords: vec![name], ..labels(&[("version", version)]) }).is_empty()
    };
    for (name, version, want) in [
        ("fixture", "1", true),
        ("fixture", "one", true),
        ("fixture", "2", false),
        ("fixture", "9.9", false),
        ("other/thing", "2", true),
        ("other/thing", "1", false),
    ] {
        assert_eq!(found(name, version), want, "{name}:{version}");
    }
    // Events use the same name of the image.
    let named = |name: String| {
        let filter =
            EventFilter { names: vec![name], since_time: 1, until_time: now_seconds(), ..EventFilter::default() };
        api.listen(filter).rest()
    };
    wait_for("the second after the import", || (now_seconds() > shown.import_timestamp).then_some(()));
    let events = named(shown.name.clone());
    assert_eq!(events.iter().map(|it| (&it.id, &it.from)).collect::<Vec<_>>(), [(&id, &shown.name)]);
    assert_eq!(data(&events[0], "version"), Some("1"));
    assert_eq!(named(format!("{}:1", shown.name)).len(), 1, "and with its tag");
    drop(api);
    served.end();
}

fn now_seconds() -> i64 {
    gantry_tests::now_ns() / 1_000_000_000
}

/// Tags move. A pod keeps the image from which it was made.
#[test]
fn apps_keep_their_image_name_when_tags_move() {
    let g = Gantry::new();
    let registry = DebianRegistry::start();
    let served = g.serve(&[]);
    let api = served.api();
    let fixture = Made::builder().layer(Layer::new().file("bin/app", g.app_bytes(), 0o755)).entrypoint(&["/bin/app"]);
    let fixture = fixture.build().unwrap();
    let fetch = |layout: &str, name: &str| {
        registry.push(layout, name);
        let reference = format!("{}/{name}", registry.host());
        g.run(&["--insecure-options=http", "fetch", &reference]).ok().stdout.trim().to_owned()
    };
    let (first, second) = (g.layout("first", &fixture), g.layout("second", &image(Style::Oci, ("kind", "x"), None)));
    let id = fetch(&first, "app:latest");
    let run = |image: &str| pod_id(&g.run(&["run", "--net=none", "-d", image, "--", "exit", "0"]).ok());
    let full = format!("{}/app:latest", registry.host());
    let pods = [run(&full), run("app"), run(&id)];
    let called = |pod: &str| {
        let image = api.inspect_pod(pod).apps.remove(0).image.unwrap();
        (image.id, image.name, image.version)
    };
    let want = (id.clone(), format!("{}/app", registry.host()), "latest".to_owned());
    for pod in &pods {
        api.wait_state(pod, PodState::Exited);
        assert_eq!(called(pod), want);
    }
    assert_eq!(fetch(&first, "aaa/other:5"), id, "a name that sorts before it");
    pods.iter().for_each(|pod| assert_eq!(called(pod), want, "with another name"));
    assert_ne!(fetch(&second, "app:latest"), id);
    pods.iter().for_each(|pod| assert_eq!(called(pod), want, "the tag is another image's"));
    drop(api);
    served.end();
}
