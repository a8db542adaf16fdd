//! Fetching from registries: Debian's registry, and a faulty one.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::path::Path;
use std::time::Duration;

use gantry_fixtures::{Compression, Image, Layer};
use gantry_tests::faulty_registry::{self, Fault, FaultyRegistry};
use gantry_tests::{DebianRegistry, Gantry, Out, Signal, wait_for, write_index};
use serde_json::json;

const FAILED: i32 = 125;

fn small(text: &str) -> gantry_fixtures::ImageBuilder {
    Image::builder().layer(Layer::new().file("file", text, 0o644)).entrypoint(&["/file"])
}

/// Writes an image as a layout and returns its name for skopeo.
fn oci(g: &Gantry, name: &str, image: &Image) -> String {
    format!("{}:latest", g.layout(name, image))
}

/// An incompressible image larger than any socket buffer.
fn bulky(seed: u64, bytes: usize) -> Image {
    let mut state = seed.max(1);
    let mut noise = Vec::with_capacity(bytes);
    while noise.len() < bytes {
        // xorshift64 (Marsaglia 2003)
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    let layer = Layer::new().compression(Compression::Plain).file("noise", noise, 0o644);
    Image::builder().layer(layer).entrypoint(&["/noise"]).build().unwrap()
}

fn images(g: &Gantry) -> Vec<serde_json::Value> {
    g.json(&["image", "list"]).as_array().cloned().unwrap()
}

/// All files below a directory.
fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() && !path.is_symlink() {
            found.extend(walk(&path));
        }
        found.push(path);
    }
    found
}

/// Asserts that a failed fetch left nothing visible and nothing for garbage collection.
#[track_caller]
fn assert_nothing(g: &Gantry) {
    assert_eq!(images(g), Vec::<serde_json::Value>::new());
    g.check_invariants();
}

#[test]
fn images_run_by_tag_and_digest() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let image = gantry_fixtures::standard_image(g.app_bytes()).unwrap();
    registry.push(&oci(&g, "standard", &image), "team/fixture:v1");
    let host = registry.host();
    let by_tag = format!("{host}/team/fixture:v1");
    assert_eq!(g.run(&["fetch", &by_tag]).ok().text(), image.id());
    let by_digest = format!("docker://{host}/team/fixture@{}", image.id());
    assert_eq!(g.run(&["fetch", &by_digest]).ok().text(), image.id());
    let list = images(&g);
    assert_eq!(list.len(), 1, "{list:?}");
    assert_eq!(list[0]["names"][0], by_tag.as_str());
    for layer in &image.layers {
        let path = format!("/v2/team/fixture/blobs/{}", gantry_fixtures::digest(&layer.blob));
        assert_eq!(registry.gets(&path), 1, "a present layer was fetched again");
    }
    // Content of one repository is no answer for another one.
    let elsewhere = format!("docker://{host}/team/other@{}", image.id());
    let _ = g.run(&["fetch", &elsewhere]).exits(FAILED).stderr_contains(&["team/other"]);
    let _ = g.run(&["run", "--net=none", "--pull=never", &elsewhere]).exits(FAILED).stderr_contains(&["team/other"]);
    registry.push(&oci(&g, "again", &image), "team/other:v2");
    assert_eq!(g.run(&["fetch", &elsewhere]).ok().text(), image.id());
    let names = [&by_tag, elsewhere.trim_start_matches("docker://")].map(|name| serde_json::json!(name));
    assert_eq!(images(&g)[0]["names"], serde_json::json!(names));
    // Another gantry with an empty store.
    let fresh = Gantry::new();
    let out = fresh.run(&["run", "--net=none", &by_tag, "--", "cat", "/lower/kept"]).ok();
    assert_eq!(out.stdout, "from the lower layer\n");
}

