//! Restart policies: which ends are followed by a start, how the attempts are numbered and logged, and what stops them.

use gantry_tests::{Gantry, Out, app, pod_id, wait_for};
use serde_json::Value;

/// Starts a pod of one app, `a`, in the background.
#[track_caller]
fn start(g: &Gantry, policy: &str, verb: &[&str]) -> String {
    let image = g.fixture();
    let flags = ["run", "--net=none", "-d", &image, "--name=a", "--restart", policy, "--"];
    pod_id(&g.run(&[&flags[..], verb].concat()).ok())
}

#[track_caller]
fn wait_attempt(g: &Gantry, pod: &str, wanted: u64) -> Value {
    wait_for(&format!("attempt {wanted}"), || {
        Some(app(&g.status(pod), "a")).filter(|app| app["attempt"].as_u64().is_some_and(|attempt| attempt >= wanted))
    })
}

/// Runs a command, again and again until the app waited for the same restart before and after it. The back-offs grow.
#[track_caller]
fn run_during_back_off(g: &Gantry, pod: &str, args: &[&str]) -> Out {
    let ended = || Some(app(&g.status(pod), "a")).filter(|app| app["state"] == "exited");
    wait_for("a long back-off", || {
        let before = ended()?;
        let out = g.run(args);
        ended().filter(|after| after["attempt"] == before["attempt"]).map(|_| out)
    })
}

/// The types and the attempts of the app's events.
#[track_caller]
fn events(g: &Gantry, pod: &str) -> Vec<(String, String)> {
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=pod={pod}")]).ok();
    let events = out.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
    let of_app = events.filter(|event| event["name"] == "a");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    of_app.map(|event| (text(&event["type"]), event["data"]["attempt"].to_string())).collect()
}

#[test]
fn failing_apps_are_restarted_up_to_the_limit() {
    let g = Gantry::new();
    let pod = start(&g, "on-failure:2", &["seq", "print", "here", "--", "exit", "3"]);
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&status["exit_code"], &status["failed_app"]), (&3.into(), &"a".into()), "{status}");
    let last = app(&status, "a");
    assert_eq!((&last["attempt"], &last["restart_at"]), (&2.into(), &Value::Null), "{status}");
    let kinds: Vec<(String, String)> = events(&g, &pod);
    let want = ["0", "1", "2"]
        .iter()
        .flat_map(|attempt| ["app-started", "app-exited"].map(|kind| (kind.to_owned(), (*attempt).to_owned())));
    assert_eq!(kinds, want.collect::<Vec<_>>());
    assert_eq!(g.run(&["logs", &pod]).ok().text().lines().collect::<Vec<_>>(), ["here"; 3]);
    for attempt in 0..3 {
        assert!(g.dir().join(format!("pods/{pod}/logs/a/{attempt}.log")).exists(), "attempt {attempt}");
    }
}

#[test]
fn a_successful_app_is_not_restarted_on_failure() {
    let g = Gantry::new();
    let pod = start(&g, "on-failure", &["true"]);
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&status["exit_code"], &app(&status, "a")["attempt"]), (&0.into(), &0.into()), "{status}");
}

#[test]
fn always_restarts_until_the_pod_is_stopped() {
    let g = Gantry::new();
    let pod = start(&g, "always", &["seq", "print", "again", "--", "true"]);
    wait_attempt(&g, &pod, 3);
    let waiting =
        wait_for("the back-off", || Some(app(&g.status(&pod), "a")).filter(|app| app["restart_at"].is_string()));
    assert_eq!(waiting["state"], "exited", "{waiting}");
    assert!(g.run(&["list"]).ok().text().contains("restarting (0)"));
    g.run(&["stop", &pod]).succeeded();
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&status["reason"], &app(&status, "a")["restart_at"]), (&"stopped".into(), &Value::Null), "{status}");
    // The last five attempts keep their logs.
    let last = app(&status, "a")["attempt"].as_u64().unwrap_or_default();
    let logs = std::fs::read_dir(g.dir().join(format!("pods/{pod}/logs/a"))).map_or(0, Iterator::count);
    assert!(logs <= 5 && u64::try_from(logs).is_ok_and(|logs| logs <= last + 1), "{logs} logs after attempt {last}");
}

#[test]
fn logs_follow_across_attempts() {
    let g = Gantry::new();
    let pod = start(&g, "on-failure:3", &["seq", "print", "line", "--", "exit", "1"]);
    let out = g.run(&["logs", "--follow", &pod]).ok();
    assert_eq!(out.text().lines().collect::<Vec<_>>(), ["line"; 4]);
}

