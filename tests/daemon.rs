//! gantryd keeps rows current without any command and collects garbage, and pods do not depend on it.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gantry_proto::rkt::v1alpha::{EventFilter, EventType};
use gantry_tests::{Gantry, Out, Running, Signal, pod_id, wait_for};

/// Ends gantryd with this signal. It takes less than a second; the test allows for a machine that is busy with others.
#[track_caller]
fn end(daemon: Running, signal: Signal) -> Out {
    let begin = std::time::Instant::now();
    daemon.signal(signal);
    let out = daemon.wait().ok();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}: {out}", begin.elapsed());
    assert!(!out.stderr.contains("error:") && !out.stderr.contains("panicked"), "{out}");
    out
}

/// Whether the database's WAL contains this text: the stored data, read without a command, which would reconcile
/// first.
fn stored(g: &Gantry, text: &str) -> bool {
    let wal = std::fs::read(g.dir().join("gantry.db-wal")).unwrap_or_default();
    wal.windows(text.len()).any(|window| window == text.as_bytes())
}

fn cgroups(pod: &str) -> Vec<PathBuf> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let all = hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]);
    all.map(|root| root.join("gantry").join(pod)).filter(|path| path.exists()).collect()
}

#[test]
fn pods_are_reconciled_without_a_command() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut keeper = g.start_daemon(&[]);
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--name=it", "--", "obey", "SIGTERM", "7"]).ok());
    keeper.wait_for_stderr(&format!("pod {pod} runs"));
    assert!(!cgroups(&pod).is_empty(), "the test sees cgroups");
    g.wait_log(&pod, "obeying");
    g.run(&["kill", "-s", "SIGTERM", &pod]).succeeded();
    keeper.wait_for_stderr(&format!("info: pod {pod} exited with code 7: app it failed"));
    assert_eq!(cgroups(&pod), Vec::<PathBuf>::new());
    assert!(stored(&g, r#""exit_code":"7""#));
    end(keeper, Signal::TERM);
    assert_eq!(g.status(&pod)["exit_code"], 7);
}

#[test]
fn a_dead_supervisor_is_noticed() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut keeper = g.start_daemon(&[]);
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--", "ignore", "SIGTERM"]).ok());
    let supervisor = i32::try_from(g.supervisor(&pod)).unwrap();
    keeper.wait_for_stderr(&format!("pod {pod} runs"));
    let supervisor = rustix::process::Pid::from_raw(supervisor).unwrap();
    rustix::process::kill_process(supervisor, Signal::KILL).unwrap();
    keeper.wait_for_stderr(&format!("pod {pod} exited with code 137: the supervisor was killed"));
    assert!(stored(&g, "the supervisor was killed"));
    end(keeper, Signal::INT);
}

#[test]
fn app_exits_are_recorded_before_the_pod_ends() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut keeper = g.start_daemon(&[]);
    let short = ["run", "--net=none", "-d", &image, "--name=short", "--", "obey", "SIGTERM", "0", "---"];
    let long = [&image, "--name=long", "--", "sleep", "forever"];
    let pod = pod_id(&g.run(&[&short[..], &long[..]].concat()).ok());
    keeper.wait_for_stderr(&format!("pod {pod} runs"));
    g.wait_log(&pod, "obeying");
    g.run(&["kill", "-s", "SIGTERM", "--app=short", &pod]).succeeded();
    keeper.wait_for_stderr(&format!("app short of pod {pod} ended"));
    assert!(stored(&g, r#""exit_code":"0""#));
    g.run(&["kill", &pod]).succeeded();
    keeper.wait_for_stderr(&format!("pod {pod} exited"));
    end(keeper, Signal::TERM);
}

/// The inodes of the directories that each inotify instance of a process watches.
fn inotify_instances(pid: u32) -> Vec<Vec<u64>> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == Path::new("anon_inode:inotify")))
        .map(|fd| {
            let path = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(fd.file_name());
            let info = std::fs::read_to_string(path).unwrap_or_default();
            // One line for each watch: `inotify wd:1 ino:9e7 sdev:800013 …`.
            let inode = |line: &str| u64::from_str_radix(line.split(" ino:").nth(1)?.split(' ').next()?, 16).ok();
            info.lines().filter_map(inode).collect()
        })
        .collect()
}

