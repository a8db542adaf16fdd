//! `kill -9` at awkward moments: later commands report the true state, and nothing is leaked.

use std::fs;

use gantry_tests::{Gantry, Out, Signal, pod_id, wait_for};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::process::{Flock, FlockType, Pid, fcntl_getlk, kill_process};

/// Kills a supervisor by the process id that `status` has just printed.
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.unwrap_or_else(|| panic!("no such process id")), Signal::KILL)
        .unwrap_or_else(|error| panic!("cannot kill: {error}"));
}

#[test]
fn a_killed_supervisor_ends_its_pod() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=it"], &["seq", "fork-orphans", "3", "--", "ignore", "SIGTERM"]);
    g.wait_log(&pod, "ignoring");
    kill(g.supervisor(&pod));
    let status = g.wait_state(&pod, "exited");
    assert_eq!(status["exit_code"], 137, "{status}");
    assert!(status["reason"].as_str().is_some_and(|reason| reason.contains("supervisor")), "{status}");
    g.check_invariants();
    assert!(g.run(&["logs", &pod]).ok().stdout.contains("ignoring"), "the log is kept");
}

/// Lists know by this lock that a pod runs.
#[test]
fn the_supervisor_alone_locks_the_journal() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=it"], &["sleep", "forever"]);
    let journal = fs::File::open(g.dir().join("pods").join(&pod).join("journal")).unwrap();
    let holder = || fcntl_getlk(&journal, &Flock::from(FlockType::WriteLock)).unwrap().and_then(|lock| lock.pid);
    g.run(&["exec", &pod, "--", "/bin/app", "true"]).succeeded();
    let supervisor = g.supervisor(&pod);
    assert_eq!(holder().map(|pid| u32::try_from(pid.as_raw_pid()).unwrap()), Some(supervisor));
    kill(supervisor);
    wait_for("the supervisor to release it", || holder().is_none().then_some(()));
    assert_eq!(g.list()[0]["phase"], "exited", "no process that outlives it has the lock");
}

#[test]
fn apps_without_parent_death_signal_are_killed_too() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["seq", "pdeathsig-clear", "--", "print", "cleared", "--", "sleep", "forever"]);
    g.wait_log(&pod, "cleared");
    kill(g.supervisor(&pod));
    g.wait_state(&pod, "exited");
    g.check_invariants();
}

#[test]
fn an_app_killed_from_outside_ends_its_pod() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=it"], &["sleep", "forever"]);
    kill(g.app_pid(&pod, "it"));
    let status = g.wait_state(&pod, "exited");
    assert_eq!(status["exit_code"], 137, "{status}");
}

#[test]
fn a_lost_journal_affects_only_its_pod() {
    let g = Gantry::new();
    let lost = g.detached(&["--name=lost"], &["sleep", "forever"]);
    let other = g.detached(&["--name=other"], &["sleep", "forever"]);
    let ended = g.detached(&["--name=ended"], &["sleep", "forever"]);
    kill(g.supervisor(&ended));
    for pod in [&lost, &ended] {
        let journal = g.dir().join("pods").join(pod).join("journal");
        fs::remove_file(&journal).unwrap();
        fs::create_dir(&journal).unwrap();
    }
    let phase = |pod: &str| g.status(pod)["phase"].as_str().unwrap_or_default().to_owned();
    assert_eq!((phase(&lost).as_str(), phase("other").as_str(), g.list().len()), ("running", "running", 3));
    assert_eq!(g.wait_state(&ended, "exited")["exit_code"], 137);
    let doctor = g.run(&["doctor"]);
    assert!(
        doctor.code == 1 && doctor.stdout.contains(&format!("the journal of pod {lost} cannot be read")),
        "{doctor}"
    );
    g.run(&["stop", "--all"]).succeeded();
    assert_eq!((phase(&lost).as_str(), phase(&other).as_str()), ("exited", "exited"));
    g.run(&["start", &lost]).succeeded();
    g.run(&["rm", "--force", "--all"]).succeeded();
    g.check_invariants();
}

