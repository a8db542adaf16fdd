//! Identities. Each is validated once, when it is parsed into its type; signatures use these types instead of `String`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A text is not the identity it claims to be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdError {
    /// Not a UUID.
    #[error("'{}' is not a pod id: expected a UUID such as 6733c088-a507-4694-aabf-ec79c0a8ac9a", shown(.0))]
    PodId(String),
    /// Not the beginning of a UUID.
    #[error("'{}' is not a pod id or the beginning of one: expected hexadecimal digits and dashes", shown(.0))]
    PodPrefix(String),
    /// Not an app name.
    #[error(
        "'{}' is not a name: expected 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit",
        shown(.0)
    )]
    AppName(String),
    /// Not the id of an app.
    #[error("'{}' is not the id of an app: expected 64 lower-case hexadecimal digits", shown(.0))]
    AppId(String),
    /// Not the name of a volume.
    #[error(
        "'{}' is not the name of a volume: expected 1 to 64 letters, digits, '_', '.' and '-', beginning with a letter or digit",
        shown(.0)
    )]
    VolumeName(String),
    /// Not the name of a pod.
    #[error(
        "'{}' is not the name of a pod: expected 1 to 128 letters, digits, '_', '.' and '-', beginning with a letter or digit, and not an id",
        shown(.0)
    )]
    PodName(String),
    /// Not the namespace of a pod.
    #[error(
        "'{}' is not the namespace of a pod: expected 1 to 76 letters and digits, with single '_', '.' and '-' between them",
        shown(.0)
    )]
    PodNamespace(String),
    /// The namespace of gantryd, as that of a pod.
    #[error("'system' is the namespace of gantryd: choose another one")]
    SystemNamespace,
    /// Not a digest.
    #[error("'{}' is not a digest: expected sha256: and 64, or sha512: and 128, lower-case hexadecimal digits", shown(.0))]
    Digest(String),
}

impl crate::Kind for IdError {
    fn kind(&self) -> crate::ErrorKind {
        crate::ErrorKind::Invalid
    }
}

/// Bytes as lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _infallible = write!(digits, "{byte:02x}");
    }
    digits
}

/// Escapes and truncates untrusted text for a message.
#[must_use]
pub fn shown(text: &str) -> String {
    const MAX_SHOWN: usize = 80;
    let mut out: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        out.push('…');
    }
    out
}

/// A pod's identity: a version 4 UUID (RFC 9562), shown in the usual 36 characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodId([u8; 16]);

impl PodId {
    /// Where the digits of each byte begin in the text.
    const PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];

    /// The number of digits that lists show of an id, and from which on a text is an id first, then a name.
    pub const SHOWN_DIGITS: usize = 8;

    /// Makes an id from 16 random bytes (RFC 9562 section 5.4 sets six of the bits).
    #[must_use]
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// The first digits, as lists show it.
    #[must_use]
    pub fn short(self) -> String {
        let mut text = self.to_string();
        text.truncate(Self::SHOWN_DIGITS);
        text
    }
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Lists have ten thousand of them, several times each.
        const DIGITS: [u8; 16] = *b"0123456789abcdef";
        let mut text = *b"00000000-0000-0000-0000-000000000000";
        for (byte, place) in self.0.iter().zip(Self::PLACES) {
            text[place] = DIGITS[usize::from(byte >> 4)];
            text[place + 1] = DIGITS[usize::from(byte & 15)];
        }
        // Digits and dashes only.
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl FromStr for PodId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let refuse = || IdError::PodId(text.to_owned());
        let text: &[u8; 36] = text.as_bytes().try_into().map_err(|_| refuse())?;
        if [8, 13, 18, 23].map(|at| text[at]) != *b"----" {
            return Err(refuse());
        }
        let (mut bytes, mut all) = ([0u8; 16], 0);
        for (byte, at) in bytes.iter_mut().zip(Self::PLACES) {
            let (high, low) = (HEX_VALUES[usize::from(text[at])], HEX_VALUES[usize::from(text[at + 1])]);
            *byte = high << 4 | low;
            all |= high | low;
        }
        if all > 15 { Err(refuse()) } else { Ok(Self(bytes)) }
    }
}

