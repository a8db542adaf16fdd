//! Names of pods: unique, resolved wherever an id is, free again when the pod is removed; and waiting for pods.

use std::time::Duration;

use gantry_tests::{Gantry, pod_id};

const FAILED: i32 = 125;

#[test]
fn a_pod_is_found_by_its_name() {
    let g = Gantry::new();
    let pod = g.detached(&["--pod-name=front", "--hostname=box"], &["sleep", "forever"]);
    for command in [&["status", "front"][..], &["inspect", "front"], &["logs", "front"], &["cat-manifest", "front"]] {
        let _ = g.run(command).ok();
    }
    assert_eq!(g.run(&["exec", "front", "--", "/bin/app", "hostname"]).ok().text(), "box");
    assert!(g.run(&["status", &pod]).ok().stdout.contains("\nname=front\n"));
    assert_eq!(g.json(&["status", "front", "-o", "json"])["name"], "front");
    assert_eq!(
        (g.list()[0]["name"].as_str(), g.json(&["inspect", &pod])["name"].as_str()),
        (Some("front"), Some("front"))
    );
    let table = g.run(&["list"]).ok().stdout;
    assert!(table.starts_with("UUID      NAME   APP") && table.contains("  front  "), "{table}");
    assert_eq!(g.run(&["list", "-q", "--filter=name=front"]).ok().text(), &pod[..8]);
    assert_eq!(g.run(&["list", "--format={{.Name}}"]).ok().text(), "front");
    let _ = g.run(&["stop", "front"]).ok();
    assert_eq!(g.status("front")["phase"], "exited", "an exited pod keeps its name");
    let _ = g.run(&["rm", "front"]).ok();
    let _ = g.run(&["status", "front"]).exits(1).stderr_contains(&["there is no pod 'front'"]);
}

#[test]
fn a_sandbox_has_a_name() {
    let g = Gantry::new();
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none", "--pod-name=box"]).ok());
    assert_eq!(g.status("box")["id"], pod);
    g.run(&["app", "sandbox", "--net=none", "--pod-name=box"]).exits(FAILED).stderr_contains(&["has the name 'box'"]);
    g.run(&["rm", "--force", "box"]).succeeded();
}

