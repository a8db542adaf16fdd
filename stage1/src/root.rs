//! An app's root: its layers and its writable directory as one overlay, and the few files gantry puts into it.
//!
//! Everything below the root is hostile: it is opened beneath it (openat2 with RESOLVE_IN_ROOT), never by a joined path,
//! and nothing of it that could block (a FIFO) is opened.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;

use gantry_contract::plan::{App, Mount};
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::{MountFlags, mount};

use crate::etc;
use crate::failure::{Attempt, Result, failure};

/// Maximum length of mount options: one page (mount(2)).
const MAX_OPTIONS: usize = 4095;

/// Mounts the overlay of an app at `/bundles/APP/root` and opens it. The mount is nodev: device nodes that an image
/// brings cannot be opened; those in /dev are gantry's.
pub(crate) fn mount_root(app: &App) -> Result<OwnedFd> {
    let name = &app.name;
    for dir in ["", "upper", "work"] {
        let path = format!("/pod/apps/{name}/{dir}");
        make_dir(&path, 0o755).attempt(|| format!("cannot make {path}"))?;
    }
    for dir in [format!("/bundles/{name}"), root_path(name)] {
        make_dir(&dir, 0o700).attempt(|| format!("cannot make {dir}"))?;
    }
    let bad = |layer: &String| layer.is_empty() || !layer.bytes().all(|c| c.is_ascii_alphanumeric());
    if app.layers.is_empty() || app.layers.iter().any(bad) {
        return Err(failure(ErrorKind::Invalid, "the plan names no layers, or one that is no name"));
    }
    let lower = app.layers.join(":");
    let options = format!("lowerdir={lower},upperdir=../pod/apps/{name}/upper,workdir=../pod/apps/{name}/work");
    if options.len() > MAX_OPTIONS {
        return Err(failure(
            ErrorKind::Invalid,
            format!("the image has {} layers: too many for one overlay mount", app.layers.len()),
        ));
    }
    // Relative names keep the options of 128 layers within a page.
    rustix::process::chdir("/trees").attempt(|| "cannot enter the layers")?;
    let options = CString::new(options).map_err(|_| failure(ErrorKind::Internal, "a layer's name holds a NUL byte"))?;
    let mounted = mount("overlay", root_path(name), "overlay", MountFlags::NODEV, options.as_c_str());
    rustix::process::chdir("/").attempt(|| "cannot enter /")?;
    mounted.attempt(|| "cannot mount the app's root (overlayfs over the pod directory)")?;
    rustix::fs::open(root_path(name), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .attempt(|| "cannot open the app's root")
}

/// Where an app's root is in the supervisor's tree.
pub(crate) fn root_path(app: &str) -> String {
    format!("/bundles/{app}/root")
}

fn make_dir(path: &str, mode: u32) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(mode)) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Opens something beneath an app's root, without ever waiting for it.
pub(crate) fn open_in(root: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // openat2 takes nothing beside O_PATH that does not go with it.
    let careful = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK | OFlags::NOCTTY };
    let flags = flags | OFlags::CLOEXEC | careful;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

/// Makes a directory and its parents beneath a root, following links inside it. Existing ones are left as they are.
pub(crate) fn make_dirs(root: &OwnedFd, path: &str) -> Result<OwnedFd> {
    let what = || format!("cannot make the directory '{}' in the image", shown(path));
    let mut done = String::new();
    let mut dir = open_in(root, "/", OFlags::DIRECTORY).attempt(what)?;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        done = format!("{done}/{part}");
        dir = match open_in(root, &done, OFlags::DIRECTORY) {
            Err(rustix::io::Errno::NOENT) => {
                rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o755)).attempt(what)?;
                open_in(root, &done, OFlags::DIRECTORY).attempt(what)?
            }
            other => other.attempt(what)?,
        };
    }
    Ok(dir)
}

/// The working directory: made if the image lacks it, and never one that is only there because /proc is.
pub(crate) fn working_dir(root: &OwnedFd, path: &str) -> Result<()> {
    let normal = gantry_model::spec::normal(path);
    if normal == "/proc" || normal.starts_with("/proc/") {
        return Err(failure(ErrorKind::Invalid, format!("the working directory '{}' is below /proc", shown(path))));
    }
    make_dirs(root, &normal).map(drop)
}

