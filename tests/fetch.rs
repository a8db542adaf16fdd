//! Fetching, listing and repairing images from layouts and archives.

use std::fs;

use gantry_fixtures::{Compression, Image, Layer, STANDARD_NAME, Style, digest};
use gantry_tests::{Gantry, pod_id};
use serde_json::json;

fn tiny(text: &str) -> gantry_fixtures::ImageBuilder {
    Image::builder().layer(Layer::new().file("file", text, 0o644)).entrypoint(&["/none"])
}

#[test]
fn every_source_yields_the_same_image() {
    let g = Gantry::new();
    let id = g.fixture();
    let standard = g.scratch().join("standard");
    let same = [
        format!("oci:{}", standard.join("layout").display()),
        format!("oci:{}:latest", standard.join("layout").display()),
        format!("oci-archive:{}", standard.join("oci.tar").display()),
        standard.join("layout").display().to_string(),
        standard.join("oci.tar").display().to_string(),
    ];
    for reference in &same {
        assert!(g.run(&["fetch", reference]).ok().stdout.contains(&id), "{reference}");
    }
    let archive = std::fs::read(standard.join("oci.tar")).unwrap();
    assert!(g.run_with_input(&["fetch", "-"], &archive).ok().stdout.contains(&id), "stdin");
    assert_eq!(g.json(&["image", "list"]).as_array().map(Vec::len), Some(1));

    let docker = format!("docker-archive:{}", standard.join("docker.tar").display());
    g.run(&["fetch", &docker]).succeeded();
    let out = g.run(&["run", "--net=none", STANDARD_NAME, "--", "cat", "/lower/kept"]).ok();
    assert_eq!(out.stdout, "from the lower layer\n");
}

#[test]
fn every_compression_and_both_media_types_are_accepted() {
    let g = Gantry::new();
    for (i, (compression, style)) in [Compression::Gzip, Compression::Zstd, Compression::Plain]
        .into_iter()
        .flat_map(|c| [(c, Style::Oci), (c, Style::Docker)])
        .enumerate()
    {
        let layer = Layer::new().compression(compression).dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
        let image = Image::builder().layer(layer).entrypoint(&["/bin/app"]).style(style).build().unwrap();
        let id = g.import(&format!("image-{i}"), &image);
        assert_eq!(g.run(&["run", "--net=none", &id, "--", "args", "in"]).ok().stdout, "[\"in\"]\n", "{compression:?}");
    }
}

#[test]
fn images_are_listed_shown_and_removed() {
    let g = Gantry::new();
    let id = g.fixture();
    let list = g.json(&["image", "list"]);
    assert_eq!(list[0]["id"], id.as_str());
    assert!(g.run(&["images"]).ok().stdout.contains(&id[7..19]));
    assert_eq!(g.run(&["image", "cat-manifest", &id]).ok().json()["schemaVersion"], 2);
    let short = &id[..7 + 12];
    assert_eq!(g.run(&["run", "--net=none", short, "--", "args"]).ok().stdout, "[]\n");
    g.remove_all();
    g.run(&["image", "rm", short]).succeeded();
    assert_eq!(g.json(&["image", "list"]), json!([]));
    for dir in ["trees", "blobs"] {
        let left = walk(&g.dir().join(dir));
        assert_eq!(left, Vec::<String>::new(), "{dir} is not empty");
    }
}

#[test]
fn image_id_prefixes_are_accepted_everywhere() {
    let g = Gantry::new();
    let id = g.fixture();
    let hex = &id["sha256:".len()..];
    for short in [&id[..], hex, &hex[..12], &hex[..8], &format!("sha256:{}", &hex[..8])] {
        assert_eq!(g.run(&["fetch", short]).ok().text(), id, "{short}");
        assert_eq!(g.run(&["run", "--rm", "--net=none", short, "--", "args"]).ok().stdout, "[]\n", "{short}");
        let _ = g.run(&["image", "cat-manifest", short]).ok();
    }
    let _ = g.run(&["run", &hex[..7]]).exits(125).stderr_contains(&["names no registry", "8 digits or more"]);
    let _ = g.run(&["fetch", "deadbeef00"]).exits(125).stderr_contains(&["or an id that begins so"]);
    g.run(&["image", "rm", &hex[..12]]).succeeded();
}

