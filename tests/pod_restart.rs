//! Pods that are started again: on request, and by gantryd after their supervisor died.

use gantry_tests::net::HOST4;
use gantry_tests::{Gantry, Out, Running, Signal, Space, app, json_lines, pod_id, wait_for};
use rustix::process::{Pid, kill_process};
use serde_json::Value;

/// Kills a process by its number.
#[track_caller]
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.unwrap_or_else(|| panic!("no such process id")), Signal::KILL)
        .unwrap_or_else(|error| panic!("cannot kill: {error}"));
}

/// The events of a pod itself, without those of its apps, with the named fact of each.
#[track_caller]
fn pod_events(g: &Gantry, pod: &str) -> Vec<String> {
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=pod={pod}")]).ok();
    let events = json_lines(&out.stdout).into_iter().filter(|event| {
        let kind = event["type"].as_str().unwrap_or_default();
        kind.starts_with("pod-")
    });
    events.map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until the pod runs with this attempt of its app `a`, or a later one.
#[track_caller]
fn wait_attempt(g: &Gantry, pod: &str, attempt: u64) -> Value {
    wait_for(&format!("attempt {attempt} of pod {pod}"), || {
        let status = g.status(pod);
        let is_running = status["phase"] == "running";
        (is_running && app(&status, "a")["attempt"].as_u64() >= Some(attempt)).then_some(status)
    })
}

#[test]
fn exited_pods_start_again_in_place() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=a", "--pod-name=web"], &["obey", "SIGTERM", "3"]);
    for attempt in 0..7_u64 {
        let status = wait_attempt(&g, &pod, attempt);
        assert_eq!(app(&status, "a")["attempt"], attempt, "{status}");
        wait_for("the line of this attempt", || {
            let path = g.dir().join(format!("pods/{pod}/logs/a/{attempt}.log"));
            std::fs::read_to_string(path).ok().filter(|text| text.contains("obeying"))
        });
        g.run(&["exec", "web", "--", "app", "mkdir", &format!("/made-{attempt}")]).succeeded();
        g.check_invariants();
        g.run(&["stop", "web"]).succeeded();
        let status = g.wait_state(&pod, "exited");
        assert_eq!((&status["exit_code"], &status["reason"]), (&3.into(), &"stopped".into()), "{status}");
        assert_eq!(app(&status, "a")["exit_code"], 3, "{status}");
        assert_eq!(status["name"], "web", "{status}");
        if attempt < 6 {
            let out = g.run(&[if attempt % 2 == 0 { "start" } else { "restart" }, "web"]).ok();
            assert!(out.text().starts_with(&pod), "{out}");
        }
    }
    // The writable layer is that of the first run.
    let upper = g.dir().join(format!("pods/{pod}/apps/a/upper"));
    assert!((0..7).all(|attempt| upper.join(format!("made-{attempt}")).is_dir()), "{}", upper.display());
    // The last five attempts keep their logs.
    let mut logs: Vec<_> = std::fs::read_dir(g.dir().join(format!("pods/{pod}/logs/a")))
        .map(|dir| dir.flatten().map(|entry| entry.file_name().into_string().unwrap_or_default()).collect())
        .unwrap_or_default();
    logs.sort();
    assert_eq!(logs, ["2.log", "3.log", "4.log", "5.log", "6.log"]);
    let runs = ["pod-starting", "pod-started", "pod-stopping", "pod-exited"].repeat(7);
    assert_eq!(pod_events(&g, &pod)[1..], runs[1..]);
}

#[test]
fn start_of_other_pods() {
    let g = Gantry::new();
    let running = g.detached(&["--name=a"], &["sleep", "forever"]);
    let before = g.app_pid(&running, "a");
    g.run(&["start", &running]).succeeded();
    assert_eq!(g.app_pid(&running, "a"), before, "it runs on");
    let image = g.fixture();
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "--name=a", "--", "sleep", "forever"]).ok());
    g.run(&["start", &prepared]).succeeded();
    wait_attempt(&g, &prepared, 0);
    g.run(&["stop", "--time=0", &prepared, &running]).succeeded();
    g.run(&["gc", "--mark-only"]).succeeded();
    let _ = g.run(&["start", &prepared]).exits(125).stderr_contains(&["garbage", "cannot be started"]);
    let _ = g.run(&["start", "nothing"]).exits(1).stderr_contains(&["nothing"]);
}

