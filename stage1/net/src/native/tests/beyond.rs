//! Networks that only their plugins can create.

use gantry_model::{ErrorKind, Kind};
use serde_json::{Value, json};

use super::lab::{Lab, attachment, network, ranges};
use crate::config::{NetworkConfig, Source, builtin};
use crate::native::obstacle;
use crate::test_support::Net;

#[test]
fn obstacles_are_named() {
    for (_, text) in builtin::ALL {
        assert_eq!(obstacle(&NetworkConfig::parse(text, Source::BuiltIn).unwrap()), None);
    }
    let bridge = |more: Value| {
        let mut plugin = json!({"type": "bridge", "ipam": ranges(95)});
        plugin.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        plugin
    };
    let plain = bridge(json!({}));
    let cases = [
        (json!([bridge(json!({"vlan": 5}))]), "a bridge with vlan or vlanTrunk"),
        (json!([bridge(json!({"vlanTrunk": [{"id": 5}]}))]), "a bridge with vlan or vlanTrunk"),
        (
            json!([bridge(json!({"disableContainerInterface": true}))]),
            "a bridge with disableContainerInterface and with ipam",
        ),
        (json!([bridge(json!({"ipam": {"type": "dhcp"}}))]), "the ipam plugin 'dhcp'"),
        (json!([{"type": "ptp"}]), "a ptp network without ipam"),
        (json!([{"type": "macvlan", "master": "x", "bcqueuelen": 9}]), "macvlan with bcqueuelen"),
        (
            json!([{"type": "macvlan", "master": "x"}, {"type": "portmap"}]),
            "'portmap' after 'macvlan', whose pods the host does not reach",
        ),
        (
            json!([{"type": "ipvlan", "master": "x"}, {"type": "bandwidth"}]),
            "'bandwidth' after 'ipvlan', which has no interface on the host",
        ),
        (
            json!([{"type": "ipvlan", "master": "x"}, {"type": "tuning", "mac": "02:00:00:00:00:01"}]),
            "'tuning' with mac after 'ipvlan', whose hardware address cannot be changed",
        ),
        (json!([{"type": "loopback"}, {"type": "firewall"}]), "'firewall' after 'loopback'"),
        (json!([{"type": "flannel"}]), "the plugin 'flannel'"),
        (json!([plain, {"type": "sbr"}]), "the plugin 'sbr'"),
        (json!([{"type": "portmap"}]), "'portmap' without a plugin that creates an interface before it"),
        (json!([plain, plain]), "'bridge' after 'bridge'"),
        (json!([plain, {"type": "portmap"}, {"type": "portmap"}]), "'portmap' twice"),
        (json!([plain, {"type": "portmap", "snat": false}]), "portmap with snat"),
        (json!([plain, {"type": "portmap", "masqAll": true}]), "portmap with masqAll"),
        (json!([plain, {"type": "portmap", "externalSetMarkChain": "X"}]), "portmap with externalSetMarkChain"),
        (json!([plain, {"type": "portmap", "conditionsV4": ["-s"]}]), "portmap with conditionsV4"),
        (json!([plain, {"type": "portmap", "conditionsV6": ["-s"]}]), "portmap with conditionsV6"),
        (json!([plain, {"type": "firewall", "backend": "firewalld"}]), "firewall with the backend 'firewalld'"),
        (json!([plain, {"type": "firewall", "iptablesAdminChainName": "X"}]), "firewall with iptablesAdminChainName"),
        (
            json!([plain, {"type": "bandwidth", "shapedSubnets": ["10.0.0.0/8"]}]),
            "bandwidth with shapedSubnets or unshapedSubnets",
        ),
    ];
    for (plugins, expected) in cases {
        assert_eq!(obstacle(&network("net", plugins.clone())).as_deref(), Some(expected), "{plugins}");
    }
    let ranges: Vec<Value> = (0..17).map(|n| json!([{"subnet": format!("10.{n}.0.0/24")}])).collect();
    let many = json!([bridge(json!({"ipam": {"type": "host-local", "ranges": ranges}}))]);
    assert_eq!(obstacle(&network("net", many)).as_deref(), Some("more than 16 ranges of addresses"));
}

#[test]
fn unsupported_networks_change_nothing() {
    let mut lab = Lab::new();
    let pod = Net::new();
    let beyond = network("net", json!([{"type": "bridge", "bridge": "br-x", "vlan": 7, "ipam": ranges(96)}]));
    let error = lab.try_add(&beyond, &pod, &attachment(&pod, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert_eq!(lab.host.socket.index("br-x").unwrap(), None);
    lab.del(&beyond, &attachment(&pod, 1), None);
}
