//! Fetching from a faulty registry: accepted and refused responses, and no leftovers.

#![expect(clippy::unwrap_used, reason = "a failed step of a test's own set-up should end the test")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gantry_fetch::progress::Silent;
use gantry_fetch::{Config, FetchError, Fetched, Note, Platform, Progress, PullPolicy, Timeouts, fetch};
use gantry_model::error::chain;
use gantry_model::{ErrorKind, Kind as _};
use gantry_store::Store;
use gantry_tests::faulty_registry::{Access, Fault, FaultyRegistry, INDEX, Image, MANIFEST, digest, tar};
use tempfile::TempDir;

/// A bench with its own store, its own registry, and an image of two layers, the second of 3 MiB.
struct Bench {
    dir: TempDir,
    store: Store,
    registry: FaultyRegistry,
    image: Image,
    config: Config,
}

const USER: &str = "Basic dXNlcjpwYXNzd29yZA==";

impl Bench {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let store = Store::open(&dir.path().join("data")).unwrap();
        let registry = FaultyRegistry::start().unwrap();
        let big: Vec<u8> = (0..3u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let image = Image::of(&[("small", b"hello"), ("big", &big)]);
        registry.put_image("app", "latest", &image);
        let config = Config {
            auth_files: Vec::new(),
            platform: Some(Platform { os: "linux".into(), architecture: "amd64".into(), variant: None }),
            timeouts: Timeouts {
                connect: Duration::from_secs(5),
                no_progress: Duration::from_millis(400),
                total_retry: Duration::from_secs(20),
                backoff: Duration::from_millis(5),
            },
            ..Config::default()
        };
        Self { dir, store, registry, image, config }
    }

    fn fetch(&self) -> Result<Fetched, FetchError> {
        self.fetch_as("app:latest", PullPolicy::New, &Silent)
    }

    fn fetch_as(&self, name: &str, policy: PullPolicy, progress: &dyn Progress) -> Result<Fetched, FetchError> {
        let reference = format!("oci://{}/{name}", self.registry.host()).parse().unwrap();
        fetch(&self.store, &self.config, &reference, policy, None, progress)
    }

    fn manifest_path(&self) -> String {
        "/v2/app/manifests/latest".to_owned()
    }

    fn blob_path(&self, layer: usize) -> String {
        format!("/v2/app/blobs/{}", digest(&self.image.layers[layer]))
    }

    fn config_path(&self) -> String {
        format!("/v2/app/blobs/{}", digest(&self.image.config))
    }

