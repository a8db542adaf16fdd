//! The life cycle of pods: prepare, run, inspect, stop, remove, collect.

use gantry_tests::{Gantry, Signal, app, pod_id, wait_for};
use serde_json::json;

#[test]
fn run_shows_the_output_of_the_app() {
    let g = Gantry::new();
    let out = g.app(&[], &["args", "one", "two words", ""]).ok();
    assert_eq!(out.stdout, "[\"one\",\"two words\",\"\"]\n");
    assert_eq!(out.stderr, "", "run itself prints nothing");
}

#[test]
fn entrypoint_command_and_arguments_combine() {
    let g = Gantry::new();
    let image = g.fixture();
    for (rest, want) in [
        (&[][..], "[\"from\",\"image\"]"),
        (&["--", "args", "mine"], "[\"mine\"]"),
        (&["--exec", "/bin/app", "--", "args", "x"], "[\"x\"]"),
        (&["--exec", "/bin/app-link", "--", "args"], "[]"),
        (&["--exec", "/bin/app-absolute", "--", "args"], "[]"),
        (&["--exec", "/bin/app-hard", "--", "args"], "[]"),
        (&["--exec", "app", "--", "args", "by PATH"], "[\"by PATH\"]"),
        (&["--exec", "/bin/script"], "[\"/bin/script\"]"),
    ] {
        let line = [&["run", "--net=none", image.as_str()], rest].concat();
        assert_eq!(g.run(&line).ok().text(), want, "{rest:?}");
    }
}

#[test]
fn the_exit_code_of_the_app_is_returned() {
    let g = Gantry::new();
    for (verb, code) in [
        (&["true"][..], 0),
        (&["false"], 1),
        (&["exit", "42"], 42),
        (&["exit", "255"], 255),
        (&["raise", "SIGKILL"], 137),
        (&["raise", "SIGTERM"], 143),
        (&["raise", "SIGSEGV"], 139),
    ] {
        let _ = g.app(&[], verb).exits(code);
    }
}

#[test]
fn apps_of_a_pod_share_loopback() {
    let g = Gantry::new();
    let image = g.fixture();
    let out = g.run(&[
        "run",
        "--net=none",
        &image,
        "--name=server",
        "--",
        "serve-http",
        "7000",
        "---",
        &image,
        "--name=client",
        "--",
        "http-get",
        "127.0.0.1",
        "7000",
        "/exit/0",
    ]);
    let _ = out.ok().stdout_contains("hello from gantry-fixture-app: /exit/0");
}

#[test]
fn apps_share_namespaces_but_not_files() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(
        &g.run(&[
            "run",
            "--net=none",
            "--detach",
            &image,
            "--name=one",
            "--",
            "seq",
            "write",
            "/tmp/mine",
            "one",
            "--",
            "ns",
            "--",
            "sleep",
            "forever",
            "---",
            &image,
            "--name=two",
            "--",
            "seq",
            "ns",
            "--",
            "ls",
            "/tmp",
            "--",
            "print",
            "over",
            "--",
            "sleep",
            "forever",
        ])
        .ok(),
    );
    g.wait_log(&pod, "over");
    gantry_tests::wait_for("the namespaces of app one", || {
        g.run(&["logs", &pod, "--app=one"]).ok().stdout.contains("uts").then_some(())
    });
    let of = |name: &str| g.run(&["logs", &pod, "--app", name]).ok().stdout;
    let (one, two) = (of("one"), of("two"));
    let namespace = |log: &str, kind: &str| log.lines().find(|line| line.starts_with(kind)).map(str::to_owned);
    for (kind, shared) in [("net ", true), ("ipc ", true), ("uts ", true), ("mnt ", false)] {
        assert!(namespace(&one, kind).is_some(), "{kind} in\n{one}");
        assert_eq!(namespace(&one, kind) == namespace(&two, kind), shared, "{kind} of\n{one}\n{two}");
    }
    assert!(!two.contains("mine"), "an app sees the files of another:\n{two}");
}

