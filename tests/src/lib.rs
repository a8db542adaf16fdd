//! The outside tests' harness: it runs the programs on real containers with the commands that a user would type.
//!
//! It may import the fixtures, the messages of the API, and nothing else of gantry: a test that shares code with its
//! subject proves less. Start reading at [`Gantry`]. Every test makes one, with a data directory of its own; dropping
//! it removes all its pods, and [`Gantry::check_invariants`] looks for leftovers (ARCHITECTURE.md, Invariants). All
//! tests may run at the same time. They need root. They use only the loopback network, or a [`Space`]: hosts that are
//! network namespaces.
//!
//! Tests wait for facts, with a deadline ([`wait_for`]); `tidy` refuses a test that sleeps. Where a time itself is
//! tested, such as the moment of a kill, it passes in [`let_pass`].

pub mod api;
pub mod appc;
pub mod aurae;
mod authority;
mod binaries;
pub mod cri;
mod debian_registry;
mod debian_systemd;
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
pub mod streaming;
pub mod talos;
mod time;
pub mod tls_client;
mod wait;

pub use authority::{Authority, Issued, Validity};
pub use binaries::install_program;
pub use debian_registry::{DebianRegistry, PASSWORD, RegistryOptions, USER, write_index};
pub use debian_systemd::systemd_image;
pub use gantry::{Gantry, app, pod_id};
pub use net::{NetworkNamespace, Space};
pub use output::{Out, json_lines};
pub use proxy::{Proxy, ProxyRules};
pub use pty::{Terminal, TerminalOutput};
pub use running::Running;
pub use rustix::process::Signal;
pub use small_disk::SmallDisk;
pub use time::{nanos, now_ns};
pub use wait::{DEADLINE, let_pass, wait_for};
