//! The entries of a tar stream: headers combined with their extension headers and sparse maps. Data is passed on in
//! slices of the stream's buffers.
//!
//! One rule keeps readers of the same bytes from seeing different files (CVE-2025-62518): the size of an entry after
//! its extended header counts for its data and for finding the next header; extension headers always use their own
//! header's size; and an archive with contradicting extensions is refused.

use super::error::UnpackError;
use super::header::{self, BLOCK, Header};
use super::pax::{self, Records, Xattr};
use super::sparse::{self, SparseMap};
use crate::caps::Caps;

/// Maximum length of a GNU long name in bytes; more than any path in Linux.
const MAX_LONG_NAME: u64 = 8 << 10;
/// Maximum number of extension headers before one entry.
const MAX_EXTENSIONS: usize = 16;
/// Maximum owner: `chown` takes the highest number as "unchanged".
const MAX_OWNER: i128 = 0xffff_fffe;

/// A stream read in pieces of any size.
pub(crate) trait Stream {
    /// The next bytes, empty at the end of the stream.
    fn fill(&mut self) -> Result<&[u8], UnpackError>;
    /// Consumes the first `n` bytes of the slice that [`Stream::fill`] returned.
    fn consume(&mut self, n: usize);
    /// Skips `n` bytes; `false` if the stream ends before.
    fn skip(&mut self, mut n: u64) -> Result<bool, UnpackError> {
        while n > 0 {
            let have = self.fill()?.len();
            if have == 0 {
                return Ok(false);
            }
            let step = usize::try_from(n).unwrap_or(usize::MAX).min(have);
            self.consume(step);
            n -= step as u64;
        }
        Ok(true)
    }
}

impl<S: Stream> Stream for &mut S {
    fn fill(&mut self) -> Result<&[u8], UnpackError> {
        (**self).fill()
    }

    fn consume(&mut self, n: usize) {
        (**self).consume(n);
    }

    fn skip(&mut self, n: u64) -> Result<bool, UnpackError> {
        (**self).skip(n)
    }
}

/// The type of file that an entry creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    HardLink,
    Symlink,
    Char,
    Block,
    Directory,
    Fifo,
}

/// Owner, mode, time and attributes, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits, with set-user-ID, set-group-ID and the sticky bit.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Seconds and nanoseconds, clamped to what file systems hold.
    pub mtime: (i64, u32),
    /// Extended attributes.
    pub xattrs: Vec<Xattr>,
}

/// One entry; its data follows from [`Entries::data`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TarEntry {
    /// The name as in the archive; no NUL bytes, otherwise unchecked.
    pub path: Vec<u8>,
    /// Target of a link as in the archive; no NUL bytes.
    pub link: Vec<u8>,
    pub kind: EntryKind,
    pub meta: Meta,
    /// Length of the file.
    pub size: u64,
    /// The offsets of the data, if the file has holes.
    pub sparse: Option<SparseMap>,
    pub device: (u32, u32),
}

/// Reads entries one after the other.
pub(crate) struct Entries<'c, S> {
    stream: S,
    caps: &'c Caps,
    /// Bytes of the current entry's data not read yet.
    left: u64,
    /// Bytes from the data's end to the next header.
    padding: u64,
    global: Records,
    end: ArchiveEnd,
}

/// How an archive must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArchiveEnd {
    /// With two blocks of zeros: nothing else shows that the archive is whole.
    Marked,
    /// Also with one of them or none, after the last entry: a digest covers the archive. Some programs write layers so.
    Digested,
}

/// Extension headers for the next entry.
#[derive(Default)]
struct Extensions {
    records: Option<Records>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl Extensions {
    fn is_empty(&self) -> bool {
        self.records.is_none() && self.long_name.is_none() && self.long_link.is_none()
    }
}

impl<'c, S: Stream> Entries<'c, S> {
    pub(crate) fn new(stream: S, caps: &'c Caps, end: ArchiveEnd) -> Self {
        Self { stream, caps, left: 0, padding: 0, global: Records::default(), end }
    }

    /// The stream, to inspect or to drain after the end.
    pub(crate) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Bytes of the current entry's data that are not consumed yet.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// The next entry; the rest of the last one's data is skipped. `None` at the end of the archive; a stream that ends
    /// otherwise than [`ArchiveEnd`] allows is truncated.
    pub(crate) fn next(&mut self) -> Result<Option<TarEntry>, UnpackError> {
        let mut extensions = Extensions::default();
        for _ in 0..=MAX_EXTENSIONS {
            self.finish_data()?;
            if extensions.is_empty() && self.may_end()? {
                return Ok(None);
            }
            let Some(header) = header::parse(&self.block("at an entry's header")?)? else {
                if !extensions.is_empty() {
                    return Err(format("an extension header is not followed by an entry"));
                }
                if self.may_end()? {
                    return Ok(None);
                }
                let second = self.block("at the end of the archive")?;
                let end = second.iter().all(|&byte| byte == 0);
                return if end { Ok(None) } else { Err(format("a single block of zeros is between two entries")) };
            };
            if !self.extension(&header, &mut extensions)? {
                return self.entry(header, extensions).map(Some);
            }
        }
        Err(UnpackError::TooMuch { what: "extension headers before one entry", most: MAX_EXTENSIONS as u64 })
    }

