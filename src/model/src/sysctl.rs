//! Kernel settings of a pod's namespaces (`--sysctl`). The rules are those of runc: only settings with a value of
//! their own in each namespace.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;

/// The name of a kernel setting of a namespace, as a path below `/proc/sys`: `net/ipv4/ip_forward`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SysctlName(String);

/// The settings of an IPC namespace, apart from `fs/mqueue/` (ipc_namespaces(7)).
const IPC: [&str; 8] = [
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/sem",
    "kernel/shm_rmid_forced",
    "kernel/shmall",
    "kernel/shmmax",
    "kernel/shmmni",
];

impl SysctlName {
    /// The path below `/proc/sys`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0
    }

    /// Whether it belongs to the IPC namespace.
    #[must_use]
    pub fn is_ipc(&self) -> bool {
        IPC.contains(&self.0.as_str()) || self.0.starts_with("fs/mqueue/")
    }

    /// Whether it belongs to the network namespace, which a pod may share with the host.
    #[must_use]
    pub fn is_network(&self) -> bool {
        self.0.starts_with("net/")
    }
}

impl FromStr for SysctlName {
    type Err = SpecError;

    /// Parses both forms of sysctl(8): if the first separator is a dot, dots separate and slashes are dots
    /// (`net.ipv4.conf.eth0/1.forwarding`); if it is a slash, it is a path.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let invalid = || SpecError::new(format!("'{}' is not the name of a kernel setting", shown(text)));
        let path = match text.find(['.', '/']).map(|at| &text[at..=at]) {
            Some(".") => text
                .chars()
                .map(|c| match c {
                    '.' => '/',
                    '/' => '.',
                    c => c,
                })
                .collect(),
            Some(_) => text.to_owned(),
            None => return Err(invalid()),
        };
        let fits = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(|c| c.is_ascii_graphic());
        if path.len() > 255 || !path.split('/').all(fits) {
            return Err(invalid());
        }
        match path.as_str() {
            "kernel/hostname" => Err(SpecError::new("sysctl kernel.hostname is set with --hostname")),
            "kernel/domainname" => Ok(Self(path)),
            other if IPC.contains(&other) || other.starts_with("fs/mqueue/") || other.starts_with("net/") => {
                Ok(Self(path))
            }
            _ => Err(SpecError::new(format!(
                "sysctl {} is not a setting of the pod's namespaces, but of the whole host: only net.*, fs.mqueue.*, \
                 kernel.shm*, kernel.msg*, kernel.sem and kernel.domainname can be set",
                shown(text)
            ))),
        }
    }
}

impl fmt::Display for SysctlName {
    /// With dots, as in the first form of sysctl(8).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dotted = |c| match c {
            '/' => '.',
            '.' => '/',
            c => c,
        };
        f.write_str(&self.0.chars().map(dotted).collect::<String>())
    }
}

impl TryFrom<String> for SysctlName {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<SysctlName> for String {
    fn from(name: SysctlName) -> Self {
        name.to_string()
    }
}

/// Parses docker's `NAME=VALUE`.
///
/// # Errors
/// [`SpecError`].
pub fn parse_setting(text: &str) -> Result<(SysctlName, String), SpecError> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        SpecError::new(format!("'{}' is not NAME=VALUE, such as net.core.somaxconn=1024", shown(text)))
    })?;
    let name = name.parse()?;
    validate_value(&name, value)?;
    Ok((name, value.to_owned()))
}

/// Checks that a value is one short line.
pub(crate) fn validate_value(name: &SysctlName, value: &str) -> Result<(), SpecError> {
    if value.is_empty() || value.len() > 1024 || value.chars().any(|c| c.is_control() && c != '\t') {
        return Err(SpecError::new(format!("sysctl {name}: the value must be one line of 1 to 1024 bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_namespaces_are_accepted() {
        for (text, path) in [
            ("net.core.somaxconn", "net/core/somaxconn"),
            ("net/core/somaxconn", "net/core/somaxconn"),
            ("net.ipv4.conf.eth0/1.forwarding", "net/ipv4/conf/eth0.1/forwarding"),
            ("net/ipv4/conf/eth0.1/forwarding", "net/ipv4/conf/eth0.1/forwarding"),
            ("kernel.shmmax", "kernel/shmmax"),
            ("kernel.sem", "kernel/sem"),
            ("kernel.domainname", "kernel/domainname"),
            ("fs.mqueue.msg_max", "fs/mqueue/msg_max"),
        ] {
            let name: SysctlName = text.parse().unwrap();
            assert_eq!(name.path(), path, "{text}");
            assert_eq!(name.to_string().parse(), Ok(name.clone()), "{text}");
            assert_eq!(name.is_network(), path.starts_with("net/"));
        }
        assert_eq!(parse_setting("kernel.sem=1 2 3 4").unwrap().1, "1 2 3 4");
    }

    #[test]
    fn settings_of_the_host_are_refused() {
        for (text, why) in [
            ("kernel.hostname", "--hostname"),
            ("kernel.pid_max", "of the whole host"),
            ("vm.swappiness", "of the whole host"),
            ("kernel.shmmaxx", "of the whole host"),
            ("fs.mqueue", "of the whole host"),
            ("net", "is not the name"),
            ("net..x", "is not the name"),
            ("net/../kernel/pid_max", "is not the name"),
            ("net.//.kernel.pid_max", "is not the name"),
            ("net.", "is not the name"),
            ("net.a b", "is not the name"),
            ("", "is not the name"),
        ] {
            let error = text.parse::<SysctlName>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        for bad in ["net.x", "net.x=", "net.x=a\nb"] {
            assert!(parse_setting(bad).is_err(), "{bad}");
        }
    }
}
