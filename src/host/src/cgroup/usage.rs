//! The counters of a cgroup, in the terms of v2. Each reading is a snapshot of a few files, not of one moment.

use std::io;
use std::time::Duration;

use super::{Cgroup, CgroupSet};

/// A memory limit that is not set reads on v1 as the largest multiple of a page below 2^63.
const MIN_V1_UNLIMITED: u64 = 0x7fff_ffff_ffff_0000;

/// CPU time, since the cgroup was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuUsage {
    /// In user and kernel mode.
    pub total: Duration,
    /// In user mode.
    pub user: Duration,
    /// In kernel mode.
    pub system: Duration,
    /// Periods of the CPU limit (CFS bandwidth control).
    pub periods: u64,
    /// Periods in which the limit was reached.
    pub throttled_periods: u64,
    /// The time that its threads waited for the next period.
    pub throttled: Duration,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUsage {
    /// All memory that is charged to it, with page cache.
    pub current: u64,
    /// Its own limit; an ancestor's may be lower.
    pub limit: Option<u64>,
    /// The highest value of `current`; `None` on v2 before Linux 5.19.
    pub peak: Option<u64>,
    /// Swap; `None` without swap accounting.
    pub swap: Option<u64>,
    /// Anonymous memory.
    pub anonymous: u64,
    /// Page cache.
    pub file: u64,
    /// Page cache that is reclaimed first. The working set is `current` without it.
    pub inactive_file: u64,
}

/// How often memory was short, since the cgroup was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryEvents {
    /// Allocations that reached the limit.
    pub limit_hits: u64,
    /// Processes of it and of the cgroups below it that the OOM killer has killed; on v1, without those below it.
    pub oom_kills: u64,
}

/// Processes and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PidsUsage {
    /// The number that exists.
    pub current: u64,
    /// The limit.
    pub limit: Option<u64>,
}

/// Input and output of a block device, since the cgroup was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceIo {
    /// The device: major and minor number.
    pub device: (u32, u32),
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
}

impl Cgroup {
    /// How often its own memory limit made the OOM killer necessary, given that it has killed `kills` processes.
    /// cgroup v1 has no such counter, and Linux 6.18 does not count in `memory.failcnt`: if the usage has ever reached
    /// the limit, each kill counts.
    ///
    /// # Errors
    /// Of reading the files.
    pub fn memory_failures(&self, kills: u64) -> io::Result<u64> {
        /// The kernel charges up to 64 pages at once, and gives up with as much left.
        const MAX_UNUSED: u64 = 64 * 4096;
        if self.is_v2() {
            return Ok(read_existing(self, "memory.events.local")?.map_or(0, |events| flat_value(&events, "oom")));
        }
        let peak = read_value(self, "memory.max_usage_in_bytes")?.unwrap_or(0);
        let limit = read_value(self, "memory.limit_in_bytes")?.unwrap_or(u64::MAX);
        Ok(if peak.saturating_add(MAX_UNUSED) >= limit { kills } else { 0 })
    }
}

/// Counters; `None` if the controller is not mounted or, on v2, not enabled for the cgroup.
impl CgroupSet {
    /// Reads the CPU time. On v2, it is there without the controller, but for the periods.
    ///
    /// # Errors
    /// Of reading the files.
    pub fn cpu_usage(&self) -> io::Result<Option<CpuUsage>> {
        let cpu = self.with_controller("cpu");
        let bandwidth = match cpu {
            Some(cgroup) => read_existing(cgroup, "cpu.stat")?.unwrap_or_default(),
            None => String::new(),
        };
        let throttled = match cpu.is_some_and(Cgroup::is_v2) {
            true => Duration::from_micros(flat_value(&bandwidth, "throttled_usec")),
            false => Duration::from_nanos(flat_value(&bandwidth, "throttled_time")),
        };
        let usage = CpuUsage {
            periods: flat_value(&bandwidth, "nr_periods"),
            throttled_periods: flat_value(&bandwidth, "nr_throttled"),
            throttled,
            ..CpuUsage::default()
        };
        let Some(cgroup) = self.with_controller("cpuacct") else { return Ok(None) };
        if cgroup.is_v2() {
            let Some(stat) = read_existing(cgroup, "cpu.stat")? else { return Ok(None) };
            let time = |key| Duration::from_micros(flat_value(&stat, key));
            let (total, user, system) = (time("usage_usec"), time("user_usec"), time("system_usec"));
            return Ok(Some(CpuUsage { total, user, system, ..usage }));
        }
        let time = |file| Ok::<_, io::Error>(Duration::from_nanos(read_value(cgroup, file)?.unwrap_or(0)));
        let (total, user, system) = (time("cpuacct.usage")?, time("cpuacct.usage_user")?, time("cpuacct.usage_sys")?);
        Ok(Some(CpuUsage { total, user, system, ..usage }))
    }

