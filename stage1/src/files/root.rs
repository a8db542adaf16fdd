//! An app's root: an overlay of its layers and its writable directory, and the files that gantry writes into it.
//!
//! Everything below the root is hostile. Files are opened beneath it (openat2 with RESOLVE_IN_ROOT), never by a joined
//! path, and without blocking: an image may have a FIFO anywhere.

use std::ffi::CString;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use gantry_contract::plan::App;
use gantry_host::attributes::copy_directory_attributes;
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::spec;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::failure::{Attempt, Result, failure};
use crate::files::volumes::AppMount;
use crate::pod::etc;
use crate::pod::user_namespace::UserNamespace;

/// Maximum length of mount options: one page (mount(2)).
const MAX_OPTIONS: usize = 4095;

/// Mounts the overlay of an app at `/bundles/APP/root` and opens it. The mount is nodev: device nodes of an image
/// cannot be opened, only those that gantry makes in /dev.
pub(crate) fn mount_root(app: &App, user: Option<&UserNamespace>) -> Result<OwnedFd> {
    let name = &app.name;
    let lower = layers_option(&app.layers)?;
    make_writable_layer(app, user)?;
    for dir in [format!("/bundles/{name}"), root_path(name)] {
        // Root of a user namespace must reach them.
        make_dir(&dir, if user.is_some() { 0o711 } else { 0o700 }).attempt(|| format!("cannot make {dir}"))?;
    }
    let own = format!("../{}/apps/{name}", mapped_pod_dir(user));
    remove_volatile_mark(name)?;
    let durability = if goes_with_pod()? { ",volatile" } else { "" };
    let options = format!("{lower},upperdir={own}/upper,workdir={own}/work{durability}");
    if options.len() > MAX_OPTIONS {
        return Err(failure(
            ErrorKind::Invalid,
            format!("the image has {} layers: too many for one overlay mount", app.layers.len()),
        ));
    }
    // With relative paths the options of 128 layers fit into a page.
    rustix::process::chdir("/trees").attempt(|| "cannot enter the layers")?;
    let options =
        CString::new(options).map_err(|_| failure(ErrorKind::Internal, "a layer's name contains a NUL byte"))?;
    // The ids with which overlayfs changes the writable layer.
    let as_root = user.map(UserNamespace::as_root).transpose()?;
    let mounted = mount("overlay", root_path(name), "overlay", MountFlags::NODEV, options.as_c_str());
    drop(as_root);
    rustix::process::chdir("/").attempt(|| "cannot enter /")?;
    mounted.attempt(|| "cannot mount the app's root (overlayfs over the pod directory)")?;
    rustix::fs::open(root_path(name), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .attempt(|| "cannot open the app's root")
}

/// The pod directory on the mount that has the ids of the pod.
fn mapped_pod_dir(user: Option<&UserNamespace>) -> &'static str {
    if user.is_some() { "mapped" } else { "pod" }
}

/// Makes the directories of an app's writable layer, unless an earlier start or a copy has made them. The root of the
/// overlay has the attributes of the writable layer, which are therefore those of the image's topmost layer: it has
/// those of the layer below if its archive does not set them.
fn make_writable_layer(app: &App, user: Option<&UserNamespace>) -> Result<()> {
    let dir = format!("/pod/apps/{}", app.name);
    let [upper, work] = ["upper", "work"].map(|name| format!("{dir}/{name}"));
    for path in [&dir, &upper] {
        make_dir(path, 0o755).attempt(|| format!("cannot make {path}"))?;
    }
    // Last: it shows that the attributes are complete.
    match rustix::fs::access(&work, Access::EXISTS) {
        Ok(()) => return Ok(()),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error).attempt(|| format!("cannot examine {work}")),
    }
    if let Some(top) = app.layers.first() {
        let mapped = format!("/{}/apps/{}/upper", mapped_pod_dir(user), app.name);
        copy_directory_attributes(Path::new(&format!("/trees/{top}")), Path::new(&mapped))
            .attempt(|| "cannot give the app's root the attributes of the image's")?;
    }
    make_dir(&work, 0o755).attempt(|| format!("cannot make {work}"))
}

/// Whether the writable layer is removed with the end of the pod, so that nothing of it has to be durable. Otherwise
/// unmounting the overlay writes back all dirty data of the host's file system, and waits for it.
fn goes_with_pod() -> Result<bool> {
    let file = format!("/pod/{}", gantry_contract::files::REMOVE_WHEN_ENDED);
    match rustix::fs::access(&file, Access::EXISTS) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error).attempt(|| format!("cannot examine {file}")),
    }
}

/// Removes the mark that a volatile mount leaves in its work directory, even when it is unmounted: overlayfs refuses to
/// mount a marked one. It is there if an earlier start of this pod has failed. The layer is still usable, because no
/// app has written to it since.
fn remove_volatile_mark(app: &str) -> Result<()> {
    let parent = format!("/pod/apps/{app}/work/work/incompat");
    let mark = format!("{parent}/volatile");
    match rustix::fs::rmdir(&mark) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY) => {
            let file = format!("{mark}/dirty");
            rustix::fs::unlink(&file).attempt(|| format!("cannot remove {file}"))?;
            rustix::fs::rmdir(&mark).attempt(|| format!("cannot remove {mark}"))?;
        }
        other => other.attempt(|| format!("cannot remove {mark}"))?,
    }
    rustix::fs::rmdir(&parent).attempt(|| format!("cannot remove {parent}"))
}

