//! The manifest and the configuration of an image, decoded once.
//!
//! An image's id is the digest of its manifest, and the manifest has the digest of its configuration. So the decoded
//! documents of an id stay valid, and are cached within bounds.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gantry_fetch::config::ImageConfig;
use gantry_fetch::source::MAX_DOCUMENT;
use gantry_model::query::ImageFilter;
use gantry_model::{ImageId, ImageRef};
use gantry_store::{ImageFormat, ImageRow, Store};
use serde::Deserialize;

use crate::manifest::appc::Secrets;
use crate::manifest::appc::write;

/// The most images in the cache.
const MAX_CACHED_IMAGES: usize = 512;
/// The largest image documents in the cache, in bytes; larger ones are read again.
const MAX_CACHED_SIZE: usize = 256 << 10;
/// The size of the cache, in bytes.
const MAX_CACHE: usize = 16 << 20;

/// An image with its manifest and configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageView {
    /// Its row.
    pub row: ImageRow,
    /// The first of its names, without tag; empty when it has none.
    pub name: String,
    /// The tag of that name, or `latest`.
    pub version: String,
    /// The image's own labels (`version`, and `os` and `arch` where known) and those of its configuration, which cannot
    /// replace the image's own.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
    /// The manifest as fetched; empty when it is lost.
    pub manifest: Vec<u8>,
    /// The configuration, unless it is lost.
    pub config: Option<Arc<ImageConfig>>,
    /// The format of the manifest; the format in which the image was fetched where the manifest has no media type.
    pub format: ImageFormat,
}

/// Labels that describe the image itself. They hide those of the same names in the configuration (`LABEL version=…`).
const OWN_LABELS: [&str; 4] = ["name", "version", "os", "arch"];

/// A name, or a reference to an image, without tag and digest; and the tag (`latest` where there is none).
#[must_use]
pub fn name_and_version(name: &str) -> (&str, &str) {
    if let Some((repository, _digest)) = name.split_once('@') {
        return name_and_version(repository);
    }
    // A colon before the last slash belongs to a port.
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    match name.get(last..).and_then(|last| last.rfind(':')) {
        Some(colon) => (&name[..last + colon], &name[last + colon + 1..]),
        None => (name, "latest"),
    }
}

/// The name of an app's image as recorded for the life of the pod: complete, with its tag, if the image has a name now;
/// else its id. The pod keeps it when the name moves to another image.
#[must_use]
pub(crate) fn recorded_name(asked: Option<&str>, image: &ImageRow) -> String {
    let ends_with = |tail: &str| {
        let fits = |name: &&String| name.strip_suffix(tail).is_some_and(|head| head.is_empty() || head.ends_with('/'));
        image.names.iter().find(fits).cloned()
    };
    let named = match asked.unwrap_or_default().parse() {
        Ok(ImageRef::Registry(name)) => Some(name.to_string()),
        Ok(ImageRef::Short(name)) if name.digest.is_none() => {
            ends_with(&format!("{}:{}", name.repository, name.tag.as_deref().unwrap_or("latest")))
        }
        // An id or a path: the first name is used.
        _ => None,
    };
    named.or_else(|| image.names.first().cloned()).unwrap_or_else(|| image.id.to_string())
}

impl ImageView {
    pub(crate) fn new(row: ImageRow, documents: &ImageDocuments) -> Self {
        let (name, version) = row.names.first().map_or(("", "latest"), |name| name_and_version(name));
        let (name, version) = (name.to_owned(), version.to_owned());
        let config = documents.config.as_deref();
        let mut labels = config.map(|config| config.labels.clone()).unwrap_or_default();
        labels.retain(|key, _| !OWN_LABELS.contains(&key.as_str()));
        let (os, arch) = config.map_or(("", ""), |config| (&config.os, &config.architecture));
        for (key, value) in [("os", os), ("arch", arch), ("version", &version)] {
            if !value.is_empty() {
                labels.insert(key.to_owned(), value.to_owned());
            }
        }
        let (annotations, manifest) = (documents.annotations.clone(), documents.manifest.clone());
        let format = documents.format.unwrap_or(row.format);
        Self { row, name, version, labels, annotations, manifest, config: documents.config.clone(), format }
    }

