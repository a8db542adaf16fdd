//! Layers, pod directories, blobs: staging, locks, and the scope of garbage collection.

use std::fs;
use std::sync::mpsc;
use std::time::Instant;

use super::*;
use crate::lock::{LockMode, open_dir, try_lock};
use crate::{BlobError, CommitLayersError, MakePodDirError, PodState, StoreError, tmp};

fn trees(home: &Home) -> usize {
    entries(&home.store.layout().trees_dir())
}

#[test]
fn only_unreferenced_objects_are_collected() {
    let home = Home::new();
    let store = &home.store;
    let kept = image(store, "kept", &["base", "kept"]);
    let gone = image(store, "gone", &["base", "gone"]);
    // Committed, but not its image: its lock protects it.
    let (locks, _) = layers(store, &["coming"]);
    // Put, but its image is not committed: the other store's lease protects it.
    let other = home.another();
    other.put_blob(&digest("new"), b"new").unwrap();
    store.remove_image(&gone).unwrap();
    let swept = home.another().sweep_images().unwrap();
    assert_eq!((swept.layers, swept.blobs), (1, 0));
    assert!(swept.bytes >= 4, "{swept:?}");
    assert!(store.layer(&digest("coming")).unwrap().is_some() && store.layer(&digest("gone")).unwrap().is_none());
    assert_eq!(trees(&home), 3);
    drop((locks, other));
    let swept = store.sweep_images().unwrap();
    assert_eq!((swept.layers, swept.blobs), (1, 3));
    assert_eq!(store.sweep_images().unwrap(), crate::Swept::default());
    store.remove_image(&kept).unwrap();
    assert_eq!(store.sweep_images().unwrap().layers, 2);
    assert_eq!(trees(&home), 0);
    // The locks of blobs and of gantryd.
    assert_eq!(entries(&store.layout().locks_dir()), 2);
    assert_eq!(store.check(crate::Depth::Deep), []);
}

/// A running pod whose row was lost: no row names the layers it uses.
#[test]
fn layers_of_unrecorded_running_pods_are_kept() {
    let home = Home::new();
    let store = &home.store;
    let gone = image(store, "gone", &["base", "gone"]);
    fs::create_dir(store.layout().trees_dir().join("orphan")).unwrap();
    fs::write(store.layout().tmp_dir().join("blob-dead"), "x").unwrap();
    let running = store.make_pod_dir(pod_id(1)).unwrap();
    store.remove_image(&gone).unwrap();
    let swept = store.sweep_images().unwrap();
    assert_eq!((swept.layers, swept.blobs, trees(&home)), (0, 0, 3));
    assert_eq!(entries(&store.layout().tmp_dir()), 0);
    store.make_room().unwrap();
    assert_eq!(trees(&home), 3);
    // With a row it protects the layers of its images, and nothing else; dead it protects nothing.
    let known = image(store, "known", &["known"]);
    store.insert_pod(&new_pod(pod_id(1), &known, &["a"])).unwrap();
    drop(store.make_pod_dir(pod_id(2)).unwrap());
    let swept = store.sweep_images().unwrap();
    assert_eq!((swept.layers, swept.blobs, trees(&home)), (3, 2, 1));
    drop(running);
}

#[test]
fn collection_awaits_rows_of_pods_in_creation() {
    let home = Home::new();
    let store = &home.store;
    let image = image(store, "i", &["l"]);
    let _lock = store.make_pod_dir(pod_id(1)).unwrap();
    assert!(store.is_held_without_row(pod_id(1), Instant::now()).unwrap());
    let other = home.another();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || other.is_held_without_row(pod_id(1), Instant::now() + DEADLINE).unwrap());
        store.insert_pod(&new_pod(pod_id(1), &image, &["a"])).unwrap();
        assert!(!waiter.join().unwrap());
    });
    assert_eq!(store.check(crate::Depth::Quick), []);
}

#[test]
fn temporaries_that_stay_keep_nothing_else() {
    let home = Home::new();
    let store = &home.store;
    let gone = image(store, "gone", &["gone"]);
    store.remove_image(&gone).unwrap();
    // Not even `tmp/` can be listed.
    let tmp = store.layout().tmp_dir();
    fs::remove_dir(&tmp).unwrap();
    assert!(store.sweep_images().unwrap_err().is_absent());
    assert!(!store.has_blob(&gone).unwrap() && store.unused_layers().unwrap().is_empty());
    fs::create_dir(&tmp).unwrap();
    store.sweep_images().unwrap();
    assert_eq!(trees(&home), 0);
}

#[test]
fn collection_skips_layers_being_deleted() {
    let home = Home::new();
    let layout = home.store.layout();
    let (path, tmp_dir) = (layout.trees_dir().join("l"), layout.tmp_dir());
    fs::create_dir(&path).unwrap();
    let aside = tmp::move_layer_aside(layout, &path, "deleted-layer").unwrap().unwrap();
    assert!(tmp::move_layer_aside(layout, &path, "deleted-layer").unwrap().is_none());
    home.another().sweep_temporaries().unwrap();
    assert_eq!((tmp::left(layout).unwrap().len(), entries(&tmp_dir)), (0, 1));
    aside.delete().unwrap();
    // The fetch that has unpacked the layer still has it open.
    fs::create_dir(&path).unwrap();
    let fetch = open_dir(&path).unwrap();
    assert!(try_lock(&fetch, LockMode::Exclusive).unwrap());
    tmp::move_layer_aside(layout, &path, "deleted-layer").unwrap().unwrap().delete().unwrap();
    assert_eq!((entries(&tmp_dir), trees(&home)), (0, 0));
}

