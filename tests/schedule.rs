//! Schedules: pods that are kept running, timers, and `kill -9` between a change and its effect.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use gantry_tests::{Gantry, Running, Signal, let_pass, wait_for};
use rustix::process::{Pid, kill_process};
use serde_json::Value;

/// Kills a process by its number.
#[track_caller]
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.unwrap_or_else(|| panic!("no such process id")), Signal::KILL)
        .unwrap_or_else(|error| panic!("cannot kill: {error}"));
}

/// Enables a schedule of a pod with this command.
#[track_caller]
fn enable(g: &Gantry, name: &str, flags: &[&str], verb: &[&str]) {
    let image = g.fixture();
    let words = [&["schedule", "enable", name, "--net=none", "--name=a"], flags, &[&image, "--"], verb].concat();
    let out = g.run(&words).ok();
    assert_eq!(out.text(), name);
}

/// The schedule with this name; `None`: there is none.
#[track_caller]
fn schedule(g: &Gantry, name: &str) -> Option<Value> {
    let list = g.json(&["schedule", "list", "-o", "json"]);
    list.as_array().into_iter().flatten().find(|schedule| schedule["name"] == name).cloned()
}

/// The only pod of a schedule, once it runs.
#[track_caller]
fn wait_running(g: &Gantry, name: &str) -> String {
    wait_for(&format!("a pod of schedule {name}"), || {
        let schedule = schedule(g, name)?;
        let pods = schedule["pods"].as_array()?;
        let pod = pods.last()?.as_str()?.to_owned();
        (schedule["state"] == "active" && pods.len() == 1).then_some(pod)
    })
}

#[track_caller]
fn wait_runs(g: &Gantry, name: &str, runs: u64) -> Value {
    wait_for(&format!("run {runs} of schedule {name}"), || {
        schedule(g, name).filter(|schedule| schedule["runs"].as_u64() >= Some(runs))
    })
}

#[track_caller]
fn stop(keeper: Running) {
    let _ = keeper.terminate();
}

#[test]
fn a_schedule_is_enabled_disabled_and_destroyed() {
    let g = Gantry::new();
    enable(&g, "web", &["--comment=the site"], &["sleep", "forever"]);
    let pod = wait_running(&g, "web");
    let seen = schedule(&g, "web").unwrap_or_default();
    assert_eq!((&seen["enabled"], &seen["runs"], &seen["comment"]), (&true.into(), &1.into(), &"the site".into()));
    assert_eq!(g.status(&pod)["user_labels"]["gantry/schedule"], "web");
    // The same content changes nothing.
    enable(&g, "web", &["--comment=the site"], &["sleep", "forever"]);
    assert_eq!(wait_running(&g, "web"), pod);
    // Other content replaces the pod.
    enable(&g, "web", &[], &["obey", "SIGTERM", "0"]);
    let second = wait_running(&g, "web");
    assert_ne!(second, pod);
    assert_eq!(g.list().len(), 1, "the first pod was removed");
    g.check_invariants();
    g.run(&["schedule", "disable", "web"]).succeeded();
    let seen = schedule(&g, "web").unwrap_or_default();
    assert_eq!((&seen["state"], &seen["enabled"]), (&"passive".into(), &false.into()));
    assert_eq!(g.status(&second)["phase"], "exited");
    g.run(&["schedule", "disable", "web"]).succeeded();
    enable(&g, "web", &[], &["obey", "SIGTERM", "0"]);
    assert_ne!(wait_running(&g, "web"), second);
    g.run(&["schedule", "destroy", "web"]).succeeded();
    assert_eq!((schedule(&g, "web"), g.list()), (None, vec![]));
    for verb in ["disable", "destroy"] {
        let _ = g.run(&["schedule", verb, "web"]).exits(1).stderr_contains(&["there is no schedule 'web'"]);
    }
    g.check_invariants();
}

