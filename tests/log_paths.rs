//! Log files at paths that the caller chooses and rotates, as a kubelet does.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use gantry_proto::rkt::v1alpha::GetLogsRequest;
use gantry_tests::aurae::serve;
use gantry_tests::python::spawn_script;
use gantry_tests::{Gantry, Out, Signal, SmallDisk, app, pod_id, wait_for};
use rustix::process::{Pid, kill_process};
use serde_json::json;

const FAILED: i32 = 125;

/// A log directory as a kubelet makes it.
#[track_caller]
fn log_dir(g: &Gantry) -> PathBuf {
    let dir = g.scratch().join("pods/ns_web_uid");
    let made = fs::create_dir_all(&dir);
    assert!(made.is_ok(), "{made:?}");
    dir
}

fn dir_flag(dir: &Path) -> String {
    format!("--log-dir={}", dir.display())
}

/// The texts of the records in these files of a log, in order.
#[track_caller]
fn texts<P: AsRef<Path>>(files: &[P]) -> Vec<String> {
    let read = |path: &P| fs::read_to_string(path).unwrap_or_else(|error| panic!("{error}"));
    let all: String = files.iter().map(read).collect();
    let text = |line: &str| line.splitn(4, ' ').nth(3).unwrap_or_else(|| panic!("no record: {line}")).to_owned();
    all.lines().map(text).collect()
}

/// Asserts that lines of the verb `lines` follow each other without a gap.
#[track_caller]
fn assert_consecutive(lines: &[String]) {
    let number =
        |line: &String| line.strip_prefix("line ").and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let numbers: Vec<u64> = lines.iter().filter_map(number).collect();
    let first = numbers.first().copied().unwrap_or_else(|| panic!("no lines"));
    assert_eq!(numbers.len(), lines.len());
    assert!(numbers.iter().copied().eq(first..first + numbers.len() as u64), "lines were lost or reordered");
}

#[track_caller]
fn rename(from: &Path, to: &Path) {
    let renamed = fs::rename(from, to);
    assert!(renamed.is_ok(), "{renamed:?}");
}

#[track_caller]
fn wait_for_text(file: &Path, text: &str) {
    wait_for("the text in the log", || fs::read_to_string(file).ok().filter(|log| log.contains(text)));
}

#[test]
fn chosen_logs_belong_to_the_caller() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none", &dir_flag(&dir)]).ok());
    let image = g.fixture();
    let verb = ["--", "seq", "print", "hello", "--", "eprint", "bad"];
    let add = ["app", "add", &pod, &image, "--name=web", "--log-path=web/0.log"];
    g.run(&[&add[..], &verb].concat()).succeeded();
    let name = format!("{pod}/web");
    for attempt in 0..7 {
        g.run(&["app", "start", &name]).succeeded();
        wait_for("the end of the attempt", || {
            let status = g.json(&["app", "status", &name]);
            (status["state"] == "exited" && status["attempt"] == attempt).then_some(())
        });
    }
    let file = dir.join("web/0.log");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir.join("web")), mode(&file)), (0o755, 0o640));
    assert_eq!(texts(&[&file]), ["hello", "bad"].repeat(7), "every start appends to one file");
    assert_eq!(g.run(&["logs", &pod, "--app=web"]).ok().stdout, "hello\n".repeat(7));
    assert_eq!(g.run(&["logs", &pod, "--tail=2"]).ok().stdout, "hello\n");
    let status = g.status(&pod);
    assert_eq!((&status["log_dir"], &app(&status, "web")["log_path"]), (&json!(dir), &json!("web/0.log")));
    let manifest = g.json(&["inspect", &pod])["manifest"].clone();
    assert_eq!(manifest["log_dir"], json!(dir));
    assert_eq!(manifest["apps"][0]["log_path"], "web/0.log", "{manifest}");
    assert_eq!(fs::read_dir(g.dir().join("pods").join(&pod).join("logs/web")).unwrap().count(), 0);
    g.run(&["app", "rm", &name]).succeeded();
    g.check_invariants();
    assert_eq!(texts(&[&file]).len(), 14, "the log survives its app");
    // The next container of the name has the next path.
    g.run(&[&add[..5], &["--log-path=web/1.log"], &verb].concat()).succeeded();
    g.run(&["app", "start", &name]).succeeded();
    wait_for_text(&dir.join("web/1.log"), "bad");
    g.run(&["rm", "--force", &pod]).succeeded();
    g.run(&["gc", "--grace-period=0s"]).succeeded();
    assert_eq!((texts(&[&file]).len(), texts(&[dir.join("web/1.log")]).len()), (14, 2), "and its pod");
    g.check_invariants();
}

