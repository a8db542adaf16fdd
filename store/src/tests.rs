//! The store from outside its modules: real directories, real databases, several threads with stores of their own.

mod apps;
mod changing;
mod checking;
mod filtering;
mod history;
mod names;
mod opening;
mod restoring;
mod schedules;
mod speed;
mod sweeping;
mod volumes;

use std::path::Path;
use std::time::Duration;

use gantry_model::{
    AppName, AppState, Digest, Edge, Generation, NetMode, PodEnd, PodId, PodNetwork, Process, Timestamp, id::Algorithm,
};
use sha2::Digest as _;

use crate::{
    AppChanges, Change, ImageFormat, LayerLock, LayerRef, LayerRow, Moved, Networks, NewApp, NewImage, NewPod, PodRow,
    Store,
};

/// A data directory that goes with the test.
struct Home {
    dir: tempfile::TempDir,
    store: Store,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("data")).unwrap();
        Self { dir, store }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("data")
    }

    fn another(&self) -> Store {
        Store::open(&self.path()).unwrap()
    }
}

fn digest(text: &str) -> Digest {
    Digest::from_hash(Algorithm::Sha256, &sha2::Sha256::digest(text)).unwrap()
}

fn pod_id(n: u128) -> PodId {
    PodId::from_random(n.to_be_bytes())
}

const DEADLINE: Duration = Duration::from_secs(20);

/// Stages and commits layers of these names, each on top of the one before; the locks are the caller's.
fn layers(store: &Store, names: &[&str]) -> (Vec<LayerLock>, Vec<LayerRef>) {
    let (mut locks, mut refs, mut fresh, mut parent) = (Vec::new(), Vec::new(), Vec::new(), None);
    for name in names {
        let chain = digest(name);
        let lock = store.lock_layer(&chain, DEADLINE, &mut || {}).unwrap();
        if store.layer(&chain).unwrap().is_none() {
            let staging = store.stage_layer(&lock).unwrap();
            std::fs::write(staging.path().join("file"), name).unwrap();
            let row = LayerRow { chain: chain.clone(), diff_id: digest(name), parent, size: 1, entries: 1 };
            fresh.push((staging, row));
        }
        refs.push(LayerRef { chain: chain.clone(), diff_id: digest(name), blob: digest(&format!("gz {name}")) });
        parent = Some(chain);
        locks.push(lock);
    }
    store.commit_layers(fresh).unwrap();
    (locks, refs)
}

/// Commits an image whose manifest is its name, with these layers.
fn image(store: &Store, name: &str, names: &[&str]) -> Digest {
    let (_locks, layers) = layers(store, names);
    let config = format!("config of {name}");
    for blob in [name, &config] {
        store.put_blob(&digest(blob), blob.as_bytes()).unwrap();
    }
    let image = NewImage {
        id: digest(name),
        config: digest(&config),
        format: ImageFormat::Oci,
        layers,
        size: 10,
        names: vec![format!("docker.io/library/{name}:1")],
    };
    store.commit_image(&image, Timestamp(5)).unwrap().id
}

fn new_pod(id: PodId, image: &Digest, apps: &[&str]) -> NewPod {
    let annotations = |name: &str| [("of".to_owned(), name.to_owned())].into();
    let app = |name: &&str| NewApp {
        name: name.parse().unwrap(),
        image: Some(image.clone()),
        image_name: "i".into(),
        id: None,
        annotations: annotations(name),
        notifies: false,
        log_path: None,
        volume_images: Default::default(),
        restart: Default::default(),
        labels: Default::default(),
    };
    NewPod {
        id,
        created: Timestamp(10),
        net: NetMode::None,
        hostname: "h".into(),
        name: None,
        namespace: Default::default(),
        sandbox: false,
        apps: apps.iter().map(app).collect(),
        user_annotations: [("k".to_owned(), "v\n\"".to_owned())].into(),
        user_labels: Default::default(),
        volumes: Default::default(),
        cgroup: format!("/gantry/{id}"),
        log_dir: None,
        schedule: None,
    }
}

/// A network attachment with every field set.
fn full_network() -> PodNetwork {
    use gantry_model::net::{Dns, PodAddress, PodPort, PodRoute, Protocol};
    let ip = |text: &str| text.parse().unwrap();
    let address = |address, prefix, gateway| PodAddress { address: ip(address), prefix, gateway: Some(ip(gateway)) };
    let route = |to, prefix, via| PodRoute { to: ip(to), prefix, via: Some(ip(via)) };
    let port = |host_ip, host_port, protocol| PodPort { host_ip, host_port, pod_port: 80, count: 1, protocol };
    PodNetwork {
        name: "default".into(),
        interface: "eth0".into(),
        mac: Some("0a:00:00:00:00:02".into()),
        addresses: vec![address("172.16.28.2", 24, "172.16.28.1"), address("fd00::2", 64, "fd00::1")],
        routes: vec![route("0.0.0.0", 0, "172.16.28.1"), route("::", 0, "fd00::1")],
        dns: Dns {
            servers: vec![ip("172.16.28.1").into()],
            search: vec!["gantry".into()],
            options: vec!["ndots:1".into()],
            domain: Some("d".into()),
        },
        ports: vec![
            port(Some(ip("127.0.0.1")), 8080, Protocol::Tcp),
            port(None, 53, Protocol::Udp),
            port(Some(ip("::")), 9, Protocol::Sctp),
        ],
    }
}

/// The row after a step of its apps.
fn update(store: &Store, pod: &PodRow, states: &[(AppName, AppState)], removed: &[AppName]) -> PodRow {
    let changes = AppChanges { states: states.to_vec(), removed: removed.to_vec() };
    match store.update_apps(pod.id, pod.generation, &[changes]).unwrap() {
        Moved::Yes(Some(pod)) => pod,
        other => panic!("{other:?}"),
    }
}

fn edge(edge: Edge) -> Change {
    Change::along(edge)
}

fn supervisor() -> Process {
    Process { pid: 7, start_ticks: 9, boot: gantry_model::BootId("b".into()) }
}

fn end() -> PodEnd {
    PodEnd { exit_code: 3, failed_app: Some("a".parse().unwrap()), reason: "an app failed".into() }
}

fn moved(store: &Store, id: PodId, seen: Generation, change: Change) -> PodRow {
    match store.step(id, seen, change).unwrap() {
        Moved::Yes(Some(pod)) => pod,
        other => panic!("{other:?}"),
    }
}

/// Everything below a directory, with the modes.
fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}
