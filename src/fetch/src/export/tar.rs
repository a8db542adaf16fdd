//! A writer of tar archives (POSIX pax interchange format) with deterministic output.

use std::collections::BTreeMap;
use std::io::{self, Write};

pub use crate::unpack::entries::Meta;

const BLOCK: usize = 512;

/// The type of an entry: the byte in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TarKind {
    /// A regular file.
    File = b'0',
    /// A hard link.
    HardLink = b'1',
    /// A symbolic link.
    Symlink = b'2',
    /// A character device.
    Char = b'3',
    /// A block device.
    Block = b'4',
    /// A directory.
    Directory = b'5',
    /// A FIFO.
    Fifo = b'6',
}

/// An entry; its data follows.
#[derive(Debug, Clone)]
pub struct TarEntry<'a> {
    /// The path in the archive.
    pub path: &'a [u8],
    /// The type.
    pub kind: TarKind,
    /// Mode, owner, time and extended attributes.
    pub meta: &'a Meta,
    /// Bytes of data that follow.
    pub size: u64,
    /// Target of a link.
    pub link: &'a [u8],
    /// Major and minor number of a device.
    pub device: (u32, u32),
}

/// Writes the header of an entry, preceded by an extended header if needed.
///
/// # Errors
/// The error of the writer.
pub fn write_header(out: &mut dyn Write, entry: &TarEntry<'_>) -> io::Result<()> {
    write_headers(out, entry, extensions(entry))
}

