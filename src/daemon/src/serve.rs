//! Starts the API: on the sockets from flags, the configuration or a service manager.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, bail};
use gantry_api::metrics::http::METRICS_SOCKET_ACCESS;
use gantry_api::talos::{MachineControl, NodeCertificate};
use gantry_api::{
    Address, ApiSettings, Config, Endpoint, Listener, LiveSettings, MutualTls, Running, SocketAccess, TlsFiles, aurae,
    cri, rkt, talos,
};
use gantry_engine::{Settings, TlsSettings};
use tracing::{info, warn};

use crate::Args;

/// The directory of the default socket. The default is not a TCP address, because every user of the host and every pod
/// in the host's network could connect to it.
const DEFAULT_RUN_DIR: &str = "/run/gantry";
/// The value of the setting of an API that disables it.
const NONE: &str = "none";
/// The kernel's list of IPv6 addresses. It does not exist if IPv6 is disabled.
const IPV6_ADDRESSES: &str = "/proc/net/if_inet6";

/// The sockets of one API.
#[derive(Debug, PartialEq, Eq)]
enum ListenSpec {
    /// None: the API is disabled.
    None,
    /// The sockets that the service manager passed.
    Passed,
    /// At these addresses.
    Addresses(Vec<Address>),
    /// At the default socket in this directory.
    Default(PathBuf),
}

/// How an API listens.
struct ApiListen {
    /// The name of its setting, and of its flag without dashes.
    setting: &'static str,
    /// The addresses that its flag gives or else the configuration; `None`: neither gives any.
    given: for<'a> fn(&'a Args, &'a Settings) -> Option<&'a [String]>,
    /// Where it listens if none are given.
    default: DefaultAddress,
    /// Whether several gantryd would compete for the default address.
    is_contested: bool,
    /// The access of its socket files.
    access: SocketAccess,
    tcp: TcpRule,
}

