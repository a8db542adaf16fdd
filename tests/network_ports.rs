//! Published ports: reachability and errors.

use gantry_fixtures::{Image, Layer};
use gantry_tests::net::{HOST4, HOST6, OUTSIDE4, OUTSIDE6};
use gantry_tests::{Gantry, Space};
use serde_json::json;

const FAILED: i32 = 125;

fn lab() -> (Space, Gantry) {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    (space, g)
}

#[test]
fn a_published_port_is_reachable_from_everywhere() {
    let (space, g) = lab();
    let server = g.server(&["-p", "8080:7000", "-p", "8080:7000/udp"], "7000");
    let other = g.networked(&[], &["sleep", "forever"]);
    let (host, outside) = (space.host(), space.outside());
    let (itself, other_place) = (g.network_namespace(&server), g.network_namespace(&other));
    for protocol in ["tcp", "udp"] {
        for (address, from) in [(HOST4, OUTSIDE4), (HOST6, OUTSIDE6)] {
            let seen = outside.ask(protocol, address, 8080);
            assert!(seen.starts_with(&format!("from {from} ")), "the pod sees the client's address: {seen}");
            // From the host itself, from another pod, and from the pod itself.
            for place in [host, &other_place, &itself] {
                let _ = place.ask(protocol, address, 8080);
            }
        }
        let _ = host.ask(protocol, "127.0.0.1", 8080);
        let _ = host.ask(protocol, "127.8.8.8", 8080);
        let _ = other_place.ask(protocol, "10.121.0.1", 8080);
        let _ = itself.ask(protocol, "fd67:616e:7472:7900::1", 8080);
        // No other port of the host leads to the pod.
        outside.assert_unreachable(protocol, HOST4, 8081);
        outside.assert_unreachable(protocol, HOST4, 7000);
    }
    // Forwarded packets for other hosts are never redirected.
    let _far = outside.serve(8080);
    assert!(other_place.ask("tcp", OUTSIDE4, 8080).starts_with(&format!("from {HOST4} to {OUTSIDE4}")));
}

#[test]
fn ports_are_published_on_one_host_address() {
    let (space, g) = lab();
    space.host().batch("addr add 192.0.2.7/24 dev up0\naddr add 2001:db8::7/64 dev up0 nodad\n");
    let four = g.server(&["-p", "192.0.2.7:8080:7000", "-p", "[2001:db8::7]:8080:7000"], "7000");
    let outside = space.outside();
    for (right, wrong, own) in [("192.0.2.7", HOST4, g.ip4(&four)), ("2001:db8::7", HOST6, g.ip6(&four))] {
        assert!(outside.ask("tcp", right, 8080).contains(&format!(" to {own} ")));
        outside.assert_unreachable("tcp", wrong, 8080);
    }
    space.host().assert_unreachable("tcp", "127.0.0.1", 8080);
    // The port is free on other addresses.
    let other = g.server(&[&format!("--port={HOST4}:8080:7000")], "7000");
    assert!(outside.ask("tcp", HOST4, 8080).contains(&format!(" to {} ", g.ip4(&other))));
    // Published on loopback only: not reachable from outside.
    let third = g.server(&["-p", "127.0.0.1:8082:7000"], "7000");
    assert!(space.host().ask("tcp", "127.0.0.1", 8082).contains(&format!(" to {} ", g.ip4(&third))));
    outside.assert_unreachable("tcp", HOST4, 8082);
    let image = g.fixture();
    let _ = g
        .run(&["run", "-p", "203.0.113.9:8083:7000", &image, "--", "true"])
        .exits(FAILED)
        .stderr_contains(&["203.0.113.9"]);
}

#[test]
fn port_ranges_are_published() {
    let (space, g) = lab();
    let pod = g.networked(&["-p", "9000-9002:7000-7002"], &["seq", "serve-echo", "7002"]);
    g.wait_log(&pod, "listening");
    let _ = space.outside().ask("tcp", HOST4, 9002);
    let _ = space.outside().ask("tcp", HOST6, 9002);
    space.outside().assert_unreachable("tcp", HOST4, 9001);
    let image = g.fixture();
    for (port, says) in [
        ("9100-9102:7000-7001", "9100"),
        ("0:80", "0"),
        ("65536:80", "65536"),
        ("80:0", "0"),
        ("80:80/icmp", "icmp"),
        ("65530-65540:1-11", "65540"),
        ("nonsense", "nonsense"),
        ("1.2.3:80:80", "1.2.3"),
        ("9000:", "not a port"),
    ] {
        let out = g.run(&["run", "-p", port, &image, "--", "true"]);
        assert!(out.code == FAILED || out.code == 2, "{port}: {out}");
        let _ = out.stderr_contains(&[says]);
    }
}

