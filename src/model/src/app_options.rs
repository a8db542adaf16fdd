//! Options of an app that reach the supervisor unchanged.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::AppName;
use crate::device::DeviceSpec;
use crate::health::HealthSettings;
use crate::id::shown;
use crate::limits::Limits;
use crate::log_path::AppLogPath;
use crate::namespaces::PidMode;
use crate::restart::RestartPolicy;
use crate::seccomp_profile::SeccompProfile;
use crate::spec::{SpecError, check_count, check_path, out_of_range};
use crate::systemd::{SdNotify, SystemdMode};
use crate::tmpfs::TmpfsMount;
use crate::ulimit::Ulimit;

const MAX_DEVICES: usize = 64;
const MAX_COVERED_PATHS: usize = 256;
const MAX_GROUPS: usize = 1024;
const MAX_GROUP_NAME: usize = 256;

/// Options of an app that do not depend on its image: the plan of a pod has them as the user gave them. A missing field
/// has its default, so that plans of pods that an older gantry prepared can still be read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AppOptions {
    /// Supplementary group numbers, on top of those that the image's group file gives the user.
    pub supplementary_gids: Vec<u32>,
    /// The names of further supplementary groups, which the image's group file has to define.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supplementary_groups: Vec<String>,
    /// Whether the root file system is read-only.
    pub read_only_root: bool,
    /// Resource limits.
    pub limits: Limits,
    /// The system call filter.
    pub seccomp: Seccomp,
    /// Whether it may gain privileges by execve (set-user-ID programs, file capabilities). Default no.
    pub new_privileges: bool,
    /// `oom_score_adj`, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// Whether it gets a pseudo-terminal as stdin, stdout and stderr.
    pub terminal: bool,
    /// Whether its stdin stays open for the client that starts the pod; otherwise it is empty.
    pub stdin: bool,
    /// File systems in memory.
    #[serde(default)]
    pub tmpfs: Vec<TmpfsMount>,
    /// Devices of the host, on top of those that every app has.
    #[serde(default)]
    pub devices: Vec<DeviceSpec>,
    /// Limits of its processes, which replace gantry's own; one per resource.
    #[serde(default)]
    pub ulimits: Vec<Ulimit>,
    /// The source of its readiness.
    #[serde(default)]
    pub sdnotify: SdNotify,
    /// The health check: of the user in a specification, completed with the image's in a plan.
    #[serde(default, skip_serializing_if = "HealthSettings::is_empty")]
    pub health: HealthSettings,
    /// Whether its program is systemd; in a plan never [`SystemdMode::Auto`].
    #[serde(default)]
    pub systemd: SystemdMode,
    /// The time between its stop signal and SIGKILL, in milliseconds; `None`: the time that the host sets for all pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_timeout_ms: Option<u64>,
    /// When it is started again after it has ended.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Whether it is confined in nothing but its namespaces and limits, as docker's `--privileged`: it has every
    /// capability, all devices of the host and no system call filter, and may write all of /proc and /sys. It is equal
    /// to root on the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub privileged: bool,
    /// Its PID namespace.
    #[serde(default)]
    pub pid: PidMode,
    /// The running app of the pod whose PID namespace it joins, in place of `pid`. When the pod is started again, it
    /// joins that of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_target: Option<AppName>,
    /// The limit of bytes for its writable layer and its logs together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_limit: Option<u64>,
    /// The file of its log, below the log directory of its pod; `None`: a file in the pod directory. It belongs to the
    /// caller: gantry appends to it, and neither rotates nor removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_path: Option<AppLogPath>,
    /// The groups that the image's group file adds to those that are given.
    #[serde(default, skip_serializing_if = "GroupsPolicy::is_default")]
    pub groups_policy: GroupsPolicy,
    /// Files and directories that it cannot see: in a file's place is `/dev/null`, in a directory's an empty one.
    /// `None`: gantry's list; none if it is privileged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masked_paths: Option<Vec<String>>,
    /// Files and directories that it can only read. `None`: gantry's list; none if it is privileged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_paths: Option<Vec<String>>,
}

/// The groups that the group file of an image adds to the supplementary groups of a process (group(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupsPolicy {
    /// Those of its user, unless its group is given: as with docker and podman.
    #[default]
    UnlessGroup,
    /// Those of its user, also if its group is given: Kubernetes' `Merge`.
    Merge,
    /// None: Kubernetes' `Strict`.
    Strict,
}

impl GroupsPolicy {
    /// Whether it is the default one.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::UnlessGroup
    }
}

