//! Conversion of the manifest in both directions.

use std::collections::BTreeMap;
use std::net::IpAddr;

use gantry_model::health::{HealthAction, HealthProbe, HealthSettings};
use gantry_model::mount_options::{MountOptions, Propagation};
use gantry_model::namespaces::{IpcMode, PidMode, UtsMode};
use gantry_model::net::{Dns, DnsSpec, HostsSpec, NameServer, PortSpec, PortTarget, Protocol};
use gantry_model::restart::RestartPolicy;
use gantry_model::seccomp_profile::{SeccompAction, SeccompArgument, SeccompProfile, SeccompRule, SeccompTest};
use gantry_model::spec::{
    AppOptions, Capabilities, DeviceIoLimits, GroupsPolicy, Limits, MountSpec, Seccomp, TmpfsMount, VolumeKind,
    VolumeSpec,
};
use gantry_model::systemd::{SdNotify, SystemdMode};
use gantry_model::ulimit::{Resource, Ulimit};
use gantry_model::{AppName, AppSpec, NetMode, RequestedImage};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;

fn name() -> impl Strategy<Value = AppName> {
    "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap())
}

fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(any::<String>(), any::<String>(), 0..3)
}

fn capabilities() -> impl Strategy<Value = Capabilities> {
    let names = || btree_set("[A-Z_]{1,8}", 0..3);
    prop_oneof![
        Just(Capabilities::Default),
        names().prop_map(Capabilities::Retain),
        names().prop_map(Capabilities::Remove),
        (names(), names()).prop_map(|(add, drop)| Capabilities::Adjust { add, drop }),
        (names(), names(), names()).prop_map(|(add, drop, ambient)| Capabilities::Kubernetes { add, drop, ambient }),
        Just(Capabilities::All)
    ]
}

fn seccomp() -> impl Strategy<Value = Seccomp> {
    let names = || btree_set("[a-z_]{1,8}", 0..3);
    prop_oneof![
        Just(Seccomp::Default),
        Just(Seccomp::Unconfined),
        (names(), any::<u16>()).prop_map(|(names, errno)| Seccomp::Retain { names, errno }),
        (names(), any::<u16>()).prop_map(|(names, errno)| Seccomp::Remove { names, errno }),
        any::<(u16, u64)>().prop_map(|(errno, value)| Seccomp::Profile(Box::new(profile(errno, value)))),
    ]
}

fn profile(errno: u16, value: u64) -> SeccompProfile {
    let argument = |test| SeccompArgument { index: 5, test };
    let arguments = vec![argument(SeccompTest::Ne(value)), argument(SeccompTest::MaskedEq { mask: value, value: 1 })];
    let rule = |action, arguments| SeccompRule { names: vec!["chmod".to_owned()], action, arguments };
    let rules = vec![rule(SeccompAction::Errno(errno), arguments), rule(SeccompAction::KillProcess, Vec::new())];
    SeccompProfile { default: SeccompAction::Allow, rules }
}

fn volume() -> impl Strategy<Value = VolumeSpec> {
    let host = (any::<String>(), any::<bool>()).prop_map(|(source, recursive)| VolumeKind::Host { source, recursive });
    let empty = any::<(u32, u32, u32)>().prop_map(|(mode, uid, gid)| VolumeKind::Empty { mode, uid, gid });
    let named =
        "[a-zA-Z0-9][a-zA-Z0-9_.-]{0,9}".prop_map(|volume| VolumeKind::Named { volume: volume.parse().unwrap() });
    let image = any::<(String, String)>().prop_map(|(image, sub_path)| VolumeKind::Image {
        image,
        sub_path,
        layers: Vec::new(),
    });
    (name(), prop_oneof![host, empty, named, image, Just(VolumeKind::Anonymous)], any::<bool>())
        .prop_map(|(name, kind, read_only)| VolumeSpec { name, kind, read_only })
}

fn tmpfs(size: u64, flags: [bool; 4]) -> TmpfsMount {
    let size = flags[0].then_some(size);
    TmpfsMount { target: "/t".into(), size, mode: 0o750, uid: 1, gid: 2, exec: flags[1], read_only: flags[2] }
}

