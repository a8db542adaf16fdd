//! The Talos node API over TCP: certificates, roles, and what happens when they are refused.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;

use gantry_proto::talos::machine::{RestartRequest, RestartResponse, VersionResponse};
use gantry_tests::api::Served;
use gantry_tests::python::{run_script, spawn_script};
use gantry_tests::talos::stream_bytes;
use gantry_tests::tls_client::{self, ClientFiles};
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
const FOR_OPERATORS: [&str; 10] = [
    "machine.MachineService/Copy",
    "machine.MachineService/ImagePull",
    "machine.MachineService/Read",
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
        let out = run_script("node_client.py", &line.iter().map(String::as_str).collect::<Vec<_>>()).ok();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let results = json_lines(&out.stdout);
        assert!(results.len() > 60, "{results:?}");
        results.iter().map(|one| (text(&one["method"]), (text(&one["code"]), text(&one["details"])))).collect()
    }

    /// The code of a call.
    #[track_caller]
    fn call(&self, client: &Issued, method: &str) -> String {
        let line = self.line(Some(client), &[method]);
        let out = run_script("node_client.py", &line.iter().map(String::as_str).collect::<Vec<_>>());
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
fn operators_read_the_logs_of_pods_only() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let pod = g.detached(&["--name=one", "--env=PASSWORD=hunter2"], &["print", "some output"]);
    g.wait_state(&pod, "exited");
    let [reader, operator, admin] =
        ["os:reader", "os:operator", "os:admin"].map(|role| node.clients.issue_to_member(&[role], Validity::Now));
    let call = |client: &Issued, method: &str, field: &str, path: &Path| {
        let request = json!({ field: path }).to_string();
        let line = node.line(Some(client), &[&format!("machine.MachineService/{method}"), &request]);
        let out = run_script("node_client.py", &line.iter().map(String::as_str).collect::<Vec<_>>());
        match out.code {
            0 => Ok(stream_bytes(&json_lines(&out.stdout))),
            _ => Err(json_lines(&out.stdout)[0]["code"].as_str().unwrap_or_default().to_owned()),
        }
    };
    let denied = || Err("PERMISSION_DENIED".to_owned());
    let dir = g.dir().join("pods").join(&pod);
    let log = dir.join("logs/one/0.log");
    let text = std::fs::read(&log).unwrap_or_default();
    assert!(String::from_utf8_lossy(&text).contains("some output"));
    assert_eq!(call(&reader, "Read", "path", &log), denied());
    assert_eq!(call(&operator, "Read", "path", &log), Ok(text.clone()));
    assert_eq!(call(&admin, "Read", "path", &log), Ok(text));
    // The plan has the environment.
    let plan = dir.join("plan.json");
    assert_eq!(call(&operator, "Read", "path", &plan), denied());
    let plan = call(&admin, "Read", "path", &plan).unwrap_or_default();
    assert!(String::from_utf8_lossy(&plan).contains("hunter2"));
    for path in [&g.dir().join("gantry.db"), &g.scratch().join("server.key"), Path::new("/etc/passwd")] {
        assert_eq!(call(&operator, "Read", "path", path), denied(), "{}", path.display());
        assert!(call(&admin, "Read", "path", path).is_ok(), "{}", path.display());
    }
    assert_eq!(call(&reader, "Copy", "root_path", &dir.join("logs")), denied());
    assert_eq!(call(&operator, "Copy", "root_path", &dir), denied());
    let archive = g.scratch().join("logs.tar.gz");
    let bytes = call(&operator, "Copy", "root_path", &dir.join("logs")).unwrap_or_default();
    std::fs::write(&archive, bytes).unwrap_or_else(|error| panic!("cannot write the archive: {error}"));
    let listed = std::process::Command::new("tar").arg("-tzf").arg(&archive).output();
    let listed = listed.unwrap_or_else(|error| panic!("cannot start tar: {error}"));
    assert!(String::from_utf8_lossy(&listed.stdout).lines().any(|name| name == "one/0.log"), "{listed:?}");
    node.served.end();
    g.remove_all();
}

