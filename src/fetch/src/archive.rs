//! Images in one tar file: OCI layouts and archives of `docker save`, from a file or from standard input.
//!
//! The archive is scanned once for the offset of each file; then several threads read files at their offsets. Archives
//! that cannot be read at offsets (standard input, a FIFO, a compressed archive) are first copied to an unnamed file,
//! which the kernel removes when gantry ends, however it ends.

mod docker;
pub(crate) mod files;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use gantry_model::id::shown;

use crate::caps::Caps;
use crate::layout::Layout;
use crate::source::{Source, SourceError};
use crate::unpack::UnpackError;
use crate::unpack::entries::{ArchiveEnd, Entries, EntryKind, Stream};
use crate::unpack::header::{BLOCK, check_sum};
use crate::unpack::inflate::{Compression, Inflater, explain_no_archive};
use crate::unpack::names::MAX_PATH;
use files::Files;

/// Maximum number of files of an archive: an image has a few for each layer.
const MAX_FILES: usize = 100_000;
/// Buffer size of the scan in bytes.
const READ_AHEAD: usize = 64 << 10;
/// Maximum number of links followed from one file of the archive to another.
const MAX_LINKS: usize = 8;

/// The form of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Detected. Docker writes both forms into one file since version 25; the OCI form takes precedence, as it has the
    /// image's real manifest.
    Auto,
    /// An OCI image layout.
    Oci,
    /// `manifest.json` as `docker save` writes it.
    Docker,
}

/// The images of an archive, each opened when it is needed.
pub(crate) type Images = Box<dyn Iterator<Item = Result<Box<dyn Source + Send>, SourceError>>>;

/// Opens one image of the archive at `path`: the one named `tag`, or the only one. `tmp` is the directory for a copy,
/// if one is needed.
///
/// # Errors
/// [`SourceError`]: not readable, not an archive of this format, no image of this name, or several images and no name.
pub fn open(
    path: &Path,
    form: Form,
    tag: Option<&str>,
    tmp: &Path,
    caps: &Caps,
) -> Result<Box<dyn Source + Send>, SourceError> {
    image(file_at(path, tmp, caps)?, form, tag)
}

/// As [`open`], for any form, from a stream. The archive must contain exactly one image.
///
/// # Errors
/// As for [`open`].
pub fn stdin(stream: &mut dyn Read, tmp: &Path, caps: &Caps) -> Result<Box<dyn Source + Send>, SourceError> {
    image(stream_of(stream, tmp, caps)?, Form::Auto, None)
}

/// All images of the archive at `path`, of any form.
///
/// # Errors
/// [`SourceError`]: not readable, or not an archive.
pub(crate) fn open_all(path: &Path, tmp: &Path, caps: &Caps) -> Result<Images, SourceError> {
    images(file_at(path, tmp, caps)?)
}

/// As [`open_all`], from a stream.
///
/// # Errors
/// As for [`open_all`].
pub(crate) fn stdin_all(stream: &mut dyn Read, tmp: &Path, caps: &Caps) -> Result<Images, SourceError> {
    images(stream_of(stream, tmp, caps)?)
}

/// Scans the archive at `path`.
fn file_at(path: &Path, tmp: &Path, caps: &Caps) -> Result<Archive, SourceError> {
    let place = shown(&path.to_string_lossy());
    let failed = |source| SourceError::Io { what: place.clone(), source };
    let mut file = File::open(path).map_err(failed)?;
    let kind = file.metadata().map_err(failed)?;
    if kind.is_dir() {
        let why = "it is a directory and neither an archive nor an OCI layout".to_owned();
        return Err(SourceError::Invalid { what: place, why });
    }
    if !kind.is_file() || is_compressed(&file).map_err(failed)? {
        file = spool(&mut file, &place, tmp, caps)?;
    }
    Archive::read(file, place, caps)
}

/// Copies the archive of a stream, and scans it.
fn stream_of(stream: &mut dyn Read, tmp: &Path, caps: &Caps) -> Result<Archive, SourceError> {
    let place = "standard input".to_owned();
    let file = spool(stream, &place, tmp, caps)?;
    Archive::read(file, place, caps)
}

fn image(archive: Archive, form: Form, tag: Option<&str>) -> Result<Box<dyn Source + Send>, SourceError> {
    match detect(&archive, form)? {
        Detected::Oci => Ok(Box::new(Layout::one(archive, tag)?)),
        Detected::Docker => Ok(Box::new(docker::image(archive, tag)?)),
    }
}

fn images(archive: Archive) -> Result<Images, SourceError> {
    match detect(&archive, Form::Auto)? {
        Detected::Oci => Ok(Box::new(Layout::all(archive)?)),
        Detected::Docker => Ok(Box::new(docker::images(archive)?)),
    }
}

