//! Writes the entries of one layer into a directory for overlayfs.

use std::io;
use std::os::fd::OwnedFd;

use gantry_host::file_id::FileId;
use gantry_store::Sums;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::dirs::{Dir, Dirs, is_whiteout, kind, stat};
use super::entries::{ArchiveEnd, Entries, EntryKind, Meta, Stream, TarEntry};
use super::error::{UnpackError, lossy};
use super::finish::{Deferred, DeferredLink};
use super::meta;
use super::names::{self, Meaning, Name, join};
use super::remove::remove;
use crate::caps::Caps;
use crate::zeros::{self, Run};

/// The result of [`write`].
pub(crate) struct Written {
    /// Bytes of the files' data, without holes.
    pub size: u64,
    /// Number of files, directories, links and whiteouts created.
    pub entries: u64,
    pub deferred: Deferred,
    pub sums: Sums,
}

/// Writes every entry of the archive below `into`.
pub(crate) fn write<S: Stream>(stream: S, into: &OwnedFd, caps: &Caps) -> Result<Written, UnpackError> {
    let mut entries = Entries::new(stream, caps, ArchiveEnd::Digested);
    let dirs = Dirs::new(into, caps)?;
    let mut tree = Tree { dirs, links: Vec::new(), opaque_root: false, size: 0, sums: Sums::new() };
    while let Some(entry) = entries.next()? {
        tree.entry(&entry, &mut entries)?;
    }
    let Tree { dirs, links, opaque_root, size, sums } = tree;
    let entries = dirs.made;
    let deferred = Deferred { implicit: dirs.finish()?, links, opaque_root };
    Ok(Written { size, entries, deferred, sums })
}

struct Tree<'c> {
    dirs: Dirs<'c>,
    links: Vec<DeferredLink>,
    opaque_root: bool,
    size: u64,
    /// Checksums of the files written so far, by inode number. The checksum of a replaced file stays until its number
    /// is reused: creating a regular file sets or removes the checksum of its number.
    sums: Sums,
}