#[test]
fn a_removed_authority_ends_open_and_new_calls() {
    let g = Gantry::new();
    let mut node = Node::serve(&g);
    let other = Authority::new();
    let (old, new) =
        [&node.clients, &other].map(|authority| authority.issue_to_member(&["os:reader"], Validity::Now)).into();
    assert_eq!((node.call(&old, VERSION), node.call(&new, VERSION)), ("OK".to_owned(), "UNAVAILABLE".to_owned()));
    let line = node.line(Some(&old), &["machine.MachineService/Events"]);
    let mut stream = spawn_script("node_client.py", &line.iter().map(String::as_str).collect::<Vec<_>>());
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
    for (method, (code, details)) in node.call_every(Some(&old)) {
        assert_eq!(code, "UNAVAILABLE", "{method} {details}");
    }
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
    node.served.daemon().wait_for_stderr("configuration reloaded");
    assert_eq!((node.call(&old, VERSION), node.call(&new, VERSION)), ("OK".to_owned(), "UNAVAILABLE".to_owned()));
    // Without certificates in the configuration, no client is accepted.
    let _removed = g.write("gantryd.toml", "gc-interval = '1h'\n");
    node.served.daemon().signal(Signal::HUP);
    wait_for("the first authority to be removed", || (node.call(&old, VERSION) == "UNAVAILABLE").then_some(()));
    for (method, (code, details)) in node.call_every(Some(&old)) {
        assert_eq!(code, "UNAVAILABLE", "{method} {details}");
    }
    drop(node.served);
}

