//! Copies a directory of an image into a new volume, by descriptors and without following links.
//!
//! The image is hostile. Its size was counted when it was unpacked, and a copy must not exceed that ([`Budget`]): holes
//! stay holes, and hard links stay hard links. No other process uses the volume yet.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use gantry_contract::plan::ImageSize;
use gantry_host::attributes::copy_extended_attributes;
use gantry_host::file_id::FileId;
use rustix::fs::{Advice, AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps};
use rustix::io::Errno;

/// Maximum depth of directories. An image can nest them without limit.
const MAX_DEPTH: usize = 256;
/// Maximum memory for the paths of files with several links, in bytes. Beyond it, links become files.
const MAX_LINK_PATHS: usize = 32 << 20;

/// A copy failed.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// A system call failed.
    Io(io::Error),
    /// Directories are nested deeper than [`MAX_DEPTH`].
    TooDeep,
    /// The budget is exceeded.
    OverBudget,
}

impl<E: Into<io::Error>> From<E> for CopyError {
    fn from(error: E) -> Self {
        Self::Io(error.into())
    }
}

type Result<T> = std::result::Result<T, CopyError>;

/// The space that copies may still use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    bytes: u64,
    entries: u64,
}

impl Budget {
    /// The budget of an image of this size. Holes end at block boundaries, so the data to copy can be more than the
    /// bytes that were counted: hence twice the size, and a reserve for small images.
    pub(crate) fn from_image(size: Option<ImageSize>) -> Self {
        const SPARE_BYTES: u64 = 64 << 20;
        let size = size.unwrap_or(ImageSize { bytes: u64::MAX, entries: u64::MAX });
        Self { bytes: size.bytes.saturating_mul(2).saturating_add(SPARE_BYTES), entries: size.entries }
    }

    fn take_bytes(&mut self, bytes: u64) -> Result<()> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(CopyError::OverBudget)?;
        Ok(())
    }

    fn take_entry(&mut self) -> Result<()> {
        self.entries = self.entries.checked_sub(1).ok_or(CopyError::OverBudget)?;
        Ok(())
    }
}

/// Copies the contents of `from` to `to`, and the owner, mode, times and extended attributes of `from` itself.
/// Directories, files, symbolic links and FIFOs are copied; devices and sockets are left out. Directories in `covered`,
/// relative to `from`, stay empty: other volumes are mounted there.
pub(crate) fn copy_tree(from: &OwnedFd, to: &OwnedFd, budget: &mut Budget, covered: &BTreeSet<PathBuf>) -> Result<()> {
    let mut copy = TreeCopy { top: to, budget, covered, links: HashMap::new(), link_bytes: 0 };
    copy.copy_dir(from, to, Path::new(""), 0)?;
    copy_metadata(from, to, &rustix::fs::fstat(from)?)
}

/// Syncs the files and directories of a copied tree. syncfs(2) would also wait for the data of other programs on the
/// file system, which may be gigabytes.
pub(crate) fn sync_tree(top: &OwnedFd) -> io::Result<()> {
    // On Linux, POSIX_FADV_DONTNEED starts writing dirty pages without waiting. The second pass then seldom waits for
    // more than one commit of the file system's journal.
    visit_tree(top, &mut |file, _| Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?))?;
    visit_tree(top, &mut |file, kind| match kind {
        FileType::Directory => gantry_host::file::sync_dir(file),
        _ => Ok(rustix::fs::fsync(file)?),
    })
}

/// Calls `act` with each file and directory of a copied tree and its type, a directory after its entries.
fn visit_tree(dir: &OwnedFd, act: &mut dyn FnMut(&OwnedFd, FileType) -> io::Result<()>) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            known => known,
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match kind {
            FileType::Directory if name != c"." && name != c".." => {
                visit_tree(&rustix::fs::openat(dir, name, flags | OFlags::DIRECTORY, Mode::empty())?, act)?;
            }
            FileType::RegularFile => act(&rustix::fs::openat(dir, name, flags, Mode::empty())?, kind)?,
            // The directory's own sync covers names of other kinds.
            _ => {}
        }
    }
    act(dir, FileType::Directory)
}

