//! PAX extended header records (POSIX.1-2024 pax, "pax Extended Header": `LENGTH KEY=VALUE\n`). Pure.

use super::error::UnpackError;

/// Maximum number of extended attributes of one entry.
const MAX_XATTRS: usize = 128;
/// Maximum length of one attribute's value in bytes (the kernel's own limit, `XATTR_SIZE_MAX`).
const MAX_XATTR_VALUE: usize = 64 << 10;
/// Maximum length of one attribute's name in bytes (the kernel's own limit, `XATTR_NAME_MAX`).
const MAX_XATTR_NAME: usize = 255;

/// An extended attribute: name and value.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// The values that extension headers set for an entry. For `None`, the header counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Records {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<i128>,
    pub uid: Option<i128>,
    pub gid: Option<i128>,
    /// Seconds and nanoseconds.
    pub mtime: Option<(i128, u32)>,
    pub xattrs: Vec<Xattr>,
    pub sparse: Sparse,
}

/// The `GNU.sparse.*` records (GNU tar manual, "Storing Sparse Files").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sparse {
    pub major: Option<i128>,
    pub minor: Option<i128>,
    pub name: Option<Vec<u8>>,
    /// `GNU.sparse.size` (0.0, 0.1) or `GNU.sparse.realsize` (1.0).
    pub real_size: Option<i128>,
    /// Offsets and lengths in turn, from 0.0's repeated records or 0.1's map.
    pub numbers: Option<Vec<u64>>,
}

/// Reads the records of one extended header over `into`; later records win.
pub(crate) fn parse(mut bytes: &[u8], into: &mut Records) -> Result<(), UnpackError> {
    const WHY: UnpackError = UnpackError::Format { why: "an extended header has a malformed record" };
    while !bytes.is_empty() {
        let space = bytes.iter().take(20).position(|&b| b == b' ').ok_or(WHY)?;
        let length = decimal(&bytes[..space]).and_then(|n| usize::try_from(n).ok()).ok_or(WHY)?;
        // "LENGTH" counts itself, the space, the record and its newline.
        if length < space + 4 || length > bytes.len() || bytes[length - 1] != b'\n' {
            // Some old programs pad the block with NUL bytes after the last record.
            return Err(WHY);
        }
        let record = &bytes[space + 1..length - 1];
        bytes = &bytes[length..];
        let equals = record.iter().position(|&b| b == b'=').ok_or(WHY)?;
        apply(&record[..equals], &record[equals + 1..], into)?;
    }
    Ok(())
}

fn apply(key: &[u8], value: &[u8], into: &mut Records) -> Result<(), UnpackError> {
    const NUMBER: UnpackError = UnpackError::Format { why: "an extended header has a number out of range" };
    let integer = |value: &[u8]| -> Result<Option<i128>, UnpackError> {
        if value.is_empty() { Ok(None) } else { Ok(Some(signed(value).ok_or(NUMBER)?)) }
    };
    // An empty value revokes a record (POSIX.1-2024).
    let bytes = |value: &[u8]| (!value.is_empty()).then(|| value.to_vec());
    match key {
        b"path" => into.path = bytes(value),
        b"linkpath" => into.link = bytes(value),
        b"size" => into.size = integer(value)?,
        b"uid" => into.uid = integer(value)?,
        b"gid" => into.gid = integer(value)?,
        b"mtime" => into.mtime = if value.is_empty() { None } else { Some(time(value).ok_or(NUMBER)?) },
        b"GNU.sparse.major" => into.sparse.major = integer(value)?,
        b"GNU.sparse.minor" => into.sparse.minor = integer(value)?,
        b"GNU.sparse.name" => into.sparse.name = bytes(value),
        b"GNU.sparse.size" | b"GNU.sparse.realsize" => into.sparse.real_size = integer(value)?,
        b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
            let number = decimal(value).ok_or(NUMBER)?;
            let numbers = into.sparse.numbers.get_or_insert_default();
            if numbers.len().is_multiple_of(2) != (key == b"GNU.sparse.offset") {
                return Err(UnpackError::Format { why: "the offsets and lengths of a sparse map do not alternate" });
            }
            numbers.push(number);
        }
        b"GNU.sparse.map" => {
            let numbers: Option<Vec<u64>> = value.split(|&b| b == b',').map(decimal).collect();
            into.sparse.numbers = Some(numbers.ok_or(NUMBER)?);
        }
        _ => {
            if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                keep(name.to_vec(), Some(value.to_vec()), into, true)?;
            } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                keep(unescaped(name), base64(value), into, false)?;
            }
        }
    }
    Ok(())
}