    fn auth_file(&mut self, auth: &str) {
        let path = self.dir.path().join("auth.json");
        let host = self.registry.host();
        std::fs::write(&path, format!(r#"{{"auths":{{"{host}":{{"auth":"{auth}"}}}}}}"#)).unwrap();
        self.config.auth_files = vec![PathBuf::from("/nonexistent"), path];
    }

    /// Asserts that the image is complete in the store.
    fn assert_fetched(&self, what: &str, outcome: Result<Fetched, FetchError>) {
        let fetched = outcome.unwrap_or_else(|error| panic!("{what}: {}", chain(&error)));
        assert_eq!(fetched.image.id.to_string(), digest(&self.image.manifest), "{what}");
        let layout = self.store.layout();
        let tree = |layer: usize| layout.tree_dir(&fetched.image.layers[layer].chain);
        assert_eq!(std::fs::read(tree(0).join("small")).unwrap(), b"hello", "{what}");
        assert_eq!(std::fs::read(tree(1).join("big")).unwrap(), self.image.layers[1][512..512 + (3 << 20)], "{what}");
        assert_eq!(std::fs::metadata(tree(1).join("big")).unwrap().permissions().mode() & 0o7777, 0o644, "{what}");
        self.assert_clean(what);
    }

    /// Asserts that nothing of an image is visible, and nothing incomplete is left.
    fn assert_nothing(&self, what: &str) {
        assert!(self.store.images().unwrap().is_empty(), "{what}");
        self.assert_clean(what);
    }

    fn assert_clean(&self, what: &str) {
        let left: Vec<_> = std::fs::read_dir(self.store.layout().tmp_dir()).unwrap().collect();
        assert!(left.is_empty(), "{what}: {left:?}");
    }
}

fn status(code: u16) -> Fault {
    Fault::Status(code, Vec::new())
}

fn limited(wait: &str) -> Fault {
    Fault::Status(429, vec![("Retry-After".to_owned(), wait.to_owned())])
}

#[derive(Default)]
struct Notes(Mutex<Vec<Note>>);

impl Progress for Notes {
    fn notify(&self, note: Note) {
        self.0.lock().unwrap().push(note);
    }
}

#[test]
fn transient_faults_are_retried() {
    let size = Bench::new().image.layers[1].len();
    let rows: Vec<(&str, Vec<Fault>)> = vec![
        ("500 and then fine", vec![status(500), status(503)]),
        ("429 with Retry-After 0", vec![limited("0")]),
        ("429 with a date long gone", vec![limited("Sun, 06 Nov 1994 08:49:37 GMT")]),
        ("hang up before the first byte", vec![Fault::Cut(0)]),
        ("hang up in the middle, twice", vec![Fault::Cut(1_000_000), Fault::Cut(500_000)]),
        ("hang up before the last byte", vec![Fault::Cut(size - 1)]),
        ("reset", vec![Fault::Reset(1_000_000)]),
        ("stall", vec![Fault::Stall(1_000_000)]),
        ("200 to a Range", vec![Fault::Cut(1_000_000), Fault::IgnoreRange]),
        ("no length", vec![Fault::NoLength(usize::MAX, Vec::new())]),
        ("no length and hang up", vec![Fault::NoLength(1_000_000, Vec::new())]),
        ("a length too short", vec![Fault::Length(1_000_000)]),
    ];
    for (what, faults) in rows {
        let bench = Bench::new();
        bench.registry.fault(&bench.blob_path(1), faults);
        bench.assert_fetched(what, bench.fetch());
    }
}

#[test]
fn interrupted_downloads_are_resumed() {
    let bench = Bench::new();
    bench.registry.fault(&bench.blob_path(1), [Fault::Cut(1_000_000)]);
    bench.assert_fetched("resume", bench.fetch());
    let path = bench.blob_path(1);
    let ranges: Vec<_> = bench
        .registry
        .seen()
        .into_iter()
        .filter(|seen| seen.path == path)
        .map(|seen| seen.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges, [None, Some("bytes=1000000-".to_owned())]);
}

#[test]
fn permanent_faults_fail_the_fetch() {
    let long = { [Bench::new().image.layers[1].clone(), vec![0]].concat() };
    let wrong: Vec<u8> = vec![7; long.len() - 1];
    let rows: Vec<(&str, Fault, &str)> = vec![
        ("500 for ever", status(500), "gave up after 5 tries"),
        ("404", status(404), "is not in"),
        ("403", status(403), "refuses"),
        ("204", status(204), "answered 204"),
        ("429 with a huge Retry-After", limited("1000000000"), "longer than the 60 s"),
        ("other bytes", Fault::Replace(wrong), "damaged or was tampered with"),
        ("more bytes", Fault::Replace(long), "sends more"),
        ("more bytes, no length", Fault::NoLength(usize::MAX, vec![0]), "sends more"),
        ("for ever cut", Fault::Cut(10), "gave up after 5 tries"),
        ("for ever stalled", Fault::Stall(10), "gave up after 5 tries"),
        ("a redirect loop", Fault::Redirect("?again".to_owned()), "more than 10 redirects"),
        ("a redirect to a file", Fault::Redirect("file:///etc/passwd".to_owned()), "neither https nor http"),
        ("a redirect to metadata", Fault::Redirect("https://169.254.169.254/x".to_owned()), "link-local"),
        ("a redirect to metadata, v6", Fault::Redirect("https://[fe80::1]/x".to_owned()), "link-local"),
        ("a redirect to plain http", Fault::Redirect("http://203.0.113.1/x".to_owned()), "plain http is not allowed"),
        ("a redirect with a user", Fault::Redirect("http://u:secret@127.0.0.1/x".to_owned()), "carries a user name"),
    ];
    for (what, fault, want) in rows {
        let bench = Bench::new();
        bench.registry.always(&bench.blob_path(1), fault);
        let text = chain(&bench.fetch().expect_err(what));
        assert!(text.contains(want) && !text.contains("secret"), "{what}: {text}");
        bench.assert_nothing(what);
    }
}

#[test]
fn wrong_content_ranges_are_rejected() {
    let bench = Bench::new();
    bench.registry.fault(&bench.blob_path(1), [Fault::Cut(1_000_000), Fault::WrongRange]);
    let text = chain(&bench.fetch().unwrap_err());
    assert!(text.contains("begins at byte 999999 instead of 1000000"), "{text}");
    bench.assert_nothing("wrong range");
}

#[test]
fn manifests_and_configurations_are_verified() {
    type Row = (&'static str, fn(&Bench) -> String, Fault, &'static str);
    let rows: Vec<Row> = vec![
        ("a huge manifest", Bench::manifest_path, Fault::Replace(vec![b' '; (8 << 20) + 1]), "larger than"),
        ("no JSON", Bench::manifest_path, Fault::Replace(b"<html>".to_vec()), "not valid JSON"),
        ("an index as a manifest", Bench::manifest_path, Fault::Replace(index_with(1)), "parts of the other kind"),
        ("a cut manifest", Bench::manifest_path, Fault::Cut(20), "gave up"),
        ("a stalled manifest", Bench::manifest_path, Fault::Stall(20), "gave up"),
        ("a cut configuration", Bench::config_path, Fault::Cut(20), "gave up"),
        ("another configuration", Bench::config_path, Fault::Replace(vec![b' '; 10]), "gave up"),
        ("a longer configuration", Bench::config_path, Fault::Replace(vec![b' '; 9999]), "sends more"),
    ];
    for (what, path, fault, want) in rows {
        let bench = Bench::new();
        bench.registry.always(&path(&bench), fault);
        let text = chain(&bench.fetch().expect_err(what));
        assert!(text.contains(want), "{what}: {text}");
        bench.assert_nothing(what);
    }
    let bench = Bench::new();
    let other = vec![b' '; bench.image.config.len()];
    bench.registry.always(&bench.config_path(), Fault::Replace(other));
    let text = chain(&bench.fetch().unwrap_err());
    assert!(text.contains("tampered"), "{text}");
    bench.registry.put_manifest("app", "many", INDEX, &index_with(2000));
    let text = chain(&bench.fetch_as("app:many", PullPolicy::New, &Silent).unwrap_err());
    assert!(text.contains("2000 entries"), "{text}");
    bench.assert_nothing("many");
}

fn index_with(entries: usize) -> Vec<u8> {
    let one = format!(r#"{{"mediaType":"{MANIFEST}","digest":"{}","size":1}}"#, digest(b""));
    format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, vec![one; entries].join(",")).into_bytes()
}

#[test]
fn inconsistent_images_are_rejected() {
    let layer = tar("a", b"x");
    let few = Image::with_diff_ids(vec![layer.clone(), tar("b", b"y")], &[digest(&layer)]);
    let lie = Image::with_diff_ids(vec![layer.clone()], &[digest(b"other")]);
    let many = Image::with_layers(vec![layer; 129]);
    for (what, image, want) in [
        ("fewer diff_ids than layers", few, "its manifest has 2 layers, its configuration 1"),
        ("a diff_id that lies", lie, "but the image configuration says"),
        ("129 layers", many, "at most 128"),
    ] {
        let bench = Bench::new();
        bench.registry.put_image("bad", "latest", &image);
        let text = chain(&bench.fetch_as("bad", PullPolicy::New, &Silent).expect_err(what));
        assert!(text.contains(want), "{what}: {text}");
        bench.assert_nothing(what);
    }
}

#[test]
fn indexes_are_resolved_and_validated() {
    let bench = Bench::new();
    let id = digest(&bench.image.manifest);
    let size = bench.image.manifest.len();
    let entry = |architecture: &str, media: &str, digest: &str, size: usize| {
        format!(
            r#"{{"mediaType":"{media}","digest":"{digest}","size":{size},"platform":{{"os":"linux","architecture":"{architecture}"}}}}"#
        )
    };
    let index = |entries: &[String]| format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entries.join(","));
    let good = index(&[entry("arm64", MANIFEST, &digest(b"no"), 5), entry("amd64", MANIFEST, &id, size)]);
    let mut nested = good.clone();
    for depth in 0..6 {
        bench.registry.put_manifest("app", &format!("depth{depth}"), INDEX, nested.as_bytes());
        nested = index(&[entry("amd64", INDEX, &digest(nested.as_bytes()), nested.len())]);
    }
    let arm = index(&[entry("arm64", MANIFEST, &id, size)]);
    bench.registry.put_manifest("app", "arm", INDEX, arm.as_bytes());
    let both = good.replacen("\"manifests\"", "\"layers\":[],\"manifests\"", 1);
    bench.registry.put_manifest("app", "both", INDEX, both.as_bytes());
    for (tag, want) in [("depth3", "leads through more"), ("arm", "it has linux/arm64"), ("both", "ambiguous")] {
        let text = chain(&bench.fetch_as(&format!("app:{tag}"), PullPolicy::New, &Silent).expect_err(tag));
        assert!(text.contains(want), "{tag}: {text}");
        bench.assert_nothing(tag);
    }
    // A registry that serves an index for any digest.
    let myself = index(&[entry("amd64", INDEX, &digest(b"myself"), good.len())]);
    bench.registry.put_manifest("app", "self", INDEX, myself.as_bytes());
    bench.registry.put(&format!("/v2/app/manifests/{}", digest(b"myself")), INDEX, good.as_bytes());
    let text = chain(&bench.fetch_as("app:self", PullPolicy::New, &Silent).unwrap_err());
    assert!(text.contains("tampered"), "{text}");
    bench.assert_fetched("depth2", bench.fetch_as("app:depth2", PullPolicy::New, &Silent));
}

#[test]
fn tokens_are_requested_and_used() {
    let bench = Bench::new();
    bench.registry.protect(Access::Token(None));
    bench.assert_fetched("anonymous token", bench.fetch());
    let seen = bench.registry.seen();
    let token: Vec<_> = seen.iter().filter(|seen| seen.path == "/token").collect();
    assert_eq!(token.len(), 1, "one token for all requests");
    assert_eq!(token[0].query, "service=faulty&scope=repository%3Aapp%3Apull");
    assert!(!token[0].headers.contains_key("authorization"));
}

#[test]
fn a_stale_token_is_renewed() {
    struct Expire<'a>(&'a FaultyRegistry);
    impl Progress for Expire<'_> {
        fn notify(&self, note: Note) {
            // The connection has just broken, and the token that opened it has expired.
            if matches!(note, Note::Retrying { .. }) {
                self.0.expire_tokens();
            }
        }
    }
    let bench = Bench::new();
    bench.registry.protect(Access::Token(None));
    // The 401 precedes the faults and consumes one of them.
    bench.registry.fault(&bench.blob_path(1), [Fault::Cut(1_000_000)]);
    bench.assert_fetched("stale", bench.fetch_as("app:latest", PullPolicy::New, &Expire(&bench.registry)));
    assert_eq!(bench.registry.count("/token"), 2);
}

