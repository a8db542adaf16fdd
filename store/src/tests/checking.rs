//! The check reports every damage once, and has no false positives.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::{PodState, Severity};

type Damage = fn(&Home);

fn sql(home: &Home, text: &str) {
    home.store.conn.execute_batch(&format!("PRAGMA foreign_keys = OFF; {text}; PRAGMA foreign_keys = ON")).unwrap();
}

#[test]
fn every_kind_of_damage_is_detected() {
    let rows: [(&str, Damage, Severity); 15] = [
        (
            "directory of layer",
            |h| fs::remove_dir_all(h.store.layout().tree_dir(&digest("l"))).unwrap(),
            Severity::Error,
        ),
        (
            "belongs to no layer",
            |h| fs::create_dir(h.store.layout().trees_dir().join("x\n")).unwrap(),
            Severity::Warning,
        ),
        ("is missing", |h| fs::remove_file(h.store.layout().blob(&digest("i"))).unwrap(), Severity::Error),
        ("is damaged", |h| fs::write(h.store.layout().blob(&digest("i")), "j").unwrap(), Severity::Error),
        ("has no directory", |h| fs::remove_dir(h.store.layout().pod_dir(&pod_id(1))).unwrap(), Severity::Error),
        ("has no row", |h| fs::create_dir(h.store.layout().pod_dir(&pod_id(9))).unwrap(), Severity::Warning),
        ("is no pod", |h| fs::write(h.store.layout().pods_dir().join("x"), "").unwrap(), Severity::Error),
        ("process that died", |h| fs::write(h.store.layout().tmp_dir().join("x"), "").unwrap(), Severity::Warning),
        (
            "has mode 0755",
            |h| fs::set_permissions(h.store.layout().pods_dir(), fs::Permissions::from_mode(0o755)).unwrap(),
            Severity::Error,
        ),
        ("is missing", |h| fs::remove_dir(h.store.layout().backups_dir()).unwrap(), Severity::Error),
        (
            "refers to one of 'image'",
            |h| sql(h, "UPDATE app SET image = 'sha256:'||hex(zeroblob(32))"),
            Severity::Error,
        ),
        ("the events between 1 and 3", |h| sql(h, "DELETE FROM event WHERE seq = 2"), Severity::Error),
        ("next event is wrong", |h| sql(h, "UPDATE state SET next_seq = 2"), Severity::Error),
        ("cannot be read", |h| sql(h, "UPDATE pod SET net = 'no such net'"), Severity::Error),
        (
            "does not meet: ended_at IS NOT NULL OR failed_app IS NULL",
            |h| sql(h, "DROP TRIGGER pod_UPDATE; UPDATE pod SET failed_app = 'a'"),
            Severity::Error,
        ),
    ];
    for (want, damage, severity) in rows {
        let home = Home::new();
        let store = &home.store;
        let image = image(store, "i", &["l"]);
        let _lock = store.make_pod_dir(pod_id(1)).unwrap();
        let pod = store.insert_pod(&new_pod(pod_id(1), &image, &["a"])).unwrap();
        let pod = moved(store, pod.id, pod.generation, edge(Edge::Prepare));
        let pod = moved(store, pod.id, pod.generation, edge(Edge::Prepared(Timestamp(1))));
        moved(store, pod.id, pod.generation, edge(Edge::Started { at: Timestamp(2), supervisor: supervisor() }));
        assert_eq!(store.check(crate::Depth::Deep), [], "before {want}");
        damage(&home);
        let found = store.check(crate::Depth::Deep);
        assert_eq!(found.len(), 1, "{want}: {found:?}");
        assert!(found[0].what.contains(want) && found[0].severity == severity, "{want}: {found:?}");
        assert!(!found[0].what.contains('\n') && !found[0].hint.is_empty());
    }
}

#[test]
fn changes_that_violate_a_constraint_fail() {
    let home = Home::new();
    let image = image(&home.store, "i", &["l"]);
    let _lock = home.store.make_pod_dir(pod_id(1)).unwrap();
    home.store.insert_pod(&new_pod(pod_id(1), &image, &["a"])).unwrap();
    let changes = [
        "UPDATE pod SET phase = 'running'",
        "UPDATE app SET pid = 1",
        "UPDATE state SET next_seq = trimmed",
        "UPDATE event SET data = '[]'",
        "UPDATE layer SET entries = -1",
        "UPDATE image SET format = 'tar'",
        "UPDATE image_layer SET position = -1",
        "INSERT INTO feature VALUES ('x', 'useful')",
        "INSERT INTO volume VALUES ('v', 1, '{}', 2)",
        "INSERT INTO schedule (name, revision, enabled, enabled_at, manifest, comment, handled_at, failure)
            VALUES ('s', 1, 1, 1, '{}', '', 1, 'none')",
    ];
    for change in changes {
        let error = home.store.conn.execute_batch(change).unwrap_err().to_string();
        assert!(error.starts_with("constraint: "), "{change}: {error}");
    }
    assert_eq!(home.store.check(crate::Depth::Quick), []);
}

#[test]
fn damaged_pages_are_detected() {
    let home = Home::new();
    for n in 0..50 {
        image(&home.store, &format!("image {n}"), &[]);
    }
    // With an empty WAL, opening checks the whole file.
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE); INSERT INTO feature VALUES ('x', 'compatible')";
    home.store.conn.execute_batch(checkpoint).unwrap();
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'image_name'";
    let page: usize = home.store.conn.query_row(root, [], |row| row.get(0)).unwrap();
    let path = home.path();
    drop(home.store);
    let db = path.join("gantry.db");
    let mut bytes = fs::read(&db).unwrap();
    // A bad sector that opening does not read.
    for byte in &mut bytes[(page - 1) * 4096..page * 4096] {
        *byte ^= 0x5a;
    }
    fs::write(&db, bytes).unwrap();
    let store = Store::open(&path).unwrap();
    let found = store.check(crate::Depth::Deep);
    assert!(found.iter().any(|finding| finding.hint.contains("backups")), "{found:?}");
    assert!(matches!(store.try_lock_pod(pod_id(1)).unwrap(), PodState::Absent));
    drop(home.dir);
}
