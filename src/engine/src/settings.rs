//! Settings: flags take precedence over the environment, which takes precedence over one optional configuration file.
//! All programs share the file.
//!
//! ```toml
//! # /etc/gantry/config.toml
//! dir = "/var/lib/gantry"
//! default-registry = "docker.io"   # HOST[:PORT][/PATH], completes short names such as alpine; none by default
//! cgroup-parent = "/gantry"
//! stop-grace = "10s"
//! gc-interval = "1m"               # gantryd: how often garbage is collected
//! gc-grace = "30m"                 # gantryd: how long a pod stays after its end
//! expire-prepared = "24h"          # gantryd: how long a prepared pod may wait to be run
//! listen = ["unix:/run/x.sock"]    # gantryd: addresses of rkt's API, or ["none"]
//! machine-listen = ["none"]        # gantryd: addresses of the Talos node API, or ["none"]
//! aurae-listen = ["none"]          # gantryd: addresses of Aurae's API, or ["none"]
//! cri-listen = ["none"]            # gantryd: addresses of the Kubernetes CRI, or ["none"]
//! cri-stream-listen = "127.0.0.1:0" # gantryd: address of exec, attach and port-forward of the CRI, or "none"
//! time-server = "time.example"     # gantryd: the server whose time the Talos node API shows; none by default
//! metrics-listen = ["127.0.0.1:15442"]   # gantryd: addresses of /metrics for Prometheus, or []
//! sample-interval = "10s"          # gantryd: how often the counters of running pods are sampled
//! events-kept = 100000             # gantryd: how many events stay when older ones are deleted
//! backup-interval = "1h"           # gantryd: how often a changed database is copied to DIR/backups; "0": never
//! machine-control = false          # gantryd: administrators of the Talos node API may reboot and power off the host
//! reboot-command = ["/sbin/shutdown", "-r", "now"]
//! shutdown-command = ["/sbin/shutdown", "-P", "now"]
//! [machine-tls]                    # gantryd: mutual TLS of the Talos node API, which TCP addresses need; PEM files
//! ca = "/etc/gantry/pki/ca.crt"    # the authorities of clients
//! certificate = "/etc/gantry/pki/server.crt"
//! key = "/etc/gantry/pki/server.key"
//! [aurae-tls]                      # gantryd: the same for Aurae's API, whose unix sockets then use TLS
//! [log]
//! max-size = "10MiB"               # a log file of an app is rotated at this size; units as of --memory, powers of 1024
//! max-files = 5                    # the number of files that are kept, the current one included
//! [fetch]
//! connect-timeout = "15s"          # name resolution and connection set-up, each
//! stall-timeout = "30s"            # the longest silence of a registry
//! retry-for = "3m"                 # how long one request is tried again
//! certificate-dirs = ["/etc/containers/certs.d"]   # HOST[:PORT]/*.crt, *.cert, *.key, hosts.toml
//! registries-conf = "/etc/containers/registries.conf"   # mirrors and blocked names; with registries.conf.d/*.conf
//! [network]
//! default = "default"              # of a pod without --net; written as --net
//! config-dirs = ["/etc/gantry/net.d", "/etc/cni/net.d"]   # the first configuration of a name counts
//! plugin-dirs = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"]
//! use-plugins = false              # run CNI plugins also for networks that gantry implements natively
//! plugin-timeout = "60s"           # how long one plugin may take
//! resolver = true                  # pods find each other by name
//! sandbox-network = "auto"         # of the CRI's sandboxes: "auto", "cni" (never `default`), or as default above
//! sandbox-config-dir = "/etc/cni/net.d"   # the first configuration by file name is the network of sandboxes
//! [user-namespaces]
//! ids = "100000:655360"            # of pods with --userns=auto, HOSTID:LENGTH; default: /etc/subuid and /etc/subgid
//! ```

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_contract::plan::LogLimits;
use gantry_host::file::{read_text, strip_byte_order_mark};
use gantry_model::cgroup::CgroupManager;
use gantry_model::id::shown;
use gantry_model::image_ref::DefaultRegistry;
use gantry_model::{ErrorKind, quantity};
use serde::Deserialize;

use crate::{EngineError, GcOptions, NetworkOptions, Options};

pub(crate) const DEFAULT_DIR: &str = "/var/lib/gantry";
const DEFAULT_CONFIG: &str = "/etc/gantry/config.toml";
/// The largest configuration file, in bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// The shortest interval of garbage collection, which reads all rows.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The interval of samples, as of cAdvisor in a kubelet.
const DEFAULT_SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// The allowed intervals of samples: each reads some 20 files per pod and per app.
const SAMPLE_INTERVAL: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// Each directory is read at every start.
const MAX_DIRS: usize = 32;
/// The allowed timeouts of a plugin.
const PLUGIN_LIMIT: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// With fewer, a follower that stops for a moment on a busy host would miss some; with more, backups become slow.
const EVENTS_KEPT: std::ops::RangeInclusive<u64> = 1000..=10_000_000;

