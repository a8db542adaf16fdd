//! Sets owner, mode, extended attributes and times of files, always in this order: changing the owner drops setuid bits
//! and capabilities, and changing anything changes the times.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::entries::Meta;
use super::error::UnpackError;

/// The attribute that makes an overlayfs directory hide lower ones.
const OPAQUE: &str = "trusted.overlay.opaque";

/// Applies all metadata to an open file or directory.
pub(crate) fn apply(file: impl AsFd, meta: &Meta, path: &[u8]) -> Result<(), UnpackError> {
    let file = file.as_fd();
    rustix::fs::fchown(file, Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)))
        .map_err(|e| UnpackError::write("set the owner of", path, e))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(meta.mode))
        .map_err(|e| UnpackError::write("set the mode of", path, e))?;
    for (name, value) in &meta.xattrs {
        rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty())
            .map_err(|e| UnpackError::write("set an extended attribute of", path, e))?;
    }
    rustix::fs::futimens(file, &times(meta.mtime)).map_err(|e| UnpackError::write("set the time of", path, e))
}

/// Applies owner, mode (not to symbolic links, which have none) and times to files that must not be opened: links,
/// devices, FIFOs. Layers set no extended attributes on them.
pub(crate) fn apply_unopened(dir: impl AsFd, base: &[u8], meta: &Meta, kind: FileType) -> Result<(), Errno> {
    let dir = dir.as_fd();
    let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
    rustix::fs::chownat(dir, base, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if kind != FileType::Symlink {
        // An O_PATH descriptor does not open the FIFO or device; its /proc link cannot be swapped for another file.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(dir, base, flags, Mode::empty())?;
        rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_raw_fd()), Mode::from_raw_mode(meta.mode))?;
    }
    rustix::fs::utimensat(dir, base, &times(meta.mtime), AtFlags::SYMLINK_NOFOLLOW)
}

/// Reads the metadata that [`apply`] sets, from an open file or directory of another layer.
pub(crate) fn read(file: impl AsFd) -> Result<Meta, Errno> {
    let file = file.as_fd();
    let mut meta = of_stat(&rustix::fs::fstat(file)?);
    let mut names = vec![0; rustix::fs::flistxattr_query(file)?];
    let length = rustix::fs::flistxattr(file, names.as_mut_slice())?;
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(b"trusted.") || name == b"security.selinux" {
            continue;
        }
        let mut value = vec![0; rustix::fs::fgetxattr_query(file, name)?];
        let length = rustix::fs::fgetxattr(file, name, value.as_mut_slice())?;
        value.truncate(length);
        meta.xattrs.push((name.to_vec(), value));
    }
    Ok(meta)
}

/// Owner, mode and time of a `stat`.
pub(crate) fn of_stat(stat: &rustix::fs::Stat) -> Meta {
    Meta {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        xattrs: Vec::new(),
    }
}

/// Sets both times; access times of layers are not kept.
pub(crate) fn times((seconds, nanos): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Makes an overlay directory opaque.
pub(crate) fn set_opaque(dir: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fsetxattr(dir, OPAQUE, b"y", XattrFlags::empty())
}

/// Whether an overlay directory is opaque.
pub(crate) fn is_opaque(dir: &OwnedFd) -> Result<bool, Errno> {
    let mut value = [0u8; 1];
    match rustix::fs::fgetxattr(dir, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(value[..length] == *b"y"),
        Err(Errno::NODATA) => Ok(false),
        Err(error) => Err(error),
    }
}
