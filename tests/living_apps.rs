//! Apps of running pods: the life of each, kills of the command in between, and what other commands show.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use gantry_tests::{Gantry, Out, Signal, Space, app, pod_id, wait_for};
use rustix::process::{Pid, kill_process};
use serde_json::{Value, json};

const FAILED: i32 = 125;

/// Starts a sandbox and returns the pod's id.
#[track_caller]
fn sandbox(g: &Gantry, flags: &[&str]) -> String {
    pod_id(&g.run(&[&["app", "sandbox", "--net=none"], flags].concat()).ok())
}

/// The command line that adds an app of the standard image.
fn add_line<'a>(pod: &'a str, image: &'a str, flags: &[&'a str], verb: &[&'a str]) -> Vec<&'a str> {
    [&["app", "add", pod, image], flags, &["--"], verb].concat()
}

#[track_caller]
fn add(g: &Gantry, pod: &str, flags: &[&str], verb: &[&str]) -> Out {
    let image = g.fixture();
    g.run(&add_line(pod, &image, flags, verb))
}

/// Adds and starts an app; returns `POD/NAME`.
#[track_caller]
fn start(g: &Gantry, pod: &str, name: &str, verb: &[&str]) -> String {
    add(g, pod, &["--name", name], verb).succeeded();
    let app = format!("{pod}/{name}");
    g.run(&["app", "start", &app]).succeeded();
    app
}

#[track_caller]
fn state(g: &Gantry, app: &str) -> Value {
    g.json(&["app", "status", app])
}

#[track_caller]
fn wait_app(g: &Gantry, app: &str, wanted: &str) -> Value {
    wait_for(&format!("app {app} to be {wanted}"), || Some(state(g, app)).filter(|app| app["state"] == wanted))
}

/// The types of the events of an app.
#[track_caller]
fn events(g: &Gantry, pod: &str, name: &str) -> Vec<String> {
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=pod={pod}")]).ok();
    let events = out.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
    let of_app = events.filter(|event| event["name"] == name);
    of_app.map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect()
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.unwrap_or_else(|| panic!("no such process id")), signal)
        .unwrap_or_else(|error| panic!("cannot send a signal: {error}"));
}

#[test]
fn an_app_lives_in_a_sandbox() {
    let g = Gantry::new();
    let pod = sandbox(&g, &["--hostname=box"]);
    let status = g.status(&pod);
    assert_eq!((&status["phase"], &status["sandbox"], &status["apps"]), (&json!("running"), &json!(true), &json!([])));
    assert_eq!(add(&g, &pod, &["--name=web"], &["seq", "print", "hello", "--", "exit", "7"]).ok().text(), "web");
    let app = format!("{pod}/web");
    assert_eq!(state(&g, &app)["state"], "created");
    assert!(state(&g, &app)["added"].is_string() && state(&g, &app)["attempt"].is_null());
    for attempt in 0..3 {
        let command: &[&str] = if attempt == 2 { &["restart"] } else { &["app", "start"] };
        assert_eq!(g.run(&[command, &[app.as_str()]].concat()).ok().text(), app);
        let ended = wait_app(&g, &app, "exited");
        assert_eq!((&ended["exit_code"], &ended["attempt"]), (&json!(7), &json!(attempt)), "{ended}");
    }
    assert_eq!(g.run(&["logs", &pod, "--app=web"]).ok().stdout, "hello\n".repeat(3), "one log per attempt");
    assert_eq!(g.run(&["logs", &format!("{pod}/web")]).ok().stdout, "hello\n".repeat(3));
    assert_eq!(g.status(&pod)["phase"], "running", "a failed app does not end a sandbox");
    g.check_invariants();
    g.run(&["app", "rm", &app]).succeeded();
    assert_eq!(g.run(&["app", "list", "-q", &pod]).ok().text(), "");
    let want: Vec<&str> = [&["app-created"][..], &["app-started", "app-exited"].repeat(3), &["app-removed"]].concat();
    assert_eq!(events(&g, &pod, "web"), want);
    // The name is free again, and the new app has nothing of the old one.
    start(&g, &pod, "web", &["sleep", "forever"]);
    assert_eq!(state(&g, &app)["attempt"], 0);
    assert_eq!(g.run(&["logs", &pod, "--app=web"]).ok().stdout, "");
    g.run(&["stop", &pod]).succeeded();
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&status["exit_code"], &status["reason"]), (&json!(0), &json!("stopped")), "{status}");
    assert_eq!(crate::app(&status, "web")["exit_code"], 143);
}

