//! Image references as users type them, parsed once.
//!
//! | written | means |
//! |---|---|
//! | `docker://alpine:3.20`, `oci://registry.example/app@sha256:…` | a registry; `docker://` defaults to docker.io |
//! | `registry.example:5000/app:1`, `localhost/app` | a registry: the first element has a dot or colon or is `localhost` |
//! | `alpine`, `library/alpine:3` | a short name: found in the store, or completed by the configured default registry |
//! | `oci:DIR[:TAG]`, a directory with an `oci-layout` file | an OCI image layout |
//! | `oci-archive:FILE[:TAG]`, `docker-archive:FILE[:TAG]`, an existing file | an archive |
//! | `-` | an archive on standard input |
//! | `sha256:…`, 8 or more of its digits with or without `sha256:`; appc's `sha512-…` | an image id in the store |

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::Digest;
use crate::id::shown;

/// A text is not a reference to an image.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{}' is not an image: {why}", shown(.text))]
pub struct RefError {
    /// The input.
    pub text: String,
    /// Why not, and what would be.
    pub why: &'static str,
}

impl crate::Kind for RefError {
    fn kind(&self) -> crate::ErrorKind {
        crate::ErrorKind::Invalid
    }
}

/// Where an image comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageRef {
    /// A repository of a registry.
    Registry(RegistryRef),
    /// A name without a registry's host: the store is asked first, then the default registry.
    Short(ShortName),
    /// The beginning of the digest of an image in the store: lower-case hexadecimal digits, 8 or more.
    Id(String),
    /// An OCI image layout directory.
    Layout(PathBuf, Option<String>),
    /// An OCI image layout in a tar file.
    OciArchive(PathBuf, Option<String>),
    /// A tar file as `docker save` writes it.
    DockerArchive(PathBuf, Option<String>),
    /// A file or directory, by its path; what it is shows when it is opened.
    Path(PathBuf),
    /// An archive on standard input.
    Stdin,
}

/// An image in a registry (OCI distribution specification, "Pulling manifests").
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RegistryRef {
    /// Host, with a port where one is given. `docker.io` is Docker Hub.
    pub host: String,
    /// Repository, such as `library/alpine`.
    pub repository: String,
    /// Tag; `latest` where neither a tag nor a digest is given.
    pub tag: Option<String>,
    /// Digest of the manifest or index; wins over the tag.
    pub digest: Option<Digest>,
}

/// A name without a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShortName {
    /// Repository as written, such as `alpine`.
    pub repository: String,
    /// Tag as written.
    pub tag: Option<String>,
    /// Digest as written.
    pub digest: Option<Digest>,
}

impl ShortName {
    /// The beginning of an image's id, when this can be one: at least 8 hexadecimal digits and nothing else.
    #[must_use]
    pub fn id_prefix(&self) -> Option<&str> {
        let bare = self.tag.is_none() && self.digest.is_none();
        Some(self.repository.as_str()).filter(|text| bare && id(text).is_some())
    }

    /// Whether an image with this full name (`host/team/app:1`) is one of this repository: `app`, `team/app`.
    #[must_use]
    pub fn is_repository_of(&self, name: &str) -> bool {
        let rest = repository_of(name).strip_suffix(self.repository.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    }

    /// This name in the default registry.
    #[must_use]
    pub fn within(&self, registry: &DefaultRegistry) -> RegistryRef {
        let repository = match &registry.path {
            Some(path) => format!("{path}/{}", self.repository),
            None => self.repository.clone(),
        };
        complete(registry.host.clone(), Self { repository, ..self.clone() })
    }

    /// This name in the registry `host`, with Docker Hub's `library/` where it is due.
    #[must_use]
    pub fn at(&self, host: &str) -> RegistryRef {
        complete(host.to_owned(), self.clone())
    }
}

/// The registry that completes short names, `HOST[:PORT][/PATH]`: the path precedes their repositories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultRegistry {
    host: String,
    path: Option<String>,
}

/// A text is not `HOST[:PORT][/PATH]`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{}' is not a registry, HOST[:PORT][/PATH]: {why}", shown(.text))]
pub struct DefaultRegistryError {
    /// The input.
    pub text: String,
    /// Why not.
    pub why: &'static str,
}

impl std::str::FromStr for DefaultRegistry {
    type Err = DefaultRegistryError;

