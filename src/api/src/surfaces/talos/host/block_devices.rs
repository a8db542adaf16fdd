//! Disks: the block devices of the host, from /sys/block.

use std::fs;
use std::path::Path;

use gantry_host::file::read_bounded;
use gantry_proto::talos::storage::{Disk, DisksResponse};
use tonic::Status;

/// The block devices.
const DIR: &str = "/sys/block";
/// Names of devices that are no disks.
const OTHERS: [&str; 6] = ["loop", "ram", "zram", "fd", "sr", "nbd"];
/// Maximum bytes of a file of a device.
const MAX_FILE: u64 = 4096;
/// Bytes of a sector in `size`, whatever the device's are.
const SECTOR: u64 = 512;

/// Reads the disks, by name. Devices without a medium are left out.
///
/// # Errors
/// `INTERNAL` if /sys is not mounted.
pub(in super::super) fn read() -> Result<DisksResponse, Status> {
    let failed = |error| Status::internal(format!("cannot read {DIR}: {error}"));
    let entries = fs::read_dir(DIR).map_err(failed)?;
    let mut disks: Vec<Disk> = entries.filter_map(|entry| disk(&entry.ok()?.path())).collect();
    disks.sort_by(|one, other| one.device_name.cmp(&other.device_name));
    Ok(DisksResponse { metadata: None, disks })
}

/// `None`: it is no disk, or was removed.
fn disk(dir: &Path) -> Option<Disk> {
    let name = dir.file_name()?.to_str()?;
    let is_other =
        |prefix: &&str| name.strip_prefix(*prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if OTHERS.iter().any(is_other) {
        return None;
    }
    let read = |file: &str| {
        let bytes = read_bounded(&dir.join(file), MAX_FILE).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    let sectors: u64 = read("size")?.parse().ok()?;
    // A device of the device mapper or of a virtual machine has no model.
    let model = read("device/model").or_else(|| read("dm/name")).unwrap_or_default();
    // `!` stands for `/` in the names of sysfs (`cciss!c0d0`).
    let device_name = format!("/dev/{}", name.replace('!', "/"));
    (sectors > 0).then_some(Disk { size: sectors.saturating_mul(SECTOR), model, device_name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_contents_are_read(size in "[0-9]{0,25}|[ -~]{0,8}|\\PC{0,8}", model: Vec<u8>) {
            let dir = tempfile::tempdir().unwrap();
            let device = dir.path().join("sda");
            fs::create_dir_all(device.join("device")).unwrap();
            fs::write(device.join("size"), &size).unwrap();
            fs::write(device.join("device/model"), model).unwrap();
            let sectors = size.trim().parse::<u64>().ok().filter(|sectors| *sectors > 0);
            let wanted = sectors.map(|sectors| sectors.saturating_mul(SECTOR));
            prop_assert_eq!(disk(&device).map(|disk| disk.size), wanted);
        }
    }

    #[test]
    fn sizes_are_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("cciss!c0d0");
        fs::create_dir_all(device.join("device")).unwrap();
        fs::write(device.join("size"), "2048\n").unwrap();
        fs::write(device.join("device/model"), "Model X  \n").unwrap();
        let found = disk(&device).unwrap();
        assert_eq!((found.size, &found.model[..], &found.device_name[..]), (1 << 20, "Model X", "/dev/cciss/c0d0"));
        for name in ["loop0", "ram12", "sr0"] {
            let device = dir.path().join(name);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("size"), "2048\n").unwrap();
            assert_eq!(disk(&device), None);
        }
    }
}
