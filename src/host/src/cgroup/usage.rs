//! The counters of a cgroup, in the terms of v2. Each reading is a snapshot of a few files, not of one moment.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::counters::{BUFFER_SIZE, open_existing, parse_held, read_once};
use super::{Cgroup, CgroupSet};

/// A memory limit that is not set reads on v1 as the largest multiple of a page below 2^63.
const MIN_V1_UNLIMITED: u64 = 0x7fff_ffff_ffff_0000;

/// A read of `cgroup.procs` that is shorter has all of it: the kernel fills a page at least before it returns less.
const FIRST_READ_OF_PROCS: usize = 2048;

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
    /// Files that are mapped.
    pub mapped_file: u64,
    /// The limit of swap; `None`: unlimited, or not counted.
    pub swap_limit: Option<u64>,
    /// Page faults since the cgroup was created.
    pub page_faults: u64,
    /// Those that read from a disk.
    pub major_page_faults: u64,
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

/// The CPU limit and weight of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuLimits {
    /// The period of the limit (CFS bandwidth control).
    pub period: Duration,
    /// The CPU time that the cgroup may use in each period; `None`: unlimited.
    pub quota: Option<Duration>,
    /// The weight in the terms of v1 (`cpu.shares`, 2 to 262144, 1024 by default).
    pub shares: u64,
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
            return Ok(read_once(self, "memory.events.local")?.map_or(0, |events| flat_value(&events, "oom")));
        }
        let peak = read_value(self, "memory.max_usage_in_bytes")?.unwrap_or(0);
        let limit = read_value(self, "memory.limit_in_bytes")?.unwrap_or(u64::MAX);
        Ok(if peak.saturating_add(MAX_UNUSED) >= limit { kills } else { 0 })
    }
}

/// The time that processes waited for a resource (pressure stall information), since the cgroup was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureUsage {
    /// At least one of them waited for the CPU.
    pub cpu_some: PressureTime,
    /// All of them waited for the CPU; zero before Linux 5.13.
    pub cpu_full: PressureTime,
    /// At least one of them waited for memory.
    pub memory_some: PressureTime,
    /// All of them waited for memory.
    pub memory_full: PressureTime,
    /// At least one of them waited for I/O.
    pub io_some: PressureTime,
    /// All of them waited for I/O.
    pub io_full: PressureTime,
}

/// A line of a pressure file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureTime {
    /// The whole time.
    pub total: Duration,
    /// The share of the last 10, 60 and 300 seconds, in hundredths of a percent.
    pub averages: [u32; 3],
}

/// The parts of `memory.stat` that are used; of the cgroups below it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryStat {
    anonymous: u64,
    file: u64,
    inactive_file: u64,
    mapped_file: u64,
    page_faults: u64,
    major_page_faults: u64,
    /// v1, with swap accounting.
    swap: Option<u64>,
    /// v1: the lowest limit, of the cgroup or of an ancestor.
    hierarchical_limit: Option<u64>,
    /// The same of memory and swap together.
    hierarchical_limit_with_swap: Option<u64>,
}

impl MemoryStat {
    /// Parses the file's text in one pass: it has some 50 lines.
    fn parse(text: &str, is_v2: bool) -> Self {
        let mut stat = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let number = || value.trim().parse().unwrap_or(0);
            match (is_v2, key) {
                (true, "anon") | (false, "total_rss") => stat.anonymous = number(),
                (true, "file") | (false, "total_cache") => stat.file = number(),
                (true, "inactive_file") | (false, "total_inactive_file") => stat.inactive_file = number(),
                (true, "file_mapped") | (false, "total_mapped_file") => stat.mapped_file = number(),
                (true, "pgfault") | (false, "total_pgfault") => stat.page_faults = number(),
                (true, "pgmajfault") | (false, "total_pgmajfault") => stat.major_page_faults = number(),
                (false, "total_swap") => stat.swap = Some(number()),
                (false, "hierarchical_memory_limit") => stat.hierarchical_limit = Some(number()),
                (false, "hierarchical_memsw_limit") => stat.hierarchical_limit_with_swap = Some(number()),
                _ => {}
            }
        }
        stat
    }
}

/// The files of a cgroup in all hierarchies, opened for each reading ([`CgroupSet`]) or held open
/// ([`super::CounterFiles`]).
///
/// The counters are `None` if the controller is not mounted or, on v2, not enabled for the cgroup.
pub trait ReadCounters {
    /// The cgroup in all hierarchies.
    fn cgroups(&self) -> &CgroupSet;