#[test]
fn one_inotify_instance_watches_for_commits() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut served = g.serve(&[]);
    let api = served.api();
    let mut events = api.listen(EventFilter::default());
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--", "sleep", "forever"]).ok());
    // The hub and the keeper have seen its start, and the resolver's thread runs.
    let seen = events.until(|event| event.id == pod && event.r#type() == EventType::PodStarted);
    assert!(!seen.is_empty());
    served.daemon().wait_for_stderr(&format!("pod {pod} runs"));
    let pid = served.daemon().pid();
    wait_for("the thread of the resolver", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        tasks.map(name).any(|name| name == "names\n").then_some(())
    });
    let data = std::fs::metadata(g.dir()).unwrap().ino();
    let instances = inotify_instances(pid);
    assert_eq!(instances.iter().filter(|watched| watched.contains(&data)).count(), 1, "{instances:?}");
    // The others are for the directories of pods, and of logs.
    assert_eq!(instances.len(), 3, "{instances:?}");
    g.run(&["kill", &pod]).succeeded();
    drop((events, api));
    served.end();
}

/// Without a free inotify instance (here: in a user namespace that allows none), gantryd polls once a second.
#[test]
fn without_inotify_gantryd_polls() {
    let g = Gantry::new();
    let image = g.fixture();
    let plain = g.daemon(&["--listen=none"]);
    let mut blind = Command::new("unshare");
    blind.args(["--user", "--map-root-user", "sh", "-c"]);
    blind.args(["echo 0 >/proc/sys/user/max_inotify_instances && exec \"$0\" \"$@\""]);
    blind.arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => blind.env(name, value),
            None => blind.env_remove(name),
        };
    }
    blind.current_dir(g.scratch());
    let mut keeper = g.spawn_command(&mut blind);
    keeper.wait_for_stderr("max_user_instances");
    keeper.wait_for_stderr("info: reconciling the pods of");
    let short = ["run", "--net=none", "-d", &image, "--name=short", "--", "obey", "SIGTERM", "0", "---"];
    let long = [&image, "--name=long", "--", "sleep", "forever"];
    let pod = pod_id(&g.run(&[&short[..], &long[..]].concat()).ok());
    keeper.wait_for_stderr(&format!("pod {pod} runs"));
    g.wait_log(&pod, "obeying");
    // Only the journal records it: `kill` writes nothing to the database.
    g.run(&["kill", "-s", "SIGTERM", "--app=short", &pod]).succeeded();
    keeper.wait_for_stderr(&format!("app short of pod {pod} ended"));
    g.run(&["kill", &pod]).succeeded();
    keeper.wait_for_stderr(&format!("pod {pod} exited"));
    end(keeper, Signal::TERM);
}

#[test]
fn a_new_gantryd_replaces_a_killed_one() {
    let g = Gantry::new();
    let image = g.fixture();
    let keeper = g.start_daemon(&[]);
    let run = |code: &str| pod_id(&g.run(&["run", "--net=none", "-d", &image, "--", "obey", "SIGTERM", code]).ok());
    let (stays, ends) = (run("5"), run("6"));
    g.wait_log(&stays, "obeying");
    g.wait_log(&ends, "obeying");
    let pid = g.supervisor(&ends);
    keeper.signal(Signal::KILL);
    let _ = keeper.wait().exits(137);
    // No gantryd runs now, and the row's phase is Running.
    g.run(&["kill", "-s", "SIGTERM", &ends]).succeeded();
    let gone = PathBuf::from(format!("/proc/{pid}"));
    wait_for("the supervisor to be gone", || (!gone.exists()).then_some(()));
    let mut next = g.start_daemon(&[]);
    next.wait_for_stderr(&format!("pod {ends} exited with code 6"));
    let said = next.wait_for_stderr("running pods: 1");
    assert!(said.contains(&format!("pod {stays} runs")), "{said}");
    g.run(&["kill", "-s", "SIGTERM", &stays]).succeeded();
    next.wait_for_stderr(&format!("pod {stays} exited with code 5"));
    end(next, Signal::TERM);
}