    /// The next piece of the current entry's data; empty at its end.
    pub(crate) fn data(&mut self) -> Result<&[u8], UnpackError> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let bytes = self.stream.fill()?;
        if bytes.is_empty() {
            return Err(UnpackError::Truncated { at: "in a file's data" });
        }
        Ok(&bytes[..bytes.len().min(most)])
    }

    /// Consumes `n` bytes of the slice that [`Entries::data`] returned.
    pub(crate) fn consume(&mut self, n: usize) {
        self.stream.consume(n);
        self.left -= n as u64;
    }

    fn finish_data(&mut self) -> Result<(), UnpackError> {
        let rest = self.left.saturating_add(self.padding);
        (self.left, self.padding) = (0, 0);
        if self.stream.skip(rest)? { Ok(()) } else { Err(UnpackError::Truncated { at: "in a file's data" }) }
    }

    /// Whether the stream ends here, and the archive may, too.
    fn may_end(&mut self) -> Result<bool, UnpackError> {
        Ok(self.end == ArchiveEnd::Digested && self.stream.fill()?.is_empty())
    }

    fn block(&mut self, at: &'static str) -> Result<[u8; BLOCK], UnpackError> {
        let mut block = [0; BLOCK];
        let mut have = 0;
        while have < BLOCK {
            let bytes = self.stream.fill()?;
            if bytes.is_empty() {
                return Err(UnpackError::Truncated { at });
            }
            let step = bytes.len().min(BLOCK - have);
            block[have..have + step].copy_from_slice(&bytes[..step]);
            self.stream.consume(step);
            have += step;
        }
        Ok(block)
    }

    /// Announces `size` bytes of data and their padding.
    fn set_data(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    }

    /// Reads the header as an extension of the next entry, if it is one.
    fn extension(&mut self, header: &Header, to: &mut Extensions) -> Result<bool, UnpackError> {
        let most = match header.kind {
            b'x' | b'X' | b'g' => self.caps.max_pax,
            b'L' | b'K' => MAX_LONG_NAME,
            // A volume label (GNU) describes the archive, not a file.
            b'V' => {
                self.set_data(size(header.size)?);
                return Ok(true);
            }
            _ => return Ok(false),
        };
        let size = size(header.size)?;
        if size > most {
            return Err(UnpackError::TooMuch { what: "an extension header", most });
        }
        self.set_data(size);
        let bytes = self.all_data()?;
        match header.kind {
            b'g' => self.set_global(&bytes)?,
            b'L' => once(&mut to.long_name, until_nul(&bytes).to_vec())?,
            b'K' => once(&mut to.long_link, until_nul(&bytes).to_vec())?,
            _ => {
                let mut records = self.global.clone();
                pax::parse(&bytes, &mut records)?;
                once(&mut to.records, records)?;
            }
        }
        Ok(true)
    }

    /// A global header may set shared values. A name or size for all files would only serve to confuse readers.
    fn set_global(&mut self, bytes: &[u8]) -> Result<(), UnpackError> {
        pax::parse(bytes, &mut self.global)?;
        let Records { path, link, size, xattrs, sparse, uid: _, gid: _, mtime: _ } = &self.global;
        if path.is_some() || link.is_some() || size.is_some() || *sparse != pax::Sparse::default() {
            return Err(format("a global extended header sets a name or a size"));
        }
        if !xattrs.is_empty() {
            return Err(format("a global extended header sets extended attributes"));
        }
        Ok(())
    }

    fn all_data(&mut self) -> Result<Vec<u8>, UnpackError> {
        let mut all = Vec::with_capacity(usize::try_from(self.left).unwrap_or(0).min(64 << 10));
        loop {
            let bytes = self.data()?;
            let n = bytes.len();
            if n == 0 {
                return Ok(all);
            }
            all.extend_from_slice(bytes);
            self.consume(n);
        }
    }

