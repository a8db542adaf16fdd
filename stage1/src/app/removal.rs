//! Removes the files of an app from a running pod: its root, its writable layer, its logs, and its own volumes.
//!
//! They are moved to a new directory, the trash, so that their names are free at once, and deleted by a helper process:
//! there may be millions of them. The helper also holds the last reference to the app's root: unmounting an overlay
//! writes back all dirty data of the file system below it (`ovl_sync_fs`), which may take seconds.
//!
//! The helper of a supervisor that ends is killed. The next start of the pod deletes what it has left; the removal of
//! the pod would, too.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use gantry_contract::files;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{PidfdFlags, Signal};

use crate::failure::{Attempt, Result};
use crate::files::root::root_path;
use crate::notify;
use crate::reaper::Reaper;
use crate::sys::{self, ForkedChild, SingleThreaded};

/// The beginning of the names of trash directories. Names of apps have no dots.
const TRASH: &str = ".removed-";

/// A directory with the files of a removed app.
pub(crate) struct Trash {
    app: String,
    path: PathBuf,
}

/// Unmounts the root of an app in which no process runs, and moves its layer and its logs to the trash. After a failure
/// it can be tried again; the trash is then deleted.
pub(crate) fn move_files(app: &str, reaper: &mut Reaper) -> Result<Trash> {
    let what = || format!("cannot remove the files of app '{app}'");
    let trash = Trash { app: app.to_owned(), path: make_trash(&apps_dir()).attempt(what)? };
    let moved = unmount_root(app)
        .and_then(|()| trash.take(&apps_dir().join(app), "layers"))
        .and_then(|()| trash.take(&Path::new("/pod").join(files::LOGS).join(app), "logs"));
    match moved.attempt(what) {
        Ok(()) => Ok(trash),
        Err(why) => {
            reaper.add_all(trash.delete(&[], None));
            Err(why)
        }
    }
}

impl Trash {
    fn take_volumes(&self, volumes: &[PathBuf]) -> Result<()> {
        let moved = volumes.iter().enumerate().try_for_each(|(i, volume)| self.take(volume, &format!("volume-{i}")));
        moved.attempt(|| format!("cannot remove the volumes of app '{}'", self.app))
    }

    fn take(&self, path: &Path, name: &str) -> rustix::io::Result<()> {
        match rustix::fs::rename(path, self.path.join(name)) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// Moves the app's own volumes there too, and begins to delete it. Returns the helper, which must be reaped.
    pub(crate) fn delete(self, volumes: &[PathBuf], root: Option<OwnedFd>) -> Option<OwnedFd> {
        // Volumes that stay are removed with the pod.
        if let Err(why) = self.take_volumes(volumes) {
            tracing::warn!("{}", why.message);
        }
        match self.fork_helper(root) {
            Ok(helper) => Some(helper),
            Err(error) => {
                tracing::warn!("the files of app '{}' are left to the next start of the pod: {error}", self.app);
                None
            }
        }
    }

    fn fork_helper(&self, root: Option<OwnedFd>) -> std::io::Result<OwnedFd> {
        let thread = SingleThreaded::check()?;
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let root_fd = root.as_ref().map(OwnedFd::as_raw_fd);
        let kept: Vec<_> = root_fd.into_iter().chain([reader.as_raw_fd()]).collect();
        let helper = sys::fork(thread, 0, |process| {
            run_helper(&process, &kept, || {
                let _end_of_pipe = rustix::io::retry_on_intr(|| rustix::io::read(&reader, &mut [0u8; 1]));
                process.close(root_fd.as_slice());
                delete(&self.path)
            })
        })?;
        drop(root);
        // The helper goes on.
        drop(writer);
        Ok(rustix::process::pidfd_open(helper, PidfdFlags::empty())?)
    }
}

/// Begins to delete what the helpers of earlier supervisors of the pod have left. Returns the helper, if there is
/// anything to delete; it must be reaped.
pub(crate) fn delete_leftovers() -> std::io::Result<Option<OwnedFd>> {
    let leftovers = find_leftovers(&apps_dir())?;
    if leftovers.is_empty() {
        return Ok(None);
    }
    let helper = sys::fork(SingleThreaded::check()?, 0, |process| {
        run_helper(&process, &[], || leftovers.iter().try_for_each(|path| delete(path)))
    })?;
    Ok(Some(rustix::process::pidfd_open(helper, PidfdFlags::empty())?))
}

/// Runs in a helper.
fn run_helper(process: &ForkedChild, kept: &[RawFd], delete: impl FnOnce() -> rustix::io::Result<()>) -> Infallible {
    let _best_effort = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if process.close_all_but(kept).is_ok() {
        let _left_to_next_start = delete();
    }
    sys::exit_now(0)
}

fn delete(path: &Path) -> rustix::io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let dir = rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let name = CString::new(name.as_encoded_bytes()).map_err(|_| Errno::INVAL)?;
    gantry_host::remove::remove(dir.as_fd(), &name).map(drop)
}

/// Makes a trash directory, under a name that none has. Helpers may still delete others.
fn make_trash(apps: &Path) -> rustix::io::Result<PathBuf> {
    match make_dir(apps) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let mut number = 0_u32;
    loop {
        let path = apps.join(format!("{TRASH}{number}"));
        match make_dir(&path) {
            Ok(()) => return Ok(path),
            Err(Errno::EXIST) => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The trash directories of earlier supervisors.
fn find_leftovers(apps: &Path) -> rustix::io::Result<Vec<PathBuf>> {
    let dir = match rustix::fs::open(apps, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in Dir::new(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(TRASH) {
            found.push(apps.join(name));
        }
    }
    Ok(found)
}

fn apps_dir() -> PathBuf {
    Path::new("/pod").join(files::APPS)
}

/// Unmounts an app's root and removes its directories in the supervisor's tree, as far as they were made.
pub(crate) fn unmount_root(app: &str) -> rustix::io::Result<()> {
    match unmount(root_path(app), UnmountFlags::DETACH) {
        // It was not mounted, or not even its directory was made.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    for (path, flags) in [
        (root_path(app), AtFlags::REMOVEDIR),
        (format!("{}/notify", notify::directory(app)), AtFlags::empty()),
        (notify::directory(app), AtFlags::REMOVEDIR),
        (format!("/bundles/{app}"), AtFlags::REMOVEDIR),
    ] {
        match rustix::fs::unlinkat(CWD, &path, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn make_dir(path: &Path) -> rustix::io::Result<()> {
    rustix::fs::mkdirat(CWD, path, Mode::RWXU)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trash_of_earlier_supervisors_stays_apart() {
        let temp = tempfile::tempdir().unwrap();
        let apps = temp.path().join("apps");
        assert!(find_leftovers(&apps).unwrap().is_empty(), "no app was made yet");
        let old = make_trash(&apps).unwrap();
        std::fs::create_dir_all(old.join("layers/upper")).unwrap();
        std::fs::create_dir(apps.join("app")).unwrap();
        let new = Trash { app: "app".into(), path: make_trash(&apps).unwrap() };
        assert_ne!(new.path, old);
        std::fs::create_dir(apps.join("app/upper")).unwrap();
        new.take(&apps.join("app"), "layers").unwrap();
        new.take(&apps.join("app"), "layers").unwrap();
        assert!(new.path.join("layers/upper").exists() && !apps.join("app").exists());
        let mut leftovers = find_leftovers(&apps).unwrap();
        leftovers.sort();
        assert_eq!(leftovers, [old, new.path]);
        leftovers.iter().for_each(|path| delete(path).unwrap());
        assert_eq!(std::fs::read_dir(&apps).unwrap().count(), 0);
    }
}
