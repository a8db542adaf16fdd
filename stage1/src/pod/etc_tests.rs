//! The tables of rkt's functional tests (CNIDNS, CNIDNSArg, CNIDNSNone, DNSParam, DNSHost, EtcHosts, Hostname), and
//! more.

use super::*;
use gantry_contract::network::Host;
use gantry_contract::plan::{LogLimits, Networks};
use gantry_model::net::PodAddress;

const STUB: &str = "# systemd-resolved\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch corp.example\n";
const BEHIND: &str = "nameserver 9.9.9.9\nnameserver 2620:fe::fe\nnameserver fe80::1%eth0\nsearch other.example\n";

fn networks() -> Net {
    let host = Host {
        state_dir: "/s".into(),
        pods_dir: "/p".into(),
        config_dirs: Vec::new(),
        plugin_dirs: Vec::new(),
        table: "gantry".into(),
        use_plugins: false,
        plugin_limit_ms: 1000,
        resolver: true,
    };
    Net::Networks(Networks { host, wanted: Vec::new(), all: false, ports: Vec::new(), kubernetes: None })
}

fn plan(net: Net, resolv: DnsSpec) -> Plan {
    Plan {
        version: gantry_contract::VERSION,
        pod: "3b6f0ac2-0000-4000-8000-000000000001".into(),
        pod_dir: String::new(),
        trees_dir: String::new(),
        namespace: Default::default(),
        hostname: "gantry-x".into(),
        ipc: gantry_model::namespaces::IpcMode::Pod,
        uts: gantry_model::namespaces::UtsMode::Pod,
        user_ids: None,
        shm_size: gantry_model::spec::DEFAULT_SHM_SIZE,
        sysctls: std::collections::BTreeMap::new(),
        net,
        former_addresses: Vec::new(),
        resolv,
        hosts: HostsSpec::default(),
        cgroup_parent: "/g".parse().unwrap(),
        volumes_dir: String::new(),
        volumes: Vec::new(),
        apps: Vec::new(),
        log: LogLimits::default(),
        log_dir: None,
        stop_grace_ms: 0,
        sandbox: false,
        flavor: gantry_model::spec::PodFlavor::Container,
        privileged: false,
        limits: gantry_model::spec::Limits::default(),
        limit_changes: 0,
    }
}

fn host(resolv: &str) -> HostFiles {
    HostFiles {
        resolv: Some(resolv.into()),
        upstream_resolv: Some(BEHIND.into()),
        hosts: Some(b"10.9.9.9\tthe-host\n".to_vec()),
    }
}

fn attached(addresses: &[&str], dns: Dns) -> PodNetwork {
    let address = |text: &&str| PodAddress { address: text.parse().unwrap(), prefix: 24, gateway: None };
    PodNetwork { name: "n".into(), addresses: addresses.iter().map(address).collect(), dns, ..PodNetwork::default() }
}

fn dns(servers: &[&str], search: &[&str], options: &[&str], domain: Option<&str>) -> Dns {
    let own = |list: &[&str]| list.iter().map(|&it| it.to_owned()).collect();
    Dns {
        servers: servers.iter().map(|it| it.parse().unwrap()).collect(),
        search: own(search),
        options: own(options),
        domain: domain.map(str::to_owned),
    }
}

#[track_caller]
fn text(name: &str, files: &[File]) -> Option<String> {
    files.iter().find(|file| file.name == name).map(|file| String::from_utf8(file.text.clone()).unwrap())
}

/// Checks the contents of resolv.conf; "-": the image's own stays.
#[track_caller]
fn check(plan: &Plan, host: &HostFiles, attached: &[PodNetwork], resolver: Option<&str>, want: &str) {
    let resolver = resolver.map(|it| it.parse().unwrap());
    let files = files(plan, host, attached, resolver).unwrap();
    assert_eq!(text("resolv.conf", &files).as_deref().unwrap_or("-"), want);
}