/// The option of an overlay with these layers, whose directories are in the current one.
pub(crate) fn layers_option(layers: &[String]) -> Result<String> {
    let bad = |layer: &String| layer.is_empty() || !layer.bytes().all(|c| c.is_ascii_alphanumeric());
    if layers.is_empty() || layers.iter().any(bad) {
        return Err(failure(ErrorKind::Invalid, "the plan has no layers, or a layer with an invalid name"));
    }
    Ok(format!("lowerdir={}", layers.join(":")))
}

/// The path of an app's root in the supervisor's tree.
pub(crate) fn root_path(app: &str) -> String {
    format!("/bundles/{app}/root")
}

fn make_dir(path: &str, mode: u32) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(mode)) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Opens a file beneath an app's root without blocking.
pub(crate) fn open_in(root: &OwnedFd, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // openat2 refuses O_PATH with flags that have no effect on it.
    let non_blocking = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK | OFlags::NOCTTY };
    let flags = flags | OFlags::CLOEXEC | non_blocking;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

/// Makes a directory and its parents beneath a root, following links inside it. Existing directories are not changed.
pub(crate) fn make_dirs(root: &OwnedFd, path: &str) -> Result<OwnedFd> {
    let what = || format!("cannot make the directory '{}' in the app's root", shown(path));
    let mut done = String::new();
    let mut dir = open_in(root, "/", OFlags::DIRECTORY).attempt(what)?;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        done = format!("{done}/{part}");
        dir = match open_in(root, &done, OFlags::DIRECTORY) {
            Err(rustix::io::Errno::NOENT) => {
                let made = rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o755));
                // Another app that has the same volume may have been faster.
                let opened = open_in(root, &done, OFlags::DIRECTORY);
                opened.map_err(|error| made.err().unwrap_or(error)).attempt(what)?
            }
            other => other.attempt(what)?,
        };
    }
    Ok(dir)
}

/// Makes the working directory if the image lacks it. One below /proc is refused: it would depend on what is mounted
/// there.
pub(crate) fn make_working_dir(root: &OwnedFd, path: &str) -> Result<()> {
    let normal = spec::normal(path);
    if spec::is_at_or_below(&normal, "/proc") {
        return Err(failure(ErrorKind::Invalid, format!("the working directory '{}' is below /proc", shown(path))));
    }
    make_dirs(root, &normal).map(drop)
}

/// Makes the working directory if the volumes that cover the image's have none. Other errors are ignored: the app's
/// process reports them when it enters the directory, possibly as a user with more access than root.
pub(crate) fn make_missing_working_dir(root: &OwnedFd, path: &str) -> Result<()> {
    match open_in(root, path, OFlags::PATH | OFlags::DIRECTORY) {
        Err(Errno::NOENT) => make_working_dir(root, path),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Checks that the mount points /proc, /sys and /dev are directories, and names the cause if they are not.
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
            Err(error) => return Err(error).attempt(|| format!("cannot inspect /{name} of the image")),
        }
    }
    Ok(())
}

/// The files of /etc that gantry has written into an app's writable layer, open for changes.
#[derive(Default)]
pub(crate) struct Etc(Vec<(&'static str, File)>);

impl Etc {
    /// Writes the files. The first time, a file replaces the image's; links are removed, not followed. If the image's
    /// cannot be replaced, it stays, unless the file is required. Later calls, when mounts of the app may cover the
    /// paths, change the contents of the same files.
    pub(crate) fn write(&mut self, files: &[etc::File], root: &OwnedFd, mounts: &[AppMount]) -> Result<()> {
        // Removing a mount point would remove the mount in the app's namespace.
        let hidden = |file: &etc::File| {
            let path = format!("/etc/{}", file.name);
            mounts.iter().any(|mount| mount.target == path)
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
            // A dangling link stays, and opening it fails below.
            let _reported_below = rustix::fs::mkdirat(root, "etc", Mode::from_raw_mode(0o755));
            open_in(root, "etc", OFlags::DIRECTORY)
        }
        other => other,
    };
    match dir {
        Ok(dir) => {
            make_mtab(&dir)?;
            files.iter().filter_map(|file| write_etc_file(&dir, file).transpose()).collect()
        }
        Err(_) if !files.iter().any(|file| file.required) => Ok(Vec::new()),
        Err(error) => Err(error).attempt(|| "cannot write to /etc of the image, which cannot be opened as a directory"),
    }
}

/// Makes /etc/mtab, where programs look for mounts, unless the image has a file of that name.
fn make_mtab(etc: &OwnedFd) -> Result<()> {
    match rustix::fs::symlinkat("../proc/self/mounts", etc, "mtab") {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error).attempt(|| "cannot make /etc/mtab of the app"),
    }
}

/// Writes a file of /etc; returns `None` if the image's stays.
fn write_etc_file(dir: &OwnedFd, file: &etc::File) -> Result<Option<(&'static str, File)>> {
    let name = file.name;
    let what = || format!("cannot write /etc/{name} of the app");
    match remove_any(dir, name) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(rustix::io::Errno::NOTEMPTY) if !file.required => return Ok(None),
        Err(rustix::io::Errno::NOTEMPTY) => {
            let why = "is a directory that is not empty, which gantry's file cannot replace";
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

/// Removes a file or an empty directory.
fn remove_any(dir: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(rustix::io::Errno::ISDIR) => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
        other => other,
    }
}

/// Reads a small regular file of the host; `None` if it is missing, large or of another type.
pub(crate) fn read_host_file(path: &str) -> Option<Vec<u8>> {
    const MAX_SIZE: u64 = 64 << 10;
    gantry_host::file::read_bounded(path.as_ref(), MAX_SIZE).ok()
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;
