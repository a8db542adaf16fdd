//! Pods that live long: their journals are compacted, and databases are replaced by backups while they run.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use gantry_tests::{Gantry, Signal, app, pod_id, wait_for};
use rustix::process::{Pid, kill_process};

/// Beyond the size at which a supervisor compacts its journal, in bytes.
const LONG: usize = 600 << 10;

fn sandbox(g: &Gantry) -> String {
    pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok())
}

fn add(g: &Gantry, pod: &str, name: &str, flags: &[&str]) -> String {
    let image = g.fixture();
    let name_flag = format!("--name={name}");
    let line = [&["app", "add", pod, &image, &name_flag], flags, &["--", "obey", "SIGTERM"]].concat();
    g.run(&line).succeeded();
    format!("{pod}/{name}")
}

/// Makes a journal long with facts that change nothing.
fn lengthen(journal: &Path) {
    let fact = r#"{"at":1,"fact":{"resumed":{"app":"it"}}}"#;
    let text = format!("{fact}\n").repeat(LONG / fact.len());
    OpenOptions::new().append(true).open(journal).unwrap().write_all(text.as_bytes()).unwrap();
}

fn length(journal: &Path) -> usize {
    fs::metadata(journal).map_or(0, |file| file.len() as usize)
}

#[test]
fn a_long_journal_is_compacted() {
    let g = Gantry::new();
    let pod = sandbox(&g);
    let it = add(&g, &pod, "it", &[]);
    g.run(&["app", "start", &it]).succeeded();
    let journal = g.dir().join("pods").join(&pod).join("journal");
    for round in 1..=3 {
        lengthen(&journal);
        // The fact of the restart makes the supervisor look at the length.
        g.run(&["restart", &it]).succeeded();
        wait_for("the journal to be short", || (length(&journal) < LONG / 4).then_some(()));
        assert_eq!(app(&g.status(&pod), "it")["attempt"], round);
        g.check_invariants();
    }
    g.run(&["app", "stop", &it]).succeeded();
    assert_eq!(app(&g.status(&pod), "it")["exit_code"], 0);
    // A killed supervisor leaves the temporary file of a compaction behind; reconciling removes it.
    let temporary = journal.with_file_name("journal.new");
    fs::write(&temporary, "half of it").unwrap();
    let supervisor = i32::try_from(g.supervisor(&pod)).ok().and_then(Pid::from_raw).unwrap();
    kill_process(supervisor, Signal::KILL).unwrap();
    g.wait_state(&pod, "exited");
    assert!(!temporary.exists());
}

/// The foreground has the first journal open; another process removes the pod as soon as it has ended.
#[test]
fn compaction_keeps_the_exit_code() {
    let g = Gantry::new();
    let image = g.fixture();
    let daemon = g.start_daemon(&[]);
    let mut run = g.spawn(&["run", "--rm", "--net=none", &image, "--name=it", "--", "obey", "SIGTERM", "7"]);
    run.wait_for_stdout("obeying");
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    let journal = g.dir().join("pods").join(&pod).join("journal");
    lengthen(&journal);
    g.run(&["pause", &pod]).succeeded();
    g.run(&["unpause", &pod]).succeeded();
    wait_for("the journal to be short", || (length(&journal) < LONG / 4).then_some(()));
    // While the foreground is stopped, the daemon removes the pod.
    run.signal(Signal::STOP);
    g.run(&["kill", &pod, "--signal=SIGTERM"]).succeeded();
    wait_for("the pod to be removed", || g.list().is_empty().then_some(()));
    run.signal(Signal::CONT);
    let _ = run.wait().exits(7);
    daemon.terminate();
}

#[test]
fn the_volumes_of_a_removed_app_are_free() {
    let g = Gantry::new();
    let pod = sandbox(&g);
    let one = add(&g, &pod, "one", &["--volume=data:/data"]);
    let two = add(&g, &pod, "two", &["--volume=data:/data"]);
    g.run(&["app", "rm", &one]).succeeded();
    let _ = g.run(&["volume", "rm", "data"]).exits(125).stderr_contains(&["data"]);
    g.run(&["app", "rm", &two]).succeeded();
    g.run(&["volume", "rm", "data"]).succeeded();
    // An app that could not be added leaves none in use either.
    let image = g.fixture();
    let _ = g.run(&["app", "add", &pod, &image, "--exec=/none", "--volume=data:/data", "--", "true"]).exits(127);
    g.run(&["volume", "rm", "data"]).succeeded();
}