/// The value of each byte as a hexadecimal digit; 255 if it is none.
const HEX_VALUES: [u8; 256] = {
    let mut values = [u8::MAX; 256];
    let mut value = 0;
    while value < 16 {
        values[b"0123456789abcdef"[value] as usize] = value as u8;
        values[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    values
};

/// Whether all characters are lower-case hexadecimal digits. It has no early exit, so that it compiles to
/// vector instructions.
pub(crate) fn is_lower_hex(text: &str) -> bool {
    text.bytes().fold(true, |all, c| all & (c.is_ascii_digit() | (b'a'..=b'f').contains(&c)))
}

/// A pod id or a prefix of one (at least one digit), lower-cased.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodPrefix(String);

impl PodPrefix {
    /// The prefix in the form in which ids are stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PodPrefix {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let fits = !text.is_empty()
            && text.len() <= 36
            && text.bytes().all(|c| c == b'-' || c.is_ascii_hexdigit())
            && !text.starts_with('-');
        if fits { Ok(Self(text.to_ascii_lowercase())) } else { Err(IdError::PodPrefix(text.to_owned())) }
    }
}

impl From<PodId> for PodPrefix {
    fn from(id: PodId) -> Self {
        Self(id.to_string())
    }
}

/// The name of an app or a volume inside its pod: an appc AC Name (appc specification, "AC Name Type"),
/// which is also an RFC 1123 label. It is safe as a file name and as a cgroup name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AppName(String);

impl AppName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes a name out of any text (the last element of an image's name) as rkt does: lower-cased, what is
    /// not allowed becomes '-', the ends are trimmed, and it is cut at 63. `None` when nothing is left.
    #[must_use]
    pub fn sanitized(text: &str) -> Option<Self> {
        let mapped: String = text
            .chars()
            .map(|c| c.to_ascii_lowercase())
            .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
            .take(63)
            .collect();
        mapped.trim_matches('-').parse().ok()
    }
}

impl fmt::Display for AppName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for AppName {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<AppName> for String {
    fn from(name: AppName) -> Self {
        name.0
    }
}

impl FromStr for AppName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let ok = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = text.as_bytes();
        let fits = (1..=63).contains(&bytes.len())
            && bytes.iter().all(|&c| ok(c) || c == b'-')
            && bytes.first().is_some_and(|&c| ok(c))
            && bytes.last().is_some_and(|&c| ok(c));
        if fits { Ok(Self(text.to_owned())) } else { Err(IdError::AppName(text.to_owned())) }
    }
}

/// The name of a volume that outlives pods. It is safe as a file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

impl VolumeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for VolumeName {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> Self {
        name.0
    }
}

impl FromStr for VolumeName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-'))
            && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if fits { Ok(Self(text.to_owned())) } else { Err(IdError::VolumeName(text.to_owned())) }
    }
}

/// A pod's name, given by the user: as podman's names, `[a-zA-Z0-9][a-zA-Z0-9_.-]*`. Never a complete [`PodId`], so
/// that an id always means the pod that has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodName(String);

impl PodName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PodName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let fits = (1..=128).contains(&text.len())
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-'))
            && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
            && text.parse::<PodId>().is_err();
        if fits { Ok(Self(text.to_owned())) } else { Err(IdError::PodName(text.to_owned())) }
    }
}

/// The hash function of a [`Digest`] (OCI image specification, descriptor, "Registered Algorithms").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// SHA-256, 64 hexadecimal digits.
    Sha256,
    /// SHA-512, 128 hexadecimal digits.
    Sha512,
}

impl Algorithm {
    /// The name in digests: `sha256` or `sha512`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

/// The digest of some content: `algorithm:hex`, lower-case (OCI image specification, descriptor, "Digests").
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

impl Digest {
    /// Makes a digest from the bytes a hash function returned; `None` when their number does not fit.
    #[must_use]
    pub fn from_hash(algorithm: Algorithm, hash: &[u8]) -> Option<Self> {
        (hash.len() * 2 == algorithm.digits()).then(|| Self { algorithm, hex: hex(hash) })
    }

    /// The hash function.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The hexadecimal digits without the algorithm.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// The same digits in the form of appc's hashes, `sha512-…`, which knows no other algorithm. It names the image
    /// just as well, and each form can be made from the other. rkt's own ids have 64 digits, too: half of a SHA-512.
    #[must_use]
    pub fn to_appc(&self) -> String {
        format!("sha512-{}", self.hex)
    }

