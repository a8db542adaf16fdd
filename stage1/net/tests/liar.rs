//! Plugins that fail, hang or return wrong results.

#![allow(clippy::unwrap_used, reason = "a failure is the failure of the test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gantry_model::{ErrorKind, Kind};
use gantry_net::config::{NetworkConfig, Source};
use gantry_net::plugin::{Attachment, Cache, Runtime};
use serde_json::{Value, json};

/// A timeout that no correct plugin reaches.
const PATIENT: Duration = Duration::from_secs(30);

struct Lab {
    temp: tempfile::TempDir,
    runtime: Runtime,
}

/// The program that cargo builds from `examples/cni-liar.rs`.
fn liar() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("examples/cni-liar");
    assert!(
        program.exists(),
        "there is no {}: it is built by `cargo test -p gantry-net`, and before a test by itself with `cargo build -p gantry-net --examples`",
        program.display()
    );
    program
}

fn lab(limit: Duration) -> Lab {
    let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bin = temp.path().join("bin");
    fs::create_dir(&bin).unwrap();
    // Linked, not copied: a program that is open for writing in any process cannot be executed (ETXTBSY).
    fs::hard_link(liar(), bin.join("liar")).unwrap();
    symlink("liar", bin.join("second")).unwrap();
    let runtime = runtime(temp.path(), limit);
    Lab { temp, runtime }
}

fn runtime(dir: &Path, limit: Duration) -> Runtime {
    let data = fs::File::open(dir).unwrap();
    let cache = Cache::open(std::os::fd::AsFd::as_fd(&data)).unwrap();
    Runtime::new(vec![dir.join("missing"), dir.join("bin")], cache, limit)
}

impl Lab {
    fn log(&self) -> PathBuf {
        self.temp.path().join("log")
    }

    /// A network of plugins with a behaviour for each command.
    fn network(&self, version: &str, behaviours: &[Value]) -> NetworkConfig {
        let plugin = |(index, behave): (usize, &Value)| {
            let capabilities = json!({"portMappings": index == 0, "mac": false});
            json!({"type": if index == 0 { "liar" } else { "second" }, "number": index, "behave": behave,
                "log": self.log(), "capabilities": capabilities, "args": {"cni": {"kept": 1}}})
        };
        let plugins: Vec<Value> = behaviours.iter().enumerate().map(plugin).collect();
        let text = json!({"cniVersion": version, "name": "net", "plugins": plugins}).to_string();
        NetworkConfig::parse(&text, Source::BuiltIn).unwrap()
    }

