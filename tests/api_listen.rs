//! gantryd's listen addresses, its messages about them, and a client that shares no code with gantry.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::Command;

use gantry_proto::rkt::v1alpha::EventType;
use gantry_tests::api::{Api, Served, copy_environment};
use gantry_tests::python::{repository, run_script, script};
use gantry_tests::{DEADLINE, Gantry, Out, Signal, json_lines, now_ns, pod_id};
use serde_json::{Value, json};

const SERVICE: &str = "v1alpha.PublicAPI";
const SERVING: i32 = 1;

/// Runs the Python client; returns its lines of JSON.
#[track_caller]
fn client(address: &str, call: &str, extra: &str) -> Vec<Value> {
    json_lines(&run_script("client.py", &[address, call, extra]).ok().stdout)
}

#[test]
fn descriptors_match_the_contract() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let path = g.scratch().join("reflected").display().to_string();
    let told = client(served.address(), "reflect", &path).remove(0);
    let services: Vec<&str> = told["services"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for service in [SERVICE, "grpc.health.v1.Health"] {
        assert!(services.contains(&service), "{services:?}");
    }
    assert!(services.iter().any(|service| service.starts_with("grpc.reflection.")), "{services:?}");
    let table = repository().join("proto/rkt/v1alpha/wire.tsv").display().to_string();
    let rows = std::fs::read_to_string(&table).unwrap().lines().count() - 1;
    assert_eq!(rows, 123, "the contract itself was changed");
    let checked = run_script("wire.py", &["check", &table, &path]).ok();
    assert_eq!(checked.text(), "123 of 123 rows hold");
    served.end();
}

