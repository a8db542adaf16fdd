//! The networks of a pod: the request (`--net`, ports, DNS) and what the pod got.
//!
//! The grammar is rkt's: `--net=NAME[:K=V[;K=V…]][,NAME…]`, with the special names `host`, `none` and `all`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
pub use crate::name_server::NameServer;
pub use crate::net_check::{host_address, port_range, takes_ports};
use crate::spec::SpecError;

/// The name of the default network.
pub const DEFAULT: &str = "default";
/// The most bytes of a request for networks.
pub const MAX_REQUEST: usize = 16 * 1024;
/// The most networks of one pod.
pub const MAX_NETWORKS: usize = 32;

/// Which networks a pod is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetMode {
    /// A network namespace of its own with loopback only.
    None,
    /// The host's network namespace.
    Host,
    /// These, in this order: eth0, eth1 …
    Networks(Vec<NetworkRequest>),
    /// Every network that is configured, and the default one; those named get the arguments.
    All(Vec<NetworkRequest>),
}

/// A network asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRequest {
    /// Its name.
    pub name: String,
    /// Arguments for its plugins (`CNI_ARGS`), in the order given.
    #[serde(default)]
    pub args: Vec<(String, String)>,
}

impl Default for NetMode {
    /// The network `default`, as in rkt.
    fn default() -> Self {
        Self::Networks(vec![NetworkRequest { name: DEFAULT.to_owned(), args: Vec::new() }])
    }
}

/// Whether this is a valid network name (CNI specification 1.1.0, section 1): a letter or digit, followed by letters,
/// digits, `_`, `.` and `-`; at most 128 bytes.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.len() <= 128
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

impl FromStr for NetMode {
    type Err = SpecError;

    /// Reads the value of `--net`; an empty one means the default network.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.len() > MAX_REQUEST {
            return Err(too_long());
        }
        match text {
            "" => return Ok(Self::default()),
            // Of most rows of the store: no list is made for them.
            "none" => return Ok(Self::None),
            "host" => return Ok(Self::Host),
            _ => {}
        }
        let mut wanted: Vec<NetworkRequest> = Vec::new();
        for part in text.split(',') {
            let one = parse_request(part)?;
            if wanted.iter().any(|earlier| earlier.name == one.name) {
                return Err(SpecError::new(format!("found duplicate network name '{}'", one.name)));
            }
            wanted.push(one);
        }
        for (name, mode) in [("host", Self::Host), ("none", Self::None)] {
            if wanted.iter().any(|it| it.name == name) {
                if wanted.len() > 1 {
                    return Err(SpecError::new(format!("'{name}' cannot be combined with other networks")));
                }
                return Ok(mode);
            }
        }
        if wanted.len() > MAX_NETWORKS {
            return Err(too_long());
        }
        let named = wanted.len();
        wanted.retain(|it| it.name != "all");
        Ok(if wanted.len() < named { Self::All(wanted) } else { Self::Networks(wanted) })
    }
}

impl fmt::Display for NetMode {
    /// The format that [`NetMode::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, wanted) = match self {
            Self::None => return f.write_str("none"),
            Self::Host => return f.write_str("host"),
            Self::Networks(wanted) => (None, wanted),
            Self::All(wanted) => (Some("all".to_owned()), wanted),
        };
        let parts: Vec<String> = all.into_iter().chain(wanted.iter().map(ToString::to_string)).collect();
        f.write_str(&parts.join(","))
    }
}

impl fmt::Display for NetworkRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (key, value)) in self.args.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { ':' } else { ';' })?;
        }
        Ok(())
    }
}

fn too_long() -> SpecError {
    SpecError::new(format!("a request for networks may have at most {MAX_REQUEST} bytes and {MAX_NETWORKS} networks"))
}

pub(crate) fn invalid_name(name: &str) -> SpecError {
    SpecError::new(format!(
        "'{}' is not the name of a network: expected a letter or digit, followed by letters, digits, '_', '.' and '-'",
        shown(name)
    ))
}

fn parse_request(part: &str) -> Result<NetworkRequest, SpecError> {
    // At the first colon only: an IPv6 address has more.
    let (name, args) = part.split_once(':').map_or((part, None), |(name, args)| (name, Some(args)));
    if !is_name(name) {
        return Err(invalid_name(name));
    }
    let Some(args) = args else { return Ok(NetworkRequest { name: name.into(), args: Vec::new() }) };
    if matches!(name, "host" | "none" | "all") {
        return Err(SpecError::new(format!("arguments are not supported by the special network name '{name}'")));
    }
    let argument = |text: &str| {
        let whole = text.split_once('=').filter(|(key, value)| !key.is_empty() && is_plain(key) && is_plain(value));
        whole.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or_else(|| {
            let argument = shown(text);
            SpecError::new(format!("'{argument}' of network '{name}' is not an argument: must be KEY=VALUE"))
        })
    };
    let args = args.split(';').map(argument).collect::<Result<_, _>>()?;
    Ok(NetworkRequest { name: name.into(), args })
}

