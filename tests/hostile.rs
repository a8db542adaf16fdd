//! Hostile images, fetched and run through the command line. Test names carry a class (a: layers, b: documents, c:
//! paths that the runtime touches) and numbers within it. Each image is either refused or confined; afterwards nothing
//! outside the data directory has changed, no temporary file is left, and `gantry doctor` finds nothing.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gantry_fixtures::{Compression, Device, Header, Image, ImageBuilder, Layer};
use gantry_tests::{Gantry, Out};
use rustix::fs::lgetxattr;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha512};

const FAILED: i32 = 125;
/// Deadline of one command, generous for a debug build on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// A gantry with files outside its data directory that must not change.
struct Target {
    g: Gantry,
    outside: PathBuf,
    before: BTreeMap<PathBuf, String>,
    /// The harness's configuration file, and its state.
    config: (PathBuf, BTreeMap<PathBuf, String>),
}

impl Target {
    fn new() -> Self {
        let g = Gantry::new();
        g.run(&["image", "list"]).succeeded();
        let outside = g.scratch().parent().unwrap().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("canary"), "alive").unwrap();
        fs::create_dir(outside.join("dir")).unwrap();
        fs::write(outside.join("dir/deep"), "alive too").unwrap();
        let before = facts(&outside);
        let config = outside.with_file_name("config.toml");
        let config = (config.clone(), facts(&config));
        Self { g, outside, before, config }
    }

    /// Asserts that nothing outside the data directory has changed.
    #[track_caller]
    fn assert_untouched(&self, what: &str) {
        assert_eq!(facts(&self.outside), self.before, "{what}: written outside of the data directory");
        assert_eq!(facts(&self.config.0), self.config.1, "{what}: the configuration was changed");
        let home = self.outside.parent().unwrap();
        let mut names: Vec<_> = fs::read_dir(home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["config.toml", "data", "outside", "scratch"], "{what}: made beside the data directory");
    }

    fn fetch(&self, image: ImageBuilder) -> Out {
        let reference = self.g.layout("image", &image.build().unwrap());
        let out = self.g.run_within(COMMAND_TIMEOUT, &["fetch", &reference]);
        fs::remove_dir_all(self.g.scratch().join("image")).unwrap();
        out.stderr_contains(&[])
    }

    /// Fetches a layer that must be rejected with a message that contains all of `says`.
    #[track_caller]
    fn refuses(&self, what: &str, layer: Layer, says: &[&str]) {
        let out = self.fetch(image_with(layer));
        println!("{what}: {}", out.stderr.trim());
        assert_eq!(out.code, FAILED, "{what}: {out}");
        assert!(says.iter().all(|text| out.stderr.contains(text)), "{what}: expected {says:?} in {out}");
        self.assert_nothing(what);
    }

    /// Asserts that there is no image, no leftover and no change outside.
    #[track_caller]
    fn assert_nothing(&self, what: &str) {
        assert_eq!(self.g.json(&["image", "list"]), json!([]), "{what}");
        self.assert_untouched(what);
        self.g.check_invariants();
    }

    /// Fetches a layer that must be accepted, inspects its tree, and removes it again.
    #[track_caller]
    fn confines(&self, what: &str, layer: Layer, look: impl FnOnce(&Path)) {
        let out = self.fetch(image_with(layer));
        assert_eq!(out.code, 0, "{what}: {out}");
        self.assert_untouched(what);
        let trees: Vec<_> = fs::read_dir(self.g.dir().join("trees")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(trees.len(), 1, "{what}: {trees:?}");
        look(&trees[0]);
        self.g.run(&["image", "rm", out.text()]).succeeded();
        self.assert_nothing(what);
    }

    /// A path that leads to an outside file by `..`.
    fn dots(&self, name: &str) -> String {
        format!("{}{}", "../".repeat(40), self.absolute(name).trim_start_matches('/'))
    }

    fn absolute(&self, name: &str) -> String {
        self.outside.join(name).display().to_string()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_untouched("at the end");
        }
    }
}

/// The metadata and contents of a directory and all files below it.
fn facts(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut rest = vec![dir.to_owned()];
    while let Some(path) = rest.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            rest.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let opaque = xattr(&path, "trusted.overlay.opaque").is_some();
        let (mode, owner, links) = (meta.mode(), (meta.uid(), meta.gid()), meta.nlink());
        let text = format!("{mode:o} {owner:?} {links} {} {opaque} {content:?}", meta.mtime_nsec());
        found.insert(path, text);
    }
    found
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0u8; 65_536];
    let length = lgetxattr(path, name, value.as_mut_slice()).ok()?;
    value.truncate(length);
    Some(value)
}