    /// Reads the memory usage.
    ///
    /// # Errors
    /// Of reading the files.
    pub fn memory_usage(&self) -> io::Result<Option<MemoryUsage>> {
        let Some(cgroup) = self.with_controller("memory") else { return Ok(None) };
        let stat = read_existing(cgroup, "memory.stat")?.unwrap_or_default();
        if cgroup.is_v2() {
            let Some(current) = read_value(cgroup, "memory.current")? else { return Ok(None) };
            return Ok(Some(MemoryUsage {
                current,
                limit: read_value(cgroup, "memory.max")?,
                peak: read_value(cgroup, "memory.peak")?,
                swap: read_value(cgroup, "memory.swap.current")?,
                anonymous: flat_value(&stat, "anon"),
                file: flat_value(&stat, "file"),
                inactive_file: flat_value(&stat, "inactive_file"),
            }));
        }
        let current = read_value(cgroup, "memory.usage_in_bytes")?.unwrap_or(0);
        let with_swap = read_value(cgroup, "memory.memsw.usage_in_bytes")?;
        Ok(Some(MemoryUsage {
            current,
            limit: read_value(cgroup, "memory.limit_in_bytes")?.filter(|limit| *limit < MIN_V1_UNLIMITED),
            peak: read_value(cgroup, "memory.max_usage_in_bytes")?,
            swap: with_swap.map(|bytes| bytes.saturating_sub(current)),
            anonymous: flat_value(&stat, "total_rss"),
            file: flat_value(&stat, "total_cache"),
            inactive_file: flat_value(&stat, "total_inactive_file"),
        }))
    }

    /// Reads how often memory was short.
    ///
    /// # Errors
    /// Of reading the files.
    pub fn memory_events(&self) -> io::Result<Option<MemoryEvents>> {
        let Some(cgroup) = self.with_controller("memory") else { return Ok(None) };
        let file = if cgroup.is_v2() { "memory.events" } else { "memory.oom_control" };
        let Some(events) = read_existing(cgroup, file)? else { return Ok(None) };
        let limit_hits = match cgroup.is_v2() {
            true => flat_value(&events, "max"),
            false => read_value(cgroup, "memory.failcnt")?.unwrap_or(0),
        };
        Ok(Some(MemoryEvents { limit_hits, oom_kills: flat_value(&events, "oom_kill") }))
    }

    /// Reads the number of processes and threads.
    ///
    /// # Errors
    /// Of reading the files.
    pub fn pids_usage(&self) -> io::Result<Option<PidsUsage>> {
        let Some(cgroup) = self.with_controller("pids") else { return Ok(None) };
        let Some(current) = read_value(cgroup, "pids.current")? else { return Ok(None) };
        Ok(Some(PidsUsage { current, limit: read_value(cgroup, "pids.max")? }))
    }

    /// Reads the input and output of each block device that was used.
    ///
    /// # Errors
    /// Of reading the files.
    pub fn io_usage(&self) -> io::Result<Option<Vec<DeviceIo>>> {
        if let Some(cgroup) = self.v1("blkio") {
            let bytes = read_existing(cgroup, "blkio.throttle.io_service_bytes_recursive")?;
            let operations = read_existing(cgroup, "blkio.throttle.io_serviced_recursive")?;
            return Ok(bytes.map(|bytes| parse_blkio(&bytes, &operations.unwrap_or_default())));
        }
        let Some(cgroup) = self.v2() else { return Ok(None) };
        Ok(read_existing(cgroup, "io.stat")?.map(|text| text.lines().filter_map(parse_io_stat).collect()))
    }
}

