//! The engine's options: its [`Settings`], overridden by global flags.

use gantry_engine::{Insecure, Options, Settings};

use crate::failure::Failure;
use crate::globals::Globals;

/// Reads the options from flags, environment and configuration file.
pub(crate) fn options(globals: &Globals) -> Result<Options, Failure> {
    let mut options = Settings::read(globals.dir.as_deref(), globals.config.as_deref())?.options;
    let insecure = globals.insecure();
    options.fetch.insecure = Insecure { http: insecure.http, tls: insecure.tls };
    Ok(options)
}
