//! The networks of sandboxes, by a client that shares only the .proto files: configurations of a cluster's agent that
//! appear, change, break and disappear, the pod CIDR, what plugins are told, and plugins that fail.

use std::fs;
use std::path::PathBuf;

use gantry_tests::api::Served;
use gantry_tests::cri::{call, failure, serve_with_config};
use gantry_tests::net::{HOST4, install_liar};
use gantry_tests::python::run_script;
use gantry_tests::talos::FAILED;
use gantry_tests::{Gantry, Space, install_program, json_lines, wait_for};
use serde_json::{Value, json};

/// A node whose agent writes configurations into `cni.d`.
struct Node {
    space: Space,
    g: Gantry,
}

impl Node {
    fn new() -> Self {
        let space = Space::new();
        let g = Gantry::in_space(&space);
        install_liar(&g.scratch().join("plugins"));
        Self { space, g }
    }

    fn serve(&self) -> (Served, String) {
        self.serve_with("")
    }

    fn serve_with(&self, lines: &str) -> (Served, String) {
        let (dir, plugins) = (self.dir(), self.g.scratch().join("plugins"));
        let text = format!(
            "gc-interval = '1h'\n[network]\nconfig-dirs = []\nsandbox-config-dir = '{}'\n\
             plugin-dirs = ['{}', '/usr/lib/cni']\nplugin-timeout = '10s'\n{lines}\n",
            dir.display(),
            plugins.display()
        );
        serve_with_config(&self.g, &text)
    }

    /// The directory of the agent, which exists once it has written a file.
    fn dir(&self) -> PathBuf {
        self.g.scratch().join("cni.d")
    }

    fn write(&self, name: &str, text: &str) {
        let written = fs::create_dir_all(self.dir()).and_then(|()| fs::write(self.dir().join(name), text));
        assert!(written.is_ok(), "cannot write {name}: {written:?}");
    }

    fn remove(&self, name: &str) {
        let removed = fs::remove_file(self.dir().join(name));
        assert!(removed.is_ok(), "cannot remove {name}: {removed:?}");
    }

    /// Writes a network that gantry creates itself.
    fn write_bridge(&self, file: &str, name: &str, subnet: &str) {
        self.write(file, &json!({ "cniVersion": "1.0.0", "name": name, "plugins": [self.bridge(subnet)] }).to_string());
    }

    /// Writes a network whose last plugin behaves like this.
    fn write_liar(&self, behave: &Value) {
        let liar = json!({ "type": "cni-liar", "behave": behave, "log": self.log(),
            "capabilities": { "portMappings": true, "bandwidth": true, "dns": true } });
        let list = json!({ "cniVersion": "1.0.0", "name": "liar", "plugins": [self.bridge("10.66.0.0/24"), liar] });
        self.write("10-liar.conflist", &list.to_string());
    }

    fn bridge(&self, subnet: &str) -> Value {
        json!({ "type": "bridge", "bridge": "cni7", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "forceAddress": true,
            "ipam": { "type": "host-local", "dataDir": self.g.scratch().join("leases"),
                "ranges": [[{ "subnet": subnet }]], "routes": [{ "dst": "0.0.0.0/0" }] } })
    }

    /// Replaces the misbehaving plugin by one that always succeeds.
    fn behave_well(&self) {
        let version = json!({ "cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"] });
        let script = format!(
            "#!/bin/sh\necho '{{\"command\":\"'$CNI_COMMAND'\"}}' >>{}\n[ \"$CNI_COMMAND\" != VERSION ] || echo '{version}'\n",
            self.log().display()
        );
        install_program(self.g.write("honest-plugin", &script), self.g.scratch().join("plugins/cni-liar"));
    }

    fn log(&self) -> PathBuf {
        self.g.scratch().join("calls")
    }

    fn calls(&self, command: &str) -> Vec<Value> {
        let all = json_lines(&fs::read_to_string(self.log()).unwrap_or_default());
        all.into_iter().filter(|call| call["command"] == command).collect()
    }

    fn record(&self, id: &str) -> PathBuf {
        self.g.dir().join("pods").join(id).join("network.json")
    }
}

