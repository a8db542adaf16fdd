//! Test networks: namespaces that act as hosts, and the veth pairs between them.
//!
//! A [`Space`] is a host that runs a gantry ([`Gantry::in_space`](crate::Gantry::in_space)), and the world outside
//! that host. The machine's own network namespace sees nothing of it. It never outlives the test's process: a child
//! holds each namespace, and its standard input is a pipe from the test.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use serde_json::Value;

use crate::binaries::{binaries, install_program, liar};
use crate::output::Out;
use crate::running::Running;
use crate::wait::{DEADLINE, wait_for};

/// The address of a [`Space`]'s host on the link to the outside.
pub const HOST4: &str = "192.0.2.1";
/// The IPv6 address of the host.
pub const HOST6: &str = "2001:db8::1";
/// The address of the outside.
pub const OUTSIDE4: &str = "192.0.2.2";
/// The IPv6 address of the outside.
pub const OUTSIDE6: &str = "2001:db8::2";

/// How long a probe that must fail keeps trying, in seconds.
const IMPATIENT: &str = "1";

/// A network namespace, and the means to run programs in it.
#[derive(Debug, Clone)]
pub struct NetworkNamespace {
    /// A process in the namespace.
    pid: u32,
    /// The child that holds the namespace, if the test created it.
    _holder: Option<Rc<Holder>>,
}

/// The child that holds a namespace.
#[derive(Debug)]
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // The child reads until its standard input ends.
        drop(self.0.stdin.take());
        // Fails only if the child was waited for, and only this does so.
        let _ = self.0.wait();
    }
}

impl Default for NetworkNamespace {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

impl NetworkNamespace {
    /// An empty namespace, with loopback up.
    ///
    /// # Panics
    /// When the namespace cannot be created.
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        let child = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", "ip link set lo up && echo up && exec cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => panic!("cannot run unshare: {error}; run `./dev setup tests` to install it"),
        };
        let mut said = String::new();
        let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut said));
        let holder = Holder(child);
        assert!(matches!(read, Some(Ok(_))) && said == "up\n", "cannot make a network namespace: {read:?} {said}");
        Self { pid: holder.0.id(), _holder: Some(Rc::new(holder)) }
    }

    /// The namespace of a process; valid while the process runs.
    #[must_use]
    pub fn of_process(pid: u32) -> Self {
        Self { pid, _holder: None }
    }

    /// A process in the namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A command in the namespace, not started yet. nsenter executes the program directly, so it keeps the process id.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid)).arg("--").arg(program);
        command
    }

    /// Runs a command in the namespace to its end.
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> Out {
        Running::start(self.command(program).args(args), false).wait_within(DEADLINE)
    }

    /// Runs a shell script in the namespace that must succeed, and returns its output.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.run("sh", &["-ec", script]).ok().stdout
    }

    /// Runs a command in the namespace that must succeed, and returns its output as JSON.
    #[track_caller]
    pub fn json(&self, program: &str, args: &[&str]) -> Value {
        let out = self.run(program, args).ok();
        if out.stdout.trim().is_empty() { Value::Array(Vec::new()) } else { out.json() }
    }

    /// The addresses of an interface, as `ADDRESS/LENGTH`, without link-local ones, sorted.
    #[track_caller]
    #[must_use]
    pub fn addresses(&self, interface: &str) -> Vec<String> {
        let all = self.json("ip", &["-j", "address", "show", "dev", interface]);
        let infos = all[0]["addr_info"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<String> = infos
            .iter()
            .filter(|info| info["scope"] != "link")
            .map(|info| format!("{}/{}", info["local"].as_str().unwrap_or_default(), info["prefixlen"]))
            .collect();
        found.sort();
        found
    }

    /// The names of the interfaces.
    #[track_caller]
    #[must_use]
    pub fn links(&self) -> BTreeSet<String> {
        let all = self.json("ip", &["-j", "link"]);
        let names = all.as_array().into_iter().flatten().filter_map(|link| link["ifname"].as_str());
        names.map(str::to_owned).collect()
    }

    /// Whether an interface is up.
    #[track_caller]
    #[must_use]
    pub fn is_up(&self, interface: &str) -> bool {
        let link = self.json("ip", &["-j", "link", "show", "dev", interface]);
        link[0]["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"))
    }

    /// The next hop or interface of a family's default route (`-4`, `-6`).
    #[track_caller]
    #[must_use]
    pub fn gateway(&self, family: &str) -> Option<String> {
        let routes = self.json("ip", &[family, "-j", "route", "show", "default"]);
        routes[0]["gateway"].as_str().map(str::to_owned)
    }

    /// Starts an echo server in the namespace, on TCP and UDP, that replies to each line with the sender's address;
    /// returns once it listens.
    #[track_caller]
    #[must_use]
    pub fn serve(&self, port: u16) -> Running {
        self.serve_at(port, "::")
    }

    /// Like [`Self::serve`], on one address.
    #[track_caller]
    #[must_use]
    pub fn serve_at(&self, port: u16, address: &str) -> Running {
        let app = binaries().app_program.display().to_string();
        let mut server = Running::start(self.command(&app).args(["serve-echo", &port.to_string(), address]), false);
        server.wait_for_stdout("listening");
        server
    }

    /// Sends a line from this namespace to an echo server, and returns the reply: `from ADDRESS to ADDRESS LINE`.
    #[track_caller]
    #[must_use]
    pub fn ask(&self, protocol: &str, host: &str, port: u16) -> String {
        self.try_ask(protocol, host, port, "10").ok().text().to_owned()
    }

    /// Like [`Self::ask`], from a given source port.
    #[track_caller]
    #[must_use]
    pub fn ask_from(&self, protocol: &str, host: &str, port: u16, from: u16) -> String {
        let app = binaries().app_program.display().to_string();
        let (port, from) = (port.to_string(), from.to_string());
        self.run(&app, &["ask", protocol, host, &port, "hello", "10", &from]).ok().text().to_owned()
    }

    /// Sends a line to an echo server and fails on any reply.
    #[track_caller]
    pub fn assert_unreachable(&self, protocol: &str, host: &str, port: u16) {
        let out = self.try_ask(protocol, host, port, IMPATIENT);
        assert_ne!(out.code, 0, "{protocol} {host} {port} answers: {out}");
    }

    /// Repeats a line until the echo server's reply satisfies `fits`.
    #[track_caller]
    pub fn ask_until(&self, protocol: &str, host: &str, port: u16, fits: impl Fn(&str) -> bool) -> String {
        wait_for(&format!("{protocol} {host} {port} to answer so"), || {
            let out = self.try_ask(protocol, host, port, IMPATIENT);
            (out.code == 0 && fits(out.text())).then(|| out.text().to_owned())
        })
    }

    #[track_caller]
    fn try_ask(&self, protocol: &str, host: &str, port: u16, seconds: &str) -> Out {
        let app = binaries().app_program.display().to_string();
        self.run(&app, &["ask", protocol, host, &port.to_string(), "hello", seconds])
    }

    /// The nftables rules and elements of the namespace.
    #[track_caller]
    #[must_use]
    pub fn rules(&self) -> String {
        self.sh("nft list ruleset")
    }

    /// Creates a veth pair between this namespace (`name`) and another (`far`), with both ends up and these addresses.
    #[track_caller]
    pub fn veth_pair(&self, name: &str, addresses: &[&str], other: &Self, far: (&str, &[&str])) {
        self.batch(&format!("link add {name} type veth peer name {} netns {}\n", far.0, other.pid));
        for (place, name, addresses) in [(self, name, addresses), (other, far.0, far.1)] {
            let mut lines = format!("link set {name} up\n");
            for address in addresses {
                let nodad = if address.contains(':') { " nodad" } else { "" };
                lines.push_str(&format!("addr add {address} dev {name}{nodad}\n"));
            }
            place.batch(&lines);
        }
    }

    /// Feeds lines to `ip -batch`.
    #[track_caller]
    pub fn batch(&self, lines: &str) {
        let mut command = self.command("ip");
        let child = command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let written = child.and_then(|mut child| {
            // ip reads to the end of its input, which comes when the pipe is dropped.
            child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(lines.as_bytes()))?;
            child.wait_with_output()
        });
        match written {
            Ok(out) if out.status.success() => {}
            other => panic!("ip -batch: {other:?}\n{lines}"),
        }
    }
}

