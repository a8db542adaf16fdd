//! The parts of a layer that need lower layers: hard links to their files, the metadata of directories that no entry
//! describes, and an opaque root. What they add counts against the limits of the layer, as its own contents do.
//!
//! Layers are stored separately, so lookups in lower layers are done here as overlayfs does them: topmost layer first,
//! stopped by whiteouts and opaque directories.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use gantry_host::file_id::FileId;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::Unpacked;
use super::dirs::{is_whiteout, kind, open_child, open_real, stat};
use super::error::{UnpackError, lossy};
use super::meta;
use super::names::{Name, join};
use crate::caps::Caps;

/// Maximum number of links followed in a lookup in lower layers, as in Linux.
const MAX_LINKS: usize = 40;
/// Bytes copied between two checks of the limits.
const COPY_STEP: u64 = 16 << 20;

/// The deferred work of [`super::finish`].
#[derive(Debug, Default)]
pub struct Deferred {
    /// Directories no entry described, parents first.
    pub(crate) implicit: Vec<Vec<u8>>,
    /// Hard links whose target is not in the layer.
    pub(crate) links: Vec<DeferredLink>,
    /// The lower layers are hidden.
    pub(crate) opaque_root: bool,
}

impl Deferred {
    /// Whether the lower layers are not needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.implicit.is_empty() && self.links.is_empty() && !self.opaque_root
    }
}

/// A hard link to a file of a lower layer.
#[derive(Debug)]
pub(crate) struct DeferredLink {
    /// Real path of its directory.
    pub dir: Vec<u8>,
    pub base: Vec<u8>,
    pub target: Name,
    /// The entry's name for messages.
    pub raw: String,
}

/// Does what needs the layers below, which must be finished themselves: `parents` are their directories, the
/// topmost first. Hard links to their files become copies; directories that no entry described, the root included,
/// take over owner, mode, attributes and time from there (without one there they stay root's, mode 0755, time 0).
/// The copies and whiteouts are added to the layer's size and entries, and count against the same limits. A copy may
/// get the inode number of a file that the layer replaced, so the checksums lose its entry.
///
/// # Errors
/// [`UnpackError::LinkTarget`] when no layer has what a hard link names; [`UnpackError::TooMuch`];
/// [`UnpackError::Cancelled`] once `cancelled` returns true; [`UnpackError::Write`].
pub fn finish(
    unpacked: &mut Unpacked,
    into: &OwnedFd,
    parents: &[OwnedFd],
    caps: &Caps,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), UnpackError> {
    let deferred = std::mem::take(&mut unpacked.deferred);
    let mut work = Work { unpacked, into, parents, caps, cancelled, copied: HashMap::new() };
    for link in &deferred.links {
        work.check()?;
        let dir = open_real(into, &link.dir).map_err(|e| UnpackError::write("open", &link.dir, e))?;
        keeping_time(&dir, &link.dir, || work.place(link, &dir))?;
    }
    if deferred.opaque_root {
        keeping_time(into, b".", || work.hide_all())?;
    }
    for path in &deferred.implicit {
        work.check()?;
        inherit(path, into, parents)?;
    }
    Ok(())
}

/// The deferred work under way.
struct Work<'a> {
    unpacked: &'a mut Unpacked,
    into: &'a OwnedFd,
    parents: &'a [OwnedFd],
    caps: &'a Caps,
    cancelled: &'a dyn Fn() -> bool,
    /// Files copied into this layer, with the first link: further ones become links to that.
    copied: HashMap<FileId, &'a DeferredLink>,
}

/// Creating a file in a directory changes its times, which were set already.
fn keeping_time(dir: &OwnedFd, path: &[u8], work: impl FnOnce() -> Result<(), UnpackError>) -> Result<(), UnpackError> {
    let failed = |e| UnpackError::write("keep the time of", path, e);
    let before = rustix::fs::fstat(dir).map_err(failed)?;
    work()?;
    let real = open_real(dir, b"").map_err(failed)?;
    rustix::fs::futimens(&real, &meta::times(meta::of_stat(&before).mtime)).map_err(failed)
}

impl<'a> Work<'a> {
    fn check(&self) -> Result<(), UnpackError> {
        if (self.cancelled)() { Err(UnpackError::Cancelled) } else { Ok(()) }
    }

    /// Counts copied bytes against the limit of the layer.
    fn charge(&mut self, bytes: u64) -> Result<(), UnpackError> {
        self.check()?;
        self.unpacked.size = self.unpacked.size.saturating_add(bytes);
        let most = self.caps.max_layer_bytes;
        if self.unpacked.size > most {
            Err(UnpackError::TooMuch { what: "bytes, with the copies of files that it links to,", most })
        } else {
            Ok(())
        }
    }