#[test]
fn followers_survive_rotation_by_the_caller() {
    check_followed_rotation(|number| format!("20261124-00000{number}"));
}

/// Each rotated file keeps its number, as that of logrotate does not.
#[test]
fn followers_survive_rotation_to_ascending_numbers() {
    check_followed_rotation(|number| (number + 1).to_string());
}

/// Rotates the log of a followed app to files with these suffixes.
#[track_caller]
fn check_followed_rotation(suffix: impl Fn(u32) -> String) {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let flags = [&dir_flag(&dir), "--name=web", "--log-path=web/0.log"];
    let pod = g.detached(&flags, &["lines", "forever", "20", "500"]);
    let file = dir.join("web/0.log");
    wait_for_text(&file, "line");
    let follow = g.spawn(&["logs", "--follow", &pod]);
    let parts: Vec<PathBuf> = (0..4).map(|number| dir.join(format!("web/0.log.{}", suffix(number)))).collect();
    for part in &parts {
        wait_for("output", || fs::metadata(&file).ok().filter(|meta| meta.len() > 0));
        rename(&file, part);
        g.run(&["logs", "--reopen", &pod, "--app=web"]).succeeded();
        assert!(file.exists(), "the log file was not made again");
    }
    // Without a rename, nothing changes.
    g.run(&["logs", "--reopen", &pod]).succeeded();
    g.run(&["stop", "--force", &pod]).succeeded();
    let files: Vec<&PathBuf> = parts.iter().chain([&file]).collect();
    let written = texts(&files);
    assert_consecutive(&written);
    let followed: Vec<String> = follow.wait().ok().stdout.lines().map(str::to_owned).collect();
    assert_eq!(followed, written);
    let read: Vec<String> = g.run(&["logs", &pod]).ok().stdout.lines().map(str::to_owned).collect();
    assert_eq!(read, written, "rotated files are read too");
    // The kubelet compresses older files.
    rename(&parts[0], &parts[0].with_added_extension("gz"));
    let read: Vec<String> = g.run(&["logs", &pod]).ok().stdout.lines().map(str::to_owned).collect();
    assert_eq!(read, texts(&files[1..]));
}

#[test]
fn added_apps_at_chosen_paths_are_followed() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none", &dir_flag(&dir)]).ok());
    let mut follow = g.spawn(&["logs", "--follow", &pod]);
    for (name, path) in [("one", "0.log"), ("two", "b/c/0.log")] {
        let flags = ["--name", name, "--log-path", path];
        g.run(&[&["app", "add", &pod, &g.fixture()], &flags[..], &["--", "print", name]].concat()).succeeded();
        g.run(&["app", "start", &format!("{pod}/{name}")]).succeeded();
        follow.wait_for_stdout(name);
    }
    g.run(&["stop", &pod]).succeeded();
    follow.wait().succeeded();
}

