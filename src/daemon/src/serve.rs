//! Where the API is served: from flags, configuration, or a service manager's sockets to a running server.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gantry_api::{Address, Config, Listener, Running, rkt};
use tracing::{info, warn};

/// The directory of the default socket. No TCP address is a default: every user of the host can connect to it, and so can
/// every pod in the host's network.
const DEFAULT_RUN_DIR: &str = "/run/gantry";
/// The default socket in it.
const SOCKET: &str = "api.sock";
/// The word for no API at all.
const NONE: &str = "none";
/// How long calls may take to finish when the daemon ends.
const DRAIN: Duration = Duration::from_secs(3);

/// Where it is to be listened.
#[derive(Debug, PartialEq, Eq)]
enum Places {
    /// Nowhere.
    None,
    /// As the service manager has it.
    Passed,
    /// At these addresses.
    Addresses(Vec<Address>),
    /// At the default socket in this directory.
    Default(PathBuf),
}

/// Opens all sockets. The sockets that were passed are given in `passed`, `asked` is what flags or, without any, the
/// configuration say.
pub(crate) fn listeners(
    passed: Vec<Listener>,
    asked: Option<&[String]>,
    run_dir: Option<&Path>,
) -> anyhow::Result<Vec<Listener>> {
    let addresses = match places(!passed.is_empty(), asked, run_dir)? {
        Places::None => return Ok(Vec::new()),
        Places::Passed => return Ok(passed),
        Places::Addresses(addresses) => addresses,
        Places::Default(dir) => {
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

fn places(passed: bool, asked: Option<&[String]>, run_dir: Option<&Path>) -> anyhow::Result<Places> {
    let Some(asked) = asked else {
        let dir = std::path::absolute(run_dir.unwrap_or(Path::new(DEFAULT_RUN_DIR)))?;
        return Ok(if passed { Places::Passed } else { Places::Default(dir) });
    };
    if passed {
        bail!("the service manager passed sockets, and 'listen' names addresses: only one of both can be");
    }
    if asked.is_empty() || asked == [NONE] {
        return Ok(Places::None);
    }
    if asked.iter().any(|text| text == NONE) {
        bail!("'listen' is either '{NONE}' or addresses");
    }
    Ok(Places::Addresses(asked.iter().map(|text| text.parse()).collect::<Result<_, _>>()?))
}

/// The server, when there is one.
pub(crate) struct Api(Option<Running>);

impl Api {
    /// Serves on these sockets, and says so.
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

    /// Ends it: calls may finish, streams are told.
    pub(crate) fn drain(self) {
        let Some(running) = self.0 else { return };
        if let Err(error) = running.drain(DRAIN) {
            warn!("{:#}", anyhow::Error::from(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_it_is_listened() {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let addresses = |asked: &[&str]| places(false, Some(&texts(asked)), None).unwrap();
        assert_eq!(places(false, None, None).unwrap(), Places::Default("/run/gantry".into()));
        assert_eq!(places(false, None, Some(Path::new("/r"))).unwrap(), Places::Default("/r".into()));
        assert_eq!(places(true, None, Some(Path::new("/r"))).unwrap(), Places::Passed);
        assert_eq!((addresses(&["none"]), addresses(&[])), (Places::None, Places::None));
        let both = Places::Addresses(vec![Address::Tcp("::1".into(), 0), Address::Unix("/a".into())]);
        assert_eq!(addresses(&["[::1]:0", "unix:/a"]), both);
        for (passed, asked) in [(true, ["unix:/a"]), (true, ["none"]), (false, ["here"])] {
            assert!(places(passed, Some(&texts(&asked)), None).is_err(), "{asked:?}");
        }
        assert!(places(false, Some(&texts(&["none", "unix:/a"])), None).is_err());
    }
}