#[test]
fn misuse_is_refused_before_anything_is_changed() {
    let g = Gantry::new();
    let image = g.fixture();
    for (words, text) in [
        (&["-x"][..], "unknown flag"),
        (&["a", "--pod-name=x", &image], "--pod-name is not a flag"),
        (&["a", "--rm", &image], "--rm is not a flag"),
        (&["a", "--every=10ms", &image], "--every must be between"),
        (&["a", "--every=soon", &image], "is not a duration"),
        (&["a", "--on-overlap=queue", &image], "needs a timer"),
        (&["a", "--randomized-delay=1h", &image], "--randomized-delay needs a timer"),
        (&["a", "--on-overlap=both", &image], "neither refuse nor queue"),
        (&["a", "--on-calendar=25:00", &image], "is not a calendar event"),
        (&["a", "--on-calendar=2020-01-01", &image], "never comes"),
        (&["a"], "at least one app"),
        (&[], "the name of the schedule is missing"),
        (&[" a", &image], "is not the name of a schedule"),
    ] {
        let _ = g.run(&[&["schedule", "enable"], words].concat()).exits(125).stderr_contains(&[text]);
    }
    let _ =
        g.run(&["run", "--every=10s", &image]).exits(125).stderr_contains(&["--every is not a flag of 'gantry run'"]);
    assert_eq!(g.json(&["schedule", "list", "-o", "json"]), serde_json::json!([]));
}

#[test]
fn variables_are_shown_on_request_only() {
    let g = Gantry::new();
    enable(&g, "web", &["--env=TOKEN=hunter2"], &["sleep", "forever"]);
    for format in ["--output=json", "--output=json-lines", "--format={{json .}}", "--full"] {
        let out = g.run(&["schedule", "list", format]).ok().stdout_contains("web");
        assert!(!out.stdout.contains("hunter2"), "{format}: {out}");
    }
    let manifest = g.run(&["schedule", "cat", "web"]).ok().json();
    assert_eq!(
        manifest["apps"][0]["environment"],
        serde_json::json!([{ "name": "TOKEN", "value": "hunter2" }]),
        "{manifest}"
    );
    let _refused = g.run(&["schedule", "cat", "web", "no"]).exits(1).stderr_contains(&["there is no schedule 'no'"]);
    g.run(&["schedule", "destroy", "web"]).succeeded();
}

#[test]
fn a_host_pod_comes_back_whatever_is_killed() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let named_last = ["schedule", "enable", "--stage1=host", "--name=a", "job", "--", "sleep", "1000"];
    assert_eq!(g.run(&named_last).ok().text(), "job");
    let pod = wait_running(&g, "job");
    // The app: its supervisor starts it again.
    kill(g.app_pid(&pod, "a"));
    wait_for("another process", || {
        let status = g.status(&pod);
        let app = gantry_tests::app(&status, "a");
        (app["state"] == "running" && app["attempt"] == 1).then_some(())
    });
    // The supervisor: gantryd starts the pod again.
    let supervisor = g.supervisor(&pod);
    kill(supervisor);
    wait_for("another supervisor", || {
        let status = g.status(&pod);
        (status["phase"] == "running" && status["pid"] != supervisor).then_some(())
    });
    // gantryd: the pod runs on, and the next gantryd starts another pod when this one is removed.
    keeper.signal(Signal::KILL);
    let _killed = keeper.wait();
    assert_eq!(wait_running(&g, "job"), pod);
    let keeper = g.start_daemon(&[]);
    g.run(&["rm", "--force", &pod]).succeeded();
    assert_ne!(wait_running(&g, "job"), pod);
    g.run(&["schedule", "destroy", "job"]).succeeded();
    stop(keeper);
}

#[test]
fn enabling_starts_a_stopped_pod_again() {
    let g = Gantry::new();
    let enable = || g.run(&["schedule", "enable", "--stage1=host", "job", "--", "sleep", "600"]).succeeded();
    enable();
    let pod = wait_running(&g, "job");
    g.run(&["stop", "--time=0", &pod]).succeeded();
    // No gantryd runs.
    enable();
    assert_eq!(g.status(&pod)["phase"], "running");
    g.run(&["schedule", "destroy", "job"]).succeeded();
}

