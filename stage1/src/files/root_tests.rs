//! Files of images where gantry writes its own.

use std::os::unix::fs::symlink;
use std::path::Path;

use gantry_model::mount_options::Propagation;

use super::*;

fn file(name: &'static str, required: bool) -> etc::File {
    etc::File { name, text: b"ours\n".to_vec(), required }
}

fn open(root: &Path) -> OwnedFd {
    rustix::fs::open(root, OFlags::DIRECTORY, Mode::empty()).unwrap()
}

fn write(root: &Path, required: bool) -> Result<()> {
    Etc::default().write(&[file("hosts", false), file("resolv.conf", required)], &open(root), &[])
}

/// The image's file in place of resolv.conf, and whether gantry's can replace it.
#[test]
fn links_of_the_image_are_replaced_not_followed() {
    type Make = fn(&Path);
    let rows: [(&str, bool, Make); 7] = [
        ("nothing", true, |_| {}),
        ("a file", true, |at| std::fs::write(at, "theirs").unwrap()),
        ("a link out", true, |at| symlink("../../outside", at).unwrap()),
        ("an absolute link", true, |at| symlink(at.parent().unwrap().join("../../outside"), at).unwrap()),
        ("a fifo", true, |at| {
            rustix::fs::mknodat(CWD, at, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        }),
        ("an empty directory", true, |at| std::fs::create_dir(at).unwrap()),
        ("a full directory", false, |at| std::fs::create_dir_all(at.join("sub")).unwrap()),
    ];
    for (what, possible, make) in rows {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("outside"), "untouched").unwrap();
        let root = temp.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        make(&root.join("etc/resolv.conf"));
        if !possible {
            assert_eq!(write(&root, true).unwrap_err().kind, ErrorKind::Invalid, "{what}");
        }
        write(&root, possible).unwrap();
        let read = |path: &str| std::fs::read_to_string(temp.path().join(path));
        assert_eq!(read("root/etc/hosts").unwrap(), "ours\n", "{what}");
        assert_eq!(read("root/etc/resolv.conf").ok().as_deref(), possible.then_some("ours\n"), "{what}");
        assert_eq!(read("outside").unwrap(), "untouched", "{what}");
    }
}

#[test]
fn a_linked_etc_resolves_beneath_the_root() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    std::fs::create_dir_all(root.join("real")).unwrap();
    std::fs::create_dir(temp.path().join("real")).unwrap();
    symlink("/../real", root.join("etc")).unwrap();
    write(&root, true).unwrap();
    assert!(root.join("real/resolv.conf").exists() && !temp.path().join("real/resolv.conf").exists());
}

#[test]
fn required_files_need_a_directory_etc() {
    let temp = tempfile::tempdir().unwrap();
    write(temp.path(), true).unwrap();
    assert!(temp.path().join("etc/resolv.conf").exists());
    type Make = fn(&Path);
    let rows: [Make; 2] = [|at| std::fs::write(at, "x").unwrap(), |at| symlink("nowhere", at).unwrap()];
    for make in rows {
        let temp = tempfile::tempdir().unwrap();
        make(&temp.path().join("etc"));
        assert!(write(temp.path(), true).is_err());
        write(temp.path(), false).unwrap();
        assert!(!temp.path().join("nowhere").exists());
    }
}

/// As when networks were attached while the apps were made.
#[test]
fn files_can_be_rewritten_later() {
    let temp = tempfile::tempdir().unwrap();
    let (root, at) = (open(temp.path()), |name: &str| temp.path().join("etc").join(name));
    let text = |name: &'static str, text: &str| etc::File { name, text: text.into(), required: true };
    let mount = |target: &str| AppMount {
        target: target.into(),
        kind: "bind",
        source: "/volumes/v".into(),
        options: Vec::new(),
        has_ids_of_pod: false,
        propagation: Propagation::Private,
    };
    let mut etc = Etc::default();
    etc.write(&[text("hosts", "a long text")], &root, &[]).unwrap();
    let hosts = open_in(&root, "etc/hosts", OFlags::RDONLY).unwrap();
    // A file that is a mount point is not replaced: that would remove the mount. A file that gantry made is changed in
    // place.
    let over = [mount("/etc/resolv.conf"), mount("/etc/hosts")];
    etc.write(&[text("hosts", "new"), text("resolv.conf", "new"), text("hostname", "new")], &root, &over).unwrap();
    assert_eq!(std::io::read_to_string(File::from(hosts)).unwrap(), "new");
    assert_eq!(std::fs::read_to_string(at("hostname")).unwrap(), "new");
    assert!(!at("resolv.conf").exists());
    etc.write(&[text("resolv.conf", "new")], &root, &[]).unwrap();
    assert_eq!(std::fs::read_to_string(at("resolv.conf")).unwrap(), "new");
}
