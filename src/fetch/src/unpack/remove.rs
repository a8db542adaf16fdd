//! Removes the file or directory of an earlier entry of the same layer.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::dirs::{open_child, open_real, stat};
use super::names::join;

/// Removes `base` in `dir` with all below it; links are removed, not followed. Returns its type.
pub(crate) fn remove(dir: &OwnedFd, base: &[u8]) -> Result<Option<FileType>, Errno> {
    let Some(found) = stat(dir, base)? else { return Ok(None) };
    let kind = FileType::from_raw_mode(found.st_mode);
    if kind == FileType::Directory {
        tree(dir, base)?;
    } else {
        rustix::fs::unlinkat(dir, base, AtFlags::empty())?;
    }
    Ok(Some(kind))
}

/// Without recursion, and with two descriptors however deep the tree is.
fn tree(dir: &OwnedFd, base: &[u8]) -> Result<(), Errno> {
    let top = open_child(dir, base)?;
    // Directories on the way down, each with the subdirectories that remain.
    let mut path: Vec<u8> = Vec::new();
    let mut levels = vec![clear_files(&top)?];
    while let Some(level) = levels.last_mut() {
        if let Some(next) = level.pop() {
            path = join(&path, &next);
            levels.push(clear_files(&open_real(&top, &path)?)?);
            continue;
        }
        levels.pop();
        if levels.is_empty() {
            break;
        }
        rustix::fs::unlinkat(&top, path.as_slice(), AtFlags::REMOVEDIR)?;
        let up = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        path.truncate(up);
    }
    rustix::fs::unlinkat(dir, base, AtFlags::REMOVEDIR)
}

/// Removes everything in a directory but its subdirectories, whose names it returns.
fn clear_files(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut below = Vec::new();
    for entry in Dir::read_from(dir.as_fd())? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::ISDIR) => below.push(name.to_vec()),
            Err(error) => return Err(error),
        }
    }
    Ok(below)
}