/// Checks a name of a group, as a line of group(5) can have it. A number is no name.
///
/// # Errors
/// [`SpecError`].
pub fn check_group_name(name: &str) -> Result<(), SpecError> {
    let is_number = name.bytes().all(|c| c.is_ascii_digit());
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ':' | ',' | '/');
    match is_number || name.len() > MAX_GROUP_NAME || name.starts_with(['-', '+']) || name.contains(is_odd) {
        true => Err(SpecError::new(format!("'{}' is neither the name of a group nor a group number", shown(name)))),
        false => Ok(()),
    }
}

/// The least storage limit: below it, the app's root cannot be made.
const MIN_STORAGE_LIMIT: u64 = 1 << 20;

impl AppOptions {
    /// Adds a limit in place of an earlier one of the same resource.
    pub fn set_ulimit(&mut self, ulimit: Ulimit) {
        self.ulimits.retain(|other| other.resource != ulimit.resource);
        self.ulimits.push(ulimit);
    }

    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        self.limits.validate()?;
        self.validate_ulimits()?;
        self.validate_devices()?;
        self.health.validate()?;
        let groups = self.supplementary_gids.len().saturating_add(self.supplementary_groups.len());
        check_count("supplementary groups", groups, MAX_GROUPS)?;
        self.supplementary_groups.iter().try_for_each(|name| check_group_name(name))?;
        for (what, paths) in [("masked path", &self.masked_paths), ("read-only path", &self.read_only_paths)] {
            let paths = paths.as_deref().unwrap_or_default();
            check_count(what, paths.len(), MAX_COVERED_PATHS)?;
            paths.iter().try_for_each(|path| check_path(what, path))?;
        }
        if let Seccomp::Profile(profile) = &self.seccomp {
            profile.validate()?;
        }
        if let Some(limit) = self.storage_limit.filter(|limit| *limit < MIN_STORAGE_LIMIT) {
            return Err(out_of_range("--storage-limit", limit, "at least 1Mi"));
        }
        if self.storage_limit.is_some() && (self.privileged || self.seccomp == Seccomp::Unconfined) {
            return Err(SpecError::new(
                "--storage-limit cannot be combined with --privileged or an unconfined system call filter: such an app \
                 can take its files out of the limit",
            ));
        }
        if self.restart != RestartPolicy::No && (self.terminal || self.stdin) {
            return Err(SpecError::new(
                "--restart cannot be combined with -i and -t: a later start would not have the terminal or the input",
            ));
        }
        if self.systemd == SystemdMode::Always && self.pid == PidMode::Host {
            return Err(SpecError::new("--pid=host cannot be combined with --systemd=always: systemd must be PID 1"));
        }
        if self.pid_target.is_some() && (self.pid != PidMode::Pod || self.systemd == SystemdMode::Always) {
            return Err(SpecError::new("an app that joins the PID namespace of another one can have none of its own"));
        }
        match self.oom_score_adj.filter(|adj| !(-1000..=1000).contains(adj)) {
            Some(adj) => Err(out_of_range("--oom-score-adj", adj, "-1000 to 1000")),
            None => Ok(()),
        }
    }

    fn validate_devices(&self) -> Result<(), SpecError> {
        check_count("devices", self.devices.len(), MAX_DEVICES)?;
        let mut targets = BTreeSet::new();
        for device in &self.devices {
            device.validate()?;
            if !targets.insert(&device.target) {
                return Err(SpecError::new(format!("two devices have the target '{}'", shown(&device.target))));
            }
        }
        Ok(())
    }

    fn validate_ulimits(&self) -> Result<(), SpecError> {
        let mut resources = BTreeSet::new();
        for ulimit in &self.ulimits {
            ulimit.validate()?;
            if !resources.insert(ulimit.resource) {
                return Err(SpecError::new(format!("two ulimits of resource '{}'", ulimit.resource.as_str())));
            }
        }
        Ok(())
    }
}

/// The system calls of an app.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seccomp {
    /// The default profile.
    #[default]
    Default,
    /// All are allowed.
    Unconfined,
    /// Only these are allowed.
    Retain {
        /// Names of system calls.
        names: BTreeSet<String>,
        /// The error number others get.
        errno: u16,
    },
    /// All but these are allowed, on top of the default profile.
    Remove {
        /// Names of system calls.
        names: BTreeSet<String>,
        /// The error number these get.
        errno: u16,
    },
    /// Those that a profile allows.
    Profile(Box<SeccompProfile>),
}
