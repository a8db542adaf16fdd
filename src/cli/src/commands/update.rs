//! `gantry update`.

use gantry_model::AppName;
use gantry_model::spec::{CpusetList, DeviceIoRate, LimitChange};
use std::io::Write as _;

use crate::commands::RunCommand;
use crate::commands::app::AppSet;
use crate::context::Context;
use crate::exit::ExitStatus;
use crate::failure::{self, Failure};
use crate::grammar::limit_values as values;
use crate::pods;
use crate::render::json;
use crate::targets;

/// Arguments of `update`.
#[derive(Debug, clap::Args)]
pub(crate) struct Update {
    #[command(flatten)]
    apps: AppSet,
    /// Change the limits of the whole pod in place of an app's
    #[arg(long, conflicts_with = "app")]
    pod: bool,
    #[command(flatten)]
    changes: Box<Changes>,
}

/// The new limits. Those that are not given stay.
#[derive(Debug, clap::Args)]
struct Changes {
    /// Memory limit: 512k, 64m, 1.5GiB, in powers of 1024; 0: none
    #[arg(long, short, value_name = "BYTES", value_parser = |v: &str| bytes(v).map(LimitChange::Memory))]
    memory: Option<LimitChange>,
    /// Limit of memory and swap together; -1: none; 0: no swap with --memory
    #[arg(long, value_name = "BYTES", value_parser = memory_swap, allow_negative_numbers = true)]
    memory_swap: Option<LimitChange>,
    /// Memory above which the app is slowed down and its memory reclaimed (cgroup v2); 0: none
    #[arg(long, value_name = "BYTES", value_parser = |v: &str| bytes(v).map(LimitChange::MemoryHigh))]
    memory_high: Option<LimitChange>,
    /// Memory that is reclaimed last when the host is short of memory; 0: none
    #[arg(long, value_name = "BYTES", value_parser = |v: &str| bytes(v).map(LimitChange::MemoryReservation))]
    memory_reservation: Option<LimitChange>,
    /// CPU limit in cores: 2, 0.5 or 500m; 0: none
    #[arg(long, alias = "cpu", value_name = "CORES", value_parser = cpus)]
    cpus: Option<LimitChange>,
    /// CPU time per --cpu-period in microseconds, in place of --cpus; 0 or -1: none
    #[arg(long, value_name = "MICROSECONDS", allow_negative_numbers = true, value_parser = cpu_quota)]
    cpu_quota: Option<LimitChange>,
    /// Period of the CPU limit in microseconds; 0: the default of 100000
    #[arg(long, value_name = "MICROSECONDS", value_parser = |v: &str| number(v).map(LimitChange::CpuPeriod))]
    cpu_period: Option<LimitChange>,
    /// Relative CPU weight, 2 to 262144; 0: the default of 1024
    #[arg(long, value_name = "N", value_parser = |v: &str| number(v).map(LimitChange::CpuShares))]
    cpu_shares: Option<LimitChange>,
    /// Processors that the app may use: 0-3,5; empty: all of the pod's
    #[arg(long, value_name = "LIST", value_parser = |v: &str| list(v).map(LimitChange::CpusetCpus))]
    cpuset_cpus: Option<LimitChange>,
    /// Memory nodes that the app may use: 0,1; empty: all of the pod's
    #[arg(long, value_name = "LIST", value_parser = |v: &str| list(v).map(LimitChange::CpusetMems))]
    cpuset_mems: Option<LimitChange>,
    /// Limit of processes and threads; 0 or -1: none
    #[arg(long, value_name = "N", value_parser = pids, allow_negative_numbers = true)]
    pids_limit: Option<LimitChange>,
    /// Relative weight of input and output, 1 to 10000; 0: the default of 100
    #[arg(long, value_name = "N", value_parser = |v: &str| number(v).map(LimitChange::IoWeight))]
    io_weight: Option<LimitChange>,
    /// The same, as docker's weight of 10 to 1000; 0: the default
    #[arg(long, value_name = "N", conflicts_with = "io_weight", value_parser = blkio_weight)]
    blkio_weight: Option<LimitChange>,
    /// Limit of bytes read per second from a block device; 0: none
    #[arg(long, value_name = "PATH:BYTES", value_parser = |v: &str| io_rate(v, DeviceIoRate::ReadBps))]
    device_read_bps: Vec<LimitChange>,
    /// Limit of bytes written per second to a block device; 0: none
    #[arg(long, value_name = "PATH:BYTES", value_parser = |v: &str| io_rate(v, DeviceIoRate::WriteBps))]
    device_write_bps: Vec<LimitChange>,
    /// Limit of read operations per second of a block device; 0: none
    #[arg(long, value_name = "PATH:N", value_parser = |v: &str| io_rate(v, DeviceIoRate::ReadIops))]
    device_read_iops: Vec<LimitChange>,
    /// Limit of write operations per second of a block device; 0: none
    #[arg(long, value_name = "PATH:N", value_parser = |v: &str| io_rate(v, DeviceIoRate::WriteIops))]
    device_write_iops: Vec<LimitChange>,
    /// Limit of memory in huge pages of this size: 2MB=64Mi; -1: none
    #[arg(long, value_name = "SIZE=BYTES", value_parser = hugetlb_limit)]
    hugetlb_limit: Vec<LimitChange>,
}