#[test]
fn every_manifest_and_layer_type_is_fetched() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let app = |compression| {
        let layer = Layer::new().compression(compression).dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
        Image::builder().layer(layer).entrypoint(&["/bin/app"])
    };
    for (name, image) in [
        ("gzip", app(Compression::Gzip).build().unwrap()),
        ("zstd", app(Compression::Zstd).build().unwrap()),
        ("plain", app(Compression::Plain).build().unwrap()),
    ] {
        registry.push(&oci(&g, name, &image), &format!("{name}:1"));
        let out = g.run(&["run", "--net=none", &format!("{}/{name}:1", registry.host()), "--", "args", name]).ok();
        assert_eq!(out.stdout, format!("[\"{name}\"]\n"), "{name}");
        assert!(images(&g).iter().any(|row| row["id"] == image.id().as_str()), "{name} came as another image");
    }
    let standard = g.scratch().join("standard");
    gantry_fixtures::write_standard(&standard, g.app_bytes()).unwrap();
    registry.push_as_docker(&format!("docker-archive:{}", standard.join("docker.tar").display()), "converted:1");
    let name = format!("{}/converted:1", registry.host());
    assert_eq!(g.run(&["run", "--net=none", &name, "--", "cat", "/replaced/new"]).ok().text(), "from the upper layer");
    let manifest = g.run(&["image", "cat-manifest", &name]).ok().json();
    assert_eq!(manifest["mediaType"], "application/vnd.docker.distribution.manifest.v2+json");
}

#[test]
fn the_platform_of_this_host_is_chosen() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let of = |os: &str, arch: &str| small(&format!("{os}/{arch}")).platform(os, arch).build().unwrap();
    let (ours, arm, windows) = (of("linux", "amd64"), of("linux", "arm64"), of("windows", "amd64"));
    let dir = g.scratch().join("index");
    write_index(&dir, &[&windows, &arm, &ours]);
    registry.push(&format!("oci:{}:latest", dir.display()), "many:1");
    let name = format!("{}/many:1", registry.host());
    assert_eq!(g.run(&["fetch", &name]).ok().text(), ours.id());
    let others = g.scratch().join("others");
    write_index(&others, &[&windows, &arm]);
    registry.push(&format!("oci:{}:latest", others.display()), "others:1");
    let out = g.run(&["fetch", &format!("{}/others:1", registry.host())]).exits(FAILED);
    let _ = out.stderr_contains(&["linux/amd64", "linux/arm64", "windows/amd64"]);
    assert_eq!(images(&g).len(), 1);
}

#[test]
fn credentials_are_required_and_used() {
    let registry = DebianRegistry::protected();
    let (host, image) = (registry.host(), small("private").build().unwrap());
    // base64 of user:secret and of user:wrong
    let (right, wrong) = ("dXNlcjpzZWNyZXQ=", "dXNlcjp3cm9uZw==");
    let file = |auth: &str| json!({ "auths": { &host: { "auth": auth } } }).to_string();
    let name = format!("{host}/private:1");
    registry.push(&oci(&Gantry::new(), "private", &image), "private:1");
    for (place, auth) in [
        (Some(".config/containers/auth.json"), right),
        (Some(".docker/config.json"), right),
        (Some(".docker/config.json"), wrong),
        (None, ""),
    ] {
        let g = Gantry::new();
        if let Some(place) = place {
            let path = g.scratch().parent().unwrap().join(place);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file(auth)).unwrap();
        }
        let out = g.run(&["fetch", &name]);
        assert!(!out.stderr.contains(gantry_tests::PASSWORD) && !out.stderr.contains("dXNlcj"), "{out}");
        match (auth == right, place) {
            (true, _) => assert_eq!(out.ok().text(), image.id(), "{place:?}"),
            (false, Some(_)) => refused(&g, out, &[&host, "private", "credentials", "not accepted"]),
            (false, None) => refused(&g, out, &[&host, "private", "needs credentials", "log in"]),
        }
    }
}

#[track_caller]
fn refused(g: &Gantry, out: Out, says: &[&str]) {
    let _ = out.exits(FAILED).stderr_contains(says);
    assert_nothing(g);
}

