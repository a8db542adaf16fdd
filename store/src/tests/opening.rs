//! Creating, refusing, migrating, entering a boot.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use gantry_model::query::PodQuery;
use gantry_model::restart::{PodRestart, StopRequest};
use gantry_model::{BootId, ErrorKind, FormerPhase, Kind as _, Phase, PhaseName, Timestamp};
use rusqlite::Connection;

use super::*;
use crate::db::{self, SchemaState};
use crate::migrate::{self, STEPS};
use crate::{DatabaseFailure, OpenError, StoreError};

const V1: &str = include_str!("../../fixtures/v1.sql");
/// As the first builds of format 1 made it: with all constraints in the schema.
const V1_WITH_CHECKS: &str = include_str!("../../fixtures/v1-checks.sql");

/// A step to a format that does not exist yet: a new column with a value for each row.
const NEXT_STEP: &str = "ALTER TABLE pod ADD COLUMN extra TEXT NOT NULL DEFAULT 'x';
    UPDATE pod SET extra = id;";

fn boot(name: &str) -> BootId {
    BootId(name.into())
}

/// A data directory with the database of a fixture.
fn of_fixture(fixture: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    drop(Store::open(&data).unwrap());
    for name in ["gantry.db", "gantry.db-wal", "gantry.db-shm"] {
        let path = data.join(name);
        assert!(!path.exists() || fs::remove_file(path).is_ok());
    }
    Connection::open(data.join("gantry.db")).unwrap().execute_batch(fixture).unwrap();
    (dir, data)
}

#[test]
fn a_new_store_is_private_and_persistent() {
    let home = Home::new();
    for dir in ["", "pods", "trees", "blobs", "tmp", "locks", "backups"] {
        let mode = fs::metadata(home.path().join(dir)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "{dir}");
    }
    assert_eq!(fs::metadata(home.path().join("gantry.db")).unwrap().permissions().mode() & 0o777, 0o600);
    let id = image(&home.store, "i", &["l"]);
    assert_eq!(home.another().image(&id).unwrap().unwrap().id, id);
    assert_eq!(home.another().last_seq().unwrap(), 1);
    assert_eq!(home.store.check(crate::Depth::Deep), []);
}

/// A process that opens the database while another creates it sees none of it or all.
#[test]
fn opening_during_creation_sees_all_or_nothing() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let layout = crate::Layout::new(dir.path());
        db::make_db(&layout.db()).unwrap();
        let maker = db::connect(&layout, &boot("b")).unwrap().conn;
        db::set_wal(&maker).unwrap();
        let looks = db::connect(&layout, &boot("b")).unwrap().conn;
        std::thread::scope(|scope| {
            let making = scope.spawn(move || migrate::migrate(&maker, STEPS, |_| Ok(())).unwrap());
            let look = || match db::check_schema(&looks, &layout, &boot("b"), STEPS).unwrap() {
                SchemaState::Behind(steps) => steps,
                SchemaState::Ready => panic!("no boot was entered"),
            };
            while look() < STEPS.len() && !making.is_finished() {}
            making.join().unwrap();
            assert_eq!(look(), STEPS.len());
        });
    }
}

/// The error of opening a directory that cannot be used.
fn refused(dir: &std::path::Path) -> String {
    Store::open(dir).map(drop).unwrap_err().to_string()
}