/// Such a layer may be committed without its lock.
#[test]
fn collection_skips_layers_being_committed() {
    let home = Home::new();
    let store = &home.store;
    let layout = store.layout();
    let name = crate::Layout::tree_name(&digest("l"));
    let list = layout.contents_dir().join(&name);
    // As between the rename and the row.
    fs::create_dir(layout.trees_dir().join(&name)).unwrap();
    fs::create_dir_all(layout.contents_dir()).unwrap();
    fs::write(&list, "").unwrap();
    drop(layers(store, &["unused"]));
    let commit = crate::trees::try_lock_commits(layout).unwrap().unwrap();
    assert_eq!(home.another().sweep_images().unwrap().layers, 0);
    assert_eq!((trees(&home), list.exists()), (2, true));
    drop(commit);
    assert_eq!(home.another().sweep_images().unwrap().layers, 2);
    assert_eq!((trees(&home), list.exists()), (0, false));
    assert_eq!(store.check(crate::Depth::Deep), []);
}

#[test]
fn layers_committed_without_their_locks_are_shared() {
    let home = Home::new();
    let store = &home.store;
    let row = LayerRow { chain: digest("l"), diff_id: digest("d"), parent: None, size: 0, entries: 0 };
    let commit = || {
        let mut staging = store.trees().stage_unlocked_layer(&row.chain).unwrap();
        staging.set_sums(crate::Sums::new());
        store.commit_layers(vec![(staging, row.clone())]).unwrap()
    };
    let other = store.lock_layer(&row.chain, DEADLINE, &mut || {}).unwrap();
    assert_eq!(commit().len(), 0);
    drop(other);
    let locks = commit();
    assert_eq!((locks.len(), home.another().sweep_images().unwrap().layers), (1, 0));
    assert_eq!(entries(&store.layout().tmp_dir()), 0);
    drop(locks);
    assert_eq!(home.another().sweep_images().unwrap().layers, 1);
    assert_eq!(entries(&store.layout().contents_dir()), 0);
}

#[test]
fn only_staging_directories_of_dead_writers_are_collected() {
    let home = Home::new();
    let store = &home.store;
    let lock = store.lock_layer(&digest("l"), DEADLINE, &mut || {}).unwrap();
    let staging = store.stage_layer(&lock).unwrap();
    fs::write(staging.path().join("file"), "x").unwrap();
    // As a killed process leaves it: present and unlocked. A temporary file, a link and a FIFO as well.
    let tmp = store.layout().tmp_dir();
    fs::create_dir_all(tmp.join("layer-dead/deep")).unwrap();
    fs::write(tmp.join("layer-dead/deep/file"), "x").unwrap();
    fs::write(tmp.join("blob-dead"), "x").unwrap();
    std::os::unix::fs::symlink("/", tmp.join("link")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, tmp.join("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    // A tree without its row: the kill came between the rename and the commit.
    fs::create_dir(store.layout().trees_dir().join("orphan")).unwrap();
    assert_eq!(home.another().sweep_images().unwrap().layers, 1);
    assert_eq!((entries(&tmp), trees(&home)), (1, 0));
    drop(staging);
    assert_eq!(entries(&tmp), 0);
}

#[test]
fn the_tree_of_a_killed_committer_is_replaced() {
    let home = Home::new();
    let tree = home.store.layout().tree_dir(&digest("l"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("half"), "x").unwrap();
    assert_eq!(home.store.layer(&digest("l")).unwrap(), None);
    drop(layers(&home.store, &["l"]));
    assert_eq!((tree.join("half").exists(), tree.join("file").exists()), (false, true));
    // And a row whose tree was lost counts as no layer, and becomes true again.
    fs::remove_dir_all(&tree).unwrap();
    assert_eq!(home.store.layer(&digest("l")).unwrap(), None);
    drop(layers(&home.store, &["l"]));
    assert!(home.store.layer(&digest("l")).unwrap().is_some());
    assert_eq!(entries(&home.store.layout().tmp_dir()), 0);
}

#[test]
fn new_pod_directories_reuse_names() {
    let home = Home::new();
    let tmp = home.store.layout().tmp_dir();
    let _locks: Vec<_> = (1..60).map(|n| home.store.make_pod_dir(pod_id(n)).unwrap()).collect();
    assert_eq!(entries(&tmp), 0);
    // All names were left by processes that died.
    (0..32).for_each(|n| fs::create_dir(tmp.join(format!("pod-{n:032x}"))).unwrap());
    let _lock = home.store.make_pod_dir(pod_id(60)).unwrap();
    assert_eq!(entries(&tmp), 32);
    home.store.sweep_temporaries().unwrap();
    assert_eq!((entries(&tmp), home.store.pod_dirs().unwrap().len()), (0, 60));
}

#[test]
fn layer_locks_are_exclusive() {
    let home = Home::new();
    let (trees, chain) = (home.store.trees(), digest("l"));
    let lock = trees.lock_layer(&chain, DEADLINE, &mut || panic!("the lock is free")).unwrap();
    let late = trees.lock_layer(&chain, Duration::from_millis(20), &mut || {});
    assert!(matches!(late, Err(StoreError::Locked { .. })));
    let (told, heard) = mpsc::channel();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| trees.lock_layer(&chain, DEADLINE, &mut || told.send(()).unwrap()));
        heard.recv().unwrap();
        drop(lock);
        assert_eq!(waiter.join().unwrap().unwrap().chain(), &chain);
    });
    // A waiter whose lock file was collected in the meantime creates a new one.
    let layout = home.store.layout().clone();
    let path = layout.locks_dir().join(crate::Layout::tree_name(&chain));
    let lock = trees.lock_layer(&chain, DEADLINE, &mut || {}).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| trees.lock_layer(&chain, DEADLINE, &mut || told.send(()).unwrap()));
        heard.recv().unwrap();
        fs::remove_file(&path).unwrap();
        drop(lock);
        let _held = waiter.join().unwrap().unwrap();
        assert!(path.exists());
        assert!(crate::trees::try_lock_tree(&layout, &crate::Layout::tree_name(&chain)).unwrap().is_none());
    });
}

