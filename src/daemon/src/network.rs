//! What pods' networks need of a daemon: names, and rules that stay. Each in threads of its own; the keeper waits for
//! neither. Pods run without both.

use std::sync::Arc;
use std::time::Duration;

use gantry_engine::Settings;
use gantry_resolver::Note;
use tracing::{info, warn};

use crate::firewall::Firewall;

/// The host's servers for names that are no pod's.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How long questions that are under way may take when the daemon ends. Who asked asks the next server then.
const DRAIN: Duration = Duration::from_millis(500);

/// The resolver, if it is wanted, and the watch on our nftables.
pub(crate) struct Networking {
    resolver: Option<gantry_resolver::Running>,
    firewall: Option<Firewall>,
}

impl Networking {
    /// Starts both. What cannot be started is said: no pod is worse off than without a daemon.
    pub(crate) fn start(settings: &Settings) -> Self {
        let firewall = Firewall::start(&settings.options);
        let firewall = firewall.inspect_err(|error| {
            warn!("cannot watch nftables: cannot start a thread: {error}");
        });
        let mut networking = Self { resolver: None, firewall: firewall.ok() };
        networking.use_resolver(settings);
        networking
    }

    /// Goes by these settings from now on.
    pub(crate) fn reload(&mut self, settings: &Settings) {
        if let Some(firewall) = &self.firewall {
            firewall.reload(&settings.options);
        }
        self.use_resolver(settings);
    }

    fn use_resolver(&mut self, settings: &Settings) {
        match (settings.options.network.resolver, self.resolver.take()) {
            (true, Some(running)) => self.resolver = Some(running),
            (true, None) => self.resolver = start_resolver(settings),
            (false, Some(running)) => {
                running.drain(DRAIN);
                info!("names of pods are not resolved any more");
            }
            (false, None) => {}
        }
    }

    /// Ends both: questions that are under way may be answered.
    pub(crate) fn drain(self) {
        drop(self.firewall);
        if let Some(running) = self.resolver {
            running.drain(DRAIN);
        }
    }
}

fn start_resolver(settings: &Settings) -> Option<gantry_resolver::Running> {
    let config = gantry_resolver::Config { options: settings.options.clone(), resolv_conf: RESOLV_CONF.into() };
    let say = |note: &Note| {
        let text = note.to_string();
        if note.is_warning() { warn!("{text}") } else { info!("{text}") }
    };
    match gantry_resolver::start(config, Arc::new(say)) {
        Ok(running) => Some(running),
        Err(error) => {
            warn!("names of pods are not resolved: {:#}", anyhow::Error::from(error));
            None
        }
    }
}
