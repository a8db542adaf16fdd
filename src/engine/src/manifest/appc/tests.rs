//! Every manifest that gantry writes is valid by appc's schema, and gantry can read it back.

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_contract::plan::{self, Plan};
use gantry_fetch::config::ImageConfig;
use gantry_model::net::{DnsSpec, HostsSpec, PodPort, PortTarget, Protocol};
use gantry_model::spec::{AppOptions, Limits, Seccomp, VolumeKind, VolumeSpec};
use gantry_model::{AppState, Generation, NetMode, Phase, PodId, Timestamp};
use gantry_store::{AppRow, ImageFormat, ImageRow, Networks, PodRow};
use gantry_tests::appc::{check_image_manifest, check_pod_manifest};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::ImageView;
use crate::manifest::appc::read;
use crate::manifest::appc::write;

fn digest() -> gantry_model::Digest {
    format!("sha256:{}", "ab".repeat(32)).parse().unwrap()
}

fn config() -> ImageConfig {
    let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    ImageConfig {
        entrypoint: texts(&["/bin/app"]),
        cmd: texts(&["x"]),
        env: vec![("A".into(), "secret".into()), ("1".into(), "x".into())],
        user: Some("www:web".into()),
        working_dir: Some("/srv".into()),
        volumes: texts(&["/data"]),
        exposed_ports: texts(&["80/tcp", "0/tcp", "x"]),
        labels: [("Some Label".to_owned(), "v".to_owned())].into(),
        os: "linux".into(),
        architecture: "arm64".into(),
        ..ImageConfig::default()
    }
}

pub(crate) fn planned_app() -> plan::App {
    plan::App {
        name: "a".into(),
        id: None,
        attempt: 0,
        health_changes: 0,
        limit_changes: 0,
        is_held: false,
        oom_kills: 0,
        image_size: None,
        layers: Vec::new(),
        argv: vec!["/bin/app".into(), "x".into()],
        env: vec!["PATH=/bin".into(), "DB_PASSWORD=hunter2".into(), "2BAD=x".into()],
        cwd: "/".into(),
        user: Some("www:web".into()),
        group: None,
        mounts: vec![plan::Mount {
            volume: "v".into(),
            target: "/v".into(),
            read_only: true,
            seed: false,
            declared: false,
            options: gantry_model::mount_options::MountOptions::default(),
        }],
        capabilities: vec!["CAP_CHOWN".into()],
        required_capabilities: Vec::new(),
        ambient_capabilities: Vec::new(),
        stop_signal: 15,
        options: AppOptions {
            supplementary_gids: vec![7],
            read_only_root: true,
            limits: Limits { memory: Some(1 << 26), cpu_milli: Some(500), cpu_shares: Some(512), ..Limits::default() },
            seccomp: Seccomp::Retain { names: ["read".into()].into(), errno: 38 },
            oom_score_adj: Some(-5),
            ..AppOptions::default()
        },
    }
}

