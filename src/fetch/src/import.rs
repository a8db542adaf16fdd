//! Imports the image of a source: the manifest for this host, its configuration, its layers, and last the image's row,
//! so that an incomplete image is never visible.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gantry_model::id::{Algorithm, shown};
use gantry_model::{Digest, ErrorKind};
use gantry_store::{BlobError, CommitImageError, ImageFormat, ImageRow, LayerRef, NewImage, Store};

use crate::checked::Watch;
use crate::config::{self, ImageConfig};
use crate::error::FetchError;
use crate::layers::{self, Job, LayerPlan, OTHER_FETCH_TIMEOUT};
use crate::manifest::{self, MAX_DEPTH, Manifest, ManifestError, Parsed};
use crate::platform::Platform;
use crate::progress::{Note, Progress};
use crate::settings::Config;
use crate::source::{self, Mismatch, Source, SourceError};

/// Maximum number of restarts after garbage collection removed a layer during the fetch.
pub(crate) const MAX_RESTARTS: usize = 3;

/// The names of an image to import.
pub(crate) struct Naming {
    /// Canonical names, at least one. Messages use the first.
    pub(crate) names: Vec<String>,
    /// Names in the source that no image can have.
    pub(crate) invalid: Vec<String>,
    /// The repository with whose name the digest of the source's document makes another name.
    pub(crate) digests_of: Option<String>,
    pub(crate) origin: NameOrigin,
}

/// The origin of an image's names, which decides whether they may be taken from another image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameOrigin {
    /// The registry: its tags may move.
    Registry,
    /// The archive or layout itself, which may claim any name, including that of a registry's image.
    Archive,
    /// The path that the user gave. Files of different images may have the same name.
    Path,
}

impl Naming {
    /// The names that the image gets. Without permission, none is taken from another image: a name that the source
    /// claims is refused, and one made of a path is left out. Reports names that are left out or move.
    fn allowed(
        &self,
        store: &Store,
        config: &Config,
        id: &Digest,
        progress: &dyn Progress,
    ) -> Result<Vec<String>, FetchError> {
        for name in &self.invalid {
            progress.notify(Note::NameInvalid { name: name.clone() });
        }
        if self.origin == NameOrigin::Registry {
            return Ok(self.names.clone());
        }
        let mut allowed = Vec::with_capacity(self.names.len());
        for name in &self.names {
            let owner = store.image_by_name(name).map_err(FetchError::store("look for an image"))?;
            match owner.map(|image| image.id).filter(|owner| owner != id) {
                None => {}
                Some(owner) if config.take_names => {
                    progress.notify(Note::NameMoved { name: name.clone(), from: owner });
                }
                Some(owner) if self.origin == NameOrigin::Archive => {
                    let (name, owner) = (shown(name), owner.short());
                    return Err(FetchError::refused(
                        ErrorKind::Refused,
                        format!(
                            "{name} is the name of another image in the store, {owner}: --force gives it to the \
                             archive's image"
                        ),
                    ));
                }
                Some(owner) => {
                    progress.notify(Note::NameTaken { name: name.clone(), image: id.clone(), owner });
                    continue;
                }
            }
            allowed.push(name.clone());
        }
        Ok(allowed)
    }
}

/// The documents of an image, read before its layers.
struct ImageDocuments {
    id: Digest,
    bytes: Vec<u8>,
    manifest: Manifest,
    config_bytes: Vec<u8>,
    plans: Vec<LayerPlan>,
}

/// The manifest for this host.
struct FoundManifest {
    /// The digest of the document that the source names: an index, or the manifest itself.
    root: Digest,
    id: Digest,
    bytes: Vec<u8>,
    manifest: Manifest,
}

