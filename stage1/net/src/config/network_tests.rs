//! Valid and invalid network configurations.

use super::super::{Bridge, CniVersion, IngressPolicy, Ipam, MacvlanMode, PluginSettings, builtin};
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
fn built_in_networks_are_valid() {
    for (name, text) in builtin::ALL {
        let network = parse(text).unwrap();
        assert_eq!((network.name.as_str(), network.notes.as_slice()), (name, [].as_slice()));
        let PluginSettings::Bridge(bridge) = &network.plugins[0].settings else { panic!("{name} is a bridge") };
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
    assert_eq!(plugin.settings, PluginSettings::Bridge(Bridge::default()));
    let bridge = Bridge::default();
    assert_eq!((bridge.bridge.as_str(), bridge.preserve_default_vlan, bridge.is_gateway), ("cni0", true, false));
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
    let PluginSettings::Macvlan(macvlan) = plugin_of(all[3]).unwrap().settings else { panic!("macvlan") };
    assert_eq!((macvlan.mode, macvlan.mac), (MacvlanMode::Private, Some([2, 0, 0, 0, 0, 1])));
    let PluginSettings::Firewall(firewall) = plugin_of(all[7]).unwrap().settings else { panic!("firewall") };
    assert_eq!(firewall.ingress_policy, IngressPolicy::SameBridge);
    let Some(Ipam::HostLocal(ipam)) = plugin_of(all[2]).unwrap().ipam else { panic!("host-local") };
    assert_eq!(ipam.ranges[0][0].start.to_string(), "10.1.1.0");
    assert_eq!((ipam.routes[0].priority, ipam.routes[0].scope), (Some(7), Some(253)));
}

#[test]
fn errors_name_the_path_of_the_key() {
    let text =
        |key: &str| format!("{{\"cniVersion\":\"1.0.0\",\"name\":\"n\",\"plugins\":[{{\"type\":\"bridge\",{key}}}]}}");
    for (key, expected) in [
        (r#""mtu":"1500""#, "plugins[0].mtu: invalid type: string \"1500\", expected u64"),
        (r#""mtu":70000"#, "plugins[0].mtu: must be a number from 0 to 65535"),
        (r#""isGateway":1"#, "plugins[0].isGateway: invalid type: integer `1`, expected a boolean"),
        (r#""bridge":"../0""#, "plugins[0].bridge: must be an interface's name"),
        (r#""vlan":4095"#, "plugins[0].vlan: must be a number from 0 to 4094"),
        (
            r#""ipMasqBackend":"ipfw""#,
            "plugins[0].ipMasqBackend: unknown variant `ipfw`, expected `iptables` or `nftables`",
        ),
        (r#""ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.1"}]]}"#, "plugins[0].ipam.ranges[0][0].subnet: "),
        (
            r#""ipam":{"type":"host-local","ranges":[[{"gateway":"10.0.0.1"}]]}"#,
            "plugins[0].ipam.ranges[0][0]: missing field `subnet`",
        ),
        (r#""ipam":{"ranges":[]}"#, "plugins[0].ipam: missing field `type`"),
        (
            r#""ipam":{"type":"host-local","subnet":"10.1.0.0/16","routes":[{"dst":"::/0","gw":"10.1.0.1"}]}"#,
            "plugins[0].ipam: gw of the route to ::/0 has another address family",
        ),
        (r#""capabilities":{"mac":1}"#, "plugins[0].capabilities.mac: invalid type: integer"),
        (r#""dns":{"nameservers":["x"]}"#, "plugins[0].dns: the name server 'x' is not an address"),
        (r#""vlanTrunk":[{"minID":5}]"#, "plugins[0].vlanTrunk[0]: minID and maxID go together"),
        (r#""hairpinMode":true,"promiscMode":true"#, "plugins[0]: promiscMode cannot be set together with hairpinMode"),
    ] {
        let error = refused(&text(key));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn null_and_empty_texts_are_absent() {
    let plugin = r#"{"type":"bridge","bridge":"","mtu":null,"ipMasqBackend":"","ipam":{"type":"host-local",
        "ranges":[[{"subnet":"10.1.0.0/16","gateway":""}]],"resolvConf":"","routes":null},"dns":null}"#;
    let plugin = plugin_of(plugin).unwrap();
    assert_eq!(plugin.settings, PluginSettings::Bridge(Bridge::default()));
    let Some(Ipam::HostLocal(ipam)) = plugin.ipam else { panic!("host-local") };
    assert_eq!((ipam.ranges[0][0].gateway.to_string(), ipam.resolv_conf), ("10.1.0.1".into(), None));
}

#[test]
fn versions_before_0_3_are_refused_by_name() {
    let of = |version: &str| parse(&format!(r#"{{"cniVersion":{version},"name":"n","type":"ptp"}}"#));
    assert_eq!(of("\"0.3.1\"").unwrap().cni_version, CniVersion::V0_3_1);
    assert_eq!(of("\"1.1.0\"").unwrap().cni_version, CniVersion::V1_1_0);
    assert!(of("\"0.2.0\"").unwrap_err().to_string().contains("before 0.3.0"));
    assert!(of("\"2.0.0\"").unwrap_err().to_string().contains("'2.0.0' is not known"));
    assert!(of("1").unwrap_err().to_string().contains("expected a string"));
    assert!(refused(r#"{"name":"n","type":"ptp"}"#).contains("missing field `cniVersion`"));
    let several =
        parse(r#"{"cniVersion":"0.4.0","cniVersions":["0.3.1","1.0.0","9.0.0"],"name":"n","plugins":[{"type":"x"}]}"#);
    let several = several.unwrap();
    assert_eq!((several.cni_version, several.cni_versions.len()), (CniVersion::V1_0_0, 3));
}

#[test]
fn whole_lists_are_validated() {
    assert!(refused("{").contains("not JSON: "));
    assert!(refused("[]").contains("must be an object"));
    assert!(refused(r#"{"cniVersion":"1.0.0","name":"a/b","type":"x"}"#).contains("name: must begin"));
    assert!(refused(r#"{"cniVersion":"1.0.0","name":"n","plugins":[]}"#).contains("plugins: must list 1 to 32"));
    assert!(refused(r#"{"cniVersion":"1.0.0","name":"n"}"#).contains("missing field `type`"));
    let network = parse(
        r#"{"cniVersion":"1.0.0","name":"n","disableCheck":"true","disableGC":true,"odd":1,
        "plugins":[{"type":"ptp","Strange":[],"ipam":{"type":"host-local","typo":0}},{"type":"mine","any":1}]}"#,
    );
    let network = network.unwrap();
    assert!(network.disable_check && network.disable_gc);
    assert_eq!(
        network.notes,
        [
            "odd is not known to gantry",
            "plugins[0].ipam.typo is not known to gantry",
            "plugins[0].Strange is not known to gantry"
        ]
    );
    assert!(network.plugins[0].raw.contains_key("Strange"));
    assert_eq!(network.plugins[1].settings, PluginSettings::Other);
}

#[test]
fn sysctls_stay_below_net() {
    for bad in ["kernel.hostname", "net/../kernel/hostname", "net//x", "/net/x", "network.x"] {
        let error = plugin_of(&format!(r#"{{"type":"tuning","sysctl":{{"{bad}":"1"}}}}"#)).unwrap_err();
        assert!(error.to_string().contains("below net"), "{error}");
    }
}

#[test]
fn runtime_ranges_replace_configured_ones() {
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
    assert!(error.starts_with("ipRanges[0][0].subnet: invalid type"), "{error}");
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
    fn parser_never_panics(object in json(), kind in "(bridge|ptp|macvlan|ipvlan|portmap|firewall|bandwidth|tuning|other)") {
        let mut object = object;
        if let Value::Object(map) = &mut object {
            map.insert("type".into(), Value::from(kind));
        }
        let value = serde_json::json!({"cniVersion": "1.0.0", "name": "n", "plugins": [object]});
        if let Err(ConfigError::Malformed { problem, .. }) = parse(&value.to_string()) {
            prop_assert!(problem.starts_with("plugins[0]"), "{problem}");
        }
    }
}
