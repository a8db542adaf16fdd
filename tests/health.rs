//! Health checks of apps: each kind of probe, hostile servers and programs, actions, images, and what commands show.
//! Kills by the OOM killer: of children and main processes, by the limits of the app and of the pod.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use gantry_fixtures::{Image, standard_image};
use gantry_tests::{Gantry, Out, app, pod_id, wait_for};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

const FAILED: i32 = 125;

/// Flags that make checks quick.
const QUICK: [&str; 2] = ["--health-interval=100ms", "--health-retries=2"];

/// The types of the events of an app.
#[track_caller]
fn events(g: &Gantry, pod: &str, name: &str) -> Vec<String> {
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=pod={pod}")]).ok();
    let events = out.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
    let of_app = events.filter(|event| event["name"] == name);
    of_app.map(|event| event["type"].as_str().unwrap_or_default().to_owned()).collect()
}

/// The report of an app's health in `inspect`.
#[track_caller]
fn report(g: &Gantry, pod: &str, name: &str) -> Value {
    g.run(&["inspect", pod]).ok().json()["health"][name].clone()
}

/// Waits until an app has this health.
#[track_caller]
fn wait_health(g: &Gantry, pod: &str, name: &str, health: &str) -> Value {
    wait_for(&format!("app {name} to be {health}"), || {
        Some(app(&g.status(pod), name)).filter(|app| app["health"] == health)
    })
}

/// Waits until the last probe of an app has this outcome and text in its output.
#[track_caller]
fn wait_result(g: &Gantry, pod: &str, name: &str, success: bool, text: &str) -> Value {
    wait_for(&format!("a probe of {name} with success={success} and '{text}'"), || {
        let report = report(g, pod, name);
        let last = report["results"].as_array()?.last()?.clone();
        let fits = last["success"] == success && last["output"].as_str()?.contains(text);
        fits.then_some(last)
    })
}

#[test]
fn a_command_decides_the_health() {
    let g = Gantry::new();
    let probe = r#"--health-cmd=["/bin/app","stat","/ready"]"#;
    let pod = g.detached(&[&[probe][..], &QUICK].concat(), &["sleep", "forever"]);
    let name = g.status(&pod)["apps"][0]["name"].as_str().map(str::to_owned).unwrap_or_default();
    wait_health(&g, &pod, &name, "unhealthy");
    let last = wait_result(&g, &pod, &name, false, "No such file");
    assert_eq!(last["exit_code"], 1);
    assert!(last["ended"].as_i64() > last["started"].as_i64(), "{last}");
    g.run(&["exec", &pod, "--", "/bin/app", "touch-ready", "/ready"]).succeeded();
    let text = g.run(&["status", "--wait-healthy=60s", &pod]).ok().stdout;
    assert!(text.contains(&format!("health-{name}=healthy,failures=0\n")), "{text}");
    assert!(text.contains(&format!("health-result-{name}=")) && text.contains(",ok,exit-code=0,"), "{text}");
    assert!(g.run(&["list", "--no-legend"]).ok().stdout.contains("running (healthy)"));
    assert_eq!(g.run(&["wait", "--condition=healthy", &pod]).ok().text(), "-1");
    assert!(g.run(&["app", "status", &format!("{pod}/{name}")]).ok().stdout.contains("health=healthy"));
    g.run(&["exec", &pod, "--", "/bin/app", "rm", "/ready"]).succeeded();
    g.run(&["wait", "--condition=unhealthy", "--time=60s", &pod]).succeeded();
    let results = wait_for("five results", || {
        let report = report(&g, &pod, &name);
        report["results"].as_array().filter(|results| results.len() == 5).cloned()
    });
    assert!(results.windows(2).all(|pair| pair[0]["ended"].as_i64() <= pair[1]["started"].as_i64()), "{results:?}");
    let changes = ["app-started", "app-health-starting", "app-unhealthy", "app-healthy", "app-unhealthy"];
    assert_eq!(events(&g, &pod, &name), changes);
    g.run(&["stop", &pod]).succeeded();
    assert_eq!(g.status(&pod)["apps"][0]["health"], Value::Null, "an app that has exited has no health");
    let _refused =
        g.run(&["status", "--wait-healthy", &pod]).exits(FAILED).stderr_contains(&["can no longer become healthy"]);
}

