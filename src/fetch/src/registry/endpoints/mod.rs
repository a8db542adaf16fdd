//! The endpoints of a repository: its registry and the mirrors that the host's configuration names, in the order in
//! which they are tried.
//!
//! | file | written for | says |
//! |---|---|---|
//! | `registries.conf`, `registries.conf.d/*.conf` ([`registries_conf`]) | podman, skopeo, CRI-O | mirrors, other locations and blocks of name prefixes |
//! | `certs.d/HOST/hosts.toml` ([`hosts_file`]) | containerd | mirrors, certificates and headers of one registry |
//!
//! A block always counts. Mirrors of the hosts file of a registry replace those of `registries.conf`.

mod hosts_file;
mod registries_conf;

use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_host::file::{is_absent, read_text};
use gantry_model::RegistryRef;

use super::error::RegistryError;
use super::url::HttpUrl;
use crate::auth_file::canonical_host;
use crate::settings::{Config, Insecure};

/// Maximum length of a configuration file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// One place that serves a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The repository as it is named there. Credentials are those for this name.
    pub(crate) reference: RegistryRef,
    /// The address, if the configuration has its scheme. Otherwise https, or plain http where that is allowed.
    pub(crate) origin: Option<HttpUrl>,
    /// The path of the API.
    pub(crate) root: String,
    /// Headers of every request to the address.
    pub(crate) headers: Vec<(String, String)>,
    /// The registry that is mirrored, for mirrors that serve several (the parameter `ns`).
    pub(crate) namespace: Option<String>,
    /// Certificates in addition to those of the certificate directories.
    pub(crate) tls: TlsFiles,
    pub(crate) insecure: Insecure,
    pub(crate) connect_timeout: Option<Duration>,
    /// Whether it may say which digest a tag has.
    pub(crate) resolves: bool,
    /// Whether content may be fetched from it.
    pub(crate) pulls: bool,
    /// Whether it is another host than the one in the image reference.
    pub(crate) is_mirror: bool,
}

/// Files with certificates, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) authorities: Vec<PathBuf>,
    /// Client certificates with their keys; the first is offered.
    pub(crate) clients: Vec<(PathBuf, PathBuf)>,
}

impl Endpoint {
    /// The registry of `reference` itself.
    pub(crate) fn of(reference: &RegistryRef, insecure: Insecure) -> Self {
        Self {
            reference: reference.clone(),
            origin: None,
            root: "/v2".to_owned(),
            headers: Vec::new(),
            namespace: None,
            tls: TlsFiles::default(),
            insecure,
            connect_timeout: None,
            resolves: true,
            pulls: true,
            is_mirror: false,
        }
    }

    /// The name for messages: the host, and the scheme if it is plain http.
    pub(crate) fn shown(&self) -> String {
        match &self.origin {
            Some(origin) if !origin.is_https() => origin.to_string(),
            _ => self.reference.host.clone(),
        }
    }
}

/// The endpoints of `reference`, at least one; the registry itself comes last.
///
/// # Errors
/// [`RegistryError`]: a file is malformed or cannot be read, or the name is blocked.
pub(crate) fn endpoints(reference: &RegistryRef, config: &Config) -> Result<Vec<Endpoint>, RegistryError> {
    let rules = match &config.registries_conf {
        Some(path) => registries_conf::read_rules(path)?,
        None => Vec::new(),
    };
    let rule = registries_conf::find_rule(&rules, reference);
    if let Some(rule) = rule.filter(|rule| rule.is_blocked()) {
        return Err(RegistryError::blocked(&reference.to_string(), &rule.prefix, &rule.file));
    }
    if let Some(hosts) = hosts_file::find_hosts(&config.certificate_dirs, &reference.host)? {
        return hosts.endpoints(reference, config.insecure);
    }
    match rule {
        Some(rule) => rule.endpoints(reference, config.insecure),
        None => Ok(vec![Endpoint::of(reference, config.insecure)]),
    }
}

/// Whether two names are of one registry.
pub(crate) fn is_same_registry(one: &str, other: &str) -> bool {
    canonical_host(one).eq_ignore_ascii_case(canonical_host(other))
}

/// The text of a configuration file; `None` if it does not exist.
fn read_configuration(path: &Path) -> Result<Option<String>, RegistryError> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(RegistryError::configuration_io(path)(error)),
    };
    read_text(file, MAX_FILE).map(Some).map_err(RegistryError::configuration_io(path))
}

/// Parses a configuration file.
fn parse_toml<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T, RegistryError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        RegistryError::configuration(path, format!("line {line}: {}", error.message()))
    })
}
