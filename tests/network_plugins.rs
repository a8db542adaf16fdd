//! Configured networks: with Debian's plugins, with the same files and no plugins, and with a plugin that fails, hangs
//! or returns wrong results.

use std::path::{Path, PathBuf};

use gantry_tests::net::{HOST4, OUTSIDE4, install_liar};
use gantry_tests::{Gantry, Signal, Space, install_program, json_lines, wait_for};
use rustix::process::{Pid, kill_process, test_kill_process};
use serde_json::{Value, json};

const FAILED: i32 = 125;

/// Networks created by gantry without any plugin, and by Debian's plugins.
const WAYS: [&str; 2] = ["use-plugins = false\nplugin-dirs = []", "use-plugins = true"];

/// Runs a test in both ways, each on a host of its own.
fn natively_and_with_plugins(test: impl Fn(&Space, &Gantry)) {
    for way in WAYS {
        let space = Space::new();
        let g = Gantry::in_space(&space);
        g.networks(way);
        test(&space, &g);
        g.remove_all();
        let leases = leases(&g);
        assert!(leases.is_empty(), "{way}: {leases:?}");
        g.check_invariants();
    }
}

/// The lease directory of Debian's host-local.
fn data_dir(g: &Gantry) -> PathBuf {
    g.scratch().join("leases")
}

/// Its leases: files named after addresses.
fn leases(g: &Gantry) -> Vec<PathBuf> {
    let networks = std::fs::read_dir(data_dir(g)).into_iter().flatten().flatten();
    let files = networks.flat_map(|dir| std::fs::read_dir(dir.path()).into_iter().flatten().flatten());
    let names = files.map(|file| file.path());
    names
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().parse::<std::net::IpAddr>().is_ok()))
        .collect()
}

fn host_local(g: &Gantry, subnet: &str) -> Value {
    json!({ "type": "host-local", "dataDir": data_dir(g), "ranges": [[{ "subnet": subnet }]],
        "routes": [{ "dst": "0.0.0.0/0" }] })
}

fn portmap() -> Value {
    json!({ "type": "portmap", "capabilities": { "portMappings": true }, "snat": true })
}

/// Checks that pods reach each other and the outside, and that a published port works.
fn check_reachability(space: &Space, g: &Gantry, net: &str, gateway: &str) {
    let server = g.server(&[net, "-p", "8080:7000", "-p", "8080:7000/udp"], "7000");
    let client = g.networked(&[net], &["sleep", "forever"]);
    let (place, ip) = (g.network_namespace(&client), g.ip4(&server));
    assert_eq!(place.gateway("-4").as_deref(), Some(gateway));
    let _far = space.outside().serve(7002);
    for protocol in ["tcp", "udp"] {
        assert!(place.ask(protocol, &ip, 7000).starts_with(&format!("from {} ", g.ip4(&client))));
        let _ = space.host().ask(protocol, &ip, 7000);
        let masked = place.ask(protocol, OUTSIDE4, 7002);
        assert!(masked.starts_with(&format!("from {HOST4} ")), "{masked}");
        assert!(space.outside().ask(protocol, HOST4, 8080).contains(&format!(" to {ip} ")));
        assert!(place.ask(protocol, HOST4, 8080).contains(&format!(" to {ip} ")));
    }
    assert!(space.host().ask("tcp", "127.0.0.1", 8080).contains(&format!(" to {ip} ")));
}

#[test]
fn bridge_with_portmap_publishes_ports() {
    natively_and_with_plugins(|space, g| {
        let bridge = json!({ "type": "bridge", "bridge": "test0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipam": host_local(g, "10.51.0.0/24") });
        g.conflist("test", &json!([bridge, portmap()]));
        check_reachability(space, g, "--net=test", "10.51.0.1");
        let attached = g.network_status(g.list()[0]["id"].as_str().unwrap_or_default());
        assert_eq!(attached[0]["name"], "test", "{attached:?}");
    });
}

#[test]
fn ptp_with_portmap_publishes_ports() {
    natively_and_with_plugins(|space, g| {
        let ptp = json!({ "type": "ptp", "ipMasq": true, "mtu": 1400, "ipam": host_local(g, "10.52.0.0/24") });
        g.conflist("test", &json!([ptp, portmap()]));
        check_reachability(space, g, "--net=test", "10.52.0.1");
        let pod = g.list()[0]["id"].as_str().unwrap_or_default().to_owned();
        let link = g.network_namespace(&pod).json("ip", &["-j", "link", "show", "dev", "eth0"]);
        assert_eq!(link[0]["mtu"], 1400, "{link}");
    });
}

