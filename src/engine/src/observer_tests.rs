//! The results of an observer on a real store: filters of images field by field, and pods whose directories are
//! damaged.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

use gantry_model::NetMode;
use gantry_model::id::Algorithm;
use gantry_model::{AppSpec, Edge, Generation, PodId, PodSpec, Process, RequestedImage, Timestamp};
use gantry_store::{Change, ImageFormat, Moved, NewApp, NewImage, NewPod, Store};
use serde_json::json;

use super::*;
use crate::manifest::appc::tests::{plan_of as appc_plan, planned_app};
use crate::pods::pod_dir;

const SECOND: i64 = 1_000_000_000;

struct Home {
    temp: tempfile::TempDir,
    store: Store,
    observer: Observer,
}

impl Home {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let data = temp.path().join("data");
        let store = Store::open(&data).unwrap();
        let observer = Observer::open(Options::new(data)).unwrap();
        Self { temp, store, observer }
    }

    fn blob(&self, bytes: &[u8]) -> ImageId {
        let digest = gantry_fetch::source::digest_of(Algorithm::Sha256, bytes);
        self.store.put_blob(&digest, bytes).unwrap();
        digest
    }

    /// An image that was imported at this second.
    fn image(&self, manifest: &serde_json::Value, labels: &[(&str, &str)], names: &[&str], second: i64) -> ImageId {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        let config = json!({
            "os": "linux", "architecture": "amd64", "config": { "Labels": labels },
            "rootfs": { "type": "layers", "diff_ids": [] }, "seed": second,
        });
        let image = NewImage {
            id: self.blob(manifest.to_string().as_bytes()),
            config: self.blob(config.to_string().as_bytes()),
            format: ImageFormat::Oci,
            layers: Vec::new(),
            size: 7,
            names: names.iter().map(|&name| name.to_owned()).collect(),
        };
        // In the middle of a second: strict bounds compare whole seconds.
        self.store.commit_image(&image, Timestamp(second * SECOND + SECOND / 2)).unwrap().id
    }

    fn blob_path(&self, id: &ImageId) -> std::path::PathBuf {
        self.store.layout().blob(id)
    }

    /// A pod of two apps, `a` and `b`, as Embryo, with its directory and manifest.
    fn pod(&self, image: &ImageId, n: u8) -> PodId {
        let id = PodId::from_random([n; 16]);
        drop(self.store.make_pod_dir(id).unwrap());
        let notes = |name: &str| BTreeMap::from([("of".to_owned(), name.to_owned())]);
        let app = |name: &str| NewApp {
            name: name.parse().unwrap(),
            image: Some(image.clone()),
            image_name: "x".into(),
            id: None,
            annotations: notes(name),
            notifies: false,
            log_path: None,
            volume_images: std::collections::BTreeSet::new(),
            restart: Default::default(),
            labels: BTreeMap::new(),
        };
        let new = NewPod {
            id,
            created: Timestamp(1),
            net: NetMode::None,
            hostname: "h".into(),
            name: None,
            namespace: Default::default(),
            sandbox: false,
            apps: vec![app("a"), app("b")],
            user_annotations: BTreeMap::new(),
            user_labels: BTreeMap::new(),
            volumes: Default::default(),
            cgroup: format!("/gantry/{id}"),
            log_dir: None,
            schedule: None,
        };
        self.store.insert_pod(&new).unwrap();
        let spec_of = |name: &str| AppSpec {
            user_annotations: notes(name),
            ..AppSpec::new(name.parse().unwrap(), RequestedImage::new("x"))
        };
        let spec = PodSpec { apps: vec![spec_of("a"), spec_of("b")], ..PodSpec::default() };
        pod_dir::write_manifest(&self.store.layout().pod_dir(&id), &spec).unwrap();
        id
    }

    fn step(&self, id: PodId, seen: u64, edge: Edge) {
        let change = Change::along(edge);
        assert!(matches!(self.store.step(id, Generation(seen), change).unwrap(), Moved::Yes(_)));
    }

    fn run(&self, id: PodId) {
        let boot = self.store.boot().clone();
        let supervisor = Process { pid: std::process::id(), start_ticks: 1, boot };
        let edges = [Edge::Prepare, Edge::Prepared(Timestamp(1)), Edge::Started { at: Timestamp(1), supervisor }];
        (0..).zip(edges).for_each(|(seen, edge)| self.step(id, seen, edge));
    }
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|&text| text.to_owned()).collect()
}