    /// Opens a file of the cgroup that [`CgroupSet::with_controller`] finds (the v2 one: no controller); `None` if it
    /// is absent: the controller is not enabled, or the kernel lacks the counter.
    ///
    /// # Errors
    /// Of open(2).
    fn open_counter(&self, controller: Option<&str>, file: &'static str) -> io::Result<Option<OwnedFd>>;

    /// Reads a file that [`Self::open_counter`] finds: its first 16 KiB, which few files exceed. `None` also if the
    /// kernel does not support it.
    ///
    /// # Errors
    /// Of open(2) or read(2).
    fn read_counter(&self, controller: Option<&str>, file: &'static str) -> io::Result<Option<String>> {
        self.parse_counter(controller, file, str::to_owned)
    }

    /// The same, parsed without a copy.
    ///
    /// # Errors
    /// As [`Self::read_counter`].
    fn parse_counter<T>(
        &self,
        controller: Option<&str>,
        file: &'static str,
        parse: impl FnOnce(&str) -> T,
    ) -> io::Result<Option<T>> {
        self.open_counter(controller, file)?.map_or(Ok(None), |file| parse_held(&file, parse))
    }

    /// The number in a file; `None` if the file is absent, and for `max`.
    ///
    /// # Errors
    /// As [`Self::read_counter`].
    fn read_number(&self, controller: &str, file: &'static str) -> io::Result<Option<u64>> {
        Ok(self.parse_counter(Some(controller), file, |text| text.trim_ascii().parse().ok())?.flatten())
    }

    /// Reads the CPU time. On v2, it is there without the controller, but for the periods.
    ///
    /// # Errors
    /// Of reading the files.
    fn cpu_usage(&self) -> io::Result<Option<CpuUsage>> {
        let cpu = self.cgroups().with_controller("cpu");
        let bandwidth = self.read_counter(Some("cpu"), "cpu.stat")?.unwrap_or_default();
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
        let Some(cgroup) = self.cgroups().with_controller("cpuacct") else { return Ok(None) };
        if cgroup.is_v2() {
            let stat = match cpu.is_some_and(Cgroup::is_v2) {
                true => bandwidth,
                false => self.read_counter(None, "cpu.stat")?.unwrap_or_default(),
            };
            if stat.is_empty() {
                return Ok(None);
            }
            let time = |key| Duration::from_micros(flat_value(&stat, key));
            let (total, user, system) = (time("usage_usec"), time("user_usec"), time("system_usec"));
            return Ok(Some(CpuUsage { total, user, system, ..usage }));
        }
        // Beside v1 hierarchies, the unified one has all three in one file.
        if let Some(stat) = self.read_counter(None, "cpu.stat")?
            && let Some(total) = find_flat_value(&stat, "usage_usec")
        {
            let (user, system) = (flat_value(&stat, "user_usec"), flat_value(&stat, "system_usec"));
            let [total, user, system] = [total, user, system].map(Duration::from_micros);
            return Ok(Some(CpuUsage { total, user, system, ..usage }));
        }
        let total = Duration::from_nanos(self.read_number("cpuacct", "cpuacct.usage")?.unwrap_or(0));
        let (user, system) = self.cpu_modes()?;
        Ok(Some(CpuUsage { total, user, system, ..usage }))
    }

    /// Reads the CPU time in user and in kernel mode from a v1 controller: one file with a line per processor, unless
    /// these are too many for one read.
    ///
    /// # Errors
    /// Of reading the files.
    fn cpu_modes(&self) -> io::Result<(Duration, Duration)> {
        if let Some(text) = self.read_counter(Some("cpuacct"), "cpuacct.usage_all")?
            && text.len() < BUFFER_SIZE
        {
            return Ok(sum_usage_all(&text));
        }
        let time = |file: &'static str| {
            Ok::<_, io::Error>(Duration::from_nanos(self.read_number("cpuacct", file)?.unwrap_or(0)))
        };
        Ok((time("cpuacct.usage_user")?, time("cpuacct.usage_sys")?))
    }

    /// Reads the CPU time in user and kernel mode alone: one file.
    ///
    /// # Errors
    /// Of reading the file.
    fn cpu_total(&self) -> io::Result<Option<Duration>> {
        let Some(cgroup) = self.cgroups().with_controller("cpuacct") else { return Ok(None) };
        if cgroup.is_v2() {
            let total = |stat: &str| Duration::from_micros(flat_value(stat, "usage_usec"));
            return self.parse_counter(None, "cpu.stat", total);
        }
        Ok(self.read_number("cpuacct", "cpuacct.usage")?.map(Duration::from_nanos))
    }

