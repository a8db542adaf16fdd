//! The pod CIDRs of a Kubernetes node, and the network `default` within them.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind};
use serde_json::json;

use super::{ConfigError, NetworkConfig, Source, builtin};
use crate::address::{Cidr, IpFamily, Prefix};

/// The longest text: two prefixes.
const MAX_TEXT: usize = 128;

/// The address ranges of a node's pods: one of IPv4, one of IPv6, or both, in the order of preference. Written with a
/// comma between them, as in the field `podCIDR` of the CRI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCidrs(Vec<Prefix>);

/// A text is no [`PodCidrs`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not a pod CIDR: {problem}", shown(.text))]
pub struct PodCidrError {
    text: String,
    problem: String,
}

impl Kind for PodCidrError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

impl FromStr for PodCidrs {
    type Err = PodCidrError;

    fn from_str(text: &str) -> Result<Self, PodCidrError> {
        let refuse = |problem: String| PodCidrError { text: text.to_owned(), problem };
        if text.len() > MAX_TEXT {
            return Err(refuse("it is too long".to_owned()));
        }
        let mut all: Vec<Prefix> = Vec::new();
        for part in text.split(',') {
            let part = part.trim();
            let cidr: Cidr = part.parse().map_err(|error| refuse(format!("'{}' {error}", shown(part))))?;
            let prefix = cidr.network();
            if let Some(problem) = unfit(&prefix) {
                return Err(refuse(format!("{prefix} {problem}")));
            }
            if all.iter().any(|earlier| earlier.family() == prefix.family()) {
                return Err(refuse("expected at most one IPv4 and one IPv6 prefix".to_owned()));
            }
            all.push(prefix);
        }
        Ok(Self(all))
    }
}

/// The lengths of prefixes for pods. Shorter ones contain addresses of the host and of the Internet; longer ones have
/// no room for the gateway and a pod.
fn lengths(family: IpFamily) -> RangeInclusive<u8> {
    match family {
        IpFamily::V4 => 8..=30,
        IpFamily::V6 => 16..=126,
    }
}

/// Why pods cannot have addresses of this prefix.
fn unfit(prefix: &Prefix) -> Option<String> {
    let lengths = lengths(prefix.family());
    if !lengths.contains(&prefix.length()) {
        return Some(format!("must have a length of {} to {}", lengths.start(), lengths.end()));
    }
    let is_special = match prefix.first() {
        IpAddr::V4(first) => {
            first.is_loopback() || first.is_multicast() || first.is_link_local() || first.octets()[0] == 0
        }
        IpAddr::V6(first) => first.is_multicast() || first.is_unicast_link_local() || first.segments()[0] == 0,
    };
    is_special.then(|| "is not a range for hosts".to_owned())
}

impl fmt::Display for PodCidrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

impl PodCidrs {
    /// The built-in network `default` with these ranges in place of its own.
    ///
    /// # Errors
    /// Never; the parser of configurations is asked.
    pub fn default_network(&self) -> Result<NetworkConfig, ConfigError> {
        let everywhere = |family| match family {
            IpFamily::V4 => "0.0.0.0/0",
            IpFamily::V6 => "::/0",
        };
        let ranges: Vec<_> = self.0.iter().map(|prefix| json!([{ "subnet": prefix.to_string() }])).collect();
        let routes: Vec<_> = self.0.iter().map(|prefix| json!({ "dst": everywhere(prefix.family()) })).collect();
        let malformed = |error: serde_json::Error| ConfigError::Malformed {
            origin: Source::BuiltIn.to_string(),
            problem: error.to_string(),
        };
        let mut config: serde_json::Value = serde_json::from_str(builtin::DEFAULT_CONFLIST).map_err(malformed)?;
        if let Some(ipam) = config.pointer_mut("/plugins/0/ipam") {
            *ipam = json!({ "type": "host-local", "ranges": ranges, "routes": routes });
        }
        NetworkConfig::parse(&config.to_string(), Source::BuiltIn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Ipam;

    #[test]
    fn one_prefix_of_each_family_is_accepted() {
        for (text, canonical) in [
            ("10.244.1.0/24", "10.244.1.0/24"),
            ("10.244.1.7/24", "10.244.1.0/24"),
            ("fd00:10:244::/64", "fd00:10:244::/64"),
            ("fd00::/64, 10.1.0.0/16", "fd00::/64,10.1.0.0/16"),
        ] {
            assert_eq!(text.parse::<PodCidrs>().unwrap().to_string(), canonical);
        }
        let long = "1".repeat(1000);
        for bad in [
            "",
            "10.244.1.0",
            "10.244.1.0/33",
            "10.1.0.0/16,10.2.0.0/16",
            "10.1.0.0/16,",
            "0.0.0.0/0",
            "10.0.0.0/31",
            "127.0.0.0/8",
            "224.0.0.0/8",
            "169.254.0.0/16",
            "::/64",
            "fe80::/64",
            "ff02::/64",
            "fd00::/127",
            &long,
        ] {
            assert!(bad.parse::<PodCidrs>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_default_network_has_their_ranges() {
        let network = "10.244.1.0/24,fd00::/64".parse::<PodCidrs>().unwrap().default_network().unwrap();
        assert_eq!((network.name.as_str(), &network.source), (builtin::DEFAULT, &Source::BuiltIn));
        let Some(Ipam::HostLocal(local)) = &network.plugins[0].ipam else { panic!("{network:?}") };
        let subnets: Vec<String> = local.ranges.iter().flatten().map(|range| range.subnet.to_string()).collect();
        assert_eq!(subnets, ["10.244.1.0/24", "fd00::/64"]);
        assert_eq!(local.routes.len(), 2);
    }
}
