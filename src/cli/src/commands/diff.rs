//! `gantry diff`.

use gantry_engine::{FileChange, FileChanges};
use gantry_model::AppName;
use serde::Serialize;
use std::io::Write as _;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{self, Failure};
use crate::pods::find_app;
use crate::render::{OutputFlag, OutputFormat, escape, json};

/// Arguments of `diff`.
#[derive(Debug, clap::Args)]
pub(crate) struct Diff {
    /// A pod, or an app as POD/APP
    #[arg(value_name = "POD[/APP]")]
    target: String,
    /// The app, for a pod without /APP
    #[arg(long, value_name = "NAME")]
    app: Option<AppName>,
    #[command(flatten)]
    output: OutputFlag,
}

/// A changed file as JSON. The field names are stable.
#[derive(Serialize)]
struct FileChangeJson<'a> {
    /// `added`, `changed` or `deleted`.
    kind: &'static str,
    /// Absolute path in the app.
    path: &'a str,
}

/// Lists the files of an app that differ from its image: `A` added, `C` changed, `D` deleted.
impl RunCommand for Diff {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("diff")?;
        let (id, app) = find_app(&engine, &self.target, self.app.as_ref())?;
        let FileChanges { files, warning } = engine.file_changes(id, &app)?;
        json::to_stdout(|out| match self.output.format {
            OutputFormat::Table => files
                .iter()
                .try_for_each(|FileChange { path, kind }| writeln!(out, "{} {}", kind.letter(), escape::text(path))),
            format => json::write_items(
                out,
                format,
                files.iter().map(|change| FileChangeJson { kind: change.kind.as_str(), path: &change.path }),
            ),
        })?;
        if let Some(warning) = warning {
            failure::warn(&warning);
        }
        Ok(ExitStatus::OK)
    }
}
