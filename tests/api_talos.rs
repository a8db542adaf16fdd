//! The Talos node API: its contract by reflection, and its calls by a client that shares only the .proto files.

use gantry_tests::api::Served;
use gantry_tests::cri::{Sandbox, container};
use gantry_tests::python::{repository, run_script, script, spawn_script};
use gantry_tests::talos::{FAILED, call, decode_base64, failure, message, messages_until, serve, stream_bytes};
use gantry_tests::{Gantry, json_lines, pod_id, wait_for};
use serde_json::{Value, json};

fn request(id: &str) -> Value {
    json!({ "namespace": "taloscontainers", "id": id })
}

/// The output that Logs sends.
#[track_caller]
fn logs(address: &str, id: &str, tail_lines: i32) -> String {
    let mut wanted = request(id);
    wanted["tail_lines"] = tail_lines.into();
    let replies = call(address, "machine.MachineService/Logs", &wanted);
    let encoded = replies.iter().map(|reply| reply["bytes"].as_str().unwrap_or_default());
    encoded.flat_map(decode_base64).map(char::from).collect()
}

#[test]
fn descriptors_match_the_contracts_of_both_releases() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let path = g.scratch().join("reflected").display().to_string();
    run_script("client.py", &[&address, "reflect", &path]).succeeded();
    for (table, rows) in [("v0.6.tsv", 327), ("v0.9.tsv", 599)] {
        let table = repository().join("proto/talos").join(table).display().to_string();
        let checked = run_script("wire.py", &["check", &table, &path]);
        // EventsRequest has no fields in 0.6, and three in 0.9; resource.WatchRequest has none in 0.9, and three later.
        let kept = if rows == 327 { "326 of 327 rows hold" } else { "598 of 599 rows hold" };
        assert!(checked.stdout.trim_end().ends_with(kept), "{checked}");
    }
    served.end();
}

