//! What is taken and what is refused of a network's configuration.

use super::super::{Bridge, CniVersion, IngressPolicy, Ipam, MacvlanMode, MasqBackend, View, builtin};
use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<NetworkConfig, ConfigError> {
    NetworkConfig::parse(text, Source::BuiltIn)
}

fn plugin_of(object: &str) -> Result<PluginConfig, ConfigError> {
    let mut network = parse(&format!(r#"{{"cniVersion":"1.1.0","name":"n","plugins":[{object}]}}"#))?;
    assert!(network.notes.is_empty(), "{:?}", network.notes);
    Ok(network.plugins.remove(0))
}

fn refused(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_built_in_networks_are_sound() {
    for (name, text) in builtin::ALL {
        let network = parse(text).unwrap();
        assert_eq!((network.name.as_str(), network.notes.as_slice()), (name, [].as_slice()));
        let View::Bridge(bridge) = &network.plugins[0].view else { panic!("{name} is a bridge") };
        assert!(bridge.is_gateway && bridge.bridge.starts_with("gantry"));
        assert_eq!(bridge.ip_masq, name == "default");
        let Some(Ipam::HostLocal(ipam)) = &network.plugins[0].ipam else { panic!("{name} is host-local") };
        assert_eq!(ipam.ranges.len(), 2);
        assert_eq!(ipam.routes.len(), if name == "default" { 2 } else { 0 });
    }
}

#[test]
fn bridge_has_its_documented_defaults() {
    let plugin = plugin_of(r#"{"type":"bridge"}"#).unwrap();
    let expected = Bridge {
        bridge: "cni0".into(),
        is_gateway: false,
        is_default_gateway: false,
        force_address: false,
        ip_masq: false,
        masq_backend: MasqBackend::Default,
        mtu: None,
        hairpin_mode: false,
        promisc_mode: false,
        vlan: 0,
        vlan_trunk: Vec::new(),
        preserve_default_vlan: true,
        enable_dad: false,
        mac_spoof_check: false,
        disable_container_interface: false,
        port_isolation: false,
    };
    assert_eq!(plugin.view, View::Bridge(expected));
    assert_eq!(plugin.ipam, None);
}

#[test]
fn every_documented_key_is_known() {
    let all = [
        r#"{"type":"bridge","bridge":"b0","isGateway":true,"isDefaultGateway":true,"forceAddress":true,"ipMasq":true,
            "ipMasqBackend":"nftables","mtu":1400,"hairpinMode":true,"promiscMode":false,"vlan":100,"preserveDefaultVlan":false,
            "enabledad":true,"macspoofchk":true,"disableContainerInterface":false,"portIsolation":true,"ipam":{},
            "capabilities":{"mac":true},"args":{"cni":{"mac":"x"}},"runtimeConfig":{},"dns":{"nameservers":["10.0.0.1"],
            "domain":"d","search":["s"],"options":["o"]}}"#,
        r#"{"type":"bridge","vlanTrunk":[{"id":5},{"minID":100,"maxID":200}]}"#,
        r#"{"type":"ptp","ipMasq":true,"mtu":1500,"dns":{},"ipam":{"type":"host-local","subnet":"10.1.0.0/16",
            "rangeStart":"10.1.1.0","rangeEnd":"10.1.2.0","gateway":"10.1.0.1","routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.2",
            "mtu":1400,"advmss":1300,"priority":7,"table":100,"scope":253}],"resolvConf":"/etc/resolv.conf","dataDir":"/d"}}"#,
        r#"{"type":"macvlan","master":"eth0","mode":"private","mtu":1500,"mac":"02:00:00:00:00:01","linkInContainer":false,
            "bcqueuelen":100,"ipam":{"type":"dhcp","anything":1}}"#,
        r#"{"type":"ipvlan","master":"eth0","mode":"l3s","mtu":1500,"linkInContainer":true,"ipam":{"type":"static",
            "addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"}],"routes":[{"dst":"::/0"}],"dns":{"search":["a"]}}}"#,
        r#"{"type":"loopback"}"#,
        r#"{"type":"portmap","snat":false,"masqAll":true,"markMasqBit":14,"conditionsV4":["-s","1.2.3.4"],
            "conditionsV6":[],"backend":"nftables","capabilities":{"portMappings":true}}"#,
        r#"{"type":"firewall","backend":"iptables","iptablesAdminChainName":"A","firewalldZone":"z","ingressPolicy":"same-bridge"}"#,
        r#"{"type":"bandwidth","ingressRate":1000,"ingressBurst":1000,"egressRate":1,"egressBurst":1,"unshapedSubnets":["10.0.0.0/8"]}"#,
        r#"{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.forwarding":"1","net/core/somaxconn":"5"},
            "mac":"02:00:00:00:00:01","mtu":1400,"promisc":true,"allmulti":false,"txQLen":10,"dataDir":"/d"}"#,
    ];
    for object in all {
        plugin_of(object).unwrap();
    }
    let View::Macvlan(view) = plugin_of(all[3]).unwrap().view else { panic!("macvlan") };
    assert_eq!((view.mode, view.mac), (MacvlanMode::Private, Some([2, 0, 0, 0, 0, 1])));
    let View::Firewall(view) = plugin_of(all[7]).unwrap().view else { panic!("firewall") };
    assert_eq!(view.ingress_policy, IngressPolicy::SameBridge);
    let Some(Ipam::HostLocal(ipam)) = plugin_of(all[2]).unwrap().ipam else { panic!("host-local") };
    assert_eq!(ipam.ranges[0][0].start.to_string(), "10.1.1.0");
    assert_eq!((ipam.routes[0].priority, ipam.routes[0].scope), (Some(7), Some(253)));
}