#[test]
fn macvlan_uses_an_interface_of_the_host() {
    natively_and_with_plugins(|space, g| {
        let range = json!({ "subnet": "192.0.2.0/24", "rangeStart": "192.0.2.50", "rangeEnd": "192.0.2.60", "gateway": OUTSIDE4 });
        let ipam = json!({ "type": "host-local", "dataDir": data_dir(g), "ranges": [[range]], "routes": [{ "dst": "0.0.0.0/0" }] });
        g.conflist("wire", &json!([{ "type": "macvlan", "master": "up0", "mode": "bridge", "ipam": ipam }]));
        let (server, client) = (g.server(&["--net=wire"], "7000"), g.networked(&["--net=wire"], &["sleep", "forever"]));
        let (ip, own) = (g.ip4(&server), g.ip4(&client));
        assert!(ip.starts_with("192.0.2.5"), "{ip}");
        let _far = space.outside().serve(7002);
        assert!(g.network_namespace(&client).ask("tcp", &ip, 7000).starts_with(&format!("from {own} ")));
        assert!(g.network_namespace(&client).ask("tcp", OUTSIDE4, 7002).starts_with(&format!("from {own} ")));
        let _ = space.outside().ask("udp", &ip, 7000);
    });
}

#[test]
fn static_addresses_are_assigned() {
    natively_and_with_plugins(|space, g| {
        let ipam = json!({ "type": "static", "addresses": [{ "address": "10.53.0.9/24", "gateway": "10.53.0.1" },
            { "address": "fd00:53::9/64" }], "routes": [{ "dst": "198.51.100.0/24", "gw": "10.53.0.1" }] });
        g.conflist(
            "fixed",
            &json!([{ "type": "bridge", "bridge": "fixed0", "isGateway": true, "ipam": ipam,
            "dns": { "nameservers": ["10.53.0.53"], "search": ["static.test"] } }]),
        );
        let pod = g.server(&["--net=fixed"], "7000");
        let place = g.network_namespace(&pod);
        assert_eq!(place.addresses("eth0"), ["10.53.0.9/24", "fd00:53::9/64"]);
        let routes = place.json("ip", &["-j", "route", "show", "198.51.100.0/24"]);
        assert_eq!(routes[0]["gateway"], "10.53.0.1", "{routes}");
        let _ = space.host().ask("tcp", "10.53.0.9", 7000);
        let resolv = g.run(&["exec", &pod, "--", "/bin/app", "cat", "/etc/resolv.conf"]).ok();
        let _ = resolv.stdout_contains("nameserver 10.53.0.53").stdout_contains("static.test");
    });
}

#[test]
fn mtu_and_tuning_are_applied() {
    natively_and_with_plugins(|_, g| {
        let bridge = json!({ "type": "bridge", "bridge": "tuned0", "isGateway": true, "mtu": 1300,
            "ipam": host_local(g, "10.54.0.0/24") });
        let tuning = json!({ "type": "tuning", "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" }, "mac": "0a:54:00:00:00:54" });
        g.conflist("tuned", &json!([bridge, tuning]));
        let pod = g.networked(&["--net=tuned"], &["sleep", "forever"]);
        let place = g.network_namespace(&pod);
        let link = place.json("ip", &["-j", "link", "show", "dev", "eth0"]);
        assert_eq!((&link[0]["mtu"], &link[0]["address"]), (&json!(1300), &json!("0a:54:00:00:00:54")), "{link}");
        assert_eq!(place.sh("cat /proc/sys/net/ipv4/conf/eth0/arp_filter"), "1\n");
        assert_eq!(g.network_status(&pod)[0]["mac"], "0a:54:00:00:00:54");
    });
}

/// Plugins attach a pod while its apps are created.
#[test]
fn failed_app_creation_detaches_networks() {
    natively_and_with_plugins(|space, g| {
        let bridge = json!({ "type": "bridge", "bridge": "made0", "isGateway": true, "ipMasq": true,
            "ipam": host_local(g, "10.56.0.0/24") });
        g.conflist("made", &json!([bridge, portmap(), { "type": "firewall" }]));
        let image = g.fixture();
        let run = ["run", "--net=made", "-p", "8080:7000", "--user=nobody-here", &image, "--", "true"];
        for _ in 0..3 {
            let _ = g.run(&run).exits(FAILED).stderr_contains(&["nobody-here"]);
        }
        let rules = space.host().rules();
        let has = |host: u8| ["", "/32"].iter().any(|end| rules.contains(&format!(" 10.56.0.{host}{end} ")));
        assert!(!(2..=9).any(has), "{rules}");
        assert!(!space.host().links().iter().any(|name| name.starts_with("veth")), "{:?}", space.host().links());
    });
}