    fn from_str(text: &str) -> Result<Self, DefaultRegistryError> {
        let refuse = |why| DefaultRegistryError { text: text.to_owned(), why };
        if text.contains("://") {
            return Err(refuse("leave the scheme out; --insecure-options=http allows unencrypted connections"));
        }
        let (host, path) = text.split_once('/').map_or((text, None), |(host, path)| (host, Some(path)));
        check_host(host).and_then(|()| path.map_or(Ok(()), check_repository)).map_err(refuse)?;
        Ok(Self { host: host.to_owned(), path: path.map(str::to_owned) })
    }
}

/// A full name without its tag and digest.
#[must_use]
pub fn repository_of(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or(name);
    match name.rsplit_once(':') {
        // A colon before the last slash belongs to a port.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

impl RegistryRef {
    /// The repository with its host, as [`repository_of`] a full name.
    #[must_use]
    pub fn full_repository(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    /// Whether a full name is in this repository.
    #[must_use]
    pub fn has_name(&self, name: &str) -> bool {
        repository_of(name) == self.full_repository()
    }
}

impl fmt::Display for RegistryRef {
    /// The canonical name: `host/repository:tag`, or `host/repository@digest`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        match (&self.digest, &self.tag) {
            (Some(digest), _) => write!(f, "@{digest}"),
            (None, Some(tag)) => write!(f, ":{tag}"),
            (None, None) => f.write_str(":latest"),
        }
    }
}

impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl ImageRef {
    /// The least digits that select an image by its id.
    pub const MIN_ID_DIGITS: usize = 8;
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tagged = |f: &mut fmt::Formatter<'_>, scheme: &str, path: &PathBuf, tag: &Option<String>| {
            write!(f, "{scheme}:{}", path.display())?;
            tag.as_ref().map_or(Ok(()), |tag| write!(f, ":{tag}"))
        };
        match self {
            Self::Registry(reference) => reference.fmt(f),
            Self::Short(name) => name.fmt(f),
            Self::Id(hex) => write!(f, "sha256:{hex}"),
            Self::Layout(path, tag) => tagged(f, "oci", path, tag),
            Self::OciArchive(path, tag) => tagged(f, "oci-archive", path, tag),
            Self::DockerArchive(path, tag) => tagged(f, "docker-archive", path, tag),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Stdin => f.write_str("-"),
        }
    }
}

impl std::str::FromStr for ImageRef {
    type Err = RefError;

    fn from_str(text: &str) -> Result<Self, RefError> {
        let refuse = |why| RefError { text: text.to_owned(), why };
        if text.is_empty() {
            return Err(refuse("it is empty"));
        }
        if text == "-" {
            return Ok(Self::Stdin);
        }
        if text.bytes().any(|c| c == 0) {
            return Err(refuse("it contains a NUL byte"));
        }
        if let Some(rest) = text.strip_prefix("docker://") {
            return registry(rest, Some("docker.io")).map_err(refuse).map(Self::Registry);
        }
        if let Some(rest) = text.strip_prefix("oci://") {
            return registry(rest, None).map_err(refuse).map(Self::Registry);
        }
        for (scheme, make) in [
            ("oci:", Self::Layout as fn(PathBuf, Option<String>) -> Self),
            ("oci-archive:", Self::OciArchive),
            ("docker-archive:", Self::DockerArchive),
        ] {
            if let Some(rest) = text.strip_prefix(scheme) {
                let (path, tag) = path_and_tag(rest);
                return if path.is_empty() { Err(refuse("the path is missing")) } else { Ok(make(path.into(), tag)) };
            }
        }
        if let Some(path) = text.strip_prefix("file://") {
            return Ok(Self::Path(path.into()));
        }
        if text.starts_with('/') || text.starts_with("./") || text.starts_with("../") || text == "." {
            return Ok(Self::Path(text.into()));
        }
        let prefixes = ["sha256:", "sha256-", "sha512-"];
        if let Some(hex) = prefixes.into_iter().find_map(|prefix| text.strip_prefix(prefix)) {
            return id(hex).ok_or_else(|| refuse("an image id is sha256: and at least 8 hexadecimal digits"));
        }
        if text.contains("://") {
            return Err(refuse("this scheme is not known; known are docker://, oci:// and file://"));
        }
        match split_host(text) {
            Some(_) => registry(text, None).map(Self::Registry),
            None => short(text).map(Self::Short),
        }
        .map_err(|why| refuse(foreign_transport(text).unwrap_or(why)))
    }
}