    /// The manifest in appc's form (JSON), made from this one and the configuration.
    #[must_use]
    pub fn appc_manifest(&self, secrets: Secrets) -> Vec<u8> {
        serde_json::to_vec(&write::image(self, secrets)).unwrap_or_default()
    }

    /// Whether the image matches the part of the filter that the store does not apply: names, labels, annotations.
    pub(crate) fn holds(&self, filter: &ImageFilter) -> bool {
        let ImageFilter {
            // Applied by the store.
            ids: _,
            never: _,
            imported_after: _,
            imported_before: _,
            prefixes,
            base_names,
            keywords,
            full_names,
            labels,
            annotations,
        } = filter;
        let has = |pairs: &BTreeMap<String, String>, (key, value): &(String, String)| pairs.get(key) == Some(value);
        let (versions, others): (Vec<_>, Vec<_>) = labels.iter().partition(|(key, _)| key == "version");
        // One name must do for all conditions on names, its tag among them: `{full_names: [a], labels: [version=2]}`
        // matches a:2, but not an image that is a:1 and b:2.
        let fits = |name: Option<&str>| {
            let (name, version) = name.map_or((None, "latest"), |name| {
                let (name, version) = name_and_version(name);
                (Some(name), version)
            });
            let any = |wanted: &[String], fits: fn(&str, &str) -> bool| {
                wanted.is_empty() || name.is_some_and(|name| wanted.iter().any(|wanted| fits(name, wanted)))
            };
            any(prefixes, |name, wanted| name.starts_with(wanted))
                && any(base_names, |name, wanted| name.rsplit('/').next() == Some(wanted))
                && any(keywords, |name, wanted| name.contains(wanted))
                && any(full_names, |name, wanted| name == wanted)
                && versions.iter().all(|(_, wanted)| wanted == version)
        };
        let names = &self.row.names;
        (if names.is_empty() { fits(None) } else { names.iter().any(|name| fits(Some(name))) })
            && others.into_iter().all(|label| has(&self.labels, label))
            && annotations.iter().all(|pair| has(&self.annotations, pair))
    }
}

/// The decoded documents. Fields from a lost or damaged document are empty.
#[derive(Debug, Default)]
pub(crate) struct ImageDocuments {
    config: Option<Arc<ImageConfig>>,
    /// The approximate size in memory.
    config_size: usize,
    annotations: BTreeMap<String, String>,
    manifest: Vec<u8>,
    format: Option<ImageFormat>,
}

impl ImageDocuments {
    /// The approximate size in memory.
    fn size(&self) -> usize {
        let pairs = self.annotations.iter();
        self.manifest.len() + self.config_size + pairs.map(|(key, value)| key.len() + value.len() + 64).sum::<usize>()
    }
}

/// A cache of decoded images.
#[derive(Debug, Default)]
pub(crate) struct ImageCache(RefCell<CacheEntries>);

#[derive(Debug, Default)]
struct CacheEntries {
    documents: HashMap<ImageId, Arc<ImageDocuments>>,
    bytes: usize,
}

impl ImageCache {
    /// The decoded documents of an image. An incomplete image is not cached: it may have been fetched again the next
    /// time.
    pub(crate) fn documents(&self, store: &Store, row: &ImageRow) -> Arc<ImageDocuments> {
        if let Some(documents) = self.0.borrow().documents.get(&row.id) {
            return documents.clone();
        }
        let (documents, whole) = decoded(store, row);
        let documents = Arc::new(documents);
        if whole && documents.size() <= MAX_CACHED_SIZE {
            self.0.borrow_mut().insert(&row.id, documents.clone());
        }
        documents
    }

    /// Whether the documents of an image are in the cache.
    pub(crate) fn contains(&self, id: &ImageId) -> bool {
        self.0.borrow().documents.contains_key(id)
    }

    /// The configuration of an image in the store, if it is available.
    pub(crate) fn config(&self, store: &Store, id: &ImageId) -> Option<Arc<ImageConfig>> {
        if let Some(documents) = self.0.borrow().documents.get(id) {
            return documents.config.clone();
        }
        self.documents(store, &store.image(id).ok().flatten()?).config.clone()
    }
}