/// Each app has the name and the log path of the one that was removed.
#[test]
fn replaced_apps_are_followed_once() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none", &dir_flag(&dir)]).ok());
    let mut follow = g.spawn(&["logs", "--follow", &pod]);
    let name = format!("{pod}/web");
    for text in ["first", "second", "third"] {
        let add =
            ["app", "add", "--start", &pod, &g.fixture(), "--name=web", "--log-path=web.log", "--", "print", text];
        g.run(&add).succeeded();
        follow.wait_for_stdout(text);
        wait_for("the end", || (g.json(&["app", "status", &name])["state"] == "exited").then_some(()));
        g.run(&["app", "rm", &name]).succeeded();
    }
    g.run(&["stop", &pod]).succeeded();
    assert_eq!(follow.wait().ok().stdout.replace("[web] ", ""), "first\nsecond\nthird\n");
    assert_eq!(texts(&[dir.join("web.log")]), ["first", "second", "third"]);
}

#[test]
fn gantryd_serves_logs_at_chosen_paths() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let run = ["run", "--net=none", "-d", &dir_flag(&dir), &image, "--name=it", "--log-path=it/0.log", "--"];
    let pod = pod_id(&g.run(&[&run[..], &["lines", "forever", "20", "500"]].concat()).ok());
    let request = GetLogsRequest { pod_id: pod.clone(), follow: true, ..GetLogsRequest::default() };
    let mut logs = api.logs(request.clone());
    let first = logs.try_next().unwrap().unwrap();
    fs::rename(dir.join("it/0.log"), dir.join("it/0.log.1")).unwrap();
    g.run(&["logs", "--reopen", &pod]).succeeded();
    wait_for("output in the new file", || fs::metadata(dir.join("it/0.log")).ok().filter(|meta| meta.len() > 1000));
    g.run(&["stop", "--force", &pod]).succeeded();
    let followed: Vec<String> = std::iter::once(first).chain(logs.rest()).collect();
    let text = |element: &String| element.split_once(" MESSAGE=").map(|(_, text)| text.to_owned()).unwrap_or_default();
    let followed: Vec<String> = followed.iter().map(text).collect();
    assert_eq!(followed, texts(&[dir.join("it/0.log.1"), dir.join("it/0.log")]));
    drop(api);
    served.end();
}

#[test]
fn process_logs_have_one_start_only() {
    const PROCESS_LOG: &str = "observe.Observe/GetSubProcessStream";
    let g = Gantry::new();
    let dir = log_dir(&g);
    let (served, address) = serve(&g);
    let flags = [&dir_flag(&dir), "--name=it", "--log-path=0.log", "--restart=always"];
    let pod = g.detached(&flags, &["seq", "print", "begun", "--", "obey", "SIGUSR1", "3"]);
    wait_for_text(&dir.join("0.log"), "obeying");
    g.run(&["kill", "--signal=SIGUSR1", &pod]).succeeded();
    wait_for("the second start", || {
        (texts(&[dir.join("0.log")]).iter().filter(|line| *line == "begun").count() == 2).then_some(())
    });
    let request = json!({ "process_id": g.app_pid(&pod, "it").to_string() }).to_string();
    let mut stream = spawn_script("node_client.py", &[&address, PROCESS_LOG, &request]);
    stream.wait_for_stdout("begun");
    g.run(&["stop", "--force", &pod]).succeeded();
    let out = stream.wait().ok().stdout;
    assert_eq!(out.matches("begun").count(), 1, "{out}");
    served.end();
}

#[test]
fn host_pods_have_chosen_log_paths() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let run = ["run", "--stage1=host", &dir_flag(&dir), "--log-path=a/0.log", "--", "echo", "here"];
    g.run(&run).succeeded();
    assert_eq!(texts(&[dir.join("a/0.log")]), ["here"]);
}