#[test]
fn a_python_client_makes_all_seven_calls() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let address = served.address();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["run", "--net=host", "-d", &image, "--name=it", "--", "lines", "3"]).ok());
    served.api().wait_state(&pod, gantry_proto::rkt::v1alpha::PodState::Exited);

    let info = client(address, "get-info", "").remove(0);
    assert_eq!(info["info"]["api_version"], "1.0.0-alpha");
    assert_eq!(info["info"]["global_flags"]["dir"], g.dir().display().to_string());
    let listed = client(address, "list-pods", &json!({ "filters": [{ "states": ["POD_STATE_EXITED"] }] }).to_string());
    let shown = &listed[0]["pods"][0];
    assert_eq!((&shown["id"], &shown["pid"], &shown["state"]), (&json!(pod), &json!(-1), &json!("POD_STATE_EXITED")));
    assert_eq!((&shown["apps"][0]["name"], &shown["networks"][0]["name"]), (&json!("it"), &json!("host")));
    assert!(shown["manifest"].is_null() && shown["created_at"].as_str().is_some_and(|at| at.len() == 19), "{shown}");
    let inspected = client(address, "inspect-pod", &json!({ "id": pod[..13] }).to_string()).remove(0);
    assert_eq!(inspected["pod"]["id"], pod);
    assert!(inspected["pod"]["manifest"].is_string());
    let images = client(address, "list-images", &json!({ "detail": true }).to_string()).remove(0);
    assert_eq!(images["images"][0]["id"], image);
    let one = client(address, "inspect-image", &json!({ "id": image }).to_string()).remove(0);
    assert_eq!(one["image"], images["images"][0]);
    assert_eq!(one["image"]["base_format"]["type"], "IMAGE_TYPE_OCI");
    let logs = client(address, "get-logs", &json!({ "pod_id": pod, "lines": 2 }).to_string());
    let lines: Vec<&str> =
        logs.iter().flat_map(|it| it["lines"].as_array().unwrap()).filter_map(Value::as_str).collect();
    assert_eq!(lines.len(), 2, "{logs:?}");
    assert!(lines[1].contains(" +0000 UTC MESSAGE=line 000002"), "{lines:?}");
    let until = now_ns() / 1_000_000_000 + 1;
    let filter = json!({ "filter": { "since_time": "1", "until_time": until.to_string(), "ids": [&pod] } });
    let events = client(address, "listen-events", &filter.to_string());
    let kinds: Vec<&str> = events
        .iter()
        .flat_map(|it| it["events"].as_array().unwrap())
        .filter_map(|event| event["type"].as_str())
        .collect();
    let names = [
        EventType::PodPrepared,
        EventType::PodStarted,
        EventType::AppStarted,
        EventType::AppExited,
        EventType::PodExited,
    ];
    assert_eq!(kinds, names.map(|kind| kind.as_str_name()));

    let failed = run_script("client.py", &[address, "inspect-pod", r#"{"id": "zzz"}"#]).exits(3).json();
    assert_eq!(
        failed,
        json!({ "code": "NOT_FOUND", "details": r#"unable to resolve UUID: no matches found for "zzz""# })
    );
    for service in ["", SERVICE, "gantryd"] {
        assert_eq!(client(address, "health", service), [json!({ "status": "SERVING" })], "{service}");
    }
    served.end();
}

#[test]
fn health_is_reported_per_service() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    for service in ["", SERVICE, "gantryd"] {
        assert_eq!(api.health(service).ok(), Some(SERVING), "{service}");
    }
    assert_eq!(api.health("no.such.Service").unwrap_err().code(), tonic::Code::NotFound);
    drop(api);
    served.end();
}

/// The socket's mode, if the socket exists.
fn mode(path: &Path) -> Option<u32> {
    let found = std::fs::symlink_metadata(path).ok()?;
    assert!(found.file_type().is_socket(), "{}", path.display());
    Some(found.permissions().mode() & 0o777)
}

#[test]
fn several_addresses_are_served() {
    let g = Gantry::new();
    let (one, two) = (g.scratch().join("one.sock"), g.scratch().join("two.sock"));
    let given = [
        "127.0.0.1:0".to_owned(),
        "tcp:127.0.0.1:0".to_owned(),
        "[::1]:0".to_owned(),
        "localhost:0".to_owned(),
        format!("unix:{}", one.display()),
        format!("unix://{}", two.display()),
    ];
    let served = g.serve_on(&given.iter().flat_map(|it| ["--listen", it]).collect::<Vec<_>>());
    let addresses = served.addresses();
    assert!(addresses.len() >= given.len(), "{addresses:?}");
    for address in &addresses {
        assert!(!address.ends_with(":0"), "the real port: {address}");
        let api = Api::connect(address);
        assert_eq!(api.info().api_version, "1.0.0-alpha", "{address}");
        assert_eq!(api.health(SERVICE).ok(), Some(SERVING));
    }
    let with = |text: &str| addresses.iter().filter(|it| it.starts_with(text)).count();
    assert!(with("tcp:127.0.0.1:") >= 2 && with("tcp:[::1]:") >= 1 && with("unix:/") == 2, "{addresses:?}");
    // An independent client, over IPv6 and over the socket.
    for address in addresses.iter().filter(|it| it.contains("[::1]") || it.starts_with("unix:")) {
        assert_eq!(client(address, "get-info", "")[0]["info"]["api_version"], "1.0.0-alpha", "{address}");
    }
    assert_eq!((mode(&one), mode(&two)), (Some(0o660), Some(0o660)));
    served.end();
    assert!(!one.exists() && !two.exists(), "its sockets are removed");
}

#[test]
fn addresses_come_from_the_configuration() {
    let g = Gantry::new();
    let config = g.write("c.toml", &format!("listen = ['unix:{}', '127.0.0.1:0']\n", g.api_socket().display()));
    let served = Served::wait_ready(g.spawn_command(&mut g.daemon_with_default_listen(&["--config", &config])));
    let addresses = served.addresses();
    assert_eq!(addresses.len(), 2, "the configuration lists two addresses: {addresses:?}");
    assert_eq!(served.api().info().api_version, "1.0.0-alpha");
    served.end();
    // The command line overrides the configuration.
    let other = format!("unix:{}", g.scratch().join("other.sock").display());
    let served = g.serve_on(&["--config", &config, "--listen", &other]);
    assert_eq!(served.addresses(), [other]);
    served.end();
}

/// Runs a gantryd that must refuse to start.
#[track_caller]
fn refused(g: &Gantry, args: &[&str], texts: &[&str]) -> Out {
    let out = g.spawn_command(&mut g.daemon(args)).wait();
    assert!(matches!(out.code, 1 | 2), "{out}");
    assert!(!out.stderr.contains("API service running"), "{out}");
    out.stderr_contains(texts)
}

#[test]
fn only_stale_sockets_are_replaced() {
    let g = Gantry::new();
    let path = g.api_socket();
    // A stale socket file: bound, then closed.
    drop(UnixListener::bind(&path).unwrap());
    let served = g.serve(&[]);
    assert_eq!(served.api().info().api_version, "1.0.0-alpha");

    // A live socket is in use, also for a gantryd of another directory.
    let other = Gantry::new();
    let address = format!("unix:{}", path.display());
    let _ = refused(&other, &["--listen", &address], &["error:", &path.display().to_string()]);
    assert_eq!(served.api().info().api_version, "1.0.0-alpha", "it was not taken away");

    // A socket that replaced gantryd's own is kept.
    std::fs::remove_file(&path).unwrap();
    let mine = UnixListener::bind(&path).unwrap();
    served.end();
    assert!(path.exists());
    drop(mine);
    std::fs::remove_file(&path).unwrap();

    std::fs::write(&path, "a file").unwrap();
    let _ = refused(&g, &["--listen", &address], &["error:", &path.display().to_string()]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    std::fs::remove_file(&path).unwrap();

    // A killed gantryd leaves its socket; the next one replaces it.
    let served = g.serve(&[]);
    served.kill();
    assert!(path.exists());
    g.serve(&[]).end();
}

#[test]
fn invalid_addresses_are_rejected() {
    let g = Gantry::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let bound = std::net::TcpListener::bind(&taken);
    let long = format!("unix:/{}", "x".repeat(200));
    let mut rows = vec![
        "",
        "nonsense",
        "127.0.0.1",
        "127.0.0.1:99999",
        "unix:",
        "unix:relative",
        "http://127.0.0.1:0",
        &long,
        "unix:/no/such/dir/x",
    ];
    if bound.is_ok() {
        rows.push(&taken);
    }
    for row in rows {
        let out = refused(&g, &["--listen", row], &["error:"]);
        assert_eq!(out.stderr.lines().filter(|line| line.contains("error:")).count(), 1, "{row}: {out}");
    }
    let _ = refused(&g, &["--listen", "none", "--listen", "127.0.0.1:0"], &["error:"]);
    // Without any API, pods are still managed.
    let mut keeper = g.spawn_command(&mut g.daemon(&["--listen", "none"]));
    let said = keeper.wait_for_stderr("info: reconciling the pods of");
    assert!(!said.contains("serving on"), "{said}");
    keeper.signal(Signal::TERM);
    let _ = keeper.wait().ok();
}

/// The command line of a gantryd with these sockets from a service manager.
fn activated(g: &Gantry, kinds: &str, args: &[&str]) -> Command {
    let plain = g.daemon_with_default_listen(args);
    let mut command = script("activate.py", &[kinds]);
    copy_environment(&plain, command.arg(plain.get_program()).args(plain.get_args()));
    command
}

#[test]
fn sockets_are_passed_by_a_service_manager() {
    let g = Gantry::new();
    let path = g.scratch().join("given.sock");
    let kinds = format!("tcp,unix:{},tcp6", path.display());
    let served = Served::wait_ready(g.spawn_command(&mut activated(&g, &kinds, &[])));
    let addresses = served.addresses();
    assert_eq!(addresses.len(), 3, "those and no others: {addresses:?}");
    for address in &addresses {
        assert_eq!(Api::connect(address).info().api_version, "1.0.0-alpha", "{address}");
    }
    // Pods started meanwhile inherit none of the sockets.
    let image = g.fixture();
    let seen = g.app(&[], &["env"]).ok();
    assert!(!seen.stdout.contains("LISTEN_"), "{seen}");
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--", "sleep", "forever"]).ok());
    served.end();
    assert!(path.exists(), "it is the manager's to remove");
    g.run(&["kill", &pod]).succeeded();

    std::fs::remove_file(&path).unwrap();
    let _ = g
        .spawn_command(&mut activated(&g, "tcp", &["--listen", "127.0.0.1:0"]))
        .wait()
        .exits(1)
        .stderr_contains(&["error:", "passed sockets"]);
    for kind in ["udp", "file", "connected"] {
        let out = g.spawn_command(&mut activated(&g, kind, &[])).wait();
        assert!(out.code == 1 && out.stderr.contains("error:") && !out.stderr.contains("panicked"), "{kind}: {out}");
    }
}

#[test]
fn socket_variables_for_other_processes_are_ignored() {
    let g = Gantry::new();
    let address = format!("unix:{}", g.api_socket().display());
    let mut command = g.daemon(&[]);
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "2");
    let served = Served::wait_ready(g.spawn_command(&mut command));
    assert_eq!(served.addresses(), [address]);
    served.end();
}

#[test]
fn readiness_is_reported_after_listening() {
    let g = Gantry::new();
    let path = g.scratch().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let told = || {
        let mut bytes = [0; 256];
        let count = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let address = format!("unix:{}", g.api_socket().display());
    let mut command = g.daemon(&[]);
    let daemon = g.spawn_command(command.env("NOTIFY_SOCKET", &path));
    assert!(told().lines().any(|line| line == "READY=1"));
    // No waiting: READY=1 promises that the API is up.
    assert_eq!(Api::connect(&address).info().api_version, "1.0.0-alpha");
    Served::wait_ready(daemon).end();
    assert!(told().lines().any(|line| line == "STOPPING=1"));
}