    fn entry(&mut self, header: Header, extensions: Extensions) -> Result<TarEntry, UnpackError> {
        let Extensions { records, long_name, long_link } = extensions;
        let records = records.unwrap_or_else(|| self.global.clone());
        let pax_name = records.sparse.name.clone().or(records.path);
        let path = agreed(pax_name, long_name)?.unwrap_or(header.name);
        let link = agreed(records.link, long_link)?.unwrap_or(header.link);
        if path.contains(&0) || link.contains(&0) {
            return Err(UnpackError::entry(&path, "a name has a NUL byte"));
        }
        let refuse = |why| Err(UnpackError::entry(&path, why));
        let stored = size(records.size.unwrap_or(header.size))?;
        let slash = path.last() == Some(&b'/');
        let kind = match header.kind {
            // Before tar had a type for directories, a trailing slash marked them.
            0 | b'0' if slash && stored == 0 => EntryKind::Directory,
            0 | b'0' | b'7' | b'S' if slash => return refuse("it is a file by its kind and a directory by its name"),
            0 | b'0' | b'7' | b'S' => EntryKind::File,
            b'1' => EntryKind::HardLink,
            b'2' => EntryKind::Symlink,
            b'3' => EntryKind::Char,
            b'4' => EntryKind::Block,
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            _ => return refuse("its kind is not one a layer can have"),
        };
        let owner = |id: i128| u32::try_from(id).ok().filter(|_| id <= MAX_OWNER);
        let (Some(uid), Some(gid)) =
            (owner(records.uid.unwrap_or(header.uid)), owner(records.gid.unwrap_or(header.gid)))
        else {
            return refuse("its owner or group is negative or above 4294967294");
        };
        if header.kind == b'S' && header.old_sparse.is_none() {
            return refuse("it is a sparse file without a map");
        }
        let meta = Meta {
            mode: header.mode,
            uid,
            gid,
            mtime: clamped(records.mtime.unwrap_or((header.mtime, 0))),
            xattrs: records.xattrs,
        };
        let device = device((header.major, header.minor));
        let Some(device) = device else { return refuse("its device number is out of range") };
        let mut entry = TarEntry { path, link, kind, meta, size: 0, sparse: None, device };
        // Only files have data; the size of other types is ignored, as all readers of layers do.
        if kind == EntryKind::File {
            self.set_data(stored);
            entry.sparse = self.sparse_map(&records.sparse, header.old_sparse)?;
            entry.size = entry.sparse.as_ref().map_or(stored, |map| map.real_size);
            if entry.size > self.caps.max_file {
                return Err(UnpackError::TooMuch { what: "a file of a size", most: self.caps.max_file });
            }
        }
        Ok(entry)
    }

    /// Reads the sparse map of the entry; the remaining data belongs to the places in the map.
    fn sparse_map(
        &mut self,
        records: &pax::Sparse,
        old: Option<header::OldSparse>,
    ) -> Result<Option<SparseMap>, UnpackError> {
        let most = usize::try_from(self.caps.max_pax / 16).unwrap_or(usize::MAX);
        let (real_size, spans) = match (old, records.numbers.as_ref(), records.major) {
            (Some(mut old), None, None) => {
                while old.more {
                    // The blocks of the map precede the data and are not part of its size.
                    let block = self.block("in a sparse file's map")?;
                    old.more = header::more_spans(&block, &mut old.spans)?;
                    sparse::check_count(old.spans.len(), most)?;
                }
                (old.real_size, old.spans)
            }
            (None, Some(numbers), None) => {
                let Some(real_size) = records.real_size else { return Err(format("a sparse file has no size")) };
                (real_size, sparse::pairs(numbers)?)
            }
            (None, None, Some(1)) if records.minor.unwrap_or(0) == 0 => {
                let Some(real_size) = records.real_size else { return Err(format("a sparse file has no size")) };
                (real_size, self.map_in_data(most)?)
            }
            (None, None, None) if records.real_size.is_none() && records.name.is_none() => return Ok(None),
            _ => return Err(format("a sparse file's map is missing, of an unknown version, or there twice")),
        };
        SparseMap::checked(size(real_size)?, spans, self.left).map(Some)
    }

    /// GNU sparse format 1.0: the map is decimal lines in the first blocks of the data.
    fn map_in_data(&mut self, most: usize) -> Result<Vec<(u64, u64)>, UnpackError> {
        let mut lines = sparse::Lines::new(most);
        loop {
            if self.left < BLOCK as u64 {
                return Err(format("a sparse file's map is cut off"));
            }
            let block = self.block("in a sparse file's map")?;
            self.left -= BLOCK as u64;
            if let Some(numbers) = lines.push(&block)? {
                return sparse::pairs(&numbers);
            }
        }
    }
}

fn format(why: &'static str) -> UnpackError {
    UnpackError::Format { why }
}

fn size(size: i128) -> Result<u64, UnpackError> {
    u64::try_from(size)
        .ok()
        .filter(|&size| i64::try_from(size).is_ok())
        .ok_or(UnpackError::Format { why: "a size is negative or out of range" })
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), UnpackError> {
    if slot.replace(value).is_some() {
        return Err(format("an entry has two extension headers of one kind"));
    }
    Ok(())
}

/// A name from two extensions must be equal in both: other readers could pick the other one.
fn agreed(pax: Option<Vec<u8>>, gnu: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, UnpackError> {
    match (pax, gnu) {
        (Some(pax), Some(gnu)) if pax != gnu => Err(format("an entry has two extension headers with different names")),
        (pax, gnu) => Ok(pax.or(gnu)),
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// 1901 to 2446, what ext4 holds.
fn clamped((seconds, nanos): (i128, u32)) -> (i64, u32) {
    let kept = seconds.clamp(-(1 << 31), (1 << 34) - (1 << 31) - 1);
    (i64::try_from(kept).unwrap_or_default(), if kept == seconds { nanos } else { 0 })
}

/// Linux has 12 bits for the major and 20 for the minor number.
fn device((major, minor): (i128, i128)) -> Option<(u32, u32)> {
    let major = u32::try_from(major).ok().filter(|&n| n < 1 << 12)?;
    let minor = u32::try_from(minor).ok().filter(|&n| n < 1 << 20)?;
    Some((major, minor))
}