#[test]
fn crash_loops_are_shown() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    let enable = |name: &str, flags: &[&str]| {
        let words = [&["schedule", "enable", "--stage1=host"], flags, &[name, "--", "sh", "-c", "exit 3"]].concat();
        g.run(&words).succeeded();
    };
    let wait_state = |name: &str, state: &str| {
        wait_for(&format!("schedule {name} to be {state}"), || schedule(&g, name).filter(|seen| seen["state"] == state))
    };
    enable("loop", &[]);
    let seen = wait_state("loop", "restarting");
    assert_eq!(seen["failure"], Value::Null, "{seen}");
    let seen = wait_state("loop", "error");
    let failure = seen["failure"].as_str().unwrap_or_default();
    assert!(failure.contains("exit code 3") && failure.contains("restarts in a row"), "{seen}");
    assert!(seen["enabled"] == true && !seen["next_run"].is_null(), "{seen}");
    g.run(&["schedule", "list"]).ok().stdout_contains("error: app 'sh' has ended");
    g.run(&["schedule", "disable", "loop"]).succeeded();
    assert_eq!(schedule(&g, "loop").unwrap_or_default()["state"], "passive");

    enable("limited", &["--restart=on-failure:2"]);
    let seen = wait_state("limited", "error");
    assert!(seen["failure"].as_str().is_some_and(|text| text.contains("is not restarted")), "{seen}");
    assert_eq!(seen["next_run"], Value::Null, "{seen}");
    for name in ["loop", "limited"] {
        g.run(&["schedule", "destroy", name]).succeeded();
    }
    stop(keeper);
}

#[test]
fn a_failed_start_is_recorded_and_tried_again() {
    let g = Gantry::new();
    let dir = g.scratch().join("source");
    std::fs::create_dir_all(&dir).unwrap_or_else(|error| panic!("{error}"));
    let keeper = g.start_daemon(&[]);
    let image = g.fixture();
    let _ = g.run(&["schedule", "enable", "bad", "--net=none", &image, "--exec=/no/such/program"]).exits(127);
    let seen = wait_for("the failure", || schedule(&g, "bad").filter(|seen| !seen["failure"].is_null()));
    assert_eq!((&seen["enabled"], &seen["state"]), (&true.into(), &"error".into()), "{seen}");
    assert!(!seen["next_run"].is_null(), "{seen}");
    enable(&g, "bad", &[], &["sleep", "forever"]);
    wait_running(&g, "bad");
    assert_eq!(schedule(&g, "bad").unwrap_or_default()["failure"], Value::Null);
    g.run(&["schedule", "destroy", "bad"]).succeeded();
    stop(keeper);
}

#[test]
fn a_pod_comes_back_whatever_is_killed() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    enable(&g, "web", &[], &["sleep", "forever"]);
    let pod = wait_running(&g, "web");
    // The app: its supervisor starts it again.
    let app = g.app_pid(&pod, "a");
    kill(app);
    wait_for("another process", || {
        let status = g.status(&pod);
        let app = gantry_tests::app(&status, "a");
        (app["state"] == "running" && app["attempt"] == 1).then_some(())
    });
    // The supervisor: gantryd starts the pod again.
    let supervisor = g.supervisor(&pod);
    kill(supervisor);
    wait_for("another supervisor", || {
        let status = g.status(&pod);
        (status["phase"] == "running" && status["pid"] != supervisor).then_some(())
    });
    // gantryd: the pod runs on, and the next gantryd keeps it.
    keeper.signal(Signal::KILL);
    let _ = keeper.wait();
    assert_eq!(wait_running(&g, "web"), pod);
    let keeper = g.start_daemon(&[]);
    // The pod itself is removed: gantryd creates another one.
    g.run(&["rm", "--force", &pod]).succeeded();
    assert_ne!(wait_running(&g, "web"), pod);
    g.run(&["schedule", "destroy", "web"]).succeeded();
    stop(keeper);
}

#[test]
fn stopped_pods_of_schedules_stay_stopped() {
    let g = Gantry::new();
    let config = g.write("config.toml", "gc-interval = '100ms'\ngc-grace = '0s'\n");
    let keeper = g.start_daemon(&["--config", &config]);
    enable(&g, "web", &[], &["sleep", "forever"]);
    let pod = wait_running(&g, "web");
    g.run(&["stop", "--force", &pod]).succeeded();
    let other = g.detached(&[], &["true"]);
    wait_for("a collection", || g.list().iter().all(|pod| pod["id"] != other.as_str()).then_some(()));
    let seen = schedule(&g, "web").unwrap_or_default();
    assert_eq!((&seen["next_run"], g.status(&pod)["phase"].as_str()), (&Value::Null, Some("exited")), "{seen}");
    g.run(&["schedule", "destroy", "web"]).succeeded();
    assert_eq!(g.list(), Vec::<Value>::new());
    stop(keeper);
}

