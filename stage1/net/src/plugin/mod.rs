//! Runs CNI plugins, alone and in chains, and caches their results.
//!
//! [`Runtime`] implements the operations of the specification ([`Runtime::add_list`] and others). [`Cache`] keeps the
//! input and the result of ADD, because DEL and CHECK need the same again, possibly much later and from another
//! process.
//!
//! A plugin is a third-party program that runs as root. It gets its variables and `PATH` but no other part of the
//! environment, its configuration on stdin, and a timeout, after which its process group is killed. At most
//! [`MAX_OUTPUT`] bytes of its output are read, and its result is validated. It has ended when its process exits, even
//! if a child keeps its pipes open. (A child in a session of its own survives the kill.) It inherits the
//! locks of its caller (descriptors without close-on-exec): while it runs they are held, even if the caller was killed.
//!
//! Follows the CNI specification 1.1.0: section 2 (execution protocol), 3 (execution of network configurations), 5
//! (result types) and the conventions document for `runtimeConfig` and `args`.

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
pub(crate) use find::is_installed;
pub use invoke::Attachment;
pub use result::{Address, Interface, NetworkResult};

/// The maximum size of a plugin's output on stdout, in bytes.
pub const MAX_OUTPUT: usize = 1024 * 1024;

/// The part of a plugin's stderr that is kept for the error, in bytes; the rest is read and dropped.
pub const MAX_STDERR: usize = 4096;
