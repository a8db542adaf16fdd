//! Interfaces, addresses and routes, over rtnetlink.
