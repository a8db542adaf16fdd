//! Mirrors and blocked names: `hosts.toml` and `registries.conf`, with Debian's registry and a faulty one.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::path::PathBuf;

use gantry_fixtures::{Image, Layer};
use gantry_tests::faulty_registry::{Access, FaultyRegistry};
use gantry_tests::{Authority, DebianRegistry, Gantry, Out, RegistryOptions, Validity, faulty_registry};

const FAILED: i32 = 125;

/// A registry that does not exist, so that only its mirrors can serve its images.
const REGISTRY: &str = "registry.invalid";

/// A gantry with its own configuration of mirrors.
struct Bench {
    g: Gantry,
    dir: PathBuf,
    image: Image,
}

impl Bench {
    fn new() -> Self {
        let g = Gantry::new();
        let dir = g.scratch().join("etc");
        g.configure(&format!(
            "[fetch]\ncertificate-dirs = [\"{0}/certs.d\"]\nregistries-conf = \"{0}/registries.conf\"\nretry-for = \"2s\"",
            dir.display()
        ));
        let layer = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
        let image = Image::builder().layer(layer).entrypoint(&["/bin/app"]).build().unwrap();
        Self { g, dir, image }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Writes the mirrors of a registry, in this order.
    fn mirrors(&self, registry: &str, hosts: &[&str]) {
        let text: String = hosts.iter().map(|host| format!("[host.'{host}']\n")).collect();
        self.write(&format!("certs.d/{registry}/hosts.toml"), &text);
    }

    fn push(&self, registry: &DebianRegistry, name: &str) {
        registry.push(&format!("{}:latest", self.g.layout("image", &self.image)), name);
    }

    fn fetch(&self, name: &str) -> Out {
        self.g.run(&["fetch", name])
    }

    #[track_caller]
    fn assert_fetched(&self, name: &str, out: Out) {
        assert_eq!(out.ok().text(), self.image.id(), "{name}");
        let list = self.g.json(&["image", "list"]);
        assert_eq!(list[0]["names"], serde_json::json!([name]));
        assert_eq!(self.g.run(&["run", "--rm", "--net=none", name, "--", "args", "x"]).ok().stdout, "[\"x\"]\n");
        let _ = self.g.run(&["image", "rm", "--force", name]).ok();
    }

    #[track_caller]
    fn assert_nothing(&self) {
        assert!(self.g.json(&["image", "list"]).as_array().unwrap().is_empty());
        self.g.check_invariants();
    }
}

/// An address at which no server listens.
fn dead() -> String {
    format!("http://{}", std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap())
}

/// A registry with the bench's image under `app:1`.
fn faulty(bench: &Bench) -> FaultyRegistry {
    let registry = FaultyRegistry::start().unwrap();
    let image = &bench.image;
    registry.put_blob("app", &image.config);
    for layer in &image.layers {
        registry.put_blob("app", &layer.blob);
    }
    registry.put_manifest("app", "1", faulty_registry::MANIFEST, &image.manifest);
    registry
}

#[test]
fn mirrors_are_tried_in_order() {
    let (bench, registry, empty) = (Bench::new(), DebianRegistry::start(), DebianRegistry::start());
    bench.push(&registry, "app:1");
    let second = faulty(&bench);
    let name = format!("{REGISTRY}/app:1");
    let urls = [dead(), format!("http://{}", empty.host()), registry.host(), format!("http://{}", second.host())];
    bench.mirrors(REGISTRY, &urls.each_ref().map(String::as_str));
    let out = bench.fetch(&name);
    let out = out.stderr_contains(&["mirror", &urls[0], "refused", &empty.host(), "is not in"]);
    assert_eq!(registry.gets("/v2/app/manifests/1?ns=registry.invalid"), 1);
    assert!(second.seen().is_empty(), "a mirror behind one that serves the image was asked");
    bench.assert_fetched(&name, out);
    let by_digest = format!("{REGISTRY}/app@{}", bench.image.id());
    bench.assert_fetched(&by_digest, bench.fetch(&by_digest));
}

#[test]
fn mirrors_with_wrong_content_are_skipped() {
    let bench = Bench::new();
    let (manifest, blob, registry) = (faulty(&bench), faulty(&bench), DebianRegistry::start());
    bench.push(&registry, "app:1");
    let other = Image::builder().layer(Layer::new().file("other", "x", 0o644)).build().unwrap();
    manifest.put(&format!("/v2/app/manifests/{}", bench.image.id()), faulty_registry::MANIFEST, &other.manifest);
    let layer = gantry_fixtures::digest(&bench.image.layers[0].blob);
    blob.put(&format!("/v2/app/blobs/{layer}"), "application/octet-stream", &other.layers[0].blob);
    let urls = [manifest.host(), blob.host(), registry.host()].map(|host| format!("http://{host}"));
    bench.mirrors(REGISTRY, &urls.each_ref().map(String::as_str));
    let name = format!("{REGISTRY}/app@{}", bench.image.id());
    let out = bench.fetch(&name);
    let out = out.stderr_contains(&["did not send manifest", &urls[1], layer.get(7..19).unwrap()]);
    bench.assert_fetched(&name, out);
}

#[test]
fn failures_of_all_mirrors_are_named() {
    let (bench, empty) = (Bench::new(), DebianRegistry::start());
    let urls = [dead(), format!("http://{}", empty.host())];
    bench.mirrors(REGISTRY, &urls.each_ref().map(String::as_str));
    let out = bench.fetch(&format!("{REGISTRY}/app:1")).exits(FAILED);
    let want = ["its mirrors failed", &urls[0], "refused", &urls[1], "is not in", "cannot resolve", REGISTRY];
    let _ = out.stderr_contains(&want);
    bench.assert_nothing();
}

#[test]
fn mirrors_of_content_need_a_digest() {
    let bench = Bench::new();
    let (mirror, registry) = (faulty(&bench), DebianRegistry::start());
    bench.push(&registry, "app:1");
    let name = format!("{}/app:1", registry.host());
    let hosts = format!("[host.'http://{}']\ncapabilities = ['pull']\n", mirror.host());
    bench.write(&format!("certs.d/{}/hosts.toml", registry.host()), &hosts);
    bench.assert_fetched(&name, bench.fetch(&name));
    assert_eq!(mirror.count("/v2/app/manifests/1"), 0, "a mirror without 'resolve' was asked for a tag");
    let layer = format!("/v2/app/blobs/{}", gantry_fixtures::digest(&bench.image.layers[0].blob));
    assert_eq!((mirror.count(&layer), registry.gets(&layer)), (1, 0));
}

#[test]
fn certificates_of_a_mirror_are_used() {
    let bench = Bench::new();
    let authority = Authority::new();
    let push_dir = authority.trust(&bench.g.scratch(), "push");
    authority.issue("DNS:client", Validity::Now).as_client(&push_dir);
    let registry = DebianRegistry::start_with(RegistryOptions {
        tls: Some(authority.issue("IP:127.0.0.1", Validity::Now)),
        client_authority: Some(authority.certificate()),
        push_dir: Some(push_dir),
        ..RegistryOptions::default()
    });
    bench.push(&registry, "app:1");
    let (name, host) = (format!("{REGISTRY}/app:1"), registry.host());
    let place = format!("certs.d/{REGISTRY}/hosts.toml");
    for (settings, want) in [
        ("", "does not trust"),
        ("ca = '../mirror/ca.crt'\n", "it asks for a client certificate"),
        ("skip_verify = true\n", "it asks for a client certificate"),
        ("ca = 'none.crt'\n", "none.crt"),
    ] {
        let _ = authority.trust(&bench.dir.join("certs.d"), "mirror");
        bench.write(&place, &format!("[host.'https://{host}']\n{settings}"));
        let _ = bench.fetch(&name).exits(FAILED).stderr_contains(&[want, &host]);
    }
    bench.assert_nothing();
    let client = authority.issue("DNS:client", Validity::Now);
    client.as_client(&bench.dir.join("certs.d/mirror"));
    for settings in [
        "ca = '../mirror/ca.crt'\nclient = [['../mirror/client.cert', '../mirror/client.key']]\n",
        "skip_verify = true\nclient = [['../mirror/client.cert', '../mirror/client.key']]\n",
    ] {
        bench.write(&place, &format!("[host.'https://{host}']\n{settings}"));
        bench.assert_fetched(&name, bench.fetch(&name));
    }
}

#[test]
fn credentials_stay_with_their_registry() {
    let bench = Bench::new();
    let (mirror, registry) = (faulty(&bench), DebianRegistry::protected());
    bench.push(&registry, "app:1");
    mirror.protect(Access::Basic("Basic bm9uZTpub25l".to_owned()));
    bench.mirrors(&registry.host(), &[&format!("http://{}", mirror.host())]);
    let home = bench.g.scratch().parent().unwrap().join(".docker/config.json");
    std::fs::create_dir_all(home.parent().unwrap()).unwrap();
    // base64 of user:secret
    let auths = serde_json::json!({ "auths": { registry.host(): { "auth": "dXNlcjpzZWNyZXQ=" } } });
    std::fs::write(home, auths.to_string()).unwrap();
    let name = format!("{}/app:1", registry.host());
    bench.assert_fetched(&name, bench.fetch(&name));
    let seen = mirror.seen();
    assert!(!seen.is_empty() && seen.iter().all(|request| !request.headers.contains_key("authorization")), "{seen:?}");
}

#[test]
fn prefixes_get_mirrors_and_locations() {
    let (bench, registry, empty) = (Bench::new(), DebianRegistry::start(), DebianRegistry::start());
    bench.push(&registry, "deep/team/app:1");
    bench.push(&registry, "other/app:1");
    let conf = format!(
        "unqualified-search-registries = ['docker.io']\n\
         [[registry]]\nprefix = '{REGISTRY}/team'\nlocation = '{0}/nothing'\n\
         [[registry.mirror]]\nlocation = '{1}/deep/team'\n\
         [[registry.mirror]]\nlocation = '{0}/deep/team'\ninsecure = true\n\
         [[registry]]\nprefix = '*.sub.invalid'\nblocked = true\n",
        registry.host(),
        empty.host()
    );
    bench.write("registries.conf", &conf);
    bench.write(
        "registries.conf.d/1.conf",
        &format!("[[registry]]\nprefix = '{REGISTRY}'\nlocation = '{}/other'", registry.host()),
    );
    for name in [format!("{REGISTRY}/team/app:1"), format!("{REGISTRY}/app:1")] {
        bench.assert_fetched(&name, bench.fetch(&name));
    }
    let out = bench.fetch("a.sub.invalid/app:1").exits(FAILED);
    let _ = out.stderr_contains(&["a.sub.invalid/app:1 is blocked", "registries.conf", "*.sub.invalid"]);
    // A hosts file of the registry does not lift the block.
    bench.mirrors("a.sub.invalid", &[&format!("http://{}", registry.host())]);
    let _ = bench.fetch("a.sub.invalid/other/app:1").exits(FAILED).stderr_contains(&["is blocked"]);
    bench.write("registries.conf.d/2.conf", "[[registry]]\nprefix = 1");
    let _ = bench.fetch(&format!("{REGISTRY}/app:1")).exits(FAILED).stderr_contains(&["2.conf", "line 2"]);
    bench.assert_nothing();
}
