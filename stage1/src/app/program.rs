//! Finds the program to execute, from inside the app's root, as the app's user.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

use gantry_contract::Failure;
use gantry_model::ErrorKind;
use rustix::fs::{Access, AtFlags, CWD, FileType};
use rustix::io::Errno;

use crate::failure::{Result, failure};

/// Used when an app's environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The path to execute for `program`: `program` itself if it contains a slash, else the first executable file of that
/// name in PATH, as execvp(3) searches.
pub(crate) fn find(program: &str, env: &[String]) -> Result<CString> {
    let shown = gantry_model::id::shown(program);
    if program.contains('/') {
        return match check_executable(program) {
            Ok(()) => c_string(program),
            Err(error) => Err(unexecutable(&shown, error)),
        };
    }
    let path = env.iter().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or(DEFAULT_PATH);
    let mut refused = None;
    for dir in path.split(':') {
        let candidate = if dir.is_empty() { format!("./{program}") } else { format!("{dir}/{program}") };
        match check_executable(&candidate) {
            Ok(()) => return c_string(&candidate),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    match refused {
        Some(error) => Err(unexecutable(&shown, error)),
        None => Err(failure(
            ErrorKind::CommandNotFound,
            format!("'{shown}' is in no directory of the app's PATH ({})", gantry_model::id::shown(path)),
        )),
    }
}

/// Explains an error of execve or of the search for the program.
pub(crate) fn unexecutable(shown: &str, error: Errno) -> Failure {
    let (kind, why) = match error {
        Errno::NOENT | Errno::NOTDIR => {
            (ErrorKind::CommandNotFound, "there is no such file in the app's file system".to_owned())
        }
        Errno::ACCESS | Errno::PERM => {
            (ErrorKind::CommandNotExecutable, "it is not executable for the app's user".to_owned())
        }
        Errno::ISDIR => (ErrorKind::CommandNotExecutable, "it is a directory".to_owned()),
        Errno::NOEXEC => {
            let why = "it is neither a program of this machine's architecture nor a script that begins with #!";
            (ErrorKind::CommandNotExecutable, why.to_owned())
        }
        other => (ErrorKind::CommandNotExecutable, other.to_string()),
    };
    failure(kind, format!("cannot execute '{shown}': {why}"))
}

fn check_executable(path: &str) -> rustix::io::Result<()> {
    let stat = rustix::fs::stat(path)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).or_else(|error| match error {
                // Kernels before 5.8 lack faccessat2. execve reports the error then.
                Errno::NOSYS | Errno::INVAL => Ok(()),
                error => Err(error),
            })
        }
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::ACCESS),
    }
}

fn c_string(path: &str) -> Result<CString> {
    CString::new(std::ffi::OsStr::new(path).as_bytes())
        .map_err(|_| failure(ErrorKind::Invalid, "the program's name contains a NUL byte"))
}
