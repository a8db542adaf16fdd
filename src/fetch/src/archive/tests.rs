//! Valid and hostile archives and layouts made by the tests, read through the [`Source`] interface.

use std::fs;
use std::io::Write as _;

use gantry_model::Digest;
use gantry_model::id::Algorithm;
use tempfile::TempDir;

use super::*;
use crate::layout;
use crate::manifest::{self, Manifest, Parsed};
use crate::source::digest_of;
use crate::unpack::tests::build::Tar;

const LAYER: &[u8] = b"not a tar, but it is never parsed";

fn digest(bytes: &[u8]) -> Digest {
    digest_of(Algorithm::Sha256, bytes)
}

fn config(diff_ids: &[Digest]) -> Vec<u8> {
    let ids: Vec<String> = diff_ids.iter().map(ToString::to_string).collect();
    serde_json::json!({ "os": "linux", "architecture": "amd64", "rootfs": { "type": "layers", "diff_ids": ids } })
        .to_string()
        .into_bytes()
}

/// An old archive of `docker save`: a configuration, layers as `ID/layer.tar`, one of them a link to another.
fn docker(layers: &[(&str, &[u8])], extra: Tar) -> Vec<u8> {
    let config = config(&layers.iter().map(|(_, bytes)| digest(bytes)).collect::<Vec<_>>());
    let paths: Vec<&str> = layers.iter().map(|(path, _)| *path).collect();
    let list =
        serde_json::json!([{ "Config": "c.json", "RepoTags": ["app:1", "host.example/app:2"], "Layers": paths }]);
    let tar = extra.file("c.json", &config).file("manifest.json", list.to_string().as_bytes());
    layers
        .iter()
        .filter(|(path, _)| !path.starts_with("link"))
        .fold(tar, |tar, (path, data)| tar.file(path, data))
        .end()
}

/// The files of a layout with one image for each name.
fn oci(names: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut files = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
    let mut entries = Vec::new();
    let mut blob = |bytes: Vec<u8>| {
        let digest = digest(&bytes);
        files.push((format!("blobs/sha256/{}", digest.hex()), bytes));
        digest.to_string()
    };
    for name in names {
        let layer = [LAYER, name.as_bytes()].concat();
        let config = config(&[digest(&layer)]);
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": manifest::OCI_MANIFEST,
            "config": { "mediaType": manifest::OCI_CONFIG, "size": config.len(), "digest": blob(config) },
            "layers": [{ "mediaType": "application/vnd.oci.image.layer.v1.tar", "size": layer.len(), "digest": blob(layer) }],
        });
        let bytes = manifest.to_string().into_bytes();
        let mut entry =
            serde_json::json!({ "mediaType": manifest::OCI_MANIFEST, "size": bytes.len(), "digest": blob(bytes) });
        if !name.is_empty() {
            entry["annotations"] = serde_json::json!({ "org.opencontainers.image.ref.name": name });
        }
        entries.push(entry);
    }
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": entries });
    files.push(("index.json".to_owned(), index.to_string().into_bytes()));
    files
}

fn packed(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    files.iter().fold(Tar::default(), |tar, (path, bytes)| tar.file(path, bytes)).end()
}

struct Case {
    dir: TempDir,
}

impl Case {
    fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("gantry-archive-").tempdir().unwrap() }
    }

    fn open(&self, tar: &[u8], form: Form, tag: Option<&str>) -> Result<Box<dyn Source + Send>, SourceError> {
        let path = self.dir.path().join("archive.tar");
        fs::write(&path, tar).unwrap();
        super::open(&path, form, tag, self.dir.path(), &Caps::default())
    }
}

/// The manifest of a source that has one at the top, with the promised digest.
fn manifest_of(source: &dyn Source) -> Manifest {
    let root = source.root().unwrap();
    assert_eq!(root.digest, digest(&root.bytes));
    match manifest::parse(&root.media_type, &root.bytes).unwrap() {
        Parsed::Manifest(manifest) => manifest,
        Parsed::Index(_) => panic!("an index"),
    }
}

