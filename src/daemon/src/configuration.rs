//! The configuration of gantryd, which can be read again while it runs.

use anyhow::bail;
use gantry_engine::{Engine, Settings};

use crate::Args;
use crate::serve::{ListenAddresses, SurfaceSettings};

/// See the module.
pub(crate) struct Configuration {
    args: Args,
    current: Settings,
    /// The settings at the start, whose addresses are used.
    at_start: Settings,
    /// The settings of the APIs, which follow.
    surfaces: SurfaceSettings,
}

impl Configuration {
    /// The configuration at the start.
    pub(crate) fn new(args: Args, settings: Settings, surfaces: SurfaceSettings) -> Self {
        Self { args, at_start: settings.clone(), current: settings, surfaces }
    }

    /// The settings in effect.
    pub(crate) const fn current(&self) -> &Settings {
        &self.current
    }

    /// Reads the settings again, and returns an engine that uses them. The APIs follow; addresses that need a restart
    /// are logged.
    ///
    /// # Errors
    /// The settings or the data directory cannot be used. Then the previous settings stay in effect.
    pub(crate) fn reload(&mut self) -> anyhow::Result<Engine> {
        let settings = self.args.settings()?;
        if settings.options.dir != self.current.options.dir {
            bail!("the data directory cannot be changed while gantryd runs: restart it");
        }
        let engine = Engine::open(settings.options.clone())?;
        self.current = settings;
        self.surfaces.reload(&self.current);
        let at_start = ListenAddresses::new(&self.args, &self.at_start);
        at_start.warn_of_differences(ListenAddresses::new(&self.args, &self.current));
        Ok(engine)
    }
}
