//! Starts the API: on the sockets from flags, the configuration or a service manager.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gantry_api::metrics::http::METRICS_SOCKET_ACCESS;
use gantry_api::talos::{MachineControl, NodeCertificate};
use gantry_api::{
    Address, ApiSettings, Config, Endpoint, Listener, LiveSettings, MutualTls, Running, SocketAccess, TlsFiles, aurae,
    cri, rkt, talos,
};
use gantry_engine::{Settings, TlsSettings};
use tracing::{info, warn};

/// The directory of the default socket. The default is not a TCP address, because every user of the host and every pod
/// in the host's network could connect to it.
const DEFAULT_RUN_DIR: &str = "/run/gantry";
/// The name of the default socket of rkt's API.
const RKT_SOCKET: &str = "api.sock";
/// The name of the default socket of the Talos node API.
const TALOS_SOCKET: &str = "machine.sock";
/// The name of the default socket of Aurae's API.
const AURAE_SOCKET: &str = "aurae.sock";
/// The name of the default socket of the CRI.
const CRI_SOCKET: &str = "cri.sock";
/// The default address of the streaming server of the CRI: any free port. The URLs of the CRI have it.
const CRI_STREAM_ADDRESS: &str = "127.0.0.1:0";
/// The default address of metrics.
const METRICS_ADDRESS: &str = "127.0.0.1:15442";
/// The value of `listen`, `machine-listen`, `aurae-listen`, `cri-listen`, `cri-stream-listen` and `metrics-listen` that
/// disables an API.
const NONE: &str = "none";
/// The default TCP addresses of the Talos node API when it has certificates: the port of Talos.
const TALOS_TCP: [(&str, u16); 2] = [("0.0.0.0", 50000), ("::", 50000)];
/// The kernel's list of IPv6 addresses. It does not exist if IPv6 is disabled.
const IPV6_ADDRESSES: &str = "/proc/net/if_inet6";
/// Time for open calls when gantryd ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

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

/// The addresses of the APIs, as given by flags or the configuration; `None`: not given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenAddresses<'a> {
    /// rkt's API.
    pub(crate) rkt: Option<&'a [String]>,
    /// This may be one of several gantryd, which must not compete for the default addresses of the other APIs: a flag
    /// names the addresses of rkt's API, and none names a directory for the default sockets.
    pub(crate) is_one_of_several: bool,
    /// The Talos node API.
    pub(crate) talos: Option<&'a [String]>,
    /// Aurae's API.
    pub(crate) aurae: Option<&'a [String]>,
    /// The Kubernetes CRI.
    pub(crate) cri: Option<&'a [String]>,
    /// The streaming server of the CRI: one address.
    pub(crate) cri_stream: Option<&'a str>,
    /// The metrics.
    pub(crate) metrics: Option<&'a [String]>,
    /// The directory of the default sockets.
    pub(crate) run_dir: Option<&'a Path>,
}

