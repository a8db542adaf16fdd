//! OCI image layouts (OCI image specification, image-layout.md): `oci-layout`, `index.json` and
//! `blobs/ALGORITHM/DIGEST`, in a directory or in an archive.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_model::{Digest, id::Algorithm, id::shown};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::Value;

use crate::archive::Images;
use crate::archive::files::Files;
use crate::manifest::{self, Parsed};
use crate::source::{Descriptor, MAX_DOCUMENT, RootDocument, Source, SourceError, digest_of};

/// Annotation with a tag, or with a whole name (OCI image specification, annotations.md).
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Annotation in which containerd and Docker store the whole name.
const IMAGE_NAME: &str = "io.containerd.image.name";
/// Maximum number of names in an error message.
const MAX_SHOWN: usize = 10;

/// Whether `path` is a directory with an `oci-layout` file.
#[must_use]
pub fn is_layout(path: &Path) -> bool {
    path.join("oci-layout").is_file()
}

/// One image of the layout in the directory `dir`: the one named `tag`, or the only one.
///
/// # Errors
/// [`SourceError`]: not a layout, no image of this name, or several images and no name.
pub fn open(dir: &Path, tag: Option<&str>) -> Result<Box<dyn Source + Send>, SourceError> {
    Ok(Box::new(Layout::one(Directory::open(dir)?, tag)?))
}

/// All images of the layout in the directory `dir`.
///
/// # Errors
/// [`SourceError`]: not a layout.
pub(crate) fn open_all(dir: &Path) -> Result<Images, SourceError> {
    Ok(Box::new(Layout::all(Directory::open(dir)?)?))
}

/// An image in a layout.
pub(crate) struct Layout<F> {
    files: Arc<F>,
    top: Top,
    names: Vec<String>,
}

enum Top {
    /// A manifest or an index in a blob.
    Blob(Descriptor),
    /// An index of some entries of `index.json`: manifests of one image for several platforms.
    Index(Vec<u8>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marker {
    image_layout_version: String,
}

impl<F: Files> Layout<F> {
    /// The image named `tag`, or the only one.
    pub(crate) fn one(files: F, tag: Option<&str>) -> Result<Self, SourceError> {
        let (bytes, entries) = read_index(&files)?;
        let chosen = choose::<F>(entries, tag, &files.place())?;
        Ok(Self::new(&Arc::new(files), &bytes, chosen))
    }

    /// All images, in the order of the index.
    pub(crate) fn all(
        files: F,
    ) -> Result<impl Iterator<Item = Result<Box<dyn Source + Send>, SourceError>>, SourceError>
    where
        F: Send + 'static,
    {
        let (bytes, entries) = read_index(&files)?;
        let files = Arc::new(files);
        Ok(images(entries).into_iter().map(move |entries| Ok(Box::new(Self::new(&files, &bytes, entries)) as Box<_>)))
    }

    /// The image that some entries of the index `bytes` describe.
    fn new(files: &Arc<F>, bytes: &[u8], entries: Vec<Descriptor>) -> Self {
        let mut names: Vec<String> = entries.iter().filter_map(name).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        let digests: BTreeSet<String> = entries.iter().map(|entry| entry.digest.to_string()).collect();
        let top = match entries.into_iter().next() {
            // An image may be listed once for each of its names.
            Some(first) if digests.len() == 1 => Top::Blob(first),
            _ => Top::Index(index_of(bytes, &digests)),
        };
        Self { files: Arc::clone(files), top, names }
    }

    fn path(digest: &Digest) -> String {
        format!("blobs/{}/{}", digest.algorithm().as_str(), digest.hex())
    }
}

/// Checks the marker and reads the index: its bytes and its entries.
fn read_index(files: &impl Files) -> Result<(Vec<u8>, Vec<Descriptor>), SourceError> {
    let marker = files.small("oci-layout", MAX_DOCUMENT)?;
    let invalid = |what: &str, why: String| SourceError::Invalid { what: format!("{what} in {}", files.place()), why };
    let marker: Marker = serde_json::from_slice(&marker).map_err(|e| invalid("'oci-layout'", e.to_string()))?;
    if !marker.image_layout_version.starts_with("1.") {
        let why = format!("version {} is not 1.0.0", shown(&marker.image_layout_version));
        return Err(invalid("'oci-layout'", why));
    }
    let bytes = files.small("index.json", MAX_DOCUMENT)?;
    match manifest::parse(manifest::OCI_INDEX, &bytes) {
        Ok(Parsed::Index(entries)) if entries.is_empty() => {
            Err(SourceError::NotFound { what: "an image".to_owned(), place: files.place() })
        }
        Ok(Parsed::Index(entries)) => Ok((bytes, entries)),
        Ok(Parsed::Manifest(_)) => Err(invalid("'index.json'", "it is no index".to_owned())),
        Err(error) => Err(invalid("'index.json'", error.to_string())),
    }
}

/// The index `bytes` with the manifests of these digests only.
fn index_of(bytes: &[u8], digests: &BTreeSet<String>) -> Vec<u8> {
    let is_kept = |entry: &Value| entry["digest"].as_str().is_some_and(|digest| digests.contains(digest));
    let mut index: Value = serde_json::from_slice(bytes).unwrap_or_default();
    if let Some(entries) = index.get_mut("manifests").and_then(Value::as_array_mut) {
        entries.retain(is_kept);
    }
    index.to_string().into_bytes()
}

/// The entries of the image named `tag`; without a name, those of the only image.
fn choose<F: Files>(entries: Vec<Descriptor>, tag: Option<&str>, place: &str) -> Result<Vec<Descriptor>, SourceError> {
    let mut known: Vec<String> = entries.iter().filter_map(name).map(shown).collect();
    known.sort();
    known.dedup();
    known.truncate(MAX_SHOWN);
    let named = entries.into_iter().filter(|entry| tag.is_none_or(|tag| is_named(entry, tag))).collect();
    let mut images = images(named).into_iter();
    match (images.next(), images.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => Err(SourceError::Ambiguous { place: place.to_owned(), names: known, scheme: F::SCHEME }),
        // The index is not empty, so an image was named.
        (None, _) => {
            let what = format!("image '{}'", shown(tag.unwrap_or_default()));
            Err(SourceError::NotFound { what, place: place.to_owned() })
        }
    }
}

/// Groups the entries of an index by image, in the order of their first entries. Entries with one digest are names of
/// one image. Entries with one name, or none, and different platforms are its manifests.
fn images(entries: Vec<Descriptor>) -> Vec<Vec<Descriptor>> {
    let mut groups = Groups::default();
    let (mut by_digest, mut by_name, mut seen) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for (at, entry) in entries.iter().enumerate() {
        groups.add();
        groups.join(*by_digest.entry(&entry.digest).or_insert(at), at);
        let Some(platform) = entry.platform.as_ref().map(ToString::to_string) else { continue };
        // Attestations have no platform of their own, and each image may have several.
        let is_attached = platform.starts_with("unknown/");
        if seen.insert((name(entry), platform)) || is_attached {
            groups.join(*by_name.entry(name(entry)).or_insert(at), at);
        }
    }
    let mut images: BTreeMap<usize, Vec<Descriptor>> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        images.entry(groups.first(at)).or_default().push(entry.clone());
    }
    images.into_values().collect()
}

/// Disjoint groups of numbers (union-find).
#[derive(Default)]
struct Groups {
    /// For each number one of its group that is not greater; the first one has itself.
    lower: Vec<usize>,
}

impl Groups {
    /// Adds the next number, as a group.
    fn add(&mut self) {
        self.lower.push(self.lower.len());
    }

