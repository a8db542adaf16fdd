//! `contents/NAME`: the list of a layer's files, written when the layer is unpacked, to detect damage later.
//!
//! Each file has one record, terminated by a NUL: `TYPE MODE UID GID SIZE SUM PATH`, sorted by path. TYPE is that of
//! find(1). SUM is the CRC-32 of the file's data or of the link's target, computed while it was written, so that no
//! file is read again. SUM is `-` if the file was not written from the layer's stream (sparse files, copies from lower
//! layers). The checksum detects disk errors, not attackers: an attacker with write access to the layer could also
//! change this list.
//!
//! `contents/NAME.damaged` marks a layer whose directory does not match its list. Fetches treat the layer as absent;
//! unpacking it again removes the mark. Layers of older gantry versions have no list and are not checked.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use gantry_model::Digest;
use gantry_model::id::shown;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};

use crate::lock::open_dir;
use crate::tmp::{self, Scrap};
use crate::{Layout, Store, StoreError};

/// The CRC-32 of each file's data, by inode number.
pub type Sums = HashMap<u64, u32>;

const DAMAGED: &str = ".damaged";

/// An unfinished list of an older gantry.
const UNFINISHED: &str = ".new";

/// The source of the checksums.
enum Source<'a> {
    Written(&'a Sums),
    Disk,
}

/// The records of a directory by path, without the path.
type Records = BTreeMap<Vec<u8>, String>;

fn path(layout: &Layout, name: &str) -> PathBuf {
    layout.contents_dir().join(name)
}

fn unfinished(layout: &Layout, name: &str) -> PathBuf {
    path(layout, &format!("{name}{UNFINISHED}"))
}

fn damaged(layout: &Layout, name: &str) -> PathBuf {
    path(layout, &format!("{name}{DAMAGED}"))
}

/// The list of a layer that is about to be committed. Removed on drop unless it was published.
pub(crate) struct FreshList {
    path: PathBuf,
    // Before the file: it is removed while it is still locked.
    scrap: Scrap,
    _file: File,
}

/// Lists the directory of a layer that is about to be committed; the caller syncs the list with the layer, and moves it
/// to its final name with [`publish`].
pub(crate) fn write(layout: &Layout, tree: BorrowedFd<'_>, sums: &Sums) -> Result<FreshList, StoreError> {
    let dir = layout.contents_dir();
    match rustix::fs::mkdir(&dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(StoreError::io("create", &dir)(errno)),
    }
    let (mut file, path) = tmp::make_file(layout, "contents")?;
    let scrap = Scrap::new(layout, path.clone());
    let records = read(tree, &Source::Written(sums)).map_err(StoreError::io("list a layer for", &path))?;
    let mut bytes = Vec::new();
    for (name, record) in records {
        bytes.extend_from_slice(record.as_bytes());
        bytes.extend_from_slice(&name);
        bytes.push(0);
    }
    file.write_all(&bytes).map_err(StoreError::io("write", &path))?;
    Ok(FreshList { path, scrap, _file: file })
}

/// Moves the list of a layer that was just committed to its final name, and removes the mark of damage. A layer without
/// checksums has no list.
pub(crate) fn publish(layout: &Layout, name: &str, list: Option<FreshList>) -> Result<(), StoreError> {
    if let Some(list) = list {
        let to = path(layout, name);
        fs::rename(&list.path, &to).map_err(StoreError::io("rename a list to", &to))?;
        list.scrap.keep();
    }
    let mark = damaged(layout, name);
    absent_is_fine(fs::remove_file(&mark)).map_err(StoreError::io("remove", &mark))
}

fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Deletes the list of a layer.
pub(crate) fn forget(layout: &Layout, name: &str) -> Result<(), StoreError> {
    for path in [path(layout, name), unfinished(layout, name), damaged(layout, name)] {
        absent_is_fine(fs::remove_file(&path)).map_err(StoreError::io("remove", &path))?;
    }
    Ok(())
}

