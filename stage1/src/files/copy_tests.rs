//! Copies of directories that images may contain.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt};

use super::*;

const PLENTY: Budget = Budget { bytes: 1 << 40, entries: 1000 };

/// Copies a directory with the files that `make` makes.
fn copied(budget: Budget, covered: &[&str], make: impl FnOnce(&Path)) -> (tempfile::TempDir, Result<()>) {
    let temp = tempfile::tempdir().unwrap();
    let (from, to) = (temp.path().join("from"), temp.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    make(&from);
    let open = |path: &Path| rustix::fs::open(path, OFlags::DIRECTORY, Mode::empty()).unwrap();
    let covered = covered.iter().map(PathBuf::from).collect();
    let done = copy_tree(&open(&from), &open(&to), &mut { budget }, &covered);
    (temp, done)
}

#[test]
fn owner_mode_and_attributes_are_kept() {
    let (temp, done) = copied(PLENTY, &[], |from| {
        std::os::unix::fs::chown(from, Some(1700), Some(50)).unwrap();
        std::fs::set_permissions(from, PermissionsExt::from_mode(0o1770)).unwrap();
        let file = from.join("file");
        std::fs::write(&file, "text").unwrap();
        std::os::unix::fs::chown(&file, Some(1), Some(2)).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o4755)).unwrap();
        // Version 2, effective, CAP_NET_RAW.
        let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        rustix::fs::setxattr(&file, "security.capability", &capability, rustix::fs::XattrFlags::empty()).unwrap();
        let fifo = from.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::fs::set_permissions(&fifo, PermissionsExt::from_mode(0o622)).unwrap();
        std::os::unix::fs::symlink("/nowhere", from.join("link")).unwrap();
    });
    done.unwrap();
    let to = temp.path().join("to");
    let top = std::fs::metadata(&to).unwrap();
    assert_eq!((top.uid(), top.gid(), top.mode() & 0o7777), (1700, 50, 0o1770));
    let file = std::fs::metadata(to.join("file")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (1, 2, 0o4755));
    assert_eq!(rustix::fs::getxattr(to.join("file"), "security.capability", &mut [0u8; 64][..]).unwrap(), 20);
    let fifo = std::fs::metadata(to.join("fifo")).unwrap();
    assert!(fifo.file_type().is_fifo() && fifo.mode() & 0o7777 == 0o622);
    assert_eq!(std::fs::read_link(to.join("link")).unwrap(), Path::new("/nowhere"));
}

#[test]
fn holes_and_hard_links_are_kept() {
    let (temp, done) = copied(PLENTY, &[], |from| {
        let file = File::create(from.join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"begin", 0).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 1 << 32).unwrap();
        file.set_len(1 << 34).unwrap();
        std::fs::create_dir(from.join("dir")).unwrap();
        for i in 0..100 {
            std::fs::hard_link(from.join("sparse"), from.join(format!("dir/link-{i}"))).unwrap();
        }
    });
    done.unwrap();
    let (from, to) = (temp.path().join("from"), temp.path().join("to"));
    let (was, is) = (std::fs::metadata(from.join("sparse")).unwrap(), std::fs::metadata(to.join("sparse")).unwrap());
    assert_eq!((is.len(), is.nlink()), (1 << 34, 101));
    assert!(is.blocks() <= was.blocks(), "{} blocks became {}", was.blocks(), is.blocks());
    let mut bytes = [0; 6];
    let copy = File::open(to.join("dir/link-7")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&copy, &mut bytes, 1 << 32).unwrap();
    assert_eq!(&bytes, b"middle");
}

#[test]
fn a_budget_bounds_bytes_and_entries() {
    let files = |from: &Path| {
        for i in 0..10 {
            std::fs::write(from.join(i.to_string()), [b'x'; 1000]).unwrap();
        }
    };
    assert!(copied(Budget { bytes: 10_000, entries: 10 }, &[], files).1.is_ok());
    assert!(matches!(copied(Budget { bytes: 9999, entries: 10 }, &[], files).1, Err(CopyError::OverBudget)));
    assert!(matches!(copied(Budget { bytes: 10_000, entries: 9 }, &[], files).1, Err(CopyError::OverBudget)));
    let deep = |from: &Path| std::fs::create_dir_all(from.join("d/".repeat(MAX_DEPTH + 2))).unwrap();
    assert!(matches!(copied(PLENTY, &[], deep).1, Err(CopyError::TooDeep)));
}

#[test]
fn directories_covered_by_volumes_stay_empty() {
    let (temp, done) = copied(PLENTY, &["a/b"], |from| {
        std::fs::create_dir_all(from.join("a/b/c")).unwrap();
        std::fs::create_dir_all(from.join("b/c")).unwrap();
    });
    done.unwrap();
    let to = temp.path().join("to");
    assert!(to.join("a/b").is_dir() && !to.join("a/b/c").exists() && to.join("b/c").is_dir());
}

#[test]
fn copies_of_all_file_types_can_be_synced() {
    let (temp, done) = copied(PLENTY, &[], |from| {
        std::fs::create_dir_all(from.join("a/b")).unwrap();
        std::fs::write(from.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink("/nowhere", from.join("a/link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, from.join("a/fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
    });
    done.unwrap();
    let to = rustix::fs::open(temp.path().join("to"), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut seen = 0;
    visit_tree(&to, &mut |_, _| {
        seen += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, 4, "the file and three directories");
    sync_tree(&to).unwrap();
}
