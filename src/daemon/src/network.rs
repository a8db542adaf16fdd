//! The resolver and the watch on nftables, each in threads of its own. Pods run without both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gantry_engine::{CommitWatcher, Settings};
use gantry_resolver::Note;
use tracing::{info, warn};

use crate::firewall::Firewall;

/// The host's name servers, for names outside gantry's domain.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Time for open queries when the resolver ends. Clients then ask their next server.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// The resolver, if it is enabled, and the watch on nftables.
pub(crate) struct Networking {
    commits: CommitWatcher,
    resolver: Option<gantry_resolver::Running>,
    firewall: Option<Firewall>,
}

impl Networking {
    /// Starts both. Logs what cannot be started.
    pub(crate) fn start(settings: &Settings, commits: CommitWatcher) -> Self {
        let firewall = Firewall::start(&settings.options);
        let firewall = firewall.inspect_err(|error| {
            warn!("cannot watch nftables: cannot start a thread: {error}");
        });
        let mut networking = Self { commits, resolver: None, firewall: firewall.ok() };
        networking.apply_resolver_setting(settings);
        networking
    }

    /// Uses these settings from now on.
    pub(crate) fn reload(&mut self, settings: &Settings) {
        if let Some(firewall) = &self.firewall {
            firewall.reload(&settings.options);
        }
        self.apply_resolver_setting(settings);
    }

    fn apply_resolver_setting(&mut self, settings: &Settings) {
        match (settings.options.network.resolver, self.resolver.take()) {
            (true, Some(running)) => self.resolver = Some(running),
            (true, None) => self.resolver = start_resolver(settings, self.commits.clone()),
            (false, Some(running)) => {
                running.drain(DRAIN_TIMEOUT);
                info!("stopped resolving host names and app names of pods");
            }
            (false, None) => {}
        }
    }

    /// Ends both, after the resolver has answered open queries, but not after the deadline.
    pub(crate) fn drain(self, deadline: Instant) {
        drop(self.firewall);
        if let Some(running) = self.resolver {
            running.drain(deadline.saturating_duration_since(Instant::now()).min(DRAIN_TIMEOUT));
        }
    }
}

fn start_resolver(settings: &Settings, commits: CommitWatcher) -> Option<gantry_resolver::Running> {
    let options = settings.options.clone();
    let config = gantry_resolver::Config { options, commits, resolv_conf: RESOLV_CONF.into() };
    let say = |note: &Note| {
        let text = note.to_string();
        if note.is_warning() { warn!("{text}") } else { info!("{text}") }
    };
    match gantry_resolver::start(config, Arc::new(say)) {
        Ok(running) => Some(running),
        Err(error) => {
            warn!("host names and app names of pods are not resolved: {:#}", anyhow::Error::from(error));
            None
        }
    }
}