#[test]
fn failed_starts_leave_the_pod_exited() {
    let g = Gantry::new();
    let dir = g.scratch().join("source");
    std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{error}"));
    let volume = format!("--volume=v,kind=host,source={}", dir.display());
    let pod = g.detached(&[&volume, "--mount=volume=v,target=/v", "--name=a"], &["exit", "4"]);
    g.wait_state(&pod, "exited");
    std::fs::remove_dir(&dir).unwrap_or_else(|error| panic!("{error}"));
    let out = g.run(&["start", &pod]).exits(1);
    assert!(out.stderr.contains("source"), "{out}");
    let status = g.status(&pod);
    assert_eq!((&status["phase"], &status["exit_code"]), (&"exited".into(), &4.into()), "{status}");
    assert!(status["restart_failure"].as_str().is_some_and(|why| why.contains("source")), "{status}");
    assert_eq!(pod_events(&g, &pod).last().map(String::as_str), Some("pod-start-failed"));
    g.check_invariants();
    std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{error}"));
    g.run(&["start", &pod]).succeeded();
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&app(&status, "a")["attempt"], &status["restart_failure"]), (&1.into(), &Value::Null), "{status}");
}

#[test]
fn sandboxes_start_with_their_present_apps() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    for name in ["a", "b", "c"] {
        g.run(&["app", "add", &pod, &image, "--name", name, "--", "sleep", "forever"]).succeeded();
    }
    g.run(&["app", "start", &format!("{pod}/a")]).succeeded();
    g.run(&["app", "rm", &format!("{pod}/b")]).succeeded();
    g.run(&["stop", "--time=0", &pod]).succeeded();
    g.run(&["start", &pod]).succeeded();
    let status = wait_attempt(&g, &pod, 1);
    let states = |status: &Value| {
        let apps = status["apps"].as_array().cloned().unwrap_or_default();
        apps.iter().map(|app| format!("{} {} {}", app["name"], app["state"], app["attempt"])).collect::<Vec<_>>()
    };
    assert_eq!(states(&status), [r#""a" "running" 1"#, r#""c" "created" null"#]);
    g.run(&["app", "start", &format!("{pod}/c")]).succeeded();
    assert_eq!(states(&g.status(&pod)), [r#""a" "running" 1"#, r#""c" "running" 0"#]);
    // Apps are added and removed as before.
    g.run(&["app", "add", &pod, &image, "--name=b", "--", "sleep", "forever"]).succeeded();
    g.run(&["app", "rm", "--force", &format!("{pod}/a")]).succeeded();
    g.run(&["stop", "--time=0", &pod]).succeeded();
    g.run(&["start", &pod]).succeeded();
    assert_eq!(states(&g.status(&pod)), [r#""c" "running" 1"#, r#""b" "created" null"#]);
    g.run(&["stop", "--time=0", &pod]).succeeded();
    // One that was never started and one that was are removed from the ended pod.
    g.run(&["app", "rm", &format!("{pod}/b"), &format!("{pod}/c")]).succeeded();
    let _ = g.run(&["app", "rm", &format!("{pod}/c")]).exits(1).stderr_contains(&["has no app 'c'"]);
    g.run(&["start", &pod]).succeeded();
    assert_eq!(states(&g.status(&pod)), [""; 0]);
    g.run(&["stop", "--time=0", &pod]).succeeded();
}

#[test]
fn apps_of_ended_pods_are_removed() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(
        &g.run(&[
            "run",
            "--detach",
            "--net=none",
            &image,
            "--name=a",
            "--",
            "exit",
            "0",
            "---",
            &image,
            "--name=b",
            "--",
            "exit",
            "0",
        ])
        .ok(),
    );
    g.wait_state(&pod, "exited");
    g.run(&["app", "rm", &format!("{pod}/a")]).succeeded();
    let dirs = ["apps", "logs"].map(|dir| g.dir().join("pods").join(&pod).join(dir).join("a"));
    assert!(dirs.iter().all(|dir| !dir.exists()), "{dirs:?}");
    g.run(&["start", &pod]).succeeded();
    let status = g.wait_state(&pod, "exited");
    let names: Vec<_> = status["apps"].as_array().unwrap().iter().map(|app| &app["name"]).collect();
    assert_eq!((names, &status["exit_code"]), (vec![&Value::from("b")], &0.into()));
    g.run(&["app", "rm", &format!("{pod}/b")]).succeeded();
    let _ = g.run(&["start", &pod]).exits(125).stderr_contains(&[&pod]);
    g.run(&["image", "rm", &image]).succeeded();
}

#[test]
fn a_start_survives_kills_at_any_point() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=a"], &["obey", "SIGTERM", "0"]);
    g.run(&["stop", &pod]).succeeded();
    let whole = g.run(&["start", &pod]).ok().duration;
    g.run(&["stop", &pod]).succeeded();
    for step in 0..20_u32 {
        let start = g.spawn(&["start", &pod]);
        start.kill_after(whole * step / 20);
        let phase = wait_for("the end of the start", || {
            Some(g.status(&pod)["phase"].clone()).filter(|phase| *phase == "running" || *phase == "exited")
        });
        g.check_invariants();
        if phase == "running" {
            g.run(&["stop", "--time=0", &pod]).succeeded();
        }
    }
    // Attempts are never used twice.
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=pod={pod}")]).ok();
    let starts = json_lines(&out.stdout).into_iter().filter(|event| event["type"] == "app-started");
    let attempts: Vec<_> = starts.map(|event| event["data"]["attempt"].to_string()).collect();
    let unique: std::collections::BTreeSet<_> = attempts.iter().collect();
    assert_eq!(unique.len(), attempts.len(), "{attempts:?}");
}

#[test]
fn a_pod_whose_init_was_killed_is_restarted() {
    let g = Gantry::new();
    let pod = with_policy(&g, "always", &[]);
    let init = || g.json(&["inspect", &pod])["supervisor"]["ready"]["init"].as_u64().unwrap_or_default();
    kill(u32::try_from(init()).unwrap());
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&status["exit_code"], &status["reason"]), (&137.into(), &"its PID 1 was killed".into()), "{status}");
    let keeper = g.start_daemon(&[]);
    wait_attempt(&g, &pod, 1);
    let _ = keeper.terminate();
    g.run(&["stop", "--time=0", &pod]).succeeded();
}

/// The kernel kills the apps before the end of PID 1 shows. With several, the first would seem to have failed.
#[test]
fn a_killed_init_is_no_failed_app() {
    let g = Gantry::new();
    let image = g.fixture();
    let one = ["run", "-d", "--net=none", &image, "--name=a", "--", "sleep", "forever"];
    let two = [&one[..], &["---", &image, "--name=b", "--", "sleep", "forever"]].concat();
    for line in [&one[..], &two] {
        let pod = pod_id(&g.run(line).ok());
        let init = g.json(&["inspect", &pod])["supervisor"]["ready"]["init"].as_u64().unwrap_or_default();
        kill(u32::try_from(init).unwrap());
        let status = g.wait_state(&pod, "exited");
        assert_eq!(
            (&status["exit_code"], &status["reason"]),
            (&137.into(), &"its PID 1 was killed".into()),
            "{status}"
        );
        g.check_invariants();
    }
}

#[test]
fn a_stop_beside_a_start_does_not_fail() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=a"], &["sleep", "forever"]);
    for _ in 0..20 {
        let start = g.spawn(&["start", &pod]);
        let stop = g.spawn(&["stop", "--force", &pod]);
        let again = g.spawn(&["start", &pod]);
        stop.wait().succeeded();
        let _ = (start.wait(), again.wait());
    }
    g.run(&["stop", "--force", &pod]).succeeded();
    g.check_invariants();
}

