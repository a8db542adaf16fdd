//! Resource limits of an app or of a pod, as cgroups enforce them (cgroups(7)).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::{SpecError, check_count, check_memory_size, check_path, out_of_range};

const MAX_IO_DEVICES: usize = 64;
const MAX_HUGE_PAGE_SIZES: usize = 16;
const MAX_UNIFIED: usize = 64;
const MAX_UNIFIED_VALUE: usize = 4096;
/// The longest list of processors or memory nodes, in bytes.
const MAX_CPUSET: usize = 4096;
/// The highest number in one: more than any kernel has.
const MAX_CPU: u32 = 65_535;
const MAX_BYTES: u64 = i64::MAX.unsigned_abs();

/// Resource limits of an app or of a pod; `None` is no limit, and so is a field that is missing in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Bytes of memory; at least 4096.
    pub memory: Option<u64>,
    /// Bytes of memory and swap together, at least `memory`; -1 is no limit of swap. `None`: no swap if `memory` is
    /// given.
    #[serde(default)]
    pub memory_swap: Option<i64>,
    /// Bytes of memory above which its processes are slowed down and reclaim (`memory.high`; cgroup v2 only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_high: Option<u64>,
    /// Bytes of memory that are reclaimed last when the host is short of memory (v2 `memory.low`, v1
    /// `memory.soft_limit_in_bytes`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_reservation: Option<u64>,
    /// Thousandths of a core (CFS quota).
    pub cpu_milli: Option<u64>,
    /// Microseconds of CPU time per period, in place of `cpu_milli`; at least 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<u64>,
    /// The period of the CPU limit in microseconds, 1000 to 1000000. `None`: [`DEFAULT_CPU_PERIOD`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_period: Option<u64>,
    /// Relative weight as in cgroup v1 `cpu.shares`, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// The processors that it may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset_cpus: Option<CpusetList>,
    /// The memory nodes that it may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset_mems: Option<CpusetList>,
    /// Number of processes and threads; 0 is no limit. `None`: [`DEFAULT_PIDS_LIMIT`] for an app, no limit for a pod.
    pub pids: Option<u64>,
    /// Relative weight of its input and output as in cgroup v2 `io.weight`, 1 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_weight: Option<u64>,
    /// Limits of its input and output, one per block device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub io_devices: Vec<DeviceIoLimits>,
    /// Bytes in huge pages, by the size of the pages.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hugetlb: BTreeMap<HugePageSize, u64>,
    /// Values of files of its cgroup, by name; cgroup v2 only (OCI runtime specification, "Unified"). They are written
    /// last.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unified: BTreeMap<CgroupFile, String>,
}

/// The limit of processes and threads of an app for which none is given: a fork bomb must not take the host's process
/// numbers. Ignored where the kernel cannot limit them. podman's default is 2048.
pub const DEFAULT_PIDS_LIMIT: u64 = 4096;

/// The period of a CPU limit for which none is given, in microseconds: the kernel's default.
pub const DEFAULT_CPU_PERIOD: u64 = 100_000;

/// The lowest CPU time per period, in microseconds (the kernel's `min_cfs_quota_period`).
const MIN_CPU_QUOTA: u64 = 1000;

/// Limits of the input and output of one block device; `None` is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceIoLimits {
    /// The path of its node on the host.
    pub path: String,
    /// Bytes read per second.
    pub read_bps: Option<u64>,
    /// Bytes written per second.
    pub write_bps: Option<u64>,
    /// Read operations per second.
    pub read_iops: Option<u64>,
    /// Write operations per second.
    pub write_iops: Option<u64>,
}

impl DeviceIoLimits {
    fn is_unlimited(&self) -> bool {
        let Self { path: _, read_bps, write_bps, read_iops, write_iops } = self;
        [read_bps, write_bps, read_iops, write_iops].iter().all(|limit| limit.is_none())
    }
}

/// A list of processors or memory nodes as the kernel writes it: `0-3,5` (cpuset(7), "List format"). Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpusetList(String);

