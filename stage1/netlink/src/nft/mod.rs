//! gantry's own nftables table, over nfnetlink: host ports, masquerading, and the separation of networks; and one beside it for
//! bridges, which drops what a pod has no business to say.
//!
//! One table, `inet NAME`, made and changed by transactions (nft(8); the kernel's `nf_tables.h` and `nfnetlink.h`): each is made
//! whole or not at all. Its chains never change. A pod is a few elements in hash tables, so that the five-hundredth costs
//! what the first did, for us and for each packet.
//!
//! | chain | what it does |
//! |---|---|
//! | `guard` (prerouting, raw) | drops 127.0.0.0/8 from or to our interfaces, which `route_localnet` would let in; and, from an interface that leads to one pod alone, what is not from its addresses |
//! | `prerouting`, `output` (dstnat) | what is addressed to this host (`fib daddr type local`) goes to `ports` |
//! | `ports` | changes the destination: first by address, protocol and port, then by protocol and port |
//! | `forward` (filter) | drops what goes from one of our networks to another, from or to a restricted one, or from outside to a masqueraded one; not answers, and not what came through a host port; and, of IP versions that the host forwards for pods alone, what is neither from nor to an interface of a gantry |
//! | `postrouting` (srcnat) | masquerades what leaves a network that wants it; what comes from loopback; and what comes back into its own network through a host port, whose answer would else not come back through us |
//!
//! The other table, `bridge NAME`, is there while there are guards, and changes in the same transactions. Its one chain, `frames`
//! (prerouting, filter), lets frames pass that do not come from a guarded port. Of those that do it lets pass what is of
//! the pod's hardware address, and is ARP (of its addresses, or from 0.0.0.0, which asks whether one is free), IPv4 from its
//! addresses, or IPv6 from its addresses, a link-local one, or (ICMPv6 only) `::`. All else is dropped: other types, tags of
//! VLANs, a router's advertisements and redirections, answers of DHCP and DHCPv6 servers, and a neighbour's messages that
//! claim an address that is not the pod's (RFC 4861 section 11).
//!
//! What others must do, or cannot be done here:
//!
//! * A kernel without nftables for bridges (`CONFIG_NF_TABLES_BRIDGE`) has no guards: [`Table::supports_bridge_tables`] tells. Pods run
//!   without; whoever shows the state of the host should say so.
//! * A pod that routes for others (with addresses of their own, behind it), or serves DHCP, must have no guard.
//! * Link-local IPv6 addresses are not told apart: nobody should rely on one of a gateway.
//! * A bridge learns where a hardware address is from frames to 01:80:c2:00:00:00 to 0f before any rule sees them, unless it is told
//!   not to (`no_linklocal_learn`), as those that [`crate::rtnetlink`] makes are.
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
//! * A connection goes on as it began, whatever the table says since: see [`conntrack`].
//!
//! [`Table::ensure`] makes all of it, [`Table::add`] and [`Table::remove`] change a pod's part, [`Table::read`] compares
//! what is there with what should be, and a [`Monitor`] tells when somebody else changed it.

mod anti_spoofing;
mod channel;
pub mod conntrack;
mod error;
mod expr;
mod family;
mod monitor;
mod read;
mod rules;
mod sets;
pub mod socket_cache;
mod state;
mod table;
mod wire;

pub use crate::address::Prefix;
pub use channel::socket;
pub use error::{Error, Result};
pub use gantry_model::net::Protocol;
pub use monitor::{Change, Monitor, TablePart};
pub use read::TableReport;
pub use state::{
    Access, AntiSpoofing, Confined, Entries, Forward, HostPort, INTERFACE_GROUP, Interface, NETWORKS_LIMIT, Network,
    PORTS_LIMIT, PREFIXES_LIMIT, RANGE_LIMIT, State,
};
pub use table::{Table, table_names};

#[cfg(test)]
mod tests;
