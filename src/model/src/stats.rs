//! The resource usage of pods and apps: one sample of their counters. Bytes, nanoseconds and counts; counters count
//! from the creation of the cgroup or the interface, so a rate is the difference of two samples.

use serde::Serialize;

use crate::{AppName, ImageId, PodId, PodName, Timestamp};

/// A sample of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodStats {
    /// The pod.
    pub id: PodId,
    /// Its name, if it has one.
    pub name: Option<PodName>,
    /// When it was started.
    pub started: Timestamp,
    /// When the sample was taken.
    pub sampled: Timestamp,
    /// All its processes together, those of gantry included.
    pub usage: ResourceUsage,
    /// The interfaces of its network namespace; empty in the host's network.
    pub interfaces: Vec<InterfaceUsage>,
    /// Its running apps; empty unless they were sampled.
    pub apps: Vec<AppStats>,
    /// The volumes that were created for it and end with it, as they were last counted; `None`: they were not.
    pub volumes: Option<DiskUsage>,
}

/// A sample of a running app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AppStats {
    /// Its name in the pod.
    pub name: AppName,
    /// Its image.
    #[serde(skip)]
    pub image: Option<ImageId>,
    /// The name by which the image was requested.
    pub image_name: String,
    /// The number of its start, from 0.
    pub attempt: u32,
    /// Its main process, in the host's PID namespace.
    pub pid: u32,
    /// When it was started.
    #[serde(skip)]
    pub started: Timestamp,
    /// Its processes.
    #[serde(flatten)]
    pub usage: ResourceUsage,
    /// Its disk space under its storage limit; `None`: no limit, or not sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageUsage>,
    /// Its writable layer as it was last counted; `None`: it has a storage limit, or was not counted.
    #[serde(skip)]
    pub disk: Option<DiskUsage>,
    /// Its logs, likewise.
    #[serde(skip)]
    pub logs: Option<DiskUsage>,
    /// Its CPU limit and weight; `None` unless they were sampled.
    #[serde(skip)]
    pub cpu_limits: Option<CpuLimitStats>,
    /// The number of its processes; threads count in [`ResourceUsage::pids`]. `None` unless they were sampled.
    #[serde(skip)]
    pub processes: Option<u64>,
}

/// The disk space of an app with a storage limit: of its writable layer and its logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct StorageUsage {
    /// Used bytes.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
    /// The limit of bytes.
    pub limit: u64,
}

/// The disk space of a directory tree, counted file by file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUsage {
    /// Allocated bytes. A file with several names counts once.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
    /// Whether all of it was counted; else the numbers are lower bounds.
    pub is_complete: bool,
    /// When it was counted.
    pub counted: Timestamp,
}

impl AppStats {
    /// The bytes of its writable layer and its logs: those that the file system counts for its storage limit, or those
    /// that were counted.
    #[must_use]
    pub fn disk_bytes(&self) -> Option<u64> {
        match self.storage {
            Some(storage) => Some(storage.bytes),
            // An app of a host pod has no writable layer.
            None if self.image.is_none() => Some(self.logs?.bytes),
            None => Some(self.disk?.bytes.saturating_add(self.logs?.bytes)),
        }
    }
}

/// The CPU limit and weight of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuLimitStats {
    /// The period of the limit, in microseconds.
    pub period_us: u64,
    /// The CPU time in each period, in microseconds; `None`: unlimited.
    pub quota_us: Option<u64>,
    /// The weight, 1024 by default.
    pub shares: u64,
}

/// The counters of a cgroup; `None`: the host does not have the controller.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ResourceUsage {
    /// CPU time.
    pub cpu: Option<CpuStats>,
    /// Memory.
    pub memory: Option<MemoryStats>,
    /// Processes and threads.
    pub pids: Option<PidsStats>,
    /// Block devices.
    pub io: Option<Vec<DeviceStats>>,
    /// Pressure stall information (PSI), where the kernel has it.
    pub pressure: Option<PressureStats>,
}

/// CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CpuStats {
    /// In user and kernel mode, in nanoseconds.
    pub total_ns: u64,
    /// In user mode, in nanoseconds.
    pub user_ns: u64,
    /// In kernel mode, in nanoseconds.
    pub system_ns: u64,
    /// Periods of the CPU limit.
    pub periods: u64,
    /// Periods in which the limit was reached.
    pub throttled_periods: u64,
    /// The time that threads waited for the next period, in nanoseconds.
    pub throttled_ns: u64,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemoryStats {
    /// All memory that is charged, with page cache.
    pub usage: u64,
    /// The usage without the page cache that is reclaimed first (`inactive_file`), never negative.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Page cache.
    pub cache: u64,
    /// Swap; `None` without swap accounting.
    pub swap: Option<u64>,
    /// The limit of this cgroup; an ancestor's may be lower.
    pub limit: Option<u64>,
    /// The highest usage; `None` on v2 before Linux 5.19.
    pub peak: Option<u64>,
    /// How often an allocation reached the limit.
    pub failures: u64,
    /// Processes that the OOM killer has killed.
    pub oom_kills: u64,
    /// Files that are mapped.
    #[serde(skip)]
    pub mapped_file: u64,
    /// The limit of swap; `None`: unlimited, or not counted.
    #[serde(skip)]
    pub swap_limit: Option<u64>,
    /// Page faults.
    #[serde(skip)]
    pub page_faults: u64,
    /// Page faults that read from a disk.
    #[serde(skip)]
    pub major_page_faults: u64,
}

/// Processes and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PidsStats {
    /// The number that exists.
    pub current: u64,
    /// The limit.
    pub limit: Option<u64>,
}

/// Input and output of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DeviceStats {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
}

/// The time that processes waited for a resource, in nanoseconds: `some` of them, or all at once (`full`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PressureStats {
    /// For the CPU.
    pub cpu_some_ns: u64,
    /// For memory.
    pub memory_some_ns: u64,
    /// For memory, all of them.
    pub memory_full_ns: u64,
    /// For I/O.
    pub io_some_ns: u64,
    /// For I/O, all of them.
    pub io_full_ns: u64,
    /// For the CPU, all of them.
    #[serde(skip)]
    pub cpu_full_ns: u64,
    /// The shares of the recent time, for the CPU, memory and I/O.
    #[serde(skip)]
    pub averages: [PressureAverages; 3],
}

/// The share of the last 10, 60 and 300 seconds that processes waited for a resource, in hundredths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PressureAverages {
    /// Some of them.
    pub some: [u32; 3],
    /// All at once.
    pub full: [u32; 3],
}

/// The traffic of a network interface, as the pod sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct InterfaceUsage {
    /// Its name in the pod.
    pub name: String,
    /// Received.
    pub receive: TrafficStats,
    /// Sent.
    pub transmit: TrafficStats,
}

/// Traffic in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TrafficStats {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets with errors.
    pub errors: u64,
    /// Dropped packets.
    pub drops: u64,
}

impl ResourceUsage {
    /// The sum over all block devices: bytes read and bytes written.
    #[must_use]
    pub fn io_bytes(&self) -> (u64, u64) {
        let devices = self.io.as_deref().unwrap_or_default();
        devices.iter().fold((0, 0), |(read, written), io| (read + io.read_bytes, written + io.written_bytes))
    }
}

impl PodStats {
    /// The sum over all interfaces except `lo`: bytes received and bytes sent.
    #[must_use]
    pub fn network_bytes(&self) -> (u64, u64) {
        let outside = self.interfaces.iter().filter(|interface| interface.name != "lo");
        outside.fold((0, 0), |(received, sent), i| (received + i.receive.bytes, sent + i.transmit.bytes))
    }
}

/// The interfaces in the text of `/proc/PID/net/dev` (proc_pid_net(5)). Malformed lines are skipped.
#[must_use]
pub fn parse_net_dev(text: &str) -> Vec<InterfaceUsage> {
    let parse = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let numbers: Vec<u64> = counters.split_whitespace().map_while(|number| number.parse().ok()).collect();
        let traffic = |at: usize| match numbers.get(at..at + 4) {
            Some(&[bytes, packets, errors, drops]) => Some(TrafficStats { bytes, packets, errors, drops }),
            _ => None,
        };
        Some(InterfaceUsage { name: name.trim().to_owned(), receive: traffic(0)?, transmit: traffic(8)? })
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_parsed() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls\n    \
            lo:      10       1    0    0    0     0          0         0       20       2    0    0    0     0\n  \
            eth0: 123 4 5 6 0 0 0 7 890 9 1 2 0 0 0 0\nbroken: 1 2\n";
        let interfaces = parse_net_dev(text);
        assert_eq!(interfaces.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["lo", "eth0"]);
        assert_eq!(interfaces[1].receive, TrafficStats { bytes: 123, packets: 4, errors: 5, drops: 6 });
        assert_eq!(interfaces[1].transmit, TrafficStats { bytes: 890, packets: 9, errors: 1, drops: 2 });
        assert!(parse_net_dev("").is_empty());
    }
}
