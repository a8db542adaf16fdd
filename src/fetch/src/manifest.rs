//! Manifests and indexes (OCI image specification, manifest.md and image-index.md; Docker's schema 2 and manifest list
//! have the same shape), parsed with oci-spec's types within our limits, and the choice of the manifest for this host.

use gantry_model::id::shown;
use gantry_model::{Digest, ErrorKind, Kind};
use gantry_store::ImageFormat;
use oci_spec::image::{Descriptor as OciDescriptor, ImageIndex, ImageManifest, SCHEMA_VERSION};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use thiserror::Error;

use crate::config::MAX_LAYERS;
use crate::platform::Platform;
use crate::source::{Descriptor, MAX_DOCUMENT, media};

/// `application/vnd.oci.image.index.v1+json`
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// `application/vnd.oci.image.manifest.v1+json`
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// `application/vnd.oci.image.config.v1+json`
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// `application/vnd.docker.distribution.manifest.list.v2+json`
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// `application/vnd.docker.distribution.manifest.v2+json`
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// `application/vnd.docker.container.image.v1+json`
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";

/// The media types accepted in a request for a manifest.
pub const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// Maximum depth of nested indexes.
pub const MAX_DEPTH: usize = 3;

/// Maximum number of entries of an index; a larger one is not an image for many platforms but an attack.
const MAX_ENTRIES: usize = 1000;

/// A parsed document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// A choice of manifests, one per platform.
    Index(Vec<Descriptor>),
    /// The manifest of one image.
    Manifest(Manifest),
}

/// The parts of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The image configuration.
    pub config: Descriptor,
    /// The layers, bottom first; at most [`MAX_LAYERS`].
    pub layers: Vec<Descriptor>,
    /// The format of the manifest.
    pub format: ImageFormat,
}

/// Why a document could not be parsed (escaped): it is not JSON at all, or JSON of another shape.
pub(crate) fn json_problem(error: &serde_json::Error) -> String {
    let text = shown(&error.to_string());
    if error.is_syntax() || error.is_eof() { format!("not valid JSON: {text}") } else { text }
}

/// A document is not a manifest or index that gantry accepts.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// It is not JSON of the right shape.
    #[error("the manifest does not follow its specification: {0}")]
    Json(String),
    /// It has the parts of both kinds (CVE-2021-41190: two readers would see two images).
    #[error("the manifest is ambiguous: it has the parts of an index and of an image at once")]
    Ambiguous,
    /// Docker's schema 1.
    #[error("the image has a Docker schema 1 manifest, which cannot be verified; push it again with a current tool")]
    Schema1,
    /// The document names another media type than the one it came with.
    #[error("the manifest says it is {said}, but came as {came}")]
    MediaType {
        /// The type that the document names (escaped).
        said: String,
        /// The type that the source or the descriptor names (escaped).
        came: String,
    },
    /// It is not a container image.
    #[error("this is not a container image: {0}")]
    NotAnImage(String),
    /// A value is out of its range.
    #[error("the manifest is refused: {0}")]
    Value(String),
    /// More layers than [`MAX_LAYERS`].
    #[error("the image has {0} layers; gantry takes at most {MAX_LAYERS}, because they are mounted as one overlay")]
    TooManyLayers(usize),
    /// Indexes are nested too deeply.
    #[error("the image's index leads through more than {MAX_DEPTH} further indexes")]
    TooDeep,
    /// No image in the index runs on this host.
    #[error("the image has nothing for {want}; it has {}", if .has.is_empty() { "no platform at all".to_owned() } else { .has.join(", ") })]
    NoPlatform {
        /// The wanted platform.
        want: Platform,
        /// The available platforms (escaped, at most twenty).
        has: Vec<String>,
    },
}

impl Kind for ManifestError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Json(_) | Self::MediaType { .. } => ErrorKind::Damaged,
            Self::TooManyLayers(_) => ErrorKind::Exhausted,
            Self::NoPlatform { .. } => ErrorKind::NotFound,
            _ => ErrorKind::Invalid,
        }
    }
}

/// The members that distinguish manifests, indexes and Docker's schema 1.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DocumentShape {
    schema_version: u32,
    media_type: Option<String>,
    manifests: Option<IgnoredAny>,
    config: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
    fs_layers: Option<IgnoredAny>,
}

