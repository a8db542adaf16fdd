//! Recovery of networks: flushed rules, killed supervisors and commands, exhausted pools, a reboot, spoofing pods.
//! Required resources are restored, orphans are removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use gantry_tests::net::{HOST4, HOST6, OUTSIDE4};
use gantry_tests::{Gantry, Signal, Space, pod_id, wait_for};
use rustix::process::{Pid, kill_process};
use serde_json::{Value, json};

const FAILED: i32 = 125;

fn lab() -> (Space, Gantry) {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    (space, g)
}

/// Kills a process, which may have exited meanwhile: pods are killed at random times, even at their end.
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match kill_process(pid.unwrap_or_else(|| panic!("no such process id")), Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => panic!("cannot kill: {error}"),
    }
}

/// The names of the nftables tables in the space.
fn tables(space: &Space) -> BTreeSet<String> {
    space.host().sh("nft list tables").lines().map(str::to_owned).collect()
}

#[test]
fn gantryd_restores_flushed_rules() {
    let (space, g) = lab();
    let daemon = g.start_daemon(&[]);
    let pod = g.server(&["-p", "8080:7000"], "7000");
    let (before, rules) = (tables(&space), space.host().rules());
    assert!(!before.is_empty());
    let table = before.iter().find(|table| table.starts_with("table inet gantry")).cloned();
    let table = table.unwrap_or_else(|| panic!("no table of gantry's: {before:?}"));
    let name = table.trim_start_matches("table ");
    for harm in ["nft flush ruleset".to_owned(), format!("nft delete table {name}"), format!("nft flush table {name}")]
    {
        space.host().sh(&harm);
        wait_for(&format!("what '{harm}' took"), || (space.host().rules() == rules).then_some(()));
        assert!(space.outside().ask("tcp", HOST4, 8080).contains(&g.ip4(&pod)));
        assert_eq!(tables(&space), before);
    }
    // Tables of other programs are ignored.
    space.host().sh("nft add table inet others && nft delete table inet others");
    let out = daemon.terminate();
    assert!(out.stderr.contains("nft"), "it names the cause: {out}");
}

#[test]
fn without_gantryd_reload_restores_flushed_rules() {
    let (space, g) = lab();
    let (first, second) = (g.server(&["-p", "8080:7000"], "7000"), g.server(&["-p", "8081:7000/udp"], "7000"));
    let rules = space.host().rules();
    space.host().sh("nft flush ruleset");
    space.outside().assert_unreachable("tcp", HOST4, 8080);
    let doctor = g.run(&["doctor"]).to_string();
    assert!(doctor.contains("gantry network reload"), "the doctor does not see that rules are missing: {doctor}");
    g.run(&["network", "reload"]).succeeded();
    assert_eq!(space.host().rules(), rules);
    assert!(space.outside().ask("tcp", HOST4, 8080).contains(&g.ip4(&first)));
    assert!(space.outside().ask("udp", HOST6, 8081).contains(&g.ip6(&second)));
    // A second reload changes nothing.
    g.run(&["network", "reload"]).succeeded();
    assert_eq!(space.host().rules(), rules);
    // A pod that starts after a flush restores the rules of the other pods.
    space.host().sh("nft flush ruleset");
    let third = g.server(&["-p", "8082:7000"], "7000");
    g.run(&["network", "reload"]).succeeded();
    for (port, pod) in [(8080, &first), (8082, &third)] {
        assert!(space.outside().ask("tcp", HOST4, port).contains(&g.ip4(pod)));
    }
    // A flush while pods end does no harm.
    space.host().sh("nft flush ruleset");
    for pod in [&first, &second, &third] {
        g.run(&["stop", pod]).succeeded();
        g.wait_state(pod, "exited");
    }
}

/// Reproducible pseudo-random numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

#[test]
fn supervisors_killed_at_random_times_leave_nothing() {
    const BATCHES: u32 = 10;
    const EACH: u32 = 20;
    let (_space, g) = lab();
    let image = g.fixture();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for batch in 0..BATCHES {
        let port = |i: u32| format!("{}:7000", 20_000 + batch * EACH + i);
        let ports: Vec<String> = (0..EACH).map(port).collect();
        let mut starting: Vec<_> = ports
            .iter()
            .map(|port| g.spawn(&["run", "--detach", "-p", port, &image, "--", "sleep", "forever"]))
            .collect();
        let mut pods = BTreeSet::new();
        while !starting.is_empty() {
            let one = usize::try_from(dice.below(starting.len() as u64)).unwrap_or(0);
            // Every third supervisor is killed while its pod starts: as soon as its record exists.
            if dice.below(3) == 0 {
                for pod in unfinished_pods(&g, &pods) {
                    if let Some(pid) = supervisor_of(&g, &pod) {
                        kill(pid);
                    }
                }
            }
            let out = starting.swap_remove(one).wait();
            if out.code == 0 {
                pods.insert(pod_id(&out));
            }
        }
        // The others are killed while they run, all at once.
        for pod in &pods {
            if let Some(pid) = supervisor_of(&g, pod) {
                kill(pid);
            }
        }
        wait_for("all to be over", || g.list().iter().all(|pod| pod["phase"] != "running").then_some(()));
        // gc removes the resources of a supervisor that died before its pod ran, and of a start that timed out.
        let _ = g.run(&["gc"]).ok();
        g.check_invariants();
    }
    let _ = g.run(&["gc", "--grace-period=0s"]).ok();
    assert_eq!(g.list().len(), 0);
}