/// The files in `/etc` of a pod on a network of plugins, and a volume in their place.
#[test]
fn files_of_etc_wait_for_plugins() {
    natively_and_with_plugins(|_, g| {
        let bridge = json!({ "type": "bridge", "bridge": "etc0", "isGateway": true, "ipam": host_local(g, "10.57.0.0/24"),
            "dns": { "nameservers": ["10.57.0.53"] } });
        g.conflist("etc", &json!([bridge]));
        let mine = g.scratch().join("my-hosts");
        assert!(std::fs::write(&mine, "192.0.2.77 mine\n").is_ok());
        let over = format!("{}:/etc/hosts", mine.display());
        for (volume, hosts) in [(None, "10.57.0."), (Some(&over), "192.0.2.77 mine")] {
            let volume = volume.map_or_else(Vec::new, |volume| vec!["-v", volume.as_str()]);
            let pod = g.networked(&[&["--net=etc"], &volume[..]].concat(), &["sleep", "forever"]);
            let cat = |file: &str| g.run(&["exec", &pod, "--", "/bin/app", "cat", file]).ok();
            let _ = cat("/etc/resolv.conf").stdout_contains("nameserver 10.57.0.53");
            let _ = cat("/etc/hosts").stdout_contains(hosts);
        }
    });
}

/// A gantry with a network `liar`, whose plugin behaves as configured, besides the built-in ones.
struct Liar {
    _space: Space,
    g: Gantry,
    log: PathBuf,
}

impl Liar {
    fn new(limit: &str) -> Self {
        let space = Space::new();
        let g = Gantry::in_space(&space);
        let plugins = g.scratch().join("plugins");
        install_liar(&plugins);
        g.networks(&format!(
            "plugin-dirs = [{:?}, \"/usr/lib/cni\"]\nplugin-timeout = \"{limit}\"",
            plugins.display().to_string()
        ));
        let log = g.scratch().join("calls");
        Self { _space: space, g, log }
    }

    /// Configures the behaviour of the plugin.
    fn behave(&self, version: &str, behave: &Value) {
        // Earlier calls belong to another try; before the first, there are none.
        let _ = std::fs::remove_file(&self.log);
        self.behave_in("10.55.0.0/24", version, behave);
    }

    /// As [`Self::behave`], in a network with this subnet.
    fn behave_in(&self, subnet: &str, version: &str, behave: &Value) {
        let plugin = json!({ "type": "cni-liar", "behave": behave, "log": self.log,
            "capabilities": { "portMappings": true, "ips": true } });
        // Some plugin must create the interface.
        let ipam = json!({ "type": "host-local", "dataDir": data_dir(&self.g), "subnet": subnet });
        let bridge = json!({ "type": "bridge", "bridge": "liar0", "isGateway": true, "ipam": ipam });
        let list = json!({ "cniVersion": version, "name": "liar", "plugins": [bridge, plugin] });
        self.g.net_file("liar.conflist", &list.to_string());
    }

    fn calls(&self) -> Vec<Value> {
        json_lines(&std::fs::read_to_string(&self.log).unwrap_or_default())
    }

    fn commands(&self) -> Vec<String> {
        self.calls().iter().filter_map(|call| Some(call["command"].as_str()?.to_owned())).collect()
    }

    /// Replaces the plugin by one that always succeeds.
    fn behave_well(&self) {
        let version = json!({ "cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"] });
        let script = format!("#!/bin/sh\n[ \"$CNI_COMMAND\" != VERSION ] || echo '{version}'\n");
        let script = self.g.write("honest-plugin", &script);
        install_program(script, self.g.scratch().join("plugins/cni-liar"));
    }
}