#[test]
fn containers_lists_pods_before_their_apps() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    let web =
        pod_id(&g.run(&["run", "--net=none", "-d", "--pod-name=web", &image, "--name=a", "--", "sleep", "600"]).ok());
    let ended = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--name=b", "--", "exit", "3"]).ok());
    g.wait_state(&ended, "exited");
    for method in ["machine.MachineService/Containers", "os.OSService/Containers"] {
        let rows = message(&address, method, &json!({ "namespace": "taloscontainers" }))["containers"].clone();
        let row = |id: &str| {
            let found = rows.as_array().into_iter().flatten().find(|row| row["id"] == id);
            found.unwrap_or_else(|| panic!("no row {id}: {rows}")).clone()
        };
        let (pod, app) = (row("web"), row("web:a"));
        assert_eq!((&pod["pod_id"], &pod["status"]), (&json!("web"), &json!("RUNNING")));
        // A field of later releases, which a client of 0.6 skips.
        assert!(method.starts_with("os.") || pod["internal_id"] == web, "{pod}");
        assert_eq!((&app["pod_id"], &app["name"], &app["status"]), (&json!("web"), &json!("a"), &json!("RUNNING")));
        assert_eq!(app["pid"], g.app_pid(&web, "a"));
        assert_eq!(row(&format!("{ended}:b"))["status"], "STOPPED");
        let ids: Vec<&str> = rows.as_array().into_iter().flatten().filter_map(|row| row["id"].as_str()).collect();
        assert!(ids.is_sorted() && ids.len() == 4, "{ids:?}");
    }
    g.run(&["pause", "web"]).succeeded();
    let paused = message(&address, "machine.MachineService/Containers", &json!({ "namespace": "taloscontainers" }));
    let states = paused["containers"].as_array().into_iter().flatten().filter(|row| row["status"] == "PAUSED");
    assert_eq!(states.count(), 2, "{paused}");
    g.run(&["unpause", "web"]).succeeded();
    for empty in ["k8s.io", "no-such-namespace"] {
        assert_eq!(message(&address, "machine.MachineService/Containers", &json!({ "namespace": empty })), json!({}));
    }
    let system = message(&address, "machine.MachineService/Containers", &json!({ "namespace": "system" }));
    assert_eq!(system["containers"][0]["id"], "gantryd");
    let cri = json!({ "namespace": "system", "driver": "CRI" });
    let (code, text) = failure(&address, "machine.MachineService/Containers", &cri);
    assert_eq!((&code[..], &text[..]), ("INVALID_ARGUMENT", "CRI inspector is supported only for K8s namespace"));
    served.end();
    g.remove_all();
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[test]
fn pods_are_shown_in_their_namespaces() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    let run = |name: &str, flags: &[&str]| {
        let name = format!("--pod-name={name}");
        let words = [&["run", "--net=none", "-d", &name], flags, &[&image, "--name=a", "--", "sleep", "600"]];
        pod_id(&g.run(&words.concat()).ok())
    };
    let labels = ["--label=io.kubernetes.pod.namespace=shop", "--label=io.kubernetes.pod.name=web-1"];
    let plain = run("plain", &[]);
    let batch = run("batch", &["--namespace=batch"]);
    let cluster = run("cluster", &labels);
    run("own", &[&labels[..], &["--namespace=taloscontainers"]].concat());
    g.run(&["app", "sandbox", "--net=none", "--pod-name=box", "--namespace=batch"]).succeeded();
    let prepared = pod_id(&g.run(&["prepare", "--net=none", "--namespace=batch", &image]).ok());
    let ids = |method: &str, list: &str, namespace: &str| {
        let reply = message(&address, &format!("machine.MachineService/{method}"), &json!({ "namespace": namespace }));
        let rows = reply[list].as_array().cloned().unwrap_or_default();
        rows.iter().filter_map(|row| row["id"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    for (namespace, want) in [
        ("taloscontainers", &["own", "own:a", "plain", "plain:a"][..]),
        ("batch", &["batch", "batch:a", "box"]),
        ("k8s.io", &["shop/web-1", "shop/web-1:a"]),
        ("other", &[]),
    ] {
        assert_eq!(ids("Containers", "containers", namespace), want, "{namespace}");
        assert_eq!(ids("Stats", "stats", namespace), want, "{namespace}");
    }
    // As 'talosctl containers -ck': the CRI's view of the same pods.
    let cri = json!({ "namespace": "k8s.io", "driver": "CRI" });
    let rows = message(&address, "machine.MachineService/Containers", &cri)["containers"].clone();
    let states = rows.as_array().into_iter().flatten().map(|row| (text(&row["id"]), text(&row["status"])));
    let want = [("shop/web-1", "SANDBOX_READY"), ("shop/web-1:a", "CONTAINER_RUNNING")];
    assert_eq!(states.collect::<Vec<_>>(), want.map(|(id, state)| (id.to_owned(), state.to_owned())), "{rows}");
    let stats = message(&address, "machine.MachineService/Stats", &cri)["stats"].clone();
    let shown: Vec<String> = stats.as_array().into_iter().flatten().map(|row| text(&row["id"])).collect();
    assert_eq!(shown, ["shop/web-1", "shop/web-1:a"]);
    let cri_logs = json!({ "namespace": "k8s.io", "driver": "CRI", "id": "shop/web-1:a", "tail_lines": -1 });
    assert!(call(&address, "machine.MachineService/Logs", &cri_logs).is_empty(), "the app writes nothing");
    let restart = json!({ "namespace": "taloscontainers", "id": "batch:a" });
    assert_eq!(failure(&address, "machine.MachineService/Restart", &restart).0, "NOT_FOUND");
    // Two pods of one id: a request has to say which.
    let twin = run("twin", &labels);
    let restart = json!({ "namespace": "k8s.io", "id": "shop/web-1:a" });
    let (code, details) = failure(&address, "machine.MachineService/Restart", &restart);
    assert_eq!(code, "INVALID_ARGUMENT");
    assert!(details.contains(&twin) && details.contains(&cluster), "{details}");
    let restart = json!({ "namespace": "k8s.io", "id": format!("{twin}:a") });
    assert_eq!(message(&address, "machine.MachineService/Restart", &restart), json!({}));
    // Of several, the running one is meant.
    g.run(&["stop", "--time=0", &twin]).succeeded();
    let before = g.app_pid(&cluster, "a");
    let restart = json!({ "namespace": "k8s.io", "id": "shop/web-1:a" });
    assert_eq!(message(&address, "machine.MachineService/Restart", &restart), json!({}));
    assert_ne!(g.app_pid(&cluster, "a"), before);
    let restart = json!({ "namespace": "batch", "id": "batch:a" });
    assert_eq!(message(&address, "machine.MachineService/Restart", &restart), json!({}));
    for (pod, namespace) in [(&plain, "taloscontainers"), (&batch, "batch"), (&cluster, "k8s.io"), (&prepared, "batch")]
    {
        assert_eq!(g.status(pod)["namespace"], namespace);
        assert_eq!(g.json(&["inspect", pod])["namespace"], namespace);
    }
    assert!(g.run(&["status", &batch]).ok().stdout.contains("\nnamespace=batch\n"));
    let listed = g.json(&["list", "--filter=namespace=batch", "--filter=state=running", "-o", "json"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    let manifest = g.run(&["cat-manifest", &batch]).ok().json();
    assert_eq!(manifest["namespace"], "batch");
    g.run(&["run", "--net=none", "--namespace=system", &image]).exits(125).stderr_contains(&["namespace of gantryd"]);
    g.run(&["run", "--net=none", "--namespace=a/b", &image]).exits(125).stderr_contains(&["is not the namespace"]);
    served.end();
    g.remove_all();
}

#[test]
fn restart_starts_the_app_again() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    let pod =
        pod_id(&g.run(&["run", "--net=none", "-d", "--pod-name=web", &image, "--name=a", "--", "sleep", "600"]).ok());
    let mut before = g.app_pid(&pod, "a");
    for (method, id) in [
        ("machine.MachineService/Restart", "web:a".to_owned()),
        ("machine.MachineService/Restart", "web".to_owned()),
        ("os.OSService/Restart", format!("{}:a", &pod[..8])),
    ] {
        assert_eq!(message(&address, method, &request(&id)), json!({}));
        // The reply follows the start.
        let after = g.app_pid(&pod, "a");
        assert_ne!(before, after, "{id}");
        before = after;
    }
    let (code, text) = failure(&address, "machine.MachineService/Restart", &request("web:x"));
    assert_eq!((&code[..], &text[..]), ("NOT_FOUND", "container \"web:x\" not found"));
    g.run(&["stop", "--time=0", &pod]).succeeded();
    // What has exited is started.
    for id in ["web:a", "web"] {
        assert_eq!(message(&address, "machine.MachineService/Restart", &request(id)), json!({}));
        assert_eq!(g.status(&pod)["phase"], "running", "{id}");
        g.run(&["stop", "--time=0", &pod]).succeeded();
    }
    let two = [&["run", "--net=none", "-d", "--pod-name=two"], &[&image[..], "--name=a", "--", "sleep", "600"][..]];
    let two = [&two.concat()[..], &["---", &image, "--name=b", "--", "sleep", "600"]].concat();
    let two = pod_id(&g.run(&two).ok());
    g.run(&["stop", "--time=0", &two]).succeeded();
    let (code, text) = failure(&address, "machine.MachineService/Restart", &request("two:a"));
    let wanted = format!("container \"two:a\" is not running: restart its pod, {two}");
    assert_eq!((code, text), ("FAILED_PRECONDITION".to_owned(), wanted));
    served.end();
    g.remove_all();
}

#[test]
fn restart_resumes_a_paused_pod() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    let two = ["run", "--net=none", "-d", "--pod-name=web", &image, "--name=a", "--", "sleep", "600", "---"];
    let pod = pod_id(&g.run(&[&two[..], &[&image, "--name=b", "--", "sleep", "600"]].concat()).ok());
    let restart = "machine.MachineService/Restart";
    g.run(&["pause", &pod]).succeeded();
    let before = ["a", "b"].map(|app| g.app_pid(&pod, app));
    // The other app stays paused, and no app of a paused pod is started.
    let (code, text) = failure(&address, restart, &request("web:a"));
    assert!(code == "FAILED_PRECONDITION" && text.contains("paused"), "{code} {text}");
    assert_eq!(g.status(&pod)["paused"], true);
    assert_eq!(["a", "b"].map(|app| g.app_pid(&pod, app)), before);
    assert_eq!(message(&address, restart, &request("web")), json!({}));
    let status = g.status(&pod);
    assert_eq!((&status["phase"], &status["paused"]), (&json!("running"), &json!(false)), "{status}");
    let after = ["a", "b"].map(|app| g.app_pid(&pod, app));
    assert!(after.iter().zip(&before).all(|(after, before)| after != before), "{before:?} {after:?}");
    g.run(&["pause", &pod]).succeeded();
    let service = json!({ "id": "web" });
    let reply = message(&address, "machine.MachineService/ServiceRestart", &service);
    assert_eq!(reply["resp"], "Service \"web\" restarted");
    assert_eq!(g.status(&pod)["paused"], false);
    served.end();
    g.remove_all();
}

#[test]
fn containers_of_kubelets_are_only_stopped() {
    let g = Gantry::new();
    let [cri, address] = ["cri.sock", "machine.sock"].map(|name| format!("unix:{}", g.scratch().join(name).display()));
    let config = g.write("gantryd.toml", "gc-interval = '1h'\n[network]\ndefault = 'none'\nsandbox-network = 'none'\n");
    let served = g.serve(&["--cri-listen", &cri, "--machine-listen", &address, "--config", &config]);
    let labels = json!({ "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web-1" });
    let sandbox = Sandbox::run_with(&g, &cri, "web-1", &json!({ "labels": labels }));
    let attempt = |number: u32| {
        let metadata = json!({ "metadata": { "name": "web", "attempt": number } });
        let id = sandbox.create_with(&["sleep", "forever"], &metadata);
        sandbox.start(&id);
        id
    };
    let restart = |id: &str| message(&address, "machine.MachineService/Restart", &kubernetes(id));
    let refused = |id: &str| failure(&address, "machine.MachineService/Restart", &kubernetes(id)).0;
    let first = attempt(0);
    assert_eq!(restart("shop/web-1:web"), json!({}));
    assert_eq!(container(&cri, &first)["state"], "CONTAINER_EXITED");
    assert_eq!(refused("shop/web-1:web"), "FAILED_PRECONDITION");
    // Of the attempts, the one that runs is meant, unless the id has its number.
    let second = attempt(1);
    assert_eq!(refused("shop/web-1:web-0"), "FAILED_PRECONDITION");
    let all = json!({ "namespace": "k8s.io", "driver": "CRI" });
    let listed = message(&address, "machine.MachineService/Containers", &all)["containers"].clone();
    let rows = listed.as_array().into_iter().flatten();
    let shown: Vec<_> = rows.map(|row| (text(&row["id"]), text(&row["name"]), text(&row["internal_id"]))).collect();
    let row = |id: &str, name: &str, internal: &str| (id.to_owned(), name.to_owned(), internal.to_owned());
    let [pod, web] = ["shop/web-1", "shop/web-1:web"];
    assert_eq!(shown, [row(pod, pod, &sandbox.id), row(web, "web", &first), row(web, "web", &second)]);
    assert_eq!(restart("shop/web-1:web-1"), json!({}));
    assert_eq!(container(&cri, &second)["state"], "CONTAINER_EXITED");
    for _ in 0..2 {
        assert_eq!(restart("shop/web-1"), json!({}));
        assert_eq!(g.status(&sandbox.id)["phase"], "exited");
    }
    let start = json!({ "id": sandbox.id });
    assert_eq!(failure(&address, "machine.MachineService/ServiceStart", &start).0, "FAILED_PRECONDITION");
    sandbox.remove();
    served.end();
}

/// A request for a container of a kubelet.
fn kubernetes(id: &str) -> Value {
    json!({ "namespace": "k8s.io", "driver": "CRI", "id": id })
}

#[test]
fn logs_have_the_lines_asked_for() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let pod = g.detached(&[], &["lines", "20"]);
    g.wait_state(&pod, "exited");
    let all = logs(&address, &pod, -1);
    assert_eq!(all.lines().count(), 20, "{all}");
    assert!(all.ends_with('\n'));
    let last: Vec<&str> = all.lines().skip(10).collect();
    assert_eq!(logs(&address, &pod, 10).lines().collect::<Vec<_>>(), last);
    assert_eq!(logs(&address, &pod, 0), "");
    assert_eq!(logs(&address, &pod[..8], 1).lines().count(), 1);
    let (code, text) = failure(&address, "machine.MachineService/Logs", &request("nosuchcontainer"));
    assert_eq!((&code[..], &text[..]), ("NOT_FOUND", "container \"nosuchcontainer\" not found"));
    let ids = message(&address, "machine.MachineService/LogsContainers", &json!({}));
    assert!(ids["ids"].as_array().is_some_and(|ids| ids.contains(&json!(pod))), "{ids}");
    served.end();
    g.remove_all();
}

#[test]
fn prepared_pods_are_not_restarted() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    let pod =
        pod_id(&g.run(&["prepare", "--net=none", "--pod-name=web", &image, "--name=a", "--", "sleep", "600"]).ok());
    for id in ["web", "web:a", &pod[..8]] {
        let (code, text) = failure(&address, "machine.MachineService/Restart", &request(id));
        assert_eq!(code, "FAILED_PRECONDITION", "{id}: {text}");
        assert!(text.contains("ServiceStart of \"web\""), "{text}");
    }
    assert_eq!(g.status(&pod)["phase"], "prepared");
    let reply = message(&address, "machine.MachineService/ServiceStart", &json!({ "id": "web" }));
    assert_eq!(reply["resp"], "Service \"web\" started");
    assert_eq!(g.status(&pod)["phase"], "running");
    served.end();
    g.remove_all();
}

