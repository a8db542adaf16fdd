//! The Talos node API over TCP: certificates, roles, and what happens when they are refused.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;

use gantry_tests::api::Served;
use gantry_tests::python::{run_script, spawn_script};
use gantry_tests::{Authority, Gantry, Issued, Validity, json_lines, wait_for};
use rustix::process::Signal;
use serde_json::json;

/// The exit code of a client whose call failed.
const FAILED: i32 = 3;
/// Methods that readers may not call.
const NOT_FOR_READERS: [&str; 24] = [
    "machine.MachineService/ApplyConfiguration",
    "machine.MachineService/Bootstrap",
    "machine.MachineService/Copy",
    "machine.MachineService/EtcdForfeitLeadership",
    "machine.MachineService/EtcdLeaveCluster",
    "machine.MachineService/EtcdMemberList",
    "machine.MachineService/GenerateConfiguration",
    "machine.MachineService/ImagePull",
    "machine.MachineService/Kubeconfig",
    "machine.MachineService/Read",
    "machine.MachineService/Reboot",
    "machine.MachineService/Recover",
    "machine.MachineService/Reset",
    "machine.MachineService/Restart",
    "machine.MachineService/Rollback",
    "machine.MachineService/ServiceRestart",
    "machine.MachineService/ServiceStart",
    "machine.MachineService/ServiceStop",
    "machine.MachineService/Shutdown",
    "machine.MachineService/Upgrade",
    "os.OSService/Restart",
    "securityapi.SecurityService/Certificate",
    "securityapi.SecurityService/ReadFile",
    "securityapi.SecurityService/WriteFile",
];
/// Those of them that operators may call.
const FOR_OPERATORS: [&str; 8] = [
    "machine.MachineService/ImagePull",
    "machine.MachineService/Reboot",
    "machine.MachineService/Restart",
    "machine.MachineService/ServiceRestart",
    "machine.MachineService/ServiceStart",
    "machine.MachineService/ServiceStop",
    "machine.MachineService/Shutdown",
    "os.OSService/Restart",
];

/// A gantryd that serves the Talos node API over TCP, and its certificates.
struct Node {
    served: Served,
    address: String,
    server_authority: Authority,
    clients: Authority,
}

impl Node {
    #[track_caller]
    fn serve(g: &Gantry) -> Self {
        let (server_authority, clients) = (Authority::new(), Authority::new());
        let server = server_authority.issue("IP:127.0.0.1", Validity::Now);
        let pki = g.scratch();
        copy(&server.certificate, &pki.join("server.crt"));
        copy(&server.key, &pki.join("server.key"));
        copy(&clients.certificate(), &pki.join("ca.crt"));
        let config = g.write("gantryd.toml", &configuration(&pki, "ca.crt"));
        let served = g.serve(&["--config", &config, "--machine-listen", "127.0.0.1:0"]);
        let address = served.addresses().iter().find_map(|one| one.strip_prefix("tcp:").map(str::to_owned));
        let address = address.unwrap_or_else(|| panic!("no TCP address: {:?}", served.addresses()));
        Self { served, address, server_authority, clients }
    }

    fn line(&self, client: Option<&Issued>, rest: &[&str]) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let mut line = vec!["--ca".to_owned(), path(&self.server_authority.certificate())];
        if let Some(Issued { certificate, key }) = client {
            line.extend(["--certificate".to_owned(), path(certificate), "--key".to_owned(), path(key)]);
        }
        line.push(self.address.clone());
        line.extend(rest.iter().map(ToString::to_string));
        line
    }

    /// The codes and texts of all methods, each called with an empty request.
    #[track_caller]
    fn call_every(&self, client: Option<&Issued>) -> BTreeMap<String, (String, String)> {
        let line = self.line(client, &["every"]);
        let out = run_script("talos.py", &line.iter().map(String::as_str).collect::<Vec<_>>()).ok();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let results = json_lines(&out.stdout);
        assert!(results.len() > 60, "{results:?}");
        results.iter().map(|one| (text(&one["method"]), (text(&one["code"]), text(&one["details"])))).collect()
    }

    /// The code of a call.
    #[track_caller]
    fn call(&self, client: &Issued, method: &str) -> String {
        let line = self.line(Some(client), &[method]);
        let out = run_script("talos.py", &line.iter().map(String::as_str).collect::<Vec<_>>());
        if out.code == 0 {
            return "OK".to_owned();
        }
        let out = out.exits(FAILED);
        json_lines(&out.stdout)[0]["code"].as_str().unwrap_or_default().to_owned()
    }
}