/// An image of one layer.
fn image_with(layer: Layer) -> ImageBuilder {
    Image::builder().layer(layer).entrypoint(&["/x"])
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    // A layer's own packing is the fixtures' way to gzip.
    Layer::new().raw(bytes).unfinished().pack().unwrap().blob
}

#[test]
fn a01_to_a03_escaping_names() {
    let t = Target::new();
    t.refuses("dots", Layer::new().file(t.dots("canary"), b"x", 0o644), &["'..'"]);
    t.refuses("dots inside", Layer::new().dir("a", 0o755).file("a/../../b", b"x", 0o644), &["'..'"]);
    t.refuses("a directory of dots", Layer::new().dir("..", 0o777), &["'..'"]);
    t.refuses("cron", Layer::new().file("../../etc/cron.d/x", b"x", 0o644), &["'..'"]);
    let absolute = t.absolute("canary");
    t.confines("absolute", Layer::new().file(&absolute, b"x", 0o644), |tree| {
        assert_eq!(fs::read(tree.join(&absolute[1..])).unwrap(), b"x");
    });
    for (what, target) in [("root", "/".to_owned()), ("dots", "../".repeat(40)), ("outside", t.absolute(""))] {
        let inside = if what == "outside" { "a/canary".to_owned() } else { format!("a{absolute}") };
        let layer = Layer::new().symlink("a", &target).file(&inside, b"x", 0o644);
        t.confines(&format!("through a link to {what}"), layer, |tree| {
            let written = tree.join(&absolute[1..]);
            assert_eq!(fs::read(written).unwrap(), b"x", "a link is followed inside the layer");
        });
    }
    let over = Layer::new().dir("a", 0o755).symlink("a", t.absolute("dir")).file("a/deep", b"x", 0o644);
    t.confines("a link over a directory", over, |tree| {
        assert_eq!(fs::read(tree.join(&t.absolute("dir/deep")[1..])).unwrap(), b"x");
    });
}

#[test]
fn a04_directory_swapped_for_a_link() {
    let t = Target::new();
    let mut layer = Layer::new().dir("d", 0o755);
    for i in 0..4000 {
        layer = layer.file(format!("d/canary-{i}"), b"x", 0o644);
    }
    let (tmp, outside, over) = (t.g.dir().join("tmp"), t.outside.clone(), AtomicBool::new(false));
    let out = std::thread::scope(|scope| {
        let swaps = scope.spawn(|| {
            let mut swaps = 0;
            while !over.load(Ordering::Relaxed) {
                for staging in fs::read_dir(&tmp).into_iter().flatten().flatten() {
                    let (dir, aside) = (staging.path().join("d"), staging.path().join("aside"));
                    // Each step may come too late or too early.
                    if fs::rename(&dir, &aside).is_ok() {
                        swaps += u32::from(symlink(&outside, &dir).is_ok());
                        let _missed = fs::remove_file(&dir).and_then(|()| fs::rename(&aside, &dir));
                    }
                }
            }
            swaps
        });
        let out = t.fetch(image_with(layer));
        over.store(true, Ordering::Relaxed);
        assert!(swaps.join().unwrap() > 0, "the race was never run: {out}");
        out
    });
    // Both outcomes are right: openat(2) fails with ELOOP if it meets the link, and the unpacker notices nothing if
    // every swap falls between two of its system calls.
    assert!(matches!(out.code, 0 | FAILED), "{out}");
    if out.code == 0 {
        t.g.run(&["image", "rm", out.text()]).succeeded();
    }
    // The swaps can also hide directories from the clean-up; garbage collection finds them.
    t.g.run(&["gc"]).succeeded();
    t.assert_nothing("swapped");
}

#[test]
fn a05_and_a06_hard_links() {
    let t = Target::new();
    t.refuses("to the host by dots", Layer::new().hardlink("a", "../../../etc/shadow"), &["'..'"]);
    t.refuses("to outside by dots", Layer::new().hardlink("a", t.dots("canary")), &["'..'"]);
    t.refuses("to outside, absolute", Layer::new().hardlink("a", t.absolute("canary")), &["no layer has"]);
    let through = Layer::new().symlink("l", t.absolute("")).hardlink("a", "l/canary");
    t.refuses("through a link", through, &["no layer has"]);
    let (to, absolute) = (t.absolute("canary"), t.absolute("canary"));
    t.confines("to a link", Layer::new().symlink("l", &to).hardlink("a", "l"), |tree| {
        assert_eq!(fs::read_link(tree.join("a")).unwrap(), Path::new(&absolute));
    });
    let written = Layer::new().symlink("l", &to).hardlink("a", "l").file("a", b"x", 0o777);
    t.confines("to a link, then written to", written, |tree| assert_eq!(fs::read(tree.join("a")).unwrap(), b"x"));
}

