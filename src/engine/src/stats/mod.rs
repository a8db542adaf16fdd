//! The resource usage of running pods and apps.
//!
//! | module | contents |
//! |---|---|
//! | `sampler` | [`Sampler`]: counters of cgroups and interfaces, for `gantry stats` and for gantryd |
//! | `cache` | [`SampleCache`]: the samples that gantryd takes, shared by its surfaces |
//! | `disk` | the disk usage of apps and volumes, counted in the background |
//! | `processes` | [`ProcessInfo`]: the processes of a pod |

mod cache;
mod disk;
mod processes;
mod sampler;

pub use cache::{SampleCache, SampleError, SampleSet, SampledPod, SampledVolume};
pub use disk::DiskTarget;
pub use processes::{ProcessInfo, list_processes};
pub use sampler::{CounterSelection, SampleScope, Sampler};