#[test]
fn pod_ends_with_the_first_app_that_fails() {
    let g = Gantry::new();
    let image = g.fixture();
    let out = g.run(&[
        "run",
        "--net=none",
        "--quiet",
        &image,
        "--name=patient",
        "--",
        "sleep",
        "forever",
        "---",
        &image,
        "--name=failing",
        "--",
        "exit",
        "9",
    ]);
    let _ = out.exits(9);
    let pods = g.list();
    assert_eq!((pods[0]["phase"].as_str(), &pods[0]["exit_code"]), (Some("exited"), &json!(9)));
    let status = g.status(pods[0]["id"].as_str().unwrap());
    assert_eq!(app(&status, "failing")["exit_code"], 9);
    assert_eq!(app(&status, "patient")["state"], "exited");
}

#[test]
fn a_successful_app_does_not_end_the_pod() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(
        &g.run(&[
            "run",
            "--net=none",
            "--detach",
            &image,
            "--name=short",
            "--",
            "true",
            "---",
            &image,
            "--name=long",
            "--",
            "obey",
            "SIGTERM",
        ])
        .ok(),
    );
    gantry_tests::wait_for("app short to end", || (app(&g.status(&pod), "short")["state"] == "exited").then_some(()));
    let status = g.status(&pod);
    assert_eq!((status["phase"].as_str(), app(&status, "long")["state"].as_str()), (Some("running"), Some("running")));
    g.wait_log(&pod, "obeying");
    g.run(&["stop", &pod]).succeeded();
    assert_eq!(g.wait_state(&pod, "exited")["exit_code"], 0);
}

#[test]
fn prepare_then_run_prepared() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["prepare", "--net=none", &image, "--name=it", "--", "args", "later"]).ok());
    assert_eq!(g.status(&pod)["phase"], "prepared");
    g.check_invariants();
    assert_eq!(g.run(&["run-prepared", &pod]).ok().stdout, "[\"later\"]\n");
    assert_eq!(g.status(&pod)["phase"], "exited");
    let _ = g.run(&["run-prepared", &pod]).exits(125).stderr_contains(&[&pod[..8], "exited"]);
}

#[test]
fn status_waits_for_the_end() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["obey", "SIGTERM", "5"]);
    g.wait_log(&pod, "obeying");
    let mut waiter = g.spawn(&["status", "--wait", &pod, "-o", "json"]);
    g.run(&["stop", &pod]).succeeded();
    let status = waiter.wait_for_stdout("}");
    assert!(status.contains("exited"), "{status}");
    let _ = waiter.wait().ok();
    assert_eq!(g.status(&pod)["exit_code"], 5);
    let early = g.detached(&[], &["sleep", "forever"]);
    let _ = g.run(&["status", "--wait=50ms", &early]).exits(125).stderr_contains(&["50ms"]);
}

#[test]
fn stop_signals_then_kills() {
    let g = Gantry::new();
    let polite = g.detached(&[], &["obey", "SIGTERM", "3"]);
    let stubborn = g.detached(&[], &["ignore", "SIGTERM"]);
    g.wait_log(&polite, "obeying");
    g.wait_log(&stubborn, "ignoring");
    let _ = g.run(&["stop", &polite]).ok();
    assert_eq!(g.wait_state(&polite, "exited")["exit_code"], 3);
    let _ = g.run(&["stop", "--time=200ms", &stubborn]).ok();
    assert_eq!(g.wait_state(&stubborn, "exited")["exit_code"], 137);
    assert!(g.run(&["logs", &stubborn]).ok().stdout.contains("got SIGTERM"));
}

#[test]
fn stop_uses_the_signal_of_the_image() {
    let g = Gantry::new();
    let layer = gantry_fixtures::Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
    let image = gantry_fixtures::Image::builder()
        .layer(layer)
        .entrypoint(&["/bin/app"])
        .stop_signal("SIGUSR1")
        .build()
        .unwrap();
    let image = g.import("usr1", &image);
    let pod = pod_id(&g.run(&["run", "--net=none", "--detach", &image, "--", "obey", "SIGUSR1", "6"]).ok());
    g.wait_log(&pod, "obeying");
    let _ = g.run(&["stop", &pod]).ok();
    assert_eq!(g.wait_state(&pod, "exited")["exit_code"], 6);
}

#[test]
fn kill_sends_any_signal() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["ignore", "SIGUSR1", "SIGTERM"]);
    g.wait_log(&pod, "ignoring");
    let _ = g.run(&["kill", "-s", "USR1", &pod]).ok();
    g.wait_log(&pod, "got SIGUSR1");
    let _ = g.run(&["kill", &pod]).ok();
    assert_eq!(g.wait_state(&pod, "exited")["exit_code"], 137);
}