#[test]
fn the_foreground_shows_every_attempt() {
    let g = Gantry::new();
    let out: Out = g.app(&["--restart=on-failure:2"], &["seq", "print", "line", "--", "exit", "4"]).exits(4);
    assert_eq!(out.stdout.lines().collect::<Vec<_>>(), ["line"; 3]);
}

#[test]
fn other_apps_run_on_while_one_is_restarted() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(
        &g.run(&[
            "run",
            "--net=none",
            "-d",
            &image,
            "--name=a",
            "--restart=always",
            "--",
            "exit",
            "1",
            "---",
            &image,
            "--name=b",
            "--",
            "sleep",
            "forever",
        ])
        .ok(),
    );
    let before = g.app_pid(&pod, "b");
    wait_attempt(&g, &pod, 2);
    assert_eq!(g.app_pid(&pod, "b"), before);
    g.run(&["stop", "--time=0", &pod]).succeeded();
}

#[test]
fn stopping_an_app_cancels_its_restart() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    g.run(&["app", "add", &pod, &image, "--name=a", "--restart=always", "--", "exit", "1"]).succeeded();
    let name = format!("{pod}/a");
    g.run(&["app", "start", &name]).succeeded();
    // Long back-offs: the request arrives during one.
    wait_attempt(&g, &pod, 4);
    g.run(&["app", "stop", &name]).succeeded();
    let stopped = app(&g.status(&pod), "a");
    assert_eq!((&stopped["state"], &stopped["restart_at"]), (&"exited".into(), &Value::Null), "{stopped}");
    // A request starts it again, and its policy holds again.
    let last = stopped["attempt"].as_u64().unwrap_or_default();
    g.run(&["app", "start", &name]).succeeded();
    wait_attempt(&g, &pod, last + 2);
    g.run(&["app", "rm", "--force", &name]).succeeded();
    assert_eq!(g.status(&pod)["apps"], serde_json::json!([]));
    g.run(&["stop", "--time=0", &pod]).succeeded();
}

#[test]
fn an_app_between_attempts_gets_nothing() {
    let g = Gantry::new();
    let pod = start(&g, "always", &["exit", "1"]);
    let want = ["'a' has ended and is about to be started again", "gantry stop"];
    let _ = run_during_back_off(&g, &pod, &["kill", &pod]).exits(125).stderr_contains(&want);
    let _ = run_during_back_off(&g, &pod, &["kill", "--app=a", &pod]).exits(125).stderr_contains(&want);
    let _ = run_during_back_off(&g, &pod, &["exec", &pod, "true"]).exits(125).stderr_contains(&[want[0], "try again"]);
    let listed = run_during_back_off(&g, &pod, &["list", "--format={{.State}}"]).ok();
    assert_eq!(listed.text(), "restarting");
    g.run(&["stop", "--time=0", &pod]).succeeded();
    assert_eq!(g.status(&pod)["phase"], "exited");
}

#[test]
fn an_app_whose_program_vanished_counts_its_attempts() {
    let g = Gantry::new();
    // The second attempt finds no program.
    let pod = start(&g, "on-failure:2", &["seq", "rm", "/bin/app", "--", "exit", "1"]);
    let status = g.wait_state(&pod, "exited");
    let last = app(&status, "a");
    assert_eq!(
        (&last["attempt"], &last["exit_code"], &last["started"]),
        (&2.into(), &127.into(), &Value::Null),
        "{status}"
    );
    assert_eq!(status["exit_code"], 127, "{status}");
}

#[test]
fn a_killed_supervisor_ends_the_restarts() {
    let g = Gantry::new();
    let pod = start(&g, "always", &["exit", "1"]);
    wait_attempt(&g, &pod, 2);
    let supervisor = i32::try_from(g.supervisor(&pod)).ok().and_then(rustix::process::Pid::from_raw);
    let supervisor = supervisor.unwrap_or_else(|| panic!("no supervisor"));
    rustix::process::kill_process(supervisor, gantry_tests::Signal::KILL).unwrap_or_else(|error| panic!("{error}"));
    let status = g.wait_state(&pod, "exited");
    assert_eq!(status["reason"], "the supervisor was killed", "{status}");
}

#[test]
fn restarts_of_interactive_apps_are_refused() {
    let g = Gantry::new();
    let image = g.fixture();
    let _ = g.run(&["run", "--net=none", "-i", "--restart=always", &image]).exits(125).stderr_contains(&["--restart"]);
    let _ = g.run(&["run", "--restart=sometimes", &image]).exits(125).stderr_contains(&["'sometimes'"]);
}
