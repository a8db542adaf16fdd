//! Reads an archive and writes its files below a directory.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use gantry_host::file::NewFile;
use gantry_host::file_id::FileId;
use gantry_model::ErrorKind;
use gantry_model::user_namespace::IdMappings;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{ArchiveStream, MAX_NAME_BYTES, TransferError, archive_error, check_file_system};
use crate::caps::Caps;
use crate::unpack::entries::{ArchiveEnd, Entries, EntryKind, Meta, Stream as _, TarEntry};
use crate::unpack::names::{Name, join};
use crate::unpack::{UnpackError, dirs, meta};

/// Maximum number of bytes after the end of an archive: padding, which the writer waits to get rid of.
const MAX_TRAILER: u64 = 64 << 20;
/// Maximum number of attempts to open a directory while the tree is being renamed.
const MAX_RETRIES: usize = 16;

/// How paths below a destination are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// The root of an app: symbolic links are followed as the app follows them, and never out of the root.
    Root,
    /// A directory of the host: a symbolic link in a path is an error.
    Directory,
}

/// The directory in which the files are written.
#[derive(Debug)]
pub struct Destination {
    /// The root of the app, or the directory of the host.
    pub root: OwnedFd,
    /// The path of the directory below `root`, without leading slash.
    pub path: Vec<u8>,
    /// How paths are resolved.
    pub confinement: Confinement,
}

/// How files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtractOptions {
    /// The owner and the group of the files; `None`: as in the archive, with the extended attributes, set-user-ID and
    /// set-group-ID bits.
    pub owner: Option<(u32, u32)>,
    /// The ids of the user namespace that the owners belong to.
    pub ids: Option<IdMappings>,
    /// Whether the archive's entry for the directory itself applies to the destination, which was made for it.
    pub is_new: bool,
}

/// The files that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extracted {
    /// Number of devices and FIFOs.
    pub special_files: u64,
    /// The path of the first of them.
    pub first_special: Option<String>,
}

/// Writes the entries of an archive below a directory.
///
/// # Errors
/// [`TransferError`]; the files before the failed one are written then.
pub fn extract(input: &mut dyn Read, to: &Destination, options: ExtractOptions) -> Result<Extracted, TransferError> {
    let caps = Caps { max_file: i64::MAX.unsigned_abs(), ..Caps::default() };
    let mut stream = ArchiveStream::new(input);
    stream.check_head()?;
    let mut entries = Entries::new(stream, &caps, ArchiveEnd::Marked);
    let mut extractor = Extractor {
        to,
        options,
        last: None,
        directories: Vec::new(),
        name_bytes: 0,
        files: 0,
        extracted: Extracted::default(),
    };
    while let Some(entry) = entries.next().map_err(archive_error)? {
        extractor.entry(entry, &mut entries)?;
    }
    let mut trailer = 0;
    loop {
        let stream = entries.stream();
        let length = stream.fill().map_err(archive_error)?.len();
        if length == 0 {
            break;
        }
        stream.consume(length);
        trailer += length as u64;
        if trailer > MAX_TRAILER {
            return Err(TransferError::invalid_archive(ErrorKind::Refused, "its end is followed by other data"));
        }
    }
    extractor.finish()
}

struct Extractor<'a> {
    to: &'a Destination,
    options: ExtractOptions,
    /// The directory of the last entry, by its path.
    last: Option<(Vec<u8>, OwnedFd)>,
    /// New directories, with the metadata to apply when no more files are written in them.
    directories: Vec<NewDirectory>,
    name_bytes: usize,
    files: u64,
    extracted: Extracted,
}

/// A directory that was made here.
struct NewDirectory {
    path: Vec<u8>,
    /// An app may put another directory in its place meanwhile.
    id: FileId,
    meta: Meta,
}