impl Changes {
    fn list(&self) -> Vec<LimitChange> {
        let Self {
            memory,
            memory_swap,
            memory_high,
            memory_reservation,
            cpus,
            cpu_quota,
            cpu_period,
            cpu_shares,
            cpuset_cpus,
            cpuset_mems,
            pids_limit,
            io_weight,
            blkio_weight,
            device_read_bps,
            device_write_bps,
            device_read_iops,
            device_write_iops,
            hugetlb_limit,
        } = self;
        let single = [
            memory,
            memory_swap,
            memory_high,
            memory_reservation,
            cpus,
            cpu_quota,
            cpu_period,
            cpu_shares,
            cpuset_cpus,
            cpuset_mems,
            pids_limit,
            io_weight,
            blkio_weight,
        ];
        let repeated = [device_read_bps, device_write_bps, device_read_iops, device_write_iops, hugetlb_limit];
        single.into_iter().flatten().chain(repeated.into_iter().flatten()).cloned().collect()
    }
}

/// Changes limits while the apps run.
impl RunCommand for Update {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let changes = self.changes.list();
        if changes.is_empty() {
            return Err(Failure::usage("name a limit to change, such as --memory=1g"));
        }
        let engine = context.open("update")?;
        let update = |id, app: Option<&AppName>| -> Result<(), Failure> {
            engine.update_limits(id, app, &changes)?.iter().for_each(|warning| failure::warn(warning));
            Ok(())
        };
        if !self.pod {
            return self.apps.for_each(context, &engine, |id, app| update(id, Some(app)));
        }
        let find = |pod: &str| match pod.contains('/') {
            true => Err(Failure::usage("--pod changes the limits of a whole pod: leave out the app")),
            false => pods::find(&engine, pod),
        };
        Ok(targets::for_each(context, &engine, self.apps.words(), find, &mut |id| {
            update(id, None)?;
            json::to_stdout(|out| writeln!(out, "{id}"))?;
            Ok(ExitStatus::OK)
        }))
    }
}

fn number(text: &str) -> Result<Option<u64>, String> {
    values::limit(text, "a whole number").map_err(values::message)
}

fn cpu_quota(text: &str) -> Result<LimitChange, String> {
    values::cpu_quota(text).map(LimitChange::CpuQuota).map_err(values::message)
}

fn bytes(text: &str) -> Result<Option<u64>, String> {
    values::memory_limit(text).map_err(values::message)
}

fn memory_swap(text: &str) -> Result<LimitChange, String> {
    values::memory_swap(text).map(LimitChange::MemorySwap).map_err(values::message)
}

fn cpus(text: &str) -> Result<LimitChange, String> {
    values::cpu_limit(text).map(LimitChange::Cpus).map_err(values::message)
}

fn pids(text: &str) -> Result<LimitChange, String> {
    values::pids_limit(text).map(|pids| LimitChange::Pids(Some(pids))).map_err(values::message)
}

fn list(text: &str) -> Result<Option<CpusetList>, String> {
    values::cpuset(text).map_err(values::message)
}

fn blkio_weight(text: &str) -> Result<LimitChange, String> {
    values::blkio_weight(text).map(LimitChange::IoWeight).map_err(values::message)
}

fn io_rate(text: &str, rate: DeviceIoRate) -> Result<LimitChange, String> {
    let (path, limit) = values::device_rate(text, rate).map_err(values::message)?;
    Ok(LimitChange::Io(rate, path, Some(limit).filter(|limit| *limit > 0)))
}

fn hugetlb_limit(text: &str) -> Result<LimitChange, String> {
    if let Some(size) = text.strip_suffix("=-1") {
        return Ok(LimitChange::Hugetlb(size.parse().map_err(|error| format!("{error}"))?, None));
    }
    let (size, bytes) = values::hugetlb_limit(text).map_err(values::message)?;
    Ok(LimitChange::Hugetlb(size, Some(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_removes_a_limit() {
        assert_eq!(bytes("64m"), Ok(Some(64 << 20)));
        assert_eq!((bytes("0"), number("0")), (Ok(None), Ok(None)));
        assert_eq!(cpus("0"), Ok(LimitChange::Cpus(None)));
        assert_eq!(pids("0"), Ok(LimitChange::Pids(Some(0))));
        assert_eq!(memory_swap("-1"), Ok(LimitChange::MemorySwap(Some(-1))));
        assert_eq!(
            io_rate("/dev/sda:0", DeviceIoRate::ReadBps),
            Ok(LimitChange::Io(DeviceIoRate::ReadBps, "/dev/sda".into(), None))
        );
        assert_eq!((cpu_quota("-1"), pids("-1")), (Ok(LimitChange::CpuQuota(None)), Ok(LimitChange::Pids(Some(0)))));
        assert!(number("-1").is_err() && bytes("much").is_err() && io_rate("sda:1", DeviceIoRate::ReadBps).is_err());
    }
}
