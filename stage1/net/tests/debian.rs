//! Runs Debian's `containernetworking-plugins`, each test in a network namespace of its own.

#![allow(clippy::unwrap_used, reason = "a failure is the failure of the test")]

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gantry_net::config::{NetworkConfig, Source, builtin};
use gantry_net::plugin::{Attachment, Cache, NetworkResult, Runtime};
use serde_json::{Value, json};

const PLUGINS: &str = "/usr/lib/cni";
const INSTALL: &str = "run `./dev setup tests` to install it";
const INSIDE: &str = "GANTRY_NET_TEST_INSIDE";
const LIMIT: Duration = Duration::from_secs(30);

/// Runs the test again in a new network namespace. `true`: this is that run.
fn inside(test: &str) -> bool {
    let here = fs::read_link("/proc/self/ns/net").unwrap();
    if let Some(outside) = std::env::var_os(INSIDE) {
        assert_ne!(here.as_os_str(), outside, "still in the namespace the tests were started in");
        return true;
    }
    needs(Path::new(PLUGINS), "bridge");
    ["unshare", "nsenter", "ip"].into_iter().for_each(needs_program);
    assert!(rustix::process::geteuid().is_root(), "needs root, to make network namespaces");
    let mut run = Command::new("unshare");
    run.arg("-n").arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
    let output = run.env(INSIDE, here).output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    print!("{}", text(&output.stdout));
    false
}

/// Fails with the remedy if a program of a test is missing.
fn needs(dir: &Path, program: &str) {
    assert!(dir.join(program).exists(), "there is no '{program}' in {}; {INSTALL}", dir.display());
}

