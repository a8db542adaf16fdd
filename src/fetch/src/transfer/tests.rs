//! Tests of copying between file systems and archives.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::*;

fn source(path: &Path, name: &str) -> Source {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Source { file: rustix::fs::open(path, flags, Mode::empty()).unwrap(), name: name.into() }
}

fn packed(path: &Path, name: &str, keep_privileges: bool) -> (Vec<u8>, Packed) {
    let mut archive = Vec::new();
    let packed =
        pack(source(path, name), PackOptions { keep_privileges, skip: None, ids: None }, &mut archive).unwrap();
    (archive, packed)
}

fn destination(path: &Path, confinement: Confinement) -> Destination {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Destination { root: rustix::fs::open(path, flags, Mode::empty()).unwrap(), path: Vec::new(), confinement }
}

fn unpacked(archive: &[u8], to: &Path, owner: Option<(u32, u32)>) -> Result<Extracted, TransferError> {
    let options = ExtractOptions { owner, is_new: true, ids: None };
    extract(&mut &*archive, &destination(to, Confinement::Directory), options)
}

fn make_tree(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("sub/deep/file"), "text").unwrap();
    fs::hard_link(dir.join("sub/deep/file"), dir.join("again")).unwrap();
    fs::set_permissions(dir.join("again"), fs::Permissions::from_mode(0o4751)).unwrap();
    symlink("/etc/passwd", dir.join("sub/link")).unwrap();
    let holes = fs::File::create(dir.join("holes")).unwrap();
    holes.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_at(&holes, b"middle", 1 << 30).unwrap();
    mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}

#[test]
fn trees_are_copied_without_special_files() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_tree(from.path());
    let (archive, left) = packed(from.path(), "top", false);
    assert!(archive.len() < 1 << 20, "the holes of a file were read");
    assert_eq!((left.special_files, left.first_special.as_deref()), (1, Some("top/fifo")));
    assert_eq!(left.changed_files, 0);
    unpacked(&archive, to.path(), Some((7, 8))).unwrap();
    let top = to.path().join("top");
    let file = fs::metadata(top.join("sub/deep/file")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.uid(), file.gid(), file.nlink()), (0o751, 7, 8, 2));
    assert_eq!(fs::read_link(top.join("sub/link")).unwrap(), Path::new("/etc/passwd"));
    let holes = fs::metadata(top.join("holes")).unwrap();
    assert_eq!((holes.len(), holes.blocks() < 100), (1 << 40, true));
    assert!(!top.join("fifo").exists());
    let (archive, _) = packed(from.path(), "", true);
    unpacked(&archive, to.path(), None).unwrap();
    assert_eq!(fs::metadata(to.path().join("again")).unwrap().mode() & 0o7777, 0o4751);
    assert_eq!(fs::read_dir(to.path().join("sub")).unwrap().count(), 2, "a temporary file was left");
}

#[test]
fn streams_of_other_formats_are_named() {
    let to = tempfile::tempdir().unwrap();
    for (head, want) in [
        (&b""[..], "it is empty"),
        (b"no archive", "it is not a tar archive"),
        (&[b'x'; 600], "it is not a tar archive"),
        (b"\x1f\x8b\x08", "compressed with gzip: decompress it first: 'gzip -dc FILE | gantry cp - POD:DIRECTORY'"),
        (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
        (b"\xfd7zXZ\0", "compressed with xz"),
        (b"BZh9", "compressed with bzip2"),
    ] {
        let error = unpacked(head, to.path(), None).unwrap_err();
        let text = gantry_model::error::messages(&error).join(": ");
        assert!(text.starts_with("cannot read the archive: ") && text.contains(want), "{text}");
    }
    // A tar archive whose first file has such a name.
    fs::write(to.path().join("BZh"), "text").unwrap();
    let (archive, _) = packed(&to.path().join("BZh"), "BZh", false);
    unpacked(&archive, to.path(), Some((0, 0))).unwrap();
}

/// Name and mode of each header of an archive.
fn headers(archive: &[u8]) -> Vec<(String, u32)> {
    let of_header = |block: &&[u8]| block.get(257..262) == Some(&b"ustar"[..]);
    let text = |field: &[u8]| String::from_utf8_lossy(field).trim_matches(['\0', ' ']).to_owned();
    let blocks = archive.chunks(512).filter(of_header);
    blocks.map(|block| (text(&block[..100]), u32::from_str_radix(&text(&block[100..108]), 8).unwrap())).collect()
}

#[test]
fn no_header_leaks_privileges() {
    let from = tempfile::tempdir().unwrap();
    make_tree(from.path());
    let modes_of = |keep_privileges| {
        let (archive, _) = packed(from.path(), "top", keep_privileges);
        let names = headers(&archive).into_iter();
        let linked = names.filter(|(name, _)| matches!(name.as_str(), "top/again" | "top/sub/deep/file"));
        linked.map(|(_, mode)| mode).collect::<Vec<_>>()
    };
    assert_eq!(modes_of(false), [0o751; 2], "of a file and a hard link to it");
    assert_eq!(modes_of(true), [0o4751; 2]);
    let names: Vec<String> = headers(&packed(from.path(), "top", false).0).into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"top/".to_owned()) && !names.iter().any(|name| name.contains("//")), "{names:?}");
}

