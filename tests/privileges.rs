//! Privileges of an app: capabilities, address families, ports.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use gantry_tests::{Gantry, Out};

/// podman's default set (capabilities(7) has the numbers).
const DEFAULT_SET: u64 = 0x8004_05fb;
const NET_RAW: u64 = 1 << 13;

/// A capability set in the output of the verb `caps`, such as `CapEff`.
#[track_caller]
fn set(out: &Out, name: &str) -> u64 {
    parse_set(&out.stdout, name)
}

/// The capabilities that this process could grant to an app.
fn held() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_set(&status, "CapPrm") & parse_set(&status, "CapBnd")
}

/// A capability set in the form of `/proc/PID/status`.
#[track_caller]
fn parse_set(status: &str, name: &str) -> u64 {
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    match line.split_whitespace().nth(1).map(|text| u64::from_str_radix(text, 16)) {
        Some(Ok(set)) => set,
        _ => panic!("no {name} in {status}"),
    }
}

#[test]
fn default_capabilities_match_podman() {
    let g = Gantry::new();
    let root = g.app(&[], &["caps"]).ok();
    for name in ["CapEff", "CapPrm", "CapBnd"] {
        assert_eq!(set(&root, name), DEFAULT_SET & held(), "{name}: {root}");
    }
    let user = g.app(&["--user=app"], &["caps"]).ok();
    assert_eq!((set(&user, "CapEff"), set(&user, "CapPrm"), set(&user, "CapAmb")), (0, 0, 0), "{user}");
}

/// As with docker and podman: the default filter allows each call with its own capability.
#[test]
fn system_calls_are_allowed_with_their_capability() {
    let g = Gantry::new();
    for (verb, capability, bit) in
        [("syslog-try", "SYSLOG", 1 << 34), ("perf-try", "PERFMON", 1 << 38), ("bpf-try", "BPF", 1 << 39)]
    {
        let _ = g.app(&[], &[verb]).exits(3).stdout_contains(": EPERM");
        if held() & bit != 0 {
            // The kernel may lack the call.
            let out = g.app(&[&format!("--cap-add={capability}")], &[verb]);
            assert!([0, 3].contains(&out.code) && !out.stdout.contains("EPERM"), "{verb} with {capability}: {out}");
        }
    }
    g.check_invariants();
}

#[test]
fn added_capabilities_reach_users_other_than_root() {
    let g = Gantry::new();
    let pod = g.detached(&["--user=app", "--cap-add=NET_RAW"], &["sleep", "forever"]);
    let privileged = ["--user=app", "--cap-add=NET_RAW", "--no-new-privileges=false"];
    let rows = [
        ("app", g.app(&["--user=app", "--cap-add=NET_RAW"], &["caps"]).ok()),
        ("app that may gain privileges", g.app(&privileged, &["caps"]).ok()),
        ("exec", g.run(&["exec", &pod, "--", "/bin/app", "caps"]).ok()),
        ("exec as another user", g.run(&["exec", "--user=other", &pod, "--", "/bin/app", "caps"]).ok()),
    ];
    for (what, out) in &rows {
        for name in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(set(out, name), NET_RAW, "{what}, {name}: {out}");
        }
        assert_eq!(set(out, "CapBnd"), (DEFAULT_SET & held()) | NET_RAW, "{what}: {out}");
    }
    let root = g.run(&["exec", "--user=root", &pod, "--", "/bin/app", "caps"]).ok();
    assert_eq!((set(&root, "CapEff"), set(&root, "CapAmb")), ((DEFAULT_SET & held()) | NET_RAW, 0), "{root}");
    // The capability's purpose: AF_PACKET, which the filter permits with it.
    let _ = g.app(&["--user=app", "--cap-add=NET_RAW"], &["socket-try", "17"]).ok().stdout_contains("allowed");
    let _ = g.app(&["--user=app", "--caps-retain=NET_RAW"], &["caps"]).ok().stdout_contains("CapEff: 0000000000000000");
}

#[test]
fn all_grants_the_capabilities_of_host_root() {
    let g = Gantry::new();
    for flags in [&["--cap-add=ALL"][..], &["--insecure-options=all-run"]] {
        let out = g.app(flags, &["caps"]).ok();
        assert_eq!(set(&out, "CapEff"), held(), "{flags:?}: {out}");
    }
    let user = g.app(&["--user=app", "--cap-add=ALL"], &["caps"]).ok();
    assert_eq!(set(&user, "CapEff"), held(), "{user}");
    let user = g.app(&["--user=app", "--insecure-options=all-run"], &["caps"]).ok();
    assert_eq!(set(&user, "CapEff"), 0, "{user}");
}

