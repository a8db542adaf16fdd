//! The resource usage of running pods and apps.
//!
//! | module | contents |
//! |---|---|
//! | `sampler` | [`Sampler`]: counters of cgroups and interfaces, for `gantry stats` and for gantryd |
//! | `held` | the files of a cgroup that are held open, and which of them a sample reads |
//! | `cache` | [`SampleCache`]: the samples that gantryd takes, shared by its surfaces |
//! | `rates` | [`CpuRates`]: the CPU time per second, from kept samples |
//! | `details` | [`AppDetails`]: open files and others, read on request |
//! | `disk` | the disk usage of apps and volumes, counted in the background |
//! | `running` | a sample of all running pods without their apps |
//! | `processes` | [`ProcessInfo`]: the processes of a pod |

mod cache;
mod details;
mod disk;
mod held;
mod processes;
mod rates;
mod running;
mod sampler;

pub use cache::{SampleCache, SampleError, SampleSet, SampledPod, SampledVolume};
pub use details::{AppDetails, FileSystemSpace, PodDetails, read_details};
pub use disk::DiskTarget;
pub use processes::{ProcessInfo, list_processes};
pub use rates::CpuRates;
pub use sampler::{CounterSelection, SampleScope, Sampler};