#[test]
fn a_failing_network_detaches_earlier_ones() {
    let liar = Liar::new("10s");
    let image = liar.g.fixture();
    for how in ["fail", "fail-kindly", "crash", "abort", "garbage", "silent", "version", "index", "flood"] {
        liar.behave("1.0.0", &json!({ "ADD": how }));
        let run = ["run", "--net=default:IP=10.121.9.9,liar", "-p", "8080:80", &image, "--", "true"];
        let out = liar.g.run(&run).exits(FAILED);
        let _ = out.stderr_contains(&["liar"]);
        assert!(liar.commands().contains(&"DEL".to_owned()), "{how}: {:?}", liar.commands());
        liar.g.check_invariants();
    }
    liar.behave("1.0.0", &json!({ "ADD": "fail" }));
    let _ = liar.g.run(&["run", "--net=liar", &image, "--", "true"]).exits(FAILED).stderr_contains(&["told to fail"]);
    // The address and the port are free again.
    let pod = liar.g.networked(&["--net=default:IP=10.121.9.9", "-p", "8080:80"], &["sleep", "forever"]);
    assert_eq!(liar.g.ip4(&pod), "10.121.9.9");
}

/// Waits until the process has ended.
fn wait_dead(pid: &Value) {
    let pid = self::pid(pid);
    wait_for(&format!("process {pid:?} to be killed"), || test_kill_process(pid).is_err().then_some(()));
}

#[test]
fn hanging_plugins_are_killed_with_their_children() {
    let liar = Liar::new("3s");
    let image = liar.g.fixture();
    liar.behave("1.0.0", &json!({ "ADD": "hang" }));
    let out = liar.g.run(&["run", "--net=default,liar", &image, "--", "true"]).exits(FAILED);
    let _ = out.stderr_contains(&["liar"]);
    let calls = liar.calls();
    let add = calls.iter().find(|call| call["command"] == "ADD").unwrap_or_else(|| panic!("{calls:?}"));
    wait_dead(&add["pid"]);
    wait_dead(&add["child"]);
    assert!(liar.commands().contains(&"DEL".to_owned()), "{calls:?}");
    liar.g.check_invariants();
}

#[test]
fn a_failed_del_is_retried() {
    // A correct plugin takes long on a busy machine, too.
    let liar = Liar::new("3s");
    for how in ["fail", "hang", "crash"] {
        install_liar(&liar.g.scratch().join("plugins"));
        liar.behave("1.0.0", &json!({ "DEL": how }));
        let pod = liar.g.networked(&["--net=default,liar"], &["sleep", "forever"]);
        liar.g.run(&["stop", &pod]).succeeded();
        // The pod still ends.
        liar.g.wait_state(&pod, "exited");
        let record = liar.g.dir().join("pods").join(&pod).join("network.json");
        assert!(record.exists(), "{how}: the remaining resources are not recorded");
        let doctor = liar.g.run(&["doctor"]);
        assert!(format!("{doctor}").contains(&format!("{pod} is exited and may still have")), "{how}: {doctor}");
        let _ = liar.g.run(&["gc", "--grace-period=0s"]);
        assert!(record.exists(), "{how}: the remaining resources are unknown");
        liar.behave_well();
        let _ = liar.g.run(&["gc", "--grace-period=0s"]);
        let _ = liar.g.run(&["gc", "--grace-period=0s"]).ok();
        assert!(!record.exists());
        liar.g.check_invariants();
    }
}

/// The process id in a call.
fn pid(number: &Value) -> Pid {
    let pid = number.as_i64().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    pid.unwrap_or_else(|| panic!("{number} is no process id"))
}

/// The topmost ancestor that is a supervisor or its helper.
fn supervisor_above(process: Pid) -> Pid {
    let parent = |of: Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", of.as_raw_nonzero())).ok()?;
        let number = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok();
        number.and_then(Pid::from_raw)
    };
    let is_ours = |of: &Pid| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", of.as_raw_nonzero())).unwrap_or_default();
        name.trim() == "gantry-stage1"
    };
    let ancestors = std::iter::successors(parent(process), |of| parent(*of));
    ancestors.take_while(is_ours).last().unwrap_or_else(|| panic!("no supervisor above {process:?}"))
}

