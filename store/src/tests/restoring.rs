//! Every kind of damage is detected before the database is opened, and the restored database is complete.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use gantry_model::query::PodQuery;
use gantry_model::{BootId, ErrorKind, Kind as _};

use super::*;
use crate::migrate::STEPS;
use crate::{OpenError, Record, StoreError, Verdict, backups};

const NEVER_OLD: Duration = Duration::from_secs(3600);

/// A store with a pod, a backup, another pod since, and enough events to fill some pages; closed. Gives its directory,
/// and the number its next event would have had.
fn backed_up_database() -> (tempfile::TempDir, std::path::PathBuf, u64) {
    let Home { dir, store } = Home::new();
    let image = image(&store, "i", &["l"]);
    store.insert_pod(&new_pod(pod_id(1), &image, &["a"])).unwrap();
    store.back_up_if_due(NEVER_OLD).unwrap().unwrap();
    store.insert_pod(&new_pod(pod_id(2), &image, &["a"])).unwrap();
    for n in 100..200 {
        store.insert_pod(&new_pod(pod_id(n), &image, &["a", "b"])).unwrap();
        moved(&store, pod_id(n), Generation(0), edge(Edge::Aborted(Timestamp(1))));
    }
    let data = store.layout().root().to_owned();
    // Pods have directories; their contents do not matter here.
    drop(store.make_pod_dir(pod_id(1)).unwrap());
    let next = store.last_seq().unwrap() + 1;
    store.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    (dir, data, next)
}

fn best_backup(home: &crate::DataDir, damage: &crate::Damage) -> Option<crate::Backup> {
    home.sources(damage).unwrap().into_iter().next()
}

fn overwrite(data: &Path, at: u64, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(data.join("gantry.db")).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn truncate(data: &Path, part: u64) {
    let file = fs::File::options().write(true).open(data.join("gantry.db")).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len / 4096 * part / 4 * 4096).unwrap();
}

/// All pages behind the schema and the roots of the tables.
fn overwrite_end(data: &Path) {
    let length = fs::metadata(data.join("gantry.db")).unwrap().len();
    overwrite(data, 40 * 4096, &garbage(usize::try_from(length).unwrap() - 40 * 4096));
}

fn garbage(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 % 251) as u8).collect()
}

type Hit = fn(&Path);

/// The damage done to the database, and its expected report.
const HITS: [(Hit, &str); 14] = [
    (|data| overwrite(data, 0, &garbage(100)), "cannot be read"),
    (|data| overwrite(data, 60, &[0; 20]), "header of the database is damaged"),
    (|data| overwrite(data, 100, &garbage(3000)), "cannot be read"),
    (|data| overwrite(data, 5 * 4096, &garbage(40 * 4096)), "cannot be read"),
    (overwrite_end, "damaged"),
    (|data| truncate(data, 2), "cannot be read"),
    (|data| truncate(data, 0), "empty"),
    (|data| fs::remove_file(data.join("gantry.db")).unwrap(), "missing"),
    (|data| fs::write(data.join("gantry.db"), garbage(50_000)).unwrap(), "cannot be read"),
    (|data| sql(data, "DELETE FROM state"), "number of the next event"),
    (|data| sql(data, "PRAGMA ignore_check_constraints = ON; UPDATE pod SET net = 'x,x'"), "cannot be read"),
    (|data| sql(data, "PRAGMA ignore_check_constraints = ON; UPDATE pod SET networks = '[7]'"), "damaged"),
    (|data| sql(data, "UPDATE image SET format = 'tar'"), "damaged"),
    (|data| sql(data, "UPDATE event SET data = 'x'"), "damaged"),
];

fn sql(data: &Path, text: &str) {
    rusqlite::Connection::open(data.join("gantry.db")).unwrap().execute_batch(text).unwrap();
}

