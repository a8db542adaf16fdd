//! The engine's [`Settings`], overridden by global flags.

use gantry_engine::{Insecure, Settings};

use crate::failure::Failure;
use crate::globals::Globals;

/// The data directory if none is named by a flag, a variable or the configuration file.
pub(crate) const DEFAULT_DIR: &str = "/var/lib/gantry";

/// Reads the settings from flags, environment and configuration file.
pub(crate) fn read(globals: &Globals) -> Result<Settings, Failure> {
    let mut settings = Settings::read(globals.dir.as_deref(), globals.config.as_deref())?;
    let insecure = globals.insecure();
    settings.options.fetch.insecure = Insecure { http: insecure.http, tls: insecure.tls };
    Ok(settings)
}
