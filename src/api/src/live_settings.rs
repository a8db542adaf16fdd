//! The settings that calls use. They change with the configuration, without a restart: each call takes the current ones
//! when it begins, and keeps them to its end.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use gantry_engine::Options;

/// Settings of the APIs that change while the server runs.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// Options of the engine. The data directory stays the same.
    pub options: Options,
    /// The time server that Talos' Time asks.
    pub time_server: Option<String>,
    /// The interval at which gantryd samples; metrics are of a sample no older than this.
    pub sample_interval: Duration,
}

/// See the module. Clones share the settings.
#[derive(Debug, Clone)]
pub struct LiveSettings(Arc<RwLock<Arc<ApiSettings>>>);

impl LiveSettings {
    /// These settings, until they are replaced.
    #[must_use]
    pub fn new(settings: ApiSettings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    /// Uses these settings from now on.
    pub fn replace(&self, settings: ApiSettings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// The settings now. After a replacement they are another allocation.
    #[must_use]
    pub fn current(&self) -> Arc<ApiSettings> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}
