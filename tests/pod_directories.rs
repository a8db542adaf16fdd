//! Pod directories that are missing, replaced by something else, damaged, or copied: only their pods are affected.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use gantry_tests::{Gantry, Out, Running, Signal, pod_id, wait_for};
use rustix::fs::{CWD, FileType, mknodat};
use rustix::process::{Pid, kill_process};

/// The directory of a pod.
fn entry(g: &Gantry, pod: &str) -> PathBuf {
    g.dir().join("pods").join(pod)
}

/// Moves the directory of a pod out of the data directory; returns its new path.
#[track_caller]
fn move_away(g: &Gantry, pod: &str) -> PathBuf {
    let away = g.scratch().join(pod);
    if let Err(error) = fs::rename(entry(g, pod), &away) {
        panic!("cannot move the directory of pod {pod}: {error}");
    }
    away
}

#[track_caller]
fn phase(g: &Gantry, pod: &str) -> String {
    g.status(pod)["phase"].as_str().unwrap_or_default().to_owned()
}

#[track_caller]
fn prepare(g: &Gantry, verb: &[&str]) -> String {
    let image = g.fixture();
    pod_id(&g.run(&[&["prepare", "--net=none", &*image, "--"], verb].concat()).ok())
}

#[test]
fn misplaced_entries_affect_only_their_pods() {
    let g = Gantry::new();
    let [linked, replaced, ended, other] = [(); 4].map(|()| g.detached(&[], &["sleep", "forever"]));
    g.run(&["stop", "--force", &ended]).succeeded();
    let [linked_to, _, ended_to] = [&linked, &replaced, &ended].map(|pod| move_away(&g, pod));
    symlink(&linked_to, entry(&g, &linked)).unwrap();
    fs::write(entry(&g, &replaced), "").unwrap();
    symlink(&ended_to, entry(&g, &ended)).unwrap();
    let strays = ["00000000-0000-4000-8000-000000000000", "00000000-0000-4000-8000-000000000001"];
    fs::write(entry(&g, strays[0]), "").unwrap();
    symlink(&ended_to, entry(&g, strays[1])).unwrap();

    assert_eq!(g.list().len(), 4);
    let phases = [&linked, &replaced, &ended, &other].map(|pod| phase(&g, pod));
    assert_eq!(phases, ["running", "running", "exited", "running"]);
    let doctor = g.run(&["doctor"]).exits(1).stdout;
    for pod in [&linked, &replaced, &ended] {
        assert!(doctor.contains(&format!("{} is no directory", entry(&g, pod).display())), "{doctor}");
    }
    for stray in strays {
        assert!(doctor.contains(&format!("'{stray}' in 'pods' is no pod")), "{doctor}");
    }
    for args in [&["gc"][..], &["image", "gc"], &["exec", &other, "--", "/bin/app", "true"]] {
        g.run(args).succeeded();
    }
    let _ = g.run(&["exec", &replaced, "--", "/bin/app", "true"]).exits(125).stderr_contains(&[&replaced]);
    let _ = g.run(&["start", &ended]).exits(125).stderr_contains(&["has no directory"]);

    g.run(&["rm", "--force", "--all"]).succeeded();
    assert_eq!(g.list().len(), 0);
    for pod in [&linked, &replaced, &ended] {
        assert!(entry(&g, pod).symlink_metadata().is_err(), "{pod}");
    }
    assert!(linked_to.join("journal").exists() && ended_to.join("journal").exists(), "nothing was followed");
    for stray in strays {
        fs::remove_file(entry(&g, stray)).unwrap();
    }
    g.run(&["doctor"]).succeeded();
}

#[test]
fn pods_run_without_their_directories() {
    let g = Gantry::new();
    let [moved, removed] = [(); 2].map(|()| g.detached(&[], &["sleep", "forever"]));
    let away = move_away(&g, &moved);
    fs::remove_dir_all(entry(&g, &removed)).unwrap();
    assert_eq!([&moved, &removed].map(|pod| phase(&g, pod)), ["running", "running"]);
    fs::rename(&away, entry(&g, &moved)).unwrap();
    g.run(&["exec", &moved, "--", "/bin/app", "true"]).succeeded();
    g.run(&["stop", "--force", &removed]).succeeded();
    assert_eq!([&moved, &removed].map(|pod| phase(&g, pod)), ["running", "exited"]);
}

#[test]
fn pods_without_directories_cannot_be_started() {
    let g = Gantry::new();
    let prepared = prepare(&g, &["true"]);
    let exited = g.detached(&[], &["true"]);
    g.wait_state(&exited, "exited");
    for pod in [&prepared, &exited] {
        fs::remove_dir_all(entry(&g, pod)).unwrap();
    }
    for args in [["run-prepared", &prepared], ["start", &prepared], ["start", &exited], ["restart", &exited]] {
        let _ = g.run(&args).exits(125).stderr_contains(&["directory", "gantry rm"]);
    }
    g.run(&["rm", &prepared, &exited]).succeeded();
}