#[test]
fn directories_writable_by_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for mode in [0o777, 0o755, 0o710] {
        let open = at(&format!("{mode:o}"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
        assert!(refused(&open).contains(&format!("has mode {mode:04o}")));
        assert_eq!(entries(&open), 0);
    }
    fs::create_dir(at("real")).unwrap();
    fs::set_permissions(at("real"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("real", at("link")).unwrap();
    assert!(refused(&at("link")).contains("is not a directory"));
    fs::write(at("file"), "").unwrap();
    assert!(refused(&at("file")).contains("is not a directory"));
    fs::create_dir(at("theirs")).unwrap();
    fs::set_permissions(at("theirs"), fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(at("theirs"), Some(4711), None).unwrap();
        assert!(refused(&at("theirs")).contains("belongs to user 4711"));
    }
}

#[test]
fn parents_may_be_symbolic_links() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("disk")).unwrap();
    symlink("disk", at("lib")).unwrap();
    for data in ["lib/gantry", "lib/new/gantry", "./lib/gantry"] {
        let store = Store::open(&at(data)).unwrap();
        assert!(store.layout().root().starts_with(at("disk").canonicalize().unwrap()), "{data}");
        Store::open_read_only(&at(data)).unwrap();
    }
    symlink("gantry", at("disk/link")).unwrap();
    assert!(refused(&at("lib/link")).contains("is not a directory"));
}

#[test]
fn read_only_open_creates_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let absent = Store::open_read_only(&data).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
    assert!(!data.exists());
    let home = Home::new();
    let id = image(&home.store, "i", &["l"]);
    let reader = Store::open_read_only(&home.path()).unwrap();
    assert!(reader.image(&id).unwrap().is_some());
    let refused = reader.untag(&id, "docker.io/library/i:1").unwrap_err();
    assert!(matches!(refused, StoreError::Database { failure: DatabaseFailure::ReadOnly, .. }), "{refused:?}");
    assert!(reader.insert_pod(&new_pod(pod_id(1), &id, &["a"])).is_err());
    assert_eq!(home.store.pods(&PodQuery::default()).unwrap(), []);
}

#[test]
fn foreign_databases_are_refused_with_advice() {
    let change = |sql: &str| {
        let home = Home::new();
        home.store.conn.execute_batch(sql).unwrap();
        Store::open(&home.path()).map(drop).unwrap_err()
    };
    assert!(change("PRAGMA user_version = 99").to_string().contains("has format 99"));
    assert!(matches!(change("PRAGMA application_id = 1"), OpenError::Foreign { .. }));
    let sql = "INSERT INTO feature VALUES ('x\x1b[2J', 'incompatible'), ('y', 'compatible')";
    let unknown = change(sql);
    let unknown = unknown.to_string();
    assert!(unknown.contains("does not know") && !unknown.contains('\x1b'), "{unknown}");

    let home = Home::new();
    let path = home.path();
    drop(home.store);
    fs::write(path.join("gantry.db"), "this is no database, and long enough to be seen as none".repeat(100)).unwrap();
    fs::remove_file(path.join("gantry.db-wal")).unwrap();
    let damaged = Store::open(&path).unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::Damaged);
    assert!(damaged.to_string().contains("backups"), "{damaged}");
}

#[test]
fn migrations_produce_the_schema_of_the_fixture() {
    let schema = |conn: &Connection| -> Vec<(String, String)> {
        let mut all = conn.prepare("SELECT name, coalesce(sql, '') FROM sqlite_schema ORDER BY name").unwrap();
        all.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().collect::<Result<_, _>>().unwrap()
    };
    for (n, fixture) in [V1].into_iter().enumerate() {
        let (released, made) = (Connection::open_in_memory().unwrap(), Connection::open_in_memory().unwrap());
        released.execute_batch(fixture).unwrap();
        STEPS[..=n].iter().for_each(|step| made.execute_batch(step).unwrap());
        assert_eq!(schema(&released), schema(&made), "format {}", n + 1);
        assert_eq!(crate::migrate::version(&released).unwrap(), n + 1);
    }
    assert_eq!(STEPS.len(), 1, "a format without a fixture");
}

#[test]
fn databases_with_check_constraints_stay_usable() {
    let (_dir, data) = of_fixture(V1_WITH_CHECKS);
    check_fixture(&Store::open(&data).unwrap());
    let store = Store::open_as(&data, boot("new"), &[STEPS, &[NEXT_STEP]].concat()).unwrap();
    check_fixture(&store);
    let image = image(&store, "i", &["l"]);
    let pod = store.insert_pod(&new_pod(pod_id(99), &image, &["a"])).unwrap();
    moved(&store, pod.id, pod.generation, edge(Edge::Prepare));
}

#[test]
fn malformed_json_below_check_constraints_is_damage() {
    let (_dir, data) = of_fixture(V1_WITH_CHECKS);
    let malformed = "PRAGMA ignore_check_constraints = ON; UPDATE event SET data = '{'";
    Connection::open(data.join("gantry.db")).unwrap().execute_batch(malformed).unwrap();
    let home = crate::DataDir::open(&data).unwrap();
    let damage = home.damage().unwrap().expect("damage");
    assert_eq!(damage.what, "the database has damaged rows");
    for depth in [crate::Depth::Quick, crate::Depth::Deep] {
        let findings = Store::open(&data).unwrap().check(depth);
        let errors = findings.into_iter().filter(|it| it.severity == crate::Severity::Error);
        let lines: Vec<_> = errors.map(|it| it.what).filter(|what| what.contains("'event'")).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("a row of table 'event' does not meet: "), "{lines:?}");
    }
}