#[test]
fn archives_replace_names_only_when_allowed() {
    let g = Gantry::new();
    let (good, evil) = (tiny("good").build().unwrap(), tiny("evil").build().unwrap());
    let archive = |name: &str, image: &gantry_fixtures::Image| {
        let path = g.scratch().join(format!("{name}.tar"));
        gantry_fixtures::write_docker_archive(&path, image, "alpine:3").unwrap();
        path.display().to_string()
    };
    let (good_path, evil_path) = (archive("good", &good), archive("evil", &evil));
    let first = g.run(&["fetch", &good_path]).ok();
    let owner = g.json(&["image", "list"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(first.text(), owner);
    g.run(&["fetch", &good_path]).succeeded();
    for command in [&["fetch"][..], &["run", "--net=none"]] {
        let out = g.run(&[command, &[&evil_path]].concat()).exits(125);
        let _ = out.stderr_contains(&["docker.io/library/alpine:3", "name of another image", "--force"]);
    }
    assert_eq!(g.json(&["image", "list"]).as_array().map(Vec::len), Some(1), "nothing was imported");
    for quiet in [&["--force"][..], &["--force", "--quiet"]] {
        for (path, from) in [(&evil_path, "good"), (&good_path, "evil")] {
            let out = g.run(&[&["fetch"], quiet, &[path]].concat()).ok();
            assert!(out.stderr.contains("docker.io/library/alpine:3 was moved from image"), "{from}: {out}");
        }
    }
}

#[test]
fn names_of_files_are_not_taken_silently() {
    let g = Gantry::new();
    let (one, two) = (tiny("one").build().unwrap(), tiny("two").build().unwrap());
    let names = |id: &str| g.json(&["image", "inspect", id])[0]["names"].clone();
    let layout = g.layout("again", &one);
    let first = g.run(&["fetch", &layout]).ok().text().to_owned();
    let given = names(&first);
    assert_eq!(given.as_array().map(Vec::len), Some(1), "{given}");
    std::fs::remove_dir_all(g.scratch().join("again")).unwrap();
    let layout = g.layout("again", &two);
    let out = g.run(&["fetch", "--quiet", &layout]).ok();
    let second = out.text().to_owned();
    assert!(out.stderr.contains(given[0].as_str().unwrap()) && out.stderr.contains("--force"), "{out}");
    assert_eq!((names(&first), names(&second)), (given.clone(), json!([])));
    let out = g.run(&["fetch", "--force", &layout]).ok();
    assert!(out.stderr.contains("was moved from image"), "{out}");
    assert_eq!((names(&first), names(&second)), (json!([]), given));
    // A name that no image can have is reported, and the archive's file gives one.
    let archive = g.scratch().join("backup.tar");
    gantry_fixtures::write_docker_archive(&archive, &tiny("three").build().unwrap(), "Upper/X:1").unwrap();
    let out = g.run(&["image", "load", "--input", &archive.display().to_string()]).ok();
    assert!(out.stderr.contains("'Upper/X:1' is not valid"), "{out}");
    assert_eq!(names(out.text()), json!(["backup:latest"]));
}

/// Every file below a directory.
fn walk(dir: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        match path.is_dir() && !path.is_symlink() {
            true => found.extend(walk(&path)),
            false => found.push(path.display().to_string()),
        }
    }
    found
}

#[test]
fn images_in_use_are_not_removed() {
    let g = Gantry::new();
    let id = g.fixture();
    let pod = pod_id(&g.run(&["prepare", "--net=none", &id, "--", "args"]).ok());
    let _ = g.run(&["image", "rm", &id]).exits(125).stderr_contains(&[&pod[..8]]);
    g.run(&["image", "gc", "--grace-period=0s"]).succeeded();
    assert_eq!(g.run(&["run-prepared", &pod]).ok().stdout, "[]\n");
    g.run(&["rm", &pod]).succeeded();
    g.run(&["image", "gc", "--grace-period=0s"]).succeeded();
    assert_eq!(g.json(&["image", "list"]), json!([]));
}

#[test]
fn inconsistent_images_are_rejected() {
    let g = Gantry::new();
    let edited = |edit: fn(&mut serde_json::Value)| tiny("x").edit_manifest(edit).build().unwrap();
    let wrong = format!("sha256:{}", "0".repeat(64));
    let mut images = vec![
        ("a layer larger than its blob", edited(|m| m["layers"][0]["size"] = json!(1_000_000))),
        ("a layer smaller than its blob", edited(|m| m["layers"][0]["size"] = json!(1))),
        ("no layers", edited(|m| m["layers"] = json!([]))),
        ("no diff_ids", tiny("x").edit_config(|config| config["rootfs"]["diff_ids"] = json!([])).build().unwrap()),
        ("a layer twice", edited(|m| m["layers"] = json!([m["layers"][0], m["layers"][0]]))),
        ("a strange digest", edited(|m| m["layers"][0]["digest"] = json!("md5:0123"))),
        ("a digest with a path", edited(|m| m["layers"][0]["digest"] = json!("sha256:../../../../etc/passwd"))),
        ("index and manifest at once", edited(|m| m["manifests"] = json!([]))),
        ("a config of a strange type", edited(|m| m["config"] = json!(7))),
    ];
    let lie = tiny("x").edit_config(move |config| config["rootfs"]["diff_ids"][0] = json!(wrong));
    images.push(("a diff_id that is not the layer's", lie.build().unwrap()));
    let other = tiny("x").platform("plan9", "mips");
    images.push(("another platform", other.build().unwrap()));
    for (i, (what, image)) in images.iter().enumerate() {
        let out = g.run(&["fetch", &g.layout(&format!("lie-{i}"), image)]);
        assert_eq!(out.code, 125, "{what}: {out}");
        let _ = out.stderr_contains(&[]);
    }
    assert_eq!(g.json(&["image", "list"]), json!([]));
    g.check_invariants();
}

#[test]
fn damaged_layouts_are_rejected() {
    let g = Gantry::new();
    let image = tiny("x").build().unwrap();
    let blob = digest(&image.layers[0].blob).replace(':', "/");
    for (i, damage) in [&b""[..], b"garbage", &image.layers[0].blob[..20]].into_iter().enumerate() {
        let name = format!("damaged-{i}");
        let reference = g.layout(&name, &image);
        std::fs::write(g.scratch().join(name).join("blobs").join(&blob), damage).unwrap();
        let _ = g.run(&["fetch", &reference]).exits(125).stderr_contains(&["sha256"]);
    }
    let reference = g.layout("deep", &image);
    let index = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    std::fs::write(g.scratch().join("deep/index.json"), index).unwrap();
    let _ = g.run(&["fetch", &reference]).exits(125).stderr_contains(&["index.json"]);
    let reference = g.layout("link", &image);
    let manifest = g.scratch().join("link/blobs").join(image.id().replace(':', "/"));
    std::fs::remove_file(&manifest).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &manifest).unwrap();
    let out = g.run(&["fetch", &reference]).exits(125);
    assert!(!out.stderr.contains("root:"), "a file of the host is in the message: {out}");
}