/// The condition NetworkReady.
#[track_caller]
fn network(address: &str) -> Value {
    let status = call(address, "Status", &json!({}));
    let conditions = status["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == "NetworkReady").unwrap_or_else(|| panic!("{status}"))
}

#[track_caller]
fn assert_not_ready(address: &str, words: &[&str]) {
    let condition = network(address);
    assert_eq!((&condition["status"], &condition["reason"]), (&Value::Null, &json!("NetworkPluginNotReady")));
    let message = condition["message"].as_str().unwrap_or_default();
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
}

#[track_caller]
fn assert_ready(address: &str) {
    assert_eq!(network(address), json!({ "type": "NetworkReady", "status": true }));
}

fn config(name: &str) -> Value {
    json!({ "metadata": { "name": name, "uid": "u-7", "namespace": "tests", "attempt": 0 } })
}

#[track_caller]
fn run(address: &str, config: &Value) -> String {
    let reply = call(address, "RunPodSandbox", &json!({ "config": config }));
    reply["pod_sandbox_id"].as_str().unwrap_or_else(|| panic!("no id: {reply}")).to_owned()
}

#[track_caller]
fn remove(address: &str, id: &str) {
    assert_eq!(call(address, "RemovePodSandbox", &json!({ "pod_sandbox_id": id })), json!({}));
}

/// The addresses of a sandbox.
#[track_caller]
fn addresses(address: &str, id: &str) -> Vec<String> {
    let network = &call(address, "PodSandboxStatus", &json!({ "pod_sandbox_id": id }))["status"]["network"];
    let more = network["additional_ips"].as_array().cloned().unwrap_or_default();
    let all = std::iter::once(&network["ip"]).chain(more.iter().map(|more| &more["ip"]));
    all.filter_map(|ip| ip.as_str().map(str::to_owned)).collect()
}

fn set_cidr(cidr: &str) -> Value {
    json!({ "runtime_config": { "network_config": { "pod_cidr": cidr } } })
}

#[test]
fn the_first_configuration_is_the_network_of_pods() {
    let node = Node::new();
    let (served, address) = node.serve();
    let dir = node.dir().display().to_string();
    assert_not_ready(&address, &["no network configuration", &dir, "no pod CIDR"]);
    let (code, details) = failure(&address, "RunPodSandbox", &json!({ "config": config("early") }));
    assert!(code == "UNAVAILABLE" && details.contains(&dir), "{code} {details}");
    node.write("notes.txt", "not a configuration");
    node.write_bridge("20-second.conflist", "second", "10.62.0.0/24");
    assert_ready(&address);
    let second = run(&address, &config("second"));
    assert!(addresses(&address, &second)[0].starts_with("10.62.0."));
    node.write_bridge("10-first.conf", "first", "10.61.0.0/24");
    let first = run(&address, &config("first"));
    assert!(addresses(&address, &first)[0].starts_with("10.61.0."));
    // A malformed file is not skipped: the next one is another network.
    for (text, words) in [("{\"name\":", vec!["not JSON", "line 1"]), ("{}", vec!["name"])] {
        node.write("05-broken.json", text);
        assert_not_ready(&address, &[vec!["05-broken.json"], words].concat());
        let (_, details) = failure(&address, "RunPodSandbox", &json!({ "config": config("broken") }));
        assert!(details.contains("05-broken.json"), "{details}");
    }
    node.write(
        "05-broken.json",
        &json!({ "cniVersion": "1.0.0", "name": "x", "plugins": [{ "type": "calico" }] }).to_string(),
    );
    assert_not_ready(&address, &["05-broken.json", "calico", "/usr/lib/cni"]);
    node.remove("05-broken.json");
    assert_ready(&address);
    for file in ["10-first.conf", "20-second.conflist"] {
        node.remove(file);
    }
    assert_not_ready(&address, &["no network configuration"]);
    // Stopping does not need the files.
    for id in [first, second] {
        remove(&address, &id);
    }
    served.end();
}

#[test]
fn pod_cidrs_are_ranges_of_the_default_network() {
    let node = Node::new();
    let (served, address) = node.serve();
    for bad in ["10.1.0.0", "10.1.0.0/40", "10.1.0.0/24,10.2.0.0/24", "here", "10.1.0.0/24,"] {
        let (code, details) = failure(&address, "UpdateRuntimeConfig", &set_cidr(bad));
        assert!(code == "INVALID_ARGUMENT" && details.contains("pod_cidr"), "{bad}: {code} {details}");
    }
    for empty in [json!({}), set_cidr("")] {
        assert_eq!(call(&address, "UpdateRuntimeConfig", &empty), json!({}));
    }
    assert_not_ready(&address, &["no pod CIDR"]);
    assert_eq!(call(&address, "UpdateRuntimeConfig", &set_cidr("10.71.0.0/24")), json!({}));
    assert_ready(&address);
    let old = run(&address, &config("old"));
    assert!(addresses(&address, &old)[0].starts_with("10.71.0."));
    served.kill();
    let (served, address) = node.serve();
    assert_ready(&address);
    let again = run(&address, &config("again"));
    assert!(addresses(&address, &again)[0].starts_with("10.71.0."));
    assert_eq!(call(&address, "UpdateRuntimeConfig", &set_cidr("10.72.0.0/24,fd72::/64")), json!({}));
    let new = run(&address, &config("new"));
    let found = addresses(&address, &new);
    assert!(found.len() == 2 && found[0].starts_with("10.72.0.") && found[1].starts_with("fd72::"), "{found:?}");
    assert!(addresses(&address, &old)[0].starts_with("10.71.0."));
    // Both ranges are one network.
    let image = node.g.fixture();
    for (id, verb) in [(&old, ["serve-echo", "7000"]), (&new, ["sleep", "forever"])] {
        node.g.run(&["app", "add", "--start", id, &image, "--name=main", "--", verb[0], verb[1]]).succeeded();
    }
    let said = node.g.network_namespace(&new).ask("tcp", &addresses(&address, &old)[0], 7000);
    assert!(said.starts_with(&format!("from {} ", found[0])), "{said}");
    node.write_bridge("10-agent.conflist", "agent", "10.73.0.0/24");
    let agent = run(&address, &config("agent"));
    assert!(addresses(&address, &agent)[0].starts_with("10.73.0."));
    node.remove("10-agent.conflist");
    for id in [old, again, new, agent] {
        remove(&address, &id);
    }
    served.end();
}

#[test]
fn the_configuration_decides_which_network_is_used() {
    let node = Node::new();
    let (served, address) = node.serve_with("sandbox-network = 'cni'");
    assert_eq!(call(&address, "UpdateRuntimeConfig", &set_cidr("10.71.0.0/24")), json!({}));
    assert_not_ready(&address, &["no network configuration"]);
    served.end();
    let (served, address) = node.serve_with("sandbox-network = 'default'");
    node.write("10-broken.conflist", "{");
    assert_ready(&address);
    let id = run(&address, &config("web"));
    assert!(addresses(&address, &id)[0].starts_with("10.121."));
    remove(&address, &id);
    served.end();
}

#[test]
fn plugins_are_told_what_kubernetes_tells_them() {
    let node = Node::new();
    let (served, address) = node.serve();
    node.write_liar(&json!({}));
    let mut asked = config("web");
    asked["annotations"] = json!({ "kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "1G" });
    asked["dns_config"] = json!({ "servers": ["10.96.0.10"], "searches": ["cluster.local"], "options": ["ndots:5"] });
    asked["port_mappings"] = json!([{ "host_port": 8080, "container_port": 80, "host_ip": HOST4 }]);
    let id = run(&address, &asked);
    let add = node.calls("ADD").pop().unwrap();
    assert_eq!(add["env"]["CNI_CONTAINERID"], id);
    let args = add["env"]["CNI_ARGS"].as_str().unwrap_or_default();
    let mut args: Vec<&str> = args.split(';').collect();
    args.sort_unstable();
    let infra = format!("K8S_POD_INFRA_CONTAINER_ID={id}");
    let expected = ["IgnoreUnknown=1", &infra, "K8S_POD_NAME=web", "K8S_POD_NAMESPACE=tests", "K8S_POD_UID=u-7"];
    assert_eq!(args, expected);
    let told = &add["config"]["runtimeConfig"];
    assert_eq!(
        told["portMappings"],
        json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": HOST4 }])
    );
    assert_eq!(
        (&told["bandwidth"]["ingressRate"], &told["bandwidth"]["egressRate"]),
        (&json!(10_000_000), &json!(1_000_000_000))
    );
    assert!(told["bandwidth"]["ingressBurst"].as_u64().is_some_and(|burst| burst > 0), "{told}");
    assert_eq!(
        told["dns"],
        json!({ "servers": ["10.96.0.10"], "searches": ["cluster.local"], "options": ["ndots:5"] })
    );
    remove(&address, &id);
    let del = node.calls("DEL").pop().unwrap();
    assert_eq!((&del["env"]["CNI_CONTAINERID"], &del["env"]["CNI_ARGS"]), (&json!(id), &add["env"]["CNI_ARGS"]));
    assert_eq!(del["config"]["runtimeConfig"], *told);
    asked["annotations"] = json!({ "kubernetes.io/ingress-bandwidth": "fast" });
    let (code, details) = failure(&address, "RunPodSandbox", &json!({ "config": asked }));
    assert!(code == "INVALID_ARGUMENT" && details.contains("ingress-bandwidth"), "{code} {details}");
    served.end();
}

#[test]
fn a_network_without_a_capability_ignores_it() {
    let node = Node::new();
    let (mut served, address) = node.serve();
    node.write_bridge("10-agent.conflist", "agent", "10.63.0.0/24");
    let mut asked = config("web");
    asked["annotations"] = json!({ "kubernetes.io/egress-bandwidth": "10M" });
    asked["port_mappings"] = json!([{ "host_port": 8080, "container_port": 80 }]);
    let id = run(&address, &asked);
    assert_eq!(node.g.network_status(&id)[0]["ports"], json!([]));
    for capability in ["portMappings", "bandwidth"] {
        served.daemon().wait_for_stderr(&format!("no plugin with the capability {capability}"));
    }
    remove(&address, &id);
    served.end();
}

#[test]
fn host_ports_and_limits_work_both_ways() {
    for way in ["use-plugins = false", "use-plugins = true"] {
        let node = Node::new();
        let (served, address) = node.serve_with(way);
        let portmap = json!({ "type": "portmap", "capabilities": { "portMappings": true }, "snat": true });
        let bandwidth = json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } });
        let list = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [node.bridge("10.64.0.0/24"), portmap, bandwidth] });
        node.write("10-pods.conflist", &list.to_string());
        let mut asked = config("web");
        asked["annotations"] =
            json!({ "kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "20M" });
        asked["port_mappings"] = json!([
            { "host_port": 8080, "container_port": 7000 },
            { "host_port": 8081, "container_port": 7000, "host_ip": HOST4 },
        ]);
        let id = run(&address, &asked);
        let ip = addresses(&address, &id).remove(0);
        let image = node.g.fixture();
        node.g.run(&["app", "add", "--start", &id, &image, "--name=web", "--", "serve-echo", "7000"]).succeeded();
        node.g.wait_log(&id, "listening");
        let own = node.g.network_namespace(&id);
        for (place, host, port) in [
            (node.space.outside(), HOST4, 8080),
            (node.space.outside(), HOST4, 8081),
            (node.space.host(), "127.0.0.1", 8080),
            (node.space.host(), HOST4, 8081),
            // Hairpin: a pod reaches itself through the port of its host.
            (&own, HOST4, 8080),
        ] {
            let said = place.ask("tcp", host, port);
            assert!(said.contains(&format!(" to {ip} ")), "{way}: {host}:{port} {said}");
        }
        let disciplines = node.space.host().sh("tc -s qdisc show") + &own.sh("tc -s qdisc show");
        for rate in ["rate 10Mbit", "rate 20Mbit"] {
            assert!(disciplines.contains(rate), "{way}: {rate}: {disciplines}");
        }
        remove(&address, &id);
        served.end();
        node.g.check_invariants();
    }
}