impl FromStr for CpusetList {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let refuse = || {
            let text = shown(text);
            SpecError::new(format!("'{text}' is not a list of processors or memory nodes: expected one such as 0-3,5"))
        };
        let number = |text: &str| -> Option<u32> {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|number| is_number && *number <= MAX_CPU)
        };
        let is_range = |part: &str| match part.split_once('-') {
            None => number(part).is_some(),
            Some((low, high)) => number(low).zip(number(high)).is_some_and(|(low, high)| low <= high),
        };
        match text.len() <= MAX_CPUSET && text.split(',').all(is_range) {
            true => Ok(Self(text.to_owned())),
            false => Err(refuse()),
        }
    }
}

impl TryFrom<String> for CpusetList {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<CpusetList> for String {
    fn from(list: CpusetList) -> Self {
        list.0
    }
}

impl fmt::Display for CpusetList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A size of huge pages in bytes, a power of two. Displays as in the kernel's file names: `64KB`, `2MB`, `1GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HugePageSize(u64);

/// A file of a controller in a cgroup of v2, such as `memory.high`. It is in that cgroup: its name has no slash. The
/// files of `cgroup` are not those of a controller: they would move or freeze processes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CgroupFile(String);

impl CgroupFile {
    /// Its controller.
    #[must_use]
    pub fn controller(&self) -> &str {
        self.0.split('.').next().unwrap_or_default()
    }
}

impl FromStr for CgroupFile {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let is_part = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
        let is_file = text.len() <= 128 && text.contains('.') && text.split('.').all(is_part);
        if is_file && !text.starts_with("cgroup.") {
            return Ok(Self(text.to_owned()));
        }
        let text = shown(text);
        Err(SpecError::new(format!("'{text}' is not a file of a cgroup controller: expected one such as memory.high")))
    }
}

impl TryFrom<String> for CgroupFile {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<CgroupFile> for String {
    fn from(file: CgroupFile) -> Self {
        file.0
    }
}

impl fmt::Display for CgroupFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for HugePageSize {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        // The kernel's MB is 1024 * 1024 bytes, and so is docker's.
        let bytes = crate::quantity::memory(text).ok().filter(|bytes| bytes.is_power_of_two() && *bytes >= 1 << 10);
        bytes.map(Self).ok_or_else(|| {
            let text = shown(text);
            SpecError::new(format!("'{text}' is not a size of huge pages: expected one such as 2MB or 1GB"))
        })
    }
}

impl TryFrom<String> for HugePageSize {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<HugePageSize> for String {
    fn from(size: HugePageSize) -> Self {
        size.to_string()
    }
}

impl fmt::Display for HugePageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.trailing_zeros() {
            30.. => write!(f, "{}GB", self.0 >> 30),
            20..30 => write!(f, "{}MB", self.0 >> 20),
            _ => write!(f, "{}KB", self.0 >> 10),
        }
    }
}

impl Limits {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The CPU limit: microseconds per period, and the period. `None`: there is none.
    #[must_use]
    pub fn cpu_bandwidth(&self) -> Option<(u64, u64)> {
        let period = self.cpu_period.unwrap_or(DEFAULT_CPU_PERIOD);
        let of_cores = |milli: u64| (u128::from(milli) * u128::from(period) / 1000).try_into().unwrap_or(u64::MAX);
        let quota = self.cpu_quota.or_else(|| self.cpu_milli.map(of_cores));
        quota.map(|quota| (quota.max(MIN_CPU_QUOTA), period))
    }

    /// The CPU limit in thousandths of a core.
    #[must_use]
    pub fn cpu_limit_milli(&self) -> Option<u64> {
        self.cpu_milli.or_else(|| self.cpu_bandwidth().map(|(quota, period)| quota.saturating_mul(1000) / period))
    }