    /// Reads all memory that is charged to it: one file.
    ///
    /// # Errors
    /// Of reading the file.
    fn memory_current(&self) -> io::Result<Option<u64>> {
        let Some(cgroup) = self.cgroups().with_controller("memory") else { return Ok(None) };
        self.read_number("memory", if cgroup.is_v2() { "memory.current" } else { "memory.usage_in_bytes" })
    }

    /// Reads the memory usage and limit without peak and swap: two files, or three with a limit.
    ///
    /// # Errors
    /// Of reading the files.
    fn memory_summary(&self) -> io::Result<Option<MemoryUsage>> {
        let Some(cgroup) = self.cgroups().with_controller("memory") else { return Ok(None) };
        let Some(current) = self.memory_current()? else { return Ok(None) };
        let stat = self.parse_counter(Some("memory"), "memory.stat", |text| MemoryStat::parse(text, cgroup.is_v2()))?;
        let stat = stat.unwrap_or_default();
        Ok(Some(MemoryUsage {
            current,
            limit: match cgroup.is_v2() {
                true => self.read_number("memory", "memory.max")?,
                false => self.memory_limit(&stat)?,
            },
            peak: None,
            swap: None,
            anonymous: stat.anonymous,
            file: stat.file,
            inactive_file: stat.inactive_file,
            ..MemoryUsage::default()
        }))
    }

    /// Reads the memory usage.
    ///
    /// # Errors
    /// Of reading the files.
    fn memory_usage(&self) -> io::Result<Option<MemoryUsage>> {
        let Some(cgroup) = self.cgroups().with_controller("memory") else { return Ok(None) };
        let stat = self.parse_counter(Some("memory"), "memory.stat", |text| MemoryStat::parse(text, cgroup.is_v2()))?;
        let stat = stat.unwrap_or_default();
        let MemoryStat { anonymous, file, inactive_file, mapped_file, page_faults, major_page_faults, .. } = stat;
        if cgroup.is_v2() {
            let Some(current) = self.read_number("memory", "memory.current")? else { return Ok(None) };
            return Ok(Some(MemoryUsage {
                current,
                limit: self.read_number("memory", "memory.max")?,
                peak: self.read_number("memory", "memory.peak")?,
                swap: self.read_number("memory", "memory.swap.current")?,
                anonymous,
                file,
                inactive_file,
                mapped_file,
                swap_limit: self.read_number("memory", "memory.swap.max")?,
                page_faults,
                major_page_faults,
            }));
        }
        let current = self.read_number("memory", "memory.usage_in_bytes")?.unwrap_or(0);
        let limit = self.memory_limit(&stat)?;
        // That of memory and swap together.
        let with_swap = stat.hierarchical_limit_with_swap.filter(|limit| *limit < MIN_V1_UNLIMITED);
        Ok(Some(MemoryUsage {
            current,
            limit,
            peak: self.read_number("memory", "memory.max_usage_in_bytes")?,
            // Absent without swap accounting.
            swap: stat.swap,
            anonymous,
            file,
            inactive_file,
            mapped_file,
            swap_limit: with_swap.zip(limit).map(|(all, memory)| all.saturating_sub(memory)),
            page_faults,
            major_page_faults,
        }))
    }

    /// The memory limit of a v1 cgroup, given its `memory.stat`: without any limit there, of it or of an ancestor, its
    /// own file is not read.
    ///
    /// # Errors
    /// Of reading the file.
    fn memory_limit(&self, stat: &MemoryStat) -> io::Result<Option<u64>> {
        if stat.hierarchical_limit.is_some_and(|limit| limit >= MIN_V1_UNLIMITED) {
            return Ok(None);
        }
        Ok(self.read_number("memory", "memory.limit_in_bytes")?.filter(|limit| *limit < MIN_V1_UNLIMITED))
    }

    /// Reads how often memory was short.
    ///
    /// # Errors
    /// Of reading the files.
    fn memory_events(&self) -> io::Result<Option<MemoryEvents>> {
        let Some(cgroup) = self.cgroups().with_controller("memory") else { return Ok(None) };
        let file = if cgroup.is_v2() { "memory.events" } else { "memory.oom_control" };
        let Some(events) = self.read_counter(Some("memory"), file)? else { return Ok(None) };
        let limit_hits = match cgroup.is_v2() {
            true => flat_value(&events, "max"),
            false => self.read_number("memory", "memory.failcnt")?.unwrap_or(0),
        };
        Ok(Some(MemoryEvents { limit_hits, oom_kills: flat_value(&events, "oom_kill") }))
    }

