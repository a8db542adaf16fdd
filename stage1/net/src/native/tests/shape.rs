//! Compares results with Debian's plugins for the same configuration.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{Lab, attachment, within};
use crate::config::{CniVersion, NetworkConfig, Source};
use crate::plugin::{Cache, Runtime};
use crate::test_support::Net;

const PLUGINS: &str = "/usr/lib/cni";

/// The results of gantry and of the plugins, each on its own host and pod, without random names and hardware addresses.
fn both(plugins: &Value) -> [Value; 2] {
    assert!(
        PathBuf::from(PLUGINS).join("bridge").exists(),
        "no plugins in {PLUGINS}; run `./dev setup tests` to install them"
    );
    let (ours, theirs) = (Lab::new(), Lab::new());
    let of = |lab: &Lab| {
        let mut plugins = plugins.clone();
        if let Some(ipam) = plugins[0].get_mut("ipam").filter(|ipam| ipam["type"] == "host-local") {
            ipam["dataDir"] = json!(lab.dir.path().join("host-local"));
        }
        let text = json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}).to_string();
        NetworkConfig::parse(&text, Source::BuiltIn).unwrap()
    };
    let (one, two) = (Net::new(), Net::new());
    let native = ours.add(&of(&ours), &one, &attachment(&one, 1)).result;
    let cache = Cache::open(theirs.leases().as_fd()).unwrap();
    let runtime = Runtime::new(vec![PathBuf::from(PLUGINS)], cache, Duration::from_secs(60));
    let at = attachment(&two, 1);
    let debian = within(&theirs.host, || runtime.add_list(&of(&theirs), &at).unwrap());
    let seen = [seen(&one), seen(&two)];
    assert_eq!(seen[0], seen[1], "what `ip` sees in the pods");
    [shape(native.to_version(CniVersion::V1_0_0)), shape(debian.to_version(CniVersion::V1_0_0))]
}

fn shape(mut result: Value) -> Value {
    for interface in result["interfaces"].as_array_mut().into_iter().flatten() {
        let name = interface["name"].as_str().unwrap();
        if name.starts_with("gt") || name.starts_with("veth") {
            interface["name"] = json!("host end");
        }
        assert_eq!(interface["mac"].as_str().map(str::len), Some(17), "{interface}");
        interface["mac"] = json!("a hardware address");
        if interface.get("sandbox").is_some() {
            interface["sandbox"] = json!("the pod");
        }
    }
    result
}

/// Addresses and routes of the pod.
fn seen(pod: &Net) -> Value {
    let pick = |list: Value, keys: &[&str]| -> Vec<Value> {
        let mut all: Vec<Value> =
            list.as_array().unwrap().iter().map(|one| keys.iter().map(|key| one[*key].clone()).collect()).collect();
        all.sort_by_key(Value::to_string);
        all
    };
    let infos = pod.ip(&["addr", "show", "eth0"])[0]["addr_info"].as_array().unwrap().clone();
    let own = infos.into_iter().filter(|info| info["scope"] != "link").collect();
    let six = pod.ip(&["-6", "route"]);
    let six = six.as_array().unwrap().iter().filter(|route| route["dst"] != "fe80::/64").cloned().collect();
    json!([
        pick(own, &["local", "prefixlen"]),
        pick(pod.ip(&["route"]), &["dst", "gateway", "scope"]),
        pick(six, &["dst", "gateway"])
    ])
}

fn ranges() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.50.0.0/24"}], [{"subnet": "fd00:50::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]})
}

#[test]
fn a_bridge_has_the_shape_of_debians() {
    let [ours, theirs] = both(&json!([{"type": "bridge", "bridge": "br-net", "isGateway": true, "ipam": ranges()}]));
    assert_eq!(ours, theirs);
}

#[test]
fn a_default_gateway_has_the_shape_of_debians() {
    let ipam = json!({"type": "host-local", "subnet": "10.50.0.0/24"});
    let dns = json!({"nameservers": ["10.50.0.1"], "search": ["test"]});
    let bridge = json!({"type": "bridge", "bridge": "br-net", "isDefaultGateway": true, "ipam": ipam, "dns": dns});
    let [ours, theirs] = both(&json!([bridge]));
    assert_eq!(ours, theirs);
}

#[test]
fn ptp_has_the_shape_of_debians() {
    let [ours, theirs] = both(&json!([{"type": "ptp", "ipam": ranges()}]));
    assert_eq!(ours, theirs);
}

#[test]
fn static_addresses_have_the_shape_of_debians() {
    let ipam = json!({"type": "static", "addresses": [{"address": "10.51.0.5/24", "gateway": "10.51.0.1"}, {"address": "fd00:51::5/64"}],
        "routes": [{"dst": "10.52.0.0/16", "gw": "10.51.0.254"}, {"dst": "0.0.0.0/0"}]});
    let [ours, theirs] = both(&json!([{"type": "bridge", "bridge": "br-net", "isGateway": true, "ipam": ipam}]));
    assert_eq!(ours, theirs);
}