#[test]
fn a_wrong_value_is_named_with_its_line() {
    let text = |key: &str| {
        format!("{{\"cniVersion\":\"1.0.0\",\n\"name\":\"n\",\n\"plugins\":[\n{{\"type\":\"bridge\",\n{key}}}]}}")
    };
    for (key, expected) in [
        ("\"mtu\":\"1500\"", "line 5, plugins[0].mtu: must be a number, and is a text"),
        ("\"mtu\":70000", "plugins[0].mtu: must be a whole number from 0 to 65535"),
        ("\"isGateway\":1", "plugins[0].isGateway: must be true or false, and is a number"),
        ("\"bridge\":\"../0\"", "plugins[0].bridge: must be an interface's name"),
        ("\"vlan\":4095", "plugins[0].vlan: must be a whole number from 0 to 4094"),
        ("\"ipMasqBackend\":\"ipfw\"", "plugins[0].ipMasqBackend: 'ipfw' is none of: iptables, nftables"),
        (
            "\"ipam\":{\"type\":\"host-local\",\n\"ranges\":[[{\n\"subnet\":\"10.0.0.1\"}]]}",
            "line 7, plugins[0].ipam.ranges[0][0].subnet: '10.0.0.1' is not a network",
        ),
        (
            "\"ipam\":{\"type\":\"host-local\",\n\"ranges\":[[{\"gateway\":\"10.0.0.1\"}]]}",
            "line 6, plugins[0].ipam.ranges[0][0].subnet: is missing",
        ),
        ("\"ipam\":{\"ranges\":[]}", "plugins[0].ipam.type: is missing"),
        ("\"capabilities\":{\"mac\":1}", "plugins[0].capabilities.mac: must be true or false"),
        ("\"dns\":{\"nameservers\":[\"x\"]}", "plugins[0].dns.nameservers: 'x' is not an address"),
        ("\"vlanTrunk\":[{\"minID\":5}]", "plugins[0].vlanTrunk[0]: minID and maxID go together"),
    ] {
        let error = refused(&text(key));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn versions_before_0_3_are_refused_by_name() {
    let of = |version: &str| parse(&format!(r#"{{"cniVersion":{version},"name":"n","type":"ptp"}}"#));
    assert_eq!(of("\"0.3.1\"").unwrap().cni_version, CniVersion::V0_3_1);
    assert_eq!(of("\"1.1.0\"").unwrap().cni_version, CniVersion::V1_1_0);
    assert!(of("\"0.2.0\"").unwrap_err().to_string().contains("before 0.3.0"));
    assert!(of("\"2.0.0\"").unwrap_err().to_string().contains("'2.0.0' is not known"));
    assert!(of("1").unwrap_err().to_string().contains("must be a text"));
    assert!(refused(r#"{"name":"n","type":"ptp"}"#).contains("cniVersion: is missing"));
    let several =
        parse(r#"{"cniVersion":"0.4.0","cniVersions":["0.3.1","1.0.0","9.0.0"],"name":"n","plugins":[{"type":"x"}]}"#);
    let several = several.unwrap();
    assert_eq!((several.cni_version, several.cni_versions.len()), (CniVersion::V1_0_0, 3));
}

#[test]
fn lists_are_checked_as_a_whole() {
    assert!(refused("{").contains("line 1: not JSON"));
    assert!(refused("[]").contains("must be an object"));
    assert!(refused(r#"{"cniVersion":"1.0.0","name":"a/b","type":"x"}"#).contains("name: must begin"));
    assert!(refused(r#"{"cniVersion":"1.0.0","name":"n","plugins":[]}"#).contains("plugins: must list 1 to 32"));
    assert!(refused(r#"{"cniVersion":"1.0.0","name":"n"}"#).contains("type: is missing"));
    let network = parse(
        r#"{"cniVersion":"1.0.0","name":"n","disableCheck":"true","disableGC":true,"odd":1,
        "plugins":[{"type":"ptp","Strange":[],"ipam":{"type":"host-local","typo":0}},{"type":"mine","any":1}]}"#,
    );
    let network = network.unwrap();
    assert!(network.disable_check && network.disable_gc);
    assert_eq!(
        network.notes,
        ["odd is not known here", "plugins[0].ipam.typo is not known here", "plugins[0].Strange is not known here"]
    );
    assert!(network.plugins[0].raw.contains_key("Strange"));
    assert_eq!(network.plugins[1].view, View::Other);
}

#[test]
fn sysctls_stay_below_net() {
    for bad in ["kernel.hostname", "net/../kernel/hostname", "net//x", "/net/x", "network.x"] {
        let error = plugin_of(&format!(r#"{{"type":"tuning","sysctl":{{"{bad}":"1"}}}}"#)).unwrap_err();
        assert!(error.to_string().contains("below net"), "{error}");
    }
}

#[test]
fn ranges_of_the_runtime_take_the_place_of_the_configured_ones() {
    let host_local = || {
        let plugin = plugin_of(r#"{"type":"ptp","ipam":{"type":"host-local","subnet":"10.1.0.0/16"}}"#).unwrap();
        let Some(Ipam::HostLocal(ipam)) = plugin.ipam else { panic!("host-local") };
        ipam
    };
    let sets = serde_json::json!([[{"subnet": "10.9.0.0/16"}], [{"subnet": "fd00::/64", "gateway": "fd00::9"}]]);
    let ranges = host_local().with_ip_ranges(&sets).unwrap().ranges;
    assert_eq!((ranges.len(), ranges[1][0].gateway.to_string()), (2, "fd00::9".into()));
    assert_eq!(host_local().with_ip_ranges(&serde_json::json!([])).unwrap(), host_local());
    let error = host_local().with_ip_ranges(&serde_json::json!([[{"subnet": 1}]])).unwrap_err();
    assert_eq!(error, "ipRanges[0][0].subnet: must be a text, and is a number");
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "(10\\.1\\.0\\.0/16|fd00::/64|eth0|host-local|bridge|\\PC{0,8})".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let key = "(type|ipam|ranges|subnet|routes|dst|dns|mtu|vlanTrunk|capabilities|sysctl|isGateway|addresses)";
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_value_makes_it_panic_and_lines_exist(object in json(), kind in "(bridge|ptp|macvlan|ipvlan|portmap|firewall|bandwidth|tuning|other)") {
        let mut object = object;
        if let Value::Object(map) = &mut object {
            map.insert("type".into(), Value::from(kind));
        }
        let value = serde_json::json!({"cniVersion": "1.0.0", "name": "n", "plugins": [object]});
        let text = serde_json::to_string_pretty(&value).unwrap();
        if let Err(ConfigError::Malformed { line, field, .. }) = parse(&text) {
            prop_assert!(line >= 1 && line <= text.lines().count());
            prop_assert!(!field.is_empty());
        }
    }
}