#[test]
fn a_pod_outlives_its_killed_command() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut run = g.spawn(&["run", "--net=none", &image, "--", "obey", "SIGTERM", "7"]);
    run.wait_for_stdout("obeying");
    run.signal(Signal::KILL);
    let _ = run.wait().exits(137);
    let pods = g.list();
    assert_eq!((pods.len(), pods[0]["phase"].as_str()), (1, Some("running")));
    let pod = pods[0]["id"].as_str().unwrap();
    g.check_invariants();
    g.run(&["stop", pod]).succeeded();
    assert_eq!(g.wait_state(pod, "exited")["exit_code"], 7);
}

#[test]
fn run_survives_kills_at_any_point() {
    let g = Gantry::new();
    let image = g.fixture();
    let whole = g.app(&[], &["true"]).duration;
    // Twenty moments over the duration of a whole run.
    for step in 0..20u32 {
        let run = g.spawn(&["run", "--net=none", &image, "--", "obey", "SIGTERM"]);
        run.kill_after(whole * step / 20);
        // Every remaining pod must be in a valid state and removable.
        g.wait_reconciled();
        g.check_invariants();
        g.remove_all();
        assert_eq!(g.list().len(), 0);
    }
}

#[test]
fn fetch_survives_kills_at_any_point() {
    let g = Gantry::new();
    let layer = |i: u8| gantry_fixtures::Layer::new().file(format!("file{i}"), vec![i; 3_000_000], 0o644);
    let image = gantry_fixtures::Image::builder().layer(layer(1)).layer(layer(2)).layer(layer(3)).entrypoint(&["/x"]);
    let image = image.build().unwrap();
    let reference = g.layout("image", &image);
    let whole = {
        let other = Gantry::new();
        let reference = other.layout("image", &image);
        other.run(&["fetch", &reference]).ok().duration
    };
    for step in 0..12u32 {
        let fetch = g.spawn(&["fetch", &reference]);
        fetch.kill_after(whole * step / 12);
        let images = g.json(&["image", "list"]);
        let count = images.as_array().map_or(0, Vec::len);
        assert!(count <= 1, "{images}");
    }
    assert!(g.run(&["fetch", &reference]).ok().stdout.contains(&image.id()));
    g.run(&["image", "gc"]).succeeded();
    g.check_invariants();
}

#[test]
fn the_next_command_finishes_a_killed_rm() {
    let g = Gantry::new();
    let exited = || {
        // Enough files for the deletion to take some time.
        g.app(&[], &["write", "/tmp/x", "x"]).succeeded();
        let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
        let dir = g.dir().join("pods").join(&pod).join("volumes");
        fs::create_dir(&dir).unwrap();
        for n in 0..3000 {
            fs::write(dir.join(n.to_string()), "x").unwrap();
        }
        pod
    };
    let whole = g.run(&["rm", &exited()]).ok().duration;
    let mut seen = std::collections::BTreeSet::new();
    for step in 0..12u32 {
        let pod = exited();
        let rm = g.spawn(&["rm", &pod]);
        rm.kill_after(whole * step / 12);
        let phase = g.list().first().map(|pod| pod["phase"].as_str().unwrap_or_default().to_owned());
        assert!(matches!(phase.as_deref(), None | Some("exited" | "garbage" | "deleting")), "{phase:?}");
        seen.insert(phase);
        g.run(&["gc", "--grace-period=0s"]).succeeded();
        assert!(g.list().is_empty());
        g.check_invariants();
    }
    assert!(seen.len() > 1, "killed at one moment only: {seen:?}");
}