    /// The first number of a group.
    fn first(&mut self, mut at: usize) -> usize {
        while self.lower[at] != at {
            self.lower[at] = self.lower[self.lower[at]];
            at = self.lower[at];
        }
        at
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.first(one), self.first(other));
        self.lower[one.max(other)] = one.min(other);
    }
}

/// The name of an entry. The whole name says more than the tag that is part of it.
fn name(d: &Descriptor) -> Option<&str> {
    d.annotations.get(IMAGE_NAME).or_else(|| d.annotations.get(REF_NAME)).map(String::as_str)
}

fn is_named(d: &Descriptor, tag: &str) -> bool {
    [REF_NAME, IMAGE_NAME].iter().any(|key| d.annotations.get(*key).is_some_and(|name| name == tag))
        || d.digest.to_string() == tag
}

impl<F: Files> Source for Layout<F> {
    fn root(&self) -> Result<RootDocument, SourceError> {
        match &self.top {
            Top::Blob(d) => {
                let bytes = self.document(d)?;
                Ok(RootDocument { media_type: d.media_type.clone(), bytes, digest: d.digest.clone() })
            }
            Top::Index(bytes) => Ok(RootDocument {
                media_type: manifest::OCI_INDEX.to_owned(),
                digest: digest_of(Algorithm::Sha256, bytes),
                bytes: bytes.clone(),
            }),
        }
    }

    fn document(&self, d: &Descriptor) -> Result<Vec<u8>, SourceError> {
        if d.size > MAX_DOCUMENT {
            return Err(SourceError::TooLarge { what: d.digest.to_string(), most: MAX_DOCUMENT });
        }
        self.files.small(&Self::path(&d.digest), MAX_DOCUMENT)
    }

    fn open(&self, d: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        Ok(self.files.open(&Self::path(&d.digest), offset)?.1)
    }

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }
}

/// A layout's directory. No path in it leads outside.
pub(crate) struct Directory {
    path: PathBuf,
    fd: OwnedFd,
}

impl Directory {
    fn open(path: &Path) -> Result<Self, SourceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| SourceError::Io { what: path.display().to_string(), source: e.into() })?;
        Ok(Self { path: path.to_owned(), fd })
    }

    /// Links are followed inside the directory only. Opening a FIFO does not block.
    fn file(&self, path: &str) -> Result<Option<File>, SourceError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let what = || self.path.join(path).display().to_string();
        let fd = match rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(SourceError::Io { what: what(), source: error.into() }),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| SourceError::Io { what: what(), source: e.into() })?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(SourceError::Invalid { what: what(), why: "it is not a regular file".to_owned() });
        }
        Ok(Some(File::from(fd)))
    }
}

impl Files for Directory {
    const SCHEME: &str = "oci";

    fn place(&self) -> String {
        shown(&self.path.to_string_lossy())
    }

    fn has(&self, path: &str) -> Result<bool, SourceError> {
        self.file(path).map(|file| file.is_some())
    }

    fn open(&self, path: &str, offset: u64) -> Result<(u64, Box<dyn Read + Send>), SourceError> {
        let failed = |source| SourceError::Io { what: self.path.join(path).display().to_string(), source };
        let mut file = self.file(path)?.ok_or_else(|| self.missing(path))?;
        let size = file.metadata().map_err(failed)?.len();
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        Ok((size, Box::new(file)))
    }
}