#[test]
fn every_kind_of_damage_is_restored() {
    for (row, (hit, want)) in HITS.into_iter().enumerate() {
        let (_dir, data, next) = backed_up_database();
        hit(&data);
        let home = crate::DataDir::open(&data).unwrap();
        let lock = home.lock().unwrap();
        let damage = home.damage().unwrap().unwrap_or_else(|| panic!("row {row}: nothing was found"));
        assert!(damage.what.contains(want), "row {row}: {damage:?}");
        let source = best_backup(&home, &damage).unwrap();
        let record = home.restore(&damage, Some(&source), Ok::<_, StoreError>).unwrap();
        assert_eq!(home.damage().unwrap(), None, "row {row}");
        drop(lock);
        assert_eq!(Record::load(home.layout()).unwrap().unwrap(), record, "row {row}");
        assert!(record.aside.is_dir() && !data.join("gantry.db-journal").exists(), "row {row}");
        let store = Store::open(&data).unwrap();
        assert!(store.pod(pod_id(1)).unwrap().is_some(), "row {row}");
        assert!(store.pod(pod_id(2)).unwrap().is_none(), "row {row}: newer than the backup");
        let first = record.first_event;
        assert!(first > next && first > 1_000_000, "row {row}: {first} after {next}");
        assert_eq!((store.last_seq().unwrap(), store.trimmed_seq().unwrap()), (first - 1, first - 1), "row {row}");
        self::image(&store, "another", &[]);
        assert_eq!(store.events_after(0, 10).unwrap()[0].seq, first, "row {row}");
        let wrong: Vec<_> =
            store.check(crate::Depth::Deep).into_iter().filter(|it| it.severity == crate::Severity::Error).collect();
        assert_eq!(wrong, [], "row {row}");
        assert_eq!(entries(&data.join("tmp")), 0, "row {row}");
    }
}

#[test]
fn commands_refuse_a_damaged_database() {
    for (row, (hit, _)) in HITS.into_iter().enumerate().take(7) {
        let (_dir, data, _) = backed_up_database();
        hit(&data);
        let before = fs::read(data.join("gantry.db")).ok();
        let opened = Store::open(&data).and_then(|store| Ok(store.pods(&PodQuery::default()).map(drop)?));
        let error = opened.expect_err("damaged");
        let fits = matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Invalid);
        assert!(fits, "row {row}: {error:?}");
        assert_eq!(fs::read(data.join("gantry.db")).ok(), before, "row {row}");
        let read = Store::open_read_only(&data).and_then(|store| Ok(store.pods(&PodQuery::default())?));
        assert!(read.is_err(), "row {row}");
    }
}

#[test]
fn foreign_and_unfinished_databases_are_not_restored() {
    let (_dir, data, _) = backed_up_database();
    let home = crate::DataDir::open(&data).unwrap();
    assert_eq!(home.damage().unwrap(), None);
    sql(&data, "PRAGMA user_version = 99");
    assert!(home.damage().unwrap_err().to_string().contains("has format 99"));
    sql(&data, "PRAGMA user_version = 1; PRAGMA application_id = 5; DROP TABLE app; DROP TABLE image_layer");
    assert!(matches!(home.damage(), Err(OpenError::Foreign { .. })));
    let fresh = tempfile::tempdir().unwrap();
    let home = crate::DataDir::open(&fresh.path().join("data")).unwrap();
    assert_eq!(home.damage().unwrap(), None, "nothing yet");
    fs::write(home.layout().db(), "").unwrap();
    assert_eq!(home.damage().unwrap(), None, "killed before its first table");
    drop(Store::open(home.layout().root()).unwrap());
}

