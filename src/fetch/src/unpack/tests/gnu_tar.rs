//! Trees packed by GNU tar, in each of its formats, are unpacked unchanged.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::process::Command;

use proptest::prelude::*;

use super::*;

/// Packs a directory with GNU tar.
fn pack(dir: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("tar")
        .args(["--create", "--file=-", "--sort=name", "--warning=no-file-ignored"])
        .args(arguments)
        .arg(".")
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Everything comparable about a tree.
fn facts(dir: &Path) -> BTreeMap<std::path::PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut ahead = vec![dir.to_path_buf()];
    while let Some(path) = ahead.pop() {
        let stat = path.symlink_metadata().unwrap();
        let mut text = format!("{:o} {}:{} {} {}", stat.mode(), stat.uid(), stat.gid(), stat.mtime(), stat.rdev());
        if stat.is_dir() {
            ahead.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else {
            text += &format!(" links {}", stat.nlink());
        }
        if stat.is_file() {
            text += &format!(" {} {}", stat.size(), sha256(&std::fs::read(&path).unwrap()));
        }
        if stat.is_symlink() {
            text += &format!(" -> {}", std::fs::read_link(&path).unwrap().display());
        }
        let mut value = [0u8; 64];
        if let Ok(n) = rustix::fs::lgetxattr(&path, "user.note", &mut value[..]) {
            text += &format!(" note {:?}", &value[..n]);
        }
        all.insert(path.strip_prefix(dir).unwrap().to_path_buf(), text);
    }
    all
}

fn plant(dir: &Path) {
    let long = "long-name-".repeat(12);
    let deep = dir.join(&long).join(&long).join(&long);
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("file"), "deep").unwrap();
    symlink("x".repeat(300), dir.join("long link")).unwrap();
    std::fs::hard_link(deep.join("file"), dir.join("hard")).unwrap();
    std::fs::write(dir.join("setuid"), "s").unwrap();
    std::os::unix::fs::chown(dir.join("setuid"), Some(3_000_000), Some(12)).unwrap();
    std::fs::set_permissions(dir.join("setuid"), std::fs::Permissions::from_mode(0o6755)).unwrap();
    rustix::fs::setxattr(dir.join("setuid"), "user.note", b"v=\n\0w", rustix::fs::XattrFlags::empty()).unwrap();
    let sparse = std::fs::File::create(dir.join("sparse")).unwrap();
    for i in 0..40 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[i as u8 + 1; 4096], i * 1_000_000 / 4096 * 4096).unwrap();
    }
    sparse.set_len(50_000_000).unwrap();
    std::fs::File::create(dir.join("all hole")).unwrap().set_len(10_000_000).unwrap();
    std::fs::write(dir.join(std::ffi::OsString::from_vec(b"no utf-8 \xff\n".to_vec())), "n").unwrap();
    std::fs::create_dir(dir.join("read-only")).unwrap();
    std::fs::write(dir.join("read-only/x"), "x").unwrap();
    std::fs::set_permissions(dir.join("read-only"), std::fs::Permissions::from_mode(0o555)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
}

#[test]
fn every_format_round_trips() {
    let source = UnpackDir::new();
    plant(&source.path());
    let want = facts(&source.path());
    for arguments in [
        &["--format=gnu"][..],
        &["--format=gnu", "--sparse"],
        &["--format=oldgnu", "--sparse"],
        &["--format=pax", "--xattrs"],
        &["--format=pax", "--xattrs", "--sparse", "--sparse-version=0.0"],
        &["--format=pax", "--xattrs", "--sparse", "--sparse-version=0.1"],
        &["--format=pax", "--xattrs", "--sparse", "--sparse-version=1.0"],
    ] {
        let tar = pack(&source.path(), arguments);
        let place = UnpackDir::new();
        let unpacked = unpack(&gzip(&tar), &place).unwrap_or_else(|e| panic!("{arguments:?}: {e}"));
        assert_eq!(unpacked.diff_id.to_string(), sha256(&tar), "{arguments:?}");
        assert!(unpacked.deferred.is_empty(), "{arguments:?}");
        let mut got = facts(&place.path());
        if !arguments.contains(&"--xattrs") {
            let path = Path::new("setuid");
            got.insert(path.into(), format!("{} note {:?}", got[path], b"v=\n\0w"));
        }
        assert_eq!(got, want, "{arguments:?}");
        if arguments.contains(&"--sparse") {
            let blocks = place.path().join("sparse").symlink_metadata().unwrap().blocks();
            assert!(blocks * 512 < 5_000_000, "{arguments:?}: holes are kept ({blocks} blocks)");
        }
    }
}

#[derive(Debug, Clone)]
enum Made {
    File(Vec<u8>, u32),
    Dir(u32),
    Link(String),
}

fn trees() -> impl Strategy<Value = BTreeMap<String, Made>> {
    let made = prop_oneof![
        (prop::collection::vec(any::<u8>(), 0..3000), 0o0..0o7777u32).prop_map(|(data, mode)| Made::File(data, mode)),
        (0o0..0o7777u32).prop_map(Made::Dir),
        "[a-z./]{1,150}".prop_map(Made::Link),
    ];
    prop::collection::btree_map("[a-zé]{1,3}(/[a-z ]{1,120}){0,2}", made, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn generated_trees_round_trip(tree in trees(), pax: bool) {
        let source = UnpackDir::new();
        for (name, made) in &tree {
            let path = source.path().join(name);
            // A name below a file cannot be created, and is omitted.
            if std::fs::create_dir_all(path.parent().unwrap()).is_err() || path.symlink_metadata().is_ok() {
                continue;
            }
            match made {
                Made::File(data, mode) => {
                    std::fs::write(&path, data).unwrap();
                    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode)).unwrap();
                }
                Made::Dir(mode) => {
                    std::fs::create_dir(&path).unwrap();
                    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode)).unwrap();
                }
                Made::Link(target) => symlink(target, &path).unwrap(),
            }
        }
        let want = facts(&source.path());
        let tar = pack(&source.path(), &[if pax { "--format=pax" } else { "--format=gnu" }]);
        let place = UnpackDir::new();
        unpack(&tar, &place).unwrap();
        prop_assert_eq!(facts(&place.path()), want);
    }

    #[test]
    fn damaged_archives_are_contained(at in prop::collection::vec((0usize..4096, any::<u8>()), 1..6), fix: bool) {
        let mut tar = super::build::Tar::default()
            .dir("d")
            .pax(&[("path", b"d/x"), ("size", b"3")])
            .file("x", b"abc")
            .link(b'2', "l", "../outside")
            .link(b'1', "h", "l")
            .end();
        for (position, byte) in at {
            let position = position % tar.len();
            tar[position] = byte;
            let start = position / 512 * 512;
            if fix && tar[start + 257..start + 262] == *b"ustar" {
                let mut block = [0; 512];
                block.copy_from_slice(&tar[start..start + 512]);
                tar[start..start + 512].copy_from_slice(&super::build::summed(block));
            }
        }
        let place = UnpackDir::new();
        let _ = unpack(&tar, &place).and_then(|mut unpacked| finished(&mut unpacked, &place, &[]));
        place.assert_confined("damaged");
    }
}