#[test]
fn expired_and_ended_pods_are_collected() {
    let g = Gantry::new();
    let image = g.fixture();
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
    let exited = g.detached(&[], &["exit", "0"]);
    g.wait_state(&exited, "exited");
    let config = g.write("config.toml", "gc-interval = '200ms'\ngc-grace = '1s'\nexpire-prepared = '1s'\n");
    let mut keeper = g.start_daemon(&["--config", &config]);
    keeper.wait_for_stderr(&format!("removed pod {prepared}: it was prepared too long ago"));
    keeper.wait_for_stderr(&format!("removed pod {exited}: its grace period is over"));
    assert!(!g.dir().join("pods").join(&prepared).exists() && !g.dir().join("pods").join(&exited).exists());
    end(keeper, Signal::TERM);
    assert!(g.list().is_empty());
    // The command line accepts the same file.
    g.run(&["--config", &config, "list"]).succeeded();
}

/// Polling clients find a pod in its final state until its grace period is over, however often garbage is collected
/// meanwhile.
#[test]
fn exited_pods_are_kept_for_their_grace_period() {
    let g = Gantry::new();
    let image = g.fixture();
    let exited = g.detached(&[], &["exit", "0"]);
    g.wait_state(&exited, "exited");
    // A kubelet removes its pods itself.
    let owned = g.detached(&["--namespace=k8s.io"], &["exit", "0"]);
    g.wait_state(&owned, "exited");
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
    let config = g.write("config.toml", "gc-interval = '100ms'\ngc-grace = '1h'\nexpire-prepared = '100ms'\n");
    let mut keeper = g.start_daemon(&["--config", &config]);
    // A pass that removed this pod has examined the other one.
    keeper.wait_for_stderr(&format!("removed pod {prepared}"));
    assert_eq!(g.status(&exited)["phase"], "exited");
    end(keeper, Signal::TERM);
    g.run(&["gc"]).succeeded();
    assert_eq!(g.status(&exited)["phase"], "exited", "gc by hand has the same rule");
    g.run(&["gc", "--mark-only"]).succeeded();
    assert_eq!(g.status(&exited)["phase"], "garbage");
    g.run(&["gc"]).succeeded();
    assert_eq!(g.status(&exited)["phase"], "garbage");
    g.run(&["gc", "--grace-period=0s"]).succeeded();
    assert_eq!(g.list().len(), 1);
    assert_eq!(g.status(&owned)["phase"], "exited");
    g.run(&["rm", &owned]).succeeded();
}

#[test]
fn pods_outlive_gantryd() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut keeper = g.start_daemon(&[]);
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--", "sleep", "forever"]).ok());
    keeper.wait_for_stderr(&format!("pod {pod} runs"));
    assert!(end(keeper, Signal::TERM).stderr.contains("stopped by SIGTERM; pods continue to run"));
    assert_eq!(g.status(&pod)["phase"], "running");
    g.check_invariants();
}

#[test]
fn only_one_gantryd_runs_per_data_directory() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let dir = g.dir().display().to_string();
    let pid = format!("process {}", keeper.pid());
    let _ = g.spawn_command(&mut g.daemon(&[])).wait().exits(1).stderr_contains(&["another gantryd", &pid, &dir]);
    // Garbage collection does not break the lock.
    g.run(&["image", "gc"]).succeeded();
    let _ = g.spawn_command(&mut g.daemon(&[])).wait().exits(1).stderr_contains(&["another gantryd"]);
    end(keeper, Signal::INT);
    end(g.start_daemon(&[]), Signal::INT);
}