#[test]
fn the_newest_valid_backup_is_restored() {
    let (_dir, data, _) = backed_up_database();
    let at = |name: &str| data.join("backups").join(name);
    let good = backups(&crate::Layout::new(&data)).unwrap().remove(0);
    let copy = |name: &str| fs::copy(&good.path, at(name)).map(drop).unwrap();
    copy("gantry-v1-99000000000000000001.db");
    copy("timed-v1-09000000000000000002.db");
    fs::write(at("timed-v1-09000000000000000003.db"), garbage(50_000)).unwrap();
    copy("timed-v9-09000000000000000004.db");
    sql_in(&at("timed-v9-09000000000000000004.db"), "PRAGMA user_version = 99");
    fs::write(at("notes"), "").unwrap();
    overwrite(&data, 0, &garbage(100));
    let home = crate::DataDir::open(&data).unwrap();
    let damage = home.damage().unwrap().unwrap();
    let source = best_backup(&home, &damage).unwrap();
    assert_eq!(source.path, at("timed-v1-09000000000000000002.db"), "no time is beyond 2262");
    fs::remove_dir_all(data.join("backups")).unwrap();
    assert_eq!(best_backup(&home, &damage), None);
}

fn sql_in(path: &Path, text: &str) {
    let conn = rusqlite::Connection::open(path).unwrap();
    conn.execute_batch(text).unwrap();
}

#[test]
fn without_a_backup_an_empty_database_is_created() {
    let (_dir, data, next) = backed_up_database();
    fs::remove_dir_all(data.join("backups")).unwrap();
    overwrite(&data, 0, &garbage(100));
    let home = crate::DataDir::open(&data).unwrap();
    assert!(!home.can_be_read());
    let damage = home.damage().unwrap().unwrap();
    let record = home.restore(&damage, None, Ok::<_, StoreError>).unwrap();
    assert!(record.backup.is_none() && record.first_event > next);
    assert_eq!(Store::open(&data).unwrap().pods(&PodQuery::default()).unwrap(), []);
}

#[test]
fn a_failed_restore_changes_nothing() {
    let (_dir, data, _) = backed_up_database();
    overwrite(&data, 0, &garbage(100));
    let before = fs::read(data.join("gantry.db")).unwrap();
    let home = crate::DataDir::open(&data).unwrap();
    let damage = home.damage().unwrap().unwrap();
    let source = best_backup(&home, &damage);
    let refuse = |_: Store| Err(StoreError::Replaced { doing: "fill" });
    assert!(home.restore(&damage, source.as_ref(), refuse).is_err());
    assert_eq!(fs::read(data.join("gantry.db")).unwrap(), before);
    assert_eq!((entries(&data.join("tmp")), Record::load(home.layout()).unwrap()), (0, None));
}