#[test]
fn dns_servers_come_from_the_first_source() {
    let v4 = [attached(&["10.1.0.2"], Dns::default())];
    let both = [attached(&["10.1.0.2", "fd00::2"], Dns::default())];
    let plan = plan(networks(), DnsSpec::Network);
    let gateway = Some("10.1.0.1");
    // CNIDNS: the first network that has DNS settings, also if it is the second network.
    let said = dns(&["1.1.1.1"], &["lan"], &["ndots:2"], Some("dom"));
    let two = [attached(&["10.1.0.2"], Dns::default()), attached(&["10.2.0.2"], said)];
    check(&plan, &host(STUB), &two, gateway, "nameserver 1.1.1.1\ndomain dom\nsearch lan\noptions ndots:2\n");
    // Settings without a server get the default servers.
    let half = [attached(&["10.1.0.2"], dns(&[], &["lan"], &[], None))];
    check(
        &plan,
        &host("nameserver 8.8.8.8\n"),
        &half,
        gateway,
        "nameserver 10.1.0.1\nnameserver 8.8.8.8\nsearch lan\n",
    );
    // The host's servers, except ones that only the host can reach.
    let mixed = "nameserver 127.0.0.1\nnameserver ::1\nnameserver 10.0.0.53\nnameserver 0.0.0.0\n";
    check(&plan, &host(mixed), &v4, None, "nameserver 10.0.0.53\n");
    // The host forwards to IPv4 link-local servers; IPv6 ones need a scope.
    let cloud = "nameserver 169.254.169.254\nnameserver fe80::53\nnameserver 169.254.20.10\n";
    check(&plan, &host(cloud), &both, None, "nameserver 169.254.169.254\nnameserver 169.254.20.10\n");
    check(&plan, &host(STUB), &v4, None, "nameserver 9.9.9.9\nsearch corp.example\noptions edns0 trust-ad\n");
    let want = "nameserver 10.1.0.1\nnameserver 9.9.9.9\nnameserver 2620:fe::fe\nsearch corp.example\noptions edns0 trust-ad\n";
    check(&plan, &host(STUB), &both, gateway, want);
    let many = "nameserver 1.0.0.1\nnameserver 1.0.0.2\nnameserver 1.0.0.3\nnameserver 1.0.0.4\n";
    check(&plan, &host(many), &v4, gateway, "nameserver 10.1.0.1\nnameserver 1.0.0.1\nnameserver 1.0.0.2\n");
    // With `rotate` they would deny the names of pods half of the time.
    let turns = "nameserver 8.8.8.8\noptions rotate edns0\n";
    check(&plan, &host(turns), &v4, gateway, "nameserver 10.1.0.1\nnameserver 8.8.8.8\noptions edns0\n");
    check(&plan, &host(turns), &v4, None, "nameserver 8.8.8.8\noptions rotate edns0\n");
    // No source has a server.
    check(&plan, &HostFiles::default(), &v4, None, "-");
    check(&plan, &HostFiles::default(), &v4, gateway, "nameserver 10.1.0.1\n");
}

#[test]
fn given_settings_replace_those_of_networks() {
    let network = [attached(&["10.1.0.2"], dns(&["1.1.1.1"], &[], &[], None))];
    let given = |servers: &[&str]| DnsSpec::Given(dns(servers, &["a", "b"], &["debug"], Some("d")));
    // DNSParam, CNIDNSArg.
    let want = "nameserver 8.8.4.4\nnameserver 8.8.8.8\ndomain d\nsearch a b\noptions debug\n";
    check(&plan(networks(), given(&["8.8.4.4", "8.8.8.8"])), &host(STUB), &network, None, want);
    check(&plan(Net::None, given(&["8.8.4.4", "8.8.8.8"])), &host(STUB), &[], None, want);
    let rest = "domain d\nsearch a b\noptions debug\n";
    // Without given servers, the default ones; the network's settings are replaced.
    for (net, servers) in
        [(networks(), "nameserver 9.9.9.9\n"), (Net::Host, "nameserver 127.0.0.53\n"), (Net::None, "")]
    {
        check(&plan(net, given(&[])), &host(STUB), &network, None, &format!("{servers}{rest}"));
    }
    // CNIDNSNone, DNSHost.
    check(&plan(networks(), DnsSpec::None), &host(STUB), &network, None, "-");
    check(&plan(networks(), DnsSpec::Host), &host(STUB), &network, None, STUB);
    check(&plan(Net::Host, DnsSpec::Network), &host(STUB), &[], None, STUB);
    check(&plan(Net::Host, DnsSpec::Network), &HostFiles::default(), &[], None, "-");
    check(&plan(Net::None, DnsSpec::Network), &host(STUB), &[], None, "-");
    let missing = files(&plan(networks(), DnsSpec::Host), &HostFiles::default(), &network, None).unwrap_err();
    assert_eq!(missing.kind, ErrorKind::Unavailable);
}