/// The events of a stream until one has this text, without the first message, which has no data.
#[track_caller]
fn events(address: &str, request: &Value, until: &str) -> Vec<Value> {
    let client = spawn_script("node_client.py", &[address, "machine.MachineService/Events", &request.to_string()]);
    let mut events = messages_until(&client, until);
    drop(client);
    let hello = events.remove(0);
    assert!(hello["id"].as_str().is_some_and(|id| id.len() == 20) && hello["data"] == json!({}), "{hello}");
    events
}

#[test]
fn events_continue_the_history() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let pod = g.detached(&[], &["exit", "3"]);
    g.wait_state(&pod, "exited");
    let all = events(&address, &json!({ "tail_events": -1 }), &format!("\"{pod}\", \"action\": \"FAILED\""));
    let seen: Vec<(&str, &str)> = all
        .iter()
        .filter_map(|event| Some((event["data"]["service"].as_str()?, event["data"]["action"].as_str()?)))
        .filter(|(service, _)| service.starts_with(&pod))
        .collect();
    let app = seen.iter().find(|(service, _)| service.contains(':')).map_or("", |(service, _)| service);
    assert_eq!(seen, [(&pod[..], "PREPARING"), (&pod, "RUNNING"), (app, "RUNNING"), (app, "FAILED"), (&pod, "FAILED")]);
    let ids: Vec<&str> = all.iter().filter_map(|event| event["id"].as_str()).collect();
    assert!(ids.is_sorted() && ids.iter().all(|id| id.len() == 20), "{ids:?}");
    // After an id, and the last ones.
    let failed = "\"action\": \"FAILED\"";
    let later = events(&address, &json!({ "tail_id": ids[ids.len() - 2] }), failed);
    assert_eq!(later.len(), 1, "{later:?}");
    let last = events(&address, &json!({ "tail_events": 1 }), failed);
    assert_eq!(last, later);
    let both = json!({ "tail_events": 1, "tail_seconds": 1 });
    assert_eq!(failure(&address, "machine.MachineService/Events", &both).0, "INVALID_ARGUMENT");
    served.end();
    g.remove_all();
}