fn needs_program(program: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    assert!(there, "there is no '{program}' on PATH; {INSTALL}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn command(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// A process that keeps a network namespace alive; it ends with its stdin.
struct Pod(Child);

impl Pod {
    fn new() -> Self {
        let mut child = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        Self(child)
    }

    fn netns(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn ip(&self, args: &str) -> Value {
        serde_json::from_str(&command(&format!("nsenter -t {} -n ip -j {args}", self.0.id()))).unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

struct Lab {
    temp: tempfile::TempDir,
    runtime: Runtime,
}

impl Lab {
    fn new() -> Self {
        command("ip link set lo up");
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(fs::File::open(temp.path()).unwrap().as_fd()).unwrap();
        let runtime = Runtime::new(vec![PathBuf::from(PLUGINS)], cache, LIMIT);
        Self { temp, runtime }
    }

    fn network(&self, plugins: Value) -> NetworkConfig {
        let text = json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}).to_string();
        NetworkConfig::parse(&text, Source::BuiltIn).unwrap()
    }

    fn ranges(&self) -> Value {
        json!({"type": "host-local", "dataDir": self.temp.path().join("leases"),
            "ranges": [[{"subnet": "10.201.0.0/24"}], [{"subnet": "fd00:201::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]})
    }

    fn leases(&self) -> usize {
        let found = fs::read_dir(self.temp.path().join("leases/net"));
        let names = found.into_iter().flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name.starts_with(|c: char| c.is_ascii_hexdigit()) && name.contains(['.', ':']))
            .filter(|name| !name.starts_with("last"))
            .count()
    }

    /// ADD, CHECK, DEL, DEL again and DEL without the namespace, with a check of the result in between.
    fn round(&self, network: &NetworkConfig, interface: &str, look: impl FnOnce(&Pod, &NetworkResult)) {
        let pod = Pod::new();
        let attachment = attachment("pod-1", interface, &pod);
        let result = self.runtime.add_list(network, &attachment).unwrap();
        assert_attached(&pod, interface, &result);
        look(&pod, &result);
        self.runtime.check_list(network, &attachment).unwrap();
        self.runtime.del_list(network, &attachment).unwrap();
        self.runtime.del_list(network, &attachment).unwrap();
        self.runtime.del_list(network, &Attachment { netns: None, ..attachment }).unwrap();
        assert!(self.runtime.cache().names().unwrap().is_empty());
        assert_eq!(self.leases(), 0);
    }
}

fn attachment(pod_id: &str, interface: &str, pod: &Pod) -> Attachment {
    Attachment {
        container_id: pod_id.into(),
        netns: Some(pod.netns()),
        interface: interface.into(),
        ..Attachment::default()
    }
}

/// Checks the result against `ip` in the pod.
fn assert_attached(pod: &Pod, interface: &str, result: &NetworkResult) {
    let seen = pod.ip(&format!("addr show dev {interface}"));
    let infos = seen[0]["addr_info"].as_array().unwrap();
    let mut seen: Vec<String> = infos
        .iter()
        .filter(|info| info["scope"] != "link")
        .map(|info| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"]))
        .collect();
    let mut said: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
    seen.sort();
    said.sort();
    assert_eq!(seen, said);
}

#[test]
fn bridge_with_host_local() {
    if !inside("bridge_with_host_local") {
        return;
    }
    let lab = Lab::new();
    let network = lab.network(json!([
        {"type": "bridge", "bridge": "br-test", "isGateway": true, "ipam": lab.ranges()},
        {"type": "tuning", "dataDir": lab.temp.path().join("tuning"), "sysctl": {"net.core.somaxconn": "77"}, "mtu": 1400},
    ]));
    lab.round(&network, "eth0", |pod, result| {
        assert_eq!(result.interfaces.iter().map(|it| it.name.as_str()).collect::<Vec<_>>()[0], "br-test");
        let own = result.interfaces.iter().find(|it| it.name == "eth0").unwrap();
        let seen = pod.ip("link show dev eth0");
        assert_eq!((own.mac.as_str(), own.sandbox.clone()), (seen[0]["address"].as_str().unwrap(), pod.netns()));
        assert_eq!(seen[0]["mtu"], 1400);
        let gateways: Vec<String> = result.ips.iter().map(|ip| ip.gateway.unwrap().to_string()).collect();
        assert_eq!(gateways, ["10.201.0.1", "fd00:201::1"]);
        assert_eq!(pod.ip("route show default")[0]["gateway"], "10.201.0.1");
        assert_eq!(result.routes.len(), 2);
        assert_eq!(lab.leases(), 2);
    });
}

/// The built-in default network with the standard plugins bridge, portmap and firewall, with iptables.
#[test]
fn the_default_network_runs_on_standard_plugins() {
    if !inside("the_default_network_runs_on_standard_plugins") {
        return;
    }
    needs_program("iptables");
    let lab = Lab::new();
    let mut list: Value = serde_json::from_str(builtin::ALL[0].1).unwrap();
    list["name"] = json!("net");
    list["plugins"][0]["ipam"]["dataDir"] = json!(lab.temp.path().join("leases"));
    let network = NetworkConfig::parse(&list.to_string(), Source::BuiltIn).unwrap();
    let pod = Pod::new();
    let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
    let attachment =
        Attachment { capability_args: ports.as_object().unwrap().clone(), ..attachment("pod-1", "eth0", &pod) };
    let result = lab.runtime.add_list(&network, &attachment).unwrap();
    assert_attached(&pod, "eth0", &result);
    // No CHECK: portmap 1.1.1 expects the IPv4 rules among the IPv6 rules of a dual-stack pod.
    let forwards = || command("iptables -t nat -S").matches("10.121.0.2:80").count();
    assert_eq!(forwards(), 1);
    for _ in 0..2 {
        lab.runtime.del_list(&network, &attachment).unwrap();
        assert_eq!((forwards(), lab.leases()), (0, 0));
    }
}

#[test]
fn garbage_of_a_dead_pod_is_collected() {
    if !inside("garbage_of_a_dead_pod_is_collected") {
        return;
    }
    let lab = Lab::new();
    let network = lab.network(json!([{"type": "bridge", "bridge": "br-test", "ipam": lab.ranges()}]));
    let (one, two) = (Pod::new(), Pod::new());
    lab.runtime.add_list(&network, &attachment("pod-1", "eth0", &one)).unwrap();
    lab.runtime.add_list(&network, &attachment("pod-2", "eth0", &two)).unwrap();
    assert_eq!(lab.leases(), 4);
    drop(one);
    lab.runtime.gc_list(&network, &[("pod-2".into(), "eth0".into())]).unwrap();
    assert_eq!((lab.leases(), lab.runtime.cache().names().unwrap().len()), (2, 1));
}

#[test]
fn ptp_with_a_requested_address() {
    if !inside("ptp_with_a_requested_address") {
        return;
    }
    let lab = Lab::new();
    let network = lab.network(json!([{"type": "ptp", "mtu": 1450, "ipam": lab.ranges()}]));
    lab.round(&network, "eth1", |pod, _| assert_eq!(pod.ip("link show dev eth1")[0]["mtu"], 1450));
    let pod = Pod::new();
    let asked = Attachment { args: vec![("IP".into(), "10.201.0.77".into())], ..attachment("pod-2", "eth0", &pod) };
    let result = lab.runtime.add_list(&network, &asked).unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.201.0.77/24");
    lab.runtime.del_list(&network, &asked).unwrap();
}

#[test]
fn macvlan_with_static_addresses() {
    if !inside("macvlan_with_static_addresses") {
        return;
    }
    let lab = Lab::new();
    // A veth pair, as kernels without modules have no dummy interfaces.
    command("ip link add up0 type veth peer name up1");
    command("ip link set up0 up");
    command("ip link set up1 up");
    let probe = "ip link add probe link up0 type macvlan";
    let made = Command::new("sh").args(["-c", probe]).output().unwrap();
    if text(&made.stderr).contains("Unknown device type") {
        // println is shown only for failed tests.
        let _ = writeln!(std::io::stderr(), "skipped: kernel has no macvlan");
        return;
    }
    command("ip link del probe");
    let ipam = json!({"type": "static", "routes": [{"dst": "10.203.0.0/16", "gw": "10.202.0.1"}],
        "addresses": [{"address": "10.202.0.5/24", "gateway": "10.202.0.1"}, {"address": "fd00:202::5/64"}]});
    let dns = json!({"nameservers": ["10.202.0.1"], "search": ["test"]});
    let network =
        lab.network(json!([{"type": "macvlan", "master": "up0", "mode": "bridge", "ipam": ipam, "dns": dns}]));
    lab.round(&network, "eth0", |pod, result| {
        assert_eq!(
            (result.dns.nameservers.clone(), result.dns.search.clone()),
            (vec!["10.202.0.1".into()], vec!["test".into()])
        );
        assert_eq!(pod.ip("route show 10.203.0.0/16")[0]["gateway"], "10.202.0.1");
    });
}

#[test]
fn loopback() {
    if !inside("loopback") {
        return;
    }
    let lab = Lab::new();
    let network = lab.network(json!([{"type": "loopback"}]));
    lab.round(&network, "lo", |pod, _| {
        assert!(pod.ip("link show dev lo")[0]["flags"].as_array().unwrap().contains(&json!("UP")));
    });
}

#[test]
fn a_failing_plugin_is_reported_and_rolled_back() {
    if !inside("a_failing_plugin_is_reported_and_rolled_back") {
        return;
    }
    let lab = Lab::new();
    let pod = Pod::new();
    let network = lab.network(json!([
        {"type": "bridge", "bridge": "br-test", "ipam": lab.ranges()},
        {"type": "tuning", "dataDir": lab.temp.path().join("tuning"), "sysctl": {"net.ipv4.no.such": "1"}},
    ]));
    let error = lab.runtime.add_list(&network, &attachment("pod-1", "eth0", &pod)).unwrap_err().to_string();
    assert!(error.contains("plugin 'tuning' failed to ADD: ") && error.contains("no such file"), "{error}");
    assert_eq!((lab.leases(), lab.runtime.cache().names().unwrap().len()), (0, 0));
    assert_eq!(pod.ip("link").as_array().unwrap().len(), 1, "lo is left");
    // These plugins support at most 1.0.0, but a network of 1.1.0 works.
    let newer = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "bridge", "bridge": "br-test", "ipam": lab.ranges()}]});
    let newer = NetworkConfig::parse(&newer.to_string(), Source::BuiltIn).unwrap();
    lab.round(&newer, "eth0", |_, _| {});
    lab.runtime.gc_list(&newer, &[]).unwrap();
    lab.runtime.status(&newer).unwrap();
}

/// The time of the plugins alone, run as by a shell, and through gantry.
#[test]
fn overhead_over_the_plugins_alone() {
    if !inside("overhead_over_the_plugins_alone") {
        return;
    }
    let lab = Lab::new();
    let network = lab.network(json!([{"type": "loopback"}]));
    let pod = Pod::new();
    let attachment = attachment("pod-1", "lo", &pod);
    let (mut alone, mut through) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        let start = Instant::now();
        let mut plugin = Command::new(format!("{PLUGINS}/loopback"));
        plugin.env_clear().envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "x"),
            ("CNI_IFNAME", "lo"),
            ("CNI_PATH", PLUGINS),
        ]);
        plugin.env("CNI_NETNS", pod.netns()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = plugin.spawn().unwrap();
        let config = br#"{"cniVersion":"1.0.0","name":"net","type":"loopback"}"#;
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), config).unwrap();
        assert!(child.wait_with_output().unwrap().status.success());
        alone.push(start.elapsed());
        let start = Instant::now();
        lab.runtime.add_list(&network, &attachment).unwrap();
        through.push(start.elapsed());
        lab.runtime.del_list(&network, &attachment).unwrap();
    }
    alone.sort();
    through.sort();
    println!("loopback ADD: alone {:?}, through us {:?} (medians of 30)", alone[15], through[15]);
}