/// The advice for the name of an image in a transport of podman and skopeo that gantry does not have
/// (containers-transports(5)). The text may also be a short name with a tag.
#[must_use]
pub fn foreign_transport(text: &str) -> Option<&'static str> {
    let (transport, _) = text.split_once(':')?;
    match transport {
        "dir" => Some("gantry does not read dir:; use 'skopeo copy dir:… oci-archive:FILE'"),
        "docker-daemon" => {
            Some("gantry does not read docker-daemon:; use 'skopeo copy docker-daemon:… oci-archive:FILE'")
        }
        "containers-storage" => {
            Some("gantry does not read containers-storage:; use 'skopeo copy containers-storage:… oci-archive:FILE'")
        }
        _ => None,
    }
}

fn id(hex: &str) -> Option<ImageRef> {
    let fits = (ImageRef::MIN_ID_DIGITS..=128).contains(&hex.len())
        && hex.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
    fits.then(|| ImageRef::Id(hex.to_owned()))
}

/// `PATH[:TAG]`: the tag is what follows the last colon, unless a slash follows it.
fn path_and_tag(rest: &str) -> (&str, Option<String>) {
    match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') && !tag.is_empty() => (path, Some(tag.to_owned())),
        _ => (rest, None),
    }
}

/// The host of a name, when its first element is one (the rule of the Docker reference grammar).
fn split_host(text: &str) -> Option<(&str, &str)> {
    let (host, rest) = text.split_once('/')?;
    let is_host = host.contains('.') || host.contains(':') || host == "localhost";
    is_host.then_some((host, rest))
}

fn registry(text: &str, default_host: Option<&str>) -> Result<RegistryRef, &'static str> {
    let (host, rest) = match (split_host(text), default_host) {
        (Some((host, rest)), _) => (host, rest),
        (None, Some(host)) => (host, text),
        (None, None) => return Err("the registry's host is missing, as in registry.example/name:tag"),
    };
    check_host(host)?;
    Ok(complete(host.to_owned(), short(rest)?))
}

fn complete(host: String, name: ShortName) -> RegistryRef {
    let ShortName { repository, tag, digest } = name;
    let host = if host == "index.docker.io" { "docker.io".to_owned() } else { host };
    let repository =
        if host == "docker.io" && !repository.contains('/') { format!("library/{repository}") } else { repository };
    let tag = if tag.is_none() && digest.is_none() { Some("latest".to_owned()) } else { tag };
    RegistryRef { host, repository, tag, digest }
}

fn check_host(host: &str) -> Result<(), &'static str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(v6) => {
            let (name, rest) = v6.split_once(']').ok_or("the host's bracket is not closed")?;
            if !name.bytes().all(|c| c.is_ascii_hexdigit() || c == b':' || c == b'.') {
                return Err("the host is not an IPv6 address");
            }
            ("v6", rest.strip_prefix(':'))
        }
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    if name.is_empty() || !name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-')) {
        return Err("the registry's host is not a host name");
    }
    match port.map(str::parse::<u16>) {
        Some(Err(_)) => Err("the registry's port is not a number up to 65535"),
        _ => Ok(()),
    }
}

fn short(text: &str) -> Result<ShortName, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            let digest = digest.parse().map_err(|_| "what follows '@' is not a digest such as sha256:…")?;
            (rest, Some(digest))
        }
        None => (text, None),
    };
    let (repository, tag) = match rest.rsplit_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (rest, None),
    };
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    check_repository(repository)?;
    Ok(ShortName { repository: repository.to_owned(), tag: tag.map(str::to_owned), digest })
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let fits = (1..=128).contains(&tag.len())
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|c| word(c) || matches!(c, b'.' | b'-'));
    if fits { Ok(()) } else { Err("the tag is not 1 to 128 of letters, digits, '_', '.' and '-'") }
}

