//! Local images: archives, layout directories and standard input, and their names in the store.

use std::io::Read;
use std::path::{Path, PathBuf};

use gantry_model::{ErrorKind, ImageRef};
use gantry_store::Store;

use crate::archive::{self, Form};
use crate::error::FetchError;
use crate::import::{NameOrigin, Naming};
use crate::source::Source;
use crate::{Caps, layout};

/// The error for a missing standard input.
const NO_STDIN: &str = "the image is to be read from standard input, which this call has not got";
/// The name of images from standard input that have none.
const STDIN_STEM: &str = "stdin";

/// A local source, opened.
pub(crate) struct Local {
    pub(crate) source: Box<dyn Source + Send>,
    pub(crate) naming: Naming,
}

/// An archive or layout of which all images are imported.
pub enum LocalImages<'a> {
    /// An archive, or the directory of an OCI layout.
    Path(&'a Path),
    /// The stream of an archive.
    Stream(&'a mut dyn Read),
}

/// Opens the source of a local reference.
pub(crate) fn open(
    store: &Store,
    reference: &ImageRef,
    stdin: Option<&mut dyn Read>,
    caps: &Caps,
) -> Result<Local, FetchError> {
    let name = reference.to_string();
    let failed = FetchError::source(&name);
    let tmp = store.layout().tmp_dir();
    let reference = &find_path(reference);
    let archived = |path: &Path, form, tag: &Option<String>| archive::open(path, form, tag.as_deref(), &tmp, caps);
    let (source, stem): (Result<Box<dyn Source + Send>, _>, String) = match reference {
        ImageRef::Layout(path, tag) => (layout::open(path, tag.as_deref()), stem(path)),
        ImageRef::OciArchive(path, tag) => (archived(path, Form::Oci, tag), stem(path)),
        ImageRef::DockerArchive(path, tag) => (archived(path, Form::Docker, tag), stem(path)),
        ImageRef::Path(path) if path.is_dir() => (layout::open(path, None), stem(path)),
        ImageRef::Path(path) => (archived(path, Form::Auto, &None), stem(path)),
        // The caller resolves names and ids.
        ImageRef::Stdin | ImageRef::Registry(_) | ImageRef::Short(_) | ImageRef::Id(_) => (
            archive::stdin(stdin.ok_or_else(|| FetchError::refused(ErrorKind::Invalid, NO_STDIN))?, &tmp, caps),
            STDIN_STEM.to_owned(),
        ),
    };
    let tag = match reference {
        ImageRef::Layout(_, tag) | ImageRef::OciArchive(_, tag) | ImageRef::DockerArchive(_, tag) => tag.as_deref(),
        // Other forms have no tag.
        _ => None,
    };
    Ok(named(source.map_err(failed)?, &stem, tag.unwrap_or("latest")))
}

/// Finds the end of the path in the reference of one image of an archive or layout: the name after it may have colons
/// (`docker-archive:FILE:host/app:1`), and so may the path.
fn find_path(reference: &ImageRef) -> ImageRef {
    let split = |path: &Path, tag: &Option<String>| {
        if path.exists() {
            return (path.to_owned(), tag.clone());
        }
        let tag_text = tag.iter().map(|tag| format!(":{tag}")).collect::<String>();
        let whole = format!("{}{tag_text}", path.display());
        if Path::new(&whole).exists() {
            return (whole.into(), None);
        }
        match whole.match_indices(':').find(|(at, _)| Path::new(&whole[..*at]).exists()) {
            Some((at, _)) => (PathBuf::from(&whole[..at]), Some(whole[at + 1..].to_owned())),
            None => (path.to_owned(), tag.clone()),
        }
    };
    let (make, path, tag): (fn(PathBuf, Option<String>) -> ImageRef, _, _) = match reference {
        ImageRef::Layout(path, tag) => (ImageRef::Layout, path, tag),
        ImageRef::OciArchive(path, tag) => (ImageRef::OciArchive, path, tag),
        ImageRef::DockerArchive(path, tag) => (ImageRef::DockerArchive, path, tag),
        // Other forms have no name of an image after a path.
        other => return other.clone(),
    };
    let (path, tag) = split(path, tag);
    make(path, tag)
}

/// Opens all images of an archive or layout, each when the iterator reaches it.
pub(crate) fn open_all(
    store: &Store,
    images: LocalImages<'_>,
    caps: &Caps,
) -> Result<impl Iterator<Item = Result<Local, FetchError>> + use<>, FetchError> {
    let (place, stem) = match &images {
        LocalImages::Path(path) => (path.display().to_string(), stem(path)),
        LocalImages::Stream(_) => ("the archive".to_owned(), STDIN_STEM.to_owned()),
    };
    let tmp = store.layout().tmp_dir();
    let sources = match images {
        LocalImages::Path(path) if path.is_dir() => layout::open_all(path),
        LocalImages::Path(path) => archive::open_all(path, &tmp, caps),
        LocalImages::Stream(stream) => archive::stdin_all(stream, &tmp, caps),
    };
    let mut sources = sources.map_err(FetchError::load(&place))?;
    let (first, second) = (sources.next(), sources.next());
    let is_only = second.is_none();
    Ok(first.into_iter().chain(second).chain(sources).map(move |source| {
        let open = || {
            let source = source?;
            // The name of the file names one image only.
            let tag = if is_only { "latest".to_owned() } else { source.root()?.digest.short().to_owned() };
            Ok(named(source, &stem, &tag))
        };
        open().map_err(FetchError::load(&place))
    }))
}

/// Names an image as its source does; if the source does not, by the name of the file (`stem`) and `tag`.
fn named(source: Box<dyn Source + Send>, stem: &str, tag: &str) -> Local {
    let docker = source.omits_docker_hub();
    let source_names = source.names();
    let (mut names, mut invalid) = (Vec::new(), Vec::new());
    for name in &source_names {
        match canonical(name, stem, docker) {
            Some(name) => names.push(name),
            None => invalid.push(name.clone()),
        }
    }
    let mut origin = NameOrigin::Archive;
    if names.is_empty() {
        origin = NameOrigin::Path;
        names.extend(canonical(tag, stem, false));
    }
    if names.is_empty() {
        names.push(format!("{stem}:latest"));
    }
    // A bare tag was completed with the name of the file.
    if source_names.iter().all(|name| !docker && is_tag(name)) {
        origin = NameOrigin::Path;
    }
    Local { source, naming: Naming { names, invalid, digests_of: None, origin } }
}

/// The name in the store for a name from an archive; `None` if it is malformed. `docker save` writes `alpine:3` for
/// Docker Hub's `alpine`. An OCI layout may have a bare tag, which belongs to the layout's own name (its `stem`).
pub(crate) fn canonical(name: &str, stem: &str, docker: bool) -> Option<String> {
    if !docker && is_tag(name) {
        return format!("{stem}:{name}").parse::<ImageRef>().ok().map(|_| format!("{stem}:{name}"));
    }
    match name.parse().ok()? {
        ImageRef::Registry(reference) => Some(reference.to_string()),
        ImageRef::Short(short) if docker => Some(short.at("docker.io").to_string()),
        ImageRef::Short(short) if short.tag.is_none() && short.digest.is_none() => Some(format!("{short}:latest")),
        ImageRef::Short(short) => Some(short.to_string()),
        // An id or a path is not a name.
        _ => None,
    }
}

/// Whether a name in an OCI layout is a bare tag.
fn is_tag(name: &str) -> bool {
    !name.contains([':', '/', '@'])
}

/// The name of a file without its extensions, made to fit a repository's name. `oci:latest` would be the path of a
/// layout and `sha256:latest` an id, so such names get a prefix.
fn stem(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let name = [".gz", ".zst", ".tgz", ".tar", ".oci"]
        .iter()
        .fold(name.as_str(), |name, end| name.strip_suffix(end).unwrap_or(name));
    let mapped: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let mut parts = mapped.split('-').filter(|part| !part.is_empty());
    let joined = parts.by_ref().take(32).collect::<Vec<_>>().join("-");
    if joined.is_empty() {
        return "image".to_owned();
    }
    let joined = joined.chars().take(128).collect::<String>();
    let joined = joined.trim_end_matches('-');
    match format!("{joined}:latest").parse() {
        Ok(ImageRef::Short(_)) => joined.to_owned(),
        // It would be read as the path of an archive or a layout, or as an id.
        _ => format!("image-{joined}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_name_their_images() {
        for (name, docker, want) in [
            ("alpine:3", true, Some("docker.io/library/alpine:3")),
            ("alpine", true, Some("docker.io/library/alpine:latest")),
            ("reg.example/a/b:1", true, Some("reg.example/a/b:1")),
            ("latest", false, Some("stem:latest")),
            ("V1.0", false, Some("stem:V1.0")),
            ("app:2", false, Some("app:2")),
            ("team/app", false, Some("team/app:latest")),
            ("reg.example/a", false, Some("reg.example/a:latest")),
            ("../x:1", false, None),
            ("a b", false, None),
            ("-", true, None),
            ("", false, None),
        ] {
            assert_eq!(canonical(name, "stem", docker).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn images_are_named_after_files() {
        for (path, want) in [
            ("/x/My App_v2.tar.gz", "my-app-v2"),
            ("app.oci.tar", "app"),
            ("/", "image"),
            ("...", "image"),
            ("é.tar", "image"),
            ("/x/oci.tar", "image-oci"),
            ("/x/oci", "image-oci"),
            ("oci-archive.tar.gz", "image-oci-archive"),
            ("docker-archive.tar", "image-docker-archive"),
            ("sha256.tar", "image-sha256"),
            ("sha256-0123456789.tar", "image-sha256-0123456789"),
        ] {
            let found = stem(Path::new(path));
            assert_eq!(found, want, "{path}");
            let name = format!("{found}:latest").parse::<ImageRef>().unwrap();
            assert!(matches!(name, ImageRef::Short(_)), "{name}");
        }
    }
}
