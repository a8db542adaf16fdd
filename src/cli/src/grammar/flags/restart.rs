//! Flags of an app: restarts.

use super::Scope::App;
use super::{Flag, valued};

/// Restarts.
pub(super) static FLAGS: &[Flag] = &[valued(
    App,
    &["restart"],
    "no|on-failure[:N]|always",
    "When to start the app again after it has ended; N limits the restarts in a row; unless-stopped is the same as \
     always (default no)",
    |d, v| {
        d.app().options.restart = v.parse()?;
        Ok(())
    },
)];
