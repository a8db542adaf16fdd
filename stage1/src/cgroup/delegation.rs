//! The delegated cgroup of an app that manages its own cgroups, as systemd does (v2 only).
//!
//! ```text
//! PARENT/UUID/APP             the app's limits; no processes
//! PARENT/UUID/APP/_delegated  the root of the app's cgroup namespace, writable for it
//! ```
//!
//! The limits are outside of the namespace: on hosts without the mount option `nsdelegate`, an app could otherwise
//! raise those of its namespace's root. Number and depth of the cgroups that it makes are limited.

use std::io;
use std::path::{Path, PathBuf};

use gantry_host::cgroup::Cgroup;
use gantry_model::ErrorKind;
use rustix::process::Pid;

use crate::failure::{Attempt, Result, failure};

/// The name of the delegated cgroup.
const DELEGATED: &str = "_delegated";

/// The maximum number of cgroups that an app can make; systemd makes one per unit.
const MAX_DESCENDANTS: &str = "1024";

/// The maximum depth of the cgroups that an app makes.
const MAX_DEPTH: &str = "32";

/// Delegates a part of the app's cgroup of v2.
pub(crate) fn delegate(cgroup: Option<&Cgroup>) -> Result<Cgroup> {
    let missing =
        "systemd needs cgroup v2, which is not mounted on this host; --systemd=false runs it like any program";
    let cgroup = cgroup.ok_or_else(|| failure(ErrorKind::Unavailable, missing))?;
    let what = || format!("cannot delegate the cgroup {cgroup}");
    let delegated = cgroup.create(DELEGATED).attempt(what)?;
    for (file, value) in [("cgroup.max.descendants", MAX_DESCENDANTS), ("cgroup.max.depth", MAX_DEPTH)] {
        cgroup.write(file, value).attempt(what)?;
    }
    let controllers = cgroup.read("cgroup.controllers").attempt(what)?;
    cgroup.enable_controllers("", &controllers.split_whitespace().collect::<Vec<_>>());
    Ok(delegated)
}

/// Opens the cgroup of an app's main process, if it is `root` or below it; `root` is where the app's processes start.
///
/// An app that can write its cgroups moves its processes to some below `root`, and enables controllers there. `root`
/// then takes no processes (cgroup-v2.rst, "No Internal Process Constraint"), so an exec joins the main process.
pub(crate) fn open_cgroup_of(main: Pid, root: &Cgroup) -> io::Result<Option<Cgroup>> {
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", main.as_raw_nonzero()))?;
    path_below(&text, &root.path_of("")).map(|below| root.open(below)).transpose()
}

/// The path of a process's cgroup below `root`, from the text of its `/proc/PID/cgroup`.
///
/// The root of a cgroup namespace hides how that file's paths begin; the last two names of `root` are unique.
fn path_below<'a>(text: &'a str, root: &Path) -> Option<&'a str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let names: PathBuf = root.iter().skip(root.iter().count().saturating_sub(2)).collect();
    let (_, below) = path.split_once(&format!("/{}", names.to_str()?))?;
    match below.strip_prefix('/') {
        Some(below) => Some(below),
        None if below.is_empty() => Some("."),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_the_root_of_an_app() {
        for (line, root, want) in [
            ("0::/gantry/p/a/_delegated", "/sys/fs/cgroup/gantry/p/a/_delegated", Some(".")),
            ("0::/gantry/p/a/_delegated/init.scope", "/sys/fs/cgroup/gantry/p/a/_delegated", Some("init.scope")),
            ("0::/gantry/p/a/_delegated2", "/sys/fs/cgroup/gantry/p/a/_delegated", None),
            ("0::/gantry/p/a", "/sys/fs/cgroup/gantry/p/a/_delegated", None),
            ("0::/gantry/p/a/p/a", "/sys/fs/cgroup/unified/gantry/p/a", Some("p/a")),
            ("0::/host/gantry/p/a", "/sys/fs/cgroup/unified/gantry/p/a", Some(".")),
            ("0::/elsewhere", "/sys/fs/cgroup/unified/gantry/p/a", None),
            ("4:memory:/gantry/p/a/_delegated", "/sys/fs/cgroup/gantry/p/a/_delegated", None),
        ] {
            assert_eq!(path_below(&format!("5:cpu:/x\n{line}\n"), Path::new(root)), want, "{line}");
        }
    }
}