    /// Makes a hard link. Its entry in the archive was counted.
    fn place(&mut self, link: &'a DeferredLink, dir: &OwnedFd) -> Result<(), UnpackError> {
        let path = join(&link.dir, &link.base);
        let failed = |e| UnpackError::write("make hard link", &path, e);
        let link_to = |from: &OwnedFd, base: &[u8]| {
            rustix::fs::linkat(from, base, dir, link.base.as_slice(), AtFlags::empty()).map_err(failed)
        };
        if stat(dir, &link.base).map_err(failed)?.is_some() {
            // A later entry has the same name: the last entry wins.
            return Ok(());
        }
        // The target may come later in this layer.
        if let Some(own) = look_up(std::iter::once(self.into), &link.target).map_err(failed)? {
            refuse_directory(&own, &path)?;
            return link_to(&own.dir, &own.base);
        }
        let missing = || UnpackError::LinkTarget { path: link.raw.clone(), target: lossy(link.target.path()) };
        let found = look_up(self.parents.iter(), &link.target).map_err(failed)?.ok_or_else(missing)?;
        refuse_directory(&found, &path)?;
        let id = FileId::from(&found.stat);
        if let Some(first) = self.copied.get(&id) {
            return link_to(&open_real(self.into, &first.dir).map_err(failed)?, &first.base);
        }
        self.copy(&found, dir, &link.base, &path)?;
        // File systems such as ext4 reuse inode numbers at once: the checksum would be that of a replaced file.
        if let Some(made) = stat(dir, &link.base).map_err(failed)? {
            self.unpacked.sums.remove(&made.st_ino);
        }
        self.copied.insert(id, link);
        Ok(())
    }

    /// Copies a file, link or device of a lower layer with its metadata: layers share no inodes, so that one can be
    /// removed or repaired without the other.
    fn copy(&mut self, found: &ResolvedFile, dir: &OwnedFd, base: &[u8], path: &[u8]) -> Result<(), UnpackError> {
        let failed = |e| UnpackError::write("copy from a lower layer", path, e);
        let name = found.base.as_slice();
        let of_stat = meta::of_stat(&found.stat);
        match kind(&found.stat) {
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let from = rustix::fs::openat(&found.dir, name, flags, Mode::empty()).map_err(failed)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let to = rustix::fs::openat(dir, base, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
                self.copy_data(&from, &to, path)?;
                meta::apply(&to, &meta::read(&from).map_err(failed)?, path)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&found.dir, name, Vec::new()).map_err(failed)?;
                rustix::fs::symlinkat(target, dir, base).map_err(failed)?;
                meta::apply_unopened(dir, base, &of_stat, FileType::Symlink).map_err(failed)
            }
            other => {
                let private = Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(dir, base, other, private, found.stat.st_rdev).map_err(failed)?;
                meta::apply_unopened(dir, base, &of_stat, other).map_err(failed)
            }
        }
    }

    /// Copies the spans that hold data with copy_file_range(2); holes stay holes.
    fn copy_data(&mut self, from: &OwnedFd, to: &OwnedFd, path: &[u8]) -> Result<(), UnpackError> {
        let failed = |e| UnpackError::write("copy from a lower layer", path, e);
        let length = u64::try_from(rustix::fs::fstat(from).map_err(failed)?.st_size).unwrap_or(0);
        rustix::fs::ftruncate(to, length).map_err(failed)?;
        let mut at = 0;
        while at < length {
            at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(error) => return Err(failed(error)),
            };
            let end = rustix::fs::seek(from, SeekFrom::Hole(at)).map_err(failed)?;
            while at < end {
                let (mut source, mut sink) = (at, at);
                let step = (end - at).min(COPY_STEP);
                // Before the copy: a limit must not be found when the disk is full.
                self.charge(step)?;
                let most = usize::try_from(step).unwrap_or(usize::MAX);
                let n =
                    rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut sink), most).map_err(failed)?;
                if n == 0 {
                    return Err(failed(Errno::IO));
                }
                self.unpacked.size -= step.saturating_sub(n as u64);
                at += n as u64;
            }
        }
        Ok(())
    }

    /// Overlayfs merges the roots of all layers whatever their attributes, so an opaque root becomes one whiteout or
    /// one opaque directory for each name in lower layers.
    fn hide_all(&mut self) -> Result<(), UnpackError> {
        let failed = |e| UnpackError::write("hide the lower layers in", b".", e);
        let into = self.into;
        for parent in self.parents {
            let root = open_real(parent, b"").map_err(failed)?;
            for entry in Dir::read_from(root.as_fd()).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                match stat(into, name).map_err(failed)? {
                    None => {
                        self.count()?;
                        rustix::fs::mknodat(into, name, FileType::CharacterDevice, Mode::empty(), 0)
                    }
                    Some(own) if kind(&own) == FileType::Directory => {
                        open_child(into, name).and_then(|dir| meta::set_opaque(&dir))
                    }
                    Some(_) => Ok(()),
                }
                .map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Counts one whiteout against the limit of the layer.
    fn count(&mut self) -> Result<(), UnpackError> {
        self.check()?;
        self.unpacked.entries += 1;
        let most = self.caps.max_entries;
        if self.unpacked.entries > most { Err(UnpackError::TooMuch { what: "entries", most }) } else { Ok(()) }
    }
}

fn refuse_directory(target: &ResolvedFile, link: &[u8]) -> Result<(), UnpackError> {
    match kind(&target.stat) {
        FileType::Directory => Err(UnpackError::entry(link, "it is a hard link to a directory")),
        _ => Ok(()),
    }
}

/// A file found in a layer: its directory, its name, its metadata.
struct ResolvedFile {
    dir: OwnedFd,
    base: Vec<u8>,
    stat: Stat,
}

enum Step {
    /// Neither in this layer nor hidden by it.
    Absent,
    /// Hidden: neither this layer nor a lower one has it.
    Hidden,
    /// A link is on the way: the path to look up instead.
    Elsewhere(Vec<u8>),
    Here(ResolvedFile),
}

/// Looks up a path in layers stacked topmost first. Links on the way are followed within the stack; the last element is
/// not followed.
fn look_up<'l>(layers: impl Iterator<Item = &'l OwnedFd> + Clone, name: &Name) -> Result<Option<ResolvedFile>, Errno> {
    let mut path = name.path().to_vec();
    'again: for _ in 0..=MAX_LINKS {
        for layer in layers.clone() {
            match look_in(layer, &path)? {
                Step::Absent => {}
                Step::Hidden => return Ok(None),
                Step::Here(found) => return Ok(Some(found)),
                Step::Elsewhere(other) => {
                    path = other;
                    continue 'again;
                }
            }
        }
        return Ok(None);
    }
    Err(Errno::LOOP)
}