pub(crate) fn plan_of(app: plan::App) -> Plan {
    let port = |protocol| PodPort {
        host_ip: Some("2001:db8::1".parse().unwrap()),
        host_port: 8080,
        pod_port: 80,
        count: 2,
        protocol,
    };
    let host = crate::pods::plan_net::host(
        &crate::NetworkOptions::default(),
        &gantry_store::Layout::new(std::path::Path::new("/d")),
    );
    let networks =
        plan::Networks { host, wanted: Vec::new(), all: false, ports: vec![port(Protocol::Udp)], kubernetes: None };
    Plan {
        version: gantry_contract::VERSION,
        pod: String::new(),
        pod_dir: String::new(),
        trees_dir: String::new(),
        namespace: Default::default(),
        hostname: String::new(),
        ipc: gantry_model::namespaces::IpcMode::Pod,
        uts: gantry_model::namespaces::UtsMode::Pod,
        user_ids: None,
        shm_size: gantry_model::spec::DEFAULT_SHM_SIZE,
        sysctls: std::collections::BTreeMap::new(),
        net: plan::Net::Networks(networks),
        former_addresses: Vec::new(),
        resolv: DnsSpec::Network,
        hosts: HostsSpec::default(),
        cgroup_parent: "/gantry".parse().unwrap(),
        volumes_dir: "/d/volumes".into(),
        volumes: vec![
            VolumeSpec {
                name: "v".parse().unwrap(),
                kind: VolumeKind::Host { source: "/srv".into(), recursive: false },
                read_only: true,
            },
            VolumeSpec {
                name: "a-image-1".parse().unwrap(),
                kind: VolumeKind::Empty { mode: 0o1755, uid: 1, gid: 2 },
                read_only: false,
            },
        ],
        apps: vec![app],
        log: plan::LogLimits::default(),
        log_dir: None,
        limit_changes: 0,
        stop_grace_ms: 0,
        sandbox: false,
        flavor: gantry_model::spec::PodFlavor::Container,
        privileged: false,
        limits: Limits::default(),
    }
}

pub(crate) fn row(image_name: &str, annotations: &[(&str, &str)]) -> PodRow {
    let annotations: BTreeMap<_, _> = annotations.iter().map(|&(key, value)| (key.into(), value.into())).collect();
    PodRow {
        id: PodId::from_random([7; 16]),
        generation: Generation(0),
        created: Timestamp(0),
        net: NetMode::None,
        networks: Networks::default(),
        hostname: String::new(),
        name: None,
        namespace: Default::default(),
        sandbox: false,
        cgroup: "/gantry/6733c088-a507-4694-aabf-ec79c0a8ac9a".into(),
        log_dir: None,
        limit_changes: 0,
        paused: false,
        user_annotations: annotations.clone(),
        user_labels: annotations.clone(),
        restart: Default::default(),
        prepared: None,
        phase: Phase::Embryo,
        apps: vec![AppRow {
            name: "a".parse().unwrap(),
            image: Some(digest()),
            image_name: image_name.into(),
            id: gantry_model::AppId::from_random([1; 32]),
            annotations,
            labels: BTreeMap::new(),
            added: None,
            paused: false,
            health: gantry_store::HealthRecord::default(),
            oom: gantry_store::OomRecord::default(),
            limit_changes: 0,
            log_path: None,
            restart: Default::default(),
            state: AppState::Waiting,
            readiness: None,
        }],
    }
}

fn written(row: &PodRow, plan: &Plan, secrets: Secrets) -> Value {
    let config = Arc::new(config());
    let manifest = write::pod(row, plan, &|_| Some(Arc::clone(&config)), secrets);
    serde_json::to_value(manifest).unwrap()
}

fn view(name: &str, annotations: &[(&str, &str)], config: ImageConfig) -> ImageView {
    let row = ImageRow {
        id: digest(),
        config: digest(),
        format: ImageFormat::Oci,
        layers: Vec::new(),
        size: 0,
        names: Vec::new(),
        imported: Timestamp(0),
        last_used: Timestamp(0),
    };
    ImageView {
        row,
        name: name.into(),
        version: "1".into(),
        labels: BTreeMap::new(),
        annotations: annotations.iter().map(|&(key, value)| (key.into(), value.into())).collect(),
        manifest: Vec::new(),
        config: Some(config.into()),
        format: ImageFormat::Oci,
    }
}

