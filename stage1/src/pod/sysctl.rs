//! Sets the kernel settings of a pod's namespaces.

use std::io;

use gantry_contract::plan::{Net, Plan};
use gantry_model::ErrorKind;
use rustix::process::WaitOptions;

use crate::failure::{Attempt, Result, failure};
use crate::pod::user_namespace::UserNamespace;
use crate::sys::{self, SingleThreaded};

/// Writes the settings of the plan. This process must be in the pod's namespaces, to which the files below `/proc/sys`
/// refer, and the pod must have its interfaces: some settings are theirs.
///
/// With a user namespace, only its root may write the settings of the IPC namespace, which a process there does.
pub(crate) fn apply(thread: SingleThreaded, plan: &Plan, user: Option<&UserNamespace>) -> Result<()> {
    for (name, value) in &plan.sysctls {
        if name.is_network() && plan.net == Net::Host {
            let why = "a pod with --net=host has no network namespace of its own";
            return Err(failure(ErrorKind::Invalid, format!("sysctl {name} would change the host: {why}")));
        }
        let path = format!("/proc/sys/{}", name.path());
        let written = match user.filter(|_| name.is_ipc()) {
            Some(user) => write_in(thread, user, &path, value),
            None => std::fs::write(path, value),
        };
        written.attempt(|| format!("cannot set sysctl {name} to '{value}'"))?;
    }
    Ok(())
}

/// Writes a file as root of a user namespace.
fn write_in(thread: SingleThreaded, user: &UserNamespace, path: &str, value: &str) -> io::Result<()> {
    let writer = sys::fork(thread, 0, |_| {
        let written = user.join().and_then(|()| std::fs::write(path, value));
        let code = written.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        sys::exit_now(code)
    })?;
    let status = rustix::process::waitpid(Some(writer), WaitOptions::empty())?;
    match status.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Err(io::Error::other("the process that writes it was killed")),
    }
}