impl ListenAddresses<'_> {
    /// The settings that differ in a configuration that was read again. Sockets stay as they are.
    fn differences(self, read_again: ListenAddresses<'_>) -> impl Iterator<Item = &'static str> {
        let differ = [
            ("listen", self.rkt != read_again.rkt),
            ("machine-listen", self.talos != read_again.talos),
            ("aurae-listen", self.aurae != read_again.aurae),
            ("cri-listen", self.cri != read_again.cri),
            ("cri-stream-listen", self.cri_stream != read_again.cri_stream),
            ("metrics-listen", self.metrics != read_again.metrics),
        ];
        differ.into_iter().filter_map(|(setting, differs)| differs.then_some(setting))
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
    let ListenAddresses { rkt, is_one_of_several, talos, aurae, cri, cri_stream, run_dir, .. } = addresses;
    let rkt_listeners = match listen_spec("listen", !passed.is_empty(), rkt, run_dir)? {
        ListenSpec::Passed => passed,
        spec => open(spec, RKT_SOCKET, rkt::SOCKET_ACCESS)?,
    };
    let none = [NONE.to_owned()];
    let default = is_one_of_several.then_some(&none[..]);
    let talos = talos.or(default);
    let talos = listen_spec("machine-listen", false, talos, run_dir)?;
    let talos = open_talos(talos, settings.machine_tls.is_some())?;
    let aurae = aurae.or(default);
    let aurae = listen_spec("aurae-listen", false, aurae, run_dir)?;
    let aurae = open_local("aurae-listen", aurae, AURAE_SOCKET, aurae::SOCKET_ACCESS)?;
    let cri = cri.or(default);
    let cri = listen_spec("cri-listen", false, cri, run_dir)?;
    let cri = open_local("cri-listen", cri, CRI_SOCKET, cri::SOCKET_ACCESS)?;
    let mut endpoints = Vec::new();
    if !rkt_listeners.is_empty() {
        endpoints.push(rkt::endpoint(rkt_listeners));
    }
    if !talos.is_empty() {
        endpoints.push(talos::endpoint(talos, settings.machine_tls, settings.control, settings.certificate));
    }
    if !aurae.is_empty() {
        endpoints.push(aurae::endpoint(aurae, settings.aurae_tls));
    }
    if !cri.is_empty() {
        endpoints.push(cri::endpoint(cri, open_streaming(cri_stream)?));
    }
    Ok(endpoints)
}

/// Opens the sockets of the streaming server of the CRI. Clients of the CRI connect to it over TCP.
fn open_streaming(address: Option<&str>) -> anyhow::Result<Vec<Listener>> {
    match address.unwrap_or(CRI_STREAM_ADDRESS) {
        NONE => Ok(Vec::new()),
        text => match text.parse()? {
            Address::Unix(path) => bail!("'cri-stream-listen' names {}, but clients need TCP", path.display()),
            // Socket files alone have an access.
            tcp @ Address::Tcp(..) => Ok(Listener::open(&tcp, cri::SOCKET_ACCESS)?),
        },
    }
}

/// Opens the sockets of an API that is not served over TCP.
fn open_local(setting: &str, spec: ListenSpec, name: &str, access: SocketAccess) -> anyhow::Result<Vec<Listener>> {
    if let ListenSpec::Addresses(addresses) = &spec
        && let Some(tcp) = addresses.iter().find(|address| matches!(address, Address::Tcp(..)))
    {
        bail!("'{setting}' names {tcp}, but this API is served on unix sockets only");
    }
    open(spec, name, access)
}

/// Opens the sockets of the Talos node API.
fn open_talos(spec: ListenSpec, has_certificates: bool) -> anyhow::Result<Vec<Listener>> {
    let is_default = matches!(spec, ListenSpec::Default(_));
    if let ListenSpec::Addresses(addresses) = &spec
        && !has_certificates
        && let Some(tcp) = addresses.iter().find(|address| matches!(address, Address::Tcp(..)))
    {
        bail!(
            "'machine-listen' names {tcp}, but TCP needs mutual TLS: make certificates with 'gantry pki', and name them \
             under 'machine-tls' in the configuration"
        );
    }
    let mut listeners = open(spec, TALOS_SOCKET, talos::SOCKET_ACCESS)?;
    if is_default && has_certificates {
        for (host, port) in TALOS_TCP {
            if host.contains(':') && !Path::new(IPV6_ADDRESSES).exists() {
                continue;
            }
            listeners.extend(Listener::open(&Address::Tcp(host.to_owned(), port), talos::SOCKET_ACCESS)?);
        }
    }
    Ok(listeners)
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

/// Opens the sockets of the metrics. The default address is not required: if it is in use, a warning is logged.
pub(crate) fn metrics_listeners(addresses: ListenAddresses<'_>) -> anyhow::Result<Vec<Listener>> {
    let Some(given) = addresses.metrics else {
        if addresses.is_one_of_several || addresses.run_dir.is_some() {
            return Ok(Vec::new());
        }
        let opened = Listener::open(&METRICS_ADDRESS.parse()?, METRICS_SOCKET_ACCESS);
        return Ok(opened.unwrap_or_else(|error| {
            warn!("no metrics are served: {:#}; 'metrics-listen' sets another address", anyhow::Error::from(error));
            Vec::new()
        }));
    };
    match listen_spec("metrics-listen", false, Some(given), None)? {
        ListenSpec::Addresses(addresses) => {
            let mut listeners = Vec::new();
            for address in addresses {
                listeners.extend(Listener::open(&address, METRICS_SOCKET_ACCESS)?);
            }
            Ok(listeners)
        }
        ListenSpec::None | ListenSpec::Passed | ListenSpec::Default(_) => Ok(Vec::new()),
    }
}

/// Opens the sockets of one API; `name` is that of its default socket.
fn open(spec: ListenSpec, name: &str, access: SocketAccess) -> anyhow::Result<Vec<Listener>> {
    let addresses = match spec {
        ListenSpec::None | ListenSpec::Passed => return Ok(Vec::new()),
        ListenSpec::Addresses(addresses) => addresses,
        ListenSpec::Default(dir) => {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            vec![Address::Unix(dir.join(name))]
        }
    };
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.extend(Listener::open(&address, access)?);
    }
    Ok(listeners)
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

    /// Ends streams, lets calls finish, and ends the server.
    pub(crate) fn drain(self) {
        let Some(running) = self.0 else { return };
        if let Err(error) = running.drain(DRAIN_TIMEOUT) {
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
        let [one, other] = ["unix:/one", "unix:/other"].map(|text| [text.to_owned()]);
        let addresses = |rkt, cri_stream| ListenAddresses {
            rkt,
            is_one_of_several: false,
            talos: None,
            aurae: None,
            cri: None,
            cri_stream,
            metrics: None,
            run_dir: None,
        };
        let at_start = addresses(Some(&one[..]), None);
        let changed = |read_again| at_start.differences(read_again).collect::<Vec<_>>();
        assert_eq!(changed(at_start), [""; 0]);
        assert_eq!(changed(addresses(Some(&other[..]), Some("none"))), ["listen", "cri-stream-listen"]);
    }
}
