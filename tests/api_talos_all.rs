//! All methods of the Talos node API: each answers, and dropped streams leave nothing behind.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::collections::BTreeMap;

use gantry_tests::api::Served;
use gantry_tests::python::{repository, run_script};
use gantry_tests::talos::serve;
use gantry_tests::{Gantry, json_lines, wait_for};
use serde_json::json;

/// The methods that gantryd refuses, and the text of Talos for each.
const REFUSED: [(&str, &str); 17] = [
    ("cluster.ClusterService/HealthCheck", "HealthCheck is only available on control plane nodes"),
    ("inspect.InspectService/ControllerRuntimeDependencies", "ControllerRuntimeDependencies is not implemented"),
    ("machine.MachineService/ApplyConfiguration", "ApplyConfiguration is not implemented"),
    ("machine.MachineService/Bootstrap", "bootstrap is only available on control plane nodes"),
    ("machine.MachineService/EtcdForfeitLeadership", "etcd is only available on control plane nodes"),
    ("machine.MachineService/EtcdLeaveCluster", "etcd is only available on control plane nodes"),
    ("machine.MachineService/EtcdMemberList", "etcd is only available on control plane nodes"),
    ("machine.MachineService/GenerateConfiguration", "GenerateConfiguration is not implemented"),
    ("machine.MachineService/Kubeconfig", "kubeconfig is only available on control plane nodes"),
    ("machine.MachineService/Reboot", "method is not supported in container mode"),
    ("machine.MachineService/Recover", "not supported since Talos 0.9"),
    ("machine.MachineService/Reset", "method is not supported in container mode"),
    ("machine.MachineService/Rollback", "method is not supported in container mode"),
    ("machine.MachineService/Shutdown", "method is not supported in container mode"),
    ("machine.MachineService/Upgrade", "method is not supported in container mode"),
    ("securityapi.SecurityService/Certificate", "Certificate is not implemented"),
    ("securityapi.SecurityService/ReadFile", "ReadFile is not implemented"),
];

#[test]
fn every_method_answers() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let lines = json_lines(&run_script("node_client.py", &[&address, "every"]).ok().stdout);
    let text = |line: &serde_json::Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let answers: BTreeMap<String, (String, String)> =
        lines.iter().map(|line| (text(line, "method"), (text(line, "code"), text(line, "details")))).collect();
    for table in ["v0.6.tsv", "v0.9.tsv"] {
        let rows = std::fs::read_to_string(repository().join("proto/talos").join(table)).unwrap();
        for row in rows.lines().filter(|row| row.starts_with("rpc\t")) {
            let columns: Vec<&str> = row.split('\t').collect();
            let method = format!("{}/{}", columns[1], columns[2]);
            assert!(answers.contains_key(&method), "{table} has {method}");
        }
    }
    for (method, (code, details)) in &answers {
        let refused = REFUSED.iter().find(|(name, _)| name == method).map(|(_, text)| *text);
        match (refused, &code[..]) {
            (Some(text), _) => assert_eq!((&code[..], &details[..]), ("UNIMPLEMENTED", text), "{method}"),
            // The text of an unknown service or method is empty.
            (None, "UNIMPLEMENTED") => assert!(details.ends_with(" is not implemented"), "{method}: {details}"),
            // Talos' code for a server that cannot be asked.
            (None, "UNKNOWN") => assert!(details.starts_with("failed to query NTP server"), "{method}: {details}"),
            (None, code) => {
                let expected = ["OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"];
                assert!(expected.contains(&code), "{method}: {code}: {details}");
            }
        }
    }
    served.end();
}

/// The number of entries of a directory of gantryd in /proc.
fn count(served: &mut Served, dir: &str) -> usize {
    std::fs::read_dir(format!("/proc/{}/{dir}", served.daemon().pid())).unwrap().count()
}

#[test]
fn dropped_streams_leave_nothing_behind() {
    let g = Gantry::new();
    let (mut served, address) = serve(&g);
    let pod = g.detached(&[], &["print", "the end"]);
    g.wait_state(&pod, "exited");
    let streams = [
        ("machine.MachineService/Events", json!({})),
        (
            "machine.MachineService/Logs",
            json!({ "namespace": "system", "id": "gantryd", "tail_lines": -1, "follow": true }),
        ),
        (
            "machine.MachineService/Logs",
            json!({ "namespace": "taloscontainers", "id": pod, "tail_lines": -1, "follow": true }),
        ),
        ("machine.MachineService/List", json!({ "root": "/usr", "recurse": true })),
        ("resource.ResourceService/Watch", json!({ "type": "images" })),
    ];
    let open = |times: &str| {
        for (method, request) in &streams {
            run_script("node_client.py", &["--repeat", times, &address, method, &request.to_string()]).succeeded();
        }
    };
    open("250");
    let (memory, descriptors) = (served.rss_kib(), count(&mut served, "fd"));
    open("1250");
    let grown = served.rss_kib().saturating_sub(memory);
    assert!(grown < 16 << 10, "{grown} KiB more after 6250 streams");
    wait_for("the descriptors to be closed", || (count(&mut served, "fd") <= descriptors + 8).then_some(()));
    served.end();
}