#[test]
fn handles_on_the_damaged_database_are_refused() {
    let (_dir, data, _) = backed_up_database();
    let old = Store::open(&data).unwrap();
    assert!(old.is_current().unwrap());
    let home = crate::DataDir::open(&data).unwrap();
    let damage = crate::Damage { what: "for this test".to_owned(), rolled_back: false };
    let source = best_backup(&home, &damage);
    home.restore(&damage, source.as_ref(), Ok::<_, StoreError>).unwrap();
    assert!(!old.is_current().unwrap());
    let image = old.images().unwrap()[0].id.clone();
    let refused = old.insert_pod(&new_pod(pod_id(7), &image, &["a"])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    assert!(Store::open(&data).unwrap().insert_pod(&new_pod(pod_id(7), &image, &["a"])).is_ok());
    for _ in 0..4 {
        home.restore(&damage, source.as_ref(), Ok::<_, StoreError>).unwrap();
    }
    assert_eq!(entries(&data.join("damaged")), 3);
}

/// A replaced database does not know all references: objects that its successor knows stay.
#[test]
fn handles_on_the_damaged_database_collect_nothing() {
    let (_dir, data, _) = backed_up_database();
    let old = Store::open(&data).unwrap();
    let home = crate::DataDir::open(&data).unwrap();
    let damage = crate::Damage { what: "for this test".to_owned(), rolled_back: false };
    home.restore(&damage, home.sources(&damage).unwrap().first(), Ok::<_, StoreError>).unwrap();
    let new = Store::open(&data).unwrap();
    image(&new, "later", &["later"]);
    let name = crate::Layout::tree_name(&digest("later"));
    // As if the database was replaced after garbage collection started.
    let mut swept = crate::Swept::default();
    old.sweep_orphan(&name, &mut swept).unwrap();
    assert_eq!((swept, old.sweep_images().unwrap()), Default::default());
    assert_eq!(new.check(crate::Depth::Deep), []);
    new.sweep_orphan(&name, &mut swept).unwrap();
    assert_eq!(swept.layers, 0, "it has its row");
}

/// A reader of events since a time is notified of the lost ones, although rows made from directories have events with
/// older times.
#[test]
fn adopted_rows_do_not_hide_gaps() {
    const SECOND: i64 = 1_000_000_000;
    let (_dir, data, _) = backed_up_database();
    let home = crate::DataDir::open(&data).unwrap();
    let damage = crate::Damage { what: "for this test".to_owned(), rolled_back: false };
    let before = crate::now();
    let adopt = |store: Store| {
        // Of 1970.
        image(&store, "adopted", &[]);
        Ok::<_, StoreError>(store)
    };
    let record = home.restore(&damage, home.sources(&damage).unwrap().first(), adopt).unwrap();
    let after = crate::now();
    let store = Store::open(&data).unwrap();
    let lost = |since: i64| {
        let start = store.seq_before(Timestamp(since)).unwrap();
        store.events_page(start, 9).unwrap().1
    };
    let gap = Some(record.first_event - 1);
    assert_eq!([lost(0), lost(SECOND), lost(before.0 - 60 * SECOND), lost(before.0)], [gap; 4]);
    assert_eq!(lost(after.0 + 2 * SECOND), None, "nothing of that time was there to be lost");
}

#[test]
fn a_restore_continues_above_every_known_sequence() {
    let (_dir, data, _) = backed_up_database();
    let given = 9_000_000_000_000_000;
    sql(&data, &format!("UPDATE state SET next_seq = {given}"));
    let home = crate::DataDir::open(&data).unwrap();
    let damage = crate::Damage { what: "for this test".to_owned(), rolled_back: false };
    let source = best_backup(&home, &damage);
    let record = home.restore(&damage, source.as_ref(), Ok::<_, StoreError>).unwrap();
    assert!(record.first_event > given, "{}", record.first_event);
}

#[test]
fn a_database_closed_for_writing_rejects_writes() {
    let home = Home::new();
    let id = image(&home.store, "i", &[]);
    let keeper = crate::DataDir::open(&home.path()).unwrap();
    keeper.close_for_writing("a page is damaged\n").unwrap();
    let refused = Store::open(&home.path()).unwrap_err();
    assert!(matches!(&refused, OpenError::ReadOnly { why, .. } if why == "a page is damaged"), "{refused:?}");
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(Store::open_read_only(&home.path()).unwrap().image(&id).unwrap().is_some());
    keeper.open_for_writing().unwrap();
    keeper.open_for_writing().unwrap();
    assert!(Store::open(&home.path()).is_ok());
}

#[test]
fn backups_are_due_by_age_and_rotated() {
    let home = Home::new();
    let timed = || backups(home.store.layout()).unwrap();
    let first = home.store.back_up_if_due(NEVER_OLD).unwrap().unwrap();
    assert!(matches!(first.examine(), Verdict::Good { next_seq: 1, .. }));
    assert_eq!(home.store.back_up_if_due(NEVER_OLD).unwrap(), None, "not old enough");
    for n in 0..5 {
        image(&home.store, &format!("i{n}"), &[]);
        assert!(home.store.back_up_if_due(Duration::ZERO).unwrap().is_some(), "{n}");
    }
    assert_eq!(timed().len(), 3);
    assert!(matches!(timed()[0].examine(), Verdict::Good { next_seq: 6, .. }));
    crate::backup::before_migration(home.store.layout(), home.store.boot(), 1).unwrap();
    assert_eq!(timed().len(), 4);
    // Old enough, and nothing has happened since: the files are older than the copy.
    let past = std::time::SystemTime::now() - Duration::from_secs(60);
    for path in [home.store.layout().db(), home.store.layout().wal()] {
        fs::File::options().write(true).open(path).unwrap().set_modified(past).unwrap();
    }
    assert_eq!(home.store.back_up_if_due(Duration::ZERO).unwrap(), None);
    // One from the future does not keep others from being made.
    image(&home.store, "more", &[]);
    let future = home.store.layout().backups_dir().join("timed-v1-09000000000000000000.db");
    fs::copy(&timed()[0].path, &future).unwrap();
    let another = home.store.back_up_if_due(Duration::ZERO).unwrap().unwrap();
    assert!(another.path.exists() && future.exists(), "and stays");
    let modes = timed()
        .iter()
        .all(|it| std::os::unix::fs::PermissionsExt::mode(&it.path.metadata().unwrap().permissions()) & 0o777 == 0o600);
    assert!(modes && home.store.check(crate::Depth::Deep).is_empty());
}

#[test]
fn backups_are_consistent_and_do_not_block_writers() {
    let home = Home::new();
    let image = image(&home.store, "i", &[]);
    let (path, store) = (home.path(), home.another());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let store = Store::open(&path).unwrap();
            let mut n = 1000;
            while !done.load(std::sync::atomic::Ordering::Relaxed) && n < 5_000 {
                store.insert_pod(&new_pod(pod_id(n), &image, &["a", "b"])).unwrap();
                n += 1;
            }
            n - 1000
        });
        for _ in 0..5 {
            let backup = store.back_up_if_due(Duration::ZERO).unwrap().expect("it changes all the time");
            assert!(matches!(backup.examine(), Verdict::Good { .. }));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
    });
}