#[test]
fn tails_have_the_events_before_a_reboot() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["exit", "3"]);
    g.wait_state(&pod, "exited");
    let address = format!("unix:{}", g.scratch().join("machine.sock").display());
    let config = g.write("gantryd.toml", "gc-interval = '1h'\n");
    let daemon = g.daemon(&["--machine-listen", &address, "--config", &config]);
    let served = Served::wait_ready(g.spawn_command(&mut g.in_next_boot(&daemon)));
    // Event numbers have jumped ahead, and no event has the last ones.
    let failed = format!("\"{pod}\", \"action\": \"FAILED\"");
    for (count, least) in [(1, 1), (5, 5), (1000, 5)] {
        let last = events(&address, &json!({ "tail_events": count }), &failed);
        assert!(last.len() >= least, "{count}: {last:?}");
        assert!(last.iter().any(|event| event["data"]["service"] == *pod), "{count}: {last:?}");
    }
    served.end();
    g.run_in_next_boot(&["rm", &pod]).succeeded();
}

#[test]
fn tails_have_the_length_asked_for() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    // Without a tail, the first event is one of the time after the request.
    let mut live = spawn_script("node_client.py", &[&address, "machine.MachineService/Events", "{}"]);
    live.wait_for_stdout("\n");
    let pods: Vec<String> = (0..5)
        .map(|_| {
            let pod = g.detached(&[], &["exit", "3"]);
            g.wait_state(&pod, "exited");
            pod
        })
        .collect();
    let last = format!("\"{}\", \"action\": \"FAILED\"", pods[4]);
    let seen = messages_until(&live, &last);
    drop(live);
    assert_eq!(seen.len(), 1 + 25, "{seen:?}");
    let tail = |request: Value| events(&address, &request, &last);
    let all = tail(json!({ "tail_events": -1 }));
    assert_eq!(all.len(), 25);
    for count in [1, 5, 20] {
        assert_eq!(tail(json!({ "tail_events": count })), all[25 - count..], "{count}");
    }
    assert_eq!(tail(json!({ "tail_events": 1000 })), all);
    assert_eq!(tail(json!({ "tail_id": all[10]["id"] })), all[11..]);
    assert_eq!(tail(json!({ "tail_seconds": 3600 })), all);
    assert_eq!(tail(json!({ "tail_id": all[25 - 15]["id"] })), all[25 - 14..]);
    served.end();
    g.remove_all();
}

