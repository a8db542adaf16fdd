//! The namespaces that apps and pods share with others, or have of their own (namespaces(7)).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;

/// The PID namespace of an app (`--pid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PidMode {
    /// The pod's, whose PID 1 is gantry's.
    #[default]
    Pod,
    /// One of its own, in which it is PID 1: it must reap the processes that it inherits, and the kernel ignores
    /// signals to it for which it has no handler (pid_namespaces(7)).
    App,
    /// The host's: the app sees all processes of the host, and may signal those that its capabilities allow.
    Host,
}

impl PidMode {
    /// The word of the command line and of the pod manifest.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::App => "app",
            Self::Host => "host",
        }
    }
}

impl FromStr for PidMode {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "pod" => Ok(Self::Pod),
            "app" | "private" => Ok(Self::App),
            "host" => Ok(Self::Host),
            _ => Err(SpecError::new(format!("'{}' is none of pod, app and host", shown(text)))),
        }
    }
}

/// The IPC namespace of a pod (`--ipc`): System V IPC, POSIX message queues, and `/dev/shm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IpcMode {
    /// The pod's own, which its apps share.
    #[default]
    Pod,
    /// The pod's own, and its apps have no `/dev/shm`.
    None,
    /// The host's.
    Host,
}

impl IpcMode {
    /// Whether the pod has the default.
    #[must_use]
    pub fn is_pod(&self) -> bool {
        *self == Self::Pod
    }
}

impl FromStr for IpcMode {
    type Err = SpecError;

    /// `private` and `shareable` are docker's words for a namespace of its own.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "pod" | "private" | "shareable" | "auto" => Ok(Self::Pod),
            "none" => Ok(Self::None),
            "host" => Ok(Self::Host),
            _ => Err(SpecError::new(format!("'{}' is none of private, none and host", shown(text)))),
        }
    }
}

/// The UTS namespace of a pod (`--uts`), which has its host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UtsMode {
    /// The pod's own.
    #[default]
    Pod,
    /// The host's.
    Host,
}

impl UtsMode {
    /// Whether the pod has the default.
    #[must_use]
    pub fn is_pod(&self) -> bool {
        *self == Self::Pod
    }
}

impl FromStr for UtsMode {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "pod" | "private" => Ok(Self::Pod),
            "host" => Ok(Self::Host),
            _ => Err(SpecError::new(format!("'{}' is neither private nor host", shown(text)))),
        }
    }
}
