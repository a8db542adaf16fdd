//! The supported versions of the CNI specification.

use std::fmt;
use std::str::FromStr;

/// A version of the CNI specification. Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CniVersion {
    /// 0.3.1, and 0.3.0, which does not differ in the parts that gantry uses.
    V0_3_1,
    /// 0.4.0: CHECK, and `prevResult` for DEL.
    V0_4_0,
    /// 1.0.0: addresses without their version.
    V1_0_0,
    /// 1.1.0: GC, STATUS, more keys of interfaces and routes.
    V1_1_0,
}

impl CniVersion {
    /// All of them, oldest first.
    pub const ALL: [Self; 4] = [Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// The version as in a configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }
}

impl fmt::Display for CniVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for CniVersion {
    type Err = String;

    /// The error lists the supported versions.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "0.3.0" | "0.3.1" => Ok(Self::V0_3_1),
            "0.4.0" => Ok(Self::V0_4_0),
            "1.0.0" => Ok(Self::V1_0_0),
            "1.1.0" => Ok(Self::V1_1_0),
            "" | "0.1.0" | "0.2.0" => Err(format!(
                "version '{text}' has the format before 0.3.0, which gantry does not support: write 1.0.0 (or 0.3.1 for old plugins)"
            )),
            other => {
                Err(format!("version '{}' is not known: 0.3.1, 0.4.0, 1.0.0 or 1.1.0", gantry_model::id::shown(other)))
            }
        }
    }
}
