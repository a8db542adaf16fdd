//! Pausing, stop timeouts, namespaces, privileges and logs of apps, on real containers.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_tests::{Gantry, Signal, app, pod_id, wait_for};
use rustix::process::{Pid, kill_process};
use serde_json::{Value, json};

const FAILED: i32 = 125;

/// The types and names of the events of a pod.
#[track_caller]
fn events(g: &Gantry, pod: &str) -> Vec<String> {
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=pod={pod}")]).ok();
    let events = out.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
    let shown = |event: Value| {
        let (kind, name) = (event["type"].as_str().unwrap_or_default(), event["name"].as_str().unwrap_or_default());
        if name == pod { kind.to_owned() } else { format!("{kind} {name}") }
    };
    events.map(shown).collect()
}

/// How often the app's processes ran so far, which no frozen process increases.
#[track_caller]
fn switches(status: &Value, name: &str) -> String {
    let pid = &app(status, name)["pid"];
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    text.lines().filter(|line| line.contains("ctxt_switches")).collect()
}

/// A pod of two apps that write lines for ever.
#[track_caller]
fn two_writers(g: &Gantry) -> String {
    let image = g.fixture();
    let lines = ["--", "lines", "forever", "20", "200"];
    let one = [&[image.as_str(), "--name=one"][..], &lines].concat();
    let two = [&["---", image.as_str(), "--name=two"][..], &lines].concat();
    pod_id(&g.run(&[&["run", "--net=none", "--detach"][..], &one, &two].concat()).ok())
}

#[test]
fn a_pod_is_paused_and_resumed() {
    let g = Gantry::new();
    let pod = two_writers(&g);
    assert_eq!(g.run(&["pause", &pod]).ok().text(), pod);
    let status = g.status(&pod);
    assert_eq!((&status["phase"], &status["paused"]), (&json!("running"), &json!(true)));
    assert_eq!((&app(&status, "one")["paused"], &app(&status, "two")["paused"]), (&json!(true), &json!(true)));
    let before = [switches(&status, "one"), switches(&status, "two")];
    assert!(g.run(&["list", "--no-legend"]).ok().stdout.contains("paused"));
    let text = g.run(&["status", &pod]).ok().stdout;
    assert!(text.contains("\npaused=true\n"), "{text}");
    let _ = g.run(&["exec", &pod, "--app=one", "--", "true"]).exits(FAILED).stderr_contains(&["paused", "unpause"]);
    let _ = g.run(&["restart", &format!("{pod}/one")]).exits(FAILED).stderr_contains(&["paused"]);
    // A second pause changes nothing.
    g.run(&["pause", &pod]).succeeded();
    assert_eq!([switches(&status, "one"), switches(&status, "two")], before, "a frozen process has run");
    g.run(&["unpause", &pod]).succeeded();
    let resumed = g.status(&pod);
    assert_eq!((&resumed["paused"], &app(&resumed, "two")["paused"]), (&json!(false), &json!(false)));
    for (name, before) in ["one", "two"].into_iter().zip(before) {
        wait_for("the app to run again", || (switches(&resumed, name) != before).then_some(()));
    }
    g.run(&["exec", &pod, "--app=one", "--", "true"]).succeeded();
    let told: Vec<_> =
        events(&g, &pod).into_iter().filter(|kind| kind.contains("pause") || kind.contains("res")).collect();
    let paused = ["app-paused one", "app-paused two", "pod-paused"];
    assert_eq!(told, [paused, ["app-resumed one", "app-resumed two", "pod-resumed"]].concat());
}

