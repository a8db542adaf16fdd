//! Archives of `docker save`: `manifest.json`, a configuration, and layers as tar files (moby image/spec, "Combined
//! Image JSON + Filesystem Changeset Format").
//!
//! Such an archive has no image manifest, whose digest is the image id. So an OCI manifest of the archive's
//! configuration and layers is generated. The same archive always gives the same manifest, and so the same image id. An
//! uncompressed layer has its `diff_id` as digest; the reader verifies it as any other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use gantry_model::Digest;
use gantry_model::id::{Algorithm, IdError, shown};
use gantry_store::ImageFormat;
use serde::Deserialize;
use serde_json::json;

use super::Archive;
use super::files::Files;
use crate::config::MAX_LAYERS;
use crate::local::canonical;
use crate::manifest::{DOCKER_CONFIG, OCI_MANIFEST};
use crate::source::{Descriptor, Hasher, MAX_DOCUMENT, RootDocument, Source, SourceError, digest_of};

/// Maximum number of names in an error message.
const MAX_SHOWN: usize = 10;

/// An image as listed in `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
    /// The names in the store from which gantry saved the image, if one of them has no registry.
    #[serde(default)]
    gantry_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// An image with its generated manifest.
pub(super) struct DockerArchive {
    archive: Arc<Archive>,
    manifest: Vec<u8>,
    config: (Digest, Vec<u8>),
    /// Path of each layer in the archive.
    layers: BTreeMap<Digest, String>,
    names: Vec<String>,
    /// Whether a name without a registry is one of Docker Hub's.
    omits_docker_hub: bool,
}

/// Reads the image named `tag`, or the only one.
pub(super) fn image(archive: Archive, tag: Option<&str>) -> Result<DockerArchive, SourceError> {
    let listed = choose(read_list(&archive)?, tag, &archive.place())?;
    read(&Arc::new(archive), listed)
}

/// All images, in the order of the list.
pub(super) fn images(
    archive: Archive,
) -> Result<impl Iterator<Item = Result<Box<dyn Source + Send>, SourceError>>, SourceError> {
    let list = read_list(&archive)?;
    let archive = Arc::new(archive);
    Ok(list.into_iter().map(move |listed| Ok(Box::new(read(&archive, listed)?) as Box<_>)))
}

/// Reads `manifest.json`, which lists at least one image.
fn read_list(archive: &Archive) -> Result<Vec<Listed>, SourceError> {
    let list = archive.small("manifest.json", MAX_DOCUMENT)?;
    let list: Vec<Listed> = serde_json::from_slice(&list).map_err(|e| invalid(archive, "manifest.json", e))?;
    match list.is_empty() {
        true => Err(SourceError::NotFound { what: "an image".to_owned(), place: archive.place() }),
        false => Ok(merged(list)),
    }
}

/// The list with each image once, which then has the names of all of its entries.
fn merged(list: Vec<Listed>) -> Vec<Listed> {
    let mut images: Vec<Listed> = Vec::new();
    let mut known = BTreeMap::new();
    for listed in list {
        // Names that gantry wrote are complete; others are completed with Docker Hub.
        let key = (listed.config.clone(), listed.layers.clone(), listed.gantry_names.is_some());
        let at = *known.entry(key).or_insert(images.len());
        match images.get_mut(at) {
            Some(image) => {
                image.repo_tags = joined(image.repo_tags.take(), listed.repo_tags);
                image.gantry_names = joined(image.gantry_names.take(), listed.gantry_names);
            }
            None => images.push(listed),
        }
    }
    for image in &mut images {
        for names in [&mut image.repo_tags, &mut image.gantry_names].into_iter().flatten() {
            let mut seen = BTreeSet::new();
            names.retain(|name| seen.insert(name.clone()));
        }
    }
    images
}

fn joined(one: Option<Vec<String>>, other: Option<Vec<String>>) -> Option<Vec<String>> {
    match (one, other) {
        (Some(mut one), Some(other)) => {
            one.extend(other);
            Some(one)
        }
        (one, other) => one.or(other),
    }
}

/// The error for a malformed file of the archive.
fn invalid(archive: &Archive, what: &str, why: impl ToString) -> SourceError {
    SourceError::Invalid { what: format!("'{}' in {}", shown(what), archive.place()), why: why.to_string() }
}

/// Reads a listed image.
fn read(archive: &Arc<Archive>, listed: Listed) -> Result<DockerArchive, SourceError> {
    let config = archive.small(&listed.config, MAX_DOCUMENT)?;
    let parsed: Config = serde_json::from_slice(&config).map_err(|e| invalid(archive, &listed.config, e))?;
    let paths = listed.layers.unwrap_or_default();
    let diff_ids = parsed.rootfs.diff_ids;
    if paths.len() != diff_ids.len() {
        let why = format!("it lists {} layers, the configuration {}", paths.len(), diff_ids.len());
        return Err(invalid(archive, "manifest.json", why));
    }
    if paths.len() > MAX_LAYERS {
        return Err(SourceError::TooLarge {
            what: format!("the number of layers in {}", archive.place()),
            most: MAX_LAYERS as u64,
        });
    }
    let mut layers = BTreeMap::new();
    let mut descriptors = Vec::new();
    for (path, diff_id) in paths.into_iter().zip(diff_ids) {
        let diff_id: Digest = diff_id.parse().map_err(|e: IdError| invalid(archive, &listed.config, e))?;
        let (media_type, digest, size) = describe(archive, &path, diff_id)?;
        descriptors.push(json!({ "mediaType": media_type, "digest": digest.to_string(), "size": size }));
        layers.insert(digest, path);
    }
    let digest = digest_of(Algorithm::Sha256, &config);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": { "mediaType": DOCKER_CONFIG, "digest": digest.to_string(), "size": config.len() },
        "layers": descriptors,
    });
    let omits_docker_hub = listed.gantry_names.is_none();
    let names = listed.gantry_names.or(listed.repo_tags).unwrap_or_default();
    Ok(DockerArchive {
        archive: Arc::clone(archive),
        manifest: manifest.to_string().into_bytes(),
        config: (digest, config),
        layers,
        names,
        omits_docker_hub,
    })
}

