//! Pods on networks of plugins: Debian's, and one that fails, hangs or returns wrong results.

#![allow(clippy::unwrap_used, reason = "a failure is the failure of the test")]

mod lab;

use std::fs;
use std::os::fd::AsFd;

use gantry_model::net::Protocol;
use gantry_model::{ErrorKind, Kind};
use gantry_net::pod::{self, unused};
use lab::{Lab, inside, port, sh, until};
use serde_json::{Value, json};

fn liar(lab: &Lab, behave: &Value) -> Value {
    json!({"type": "liar", "behave": behave, "log": lab.at("log")})
}

#[test]
fn standard_plugins_are_run_and_undone() {
    if !inside("standard_plugins_are_run_and_undone") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.bridge("one", "br-one", "10.201.0.0/24");
    lab.bridge("two", "br-two", "10.202.0.0/24");
    let pod = lab.pod();
    let (attached, held) = lab.attach(&pod, &["one", "two:IP=10.202.0.77"], &[port(8080, Protocol::Tcp)]).unwrap();
    let got: Vec<_> = attached.iter().map(|it| (it.interface.as_str(), it.addresses[0].address.to_string())).collect();
    assert_eq!(got, [("eth0", "10.201.0.2".to_owned()), ("eth1", "10.202.0.77".to_owned())]);
    assert_eq!(attached[0].addresses[0].gateway, Some([10, 201, 0, 1].into()));
    assert_eq!((attached[0].ports.len(), attached[1].ports.len()), (1, 0));
    assert_eq!(attached[0].mac.as_deref(), pod.ip("link show dev eth0")[0]["address"].as_str());
    assert_eq!(pod.ip("link show dev lo")[0]["flags"][1], "UP");
    assert!(sh("iptables -t nat -S; nft list ruleset").contains("10.201.0.2:80"));
    // Debian's portmap (1.1.1) checks for IPv6 rules that it did not create; there is no other finding.
    assert!(pod::check(&lab.host).unwrap().iter().all(|line| line.contains("plugin 'portmap' failed to CHECK")));
    let networks = pod::list_networks(&lab.host, Some("one")).unwrap();
    assert_eq!((networks[0].pods.len(), networks[0].built_in), (1, false));
    assert_eq!(networks[0].pods[0].attached, attached[0]);
    // While the namespace exists, and a second time.
    lab.detach(&pod).unwrap();
    lab.detach(&pod).unwrap();
    assert!(!pod.has_record());
    drop((pod, held));
    lab.assert_no_garbage();
}

#[test]
fn detaching_plugins_removes_unused_bridges() {
    if !inside("detaching_plugins_removes_unused_bridges") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.bridge("one", "br-one", "10.201.0.0/24");
    let (native, by_plugins) = (lab.pod(), lab.pod());
    lab.attach(&native, &["default"], &[]).unwrap();
    lab.attach(&by_plugins, &["one"], &[]).unwrap();
    lab.end(native);
    // As if the lock of the links had been held for longer than the timeout.
    assert!(unused::take_shared().iter().all(unused::SharedResources::may_be_unused));
    assert!(lab.links().contains(&"gantry0".to_owned()));
    lab.end(by_plugins);
    for resources in unused::take_shared() {
        assert!(resources.may_be_unused());
        resources.remove(unused::LOCK_TIMEOUT).unwrap();
    }
    assert!(!lab.links().contains(&"gantry0".to_owned()), "{:?}", lab.links());
    lab.assert_no_garbage();
}

/// The pods of plugins need forwarding too, and the rules do not know their interfaces.
#[test]
fn plugins_keep_forwarding_open_while_attached() {
    if !inside("plugins_keep_forwarding_open_while_attached") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.bridge("one", "br-one", "10.201.0.0/24");
    sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0");
    let is_confined = || sh("nft list set inet gantry-test confined").contains("elements");
    let forwards = || sh("sysctl -n net.ipv4.ip_forward").trim() == "1";
    let remove_unused = || {
        unused::take_shared().iter().for_each(|resources| resources.remove(unused::LOCK_TIMEOUT).unwrap());
    };
    let (native, later) = (lab.pod(), lab.pod());
    let (by_plugins, last) = (lab.pod(), lab.pod());
    lab.attach(&native, &["default"], &[]).unwrap();
    assert!(is_confined() && forwards());
    lab.attach(&by_plugins, &["one"], &[]).unwrap();
    assert!(!is_confined());
    lab.attach(&later, &["default"], &[]).unwrap();
    assert!(!is_confined(), "by the entries of the next pod");
    lab.end(by_plugins);
    assert!(is_confined() && forwards());
    lab.attach(&last, &["one"], &[]).unwrap();
    lab.end(native);
    lab.end(later);
    remove_unused();
    assert!(forwards(), "for the pod of the plugins");
    lab.end(last);
    remove_unused();
    assert!(!forwards());
    lab.assert_no_garbage();
}