/// OCI distribution specification: `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/…)*`.
fn check_repository(repository: &str) -> Result<(), &'static str> {
    const WHY: &str = "the name is not made of lower-case letters, digits and single '.', '_', '-' between them";
    if repository.len() > 255 {
        return Err("the name is longer than 255 characters");
    }
    for part in repository.split('/') {
        let bytes = part.as_bytes();
        let word = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let ok = word(bytes.first())
            && word(bytes.last())
            && bytes.iter().all(|c| word(Some(c)) || matches!(c, b'.' | b'_' | b'-'))
            && !part.contains("..");
        if !ok {
            return Err(WHY);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn references_get_default_registry_and_tag() {
        for (text, want) in [
            ("docker://alpine", "docker.io/library/alpine:latest"),
            ("docker://grafana/loki:2", "docker.io/grafana/loki:2"),
            ("docker://127.0.0.1:5000/a/b:x", "127.0.0.1:5000/a/b:x"),
            ("oci://registry.example/app", "registry.example/app:latest"),
            ("quay.io/x/y:z", "quay.io/x/y:z"),
            ("localhost/x", "localhost/x:latest"),
            ("[::1]:5000/x", "[::1]:5000/x:latest"),
            ("alpine", "alpine"),
            ("sha256:0123456789ab", "sha256:0123456789ab"),
            ("oci:/tmp/x:tag", "oci:/tmp/x:tag"),
            ("./x", "./x"),
            ("-", "-"),
        ] {
            assert_eq!(text.parse::<ImageRef>().map(|r| r.to_string()), Ok(want.to_owned()), "{text}");
        }
    }

    #[test]
    fn invalid_references_are_rejected() {
        for bad in [
            "",
            "UPPER",
            "a//b",
            "a:",
            "a:b:c",
            "http://x/y",
            "oci://noslash",
            "docker://",
            "a@sha256:12",
            "x/../y",
            "host:99999/x",
            "a\0b",
            "sha256:xyz",
            "oci:",
            "a/.b",
            "reg.example/A",
        ] {
            assert!(bad.parse::<ImageRef>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn default_registries_complete_short_names() {
        let Ok(ImageRef::Short(name)) = "app:1".parse() else { panic!("a short name") };
        for (registry, want) in [
            ("docker.io", "docker.io/library/app:1"),
            ("registry.example:5000", "registry.example:5000/app:1"),
            ("[::1]:5000/team/web", "[::1]:5000/team/web/app:1"),
            ("docker.io/team", "docker.io/team/app:1"),
        ] {
            assert_eq!(registry.parse().map(|registry| name.within(&registry).to_string()), Ok(want.to_owned()));
        }
        for (bad, want) in [
            ("http://x/", "leave the scheme out"),
            ("", "host name"),
            ("x/", "the name is not made of"),
            ("/x", "host name"),
            ("x:port", "port"),
            ("user@x", "host name"),
            ("x/Team", "lower-case"),
        ] {
            let error = bad.parse::<DefaultRegistry>().unwrap_err().to_string();
            assert!(error.contains(want) && error.contains(&format!("'{bad}'")), "{bad}: {error}");
        }
    }

    #[test]
    fn foreign_transports_are_named() {
        for text in ["dir:/tmp/x", "docker-daemon:app:1", "containers-storage:[overlay@/x]app"] {
            let error = text.parse::<ImageRef>().unwrap_err().to_string();
            assert!(error.contains("skopeo copy"), "{error}");
        }
        assert!("dir:1".parse::<ImageRef>().is_ok(), "a short name with a tag");
    }

    #[test]
    fn short_names_match_whole_elements_of_names() {
        let digest = format!("sha256:{}", "1".repeat(64));
        for (short, name, want) in [
            ("app", "app:1", true),
            ("app", "reg.example:5000/team/app:1", true),
            ("team/app", "reg.example:5000/team/app", true),
            ("app", &format!("reg.example/app@{digest}"), true),
            ("app", "reg.example/myapp:1", false),
            ("team/app", "app:1", false),
            ("5000", "reg.example:5000/app", false),
            ("app", "reg.example/app/more:1", false),
        ] {
            let Ok(ImageRef::Short(short)) = format!("{short}@{digest}").parse() else { panic!("{short}") };
            assert_eq!(short.is_repository_of(name), want, "{short} {name}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics_and_references_round_trip(text: String) {
            if let Ok(ImageRef::Registry(r)) = text.parse::<ImageRef>() {
                let again = format!("oci://{r}").parse::<ImageRef>();
                prop_assert_eq!(again.map(|r| r.to_string()), Ok(r.to_string()));
            }
        }
    }
}
