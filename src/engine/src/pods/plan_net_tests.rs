//! Ports and networks, from the request to the plan.

use super::*;
use gantry_model::net::Protocol;

fn name(text: &str) -> AppName {
    text.parse().unwrap()
}

fn image(ports: &[&str]) -> ImageConfig {
    ImageConfig { exposed_ports: ports.iter().map(|&port| port.to_owned()).collect(), ..ImageConfig::default() }
}

fn named(to: &str, host_port: u16) -> PortSpec {
    PortSpec { to: PortTarget::Named(to.into()), host_ip: None, host_port }
}

fn numbered(host: (Option<&str>, u16), port: u16, count: u16, protocol: Protocol) -> PortSpec {
    let host_ip = host.0.map(|ip| ip.parse().unwrap());
    PortSpec { to: PortTarget::Numbered { port, count, protocol }, host_ip, host_port: host.1 }
}

fn resolved(asked: &[PortSpec], images: &[(&str, &[&str])]) -> Result<Vec<PodPort>, PlanError> {
    let images: Vec<(AppName, ImageConfig)> = images.iter().map(|(app, ports)| (name(app), image(ports))).collect();
    ports(asked, &images.iter().map(|(app, config)| (app, config)).collect::<Vec<_>>())
}

fn here(table: &str) -> network::Host {
    let host = host(&NetworkOptions::default(), &Layout::new(Path::new("/d")));
    network::Host { table: table.into(), ..host }
}