#[test]
fn a_damaged_database_evicts_no_good_backup() {
    let (_dir, data, _) = backed_up_database();
    let layout = crate::Layout::new(&data);
    let before = backups(&layout).unwrap();
    overwrite_end(&data);
    let store = Store::open_read_only(&data).unwrap();
    let error = store.back_up_if_due(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error:?}");
    assert_eq!(backups(&layout).unwrap(), before);
    assert_eq!(entries(&data.join("backups")), before.len());
}

/// Damage that the check of the whole file does not detect, because every page is valid.
#[test]
fn unreadable_rows_invalidate_a_backup() {
    let wrong = "PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF; ";
    for change in [
        "UPDATE pod SET net = 'x,x'",
        "UPDATE pod SET networks = '{}'",
        "UPDATE app SET image = 'x'",
        "UPDATE image SET id = 'x'",
        "UPDATE image SET format = 'tar'",
        "UPDATE event SET data = 'x'",
        "DELETE FROM state",
    ] {
        let (_dir, data, _) = backed_up_database();
        let layout = crate::Layout::new(&data);
        let good = backups(&layout).unwrap();
        sql(&data, &format!("{wrong}{change}"));
        let store = Store::open_read_only(&data).unwrap();
        let error = store.back_up_if_due(Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{change}: {error:?}");
        assert_eq!(entries(&data.join("backups")), good.len(), "{change}");
        drop(store);
        // A backup of an older gantryd: newer than the good one, and useless.
        let version = crate::migrate::STEPS.len();
        let newer = layout.backups_dir().join(format!("timed-v{version}-09000000000000000001.db"));
        fs::copy(layout.db(), &newer).unwrap();
        sql_in(&newer, "UPDATE state SET next_seq = next_seq + 1000");
        let verdict = backups(&layout).unwrap()[0].examine();
        assert!(matches!(verdict, Verdict::Bad { .. }), "{change}: {verdict:?}");
        let home = crate::DataDir::open(&data).unwrap();
        let damage = home.damage().unwrap().unwrap();
        assert_eq!(home.sources(&damage).unwrap(), good, "{change}");
    }
}

/// A database of an earlier boot in which this boot has made pods: all of them are in the WAL alone.
fn database_of_two_boots() -> (tempfile::TempDir, std::path::PathBuf, u64) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let store = Store::open_as(&data, BootId("an earlier one".into()), STEPS).unwrap();
    let image = image(&store, "i", &["l"]);
    store.insert_pod(&new_pod(pod_id(1), &image, &["a"])).unwrap();
    store.back_up_if_due(NEVER_OLD).unwrap().unwrap();
    store.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(store);
    let store = Store::open(&data).unwrap();
    store.insert_pod(&new_pod(pod_id(2), &image, &["a"])).unwrap();
    self::image(&store, "last", &["l"]);
    let last = store.last_seq().unwrap();
    (dir, data, last)
}