/// Writes the header of a file with holes, and its map (GNU tar manual, "Storing Sparse Files", version 1.0); the bytes
/// of the spans follow, then the padding of the returned size. `entry.size` is the sum of the spans.
pub(crate) fn write_sparse_header(
    out: &mut dyn Write,
    entry: TarEntry<'_>,
    real_size: u64,
    spans: &[(u64, u64)],
) -> io::Result<u64> {
    let mut map = format!("{}\n", spans.len()).into_bytes();
    for (offset, length) in spans {
        map.extend_from_slice(format!("{offset}\n{length}\n").as_bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    let size = entry.size + map.len() as u64;
    let entry = TarEntry { size, ..entry };
    let mut records = extensions(&entry);
    let values = [
        ("GNU.sparse.major", b"1".to_vec()),
        ("GNU.sparse.minor", b"0".to_vec()),
        ("GNU.sparse.name", entry.path.to_vec()),
        ("GNU.sparse.realsize", real_size.to_string().into_bytes()),
    ];
    records.extend(values.map(|(key, value)| (key.as_bytes().to_vec(), value)));
    write_headers(out, &entry, records)?;
    out.write_all(&map)?;
    Ok(size)
}

fn write_headers(out: &mut dyn Write, entry: &TarEntry<'_>, records: BTreeMap<Vec<u8>, Vec<u8>>) -> io::Result<()> {
    if !records.is_empty() {
        let mut body = Vec::new();
        for (key, value) in &records {
            push_record(&mut body, key, value);
        }
        let meta = Meta { mode: 0o644, ..Meta::default() };
        let kind = b'x';
        out.write_all(&block(b"PaxHeaders/extended", kind, &meta, body.len() as u64, b"", (0, 0)))?;
        out.write_all(&body)?;
        write_padding(out, body.len() as u64)?;
    }
    out.write_all(&block(entry.path, entry.kind as u8, entry.meta, entry.size, entry.link, entry.device))
}

/// Pads the last block of an entry's data.
///
/// # Errors
/// The error of the writer.
pub fn write_padding(out: &mut dyn Write, size: u64) -> io::Result<()> {
    let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
    if over == 0 { Ok(()) } else { out.write_all(&[0; BLOCK][over..]) }
}

/// Ends the archive.
///
/// # Errors
/// The error of the writer.
pub fn write_end(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

/// A small file of the outer archive.
pub(crate) fn write_file(out: &mut dyn Write, path: &str, bytes: &[u8]) -> io::Result<()> {
    let meta = Meta { mode: 0o644, ..Meta::default() };
    let size = bytes.len() as u64;
    let (kind, link, device) = (TarKind::File, &b""[..], (0, 0));
    write_header(out, &TarEntry { path: path.as_bytes(), kind, meta: &meta, size, link, device })?;
    out.write_all(bytes)?;
    write_padding(out, size)
}

/// The records of values that do not fit into a header.
fn extensions(entry: &TarEntry<'_>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut records = BTreeMap::new();
    let mut add = |key: &[u8], value: Vec<u8>| drop(records.insert(key.to_vec(), value));
    if entry.path.len() > 100 {
        add(b"path", entry.path.to_vec());
    }
    if entry.link.len() > 100 {
        add(b"linkpath", entry.link.to_vec());
    }
    if octal(entry.size, 11).is_none() {
        add(b"size", entry.size.to_string().into_bytes());
    }
    for (key, id) in [(&b"uid"[..], entry.meta.uid), (b"gid", entry.meta.gid)] {
        if octal(id.into(), 7).is_none() {
            add(key, id.to_string().into_bytes());
        }
    }
    let (seconds, nanos) = entry.meta.mtime;
    if nanos != 0 || u64::try_from(seconds).ok().and_then(|seconds| octal(seconds, 11)).is_none() {
        add(b"mtime", mtime(seconds, nanos).into_bytes());
    }
    for (name, value) in &entry.meta.xattrs {
        add(&[b"SCHILY.xattr.", name.as_slice()].concat(), value.clone());
    }
    records
}

/// Seconds with nanoseconds; a time before the epoch counts from it backwards, as its digits do.
fn mtime(seconds: i64, nanos: u32) -> String {
    let text = match (seconds, nanos) {
        (_, 0) => return seconds.to_string(),
        (0.., _) => format!("{seconds}.{nanos:09}"),
        (-1, _) => format!("-0.{:09}", 1_000_000_000 - nanos),
        _ => format!("{}.{:09}", seconds + 1, 1_000_000_000 - nanos),
    };
    text.trim_end_matches('0').to_owned()
}

/// `LENGTH KEY=VALUE\n`, where the length counts its own digits.
fn push_record(body: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = 1 + key.len() + 1 + value.len() + 1;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    body.extend_from_slice(length.to_string().as_bytes());
    body.push(b' ');
    body.extend_from_slice(key);
    body.push(b'=');
    body.extend_from_slice(value);
    body.push(b'\n');
}

fn octal(value: u64, digits: usize) -> Option<String> {
    let text = format!("{value:0digits$o}");
    (text.len() <= digits).then_some(text)
}

fn block(path: &[u8], kind: u8, meta: &Meta, size: u64, link: &[u8], device: (u32, u32)) -> [u8; BLOCK] {
    let mut header = [0u8; BLOCK];
    let mut put = |at: usize, most: usize, bytes: &[u8]| {
        let length = bytes.len().min(most);
        header[at..at + length].copy_from_slice(&bytes[..length]);
    };
    // Values that do not fit are in the extended header.
    let number = |value: u64, digits| octal(value, digits).unwrap_or_else(|| "0".repeat(digits));
    put(0, 100, path);
    put(100, 7, number(meta.mode.into(), 7).as_bytes());
    put(108, 7, number(meta.uid.into(), 7).as_bytes());
    put(116, 7, number(meta.gid.into(), 7).as_bytes());
    put(124, 11, number(size, 11).as_bytes());
    put(136, 11, number(u64::try_from(meta.mtime.0).unwrap_or(0), 11).as_bytes());
    put(148, 8, b"        ");
    put(156, 1, &[kind]);
    put(157, 100, link);
    put(257, 8, b"ustar\x0000");
    put(329, 7, number(device.0.into(), 7).as_bytes());
    put(337, 7, number(device.1.into(), 7).as_bytes());
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_formatted() {
        for (time, want) in [
            ((5, 0), "5"),
            ((5, 500_000_000), "5.5"),
            ((-5, 0), "-5"),
            ((-1, 500_000_000), "-0.5"),
            ((-3, 250_000_000), "-2.75"),
        ] {
            assert_eq!(mtime(time.0, time.1), want);
        }
    }

    #[test]
    fn records_include_their_own_length() {
        for length in 0..1200 {
            let mut body = Vec::new();
            push_record(&mut body, b"k", &vec![b'v'; length]);
            let said: usize = String::from_utf8_lossy(&body).split(' ').next().unwrap().parse().unwrap();
            assert_eq!(said, body.len());
        }
    }
}
