//! The kernel's boot id.

use std::io;
use std::path::Path;

use crate::file;

/// The kernel's file with the random UUID of this boot (random(4)).
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The length of a UUID in text.
const UUID_LENGTH: usize = 36;

/// Reads the boot id.
///
/// # Errors
/// The error of reading [`BOOT_ID`]; [`io::ErrorKind::InvalidData`] if the file contains no UUID. With an empty boot
/// id, a process would believe that the host was rebooted.
pub fn read_boot_id() -> io::Result<String> {
    read_from(Path::new(BOOT_ID))
}

fn read_from(path: &Path) -> io::Result<String> {
    let bytes = file::read_bounded(path, 64)?;
    let id = std::str::from_utf8(&bytes).map(str::trim).ok().filter(|id| is_uuid(id));
    id.map(str::to_owned).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the content is not a UUID"))
}

fn is_uuid(text: &str) -> bool {
    let dashes = |(index, byte): (usize, u8)| {
        if matches!(index, 8 | 13 | 18 | 23) { byte == b'-' } else { byte.is_ascii_hexdigit() }
    };
    text.len() == UUID_LENGTH && text.bytes().enumerate().all(dashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_has_one_id() {
        assert_eq!(read_boot_id().unwrap(), read_boot_id().unwrap());
    }

    #[test]
    fn only_a_uuid_is_a_boot_id() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("boot_id");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_from(&path).map_err(|error| error.kind())
        };
        let good = "7d5f6c1e-0000-4000-8000-00000000b007";
        assert_eq!(read(&format!("{good}\n")).as_deref(), Ok(good));
        let short = &good[1..];
        for bad in ["", "\n", short, &format!("{good}0"), &good.replace('-', "0"), &good.replace('7', "x")] {
            assert_eq!(read(bad), Err(io::ErrorKind::InvalidData), "{bad:?}");
        }
    }
}