/// Keeps the attributes that an image may set: `security.capability`, `user.*` and access control lists. Attributes
/// that control overlayfs (`trusted.overlay.*`, `user.overlay.*`) or a security module of the host are dropped.
fn keep(name: Vec<u8>, value: Option<Vec<u8>>, into: &mut Records, wins: bool) -> Result<(), UnpackError> {
    let user = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    let known: [&[u8]; 3] = [b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default"];
    if !user && !known.contains(&name.as_slice()) {
        return Ok(());
    }
    let value = value.ok_or(UnpackError::Format { why: "an extended attribute's value is not base64" })?;
    if name.len() > MAX_XATTR_NAME || name.contains(&0) {
        return Err(UnpackError::Format { why: "an extended attribute's name is too long or has a NUL byte" });
    }
    if value.len() > MAX_XATTR_VALUE {
        return Err(UnpackError::TooMuch { what: "an extended attribute", most: MAX_XATTR_VALUE as u64 });
    }
    if let Some((_, old)) = into.xattrs.iter_mut().find(|(known, _)| *known == name) {
        // bsdtar writes both kinds; the plain one needs no decoding and wins.
        if wins {
            *old = value;
        }
        return Ok(());
    }
    if into.xattrs.len() >= MAX_XATTRS {
        return Err(UnpackError::TooMuch { what: "extended attributes of one entry", most: MAX_XATTRS as u64 });
    }
    into.xattrs.push((name, value));
    Ok(())
}

/// An unsigned decimal number with nothing around it.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= 20 && text.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

fn signed(text: &[u8]) -> Option<i128> {
    match text.strip_prefix(b"-") {
        Some(rest) => Some(-i128::from(decimal(rest)?)),
        None => decimal(text).map(i128::from),
    }
}

/// `[-]SECONDS[.FRACTION]`, rounded down to a nanosecond.
fn time(text: &[u8]) -> Option<(i128, u32)> {
    let mut halves = text.splitn(2, |&b| b == b'.');
    let whole = halves.next()?;
    let fraction = halves.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |i: usize| fraction.get(i).map_or(0, |d| u32::from(d - b'0'));
    let nanos = (0..9).fold(0, |sum, i| sum * 10 + digit(i));
    let seconds = signed(whole)?;
    // -1.25 is 0.75 after -2.
    if whole.starts_with(b"-") && nanos > 0 {
        Some((seconds - 1, 1_000_000_000 - nanos))
    } else {
        Some((seconds, nanos))
    }
}

/// Decodes the `%XX` escapes of libarchive's attribute names; other text is unchanged.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, tail)) = rest.split_first() {
        let hex = |i: usize| tail.get(i).and_then(|&d| char::from(d).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or_default());
                rest = &tail[2..];
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

fn base64(value: &[u8]) -> Option<Vec<u8>> {
    use base64::Engine as _;
    use base64::alphabet::STANDARD;
    use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&STANDARD, config).decode(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(key: &str, value: &str) -> Vec<u8> {
        let body = key.len() + value.len() + 3;
        let length = (body + 1..).find(|n| n.to_string().len() + body == *n).unwrap();
        format!("{length} {key}={value}\n").into_bytes()
    }

    #[test]
    fn records_are_parsed() {
        let mut all = Records::default();
        for (key, value) in [
            ("path", "a"),
            ("path", "b=c"),
            ("size", "10"),
            ("uid", "7"),
            ("uid", ""),
            ("mtime", "-1.25"),
            ("SCHILY.xattr.user.x", "1"),
            ("LIBARCHIVE.xattr.user.x", "Mg"),
            ("LIBARCHIVE.xattr.user.%79", "Mg"),
            ("SCHILY.xattr.trusted.overlay.opaque", "y"),
            ("SCHILY.xattr.user.overlay.redirect", "/"),
        ] {
            parse(&record(key, value), &mut all).unwrap();
        }
        let xattrs = vec![(b"user.x".to_vec(), b"1".to_vec()), (b"user.y".to_vec(), b"2".to_vec())];
        let want = Records {
            path: Some(b"b=c".to_vec()),
            size: Some(10),
            mtime: Some((-2, 750_000_000)),
            xattrs,
            ..Records::default()
        };
        assert_eq!(all, want);
    }

    #[test]
    fn invalid_records_are_rejected() {
        for bad in [
            &b"6 a=\n"[..],
            b"99 path=a\n",
            b"x path=a\n",
            b"9 path=ab",
            b"8 patha\n",
            b"3 \n",
            b"11 size=1x\n",
            b"30 GNU.sparse.numbytes=1\n\0\0\0\0",
            b"0 \n",
        ] {
            assert!(parse(bad, &mut Records::default()).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes: Vec<u8>, key in "(path|size|mtime|uid|GNU.sparse.(map|offset|numbytes)|LIBARCHIVE.xattr.user.%?[0-9a-f]{0,2})", value: String) {
            let _ = parse(&bytes, &mut Records::default());
            let _ = parse(&record(&key, &value), &mut Records::default());
        }
    }
}
