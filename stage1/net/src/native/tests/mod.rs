//! Networks in network namespaces of the tests' own making: what is there afterwards, and who reaches whom.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on may panic")]

mod beyond;
mod bridge;
mod cost;
mod kinds;
mod lab;
mod race;
mod routers;
mod shape;
mod tuned;
