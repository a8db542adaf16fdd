//! The built-in networks, without any configuration, and the selection of networks by `--net`: reachability and
//! isolation.

use std::collections::BTreeSet;

use gantry_proto::rkt::v1alpha::{PodFilter, PodState};
use gantry_tests::net::{HOST4, HOST6, OUTSIDE4, OUTSIDE6};
use gantry_tests::{Gantry, NetworkNamespace, Space, wait_for};
use serde_json::{Value, json};

const FAILED: i32 = 125;
const GATEWAY4: &str = "10.121.0.1";
const GATEWAY6: &str = "fd67:616e:7472:7900::1";

/// A host and a gantry on it. The space must outlive the gantry.
fn lab() -> (Space, Gantry) {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    (space, g)
}

/// A bridge network with this /16 prefix.
fn bridge(name: &str, prefix: &str) -> Value {
    json!([
        { "type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true, "ipam": {
            "type": "host-local", "subnet": format!("{prefix}.0.0/16"), "routes": [{ "dst": "0.0.0.0/0" }] } },
        { "type": "portmap", "capabilities": { "portMappings": true } },
        { "type": "firewall", "ingressPolicy": "same-bridge" },
    ])
}

/// The names of the attached networks.
fn names(attached: &[Value]) -> Vec<&str> {
    attached.iter().filter_map(|network| network["name"].as_str()).collect()
}

/// Adds routes to the pods of the built-in networks on the outside host.
fn add_routes_to_pods(outside: &NetworkNamespace) {
    outside.batch(&format!(
        "route add 10.121.0.0/16 via {HOST4}\nroute add 10.122.0.0/16 via {HOST4}\n\
         route add fd67:616e:7472:7900::/63 via {HOST6}\n"
    ));
}

#[test]
fn pods_have_the_mtu_of_the_uplink() {
    let (space, g) = lab();
    space.host().batch("link set up0 mtu 1420\n");
    let pod = g.networked(&[], &["sleep", "forever"]);
    let mtu = |place: &NetworkNamespace, name| place.json("ip", &["-j", "link", "show", "dev", name])[0]["mtu"].clone();
    assert_eq!(mtu(&g.network_namespace(&pod), "eth0"), 1420);
    assert_eq!(mtu(space.host(), "gantry0"), 1420);
}

#[test]
fn status_matches_the_addresses_of_the_pod() {
    let (_space, g) = lab();
    let pod = g.networked(&[], &["sleep", "forever"]);
    let (place, attached) = (g.network_namespace(&pod), g.network_status(&pod));
    let (ip4, ip6) = (g.ip4(&pod), g.ip6(&pod));
    assert_eq!(names(&attached), ["default"], "{attached:?}");
    assert_eq!(attached[0]["interface"], "eth0", "{attached:?}");
    assert!(ip4.starts_with("10.121.") && ip6.starts_with("fd67:616e:7472:7900:"), "{attached:?}");
    assert_eq!(place.addresses("eth0"), [format!("{ip4}/16"), format!("{ip6}/64")]);
    assert_eq!(place.links(), BTreeSet::from(["lo".to_owned(), "eth0".to_owned()]));
    assert!(place.is_up("lo") && place.is_up("eth0"));
    assert_eq!((place.gateway("-4").as_deref(), place.gateway("-6").as_deref()), (Some(GATEWAY4), Some(GATEWAY6)));
    let link = place.json("ip", &["-j", "link", "show", "dev", "eth0"]);
    assert_eq!(link[0]["address"], attached[0]["mac"], "{attached:?}");
}