/// Pods with a network record that are not running.
fn unfinished_pods(g: &Gantry, running: &BTreeSet<String>) -> Vec<String> {
    let pods = fs::read_dir(g.dir().join("pods")).into_iter().flatten().flatten();
    let made = pods.filter(|entry| entry.path().join("network.json").exists());
    let names = made.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !running.contains(name)).take(1).collect()
}

/// The supervisor of a pod, even before its start reply: the first process of that name that has the pod's directory
/// open.
fn supervisor_of(g: &Gantry, pod: &str) -> Option<u32> {
    let dir = g.dir().join("pods").join(pod);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = all.filter(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        name.starts_with("gantry-stage1")
            && fds.into_iter().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == dir))
    });
    ours.min()
}

#[test]
fn run_killed_at_random_times_leaves_nothing() {
    const MOMENTS: u32 = 20;
    let (_space, g) = lab();
    let image = g.fixture();
    let whole = g.client(&["-p", "8080:7000"], &["true"]).duration;
    for step in 0..MOMENTS {
        let run = g.spawn(&["run", "-p", "8080:7000", &image, "--", "obey", "SIGTERM"]);
        run.kill_after(whole * step / MOMENTS);
        g.wait_reconciled();
        g.remove_all();
        g.check_invariants();
    }
    // The port is free again.
    let _ = g.client(&["-p", "8080:7000"], &["true"]).ok();
}

/// Configures a network with this subnet.
fn pool(g: &Gantry, subnet: &str) {
    let ipam = json!({ "type": "host-local", "subnet": subnet });
    g.conflist("pool", &json!([{ "type": "bridge", "bridge": "pool0", "isGateway": true, "ipam": ipam }]));
}

#[test]
fn an_exhausted_pool_recovers() {
    let (_space, g) = lab();
    pool(&g, "10.71.0.0/29");
    let image = g.fixture();
    // Eight addresses, minus the network address, the gateway and the broadcast address.
    let mut pods: Vec<String> = (0..5).map(|_| g.networked(&["--net=pool"], &["sleep", "forever"])).collect();
    let addresses: BTreeSet<String> = pods.iter().map(|pod| g.ip4(pod)).collect();
    assert_eq!(addresses.len(), 5, "{addresses:?}");
    let full = || g.run(&["run", "--net=pool", &image, "--", "true"]).exits(FAILED).stderr_contains(&["pool"]);
    let text = full().stderr;
    assert!(["exhausted", "full", "no free", "taken", "in use"].iter().any(|word| text.contains(word)), "{text}");
    // A pod that ends and a pod whose supervisor is killed both release their addresses.
    let first = pods.remove(0);
    g.run(&["stop", &first]).succeeded();
    g.wait_state(&first, "exited");
    let again = g.networked(&["--net=pool"], &["sleep", "forever"]);
    assert_eq!(g.ip4(&again), g.ip4(&first), "the only one that is free");
    let _ = full();
    kill(g.supervisor(&pods[0]));
    g.wait_state(&pods[0], "exited");
    let third = g.networked(&["--net=pool"], &["sleep", "forever"]);
    assert!(addresses.contains(&g.ip4(&third)));
    let _ = full();
}

/// Kills a pod's supervisor and waits for its end, without a command that would detach the pod.
fn kill_supervisor(g: &Gantry, pod: &str) {
    let pid = g.supervisor(pod);
    kill(pid);
    let has_ended = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    };
    wait_for("the supervisor to end", || has_ended().then_some(()));
}

#[test]
fn run_takes_addresses_of_killed_supervisors() {
    let (_space, g) = lab();
    pool(&g, "10.73.0.0/30");
    let first = g.networked(&["--net=pool"], &["sleep", "forever"]);
    assert!(g.run(&["network", "inspect", "pool"]).ok().stdout.contains(&first));
    kill_supervisor(&g, &first);
    let shown = g.run(&["network", "inspect", "pool"]).ok();
    assert!(!shown.stdout.contains(&first), "{shown}");
    let second = g.networked(&["--net=pool"], &["sleep", "forever"]);
    kill_supervisor(&g, &second);
    let third = g.networked(&["--net=pool:IP=10.73.0.2"], &["sleep", "forever"]);
    assert_eq!(g.ip4(&third), "10.73.0.2");
    g.wait_state(&first, "exited");
    g.wait_state(&second, "exited");
    assert_eq!(g.network_namespace(&third).addresses("eth0"), ["10.73.0.2/30"]);
}

