//! Pod networks: what a supervisor needs to give its pod interfaces, addresses, routes and ports, and to take them
//! away.
//!
//! May import the model and the contract. Synchronous, no tokio, no threads, no database; nothing here runs `ip`, `nft`
//! or `iptables`.
//!
//! * [`address`], [`netlink`], [`nft`]: the crate below, `gantry-netlink`.
//! * [`config`]: network configurations, as CNI writes them.
//! * [`ipam`]: which pod has which address.
//! * [`plugin`]: CNI plugins of others.
//! * [`native`]: what the standard plugins do, done here.
//! * [`pod`]: all of it together: a pod's networks made, written down, taken away; and the networks of this host.

pub mod config;
mod flock;
pub mod ipam;
pub mod native;
pub mod plugin;
pub mod pod;

pub use gantry_netlink::{address, nft};

/// rtnetlink and what it shares with nftables, from `gantry-netlink`.
pub mod netlink {
    pub use gantry_netlink::address::{Cidr, Prefix};
    pub use gantry_netlink::rtnetlink::{Setup, Socket, address, link, neighbour, route, traffic};
    pub use gantry_netlink::{Error, Mac, Malformed, Namespace, NotMac, Result, check_name, is_interface_name, sysctl};
}

// Where the shared test support looks for them.
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