#[test]
fn logs_are_followed_across_restarts() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let pod = g.detached(&["--name=a"], &["seq", "print", "one", "--", "print", "two", "--", "sleep", "600"]);
    g.wait_log(&pod, "two");
    let follow = |tail_lines: i32| {
        let request = json!({ "namespace": "taloscontainers", "id": pod, "tail_lines": tail_lines, "follow": true });
        spawn_script("node_client.py", &[&address, "machine.MachineService/Logs", &request.to_string()])
    };
    let mut clients = [0, -1, 1].map(follow);
    let mut texts = |want: [usize; 3]| {
        wait_for("the lines", || {
            let texts = clients.each_mut().map(|client| {
                let said = client.stdout();
                let whole = &said[..said.rfind('\n').map_or(0, |end| end + 1)];
                String::from_utf8_lossy(&stream_bytes(&json_lines(whole))).into_owned()
            });
            texts.iter().zip(want).all(|(text, want)| text.lines().count() >= want).then_some(texts)
        })
    };
    assert_eq!(texts([0, 2, 1]), ["", "one\ntwo\n", "two\n"]);
    // A request for new lines has no reply by which it is known to have arrived: another restart may be needed.
    let restart = || message(&address, "machine.MachineService/Restart", &request(&format!("{pod}:a")));
    restart();
    let seen = texts([0, 4, 3]);
    assert_eq!(seen[1..], ["one\ntwo\none\ntwo\n", "two\none\ntwo\n"]);
    restart();
    let seen = texts([2, 6, 5]);
    assert!(seen[0].ends_with("one\ntwo\n") && seen[0].len() <= "one\ntwo\n".len() * 2, "{seen:?}");
    // As in Talos, the stream does not end with the pod, but with its removal.
    let before: usize = seen[1].lines().count();
    g.run(&["stop", "--time=0", &pod]).succeeded();
    g.run(&["start", &pod]).succeeded();
    let [_, all, _] = texts([4, before + 2, before + 1]);
    assert_eq!(all, "one\ntwo\n".repeat(before / 2 + 1));
    g.run(&["stop", "--time=0", &pod]).succeeded();
    g.run(&["rm", &pod]).succeeded();
    for client in clients {
        client.wait().succeeded();
    }
    served.end();
    g.remove_all();
}

