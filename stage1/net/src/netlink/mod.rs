//! Interfaces, addresses and routes, over rtnetlink.

pub(crate) mod error;
#[allow(dead_code, reason = "what rtnetlink does not need of it, nfnetlink does")]
pub(crate) mod message;

pub use error::{Error, Malformed, Result};
