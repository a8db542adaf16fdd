//! What gantryd serves at `/metrics`: the counters of pods, apps and its own operations.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use gantry_tests::api::Served;
use gantry_tests::{Gantry, Running, pod_id, wait_for};

/// The address that gantryd has logged.
fn metrics_address(daemon: &mut Running) -> String {
    let log = daemon.wait_for_stderr(", path /metrics");
    let line = log.lines().find(|line| line.ends_with(", path /metrics")).unwrap_or_default();
    let (_, address) = line.rsplit_once("metrics on ").unwrap_or_default();
    address.trim_end_matches(", path /metrics").trim_start_matches("tcp:").to_owned()
}

/// Sends the head of a request; returns the whole reply.
#[track_caller]
fn exchange(address: &str, head: &str) -> String {
    let exchange = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(head.as_bytes())?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).map(|_| reply)
    };
    exchange().unwrap_or_else(|error: std::io::Error| panic!("{head:?}: {error}"))
}

#[track_caller]
fn scrape(address: &str) -> String {
    let reply = exchange(address, "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n");
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_default();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

/// The value of the one sample whose line starts with the name and has all these labels.
#[track_caller]
fn value(text: &str, name: &str, labels: &[&str]) -> f64 {
    let is_sample = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    };
    let lines: Vec<&str> = text.lines().filter(is_sample).collect();
    let [line] = lines[..] else { panic!("{} samples of {name} {labels:?} in {text}", lines.len()) };
    let values = line.rsplit_once('}').or_else(|| line.split_once(' ')).map_or("", |(_, values)| values);
    let parsed = values.split_whitespace().next().and_then(|value| value.parse().ok());
    parsed.unwrap_or_else(|| panic!("no value in {line}"))
}

#[track_caller]
fn serve(g: &Gantry) -> (Served, String) {
    let mut served = g.serve(&["--metrics-listen", "127.0.0.1:0"]);
    let address = metrics_address(served.daemon());
    (served, address)
}

