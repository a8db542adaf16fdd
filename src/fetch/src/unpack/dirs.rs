//! The directories of a layer being unpacked: opened once, created where missing, never left through a link.
//!
//! A parent that is a symbolic link inside the layer (`lib -> usr/lib`) is followed as in a chroot: each step opens one
//! element below an open directory with `O_NOFOLLOW`, and a link's target is walked from the layer's root. So neither a
//! link nor a directory swapped for one can lead out of the layer.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::entries::Meta;
use super::error::UnpackError;
use super::meta;
use super::names::{MAX_PATH, join};
use crate::caps::Caps;

/// Maximum number of open directories. Archives are written depth first, so few are in use at a time.
const MAX_OPEN: usize = 128;
/// Maximum number of links followed on the way to one directory, as in Linux.
const MAX_LINKS: usize = 40;

const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory of the layer.
pub(crate) struct Dir {
    pub fd: OwnedFd,
    /// Its path below the root, without links.
    pub path: Vec<u8>,
}

/// All directories of the layer.
pub(crate) struct Dirs<'c> {
    root: Rc<Dir>,
    caps: &'c Caps,
    /// By the path in the archive (which may lead over links).
    open: HashMap<Vec<u8>, Rc<Dir>>,
    /// By real path: the metadata to apply at the end; `None` if no entry describes it.
    known: BTreeMap<Vec<u8>, Option<Meta>>,
    name_bytes: u64,
    /// Number of files, directories, links and whiteouts created.
    pub made: u64,
}