#[test]
fn credentials_are_read_from_files() {
    for access in [Access::Basic(USER.to_owned()), Access::Token(Some(USER.to_owned()))] {
        let mut bench = Bench::new();
        bench.registry.protect(access.clone());
        let text = chain(&bench.fetch().unwrap_err());
        assert!(text.contains("login"), "{access:?}: {text}");
        bench.assert_nothing("no credentials");
        bench.auth_file("dXNlcjp3cm9uZw==");
        let text = chain(&bench.fetch().unwrap_err());
        assert!(text.contains("not accepted") && !text.contains("wrong"), "{access:?}: {text}");
        bench.auth_file(USER.strip_prefix("Basic ").unwrap());
        bench.assert_fetched("credentials", bench.fetch());
    }
}

#[test]
fn credentials_are_not_sent_to_redirect_targets() {
    let mut bench = Bench::new();
    bench.auth_file(USER.strip_prefix("Basic ").unwrap());
    bench.registry.protect(Access::Basic(USER.to_owned()));
    let other = FaultyRegistry::start().unwrap();
    other.put("/elsewhere", "application/octet-stream", &bench.image.layers[1]);
    // A redirect back to the origin does not restore credentials that were dropped.
    other.always("/back", Fault::Redirect(format!("http://{}{}", bench.registry.host(), bench.config_path())));
    bench.registry.always(&bench.blob_path(1), Fault::Redirect(format!("http://{}/elsewhere?sig=x", other.host())));
    bench.assert_fetched("redirect", bench.fetch());
    let seen = other.seen();
    assert!(seen.iter().any(|seen| seen.path == "/elsewhere" && seen.query == "sig=x"));
    assert!(seen.iter().all(|seen| !seen.headers.contains_key("authorization")), "{seen:?}");
    // The challenge of a third host is not answered with the password.
    let mut bench = Bench::new();
    bench.auth_file(USER.strip_prefix("Basic ").unwrap());
    bench.registry.always(&bench.blob_path(1), Fault::Redirect(format!("http://{}/elsewhere", other.host())));
    other.protect(Access::Basic(USER.to_owned()));
    let text = chain(&bench.fetch().unwrap_err());
    assert!(text.contains("refuses"), "{text}");
    assert!(other.seen().iter().all(|seen| !seen.headers.contains_key("authorization")));
}

