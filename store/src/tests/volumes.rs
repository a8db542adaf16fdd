//! Named volumes: creation, references, removal and recovery.

use std::collections::BTreeMap;
use std::fs;

use super::*;
use crate::{InsertPodError, RemoveVolumeError};

fn name(text: &str) -> gantry_model::VolumeName {
    text.parse().unwrap()
}

/// A home with an image, for pods.
fn home() -> (Home, Digest) {
    let home = Home::new();
    let image = image(&home.store, "i", &["l"]);
    (home, image)
}

fn with_volume(n: u128, image: &Digest, volume: &str) -> NewPod {
    NewPod { volumes: [name(volume)].into(), ..new_pod(pod_id(n), image, &["a"]) }
}

#[test]
fn volumes_in_use_are_kept() {
    let (home, image) = home();
    let (store, data) = (&home.store, name("data"));
    let labels = [("k".to_owned(), "v".to_owned())].into();
    assert!(store.create_volume(&data, &labels).unwrap());
    assert!(!store.create_volume(&data, &BTreeMap::new()).unwrap(), "it exists");
    let row = store.volume(&data).unwrap().unwrap();
    assert_eq!((row.labels, row.pods.len()), (labels, 0));
    fs::write(store.layout().volume_data(&data).join("file"), [7; 8192]).unwrap();
    let missing = store.insert_pod(&with_volume(1, &image, "none")).unwrap_err();
    assert!(matches!(missing, InsertPodError::NoSuchVolume(_)), "{missing}");
    assert!(store.pod(pod_id(1)).unwrap().is_none(), "all or nothing");
    let pod = store.insert_pod(&with_volume(1, &image, "data")).unwrap();
    let refused = store.remove_volume(&data).unwrap_err();
    assert!(matches!(&refused, RemoveVolumeError::InUse { pods, .. } if pods.len() == 1), "{refused}");
    assert!(refused.to_string().contains(&pod.id.to_string()), "{refused}");
    assert_eq!(store.volumes().unwrap()[0].pods, [pod.id].into());
    // The pod goes, the volume stays.
    let aborted = moved(store, pod.id, pod.generation, edge(Edge::Aborted(Timestamp(1))));
    let marked = moved(store, pod.id, aborted.generation, edge(Edge::Marked(Timestamp(2))));
    let deleting = moved(store, pod.id, marked.generation, edge(Edge::Deleting(Timestamp(3))));
    store.step(pod.id, deleting.generation, edge(Edge::Swept)).unwrap();
    assert_eq!(store.volume(&data).unwrap().unwrap().pods, [].into());
    assert!(store.remove_volume(&data).unwrap() >= 8192);
    assert!(store.volumes().unwrap().is_empty() && !store.layout().volume_dir(&data).exists());
    assert!(matches!(store.remove_volume(&data), Err(RemoveVolumeError::NotFound(_))));
    assert!(store.check(crate::Depth::Deep).is_empty());
}

/// Recovery after a kill or a power cut at each step.
#[test]
fn interrupted_operations_are_completed() {
    let (home, image) = home();
    let (store, data) = (&home.store, name("data"));
    let labels: BTreeMap<String, String> = [("k".to_owned(), "v".to_owned())].into();
    let again = |finish: &dyn Fn()| {
        assert_eq!(store.check(crate::Depth::Quick).len(), 1);
        finish();
        assert!(store.check(crate::Depth::Quick).is_empty(), "{:?}", store.check(crate::Depth::Quick));
        store.settle_volumes().unwrap();
    };
    let row_lost = |store: &Store| store.conn.execute("DELETE FROM volume", []).unwrap();
    let marked = |store: &Store| store.conn.execute("UPDATE volume SET deleting = 1", []).unwrap();
    // The directory exists and the row does not: the process was killed before it, or the database was restored.
    // Nothing is lost.
    store.create_volume(&data, &labels).unwrap();
    let created = store.volume(&data).unwrap().unwrap().created;
    row_lost(store);
    again(&|| store.settle_volumes().unwrap());
    let row = store.volume(&data).unwrap().unwrap();
    assert_eq!((row.created, &row.labels), (created, &labels));
    row_lost(store);
    again(&|| assert!(!store.create_volume(&data, &BTreeMap::new()).unwrap()));
    assert_eq!(store.volume(&data).unwrap().unwrap().labels, labels);
    // An interrupted removal: the volume counts as removed, and the removal is completed.
    marked(store);
    assert!(store.volumes().unwrap().is_empty() && store.insert_pod(&with_volume(1, &image, "data")).is_err());
    again(&|| store.settle_volumes().unwrap());
    assert!(!store.layout().volume_dir(&data).exists());
    // The same, but its directory no longer exists; a new one starts empty.
    store.create_volume(&data, &labels).unwrap();
    fs::write(store.layout().volume_data(&data).join("old"), "x").unwrap();
    marked(store);
    again(&|| assert!(store.create_volume(&data, &BTreeMap::new()).unwrap()));
    assert_eq!(entries(&store.layout().volume_data(&data)), 0);
    // Only an administrator deletes a directory that has a row.
    fs::remove_dir_all(store.layout().volume_dir(&data)).unwrap();
    let findings = store.check(crate::Depth::Quick);
    assert!(findings.len() == 1 && findings[0].what.contains("is missing"), "{findings:?}");
    assert_eq!(store.remove_volume(&data).unwrap(), 0);
    assert!(store.check(crate::Depth::Quick).is_empty());
}