/// A server on a port of the pod's loopback interface. Each connection gets a thread, which ends with the test.
fn serve(g: &Gantry, pod: &str, port: u16, handle: impl Fn(TcpStream) + Send + Sync + 'static) {
    let pid = g.network_namespace(pod).pid();
    let handle = Arc::new(handle);
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"));
        let moved = namespace
            .map(|file| move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network)));
        assert!(matches!(moved, Ok(Ok(()))), "cannot enter the pod's network namespace: {moved:?}");
        let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) else { return };
        if ready.send(()).is_err() {
            return;
        }
        for stream in listener.incoming().flatten() {
            let handle = Arc::clone(&handle);
            std::thread::spawn(move || handle(stream));
        }
    });
    assert!(is_ready.recv().is_ok(), "the server did not start");
}

/// Reads the request, and writes these bytes.
fn reply(mut stream: TcpStream, bytes: &[u8]) {
    let mut request = [0; 4096];
    let read = stream.read(&mut request).unwrap_or(0);
    assert!(request[..read].starts_with(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:"), "{:?}", &request[..read]);
    let _closed_early = stream.write_all(bytes);
}

#[test]
fn servers_decide_the_health() {
    let g = Gantry::new();
    let image = g.fixture();
    let names = ["ok", "moved", "error", "garbage", "closed", "silent", "slow", "endless", "refused", "tcp", "no-tcp"];
    let flags: Vec<Vec<String>> = (7001..)
        .zip(names)
        .map(|(port, name)| {
            let probe = match name {
                "tcp" | "no-tcp" => format!("--health-tcp={port}"),
                _ => format!("--health-http=:{port}/health"),
            };
            vec![image.clone(), format!("--name={name}"), probe]
        })
        .collect();
    let mut line = vec!["run", "--net=none", "--detach", "--health-interval=200ms", "--health-timeout=400ms"];
    line.push("--health-retries=1");
    for (number, app) in flags.iter().enumerate() {
        line.extend((number > 0).then_some("---"));
        line.extend(app.iter().map(String::as_str));
        line.extend(["--", "sleep", "forever"]);
    }
    let pod = pod_id(&g.run(&line).ok());
    serve(&g, &pod, 7001, |stream| reply(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"));
    serve(&g, &pod, 7002, |stream| reply(stream, b"HTTP/1.0 302 Found\r\nLocation: /\r\n\r\n"));
    serve(&g, &pod, 7003, |stream| reply(stream, b"HTTP/1.1 503 Service Unavailable\r\n\r\n"));
    serve(&g, &pod, 7004, |stream| reply(stream, b"220 smtp \x1b[2J\r\n"));
    serve(&g, &pod, 7005, |stream| reply(stream, b""));
    serve(&g, &pod, 7006, |mut stream| drop(stream.read_to_end(&mut Vec::new())));
    serve(&g, &pod, 7007, |mut stream| {
        let timeout = std::time::Duration::from_millis(100);
        stream.set_read_timeout(Some(timeout)).unwrap_or_else(|error| panic!("{error}"));
        for byte in b"HTTP/1.1 200 OK".iter().cycle() {
            // The client sends nothing more: the read ends after its timeout.
            let _timed_out = stream.read(&mut [0]);
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
        }
    });
    serve(&g, &pod, 7008, |mut stream| {
        let mut wrote = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while wrote.is_ok() {
            wrote = stream.write_all(&[b'x'; 65_536]);
        }
    });
    serve(&g, &pod, 7010, drop);
    for (name, success, text) in [
        ("ok", true, "HTTP/1.1 200 OK"),
        ("moved", true, "HTTP/1.0 302 Found"),
        ("error", false, "HTTP/1.1 503 Service Unavailable"),
        ("garbage", false, "the reply is not HTTP: 220 smtp \u{fffd}[2J"),
        ("closed", false, "without a reply"),
        ("silent", false, "the probe did not end within 400 ms"),
        ("slow", false, "did not end within 400 ms"),
        ("endless", true, "HTTP/1.1 200 OK"),
        ("refused", false, "Connection refused"),
        ("tcp", true, "connected"),
        ("no-tcp", false, "Connection refused"),
    ] {
        wait_result(&g, &pod, name, success, text);
        wait_health(&g, &pod, name, if success { "healthy" } else { "unhealthy" });
    }
    // The supervisor has served all the time.
    g.run(&["exec", &pod, "--app=slow", "--", "/bin/app", "true"]).succeeded();
}

#[test]
fn a_late_probe_is_killed_with_its_children() {
    let g = Gantry::new();
    let children = r#"--health-cmd=["/bin/app","fork-children","3","forever"]"#;
    let flags = [children, "--health-interval=2s", "--health-timeout=300ms", "--health-retries=1"];
    let pod = g.detached(&flags, &["sleep", "forever"]);
    let name = g.status(&pod)["apps"][0]["name"].as_str().map(str::to_owned).unwrap_or_default();
    wait_result(&g, &pod, &name, false, "the probe did not end within 300 ms");
    let main = g.app_pid(&pod, &name);
    let cgroup = std::fs::read_to_string(format!("/proc/{main}/cgroup")).unwrap_or_default();
    wait_for("the children of the probe to end", || (processes_of(&cgroup) == [main]).then_some(()));
}

/// The processes in the cgroups of `/proc/PID/cgroup`.
fn processes_of(cgroup: &str) -> Vec<u32> {
    let same = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|other| other == cgroup);
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(same).collect()
}

#[test]
fn the_output_of_a_probe_is_bounded() {
    let g = Gantry::new();
    let flood = r#"--health-cmd=["/bin/app","flood","1000000000"]"#;
    let pod = g.detached(&[&[flood][..], &QUICK].concat(), &["sleep", "forever"]);
    let name = g.status(&pod)["apps"][0]["name"].as_str().map(str::to_owned).unwrap_or_default();
    wait_health(&g, &pod, &name, "unhealthy");
    let report = report(&g, &pod, &name);
    for result in report["results"].as_array().unwrap_or(&Vec::new()) {
        let output = result["output"].as_str().unwrap_or_default();
        assert!((3000..=4096).contains(&output.len()), "{} bytes of output", output.len());
    }
    let journal = g.run(&["inspect", &pod]).ok().json()["journal"].to_string();
    assert!(journal.contains("health-changed") && journal.len() < 8192, "{} bytes", journal.len());
}

#[test]
fn an_unhealthy_app_is_restarted_stopped_or_killed() {
    let g = Gantry::new();
    // The app has to be ready for SIGTERM before the first probe.
    let fail = [r#"--health-cmd=["/bin/false"]"#, "--health-interval=3s", "--health-retries=1"];
    let run = |action: &str| {
        let action = format!("--health-on-failure={action}");
        g.detached(&[&fail[..], &[&action, "--name=web"]].concat(), &["obey", "TERM", "7"])
    };
    let restarted = run("restart");
    wait_for("the app to be restarted", || {
        (app(&g.status(&restarted), "web")["attempt"].as_u64() >= Some(1)).then_some(())
    });
    let told = events(&g, &restarted, "web");
    let begins = ["app-started", "app-health-starting", "app-unhealthy", "app-exited", "app-started"];
    assert_eq!(told[..5], begins, "{told:?}");
    g.run(&["stop", &restarted]).succeeded();

    let stopped = run("stop");
    let status = g.wait_state(&stopped, "exited");
    assert_eq!((&status["exit_code"], &status["failed_app"]), (&json!(7), &json!("web")), "{status}");
    let reason = "app web is unhealthy: stopped by its health check";
    assert_eq!(status["reason"], reason);
    let killed = run("kill");
    let status = g.wait_state(&killed, "exited");
    assert_eq!((&status["exit_code"], &status["failed_app"]), (&json!(137), &json!("web")), "{status}");
    assert_eq!(status["reason"], reason);
}

#[test]
fn events_of_unseen_attempts_are_in_order() {
    let g = Gantry::new();
    let check = [r#"--health-cmd=["/bin/true"]"#, "--health-interval=1h", "--restart=on-failure:2", "--name=web"];
    let pod = g.detached(&check, &["exit", "3"]);
    // No command reconciles meanwhile.
    let journal = g.dir().join("pods").join(&pod).join("journal");
    wait_for("the pod to end", || {
        std::fs::read_to_string(&journal).is_ok_and(|text| text.contains("\"ended\"")).then_some(())
    });
    let attempt = ["app-started", "app-health-starting", "app-exited"];
    assert_eq!(events(&g, &pod, "web"), [attempt; 3].concat());
}

#[test]
fn restarts_of_an_unhealthy_app_back_off() {
    let g = Gantry::new();
    let check = [r#"--health-cmd=["/bin/false"]"#, "--health-interval=100ms", "--health-retries=1"];
    let flags = [&check[..], &["--health-on-failure=restart", "--name=web"]].concat();
    let pod = g.detached(&flags, &["obey", "TERM", "7"]);
    let status = wait_for("the back-off of a later restart", || {
        Some(app(&g.status(&pod), "web"))
            .filter(|app| app["restart_at"].is_string() && app["attempt"].as_u64() >= Some(2))
    });
    assert_eq!(status["state"], "exited", "{status}");
    wait_for("the next attempt", || (app(&g.status(&pod), "web")["attempt"].as_u64() >= Some(3)).then_some(()));
    g.run(&["stop", &pod]).succeeded();
    let status = g.wait_state(&pod, "exited");
    assert_eq!(app(&status, "web")["restart_at"], Value::Null, "{status}");
}

#[test]
fn failures_of_the_start_period_do_not_count() {
    let g = Gantry::new();
    let flags = [
        r#"--health-cmd=["/bin/app","stat","/ready"]"#,
        "--health-start-period=24h",
        "--health-start-interval=100ms",
        "--health-interval=100ms",
        "--health-retries=1",
        "--name=web",
    ];
    let pod = g.detached(&flags, &["sleep", "forever"]);
    wait_for("five failures", || {
        let report = report(&g, &pod, "web");
        report["results"].as_array().filter(|results| results.len() == 5).map(drop)
    });
    assert_eq!(app(&g.status(&pod), "web")["health"], "starting");
    g.run(&["exec", &pod, "--", "/bin/app", "touch-ready", "/ready"]).succeeded();
    wait_health(&g, &pod, "web", "healthy");
    g.run(&["exec", &pod, "--", "/bin/app", "rm", "/ready"]).succeeded();
    wait_health(&g, &pod, "web", "unhealthy");
}

/// The standard image with this `Healthcheck`.
#[track_caller]
fn image_with_check(g: &Gantry, name: &str, check: Value) -> String {
    let mut image: Image = standard_image(g.app_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let mut config: Value = serde_json::from_slice(&image.config).unwrap_or_default();
    config["config"]["Healthcheck"] = check;
    image.config = config.to_string().into_bytes();
    let mut manifest: Value = serde_json::from_slice(&image.manifest).unwrap_or_default();
    manifest["config"]["size"] = json!(image.config.len());
    manifest["config"]["digest"] = json!(gantry_fixtures::digest(&image.config));
    image.manifest = manifest.to_string().into_bytes();
    g.import(name, &image)
}

#[test]
fn the_health_check_of_an_image_is_honoured() {
    let g = Gantry::new();
    let check = json!({"Test": ["CMD", "/bin/true"], "Interval": 100_000_000, "Retries": 1});
    let image = image_with_check(&g, "checked", check);
    let run = |flags: &[&str]| {
        let line = [&["run", "--net=none", "--detach", &image, "--name=web"], flags, &["--", "sleep", "forever"]];
        g.run(&line.concat())
    };
    let pod = pod_id(&run(&[]).ok());
    g.run(&["wait", "--condition=healthy", "--time=60s", &pod]).succeeded();
    // The user's command, with the interval and the retries of the image.
    let failing = pod_id(&run(&[r#"--health-cmd=["/bin/false"]"#]).ok());
    wait_health(&g, &failing, "web", "unhealthy");
    assert!(report(&g, &failing, "web")["failures"].as_u64() >= Some(1));
    let none = pod_id(&run(&["--no-healthcheck"]).ok());
    assert_eq!(app(&g.status(&none), "web")["health"], Value::Null);
    let _refused =
        g.run(&["status", "--wait-healthy", &none]).exits(FAILED).stderr_contains(&["no app", "health check"]);

    let shell = image_with_check(&g, "shell", json!({"Test": ["CMD-SHELL", "exit 0"], "Interval": 100_000_000}));
    let line = ["run", "--net=none", "--detach", &shell, "--name=web", "--", "sleep", "forever"];
    let pod = pod_id(&g.run(&line).ok());
    wait_result(&g, &pod, "web", false, "/bin/sh");
    let odd = image_with_check(&g, "odd", json!({"Test": "curl", "Interval": "soon"}));
    let line = ["run", "--net=none", "--quiet", &odd, "--", "true"];
    let _ran: Out = g.run(&line).ok();
}

#[test]
fn settings_without_a_check_are_refused() {
    let g = Gantry::new();
    let refused = |flags: &[&str], texts: &[&str]| {
        let _refused = g.app(flags, &["true"]).exits(FAILED).stderr_contains(texts);
    };
    refused(&["--health-interval=1s"], &["no health check", "--health-cmd"]);
    refused(&["--health-on-failure=explode"], &["none, restart, stop or kill"]);
    refused(&["--health-http=http://example.com/"], &["example.com"]);
    refused(&["--health-cmd=true", "--health-interval=1ms"], &["--health-interval", "100ms to 24h"]);
    let pod = g.detached(&[], &["sleep", "forever"]);
    let wait = g.run(&["wait", "--condition=healthy", "--time=60s", &pod]);
    let _refused = wait.exits(FAILED).stderr_contains(&["no app", "health check"]);
}

#[test]
fn added_apps_and_manifests_have_health_checks() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    let add = ["app", "add", &pod, &image, "--name=web", r#"--health-cmd=["/bin/true"]"#, "--health-interval=100ms"];
    g.run(&[&add[..], &["--", "sleep", "forever"]].concat()).succeeded();
    g.run(&["app", "start", &format!("{pod}/web")]).succeeded();
    wait_health(&g, &pod, "web", "healthy");
    g.run(&["pause", &pod]).succeeded();
    assert!(g.run(&["list", "--no-legend"]).ok().stdout.contains("paused"));
    g.run(&["unpause", &pod]).succeeded();
    assert_eq!(app(&g.status(&pod), "web")["health"], "healthy");
    g.run(&["restart", &format!("{pod}/web")]).succeeded();
    wait_health(&g, &pod, "web", "healthy");
    // A sandbox outlives its apps: without one that runs, no wait for health ends by itself.
    let other = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    let add = ["app", "add", &other, &image, "--name=brief", r#"--health-cmd=["/bin/false"]"#, "--health-interval=1h"];
    g.run(&[&add[..], &["--", "sleep", "0.2"]].concat()).succeeded();
    g.run(&["app", "start", &format!("{other}/brief")]).succeeded();
    let waited = g.run(&["wait", "--condition=healthy", "--time=60s", &other]);
    let _refused = waited.exits(FAILED).stderr_contains(&["with a health check has exited"]);
    let told = events(&g, &pod, "web");
    let health: Vec<_> = told.iter().filter(|kind| kind.contains("health")).map(String::as_str).collect();
    assert_eq!(health, ["app-health-starting", "app-healthy", "app-health-starting", "app-healthy"]);

    let tcp = ["--health-tcp=[::1]:5432", "--health-retries=7", "--health-on-failure=restart"];
    let prepared = pod_id(&g.run(&[&["prepare", "--net=none", "--quiet", &image][..], &tcp].concat()).ok());
    let manifest = g.run(&["cat-manifest", &prepared]).ok();
    let want = json!({"probe": {"tcp": {"host": "::1", "port": 5432}}, "retries": 7, "on_failure": "restart"});
    assert_eq!(manifest.json()["apps"][0]["health"], want);
    let file = g.scratch().join("manifest.json");
    assert!(std::fs::write(&file, &manifest.stdout).is_ok());
    let again = format!("--pod-manifest={}", file.display());
    let again = pod_id(&g.run(&["prepare", "--quiet", &again]).ok());
    assert_eq!(g.run(&["cat-manifest", &again]).ok().json()["apps"], manifest.json()["apps"]);
}

/// The data of the app's events of this type.
#[track_caller]
fn data_of(g: &Gantry, pod: &str, kind: &str) -> Vec<Value> {
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=pod={pod}")]).ok();
    let events = out.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
    events.filter(|event| event["type"] == kind).map(|event| event["data"].clone()).collect()
}

#[test]
fn main_processes_are_killed_at_the_limit() {
    let g = Gantry::new();
    let pod = g.detached(&["--memory=32Mi", "--name=web"], &["alloc", "256", "hold"]);
    let status = g.wait_state(&pod, "exited");
    assert_eq!(status["reason"], "app web ran out of memory: its memory limit was reached");
    let web = app(&status, "web");
    assert_eq!((&web["oom"], &web["oom_kills"], &web["oom_level"]), (&json!(true), &json!(1), &json!("app")));
    let told = data_of(&g, &pod, "app-oom");
    let [event] = &told[..] else { panic!("one event: {told:?}") };
    // The kernel limits the rate of the line that names the process.
    if !web["oom_victim"].is_null() {
        assert_eq!(web["oom_victim"]["name"], "app", "{web}");
        let text = g.run(&["status", &pod]).ok().stdout;
        let line = format!("oom-web=kills=1,level=app,pid={},process=app\n", web["oom_victim"]["pid"]);
        assert!(text.contains(&line), "{text}");
        assert_eq!((&event["victim"], &event["victim_pid"]), (&json!("app"), &web["oom_victim"]["pid"]));
    }
    assert_eq!((&event["level"], &event["kills"], &event["process"]), (&json!("app"), &json!(1), &json!("main")));
    let told = events(&g, &pod, "web");
    assert_eq!(told, ["app-started", "app-oom", "app-exited"], "in the order in which it happened");
}

#[test]
fn kills_of_child_processes_are_reported_at_once() {
    let g = Gantry::new();
    let pod = g.detached(&["--memory=32Mi", "--name=web"], &["sleep", "forever"]);
    let _killed = g.run(&["exec", &pod, "--", "/bin/app", "alloc", "256"]).exits(137);
    let web = wait_for("the kill to be reported", || {
        Some(app(&g.status(&pod), "web")).filter(|app| app["oom_kills"].as_u64() >= Some(1))
    });
    assert_eq!((&web["state"], &web["oom_level"]), (&json!("running"), &json!("app")), "{web}");
    assert!(g.run(&["status", &pod]).ok().stdout.contains("oom-web=kills=1,level=app"));
    let told = data_of(&g, &pod, "app-oom");
    assert_eq!((told.len(), &told[0]["process"]), (1, &json!("child")), "{told:?}");
    // A second one, after the first was reported.
    let _killed = g.run(&["exec", &pod, "--", "/bin/app", "alloc", "256"]).exits(137);
    wait_for("the second kill to be reported", || (app(&g.status(&pod), "web")["oom_kills"] == 2).then_some(()));
}

#[test]
fn apps_are_killed_at_the_pod_limit() {
    let g = Gantry::new();
    let image = g.fixture();
    let line = ["run", "--net=none", "--detach", "--pod-memory=32Mi", &image, "--name=web", "--memory=1Gi"];
    let pod = pod_id(&g.run(&[&line[..], &["--", "alloc", "256", "hold"]].concat()).ok());
    let status = g.wait_state(&pod, "exited");
    assert_eq!(status["reason"], "app web ran out of memory: the memory limit of the pod was reached");
    assert_eq!(app(&status, "web")["oom_level"], "pod");
}
