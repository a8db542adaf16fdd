//! Aurae's API with mutual TLS on its unix socket: the certificates that are accepted, and those that are not.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use gantry_tests::api::Served;
use gantry_tests::python::run_script;
use gantry_tests::{Authority, Gantry, Issued, Out, Validity, json_lines, wait_for};

const STATUS: &str = "observe.Observe/Status";
/// The name that Aurae's client expects of every server.
const SERVER_NAME: &str = "server.unsafe.aurae.io";

/// A gantryd that serves Aurae's API with TLS, and the authority of its clients and its own.
struct Node {
    served: Served,
    address: String,
    authority: Authority,
    pki: PathBuf,
}

#[track_caller]
fn copy(from: &Path, to: &Path) {
    if let Err(error) = std::fs::copy(from, to) {
        panic!("cannot copy {} to {}: {error}", from.display(), to.display());
    }
}

impl Node {
    #[track_caller]
    fn serve(g: &Gantry) -> Self {
        let (authority, pki) = (Authority::new(), g.scratch());
        let server = authority.issue(&format!("DNS:{SERVER_NAME}"), Validity::Now);
        copy(&authority.certificate(), &pki.join("ca.crt"));
        copy(&server.certificate, &pki.join("server.crt"));
        copy(&server.key, &pki.join("server.key"));
        let config = g.write("gantryd.toml", &configuration(&pki));
        let address = format!("unix:{}", g.scratch().join("aurae.sock").display());
        let served = g.serve(&["--config", &config, "--aurae-listen", &address]);
        Self { served, address, authority, pki }
    }

    fn client(&self) -> Issued {
        self.authority.issue_to_member(&[], Validity::Now)
    }

