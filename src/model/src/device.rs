//! Devices of the host that an app may use (`--device`).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;

/// A device of the host in an app, or all devices below a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// The absolute path of the device on the host.
    pub source: String,
    /// The absolute path of its node in the app, below `/dev`.
    pub target: String,
    /// Whether the app may read it.
    pub read: bool,
    /// Whether the app may write it.
    pub write: bool,
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    /// Parses docker's `HOST[:CONTAINER][:ACCESS]`, where ACCESS has some of the letters r, w and m. The last (mknod)
    /// has no effect: a node of any device can be made, and opened as far as r and w allow.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let is_access = |text: &str| !text.is_empty() && text.bytes().all(|c| matches!(c, b'r' | b'w' | b'm'));
        let mut parts = text.split(':');
        let source = parts.next().unwrap_or_default();
        let (target, access) = match (parts.next(), parts.next(), parts.next()) {
            (None, None, None) => (source, "rw"),
            (Some(access), None, None) if is_access(access) => (source, access),
            (Some(target), None, None) => (target, "rw"),
            (Some(target), Some(access), None) if is_access(access) => (target, access),
            _ => {
                let text = shown(text);
                return Err(SpecError::new(format!(
                    "'{text}' is not HOST[:CONTAINER][:ACCESS], such as /dev/fuse or /dev/sdb:/dev/disk:r"
                )));
            }
        };
        let (read, write) = (access.contains('r'), access.contains('w'));
        let device = Self { source: source.to_owned(), target: crate::spec::normal(target), read, write };
        if !target.starts_with('/') {
            return Err(SpecError::new(format!("device target '{}' is not an absolute path", shown(target))));
        }
        device.validate()?;
        Ok(device)
    }
}

/// Nodes and links below `/dev` that every app has, and directories that gantry mounts there.
const PROVIDED: [&str; 15] = [
    "console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
    "tty", "zero",
];

/// Whether gantry makes this node or directory of `/dev` itself (a path relative to it), or mounts something there.
#[must_use]
pub fn is_provided(name: &str) -> bool {
    name == "urandom" || PROVIDED.contains(&name.split('/').next().unwrap_or_default())
}

impl DeviceSpec {
    /// The path in the app of a node below the source, which is a directory, or of the source itself.
    #[must_use]
    pub fn target_of(&self, below: &str) -> String {
        if below.is_empty() { self.target.clone() } else { format!("{}/{below}", self.target) }
    }

    /// Checks the paths. A device without access is one that was given for mknod alone.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn validate(&self) -> Result<(), SpecError> {
        crate::spec::check_path("device", &self.source)?;
        crate::spec::check_path("device target", &self.target)?;
        let target = shown(&self.target);
        let name = self.target.strip_prefix("/dev/").filter(|_| crate::spec::normal(&self.target) == self.target);
        let Some(name) = name else {
            return Err(SpecError::new(format!("device target '{target}' is not below /dev")));
        };
        if is_provided(name) {
            return Err(SpecError::new(format!("device target '{target}' is provided by gantry")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_parsed_as_docker_does() {
        let device = |source: &str, target: &str, read, write| DeviceSpec {
            source: source.to_owned(),
            target: target.to_owned(),
            read,
            write,
        };
        for (text, want) in [
            ("/dev/fuse", device("/dev/fuse", "/dev/fuse", true, true)),
            ("/dev/fuse:r", device("/dev/fuse", "/dev/fuse", true, false)),
            ("/dev/sdb:/dev/disk", device("/dev/sdb", "/dev/disk", true, true)),
            ("/dev/sdb:/dev//a/b:wm", device("/dev/sdb", "/dev/a/b", false, true)),
            ("/dev/fuse:m", device("/dev/fuse", "/dev/fuse", false, false)),
            ("/dev/sdb:/dev/disk:rwm", device("/dev/sdb", "/dev/disk", true, true)),
        ] {
            assert_eq!(text.parse(), Ok(want), "{text}");
        }
        for (bad, why) in [
            ("", "is not below /dev"),
            ("fuse", "is not an absolute path"),
            ("/dev/fuse:/x", "is not below /dev"),
            ("/dev/fuse:/dev/../x", "is not an absolute path without"),
            ("/dev/fuse:/dev", "is not below /dev"),
            ("/dev/fuse:/dev/null", "is provided"),
            ("/dev/fuse:/dev/shm/x", "is provided"),
            ("/dev/fuse:/dev/f:x", "is not HOST"),
            ("/dev/fuse:/dev/f:r:w", "is not HOST"),
            ("/dev/fuse:x", "is not an absolute path"),
        ] {
            let error = bad.parse::<DeviceSpec>().map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(why) || bad.is_empty(), "{bad}: {error}");
        }
    }
}
