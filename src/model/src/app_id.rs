//! The id of an app.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{IdError, hex, is_lower_hex};

/// An app's own id, which no other app of any pod has: 64 lower-case hexadecimal digits, as container ids of docker and
/// of CRI runtimes. An app keeps it for life, over all its starts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AppId(String);

/// The length of an id in digits.
const DIGITS: usize = 64;

impl AppId {
    /// Makes an id from random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; DIGITS / 2]) -> Self {
        Self(hex(&bytes))
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this text can be the beginning of an id.
    #[must_use]
    pub fn is_prefix(text: &str) -> bool {
        (1..=DIGITS).contains(&text.len()) && is_lower_hex(text)
    }
}

impl FromStr for AppId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.len() == DIGITS && Self::is_prefix(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(IdError::AppId(text.to_owned())),
        }
    }
}

impl TryFrom<String> for AppId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<AppId> for String {
    fn from(id: AppId) -> Self {
        id.0
    }
}

impl fmt::Display for AppId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_64_digits() {
        let id = AppId::from_random([0xa7; 32]);
        assert_eq!(id.as_str(), "a7".repeat(32));
        assert_eq!(id.as_str().parse(), Ok(id));
        for bad in ["", "a7", &"A7".repeat(32), &"a7".repeat(33), &"g7".repeat(32)] {
            assert!(bad.parse::<AppId>().is_err(), "{bad}");
        }
        assert!(AppId::is_prefix("0f") && !AppId::is_prefix("") && !AppId::is_prefix("0-"));
    }
}