/// The form in which an archive is read.
enum Detected {
    Oci,
    Docker,
}

fn detect(archive: &Archive, form: Form) -> Result<Detected, SourceError> {
    let oci = archive.has("oci-layout")? && archive.has("index.json")?;
    let why = match form {
        Form::Auto | Form::Oci if oci => return Ok(Detected::Oci),
        Form::Auto | Form::Docker if archive.has("manifest.json")? => return Ok(Detected::Docker),
        Form::Auto => "it has neither 'oci-layout' with 'index.json' (OCI) nor 'manifest.json' (docker save)",
        Form::Oci => "it has no 'oci-layout' with 'index.json'",
        Form::Docker => "it has no 'manifest.json'",
    };
    Err(SourceError::Invalid { what: archive.place(), why: why.to_owned() })
}

fn is_compressed(file: &File) -> std::io::Result<bool> {
    let mut head = [0; 4];
    let n = file.read_at(&mut head, 0)?;
    Ok(head[..n].starts_with(&[0x1f, 0x8b]) || head[..n] == [0x28, 0xb5, 0x2f, 0xfd])
}

/// Copies a stream, decompressed, to an unnamed file.
fn spool(stream: &mut dyn Read, place: &str, tmp: &Path, caps: &Caps) -> Result<File, SourceError> {
    let copy = format!("a copy of {place} in {}", tmp.display());
    let failed = |source: std::io::Error| SourceError::Io { what: copy.clone(), source };
    let mut file = gantry_host::file::create_unnamed(tmp).map_err(failed)?;
    let mut inflater = Inflater::new(stream, Compression::Auto, caps).map_err(|e| converted(e, place))?;
    let mut buffer = vec![0; 1 << 20];
    let mut is_begun = false;
    loop {
        let n = inflater.fill(&mut buffer).map_err(|e| converted(e, place))?;
        // Before the disk is filled with an endless stream of something else.
        if !is_begun {
            check_head(&buffer[..n], place)?;
        }
        is_begun = true;
        file.write_all(&buffer[..n]).map_err(failed)?;
        if n < buffer.len() {
            return Ok(file);
        }
    }
}

/// Checks that an archive begins with a header, by the header's checksum (tar(5)).
fn check_head(archive: &[u8], place: &str) -> Result<(), SourceError> {
    // First: a file's name may begin as a compressed stream does.
    match archive.first_chunk().is_some_and(|header| check_sum(header).is_ok()) {
        true => Ok(()),
        false => {
            let why = explain_no_archive(archive, "gantry image load");
            Err(SourceError::Invalid { what: place.to_owned(), why })
        }
    }
}

fn converted(error: UnpackError, place: &str) -> SourceError {
    match error {
        UnpackError::Read(source) => SourceError::Io { what: place.to_owned(), source },
        UnpackError::TooMuch { what, most } => SourceError::TooLarge { what: format!("{place} ({what})"), most },
        UnpackError::Corrupt { why } => SourceError::Invalid { what: place.to_owned(), why },
        UnpackError::Format { why } => SourceError::Invalid { what: place.to_owned(), why: why.to_owned() },
        UnpackError::Truncated { at } => {
            SourceError::Invalid { what: place.to_owned(), why: format!("it ends early, {at}") }
        }
        other => SourceError::Invalid { what: place.to_owned(), why: other.to_string() },
    }
}

/// A file in the archive.
enum Member {
    Data {
        offset: u64,
        size: u64,
    },
    /// Another path: old versions of Docker store a layer shared by two images as a link.
    Link(String),
}

/// An archive that has been scanned.
pub(crate) struct Archive {
    file: Arc<File>,
    place: String,
    members: BTreeMap<String, Member>,
}

impl Archive {
    fn read(file: File, place: String, caps: &Caps) -> Result<Self, SourceError> {
        let failed = |source| SourceError::Io { what: place.clone(), source };
        let length = file.metadata().map_err(failed)?.len();
        let mut head = [0; BLOCK];
        let n = file.read_at(&mut head, 0).map_err(failed)?;
        check_head(&head[..n], &place)?;
        let members = index(Scan::new(&file, length), caps).map_err(|e| converted(e, &place))?;
        Ok(Self { file: Arc::new(file), place, members })
    }

    /// Offset and length of a file; links are followed.
    fn find(&self, path: &str) -> Result<Option<(u64, u64)>, SourceError> {
        let mut path = path;
        for _ in 0..=MAX_LINKS {
            match self.members.get(path) {
                None => return Ok(None),
                Some(Member::Data { offset, size }) => return Ok(Some((*offset, *size))),
                Some(Member::Link(target)) => path = target,
            }
        }
        let why = format!("more than {MAX_LINKS} links lead to '{}'", shown(path));
        Err(SourceError::Invalid { what: self.place.clone(), why })
    }
}