#[test]
fn killed_commands_leave_the_old_or_new_state() {
    let g = Gantry::new();
    let image = g.fixture();
    for delay in [0, 2, 5, 10, 20, 40, 80, 160] {
        let command = g.spawn(&["schedule", "enable", "web", "--net=none", &image, "--", "obey", "SIGTERM", "0"]);
        command.kill_after(Duration::from_millis(delay));
        let is_enabled = schedule(&g, "web").is_some();
        let keeper = g.start_daemon(&[]);
        if is_enabled {
            wait_running(&g, "web");
        }
        for verb in ["disable", "destroy"] {
            if schedule(&g, "web").is_none() {
                break;
            }
            let command = g.spawn(&["schedule", verb, "web"]);
            command.kill_after(Duration::from_millis(delay));
            // gantryd makes the pods follow the row.
            wait_for("the pods to follow", || match schedule(&g, "web") {
                None => g.list().is_empty().then_some(()),
                Some(seen) if seen["enabled"] == true => (seen["state"] == "active").then_some(()),
                Some(seen) => (seen["state"] == "passive").then_some(()),
            });
        }
        if schedule(&g, "web").is_some() {
            g.run(&["schedule", "destroy", "web"]).succeeded();
        }
        wait_for("no pod", || g.list().is_empty().then_some(()));
        stop(keeper);
        g.check_invariants();
    }
}

#[test]
fn timers_start_pods_and_keep_the_last_ones() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    enable(&g, "tick", &["--every=1s"], &["print", "tick"]);
    let seen = wait_runs(&g, "tick", 6);
    assert!(!seen["last_run"].is_null() && !seen["next_run"].is_null(), "{seen}");
    wait_for("the last pods", || {
        let seen = schedule(&g, "tick")?;
        (seen["pods"].as_array()?.len() <= 4).then_some(())
    });
    g.run(&["schedule", "disable", "tick"]).succeeded();
    let runs = schedule(&g, "tick").unwrap_or_default()["runs"].clone();
    let out = g.run(&["schedule", "list", "--format={{.Name}} {{.State}} {{.Runs}}"]).ok();
    assert_eq!(out.text(), format!("tick passive {runs}"));
    g.run(&["schedule", "destroy", "tick"]).succeeded();
    assert_eq!(g.list(), Vec::<Value>::new());
    stop(keeper);
}

#[test]
fn calendar_events_start_pods() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    enable(&g, "tick", &["--on-calendar=*:*:0/2", "--on-calendar=yearly UTC"], &["print", "tick"]);
    let seen = wait_runs(&g, "tick", 2);
    assert_eq!(seen["timer"]["on_calendar"], serde_json::json!(["*:*:0/2", "yearly UTC"]));
    // The run begins at an even second; a loaded host may be late, but never early.
    assert!(seen["next_run"].as_str() > seen["last_run"].as_str(), "{seen}");
    g.run(&["schedule", "destroy", "tick"]).succeeded();
    stop(keeper);
}

#[test]
fn runs_are_delayed_at_random_but_stably() {
    let g = Gantry::new();
    let (future, names) = ("--on-calendar=2100-01-01 00:00:00 UTC", ["a", "b", "c"]);
    for name in names {
        enable(&g, name, &[future, "--randomized-delay=1h"], &["print", "tick"]);
    }
    let times = || names.map(|name| schedule(&g, name).unwrap_or_default()["next_run"].clone());
    let first = times();
    assert!(first.iter().all(|at| at.as_str().is_some_and(|at| at.starts_with("2100-01-01T00:"))), "{first:?}");
    assert!(first[0] != first[1] && first[1] != first[2], "{first:?}");
    // A new gantryd computes the same times, and delayed runs happen.
    let keeper = g.start_daemon(&[]);
    enable(&g, "tick", &["--every=1s", "--randomized-delay=1s"], &["print", "tick"]);
    assert_eq!(wait_runs(&g, "tick", 2)["timer"]["randomized_delay"], 1.0);
    assert_eq!(times(), first);
    g.run(&["schedule", "destroy", "tick", "a", "b", "c"]).succeeded();
    stop(keeper);
}

#[test]
fn a_missed_run_is_caught_up_once() {
    let g = Gantry::new();
    enable(&g, "tick", &["--every=8s"], &["print", "tick"]);
    assert_eq!(schedule(&g, "tick").unwrap_or_default()["runs"], 0);
    // Several periods without gantryd.
    let_pass(Duration::from_secs(25));
    let keeper = g.start_daemon(&[]);
    let seen = wait_runs(&g, "tick", 1);
    assert_eq!(seen["runs"], 1, "the next one is eight seconds away: {seen}");
    g.run(&["schedule", "destroy", "tick"]).succeeded();
    stop(keeper);
}