/// A stop that comes while a plugin runs DEL, and one whose grace ends meanwhile, wait for the plugin.
#[test]
fn a_stop_waits_for_del() {
    let liar = Liar::new("60s");
    let deleting = liar.g.scratch().join("deleting");
    let go = liar.g.scratch().join("go");
    let version = json!({ "cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"] });
    let script = format!(
        "#!/bin/sh\n[ \"$CNI_COMMAND\" != VERSION ] || echo '{version}'\n[ \"$CNI_COMMAND\" = DEL ] || exit 0\n\
         echo x >>{deleting}\nwhile [ ! -e {go} ]; do sleep 0.05; done\n",
        deleting = deleting.display(),
        go = go.display()
    );
    liar.behave("1.0.0", &json!({}));
    let pod = liar.g.networked(&["--net=liar"], &["sleep", "forever"]);
    install_program(liar.g.write("slow-plugin", &script), liar.g.scratch().join("plugins/cni-liar"));
    let stop = liar.g.spawn(&["stop", "--time=0", &pod]);
    wait_for("DEL to run", || deleting.exists().then_some(()));
    // The control socket is closed: these would otherwise kill the supervisor at once.
    let again = liar.g.spawn(&["stop", "--force", &pod]);
    let control = liar.g.dir().join("pods").join(&pod).join("control");
    assert!(!control.exists(), "the supervisor seems to serve requests while it detaches the networks");
    // More than SLACK (5 s) of stop.rs, after which `stop` kills a supervisor that detaches no networks. Nothing marks
    // the end of that time if it does not, so it must pass.
    let _ = liar.g.run(&["wait", "--time=7s", &pod]).exits(FAILED);
    std::fs::write(&go, "").unwrap();
    stop.wait().succeeded();
    again.wait().succeeded();
    assert_eq!(liar.g.status(&pod)["reason"], "stopped");
    assert_eq!(std::fs::read_to_string(&deleting).unwrap().lines().count(), 1, "DEL was begun anew");
    liar.g.check_invariants();
}

/// A supervisor is killed while its plugin runs. DEL begins only after the plugin and its children have ended.
#[test]
fn an_orphaned_plugin_is_ended_before_del() {
    for during in ["ADD", "DEL"] {
        let liar = Liar::new("60s");
        let image = liar.g.fixture();
        liar.behave("1.0.0", &json!({ during: "hang" }));
        let run = liar.g.spawn(&["run", "--net=default,liar", "-p", "8080:80", &image, "--", "true"]);
        let called = || liar.calls().into_iter().find(|call| call["command"] == during);
        let call = wait_for(&format!("{during} to hang"), called);
        liar.behave_well();
        assert!(kill_process(supervisor_above(pid(&call["pid"])), Signal::KILL).is_ok());
        // The run releases as much as it can.
        let _ = run.wait();
        wait_for("the rest to be taken away", || {
            let _ = liar.g.run(&["gc", "--grace-period=0s"]);
            liar.g.list().is_empty().then_some(())
        });
        wait_dead(&call["pid"]);
        wait_dead(&call["child"]);
        liar.g.check_invariants();
        assert!(leases(&liar.g).is_empty(), "{during}: {:?}", leases(&liar.g));
    }
}

#[test]
fn plugins_get_the_specified_input() {
    let liar = Liar::new("10s");
    liar.behave("1.0.0", &json!({}));
    let pod =
        liar.g.networked(&["--net=liar:IP=10.55.0.5;K8S_POD_NAME=it", "-p", "8080:80/udp"], &["sleep", "forever"]);
    let calls = liar.calls();
    let add = calls.iter().find(|call| call["command"] == "ADD").unwrap_or_else(|| panic!("{calls:?}"));
    let (env, config) = (&add["env"], &add["config"]);
    assert_eq!((&env["CNI_CONTAINERID"], &env["CNI_IFNAME"]), (&json!(pod), &json!("eth0")));
    let args = env["CNI_ARGS"].as_str().unwrap_or_default();
    assert!(args.contains("IP=10.55.0.5") && args.contains("K8S_POD_NAME=it"), "{env}");
    assert!(env["CNI_NETNS"].as_str().is_some_and(|path| path.starts_with("/proc/")), "{env}");
    assert!(env["CNI_PATH"].as_str().is_some_and(|path| path.contains("/usr/lib/cni")), "{env}");
    assert!(env.get("GANTRY_CONFIG").is_none() || env["GANTRY_CONFIG"].is_string());
    assert_eq!((&config["name"], &config["cniVersion"]), (&json!("liar"), &json!("1.0.0")));
    let mapping = &config["runtimeConfig"]["portMappings"][0];
    assert_eq!(
        (&mapping["hostPort"], &mapping["containerPort"], &mapping["protocol"]),
        (&json!(8080), &json!(80), &json!("udp"))
    );
    assert!(config["runtimeConfig"]["ips"][0].as_str().is_some_and(|ip| ip.starts_with("10.55.0.5")), "{config}");
    assert_eq!(config["prevResult"]["ips"][0]["address"], "10.55.0.5/24", "{config}");
    assert_eq!(liar.g.network_status(&pod)[0]["addresses"][0]["address"], "10.55.0.5");
    liar.g.run(&["stop", &pod]).succeeded();
    liar.g.wait_state(&pod, "exited");
    let calls = liar.calls();
    let del = calls.iter().find(|call| call["command"] == "DEL").unwrap_or_else(|| panic!("{calls:?}"));
    // The result of the last plugin.
    assert_eq!(del["config"]["prevResult"]["ips"].as_array().map_or(0, Vec::len), 2, "{del}");
    assert_eq!(del["config"]["runtimeConfig"]["portMappings"][0]["hostPort"], 8080, "{del}");
    assert_eq!(liar.commands().iter().filter(|command| *command == "ADD").count(), 1);
}