impl Extractor<'_> {
    fn entry(&mut self, mut entry: TarEntry, data: &mut Entries<'_, ArchiveStream<'_>>) -> Result<(), TransferError> {
        if let Some((uid, gid)) = self.options.owner {
            let mode = entry.meta.mode & 0o1777;
            entry.meta = Meta { mode, uid, gid, xattrs: Vec::new(), ..entry.meta };
        }
        if let Some(IdMappings { uids, gids }) = self.options.ids {
            let (Some(uid), Some(gid)) = (uids.to_host(entry.meta.uid), gids.to_host(entry.meta.gid)) else {
                let why = "its owner has no id in the user namespace of the pod";
                return Err(TransferError::refused("copy", &entry.path, why));
            };
            entry.meta = Meta { uid, gid, ..entry.meta };
        }
        let name = Name::parse(&entry.path).map_err(archive_error)?;
        if name.is_root() {
            if entry.kind != EntryKind::Directory {
                return Err(TransferError::refused("copy", &entry.path, "it is the top directory and not a directory"));
            }
            if self.options.is_new {
                let top = self.open(b"");
                let top = self.checked(b"", top)?;
                return self.remember(&top, b"", &entry.meta);
            }
            return Ok(());
        }
        let (parent, base) = name.split();
        if matches!(entry.kind, EntryKind::Char | EntryKind::Block | EntryKind::Fifo) {
            self.extracted.special_files += 1;
            self.extracted.first_special.get_or_insert_with(|| String::from_utf8_lossy(name.path()).into_owned());
            return Ok(());
        }
        let dir = self.parent(parent)?;
        let result = match entry.kind {
            EntryKind::File => self.file(&dir, base, &entry, data),
            EntryKind::Directory => self.directory(&dir, base, &name, &entry.meta),
            EntryKind::Symlink => self.symlink(&dir, base, &entry),
            EntryKind::HardLink => self.hard_link(&dir, base, &entry),
            EntryKind::Char | EntryKind::Block | EntryKind::Fifo => Ok(()),
        };
        self.last = Some((parent.to_vec(), dir));
        result
    }

    /// Opens the directory of an entry; makes missing ones.
    fn parent(&mut self, path: &[u8]) -> Result<OwnedFd, TransferError> {
        if let Some((last, dir)) = self.last.take()
            && last == path
        {
            return Ok(dir);
        }
        match self.open(path) {
            Err(Errno::NOENT) if !path.is_empty() => {}
            other => return self.checked(path, other),
        }
        let mut at = Vec::new();
        let mut dir = self.open(b"");
        for element in path.split(|&byte| byte == b'/') {
            let above = self.checked(&at, dir)?;
            at = join(&at, element);
            dir = match self.open(&at) {
                Err(Errno::NOENT) => rustix::fs::mkdirat(&above, element, Mode::from_raw_mode(0o755))
                    .and_then(|()| dirs::open_child(&above, element)),
                other => other,
            };
        }
        self.checked(path, dir)
    }

    fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let whole = join(&self.to.path, path);
        let whole = if whole.is_empty() { &b"."[..] } else { &whole };
        let resolve = match self.to.confinement {
            Confinement::Root => ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
            Confinement::Directory => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut result = Err(Errno::AGAIN);
        for _ in 0..MAX_RETRIES {
            result = rustix::fs::openat2(&self.to.root, whole, flags, Mode::empty(), resolve);
            if !matches!(result, Err(Errno::AGAIN)) {
                break;
            }
        }
        result
    }

    /// Refuses the file systems of the kernel: a link in a hostile app may lead to one.
    fn checked(&self, path: &[u8], dir: Result<OwnedFd, Errno>) -> Result<OwnedFd, TransferError> {
        let path = if path.is_empty() { &self.to.path } else { path };
        let failed = |error| match error {
            Errno::LOOP => TransferError::refused("write to", path, "a symbolic link is in its path"),
            error => TransferError::new("open directory", path, error),
        };
        let dir = dir.map_err(failed)?;
        match check_file_system(&dir).map_err(failed)? {
            Some(system) => {
                Err(TransferError::refused("write to", path, format!("it is on {system}, a file system of the kernel")))
            }
            None => Ok(dir),
        }
    }

    fn temporary_name(&mut self) -> String {
        self.files += 1;
        format!(".gantry-cp.{}.{}", std::process::id(), self.files)
    }

    /// Makes a link under a temporary name, and gives it its own.
    fn replace(
        &mut self,
        dir: &OwnedFd,
        base: &[u8],
        path: &[u8],
        make: impl FnOnce(&str) -> Result<(), TransferError>,
    ) -> Result<(), TransferError> {
        let temporary = self.temporary_name();
        let result = make(&temporary).and_then(|()| {
            rustix::fs::renameat(dir, temporary.as_str(), dir, base).map_err(|error| not_replaced(path, error))
        });
        // rename(2) of one name of a file to another of its names does nothing and keeps both.
        if result.is_err() || rustix::fs::statat(dir, temporary.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            let _gone_already = rustix::fs::unlinkat(dir, temporary.as_str(), AtFlags::empty());
        }
        result
    }

    fn file(
        &mut self,
        dir: &OwnedFd,
        base: &[u8],
        entry: &TarEntry,
        data: &mut Entries<'_, ArchiveStream<'_>>,
    ) -> Result<(), TransferError> {
        let path = &entry.path;
        let new = NewFile::create(dir.as_fd(), self.temporary_name(), Mode::RUSR | Mode::WUSR)
            .map_err(|error| TransferError::new("create", path, error))?;
        let file = new.file();
        match &entry.sparse {
            None => write_data(data, file, entry.size, 0, path)?,
            Some(map) => {
                for &(offset, length) in &map.spans {
                    write_data(data, file, length, offset, path)?;
                }
                rustix::fs::ftruncate(file, map.real_size).map_err(|error| TransferError::new("write", path, error))?;
            }
        }
        apply(file, &entry.meta, path)?;
        new.publish(base).map_err(|error| not_replaced(path, error))
    }

    fn symlink(&mut self, dir: &OwnedFd, base: &[u8], entry: &TarEntry) -> Result<(), TransferError> {
        let path = &entry.path;
        self.replace(dir, base, path, |temporary| {
            rustix::fs::symlinkat(entry.link.as_slice(), dir, temporary)
                .and_then(|()| meta::apply_unopened(dir.as_fd(), temporary.as_bytes(), &entry.meta, FileType::Symlink))
                .map_err(|error| TransferError::new("make symbolic link", path, error))
        })
    }

    /// Links to a file below the destination; a symbolic link is linked itself, not followed.
    fn hard_link(&mut self, dir: &OwnedFd, base: &[u8], entry: &TarEntry) -> Result<(), TransferError> {
        let path = &entry.path;
        let target = Name::parse(&entry.link).map_err(archive_error)?;
        let (parent, target) = target.split();
        let from = self.open(parent);
        let from = self.checked(parent, from)?;
        self.replace(dir, base, path, |temporary| {
            rustix::fs::linkat(&from, target, dir, temporary, AtFlags::empty())
                .map_err(|error| TransferError::new("make hard link", path, error))
        })
    }

    /// Makes a directory; one that exists keeps its owner and mode.
    fn directory(&mut self, dir: &OwnedFd, base: &[u8], name: &Name, kept: &Meta) -> Result<(), TransferError> {
        let path = name.path();
        match rustix::fs::mkdirat(dir, base, Mode::from_raw_mode(0o700)) {
            Ok(()) => {
                let made = dirs::open_child(dir, base).map_err(|error| TransferError::new("open", path, error))?;
                self.remember(&made, path, kept)
            }
            Err(Errno::EXIST) => match self.open(path) {
                Ok(_) => Ok(()),
                Err(Errno::NOTDIR) => {
                    Err(TransferError::refused("replace", path, "it is not a directory, and the copy is one"))
                }
                Err(error) => self.checked(path, Err(error)).map(drop),
            },
            Err(error) => Err(TransferError::new("make directory", path, error)),
        }
    }

    fn remember(&mut self, dir: &OwnedFd, path: &[u8], meta: &Meta) -> Result<(), TransferError> {
        self.name_bytes += path.len();
        if self.name_bytes > MAX_NAME_BYTES {
            return Err(TransferError::refused("copy", path, "there are too many directories"));
        }
        let id = id_of(dir, path)?;
        self.directories.push(NewDirectory { path: path.to_vec(), id, meta: meta.clone() });
        Ok(())
    }

    /// Applies the metadata of the new directories, the deepest first.
    fn finish(mut self) -> Result<Extracted, TransferError> {
        for NewDirectory { path, id, meta } in std::mem::take(&mut self.directories).into_iter().rev() {
            let dir = self.open(&path);
            let dir = self.checked(&path, dir)?;
            if id_of(&dir, &path)? == id {
                apply(&dir, &meta, &path)?;
            }
        }
        Ok(self.extracted)
    }
}

