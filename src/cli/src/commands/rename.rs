//! `gantry rename`.

use gantry_model::PodName;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::pods;

/// Arguments of `rename`.
#[derive(Debug, clap::Args)]
pub(crate) struct Rename {
    /// Pod: its id, its name, a unique prefix of the id, the name of an app, or the host name
    #[arg(value_name = "POD")]
    pod: String,
    /// The new name: letters, digits, '_', '.' and '-'; no other pod may have it
    #[arg(value_name = "NAME")]
    name: PodName,
}

/// Gives a pod a name, in place of the one it had.
impl RunCommand for Rename {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("rename")?;
        let id = pods::find(&engine, &self.pod)?;
        engine.rename(id, &self.name)?;
        Ok(ExitStatus::OK)
    }
}