#[test]
fn a_wal_lost_after_boot_is_detected() {
    let lose: [Hit; 5] = [
        |data| fs::write(data.join("gantry.db-wal"), garbage(50_000)).unwrap(),
        |data| ["gantry.db-wal", "gantry.db-shm"].iter().for_each(|name| fs::remove_file(data.join(name)).unwrap()),
        |data| fs::remove_file(data.join("gantry.db-wal")).unwrap(),
        |data| drop(fs::File::create(data.join("gantry.db-wal")).unwrap()),
        |data| fs::File::options().write(true).open(data.join("gantry.db-wal")).unwrap().set_len(32 + 4120).unwrap(),
    ];
    for (row, hit) in lose.into_iter().enumerate() {
        let (_dir, data, last) = database_of_two_boots();
        hit(&data);
        let home = crate::DataDir::open(&data).unwrap();
        let damage = home.damage().unwrap().unwrap_or_else(|| panic!("row {row}: nothing was found"));
        assert!(damage.what.contains("was rolled back"), "row {row}: {damage:?}");
        let record = home.restore(&damage, best_backup(&home, &damage).as_ref(), Ok::<_, StoreError>).unwrap();
        assert!(record.first_event > last, "row {row}");
    }
}

/// SQLite creates a new WAL index when the database is first read; a restore may be killed or fail after that.
#[test]
fn a_short_wal_counts_as_damage_until_restored() {
    let (_dir, data, _) = database_of_two_boots();
    fs::remove_file(data.join("gantry.db-wal")).unwrap();
    let home = crate::DataDir::open(&data).unwrap();
    let damage = home.damage().unwrap().unwrap();
    let refuse = |_: Store| Err(StoreError::Replaced { doing: "fill" });
    let source = best_backup(&home, &damage);
    assert!(home.restore(&damage, source.as_ref(), refuse).is_err());
    let again = crate::DataDir::open(&data).unwrap();
    assert_eq!(again.damage().unwrap().as_ref(), Some(&damage));
    again.restore(&damage, source.as_ref(), Ok::<_, StoreError>).unwrap();
    assert_eq!(again.damage().unwrap(), None);
}

