//! Reads a file tree and writes it as an archive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use gantry_host::file_id::FileId;
use gantry_model::user_namespace::IdMappings;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::{MAX_FILES, MAX_NAME_BYTES, TransferError, check_file_system};
use crate::export::layer::sorted_names;
use crate::export::tar::{TarEntry, TarKind, write_end, write_header, write_padding, write_sparse_header};
use crate::unpack::entries::Meta;
use crate::unpack::{dirs, meta, names};

/// Maximum number of spans between the holes of a file; the reader of archives has the same limit.
const MAX_SPANS: usize = 60_000;
/// Maximum number of attempts to open a directory while the tree is being renamed.
const MAX_RETRIES: usize = 16;

/// The owner of files whose user has no id in a user namespace, as the kernel shows it there.
const NOBODY: u32 = 65534;

/// The file or directory to copy.
#[derive(Debug)]
pub struct Source {
    /// The file, opened with `O_PATH`; a symbolic link is copied as a link.
    pub file: OwnedFd,
    /// Its name in the archive; empty: the contents of a directory, without a directory above them.
    pub name: Vec<u8>,
}

/// How a tree is packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackOptions {
    /// Whether set-user-ID and set-group-ID bits and extended attributes are kept.
    pub keep_privileges: bool,
    /// A directory to leave out: the destination of the copy, which may be below the source.
    pub skip: Option<FileId>,
    /// The ids of the user namespace whose users own the files: the archive has their ids there.
    pub ids: Option<IdMappings>,
}

/// The files that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packed {
    /// Number of devices, FIFOs and sockets.
    pub special_files: u64,
    /// The path of the first of them.
    pub first_special: Option<String>,
    /// Number of files that changed their type, got shorter or disappeared while they were read, or that cannot be
    /// opened without blocking.
    pub changed_files: u64,
    /// The path of the first of them.
    pub first_changed: Option<String>,
    /// The directories on file systems of the kernel.
    pub kernel_file_systems: Vec<String>,
    /// Number of files and directories whose paths are too long or too deep for the reader of archives. What is in such
    /// a directory is not counted.
    pub unreachable_files: u64,
    /// The path of the first of them.
    pub first_unreachable: Option<String>,
}

/// Packs a file, a symbolic link, or a directory and everything below it, into an archive.
///
/// # Errors
/// [`TransferError`]; the archive is incomplete then.
pub fn pack(source: Source, options: PackOptions, out: &mut dyn Write) -> Result<Packed, TransferError> {
    let Source { file, name } = source;
    let failed = |error: Errno| TransferError::new("inspect", &name, error);
    if let Some(system) = check_file_system(&file).map_err(failed)? {
        return Err(TransferError::refused("copy", &name, format!("it is on {system}, a file system of the kernel")));
    }
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    let mut packer = Packer { out, options, seen: HashMap::new(), files: 0, name_bytes: 0, packed: Packed::default() };
    match dirs::kind(&stat) {
        FileType::Directory => packer.tree(&file, &name)?,
        FileType::RegularFile => packer.file(&file, &name, &stat)?,
        FileType::Symlink => packer.symlink(&file, b"", &name, &stat)?,
        _ => {
            let why = "it is a device, a FIFO or a socket, which is not copied";
            return Err(TransferError::refused("copy", &name, why));
        }
    }
    let Packer { out, packed, .. } = packer;
    write_end(out).and_then(|()| out.flush()).map_err(|error| TransferError::of_archive("write", error))?;
    Ok(packed)
}

struct Packer<'a> {
    out: &'a mut dyn Write,
    options: PackOptions,
    /// Files with several names, with the first name of each.
    seen: HashMap<FileId, Vec<u8>>,
    files: u64,
    name_bytes: usize,
    packed: Packed,
}

