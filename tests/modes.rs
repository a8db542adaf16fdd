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
    assert_eq!(g.run(&["list", "--format={{.State}}"]).ok().text(), "paused");
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
fn a_paused_pod_is_restarted() {
    let g = Gantry::new();
    let attempts = |pod: &str| {
        let status = g.status(pod);
        assert_eq!((&status["phase"], &status["paused"]), (&json!("running"), &json!(false)), "{status}");
        let apps = status["apps"].as_array().cloned().unwrap_or_default();
        apps.iter().map(|app| app["attempt"].as_u64()).collect::<Vec<_>>()
    };
    let pod = two_writers(&g);
    g.run(&["pause", &pod]).succeeded();
    g.run(&["restart", "--time=60", &pod]).succeeded();
    assert_eq!(attempts(&pod), [Some(1), Some(1)]);
    // The only app of a pod is the pod.
    let single = g.detached(&["--name=web"], &["obey", "SIGTERM", "7"]);
    g.wait_log(&single, "obeying");
    g.run(&["pause", &single]).succeeded();
    g.run(&["restart", "--time=60", &format!("{single}/web")]).succeeded();
    assert_eq!(attempts(&single), [Some(1)]);
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
    let pod = g.detached(&[], &["ignore", "SIGUSR1"]);
    g.wait_log(&pod, "ignoring");
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

/// Frozen, it could not exit within its stop timeout.
#[test]
fn a_stopping_app_is_not_paused() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=one"], &["ignore", "SIGTERM"]);
    g.wait_log(&pod, "ignoring");
    let one = format!("{pod}/one");
    let stop = g.spawn(&["app", "stop", "--time=600", &one]);
    g.wait_log(&pod, "got SIGTERM");
    // The command waits for the stop, and the app takes the next signal meanwhile.
    let pause = g.spawn(&["pause", &one]);
    g.run(&["kill", "--signal=SIGTERM", &pod]).succeeded();
    wait_for("the second signal", || {
        (g.run(&["logs", &pod]).ok().stdout.matches("got SIGTERM").count() >= 2).then_some(())
    });
    g.run(&["stop", "--force", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    let _ = pause.wait().exits(FAILED);
    let _ = stop.wait();
    g.check_invariants();
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

#[test]
fn apps_have_their_own_stop_timeouts() {
    let g = Gantry::new();
    let image = g.fixture();
    let ignore = ["--", "ignore", "SIGTERM"];
    // A long grace of the host does not matter: SIGKILL follows at once.
    let pod = pod_id(&g.run(&[&["run", "--net=none", "-d", &image, "--stop-timeout=0"], &ignore[..]].concat()).ok());
    g.wait_log(&pod, "ignoring");
    g.run(&["stop", &pod]).succeeded();
    assert_eq!(g.wait_state(&pod, "exited")["exit_code"], 137);
    let manifest = g.run(&["cat-manifest", &pod]).ok().json();
    assert_eq!(manifest["apps"][0]["stop_timeout_ms"], 0);
    // An added app, by each command that stops it; an explicit time overrides it.
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    let add = |name: &str, time: &str| {
        g.run(&[&["app", "add", &pod, &image, "--name", name, "--stop-timeout", time], &ignore[..]].concat())
            .succeeded();
        let app = format!("{pod}/{name}");
        g.run(&["app", "start", &app]).succeeded();
        app
    };
    let (now, late) = (add("now", "0s"), add("late", "10m"));
    wait_for("both to ignore SIGTERM", || {
        (g.run(&["logs", &pod]).ok().stdout.matches("ignoring").count() == 2).then_some(())
    });
    g.run(&["app", "stop", &now]).succeeded();
    g.run(&["app", "stop", "--time=0", &late]).succeeded();
    for app in [&now, &late] {
        assert_eq!(g.json(&["app", "status", app])["exit_code"], 137);
    }
    let _ = g.app(&["--stop-timeout=soon"], &["true"]).exits(FAILED).stderr_contains(&["--stop-timeout"]);
}

#[test]
fn apps_have_ids_labels_and_annotations() {
    let g = Gantry::new();
    let image = g.fixture();
    let sleep = ["--", "sleep", "forever"];
    let pod = pod_id(&g.run(&[&["run", "--net=none", "-d", &image, "--name=one"], &sleep[..]].concat()).ok());
    let flags = ["--name=two", "--user-label=tier=web", "--user-annotation=note=a=b"];
    g.run(&[&["app", "add", &pod, &image], &flags[..], &sleep].concat()).succeeded();
    let status = g.status(&pod);
    let (one, two) = (app(&status, "one"), app(&status, "two"));
    let ids = [&one["id"], &two["id"]].map(|id| id.as_str().unwrap().to_owned());
    assert!(ids.iter().all(|id| id.len() == 64 && id.bytes().all(|c| c.is_ascii_hexdigit())), "{ids:?}");
    assert_ne!(ids[0], ids[1]);
    assert_eq!((&two["labels"], &two["annotations"]), (&json!({"tier": "web"}), &json!({"note": "a=b"})));
    assert_eq!(one["labels"], json!({}));
    // An app is found by its id wherever POD/APP is taken.
    g.run(&["app", "start", &ids[1]]).succeeded();
    assert_eq!(g.json(&["app", "status", &ids[1][..12]])["state"], "running");
    assert_eq!(g.run(&["restart", "--force", &ids[1]]).ok().text(), format!("{pod}/two"));
    assert_eq!(g.run(&["pause", &ids[1]]).ok().text(), format!("{pod}/two"));
    assert_eq!(g.status(&pod)["paused"], false);
    g.run(&["unpause", &ids[1]]).succeeded();
    assert_eq!(app(&g.status(&pod), "two")["id"], ids[1].as_str(), "an id is for life");
    let list = |filter: &str| g.run(&["app", "list", "-q", &pod, "--filter", filter]).ok().text().to_owned();
    assert_eq!(list("label=tier=web"), "two");
    assert_eq!(list("label=tier=db"), "");
    assert_eq!(list("annotation=note"), "two");
    assert_eq!(list(&format!("id={}", ids[0])), "one");
    assert_eq!(list("state=running"), "one\ntwo");
    let full = g.run(&["app", "list", "--full", &pod]).ok().stdout;
    assert!(full.contains(&ids[0]) && full.contains("tier=web"), "{full}");
}

#[test]
fn logs_are_reopened_after_a_rename() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["lines", "forever", "20", "500"]);
    let log = wait_for("the log", || {
        let dir = std::fs::read_dir(g.dir().join("pods").join(&pod).join("logs")).ok()?.next()?.ok()?.path();
        dir.join("0.log").exists().then(|| dir.join("0.log"))
    });
    let parts: Vec<_> = (0..3).map(|n| log.with_extension(format!("log.old-{n}"))).collect();
    for part in &parts {
        wait_for("output", || std::fs::metadata(&log).ok().filter(|meta| meta.len() > 0));
        // As logrotate does, with `create` left to the program.
        std::fs::rename(&log, part).unwrap();
        g.run(&["logs", "--reopen", &pod]).succeeded();
        assert!(log.exists(), "the log file was not made again");
    }
    g.run(&["stop", "--force", &pod]).succeeded();
    let _ = g.run(&["logs", "--reopen", &pod]).exits(FAILED).stderr_contains(&["exited"]);
    let text: String = parts.iter().chain([&log]).map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let numbers: Vec<u64> = text
        .lines()
        .map(|line| {
            let text = line.split_once(" F line ").unwrap_or_else(|| panic!("{line}")).1;
            text.split(' ').next().unwrap().parse().unwrap()
        })
        .collect();
    let first = numbers[0];
    assert!(numbers.iter().copied().eq(first..first + numbers.len() as u64), "lines were lost or reordered");
}

#[test]
fn mounts_as_docker_spells_them() {
    let g = Gantry::new();
    let mounts = g.app(&["--mount", "type=tmpfs,target=/m,tmpfs-size=1m,tmpfs-mode=0750,readonly"], &["mounts"]);
    let mounts = mounts.ok().stdout;
    let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/m")).unwrap();
    assert!(line.contains("size=1024k") && line.contains("mode=750") && line.contains(" ro,"), "{line}");
    let source = g.scratch().join("source");
    std::fs::create_dir_all(&source).unwrap();
    let bind = format!("type=bind,src={},dst=/b,bind-propagation=rprivate", source.display());
    let _ = g.app(&["--mount", &bind], &["write", "/b/x", "text"]).ok();
    assert_eq!(std::fs::read_to_string(source.join("x")).unwrap(), "text\n");
    // Without a type, docker means a volume.
    let _ = g.app(&["--mount", "source=kept,target=/v"], &["write", "/v/x", "text"]).ok();
    assert_eq!(g.app(&["--mount", "type=volume,src=kept,dst=/v"], &["cat", "/v/x"]).ok().stdout, "text\n");
    for (mount, why) in [
        ("type=bind,source=/x,target=/y,bind-propagation=unbindable", "rprivate, rslave and rshared"),
        ("type=volume,source=x,target=/y,bind-propagation=rslave", "type=bind"),
        ("type=bind,source=/x,target=/y,subpath=z", "type=image"),
        ("type=npipe,source=/x,target=/y", "a type of mount"),
        ("type=bind,source=/x,target=/y,tmpfs-size=1", "type=tmpfs"),
        ("type=tmpfs", "target"),
    ] {
        let _ = g.app(&["--mount", mount], &["true"]).exits(FAILED).stderr_contains(&[why]);
    }
}

#[test]
fn privileged_apps_are_not_confined() {
    let g = Gantry::new();
    let plain = g.app(&[], &["caps"]).ok().stdout;
    let caps = g.app(&["--privileged"], &["caps"]).ok().stdout;
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("no {name}: {text}"));
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!((field(&plain, "Seccomp:").as_str(), field(&caps, "Seccomp:").as_str()), ("2", "0"), "{caps}");
    assert_eq!(field(&caps, "NoNewPrivs:"), "0");
    let bits = |text: &str| u64::from_str_radix(&field(text, "CapBnd:"), 16).unwrap();
    assert!(bits(&caps).count_ones() > bits(&plain).count_ones(), "{caps}");
    let mounts = g.app(&["--privileged"], &["mounts"]).ok().stdout;
    let at = |target: &str| mounts.lines().find(|line| line.split(' ').nth(4) == Some(target));
    assert!(at("/sys").unwrap().contains(" rw,"), "{mounts}");
    assert!(at("/proc/sys").is_none() && at("/proc/kcore").is_none(), "{mounts}");
    let names = g.app(&["--privileged"], &["ls", "/dev"]).ok().stdout;
    let own = g.app(&[], &["ls", "/dev"]).ok().stdout;
    assert!(names.lines().count() > own.lines().count(), "no devices of the host: {names}");
    // Beside it, an ordinary app is confined as ever.
    let image = g.fixture();
    let line = ["run", "--net=none", "-d", &image, "--name=all", "--privileged", "--", "sleep", "forever", "---"];
    let pod = pod_id(&g.run(&[&line[..], &[&image, "--name=one", "--", "sleep", "forever"]].concat()).ok());
    let caps = g.run(&["exec", &pod, "--app=one", "--", "/bin/app", "caps"]).ok().stdout;
    assert_eq!((field(&caps, "Seccomp:").as_str(), bits(&caps)), ("2", bits(&plain)), "{caps}");
    let caps = g.run(&["exec", &pod, "--app=all", "--", "/bin/app", "caps"]).ok().stdout;
    assert_eq!(field(&caps, "Seccomp:"), "0", "a program executed in it is privileged, too");
    assert_eq!(g.run(&["cat-manifest", &pod]).ok().json()["apps"][0]["privileged"], true);
    // A privileged app can be added only where the pod allows it.
    let add = |pod: &str| g.run(&["app", "add", pod, &image, "--name=late", "--privileged", "--", "sleep", "forever"]);
    let plain_sandbox = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    let _ = add(&plain_sandbox).exits(FAILED).stderr_contains(&["--privileged"]);
    let sandbox = pod_id(&g.run(&["app", "sandbox", "--net=none", "--privileged"]).ok());
    add(&sandbox).succeeded();
    g.run(&["app", "start", &format!("{sandbox}/late")]).succeeded();
    let late = g.run(&["exec", &sandbox, "--app=late", "--", "/bin/app", "ls", "/dev"]).ok().stdout;
    assert_eq!(late.lines().count(), names.lines().count(), "{late}");
}