fn look_in(layer: &OwnedFd, path: &[u8]) -> Result<Step, Errno> {
    let mut dir = open_real(layer, b"")?;
    let mut opaque = meta::is_opaque(&dir)?;
    let mut done = 0;
    let mut elements = path.split(|&byte| byte == b'/').peekable();
    while let Some(element) = elements.next() {
        let Some(found) = stat(&dir, element)? else {
            return Ok(if opaque { Step::Hidden } else { Step::Absent });
        };
        if is_whiteout(&found) {
            return Ok(Step::Hidden);
        }
        if elements.peek().is_none() {
            return Ok(Step::Here(ResolvedFile { dir, base: element.to_vec(), stat: found }));
        }
        match kind(&found) {
            FileType::Directory => {
                dir = open_child(&dir, element)?;
                opaque |= meta::is_opaque(&dir)?;
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&dir, element, Vec::new())?.into_bytes();
                let rest = &path[done + element.len()..];
                let from = if target.starts_with(b"/") { &[] as &[u8] } else { &path[..done] };
                return Ok(Step::Elsewhere(resolved(&[from, b"/", &target, rest].concat())));
            }
            _ => return Ok(Step::Hidden),
        }
        done += element.len() + 1;
    }
    Ok(Step::Absent)
}

/// Removes `.`, `..` and empty elements; the root's parent is the root. (An element before `..` is a directory that the
/// walk has passed, or part of a link's target.)
fn resolved(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    for element in path.split(|&byte| byte == b'/') {
        match element {
            b"" | b"." => {}
            b".." => {
                kept.pop();
            }
            _ => kept.push(element),
        }
    }
    kept.join(&b'/')
}

/// Gives a directory that no entry described the owner, mode, attributes and times it has in lower layers; without one
/// there, its time is 0.
fn inherit(path: &[u8], into: &OwnedFd, parents: &[OwnedFd]) -> Result<(), UnpackError> {
    let failed = |e| UnpackError::write("take over the metadata of", path, e);
    let below = if path.is_empty() {
        parents.first().map(|top| open_real(top, b"")).transpose().map_err(failed)?
    } else if hidden_below(path, into).map_err(failed)? {
        None
    } else {
        below(path, parents).map_err(failed)?
    };
    let dir = open_real(into, path).map_err(failed)?;
    match below {
        Some(below) => meta::apply(&dir, &meta::read(&below).map_err(failed)?, path),
        // The time of its creation would give every store another tree.
        None => rustix::fs::futimens(&dir, &meta::times((0, 0))).map_err(failed),
    }
}

/// The directory at exactly this path in lower layers; links are not followed.
fn below(path: &[u8], parents: &[OwnedFd]) -> Result<Option<OwnedFd>, Errno> {
    for layer in parents {
        match look_in(layer, path)? {
            Step::Absent => {}
            Step::Hidden | Step::Elsewhere(_) => return Ok(None),
            Step::Here(found) if kind(&found.stat) == FileType::Directory => {
                return open_child(&found.dir, &found.base).map(Some);
            }
            Step::Here(_) => return Ok(None),
        }
    }
    Ok(None)
}

/// Whether a directory of this layer on the way to `path` is opaque and so hides the lower one.
fn hidden_below(path: &[u8], into: &OwnedFd) -> Result<bool, Errno> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    for end in std::iter::once(0).chain(ends) {
        if meta::is_opaque(&open_real(into, &path[..end])?)? {
            return Ok(true);
        }
    }
    Ok(false)
}
