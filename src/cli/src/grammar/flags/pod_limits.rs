//! Flags of the pod: limits of all its apps together.

use super::Scope::Pod;
use super::{Flag, valued};
use crate::grammar::values;

/// Limits of the pod's cgroup.
pub(super) static FLAGS: &[Flag] = &[
    valued(Pod, &["pod-memory"], "BYTES", "Memory limit of the whole pod; 0: none", |d, v| {
        d.pod.limits.memory = values::memory_limit(v)?;
        Ok(())
    })
    .in_manifest(),
    valued(
        Pod,
        &["pod-memory-swap"],
        "BYTES",
        "Limit of memory and swap of the whole pod; -1: none; 0: no swap, the default",
        |d, v| {
            d.pod.limits.memory_swap = values::memory_swap(v)?;
            Ok(())
        },
    )
    .in_manifest(),
    valued(
        Pod,
        &["pod-memory-high"],
        "BYTES",
        "Memory above which the whole pod is slowed down (cgroup v2); 0: none",
        |d, v| {
            d.pod.limits.memory_high = values::memory_limit(v)?;
            Ok(())
        },
    )
    .in_manifest(),
    valued(Pod, &["pod-cpus"], "CORES", "CPU limit of the whole pod in cores; 0: none", |d, v| {
        d.pod.limits.cpu_milli = values::cpu_limit(v)?;
        Ok(())
    })
    .in_manifest(),
    valued(
        Pod,
        &["pod-cpu-shares"],
        "N",
        "Relative CPU weight of the whole pod, 2 to 262144; 0: the default",
        |d, v| {
            d.pod.limits.cpu_shares = values::limit(v, "a number of shares")?;
            Ok(())
        },
    )
    .in_manifest(),
    valued(Pod, &["pod-cpuset-cpus"], "LIST", "Processors that the whole pod may use: 0-3,5; empty: all", |d, v| {
        d.pod.limits.cpuset_cpus = values::cpuset(v)?;
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["pod-cpuset-mems"], "LIST", "Memory nodes that the whole pod may use: 0,1; empty: all", |d, v| {
        d.pod.limits.cpuset_mems = values::cpuset(v)?;
        Ok(())
    })
    .in_manifest(),
    valued(
        Pod,
        &["pod-pids-limit"],
        "N",
        "Limit of processes and threads of the whole pod, with PID 1 and the supervisor; 0 or -1: none (default)",
        |d, v| {
            d.pod.limits.pids = Some(values::pids_limit(v)?);
            Ok(())
        },
    )
    .in_manifest(),
    valued(
        Pod,
        &["pod-io-weight"],
        "N",
        "Relative weight of the whole pod's input and output, 1 to 10000; 0: the default",
        |d, v| {
            d.pod.limits.io_weight = values::limit(v, "a weight")?;
            Ok(())
        },
    )
    .in_manifest(),
];