#[test]
fn stats_count_memory_and_cpu_time() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    g.run(&["run", "--net=none", "-d", "--pod-name=web", &image, "--name=a", "--", "sleep", "600"]).succeeded();
    for method in ["machine.MachineService/Stats", "os.OSService/Stats"] {
        let rows = message(&address, method, &json!({ "namespace": "taloscontainers" }))["stats"].clone();
        let ids: Vec<&str> = rows.as_array().into_iter().flatten().filter_map(|row| row["id"].as_str()).collect();
        assert_eq!(ids, ["web", "web:a"], "{rows}");
        let number = |row: &Value, key: &str| row[key].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        assert!(number(&rows[1], "memory_usage") > 0 && number(&rows[1], "cpu_usage") > 0, "{rows}");
    }
    let system = message(&address, "machine.MachineService/Stats", &json!({ "namespace": "system" }));
    assert_eq!(system["stats"][0]["id"], "gantryd", "{system}");
    let cri = json!({ "namespace": "system", "driver": "CRI" });
    let (code, text) = failure(&address, "machine.MachineService/Stats", &cri);
    assert_eq!((&code[..], &text[..]), ("INVALID_ARGUMENT", "CRI inspector is supported only for K8s namespace"));
    served.end();
    g.remove_all();
}

#[test]
fn named_nodes_are_answered_or_refused() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let nodes = ["--nodes", "127.0.0.1", "--nodes", "192.0.2.1"];
    let out = run_script("node_client.py", &[&nodes[..], &[&address, "machine.MachineService/Version"]].concat()).ok();
    let messages = json_lines(&out.stdout)[0]["messages"].clone();
    assert_eq!(messages[0]["metadata"], json!({ "hostname": "127.0.0.1" }));
    assert!(messages[0]["version"]["tag"].as_str().is_some_and(|tag| tag.starts_with('v')), "{messages}");
    assert_eq!(messages[1]["metadata"]["hostname"], "192.0.2.1");
    assert_eq!(messages[1]["metadata"]["error"], "rpc error: code = PermissionDenied desc = no request forwarding");
    // An error of a stream is a message, and the call succeeds.
    for (wanted, text) in [
        (request("nosuchcontainer"), "container \"nosuchcontainer\" not found"),
        (json!({ "namespace": "system", "id": "nosuchservice" }), "log \"nosuchservice\" was not registered"),
    ] {
        let wanted = wanted.to_string();
        let line = [&nodes[..2], &[&address, "machine.MachineService/Logs", &wanted]].concat();
        let replies = json_lines(&run_script("node_client.py", &line).ok().stdout);
        assert_eq!(replies.len(), 1, "{replies:?}");
        assert!(replies[0]["metadata"]["error"].as_str().is_some_and(|error| error.ends_with(text)), "{replies:?}");
    }
    // A restart that names another node only restarts nothing here.
    let pod = g.detached(&[], &["sleep", "600"]);
    let before = g.status(&pod)["apps"].clone();
    let wanted = request(&pod).to_string();
    run_script("node_client.py", &["--nodes", "192.0.2.1", &address, "machine.MachineService/Restart", &wanted])
        .succeeded();
    assert_eq!(g.status(&pod)["apps"], before);
    served.end();
    g.remove_all();
}