#[test]
fn pod_manifests_follow_appc() {
    let row = row("127.0.0.1:5000/App:1.2", &[("rkt.kubernetes.io/uid", "1"), ("Created By", "me"), ("created", "x")]);
    let pod = written(&row, &plan_of(planned_app()), Secrets::Shown);
    assert_eq!(check_pod_manifest(&pod), Ok(()), "{pod:#}");
    let hex = "ab".repeat(32);
    let labels = json!([{ "name": "version", "value": "1.2" }, { "name": "os", "value": "linux" },
        { "name": "arch", "value": "aarch64" }]);
    let app = &pod["apps"][0];
    let image = json!({ "name": "127.0.0.1_5000/app", "id": format!("sha512-{hex}"), "labels": labels });
    assert_eq!(app["image"], image);
    assert_eq!(app["annotations"], json!([{ "name": "rkt.kubernetes.io/uid", "value": "1" }]));
    assert_eq!(pod["annotations"], app["annotations"]);
    assert_eq!(pod["userAnnotations"], json!({ "Created By": "me", "created": "x" }));
    assert_eq!(app["mounts"], json!([{ "volume": "v", "path": "/v" }]));
    let inner = &app["app"];
    assert_eq!(
        (&inner["user"], &inner["group"], &inner["exec"]),
        (&json!("www"), &json!("web"), &json!(["/bin/app", "x"]))
    );
    let variables = json!([{ "name": "PATH", "value": "/bin" }, { "name": "DB_PASSWORD", "value": "hunter2" }]);
    assert_eq!(inner["environment"], variables, "without a name that appc refuses");
    assert_eq!(inner["ports"][0]["name"], "80-tcp");
    assert_eq!(inner["ports"].as_array().unwrap().len(), 1);
    let isolators: Vec<_> =
        inner["isolators"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    let want = [
        isolator::MEMORY,
        isolator::CPU,
        isolator::CPU_SHARES,
        isolator::OOM_SCORE_ADJ,
        isolator::NO_NEW_PRIVILEGES,
        isolator::RETAIN_CAPABILITIES,
        isolator::RETAIN_CALLS,
    ];
    assert_eq!(isolators, want);
    assert_eq!(pod["volumes"][1]["mode"], "1755");
    assert_eq!(pod["ports"][0]["podPort"]["protocol"], "udp");
}

#[test]
fn values_of_variables_can_be_hidden() {
    let pod = written(&row("a:1", &[]), &plan_of(planned_app()), Secrets::Hidden);
    assert_eq!(check_pod_manifest(&pod), Ok(()));
    assert!(!pod.to_string().contains("hunter2"));
    assert_eq!(pod["apps"][0]["app"]["environment"][1], json!({ "name": "DB_PASSWORD", "value": "" }));
    let image = view("a", &[], config());
    let shown: Value = serde_json::from_slice(&image.appc_manifest(Secrets::Shown)).unwrap();
    let hidden: Value = serde_json::from_slice(&image.appc_manifest(Secrets::Hidden)).unwrap();
    assert!(shown.to_string().contains("secret") && !hidden.to_string().contains("secret"));
    assert_eq!(hidden["app"]["environment"], json!([{ "name": "A", "value": "" }]));
}

#[test]
fn image_manifests_follow_appc() {
    let image: Value = serde_json::from_slice(
        &view("r.example/App", &[("k", "v"), ("K", "v")], config()).appc_manifest(Secrets::Shown),
    )
    .unwrap();
    assert_eq!(check_image_manifest(&image), Ok(()), "{image:#}");
    assert_eq!(
        (&image["name"], &image["annotations"]),
        (&json!("r.example/app"), &json!([{ "name": "k", "value": "v" }]))
    );
    assert_eq!(image["app"]["userLabels"], json!({ "Some Label": "v" }));
    assert_eq!(image["app"]["mountPoints"], json!([{ "name": "volume-0", "path": "/data" }]));
    let nameless: Value = serde_json::from_slice(&view("", &[], config()).appc_manifest(Secrets::Shown)).unwrap();
    assert_eq!(nameless["name"], digest().to_appc());
    assert_eq!(check_image_manifest(&nameless), Ok(()));
}

#[test]
fn pod_manifest_round_trips() {
    let row = row("r.example/a:1", &[("a", "b"), ("A", "B")]);
    let pod = written(&row, &plan_of(planned_app()), Secrets::Shown);
    let bytes = serde_json::to_vec(&pod).unwrap();
    assert!(read::is_appc(&bytes));
    let spec = crate::manifest::parse(&bytes).unwrap();
    spec.validate().unwrap();
    assert_eq!((&spec.user_annotations, &spec.user_labels), (&row.user_annotations, &row.user_labels));
    let app = &spec.apps[0];
    let image = app.image.as_ref().map_or("", |image| image.as_str());
    assert_eq!(image, digest().to_appc());
    assert_eq!(format!("{}", image.parse::<gantry_model::ImageRef>().unwrap()), digest().to_string());
    assert_eq!((app.exec.as_deref(), &app.args[..]), (Some("/bin/app"), &["x".to_owned()][..]));
    assert_eq!((app.user.as_deref(), app.group.as_deref()), (Some("www"), Some("web")));
    let limits = Limits { memory: Some(1 << 26), cpu_milli: Some(500), cpu_shares: Some(512), ..Limits::default() };
    assert_eq!(
        (&app.options.limits, app.options.oom_score_adj, app.options.new_privileges),
        (&limits, Some(-5), false)
    );
    assert_eq!(app.options.seccomp, Seccomp::Retain { names: ["read".to_owned()].into(), errno: 38 });
    assert_eq!(app.mounts.len(), 1);
    assert!(app.options.read_only_root && app.mounts[0].read_only && app.mounts[0].target == "/v");
    assert_eq!((spec.volumes.len(), spec.ports.len(), spec.ports[0].host_port), (2, 1, 8080));
}

#[test]
fn unsupported_features_are_named() {
    let pod = |change: Value| {
        let mut app = json!({ "exec": ["/a"], "user": "0", "group": "0" });
        for (key, value) in change.as_object().unwrap() {
            app[key] = value.clone();
        }
        json!({ "acVersion": "0.8.11", "acKind": "PodManifest", "volumes": null,
            "apps": [{ "name": "a", "image": { "name": "r.example/a", "labels": [{ "name": "version", "value": "2" }] }, "app": app }] })
    };
    let read = |pod: &Value| crate::manifest::parse(&serde_json::to_vec(pod).unwrap());
    let spec = read(&pod(json!({}))).unwrap();
    assert_eq!(
        (spec.apps[0].image.clone(), spec.apps[0].options.new_privileges),
        (gantry_model::RequestedImage::new("r.example/a:2"), true)
    );
    let isolator = |name: &str, value: Value| json!({ "isolators": [{ "name": name, "value": value }] });
    for (change, want) in [
        (isolator("resource/network-bandwidth", json!({})), "resource/network-bandwidth"),
        (isolator("resource/memory", json!({ "limit": "much" })), "resource/memory"),
        (isolator("resource/memory", json!({ "limti": "1M" })), "limti"),
        (isolator("os/linux/seccomp-retain-set", json!({ "set": ["@rkt/x"] })), "@rkt/x"),
        (isolator("os/linux/seccomp-retain-set", json!({ "set": ["read"], "errno": "EWHAT" })), "errno"),
        (json!({ "eventHandlers": [{ "name": "pre-start", "exec": ["/a"] }] }), "event handlers"),
    ] {
        let refused = read(&pod(change)).unwrap_err().to_string();
        assert!(refused.contains(want) && !refused.contains('\n'), "{want}: {refused}");
    }
    let implied = read(&pod(json!({ "mountPoints": [{ "name": "data", "path": "/data" }] }))).unwrap();
    assert_eq!((implied.volumes.len(), implied.apps[0].mounts[0].target.as_str()), (1, "/data"));
}

#[test]
fn ports_are_found_by_name() {
    let app = |name: &str, ports: Value| {
        json!({ "name": name, "image": { "name": "r.example/a" },
            "app": { "exec": ["/a"], "user": "0", "group": "0", "ports": ports } })
    };
    let http = json!([{ "name": "http", "protocol": "udp", "port": 80, "count": 2 }]);
    let target = |apps: Value, ports: Value| {
        let pod = json!({ "acVersion": "0.8.11", "acKind": "PodManifest", "apps": apps, "ports": ports });
        crate::manifest::parse(&serde_json::to_vec(&pod).unwrap()).map(|spec| spec.ports[0].to.clone())
    };
    let numbered = |port, count, protocol| PortTarget::Numbered { port, count, protocol };
    let named = json!([{ "name": "http", "hostPort": 8080 }]);
    let apps = json!([app("a", http.clone()), app("b", json!([]))]);
    assert_eq!(target(apps.clone(), named.clone()).unwrap(), numbered(80, 2, Protocol::Udp));
    // The port of the pod outranks the app's, and a name that no app declares is that of an image.
    let given =
        json!([{ "name": "http", "hostPort": 8080, "podPort": { "name": "http", "protocol": "tcp", "port": 81 } }]);
    assert_eq!(target(apps, given).unwrap(), numbered(81, 1, Protocol::Tcp));
    assert_eq!(target(json!([app("a", json!([]))]), named.clone()).unwrap(), PortTarget::Named("http".into()));
    let refused = target(json!([app("a", http.clone()), app("b", http)]), named).unwrap_err().to_string();
    assert!(refused.contains("ambiguous"), "{refused}");
}

proptest! {
    #[test]
    fn generated_pod_manifests_pass_the_schema(
        image_name: String,
        keys in proptest::collection::vec((any::<String>(), any::<String>()), 0..4),
        env in proptest::collection::vec("[ -~]{0,12}=[ -~]{0,8}", 0..4),
        user: Option<String>,
        group: Option<String>,
        errno: u16,
        names in proptest::collection::vec("[a-z]{1,6}", 0..3),
    ) {
        let app = plan::App {
            env, user, group,
            capabilities: names.clone(),
            options: AppOptions {
                seccomp: Seccomp::Remove { names: names.into_iter().collect(), errno },
                ..planned_app().options
            },
            ..planned_app()
        };
        let keys: Vec<_> = keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        for secrets in [Secrets::Shown, Secrets::Hidden] {
            let pod = written(&row(&image_name, &keys), &plan_of(app.clone()), secrets);
            prop_assert_eq!(check_pod_manifest(&pod), Ok(()), "{:#}", pod);
        }
    }

    #[test]
    fn generated_image_manifests_pass_the_schema(
        name: String,
        keys in proptest::collection::vec((any::<String>(), any::<String>()), 0..4),
        os in "linux|windows|", arch in "amd64|arm|arm64|riscv64|386|", variant in proptest::option::of("v[5-8]"),
        ports in proptest::collection::vec("[0-9a-z/]{0,8}", 0..4),
        dir: Option<String>,
    ) {
        let config = ImageConfig {
            os, architecture: arch, variant, working_dir: dir, exposed_ports: ports, volumes: vec![name.clone()],
            env: keys.clone(), ..config()
        };
        let keys: Vec<_> = keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let image: Value = serde_json::from_slice(&view(&name, &keys, config).appc_manifest(Secrets::Shown)).unwrap();
        prop_assert_eq!(check_image_manifest(&image), Ok(()), "{:#}", image);
    }

    #[test]
    fn parser_never_panics(text: String, name in "[a-z/-]{0,20}", value: i64) {
        let _ = crate::manifest::parse(text.as_bytes());
        let pod = json!({ "acVersion": "0.8.11", "acKind": text, "apps": [{ "name": name, "image": { "id": name },
            "app": { "user": "0", "group": "0", "isolators": [{ "name": name, "value": value }] } }] });
        let _ = crate::manifest::parse(&serde_json::to_vec(&pod).unwrap());
    }
}
