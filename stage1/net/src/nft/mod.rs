//! gantry's own nftables table, over nfnetlink: host ports, masquerading, and the separation of networks.
//!
//! One table, `inet NAME`, made and changed by transactions (nft(8); the kernel's `nf_tables.h` and `nfnetlink.h`): each is made
//! whole or not at all. Its chains never change. A pod is a few elements in hash tables, so that the five-hundredth costs
//! what the first did, for us and for each packet.
//!
//! | chain | what it does |
//! |---|---|
//! | `guard` (prerouting, raw) | drops 127.0.0.0/8 from or to our interfaces, which `route_localnet` would let in |
//! | `prerouting`, `output` (dstnat) | what is addressed to this host (`fib daddr type local`) goes to `ports` |
//! | `ports` | changes the destination: first by address, protocol and port, then by protocol and port |
//! | `forward` (filter) | drops what goes from one of our networks to another, or from or to a restricted one; not answers, and not what came through a host port |
//! | `postrouting` (srcnat) | masquerades what leaves a network that wants it; what comes from loopback; and what comes back into its own network through a host port, whose answer would else not come back through us |
//!
//! What others must do, or cannot be done here:
//!
//! * 127.0.0.1 reaches a pod only if `net.ipv4.conf.INTERFACE.route_localnet` is 1 for the interface that leads to it,
//!   and addresses are forwarded only with `net.ipv4.ip_forward` and `net.ipv6.conf.all.forwarding`.
//! * To accept a packet ends our chain only. A host on which another table drops what is forwarded (Docker sets the policy of
//!   iptables' FORWARD to drop, firewalld has zones) drops it after us: there our interfaces have to be allowed.
//! * `[::1]` reaches no pod: the kernel routes no answer to it. It is left to who listens there (a proxy, say).
//! * What one bridge switches between its own ports is not seen here, unless `br_netfilter` shows it. Where it does (Docker and
//!   Kubernetes load it), a pod reaches itself through a host port only if its port of the bridge is in hairpin mode.
//! * A host port is taken from whoever listens on it on the host: who asks for one should hold a socket on it.
//! * Two tables (two gantries on a host) do not know of each other's networks and ports.
//!
//! [`Table::ensure`] makes all of it, [`Table::add`] and [`Table::remove`] change a pod's part, [`Table::read`] compares
//! what is there with what should be, and a [`Monitor`] tells when somebody else changed it.

mod channel;
mod error;
mod expr;
mod monitor;
mod read;
mod rules;
mod sets;
mod state;
mod table;
mod wire;

pub use crate::address::Prefix;
pub use channel::socket;
pub use error::{Error, Result};
pub use monitor::{Change, Monitor, Part};
pub use read::Found;
pub use state::{
    Access, Entries, Forward, Guard, HostPort, Interface, NETWORKS_LIMIT, Network, PORTS_LIMIT, PREFIXES_LIMIT,
    Protocol, RANGE_LIMIT, State,
};
pub use table::Table;

#[cfg(test)]
mod tests;
