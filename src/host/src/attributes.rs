//! Copies owner, mode, times and extended attributes from one directory to another.

use std::ffi::CStr;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

/// Permission bits, with set-user-ID, set-group-ID and the sticky bit.
const PERMISSIONS: u32 = 0o7777;

/// Gives a directory the owner, permissions, extended attributes (`user.*` and access control lists) and modification
/// time of another one. If an id of the owner does not exist on the mount of `to`, the owner stays.
///
/// # Errors
/// The error of the system call that failed.
pub fn copy_directory_attributes(from: &Path, to: &Path) -> rustix::io::Result<()> {
    let (source, target) = (rustix::fs::stat(from)?, rustix::fs::stat(to)?);
    if (source.st_uid, source.st_gid) != (target.st_uid, target.st_gid) {
        // Before the mode: a change of the owner may clear bits of it.
        match rustix::fs::chown(to, Some(Uid::from_raw(source.st_uid)), Some(Gid::from_raw(source.st_gid))) {
            Ok(()) | Err(Errno::OVERFLOW) => {}
            Err(error) => return Err(error),
        }
    }
    if source.st_mode & PERMISSIONS != target.st_mode & PERMISSIONS {
        rustix::fs::chmod(to, Mode::from_raw_mode(source.st_mode & PERMISSIONS))?;
    }
    copy_extended_attributes(from, to)?;
    let time = |tv_sec, nanoseconds| Timespec { tv_sec, tv_nsec: i64::try_from(nanoseconds).unwrap_or(0) };
    let modified = time(source.st_mtime, source.st_mtime_nsec);
    let times = Timestamps { last_access: modified, last_modification: modified };
    rustix::fs::utimensat(CWD, to, &times, AtFlags::empty())
}

fn copy_extended_attributes(from: &Path, to: &Path) -> rustix::io::Result<()> {
    let mut names = [0; 512];
    let listed = match rustix::fs::listxattr(from, &mut names) {
        Ok(length) => names[..length].to_vec(),
        // A file system without extended attributes.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(Errno::RANGE) => {
            let mut names = vec![0; rustix::fs::listxattr_query(from)?];
            let length = rustix::fs::listxattr(from, names.as_mut_slice())?;
            names.truncate(length);
            names
        }
        Err(error) => return Err(error),
    };
    for name in listed.split_inclusive(|&byte| byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        // The others are overlayfs's own, or the host's security module sets them.
        if !name.to_bytes().starts_with(b"user.") && !name.to_bytes().starts_with(b"system.posix_acl_") {
            continue;
        }
        let mut value = vec![0; rustix::fs::getxattr_query(from, name)?];
        let length = rustix::fs::getxattr(from, name, value.as_mut_slice())?;
        rustix::fs::setxattr(to, name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn attributes_of_directories_are_copied() {
        let temp = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| temp.path().join(name));
        for dir in [&from, &to] {
            std::fs::create_dir(dir).unwrap();
        }
        rustix::fs::chmod(&from, Mode::from_raw_mode(0o3710)).unwrap();
        let time = Timespec { tv_sec: 1_600_000_000, tv_nsec: 5 };
        let times = Timestamps { last_access: time, last_modification: time };
        // More names than the buffer for the first call takes.
        for number in 0..20 {
            let name = format!("user.{number:0>40}");
            rustix::fs::setxattr(&from, &name, b"value", XattrFlags::empty()).unwrap();
        }
        rustix::fs::utimensat(CWD, &from, &times, AtFlags::empty()).unwrap();
        copy_directory_attributes(&from, &to).unwrap();
        let metadata = std::fs::metadata(&to).unwrap();
        assert_eq!(metadata.mode() & PERMISSIONS, 0o3710);
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_600_000_000, 5));
        let mut value = [0; 5];
        rustix::fs::getxattr(&to, format!("user.{:0>40}", 19), &mut value).unwrap();
        assert_eq!(&value, b"value");
    }
}
