//! Networks of a test's own: namespaces that stand for hosts, and the cables between them.
//!
//! A [`Space`] is a host on which a gantry runs ([`Gantry::in_space`](crate::Gantry::in_space)) and the world outside
//! that host. Nothing of it is seen in the namespace of the machine, and all of it goes with the test's process,
//! however that ends: a namespace is held by a child whose standard input is a pipe from here.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use serde_json::Value;

use crate::binaries::{binaries, liar};
use crate::output::Out;
use crate::running::Running;
use crate::wait::{DEADLINE, wait_for};

/// The address of the host of a [`Space`] on the cable to the outside.
pub const HOST4: &str = "192.0.2.1";
/// The same of IPv6.
pub const HOST6: &str = "2001:db8::1";
/// The address of the outside.
pub const OUTSIDE4: &str = "192.0.2.2";
/// The same of IPv6.
pub const OUTSIDE6: &str = "2001:db8::2";

/// How long a probe that should not get through tries, in seconds.
const IMPATIENT: &str = "1";

/// A network namespace, and programs in it.
#[derive(Debug, Clone)]
pub struct NetworkNamespace {
    /// A process that is in it.
    pid: u32,
    /// Whoever holds it, when it is the test's own.
    _holder: Option<Rc<Holder>>,
}

/// The child that holds a namespace.
#[derive(Debug)]
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // It reads until its standard input ends.
        drop(self.0.stdin.take());
        // Fails only when it was waited for, and nobody else does.
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
    /// When it cannot be made.
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
            Err(error) => panic!("cannot run unshare: {error}; `./dev setup tests` installs what the tests need"),
        };
        let mut said = String::new();
        let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut said));
        let holder = Holder(child);
        assert!(matches!(read, Some(Ok(_))) && said == "up\n", "cannot make a network namespace: {read:?} {said}");
        Self { pid: holder.0.id(), _holder: Some(Rc::new(holder)) }
    }

    /// The namespace of a process, for as long as that runs.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        Self { pid, _holder: None }
    }

    /// A process in it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A command in it, to be changed before it is started. It becomes the program: it keeps its process id.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid)).arg("--").arg(program);
        command
    }

    /// Runs a command in it to its end.
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> Out {
        Running::start(self.command(program).args(args), false).wait_within(DEADLINE)
    }

    /// Runs a shell script in it that must succeed, and gives what it prints.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.run("sh", &["-ec", script]).ok().stdout
    }

    /// What a command in it that must succeed prints, as JSON.
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

    /// The names of its interfaces.
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

    /// Where the default route of a family (`-4`, `-6`) leads.
    #[track_caller]
    #[must_use]
    pub fn gateway(&self, family: &str) -> Option<String> {
        let routes = self.json("ip", &[family, "-j", "route", "show", "default"]);
        routes[0]["gateway"].as_str().map(str::to_owned)
    }

    /// Starts a server in it that answers each line, on TCP and UDP, with who sent it; it is listening already.
    #[track_caller]
    #[must_use]
    pub fn serve(&self, port: u16) -> Running {
        self.serve_at(port, "::")
    }

    /// The same on one address.
    #[track_caller]
    #[must_use]
    pub fn serve_at(&self, port: u16, address: &str) -> Running {
        let app = binaries().app_program.display().to_string();
        let mut server = Running::start(self.command(&app).args(["serve-echo", &port.to_string(), address]), false);
        server.wait_for_output("listening");
        server
    }

    /// Sends a line to such a server from here, and gives what it answers: `from ADDRESS to ADDRESS LINE`.
    #[track_caller]
    #[must_use]
    pub fn ask(&self, protocol: &str, host: &str, port: u16) -> String {
        self.try_ask(protocol, host, port, "10").ok().text().to_owned()
    }

    /// The same from a port of one's own choosing.
    #[track_caller]
    #[must_use]
    pub fn ask_from(&self, protocol: &str, host: &str, port: u16, from: u16) -> String {
        let app = binaries().app_program.display().to_string();
        let (port, from) = (port.to_string(), from.to_string());
        self.run(&app, &["ask", protocol, host, &port, "hello", "10", &from]).ok().text().to_owned()
    }

    /// Demands that nobody answers such a line.
    #[track_caller]
    pub fn ask_in_vain(&self, protocol: &str, host: &str, port: u16) {
        let out = self.try_ask(protocol, host, port, IMPATIENT);
        assert_ne!(out.code, 0, "{protocol} {host} {port} answers: {out}");
    }

    /// Waits until such a line is answered so that `fits`.
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

    /// The rules and elements of nftables in it.
    #[track_caller]
    #[must_use]
    pub fn rules(&self) -> String {
        self.sh("nft list ruleset")
    }

    /// Lays a cable from here (`name`) to another place (`far`), both ends up and with these addresses.
    #[track_caller]
    pub fn cable(&self, name: &str, addresses: &[&str], other: &Self, far: (&str, &[&str])) {
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

    /// Gives lines to `ip -batch`.
    #[track_caller]
    pub fn batch(&self, lines: &str) {
        let mut command = self.command("ip");
        let child = command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let written = child.and_then(|mut child| {
            // It reads to the end of its input, which comes when the pipe is dropped.
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
    /// A host with one interface, `up0` ([`HOST4`], [`HOST6`]), through which its default routes lead to the outside
    /// ([`OUTSIDE4`], [`OUTSIDE6`]). The outside knows the way to the host alone.
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        let (host, outside) = (NetworkNamespace::new(), NetworkNamespace::new());
        let (here4, here6) = (format!("{HOST4}/24"), format!("{HOST6}/64"));
        let (there4, there6) = (format!("{OUTSIDE4}/24"), format!("{OUTSIDE6}/64"));
        host.cable("up0", &[&here4, &here6], &outside, ("up0", &[&there4, &there6]));
        host.batch(&format!("route add default via {OUTSIDE4}\nroute add ::/0 via {OUTSIDE6}\n"));
        Self { host, outside }
    }

    /// Where gantry runs.
    #[must_use]
    pub fn host(&self) -> &NetworkNamespace {
        &self.host
    }

    /// The other end of the host's cable.
    #[must_use]
    pub fn outside(&self) -> &NetworkNamespace {
        &self.outside
    }

    /// What pods that are over have left on the host: interfaces beyond those that were there before and bridges of
    /// others, elements of maps, and whatever in the rules names one of these pods. `state_dir`: what bridges of this
    /// gantry say of themselves.
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
            // What leads to a pod is an element of a map; the elements of a network are in sets, and stay with its
            // bridge.
            if named || object["map"].get("elem").is_some() {
                found.push(format!("nftables: {text}"));
            }
        }
        found
    }
}

/// How the names of the host's ends of a pod's cables begin.
fn host_end(pod: &str) -> String {
    let hex: String = pod.chars().filter(|&c| c != '-').take(12).collect();
    format!("gt{hex}")
}

/// Puts the plugin that fails, hangs and lies as its configuration says (`"behave": {"ADD": "hang"}`, `"log": PATH`)
/// into a directory, as `cni-liar`.
///
/// # Panics
/// When it cannot be built or copied.
#[track_caller]
pub fn put_liar(dir: &Path) {
    let copied = std::fs::create_dir_all(dir).and_then(|()| std::fs::copy(liar(), dir.join("cni-liar")));
    if let Err(error) = copied {
        panic!("cannot copy {} to {}: {error}", liar().display(), dir.display());
    }
}