/// Opens a directory by its real path; a link anywhere on it is an error.
pub(crate) fn open_real(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    rustix::fs::openat2(root, path, OPEN_DIR, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// Opens one element as a directory.
pub(crate) fn open_child(dir: &OwnedFd, element: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, element, OPEN_DIR, Mode::empty())
}

/// `stat` of the element itself, not of a link's target; `None` when it does not exist.
pub(crate) fn stat(dir: &OwnedFd, element: &[u8]) -> Result<Option<rustix::fs::Stat>, Errno> {
    match rustix::fs::statat(dir, element, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a file is an overlayfs whiteout: a character device 0:0.
pub(crate) fn is_whiteout(stat: &rustix::fs::Stat) -> bool {
    kind(stat) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// The type of file.
pub(crate) fn kind(stat: &rustix::fs::Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

impl<'c> Dirs<'c> {
    pub(crate) fn new(root: &OwnedFd, caps: &'c Caps) -> Result<Self, UnpackError> {
        let fd = open_real(root, b"").map_err(|e| UnpackError::write("open", b".", e))?;
        let root = Rc::new(Dir { fd, path: Vec::new() });
        let known = BTreeMap::from([(Vec::new(), None)]);
        Ok(Self { root, caps, open: HashMap::new(), known, name_bytes: 0, made: 0 })
    }

    /// Counts one created file against the limit.
    pub(crate) fn count(&mut self) -> Result<(), UnpackError> {
        self.made += 1;
        if self.made > self.caps.max_entries {
            return Err(UnpackError::TooMuch { what: "entries", most: self.caps.max_entries });
        }
        Ok(())
    }

    /// Opens the directory at `path` (a clean path of the archive); creates missing ones on the way.
    pub(crate) fn get(&mut self, path: &[u8]) -> Result<Rc<Dir>, UnpackError> {
        if path.is_empty() {
            return Ok(Rc::clone(&self.root));
        }
        if let Some(dir) = self.open.get(path) {
            return Ok(Rc::clone(dir));
        }
        let dir = match open_real(&self.root.fd, path) {
            Ok(fd) => Rc::new(Dir { fd, path: path.to_vec() }),
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => self.walk(path)?,
            Err(error) => return Err(UnpackError::write("open", path, error)),
        };
        if self.open.len() >= MAX_OPEN {
            self.open.clear();
        }
        self.open.insert(path.to_vec(), Rc::clone(&dir));
        Ok(dir)
    }

    /// Opens the directory at `path` if it exists, following links inside the layer; creates nothing.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<Rc<Dir>>, UnpackError> {
        if path.is_empty() {
            return Ok(Some(Rc::clone(&self.root)));
        }
        if let Some(dir) = self.open.get(path) {
            return Ok(Some(Rc::clone(dir)));
        }
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat2(&self.root.fd, path, flags, Mode::empty(), resolve) {
            Ok(fd) => Ok(Some(Rc::new(Dir { fd, path: path.to_vec() }))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(UnpackError::write("open", path, error)),
        }
    }

    fn walk(&mut self, path: &[u8]) -> Result<Rc<Dir>, UnpackError> {
        let mut here = Rc::clone(&self.root);
        let mut links = 0;
        let mut ahead: VecDeque<Vec<u8>> = elements(path).collect();
        while let Some(element) = ahead.pop_front() {
            if element == b".." {
                let up = here.path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                let real = here.path[..up].to_vec();
                let fd = open_real(&self.root.fd, &real).map_err(|e| UnpackError::write("open", &real, e))?;
                here = Rc::new(Dir { fd, path: real });
                continue;
            }
            match open_child(&here.fd, &element) {
                Ok(fd) => here = Rc::new(Dir { fd, path: self.extended(&here, &element)? }),
                Err(Errno::NOENT) => here = self.make_implicit(&here, &element)?,
                Err(Errno::NOTDIR | Errno::LOOP) => match self.through(&here, &element, path)? {
                    Through::Dir(dir) => here = dir,
                    Through::Link(target) => {
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(UnpackError::entry(path, "more than 40 symbolic links lead to it"));
                        }
                        if target.starts_with(b"/") {
                            here = Rc::clone(&self.root);
                        }
                        for element in elements(&target).collect::<Vec<_>>().into_iter().rev() {
                            ahead.push_front(element);
                        }
                    }
                },
                Err(error) => return Err(UnpackError::write("open", path, error)),
            }
        }
        Ok(here)
    }

    /// Resolves an element that exists and is not a directory.
    fn through(&mut self, here: &Rc<Dir>, element: &[u8], path: &[u8]) -> Result<Through, UnpackError> {
        let failed = |e| UnpackError::write("look at", path, e);
        let found = stat(&here.fd, element).map_err(failed)?;
        match found {
            Some(found) if is_whiteout(&found) => {
                rustix::fs::unlinkat(&here.fd, element, AtFlags::empty()).map_err(failed)?;
                let dir = self.make_implicit(here, element)?;
                meta::set_opaque(&dir.fd).map_err(|e| UnpackError::write("make directory", &dir.path, e))?;
                Ok(Through::Dir(dir))
            }
            Some(found) if kind(&found) == FileType::Symlink => {
                let target = rustix::fs::readlinkat(&here.fd, element, Vec::new()).map_err(failed)?;
                Ok(Through::Link(target.into_bytes()))
            }
            _ => Err(UnpackError::entry(path, "an entry before it made a file where it needs a directory")),
        }
    }

    fn extended(&self, dir: &Dir, element: &[u8]) -> Result<Vec<u8>, UnpackError> {
        let path = join(&dir.path, element);
        if path.len() > MAX_PATH {
            return Err(UnpackError::entry(&path, "links lead to a path longer than 4095 bytes"));
        }
        Ok(path)
    }

    fn make_implicit(&mut self, dir: &Rc<Dir>, element: &[u8]) -> Result<Rc<Dir>, UnpackError> {
        self.count()?;
        let path = self.extended(dir, element)?;
        self.remember(path.clone(), None)?;
        let failed = |e| UnpackError::write("make directory", &path, e);
        rustix::fs::mkdirat(&dir.fd, element, Mode::from_raw_mode(0o755)).map_err(failed)?;
        let fd = open_child(&dir.fd, element).map_err(failed)?;
        // The process's umask must not affect a layer.
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755)).map_err(failed)?;
        Ok(Rc::new(Dir { fd, path }))
    }

    /// Records a directory, with the metadata to apply at the end if an entry describes it.
    pub(crate) fn remember(&mut self, path: Vec<u8>, meta: Option<Meta>) -> Result<(), UnpackError> {
        let attributes: usize = meta.iter().flat_map(|m| &m.xattrs).map(|(name, value)| name.len() + value.len()).sum();
        self.count_names(path.len() + attributes)?;
        self.known.insert(path, meta);
        Ok(())
    }

    /// Counts bytes that are kept until the end of the layer against the limit.
    pub(crate) fn count_names(&mut self, bytes: usize) -> Result<(), UnpackError> {
        self.name_bytes = self.name_bytes.saturating_add(bytes as u64);
        if self.name_bytes > self.caps.max_names {
            return Err(UnpackError::TooMuch { what: "bytes of names", most: self.caps.max_names });
        }
        Ok(())
    }

    /// Forgets a removed directory, and all below it.
    pub(crate) fn forget_below(&mut self, path: &[u8]) {
        // Paths that led over it may name another directory from now on.
        self.open.clear();
        let below = [path, b"/"].concat();
        let gone: Vec<_> = self
            .known
            .range(path.to_vec()..)
            .map(|(known, _)| known)
            .take_while(|known| known.starts_with(path))
            .filter(|known| known.as_slice() == path || known.starts_with(&below))
            .cloned()
            .collect();
        for path in gone {
            self.known.remove(&path);
        }
    }

    /// Forgets every open directory, because a link that led to one may have changed.
    pub(crate) fn forget_links(&mut self) {
        self.open.clear();
    }

    /// Applies the metadata of directories, the deepest first, when no more files are created in them. Returns the
    /// paths of those that no entry described, parents first.
    pub(crate) fn finish(self) -> Result<Vec<Vec<u8>>, UnpackError> {
        let mut implicit = Vec::new();
        for (path, meta) in self.known.into_iter().rev() {
            match meta {
                None => implicit.push(path),
                Some(meta) => {
                    let dir = open_real(&self.root.fd, &path).map_err(|e| UnpackError::write("open", &path, e))?;
                    meta::apply(&dir, &meta, &path)?;
                }
            }
        }
        implicit.reverse();
        Ok(implicit)
    }
}

enum Through {
    Dir(Rc<Dir>),
    Link(Vec<u8>),
}

fn elements(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|&byte| byte == b'/').filter(|e| !matches!(*e, b"" | b".")).map(<[u8]>::to_vec)
}