/// Checks the rows of the fixture.
fn check_fixture(store: &Store) {
    let pods = store.pods(&PodQuery::default()).unwrap();
    let names: Vec<_> = pods.iter().map(|pod| pod.phase.name()).collect();
    let others = PhaseName::ALL.into_iter().filter(|name| *name != PhaseName::Starting);
    assert_eq!(names, others.chain([PhaseName::Starting]).collect::<Vec<_>>());
    assert_eq!(pods[3].user_annotations["k"], "v");
    let failure = Some("f".to_owned());
    let held_apps = ["a", "b"].map(|name| name.parse().unwrap()).into();
    let stop_request = Some(StopRequest::UntilStarted);
    let restart = PodRestart { at: Some(Timestamp(150)), tries: 2, count: 3, failure, stop_request, held_apps };
    assert_eq!((&pods[8].restart, &pods[5].restart), (&restart, &PodRestart::default()));
    let Phase::Garbage { was: FormerPhase::Exited { at, .. }, .. } = &pods[6].phase else { panic!("{:?}", pods[6]) };
    assert_eq!(*at, Timestamp(140));
    let Phase::Garbage { was: FormerPhase::Prepared, deleting, .. } = &pods[7].phase else { panic!("{:?}", pods[7]) };
    assert_eq!(*deleting, Some(Timestamp(160)));
    assert_eq!((pods[5].apps[0].annotations["a"].as_str(), pods[7].apps[0].annotations.len()), ("b", 0));
    assert_eq!(store.images().unwrap()[0].layers.len(), 2);
    assert_eq!(store.events_after(0, 10).unwrap().len(), 2);
}

#[test]
fn format_1_is_read() {
    let (_dir, data) = of_fixture(V1);
    let store = Store::open(&data).unwrap();
    assert_eq!(entries(&data.join("backups")), 0, "nothing was migrated");
    check_fixture(&store);
    let pods = store.pods(&PodQuery::default()).unwrap();
    assert_eq!(pods[4].net, "default,b".parse().unwrap());
    let second = gantry_model::PodNetwork { name: "b".into(), interface: "eth1".into(), ..Default::default() };
    let mut first = full_network();
    first.addresses[1].gateway = None;
    first.routes.truncate(1);
    first.ports.truncate(1);
    assert_eq!(pods[4].networks.read().unwrap(), [first, second]);
    assert_eq!((pods[5].networks.read().unwrap()[0].name.as_str(), pods[3].networks.is_empty()), ("default", true));
    let volumes = store.volumes().unwrap();
    assert_eq!(volumes.len(), 1, "the other one is being removed: {volumes:?}");
    let volume = &volumes[0];
    assert_eq!((volume.name.as_str(), volume.created, volume.labels["k"].as_str()), ("data", Timestamp(5), "v"));
    assert_eq!(volume.pods, ["00000000-0000-4000-8000-000000000004".parse().unwrap()].into());
    let apps: Vec<_> = pods[4].apps.iter().map(|app| (app.name.as_str(), app.state.name(), app.added)).collect();
    let names: Vec<_> = pods.iter().map(|pod| pod.name.as_ref().map(gantry_model::PodName::as_str)).collect();
    assert_eq!(names, [None, None, None, None, Some("web"), None, None, None, None]);
    let added = Some(Timestamp(135));
    assert_eq!(apps, [("a", "running", None), ("created", "created", added), ("creating", "creating", added)]);
}