/// Three images: of one name, of two, of none.
fn three(home: &Home) -> [ImageId; 3] {
    let annotated = json!({ "annotations": { "author": "me", "made": "today" } });
    [
        home.image(&annotated, &[("tier", "db"), ("version", "own")], &["coreos.com/etcd:3"], 10),
        home.image(&json!({ "n": 1 }), &[("tier", "ops")], &["k8s.io/etcd-backup:1", "localhost:5000/tools:dev"], 11),
        home.image(&json!({ "n": 2 }), &[], &[], 12),
    ]
}

#[test]
fn images_are_filtered_by_each_field() {
    let home = Home::new();
    let images = three(&home);
    let f = ImageFilter::default;
    let ids = |all: &[&ImageId]| ImageFilter { ids: all.iter().map(|&id| id.clone()).collect(), ..f() };
    let prefixes = |all: &[&str]| ImageFilter { prefixes: texts(all), ..f() };
    let bases = |all: &[&str]| ImageFilter { base_names: texts(all), ..f() };
    let keywords = |all: &[&str]| ImageFilter { keywords: texts(all), ..f() };
    let full = |all: &[&str]| ImageFilter { full_names: texts(all), ..f() };
    let labels = |all: &[(&str, &str)]| ImageFilter { labels: pairs(all), ..f() };
    let notes = |all: &[(&str, &str)]| ImageFilter { annotations: pairs(all), ..f() };
    let after = |second| ImageFilter { imported_after: Some(second), ..f() };
    let before = |second| ImageFilter { imported_before: Some(second), ..f() };
    let absent = home.blob(b"{}");
    let rows: Vec<(ImageFilter, &[usize])> = vec![
        (f(), &[0, 1, 2]),
        (ImageFilter { never: true, ..f() }, &[]),
        (ids(&[&images[0]]), &[0]),
        (ids(&[&absent, &images[2], &images[0]]), &[0, 2]),
        (ids(&[&absent]), &[]),
        (prefixes(&["coreos.com/"]), &[0]),
        (prefixes(&["localhost:5000/to", "coreos"]), &[0, 1]),
        (prefixes(&["etcd"]), &[]),
        (prefixes(&["coreos.com/etcd:3"]), &[]),
        (bases(&["etcd"]), &[0]),
        (bases(&["tools", "none"]), &[1]),
        (bases(&["etc", "coreos.com/etcd", "etcd:3"]), &[]),
        (keywords(&["etcd"]), &[0, 1]),
        (keywords(&["5000"]), &[1]),
        (keywords(&["etcd:3"]), &[]),
        // The empty text is somewhere in every name, and an image without name has none.
        (keywords(&[""]), &[0, 1]),
        (full(&["localhost:5000/tools"]), &[1]),
        (full(&["coreos.com/etcd", "k8s.io/etcd-backup"]), &[0, 1]),
        (full(&["coreos.com/etcd:3", "etcd", ""]), &[]),
        (labels(&[("tier", "db")]), &[0]),
        (labels(&[("tier", "db"), ("os", "linux"), ("arch", "amd64")]), &[0]),
        (labels(&[("tier", "db"), ("tier", "ops")]), &[]),
        (labels(&[("nothing", "")]), &[]),
        (labels(&[("tier", "DB")]), &[]),
        // The tag of each name, independent of the configuration's version label.
        (labels(&[("version", "own")]), &[]),
        (labels(&[("version", "3")]), &[0]),
        (labels(&[("version", "1")]), &[1]),
        (labels(&[("version", "dev")]), &[1]),
        (ImageFilter { base_names: texts(&["tools"]), ..labels(&[("version", "dev")]) }, &[1]),
        (ImageFilter { base_names: texts(&["tools"]), ..labels(&[("version", "1")]) }, &[]),
        (labels(&[("version", "latest")]), &[2]),
        (notes(&[("author", "me")]), &[0]),
        (notes(&[("author", "me"), ("made", "today")]), &[0]),
        (notes(&[("author", "me"), ("made", "never")]), &[]),
        (notes(&[("nobody", "me")]), &[]),
        (after(10), &[1, 2]),
        (after(12), &[]),
        (before(12), &[0, 1]),
        (before(10), &[]),
        // Together: none holds, some, all, all but for two names of one image that would have to be one.
        (ImageFilter { keywords: texts(&["none"]), labels: pairs(&[("a", "b")]), ..after(12) }, &[]),
        (ImageFilter { keywords: texts(&["etcd"]), labels: pairs(&[("a", "b")]), ..after(9) }, &[]),
        (
            ImageFilter {
                ids: images[..2].to_vec(),
                prefixes: texts(&["local"]),
                base_names: texts(&["tools"]),
                keywords: texts(&["host"]),
                full_names: texts(&["localhost:5000/tools"]),
                labels: pairs(&[("tier", "ops"), ("version", "dev")]),
                imported_before: Some(13),
                ..after(10)
            },
            &[1],
        ),
        (ImageFilter { prefixes: texts(&["k8s"]), base_names: texts(&["tools"]), ..f() }, &[]),
    ];
    for (filter, want) in rows {
        assert_eq!(found(&home, &images, std::slice::from_ref(&filter)), want, "{filter:?}");
        let never = ImageFilter { never: true, ..f() };
        assert_eq!(found(&home, &images, &[never, filter.clone()]), want, "{filter:?}");
        assert_eq!(found(&home, &images, &[filter, f()]), [0, 1, 2]);
    }
}

