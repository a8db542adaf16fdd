//! The user namespace of a pod (user_namespaces(7), `--userns`).
//!
//! One range of the host's user ids and one of its group ids are the ids 0, 1 … of the pod. Root of the pod is then an
//! ordinary user of the host, and its capabilities apply to the pod's own namespaces only.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::namespaces::{IpcMode, PidMode};
use crate::net::NetMode;
use crate::spec::{PodSpec, SpecError};
use crate::systemd::SystemdMode;

/// The number of ids of a pod if none is given: all those that images use.
pub const DEFAULT_ID_COUNT: u32 = 65536;

/// The ids of pods with ids of their own on hosts that name no others: systemd, which lists the use of ids by all
/// common programs (<https://systemd.io/UIDS-GIDS>), leaves these unused. There are enough for 4096 pods.
pub const DEFAULT_POOL: IdRange = IdRange { host: 1_879_048_192, length: 268_435_456 };

/// The ids 0 to `length - 1` of a pod are the ids from `host` on of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdRange {
    /// The id on the host of the pod's id 0.
    pub host: u32,
    /// The number of ids.
    pub length: u32,
}

impl IdRange {
    /// The id on the host of an id of the pod; `None`: the pod does not have it.
    #[must_use]
    pub fn to_host(self, id: u32) -> Option<u32> {
        (id < self.length).then(|| self.host.checked_add(id)).flatten()
    }

    /// The id in the pod of an id of the host; `None`: the pod does not have it.
    #[must_use]
    pub fn to_pod(self, id: u32) -> Option<u32> {
        id.checked_sub(self.host).filter(|id| *id < self.length)
    }

    /// Whether an id is in both.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let end = |range: Self| u64::from(range.host) + u64::from(range.length);
        u64::from(self.host) < end(other) && u64::from(other.host) < end(self)
    }

    fn validate(self) -> Result<(), SpecError> {
        let Self { host, length } = self;
        if host == 0 || length == 0 {
            let why = if length == 0 { "it is empty" } else { "it has id 0, the root of the host" };
            return Err(SpecError::new(format!("the range {self} of host ids is invalid: {why}")));
        }
        // The last id, 2^32 - 1, means "none" in system calls.
        match host.checked_add(length) {
            Some(_) => Ok(()),
            None => Err(SpecError::new(format!("the range {self} of host ids goes beyond 4294967294"))),
        }
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.length)
    }
}

/// The ids of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdMappings {
    /// Its user ids.
    pub uids: IdRange,
    /// Its group ids.
    pub gids: IdRange,
}

impl IdMappings {
    /// The same range of user and group ids.
    #[must_use]
    pub fn same(range: IdRange) -> Self {
        Self { uids: range, gids: range }
    }

    /// Whether an id of the host is one of both pods.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.uids.overlaps(other.uids) || self.gids.overlaps(other.gids)
    }
}

/// The user namespace of a pod (`--userns`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum UserNamespaceMode {
    /// The host's.
    #[default]
    Host,
    /// One of its own, with ids that no other pod has.
    Auto,
    /// One of its own, with these ids.
    Mapped(IdMappings),
}

impl UserNamespaceMode {
    /// Whether the pod has none of its own.
    #[must_use]
    pub fn is_host(&self) -> bool {
        *self == Self::Host
    }
}

impl FromStr for UserNamespaceMode {
    type Err = SpecError;

    /// `host`, `auto`, or `HOSTID[:LENGTH]`.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "host" => return Ok(Self::Host),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(SpecError::new(format!("'{}' is none of host, auto and HOSTID[:LENGTH]", shown(text))));
        }
        text.parse().map(|range| Self::Mapped(IdMappings::same(range)))
    }
}

impl FromStr for IdRange {
    type Err = SpecError;

    /// `HOSTID[:LENGTH]`.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (host, length) = text.split_once(':').map_or((text, None), |(host, length)| (host, Some(length)));
        match (number(host), length.map_or(Some(DEFAULT_ID_COUNT), number)) {
            (Some(host), Some(length)) => {
                let range = Self { host, length };
                range.validate()?;
                Ok(range)
            }
            _ => Err(SpecError::new(format!("'{}' is not a range HOSTID[:LENGTH] of ids", shown(text)))),
        }
    }
}