/// Parses a document that came with the media type `came` (from a descriptor or a header; empty where neither has one).
///
/// # Errors
/// [`ManifestError`]: not such a document, ambiguous, beyond a limit, or not of the type `came`.
pub fn parse(came: &str, bytes: &[u8]) -> Result<Parsed, ManifestError> {
    let shape: DocumentShape = read_json(bytes)?;
    if shape.fs_layers.is_some() || shape.schema_version == 1 || came.contains("distribution.manifest.v1+") {
        return Err(ManifestError::Schema1);
    }
    if shape.schema_version != SCHEMA_VERSION {
        return Err(ManifestError::Value(format!("schemaVersion {} is not {SCHEMA_VERSION}", shape.schema_version)));
    }
    let said = shape.media_type.as_deref().unwrap_or_default();
    check_media_type(said, came)?;
    let media_type = if said.is_empty() { came } else { said };
    match (shape.manifests, shape.config, shape.layers) {
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) => Err(ManifestError::Ambiguous),
        (Some(_), None, None) if !is_manifest(media_type) => check_index(&read_tolerantly(bytes)?).map(Parsed::Index),
        (None, Some(_), Some(_)) if !is_index(media_type) => {
            check_manifest(&read_tolerantly(bytes)?, media_type == DOCKER_MANIFEST).map(Parsed::Manifest)
        }
        (None, None, None) | (None, Some(_), None) | (None, None, Some(_)) => {
            Err(ManifestError::NotAnImage("it has neither manifests nor a configuration with layers".to_owned()))
        }
        _ => Err(ManifestError::MediaType { said: media(media_type), came: "the parts of the other kind".to_owned() }),
    }
}

/// Reads a document with oci-spec's types, which are stricter than the tools that write and read images: members that
/// gantry does not use are left out, and missing ones that it can do without are empty.
fn read_tolerantly<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ManifestError> {
    let mut document: Value = read_json(bytes)?;
    for member in ["annotations", "subject", "artifactType"] {
        document.as_object_mut().and_then(|document| document.remove(member));
    }
    let lists = ["manifests", "layers"];
    if let Some(config) = document.get_mut("config") {
        complete_descriptor(config);
    }
    for list in lists {
        document.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().for_each(complete_descriptor);
    }
    serde_json::from_value(document).map_err(|error| ManifestError::Json(json_problem(&error)))
}

fn complete_descriptor(descriptor: &mut Value) {
    let Some(descriptor) = descriptor.as_object_mut() else { return };
    for unused in ["urls", "data", "artifactType"] {
        descriptor.remove(unused);
    }
    descriptor.entry("mediaType").or_insert_with(|| Value::String(String::new()));
    if let Some(platform) = descriptor.get_mut("platform").and_then(Value::as_object_mut) {
        platform.remove("features");
        for member in ["os", "architecture"] {
            platform.entry(member).or_insert_with(|| Value::String(String::new()));
        }
    }
}

/// The error text is escaped: oci-spec quotes the values it rejects.
fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ManifestError> {
    serde_json::from_slice(bytes).map_err(|error| ManifestError::Json(json_problem(&error)))
}

fn check_descriptor(descriptor: &OciDescriptor) -> Result<Descriptor, ManifestError> {
    let digest = descriptor.digest().as_ref().parse::<Digest>().map_err(|e| ManifestError::Value(e.to_string()))?;
    Ok(Descriptor {
        media_type: descriptor.media_type().as_ref().to_owned(),
        digest,
        size: descriptor.size(),
        platform: descriptor.platform().as_ref().map(Platform::from),
        annotations: descriptor.annotations().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
    })
}

/// Whether a media type names an index.
#[must_use]
pub fn is_index(media_type: &str) -> bool {
    media_type == OCI_INDEX || media_type == DOCKER_LIST
}

/// Whether a media type names a manifest.
#[must_use]
pub fn is_manifest(media_type: &str) -> bool {
    media_type == OCI_MANIFEST || media_type == DOCKER_MANIFEST
}

/// A document that names its own type must come as that type; a source that names none of the four (a plain
/// web server says `application/json`) leaves it to the document.
fn check_media_type(said: &str, came: &str) -> Result<(), ManifestError> {
    let known = |text: &str| is_index(text) || is_manifest(text);
    if !said.is_empty() && !known(said) {
        return Err(ManifestError::NotAnImage(format!("its media type is {}", media(said))));
    }
    if !said.is_empty() && known(came) && said != came {
        return Err(ManifestError::MediaType { said: media(said), came: media(came) });
    }
    Ok(())
}

