//! Pod networks: what a supervisor needs to give its pod interfaces, addresses, routes and ports, and to take them away.
//!
//! May import `gantry_model`. Synchronous, no tokio, no threads, no database; nothing here runs `ip`, `nft` or `iptables`.
//!
//! * [`address`]: addresses with a prefix length, and networks; of everybody below.
//! * [`netlink`]: interfaces, addresses and routes (rtnetlink).
//! * [`nft`]: our own nftables table (nfnetlink).
//! * [`config`]: network configurations, as CNI writes them.
//! * [`ipam`]: which pod has which address.
//! * [`plugin`]: CNI plugins of others.

pub mod address;
pub mod config;
pub mod ipam;
pub mod netlink;
pub mod nft;
pub mod plugin;