#[test]
fn an_added_app_survives_a_restored_database() {
    let g = Gantry::new();
    let pod = sandbox(&g);
    let files = ["gantry.db", "gantry.db-wal"];
    let copy = g.scratch().join("copy");
    fs::create_dir_all(&copy).unwrap();
    for file in files {
        let _without_a_wal = fs::copy(g.dir().join(file), copy.join(file));
    }
    let it = add(&g, &pod, "it", &["--volume=data:/data"]);
    g.run(&["app", "start", &it]).succeeded();
    let _absent = fs::remove_file(g.dir().join("gantry.db-shm"));
    for file in files {
        let _absent = fs::remove_file(g.dir().join(file));
        let _without_a_wal = fs::copy(copy.join(file), g.dir().join(file));
    }
    g.start_daemon(&[]).terminate();
    let _reports_the_restoration = fs::remove_file(g.dir().join("restored"));
    let status = app(&g.status(&pod), "it");
    assert_eq!((status["state"].as_str(), status["attempt"].as_u64()), (Some("running"), Some(0)), "{status}");
    let _ = g.run(&["volume", "rm", "data"]).exits(125);
    add(&g, &pod, "other", &[]);
    let names = g.run(&["app", "list", "-q", &pod]).ok().stdout;
    assert_eq!(names, "it\nother\n");
    g.run(&["app", "rm", "--force", &it]).succeeded();
    g.check_invariants();
}

/// An app that was created with its pod is removed, and another one is added under its name.
#[test]
fn a_name_is_used_again_after_a_removal() {
    let g = Gantry::new();
    let image = g.fixture();
    let sleep = ["--", "sleep", "forever"];
    let first = ["run", "--detach", "--net=none", &image, "--name=a", "--memory=100m", "--cpus=2"];
    let pod = pod_id(&g.run(&[&first[..], &sleep, &["---", &image, "--name=b"], &sleep].concat()).ok());
    let a = format!("{pod}/a");
    g.run(&["app", "rm", "--force", &a]).succeeded();
    add(&g, &pod, "a", &["--memory=50m"]);
    g.run(&["app", "start", &a]).succeeded();
    g.run(&["update", "--memory=60m", &a]).succeeded();
    // Less than the removed app had.
    g.run(&["update", "--pod", "--cpus=1", &pod]).succeeded();
    let memory = || g.json(&["inspect", &pod])["limits"]["apps"]["a"]["memory"].clone();
    assert_eq!(memory(), 60 << 20);
    // Rebuilt from the pod directory, rows do not say which apps were added.
    for file in ["gantry.db", "gantry.db-wal", "gantry.db-shm"] {
        let _absent = fs::remove_file(g.dir().join(file));
    }
    g.start_daemon(&[]).terminate();
    let _reports_the_restoration = fs::remove_file(g.dir().join("restored"));
    assert_eq!(g.run(&["app", "list", "-q", &pod]).ok().stdout, "b\na\n");
    g.run(&["stop", "--time=0", &pod]).succeeded();
    g.run(&["start", &pod]).succeeded();
    let status = g.status(&pod);
    assert_eq!((&app(&status, "a")["attempt"], &app(&status, "b")["attempt"]), (&1.into(), &1.into()), "{status}");
    assert_eq!(memory(), 60 << 20);
    g.run(&["stop", "--time=0", &pod]).succeeded();
    g.check_invariants();
}

/// What a command leaves that was killed while it replaced the record of added apps.
#[test]
fn temporary_records_are_removed() {
    let g = Gantry::new();
    let pod = sandbox(&g);
    let temporary = g.dir().join("pods").join(&pod).join("added.json.new");
    fs::write(&temporary, "half of it").unwrap();
    let it = add(&g, &pod, "it", &[]);
    assert!(!temporary.exists());
    fs::write(&temporary, "half of it").unwrap();
    g.run(&["app", "rm", &it]).succeeded();
    assert!(!temporary.exists());
    fs::write(&temporary, "half of it").unwrap();
    g.run(&["stop", "--force", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    assert!(!temporary.exists());
}

#[test]
fn logs_follow_apps_that_are_added() {
    let g = Gantry::new();
    let pod = sandbox(&g);
    let image = g.fixture();
    let mut logs = g.spawn(&["logs", "--follow", &pod]);
    for (round, name) in ["one", "two", "one"].into_iter().enumerate() {
        let (app, text) = (format!("{pod}/{name}"), format!("line-{round}"));
        let name_flag = format!("--name={name}");
        g.run(&["app", "add", &pod, &image, &name_flag, "--", "seq", "print", &text, "--", "sleep", "forever"])
            .succeeded();
        g.run(&["app", "start", &app]).succeeded();
        logs.wait_for_stdout(&text);
        // Another app of the name has another log.
        if name == "one" {
            g.run(&["app", "rm", "--force", &app]).succeeded();
        }
    }
    g.run(&["stop", "--force", &pod]).succeeded();
    let out = logs.wait().ok();
    assert_eq!(out.stdout.matches("line-").count(), 3, "{out}");
}