impl Tree<'_> {
    fn entry<S: Stream>(&mut self, entry: &TarEntry, data: &mut Entries<'_, S>) -> Result<(), UnpackError> {
        let name = Name::parse(&entry.path)?;
        self.dirs.count()?;
        if name.is_root() {
            if entry.kind != EntryKind::Directory {
                return Err(UnpackError::entry(&entry.path, "it is the root and not a directory"));
            }
            return self.dirs.remember(Vec::new(), Some(entry.meta.clone()));
        }
        let (parent, base) = name.split();
        match names::meaning(&name)? {
            Meaning::Ignored => return Ok(()),
            Meaning::Opaque => return self.opaque(parent),
            Meaning::Whiteout(gone) => return self.whiteout(parent, gone),
            Meaning::Plain => {}
        }
        let dir = self.dirs.get(parent)?;
        match entry.kind {
            EntryKind::File => self.file(&dir, base, entry, data),
            EntryKind::Directory => self.directory(&dir, base, &entry.meta),
            EntryKind::Symlink => self.symlink(&dir, base, entry),
            EntryKind::HardLink => self.hard_link(&dir, base, entry),
            // A layer that was stored in overlayfs's own form.
            EntryKind::Char if entry.device == (0, 0) => self.whiteout(parent, base),
            EntryKind::Char => self.node(&dir, base, entry, FileType::CharacterDevice),
            EntryKind::Block => self.node(&dir, base, entry, FileType::BlockDevice),
            EntryKind::Fifo => self.node(&dir, base, entry, FileType::Fifo),
        }
    }

    /// Creates a file. A file of the same name from an earlier entry is removed first: the last entry wins.
    fn replace<T>(
        &mut self,
        dir: &Dir,
        base: &[u8],
        doing: &'static str,
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, UnpackError> {
        match make() {
            Err(Errno::EXIST) => {
                self.clear(dir, base)?;
                make()
            }
            other => other,
        }
        .map_err(|e| UnpackError::write(doing, &join(&dir.path, base), e))
    }

    fn clear(&mut self, dir: &Dir, base: &[u8]) -> Result<(), UnpackError> {
        let path = join(&dir.path, base);
        match remove(&dir.fd, base).map_err(|e| UnpackError::write("replace", &path, e))? {
            Some(FileType::Directory) => self.dirs.forget_below(&path),
            Some(FileType::Symlink) => self.dirs.forget_links(),
            _ => {}
        }
        Ok(())
    }

    fn file<S: Stream>(
        &mut self,
        dir: &Dir,
        base: &[u8],
        entry: &TarEntry,
        data: &mut Entries<'_, S>,
    ) -> Result<(), UnpackError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let private = Mode::from_raw_mode(0o600);
        let file = self.replace(dir, base, "create", || rustix::fs::openat(&dir.fd, base, flags, private))?;
        self.size += data.left();
        let failed = |e: Errno| UnpackError::write("write", &entry.path, e);
        match &entry.sparse {
            None => {
                let sum = copy(data, &file, data.left(), 0, &entry.path)?;
                self.sums.insert(rustix::fs::fstat(&file).map_err(failed)?.st_ino, sum);
            }
            Some(map) => {
                for &(offset, length) in &map.spans {
                    copy(data, &file, length, offset, &entry.path)?;
                }
                rustix::fs::ftruncate(&file, map.real_size).map_err(failed)?;
                self.sums.remove(&rustix::fs::fstat(&file).map_err(failed)?.st_ino);
            }
        }
        meta::apply(&file, &entry.meta, &entry.path)
    }

    fn directory(&mut self, dir: &Dir, base: &[u8], meta: &Meta) -> Result<(), UnpackError> {
        let path = join(&dir.path, base);
        let failed = |e| UnpackError::write("make directory", &path, e);
        let make = || rustix::fs::mkdirat(&dir.fd, base, Mode::from_raw_mode(0o755));
        match make() {
            Ok(()) => {}
            Err(Errno::EXIST) => match stat(&dir.fd, base).map_err(failed)? {
                Some(found) if kind(&found) == FileType::Directory => {}
                found => {
                    self.clear(dir, base)?;
                    make().map_err(failed)?;
                    if found.is_some_and(|found| is_whiteout(&found)) {
                        // Removed in a lower layer and created here: the lower directory must not show through.
                        super::dirs::open_child(&dir.fd, base)
                            .and_then(|new| meta::set_opaque(&new))
                            .map_err(failed)?;
                    }
                }
            },
            Err(error) => return Err(failed(error)),
        }
        self.dirs.remember(path, Some(meta.clone()))
    }

    fn symlink(&mut self, dir: &Dir, base: &[u8], entry: &TarEntry) -> Result<(), UnpackError> {
        if entry.link.is_empty() || entry.link.len() > names::MAX_PATH {
            return Err(UnpackError::entry(&entry.path, "it is a symbolic link to nothing or to more than 4095 bytes"));
        }
        let make = || rustix::fs::symlinkat(entry.link.as_slice(), &dir.fd, base);
        self.replace(dir, base, "make symbolic link", make)?;
        meta::apply_unopened(&dir.fd, base, &entry.meta, FileType::Symlink)
            .map_err(|e| UnpackError::write("set the owner of", &entry.path, e))
    }

    fn node(&mut self, dir: &Dir, base: &[u8], entry: &TarEntry, kind: FileType) -> Result<(), UnpackError> {
        let device = if kind == FileType::Fifo { 0 } else { rustix::fs::makedev(entry.device.0, entry.device.1) };
        let make = || rustix::fs::mknodat(&dir.fd, base, kind, Mode::from_raw_mode(0o600), device);
        self.replace(dir, base, "make special file", make)?;
        meta::apply_unopened(&dir.fd, base, &entry.meta, kind)
            .map_err(|e| UnpackError::write("set the mode of", &entry.path, e))
    }

    /// Links the target itself, even if it is a symbolic link. A target missing in this layer may be in a lower one.
    fn hard_link(&mut self, dir: &Dir, base: &[u8], entry: &TarEntry) -> Result<(), UnpackError> {
        let target = Name::parse(&entry.link)?;
        if target.is_root() {
            return Err(UnpackError::entry(&entry.path, "it is a hard link to the root"));
        }
        let failed = |e| UnpackError::write("make hard link", &entry.path, e);
        let (target_parent, target_base) = target.split();
        let found = match self.dirs.find(target_parent)? {
            Some(at) => stat(&at.fd, target_base).map_err(failed)?.map(|found| (at, found)),
            None => None,
        };
        let Some((at, found)) = found.filter(|(_, found)| !is_whiteout(found)) else {
            self.clear(dir, base)?;
            let (dir, base, raw) = (dir.path.clone(), base.to_vec(), lossy(&entry.path));
            let names = dir.len() + base.len() + target.path().len() + raw.len();
            self.dirs.count_names(size_of::<DeferredLink>() + names)?;
            self.links.push(DeferredLink { dir, base, target, raw });
            return Ok(());
        };
        if kind(&found) == FileType::Directory {
            return Err(UnpackError::entry(&entry.path, "it is a hard link to a directory"));
        }
        let here = stat(&dir.fd, base).map_err(failed)?;
        if here.is_some_and(|here| FileId::from(&here) == FileId::from(&found)) {
            return Ok(());
        }
        self.replace(dir, base, "make hard link", || {
            rustix::fs::linkat(&at.fd, target_base, &dir.fd, base, AtFlags::empty())
        })
    }

    /// Hides a file of the lower layers. A file of the same name in this layer stays, wherever in the archive it comes:
    /// whiteouts affect lower layers only (OCI image specification, layer.md).
    fn whiteout(&mut self, parent: &[u8], gone: &[u8]) -> Result<(), UnpackError> {
        let dir = self.dirs.get(parent)?;
        let failed = |e| UnpackError::write("make whiteout", &join(&dir.path, gone), e);
        match stat(&dir.fd, gone).map_err(failed)? {
            None => rustix::fs::mknodat(&dir.fd, gone, FileType::CharacterDevice, Mode::empty(), 0).map_err(failed),
            Some(found) if kind(&found) == FileType::Directory => {
                super::dirs::open_child(&dir.fd, gone).and_then(|fd| meta::set_opaque(&fd)).map_err(failed)
            }
            Some(_) => Ok(()),
        }
    }

    fn opaque(&mut self, path: &[u8]) -> Result<(), UnpackError> {
        let dir = self.dirs.get(path)?;
        self.opaque_root |= dir.path.is_empty();
        meta::set_opaque(&dir.fd).map_err(|e| UnpackError::write("make opaque", path, e))
    }
}

