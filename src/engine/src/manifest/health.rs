//! The health check of an app in a pod manifest. Times are in milliseconds.

use std::net::IpAddr;

use gantry_model::health::{HealthAction, HealthProbe, HealthSettings};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Health {
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Probe>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_period_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_interval_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<HealthAction>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Probe {
    Disabled,
    Command(Vec<String>),
    Http { host: IpAddr, port: u16, path: String },
    Tcp { host: IpAddr, port: u16 },
}

impl Health {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl From<&HealthSettings> for Health {
    fn from(settings: &HealthSettings) -> Self {
        let HealthSettings { probe, start_period_ms, interval_ms, start_interval_ms, timeout_ms, retries, on_failure } =
            settings.clone();
        let probe = probe.map(|probe| match probe {
            HealthProbe::Disabled => Probe::Disabled,
            HealthProbe::Command(argv) => Probe::Command(argv),
            HealthProbe::Http { host, port, path } => Probe::Http { host, port, path },
            HealthProbe::Tcp { host, port } => Probe::Tcp { host, port },
        });
        Self { probe, start_period_ms, interval_ms, start_interval_ms, timeout_ms, retries, on_failure }
    }
}

impl From<Health> for HealthSettings {
    fn from(health: Health) -> Self {
        let Health { probe, start_period_ms, interval_ms, start_interval_ms, timeout_ms, retries, on_failure } = health;
        let probe = probe.map(|probe| match probe {
            Probe::Disabled => HealthProbe::Disabled,
            Probe::Command(argv) => HealthProbe::Command(argv),
            Probe::Http { host, port, path } => HealthProbe::Http { host, port, path },
            Probe::Tcp { host, port } => HealthProbe::Tcp { host, port },
        });
        Self { probe, start_period_ms, interval_ms, start_interval_ms, timeout_ms, retries, on_failure }
    }
}