#[test]
fn refused_apps_leave_nothing() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    start(&g, &pod, "one", &["sleep", "forever"]);
    let _ = add(&g, &pod, &["--name=one"], &["true"]).exits(FAILED).stderr_contains(&["already has an app 'one'"]);
    let _ = add(&g, &pod, &["--name=two", "--exec=/no/such"], &["true"]).exits(127);
    let _ = add(&g, &pod, &["--name=two", "--user=nobody-here"], &["true"]).exits(FAILED);
    let _ = add(&g, &pod, &["--name=two", "--mount", "volume=none,target=/x"], &["true"]).exits(FAILED);
    let _ =
        add(&g, &pod, &["--name=two", "--net=host"], &["true"]).exits(FAILED).stderr_contains(&["--net", "app add"]);
    let _ = add(&g, "no-such-pod", &["--name=two"], &["true"]).exits(FAILED);
    let _ = g.run(&["app", "add", &pod]).exits(FAILED).stderr_contains(&["the image is missing"]);
    let _ = g.run(&["app", "sandbox", "image"]).exits(FAILED).stderr_contains(&["without apps"]);
    let _ = g.run(&["app", "start", &format!("{pod}/two")]).exits(1).stderr_contains(&["no app 'two'"]);
    let _ = g.run(&["app", "rm", &format!("{pod}/one")]).exits(FAILED).stderr_contains(&["is running"]);
    assert_eq!(g.run(&["app", "list", "-q", &pod]).ok().text(), "one");
    g.check_invariants();
    // The image is in use until the last app of it is removed.
    let image = g.fixture();
    let _ = g.run(&["image", "rm", &image]).exits(FAILED);
    g.run(&["app", "rm", "--force", &pod, "--app=one"]).succeeded();
    g.run(&["image", "rm", &image]).succeeded();
    let _ = g.run(&["app", "add", &pod, &image, "--", "true"]).exits(FAILED);
}

#[test]
fn force_removes_the_last_app() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = g.detached(&["--name=only"], &["sleep", "forever"]);
    g.run(&["app", "rm", "--force", &format!("{pod}/only")]).succeeded();
    let status = g.wait_state(&pod, "exited");
    assert_eq!(status["apps"].as_array().map(Vec::len), Some(0), "{status}");
    let removed = g.run(&["run", "-d", "--rm", "--net=none", "--pod-name=gone", &image, "--", "sleep", "forever"]);
    removed.succeeded();
    let name = g.status("gone")["apps"][0]["name"].as_str().unwrap().to_owned();
    g.run(&["app", "rm", "--force", &format!("gone/{name}")]).succeeded();
    wait_for("the pod to be removed", || (g.list().len() == 1).then_some(()));
    g.check_invariants();
}

#[test]
fn apps_are_stopped_with_grace_and_restarted() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let polite = start(&g, &pod, "polite", &["obey", "SIGTERM", "5"]);
    let stubborn = start(&g, &pod, "stubborn", &["ignore", "SIGTERM"]);
    g.wait_log(&pod, "obeying");
    g.wait_log(&pod, "ignoring");
    g.run(&["app", "start", &polite]).succeeded();
    assert_eq!(state(&g, &polite)["attempt"], 0, "starting an app that runs changes nothing");
    g.run(&["app", "stop", &polite]).succeeded();
    assert_eq!(state(&g, &polite)["exit_code"], 5);
    g.run(&["app", "stop", "--time=0", &stubborn]).succeeded();
    assert_eq!(state(&g, &stubborn)["exit_code"], 137);
    g.run(&["app", "stop", &stubborn, &polite]).succeeded();
    g.run(&["restart", &pod, "--force"]).succeeded();
    for app in [&polite, &stubborn] {
        assert_eq!((&state(&g, app)["state"], &state(&g, app)["attempt"]), (&json!("running"), &json!(1)));
    }
    g.run(&["restart", "--force", &stubborn]).succeeded();
    assert_eq!(state(&g, &stubborn)["attempt"], 2);
    assert_eq!(g.status(&pod)["phase"], "running");
    g.check_invariants();
}