/// The image of this name, or of this tag if no name is so; without either, the only one.
fn choose(list: Vec<Listed>, tag: Option<&str>, place: &str) -> Result<Listed, SourceError> {
    let tags = |listed: &Listed| listed.repo_tags.clone().unwrap_or_default();
    let mut names: Vec<String> = list.iter().flat_map(tags).map(|name| shown(&name)).collect();
    names.truncate(MAX_SHOWN);
    let found = match tag {
        None => list,
        Some(tag) => {
            // docker and podman complete both: `app` is Docker Hub's `library/app:latest`.
            let full = canonical(tag, "", true);
            let is_same = |name: &String| name == tag || (full.is_some() && canonical(name, "", true) == full);
            let has_tag = |name: &String| name.rsplit_once(':').is_some_and(|(_, of_name)| of_name == tag);
            let (named, others): (Vec<_>, Vec<_>) = list.into_iter().partition(|one| tags(one).iter().any(is_same));
            let tagged = || others.into_iter().filter(|one| tags(one).iter().any(has_tag)).collect();
            if named.is_empty() { tagged() } else { named }
        }
    };
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => Err(SourceError::Ambiguous { place: place.to_owned(), names, scheme: "docker-archive" }),
        // The list is not empty, so an image was named.
        (None, _) => {
            let what = format!("image '{}'", shown(tag.unwrap_or_default()));
            Err(SourceError::NotFound { what, place: place.to_owned() })
        }
    }
}

/// Media type, digest and length of a layer's file.
fn describe(archive: &Archive, path: &str, diff_id: Digest) -> Result<(&'static str, Digest, u64), SourceError> {
    let (size, mut file) = archive.open(path, 0)?;
    let failed = |source| SourceError::Io { what: format!("'{}' in {}", shown(path), archive.place()), source };
    let mut head = Vec::new();
    (&mut file).take(4).read_to_end(&mut head).map_err(failed)?;
    let media_type = match head.as_slice() {
        [0x1f, 0x8b, ..] => "application/vnd.oci.image.layer.v1.tar+gzip",
        [0x28, 0xb5, 0x2f, 0xfd] => "application/vnd.oci.image.layer.v1.tar+zstd",
        _ => return Ok(("application/vnd.oci.image.layer.v1.tar", diff_id, size)),
    };
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(&head);
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((media_type, hasher.finish(), size)),
            Ok(n) => hasher.update(&buffer[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

impl Source for DockerArchive {
    fn root(&self) -> Result<RootDocument, SourceError> {
        let bytes = self.manifest.clone();
        let digest = digest_of(Algorithm::Sha256, &bytes);
        Ok(RootDocument { media_type: OCI_MANIFEST.to_owned(), bytes, digest })
    }

    fn document(&self, d: &Descriptor) -> Result<Vec<u8>, SourceError> {
        let (digest, config) = &self.config;
        if d.digest == *digest { Ok(config.clone()) } else { Err(self.archive.missing(&d.digest.to_string())) }
    }

    fn open(&self, d: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        let path = self.layers.get(&d.digest).ok_or_else(|| self.archive.missing(&d.digest.to_string()))?;
        Ok(self.archive.open(path, offset)?.1)
    }

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn omits_docker_hub(&self) -> bool {
        self.omits_docker_hub
    }

    fn format(&self) -> Option<ImageFormat> {
        Some(ImageFormat::Docker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(config: &str, tags: &[&str]) -> Listed {
        let tags = tags.iter().map(|&tag| tag.to_owned()).collect();
        Listed { config: config.to_owned(), repo_tags: Some(tags), layers: None, gantry_names: None }
    }

    #[test]
    fn entries_of_one_image_are_merged() {
        let list = vec![listed("a", &["x:1", "x:2"]), listed("b", &["y:1"]), listed("a", &["x:2", "x:3"])];
        let images: Vec<_> = merged(list).into_iter().map(|image| (image.config, image.repo_tags.unwrap())).collect();
        let want = [("a", vec!["x:1", "x:2", "x:3"]), ("b", vec!["y:1"])];
        assert_eq!(images.len(), 2);
        for ((config, tags), want) in images.iter().zip(&want) {
            assert_eq!((config.as_str(), tags.len(), tags.iter().eq(&want.1)), (want.0, want.1.len(), true));
        }
    }

    #[test]
    fn names_choose_an_image() {
        let list = || vec![listed("a", &["app:latest", "app:2"]), listed("b", &["reg.example/app:3", "old:other"])];
        let list = || list().into_iter().chain([listed("c", &["other:latest"])]).collect::<Vec<_>>();
        for (tag, want) in [
            ("app", Some("a")),
            ("app:2", Some("a")),
            ("docker.io/library/app:latest", Some("a")),
            ("library/app", Some("a")),
            ("2", Some("a")),
            ("reg.example/app:3", Some("b")),
            ("other", Some("c")),
            ("latest", None),
            ("app:3", None),
            ("nothing", None),
        ] {
            let chosen = choose(list(), Some(tag), "x.tar").ok().map(|image| image.config);
            assert_eq!(chosen.as_deref(), want, "{tag}");
        }
        assert!(choose(list(), None, "x.tar").is_err());
    }
}