    /// The limits of a block device, made if there are none.
    pub fn io_device(&mut self, path: &str) -> &mut DeviceIoLimits {
        let at = self.io_devices.iter().position(|device| device.path == path).unwrap_or_else(|| {
            self.io_devices.push(DeviceIoLimits { path: path.to_owned(), ..DeviceIoLimits::default() });
            self.io_devices.len() - 1
        });
        &mut self.io_devices[at]
    }

    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        let range = |what, value: Option<u64>, low: u64, high: u64, range| match value {
            Some(v) if v < low || v > high => Err(out_of_range(what, v, range)),
            _ => Ok(()),
        };
        check_memory_size("--memory", self.memory)?;
        check_memory_size("--memory-high", self.memory_high)?;
        check_memory_size("--memory-reservation", self.memory_reservation)?;
        for (what, soft) in [("--memory-high", self.memory_high), ("--memory-reservation", self.memory_reservation)] {
            if let (Some(soft), Some(hard)) = (soft, self.memory)
                && soft > hard
            {
                return Err(out_of_range(what, soft, "at most --memory"));
            }
        }
        match (self.memory_swap, self.memory) {
            (Some(_), None) => return Err(SpecError::new("--memory-swap needs --memory")),
            (Some(swap), Some(memory)) if swap != -1 && u64::try_from(swap).map_or(true, |swap| swap < memory) => {
                return Err(out_of_range("--memory-swap", swap, "-1 (unlimited), or at least --memory"));
            }
            _ => {}
        }
        if self.cpu_milli.is_some() && self.cpu_quota.is_some() {
            return Err(SpecError::new("--cpus and --cpu-quota exclude each other: both limit the CPU time"));
        }
        range("--cpu-quota", self.cpu_quota, MIN_CPU_QUOTA, MAX_BYTES, "at least 1000 microseconds")?;
        range("--cpu-period", self.cpu_period, 1000, 1_000_000, "1000 to 1000000 microseconds")?;
        range("--cpu-shares", self.cpu_shares, 2, 262_144, "2 to 262144")?;
        range("--pids-limit", self.pids, 0, 4_194_304, "0 (none) to 4194304")?;
        range("--io-weight", self.io_weight, 1, 10_000, "1 to 10000")?;
        self.validate_io_devices()?;
        check_count("sizes of huge pages", self.hugetlb.len(), MAX_HUGE_PAGE_SIZES)?;
        check_count("files of cgroups", self.unified.len(), MAX_UNIFIED)?;
        for (file, value) in &self.unified {
            if value.len() > MAX_UNIFIED_VALUE || value.chars().any(|c| c.is_control() && c != '\n') {
                return Err(SpecError::new(format!("the value of {file} is too long or contains control characters")));
            }
        }
        self.hugetlb
            .values()
            .try_for_each(|bytes| range("--hugetlb-limit", Some(*bytes), 0, MAX_BYTES, "less than 8 EiB"))
    }

    fn validate_io_devices(&self) -> Result<(), SpecError> {
        check_count("devices with limits", self.io_devices.len(), MAX_IO_DEVICES)?;
        let mut paths = BTreeSet::new();
        for device in &self.io_devices {
            check_path("device", &device.path)?;
            if !paths.insert(&device.path) {
                let path = shown(&device.path);
                return Err(SpecError::new(format!("two limits of the input and output of '{path}'")));
            }
            let DeviceIoLimits { path: _, read_bps, write_bps, read_iops, write_iops } = device;
            for limit in [read_bps, write_bps, read_iops, write_iops].into_iter().flatten() {
                if !(1..=MAX_BYTES).contains(limit) {
                    return Err(out_of_range("a limit of input and output", limit, "at least 1 per second"));
                }
            }
        }
        Ok(())
    }

    /// Checks that an app's limits fit into its pod's. cgroup v1 refuses a CPU limit above the parent's.
    ///
    /// # Errors
    /// [`SpecError`] if they do not.
    pub fn validate_within(&self, app: &str, pod: &Self) -> Result<(), SpecError> {
        match (self.cpu_limit_milli(), pod.cpu_limit_milli()) {
            (Some(own), Some(all)) if own > all => {
                let show = |milli: u64| format!("{}.{:03}", milli / 1000, milli % 1000);
                let (own, all) = (show(own), show(all));
                Err(SpecError::new(format!("app '{app}' may use {own} cores, and its pod only {all} (--pod-cpus)")))
            }
            _ => Ok(()),
        }
    }
}