/// Reads everything the manifest names, from the beginning and from the middle.
fn check_all(source: &dyn Source, layers: &[Vec<u8>]) {
    let manifest = manifest_of(source);
    assert_eq!(digest(&source.document(&manifest.config).unwrap()), manifest.config.digest);
    assert_eq!(manifest.layers.len(), layers.len());
    for (d, want) in manifest.layers.iter().zip(layers) {
        assert_eq!((d.size, &d.digest), (want.len() as u64, &digest(want)));
        for offset in [0, 5, d.size, d.size + 5] {
            let mut got = Vec::new();
            source.open(d, offset).unwrap().read_to_end(&mut got).unwrap();
            assert_eq!(got, want[offset.min(d.size) as usize..], "{offset}");
        }
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn docker_archives_get_a_deterministic_manifest() {
    let zipped = gzip(LAYER);
    let extra = || Tar::default().link(b'2', "link/layer.tar", "../a/layer.tar");
    let layers: [(&str, &[u8]); 3] = [("a/layer.tar", LAYER), ("b/layer.tar", &zipped), ("link/layer.tar", LAYER)];
    // A compressed layer's diff_id is another digest than its blob's.
    let tar = docker(&layers, extra());
    let case = Case::new();
    let source = case.open(&tar, Form::Auto, None).unwrap();
    check_all(&*source, &[LAYER.to_vec(), zipped.clone(), LAYER.to_vec()]);
    assert_eq!(source.names(), ["app:1", "host.example/app:2"]);
    assert_eq!(manifest_of(&*source).format, gantry_store::ImageFormat::Docker);
    let id = source.root().unwrap().digest;
    for (what, tar, tag) in
        [("gzip", gzip(&tar), None), ("tag", tar.clone(), Some("2")), ("name", tar.clone(), Some("app:1"))]
    {
        assert_eq!(case.open(&tar, Form::Docker, tag).unwrap().root().unwrap().digest, id, "{what}");
    }
    let source = stdin(&mut &tar[..], case.dir.path(), &Caps::default()).unwrap();
    assert_eq!(source.root().unwrap().digest, id);
    check_all(&*source, &[LAYER.to_vec(), zipped, LAYER.to_vec()]);
    // The copy had no name.
    let left: Vec<_> = fs::read_dir(case.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["archive.tar"]);
}

#[test]
fn saved_local_names_take_precedence() {
    let layer = digest(LAYER);
    let list = serde_json::json!([
        { "Config": "c.json", "RepoTags": ["app:1"], "Layers": ["l.tar"], "GantryNames": ["app:1", "r.example/b:2"] },
    ]);
    let tar = Tar::default()
        .file("l.tar", LAYER)
        .file("c.json", &config(&[layer]))
        .file("manifest.json", list.to_string().as_bytes())
        .end();
    let case = Case::new();
    let saved = case.open(&tar, Form::Auto, Some("app:1")).unwrap();
    assert_eq!(
        (saved.names(), saved.omits_docker_hub()),
        (vec!["app:1".to_owned(), "r.example/b:2".to_owned()], false)
    );
    let dockers = docker(&[("l.tar", LAYER)], Tar::default());
    assert!(case.open(&dockers, Form::Auto, None).unwrap().omits_docker_hub());
}

#[test]
fn layouts_are_read_from_directories_and_archives() {
    for (names, tag, want) in
        [(&[""][..], None, ""), (&["v1"], None, "v1"), (&["v1"], Some("v1"), "v1"), (&["v1", "v2"], Some("v2"), "v2")]
    {
        let case = Case::new();
        let files = oci(names);
        for (path, bytes) in &files {
            let path = case.dir.path().join("layout").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        assert!(layout::is_layout(&case.dir.path().join("layout")));
        let layer = [LAYER, want.as_bytes()].concat();
        check_all(&*layout::open(&case.dir.path().join("layout"), tag).unwrap(), std::slice::from_ref(&layer));
        let source = case.open(&packed(&files), Form::Oci, tag).unwrap();
        check_all(&*source, &[layer]);
        assert_eq!(source.names(), if want.is_empty() { vec![] } else { vec![want.to_owned()] });
    }
}

#[test]
fn images_of_a_layout_are_grouped() {
    let mut files = oci(&["v1", "v2", "", "multi"]);
    let (_, index) = files.iter_mut().find(|(path, _)| path == "index.json").unwrap();
    let mut parsed: serde_json::Value = serde_json::from_slice(index).unwrap();
    let entries = parsed["manifests"].as_array_mut().unwrap();
    // A second name of the first image, and a second platform of the last.
    let mut alias = entries[0].clone();
    alias["annotations"]["org.opencontainers.image.ref.name"] = "v1.0".into();
    let mut platform = entries[3].clone();
    platform["digest"] = format!("sha256:{}", "0".repeat(64)).into();
    platform["platform"] = serde_json::json!({ "os": "linux", "architecture": "s390x" });
    entries[3]["platform"] = serde_json::json!({ "os": "linux", "architecture": "amd64" });
    // Two images without names for one platform, and the attestations of one image.
    let unnamed = |digit: &str, os: &str| {
        let digest = format!("sha256:{}", digit.repeat(64));
        let platform = serde_json::json!({ "os": os, "architecture": if os == "linux" { "amd64" } else { os } });
        serde_json::json!({ "digest": digest, "size": 2, "platform": platform })
    };
    let more = [unnamed("1", "linux"), unnamed("2", "linux"), unnamed("3", "unknown"), unnamed("4", "unknown")];
    entries.extend([alias, platform].into_iter().chain(more));
    *index = parsed.to_string().into_bytes();
    let case = Case::new();
    let path = case.dir.path().join("archive.tar");
    fs::write(&path, packed(&files)).unwrap();
    let all: Vec<_> = open_all(&path, case.dir.path(), &Caps::default()).unwrap().map(Result::unwrap).collect();
    let names: Vec<_> = all.iter().map(|image| image.names().join(" ")).collect();
    assert_eq!(names, ["v1 v1.0", "v2", "", "multi", "", ""]);
    check_all(&*all[0], &[[LAYER, b"v1"].concat()]);
    let root = all[3].root().unwrap();
    let Parsed::Index(entries) = manifest::parse(&root.media_type, &root.bytes).unwrap() else { panic!("no index") };
    assert_eq!(entries.len(), 2);
    // One of several images has several platforms.
    let multi = case.open(&packed(&files), Form::Oci, Some("multi")).unwrap();
    assert_eq!(multi.root().unwrap(), root);
}

#[test]
fn long_names_are_not_kept() {
    let long = "x".repeat(5000);
    let tar = Tar::default()
        .pax(&[("path", long.as_bytes())])
        .file("a", b"")
        .pax(&[("linkpath", long.as_bytes())])
        .link(b'2', "b", "c")
        .file("c", b"")
        .link(b'2', "d", "c")
        .end();
    let case = Case::new();
    let path = case.dir.path().join("archive.tar");
    fs::write(&path, tar).unwrap();
    let read = |max_names| {
        Archive::read(File::open(&path).unwrap(), "an archive".to_owned(), &Caps { max_names, ..Caps::default() })
    };
    assert_eq!(read(3).unwrap().members.keys().collect::<Vec<_>>(), ["c", "d"]);
    assert!(matches!(read(2), Err(SourceError::TooLarge { most: 2, .. })));
}

#[test]
fn the_scheme_selects_one_of_two_formats() {
    let mut tar = docker(&[("a", LAYER)], oci(&["v1"]).iter().fold(Tar::default(), |t, (p, b)| t.file(p, b)));
    tar.extend_from_slice(&[0; 8192]);
    let case = Case::new();
    let root = |form| case.open(&tar, form, None).unwrap().root().unwrap().digest;
    assert_eq!(root(Form::Auto), root(Form::Oci));
    assert_ne!(root(Form::Auto), root(Form::Docker));
}

#[test]
fn invalid_archives_are_rejected() {
    let large = vec![b' '; (crate::source::MAX_DOCUMENT + 1) as usize];
    let two =
        serde_json::json!([{ "Config": "c.json", "RepoTags": ["a:1"] }, { "Config": "d.json", "RepoTags": null }]);
    let loops = Tar::default().link(b'2', "manifest.json", "x").link(b'2', "x", "manifest.json").end();
    let up = serde_json::json!([{ "Config": "../../etc/passwd", "Layers": [] }]).to_string();
    let count = serde_json::json!([{ "Config": "c.json", "Layers": ["a"] }]).to_string();
    let whole = docker(&[("a", LAYER)], Tar::default());
    let listed = |list: &str| Tar::default().file("c.json", &config(&[])).file("manifest.json", list.as_bytes()).end();
    for (what, tar, form, tag, kind) in [
        ("no archive", b"hello".repeat(300), Form::Auto, None, "Invalid"),
        ("empty", Vec::new(), Form::Auto, None, "Invalid"),
        ("a tar of something", Tar::default().file("x", b"").end(), Form::Auto, None, "Invalid"),
        ("wrong form", whole.clone(), Form::Oci, None, "Invalid"),
        ("wrong form", packed(&oci(&["v1"])), Form::Docker, None, "Invalid"),
        ("no such tag", whole.clone(), Form::Auto, Some("9"), "NotFound"),
        ("no such tag", packed(&oci(&["v1"])), Form::Auto, Some("9"), "NotFound"),
        ("several", packed(&oci(&["v1", "v2"])), Form::Auto, None, "Ambiguous"),
        ("several", listed(&two.to_string()), Form::Auto, None, "Ambiguous"),
        ("large", Tar::default().file("manifest.json", &large).end(), Form::Auto, None, "TooLarge"),
        ("links in a circle", loops, Form::Auto, None, "Invalid"),
        ("path upwards", listed(&up), Form::Auto, None, "NotFound"),
        ("layer count", listed(&count), Form::Auto, None, "Invalid"),
        ("not JSON", listed("[{"), Form::Auto, None, "Invalid"),
        ("deep JSON", listed(&"[".repeat(100_000)), Form::Auto, None, "Invalid"),
        ("cut off", whole[..whole.len() - 1024].to_vec(), Form::Auto, None, "Invalid"),
        ("damaged gzip", gzip(&whole)[..300].to_vec(), Form::Auto, None, "Invalid"),
    ] {
        let case = Case::new();
        let error = case.open(&tar, form, tag).err().unwrap_or_else(|| panic!("{what}: taken"));
        assert!(format!("{error:?}").starts_with(kind), "{what}: {error:?}");
    }
}

#[test]
fn links_of_a_layout_stay_inside() {
    let case = Case::new();
    fs::write(case.dir.path().join("secret"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let dir = case.dir.path().join("layout");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink("../secret", dir.join("oci-layout")).unwrap();
    assert!(matches!(layout::open(&dir, None), Err(SourceError::Io { .. })));
    fs::remove_file(dir.join("oci-layout")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("oci-layout"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert!(matches!(layout::open(&dir, None), Err(SourceError::Invalid { .. })));
}