/// A durable commit without an event is missed as well, and the newest source is the one that has it.
#[test]
fn lost_durable_commits_without_events_are_damage() {
    let (_dir, data, last) = database_of_two_boots();
    let store = Store::open(&data).unwrap();
    let image = store.image_by_name("docker.io/library/last:1").unwrap().unwrap();
    assert!(store.untag(&image.id, "docker.io/library/last:1").unwrap());
    let wal = fs::read(data.join("gantry.db-wal")).unwrap();
    store.create_volume(&"data".parse().unwrap(), &Default::default()).unwrap();
    store.remove_volume(&"data".parse().unwrap()).unwrap();
    assert_eq!(store.last_seq().unwrap(), last, "no event was written");
    let backup = store.back_up_if_due(Duration::ZERO).unwrap().unwrap();
    drop(store);
    fs::write(data.join("gantry.db-wal"), wal).unwrap();
    let refused = Store::open(&data).map(drop).unwrap_err();
    assert!(refused.to_string().contains("was rolled back"), "{refused}");
    let home = crate::DataDir::open(&data).unwrap();
    let damage = home.damage().unwrap().expect("it was rolled back");
    assert!(damage.what.contains("was rolled back"), "{damage:?}");
    let source = best_backup(&home, &damage).unwrap();
    assert_eq!(source.path, backup.path);
    let sequence = fs::read(data.join("sequence")).unwrap();
    home.restore(&damage, Some(&source), Ok::<_, StoreError>).unwrap();
    assert_eq!(home.damage().unwrap(), None);
    // As after a kill before the mark was replaced.
    fs::write(data.join("sequence"), sequence).unwrap();
    assert_eq!(home.damage().unwrap(), None);
    assert_eq!(Store::open(&data).unwrap().volumes().unwrap(), []);
}

/// A checkpoint that was killed halfway has copied some pages. Without the WAL, each of them is in order.
#[test]
fn a_partial_checkpoint_without_wal_is_damage() {
    let (_dir, data, _) = backed_up_database();
    let old = fs::read(data.join("gantry.db")).unwrap();
    let store = Store::open(&data).unwrap();
    store.conn.execute_batch("UPDATE image SET imported = imported + 1; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'image_imported'";
    let page: usize = store.conn.query_row(root, [], |row| row.get(0)).unwrap();
    drop(store);
    ["gantry.db-wal", "gantry.db-shm"].iter().for_each(|name| fs::remove_file(data.join(name)).unwrap());
    assert!(Store::open(&data).is_ok(), "a whole checkpoint without a WAL is no damage");
    ["gantry.db-wal", "gantry.db-shm"].iter().for_each(|name| fs::remove_file(data.join(name)).unwrap());
    let at = (page - 1) * 4096;
    overwrite(&data, at as u64, &old[at..at + 4096]);
    let conn = rusqlite::Connection::open(data.join("gantry.db")).unwrap();
    let quick: String = conn.query_row("PRAGMA quick_check", [], |row| row.get(0)).unwrap();
    assert_eq!(quick, "ok", "only the index shows it");
    drop(conn);
    let refused = Store::open(&data).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Damaged, "{refused}");
    let home = crate::DataDir::open(&data).unwrap();
    let damage = home.damage().unwrap().expect("the index differs from its table");
    assert!(damage.what.contains("image_imported"), "{damage:?}");
    home.restore(&damage, best_backup(&home, &damage).as_ref(), Ok::<_, StoreError>).unwrap();
    assert_eq!(home.damage().unwrap(), None);
}

#[test]
fn commits_lost_to_power_loss_are_not_damage() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let store = Store::open_as(&data, BootId("an earlier one".into()), STEPS).unwrap();
    image(&store, "i", &["l"]);
    drop(store);
    fs::remove_file(data.join("gantry.db-wal")).unwrap();
    let home = crate::DataDir::open(&data).unwrap();
    assert_eq!(home.damage().unwrap(), None);
}

#[test]
fn failed_clean_up_does_not_undo_a_restore() {
    let (_dir, data, _) = backed_up_database();
    overwrite(&data, 0, &garbage(100));
    let home = crate::DataDir::open(&data).unwrap();
    // Older than the newest three, but not directories as a restore creates them.
    for name in ["a", "b", "c", "d"] {
        fs::create_dir_all(data.join("damaged")).unwrap();
        fs::write(data.join("damaged").join(name), "").unwrap();
    }
    let damage = home.damage().unwrap().unwrap();
    home.restore(&damage, best_backup(&home, &damage).as_ref(), Ok::<_, StoreError>).unwrap();
    assert!(Store::open(&data).unwrap().pod(pod_id(1)).unwrap().is_some());
}

