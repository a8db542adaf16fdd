//! Names: `/etc/resolv.conf`, `/etc/hosts` and the host name as in rkt, hostile files of images in their place, and the
//! names of pods.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use gantry_fixtures::{Header, Image, Layer};
use gantry_tests::net::OUTSIDE4;
use gantry_tests::{Gantry, Running, Space, pod_id, wait_for};
use serde_json::json;

const FAILED: i32 = 125;

fn lab() -> (Space, Gantry) {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    (space, g)
}

/// The contents of a file in a pod with these flags.
fn file(g: &Gantry, flags: &[&str], path: &str) -> String {
    g.client(flags, &["cat", path]).ok().stdout
}

/// The lines that start with a word, without that word.
fn lines<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let words = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    words.filter(|(first, _)| *first == word).map(|(_, rest)| rest.trim()).collect()
}

/// The host's name servers, except those on its loopback interface.
fn host_servers() -> Vec<String> {
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let all = lines(&text, "nameserver").into_iter().map(str::to_owned);
    all.filter(|server| !server.starts_with("127.") && server != "::1").collect()
}

#[test]
fn dns_flags_write_resolv_conf() {
    let (_space, g) = lab();
    let text = file(
        &g,
        &[
            "--dns=8.8.4.4,2001:db8::53",
            "--dns=8.8.8.8",
            "--dns-search=a.test",
            "--dns-search=b.test",
            "--dns-opt=ndots:3",
            "--dns-opt=debug",
            "--dns-domain=c.test",
        ],
        "/etc/resolv.conf",
    );
    assert_eq!(lines(&text, "nameserver"), ["8.8.4.4", "2001:db8::53", "8.8.8.8"], "{text}");
    assert_eq!(lines(&text, "search"), ["a.test b.test"], "{text}");
    assert_eq!(lines(&text, "options"), ["ndots:3 debug"], "{text}");
    assert_eq!(lines(&text, "domain"), ["c.test"], "{text}");
    // Any of these flags replaces the DNS settings of networks; without --dns, the name servers stay.
    let text = file(&g, &["--dns-search=a.test"], "/etc/resolv.conf");
    assert_eq!((lines(&text, "search"), lines(&text, "nameserver")[0]), (vec!["a.test"], "10.121.0.1"), "{text}");
    // Even without networks.
    let text = file(&g, &["--net=none", "--dns=8.8.4.4"], "/etc/resolv.conf");
    assert_eq!(lines(&text, "nameserver"), ["8.8.4.4"], "{text}");
}

#[test]
fn dns_modes_host_and_none() {
    let (_space, g) = lab();
    let hosts = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    assert_eq!(file(&g, &["--dns=host"], "/etc/resolv.conf"), hosts);
    let none = g.client(&["--dns=none"], &["cat", "/etc/resolv.conf"]);
    assert_ne!(none.code, 0, "the standard image has none: {none}");
    let app = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755).dir("etc", 0o755);
    let image =
        Image::builder().layer(app.file("etc/resolv.conf", "# the image's own\n", 0o644)).entrypoint(&["/bin/app"]);
    let image = g.import("own", &image.build().unwrap_or_else(|error| panic!("{error}")));
    let cat = |flags: &[&str]| {
        g.run(&[&["run", "--quiet", image.as_str()], flags, &["--", "cat", "/etc/resolv.conf"]].concat()).ok().stdout
    };
    assert_eq!(cat(&["--dns=none"]), "# the image's own\n");
    assert_eq!(cat(&["--net=none"]), "# the image's own\n");
    assert!(!cat(&["--dns=8.8.4.4"]).contains("own"));
}

#[test]
fn dns_settings_of_a_network_are_used() {
    let (_space, g) = lab();
    let ipam = json!({ "type": "host-local", "subnet": "10.61.0.0/24" });
    let dns = json!({ "nameservers": ["10.61.0.53"], "domain": "net.test", "search": ["net.test", "x.test"], "options": ["ndots:2"] });
    g.conflist(
        "named",
        &json!([{ "type": "bridge", "bridge": "named0", "isGateway": true, "ipam": ipam, "dns": dns }]),
    );
    let text = file(&g, &["--net=named"], "/etc/resolv.conf");
    assert_eq!(lines(&text, "nameserver"), ["10.61.0.53"], "{text}");
    assert_eq!((lines(&text, "search"), lines(&text, "options")), (vec!["net.test x.test"], vec!["ndots:2"]), "{text}");
    // The first network with DNS settings is used.
    let text = file(&g, &["--net=default,named"], "/etc/resolv.conf");
    assert_eq!(lines(&text, "nameserver"), ["10.61.0.53"], "{text}");
    let text = file(&g, &["--net=named", "--dns=8.8.4.4"], "/etc/resolv.conf");
    assert_eq!((lines(&text, "nameserver"), lines(&text, "search").len()), (vec!["8.8.4.4"], 0), "{text}");
    assert_ne!(g.client(&["--net=named", "--dns=none"], &["cat", "/etc/resolv.conf"]).code, 0);
}

