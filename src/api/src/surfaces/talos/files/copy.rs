//! Copy: a tree as a `tar.gz` archive.
//!
//! The archive has regular files, directories and symbolic links, with names relative to the root. Devices, FIFOs and
//! sockets are left out. Files that cannot be read are left out, too, and the status of the call names them.

use std::fs::File;
use std::io::{self, Read as _, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use gantry_engine::tar::{Meta, TarEntry, TarKind, write_end, write_header, write_padding};
use gantry_model::id::shown;
use gantry_proto::talos::common::Data;
use rustix::fs::FileType;
use rustix::io::Errno;
use tonic::Status;

use super::access::{FileAccess, NamedFile, open_to_read};
use super::walk::{Visitor, WalkFile, walk};
use super::{FileSender, Interrupted, error_text};

/// Bytes of a message.
const CHUNK: usize = 32 << 10;
/// A file of at most this many bytes is read before its header is written, so that the header has the right size.
const MAX_BUFFERED: u64 = 64 << 10;
/// Maximum failures that the status names.
const MAX_LISTED: usize = 10;

/// Sends the archive.
///
/// # Errors
/// `INVALID_ARGUMENT` if the path is not absolute, `NOT_FOUND` or `PERMISSION_DENIED` if it cannot be opened, and
/// `UNKNOWN` after a complete archive if some files could not be read.
pub(in super::super) fn copy(access: &FileAccess, path: &str, sender: &FileSender<Data>) -> Result<(), Interrupted> {
    if !path.starts_with('/') {
        return Err(Status::invalid_argument(format!("path is not absolute {}", shown(path))).into());
    }
    let root = access.open("lstat", path)?;
    let messages = Messages { sender, bytes: Vec::with_capacity(CHUNK), interrupted: None };
    let archive = GzEncoder::new(messages, Compression::fast());
    let mut archiver = Archiver { root: &root, archive, failures: Vec::new(), failed: 0 };
    walk(&root, &mut archiver)?;
    archiver.finish()
}

/// Collects bytes in messages.
struct Messages<'a> {
    sender: &'a FileSender<Data>,
    bytes: Vec<u8>,
    /// Why a message could not be sent: an [`io::Error`] cannot say it.
    interrupted: Option<Interrupted>,
}

impl Messages<'_> {
    fn send(&mut self) -> io::Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::replace(&mut self.bytes, Vec::with_capacity(CHUNK));
        self.sender.send(Data { metadata: None, bytes }).map_err(|interrupted| {
            self.interrupted = Some(interrupted);
            io::ErrorKind::BrokenPipe.into()
        })
    }
}

impl Write for Messages<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() >= CHUNK {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Archiver<'a> {
    root: &'a NamedFile,
    archive: GzEncoder<Messages<'a>>,
    /// The first files that could not be read.
    failures: Vec<String>,
    failed: usize,
}

