//! `diff`: what an app changed in its root, read from its writable layer.
//!
//! The writable layer of a running app is read beneath its overlay: only names and attributes, so a change meanwhile
//! shows or not, and nothing else happens. The files and mount points that gantry makes are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use gantry_model::systemd::NOTIFY_DIR;
use gantry_model::{AppName, PodId};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::root::refuse_host_pod;
use super::{failed, from_cause, refused};
use crate::error::need_root;
use crate::{Engine, EngineError};

/// Maximum memory for the names of changed files, in bytes.
const MAX_NAME_BYTES: usize = 256 << 20;
/// Maximum length of a path below the root that Linux takes, without the slash before it and the NUL byte after it.
const MAX_PATH: usize = 4094;
/// The attribute that makes an overlayfs directory hide lower ones.
const OPAQUE: &str = "trusted.overlay.opaque";
/// The files in an app's root that gantry writes.
const OWN_FILES: [&str; 5] = ["etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab", "etc/machine-id"];
/// The mount points that gantry makes in every app.
const OWN_DIRECTORIES: [&str; 3] = ["proc", "sys", "dev"];

/// How a file differs from the image's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileChangeKind {
    /// The image has it, and its contents or its attributes may differ.
    Changed,
    /// The image lacks it.
    Added,
    /// The image has it, and the app lacks it.
    Deleted,
}

impl FileChangeKind {
    /// The letter for lists.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Changed => 'C',
            Self::Added => 'A',
            Self::Deleted => 'D',
        }
    }

    /// The word for JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Added => "added",
            Self::Deleted => "deleted",
        }
    }
}

/// A file that differs from the image's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Its absolute path in the app's root. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The difference.
    pub kind: FileChangeKind,
}

/// The files that differ from the image's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileChanges {
    /// By path.
    pub files: Vec<FileChange>,
    /// What was left out.
    pub warning: Option<String>,
}

/// Differences by path, relative to the root.
type RawChanges = BTreeMap<Vec<u8>, RawChange>;

/// A difference, before those that gantry made are left out.
struct RawChange {
    kind: FileChangeKind,
    /// Whether gantry may have made it: it is an empty file, a directory, or a directory with the image's attributes.
    is_plain: bool,
}

impl Engine {
    /// The files of an app that differ from its image.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn file_changes(&self, id: PodId, app: &AppName) -> Result<FileChanges, EngineError> {
        need_root("compare files of a pod").map_err(from_cause)?;
        let view = self.status(id).map_err(from_cause)?;
        refuse_host_pod(&view.row)?;
        let stored = self.stored_root(&view, app)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let upper = match rustix::fs::open(&stored.upper, flags, Mode::empty()) {
            Ok(upper) => upper,
            // It was never started.
            Err(Errno::NOENT) => return Ok(FileChanges::default()),
            Err(error) => return Err(failed("open", &stored.upper.to_string_lossy(), error)),
        };
        let mut own = BTreeSet::new();
        for path in OWN_DIRECTORIES.into_iter().chain([NOTIFY_DIR]).chain(stored.mount_targets()) {
            let mut path = path.trim_matches('/');
            // With the directories above it, which gantry makes too.
            while !path.is_empty() {
                own.insert(path.as_bytes().to_vec());
                path = path.rsplit_once('/').map_or("", |(above, _)| above);
            }
        }
        let comparison = stored.with_layers(|layers| {
            Comparison::run(&upper, layers).map_err(|error| match error {
                ComparisonError::TooMany => refused("the app has changed too many files to list them"),
                ComparisonError::File(path, error) => failed("compare", &String::from_utf8_lossy(&path), error),
            })
        })?;
        let warning = comparison.warning();
        Ok(FileChanges { files: without_own(comparison.changes, &own), warning })
    }
}

/// A directory of a writable layer that is to be compared.
struct PendingDirectory {
    path: Vec<u8>,
    /// Whether it is below an opaque directory: overlayfs does not mark those, but they hide all the same.
    is_hiding: bool,
}