    fn calls(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Takes the calls so far, as `ADD0 ADD1 …`.
    fn take_calls(&self) -> String {
        let word = |call: &Value| format!("{}{}", call["command"].as_str().unwrap(), call["config"]["number"]);
        let words = self.calls().iter().map(word).collect::<Vec<_>>().join(" ");
        if self.log().exists() {
            fs::remove_file(self.log()).unwrap();
        }
        words
    }

    fn cached(&self) -> usize {
        self.runtime.cache().names().unwrap().len()
    }
}

fn attachment() -> Attachment {
    Attachment {
        container_id: "pod-1".into(),
        netns: Some("/proc/self/ns/net".into()),
        interface: "eth0".into(),
        args: vec![("IP".into(), "10.1.2.3".into())],
        capability_args: json!({"portMappings": [1], "mac": "x", "dns": 2}).as_object().unwrap().clone(),
        cni_args: json!({"label": "v"}).as_object().unwrap().clone(),
        preferred_addresses: Vec::new(),
    }
}

/// Whether a process runs; a zombie does not.
fn runs(pid: &Value) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits for the end of a killed process.
fn ends(pid: &Value) -> bool {
    let start = Instant::now();
    while runs(pid) {
        if start.elapsed() > PATIENT {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[test]
fn a_chain_runs_in_order_and_in_reverse() {
    let lab = lab(PATIENT);
    let network = lab.network("1.1.0", &[json!({}), json!({})]);
    let result = lab.runtime.add_list(&network, &attachment()).unwrap();
    let ips: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
    assert_eq!(ips, ["10.0.0.1/8", "10.0.0.2/8"]);
    let calls = lab.calls();
    let config = &calls[0]["config"];
    assert_eq!((&config["name"], &config["cniVersion"]), (&json!("net"), &json!("1.1.0")));
    assert_eq!(config["runtimeConfig"], json!({"portMappings": [1]}), "only capabilities declared true");
    assert_eq!(config["args"], json!({"cni": {"kept": 1, "label": "v"}}));
    assert!(config.get("capabilities").is_none() && config.get("prevResult").is_none());
    assert!(calls[1]["config"].get("runtimeConfig").is_none());
    assert_eq!(calls[1]["config"]["prevResult"]["ips"].as_array().unwrap().len(), 1);
    let mut environment = calls[0]["env"].as_object().unwrap().clone();
    assert_eq!(environment.remove("PATH").unwrap().as_str().unwrap(), std::env::var("PATH").unwrap());
    assert!(environment.remove("CNI_PATH").unwrap().as_str().unwrap().contains("/missing:/"));
    let expected = json!({"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "pod-1", "CNI_NETNS": "/proc/self/ns/net",
        "CNI_IFNAME": "eth0", "CNI_ARGS": "IgnoreUnknown=1;IP=10.1.2.3"});
    assert_eq!(Value::Object(environment), expected, "and nothing else");

    let again = lab.runtime.add_list(&network, &attachment()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again}");
    lab.runtime.check_list(&network, &attachment()).unwrap();
    lab.runtime.status(&network).unwrap();
    assert_eq!(lab.take_calls(), "ADD0 ADD1 CHECK0 CHECK1 STATUS0 STATUS1");
    let gone = Attachment { netns: None, ..attachment() };
    lab.runtime.del_list(&network, &gone).unwrap();
    let calls = lab.calls();
    assert_eq!(calls[0]["config"]["prevResult"]["ips"].as_array().unwrap().len(), 2);
    assert_eq!(calls[0]["env"]["CNI_NETNS"], "");
    lab.runtime.del_list(&network, &gone).unwrap();
    assert!(lab.calls()[2]["config"].get("prevResult").is_none());
    assert_eq!(lab.take_calls(), "DEL1 DEL0 DEL1 DEL0");
    assert_eq!(lab.cached(), 0);
    let error = lab.runtime.check_list(&network, &attachment()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn a_failed_add_is_undone() {
    let lab = lab(PATIENT);
    let network = lab.network("1.0.0", &[json!({}), json!({"ADD": "fail"}), json!({})]);
    let error = lab.runtime.add_list(&network, &attachment()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("'second' failed to ADD: told to fail: at ADD (code 101); it said: one line and another"),
        "{text}"
    );
    assert_eq!((lab.take_calls().as_str(), lab.cached()), ("ADD0 ADD1 DEL1 DEL0", 0));

    let network = lab.network("1.0.0", &[json!({"DEL": "fail"}), json!({"ADD": "crash", "DEL": "abort"})]);
    let error = lab.runtime.add_list(&network, &attachment()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains("exit status: 3; it said: panic: of course; and could not be undone: "), "{text}");
    assert!(
        text.contains("'second' failed to DEL: signal: 6") && text.contains("'liar' failed to DEL: told to fail"),
        "{text}"
    );
    assert_eq!(
        (lab.take_calls().as_str(), lab.cached()),
        ("ADD0 ADD1 DEL1 DEL0", 1),
        "failed detachments stay in the cache"
    );
    let (net, container, interface) = lab.runtime.cache().names().unwrap().remove(0);
    let entry = lab.runtime.cache().get(&net, &container, &interface).unwrap().unwrap();
    assert_eq!((entry.attachment(), entry.network().unwrap(), entry.result().unwrap()), (attachment(), network, None));
}

#[test]
fn hanging_plugins_are_killed_with_their_children() {
    let lab = lab(Duration::from_secs(2));
    let network = lab.network("1.0.0", &[json!({"ADD": "hang"})]);
    let start = Instant::now();
    let error = lab.runtime.add_list(&network, &attachment()).unwrap_err();
    let took = start.elapsed();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("did not end ADD within 2000 ms and was killed; it said: ."), "{error}");
    assert!(took >= Duration::from_secs(2) && took < PATIENT, "{took:?}");
    let calls = lab.calls();
    assert!(ends(&calls[0]["pid"]) && ends(&calls[0]["child"]));
    assert_eq!((lab.take_calls().as_str(), lab.cached()), ("ADD0 DEL0", 0));
}

const WORKER: &str = "GANTRY_NET_TEST_WORKER";

/// Not a test: the process that the next test kills during ADD.
#[test]
fn worker() {
    let Ok(dir) = std::env::var(WORKER) else { return };
    let text = fs::read_to_string(format!("{dir}/network")).unwrap();
    let network = NetworkConfig::parse(&text, Source::BuiltIn).unwrap();
    runtime(Path::new(&dir), PATIENT * 10).add_list(&network, &attachment()).unwrap();
}

#[test]
fn a_killed_add_is_cached_and_deleted() {
    let lab = lab(PATIENT);
    let network = lab.network("1.0.0", &[json!({}), json!({"ADD": "hang"})]);
    fs::write(lab.temp.path().join("network"), &network.text).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut worker = command.args(["--exact", "worker"]).env(WORKER, lab.temp.path()).spawn().unwrap();
    let start = Instant::now();
    while lab.calls().len() < 2 {
        assert!(start.elapsed() < PATIENT, "the worker does not get on");
        std::thread::yield_now();
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
    for pid in ["pid", "child"].map(|key| lab.calls()[1][key].to_string()) {
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    }
    let entry = lab.runtime.cache().get("net", "pod-1", "eth0").unwrap().unwrap();
    assert_eq!((entry.attachment(), entry.result().unwrap()), (attachment(), None));
    assert_eq!(lab.runtime.add_list(&network, &attachment()).unwrap_err().kind(), ErrorKind::AlreadyExists);
    // The configuration may have changed: DEL uses that of ADD.
    let changed = lab.network("1.0.0", &[json!({})]);
    lab.runtime.gc_list(&changed, &[]).unwrap();
    assert_eq!((lab.take_calls().as_str(), lab.cached()), ("ADD0 ADD1 DEL1 DEL0", 0));
}

#[test]
fn children_holding_the_pipes_do_not_block() {
    let lab = lab(PATIENT);
    let network = lab.network("1.0.0", &[json!({"ADD": "daemon"})]);
    let start = Instant::now();
    let result = lab.runtime.add_list(&network, &attachment()).unwrap();
    assert!(start.elapsed() < PATIENT / 2, "{:?}", start.elapsed());
    assert_eq!(result.ips.len(), 1);
    let child = &lab.calls()[0]["child"];
    assert!(runs(child), "a daemon is the plugin's business");
    assert!(Command::new("kill").arg(child.to_string()).status().unwrap().success());
}

#[test]
fn invalid_results_are_rejected() {
    let lab = lab(PATIENT);
    for (behaviour, expected) in [
        ("flood", "answered ADD with more than 1048576 bytes, and was killed"),
        ("garbage", "answered ADD with invalid JSON"),
        ("silent", "answered ADD with nothing"),
        ("version", "answered ADD with a result whose version '7.0.0' is not known"),
        ("index", "it lacks the interface of 10.0.0.1/8"),
        ("fail-kindly", "failed to ADD: told to fail: at ADD (code 101)"),
    ] {
        let network = lab.network("1.0.0", &[json!({}), json!({"ADD": behaviour})]);
        let start = Instant::now();
        let error = lab.runtime.add_list(&network, &attachment()).unwrap_err().to_string();
        assert!(error.contains(expected), "{behaviour}: {error}");
        assert!(start.elapsed() < PATIENT, "{behaviour}");
        assert_eq!((lab.take_calls().as_str(), lab.cached()), ("ADD0 ADD1 DEL1 DEL0", 0), "{behaviour}");
    }
}

#[test]
fn del_continues_after_failures() {
    let lab = lab(PATIENT);
    let network = lab.network("0.3.1", &[json!({}), json!({"DEL": "fail"}), json!({"DEL": "garbage"})]);
    lab.runtime.add_list(&network, &attachment()).unwrap();
    let error = lab.runtime.del_list(&network, &attachment()).unwrap_err();
    assert!(
        error.to_string().matches("' failed to DEL").count() + error.to_string().matches("answered DEL").count() == 2,
        "{error}"
    );
    assert!(lab.calls()[3]["config"].get("prevResult").is_none(), "0.3.1 has none at DEL");
    assert_eq!((lab.take_calls().as_str(), lab.cached()), ("ADD0 ADD1 ADD2 DEL2 DEL1 DEL0", 1));
    let error = lab.runtime.check_list(&network, &attachment()).unwrap_err();
    assert!(error.to_string().contains("0.3.1, which has no CHECK"), "{error}");
}

#[test]
fn gc_cleans_the_cache_and_runs_the_plugins() {
    let lab = lab(PATIENT);
    let network = lab.network("1.1.0", &[json!({}), json!({"GC": "fail"}), json!({})]);
    for pod in ["pod-1", "pod-2", "pod-3"] {
        lab.runtime.add_list(&network, &Attachment { container_id: pod.into(), ..attachment() }).unwrap();
    }
    let damaged = lab.temp.path().join("results/net:pod-3:eth0");
    fs::write(&damaged, "").unwrap();
    fs::remove_file(lab.log()).unwrap();
    let error = lab.runtime.gc_list(&network, &[("pod-1".into(), "eth0".into())]).unwrap_err();
    assert!(error.to_string().contains("'second' failed to GC"), "{error}");
    let calls = lab.calls();
    assert!(calls.iter().take(6).all(|call| call["command"] == "DEL" && call["env"]["CNI_NETNS"] == ""));
    let last = calls.last().unwrap();
    assert_eq!(last["config"]["cni.dev/valid-attachments"], json!([{"containerID": "pod-1", "ifname": "eth0"}]));
    assert_eq!(lab.take_calls(), "DEL2 DEL1 DEL0 DEL2 DEL1 DEL0 GC0 GC1 GC2");
    assert_eq!(lab.cached(), 1);
    let older = lab.network("1.0.0", &[json!({})]);
    lab.runtime.gc_list(&older, &[("pod-1".into(), "eth0".into())]).unwrap();
    assert_eq!(lab.take_calls(), "", "1.0.0 has no GC");
}

#[test]
fn an_older_plugin_is_run_in_its_version() {
    let lab = lab(PATIENT);
    fs::write(lab.temp.path().join("bin/versions"), r#"["0.3.1", "0.4.0", "5.0.0"]"#).unwrap();
    let old = json!({"ADD": "old", "CHECK": "old", "DEL": "old", "GC": "old", "STATUS": "old"});
    let network = lab.network("1.1.0", &[json!({}), old, json!({})]);
    let result = lab.runtime.add_list(&network, &attachment()).unwrap();
    assert_eq!(result.ips.len(), 3);
    let versions: Vec<Value> = lab.calls().iter().map(|call| call["config"]["cniVersion"].clone()).collect();
    assert_eq!(versions, ["1.1.0", "1.1.0", "0.4.0", "1.1.0"]);
    assert_eq!(lab.calls()[2]["config"]["prevResult"]["ips"][0]["version"], "4");
    lab.runtime.check_list(&network, &attachment()).unwrap();
    lab.runtime.status(&network).unwrap();
    lab.runtime.gc_list(&network, &[("pod-1".into(), "eth0".into())]).unwrap();
    lab.runtime.del_list(&network, &attachment()).unwrap();
    assert_eq!(lab.cached(), 0);
    fs::write(lab.temp.path().join("bin/versions"), r#"["5.0.0"]"#).unwrap();
    let text = lab.runtime.add_list(&network, &attachment()).unwrap_err().to_string();
    assert!(text.contains("but network 'net' needs 1.1.0"), "{text}");
}

#[test]
fn programs_are_found_only_in_the_plugin_directories() {
    let lab = lab(PATIENT);
    let bin = lab.temp.path().join("bin");
    symlink("/bin/true", bin.join("outside")).unwrap();
    fs::write(bin.join("plain"), "x").unwrap();
    fs::set_permissions(bin.join("plain"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::create_dir(bin.join("directory")).unwrap();
    for kind in ["outside", "plain", "directory", "absent"] {
        let text = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": kind}]}).to_string();
        let network = NetworkConfig::parse(&text, Source::BuiltIn).unwrap();
        let error = lab.runtime.add_list(&network, &attachment()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(&format!("plugin '{kind}' is not installed (looked in ")), "{error}");
    }
    let bad = |change: fn(&mut Attachment)| {
        let mut attachment = attachment();
        change(&mut attachment);
        let network = lab.network("1.0.0", &[json!({})]);
        lab.runtime.add_list(&network, &attachment).unwrap_err().kind()
    };
    assert_eq!(bad(|it| it.container_id = "../x".into()), ErrorKind::Invalid);
    assert_eq!(bad(|it| it.interface = "much-too-long-a-name".into()), ErrorKind::Invalid);
    assert_eq!(bad(|it| it.args = vec![("A".into(), "1;B=2".into())]), ErrorKind::Invalid);
    assert_eq!(bad(|it| it.netns = None), ErrorKind::Invalid);
    assert_eq!(bad(|it| it.netns = Some("relative".into())), ErrorKind::Invalid);
    assert_eq!(lab.take_calls(), "");
}