fn health(interval: u64) -> HealthSettings {
    let host = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]);
    let probe = match interval % 4 {
        0 => HealthProbe::Disabled,
        1 => HealthProbe::shell("x"),
        2 => HealthProbe::Tcp { host, port: 1 },
        _ => HealthProbe::Http { host, port: 1, path: "/".into() },
    };
    let on_failure = (interval > 9).then_some(HealthAction::Restart);
    HealthSettings { probe: Some(probe), interval_ms: Some(interval), on_failure, ..HealthSettings::default() }
}

fn ulimit(soft: u64) -> Ulimit {
    Ulimit { resource: Resource::Nofile, soft: Some(soft), hard: None }
}

fn app() -> impl Strategy<Value = AppSpec> {
    let text = || option::of(any::<String>());
    let command = (name(), any::<String>(), text(), vec(any::<String>(), 0..3));
    let who = (text(), text(), vec(any::<u32>(), 0..3), text());
    let mount = (name(), any::<String>(), any::<bool>()).prop_map(|(volume, target, read_only)| MountSpec {
        volume,
        target,
        read_only,
        options: MountOptions {
            propagation: if read_only { Propagation::Slave } else { Propagation::Private },
            writable_submounts: read_only,
        },
    });
    let world = (vec(any::<(String, String)>(), 0..3), vec(mount, 0..3), map(), map());
    let limits = any::<[Option<u64>; 4]>();
    let rest = (capabilities(), seccomp(), any::<[bool; 4]>(), any::<(Option<i32>, Option<u8>)>());
    (command, who, world, limits, rest).prop_map(|(command, who, world, limits, rest)| AppSpec {
        name: command.0,
        id: None,
        image: RequestedImage::new(command.1),
        exec: command.2,
        args: command.3,
        user: who.0,
        group: who.1,
        working_dir: who.3,
        environment: world.0,
        mounts: world.1,
        user_annotations: world.2,
        user_labels: world.3,
        capabilities: rest.0,
        options: AppOptions {
            supplementary_gids: who.2,
            supplementary_groups: rest.2[3].then(|| "audio".to_owned()).into_iter().collect(),
            limits: Limits {
                memory: limits[0],
                memory_swap: limits[3].map(|_| -1),
                cpu_milli: limits[1],
                cpu_shares: limits[2],
                pids: limits[3],
                ..Limits::default()
            },
            groups_policy: if rest.2[0] { GroupsPolicy::Merge } else { GroupsPolicy::Strict },
            masked_paths: rest.2[1].then(|| vec!["/bin/ls".to_owned()]),
            read_only_paths: rest.2[2].then(Vec::new),
            log_path: rest.2[1].then(|| "web/0.log".parse().unwrap()),
            storage_limit: (!rest.2[3] && rest.1 != Seccomp::Unconfined).then_some(1 << 30),
            seccomp: rest.1,
            read_only_root: rest.2[0],
            new_privileges: rest.2[1],
            terminal: rest.2[2],
            stdin: rest.2[3],
            oom_score_adj: rest.3.0,
            devices: limits[2].map(|_| "/dev/fuse:/dev/x:r".parse().unwrap()).into_iter().collect(),
            ulimits: limits[1].map(ulimit).into_iter().collect(),
            restart: if rest.2[0] {
                RestartPolicy::Always
            } else {
                RestartPolicy::OnFailure { max_restarts: rest.3.1.map(u32::from) }
            },
            tmpfs: limits[0].map(|size| tmpfs(size, rest.2)).into_iter().collect(),
            sdnotify: if rest.2[0] { SdNotify::App } else { SdNotify::None },
            health: limits[1].map(health).unwrap_or_default(),
            systemd: if rest.2[1] { SystemdMode::Always } else { SystemdMode::Auto },
            stop_timeout_ms: limits[0],
            privileged: rest.2[3],
            pid: if rest.2[1] { PidMode::App } else { PidMode::Host },
            pid_target: rest.2[1].then(|| "target".parse().unwrap()),
        },
        stop_signal: rest.3.1,
    })
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)]
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(any::<String>(), 0..3)
}

fn port() -> impl Strategy<Value = PortSpec> {
    let numbered = (any::<u16>(), any::<u16>(), protocol()).prop_map(|(port, count, protocol)| PortTarget::Numbered {
        port,
        count,
        protocol,
    });
    let to = prop_oneof![any::<String>().prop_map(PortTarget::Named), numbered];
    (to, option::of(any::<IpAddr>()), any::<u16>()).prop_map(|(to, host_ip, host_port)| PortSpec {
        to,
        host_ip,
        host_port,
    })
}

