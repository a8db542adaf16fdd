//! Interfaces, addresses and routes over rtnetlink(7).
//!
//! A [`Socket`] belongs to one network namespace. Operations are idempotent: adding an object that exists with the
//! same properties succeeds, and so does deleting one that is gone. An interrupted set-up or tear-down can be
//! repeated from the start.
//!
//! Deleting an interface and moving one to another namespace wait for RCU grace periods in the kernel and take tens
//! of milliseconds; every other operation, creating an interface included, takes tens of microseconds. The kernel
//! destroys a network namespace with all its interfaces asynchronously after its last process and descriptor are
//! gone, so a pod that ends deletes nothing.
//!
//! * [`link`]: interfaces; [`address`], [`route`], [`traffic`] (rate limits).
//! * [`Setup`]: an interface configured with one system call.

pub mod address;
pub mod link;
mod loopback_filter;
pub mod route;
mod setup;
mod socket;
mod tc;
pub mod traffic;

#[cfg(test)]
mod tests;

pub use setup::Setup;
pub use socket::Socket;