#[test]
fn an_app_starts_after_its_cgroup_was_removed() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let app = start(&g, &pod, "once", &["true"]);
    wait_app(&g, &app, "exited");
    let cgroups = g.cgroups(&pod);
    assert!(cgroups.iter().any(|cgroup| std::fs::remove_dir(cgroup.join("once")).is_ok()), "{cgroups:?}");
    g.run(&["app", "start", &app]).succeeded();
    wait_app(&g, &app, "exited");
    assert_eq!(state(&g, &app)["attempt"], 1);
    g.run(&["app", "rm", &app]).succeeded();
}

#[test]
fn an_added_app_may_have_a_large_environment() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let variables: String = (0..4000).map(|n| format!("SERVICE_{n}={}\n", "x".repeat(60))).collect();
    let file = g.write("variables", &variables);
    add(&g, &pod, &["--name=large", "--env-file", &file], &["env"]).succeeded();
    let app = format!("{pod}/large");
    g.run(&["app", "start", &app]).succeeded();
    wait_app(&g, &app, "exited");
    let log = g.run(&["logs", &app]).ok().stdout;
    assert_eq!(log.lines().filter(|line| line.starts_with("SERVICE_")).count(), 4000);
}

#[test]
fn every_command_reaches_an_added_app() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let app = start(&g, &pod, "it", &["seq", "print", "up", "--", "sleep", "forever"]);
    g.wait_log(&pod, "up");
    assert_eq!(g.run(&["exec", &pod, "--app=it", "--", "/bin/app", "args", "x"]).ok().text(), "[\"x\"]");
    let manifest = g.run(&["cat-manifest", &pod]).ok().json();
    assert_eq!((&manifest["sandbox"], &manifest["apps"][0]["name"]), (&json!(true), &json!("it")), "{manifest}");
    assert_eq!(g.json(&["inspect", &pod])["plan"]["apps"][0]["name"], "it");
    let _ = g.run(&["app", "list", &pod]).ok().stdout_contains("running");
    let _ = g.run(&["list"]).ok().stdout_contains("it");
    let _ = g.run(&["app", "status", "it"]).ok().stdout_contains("state=running");
    g.run(&["kill", &pod, "--app=it", "--signal=SIGTERM"]).succeeded();
    assert_eq!(wait_app(&g, &app, "exited")["exit_code"], 143);
    let _ = g.run(&["exec", &pod, "--app=it", "--", "/bin/app", "true"]).exits(FAILED);
}

#[test]
fn an_added_app_brings_its_volumes_along() {
    let g = Gantry::new();
    let host = g.scratch().join("host");
    std::fs::create_dir_all(&host).unwrap();
    std::fs::write(host.join("file"), "from the host\n").unwrap();
    let pod = sandbox(&g, &["--volume=shared,kind=empty"]);
    let bind = format!("--volume={}:/host", host.display());
    let mounts = [bind.as_str(), "--volume=data:/data", "--volume=/own", "--mount=volume=shared,target=/shared"];
    let line = ["cat", "/host/file", "--", "write", "/data/x", "x", "--", "write", "/shared/y", "y", "--", "write"];
    for name in ["a", "b"] {
        let flags = [&["--name", name], &mounts[..]].concat();
        add(&g, &pod, &flags, &[&["seq"], &line[..], &["/own/z", "z"]].concat()).succeeded();
        g.run(&["app", "start", &pod, "--app", name]).succeeded();
        let ended = wait_app(&g, &format!("{pod}/{name}"), "exited");
        assert_eq!(ended["exit_code"], 0, "{ended}");
    }
    let _ = g.run(&["logs", &pod, "--app=b"]).ok().stdout_contains("from the host");
    let _ = g.run(&["volume", "rm", "data"]).exits(FAILED);
    g.run(&["app", "rm", &format!("{pod}/a"), &format!("{pod}/b")]).succeeded();
    g.check_invariants();
    start(&g, &pod, "reader", &["true"]);
}

#[test]
fn an_app_can_be_added_to_any_pod() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=main"], &["obey", "SIGTERM"]);
    g.wait_log(&pod, "obeying");
    let debug = start(&g, &pod, "debug", &["sleep", "forever"]);
    g.run(&["app", "stop", &debug]).succeeded();
    assert_eq!(g.status(&pod)["phase"], "running", "an app that was stopped on request has not failed");
    g.run(&["restart", &format!("{pod}/main")]).succeeded();
    assert_eq!(app(&g.status(&pod), "main")["attempt"], 1);
    g.check_invariants();
    g.wait_log(&pod, "obeying");
    g.run(&["app", "stop", &format!("{pod}/main")]).succeeded();
    let status = g.wait_state(&pod, "exited");
    assert_eq!(status["exit_code"], 0, "{status}");
}

