//! The plans for given specifications and images.

use std::path::Path;

use gantry_model::mount_options::MountOptions;
use gantry_model::spec::{MountSpec, VolumeSpec};

use super::*;

fn name(text: &str) -> AppName {
    text.parse().unwrap()
}

fn made(edit: impl FnOnce(&mut PodSpec, &mut ImageConfig)) -> Result<out::Plan, PlanError> {
    let mut spec =
        PodSpec { apps: vec![AppSpec::new(name("a"), gantry_model::RequestedImage::new("img"))], ..PodSpec::default() };
    let mut config = ImageConfig { cmd: vec!["/bin/cmd".into(), "x".into()], ..ImageConfig::default() };
    edit(&mut spec, &mut config);
    spec.validate().unwrap();
    let layout = Layout::new(Path::new("/data"));
    let setting = Setting {
        id: PodId::from_random([7; 16]),
        layout: &layout,
        network: &NetworkOptions::default(),
        cgroup_parent: &gantry_model::cgroup::CgroupParent::default(),
        log: out::LogLimits::default(),
        stop_grace_ms: 10,
    };
    let chains: Vec<Digest> = ["0", "f"].iter().map(|c| format!("sha256:{}", c.repeat(64)).parse().unwrap()).collect();
    let size = Some(out::ImageSize { bytes: 1, entries: 1 });
    plan(&spec, &[Image { config: &config, chains: chains.iter().collect(), size }], &setting)
}

fn app(edit: impl FnOnce(&mut AppSpec, &mut ImageConfig)) -> Result<out::App, PlanError> {
    made(|spec, config| edit(&mut spec.apps[0], config)).map(|mut plan| plan.apps.remove(0))
}

fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

#[test]
fn entrypoint_command_and_arguments_combine() {
    // entrypoint, cmd, --exec, arguments → argv; empty: refused.
    for (entrypoint, cmd, exec, args, want) in [
        ("/e -f", "c d", "", "", "/e -f c d"),
        ("/e -f", "c d", "", "x y", "/e -f x y"),
        ("", "c d", "", "", "c d"),
        ("", "c d", "", "x y", "x y"),
        ("/e", "c", "/x", "", "/x"),
        ("/e", "c", "/x", "1 2", "/x 1 2"),
        ("", "", "", "sh", "sh"),
        ("", "", "", "", ""),
    ] {
        let made = app(|spec, config| {
            config.entrypoint = words(entrypoint);
            config.cmd = words(cmd);
            spec.exec = (!exec.is_empty()).then(|| exec.to_owned());
            spec.args = words(args);
        });
        match made {
            Ok(made) => assert_eq!(made.argv, words(want), "{entrypoint} | {cmd} | {exec} | {args}"),
            Err(error) => assert_eq!((want, error), ("", PlanError::no_command(&name("a")))),
        }
    }
}

#[test]
fn environment_sources_have_a_precedence() {
    let pair = |n: &str, v: &str| (n.to_owned(), v.to_owned());
    let made = app(|spec, config| {
        config.env = vec![pair("PATH", "/x"), pair("A", "image"), pair("B", "image")];
        spec.environment = vec![pair("B", "user"), pair("B", "last"), pair("C", "a\nb")];
        spec.options.terminal = true;
    })
    .unwrap();
    let id = PodId::from_random([7; 16]);
    let host = format!("HOSTNAME=gantry-{}", &id.to_string()[..8]);
    assert_eq!(made.env, ["PATH=/x", &host, "container=gantry", "TERM=xterm", "A=image", "B=last", "C=a\nb"]);
    assert!(app(|_, config| config.env = vec![pair("HOME", "/\nroot::0:0")]).is_err());
    assert!(app(|_, config| config.env = vec![pair("A\nB", "x")]).is_err());
    assert!(app(|spec, _| spec.args = vec!["x".repeat(100_000); 11]).is_err());
}

#[test]
fn user_and_directory_default_to_the_image() {
    for (image, user, want) in [(None, None, None), (Some("1:2"), None, Some("1:2")), (Some("1"), Some("x"), Some("x"))]
    {
        let made = app(|spec, config| {
            config.user = image.map(str::to_owned);
            spec.user = user.map(str::to_owned);
        });
        assert_eq!(made.unwrap().user.as_deref(), want);
    }
    assert!(app(|_, config| config.user = Some("root\n".into())).is_err());
    for (dir, want) in [("/a//b/", Some("/a/b")), ("", Some("/")), ("/procfs", Some("/procfs"))] {
        assert_eq!(app(|_, config| config.working_dir = Some(dir.into())).unwrap().cwd, want.unwrap(), "{dir}");
    }
    for bad in ["a", "/proc/self/fd/7", "/proc/1/root", "//proc", "/a/../proc", "/a/.."] {
        assert!(app(|_, config| config.working_dir = Some(bad.into())).is_err(), "{bad}");
    }
}

