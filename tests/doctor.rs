//! `doctor` reports real problems and gives no false alarms.

use std::fs;

use gantry_tests::{Gantry, Running, Signal, Space, pod_id};

/// Repeats `doctor --deep` until these commands have ended: work in progress is no finding.
#[track_caller]
fn assert_healthy_until_the_end(g: &Gantry, mut busy: Vec<Running>) {
    let mut asked = 0;
    while asked == 0 || busy.iter_mut().any(|running| !running.has_ended()) {
        g.run(&["doctor", "--deep"]).succeeded();
        asked += 1;
    }
    for running in busy {
        running.wait().succeeded();
    }
}

#[test]
fn starting_and_ending_pods_are_no_findings() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    let image = g.fixture();
    for _ in 0..4 {
        let prepared = pod_id(&g.run(&["prepare", &image, "--", "true"]).ok());
        let runs =
            [&["run-prepared", &*prepared][..], &["run", "--rm", &image, "--", "true"], &["run", &image, "--", "true"]];
        assert_healthy_until_the_end(&g, runs.map(|args| g.spawn(args)).into());
        let ended: Vec<String> = g.list().iter().map(|pod| pod["id"].as_str().unwrap_or_default().to_owned()).collect();
        let removals = ended.iter().map(|pod| g.spawn(&["rm", pod])).collect();
        assert_healthy_until_the_end(&g, removals);
    }
}

/// One after the other, the timeouts would exceed the deadline of a command: each is ten seconds.
#[test]
fn hung_supervisors_are_queried_concurrently() {
    let g = Gantry::new();
    let pods: Vec<String> = (0..7).map(|_| g.detached(&[], &["sleep", "forever"])).collect();
    let signal = |signal| {
        for pod in &pods {
            let pid = i32::try_from(g.supervisor(pod)).ok().and_then(rustix::process::Pid::from_raw);
            let sent = rustix::process::kill_process(pid.unwrap_or(rustix::process::Pid::INIT), signal);
            assert!(sent.is_ok(), "{sent:?}");
        }
    };
    signal(Signal::STOP);
    let doctor = g.run(&["doctor"]);
    signal(Signal::CONT);
    assert_eq!(doctor.code, 1, "{doctor}");
    for pod in &pods {
        assert!(doctor.stdout.contains(&format!("pod {pod} runs and cannot be talked to")), "{doctor}");
    }
    g.run(&["doctor"]).succeeded();
}

#[test]
fn missing_directories_are_findings() {
    let g = Gantry::new();
    g.app(&[], &["true"]).succeeded();
    let pod = g.list()[0]["id"].as_str().unwrap_or_default().to_owned();
    g.run(&["rm", &pod]).succeeded();
    for name in ["tmp", "pods", "locks", "backups"] {
        let (dir, away) = (g.dir().join(name), g.scratch().join(name));
        assert!(fs::rename(&dir, &away).is_ok());
        let doctor = g.run(&["doctor", "--deep"]).exits(1).stdout;
        assert!(doctor.contains(&format!("{} is missing", dir.display())), "{doctor}");
        let _made_meanwhile = fs::remove_dir(&dir);
        assert!(fs::rename(&away, &dir).is_ok());
    }
    g.run(&["doctor", "--deep"]).succeeded();
}

#[test]
fn unusable_default_networks_are_warnings() {
    let g = Gantry::new();
    g.run(&["volume", "create", "x"]).succeeded();
    for (default, want) in [
        ("nowhere", Some("network 'nowhere' of network.default cannot be used: it does not exist")),
        ("default,nowhere", Some("network 'nowhere' of network.default")),
        ("all", None),
        ("none", None),
    ] {
        let config = g.write("config.toml", &format!("[network]\ndefault = '{default}'\n"));
        let doctor = g.run(&["--config", &config, "doctor"]).ok().stdout;
        assert_eq!(doctor.contains("network.default"), want.is_some(), "{doctor}");
        assert!(doctor.contains(want.unwrap_or_default()), "{doctor}");
    }
}

#[test]
fn an_unreadable_restore_record_does_not_block_gantryd() {
    let g = Gantry::new();
    g.fixture();
    let record = g.dir().join("restored");
    assert!(fs::write(&record, [0xff, 0xfe, b'=', 0x80]).is_ok());
    g.start_daemon(&[]).terminate();
    assert!(fs::remove_file(&record).and_then(|()| fs::create_dir(&record)).is_ok());
    g.start_daemon(&[]).terminate();
    let doctor = g.run(&["doctor"]).exits(1).stdout;
    assert!(doctor.contains(&record.display().to_string()), "{doctor}");
    assert!(fs::remove_dir(&record).is_ok());
}

#[test]
fn malformed_network_configurations_are_findings() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    g.net_file("50-lan.conflist", r#"{ "cniVersion": "1.0.0", "name": "lan", "plugins": 7 }"#);
    g.net_file("60-broken.conflist", r#"{ "name": "broken", "#);
    let said = g.run(&["doctor"]).ok().stdout;
    assert!(
        said.contains("warning: pods cannot use the network 'lan': ") && said.contains("50-lan.conflist"),
        "{said}"
    );
    assert!(said.contains("60-broken.conflist"), "{said}");
    g.net_file("70-default.conflist", r#"{ "cniVersion": "1.0.0", "name": "default", "plugins": 7 }"#);
    let said = g.run(&["doctor"]).ok().stdout;
    assert_eq!(said.matches("70-default.conflist").count(), 1, "{said}");
}

/// What makes packets of pods go astray, although everything that gantry made is in place.
#[test]
fn firewalls_and_routes_in_the_way_are_warnings() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    let doctor = || g.run(&["doctor"]).ok().stdout;
    let host = space.host();
    host.sh("nft -f - <<EOF
table ip filter {
    chain DOCKER-USER {
        return
    }
    chain FORWARD {
        type filter hook forward priority filter; policy drop;
        jump DOCKER-USER
    }
}
EOF");
    let said = doctor();
    assert!(
        said.contains("warning: the chain FORWARD of the nftables table ip filter drops forwarded packets"),
        "{said}"
    );
    assert!(said.contains("'iptables -I DOCKER-USER -i gantry0 -j ACCEPT'"), "{said}");
    assert!(!said.contains("gantry1"), "no pod uses it: {said}");
    let restricted = g.networked(&["--net=default-restricted"], &["sleep", "forever"]);
    assert!(doctor().contains("names the bridge gantry1: other hosts may not reach the published ports of its pods"));
    for bridge in ["gantry0", "gantry1"] {
        host.sh(&format!("nft insert rule ip filter DOCKER-USER iifname {bridge} accept"));
    }
    assert!(!doctor().contains("FORWARD"));
    host.batch("route add 10.121.7.0/24 dev up0\n");
    let said = doctor();
    let overlap = "the subnet 10.121.0.0/16 of network 'default' overlaps with the route to 10.121.7.0/24 by up0";
    assert!(said.contains(overlap), "{said}");
    assert!(!said.contains("'default-restricted'"), "its bridge has the only route to its subnet: {said}");
    host.batch("route del 10.121.7.0/24 dev up0\n");
    g.run(&["stop", &restricted]).succeeded();
    assert!(!doctor().contains("overlaps"));
}
