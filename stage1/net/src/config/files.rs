//! Reads files below a directory, up to a size limit.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use gantry_host::file::read_stream;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};

/// Opens a directory. Its path may contain symbolic links.
pub(crate) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a regular file in the directory. Symbolic links must stay in the directory; opening a FIFO does not block.
pub(crate) fn open_file(dir: impl AsFd, name: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let fd = rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(File::from(fd))
}

/// Reads the file; `None` if it has more than `limit` bytes.
pub(crate) fn read(file: File, limit: usize) -> io::Result<Option<Vec<u8>>> {
    match read_stream(file, limit as u64) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Ok(None),
        result => result.map(Some),
    }
}

/// The names in a directory, without `.` and `..`, unsorted; `None` if there are more than `limit`.
pub(crate) fn names(dir: impl AsFd, limit: usize) -> io::Result<Option<Vec<OsString>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name == b"." || name == b".." {
            continue;
        }
        if names.len() == limit {
            return Ok(None);
        }
        names.push(OsString::from_vec(name));
    }
    Ok(Some(names))
}

/// The UTF-8 names in a directory, with their inode numbers; `None` if there are more than `limit`.
pub(crate) fn names_and_inodes(dir: impl AsFd, limit: usize) -> io::Result<Option<Vec<(String, u64)>>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if found.len() == limit {
            return Ok(None);
        }
        found.push((name.to_owned(), entry.ino()));
    }
    Ok(Some(found))
}