#[test]
fn an_invalid_configuration_is_rejected() {
    let g = Gantry::new();
    for (text, want) in [
        ("gc-interval = ", "line 1"),
        ("dir = '/x'\ngc-intervall = '1m'", "line 2"),
        ("gc-interval = '0'", "gc-interval"),
        ("gc-grace = 'soon'", "gc-grace"),
        ("cgroup-parent = '../x'", "cgroup parent"),
    ] {
        let path = g.write("config.toml", text);
        let out = g.spawn_command(&mut g.daemon(&["--config", &path])).wait().exits(1);
        assert!(out.stderr_contains(&["error: ", want]).stderr.lines().count() == 1, "{text}");
    }
    let none = g.spawn_command(&mut g.daemon(&["--config", "/no/such/file"])).wait();
    let _ = none.exits(1).stderr_contains(&["cannot read configuration /no/such/file"]);
    let _ = g.spawn_command(&mut g.daemon(&["--no-such-flag"])).wait().exits(2);
    assert!(!g.dir().exists(), "nothing was made");
}

#[test]
fn the_configuration_is_reloaded_on_sighup() {
    let g = Gantry::new();
    let image = g.fixture();
    let path = g.write("config.toml", "gc-interval = '1h'\n");
    let mut keeper = g.start_daemon(&["--config", &path]);
    let _ = g.write("config.toml", "gc-interval = 'often'\n");
    keeper.signal(Signal::HUP);
    keeper.wait_for_stderr("configuration not reloaded");
    let _ = g.write("config.toml", "gc-interval = '100ms'\ngc-grace = '0'\ncri-stream-listen = 'none'\n");
    keeper.signal(Signal::HUP);
    keeper.wait_for_stderr("warning: 'cri-stream-listen' has changed in the configuration: restart gantryd to use it");
    keeper.wait_for_stderr("info: configuration reloaded");
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--", "true"]).ok());
    keeper.wait_for_stderr(&format!("removed pod {pod}"));
    keeper.signal(Signal::TERM);
    let out = keeper.wait().ok();
    assert_eq!(out.stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{out}");
}

#[test]
fn the_service_manager_is_notified() {
    let g = Gantry::new();
    let path = g.scratch().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(gantry_tests::DEADLINE)).unwrap();
    let told = || {
        let mut bytes = [0; 64];
        let count = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let keeper = g.spawn_command(g.daemon(&[]).env("NOTIFY_SOCKET", &path));
    assert_eq!(told(), "READY=1");
    end(keeper, Signal::TERM);
    assert_eq!(told(), "STOPPING=1");
}

#[test]
fn log_lines_have_levels_formats_and_priorities() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut keeper = g.spawn_command(&mut g.daemon(&["--log-level=info,gantryd=debug", "--log-format=json"]));
    keeper.wait_for_stderr("reconciling the pods of");
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--", "exit", "3"]).ok());
    keeper.wait_for_stderr("exited with code 3");
    let out = end(keeper, Signal::TERM);
    let lines: Vec<serde_json::Value> =
        out.stderr.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let exited: Vec<_> =
        lines.iter().filter(|line| line["message"].as_str().is_some_and(|text| text.contains("exited"))).collect();
    assert_eq!(exited.len(), 1, "an event is logged once: {out}");
    assert_eq!((&exited[0]["level"], &exited[0]["span"]["pod"]), (&"INFO".into(), &pod.as_str().into()));
    assert!(lines.iter().any(|line| line["level"] == "DEBUG" && line["span"]["pod"] == *pod), "{out}");

    // A file in place of the journal. The variable alone decides nothing: programs with redirected output inherit it.
    let journal = g.scratch().join("journal");
    let file = std::fs::File::create(&journal).unwrap();
    let found = file.metadata().unwrap();
    let stream = format!("{}:{}", found.dev(), found.ino());
    let mut invalid = g.daemon(&[]);
    invalid.env("GANTRY_LOG", "loud").env("JOURNAL_STREAM", &stream);
    let status = Command::new(invalid.get_program())
        .args(invalid.get_args())
        .env("GANTRY_LOG", "loud")
        .env("JOURNAL_STREAM", &stream)
        .stderr(file)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
    let text = std::fs::read_to_string(&journal).unwrap();
    let levels = "off, error, warning, info, debug and trace";
    assert_eq!(text, format!("<3>error: cannot read GANTRY_LOG: 'loud' is not a level; levels are {levels}\n"));
    let out = g.spawn_command(&mut invalid).wait().exits(1);
    assert!(out.stderr.starts_with("error: cannot read GANTRY_LOG"), "not the journal: {out}");
}