#[test]
fn existing_files_are_replaced_and_directories_merged() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("sub")).unwrap();
    fs::write(from.path().join("sub/file"), "new").unwrap();
    let (archive, _) = packed(&from.path().join("sub"), "sub", false);
    fs::create_dir(to.path().join("sub")).unwrap();
    fs::set_permissions(to.path().join("sub"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(to.path().join("sub/file"), "old and longer").unwrap();
    fs::write(to.path().join("sub/other"), "kept").unwrap();
    unpacked(&archive, to.path(), Some((0, 0))).unwrap();
    assert_eq!(fs::read_to_string(to.path().join("sub/file")).unwrap(), "new");
    assert_eq!(fs::read_to_string(to.path().join("sub/other")).unwrap(), "kept");
    assert_eq!(fs::metadata(to.path().join("sub")).unwrap().mode() & 0o777, 0o700);
    // A directory is not replaced by a file, nor a file by a directory.
    let other = tempfile::tempdir().unwrap();
    fs::create_dir_all(other.path().join("sub/file")).unwrap();
    assert_eq!(unpacked(&archive, other.path(), Some((0, 0))).unwrap_err().kind(), ErrorKind::Refused);
    fs::remove_dir_all(other.path().join("sub")).unwrap();
    fs::write(other.path().join("sub"), "").unwrap();
    assert_eq!(unpacked(&archive, other.path(), Some((0, 0))).unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1, "a temporary file was left");
}

#[test]
fn archives_cannot_leave_the_destination() {
    let (outside, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("way")).unwrap();
    fs::write(from.path().join("way/file"), "x").unwrap();
    let (archive, _) = packed(&from.path().join("way"), "way", false);
    symlink(outside.path(), to.path().join("way")).unwrap();
    let error = unpacked(&archive, to.path(), Some((0, 0))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    // In the root of an app, the link leads to a directory of the app, which is missing here.
    let within = destination(to.path(), Confinement::Root);
    let options = ExtractOptions { owner: Some((0, 0)), is_new: false, ids: None };
    extract(&mut &*archive, &within, options).unwrap_err();
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    for name in ["../way", "way/../../x"] {
        let (archive, _) = packed(&from.path().join("way/file"), name, false);
        let error = unpacked(&archive, to.path(), Some((0, 0))).unwrap_err();
        assert!(error.to_string().contains("cannot copy"), "{error}");
    }
    assert!(unpacked(b"no archive", to.path(), None).is_err());
    assert!(unpacked(&[0; 1024], to.path(), None).is_ok());
}

#[test]
fn kernel_file_systems_are_not_entered() {
    let mut archive = Vec::new();
    let error = pack(source(Path::new("/proc/self"), "x"), PackOptions::default(), &mut archive).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("file"), "x").unwrap();
    let (archive, _) = packed(&from.path().join("file"), "file", false);
    assert_eq!(unpacked(&archive, Path::new("/proc/sys"), None).unwrap_err().kind(), ErrorKind::Refused);
}
