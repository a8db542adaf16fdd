//! Which pod has which address: host-local's rules, kept by several supervisors at once.
//!
//! A [`Store`] is a directory for one network. Nothing is kept in memory, and nothing is read that grows with the number
//! of leases:
//!
//! ```text
//! NETWORK/              0700
//!   format              "gantry-leases 1\n": the version of this layout
//!   lock                flock: exclusive for every change
//!   owners/POD:IFNAME   a record: the addresses of one interface of a pod, one to a line
//!   owners/.new         a record being written
//!   addresses/ADDRESS   a hard link to the record of its owner; existing means taken
//!   last.FIRST          the address given last from the set whose first range starts at FIRST
//!   full.FIRST          there was nothing left of that set; the ranges that were looked through
//! ```
//!
//! That an address is taken and by whom is one fact, made by one `link(2)`, which fails when it exists: even without the
//! lock no address could be given twice.
//!
//! **Giving**: choose under the lock, write `.new`, rename it to `owners/…`, then for each address set `last` and link.
//! **Taking back**: remove `full.*`, unlink the addresses that link to the record, then the record.
//!
//! What a `kill -9` leaves, by the step before it:
//!
//! | step | left | who repairs it |
//! |---|---|---|
//! | `.new` written | a file that means nothing | the next giver, or [`Store::release_all_but`], removes it |
//! | record renamed | a record whose addresses are not, or not all, linked: they are free to others | the owner's release, [`Store::release_all_but`], or the owner's next allocation |
//! | `last` set | one address is passed over in this round | nobody needs to |
//! | all linked | a lease whose owner may be dead | [`Store::release_all_but`] |
//! | some unlinked | a record that names the rest | the same release again |
//!
//! A record speaks only for addresses that link to it, so a half-made one cannot free another's address. Nothing is
//! synced: a power loss ends the pods too, and what it leaves of their leases (stale, torn or missing) is swept by
//! [`Store::release_all_but`], which goes by links and not by contents.
//!
//! Addresses are given in turn, as host-local does: a freed one comes again last. The search begins after the address
//! given last and looks at one name for each taken address it passes, so its cost depends on how full a range is, not on
//! how many leases there are: 1/(1-u) looks on average at utilisation u. A full set is remembered until something is freed.
//! A sweep holds the lock while it removes (some 15 µs a lease); who waits for the lock should allow for that.

mod asked;
mod choose;
mod dirs;
mod error;
mod owner;
mod store;

pub use asked::asked_for;
pub use error::IpamError;
pub use owner::Owner;
pub use store::{Assigned, Lease, Store};

/// How many addresses one interface may have.
pub const MAX_ADDRESSES: usize = 64;

/// How many leases of one network are listed or swept.
pub const MAX_LEASES: usize = 4 * 1024 * 1024;