#[test]
fn networks_with_overlapping_subnets_exclude_each_other() {
    let (space, g) = lab();
    let image = g.fixture();
    for (name, subnet) in [("one", "10.74.0.0/24"), ("same", "10.74.0.0/24"), ("wide", "10.74.0.0/16")] {
        let ipam = json!({ "type": "host-local", "subnet": subnet, "routes": [{ "dst": "0.0.0.0/0" }] });
        let bridge =
            json!({ "type": "bridge", "bridge": format!("{name}0"), "isGateway": true, "ipMasq": true, "ipam": ipam });
        g.conflist(name, &json!([bridge]));
    }
    let pod = g.networked(&["--net=one"], &["sleep", "forever"]);
    let _outside = space.outside().serve(7002);
    let is_masqueraded = |pod: &str| g.network_namespace(pod).ask("tcp", OUTSIDE4, 7002).contains(HOST4);
    for (name, subnet) in [("same", "10.74.0.0/24"), ("wide", "10.74.0.0/16")] {
        let overlap = format!("the subnet {subnet} of network '{name}' overlaps with 10.74.0.0/24 of network 'one'");
        let out = g.run(&["run", &format!("--net={name}"), &image, "--", "true"]).exits(FAILED);
        assert!(out.stderr.contains(&overlap), "{out}");
        wait_for("its bridge to go", || (!space.host().links().contains(&format!("{name}0"))).then_some(()));
        assert!(is_masqueraded(&pod), "{name}");
    }
    g.run(&["doctor"]).succeeded();
    g.run(&["stop", &pod]).succeeded();
    let other = g.networked(&["--net=wide"], &["sleep", "forever"]);
    assert!(is_masqueraded(&other));
}

#[test]
fn a_reload_repairs_bridges_and_their_ports() {
    let (space, g) = lab();
    let pod = g.server(&["-p", "8080:7000"], "7000");
    let host_end = host_end(&pod);
    for (harm, finding) in [
        ("ip link set gantry0 down".to_owned(), "the bridge gantry0 is down"),
        ("ip address del 10.121.0.1/16 dev gantry0".to_owned(), "the bridge gantry0 lacks 10.121.0.1/16"),
        (format!("ip link set {host_end} nomaster"), "is not attached to the bridge gantry0"),
        ("sysctl -qw net.ipv4.ip_forward=0".to_owned(), "net.ipv4.ip_forward is 0"),
    ] {
        assert_repaired(&space, &g, &harm, finding);
        assert!(space.outside().ask("tcp", HOST4, 8080).contains(&g.ip4(&pod)), "{harm}");
        assert!(space.outside().ask("tcp", HOST6, 8080).contains(&g.ip6(&pod)), "{harm}");
    }
}

/// The name of the host end of a pod's first interface.
fn host_end(pod: &str) -> String {
    format!("gt{}0", pod.replace('-', "").split_at(12).0)
}

/// Damages the host's part of a network, and checks that the doctor finds it and that a reload repairs it.
fn assert_repaired(space: &Space, g: &Gantry, harm: &str, finding: &str) {
    space.host().sh(harm);
    let doctor = g.run(&["doctor"]).exits(1).stdout;
    assert!(doctor.contains(finding), "{harm}: {doctor}");
    g.run(&["network", "reload"]).succeeded();
    g.run(&["doctor"]).succeeded();
}

/// A network with this first plugin, addresses of both IP versions, published ports, and these further plugins.
fn dual_stack(g: &Gantry, name: &str, mut first: Value, further: &[Value]) {
    first["ipam"] = json!({ "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
        "ranges": [[{ "subnet": "10.75.0.0/24" }], [{ "subnet": "fd00:75::/64" }]] });
    let mut plugins = vec![first, json!({ "type": "portmap", "capabilities": { "portMappings": true } })];
    plugins.extend_from_slice(further);
    g.conflist(name, &plugins.into());
}

/// Whether the bridge port of a pod reflects frames and is isolated from other isolated ports.
fn port_settings(space: &Space, pod: &str) -> (Value, Value) {
    let link = space.host().json("ip", &["-j", "-d", "link", "show", "dev", &host_end(pod)]);
    let port = &link[0]["linkinfo"]["info_slave_data"];
    (port["hairpin"].clone(), port["isolated"].clone())
}