/// Reads a file; `None` if it is absent: the controller is not enabled, or the kernel lacks the counter.
fn read_existing(cgroup: &Cgroup, file: &str) -> io::Result<Option<String>> {
    match cgroup.read(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number in a file; `None` if the file is absent, and for `max`.
fn read_value(cgroup: &Cgroup, file: &str) -> io::Result<Option<u64>> {
    Ok(read_existing(cgroup, file)?.and_then(|text| text.trim().parse().ok()))
}

/// The number of a key in a flat keyed file (`KEY VALUE` lines); 0 if it is absent.
fn flat_value(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    value.unwrap_or(0)
}

fn parse_device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A line of v2's `io.stat`: `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
fn parse_io_stat(line: &str) -> Option<DeviceIo> {
    let mut fields = line.split(' ');
    let device = parse_device(fields.next()?)?;
    let mut io = DeviceIo { device, ..DeviceIo::default() };
    for (key, value) in fields.filter_map(|field| field.split_once('=')) {
        let value = value.parse().unwrap_or(0);
        match key {
            "rbytes" => io.read_bytes = value,
            "wbytes" => io.written_bytes = value,
            "rios" => io.reads = value,
            "wios" => io.writes = value,
            _ => {}
        }
    }
    Some(io)
}

/// Lines of v1's blkio files: `8:0 Read 1`, and at the end `Total 3`.
fn parse_blkio(bytes: &str, operations: &str) -> Vec<DeviceIo> {
    let mut devices: Vec<DeviceIo> = Vec::new();
    for (text, is_bytes) in [(bytes, true), (operations, false)] {
        for line in text.lines() {
            let mut fields = line.split(' ');
            let (Some(device), Some(kind)) = (fields.next().and_then(parse_device), fields.next()) else { continue };
            let Some(value) = fields.next().and_then(|value| value.parse().ok()) else { continue };
            let at = devices.iter().position(|io| io.device == device).unwrap_or_else(|| {
                devices.push(DeviceIo { device, ..DeviceIo::default() });
                devices.len() - 1
            });
            match (devices.get_mut(at), kind, is_bytes) {
                (Some(io), "Read", true) => io.read_bytes = value,
                (Some(io), "Write", true) => io.written_bytes = value,
                (Some(io), "Read", false) => io.reads = value,
                (Some(io), "Write", false) => io.writes = value,
                _ => {}
            }
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_keys_are_whole_words() {
        let text = "oom 3\noom_kill 2\noom_group_kill x\n";
        assert_eq!(
            (flat_value(text, "oom"), flat_value(text, "oom_kill"), flat_value(text, "oom_group_kill")),
            (3, 2, 0)
        );
    }

    #[test]
    fn reads_io_of_both_versions() {
        let want = DeviceIo { device: (8, 16), read_bytes: 1, written_bytes: 2, reads: 3, writes: 4 };
        let v2 = "8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6";
        assert_eq!(parse_io_stat(v2), Some(want));
        let bytes = "8:16 Read 1\n8:16 Write 2\n8:16 Sync 9\n8:16 Total 3\nTotal 3\n";
        let operations = "8:16 Read 3\n8:16 Write 4\n7:0 Read 1\nTotal 8\n";
        let other = DeviceIo { device: (7, 0), reads: 1, ..DeviceIo::default() };
        assert_eq!(parse_blkio(bytes, operations), [want, other]);
        assert_eq!(parse_io_stat("nonsense"), None);
    }

    /// The counters of the root cgroups, as far as the host has them.
    #[test]
    fn reads_the_counters_of_this_host() {
        let roots = CgroupSet::open_roots(&["cpu", "cpuacct", "memory", "pids", "blkio"]).unwrap();
        if let Some(cpu) = roots.cpu_usage().unwrap() {
            assert!(cpu.total > Duration::ZERO && cpu.total >= cpu.user, "{cpu:?}");
        }
        if let Some(memory) = roots.memory_usage().unwrap() {
            assert!(memory.current > 0 && memory.limit.is_none(), "{memory:?}");
        }
        roots.memory_events().unwrap();
        roots.pids_usage().unwrap();
        roots.io_usage().unwrap();
    }
}
