//! Interfaces, addresses and routes, over rtnetlink(7).
//!
//! [`Socket`] speaks for one network namespace; [`Namespace`] is one, held open. What is added twice with the same properties is there
//! once, and what is deleted twice is gone: an interrupted set-up or tear-down can be run again from its start.
//!
//! What waits for grace periods of RCU, and so takes tens of milliseconds where the rest takes tens of microseconds: deleting an
//! interface of any kind, and moving one to another namespace. Making one waits for none. A namespace whose last process and
//! descriptor are gone is cleared by the kernel later, interfaces and all, and nobody waits: a pod that ends needs to
//! delete nothing.
//!
//! * [`link`]: interfaces, [`address`], [`route`], [`neighbour`], [`traffic`] (limits), [`sysctl`] (switches).
//! * `message`: the format, shared with [`crate::nft`]; `channel`: the transport, shared too.

pub mod address;
pub(crate) mod channel;
mod error;
pub(crate) mod family;
pub mod link;
mod mac;
pub(crate) mod message;
mod namespace;
pub mod neighbour;
pub mod route;
mod setup;
mod socket;
pub mod sysctl;
pub mod traffic;

#[cfg(test)]
pub(crate) mod tests;

pub use crate::address::{Cidr, Prefix};
pub(crate) use error::Attempt;
pub use error::{Error, Malformed, Result};
pub use mac::{Mac, NotMac};
pub use namespace::{Namespace, check_name, is_interface_name};
pub use setup::Setup;
pub use socket::Socket;