#[test]
fn two_starts_at_once_start_the_pod_once() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=a"], &["obey", "SIGTERM", "0"]);
    for round in 1..=5_u64 {
        g.run(&["stop", &pod]).succeeded();
        let starts: Vec<Running> = (0..3).map(|_| g.spawn(&["start", &pod])).collect();
        let outs: Vec<Out> = starts.into_iter().map(Running::wait).collect();
        assert!(outs.iter().all(|out| out.code == 0), "{outs:?}");
        assert_eq!(app(&g.status(&pod), "a")["attempt"], round);
    }
    g.run(&["stop", "--time=0", &pod]).succeeded();
}

/// Starts a pod of one app, `a`, which obeys SIGTERM, with a restart policy.
#[track_caller]
fn with_policy(g: &Gantry, policy: &str, flags: &[&str]) -> String {
    let restart = format!("--restart={policy}");
    g.detached(&[&[restart.as_str(), "--name=a"], flags].concat(), &["obey", "SIGTERM", "0"])
}

#[test]
fn gantryd_restarts_pods_of_killed_supervisors() {
    let g = Gantry::new();
    let mut keeper = g.start_daemon(&[]);
    let pod = with_policy(&g, "always", &[]);
    let other = with_policy(&g, "no", &[]);
    for attempt in 1..=2_u64 {
        keeper.wait_for_stderr(&format!("pod {pod} runs"));
        kill(g.supervisor(&pod));
        let status = wait_attempt(&g, &pod, attempt);
        assert_eq!((&status["restarts"], &status["restart_at"]), (&attempt.into(), &Value::Null), "{status}");
    }
    let out = g.run(&["status", &pod]).ok();
    assert!(out.stdout.contains("restarts=2\n") && out.stdout.contains("app-a-restarts=2\n"), "{out}");
    kill(g.supervisor(&other));
    let status = g.wait_state(&other, "exited");
    assert_eq!(status["restart_at"], Value::Null, "{status}");
    // A requested stop is the last word, and a requested start begins anew.
    g.run(&["stop", &pod]).succeeded();
    let status = g.wait_state(&pod, "exited");
    assert_eq!((&status["reason"], &status["restart_at"]), (&"stopped".into(), &Value::Null), "{status}");
    g.run(&["start", &pod]).succeeded();
    assert_eq!(wait_attempt(&g, &pod, 3)["restarts"], 0);
    g.run(&["stop", "--time=0", &pod]).succeeded();
    let _ = keeper.terminate();
    // No supervisor is left as a zombie of gantryd, whose end the invariants would see.
    g.check_invariants();
}