#[test]
fn a_killed_supervisor_ends_a_sandbox() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    start(&g, &pod, "runs", &["sleep", "forever"]);
    add(&g, &pod, &["--name=created"], &["true"]).succeeded();
    signal(g.supervisor(&pod), Signal::KILL);
    let status = g.wait_state(&pod, "exited");
    assert_eq!(status["exit_code"], 137, "{status}");
    assert_eq!(app(&status, "runs")["exit_code"], 137);
    assert_eq!(app(&status, "created")["state"], "created");
    g.check_invariants();
    let _ = g.run(&["app", "start", &format!("{pod}/created")]).exits(FAILED).stderr_contains(&["exited"]);
}

/// Runs a command again and again, each time killed a little later, and calls `check` after each.
fn kill_at_each_step(g: &Gantry, steps: u32, line: impl Fn() -> Vec<String>, mut check: impl FnMut(u32)) {
    let words = line();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let whole = g.run(&words).ok().duration;
    check(0);
    for step in 1..=steps {
        let words = line();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let command = g.spawn(&words);
        command.kill_after(whole * step / steps);
        check(step);
    }
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn add_survives_kills_at_any_point() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let image = g.fixture();
    let line = || words(&add_line(&pod, &image, &["--name=it"], &["sleep", "forever"]));
    kill_at_each_step(&g, 20, line, |step| {
        // The supervisor may still be creating it.
        let app = format!("{pod}/it");
        let listed = wait_for("the app to be created or not", || {
            let listed = g.json(&["app", "list", &pod]);
            listed.as_array().is_none_or(|apps| apps.iter().all(|app| app["state"] != "creating")).then_some(listed)
        });
        match listed.as_array().map_or(0, Vec::len) {
            0 => {}
            _ => {
                assert_eq!(state(&g, &app)["state"], "created", "step {step}");
                g.run(&["app", "start", &app]).succeeded();
                g.run(&["app", "rm", "--force", &app]).succeeded();
            }
        }
        add(&g, &pod, &["--name=it"], &["true"]).succeeded();
        g.run(&["app", "rm", &app]).succeeded();
        g.check_invariants();
    });
}

#[test]
fn one_command_adds_and_starts() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let app = format!("{pod}/it");
    assert_eq!(add(&g, &pod, &["--name=it", "--start"], &["sleep", "forever"]).ok().text(), "it");
    let seen = state(&g, &app);
    assert_eq!((&seen["state"], &seen["attempt"]), (&json!("running"), &json!(0)), "{seen}");
    assert_eq!(events(&g, &pod, "it"), ["app-created", "app-started"]);
    let _ = add(&g, &pod, &["--name=it", "--start"], &["true"]).exits(FAILED).stderr_contains(&["already has an app"]);
    // Nothing is left of an app that cannot be added.
    let _ = add(&g, &pod, &["--name=two", "--start", "--exec=/no/such"], &["true"]).exits(127);
    assert_eq!(g.run(&["app", "list", "-q", &pod]).ok().text(), "it");
    let _ = g.run(&["run", "--start", "image"]).exits(FAILED).stderr_contains(&["--start is not a flag of"]);
    g.check_invariants();
}

#[test]
fn app_stays_created_when_its_start_fails() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    std::fs::write(g.scratch().join("program"), "no program").unwrap();
    std::fs::set_permissions(g.scratch().join("program"), Permissions::from_mode(0o755)).unwrap();
    let volume = format!("--volume=v,kind=host,source={}", g.scratch().display());
    let flags = ["--name=it", "--start", &volume, "--mount=volume=v,target=/m", "--exec=/m/program"];
    let _ = add(&g, &pod, &flags, &[]).exits(126).stderr_contains(&["/m/program"]);
    assert_eq!(state(&g, &format!("{pod}/it"))["state"], "created");
    assert_eq!(events(&g, &pod, "it"), ["app-created"]);
    g.run(&["app", "rm", &format!("{pod}/it")]).succeeded();
    g.check_invariants();
}