#[test]
fn a07_and_a08_whiteouts() {
    let t = Target::new();
    for name in [".wh...", ".wh..", "a/.wh...", "a/.wh.", ".wh.a/b"] {
        t.refuses(name, Layer::new().dir("a", 0o755).file(name, b"", 0o644), &["whiteout"]);
    }
    t.refuses("dots", Layer::new().file(format!(".wh.../{}", t.dots("canary")), b"", 0o644), &["layer"]);
    for (what, to) in [("absolute", t.absolute("")), ("by dots", t.dots(""))] {
        let link = || Layer::new().symlink("a", &to);
        t.confines(&format!("opaque, {what}"), link().file("a/.wh..wh..opq", b"", 0o644), |_| {});
        t.confines(&format!("whiteout, {what}"), link().file("a/.wh.canary", b"", 0o644), |_| {});
    }
}

#[test]
fn a09_devices_and_fifos() {
    let t = Target::new();
    let layer = Layer::new()
        .device("fifo", Device::Fifo, 0o666)
        .device("disk", Device::Block(8, 0), 0o666)
        .device("mem", Device::Char(1, 1), 0o666)
        .hardlink("fifo-too", "fifo")
        .file("x", b"", 0o755);
    t.confines("devices", layer, |tree| {
        let kind = |name: &str| fs::symlink_metadata(tree.join(name)).unwrap().file_type();
        assert!(kind("fifo").is_fifo() && kind("fifo-too").is_fifo());
        // Only root may enter data directories, so the nodes give other users no access.
        assert_eq!(fs::metadata(t.g.dir()).unwrap().permissions().mode() & 0o077, 0);
    });
    let fifo = || Layer::new().device("a", Device::Fifo, 0o666);
    t.confines("a file over a fifo", fifo().file("a", b"x", 0o644), |tree| {
        assert_eq!(fs::read(tree.join("a")).unwrap(), b"x");
    });
    t.refuses("a file in a fifo", fifo().file("a/b", b"x", 0o644), &["needs a directory"]);
    let socket = Layer::new().raw_header(&Header::new(b's', "socket"), b"");
    t.refuses("a socket", socket, &["kind"]);
}

#[test]
fn a10_and_a11_attributes() {
    let t = Target::new();
    // VFS_CAP_REVISION_2 with all permitted and effective (linux/capability.h).
    let capability = [&[1u8, 0, 0, 2][..], &[0xff; 4], &[0; 4], &[0xff; 4], &[0; 4]].concat();
    let layer = Layer::new().xattr("security.capability", &capability).file("x", b"#!", 0o4755);
    t.confines("setuid and capabilities", layer, |tree| {
        assert_eq!(fs::metadata(tree.join("x")).unwrap().mode() & 0o7777, 0o4755);
        assert_eq!(xattr(&tree.join("x"), "security.capability"), Some(capability.clone()));
        assert_eq!(fs::metadata(t.g.dir()).unwrap().mode() & 0o077, 0, "the host's users can reach it");
    });
    let names =
        ["trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.opaque", "trusted.x", "security.ima"];
    let mut layer = Layer::new();
    for name in names {
        layer = layer.xattr(name, b"y");
    }
    t.confines("attributes that steer overlayfs", layer.dir("d", 0o755), |tree| {
        for name in names {
            assert_eq!(xattr(&tree.join("d"), name), None, "{name}");
        }
    });
    let long = format!("user.{}", "n".repeat(65_536));
    t.refuses("a name of 64 KiB", Layer::new().xattr(&long, b"x").file("x", b"", 0o644), &["attribute"]);
    t.refuses("a large value", Layer::new().xattr("user.x", &[7; 100_000]).file("x", b"", 0o644), &["attribute"]);
    let mut many = Layer::new();
    for i in 0..2000 {
        many = many.xattr(&format!("user.{i}"), b"x");
    }
    t.refuses("very many", many.file("x", b"", 0o644), &["attributes"]);
}

