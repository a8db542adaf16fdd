//! Settings of fetching, with their defaults.

use std::path::PathBuf;
use std::time::Duration;

use gantry_model::image_ref::DefaultRegistry;

use crate::Caps;
use crate::auth_file::Credentials;
use crate::cancellation::Cancellation;
use crate::platform::Platform;

/// Settings of a fetch. [`Config::default`] fits most hosts.
#[derive(Debug, Clone)]
pub struct Config {
    /// The registry that completes short names such as `alpine`. None by default: a guess could fetch another
    /// publisher's image.
    pub default_registry: Option<DefaultRegistry>,
    /// Relaxations of transport security.
    pub insecure: Insecure,
    /// Credential files in order of precedence (containers-auth.json(5)); missing ones are skipped.
    pub auth_files: Vec<PathBuf>,
    /// Credentials for this fetch alone, which come before those of the files.
    pub credentials: Option<FetchCredentials>,
    /// Cancels the fetch.
    pub cancellation: Option<Cancellation>,
    /// Whether an image that is fetched by a tag is also named by the digest that the tag has (`host/name@digest`).
    pub name_digests: bool,
    /// Directories with certificates for single hosts, as `HOST[:PORT]/*.crt`, `*.cert` and `*.key`, and with mirrors,
    /// as `HOST[:PORT]/hosts.toml`; missing ones are skipped.
    pub certificate_dirs: Vec<PathBuf>,
    /// The file with mirrors and blocked names (containers-registries.conf(5)), read with the files of the directory
    /// beside it (`FILE.d/*.conf`); missing ones are skipped. [`Config::certificate_dirs`] may have `HOST/hosts.toml`,
    /// too.
    pub registries_conf: Option<PathBuf>,
    /// The platform that images must be for. `None`: this host's, and an image in the store may be for any.
    pub platform: Option<Platform>,
    /// Whether an archive may take names that belong to other images.
    pub take_names: bool,
    /// Limits of an unpacked layer.
    pub caps: Caps,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Number of layers fetched and unpacked in parallel; 1 to 16.
    pub parallel: usize,
}

/// Credentials of one fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchCredentials {
    /// The registry or mirror that receives them; by default the registry that the image reference names.
    pub host: Option<String>,
    /// The credentials.
    pub credentials: Credentials,
}

/// Relaxations of transport security. Loopback registries may always speak plain http.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Insecure {
    /// Plain http is allowed for registries that do not speak https.
    pub http: bool,
    /// The certificate of the registry is not verified.
    pub tls: bool,
}

/// Timeouts. A whole download has none: a connection of more than about 1 KiB/s is fine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout of name resolution and of connecting (including TLS), each.
    pub connect: Duration,
    /// Timeout of each read, and of a response's headers as a whole.
    pub no_progress: Duration,
    /// Maximum duration of the retries of one request, including delays.
    pub total_retry: Duration,
    /// The delay before the first retry. It doubles with each further one, up to ten seconds.
    pub backoff: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            no_progress: Duration::from_secs(30),
            total_retry: Duration::from_secs(180),
            backoff: Duration::from_millis(250),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_registry: None,
            insecure: Insecure::default(),
            auth_files: Self::default_auth_files(),
            credentials: None,
            cancellation: None,
            name_digests: false,
            certificate_dirs: ["/etc/containers/certs.d", "/etc/docker/certs.d", "/etc/containerd/certs.d"]
                .map(PathBuf::from)
                .to_vec(),
            registries_conf: Some("/etc/containers/registries.conf".into()),
            platform: None,
            take_names: false,
            caps: Caps::default(),
            timeouts: Timeouts::default(),
            parallel: 4,
        }
    }
}

impl Config {
    /// The platform to select from an image for several.
    #[must_use]
    pub fn wanted_platform(&self) -> Platform {
        self.platform.clone().unwrap_or_else(Platform::host)
    }

    /// The file in which `login` stores credentials: podman's for root.
    #[must_use]
    pub fn login_file() -> PathBuf {
        let env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        env("REGISTRY_AUTH_FILE")
            .or_else(|| env("XDG_RUNTIME_DIR").map(|dir| dir.join("containers/auth.json")))
            .unwrap_or_else(|| "/run/containers/0/auth.json".into())
    }

    /// The default credential files of podman and docker, in order of precedence.
    #[must_use]
    pub fn default_auth_files() -> Vec<PathBuf> {
        let env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let mut files: Vec<PathBuf> = env("REGISTRY_AUTH_FILE").into_iter().collect();
        files.extend(env("XDG_RUNTIME_DIR").map(|dir| dir.join("containers/auth.json")));
        files.push("/run/containers/0/auth.json".into());
        files.extend(env("HOME").map(|home| home.join(".config/containers/auth.json")));
        files.extend(env("DOCKER_CONFIG").map(|dir| dir.join("config.json")));
        files.extend(env("HOME").map(|home| home.join(".docker/config.json")));
        files
    }
}