#[test]
fn add_with_start_survives_kills() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let image = g.fixture();
    let app = format!("{pod}/it");
    let line = || words(&add_line(&pod, &image, &["--name=it", "--start"], &["sleep", "forever"]));
    kill_at_each_step(&g, 20, line, |step| {
        // The supervisor may still be creating it or starting it.
        let listed = wait_for("the app to be created or not", || {
            let listed = g.json(&["app", "list", &pod]);
            listed.as_array().is_none_or(|apps| apps.iter().all(|app| app["state"] != "creating")).then_some(listed)
        });
        if listed.as_array().is_some_and(|apps| !apps.is_empty()) {
            // Added or started; a start completes either.
            g.run(&["app", "start", &app]).succeeded();
            let seen = state(&g, &app);
            assert_eq!((&seen["state"], &seen["attempt"]), (&json!("running"), &json!(0)), "step {step}: {seen}");
            g.run(&["app", "rm", "--force", &app]).succeeded();
        }
        g.check_invariants();
    });
}

#[test]
fn starts_and_stops_survive_kills_at_any_point() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let app = start(&g, &pod, "it", &["obey", "SIGTERM"]);
    let mut last = 0;
    for verb in [&["restart"][..], &["app", "stop"], &["app", "start"]] {
        let line = || words(&[verb, &[app.as_str()]].concat());
        kill_at_each_step(&g, 10, line, |step| {
            let seen = wait_for("a state", || {
                let seen = state(&g, &app);
                ["running", "exited"].iter().any(|known| seen["state"] == *known).then_some(seen)
            });
            let attempt = seen["attempt"].as_u64().unwrap_or_default();
            assert!(attempt >= last, "step {step}: {seen}");
            last = attempt;
            g.run(&["app", "start", &app]).succeeded();
            let expected = if verb.contains(&"start") { "stop" } else { "start" };
            g.run(&["app", expected, &app]).succeeded();
        });
    }
    // The last step may have started another attempt.
    let last = state(&g, &app)["attempt"].as_u64().unwrap_or_default();
    let told = events(&g, &pod, "it");
    let count = |kind: &str| told.iter().filter(|told| *told == kind).count();
    g.run(&["app", "stop", &app]).succeeded();
    let starts = count("app-started");
    assert_eq!(starts as u64, last + 1, "each attempt is reported once: {told:?}");
    assert!(starts - count("app-exited") <= 1, "{told:?}");
    g.check_invariants();
}

#[test]
fn rm_survives_kills_at_any_point() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let image = g.fixture();
    let app = format!("{pod}/it");
    let line = || {
        if g.run(&["app", "list", "-q", &pod]).ok().text().is_empty() {
            g.run(&add_line(&pod, &image, &["--name=it"], &["sleep", "forever"])).succeeded();
        }
        words(&["app", "rm", &app])
    };
    kill_at_each_step(&g, 12, line, |_| {
        let listed = g.json(&["app", "list", &pod]);
        assert!(listed.as_array().is_some_and(|apps| apps.iter().all(|app| app["state"] == "created")), "{listed}");
        g.check_invariants();
    });
}

#[test]
fn an_abandoned_add_is_completed_or_undone() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let image = g.fixture();
    let supervisor = g.supervisor(&pod);
    signal(supervisor, Signal::STOP);
    let adding = g.spawn(&add_line(&pod, &image, &["--name=late"], &["true"]));
    // `list` must not wait for the supervisor while the command lives.
    wait_for("the app's row", || {
        let pods = g.list();
        pods[0]["apps"].as_array().is_some_and(|apps| apps.iter().any(|app| app["state"] == "creating")).then_some(())
    });
    adding.signal(Signal::KILL);
    let _ = adding.wait();
    signal(supervisor, Signal::CONT);
    wait_for("the app to be created or removed", || {
        let listed = g.json(&["app", "list", &pod]);
        listed.as_array().is_some_and(|apps| apps.iter().all(|app| app["state"] != "creating")).then_some(())
    });
    if !g.run(&["app", "list", "-q", &pod]).ok().text().is_empty() {
        g.run(&["app", "rm", &format!("{pod}/late")]).succeeded();
    }
    start(&g, &pod, "late", &["sleep", "forever"]);
    g.check_invariants();
}

