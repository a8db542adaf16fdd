//! Sets the limits of an app or of the pod in its cgroups, and changes them while it runs.
//!
//! A limit that this host cannot set (the controller is not mounted or not enabled, the kernel lacks the file, or the
//! host forbids writing it) is no failure but a warning, one per cause. A value that the kernel refuses is a failure.
//! A change is complete or not made: after a failure, the former limits are set again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use gantry_contract::plan::Plan;
use gantry_host::cgroup::{Cgroup, CgroupSet, ReadCounters as _};
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::spec::{CgroupFile, DEFAULT_CPU_PERIOD, DEFAULT_PIDS_LIMIT, DeviceIoLimits, Limits};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::failure::{Attempt, Result, failure};

/// The weight of input and output of a cgroup for which none is set (kernel: `CGROUP_WEIGHT_DFL`).
const DEFAULT_IO_WEIGHT: u64 = 100;
/// The kernel's default of `cpu.shares`.
const DEFAULT_CPU_SHARES: u64 = 1024;

/// The name of the controller of input and output on v1; on v2 it is `io`.
const IO_CONTROLLER: &str = "blkio";

/// The numbers (major, minor) of the block devices in limits, by the path on the host.
pub(crate) type BlockDevices = BTreeMap<String, (u32, u32)>;

/// The owner of a cgroup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitsOwner {
    App,
    Pod,
}

/// A limit that has no effect on this host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IneffectiveLimit {
    /// The cause.
    cause: String,
    /// Its flag.
    flag: &'static str,
}

impl IneffectiveLimit {
    /// The limit of a flag.
    pub(crate) fn new(flag: &'static str, cause: String) -> Self {
        Self { cause, flag }
    }
}

/// The warnings about limits that have no effect: one per cause.
pub(crate) fn warnings(ineffective: &[IneffectiveLimit]) -> Vec<String> {
    let mut flags: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for limit in ineffective {
        flags.entry(&limit.cause).or_default().insert(limit.flag);
    }
    let warning = |(cause, flags): (&str, BTreeSet<&str>)| {
        let (have, flags) = (if flags.len() == 1 { "has" } else { "have" }, Vec::from_iter(flags).join(", "));
        format!("{flags} {have} no effect: {cause}")
    };
    flags.into_iter().map(warning).collect()
}

/// Values for files of one controller.
struct Setting {
    flag: &'static str,
    controller: Cow<'static, str>,
    /// Files and values of v1, in the order in which they are written; empty if v1 has no such limit.
    v1: Vec<(String, String)>,
    /// The same of v2.
    v2: Vec<(String, String)>,
    /// Whether one of the files is enough: which of them the kernel has depends on its configuration.
    is_any: bool,
    /// Whether the absence of the controller is no cause for a warning.
    is_default: bool,
}

impl Setting {
    fn new(flag: &'static str, controller: &'static str, v1: &[(&str, &str)], v2: &[(&str, &str)]) -> Self {
        let own = |files: &[(&str, &str)]| -> Vec<(String, String)> {
            files.iter().map(|&(file, value)| (file.to_owned(), value.to_owned())).collect()
        };
        Self { flag, controller: controller.into(), v1: own(v1), v2: own(v2), is_any: false, is_default: false }
    }
}

/// Whether a limit has to be written: it is given, or it is another one than before.
fn differs<T: PartialEq>(new: &T, old: Option<&T>, none: &T) -> bool {
    old.map_or(new != none, |old| new != old)
}

