//! `hosts.toml`, the mirrors and certificates of one registry in containerd's format.
//!
//! ```toml
//! server = "https://registry-1.docker.io"      # the registry itself, tried last
//! [host."https://mirror.example:5000"]         # tried in the order of the file
//! capabilities = ["pull", "resolve"]           # without "resolve": only by digest
//! ca = "mirror.crt"                            # relative to the directory of the file
//! client = [["client.cert", "client.key"]]
//! skip_verify = false
//! override_path = false                        # true: the path of the address replaces /v2
//! dial_timeout = "5s"
//! [host."https://mirror.example:5000".header]
//! x-node = ["one"]
//! ```
//!
//! It is `HOST/hosts.toml` or `HOST_PORT_/hosts.toml` in a certificate directory, else `_default/hosts.toml` for all
//! registries without one. Keys that are not listed are ignored, as by containerd.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gantry_model::id::shown;
use gantry_model::{RegistryRef, quantity};
use serde::Deserialize;
use toml::Spanned;
use ureq::http::{HeaderName, HeaderValue};

use super::{Endpoint, TlsFiles, is_same_registry, parse_toml, read_configuration};
use crate::registry::error::RegistryError;
use crate::registry::url::HttpUrl;
use crate::settings::Insecure;

/// Maximum number of hosts in a file.
const MAX_HOSTS: usize = 32;

/// The hosts of one registry.
#[derive(Debug)]
pub(super) struct Hosts {
    path: PathBuf,
    file: File,
}

#[derive(Debug, Default, Deserialize)]
struct File {
    server: Option<String>,
    capabilities: Option<Vec<String>>,
    ca: Option<OneOrMany>,
    client: Option<Clients>,
    skip_verify: Option<bool>,
    header: Option<BTreeMap<String, OneOrMany>>,
    override_path: Option<bool>,
    dial_timeout: Option<String>,
    /// The position in the file is the order.
    #[serde(default)]
    host: BTreeMap<String, Spanned<HostTable>>,
}

#[derive(Debug, Default, Clone, Deserialize)]
struct HostTable {
    capabilities: Option<Vec<String>>,
    ca: Option<OneOrMany>,
    client: Option<Clients>,
    skip_verify: Option<bool>,
    header: Option<BTreeMap<String, OneOrMany>>,
    override_path: Option<bool>,
    dial_timeout: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(text) => std::slice::from_ref(text).iter(),
            Self::Many(texts) => texts.iter(),
        }
        .map(String::as_str)
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Clients {
    One(String),
    Many(Vec<OneOrMany>),
}

/// Finds the hosts file of a registry in the first of `dirs` that has one.
pub(super) fn find_hosts(dirs: &[PathBuf], registry: &str) -> Result<Option<Hosts>, RegistryError> {
    let mut names = vec![registry.to_owned()];
    if let Some((host, port)) = registry.rsplit_once(':') {
        names.push(format!("{host}_{port}_"));
    }
    let own = dirs.iter().flat_map(|dir| names.iter().map(move |name| dir.join(name)));
    for dir in own.chain(dirs.iter().map(|dir| dir.join("_default"))) {
        let path = dir.join("hosts.toml");
        if let Some(text) = read_configuration(&path)? {
            let file: File = parse_toml(&path, &text)?;
            if file.host.len() > MAX_HOSTS {
                return Err(RegistryError::configuration(&path, format!("it has more than {MAX_HOSTS} hosts")));
            }
            return Ok(Some(Hosts { path, file }));
        }
    }
    Ok(None)
}

impl Hosts {
    /// The endpoints of `reference`. `insecure` is what the caller allows for the registry itself.
    pub(super) fn endpoints(
        &self,
        reference: &RegistryRef,
        insecure: Insecure,
    ) -> Result<Vec<Endpoint>, RegistryError> {
        let mut hosts: Vec<_> = self.file.host.iter().collect();
        hosts.sort_by_key(|(_, table)| table.span().start);
        let mut found = Vec::new();
        for (address, table) in hosts {
            found.push(self.endpoint(address, table.get_ref(), reference, insecure)?);
        }
        let file = &self.file;
        let own = HostTable {
            capabilities: file.capabilities.clone(),
            ca: file.ca.clone(),
            client: file.client.clone(),
            skip_verify: file.skip_verify,
            header: file.header.clone(),
            override_path: file.override_path,
            dial_timeout: file.dial_timeout.clone(),
        };
        let last = match file.server.as_deref().filter(|server| !server.is_empty()) {
            Some(server) => self.endpoint(server, &own, reference, insecure)?,
            None => self.with_table(Endpoint::of(reference, insecure), &own)?,
        };
        found.push(last);
        Ok(found)
    }