#[test]
fn a12_contradictory_sizes() {
    let t = Target::new();
    // By one size the inner archive is data of `a`, by the other its entries follow. The extended header counts
    // (POSIX.1-2024, pax).
    let inner = Layer::new().file("smuggled", b"x", 0o644).unfinished().tar();
    let size = inner.len().to_string();
    for (pax, header) in [(size.as_str(), 0), ("0", inner.len() as u64)] {
        let lie = Header { size: header, ..Header::new(b'0', "a") };
        let layer = Layer::new().raw_pax(&[("size", pax.as_bytes())]).raw_header(&lie, &inner).file("last", b"", 0o644);
        t.confines(pax, layer, |tree| assert_eq!(tree.join("smuggled").exists(), pax == "0"));
    }
    let twice = Layer::new()
        .raw_pax(&[("path", b"one")])
        .raw_header(&Header { size: 4, ..Header::new(b'L', "././@LongLink") }, b"two\0")
        .file("three", b"", 0o644);
    t.refuses("two names", twice, &["tar archive"]);
    let negative = Layer::new().raw_pax(&[("size", b"-1")]).file("a", b"", 0o644);
    t.refuses("a negative size", negative, &["layer"]);
}

#[test]
fn a13_and_a14_impossible_sizes() {
    let t = Target::new();
    for kind in [b'L', b'K', b'x', b'g'] {
        let lie = Header { size: 2 << 30, ..Header::new(kind, "././@LongLink") };
        let what = format!("2 GiB of {}", char::from(kind));
        t.refuses(&what, Layer::new().raw_header(&lie, b"name").file("x", b"", 0o644), &["limit"]);
    }
    let mut chain = Layer::new();
    for _ in 0..5000 {
        chain = chain.raw_header(&Header { size: 2, ..Header::new(b'V', "label") }, b"x\0");
    }
    t.refuses("5000 extensions", chain.file("x", b"", 0o644), &["extension headers"]);
    let mut links = Layer::new().symlink("l0", t.absolute(""));
    for i in 1..100 {
        links = links.symlink(format!("l{i}"), format!("l{}", i - 1));
    }
    t.refuses("a hundred links", links.file("l99/canary", b"x", 0o644), &["symbolic links"]);
    t.refuses("a link to itself", Layer::new().symlink("l", "l").file("l/a", b"x", 0o644), &["symbolic links"]);
    let eib = (8u64 << 60) - 1;
    let numbers = format!("{}", eib);
    let sparse: &[(&str, &[u8])] =
        &[("GNU.sparse.name", b"x"), ("GNU.sparse.size", numbers.as_bytes()), ("GNU.sparse.map", b"0,0")];
    t.refuses("8 EiB of holes", Layer::new().raw_pax(sparse).file("x", b"", 0o644), &["limit"]);
    let plain = Header { size: eib, ..Header::new(b'0', "x") };
    t.refuses("8 EiB of data", Layer::new().raw_header(&plain, b"x"), &["layer"]);
    let wraps = Header { patches: vec![(124, vec![0xff; 12])], ..Header::new(b'0', "x") };
    t.refuses("a size of -1", Layer::new().raw_header(&wraps, b"x"), &["layer"]);
}

#[test]
fn a15_and_a16_compression() {
    let t = Target::new();
    // zstd compresses zeros 30,000 times, also in honest layers. The length is limited, before anything is written.
    let zeros = Layer::new().compression(Compression::Zstd).file("zeros", vec![0; 128 << 20], 0o644);
    t.confines("128 MiB of zeros", zeros, |tree| {
        assert_eq!(fs::metadata(tree.join("zeros")).unwrap().len(), 128 << 20);
    });
    let bomb = Header { size: (64 << 30) + 1, ..Header::new(b'0', "zeros") };
    let bomb = Layer::new().compression(Compression::Zstd).raw_header(&bomb, b"").raw(vec![0; 128 << 20]);
    t.refuses("a bomb", bomb, &["limit"]);
    let honest = Layer::new().file("x", b"x", 0o644);
    let (packed, tar) = (honest.pack().unwrap().blob, honest.tar());
    let with = |tail: &[u8]| [&packed, tail].concat();
    t.refuses("garbage behind", honest.clone().packed_as(with(b"garbage")), &["layer"]);
    t.refuses("half a member behind", honest.clone().packed_as(with(&packed[..12])), &["layer"]);
    t.refuses("cut short", honest.clone().packed_as(&packed[..packed.len() - 4]), &["layer"]);
    t.confines("zeros behind", honest.clone().packed_as(with(&[0; 1024])), |tree| assert!(tree.join("x").exists()));
    let members = [gzip(&tar[..700]), gzip(&tar[700..])].concat();
    t.confines("two members", honest.clone().packed_as(members), |tree| assert!(tree.join("x").exists()));
    let nested = honest.clone().packed_as(gzip(&packed));
    t.refuses("gzip in gzip", nested, &["layer"]);
    // A frame whose window is 2^31 bytes (RFC 8878 section 3.1.1.1.2), with one empty last block.
    let window = honest.compression(Compression::Zstd).packed_as([0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 1, 0, 0]);
    t.refuses("a window of 2 GiB", window, &["layer"]);
}