/// Deletes lists and damage marks that belong to no layer.
pub(crate) fn sweep(layout: &Layout, known: impl Fn(&str) -> bool) -> Result<(), StoreError> {
    let names = match crate::sweep::list_names(&layout.contents_dir()) {
        Err(error) if error.is_absent() => return Ok(()),
        other => other?,
    };
    let of_layer = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    for name in names.iter().map(|name| of_layer(name)).filter(|name| !known(name)) {
        forget(layout, &name)?;
    }
    Ok(())
}

impl Store {
    /// Whether this layer is marked as damaged.
    pub(crate) fn is_damaged(&self, chain: &Digest) -> bool {
        damaged(&self.layout, &Layout::tree_name(chain)).exists()
    }

    /// Compares the directory of a layer with its list, reading all of it. `Some`: the difference; the layer is then
    /// marked as damaged.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) fn check_layer(&self, chain: &Digest) -> Result<Option<String>, StoreError> {
        let name = Layout::tree_name(chain);
        let list = path(&self.layout, &name);
        let want = match fs::read(&list) {
            Ok(bytes) => parse(&bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("read", &list)(error)),
        };
        let tree = self.layout.tree_dir(chain);
        let dir = match open_dir(&tree) {
            Ok(dir) => dir,
            // Reported elsewhere, or collected in the meantime.
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(StoreError::io("open", &tree)(errno)),
        };
        let wrong = match read(dir.as_fd(), &Source::Disk) {
            Ok(found) => difference(&want, &found),
            // Collected in the meantime.
            Err(error) if error.kind() == ErrorKind::NotFound && !tree.exists() => None,
            Err(error) => Some(format!("it cannot be read: {error}")),
        };
        // A layer that is being unpacked again has another list.
        if wrong.is_none() || fs::read(&list).map_or(true, |bytes| parse(&bytes) != want) {
            return Ok(None);
        }
        let mark = damaged(&self.layout, &name);
        fs::write(&mark, b"").map_err(StoreError::io("write", &mark))?;
        Ok(wrong)
    }
}

fn parse(bytes: &[u8]) -> Records {
    let mut records = Records::new();
    for record in bytes.split(|&byte| byte == 0).filter(|record| !record.is_empty()) {
        let at = record.iter().enumerate().filter(|(_, byte)| **byte == b' ').nth(5).map_or(0, |(at, _)| at + 1);
        records.insert(record[at..].to_vec(), String::from_utf8_lossy(&record[..at]).into_owned());
    }
    records
}

/// The first difference, as text.
fn difference(want: &Records, found: &Records) -> Option<String> {
    let named = |path: &[u8]| shown(&String::from_utf8_lossy(path));
    for (path, record) in want {
        match found.get(path) {
            None => return Some(format!("'{}' is missing", named(path))),
            Some(now) if !same(record, now) => return Some(format!("'{}' is not what was unpacked", named(path))),
            Some(_) => {}
        }
    }
    found.keys().find(|path| !want.contains_key(*path)).map(|path| format!("'{}' was not unpacked", named(path)))
}

fn same(want: &str, found: &str) -> bool {
    match want.strip_suffix("- ") {
        // The expected sum is unknown: it is the last of the fields, each of which ends with a blank.
        Some(known) => found.strip_prefix(known).is_some_and(|sum| sum.trim_end().chars().all(|c| c != ' ')),
        None => want == found,
    }
}

/// Lists a directory and all below it.
fn read(tree: BorrowedFd<'_>, source: &Source<'_>) -> io::Result<Records> {
    let mut records = Records::new();
    let mut rest = vec![Vec::new()];
    while let Some(path) = rest.pop() {
        let dir = open_beneath(tree, &path, OFlags::DIRECTORY)?;
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = if path.is_empty() { name.to_bytes().to_vec() } else { [&path, name.to_bytes()].join(&b'/') };
            let (is_dir, record) = one(dir.as_fd(), name, source)?;
            if is_dir {
                rest.push(path.clone());
            }
            records.insert(path, record);
        }
    }
    Ok(records)
}

