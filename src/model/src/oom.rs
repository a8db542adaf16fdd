//! Kills by the kernel's OOM killer.

use serde::{Deserialize, Serialize};

/// The limit of memory that was reached when the OOM killer killed a process of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OomLevel {
    /// The app's.
    App,
    /// The pod's.
    Pod,
    /// That of a cgroup above the pod, or the memory of the host.
    Host,
}

/// A process that the OOM killer has killed, as in the kernel log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomVictim {
    /// The name of its main thread: at most 15 bytes, which the process may have set itself.
    pub name: String,
    /// Its PID on the host.
    pub pid: u32,
}

impl OomLevel {
    /// All levels.
    pub const ALL: [Self; 3] = [Self::App, Self::Pod, Self::Host];

    /// The word for tables, JSON and the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Pod => "pod",
            Self::Host => "host",
        }
    }

    /// The level of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }
}
