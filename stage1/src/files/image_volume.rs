//! Volumes that are images: the files of an image, or those below a path in it, which can only be read.
//!
//! The image is hostile: its path is opened beneath its root, where links are followed as the image's own.

use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};

use gantry_host::mounts::{CloneSource, ReadOnlyMounts, Restrictions, clone_restricted};
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::failure::{Attempt, Result, failure};
use crate::files::root::{layers_option, open_in};

/// Where an image is mounted while its path is opened.
const PLACE: &str = "/image";
/// An empty directory below the layers: an overlay has at least two.
const EMPTY: &str = "/empty";

/// Opens the files of an image as a mount that is attached nowhere. `sub_path`: the file or directory that is mounted;
/// empty: all.
pub(crate) fn open(layers: &[String], sub_path: &str) -> Result<OwnedFd> {
    let what = || "cannot mount an image as a volume";
    for dir in [PLACE, EMPTY] {
        match rustix::fs::mkdirat(CWD, dir, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).attempt(what),
        }
    }
    // With relative paths the options of 128 layers fit into a page.
    let options = layers_option(layers)? + ":.." + EMPTY;
    let options = CString::new(options).map_err(|_| failure(ErrorKind::Internal, "a layer's name has a NUL byte"))?;
    rustix::process::chdir("/trees").attempt(what)?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    let mounted = mount("overlay", PLACE, "overlay", flags, options.as_c_str());
    rustix::process::chdir("/").attempt(what)?;
    mounted.attempt(what)?;
    let tree = open_path(sub_path);
    // What is mounted stays as long as a clone of it is.
    unmount(PLACE, UnmountFlags::DETACH).attempt(what)?;
    tree
}

fn open_path(sub_path: &str) -> Result<OwnedFd> {
    let what = || format!("cannot mount '{}' of an image", shown(sub_path));
    let root = rustix::fs::open(PLACE, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let root = root.attempt(what)?;
    let path = if sub_path.is_empty() { "." } else { sub_path };
    let found = match open_in(&root, path, OFlags::PATH) {
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let why = format!("the image has no '{}'", shown(sub_path));
            return Err(failure(ErrorKind::NotFound, why));
        }
        other => other.attempt(what)?,
    };
    match FileType::from_raw_mode(rustix::fs::fstat(&found).attempt(what)?.st_mode) {
        FileType::Directory | FileType::RegularFile => {}
        _ => return Err(failure(ErrorKind::Invalid, format!("{}: it is neither a file nor a directory", what()))),
    }
    let restrictions = Restrictions { read_only: ReadOnlyMounts::Top, ..Restrictions::default() };
    clone_restricted(CloneSource::Open(found.as_fd()), restrictions).attempt(what)
}
