//! The context of a command: its global flags, and how it opens the engine.

use std::path::Path;

use gantry_engine::{Engine, Options, Settings};
use gantry_model::ErrorKind;

use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{CliError, Failure};
use crate::globals::Globals;
use crate::settings;

/// The global flags and the name of the command.
pub(crate) struct Context {
    pub(crate) globals: Globals,
    command: String,
}

/// Whether gantryd has replaced the database by a restored one. If this cannot be determined, the next read reports the
/// error.
pub(crate) fn is_replaced(engine: &Engine) -> bool {
    engine.store().is_current().is_ok_and(|current| !current)
}

impl Context {
    pub(crate) fn new(globals: Globals, command: impl Into<String>) -> Self {
        Self { globals, command: command.into() }
    }

    /// The command of the group `app` that does to an app what this command does to a pod.
    pub(crate) fn command_for_apps(&self) -> Option<String> {
        const COMMANDS: [&str; 4] = ["start", "stop", "rm", "status"];
        COMMANDS.contains(&self.command.as_str()).then(|| format!("app {}", self.command))
    }

    /// The settings, from flags, environment and configuration file.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        let settings = settings::read(&self.globals).map_err(Failure::not_a_missing_object)?;
        tracing::debug!(command = self.command, dir = %settings.options.dir.display(), "read the settings");
        Ok(settings)
    }

    /// The engine's options.
    pub(crate) fn options(&self) -> Result<Options, Failure> {
        self.settings().map(|settings| settings.options)
    }

    /// Opens the engine for a command that changes something. Requires root.
    pub(crate) fn open(&self, command: &'static str) -> Result<Engine, Failure> {
        need_root(command)?;
        let engine = Engine::open(self.options()?).map_err(|error| Failure::from(error).not_a_missing_object())?;
        Ok(engine.into_command())
    }

    /// [`Self::open`] with changed settings for fetching.
    pub(crate) fn open_for_fetch(
        &self,
        command: &'static str,
        change: impl FnOnce(&mut gantry_engine::FetchConfig),
    ) -> Result<Engine, Failure> {
        need_root(command)?;
        let mut options = self.options()?;
        change(&mut options.fetch);
        Ok(Engine::open(options)?.into_command())
    }

    /// Opens the engine for a command that only reads. For root it also reconciles pods; for other users it is
    /// read-only and fails unless they may read the data directory. Fails if [`check_dir`] does.
    pub(crate) fn open_to_read(&self) -> Result<Engine, Failure> {
        let options = self.options()?;
        check_dir(&options.dir)?;
        self.open_options_to_read(options)
    }

    /// Opens the engine of a long-lived reader again if gantryd has replaced the database by a restored one.
    pub(crate) fn reopen_if_replaced(&self, engine: &mut Engine) -> Result<(), Failure> {
        if is_replaced(engine) {
            *engine = self.open_to_read()?;
        }
        Ok(())
    }

    /// [`Self::open_to_read`] for a command that creates the data directory later.
    pub(crate) fn open_to_look_up(&self) -> Result<Engine, Failure> {
        self.open_options_to_read(self.options()?)
    }

    fn open_options_to_read(&self, options: Options) -> Result<Engine, Failure> {
        let engine = if is_root() { Engine::open_to_read(options) } else { Engine::open_read_only(options) };
        engine.map(Engine::into_command).map_err(|error| {
            let failure = Failure::from(error);
            match failure.kind() {
                ErrorKind::Denied if !is_root() => CliError::NeedsRoot(self.command.clone()).into(),
                _ => failure.not_a_missing_object(),
            }
        })
    }

    /// Calls `act` for each item and returns the worst exit code. Failures are printed, and the other items still
    /// follow.
    pub(crate) fn for_each<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        kind: CommandKind,
        act: &mut dyn FnMut(T) -> Result<ExitStatus, Failure>,
    ) -> ExitStatus {
        items.into_iter().fold(ExitStatus::OK, |worst, item| {
            worst.worst(act(item).unwrap_or_else(|failure| self.report([failure], kind)))
        })
    }

    /// Prints failures and returns the worst exit code.
    pub(crate) fn report(
        &self,
        failures: impl IntoIterator<Item = impl Into<Failure>>,
        kind: CommandKind,
    ) -> ExitStatus {
        failures.into_iter().map(Into::into).fold(ExitStatus::OK, |worst, failure: Failure| {
            failure.print(self.globals.debug);
            worst.worst(failure.exit_status(kind))
        })
    }
}

/// Fails if a data directory that was named does not exist. Reading does not create it: after a typo, all pods would
/// seem to be gone.
pub(crate) fn check_dir(dir: &Path) -> Result<(), Failure> {
    // If it cannot be examined, opening it reports the cause.
    let is_absent = dir.try_exists().is_ok_and(|exists| !exists);
    match dir != Path::new(settings::DEFAULT_DIR) && is_absent {
        true => Err(CliError::NoDataDirectory(dir.to_owned()).into()),
        false => Ok(()),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Fails unless the caller is root.
pub(crate) fn need_root(command: &'static str) -> Result<(), Failure> {
    if is_root() { Ok(()) } else { Err(CliError::NeedsRoot(command.to_owned()).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_data_directory_must_exist() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_dir(dir.path()).is_ok() && check_dir(Path::new(settings::DEFAULT_DIR)).is_ok());
        let typo = dir.path().join("typo");
        let failure = check_dir(&typo).unwrap_err();
        let text = failure.text(false).unwrap_or_default();
        assert!(text.contains(&format!("there is no data directory '{}'", typo.display())), "{text}");
        assert_eq!(failure.exit_status(CommandKind::Query), ExitStatus::FAILED);
        assert!(!typo.exists());
    }
}
