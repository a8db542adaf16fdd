//! Requests for networks that are valid, and invalid ones.

use super::*;
use crate::net::{NetworkRequest, Protocol};
use proptest::prelude::*;

fn with(edit: impl FnOnce(&mut PodSpec)) -> Result<(), SpecError> {
    let mut spec = PodSpec::default();
    edit(&mut spec);
    check(&spec)
}

fn numbered(host_port: u16, port: u16, count: u16) -> PortSpec {
    PortSpec { to: PortTarget::Numbered { port, count, protocol: Protocol::Udp }, host_ip: None, host_port }
}

fn named(name: &str, host_port: u16) -> PortSpec {
    PortSpec { to: PortTarget::Named(name.into()), host_ip: None, host_port }
}

#[test]
fn port_numbers_and_ranges_are_validated() {
    let max = MAX_PORT_RANGE;
    for (spec, want) in [
        (numbered(1, 65535, 1), None),
        (numbered(65535, 1, 1), None),
        (numbered(8000, 9000, max), None),
        (numbered(65535 - max + 1, 1, max), None),
        (numbered(65535 - max + 2, 1, max), Some("go beyond 65535")),
        (numbered(1, 65535, 2), Some("2 ports from 65535 on go beyond 65535")),
        (numbered(0, 1, 1), None),
        (numbered(0, 65535, 2), Some("go beyond 65535")),
        (numbered(1, 0, 1), Some("no port 0")),
        (numbered(1, 1, 0), Some("a range of 0 ports")),
        (numbered(1, 1, max + 1), Some("a range of 1025 ports")),
        (named("80-tcp", 80), None),
        (named("http", 0), None),
        (PortSpec { to: PortTarget::All, host_ip: None, host_port: 0 }, None),
        (PortSpec { to: PortTarget::All, host_ip: None, host_port: 80 }, Some("at port 80 of the host")),
        (named("", 1), Some("is not the name of a port")),
        (named("a b", 1), Some("'a b' is not the name of a port")),
    ] {
        let found = with(|pod| pod.ports = vec![spec.clone()]).map_err(|error| error.to_string());
        match want {
            None => assert_eq!(found, Ok(()), "{spec:?}"),
            Some(why) => assert!(found.as_ref().is_err_and(|error| error.contains(why)), "{spec:?}: {found:?}"),
        }
    }
    let many = |n| with(|pod| pod.ports = vec![numbered(1, 1, 1); n]);
    assert_eq!(many(MAX_PORTS), Ok(()));
    assert!(many(MAX_PORTS + 1).is_err());
}

#[test]
fn host_addresses_of_ports_are_validated() {
    let on = |ip: &str| {
        let port = PortSpec { host_ip: Some(ip.parse().unwrap()), ..numbered(1, 1, 1) };
        with(|pod| pod.ports = vec![port.clone()])
    };
    for ip in ["127.0.0.1", "0.0.0.0", "192.0.2.1", "::", "2001:db8::1"] {
        assert_eq!(on(ip), Ok(()), "{ip}");
    }
    for ip in ["::1", "0:0::1", "224.0.0.1", "ff02::1"] {
        assert!(on(ip).is_err(), "{ip}");
    }
}

#[test]
fn ports_require_a_network() {
    let net = |net: Option<NetMode>| {
        with(|pod| {
            pod.net = net;
            pod.ports = vec![numbered(1, 1, 1)];
        })
    };
    assert_eq!(net(None), Ok(()));
    assert_eq!(net(Some(NetMode::default())), Ok(()));
    assert_eq!(net(Some(NetMode::All(vec![]))), Ok(()));
    for (mode, shown) in [(NetMode::None, "--net=none"), (NetMode::Host, "--net=host")] {
        assert!(net(Some(mode)).unwrap_err().to_string().contains(shown));
    }
}

