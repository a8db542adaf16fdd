//! The PID namespace and the cgroup of an app. An app can be PID 1 of a PID namespace of its own; if it is systemd, it
//! manages its cgroup, too.
//!
//! A PID namespace of its own is nested in the pod's, and ends with the pod's PID 1.

use std::io;
use std::rc::Rc;

use gantry_contract::plan::App;
use gantry_model::ErrorKind;
use gantry_model::namespaces::PidMode;
use gantry_model::systemd::SystemdMode;

use crate::app::user::Ids;
use crate::cgroup::view::open_cgroup_mount_point;
use crate::failure::{Result, failure};
use crate::files::covered_paths::CoveredPaths;
use crate::files::mounts::{NO_OPTIONS, QUIET, attach, make_file_system};
use crate::sys;

/// The namespaces of an app's process.
#[derive(Debug, Clone)]
pub(crate) struct AppNamespaces {
    /// Its PID namespace.
    pub(crate) pid: PidMode,
    /// Whether it manages the cgroup that is delegated to it.
    pub(crate) manages_cgroup: bool,
    /// The paths that are covered.
    pub(crate) covered: Rc<CoveredPaths>,
}

impl AppNamespaces {
    /// Those that an app's options ask for.
    pub(crate) fn from_app(app: &App) -> Self {
        let (pid, manages_cgroup) = (Self::pid_mode(app), Self::manages_cgroup(app));
        Self { pid, manages_cgroup, covered: Rc::new(CoveredPaths::of_app(app)) }
    }

    /// Whether an app manages the cgroup that is delegated to it.
    pub(crate) fn manages_cgroup(app: &App) -> bool {
        app.options.systemd == SystemdMode::Always
    }

    /// The PID namespace of an app.
    pub(crate) fn pid_mode(app: &App) -> PidMode {
        if Self::manages_cgroup(app) { PidMode::App } else { app.options.pid }
    }
}

/// Refuses a user that systemd cannot run as.
pub(crate) fn check_user(ids: &Ids) -> Result<()> {
    let why = "systemd must run as root: leave out --user, or run it like any program with --systemd=false";
    if ids.uid == 0 { Ok(()) } else { Err(failure(ErrorKind::Invalid, why)) }
}

/// Enters a cgroup namespace and mounts the app's cgroup, which the app may change.
pub(crate) fn enter_delegated_cgroup() -> io::Result<()> {
    sys::unshare(libc::CLONE_NEWCGROUP)?;
    let cgroup = make_file_system("cgroup2", NO_OPTIONS, QUIET)?;
    Ok(attach(&cgroup, &open_cgroup_mount_point()?)?)
}