#[test]
fn a_renewed_server_certificate_needs_no_restart() {
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

/// Runs `gantry pki`.
#[track_caller]
fn pki(g: &Gantry, args: &[&str]) -> gantry_tests::Out {
    let dir = g.scratch().join("pki").display().to_string();
    g.run(&[&["pki", args[0], "--pki-dir", &dir], &args[1..]].concat())
}

#[track_caller]
fn mode(path: &Path) -> u32 {
    let metadata = std::fs::metadata(path).unwrap_or_else(|error| panic!("no {}: {error}", path.display()));
    std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o7777
}

/// The output of openssl.
#[track_caller]
fn openssl(args: &[&str]) -> String {
    let output = std::process::Command::new("openssl").args(args).output();
    let output = output.unwrap_or_else(|error| panic!("cannot start openssl: {error}"));
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn pki_makes_certificates_that_others_accept() {
    let g = Gantry::new();
    pki(&g, &["server", "127.0.0.1"]).exits(125).stderr_contains(&["there is no authority", "gantry pki init"]);
    let out = pki(&g, &["init"]).ok();
    let dir = g.scratch().join("pki");
    assert_eq!(out.stdout, format!("{0}/ca.key\n{0}/ca.crt\n", dir.display()));
    pki(&g, &["server", "node.example", "192.0.2.7", "fd00::7", "--ttl=1h"]).succeeded();
    pki(&g, &["client", "ann", "--role=os:operator", "--role=os:reader", "--endpoint=192.0.2.7"]).succeeded();
    for (name, want) in [("ca.key", 0o600), ("server.key", 0o600), ("ann.key", 0o600), ("ann.talosconfig", 0o600)] {
        assert_eq!(mode(&dir.join(name)), want, "{name}");
    }
    assert_eq!((mode(&dir), mode(&dir.join("ca.crt"))), (0o700, 0o644));
    // Existing files are not overwritten without --force.
    let file = |name: &str| dir.join(name).display().to_string();
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let before = read("ca.key");
    pki(&g, &["init"]).exits(125).stderr_contains(&["ca.key exists already", "--force"]);
    pki(&g, &["client", "ann"]).exits(125).stderr_contains(&["exists already"]);
    assert_eq!(read("ca.key"), before);
    // As OpenSSL reads them.
    let (authority, server, client) = (file("ca.crt"), file("server.crt"), file("ann.crt"));
    assert!(
        openssl(&["verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", &authority, &server]).ends_with("OK\n")
    );
    assert!(
        openssl(&["verify", "-x509_strict", "-purpose", "sslclient", "-CAfile", &authority, &client]).ends_with("OK\n")
    );
    let text = openssl(&["x509", "-noout", "-text", "-in", &server]);
    for part in
        ["DNS:node.example", "DNS:localhost", "IP Address:192.0.2.7", "IP Address:FD00:0:0:0:0:0:0:7", "ED25519"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let subject = openssl(&["x509", "-noout", "-subject", "-nameopt", "multiline", "-in", &client]);
    assert!(subject.contains("os:operator") && subject.contains("os:reader") && subject.contains("ann"), "{subject}");
    let serials = [&server, &client].map(|path| openssl(&["x509", "-noout", "-serial", "-in", path]));
    assert!(serials[0] != serials[1] && serials.iter().all(|serial| serial.trim_end().len() == 7 + 32), "{serials:?}");
    // The key of the configuration of talosctl has Talos' label.
    let config = read("ann.talosconfig");
    let value = |key: &str| {
        let line = config.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap_or_default();
        let path = g.write("encoded", &format!("{}\n", line.trim_start_matches(':').trim()));
        openssl(&["base64", "-d", "-A", "-in", &path])
    };
    assert_eq!((value("ca"), value("crt")), (read("ca.crt"), read("ann.crt")), "{config}");
    assert_eq!(value("key"), read("ann.key").replace("PRIVATE KEY", "ED25519 PRIVATE KEY"));
    assert!(config.contains("- \"192.0.2.7\"\n"), "{config}");
    // The authority is replaced as a whole.
    pki(&g, &["init", "--force", "--name=second"]).succeeded();
    assert_ne!(read("ca.key"), before);
    assert_eq!(mode(&dir.join("ca.key")), 0o600);
    pki(&g, &["client", "ca"]).exits(125).stderr_contains(&["a client cannot be called 'ca'"]);
    pki(&g, &["client", "../x"]).exits(125).stderr_contains(&["is not a name"]);
    pki(&g, &["client", "bob", "--ttl=0"]).exits(125).stderr_contains(&["one second to a hundred years"]);
}

#[test]
fn certificates_of_pki_serve_and_identify() {
    let g = Gantry::new();
    let dir = g.scratch().join("pki");
    pki(&g, &["init"]).succeeded();
    pki(&g, &["server"]).succeeded();
    // The label that Talos gives Ed25519 keys.
    let key = std::fs::read_to_string(dir.join("server.key")).unwrap_or_default();
    let _labelled = g.write("pki/server.key", &key.replace("PRIVATE KEY", "ED25519 PRIVATE KEY"));
    let config = g.write("gantryd.toml", &configuration(&dir, "ca.crt"));
    let served = g.serve(&["--config", &config, "--machine-listen", "127.0.0.1:0"]);
    let addresses = served.addresses();
    let address = addresses.iter().find_map(|one| one.strip_prefix("tcp:")).unwrap_or_default();
    let runtime = tokio::runtime::Runtime::new().unwrap_or_else(|error| panic!("no runtime: {error}"));
    for (name, role, may_restart) in [("ann", "os:reader", false), ("bob", "os:operator", true)] {
        pki(&g, &["client", name, "--role", role]).succeeded();
        let files = ["ca.crt".to_owned(), format!("{name}.crt"), format!("{name}.key")].map(|name| dir.join(name));
        let [authority, certificate, key] = &files;
        let _inside = runtime.enter();
        let channel = tls_client::connect(address, ClientFiles { authority, certificate, key });
        let version = tls_client::call(channel.clone(), "/machine.MachineService/Version", ());
        let version: VersionResponse = runtime.block_on(version).unwrap_or_else(|status| panic!("{name}: {status}"));
        assert_eq!(version.messages.len(), 1);
        let request =
            RestartRequest { namespace: "taloscontainers".into(), id: "x".into(), ..RestartRequest::default() };
        let restart = tls_client::call(channel, "/machine.MachineService/Restart", request);
        let Err(status): Result<RestartResponse, _> = runtime.block_on(restart) else { panic!("{name} restarted x") };
        assert_eq!(status.message() != "not authorized", may_restart, "{name}: {status}");
    }
    served.end();
}

#[test]
fn calls_that_change_something_are_audited() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let pod = g.detached(&[], &["sleep", "600"]);
    let operator = node.clients.issue_to_member(&["os:operator"], Validity::Now);
    let reader = node.clients.issue_to_member(&["os:reader"], Validity::Now);
    let request = json!({ "namespace": "taloscontainers", "id": pod }).to_string();
    for (client, code) in [(&operator, 0), (&reader, FAILED)] {
        let line = node.line(Some(client), &["machine.MachineService/Restart", &request]);
        let out = run_script("node_client.py", &line.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(out.code, code, "{out}");
    }
    assert_eq!(node.call(&operator, "machine.MachineService/Reboot"), "UNIMPLEMENTED");
    assert_eq!(node.call(&operator, VERSION), "OK");
    let events = g.run(&["events", "--filter=type=node-called", "-o", "json"]).ok();
    let calls: Vec<(String, String, String)> = json_lines(&events.stdout)
        .iter()
        .map(|event| {
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
            assert!(text(&event["name"]).starts_with("tls:") && event["data"]["roles"] == "os:operator", "{event}");
            (text(&event["id"]), text(&event["data"]["outcome"]), text(&event["data"]["request"]))
        })
        .collect();
    // The refused call and the one that changes nothing have no event.
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert_eq!((&calls[0].0[..], &calls[0].1[..]), ("machine.MachineService/Restart", "OK"));
    assert!(calls[0].2.contains(&pod), "{calls:?}");
    assert_eq!((&calls[1].0[..], &calls[1].1[..]), ("machine.MachineService/Reboot", "UNIMPLEMENTED"));
    let out = node.served.end();
    let lines: Vec<&str> = out.stderr.lines().filter(|line| line.contains("roles=")).collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(lines[0].contains("outcome=\"OK\"") && lines[0].contains("os:operator"), "{out}");
    assert!(lines[1].contains("outcome=\"PERMISSION_DENIED\"") && lines[1].contains("os:reader"), "{out}");
    g.remove_all();
}

#[test]
fn machine_control_is_for_administrators() {
    let g = Gantry::new();
    let (rebooted, ended) = (g.scratch().join("rebooted"), g.scratch().join("ended"));
    let mut node = Node::serve(&g);
    let control = |is_permitted: bool| {
        format!(
            "machine-control = {is_permitted}\nreboot-command = ['/usr/bin/touch', '{}']\n\
             shutdown-command = ['/usr/bin/touch', '{}']\n{}",
            rebooted.display(),
            ended.display(),
            configuration(&g.scratch(), "ca.crt")
        )
    };
    let [admin, operator] =
        ["os:admin", "os:operator"].map(|role| node.clients.issue_to_member(&[role], Validity::Now));
    for (is_permitted, codes) in [(true, ["OK", "PERMISSION_DENIED"]), (false, ["UNIMPLEMENTED"; 2])] {
        let _changed = g.write("gantryd.toml", &control(is_permitted));
        let daemon = node.served.daemon();
        let count = daemon.stderr().matches("configuration reloaded").count();
        daemon.signal(Signal::HUP);
        wait_for("the configuration", || {
            (node.served.daemon().stderr().matches("configuration reloaded").count() > count).then_some(())
        });
        let got = [&operator, &admin].map(|client| node.call(client, "machine.MachineService/Reboot"));
        assert_eq!([&got[1][..], &got[0][..]], codes);
    }
    assert!(rebooted.exists() && !ended.exists());
    node.served.end();
}