#[test]
fn failure_of_the_second_network_detaches_the_first() {
    if !inside("failure_of_the_second_network_detaches_the_first") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.with_liar();
    let mut good = lab.bridge("good", "br-one", "10.201.0.0/24");
    good.as_array_mut().unwrap().push(liar(&lab, &json!({})));
    lab.network("good", "1.0.0", &good);
    lab.network("bad", "1.0.0", &json!([liar(&lab, &json!({"ADD": "fail"}))]));
    let pod = lab.pod();
    let error = lab.attach(&pod, &["good", "bad"], &[port(8080, Protocol::Udp)]).unwrap_err();
    let said = gantry_model::error::messages(&error).join(": ");
    let why = "use-plugins is true in the configuration of gantry";
    assert!(said.contains(&format!("cannot attach the pod to network 'bad' with its plugins ({why}): ")), "{said}");
    assert!(said.contains("told to fail: at ADD (code 101)"), "{said}");
    assert_eq!(lab.asked(), "ADD/eth0 ADD/eth1 DEL/eth1 DEL/eth0");
    assert!(!pod.has_record());
    assert_eq!(pod.ip("link").as_array().unwrap().len(), 1, "only lo");
    // And the port is free again.
    std::net::UdpSocket::bind("0.0.0.0:8080").unwrap();
    lab.attach(&pod, &["good"], &[]).unwrap();
    lab.detach(&pod).unwrap();
    drop(pod);
    lab.assert_no_garbage();
}

#[test]
fn hanging_plugins_are_killed_with_their_group() {
    if !inside("hanging_plugins_are_killed_with_their_group") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.plugin_limit_ms = 1500;
    lab.with_liar();
    lab.network("net", "1.0.0", &json!([liar(&lab, &json!({"ADD": "hang"}))]));
    let pod = lab.pod();
    let error = lab.attach(&pod, &["net"], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let calls: Vec<Value> =
        fs::read_to_string(lab.at("log")).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let child = calls[0]["child"].as_u64().unwrap();
    until("the plugin's child is killed", || {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    });
    assert_eq!(lab.asked(), "ADD/eth0 DEL/eth0");
    assert!(!pod.has_record());
    drop(pod);
    lab.assert_no_garbage();
}

#[test]
fn failed_detachments_stay_in_the_record() {
    if !inside("failed_detachments_stay_in_the_record") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.with_liar();
    lab.bridge("good", "br-one", "10.201.0.0/24");
    lab.network("bad", "1.0.0", &json!([liar(&lab, &json!({"ADD": "fail", "DEL": "fail"}))]));
    let pod = lab.pod();
    let error = lab.attach(&pod, &["good", "bad"], &[]).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("removing what had been created failed too") && said.contains("failed to DEL"), "{said}");
    assert!(pod.has_record());
    assert_eq!(lab.kept().len(), 1, "the first network is undone nevertheless: {:?}", lab.kept());
    assert!(lab.detach(&pod).is_err() && pod.has_record());
    assert!(
        pod::collect_garbage(&lab.host, false).unwrap().iter().all(|line| !line.contains("bad")),
        "the record has it"
    );
    // The plugin is repaired: DEL uses the configuration of ADD, so only the program changes.
    fs::remove_file(lab.at("bin/liar")).unwrap();
    fs::copy("/bin/true", lab.at("bin/liar")).unwrap();
    lab.detach(&pod).unwrap();
    assert!(!pod.has_record());
    drop(pod);
    lab.assert_no_garbage();
}

#[test]
fn invalid_results_are_rejected() {
    if !inside("invalid_results_are_rejected") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.with_liar();
    lab.network("air", "1.0.0", &json!([liar(&lab, &json!({}))]));
    let pod = lab.pod();
    let error = lab.attach(&pod, &["air"], &[]).unwrap_err();
    assert!(error.to_string().contains("there is no interface eth0 in the pod"), "{error}");
    assert_eq!(lab.asked(), "ADD/eth0 DEL/eth0");
    // It adds an address to the interface that the bridge plugin created.
    let mut more = lab.bridge("more", "br-one", "10.201.0.0/24");
    more.as_array_mut().unwrap().push(liar(&lab, &json!({})));
    lab.network("more", "1.0.0", &more);
    let (attached, held) = lab.attach(&pod, &["more"], &[]).unwrap();
    let addresses: Vec<String> = attached[0].addresses.iter().map(|it| it.address.to_string()).collect();
    assert_eq!(addresses, ["10.201.0.2"]);
    lab.detach(&pod).unwrap();
    for how in ["garbage", "silent", "index", "version", "crash", "flood"] {
        lab.network("air", "1.0.0", &json!([liar(&lab, &json!({"ADD": how}))]));
        let error = lab.attach(&pod, &["air"], &[]).unwrap_err();
        assert!(!pod.has_record(), "{how}: {error}");
    }
    drop((pod, held));
    lab.assert_no_garbage();
}

