//! Reading files and streams that others wrote, up to a limit; files that get their name when they are complete; files
//! in memory; syncing directories.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// The initial size of a buffer. Most files below `/proc` fit, whose size is not known.
const MIN_CAPACITY: usize = 512;

/// A new file that gets its name when it is complete. A kill before that leaves nothing of it, or a complete file with
/// the temporary name. On a file system without unnamed files (`O_TMPFILE` of open(2)), it has the temporary name from
/// the start.
#[derive(Debug)]
pub struct NewFile<'d> {
    dir: BorrowedFd<'d>,
    file: File,
    temporary: String,
    has_temporary_name: bool,
}

impl<'d> NewFile<'d> {
    /// Creates the file in this directory, in which nothing has the name `temporary`.
    ///
    /// # Errors
    /// The error of open(2).
    pub fn create(dir: BorrowedFd<'d>, temporary: String, mode: Mode) -> rustix::io::Result<Self> {
        let (file, has_temporary_name) = create_file(dir, &temporary, mode)?;
        Ok(Self { dir, file, temporary, has_temporary_name })
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the complete file its name, in place of a file that has it.
    ///
    /// # Errors
    /// The error of linkat(2) or renameat(2).
    pub fn publish(mut self, name: impl Arg + Copy) -> rustix::io::Result<()> {
        if !self.has_temporary_name {
            match self.link(name) {
                Err(Errno::EXIST) => {}
                linked => return linked,
            }
            self.link(self.temporary.as_str())?;
            self.has_temporary_name = true;
        }
        rustix::fs::renameat(self.dir, self.temporary.as_str(), self.dir, name)?;
        self.has_temporary_name = false;
        Ok(())
    }

    /// Gives the complete file its name, which no file may have.
    ///
    /// # Errors
    /// The error of linkat(2): EEXIST if a file has the name.
    pub fn publish_new(self, name: impl Arg) -> rustix::io::Result<()> {
        self.link(name)
    }

    fn link(&self, name: impl Arg) -> rustix::io::Result<()> {
        // By descriptor (AT_EMPTY_PATH), kernels before 6.10 demand a capability.
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::linkat(CWD, path, self.dir, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if self.has_temporary_name {
            let _left_behind = rustix::fs::unlinkat(self.dir, self.temporary.as_str(), AtFlags::empty());
        }
    }
}

/// Creates a file without a name for reading and writing, of mode 0600, on the file system of `dir`. The kernel removes
/// it when it is closed. On a file system without unnamed files, it has a name for a moment.
///
/// # Errors
/// The error of open(2), getrandom(2) or unlink(2).
pub fn create_unnamed(dir: &Path) -> io::Result<File> {
    let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let temporary = format!(".gantry.{:032x}.tmp", u128::from_ne_bytes(crate::random::bytes()?));
    let (file, has_temporary_name) = create_file(dir.as_fd(), &temporary, Mode::RUSR | Mode::WUSR)?;
    if has_temporary_name {
        rustix::fs::unlinkat(&dir, temporary.as_str(), AtFlags::empty())?;
    }
    Ok(file)
}

/// Creates a file without a name or, on a file system that has no such files, with this one; returns whether it has it.
fn create_file(dir: BorrowedFd<'_>, temporary: &str, mode: Mode) -> rustix::io::Result<(File, bool)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, ".", flags | OFlags::TMPFILE, mode) {
        Ok(file) => Ok((file.into(), false)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            Ok((rustix::fs::openat(dir, temporary, flags, mode)?.into(), true))
        }
        Err(errno) => Err(errno),
    }
}

/// Whether an error of opening a file means that there is none, perhaps because what should be its directory is another
/// file.
#[must_use]
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reads a whole file of at most `limit` bytes. A FIFO or a device in its place does not block and is an error.
///
/// # Errors
/// The error of open(2) or read(2); [`io::ErrorKind::InvalidData`] if it is not a regular file;
/// [`io::ErrorKind::FileTooLarge`] if it is longer.
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    read_open_file(File::from(rustix::fs::open(path, flags, Mode::empty())?), limit)
}

/// Reads a file of the kernel below `/proc`, in which names and paths of others may be any bytes: those that are not
/// UTF-8 are replaced.
///
/// # Errors
/// The error of open(2) or read(2).
pub fn read_lossy(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// Reads an open file to its end, at most `limit` bytes.
///
/// # Errors
/// The error of read(2); [`io::ErrorKind::InvalidData`] if it is not a regular file; [`io::ErrorKind::FileTooLarge`] if
/// it is longer.
pub fn read_open_file(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
    }
    // One byte more, so that the end of the file is found without growing the buffer.
    read_sized(file, limit, metadata.len().saturating_add(1))
}

/// Reads an open file from an offset to its end, at most `limit` bytes. `size` is the file's in bytes, if it was not
/// changed since.
///
/// # Errors
/// The error of lseek(2) or read(2); [`io::ErrorKind::FileTooLarge`] if more bytes follow.
pub fn read_from(mut file: &File, offset: u64, size: u64, limit: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    read_sized(file, limit, size.saturating_sub(offset).saturating_add(1))
}

