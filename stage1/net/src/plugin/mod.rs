//! CNI plugins of others: running them, alone and in chains, and remembering what they did.
//!
//! [`Runtime`] does what the specification's verbs say ([`Runtime::add_list`] and its siblings); [`Cache`] keeps what ADD
//! was given and what it answered, because DEL and CHECK must be given the same again, however much later and whoever asks.
//!
//! A plugin is a program of somebody else that runs as root. It gets its variables and `PATH`, nothing else of our
//! environment; its configuration on stdin; and a deadline, after which its process group is killed. Of what it prints at most
//! [`MAX_OUTPUT`] bytes are taken, and nothing is believed that does not fit the specification. It is over when it
//! exits: a child that keeps its pipes open is not waited for. (A child that made a session of its own outlives the kill.)
//! It inherits what its callers do not close on exec: the locks by which those who come after a killed caller know that it
//! runs yet.
//!
//! Follows the CNI specification 1.1.0: section 2 (execution protocol), 3 (execution of network configurations), 5 (result
//! types) and the conventions document for `runtimeConfig` and `args`.

mod cache;
mod chain;
mod error;
mod exec;
mod find;
mod invoke;
mod result;

pub use cache::{Cache, CacheEntry};
pub use chain::Runtime;
pub use error::PluginError;
pub use invoke::Attachment;
pub use result::{Address, Interface, NetworkResult};

/// The most bytes of a plugin's stdout.
pub const MAX_OUTPUT: usize = 1024 * 1024;

/// The most bytes of a plugin's stderr that are kept for the error; the rest is read and dropped.
pub const MAX_STDERR: usize = 4096;
