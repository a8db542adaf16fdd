//! A host for tests of pods: a network namespace with directories of its own, and pods in it.
//!
//! A test runs again in a process of its own inside `unshare -n`: that is the host. A pod is a child that holds a
//! network namespace, which the test's thread enters to attach it, as a supervisor does.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gantry_contract::network::Host;
use gantry_contract::plan::Networks;
use gantry_model::net::{NetworkRequest, PodNetwork, PodPort, Protocol};
use gantry_net::netlink::Namespace;
use gantry_net::pod::{self, HeldPorts, NetworkError};
use rustix::process::Pid;
use serde_json::{Value, json};

const INSTALL: &str = "run `./dev setup tests` to install it";
const INSIDE: &str = "GANTRY_NET_TEST_INSIDE";
/// The directory of Debian's plugins.
pub(crate) const PLUGINS: &str = "/usr/lib/cni";

/// Runs the test again in a new network namespace. `true`: this is that run.
pub(crate) fn inside(test: &str) -> bool {
    let here = fs::read_link("/proc/thread-self/ns/net").unwrap();
    if let Some(outside) = std::env::var_os(INSIDE) {
        assert_ne!(here.as_os_str(), outside, "still in the namespace the tests were started in");
        return true;
    }
    ["unshare", "nsenter", "ip", "nft", "iptables"].into_iter().for_each(needs_program);
    assert!(Path::new(PLUGINS).join("bridge").exists(), "there are no plugins in {PLUGINS}; {INSTALL}");
    assert!(rustix::process::geteuid().is_root(), "needs root, to make network namespaces");
    let mut run = Command::new("unshare");
    run.arg("-n").arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture", "--include-ignored"]);
    let output = run.env(INSIDE, here).output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    print!("{}", text(&output.stdout));
    false
}

fn needs_program(program: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    assert!(there, "there is no '{program}' on PATH; {INSTALL}");
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-ec", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Waits for a fact.
pub(crate) fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !fact() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::yield_now();
    }
}

/// The host.
pub(crate) struct Lab {
    pub(crate) temp: tempfile::TempDir,
    pub(crate) host: Host,
    pub(crate) here: Namespace,
    pub(crate) boot: String,
}

/// A pod: its directory and a process that holds its network namespace.
pub(crate) struct TestPod {
    pub(crate) id: String,
    pub(crate) dir: OwnedFd,
    pub(crate) path: PathBuf,
    holder: Option<Child>,
    pub(crate) own: Namespace,
}