impl Files for Archive {
    const SCHEME: &str = "oci-archive";

    fn place(&self) -> String {
        self.place.clone()
    }

    fn has(&self, path: &str) -> Result<bool, SourceError> {
        self.find(path).map(|found| found.is_some())
    }

    fn open(&self, path: &str, offset: u64) -> Result<(u64, Box<dyn Read + Send>), SourceError> {
        let (start, size) = self.find(path)?.ok_or_else(|| self.missing(path))?;
        let skip = offset.min(size);
        let file = Arc::clone(&self.file);
        Ok((size, Box::new(Section { file, at: start + skip, end: start + size })))
    }
}

/// The offset of each file. Names that are not clean text, or too long, are omitted, since no reference has them.
fn index(scan: Scan<'_>, caps: &Caps) -> Result<BTreeMap<String, Member>, UnpackError> {
    let mut entries = Entries::new(scan, caps, ArchiveEnd::Marked);
    let mut members = BTreeMap::new();
    let (mut seen, mut name_bytes) = (0, 0);
    while let Some(entry) = entries.next()? {
        seen += 1;
        if seen > MAX_FILES {
            return Err(UnpackError::TooMuch { what: "files in the archive", most: MAX_FILES as u64 });
        }
        let Some(path) = clean("", &entry.path) else { continue };
        let (parent, _) = path.rsplit_once('/').unwrap_or_default();
        let member = match entry.kind {
            EntryKind::File if entry.sparse.is_none() => {
                Member::Data { offset: entries.stream().position(), size: entry.size }
            }
            EntryKind::Symlink => match clean(parent, &entry.link) {
                Some(target) => Member::Link(target),
                None => continue,
            },
            EntryKind::HardLink => match clean("", &entry.link) {
                Some(target) => Member::Link(target),
                None => continue,
            },
            _ => continue,
        };
        name_bytes += path.len() as u64;
        if let Member::Link(target) = &member {
            name_bytes += target.len() as u64;
        }
        if name_bytes > caps.max_names {
            return Err(UnpackError::TooMuch { what: "bytes of names", most: caps.max_names });
        }
        members.insert(path, member);
    }
    Ok(members)
}

/// `path` relative to `parent`, without `.` and `..`; `None` if it leads outside, is not text, or is longer than any
/// path in Linux.
fn clean(parent: &str, path: &[u8]) -> Option<String> {
    if path.len() > MAX_PATH {
        return None;
    }
    let path = std::str::from_utf8(path).ok()?;
    let mut kept: Vec<&str> = if path.starts_with('/') { Vec::new() } else { parent.split('/').collect() };
    kept.retain(|element| !element.is_empty());
    for element in path.split('/') {
        match element {
            "" | "." => {}
            ".." => {
                kept.pop()?;
            }
            _ => kept.push(element),
        }
    }
    Some(kept.join("/"))
}

/// Part of a file, read without moving the shared position.
struct Section {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let n = self.file.read_at(&mut buffer[..most], self.at)?;
        if n == 0 && most > 0 {
            // The file was complete when it was scanned, so it has been truncated since.
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.at += n as u64;
        Ok(n)
    }
}

/// A file as a tar stream whose data can be skipped without reading it.
struct Scan<'f> {
    file: &'f File,
    length: u64,
    buffer: Vec<u8>,
    at: usize,
    /// Position of the buffer's end in the file.
    end: u64,
}

impl<'f> Scan<'f> {
    fn new(file: &'f File, length: u64) -> Self {
        Self { file, length, buffer: Vec::new(), at: 0, end: 0 }
    }

    /// The offset of the next byte in the file.
    fn position(&self) -> u64 {
        self.end - (self.buffer.len() - self.at) as u64
    }
}

impl Stream for Scan<'_> {
    fn fill(&mut self) -> Result<&[u8], UnpackError> {
        if self.at >= self.buffer.len() {
            self.buffer.resize(READ_AHEAD, 0);
            let n = self.file.read_at(&mut self.buffer, self.end).map_err(UnpackError::Read)?;
            self.buffer.truncate(n);
            self.at = 0;
            self.end += n as u64;
        }
        Ok(&self.buffer[self.at..])
    }

    fn consume(&mut self, n: usize) {
        self.at += n;
    }

    fn skip(&mut self, n: u64) -> Result<bool, UnpackError> {
        let Some(to) = self.position().checked_add(n).filter(|to| *to <= self.length) else { return Ok(false) };
        if to <= self.end {
            self.at += usize::try_from(n).unwrap_or(0);
        } else {
            self.buffer.clear();
            (self.at, self.end) = (0, to);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