#[test]
fn interrupting_the_foreground_stops_the_pod() {
    let g = Gantry::new();
    let image = g.fixture();
    for (signal, code) in [(Signal::INT, 4), (Signal::TERM, 4)] {
        let mut run = g.spawn(&["run", "--net=none", &image, "--", "obey", "SIGTERM", "4"]);
        run.wait_for_stdout("obeying");
        run.signal(signal);
        let _ = run.wait().exits(code);
    }
}

#[test]
fn rm_and_gc_remove_ended_pods() {
    let g = Gantry::new();
    let running = g.detached(&[], &["sleep", "forever"]);
    let _ = g.run(&["rm", &running]).exits(125).stderr_contains(&[&running[..8], "running"]);
    g.app(&[], &["true"]).succeeded();
    let over = g.list().into_iter().find(|pod| pod["phase"] == "exited").unwrap();
    let over = over["id"].as_str().unwrap();
    g.run(&["rm", over]).succeeded();
    assert!(g.list().iter().all(|pod| pod["id"] != over));
    assert!(!g.dir().join("pods").join(over).exists());

    g.app(&[], &["true"]).succeeded();
    let image = g.fixture();
    let prepared = pod_id(&g.run(&["prepare", &image]).ok());
    let before = g.list().len();
    g.run(&["gc", "--dry-run", "--grace-period=0s"]).succeeded();
    assert_eq!(g.list().len(), before, "a dry run changes nothing");
    g.run(&["gc", "--grace-period=24h"]).succeeded();
    g.run(&["gc", "--grace-period=0s"]).succeeded();
    let left: Vec<_> = g.list().iter().map(|pod| pod["id"].as_str().unwrap().to_owned()).collect();
    assert!(left.contains(&running) && left.contains(&prepared) && left.len() == 2, "{left:?}");
    g.run(&["gc", "--grace-period=0s", "--expire-prepared=0s"]).succeeded();
    g.run(&["gc", "--grace-period=0s", "--expire-prepared=0s"]).succeeded();
    assert_eq!(g.list().len(), 1);
    g.check_invariants();
}

#[test]
fn rm_force_removes_a_running_pod() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["ignore", "SIGTERM"]);
    g.run(&["rm", "--force", &pod]).succeeded();
    assert!(g.list().is_empty());
    g.check_invariants();
}

#[test]
fn run_rm_leaves_no_pod() {
    let g = Gantry::new();
    let _ = g.app(&["--rm"], &["exit", "8"]).exits(8);
    assert!(g.list().is_empty());
}

#[test]
fn ids_may_be_shortened() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    assert_eq!(g.status(&pod[..8])["id"], pod.as_str());
    assert_eq!(g.status(&pod[..8].to_uppercase())["id"], pod.as_str());
}

#[test]
fn list_and_inspect_agree() {
    let g = Gantry::new();
    let pod = g.detached(&["--name", "only"], &["sleep", "forever"]);
    let listed = g.list().into_iter().find(|row| row["id"] == pod.as_str()).unwrap();
    let status = g.status(&pod);
    for field in ["id", "phase", "net", "created", "started"] {
        assert!(!listed[field].is_null(), "{field} of {listed}");
        assert_eq!(listed[field], status[field], "{field}");
    }
    let app = app(&listed, "only");
    assert_eq!((app["state"].as_str(), app["image_id"].as_str()), (Some("running"), Some(g.fixture().as_str())));
    let table = g.run(&["list"]).ok().stdout;
    assert!(table.lines().count() == 2 && table.contains(&pod[..8]) && table.contains("only"), "{table}");
    assert!(g.run(&["inspect", &pod]).ok().json().to_string().contains(&pod));
    assert!(g.run(&["cat-manifest", &pod]).ok().json().to_string().contains("only"));
    assert!(g.run(&["list", "--no-legend"]).ok().stdout.lines().count() == 1);
    for alias in ["ps", "ls"] {
        assert!(g.run(&[alias]).ok().stdout.contains(&pod[..8]), "{alias}");
    }
}

#[test]
fn pods_are_created_from_manifests() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["prepare", "--net=none", &image, "--name=m", "--", "args", "again"]).ok());
    let manifest = g.scratch().join("pod.json");
    std::fs::write(&manifest, g.run(&["cat-manifest", &pod]).ok().stdout).unwrap();
    let out = g.run(&["run", "--pod-manifest", manifest.to_str().unwrap()]).ok();
    assert_eq!(out.stdout, "[\"again\"]\n");
    let out = g.run_with_input(&["run", "--pod-manifest=-"], &std::fs::read(&manifest).unwrap()).ok();
    assert_eq!(out.stdout, "[\"again\"]\n");
}