#[test]
fn unready_networks_fail_before_add() {
    let liar = Liar::new("10s");
    let image = liar.g.fixture();
    liar.behave("1.1.0", &json!({ "STATUS": "fail" }));
    let _ = liar
        .g
        .run(&["run", "--net=liar", &image, "--", "true"])
        .exits(FAILED)
        .stderr_contains(&["liar", "told to fail"]);
    assert!(!liar.commands().contains(&"ADD".to_owned()), "{:?}", liar.commands());
}

#[test]
fn plugins_get_del_after_the_supervisor_was_killed() {
    let liar = Liar::new("10s");
    liar.behave("1.1.0", &json!({}));
    let (pod, other) = (
        liar.g.networked(&["--net=default,liar"], &["sleep", "forever"]),
        liar.g.networked(&["--net=liar"], &["sleep", "forever"]),
    );
    let pid = i32::try_from(liar.g.supervisor(&pod)).ok().and_then(Pid::from_raw);
    assert!(kill_process(pid.unwrap_or_else(|| panic!("no process id")), Signal::KILL).is_ok());
    liar.g.wait_state(&pod, "exited");
    let calls = liar.calls();
    let del = calls.iter().find(|call| call["command"] == "DEL").unwrap_or_else(|| panic!("{calls:?}"));
    assert_eq!(del["env"]["CNI_CONTAINERID"], json!(pod), "{del}");
    let _ = liar.g.run(&["gc"]).ok();
    let calls = liar.calls();
    let gc = calls.iter().find(|call| call["command"] == "GC").unwrap_or_else(|| panic!("no GC: {calls:?}"));
    let valid = gc["config"]["cni.dev/valid-attachments"].as_array().cloned().unwrap_or_default();
    let containers: Vec<&Value> = valid.iter().map(|it| &it["containerID"]).collect();
    assert_eq!(containers, [&json!(other)], "the attachments that GC is to keep: {gc}");
}