#[test]
fn requests_to_stopped_supervisors_fail_early() {
    const SOON: Duration = Duration::from_secs(15);
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let image = g.fixture();
    let app = start(&g, &pod, "first", &["sleep", "forever"]);
    let supervisor = g.supervisor(&pod);
    signal(supervisor, Signal::STOP);
    let stopped = format!("it is stopped (SIGSTOP, or a debugger): continue it with 'kill -CONT {supervisor}'");
    let lines = [
        add_line(&pod, &image, &["--name=late"], &["sleep", "forever"]),
        vec!["restart", "-t=60", &app],
        vec!["app", "stop", "-t=60", &app],
        vec!["update", "--pids-limit=50", &app],
        vec!["exec", &app, "--", "/bin/app", "print", "here"],
        vec!["pause", &app],
    ];
    let failing: Vec<_> = lines.iter().map(|line| g.spawn(line)).collect();
    for command in failing {
        let out = command.wait().exits(FAILED).stderr_contains(&[&pod, &stopped]);
        assert!(out.duration < SOON, "{out}");
    }
    // The row of the app that is added. Nothing waits for the supervisor.
    let listed = g.run(&["list"]).ok();
    assert!(listed.duration < SOON / 3, "{listed}");
    signal(supervisor, Signal::CONT);
    wait_for("the app to be created or removed", || {
        let listed = g.json(&["app", "list", &pod]);
        listed.as_array().is_some_and(|apps| apps.iter().all(|app| app["state"] != "creating")).then_some(())
    });
    // The order of the requests that it still executes is that of the commands.
    g.run(&["unpause", &app]).succeeded();
    g.run(&["app", "stop", "-t=0", &app]).succeeded();
    g.run(&["app", "start", &app]).succeeded();
    assert_eq!(g.run(&["exec", &app, "--", "/bin/app", "print", "here"]).ok().stdout, "here\n");
    if g.run(&["app", "list", "-q", &pod]).ok().stdout.contains("late") {
        g.run(&["app", "rm", &format!("{pod}/late")]).succeeded();
    }
    start(&g, &pod, "late", &["sleep", "forever"]);
    g.check_invariants();
}

#[test]
fn parallel_changes_end_with_the_pod() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let image = g.fixture();
    let names: Vec<String> = (0..6).map(|n| format!("app-{n}")).collect();
    let adding: Vec<_> =
        names.iter().map(|name| g.spawn(&add_line(&pod, &image, &["--name", name], &["sleep", "forever"]))).collect();
    let _added: Vec<_> = adding.into_iter().map(|adding| adding.wait().exits(0)).collect();
    let apps: Vec<String> = names.iter().map(|name| format!("{pod}/{name}")).collect();
    let starting: Vec<_> = apps.iter().chain(&apps).map(|app| g.spawn(&["app", "start", app])).collect();
    let _started: Vec<_> = starting.into_iter().map(|starting| starting.wait().exits(0)).collect();
    let listed = g.json(&["app", "list", &pod]);
    let running = listed.as_array().map(|apps| apps.iter().filter(|app| app["state"] == "running").count());
    assert_eq!(running, Some(names.len()), "{listed}");
    g.check_invariants();
    let changing: Vec<_> = apps
        .iter()
        .enumerate()
        .map(|(n, app)| match n % 3 {
            0 => g.spawn(&["app", "rm", "--force", app]),
            1 => g.spawn(&["restart", app]),
            _ => g.spawn(&["app", "stop", app]),
        })
        .collect();
    let late: Vec<_> = ["x", "y"].map(|name| g.spawn(&add_line(&pod, &image, &["--name", name], &["true"]))).into();
    g.run(&["stop", &pod]).succeeded();
    for command in changing.into_iter().chain(late) {
        let out = command.wait();
        assert!(matches!(out.code, 0 | 1 | FAILED), "{out:?}");
    }
    let status = g.wait_state(&pod, "exited");
    let states = status["apps"].as_array().cloned().unwrap_or_default();
    let is_final = |app: &Value| app["state"] == "exited" || app["state"] == "created";
    assert!(states.iter().all(is_final), "{status}");
}