/// Where an API listens if no addresses are given.
enum DefaultAddress {
    /// A socket of this name in the directory of the default sockets.
    Socket(&'static str),
    /// This TCP address.
    Tcp(&'static str),
}

/// Whether an API is served over TCP.
enum TcpRule {
    /// It is.
    Served,
    /// With mutual TLS only, whose setting has this name. Then it is served at these addresses by default, too.
    WithCertificates { tls_setting: &'static str, default: &'static [(&'static str, u16)] },
    /// Over unix sockets only.
    Never,
    /// Over TCP only.
    Only,
}

const RKT: ApiListen = ApiListen {
    setting: "listen",
    given: |args, settings| given(&args.listen, settings.listen.as_ref()),
    default: DefaultAddress::Socket("api.sock"),
    is_contested: false,
    access: rkt::SOCKET_ACCESS,
    tcp: TcpRule::Served,
};
const TALOS: ApiListen = ApiListen {
    setting: "machine-listen",
    given: |args, settings| given(&args.machine_listen, settings.machine_listen.as_ref()),
    default: DefaultAddress::Socket("machine.sock"),
    is_contested: true,
    access: talos::SOCKET_ACCESS,
    // The port of Talos.
    tcp: TcpRule::WithCertificates { tls_setting: "machine-tls", default: &[("0.0.0.0", 50000), ("::", 50000)] },
};
const AURAE: ApiListen = ApiListen {
    setting: "aurae-listen",
    given: |args, settings| given(&args.aurae_listen, settings.aurae_listen.as_ref()),
    default: DefaultAddress::Socket("aurae.sock"),
    is_contested: true,
    access: aurae::SOCKET_ACCESS,
    tcp: TcpRule::Never,
};
const CRI: ApiListen = ApiListen {
    setting: "cri-listen",
    given: |args, settings| given(&args.cri_listen, settings.cri_listen.as_ref()),
    default: DefaultAddress::Socket("cri.sock"),
    is_contested: true,
    access: cri::SOCKET_ACCESS,
    tcp: TcpRule::Never,
};
/// The streaming server of the CRI. The URLs of the CRI have its address, so that any free port will do.
const CRI_STREAM: ApiListen = ApiListen {
    setting: "cri-stream-listen",
    given: |args, settings| {
        let address = args.cri_stream_listen.as_ref().or(settings.cri_stream_listen.as_ref());
        address.map(std::slice::from_ref)
    },
    default: DefaultAddress::Tcp("127.0.0.1:0"),
    is_contested: false,
    access: cri::SOCKET_ACCESS,
    tcp: TcpRule::Only,
};
const METRICS: ApiListen = ApiListen {
    setting: "metrics-listen",
    given: |args, settings| given(&args.metrics_listen, settings.metrics_listen.as_ref()),
    default: DefaultAddress::Tcp("127.0.0.1:15442"),
    is_contested: true,
    access: METRICS_SOCKET_ACCESS,
    tcp: TcpRule::Served,
};

/// All of them.
const APIS: [&ApiListen; 6] = [&RKT, &TALOS, &AURAE, &CRI, &CRI_STREAM, &METRICS];

/// Flags win over the configuration.
fn given<'a>(flags: &'a [String], setting: Option<&'a Vec<String>>) -> Option<&'a [String]> {
    if flags.is_empty() { setting.map(Vec::as_slice) } else { Some(flags) }
}

impl ApiListen {
    /// Refuses addresses at which the API is not served.
    fn check(&self, addresses: &[Address], has_certificates: bool) -> anyhow::Result<()> {
        let setting = self.setting;
        let tcp = addresses.iter().find(|address| matches!(address, Address::Tcp(..)));
        let unix = addresses.iter().find(|address| matches!(address, Address::Unix(_)));
        match (&self.tcp, tcp, unix) {
            (TcpRule::Never, Some(tcp), _) => {
                bail!("'{setting}' names {tcp}, but this API is served on unix sockets only")
            }
            (TcpRule::WithCertificates { tls_setting, .. }, Some(tcp), _) if !has_certificates => bail!(
                "'{setting}' names {tcp}, but TCP needs mutual TLS: make certificates with 'gantry pki', and name them \
                 under '{tls_setting}' in the configuration"
            ),
            (TcpRule::Only, _, Some(Address::Unix(path))) => {
                bail!("'{setting}' names {}, but clients need TCP", path.display())
            }
            // No rule of the setting concerns this address.
            _ => Ok(()),
        }
    }

    /// Where it listens if no addresses are given: at its socket in this directory, which is made.
    fn default_addresses(&self, dir: &Path, has_certificates: bool) -> anyhow::Result<Vec<Address>> {
        let mut addresses = match self.default {
            DefaultAddress::Tcp(address) => vec![address.parse()?],
            DefaultAddress::Socket(name) => {
                std::fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o755)
                    .create(dir)
                    .with_context(|| format!("cannot make {}", dir.display()))?;
                vec![Address::Unix(dir.join(name))]
            }
        };
        if let TcpRule::WithCertificates { default, .. } = self.tcp
            && has_certificates
        {
            let is_usable = |host: &str| !host.contains(':') || Path::new(IPV6_ADDRESSES).exists();
            let usable = default.iter().filter(|(host, _)| is_usable(host));
            addresses.extend(usable.map(|(host, port)| Address::Tcp((*host).to_owned(), *port)));
        }
        Ok(addresses)
    }
}

/// The addresses of the APIs, as flags and the configuration give them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenAddresses<'a> {
    args: &'a Args,
    settings: &'a Settings,
}

impl<'a> ListenAddresses<'a> {
    /// From these flags and this configuration.
    pub(crate) const fn new(args: &'a Args, settings: &'a Settings) -> Self {
        Self { args, settings }
    }

    /// Whether this may be one of several gantryd, which must not compete for the default addresses of APIs: a flag
    /// names the addresses of rkt's API, and none names a directory for the default sockets.
    fn is_one_of_several(self) -> bool {
        !self.args.listen.is_empty() && self.args.run_dir.is_none()
    }

    /// The addresses of an API; `None`: the default ones.
    fn of(self, api: &ApiListen) -> Option<&'a [String]> {
        let none = (api.is_contested && self.is_one_of_several()).then_some(&[][..]);
        (api.given)(self.args, self.settings).or(none)
    }

    /// The settings that differ in a configuration that was read again. Sockets stay as they are.
    fn differences(self, read_again: ListenAddresses<'_>) -> impl Iterator<Item = &'static str> {
        let differs = move |api: &&ApiListen| {
            (api.given)(self.args, self.settings) != (api.given)(read_again.args, read_again.settings)
        };
        APIS.into_iter().filter(differs).map(|api| api.setting)
    }

    /// Warns of the settings that need a restart.
    pub(crate) fn warn_of_differences(self, read_again: ListenAddresses<'_>) {
        for setting in self.differences(read_again) {
            warn!("'{setting}' has changed in the configuration: restart gantryd to use it");
        }
    }
}

/// Opens the sockets of all APIs. `passed`: sockets of rkt's API from the service manager.
pub(crate) fn endpoints(
    passed: Vec<Listener>,
    addresses: ListenAddresses<'_>,
    settings: SurfaceSettings,
) -> anyhow::Result<Vec<Endpoint>> {
    let rkt = open(&RKT, addresses, passed, false)?;
    let talos = open(&TALOS, addresses, Vec::new(), settings.machine_tls.is_some())?;
    let aurae = open(&AURAE, addresses, Vec::new(), settings.aurae_tls.is_some())?;
    let cri = open(&CRI, addresses, Vec::new(), false)?;
    let mut endpoints = Vec::new();
    if !rkt.is_empty() {
        endpoints.push(rkt::endpoint(rkt));
    }
    if !talos.is_empty() {
        endpoints.push(talos::endpoint(talos, settings.machine_tls, settings.control, settings.certificate));
    }
    if !aurae.is_empty() {
        endpoints.push(aurae::endpoint(aurae, settings.aurae_tls));
    }
    if !cri.is_empty() {
        endpoints.push(cri::endpoint(cri, open(&CRI_STREAM, addresses, Vec::new(), false)?));
    }
    Ok(endpoints)
}

/// Opens the sockets of an API. `passed`: those from the service manager.
fn open(
    api: &ApiListen,
    addresses: ListenAddresses<'_>,
    passed: Vec<Listener>,
    has_certificates: bool,
) -> anyhow::Result<Vec<Listener>> {
    let run_dir = addresses.args.run_dir.as_deref();
    let addresses = match listen_spec(api.setting, !passed.is_empty(), addresses.of(api), run_dir)? {
        ListenSpec::None => return Ok(Vec::new()),
        ListenSpec::Passed => return Ok(passed),
        ListenSpec::Addresses(addresses) => addresses,
        ListenSpec::Default(dir) => api.default_addresses(&dir, has_certificates)?,
    };
    api.check(&addresses, has_certificates)?;
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.extend(Listener::open(&address, api.access)?);
    }
    Ok(listeners)
}

/// Opens the sockets of the metrics. The default address is not required: if it is in use, a warning is logged.
pub(crate) fn metrics_listeners(addresses: ListenAddresses<'_>) -> anyhow::Result<Vec<Listener>> {
    let is_default = addresses.of(&METRICS).is_none();
    if is_default && addresses.args.run_dir.is_some() {
        return Ok(Vec::new());
    }
    let opened = open(&METRICS, addresses, Vec::new(), false);
    opened.or_else(|error| {
        if !is_default {
            return Err(error);
        }
        warn!("no metrics are served: {error:#}; 'metrics-listen' sets another address");
        Ok(Vec::new())
    })
}

/// The settings of the APIs that change with the configuration, without a restart.
#[derive(Debug, Clone)]
pub(crate) struct SurfaceSettings {
    machine_tls: Option<MutualTls>,
    aurae_tls: Option<MutualTls>,
    control: MachineControl,
    /// The certificate of `machine_tls`.
    certificate: NodeCertificate,
    live: LiveSettings,
}

impl SurfaceSettings {
    /// Reads the certificates.
    pub(crate) fn load(settings: &Settings) -> anyhow::Result<Self> {
        let load = |tls: &Option<TlsSettings>| tls.as_ref().map(tls_files).map(MutualTls::load).transpose();
        let loaded = Self {
            machine_tls: load(&settings.machine_tls).context("cannot serve the Talos node API over TCP")?,
            aurae_tls: load(&settings.aurae_tls).context("cannot serve Aurae's API")?,
            control: MachineControl::default(),
            certificate: NodeCertificate::default(),
            live: LiveSettings::new(api_settings(settings)),
        };
        loaded.control.set(machine_commands(settings));
        loaded.certificate.set_file(machine_certificate(settings));
        Ok(loaded)
    }

    /// The settings that calls use.
    pub(crate) fn live(&self) -> LiveSettings {
        self.live.clone()
    }

    /// Follows a configuration that was read again.
    pub(crate) fn reload(&self, settings: &Settings) {
        self.live.replace(api_settings(settings));
        self.control.set(machine_commands(settings));
        if self.machine_tls.is_some() {
            self.certificate.set_file(machine_certificate(settings));
        }
        let tables = [
            ("machine-tls", &self.machine_tls, &settings.machine_tls),
            ("aurae-tls", &self.aurae_tls, &settings.aurae_tls),
        ];
        for (name, tls, files) in tables {
            match (tls, files) {
                (Some(tls), files) => tls.set_files(files.as_ref().map(tls_files)),
                (None, Some(_)) => warn!("'{name}' is new in the configuration: restart gantryd to use it"),
                (None, None) => {}
            }
        }
    }
}

fn api_settings(settings: &Settings) -> ApiSettings {
    let Settings { options, time_server, sample_interval, .. } = settings;
    ApiSettings { options: options.clone(), time_server: time_server.clone(), sample_interval: *sample_interval }
}

fn machine_commands(settings: &Settings) -> Option<talos::MachineCommands> {
    let commands = settings.machine_commands.clone()?;
    Some(talos::MachineCommands { reboot: commands.reboot, shutdown: commands.shutdown })
}

/// The file of the certificate of the Talos node API.
fn machine_certificate(settings: &Settings) -> Option<PathBuf> {
    settings.machine_tls.as_ref().map(|tls| tls.certificate.clone())
}

fn tls_files(tls: &TlsSettings) -> TlsFiles {
    TlsFiles { authorities: tls.ca.clone(), certificate: tls.certificate.clone(), key: tls.key.clone() }
}

/// The sockets of an API whose setting has this name.
fn listen_spec(
    setting: &str,
    passed: bool,
    addresses: Option<&[String]>,
    run_dir: Option<&Path>,
) -> anyhow::Result<ListenSpec> {
    let Some(addresses) = addresses else {
        let dir = std::path::absolute(run_dir.unwrap_or(Path::new(DEFAULT_RUN_DIR)))?;
        return Ok(if passed { ListenSpec::Passed } else { ListenSpec::Default(dir) });
    };
    if passed {
        bail!("the service manager passed sockets and '{setting}' names addresses: give only one of them");
    }
    if addresses.is_empty() || addresses == [NONE] {
        return Ok(ListenSpec::None);
    }
    if addresses.iter().any(|text| text == NONE) {
        bail!("'{setting}' is either '{NONE}' or addresses");
    }
    Ok(ListenSpec::Addresses(addresses.iter().map(|text| text.parse()).collect::<Result<_, _>>()?))
}

/// The server, if an API is enabled.
pub(crate) struct Api(Option<Running>);

impl Api {
    /// Serves these APIs, and logs their addresses.
    pub(crate) fn start(config: Config, endpoints: Vec<Endpoint>, metrics: Vec<Listener>) -> anyhow::Result<Self> {
        if endpoints.is_empty() && metrics.is_empty() {
            return Ok(Self(None));
        }
        let serves_calls = !endpoints.is_empty();
        let metrics_addresses: Vec<String> = metrics.iter().map(|listener| listener.name().to_owned()).collect();
        let addresses: Vec<String> = endpoints.iter().flat_map(Endpoint::addresses).map(str::to_owned).collect();
        let running = gantry_api::serve(config, endpoints, metrics)?;
        for address in addresses {
            info!("serving on {address}");
        }
        for address in metrics_addresses {
            info!("metrics on {address}, path /metrics");
        }
        if serves_calls {
            info!("API service running");
        }
        Ok(Self(Some(running)))
    }

    /// Ends streams, lets calls finish until the deadline, and ends the server.
    pub(crate) fn drain(self, deadline: Instant) {
        let Some(running) = self.0 else { return };
        if let Err(error) = running.drain(deadline.saturating_duration_since(Instant::now())) {
            warn!("{:#}", anyhow::Error::from(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_have_a_precedence() {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let addresses = |asked: &[&str]| listen_spec("listen", false, Some(&texts(asked)), None).unwrap();
        assert_eq!(listen_spec("listen", false, None, None).unwrap(), ListenSpec::Default("/run/gantry".into()));
        assert_eq!(
            listen_spec("listen", false, None, Some(Path::new("/r"))).unwrap(),
            ListenSpec::Default("/r".into())
        );
        assert_eq!(listen_spec("listen", true, None, Some(Path::new("/r"))).unwrap(), ListenSpec::Passed);
        assert_eq!((addresses(&["none"]), addresses(&[])), (ListenSpec::None, ListenSpec::None));
        let both = ListenSpec::Addresses(vec![Address::Tcp("::1".into(), 0), Address::Unix("/a".into())]);
        assert_eq!(addresses(&["[::1]:0", "unix:/a"]), both);
        for (passed, asked) in [(true, ["unix:/a"]), (true, ["none"]), (false, ["here"])] {
            assert!(listen_spec("listen", passed, Some(&texts(&asked)), None).is_err(), "{asked:?}");
        }
        assert!(listen_spec("listen", false, Some(&texts(&["none", "unix:/a"])), None).is_err());
    }

    #[test]
    fn changed_addresses_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.toml");
        std::fs::write(&config, "").unwrap();
        let settings = Settings::read(Some(dir.path()), Some(&config)).unwrap();
        let args = |flags: &[&str]| <Args as clap::Parser>::parse_from([&["gantryd"], flags].concat());
        let one = args(&["--listen=unix:/one"]);
        let other = args(&["--listen=unix:/other", "--cri-stream-listen=none"]);
        let at_start = ListenAddresses::new(&one, &settings);
        let changed = |read_again| at_start.differences(read_again).collect::<Vec<_>>();
        assert_eq!(changed(at_start), [""; 0]);
        assert_eq!(changed(ListenAddresses::new(&other, &settings)), ["listen", "cri-stream-listen"]);
    }

    #[test]
    fn configured_addresses_leave_other_apis_enabled() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config.toml");
        std::fs::write(&config, "listen = ['unix:/run/one.sock']\n").unwrap();
        let settings = Settings::read(Some(dir.path()), Some(&config)).unwrap();
        for (flags, want) in [
            (&["gantryd"][..], false),
            (&["gantryd", "--listen=unix:/run/two.sock"], true),
            (&["gantryd", "--listen=unix:/run/two.sock", "--run-dir=/run/two"], false),
        ] {
            let args = <Args as clap::Parser>::parse_from(flags);
            assert_eq!(ListenAddresses::new(&args, &settings).is_one_of_several(), want, "{flags:?}");
        }
    }
}
