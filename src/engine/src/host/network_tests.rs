//! Requests to a `gantry-stage1 network` that replies, refuses, is silent, replies wrongly or hangs: scripts in its
//! place.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use gantry_model::NetMode;

use super::*;
use crate::{NetworkOptions, Options};

const POD: &str = "3b6f0ac2-5d64-4c3a-8f0e-1a2b3c4d5e6f";

/// An engine whose gantry-stage1 is this script. The script finds its request in `$HERE/asked`.
fn engine(temp: &Path, script: &str, plugin_limit: Duration) -> Engine {
    let program = temp.join("stage1");
    let here = temp.display();
    std::fs::write(&program, format!("#!/bin/sh\nHERE='{here}'\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let network = NetworkOptions { default: NetMode::None, plugin_limit, ..NetworkOptions::default() };
    Engine::open(Options { stage1: Some(program), network, ..Options::new(temp.join("data")) }).unwrap()
}

fn answering(temp: &Path, answer: &str) -> Engine {
    engine(temp, &format!("cat > \"$HERE/asked\"; printf '%s\\n' '{answer}'"), Duration::from_secs(60))
}

fn record(engine: &Engine, id: PodId) {
    std::fs::create_dir_all(engine.pod_dir(id)).unwrap();
    std::fs::write(engine.pod_dir(id).join(files::NETWORK), "{}").unwrap();
}

#[test]
fn a_pod_without_a_record_starts_no_program() {
    let temp = tempfile::tempdir().unwrap();
    let engine = answering(temp.path(), r#""done""#);
    let id: PodId = POD.parse().unwrap();
    engine.network_down(id).unwrap();
    std::fs::create_dir_all(engine.pod_dir(id)).unwrap();
    engine.network_down(id).unwrap();
    assert_eq!(engine.reload_networks().unwrap(), [""; 0]);
    assert_eq!(engine.sweep_networks(false).unwrap(), [""; 0]);
    assert_eq!(engine.check_networks().unwrap(), [""; 0]);
    assert!(!temp.path().join("asked").exists(), "where no pod ever had a network, nothing is asked");
    record(&engine, id);
    engine.network_down(id).unwrap();
    let asked: Request = serde_json::from_slice(&std::fs::read(temp.path().join("asked")).unwrap()).unwrap();
    assert_eq!(asked.what, NetworkOperation::Down { pod: POD.to_owned() });
    assert_eq!(asked.host.pods_dir, engine.store.layout().pods_dir().to_string_lossy());
}

#[test]
fn replies_are_distinguished() {
    let temp = tempfile::tempdir().unwrap();
    let at = temp.path();
    std::fs::create_dir_all(answering(at, "").network_host().state_dir).unwrap();
    let swept = answering(at, r#"{"swept":["a lease of nobody","an esc\u001b"]}"#).sweep_networks(true).unwrap();
    assert_eq!(swept, ["a lease of nobody", "an esc\\u{1b}"]);
    assert_eq!(answering(at, r#"{"findings":["x"]}"#).check_networks().unwrap(), ["x"]);
    let refused = r#"{"failed":{"kind":"exhausted","message":"no address is left\nin it"}}"#;
    let refused = answering(at, refused).reload_networks().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    assert_eq!(refused.to_string(), "cannot restore the networks of the running pods: no address is left\\nin it");
    for other in [r#""done""#, "nonsense", r#"{"from":"the future"}"#] {
        let error = answering(at, other).check_networks().unwrap_err();
        assert!(error.to_string().contains("is not understood"), "{error}");
    }
}

#[test]
fn a_missing_reply_is_reported_with_stderr() {
    let temp = tempfile::tempdir().unwrap();
    let engine = engine(temp.path(), "echo 'it broke' >&2; exit 3", Duration::ZERO);
    std::fs::create_dir_all(engine.network_host().state_dir).unwrap();
    assert_eq!(
        engine.check_networks().unwrap_err().to_string(),
        "cannot check the networks: gantry-stage1 ended without a reply; it wrote: it broke"
    );
}

/// The engine does not wait for it, and none of its processes survives to run under a lock that others may hold then.
#[test]
fn a_hanging_program_is_killed() {
    let temp = tempfile::tempdir().unwrap();
    let mut engine = engine(temp.path(), "echo $$ > \"$HERE/pid\"; exec sleep 1000", Duration::ZERO);
    engine.timeouts.network = Duration::from_millis(300);
    let id: PodId = POD.parse().unwrap();
    record(&engine, id);
    let error = engine.network_down_within(id, Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    engine.network_down_or_leave(id);
    if let Ok(pid) = std::fs::read_to_string(temp.path().join("pid")) {
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "it was left running");
    }
    assert!(engine.has_network_record(id));
}

/// A plugin that hangs is killed by the program that runs it, and not left running when that is killed.
#[test]
fn plugin_timeouts_are_shorter_than_the_call() {
    let temp = tempfile::tempdir().unwrap();
    let engine = answering(temp.path(), r#""done""#);
    let id: PodId = POD.parse().unwrap();
    record(&engine, id);
    let limit = |within| {
        engine.network_down_within(id, within).unwrap();
        let asked = std::fs::read(temp.path().join("asked")).unwrap();
        Duration::from_millis(serde_json::from_slice::<Request>(&asked).unwrap().host.plugin_limit_ms)
    };
    assert_eq!(limit(Duration::MAX), Duration::from_secs(60));
    assert_eq!(limit(Duration::from_secs(10)), Duration::from_millis(7500));
}

#[test]
fn a_missing_program_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let engine = answering(temp.path(), "");
    let program = temp.path().join("stage1");
    std::fs::remove_file(&program).unwrap();
    std::fs::create_dir_all(engine.network_host().state_dir).unwrap();
    let error = engine.check_networks().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&program.display().to_string()), "{error}");
}

/// Listing reads files and runs nothing: here the program is missing.
#[test]
fn networks_are_listed_without_a_program() {
    let temp = tempfile::tempdir().unwrap();
    let mut engine = answering(temp.path(), "");
    std::fs::remove_file(temp.path().join("stage1")).unwrap();
    let dir = temp.path().join("net.d");
    std::fs::create_dir(&dir).unwrap();
    let text = r#"{"cniVersion":"1.0.0","name":"mine","plugins":[{"type":"bridge","bridge":"br7"}]}"#;
    std::fs::write(dir.join("10-mine.conflist"), text).unwrap();
    engine.options.network.config_dirs = vec![dir.display().to_string()];
    let names: Vec<_> = engine.networks().unwrap().into_iter().filter_map(|network| network.name).collect();
    assert!(
        ["default", "default-restricted", "mine"].iter().all(|name| names.iter().any(|it| it == name)),
        "{names:?}"
    );
    let mine = engine.network("mine").unwrap();
    assert_eq!((mine.interface.as_deref(), mine.text.as_deref()), (Some("br7"), Some(text)));
    assert_eq!(engine.network("none").unwrap_err().kind(), ErrorKind::NotFound);
}

/// Only the record lists the pod's remaining resources on the host, so the pod's directory stays until they are gone.
#[test]
fn failed_detachment_keeps_the_pod_directory() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let failing = answering(temp.path(), r#"{"failed":{"kind":"internal","message":"a plugin failed"}}"#);
    let id: PodId = POD.parse().unwrap();
    record(&failing, id);
    let error = failing.dispose(id).unwrap_err();
    assert!(matches!(error, crate::RmError::Network { .. }), "{error}");
    assert!(failing.pod_dir(id).exists());
    drop(failing);
    let engine = answering(temp.path(), r#""done""#);
    engine.dispose(id).unwrap();
    assert!(!engine.pod_dir(id).exists());
}
