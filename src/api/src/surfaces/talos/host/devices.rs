//! DiskStats and NetworkDeviceStats.

use gantry_proto::talos::machine::{DiskStat, DiskStats, NetDev, NetworkDeviceStats};
use procfs::Current as _;
use tonic::Status;

use super::unreadable;

/// Reads /proc/diskstats. Sectors have 512 bytes, times are in milliseconds.
///
/// # Errors
/// `INTERNAL` if the file cannot be read.
pub(in super::super) fn disks() -> Result<DiskStats, Status> {
    let found = procfs::DiskStats::current().map_err(unreadable("/proc/diskstats"))?;
    let devices: Vec<DiskStat> = found.0.into_iter().map(disk).collect();
    let total = devices.iter().fold(DiskStat::default(), |total, disk| sum_disks(&total, disk));
    Ok(DiskStats { metadata: None, total: Some(total), devices })
}

fn disk(found: procfs::DiskStat) -> DiskStat {
    DiskStat {
        name: found.name,
        read_completed: found.reads,
        read_merged: found.merged,
        read_sectors: found.sectors_read,
        read_time_ms: found.time_reading,
        write_completed: found.writes,
        write_merged: found.writes_merged,
        write_sectors: found.sectors_written,
        write_time_ms: found.time_writing,
        io_in_progress: found.in_progress,
        io_time_ms: found.time_in_progress,
        io_time_weighted_ms: found.weighted_time_in_progress,
        discard_completed: found.discards.unwrap_or(0),
        discard_merged: found.discards_merged.unwrap_or(0),
        discard_sectors: found.sectors_discarded.unwrap_or(0),
        discard_time_ms: found.time_discarding.unwrap_or(0),
    }
}

/// The sum of all counters. Like Talos', it counts a partition and its disk.
fn sum_disks(one: &DiskStat, other: &DiskStat) -> DiskStat {
    macro_rules! sum {
        ($($field:ident),* $(,)?) => {
            DiskStat { name: String::new(), $($field: one.$field.saturating_add(other.$field)),* }
        };
    }
    sum!(
        read_completed,
        read_merged,
        read_sectors,
        read_time_ms,
        write_completed,
        write_merged,
        write_sectors,
        write_time_ms,
        io_in_progress,
        io_time_ms,
        io_time_weighted_ms,
        discard_completed,
        discard_merged,
        discard_sectors,
        discard_time_ms,
    )
}

/// Reads /proc/net/dev.
///
/// # Errors
/// `INTERNAL` if the file cannot be read.
pub(in super::super) fn networks() -> Result<NetworkDeviceStats, Status> {
    let found = procfs::net::dev_status().map_err(unreadable("/proc/net/dev"))?;
    let mut devices: Vec<NetDev> = found.into_values().map(network).collect();
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let empty = NetDev { name: names.join(", "), ..NetDev::default() };
    let total = devices.iter().fold(empty, |total, device| sum_networks(&total, device));
    Ok(NetworkDeviceStats { metadata: None, total: Some(total), devices })
}

fn network(found: procfs::net::DeviceStatus) -> NetDev {
    NetDev {
        name: found.name,
        rx_bytes: found.recv_bytes,
        rx_packets: found.recv_packets,
        rx_errors: found.recv_errs,
        rx_dropped: found.recv_drop,
        rx_fifo: found.recv_fifo,
        rx_frame: found.recv_frame,
        rx_compressed: found.recv_compressed,
        rx_multicast: found.recv_multicast,
        tx_bytes: found.sent_bytes,
        tx_packets: found.sent_packets,
        tx_errors: found.sent_errs,
        tx_dropped: found.sent_drop,
        tx_fifo: found.sent_fifo,
        tx_collisions: found.sent_colls,
        tx_carrier: found.sent_carrier,
        tx_compressed: found.sent_compressed,
    }
}

/// The sum of all counters, loopback included as in Talos, under the names of all devices.
fn sum_networks(one: &NetDev, other: &NetDev) -> NetDev {
    macro_rules! sum {
        ($($field:ident),* $(,)?) => {
            NetDev { name: one.name.clone(), $($field: one.$field.saturating_add(other.$field)),* }
        };
    }
    sum!(
        rx_bytes,
        rx_packets,
        rx_errors,
        rx_dropped,
        rx_fifo,
        rx_frame,
        rx_compressed,
        rx_multicast,
        tx_bytes,
        tx_packets,
        tx_errors,
        tx_dropped,
        tx_fifo,
        tx_collisions,
        tx_carrier,
        tx_compressed,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_sums() {
        let disk = |reads| DiskStat { name: "sda".into(), read_completed: reads, ..DiskStat::default() };
        let total = sum_disks(&disk(1), &disk(2));
        assert_eq!((total.read_completed, &total.name[..]), (3, ""));
        let found = networks().unwrap();
        let total = found.total.unwrap();
        assert_eq!(total.rx_bytes, found.devices.iter().map(|device| device.rx_bytes).sum::<u64>());
        assert!(total.name.split(", ").any(|name| name == "lo"));
        assert!(disks().is_ok());
    }
}