fn check_index(index: &ImageIndex) -> Result<Vec<Descriptor>, ManifestError> {
    let count = index.manifests().len();
    if count > MAX_ENTRIES {
        return Err(ManifestError::Value(format!("the index has {count} entries, more than {MAX_ENTRIES}")));
    }
    index.manifests().iter().map(check_descriptor).collect()
}

fn check_manifest(manifest: &ImageManifest, docker: bool) -> Result<Manifest, ManifestError> {
    if manifest.layers().len() > MAX_LAYERS {
        return Err(ManifestError::TooManyLayers(manifest.layers().len()));
    }
    let config = check_descriptor(manifest.config())?;
    if !matches!(config.media_type.as_str(), OCI_CONFIG | DOCKER_CONFIG | "application/octet-stream" | "") {
        return Err(ManifestError::NotAnImage(format!("its configuration is {}", media(&config.media_type))));
    }
    if config.size > MAX_DOCUMENT {
        return Err(ManifestError::Value(format!(
            "its configuration has {} bytes, more than {MAX_DOCUMENT}",
            config.size
        )));
    }
    let layers = manifest.layers().iter().map(check_descriptor).collect::<Result<Vec<_>, _>>()?;
    if let Some(layer) = layers.iter().find(|layer| !is_layer(&layer.media_type)) {
        return Err(ManifestError::NotAnImage(format!("one of its layers is {}", media(&layer.media_type))));
    }
    let docker = docker || config.media_type == DOCKER_CONFIG;
    let format = if docker { ImageFormat::Docker } else { ImageFormat::Oci };
    Ok(Manifest { config, layers, format })
}

/// The layer types of both specifications, "foreign" and "non-distributable" ones included: their content is requested
/// from the same source as every other (their URLs are ignored), and the first bytes determine the compression.
fn is_layer(media_type: &str) -> bool {
    matches!(
        media_type,
        "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd"
            | "application/vnd.docker.image.rootfs.foreign.diff.tar"
            | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
    )
}

/// Picks the entry of an index that runs on `host`: the best fitting platform; the first of equals. An entry
/// without a platform is taken only when the index has nothing that names one.
///
/// # Errors
/// [`ManifestError::NoPlatform`] with the available platforms.
pub fn choose<'a>(entries: &'a [Descriptor], host: &Platform) -> Result<&'a Descriptor, ManifestError> {
    let usable = |d: &&Descriptor| d.media_type.is_empty() || is_index(&d.media_type) || is_manifest(&d.media_type);
    let entries: Vec<&Descriptor> = entries.iter().filter(usable).collect();
    let mut best: Option<(u32, &Descriptor)> = None;
    for entry in &entries {
        let fitness = entry.platform.as_ref().and_then(|platform| platform.fitness(host));
        if let Some(fitness) = fitness
            && best.is_none_or(|(most, _)| fitness > most)
        {
            best = Some((fitness, entry));
        }
    }
    if let Some((_, entry)) = best {
        return Ok(entry);
    }
    if let Some(first) = entries.first()
        && entries.iter().all(|entry| entry.platform.is_none())
    {
        return Ok(first);
    }
    let mut has: Vec<String> = entries.iter().filter_map(|entry| Some(entry.platform.as_ref()?.to_string())).collect();
    has.sort();
    has.dedup();
    has.truncate(20);
    Err(ManifestError::NoPlatform { want: host.clone(), has })
}