/// Gives the file `from` the name `to`; an older file of that name gets the name `from`.
///
/// Where a rename replaces a file, ext4 first writes the new one to the disk (auto_da_alloc, ext4(5)), which takes 0.3
/// to 2 ms; an exchange of both names does not wait. Without an older file, and on file systems that cannot exchange
/// names, it is a rename.
///
/// # Errors
/// The error of renameat2(2).
pub fn exchange(dir: impl AsFd, from: impl Arg + Copy, to: impl Arg + Copy) -> io::Result<()> {
    match rustix::fs::renameat_with(&dir, from, &dir, to, RenameFlags::EXCHANGE) {
        Err(Errno::NOENT | Errno::INVAL) => Ok(rustix::fs::renameat(&dir, from, &dir, to)?),
        other => Ok(other?),
    }
}

/// Reads a stream to its end, at most `limit` bytes.
///
/// # Errors
/// The error of the stream; [`io::ErrorKind::FileTooLarge`] if it is longer.
pub fn read_stream(stream: impl io::Read, limit: u64) -> io::Result<Vec<u8>> {
    read_sized(stream, limit, 0)
}

/// [`read_stream`] of an expected size.
fn read_sized(stream: impl io::Read, limit: u64, size: u64) -> io::Result<Vec<u8>> {
    let size = usize::try_from(size.min(limit)).unwrap_or(0).max(MIN_CAPACITY);
    let mut bytes = Vec::with_capacity(size);
    stream.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {limit} bytes")));
    }
    Ok(bytes)
}

/// Reads a stream of UTF-8 to its end, at most `limit` bytes.
///
/// # Errors
/// The error of the stream; [`io::ErrorKind::FileTooLarge`] if it is longer; [`io::ErrorKind::InvalidData`] if it is
/// not UTF-8.
pub fn read_text(stream: impl io::Read, limit: u64) -> io::Result<String> {
    let bytes = read_stream(stream, limit)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Reads the first `limit` bytes of a stream, or all if it is shorter, and ignores the rest.
///
/// # Errors
/// The error of the stream.
pub fn read_truncated(stream: impl io::Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(MIN_CAPACITY);
    stream.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file in memory (memfd_create(2)) with these contents, at its beginning. Unlike a pipe, it needs no writer, and its
/// reader may ignore it. `name` is for diagnosis only.
///
/// # Errors
/// The error of memfd_create(2) or write(2).
pub fn in_memory(name: &str, contents: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(contents)?;
    file.rewind()?;
    Ok(file)
}

/// A text file without the byte order mark that editors of other systems write at its beginning.
#[must_use]
pub fn strip_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Makes the names in an open directory durable.
///
/// Some file systems have no fsync(2) for directories and fail with EINVAL or ENOTSUP (FUSE and network file systems):
/// they store names in their own way, and there is nothing more to do. SQLite ignores every error here. This does not:
/// EIO and ENOSPC say that names may be lost.
///
/// # Errors
/// Any other error of fsync(2).
pub fn sync_dir(dir: impl AsFd) -> io::Result<()> {
    match rustix::fs::fsync(dir) {
        Ok(()) | Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes the file at this path durable; of a directory, the names in it ([`sync_dir`]).
///
/// # Errors
/// The error of open(2) or fsync(2).
pub fn sync_path(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    match file.metadata()?.is_dir() {
        true => sync_dir(file),
        false => file.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_replace_others_only_on_request() {
        let temp = tempfile::tempdir().unwrap();
        let dir = File::open(temp.path()).unwrap();
        let new = |text: &[u8]| {
            let new = NewFile::create(dir.as_fd(), "new".to_owned(), Mode::from_raw_mode(0o600)).unwrap();
            new.file().write_all(text).unwrap();
            new
        };
        new(b"a").publish_new("x").unwrap();
        assert_eq!(new(b"b").publish_new("x"), Err(Errno::EXIST));
        assert_eq!(std::fs::read(temp.path().join("x")).unwrap(), b"a");
        new(b"c").publish("x").unwrap();
        assert_eq!(std::fs::read(temp.path().join("x")).unwrap(), b"c");
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn unnamed_files_are_read_and_leave_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = create_unnamed(dir.path()).unwrap();
        file.write_all(b"abc").unwrap();
        file.rewind().unwrap();
        assert_eq!(read_stream(&file, 3).unwrap(), b"abc");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(create_unnamed(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// procfs has no fsync.
    #[test]
    fn a_directory_that_cannot_be_synced_is_tolerated() {
        let dir = File::open("/proc/self").unwrap();
        assert_eq!(rustix::fs::fsync(&dir).unwrap_err(), Errno::INVAL);
        sync_dir(&dir).unwrap();
        sync_path(Path::new("/proc/self")).unwrap();
        sync_path(Path::new("/")).unwrap();
    }

    #[test]
    fn reads_up_to_the_limit() {
        assert_eq!(read_stream(&b"abc"[..], 3).unwrap(), b"abc");
        assert_eq!(read_stream(&b"abcd"[..], 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_truncated(&b"abcd"[..], 3).unwrap(), b"abc");
        assert_eq!(read_text(&b"abc"[..], 3).unwrap(), "abc");
        assert_eq!(read_text(&b"ab\xff"[..], 3).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_bounded(Path::new("/dev/zero"), 3).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_bounded(Path::new("/nonexistent"), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
