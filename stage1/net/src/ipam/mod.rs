//! Leases of addresses, with the rules of host-local, allocated by several supervisors at once.
//!
//! A [`Store`] is a directory for one network. Nothing is kept in memory, and the cost of an operation does not grow
//! with the number of leases:
//!
//! ```text
//! NETWORK/              0700
//!   format              "gantry-leases 1\n": the version of this layout
//!   lock                flock: exclusive for every change
//!   owners/POD:IFNAME   a record: the addresses of one interface of a pod, one to a line
//!   owners/.new         a record being written
//!   addresses/ADDRESS   a hard link to the record of its owner; if it exists, the address is leased
//!   last.FIRST          the last address allocated from the set whose first range starts at FIRST
//!   full.FIRST          the set was exhausted; its ranges at that time
//! ```
//!
//! One `link(2)`, which fails if the link exists, both leases an address and names its owner. So even without the lock,
//! no address could be leased twice.
//!
//! **Allocate**: choose under the lock, write `.new`, rename it to `owners/…`, then for each address set `last` and
//! link. **Release**: remove `full.*`, unlink the addresses that link to the record, then the record.
//!
//! The leftovers of a `kill -9`, by the step before it:
//!
//! | step | left | repaired by |
//! |---|---|---|
//! | `.new` written | a temporary file | the next allocation or release |
//! | record renamed | a record whose addresses are not all linked: the others are free | the owner's release or next allocation, or [`Store::release_all_but`] |
//! | `last` set | one address is skipped in this round | no repair needed |
//! | all linked | a lease whose owner may be dead | [`Store::release_all_but`] |
//! | some unlinked | a record that names the rest | the same release again |
//!
//! A record counts only for addresses that link to it, so an incomplete record cannot free another owner's address.
//! Nothing is synced: a power loss ends the pods too, and [`Store::release_all_but`] removes stale, torn and missing
//! leases, because it follows the links and not the contents.
//!
//! Addresses are allocated in turn, as in host-local: a released one is reused last. The search starts after the last
//! allocated address and checks one name for each leased address that it passes. So its cost depends on the utilization
//! u of the range, not on the number of leases: 1/(1-u) checks on average. An exhausted set is remembered until an
//! address is released. Garbage collection holds the lock while it removes leases (some 15 µs each); timeouts must
//! allow for that.

mod choose;
mod error;
mod owner;
mod request;
mod store;
mod store_dir;

pub use error::IpamError;
pub use owner::Owner;
pub use request::{requested_addresses, requested_texts};
pub use store::{AssignedAddress, Lease, Store};

/// The maximum number of addresses of one interface.
pub const MAX_ADDRESSES: usize = 64;

/// The maximum number of leases of a network.
pub const MAX_LEASES: usize = 4 * 1024 * 1024;