impl Lab {
    pub(crate) fn new() -> Self {
        sh("ip link set lo up");
        let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for dir in ["pods", "conf", "bin"] {
            fs::create_dir(temp.path().join(dir)).unwrap();
        }
        let at = |name: &str| temp.path().join(name).display().to_string();
        let host = Host {
            state_dir: at("net"),
            pods_dir: at("pods"),
            config_dirs: vec![at("conf")],
            plugin_dirs: vec![at("bin"), PLUGINS.to_owned()],
            table: "gantry-test".into(),
            use_plugins: false,
            plugin_limit_ms: 30_000,
            resolver: false,
        };
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned();
        Self { here: Namespace::own().unwrap(), temp, host, boot }
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Configures a network.
    pub(crate) fn network(&self, name: &str, version: &str, plugins: &Value) {
        let text = json!({"cniVersion": version, "name": name, "plugins": plugins}).to_string();
        fs::write(self.at("conf").join(format!("{name}.conflist")), text).unwrap();
    }

    /// A bridge with addresses, by Debian's plugins or by us.
    pub(crate) fn bridge(&self, name: &str, bridge: &str, subnet: &str) -> Value {
        let ipam = json!({"type": "host-local", "dataDir": self.at("leases"), "ranges": [[{"subnet": subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}]});
        let plugins = json!([
            {"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ]);
        self.network(name, "1.0.0", &plugins);
        plugins
    }

    /// Puts `examples/cni-liar.rs` among the plugins.
    pub(crate) fn with_liar(&self) {
        let test = std::env::current_exe().unwrap();
        let program = test.parent().and_then(Path::parent).unwrap().join("examples/cni-liar");
        assert!(program.exists(), "there is no {}: `cargo build -p gantry-net --examples` makes it", program.display());
        // Linked, not copied: a program that is open for writing in any process cannot be executed (ETXTBSY).
        fs::hard_link(program, self.at("bin").join("liar")).unwrap();
        symlink("liar", self.at("bin").join("second")).unwrap();
    }

    /// The calls that cni-liar received, as `ADD/eth0 DEL/eth1 …`.
    pub(crate) fn asked(&self) -> String {
        let text = fs::read_to_string(self.at("log")).unwrap_or_default();
        let word = |line: &str| {
            let call: Value = serde_json::from_str(line).unwrap();
            format!("{}/{}", call["command"].as_str().unwrap(), call["env"]["CNI_IFNAME"].as_str().unwrap())
        };
        text.lines().map(word).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn pod(&self) -> TestPod {
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned();
        self.pod_named(&id)
    }

    pub(crate) fn pod_named(&self, id: &str) -> TestPod {
        let path = self.at("pods").join(id);
        fs::create_dir_all(&path).unwrap();
        let mut holder = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let own = Namespace::from_process(Pid::from_child(&holder)).unwrap();
        let dir = fs::File::open(&path).unwrap().into();
        TestPod { id: id.to_owned(), dir, path, holder: Some(holder), own }
    }

    pub(crate) fn wanted(&self, names: &[&str], ports: &[PodPort]) -> Networks {
        let one = |name: &&str| {
            let (name, args) = name.split_once(':').unwrap_or((name, ""));
            let args = args.split(';').filter_map(|arg| arg.split_once('='));
            NetworkRequest {
                name: name.to_owned(),
                args: args.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            }
        };
        Networks {
            host: self.host.clone(),
            wanted: names.iter().map(one).collect(),
            all: false,
            ports: ports.to_vec(),
            kubernetes: None,
        }
    }

    pub(crate) fn attach(
        &self,
        pod: &TestPod,
        names: &[&str],
        ports: &[PodPort],
    ) -> Result<(Vec<PodNetwork>, HeldPorts), NetworkError> {
        let wanted = self.wanted(names, ports);
        let it = pod::Pod { id: &pod.id, dir: pod.dir.as_fd() };
        let attach = || {
            pod::select_networks(&wanted)
                .and_then(|selection| pod::attach(&it, &selection, &pod.namespaces(&self.here)))
        };
        pod.own.enter(|| Ok(attach())).unwrap()
    }

    /// Locks a pod as a live supervisor does, until the lock is dropped.
    pub(crate) fn lock(&self, pod: &TestPod) -> fs::File {
        let lock = fs::File::open(&pod.path).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        lock
    }

    pub(crate) fn detach(&self, pod: &TestPod) -> Result<(), NetworkError> {
        pod::detach(&pod::Pod { id: &pod.id, dir: pod.dir.as_fd() }, None)
    }

    /// Ends the pod with its namespace, then detaches it.
    pub(crate) fn end(&self, mut pod: TestPod) {
        pod.end_process();
        self.detach(&pod).unwrap();
    }

    /// Files below `dir/net` that are leases or entries of the cache.
    pub(crate) fn kept(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let boot = self.at("net").join(&self.boot);
        let mut dirs = vec![self.at("net/results")];
        for network in fs::read_dir(boot).into_iter().flatten() {
            let network = network.unwrap().path();
            dirs.extend([network.join("addresses"), network.join("owners")]);
        }
        // The state directory of host-local.
        for network in fs::read_dir(self.at("leases")).into_iter().flatten() {
            let entries = fs::read_dir(network.unwrap().path()).unwrap().map(|entry| entry.unwrap().path());
            found.extend(entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("10.")));
        }
        for dir in dirs {
            found.extend(fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()));
        }
        found
    }

    /// Interfaces of this host but `lo`, by name.
    pub(crate) fn links(&self) -> Vec<String> {
        let all: Value = serde_json::from_str(&sh("ip -j link")).unwrap();
        let names = all.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap().to_owned());
        names.filter(|name| name != "lo").collect()
    }

    /// Asserts that no pod has any resources left, except shared ones.
    pub(crate) fn assert_no_pod_resources(&self) {
        assert_eq!(self.kept(), Vec::<PathBuf>::new());
        until("the interfaces are gone", || {
            !self.links().iter().any(|name| name.starts_with("gt") || name.starts_with("veth"))
        });
        for pod in fs::read_dir(self.at("pods")).unwrap() {
            let record = pod.unwrap().path().join("network.json");
            assert!(!record.exists(), "{}", record.display());
        }
        let rules = sh("nft list ruleset");
        assert!(!rules.contains("dnat to 10.") && !rules.contains("gt"), "{rules}");
    }

    /// Asserts that garbage collection removes everything, and that a second one finds nothing.
    pub(crate) fn assert_no_garbage(&self) {
        self.assert_no_pod_resources();
        pod::collect_garbage(&self.host, false).unwrap();
        assert_eq!(pod::collect_garbage(&self.host, true).unwrap(), Vec::<String>::new());
        assert_eq!(pod::check(&self.host).unwrap(), Vec::<String>::new());
        let tables = sh("nft list tables");
        assert!(!tables.contains("gantry-test"), "{tables}");
    }
}

impl TestPod {
    /// The pod's namespace and the host's, as kept by this process.
    pub(crate) fn namespaces<'a>(&'a self, host: &'a Namespace) -> pod::Namespaces<'a> {
        pod::Namespaces { host, own: &self.own, keeper: std::process::id() }
    }

    /// The output of `ip -j` in it.
    pub(crate) fn ip(&self, args: &str) -> Value {
        let holder = self.holder.as_ref().unwrap().id();
        serde_json::from_str(&sh(&format!("nsenter -t {holder} -n ip -j {args}"))).unwrap()
    }

    pub(crate) fn holder(&self) -> u32 {
        self.holder.as_ref().unwrap().id()
    }

    /// Ends its process; the kernel removes the namespace once it is unused.
    pub(crate) fn end_process(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            drop(holder.stdin.take());
            let _ = holder.wait();
            // The pod no longer has it.
            self.own = Namespace::own().unwrap();
        }
    }

    pub(crate) fn has_record(&self) -> bool {
        self.path.join("network.json").exists()
    }
}

impl Drop for TestPod {
    fn drop(&mut self) {
        self.end_process();
    }
}

pub(crate) fn port(host_port: u16, protocol: Protocol) -> PodPort {
    PodPort { host_ip: None, host_port, pod_port: 80, count: 1, protocol }
}
