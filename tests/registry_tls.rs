//! Fetching over TLS and through proxies, from Debian's registry with certificates that the test creates.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::path::PathBuf;

use gantry_fixtures::{Image, Layer};
use gantry_tests::{Authority, DebianRegistry, Gantry, Out, Proxy, ProxyRules, RegistryOptions, Validity};

const FAILED: i32 = 125;

/// A gantry with its own directory of host certificates.
struct Bench {
    g: Gantry,
    certs: PathBuf,
    authority: Authority,
    image: Image,
}

impl Bench {
    fn new() -> Self {
        let g = Gantry::new();
        let certs = g.scratch().join("certs.d");
        g.configure(&format!(
            "[fetch]\ncertificate-dirs = [\"/nonexistent\", \"{}\"]\nretry-for = \"2s\"",
            certs.display()
        ));
        let layer = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
        let image = Image::builder().layer(layer).entrypoint(&["/bin/app"]).build().unwrap();
        Self { g, certs, authority: Authority::new(), image }
    }

    /// A registry with the image `app:1`.
    fn registry(&self, mut options: RegistryOptions) -> DebianRegistry {
        let push = self.authority.trust(&self.g.scratch(), "push");
        self.authority.issue("DNS:client", Validity::Now).as_client(&push);
        options.push_dir = Some(push);
        let registry = DebianRegistry::start_with(options);
        registry.push(&format!("{}:latest", self.g.layout("image", &self.image)), "app:1");
        registry
    }

    fn tls(&self, name: &str, validity: Validity) -> RegistryOptions {
        RegistryOptions { tls: Some(self.authority.issue(name, validity)), ..RegistryOptions::default() }
    }

    fn fetch(&self, name: &str, env: &[(&str, &str)]) -> Out {
        self.run(&["fetch", name], env)
    }

    /// Runs gantry with the proxy variables of `env` and no others.
    fn run(&self, args: &[&str], env: &[(&str, &str)]) -> Out {
        let mut command = self.g.command(args);
        for variable in
            ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"]
        {
            command.env_remove(variable);
        }
        self.g.spawn_command(command.envs(env.iter().copied())).wait()
    }

    #[track_caller]
    fn assert_nothing(&self) {
        assert!(self.g.json(&["image", "list"]).as_array().unwrap().is_empty());
    }
}

#[test]
fn authorities_in_certificate_directories_are_trusted() {
    let bench = Bench::new();
    let registry = bench.registry(bench.tls("IP:127.0.0.1", Validity::Now));
    let name = format!("{}/app:1", registry.host());
    let refused = bench.fetch(&name, &[]).exits(FAILED);
    let place = format!("/nonexistent/{}/ca.crt", registry.host());
    let _ = refused.stderr_contains(&["signed by an authority that this host does not trust", &place]);
    bench.assert_nothing();
    bench.authority.trust(&bench.certs, &registry.host());
    assert_eq!(bench.fetch(&name, &[]).ok().text(), bench.image.id());
    assert_eq!(bench.g.run(&["run", "--net=none", &name, "--", "args", "tls"]).ok().stdout, "[\"tls\"]\n");
}

#[test]
fn certificate_errors_name_the_cause() {
    let bench = Bench::new();
    for (certificate, validity, says) in [
        ("IP:127.0.0.1", Validity::Over, "has expired, or this host's clock is wrong (this host's clock says 20"),
        ("IP:127.0.0.1", Validity::NotYet, "is not valid yet, or this host's clock is wrong"),
        ("DNS:other.example", Validity::Now, "its certificate is for another name"),
    ] {
        let registry = DebianRegistry::start_with(bench.tls(certificate, validity));
        bench.authority.trust(&bench.certs, &registry.host());
        let out = bench.fetch(&format!("{}/app:1", registry.host()), &[]).exits(FAILED);
        let _ = out.stderr_contains(&["no trusted TLS connection", &registry.host(), says]);
    }
    let other = Authority::new();
    let registry = DebianRegistry::start_with(bench.tls("IP:127.0.0.1", Validity::Now));
    other.trust(&bench.certs, &registry.host());
    let out = bench.fetch(&format!("{}/app:1", registry.host()), &[]).exits(FAILED);
    let _ = out.stderr_contains(&["signed by an authority that this host does not trust"]);
    bench.assert_nothing();
}

