//! One 512-byte tar header: v7, POSIX ustar and GNU (POSIX.1-2024 pax "ustar Interchange Format"; GNU tar manual,
//! "Basic Tar Format"). Pure; hostile bytes in, numbers and names out.

use super::error::UnpackError;

/// Size of a tar block.
pub(crate) const BLOCK: usize = 512;

/// The fields of one header, before extension headers change them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: u8,
    pub mode: u32,
    pub uid: i128,
    pub gid: i128,
    pub size: i128,
    pub mtime: i128,
    pub major: i128,
    pub minor: i128,
    /// The first part of an old GNU sparse map (kind `S`).
    pub old_sparse: Option<OldSparse>,
}

/// The fields of a GNU header of kind `S`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OldSparse {
    pub real_size: i128,
    pub spans: Vec<(u64, u64)>,
    /// Another block of spans follows.
    pub more: bool,
}

/// Reads one header; `None` for a block of zeros.
pub(crate) fn parse(block: &[u8; BLOCK]) -> Result<Option<Header>, UnpackError> {
    if block.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    check_sum(block)?;
    let ustar = &block[257..263] == b"ustar\0";
    let gnu = &block[257..265] == b"ustar  \0";
    let kind = block[156];
    let mut name = text(&block[..100]).to_vec();
    let prefix = text(&block[345..500]);
    if ustar && !prefix.is_empty() {
        name = [prefix, b"/", &name].concat();
    }
    let devices = matches!(kind, b'3' | b'4');
    let device = |range: &[u8]| if devices { number(range, "a device number is not a number") } else { Ok(0) };
    Ok(Some(Header {
        name,
        link: text(&block[157..257]).to_vec(),
        kind,
        mode: u32::try_from(number(&block[100..108], "a mode is not a number")? & 0o7777).unwrap_or(0),
        uid: number(&block[108..116], "an owner is not a number")?,
        gid: number(&block[116..124], "a group is not a number")?,
        size: number(&block[124..136], "a size is not a number")?,
        mtime: number(&block[136..148], "a time is not a number")?,
        major: device(&block[329..337])?,
        minor: device(&block[337..345])?,
        old_sparse: if gnu && kind == b'S' { Some(old_sparse(block)?) } else { None },
    }))
}

fn old_sparse(block: &[u8; BLOCK]) -> Result<OldSparse, UnpackError> {
    let mut spans = Vec::new();
    old_spans(&block[386..482], &mut spans)?;
    Ok(OldSparse {
        real_size: number(&block[483..495], "the size of a sparse file is not a number")?,
        spans,
        more: block[482] != 0,
    })
}

/// Reads one block of further spans of an old GNU sparse map; true if another follows.
pub(crate) fn more_spans(block: &[u8; BLOCK], spans: &mut Vec<(u64, u64)>) -> Result<bool, UnpackError> {
    old_spans(&block[..504], spans)?;
    Ok(block[504] != 0)
}

fn old_spans(bytes: &[u8], spans: &mut Vec<(u64, u64)>) -> Result<(), UnpackError> {
    const WHY: &str = "a sparse map has a number out of range";
    for pair in bytes.chunks_exact(24) {
        if pair[0] == 0 {
            break;
        }
        let offset = u64::try_from(number(&pair[..12], WHY)?).map_err(|_| UnpackError::Format { why: WHY })?;
        let length = u64::try_from(number(&pair[12..], WHY)?).map_err(|_| UnpackError::Format { why: WHY })?;
        spans.push((offset, length));
    }
    Ok(())
}

/// Verifies the sum of all bytes with the sum's own field as spaces; very old programs summed signed bytes.
pub(crate) fn check_sum(block: &[u8; BLOCK]) -> Result<(), UnpackError> {
    let said = number(&block[148..156], "a header's checksum is not a number")?;
    let unsigned = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    let spaces = u32::from(b' ') * 8;
    if said == i128::from(unsigned(block) - unsigned(&block[148..156]) + spaces) {
        return Ok(());
    }
    let signed = |bytes: &[u8]| bytes.iter().map(|&byte| i32::from(byte.cast_signed())).sum::<i32>();
    if said == i128::from(signed(block) - signed(&block[148..156]) + spaces.cast_signed()) {
        return Ok(());
    }
    Err(UnpackError::Format { why: "a header's checksum is wrong" })
}

/// The bytes before the first NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A numeric field: octal digits, or (first bit set) a big-endian two's complement number (GNU "base-256"). An empty
/// field is 0, as in every known reader.
fn number(field: &[u8], why: &'static str) -> Result<i128, UnpackError> {
    if field.first().is_some_and(|first| first & 0x80 != 0) {
        let negative = field[0] & 0x40 != 0;
        let first = i128::from(field[0] & 0x7f) - if negative { 0x80 } else { 0 };
        // At most 12 bytes: 95 bits fit.
        return Ok(field[1..].iter().fold(first, |sum, &byte| sum << 8 | i128::from(byte)));
    }
    let blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !blank(byte)).unwrap_or(field.len());
    let digits = field[start..].split(blank).next().unwrap_or_default();
    let clean = field[start + digits.len()..].iter().all(blank);
    if !clean || !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) {
        return Err(UnpackError::Format { why });
    }
    Ok(digits.iter().fold(0, |sum, digit| sum << 3 | i128::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numeric_fields_are_parsed() {
        let cases: [(&[u8], Option<i128>); 9] = [
            (b"0000644\0", Some(0o644)),
            (b"  644 \0\0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"0000648\0", None),
            (b"-000001\0", None),
            (b"12 34567", None),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\xff\xff\xff\xff\xff\xff\xff\x00", Some(-256)),
        ];
        for (field, want) in cases {
            assert_eq!(number(field, "no").ok(), want, "{field:?}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes in prop::collection::vec(any::<u8>(), BLOCK), gnu: bool) {
            let mut block = [0u8; BLOCK];
            block.copy_from_slice(&bytes);
            let _ = parse(&block);
            // Behind a right checksum too.
            block[156] = if gnu { b'S' } else { b'0' };
            block[257..265].copy_from_slice(if gnu { b"ustar  \0" } else { b"ustar\x0000" });
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            let _ = parse(&block);
            let _ = more_spans(&block, &mut Vec::new());
        }
    }
}