/// The settings of all limits but memory and swap that differ from the old ones. Without old limits, those that are
/// given.
fn settings(new: &Limits, old: Option<&Limits>, devices: &BlockDevices, owner: LimitsOwner) -> Result<Vec<Setting>> {
    let mut all = Vec::new();
    if differs(&new.memory_high, old.map(|old| &old.memory_high), &None) {
        all.push(memory_high(new));
    }
    if differs(&new.memory_reservation, old.map(|old| &old.memory_reservation), &None) {
        let v1 = new.memory_reservation.map_or("-1".to_owned(), |bytes| bytes.to_string());
        let v2 = new.memory_reservation.unwrap_or(0).to_string();
        let (v1, v2) = ([("memory.soft_limit_in_bytes", &*v1)], [("memory.low", &*v2)]);
        all.push(Setting::new("--memory-reservation", "memory", &v1, &v2));
    }
    all.extend(cpu_bandwidth(new, old));
    if differs(&new.cpu_shares, old.map(|old| &old.cpu_shares), &None) {
        let shares = new.cpu_shares.unwrap_or(DEFAULT_CPU_SHARES);
        let weight = new.cpu_shares.map_or(100, weight);
        let (v1, v2) = ([("cpu.shares", &*shares.to_string())], [("cpu.weight", &*weight.to_string())]);
        all.push(Setting::new("--cpu-shares", "cpu", &v1, &v2));
    }
    for (flag, file, new, old) in [
        ("--cpuset-cpus", "cpuset.cpus", &new.cpuset_cpus, old.map(|old| &old.cpuset_cpus)),
        ("--cpuset-mems", "cpuset.mems", &new.cpuset_mems, old.map(|old| &old.cpuset_mems)),
    ] {
        if differs(new, old, &None) {
            let list = new.as_ref().map(ToString::to_string).unwrap_or_default();
            all.push(Setting::new(flag, "cpuset", &[(file, &list)], &[(file, &list)]));
        }
    }
    all.extend(pids(new, old, owner));
    if differs(&new.io_weight, old.map(|old| &old.io_weight), &None) {
        let weight = new.io_weight.unwrap_or(DEFAULT_IO_WEIGHT);
        let v1 = new.io_weight.map_or(DEFAULT_IO_WEIGHT, v1_io_weight).to_string();
        let weight = weight.to_string();
        let files_v1 = [("blkio.bfq.weight", &*v1), ("blkio.weight", &*v1)];
        let files_v2 = [("io.weight", &*weight), ("io.bfq.weight", &*v1)];
        let setting = Setting::new("--io-weight", IO_CONTROLLER, &files_v1, &files_v2);
        all.push(Setting { is_any: true, ..setting });
    }
    all.extend(io_devices(new, old, devices)?);
    let none = BTreeMap::new();
    let known = old.map_or(&none, |old| &old.hugetlb);
    for (size, limit) in new.hugetlb.iter().filter(|(size, limit)| known.get(size) != Some(*limit)) {
        let (v1, v2) = (format!("hugetlb.{size}.limit_in_bytes"), format!("hugetlb.{size}.max"));
        let limit = limit.to_string();
        all.push(Setting::new("--hugetlb-limit", "hugetlb", &[(&v1, &limit)], &[(&v2, &limit)]));
    }
    all.extend(unified(new, old));
    for size in known.keys().filter(|size| !new.hugetlb.contains_key(size)) {
        let (v1, v2) = (format!("hugetlb.{size}.limit_in_bytes"), format!("hugetlb.{size}.max"));
        all.push(Setting::new("--hugetlb-limit", "hugetlb", &[(&v1, "-1")], &[(&v2, "max")]));
    }
    Ok(all)
}

/// Files of v2 that are written as they are given. A value that is no longer given stays: what a file has by default
/// is the kernel's own matter.
fn unified(new: &Limits, old: Option<&Limits>) -> Vec<Setting> {
    let is_new = |file, value| old.is_none_or(|old| old.unified.get(file) != Some(value));
    let changed = new.unified.iter().filter(|(file, value)| is_new(*file, *value));
    let setting = |(file, value): (&CgroupFile, &String)| Setting {
        flag: "--cgroup-conf",
        controller: file.controller().to_owned().into(),
        v1: Vec::new(),
        v2: vec![(file.to_string(), value.clone())],
        is_any: false,
        is_default: false,
    };
    changed.map(setting).collect()
}

fn memory_high(new: &Limits) -> Setting {
    let high = new.memory_high.map_or("max".to_owned(), |bytes| bytes.to_string());
    Setting::new("--memory-high", "memory", &[], &[("memory.high", &high)])
}