#[test]
fn client_certificates_are_sent() {
    let bench = Bench::new();
    let client_authority = Some(bench.authority.certificate());
    let registry = bench.registry(RegistryOptions { client_authority, ..bench.tls("IP:127.0.0.1", Validity::Now) });
    let name = format!("{}/app:1", registry.host());
    let place = bench.authority.trust(&bench.certs, &registry.host());
    let out = bench.fetch(&name, &[]).exits(FAILED);
    let _ = out.stderr_contains(&["it asks for a client certificate", "client.cert", "client.key"]);
    Authority::new().issue("DNS:stranger", Validity::Now).as_client(&place);
    let out = bench.fetch(&name, &[]).exits(FAILED);
    let _ = out.stderr_contains(&["does not accept the client certificate", "client.cert"]);
    bench.authority.issue("DNS:client", Validity::Now).as_client(&place);
    assert_eq!(bench.fetch(&name, &[]).ok().text(), bench.image.id());
    // A key of another certificate, and no key.
    bench.authority.issue("DNS:other", Validity::Now).as_client(&bench.g.scratch().join("other"));
    std::fs::copy(bench.g.scratch().join("other/client.key"), place.join("client.key")).unwrap();
    let _ =
        bench.fetch(&name, &[]).exits(FAILED).stderr_contains(&["client.cert", "cannot be used with", "client.key"]);
    std::fs::remove_file(place.join("client.key")).unwrap();
    let _ = bench.fetch(&name, &[]).exits(FAILED).stderr_contains(&["client.key", "No such file"]);
    std::fs::rename(place.join("client.cert"), place.join("client.key")).unwrap();
    let _ = bench.fetch(&name, &[]).exits(FAILED).stderr_contains(&["client.key", ".cert) is missing"]);
}

