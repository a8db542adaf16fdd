//! Stacked layers: the parts that [`finish`] takes from lower layers.

use std::os::unix::fs::MetadataExt as _;

use super::build::{Head, Tar};
use super::*;

/// Unpacks and finishes layers, bottom first.
fn stack(tars: &[Vec<u8>]) -> Result<Vec<UnpackDir>, UnpackError> {
    let mut places: Vec<UnpackDir> = Vec::new();
    for tar in tars {
        let place = UnpackDir::new();
        let mut unpacked = unpack(tar, &place)?;
        let parents: Vec<OwnedFd> = places.iter().rev().map(|p| p.dir.try_clone().unwrap()).collect();
        finished(&mut unpacked, &place, &parents)?;
        places.push(place);
    }
    Ok(places)
}

#[test]
fn hard_links_to_lower_layers_become_copies() {
    let bottom = Tar::default()
        .dir("usr")
        .head(&Head { size: 3, mode: 0o4755, uid: 7, ..Head::new(b'0', "usr/x") }, b"old")
        .link(b'2', "lib", "usr")
        .link(b'2', "s", "target")
        .end();
    let top = Tar::default()
        .dir("b")
        .link(b'1', "b/1", "usr/x")
        .link(b'1', "b/2", "usr/x")
        .link(b'1', "b/3", "lib/x")
        .link(b'1', "b/4", "s")
        .end();
    let places = stack(&[bottom, Tar::default().end(), top]).unwrap();
    let top = &places[2];
    assert_eq!(top.listing(), ["b/", "b/1 old", "b/2 old", "b/3 old", "b/4 -> target"]);
    let stat = |path: &str| top.path().join(path).symlink_metadata().unwrap();
    assert_eq!((stat("b/1").mode() & 0o7777, stat("b/1").uid(), stat("b/1").nlink()), (0o4755, 7, 3));
    // The directory's own time was not moved by the late files.
    assert_eq!(stat("b").mtime(), 1_000_000_000);
    assert_eq!(places[0].path().join("usr/x").symlink_metadata().unwrap().nlink(), 1);
}

#[test]
fn directories_without_an_entry_have_fixed_times() {
    let bottom = Tar::default().file("made/a/x", b"").dir("told").end();
    let top = Tar::default().file("made/y", b"").file("told/y", b"").link(b'1', "new/x", "made/a/x").end();
    let places = stack(&[bottom, top]).unwrap();
    let time = |at: usize, path: &str| {
        let stat = places[at].path().join(path).symlink_metadata().unwrap();
        (stat.mtime(), stat.mtime_nsec())
    };
    for (at, path) in [(0, "."), (0, "made"), (0, "made/a"), (1, "."), (1, "made"), (1, "new")] {
        assert_eq!(time(at, path), (0, 0), "{path} of layer {at}");
    }
    assert_eq!((time(0, "told"), time(1, "told")), ((1_000_000_000, 0), (1_000_000_000, 0)));
}

/// Finishes a layer on top of one that has the files a (linked as b) and c, of 600 bytes each.
fn limited(top: Tar, caps: &Caps, cancelled: bool) -> Result<Unpacked, UnpackError> {
    let (below, place) = (UnpackDir::new(), UnpackDir::new());
    unpack(&Tar::default().file("a", &[1; 600]).link(b'1', "b", "a").file("c", &[2; 600]).end(), &below)?;
    let mut unpacked = unpack(&top.end(), &place)?;
    finish(&mut unpacked, &place.dir, &[below.dir], caps, &|| cancelled)?;
    Ok(unpacked)
}

#[test]
fn copies_count_against_the_limits() {
    let links = |targets: &[&str]| {
        let numbered = targets.iter().enumerate();
        numbered.fold(Tar::default(), |tar, (i, target)| tar.link(b'1', format!("link-{i}"), target))
    };
    let bytes = |most| Caps { max_layer_bytes: most, ..Caps::default() };
    let one = limited(links(&["a", "b", "a"]), &bytes(600), false).unwrap();
    assert_eq!((one.size, one.entries), (600, 3), "links to one file are links to one copy");
    let two = limited(links(&["a", "c"]), &bytes(1200), false).unwrap();
    assert_eq!(two.size, 1200);
    let hidden = || Tar::default().file(".wh..wh..opq", b"");
    let entries = |most| Caps { max_entries: most, ..Caps::default() };
    assert_eq!(limited(hidden(), &entries(4), false).unwrap().entries, 4);
    for (top, caps) in [(links(&["a", "c"]), bytes(1199)), (hidden(), entries(3))] {
        let result = limited(top, &caps, false);
        assert!(matches!(result, Err(UnpackError::TooMuch { .. })), "{result:?}");
    }
    for top in [links(&["a"]), hidden(), Tar::default().file("implicit/file", b"")] {
        let result = limited(top, &Caps::default(), true);
        assert!(matches!(result, Err(UnpackError::Cancelled)), "{result:?}");
    }
}

