//! How a volume is mounted in an app, besides whether it is read-only.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;

/// Whether mounts that are made below a volume while it is mounted appear on the other side (mount_namespaces(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Propagation {
    /// On neither side.
    #[default]
    Private,
    /// Those of the host appear in the app.
    Slave,
    /// Those of the host appear in the app, and those of the app on the host.
    Shared,
}

impl Propagation {
    /// The option of mount(8): recursive, as mounts below the volume have the same.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Private => "rprivate",
            Self::Slave => "rslave",
            Self::Shared => "rshared",
        }
    }

    /// Whether mounts of one side appear on the other.
    #[must_use]
    pub fn propagates(self) -> bool {
        self != Self::Private
    }

    /// Checks that a source can be mounted so, by the peer groups of the mount that it is on.
    ///
    /// # Errors
    /// [`SpecError`]: mounts cannot appear where they should.
    pub fn check_source(self, source: &str, is_shared: bool, is_slave: bool) -> Result<(), SpecError> {
        let (is_possible, needed) = match self {
            Self::Private => return Ok(()),
            Self::Slave => (is_shared || is_slave, "shared or slave"),
            Self::Shared => (is_shared, "shared"),
        };
        if is_possible {
            return Ok(());
        }
        let (source, how) = (shown(source), self.as_str());
        let why = format!("'{source}' cannot be mounted {how}: it is not on a {needed} mount (mount --make-shared)");
        Err(SpecError::new(why))
    }
}

impl FromStr for Propagation {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "private" | "rprivate" => Ok(Self::Private),
            "slave" | "rslave" => Ok(Self::Slave),
            "shared" | "rshared" => Ok(Self::Shared),
            _ => Err(SpecError::new(format!("'{}' is none of rprivate, rslave and rshared", shown(text)))),
        }
    }
}

/// Options of a volume's place in an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MountOptions {
    /// Which mounts appear on the other side.
    #[serde(skip_serializing_if = "is_default")]
    pub propagation: Propagation,
    /// Whether mounts below a read-only volume stay as writable as they are on the host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub writable_submounts: bool,
}

fn is_default(propagation: &Propagation) -> bool {
    !propagation.propagates()
}

impl MountOptions {
    /// Whether they are the default ones.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn propagation_has_the_words_of_mount() {
        for (text, want) in
            [("rslave", Propagation::Slave), ("shared", Propagation::Shared), ("rprivate", Propagation::Private)]
        {
            let parsed: Propagation = text.parse().unwrap();
            assert_eq!(parsed, want);
            assert_eq!(parsed.as_str().parse(), Ok(want));
        }
        assert!("unbindable".parse::<Propagation>().is_err());
    }

    #[test]
    fn sources_need_peers_to_propagate() {
        let is_possible = |propagation: Propagation| {
            [(false, false), (false, true), (true, false)]
                .map(|(is_shared, is_slave)| propagation.check_source("/s", is_shared, is_slave).is_ok())
        };
        assert_eq!(is_possible(Propagation::Private), [true, true, true]);
        assert_eq!(is_possible(Propagation::Slave), [false, true, true]);
        assert_eq!(is_possible(Propagation::Shared), [false, false, true]);
    }
}