#[test]
fn hostile_layers_stay_inside_their_directory() {
    let g = Gantry::new();
    let marker = g.scratch().join("marker");
    let name = marker.display().to_string();
    let up = "../".repeat(30);
    let rows = [
        ("dots", Layer::new().file(format!("{up}{}", &name[1..]), b"x", 0o644)),
        ("absolute", Layer::new().file(&name, b"x", 0o644)),
        ("through a link", Layer::new().symlink("a", "/").file(format!("a{name}"), b"x", 0o644)),
        ("hard link out", Layer::new().hardlink("a", format!("{up}etc/shadow"))),
        ("whiteout of dots", Layer::new().file("a/.wh...", b"", 0o644)),
        ("cut short", Layer::new().file("a", vec![0; 4096], 0o644).unfinished()),
    ];
    for (what, layer) in rows {
        let image = Image::builder().layer(layer).entrypoint(&["/a"]).build().unwrap();
        let out = g.run(&["fetch", &g.layout(&what.replace(' ', "-"), &image)]);
        assert!(matches!(out.code, 0 | 125), "{what}: {out}");
        assert!(!marker.exists(), "{what}: written outside");
        let _ = out.stderr_contains(&[]);
    }
    g.check_invariants();
}

#[test]
fn concurrent_fetches_yield_one_image() {
    let g = Gantry::new();
    let layer = Layer::new().file("noise", vec![7u8; 20_000_000], 0o644);
    let image = Image::builder().layer(layer).entrypoint(&["/x"]).build().unwrap();
    let reference = g.layout("shared", &image);
    let all: Vec<_> = (0..4).map(|_| g.spawn(&["fetch", &reference])).collect();
    for fetch in all {
        assert!(fetch.wait().ok().stdout.contains(&image.id()));
    }
    assert_eq!(g.json(&["image", "list"]).as_array().map(Vec::len), Some(1));
    g.check_invariants();
}