#[test]
fn credentials_are_sent_over_tls() {
    let bench = Bench::new();
    let registry = bench.registry(RegistryOptions { protected: true, ..bench.tls("IP:127.0.0.1", Validity::Now) });
    bench.authority.trust(&bench.certs, &registry.host());
    let name = format!("{}/app:1", registry.host());
    let advice = format!("gantry login {}", registry.host());
    let _ = bench.fetch(&name, &[]).exits(FAILED).stderr_contains(&["needs credentials", &advice]);
    let file = bench.g.scratch().join("auth.json");
    let path = file.display().to_string();
    // base64 of user:wrong and of user:secret
    for (auth, right) in [("dXNlcjp3cm9uZw==", false), ("dXNlcjpzZWNyZXQ=", true)] {
        std::fs::write(&file, format!(r#"{{"auths":{{"{}":{{"auth":"{auth}"}}}}}}"#, registry.host())).unwrap();
        let out = bench.fetch(&name, &[("REGISTRY_AUTH_FILE", &path)]);
        if right {
            assert_eq!(out.ok().text(), bench.image.id());
        } else {
            let _ = out.exits(FAILED).stderr_contains(&["the credentials from", &path, "are not accepted"]);
        }
    }
}

#[test]
fn plain_http_requires_permission() {
    let bench = Bench::new();
    let registry = bench.registry(RegistryOptions::default());
    let proxy = Proxy::start(&registry.host(), ProxyRules::default());
    let proxied = [("HTTPS_PROXY", proxy.host()), ("HTTP_PROXY", proxy.host())];
    let env: Vec<(&str, &str)> = proxied.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let out = bench.fetch("registry.invalid:5000/app:1", &env).exits(FAILED);
    let _ = out.stderr_contains(&["it speaks plain HTTP, it seems: --insecure-options=http allows that"]);
    bench.assert_nothing();
}

#[test]
fn https_is_tunnelled_through_a_proxy() {
    let bench = Bench::new();
    let registry = bench.registry(bench.tls("DNS:registry.invalid,IP:127.0.0.1", Validity::Now));
    // user:p:w as base64
    let rules = ProxyRules { authorization: Some("Basic dXNlcjpwOnc=".to_owned()), ..ProxyRules::default() };
    let proxy = Proxy::start(&registry.host(), rules);
    bench.authority.trust(&bench.certs, "registry.invalid");
    let name = "registry.invalid/app:1";
    let with = format!("http://user:p%3Aw@{}", proxy.host());
    let without = format!("http://{}", proxy.host());
    let out = bench.fetch(name, &[("HTTPS_PROXY", &without)]).exits(FAILED);
    let _ = out.stderr_contains(&["the proxy", &proxy.host(), "HTTPS_PROXY", "407"]);
    assert_eq!(bench.fetch(name, &[("https_proxy", &with)]).ok().text(), bench.image.id());
    assert!(proxy.requests().contains(&"CONNECT registry.invalid:443 HTTP/1.1".to_owned()), "{:?}", proxy.requests());
}

#[test]
fn plain_http_through_a_proxy_uses_no_tunnel() {
    let bench = Bench::new();
    let registry = bench.registry(RegistryOptions::default());
    // user:p as base64
    let rules = ProxyRules { connect_to_443_only: true, authorization: Some("Basic dXNlcjpw".to_owned()) };
    let proxy = Proxy::start(&registry.host(), rules);
    let url = format!("http://user:p@{}", proxy.host());
    let mut command = bench.g.command(&["--insecure-options=http", "fetch", "registry.invalid:5000/app:1"]);
    let command =
        command.env("HTTP_PROXY", &url).env("HTTPS_PROXY", &url).env_remove("NO_PROXY").env_remove("no_proxy");
    let out = bench.g.spawn_command(command).wait();
    assert_eq!(out.ok().text(), bench.image.id());
    let requests = proxy.requests();
    let manifest = "GET http://registry.invalid:5000/v2/app/manifests/1 HTTP/1.1";
    assert!(requests.iter().any(|line| line == manifest), "{requests:?}");
    let out = bench
        .g
        .spawn_command(
            bench
                .g
                .command(&["--insecure-options=http", "fetch", "registry.invalid:5000/app:1"])
                .env("HTTP_PROXY", proxy.host())
                .env("HTTPS_PROXY", proxy.host()),
        )
        .wait()
        .exits(FAILED);
    let _ = out.stderr_contains(&["the proxy", &proxy.host(), "407"]);
}

#[test]
fn insecure_options_do_not_apply_to_proxies() {
    let bench = Bench::new();
    let registry = bench.registry(bench.tls("DNS:registry.invalid,IP:127.0.0.1", Validity::Now));
    let secure = Proxy::start(&registry.host(), ProxyRules { connect_to_443_only: true, ..ProxyRules::default() });
    let plain = Proxy::start(&registry.host(), ProxyRules::default());
    let (secure_url, plain_url) = (secure.host(), plain.host());
    let env = [("HTTPS_PROXY", secure_url.as_str()), ("HTTP_PROXY", plain_url.as_str())];
    let fetch = |name: &str, env: &[(&str, &str)]| bench.run(&["--insecure-options=http,tls", "fetch", name], env);

    assert_eq!(fetch("registry.invalid/app:1", &env).ok().text(), bench.image.id());
    let tunnel = "CONNECT registry.invalid:443 HTTP/1.1";
    let requests = secure.requests();
    assert!(!requests.is_empty() && requests.iter().all(|line| line == tunnel), "{requests:?}");

    // The proxy refuses the tunnel. Neither the proxy for plain HTTP nor a direct connection takes its place.
    for env in [&env[..], &env[..1]] {
        let out = fetch("registry.invalid:5000/app:1", env).exits(FAILED);
        let _ = out.stderr_contains(&["the proxy", &secure_url, "HTTPS_PROXY", "403"]);
    }
    assert!(plain.requests().is_empty(), "{:?}", plain.requests());
}

#[test]
fn unusable_proxies_are_named() {
    let bench = Bench::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dead = format!("http://127.0.0.1:{}", free.port());
    let name = "registry.invalid/app:1";
    let out = bench.fetch(name, &[("HTTPS_PROXY", &dead)]).exits(FAILED);
    let _ = out.stderr_contains(&[
        "registry.invalid",
        &format!("through the proxy 127.0.0.1:{}", free.port()),
        "HTTPS_PROXY",
        "refused",
    ]);
    let out = bench.fetch(name, &[("HTTPS_PROXY", "http://proxy.invalid:3128")]).exits(FAILED);
    let _ = out.stderr_contains(&["the name of the proxy proxy.invalid:3128"]);
    let out = bench.fetch(name, &[("HTTPS_PROXY", "bogus://u:hunter2@x")]).exits(FAILED);
    assert!(!out.stderr.contains("hunter2"), "{out}");
    let _ = out.stderr_contains(&["HTTPS_PROXY", "its scheme is 'bogus'"]);
    // Without the proxy, the name cannot be resolved.
    for no_proxy in ["registry.invalid", ".invalid", "*"] {
        let out = bench.fetch(name, &[("HTTPS_PROXY", &dead), ("NO_PROXY", no_proxy)]).exits(FAILED);
        let _ = out.stderr_contains(&["cannot resolve the host name registry.invalid"]);
    }
    let out =
        bench.fetch("192.0.2.1:5000/app:1", &[("HTTPS_PROXY", &dead), ("NO_PROXY", "192.0.2.0/99")]).exits(FAILED);
    let _ = out.stderr_contains(&["NO_PROXY", "'192.0.2.0/99' is not a network"]);
    bench.assert_nothing();
}

#[test]
fn unresolvable_names_are_not_retried() {
    let bench = Bench::new();
    let out = bench.fetch("registry.invalid/app:1", &[]).exits(FAILED);
    assert!(!out.stderr.contains("retrying"), "{out}");
    let _ = out.stderr_contains(&["cannot resolve the host name registry.invalid"]);
}
