//! Names of entries, made safe: relative to the layer's root, without `.`, `..` or empty elements. Pure.

use super::error::UnpackError;

/// Maximum length of a path in Linux (`PATH_MAX` less its NUL).
pub(crate) const MAX_PATH: usize = 4095;
/// Maximum length of one element in Linux (`NAME_MAX`).
const MAX_ELEMENT: usize = 255;
/// Maximum depth of directories.
const MAX_DEPTH: usize = 1000;

/// Whether a path without `.`, `..` and empty elements is within the limits, also with a slash at its end.
pub(crate) fn is_within_limits(path: &[u8]) -> bool {
    path.len() < MAX_PATH && path.iter().filter(|&&byte| byte == b'/').count() < MAX_DEPTH
}

/// A path below the layer's root, without a leading slash; empty for the root itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name(Vec<u8>);

impl Name {
    /// Checks and cleans a name. An absolute one is relative to the root; `..` is refused, as it has no honest use.
    pub(crate) fn parse(raw: &[u8]) -> Result<Self, UnpackError> {
        if raw.len() > MAX_PATH {
            return Err(UnpackError::entry(raw, "its name is longer than 4095 bytes"));
        }
        let mut clean = Vec::with_capacity(raw.len());
        let mut depth = 0;
        for element in raw.split(|&byte| byte == b'/') {
            match element {
                b"" | b"." => continue,
                b".." => return Err(UnpackError::entry(raw, "its name leads upwards ('..')")),
                long if long.len() > MAX_ELEMENT => {
                    return Err(UnpackError::entry(raw, "an element of its name is longer than 255 bytes"));
                }
                _ => {}
            }
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(UnpackError::entry(raw, "it is more than 1000 directories deep"));
            }
            if !clean.is_empty() {
                clean.push(b'/');
            }
            clean.extend_from_slice(element);
        }
        Ok(Self(clean))
    }

    /// The whole path.
    pub(crate) fn path(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the root itself.
    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The parent directory and the name in it.
    pub(crate) fn split(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&self.0[..slash], &self.0[slash + 1..]),
            None => (&[], &self.0),
        }
    }
}

/// `directory/element`; one of them alone if the other is empty.
pub(crate) fn join(directory: &[u8], element: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.is_empty() || element.is_empty() { b"" } else { b"/" };
    [directory, slash, element].concat()
}

/// The meaning of a name in the whiteout convention of layers (OCI image specification, layer.md "Whiteouts"; AUFS).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meaning<'n> {
    /// An ordinary entry.
    Plain,
    /// Hides this name in lower layers.
    Whiteout(&'n [u8]),
    /// Hides all of this directory in lower layers.
    Opaque,
    /// Book-keeping of AUFS: not part of the file system.
    Ignored,
}

/// Applies the convention.
pub(crate) fn meaning(name: &Name) -> Result<Meaning<'_>, UnpackError> {
    let (parent, base) = name.split();
    let refuse = |why| Err(UnpackError::entry(name.path(), why));
    if memchr_wh(parent) {
        for element in parent.split(|&byte| byte == b'/') {
            if element.starts_with(b".wh..wh.") {
                return Ok(Meaning::Ignored);
            }
            if element.starts_with(b".wh.") {
                return refuse("it is inside a whiteout");
            }
        }
    }
    match base.strip_prefix(b".wh.") {
        None => Ok(Meaning::Plain),
        Some(b".wh..opq") => Ok(Meaning::Opaque),
        Some(b"" | b"." | b"..") => refuse("it is a whiteout of nothing"),
        Some(rest) if rest.starts_with(b".wh.") => Ok(Meaning::Ignored),
        Some(rest) => Ok(Meaning::Whiteout(rest)),
    }
}

/// A cheap check before the expensive one.
fn memchr_wh(path: &[u8]) -> bool {
    path.starts_with(b".wh.") || path.windows(5).any(|window| window == b"/.wh.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_cleaned_or_rejected() {
        let deep = "a/".repeat(1001);
        let long = "x".repeat(256);
        for (raw, want) in [
            ("a/b", Some("a/b")),
            ("./a//b/.", Some("a/b")),
            ("/etc/passwd", Some("etc/passwd")),
            ("", Some("")),
            ("./", Some("")),
            ("..", None),
            ("a/../b", None),
            ("...", Some("...")),
            (deep.as_str(), None),
            (long.as_str(), None),
        ] {
            let got = Name::parse(raw.as_bytes()).ok().map(|n| String::from_utf8(n.0).unwrap());
            assert_eq!(got.as_deref(), want, "{raw:?}");
        }
        assert!(Name::parse(&[&b"a/"[..], &[b'/'; 4096]].concat()).is_err());
    }

    #[test]
    fn whiteouts_are_recognized() {
        for (raw, want) in [
            ("a/b", Some(Meaning::Plain)),
            ("a/.wh.b", Some(Meaning::Whiteout(b"b"))),
            (".wh..wh..opq", Some(Meaning::Opaque)),
            ("a/.wh..wh.plnk", Some(Meaning::Ignored)),
            ("a/.wh..wh.plnk/1.2", Some(Meaning::Ignored)),
            ("a/.wh.", None),
            ("a/.wh..", None),
            ("a/.wh...", None),
            (".wh.a/b", None),
            ("a/.wh....", Some(Meaning::Whiteout(b"..."))),
        ] {
            let name = Name::parse(raw.as_bytes()).unwrap();
            assert_eq!(meaning(&name).ok(), want, "{raw:?}");
        }
    }

    proptest! {
        #[test]
        fn clean_names_stay_below_the_root(raw: Vec<u8>) {
            if let Ok(name) = Name::parse(&raw) {
                prop_assert!(!name.path().starts_with(b"/"));
                prop_assert!(name.path().split(|&b| b == b'/').all(|e| e != b".." && e != b"."));
                prop_assert_eq!(&Name::parse(name.path()).unwrap(), &name);
                let _ = meaning(&name);
            }
        }
    }
}
