//! The life of containers of the Kubernetes CRI, by a client that shares only the .proto files.

use std::time::{Duration, Instant};

use gantry_tests::cri::{self, Sandbox, call, failure, serve};
use gantry_tests::python::run_script;
use gantry_tests::{Gantry, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The status of a container once it has exited.
#[track_caller]
fn exited(address: &str, id: &str) -> Value {
    wait_for("the exit", || Some(cri::container(address, id)).filter(|status| status["state"] == "CONTAINER_EXITED"))
}

#[track_caller]
fn stop(address: &str, id: &str, timeout: u32) {
    assert_eq!(call(address, "StopContainer", &json!({ "container_id": id, "timeout": timeout })), json!({}));
}

#[track_caller]
fn remove(address: &str, id: &str) {
    assert_eq!(call(address, "RemoveContainer", &json!({ "container_id": id })), json!({}));
}

/// Waits for the text in a file.
#[track_caller]
fn wait_text(path: &str, text: &str) {
    wait_for(text, || std::fs::read_to_string(path).ok().filter(|found| found.contains(text)).map(drop));
}

#[test]
fn containers_live_as_kubelets_expect() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let user = json!({ "run_as_user": { "value": "1000" }, "run_as_group": { "value": "1001" } });
    let id = sandbox.create_with(&["sleep", "60"], &json!({ "linux": { "security_context": user } }));
    assert_eq!(id.len(), 64);
    let created = cri::container(&address, &id);
    // proto3 leaves out CREATED, which is 0.
    assert_eq!((&created["state"], &created["user"]), (&Value::Null, &Value::Null));
    sandbox.start(&id);
    let running = cri::container(&address, &id);
    assert_eq!(running["state"], "CONTAINER_RUNNING");
    let user = &running["user"]["linux"];
    assert_eq!((&user["uid"], &user["gid"]), (&json!("1000"), &json!("1001")), "{running}");
    assert_eq!((&running["image_id"], &running["image_ref"]), (&json!(sandbox.image), &json!(sandbox.image)));
    assert_eq!(failure(&address, "StartContainer", &json!({ "container_id": id })).0, "FAILED_PRECONDITION");
    for _ in 0..2 {
        stop(&address, &id, 30);
    }
    let ended = cri::container(&address, &id);
    let end = (&ended["state"], &ended["reason"], &ended["exit_code"]);
    assert_eq!(end, (&json!("CONTAINER_EXITED"), &json!("Error"), &json!(143)));
    assert_eq!(ended["user"], Value::Null, "no process has it");
    assert_eq!(failure(&address, "StartContainer", &json!({ "container_id": id })).0, "FAILED_PRECONDITION");
    for _ in 0..2 {
        remove(&address, &id);
    }
    assert_eq!(failure(&address, "ContainerStatus", &json!({ "container_id": id })).0, "NOT_FOUND");
    // One that was created, and one that runs.
    remove(&address, &sandbox.create(&["sleep", "60"]));
    remove(&address, &sandbox.launch(&["sleep", "60"]));
    assert_eq!(cri::containers(&address, &json!({})), [""; 0]);
    sandbox.remove();
    served.end();
}

#[test]
fn one_of_several_starts_succeeds() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    for _ in 0..4 {
        let id = sandbox.create(&["sleep", "60"]);
        let replies = cri::call_parallel(&address, "StartContainer", &json!({ "container_id": id }), 8);
        let (started, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| **reply == json!({}));
        assert_eq!((started.len(), refused.len()), (1, 7), "{replies:?}");
        assert!(refused.iter().all(|reply| reply["code"] == "FAILED_PRECONDITION"), "{replies:?}");
        assert_eq!(cri::container(&address, &id)["state"], "CONTAINER_RUNNING");
    }
    sandbox.remove();
    served.end();
}