fn cpu_bandwidth(new: &Limits, old: Option<&Limits>) -> Option<Setting> {
    let (limit, period) = (new.cpu_bandwidth(), new.cpu_period);
    if !differs(&(limit, period), old.map(|old| (old.cpu_bandwidth(), old.cpu_period)).as_ref(), &(None, None)) {
        return None;
    }
    let period = period.unwrap_or(DEFAULT_CPU_PERIOD).to_string();
    let quota = limit.map(|(quota, _)| quota.to_string());
    let (v1, v2) = (quota.as_deref().unwrap_or("-1"), quota.as_deref().unwrap_or("max"));
    let max = format!("{v2} {period}");
    let mut v1_files = vec![("cpu.cfs_quota_us", v1)];
    if old.is_some() || new.cpu_period.is_some() {
        // The kernel compares the ratio with the parent's at each write.
        v1_files.splice(0..0, [("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", &*period)]);
    }
    Some(Setting::new("--cpus", "cpu", &v1_files, &[("cpu.max", &max)]))
}

fn pids(new: &Limits, old: Option<&Limits>, owner: LimitsOwner) -> Option<Setting> {
    let effective = |limits: &Limits| match (limits.pids, owner) {
        (Some(pids), _) => pids,
        (None, LimitsOwner::App) => DEFAULT_PIDS_LIMIT,
        (None, LimitsOwner::Pod) => 0,
    };
    // A new cgroup has no limit.
    if !differs(&effective(new), old.map(effective).as_ref(), &0) {
        return None;
    }
    let max = match effective(new) {
        0 => "max".to_owned(),
        pids => pids.to_string(),
    };
    let file = [("pids.max", &*max)];
    // The default limit is not required: a kernel without the controller runs the pod anyway.
    Some(Setting { is_default: new.pids.is_none(), ..Setting::new("--pids-limit", "pids", &file, &file) })
}

fn io_devices(new: &Limits, old: Option<&Limits>, devices: &BlockDevices) -> Result<Vec<Setting>> {
    let unlimited = |device: &DeviceIoLimits| DeviceIoLimits { path: device.path.clone(), ..DeviceIoLimits::default() };
    let known = old.map_or(&[][..], |old| &old.io_devices);
    let removed = known.iter().filter(|old| new.io_devices.iter().all(|new| new.path != old.path)).map(unlimited);
    let changed = new.io_devices.iter().filter(|device| !known.contains(device)).cloned();
    let mut all = Vec::new();
    for device in changed.chain(removed) {
        let missing = || failure(ErrorKind::Invalid, format!("'{}' is not a block device", shown(&device.path)));
        let (major, minor) = devices.get(&device.path).ok_or_else(missing)?;
        let rates = [
            ("--device-read-bps", "read_bps", "rbps", device.read_bps),
            ("--device-write-bps", "write_bps", "wbps", device.write_bps),
            ("--device-read-iops", "read_iops", "riops", device.read_iops),
            ("--device-write-iops", "write_iops", "wiops", device.write_iops),
        ];
        for (flag, v1, v2, rate) in rates {
            if rate.is_none() && old.is_none() {
                continue;
            }
            let v1_value = format!("{major}:{minor} {}", rate.unwrap_or(0));
            let v2_rate = rate.map_or("max".to_owned(), |rate| rate.to_string());
            let v1 = format!("blkio.throttle.{v1}_device");
            let v2_value = format!("{major}:{minor} {v2}={v2_rate}");
            all.push(Setting::new(flag, IO_CONTROLLER, &[(&v1, &v1_value)], &[("io.max", &v2_value)]));
        }
    }
    Ok(all)
}

/// The v1 controllers that a pod's cgroups have only for these limits: each hierarchy that a process joins costs time.
pub(crate) fn extra_controllers(limits: &Limits) -> impl Iterator<Item = &'static str> {
    let cpuset = limits.cpuset_cpus.is_some() || limits.cpuset_mems.is_some();
    let is_unified = |name: &str| limits.unified.keys().any(|file| file.controller() == name);
    let hugetlb = !limits.hugetlb.is_empty() || is_unified("hugetlb");
    let cpuset = cpuset || is_unified("cpuset");
    cpuset.then_some("cpuset").into_iter().chain(hugetlb.then_some("hugetlb"))
}

