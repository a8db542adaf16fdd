//! OCI image layouts (OCI image specification, image-layout.md): `oci-layout`, `index.json` and
//! `blobs/ALGORITHM/DIGEST`, in a directory or in an archive.

use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use gantry_model::{Digest, id::Algorithm, id::shown};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::Deserialize;

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
    Ok(Box::new(Layout::new(Directory::open(dir)?, tag)?))
}

/// An image in a layout.
pub(crate) struct Layout<F> {
    files: F,
    top: Top,
    names: Vec<String>,
}

enum Top {
    /// A manifest or an index in a blob.
    Blob(Descriptor),
    /// All entries of `index.json`: manifests of one image for several platforms.
    Index(Vec<u8>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Marker {
    image_layout_version: String,
}

impl<F: Files> Layout<F> {
    /// Reads marker and index, and selects the image.
    pub(crate) fn new(files: F, tag: Option<&str>) -> Result<Self, SourceError> {
        let marker = files.small("oci-layout", MAX_DOCUMENT)?;
        let invalid =
            |what: &str, why: String| SourceError::Invalid { what: format!("{what} in {}", files.place()), why };
        let marker: Marker = serde_json::from_slice(&marker).map_err(|e| invalid("'oci-layout'", e.to_string()))?;
        if !marker.image_layout_version.starts_with("1.") {
            let why = format!("version {} is not 1.0.0", shown(&marker.image_layout_version));
            return Err(invalid("'oci-layout'", why));
        }
        let bytes = files.small("index.json", MAX_DOCUMENT)?;
        let entries = match manifest::parse(manifest::OCI_INDEX, &bytes) {
            Ok(Parsed::Index(entries)) => entries,
            Ok(Parsed::Manifest(_)) => return Err(invalid("'index.json'", "it is no index".to_owned())),
            Err(error) => return Err(invalid("'index.json'", error.to_string())),
        };
        let mut chosen = choose(entries, tag, &files.place())?;
        let mut names: Vec<String> = chosen.iter().flat_map(names).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        // An image may be listed once for each of its names.
        chosen.dedup_by(|a, b| a.digest == b.digest);
        let top = match <[Descriptor; 1]>::try_from(chosen) {
            Ok([one]) => Top::Blob(one),
            Err(_) => Top::Index(bytes),
        };
        Ok(Self { files, top, names })
    }

    fn path(digest: &Digest) -> String {
        format!("blobs/{}/{}", digest.algorithm().as_str(), digest.hex())
    }
}

/// The entries of the named image. Without a name: the only entry, or all if they differ in nothing but the platform.
fn choose(entries: Vec<Descriptor>, tag: Option<&str>, place: &str) -> Result<Vec<Descriptor>, SourceError> {
    let total = entries.len();
    let known = |entries: &[Descriptor]| {
        let mut all: Vec<String> = entries.iter().flat_map(names).map(shown).collect();
        all.sort();
        all.dedup();
        all.truncate(MAX_SHOWN);
        all
    };
    if let Some(tag) = tag {
        let named: Vec<_> = entries.iter().filter(|d| is_named(d, tag)).cloned().collect();
        return match named.len() {
            0 => Err(SourceError::NotFound { what: format!("image '{}'", shown(tag)), place: place.to_owned() }),
            n if n == 1 || n == total => Ok(named),
            _ => Err(SourceError::Ambiguous { place: place.to_owned(), names: known(&entries) }),
        };
    }
    if total == 0 {
        return Err(SourceError::NotFound { what: "an image".to_owned(), place: place.to_owned() });
    }
    let one = entries.iter().all(|d| d.digest == entries[0].digest);
    let same = entries.iter().all(|d| d.annotations == entries[0].annotations && d.platform.is_some());
    if one || same || (known(&entries).is_empty() && entries.iter().all(|d| d.platform.is_some())) {
        return Ok(entries);
    }
    Err(SourceError::Ambiguous { place: place.to_owned(), names: known(&entries) })
}

fn names(d: &Descriptor) -> impl Iterator<Item = &str> {
    // The whole name says more than the tag that is part of it.
    let whole = d.annotations.get(IMAGE_NAME);
    whole.or_else(|| d.annotations.get(REF_NAME)).map(String::as_str).into_iter()
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
struct Directory {
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
