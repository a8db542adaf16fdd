//! The flags of networks.

use gantry_model::net::{Dns, DnsSpec, HostsSpec, NetMode, PortSpec, PortTarget, Protocol};

use super::super::network::ONE_POD;
use super::{parsed, spec};

#[test]
fn net_flags_follow_rkt() {
    let rows = [
        ("a", None),
        ("--net a", Some("default")),
        ("--net=none a", Some("none")),
        ("--network none a", Some("none")),
        ("a --net=host", Some("host")),
        ("a --net=all", Some("all")),
        ("--net=default-restricted a", Some("default-restricted")),
        ("--net=default,foo:IP=10.1.2.3;X=y=z a", Some("default,foo:IP=10.1.2.3;X=y=z")),
        ("--net=foo:IP=fd00::1 a --net=bar", Some("foo:IP=fd00::1,bar")),
        ("--net --net=foo a --network=bar", Some("default,foo,bar")),
        ("--net=foo:A= a --net=all", Some("all,foo:A=")),
    ];
    for (line, want) in rows {
        let want = want.map(|want| want.parse::<NetMode>().unwrap());
        assert_eq!(spec(line).net, want, "{line}");
    }
}

#[test]
fn port_flags_are_parsed() {
    let named = |name: &str| PortTarget::Named(name.into());
    let numbered = |port, count, protocol| PortTarget::Numbered { port, count, protocol };
    let rows = [
        ("--port=http:8080", named("http"), None, 8080),
        ("--port 80-tcp:8080", named("80-tcp"), None, 8080),
        ("--port=http:127.0.0.1:8080", named("http"), Some("127.0.0.1"), 8080),
        ("--port=http:[2001:db8::7]:8080", named("http"), Some("2001:db8::7"), 8080),
        ("--port=8080:80", numbered(80, 1, Protocol::Tcp), None, 8080),
        ("-p 8080:80/udp", numbered(80, 1, Protocol::Udp), None, 8080),
        ("-p8080:80/SCTP", numbered(80, 1, Protocol::Sctp), None, 8080),
        ("--publish 8000-8010:80-90/tcp", numbered(80, 11, Protocol::Tcp), None, 8000),
        ("-p 65535:65535", numbered(65535, 1, Protocol::Tcp), None, 65535),
        ("-p 127.0.0.1:8080:80", numbered(80, 1, Protocol::Tcp), Some("127.0.0.1"), 8080),
        ("-p 0.0.0.0:8080:80", numbered(80, 1, Protocol::Tcp), Some("0.0.0.0"), 8080),
        ("-p 80", numbered(80, 1, Protocol::Tcp), None, 0),
        ("-p 80-82/udp", numbered(80, 3, Protocol::Udp), None, 0),
        ("-p 127.0.0.1::80", numbered(80, 1, Protocol::Tcp), Some("127.0.0.1"), 0),
        ("-p http", named("http"), None, 0),
        ("-P", PortTarget::All, None, 0),
        ("--publish-all", PortTarget::All, None, 0),
        ("-p [fd00::1]:8000-8001:80-81/udp", numbered(80, 2, Protocol::Udp), Some("fd00::1"), 8000),
    ];
    for (flag, to, host_ip, host_port) in rows {
        let want = PortSpec { to, host_ip: host_ip.map(|ip| ip.parse().unwrap()), host_port };
        assert_eq!(spec(&format!("{flag} a")).ports, [want], "{flag}");
    }
    let ports = spec("a -p 1:1 --port b:2 c -p 3:3").ports;
    assert_eq!(ports.iter().map(|port| port.host_port).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn dns_flags_are_parsed() {
    let given = |servers: &[&str], search: &[&str], options: &[&str], domain: Option<&str>| {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        DnsSpec::Given(Dns {
            servers: servers.iter().map(|server| server.parse().unwrap()).collect(),
            search: texts(search),
            options: texts(options),
            domain: domain.map(str::to_owned),
        })
    };
    let rows = [
        ("a", DnsSpec::Network),
        ("a --dns=host", DnsSpec::Host),
        ("a --dns=none --dns none", DnsSpec::None),
        ("--dns=8.8.8.8 a --dns=8.8.4.4,fd00::1", given(&["8.8.8.8", "8.8.4.4", "fd00::1"], &[], &[], None)),
        ("--dns=fe80::1%eth0 a", given(&["fe80::1%eth0"], &[], &[], None)),
        // Each flag alone, as in rkt, disables the network's DNS settings.
        ("a --dns-search=example.com --dns-search .", given(&[], &["example.com", "."], &[], None)),
        ("a --dns-opt=debug --dns-option ndots:2", given(&[], &[], &["debug", "ndots:2"], None)),
        ("a --dns-domain=a.example --dns-domain=b.example", given(&[], &[], &[], Some("b.example"))),
    ];
    for (line, want) in rows {
        assert_eq!(spec(line).dns, want, "{line}");
    }
}

#[test]
fn hosts_entries_are_parsed() {
    let entries = |entries: &[(&str, &[&str])]| {
        let entry = |(address, names): &(&str, &[&str])| {
            (address.parse().unwrap(), names.iter().map(|&name| name.to_owned()).collect())
        };
        HostsSpec::Entries(entries.iter().map(entry).collect())
    };
    let rows = [
        ("a", entries(&[])),
        ("a --hosts-entry=host --hosts-entry=host", HostsSpec::Host),
        ("a --hosts-entry=128.66.0.99=host1", entries(&[("128.66.0.99", &["host1"])])),
        (
            "--hosts-entry=1.1.1.1=a,fd00::2=b a --hosts-entry=1.1.1.1=c.d_e",
            entries(&[("1.1.1.1", &["a", "c.d_e"]), ("fd00::2", &["b"])]),
        ),
        ("a --add-host x:1.1.1.1 --add-host=y:1.1.1.1", entries(&[("1.1.1.1", &["x", "y"])])),
        ("a --add-host x:::1 --add-host y:[::1] --add-host z=::1", entries(&[("::1", &["x", "y", "z"])])),
    ];
    for (line, want) in rows {
        assert_eq!(spec(line).hosts, want, "{line}");
    }
}

/// Each line is rejected with this text in the message.
#[track_caller]
fn refused(rows: &[(&str, &str)]) {
    for (line, want) in rows {
        let error = parsed(line).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(want), "{line}: {error}");
        assert!(!error.ends_with('.') && !error.contains('\n'), "{line}: {error}");
    }
}

#[test]
fn invalid_networks_are_rejected() {
    refused(&[
        ("--net=a,a a", "--net: found duplicate network name 'a'"),
        ("--net=a --net=b,a:X=1 a", "--net: found duplicate network name 'a'"),
        ("--net=host:IP=1.2.3.4 a", "--net: arguments are not supported by the special network name 'host'"),
        ("--net=host --net=none a", "--net: 'host' cannot be combined"),
        ("--net a --net=host", "--net: 'host' cannot be combined"),
        ("--network=default,none a", "--network: 'none' cannot be combined"),
        ("--network= a", "--network: it must not be empty"),
        ("--network", "--network needs a value"),
        ("--net=../x a", "--net: '../x' is not the name of a network"),
        ("--net=foo:IP a", "--net: 'IP' of network 'foo' is not an argument"),
    ]);
}

#[test]
fn invalid_ports_are_rejected() {
    refused(&[
        ("a -p [::1]:80:80", "-p: a port cannot be published on [::1]: the kernel routes no answer"),
        ("a --port=http:[::1]:80", "--port: a port cannot be published on [::1]"),
        ("a -p 224.0.0.1:80:80", "-p: a port cannot be published on 224.0.0.1: it is a multicast address"),
        ("a -p [fe80::1]:8080:80", "-p: a port cannot be published on [fe80::1]: it is a link-local address"),
        ("a -p 0:80", "-p: '0' is not a port: 1 to 65535"),
        ("a -p 80:65536", "-p: '65536' is not a port"),
        ("a -p +80:80", "-p: '+80:80' is not NAME"),
        ("a -p 80:+80", "-p: '+80' is not a port"),
        ("a -p 8000-8001:80", "-p: '8000-8001' and '80' differ in size: 2 ports of the host for 1 of the pod"),
        ("a -p 81-80:1-2", "-p: '81-80' is not a range of ports"),
        ("a -p 1-2-3:1-3", "-p: '2-3' is not a port"),
        ("a -p -:80", "-p: '-' is not a port: 1 to 65535"),
        ("a -p -1:80", "-p: '-1' is not a port: 1 to 65535"),
        ("a -p 80-:80", "-p: '80-' is not a port: 1 to 65535"),
        ("a -p 1-1025:1-1025", "-p: '1-1025' is too large: the limit is 1024 ports"),
        ("a -p 80:80/icmp", "-p: 'icmp' is not a protocol: tcp, udp or sctp"),
        ("a --port http:80/tcp", "--port: the image declares the protocol of port 'http'"),
        ("a --port http:0", "--port: '0' is not a port"),
        ("a --port http:80:80", "--port: '80' is not an IP address"),
        ("a --port Http:80", "--port: 'Http:80' is not NAME[:[HOSTIP:]HOSTPORT] or"),
        ("a -p ::1:80:80", "with an IPv6 address in brackets"),
        ("a -p [::1:80:80", "-p: '[::1:80:80' is not NAME"),
        ("a -p 127.0.0.1:80", "-p: '127.0.0.1:80' is not NAME"),
        ("a -p published=80,target=80", "'published=80,target=80' is not NAME"),
        ("a -p 0", "-p: '0' is not a port: 1 to 65535"),
        ("a -p http/tcp", "-p: the image declares the protocol of port 'http'"),
        ("--net= a", "--net: a value is missing after '='"),
        ("--pod-manifest=/m -P", "-P cannot be combined with --pod-manifest"),
        ("a -p", "-p needs a value"),
        ("a --net=none -p 80:80", "ports cannot be published for a pod with --net=none"),
        ("-p 80:80 a --net=host", "ports cannot be published for a pod with --net=host"),
    ]);
}

#[test]
fn invalid_dns_is_rejected() {
    refused(&[
        ("a --dns=", "--dns: '' is not an IP address"),
        ("a --dns=localhost", "--dns: 'localhost' is not an IP address, or host or none alone"),
        ("a --dns=1.1.1.1:53", "--dns: '1.1.1.1:53' is not an IP address"),
        ("a --dns=host,1.1.1.1", "--dns: 'host' is not an IP address"),
        ("a --dns=host --dns=none", "--dns: 'none' cannot be combined with other DNS flags"),
        ("a --dns=1.1.1.1 --dns=host", "--dns: 'host' cannot be combined"),
        ("a --dns-opt=debug --dns=none", "--dns: 'none' cannot be combined"),
        ("a --dns=host --dns=1.1.1.1", "--dns: it cannot be combined with --dns=host"),
        ("a --dns=none --dns-search=x", "--dns-search: it cannot be combined with --dns=none"),
        ("a --dns=host --dns-opt=x", "--dns-opt: it cannot be combined with --dns=host"),
        ("a --dns=host --dns-domain=x", "--dns-domain: it cannot be combined with --dns=host"),
        ("a --dns-search=a,b", "--dns-search: 'a,b' is not a domain name; the flag can be repeated"),
        ("a --dns-search=", "--dns-search: '' is not a domain name"),
        ("a --dns-domain=a..b", "--dns-domain: 'a..b' is not a domain name"),
        ("a --dns-opt=a,b", "--dns-opt: 'a,b' is not one word; the flag can be repeated"),
        ("a --dns-option=", "--dns-option: it must not be empty"),
    ]);
}

#[test]
fn invalid_hosts_entries_are_rejected() {
    refused(&[
        ("a --hosts-entry=1.1.1.1", "--hosts-entry: '1.1.1.1' is not IP=NAME"),
        ("a --hosts-entry=x=1.1.1.1", "--hosts-entry: 'x' is not an IP address"),
        ("a --hosts-entry=1.1.1.1=", "--hosts-entry: '' is not a host name"),
        ("a --hosts-entry=1.1.1.1=a/b", "--hosts-entry: 'a/b' is not a host name"),
        ("a --hosts-entry=1.1.1.1=a --hosts-entry=host", "--hosts-entry: 'host' cannot be combined"),
        ("a --hosts-entry=host --hosts-entry=1.1.1.1=a", "--hosts-entry: entries cannot be combined"),
        ("a --hosts-entry=host --add-host=a:1.1.1.1", "--add-host: entries cannot be combined"),
        ("a --add-host=a", "--add-host: 'a' is not NAME:IP"),
        ("a --add-host=a:b", "--add-host: 'b' is not an IP address"),
        ("a --add-host=a:host-gateway", "--add-host=a:host-gateway is not supported: use the gateway"),
    ]);
}

#[test]
fn unsupported_flags_have_an_alternative() {
    refused(&[
        ("a --ip=10.0.0.2", "--ip is not supported: an address is an argument of its network: write --net=NAME:IP="),
        ("a --mac-address=x", "--mac-address is not supported: it is an argument of its network"),
    ]);
}

#[test]
fn advice_for_one_pod_is_valid() {
    let lines = ONE_POD.split("gantry run ").skip(1).filter_map(|advice| advice.split(',').next());
    let lines: Vec<String> = lines.map(|line| line.replacen("IMAGE", "a", 1).replacen("IMAGE", "b", 1)).collect();
    assert_eq!(lines, ["a b", "a -- ARG --- b"]);
    for line in lines {
        assert_eq!(spec(&line).apps.len(), 2, "{line}");
    }
    refused(&[
        ("a --pod=x", "--pod is not supported: apps that"),
        ("a --net=container:x", "is not supported: apps that"),
    ]);
}

#[test]
fn network_flags_conflict_with_a_manifest() {
    refused(&[
        ("--pod-manifest=/m --net=host", "--net cannot be combined with --pod-manifest"),
        ("--pod-manifest=/m -p 80:80", "-p cannot be combined with --pod-manifest"),
        ("--pod-manifest=/m --dns=host", "--dns cannot be combined with --pod-manifest"),
        ("--pod-manifest=/m --dns-search=x", "--dns-search cannot be combined with --pod-manifest"),
        ("--pod-manifest=/m --dns-opt=x", "--dns-opt cannot be combined with --pod-manifest"),
        ("--pod-manifest=/m --dns-domain=x", "--dns-domain cannot be combined with --pod-manifest"),
        ("--pod-manifest=/m --hosts-entry=host", "--hosts-entry cannot be combined with --pod-manifest"),
        ("--pod-manifest=/m --add-host=a:::1", "--add-host cannot be combined with --pod-manifest"),
        ("--pod-manifest=/m --hostname=x", "--hostname cannot be combined with --pod-manifest"),
    ]);
}