impl CacheEntries {
    /// Evicts arbitrary entries: a list of more images than fit reads all of them in turn, and the least recently used
    /// one would be needed next.
    fn insert(&mut self, id: &ImageId, documents: Arc<ImageDocuments>) {
        while self.documents.len() >= MAX_CACHED_IMAGES || self.bytes + documents.size() > MAX_CACHE {
            let Some(other) = self.documents.keys().next().cloned() else { break };
            self.bytes -= self.documents.remove(&other).map_or(0, |documents| documents.size());
        }
        self.bytes += documents.size();
        self.documents.insert(id.clone(), documents);
    }
}

/// Reads both documents; returns whether both exist and are valid.
fn decoded(store: &Store, row: &ImageRow) -> (ImageDocuments, bool) {
    let mut documents = ImageDocuments::default();
    // Damaged, too large, unreadable: the image is shown nevertheless. `doctor` reports the cause.
    let manifest = store.blob(&row.id, MAX_DOCUMENT).ok().flatten().filter(|bytes| is_json(bytes));
    if let Some(bytes) = store.blob(&row.config, MAX_DOCUMENT).ok().flatten() {
        // Texts and lists of texts, each of which costs more in memory than in the document.
        documents.config_size = 2 * bytes.len();
        documents.config = gantry_fetch::config::parse(&bytes).ok().map(Arc::new);
    }
    let whole = manifest.is_some() && documents.config.is_some();
    if let Some(bytes) = manifest {
        documents.annotations = annotations(&bytes);
        documents.format = format(&bytes);
        documents.manifest = bytes;
    }
    (documents, whole)
}

/// Whether a text is JSON, of any content.
fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

/// The format of a manifest by its media type; none if it has no media type.
fn format(manifest: &[u8]) -> Option<ImageFormat> {
    #[derive(Deserialize)]
    struct Manifest {
        #[serde(rename = "mediaType")]
        media_type: String,
    }
    let Manifest { media_type } = serde_json::from_slice(manifest).ok()?;
    match media_type {
        _ if media_type.starts_with("application/vnd.oci.image.") => Some(ImageFormat::Oci),
        _ if media_type.starts_with("application/vnd.docker.distribution.") => Some(ImageFormat::Docker),
        _ => None,
    }
}