impl Packer<'_> {
    fn tree(&mut self, root: &OwnedFd, name: &[u8]) -> Result<(), TransferError> {
        let mut ahead = vec![Vec::new()];
        while let Some(path) = ahead.pop() {
            self.name_bytes = self.name_bytes.saturating_sub(path.len());
            let mut below = self.directory(root, name, &path)?;
            // Popped from the end, so in order.
            below.reverse();
            ahead.extend(below);
        }
        Ok(())
    }

    /// Writes a directory and the files in it; returns its subdirectories.
    fn directory(&mut self, root: &OwnedFd, name: &[u8], path: &[u8]) -> Result<Vec<Vec<u8>>, TransferError> {
        let archived = names::join(name, path);
        let failed = |doing| {
            let at = archived.clone();
            move |error: Errno| TransferError::new(doing, &at, error)
        };
        let dir = match open_directory(root, path) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::AGAIN) => {
                self.note_change(&archived);
                return Ok(Vec::new());
            }
            Err(error) => return Err(failed("open")(error)),
        };
        let stat = rustix::fs::fstat(&dir).map_err(failed("inspect"))?;
        if self.options.skip == Some(FileId::from(&stat)) {
            return Ok(Vec::new());
        }
        let entry = if archived.is_empty() { b"./".to_vec() } else { [&archived[..], b"/"].concat() };
        let kept = self.metadata(&dir).map_err(failed("read the attributes of"))?;
        self.header(&entry, TarKind::Directory, &kept, &[])?;
        if check_file_system(&dir).map_err(failed("inspect"))?.is_some() {
            self.packed.kernel_file_systems.push(text(&archived));
            return Ok(Vec::new());
        }
        let mut below = Vec::new();
        let elements = sorted_names(&dir).map_err(|error| TransferError::new("read directory", &archived, error))?;
        for element in elements {
            let path = names::join(path, &element);
            let archived = names::join(name, &path);
            self.count(&archived)?;
            if !names::is_within_limits(&archived) {
                self.note_unreachable(&archived);
                continue;
            }
            match dirs::stat(&dir, &element) {
                Ok(None) => self.note_change(&archived),
                Ok(Some(stat)) => match dirs::kind(&stat) {
                    FileType::Directory => {
                        self.keep_name(&path)?;
                        below.push(path);
                    }
                    FileType::RegularFile => self.opened_file(&dir, &element, &archived)?,
                    FileType::Symlink => self.symlink(&dir, &element, &archived, &stat)?,
                    _ => self.note_special(&archived),
                },
                Err(error) => return Err(TransferError::new("inspect", &archived, error)),
            }
        }
        Ok(below)
    }

    /// Opens a file without opening what may have replaced it meanwhile.
    fn opened_file(&mut self, dir: &OwnedFd, element: &[u8], path: &[u8]) -> Result<(), TransferError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match rustix::fs::openat(dir, element, flags, Mode::empty()) {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return self.changed(path),
            Err(error) => return Err(TransferError::new("open", path, error)),
        };
        let stat = rustix::fs::fstat(&handle).map_err(|error| TransferError::new("inspect", path, error))?;
        match dirs::kind(&stat) {
            FileType::RegularFile => self.file(&handle, path, &stat),
            _ => self.changed(path),
        }
    }

    /// Writes a regular file.
    fn file(&mut self, handle: &OwnedFd, path: &[u8], stat: &Stat) -> Result<(), TransferError> {
        if check_file_system(handle).map_err(|error| TransferError::new("inspect", path, error))?.is_some() {
            self.packed.kernel_file_systems.push(text(path));
            return Ok(());
        }
        if stat.st_nlink > 1 {
            if let Some(first) = self.seen.get(&FileId::from(stat)) {
                let first = first.clone();
                return self.header(path, TarKind::HardLink, &self.of_stat(stat), &first);
            }
            self.keep_name(path)?;
        }
        // The link in /proc opens this very file. An app that holds a lease on it must not make the open wait.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::open(format!("/proc/self/fd/{}", handle.as_raw_fd()), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::WOULDBLOCK | Errno::NOENT | Errno::STALE) => return self.changed(path),
            Err(error) => return Err(TransferError::new("open", path, error)),
        };
        let failed = |error: Errno| TransferError::new("read", path, error);
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        let kept = self.owned(self.metadata(&file).map_err(failed)?);
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let stored = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        let spans = if stored < size { data_spans(&file, size).map_err(failed)? } else { Some(vec![(0, size)]) };
        let Some(spans) = spans else {
            let why = format!("it has more than {MAX_SPANS} holes");
            return Err(TransferError::refused("copy", path, why));
        };
        let (kind, link, device) = (TarKind::File, &b""[..], (0, 0));
        let data: u64 = spans.iter().map(|(_, length)| length).sum();
        let entry = TarEntry { path, kind, meta: &kept, size: data, link, device };
        let written = if stored < size {
            write_sparse_header(self.out, entry, size, &spans)
        } else {
            write_header(self.out, &entry).map(|()| data)
        };
        let written = written.map_err(archive_write)?;
        let mut complete = true;
        for (offset, length) in spans {
            complete &= copy_span(&file, offset, length, self.out, path)?;
        }
        write_padding(self.out, written).map_err(archive_write)?;
        if !complete {
            self.note_change(path);
        }
        if stat.st_nlink > 1 {
            self.seen.insert(FileId::from(&stat), path.to_vec());
        }
        Ok(())
    }

    fn symlink(&mut self, dir: &OwnedFd, element: &[u8], path: &[u8], stat: &Stat) -> Result<(), TransferError> {
        let target = match rustix::fs::readlinkat(dir, element, Vec::new()) {
            Ok(target) => target,
            Err(Errno::NOENT | Errno::INVAL) => return self.changed(path),
            Err(error) => return Err(TransferError::new("read the link", path, error)),
        };
        // Links have no mode of their own.
        let kept = Meta { mode: 0o777, ..meta::of_stat(stat) };
        self.header(path, TarKind::Symlink, &kept, target.as_bytes())
    }

    fn header(&mut self, path: &[u8], kind: TarKind, meta: &Meta, link: &[u8]) -> Result<(), TransferError> {
        let meta = &self.owned(meta.clone());
        let entry = TarEntry { path, kind, meta, size: 0, link, device: (0, 0) };
        write_header(self.out, &entry).map_err(archive_write)
    }

    fn metadata(&self, file: impl std::os::fd::AsFd) -> Result<Meta, Errno> {
        if self.options.keep_privileges {
            return meta::read(file);
        }
        Ok(self.of_stat(&rustix::fs::fstat(file)?))
    }

    /// The metadata of a file without extended attributes.
    fn of_stat(&self, stat: &Stat) -> Meta {
        let meta = meta::of_stat(stat);
        let kept = if self.options.keep_privileges { 0o7777 } else { 0o1777 };
        Meta { mode: meta.mode & kept, ..meta }
    }

    /// The metadata with the owner as it is in the archive.
    fn owned(&self, meta: Meta) -> Meta {
        let Some(IdMappings { uids, gids }) = self.options.ids else { return meta };
        let (uid, gid) = (uids.to_pod(meta.uid).unwrap_or(NOBODY), gids.to_pod(meta.gid).unwrap_or(NOBODY));
        Meta { uid, gid, ..meta }
    }

    fn count(&mut self, path: &[u8]) -> Result<(), TransferError> {
        self.files += 1;
        if self.files > MAX_FILES {
            return Err(TransferError::refused("copy", path, format!("there are more than {MAX_FILES} files")));
        }
        Ok(())
    }

    fn keep_name(&mut self, path: &[u8]) -> Result<(), TransferError> {
        self.name_bytes += path.len();
        if self.name_bytes > MAX_NAME_BYTES {
            return Err(TransferError::refused("copy", path, "there are too many directories"));
        }
        Ok(())
    }

    #[expect(clippy::unnecessary_wraps, reason = "it ends the copy of one file in place of an error")]
    fn changed(&mut self, path: &[u8]) -> Result<(), TransferError> {
        self.note_change(path);
        Ok(())
    }

    fn note_change(&mut self, path: &[u8]) {
        self.packed.changed_files += 1;
        self.packed.first_changed.get_or_insert_with(|| text(path));
    }

    fn note_unreachable(&mut self, path: &[u8]) {
        self.packed.unreachable_files += 1;
        self.packed.first_unreachable.get_or_insert_with(|| text(path));
    }

    fn note_special(&mut self, path: &[u8]) {
        self.packed.special_files += 1;
        self.packed.first_special.get_or_insert_with(|| text(path));
    }
}