#[test]
fn a_reload_recreates_deleted_bridges() {
    let (space, g) = lab();
    let bridge = json!({ "type": "bridge", "bridge": "shop0", "isGateway": true, "hairpinMode": true });
    dual_stack(&g, "shop", bridge, &[json!({ "type": "firewall", "ingressPolicy": "isolated" })]);
    let pods = [g.server(&["-p", "8080:7000"], "7000"), g.server(&["--net=shop", "-p", "8081:7000"], "7000")];
    let properties = |bridge: &str| {
        let link = space.host().json("ip", &["-j", "-d", "link", "show", "dev", bridge]);
        let (link, data) = (&link[0], &link[0]["linkinfo"]["info_data"]);
        [&link["address"], &link["mtu"], &link["group"], &link["ifalias"], &data["mcast_snooping"]].map(Value::clone)
    };
    for (bridge, network) in [("gantry0", "default"), ("shop0", "shop")] {
        let before = properties(bridge);
        let finding = format!("the bridge {bridge} of network '{network}' is missing: 'gantry network reload' creates");
        assert_repaired(&space, &g, &format!("ip link delete {bridge}"), &finding);
        assert_eq!(properties(bridge), before);
    }
    assert_eq!(port_settings(&space, &pods[1]), (true.into(), true.into()));
    for (port, pod) in [(8080, &pods[0]), (8081, &pods[1])] {
        for (host, ip) in [(HOST4, g.ip4(pod)), (HOST6, g.ip6(pod))] {
            assert!(space.outside().ask("tcp", host, port).contains(&format!(" to {ip} ")));
        }
        assert!(space.host().ask("tcp", "127.0.0.1", port).contains(&g.ip4(pod)));
    }
    // The next pod and the end of the last one need no repair.
    let next = g.networked(&["--net=shop"], &["sleep", "forever"]);
    for pod in pods.iter().chain([&next]) {
        g.run(&["stop", pod]).succeeded();
    }
    wait_untouched(&space);
}

#[test]
fn a_reload_restores_bridge_port_settings() {
    let (space, g) = lab();
    let bridge = json!({ "type": "bridge", "bridge": "shop0", "isGateway": true, "hairpinMode": true });
    dual_stack(&g, "shop", bridge, &[json!({ "type": "firewall", "ingressPolicy": "isolated" })]);
    let pod = g.server(&["--net=shop"], "7000");
    let name = host_end(&pod);
    assert_eq!(port_settings(&space, &pod), (true.into(), true.into()));
    // A reload that is killed after it has attached the port leaves both off.
    for off in ["isolated off", "hairpin off", "isolated off hairpin off"] {
        let finding = format!("interface {name} of pod {pod} lacks settings of its bridge port");
        assert_repaired(&space, &g, &format!("ip link set {name} type bridge_slave {off}"), &finding);
        assert_eq!(port_settings(&space, &pod), (true.into(), true.into()), "{off}");
    }
}

#[test]
fn a_reload_repairs_ptp_host_ends() {
    let (space, g) = lab();
    dual_stack(&g, "line", json!({ "type": "ptp", "ipMasq": true }), &[]);
    let pod = g.server(&["--net=line", "-p", "8080:7000"], "7000");
    let (name, ip4, ip6) = (host_end(&pod), g.ip4(&pod), g.ip6(&pod));
    for (harm, finding) in [
        (format!("ip link set {name} down"), format!("interface {name} of pod {pod} is down")),
        (format!("ip address del 10.75.0.1/32 dev {name}"), format!("interface {name} of pod {pod} lacks 10.75.0.1")),
        (
            format!("ip address del fd00:75::1/128 dev {name}"),
            format!("interface {name} of pod {pod} lacks fd00:75::1"),
        ),
        (format!("ip route del {ip4} dev {name}"), format!("interface {name} of pod {pod} lacks the route to {ip4}")),
        (format!("ip route del {ip6} dev {name}"), format!("interface {name} of pod {pod} lacks the route to {ip6}")),
        (
            format!("sysctl -qw net.ipv6.conf.{name}.disable_ipv6=1"),
            format!("interface {name} of pod {pod} lacks fd00:75::1"),
        ),
    ] {
        assert_repaired(&space, &g, &harm, &finding);
        for (host, ip) in [(HOST4, &ip4), (HOST6, &ip6)] {
            assert!(space.outside().ask("tcp", host, 8080).contains(&format!(" to {ip} ")), "{harm}");
        }
        let outside = space.outside().serve(7002);
        assert!(g.network_namespace(&pod).ask("tcp", OUTSIDE4, 7002).contains(HOST4), "{harm}");
        drop(outside);
    }
}