    fn refused(&self, address: &str, why: impl std::fmt::Display) -> RegistryError {
        RegistryError::configuration(&self.path, format!("host '{}': {why}", shown(address)))
    }

    /// The endpoint at `address`: a URL, or a host and a path.
    fn endpoint(
        &self,
        address: &str,
        table: &HostTable,
        reference: &RegistryRef,
        insecure: Insecure,
    ) -> Result<Endpoint, RegistryError> {
        let has_scheme = address.contains("://");
        let url = if has_scheme { address.to_owned() } else { format!("https://{address}") };
        let url = HttpUrl::parse(&url).map_err(|why| self.refused(address, why))?;
        let authority = url.authority();
        let is_mirror = !is_same_registry(&authority, &reference.host);
        let insecure = if is_mirror { Insecure::default() } else { insecure };
        // Below /v2, what follows is a part of the repository's name, for which a token server is asked.
        let path = url.path().trim_end_matches('/');
        let (root, below) = match path {
            "" => ("/v2".to_owned(), None),
            path if table.override_path == Some(true) => match path.strip_prefix("/v2/") {
                Some(below) => ("/v2".to_owned(), Some(below)),
                None => (path.to_owned(), None),
            },
            path if path.ends_with("/v2") => (path.to_owned(), None),
            path => (format!("{path}/v2"), None),
        };
        let repository =
            below.map_or_else(|| reference.repository.clone(), |below| format!("{below}/{}", reference.repository));
        let named = RegistryRef { host: authority, repository, ..reference.clone() };
        let endpoint = Endpoint {
            origin: has_scheme.then(|| url.with_path("/")),
            root,
            namespace: is_mirror.then(|| reference.host.clone()),
            is_mirror,
            ..Endpoint::of(&named, insecure)
        };
        self.with_table(endpoint, table)
    }

    /// Applies what the file says of an endpoint.
    fn with_table(&self, mut endpoint: Endpoint, table: &HostTable) -> Result<Endpoint, RegistryError> {
        if let Some(capabilities) = &table.capabilities {
            let has = |name: &str| capabilities.iter().any(|capability| capability == name);
            (endpoint.pulls, endpoint.resolves) = (has("pull"), has("resolve"));
        }
        endpoint.insecure.tls |= table.skip_verify == Some(true);
        endpoint.tls = self.tls_files(table);
        let host = endpoint.reference.host.clone();
        for (name, values) in table.header.iter().flatten() {
            for value in values.iter() {
                if name.parse::<HeaderName>().is_err() || value.parse::<HeaderValue>().is_err() {
                    return Err(self.refused(&host, format!("the header '{}' is malformed", shown(name))));
                }
                endpoint.headers.push((name.clone(), value.to_owned()));
            }
        }
        if let Some(text) = &table.dial_timeout {
            let time =
                quantity::duration(text).map_err(|error| self.refused(&host, format!("dial_timeout: {error}")))?;
            endpoint.connect_timeout = Some(time).filter(|time| !time.is_zero());
        }
        Ok(endpoint)
    }

    fn tls_files(&self, table: &HostTable) -> TlsFiles {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let authorities = table.ca.iter().flat_map(OneOrMany::iter).map(|path| dir.join(path)).collect();
        // A certificate without a key has the key in its own file.
        let pair = |certificate: &str, key: Option<&str>| {
            let key = key.filter(|key| !key.is_empty()).unwrap_or(certificate);
            (dir.join(certificate), dir.join(key))
        };
        let clients = match &table.client {
            None => Vec::new(),
            Some(Clients::One(path)) => vec![pair(path, None)],
            Some(Clients::Many(entries)) => entries
                .iter()
                .filter_map(|entry| {
                    let mut paths = entry.iter();
                    paths.next().map(|certificate| pair(certificate, paths.next()))
                })
                .collect(),
        };
        TlsFiles { authorities, clients }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use gantry_model::ImageRef;

    fn endpoints(text: &str, name: &str) -> Result<Vec<Endpoint>, String> {
        let dir = tempfile::tempdir().unwrap();
        let ImageRef::Registry(reference) = name.parse().unwrap() else { panic!("{name} is no registry's") };
        let place = dir.path().join(&reference.host);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("hosts.toml"), text).unwrap();
        let hosts = find_hosts(&["/nonexistent".into(), dir.path().into()], &reference.host);
        let found = hosts.map_err(|error| error.to_string())?.unwrap().endpoints(&reference, Insecure::default());
        let place = format!("{}/", place.display());
        let relative = |path: &mut PathBuf| *path = path.to_str().unwrap().replace(&place, "").into();
        let mut found = found.map_err(|error| error.to_string())?;
        for endpoint in &mut found {
            endpoint.tls.authorities.iter_mut().for_each(relative);
            endpoint.tls.clients.iter_mut().for_each(|(certificate, key)| {
                relative(certificate);
                relative(key);
            });
        }
        Ok(found)
    }