#[test]
fn devices_of_directories_and_of_added_apps() {
    let g = Gantry::new();
    // A directory with a node of a harmless device, and something that is none.
    let dir = g.scratch().join("devices");
    std::fs::create_dir_all(dir.join("deep")).unwrap();
    std::fs::write(dir.join("file"), "x").unwrap();
    let kind = rustix::fs::FileType::CharacterDevice;
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    for (name, minor) in [("zero", 5), ("deep/full", 7)] {
        let node = rustix::fs::makedev(1, minor);
        rustix::fs::mknodat(rustix::fs::CWD, dir.join(name), kind, mode, node).unwrap();
    }
    let flag = format!("--device={}:/dev/mine", dir.display());
    let stat = g.app(&[&flag], &["stat", "/dev/mine/zero", "/dev/mine/deep/full"]).ok().stdout;
    assert_eq!(stat.lines().filter(|line| line.starts_with("char 0640")).count(), 2, "{stat}");
    assert_eq!(g.app(&[&flag], &["ls", "/dev/mine"]).ok().stdout, "deep\nzero\n");
    let _ = g.app(&["--device=/etc:/dev/etc"], &["true"]).exits(FAILED).stderr_contains(&["no device"]);

    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    let image = g.fixture();
    let add = |name: &str, flags: &[&str]| {
        let name = format!("--name={name}");
        g.run(&[&["app", "add", &pod, &image, &name], flags, &["--", "sleep", "forever"]].concat())
    };
    let fuse = std::path::Path::new("/dev/fuse").exists();
    let device = if fuse { "/dev/fuse" } else { "/dev/zero:/dev/other" };
    let target = device.rsplit(':').next().unwrap();
    add("with", &["--device", device]).succeeded();
    add("without", &[]).succeeded();
    g.run(&["app", "start", &format!("{pod}/with"), &format!("{pod}/without")]).succeeded();
    let open = |app: &str| g.run(&["exec", &pod, "--app", app, "--", "/bin/app", "open-try", target]);
    assert!(open("with").code == 0, "{:?}", open("with"));
    assert_ne!(open("without").code, 0, "another app has no node of it");
    // Also after a restart, which makes the app a new cgroup.
    g.run(&["restart", "--force", &format!("{pod}/with")]).succeeded();
    assert_eq!(open("with").code, 0);
    let _ = add("none", &["--device=/no/such:/dev/x"]).exits(FAILED).stderr_contains(&["/no/such"]);
}