fn configuration(pki: &Path, authorities: &str) -> String {
    let pki = pki.display();
    format!(
        "gc-interval = '1h'\n[machine-tls]\nca = '{pki}/{authorities}'\ncertificate = '{pki}/server.crt'\n\
         key = '{pki}/server.key'\n"
    )
}

#[track_caller]
fn copy(from: &Path, to: &Path) {
    if let Err(error) = std::fs::copy(from, to) {
        panic!("cannot copy {} to {}: {error}", from.display(), to.display());
    }
}

const VERSION: &str = "machine.MachineService/Version";

#[test]
fn certificates_that_are_not_accepted_reach_no_method() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let stranger = Authority::new();
    let clients = [
        None,
        Some(stranger.issue_to_member(&["os:admin"], Validity::Now)),
        Some(node.clients.issue_to_member(&["os:admin"], Validity::Over)),
        Some(node.clients.issue_to_member(&["os:admin"], Validity::NotYet)),
    ];
    for client in clients {
        for (method, (code, details)) in node.call_every(client.as_ref()) {
            assert_eq!(code, "UNAVAILABLE", "{method} {details} {client:?}");
        }
    }
    node.served.end();
}

#[test]
fn roles_of_the_certificate_decide() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let none = node.clients.issue_to_member(&["os:impersonator", "people"], Validity::Now);
    for (method, (code, details)) in node.call_every(Some(&none)) {
        assert_eq!((&code[..], &details[..]), ("PERMISSION_DENIED", "not authorized"), "{method}");
    }
    let (reader, operator) = (&["people", "os:reader"][..], &["os:operator"][..]);
    for (organizations, is_operator) in [(reader, false), (operator, true)] {
        let client = node.clients.issue_to_member(organizations, Validity::Now);
        for (method, (code, details)) in node.call_every(Some(&client)) {
            let refused =
                NOT_FOR_READERS.contains(&&method[..]) && !(is_operator && FOR_OPERATORS.contains(&&method[..]));
            assert_eq!(details == "not authorized", refused, "{method} {code} {organizations:?}");
            assert_eq!(code == "PERMISSION_DENIED", refused, "{method} {details}");
        }
    }
    let admin = node.clients.issue_to_member(&["os:admin"], Validity::Now);
    assert_eq!(node.call(&admin, "machine.MachineService/Reset"), "UNIMPLEMENTED");
    node.served.end();
}