/// Writes `length` bytes of the entry's data at `offset`, straight from the stream's buffers; returns their CRC-32.
/// Long runs of zeros become holes.
fn copy<S: Stream>(
    data: &mut Entries<'_, S>,
    file: &OwnedFd,
    length: u64,
    offset: u64,
    path: &[u8],
) -> Result<u32, UnpackError> {
    let mut sum = crc32fast::Hasher::new();
    let (mut at, end) = (offset, offset + length);
    let mut ends_with_hole = false;
    while at < end {
        let bytes = data.data()?;
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(bytes.len());
        let run = match length >= zeros::HOLE_UNIT {
            true => zeros::first_run(&bytes[..most], at),
            false => Run { length: most, is_zero: false },
        };
        ends_with_hole = run.is_zero;
        let wrote = if run.is_zero { Ok(run.length) } else { rustix::io::pwrite(file, &bytes[..run.length], at) };
        match wrote {
            Ok(0) => return Err(short(path)),
            Ok(n) => {
                sum.update(&bytes[..n]);
                data.consume(n);
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(UnpackError::write("write", path, error)),
        }
    }
    if ends_with_hole {
        rustix::fs::ftruncate(file, end).map_err(|error| UnpackError::write("write", path, error))?;
    }
    Ok(sum.finalize())
}

fn short(path: &[u8]) -> UnpackError {
    UnpackError::Write { doing: "write", path: lossy(path), source: io::ErrorKind::WriteZero.into() }
}