    /// The digest of which this is the form for appc.
    #[must_use]
    pub fn from_appc(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha512-")?;
        let algorithm = if hex.len() == 64 { Algorithm::Sha256 } else { Algorithm::Sha512 };
        format!("{}:{hex}", algorithm.as_str()).parse().ok()
    }

    /// The first twelve digits, as tables show it.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.hex[..12]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.as_str(), self.hex)
    }
}

impl FromStr for Digest {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let refuse = || IdError::Digest(text.to_owned());
        let (name, hex) = text.split_once(':').ok_or_else(refuse)?;
        let algorithm = match name {
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return Err(refuse()),
        };
        if hex.len() != algorithm.digits() || !is_lower_hex(hex) {
            return Err(refuse());
        }
        Ok(Self { algorithm, hex: hex.to_owned() })
    }
}

/// An image's identity: the digest of its platform manifest (or of the manifest gantry writes for an archive that has
/// none).
pub type ImageId = Digest;

/// How often a pod's row has changed; a compare-and-set names the one it saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Generation(pub u64);

/// The kernel's boot id (`/proc/sys/kernel/random/boot_id`): run-time facts are true within one boot only.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BootId(pub String);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn invalid_app_names_are_rejected() {
        for bad in ["", "-", "a-", "-a", "A", "a_b", "a/b", "..", "a\n", "é", &"a".repeat(64), "a\u{202e}"] {
            assert!(bad.parse::<AppName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn pod_names_are_validated_as_in_podman() {
        for good in ["web", "A", "0", "db-15.4_a", "deadbeef", &"a".repeat(128)] {
            assert_eq!(good.parse::<PodName>().unwrap().as_str(), good);
        }
        let id = "6733c088-a507-4694-aabf-ec79c0a8ac9a";
        for bad in ["", "-a", ".a", "_a", "a/b", "a b", "ä", "a\n", id, &"a".repeat(129)] {
            assert!(bad.parse::<PodName>().unwrap_err().to_string().contains("is not the name of a pod"), "{bad:?}");
        }
    }

    #[test]
    fn volume_names_are_validated() {
        for good in ["data", "A", "0", "pg_data-15.4", &"a".repeat(64)] {
            assert_eq!(good.parse::<VolumeName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".a", "-a", "_a", "a/b", "/a", "a b", "a:b", "é", "a\n", "a\0", &"a".repeat(65)] {
            assert!(bad.parse::<VolumeName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn image_names_are_sanitized_into_app_names() {
        for (from, want) in [("busybox", Some("busybox")), ("My_App.v2", Some("my-app-v2")), ("--", None), ("", None)] {
            assert_eq!(AppName::sanitized(from).as_ref().map(AppName::as_str), want, "{from:?}");
        }
    }

    #[test]
    fn errors_truncate_and_escape_hostile_input() {
        let text = IdError::AppName("\x1b[2J\n".repeat(1000)).to_string();
        assert!(text.len() < 500 && !text.contains('\x1b') && !text.contains('\n'), "{text}");
    }

    proptest! {
        #[test]
        fn pod_ids_round_trip(bytes: [u8; 16]) {
            let id = PodId::from_random(bytes);
            prop_assert_eq!(id.to_string().parse::<PodId>(), Ok(id));
            prop_assert_eq!(&id.to_string()[14..15], "4");
        }

        #[test]
        fn parsers_never_panic(text: String) {
            let _ = text.parse::<PodId>();
            let _ = text.parse::<PodPrefix>();
            let _ = (text.parse::<Digest>(), Digest::from_appc(&text));
            let _ = text.parse::<VolumeName>();
            if let Some(name) = AppName::sanitized(&text) {
                prop_assert_eq!(name.as_str().parse::<AppName>(), Ok(name.clone()));
            }
        }

        #[test]
        fn digests_round_trip(hash: [u8; 32]) {
            let digest = Digest::from_hash(Algorithm::Sha256, &hash).unwrap();
            prop_assert_eq!(Digest::from_appc(&digest.to_appc()), Some(digest.clone()));
            prop_assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
            let long = Digest::from_hash(Algorithm::Sha512, &[hash, hash].concat()).unwrap();
            prop_assert_eq!(Digest::from_appc(&long.to_appc()), Some(long));
        }
    }
}