/// The kernel deletes both ends of a veth pair.
#[test]
fn a_reload_names_pods_without_interface() {
    let (space, g) = lab();
    dual_stack(&g, "line", json!({ "type": "ptp" }), &[]);
    for net in ["--net=default", "--net=line"] {
        let (pod, other) = (g.server(&[net, "-p", "8080:7000"], "7000"), g.server(&[net, "-p", "8081:7000"], "7000"));
        space.host().sh(&format!("ip link delete {}\nip link set {} down", host_end(&pod), host_end(&other)));
        let finding = format!(
            "interface {} of pod {pod} was deleted, and with it eth0 in the pod: run 'gantry stop {pod}' and 'gantry start {pod}'",
            host_end(&pod)
        );
        let doctor = g.run(&["doctor"]).exits(1).stdout;
        assert!(doctor.contains(&finding), "{doctor}");
        let _ = g.run(&["network", "reload"]).exits(FAILED).stderr_contains(&[&finding]);
        assert!(space.outside().ask("tcp", HOST4, 8081).contains(&g.ip4(&other)), "{net}: the rest is repaired");
        g.run(&["stop", &pod]).succeeded();
        g.wait_state(&pod, "exited");
        g.run(&["start", &pod]).succeeded();
        g.run(&["network", "reload"]).succeeded();
        g.run(&["doctor"]).succeeded();
        let ip = g.ip4(&pod);
        let _ = space.outside().ask_until("tcp", HOST4, 8080, |reply| reply.contains(&ip));
        // The interface of a dead pod is no finding of a reload.
        kill_supervisor(&g, &other);
        wait_for("its interface to go", || (!space.host().links().contains(&host_end(&other))).then_some(()));
        g.run(&["network", "reload"]).succeeded();
        g.remove_all();
    }
}

#[test]
fn concurrent_starts_get_different_addresses() {
    let (_space, g) = lab();
    pool(&g, "10.72.0.0/27");
    let image = g.fixture();
    let line = ["run", "--detach", "--net=pool,default", &image, "--", "sleep", "forever"];
    let starting: Vec<_> = (0..20).map(|_| g.spawn(&line)).collect();
    let pods: Vec<String> = starting.into_iter().map(|run| pod_id(&run.wait().ok())).collect();
    for family in [Gantry::ip4, Gantry::ip6] {
        let addresses: BTreeSet<String> = pods.iter().map(|pod| family(&g, pod)).collect();
        assert_eq!(addresses.len(), pods.len(), "{addresses:?}");
    }
}

#[test]
fn a_reboot_ends_all_networks() {
    let (space, g) = lab();
    let pod = g.networked(&["--net=default:IP=10.121.5.5", "-p", "8080:7000"], &["sleep", "forever"]);
    let record = g.dir().join("pods").join(&pod).join("network.json");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let (boot, other) = (boot.trim(), "11111111-2222-3333-4444-555555555555");
    // A reboot leaves files of another boot, and nothing in the kernel.
    kill(g.supervisor(&pod));
    let text = fs::read_to_string(&record).unwrap_or_default();
    assert!(text.contains(boot), "the record names no boot: {text}");
    let leases = |boot: &str| g.dir().join("net").join(boot);
    let changed = fs::write(&record, text.replace(boot, other)).and_then(|()| fs::rename(leases(boot), leases(other)));
    assert!(changed.is_ok(), "{changed:?}");
    space.host().sh("nft flush ruleset");
    g.wait_state(&pod, "exited");
    let _ = g.run(&["gc"]).ok();
    assert!(!leases(other).exists(), "leases of another boot remain");
    g.check_invariants();
    let again = g.networked(&["--net=default:IP=10.121.5.5", "-p", "8080:7000"], &["sleep", "forever"]);
    assert_eq!(g.ip4(&again), "10.121.5.5");
}

#[test]
fn a_damaged_record_does_not_block_other_pods() {
    let (_space, g) = lab();
    for damage in ["", "{", "[]", "\u{0}\u{0}\u{0}\u{0}"] {
        let pod = g.networked(&["--net=default:IP=10.121.5.6", "-p", "8080:7000"], &["sleep", "forever"]);
        let record: PathBuf = g.dir().join("pods").join(&pod).join("network.json");
        kill(g.supervisor(&pod));
        let torn = fs::write(&record, damage);
        assert!(torn.is_ok(), "{torn:?}");
        g.wait_state(&pod, "exited");
        // The first gc reports that the record is unreadable, and still releases the pod's resources.
        let _ = g.run(&["gc"]);
        let _ = g.run(&["gc"]).ok();
        assert!(!record.exists(), "{damage:?} stays");
        g.check_invariants();
    }
}

#[test]
fn orphans_are_collected() {
    let (space, g) = lab();
    let live = g.networked(&[], &["sleep", "forever"]);
    // A bridge port whose alias names a removed pod.
    let stray = "gt0123456789ab0";
    let alias = "01234567-89ab-4cde-8f01-23456789abcd/eth0";
    space.host().batch(&format!(
        "link add {stray} type veth peer name stray1\nlink set {stray} alias {alias}\nlink set {stray} master gantry0\n"
    ));
    let doctor = g.run(&["doctor"]).to_string();
    assert!(doctor.contains(stray), "the doctor does not see a stray interface: {doctor}");
    let _ = g.run(&["gc"]).ok();
    wait_for("the stray to be gone", || (!space.host().links().contains(stray)).then_some(()));
    assert!(!g.run(&["doctor"]).ok().to_string().contains(stray));
    assert!(g.network_namespace(&live).is_up("eth0"));
}

