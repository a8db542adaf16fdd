//! Plans, journals and messages of version 1 must be readable forever: the pods of an older gantry have them on disk.
//! The texts here are those of version 1. They never change; a field added later has a default.

use gantry_model::net::{DnsSpec, HostsSpec};
use gantry_model::spec::{AppOptions, Limits, Seccomp};
use serde_json::Value;

use crate::journal::{self, Fact};
use crate::plan::{Net, Plan};
use crate::start::StartReply;
use crate::{ProcessExit, control};

/// A plan with every field, and every kind of volume, network and filter.
const PLAN: &str = r#"{"version":1,"pod":"83d7258d-9b79-4920-b274-1ac732acba25","pod_dir":"/var/lib/gantry/pods/83d7258d-9b79-4920-b274-1ac732acba25","trees_dir":"/var/lib/gantry/trees","hostname":"web","net":{"networks":{"host":{"state_dir":"/var/lib/gantry/net","pods_dir":"/var/lib/gantry/pods","config_dirs":["/etc/gantry/net.d","/etc/cni/net.d"],"plugin_dirs":["/usr/lib/cni"],"table":"gantry","use_plugins":false,"plugin_limit_ms":60000,"resolver":true},"wanted":[{"name":"default","args":[["IP","10.121.0.9"]]}],"all":false,"ports":[{"host_ip":"127.0.0.1","host_port":8080,"pod_port":80,"count":1,"protocol":"tcp"}]}},"resolv":{"given":{"servers":["10.0.0.1"],"search":["example"],"options":["ndots:1"],"domain":"example"}},"hosts":{"entries":[["10.0.0.2",["db"]]]},"cgroup_parent":"/gantry","volumes_dir":"/var/lib/gantry/volumes","volumes":[{"name":"h","kind":{"host":{"source":"/srv","recursive":true}},"read_only":true},{"name":"n","kind":{"named":{"volume":"data"}},"read_only":false},{"name":"a","kind":"anonymous","read_only":false},{"name":"e","kind":{"empty":{"mode":493,"uid":1,"gid":2}},"read_only":false}],"apps":[{"name":"web","attempt":0,"layers":["AAAA","BBBB"],"image_size":{"bytes":776,"entries":9},"argv":["/bin/app","serve"],"env":["PATH=/bin"],"cwd":"/","user":"app","group":"app","mounts":[{"volume":"n","target":"/data","read_only":false,"seed":true,"declared":true}],"capabilities":["CAP_CHOWN","CAP_NET_RAW"],"required_capabilities":["CAP_NET_RAW"],"ambient_capabilities":["CAP_NET_RAW"],"stop_signal":15,"supplementary_gids":[5],"read_only_root":true,"limits":{"memory":67108864,"cpu_milli":500,"cpu_shares":512,"pids":100},"seccomp":{"remove":{"names":["ptrace"],"errno":1}},"new_privileges":true,"oom_score_adj":-5,"terminal":true,"stdin":true},{"name":"job","attempt":0,"layers":["AAAA"],"image_size":null,"argv":["/bin/app"],"env":[],"cwd":"/","user":null,"group":null,"mounts":[],"capabilities":[],"required_capabilities":[],"ambient_capabilities":[],"stop_signal":15,"supplementary_gids":[],"read_only_root":false,"limits":{"memory":null,"cpu_milli":null,"cpu_shares":null,"pids":null},"seccomp":{"retain":{"names":["read"],"errno":38}},"new_privileges":false,"oom_score_adj":null,"terminal":false,"stdin":false}],"log":{"max_bytes":10485760,"max_files":5},"stop_grace_ms":10000}"#;

/// The same pod's journal, with every fact.
const JOURNAL: &str = r#"{"at":1,"fact":{"ready":{"supervisor":100,"start_ticks":4711,"init":101,"apps":[{"app":"web","attempt":0,"pid":102,"at":1}],"networks":[{"name":"default","interface":"eth0","mac":"0a:58:0a:79:00:04","addresses":[{"address":"10.121.0.4","prefix":16,"gateway":"10.121.0.1"}],"routes":[{"to":"0.0.0.0","prefix":0,"via":"10.121.0.1"}],"dns":{"servers":["10.121.0.1"],"search":[],"options":[],"domain":null},"ports":[{"host_ip":null,"host_port":8080,"pod_port":80,"count":1,"protocol":"udp"}]}]}}}
{"at":2,"fact":{"stopping":{"reason":"stop"}}}
{"at":3,"fact":{"app-exited":{"app":"web","attempt":0,"how":{"signal":15},"oom":false}}}
{"at":3,"fact":{"app-exited":{"app":"job","attempt":0,"how":{"code":7},"oom":true}}}
{"at":4,"fact":{"log-dropped":{"app":"web","bytes":9,"why":"the disk is full"}}}
{"at":5,"fact":{"failed":{"kind":"internal","message":"it failed","app":"web"}}}
{"at":6,"fact":"ended"}
"#;