#[test]
fn pods_reach_pods_the_host_and_the_outside() {
    let (space, g) = lab();
    let (server, client) = (g.server(&[], "7000"), g.networked(&[], &["sleep", "forever"]));
    let place = g.network_namespace(&client);
    let _host = space.host().serve(7001);
    let _outside = space.outside().serve(7002);
    for (own, host, gateway, outside, own_host, pod) in [
        (g.ip4(&client), HOST4, GATEWAY4, OUTSIDE4, GATEWAY4, g.ip4(&server)),
        (g.ip6(&client), HOST6, GATEWAY6, OUTSIDE6, GATEWAY6, g.ip6(&server)),
    ] {
        let from_own = format!("from {own} ");
        for protocol in ["tcp", "udp"] {
            assert!(place.ask(protocol, &pod, 7000).starts_with(&from_own), "pod to pod");
            assert!(space.host().ask(protocol, &pod, 7000).starts_with(&format!("from {own_host} ")), "host to pod");
            assert!(place.ask(protocol, gateway, 7001).starts_with(&from_own), "pod to gateway");
            let masked = place.ask(protocol, outside, 7002);
            assert!(masked.starts_with(&format!("from {host} ")), "the outside sees the host, not {masked}");
        }
        // A UDP reply would have the gateway's address as its source.
        assert!(place.ask("tcp", host, 7001).starts_with(&from_own), "pod to host");
    }
}

#[test]
fn pods_are_unreachable_from_outside() {
    let (space, g) = lab();
    add_routes_to_pods(space.outside());
    let pod = g.server(&[], "7000");
    for protocol in ["tcp", "udp"] {
        space.outside().assert_unreachable(protocol, &g.ip4(&pod), 7000);
        space.outside().assert_unreachable(protocol, &g.ip6(&pod), 7000);
        let _ = space.host().ask(protocol, &g.ip4(&pod), 7000);
    }
}

#[test]
fn restricted_pods_reach_only_host_and_network() {
    let (space, g) = lab();
    let net = &["--net=default-restricted"][..];
    let (server, client, other) = (g.server(net, "7000"), g.server(net, "7000"), g.server(&[], "7000"));
    let place = g.network_namespace(&client);
    let _host = space.host().serve(7001);
    let _outside = space.outside().serve(7002);
    add_routes_to_pods(space.outside());
    assert!(g.ip4(&client).starts_with("10.122."), "{}", g.ip4(&client));
    assert_eq!((place.gateway("-4"), place.gateway("-6")), (None, None));
    for (own, pod) in [(g.ip4(&client), g.ip4(&server)), (g.ip6(&client), g.ip6(&server))] {
        assert!(place.ask("tcp", &pod, 7000).starts_with(&format!("from {own} ")));
        assert!(place.ask("udp", &pod, 7000).starts_with(&format!("from {own} ")));
        let _ = space.host().ask("tcp", &own, 7000);
        space.outside().assert_unreachable("tcp", &own, 7000);
    }
    let _ = place.ask("tcp", "10.122.0.1", 7001);
    place.assert_unreachable("tcp", OUTSIDE4, 7002);
    place.assert_unreachable("tcp", &g.ip4(&other), 7000);
    g.network_namespace(&other).assert_unreachable("tcp", &g.ip4(&server), 7000);
    // Not even after the pod adds a route.
    place.batch("route add default via 10.122.0.1\nroute add ::/0 via fd67:616e:7472:7901::1\n");
    place.assert_unreachable("tcp", OUTSIDE4, 7002);
    place.assert_unreachable("udp", OUTSIDE6, 7002);
    place.assert_unreachable("tcp", &g.ip4(&other), 7000);
    place.assert_unreachable("tcp", &g.ip6(&other), 7000);
}

#[test]
fn networks_are_isolated_from_one_another() {
    let (_space, g) = lab();
    g.conflist("blue", &bridge("blue0", "10.31"));
    g.conflist("green", &bridge("green0", "10.32"));
    let pods: Vec<String> =
        ["--net=default", "--net=blue", "--net=green"].iter().map(|net| g.server(&[net], "7000")).collect();
    let both = g.networked(&["--net=blue,green"], &["sleep", "forever"]);
    for (i, from) in pods.iter().enumerate() {
        for to in pods.iter().skip(i + 1) {
            g.network_namespace(from).assert_unreachable("tcp", &g.ip4(to), 7000);
            g.network_namespace(to).assert_unreachable("udp", &g.ip4(from), 7000);
        }
    }
    // A pod of two networks reaches both.
    for pod in &pods[1..] {
        let _ = g.network_namespace(&both).ask("tcp", &g.ip4(pod), 7000);
    }
    g.network_namespace(&both).assert_unreachable("tcp", &g.ip4(&pods[0]), 7000);
}

