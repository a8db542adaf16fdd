//! The resource usage of running pods and apps.
//!
//! | module | contents |
//! |---|---|
//! | `sampler` | [`Sampler`]: counters of cgroups and interfaces, for `gantry stats` and for gantryd |
//! | `processes` | [`ProcessInfo`]: the processes of a pod |

mod processes;
mod sampler;

pub use processes::{ProcessInfo, list_processes};
pub use sampler::{SampleScope, Sampler};