#[test]
fn malformed_challenges_are_rejected() {
    let long = "a".repeat(9000);
    for (demand, want) in [
        ("Bearer realm=\"file:///etc/passwd\"", "token server is refused"),
        ("Bearer realm=\"http://203.0.113.1/token\"", "not reached by https"),
        ("Bearer realm=\"https://169.254.169.254/token\"", "link-local"),
        ("Bearer realm=\"https://u:p@auth.example/\"", "carries a user name"),
        ("Negotiate", "neither Bearer nor Basic"),
        (long.as_str(), "longer than 8 KiB"),
    ] {
        let bench = Bench::new();
        let headers = vec![("WWW-Authenticate".to_owned(), demand.to_owned())];
        bench.registry.always(&bench.manifest_path(), Fault::Status(401, headers));
        let text = chain(&bench.fetch().expect_err(demand));
        assert!(text.contains(want), "{demand:.60}: {text}");
        bench.assert_nothing(demand);
    }
}

#[test]
fn present_images_are_not_fetched_again() {
    let bench = Bench::new();
    bench.assert_fetched("first", bench.fetch());
    let requests = bench.registry.seen().len();
    bench.assert_fetched("again", bench.fetch());
    assert_eq!(bench.registry.seen().len(), requests, "policy new sends no request");
    let fetched = bench.fetch_as("app:latest", PullPolicy::Update, &Silent).unwrap();
    assert_eq!(fetched.downloaded, 0);
    // Another image on the same base: only the new layer is fetched.
    let more = Image::with_layers(vec![bench.image.layers[0].clone(), tar("c", b"new")]);
    bench.registry.put_image("app", "latest", &more);
    let fetched = bench.fetch_as("app:latest", PullPolicy::Update, &Silent).unwrap();
    assert_eq!(fetched.image.id.to_string(), digest(&more.manifest));
    assert_eq!(fetched.downloaded, more.layers[1].len() as u64);
    assert_eq!(bench.registry.count(&bench.blob_path(0)), 1);
    assert_eq!(bench.store.images().unwrap().len(), 2);
    bench.assert_clean("update");
}