impl Archiver<'_> {
    fn finish(mut self) -> Result<(), Interrupted> {
        let ended = write_end(&mut self.archive).and_then(|()| self.archive.try_finish());
        self.check_written(ended)?;
        let sent = self.archive.get_mut().send();
        self.check_written(sent)?;
        if self.failed == 0 {
            return Ok(());
        }
        let more = self.failed.saturating_sub(self.failures.len());
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        Err(Status::unknown(format!("files were left out: {}{more}", self.failures.join("; "))).into())
    }

    /// Only sending fails.
    fn check_written(&mut self, written: io::Result<()>) -> Result<(), Interrupted> {
        let Err(error) = written else { return Ok(()) };
        let other = || Interrupted::Failed(Status::internal(format!("cannot write the archive: {error}")));
        Err(self.archive.get_mut().interrupted.take().unwrap_or_else(other))
    }

    fn add_failure(&mut self, path: &[u8], text: &str) {
        self.failed += 1;
        if self.failures.len() < MAX_LISTED {
            self.failures.push(format!("{}: {text}", shown(&String::from_utf8_lossy(path))));
        }
    }

    fn add_regular(&mut self, file: &WalkFile<'_>, name: &[u8]) -> Result<(), Interrupted> {
        let mut contents = match open_to_read(file.handle, &file.stat) {
            Ok(contents) => contents,
            Err(errno) => {
                self.add_failure(name, &error_text(errno));
                return Ok(());
            }
        };
        if file.size() <= MAX_BUFFERED {
            let mut bytes = Vec::new();
            let read = contents.take(MAX_BUFFERED).read_to_end(&mut bytes);
            match read {
                Ok(_) => {}
                // A file without data now.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.add_failure(name, &error_text(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
                    return Ok(());
                }
            }
            let written = self.write_entry(file, name, TarKind::File, bytes.len() as u64, b"");
            let written = written.and_then(|()| self.archive.write_all(&bytes));
            let written = written.and_then(|()| write_padding(&mut self.archive, bytes.len() as u64));
            return self.check_written(written);
        }
        let written = self.write_entry(file, name, TarKind::File, file.size(), b"");
        self.check_written(written)?;
        self.stream(&mut contents, file.size(), name)?;
        let written = write_padding(&mut self.archive, file.size());
        self.check_written(written)
    }

    /// Writes as many bytes as the header says, whatever the file has become.
    fn stream(&mut self, contents: &mut File, size: u64, name: &[u8]) -> Result<(), Interrupted> {
        let mut left = size;
        let mut buffer = vec![0; CHUNK];
        let mut is_short = false;
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            if !is_short {
                let read = match contents.read(&mut buffer[..room]) {
                    Ok(0) => Err("the file became shorter".to_owned()),
                    Ok(count) => Ok(count),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => Err(error_text(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
                };
                match read {
                    Ok(count) => {
                        let written = self.archive.write_all(&buffer[..count]);
                        self.check_written(written)?;
                        left -= count as u64;
                        continue;
                    }
                    Err(text) => {
                        self.add_failure(name, &text);
                        is_short = true;
                        buffer.fill(0);
                    }
                }
            }
            let written = self.archive.write_all(&buffer[..room]);
            self.check_written(written)?;
            left -= room as u64;
        }
        Ok(())
    }

    fn write_entry(
        &mut self,
        file: &WalkFile<'_>,
        name: &[u8],
        kind: TarKind,
        size: u64,
        link: &[u8],
    ) -> io::Result<()> {
        let stat = &file.stat;
        let mtime = (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
        let meta = Meta { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, mtime, xattrs: Vec::new() };
        write_header(&mut self.archive, &TarEntry { path: name, kind, meta: &meta, size, link, device: (0, 0) })
    }
}

impl Visitor for Archiver<'_> {
    fn enter(&mut self, file: &WalkFile<'_>) -> Result<bool, Interrupted> {
        let base_name = self.root.base_name();
        let name = if file.path.is_empty() { &base_name[..] } else { file.path };
        match file.file_type() {
            // The root is the directory that the client copies to.
            FileType::Directory if file.path.is_empty() => {}
            FileType::Directory => {
                let name = [name, b"/"].concat();
                let written = self.write_entry(file, &name, TarKind::Directory, 0, b"");
                self.check_written(written)?;
            }
            FileType::RegularFile => self.add_regular(file, name)?,
            FileType::Symlink => {
                let written = match file.link_target() {
                    Some(target) => self.write_entry(file, name, TarKind::Symlink, 0, &target),
                    None => Ok(()),
                };
                self.check_written(written)?;
            }
            FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice => {}
            FileType::Unknown => {}
        }
        Ok(true)
    }

    fn report(&mut self, path: &[u8], _depth: usize, text: &str) -> Result<(), Interrupted> {
        self.add_failure(path, text);
        Ok(())
    }

    fn check(&mut self) -> Result<(), Interrupted> {
        self.archive.get_mut().sender.check()
    }
}
