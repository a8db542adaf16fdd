//! Flags of an app: cooperation with systemd.

use super::Scope::App;
use super::{Flag, valued};

/// Readiness.
pub(super) static FLAGS: &[Flag] = &[valued(
    App,
    &["sdnotify"],
    "WHEN",
    "When the app is ready: ready: it was started (default); app: it has sent READY=1 to NOTIFY_SOCKET (sd_notify(3)); \
     none: as ready, and 'gantry run' tells its own service manager nothing",
    |d, v| {
        d.app().options.sdnotify = v.parse()?;
        Ok(())
    },
)];