/// Compares a writable layer with the layers below it.
#[derive(Default)]
struct Comparison {
    changes: RawChanges,
    name_bytes: usize,
    pending: Vec<PendingDirectory>,
    /// Number of files whose paths are longer than Linux takes. What is in such a directory is not counted.
    unreachable_files: u64,
    /// The path of the first of them.
    first_unreachable: Option<Vec<u8>>,
}

/// A comparison that was not completed.
#[derive(Debug)]
enum ComparisonError {
    /// There are too many differences.
    TooMany,
    /// An operation on a file failed.
    File(Vec<u8>, Errno),
}

impl Comparison {
    fn run(upper: &OwnedFd, layers: &OwnedFd) -> Result<Self, ComparisonError> {
        let mut comparison = Self::default();
        comparison.pending.push(PendingDirectory { path: Vec::new(), is_hiding: false });
        while let Some(directory) = comparison.pending.pop() {
            comparison.directory(upper, layers, directory)?;
        }
        Ok(comparison)
    }

    fn directory(
        &mut self,
        upper: &OwnedFd,
        layers: &OwnedFd,
        directory: PendingDirectory,
    ) -> Result<(), ComparisonError> {
        let PendingDirectory { path, is_hiding } = directory;
        let failed = |error| ComparisonError::File(path.clone(), error);
        // Removed meanwhile, if there is none.
        let Some(dir) = open_real(upper, &path).map_err(failed)? else { return Ok(()) };
        let lower = open_real(layers, &path).map_err(failed)?;
        let names = read_names(&dir).map_err(failed)?;
        let is_hiding = is_hiding || is_opaque(&dir);
        if let Some(lower) = lower.as_ref().filter(|_| is_hiding) {
            for name in read_names(lower).map_err(failed)?.difference(&names) {
                self.add(join(&path, name), RawChange { kind: FileChangeKind::Deleted, is_plain: false })?;
            }
        }
        for name in names {
            let Some(stat) = stat(&dir, &name).map_err(failed)? else { continue };
            let below = match &lower {
                Some(lower) => self::stat(lower, &name).map_err(failed)?,
                None => None,
            };
            let path = join(&path, &name);
            if path.len() > MAX_PATH {
                self.unreachable_files += 1;
                self.first_unreachable.get_or_insert(path);
                continue;
            }
            if kind(&stat) == FileType::Directory {
                self.pending.push(PendingDirectory { path: path.clone(), is_hiding });
            }
            self.add(path, RawChange::between(&stat, below.as_ref()))?;
        }
        Ok(())
    }

    fn add(&mut self, path: Vec<u8>, change: RawChange) -> Result<(), ComparisonError> {
        self.name_bytes += path.len();
        if self.name_bytes > MAX_NAME_BYTES {
            return Err(ComparisonError::TooMany);
        }
        self.changes.insert(path, change);
        Ok(())
    }

    fn warning(&self) -> Option<String> {
        let first = gantry_model::id::shown(&String::from_utf8_lossy(self.first_unreachable.as_ref()?));
        let (count, why) = (self.unreachable_files, "because their paths are longer than 4095 bytes");
        Some(format!("{count} files and directories are left out, {why}; the first is '/{first}'"))
    }
}

impl RawChange {
    /// The difference between a file of the writable layer and the one of the same path below it.
    fn between(upper: &Stat, lower: Option<&Stat>) -> Self {
        let attributes = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid);
        let (kind, is_plain) = match (kind(upper), lower) {
            (FileType::CharacterDevice, _) if upper.st_rdev == 0 => (FileChangeKind::Deleted, false),
            (FileType::Directory, None) => (FileChangeKind::Added, true),
            (FileType::Directory, Some(lower)) => (FileChangeKind::Changed, attributes(upper) == attributes(lower)),
            (other, None) => (FileChangeKind::Added, other == FileType::RegularFile && upper.st_size == 0),
            (_, Some(_)) => (FileChangeKind::Changed, false),
        };
        Self { kind, is_plain }
    }
}