#[test]
fn migration_backs_up_and_locks_out_old_programs() {
    let (_dir, data) = of_fixture(V1);
    let mut steps = [STEPS, &[NEXT_STEP]].concat();
    let extra = |store: &Store| -> String {
        store.conn.query_row("SELECT extra FROM pod ORDER BY id LIMIT 1", [], |row| row.get(0)).unwrap()
    };
    for _ in 0..2 {
        let store = Store::open_as(&data, boot("new"), &steps).unwrap();
        check_fixture(&store);
        assert_eq!(extra(&store), "00000000-0000-4000-8000-000000000001");
        assert_eq!(entries(&data.join("backups")), 1, "the second open migrates nothing");
    }
    let copy = fs::read_dir(data.join("backups")).unwrap().next().unwrap().unwrap().path();
    let version: u32 = Connection::open(&copy).unwrap().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 1);
    for refused in [Store::open(&data).map(drop), Store::open_read_only(&data).map(drop)] {
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("has format 2 and this gantry knows formats up to 1"), "{refused}");
    }
    // Three copies are kept, the newest ones.
    for _ in 0..4 {
        steps.push("CREATE INDEX IF NOT EXISTS another ON pod (extra)");
        drop(Store::open_as(&data, boot("new"), &steps).unwrap());
    }
    assert_eq!(entries(&data.join("backups")), 3);
    assert!(!copy.exists());
}

#[test]
fn a_failed_migration_keeps_the_old_format() {
    let (_dir, data) = of_fixture(V1);
    let steps = [STEPS, &[NEXT_STEP, "this is no SQL"]].concat();
    assert!(Store::open_as(&data, boot("new"), &steps).is_err());
    let store = Store::open(&data).unwrap();
    check_fixture(&store);
    let looked = db::check_schema(&store.conn, store.layout(), &boot("new"), &steps).unwrap();
    assert!(matches!(looked, SchemaState::Behind(1)));
    assert!(store.conn.execute_batch("SELECT extra FROM pod").is_err());
}

/// Where [`migrate_until_killed`] finds its data directory.
const MIGRATED_DIR: &str = "GANTRY_TEST_MIGRATED_DIR";
/// The point at which it stops and waits to be killed.
const KILL_POINT: &str = "GANTRY_TEST_KILL_POINT";
/// The file that is created below the data directory at that point: the rollback journal of an attached database.
const REACHED: &str = "tmp/mark-journal";

/// [`NEXT_STEP`] with more pages than the cache of [`migrate_until_killed`] has. Running it twice would show.
fn step_with_many_writes() -> String {
    format!("{NEXT_STEP} UPDATE volume SET created = created + 1 WHERE name LIKE 'filler-%';")
}

/// The child of the next test.
#[test]
fn migrate_until_killed() {
    let Some(data) = std::env::var_os(MIGRATED_DIR).map(std::path::PathBuf::from) else { return };
    let point = std::env::var(KILL_POINT).unwrap();
    let mark = data.join("tmp/mark");
    fs::write(&mark, "").unwrap();
    // SQLite creates the journal at the first write to the database, within the transaction of the step.
    let reach = format!("ATTACH '{}' AS mark; CREATE TABLE mark.reached (one)", mark.display());
    let stop =
        format!("{reach}; WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n");
    let step = step_with_many_writes();
    let layout = crate::Layout::new(&data);
    let conn = db::connect(&layout, &boot("b")).unwrap().conn;
    db::set_wal(&conn).unwrap();
    // Pages of the open transaction are written to the WAL before its commit.
    conn.execute_batch("PRAGMA cache_size = 5").unwrap();
    let steps = match point.as_str() {
        "before the writes" => [&STEPS[..1], &[stop.as_str()], &STEPS[1..], &[step.as_str()]].concat(),
        "before the commit" => [STEPS, &[step.as_str(), stop.as_str()]].concat(),
        "after the commit" => [STEPS, &[step.as_str()]].concat(),
        other => panic!("{other}"),
    };
    migrate::migrate(&conn, &steps, |from| crate::backup::before_migration(&layout, &boot("b"), from)).unwrap();
    fs::write(data.join(REACHED), "").unwrap();
    loop {
        std::thread::park();
    }
}