#[test]
fn pull_policies_when_a_tag_moves() {
    let (g, mut registry) = (Gantry::new(), DebianRegistry::start());
    let (old, new) = (small("old").build().unwrap(), small("new").build().unwrap());
    let name = format!("{}/moving:tag", registry.host());
    registry.push(&oci(&g, "old", &old), "moving:tag");
    let fetch = |policy: &str| g.run(&["fetch", &format!("--pull-policy={policy}"), &name]);
    let _ = fetch("never").exits(FAILED).stderr_contains(&["moving:tag", "never"]);
    assert_eq!(fetch("new").ok().text(), old.id());
    registry.push(&oci(&g, "new", &new), "moving:tag");
    for policy in ["never", "new"] {
        assert_eq!(fetch(policy).ok().text(), old.id(), "{policy}");
    }
    assert_eq!(registry.gets("/v2/moving/manifests/tag"), 1, "'never' and 'new' have no business with the registry");
    assert_eq!(fetch("update").ok().text(), new.id());
    let named: Vec<_> = images(&g).into_iter().filter(|row| row["names"] == json!([name])).collect();
    assert_eq!(named.len(), 1, "{named:?}");
    assert_eq!(named[0]["id"], new.id().as_str());
    assert_eq!(fetch("update").ok().text(), new.id());
    registry.kill();
    for policy in ["update", "always"] {
        let _ = fetch(policy).exits(FAILED).stderr_contains(&[&registry.host(), "refused"]);
        let out = g.run(&["run", "--net=none", &format!("--pull={policy}"), &name]).exits(FAILED);
        let _ = out.stderr_contains(&[&registry.host(), "refused"]);
    }
    let _ = g.run(&["fetch", "--quiet", &name]).exits(FAILED).stderr_contains(&[&registry.host(), "refused"]);
    for quiet in [&[][..], &["--quiet"]] {
        let offline = g.run(&[&["fetch", "--pull-policy=newer"], quiet, &[&name]].concat()).ok();
        assert_eq!(offline.text(), new.id(), "offline, the image in the store is used");
        let warned =
            offline.stderr.lines().any(|line| line.starts_with("warning: ") && line.contains(&registry.host()));
        assert!(warned, "silently: {offline}");
    }
}

#[test]
fn two_names_of_one_image_are_unambiguous() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let (one, two) = (small("one").build().unwrap(), small("two").build().unwrap());
    registry.push(&oci(&g, "one", &one), "short:1");
    let port = registry.host().rsplit(':').next().unwrap().to_owned();
    for host in ["127.0.0.1", "localhost"] {
        g.run(&["fetch", &format!("{host}:{port}/short:1")]).succeeded();
    }
    assert_eq!(g.run(&["fetch", "--pull-policy=never", "short:1"]).ok().text(), one.id());
    let _ = g.run(&["image", "cat-manifest", "short:1"]).ok();
    registry.push(&oci(&g, "two", &two), "short:1");
    g.run(&["fetch", &format!("localhost:{port}/short:1")]).succeeded();
    let out = g.run(&["fetch", "--pull-policy=never", "short:1"]).exits(FAILED);
    let _ = out.stderr_contains(&["may be any of", "127.0.0.1", "localhost"]);
}

#[test]
fn concurrent_fetches_download_each_layer_once() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let layers = [1, 2, 3].map(|seed| bulky(seed, 4 << 20).layers.remove(0));
    let mut builder = Image::builder().entrypoint(&["/noise"]);
    for (i, layer) in layers.iter().enumerate() {
        // The archive is included unchanged; another file makes each layer unique.
        builder = builder.layer(Layer::new().file(format!("noise-{i}"), &layer.blob, 0o644));
    }
    let image = builder.build().unwrap();
    registry.push(&oci(&g, "shared", &image), "shared:1");
    let name = format!("{}/shared:1", registry.host());
    let all: Vec<_> = (0..3).map(|_| g.spawn(&["fetch", &name])).collect();
    for fetch in all {
        assert_eq!(fetch.wait().ok().text(), image.id());
    }
    for layer in &image.layers {
        let path = format!("/v2/shared/blobs/{}", gantry_fixtures::digest(&layer.blob));
        assert_eq!(registry.gets(&path), 1, "{path}");
    }
    assert_eq!(images(&g).len(), 1);
}

#[test]
fn missing_images_are_named() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    registry.push(&oci(&g, "there", &small("there").build().unwrap()), "there:1");
    let host = registry.host();
    for (reference, names) in [
        (format!("{host}/there:2"), ["there", "2"]),
        (format!("{host}/not/there:1"), ["not/there", "1"]),
        (format!("{host}/there@sha256:{}", "0".repeat(64)), ["there", "000000000000"]),
    ] {
        for command in ["fetch", "run"] {
            let out = g.run(&[command, &reference]).exits(FAILED);
            let _ = out.stderr_contains(&[&host, names[0], names[1]]);
        }
    }
    assert!(g.list().is_empty(), "a pod of an image that is not there");
    assert_nothing(&g);
}