#[test]
fn collection_skips_directories_being_deleted() {
    let home = Home::new();
    let (store, data) = (&home.store, name("data"));
    store.create_volume(&data, &BTreeMap::new()).unwrap();
    let (path, tmp) = (store.layout().volume_dir(&data), store.layout().tmp_dir());
    let aside = crate::tmp::move_aside(store.layout(), &path, "deleted-volume").unwrap().unwrap();
    assert!(crate::tmp::move_aside(store.layout(), &path, "deleted-volume").unwrap().is_none());
    home.another().sweep_temporaries().unwrap();
    assert_eq!(entries(&tmp), 1);
    aside.delete().unwrap();
    assert_eq!(entries(&tmp), 0);
    // Its process died before the deletion.
    let dead = store.layout().volumes_dir().join("dead");
    fs::create_dir(&dead).unwrap();
    drop(crate::tmp::move_aside(store.layout(), &dead, "deleted-volume").unwrap());
    assert_eq!(entries(&tmp), 1);
    store.sweep_temporaries().unwrap();
    assert_eq!(entries(&tmp), 0);
}

#[test]
fn listing_does_not_wait_for_the_lock() {
    let home = Home::new();
    let (store, data) = (&home.store, name("data"));
    store.create_volume(&data, &BTreeMap::new()).unwrap();
    store.conn.execute("UPDATE volume SET deleting = 1", []).unwrap();
    let lock = home.another().lock_volumes().unwrap();
    let begun = std::time::Instant::now();
    store.try_settle_volumes().unwrap();
    assert!(begun.elapsed() < crate::db::BUSY_TIMEOUT / 2);
    assert_eq!(store.unfinished_volumes().unwrap(), ["data"]);
    drop(lock);
    store.try_settle_volumes().unwrap();
    assert!(store.unfinished_volumes().unwrap().is_empty() && !store.layout().volume_dir(&data).exists());
    assert_eq!(entries(&store.layout().tmp_dir()), 0);
}

/// The backup was made during the removal of a volume; another of the same name was made after it.
#[test]
fn a_restore_keeps_volumes_recreated_since_the_backup() {
    let home = Home::new();
    let (store, data, gone) = (&home.store, name("data"), name("gone"));
    let labels: BTreeMap<String, String> = [("k".to_owned(), "new".to_owned())].into();
    store.create_volume(&data, &labels).unwrap();
    store.create_volume(&gone, &labels).unwrap();
    let file = store.layout().volume_data(&data).join("file");
    fs::write(&file, "x").unwrap();
    fs::remove_dir_all(store.layout().volume_dir(&gone)).unwrap();
    store.conn.execute("UPDATE volume SET deleting = 1, labels = '{}', created = 1", []).unwrap();
    store.adopt_volumes().unwrap();
    store.settle_volumes().unwrap();
    let rows = store.volumes().unwrap();
    assert_eq!(rows.iter().map(|row| (&row.name, &row.labels)).collect::<Vec<_>>(), [(&data, &labels)]);
    assert!(rows[0].created > Timestamp(1));
    assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    assert!(store.unfinished_volumes().unwrap().is_empty());
}
