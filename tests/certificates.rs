//! The lifetime of certificates: those of `gantry pki` end with their authority, and gantryd and `doctor` warn before a
//! certificate expires.

use std::path::{Path, PathBuf};
use std::process::Command;

use gantry_tests::{Authority, Gantry, Out, Validity, json_lines, wait_for};

/// Runs `gantry pki`.
#[track_caller]
fn pki(g: &Gantry, args: &[&str]) -> Out {
    let dir = pki_dir(g).display().to_string();
    g.run(&[&["pki", args[0], "--pki-dir", &dir], &args[1..]].concat())
}

#[track_caller]
fn pki_dir(g: &Gantry) -> PathBuf {
    g.scratch().join("pki")
}

/// The end of a certificate's validity, as openssl writes it.
#[track_caller]
fn end_date(path: &Path) -> String {
    let output = Command::new("openssl").args(["x509", "-noout", "-enddate", "-in"]).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("cannot start openssl: {error}"));
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[track_caller]
fn copy(from: &Path, to: &Path) {
    if let Err(error) = std::fs::copy(from, to) {
        panic!("cannot copy {} to {}: {error}", from.display(), to.display());
    }
}

/// A table of the configuration.
fn table(name: &str, pki: &Path) -> String {
    let pki = pki.display();
    format!("[{name}]\nca = '{pki}/ca.crt'\ncertificate = '{pki}/server.crt'\nkey = '{pki}/server.key'\n")
}

#[test]
fn certificates_end_with_their_authority() {
    let g = Gantry::new();
    let dir = pki_dir(&g);
    let out = pki(&g, &["init", "--ttl=40d"]).ok();
    assert!(out.stderr.is_empty(), "{out}");
    // The default of 365 days, an explicit lifetime, and one that fits.
    for (args, is_clamped) in
        [(&["server"][..], true), (&["client", "ann", "--ttl=41d"], true), (&["client", "bob", "--ttl=39d"], false)]
    {
        let out = pki(&g, args).exits(0);
        assert_eq!(out.stderr.contains("warning: the certificate expires on 20"), is_clamped, "{out}");
        assert_eq!(out.stderr.contains("with its authority"), is_clamped, "{out}");
        let name = args.get(1).unwrap_or(&args[0]);
        let is_same = end_date(&dir.join(format!("{name}.crt"))) == end_date(&dir.join("ca.crt"));
        assert_eq!(is_same, is_clamped, "{name}");
    }
}

#[test]
fn an_expired_authority_issues_nothing() {
    let g = Gantry::new();
    pki(&g, &["init", "--ttl=1s"]).succeeded();
    let out = wait_for("the authority to expire", || {
        let out = pki(&g, &["client", "ann", "--force"]);
        (out.code != 0).then_some(out)
    });
    out.exits(125).stderr_contains(&["the authority in", "ca.crt expired on 20", "gantry pki init"]);
}

#[test]
fn certificates_are_reported_before_they_expire() {
    let g = Gantry::new();
    let dir = pki_dir(&g);
    pki(&g, &["init", "--ttl=40d"]).succeeded();
    pki(&g, &["server", "--ttl=31d"]).succeeded();
    let text = [table("machine-tls", &dir), table("aurae-tls", &dir)].concat();
    let config = g.write("gantryd.toml", &text);
    let doctor = || {
        let out = g.run(&["doctor", "-o", "json", "--config", &config]).ok();
        json_lines(&out.stdout)[0].as_array().cloned().unwrap_or_default()
    };
    let address = format!("unix:{}", g.scratch().join("aurae.sock").display());
    let arguments = ["--config", &config, "--aurae-listen", &address];
    let log = g.serve(&arguments).end();
    assert!(!log.stderr.contains("expire"), "{log}");
    assert_eq!(doctor(), [] as [serde_json::Value; 0]);

    // The server's certificate is renewed with a shorter lifetime while gantryd runs.
    let mut served = g.serve(&arguments);
    pki(&g, &["server", "--ttl=29d", "--force"]).succeeded();
    served.daemon().wait_for_stderr("warning: the certificate of the server '");
    let log = served.end();
    assert!(log.stderr.contains("server.crt expires on 20") && log.stderr.contains("gantry pki server"), "{log}");
    assert!(!log.stderr.contains("the certificate of the authority"), "{log}");

    // Of the authority, too, at the start.
    pki(&g, &["init", "--ttl=10d", "--force"]).succeeded();
    pki(&g, &["server", "--force"]).succeeded();
    let log = g.serve(&arguments).end();
    for part in ["the certificate of the authority 'gantry' in", "ca.crt expires on 20", "server.crt expires on 20"] {
        assert!(log.stderr.contains(part), "{part}: {log}");
    }
    // Both tables name the same files: one finding for each file. Warnings do not change the exit code.
    let findings = doctor();
    assert_eq!(findings.len(), 2, "{findings:?}");
    for finding in &findings {
        assert_eq!(finding["severity"], "warning", "{finding}");
        assert!(finding["what"].as_str().is_some_and(|what| what.contains(".crt expires on 20")), "{finding}");
    }
}

#[test]
fn doctor_fails_on_expired_and_unreadable_certificates() {
    let g = Gantry::new();
    let dir = g.scratch();
    let authority = Authority::new();
    let server = authority.issue("DNS:node.example", Validity::Over);
    copy(&authority.certificate(), &dir.join("ca.crt"));
    copy(&server.certificate, &dir.join("server.crt"));
    let config = g.write("gantryd.toml", &table("aurae-tls", &dir));
    let out = g.run(&["doctor", "--config", &config]).exits(1);
    assert!(out.stdout.contains("error: the certificate of the server '"), "{out}");
    assert!(out.stdout.contains("server.crt expired on 2021-01-01T00:00:00Z"), "{out}");
    let _invalid = g.write("server.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert!(std::fs::remove_file(dir.join("ca.crt")).is_ok());
    let out = g.run(&["doctor", "--config", &config]).exits(1);
    assert!(out.stdout.contains("server.crt: it has an invalid certificate"), "{out}");
    assert!(out.stdout.contains(&format!("error: cannot use {}", dir.join("ca.crt").display())), "{out}");
}