/// Leaves out the files and mount points that gantry makes, and the directories that differ only by them.
fn without_own(changes: RawChanges, own: &BTreeSet<Vec<u8>>) -> Vec<FileChange> {
    let mut kept = Vec::new();
    // Directories with a change below that is kept, and with one that is left out.
    let (mut has_kept, mut has_own) = (BTreeSet::new(), BTreeSet::new());
    // A directory precedes what is in it.
    for (path, change) in changes.into_iter().rev() {
        let is_own_file = OWN_FILES.iter().any(|file| file.as_bytes() == path);
        let is_own = match change.kind {
            FileChangeKind::Deleted => false,
            _ if is_own_file => true,
            FileChangeKind::Added => change.is_plain && (own.contains(&path) || has_own.contains(&path)),
            FileChangeKind::Changed => change.is_plain && has_own.contains(&path),
        } && !has_kept.contains(&path);
        let above = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &path[..at]).to_vec();
        if is_own {
            has_own.insert(above);
        } else {
            has_kept.insert(above);
            kept.push(FileChange { path: format!("/{}", String::from_utf8_lossy(&path)), kind: change.kind });
        }
    }
    kept.reverse();
    kept
}

/// Opens the directory with this path, if there is one.
fn open_real(root: &OwnedFd, path: &[u8]) -> Result<Option<OwnedFd>, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_names(dir: &OwnedFd) -> Result<BTreeSet<Vec<u8>>, Errno> {
    let mut names = BTreeSet::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.insert(name.to_vec());
        }
    }
    Ok(names)
}

fn is_opaque(dir: &OwnedFd) -> bool {
    let mut value = [0u8; 1];
    matches!(rustix::fs::fgetxattr(dir, OPAQUE, &mut value[..]), Ok(1)) && value == *b"y"
}

fn stat(dir: &OwnedFd, name: &[u8]) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_below_a_replaced_directory_are_found() {
        let [upper, layers] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for (root, path) in [(&upper, "etc/sub"), (&layers, "etc/sub/deep"), (&layers, "usr")] {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        std::fs::create_dir(upper.path().join("usr")).unwrap();
        for (root, path) in [(&upper, "etc/sub/kept"), (&layers, "etc/sub/kept"), (&layers, "etc/sub/gone")] {
            std::fs::write(root.path().join(path), "x").unwrap();
        }
        std::fs::write(layers.path().join("usr/kept"), "x").unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(upper.path().join("etc"), OPAQUE, b"y", flags).unwrap();
        let open = |dir: &tempfile::TempDir| rustix::fs::open(dir.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let changes = Comparison::run(&open(&upper), &open(&layers)).unwrap().changes;
        let deleted = changes.into_iter().filter(|(_, change)| change.kind == FileChangeKind::Deleted);
        let deleted: Vec<String> = deleted.map(|(path, _)| String::from_utf8(path).unwrap()).collect();
        assert_eq!(deleted, ["etc/sub/deep", "etc/sub/gone"]);
    }

    #[test]
    fn own_files_are_left_out() {
        use FileChangeKind::{Added, Changed, Deleted};
        let raw = [
            ("dev", Added, true),
            ("etc", Changed, true),
            ("etc/hosts", Changed, false),
            ("etc/mtab", Added, false),
            ("data", Added, true),
            ("data/place", Added, true),
            ("tmp", Changed, true),
            ("usr", Changed, true),
            ("usr/hosts", Deleted, false),
            ("mine", Added, true),
        ];
        let changes = raw.map(|(path, kind, is_plain)| (path.as_bytes().to_vec(), RawChange { kind, is_plain }));
        let own: BTreeSet<Vec<u8>> = ["dev", "data", "data/place"].map(|path| path.as_bytes().to_vec()).into();
        let kept = without_own(changes.into(), &own);
        let lines: Vec<String> =
            kept.iter().map(|change| format!("{} {}", change.kind.letter(), change.path)).collect();
        assert_eq!(lines, ["A /mine", "C /tmp", "C /usr", "D /usr/hosts"]);
    }
}
