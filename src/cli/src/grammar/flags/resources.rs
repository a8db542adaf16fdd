//! Flags of an app: resource limits.

use super::Scope::App;
use gantry_model::spec::DeviceIoRate;

use super::{Flag, valued};
use crate::grammar::draft::Draft;
use crate::grammar::values::{self, ValueError};

/// Resource limits.
pub(super) static FLAGS: &[Flag] = &[
    valued(App, &["memory"], "BYTES", "Memory limit: 512k, 64m, 1.5GiB, in powers of 1024; 0: none", |d, v| {
        d.app().options.limits.memory = values::memory_limit(v)?;
        Ok(())
    })
    .short('m'),
    valued(
        App,
        &["memory-swap"],
        "BYTES",
        "Limit of memory and swap together; -1: none; 0: no swap with --memory, the default",
        |d, v| {
            d.app().options.limits.memory_swap = values::memory_swap(v)?;
            Ok(())
        },
    ),
    valued(
        App,
        &["memory-high"],
        "BYTES",
        "Memory above which the app is slowed down and its memory reclaimed (cgroup v2); 0: none",
        |d, v| {
            d.app().options.limits.memory_high = values::memory_limit(v)?;
            Ok(())
        },
    ),
    valued(
        App,
        &["memory-reservation"],
        "BYTES",
        "Memory that is reclaimed last when the host is short of memory; 0: none",
        |d, v| {
            d.app().options.limits.memory_reservation = values::memory_limit(v)?;
            Ok(())
        },
    ),
    valued(App, &["cpu", "cpus"], "CORES", "CPU limit in cores: 2, 0.5 or 500m; 0: none", |d, v| {
        d.app().options.limits.cpu_milli = values::cpu_limit(v)?;
        Ok(())
    }),
    valued(
        App,
        &["cpu-quota"],
        "MICROSECONDS",
        "CPU time per --cpu-period, in place of --cpus; 0 or -1: none",
        |d, v| {
            d.app().options.limits.cpu_quota = values::cpu_quota(v)?;
            Ok(())
        },
    ),
    valued(
        App,
        &["cpu-period"],
        "MICROSECONDS",
        "Period of the CPU limit, 1000 to 1000000; 0: the default of 100000",
        |d, v| {
            d.app().options.limits.cpu_period = values::limit(v, "a number of microseconds")?;
            Ok(())
        },
    ),
    valued(App, &["cpuset-cpus"], "LIST", "Processors that the app may use: 0-3,5; empty: all", |d, v| {
        d.app().options.limits.cpuset_cpus = values::cpuset(v)?;
        Ok(())
    }),
    valued(App, &["cpuset-mems"], "LIST", "Memory nodes that the app may use: 0,1; empty: all", |d, v| {
        d.app().options.limits.cpuset_mems = values::cpuset(v)?;
        Ok(())
    }),
    valued(App, &["cpu-shares"], "N", "Relative CPU weight, 2 to 262144; 0: the default", |d, v| {
        d.app().options.limits.cpu_shares = values::limit(v, "a number of shares")?;
        Ok(())
    }),
    valued(App, &["pids-limit"], "N", "Limit of processes and threads (default 4096); 0 or -1: none", |d, v| {
        d.app().options.limits.pids = Some(values::pids_limit(v)?);
        Ok(())
    }),
    valued(
        App,
        &["storage-limit"],
        "BYTES",
        "Limit of the writable layer and the logs together: 512Mi, 10Gi (needs project quotas)",
        |d, v| {
            d.app().options.storage_limit = Some(gantry_model::quantity::memory(v)?);
            Ok(())
        },
    ),
    valued(
        App,
        &["io-weight"],
        "N",
        "Relative weight of input and output, 1 to 10000; 0: the default of 100",
        |d, v| {
            d.app().options.limits.io_weight = values::limit(v, "a weight")?;
            Ok(())
        },
    ),
    valued(App, &["blkio-weight"], "N", "The same, as docker's weight of 10 to 1000; 0: the default", |d, v| {
        d.app().options.limits.io_weight = values::blkio_weight(v)?;
        Ok(())
    }),
    valued(App, &["device-read-bps"], "PATH:BYTES", "Limit of bytes read per second from a block device", |d, v| {
        set_io(d, v, DeviceIoRate::ReadBps)
    }),
    valued(App, &["device-write-bps"], "PATH:BYTES", "Limit of bytes written per second to a block device", |d, v| {
        set_io(d, v, DeviceIoRate::WriteBps)
    }),
    valued(App, &["device-read-iops"], "PATH:N", "Limit of read operations per second of a block device", |d, v| {
        set_io(d, v, DeviceIoRate::ReadIops)
    }),
    valued(App, &["device-write-iops"], "PATH:N", "Limit of write operations per second of a block device", |d, v| {
        set_io(d, v, DeviceIoRate::WriteIops)
    }),
    valued(App, &["hugetlb-limit"], "SIZE=BYTES", "Limit of memory in huge pages of this size: 2MB=64Mi", |d, v| {
        let (size, bytes) = values::hugetlb_limit(v)?;
        d.app().options.limits.hugetlb.insert(size, bytes);
        Ok(())
    }),
    valued(
        App,
        &["cgroup-conf"],
        "FILE=VALUE",
        "Write a value to a file of the app's cgroup (cgroup v2), such as memory.oom.group=1; after all other limits",
        |d, v| {
            let (file, value) = values::pair(v)?;
            d.app().options.limits.unified.insert(file.parse()?, value);
            Ok(())
        },
    ),
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

fn set_io(draft: &mut Draft<'_>, value: &str, rate: DeviceIoRate) -> Result<(), ValueError> {
    let (path, limit) = values::device_rate(value, rate)?;
    *draft.app().options.limits.io_device(&path).rate(rate) = Some(limit);
    Ok(())
}