#[test]
fn declared_volumes_become_empty_volumes() {
    let plan = made(|spec, config| {
        let kind = VolumeKind::Empty { mode: 0o700, uid: 1, gid: 2 };
        spec.volumes = vec![VolumeSpec { name: name("a-image-1"), kind, read_only: false }];
        let mount = |target: &str| MountSpec {
            volume: name("a-image-1"),
            target: target.into(),
            read_only: true,
            options: MountOptions::default(),
        };
        spec.apps[0].mounts = vec![mount("/x/y/z"), mount("/mine/")];
        config.volumes = vec!["/mine".into(), "/v".into(), "/v/".into(), "/v/w".into()];
    })
    .unwrap();
    let mounts: Vec<_> =
        plan.apps[0].mounts.iter().map(|m| (m.target.as_str(), m.volume.as_str(), m.read_only, m.seed)).collect();
    let want = [
        ("/mine", "a-image-1", true, false),
        ("/v", "a-image-2", false, true),
        ("/v/w", "a-image-3", false, true),
        ("/x/y/z", "a-image-1", true, false),
    ];
    assert_eq!(mounts.len(), want.len());
    for (got, want) in mounts.iter().zip(want) {
        assert_eq!((got.0, got.2, got.3), (want.0, want.2, want.3));
    }
    let names: BTreeSet<_> = plan.volumes.iter().map(|volume| &volume.name).collect();
    assert_eq!((plan.volumes.len(), names.len()), (3, 3));
    for bad in ["v", "/a/../b"] {
        assert!(app(|_, config| config.volumes = vec![bad.into()]).is_err(), "{bad}");
    }
    let covering = ["/", "/proc", "/sys/x", "//dev", "/dev/pts", "/dev/null", "/dev/mqueue/", "/proc/self"];
    for path in covering {
        let config = ImageConfig { volumes: vec![path.into()], ..ImageConfig::default() };
        assert_eq!(ignored_volumes(&config).count(), 1, "{path}");
        assert_eq!(app(|_, config| config.volumes = vec![path.into()]).unwrap().mounts, [], "{path}");
    }
    for path in ["/dev/shm", "/dev/shm/x", "/device", "/process"] {
        assert_eq!(app(|_, config| config.volumes = vec![path.into()]).unwrap().mounts.len(), 1, "{path}");
    }
}

#[test]
fn volumes_may_begin_with_image_content() {
    let plan = made(|spec, config| {
        let volume = |name: &str, kind| VolumeSpec { name: name.parse().unwrap(), kind, read_only: false };
        spec.volumes = vec![
            volume("a", VolumeKind::Named { volume: "pg_data".parse().unwrap() }),
            volume("b", VolumeKind::Anonymous),
            volume("c", VolumeKind::Empty { mode: 0o700, uid: 1, gid: 2 }),
        ];
        let mount = |name: &str| MountSpec {
            volume: name.parse().unwrap(),
            target: format!("/{name}"),
            read_only: false,
            options: MountOptions::default(),
        };
        spec.apps[0].mounts = vec![mount("a"), mount("b"), mount("c")];
        config.volumes = vec!["/a".into()];
    })
    .unwrap();
    let seeds: Vec<_> = plan.apps[0].mounts.iter().map(|mount| (mount.seed, mount.declared)).collect();
    assert_eq!(seeds, [(true, false), (true, false), (false, false)]);
    assert_eq!(plan.volumes_dir, "/data/volumes");
    assert_eq!(plan.volumes[0].kind, VolumeKind::Named { volume: "pg_data".parse().unwrap() });
    assert_eq!(plan.volumes[1].kind, VolumeKind::Anonymous);
}

#[test]
fn layers_are_ordered_topmost_first() {
    let made = app(|_, _| {}).unwrap();
    assert_eq!(made.layers.len(), 2);
    assert!(made.layers[1].chars().all(|c| c == 'a'), "the bottom layer (zeros) comes last: {:?}", made.layers);
    assert_eq!(made.stop_signal, 15);
}

#[test]
fn labels_configure_nothing() {
    let plain = made(|_, _| {}).unwrap();
    let labelled = made(|spec, config| {
        config.labels.insert("io.gantry.privileged".into(), "true".into());
        spec.user_annotations.insert("cdi.k8s.io/x".into(), "all".into());
        spec.apps[0].user_labels.insert("log-driver".into(), "none".into());
    });
    assert_eq!(labelled.unwrap(), plain);
}

#[test]
fn networks_and_ports_are_planned() {
    use gantry_model::net::{DnsSpec, HostsSpec, PortSpec, PortTarget};
    let port = |to: &str| PortSpec { to: PortTarget::Named(to.into()), host_ip: None, host_port: 8080 };
    let plan = made(|spec, config| {
        config.exposed_ports = vec!["80/tcp".into()];
        spec.ports = vec![port("80-tcp")];
        spec.dns = DnsSpec::None;
        spec.hosts = HostsSpec::Host;
    })
    .unwrap();
    // Without a request for networks: the default of the settings.
    let out::Net::Networks(networks) = &plan.net else { panic!("{:?}", plan.net) };
    assert_eq!((networks.wanted[0].name.as_str(), networks.all, networks.ports[0].pod_port), ("default", false, 80));
    assert_eq!((networks.host.state_dir.as_str(), networks.host.resolver), ("/data/net", true));
    assert_eq!((plan.resolv, plan.hosts), (DnsSpec::None, HostsSpec::Host));
    let none = made(|spec, _| spec.net = Some(gantry_model::NetMode::None)).unwrap();
    assert_eq!((none.net, none.resolv), (out::Net::None, DnsSpec::Network));
    let unknown = made(|spec, _| spec.ports = vec![port("http")]).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Invalid);
    assert!(unknown.to_string().contains("no port named 'http'"), "{unknown}");
}