/// Waits until the host's network namespace contains no resources of gantry.
fn wait_untouched(space: &Space) {
    let own = BTreeSet::from(["lo".to_owned(), "up0".to_owned()]);
    wait_for("the last pod's bridge to go", || (space.host().links() == own).then_some(()));
    wait_for("the last pod's tables to go", || tables(space).is_empty().then_some(()));
}

#[test]
fn the_last_pod_removes_bridge_and_tables() {
    let (space, g) = lab();
    let image = g.fixture();
    let both = "--net=default,default-restricted";
    let (first, second) = (g.networked(&[both], &["sleep", "forever"]), g.networked(&[], &["sleep", "forever"]));
    g.run(&["stop", &first]).succeeded();
    wait_for("the bridge of the restricted network to go", || {
        (!space.host().links().contains("gantry1")).then_some(())
    });
    let rules = space.host().rules();
    assert!(!rules.contains("gantry1") && !rules.contains("10.122."), "rules of a network without pods stay: {rules}");
    assert!(rules.contains("gantry0"), "{rules}");
    let _ = g.run(&["doctor"]).ok();
    let _ = space.host().serve(7001);
    assert!(g.network_namespace(&second).is_up("eth0") && space.host().links().contains("gantry0"));
    // The last pod is stopped, ends by itself, is killed, or fails to start.
    g.run(&["stop", &second]).succeeded();
    wait_untouched(&space);
    g.run(&["run", "--rm", "-p", "8080:7000", &image, "--", "true"]).succeeded();
    wait_untouched(&space);
    let killed = g.networked(&[both], &["sleep", "forever"]);
    kill(g.supervisor(&killed));
    g.wait_state(&killed, "exited");
    wait_untouched(&space);
    let _ = g.run(&["run", "--net=default", &image, "--", "/no/such/program"]);
    let _ = g.run(&["run", "--net=default:IP=10.99.0.1", &image, "--", "true"]).exits(FAILED);
    wait_untouched(&space);
    g.check_invariants();
}

#[test]
fn concurrent_starts_and_ends_keep_the_bridge() {
    const ROUNDS: usize = 6;
    let (space, g) = lab();
    let image = g.fixture();
    let run = |pods: usize| (0..pods).map(|_| g.spawn(&["run", "--rm", &image, "--", "true"])).collect::<Vec<_>>();
    for round in 0..ROUNDS {
        let passing = run(4);
        // Each pod starts while others end: its bridge and its rules must exist, or be created again.
        let pod = g.server(&["-p", "8080:7000"], "7000");
        for other in passing {
            other.wait().succeeded();
        }
        assert!(space.outside().ask("tcp", HOST4, 8080).contains(&g.ip4(&pod)), "round {round}");
        let _ = g.run(&["doctor"]).ok();
        let ending = run(3);
        g.run(&["stop", &pod]).succeeded();
        for other in ending {
            other.wait().succeeded();
        }
        wait_untouched(&space);
    }
}

#[test]
fn orphaned_bridges_are_adopted() {
    let space = Space::new();
    // Left by a supervisor and its helper that were killed at the very end, and by earlier versions.
    space.host().batch(
        "link add gantry0 type bridge\nlink set gantry0 address 02:00:00:00:00:77 alias /no/such/gantry/net up\n\
         addr add 10.121.0.1/16 dev gantry0\n",
    );
    let stale = "table inet gantry-0123abcd";
    space.host().sh(&format!("nft '{stale} {{ set interfaces {{ type ifname; elements = {{ \"gantry0\" }}; }}; }}'"));
    space.host().sh("nft add table inet gantry-others");
    let stale = [stale.to_owned()];
    let g = Gantry::in_space(&space);
    let doctor = g.run(&["doctor"]).ok();
    let table = stale[0].trim_start_matches("table ");
    for text in [
        "the bridge gantry0 belongs to a gantry with the state directory",
        "ip link delete gantry0",
        &format!("nft delete table {table}"),
    ] {
        assert!(doctor.stdout.contains(text), "{text}: {doctor}");
    }
    let pod = g.server(&["-p", "8080:7000"], "7000");
    assert!(space.outside().ask("tcp", HOST4, 8080).contains(&g.ip4(&pod)));
    assert!(!tables(&space).contains(&stale[0]), "the tables of the other gantry stay: {:?}", tables(&space));
    assert!(!g.run(&["doctor"]).ok().stdout.contains("gantry0"));
    assert!(
        tables(&space).contains("table inet gantry-others"),
        "a table that does not name the bridge is not touched"
    );
    space.host().sh("nft delete table inet gantry-others");
    g.run(&["stop", &pod]).succeeded();
    wait_untouched(&space);
}