#[test]
fn hosts_name_the_pod_by_its_first_address() {
    let local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
    let network = [attached(&["10.1.0.2", "fd00::2"], Dns::default()), attached(&["10.2.0.2"], Dns::default())];
    let mut plan = plan(networks(), DnsSpec::None);
    let hosts = |plan: &Plan, attached: &[PodNetwork]| {
        let files = files(plan, &host(STUB), attached, None).unwrap();
        assert_eq!(text("hostname", &files).as_deref(), Some("gantry-x\n"));
        text("hosts", &files).unwrap()
    };
    assert_eq!(hosts(&plan, &network), format!("{local}10.1.0.2\tgantry-x\n"));
    assert_eq!(hosts(&plan, &[]), format!("{local}127.0.1.1\tgantry-x\n"));
    let names = |list: &[&str]| list.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
    let entries = [("128.66.0.202", names(&["host1", "host2"])), ("fd00::9", names(&["six"]))];
    plan.hosts = HostsSpec::Entries(entries.map(|(address, names)| (address.parse().unwrap(), names)).to_vec());
    let want = format!("{local}10.1.0.2\tgantry-x\n128.66.0.202\thost1 host2\nfd00::9\tsix\n");
    assert_eq!(hosts(&plan, &network), want);
    plan.hosts = HostsSpec::Host;
    assert_eq!(hosts(&plan, &network), "10.9.9.9\tthe-host\n");
}

#[test]
fn values_with_whitespace_are_rejected() {
    for bad in ["", "a b", "a\nnameserver 6.6.6.6", "a\tb", "#", "x\u{85}y", "a\0"] {
        let dns = [
            dns(&["1.1.1.1"], &[bad], &[], None),
            dns(&["1.1.1.1"], &[], &[bad], None),
            dns(&["1.1.1.1"], &[], &[], Some(bad)),
        ];
        for dns in dns {
            let refused = files(&plan(networks(), DnsSpec::Given(dns)), &HostFiles::default(), &[], None);
            assert_eq!(refused.unwrap_err().kind, ErrorKind::Invalid, "{bad:?}");
        }
        let mut plan = plan(networks(), DnsSpec::None);
        plan.hosts = HostsSpec::Entries(vec![("10.0.0.1".parse().unwrap(), vec![bad.to_owned()])]);
        assert!(files(&plan, &HostFiles::default(), &[], None).is_err(), "{bad:?}");
        plan.hosts = HostsSpec::default();
        plan.hostname = bad.to_owned();
        assert!(files(&plan, &HostFiles::default(), &[], None).is_err(), "{bad:?}");
    }
}

#[test]
fn the_last_search_or_domain_line_applies() {
    let read =
        parse(b"search a b\ndomain d\n; x\n# y\nnameserver 1.1.1.1 # z\nnameserver nonsense\nnameserver\n\xff\xfe\n");
    assert_eq!(read, dns(&["1.1.1.1"], &[], &[], Some("d")));
    assert_eq!(parse(b"domain d\nsearch a b\noptions x\noptions y #\n"), dns(&[], &["a", "b"], &["x", "y"], None));
}

proptest::proptest! {
    /// From any file of the host, only lines of the four kinds are written.
    #[test]
    fn arbitrary_host_files_are_parsed(bytes: Vec<u8>, lines in "(nameserver|search|options|domain|x)? ?[ -~\\n\\t]{0,40}") {
        let network = [attached(&["10.1.0.2", "fd00::2"], Dns::default())];
        for resolv in [bytes, lines.into_bytes()] {
            let host = HostFiles { resolv: Some(resolv), ..HostFiles::default() };
            let files = files(&plan(networks(), DnsSpec::Network), &host, &network, None).unwrap();
            let text = text("resolv.conf", &files).unwrap_or_default();
            let known = |line: &str| ["nameserver ", "domain ", "search ", "options "].iter().any(|it| line.starts_with(it));
            proptest::prop_assert!(text.lines().all(known), "{}", text);
        }
    }
}