#[test]
fn pull_policies_without_a_registry() {
    let bench = Bench::new();
    let text = chain(&bench.fetch_as("app:latest", PullPolicy::Never, &Silent).unwrap_err());
    assert!(text.contains("never"), "{text}");
    bench.assert_fetched("first", bench.fetch());
    bench.assert_fetched("never", bench.fetch_as("app:latest", PullPolicy::Never, &Silent));
    bench.registry.always(&bench.manifest_path(), status(502));
    let text = chain(&bench.fetch_as("app:latest", PullPolicy::Update, &Silent).unwrap_err());
    assert!(text.contains("502"), "{text}");
    let notes = Notes::default();
    bench.assert_fetched("newer without an answer", bench.fetch_as("app:latest", PullPolicy::Newer, &notes));
    let notes = notes.0.into_inner().unwrap();
    assert!(notes.iter().any(|note| matches!(note, Note::Offline { .. })), "{notes:?}");
    // An error response is not the same as an unreachable registry.
    bench.registry.always(&bench.manifest_path(), status(403));
    assert!(bench.fetch_as("app:latest", PullPolicy::Newer, &Silent).is_err());
}

#[test]
fn short_names_and_ids_are_resolved() {
    let mut bench = Bench::new();
    let by = |bench: &Bench, name: &str| {
        fetch(&bench.store, &bench.config, &name.parse().unwrap(), PullPolicy::New, None, &Silent)
    };
    let text = chain(&by(&bench, "app").unwrap_err());
    assert!(text.contains("docker://app"), "{text}");
    bench.config.default_registry = Some(bench.registry.host().parse().unwrap());
    bench.assert_fetched("default registry", by(&bench, "app"));
    bench.config.default_registry = None;
    bench.assert_fetched("from the store", by(&bench, "app"));
    bench.assert_fetched("by id", by(&bench, &digest(&bench.image.manifest)[..7 + 12]));
    assert_eq!(by(&bench, "sha256:00000000").unwrap_err().kind(), ErrorKind::NotFound);
    bench.registry.put_image("team/app", "latest", &Image::of(&[("x", b"y")]));
    bench.fetch_as("team/app", PullPolicy::New, &Silent).unwrap();
    let error = by(&bench, "app").unwrap_err();
    assert!(error.to_string().contains("write the whole name"), "{error}");
}

