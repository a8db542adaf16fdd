//! One layer: entries appended one after the other (OCI image specification, layer.md).

use std::collections::BTreeMap;
use std::io::Write as _;

use crate::tar::{Header, pad_into, pax_record};

/// The compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// gzip, level 6.
    #[default]
    Gzip,
    /// zstd, level 3.
    Zstd,
    /// Uncompressed.
    Plain,
}

/// A special file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Character device, major and minor number.
    Char(u32, u32),
    /// Block device, major and minor number.
    Block(u32, u32),
    /// FIFO.
    Fifo,
}

/// A builder of a layer. Owner, time and extended attributes set by [`Layer::owner`], [`Layer::mtime`] and
/// [`Layer::xattr`] apply to the next entry only.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    tar: Vec<u8>,
    compression: Compression,
    owner: (u32, u32),
    mtime: Option<u64>,
    xattrs: Vec<(String, Vec<u8>)>,
    packed: Option<Vec<u8>>,
    unfinished: bool,
    files: BTreeMap<Vec<u8>, (u32, (u32, u32))>,
}

/// A packed layer.
#[derive(Debug, Clone)]
pub struct PackedLayer {
    /// The bytes of the blob.
    pub blob: Vec<u8>,
    /// Digest of the uncompressed archive.
    pub diff_id: String,
    /// The compression.
    pub compression: Compression,
}

/// The default modification time of entries: 2024-01-01T00:00:00Z.
const EPOCH: u64 = 1_704_067_200;

impl Layer {
    /// An empty layer, packed with gzip.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the compression.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// The owner of the next entry.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// The modification time of the next entry, seconds since 1970.
    #[must_use]
    pub fn mtime(mut self, seconds: u64) -> Self {
        self.mtime = Some(seconds);
        self
    }

    /// An extended attribute of the next entry.
    #[must_use]
    pub fn xattr(mut self, name: &str, value: &[u8]) -> Self {
        self.xattrs.push((name.to_owned(), value.to_vec()));
        self
    }

    /// A regular file. A leading `/` is written as given; valid layers have none.
    #[must_use]
    pub fn file(mut self, path: impl AsRef<[u8]>, bytes: impl AsRef<[u8]>, mode: u32) -> Self {
        self.files.insert(path.as_ref().to_vec(), (mode, self.owner));
        self.entry(header(b'0', path.as_ref(), b"", mode), bytes.as_ref())
    }

    /// A directory.
    #[must_use]
    pub fn dir(self, path: impl AsRef<[u8]>, mode: u32) -> Self {
        let mut path = path.as_ref().to_vec();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        self.entry(header(b'5', &path, b"", mode), b"")
    }

    /// A symbolic link.
    #[must_use]
    pub fn symlink(self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.entry(header(b'2', path.as_ref(), target.as_ref(), 0o777), b"")
    }

    /// A hard link to an earlier entry of this layer or a lower one. Its header repeats mode and owner of a file of
    /// this layer, as archivers write it: some unpackers apply the header of a hard link.
    #[must_use]
    pub fn hardlink(mut self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        let mut mode = 0o644;
        if let Some(&(of_target, owner)) = self.files.get(target.as_ref()) {
            (mode, self.owner) = (of_target, owner);
        }
        self.entry(header(b'1', path.as_ref(), target.as_ref(), mode), b"")
    }

    /// Removes `path` of lower layers (a whiteout file `.wh.NAME`).
    #[must_use]
    pub fn whiteout(self, path: &str) -> Self {
        let (parent, name) = path.rsplit_once('/').map_or((String::new(), path), |(p, n)| (format!("{p}/"), n));
        self.file(format!("{parent}.wh.{name}"), b"", 0o644)
    }

    /// Hides the contents of this directory in lower layers (a file `.wh..wh..opq` in it).
    #[must_use]
    pub fn opaque(self, dir: &str) -> Self {
        self.file(format!("{dir}/.wh..wh..opq"), b"", 0o644)
    }