/// The default commands. With systemd as with SysV init, shutdown(8) asks the service manager and returns.
const REBOOT_COMMAND: [&str; 3] = ["/sbin/shutdown", "-r", "now"];
const SHUTDOWN_COMMAND: [&str; 3] = ["/sbin/shutdown", "-P", "now"];

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    dir: Option<PathBuf>,
    default_registry: Option<String>,
    cgroup_parent: Option<String>,
    cgroup_manager: Option<String>,
    stop_grace: Option<String>,
    gc_interval: Option<String>,
    gc_grace: Option<String>,
    expire_prepared: Option<String>,
    listen: Option<Vec<String>>,
    machine_listen: Option<Vec<String>>,
    aurae_listen: Option<Vec<String>>,
    cri_listen: Option<Vec<String>>,
    cri_stream_listen: Option<String>,
    time_server: Option<String>,
    metrics_listen: Option<Vec<String>>,
    sample_interval: Option<String>,
    events_kept: Option<u64>,
    backup_interval: Option<String>,
    machine_tls: Option<TlsSettings>,
    aurae_tls: Option<TlsSettings>,
    #[serde(default)]
    machine_control: bool,
    reboot_command: Option<Vec<String>>,
    shutdown_command: Option<Vec<String>>,
    #[serde(default)]
    log: Log,
    #[serde(default)]
    fetch: Fetch,
    #[serde(default)]
    network: Network,
    #[serde(default)]
    user_namespaces: UserNamespaces,
}

/// The commands that reboot and power off the host, each a program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineCommands {
    /// Reboots.
    pub reboot: Vec<String>,
    /// Powers off.
    pub shutdown: Vec<String>,
}