#[test]
fn inconsistent_layers_are_not_committed() {
    let home = Home::new();
    let store = &home.store;
    let lock = store.lock_layer(&digest("l"), DEADLINE, &mut || {}).unwrap();
    let row = |chain: &str, parent: Option<&str>| LayerRow {
        chain: digest(chain),
        diff_id: digest("d"),
        parent: parent.map(digest),
        size: 0,
        entries: 0,
    };
    let commit = |row| store.commit_layers(vec![(store.stage_layer(&lock).unwrap(), row)]);
    assert!(matches!(commit(row("other", None)), Err(CommitLayersError::Mismatch { .. })));
    assert!(matches!(commit(row("l", Some("none"))), Err(CommitLayersError::NoParent { .. })));
    assert_eq!((trees(&home), entries(&store.layout().tmp_dir())), (0, 0));
    commit(row("l", None)).unwrap();
    commit(row("l", None)).unwrap();
    assert_eq!((trees(&home), entries(&store.layout().tmp_dir())), (1, 0));
}

#[test]
fn a_locked_pod_directory_has_an_owner() {
    let home = Home::new();
    let (store, id) = (&home.store, pod_id(1));
    assert!(matches!(store.try_lock_pod(id).unwrap(), PodState::Absent));
    let lock = store.make_pod_dir(id).unwrap();
    assert!(matches!(store.make_pod_dir(id), Err(MakePodDirError::Exists(_))));
    assert!(matches!(home.another().try_lock_pod(id).unwrap(), PodState::Held));
    let dir = store.layout().pod_dir(&id);
    fs::create_dir_all(dir.join("upper/a/b")).unwrap();
    std::os::unix::fs::symlink("/", dir.join("upper/root")).unwrap();
    assert_eq!(store.pod_dirs().unwrap(), [id]);
    // Handing the descriptor on keeps the lock; closing the last one frees it.
    let fd = lock.into_fd();
    let copy = fd.try_clone().unwrap();
    drop(fd);
    assert!(matches!(store.try_lock_pod(id).unwrap(), PodState::Held));
    drop(copy);
    let PodState::Free(lock) = store.try_lock_pod(id).unwrap() else { panic!() };
    store.unname_pod_dir(lock, id, true).unwrap().unwrap().delete().unwrap();
    assert!(matches!(store.try_lock_pod(id).unwrap(), PodState::Absent));
    assert_eq!(entries(&store.layout().tmp_dir()), 0);
}

#[test]
fn blobs_are_verified_capped_and_repaired() {
    let home = Home::new();
    let store = &home.store;
    let sha512 = Digest::from_hash(Algorithm::Sha512, &sha2::Sha512::digest("b")).unwrap();
    for blob in [digest("b"), sha512] {
        assert_eq!(store.blob(&blob, 10).unwrap(), None);
        assert!(matches!(store.put_blob(&blob, b"x"), Err(BlobError::Mismatch { .. })));
        store.put_blob(&blob, b"b").unwrap();
        assert_eq!(store.blob(&blob, 1).unwrap().as_deref(), Some(&b"b"[..]));
        assert!(matches!(store.blob(&blob, 0), Err(BlobError::TooLarge { size: 1, .. })));
        fs::write(store.layout().blob(&blob), "y").unwrap();
        assert!(matches!(store.blob(&blob, 10), Err(BlobError::Damaged { .. })));
        store.put_blob(&blob, b"b").unwrap();
        assert!(store.blob(&blob, 10).unwrap().is_some());
    }
    assert_eq!(entries(&store.layout().tmp_dir()), 0);
}