#[test]
fn images_in_use_are_kept() {
    let (g, registry) = (Gantry::new(), DebianRegistry::start());
    let image = gantry_fixtures::standard_image(g.app_bytes()).unwrap();
    registry.push(&oci(&g, "standard", &image), "app:1");
    let name = format!("{}/app:1", registry.host());
    let out = g.run(&["run", "--net=none", "--detach", &name, "--", "sleep", "1000"]).ok();
    let pod = gantry_tests::pod_id(&out);
    for command in [["image", "rm", &name], ["image", "rm", &image.id()]] {
        let _ = g.run(&command).exits(FAILED).stderr_contains(&[&pod[..8]]);
    }
    g.run(&["image", "gc", "--grace-period=0s"]).succeeded();
    assert_eq!(images(&g).len(), 1, "gc took an image in use");
    g.run(&["rm", "--force", &pod]).succeeded();
    g.run(&["image", "rm", &name]).succeeded();
    assert_nothing(&g);
    g.run(&["fetch", &name]).succeeded();
    let _ = g.run(&["image", "gc", "--grace-period=0s"]).ok().stdout_contains(&image.id());
    assert_nothing(&g);
    assert_eq!(walk(&g.dir().join("trees")), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_dying_registry_fails_the_fetch() {
    let (g, mut registry) = (Gantry::new(), DebianRegistry::start());
    let image = bulky(7, 96 << 20);
    registry.push(&oci(&g, "bulky", &image), "bulky:1");
    let host = registry.host();
    let fetch = g.spawn(&["fetch", &format!("{host}/bulky:1")]);
    let growing = |path: &std::path::PathBuf| path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() > 1 << 20);
    wait_for("the layer to be written", || walk(&g.dir().join("tmp")).iter().any(growing).then_some(()));
    fetch.signal(Signal::STOP);
    registry.kill();
    fetch.signal(Signal::CONT);
    // Four delays of at least 250 ms, and nothing else to wait for.
    let out = fetch.wait_within(Duration::from_secs(30)).exits(FAILED);
    let _ = out.stderr_contains(&[&host, "gave up", "tries"]);
    assert_nothing(&g);
}

/// An image with two layers in a registry that can stall.
struct Stalling {
    registry: FaultyRegistry,
    image: faulty_registry::Image,
    id: String,
}

impl Stalling {
    fn new() -> Self {
        let registry = FaultyRegistry::start().unwrap();
        let (low, high) = (vec![1u8; 300_000], vec![2u8; 400_000]);
        let image = faulty_registry::Image::of(&[("low", &low), ("high", &high)]);
        let id = registry.put_image("app", "1", &image);
        Self { registry, image, id }
    }

    fn name(&self) -> String {
        format!("{}/app:1", self.registry.host())
    }

    fn blob(bytes: &[u8]) -> String {
        format!("/v2/app/blobs/{}", faulty_registry::digest(bytes))
    }
}

#[test]
fn a_killed_fetch_leaves_nothing_visible() {
    let sizes = Stalling::new();
    let (config, low, high) = (&sizes.image.config, &sizes.image.layers[0], &sizes.image.layers[1]);
    let moments = [
        ("/v2/app/manifests/1".to_owned(), 0),
        ("/v2/app/manifests/1".to_owned(), 10),
        (Stalling::blob(config), 5),
        (Stalling::blob(low), 0),
        (Stalling::blob(low), 600),
        (Stalling::blob(low), low.len() - 1),
        (Stalling::blob(high), 0),
        (Stalling::blob(high), high.len() / 2),
        (Stalling::blob(high), high.len() - 1),
    ];
    for (path, bytes) in moments {
        for (signal, code) in [(Signal::KILL, 137), (Signal::INT, 130), (Signal::TERM, 143)] {
            let (g, bench) = (Gantry::new(), Stalling::new());
            bench.registry.fault(&path, [Fault::Stall(bytes)]);
            let fetch = g.spawn(&["fetch", &bench.name()]);
            wait_for(&format!("a request for {path}"), || (bench.registry.count(&path) > 0).then_some(()));
            fetch.signal(signal);
            let out = fetch.wait_within(Duration::from_secs(20)).exits(code);
            assert_eq!(out.stdout, "", "{path} {bytes}: {out}");
            assert_recovers(&g, &bench);
        }
    }
}

#[test]
fn a_fetch_killed_during_commit_stays_consistent() {
    // After the last request only the commits remain; each round kills a little later, judged by the files on disk.
    for round in 0..12usize {
        let (g, bench) = (Gantry::new(), Stalling::new());
        g.run(&["image", "list"]).succeeded();
        let mut fetch = g.spawn(&["fetch", &bench.name()]);
        let places = || ["tmp", "trees", "blobs"].iter().map(|dir| walk(&g.dir().join(dir)).len()).sum::<usize>();
        wait_for("the fetch to write", || (places() >= round || fetch.has_ended()).then_some(()));
        if !fetch.has_ended() {
            fetch.signal(Signal::KILL);
        }
        let out = fetch.wait();
        assert!(matches!(out.code, 0 | 137), "{out}");
        assert_recovers(&g, &bench);
    }
}

/// After a kill, the store is consistent and the next fetch works.
#[track_caller]
fn assert_recovers(g: &Gantry, bench: &Stalling) {
    for row in images(g) {
        assert_eq!(row["id"], bench.id.as_str());
        assert_eq!(row["names"], json!([bench.name()]), "an image without its name is half of one");
    }
    let fetch = g.run(&["fetch", &bench.name()]).ok();
    assert_eq!(fetch.text(), bench.id);
    assert_eq!(images(g).len(), 1);
    g.run(&["image", "rm", &bench.name()]).succeeded();
    g.run(&["gc"]).succeeded();
    assert_nothing(g);
    assert_eq!(walk(&g.dir().join("trees")).len(), 0, "layers without an image stay");
}

/// A configuration with short timeouts, so that the test is fast.
fn config_with_short_timeouts(g: &Gantry) -> String {
    let path = g.scratch().join("config.toml");
    std::fs::write(&path, "[fetch]\nstall-timeout = '500ms'\nretry-for = '2s'\n").unwrap();
    format!("--config={}", path.display())
}

#[test]
fn faults_are_reported_understandably() {
    let wrong = [7u8; 300_000];
    let layer = Stalling::blob(&Stalling::new().image.layers[1]);
    let tag = "/v2/app/manifests/1".to_owned();
    let digest = layer.rsplit_once(':').unwrap().1[..12].to_owned();
    let rows: Vec<(&str, String, Fault, Vec<&str>)> = vec![
        ("a stall", layer.clone(), Fault::Stall(1000), vec!["sent nothing for", "gave up", &digest]),
        ("a stall before the first byte", tag.clone(), Fault::Stall(0), vec!["sent nothing for"]),
        ("a redirect loop", tag.clone(), Fault::Redirect(tag.clone()), vec!["redirects"]),
        ("500 for ever", tag.clone(), Fault::Status(500, Vec::new()), vec!["500", "gave up"]),
        ("500 for ever for a layer", layer.clone(), Fault::Status(500, Vec::new()), vec!["500", &digest]),
        ("resets", layer.clone(), Fault::Reset(10), vec![&digest, "gave up"]),
        ("other bytes", layer.clone(), Fault::Replace(wrong.to_vec()), vec![&digest]),
        (
            "too many requests",
            tag.clone(),
            Fault::Status(429, vec![("Retry-After".into(), "86400".into())]),
            vec!["try again later"],
        ),
        ("an escape sequence", tag, Fault::Replace(b"\x1b]0;pwned\x07{\"schemaVersion\":2}".to_vec()), vec![]),
    ];
    for (what, path, fault, says) in rows {
        let (g, bench) = (Gantry::new(), Stalling::new());
        bench.registry.always(&path, fault);
        let config = config_with_short_timeouts(&g);
        let out = g.run_within(Duration::from_secs(20), &[&config, "fetch", &bench.name()]);
        let host = bench.registry.host();
        // Wrong bytes are reported by their digest, other faults by the registry's name.
        let names_host = !matches!(what, "other bytes" | "an escape sequence");
        let mut says = says;
        says.extend(names_host.then_some(host.as_str()));
        println!("{what}: {} ms: {}", out.duration.as_millis(), out.stderr.trim());
        let _ = out.exits(FAILED).stderr_contains(&says);
        assert_nothing(&g);
    }
}

#[test]
fn a_single_wrong_byte_is_detected() {
    let (g, bench) = (Gantry::new(), Stalling::new());
    let good = &bench.image.layers[0];
    let mut bad = good.clone();
    bad[600] ^= 1;
    bench.registry.fault(&Stalling::blob(good), [Fault::Replace(bad)]);
    let _ =
        g.run(&["fetch", &bench.name()]).exits(FAILED).stderr_contains(&["damaged or was tampered with", "sha256:"]);
    assert_nothing(&g);
    // Wrong bytes are never accepted and not retried automatically; a later fetch accepts the right ones.
    assert_eq!(g.run(&["fetch", &bench.name()]).ok().text(), bench.id);
}