#[test]
fn several_networks_are_attached_in_order() {
    let (space, g) = lab();
    g.conflist("blue", &bridge("blue0", "10.31"));
    g.conflist("green", &bridge("green0", "10.32"));
    let addresses = |pod: &str| {
        let attached = g.network_status(pod);
        attached
            .iter()
            .map(|it| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                (text(&it["name"]), text(&it["interface"]), text(&it["addresses"][0]["address"]))
            })
            .collect::<Vec<_>>()
    };
    let pod = g.networked(&["--net=green,default:IP=10.121.7.7,blue"], &["sleep", "forever"]);
    let got = addresses(&pod);
    let place = g.network_namespace(&pod);
    let order: Vec<&str> = got.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(order, ["green", "default", "blue"]);
    for (i, (_, interface, address)) in got.iter().enumerate() {
        assert_eq!(interface, &format!("eth{i}"));
        let has = place.addresses(interface);
        assert!(has.contains(&format!("{address}/16")), "{interface}: {has:?}, not {address}");
    }
    assert_eq!(got[1].2, "10.121.7.7");
    // The first default route is used.
    assert_eq!(place.gateway("-4").as_deref(), Some("10.32.0.1"));
    let _outside = space.outside().serve(7002);
    let _ = place.ask("tcp", OUTSIDE4, 7002);
    let all = g.networked(&["--net=all"], &["sleep", "forever"]);
    let got: BTreeSet<String> = addresses(&all).into_iter().map(|(name, ..)| name).collect();
    for name in ["default", "blue", "green"] {
        assert!(got.contains(name), "{got:?}");
    }
    // `--net` may be repeated.
    let pod = g.networked(&["--net=blue", "--net=green"], &["sleep", "forever"]);
    assert_eq!(names(&g.network_status(&pod)), ["blue", "green"]);
}

#[test]
fn net_modes_none_and_host() {
    let (space, g) = lab();
    let none = g.networked(&["--net=none"], &["sleep", "forever"]);
    assert_eq!(g.network_namespace(&none).links(), BTreeSet::from(["lo".to_owned()]));
    assert!(g.network_namespace(&none).is_up("lo"));
    let host = g.networked(&["--net=host"], &["sleep", "forever"]);
    assert_eq!(g.network_namespace(&host).links(), space.host().links());
    for pod in [&none, &host] {
        let status = g.status(pod);
        assert!(status["networks"].as_array().is_none_or(Vec::is_empty), "{status}");
    }
    // Nothing is created for either.
    assert!(!space.host().links().contains("gantry0") && space.host().rules().is_empty());
}

#[test]
fn a_file_replaces_the_built_in_default() {
    let (_space, g) = lab();
    g.conflist("blue", &bridge("blue0", "10.31"));
    g.networks("default = \"blue\"");
    let pod = g.networked(&[], &["sleep", "forever"]);
    assert_eq!(names(&g.network_status(&pod)), ["blue"]);
    let pod = g.networked(&["--net=default"], &["sleep", "forever"]);
    assert_eq!(names(&g.network_status(&pod)), ["default"]);
    // The file replaces the built-in network.
    g.conflist("default", &bridge("mine0", "10.33"));
    let pod = g.networked(&["--net=default"], &["sleep", "forever"]);
    assert!(g.ip4(&pod).starts_with("10.33."), "{}", g.ip4(&pod));
}

