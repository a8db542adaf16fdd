//! The manifest and back.

use std::collections::BTreeMap;

use gantry_model::spec::{Capabilities, Limits, MountSpec, Seccomp, VolumeKind, VolumeSpec};
use gantry_model::{AppName, AppSpec};
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
        names().prop_map(Capabilities::Remove)
    ]
}

fn seccomp() -> impl Strategy<Value = Seccomp> {
    let names = || btree_set("[a-z_]{1,8}", 0..3);
    prop_oneof![
        Just(Seccomp::Default),
        Just(Seccomp::Unconfined),
        (names(), any::<u16>()).prop_map(|(names, errno)| Seccomp::Retain { names, errno }),
        (names(), any::<u16>()).prop_map(|(names, errno)| Seccomp::Remove { names, errno }),
    ]
}

fn volume() -> impl Strategy<Value = VolumeSpec> {
    let host = (any::<String>(), any::<bool>()).prop_map(|(source, recursive)| VolumeKind::Host { source, recursive });
    let empty = any::<(u32, u32, u32)>().prop_map(|(mode, uid, gid)| VolumeKind::Empty { mode, uid, gid });
    (name(), prop_oneof![host, empty], any::<bool>()).prop_map(|(name, kind, read_only)| VolumeSpec {
        name,
        kind,
        read_only,
    })
}

fn app() -> impl Strategy<Value = AppSpec> {
    let text = || option::of(any::<String>());
    let command = (name(), any::<String>(), text(), vec(any::<String>(), 0..3));
    let who = (text(), text(), vec(any::<u32>(), 0..3), text());
    let mount = (name(), any::<String>(), any::<bool>()).prop_map(|(volume, target, read_only)| MountSpec {
        volume,
        target,
        read_only,
    });
    let world = (vec(any::<(String, String)>(), 0..3), vec(mount, 0..3), map(), map());
    let limits = any::<[Option<u64>; 4]>();
    let rest = (capabilities(), seccomp(), any::<[bool; 4]>(), any::<(Option<i32>, Option<u8>)>());
    (command, who, world, limits, rest).prop_map(|(command, who, world, limits, rest)| AppSpec {
        name: command.0,
        image: command.1,
        exec: command.2,
        args: command.3,
        user: who.0,
        group: who.1,
        supplementary_gids: who.2,
        working_dir: who.3,
        environment: world.0,
        mounts: world.1,
        user_annotations: world.2,
        user_labels: world.3,
        limits: Limits { memory: limits[0], cpu_milli: limits[1], cpu_shares: limits[2], pids: limits[3] },
        capabilities: rest.0,
        seccomp: rest.1,
        read_only_root: rest.2[0],
        new_privileges: rest.2[1],
        terminal: rest.2[2],
        stdin: rest.2[3],
        oom_score_adj: rest.3.0,
        stop_signal: rest.3.1,
    })
}

fn pod() -> impl Strategy<Value = PodSpec> {
    let net = option::of(prop_oneof![
        Just(gantry_model::NetMode::None),
        Just(gantry_model::NetMode::Host),
        Just(gantry_model::NetMode::default())
    ]);
    (vec(app(), 0..3), vec(volume(), 0..3), net, option::of(any::<String>()), map(), map()).prop_map(
        |(apps, volumes, net, hostname, user_annotations, user_labels)| PodSpec {
            apps,
            volumes,
            net,
            ports: Vec::new(),
            dns: gantry_model::net::DnsSpec::default(),
            hosts: gantry_model::net::HostsSpec::default(),
            hostname,
            user_annotations,
            user_labels,
        },
    )
}

proptest! {
    #[test]
    fn a_pod_survives_its_manifest(pod in pod()) {
        prop_assert_eq!(&parse(&to_bytes(&pod)).unwrap(), &pod);
        prop_assert_eq!(parse(to_value(&pod).to_string().as_bytes()).unwrap(), pod);
    }

    #[test]
    fn never_panics(bytes: Vec<u8>) {
        let _ = parse(&bytes);
    }
}

#[test]
fn a_short_manifest_gets_the_defaults() {
    let text = r#"{"version":1,"apps":[{"name":"a","image":"x"}],"volumes":[{"name":"v","kind":{"empty":{}}}]}"#;
    let pod = parse(text.as_bytes()).unwrap();
    assert_eq!(pod.apps, [AppSpec::new("a".parse().unwrap(), "x".into())]);
    assert_eq!(pod.volumes[0].kind, VolumeKind::Empty { mode: 0o755, uid: 0, gid: 0 });
}

#[test]
fn what_is_not_a_manifest() {
    let long = format!(r#"{{"version":1,"apps":[],"hostname":"{}"}}"#, "x".repeat(MOST));
    let deep = "[".repeat(100_000);
    for bad in [
        "",
        "{}",
        r#"{"version":2,"apps":[]}"#,
        r#"{"version":1,"apps":[],"privileged":true}"#,
        r#"{"version":1,"apps":[{"name":"a","image":"x","limits":{"memroy":1}}]}"#,
        r#"{"version":1,"apps":[{"name":"../a","image":"x"}]}"#,
        r#"{"version":1,"apps":[{"name":"a"}]}"#,
        r#"{"version":1,"apps":[{"name":"a","image":"x","stop_signal":999}]}"#,
        r#"{"version":1,"apps":[],"volumes":[{"name":"v","kind":{"host":{"source":"/","x":1}}}]}"#,
        r#"{"version":1,"net":"bridge","apps":[]}"#,
        r#"{"version":1,"apps":[],"apps":[]}"#,
        &long,
        &deep,
    ] {
        assert_eq!(parse(bad.as_bytes()).unwrap_err().kind(), ErrorKind::Invalid, "{bad:.100}");
    }
}