/// No record may have the numbers since a restore: the clock was ahead, and the new database is damaged too.
#[test]
fn repeated_restores_continue_the_sequence() {
    let (_dir, data, _) = backed_up_database();
    overwrite(&data, 0, &garbage(100));
    let home = crate::DataDir::open(&data).unwrap();
    let damage = home.damage().unwrap().unwrap();
    let before = home.restore(&damage, best_backup(&home, &damage).as_ref(), Ok::<_, StoreError>).unwrap();
    let given = 9_000_000_000_000_000;
    Record { first_event: given, ..before }.save(home.layout()).unwrap();
    overwrite(&data, 0, &garbage(100));
    let damage = home.damage().unwrap().unwrap();
    let record = home.restore(&damage, best_backup(&home, &damage).as_ref(), Ok::<_, StoreError>).unwrap();
    assert!(record.first_event > given, "{}", record.first_event);
}

#[test]
fn commits_in_an_intact_wal_are_kept() {
    let (_dir, data, _) = database_of_two_boots();
    let store = Store::open(&data).unwrap();
    let image = store.images().unwrap().remove(0).id;
    store.insert_pod(&new_pod(pod_id(3), &image, &["a"])).unwrap();
    let lost = self::image(&store, "lost", &["l"]);
    drop(store);
    let wal = fs::File::options().write(true).open(data.join("gantry.db-wal")).unwrap();
    wal.set_len(wal.metadata().unwrap().len() - 1).unwrap();
    let home = crate::DataDir::open(&data).unwrap();
    let damage = home.damage().unwrap().unwrap();
    let sources = home.sources(&damage).unwrap();
    assert_eq!(
        sources.iter().map(|source| source.path == data.join("gantry.db")).collect::<Vec<_>>(),
        [true, true, false]
    );
    home.restore(&damage, sources.first(), Ok::<_, StoreError>).unwrap();
    let store = Store::open(&data).unwrap();
    // The image was in the last frame, which is gone.
    let known = [1, 2, 3].map(|n| store.pod(pod_id(n)).unwrap().is_some());
    assert_eq!((known, store.image(&lost).unwrap()), ([true, true, true], None));
}

#[test]
fn lost_pods_are_kept_for_a_period() {
    let home = Home::new();
    let store = &home.store;
    let lock = store.make_pod_dir(pod_id(1)).unwrap();
    let path = store.move_to_lost(lock, pod_id(1)).unwrap();
    assert!(store.delete_lost_pods(Duration::from_secs(3600), false).unwrap().is_empty() && path.exists());
    assert_eq!(store.delete_lost_pods(Duration::ZERO, true).unwrap(), std::slice::from_ref(&path));
    assert!(path.exists());
    assert_eq!(store.delete_lost_pods(Duration::ZERO, false).unwrap(), std::slice::from_ref(&path));
    assert!(!path.exists() && store.check(crate::Depth::Deep).is_empty());
}

#[test]
fn lost_pods_are_dated_by_their_name() {
    let home = Home::new();
    let store = &home.store;
    let lock = store.make_pod_dir(pod_id(1)).unwrap();
    let path = store.move_to_lost(lock, pod_id(1)).unwrap();
    let stamp = path.join("lost-at");
    let at: i64 = std::fs::read_to_string(&stamp).unwrap().parse().unwrap();
    assert!(crate::now().since(gantry_model::Timestamp(at)) < Duration::from_secs(60));
    let hour = Duration::from_secs(3600);
    // Writing the stamp and changing the mode renews the ctime; the stamp counts.
    std::fs::write(&stamp, crate::now().before(hour * 2).0.to_string()).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(store.delete_lost_pods(hour, true).unwrap(), std::slice::from_ref(&path));
    // Without a stamp that can be read, the ctime counts.
    for text in ["", "yesterday", &"9".repeat(100)] {
        std::fs::write(&stamp, text).unwrap();
        assert!(store.delete_lost_pods(hour, true).unwrap().is_empty(), "{text}");
    }
}