#[test]
fn overlapping_runs_are_refused_or_queued() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    enable(&g, "refuse", &["--every=1s"], &["sleep", "forever"]);
    enable(&g, "queue", &["--every=1s", "--on-overlap=queue"], &["sleep", "forever"]);
    let pod = wait_running(&g, "queue");
    wait_running(&g, "refuse");
    enable(&g, "clock", &["--every=1s"], &["print", "tick"]);
    wait_runs(&g, "clock", 3);
    for name in ["refuse", "queue"] {
        assert_eq!(schedule(&g, name).unwrap_or_default()["runs"], 1);
    }
    // The queued run starts when the pod has ended.
    g.run(&["stop", "--time=0", &pod]).succeeded();
    wait_runs(&g, "queue", 2);
    g.run(&["schedule", "destroy", "refuse", "queue", "clock"]).succeeded();
    assert_eq!(g.list(), Vec::<Value>::new());
    stop(keeper);
}

#[test]
fn a_run_after_the_boot_happens_once() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    enable(&g, "boot", &["--on-boot=0s"], &["print", "booted"]);
    wait_runs(&g, "boot", 1);
    stop(keeper);
    let keeper = g.start_daemon(&[]);
    let seen = schedule(&g, "boot").unwrap_or_default();
    assert_eq!((&seen["runs"], &seen["next_run"]), (&1.into(), &Value::Null), "{seen}");
    g.run(&["schedule", "destroy", "boot"]).succeeded();
    stop(keeper);
}

/// The lines that the runs of a schedule have written to this file.
fn count_lines(file: &Path) -> u64 {
    std::fs::read_to_string(file).map_or(0, |text| text.lines().count() as u64)
}

#[test]
fn a_run_interrupted_before_its_start_happens_once() {
    let g = Gantry::new();
    let (ran, pid) = (g.scratch().join("ran"), g.scratch().join("pid"));
    let slow = g.write("slow-stage1", &format!("#!/bin/sh\necho $$ > {}\nexec sleep 1000\n", pid.display()));
    std::fs::set_permissions(&slow, Permissions::from_mode(0o755)).unwrap_or_else(|error| panic!("{error}"));
    let script = format!("echo ran >> {}", ran.display());
    let words = ["schedule", "enable", "--stage1=host", "--on-boot=0s", "boot", "--", "sh", "-c", &script];
    let command = g.spawn_command(g.command(&words).env("GANTRY_STAGE1", &slow));
    let pid = wait_for("the supervisor", || std::fs::read_to_string(&pid).ok()?.trim().parse().ok());
    wait_for("the run to begin", || (schedule(&g, "boot")?["runs"] == 1).then_some(()));
    let first = g.list()[0]["id"].clone();
    command.signal(Signal::KILL);
    let _killed = command.wait();
    kill(pid);
    // The next gantryd finds a pod that was never started.
    let keeper = g.start_daemon(&[]);
    let seen = wait_for("the run to end", || {
        let pods = g.list();
        (pods.len() == 1 && pods[0]["id"] != first && pods[0]["phase"] == "exited").then(|| schedule(&g, "boot"))?
    });
    assert_eq!((&seen["runs"], &seen["next_run"], &seen["failure"]), (&1.into(), &Value::Null, &Value::Null), "{seen}");
    enable(&g, "clock", &["--every=1s"], &["print", "tick"]);
    wait_runs(&g, "clock", 2);
    assert_eq!((count_lines(&ran), schedule(&g, "boot").unwrap_or_default()["runs"].clone()), (1, 1.into()));
    g.run(&["schedule", "destroy", "boot", "clock"]).succeeded();
    stop(keeper);
}

