//! Copies file trees between an app and the host as tar streams: [`pack`] reads a tree and writes an archive,
//! [`extract`] reads an archive and writes a tree.
//!
//! Both trees may change while they are copied, and the one of an app may be hostile. The rules:
//!
//! * every file is opened beneath an open directory (openat2), and no path leads out of it;
//! * devices, FIFOs and sockets are never opened and not copied; a regular file is opened only after its type is known,
//!   without blocking;
//! * what lies deeper than the paths of archives and of Linux reach is left out and counted;
//! * a file is read up to the size that it had when it was opened; holes are not read, and are holes in the copy;
//! * the file systems of the kernel (proc, sysfs, cgroup …) are not entered, neither to read nor to write;
//! * a file is written under a temporary name and then renamed, so an existing file is replaced, never written into.

mod extract;
mod pack;

use std::io;
use std::os::fd::AsFd;

use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind};
use rustix::io::Errno;
use thiserror::Error;

pub use extract::{Confinement, Destination, ExtractOptions, Extracted, extract};
pub use pack::{PackOptions, Packed, Source, pack};

use crate::unpack::UnpackError;
use crate::unpack::entries::Stream;
use crate::unpack::header::{BLOCK, check_sum};
use crate::unpack::inflate::explain_no_archive;

/// The archive in errors.
const ARCHIVE: &str = "the archive";
/// Maximum number of files, directories and links in one copy.
const MAX_FILES: u64 = 20_000_000;
/// Maximum memory for names that are kept while a tree is copied, in bytes.
const MAX_NAME_BYTES: usize = 256 << 20;

/// A file tree could not be copied.
#[derive(Debug, Error)]
#[error("cannot {doing} {what}")]
pub struct TransferError {
    kind: ErrorKind,
    doing: &'static str,
    /// The archive, or a path in quotes.
    what: String,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl TransferError {
    fn new(doing: &'static str, path: &[u8], source: impl Into<io::Error>) -> Self {
        Self { what: quoted(path), ..Self::of_archive(doing, source) }
    }

    fn of_archive(doing: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        Self { kind: ErrorKind::of_named_file(&source), doing, what: ARCHIVE.to_owned(), source: Box::new(source) }
    }

    /// The archive cannot be read.
    fn invalid_archive(kind: ErrorKind, why: impl Into<String>) -> Self {
        Self { kind, doing: "read", what: ARCHIVE.to_owned(), source: why.into().into() }
    }

    fn refused(doing: &'static str, path: &[u8], why: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Refused, doing, what: quoted(path), source: why.into().into() }
    }

    /// No pipe for an archive could be made.
    #[must_use]
    pub fn pipe(error: io::Error) -> Self {
        Self::of_archive("make a pipe for", error)
    }

    /// Whether the reader of the archive ended first, which has the cause then.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        self.source.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl Kind for TransferError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// An archive that cannot be read. The reader of layers reports it as a layer.
fn archive_error(error: UnpackError) -> TransferError {
    let kind = error.kind();
    let (path, source) = match error {
        UnpackError::Read(source) => (String::new(), source.into()),
        UnpackError::Corrupt { why } => (String::new(), why.into()),
        UnpackError::Truncated { at } => (String::new(), format!("it ends early, {at}").into()),
        UnpackError::Format { why } => (String::new(), format!("it is not a valid tar archive: {why}").into()),
        UnpackError::Entry { path, why } => (path, why.into()),
        UnpackError::TooMuch { what, most } => (String::new(), format!("it has {what} above {most}").into()),
        other => (String::new(), Box::new(other).into()),
    };
    match path.as_str() {
        "" => TransferError { kind, doing: "read", what: ARCHIVE.to_owned(), source },
        path => TransferError { kind, doing: "copy", what: quoted(path.as_bytes()), source },
    }
}

fn quoted(path: &[u8]) -> String {
    format!("'{}'", shown(&String::from_utf8_lossy(path)))
}

/// Fails for the file systems through which the kernel is read and configured: their files may block a reader, have no
/// end, or change the host when they are written.
///
/// # Errors
/// The name of the file system; the error of fstatfs(2).
fn check_file_system(file: impl AsFd) -> Result<Option<&'static str>, Errno> {
    const KERNEL: &[(u64, &str)] = &[
        (0x9fa0, "proc"),
        (0x6265_6572, "sysfs"),
        (0x0027_e0eb, "cgroup"),
        (0x6367_7270, "cgroup2"),
        (0x1cd1, "devpts"),
        (0x6462_6720, "debugfs"),
        (0x7472_6163, "tracefs"),
        (0x7363_6673, "securityfs"),
        (0xcafe_4a11, "bpf"),
        (0x1980_0202, "mqueue"),
        (0x6265_6570, "configfs"),
        (0x6165_676c, "pstore"),
        (0xde5e_81e4, "efivarfs"),
        (0x4249_4e4d, "binfmt_misc"),
        (0xf97c_ff8c, "selinuxfs"),
        (0x6573_5543, "fusectl"),
    ];
    let magic = u64::from_ne_bytes(rustix::fs::fstatfs(file)?.f_type.to_ne_bytes()) & 0xffff_ffff;
    Ok(KERNEL.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name))
}

/// The file system of the kernel that this file is on, if it is on one.
///
/// # Errors
/// Of fstatfs(2).
pub fn kernel_file_system(file: impl AsFd) -> io::Result<Option<&'static str>> {
    Ok(check_file_system(file)?)
}

/// An archive read from a stream.
struct ArchiveStream<'a> {
    input: &'a mut dyn io::Read,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<'a> ArchiveStream<'a> {
    fn new(input: &'a mut dyn io::Read) -> Self {
        Self { input, buffer: vec![0; 256 << 10].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Fails unless the stream begins with the header or the end of an archive.
    fn check_head(&mut self) -> Result<(), TransferError> {
        while self.end < BLOCK {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(n) => self.end += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(archive_error(UnpackError::Read(error))),
            }
        }
        let head = &self.buffer[..self.end];
        let is_header = |block: &[u8; BLOCK]| *block == [0; BLOCK] || check_sum(block).is_ok();
        if head.first_chunk().is_some_and(is_header) {
            return Ok(());
        }
        let why = explain_no_archive(head, "gantry cp - POD:DIRECTORY");
        Err(TransferError::invalid_archive(ErrorKind::Invalid, why))
    }
}

impl Stream for ArchiveStream<'_> {
    fn fill(&mut self) -> Result<&[u8], UnpackError> {
        if self.start == self.end {
            self.start = 0;
            self.end = loop {
                match self.input.read(&mut self.buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other.map_err(UnpackError::Read)?,
                }
            };
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn consume(&mut self, n: usize) {
        self.start += n;
    }
}

#[cfg(test)]
mod tests;