/// Unsynced data may be lost, in the worst order: all directories are as after the removals, the database is as of an
/// earlier sync.
#[test]
fn power_loss_leaves_no_row_without_directory() {
    let g = Gantry::new();
    let image = g.fixture();
    g.app(&[], &["print", "one"]).succeeded();
    let exited = g.list()[0]["id"].as_str().unwrap().to_owned();
    let running = g.detached(&[], &["sleep", "forever"]);
    let [kept, gone, collected] = [0; 3].map(|_| pod_id(&g.run(&["prepare", "--net=none", &image]).ok()));
    let files = ["gantry.db", "gantry.db-wal", "sequence"];
    let synced = files.map(|name| fs::read(g.dir().join(name)).unwrap());
    let numbers =
        |out: &Out| gantry_tests::json_lines(&out.stdout).iter().map(|e| e["seq"].as_u64()).collect::<Vec<_>>();
    g.run(&["stop", &running]).succeeded();
    g.run(&["rm", &exited, &gone, &running]).succeeded();
    let given = numbers(&g.run(&["events", "--since=1h", "-o", "json"]).ok());
    fs::remove_dir_all(g.dir().join("pods").join(&collected)).unwrap();
    for (name, bytes) in files.iter().zip(synced) {
        fs::write(g.dir().join(name), bytes).unwrap();
    }
    let list = g.run_in_next_boot(&["list", "-o", "json"]).ok().json();
    let ids: Vec<_> = list.as_array().unwrap().iter().map(|pod| pod["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [kept.as_str()]);
    let doctor = g.run_in_next_boot(&["doctor", "--deep"]);
    assert_eq!(doctor.stdout, "all is well\n", "{doctor}");
    let events = g.run_in_next_boot(&["events", "--since=1h", "-o", "json"]).ok();
    let boots = gantry_tests::json_lines(&events.stdout);
    let fresh = boots.iter().filter(|e| e["boot"].as_str().is_some_and(|boot| boot.ends_with("b007")));
    let fresh: Vec<_> = fresh.map(|e| e["seq"].as_u64()).collect();
    assert!(!fresh.is_empty() && fresh.iter().all(|number| !given.contains(number)), "{given:?} {fresh:?}");
    assert_eq!(g.run_in_next_boot(&["run-prepared", &kept]).code, 0);
    g.run_in_next_boot(&["rm", &kept]).succeeded();
}

#[test]
fn prepared_pods_without_directory_are_collected() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["prepare", "--net=none", &image]).ok());
    fs::remove_dir_all(g.dir().join("pods").join(&pod)).unwrap();
    let doctor = g.run(&["doctor"]).exits(1);
    assert!(doctor.stdout.contains(&format!("pod {pod} is prepared and has no directory")), "{doctor}");
    assert!(doctor.stdout.contains(&format!("gantry rm {pod}")), "{doctor}");
    assert!(g.run(&["gc", "--expire-prepared=0s", "--dry-run"]).ok().stdout.contains(&pod));
    assert!(g.run(&["gc", "--expire-prepared=0s"]).ok().stdout.contains(&pod));
    assert!(g.list().is_empty());
    g.run(&["image", "rm", &image]).succeeded();
    g.check_invariants();
}

/// A deletion failed half-way: the pod is shown as being deleted until its last file is gone.
#[test]
fn every_command_continues_a_failed_deletion() {
    let gc: &[&str] = &["gc", "--grace-period=0s"];
    for first in [gc, &["list"], &["doctor"], &["image", "gc"], &["rm", "POD"]] {
        let g = Gantry::new();
        g.app(&[], &["true"]).succeeded();
        let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
        let file = fs::File::create(g.dir().join("pods").join(&pod).join("stays")).unwrap();
        let flags = ioctl_getflags(&file).unwrap();
        ioctl_setflags(&file, flags | IFlags::IMMUTABLE).unwrap();
        let out = g.run(&["rm", &pod]);
        let words: Vec<&str> = first.iter().map(|&word| if word == "POD" { &*pod } else { word }).collect();
        let _whatever_it_says = g.run(&words);
        let list = g.list();
        ioctl_setflags(&file, flags).unwrap();
        assert!(out.code != 0, "{out}");
        assert_eq!((list.len(), list[0]["id"].as_str(), list[0]["phase"].as_str()), (1, Some(&*pod), Some("deleting")));
        g.run(gc).succeeded();
        assert!(g.list().is_empty(), "{first:?}");
        g.check_invariants();
    }
}

#[test]
fn concurrent_commands_on_one_pod_agree() {
    let g = Gantry::new();
    for _ in 0..5 {
        let pod = g.detached(&[], &["obey", "SIGTERM"]);
        g.wait_log(&pod, "obeying");
        let all: Vec<_> = (0..4).map(|_| g.spawn(&["stop", &pod])).collect();
        for stop in all {
            let out = stop.wait();
            assert!(out.code == 0 || out.stderr.contains("exited"), "{out}");
        }
        let removers: Vec<_> = (0..3).map(|_| g.spawn(&["rm", &pod])).collect();
        let codes: Vec<i32> = removers.into_iter().map(|rm| rm.wait().code).collect();
        // A later command waits for the first, or finds no pod any more.
        assert!(codes.contains(&0) && codes.iter().all(|code| matches!(code, 0 | 1)), "{codes:?}");
        assert!(g.list().is_empty());
    }
}
