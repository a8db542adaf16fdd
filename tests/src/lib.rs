//! The outside view: a harness that drives the programs as a user would type the commands, on real containers.
//!
//! May import the fixtures, the messages of the API, and nothing else of gantry: a test that shares code with what it
//! tests proves less. Start reading at [`Gantry`]; every test makes one, with a data directory of its own, and when it
//! goes out of scope all its pods are removed and [`Gantry::check_invariants`] looks for anything left behind
//! (DESIGN.md section 8). All tests may run at the same time. They need root; they use no network but loopback, unless
//! they ask for a [`Space`]: hosts of their own that are network namespaces.
//!
//! Waiting is always for a fact, with a deadline ([`wait_for`]); a test that sleeps instead is refused by
//! `tidy.rs`.

pub mod api;
pub mod appc;
mod authority;
mod binaries;
mod debian_registry;
pub mod faulty_registry;
mod gantry;
mod invariants;
pub mod net;
mod output;
mod proxy;
mod pty;
pub mod python;
mod running;
mod small_disk;
mod time;
mod wait;

pub use authority::{Authority, Issued, Validity};
pub use debian_registry::{DebianRegistry, PASSWORD, RegistryOptions, USER, write_index};
pub use gantry::{Gantry, app, pod_id};
pub use net::{NetworkNamespace, Space};
pub use output::{Out, json_lines};
pub use proxy::{Proxy, ProxyRules};
pub use pty::{Terminal, TerminalOutput};
pub use running::Running;
pub use rustix::process::Signal;
pub use small_disk::SmallDisk;
pub use time::{nanos, now_ns};
pub use wait::{DEADLINE, wait_for};
