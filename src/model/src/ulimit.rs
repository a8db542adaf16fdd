//! Resource limits of processes (`--ulimit`, setrlimit(2)).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;

/// A resource that a process can have a limit of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// The address space, in bytes.
    As,
    /// A core file, in bytes.
    Core,
    /// Processor time, in seconds.
    Cpu,
    /// Data segment and private writable mappings, in bytes.
    Data,
    /// A file that is written, in bytes.
    Fsize,
    /// Locks of files; has no effect since Linux 2.4.25.
    Locks,
    /// Locked memory, in bytes.
    Memlock,
    /// POSIX message queues of the user, in bytes.
    Msgqueue,
    /// 20 minus the lowest nice value.
    Nice,
    /// One more than the highest file descriptor.
    Nofile,
    /// Processes and threads of the user on the host.
    Nproc,
    /// The resident set; has no effect since Linux 2.4.30.
    Rss,
    /// Real-time priority.
    Rtprio,
    /// Real-time processor time without a blocking system call, in microseconds.
    Rttime,
    /// Queued signals of the user.
    Sigpending,
    /// The stack, in bytes.
    Stack,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 16] = [
        Self::As,
        Self::Core,
        Self::Cpu,
        Self::Data,
        Self::Fsize,
        Self::Locks,
        Self::Memlock,
        Self::Msgqueue,
        Self::Nice,
        Self::Nofile,
        Self::Nproc,
        Self::Rss,
        Self::Rtprio,
        Self::Rttime,
        Self::Sigpending,
        Self::Stack,
    ];

    /// Its name, as docker and limits.conf(5) write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::As => "as",
            Self::Core => "core",
            Self::Cpu => "cpu",
            Self::Data => "data",
            Self::Fsize => "fsize",
            Self::Locks => "locks",
            Self::Memlock => "memlock",
            Self::Msgqueue => "msgqueue",
            Self::Nice => "nice",
            Self::Nofile => "nofile",
            Self::Nproc => "nproc",
            Self::Rss => "rss",
            Self::Rtprio => "rtprio",
            Self::Rttime => "rttime",
            Self::Sigpending => "sigpending",
            Self::Stack => "stack",
        }
    }
}

impl FromStr for Resource {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::ALL.into_iter().find(|resource| resource.as_str() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            SpecError::new(format!("'{}' is not a resource: expected one of {known}", shown(text)))
        })
    }
}

/// The limits of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ulimit {
    /// The resource.
    pub resource: Resource,
    /// The limit that the kernel enforces; `None`: unlimited. A process can raise it up to `hard`.
    pub soft: Option<u64>,
    /// The maximum of `soft`; `None`: unlimited.
    pub hard: Option<u64>,
}

impl Ulimit {
    /// Checks that the soft limit is not above the hard one.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.soft.unwrap_or(u64::MAX) <= self.hard.unwrap_or(u64::MAX) {
            return Ok(());
        }
        Err(SpecError::new(format!("ulimit {self}: the soft limit is above the hard limit")))
    }
}

impl FromStr for Ulimit {
    type Err = SpecError;

    /// Parses docker's `NAME=SOFT[:HARD]`; -1 and `unlimited` are no limit.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let expected =
            || SpecError::new(format!("'{}' is not NAME=SOFT[:HARD], such as nofile=1024:4096", shown(text)));
        let limit = |text: &str| match text {
            "-1" | "unlimited" => Ok(None),
            number if number.starts_with('+') => Err(expected()),
            // The kernel's own value of no limit.
            number => {
                number.parse().map(|number| Some(number).filter(|number| *number != u64::MAX)).map_err(|_| expected())
            }
        };
        let (name, limits) = text.split_once('=').ok_or_else(expected)?;
        let (soft, hard) = limits.split_once(':').unwrap_or((limits, limits));
        let ulimit = Self { resource: name.parse()?, soft: limit(soft)?, hard: limit(hard)? };
        ulimit.validate()?;
        Ok(ulimit)
    }
}

impl fmt::Display for Ulimit {
    /// As [`FromStr`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = |limit: Option<u64>| limit.map_or_else(|| "-1".to_owned(), |limit| limit.to_string());
        write!(f, "{}={}:{}", self.resource.as_str(), limit(self.soft), limit(self.hard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ulimits_are_parsed_as_docker_does() {
        for (text, want) in [
            ("nofile=1024", "nofile=1024:1024"),
            ("nofile=1024:4096", "nofile=1024:4096"),
            ("core=0:-1", "core=0:-1"),
            ("memlock=-1", "memlock=-1:-1"),
            ("stack=unlimited:unlimited", "stack=-1:-1"),
            ("cpu=18446744073709551615", "cpu=-1:-1"),
        ] {
            assert_eq!(text.parse::<Ulimit>().unwrap().to_string(), want, "{text}");
        }
        for (bad, why) in [
            ("nofile", "is not NAME=SOFT"),
            ("nofile=", "is not NAME=SOFT"),
            ("nofile=+1", "is not NAME=SOFT"),
            ("nofile=1:2:3", "is not NAME=SOFT"),
            ("nofile=-2", "is not NAME=SOFT"),
            ("files=1", "expected one of as, core"),
            ("nofile=2:1", "above the hard limit"),
            ("nofile=-1:1", "above the hard limit"),
        ] {
            let error = bad.parse::<Ulimit>().unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
        for resource in Resource::ALL {
            assert_eq!(resource.as_str().parse(), Ok(resource));
        }
    }
}