#[test]
fn satisfied_policies_leave_the_pod_exited() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let failed = g.detached(&["--restart=on-failure:1", "--name=a"], &["exit", "3"]);
    let done = g.detached(&["--restart=on-failure", "--name=a"], &["true"]);
    for (pod, code, attempt) in [(failed, 3, 1), (done, 0, 0)] {
        let status = g.wait_state(&pod, "exited");
        let last = app(&status, "a");
        assert_eq!((&status["exit_code"], &last["attempt"]), (&code.into(), &attempt.into()), "{status}");
        assert_eq!((&status["restart_at"], &status["restarts"]), (&Value::Null, &0.into()), "{status}");
    }
    let _ = keeper.terminate();
}

#[test]
fn gantryd_does_not_start_apps_that_were_stopped() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let image = g.fixture();
    let app_of = |name: &'static str| ["--name", name, "--restart=always", "--", "obey", "SIGTERM", "0"];
    let first = [&["run", "--net=none", "-d", &image][..], &app_of("a")].concat();
    let pod = pod_id(&g.run(&[&first[..], &["---", &image], &app_of("b")].concat()).ok());
    let stopped = format!("{pod}/b");
    wait_attempt(&g, &pod, 0);
    g.run(&["app", "stop", "--force", &stopped]).succeeded();
    for attempt in 1..=2 {
        kill(g.supervisor(&pod));
        let status = wait_attempt(&g, &pod, attempt);
        let app = app(&status, "b");
        assert_eq!((&app["state"], &app["attempt"]), (&"exited".into(), &0.into()), "{status}");
    }
    // A request starts it again, alone or with its pod.
    g.run(&["app", "start", &stopped]).succeeded();
    assert_eq!(app(&g.status(&pod), "b")["attempt"], 1);
    kill(g.supervisor(&pod));
    let status = wait_attempt(&g, &pod, 3);
    assert_eq!(
        (&app(&status, "b")["state"], &app(&status, "b")["attempt"]),
        (&"running".into(), &2.into()),
        "{status}"
    );
    g.run(&["app", "stop", "--force", &stopped]).succeeded();
    g.run(&["stop", "--time=0", &pod]).succeeded();
    g.run(&["start", &pod]).succeeded();
    assert_eq!(app(&g.status(&pod), "b")["attempt"], 3);
    g.run(&["stop", "--time=0", &pod]).succeeded();
    let _ = keeper.terminate();
}