#[test]
fn the_first_failure_cancels_other_downloads() {
    let mut bench = Bench::new();
    bench.config.timeouts.no_progress = Duration::from_secs(60);
    let big = bench.blob_path(1);
    bench.registry.always(&big, Fault::Stall(1000));
    let wrong = vec![0; bench.image.layers[0].len()];
    bench.registry.always(&bench.blob_path(0), Fault::Replace(wrong));
    let begun = Instant::now();
    let text = chain(&bench.fetch().unwrap_err());
    assert!(text.contains("tampered"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    bench.assert_nothing("cancelled");
}

#[test]
fn two_fetches_of_one_image_share_its_layers() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("data");
    std::thread::scope(|scope| {
        let both: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let store = Store::open(&dir).unwrap();
                    let reference = format!("oci://{}/app", bench.registry.host()).parse().unwrap();
                    fetch(&store, &bench.config, &reference, PullPolicy::New, None, &Silent)
                })
            })
            .collect();
        for one in both {
            bench.assert_fetched("shared", one.join().unwrap());
        }
    });
    assert_eq!((bench.registry.count(&bench.blob_path(0)), bench.registry.count(&bench.blob_path(1))), (1, 1));
}

#[test]
fn images_of_128_layers_are_fetched() {
    let bench = Bench::new();
    let layers = (0..128).map(|n| tar(&format!("file{n}"), b"x")).collect();
    bench.registry.put_image("tall", "latest", &Image::with_layers(layers));
    let fetched = bench.fetch_as("tall", PullPolicy::New, &Silent).unwrap();
    assert_eq!(fetched.image.layers.len(), 128);
    bench.assert_clean("tall");
}

#[test]
fn vanished_layers_are_fetched_again() {
    /// Removes the layer's directory right after it was found, as garbage collection may.
    struct Collector(PathBuf);
    impl Progress for Collector {
        fn notify(&self, note: Note) {
            if matches!(note, Note::LayerExists { .. }) && self.0.exists() {
                std::fs::remove_dir_all(&self.0).unwrap();
            }
        }
    }
    let bench = Bench::new();
    let first = bench.fetch().unwrap().image;
    bench.store.remove_image(&first.id).unwrap();
    let more = Image::with_layers(vec![bench.image.layers[0].clone(), tar("c", b"new")]);
    bench.registry.put_image("app", "more", &more);
    let tree = bench.store.layout().tree_dir(&first.layers[0].chain);
    let fetched = bench.fetch_as("app:more", PullPolicy::New, &Collector(tree.clone())).unwrap();
    assert_eq!(fetched.image.id.to_string(), digest(&more.manifest));
    assert_eq!(std::fs::read(tree.join("small")).unwrap(), b"hello");
    assert_eq!(bench.registry.count("/v2/app/manifests/more"), 2, "the fetch was restarted");
    bench.assert_clean("vanished");
}

/// A TLS server with its own certificate, run by Debian's openssl. Ends on drop.
struct TlsServer(std::process::Child, u16);

impl TlsServer {
    fn start(dir: &std::path::Path) -> Self {
        use std::io::{BufRead as _, BufReader};
        use std::process::{Command, Stdio};
        let (key, certificate) = (dir.join("key.pem"), dir.join("cert.pem"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = Command::new("openssl")
            .args(["s_server", "-www", "-accept", &format!("127.0.0.1:{port}"), "-key"])
            .arg(&key)
            .arg("-cert")
            .arg(&certificate)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ACCEPT"), "the server did not start");
        Self(child, port)
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

#[test]
fn untrusted_certificates_never_fall_back_to_http() {
    let mut bench = Bench::new();
    let server = TlsServer::start(bench.dir.path());
    let reference = format!("oci://127.0.0.1:{}/app", server.1).parse().unwrap();
    let by = |bench: &Bench| {
        chain(&fetch(&bench.store, &bench.config, &reference, PullPolicy::New, None, &Silent).unwrap_err())
    };
    for http in [false, true] {
        bench.config.insecure.http = http;
        let text = by(&bench);
        assert!(text.contains("no trusted TLS connection") && text.contains("certs.d"), "{text}");
    }
    // Without verification the connection succeeds, and the response is a page instead of a manifest.
    bench.config.insecure.tls = true;
    let text = by(&bench);
    assert!(text.contains("not valid JSON"), "{text}");
    bench.assert_nothing("tls");
}