    #[test]
    fn hosts_keep_the_order_of_the_file() {
        let text = "[host.'https://z.example']\n[host.'http://a.example:5000/x']\n[host.'m.example']\n";
        let found = endpoints(text, "docker.io/library/app:1").unwrap();
        let shown: Vec<_> = found.iter().map(|e| (e.shown(), e.root.as_str(), e.is_mirror)).collect();
        let want = [
            ("z.example", "/v2", true),
            ("http://a.example:5000", "/x/v2", true),
            ("m.example", "/v2", true),
            ("docker.io", "/v2", false),
        ];
        assert_eq!(shown, want.map(|(host, root, mirror)| (host.to_owned(), root, mirror)));
        assert_eq!(found[0].namespace.as_deref(), Some("docker.io"));
        assert_eq!(found[3], Endpoint::of(&found[3].reference, Insecure::default()));
    }

    #[test]
    fn settings_of_a_host_are_parsed() {
        let text = "server = 'https://registry-1.docker.io'\nca = ['a.crt', '/b.crt']\n\
                    [host.'https://m.example/v2/hub']\ncapabilities = ['pull']\nclient = [['c.cert', 'c.key'], 'd.pem']\n\
                    skip_verify = true\noverride_path = true\ndial_timeout = '2s'\nunknown = 1\n\
                    header = { x-a = 'one', x-b = ['two', 'three'] }\n";
        let found = endpoints(text, "docker.io/library/app:1").unwrap();
        let [mirror, server] = &found[..] else { panic!("{found:?}") };
        assert_eq!((mirror.pulls, mirror.resolves, mirror.insecure.tls), (true, false, true));
        assert_eq!((mirror.root.as_str(), mirror.reference.repository.as_str()), ("/v2", "hub/library/app"));
        let pairs = [("c.cert", "c.key"), ("d.pem", "d.pem")].map(|(one, two)| (one.into(), two.into()));
        assert_eq!(mirror.tls.clients, pairs);
        assert_eq!(mirror.connect_timeout, Some(Duration::from_secs(2)));
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(mirror.headers, [header("x-a", "one"), header("x-b", "two"), header("x-b", "three")]);
        assert_eq!(server.tls.authorities, [PathBuf::from("a.crt"), "/b.crt".into()]);
        assert!(!server.is_mirror && server.resolves && server.namespace.is_none(), "{server:?}");
    }

    #[test]
    fn malformed_hosts_files_are_errors() {
        for (text, want) in [
            ("server = 1", "line 1"),
            ("[host]\n'ftp://m' = {}", "host 'ftp://m'"),
            ("[host.'https://m.example']\nheader = { 'a b' = 'c' }", "header 'a b'"),
            ("[host.'https://m.example']\ndial_timeout = 'soon'", "dial_timeout"),
        ] {
            let why = endpoints(text, "docker.io/library/app:1").unwrap_err();
            assert!(why.contains(want) && why.contains("hosts.toml"), "{text}: {why}");
        }
    }

    #[test]
    fn registries_without_a_file_take_the_default() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("_default", "server = 'https://d.example'"), ("r.example_5000_", "")] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("hosts.toml"), text).unwrap();
        }
        let found = |registry: &str| {
            let hosts = find_hosts(&[dir.path().into()], registry).unwrap().unwrap();
            hosts.path.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(found("r.example:5000"), "r.example_5000_");
        assert_eq!(found("other.example"), "_default");
    }
}