#[test]
fn host_calls_describe_this_host() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let get = |name: &str| message(&address, &format!("machine.MachineService/{name}"), &json!({}));
    let memory = get("Memory")["meminfo"].clone();
    assert!(memory["memtotal"].is_string() && memory["memfree"].is_string(), "{memory}");
    assert!(get("LoadAvg").is_object());
    assert!(get("SystemStat")["boot_time"].is_string());
    assert!(get("CPUInfo")["cpu_info"].as_array().is_some_and(|cpus| !cpus.is_empty()));
    assert!(get("DiskStats")["total"].is_object());
    let devices = get("NetworkDeviceStats")["devices"].clone();
    assert!(devices.as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "lo")), "{devices}");
    assert!(get("Mounts")["stats"].as_array().is_some_and(|all| all.iter().any(|one| one["mounted_on"] == "/")));
    let own = std::process::id();
    let processes = get("Processes")["processes"].clone();
    assert!(processes.as_array().is_some_and(|all| all.iter().any(|one| one["pid"] == own)));
    assert!(get("Hostname")["hostname"].is_string());
    for (call, text) in [
        ("Reboot", "method is not supported in container mode"),
        ("EtcdMemberList", "etcd is only available on control plane nodes"),
    ] {
        let (code, said) = failure(&address, &format!("machine.MachineService/{call}"), &json!({}));
        assert_eq!((&code[..], &said[..]), ("UNIMPLEMENTED", text));
    }
    for method in [
        "inspect.InspectService/ControllerRuntimeDependencies",
        "securityapi.SecurityService/ReadFile",
        "cluster.ClusterService/HealthCheck",
    ] {
        assert_eq!(failure(&address, method, &json!({})).0, "UNIMPLEMENTED", "{method}");
    }
    served.end();
}

#[test]
fn other_users_may_not_restart() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let socket = address.trim_start_matches("unix:").to_owned();
    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .unwrap_or_else(|error| panic!("cannot open the socket: {error}"));
    let mut command = std::process::Command::new("setpriv");
    let plain = script("node_client.py", &[&address, "machine.MachineService/Restart", &request("x").to_string()]);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(plain.get_program()).args(plain.get_args());
    let out = g.spawn_command(&mut command).wait().exits(FAILED);
    assert_eq!(json_lines(&out.stdout)[0]["details"], "not authorized", "{out}");
    wait_for("gantryd to serve root", || Some(message(&address, "machine.MachineService/Version", &json!({}))));
    served.end();
}