/// The annotations of a manifest, except those whose values are not strings.
fn annotations(manifest: &[u8]) -> BTreeMap<String, String> {
    #[derive(Deserialize)]
    struct Manifest {
        #[serde(default)]
        annotations: Option<BTreeMap<String, serde_json::Value>>,
    }
    let parsed = serde_json::from_slice::<Manifest>(manifest).ok();
    let all = parsed.and_then(|manifest| manifest.annotations).unwrap_or_default();
    let text = |(key, value): (String, serde_json::Value)| value.as_str().map(|value| (key, value.to_owned()));
    all.into_iter().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_split_into_name_and_version() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let rows = [
            ("docker.io/library/a:1", "docker.io/library/a", "1"),
            ("localhost:5000/a", "localhost:5000/a", "latest"),
            ("localhost:5000/a:v2", "localhost:5000/a", "v2"),
            ("a:1", "a", "1"),
            ("a", "a", "latest"),
            ("", "", "latest"),
            (&format!("r.example:1/a@{digest}"), "r.example:1/a", "latest"),
            (&format!("r.example:1/a:2@{digest}"), "r.example:1/a", "2"),
        ];
        for (text, name, version) in rows {
            assert_eq!(name_and_version(text), (name, version), "{text}");
        }
    }

    fn row(names: &[&str]) -> ImageRow {
        ImageRow {
            id: format!("sha256:{}", "ab".repeat(32)).parse().unwrap(),
            config: format!("sha256:{}", "cd".repeat(32)).parse().unwrap(),
            format: ImageFormat::Docker,
            layers: Vec::new(),
            size: 0,
            names: names.iter().map(|&name| name.to_owned()).collect(),
            imported: gantry_model::Timestamp(0),
            last_used: gantry_model::Timestamp(0),
        }
    }

    #[test]
    fn recorded_name_prefers_the_requested_name() {
        let id = row(&[]).id.to_string();
        let two = ["r.example/a:1", "r.example/b:2"];
        let rows: [(&str, &[&str], &str); 9] = [
            ("r.example/b:2", &two, "r.example/b:2"),
            ("docker://r.example/b:2", &two, "r.example/b:2"),
            ("b:2", &two, "r.example/b:2"),
            ("xb:2", &["r.example/a:1", "r.example/xxb:2"], "r.example/a:1"),
            (&id, &two, "r.example/a:1"),
            (&id[7..20], &two, "r.example/a:1"),
            ("oci:/dir", &two, "r.example/a:1"),
            (&id, &[], &id),
            ("a", &["r.example/a:latest"], "r.example/a:latest"),
        ];
        for (asked, names, want) in rows {
            assert_eq!(recorded_name(Some(asked), &row(names)), want, "{asked}");
        }
    }

    #[test]
    fn filters_match_each_name_with_its_tag() {
        let labels = [("version", "9"), ("os", "plan9"), ("name", "x"), ("kind", "k")];
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let config = ImageConfig { os: "linux".into(), labels, ..ImageConfig::default() };
        let documents =
            ImageDocuments { config: Some(config.into()), format: Some(ImageFormat::Oci), ..ImageDocuments::default() };
        let view = ImageView::new(row(&["r/a:1", "r/b:2"]), &documents);
        let shown: Vec<_> = view.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!((shown.join(" ").as_str(), view.format), ("kind=k os=linux version=1", ImageFormat::Oci));
        let filter = |name: &str, version: &str| ImageFilter {
            keywords: if name.is_empty() { Vec::new() } else { vec![name.to_owned()] },
            labels: vec![("version".to_owned(), version.to_owned()), ("kind".to_owned(), "k".to_owned())],
            ..ImageFilter::default()
        };
        let rows = [("a", "1", true), ("b", "2", true), ("a", "2", false), ("b", "1", false), ("", "2", true)];
        for (name, version, want) in rows.into_iter().chain([("", "9", false), ("r/", "2", true)]) {
            assert_eq!(view.holds(&filter(name, version)), want, "{name} {version}");
        }
        let nameless = ImageView::new(row(&[]), &documents);
        assert!(nameless.holds(&filter("", "latest")) && !nameless.holds(&filter("a", "latest")));
    }

    #[test]
    fn format_follows_media_type() {
        let rows = [
            ("application/vnd.oci.image.manifest.v1+json", Some(ImageFormat::Oci)),
            ("application/vnd.docker.distribution.manifest.v2+json", Some(ImageFormat::Docker)),
            ("text/plain", None),
        ];
        for (media_type, want) in rows {
            assert_eq!(format(format!("{{\"mediaType\":\"{media_type}\"}}").as_bytes()), want);
        }
        assert_eq!(format(b"{}"), None);
    }

    #[test]
    fn the_cache_is_bounded() {
        let documents = |bytes| Arc::new(ImageDocuments { manifest: vec![0; bytes], ..ImageDocuments::default() });
        let id = |n: usize| format!("sha256:{n:064x}").parse::<ImageId>().unwrap();
        let mut entries = CacheEntries::default();
        (0..MAX_CACHED_IMAGES * 2).for_each(|n| entries.insert(&id(n), documents(1)));
        assert_eq!((entries.documents.len(), entries.bytes), (MAX_CACHED_IMAGES, MAX_CACHED_IMAGES));
        (0..MAX_CACHED_IMAGES * 2).for_each(|n| entries.insert(&id(n + 10_000), documents(MAX_CACHED_SIZE)));
        assert!(
            entries.bytes <= MAX_CACHE && entries.documents.len() >= MAX_CACHE / MAX_CACHED_SIZE,
            "{}",
            entries.bytes
        );
        assert_eq!(entries.bytes, entries.documents.values().map(|documents| documents.size()).sum::<usize>());
    }

    #[test]
    fn non_string_annotations_are_skipped() {
        let rows = [
            (r#"{"annotations":{"a":"b","n":1,"l":[]}}"#, vec![("a", "b")]),
            (r#"{"annotations":null}"#, vec![]),
            (r#"{"annotations":[1]}"#, vec![]),
            ("{}", vec![]),
            ("[]", vec![]),
        ];
        for (text, want) in rows {
            let want: BTreeMap<String, String> = want.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
            assert_eq!(annotations(text.as_bytes()), want, "{text}");
        }
    }
}
