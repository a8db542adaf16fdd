//! List: the files of a directory, or of a tree.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use gantry_proto::talos::machine::list_request::Type;
use gantry_proto::talos::machine::{FileInfo, ListRequest, Xattr};
use rustix::fs::{FileType, RawMode, Stat};
use rustix::io::Errno;
use tonic::Status;

use super::access::{FileAccess, NamedFile};
use super::walk::{Visitor, WalkFile, walk};
use super::{FileJob, FileSender, Interrupted};

/// Maximum bytes of the extended attributes of a file.
const MAX_XATTRS: usize = 128 << 10;

/// The files that a request selects.
#[derive(Debug)]
pub(in super::super) struct ListSelection {
    access: FileAccess,
    root: String,
    /// Files with more directories above them, below the root, are left out.
    max_depth: usize,
    types: Vec<FileType>,
    with_xattrs: bool,
}

impl ListSelection {
    /// Reads the request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if a type does not exist.
    pub(in super::super) fn parse(access: FileAccess, request: ListRequest) -> Result<Self, Status> {
        let ListRequest { root, recurse, recursion_depth, types, report_xattrs } = request;
        let max_depth = match (recurse, usize::try_from(recursion_depth)) {
            (false, _) => 1,
            (true, Ok(0) | Err(_)) => usize::MAX,
            (true, Ok(depth)) => depth,
        };
        let file_type = |number: &i32| match Type::try_from(*number) {
            Ok(Type::Regular) => Ok(FileType::RegularFile),
            Ok(Type::Directory) => Ok(FileType::Directory),
            Ok(Type::Symlink) => Ok(FileType::Symlink),
            Err(_) => Err(Status::invalid_argument(format!("unknown type of file: {number}"))),
        };
        let types = types.iter().take(8).map(file_type).collect::<Result<_, _>>()?;
        Ok(Self { access, root, max_depth, types, with_xattrs: report_xattrs })
    }
}

impl FileJob<FileInfo> for ListSelection {
    fn run(self, sender: &FileSender<FileInfo>) -> Result<(), Interrupted> {
        let root = self.access.open("lstat", &self.root)?;
        walk(&root, &mut Lister { selection: &self, root: &root, sender })
    }
}

struct Lister<'a> {
    selection: &'a ListSelection,
    root: &'a NamedFile,
    sender: &'a FileSender<FileInfo>,
}

impl Lister<'_> {
    /// The absolute path, and the path from the root.
    fn names(&self, path: &[u8], is_dir: bool) -> (String, String) {
        let relative = match (path.is_empty(), is_dir) {
            (true, true) => ".".to_owned(),
            (true, false) => String::from_utf8_lossy(&self.root.base_name()).into_owned(),
            (false, _) => String::from_utf8_lossy(path).into_owned(),
        };
        (full_name(self.root, path), relative)
    }
}

/// The absolute path of a file. Bytes that are not UTF-8 are replaced by U+FFFD.
pub(super) fn full_name(root: &NamedFile, path: &[u8]) -> String {
    // Joining an empty path would append a slash.
    let name = if path.is_empty() { root.path.clone() } else { root.path.join(OsStr::from_bytes(path)) };
    name.to_string_lossy().into_owned()
}

impl Visitor for Lister<'_> {
    fn enter(&mut self, file: &WalkFile<'_>) -> Result<bool, Interrupted> {
        let types = &self.selection.types;
        if types.is_empty() || types.contains(&file.file_type()) {
            let (name, relative_name) = self.names(file.path, file.is_dir());
            self.sender.send(FileInfo {
                name,
                relative_name,
                size: file.stat.st_size,
                mode: go_mode(file.stat.st_mode),
                modified: file.stat.st_mtime,
                is_dir: file.is_dir(),
                link: file.link_target().map_or_else(String::new, |link| String::from_utf8_lossy(&link).into_owned()),
                uid: file.stat.st_uid,
                gid: file.stat.st_gid,
                xattrs: if self.selection.with_xattrs { xattrs(file.handle, &file.stat) } else { Vec::new() },
                ..FileInfo::default()
            })?;
        }
        Ok(file.depth < self.selection.max_depth)
    }

    fn report(&mut self, path: &[u8], _depth: usize, text: &str) -> Result<(), Interrupted> {
        let (name, relative_name) = self.names(path, true);
        self.sender.send(FileInfo { name, relative_name, error: text.to_owned(), ..FileInfo::default() })
    }

    fn check(&mut self) -> Result<(), Interrupted> {
        self.sender.check()
    }
}