#[test]
fn status_comes_before_add() {
    if !inside("status_comes_before_add") {
        return;
    }
    let lab = Lab::new();
    lab.with_liar();
    lab.network("net", "1.1.0", &json!([liar(&lab, &json!({"STATUS": "fail"}))]));
    let pod = lab.pod();
    let error = lab.attach(&pod, &["net"], &[]).unwrap_err();
    assert!(error.to_string().contains("cannot use network 'net'"), "{error}");
    assert_eq!(lab.asked(), "STATUS/");
    assert!(!pod.has_record());
}

#[test]
fn orphaned_plugin_state_is_collected() {
    if !inside("orphaned_plugin_state_is_collected") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.with_liar();
    let mut list = lab.bridge("net", "br-one", "10.201.0.0/24");
    // It adds an address to the result that no interface has, which CHECK detects.
    list.as_array_mut().unwrap().push(liar(&lab, &json!({})));
    lab.network("net", "1.1.0", &list);
    let (one, mut two) = (lab.pod(), lab.pod());
    let (_, held) = lab.attach(&one, &["net"], &[]).unwrap();
    let (_, gone) = lab.attach(&two, &["net"], &[]).unwrap();
    let findings = pod::check(&lab.host).unwrap();
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings.iter().all(|line| line.contains("failed to CHECK")), "{findings:?}");
    assert_eq!(pod::collect_garbage(&lab.host, true).unwrap(), Vec::<String>::new());
    // A lost record: the cache entry leads to the leftovers.
    two.end_process();
    drop(gone);
    fs::remove_file(two.path.join("network.json")).unwrap();
    assert!(pod::check(&lab.host).unwrap().iter().any(|line| line.contains(&two.id)));
    let would = pod::collect_garbage(&lab.host, true).unwrap();
    assert_eq!(would, [format!("interface eth0 of pod {}, created by plugins of network net", two.id)]);
    fs::remove_file(lab.at("log")).unwrap();
    assert_eq!(pod::collect_garbage(&lab.host, false).unwrap(), would);
    assert_eq!(lab.asked(), "DEL/eth0 GC/");
    let calls: Value =
        serde_json::from_str(fs::read_to_string(lab.at("log")).unwrap().lines().last().unwrap()).unwrap();
    assert_eq!(calls["config"]["cni.dev/valid-attachments"], json!([{"containerID": one.id, "ifname": "eth0"}]));
    // Neither are the resources of a pod whose record cannot be read: it may be running.
    let record = fs::read_to_string(one.path.join("network.json")).unwrap();
    fs::write(one.path.join("network.json"), r#"{"version": 9}"#).unwrap();
    fs::remove_file(lab.at("log")).unwrap();
    assert_eq!(pod::collect_garbage(&lab.host, false).unwrap(), Vec::<String>::new());
    assert_eq!(lab.asked(), "GC/");
    let calls: Value = serde_json::from_str(&fs::read_to_string(lab.at("log")).unwrap()).unwrap();
    assert_eq!(calls["config"]["cni.dev/valid-attachments"], json!([{"containerID": one.id, "ifname": "eth0"}]));
    fs::write(one.path.join("network.json"), record).unwrap();
    drop(held);
    lab.end(one);
    lab.assert_no_garbage();
}

#[test]
fn del_receives_the_configuration_of_add() {
    if !inside("del_receives_the_configuration_of_add") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.with_liar();
    let mut list = lab.bridge("net", "br-one", "10.201.0.0/24");
    list.as_array_mut().unwrap().push(liar(&lab, &json!({})));
    lab.network("net", "1.0.0", &list);
    let pod = lab.pod();
    let (_, held) = lab.attach(&pod, &["net"], &[]).unwrap();
    pod::detach(&pod::Pod { id: &pod.id, dir: pod.dir.as_fd() }, Some(&pod.own)).unwrap();
    let log = fs::read_to_string(lab.at("log")).unwrap();
    let calls: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(calls.len(), 2);
    assert!(calls[0]["env"]["CNI_NETNS"].as_str().unwrap().starts_with("/proc/"), "{log}");
    for name in ["CNI_NETNS", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"] {
        assert_eq!(calls[0]["env"][name], calls[1]["env"][name], "{name}");
    }
    drop(held);
    lab.assert_no_garbage();
}

#[test]
fn after_a_reboot_only_plugins_run() {
    if !inside("after_a_reboot_only_plugins_run") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.bridge("net", "br-one", "10.201.0.0/24");
    let mut pod = lab.pod();
    let (_, held) = lab.attach(&pod, &["net"], &[]).unwrap();
    drop(held);
    pod.end_process();
    let record = pod.path.join("network.json");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace(&lab.boot, "00000000-0000-4000-8000-000000000000")).unwrap();
    // The cache was not synced.
    fs::remove_dir_all(lab.at("net/results")).unwrap();
    assert_eq!(pod::list_networks(&lab.host, Some("net")).unwrap()[0].pods.len(), 0);
    lab.detach(&pod).unwrap();
    lab.assert_no_garbage();
}