fn dns() -> impl Strategy<Value = DnsSpec> {
    let server = (any::<IpAddr>(), option::of(Just("eth0")))
        .prop_map(|(address, zone)| NameServer::new(address, zone.filter(|_| address.is_ipv6())).unwrap());
    let given = (vec(server, 0..3), texts(), texts(), option::of(any::<String>()))
        .prop_map(|(servers, search, options, domain)| DnsSpec::Given(Dns { servers, search, options, domain }));
    prop_oneof![Just(DnsSpec::Network), Just(DnsSpec::Host), Just(DnsSpec::None), given]
}

fn hosts() -> impl Strategy<Value = HostsSpec> {
    let entries = vec((any::<IpAddr>(), texts()), 0..3).prop_map(HostsSpec::Entries);
    prop_oneof![Just(HostsSpec::Host), entries]
}

fn net() -> impl Strategy<Value = Option<NetMode>> {
    let some = prop_oneof![Just("none"), Just("host"), Just("default"), Just("all"), Just("all,a:IP=fd00::1;X=,b")];
    option::of(some.prop_map(|text| text.parse().unwrap()))
}

fn pod_limits(is_given: bool) -> Limits {
    if !is_given {
        return Limits::default();
    }
    let device = DeviceIoLimits { path: "/dev/sda".into(), read_bps: Some(1), ..DeviceIoLimits::default() };
    Limits {
        memory_high: Some(4096),
        memory_reservation: Some(4096),
        cpu_quota: Some(1000),
        cpu_period: Some(1000),
        cpuset_cpus: Some("0-3".parse().unwrap()),
        cpuset_mems: Some("0".parse().unwrap()),
        io_weight: Some(1),
        io_devices: vec![device],
        hugetlb: [("2MB".parse().unwrap(), 1 << 21)].into(),
        ..Limits::default()
    }
}

fn pod() -> impl Strategy<Value = PodSpec> {
    let networks = (net(), vec(port(), 0..3), dns(), hosts());
    (vec(app(), 0..3), vec(volume(), 0..3), networks, option::of(any::<String>()), map(), map(), any::<bool>())
        .prop_map(|(apps, volumes, (net, ports, dns, hosts), hostname, user_annotations, user_labels, sandbox)| {
            let shm_size = sandbox.then_some(4096);
            let sysctls =
                sandbox.then(|| gantry_model::sysctl::parse_setting("net.core.x=1").unwrap()).into_iter().collect();
            PodSpec {
                flavor: gantry_model::spec::PodFlavor::Container,
                apps,
                namespace: sandbox.then_some(gantry_model::PodNamespace::KUBERNETES),
                sandbox,
                privileged: sandbox,
                volumes,
                net,
                ports,
                dns,
                hosts,
                hostname,
                ipc: if sandbox { IpcMode::None } else { IpcMode::Host },
                uts: if sandbox { UtsMode::Host } else { UtsMode::Pod },
                userns: if sandbox { "auto" } else { "1000:70000" }.parse().unwrap(),
                cgroup_parent: sandbox.then(|| "/batch".parse().unwrap()),
                cgroup_manager: sandbox.then_some(gantry_model::cgroup::CgroupManager::Cgroupfs),
                shm_size,
                sysctls,
                limits: pod_limits(sandbox),
                log_dir: sandbox.then(|| "/var/log/pods/x".parse().unwrap()),
                user_annotations,
                user_labels,
            }
        })
}

proptest! {
    #[test]
    fn manifests_round_trip(pod in pod()) {
        prop_assert_eq!(&parse(&to_bytes(&pod)).unwrap(), &pod);
        prop_assert_eq!(parse(to_value(&pod).to_string().as_bytes()).unwrap(), pod);
    }

    #[test]
    fn parser_never_panics(bytes: Vec<u8>) {
        let _ = parse(&bytes);
    }
}

#[test]
fn a_short_manifest_gets_the_defaults() {
    let text = r#"{"version":1,"apps":[{"name":"a","image":"x"}],"volumes":[{"name":"v","kind":{"empty":{}}}]}"#;
    let pod = parse(text.as_bytes()).unwrap();
    assert_eq!(pod.apps, [AppSpec::new("a".parse().unwrap(), RequestedImage::new("x"))]);
    assert_eq!(pod.volumes[0].kind, VolumeKind::Empty { mode: 0o755, uid: 0, gid: 0 });
}