/// The files of mutual TLS of an API, in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TlsSettings {
    /// The certificates of the authorities of clients.
    pub ca: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The key of the server's certificate.
    pub key: PathBuf,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Log {
    max_size: Option<String>,
    max_files: Option<u32>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Fetch {
    connect_timeout: Option<String>,
    stall_timeout: Option<String>,
    retry_for: Option<String>,
    certificate_dirs: Option<Vec<String>>,
    registries_conf: Option<PathBuf>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Network {
    default: Option<String>,
    config_dirs: Option<Vec<String>>,
    plugin_dirs: Option<Vec<String>>,
    use_plugins: Option<bool>,
    plugin_timeout: Option<String>,
    resolver: Option<bool>,
    sandbox_network: Option<String>,
    sandbox_config_dir: Option<PathBuf>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct UserNamespaces {
    ids: Option<String>,
}

/// The settings from flags, environment and file.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Of the engine.
    pub options: Options,
    /// Of gantryd.
    pub keeper: KeeperSettings,
    /// The addresses on which gantryd serves rkt's API, as written; `None`: not configured.
    pub listen: Option<Vec<String>>,
    /// The addresses on which gantryd serves the Talos node API, as written; `None`: not configured.
    pub machine_listen: Option<Vec<String>>,
    /// The addresses on which gantryd serves Aurae's API, as written; `None`: not configured.
    pub aurae_listen: Option<Vec<String>>,
    /// The addresses on which gantryd serves the Kubernetes CRI, as written; `None`: not configured.
    pub cri_listen: Option<Vec<String>>,
    /// gantryd: the address of exec, attach and port-forward of the CRI; `none`: they are not served.
    pub cri_stream_listen: Option<String>,
    /// The certificates of the Talos node API; `None`: it is not served over TCP.
    pub machine_tls: Option<TlsSettings>,
    /// The certificates of Aurae's API; `None`: it is served without TLS.
    pub aurae_tls: Option<TlsSettings>,
    /// The time server that the Talos node API asks.
    pub time_server: Option<String>,
    /// The addresses on which gantryd serves metrics, as written; `None`: not configured.
    pub metrics_listen: Option<Vec<String>>,
    /// The interval at which gantryd samples the counters of running pods.
    pub sample_interval: Duration,
    /// The commands that reboot and power off the host for clients of the Talos node API; `None`: clients may not.
    pub machine_commands: Option<MachineCommands>,
    /// The absolute path of the configuration file, which may not exist.
    pub config: PathBuf,
}

/// Settings of garbage collection and backups in gantryd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperSettings {
    /// The interval of garbage collection.
    pub interval: Duration,
    /// The options of garbage collection.
    pub gc: GcOptions,
    /// The interval of backups of a changed database; zero: no backups.
    pub backup: Duration,
}

impl Default for KeeperSettings {
    /// Every minute, with the default grace periods of `gantry gc`; a backup every hour.
    fn default() -> Self {
        let (interval, backup) = (Duration::from_secs(60), Duration::from_secs(3600));
        Self { interval, gc: GcOptions::default(), backup }
    }
}

impl Settings {
    /// Reads the settings; `dir` and `config` are the flags of these names.
    ///
    /// # Errors
    /// [`EngineError`], also when a file that was named does not exist.
    pub fn read(dir: Option<&Path>, config: Option<&Path>) -> Result<Self, EngineError> {
        Self::read_in(dir, config, |name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn read_in(
        dir: Option<&Path>,
        config: Option<&Path>,
        environment: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Self, EngineError> {
        let named = config.map(Path::to_owned).or_else(|| environment("GANTRY_CONFIG").map(PathBuf::from));
        let path = named.clone().unwrap_or_else(|| DEFAULT_CONFIG.into());
        let file = match read(&path)? {
            Some(text) => parse(&text).map_err(|why| content_error(&path, &why))?,
            None if named.is_some() => {
                let source = io::Error::from(rustix::io::Errno::NOENT);
                return Err(read_error(&path, source));
            }
            None => File::default(),
        };
        let registry = default_registry(environment("GANTRY_DEFAULT_REGISTRY"))?;
        let dir = dir.map(Path::to_owned).or_else(|| environment("GANTRY_DIR").map(PathBuf::from));
        let of_file = dir_of_file(&file).map_err(|why| content_error(&path, &why))?;
        let dir = dir.or(of_file).unwrap_or_else(|| DEFAULT_DIR.into());
        let dir = std::path::absolute(&dir).map_err(|source| {
            let text = format!("cannot use data directory {}", dir.display());
            EngineError::new(ErrorKind::of_io(&source), text).caused_by(source)
        })?;
        let config = std::path::absolute(&path).map_err(|source| read_error(&path, source))?;
        let mut settings = Self {
            options: Options::new(dir),
            keeper: KeeperSettings::default(),
            listen: None,
            machine_listen: None,
            aurae_listen: None,
            cri_listen: None,
            cri_stream_listen: None,
            machine_tls: None,
            aurae_tls: None,
            machine_commands: None,
            time_server: None,
            metrics_listen: None,
            sample_interval: DEFAULT_SAMPLE_INTERVAL,
            config,
        };
        apply(file, &mut settings).map_err(|why| content_error(&path, &why))?;
        let of_file = settings.options.fetch.default_registry.take();
        settings.options.fetch.default_registry = registry.or(of_file);
        Ok(settings)
    }
}

/// The data directory that the file names. A relative one would be another in each working directory.
fn dir_of_file(file: &File) -> Result<Option<PathBuf>, String> {
    match &file.dir {
        Some(dir) if !dir.is_absolute() => {
            Err(format!("dir: '{}' is not an absolute path", shown(&dir.display().to_string())))
        }
        dir => Ok(dir.clone()),
    }
}

/// The registry that the environment variable names.
fn default_registry(variable: Option<OsString>) -> Result<Option<DefaultRegistry>, EngineError> {
    const NAME: &str = "GANTRY_DEFAULT_REGISTRY";
    let Some(text) = variable else { return Ok(None) };
    let text = text.into_string().map_err(|_| EngineError::new(ErrorKind::Invalid, format!("{NAME} is not UTF-8")))?;
    let registry = text.parse().map_err(|error| EngineError::new(ErrorKind::Invalid, format!("{NAME}: {error}")))?;
    Ok(Some(registry))
}

fn read_error(path: &Path, source: io::Error) -> EngineError {
    let text = format!("cannot read configuration {}", path.display());
    EngineError::new(ErrorKind::of_io(&source), text).caused_by(source)
}

fn content_error(path: &Path, problem: &str) -> EngineError {
    EngineError::new(ErrorKind::Invalid, format!("{} {problem}", path.display()))
}

/// The file's text; `None` when the file does not exist.
fn read(path: &Path) -> Result<Option<String>, EngineError> {
    let failed = |source| read_error(path, source);
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    match read_text(file, MAX_CONFIG) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            let why = format!("is longer than {MAX_CONFIG} bytes: it cannot be a configuration of gantry");
            Err(content_error(path, &why))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Parses the file, without a byte order mark.
fn parse(text: &str) -> Result<File, String> {
    let text = strip_byte_order_mark(text);
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("is not a configuration of gantry: line {line}: {}", error.message())
    })
}

/// The certificates of a table with this name, if all of their paths are absolute.
fn with_absolute_paths(name: &str, tls: Option<TlsSettings>) -> Result<Option<TlsSettings>, String> {
    if let Some(TlsSettings { ca, certificate, key }) = &tls
        && let Some(path) = [ca, certificate, key].into_iter().find(|path| !path.is_absolute())
    {
        return Err(format!("{name}: '{}' is not an absolute path", shown(&path.display().to_string())));
    }
    Ok(tls)
}

/// The words of a command of the host, which execve(2) takes.
fn command(key: &str, words: Option<Vec<String>>, default: [&str; 3]) -> Result<Vec<String>, String> {
    let words = words.unwrap_or_else(|| default.map(str::to_owned).to_vec());
    let has_program = words.first().is_some_and(|program| program.starts_with('/'));
    if !has_program || words.iter().any(|word| word.contains('\0')) {
        return Err(format!("{key}: must begin with the absolute path of a program"));
    }
    Ok(words)
}

/// Applies the settings of the file, except the data directory.
fn apply(file: File, settings: &mut Settings) -> Result<(), String> {
    apply_cgroups(file.cgroup_manager.as_deref(), file.cgroup_parent.as_deref(), &mut settings.options)?;
    let user_ids = file.user_namespaces.ids;
    let user_ids = user_ids.map(|text| text.parse().map_err(|error| format!("user-namespaces.ids: {error}")));
    settings.options.user_ids = user_ids.transpose()?;
    let registry = file.default_registry;
    let registry = registry.map(|text| text.parse().map_err(|error| format!("default-registry: {error}")));
    settings.options.fetch.default_registry = registry.transpose()?;
    settings.listen = file.listen;
    settings.machine_listen = file.machine_listen;
    settings.aurae_listen = file.aurae_listen;
    settings.cri_listen = file.cri_listen;
    settings.cri_stream_listen = file.cri_stream_listen;
    settings.machine_tls = with_absolute_paths("machine-tls", file.machine_tls)?;
    settings.aurae_tls = with_absolute_paths("aurae-tls", file.aurae_tls)?;
    let reboot = command("reboot-command", file.reboot_command, REBOOT_COMMAND)?;
    let shutdown = command("shutdown-command", file.shutdown_command, SHUTDOWN_COMMAND)?;
    settings.machine_commands = file.machine_control.then_some(MachineCommands { reboot, shutdown });
    settings.time_server = file.time_server;
    settings.metrics_listen = file.metrics_listen;
    if let Some(text) = file.sample_interval {
        settings.sample_interval = quantity::duration(&text).map_err(|error| format!("sample-interval: {error}"))?;
        if !SAMPLE_INTERVAL.contains(&settings.sample_interval) {
            return Err("sample-interval: must be 1s to 1h".to_owned());
        }
    }
    apply_fetch(file.fetch, &mut settings.options.fetch)?;
    apply_network(file.network, &mut settings.options.network)?;
    let keeper = &mut settings.keeper;
    for (key, text, place) in [
        ("stop-grace", file.stop_grace, &mut settings.options.stop_grace),
        ("gc-interval", file.gc_interval, &mut keeper.interval),
        ("gc-grace", file.gc_grace, &mut keeper.gc.grace),
        ("expire-prepared", file.expire_prepared, &mut keeper.gc.expire_prepared),
        ("backup-interval", file.backup_interval, &mut keeper.backup),
    ] {
        if let Some(text) = text {
            *place = quantity::duration(&text).map_err(|error| format!("{key}: {error}"))?;
        }
    }
    if keeper.interval < MIN_INTERVAL {
        return Err(format!("gc-interval: must be at least {MIN_INTERVAL:?}"));
    }
    if !keeper.backup.is_zero() && keeper.backup < MIN_INTERVAL {
        return Err(format!("backup-interval: must be 0 (never) or at least {MIN_INTERVAL:?}"));
    }
    let kept = &mut settings.options.events_kept;
    *kept = file.events_kept.unwrap_or(*kept);
    if !EVENTS_KEPT.contains(kept) {
        return Err(format!("events-kept: must be {} to {}", EVENTS_KEPT.start(), EVENTS_KEPT.end()));
    }
    apply_log(file.log, &mut settings.options.log)
}

fn apply_cgroups(manager: Option<&str>, parent: Option<&str>, options: &mut Options) -> Result<(), String> {
    let manager: CgroupManager =
        manager.map_or(Ok(CgroupManager::Cgroupfs), str::parse).map_err(|error| format!("cgroup-manager: {error}"))?;
    options.cgroup_parent = match parent {
        None => manager.default_parent(),
        Some(parent) => parent.parse().map_err(|error| format!("cgroup-parent: {error}"))?,
    };
    if options.cgroup_parent.manager() == manager {
        return Ok(());
    }
    Err(format!(
        "cgroup-parent: '{}' does not fit cgroup-manager = '{}': systemd needs a slice, cgroupfs a path",
        options.cgroup_parent,
        manager.as_str()
    ))
}

fn apply_log(log: Log, limits: &mut LogLimits) -> Result<(), String> {
    let defaults = LogLimits::default();
    let max_bytes = log.max_size.map(|size| quantity::memory(&size).map_err(|e| format!("log.max-size: {e}")));
    let max_bytes = max_bytes.transpose()?.unwrap_or(defaults.max_bytes);
    let max_files = log.max_files.unwrap_or(defaults.max_files);
    if max_bytes < 4096 || !(1..=1000).contains(&max_files) {
        return Err("log: max-size must be at least 4KiB, and max-files 1 to 1000".to_owned());
    }
    *limits = LogLimits { max_bytes, max_files };
    Ok(())
}

fn apply_fetch(fetch: Fetch, config: &mut gantry_fetch::Config) -> Result<(), String> {
    if let Some(dirs) = fetch.certificate_dirs {
        config.certificate_dirs =
            absolute_dirs("fetch.certificate-dirs", dirs)?.into_iter().map(PathBuf::from).collect();
    }
    if let Some(path) = fetch.registries_conf {
        if !path.is_absolute() {
            return Err(format!(
                "fetch.registries-conf: '{}' is not an absolute path",
                shown(&path.display().to_string())
            ));
        }
        config.registries_conf = Some(path);
    }
    let timeouts = &mut config.timeouts;
    for (key, text, place) in [
        ("fetch.connect-timeout", fetch.connect_timeout, &mut timeouts.connect),
        ("fetch.stall-timeout", fetch.stall_timeout, &mut timeouts.no_progress),
        ("fetch.retry-for", fetch.retry_for, &mut timeouts.total_retry),
    ] {
        let Some(text) = text else { continue };
        *place = quantity::duration(&text).map_err(|error| format!("{key}: {error}"))?;
        // A socket timeout of zero means none.
        if place.is_zero() {
            return Err(format!("{key}: must be more than nothing"));
        }
    }
    Ok(())
}

/// Checks a list of directories.
fn absolute_dirs(key: &str, dirs: Vec<String>) -> Result<Vec<String>, String> {
    let unfit = |dir: &&String| !dir.starts_with('/') || dir.contains('\0');
    if let Some(dir) = dirs.iter().find(unfit) {
        return Err(format!("{key}: '{}' is not an absolute path", shown(dir)));
    }
    if dirs.len() > MAX_DIRS {
        return Err(format!("{key}: at most {MAX_DIRS} directories are looked through"));
    }
    Ok(dirs)
}

fn apply_network(network: Network, options: &mut NetworkOptions) -> Result<(), String> {
    let Network {
        default,
        config_dirs,
        plugin_dirs,
        use_plugins,
        plugin_timeout,
        resolver,
        sandbox_network,
        sandbox_config_dir,
    } = network;
    if let Some(text) = default {
        options.default = text.parse().map_err(|error| format!("network.default: {error}"))?;
    }
    for (key, dirs, place) in [
        ("network.config-dirs", config_dirs, &mut options.config_dirs),
        ("network.plugin-dirs", plugin_dirs, &mut options.plugin_dirs),
    ] {
        if let Some(dirs) = dirs {
            *place = absolute_dirs(key, dirs)?;
        }
    }
    if let Some(text) = plugin_timeout {
        let limit = quantity::duration(&text).map_err(|error| format!("network.plugin-timeout: {error}"))?;
        // Plugins start processes of their own, and pods must come to an end.
        if !PLUGIN_LIMIT.contains(&limit) {
            return Err("network.plugin-timeout: must be 100ms to 1h".to_owned());
        }
        options.plugin_limit = limit;
    }
    if let Some(text) = sandbox_network {
        options.sandbox = text.parse().map_err(|error| format!("network.sandbox-network: {error}"))?;
    }
    if let Some(dir) = sandbox_config_dir {
        if !dir.is_absolute() {
            let dir = shown(&dir.display().to_string());
            return Err(format!("network.sandbox-config-dir: '{dir}' is not an absolute path"));
        }
        options.sandbox_config_dir = dir;
    }
    options.use_plugins = use_plugins.unwrap_or(options.use_plugins);
    options.resolver = resolver.unwrap_or(options.resolver);
    Ok(())
}

#[cfg(test)]
mod tests {
    use gantry_model::Kind as _;

    use super::*;

    fn settings(text: &str) -> Result<Settings, String> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        Settings::read_in(None, Some(&path), |_| None).map_err(|error| error.to_string())
    }

    #[test]
    fn every_setting_is_parsed() {
        let all = "dir = '/d'\ndefault-registry = 'docker.io'\ncgroup-parent = '/a/b'\nstop-grace = '3s'\n\
                   gc-interval = '5m'\ngc-grace = '0'\nexpire-prepared = '1h'\nevents-kept = 5000\n\
                   backup-interval = '2h'\nlisten = ['unix:/a']\nmachine-listen = ['none']\naurae-listen = ['unix:/b']\nmetrics-listen = []\n\
                   cri-listen = ['unix:/c']\n\
                   cri-stream-listen = '127.0.0.1:7'\n\
                   sample-interval = '1m'\ntime-server = 't'\n\
                   machine-control = true\nreboot-command = ['/r']\n\
                   machine-tls = { ca = '/c', certificate = '/d', key = '/e' }\n[log]\nmax-size = '1MiB'\nmax-files = 2\n";
        let all = settings(all).unwrap();
        assert_eq!((all.metrics_listen, all.sample_interval), (Some(Vec::new()), Duration::from_secs(60)));
        let Settings {
            options,
            keeper,
            listen,
            machine_listen,
            aurae_listen,
            cri_listen,
            cri_stream_listen,
            machine_tls,
            machine_commands,
            time_server,
            config,
            ..
        } = all;
        assert_eq!(time_server.as_deref(), Some("t"));
        assert_eq!(listen.as_deref(), Some(&["unix:/a".to_owned()][..]));
        assert_eq!(machine_listen.as_deref(), Some(&["none".to_owned()][..]));
        assert_eq!(aurae_listen.as_deref(), Some(&["unix:/b".to_owned()][..]));
        assert_eq!(cri_listen.as_deref(), Some(&["unix:/c".to_owned()][..]));
        assert_eq!(cri_stream_listen.as_deref(), Some("127.0.0.1:7"));
        assert_eq!(machine_tls, Some(TlsSettings { ca: "/c".into(), certificate: "/d".into(), key: "/e".into() }));
        let commands = machine_commands.unwrap();
        assert_eq!(
            (&commands.reboot[..], &commands.shutdown[..]),
            (&["/r".to_owned()][..], &SHUTDOWN_COMMAND.map(str::to_owned)[..])
        );
        assert_eq!(settings("reboot-command = ['/r']").unwrap().machine_commands, None);
        assert!(config.is_absolute() && config.ends_with("config.toml"), "{config:?}");
        assert_eq!((options.dir.as_path(), options.cgroup_parent.as_str()), (Path::new("/d"), "/a/b"));
        assert_eq!(options.fetch.default_registry, "docker.io".parse().ok());
        assert_eq!((options.log.max_bytes, options.log.max_files), (1 << 20, 2));
        assert_eq!((options.stop_grace, keeper.interval), (Duration::from_secs(3), Duration::from_secs(300)));
        assert_eq!((keeper.gc.grace, keeper.gc.expire_prepared), (Duration::ZERO, Duration::from_secs(3600)));
        assert_eq!(options.events_kept, 5000);
        assert_eq!(keeper.backup, Duration::from_secs(7200));
        assert_eq!(settings("backup-interval = '0'").unwrap().keeper.backup, Duration::ZERO);
        assert_eq!(settings("\u{feff}events-kept = 5000").unwrap().options.events_kept, 5000);
        let none = settings("").unwrap();
        assert_eq!((none.options.log, none.keeper), (LogLimits::default(), KeeperSettings::default()));
        assert_eq!((none.options.dir.as_path(), none.listen), (Path::new(DEFAULT_DIR), None));
    }

    #[test]
    fn the_example_has_every_key_at_its_default() {
        let example = include_str!("../../../docs/examples/config.toml");
        // A comment has a space after its '#', a key has none.
        let uncomment = |line: &str| match line.strip_prefix('#') {
            Some(key) if !key.starts_with(' ') => format!("{key}\n"),
            _ => format!("{line}\n"),
        };
        let every_key = parse(&example.lines().map(uncomment).collect::<String>()).unwrap();
        let shown = format!("{every_key:?}");
        assert!(!shown.contains("None"), "a key is missing: {shown}");

        let (without_default, with_default): (Vec<&str>, Vec<&str>) = example
            .lines()
            .partition(|line| line.ends_with("; none by default") || line.ends_with("# none by default"));
        let with_default: String = with_default.into_iter().map(uncomment).collect();
        let mut got = settings(&with_default).unwrap();
        let none = settings("").unwrap();
        let keys = without_default.into_iter().filter_map(|line| line.split(['#', ' ', '=']).nth(1));
        let tls = |name| [name, "ca", "certificate", "key"];
        let keys_of_tls = [tls("[machine-tls]"), tls("[aurae-tls]")].concat();
        assert_eq!(keys.collect::<Vec<_>>(), [&["default-registry", "time-server"][..], &keys_of_tls].concat());
        assert_eq!((&none.options.fetch.default_registry, &none.time_server), (&None, &None));
        assert_eq!((&none.machine_tls, &none.aurae_tls), (&None, &None));
        // The files of the host are considered first.
        assert_eq!(got.options.user_ids.take(), Some(gantry_model::user_namespace::DEFAULT_POOL));
        // gantryd chooses the addresses if none are given.
        for listen in [
            &mut got.listen,
            &mut got.machine_listen,
            &mut got.aurae_listen,
            &mut got.cri_listen,
            &mut got.metrics_listen,
        ] {
            assert!(listen.take().is_some());
        }
        got.cri_stream_listen = None;
        got.config.clone_from(&none.config);
        assert_eq!(format!("{got:?}"), format!("{none:?}"));
        let enabled = with_default.replace("machine-control = false", "machine-control = true");
        let commands = |text: &str| settings(text).unwrap().machine_commands.unwrap();
        assert_eq!(commands(&enabled), commands("machine-control = true"));
    }

    #[test]
    fn the_cgroup_manager_decides_the_default_parent() {
        for (text, want) in [
            ("", "/gantry"),
            ("cgroup-manager = 'cgroupfs'", "/gantry"),
            ("cgroup-manager = 'systemd'", "gantry.slice"),
            ("cgroup-manager = 'systemd'\ncgroup-parent = 'a-b.slice'", "a-b.slice"),
        ] {
            assert_eq!(settings(text).unwrap().options.cgroup_parent.as_str(), want);
        }
    }

    #[test]
    fn fetch_timeouts_are_parsed() {
        let text = "[fetch]\nconnect-timeout = '1s'\nstall-timeout = '500ms'\nretry-for = '1m'\n";
        let timeouts = settings(text).unwrap().options.fetch.timeouts;
        let times = [timeouts.connect, timeouts.no_progress, timeouts.total_retry];
        assert_eq!(times.map(|time| time.as_millis()), [1000, 500, 60_000]);
        assert_eq!(settings("").unwrap().options.fetch.timeouts, gantry_fetch::Timeouts::default());
    }

    #[test]
    fn network_settings_are_parsed() {
        let text = "[network]\ndefault = 'none'\nconfig-dirs = ['/a', '/b']\nplugin-dirs = []\nuse-plugins = true\n\
                    plugin-timeout = '5s'\nresolver = false\nsandbox-network = 'lan'\nsandbox-config-dir = '/c'\n";
        let got = settings(text).unwrap().options.network;
        let want = NetworkOptions {
            default: gantry_model::NetMode::None,
            config_dirs: vec!["/a".into(), "/b".into()],
            plugin_dirs: vec![],
            use_plugins: true,
            plugin_limit: Duration::from_secs(5),
            resolver: false,
            sandbox: "lan".parse().unwrap(),
            sandbox_config_dir: "/c".into(),
        };
        assert_eq!(got, want);
        let two = settings("[network]\ndefault = 'a:IP=10.0.0.1,b'").unwrap().options.network;
        assert_eq!(two, NetworkOptions { default: "a:IP=10.0.0.1,b".parse().unwrap(), ..NetworkOptions::default() });
        assert_eq!(settings("[network]").unwrap().options.network, NetworkOptions::default());
    }

    #[test]
    fn errors_name_the_setting() {
        for (text, want) in [
            ("[network]\ndefault = 'host,a'", "network.default: 'host' cannot be combined"),
            ("[network]\ndefault = 'a b'", "network.default"),
            ("[network]\nsandbox-network = 'a b'", "network.sandbox-network"),
            ("[network]\nsandbox-config-dir = 'net.d'", "network.sandbox-config-dir: 'net.d' is not an absolute path"),
            ("[network]\nconfig-dirs = ['net.d']", "network.config-dirs: 'net.d' is not an absolute path"),
            ("[network]\nplugin-dirs = ['']", "network.plugin-dirs"),
            ("[network]\nplugin-dirs = '/opt'", "line 2"),
            ("[fetch]\ncertificate-dirs = ['certs.d']", "fetch.certificate-dirs: 'certs.d' is not an absolute path"),
            ("[fetch]\nregistries-conf = 'r.conf'", "fetch.registries-conf: 'r.conf' is not an absolute path"),
            ("[network]\nplugin-timeout = '0s'", "network.plugin-timeout"),
            ("[network]\nplugin-timeout = '2h'", "network.plugin-timeout"),
            ("[network]\nplugin-timeout = 'soon'", "network.plugin-timeout"),
            ("[network]\nuse-plugins = 'yes'", "line 2"),
            ("[network]\nuse_plugins = true", "line 2"),
            ("[user-namespaces]\nids = '0:5'", "user-namespaces.ids: the range 0:5"),
            ("\nstop-grce = '3s'", "line 2"),
            ("stop-grace = 'x'", "stop-grace"),
            ("stop-grace = 3", "line 1"),
            ("gc-interval = '0'", "gc-interval"),
            ("gc-grace = 'soon'", "gc-grace"),
            ("listen = 'unix:/a'", "line 1"),
            ("backup-interval = '1ms'", "backup-interval"),
            ("sample-interval = '0'", "sample-interval: must be 1s to 1h"),
            ("expire-prepared = '1'", "expire-prepared"),
            ("machine-tls = { ca = '/c', certificate = '/d' }", "line 1"),
            ("machine-tls = { ca = '/c', certificate = 'd', key = '/e' }", "machine-tls: 'd' is not an absolute path"),
            ("aurae-tls = { ca = 'c', certificate = '/d', key = '/e' }", "aurae-tls: 'c' is not an absolute path"),
            ("reboot-command = ['reboot']", "reboot-command: must begin with the absolute path"),
            ("shutdown-command = []", "shutdown-command"),
            ("events-kept = 999", "events-kept: must be 1000 to 10000000"),
            ("events-kept = 10000001", "events-kept"),
            ("events-kept = -1", "line 1"),
            ("events-kept = '5000'", "line 1"),
            ("[log]\nmax-files = 0", "max-files"),
            ("[log]\nmax-size = '1'", "max-size"),
            ("dir = 'data'", "dir: 'data' is not an absolute path"),
            ("dir = ''", "dir: '' is not an absolute path"),
            ("default-registry = 'http://x/'", "default-registry: 'http://x/' is not a registry"),
            ("cgroup-parent = '../x'", "cgroup-parent: cgroup parent '../x'"),
            ("cgroup-manager = 'docker'", "cgroup-manager: 'docker' is neither cgroupfs nor systemd"),
            ("cgroup-manager = 'systemd'\ncgroup-parent = '/a'", "cgroup-parent: '/a' does not fit"),
            ("cgroup-parent = 'a.slice'", "cgroup-parent: 'a.slice' does not fit"),
            ("[fetch]\nstall-timeout = '0s'", "fetch.stall-timeout"),
            ("[fetch]\nretry-for = 'soon'", "fetch.retry-for"),
            ("[fetch]\nretry = '1s'", "line 2"),
            ("= =", "line 1"),
        ] {
            let why = settings(text).unwrap_err();
            assert!(why.contains(want) && why.contains("config.toml"), "{text:?}: {why}");
        }
    }

    #[test]
    fn flags_override_environment_and_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("config.toml");
        std::fs::write(&path, "dir = '/file'\ndefault-registry = 'file'").unwrap();
        let environment = |name: &'static str| match name {
            "GANTRY_CONFIG" => Some(path.clone().into_os_string()),
            "GANTRY_DIR" => Some("/environment".into()),
            "GANTRY_DEFAULT_REGISTRY" => Some("environment".into()),
            _ => None,
        };
        let dir = |flag: Option<&str>| Settings::read_in(flag.map(Path::new), None, environment).unwrap().options.dir;
        assert_eq!(dir(Some("/flag")), Path::new("/flag"));
        assert_eq!(dir(None), Path::new("/environment"));
        let registry = Settings::read_in(None, None, environment).unwrap().options.fetch.default_registry;
        assert_eq!(registry, "environment".parse().ok());
        let unfit = Settings::read_in(None, None, |name| match name {
            "GANTRY_DEFAULT_REGISTRY" => Some("http://x/".into()),
            name => environment(name),
        });
        let why = unfit.unwrap_err().to_string();
        assert!(why.starts_with("GANTRY_DEFAULT_REGISTRY: 'http://x/' is not a registry"), "{why}");
        let of_file = Settings::read_in(None, Some(&path), |_| None).unwrap().options;
        assert_eq!(of_file.dir, Path::new("/file"));
        let absent = Settings::read_in(None, Some(&home.path().join("none")), environment).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
    }
}