#[test]
fn the_default_network_limits_traffic() {
    let node = Node::new();
    let (served, address) = node.serve();
    assert_eq!(call(&address, "UpdateRuntimeConfig", &set_cidr("10.71.0.0/24")), json!({}));
    let mut asked = config("web");
    asked["annotations"] = json!({ "kubernetes.io/ingress-bandwidth": "10M" });
    let id = run(&address, &asked);
    let disciplines = node.space.host().sh("tc qdisc show");
    assert!(disciplines.contains("tbf") && disciplines.contains("rate 10Mbit"), "{disciplines}");
    remove(&address, &id);
    served.end();
}

#[test]
fn stopping_is_repeated_until_the_network_is_released() {
    let node = Node::new();
    let (served, address) = node.serve();
    for how in ["fail", "crash"] {
        install_liar(&node.g.scratch().join("plugins"));
        node.write_liar(&json!({ "DEL": how }));
        let id = run(&address, &config("web"));
        // The configuration of ADD counts, not that of the directory.
        node.remove("10-liar.conflist");
        let request = json!({ "pod_sandbox_id": id });
        for _ in 0..2 {
            let (_, details) = failure(&address, "StopPodSandbox", &request);
            assert!(details.contains("cni-liar") && details.contains("DEL"), "{details}");
            let status = call(&address, "PodSandboxStatus", &request);
            assert_eq!(status["status"]["state"], "SANDBOX_NOTREADY");
            assert!(node.record(&id).exists());
        }
        let _ = failure(&address, "RemovePodSandbox", &request);
        let before = node.calls("DEL").len();
        node.behave_well();
        assert_eq!(call(&address, "StopPodSandbox", &request), json!({}));
        assert!(!node.record(&id).exists() && before >= 3, "{before}");
        assert_eq!(call(&address, "StopPodSandbox", &request), json!({}));
        remove(&address, &id);
    }
    served.end();
}

