//! Executes this program from a private read-only mount (CVE-2019-5736).
//!
//! PID 1 of a pod, an app's process before its execve and the helper of an exec are forks of this program, and an
//! app can execute this program as its own process (`#!/proc/self/exe`, or a link to it). In each case `/proc/PID/exe`
//! gives the app a descriptor of the file on the host, and root in an app is root on the host: it could change the
//! mode, owner and attributes of the file at any time, and its content once no process executes it (until then:
//! ETXTBSY).
//!
//! `/proc/PID/exe` reaches the file through the mount from which it was executed. So the program executes from a copy
//! of that mount (`open_tree(OPEN_TREE_CLONE)`) that is read-only: every change through it fails with EROFS. The copy
//! is attached to no mount namespace, so it cannot be remounted writable, not even with CAP_SYS_ADMIN. mount_setattr(2)
//! can change the copy while a descriptor of it is open, so execve(2) closes that of the process that executes it, and
//! the engine closes its own as soon as the supervisor runs.

use std::ffi::CString;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use gantry_host::mounts::clone_read_only;
use gantry_model::ErrorKind;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};

use crate::failure::{Attempt, Result, failure};
use crate::sys;

const OWN_PROGRAM: &str = "/proc/self/exe";

/// Returns if this process executes the program from a read-only mount of its own, which the engine usually provides.
/// Otherwise it executes the program from such a mount, with the same arguments and descriptors.
///
/// This cannot loop: the kernel does not clone a mount that is attached nowhere, so a second attempt fails.
pub(crate) fn ensure_read_only() -> Result<()> {
    if is_read_only()? {
        return Ok(());
    }
    let program = clone_read_only(Path::new(OWN_PROGRAM))
        .attempt(|| "cannot make a read-only mount of gantry-stage1 (open_tree, mount_setattr)")?;
    let (argv, env) = (arguments()?, environment()?);
    let error = sys::execveat(program.as_fd(), &argv, &env);
    Err(error).attempt(|| "cannot execute gantry-stage1 from a read-only mount (execveat)")
}

/// Whether this process executes a file on a read-only mount that is attached nowhere. Only there does the kernel
/// report the path "/". A read-only mount of the host does not count: it can be remounted.
fn is_read_only() -> Result<bool> {
    let what = || format!("cannot inspect {OWN_PROGRAM}");
    let name = std::fs::read_link(OWN_PROGRAM).attempt(what)?;
    if name.as_os_str() != "/" {
        return Ok(false);
    }
    let program = rustix::fs::open(OWN_PROGRAM, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).attempt(what)?;
    Ok(rustix::fs::fstatvfs(&program).attempt(what)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// This process's arguments, with the program's name instead of its path on the host, which the pod's PID 1 would show.
fn arguments() -> Result<Vec<CString>> {
    let name = std::ffi::OsString::from("gantry-stage1");
    std::iter::once(name).chain(std::env::args_os().skip(1)).map(|text| c_string(text.as_bytes())).collect()
}

fn environment() -> Result<Vec<CString>> {
    std::env::vars_os().map(|(name, value)| c_string(&[name.as_bytes(), b"=", value.as_bytes()].concat())).collect()
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| failure(ErrorKind::Internal, "an argument of gantry-stage1 contains a NUL byte"))
}