#[test]
fn dns_defaults_to_the_host() {
    let (_space, g) = lab();
    let (text, hosts) = (file(&g, &[], "/etc/resolv.conf"), host_servers());
    let servers = lines(&text, "nameserver");
    assert_eq!(servers.first(), Some(&"10.121.0.1"), "gantryd's resolver comes first: {text}");
    // Resolvers read three name servers.
    assert_eq!(servers[1..], hosts.iter().take(2).collect::<Vec<_>>(), "the host's name servers follow: {text}");
    g.networks("resolver = false");
    let text = file(&g, &[], "/etc/resolv.conf");
    assert!(!text.contains("10.121.0.1"), "{text}");
    assert_eq!(lines(&text, "nameserver"), hosts.iter().take(3).collect::<Vec<_>>(), "{text}");
}

#[test]
fn hosts_file_lists_names_of_the_pod() {
    let (_space, g) = lab();
    let text = file(&g, &["--hostname=it"], "/etc/hosts");
    assert!(lines(&text, "127.0.0.1").iter().any(|names| names.contains("localhost")), "{text}");
    assert!(text.lines().any(|line| line.starts_with("10.121.") && line.ends_with("it")), "{text}");
    assert_eq!(g.client(&["--hostname=it"], &["hostname"]).ok().text(), "it");
    assert_eq!(file(&g, &["--hostname=it"], "/etc/hostname"), "it\n");
    let text = file(&g, &["--hosts-entry=10.9.8.7=one,10.9.8.7=two", "--hosts-entry=2001:db8::7=six"], "/etc/hosts");
    assert_eq!(lines(&text, "10.9.8.7"), ["one two"], "{text}");
    assert_eq!(lines(&text, "2001:db8::7"), ["six"], "{text}");
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    assert_eq!(file(&g, &["--hosts-entry=host"], "/etc/hosts"), hosts);
    assert_eq!(g.client(&["--hosts-entry=10.9.8.7=one"], &["resolve", "one"]).ok().text(), "10.9.8.7");
    let pod = g.networked(&[], &["sleep", "forever"]);
    let name = g.run(&["exec", &pod, "--", "/bin/app", "hostname"]).ok();
    assert!(name.text().contains(&pod[..8]), "the default name contains the pod id: {name}");
}

#[test]
fn conflicting_flags_and_invalid_names_are_rejected() {
    let (_space, g) = lab();
    let image = g.fixture();
    for (flags, says) in [
        (&["--dns=host", "--dns=8.8.8.8"][..], "dns"),
        (&["--dns=8.8.8.8", "--dns=none"], "dns"),
        (&["--dns=host", "--dns=none"], "dns"),
        (&["--dns=none", "--dns-search=a.test"], "dns"),
        (&["--dns=host", "--dns-opt=debug"], "dns"),
        (&["--dns=not-an-address"], "not-an-address"),
        (&["--dns-search=a\nnameserver 6.6.6.6"], "search"),
        (&["--dns-opt=a b"], "a b"),
        (&["--dns-domain=a\nb"], "domain"),
        (&["--hosts-entry=host", "--hosts-entry=10.0.0.1=a"], "hosts-entry"),
        (&["--hosts-entry=10.0.0.1"], "hosts-entry"),
        (&["--hosts-entry=not-an-address=a"], "not-an-address"),
        (&["--hosts-entry=10.0.0.1=a\n6.6.6.6 b"], "hosts-entry"),
        (&["--hostname=a b"], "host name"),
        (&["--hostname=a\nb"], "host name"),
    ] {
        let out = g.run(&[&["run", "--net=none"], flags, &[image.as_str(), "--", "true"]].concat());
        assert!(out.code == FAILED || out.code == 2, "{flags:?}: {out}");
        let _ = out.stderr_contains(&[says]);
    }
}