/// A mode as Go's `os.FileMode`, which has other bits than st_mode.
fn go_mode(mode: RawMode) -> u32 {
    const DIRECTORY: u32 = 1 << 31;
    const SYMLINK: u32 = 1 << 27;
    const DEVICE: u32 = 1 << 26;
    const PIPE: u32 = 1 << 25;
    const SOCKET: u32 = 1 << 24;
    const SET_UID: u32 = 1 << 23;
    const SET_GID: u32 = 1 << 22;
    const CHARACTER_DEVICE: u32 = 1 << 21;
    const STICKY: u32 = 1 << 20;
    const IRREGULAR: u32 = 1 << 19;
    let kind = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => 0,
        FileType::Directory => DIRECTORY,
        FileType::Symlink => SYMLINK,
        FileType::Fifo => PIPE,
        FileType::Socket => SOCKET,
        FileType::CharacterDevice => DEVICE | CHARACTER_DEVICE,
        FileType::BlockDevice => DEVICE,
        FileType::Unknown => IRREGULAR,
    };
    let special = [(0o4000, SET_UID), (0o2000, SET_GID), (0o1000, STICKY)];
    special.into_iter().filter(|(bit, _)| mode & bit != 0).fold(kind | mode & 0o777, |all, (_, bit)| all | bit)
}

/// The extended attributes of a file: as many as fit into [`MAX_XATTRS`].
fn xattrs(handle: &OwnedFd, stat: &Stat) -> Vec<Xattr> {
    // A path through the O_PATH descriptor of a link would be that of its target.
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Vec::new();
    }
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let mut names = vec![0; 64 << 10];
    let Ok(length) = rustix::fs::listxattr(&path, &mut names[..]) else { return Vec::new() };
    names.truncate(length);
    let mut left = MAX_XATTRS;
    let mut attributes = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut data = vec![0; left];
        match rustix::fs::getxattr(&path, name, &mut data[..]) {
            Ok(length) => data.truncate(length),
            Err(Errno::RANGE | Errno::TOOBIG) => break,
            Err(_) => continue,
        }
        left = left.saturating_sub(name.len() + data.len());
        attributes.push(Xattr { name: String::from_utf8_lossy(name).into_owned(), data });
        if left == 0 {
            break;
        }
    }
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn modes_keep_permissions_and_types(mode: RawMode) {
            let go = go_mode(mode);
            prop_assert_eq!(go & 0o777, mode & 0o777);
            prop_assert_eq!(go >> 31 == 1, FileType::from_raw_mode(mode) == FileType::Directory);
        }
    }

    #[test]
    fn modes_are_those_of_go() {
        for (mode, want) in [
            (0o100_644, 0o644),
            (0o040_755, 1 << 31 | 0o755),
            (0o041_777, 1 << 31 | 1 << 20 | 0o777),
            (0o120_777, 1 << 27 | 0o777),
            (0o020_600, 1 << 26 | 1 << 21 | 0o600),
            (0o060_600, 1 << 26 | 0o600),
            (0o010_600, 1 << 25 | 0o600),
            (0o140_600, 1 << 24 | 0o600),
            (0o106_755, 1 << 23 | 1 << 22 | 0o755),
        ] {
            assert_eq!(go_mode(mode), want, "{mode:o}");
        }
    }
}
