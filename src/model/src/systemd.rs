//! Cooperation with systemd: readiness (sd_notify(3)), and systemd as the program of an app.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;

/// The source of an app's readiness (`--sdnotify`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SdNotify {
    /// The app is ready when its program was executed (podman: `conmon`).
    #[default]
    Ready,
    /// The app sends `READY=1` to the socket named by NOTIFY_SOCKET (podman: `container`).
    App,
    /// As `Ready`, and `gantry run` sends nothing to its own service manager (podman: `ignore`).
    None,
}

impl SdNotify {
    /// The word of the command line and of the pod manifest.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::App => "app",
            Self::None => "none",
        }
    }
}

impl FromStr for SdNotify {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "ready" | "conmon" => Ok(Self::Ready),
            "app" | "container" => Ok(Self::App),
            "none" | "ignore" => Ok(Self::None),
            _ => Err(SpecError::new(format!("'{}' is none of app, ready and none", shown(text)))),
        }
    }
}

/// Whether an app's program is systemd, which needs to be PID 1, to manage its cgroup, and to write to `/run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SystemdMode {
    /// If the program is named like systemd or an init ([`is_systemd`]).
    #[default]
    Auto,
    /// Yes.
    Always,
    /// No.
    False,
}

impl SystemdMode {
    /// Whether the mode applies to this program: [`Self::Always`] or [`Self::False`].
    #[must_use]
    pub fn resolve(self, program: &str) -> Self {
        match self {
            Self::Auto if is_systemd(program) => Self::Always,
            Self::Auto => Self::False,
            other => other,
        }
    }

    /// The word of the command line and of the pod manifest.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::False => "false",
        }
    }
}

impl FromStr for SystemdMode {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "auto" | "true" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "false" => Ok(Self::False),
            _ => Err(SpecError::new(format!("'{}' is none of auto, always and false", shown(text)))),
        }
    }
}

/// Whether a program with this name is taken for systemd, as podman does.
#[must_use]
pub fn is_systemd(program: &str) -> bool {
    let base = program.rsplit('/').next().unwrap_or(program);
    base == "systemd" || matches!(program, "/sbin/init" | "/usr/sbin/init" | "/usr/local/sbin/init")
}

/// SIGRTMIN+3, on which systemd halts (systemd(1), "SIGNALS"). Of the real-time signals, the C library keeps two.
pub const HALT_SIGNAL: u8 = 37;

/// Whether an app is ready. Only apps with [`SdNotify::App`] have a readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// The last start has not sent `READY=1`.
    Starting,
    /// It has.
    Ready,
}

impl Readiness {
    /// The stable name, as stored and shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
        }
    }

    /// The readiness with this stable name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Starting, Self::Ready].into_iter().find(|readiness| readiness.as_str() == name)
    }
}

/// The directory in an app with [`SdNotify::App`] that has its notification socket. It is below `/dev`, where it
/// covers nothing of the image and no volume can cover it.
pub const NOTIFY_DIR: &str = "/dev/gantry";

/// The path of the notification socket in the app: the value of NOTIFY_SOCKET.
pub const NOTIFY_SOCKET: &str = "/dev/gantry/notify";

/// The maximum length of a notification in bytes. systemd's own limit is the same (PIPE_BUF).
pub const MAX_NOTIFICATION: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_is_recognized_by_its_name() {
        for (program, want) in [
            ("/lib/systemd/systemd", SystemdMode::Always),
            ("systemd", SystemdMode::Always),
            ("/sbin/init", SystemdMode::Always),
            ("init", SystemdMode::False),
            ("/usr/bin/systemd-run", SystemdMode::False),
        ] {
            assert_eq!(SystemdMode::Auto.resolve(program), want, "{program}");
        }
        assert_eq!(SystemdMode::Always.resolve("sh"), SystemdMode::Always);
        assert_eq!("true".parse(), Ok(SystemdMode::Auto));
    }

    #[test]
    fn words_of_podman_are_understood() {
        for (word, want) in [
            ("ready", SdNotify::Ready),
            ("conmon", SdNotify::Ready),
            ("app", SdNotify::App),
            ("container", SdNotify::App),
            ("none", SdNotify::None),
            ("ignore", SdNotify::None),
        ] {
            assert_eq!(word.parse(), Ok(want));
        }
        assert!("maybe".parse::<SdNotify>().is_err());
        assert_eq!(SdNotify::App.as_str().parse(), Ok(SdNotify::App));
    }
}