fn id_of(dir: &OwnedFd, path: &[u8]) -> Result<FileId, TransferError> {
    let stat = rustix::fs::fstat(dir).map_err(|error| TransferError::new("inspect", path, error))?;
    Ok(FileId::from(&stat))
}

fn not_replaced(path: &[u8], error: Errno) -> TransferError {
    match error {
        Errno::ISDIR => TransferError::refused("replace", path, "it is a directory, and the copy is not"),
        Errno::BUSY => TransferError::refused("replace", path, "something is mounted there"),
        error => TransferError::new("rename to", path, error),
    }
}

fn apply(file: impl AsFd, kept: &Meta, path: &[u8]) -> Result<(), TransferError> {
    meta::apply(file, kept, path).map_err(|error| match error {
        UnpackError::Write { doing, source, .. } => TransferError::new(doing, path, source),
        other => archive_error(other),
    })
}

fn write_data(
    data: &mut Entries<'_, ArchiveStream<'_>>,
    file: &File,
    mut length: u64,
    mut offset: u64,
    path: &[u8],
) -> Result<(), TransferError> {
    while length > 0 {
        let bytes = data.data().map_err(archive_error)?;
        let most = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
        match rustix::io::pwrite(file, &bytes[..most], offset) {
            Ok(0) => return Err(TransferError::new("write", path, io::Error::from(io::ErrorKind::WriteZero))),
            Ok(written) => {
                data.consume(written);
                length -= written as u64;
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(TransferError::new("write", path, error)),
        }
    }
    Ok(())
}