#[test]
fn failed_reopens_lose_nothing() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let pod = g.detached(&[&dir_flag(&dir), "--log-path=0.log"], &["lines", "forever", "20", "500"]);
    let (file, aside) = (dir.join("0.log"), dir.join("aside"));
    wait_for_text(&file, "line");
    fs::rename(&file, &aside).unwrap();
    fs::create_dir(&file).unwrap();
    let _ = g.run(&["logs", "--reopen", &pod]).exits(FAILED).stderr_contains(&["0.log", "not a regular file"]);
    let size = || fs::metadata(&aside).unwrap().len();
    let before = size();
    wait_for("more output in the renamed file", || (size() > before).then_some(()));
    fs::remove_dir(&file).unwrap();
    fs::rename(&aside, &file).unwrap();
    g.run(&["logs", "--reopen", &pod]).succeeded();
    g.run(&["stop", "--force", &pod]).succeeded();
    assert_consecutive(&texts(&[&file]));
}

#[test]
fn chosen_logs_are_not_rotated_by_size() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    g.configure("[log]\nmax-size = \"64Ki\"\nmax-files = 2\n");
    g.app(&[&dir_flag(&dir), "--log-path=0.log"], &["lines", "3000", "100"]).succeeded();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    assert_eq!(texts(&[dir.join("0.log")]).len(), 3000);
}

#[test]
fn unusable_log_paths_change_nothing() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let image = g.fixture();
    let at = |dir: &Path| dir_flag(dir);
    let (missing, link, file) = (dir.join("missing"), dir.with_extension("link"), dir.join("file"));
    symlink(&dir, &link).unwrap();
    fs::write(&file, "mine").unwrap();
    fs::create_dir(dir.join("0.log")).unwrap();
    symlink(g.scratch(), dir.join("out")).unwrap();
    let rows: [(String, &str, &str); 12] = [
        (at(&missing), "--log-path=a.log", "does not exist"),
        (at(&link), "--log-path=a.log", "symbolic link"),
        (at(&file), "--log-path=a.log", "not a directory"),
        (at(&g.dir()), "--log-path=a.log", "data directory"),
        ("--log-dir=pods".to_owned(), "--log-path=a.log", "absolute"),
        (at(&dir), "--log-path=../a.log", "without '.' and '..'"),
        (at(&dir), "--log-path=/a.log", "relative"),
        (at(&dir), "--log-path=out/a.log", "symbolic link"),
        (at(&dir), "--log-path=0.log", "not a regular file"),
        (at(&dir), "--log-path=file/a.log", "not a directory"),
        (at(&dir), "--log-path=", "empty"),
        ("--quiet".to_owned(), "--log-path=a.log", "--log-dir"),
    ];
    for (dir, path, want) in &rows {
        for command in [&["run", "--net=none"][..], &["prepare", "--net=none"]] {
            let out = g.run(&[command, &[dir, &image, path, "--", "true"]].concat());
            let _ = out.exits(FAILED).stderr_contains(&[want]);
        }
    }
    let both = [&image, "--name=a", "--log-path=x/0.log", &image, "--name=b", "--log-path=x/0.log.1"];
    let _ =
        g.run(&[&["run", "--net=none", &at(&dir)], &both[..]].concat()).exits(FAILED).stderr_contains(&["collides"]);
    assert_eq!(g.list(), [] as [serde_json::Value; 0]);
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
    // The same for an app that is added.
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none", &at(&dir)]).ok());
    let add = |name: &str, path: &str| -> Out {
        g.run(&["app", "add", &pod, &image, "--name", name, "--log-path", path, "--", "true"])
    };
    add("a", "x/0.log").succeeded();
    let _ = add("b", "x/0.log").exits(FAILED).stderr_contains(&["collides", "'a'"]);
    let _ = add("b", "out/0.log").exits(FAILED).stderr_contains(&["symbolic link"]);
    assert_eq!(g.run(&["app", "list", "-q", &pod]).ok().text(), "a");
}

