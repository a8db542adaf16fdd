//! The result of ADD (CNI specification 1.1.0, section 5) in the format of each version.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::address::Cidr;
use crate::config::{CniVersion, Dns, Route, empty_is_none};

/// An interface that was created, in the pod or on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_is_default")]
    pub mac: String,
    /// Its maximum transmission unit, in bytes (1.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The pod's network namespace; empty for an interface on the host.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_is_default")]
    pub sandbox: String,
    /// The path of a socket, for interfaces in user space (1.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_path: Option<String>,
    /// The PCI device (1.1).
    #[serde(default, rename = "pciID", skip_serializing_if = "Option::is_none")]
    pub pci_id: Option<String>,
}

/// An address that was assigned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address with the prefix of its network.
    pub address: Cidr,
    /// The gateway of that network.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "empty_is_none")]
    pub gateway: Option<IpAddr>,
    /// The index of its interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

/// The result of all plugins of a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkResult {
    /// Interfaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub interfaces: Vec<Interface>,
    /// Addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub ips: Vec<Address>,
    /// Routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub routes: Vec<Route>,
    /// DNS settings.
    #[serde(default, skip_serializing_if = "Dns::is_empty", deserialize_with = "null_is_default")]
    pub dns: Dns,
}

/// Go writes an absent list as `null`.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl NetworkResult {
    /// Reads a result of any version from 0.3.0 to 1.1.0. The versions differ only in optional keys.
    ///
    /// # Errors
    ///
    /// The problem.
    pub fn read(value: Value) -> Result<Self, String> {
        if !value.is_object() {
            return Err("a result that is not an object".into());
        }
        match value.get("cniVersion") {
            // Without cniVersion, it is the version of the request.
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => {
                text.parse::<CniVersion>().map_err(|bad| format!("a result whose {bad}"))?;
            }
            Some(_) => return Err("a result whose cniVersion is not a string".into()),
        }
        let result: Self = serde_json::from_value(value).map_err(|error| format!("an invalid result: {error}"))?;
        let count = result.interfaces.len();
        if let Some(lost) = result.ips.iter().find(|ip| ip.interface.is_some_and(|index| index >= count)) {
            return Err(format!("an invalid result: it lacks the interface of {}", lost.address));
        }
        Ok(result)
    }

    /// The result in the format of a version.
    #[must_use]
    pub fn to_version(&self, version: CniVersion) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        let Some(object) = value.as_object_mut() else { return value };
        object.insert("cniVersion".into(), version.as_str().into());
        if version < CniVersion::V1_1_0 {
            strip(object.get_mut("interfaces"), &["mtu", "socketPath", "pciID"]);
            strip(object.get_mut("routes"), &["mtu", "advmss", "priority", "table", "scope"]);
        }
        if version < CniVersion::V1_0_0 {
            let entries = object.get_mut("ips").and_then(Value::as_array_mut).into_iter().flatten();
            for (entry, ip) in entries.filter_map(Value::as_object_mut).zip(&self.ips) {
                entry.insert("version".into(), if ip.address.is_ipv4() { "4" } else { "6" }.into());
            }
        }
        value
    }
}

fn strip(list: Option<&mut Value>, keys: &[&str]) {
    for entry in list.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(object) = entry.as_object_mut() {
            object.retain(|key, _| !keys.contains(&key.as_str()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn results_are_converted_between_versions() {
        let old = json!({"cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/ns"}],
            "ips": [{"version": "4", "address": "10.1.0.2/16", "gateway": "10.1.0.1", "interface": 0},
                    {"version": "6", "address": "fd00::2/64"}],
            "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.1.0.1"]}});
        let result = NetworkResult::read(old.clone()).unwrap();
        assert_eq!(result.to_version(CniVersion::V0_4_0), old);
        let new = result.to_version(CniVersion::V1_0_0);
        assert_eq!(new["ips"][0], json!({"address": "10.1.0.2/16", "gateway": "10.1.0.1", "interface": 0}));
        assert_eq!(NetworkResult::read(new).unwrap(), result);
        let newest = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "e", "mtu": 9000, "socketPath": "/s", "pciID": "p"}],
            "routes": [{"dst": "::/0", "gw": "fd00::1", "mtu": 1, "advmss": 2, "priority": 3, "table": 4, "scope": 5}]});
        let result = NetworkResult::read(newest.clone()).unwrap();
        assert_eq!(result.to_version(CniVersion::V1_1_0), newest);
        let older = result.to_version(CniVersion::V1_0_0);
        assert_eq!(
            (&older["interfaces"][0], &older["routes"][0]),
            (&json!({"name": "e"}), &json!({"dst": "::/0", "gw": "fd00::1"}))
        );
    }

    #[test]
    fn invalid_results_are_rejected() {
        let refused = |value: Value| NetworkResult::read(value).unwrap_err();
        assert!(refused(json!({"cniVersion": "9.0.0"})).contains("version '9.0.0' is not known"));
        assert!(refused(json!({"cniVersion": "0.2.0", "ip4": {}})).contains("before 0.3.0"));
        assert!(refused(json!([])).contains("not an object"));
        assert!(refused(json!({"ips": [{"address": "10.0.0.1"}]})).contains("ADDRESS/LENGTH"));
        assert!(
            refused(json!({"ips": [{"address": "10.0.0.1/8", "interface": 0}]}))
                .contains("it lacks the interface of 10.0.0.1/8")
        );
        assert!(refused(json!({"ips": [{"address": "10.0.0.1/8", "interface": -1}]})).contains("invalid result"));
        let empty = json!({"interfaces": null, "ips": null, "routes": null, "dns": null});
        assert_eq!(NetworkResult::read(empty).unwrap(), NetworkResult::default());
        let blank = json!({"ips": [{"address": "10.0.0.1/8", "gateway": ""}]});
        assert_eq!(NetworkResult::read(blank).unwrap().ips[0].gateway, None);
    }

    proptest! {
        #[test]
        fn results_round_trip(bits: u32, prefix in 0u8..=32, six: u128, mtu: Option<u32>, scope: Option<u8>, name in "[a-z]{1,15}") {
            let v4 = Cidr::new(IpAddr::V4(bits.into()), prefix).unwrap();
            let v6 = Cidr::new(IpAddr::V6(six.into()), prefix).unwrap();
            let route = Route { dst: v6, gw: Some(v6.address()), mtu, advmss: None, priority: mtu, table: None, scope };
            let result = NetworkResult {
                interfaces: vec![Interface { name, mtu, ..Interface::default() }],
                ips: vec![Address { address: v4, gateway: None, interface: Some(0) }, Address { address: v6, gateway: Some(v6.address()), interface: None }],
                routes: vec![route],
                dns: Dns::default(),
            };
            prop_assert_eq!(&NetworkResult::read(result.to_version(CniVersion::V1_1_0)).unwrap(), &result);
            for version in CniVersion::ALL {
                let once = NetworkResult::read(result.to_version(version)).unwrap();
                prop_assert_eq!(&once.ips, &result.ips);
                prop_assert_eq!(once.to_version(version), result.to_version(version));
            }
        }
    }
}
