//! A damaged database: gantryd always starts, pods keep running and get their rows back, and every command reports the
//! damage.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use gantry_fixtures::{Image, Layer};
use gantry_tests::api::Api;
use gantry_tests::{Gantry, Running, Signal, pod_id};

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`.
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

/// SQLite's default page size, in bytes.
const PAGE: usize = 4096;

/// Starts a gantryd and waits until it manages the directory of `g`.
#[track_caller]
fn daemon(g: &Gantry, config: &str) -> Running {
    g.spawn_command(&mut g.daemon(&["--config", &g.write("config.toml", config)]))
}

/// Starts a gantryd and kills it when the condition holds; returns false if it finished first.
#[track_caller]
fn kill_at(g: &Gantry, fact: &dyn Fn() -> bool) -> bool {
    let keeper = daemon(g, HOURLY);
    gantry_tests::wait_for("a step of the restore", || {
        (fact() || keeper.stderr().contains("reconciling the pods of")).then_some(())
    });
    keeper.signal(Signal::KILL);
    !keeper.wait().exits(137).stderr.contains("reconciling the pods of")
}

/// Whether a directory of the data directory has entries.
fn is_filled(g: &Gantry, dir: &str) -> bool {
    fs::read_dir(g.dir().join(dir)).is_ok_and(|mut entries| entries.next().is_some())
}

fn db(g: &Gantry, suffix: &str) -> PathBuf {
    g.dir().join(format!("gantry.db{suffix}"))
}

/// Copies the WAL into the database and removes it, so that SQLite reads the bytes that a test overwrites.
fn checkpoint(g: &Gantry) -> io::Result<fs::File> {
    let wal = fs::read(db(g, "-wal")).unwrap_or_default();
    let file = fs::File::options().write(true).open(db(g, ""))?;
    // The WAL: a header of 32 bytes, then frames with a header of 24 bytes and a page. See SQLite's file format,
    // section 4.
    let mut waiting: Vec<(u64, &[u8])> = Vec::new();
    for frame in wal.get(32..).unwrap_or_default().chunks_exact(24 + PAGE) {
        if frame[8..16] != wal[16..24] {
            break;
        }
        let number =
            |at: usize| u64::from(u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]));
        waiting.push((number(0), &frame[24..]));
        if number(4) > 0 {
            for (page, bytes) in waiting.drain(..) {
                file.write_all_at(bytes, (page - 1) * PAGE as u64)?;
            }
            file.set_len(number(4) * PAGE as u64)?;
        }
    }
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(db(g, suffix))?;
    }
    Ok(file)
}

fn overwrite(g: &Gantry, at: usize, bytes: usize) -> io::Result<()> {
    let garbage: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8).collect();
    let file = checkpoint(g)?;
    file.write_all_at(&garbage, at as u64)
}

fn truncate(g: &Gantry, keep: u64) -> io::Result<()> {
    let file = checkpoint(g)?;
    let pages = file.metadata()?.len() / PAGE as u64;
    file.set_len(pages * keep / 100 * PAGE as u64)
}

/// Corrupts the free list: every row remains readable.
fn damage_one_page(g: &Gantry) -> io::Result<()> {
    checkpoint(g)?.write_all_at(&[0, 0, 0, 9], 36)
}

/// Pods from before and after the backup, in every state in which a pod can remain.
struct World {
    g: Gantry,
    /// Running since before and since after the backup.
    running: [String; 3],
    prepared: String,
    /// Exited before and after the backup; the latter has written a line.
    exited: [String; 2],
    /// Removed after the backup.
    removed: String,
    /// Imported after the backup, and used by the last of the running pods.
    image: String,
}

impl World {
    fn new(config: &str, wait: &str) -> Self {
        let g = Gantry::new();
        let old = g.detached(&["--name=it"], &["obey", "SIGTERM", "7"]);
        let exited = g.detached(&[], &["exit", "3"]);
        let removed = g.detached(&[], &["true"]);
        g.wait_state(&exited, "exited");
        g.wait_state(&removed, "exited");
        let mut keeper = daemon(&g, config);
        keeper.wait_for_stderr(wait);
        keeper.terminate();
        let new = g.detached(&["--hostname=new"], &["obey", "SIGTERM", "7"]);
        let layers = [
            Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755),
            Layer::new().file("since", "the backup", 0o644),
        ];
        let image = layers.into_iter().fold(Image::builder(), |image, layer| image.layer(layer));
        let image = image.entrypoint(&["/bin/app"]).build().unwrap_or_else(|error| panic!("no image: {error}"));
        let image = g.import("later", &image);
        let run = ["run", "--net=none", "-d", &image, "--name=later", "--"];
        let later = pod_id(&g.run(&[&run[..], &["obey", "SIGTERM", "7"]].concat()).ok());
        let fixture = g.fixture();
        let prepared = pod_id(&g.run(&["prepare", "--net=none", &fixture, "--", "exit", "9"]).ok());
        let last = g.detached(&[], &["print", "written after the backup"]);
        g.wait_state(&last, "exited");
        g.run(&["rm", &removed]).succeeded();
        for pod in [&old, &new, &later] {
            g.wait_log(pod, "obeying");
        }
        Self { g, running: [old, new, later], prepared, exited: [exited, last], removed, image }
    }

    /// Checks that all pods have their earlier states and are usable.
    #[track_caller]
    fn assert_restored(&self, since_backup: bool) {
        let g = &self.g;
        let phase = |pod: &str| g.status(pod)["phase"].as_str().unwrap_or_default().to_owned();
        for pod in &self.running {
            assert_eq!(phase(pod), "running");
            assert!(g.run(&["exec", pod, "--", "/bin/app", "true"]).code == 0, "{pod}");
        }
        assert_eq!(phase(&self.prepared), "prepared");
        // Exited, or marked by the first collection.
        assert_eq!(g.status(&self.exited[0])["exit_code"], 3);
        assert_eq!(g.run(&["logs", &self.exited[1]]).ok().stdout, "written after the backup\n");
        assert_eq!(g.list().len(), 6, "{:?} is gone", self.removed);
        assert_eq!(g.status(&self.running[1])["hostname"], "new");
        if since_backup {
            let images = g.run(&["image", "list", "-o", "json"]).ok().stdout;
            assert!(images.contains(&self.image), "{images}");
            assert_eq!(g.status(&self.running[2])["apps"][0]["image"], self.image.as_str());
        }
        // The usual commands work on them.
        g.run(&["stop", &self.running[1]]).succeeded();
        assert_eq!(g.wait_state(&self.running[1], "exited")["exit_code"], 7);
        let _ = g.run(&["run-prepared", &self.prepared]).exits(9);
        g.run(&["image", "gc", "--grace-period=0s"]).succeeded();
        assert_eq!(g.app(&[], &["print", "new"]).ok().stdout, "new\n");
    }

    /// The doctor reports the restore until its record is deleted.
    #[track_caller]
    fn assert_restore_is_reported(&self, want: &str) {
        let said = self.g.run(&["doctor"]).ok().stdout;
        assert!(said.contains("it was restored at") && said.contains(want), "{said}");
        if let Err(error) = fs::remove_file(self.g.dir().join("restored")) {
            panic!("cannot delete the record: {error}");
        }
        let said = self.g.run(&["doctor", "--deep"]).ok().stdout;
        assert!(!said.contains("restored at"), "{said}");
    }
}

const HOURLY: &str = "backup-interval = '1h'\ngc-interval = '1h'\n";
const NEVER: &str = "backup-interval = '0'\ngc-interval = '1h'\n";

/// Damages the database and starts gantryd, which must restore everything.
fn assert_recovers_from(damage: impl Fn(&Gantry) -> io::Result<()>) {
    let world = World::new(HOURLY, "backed up the database");
    let g = &world.g;
    let numbers = || {
        let events = gantry_tests::json_lines(&g.run(&["events", "--since=1h", "-o", "json"]).ok().stdout);
        events.iter().filter_map(|event| event["seq"].as_u64()).collect::<Vec<_>>()
    };
    let given = numbers();
    let pods = || fs::read_dir(g.dir().join("pods")).map_or(0, Iterator::count);
    let had = pods();
    if let Err(error) = damage(g) {
        panic!("cannot damage it: {error}");
    }
    let said = g.run(&["list"]).exits(125).stderr;
    assert!(said.contains("gantryd"), "{said}");
    let _ = g.run(&["run", "--net=none", &g.fixture(), "--", "true"]).exits(125);
    let doctor = g.run(&["doctor"]).exits(1).stdout;
    assert!(doctor.contains("a good backup") && doctor.contains("start gantryd"), "{doctor}");
    assert!(pods() == had && !g.dir().join("lost-pods").exists(), "a command that looks moves no pod away");
    let mut keeper = daemon(g, HOURLY);
    let said = keeper.wait_for_stderr("info: reconciling the pods of");
    assert!(said.contains("error: the ") && said.contains("restored at"), "{said}");
    for pod in &world.running {
        keeper.wait_for_stderr(&format!("pod {pod} runs"));
    }
    world.assert_restored(true);
    let fresh = numbers();
    assert!(!fresh.is_empty() && fresh.iter().all(|number| !given.contains(number)), "{given:?} {fresh:?}");
    world.assert_restore_is_reported("the damaged one is in");
    keeper.terminate();
    // Nothing remains to be restored.
    let mut keeper = daemon(g, HOURLY);
    let said = keeper.wait_for_stderr("info: reconciling the pods of");
    assert!(!said.contains("error"), "{said}");
    keeper.terminate();
}

#[test]
fn an_overwritten_header_is_restored() {
    assert_recovers_from(|g| overwrite(g, 0, 100));
}

#[test]
fn overwritten_pages_are_restored() {
    assert_recovers_from(|g| overwrite(g, 3 * PAGE, 30 * PAGE));
}

#[test]
fn an_empty_database_file_is_restored() {
    assert_recovers_from(|g| truncate(g, 0));
}

#[test]
fn a_truncated_database_is_restored() {
    assert_recovers_from(|g| truncate(g, 50));
}

#[test]
fn a_missing_database_is_restored() {
    assert_recovers_from(|g| fs::remove_file(db(g, "")));
}

#[test]
fn an_overwritten_wal_is_restored() {
    assert_recovers_from(|g| fs::write(db(g, "-wal"), vec![7; 40_000]));
}

/// SQLite reads each of these as a database without a WAL, and reports the database as intact.
#[test]
fn a_lost_wal_is_detected_by_commands() {
    assert_recovers_from(|g| fs::write(db(g, "-wal"), ""));
    assert_recovers_from(|g| fs::remove_file(db(g, "-wal")));
    let header = |g: &Gantry| {
        let wal = fs::File::options().write(true).open(db(g, "-wal"))?;
        wal.write_all_at(&[0x5a; 32], 0)
    };
    assert_recovers_from(header);
}

/// As after copying `gantry.db` alone.
#[test]
fn a_database_copied_without_wal_is_restored() {
    assert_recovers_from(|g| ["-wal", "-shm"].iter().try_for_each(|suffix| fs::remove_file(db(g, suffix))));
}

/// As after a write that the disk lost.
fn halve_the_wal(g: &Gantry) -> io::Result<()> {
    let wal = fs::File::options().write(true).open(db(g, "-wal"))?;
    wal.set_len(wal.metadata()?.len() / 2)
}

#[test]
fn a_truncated_wal_is_restored() {
    assert_recovers_from(halve_the_wal);
}

#[test]
fn recovery_of_a_truncated_wal_survives_kills() {
    let world = World::new(HOURLY, "backed up the database");
    let g = &world.g;
    halve_the_wal(g).unwrap();
    let facts: [&dyn Fn() -> bool; 4] =
        [&|| is_filled(g, "tmp"), &|| g.dir().join("restored").exists(), &|| is_filled(g, "damaged"), &|| {
            !db(g, "").exists()
        }];
    let in_time = facts.into_iter().filter(|fact| kill_at(g, fact)).count();
    assert!(in_time > 0, "every restore was over before it was killed");
    let mut keeper = daemon(g, HOURLY);
    keeper.wait_for_stderr("info: reconciling the pods of");
    world.assert_restored(true);
    // A kill may have left it in the directory of the restore before.
    world.assert_restore_is_reported("restored at");
    keeper.terminate();
}

#[test]
fn readable_databases_without_backup_are_served_read_only() {
    let world = World::new(NEVER, "info: reconciling the pods of");
    let g = &world.g;
    assert_eq!(fs::read_dir(g.dir().join("backups")).unwrap().count(), 0, "none were to be made");
    damage_one_page(g).unwrap();
    let mut keeper = daemon(g, NEVER);
    let said = keeper.wait_for_stderr("only serving");
    assert!(said.contains("read-only") && said.contains("error: the database is damaged"), "{said}");
    assert_eq!(g.list().len(), 6);
    assert_eq!(g.status(&world.running[0])["phase"], "running");
    assert!(g.run(&["logs", &world.exited[1]]).ok().stdout.contains("after the backup"));
    let fixture = g.fixture();
    for refused in
        [&["stop", &world.running[0]][..], &["run", "--net=none", &fixture], &["gc"], &["rm", &world.exited[0]]]
    {
        let _ = g.run(refused).exits(125).stderr_contains(&["read-only", "gantry doctor"]);
    }
    let doctor = g.run(&["doctor"]).exits(1).stdout;
    assert!(doctor.contains("nothing can be changed") && doctor.contains("move gantry.db away"), "{doctor}");
    let api = Api::connect(&format!("unix:{}", g.api_socket().display()));
    assert_eq!(api.pods().len(), 6);
    assert_eq!(api.health("v1alpha.PublicAPI").ok(), Some(SERVING));
    assert_eq!(api.health("gantryd").ok(), Some(NOT_SERVING));
    drop(api);
    keeper.terminate();
    // The same once more, then the doctor's remedy.
    let mut keeper = daemon(g, NEVER);
    keeper.wait_for_stderr("only serving");
    keeper.terminate();
    for suffix in ["", "-wal", "-shm"] {
        let _was_there = fs::rename(db(g, suffix), g.scratch().join(format!("old{suffix}")));
    }
    let mut keeper = daemon(g, NEVER);
    let said = keeper.wait_for_stderr("info: reconciling the pods of");
    assert!(said.contains("from the directories of the pods alone"), "{said}");
    world.assert_restored(true);
    world.assert_restore_is_reported("for there was no good backup");
    keeper.terminate();
}

#[test]
fn rows_without_backup_are_rebuilt_from_directories() {
    let world = World::new(NEVER, "info: reconciling the pods of");
    let g = &world.g;
    overwrite(g, 0, 100).unwrap();
    let doctor = g.run(&["doctor"]).exits(1).stdout;
    assert!(doctor.contains("there is no good backup"), "{doctor}");
    let mut keeper = daemon(g, NEVER);
    keeper.wait_for_stderr("info: reconciling the pods of");
    world.assert_restored(true);
    world.assert_restore_is_reported("for there was no good backup");
    keeper.terminate();
    assert_eq!(fs::read_dir(g.dir().join("damaged")).unwrap().count(), 1);
}

#[test]
fn unrecoverable_pod_directories_are_set_aside() {
    let g = Gantry::new();
    let exited = g.detached(&[], &["print", "last words"]);
    g.wait_state(&exited, "exited");
    let fixture = g.fixture();
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &fixture, "--", "true"]).ok());
    let running = g.detached(&["--namespace=batch"], &["obey", "SIGTERM", "0"]);
    for (pod, file) in [(&exited, "plan.json"), (&prepared, "pod.json"), (&running, "pod.json")] {
        fs::write(g.dir().join("pods").join(pod).join(file), "{").unwrap();
    }
    overwrite(&g, 0, 100).unwrap();
    let mut keeper = daemon(&g, NEVER);
    let said = keeper.wait_for_stderr("info: reconciling the pods of");
    for lost in [&exited, &prepared] {
        assert!(said.contains(&format!("cannot be imported: {lost}")), "{said}");
        assert!(g.dir().join("lost-pods").join(lost).join("plan.json").exists());
    }
    let log = g.dir().join("lost-pods").join(&exited).join("logs");
    assert!(log.is_dir(), "its log is kept");
    // The plan of the running pod suffices.
    let status = g.status(&running);
    assert_eq!((&status["phase"], &status["namespace"]), (&"running".into(), &"batch".into()));
    assert_eq!(g.list().len(), 1);
    let doctor = g.run(&["doctor"]).ok().stdout;
    assert!(doctor.contains(&exited) && doctor.contains(&prepared), "{doctor}");
    keeper.terminate();
}

#[test]
fn pods_without_image_rows_keep_their_layers() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["obey", "SIGTERM", "7"]);
    g.wait_log(&pod, "obeying");
    let (blobs, away) = (g.dir().join("blobs/sha256"), g.scratch().join("blobs"));
    fs::rename(&blobs, &away).unwrap();
    overwrite(&g, 0, 100).unwrap();
    let mut keeper = daemon(&g, NEVER);
    let said = keeper.wait_for_stderr("info: reconciling the pods of");
    assert!(said.contains(&format!("pod {pod} is locked by another process and has no row")), "{said}");
    keeper.terminate();
    let trees = || fs::read_dir(g.dir().join("trees")).unwrap().count();
    let before = trees();
    g.run(&["image", "gc", "--grace-period=0s"]).succeeded();
    g.run(&["gc"]).succeeded();
    assert!(before > 0 && trees() == before, "its root file systems use them");
    // The pod's image is available again: nothing is damaged now, and the pod is still found.
    fs::remove_dir(&blobs).unwrap();
    fs::rename(&away, &blobs).unwrap();
    let mut keeper = daemon(&g, NEVER);
    let said = keeper.wait_for_stderr(&format!("pod {pod} runs"));
    assert!(said.contains("imported again from its directory: pod"), "{said}");
    assert!(g.run(&["exec", &pod, "--", "/bin/app", "true"]).code == 0);
    g.run(&["stop", &pod]).succeeded();
    assert_eq!(g.wait_state(&pod, "exited")["exit_code"], 7);
    keeper.terminate();
}

#[test]
fn a_killed_restore_is_completed() {
    let world = World::new(HOURLY, "backed up the database");
    let g = &world.g;
    // A restore was killed after it moved the damaged database away, but not its WAL; the new database is still in
    // `tmp`.
    let aside = g.dir().join("damaged/2026-01-01T00:00:00.000000000Z");
    fs::create_dir_all(&aside).unwrap();
    fs::rename(db(g, ""), aside.join("gantry.db")).unwrap();
    fs::create_dir(g.dir().join("tmp/restore-0")).unwrap();
    fs::write(g.dir().join("tmp/restore-0/gantry.db"), "half of it").unwrap();
    let _ = g.run(&["list"]).exits(125).stderr_contains(&["missing", "gantryd"]);
    assert!(!db(g, "").exists(), "no command creates a new one");
    let mut keeper = daemon(g, HOURLY);
    keeper.wait_for_stderr("info: reconciling the pods of");
    world.assert_restored(true);
    world.assert_restore_is_reported("missing");
    assert_eq!(fs::read_dir(g.dir().join("damaged")).unwrap().count(), 2);
    keeper.terminate();
}

#[test]
fn a_restore_survives_kills_at_any_point() {
    let world = World::new(HOURLY, "backed up the database");
    let g = &world.g;
    overwrite(g, 0, 100).unwrap();
    let facts: [&dyn Fn() -> bool; 5] = [
        &|| is_filled(g, "tmp"),
        &|| g.dir().join("restored.new").exists(),
        &|| g.dir().join("restored").exists(),
        &|| is_filled(g, "damaged"),
        &|| !db(g, "").exists(),
    ];
    for fact in facts {
        // A restore too fast to be killed has finished; then the next one starts from the beginning.
        kill_at(g, fact);
        fs::write(db(g, ""), [7; 50_000]).unwrap();
        for record in ["restored", "restored.new"] {
            let _was_there = fs::remove_file(g.dir().join(record));
        }
    }
    let mut keeper = daemon(g, HOURLY);
    keeper.wait_for_stderr("info: reconciling the pods of");
    world.assert_restored(true);
    world.assert_restore_is_reported("the damaged one is in");
    keeper.terminate();
}

#[test]
fn run_returns_the_exit_code_despite_database_loss() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut run = g.spawn(&["run", "--net=none", &image, "--", "obey", "SIGTERM", "7"]);
    run.wait_for_stdout("obeying");
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    fs::remove_file(db(&g, "")).unwrap();
    let mut keeper = daemon(&g, NEVER);
    keeper.wait_for_stderr(&format!("pod {pod} runs"));
    g.run(&["kill", "-s", "SIGTERM", &pod]).succeeded();
    let _ = run.wait().exits(7);
    keeper.wait_for_stderr(&format!("pod {pod} exited with code 7"));
    keeper.terminate();
}

#[test]
fn a_database_removed_under_gantryd_is_restored() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["obey", "SIGTERM", "7"]);
    let mut keeper = daemon(&g, HOURLY);
    keeper.wait_for_stderr("backed up the database");
    fs::remove_file(db(&g, "")).unwrap();
    let _ = keeper.wait().exits(1).stderr_contains(&["was removed or replaced", "start again"]);
    let mut keeper = daemon(&g, HOURLY);
    keeper.wait_for_stderr(&format!("pod {pod} runs"));
    keeper.terminate();
}

#[test]
fn backups_are_made_only_after_changes() {
    let g = Gantry::new();
    let mut keeper = daemon(&g, "backup-interval = '100ms'\n");
    keeper.wait_for_stderr("backed up the database");
    let count = |keeper: &Running| keeper.stderr().matches("backed up the database").count();
    for _ in 0..5 {
        let before = count(&keeper);
        g.app(&["--rm"], &["true"]).succeeded();
        gantry_tests::wait_for("another backup", || (count(&keeper) > before).then_some(()));
    }
    keeper.terminate();
    let names = fs::read_dir(g.dir().join("backups")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    assert!(names.len() == 3 && names.iter().all(|name| name.starts_with("timed-v")), "{names:?}");
}

/// Runs gantry on a copy of the data directory of `g`.
#[track_caller]
fn run_in_copy(g: &Gantry, copy: &Path, args: &[&str]) -> gantry_tests::Out {
    let model = g.command(args);
    let mut command = Command::new(model.get_program());
    command.arg("--dir").arg(copy).args(args);
    for (name, value) in model.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    g.spawn_command(&mut command).wait()
}

#[test]
fn pods_survive_commands_on_a_copy() {
    let g = Gantry::new();
    let start = || g.detached(&[], &["sleep", "forever"]);
    let stopped = start();
    g.run(&["stop", "--force", &stopped]).succeeded();
    let running = start();
    let running = (g.supervisor(&running), running);
    let copy = g.scratch().join("copy");
    let copied = Command::new("cp").arg("-a").arg(g.dir()).arg(&copy).status();
    assert!(copied.is_ok_and(|status| status.success()));
    g.run(&["start", &stopped]).succeeded();
    let restarted = (g.supervisor(&stopped), stopped);
    // In the copy, one pod has exited, and the other is shown as killed: its supervisor has the lock of the original.
    let refused = ["is in a copy of that data directory"];
    for pod in [&running.1, &restarted.1] {
        assert_eq!(run_in_copy(&g, &copy, &["status", "-o", "json", pod]).ok().json()["phase"], "exited");
        run_in_copy(&g, &copy, &["stop", "--force", pod]).succeeded();
        for args in [&["start", pod][..], &["rm", pod], &["rm", "--force", pod]] {
            drop(run_in_copy(&g, &copy, args).exits(125).stderr_contains(&refused));
        }
    }
    drop(run_in_copy(&g, &copy, &["gc", "--grace-period=0s"]).exits(125).stderr_contains(&refused));
    for (supervisor, pod) in [&running, &restarted] {
        assert_eq!((g.supervisor(pod), &g.status(pod)["phase"]), (*supervisor, &"running".into()));
        g.run(&["exec", pod, "--", "true"]).succeeded();
    }
    // Once the pod has ended, the copy is like any other data directory.
    for (_, pod) in [&running, &restarted] {
        g.run(&["rm", "--force", pod]).succeeded();
        run_in_copy(&g, &copy, &["rm", pod]).succeeded();
    }
}