#[test]
fn pods_without_directories_have_no_files() {
    let g = Gantry::new();
    let prepared = prepare(&g, &["true"]);
    let exited = g.detached(&[], &["true"]);
    g.wait_state(&exited, "exited");
    let file = g.scratch().join("file");
    fs::write(&file, "").unwrap();
    let file = file.display().to_string();
    for pod in [&prepared, &exited] {
        fs::remove_dir_all(entry(&g, pod)).unwrap();
        let inside = format!("{pod}:/tmp/file");
        for [from, to] in [[&file, &inside], [&inside, &file]] {
            let out = g.run(&["cp", from, to]).exits(125);
            let _ = out.stderr_contains(&[pod, "has no directory", "gantry rm"]);
        }
    }
}

/// Starts a pod and stops its command with SIGSTOP before that has recorded the start. `None`: it was too late, or has
/// locked the database.
fn stop_starter(g: &Gantry, image: &str) -> Option<(Running, String)> {
    let mut run = g.spawn(&["run", "-d", "--net=none", image, "--", "sleep", "forever"]);
    let pod = wait_for("the manifest of the pod", || {
        let pods = fs::read_dir(g.dir().join("pods")).ok()?.flatten();
        let mut pods = pods.filter(|entry| entry.path().join("pod.json").exists());
        pods.next().map(|entry| entry.file_name().to_string_lossy().into_owned())
    });
    run.signal(Signal::STOP);
    let is_ready = |journal: Vec<u8>| String::from_utf8_lossy(&journal).contains("ready");
    let is_early = !run.has_ended();
    if is_early {
        wait_for("the supervisor", || fs::read(entry(g, &pod).join("journal")).ok().filter(|it| is_ready(it.clone())));
        if g.run(&["status", &pod]).code == 0 {
            return Some((run, pod));
        }
    }
    run.signal(Signal::CONT);
    let _ = run.wait();
    g.run(&["rm", "--force", &pod]).succeeded();
    None
}

#[test]
fn stopped_starters_of_ended_pods_are_named() {
    let g = Gantry::new();
    let image = g.fixture();
    let (run, pod) = wait_for("a starter that can be stopped in time", || stop_starter(&g, &image));
    let starter = format!("process {} ('gantry') still holds its directory: it is stopped", run.pid());
    let _ = g.run(&["stop", "-t", "1", &pod]).exits(125).stderr_contains(&[&starter, "has ended"]);
    let _ = g.run(&["rm", "--force", &pod]).exits(125).stderr_contains(&[&starter]);
    run.signal(Signal::CONT);
    let _ = run.wait();
    g.wait_state(&pod, "exited");
    g.run(&["rm", &pod]).succeeded();
}

#[test]
fn moved_directories_do_not_hide_the_end() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let supervisor = i32::try_from(g.supervisor(&pod)).ok().and_then(Pid::from_raw).unwrap();
    let away = move_away(&g, &pod);
    symlink(&away, entry(&g, &pod)).unwrap();
    kill_process(supervisor, Signal::KILL).unwrap();
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&status["exit_code"], &status["reason"]), (&137.into(), &"the supervisor was killed".into()));
    assert!(away.join("journal").exists());
}

/// Runs gantry with another data directory.
#[track_caller]
fn run_in(g: &Gantry, dir: &Path, args: &[&str]) -> Out {
    let model = g.command(args);
    let mut command = Command::new(model.get_program());
    command.arg("--dir").arg(dir).args(args);
    gantry_tests::api::copy_environment(&model, &mut command);
    g.spawn_command(&mut command).wait()
}

#[test]
fn copies_start_no_pods_of_the_original() {
    let g = Gantry::new();
    let prepared = prepare(&g, &["true"]);
    let exited = g.detached(&[], &["true"]);
    g.wait_state(&exited, "exited");
    let copy = g.scratch().join("copy");
    let copied = Command::new("cp").arg("-a").arg(g.dir()).arg(&copy).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let original = format!("was prepared in {}", g.dir().join("pods").display());
    let facts = || {
        let journals = [&prepared, &exited].map(|pod| fs::read(copy.join("pods").join(pod).join("journal")).ok());
        let events = run_in(&g, &copy, &["events"]).ok().stdout;
        (journals, events, run_in(&g, &copy, &["list", "-o", "json"]).ok().stdout)
    };
    let before = facts();
    for args in [["run-prepared", &prepared], ["start", &prepared], ["start", &exited]] {
        let _ = run_in(&g, &copy, &args).exits(125).stderr_contains(&[&original]);
    }
    assert_eq!(facts(), before);
    assert_eq!([&prepared, &exited].map(|pod| phase(&g, pod)), ["prepared", "exited"]);
    // The same directory by another path.
    let link = g.scratch().join("link");
    symlink(g.dir().parent().unwrap(), &link).unwrap();
    for pod in [&prepared, &exited] {
        run_in(&g, &link.join("data"), &["start", pod]).succeeded();
        g.wait_state(pod, "exited");
    }
}

