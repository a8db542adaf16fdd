//! Finds a plugin's program.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use super::error::PluginError;
use crate::config::{files, is_name};

/// Finds the program of this type in the first directory that contains it. A symbolic link must not lead out of the
/// directory.
///
/// The path is executed, not the file that was checked, because a program may depend on the name it is called by. Only
/// root can write to these directories.
pub(super) fn find(dirs: &[PathBuf], kind: &str) -> Result<PathBuf, PluginError> {
    let mut problem = String::new();
    if is_name(kind) {
        for dir in dirs {
            match is_program(dir, kind) {
                Ok(true) => return Ok(dir.join(kind)),
                Ok(false) => problem = format!("{} is not an executable file", dir.join(kind).display()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => problem = format!("{}: {error}", dir.join(kind).display()),
            }
        }
    }
    let dirs = dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(PluginError::not_installed(&gantry_model::id::shown(kind), &dirs, &problem))
}

/// Whether a directory has the program of this type.
pub(crate) fn is_installed(dirs: &[PathBuf], kind: &str) -> bool {
    find(dirs, kind).is_ok()
}

fn is_program(dir: &Path, kind: &str) -> io::Result<bool> {
    let dir = files::open_dir(dir)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let fd = rustix::fs::openat2(dir, kind, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(fd)?;
    let executable = Mode::from_raw_mode(stat.st_mode).intersects(Mode::XUSR | Mode::XGRP | Mode::XOTH);
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && executable)
}