#[test]
fn a_repeated_stop_waits_for_a_hanging_one() {
    let node = Node::new();
    let (served, address) = node.serve();
    install_liar(&node.g.scratch().join("plugins"));
    node.write_liar(&json!({ "DEL": "hang" }));
    let id = run(&address, &config("web"));
    let request = json!({ "pod_sandbox_id": id });
    let args = ["--deadline", "1", &address, "runtime.v1.RuntimeService/StopPodSandbox", &request.to_string()];
    let first = run_script("node_client.py", &args).exits(FAILED);
    assert!(first.stdout.contains("DEADLINE_EXCEEDED"), "{first}");
    wait_for("the plugin", || (!node.calls("DEL").is_empty()).then_some(()));
    // The plugin that hangs is killed at its timeout; the next one succeeds.
    node.behave_well();
    assert_eq!(call(&address, "StopPodSandbox", &request), json!({}));
    assert!(!node.record(&id).exists());
    remove(&address, &id);
    served.end();
}

#[test]
fn networks_are_released_after_a_reboot() {
    let node = Node::new();
    let (served, address) = node.serve();
    node.write_liar(&json!({}));
    let id = run(&address, &config("web"));
    let supervisor = node.g.supervisor(&id);
    served.kill();
    node.remove("10-liar.conflist");
    // A reboot leaves the files of another boot, and nothing in the kernel.
    kill(supervisor);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let other = "11111111-2222-3333-4444-555555555555";
    let text = fs::read_to_string(node.record(&id)).unwrap();
    fs::write(node.record(&id), text.replace(boot.trim(), other)).unwrap();
    fs::write(node.log(), "").unwrap();
    let (served, address) = node.serve();
    let request = json!({ "pod_sandbox_id": id });
    assert_eq!(call(&address, "PodSandboxStatus", &request)["status"]["state"], "SANDBOX_NOTREADY");
    assert_eq!(call(&address, "StopPodSandbox", &request), json!({}));
    let del = wait_for("DEL", || node.calls("DEL").pop());
    assert_eq!((&del["env"]["CNI_NETNS"], &del["env"]["CNI_CONTAINERID"]), (&json!(""), &json!(id)));
    assert!(!del["config"]["prevResult"].is_null(), "{del}");
    assert!(!node.record(&id).exists());
    remove(&address, &id);
    served.end();
}

/// Kills a process with SIGKILL and waits for its end.
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let Some(pid) = pid else { panic!("no process") };
    let killed = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    assert!(killed.is_ok(), "{killed:?}");
    wait_for("the supervisor's end", || rustix::process::test_kill_process(pid).is_err().then_some(()));
}
