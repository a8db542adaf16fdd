//! Name servers of resolv.conf(5).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;

/// The most bytes of the name of an interface (`IFNAMSIZ`, less the NUL).
const MAX_ZONE: usize = 15;

/// The address of a name server. An IPv6 address may have a zone: the name or the index of an interface (RFC 4007,
/// section 11), as link-local addresses need it: `fe80::1%eth0`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NameServer {
    address: IpAddr,
    zone: Option<String>,
}

impl NameServer {
    /// A server.
    ///
    /// # Errors
    /// [`SpecError`]: the address is not one of IPv6 and has a zone, or the zone cannot be an interface.
    pub fn new(address: IpAddr, zone: Option<&str>) -> Result<Self, SpecError> {
        let is_interface = |zone: &str| {
            (1..=MAX_ZONE).contains(&zone.len())
                && zone.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%' | b'#'))
        };
        match zone {
            Some(zone) if address.is_ipv4() || !is_interface(zone) => {
                let zone = shown(zone);
                Err(SpecError::new(format!("'{zone}' cannot be the zone of the name server {address}")))
            }
            zone => Ok(Self { address, zone: zone.map(str::to_owned) }),
        }
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Its zone.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }
}

impl From<IpAddr> for NameServer {
    fn from(address: IpAddr) -> Self {
        Self { address, zone: None }
    }
}

impl FromStr for NameServer {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
        let address = address.parse();
        let address =
            address.map_err(|_| SpecError::new(format!("'{}' is not the address of a name server", shown(text))));
        Self::new(address?, zone)
    }
}

impl TryFrom<String> for NameServer {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<NameServer> for String {
    fn from(server: NameServer) -> Self {
        server.to_string()
    }
}

impl fmt::Display for NameServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.zone {
            None => self.address.fmt(f),
            Some(zone) => write!(f, "{}%{zone}", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_ipv6_may_have_zones() {
        for text in ["10.0.0.1", "fd00::1", "fe80::1%eth0", "fe80::1%2", "fe80::1%br-0.1"] {
            assert_eq!(text.parse::<NameServer>().unwrap().to_string(), text);
            let json = serde_json::to_string(&text.parse::<NameServer>().unwrap()).unwrap();
            assert_eq!(json, format!("\"{text}\""));
        }
        let bad = ["", "here", "%eth0", "10.0.0.1%eth0", "fe80::1%", "fe80::1%a b", "fe80::1%a%b", "fe80::1%../x"];
        for text in bad.into_iter().chain(["fe80::1%a-name-too-long-x", "fe80::1%#", "fe80::1%a\n"]) {
            text.parse::<NameServer>().unwrap_err();
        }
    }
}
