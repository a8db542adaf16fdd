//! Starts the API: on the sockets from flags, the configuration or a service manager.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gantry_api::{Address, Config, Listener, Running, rkt};
use tracing::{info, warn};

/// The directory of the default socket. The default is not a TCP address, because every user of the host and every pod
/// in the host's network could connect to it.
const DEFAULT_RUN_DIR: &str = "/run/gantry";
/// The name of the default socket.
const SOCKET: &str = "api.sock";
/// The value of `listen` that disables the API.
const NONE: &str = "none";
/// Time for open calls when gantryd ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The sockets of the API.
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

/// Opens all sockets. `passed`: sockets from the service manager. `addresses`: from flags, else from the configuration.
pub(crate) fn listeners(
    passed: Vec<Listener>,
    addresses: Option<&[String]>,
    run_dir: Option<&Path>,
) -> anyhow::Result<Vec<Listener>> {
    let addresses = match listen_spec(!passed.is_empty(), addresses, run_dir)? {
        ListenSpec::None => return Ok(Vec::new()),
        ListenSpec::Passed => return Ok(passed),
        ListenSpec::Addresses(addresses) => addresses,
        ListenSpec::Default(dir) => {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            vec![Address::Unix(dir.join(SOCKET))]
        }
    };
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.extend(Listener::open(&address, rkt::SOCKET_ACCESS)?);
    }
    Ok(listeners)
}

fn listen_spec(passed: bool, addresses: Option<&[String]>, run_dir: Option<&Path>) -> anyhow::Result<ListenSpec> {
    let Some(addresses) = addresses else {
        let dir = std::path::absolute(run_dir.unwrap_or(Path::new(DEFAULT_RUN_DIR)))?;
        return Ok(if passed { ListenSpec::Passed } else { ListenSpec::Default(dir) });
    };
    if passed {
        bail!("the service manager passed sockets and 'listen' names addresses: give only one of them");
    }
    if addresses.is_empty() || addresses == [NONE] {
        return Ok(ListenSpec::None);
    }
    if addresses.iter().any(|text| text == NONE) {
        bail!("'listen' is either '{NONE}' or addresses");
    }
    Ok(ListenSpec::Addresses(addresses.iter().map(|text| text.parse()).collect::<Result<_, _>>()?))
}

/// The server, if the API is enabled.
pub(crate) struct Api(Option<Running>);

impl Api {
    /// Serves on these sockets, and logs their addresses.
    pub(crate) fn start(config: Config, listeners: Vec<Listener>) -> anyhow::Result<Self> {
        if listeners.is_empty() {
            return Ok(Self(None));
        }
        let endpoint = rkt::endpoint(listeners);
        let addresses: Vec<String> = endpoint.addresses().map(str::to_owned).collect();
        let running = gantry_api::serve(config, vec![endpoint])?;
        for address in addresses {
            info!("serving on {address}");
        }
        info!("API service running");
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
        let addresses = |asked: &[&str]| listen_spec(false, Some(&texts(asked)), None).unwrap();
        assert_eq!(listen_spec(false, None, None).unwrap(), ListenSpec::Default("/run/gantry".into()));
        assert_eq!(listen_spec(false, None, Some(Path::new("/r"))).unwrap(), ListenSpec::Default("/r".into()));
        assert_eq!(listen_spec(true, None, Some(Path::new("/r"))).unwrap(), ListenSpec::Passed);
        assert_eq!((addresses(&["none"]), addresses(&[])), (ListenSpec::None, ListenSpec::None));
        let both = ListenSpec::Addresses(vec![Address::Tcp("::1".into(), 0), Address::Unix("/a".into())]);
        assert_eq!(addresses(&["[::1]:0", "unix:/a"]), both);
        for (passed, asked) in [(true, ["unix:/a"]), (true, ["none"]), (false, ["here"])] {
            assert!(listen_spec(passed, Some(&texts(&asked)), None).is_err(), "{asked:?}");
        }
        assert!(listen_spec(false, Some(&texts(&["none", "unix:/a"])), None).is_err());
    }
}