#[test]
fn an_app_is_paused_alone() {
    let g = Gantry::new();
    let pod = two_writers(&g);
    let one = format!("{pod}/one");
    assert_eq!(g.run(&["pause", &one]).ok().text(), one);
    let status = g.status(&pod);
    assert_eq!((&status["paused"], &app(&status, "one")["paused"]), (&json!(false), &json!(true)));
    assert_eq!(app(&status, "two")["paused"], false);
    let frozen = switches(&status, "one");
    let before = switches(&status, "two");
    wait_for("the other app to run on", || (switches(&status, "two") != before).then_some(()));
    assert_eq!(switches(&status, "one"), frozen);
    assert!(g.run(&["app", "list", &pod]).ok().stdout.contains("paused"));
    g.run(&["exec", &pod, "--app=two", "--", "true"]).succeeded();
    // An app can be added beside a paused one, and be paused before the whole pod is.
    let image = g.fixture();
    g.run(&["app", "add", &pod, &image, "--name=three", "--cap-add=SYS_PTRACE", "--", "sleep", "forever"]).succeeded();
    g.run(&["app", "start", &format!("{pod}/three")]).succeeded();
    assert_eq!(app(&g.status(&pod), "one")["paused"], true);
    g.run(&["pause", &pod]).succeeded();
    g.run(&["app", "add", &pod, &image, "--name=four", "--", "true"]).succeeded();
    let _ = g.run(&["app", "start", &format!("{pod}/four")]).exits(FAILED).stderr_contains(&["paused"]);
    g.run(&["unpause", &one]).succeeded();
    let status = g.status(&pod);
    assert_eq!((&status["paused"], &app(&status, "one")["paused"]), (&json!(true), &json!(false)));
    g.run(&["unpause", &pod]).succeeded();
    assert_eq!(app(&g.status(&pod), "two")["paused"], false);
    g.run(&["app", "start", &format!("{pod}/four")]).succeeded();
    let _ = g.run(&["pause", &format!("{pod}/none")]).exits(1);
}

#[test]
fn a_paused_pod_is_stopped_killed_and_removed() {
    let g = Gantry::new();
    // The stop signal is obeyed: the pod is resumed for it.
    let pod = g.detached(&[], &["obey", "SIGTERM", "7"]);
    g.wait_log(&pod, "obeying");
    g.run(&["pause", &pod]).succeeded();
    g.run(&["stop", "--time=60", &pod]).succeeded();
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&status["exit_code"], &status["paused"]), (&json!(7), &json!(false)), "{status}");

    for signal in ["SIGKILL", "SIGTERM"] {
        let pod = g.detached(&[], &["sleep", "forever"]);
        g.run(&["pause", &pod]).succeeded();
        g.run(&["kill", "--signal", signal, &pod]).succeeded();
        g.wait_state(&pod, "exited");
    }
    let pod = g.detached(&[], &["sleep", "forever"]);
    g.run(&["pause", &pod]).succeeded();
    // Another signal waits.
    g.run(&["kill", "--signal=SIGUSR1", &pod]).succeeded();
    assert_eq!(g.status(&pod)["paused"], true);
    g.run(&["stop", "--force", &pod]).succeeded();
    let pod = g.detached(&[], &["sleep", "forever"]);
    g.run(&["pause", &pod]).succeeded();
    g.run(&["rm", "--force", &pod]).succeeded();

    // One app of a paused pod is stopped.
    let pod = two_writers(&g);
    g.run(&["pause", &pod]).succeeded();
    g.run(&["app", "stop", "--time=60", &format!("{pod}/one")]).succeeded();
    let status = g.status(&pod);
    assert_eq!((&status["paused"], &app(&status, "one")["state"]), (&json!(true), &json!("exited")));
    assert_eq!(app(&status, "two")["paused"], true);
    g.check_invariants();
    // The death of the supervisor ends a paused pod like any other.
    let supervisor = i32::try_from(g.supervisor(&pod)).ok().and_then(Pid::from_raw).unwrap();
    kill_process(supervisor, Signal::KILL).unwrap();
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&status["paused"], &app(&status, "two")["paused"]), (&json!(false), &json!(false)));
    g.check_invariants();
    let _ = g.run(&["pause", &pod]).exits(FAILED).stderr_contains(&["exited"]);
}

#[test]
fn a_killed_pause_leaves_a_consistent_pod() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["lines", "forever", "20", "200"]);
    for _ in 0..5 {
        let pause = g.spawn(&["pause", &pod]);
        pause.signal(Signal::KILL);
        let _ = pause.wait();
        // Whether it took effect or not, row and kernel agree after the next command.
        g.run(&["unpause", &pod]).succeeded();
        let status = g.status(&pod);
        assert_eq!(status["paused"], false);
        let before = switches(&status, app_name(&status));
        wait_for("the app to run", || (switches(&status, app_name(&status)) != before).then_some(()));
    }
}

fn app_name(status: &Value) -> &str {
    status["apps"][0]["name"].as_str().unwrap()
}
