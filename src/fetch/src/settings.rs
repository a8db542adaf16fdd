//! What an operator may set about fetching, with the defaults.

use std::path::PathBuf;
use std::time::Duration;

use crate::Caps;
use crate::platform::Platform;

/// How images are fetched. [`Config::default`] is right for most hosts.
#[derive(Debug, Clone)]
pub struct Config {
    /// The registry that completes short names such as `alpine`; none by default, because guessing is how one
    /// gets somebody else's image.
    pub default_registry: Option<String>,
    /// What may be given up of transport security.
    pub insecure: Insecure,
    /// Credential files in the order in which they are asked (containers-auth.json(5)); missing ones are skipped.
    pub auth_files: Vec<PathBuf>,
    /// Directories with certificates for single hosts, as `HOST[:PORT]/*.crt`, `*.cert` and `*.key`; missing ones are
    /// skipped.
    pub certificate_dirs: Vec<PathBuf>,
    /// What the images must run on.
    pub platform: Platform,
    /// Whether an archive may take names that belong to other images.
    pub take_names: bool,
    /// What an unpacked layer may grow to.
    pub caps: Caps,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Layers fetched and unpacked at the same time; 1 to 16.
    pub parallel: usize,
}

/// What may be given up of transport security. Loopback registries may always speak plain http.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Insecure {
    /// Registries that are not on loopback may speak plain http when they do not speak https.
    pub http: bool,
    /// The certificate of the registry is not checked.
    pub tls: bool,
}

/// Deadlines. There is none on a whole download: a slow line that makes progress is fine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Name resolution and connection set-up including TLS, each.
    pub connect: Duration,
    /// The longest silence of a peer: for each read, and for an answer's headers as a whole.
    pub no_progress: Duration,
    /// How long one request is tried again before it is given up, waits included.
    pub total_retry: Duration,
    /// The wait before the first retry; it doubles with each further one, up to ten seconds.
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
            certificate_dirs: vec!["/etc/containers/certs.d".into(), "/etc/docker/certs.d".into()],
            platform: Platform::host(),
            take_names: false,
            caps: Caps::default(),
            timeouts: Timeouts::default(),
            parallel: 4,
        }
    }
}

impl Config {
    /// Where `login` files credentials: podman's place for root.
    #[must_use]
    pub fn login_file() -> PathBuf {
        let env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        env("REGISTRY_AUTH_FILE")
            .or_else(|| env("XDG_RUNTIME_DIR").map(|dir| dir.join("containers/auth.json")))
            .unwrap_or_else(|| "/run/containers/0/auth.json".into())
    }

    /// Where credentials are looked for when nothing else is said: the places of podman and docker, in this order.
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
