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
