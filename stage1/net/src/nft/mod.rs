//! gantry's own nftables table, over nfnetlink.