#[test]
fn every_call_takes_the_beginning_of_an_id() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.create(&["sleep", "60"]);
    let short = json!(id[..8].to_uppercase());
    let with = |key: &str, value: Value| json!({ "container_id": short, key: value });
    assert_eq!(call(&address, "StartContainer", &json!({ "container_id": short })), json!({}));
    assert_eq!(call(&address, "ContainerStatus", &with("verbose", json!(false)))["status"]["id"], json!(id));
    call(&address, "ContainerStats", &json!({ "container_id": short }));
    let resources = json!({ "cpu_shares": "512" });
    call(&address, "UpdateContainerResources", &with("linux", resources));
    call(&address, "ExecSync", &with("cmd", json!(["/bin/app", "true"])));
    // Of several containers, none is chosen.
    let mut all = vec![id.clone()];
    let digit = loop {
        all.push(sandbox.create(&["sleep", "60"]));
        let begin = |digit: &char| all.iter().filter(|id| id.starts_with(*digit)).count() > 1;
        if let Some(digit) = "0123456789abcdef".chars().find(begin) {
            break json!({ "container_id": digit.to_string() });
        }
    };
    for method in ["StopContainer", "RemoveContainer", "StartContainer", "ContainerStatus"] {
        let (code, details) = failure(&address, method, &digit);
        assert!(code == "INVALID_ARGUMENT" && details.contains("several"), "{method}: {code} {details}");
    }
    call(&address, "StopContainer", &json!({ "container_id": short }));
    assert_eq!(cri::container(&address, &id)["state"], "CONTAINER_EXITED");
    call(&address, "RemoveContainer", &json!({ "container_id": short }));
    assert_eq!(failure(&address, "ContainerStatus", &json!({ "container_id": id })).0, "NOT_FOUND");
    assert_eq!(cri::containers(&address, &json!({})).len(), all.len() - 1);
    sandbox.remove();
    served.end();
}

#[test]
fn ends_of_containers_have_reasons() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    for (command, reason, code) in [(&["exit", "0"], "Completed", Value::Null), (&["exit", "7"], "Error", json!(7))] {
        let status = exited(&address, &sandbox.launch(command));
        assert_eq!((&status["reason"], &status["exit_code"]), (&json!(reason), &code));
        let time = |key: &str| status[key].as_str().and_then(|text| text.parse::<i64>().ok()).unwrap_or_default();
        assert!(0 < time("created_at") && time("created_at") < time("started_at"), "{status}");
        assert!(time("started_at") <= time("finished_at"), "{status}");
    }
    let memory = json!({ "linux": { "resources": { "memory_limit_in_bytes": "33554432" } } });
    let id = sandbox.create_with(&["alloc", "256"], &memory);
    sandbox.start(&id);
    let status = exited(&address, &id);
    assert_eq!((&status["reason"], &status["exit_code"]), (&json!("OOMKilled"), &json!(137)), "{status}");
    sandbox.remove();
    served.end();
}

#[test]
fn failed_starts_are_ends() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    // It is executable, so that only its start fails.
    let id = sandbox.create_with(&[], &json!({ "command": ["/bin/garbage"] }));
    let start = json!({ "container_id": id });
    assert_ne!(failure(&address, "StartContainer", &start).0, "OK");
    let status = cri::container(&address, &id);
    let end = (&status["state"], &status["reason"], &status["exit_code"]);
    assert_eq!(end, (&json!("CONTAINER_EXITED"), &json!("StartError"), &json!(128)));
    assert!(status["message"].as_str().is_some_and(|text| text.contains("garbage")), "{status}");
    let time = |key: &str| status[key].as_str().and_then(|text| text.parse::<i64>().ok()).unwrap_or_default();
    assert!(0 < time("created_at") && time("created_at") < time("finished_at"), "{status}");
    assert_eq!(failure(&address, "StartContainer", &start).0, "FAILED_PRECONDITION");
    stop(&address, &id, 1);
    remove(&address, &id);
    // Programs that are missing fail the creation, and leave nothing.
    let missing = sandbox.request(&[], &json!({ "command": ["/bin/missing"] }));
    for _ in 0..2 {
        let (code, details) = failure(&address, "CreateContainer", &missing);
        assert!(code != "ALREADY_EXISTS" && details.contains("/bin/missing"), "{code} {details}");
    }
    assert_eq!(cri::containers(&address, &json!({})), [""; 0]);
    sandbox.remove();
    served.end();
}

