//! How gantry works here, for the command line: what the engine's [`Settings`] read, and what its own flags say.

use gantry_engine::{Insecure, Options, Settings};

use crate::failure::Failure;
use crate::globals::Globals;

/// The options of the engine that flags, environment and file come to.
pub(crate) fn options(globals: &Globals) -> Result<Options, Failure> {
    let mut options = Settings::read(globals.dir.as_deref(), globals.config.as_deref())?.options;
    let insecure = globals.insecure();
    options.fetch.insecure = Insecure { http: insecure.http, tls: insecure.tls };
    Ok(options)
}
