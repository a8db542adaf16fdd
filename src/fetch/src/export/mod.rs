//! Exports images to archives for `docker load`, `podman load` and `gantry fetch`.
//!
//! The store keeps layers unpacked, so [`layer`] packs the directories again. The archives have the same contents as
//! the originals. Their digests differ if another tool wrote the originals; the exported configuration names the new
//! digests.

mod holes;
pub(crate) mod layer;
pub mod tar;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::Path;

use flate2::write::GzEncoder;
use gantry_model::id::Algorithm;
use gantry_model::{Digest, ErrorKind, ImageRef, Kind};
use gantry_store::{BlobError, ImageRow, Store};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use thiserror::Error;

use self::tar::{TarEntry, TarKind, write_end, write_file, write_header, write_padding};
use crate::source::{Hasher, MAX_DOCUMENT, digest_of};
use crate::unpack::entries::Meta;

/// The format of an exported archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// An OCI image layout in a tar file.
    Oci,
    /// The format of `docker save`.
    Docker,
}

/// An image could not be exported.
#[derive(Debug, Error)]
pub enum ExportError {
    /// A layer's directory cannot be read.
    #[error("cannot read layer {} of image {}", .layer.short(), .image.short())]
    Layer {
        /// The image.
        image: Digest,
        /// The layer.
        layer: Digest,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The manifest or the configuration is damaged or missing.
    #[error("{what} of image {} is damaged or lost; fetch the image again", .image.short())]
    Document {
        /// The image.
        image: Digest,
        /// `the manifest` or `the configuration`.
        what: &'static str,
    },
    /// The store cannot read the documents.
    #[error("cannot read the documents of the image")]
    Blob(#[source] BlobError),
    /// Writing the temporary copy of a layer failed.
    #[error("cannot keep a layer's archive in {place}")]
    Spool {
        /// The path of the copy.
        place: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Writing the archive failed.
    #[error("cannot write the archive")]
    Write(#[source] io::Error),
}

impl Kind for ExportError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Layer { source, .. } | Self::Spool { source, .. } | Self::Write(source) => ErrorKind::of_io(source),
            Self::Document { .. } => ErrorKind::Damaged,
            Self::Blob(error) => error.kind(),
        }
    }
}

/// A file of the archive: its name, and the descriptor's digest and size.
struct Written {
    digest: Digest,
    size: u64,
}

/// Writes images into one archive, each under its `names`. The archive of one layer at a time is kept in an unnamed
/// file in the directory `spool`: its size and digest precede it.
///
/// # Errors
/// [`ExportError`]; the incomplete archive is useless.
pub fn write_archive(
    store: &Store,
    images: &[(ImageRow, Vec<String>)],
    format: ArchiveFormat,
    spool: &Path,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut archive = ArchiveWriter { store, format, spool, out, written: BTreeSet::new(), listed: Vec::new() };
    for (image, names) in images {
        archive.image(image, names)?;
    }
    archive.finish().map_err(ExportError::Write)
}

struct ArchiveWriter<'a> {
    store: &'a Store,
    format: ArchiveFormat,
    spool: &'a Path,
    out: &'a mut dyn Write,
    /// Files that the archive already contains: images share layers.
    written: BTreeSet<String>,
    /// The entries of `index.json` or `manifest.json`.
    listed: Vec<Value>,
}