#[test]
fn bridges_with_ports_are_not_adopted() {
    let (space, g) = lab();
    space.host().batch(
        "link add gantry0 type bridge\nlink set gantry0 alias /no/such/gantry/net up\n\
         link add other0 type veth peer name other1\nlink set other0 master gantry0 up\n",
    );
    let image = g.fixture();
    let out = g.run(&["run", &image, "--", "true"]).exits(FAILED);
    let _ = out.stderr_contains(&[
        "'gantry0' belongs to the gantry with the state directory '/no/such/gantry/net'",
        "ip link delete",
    ]);
    assert!(!g.run(&["doctor"]).ok().stdout.contains("gantry0"), "its gantry may be in a container");
    space.host().batch("link del other0\n");
}

#[test]
fn bridges_of_other_data_directories_are_not_used() {
    let (space, g) = lab();
    let _pod = g.networked(&[], &["sleep", "forever"]);
    let other = Gantry::in_space(&space);
    let image = other.fixture();
    let _ = other.run(&["run", &image, "--", "true"]).exits(FAILED).stderr_contains(&["gantry0"]);
    // Two gantries with separate networks do not disturb each other.
    let ipam = json!({ "type": "host-local", "subnet": "10.73.0.0/24", "routes": [{ "dst": "0.0.0.0/0" }] });
    let bridge = json!({ "type": "bridge", "bridge": "second0", "isGateway": true, "ipam": ipam });
    other.conflist("second", &json!([bridge, { "type": "portmap", "capabilities": { "portMappings": true } }]));
    let pod = other.server(&["--net=second", "-p", "8080:7000"], "7000");
    assert!(space.outside().ask("tcp", HOST4, 8080).contains(&other.ip4(&pod)));
    let _ = other.run(&["gc"]).ok();
    assert!(space.host().links().contains("gantry0"), "it removed a bridge of another owner");
    drop(other);
}

/// Sends forbidden packets from a pod's interface: ARP and neighbour advertisements that claim the gateway's addresses,
/// router advertisements, and packets with spoofed source addresses. Arguments: own MAC, addresses of the gateway and
/// the victim.
const ATTACK: &str = r#"
import socket, struct, sys
mac, gateway4, gateway6, victim4 = sys.argv[1:5]
own = bytes.fromhex(mac.replace(":", ""))
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind(("eth0", 0))
all_ = b"\xff" * 6
def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(">%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
def arp(ip, source=own):
    ip = socket.inet_aton(ip)
    return all_ + source + b"\x08\x06" + struct.pack(">HHBBH", 1, 0x800, 6, 4, 2) + source + ip + all_ + ip
def six(source, payload, target=b"\x33\x33\0\0\0\x01"):
    source, to = socket.inet_pton(socket.AF_INET6, source), socket.inet_pton(socket.AF_INET6, "ff02::1")
    pseudo = source + to + struct.pack(">II", len(payload), 58)
    sum_ = checksum(pseudo + payload[:2] + b"\0\0" + payload[4:])
    payload = payload[:2] + struct.pack(">H", sum_) + payload[4:]
    return target + own + b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, len(payload), 58, 255) + source + to + payload
option = b"\x02\x01" + own
advert = struct.pack(">BBHI", 136, 0, 0, 0xa0000000) + socket.inet_pton(socket.AF_INET6, gateway6) + option
prefix = struct.pack(">BBBBIII", 3, 4, 64, 0xc0, 86400, 86400, 0) + socket.inet_pton(socket.AF_INET6, "2001:db8:bad::")
router = struct.pack(">BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + b"\x01\x01" + own + prefix
def udp(source, port):
    data = struct.pack(">HHHH", port, 68, 12, 0) + b"spoo"
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(data), 0, 0, 64, 17, 0) + socket.inet_aton(source) + b"\xff" * 4
    head = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
    return all_ + own + b"\x08\x00" + head + data
for _ in range(5):
    for frame in [arp(gateway4), arp(victim4), arp(gateway4, b"\x02\0\0\0\0\x66"), six("fe80::bad", router),
                  six("fe80::bad", advert), six(gateway6, advert), udp(victim4, 9), udp(gateway4, 67)]:
        raw.send(frame)
"#;