    /// A device node or FIFO.
    #[must_use]
    pub fn device(self, path: impl AsRef<[u8]>, device: Device, mode: u32) -> Self {
        let (kind, numbers) = match device {
            Device::Char(major, minor) => (b'3', (major, minor)),
            Device::Block(major, minor) => (b'4', (major, minor)),
            Device::Fifo => (b'6', (0, 0)),
        };
        let device = (numbers.0.into(), numbers.1.into());
        self.entry(Header { device, ..header(kind, path.as_ref(), b"", mode) }, b"")
    }

    /// A raw header, followed by data padded to a whole block. Nothing is checked.
    #[must_use]
    pub fn raw_header(mut self, header: &Header, data: impl AsRef<[u8]>) -> Self {
        self.tar.extend_from_slice(&header.to_block());
        pad_into(&mut self.tar, data.as_ref());
        self
    }

    /// A pax header (`x`) with these records, for the entry that follows.
    #[must_use]
    pub fn raw_pax(self, records: &[(&str, &[u8])]) -> Self {
        let data: Vec<u8> = records.iter().flat_map(|(key, value)| pax_record(key, value)).collect();
        let header = Header { size: data.len() as u64, ..Header::new(b'x', "PaxHeaders/0") };
        self.raw_header(&header, data)
    }

    /// Raw bytes in the middle of the archive.
    #[must_use]
    pub fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.tar.extend_from_slice(bytes.as_ref());
        self
    }

    /// Omits the two zero blocks at the end.
    #[must_use]
    pub fn unfinished(mut self) -> Self {
        self.unfinished = true;
        self
    }

    /// Uses these bytes as the blob; the `diff_id` remains that of the entries.
    #[must_use]
    pub fn packed_as(mut self, blob: impl Into<Vec<u8>>) -> Self {
        self.packed = Some(blob.into());
        self
    }

    /// The uncompressed archive.
    #[must_use]
    pub fn tar(&self) -> Vec<u8> {
        let mut tar = self.tar.clone();
        if !self.unfinished {
            tar.resize(tar.len() + 2 * crate::tar::BLOCK, 0);
        }
        tar
    }

    /// Packs the layer.
    ///
    /// # Errors
    /// A compressor fails, which does not happen in memory.
    pub fn pack(&self) -> std::io::Result<PackedLayer> {
        let tar = self.tar();
        let diff_id = crate::digest(&tar);
        let blob = match (&self.packed, self.compression) {
            (Some(blob), _) => blob.clone(),
            (None, Compression::Gzip) => gzip(&tar, 6)?,
            (None, Compression::Zstd) => zstd::encode_all(tar.as_slice(), 3)?,
            (None, Compression::Plain) => tar,
        };
        Ok(PackedLayer { blob, diff_id, compression: self.compression })
    }

    /// Appends an entry with its owner, time and attributes, and the pax records that it needs.
    fn entry(mut self, header: Header, data: &[u8]) -> Self {
        let mut records: Vec<Vec<u8>> = std::mem::take(&mut self.xattrs)
            .into_iter()
            .map(|(name, value)| pax_record(&format!("SCHILY.xattr.{name}"), &value))
            .collect();
        if header.name.len() > 100 {
            records.push(pax_record("path", &header.name));
        }
        if header.link.len() > 100 {
            records.push(pax_record("linkpath", &header.link));
        }
        if !records.is_empty() {
            let data = records.concat();
            let header = Header { size: data.len() as u64, ..Header::new(b'x', "PaxHeaders/0") };
            self = self.raw_header(&header, data);
        }
        let (uid, gid) = std::mem::take(&mut self.owner);
        let header = Header {
            uid: uid.into(),
            gid: gid.into(),
            size: data.len() as u64,
            mtime: self.mtime.take().unwrap_or(EPOCH),
            ..header
        };
        self.raw_header(&header, data)
    }
}

/// A header with a type, a name, a link target and permission bits.
fn header(kind: u8, path: &[u8], link: &[u8], mode: u32) -> Header {
    Header { link: link.to_vec(), mode: mode.into(), ..Header::new(kind, path) }
}

/// gzip without a name and a time, for reproducible bytes.
pub(crate) fn gzip(bytes: &[u8], level: u32) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(bytes)?;
    encoder.finish()
}
