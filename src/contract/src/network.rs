//! Networks: how they are run on this host, what a pod got of them, and what `gantry-stage1 network` is asked.
//!
//! A supervisor attaches its pod before its apps are made and detaches it after they have ended. What it has on the host
//! meanwhile (leases, rules, interfaces, what plugins keep) is written down in [`crate::files::NETWORK`] of the pod
//! directory first and removed from there last, so that it can be taken away when the supervisor is dead. For that, and for
//! all that concerns the networks of this host and not one pod, the engine runs `gantry-stage1 network`: one
//! [`Request`] as JSON on stdin until end of file, one line with an [`Answer`] on stdout.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::plan::{Dns, Networks, Port};

/// How networks are run on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The directory of this gantry's leases and of what plugins answered, absolute: `DIR/net`. It is made when it is not there.
    pub state_dir: String,
    /// The directory of the pod directories, absolute.
    pub pods_dir: String,
    /// Directories of network configurations; the first that has a name counts.
    pub config_dirs: Vec<String>,
    /// Directories of plugins.
    pub plugin_dirs: Vec<String>,
    /// The name of our nftables tables.
    pub table: String,
    /// Run the plugins for every network of a file, also for those that gantry can do itself.
    #[serde(default)]
    pub use_plugins: bool,
    /// How long one plugin may take, in milliseconds.
    pub plugin_limit_ms: u64,
    /// Pods ask the resolver on the address of their bridge first.
    #[serde(default)]
    pub resolver: bool,
}

/// What a pod got of one network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attached {
    /// The network's name.
    pub name: String,
    /// The interface in the pod.
    pub interface: String,
    /// Its hardware address, in hexadecimal with colons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its addresses.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Routes through it.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// What the network says of DNS.
    #[serde(default)]
    pub dns: Dns,
    /// Ports of the host that lead to the pod through this network.
    #[serde(default)]
    pub ports: Vec<Port>,
}

/// An address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub address: IpAddr,
    /// The length of its network's prefix, in bits.
    pub prefix: u8,
    /// The network's gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// A route of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Whereto.
    pub to: IpAddr,
    /// The length of its prefix, in bits.
    pub prefix: u8,
    /// Through whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpAddr>,
}

/// What `gantry-stage1 network` is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// How networks are run on this host.
    pub host: Host,
    /// What is to be done.
    pub what: What,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Take away what a dead pod has: all that its [`crate::files::NETWORK`] says. The caller holds the pod's lock. Doing it
    /// again does nothing. Answered by `Done`.
    Down {
        /// The pod's UUID.
        pod: String,
    },
    /// As `Down`, but what plugins fail to delete is given up: it is forgotten here, whatever they may still have of the pod.
    /// Answered by `Abandoned`.
    Abandon {
        /// The pod's UUID.
        pod: String,
    },
    /// Check that a pod can be attached to these networks as they are configured now, without making anything. Answered by
    /// `Done`.
    Choose(Networks),
    /// Make the tables hold what the pods that are up need, and nothing else, whatever is there. Answered by `Done`.
    Reload,
    /// Remove what belongs to no pod: leases, what is remembered of plugins (with CNI GC), interfaces, tables. With
    /// `dry_run` it is only told. Answered by `Swept`.
    Sweep {
        /// Change nothing.
        dry_run: bool,
    },
    /// What gantries that are gone have left in the host's network namespace: for `doctor`. Answered by `Findings`.
    Strays,
    /// What is there of ours that no pod accounts for, and what is missing that pods need: for `doctor`. Answered by
    /// `Findings`.
    Check,
}

/// What `gantry-stage1 network` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It is done.
    Done,
    /// What was removed that belonged to no pod, or would be; a line for people each.
    Swept(Vec<String>),
    /// It is done, but for what plugins did not delete; a line for people each.
    Abandoned(Vec<String>),
    /// What is wrong, a line for people each.
    Findings(Vec<String>),
    /// It could not be done.
    Failed(Failure),
}

/// A network that is configured here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Network {
    /// Its name; of a file that is not understood, as far as it can be told.
    pub name: Option<String>,
    /// Where it is configured: `built in` or a path.
    pub source: String,
    /// The types of its plugins, in order.
    pub plugins: Vec<String>,
    /// Whether gantry does what they would do.
    pub built_in: bool,
    /// The versions of the CNI specification it is written for.
    pub cni_versions: Vec<String>,
    /// The bridge or the master interface on the host.
    pub interface: Option<String>,
    /// Its subnets, as `ADDRESS/LENGTH`.
    pub subnets: Vec<String>,
    /// The gateways, which the resolver listens on when the bridge has them.
    pub gateways: Vec<IpAddr>,
    /// Which configuration is used in its place, when it is not.
    pub shadowed_by: Option<String>,
    /// Why it cannot be used.
    pub problem: Option<String>,
    /// What is odd and harmless in its configuration.
    pub notes: Vec<String>,
    /// Pods that have an interface in it.
    pub pods: Vec<Member>,
    /// The configuration as it is written; only where one network is inspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A pod of a network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Member {
    /// The pod's UUID.
    pub pod: String,
    /// What it got.
    pub attached: Attached,
}

impl From<Attached> for gantry_model::PodNetwork {
    fn from(attached: Attached) -> Self {
        let Attached { name, interface, mac, addresses, routes, dns, ports } = attached;
        Self {
            name,
            interface,
            mac,
            addresses: addresses.into_iter().map(Into::into).collect(),
            routes: routes.into_iter().map(Into::into).collect(),
            dns: dns.into(),
            ports: ports.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<Address> for gantry_model::net::PodAddress {
    fn from(address: Address) -> Self {
        let Address { address, prefix, gateway } = address;
        Self { address, prefix, gateway }
    }
}

impl From<Route> for gantry_model::net::PodRoute {
    fn from(route: Route) -> Self {
        let Route { to, prefix, via } = route;
        Self { to, prefix, via }
    }
}

impl From<Port> for gantry_model::net::PodPort {
    fn from(port: Port) -> Self {
        let Port { host_ip, host_port, pod_port, count, protocol } = port;
        Self { host_ip, host_port, pod_port, count, protocol: protocol.into() }
    }
}
