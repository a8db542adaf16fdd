//! Device nodes of the host.

use std::io;

use rustix::fs::{AtFlags, CWD, FileType};

/// The most device nodes of one directory tree.
const MAX_DEVICES: usize = 4096;
/// The most directories of one directory tree.
const MAX_DIRECTORIES: usize = 1024;

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNode {
    /// Its path below the directory that was listed; empty: the path itself is a node.
    pub below: String,
    /// Whether it is a block device; otherwise a character device.
    pub is_block: bool,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// The device node at this path; if it is a directory, all nodes below it, sorted by path. Symbolic links are followed
/// at the path itself only. `is_skipped` leaves out paths below the directory.
///
/// # Errors
/// Of stat(2) or of reading the directory; [`io::ErrorKind::InvalidInput`] if the path is neither a device nor a
/// directory; [`io::ErrorKind::FileTooLarge`] if too many nodes or directories are below it.
pub fn list_devices(path: &str, is_skipped: impl Fn(&str) -> bool) -> io::Result<Vec<DeviceNode>> {
    let stat = rustix::fs::stat(path)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice | FileType::CharacterDevice => return Ok(vec![node(String::new(), &stat)]),
        FileType::Directory => {}
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a device nor a directory")),
    }
    let mut nodes = Vec::new();
    let mut dirs = vec![String::new()];
    let mut next = 0;
    while let Some(dir) = dirs.get(next).cloned() {
        next += 1;
        let entries = match std::fs::read_dir(format!("{path}/{dir}")) {
            Ok(entries) => entries,
            // A device was unplugged.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !dir.is_empty() => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            let below = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            if is_skipped(&below) {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(CWD, format!("{path}/{below}"), AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::BlockDevice | FileType::CharacterDevice => nodes.push(node(below, &stat)),
                FileType::Directory => dirs.push(below),
                _ => {}
            }
            if nodes.len() > MAX_DEVICES || dirs.len() > MAX_DIRECTORIES {
                let why = format!("more than {MAX_DEVICES} devices or {MAX_DIRECTORIES} directories are below it");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            }
        }
    }
    nodes.sort_by(|a, b| a.below.cmp(&b.below));
    Ok(nodes)
}

fn node(below: String, stat: &rustix::fs::Stat) -> DeviceNode {
    DeviceNode {
        below,
        is_block: FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice,
        major: rustix::fs::major(stat.st_rdev),
        minor: rustix::fs::minor(stat.st_rdev),
        mode: stat.st_mode & 0o777,
        uid: stat.st_uid,
        gid: stat.st_gid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_directories_are_listed() {
        let null = list_devices("/dev/null", |_| false).unwrap();
        assert_eq!(null.len(), 1);
        assert_eq!((null[0].below.as_str(), null[0].is_block, null[0].major, null[0].minor), ("", false, 1, 3));
        let all = list_devices("/dev", |below| below == "pts").unwrap();
        assert!(all.iter().any(|node| node.below == "null") && all.iter().all(|node| !node.below.starts_with("pts/")));
        assert_eq!(list_devices("/etc/passwd", |_| false).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(list_devices("/no/such", |_| false).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