/// Imports the image of `source` under the names of `naming`. Returns its row, and the number of bytes of layers read.
pub(crate) fn import(
    store: &Store,
    config: &Config,
    source: &dyn Source,
    naming: &Naming,
    progress: &dyn Progress,
) -> Result<(ImageRow, u64), FetchError> {
    let name = naming.names.first().map(String::as_str).unwrap_or_default();
    let FoundManifest { root, id, bytes, manifest } = find_manifest(source, config, name)?;
    let by_digest = naming.digests_of.as_ref().map(|repository| format!("{repository}@{root}"));
    let allowed = naming.allowed(store, config, &id, progress)?;
    let names = &allowed.into_iter().chain(by_digest).collect::<Vec<_>>();
    let cancellation = config.cancellation.as_ref();
    let watch = Watch { progress, cancellation, cancelled: AtomicBool::new(false), read: AtomicU64::new(0) };
    let looked = || FetchError::store("look for an image");
    let known = store.image(&id).map_err(looked())?;
    // The image may be in the store under another name. A damaged one is fetched again; its intact layers are kept.
    if let Some(row) = known
        && store.is_whole(&row).map_err(looked())?
    {
        if let Some(platform) = unfit_platform(store, config, &row)? {
            return Err(FetchError::other_platform(name, &platform, config));
        }
        let image = NewImage {
            id: row.id,
            config: row.config,
            format: row.format,
            layers: row.layers,
            size: row.size,
            names: names.clone(),
        };
        match store.commit_image(&image, gantry_store::now()) {
            Ok(row) => return Ok((row, 0)),
            // The image has just been removed.
            Err(CommitImageError::NoSuchLayer { .. } | CommitImageError::NoSuchBlob { .. }) => {}
            Err(source) => return Err(FetchError::Commit { name: name.to_owned(), source }),
        }
    }
    let found = complete(source, config, name, id, bytes, manifest)?;
    let (caps, parallel, plans) = (&config.caps, config.parallel, found.plans.as_slice());
    let job = Job { source, caps, parallel, plans, watch: &watch, other_fetch_timeout: OTHER_FETCH_TIMEOUT };
    let mut tries = 1;
    loop {
        match bring(store, &job, &found, source.format(), names) {
            Ok(row) => return Ok((row, watch.read.load(Ordering::Relaxed))),
            // A failure has cancelled the source, so only the caller can restart, with a new one.
            Err(error) if tries < MAX_RESTARTS && is_collected(&error) => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

fn is_collected(error: &FetchError) -> bool {
    matches!(
        error,
        FetchError::Commit { source: CommitImageError::NoSuchLayer { .. } | CommitImageError::NoSuchBlob { .. }, .. }
    )
}

/// Fetches what is missing and commits the image. After a kill before the last step, the layers and blobs without an
/// image are used by the next fetch or removed by garbage collection.
fn bring(
    store: &Store,
    job: &Job<'_>,
    found: &ImageDocuments,
    format: Option<ImageFormat>,
    names: &[String],
) -> Result<ImageRow, FetchError> {
    // Until the image refers to them, nothing else keeps the layers from being collected.
    let _locks = layers::fetch(store, job)?;
    let refused = |what: &str| {
        let attempt = format!("cannot store {what}");
        move |source: BlobError| FetchError::failed(attempt, source)
    };
    store.put_blob(&found.id, &found.bytes).map_err(refused("the manifest"))?;
    let config = &found.manifest.config.digest;
    store.put_blob(config, &found.config_bytes).map_err(refused("the image configuration"))?;
    let layer = |plan: &LayerPlan| LayerRef {
        chain: plan.chain.clone(),
        diff_id: plan.diff_id.clone(),
        blob: plan.blob.digest.clone(),
    };
    let compressed = found.plans.iter().fold(0u64, |sum, plan| sum.saturating_add(plan.blob.size));
    let documents = (found.bytes.len() + found.config_bytes.len()) as u64;
    let image = NewImage {
        id: found.id.clone(),
        config: config.clone(),
        format: format.unwrap_or(found.manifest.format),
        layers: found.plans.iter().map(layer).collect(),
        size: compressed.saturating_add(documents),
        names: names.to_vec(),
    };
    let name = names.first().cloned().unwrap_or_default();
    store.commit_image(&image, gantry_store::now()).map_err(|source| FetchError::Commit { name, source })
}

/// Follows the index (or indexes) to the manifest for this host. Each step is pinned by the digest in the one before.
fn find_manifest(source: &dyn Source, config: &Config, name: &str) -> Result<FoundManifest, FetchError> {
    let refused = |source: ManifestError| FetchError::failed(format!("cannot use {}", shown(name)), source);
    let top = source.root().map_err(FetchError::source(name))?;
    let (mut id, mut bytes, mut media_type) = (top.digest, top.bytes, top.media_type);
    let got = source::digest_of(id.algorithm(), &bytes);
    if got != id {
        return Err(mismatch(name, "the manifest", Mismatch::Digest { want: id, got }));
    }
    let root = id.clone();
    for _ in 0..=MAX_DEPTH {
        let entries = match manifest::parse(&media_type, &bytes).map_err(refused)? {
            Parsed::Manifest(manifest) => return Ok(FoundManifest { root, id, bytes, manifest }),
            Parsed::Index(entries) => entries,
        };
        let chosen = manifest::choose(&entries, &config.wanted_platform()).map_err(refused)?;
        bytes = document(source, chosen, name, "the manifest")?;
        (id, media_type) = (chosen.digest.clone(), chosen.media_type.clone());
    }
    Err(refused(ManifestError::TooDeep))
}

fn mismatch(name: &str, what: &str, source: Mismatch) -> FetchError {
    FetchError::failed(format!("{what} of {} is damaged or was tampered with", shown(name)), source)
}

/// Fetches the document of a descriptor and verifies it.
fn document(
    source: &dyn Source,
    d: &source::Descriptor,
    name: &str,
    what: &'static str,
) -> Result<Vec<u8>, FetchError> {
    let failed = FetchError::source(name);
    if d.size > source::MAX_DOCUMENT {
        return Err(failed(SourceError::TooLarge { what: what.to_owned(), most: source::MAX_DOCUMENT }));
    }
    let bytes = source.document(d).map_err(failed)?;
    source::verify(d, &bytes).map_err(|wrong| mismatch(name, what, wrong))?;
    Ok(bytes)
}

/// Reads the configuration and checks that it matches the manifest and this host.
fn complete(
    source: &dyn Source,
    settings: &Config,
    name: &str,
    id: Digest,
    bytes: Vec<u8>,
    manifest: Manifest,
) -> Result<ImageDocuments, FetchError> {
    let config_bytes = document(source, &manifest.config, name, "the image configuration")?;
    let config = config::parse(&config_bytes)
        .map_err(|source| FetchError::failed(format!("cannot use {}", shown(name)), source))?;
    let (layers, diff_ids) = (manifest.layers.len(), config.diff_ids.len());
    if layers != diff_ids {
        return Err(FetchError::refused(
            ErrorKind::Damaged,
            format!("{} is damaged: its manifest has {layers} layers, its configuration {diff_ids}", shown(name)),
        ));
    }
    check_platform(&config, settings, name)?;
    // The unpacker computes sha256 only, which every image uses.
    if let Some(odd) = config.diff_ids.iter().find(|diff_id| diff_id.algorithm() != Algorithm::Sha256) {
        let algorithm = odd.algorithm().as_str();
        return Err(FetchError::refused(
            ErrorKind::Invalid,
            format!("{} names its layers by {algorithm}; only sha256 can be checked", shown(name)),
        ));
    }
    let plans = plan(&manifest, &config);
    Ok(ImageDocuments { id, bytes, manifest, config_bytes, plans })
}

/// The platform of an image in the store, if another one is requested. An image without a platform is for any.
pub(crate) fn unfit_platform(
    store: &Store,
    settings: &Config,
    image: &ImageRow,
) -> Result<Option<Platform>, FetchError> {
    let Some(wanted) = &settings.platform else { return Ok(None) };
    let bytes = store.blob(&image.config, source::MAX_DOCUMENT);
    let bytes = bytes.map_err(|source| FetchError::failed("cannot read the image configuration", source))?;
    let platform = bytes.and_then(|bytes| config::parse(&bytes).ok()).and_then(|config| config.platform());
    Ok(platform.filter(|platform| platform.fitness(wanted).is_none()))
}

/// Refuses an image that is not for the wanted platform.
fn check_platform(config: &ImageConfig, settings: &Config, name: &str) -> Result<(), FetchError> {
    match config.platform() {
        Some(platform) if platform.fitness(&settings.wanted_platform()).is_none() => {
            Err(FetchError::other_platform(name, &platform, settings))
        }
        _ => Ok(()),
    }
}

/// The chain ID of each layer (OCI image specification, config.md, "Layer ChainID").
fn plan(manifest: &Manifest, config: &ImageConfig) -> Vec<LayerPlan> {
    let mut plans: Vec<LayerPlan> = Vec::with_capacity(manifest.layers.len());
    for (blob, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
        let parent = plans.last().map(|plan| plan.chain.clone());
        let chain = match &parent {
            Some(parent) => source::digest_of(Algorithm::Sha256, format!("{parent} {diff_id}").as_bytes()),
            None => diff_id.clone(),
        };
        plans.push(LayerPlan { blob: blob.clone(), diff_id: diff_id.clone(), chain, parent });
    }
    plans
}