/// Start replies: ready, and failed.
const REPLIES: [&str; 2] = [
    r#"{"ready":{"supervisor":100,"start_ticks":4711,"init":101,"apps":[{"app":"web","attempt":0,"pid":102,"at":1}],"networks":[{"name":"default","interface":"eth0","mac":null,"addresses":[],"routes":[],"dns":{"servers":[],"search":[],"options":[],"domain":null},"ports":[]}]}}"#,
    r#"{"failed":{"kind":"not-found","message":"no program","app":"web"}}"#,
];

/// Requests to the supervisor of a running pod, which may be newer or older than the client.
const REQUESTS: [&str; 4] = [
    r#""status""#,
    r#"{"stop":{"grace_ms":10000}}"#,
    r#"{"kill":{"signal":9,"app":null}}"#,
    r#"{"reopen-log":{"app":"web"}}"#,
];

/// Whether `new` has everything that `old` has: a field that was renamed would be read as its default.
fn contains(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            // Serialization may leave out what is empty.
            let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            old.iter().all(|(key, old)| new.get(key).map_or(is_empty(old), |new| contains(new, old)))
        }
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| contains(new, old))
        }
        _ => new == old,
    }
}

/// Reads the text, and checks that no part of it was ignored.
fn read<T: serde::de::DeserializeOwned + serde::Serialize>(text: &str) -> T {
    let value: T = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let (new, old) = (serde_json::to_value(&value).unwrap(), serde_json::from_str(text).unwrap());
    assert!(contains(&new, &old), "a part was ignored:\n{text}\n{new}");
    value
}

#[test]
fn the_plan_of_version_1_is_read() {
    let plan: Plan = read(PLAN);
    assert!(matches!((&plan.net, &plan.resolv), (Net::Networks(_), DnsSpec::Given(_))));
    assert_eq!((plan.version, plan.volumes.len(), plan.apps.len()), (1, 4, 2));
    let options = &plan.apps[0].options;
    assert_eq!(
        options.limits,
        Limits {
            memory: Some(64 << 20),
            cpu_milli: Some(500),
            cpu_shares: Some(512),
            pids: Some(100),
            ..Limits::default()
        }
    );
    assert!(options.terminal && options.stdin && options.read_only_root && options.new_privileges);
    assert!(matches!(plan.apps[1].options.seccomp, Seccomp::Retain { errno: 38, .. }));
    for net in ["none", "host"] {
        let text = PLAN.split_once(r#""net":"#).unwrap();
        let rest = text.1.split_once(r#","resolv":"#).unwrap().1;
        for (resolv, hosts) in [("network", "host"), ("host", "host"), ("none", "host")] {
            let rest = rest.split_once(r#","cgroup_parent":"#).unwrap().1;
            let text =
                format!(r#"{}"net":"{net}","resolv":"{resolv}","hosts":"{hosts}","cgroup_parent":{rest}"#, text.0);
            assert_eq!(read::<Plan>(&text).hosts, HostsSpec::Host);
        }
    }
}

/// Fields that were added after the first plans, and every option of an app, may be missing.
#[test]
fn missing_fields_have_their_defaults() {
    let mut plan: Value = serde_json::from_str(PLAN).unwrap();
    let optional = ["resolv", "hosts"];
    optional.iter().for_each(|name| drop(plan.as_object_mut().unwrap().remove(*name)));
    let app = plan["apps"][0].as_object_mut().unwrap();
    let options = serde_json::to_value(AppOptions::default()).unwrap();
    options.as_object().unwrap().keys().for_each(|name| drop(app.remove(name)));
    ["image_size", "required_capabilities", "ambient_capabilities"].iter().for_each(|name| drop(app.remove(*name)));
    plan["apps"][1]["limits"] = serde_json::json!({"memory": 4096});
    let plan: Plan = serde_json::from_value(plan).unwrap();
    assert_eq!((&plan.resolv, &plan.hosts), (&DnsSpec::default(), &HostsSpec::default()));
    assert_eq!((&plan.apps[0].options, plan.apps[0].image_size), (&AppOptions::default(), None));
    assert_eq!(plan.apps[1].options.limits, Limits { memory: Some(4096), ..Limits::default() });
}

#[test]
fn the_journal_of_version_1_is_read() {
    let parsed = journal::parse(JOURNAL.as_bytes());
    assert_eq!((parsed.records.len(), parsed.damaged), (7, 0));
    assert!(parsed.records.iter().all(|record| record.fact != Fact::Unknown));
    JOURNAL.lines().for_each(|line| drop(read::<journal::Record>(line)));
    let Fact::AppExited { how, .. } = &parsed.records[2].fact else { panic!("{parsed:?}") };
    assert_eq!(*how, ProcessExit::Signal(15));
}

#[test]
fn the_messages_of_version_1_are_read() {
    assert!(matches!(read(REPLIES[0]), StartReply::Ready(ready) if ready.networks.len() == 1));
    assert!(matches!(read(REPLIES[1]), StartReply::Failed(_)));
    REQUESTS.iter().for_each(|text| drop(read::<control::Request>(text)));
}
