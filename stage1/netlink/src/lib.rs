//! Linux networking over netlink(7): interfaces, addresses and routes (rtnetlink), and packet filter tables
//! (nfnetlink).
//!
//! Imports the model only, and knows nothing of pods or CNI. Synchronous, without threads; runs no `ip`, `nft` or
//! `iptables`.
//!
//! * [`address`]: addresses with a prefix length, and networks.
//! * [`rtnetlink`]: interfaces, addresses, routes, rate limits. [`sysctl`]: the files below `/proc/sys/net`.
//! * [`nft`]: gantry's nftables tables, and connection tracking.
//! * [`Namespace`]: a network namespace, and running code inside it.
//! * `message` (the wire format) and `channel` (requests, replies, deadlines) are shared by `rtnetlink` and `nft`.

pub mod address;
mod channel;
mod error;
mod family;
mod mac;
mod message;
mod namespace;
pub mod nft;
pub mod rtnetlink;
pub mod sysctl;

#[cfg(test)]
#[allow(dead_code, reason = "gantry-net includes this file too, for its own tests")]
mod test_support;

pub use error::{Error, Malformed, Result};
pub use mac::{Mac, NotMac};
pub use namespace::{Namespace, check_name, is_interface_name};
