//! What an image says of itself: its manifest and its configuration, decoded once.
//!
//! An image's id is the digest of its manifest, and the manifest has the digest of its configuration. So what was decoded
//! for an id is true for ever, and is kept, within bounds.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gantry_fetch::source::MAX_DOCUMENT;
use gantry_model::ImageId;
use gantry_model::query::ImageFilter;
use gantry_store::{ImageRow, Store};
use serde::Deserialize;

/// Most images kept.
const MOST_KEPT: usize = 512;
/// Most bytes kept of one image; what says more of itself is read again.
const MOST_OF_ONE: usize = 256 << 10;
/// Most bytes kept in all.
const MOST_BYTES: usize = 16 << 20;

/// An image, with what its manifest and configuration say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageView {
    /// Its row.
    pub row: ImageRow,
    /// The first of its names, without tag; empty when it has none.
    pub name: String,
    /// The tag of that name, or `latest`.
    pub version: String,
    /// Labels of the configuration, and `os`, `arch` and `version`.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
    /// The manifest as it came; empty when it is lost.
    pub manifest: Vec<u8>,
}

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

impl ImageView {
    pub(crate) fn new(row: ImageRow, said: &Said) -> Self {
        let (name, version) = row.names.first().map_or(("", "latest"), |name| name_and_version(name));
        let (name, version) = (name.to_owned(), version.to_owned());
        let mut labels = said.labels.clone();
        let own = [("os", &said.os), ("arch", &said.arch), ("version", &version)];
        for (key, value) in own.into_iter().filter(|(_, value)| !value.is_empty()) {
            labels.entry(key.to_owned()).or_insert_with(|| value.clone());
        }
        let (annotations, manifest) = (said.annotations.clone(), said.manifest.clone());
        Self { row, name, version, labels, annotations, manifest }
    }

    /// Whether the part of the filter holds which the store leaves to us: names, labels, annotations.
    pub(crate) fn holds(&self, filter: &ImageFilter) -> bool {
        let ImageFilter {
            // Answered by the store.
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
        let has = |pairs: &BTreeMap<String, String>, wanted: &[(String, String)]| {
            wanted.iter().all(|(key, value)| pairs.get(key) == Some(value))
        };
        self.named(prefixes, |name, wanted| name.starts_with(wanted))
            && self.named(base_names, |name, wanted| name.rsplit('/').next() == Some(wanted))
            && self.named(keywords, |name, wanted| name.contains(wanted))
            && self.named(full_names, |name, wanted| name == wanted)
            && has(&self.labels, labels)
            && has(&self.annotations, annotations)
    }

    /// Whether one of its names fits one of the wanted texts; nothing wanted fits.
    fn named(&self, wanted: &[String], fits: impl Fn(&str, &str) -> bool) -> bool {
        let fits_any = |name: &String| wanted.iter().any(|wanted| fits(name_and_version(name).0, wanted));
        wanted.is_empty() || self.row.names.iter().any(fits_any)
    }
}

/// What was decoded. Where a part is lost or damaged, what it would say is missing here.
#[derive(Debug, Default)]
pub(crate) struct Said {
    os: String,
    arch: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    manifest: Vec<u8>,
}

impl Said {
    /// About how much memory it takes.
    fn size(&self) -> usize {
        let pairs = self.labels.iter().chain(&self.annotations);
        self.manifest.len() + pairs.map(|(key, value)| key.len() + value.len() + 64).sum::<usize>()
    }
}

/// What is kept of images that were decoded.
#[derive(Debug, Default)]
pub(crate) struct Kept(RefCell<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    said: HashMap<ImageId, Arc<Said>>,
    bytes: usize,
}

impl Kept {
    /// What this image says of itself. An image of which something is lost is looked at again the next time: it may have
    /// been fetched once more by then.
    pub(crate) fn said(&self, store: &Store, row: &ImageRow) -> Arc<Said> {
        if let Some(said) = self.0.borrow().said.get(&row.id) {
            return said.clone();
        }
        let (said, whole) = decoded(store, row);
        let said = Arc::new(said);
        if whole && said.size() <= MOST_OF_ONE {
            self.0.borrow_mut().keep(&row.id, said.clone());
        }
        said
    }
}

impl Shelf {
    /// Makes room by dropping any others: whoever lists more images than are kept asks for all of them in turn, and the
    /// one not used for longest would be the very next.
    fn keep(&mut self, id: &ImageId, said: Arc<Said>) {
        while self.said.len() >= MOST_KEPT || self.bytes + said.size() > MOST_BYTES {
            let Some(other) = self.said.keys().next().cloned() else { break };
            self.bytes -= self.said.remove(&other).map_or(0, |said| said.size());
        }
        self.bytes += said.size();
        self.said.insert(id.clone(), said);
    }
}

/// Reads both documents; whether both were there and made sense.
fn decoded(store: &Store, row: &ImageRow) -> (Said, bool) {
    let mut said = Said::default();
    // Damaged, too large, unreadable: all the same here, for the image must be shown. `doctor` tells what is wrong.
    let manifest = store.blob(&row.id, MAX_DOCUMENT).ok().flatten().filter(|bytes| is_json(bytes));
    let config = store.blob(&row.config, MAX_DOCUMENT).ok().flatten();
    let config = config.and_then(|bytes| gantry_fetch::config::parse(&bytes).ok());
    let whole = manifest.is_some() && config.is_some();
    if let Some(bytes) = manifest {
        said.annotations = annotations(&bytes);
        said.manifest = bytes;
    }
    if let Some(config) = config {
        said.os = config.os;
        said.arch = config.architecture;
        said.labels = config.labels;
    }
    (said, whole)
}

/// Whether a text is JSON, whatever it says.
pub(crate) fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

/// The annotations of a manifest; what is no text is left out.
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
    fn names_and_versions() {
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

    #[test]
    fn little_is_kept() {
        let said = |bytes| Arc::new(Said { manifest: vec![0; bytes], ..Said::default() });
        let id = |n: usize| format!("sha256:{n:064x}").parse::<ImageId>().unwrap();
        let mut shelf = Shelf::default();
        (0..MOST_KEPT * 2).for_each(|n| shelf.keep(&id(n), said(1)));
        assert_eq!((shelf.said.len(), shelf.bytes), (MOST_KEPT, MOST_KEPT));
        (0..MOST_KEPT * 2).for_each(|n| shelf.keep(&id(n + 10_000), said(MOST_OF_ONE)));
        assert!(shelf.bytes <= MOST_BYTES && shelf.said.len() >= MOST_BYTES / MOST_OF_ONE, "{}", shelf.bytes);
        assert_eq!(shelf.bytes, shelf.said.values().map(|said| said.size()).sum::<usize>());
    }

    #[test]
    fn annotations_that_are_no_texts_are_left_out() {
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
