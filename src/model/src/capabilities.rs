//! Capabilities of an app (capabilities(7)): the names, the default set, and changes of it.

use std::collections::BTreeSet;

/// The capabilities of an app.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Capabilities {
    /// The default set.
    #[default]
    Default,
    /// Exactly these (names such as `CAP_NET_RAW`).
    Retain(BTreeSet<String>),
    /// The default set without these.
    Remove(BTreeSet<String>),
    /// The default set, changed as docker and podman do (`--cap-add`, `--cap-drop`). [`ALL_CAPABILITIES`] names every
    /// one. Another user than root holds those that are added.
    Adjust {
        /// Added; wins over `drop`.
        add: BTreeSet<String>,
        /// Dropped.
        drop: BTreeSet<String>,
    },
    /// The default set, changed as Kubernetes does. [`ALL_CAPABILITIES`] names every one. Another user than root holds
    /// those of `ambient`.
    Kubernetes {
        /// Added; wins over `drop`.
        add: BTreeSet<String>,
        /// Dropped.
        drop: BTreeSet<String>,
        /// Added, and held by other users than root.
        ambient: BTreeSet<String>,
    },
    /// Every capability that the host's root has. Another user than root holds none.
    All,
}

/// The capabilities Linux knows, in the order of their numbers (capabilities(7)).
pub const CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// Stands for every capability where they are added or dropped.
pub const ALL_CAPABILITIES: &str = "CAP_ALL";

/// The default set: podman's. docker's and rkt's also have AUDIT_WRITE, MKNOD and NET_RAW.
pub const DEFAULT_CAPABILITIES: [&str; 11] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

impl Capabilities {
    /// The names an app ends up with, sorted.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        let default = || DEFAULT_CAPABILITIES.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        match self {
            Self::Default => default(),
            Self::Retain(names) => names.clone(),
            Self::Remove(names) => default().difference(names).cloned().collect(),
            Self::All => every_capability(),
            Self::Adjust { add, drop } => adjusted(default(), add, drop),
            Self::Kubernetes { add, drop, ambient } => {
                adjusted(default(), &add.union(ambient).cloned().collect(), drop)
            }
        }
    }

    /// Those that were named one by one: an app does not start on a host whose root lacks one of them.
    #[must_use]
    pub fn required(&self) -> BTreeSet<String> {
        match self {
            Self::Default | Self::Remove(_) | Self::All => BTreeSet::new(),
            Self::Retain(names) => names.clone(),
            Self::Adjust { add, .. } => single(add).cloned().collect(),
            Self::Kubernetes { add, ambient, .. } => single(add).chain(single(ambient)).cloned().collect(),
        }
    }

    /// Those that a process holds whose user is not root (the ambient set, capabilities(7)).
    #[must_use]
    pub fn ambient(&self) -> BTreeSet<String> {
        match self {
            Self::Adjust { add, .. } if add.contains(ALL_CAPABILITIES) => self.names(),
            Self::Adjust { .. } => self.required(),
            Self::Kubernetes { ambient, .. } if ambient.contains(ALL_CAPABILITIES) => self.names(),
            Self::Kubernetes { ambient, .. } => ambient.clone(),
            Self::Default | Self::Remove(_) | Self::Retain(_) | Self::All => BTreeSet::new(),
        }
    }

    /// Every name that was given.
    pub(crate) fn given(&self) -> Vec<&String> {
        match self {
            Self::Default | Self::All => Vec::new(),
            Self::Retain(names) | Self::Remove(names) => names.iter().collect(),
            Self::Adjust { add, drop } => single(add).chain(single(drop)).collect(),
            Self::Kubernetes { add, drop, ambient } => single(add).chain(single(drop)).chain(single(ambient)).collect(),
        }
    }
}

/// Those that are named one by one.
fn single(names: &BTreeSet<String>) -> impl Iterator<Item = &String> {
    names.iter().filter(|name| *name != ALL_CAPABILITIES)
}

/// docker's rule: ALL first, then single names; an added one stays although ALL is dropped.
fn adjusted(default: BTreeSet<String>, add: &BTreeSet<String>, drop: &BTreeSet<String>) -> BTreeSet<String> {
    let mut names = match (add.contains(ALL_CAPABILITIES), drop.contains(ALL_CAPABILITIES)) {
        (true, _) => every_capability(),
        (false, true) => BTreeSet::new(),
        (false, false) => default,
    };
    names.retain(|name| !drop.contains(name));
    names.extend(single(add).cloned());
    names
}

fn every_capability() -> BTreeSet<String> {
    CAPABILITIES.iter().map(|&name| name.to_owned()).collect()
}