/// An app that may trace other processes is frozen while a process is made beside it, and runs again afterwards; the
/// creations of several such apps wait for each other.
#[test]
fn tracers_are_restarted_side_by_side() {
    let g = Gantry::new();
    let pod = sandbox(&g, &[]);
    let image = g.fixture();
    let apps: Vec<String> = (0..3).map(|n| format!("{pod}/tracer-{n}")).collect();
    for (n, app) in apps.iter().enumerate() {
        let name = format!("--name=tracer-{n}");
        add(&g, &pod, &[&name, "--cap-add=SYS_PTRACE", "--pids-limit=0"], &["sleep", "forever"]).succeeded();
        g.run(&["app", "start", app]).succeeded();
    }
    for round in 0..4 {
        let name = format!("plain-{round}");
        let restarting: Vec<_> = apps.iter().map(|app| g.spawn(&["restart", app, "--time=0"])).collect();
        let adding = g.spawn(&add_line(&pod, &image, &["--name", &name], &["sleep", "forever"]));
        for command in restarting.into_iter().chain([adding]) {
            let _done = command.wait().exits(0);
        }
    }
    for app in &apps {
        assert_eq!(state(&g, app)["attempt"], 4, "{app}");
        let name = app.rsplit('/').next().unwrap_or_default();
        g.run(&["exec", &pod, "--app", name, "/bin/app", "true"]).succeeded();
    }
    g.check_invariants();
    g.run(&["stop", "--force", &pod]).succeeded();
}

#[test]
fn added_apps_share_the_network_of_their_pod() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    let image = g.fixture();
    let pod = pod_id(&g.run(&["app", "sandbox"]).ok());
    start(&g, &pod, "server", &["serve-http", "7000"]);
    start(&g, &pod, "client", &["http-get", "127.0.0.1", "7000"]);
    let ended = wait_app(&g, &format!("{pod}/client"), "exited");
    assert_eq!(ended["exit_code"], 0, "{ended}");
    let address = g.ip4(&pod);
    let out = g.run(&["run", "--quiet", &image, "--", "http-get", &address, "7000"]);
    let _ = out.ok().stdout_contains("hello from gantry-fixture-app");
    g.run(&["app", "rm", "--force", &format!("{pod}/server")]).succeeded();
    assert_eq!(g.ip4(&pod), address);
}

#[test]
fn commands_act_on_all_apps_or_none() {
    let g = Gantry::new();
    let pod = sandbox(&g, &["--pod-name=sb"]);
    let good = start(&g, &pod, "good", &["sleep", "forever"]);
    let hint = "an app is written after its pod: sb/typo";
    for command in [
        &["app", "rm", "-f"][..],
        &["app", "stop"],
        &["app", "start"],
        &["restart"],
        &["pause"],
        &["kill"],
        &["update", "--memory=64m"],
    ] {
        let out = g.run(&[command, &["sb", "typo"]].concat()).exits(1);
        let out = out.stderr_contains(&["no pod 'typo'", hint, "nothing was changed"]);
        assert_eq!(out.stdout, "", "{command:?}");
        let _ = g.run(&[command, &["sb/good", "sb/typo"]].concat()).exits(1).stderr_contains(&[
            "typo",
            "good",
            "nothing was changed",
        ]);
        let app = state(&g, &good);
        assert!(app["state"] == "running" && app["attempt"] == 0 && app["paused"] != true, "{command:?}: {app}");
    }
    // Named twice, by its pod and by its own name: it is removed once.
    let other = start(&g, &pod, "other", &["sleep", "forever"]);
    let _ = g.run(&["app", "rm", "-f", "sb/other", &other]).ok();
    assert_eq!(g.run(&["app", "rm", "-f", "sb"]).ok().text(), good);
}

#[test]
fn all_pods_are_paused_and_restarted() {
    let g = Gantry::new();
    let pods = ["a", "b"].map(|name| g.detached(&[&format!("--name={name}")], &["sleep", "forever"]));
    let empty = sandbox(&g, &[]);
    let paused = g.run(&["pause", "--all"]).ok().stdout;
    assert!(pods.iter().chain([&empty]).all(|pod| paused.contains(pod.as_str())), "{paused}");
    assert_eq!(g.run(&["pause", "--all"]).ok().stdout, "");
    let _ = g.run(&["unpause", "--all"]).ok();
    assert!(pods.iter().all(|pod| g.status(pod)["paused"] != true));
    let restarted = g.run(&["restart", "--all", "--force"]).ok().stdout;
    assert_eq!(restarted.lines().count(), 2, "a sandbox without apps has nothing to restart: {restarted}");
}