#[test]
fn publishing_a_port_in_use_fails() {
    let (space, g) = lab();
    let image = g.fixture();
    let first = g.server(&["-p", "8080:7000"], "7000");
    let taken = g.run(&["run", "-p", "8080:7000", &image, "--", "true"]).exits(FAILED);
    let _ = taken.stderr_contains(&["8080", "tcp"]);
    // Each protocol has its own ports.
    let second = g.server(&["-p", "8080:7000/udp"], "7000");
    assert!(space.outside().ask("tcp", HOST4, 8080).contains(&g.ip4(&first)));
    assert!(space.outside().ask("udp", HOST4, 8080).contains(&g.ip4(&second)));
    // A port within a range.
    let _ = g.run(&["run", "-p", "8079-8081:1-3", &image, "--", "true"]).exits(FAILED).stderr_contains(&["8080"]);
    // The same port twice in one pod.
    let twice = g.run(&["run", "-p", "8090:1", "-p", "8090:2", &image, "--", "true"]);
    assert!(twice.code != 0, "{twice}");
    let _ = twice.stderr_contains(&["8090"]);
    // A port used by a process of the host: the process keeps it.
    let server = space.host().serve(8088);
    let user = format!("in use by process {} (gantry-fixture-", server_pid(&space, 8088));
    for port in ["8088:7000", "8088:7000/udp"] {
        let _ = g.run(&["run", "-p", port, &image, "--", "true"]).exits(FAILED).stderr_contains(&["8088", &user]);
    }
    assert!(space.outside().ask("tcp", HOST4, 8088).contains(&format!(" to {HOST4} ")));
    drop(server);
    let third = g.server(&["-p", "8088:7000"], "7000");
    assert!(space.outside().ask("tcp", HOST4, 8088).contains(&g.ip4(&third)));
    // While the pod runs, processes of the host cannot use the port.
    let bind = space.host().run("python3", &["-c", "import socket; socket.create_server(('0.0.0.0', 8088))"]);
    assert_ne!(bind.code, 0, "the port of a pod was given to a process of the host");
    // After the pod has ended, its port is free for pods and processes.
    for pod in [&first, &second] {
        g.run(&["stop", pod]).succeeded();
        g.wait_state(pod, "exited");
    }
    let server = space.host().serve_at(8080, HOST4);
    assert!(space.outside().ask("tcp", HOST4, 8080).contains(&format!(" to {HOST4} ")));
    drop(server);
    let again = g.server(&["-p", "8080:7000"], "7000");
    assert!(space.outside().ask("tcp", HOST4, 8080).contains(&g.ip4(&again)));
}

#[test]
fn the_user_of_a_taken_port_is_named() {
    let (space, g) = lab();
    let image = g.fixture();
    let assert_taken = |port: &str, by: &str| {
        let taken = g.run(&["run", "-p", port, &image, "--", "true"]).exits(FAILED);
        let _ = taken.stderr_contains(&[&format!("in use by {by}")]);
    };
    // A pod, also where one of both names an address.
    let everywhere = g.server(&["-p", "8080:7000", "-p", "8080:7000/udp"], "7000");
    let loopback = g.server(&["-p", "127.0.0.1:8082:7000", "-p", "127.0.0.1:8082:7000/udp"], "7000");
    for protocol in ["tcp", "udp"] {
        for (port, pod) in [("8080", &everywhere), ("127.0.0.1:8080", &everywhere), ("8082", &loopback)] {
            assert_taken(&format!("{port}:7000/{protocol}"), &format!("pod {pod}"));
        }
    }
    // A process of the host on the address that the pod does not publish.
    let server = space.host().serve_at(8082, HOST4);
    assert_taken(&format!("{HOST4}:8082:7000"), &format!("process {} ", server_pid(&space, 8082)));
    drop(server);
    // A process that only uses the port of IPv6 loopback does not use that of IPv4.
    let server = space.host().serve_at(8083, "::1");
    assert_taken("8083:7000", &format!("process {} ", server_pid(&space, 8083)));
    let _four = g.server(&["-p", "127.0.0.1:8083:7000"], "7000");
    drop(server);
}

