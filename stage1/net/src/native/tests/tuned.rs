//! The plugins bandwidth and tuning, and settings of bridge.

use gantry_model::{ErrorKind, Kind};
use serde_json::json;

use super::lab::{Lab, attachment, capabilities, network, pod_id, ranges, within};
use crate::native::host_interface;
use crate::netlink::traffic::TokenBucket;
use crate::plugin::Attachment;
use crate::test_support::{Feature, Net, lacks};

/// Whether the kernel has token buckets, tried in a namespace of its own.
fn has_buckets() -> bool {
    let mut net = Net::new();
    let lo = net.index("lo");
    let bucket = TokenBucket { rate: 1_000_000, burst: 100_000, latency: std::time::Duration::from_millis(25) };
    let made = net.socket.limit_rate(lo, &bucket);
    !lacks(Feature::TokenBuckets, &made)
}

#[test]
fn bandwidth_limits_both_directions() {
    let mut lab = Lab::new();
    if !has_buckets() {
        return;
    }
    let of = |more: serde_json::Value| {
        let mut plugin = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
        plugin.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        network("slow", json!([{"type": "bridge", "bridge": "br-slow", "ipam": ranges(91)}, plugin]))
    };
    let written =
        json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 4_000_000, "egressBurst": 800_000});
    for (number, plugin, asked) in
        [(1, written, json!({})), (2, json!({}), json!({"ingressRate": 8_000_000, "ingressBurst": 800_000}))]
    {
        let mut pod = Net::new();
        let asked = capabilities(json!({"bandwidth": asked}));
        let at = Attachment { capability_args: asked, ..attachment(&pod, number) };
        lab.add(&of(plugin), &pod, &at);
        let (outer, inner) = (lab.host.index(&host_interface(&pod_id(number), "eth0")), pod.index("eth0"));
        assert_eq!(lab.host.socket.rate_limit(outer).unwrap(), Some(1_000_000));
        assert_eq!(pod.socket.rate_limit(inner).unwrap(), (number == 1).then_some(500_000));
    }
}

#[test]
fn tuning_changes_the_pods_interface() {
    let lab = Lab::new();
    let tuned = network(
        "tuned",
        json!([{"type": "bridge", "bridge": "br-tun", "ipam": ranges(92)},
            {"type": "tuning", "mac": "02:00:00:00:00:92", "mtu": 1300, "promisc": true, "allmulti": true, "txQLen": 77,
                "sysctl": {"net.ipv4.conf.IFNAME.rp_filter": "2", "net/ipv4/conf/eth0/log_martians": "1", "net.ipv4.ip_unprivileged_port_start": "99"}}]),
    );
    let mut pod = Net::new();
    let added = lab.add(&tuned, &pod, &attachment(&pod, 1));
    let link = pod.get("eth0");
    assert_eq!(
        (link.mac.unwrap().to_string().as_str(), link.mtu, link.tx_queue_length),
        ("02:00:00:00:00:92", 1300, 77)
    );
    assert!(link.is_promiscuous());
    let flags = pod.ip(&["link", "show", "eth0"])[0]["flags"].clone();
    assert!(flags.as_array().unwrap().contains(&json!("ALLMULTI")), "{flags}");
    let read = |path: &str| within(&pod, || std::fs::read_to_string(format!("/proc/sys/net/{path}")).unwrap());
    assert_eq!(read("ipv4/conf/eth0/rp_filter"), "2\n");
    assert_eq!(read("ipv4/conf/eth0/log_martians"), "1\n");
    assert_eq!(read("ipv4/ip_unprivileged_port_start"), "99\n");
    assert_eq!((added.result.interfaces[1].mtu, added.result.interfaces[2].mtu), (Some(1500), Some(1300)));
    assert_eq!(added.result.interfaces[2].mac, "02:00:00:00:00:92");
    let wrong = network(
        "tuned",
        json!([{"type": "bridge", "bridge": "br-tun", "ipam": ranges(92)}, {"type": "tuning", "sysctl": {"net.ipv4.no.such": "1"}}]),
    );
    let two = Net::new();
    let error = lab.try_add(&wrong, &two, &attachment(&two, 2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn bridge_settings_of_the_pods_interface() {
    let mut lab = Lab::new();
    let mut pod = Net::new();
    let down = network(
        "down",
        json!([{"type": "bridge", "bridge": "br-down", "mtu": 1450, "disableContainerInterface": true}]),
    );
    let added = lab.add(&down, &pod, &attachment(&pod, 1));
    assert!(!pod.get("eth0").is_up() && added.entries.is_empty() && added.result.ips.is_empty());
    assert_eq!((pod.get("eth0").mtu, lab.host.get("br-down").mtu), (1450, 1450));
    // With duplicate address detection.
    let mut two = Net::new();
    let mut patient =
        json!({"type": "bridge", "bridge": "br-dad", "isGateway": true, "enabledad": true, "ipam": ranges(93)});
    patient["ipam"]["resolvConf"] = json!("/etc/resolv.conf");
    patient["dns"] = json!({"search": ["x.test"]});
    let added = lab.add(&network("dad", json!([patient])), &two, &attachment(&two, 2));
    assert_eq!(added.result.dns.search, ["x.test"]);
    let index = two.index("eth0");
    assert!(two.socket.addresses(Some(index)).unwrap().iter().all(|own| !own.tentative && !own.duplicate));
    assert_eq!(within(&two, || std::fs::read_to_string("/proc/sys/net/ipv6/conf/eth0/accept_dad").unwrap()), "1\n");
}