/// Fetching an image again repairs the damage that `doctor --deep` reports, also while a pod runs from the image.
#[test]
fn a_damaged_image_is_repaired() {
    let g = Gantry::new();
    let layers = [
        Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755),
        Layer::new().file("data", "as it was unpacked", 0o644),
    ];
    let image = layers.into_iter().fold(Image::builder(), |image, layer| image.layer(layer));
    let image = image.entrypoint(&["/bin/app"]).build().unwrap();
    let reference = g.layout("image", &image);
    let id = g.run(&["fetch", &reference]).ok().text().to_owned();
    let run = |verb: &[&str]| g.run(&[&["run", "--rm", "--net=none", &id, "--"], verb].concat());
    let running = pod_id(&g.run(&["run", "-d", "--net=none", &id, "--", "sleep", "forever"]).ok());
    g.run(&["doctor", "--deep"]).succeeded();

    // One byte of the configuration.
    let blobs: Vec<_> = files_below(&g.dir().join("blobs"));
    let config = blobs.iter().find(|path| !path.ends_with(id.trim_start_matches("sha256:"))).unwrap();
    let mut bytes = fs::read(config).unwrap();
    bytes[10] ^= 1;
    fs::write(config, bytes).unwrap();
    assert!(g.run(&["doctor", "--deep"]).exits(1).stdout.contains("is damaged"));
    let _ = run(&["true"]).exits(125);
    g.run(&["fetch", &reference]).succeeded();
    run(&["true"]).succeeded();
    g.run(&["doctor", "--deep"]).succeeded();

    // One byte of a file, with the same length and times.
    let trees = g.dir().join("trees");
    let data = || files_below(&trees).into_iter().find(|path| path.ends_with("data")).unwrap();
    let times = fs::metadata(data()).unwrap().modified().unwrap();
    fs::write(data(), "as it was uNpacked").unwrap();
    fs::File::options().write(true).open(data()).unwrap().set_modified(times).unwrap();
    let doctor = g.run(&["doctor", "--deep"]).exits(1).stdout;
    assert!(doctor.contains("'data' is not what was unpacked") && doctor.contains("fetch the image again"), "{doctor}");
    assert_eq!(g.run(&["doctor"]).code, 1, "it stays damaged");
    g.run(&["fetch", &reference]).succeeded();
    g.run(&["doctor", "--deep"]).succeeded();
    assert!(run(&["cat", "/data"]).ok().stdout.contains("as it was unpacked"));
    // The running pod keeps its mounted files.
    assert!(g.run(&["exec", &running, "--", "/bin/app", "cat", "/data"]).ok().stdout.contains("uNpacked"));
    let replaced = || fs::read_dir(&trees).unwrap().filter(|entry| is_replaced(entry.as_ref().unwrap())).count();
    g.run(&["image", "gc"]).succeeded();
    assert_eq!(replaced(), 1);
    g.run(&["stop", &running]).succeeded();
    g.run(&["image", "gc"]).succeeded();
    assert_eq!(replaced(), 0);
    g.run(&["rm", &running]).succeeded();
    g.run(&["image", "rm", &id]).succeeded();
    assert_eq!(fs::read_dir(g.dir().join("contents")).unwrap().count(), 0);
    g.check_invariants();
}

fn is_replaced(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with("replaced-")
}

/// All files below a directory.
fn files_below(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    all.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// The policy is about registries.
#[test]
fn archives_are_imported_with_any_policy() {
    let g = Gantry::new();
    let image = tiny("local").build().unwrap();
    let layout = g.layout("local", &image);
    for flag in ["--pull=never", "--pull=update"] {
        assert_eq!(g.run(&["fetch", flag, &layout]).ok().text(), image.id(), "{flag}");
        g.run(&["image", "rm", &image.id()]).succeeded();
    }
    let _ = g.run(&["fetch", "--pull=never", "reg.example/a:1"]).exits(125).stderr_contains(&["is not in the store"]);
}