/// What gantry mounts at /proc, /sys and /dev needs directories there; libcontainer would say only that it failed.
pub(crate) fn check_mount_points(root: &OwnedFd) -> Result<()> {
    for name in ["proc", "sys", "dev"] {
        match rustix::fs::statat(root, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => {}
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {}
            Ok(_) => {
                return Err(failure(
                    ErrorKind::Invalid,
                    format!("/{name} of the image is not a directory, as it must be"),
                ));
            }
            Err(error) => return Err(error).attempt(|| format!("cannot look at /{name} of the image")),
        }
    }
    Ok(())
}

/// The files of /etc that gantry has put into an app's writable layer, open.
#[derive(Default)]
pub(crate) struct Etc(Vec<(&'static str, File)>);

impl Etc {
    /// Writes the files. At first, whatever the image has in their place is removed, not followed; what cannot be replaced is
    /// left alone, unless the file is required. Later, when the app's mounts may be over them, the same files get other content.
    pub(crate) fn write(&mut self, files: &[etc::File], root: &OwnedFd, over: &[Mount]) -> Result<()> {
        // What is in the place of a mount in the app's namespace would take the mount with it.
        let hidden = |file: &etc::File| {
            let path = format!("/etc/{}", file.name);
            over.iter().any(|mount| gantry_model::spec::normal(&mount.target) == path)
        };
        let mut new = Vec::new();
        for file in files {
            match self.0.iter_mut().find(|(name, _)| *name == file.name) {
                Some((name, open)) => {
                    replace(open, &file.text).attempt(|| format!("cannot write /etc/{name} of the app"))?
                }
                None if hidden(file) => {}
                None => new.push(file),
            }
        }
        if !new.is_empty() {
            self.0.extend(make_etc(&new, root)?);
        }
        Ok(())
    }
}

fn replace(file: &mut File, text: &[u8]) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text)
}

fn make_etc(files: &[&etc::File], root: &OwnedFd) -> Result<Vec<(&'static str, File)>> {
    let dir = match open_in(root, "etc", OFlags::DIRECTORY) {
        Err(rustix::io::Errno::NOENT) => {
            // A dangling link stays: then it is no directory.
            let _ = rustix::fs::mkdirat(root, "etc", Mode::from_raw_mode(0o755));
            open_in(root, "etc", OFlags::DIRECTORY)
        }
        other => other,
    };
    match dir {
        Ok(dir) => {
            make_mtab(&dir)?;
            files.iter().filter_map(|file| place(&dir, file).transpose()).collect()
        }
        Err(_) if !files.iter().any(|file| file.required) => Ok(Vec::new()),
        Err(error) => {
            Err(error).attempt(|| "cannot write into /etc of the image, which is no directory that can be opened")
        }
    }
}

/// Programs look for the mounts in /etc/mtab (mount(8) made it once); whatever an image has there stays.
fn make_mtab(etc: &OwnedFd) -> Result<()> {
    match rustix::fs::symlinkat("../proc/self/mounts", etc, "mtab") {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error).attempt(|| "cannot make /etc/mtab of the app"),
    }
}

/// `None`: it is left as it is.
fn place(dir: &OwnedFd, file: &etc::File) -> Result<Option<(&'static str, File)>> {
    let name = file.name;
    let what = || format!("cannot write /etc/{name} of the app");
    match unlink_any(dir, name) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(rustix::io::Errno::NOTEMPTY) if !file.required => return Ok(None),
        Err(rustix::io::Errno::NOTEMPTY) => {
            let why = "is a directory with something in it: gantry cannot put its file there";
            return Err(failure(ErrorKind::Invalid, format!("/etc/{name} of the image {why}")));
        }
        Err(error) => return Err(error).attempt(what),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644)).attempt(what)?;
    let mut made = File::from(made);
    made.write_all(&file.text).attempt(what)?;
    Ok(Some((name, made)))
}

/// An empty directory too.
fn unlink_any(dir: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(rustix::io::Errno::ISDIR) => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
        other => other,
    }
}

/// A small file of the host, read before its tree is let go; `None` when it is not a small regular file.
pub(crate) fn read_host_file(path: &str) -> Option<Vec<u8>> {
    const MAX_SIZE: i64 = 64 << 10;
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size <= MAX_SIZE;
    let mut bytes = Vec::new();
    let mut limited = File::from(fd).take(MAX_SIZE.unsigned_abs());
    (regular && limited.read_to_end(&mut bytes).is_ok()).then_some(bytes)
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;