/// An image with the `/etc` of these layers.
fn hostile(g: &Gantry, name: &str, etc: impl FnOnce(Layer) -> Layer) -> String {
    let base = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
    let image = Image::builder().layer(etc(base)).entrypoint(&["/bin/app"]).build();
    g.import(name, &image.unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn hostile_files_in_etc_are_not_followed() {
    let (_space, g) = lab();
    let victim = g.scratch().join("victim");
    let written = std::fs::write(&victim, "precious\n")
        .and_then(|()| std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o666)));
    assert!(written.is_ok(), "{written:?}");
    let up = format!("/../../../../../../../..{}", victim.display());
    let names = ["etc/resolv.conf", "etc/hosts", "etc/hostname"];
    let images = [
        hostile(&g, "links", |layer| {
            names.iter().fold(layer.dir("etc", 0o755), |layer, name| layer.symlink(name, &up))
        }),
        hostile(&g, "proc", |layer| {
            names.iter().fold(layer.dir("etc", 0o755), |layer, name| layer.symlink(name, "/proc/1/root/etc/victim"))
        }),
        hostile(&g, "fifos", |layer| {
            names.iter().fold(layer.dir("etc", 0o755), |layer, name| layer.raw_header(&Header::new(b'6', name), ""))
        }),
        hostile(&g, "none", |layer| layer),
    ];
    for image in &images {
        let flags = ["--hostname=it", "--dns=8.8.4.4", "--hosts-entry=10.9.8.7=one"];
        let cat = ["--", "cat", "/etc/resolv.conf", "/etc/hosts", "/etc/hostname"];
        let out = g.run(&[&["run", "--quiet", image.as_str()], &flags[..], &cat].concat()).ok();
        let _ = out.stdout_contains("nameserver 8.8.4.4").stdout_contains("one").stdout_contains("it");
        assert_eq!(std::fs::read_to_string(&victim).unwrap_or_default(), "precious\n");
    }
    // A directory: the run fails with an error or the file is right; never silently wrong, never outside the root.
    let image = hostile(&g, "directories", |layer| {
        names
            .iter()
            .fold(layer.dir("etc", 0o755), |layer, name| layer.dir(name, 0o755).file(format!("{name}/x"), "x", 0o644))
    });
    let out = g.run(&["run", "--quiet", &image, "--dns=8.8.4.4", "--", "cat", "/etc/resolv.conf"]);
    assert!(out.code == 0 && out.stdout.contains("8.8.4.4") || out.stderr.contains("resolv.conf"), "{out}");
    // An /etc that is a link: it is resolved within the root or not at all.
    let outside = g.scratch().join("outside");
    let made = std::fs::create_dir(&outside);
    assert!(made.is_ok(), "{made:?}");
    let escape = format!("/../../../../../../../..{}", outside.display());
    for (name, target) in [("etc-link", "/other"), ("etc-escape", escape.as_str()), ("etc-proc", "/proc/1/root/etc")] {
        let image = hostile(&g, name, |layer| layer.dir("other", 0o755).symlink("etc", target));
        let out = g.run(&["run", "--quiet", &image, "--dns=8.8.4.4", "--", "cat", "/etc/resolv.conf"]);
        assert!(out.code == 0 && out.stdout.contains("8.8.4.4") || out.code == FAILED, "{name}: {out}");
        let _ = out.stderr_contains(&[]);
        assert!(std::fs::read_dir(&outside).is_ok_and(|mut dir| dir.next().is_none()), "{name}: it wrote outside");
    }
}

#[test]
fn a_read_only_root_has_name_files() {
    let (_space, g) = lab();
    let text = file(&g, &["--readonly-rootfs=true", "--dns=8.8.4.4"], "/etc/resolv.conf");
    assert_eq!(lines(&text, "nameserver"), ["8.8.4.4"]);
}

/// A DNS server on the outside that answers 203.0.113.7 for `known.test` and NXDOMAIN for all other names.
const UPSTREAM: &str = r#"
import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("192.0.2.2", 53))
print("serving", flush=True)
while True:
    query, peer = s.recvfrom(4096)
    end = query.index(b"\0", 12) + 5
    name, kind = query[12:end - 4], struct.unpack(">H", query[end - 4:end - 2])[0]
    known = name.lower() == b"\x05known\x04test\0"
    answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + bytes([203, 0, 113, 7]) if known and kind == 1 else b""
    head = query[:2] + struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, 1 if answer else 0, 0, 0)
    s.sendto(head + query[12:end] + answer, peer)
"#;

/// gantryd, with that server only in `/etc/resolv.conf`.
fn daemon_with_upstream(g: &Gantry) -> Running {
    let resolv = g.write("resolv.conf", &format!("nameserver {OUTSIDE4}\n"));
    let plain = g.daemon(&[]);
    let mut command = Command::new("unshare");
    let script = format!("mount --bind '{resolv}' /etc/resolv.conf && exec \"$@\"");
    command.args(["--mount", "--propagation=private", "--", "sh", "-ec", &script, "sh"]);
    command.arg(plain.get_program()).args(plain.get_args());
    gantry_tests::api::copy_environment(&plain, &mut command);
    let mut daemon = g.spawn_command(&mut command);
    daemon.wait_for_stderr("info: reconciling the pods of");
    daemon
}