#[test]
fn a_log_file_has_one_writer() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let flags = [&dir_flag(&dir), "--log-path=0.log"];
    let first = g.detached(&flags, &["seq", "print", "one", "--", "sleep", "forever"]);
    let out = g.app(&flags, &["print", "two"]).exits(FAILED);
    let _ = out.stderr_contains(&["0.log", "another app writes it"]);
    g.run(&["stop", "--force", &first]).succeeded();
    g.app(&flags, &["print", "three"]).succeeded();
    assert_eq!(texts(&[dir.join("0.log")]), ["one", "three"]);
}

#[test]
fn restarted_pods_append_to_their_log() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let image = g.fixture();
    let prepare = ["prepare", "--net=none", &dir_flag(&dir), &image, "--name=web", "--log-path=web/0.log"];
    let pod = pod_id(&g.run(&[&prepare[..], &["--", "seq", "print", "run", "--", "obey", "SIGTERM"]].concat()).ok());
    for attempt in 1..=3 {
        g.run(&["start", &pod]).succeeded();
        wait_for("the line of this start", || {
            let lines = texts(&[dir.join("web/0.log")]);
            (lines.iter().filter(|line| line.contains("obeying")).count() == attempt).then_some(())
        });
        g.run(&["stop", &pod]).succeeded();
        g.wait_state(&pod, "exited");
    }
    let log = g.run(&["logs", &pod]).ok().stdout;
    assert_eq!(log.matches("run\n").count(), 3, "{log}");
    // The caller took the directory away.
    fs::remove_dir_all(&dir).unwrap();
    let _ = g.run(&["start", &pod]).exits(FAILED).stderr_contains(&["log directory", "does not exist"]);
    assert_eq!(g.status(&pod)["phase"], "exited");
    assert_eq!(g.run(&["logs", &pod]).ok().stdout, "");
    g.run(&["rm", &pod]).succeeded();
}

#[test]
fn killed_supervisors_leave_complete_chosen_logs() {
    let g = Gantry::new();
    let dir = log_dir(&g);
    let file = dir.join("0.log");
    let verb = ["seq", "print", "whole", "--", "no-newline", "Password: ", "--", "sleep", "forever"];
    let pod = g.detached(&[&dir_flag(&dir), "--log-path=0.log"], &verb);
    wait_for_text(&file, " stdout P Password: \n");
    let supervisor = i32::try_from(g.supervisor(&pod)).ok().and_then(Pid::from_raw).unwrap();
    kill_process(supervisor, Signal::KILL).unwrap();
    g.wait_state(&pod, "exited");
    let text = fs::read_to_string(&file).unwrap();
    let records: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(records, ["stdout F whole", "stdout F Password: "]);
    g.run(&["doctor", "--deep"]).succeeded();
}

#[test]
fn full_log_disks_do_not_stop_apps() {
    let g = Gantry::new();
    let disk = SmallDisk::new(&g, "24m");
    let standard = gantry_fixtures::standard_image(g.app_bytes()).unwrap();
    let image = disk.run(&["fetch", &g.layout("app", &standard)]).ok().text().to_owned();
    let logs = disk.data().join("../logs");
    fs::create_dir(&logs).unwrap();
    let inside = g.scratch().join("disk/logs");
    let run = ["run", "--net=none", "-d", &dir_flag(&inside), &image, "--log-path=0.log", "--"];
    let pod = pod_id(&disk.run(&[&run[..], &["lines", "forever", "200", "500"]].concat()).ok());
    let file = logs.join("0.log");
    wait_for_text(&file, "line");
    disk.fill();
    wait_for("dropped output", || disk.run(&["doctor"]).stdout.contains("dropped").then_some(()));
    disk.drain();
    let size = || fs::metadata(&file).unwrap().len();
    let before = size();
    wait_for("output after the disk has space", || (size() > before + 1000).then_some(()));
    disk.run(&["stop", "--force", &pod]).succeeded();
    assert!(texts(&[&file]).iter().all(|line| line.starts_with("line ")), "no record is torn");
    disk.run(&["rm", &pod]).succeeded();
    assert!(file.exists());
}