#[test]
fn a17_too_many_entries() {
    let t = Target::new();
    // Entries with this name create no inode but count. They are a gigabyte of headers in 2 MB.
    let thousand = (0..1000).fold(Layer::new(), |layer, _| layer.raw_header(&Header::new(b'0', ".wh..wh.plnk"), b""));
    let member = gzip(&thousand.unfinished().tar());
    let layer = Layer::new().packed_as(member.repeat(2001));
    t.refuses("two million entries", layer, &["limit", "2000000"]);
}

#[test]
fn a18_extreme_names() {
    let t = Target::new();
    let deep = |depth: usize| "d/".repeat(depth);
    t.refuses("5000 deep", Layer::new().raw_pax(&[("path", deep(5000).as_bytes())]).file("x", b"", 0o644), &["4095"]);
    t.refuses("2000 deep", Layer::new().file(format!("{}x", deep(2000)), b"", 0o644), &["deep"]);
    t.confines("900 deep", Layer::new().file(format!("{}x", deep(900)), b"x", 0o644), |tree| {
        assert!(tree.join(deep(900)).join("x").exists());
    });
    let mut nested = Layer::new();
    for i in 1..=999 {
        nested = nested.dir(deep(i), 0o755);
    }
    t.confines("one in the other", nested, |tree| assert!(tree.join(deep(999)).exists()));
    t.refuses("a long path", Layer::new().file(vec![b'a'; 5000], b"", 0o644), &["4095"]);
    t.refuses("a long element", Layer::new().file(vec![b'a'; 300], b"", 0o644), &["255"]);
    t.refuses("a NUL", Layer::new().raw_pax(&[("path", b"a\0b")]).file("x", b"", 0o644), &["NUL"]);
    let odd = Layer::new()
        .file(b"new\nline", b"", 0o644)
        .file(b"not \xff\xfe utf-8", b"", 0o644)
        .file("\u{1b}[31mred\u{202e}gnp", b"", 0o644)
        .file("-rf", b"", 0o644)
        .symlink("link", b"to\n\xff");
    t.confines("odd bytes", odd, |tree| {
        let names: Vec<_> = fs::read_dir(tree).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect();
        assert!(names.contains(&b"new\nline".to_vec()) && names.contains(&b"not \xff\xfe utf-8".to_vec()), "{names:?}");
    });
    // Names in messages are escaped; `fetch` looks for raw control characters in every one.
    t.refuses("an escape refused", Layer::new().file("\u{1b}]0;pwned\u{7}/../x", b"", 0o644), &["\\u{1b}"]);
    t.refuses("a name of a line", Layer::new().file("a\ngantry: all is well\n/../x", b"", 0o644), &["a\\ngantry"]);
}

#[test]
fn a19_duplicate_names_of_different_kinds() {
    let t = Target::new();
    let outside = t.absolute("dir");
    let kinds: [fn(Layer, &str) -> Layer; 5] = [
        |layer, _| layer.file("n", b"x", 0o644),
        |layer, _| layer.dir("n", 0o755).file("n/inner", b"x", 0o644),
        |layer, outside| layer.symlink("n", outside),
        |layer, _| layer.device("n", Device::Fifo, 0o644),
        |layer, _| layer.file(".wh.n", b"", 0o644),
    ];
    for (i, first) in kinds.iter().enumerate() {
        for (j, second) in kinds.iter().enumerate() {
            let layer = second(first(Layer::new(), &outside), &outside);
            t.confines(&format!("{i} then {j}"), layer.file("n2", b"", 0o644), |tree| {
                assert!(tree.join("n2").exists())
            });
        }
    }
    let last = Layer::new().dir("n", 0o755).file("n/inner", b"x", 0o644).file("n", b"file", 0o644);
    t.confines("the last wins", last, |tree| assert_eq!(fs::read(tree.join("n")).unwrap(), b"file"));
}

#[test]
fn a20_numbers_out_of_range() {
    let t = Target::new();
    for (what, record) in [("uid", "4294967295"), ("uid", "-1"), ("gid", "4294967296"), ("uid", "99999999999999999999")]
    {
        let layer = Layer::new().raw_pax(&[(what, record.as_bytes())]).file("x", b"", 0o644);
        t.refuses(&format!("{what} {record}"), layer, &["layer"]);
    }
    for mtime in ["-9223372036854775808", "9223372036854775807", "-1.5", "0.9999999999999"] {
        let layer = Layer::new().raw_pax(&[("mtime", mtime.as_bytes())]).file("x", b"", 0o644);
        t.confines(mtime, layer, |tree| {
            let seconds = fs::metadata(tree.join("x")).unwrap().mtime();
            assert!((-1 << 31..1 << 34).contains(&seconds), "{mtime}: {seconds}");
        });
    }
    let high = Header { mode: 0o177_777, ..Header::new(b'0', "x") };
    t.confines("a mode with high bits", Layer::new().raw_header(&high, b""), |tree| {
        assert_eq!(fs::metadata(tree.join("x")).unwrap().mode(), 0o107_777);
    });
    let sum = Header { checksum: Some(1), ..Header::new(b'0', "x") };
    t.refuses("a wrong checksum", Layer::new().raw_header(&sum, b""), &["checksum"]);
}