#[test]
fn attributes_of_containers_are_kept() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let logs = g.scratch().join("pod-logs");
    std::fs::create_dir_all(logs.join("web")).unwrap();
    let sandbox = Sandbox::run_with(&g, &address, "web", &json!({ "log_directory": logs }));
    let volume = g.scratch().join("volume");
    std::fs::create_dir_all(&volume).unwrap();
    let more = json!({
        "image": { "image": sandbox.image, "user_specified_image": "registry.example/web:1" },
        "labels": { "app": "web", "io.kubernetes.container.name": "main" },
        "annotations": { "example.org/text": "a\nb=c" },
        "mounts": [{ "container_path": "/data", "host_path": volume }],
        "envs": [{ "key": "COLOUR", "value": "Ymx1ZQ==" }],
        "working_dir": "/tmp",
        "log_path": "web/0.log",
        "stop_signal": "SIGNAL_SIGUSR1",
    });
    let verbs = ["seq", "env", "--", "cwd", "--", "obey", "USR1", "--", "no-newline", "half a line", "--", "exit", "5"];
    let id = sandbox.create_with(&verbs, &more);
    sandbox.start(&id);
    let status = cri::container(&address, &id);
    let listed = &call(&address, "ListContainers", &json!({}))["containers"][0];
    for key in ["labels", "annotations"] {
        assert_eq!((&status[key], &listed[key]), (&more[key], &more[key]), "{key}");
    }
    assert_eq!((&status["metadata"], &listed["metadata"]["attempt"]), (&listed["metadata"], &json!(2)));
    assert_eq!(status["image"]["image"], "registry.example/web:1", "a kubelet shows it in the pod's status");
    assert_eq!((&status["mounts"], &status["stop_signal"]), (&more["mounts"], &more["stop_signal"]));
    assert_eq!(listed["pod_sandbox_id"], sandbox.id);
    let log = logs.join("web/0.log").display().to_string();
    assert_eq!(status["log_path"], log);
    wait_text(&log, "COLOUR=blue");
    wait_text(&log, "/tmp");
    let verbose = call(&address, "ContainerStatus", &json!({ "container_id": &id[..13], "verbose": true }));
    assert!(verbose["info"]["info"].as_str().is_some_and(|text| text.contains(&sandbox.id)), "{verbose}");
    stop(&address, &id, 30);
    assert_eq!(cri::container(&address, &id)["exit_code"], 5);
    remove(&address, &id);
    let text = std::fs::read_to_string(&log).unwrap();
    let tags: Vec<_> = text.lines().map(|line| line.split(' ').nth(2)).collect();
    assert!(text.contains("half a line\n") && tags.ends_with(&[Some("F")]), "the log is its caller's: {text}");
    sandbox.remove();
    served.end();
}

#[test]
fn stop_signals_are_those_in_effect() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let layer = gantry_fixtures::Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
    let image = gantry_fixtures::Image::builder().layer(layer).stop_signal("SIGUSR1").build().unwrap();
    let image = json!({ "image": { "image": g.import("usr1", &image) } });
    let mut requested = image.clone();
    requested["stop_signal"] = json!("SIGNAL_SIGUSR2");
    for (more, signal) in [(json!({}), "SIGTERM"), (image, "SIGUSR1"), (requested, "SIGUSR2")] {
        let id = sandbox.create_with(&["sleep", "forever"], &more);
        assert_eq!(cri::container(&address, &id)["stop_signal"], format!("SIGNAL_{signal}"), "{more}");
    }
    sandbox.remove();
    served.end();
}