#[test]
fn pods_and_operations_are_counted() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    let flags = ["run", "--net=none", "-d", "--pod-name=web", "--label=io.kubernetes.pod.namespace=a\"b\\c"];
    let flags = [&flags[..], &["--label=io.kubernetes.pod.name=web-1", &image, "--name=one"]].concat();
    g.run(&[&flags[..], &["--memory=64Mi", "--cpus=0.5", "--", "lines", "forever", "20", "200"]].concat()).succeeded();
    let text = scrape(&address);
    let labels = [r#"container="one""#, r#"pod="web-1""#, r#"namespace="a\"b\\c""#, "image=", "name=\"", "id=\"/"];
    let one = |text: &str, name| value(text, name, &labels);
    assert!(one(&text, "container_memory_working_set_bytes") > 0.0);
    assert!(one(&text, "container_start_time_seconds") > 1e9);
    assert_eq!(one(&text, "container_spec_memory_limit_bytes"), f64::from(64 << 20));
    let share = one(&text, "container_spec_cpu_quota") / one(&text, "container_spec_cpu_period");
    assert!((share - 0.5).abs() < 1e-9, "{share}");
    assert_eq!(one(&text, "container_processes"), 1.0);
    assert_eq!(one(&text, "gantry_container_restarts_total"), 0.0);
    let interface = value(&text, "container_network_receive_bytes_total", &[r#"interface="lo""#, r#"pod="web-1""#]);
    assert!(interface >= 0.0);
    // The pod's own row counts all its processes.
    let pod = value(&text, "container_memory_usage_bytes", &[r#"container="""#]);
    assert!(pod >= one(&text, "container_memory_rss"));
    assert_eq!(value(&text, "gantry_pods", &[r#"state="running""#]), 1.0);
    assert_eq!(value(&text, "gantry_events_total", &[r#"kind="image-imported""#]), 1.0);
    // gantryd answers while its first reconciliation still runs.
    wait_for("a reconciliation to be counted", || {
        let text = scrape(&address);
        let part = |part| {
            let name = format!("gantry_operation_duration_seconds{part}");
            value(&text, &name, &[r#"operation="reconcile""#])
        };
        (part("_count") >= 1.0 && part("_sum") > 0.0).then_some(())
    });
    let _ = served.api().info();
    let text = wait_for("the call to be counted", || {
        Some(scrape(&address)).filter(|text| text.contains(r#"method="GetInfo",code="OK""#))
    });
    assert_eq!(value(&text, "gantry_queue_length", &[r#"queue="read""#, r#"weight="light""#]), 0.0);
    g.run(&["stop", "web"]).succeeded();
    wait_for("the pod's samples to end", || (!scrape(&address).contains("container_last_seen{")).then_some(()));
    served.end();
    g.remove_all();
}

#[test]
fn metrics_follow_updated_limits() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let image = g.fixture();
    let flags = ["run", "--net=none", "-d", "--pod-name=web", &image, "--name=one"];
    g.run(&[&flags[..], &["--memory=64Mi", "--pids-limit=100", "--", "sleep", "forever"]].concat()).succeeded();
    let limits = |text: &str| {
        let labels = [r#"container="one""#];
        ["container_spec_memory_limit_bytes", "container_threads_max"].map(|name| value(text, name, &labels))
    };
    assert_eq!(limits(&scrape(&address)), [f64::from(64 << 20), 100.0]);
    g.run(&["update", "--memory=96Mi", "--pids-limit=200", "web/one"]).succeeded();
    wait_for("the new limits", || (limits(&scrape(&address)) == [f64::from(96 << 20), 200.0]).then_some(()));
    // A new attempt has another cgroup, with the limits in effect.
    g.run(&["restart", "--force", "web/one"]).succeeded();
    wait_for("the sample of the new attempt", || {
        let text = scrape(&address);
        let restarted = value(&text, "gantry_container_restarts_total", &[r#"container="one""#]) == 1.0;
        (restarted && limits(&text) == [f64::from(96 << 20), 200.0]).then_some(())
    });
    g.run(&["stop", "web"]).succeeded();
    served.end();
    g.remove_all();
}

#[test]
fn restarts_of_exited_apps_are_counted() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    g.run(&["app", "add", &pod, &g.fixture(), "--name=a", "--restart=on-failure:2", "--", "exit", "1"]).succeeded();
    g.run(&["app", "start", &format!("{pod}/a")]).succeeded();
    wait_for("the last start", || {
        let text = scrape(&address);
        let restarts = text.lines().find(|line| line.starts_with("gantry_container_restarts_total{"))?;
        assert!(restarts.contains(r#"container="a""#), "{restarts}");
        (value(&text, "gantry_container_restarts_total", &[]) == 2.0).then_some(())
    });
    g.run(&["rm", "--force", &pod]).succeeded();
    served.end();
    g.remove_all();
}

/// Like [`serve`], with a sample every second: samples carry the counts of disk usage.
fn serve_fast(g: &Gantry) -> (Served, String) {
    let config = g.write("config.toml", "sample-interval = '1s'\n");
    let mut served = g.serve(&["--config", &config, "--metrics-listen", "127.0.0.1:0"]);
    let address = metrics_address(served.daemon());
    (served, address)
}

/// Starts gantryd, which counts a tree that it does not know at once, and returns the metric when it has it.
fn counted(g: &Gantry, metric: &str, labels: &[&str]) -> f64 {
    let (served, address) = serve_fast(g);
    let is_sample = |line: &&str| line.starts_with(metric) && labels.iter().all(|label| line.contains(label));
    let value = wait_for(&format!("{metric} {labels:?}"), || {
        let text = scrape(&address);
        text.lines().any(|line| is_sample(&line)).then(|| value(&text, metric, labels))
    });
    served.end();
    value
}

#[test]
fn disk_usage_follows_the_writable_layer() {
    const MEBIBYTE: f64 = (1 << 20) as f64;
    let g = Gantry::new();
    let pod = g.detached(&["--name=one"], &["seq", "lines", "20000", "100", "--", "sleep", "forever"]);
    g.wait_log(&pod, "line 019999");
    let root = std::path::PathBuf::from(format!("/proc/{}/root", g.app_pid(&pod, "one")));
    for name in ["kept", "deleted"] {
        std::fs::write(root.join(name), vec![1; 10 << 20]).unwrap();
    }
    // Names of one file count once, and a sparse file by its blocks.
    std::fs::hard_link(root.join("kept"), root.join("same")).unwrap();
    std::fs::File::create(root.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    let one = r#"container="one""#;
    let usage = |kind| counted(&g, "gantry_disk_usage_bytes", &[one, kind]) / MEBIBYTE;
    let (layer, logs) = (usage(r#"kind="writable-layer""#), usage(r#"kind="logs""#));
    assert!((20.0..21.0).contains(&layer), "{layer}");
    assert!((2.0..4.0).contains(&logs), "{logs}");
    let total = counted(&g, "container_fs_usage_bytes", &[one]) / MEBIBYTE;
    assert!((22.0..25.0).contains(&total), "{total}");
    std::fs::remove_file(root.join("deleted")).unwrap();
    let layer = usage(r#"kind="writable-layer""#);
    assert!((10.0..11.0).contains(&layer), "{layer}");
    g.run(&["stop", "--force", &pod]).succeeded();
    g.remove_all();
}

#[test]
fn disk_usage_of_volumes_is_counted() {
    let g = Gantry::new();
    let flags = ["--name=one", "--volume=data:/data", "--volume=/own"];
    let pod = g.detached(&flags, &["sleep", "forever"]);
    let root = std::path::PathBuf::from(format!("/proc/{}/root", g.app_pid(&pod, "one")));
    for (volume, size) in [("data", 3 << 20), ("own", 5 << 20)] {
        std::fs::write(root.join(volume).join("file"), vec![1; size]).unwrap();
    }
    let named = counted(&g, "gantry_volume_usage_bytes", &[r#"volume="data""#]);
    assert!((3e6..4e6).contains(&named), "{named}");
    let own = counted(&g, "gantry_disk_usage_bytes", &[r#"kind="volumes""#]);
    assert!((5e6..6e6).contains(&own), "{own}");
    // The named volume outlives the pod.
    g.run(&["rm", "--force", &pod]).succeeded();
    assert!(counted(&g, "gantry_volume_usage_bytes", &[r#"volume="data""#]) > 3e6);
    g.remove_all();
}

#[test]
fn trees_of_hostile_apps_are_counted() {
    let g = Gantry::new();
    let hostile = g.detached(&["--name=bad"], &["sleep", "forever"]);
    let mut path = std::path::PathBuf::from(format!("/proc/{}/root", g.app_pid(&hostile, "bad")));
    for _ in 0..300 {
        path.push("deep");
        std::fs::create_dir(&path).unwrap();
    }
    for number in 0..20_000 {
        std::fs::write(path.join(format!("f{number}")), "").unwrap();
    }
    std::os::unix::fs::symlink("/", path.join("host")).unwrap();
    std::os::unix::fs::symlink("..", path.join("loop")).unwrap();
    let good = g.detached(&["--name=good"], &["sleep", "forever"]);
    let (served, address) = serve_fast(&g);
    let has = |name: &str| {
        let name = format!("container=\"{name}\"");
        scrape(&address).lines().any(|line| line.starts_with("container_fs_usage_bytes{") && line.contains(&name))
    };
    wait_for("both counts", || (has("good") && has("bad")).then_some(()));
    // Its count ends with the pod.
    g.run(&["rm", "--force", &hostile]).succeeded();
    wait_for("the count to be forgotten", || (!has("bad")).then_some(()));
    assert!(has("good"));
    g.run(&["rm", "--force", &good]).succeeded();
    served.end();
    g.remove_all();
}

#[test]
fn promtool_accepts_the_metrics() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let pod = g.detached(&[], &["lines", "forever", "20", "200"]);
    let _ = served.api().info();
    let text = scrape(&address);
    assert!(text.contains("container_cpu_usage_seconds_total{"), "{text}");
    let mut promtool = Command::new("promtool");
    let mut promtool = promtool
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let findings = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && findings.is_empty(), "{findings}");
    g.run(&["stop", &pod]).succeeded();
    served.end();
}

#[test]
fn hostile_clients_are_bounded() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    for (head, status) in [
        ("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "405"),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("GET /metrics/../metrics HTTP/1.1\r\nHost: a\r\n\r\n", "404"),
        ("nonsense\r\n\r\n", "400"),
    ] {
        let reply = exchange(&address, head);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{head:?}: {reply}");
    }
    let reply = exchange(&address, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("\r\n\r\n"), "{reply}");
    // A head without an end is refused; whether its reply arrives depends on the bytes that are not read.
    let mut large = TcpStream::connect(&address).unwrap();
    large.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let filler = format!("X: {}\r\n", "x".repeat(1000));
    let written = large.write_all(format!("GET /metrics HTTP/1.1\r\n{}", filler.repeat(40)).as_bytes());
    let mut reply = Vec::new();
    let read = large.read_to_end(&mut reply);
    assert!(written.is_err() || read.is_err() || reply.starts_with(b"HTTP/1.1 431 "), "{reply:?}");
    // Silent clients hold all connections until their time is over; then the next one is served.
    let silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    assert!(scrape(&address).contains("gantry_build_info"));
    drop(silent);
    served.end();
}

#[test]
fn metrics_are_served_where_configured() {
    let g = Gantry::new();
    // The gantryd of a test has sockets of its own, so it leaves the default address to others.
    let daemon = g.start_daemon(&[]);
    assert!(!daemon.stderr().contains("metrics on"), "{}", daemon.stderr());
    daemon.terminate().succeeded();
    let socket = g.scratch().join("metrics.sock");
    let address = format!("unix:{}", socket.display());
    let config = g.write("gantryd.toml", &format!("metrics-listen = ['{address}']\nsample-interval = '1s'\n"));
    let mut daemon = g.start_daemon(&["--config", &config]);
    assert_eq!(metrics_address(&mut daemon), address);
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.contains(" 200 OK") && reply.contains("gantry_pods{"), "{reply}");
    daemon.terminate().succeeded();
    assert!(!socket.exists());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let out = g.spawn_command(&mut g.daemon(&["--metrics-listen", &address])).wait().exits(1);
    let _ = out.stderr_contains(&["another process listens there"]);
}