/// Counts the forbidden packets that an interface receives, until a packet with the end marker arrives. Arguments:
/// interface, end marker, MAC and address of the attacker, IPv6 address of the gateway.
const WATCH: &str = r#"
import socket, sys
interface, last, mac, own4, gateway6 = sys.argv[1:6]
macs = (bytes.fromhex(mac.replace(":", "")), b"\x02\0\0\0\0\x66")
own4, gateway6 = socket.inet_aton(own4), socket.inet_pton(socket.AF_INET6, gateway6)
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
raw.bind((interface, 0))
raw.settimeout(30)
print("watching", flush=True)
bad = []
while True:
    frame, at = raw.recvfrom(4096)
    if last.encode() in frame:
        break
    if at[2] == socket.PACKET_OUTGOING or frame[6:12] not in macs:
        continue
    kind, data = frame[12:14], frame[14:]
    if kind == b"\x08\x06" and data[14:18] != own4:
        bad.append("ARP")
    elif kind == b"\x08\x00" and data[12:16] != own4:
        bad.append("IPv4")
    elif kind == b"\x86\xdd" and data[8:24] == gateway6:
        bad.append("IPv6")
    elif kind == b"\x86\xdd" and data[6] == 58 and (data[40] == 134 or data[40] == 136 and data[48:64] == gateway6):
        bad.append("ICMPv6 %d" % data[40])
print("bad:", sorted(set(bad)), flush=True)
"#;

#[test]
fn spoofed_packets_are_dropped() {
    let (space, g) = lab();
    let (attacker, victim) = (g.networked(&[], &["sleep", "forever"]), g.server(&[], "7000"));
    let (from, to) = (g.network_namespace(&attacker), g.network_namespace(&victim));
    let mac = g.network_status(&attacker)[0]["mac"].as_str().unwrap_or_default().to_owned();
    let (gateway4, gateway6) = ("10.121.0.1", "fd67:616e:7472:7900::1");
    // The victim resolves the real gateway.
    let _host = space.host().serve(7001);
    let _ = to.ask("tcp", gateway4, 7001);
    let neighbour = |address: &str| -> Value {
        let all = to.json("ip", &["-j", "neigh", "show", "to", address]);
        all[0]["lladdr"].clone()
    };
    let true_mac = neighbour(gateway4);
    assert!(true_mac.is_string(), "{true_mac}");
    let watchers: Vec<_> = [(to.clone(), "eth0"), (space.host().clone(), "gantry0")]
        .into_iter()
        .map(|(place, interface)| {
            let own = g.ip4(&attacker);
            let args = ["-c", WATCH, interface, "the end of it", &mac, &own, gateway6];
            let mut watcher = g.spawn_command(place.command("python3").args(args));
            watcher.wait_for_stdout("watching");
            watcher
        })
        .collect();
    from.run("python3", &["-c", ATTACK, &mac, gateway4, gateway6, &g.ip4(&victim)]).succeeded();
    // Legitimate packets still pass, and arrive after the forbidden ones.
    let out =
        g.run(&["exec", &attacker, "--", "/bin/app", "ask", "udp", &g.ip4(&victim), "7000", "the end of it"]).ok();
    assert!(out.text().starts_with(&format!("from {}", g.ip4(&attacker))), "{out}");
    let out = g.run(&["exec", &attacker, "--", "/bin/app", "ask", "udp", gateway4, "7001", "the end of it"]).ok();
    assert!(out.text().contains("the end of it"), "{out}");
    for watcher in watchers {
        let out = watcher.wait().ok();
        assert!(out.stdout.contains("bad: []\n"), "spoofed frames came through: {out}");
    }
    // The victim's neighbour entry is unchanged.
    assert_eq!(neighbour(gateway4), true_mac);
    let routes = to.json("ip", &["-6", "-j", "route", "show", "default"]);
    assert_eq!(routes.as_array().map_or(0, Vec::len), 1, "{routes}");
    assert!(!to.addresses("eth0").iter().any(|address| address.contains("2001:db8:bad")));
    let _ = to.ask("tcp", gateway4, 7001);
}

#[test]
fn a_reload_forwards_for_routed_networks_only() {
    let (space, g) = lab();
    let ipam = json!({ "type": "host-local", "subnet": "10.76.0.0/24" });
    g.conflist("inner", &json!([{ "type": "bridge", "bridge": "inner0", "ipam": ipam }]));
    let _inner = g.networked(&["--net=inner"], &["sleep", "forever"]);
    space.host().sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
    let forwarding = || space.host().sh("sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding");
    g.run(&["doctor"]).succeeded();
    g.run(&["network", "reload"]).succeeded();
    assert_eq!(forwarding(), "0\n0\n", "the host is no gateway of the pod");
    let line = json!({ "type": "ptp", "ipam": { "type": "host-local", "subnet": "10.77.0.0/24" } });
    g.conflist("line", &json!([line]));
    let _routed = g.networked(&["--net=line"], &["sleep", "forever"]);
    for harm in ["sysctl -qw net.ipv4.ip_forward=0", "nft flush ruleset; sysctl -qw net.ipv4.ip_forward=0"] {
        assert_repaired(&space, &g, harm, "net.ipv4.ip_forward is 0");
        assert_eq!(forwarding(), "1\n0\n", "the pod has no IPv6 address");
    }
}