/// A media type from a `Content-Type` header: without parameters, lower-cased.
pub(crate) fn bare_media_type(header: &str) -> String {
    let text = header.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if text.len() <= 255 { text } else { shown(&text) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    const ID: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn layer() -> String {
        format!(r#"{{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"{ID}","size":5}}"#)
    }

    fn config() -> String {
        format!(r#"{{"mediaType":"{OCI_CONFIG}","digest":"{ID}","size":5}}"#)
    }

    #[test]
    fn manifests_are_validated() {
        let (c, l) = (config(), layer());
        let many = vec![l.clone(); 129].join(",");
        let rows: [(&str, String, bool); 17] = [
            (OCI_MANIFEST, format!(r#"{{"schemaVersion":2,"config":{c},"layers":[{l}]}}"#), true),
            ("", format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{c},"layers":[]}}"#), true),
            ("application/json", format!(r#"{{"schemaVersion":2,"config":{c},"layers":[{l}]}}"#), true),
            (OCI_INDEX, r#"{"schemaVersion":2,"manifests":[]}"#.to_owned(), true),
            // Ambiguous, and lies about the kind.
            (OCI_INDEX, format!(r#"{{"schemaVersion":2,"manifests":[],"config":{c},"layers":[{l}]}}"#), false),
            (OCI_INDEX, format!(r#"{{"schemaVersion":2,"manifests":[],"layers":[{l}]}}"#), false),
            (OCI_INDEX, format!(r#"{{"schemaVersion":2,"config":{c},"layers":[{l}]}}"#), false),
            (OCI_MANIFEST, r#"{"schemaVersion":2,"manifests":[]}"#.to_owned(), false),
            (DOCKER_LIST, format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[]}}"#), false),
            // Schema 1, other artifacts, limits.
            ("", r#"{"schemaVersion":1,"fsLayers":[],"history":[]}"#.to_owned(), false),
            ("", r#"{"schemaVersion":3,"manifests":[]}"#.to_owned(), false),
            ("", format!(r#"{{"schemaVersion":2,"config":{l},"layers":[]}}"#), false),
            ("", format!(r#"{{"schemaVersion":2,"config":{c},"layers":[{c}]}}"#), false),
            ("", format!(r#"{{"schemaVersion":2,"config":{c},"layers":[{many}]}}"#), false),
            ("", format!(r#"{{"schemaVersion":2,"schemaVersion":2,"config":{c},"layers":[]}}"#), false),
            ("", format!(r#"{{"schemaVersion":2,"config":{c},"config":{c},"layers":[]}}"#), false),
            // Go writes a missing list as null.
            (OCI_INDEX, r#"{"schemaVersion":2,"manifests":[],"config":null,"annotations":null}"#.to_owned(), true),
        ];
        for (came, text, good) in rows {
            assert_eq!(parse(came, text.as_bytes()).is_ok(), good, "{came} {text:.300}");
        }
        assert!(parse("", "[".repeat(1_000_000).as_bytes()).is_err());
    }

    #[test]
    fn errors_escape_control_characters() {
        let text = config().replace(ID, r"sha256:\u001b[31m");
        let error = parse("", format!(r#"{{"schemaVersion":2,"config":{text},"layers":[]}}"#).as_bytes()).unwrap_err();
        assert!(!error.to_string().contains(char::is_control), "{error:?}");
    }

    #[test]
    fn the_best_platform_is_chosen() {
        let entry = |platform: Option<(&str, &str, Option<&str>)>, size| Descriptor {
            media_type: OCI_MANIFEST.to_owned(),
            digest: ID.parse().unwrap(),
            size,
            platform: platform.map(|(os, architecture, variant)| Platform {
                os: os.into(),
                architecture: architecture.into(),
                variant: variant.map(str::to_owned),
            }),
            annotations: BTreeMap::new(),
        };
        let host = Platform { os: "linux".into(), architecture: "amd64".into(), variant: Some("v3".into()) };
        let amd = |variant| Some(("linux", "amd64", variant));
        let arm = Some(("linux", "arm64", Some("v8")));
        for (entries, want) in [
            (vec![entry(arm, 1), entry(amd(None), 2)], Some(2)),
            (vec![entry(amd(None), 1), entry(amd(Some("v3")), 2), entry(amd(Some("v4")), 3)], Some(2)),
            (vec![entry(None, 1)], Some(1)),
            (vec![entry(None, 1), entry(arm, 2)], None),
            (vec![entry(arm, 1)], None),
            (vec![], None),
        ] {
            assert_eq!(choose(&entries, &host).ok().map(|d| d.size), want, "{entries:?}");
        }
        let error = choose(&[entry(arm, 1)], &host).unwrap_err().to_string();
        assert!(error.contains("linux/arm64/v8") && error.contains("linux/amd64/v3"), "{error}");
    }

    proptest! {
        #[test]
        fn parser_never_panics(came: String, bytes: Vec<u8>) {
            let _ = parse(&came, &bytes);
        }
    }
}
