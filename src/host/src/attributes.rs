//! Copies owner, mode, times and extended attributes from one directory or file to another.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

/// Permission bits, with set-user-ID, set-group-ID and the sticky bit.
const PERMISSIONS: u32 = 0o7777;
/// The kernel's limit on the list of names and on a value of extended attributes, in bytes (`XATTR_LIST_MAX`,
/// `XATTR_SIZE_MAX`).
const MAX_XATTR: usize = 64 << 10;

/// Gives a directory the owner, permissions, extended attributes ([`copy_extended_attributes`]) and modification time
/// of another one. If an id of the owner does not exist on the mount of `to`, the owner stays.
///
/// # Errors
/// The error of the system call that failed.
pub fn copy_directory_attributes(from: &Path, to: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let (from, to) = (rustix::fs::open(from, flags, Mode::empty())?, rustix::fs::open(to, flags, Mode::empty())?);
    let (source, target) = (rustix::fs::fstat(&from)?, rustix::fs::fstat(&to)?);
    if (source.st_uid, source.st_gid) != (target.st_uid, target.st_gid) {
        // Before the mode: a change of the owner may clear bits of it.
        match rustix::fs::fchown(&to, Some(Uid::from_raw(source.st_uid)), Some(Gid::from_raw(source.st_gid))) {
            Ok(()) | Err(Errno::OVERFLOW) => {}
            Err(error) => return Err(error),
        }
    }
    if source.st_mode & PERMISSIONS != target.st_mode & PERMISSIONS {
        rustix::fs::fchmod(&to, Mode::from_raw_mode(source.st_mode & PERMISSIONS))?;
    }
    copy_extended_attributes(&from, &to)?;
    let time = |tv_sec, nanoseconds| Timespec { tv_sec, tv_nsec: i64::try_from(nanoseconds).unwrap_or(0) };
    let modified = time(source.st_mtime, source.st_mtime_nsec);
    rustix::fs::futimens(&to, &Timestamps { last_access: modified, last_modification: modified })
}

/// Copies the extended attributes that matter to programs: `user.*`, file capabilities and access control lists. The
/// others are overlayfs's own, or the host's security module sets them.
///
/// # Errors
/// The error of the system call that failed. A file system without extended attributes has none.
pub fn copy_extended_attributes(from: impl AsFd, to: impl AsFd) -> rustix::io::Result<()> {
    let mut names = [0; 512];
    let listed = match rustix::fs::flistxattr(&from, &mut names) {
        Ok(length) => names[..length].to_vec(),
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(Errno::RANGE) => {
            let mut names = vec![0; MAX_XATTR];
            let length = rustix::fs::flistxattr(&from, names.as_mut_slice())?;
            names.truncate(length);
            names
        }
        Err(error) => return Err(error),
    };
    let mut value = Vec::new();
    for name in listed.split_inclusive(|&byte| byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok()) {
        let is_copied = name.to_bytes().starts_with(b"user.")
            || [c"security.capability", c"system.posix_acl_access", c"system.posix_acl_default"].contains(&name);
        if is_copied {
            value.resize(MAX_XATTR, 0);
            let length = rustix::fs::fgetxattr(&from, name, value.as_mut_slice())?;
            rustix::fs::fsetxattr(&to, name, &value[..length], XattrFlags::empty())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use rustix::fs::{AtFlags, CWD};

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