#[test]
fn privileged_apps_make_cgroups_in_theirs() {
    let g = Gantry::new();
    let is_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let dir = if is_v2 { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/pids" };
    let (inner, procs) = (format!("{dir}/own"), format!("{dir}/own/cgroup.procs"));
    let line = ["seq", "mkdir", &inner, "--", "write", &procs, "0", "--", "cat", "/proc/self/cgroup"];
    let pod = g.detached(&["--privileged"], &["sleep", "forever"]);
    let out = g.run(&[&["exec", &pod, "--", "/bin/app"], &line[..]].concat()).ok();
    let paths = out.stdout.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    assert!(paths.clone().all(|path| ["/", "/own"].contains(&path)), "they have a namespace: {out}");
    assert_eq!(paths.filter(|path| *path == "/own").count(), 1, "{out}");
    let _ = g.app(&[], &["mkdir", &inner]).exits(1).stderr_contains(&["Read-only file system"]);
    g.run(&["stop", "--force", &pod]).succeeded();
    g.check_invariants();
}

#[test]
fn unavailable_capabilities_are_named() {
    let g = Gantry::new();
    let image = g.fixture();
    let as_lesser_root = |args: &[&str]| {
        let plain = g.command(args);
        let mut command = std::process::Command::new("setpriv");
        command.arg("--bounding-set=-sys_boot,-setfcap").arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        g.spawn_command(&mut command).wait()
    };
    let run = |flag: &str| as_lesser_root(&["run", "--net=none", "--quiet", flag, &image, "--", "caps"]);
    let _ = run("--cap-add=SYS_BOOT").exits(125).stderr_contains(&["this host's root lacks CAP_SYS_BOOT"]);
    let _ = run("--caps-retain=SYS_BOOT,CHOWN").exits(125).stderr_contains(&["this host's root lacks CAP_SYS_BOOT"]);
    let without = held() & !(1 << 22) & !(1 << 31);
    assert_eq!(set(&run("--cap-add=ALL").ok(), "CapEff"), without);
    assert_eq!(set(&run("--cap-drop=KILL").ok(), "CapEff"), DEFAULT_SET & without & !(1 << 5), "of the default set");
    g.check_invariants();
}

#[test]
fn unprivileged_users_bind_low_ports_and_ping() {
    let g = Gantry::new();
    let switches = ["net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range"];
    let of_host = || {
        switches
            .map(|name| std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).unwrap_or_default())
    };
    let before = of_host();
    let _ = g.app(&["--user=app"], &["bind-try", "80"]).ok().stdout_contains("bind: allowed");
    let _ = g.app(&["--user=app"], &["ping-socket-try"]).ok().stdout_contains("ping: allowed");
    let image = g.fixture();
    let line = ["run", "--net=host", "--quiet", "--user=app", &image, "--", "sysctl", switches[0]];
    assert_eq!(g.run(&line).ok().text(), before[0].trim(), "the host's own is left alone");
    assert_eq!(of_host(), before);
}

#[test]
fn other_socket_address_families_are_denied() {
    let g = Gantry::new();
    // AX25 … MCTP, without UNIX (1), INET (2), INET6 (10), NETLINK (16).
    let families: Vec<u32> = (3..=46).filter(|family| ![10, 16].contains(family)).chain([255, 4_294_967]).collect();
    let mut line = vec!["seq".to_owned()];
    for family in [1, 2, 10] {
        line.extend(["socket-try".to_owned(), family.to_string(), "--".to_owned()]);
    }
    line.extend(["socketpair-try".to_owned(), "1".to_owned()]);
    let allowed: Vec<&str> = line.iter().map(String::as_str).collect();
    let _ = g.app(&[], &allowed).ok();
    let _ = g.app(&["--user=app"], &allowed).ok();
    let pod = g.detached(&[], &["sleep", "forever"]);
    for family in families {
        for verb in ["socket-try", "socketpair-try"] {
            let out = g.run(&["exec", &pod, "--", "/bin/app", verb, &family.to_string()]);
            let _ = out.exits(3).stdout_contains("EAFNOSUPPORT");
        }
    }
    let _ = g.app(&[], &["socketpair-try", "2"]).exits(3).stdout_contains("EAFNOSUPPORT");
    let flags = ["--seccomp=unconfined", "--cap-add=NET_RAW"];
    let _ = g.app(&flags, &["socket-try", "17"]).ok().stdout_contains("socket: allowed");
}

/// A socket of the host gives access to the host's network namespace, whichever process holds it.
#[test]
fn sockets_of_the_caller_are_relayed() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let exec = |verb: &[&str]| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let line = [&["exec", "-i", &pod, "--", "/bin/app"], verb].concat();
        (ours, g.spawn_with(&mut g.command(&line), OwnedFd::from(theirs).into()))
    };
    let (_ours, running) = exec(&["interfaces-try", "0"]);
    let _ = running.wait().exits(3).stdout_contains("ENOTTY");
    let (mut ours, running) = exec(&["echo-stdin"]);
    ours.write_all(b"through a socket").unwrap();
    drop(ours);
    assert_eq!(running.wait().ok().stdout, "through a socket");
}
