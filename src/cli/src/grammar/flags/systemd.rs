//! Flags of an app: cooperation with systemd.

use super::Scope::App;
use super::{Flag, valued};

/// Readiness, systemd as the program.
pub(super) static FLAGS: &[Flag] = &[
    valued(
        App,
        &["systemd"],
        "MODE",
        "Run the app's program as PID 1 of a PID namespace of its own, with a writable cgroup and file systems in memory \
         at /run, /run/lock and /tmp, stopped by SIGRTMIN+3: auto: if it is systemd or /sbin/init (default); always; false",
        |d, v| {
            d.app().options.systemd = v.parse()?;
            Ok(())
        },
    ),
    valued(
        App,
        &["sdnotify"],
        "WHEN",
        "When the app is ready: ready: it was started (default); app: it has sent READY=1 to NOTIFY_SOCKET (sd_notify(3)); \
     none: as ready, and 'gantry run' sends no notification to its own service manager",
        |d, v| {
            d.app().options.sdnotify = v.parse()?;
            Ok(())
        },
    ),
];