#[test]
fn a_name_belongs_to_one_pod() {
    let g = Gantry::new();
    let first = g.detached(&["--pod-name=web"], &["sleep", "forever"]);
    let taken = ["has the name 'web'", &first];
    let _ = g.app(&["--pod-name=web"], &["true"]).exits(FAILED).stderr_contains(&taken);
    let image = g.fixture();
    let prepare = |name: &str| g.run(&["prepare", &format!("--pod-name={name}"), "--net=none", &image, "--", "true"]);
    let _ = prepare("web").exits(FAILED).stderr_contains(&taken);
    assert_eq!(g.list().len(), 1, "nothing is left of the refused pods");
    let second = pod_id(&prepare("job").ok());
    let _ = g.run(&["rename", "job", "web"]).exits(FAILED).stderr_contains(&taken);
    let _ = g.run(&["rename", "web", "old"]).ok();
    let _ = g.run(&["rename", &second, "web"]).ok();
    assert_eq!((g.status("old")["id"].as_str(), g.status("web")["id"].as_str()), (Some(&*first), Some(&*second)));
    let _ = g.run(&["rename", "absent", "other"]).exits(1).stderr_contains(&["'absent'"]);
    for bad in ["-x", "_x", "a/b", "a b", "", &first] {
        let _ = g.run(&["rename", "--", "web", bad]).exits(FAILED).stderr_contains(&["is not the name of a pod"]);
        let _ = g.app(&[&format!("--pod-name={bad}")], &["true"]).exits(FAILED);
    }
    // A supervisor that was killed leaves an exited pod, which keeps its name; removing it frees the name.
    let pid = rustix::process::Pid::from_raw(g.supervisor(&first).cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    g.wait_state("old", "exited");
    let _ = prepare("old").exits(FAILED);
    let _ = g.run(&["rm", "old"]).ok();
    let _ = prepare("old").ok();
}

#[test]
fn a_pod_named_twice_is_one_pod() {
    let g = Gantry::new();
    let image = g.fixture();
    let line = ["prepare", "--pod-name=twice", "--net=none", &image, "--", "obey", "SIGTERM", "7"];
    let pod = pod_id(&g.run(&line).ok());
    for command in [&["start"][..], &["kill", "--signal=TERM"], &["wait"], &["stop"], &["rm", "--force"]] {
        if command[0] == "kill" {
            g.wait_log("twice", "obeying");
        }
        let want = if command[0] == "wait" { "7" } else { &pod };
        let out = g.run(&[command, &["twice", &pod, "twice"]].concat()).ok();
        assert_eq!(out.text(), want, "{command:?}");
    }
    assert!(g.list().is_empty());
}

/// The exact name wins over the beginning of an id, and an id over the name of an app.
#[test]
fn a_name_wins_over_a_prefix() {
    let g = Gantry::new();
    let first = g.detached(&[], &["sleep", "forever"]);
    let prefix = &first[..8];
    let image = g.fixture();
    let flag = format!("--pod-name={prefix}");
    let second = pod_id(&g.run(&["prepare", &flag, "--net=none", &image, "--", "true"]).ok());
    assert_eq!(g.status(prefix)["id"], *second);
    assert_eq!(g.status(&first)["id"], *first);
    assert_eq!(g.status(&first[..9])["id"], *first);
    let _ = g.run(&["rm", prefix]).ok();
    assert_eq!(g.status(prefix)["id"], *first);
}

/// Neither a start that fails nor a creator that is killed at any moment keeps a name for a pod that never runs.
#[test]
fn dead_pods_hold_no_names() {
    let g = Gantry::new();
    let image = g.fixture();
    let _ = g.app(&["--pod-name=web"], &["true"]).ok();
    let _ = g.run(&["rm", "web"]).ok();
    let missing = ["run", "--pod-name=web", "--net=none", &image, "--exec=/bin/missing"];
    let _ = g.run(&missing).exits(127);
    let _ = g.run(&missing).exits(127);
    for milliseconds in 0..24 {
        let creator = g.spawn(&["prepare", "--pod-name=web", "--net=none", &image, "--", "true"]);
        creator.kill_after(Duration::from_millis(milliseconds));
        let next = g.run(&["prepare", "--pod-name=web", "--net=none", &image, "--", "true"]);
        let holder = g.status("web");
        assert_eq!(holder["phase"], "prepared", "after {milliseconds} ms");
        if next.code != 0 {
            let _ = next.exits(FAILED).stderr_contains(&["has the name 'web'", holder["id"].as_str().unwrap()]);
        }
        let _ = g.run(&["rm", "web"]).ok();
    }
}

#[test]
fn wait_reports_running_and_exited_pods() {
    let g = Gantry::new();
    let image = g.fixture();
    let prepared =
        pod_id(&g.run(&["prepare", "--pod-name=late", "--net=none", &image, "--", "obey", "SIGTERM", "7"]).ok());
    let _ = g.run(&["wait", "--time=50ms", "late"]).exits(FAILED).stderr_contains(&["did not exit within"]);
    let _ = g.run(&["wait", "--time=0", "late"]).exits(FAILED).stderr_contains(&["did not exit yet"]);
    let waiting = ["wait", "--condition=running", "--time=50ms", "late"];
    let _ = g.run(&waiting).exits(FAILED).stderr_contains(&["did not start within"]);
    let running = g.spawn(&["wait", "--condition=running", "late"]);
    let _ = g.run(&["run-prepared", "--detach", &prepared]).ok();
    assert_eq!(running.wait().ok().text(), "-1");
    let exited = g.spawn(&["wait", "--condition=exited", "late"]);
    g.wait_log("late", "obeying");
    let _ = g.run(&["stop", "late"]).ok();
    assert_eq!(exited.wait().ok().text(), "7");
    assert_eq!(g.run(&["wait", "late"]).ok().text(), "7");
    let _ = g.run(&["wait", "--condition=running", "late"]).exits(FAILED).stderr_contains(&["has exited"]);
}

#[test]
fn exec_by_app_name_chooses_that_app() {
    let g = Gantry::new();
    let image = g.fixture();
    let app = |name: &'static str, variable: &'static str| [&image, name, variable, "--", "sleep", "forever"];
    let mut line = vec!["run", "--detach", "--net=none", "--hostname=box"];
    line.extend(app("--name=front", "--environment=OWN=front"));
    line.push("---");
    line.extend(app("--name=back", "--environment=OWN=back"));
    let pod = pod_id(&g.run(&line).ok());
    // As a word it is an id, too, but a short one.
    let digit = &pod[..1];
    let added = [&format!("--name={digit}"), &format!("--environment=OWN={digit}"), "--", "sleep", "forever"];
    let _ = g.run(&[&["app", "add", "--start", &pod, &image], &added[..]].concat()).ok();
    let named = |word: &str| g.run(&["exec", word, "--", "/bin/app", "env"]);
    for app in ["front", "back", digit] {
        assert!(named(app).ok().stdout.contains(&format!("OWN={app}\n")), "{app}");
    }
    for other in ["box", &pod] {
        let _ = named(other).exits(FAILED).stderr_contains(&["has several apps"]);
    }
}

#[test]
fn an_empty_uuid_file_is_named() {
    let g = Gantry::new();
    let file = g.scratch().join("pod.id");
    for content in ["", " \n"] {
        std::fs::write(&file, content).unwrap();
        let out = g.run(&["status", "--uuid-file", file.to_str().unwrap()]).exits(FAILED);
        let _ = out.stderr_contains(&["pod.id is empty"]);
    }
}
