//! The placement of pods in the cgroup tree.
//!
//! | parent | manager | the pod's cgroup |
//! |---|---|---|
//! | a path, `/gantry` | gantry makes the cgroups | `/gantry/UUID` |
//! | a slice of systemd, `a-b.slice` | systemd makes a transient scope | `/a.slice/a-b.slice/gantry-UUID.scope/UUID` |
//!
//! systemd owns the files of the scope's cgroup, and may write them again when it reloads. All below is delegated to
//! gantry (systemd.resource-control(5), `Delegate=`): there are the pod's limits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;

/// The maximum length of the path of a cgroup parent, in bytes.
const MAX_PARENT: usize = 1023;
/// The maximum length of the name of a unit (`UNIT_NAME_MAX` of systemd), in bytes.
const MAX_UNIT_NAME: usize = 255;
/// The suffix of the names of slices.
const SLICE: &str = ".slice";

/// The maker of a pod's cgroup below its parent (`--cgroup-manager`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupManager {
    /// gantry itself, through the file system.
    Cgroupfs,
    /// systemd: a transient scope in a slice.
    Systemd,
}

impl CgroupManager {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }

    /// The parent unless one is configured.
    #[must_use]
    pub fn default_parent(self) -> CgroupParent {
        let name = match self {
            Self::Cgroupfs => "/gantry",
            Self::Systemd => "gantry.slice",
        };
        CgroupParent(name.to_owned())
    }
}

impl FromStr for CgroupManager {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "cgroupfs" => Ok(Self::Cgroupfs),
            "systemd" => Ok(Self::Systemd),
            _ => Err(SpecError::new(format!("'{}' is neither cgroupfs nor systemd", shown(text)))),
        }
    }
}

/// The parent of a pod's cgroup (`--cgroup-parent`): a path below the root of each hierarchy, such as `/gantry`, or a
/// slice of systemd, such as `gantry.slice`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CgroupParent(String);

impl CgroupParent {
    /// A path that begins with a slash and does not end with one, or the name of a slice.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The maker of cgroups below it.
    #[must_use]
    pub fn manager(&self) -> CgroupManager {
        if self.0.starts_with('/') { CgroupManager::Cgroupfs } else { CgroupManager::Systemd }
    }

    /// Its path below the root of each hierarchy. The name of a slice lists the slices above it (systemd.slice(5)).
    #[must_use]
    pub fn path(&self) -> String {
        let Some(name) = self.0.strip_suffix(SLICE).filter(|_| self.manager() == CgroupManager::Systemd) else {
            return self.0.clone();
        };
        let ends = name.match_indices('-').map(|(end, _)| end).chain([name.len()]);
        ends.map(|end| format!("/{}{SLICE}", &name[..end])).collect()
    }

    /// The path of the cgroup of the scope of a pod; `None`: it has none.
    #[must_use]
    pub fn scope_path(&self, pod: &str) -> Option<String> {
        (self.manager() == CgroupManager::Systemd).then(|| format!("{}/{}", self.path(), scope_name(pod)))
    }

    /// The path of the cgroup of a pod, whose name is the pod's id; an app's is one below.
    #[must_use]
    pub fn pod_path(&self, pod: &str) -> String {
        format!("{}/{pod}", self.scope_path(pod).unwrap_or_else(|| self.path()))
    }
}

/// The name of the transient scope of a pod.
#[must_use]
pub fn scope_name(pod: &str) -> String {
    format!("gantry-{pod}.scope")
}

impl Default for CgroupParent {
    fn default() -> Self {
        CgroupManager::Cgroupfs.default_parent()
    }
}

impl FromStr for CgroupParent {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if is_path(text) || is_slice(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(SpecError::new(format!(
            "cgroup parent '{}' is neither an absolute path of at least one name without '.' and '..', such as \
             /gantry, nor the name of a slice, such as gantry.slice",
            shown(text)
        )))
    }
}

fn is_path(text: &str) -> bool {
    // The kernel writes a cgroup's path into lines of /proc/PID/cgroup.
    let is_name = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\0', '\n']);
    text.len() <= MAX_PARENT && text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_name))
}

/// Whether it is the name of a slice other than the root slice (systemd.slice(5)).
fn is_slice(text: &str) -> bool {
    let is_valid = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":_.\\".contains(&byte))
    };
    text.len() <= MAX_UNIT_NAME && text.strip_suffix(SLICE).is_some_and(|name| name.split('-').all(is_valid))
}

impl TryFrom<String> for CgroupParent {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<CgroupParent> for String {
    fn from(parent: CgroupParent) -> Self {
        parent.0
    }
}

impl fmt::Display for CgroupParent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_parents_are_validated() {
        for good in
            ["/gantry", "/a/b", "/a.slice", "/machine.slice/b c", "gantry.slice", "a-b_1-c.slice", "a\\x2d.slice"]
        {
            assert_eq!(good.parse::<CgroupParent>().unwrap().as_str(), good);
        }
        let long = format!("/{}", "x".repeat(MAX_PARENT));
        let long_slice = format!("{}.slice", "x".repeat(MAX_UNIT_NAME));
        for bad in ["", "/", "gantry", "/a/", "/../a", "/a//b", "/a\nb", "/./a", "/a/..", "/a\0", &long, &long_slice] {
            assert!(bad.parse::<CgroupParent>().is_err(), "{bad:?}");
        }
        for bad in ["-.slice", ".slice", "a-.slice", "-a.slice", "a--b.slice", "a/b.slice", "a b.slice", "a@b.slice"] {
            assert!(bad.parse::<CgroupParent>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<CgroupParent>("\"a/b\"").is_err());
        assert_eq!(serde_json::to_string(&CgroupParent::default()).unwrap(), "\"/gantry\"");
    }

    #[test]
    fn pods_have_a_path_below_their_parent() {
        for (parent, path) in [
            ("/gantry", "/gantry/ID"),
            ("/a.slice", "/a.slice/ID"),
            ("gantry.slice", "/gantry.slice/gantry-ID.scope/ID"),
            ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice/gantry-ID.scope/ID"),
        ] {
            assert_eq!(parent.parse::<CgroupParent>().unwrap().pod_path("ID"), path);
        }
        for manager in [CgroupManager::Cgroupfs, CgroupManager::Systemd] {
            let parent = manager.default_parent();
            assert_eq!((parent.manager(), parent.to_string().parse().as_ref()), (manager, Ok(&parent)));
            assert_eq!(manager.as_str().parse(), Ok(manager));
        }
    }
}