#[test]
fn pods_find_each_other_by_name() {
    let (space, g) = lab();
    let mut upstream = g.spawn_command(space.outside().command("python3").args(["-c", UPSTREAM]));
    upstream.wait_for_stdout("serving");
    let daemon = daemon_with_upstream(&g);
    let image = g.fixture();
    let server = ["run", "-d", "--hostname=web-host", &image, "--name=web", "--", "serve-echo", "7000"];
    let server = pod_id(&g.run(&server).ok());
    g.wait_log(&server, "listening");
    let flags = ["--dns=10.121.0.1"];
    let client = g.networked(&flags, &["sleep", "forever"]);
    let ask = |name: &str| g.run(&["exec", &client, "--", "/bin/app", "resolve", name]);
    let (ip4, ip6) = (g.ip4(&server), g.ip6(&server));
    let found = wait_for("the resolver to know the pod", || {
        let out = ask("web");
        (out.code == 0).then(|| out.text().to_owned())
    });
    assert_eq!(found, format!("{ip4}\n{ip6}"));
    for name in ["web-host", "WEB", &server, &format!("gantry-{server}")] {
        assert_eq!(ask(name).ok().text(), found, "{name}");
    }
    // TCP and UDP to that name work.
    let out = g.run(&["exec", &client, "--", "/bin/app", "ask", "tcp", "web", "7000"]).ok();
    assert!(out.text().starts_with("from "), "{out}");
    // Other names are resolved by the host's servers; unknown names fail.
    assert_eq!(ask("known.test").ok().text(), "203.0.113.7");
    assert_ne!(ask("unknown.test").code, 0);
    // Pods of other networks are not found.
    let other = ["--net=default-restricted", "--dns=10.122.0.1"];
    let other = g.networked(&other, &["sleep", "forever"]);
    wait_for("the resolver of the other network", || {
        (g.run(&["exec", &other, "--", "/bin/app", "resolve", "known.test"]).code == 0).then_some(())
    });
    assert_ne!(g.run(&["exec", &other, "--", "/bin/app", "resolve", "web"]).code, 0);
    // The name is removed with its pod.
    g.run(&["stop", &server]).succeeded();
    wait_for("the name to be gone", || (ask("web").code != 0).then_some(()));
    let _ = daemon.terminate();
    assert!(Path::new("/etc/resolv.conf").exists());
}

#[test]
fn pods_resolve_names_of_all_their_networks() {
    let (space, g) = lab();
    let ipam = json!({ "type": "host-local", "subnet": "10.62.0.0/24" });
    g.conflist("back", &json!([{ "type": "bridge", "bridge": "back0", "isGateway": true, "ipam": ipam }]));
    let mut upstream = g.spawn_command(space.outside().command("python3").args(["-c", UPSTREAM]));
    upstream.wait_for_stdout("serving");
    let daemon = daemon_with_upstream(&g);
    let image = g.fixture();
    let start = |name: &str, flags: &[&str]| {
        let app = format!("--name={name}");
        let run = [&["run", "-d"], flags, &[image.as_str(), &app, "--", "serve-echo", "7000"]].concat();
        let pod = pod_id(&g.run(&run).ok());
        g.wait_log(&pod, "listening");
        pod
    };
    let both = start("web", &["--net=default,back", "--dns=10.121.0.1"]);
    let back = start("db", &["--net=back", "--dns=10.62.0.1"]);
    let front = start("cache", &["--net=default", "--dns=10.121.0.1"]);
    let addresses = |pod: &str, network: usize| {
        let all = g.network_status(pod)[network]["addresses"].as_array().cloned().unwrap_or_default();
        let all: Vec<String> = all.iter().filter_map(|it| it["address"].as_str().map(str::to_owned)).collect();
        all.join("\n")
    };
    let resolve = |pod: &str, name: &str| g.run(&["exec", pod, "--", "/bin/app", "resolve", name]);
    let resolves = |pod: &str, name: &str, want: &str| {
        wait_for(&format!("{pod} to resolve {name} as {want}"), || {
            let out = resolve(pod, name);
            (out.code == 0 && out.text() == want).then_some(())
        });
    };
    // The pod in both networks finds the pods of each, although its DNS server is the gateway of one.
    resolves(&both, "cache", &addresses(&front, 0));
    resolves(&both, "db", &addresses(&back, 0));
    // The others find it by its address in their network.
    resolves(&front, "web", &addresses(&both, 0));
    resolves(&back, "web", &addresses(&both, 1));
    for (from, name) in [(&both, "db"), (&back, "web"), (&front, "web")] {
        let out = g.run(&["exec", from, "--", "/bin/app", "ask", "tcp", name, "7000"]).ok();
        assert!(out.text().starts_with("from "), "{name}: {out}");
    }
    // They do not find each other through it.
    for (pod, name) in [(&front, "db"), (&back, "cache")] {
        resolves(pod, "known.test", "203.0.113.7");
        assert_ne!(resolve(pod, name).code, 0, "{name}");
    }
    let _ = daemon.terminate();
}