    /// A call with these certificates, to a server of this name.
    fn call(&self, client: Option<&Issued>, server_name: &str, method: &str, request: &str) -> Out {
        let path = |path: &Path| path.display().to_string();
        let mut line = vec!["--ca".to_owned(), path(&self.pki.join("ca.crt")), "--server-name".to_owned()];
        line.push(server_name.to_owned());
        if let Some(Issued { certificate, key }) = client {
            line.extend(["--certificate".to_owned(), path(certificate), "--key".to_owned(), path(key)]);
        }
        line.extend([self.address.clone(), method.to_owned(), request.to_owned()]);
        run_script("node_client.py", &line.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

fn configuration(pki: &Path) -> String {
    let pki = pki.display();
    format!("[aurae-tls]\nca = '{pki}/ca.crt'\ncertificate = '{pki}/server.crt'\nkey = '{pki}/server.key'\n")
}

#[track_caller]
fn assert_refused(out: &Out, why: &str) {
    assert_ne!(out.code, 0, "{why}: {out}");
    let code = json_lines(&out.stdout).first().map(|reply| reply["code"].clone());
    assert_eq!(code, Some("UNAVAILABLE".into()), "{why}: {out}");
}

#[test]
fn only_accepted_certificates_reach_the_api() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let client = node.client();
    let out = node.call(Some(&client), SERVER_NAME, STATUS, "{}").ok();
    assert!(json_lines(&out.stdout)[0]["meta"]["message"].as_str().is_some_and(|text| text.starts_with("ok, ")));

    assert_refused(&node.call(None, SERVER_NAME, STATUS, "{}"), "no certificate");
    let stranger = Authority::new();
    let client_of_stranger = stranger.issue_to_member(&[], Validity::Now);
    assert_refused(&node.call(Some(&client_of_stranger), SERVER_NAME, STATUS, "{}"), "another authority");
    let expired = node.authority.issue_to_member(&[], Validity::Over);
    assert_refused(&node.call(Some(&expired), SERVER_NAME, STATUS, "{}"), "expired");
    // The client refuses a server of another name.
    assert_refused(&node.call(Some(&client), "server.example", STATUS, "{}"), "another server");
    assert_refused(&run_script("node_client.py", &[&node.address, STATUS]), "no TLS");
    node.served.end();
}

/// gRPC's C core accepts no Ed25519 keys.
#[test]
fn certificates_of_gantry_pki_are_accepted() {
    let g = Gantry::new();
    let pki = g.scratch().join("pki");
    let dir = pki.display().to_string();
    for words in [&["init"][..], &["server"], &["client", "ann"]] {
        g.run(&[&["pki"], words, &["--pki-dir", &dir, "--key-type=ecdsa"]].concat()).succeeded();
    }
    let config = g.write("gantryd.toml", &configuration(&pki));
    let address = format!("unix:{}", g.scratch().join("aurae.sock").display());
    let served = g.serve(&["--config", &config, "--aurae-listen", &address]);
    let node = Node { served, address, authority: Authority::new(), pki: pki.clone() };
    let client = Issued { certificate: pki.join("ann.crt"), key: pki.join("ann.key") };
    let out = node.call(Some(&client), SERVER_NAME, STATUS, "{}").ok();
    assert!(json_lines(&out.stdout)[0]["meta"]["message"].as_str().is_some_and(|text| text.starts_with("ok, ")));
    // An authority of one type signs keys of the other.
    for words in [&["client", "bob"][..], &["server", "--force"]] {
        g.run(&[&["pki"], words, &["--pki-dir", &dir]].concat()).succeeded();
        let made = if words[0] == "client" { "bob.crt" } else { "server.crt" };
        let (ca, certificate) = (pki.join("ca.crt"), pki.join(made));
        let checked = Command::new("openssl").arg("verify").arg("-CAfile").args([&ca, &certificate]).output();
        assert!(checked.is_ok_and(|checked| checked.status.success()), "{made}");
    }
    node.served.end();
}

#[test]
fn authorities_are_read_again_without_a_restart() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let other = Authority::new();
    let client = other.issue_to_member(&[], Validity::Now);
    assert_refused(&node.call(Some(&client), SERVER_NAME, STATUS, "{}"), "another authority");
    let read = |path: &Path| std::fs::read(path).unwrap_or_default();
    let both = [read(&node.pki.join("ca.crt")), read(&other.certificate())].concat();
    std::fs::write(node.pki.join("ca.crt"), both).unwrap_or_else(|error| panic!("{error}"));
    wait_for("the authority to be trusted", || {
        (node.call(Some(&client), SERVER_NAME, STATUS, "{}").code == 0).then_some(())
    });
    node.served.end();
}

#[test]
fn calls_are_logged_with_the_certificate_and_user() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let out = node.call(Some(&node.client()), SERVER_NAME, "runtime.Runtime/Exec", r#"{"command": "true"}"#).ok();
    assert!(out.stdout.contains("exit status: 0"), "{out}");
    let log = node.served.end();
    let line = log.stderr.lines().find(|line| line.contains("runtime.Runtime/Exec") && line.contains("peer=tls:"));
    assert!(line.is_some_and(|line| line.contains("@uid=0")), "{log}");
}

#[test]
fn generated_certificates_have_the_name_of_aurae() {
    let g = Gantry::new();
    let pki = g.scratch().join("pki");
    let dir = format!("--pki-dir={}", pki.display());
    g.run(&["pki", "init", &dir]).succeeded();
    g.run(&["pki", "server", &dir]).succeeded();
    let file = pki.join("server.crt").display().to_string();
    let out = Command::new("openssl").args(["x509", "-in", &file, "-noout", "-ext", "subjectAltName"]).output();
    let text = out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    assert!(text.contains(&format!("DNS:{SERVER_NAME}")), "{text}");
}

#[test]
fn keys_that_others_can_read_are_refused() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let (pki, key) = (node.pki.clone(), node.pki.join("server.key"));
    node.served.end();
    let config = g.write("gantryd.toml", &configuration(&pki));
    for (mode, accepted) in [(0o644, false), (0o620, false), (0o640, true)] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&key, permissions).unwrap_or_else(|error| panic!("{error}"));
        let address = format!("unix:{}", g.scratch().join("aurae.sock").display());
        let arguments = ["--config", &config, "--aurae-listen", &address];
        if accepted {
            g.serve(&arguments).end();
        } else {
            let out = g.spawn_command(&mut g.daemon(&arguments)).wait().exits(1);
            out.stderr_contains(&["cannot serve Aurae's API", "server.key", "chmod 600"]);
        }
    }
}
