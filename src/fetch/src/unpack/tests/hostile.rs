//! The attacks on the unpacker (layer archives 1 to 21 of the project's list) and their outcomes.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering};

use super::build::{Head, Tar, summed};
use super::*;

type Refused = (&'static str, Vec<u8>);

/// Entries with forbidden names, parents or links.
fn bad_names() -> Vec<Refused> {
    vec![
        ("up", Tar::default().file("../../etc/cron.d/x", b"x").end()),
        ("up inside", Tar::default().file("a/../../outside", b"x").end()),
        ("hard link up", Tar::default().link(b'1', "h", "../../../outside").end()),
        ("hard link to the root", Tar::default().link(b'1', "h", "/").end()),
        ("hard link to a directory", Tar::default().dir("d").link(b'1', "h", "d").end()),
        ("whiteout of ..", Tar::default().file(".wh...", b"").end()),
        ("whiteout upwards", Tar::default().file(".wh.../../x", b"").end()),
        ("whiteout of nothing", Tar::default().file("a/.wh.", b"").end()),
        ("inside a whiteout", Tar::default().file(".wh.a/b", b"").end()),
        ("file as a parent", Tar::default().file("a", b"").file("a/b", b"").end()),
        ("FIFO as a parent", Tar::default().head(&Head::new(b'6', "a"), b"").file("a/b", b"").end()),
        ("links in a circle", Tar::default().link(b'2', "a", "b").link(b'2', "b", "a").file("a/x", b"").end()),
        ("root as a file", Tar::default().file("./", b"").file(".", b"x").end()),
        ("socket or unknown kind", Tar::default().head(&Head::new(b's', "a"), b"").end()),
        ("symbolic link to nothing", Tar::default().link(b'2', "a", "").end()),
    ]
}

/// Numbers out of range and extension headers that lie.
fn bad_headers() -> Vec<Refused> {
    let deep = "a/".repeat(1001);
    let long = ["x/"; 2100].concat();
    vec![
        ("owner -1", Tar::default().head(&Head { uid: 0xffff_ffff, ..Head::new(b'0', "a") }, b"").end()),
        ("owner negative", Tar::default().head(&Head { uid: -2, ..Head::new(b'0', "a") }, b"").end()),
        ("group 2^32", Tar::default().head(&Head { gid: 1 << 32, ..Head::new(b'0', "a") }, b"").end()),
        ("size negative", Tar::default().head(&Head { size: u64::MAX, ..Head::new(b'0', "a") }, b"").end()),
        ("size 8 EiB", Tar::default().head(&Head { size: i64::MAX as u64, ..Head::new(b'0', "a") }, b"").end()),
        ("device number", Tar::default().head(&Head { device: (4096, 0), ..Head::new(b'3', "a") }, b"").end()),
        ("deep", Tar::default().pax(&[("path", deep.as_bytes())]).file("a", b"").end()),
        ("long", Tar::default().pax(&[("path", long.as_bytes())]).file("a", b"").end()),
        ("long element", Tar::default().pax(&[("path", &[b'x'; 256])]).file("a", b"").end()),
        ("NUL", Tar::default().pax(&[("path", b"a\0b")]).file("a", b"").end()),
        ("NUL in a link", Tar::default().pax(&[("linkpath", b"a\0b")]).link(b'2', "a", "x").end()),
        ("two extended headers", Tar::default().pax(&[("path", b"a")]).pax(&[("path", b"b")]).file("c", b"").end()),
        ("two names", Tar::default().pax(&[("path", b"a")]).extension(b'L', b"b\0").file("c", b"").end()),
        ("global name", Tar::default().extension(b'g', b"10 path=a\n").file("c", b"").end()),
        ("GNU long name of 2 GiB", Tar::default().head(&Head { size: 2 << 30, ..Head::new(b'L', "x") }, b"").end()),
        ("PAX header of 2 GiB", Tar::default().head(&Head { size: 2 << 30, ..Head::new(b'x', "x") }, b"").end()),
        (
            "chain of globals",
            (0..20).fold(Tar::default(), |t, _| t.extension(b'g', b"13 comment=a\n")).file("a", b"").end(),
        ),
        ("extension without an entry", Tar::default().pax(&[("path", b"a")]).end()),
        (
            "sparse of 8 EiB",
            Tar::default()
                .pax(&[("GNU.sparse.size", b"9223372036854775807"), ("GNU.sparse.map", b"0,0")])
                .file("a", b"")
                .end(),
        ),
        (
            "sparse overlap",
            Tar::default().pax(&[("GNU.sparse.size", b"10"), ("GNU.sparse.map", b"0,2,1,2")]).file("a", b"abcd").end(),
        ),
        ("sparse without a map", Tar::default().head(&Head::new(b'S', "a"), b"").end()),
        (
            "sparse map cut off",
            Tar::default().pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.realsize", b"9")]).file("a", b"2\n").end(),
        ),
        ("129 attributes", many_xattrs(129).file("a", b"").end()),
        (
            "attribute of 65537 bytes",
            Tar::default().pax(&[("SCHILY.xattr.user.a", &[b'x'; 65537])]).file("a", b"").end(),
        ),
    ]
}

/// Incomplete archives.
fn bad_streams() -> Vec<Refused> {
    vec![
        ("checksum", {
            let mut t = Tar::default().file("a", b"").end();
            t[0] = b'b';
            t
        }),
        ("an extension header at the end", Tar::default().file("a", b"").pax(&[("path", b"b")]).0),
        ("one block of zeros", {
            let mut t = Tar::default().file("a", b"");
            t.0.extend([0; 512]);
            t.file("b", b"").end()
        }),
        ("not a tar", b"hello, I am not a tar archive at all".repeat(100)),
        ("gzip garbage behind", [gzip(&Tar::default().end()), b"garbage".to_vec()].concat()),
        ("gzip damaged", {
            let mut z = gzip(&Tar::default().file("a", &[7; 9000]).end());
            let at = z.len() - 6;
            z[at] ^= 1;
            z
        }),
        ("gzip cut off", {
            let z = gzip(&Tar::default().file("a", &[7; 9000]).end());
            z[..z.len() - 3].to_vec()
        }),
        ("zstd window of 2 GiB", zstd_window()),
    ]
}

#[test]
fn malformed_archives_are_rejected() {
    for (case, tar) in [bad_names(), bad_headers(), bad_streams()].concat() {
        let place = UnpackDir::new();
        let result = unpack(&tar, &place);
        let result = result.and_then(|mut unpacked| finished(&mut unpacked, &place, &[]));
        assert!(result.is_err(), "{case}: {:?}", place.listing());
        place.assert_confined(case);
    }
}

fn many_xattrs(n: usize) -> Tar {
    let keys: Vec<String> = (0..n).map(|i| format!("SCHILY.xattr.user.n{i}")).collect();
    let records: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), &b"v"[..])).collect();
    Tar::default().pax(&records)
}