/// The path is within the limits of archives, so that the kernel takes it as a whole.
///
/// openat2 reports EAGAIN when a rename elsewhere makes it unable to prove that the path stays beneath the directory.
fn open_directory(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    for _ in 0..MAX_RETRIES {
        match dirs::open_real(root, path) {
            Err(Errno::AGAIN) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Offsets and lengths of the data between the holes (lseek(2), `SEEK_DATA`); `None`: there are too many.
fn data_spans(file: &File, size: u64) -> Result<Option<Vec<(u64, u64)>>, Errno> {
    let mut spans = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            other => other?,
        };
        if start >= size {
            break;
        }
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        if end <= start {
            break;
        }
        if spans.len() == MAX_SPANS {
            return Ok(None);
        }
        spans.push((start, end - start));
        at = end;
    }
    // GNU tar marks a hole at the end by an empty span there.
    if spans.last().is_none_or(|(offset, length)| offset + length < size) {
        spans.push((size, 0));
    }
    Ok(Some(spans))
}

/// Writes a span of a file; false if the file ended early, and zeros were written in its place.
fn copy_span(
    file: &File,
    mut offset: u64,
    mut length: u64,
    out: &mut dyn Write,
    path: &[u8],
) -> Result<bool, TransferError> {
    let mut buffer = vec![0; 256 << 10];
    let mut complete = true;
    while length > 0 {
        let most = usize::try_from(length).unwrap_or(usize::MAX).min(buffer.len());
        let read = match file.read_at(&mut buffer[..most], offset) {
            Ok(0) => {
                complete = false;
                buffer[..most].fill(0);
                most
            }
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(TransferError::new("read", path, error)),
        };
        out.write_all(&buffer[..read]).map_err(archive_write)?;
        offset += read as u64;
        length -= read as u64;
    }
    Ok(complete)
}

fn archive_write(error: io::Error) -> TransferError {
    TransferError::of_archive("write", error)
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
