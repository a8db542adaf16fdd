//! One file per command or group of commands: its arguments, one or two engine calls, the output.

pub(crate) mod app;
pub(crate) mod attach;
pub(crate) mod completion;
pub(crate) mod cp;
pub(crate) mod df;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod fetch;
pub(crate) mod generate;
pub(crate) mod image;
pub(crate) mod image_archive;
pub(crate) mod image_inspect;
pub(crate) mod info;
pub(crate) mod inspect;
pub(crate) mod list;
pub(crate) mod login;
pub(crate) mod logs;
pub(crate) mod network;
pub(crate) mod pause;
pub(crate) mod pki;
pub(crate) mod port;
pub(crate) mod prune;
pub(crate) mod rename;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod start;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod top;
pub(crate) mod update;
pub(crate) mod version;
pub(crate) mod volume;
pub(crate) mod wait;

use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;

/// A command with its arguments.
pub(crate) trait RunCommand {
    /// Selects the exit code for an object that does not exist.
    const KIND: CommandKind = CommandKind::Action;

    /// [`Self::KIND`]; of a group of commands, that of the subcommand.
    fn kind(&self) -> CommandKind {
        Self::KIND
    }

    /// Runs the command and returns the exit code.
    ///
    /// # Errors
    /// The command failed; the caller prints the error.
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure>;
}