/// Parses a mapping in the order of podman and newuidmap(1), `PODID:HOSTID:LENGTH`. The pod's id must be 0.
///
/// # Errors
/// [`SpecError`]: it has another form, or does not map id 0.
pub fn parse_id_map(text: &str) -> Result<IdRange, SpecError> {
    let invalid = || SpecError::new(format!("'{}' is not a mapping of the form 0:HOSTID:LENGTH", shown(text)));
    let mut parts = text.split(':').map(number);
    let (Some(Some(pod)), Some(Some(host)), Some(Some(length)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(invalid());
    };
    if pod != 0 {
        return Err(SpecError::new(format!("the mapping {} does not begin with id 0 of the pod", shown(text))));
    }
    let range = IdRange { host, length };
    range.validate()?;
    Ok(range)
}

/// Digits only, without a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Checks the user namespace, and that it is combined with nothing that it does not confine.
///
/// # Errors
/// [`SpecError`]: an invalid range, or a setting that the pod cannot have.
pub fn check(spec: &PodSpec) -> Result<(), SpecError> {
    match spec.userns {
        UserNamespaceMode::Host => return Ok(()),
        UserNamespaceMode::Auto => {}
        UserNamespaceMode::Mapped(IdMappings { uids, gids }) => {
            [uids, gids].into_iter().try_for_each(IdRange::validate)?
        }
    }
    let of_apps = spec.apps.iter().map(|app| &app.options);
    let is_any = |is: fn(&crate::spec::AppOptions) -> bool| of_apps.clone().any(is);
    let refused = [
        (spec.net == Some(NetMode::Host), "--net=host"),
        (spec.ipc == IpcMode::Host, "--ipc=host"),
        (is_any(|options| options.pid == PidMode::Host), "--pid=host"),
        (spec.privileged || is_any(|options| options.privileged), "--privileged"),
        (is_any(|options| options.systemd == SystemdMode::Always), "--systemd=always"),
    ];
    match refused.into_iter().find(|(is_set, _)| *is_set) {
        None => Ok(()),
        Some((_, name)) => Err(SpecError::new(format!(
            "{name} cannot be combined with a user namespace of the pod's own: leave out {name} or --userns"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_parsed_strictly() {
        let mapped = |host, length| UserNamespaceMode::Mapped(IdMappings::same(IdRange { host, length }));
        for (text, want) in [
            ("host", Some(UserNamespaceMode::Host)),
            ("auto", Some(UserNamespaceMode::Auto)),
            ("100000", Some(mapped(100_000, 65536))),
            ("1000:100000", Some(mapped(1000, 100_000))),
            ("1:4294967294", Some(mapped(1, u32::MAX - 1))),
            ("2:4294967294", None),
            ("4294967295:1", None),
            ("0", None),
            ("0:10", None),
            ("10:0", None),
            ("+5", None),
            ("-1", None),
            ("", None),
            (":", None),
            ("5:", None),
            ("5:6:7", None),
            ("keep-id", None),
        ] {
            assert_eq!(text.parse().ok(), want, "{text}");
        }
        assert_eq!(parse_id_map("0:1000:10"), Ok(IdRange { host: 1000, length: 10 }));
        for bad in ["", "0", "0:1", "1:1000:10", "0:0:10", "0:1000:10:1", "0:1000:0", "0:a:1"] {
            assert!(parse_id_map(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_mapped_both_ways() {
        let range = IdRange { host: 1000, length: 10 };
        for (pod, host) in [(0, 1000), (9, 1009)] {
            assert_eq!((range.to_host(pod), range.to_pod(host)), (Some(host), Some(pod)));
        }
        assert_eq!((range.to_host(10), range.to_pod(1010), range.to_pod(999)), (None, None, None));
        for (host, length, want) in [(990, 10, false), (990, 11, true), (1009, 1, true), (1010, 5, false)] {
            assert_eq!(range.overlaps(IdRange { host, length }), want, "{host}:{length}");
        }
    }

    #[test]
    fn namespaces_of_the_host_are_refused() {
        let refused = |edit: fn(&mut PodSpec)| {
            let app = crate::AppSpec::new("a".parse().unwrap(), crate::RequestedImage::new("x"));
            let mut spec = PodSpec { apps: vec![app], userns: UserNamespaceMode::Auto, ..PodSpec::default() };
            edit(&mut spec);
            spec.validate().err().map(|error| error.to_string())
        };
        assert_eq!(refused(|_| {}), None);
        type Case = (fn(&mut PodSpec), &'static str);
        let cases: [Case; 6] = [
            (|spec| spec.net = Some(NetMode::Host), "--net=host"),
            (|spec| spec.ipc = IpcMode::Host, "--ipc=host"),
            (|spec| spec.apps[0].options.pid = PidMode::Host, "--pid=host"),
            (|spec| spec.apps[0].options.privileged = true, "--privileged"),
            (|spec| spec.apps[0].options.systemd = SystemdMode::Always, "--systemd"),
            (
                |spec| spec.userns = UserNamespaceMode::Mapped(IdMappings::same(IdRange { host: 0, length: 1 })),
                "the root of the host",
            ),
        ];
        for (edit, want) in cases {
            assert!(refused(edit).is_some_and(|why| why.contains(want)), "{want}");
        }
    }
}