#[test]
fn commands_and_arguments_replace_those_of_the_image() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let logs = g.scratch().join("pod-logs");
    std::fs::create_dir_all(&logs).unwrap();
    let sandbox = Sandbox::run_with(&g, &address, "web", &json!({ "log_directory": logs }));
    // The image's entrypoint is /bin/app, its arguments are: args from image.
    for (name, command, args, printed) in [
        ("neither", json!([]), json!([]), r#"["from","image"]"#),
        ("args", json!([]), json!(["args", "mine"]), r#"["mine"]"#),
        ("command", json!(["/bin/app", "args"]), json!([]), "[]"),
        ("both", json!(["/bin/app", "args"]), json!(["x", "y"]), r#"["x","y"]"#),
    ] {
        let path = format!("{name}.log");
        let id = sandbox.create_with(&[], &json!({ "command": command, "args": args, "log_path": path }));
        sandbox.start(&id);
        exited(&address, &id);
        let log = std::fs::read_to_string(logs.join(&path)).unwrap().replace(", ", ",");
        assert!(log.trim_end().ends_with(printed), "{name}: {log}");
    }
    sandbox.remove();
    served.end();
}

#[test]
fn all_conditions_of_a_list_hold() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let (one, two) = (Sandbox::run(&g, &address, "one"), Sandbox::run(&g, &address, "two"));
    let labels = |name: &str| json!({ "labels": { "app": name } });
    let created = one.create_with(&["sleep", "60"], &labels("a"));
    let running = one.create_with(&["sleep", "60"], &labels("b"));
    one.start(&running);
    let other = two.create_with(&["sleep", "60"], &labels("a"));
    let all = [created.as_str(), running.as_str(), other.as_str()];
    for (filter, expected) in [
        (json!({}), &all[..]),
        (json!({ "id": running }), &all[1..2]),
        (json!({ "id": &running[..13] }), &all[1..2]),
        (json!({ "state": { "state": "CONTAINER_RUNNING" } }), &all[1..2]),
        (json!({ "state": { "state": "CONTAINER_CREATED" }, "pod_sandbox_id": one.id }), &all[..1]),
        (json!({ "pod_sandbox_id": two.id }), &all[2..]),
        (json!({ "label_selector": { "app": "a" }, "pod_sandbox_id": one.id }), &all[..1]),
        (json!({ "label_selector": { "app": "a" }, "id": running }), &[]),
        (json!({ "state": { "state": "CONTAINER_EXITED" } }), &[]),
    ] {
        assert_eq!(cri::containers(&address, &filter), expected, "{filter}");
    }
    let streamed = call(&address, "StreamContainers", &json!({}));
    assert_eq!(streamed["containers"], call(&address, "ListContainers", &json!({}))["containers"]);
    one.remove();
    two.remove();
    assert_eq!(cri::containers(&address, &json!({})), [""; 0]);
    served.end();
}

#[test]
fn names_are_reserved_until_removal() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let request = sandbox.request(&["sleep", "60"], &json!({}));
    let create = || call(&address, "CreateContainer", &request)["container_id"].as_str().unwrap().to_owned();
    let id = create();
    assert_eq!(failure(&address, "CreateContainer", &request).0, "ALREADY_EXISTS");
    let mut next = request.clone();
    next["config"]["metadata"]["attempt"] = json!(3);
    call(&address, "CreateContainer", &next);
    remove(&address, &id);
    remove(&address, &create());
    let mut unknown = request.clone();
    unknown["config"]["image"]["image"] = json!("registry.example/none:1");
    assert_eq!(failure(&address, "CreateContainer", &unknown).0, "NOT_FOUND");
    unknown["pod_sandbox_id"] = json!("a7".repeat(16));
    assert_eq!(failure(&address, "CreateContainer", &unknown).0, "NOT_FOUND");
    sandbox.stop();
    assert_eq!(failure(&address, "CreateContainer", &request).0, "FAILED_PRECONDITION");
    sandbox.remove();
    served.end();
}

#[test]
fn cancelled_creations_release_their_names() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let request = sandbox.request(&["sleep", "60"], &json!({})).to_string();
    let method = "runtime.v1.RuntimeService/CreateContainer";
    for deadline in ["0.001", "0.003", "0.01", "0.02"] {
        // The call may succeed in time.
        run_script("node_client.py", &["--deadline", deadline, &address, method, &request]);
        let id = wait_for("the name, or the container that has it", || {
            cri::containers(&address, &json!({})).pop().or_else(|| {
                run_script("node_client.py", &[&address, method, &request]);
                cri::containers(&address, &json!({})).pop()
            })
        });
        // A call may still be under way that finds its client gone.
        wait_for("removal", || {
            remove(&address, &id);
            cri::containers(&address, &json!({})).is_empty().then_some(())
        });
    }
    sandbox.remove();
    served.end();
}

#[test]
fn unknown_containers_are_stopped_and_removed() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    for id in ["6733c088-a507-4694-aabf-ec79c0a8ac9a", "no-id", &"a7".repeat(32)] {
        stop(&address, id, 0);
        remove(&address, id);
        for method in ["ContainerStatus", "StartContainer", "ReopenContainerLog", "UpdateContainerResources"] {
            assert_eq!(failure(&address, method, &json!({ "container_id": id })).0, "NOT_FOUND", "{method}");
        }
        let exec = json!({ "container_id": id, "cmd": ["true"] });
        assert_eq!(failure(&address, "ExecSync", &exec).0, "NOT_FOUND");
    }
    for method in ["StopContainer", "RemoveContainer", "ContainerStatus"] {
        assert_eq!(failure(&address, method, &json!({})).0, "INVALID_ARGUMENT", "{method}");
    }
    served.end();
}