#[test]
fn fifos_in_place_of_logs_are_refused() {
    let g = Gantry::new();
    let pod = prepare(&g, &["true"]);
    let log = entry(&g, &pod).join("supervisor.log");
    let _may_not_exist = fs::remove_file(&log);
    mknodat(CWD, &log, FileType::Fifo, 0o600.into(), 0).unwrap();
    let _ = g.run(&["start", &pod]).exits(125).stderr_contains(&["supervisor.log", "not a regular file"]);
    fs::remove_file(&log).unwrap();
    g.run(&["run-prepared", &pod]).succeeded();
}

/// Whether a pod has this file; for an empty name, whether there is one.
fn has_file(g: &Gantry, name: &str) -> bool {
    fs::read_dir(g.dir().join("pods")).is_ok_and(|pods| pods.flatten().any(|pod| pod.path().join(name).exists()))
}

#[test]
fn killed_runs_with_rm_leave_no_pod() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut killed = 0;
    for file in ["", "remove-when-ended", "supervisor.log", "plan.json", "pod.json", "journal"] {
        let mut run = g.spawn(&["run", "--rm", "--net=none", &image, "--", "true"]);
        wait_for(&format!("'{file}' of the pod"), || (has_file(&g, file) || run.has_ended()).then_some(()));
        if !run.has_ended() {
            run.signal(Signal::KILL);
        }
        killed += usize::from(run.wait().code == 137);
        // `gc` continues a removal that was begun.
        let is_removed = || g.list().iter().all(|pod| pod["phase"] == "deleting").then_some(());
        wait_for("the pod to be removed", is_removed);
        g.run(&["gc"]).succeeded();
        assert_eq!((g.list().len(), has_file(&g, "")), (0, false), "killed at '{file}'");
    }
    assert!(killed > 0, "every run was over before it was killed");
}

#[test]
fn directories_of_other_types_have_a_remedy() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["true"]);
    g.wait_state(&pod, "exited");
    for name in ["tmp", "pods", "backups"] {
        let (dir, away) = (g.dir().join(name), g.scratch().join(name));
        fs::rename(&dir, &away).unwrap();
        fs::write(&dir, "").unwrap();
        let doctor = g.run(&["doctor"]).exits(1).stdout;
        let want = format!("{} is of the wrong type\n  move it away, and make the directory again", dir.display());
        assert!(doctor.contains(&want), "{doctor}");
        let tmp = format!("cannot move a pod to {}", dir.display());
        let cannot_be_removed = |code| drop(g.run(&["rm", &pod]).exits(code).stderr_contains(&[&tmp]));
        if name == "tmp" {
            cannot_be_removed(125);
        }
        fs::remove_file(&dir).unwrap();
        if name == "tmp" {
            cannot_be_removed(1);
        }
        fs::rename(&away, &dir).unwrap();
    }
    assert_eq!(phase(&g, &pod), "deleting");
}

#[test]
fn pods_can_be_a_linked_directory() {
    let g = Gantry::new();
    let image = g.fixture();
    let (dir, away) = (g.dir().join("pods"), g.dir().join("elsewhere"));
    fs::rename(&dir, &away).unwrap();
    symlink(&away, &dir).unwrap();
    let pod = pod_id(&g.run(&["run", "-d", "--net=none", &image, "--", "sleep", "forever"]).ok());
    g.run(&["stop", "--force", &pod]).succeeded();
    g.run(&["start", &pod]).succeeded();
    g.run(&["rm", "--force", "--all"]).succeeded();
    assert_eq!((g.list().len(), fs::read_dir(&away).unwrap().count()), (0, 0));
    fs::remove_file(&dir).unwrap();
    fs::rename(&away, &dir).unwrap();
}

#[test]
fn empty_reasons_are_left_out() {
    let g = Gantry::new();
    g.run(&["volume", "create", "x"]).succeeded();
    fs::write(g.dir().join("read-only"), "").unwrap();
    let _ = g.run(&["volume", "create", "y"]).exits(125).stderr_contains(&["is read-only; 'gantry doctor'"]);
    let doctor = g.run(&["doctor"]).exits(1).stdout;
    assert!(doctor.contains("nothing can be changed: there is an empty file"), "{doctor}");
    fs::remove_file(g.dir().join("read-only")).unwrap();
}
