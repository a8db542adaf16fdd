//! Commits of others are counted at once, and each change of a file changes the stamp.

use super::*;

#[test]
fn commits_of_others_are_counted() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let store = Store::open(&data).unwrap();
    let counter = CommitCounter::open(&Options::new(data)).unwrap();
    let first = counter.count().unwrap();
    assert_eq!(counter.count(), Some(first));
    for _ in 0..3 {
        let before = counter.count();
        store.create_volume(&"data".parse().unwrap(), &Default::default()).unwrap();
        store.remove_volume(&"data".parse().unwrap()).unwrap();
        assert_ne!(counter.count(), before);
    }
    std::fs::rename(store.layout().db(), temp.path().join("old")).unwrap();
    assert_eq!(counter.count(), None, "the database was moved away");
}

#[test]
fn changed_files_change_the_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let stamp = || PodFilesStamp::read(dir.path()).unwrap();
    let mut seen = vec![stamp()];
    assert!(!stamp().is_settled(), "there is no plan");
    for name in [files::PLAN, ADDED, files::LIMITS] {
        std::fs::write(dir.path().join(name), "{}").unwrap();
        seen.push(stamp());
        assert!(!stamp().is_settled(), "{name} is new");
        std::fs::write(dir.path().join("new"), "{}").unwrap();
        std::fs::rename(dir.path().join("new"), dir.path().join(name)).unwrap();
        seen.push(stamp());
    }
    std::fs::remove_file(dir.path().join(ADDED)).unwrap();
    seen.push(stamp());
    for (at, one) in seen.iter().enumerate() {
        assert!(!seen[..at].contains(one), "state {at}");
    }
    wait_until_old(&dir.path().join(files::PLAN));
    assert!(!stamp().is_settled(), "limits were changed");
    std::fs::remove_file(dir.path().join(files::LIMITS)).unwrap();
    assert!(stamp().is_settled());
}

/// Waits until the last change of a file is older than [`MIN_AGE`].
fn wait_until_old(path: &Path) {
    let changed = std::fs::metadata(path).unwrap().ctime();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    // The change may have been at the end of that second.
    let old = u64::try_from(changed).unwrap() + MIN_AGE.as_secs() + 1;
    while now() < old {
        std::thread::yield_now();
    }
}