/// A frame header that requests a window of 2^31 bytes, and a raw block.
fn zstd_window() -> Vec<u8> {
    let tar = Tar::default().end();
    let block = u32::try_from(tar.len()).unwrap() << 3 | 1;
    [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, (31 - 10) << 3][..], &block.to_le_bytes()[..3], &tar].concat()
}

type Taken = (&'static str, Vec<u8>, &'static [&'static str]);

/// Links that are followed, and whiteouts that hide.
fn links_and_whiteouts() -> Vec<Taken> {
    vec![
        ("absolute", Tar::default().file("/etc/x", b"1").end(), &["etc/", "etc/x 1"]),
        ("link to /", Tar::default().link(b'2', "a", "/").file("a/etc/x", b"1").end(), &["a -> /", "etc/", "etc/x 1"]),
        (
            "link upwards",
            Tar::default().link(b'2', "a", "../../..").file("a/outside", b"1").end(),
            &["a -> ../../..", "outside 1"],
        ),
        (
            "lib -> usr/lib",
            Tar::default().dir("usr").dir("usr/lib").link(b'2', "lib", "usr/lib").file("lib/x", b"1").end(),
            &["lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/x 1"],
        ),
        (
            "link to a later entry",
            Tar::default().link(b'2', "lib", "usr/./lib/").file("lib/x", b"1").end(),
            &["lib -> usr/./lib/", "usr/", "usr/lib/", "usr/lib/x 1"],
        ),
        (
            "hard link to a symbolic link",
            Tar::default().link(b'2', "s", "/outside").link(b'1', "h", "s").end(),
            &["h -> /outside", "s -> /outside"],
        ),
        (
            "opaque through a link",
            Tar::default().link(b'2', "a", "/..").dir("d").link(b'2', "b", "d").file("b/.wh..wh..opq", b"").end(),
            &["a -> /..", "b -> d", "d/ opaque"],
        ),
        ("whiteout", Tar::default().file("d/.wh.x", b"").end(), &["d/", "d/x gone"]),
        ("device 0:0", Tar::default().head(&Head::new(b'3', "x"), b"").end(), &["x gone"]),
        ("whiteout, then file", Tar::default().file(".wh.x", b"").file("x", b"1").end(), &["x 1"]),
        ("file, then whiteout", Tar::default().file("x", b"1").file(".wh.x", b"").end(), &["x 1"]),
        ("whiteout, then directory", Tar::default().file(".wh.x", b"").dir("x").end(), &["x/ opaque"]),
        ("directory, then whiteout", Tar::default().dir("x").file(".wh.x", b"").end(), &["x/ opaque"]),
        ("whiteout, then below", Tar::default().file(".wh.x", b"").file("x/y", b"1").end(), &["x/ opaque", "x/y 1"]),
        ("AUFS", Tar::default().file(".wh..wh.aufs", b"").dir(".wh..wh.plnk").file(".wh..wh.plnk/1", b"").end(), &[]),
    ]
}

/// Kinds of files, and files that occur twice.
fn kinds_and_doubles() -> Vec<Taken> {
    vec![
        (
            "nodes",
            Tar::default()
                .head(&Head { device: (1, 3), ..Head::new(b'3', "null") }, b"")
                .head(&Head { device: (7, 0), ..Head::new(b'4', "loop") }, b"")
                .head(&Head::new(b'6', "pipe"), b"")
                .end(),
            &["loop device 700", "null device 103", "pipe fifo"],
        ),
        ("file, then directory", Tar::default().file("x", b"1").dir("x").file("x/y", b"2").end(), &["x/", "x/y 2"]),
        (
            "directory, then file",
            Tar::default().dir("x").dir("x/y").file("x/y/z", b"1").link(b'2', "x/l", "/").file("x", b"2").end(),
            &["x 2"],
        ),
        (
            "directory, then link, then below",
            Tar::default().dir("o").dir("x").file("x/1", b"").link(b'2', "x", "o").file("x/2", b"").end(),
            &["o/", "o/2 ", "x -> o"],
        ),
        (
            "link, then directory, then below",
            Tar::default().dir("o").link(b'2', "x", "o").file("x/1", b"").dir("x").file("x/2", b"").end(),
            &["o/", "o/1 ", "x/", "x/2 "],
        ),
        ("link, then file", Tar::default().link(b'2', "x", "../outside").file("x", b"1").end(), &["x 1"]),
        ("FIFO, then file", Tar::default().head(&Head::new(b'6', "x"), b"").file("x", b"1").end(), &["x 1"]),
        ("hard link to itself", Tar::default().file("x", b"1").link(b'1', "x", "x").end(), &["x 1"]),
        ("hard link before its target", Tar::default().link(b'1', "h", "x").file("x", b"1").end(), &["h 1", "x 1"]),
        ("newline and no UTF-8", Tar::default().file(b"a\nb\xff", b"1").end(), &["a\nb\u{fffd} 1"]),
        ("old directory", Tar::default().head(&Head::new(0, "d/"), b"").end(), &["d/"]),
        (
            "size on a directory",
            Tar::default().head(&Head { size: 512, ..Head::new(b'5', "d") }, b"").file("x", b"").end(),
            &["d/", "x "],
        ),
        ("volume label", Tar::default().head(&Head::new(b'V', "label"), b"").file("x", b"").end(), &["x "]),
        (
            "GNU long names",
            Tar::default().extension(b'K', b"t\0").extension(b'L', b"n\0").link(b'2', "a", "b").end(),
            &["n -> t"],
        ),
        (
            "attributes of others",
            Tar::default().pax(&[("SCHILY.xattr.trusted.overlay.opaque", b"y")]).dir("d").end(),
            &["d/"],
        ),
        ("nothing", Tar::default().end(), &[]),
    ]
}

#[test]
fn unusual_archives_are_unpacked_safely() {
    for (case, tar, want) in [links_and_whiteouts(), kinds_and_doubles()].concat() {
        let place = UnpackDir::new();
        let mut unpacked = unpack(&tar, &place).unwrap_or_else(|e| panic!("{case}: {e}"));
        finished(&mut unpacked, &place, &[]).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(place.listing(), want, "{case}");
        place.assert_confined(case);
    }
}

/// TARmageddon: the header says 0 bytes, the extended header the truth; a reader that uses one for the data and the
/// other to find the next header would take the inner archive's header for an entry.
#[test]
fn nested_archives_are_not_interpreted() {
    let inner = Tar::default().file("smuggled", b"x").0;
    let size = inner.len().to_string();
    let pax = Tar::default().pax(&[("size", size.as_bytes())]);
    let tar = pax.head(&Head { size: 0, ..Head::new(b'0', "inner.tar") }, &inner).file("after", b"1").end();
    let place = UnpackDir::new();
    unpack(&tar, &place).unwrap();
    assert_eq!(std::fs::read(place.path().join("inner.tar")).unwrap(), inner);
    assert_eq!(place.listing().len(), 2, "{:?}", place.listing());
    // The size does not leak to the extension headers of the next entry, and ends with its entry.
    let tar = Tar::default().pax(&[("size", b"3")]).extension(b'L', b"long\0").file("a", b"abc").file("b", b"1").end();
    let place = UnpackDir::new();
    unpack(&tar, &place).unwrap();
    assert_eq!(place.listing(), ["b 1", "long abc"]);
}

#[test]
fn limits_are_enforced() {
    let caps = Caps { max_entries: 10, max_layer_bytes: 1 << 20, max_file: 5000, max_names: 3000, ..Caps::default() };
    let lower_links =
        |n: usize| (0..n).fold(Tar::default(), |t, i| t.link(b'1', format!("{i:0>90}"), "t".repeat(90))).end();
    let files = |n: usize| (0..n).fold(Tar::default(), |t, i| t.file(format!("{i}"), b"")).end();
    let zeros = Tar::default().file("z", &vec![0; 2 << 20]).end();
    for (case, tar, ok) in [
        ("10 entries", files(10), true),
        ("11 entries", files(11), false),
        ("parents count", Tar::default().file("1/2/3/4/5/6/7/8/9/10/11", b"").end(), false),
        ("5 links to lower layers", lower_links(5), true),
        ("10 links to lower layers", lower_links(10), false),
        ("file of 5000", Tar::default().file("a", &[1; 5000]).end(), true),
        ("file of 5001", Tar::default().file("a", &[1; 5001]).end(), false),
        ("2 MiB", zeros.clone(), false),
        ("2 MiB compressed", gzip(&zeros), false),
        (
            "2 MiB behind the end",
            {
                let mut t = Tar::default().end();
                t.resize(2 << 20, 0);
                gzip(&t)
            },
            false,
        ),
    ] {
        let place = UnpackDir::new();
        let result = unpack_with(&tar, &place, &caps);
        let refused = matches!(result, Err(UnpackError::TooMuch { .. }));
        assert_eq!((result.is_ok(), refused), (ok, !ok), "{case}: {result:?}");
    }
}

/// Honest layers of zeros have the ratios of bombs, so only the output is limited.
#[test]
fn the_output_is_limited_for_every_compression() {
    let mut tar = Tar::default().head(&Head { size: 80 << 20, ..Head::new(b'0', "z") }, b"").0;
    tar.resize((80 << 20) + 512 + 1024, 0);
    let (zstd, gzip) = (zstd::encode_all(&tar[..], 1).unwrap(), gzip(&tar));
    let small = Caps { max_layer_bytes: 65 << 20, ..Caps::default() };
    for (bomb, caps, want) in [
        (&zstd, &Caps::default(), None),
        (&zstd, &small, Some("bytes after decompression")),
        (&gzip, &Caps::default(), None),
        (&gzip, &small, Some("bytes after decompression")),
    ] {
        let got = match unpack_with(bomb, &UnpackDir::new(), caps) {
            Ok(_) => None,
            Err(UnpackError::TooMuch { what, .. }) => Some(what),
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(got, want);
    }
}

#[test]
fn truncated_archives_are_rejected() {
    let tar = Tar::default().dir("d").pax(&[("path", b"d/long")]).file("d/x", &[1; 1500]).link(b'2', "l", "d").end();
    // After the directory (1), the extension header and its file (2 + 4), the link (1), and one block of zeros.
    let ends = [0, 1, 7, 8, 9];
    for blocks in 0..tar.len() / 512 {
        for extra in [0, 1, 511] {
            let place = UnpackDir::new();
            let result = unpack(&tar[..blocks * 512 + extra], &place);
            if extra == 0 && ends.contains(&blocks) {
                assert_eq!(result.unwrap().diff_id.to_string(), sha256(&tar[..blocks * 512]), "{blocks}");
                continue;
            }
            assert!(matches!(result, Err(UnpackError::Truncated { .. })), "{blocks} + {extra}: {result:?}");
        }
    }
    unpack(&tar, &UnpackDir::new()).unwrap();
    for nothing in [gzip(b""), zstd::encode_all(&b""[..], 3).unwrap()] {
        assert_eq!(unpack(&nothing, &UnpackDir::new()).unwrap().diff_id.to_string(), sha256(b""));
    }
}

#[test]
fn metadata_is_kept_or_clamped() {
    let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let tar = Tar::default()
        .head(&Head { mode: 0o500, mtime: 5, uid: 1000, gid: 1001, ..Head::new(b'5', "d") }, b"")
        .head(&Head { mode: 0o104_755, uid: 4_294_967_294, gid: 2_097_152, ..Head::new(b'0', "d/setuid") }, b"")
        .head(&Head { mtime: -(1 << 40), ..Head::new(b'0', "d/old") }, b"")
        .head(&Head { mtime: 1 << 60, ..Head::new(b'0', "d/young") }, b"")
        .pax(&[
            ("SCHILY.xattr.security.capability", capability),
            ("SCHILY.xattr.user.note", b"a=b"),
            ("mtime", b"7.25"),
        ])
        .file("d/ping", b"x")
        .head(&Head { mode: 0o620, uid: 3, ..Head::new(b'6', "d/fifo") }, b"")
        .head(&Head { mode: 0o1777, mtime: 9, ..Head::new(b'5', "./") }, b"")
        .end();
    let place = UnpackDir::new();
    unpack(&tar, &place).unwrap();
    let stat = |path: &str| place.path().join(path).symlink_metadata().unwrap();
    let short = |path: &str| (stat(path).mode() & 0o7777, stat(path).uid(), stat(path).gid());
    assert_eq!(short("d"), (0o500, 1000, 1001));
    assert_eq!(stat("d").mtime(), 5);
    assert_eq!(short("d/setuid"), (0o4755, 4_294_967_294, 2_097_152));
    assert_eq!((stat("d/old").mtime(), stat("d/young").mtime()), (-(1 << 31), (1 << 34) - (1 << 31) - 1));
    assert_eq!(short("d/fifo"), (0o620, 3, 0));
    assert_eq!((short("."), stat(".").mtime()), ((0o1777, 0, 0), 9));
    assert_eq!((stat("d/ping").mtime(), stat("d/ping").mtime_nsec()), (7, 250_000_000));
    let mut value = [0u8; 64];
    let n = rustix::fs::getxattr(place.path().join("d/ping"), "security.capability", &mut value[..]).unwrap();
    assert_eq!(value[..n], capability[..]);
    let n = rustix::fs::getxattr(place.path().join("d/ping"), "user.note", &mut value[..]).unwrap();
    assert_eq!(value[..n], b"a=b"[..]);
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Another process swaps a directory of the layer for a link to the outside while files are written into it.
#[test]
fn racing_parent_swaps_are_contained() {
    let place = UnpackDir::new();
    let outside = UnpackDir::new();
    let tar = (0..3000).fold(Tar::default(), |t, i| t.file(format!("d{}/e/f{i}", i % 300), b"x")).end();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let victim = place.path().join("d7");
            while !stop.load(Ordering::Relaxed) {
                // Either may fail, depending on the order: that is the race.
                let _ = std::fs::rename(&victim, place.path().join("moved"));
                let _ = std::os::unix::fs::symlink(outside.path(), &victim);
                let _ = std::fs::remove_file(&victim);
            }
        });
        // Failing is fine, writing outside is not.
        let _ = unpack(&tar, &place);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(outside.listing(), Vec::<String>::new());
}

#[test]
fn old_gnu_sparse_headers_span_several_blocks() {
    let mut block = Head { size: 5 * 512, ..Head::new(b'S', "sparse") }.bytes();
    block[257..265].copy_from_slice(b"ustar  \0");
    let span = |at: u64| [format!("{:011o}\0", at * 4096), format!("{:011o}\0", 512)].concat();
    for i in 0..4 {
        block[386 + i * 24..410 + i * 24].copy_from_slice(span(i as u64).as_bytes());
    }
    block[482] = 1;
    block[483..495].copy_from_slice(format!("{:011o}\0", 100_000).as_bytes());
    let mut more = [0u8; 512];
    more[..24].copy_from_slice(span(4).as_bytes());
    let data: Vec<u8> = (1..=5u8).flat_map(|i| [i; 512]).collect();
    let tar = Tar([&summed(block)[..], &more, &data].concat()).file("after", b"1").end();
    let place = UnpackDir::new();
    unpack(&tar, &place).unwrap();
    let got = std::fs::read(place.path().join("sparse")).unwrap();
    let mut want = vec![0u8; 100_000];
    for i in 0..5 {
        want[i * 4096..i * 4096 + 512].fill(i as u8 + 1);
    }
    assert!(got == want);
    assert_eq!(std::fs::read(place.path().join("after")).unwrap(), b"1");
}