#[test]
fn runs_survive_kills_of_gantryd_at_any_point() {
    const STEPS: u32 = 12;
    let g = Gantry::new();
    let ran = g.scratch().join("ran");
    let script = format!("echo ran >> {}", ran.display());
    g.run(&["schedule", "enable", "--stage1=host", "--every=1s", "tick", "--", "sh", "-c", &script]).succeeded();
    let wait_due = || let_pass(Duration::from_millis(1001));
    wait_due();
    let begun = Instant::now();
    let keeper = g.spawn_command(&mut g.daemon(&[]));
    wait_for("the first run", || (count_lines(&ran) > 0).then_some(()));
    let whole = begun.elapsed();
    keeper.signal(Signal::KILL);
    let _killed = keeper.wait();
    for step in 1..=STEPS {
        wait_due();
        g.spawn_command(&mut g.daemon(&[])).kill_after(whole * step / STEPS);
    }
    let keeper = g.start_daemon(&[]);
    // Neither fewer nor more lines than runs; a run that is being started has no line yet.
    wait_for("a line of each run", || {
        let (lines, runs) = (count_lines(&ran), schedule(&g, "tick")?["runs"].as_u64()?);
        (lines == runs && count_lines(&ran) == lines).then_some(())
    });
    g.run(&["schedule", "destroy", "tick"]).succeeded();
    stop(keeper);
}

/// The events of a schedule, the oldest first.
#[track_caller]
fn schedule_events(g: &Gantry, name: &str) -> Vec<Value> {
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=name={name}")]).ok();
    gantry_tests::json_lines(&out.stdout)
}

#[test]
fn changes_of_schedules_are_events() {
    let g = Gantry::new();
    let image = g.fixture();
    let kinds = |name: &str| -> Vec<String> {
        let events = schedule_events(&g, name);
        assert!(events.iter().all(|event| event["id"] == name), "{events:?}");
        events.iter().filter_map(|event| event["type"].as_str()).map(str::to_owned).collect()
    };
    for flags in [&[][..], &[], &["--comment=other"]] {
        enable(&g, "web", flags, &["sleep", "forever"]);
    }
    for verb in ["disable", "disable", "destroy"] {
        g.run(&["schedule", verb, "web"]).succeeded();
    }
    let want = ["schedule-enabled", "schedule-enabled", "schedule-disabled", "schedule-destroyed"];
    assert_eq!(kinds("web"), want, "one per change");
    let revisions: Vec<Value> =
        schedule_events(&g, "web").iter().map(|event| event["data"]["revision"].clone()).collect();
    assert_eq!(revisions, [1, 2, 2, 2]);
    let _failed = g.run(&["schedule", "enable", "bad", "--net=none", &image, "--exec=/no/such/program"]).exits(127);
    let events = schedule_events(&g, "bad");
    assert_eq!(kinds("bad"), ["schedule-enabled", "schedule-start-failed"]);
    let data = &events[1]["data"];
    assert!(data["reason"].as_str().is_some_and(|reason| reason.contains("/no/such/program")), "{data}");
    assert!(data["retry_at"].is_string(), "{data}");
    let table = g.run(&["events", "--since=1h", "--filter=type=schedule-start-failed"]).ok();
    assert!(table.stdout.contains("bad ") && table.stdout.contains("revision=1"), "{table}");
    // A run that is due while its predecessor runs.
    let keeper = g.start_daemon(&[]);
    enable(&g, "long-running-tick", &["--every=1s"], &["sleep", "forever"]);
    wait_for("a skipped run", || {
        kinds("long-running-tick").get(1).map(|kind| assert_eq!(kind, "schedule-run-skipped"))
    });
    let _shown = g.run(&["events", "--since=1h"]).ok().stdout_contains("long-running-tick");
    g.run(&["schedule", "destroy", "long-running-tick", "bad"]).succeeded();
    stop(keeper);
}