#[test]
fn policies_restart_pods_after_a_reboot() {
    let g = Gantry::new();
    let always = with_policy(&g, "always", &[]);
    let on_failure = with_policy(&g, "on-failure", &[]);
    let stopped = with_policy(&g, "always", &[]);
    let plain = with_policy(&g, "no", &[]);
    g.run(&["stop", &stopped]).succeeded();
    for pod in [&always, &on_failure, &plain] {
        kill(g.supervisor(pod));
    }
    let mut keeper = g.spawn_command(&mut g.in_next_boot(&g.daemon(&[])));
    for pod in [&always, &on_failure] {
        keeper.wait_for_stderr(&format!("pod {pod} is started again"));
        let status = g.run_in_next_boot(&["status", "-o", "json", pod]).ok().json();
        assert_eq!((&status["phase"], &app(&status, "a")["attempt"]), (&"running".into(), &1.into()), "{status}");
    }
    for pod in [&stopped, &plain] {
        let status = g.run_in_next_boot(&["status", "-o", "json", pod]).ok().json();
        assert_eq!((&status["phase"], &status["restart_at"]), (&"exited".into(), &Value::Null), "{status}");
    }
    g.run_in_next_boot(&["stop", "--time=0", &always, &on_failure]).succeeded();
    let _ = keeper.terminate();
}

#[test]
fn pods_stopped_until_boot_are_started_then() {
    let g = Gantry::new();
    let [shut_down, kept_down, started, plain] =
        ["always", "on-failure", "always", "no"].map(|it| with_policy(&g, it, &[]));
    let keeper = g.start_daemon(&[]);
    g.run(&["stop", "--until-boot", &shut_down, &kept_down, &started, &plain]).succeeded();
    for (pod, is_waiting) in [(&shut_down, true), (&kept_down, true), (&started, true), (&plain, false)] {
        let status = g.status(pod);
        assert_eq!((&status["phase"], &status["restart_at"]), (&"exited".into(), &Value::Null), "{status}");
        assert_eq!(status["restart_at_boot"], is_waiting, "{status}");
        let lines = g.run(&["status", pod]).ok().stdout;
        assert_eq!(lines.contains("restart-at=boot\n"), is_waiting, "{lines}");
    }
    // A later stop outweighs the shutdown, and a start ends it.
    g.run(&["stop", &kept_down]).succeeded();
    g.run(&["start", &started]).succeeded();
    g.run(&["stop", "--time=0", &started]).succeeded();
    for pod in [&kept_down, &started] {
        assert_eq!(g.status(pod)["restart_at_boot"], false, "{pod}");
    }
    // Pods that wait for the boot are no garbage.
    let garbage = g.run(&["gc", "--grace-period=0s", "--dry-run"]).ok().stdout;
    assert!(garbage.contains(&kept_down) && !garbage.contains(&shut_down), "{garbage}");
    let _ = keeper.terminate();
    let mut keeper = g.spawn_command(&mut g.in_next_boot(&g.daemon(&[])));
    keeper.wait_for_stderr(&format!("pod {shut_down} is started again"));
    let status = g.run_in_next_boot(&["status", "-o", "json", &shut_down]).ok().json();
    assert_eq!((&status["phase"], &status["restart_at_boot"]), (&"running".into(), &false.into()), "{status}");
    for pod in [&kept_down, &started, &plain] {
        let status = g.run_in_next_boot(&["status", "-o", "json", pod]).ok().json();
        assert_eq!(status["phase"], "exited", "{status}");
    }
    g.run_in_next_boot(&["stop", "--time=0", &shut_down]).succeeded();
    let _ = keeper.terminate();
}