/// Whatever the moment of the kill, the next open finds the old format or the new one, and migrates once in all.
#[test]
fn killed_migrations_are_repeated_at_the_next_open() {
    for (point, format, backups) in
        [("before the writes", 1, 2), ("before the commit", 1, 2), ("after the commit", STEPS.len() + 1, 1)]
    {
        let (_dir, data) = of_fixture(V1);
        let filler = "WITH RECURSIVE n (i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
            INSERT INTO volume (name, created, labels) SELECT 'filler-' || i, i, '{}' FROM n";
        Connection::open(data.join("gantry.db")).unwrap().execute_batch(filler).unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::opening::migrate_until_killed"])
            .envs([(MIGRATED_DIR, data.as_os_str()), (KILL_POINT, point.as_ref())])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while !data.join(REACHED).exists() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        assert!(child.try_wait().unwrap().is_none(), "{point}: the child ended");
        child.kill().unwrap();
        child.wait().unwrap();
        let conn = Connection::open(data.join("gantry.db")).unwrap();
        assert_eq!(migrate::version(&conn).unwrap(), format, "{point}");
        let column = conn.prepare("SELECT extra FROM pod").is_ok();
        assert_eq!(column, format > 1, "{point}");
        drop(conn);
        let step = step_with_many_writes();
        let steps = [STEPS, &[step.as_str()]].concat();
        for _ in 0..2 {
            let store = Store::open_as(&data, boot("new"), &steps).unwrap();
            check_fixture(&store);
            let intact: String = store.conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
            assert_eq!(intact, "ok", "{point}");
            let moved: u32 = store
                .conn
                .query_row("SELECT count(*) FROM volume WHERE name = 'filler-' || (created - 1)", [], |row| row.get(0))
                .unwrap();
            assert_eq!(moved, 1901, "{point}: migrated once");
        }
        assert_eq!(entries(&data.join("backups")), backups, "{point}: one for each attempt");
    }
}

#[test]
fn sequence_jumps_ahead_once_per_boot() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let open = |name: &str| Store::open_as(&data, boot(name), STEPS).unwrap();
    image(&open("a"), "one", &[]);
    assert_eq!(open("a").last_seq().unwrap(), 1);
    image(&open("b"), "two", &[]);
    image(&open("b"), "three", &[]);
    image(&open("c"), "four", &[]);
    let events = open("c").events_after(0, 10).unwrap();
    let seen: Vec<_> = events.iter().map(|event| (event.seq, event.boot.as_str())).collect();
    assert_eq!(seen, [(1, "a"), (2_000_000, "b"), (2_000_001, "b"), (4_000_000, "c")]);
    assert_eq!(open("c").check(crate::Depth::Deep), []);
    for last in [0, 1, 999_999, 1_000_000, 1_999_999, 2_000_000] {
        assert!(crate::db::after_boot(last) - last > crate::db::BOOT_JUMP - 1, "{last}");
    }
}

#[test]
fn a_boot_releases_pods_stopped_until_it() {
    let (_dir, data) = of_fixture(V1);
    drop(Store::open_as(&data, boot("a"), STEPS).unwrap());
    let conn = Connection::open(data.join("gantry.db")).unwrap();
    let update = "UPDATE pod SET stop_requested = 2, restart_at = NULL WHERE phase IN ('exited', 'running')";
    assert_eq!(conn.execute(update, []).unwrap(), 2);
    drop(conn);
    let store = Store::open_as(&data, boot("a"), STEPS).unwrap();
    let waiting = |store: &Store| store.pods_to_restart().unwrap().len();
    assert!(waiting(&store) == 0 && store.pods(&PodQuery::default()).unwrap()[5].restart.is_waiting_for_boot());
    drop(store);
    let store = Store::open_as(&data, boot("b"), STEPS).unwrap();
    let pods = store.pods(&PodQuery::default()).unwrap();
    let released = |name| pods.iter().find(|pod| pod.phase.name() == name).map(|pod| pod.restart.clone()).unwrap();
    let (exited, running) = (released(PhaseName::Exited), released(PhaseName::Running));
    assert_eq!((exited.at.is_some(), exited.stop_request, running), (true, None, PodRestart::default()));
    assert_eq!(waiting(&store), 1);
}