#[test]
fn networks_are_parsed() {
    let text = r#"{"version":1,"net":"default,b:IP=10.0.0.7","apps":[],
        "ports":[{"host_ip":"::1","host_port":8080,"to":{"name":"80-tcp"}},{"host_port":5,"to":{"port":{"port":6}}}],
        "dns":{"given":{"servers":["10.0.0.1"]}},"hosts":{"entries":[{"address":"10.0.0.1","names":["db","d"]}]}}"#;
    let pod = parse(text.as_bytes()).unwrap();
    assert_eq!(pod.net, Some("default,b:IP=10.0.0.7".parse().unwrap()));
    let one = PortTarget::Numbered { port: 6, count: 1, protocol: Protocol::Tcp };
    let host_ip = Some("::1".parse().unwrap());
    assert_eq!(pod.ports[0], PortSpec { to: PortTarget::Named("80-tcp".into()), host_ip, host_port: 8080 });
    assert_eq!(pod.ports[1], PortSpec { to: one, host_ip: None, host_port: 5 });
    let dns = Dns { servers: vec!["10.0.0.1".parse().unwrap()], ..Dns::default() };
    assert_eq!(pod.dns, DnsSpec::Given(dns));
    let entry = ("10.0.0.1".parse().unwrap(), vec!["db".to_owned(), "d".to_owned()]);
    assert_eq!(pod.hosts, HostsSpec::Entries(vec![entry]));
    let old = |net: &str| parse(format!(r#"{{"version":1,{net}"apps":[]}}"#).as_bytes()).unwrap();
    for (text, want) in
        [("", None), (r#""net":"none","#, Some(NetMode::None)), (r#""net":"host","#, Some(NetMode::Host))]
    {
        let pod = old(text);
        assert_eq!((pod.net, pod.ports, pod.dns, pod.hosts), (want, vec![], DnsSpec::Network, HostsSpec::default()));
    }
}

#[test]
fn invalid_manifests_are_rejected() {
    let long = format!(r#"{{"version":1,"apps":[],"hostname":"{}"}}"#, "x".repeat(MAX_MANIFEST));
    let deep = "[".repeat(100_000);
    for bad in [
        "",
        "{}",
        r#"{"version":2,"apps":[]}"#,
        r#"{"version":1,"apps":[],"priviledged":true}"#,
        r#"{"version":1,"apps":[{"name":"a","image":"x","limits":{"memroy":1}}]}"#,
        r#"{"version":1,"apps":[{"name":"../a","image":"x"}]}"#,
        r#"{"version":1,"apps":[{"name":"a","image":"x","stop_signal":999}]}"#,
        r#"{"version":1,"apps":[],"volumes":[{"name":"v","kind":{"host":{"source":"/","x":1}}}]}"#,
        r#"{"version":1,"net":"a,a","apps":[]}"#,
        r#"{"version":1,"net":"../a","apps":[]}"#,
        r#"{"version":1,"net":{"none":{}},"apps":[]}"#,
        r#"{"version":1,"ports":[{"host_port":80}],"apps":[]}"#,
        r#"{"version":1,"ports":[{"host_port":80,"to":{"port":{"port":80,"proto":"tcp"}}}],"apps":[]}"#,
        r#"{"version":1,"ports":[{"host_port":65536,"to":{"name":"a"}}],"apps":[]}"#,
        r#"{"version":1,"ports":[{"host_port":80,"host_ip":"x","to":{"name":"a"}}],"apps":[]}"#,
        r#"{"version":1,"dns":"image","apps":[]}"#,
        r#"{"version":1,"dns":{"given":{"nameservers":[]}},"apps":[]}"#,
        r#"{"version":1,"hosts":{"entries":[{"address":"10.0.0.1","names":["a"],"x":1}]},"apps":[]}"#,
        r#"{"version":1,"apps":[],"apps":[]}"#,
        &long,
        &deep,
    ] {
        assert_eq!(parse(bad.as_bytes()).unwrap_err().kind(), ErrorKind::Invalid, "{bad:.100}");
    }
    // Only apps of a host pod have no image.
    let without_image = parse(br#"{"version":1,"apps":[{"name":"a"}]}"#).unwrap();
    assert!(without_image.validate().is_err());
}