#[test]
fn copies_do_not_inherit_stale_checksums() {
    let below = UnpackDir::new();
    unpack(&Tar::default().file("x", b"lower").end(), &below).unwrap();
    let place = UnpackDir::new();
    let mut unpacked = unpack(&Tar::default().link(b'1', "copy", "x").end(), &place).unwrap();
    // The file that is removed here represents a replaced one. Some file systems reuse its inode number, others take
    // one of the next.
    let replaced = place.path().join("replaced");
    std::fs::write(&replaced, "old").unwrap();
    let freed = replaced.metadata().unwrap().ino();
    std::fs::remove_file(&replaced).unwrap();
    unpacked.sums.extend((freed..freed + 5000).map(|inode| (inode, 7)));
    finished(&mut unpacked, &place, &[below.dir.try_clone().unwrap()]).unwrap();
    let copy = place.path().join("copy").metadata().unwrap().ino();
    assert_eq!(unpacked.sums.get(&copy), None);
    assert_eq!(place.listing(), ["copy lower"]);
}

#[test]
fn hard_links_to_hidden_files_are_rejected() {
    let file = Tar::default().dir("d").file("d/x", b"1").end();
    let link = Tar::default().link(b'1', "h", "d/x").end();
    for (case, middle) in [
        ("whiteout", Tar::default().file("d/.wh.x", b"").end()),
        ("whiteout of the directory", Tar::default().file(".wh.d", b"").end()),
        ("opaque", Tar::default().file("d/.wh..wh..opq", b"").end()),
        ("opaque root", Tar::default().file(".wh..wh..opq", b"").end()),
        ("file over the directory", Tar::default().file("d", b"").end()),
    ] {
        let result = stack(&[file.clone(), middle, link.clone()]);
        assert!(matches!(result, Err(UnpackError::LinkTarget { .. })), "{case}");
    }
    stack(&[file, Tar::default().dir("d").end(), link]).unwrap();
}

#[test]
fn implicit_directories_inherit_lower_metadata() {
    let below = |name: &str, mode| Head { mode, uid: 42, mtime: 77, ..Head::new(b'5', name) };
    let bottom = Tar::default()
        .head(&below("./", 0o1755), b"")
        .head(&below("tmp", 0o1777), b"")
        .head(&below("tmp/in", 0o700), b"")
        .head(&below("hidden", 0o711), b"")
        .head(&below("hidden/in", 0o711), b"")
        .end();
    let top = Tar::default()
        .file("tmp/in/x", b"")
        .dir("hidden")
        .file("hidden/.wh..wh..opq", b"")
        .file("hidden/in/x", b"")
        .file("new/x", b"")
        .end();
    let places = stack(&[bottom, top]).unwrap();
    let got = |path: &str| {
        let stat = places[1].path().join(path).symlink_metadata().unwrap();
        (stat.mode() & 0o7777, stat.uid())
    };
    for (path, want) in [
        (".", (0o1755, 42)),
        ("tmp", (0o1777, 42)),
        ("tmp/in", (0o700, 42)),
        ("hidden", (0o755, 0)),
        ("hidden/in", (0o755, 0)),
        ("new", (0o755, 0)),
    ] {
        assert_eq!(got(path), want, "{path}");
    }
    assert_eq!(places[1].path().join("tmp").symlink_metadata().unwrap().mtime(), 77);
}

#[test]
fn an_opaque_root_hides_all_lower_names() {
    let bottom = Tar::default().dir("a").file("a/1", b"").file("b", b"").dir("c").end();
    let top = Tar::default().file(".wh..wh..opq", b"").dir("a").file("a/2", b"").file("b", b"new").end();
    let places = stack(&[bottom, top]).unwrap();
    assert_eq!(places[1].listing(), ["a/ opaque", "a/2 ", "b new", "c gone"]);
}