/// The process that listens on a port of the host (ss(8)).
fn server_pid(space: &Space, port: u16) -> String {
    let text = space.host().sh(&format!("ss -Hltnp 'sport = :{port}'"));
    let pid = text.split_once("pid=").and_then(|(_, rest)| rest.split_once(','));
    pid.unwrap_or_else(|| panic!("no process listens on {port}: {text}")).0.to_owned()
}

#[test]
fn publishing_on_ipv6_loopback_is_rejected() {
    let (_space, g) = lab();
    let image = g.fixture();
    for port in ["[::1]:8089:80", "8080-tcp:[::1]:8089"] {
        let out = g.run(&["run", "-p", port, &image, "--", "true"]).exits(FAILED);
        let _ = out.stderr_contains(&["cannot be published on [::1]", "127.0.0.1"]);
    }
    assert_eq!(g.list().len(), 0);
    let _ = g.run(&["gc"]).ok();
}

/// Earlier versions accepted `[::1]` and recorded it.
#[test]
fn records_with_obsolete_ports_are_removed() {
    let (space, g) = lab();
    let pod = g.server(&["-p", "8080:7000"], "7000");
    let other = g.server(&["-p", "8081:7000"], "7000");
    let record = g.dir().join("pods").join(&pod).join("network.json");
    let text = std::fs::read_to_string(&record).unwrap_or_else(|error| panic!("{error}"));
    let port =
        format!(r#""ports":[{{"address":"::1","protocol":"tcp","port":8089,"to":"[{}]:80","count":1}},"#, g.ip6(&pod));
    let changed = text.replacen(r#""ports":[{"address""#, &format!("{port}{{\"address\""), 1);
    assert_ne!(text, changed, "the record has no ports in the form that is known here");
    std::fs::write(&record, changed).unwrap_or_else(|error| panic!("{error}"));
    // The recorded port does not conflict with others.
    space.host().sh("nft flush ruleset");
    g.run(&["network", "reload"]).succeeded();
    assert!(space.outside().ask("tcp", HOST4, 8081).contains(&g.ip4(&other)));
    g.run(&["stop", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    g.run(&["rm", &pod]).succeeded();
    let _ = g.run(&["gc"]).ok();
    let again = g.server(&["-p", "8080:7000"], "7000");
    assert!(space.outside().ask("tcp", HOST4, 8080).contains(&g.ip4(&again)));
}

#[test]
fn port_lists_published_addresses() {
    let (_space, g) = lab();
    let pod = g.server(&["-p", "127.0.0.1:8080:7000", "-p", "9000-9001:70-71/udp"], "7000");
    let all = "7000/tcp -> 127.0.0.1:8080\n70/udp -> 0.0.0.0:9000\n70/udp -> [::]:9000\n\
               71/udp -> 0.0.0.0:9001\n71/udp -> [::]:9001\n";
    assert_eq!(g.run(&["port", &pod]).ok().stdout, all);
    let _ = g.run(&["list"]).ok().stdout_contains("  127.0.0.1:8080->7000/tcp, 9000-9001->70-71/udp\n");
    assert_eq!(g.run(&["port", &pod, "7000"]).ok().stdout, "127.0.0.1:8080\n");
    assert_eq!(g.run(&["port", &pod, "71/udp"]).ok().stdout, "0.0.0.0:9001\n[::]:9001\n");
    let udp =
        |pod_port, host_port| json!({"pod_port": pod_port, "protocol": "udp", "host_ip": null, "host_port": host_port});
    let tcp = json!({"pod_port": 7000, "protocol": "tcp", "host_ip": "127.0.0.1", "host_port": 8080});
    assert_eq!(g.json(&["port", "-o", "json", &pod]), json!([tcp, udp(70, 9000), udp(71, 9001)]));
    assert_eq!(g.json(&["port", "-o", "json", &pod, "71/udp"]), json!([udp(71, 9001)]));
    for port in ["71", "9000", "7000/udp"] {
        let _ = g.run(&["port", &pod, port]).exits(1).stderr_contains(&["is not published", port]);
    }
    let _ = g.run(&["port", &pod, "http"]).exits(FAILED).stderr_contains(&["'http' is not a port"]);
    let _ = g.run(&["port", "00000000"]).exits(1);
    g.run(&["stop", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    assert_eq!(g.run(&["port", &pod]).ok().stdout, "", "a pod that does not run has no port of the host");
}

#[test]
fn declared_ports_are_published_by_name() {
    let (space, g) = lab();
    // The standard image declares 8080/tcp.
    let pod = g.server(&["--port=8080-tcp:80"], "8080");
    assert!(space.outside().ask("tcp", HOST4, 80).contains(&g.ip4(&pod)));
    let bound = g.server(&[&format!("--port=8080-tcp:{HOST4}:81")], "8080");
    assert!(space.outside().ask("tcp", HOST4, 81).contains(&g.ip4(&bound)));
    let image = g.fixture();
    let _ =
        g.run(&["run", "--port=http:82", &image, "--", "true"]).exits(FAILED).stderr_contains(&["http", "8080-tcp"]);
    let two = ["run", "--port=8080-tcp:83", &image, "--name=a", "--", "true", "---", &image, "--name=b", "--", "true"];
    let _ = g.run(&two).exits(FAILED).stderr_contains(&["8080-tcp"]);
    let app = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
    let declared = Image::builder().layer(app).entrypoint(&["/bin/app"]).port("53/udp").port("99").build();
    let image = g.import("declared", &declared.unwrap_or_else(|error| panic!("{error}")));
    let flags = ["run", "-d", "--port=53-udp:5353", "--port=99-tcp:5354", &image, "--", "serve-echo", "53"];
    let pod = gantry_tests::pod_id(&g.run(&flags).ok());
    g.wait_log(&pod, "listening");
    assert!(space.outside().ask("udp", HOST4, 5353).contains(&g.ip4(&pod)));
    assert_eq!(g.network_status(&pod)[0]["ports"].as_array().map_or(0, Vec::len), 2);
}

#[test]
fn published_ports_require_a_forwarding_network() {
    let (space, g) = lab();
    let image = g.fixture();
    for net in ["--net=none", "--net=host"] {
        let out = g.run(&["run", net, "-p", "8080:80", &image, "--", "true"]);
        assert_ne!(out.code, 0, "{out}");
        let _ = out.stderr_contains(&["--port"]);
    }
    let ipam = serde_json::json!({ "type": "host-local", "subnet": "10.41.0.0/24" });
    let plain = serde_json::json!([{ "type": "bridge", "bridge": "plain0", "isGateway": true, "ipam": ipam }]);
    g.conflist("plain", &plain);
    let _ =
        g.run(&["run", "--net=plain", "-p", "8080:80", &image, "--", "true"]).exits(FAILED).stderr_contains(&["port"]);
    // With a network that forwards ports, that network publishes the port, independent of its position.
    let pod = g.server(&["--net=plain,default", "-p", "8080:7000"], "7000");
    let _ = space.host().ask("tcp", "127.0.0.1", 8080);
    let attached = g.network_status(&pod);
    let ports = |at: usize| attached[at]["ports"].as_array().map_or(0, Vec::len);
    assert_eq!((ports(0), ports(1)), (0, 1), "{attached:?}");
    // A restricted network forwards published ports too, although it blocks everything else.
    let restricted = g.server(&["--net=default-restricted", "-p", "8081:7000"], "7000");
    assert!(space.host().ask("tcp", HOST4, 8081).contains(&g.ip4(&restricted)));
}

#[test]
fn further_networks_keep_published_ports_held() {
    let (space, g) = lab();
    let ipam = json!({ "type": "host-local", "subnet": "10.42.0.0/24" });
    g.conflist("four", &json!([{ "type": "bridge", "bridge": "four0", "isGateway": true, "ipam": ipam }]));
    g.conflist("bare", &json!([{ "type": "bridge", "bridge": "bare0" }]));
    // A server of IPv6 only shows whether the port is held there.
    let binds = |family: &str, address: &str| {
        let bind = format!("import socket; socket.create_server(('{address}', 8080), family=socket.{family})");
        space.host().run("python3", &["-c", &bind]).code == 0
    };
    for net in ["--net=default,four", "--net=four,default", "--net=default,bare"] {
        let pod = g.server(&[net, "-p", "8080:7000"], "7000");
        assert!(!binds("AF_INET", "0.0.0.0") && !binds("AF_INET6", "::"), "{net}");
        for address in [HOST4, HOST6] {
            assert!(space.outside().ask("tcp", address, 8080).contains(" to "), "{net}");
        }
        g.run(&["stop", &pod]).succeeded();
        g.wait_state(&pod, "exited");
        assert!(binds("AF_INET", "0.0.0.0") && binds("AF_INET6", "::"), "{net}: it is free when the pod is over");
    }
}

#[test]
fn udp_flows_follow_the_port_to_new_pods() {
    let (space, g) = lab();
    let first = g.server(&["-p", "8053:7000/udp"], "7000");
    assert!(space.outside().ask_from("udp", HOST4, 8053, 40053).contains(&g.ip4(&first)));
    g.run(&["stop", &first]).succeeded();
    g.wait_state(&first, "exited");
    let second = g.server(&["-p", "8053:7000/udp"], "7000");
    assert!(space.outside().ask_from("udp", HOST4, 8053, 40053).contains(&g.ip4(&second)));
    // A flow to the host itself, before the pod exists.
    let host = space.host().serve_at(8054, HOST4);
    assert!(space.outside().ask_from("udp", HOST4, 8054, 40054).contains(&format!(" to {HOST4} ")));
    drop(host);
    let third = g.server(&["-p", "8054:7000/udp"], "7000");
    assert!(space.outside().ask_from("udp", HOST4, 8054, 40054).contains(&g.ip4(&third)));
}

/// The host's port that is published for a port of a pod, according to `gantry port`.
fn published(g: &Gantry, pod: &str, port: &str) -> u16 {
    let out = g.run(&["port", pod, port]).ok();
    let number = out.text().rsplit_once(':').and_then(|(_, number)| number.parse().ok());
    number.unwrap_or_else(|| panic!("no port: {out}"))
}

#[test]
fn a_free_port_is_chosen_reported_and_held() {
    let (space, g) = lab();
    let image = g.fixture();
    let line = ["run", "-d", "-p", "7000", "-p", "127.0.0.1::7000/udp", "-p", "8080:7001", &image, "--"];
    let start = || {
        let line = if g.list().is_empty() { line.to_vec() } else { [&line[..6], &line[8..]].concat() };
        let out = g.run(&[&line[..], &["serve-echo", "7000"]].concat()).ok();
        let pod = gantry_tests::pod_id(&out);
        g.wait_log(&pod, "listening");
        (pod, out)
    };
    let (first, out) = start();
    let (tcp, udp) = (published(&g, &first, "7000"), published(&g, &first, "7000/udp"));
    for told in [format!("published {tcp}->7000/tcp"), format!("published 127.0.0.1:{udp}->7000/udp")] {
        assert!(out.stderr.contains(&told), "'{told}' is not reported: {out}");
    }
    for address in [HOST4, HOST6] {
        assert!(space.outside().ask("tcp", address, tcp).contains(" to "));
    }
    assert!(space.host().ask("udp", "127.0.0.1", udp).contains(&g.ip4(&first)));
    let _ = g.run(&["list"]).ok().stdout_contains(&format!("{tcp}->7000/tcp"));
    assert_eq!(g.network_status(&first)[0]["ports"][0]["host_port"], tcp);
    // The port is exclusive: no program, no pod that names it, and no pod with an automatically assigned port gets it.
    let bind = format!("import socket; socket.create_server(('0.0.0.0', {tcp}))");
    assert_ne!(space.host().run("python3", &["-c", &bind]).code, 0);
    let asked = format!("{tcp}:7000");
    let out = g.run(&["run", "-p", &asked, &image, "--", "true"]).exits(FAILED);
    let _ = out.stderr_contains(&[&format!("in use by pod {first}")]);
    let (second, _) = start();
    assert_ne!(published(&g, &second, "7000"), tcp);
    g.run(&["stop", &first]).succeeded();
    g.wait_state(&first, "exited");
    assert_eq!(space.host().run("python3", &["-c", &bind]).code, 0, "it is free when the pod is over");
}

#[test]
fn all_declared_ports_are_published() {
    let (space, g) = lab();
    // The standard image declares 8080/tcp.
    let pod = g.server(&["-P"], "8080");
    let port = published(&g, &pod, "8080");
    assert!(space.outside().ask("tcp", HOST4, port).contains(&g.ip4(&pod)));
    let other = g.server(&["--publish-all", "-p", "8080:8080"], "8080");
    let lines = "8080/tcp -> 0.0.0.0:8080\n8080/tcp -> [::]:8080\n";
    assert_eq!(g.run(&["port", &other]).ok().stdout, lines, "it is published already");
    // A prepared pod's port is assigned when the pod starts.
    let image = g.fixture();
    let prepared =
        gantry_tests::pod_id(&g.run(&["prepare", "-p", "8080-tcp", &image, "--", "serve-echo", "8080"]).ok());
    g.run(&["run-prepared", "--detach", &prepared]).succeeded();
    g.wait_log(&prepared, "listening");
    assert!(space.outside().ask("tcp", HOST4, published(&g, &prepared, "8080")).contains(&g.ip4(&prepared)));
    let manifest = g.run(&["cat-manifest", &other]).ok().json();
    assert_eq!(manifest["ports"][0]["to"], "all", "{manifest}");
}