#[test]
fn uuid_file_is_written() {
    let g = Gantry::new();
    let file = g.scratch().join("uuid");
    let flag = format!("--uuid-file-save={}", file.display());
    g.app(&[&flag], &["true"]).succeeded();
    let id = std::fs::read_to_string(&file).unwrap();
    assert_eq!(g.status(id.trim())["phase"], "exited");
}

#[test]
fn a_cidfile_that_exists_is_refused() {
    let g = Gantry::new();
    let file = g.scratch().join("cid");
    let flag = format!("--cidfile={}", file.display());
    g.app(&[&flag], &["true"]).succeeded();
    let id = std::fs::read_to_string(&file).unwrap();
    assert_eq!(g.status(&id)["phase"], "exited");
    let _ = g.app(&[&flag], &["true"]).exits(125).stderr_contains(&["--cidfile exists"]);
    assert_eq!((g.list().len(), std::fs::read_to_string(&file).unwrap()), (1, id));
}

#[test]
fn a_failed_start_leaves_no_cidfile() {
    let g = Gantry::new();
    let file = g.scratch().join("cid");
    let (flag, image) = (format!("--cidfile={}", file.display()), g.fixture());
    for _ in 0..2 {
        let _ = g.run(&["run", "--net=none", &flag, &image, "--exec=/no/such", "--"]).exits(127);
        assert!(!file.exists(), "the next identical command is refused");
    }
    g.check_invariants();
}

#[test]
fn many_pods_run_concurrently() {
    let g = Gantry::new();
    let image = g.fixture();
    let all: Vec<_> =
        (0..8).map(|i| g.spawn(&["run", "--net=none", &image, "--", "exit", &format!("{}", 10 + i)])).collect();
    for (i, run) in (10..).zip(all) {
        let _ = run.wait().exits(i);
    }
    let codes: std::collections::BTreeSet<i64> = g.list().iter().filter_map(|pod| pod["exit_code"].as_i64()).collect();
    assert_eq!(codes, (10..18).collect());
}

#[test]
fn version_and_doctor() {
    let g = Gantry::new();
    assert!(g.run(&["version"]).ok().stdout.starts_with("gantry"));
    let _ = g.run(&["doctor"]).ok();
}

/// A pod with `--rm` outlives the command that ran it: the next command removes it.
#[test]
fn detached_pods_are_removed_at_their_end() {
    let g = Gantry::new();
    let pod = g.detached(&["--rm"], &["obey", "USR1"]);
    assert_eq!(g.status(&pod)["phase"], "running");
    g.wait_log(&pod, "obeying");
    assert_eq!(g.run(&["kill", "--signal=USR1", &pod]).ok().text(), pod);
    wait_for("the pod to be removed", || g.list().iter().all(|pod| pod["phase"] != "running").then_some(()));
    wait_for("the pod to be gone", || g.list().is_empty().then_some(()));
    let _ = g.run(&["status", &pod]).exits(1);
    assert!(!g.dir().join("pods").join(&pod).exists());

    let stopped = g.detached(&["--rm"], &["sleep", "forever"]);
    assert_eq!(g.run(&["stop", "--force", &stopped]).ok().text(), stopped);
    assert!(g.list().is_empty());

    let image = g.fixture();
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "sleep", "forever"]).ok());
    g.run(&["run-prepared", "--detach", "--rm", &prepared]).succeeded();
    g.run(&["rm", "--force", &prepared]).succeeded();
    assert!(g.list().is_empty());
}