/// A change of one limit; `None` removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitChange {
    /// [`Limits::memory`].
    Memory(Option<u64>),
    /// [`Limits::memory_swap`].
    MemorySwap(Option<i64>),
    /// [`Limits::memory_high`].
    MemoryHigh(Option<u64>),
    /// [`Limits::memory_reservation`].
    MemoryReservation(Option<u64>),
    /// [`Limits::cpu_milli`].
    Cpus(Option<u64>),
    /// [`Limits::cpu_quota`].
    CpuQuota(Option<u64>),
    /// [`Limits::cpu_period`].
    CpuPeriod(Option<u64>),
    /// [`Limits::cpu_shares`].
    CpuShares(Option<u64>),
    /// [`Limits::cpuset_cpus`].
    CpusetCpus(Option<CpusetList>),
    /// [`Limits::cpuset_mems`].
    CpusetMems(Option<CpusetList>),
    /// [`Limits::pids`].
    Pids(Option<u64>),
    /// [`Limits::io_weight`].
    IoWeight(Option<u64>),
    /// One limit of a block device.
    Io(DeviceIoRate, String, Option<u64>),
    /// [`Limits::hugetlb`] of one size.
    Hugetlb(HugePageSize, Option<u64>),
    /// [`Limits::unified`] of one file.
    Unified(CgroupFile, Option<String>),
}

/// A rate of a block device that can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceIoRate {
    /// Bytes read per second.
    ReadBps,
    /// Bytes written per second.
    WriteBps,
    /// Read operations per second.
    ReadIops,
    /// Write operations per second.
    WriteIops,
}

impl DeviceIoLimits {
    /// The limit of this rate.
    pub fn rate(&mut self, rate: DeviceIoRate) -> &mut Option<u64> {
        match rate {
            DeviceIoRate::ReadBps => &mut self.read_bps,
            DeviceIoRate::WriteBps => &mut self.write_bps,
            DeviceIoRate::ReadIops => &mut self.read_iops,
            DeviceIoRate::WriteIops => &mut self.write_iops,
        }
    }
}

impl Limits {
    /// These limits with the changes. A CPU limit in cores replaces a quota, and the other way round. Without a limit
    /// of memory there is none of swap.
    ///
    /// # Errors
    /// [`SpecError`] if the result is not valid.
    pub fn changed(&self, changes: &[LimitChange]) -> Result<Self, SpecError> {
        let mut limits = self.clone();
        for change in changes {
            match change.clone() {
                LimitChange::Memory(limit) => limits.memory = limit,
                LimitChange::MemorySwap(limit) => limits.memory_swap = limit,
                LimitChange::MemoryHigh(limit) => limits.memory_high = limit,
                LimitChange::MemoryReservation(limit) => limits.memory_reservation = limit,
                LimitChange::Cpus(limit) => (limits.cpu_milli, limits.cpu_quota) = (limit, None),
                LimitChange::CpuQuota(limit) => (limits.cpu_quota, limits.cpu_milli) = (limit, None),
                LimitChange::CpuPeriod(period) => limits.cpu_period = period,
                LimitChange::CpuShares(shares) => limits.cpu_shares = shares,
                LimitChange::CpusetCpus(list) => limits.cpuset_cpus = list,
                LimitChange::CpusetMems(list) => limits.cpuset_mems = list,
                LimitChange::Pids(limit) => limits.pids = limit,
                LimitChange::IoWeight(weight) => limits.io_weight = weight,
                LimitChange::Io(rate, path, limit) => *limits.io_device(&path).rate(rate) = limit,
                LimitChange::Hugetlb(size, None) => drop(limits.hugetlb.remove(&size)),
                LimitChange::Hugetlb(size, Some(bytes)) => drop(limits.hugetlb.insert(size, bytes)),
                LimitChange::Unified(file, None) => drop(limits.unified.remove(&file)),
                LimitChange::Unified(file, Some(value)) => drop(limits.unified.insert(file, value)),
            }
        }
        if limits.memory.is_none() && !changes.iter().any(|change| matches!(change, LimitChange::MemorySwap(_))) {
            limits.memory_swap = None;
        }
        limits.io_devices.retain(|device| !device.is_unlimited());
        limits.validate()?;
        Ok(limits)
    }