#[test]
fn an_image_may_match_any_filter() {
    let home = Home::new();
    let images = three(&home);
    let full = |name| ImageFilter { full_names: texts(&[name]), ..ImageFilter::default() };
    let tier = |value| ImageFilter { labels: pairs(&[("tier", value)]), ..ImageFilter::default() };
    let author = ImageFilter { annotations: pairs(&[("author", "me")]), ..ImageFilter::default() };
    let after = ImageFilter { imported_after: Some(11), ..ImageFilter::default() };
    let rows: [(Vec<ImageFilter>, &[usize]); 4] = [
        (vec![], &[0, 1, 2]),
        (vec![full("x"), tier("x")], &[]),
        (vec![full("x"), tier("ops")], &[1]),
        (vec![after, author, full("x")], &[0, 2]),
    ];
    for (filters, want) in rows {
        assert_eq!(found(&home, &images, &filters), want, "{filters:?}");
    }
}

fn found(home: &Home, images: &[ImageId], filters: &[ImageFilter]) -> Vec<usize> {
    let views = home.observer.images(filters).unwrap();
    assert!(views.is_sorted_by_key(|view| view.row.id.clone()));
    let mut found: Vec<usize> =
        views.iter().map(|view| images.iter().position(|id| *id == view.row.id).unwrap()).collect();
    found.sort_unstable();
    found
}

#[test]
fn image_views_show_manifest_and_configuration() {
    let home = Home::new();
    let [one, two, none] = three(&home);
    let view = |id: &ImageId| home.observer.image(id).unwrap();
    let shown = view(&one);
    assert_eq!((shown.name.as_str(), shown.version.as_str()), ("coreos.com/etcd", "3"));
    let labels = [("arch", "amd64"), ("os", "linux"), ("tier", "db"), ("version", "3")];
    assert_eq!(shown.labels.into_iter().collect::<Vec<_>>(), pairs(&labels));
    assert_eq!(shown.annotations.into_iter().collect::<Vec<_>>(), pairs(&[("author", "me"), ("made", "today")]));
    assert_eq!(shown.manifest, std::fs::read(home.blob_path(&one)).unwrap());
    assert_eq!((view(&two).name.as_str(), view(&two).version.as_str()), ("k8s.io/etcd-backup", "1"));
    assert_eq!((view(&none).name.as_str(), view(&none).version.as_str()), ("", "latest"));
    assert!(matches!(home.observer.image(&home.blob(b"x")), Err(ImageError::NotFound(_))));
    // ImageCache: the blobs are not read again. A new name is visible nevertheless.
    std::fs::remove_file(home.blob_path(&one)).unwrap();
    assert!(!view(&one).manifest.is_empty());
    assert!(home.store.untag(&two, "k8s.io/etcd-backup:1").unwrap());
    assert_eq!((view(&two).name.as_str(), view(&two).labels["version"].as_str()), ("localhost:5000/tools", "dev"));
}

#[test]
fn damaged_images_are_listed_until_repaired() {
    let home = Home::new();
    let [one, two, none] = three(&home);
    let config = home.store.image(&two).unwrap().unwrap().config;
    let whole = std::fs::read(home.blob_path(&one)).unwrap();
    std::fs::write(home.blob_path(&one), "{}").unwrap();
    std::fs::remove_file(home.blob_path(&config)).unwrap();
    std::fs::File::create(home.blob_path(&none)).unwrap().set_len(9 << 20).unwrap();
    let views = home.observer.images(&[]).unwrap();
    assert_eq!(views.len(), 3);
    let of = |id: &ImageId| views.iter().find(|view| view.row.id == *id).unwrap();
    assert!(of(&one).manifest.is_empty() && of(&one).annotations.is_empty());
    assert_eq!((of(&one).name.as_str(), of(&one).labels["tier"].as_str()), ("coreos.com/etcd", "db"));
    assert_eq!(of(&two).labels.clone().into_iter().collect::<Vec<_>>(), pairs(&[("version", "1")]));
    assert!(!of(&two).manifest.is_empty() && of(&none).manifest.is_empty());
    // Fetched again.
    std::fs::write(home.blob_path(&one), &whole).unwrap();
    assert_eq!(home.observer.image(&one).unwrap().manifest, whole);
}