/// A pod with a volume of the host, whose directory is missing after the pod ended: it cannot be started.
struct UnstartablePod {
    pod: String,
    source: std::path::PathBuf,
}

impl UnstartablePod {
    #[track_caller]
    fn start(g: &Gantry) -> Self {
        let source = g.scratch().join("source");
        std::fs::create_dir_all(&source).unwrap_or_else(|error| panic!("{error}"));
        let volume = format!("--volume=v,kind=host,source={}", source.display());
        let pod = with_policy(g, "always", &[&volume, "--mount=volume=v,target=/v"]);
        Self { pod, source }
    }

    /// Kills the supervisor, and waits until starting the pod again has failed so often.
    #[track_caller]
    fn fail(&self, g: &Gantry, failures: usize) -> Value {
        std::fs::remove_dir(&self.source).unwrap_or_else(|error| panic!("{error}"));
        kill(g.supervisor(&self.pod));
        wait_for("failed starts", || {
            let count = pod_events(g, &self.pod).iter().filter(|kind| *kind == "pod-start-failed").count();
            let status = g.status(&self.pod);
            (count >= failures && status["phase"] == "exited").then_some(status)
        })
    }
}

#[test]
fn failed_restarts_are_tried_again() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let unstartable = UnstartablePod::start(&g);
    let pod = &unstartable.pod;
    let status = unstartable.fail(&g, 2);
    assert!(status["restart_at"].is_string(), "{status}");
    assert!(status["restart_failure"].as_str().is_some_and(|why| why.contains("source")), "{status}");
    let out = g.run(&["status", pod]).ok();
    assert!(out.stdout.contains("restart-at=") && out.stdout.contains("restart-failure="), "{out}");
    // The pod and its image stay.
    g.run(&["gc", "--grace-period=0s"]).succeeded();
    assert_eq!(g.status(pod)["exit_code"], 137);
    std::fs::create_dir_all(&unstartable.source).unwrap_or_else(|error| panic!("{error}"));
    let status = wait_attempt(&g, pod, 1);
    assert_eq!((&status["restart_at"], &status["restart_failure"]), (&Value::Null, &Value::Null), "{status}");
    g.run(&["stop", "--time=0", pod]).succeeded();
    let _ = keeper.terminate();
}

#[test]
fn stop_and_rm_cancel_a_restart() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let first = UnstartablePod::start(&g);
    first.fail(&g, 1);
    g.run(&["stop", &first.pod]).succeeded();
    let status = g.status(&first.pod);
    assert_eq!((&status["phase"], &status["restart_at"]), (&"exited".into(), &Value::Null), "{status}");
    let second = UnstartablePod::start(&g);
    second.fail(&g, 1);
    g.run(&["rm", &second.pod]).succeeded();
    assert_eq!(g.list().len(), 1);
    let _ = keeper.terminate();
    assert_eq!(g.status(&first.pod)["phase"], "exited");
}