/// Only one of the commands that wait removes the pod.
#[test]
fn every_waiter_gets_the_exit_code() {
    let g = Gantry::new();
    for round in 0..3 {
        let pod = g.detached(&["--rm"], &["obey", "SIGTERM", "7"]);
        g.wait_log(&pod, "obeying");
        let waits: Vec<_> = (0..4).map(|_| g.spawn(&["wait", &pod])).collect();
        let status = ["status", "--wait", &pod, "-o", "json"];
        let statuses: Vec<_> = (0..4).map(|_| g.spawn(&status)).collect();
        let attached = g.spawn(&["attach", &pod]);
        for waiter in waits.iter().chain(&statuses).chain([&attached]) {
            wait_for("the command to wait", || holds_open(waiter.pid(), &format!("{pod}/journal")).then_some(()));
        }
        g.run(&["kill", "--signal=TERM", &pod]).succeeded();
        for wait in waits {
            assert_eq!(wait.wait().ok().text(), "7", "round {round}");
        }
        for status in statuses {
            let status = status.wait().ok().json();
            let shown = (&status["phase"], &status["exit_code"], &status["apps"][0]["exit_code"]);
            assert_eq!(shown, (&"exited".into(), &7.into(), &7.into()), "round {round}: {status}");
        }
        let _ = attached.wait().exits(7);
        assert!(g.list().is_empty());
    }
}

/// The second pod ends and is removed while the first one is waited for.
#[test]
fn all_pods_are_seen_before_waiting() {
    let g = Gantry::new();
    let [first, second] = ["7", "8"].map(|code| g.detached(&["--rm"], &["obey", "SIGTERM", code]));
    [&first, &second].into_iter().for_each(|pod| drop(g.wait_log(pod, "obeying")));
    let wait = g.spawn(&["wait", &first, &second]);
    let status = g.spawn(&["status", "--wait", &first, &second, "-o", "json"]);
    for waiter in [&wait, &status] {
        wait_for("the command to wait", || holds_open(waiter.pid(), &format!("{second}/journal")).then_some(()));
    }
    g.run(&["rm", "--force", &second]).succeeded();
    g.run(&["kill", "--signal=TERM", &first]).succeeded();
    assert_eq!(wait.wait().ok().text(), "7\n8");
    let status = status.wait().ok().json();
    let codes = [0, 1].map(|at| (status[at]["exit_code"].clone(), status[at]["apps"][0]["exit_code"].clone()));
    assert_eq!(codes, [(7.into(), 7.into()), (8.into(), 8.into())], "{status}");
}

/// A pod that another command removes has its end in its event.
#[test]
fn status_shows_the_end_of_removed_pods() {
    let g = Gantry::new();
    let pod = g.detached(&["--rm"], &["obey", "SIGTERM", "7"]);
    g.wait_log(&pod, "obeying");
    let waiter = g.spawn(&["status", "--wait-ready", "--wait", &pod]);
    wait_for("the command to wait", || holds_open(waiter.pid(), &format!("{pod}/journal")).then_some(()));
    g.run(&["rm", "--force", &pod]).succeeded();
    let _ = waiter.wait().ok().stdout_contains("state=exited").stdout_contains("exit-code=7\nreason=stopped");
}

/// Whether a process has a file open whose path ends so.
fn holds_open(pid: u32, path: &str) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let targets = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    targets.into_iter().any(|target| target.to_string_lossy().ends_with(path))
}

/// The command that runs it is killed: the pod keeps running, and is removed at its end.
#[test]
fn a_pod_with_rm_outlives_its_killed_command() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut run = g.spawn(&["run", "--net=none", "--quiet", "--rm", &image, "--", "obey", "USR1"]);
    run.wait_for_stdout("obeying");
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    run.signal(Signal::KILL);
    let _ = run.wait().exits(137);
    assert_eq!(g.status(&pod)["phase"], "running");
    g.run(&["kill", "--signal=USR1", &pod]).succeeded();
    wait_for("the pod to be gone", || g.list().is_empty().then_some(()));
}

/// gantryd notices by itself.
#[test]
fn gantryd_removes_a_detached_pod() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let pod = g.detached(&["--rm"], &["obey", "USR1"]);
    g.wait_log(&pod, "obeying");
    g.run(&["kill", "--signal=USR1", &pod]).succeeded();
    let dir = g.dir().join("pods").join(&pod);
    wait_for("the pod's directory to be removed", || (!dir.exists()).then_some(()));
    keeper.terminate();
    assert!(g.list().is_empty());
}

/// The command arrives at the very moment in which the pod ends.
#[test]
fn signalling_an_ending_pod_fails_clearly() {
    let g = Gantry::new();
    for _ in 0..10 {
        let pod = g.detached(&[], &["true"]);
        let out = g.run(&["kill", &pod]);
        if out.code != 0 {
            let out = out.exits(125);
            assert!(["only a running pod", "no app runs"].iter().any(|text| out.stderr.contains(text)), "{out}");
        }
    }
}