/// A host and the world outside it.
#[derive(Debug, Clone)]
pub struct Space {
    host: NetworkNamespace,
    outside: NetworkNamespace,
}

impl Default for Space {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

impl Space {
    /// A host with one interface, `up0` ([`HOST4`], [`HOST6`]), whose default routes lead to the outside
    /// ([`OUTSIDE4`], [`OUTSIDE6`]). The outside has a route to the host alone.
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        let (host, outside) = (NetworkNamespace::new(), NetworkNamespace::new());
        let (here4, here6) = (format!("{HOST4}/24"), format!("{HOST6}/64"));
        let (there4, there6) = (format!("{OUTSIDE4}/24"), format!("{OUTSIDE6}/64"));
        host.veth_pair("up0", &[&here4, &here6], &outside, ("up0", &[&there4, &there6]));
        host.batch(&format!("route add default via {OUTSIDE4}\nroute add ::/0 via {OUTSIDE6}\n"));
        Self { host, outside }
    }

    /// The namespace that runs gantry.
    #[must_use]
    pub fn host(&self) -> &NetworkNamespace {
        &self.host
    }

    /// The other end of the host's link.
    #[must_use]
    pub fn outside(&self) -> &NetworkNamespace {
        &self.outside
    }

    /// The leftovers of finished pods on the host: interfaces beyond `before` and other gantries' bridges, map
    /// elements, and rules that name one of these pods. `state_dir` identifies the bridges of this gantry.
    pub(crate) fn leftovers(&self, before: &BTreeSet<String>, over: &BTreeSet<String>, state_dir: &str) -> Vec<String> {
        let links = self.host.json("ip", &["-j", "-d", "link"]);
        let strange = |link: &&Value| link["linkinfo"]["info_kind"] != "bridge" || link["ifalias"] == state_dir;
        let names = links.as_array().into_iter().flatten().filter(strange).filter_map(|link| link["ifname"].as_str());
        let mut found: Vec<String> =
            names.filter(|name| !before.contains(*name)).map(|name| format!("interface: {name}")).collect();
        let rules = self.host.json("nft", &["-j", "list", "ruleset"]);
        for object in rules["nftables"].as_array().into_iter().flatten() {
            let text = object.to_string();
            let named = over.iter().any(|pod| text.contains(pod.as_str()) || text.contains(&host_end(pod)));
            // A pod's rules are elements of maps; a network's elements are in sets, and live as long as its bridge.
            if named || object["map"].get("elem").is_some() {
                found.push(format!("nftables: {text}"));
            }
        }
        found
    }
}

/// The prefix of the names of a pod's host ends.
fn host_end(pod: &str) -> String {
    let hex: String = pod.chars().filter(|&c| c != '-').take(12).collect();
    format!("gt{hex}")
}

/// Installs the plugin that fails, hangs and lies as configured (`"behave": {"ADD": "hang"}`, `"log":
/// PATH`) in a directory, as `cni-liar`.
///
/// # Panics
/// When it cannot be built or copied.
#[track_caller]
pub fn install_liar(dir: &Path) {
    install_program(liar(), dir.join("cni-liar"));
}