#[test]
fn schedules_come_back_after_a_reboot() {
    let g = Gantry::new();
    let keeper = g.start_daemon(&[]);
    enable(&g, "web", &[], &["sleep", "forever"]);
    enable(&g, "tick", &["--every=1s"], &["sleep", "forever"]);
    enable(&g, "boot", &["--on-boot=0s"], &["print", "booted"]);
    enable(&g, "off", &["--on-boot=0s"], &["print", "booted"]);
    g.run(&["schedule", "enable", "--stage1=host", "--name=a", "job", "--", "sleep", "1000"]).succeeded();
    let (web, tick, job) = (wait_running(&g, "web"), wait_running(&g, "tick"), wait_running(&g, "job"));
    wait_runs(&g, "boot", 1);
    wait_runs(&g, "off", 1);
    g.run(&["schedule", "disable", "off"]).succeeded();
    stop(keeper);
    for pod in [&web, &tick, &job] {
        kill(g.supervisor(pod));
    }
    let find = |name: &str| {
        let list = g.run_in_next_boot(&["schedule", "list", "-o", "json"]).ok().json();
        list.as_array().into_iter().flatten().find(|schedule| schedule["name"] == name).cloned().unwrap_or_default()
    };
    let mut keeper = g.spawn_command(&mut g.in_next_boot(&g.daemon(&[])));
    // The pods that are kept running are the same.
    for (name, pod) in [("web", &web), ("job", &job)] {
        keeper.wait_for_stderr(&format!("pod {pod} is started again"));
        let seen = wait_for("a pod that is kept running", || Some(find(name)).filter(|seen| seen["state"] == "active"));
        assert_eq!((&seen["pods"], &seen["runs"]), (&serde_json::json!([pod]), &1.into()), "{seen}");
    }
    // The reboot has ended the run of the timer.
    let seen =
        wait_for("another run", || Some(find("tick")).filter(|seen| seen["runs"] == 2 && seen["state"] == "active"));
    assert_eq!(seen["pods"][0], tick.as_str(), "{seen}");
    wait_for("a run in this boot", || (find("boot")["runs"] == 2).then_some(()));
    stop(keeper);
    // Another gantryd in the same boot.
    let mut keeper = g.spawn_command(&mut g.in_next_boot(&g.daemon(&[])));
    keeper.wait_for_stderr("info: reconciling the pods of");
    let image = g.fixture();
    g.run_in_next_boot(&["schedule", "enable", "clock", "--net=none", "--every=1s", &image, "--", "print", "tick"])
        .succeeded();
    wait_for("two runs of another timer", || (find("clock")["runs"].as_u64() >= Some(2)).then_some(()));
    assert_eq!((&find("boot")["runs"], &find("off")["runs"]), (&2.into(), &1.into()));
    assert_eq!(find("web")["pods"], serde_json::json!([web]));
    g.run_in_next_boot(&["schedule", "destroy", "web", "job", "tick", "boot", "off", "clock"]).succeeded();
    stop(keeper);
}

#[test]
fn a_restored_database_adopts_the_pods_of_schedules() {
    let g = Gantry::new();
    let hourly = g.write("config.toml", "backup-interval = '1h'\ngc-interval = '1h'\n");
    let daemon = || g.spawn_command(&mut g.daemon(&["--config", &hourly]));
    let host = ["schedule", "enable", "--stage1=host", "--name=a", "job", "--", "sleep", "1000"];
    enable(&g, "web", &[], &["sleep", "forever"]);
    g.run(&host).succeeded();
    let before = [wait_running(&g, "web"), wait_running(&g, "job")];
    let mut keeper = daemon();
    keeper.wait_for_stderr("backed up the database");
    keeper.terminate();
    // Other pods of the same content, and one of other content, since the backup.
    g.run(&["rm", "--force", &before[0], &before[1]]).succeeded();
    enable(&g, "web", &[], &["sleep", "forever"]);
    g.run(&host).succeeded();
    let since = [wait_running(&g, "web"), wait_running(&g, "job")];
    let image = g.fixture();
    let other = ["run", "-d", "--net=none", "--name=a", "--label=gantry/schedule=web", &image, "--", "sleep"];
    let other = gantry_tests::pod_id(&g.run(&[&other[..], &["forever"]].concat()).ok());
    std::fs::remove_file(g.dir().join("gantry.db")).unwrap_or_else(|error| panic!("{error}"));
    let mut keeper = daemon();
    let said = keeper.wait_for_stderr("info: reconciling the pods of");
    assert!(said.contains("restored at"), "{said}");
    enable(&g, "clock", &["--every=1s"], &["print", "tick"]);
    wait_runs(&g, "clock", 2);
    for (name, pod) in ["web", "job"].into_iter().zip(&since) {
        assert_eq!(&wait_running(&g, name), pod);
        assert_eq!(schedule(&g, name).unwrap_or_default()["runs"], 2);
    }
    g.run(&["schedule", "destroy", "clock", "web", "job"]).succeeded();
    let left: Vec<Value> = g.list().iter().map(|pod| pod["id"].clone()).collect();
    assert_eq!(left, [other.as_str()], "a pod that only has the label");
    g.run(&["rm", "--force", &other]).succeeded();
    stop(keeper);
}

#[test]
fn unknown_values_of_list_filters_are_refused() {
    let g = Gantry::new();
    for filter in ["enabled=yes", "state=runing"] {
        let value = filter.split('=').next_back().unwrap_or_default();
        let _ = g.run(&["schedule", "list", "--filter", filter]).exits(125).stderr_contains(&[value]);
    }
}