#[test]
fn requested_addresses_are_assigned() {
    let (_space, g) = lab();
    let pod = g.networked(&["--net=default:IP=10.121.7.7"], &["sleep", "forever"]);
    assert_eq!(g.ip4(&pod), "10.121.7.7");
    let image = g.fixture();
    let run = |net: &str| g.run(&["run", &format!("--net={net}"), &image, "--", "true"]);
    let _ = run("default:IP=10.121.7.7").exits(FAILED).stderr_contains(&["10.121.7.7", "default"]);
    let _ = run("default:IP=10.99.0.1").exits(FAILED).stderr_contains(&["10.99.0.1"]);
    let _ = run("default:IP=10.121.0.1").exits(FAILED).stderr_contains(&["10.121.0.1"]);
    let _ = run("default:IP=nonsense").exits(FAILED).stderr_contains(&["nonsense"]);
    g.run(&["stop", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    let again = g.networked(&["--net=default:IP=10.121.7.7"], &["sleep", "forever"]);
    assert_eq!(g.ip4(&again), "10.121.7.7", "an address is free when its pod is over");
}

#[test]
fn invalid_network_arguments_are_rejected() {
    let (space, g) = lab();
    let image = g.fixture();
    g.net_file("50-broken.conflist", "{ \"name\": \"broken\", ");
    for (net, says) in [
        ("nowhere,gone", &["there are no networks 'nowhere', 'gone'", "gantry network list"][..]),
        ("default,default", &["duplicate", "default"]),
        ("host:IP=10.0.0.1", &["host"]),
        ("all:IP=10.0.0.1", &["all"]),
        ("host,default", &["host"]),
        ("default,none", &["none"]),
        ("default:IP", &["KEY=VALUE"]),
        ("../x", &["../x"]),
        ("default:IP=10.121.0.9;IP", &["KEY=VALUE"]),
        ("default:ip=10.121.0.9", &["network 'default' has no argument 'ip'", "IP=ADDRESS and MAC=ADDRESS"]),
        ("default:IP=10.121.0.9;FOO=1", &["no argument 'FOO'"]),
        ("default:IP=", &["argument 'IP' of network 'default' has no value"]),
    ] {
        let _ = g.run(&["run", &format!("--net={net}"), &image, "--", "true"]).exits(FAILED).stderr_contains(says);
    }
    // No pod was created.
    let events = g.run(&["events"]).ok().stdout;
    assert!(!events.contains("pod-"), "{events}");
    // Nothing was created before the error.
    assert!(!space.host().links().contains("gantry0"));
    // An invalid file does not affect other networks.
    let _ = g.client(&[], &["true"]).ok();
}

#[test]
fn prepared_pods_are_attached_when_they_run() {
    let (_space, g) = lab();
    let image = g.fixture();
    let prepare = |net: &str| gantry_tests::pod_id(&g.run(&["prepare", net, &image, "--", "sleep", "forever"]).ok());
    let pod = prepare("--net=default-restricted");
    assert!(g.status(&pod)["networks"].as_array().is_none_or(Vec::is_empty));
    g.run(&["run-prepared", "--detach", &pod]).succeeded();
    assert!(g.ip4(&pod).starts_with("10.122."));
    let pod = prepare("--net=none");
    g.run(&["run-prepared", "--detach", "--net=default", &pod]).succeeded();
    assert!(g.ip4(&pod).starts_with("10.121."));
    let manifest = g.run(&["cat-manifest", &pod]).ok().json();
    assert_eq!(manifest["net"], "default", "the manifest has the pod's networks");
}

#[test]
fn commands_show_attached_networks() {
    let (_space, g) = lab();
    let pod = g.networked(&["--port=8080:7000"], &["sleep", "forever"]);
    let (ip4, ip6) = (g.ip4(&pod), g.ip6(&pod));
    let _ = g.run(&["list"]).ok().stdout_contains(&format!("default:ip4={ip4}"));
    let _ = g.run(&["status", &pod]).ok().stdout_contains(&format!("default:ip4={ip4}")).stdout_contains(&ip6);
    let network = &g.network_status(&pod)[0];
    assert_eq!(network["addresses"][0]["gateway"], GATEWAY4, "{network}");
    assert_eq!(network["addresses"][0]["prefix"], 16, "{network}");
    assert_eq!(network["ports"][0]["host_port"], 8080, "{network}");
    let inspected = g.run(&["inspect", &pod]).ok().json();
    let inspected = inspected.as_array().map_or(&inspected, |all| &all[0]);
    assert_eq!(inspected["networks"][0]["addresses"][0]["address"], ip4, "{inspected}");
    assert_eq!(g.list()[0]["networks"][0]["addresses"][1]["address"], ip6);
    // The networks are still shown after the pod has ended.
    g.run(&["stop", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    assert_eq!(g.ip4(&pod), ip4);
}

#[test]
fn the_api_reports_networks() {
    let (_space, g) = lab();
    g.conflist("blue", &bridge("blue0", "10.31"));
    let served = g.serve(&[]);
    let api = served.api();
    let one = g.networked(&[], &["sleep", "forever"]);
    let two = g.networked(&["--net=blue,default"], &["sleep", "forever"]);
    let none = g.networked(&["--net=none"], &["sleep", "forever"]);
    let told = |pod: &str| {
        let pod = api.wait_pod(pod, "to run", |pod| pod.state() == PodState::Running);
        pod.networks.into_iter().map(|it| (it.name, it.ipv4, it.ipv6)).collect::<Vec<_>>()
    };
    assert_eq!(told(&one), [("default".to_owned(), g.ip4(&one), g.ip6(&one))]);
    let blue = g.network_status(&two)[0]["addresses"][0]["address"].as_str().unwrap_or_default().to_owned();
    let both = told(&two);
    assert_eq!(both[0], ("blue".to_owned(), blue, String::new()));
    assert_eq!((both[1].0.as_str(), &both[1].2), ("default", &g.ip6(&two)));
    assert_eq!(told(&none), []);
    let of = |names: &[&str]| {
        let network_names = names.iter().map(|name| (*name).to_owned()).collect();
        let mut ids = api.pod_ids(PodFilter { network_names, ..PodFilter::default() });
        ids.sort();
        ids
    };
    let sorted = |mut pods: Vec<String>| {
        pods.sort();
        pods
    };
    assert_eq!(of(&["default"]), sorted(vec![one.clone(), two.clone()]));
    assert_eq!(of(&["blue"]), of(&["blue", "default"]));
    assert_eq!(of(&["blue", "default"]), [two]);
    assert_eq!(of(&["nowhere"]), [""; 0]);
    served.end().succeeded();
}

#[test]
fn the_networks_are_listed() {
    let (_space, g) = lab();
    g.conflist("blue", &bridge("blue0", "10.31"));
    g.net_file("50-broken.conflist", "{ \"name\": \"broken\", ");
    let pod = g.networked(&["--net=blue"], &["sleep", "forever"]);
    let listed = g.json(&["network", "list"]);
    let listed = listed.as_array().unwrap_or_else(|| panic!("not a list: {listed}"));
    let of = |name: &str| listed.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name}: {listed:?}"));
    assert_eq!(of("blue")["subnets"][0], "10.31.0.0/16");
    assert_eq!(of("default")["subnets"][0], "10.121.0.0/16");
    assert!(listed.iter().any(|it| it["problem"].is_string()), "the broken file: {listed:?}");
    let text = g.run(&["network", "list"]).ok();
    let _ = text.stdout_contains("blue").stdout_contains("default-restricted").stdout_contains("broken");
    let shown = g.run(&["network", "inspect", "blue"]).ok();
    let _ = shown.stdout_contains("blue0").stdout_contains(&pod).stdout_contains(&g.ip4(&pod));
    let several = g.json(&["network", "inspect", "blue", "default"]);
    assert_eq!((&several[0]["name"], &several[1]["name"]), (&"blue".into(), &"default".into()), "{several}");
    let _ = g.run(&["network", "inspect", "nowhere"]).exits(1).stderr_contains(&["nowhere"]);
}

/// Multicast group reports (IGMP, MLD) are for routers. Flooded to every pod, they would make each start slower than
/// the last.
#[test]
fn group_reports_are_not_flooded_to_pods() {
    let (_space, g) = lab();
    let one = g.networked(&["--net=default"], &["sleep", "forever"]);
    let two = g.networked(&["--net=default"], &["sleep", "forever"]);
    let count = |pod: &str, what: &str| {
        let line = g.network_namespace(pod).sh(&format!("grep -w {what} /proc/thread-self/net/snmp6"));
        line.split_whitespace().last().and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    let said = |pod: &str| -> u64 { count(pod, "Icmp6OutMLDv2Reports") };
    wait_for("the second pod to say which groups it is in", || (said(&two) >= 2).then_some(()));
    assert_eq!(count(&one, "Icmp6InMLDv2Reports"), 0);
}

#[test]
fn gc_reports_removed_network_resources() {
    let (_space, g) = lab();
    let _ = g.client(&["--rm", "--net=default"], &["true"]).ok();
    let swept = |flags: &[&str]| -> Vec<Value> {
        let all = g.run(&[&["gc", "--grace-period=0s", "-o", "json"], flags].concat()).ok().json();
        all.as_array().cloned().unwrap_or_default()
    };
    let of_bridge = |all: &[Value], done: bool| {
        all.iter().any(|it| {
            let what = it["what"].as_str().unwrap_or_default();
            what.contains("bridge gantry0") && it["id"].is_null() && it["action"] == "removed" && it["done"] == done
        })
    };
    let would = swept(&["--dry-run"]);
    assert!(of_bridge(&would, false), "{would:?}");
    let did = swept(&[]);
    assert!(of_bridge(&did, true), "{did:?}");
    assert_eq!(swept(&[]), Vec::<Value>::new());
}

/// The sysctls that forwarding changes, in the host's namespace.
const SWITCHES: &str = "cd /proc/sys/net; cat ipv4/ip_forward ipv6/conf/all/forwarding ipv4/conf/all/accept_redirects \
                        ipv4/conf/up0/forwarding ipv6/conf/up0/forwarding ipv6/conf/up0/accept_ra";

#[test]
fn forwarding_is_confined_to_running_pods() {
    let (space, g) = lab();
    let (host, outside, inner) = (space.host(), space.outside(), NetworkNamespace::new());
    let (inner4, inner6) = ("198.51.100.2", "2001:db8:1::2");
    host.veth_pair(
        "down0",
        &["198.51.100.1/24", "2001:db8:1::1/64"],
        &inner,
        ("down0", &[&format!("{inner4}/24"), &format!("{inner6}/64")]),
    );
    inner.batch("route add default via 198.51.100.1\nroute add ::/0 via 2001:db8:1::1\n");
    outside.batch(&format!("route add 198.51.100.0/24 via {HOST4}\nroute add 2001:db8:1::/64 via {HOST6}\n"));
    host.sh("cd /proc/sys/net; echo 0 >ipv4/ip_forward; echo 0 >ipv6/conf/all/forwarding; \
             echo 0 >ipv4/conf/all/accept_redirects; echo 1 >ipv6/conf/up0/accept_ra");
    let before = host.sh(SWITCHES);
    let _server = inner.serve(7000);
    let pod = g.server(&["-p", "8080:7000"], "7000");
    let routes_nothing =
        || [inner4, inner6].iter().for_each(|address| outside.assert_unreachable("tcp", address, 7000));
    routes_nothing();
    // The traffic of pods is forwarded, in both families and directions.
    for (address, own) in [(inner4, "198.51.100.1"), (inner6, "2001:db8:1::1")] {
        assert!(g.network_namespace(&pod).ask("tcp", address, 7000).starts_with(&format!("from {own} ")));
    }
    for (address, from) in [("198.51.100.1", &inner), ("2001:db8:1::1", &inner), (HOST4, outside), (HOST6, outside)] {
        let _ = from.ask("tcp", address, 8080);
    }
    host.sh("nft flush ruleset; echo 0 >/proc/sys/net/ipv4/ip_forward");
    g.run(&["network", "reload"]).succeeded();
    routes_nothing();
    let _ = outside.ask("tcp", HOST4, 8080);
    let _ = g.run(&["doctor"]).ok();
    // The pods of another gantry are not confined.
    let other = Gantry::in_space(&space);
    other.conflist("second", &bridge("second0", "10.77"));
    let theirs = other.networked(&["--net=second"], &["sleep", "forever"]);
    let _ = other.network_namespace(&theirs).ask("tcp", "198.51.100.1", 8080);
    other.run(&["rm", "--force", &theirs]).succeeded();
    g.run(&["stop", &pod]).succeeded();
    wait_for("the host's settings to be restored", || (host.sh(SWITCHES) == before).then_some(()));
    routes_nothing();
    // On a host that is already a router, forwarding is not confined.
    host.sh("echo 1 >/proc/sys/net/ipv4/ip_forward");
    let before = host.sh(SWITCHES);
    let pod = g.networked(&[], &["sleep", "forever"]);
    assert!(outside.ask("tcp", inner4, 7000).starts_with(&format!("from {OUTSIDE4} ")));
    outside.assert_unreachable("tcp", inner6, 7000);
    g.run(&["stop", &pod]).succeeded();
    wait_for("the bridge to go", || (!host.links().contains("gantry0")).then_some(()));
    wait_for("the host's settings to be restored", || (host.sh(SWITCHES) == before).then_some(()));
    let _ = outside.ask("tcp", inner4, 7000);
}
