//! Pod networks: attaches a pod to its networks with interfaces, addresses, routes and ports, and detaches it.
//!
//! What it may import: ARCHITECTURE.md, Layers (checked by tests/tidy). Synchronous, no tokio, no threads, no database;
//! nothing here runs `ip`, `nft` or `iptables`.
//!
//! * [`address`], [`netlink`], [`nft`]: the crate below, `gantry-netlink`.
//! * [`config`]: network configurations in the format of CNI.
//! * [`ipam`]: leases of addresses.
//! * [`plugin`]: third-party CNI plugins.
//! * [`native`]: the standard plugins, implemented in this crate.
//! * [`pod`]: combines them: attaches, records and detaches a pod's networks; and the networks of this host.

pub mod config;
pub mod ipam;
pub mod native;
pub mod plugin;
pub mod pod;

pub use gantry_netlink::{address, nft};

/// rtnetlink and the parts that it shares with nftables, from `gantry-netlink`.
pub mod netlink {
    pub use gantry_netlink::address::{Cidr, Prefix};
    pub use gantry_netlink::rtnetlink::{Setup, Socket, address, link, route, traffic};
    pub use gantry_netlink::{Error, Mac, Malformed, Namespace, NotMac, Result, check_name, is_interface_name, sysctl};
}

// The shared test support expects them here.
#[cfg(test)]
use gantry_netlink::{Namespace, rtnetlink};

#[cfg(test)]
#[path = "../../netlink/src/test_support.rs"]
#[allow(dead_code, reason = "the tests of both crates share it, and neither uses all of it")]
mod test_support;

/// `Ok` without errors, the error itself when there is one, and `several` of them as one.
pub(crate) fn all_of<E>(mut errors: Vec<E>, several: impl FnOnce(Vec<E>) -> E) -> Result<(), E> {
    match errors.len() {
        0 => Ok(()),
        1 => errors.pop().map_or(Ok(()), Err),
        _ => Err(several(errors)),
    }
}
