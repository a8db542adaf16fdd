//! Linux networking over netlink(7): interfaces, addresses and routes (rtnetlink), and packet filter tables (nfnetlink).
//!
//! Imports the model only, and knows nothing of pods or CNI. Synchronous, no threads; runs no `ip`, `nft` or `iptables`.
//!
//! * [`address`]: addresses with a prefix length, and networks.
//! * [`netlink`]: interfaces, addresses, routes, sysctls (rtnetlink); the message format and the transport, shared with `nft`.
//! * [`nft`]: gantry's own nftables tables, and connection tracking.

pub mod address;
pub mod netlink;
pub mod nft;
