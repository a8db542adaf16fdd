//! The JSON of networks in a pod manifest: ports, name servers, hosts. Both directions name every field. Addresses are
//! text; `PodSpec::validate` checks them.

use std::net::IpAddr;

use gantry_model::net::{self, DnsSpec, HostsSpec, PortSpec, PortTarget};
use serde::{Deserialize, Serialize};

/// A published port: a port of the host, and a port of the pod by name or by number.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Port {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_ip: Option<IpAddr>,
    /// 0: gantry picks one.
    #[serde(default)]
    host_port: u16,
    to: Target,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Target {
    /// Every declared port.
    All,
    Name(String),
    Port {
        port: u16,
        #[serde(default = "one")]
        count: u16,
        #[serde(default)]
        protocol: Protocol,
    },
}

fn one() -> u16 {
    1
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Protocol {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

/// The contents of resolv.conf.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Resolver {
    #[default]
    Network,
    Host,
    None,
    Given(Dns),
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Dns {
    servers: Vec<net::NameServer>,
    search: Vec<String>,
    options: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
}

/// The contents of hosts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Hosts {
    Host,
    Entries(Vec<HostEntry>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostEntry {
    address: IpAddr,
    names: Vec<String>,
}

impl Default for Hosts {
    fn default() -> Self {
        Self::Entries(Vec::new())
    }
}

impl From<&PortSpec> for Port {
    fn from(port: &PortSpec) -> Self {
        let PortSpec { to, host_ip, host_port } = port;
        let to = match to {
            PortTarget::All => Target::All,
            PortTarget::Named(name) => Target::Name(name.clone()),
            PortTarget::Numbered { port, count, protocol } => {
                Target::Port { port: *port, count: *count, protocol: (*protocol).into() }
            }
        };
        Self { host_ip: *host_ip, host_port: *host_port, to }
    }
}

impl From<Port> for PortSpec {
    fn from(port: Port) -> Self {
        let Port { host_ip, host_port, to } = port;
        let to = match to {
            Target::All => PortTarget::All,
            Target::Name(name) => PortTarget::Named(name),
            Target::Port { port, count, protocol } => PortTarget::Numbered { port, count, protocol: protocol.into() },
        };
        Self { to, host_ip, host_port }
    }
}

impl From<net::Protocol> for Protocol {
    fn from(protocol: net::Protocol) -> Self {
        match protocol {
            net::Protocol::Tcp => Self::Tcp,
            net::Protocol::Udp => Self::Udp,
            net::Protocol::Sctp => Self::Sctp,
        }
    }
}

impl From<Protocol> for net::Protocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Sctp => Self::Sctp,
        }
    }
}

impl From<&DnsSpec> for Resolver {
    fn from(dns: &DnsSpec) -> Self {
        match dns {
            DnsSpec::Network => Self::Network,
            DnsSpec::Host => Self::Host,
            DnsSpec::None => Self::None,
            DnsSpec::Given(dns) => {
                let net::Dns { servers, search, options, domain } = dns.clone();
                Self::Given(Dns { servers, search, options, domain })
            }
        }
    }
}

impl From<Resolver> for DnsSpec {
    fn from(dns: Resolver) -> Self {
        match dns {
            Resolver::Network => Self::Network,
            Resolver::Host => Self::Host,
            Resolver::None => Self::None,
            Resolver::Given(Dns { servers, search, options, domain }) => {
                Self::Given(net::Dns { servers, search, options, domain })
            }
        }
    }
}

impl From<&HostsSpec> for Hosts {
    fn from(hosts: &HostsSpec) -> Self {
        match hosts {
            HostsSpec::Host => Self::Host,
            HostsSpec::Entries(entries) => {
                let entry =
                    |(address, names): &(IpAddr, Vec<String>)| HostEntry { address: *address, names: names.clone() };
                Self::Entries(entries.iter().map(entry).collect())
            }
        }
    }
}

impl From<Hosts> for HostsSpec {
    fn from(hosts: Hosts) -> Self {
        match hosts {
            Hosts::Host => Self::Host,
            Hosts::Entries(entries) => {
                Self::Entries(entries.into_iter().map(|HostEntry { address, names }| (address, names)).collect())
            }
        }
    }
}