    /// The values of these limits in `new` that differ, by the names of the fields; `none` is no limit. Limits of a
    /// device are `device_read_bps:/dev/sda` and the like, those of huge pages `hugetlb:2MB`, values of files of
    /// cgroups `unified:memory.high`.
    #[must_use]
    pub fn changes_to(&self, new: &Self) -> BTreeMap<String, String> {
        let old = self.by_name();
        let new = new.by_name();
        let removed = old.keys().filter(|name| !new.contains_key(*name)).map(|name| (name.clone(), "none".to_owned()));
        let changed = new.iter().filter(|(name, value)| old.get(*name) != Some(value));
        changed.map(|(name, value)| (name.clone(), value.clone())).chain(removed).collect()
    }

    /// The limits that there are, by name.
    fn by_name(&self) -> BTreeMap<String, String> {
        let Self {
            memory,
            memory_swap,
            memory_high,
            memory_reservation,
            cpu_milli,
            cpu_quota,
            cpu_period,
            cpu_shares,
            cpuset_cpus,
            cpuset_mems,
            pids,
            io_weight,
            io_devices,
            hugetlb,
            unified,
        } = self;
        let numbers = [
            ("memory", memory),
            ("memory_high", memory_high),
            ("memory_reservation", memory_reservation),
            ("cpu_milli", cpu_milli),
            ("cpu_quota", cpu_quota),
            ("cpu_period", cpu_period),
            ("cpu_shares", cpu_shares),
            ("pids", pids),
            ("io_weight", io_weight),
        ];
        let mut named: BTreeMap<String, String> = numbers
            .iter()
            .filter_map(|(name, value)| Some(((*name).to_owned(), value.as_ref()?.to_string())))
            .collect();
        named.extend(memory_swap.map(|swap| ("memory_swap".to_owned(), swap.to_string())));
        for (name, list) in [("cpuset_cpus", cpuset_cpus), ("cpuset_mems", cpuset_mems)] {
            named.extend(list.as_ref().map(|list| (name.to_owned(), list.to_string())));
        }
        for DeviceIoLimits { path, read_bps, write_bps, read_iops, write_iops } in io_devices {
            let rates = [
                ("read_bps", read_bps),
                ("write_bps", write_bps),
                ("read_iops", read_iops),
                ("write_iops", write_iops),
            ];
            named.extend(
                rates
                    .iter()
                    .filter_map(|(rate, limit)| Some((format!("device_{rate}:{path}"), limit.as_ref()?.to_string()))),
            );
        }
        named.extend(hugetlb.iter().map(|(size, bytes)| (format!("hugetlb:{size}"), bytes.to_string())));
        named.extend(unified.iter().map(|(file, value)| (format!("unified:{file}"), value.clone())));
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_validated() {
        for good in ["0", "0-3", "0,2,4-7"] {
            assert_eq!(good.parse::<CpusetList>().unwrap().to_string(), good);
        }
        for bad in ["", ",", "0,", "3-1", "-1", "+1", "a", "0-", "0-99999", "0 ", "0\n1"] {
            assert!(bad.parse::<CpusetList>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<Limits>(r#"{"cpuset_cpus":"0\n1"}"#).is_err());
    }

    #[test]
    fn changes_have_names() {
        let device = |read_bps| DeviceIoLimits { path: "/dev/sda".into(), read_bps, ..DeviceIoLimits::default() };
        let old = Limits { memory: Some(8192), pids: Some(3), io_devices: vec![device(Some(5))], ..Limits::default() };
        let new = Limits {
            memory: Some(4096),
            memory_swap: Some(-1),
            pids: Some(3),
            cpuset_cpus: Some("0-1".parse().unwrap()),
            hugetlb: BTreeMap::from([("2MB".parse().unwrap(), 0)]),
            ..Limits::default()
        };
        let changes: Vec<_> = old.changes_to(&new).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let want = "cpuset_cpus=0-1 device_read_bps:/dev/sda=none hugetlb:2MB=0 memory=4096 memory_swap=-1";
        assert_eq!(changes.join(" "), want);
        assert!(new.changes_to(&new).is_empty());
    }

    #[test]
    fn lifting_the_memory_limit_lifts_that_of_swap() {
        let limits = Limits { memory: Some(4096), memory_swap: Some(8192), ..Limits::default() };
        assert_eq!(limits.changed(&[LimitChange::Memory(None)]).unwrap(), Limits::default());
        let kept = [LimitChange::Memory(None), LimitChange::MemorySwap(Some(-1))];
        assert!(limits.changed(&kept).unwrap_err().to_string().contains("--memory-swap needs --memory"));
    }

    #[test]
    fn huge_page_sizes_have_the_kernels_names() {
        for (text, want) in
            [("2MB", "2MB"), ("2m", "2MB"), ("2Mi", "2MB"), ("2M", "2MB"), ("1GB", "1GB"), ("64KB", "64KB")]
        {
            assert_eq!(text.parse::<HugePageSize>().unwrap().to_string(), want, "{text}");
        }
        for bad in ["", "3MB", "1", "0"] {
            assert!(bad.parse::<HugePageSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn files_of_cgroups_stay_in_their_cgroup() {
        for good in ["memory.high", "hugetlb.2MB.max", "io.max", "cpuset.cpus.partition", "memory.oom.group"] {
            assert_eq!(good.parse::<CgroupFile>().unwrap().to_string(), good);
        }
        assert_eq!("hugetlb.2MB.max".parse::<CgroupFile>().unwrap().controller(), "hugetlb");
        for bad in ["", "memory", "cgroup.procs", "../memory.max", "a/memory.max", "memory.", "..", ".max", "a.b\n"] {
            assert!(bad.parse::<CgroupFile>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn cpu_limits_become_time_per_period() {
        let bandwidth = |cpu_milli, cpu_quota, cpu_period| {
            Limits { cpu_milli, cpu_quota, cpu_period, ..Limits::default() }.cpu_bandwidth()
        };
        assert_eq!(bandwidth(None, None, Some(50_000)), None);
        assert_eq!(bandwidth(Some(2500), None, None), Some((250_000, 100_000)));
        assert_eq!(bandwidth(Some(500), None, Some(50_000)), Some((25_000, 50_000)));
        assert_eq!(bandwidth(Some(1), None, None), Some((1000, 100_000)), "raised to the kernel's minimum");
        assert_eq!(bandwidth(None, Some(12_345), None), Some((12_345, 100_000)));
        assert_eq!(bandwidth(Some(u64::MAX), None, None).map(|(quota, _)| quota), Some(u64::MAX));
    }

    #[test]
    fn changes_replace_remove_and_are_validated() {
        let old = Limits { memory: Some(1 << 20), cpu_milli: Some(500), ..Limits::default() };
        let sda = || "/dev/sda".to_owned();
        let new = old.changed(&[
            LimitChange::Memory(Some(2 << 20)),
            LimitChange::CpuQuota(Some(20_000)),
            LimitChange::Io(DeviceIoRate::ReadBps, sda(), Some(1000)),
        ]);
        let new = new.unwrap();
        assert_eq!((new.memory, new.cpu_milli, new.cpu_quota), (Some(2 << 20), None, Some(20_000)));
        assert_eq!(new.io_devices[0].read_bps, Some(1000));
        let back = new.changed(&[LimitChange::Memory(None), LimitChange::Io(DeviceIoRate::ReadBps, sda(), None)]);
        assert_eq!((back.as_ref().unwrap().memory, back.unwrap().io_devices.len()), (None, 0));
        assert!(old.changed(&[LimitChange::MemorySwap(Some(4096))]).is_err(), "less than the memory");
        assert!(old.changed(&[LimitChange::MemoryHigh(Some(2 << 20))]).is_err(), "more than the memory");
    }

    /// Plans of pods that an older gantry started or prepared.
    #[test]
    fn fields_of_older_plans_are_enough() {
        let old = r#"{"memory":67108864,"cpu_milli":500,"cpu_shares":512,"pids":100}"#;
        let limits: Limits = serde_json::from_str(old).unwrap();
        assert_eq!((limits.memory, limits.pids, limits.io_devices.len()), (Some(64 << 20), Some(100), 0));
    }
}
