//! Removes the files of an app from a running pod: its root, its writable layer, its logs, and its own volumes.
//!
//! They are renamed, so that their names are free at once, and deleted by a helper process: there may be millions of
//! them. The helper also holds the last reference to the app's root: unmounting an overlay writes back all dirty data
//! of the file system below it (`ovl_sync_fs`), which may take seconds.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use gantry_contract::files;
use rustix::fs::{AtFlags, CWD, Mode};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{PidfdFlags, Signal};

use crate::failure::{Attempt, Result};
use crate::notify;
use crate::root::root_path;
use crate::sys::{self, SingleThreaded};

/// Removes the files of an app in which no process runs; `number` is its own. Returns the helper, which must be reaped.
pub(crate) fn remove_files(
    number: u16,
    app: &str,
    root: Option<OwnedFd>,
    volumes: &[PathBuf],
) -> Result<Option<OwnedFd>> {
    let what = || format!("cannot remove the files of app '{app}'");
    // Names of apps have no dots.
    let trash = format!("/pod/{}/.removed-{number}", files::APPS);
    make_dir(&format!("/pod/{}", files::APPS)).attempt(what)?;
    make_dir(&trash).attempt(what)?;
    let thread = SingleThreaded::check().attempt(what)?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).attempt(what)?;
    let root_fd = root.as_ref().map(OwnedFd::as_raw_fd);
    let kept: Vec<_> = root_fd.into_iter().chain([reader.as_raw_fd()]).collect();
    let helper = sys::fork(thread, 0, |process| {
        // `rm` of the pod removes what the helper of a killed supervisor leaves.
        let _best_effort = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        if process.close_all_but(&kept).is_ok() {
            let _end_of_pipe = rustix::io::retry_on_intr(|| rustix::io::read(&reader, &mut [0u8; 1]));
            process.close(root_fd.as_slice());
            let _left_for_rm = std::fs::remove_dir_all(&trash);
        }
        sys::exit_now(0)
    });
    let helper = match helper {
        Ok(pid) => rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok(),
        Err(error) => {
            tracing::warn!("{}, which are left to the removal of the pod: {error}", what());
            None
        }
    };
    let moved = move_files(app, &trash, volumes).attempt(what);
    drop(root);
    // The helper goes on.
    drop(writer);
    moved.map(|()| helper)
}

fn move_files(app: &str, trash: &str, volumes: &[PathBuf]) -> rustix::io::Result<()> {
    unmount_root(app)?;
    let mut moves = vec![(PathBuf::from(format!("/pod/{}/{app}", files::APPS)), "layers".to_owned())];
    moves.push((PathBuf::from(format!("/pod/{}/{app}", files::LOGS)), "logs".to_owned()));
    let names = (0..).map(|number| format!("volume-{number}"));
    moves.extend(volumes.iter().cloned().zip(names));
    for (path, name) in moves {
        match rustix::fs::rename(&path, format!("{trash}/{name}")) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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

fn make_dir(path: &str) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(CWD, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}