#[test]
fn named_ports_resolve_through_images() {
    let web: (&str, &[&str]) = ("web", &["80/tcp", "5000-5003/udp", "nonsense"]);
    let port = resolved(&[named("80-tcp", 8080), named("5000-5003-udp", 6000)], &[web]).unwrap();
    let want = |host_port, pod_port, count, protocol| PodPort { host_ip: None, host_port, pod_port, count, protocol };
    assert_eq!(port, [want(8080, 80, 1, Protocol::Tcp), want(6000, 5000, 4, Protocol::Udp)]);
    let unknown = resolved(&[named("http", 1)], &[web]).unwrap_err();
    assert!(unknown.to_string().starts_with("no port named 'http': declared are: 80-tcp, 5000-5003-udp;"), "{unknown}");
    let none = resolved(&[named("http", 1)], &[("web", &[])]).unwrap_err();
    assert!(none.to_string().contains("declare none"), "{none}");
    let two = resolved(&[named("80-tcp", 1)], &[web, ("b", &["80"])]).unwrap_err();
    assert!(two.to_string().starts_with("port '80-tcp' is ambiguous: apps 'web' and 'b'"), "{two}");
    let far = resolved(&[named("5000-5003-udp", 65533)], &[web]).unwrap_err();
    let text = "port '5000-5003-udp' cannot be published on port 65533 of the host";
    assert!(far.to_string() == text && std::error::Error::source(&far).is_some(), "{far:?}");
    let wide = resolved(&[named("1-65535-tcp", 1)], &[("a", &["1-65535"])]).unwrap_err();
    assert!(wide.to_string().contains("cannot be published on port 1 of the host"), "{wide:?}");
    // A hostile image declares many: the error names only some.
    let many: Vec<String> = (1..9000).map(|port| port.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let told = resolved(&[named("x", 1)], &[("a", &many)]).unwrap_err();
    assert_eq!(told.to_string().matches("-tcp").count(), MAX_NAMED, "{told}");
}

#[test]
fn conflicting_host_ports_are_rejected() {
    use Protocol::{Tcp, Udp};
    let one = |ip, port, count, protocol| numbered((ip, port), 80, count, protocol);
    for (a, b, want) in [
        (one(None, 80, 1, Tcp), one(None, 80, 1, Tcp), Some(80)),
        (one(None, 80, 1, Tcp), one(None, 80, 1, Udp), None),
        (one(None, 80, 1, Tcp), one(None, 81, 1, Tcp), None),
        (one(None, 80, 10, Tcp), one(None, 89, 1, Tcp), Some(89)),
        (one(None, 80, 10, Tcp), one(None, 90, 1, Tcp), None),
        (one(None, 85, 1, Tcp), one(None, 80, 10, Tcp), Some(85)),
        (one(Some("10.0.0.1"), 80, 1, Tcp), one(None, 80, 1, Tcp), Some(80)),
        (one(Some("10.0.0.1"), 80, 1, Tcp), one(Some("10.0.0.2"), 80, 1, Tcp), None),
        (one(Some("10.0.0.1"), 80, 1, Tcp), one(Some("10.0.0.1"), 80, 1, Tcp), Some(80)),
        (one(Some("10.0.0.1"), 80, 1, Tcp), one(Some("0.0.0.0"), 80, 1, Tcp), Some(80)),
        (one(Some("::"), 80, 1, Tcp), one(Some("fd00::1"), 80, 1, Tcp), Some(80)),
        (one(Some("10.0.0.1"), 80, 1, Tcp), one(Some("::"), 80, 1, Tcp), None),
        (one(Some("0.0.0.0"), 80, 1, Tcp), one(Some("::"), 80, 1, Tcp), None),
    ] {
        let want = want.map(|port| format!("port {port} of the host is published twice"));
        for asked in [[a.clone(), b.clone()], [b, a]] {
            let error = resolved(&asked, &[]).err().map(|error| error.to_string());
            let as_wanted = match (&error, &want) {
                (Some(error), Some(want)) => error.ends_with(want),
                (None, None) => true,
                _ => false,
            };
            assert!(as_wanted, "{asked:?}: {error:?}");
        }
    }
}

#[test]
fn a_plan_has_the_requested_networks() {
    for text in ["none", "host", "default", "a:IP=10.0.0.1;X=,b", "all", "all,a:K=V"] {
        let asked: NetMode = text.parse().unwrap();
        let planned = net(&asked, Vec::new(), here("t")).unwrap();
        assert_eq!(mode(&planned), asked, "{text}");
        assert_eq!(mode(&planned).to_string(), text);
    }
    let port = PodPort { host_ip: None, host_port: 1, pod_port: 2, count: 1, protocol: Protocol::Tcp };
    let with = |text: &str| net(&text.parse().unwrap(), vec![port.clone()], here("t"));
    assert_eq!(ports_of(&with("all").unwrap()), std::slice::from_ref(&port));
    for none in ["none", "host"] {
        let refused = with(none).unwrap_err();
        assert!(refused.to_string().contains(&format!("--net={none}")), "{refused}");
    }
}

#[test]
fn each_data_directory_has_its_own_tables() {
    let of = |dir: &str| host(&NetworkOptions::default(), &Layout::new(Path::new(dir)));
    assert_eq!(of("/var/lib/gantry").table, "gantry");
    let (a, b) = (of("/a").table, of("/b").table);
    assert!(a != b && a.len() == "gantry-".len() + 8 && a.starts_with("gantry-"), "{a} {b}");
    assert_eq!(of("/a").table, a);
    let host = of("/a");
    assert_eq!((host.state_dir.as_str(), host.pods_dir.as_str(), host.plugin_limit_ms), ("/a/net", "/a/pods", 60_000));
}

#[test]
fn resolv_conf_and_hosts_are_planned() {
    let entry = |address: &str, names: &[&str]| {
        (address.parse().unwrap(), names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
    };
    let said = HostsSpec::Entries(vec![entry("10.0.0.1", &["a"]), entry("fd00::1", &["b"]), entry("10.0.0.1", &["c"])]);
    assert_eq!(hosts(&said), HostsSpec::Entries(vec![entry("10.0.0.1", &["a", "c"]), entry("fd00::1", &["b"])]));
    assert_eq!(hosts(&HostsSpec::Host), HostsSpec::Host);
}

#[test]
fn ports_published_at_free_ports_are_single() {
    let web = image(&["80/tcp", "443", "8000-8001/udp"]);
    let name = name("web");
    let images = [(&name, &web)];
    let free = |to| PortSpec { to, host_ip: None, host_port: 0 };
    let numbered = |port, count| PortTarget::Numbered { port, count, protocol: Protocol::Tcp };
    let shown = |asked: &[PortSpec]| -> Vec<(u16, u16, u16)> {
        let ports = ports(asked, &images).unwrap();
        ports.iter().map(|port| (port.host_port, port.pod_port, port.count)).collect()
    };
    assert_eq!(
        shown(&[free(numbered(70, 3)), free(numbered(70, 1))]),
        [(0, 70, 1), (0, 71, 1), (0, 72, 1), (0, 70, 1)]
    );
    assert_eq!(shown(&[free(PortTarget::Named("80-tcp".into()))]), [(0, 80, 1)]);
    let at = PortSpec { host_port: 8080, ..free(numbered(80, 1)) };
    let all = free(PortTarget::All);
    assert_eq!(shown(&[all.clone(), at, all.clone()]), [(8080, 80, 1), (0, 443, 1), (0, 8000, 1), (0, 8001, 1)]);
    let many = image(&["1-65535"]);
    assert_eq!(ports(&[all], &[(&name, &many)]), Err(too_many_ports()));
}