/// The same for all limits of a plan.
pub(crate) fn extra_controllers_of_plan(plan: &Plan) -> Vec<&'static str> {
    let of_apps = plan.apps.iter().flat_map(|app| extra_controllers(&app.options.limits));
    BTreeSet::from_iter(of_apps.chain(extra_controllers(&plan.limits))).into_iter().collect()
}

/// Reads the numbers of the block devices in the limits of a plan.
pub(crate) fn read_block_devices(plan: &Plan) -> Result<BlockDevices> {
    let all = plan.apps.iter().map(|app| &app.options.limits).chain([&plan.limits]);
    all.flat_map(|limits| &limits.io_devices).map(|device| read_block_device(&device.path)).collect()
}

fn read_block_device(path: &str) -> Result<(String, (u32, u32))> {
    let what = || format!("cannot limit the input and output of '{}'", shown(path));
    let stat = rustix::fs::stat(path).attempt(what)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => {
            Ok((path.to_owned(), (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev))))
        }
        _ => Err(failure(ErrorKind::Invalid, format!("{}: it is not a block device", what()))),
    }
}

/// The cgroups of an app or of the pod, whose limits are set.
pub(crate) struct LimitedCgroup<'a> {
    pub(crate) cgroups: &'a CgroupSet,
    pub(crate) owner: LimitsOwner,
    pub(crate) devices: &'a BlockDevices,
}

