//! `gantry version`.

use serde::Serialize;
use std::io::Write as _;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::ExitStatus;
use crate::failure::Failure;
use crate::render::{OutputFlag, OutputFormat, json};

/// Arguments of `version`.
#[derive(Debug, clap::Args)]
pub(crate) struct Version {
    #[command(flatten)]
    output: OutputFlag,
}

/// The JSON form.
#[derive(Serialize)]
struct VersionJson {
    version: &'static str,
    os: &'static str,
    architecture: &'static str,
}

/// Prints the version.
impl RunCommand for Version {
    fn run(&self, _: &Context) -> Result<ExitStatus, Failure> {
        let document = VersionJson {
            version: env!("CARGO_PKG_VERSION"),
            os: std::env::consts::OS,
            architecture: std::env::consts::ARCH,
        };
        json::to_stdout(|out| match self.output.format {
            OutputFormat::Table => {
                writeln!(out, "gantry {} {}/{}", document.version, document.os, document.architecture)
            }
            format => json::write_document(out, format, &document),
        })?;
        Ok(ExitStatus::OK)
    }
}