#[test]
fn a_removed_authority_admits_no_new_and_no_open_calls() {
    let g = Gantry::new();
    let mut node = Node::serve(&g);
    let other = Authority::new();
    let (old, new) =
        [&node.clients, &other].map(|authority| authority.issue_to_member(&["os:reader"], Validity::Now)).into();
    assert_eq!((node.call(&old, VERSION), node.call(&new, VERSION)), ("OK".to_owned(), "UNAVAILABLE".to_owned()));
    let line = node.line(Some(&old), &["machine.MachineService/Events"]);
    let mut stream = spawn_script("talos.py", &line.iter().map(String::as_str).collect::<Vec<_>>());
    stream.wait_for_stdout("\"id\"");
    // Both, then only the other one.
    let file = g.scratch().join("ca.crt");
    let texts =
        [node.clients.certificate(), other.certificate()].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let _both = g.write("ca.crt", &texts.concat());
    wait_for("the second authority to be accepted", || (node.call(&new, VERSION) == "OK").then_some(()));
    assert!(!stream.has_ended(), "the first authority is still accepted");
    assert_eq!(node.call(&old, VERSION), "OK");
    let _other = g.write("ca.crt", &texts[1]);
    let out = stream.wait().exits(FAILED);
    assert_eq!(json_lines(&out.stdout).pop().map(|last| last["code"].clone()), Some(json!("UNAVAILABLE")), "{out}");
    assert_eq!((node.call(&old, VERSION), node.call(&new, VERSION)), ("UNAVAILABLE".to_owned(), "OK".to_owned()));
    // An invalid file changes nothing; a missing one removes all authorities.
    let _invalid = g.write("ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    node.served.daemon().wait_for_stderr("the previous one stays in effect");
    assert_eq!(node.call(&new, VERSION), "OK");
    std::fs::remove_file(&file).unwrap_or_else(|error| panic!("cannot remove {}: {error}", file.display()));
    node.served.daemon().wait_for_stderr("no client certificate is accepted");
    assert_eq!(node.call(&new, VERSION), "UNAVAILABLE");
    // The configuration names another file.
    let _back = g.write("second.crt", &texts[0]);
    let _changed = g.write("gantryd.toml", &configuration(&g.scratch(), "second.crt"));
    node.served.daemon().signal(Signal::HUP);
    node.served.daemon().wait_for_stderr("configuration read again");
    assert_eq!((node.call(&old, VERSION), node.call(&new, VERSION)), ("OK".to_owned(), "UNAVAILABLE".to_owned()));
    // Without certificates in the configuration, no client is accepted.
    let _removed = g.write("gantryd.toml", "gc-interval = '1h'\n");
    node.served.daemon().signal(Signal::HUP);
    wait_for("the first authority to be removed", || (node.call(&old, VERSION) == "UNAVAILABLE").then_some(()));
    drop(node.served);
}

#[test]
fn a_renewed_server_certificate_is_used_without_a_restart() {
    let g = Gantry::new();
    let mut node = Node::serve(&g);
    let client = node.clients.issue_to_member(&["os:reader"], Validity::Now);
    assert_eq!(node.call(&client, VERSION), "OK");
    node.server_authority = Authority::new();
    assert_eq!(node.call(&client, VERSION), "UNAVAILABLE");
    let renewed = node.server_authority.issue("IP:127.0.0.1", Validity::Now);
    copy(&renewed.certificate, &g.scratch().join("server.crt"));
    copy(&renewed.key, &g.scratch().join("server.key"));
    wait_for("the new certificate", || (node.call(&client, VERSION) == "OK").then_some(()));
    node.served.end();
}

#[test]
fn silent_clients_delay_no_other() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let client = node.clients.issue_to_member(&["os:reader"], Validity::Now);
    let connect = |_| TcpStream::connect(&node.address).unwrap_or_else(|error| panic!("cannot connect: {error}"));
    let silent: Vec<TcpStream> = (0..100).map(connect).collect();
    assert_eq!(node.call(&client, VERSION), "OK");
    // The deadline of the handshake closes them.
    for mut stream in silent {
        let read = std::io::Read::read(&mut stream, &mut [0; 1]);
        assert!(!matches!(read, Ok(1..)), "{read:?}");
    }
    node.served.end();
}

#[test]
fn tcp_needs_certificates() {
    let g = Gantry::new();
    let out = g.spawn_command(&mut g.daemon(&["--machine-listen", "127.0.0.1:0"])).wait().exits(1);
    out.stderr_contains(&["'machine-listen' names tcp:127.0.0.1:0, but TCP needs mutual TLS", "gantry pki"]);
    let config = g.write("bad.toml", &configuration(&g.scratch(), "none.crt"));
    let out = g.spawn_command(&mut g.daemon(&["--config", &config, "--machine-listen", "127.0.0.1:0"])).wait().exits(1);
    out.stderr_contains(&["cannot serve the Talos node API over TCP", "none.crt"]);
}