impl LimitedCgroup<'_> {
    /// Sets the limits of new cgroups, which have none; returns those without effect.
    pub(crate) fn set(&self, limits: &Limits) -> Result<Vec<IneffectiveLimit>> {
        self.apply(limits, None)
    }

    /// Replaces the old limits, which are set, by the new ones; returns those without effect. After a failure, the old
    /// ones are set again.
    pub(crate) fn change(&self, old: &Limits, new: &Limits) -> Result<Vec<IneffectiveLimit>> {
        self.apply(new, Some(old)).inspect_err(|_| {
            // Each value was accepted before.
            let _former_limits = self.apply(old, Some(new));
        })
    }

    /// Whether a memory limit is lowered, so that the kernel may have to reclaim memory. The usage may grow until the
    /// limit is written, so it does not decide. Refuses a hard limit below the memory that cannot be reclaimed.
    pub(crate) fn needs_reclaim(&self, old: &Limits, new: &Limits) -> Result<bool> {
        let is_lower = |new: Option<u64>, old: Option<u64>| new.is_some_and(|new| old.is_none_or(|old| new < old));
        if let Some(limit) = new.memory.filter(|_| old.memory != new.memory) {
            self.check_memory(limit)?;
        }
        Ok(match self.cgroups.with_controller("memory") {
            None => false,
            Some(cgroup) if cgroup.is_v2() && is_lower(new.memory_high, old.memory_high) => true,
            Some(_) => is_lower(new.memory, old.memory),
        })
    }

    /// Sets the limits of memory and swap alone. Blocks while the kernel reclaims memory.
    pub(crate) fn lower_memory(&self, old: &Limits, new: &Limits) -> Result<()> {
        if (new.memory, new.memory_swap) != (old.memory, old.memory_swap) {
            self.set_memory(new.memory, new.memory_swap, &mut Vec::new())?;
        }
        if new.memory_high != old.memory_high {
            let _warned_later = self.write(&memory_high(new))?;
        }
        Ok(())
    }

    fn apply(&self, new: &Limits, old: Option<&Limits>) -> Result<Vec<IneffectiveLimit>> {
        let settings = settings(new, old, self.devices, self.owner)?;
        let mut ineffective = Vec::new();
        let memory = (new.memory, new.memory_swap);
        if differs(&memory, old.map(|old| (old.memory, old.memory_swap)).as_ref(), &(None, None)) {
            if let Some(limit) = new.memory.filter(|_| old.is_some()) {
                self.check_memory(limit)?;
            }
            self.set_memory(memory.0, memory.1, &mut ineffective)?;
        }
        for setting in &settings {
            if let Some(cause) = self.write(setting)?
                && !setting.is_default
            {
                ineffective.push(IneffectiveLimit { cause, flag: setting.flag });
            }
        }
        Ok(ineffective)
    }

    /// The cgroup that has a setting's controller. v2 names that of input and output otherwise.
    fn with_setting(&self, setting: &Setting) -> Option<&Cgroup> {
        let name = if setting.controller == "io" { IO_CONTROLLER } else { &setting.controller };
        self.cgroups.with_controller(name)
    }

    /// Writes a setting. Returns why it has no effect, if it has none.
    fn write(&self, setting: &Setting) -> Result<Option<String>> {
        let Some(cgroup) = self.with_setting(setting) else {
            return Ok(Some(absence(&setting.controller)));
        };
        let files = if cgroup.is_v2() { &setting.v2 } else { &setting.v1 };
        let mut cause = files.is_empty().then(|| format!("cgroup v1 has no such limit ({} needs v2)", setting.flag));
        let mut is_any_written = false;
        for (file, value) in files {
            match write_file(cgroup, file, value) {
                Ok(()) => is_any_written = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    cause = Some(absence_of_file(cgroup, &setting.controller, file));
                }
                Err(error) if is_forbidden(&error) => {
                    cause = Some(format!("the host does not permit writing {file} ({error})"));
                }
                Err(error) if setting.flag.starts_with("--cpuset-") && is_out_of_cpuset(&error) => {
                    let flag = &setting.flag;
                    let text = format!("{flag}: this host does not have all of '{value}'");
                    return Err(failure(ErrorKind::Invalid, text));
                }
                result => result.attempt(|| format!("cannot set {file} to '{value}' ({})", setting.flag))?,
            }
        }
        Ok(cause.filter(|_| !(setting.is_any && is_any_written)))
    }

    /// Refuses a limit below the memory that cannot be reclaimed: v2 would kill the processes, and v1 would try to
    /// reclaim for a long time before it refuses.
    fn check_memory(&self, limit: u64) -> Result<()> {
        let Ok(Some(usage)) = self.cgroups.memory_usage() else { return Ok(()) };
        let stat = self.cgroups.with_controller("memory").and_then(|cgroup| cgroup.read("memory.stat").ok());
        let key = |line: &str| line.strip_prefix("total_shmem ").or(line.strip_prefix("shmem ")).map(str::to_owned);
        // On v1, the line with the groups below it comes last.
        let shmem = stat.and_then(|stat| stat.lines().filter_map(key).next_back()?.parse().ok()).unwrap_or(0);
        let used = usage.current.saturating_sub(usage.file.saturating_sub(shmem));
        if used <= limit {
            return Ok(());
        }
        let why = format!("{used} bytes of its memory are in use and cannot be reclaimed");
        Err(failure(ErrorKind::Refused, format!("cannot lower the memory limit to {limit} bytes: {why}")))
    }

    /// Sets the limit of memory, and that of memory and swap together (-1: none). Without the latter, swap is
    /// forbidden: it would extend the memory limit. Kernels without swap accounting lack its files.
    fn set_memory(
        &self,
        memory: Option<u64>,
        with_swap: Option<i64>,
        ineffective: &mut Vec<IneffectiveLimit>,
    ) -> Result<()> {
        let limit = memory.map(|bytes| bytes.to_string());
        let (limit_v1, limit_v2) = (limit.as_deref().unwrap_or("-1"), limit.as_deref().unwrap_or("max"));
        let (v1, v2) = match (memory, with_swap.map(u64::try_from)) {
            (Some(bytes), None) => (bytes.to_string(), "0".to_owned()),
            (Some(bytes), Some(Ok(total))) => (total.to_string(), total.saturating_sub(bytes).to_string()),
            (None, _) | (_, Some(Err(_))) => ("-1".to_owned(), "max".to_owned()),
        };
        let limit_swap = || match self.cgroups.with_controller("memory") {
            Some(cgroup) if cgroup.is_v2() => cgroup.write("memory.swap.max", &v2),
            Some(cgroup) => cgroup.write("memory.memsw.limit_in_bytes", &v1),
            None => Ok(()),
        };
        // On v1, the kernel keeps the limit of memory below that of memory and swap together: a limit that is raised
        // comes after the other, one that is lowered before it.
        let raised = limit_swap().is_ok();
        let (v1, v2) = ([("memory.limit_in_bytes", limit_v1)], [("memory.max", limit_v2)]);
        if let Some(cause) = self.write(&Setting::new("--memory", "memory", &v1, &v2))? {
            ineffective.push(IneffectiveLimit { cause, flag: "--memory" });
            return Ok(());
        }
        if !raised
            && let Err(error) = limit_swap()
            && with_swap.is_some()
        {
            let cause = format!("this kernel does not account for swap ({error})");
            ineffective.push(IneffectiveLimit { cause, flag: "--memory-swap" });
        }
        Ok(())
    }
}