/// After a power cut the rows of collected layers are back, their directories are not.
#[test]
fn removals_interrupted_by_power_loss_are_detected() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let open = |name: &str| Store::open_as(&data, boot(name), STEPS).unwrap();
    let store = open("a");
    let gone = image(&store, "gone", &["base", "gone"]);
    store.remove_image(&gone).unwrap();
    let files = ["gantry.db", "gantry.db-wal", "sequence"].map(|name| data.join(name));
    let synced = files.each_ref().map(|path| fs::read(path).unwrap());
    assert_eq!(store.sweep_images().unwrap().layers, 2);
    assert!(!store.needs_recovery().unwrap(), "nothing was ever removed before this boot");
    drop(store);
    files.iter().zip(synced).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    let store = open("b");
    assert!(store.needs_recovery().unwrap() && store.check(crate::Depth::Deep).len() == 2);
    assert_eq!(store.forget_lost_layers().unwrap(), 2);
    store.note_recovery().unwrap();
    assert!(!open("b").needs_recovery().unwrap() && open("c").needs_recovery().unwrap());
    assert_eq!(store.check(crate::Depth::Deep), []);
}

#[test]
fn a_database_with_lost_commits_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let open = |name: &str| Store::open_as(&data, boot(name), STEPS);
    let store = open("a").unwrap();
    image(&store, "one", &[]);
    let files = ["gantry.db", "gantry.db-wal"].map(|name| data.join(name));
    let old = files.each_ref().map(|path| fs::read(path).unwrap());
    let id = image(&store, "two", &[]);
    drop(store);
    let new = files.each_ref().map(|path| fs::read(path).unwrap());
    let put = |all: &[Vec<u8>; 2]| files.iter().zip(all).for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    put(&old);
    // Synced commits are detected as missing in another boot as well.
    for name in ["a", "b"] {
        let refused = open(name).map(drop).unwrap_err();
        assert!(refused.to_string().contains("was rolled back"), "{name}: {refused:?}");
        assert_eq!(refused.kind(), ErrorKind::Damaged);
    }
    put(&new);
    let store = open("a").unwrap();
    // Not synced: missed in the same boot alone.
    store.insert_pod(&new_pod(pod_id(1), &id, &["a"])).unwrap();
    moved(&store, pod_id(1), Generation(0), edge(Edge::Aborted(Timestamp(1))));
    drop(store);
    put(&new);
    assert!(open("a").map(drop).unwrap_err().to_string().contains("was rolled back"));
    assert_eq!(open("b").unwrap().last_seq().unwrap(), crate::db::after_boot(3) - 1);
}

/// A database created in the place of another gives no number twice.
#[test]
fn a_new_database_continues_the_sequence() {
    let home = Home::new();
    image(&home.store, "one", &[]);
    let path = home.path();
    drop(home.store);
    for name in ["gantry.db", "gantry.db-wal", "gantry.db-shm"] {
        fs::remove_file(path.join(name)).unwrap();
    }
    let store = Store::open(&path).unwrap();
    assert_eq!(store.last_seq().unwrap(), crate::db::after_boot(2) - 1);
    assert_eq!(store.check(crate::Depth::Deep), []);
}

#[test]
fn concurrent_creation_of_a_store_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| Store::open(&data).and_then(|s| Ok(s.last_seq()?)))).collect();
        for one in all {
            assert_eq!(one.join().unwrap().unwrap(), 0);
        }
    });
}

/// A reader of an old snapshot keeps the WAL from being checkpointed.
#[test]
fn a_grown_wal_is_cut_to_its_limit() {
    let home = Home::new();
    let wal = || fs::metadata(home.store.layout().wal()).unwrap().len();
    let reader = home.another();
    let snapshot = reader.conn.unchecked_transaction().unwrap();
    let _begun: u32 = snapshot.query_row("SELECT count(*) FROM feature", [], |row| row.get(0)).unwrap();
    let insert = "INSERT INTO feature VALUES (hex(randomblob(?1)), 'compatible')";
    home.store.conn.execute(insert, [db::WAL_BYTES]).unwrap();
    assert!(wal() > 2 * u64::from(db::WAL_BYTES));
    drop(snapshot);
    // The first of these checkpoints, the second begins the WAL anew.
    for _ in 0..2 {
        home.store.conn.execute(insert, [16]).unwrap();
    }
    assert!(wal() <= u64::from(db::WAL_BYTES), "{}", wal());
    // Ordinary work stays below it.
    for _ in 0..4 * db::WAL_PAGES {
        home.store.conn.execute(insert, [16]).unwrap();
    }
    assert!(wal() <= u64::from(db::WAL_BYTES), "{}", wal());
}