#[test]
fn a21_truncation_at_every_block() {
    let t = Target::new();
    let steps: [fn(Layer) -> Layer; 4] = [
        |layer| layer.dir("d", 0o755),
        |layer| layer.xattr("user.x", b"y").file("d/f", vec![1; 1500], 0o644),
        |layer| layer.symlink("l", "x".repeat(200)),
        |layer| layer.hardlink("h", "d/f"),
    ];
    // Programs write layers without blocks of zeros at the end, or with one: their digests show that they are whole.
    let (mut whole, mut ends) = (Layer::new(), vec![0]);
    for step in steps {
        whole = step(whole);
        ends.push(whole.clone().unfinished().tar().len() / 512);
    }
    ends.extend(ends.last().map(|end| end + 1));
    let tar = whole.tar();
    for blocks in 0..tar.len() / 512 {
        let part = &tar[..blocks * 512];
        let (what, layer) = (format!("{blocks} blocks"), Layer::new().raw(part).unfinished());
        if ends.contains(&blocks) {
            t.confines(&what, layer, |_| {});
        } else {
            t.refuses(&what, layer, &["layer"]);
        }
        t.refuses(&what, Layer::new().raw([part, &[b'x'; 100]].concat()).unfinished(), &["layer"]);
    }
    t.confines("all blocks", whole, |tree| assert!(tree.join("h").exists()));
}

#[test]
fn a22_too_many_layers() {
    let t = Target::new();
    let layers = |n: usize| {
        let base = Layer::new().dir("bin", 0o755).file("bin/app", t.g.app_bytes(), 0o755);
        (1..n).fold(Image::builder().layer(base).entrypoint(&["/bin/app"]), |image, i| {
            image.layer(Layer::new().file(format!("layer-{i}"), i.to_string(), 0o644).file("top", i.to_string(), 0o644))
        })
    };
    for n in [129, 500] {
        let out = t.fetch(layers(n));
        assert_eq!(out.code, FAILED, "{out}");
        let _ = out.stderr_contains(&[&n.to_string(), "128"]);
        t.assert_nothing("too many layers");
    }
    let out = t.fetch(layers(128)).ok();
    let ran = t.g.run(&["run", "--net=none", "--rm", out.text(), "--", "cat", "/top", "/layer-1"]).ok();
    assert_eq!(ran.stdout, "1271");
}

/// Writes a layout whose `index.json` and blobs are these.
fn layout(t: &Target, name: &str, index: &str, blobs: &[(String, Vec<u8>)]) -> String {
    let dir = t.g.scratch().join(name);
    fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    fs::write(dir.join("index.json"), index).unwrap();
    for (digest, bytes) in blobs {
        fs::write(dir.join("blobs").join(digest.replace(':', "/")), bytes).unwrap();
    }
    format!("oci:{}", dir.display())
}

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn index_of(digest: &str, size: usize, kind: &str) -> String {
    json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [{
        "mediaType": kind, "digest": digest, "size": size, "platform": { "os": "linux", "architecture": "amd64" },
    }] })
    .to_string()
}

#[test]
fn b23_endless_indexes() {
    let t = Target::new();
    let image = image_with(Layer::new().file("x", b"x", 0o644)).build().unwrap();
    let mut blobs: Vec<(String, Vec<u8>)> = image.blobs().iter().map(|(d, b)| (d.clone(), b.to_vec())).collect();
    let mut top = index_of(&image.id(), image.manifest.len(), image.manifest_type);
    for _ in 0..100 {
        let digest = gantry_fixtures::digest(top.as_bytes());
        blobs.push((digest.clone(), top.clone().into_bytes()));
        top = index_of(&digest, top.len(), INDEX);
    }
    let deep = layout(&t, "deep", &top, &blobs);
    let _ = t.g.run_within(COMMAND_TIMEOUT, &["fetch", &deep]).exits(FAILED).stderr_contains(&["indexes"]);
    t.assert_nothing("100 indexes in one another");
    // A document cannot contain its own digest, so the loop must name a wrong one.
    let own = format!("sha256:{}", "a".repeat(64));
    let text = index_of(&own, 300, INDEX);
    let looped = layout(&t, "loop", &text, &[(own, text.clone().into_bytes())]);
    let _ =
        t.g.run_within(COMMAND_TIMEOUT, &["fetch", &looped])
            .exits(FAILED)
            .stderr_contains(&["damaged or was tampered with"]);
    t.assert_nothing("an index of itself");
}