/// Writes a value. An empty one removes a restriction to processors or memory nodes.
fn write_file(cgroup: &Cgroup, file: &str, value: &str) -> io::Result<()> {
    match (value.is_empty(), cgroup.is_v2()) {
        (false, _) => cgroup.write(file, value),
        (true, true) => cgroup.write(file, "\n"),
        // A cgroup of v1 must have some.
        (true, false) => cgroup.write(file, cgroup.read(&format!("../{file}"))?.trim_end()),
    }
}

/// Whether the host lacks what was written to a cpuset: ERANGE beyond the greatest number that the kernel has, EINVAL
/// otherwise.
fn is_out_of_cpuset(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::RANGE | Errno::INVAL))
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

fn absence(controller: &str) -> String {
    format!("this host has no '{controller}' cgroup controller")
}

/// Why a cgroup lacks a file of a controller.
fn absence_of_file(cgroup: &Cgroup, controller: &str, file: &str) -> String {
    let name = if controller == IO_CONTROLLER { "io" } else { controller };
    let is_enabled = |text: String| text.split_ascii_whitespace().any(|enabled| enabled == name);
    if cgroup.is_v2() && !cgroup.read("cgroup.controllers").is_ok_and(is_enabled) {
        return absence(name);
    }
    format!("this kernel's '{name}' cgroup controller has no {file}")
}

/// cgroup v1 shares (2 to 262144) as a v2 weight (1 to 10000), as the kubelet and runc convert them.
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// A v2 weight of input and output (1 to 10000) as one of v1 and of BFQ (10 to 1000): the inverse of runc's conversion.
fn v1_io_weight(weight: u64) -> u64 {
    10 + ((weight.clamp(1, 10_000) - 1) * 990 + 9999 / 2) / 9999
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_weights() {
        for (shares, want) in [(2, 1), (1024, 39), (262_144, 10_000), (0, 1)] {
            assert_eq!(weight(shares), want, "{shares}");
        }
        for (weight, want) in [(1, 10), (10_000, 1000), (4950, 500), (11, 11)] {
            assert_eq!(v1_io_weight(weight), want, "{weight}");
        }
    }

    fn written(new: &Limits, old: Option<&Limits>) -> Vec<String> {
        let devices = BTreeMap::from([("/dev/sda".to_owned(), (8, 0))]);
        let all = settings(new, old, &devices, LimitsOwner::Pod).ok().unwrap();
        all.iter().flat_map(|setting| &setting.v2).map(|(file, value)| format!("{file}={value}")).collect()
    }

    #[test]
    fn only_limits_that_differ_are_written() {
        let none = Limits::default();
        assert!(written(&none, None).is_empty());
        let mut limits = Limits { cpu_milli: Some(500), pids: Some(7), ..Limits::default() };
        limits.io_device("/dev/sda").read_bps = Some(1000);
        assert_eq!(written(&limits, None), ["cpu.max=50000 100000", "pids.max=7", "io.max=8:0 rbps=1000"]);
        assert!(written(&limits, Some(&limits)).is_empty());
        let removed = written(&none, Some(&limits));
        assert_eq!(removed[..2], ["cpu.max=max 100000", "pids.max=max"]);
        assert_eq!(removed[2..].join(" ").matches("=max").count(), 4, "{removed:?}");
    }

    #[test]
    fn one_warning_per_cause() {
        let limit = |cause: &str, flag| IneffectiveLimit { cause: cause.to_owned(), flag };
        let all = [limit("a", "--cpuset-mems"), limit("b", "--io-weight"), limit("a", "--cpuset-cpus")];
        assert_eq!(warnings(&all), ["--cpuset-cpus, --cpuset-mems have no effect: a", "--io-weight has no effect: b"]);
    }
}