/// Whether this is allowed in `CNI_ARGS`.
fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || c == ';')
}

/// A transport protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// RFC 9293.
    #[default]
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 9260.
    Sctp,
}

impl Protocol {
    /// Its name in lower case, as in `80/tcp`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// Its number in IP (RFC 790 and its successors).
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The one of this number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|protocol| protocol.number() == number)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Tcp, Self::Udp, Self::Sctp]
            .into_iter()
            .find(|protocol| text.eq_ignore_ascii_case(protocol.as_str()))
            .ok_or_else(|| format!("'{}' is not a protocol: tcp, udp or sctp", shown(text)))
    }
}

/// A port of the host that leads to the pod (`--port`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSpec {
    /// Which port of the pod.
    pub to: PortTarget,
    /// The host's address it is on; `None`: every one.
    pub host_ip: Option<IpAddr>,
    /// The first port of the host; 0: a free one, which is picked when the pod starts.
    pub host_port: u16,
}

/// Which port of the pod a port of the host leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortTarget {
    /// The one an image declares under this name (`ports` of an appc image; `80-tcp` for `80/tcp` of an OCI image).
    Named(String),
    /// Every one that an image of the pod declares and that nothing else leads to; each at a free port of the host.
    All,
    /// These.
    Numbered {
        /// The first. Not 0.
        port: u16,
        /// How many, from the first on: 1 to [`MAX_PORT_RANGE`].
        count: u16,
        /// Of which protocol.
        protocol: Protocol,
    },
}

/// The most ports of one `--port`.
pub const MAX_PORT_RANGE: u16 = 1024;
/// The most `--port` of a pod.
pub const MAX_PORTS: usize = 256;

/// The source of the apps' `/etc/resolv.conf` (`--dns*`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DnsSpec {
    /// The networks' DNS configuration, else the host's; the image's own file where the pod has no network.
    #[default]
    Network,
    /// The host's file as it is (`--dns=host`).
    Host,
    /// The image's own file is left alone (`--dns=none`).
    None,
    /// This.
    Given(Dns),
}

/// Name servers and how names are looked up (resolv.conf(5)).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// The servers, preferred first.
    pub servers: Vec<NameServer>,
    /// Where short names are looked up.
    pub search: Vec<String>,
    /// Options of the resolver.
    pub options: Vec<String>,
    /// The local domain.
    pub domain: Option<String>,
}

/// Entries of the apps' `/etc/hosts` (`--hosts-entry`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostsSpec {
    /// gantry's file with these lines: an address and its names.
    Entries(Vec<(IpAddr, Vec<String>)>),
    /// The host's file (`--hosts-entry=host`).
    Host,
}

impl Default for HostsSpec {
    /// gantry's file alone.
    fn default() -> Self {
        Self::Entries(Vec::new())
    }
}

/// What a started pod got of one network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PodNetwork {
    /// The network's name.
    pub name: String,
    /// The interface in the pod.
    pub interface: String,
    /// Its hardware address, in hexadecimal with colons.
    #[serde(default)]
    pub mac: Option<String>,
    /// Its addresses.
    #[serde(default)]
    pub addresses: Vec<PodAddress>,
    /// Routes through it.
    #[serde(default)]
    pub routes: Vec<PodRoute>,
    /// The network's DNS configuration.
    #[serde(default)]
    pub dns: Dns,
    /// Ports of the host that lead to the pod through this network.
    #[serde(default)]
    pub ports: Vec<PodPort>,
}

/// An address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodAddress {
    /// The address.
    pub address: IpAddr,
    /// The length of its network's prefix, in bits.
    pub prefix: u8,
    /// The network's gateway.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
}

/// A route of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRoute {
    /// The destination network's address.
    pub to: IpAddr,
    /// The length of its prefix, in bits.
    pub prefix: u8,
    /// The next hop.
    #[serde(default)]
    pub via: Option<IpAddr>,
}

/// Ports of the host that lead to a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPort {
    /// The host's address; `None`: every one.
    #[serde(default)]
    pub host_ip: Option<IpAddr>,
    /// The first port of the host; 0 in a plan: a free one, of a single port.
    pub host_port: u16,
    /// The first port of the pod.
    pub pod_port: u16,
    /// How many.
    pub count: u16,
    /// Of which protocol.
    pub protocol: Protocol,
}

#[cfg(test)]
#[path = "net_tests.rs"]
mod tests;