struct TreeCopy<'a> {
    /// The volume's top directory.
    top: &'a OwnedFd,
    budget: &'a mut Budget,
    covered: &'a BTreeSet<PathBuf>,
    /// Files with several links: a path of the copy, relative to `top`.
    links: HashMap<FileId, PathBuf>,
    /// The length of all paths in `links`.
    link_bytes: usize,
}

impl TreeCopy<'_> {
    fn copy_dir(&mut self, from: &OwnedFd, to: &OwnedFd, path: &Path, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(CopyError::TooDeep);
        }
        for entry in Dir::read_from(from)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.budget.take_entry()?;
            self.copy_entry(from, to, name, path, depth)?;
        }
        Ok(())
    }

    fn copy_entry(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, path: &Path, depth: usize) -> Result<()> {
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700))?;
                let source = rustix::fs::openat(from, name, flags, Mode::empty())?;
                let target = rustix::fs::openat(to, name, flags, Mode::empty())?;
                let path = path.join(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())));
                if !self.covered.contains(&path) {
                    self.copy_dir(&source, &target, &path, depth + 1)?;
                }
                copy_metadata(&source, &target, &stat)
            }
            FileType::RegularFile => self.copy_file(from, to, name, path, &stat),
            FileType::Symlink => {
                let text = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&text, to, name)?;
                copy_metadata_at(to, name, &stat)
            }
            FileType::Fifo => {
                rustix::fs::mknodat(to, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
                copy_metadata_at(to, name, &stat)?;
                Ok(rustix::fs::chmodat(to, name, Mode::from_raw_mode(stat.st_mode & 0o7777), AtFlags::empty())?)
            }
            _ => Ok(()),
        }
    }

    fn copy_file(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, path: &Path, stat: &Stat) -> Result<()> {
        let file = FileId::from(stat);
        if let Some(first) = self.links.get(&file).filter(|_| stat.st_nlink > 1) {
            return Ok(rustix::fs::linkat(self.top, first, to, name, AtFlags::empty())?);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = File::from(rustix::fs::openat(from, name, flags, Mode::empty())?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = File::from(rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?);
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        self.copy_data(&source, &target, length)?;
        copy_metadata(&source, &target, stat)?;
        let path = path.join(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())));
        let bytes = path.as_os_str().len();
        if stat.st_nlink > 1 && self.link_bytes + bytes <= MAX_LINK_PATHS {
            self.link_bytes += bytes;
            self.links.insert(file, path);
        }
        Ok(())
    }

    /// Copies the data and keeps the holes.
    fn copy_data(&mut self, mut source: &File, mut target: &File, length: u64) -> Result<()> {
        let mut at = 0;
        while at < length {
            let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                // The file system does not support holes.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(error) => return Err(error.into()),
            };
            let end = match rustix::fs::seek(source, SeekFrom::Hole(start)) {
                Ok(end) => end.min(length),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => length,
                Err(error) => return Err(error.into()),
            };
            let count = end.saturating_sub(start);
            self.budget.take_bytes(count)?;
            rustix::fs::seek(source, SeekFrom::Start(start))?;
            rustix::fs::seek(target, SeekFrom::Start(start))?;
            if count == 0 || io::copy(&mut io::Read::take(&mut source, count), &mut target)? < count {
                break;
            }
            at = end;
        }
        Ok(rustix::fs::ftruncate(target, length)?)
    }
}

/// Copies owner, mode, extended attributes and times. The owner is first: changing it clears set-user-ID bits and file
/// capabilities.
fn copy_metadata(source: impl AsFd, target: impl AsFd, stat: &Stat) -> Result<()> {
    rustix::fs::fchown(
        &target,
        Some(rustix::fs::Uid::from_raw(stat.st_uid)),
        Some(rustix::fs::Gid::from_raw(stat.st_gid)),
    )?;
    rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    copy_extended_attributes(&source, &target)?;
    Ok(rustix::fs::futimens(&target, &times(stat))?)
}

/// Copies owner and times by name, for files that opening would follow (links) or block on (FIFOs).
fn copy_metadata_at(dir: &OwnedFd, name: &CStr, stat: &Stat) -> Result<()> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(rustix::fs::utimensat(dir, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |sec, nsec: i64| Timespec { tv_sec: sec, tv_nsec: nsec };
    Timestamps {
        last_access: time(stat.st_atime as _, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime as _, stat.st_mtime_nsec as _),
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