/// Kills a pod's supervisor and waits for its end, without a command that would detach the pod.
fn kill_supervisor(g: &Gantry, pod: &str) {
    let supervisor = g.supervisor(pod);
    assert!(kill_process(pid(&json!(supervisor)), Signal::KILL).is_ok());
    let has_ended = || {
        let stat = std::fs::read_to_string(format!("/proc/{supervisor}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    };
    wait_for("the supervisor to end", || has_ended().then_some(()));
}

#[test]
fn run_takes_ports_and_addresses_of_killed_supervisors() {
    natively_and_with_plugins(|space, g| {
        let bridge = |name: &str, subnet: &str| json!({ "type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true, "ipam": host_local(g, subnet) });
        g.conflist("test", &json!([bridge("test0", "10.54.0.0/24"), portmap()]));
        g.conflist("pool", &json!([bridge("pool0", "10.55.0.0/30")]));
        let flags = ["--net=test", "-p", "8080:7000"];
        let first = g.server(&flags, "7000");
        kill_supervisor(g, &first);
        let second = g.server(&flags, "7000");
        assert!(space.outside().ask("tcp", HOST4, 8080).contains(&format!(" to {} ", g.ip4(&second))));
        let third = g.networked(&["--net=pool"], &["sleep", "forever"]);
        kill_supervisor(g, &third);
        let fourth = g.networked(&["--net=pool"], &["sleep", "forever"]);
        assert_eq!(g.ip4(&fourth), "10.55.0.2");
    });
}

#[test]
fn undeletable_dead_pods_keep_no_other_addresses() {
    let liar = Liar::new("10s");
    // The pool has five addresses.
    let start = |delete: &str| {
        liar.behave_in("10.55.0.0/29", "1.0.0", &json!({ "DEL": delete }));
        liar.g.networked(&["--net=liar"], &["sleep", "forever"])
    };
    let stuck = [start("fail"), start("fail")];
    let pods = [start("well"), start("well"), start("well")];
    for pod in [&stuck[0], &pods[1], &stuck[1]] {
        kill_supervisor(&liar.g, pod);
    }
    let address = liar.g.network_status(&pods[1])[0]["addresses"][0]["address"].clone();
    let new = start("well");
    assert_eq!(liar.g.network_status(&new)[0]["addresses"][0]["address"], address, "the one that is free");
    // Without a pod that can be detached, the errors of all of them follow that of the plugins.
    let image = liar.g.fixture();
    let out = liar.g.run(&["run", "--net=liar", &image, "--", "true"]).exits(FAILED);
    let _ = out.stderr_contains(&["10.55.0.", &stuck[0], &stuck[1], "told to fail"]);
    liar.behave_well();
    let _ = liar.g.run(&["gc"]).ok();
    liar.g.check_invariants();
}

#[test]
fn attachment_errors_precede_clean_up_errors() {
    let liar = Liar::new("10s");
    let image = liar.g.fixture();
    liar.behave("1.0.0", &json!({ "ADD": "fail", "DEL": "crash" }));
    let out = liar.g.run(&["run", "--net=liar", &image, "--", "true"]).exits(FAILED);
    let said = out.stderr.clone();
    let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("'{text}' is not in: {said}"));
    assert!(at("failed to ADD") < at("told to fail"), "{said}");
    assert!(at("told to fail") < at("removing what had been created failed too"), "{said}");
    liar.behave_well();
    // The pod stays, with its error; its networks are detached.
    let _ = liar.g.run(&["gc"]).ok();
    let left = liar.g.list();
    assert_eq!((left.len(), left[0]["phase"].as_str()), (1, Some("aborted-prepare")));
    liar.g.check_invariants();
}

#[test]
fn rm_force_abandons_failing_plugins() {
    let liar = Liar::new("3s");
    let g = &liar.g;
    for how in ["fail", "hang", "crash"] {
        install_liar(&g.scratch().join("plugins"));
        liar.behave("1.0.0", &json!({ "DEL": how }));
        let flags = ["--net=default:IP=10.121.9.9,liar", "-p", "8080:80"];
        let pod = g.networked(&flags, &["sleep", "forever"]);
        let _ = g.run(&["rm", &pod]).exits(FAILED);
        g.run(&["stop", &pod]).succeeded();
        g.wait_state(&pod, "exited");
        let _ =
            g.run(&["rm", &pod]).exits(FAILED).stderr_contains(&["cannot be removed completely", "rm --force", "liar"]);
        let removed = g.run(&["rm", "--force", &pod]).ok();
        assert_eq!(removed.text(), pod);
        let _ = removed.stderr_contains(&["warning", "a network plugin may have left something behind", "liar"]);
        assert_eq!(g.list().len(), 0, "{how}");
        // Nothing remains to be retried, and gantry's own resources of the pod are released.
        let _ = g.run(&["gc"]).ok();
        let _ = g.run(&["doctor"]).ok();
        liar.behave("1.0.0", &json!({}));
        let again = g.networked(&flags[..3], &["sleep", "forever"]);
        assert_eq!(g.ip4(&again), "10.121.9.9");
        g.run(&["rm", "--force", &again]).succeeded();
    }
}

#[test]
fn missing_plugins_are_named() {
    let liar = Liar::new("10s");
    let (g, image) = (&liar.g, liar.g.fixture());
    for (name, kind, says) in
        [("missing", "no-such-plugin", "no-such-plugin"), ("outside", "../../bin/true", "without a path")]
    {
        g.conflist(name, &json!([{ "type": kind }]));
        let out = g.run(&["run", &format!("--net={name}"), &image, "--", "true"]).exits(FAILED);
        let _ = out.stderr_contains(&[says]);
        assert!(Path::new("/bin/true").exists());
        std::fs::remove_file(g.scratch().join(format!("../net.d/{name}.conflist")))
            .unwrap_or_else(|error| panic!("{error}"));
    }
}