#[test]
fn network_requests_without_a_text_form_are_rejected() {
    let wanted = |name: &str, args: &[(&str, &str)]| NetworkRequest {
        name: name.into(),
        args: args.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    };
    for (net, fits) in [
        (NetMode::Networks(vec![wanted("a", &[("K", "v=w")]), wanted("b", &[])]), true),
        (NetMode::All(vec![wanted("a", &[])]), true),
        (NetMode::Networks(vec![]), false),
        (NetMode::Networks(vec![wanted("host", &[])]), false),
        (NetMode::Networks(vec![wanted("all", &[])]), false),
        (NetMode::Networks(vec![wanted("a,b", &[])]), false),
        (NetMode::Networks(vec![wanted("a", &[]), wanted("a", &[])]), false),
        (NetMode::Networks(vec![wanted("a", &[("K", "v,b")])]), false),
        (NetMode::Networks(vec![wanted("a", &[("K=", "v")])]), false),
        (NetMode::Networks(vec![wanted("a", &[("", "v")])]), false),
    ] {
        assert_eq!(with(|pod| pod.net = Some(net.clone())).is_ok(), fits, "{net:?}");
    }
}

#[test]
fn dns_settings_are_validated() {
    let dns = |edit: fn(&mut Dns)| {
        let mut dns = Dns::default();
        edit(&mut dns);
        with(|pod| pod.dns = DnsSpec::Given(dns)).is_ok()
    };
    assert!(dns(|_| ()));
    assert!(dns(|d| d.search = vec!["example.com".into(), ".".into(), "_tcp.x.".into()]));
    assert!(dns(|d| d.options = vec!["ndots:5".into(), "edns0".into()]));
    assert!(dns(|d| d.servers = vec!["fd00::1".parse().unwrap(); 32]));
    assert!(!dns(|d| d.servers = vec!["fd00::1".parse().unwrap(); 33]));
    assert!(!dns(|d| d.search = vec!["a\nnameserver 6.6.6.6".into()]));
    assert!(!dns(|d| d.search = vec!["a b".into()]));
    assert!(!dns(|d| d.search = vec![String::new()]));
    assert!(!dns(|d| d.search = vec!["a".repeat(64)]));
    assert!(!dns(|d| d.domain = Some("a..b".into())));
    assert!(!dns(|d| d.domain = Some("é".into())));
    assert!(!dns(|d| d.domain = Some(["a"; 128].join("."))));
    assert!(!dns(|d| d.options = vec!["a\nb".into()]));
    assert!(!dns(|d| d.options = vec![String::new()]));
    assert!(!dns(|d| d.options = vec!["x".repeat(254)]));
}

#[test]
fn hosts_entries_are_validated() {
    let hosts = |names: &[&str]| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        with(|pod| pod.hosts = HostsSpec::Entries(vec![("10.0.0.1".parse().unwrap(), names)])).is_ok()
    };
    assert!(hosts(&["a", "b.example.com", "under_score"]));
    for bad in [&[][..], &[""], &["a b"], &["a\n10.0.0.2 c"], &["#"], &["-x"]] {
        assert!(!hosts(bad), "{bad:?}");
    }
    assert_eq!(with(|pod| pod.hosts = HostsSpec::Host), Ok(()));
    let many = vec![("10.0.0.1".parse().unwrap(), vec!["a".to_owned()]); MAX_HOSTS + 1];
    assert!(with(|pod| pod.hosts = HostsSpec::Entries(many)).is_err());
}

proptest! {
    /// An accepted value is one line in its file.
    #[test]
    fn accepted_values_contain_no_line_breaks(text in "\\PC{0,20}|[a-z \n#;.]{0,10}") {
        let one = |text: &str| vec![text.to_owned()];
        let dns = Dns { search: one(&text), ..Dns::default() };
        let fits = with(|pod| pod.dns = DnsSpec::Given(dns)).is_ok();
        prop_assert!(!fits || !text.contains(|c: char| c.is_whitespace() || c.is_control()));
        let dns = Dns { options: one(&text), ..Dns::default() };
        let fits = with(|pod| pod.dns = DnsSpec::Given(dns)).is_ok();
        prop_assert!(!fits || !text.contains(|c: char| c.is_whitespace() || c.is_control()));
    }
}
