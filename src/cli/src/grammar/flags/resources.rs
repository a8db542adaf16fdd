//! Flags of an app: resource limits.

use super::Scope::App;
use super::{Flag, valued};
use crate::grammar::values;

/// Resource limits.
pub(super) static FLAGS: &[Flag] = &[
    valued(App, &["memory"], "BYTES", "Memory limit: 64Mi, 50M, 1Gi", |d, v| {
        d.app().options.limits.memory = Some(gantry_model::quantity::memory(v)?);
        Ok(())
    })
    .short('m'),
    valued(
        App,
        &["memory-swap"],
        "BYTES",
        "Limit of memory and swap together; -1: none (default: no swap with --memory)",
        |d, v| {
            d.app().options.limits.memory_swap = Some(values::memory_swap(v)?);
            Ok(())
        },
    ),
    valued(App, &["cpu", "cpus"], "CORES", "CPU limit in cores: 2, 0.5 or 500m", |d, v| {
        d.app().options.limits.cpu_milli = Some(gantry_model::quantity::millicpu(v)?);
        Ok(())
    }),
    valued(App, &["cpu-shares"], "N", "Relative CPU weight, 2 to 262144", |d, v| {
        d.app().options.limits.cpu_shares = Some(values::number(v, "a number of shares")?);
        Ok(())
    }),
    valued(App, &["pids-limit"], "N", "Limit of processes and threads (default 4096; 0: none)", |d, v| {
        d.app().options.limits.pids = Some(values::number(v, "a number of processes")?);
        Ok(())
    }),
    valued(
        App,
        &["ulimit"],
        "NAME=SOFT[:HARD]",
        "Resource limit of each process, as in setrlimit(2): nofile, nproc, core, memlock, stack …; -1: none",
        |d, v| {
            d.app().options.set_ulimit(v.parse()?);
            Ok(())
        },
    ),
    valued(App, &["oom-score-adj", "oom-score-adjust"], "N", "Score for the OOM killer, -1000 to 1000", |d, v| {
        d.app().options.oom_score_adj = Some(values::number(v, "a number from -1000 to 1000")?);
        Ok(())
    }),
];
