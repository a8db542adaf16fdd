//! gantry's nftables tables, over nfnetlink: published ports, masquerading and isolation of networks in one,
//! anti-spoofing for bridge ports in the other.
//!
//! The table `inet NAME` is created and changed by transactions (nft(8); the kernel's `nf_tables.h` and
//! `nfnetlink.h`), which the kernel applies as a whole or not at all. Its chains never change. A pod is a few
//! elements in hash tables, so the cost per pod and per packet does not depend on the number of pods.
//!
//! * `antispoof` (prerouting, raw) drops 127.0.0.0/8 from and to gantry's interfaces, which `route_localnet` would let
//!   in, and spoofed sources from an interface of a single pod.
//! * `prerouting` and `output` (dstnat) jump to `ports` for packets to this host (`fib daddr type local`).
//! * `ports` does DNAT: first by address, protocol and port, then by protocol and port.
//! * `forward` (filter) drops packets between networks, from and to restricted networks, and from outside to
//!   masqueraded networks, but not established connections and published ports. Where the host forwards an IP version
//!   only for pods, it drops that version's packets between interfaces that are not gantry's.
//! * `postrouting` (srcnat) masquerades packets leaving networks that want it, packets from loopback, and hairpin
//!   connections through published ports, whose replies would otherwise bypass the host.
//!
//! The table `bridge NAME` exists while there are anti-spoofing entries, and changes in the same transactions. Its
//! chain `antispoof` (prerouting, filter) accepts frames from other ports. From the port of a pod, it accepts frames
//! with the pod's hardware address that are ARP (of the pod's addresses, or a probe from 0.0.0.0), IPv4 from its
//! addresses, or IPv6 from its addresses, a link-local address, or (ICMPv6 only) `::`. It drops everything else:
//! other protocols, VLAN tags, router advertisements and redirects, DHCP and DHCPv6 server replies, and neighbour
//! messages about addresses that are not the pod's (RFC 4861 section 11).
//!
//! Limits, and what callers must ensure:
//!
//! * A kernel without nftables for bridges (`CONFIG_NF_TABLES_BRIDGE`) has no anti-spoofing on bridges; pods run
//!   without. [`Table::supports_bridge_tables`] reports it, and the host's status should.
//! * A pod that routes for other addresses, or serves DHCP, must have no anti-spoofing entry.
//! * Link-local IPv6 addresses are not checked; do not rely on that of a gateway.
//! * A bridge learns from frames to 01:80:c2:00:00:00 to 0f before any rule sees them, unless `no_linklocal_learn` is
//!   set, as on the bridges that [`crate::rtnetlink`] creates.
//! * 127.0.0.1 reaches a pod only if `net.ipv4.conf.INTERFACE.route_localnet` is 1 for the pod's interface.
//!   Forwarding needs `net.ipv4.ip_forward` and `net.ipv6.conf.all.forwarding`.
//! * `accept` ends gantry's chain only. Where another table drops forwarded packets (Docker sets the policy of
//!   iptables' FORWARD to drop, firewalld has zones), gantry's interfaces must be allowed there.
//! * `[::1]` reaches no pod, since the kernel does not route the replies. A local proxy can listen there.
//! * Frames that a bridge forwards between its ports are not seen by the inet table, unless `br_netfilter` is loaded
//!   (Docker and Kubernetes load it). With it, a pod reaches itself through a published port only in hairpin mode.
//! * Publishing a port hides a host program that listens on it, so hold the port with a socket first.
//! * Tables of other gantry instances on the host know nothing of each other's networks and ports.
//! * Established connections keep their destination whatever changes in the table: see [`conntrack`].
//!
//! [`Table::ensure`] creates the tables, [`Table::add`] and [`Table::remove`] change a pod's part, [`Table::read`]
//! compares the tables with their expected layout, and a [`Monitor`] reports changes by other programs.
//! [`find_dropping_chains`] finds chains of other programs that drop what gantry's tables accept.

mod anti_spoofing;
mod channel;
pub mod conntrack;
mod error;
mod expr;
mod family;
mod forward;
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
pub use forward::{DroppingChain, find_dropping_chains};
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