#[test]
fn a_killed_gantryd_starts_pods_once() {
    let g = Gantry::new();
    let pod = with_policy(&g, "always", &[]);
    let mut attempt = 0;
    for step in 0..12_u32 {
        kill(g.supervisor(&pod));
        let keeper = g.spawn_command(&mut g.daemon(&[]));
        keeper.kill_after(std::time::Duration::from_millis(15) * step);
        let keeper = g.start_daemon(&[]);
        let status = wait_attempt(&g, &pod, attempt + 1);
        attempt = app(&status, "a")["attempt"].as_u64().unwrap_or_default();
        let _ = keeper.terminate();
        // A restart that is counted anew waits for nothing.
        g.run(&["stop", "--time=0", &pod]).succeeded();
        g.run(&["start", &pod]).succeeded();
        attempt += 1;
        assert_eq!(app(&g.status(&pod), "a")["attempt"], attempt);
    }
    g.run(&["stop", "--time=0", &pod]).succeeded();
}

#[test]
fn a_foreground_ends_with_its_run() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let image = g.fixture();
    let mut run = g.spawn(&["run", "--net=none", "--restart=always", &image, "--name=a", "--", "obey", "SIGTERM", "0"]);
    run.wait_for_stdout("obeying");
    let pod = g.list()[0]["id"].as_str().unwrap_or_default().to_owned();
    kill(g.supervisor(&pod));
    let _ = run.wait().exits(137);
    wait_attempt(&g, &pod, 1);
    g.run(&["stop", "--time=0", &pod]).succeeded();
    let _ = keeper.terminate();
}

#[test]
fn pods_of_run_rm_are_not_restarted() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let pod = with_policy(&g, "always", &["--rm"]);
    kill(g.supervisor(&pod));
    wait_for("the removal", || g.list().is_empty().then_some(()));
    let _ = keeper.terminate();
}

#[test]
fn restarted_pods_keep_free_addresses_and_ports() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    let keeper = g.start_daemon(&[]);
    let ports = ["--restart=always", "-p", "8080:7000"];
    let pod = g.server(&[&ports[..], &["--name=a"]].concat(), "7000");
    let addresses = (g.ip4(&pod), g.ip6(&pod));
    kill(g.supervisor(&pod));
    wait_attempt(&g, &pod, 1);
    assert_eq!((g.ip4(&pod), g.ip6(&pod)), addresses);
    g.wait_log(&pod, "listening");
    assert!(space.outside().ask("tcp", HOST4, 8080).contains(&format!(" to {} ", addresses.0)));
    // Another pod gets the address and the port.
    g.run(&["stop", "--time=0", &pod]).succeeded();
    let other = g.server(&["-p", "8080:7000", &format!("--net=default:IP={}", addresses.0)], "7000");
    assert_eq!(g.ip4(&other), addresses.0);
    let out = g.run(&["start", &pod]);
    assert!(out.code != 0 && out.stderr.contains("8080"), "{out}");
    // Lost while the port is in use: gantryd tries until it is free.
    g.run(&["stop", "--time=0", &other]).succeeded();
    g.run(&["start", &pod]).succeeded();
    let _ = keeper.terminate();
    kill(g.supervisor(&pod));
    g.wait_state(&pod, "exited");
    g.run(&["start", &other]).succeeded();
    let keeper = g.start_daemon(&[]);
    let failed = wait_for("a failed start", || Some(g.status(&pod)).filter(|pod| pod["restart_failure"].is_string()));
    assert!(failed["restart_failure"].as_str().is_some_and(|why| why.contains("8080")), "{failed}");
    assert!(g.run(&["list"]).ok().text().contains("restarting (137)"));
    g.run(&["stop", "--time=0", &other]).succeeded();
    wait_attempt(&g, &pod, 3);
    g.run(&["stop", "--time=0", &pod]).succeeded();
    let _ = keeper.terminate();
}
