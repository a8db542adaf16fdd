//! Host pods in every view: rkt's API, the Talos node API, metrics, events, health checks, and after the database was
//! lost.

use std::io::{Read as _, Write as _};

use gantry_proto::rkt::v1alpha::{AppState, GetLogsRequest, PodState};
use gantry_tests::talos::{call, decode_base64, message, serve};
use gantry_tests::{Gantry, app, pod_id, wait_for};
use serde_json::{Value, json};

fn detached(g: &Gantry, flags: &[&str], script: &str) -> String {
    let words = [&["run", "--stage1=host", "-d", "--name=it"], flags, &["--", "sh", "-c", script]].concat();
    pod_id(&g.run(&words).ok())
}

#[test]
fn rkt_clients_see_host_pods() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    let pod = detached(&g, &[], "echo hello; echo oops >&2; sleep 1000");
    let seen = api.wait_state(&pod, PodState::Running);
    assert_eq!((seen.apps.len(), seen.apps[0].name.as_str(), seen.apps[0].state()), (1, "it", AppState::Running));
    let whole = api.inspect_pod(&pod);
    assert_eq!(u32::try_from(whole.pid).unwrap(), g.supervisor(&pod));
    assert!(!whole.manifest.is_empty() && whole.cgroup.contains(&pod), "{whole:?}");
    let request = GetLogsRequest { pod_id: pod.clone(), ..GetLogsRequest::default() };
    wait_for("both lines", || (api.logs(request.clone()).rest().len() == 2).then_some(()));
    g.run(&["kill", &pod]).succeeded();
    assert_eq!(api.wait_state(&pod, PodState::Exited).apps[0].exit_code, 137);
    let events = g.run(&["events", "-o", "json-lines", "--filter", &format!("pod={pod}")]).ok().stdout;
    for kind in ["pod-started", "app-started", "app-exited", "pod-exited"] {
        assert!(events.contains(kind), "{kind}: {events}");
    }
    g.run(&["rm", &pod]).succeeded();
    assert!(api.pods().is_empty());
    let _ended = served.end();
}

#[test]
fn talos_clients_see_and_restart_host_pods() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let pod = detached(&g, &["--pod-name=job"], "echo started; exec sleep 1000");
    let namespace = json!({ "namespace": "taloscontainers" });
    let rows = |method: &str, field: &str| message(&address, method, &namespace)[field].clone();
    let row = |rows: &Value| rows.as_array().into_iter().flatten().find(|row| row["id"] == "job:it").cloned();
    let container = row(&rows("machine.MachineService/Containers", "containers")).unwrap();
    let first = g.app_pid(&pod, "it");
    assert_eq!((&container["status"], &container["pid"]), (&json!("RUNNING"), &json!(first)), "{container}");
    let stats = row(&rows("machine.MachineService/Stats", "stats")).unwrap();
    assert!(stats["memory_usage"].as_str().is_some_and(|bytes| bytes.parse::<u64>().unwrap() > 0), "{stats}");
    let of_app = json!({ "namespace": "taloscontainers", "id": "job:it" });
    assert_eq!(message(&address, "machine.MachineService/Restart", &of_app), json!({}));
    let second = g.app_pid(&pod, "it");
    assert_ne!(second, first);
    let every_line = json!({ "namespace": "taloscontainers", "id": "job:it", "tail_lines": -1 });
    wait_for("the output of both starts", || {
        let replies = call(&address, "machine.MachineService/Logs", &every_line);
        let bytes = replies.iter().flat_map(|reply| decode_base64(reply["bytes"].as_str().unwrap_or_default()));
        (String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).matches("started").count() == 2).then_some(())
    });
    let processes = message(&address, "machine.MachineService/Processes", &json!({}));
    assert!(processes.to_string().contains(&format!("\"pid\":{second}")), "no process {second}");
    let _ended = served.end();
    g.remove_all();
}

#[test]
fn metrics_and_stats_count_host_pods() {
    let g = Gantry::new();
    let mut served = g.serve(&["--metrics-listen", "127.0.0.1:0"]);
    let log = served.daemon().wait_for_stderr(", path /metrics");
    let line = log.lines().find(|line| line.ends_with(", path /metrics")).unwrap();
    let address = line.rsplit_once("metrics on ").unwrap().1.trim_end_matches(", path /metrics").to_owned();
    let address = address.trim_start_matches("tcp:").to_owned();
    let pod = detached(&g, &[], "while :; do :; done");
    let sample = "container_cpu_usage_seconds_total{";
    wait_for("the app's processor time", || {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: node\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let of_app = |line: &&str| line.starts_with(sample) && line.contains(&pod) && line.contains("\"it\"");
        text.lines().find(of_app).map(drop)
    });
    let stats = g.json(&["stats", "--no-stream", "-o", "json"]);
    let row =
        stats.as_array().into_iter().flatten().find(|row| row["pod"] == pod.as_str() || row["id"] == pod.as_str());
    assert!(row.is_some(), "{stats}");
    g.remove_all();
    let _ended = served.end();
}

#[test]
fn health_checks_run_on_the_host() {
    let g = Gantry::new();
    let ready = g.scratch().join("ready");
    let probe = format!("--health-cmd=[\"/usr/bin/test\",\"-e\",\"{}\"]", ready.display());
    let flags = [probe.as_str(), "--health-interval=100ms", "--health-retries=2"];
    let pod = detached(&g, &flags, "sleep 1000");
    let wait_health = |health: &str| {
        wait_for(health, || Some(app(&g.status(&pod), "it")).filter(|app| app["health"] == health).map(drop));
    };
    wait_health("unhealthy");
    std::fs::write(&ready, "").unwrap();
    wait_health("healthy");
    g.remove_all();
}

#[test]
fn host_pods_survive_the_loss_of_the_database() {
    let g = Gantry::new();
    let (running, ended) = (detached(&g, &[], "sleep 1000"), detached(&g, &[], "exit 3"));
    g.wait_state(&ended, "exited");
    let pid = g.app_pid(&running, "it");
    for name in ["gantry.db", "gantry.db-wal", "gantry.db-shm"] {
        let _absent = std::fs::remove_file(g.dir().join(name));
    }
    for backup in std::fs::read_dir(g.dir().join("backups")).unwrap() {
        std::fs::remove_file(backup.unwrap().path()).unwrap();
    }
    drop(g.start_daemon(&[]));
    let _absent = std::fs::remove_file(g.dir().join("restored"));
    assert_eq!(g.app_pid(&running, "it"), pid);
    assert_eq!(app(&g.status(&ended), "it")["exit_code"], 3);
    let manifest = g.json(&["inspect", &running]);
    assert!(manifest.to_string().contains("sleep 1000"), "{manifest}");
    g.run(&["stop", "--time=0", &running]).succeeded();
    g.remove_all();
}