#[test]
fn a_later_stop_shortens_the_grace_period() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let logs = g.scratch().join("pod-logs");
    std::fs::create_dir_all(&logs).unwrap();
    let sandbox = Sandbox::run_with(&g, &address, "web", &json!({ "log_directory": logs }));
    let id = sandbox.create_with(&["ignore", "TERM"], &json!({ "log_path": "a.log" }));
    sandbox.start(&id);
    let (log, socket, container) = (logs.join("a.log").display().to_string(), address.clone(), id.clone());
    wait_text(&log, "ignoring TERM");
    // Longer than the test may take.
    let first = std::thread::spawn(move || stop(&socket, &container, 3600));
    // The signal was sent, and the container lives.
    wait_text(&log, "got SIGTERM");
    assert_eq!(cri::container(&address, &id)["state"], "CONTAINER_RUNNING");
    stop(&address, &id, 0);
    first.join().unwrap();
    assert_eq!(cri::container(&address, &id)["exit_code"], 137);
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("got SIGTERM").count(), 1, "the signal is sent once: {text}");
    sandbox.remove();
    served.end();
}

#[test]
fn paused_containers_are_stopped() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.launch(&["obey", "TERM", "4"]);
    g.wait_log(&sandbox.id, "obeying");
    g.run(&["pause", &id]).succeeded();
    stop(&address, &id, 30);
    assert_eq!(cri::container(&address, &id)["exit_code"], 4);
    sandbox.remove();
    served.end();
}

/// The kubelet makes other containers instead.
#[test]
fn only_the_kubelet_starts_its_containers() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let (created, running) = (sandbox.create(&["sleep", "60"]), sandbox.launch(&["sleep", "60"]));
    let ended = sandbox.launch(&["exit", "3"]);
    let end = exited(&address, &ended);
    let failed = sandbox.create_with(&[], &json!({ "command": ["/bin/garbage"] }));
    let _ = failure(&address, "StartContainer", &json!({ "container_id": failed }));
    let before = cri::container(&address, &running);
    for (command, id, why) in [
        (&["app", "start"][..], &ended, "cannot be started again"),
        (&["restart"], &ended, "cannot be started again"),
        (&["app", "start"], &failed, "cannot be started again"),
        (&["restart"], &running, "gantry app stop"),
    ] {
        let _ = g.run(&[command, &[id]].concat()).exits(125).stderr_contains(&[why, "kubelet"]);
    }
    // A refused restart leaves a paused pod as it is.
    g.run(&["pause", &sandbox.id]).succeeded();
    let _ = g.run(&["restart", &sandbox.id]).exits(125).stderr_contains(&["kubelet"]);
    assert_eq!(g.status(&sandbox.id)["paused"], true);
    g.run(&["unpause", &sandbox.id]).succeeded();
    assert_eq!(cri::container(&address, &running)["started_at"], before["started_at"]);
    assert_eq!(cri::container(&address, &ended), end);
    // Starting what runs changes nothing, and one that was only created may be started.
    g.run(&["app", "start", &running]).succeeded();
    g.run(&["app", "start", &created]).succeeded();
    // An app that is no container is restarted at will.
    let app = ["app", "add", &sandbox.id, &sandbox.image, "--name=debug", "--", "sleep", "60"];
    g.run(&app).succeeded();
    let debug = format!("{}/debug", sandbox.id);
    g.run(&["app", "start", &debug]).succeeded();
    g.run(&["restart", "--time=0", &debug]).succeeded();
    sandbox.remove();
    served.end();
}

#[test]
fn a_pending_stop_delays_no_end() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let logs = g.scratch().join("pod-logs");
    std::fs::create_dir_all(&logs).unwrap();
    let sandbox = Sandbox::run_with(&g, &address, "web", &json!({ "log_directory": logs }));
    let id = sandbox.create_with(&["ignore", "TERM"], &json!({ "log_path": "a.log" }));
    sandbox.start(&id);
    let (log, container) = (logs.join("a.log").display().to_string(), id.clone());
    wait_text(&log, "ignoring TERM");
    let stop = std::thread::spawn(move || {
        failure(&address, "StopContainer", &json!({ "container_id": container, "timeout": 3600 }))
    });
    wait_text(&log, "got SIGTERM");
    let begun = Instant::now();
    served.end();
    // Three seconds for the call, and the rest for a busy machine.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let (code, text) = stop.join().unwrap();
    assert!(["UNAVAILABLE", "CANCELLED"].contains(&&code[..]), "{code} {text}");
    g.run(&["rm", "--force", &sandbox.id]).succeeded();
}