    /// Reads the number of processes and threads.
    ///
    /// # Errors
    /// Of reading the files.
    fn pids_usage(&self) -> io::Result<Option<PidsUsage>> {
        let Some(current) = self.read_number("pids", "pids.current")? else { return Ok(None) };
        Ok(Some(PidsUsage { current, limit: self.read_number("pids", "pids.max")? }))
    }

    /// Reads the number of threads that exist: one file.
    ///
    /// # Errors
    /// Of reading the file.
    fn pids_current(&self) -> io::Result<Option<u64>> {
        self.read_number("pids", "pids.current")
    }

    /// Reads the bytes that were read and written on each block device, without the operations: one file.
    ///
    /// # Errors
    /// Of reading the file.
    fn io_bytes(&self) -> io::Result<Option<Vec<DeviceIo>>> {
        if self.cgroups().v1("blkio").is_some() {
            let file = "blkio.throttle.io_service_bytes_recursive";
            return self.parse_counter(Some("blkio"), file, |bytes| parse_blkio(bytes, ""));
        }
        self.io_usage()
    }

    /// Reads the input and output of each block device that was used.
    ///
    /// # Errors
    /// Of reading the files.
    fn io_usage(&self) -> io::Result<Option<Vec<DeviceIo>>> {
        if self.cgroups().v1("blkio").is_some() {
            let bytes = self.read_counter(Some("blkio"), "blkio.throttle.io_service_bytes_recursive")?;
            let Some(bytes) = bytes else { return Ok(None) };
            // Both files list the same devices.
            let operations = match parse_blkio(&bytes, "").is_empty() {
                true => None,
                false => self.read_counter(Some("blkio"), "blkio.throttle.io_serviced_recursive")?,
            };
            return Ok(Some(parse_blkio(&bytes, &operations.unwrap_or_default())));
        }
        self.parse_counter(None, "io.stat", |text| text.lines().filter_map(parse_io_stat).collect())
    }

    /// Reads the CPU limit and weight; `None` if the controller is absent.
    ///
    /// # Errors
    /// Of reading the files.
    fn cpu_limits(&self) -> io::Result<Option<CpuLimits>> {
        let Some(cgroup) = self.cgroups().with_controller("cpu") else { return Ok(None) };
        if cgroup.is_v2() {
            let Some(max) = self.read_counter(Some("cpu"), "cpu.max")? else { return Ok(None) };
            let weight = self.read_number("cpu", "cpu.weight")?.unwrap_or(100);
            return Ok(Some(CpuLimits { shares: shares_of_weight(weight), ..parse_cpu_max(&max) }));
        }
        let Some(period) = self.read_number("cpu", "cpu.cfs_period_us")? else { return Ok(None) };
        Ok(Some(CpuLimits {
            period: Duration::from_micros(period),
            // -1, which is no u64: unlimited.
            quota: self.read_number("cpu", "cpu.cfs_quota_us")?.map(Duration::from_micros),
            shares: self.read_number("cpu", "cpu.shares")?.unwrap_or(1024),
        }))
    }

    /// Counts the processes in the cgroup, without those in cgroups below it; `None` if no hierarchy is used.
    ///
    /// # Errors
    /// Of reading `cgroup.procs`.
    fn process_count(&self) -> io::Result<Option<u64>> {
        let Some(first) = self.cgroups().iter().next() else { return Ok(None) };
        let controller = first.hierarchy().controllers.first().map(String::as_str);
        let Some(text) = self.read_counter(controller, "cgroup.procs")? else { return Ok(None) };
        if text.len() < FIRST_READ_OF_PROCS {
            return Ok(Some(text.lines().count() as u64));
        }
        // One read returns what fits into a page or the buffer.
        let whole = self.open_counter(controller, "cgroup.procs")?.map(File::from).map(io::read_to_string);
        Ok(whole.transpose()?.map(|text| text.lines().count() as u64))
    }

    /// Reads how long its processes waited; `None` without v2, or where the kernel has no PSI.
    ///
    /// # Errors
    /// Of reading the files.
    fn pressure(&self) -> io::Result<Option<PressureUsage>> {
        let read =
            |file| self.parse_counter(None, file, |text| (pressure_time(text, "some"), pressure_time(text, "full")));
        let Some((cpu_some, cpu_full)) = read("cpu.pressure")? else { return Ok(None) };
        let (memory_some, memory_full) = read("memory.pressure")?.unwrap_or_default();
        let (io_some, io_full) = read("io.pressure")?.unwrap_or_default();
        Ok(Some(PressureUsage { cpu_some, cpu_full, memory_some, memory_full, io_some, io_full }))
    }
}