impl ArchiveWriter<'_> {
    fn image(&mut self, image: &ImageRow, names: &[String]) -> Result<(), ExportError> {
        let lost = |what| ExportError::Document { image: image.id.clone(), what };
        let mut config =
            self.document(image, &image.config).map_err(|e| e.unwrap_or_else(|| lost("the configuration")))?;
        let (mut diff_ids, mut layers) = (Vec::new(), Vec::new());
        for layer in &image.layers {
            let (diff_id, written) = self.layer(image, &layer.chain)?;
            diff_ids.push(diff_id.to_string());
            layers.push(written);
        }
        let rootfs =
            config.get_mut("rootfs").and_then(Value::as_object_mut).ok_or_else(|| lost("the configuration"))?;
        rootfs.insert("diff_ids".to_owned(), json!(diff_ids));
        let config = config.to_string();
        let written = match self.format {
            ArchiveFormat::Oci => {
                let manifest =
                    self.document(image, &image.id).map_err(|e| e.unwrap_or_else(|| lost("the manifest")))?;
                self.oci(&config, &layers, manifest.get("annotations"), names)
            }
            ArchiveFormat::Docker => self.docker(&config, &layers, names),
        };
        written.map_err(ExportError::Write)
    }

    /// Reads a JSON document of the image; `Err(None)` if it is missing or malformed.
    fn document(&self, _image: &ImageRow, digest: &Digest) -> Result<Value, Option<ExportError>> {
        let bytes = self.store.blob(digest, MAX_DOCUMENT).map_err(|error| Some(ExportError::Blob(error)))?;
        serde_json::from_slice(&bytes.ok_or(None)?).map_err(|_| None)
    }

    /// Writes a layer; returns the digest of its archive, and that of the file that contains it.
    fn layer(&mut self, image: &ImageRow, chain: &Digest) -> Result<(Digest, Written), ExportError> {
        let unreadable = |source| ExportError::Layer { image: image.id.clone(), layer: chain.clone(), source };
        let spool = self.spool;
        let spooled = |source| ExportError::Spool { place: spool.display().to_string(), source };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(self.store.layout().tree_dir(chain), flags, Mode::empty());
        let root = root.map_err(|errno| unreadable(errno.into()))?;
        let file = gantry_host::file::create_unnamed(spool).map_err(spooled)?;
        let (mut file, diff_id, size) = match self.format {
            ArchiveFormat::Docker => {
                let mut hashing = Hashing::new(io::BufWriter::with_capacity(1 << 20, file));
                layer::write_layer(&root, &mut hashing).map_err(unreadable)?;
                let (buffered, digest, size) = hashing.finish();
                (buffered.into_inner().map_err(|error| spooled(error.into_error()))?, digest, size)
            }
            ArchiveFormat::Oci => {
                // No name and no time in gzip's header: the same contents give the same bytes.
                let compressed = Hashing::new(io::BufWriter::with_capacity(1 << 20, file));
                let mut hashing = Hashing::new(GzEncoder::new(compressed, flate2::Compression::new(6)));
                layer::write_layer(&root, &mut hashing).map_err(unreadable)?;
                let (encoder, diff_id, _) = hashing.finish();
                let (buffered, digest, size) = encoder.finish().map_err(spooled)?.finish();
                let file = buffered.into_inner().map_err(|error| spooled(error.into_error()))?;
                return self
                    .place(file, &digest, size)
                    .map(|()| (diff_id, Written { digest, size }))
                    .map_err(ExportError::Write);
            }
        };
        file.flush().map_err(spooled)?;
        self.place(file, &diff_id, size).map_err(ExportError::Write)?;
        Ok((diff_id.clone(), Written { digest: diff_id, size }))
    }

    /// The name of a blob's file in the archive.
    fn name_of(&self, digest: &Digest, ending: &str) -> String {
        match self.format {
            ArchiveFormat::Oci => format!("blobs/{}/{}", digest.algorithm().as_str(), digest.hex()),
            ArchiveFormat::Docker => format!("{}{ending}", digest.hex()),
        }
    }

    /// Copies a layer's archive into the archive, once.
    fn place(&mut self, mut file: File, digest: &Digest, size: u64) -> io::Result<()> {
        let name = self.name_of(digest, ".tar");
        if !self.written.insert(name.clone()) {
            return Ok(());
        }
        let meta = Meta { mode: 0o644, ..Meta::default() };
        let (kind, link, device) = (TarKind::File, &b""[..], (0, 0));
        write_header(self.out, &TarEntry { path: name.as_bytes(), kind, meta: &meta, size, link, device })?;
        file.seek(SeekFrom::Start(0))?;
        let copied = io::copy(&mut file.take(size), self.out)?;
        if copied != size {
            return Err(io::Error::other("the copy of a layer is incomplete"));
        }
        write_padding(self.out, size)
    }

    fn small(&mut self, text: &str, ending: &str) -> io::Result<Written> {
        let digest = digest_of(Algorithm::Sha256, text.as_bytes());
        let name = self.name_of(&digest, ending);
        if self.written.insert(name.clone()) {
            write_file(self.out, &name, text.as_bytes())?;
        }
        Ok(Written { digest, size: text.len() as u64 })
    }

    fn oci(
        &mut self,
        config: &str,
        layers: &[Written],
        annotations: Option<&Value>,
        names: &[String],
    ) -> io::Result<()> {
        const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
        let descriptor =
            |kind: &str, it: &Written| json!({ "mediaType": kind, "digest": it.digest.to_string(), "size": it.size });
        let config = self.small(config, "")?;
        let layers: Vec<Value> =
            layers.iter().map(|layer| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", layer)).collect();
        let mut manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers,
        });
        if let (Some(object), Some(annotations)) = (manifest.as_object_mut(), annotations.filter(|it| it.is_object())) {
            object.insert("annotations".to_owned(), annotations.clone());
        }
        let written = self.small(&manifest.to_string(), "")?;
        let entry = |name: Option<&String>| {
            let mut entry = descriptor(MANIFEST, &written);
            if let (Some(object), Some(name)) = (entry.as_object_mut(), name) {
                object.insert("annotations".to_owned(), json!({ "org.opencontainers.image.ref.name": name }));
            }
            entry
        };
        match names {
            [] => self.listed.push(entry(None)),
            names => self.listed.extend(names.iter().map(|name| entry(Some(name)))),
        }
        Ok(())
    }

    fn docker(&mut self, config: &str, layers: &[Written], names: &[String]) -> io::Result<()> {
        let config = self.small(config, ".json")?;
        let layers: Vec<String> = layers.iter().map(|layer| self.name_of(&layer.digest, ".tar")).collect();
        // Docker's manifest has no names with digests.
        let tags: Vec<&String> = names.iter().filter(|name| !name.contains('@')).collect();
        let mut listed = json!({ "Config": self.name_of(&config.digest, ".json"), "RepoTags": tags, "Layers": layers });
        // All tools take a name without a registry for one of Docker Hub's. gantry prefers the names in its own field,
        // which the others ignore.
        if tags.iter().any(|name| matches!(name.parse(), Ok(ImageRef::Short(_)))) {
            listed["GantryNames"] = json!(tags);
        }
        self.listed.push(listed);
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        let Self { out, format, listed, .. } = self;
        match format {
            ArchiveFormat::Oci => {
                let index = json!({
                    "schemaVersion": 2,
                    "mediaType": "application/vnd.oci.image.index.v1+json",
                    "manifests": listed,
                });
                write_file(out, "index.json", index.to_string().as_bytes())?;
                write_file(out, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
            }
            ArchiveFormat::Docker => write_file(out, "manifest.json", json!(listed).to_string().as_bytes())?,
        }
        write_end(out)?;
        out.flush()
    }
}

/// Counts and hashes the bytes written.
struct Hashing<W> {
    inner: W,
    hash: Hasher,
    size: u64,
}

impl<W: Write> Hashing<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: Hasher::new(Algorithm::Sha256), size: 0 }
    }

    fn finish(self) -> (W, Digest, u64) {
        (self.inner, self.hash.finish(), self.size)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
