//! Networks in the tests' own network namespaces: resources and reachability.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod beyond;
mod bridge;
mod cost;
mod kinds;
mod lab;
mod mtu;
mod race;
mod routers;
mod shape;
mod tuned;