/// `QUOTA PERIOD` in microseconds; the quota may be `max`.
fn parse_cpu_max(text: &str) -> CpuLimits {
    let mut fields = text.split_whitespace();
    let quota = fields.next().and_then(|quota| quota.parse().ok()).map(Duration::from_micros);
    let period = fields.next().and_then(|period| period.parse().ok()).unwrap_or(100_000);
    CpuLimits { period: Duration::from_micros(period), quota, shares: 0 }
}

/// The weight of v2 (1 to 10000) in the terms of v1 (2 to 262144), the inverse of what container runtimes set.
fn shares_of_weight(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9999
}

impl ReadCounters for CgroupSet {
    fn cgroups(&self) -> &CgroupSet {
        self
    }

    fn open_counter(&self, controller: Option<&str>, file: &'static str) -> io::Result<Option<OwnedFd>> {
        self.of_counter(controller).map_or(Ok(None), |cgroup| open_existing(cgroup, file))
    }
}

impl CgroupSet {
    /// The cgroup with a counter of this controller; of v2, without one.
    pub(super) fn of_counter(&self, controller: Option<&str>) -> Option<&Cgroup> {
        controller.map_or_else(|| self.v2(), |controller| self.with_controller(controller))
    }
}

/// A line of a pressure file: `some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS`.
fn pressure_time(text: &str, line: &str) -> PressureTime {
    let line = text.lines().find_map(|text| text.strip_prefix(line)).unwrap_or("");
    let field = |key: &str| line.split_whitespace().find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
    let hundredths = |key: &str| {
        let (whole, fraction) = field(key)?.split_once('.')?;
        // The kernel writes two digits.
        format!("{whole}{fraction}").parse().ok()
    };
    PressureTime {
        total: Duration::from_micros(field("total").and_then(|total| total.parse().ok()).unwrap_or(0)),
        averages: ["avg10", "avg60", "avg300"].map(|key| hundredths(key).unwrap_or(0)),
    }
}

/// The number in a file; `None` if the file is absent, and for `max`.
fn read_value(cgroup: &Cgroup, file: &str) -> io::Result<Option<u64>> {
    Ok(read_once(cgroup, file)?.and_then(|text| text.trim().parse().ok()))
}

/// The number of a key in a flat keyed file (`KEY VALUE` lines); 0 if it is absent.
fn flat_value(text: &str, key: &str) -> u64 {
    find_flat_value(text, key).unwrap_or(0)
}

/// The number of a key in a flat keyed file.
fn find_flat_value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The times in user and in kernel mode in the text of `cpuacct.usage_all`: a line `PROCESSOR USER SYSTEM` in
/// nanoseconds for each processor, after a line of names.
fn sum_usage_all(text: &str) -> (Duration, Duration) {
    let parse = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    let (user, system) = text.lines().filter_map(parse).fold((0, 0), |(user, system): (u64, u64), of_processor| {
        (user.saturating_add(of_processor.0), system.saturating_add(of_processor.1))
    });
    (Duration::from_nanos(user), Duration::from_nanos(system))
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
    fn cpu_times_of_all_processors_are_added() {
        let times = sum_usage_all("cpu user system\n0 5 10000000\n1 7 20000000\n");
        assert_eq!(times, (Duration::from_nanos(12), Duration::from_millis(30)));
        assert_eq!(sum_usage_all(""), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn cpu_limits_are_parsed() {
        let limits = parse_cpu_max("50000 100000\n");
        assert_eq!((limits.quota, limits.period), (Some(Duration::from_millis(50)), Duration::from_millis(100)));
        assert_eq!(parse_cpu_max("max 20000").quota, None);
        assert_eq!([1, 100, 10_000].map(shares_of_weight), [2, 2597, 262_144]);
    }

    #[test]
    fn reads_pressure() {
        let text =
            "some avg10=0.00 avg60=1.00 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=45\n";
        let times = [pressure_time(text, "some"), pressure_time(text, "full"), pressure_time("", "some")];
        assert_eq!(times.map(|time| time.total), [123, 45, 0].map(Duration::from_micros));
        assert_eq!(times[0].averages, [0, 100, 0]);
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
        // The kernel counts root cgroups of v1 and v2 in different ways: a sum of one may be below that of the other.
        assert_eq!(roots.cpu_total().unwrap().is_some(), roots.cpu_usage().unwrap().is_some());
        let (summary, memory) = (roots.memory_summary().unwrap(), roots.memory_usage().unwrap());
        assert_eq!(summary.is_some(), memory.is_some());
        roots.cpu_limits().unwrap();
    }
}