#[test]
fn b24_to_b26_inconsistent_documents() {
    let t = Target::new();
    let plain = || image_with(Layer::new().file("x", b"x", 0o644));
    let rows: [(&str, ImageBuilder, &[&str]); 5] = [
        ("index and manifest", plain().edit_manifest(|m| m["manifests"] = json!([])), &[]),
        ("too few diff_ids", plain().edit_config(|c| c["rootfs"]["diff_ids"] = json!([])), &["layers"]),
        (
            "too many diff_ids",
            plain().edit_config(|c| {
                let first = c["rootfs"]["diff_ids"][0].clone();
                c["rootfs"]["diff_ids"] = json!([first, first]);
            }),
            &["layers"],
        ),
        ("9 MiB", plain().edit_manifest(|m| m["annotations"] = json!({ "x": "y".repeat(9 << 20) })), &["8388608"]),
        ("schema 7", plain().edit_manifest(|m| m["schemaVersion"] = json!(7)), &[]),
    ];
    for (what, image, says) in rows {
        let out = t.fetch(image);
        println!("{what}: {}", out.stderr.trim());
        assert_eq!(out.code, FAILED, "{what}: {out}");
        let _ = out.stderr_contains(says);
        t.assert_nothing(what);
    }
    let image = plain().build().unwrap();
    let doubled = String::from_utf8(image.manifest.clone()).unwrap().replacen('{', r#"{"schemaVersion":2,"#, 1);
    let deep = format!(r#"{{"schemaVersion":2,"x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    for (what, manifest) in [("a key twice", doubled), ("100000 deep", deep), ("no JSON", "\u{1b}[31m".to_owned())] {
        let digest = gantry_fixtures::digest(manifest.as_bytes());
        let mut blobs: Vec<(String, Vec<u8>)> = image.blobs().iter().map(|(d, b)| (d.clone(), b.to_vec())).collect();
        let top = index_of(&digest, manifest.len(), image.manifest_type);
        blobs.push((digest, manifest.into_bytes()));
        let reference = layout(&t, &what.replace(' ', "-"), &top, &blobs);
        let out = t.g.run_within(COMMAND_TIMEOUT, &["fetch", &reference]).exits(FAILED);
        println!("{what}: {}", out.stderr.trim());
        let _ = out.stderr_contains(&[]);
        t.assert_nothing(what);
    }
}

#[test]
fn b27_to_b29_digests() {
    let t = Target::new();
    let image = image_with(Layer::new().file("x", b"x", 0o644)).build().unwrap();
    let other = Layer::new().file("x", b"y", 0o644).pack().unwrap().blob;
    let all: Vec<(String, Vec<u8>)> = image.blobs().iter().map(|(d, b)| (d.clone(), b.to_vec())).collect();
    let top = index_of(&image.id(), image.manifest.len(), image.manifest_type);
    for at in 0..all.len() {
        let mut blobs = all.clone();
        let bytes = &mut blobs[at].1;
        // Another layer, or one byte of a document, of the same length.
        if at == 2 && other.len() == bytes.len() {
            bytes.clone_from(&other)
        } else {
            *bytes.last_mut().unwrap() ^= 1
        }
        let reference = layout(&t, &format!("lie-{at}"), &top, &blobs);
        let _ =
            t.g.run(&["fetch", &reference]).exits(FAILED).stderr_contains(&["damaged or was tampered with", "sha256:"]);
        t.assert_nothing("a digest that lies");
    }
    let wrong = format!("sha256:{}", "0".repeat(64));
    let lie =
        image_with(Layer::new().file("x", b"x", 0o644)).edit_config(move |c| c["rootfs"]["diff_ids"][0] = json!(wrong));
    let _ = t.fetch(lie).exits(FAILED).stderr_contains(&["configuration says", "000000"]);
    t.assert_nothing("a diff_id that lies");
    for (algorithm, good) in [("sha512", true), ("md5", false), ("sha256+b64", false)] {
        let (digest, edited) = named_by(algorithm, &image);
        let top = index_of(&edited.0, edited.1.len(), image.manifest_type);
        let dir = t.g.scratch().join(algorithm);
        fs::create_dir_all(dir.join("blobs").join(algorithm)).unwrap();
        let blobs = [&all[1..], &[edited, (digest, image.layers[0].blob.clone())]].concat();
        let out = t.g.run(&["fetch", &layout(&t, algorithm, &top, &blobs)]).stderr_contains(&[]);
        assert_eq!(out.code, if good { 0 } else { FAILED }, "{algorithm}: {out}");
        if good {
            t.g.run(&["image", "rm", out.text()]).succeeded();
        } else {
            let _ = out.stderr_contains(&[algorithm]);
        }
        t.assert_nothing(algorithm);
    }
}

/// The digest of an image's layer by an algorithm (made up for unknown ones), and the manifest that names it so.
fn named_by(algorithm: &str, image: &Image) -> (String, (String, Vec<u8>)) {
    let hex: String = match algorithm {
        "sha512" => Sha512::digest(&image.layers[0].blob).iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => "0".repeat(64),
    };
    let digest = format!("{algorithm}:{hex}");
    let mut manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
    manifest["layers"][0]["digest"] = json!(digest);
    let bytes = manifest.to_string().into_bytes();
    (digest, (gantry_fixtures::digest(&bytes), bytes))
}

/// The paths of an image that a runtime touches by itself.
const RUNTIME_PATHS: [&str; 9] =
    ["proc", "sys", "dev", "tmp", "etc/mtab", "etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf"];

/// A sparse file of 1 GiB that takes no space (GNU tar's old format: one empty span at the end).
fn sparse(layer: Layer, path: &str) -> Layer {
    let octal = |number: u64| format!("{number:011o}\0").into_bytes();
    let patches = vec![(386, octal(1 << 30)), (398, octal(0)), (483, octal(1 << 30))];
    layer.raw_header(&Header { magic: *b"ustar  \0", patches, ..Header::new(b'S', path) }, b"")
}

/// Why a pod does not start whose image has `path` as the kind of file `kind`; `None` if it starts.
fn refusal(kind: &str, path: &str) -> Option<&'static str> {
    match path {
        // Mount points of the runtime's own file systems.
        "proc" | "sys" | "dev" => (kind != "a directory").then_some("is not a directory, as it must be"),
        // The others, passwd and group among them, are not needed by an app that runs as root.
        _ => None,
    }
}

