//! The host by the Talos node API: interfaces, routes, the clock, disks, and the health of the API.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gantry_tests::Gantry;
use gantry_tests::python::{run_script, spawn_script};
use gantry_tests::talos::{FAILED, call, failure, message, serve};
use serde_json::{Value, json};

/// The objects of a list.
fn rows(message: &Value, field: &str) -> Vec<Value> {
    message[field].as_array().cloned().unwrap_or_default()
}

#[test]
fn interfaces_and_routes_are_those_of_the_kernel() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let interfaces = rows(&message(&address, "network.NetworkService/Interfaces", &json!({})), "interfaces");
    let loopback = interfaces.iter().find(|one| one["name"] == "lo").unwrap();
    assert_eq!((&loopback["index"], &loopback["mtu"]), (&json!(1), &json!(65536)), "{loopback}");
    assert!(loopback["ipaddress"].as_array().unwrap().contains(&json!("127.0.0.1/8")), "{loopback}");
    // Go's mask of up (1) and loopback (4): the name of 5 in the enumeration means nothing.
    assert_eq!(loopback["flags"], "FLAG_MULTICAST", "{loopback}");
    // Other tests create and delete interfaces meanwhile.
    let names = || -> BTreeSet<String> {
        let dir = std::fs::read_dir("/sys/class/net").unwrap();
        dir.filter_map(|entry| entry.unwrap().file_name().into_string().ok()).collect()
    };
    let listed: BTreeSet<String> =
        interfaces.iter().filter_map(|one| one["name"].as_str().map(str::to_owned)).collect();
    assert!(listed.contains("lo") && !names().is_disjoint(&listed));
    let routes = rows(&message(&address, "network.NetworkService/Routes", &json!({})), "routes");
    let local = routes.iter().find(|one| one["destination"] == "127.0.0.0/8").unwrap_or_else(|| panic!("{routes:?}"));
    assert_eq!((&local["interface"], &local["protocol"]), (&json!("lo"), &json!("RTPROT_KERNEL")), "{local}");
    assert_eq!((&local["source"], &local["gateway"]), (&json!("127.0.0.1/32"), &json!("0.0.0.0/0")), "{local}");
    served.end();
}

/// An SNTP server whose clock is ahead by an hour; `stratum` 0 refuses.
fn time_server(address: Ipv4Addr, stratum: u8) -> std::thread::JoinHandle<()> {
    let socket = UdpSocket::bind((address, 123)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    std::thread::spawn(move || {
        let mut request = [0; 64];
        let (length, client) = socket.recv_from(&mut request).unwrap();
        assert_eq!((length, request[0]), (48, 0x23));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(3600);
        let seconds = u32::try_from(now.as_secs() + 2_208_988_800).unwrap().to_be_bytes();
        let mut reply = [0; 48];
        (reply[0], reply[1]) = (0x24, stratum);
        reply[12..16].copy_from_slice(b"RATE");
        reply[24..32].copy_from_slice(&request[40..48]);
        reply[32..36].copy_from_slice(&seconds);
        reply[40..44].copy_from_slice(&seconds);
        // Not the reply to this request.
        let mut forged = reply;
        forged[24] ^= 1;
        for packet in [forged, reply] {
            let _sent = socket.send_to(&packet, client).unwrap();
        }
    })
}

/// Seconds of the time of day in RFC 3339.
fn seconds_of_day(time: &Value) -> i64 {
    let text = time.as_str().unwrap();
    let part = |at: usize| text[at..at + 2].parse::<i64>().unwrap();
    (part(11) * 60 + part(14)) * 60 + part(17)
}

#[test]
fn time_is_that_of_a_server() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let server = Ipv4Addr::new(127, 77, 1, 1);
    let thread = time_server(server, 2);
    let time = message(&address, "time.TimeService/TimeCheck", &json!({ "server": server.to_string() }));
    thread.join().unwrap();
    assert_eq!(time["server"], server.to_string());
    let ahead = (seconds_of_day(&time["remotetime"]) - seconds_of_day(&time["localtime"])).rem_euclid(86_400);
    assert!((3590..=3610).contains(&ahead), "{time}");
    let server = Ipv4Addr::new(127, 77, 1, 2);
    let thread = time_server(server, 0);
    let (code, text) = failure(&address, "time.TimeService/TimeCheck", &json!({ "server": server.to_string() }));
    thread.join().unwrap();
    assert_eq!(code, "UNKNOWN");
    assert!(text.starts_with("failed to query NTP server") && text.contains("RATE"), "{text}");
    let (code, text) = failure(&address, "time.TimeService/Time", &json!({}));
    assert_eq!(code, "FAILED_PRECONDITION");
    assert!(text.starts_with("failed to query NTP server: none is configured"), "{text}");
    served.end();
}

#[test]
fn a_configured_time_server_is_asked() {
    let g = Gantry::new();
    let config = g.write("gantryd.toml", "gc-interval = '1h'\ntime-server = '127.77.1.3'\n");
    let address = format!("unix:{}", g.scratch().join("machine.sock").display());
    let served = g.serve(&["--config", &config, "--machine-listen", &address]);
    let thread = time_server(Ipv4Addr::new(127, 77, 1, 3), 1);
    let time = message(&address, "time.TimeService/Time", &json!({}));
    thread.join().unwrap();
    assert_eq!(time["server"], "127.77.1.3", "{time}");
    served.end();
}

#[test]
fn disks_and_health_are_shown() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let out = run_script("node_client.py", &["--nodes", "localhost", &address, "storage.StorageService/Disks"]).ok();
    let disks: Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(disks["metadata"]["hostname"], "localhost", "{disks}");
    for disk in rows(&disks, "disks") {
        let name = disk["device_name"].as_str().unwrap_or_default();
        assert!(name.starts_with("/dev/") && !name.contains("loop") && disk["size"].is_string(), "{disk}");
    }
    assert_eq!(message(&address, "health.Health/Check", &json!({})), json!({ "status": "SERVING" }));
    assert_eq!(message(&address, "health.Health/Ready", &json!({})), json!({ "status": "READY" }));
    let mut client = spawn_script("node_client.py", &[&address, "health.Health/Watch", r#"{"interval_seconds": "1"}"#]);
    gantry_tests::wait_for("two messages", || (client.stdout().matches("SERVING").count() >= 2).then_some(()));
    assert!(!client.has_ended());
    drop(client);
    let out = run_script("node_client.py", &["--nodes", "192.0.2.1", &address, "health.Health/Check"]).exits(FAILED);
    assert!(out.stdout.contains("no request forwarding"), "{out}");
    assert_eq!(call(&address, "storage.StorageService/Disks", &json!({})).len(), 1);
    served.end();
}