#[test]
fn added_apps_take_input_and_terminals() {
    let g = Gantry::new();
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    let image = g.fixture();
    g.run(&["app", "add", "-i", &pod, &image, "--name=echo", "--", "echo-stdin"]).succeeded();
    g.run(&["app", "start", &format!("{pod}/echo")]).succeeded();
    let mut attach = g.spawn_with_stdin(&["attach", &pod, "--app=echo"]);
    attach.write("hello\n");
    g.wait_log(&pod, "hello");
    attach.close_stdin();
    // The end of the input ends the app, and not the sandbox.
    let echo = format!("{pod}/echo");
    wait_for("the app to exit", || {
        Some(g.json(&["app", "status", &echo])).filter(|app| app["state"] == "exited" && app["exit_code"] == 0)
    });
    g.run(&["app", "add", "-t", &pod, &image, "--name=term", "--", "tty"]).succeeded();
    for attempt in 0..2 {
        g.run(&["app", "start", &format!("{pod}/term")]).succeeded();
        wait_for("the terminal's output", || {
            let said = g.run(&["logs", &pod, "--app=term"]).ok().stdout;
            (said.matches("0=true 1=true 2=true").count() == attempt + 1).then_some(())
        });
        wait_for("the app to exit", || {
            Some(g.json(&["app", "status", &format!("{pod}/term")])).filter(|app| app["state"] == "exited")
        });
    }
    g.run(&["stop", "--force", &pod]).succeeded();
    let _ = attach.wait();
}
