//! Builds tar streams byte by byte, valid or not.

use std::fmt::Write as _;

/// One header; the defaults are those of an empty file.
#[derive(Clone)]
pub(crate) struct Head {
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: u8,
    pub mode: u32,
    pub uid: i64,
    pub gid: i64,
    pub size: u64,
    pub mtime: i64,
    pub device: (u32, u32),
}

impl Head {
    pub(crate) fn new(kind: u8, name: impl AsRef<[u8]>) -> Self {
        Self {
            name: name.as_ref().to_vec(),
            link: Vec::new(),
            kind,
            mode: if kind == b'5' { 0o755 } else { 0o644 },
            uid: 0,
            gid: 0,
            size: 0,
            mtime: 1_000_000_000,
            device: (0, 0),
        }
    }

    pub(crate) fn bytes(&self) -> [u8; 512] {
        let mut block = [0u8; 512];
        let put = |block: &mut [u8; 512], at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(&mut block, 0, &self.name[..self.name.len().min(100)]);
        put(&mut block, 100, format!("{:07o}", self.mode).as_bytes());
        put(&mut block, 108, &number::<8>(self.uid));
        put(&mut block, 116, &number::<8>(self.gid));
        put(&mut block, 124, &number::<12>(self.size as i64));
        put(&mut block, 136, &number::<12>(self.mtime));
        block[156] = self.kind;
        put(&mut block, 157, &self.link[..self.link.len().min(100)]);
        put(&mut block, 257, b"ustar\x0000");
        put(&mut block, 329, &number::<8>(self.device.0.into()));
        put(&mut block, 337, &number::<8>(self.device.1.into()));
        summed(block)
    }
}

/// Puts the right checksum in.
pub(crate) fn summed(mut block: [u8; 512]) -> [u8; 512] {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

/// Octal where it fits, base-256 where not.
fn number<const N: usize>(value: i64) -> [u8; N] {
    let mut field = [0u8; N];
    let octal = format!("{:0width$o}", value.max(0), width = N - 1);
    if value >= 0 && octal.len() < N {
        field[..N - 1].copy_from_slice(octal.as_bytes());
    } else {
        let wide = i128::from(value).to_be_bytes();
        field.copy_from_slice(&wide[16 - N..]);
        field[0] |= 0x80;
    }
    field
}

/// A stream under construction.
#[derive(Clone, Default)]
pub(crate) struct Tar(pub Vec<u8>);

impl Tar {
    pub(crate) fn head(mut self, head: &Head, data: &[u8]) -> Self {
        self.0.extend_from_slice(&head.bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: impl AsRef<[u8]>, data: &[u8]) -> Self {
        self.head(&Head { size: data.len() as u64, ..Head::new(b'0', name) }, data)
    }

    pub(crate) fn dir(self, name: impl AsRef<[u8]>) -> Self {
        self.head(&Head::new(b'5', name), b"")
    }

    pub(crate) fn link(self, kind: u8, name: impl AsRef<[u8]>, link: impl AsRef<[u8]>) -> Self {
        self.head(&Head { link: link.as_ref().to_vec(), ..Head::new(kind, name) }, b"")
    }

    /// An extension header of the given kind.
    pub(crate) fn extension(self, kind: u8, data: &[u8]) -> Self {
        self.head(&Head { size: data.len() as u64, ..Head::new(kind, "ext") }, data)
    }

    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let body: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.extension(b'x', &body)
    }

    /// With the two blocks of zeros.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len() + 3;
    let length = (body + 1..).find(|n| n.to_string().len() + body == *n).unwrap();
    let mut text = String::new();
    write!(text, "{length} {key}=").unwrap();
    [text.as_bytes(), value, b"\n"].concat()
}