/// A pod is listed whatever kind of file replaces its directory or manifest; a FIFO is not opened, which
/// would unblock a writer that waits for a reader.
#[test]
fn damaged_pods_are_listed() {
    let home = Home::new();
    let image = three(&home)[0].clone();
    let damage: [&dyn Fn(&Path); 9] = [
        &|_| {},
        &|path| std::fs::remove_file(path).unwrap(),
        &|path| std::fs::remove_file(path).and_then(|()| std::fs::create_dir(path)).unwrap(),
        &|path| {
            std::fs::remove_file(path).unwrap();
            let fifo = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, fifo, 0o600.into(), 0).unwrap();
        },
        &|path| std::fs::write(path, b"\xff no JSON").unwrap(),
        &|path| std::fs::write(path, b"").unwrap(),
        &|path| {
            std::fs::rename(path, path.with_extension("moved")).unwrap();
            symlink(path.with_extension("moved"), path).unwrap();
        },
        &|path| std::fs::remove_dir_all(path.parent().unwrap()).unwrap(),
        &|path| std::fs::File::options().write(true).open(path).unwrap().set_len(17 << 20).unwrap(),
    ];
    for (n, spoil) in (1..).zip(damage) {
        let id = home.pod(&image, n);
        let dir = home.store.layout().pod_dir(&id);
        pod_dir::replace_plan(&dir, &appc_plan(planned_app())).unwrap();
        spoil(&dir.join(gantry_contract::files::PLAN));
        let row = home.store.pod(id).unwrap().unwrap();
        let manifest = home.observer.pod_manifest(&row, Secrets::Shown).unwrap();
        assert_eq!(manifest.is_some(), n == 1, "{n}");
    }
    let views = home.observer.pods(&[]).unwrap();
    assert_eq!(views.len(), damage.len());
    assert!(views.is_sorted_by_key(|view| view.row.id));
    assert!(views.iter().all(|view| view.row.apps[1].annotations["of"] == "b"));
}

#[test]
fn pods_are_found_by_cgroup_and_id_prefix() {
    let home = Home::new();
    let image = three(&home)[0].clone();
    let (idle, running, other) = (home.pod(&image, 0x11), home.pod(&image, 0x12), home.pod(&image, 0x13));
    home.run(running);
    home.run(other);
    let cgroup = home.observer.pod(&running.into()).unwrap().row.cgroup;
    let cgroups = |texts_: &[&str]| PodFilter { cgroups: texts(texts_), ..PodFilter::default() };
    let below = |texts_: &[&str]| PodFilter { sub_cgroups: texts(texts_), ..PodFilter::default() };
    let rows = [
        (cgroups(&[&cgroup]), vec![running]),
        (cgroups(&[&format!("/{cgroup}//")]), vec![running]),
        (cgroups(&[&format!("{cgroup}/app")]), vec![]),
        (cgroups(&[&format!("{cgroup}0")]), vec![]),
        (cgroups(&[&format!("/gantry/{idle}")]), vec![]),
        (cgroups(&[""]), vec![idle]),
        (cgroups(&["", &cgroup]), vec![idle, running]),
        (cgroups(&["/", "/gantry", "x"]), vec![]),
        (below(&[&cgroup]), vec![running]),
        (below(&[&format!("{cgroup}/system.slice")]), vec![running]),
        (below(&[&format!("{cgroup}x/app")]), vec![]),
        (below(&[&format!("/gantry/{idle}/app"), &format!("/gantry/{other}/a")]), vec![other]),
        (below(&[""]), vec![]),
        (PodFilter { cgroups: texts(&["", &cgroup]), ..below(&[&cgroup]) }, vec![running]),
    ];
    for (filter, want) in rows {
        let got: Vec<PodId> =
            home.observer.pods(std::slice::from_ref(&filter)).unwrap().iter().map(|view| view.row.id).collect();
        assert_eq!(got, want, "{filter:?}");
    }
    let pod = |prefix: &str| home.observer.pod(&prefix.parse().unwrap());
    assert_eq!(pod("12").unwrap().row.id, running);
    let several = pod("1").unwrap_err();
    assert_eq!(several.ambiguous(), Some(3), "{several}");
    let none = pod("f").unwrap_err();
    assert!(matches!(none, PodError::NotFound(_)) && none.ambiguous().is_none());
    assert!(home.temp.path().exists());
}