#[test]
fn c47_links_at_runtime_paths() {
    let t = Target::new();
    let (absolute, dots) = (t.absolute("dir"), t.dots("dir"));
    let canary = t.absolute("canary");
    type Make<'a> = Box<dyn Fn(Layer, &str) -> Layer + 'a>;
    let kinds: [(&str, Make<'_>); 7] = [
        ("a link to a directory", Box::new(|layer, path| layer.symlink(path, &absolute))),
        ("a link by dots", Box::new(|layer, path| layer.symlink(path, &dots))),
        ("a link to a file", Box::new(|layer, path| layer.symlink(path, &canary))),
        ("a link to itself", Box::new(|layer, path| layer.symlink(path, path.rsplit('/').next().unwrap()))),
        ("a fifo", Box::new(|layer, path| layer.device(path, Device::Fifo, 0o666))),
        ("a directory", Box::new(|layer, path| layer.dir(path, 0o755).file(format!("{path}/in"), b"x", 0o644))),
        ("a sparse file", Box::new(sparse)),
    ];
    let base = || Layer::new().dir("bin", 0o755).file("bin/app", t.g.app_bytes(), 0o755).dir("etc", 0o755);
    for (kind, make) in &kinds {
        for path in RUNTIME_PATHS {
            let image = Image::builder().layer(base()).layer(make(Layer::new(), path)).entrypoint(&["/bin/app"]);
            let id = t.fetch(image).ok().text().to_owned();
            let line = ["run", "--net=none", "--rm", &id, "--user=nobody", "--", "args", "alive"];
            let named = t.g.run_within(COMMAND_TIMEOUT, &line).stderr_contains(&[]);
            // None of these images has the user; the search for it must end.
            assert_eq!(named.code, FAILED, "{path} as {kind}: {named}");
            let out =
                t.g.run_within(COMMAND_TIMEOUT, &["run", "--net=none", "--rm", &id, "--", "args", "alive"])
                    .stderr_contains(&[]);
            println!("{path} as {kind}: {} {} {}", out.code, out.stdout.trim(), out.stderr.trim());
            match refusal(kind, path) {
                None => assert_eq!((out.code, out.stdout.as_str()), (0, "[\"alive\"]\n"), "{path} as {kind}: {out}"),
                Some(reason) => {
                    assert!(out.code == FAILED && out.stderr.contains(reason), "{path} as {kind}: {reason}: {out}");
                }
            }
            t.assert_untouched(&format!("{path} as {kind}"));
        }
    }
    assert!(t.g.list().is_empty());
}