fn one(dir: BorrowedFd<'_>, name: &std::ffi::CStr, source: &Source<'_>) -> io::Result<(bool, String)> {
    let stat = rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let mut sum = None;
    let (letter, size) = match kind {
        FileType::RegularFile => {
            sum = match source {
                Source::Written(sums) => sums.get(&stat.st_ino).copied(),
                Source::Disk => Some(sum_of(open_beneath(dir, name.to_bytes(), OFlags::empty())?)?),
            };
            ('f', u64::try_from(stat.st_size).unwrap_or(0))
        }
        FileType::Directory => ('d', 0),
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
            sum = Some(crc32fast::hash(target.to_bytes()));
            ('l', target.to_bytes().len() as u64)
        }
        FileType::CharacterDevice => ('c', stat.st_rdev),
        FileType::BlockDevice => ('b', stat.st_rdev),
        FileType::Fifo => ('p', 0),
        _ => ('s', 0),
    };
    let mut record = format!("{letter} {:o} {} {} {size} ", stat.st_mode & 0o7777, stat.st_uid, stat.st_gid);
    // Writing to a String cannot fail.
    let _ = match sum {
        Some(sum) => write!(record, "{sum:08x} "),
        None => write!(record, "- "),
    };
    Ok((kind == FileType::Directory, record))
}

fn sum_of(file: OwnedFd) -> io::Result<u32> {
    let mut file = File::from(file);
    let (mut hash, mut buffer) = (crc32fast::Hasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hash.finalize()),
            Ok(n) => hash.update(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens a file below a directory, without following links.
fn open_beneath(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b".".as_slice() } else { path };
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    fn tree() -> (tempfile::TempDir, Sums) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let mut sums = Sums::new();
        for (name, text) in [("a/file", "text"), ("a/b/other\nname", "other"), ("unknown", "not summed")] {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            if name != "unknown" {
                sums.insert(path.metadata().unwrap().ino(), crc32fast::hash(text.as_bytes()));
            }
        }
        symlink("file", dir.path().join("a/link")).unwrap();
        (dir, sums)
    }

    #[test]
    fn every_kind_of_change_is_detected() {
        type Hit = fn(&std::path::Path);
        let hits: [(Hit, Option<&str>); 8] = [
            (|_| {}, None),
            // A file without a checksum has only a length to compare.
            (|tree| fs::write(tree.join("unknown"), "not Summed").unwrap(), None),
            (|tree| fs::write(tree.join("unknown"), "longer than before").unwrap(), Some("'unknown'")),
            (|tree| fs::write(tree.join("a/file"), "texT").unwrap(), Some("'a/file' is not")),
            (|tree| fs::remove_file(tree.join("a/b/other\nname")).unwrap(), Some("name' is missing")),
            (|tree| fs::write(tree.join("a/new"), "").unwrap(), Some("'a/new' was not unpacked")),
            (
                |tree| fs::set_permissions(tree.join("a/file"), fs::Permissions::from_mode(0o4755)).unwrap(),
                Some("a/file"),
            ),
            (
                |tree| {
                    fs::remove_file(tree.join("a/link")).unwrap();
                    symlink("elif", tree.join("a/link")).unwrap();
                },
                Some("a/link"),
            ),
        ];
        for (row, (hit, want)) in hits.into_iter().enumerate() {
            let (dir, sums) = tree();
            let read = |source: &Source<'_>| read(open_dir(dir.path()).unwrap().as_fd(), source).unwrap();
            let before = read(&Source::Written(&sums));
            hit(dir.path());
            let wrong = difference(&before, &read(&Source::Disk));
            let fits = match (want, &wrong) {
                (None, None) => true,
                (Some(want), Some(wrong)) => wrong.contains(want),
                _ => false,
            };
            assert!(fits, "row {row}: {wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