#[test]
fn containers_of_ended_sandboxes_are_listed_and_removed() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let (created, running) = (sandbox.create(&["sleep", "60"]), sandbox.launch(&["sleep", "60"]));
    let ended = sandbox.launch(&["exit", "0"]);
    exited(&address, &ended);
    sandbox.stop();
    let of_sandbox = json!({ "pod_sandbox_id": sandbox.id });
    assert_eq!(cri::containers(&address, &of_sandbox).len(), 3);
    // The stop signal precedes SIGKILL and may be faster.
    let (unknown, killed, completed) = ([json!(255)].to_vec(), [json!(137), json!(143)].to_vec(), vec![Value::Null]);
    for (id, reason, codes) in
        [(&created, "Unknown", unknown), (&running, "Error", killed), (&ended, "Completed", completed)]
    {
        let status = cri::container(&address, id);
        assert_eq!((&status["state"], &status["reason"]), (&json!("CONTAINER_EXITED"), &json!(reason)));
        assert!(codes.contains(&status["exit_code"]), "{status}");
        stop(&address, id, 30);
    }
    // The end of a container is final.
    let end = cri::container(&address, &created);
    for id in [&created, &ended] {
        let (code, details) = failure(&address, "StartContainer", &json!({ "container_id": id }));
        assert!(code == "FAILED_PRECONDITION" && details.contains(id.as_str()), "{code} {details}");
    }
    assert_eq!(cri::container(&address, &created), end);
    let why = [sandbox.id.as_str(), "cannot be started again"];
    let _ = g.run(&["start", &sandbox.id]).exits(125).stderr_contains(&why);
    let other = g.detached(&[], &["exit", "0"]);
    g.wait_state(&other, "exited");
    assert_eq!(g.run(&["start", "--all"]).ok().stdout.trim(), other, "only the pod that is no sandbox");
    for id in [&created, &running] {
        remove(&address, id);
        remove(&address, id);
    }
    assert_eq!(cri::containers(&address, &of_sandbox), [ended.as_str()]);
    let dir = g.dir().join("pods").join(&sandbox.id).join("apps");
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["container-2-2"], "only the files of the container that is left");
    sandbox.remove();
    served.end();
}

#[test]
fn lost_containers_are_unknown() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.launch(&["sleep", "60"]);
    let supervisor = i32::try_from(g.supervisor(&sandbox.id)).unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    let status = exited(&address, &id);
    assert_eq!((&status["reason"], &status["exit_code"]), (&json!("Unknown"), &json!(255)), "{status}");
    remove(&address, &id);
    assert_eq!(cri::containers(&address, &json!({})), [""; 0]);
    sandbox.remove();
    served.end();
}

#[test]
fn gantryd_may_be_killed_between_any_two_calls() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let restart = |served: gantry_tests::api::Served| {
        served.kill();
        serve(&g).0
    };
    let served = restart(served);
    let id = sandbox.create(&["obey", "TERM", "3"]);
    let ends = sandbox.launch(&["exit", "9"]);
    let served = restart(served);
    assert_eq!(cri::container(&address, &id)["state"], Value::Null);
    assert_eq!(exited(&address, &ends)["exit_code"], 9);
    sandbox.start(&id);
    let served = restart(served);
    assert_eq!(cri::container(&address, &id)["state"], "CONTAINER_RUNNING");
    // It ends while gantryd is down.
    let during = sandbox.launch(&["obey", "USR1", "6"]);
    g.wait_log(&sandbox.id, "obeying");
    let pid = i32::try_from(g.app_pid(&sandbox.id, "container-2-2")).unwrap();
    served.kill();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::USR1).unwrap();
    let served = serve(&g).0;
    assert_eq!(exited(&address, &during)["exit_code"], 6);
    stop(&address, &id, 30);
    let served = restart(served);
    assert_eq!(cri::container(&address, &id)["exit_code"], 3);
    remove(&address, &id);
    let served = restart(served);
    assert_eq!(failure(&address, "ContainerStatus", &json!({ "container_id": id })).0, "NOT_FOUND");
    sandbox.stop();
    let served = restart(served);
    remove(&address, &ends);
    let served = restart(served);
    assert_eq!(cri::containers(&address, &json!({})), [during]);
    sandbox.remove();
    let served = restart(served);
    assert_eq!(cri::containers(&address, &json!({})), [""; 0]);
    served.end();
}
