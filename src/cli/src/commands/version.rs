//! `gantry version`.

use serde::Serialize;

use crate::exit;
use crate::failure::Failure;
use crate::render::{Form, json};

/// Arguments of `version`.
#[derive(Debug, clap::Args)]
pub(crate) struct Version {
    /// Form of the answer
    #[arg(short = 'o', long = "output", alias = "format", value_enum, default_value_t, value_name = "FORM")]
    form: Form,
}

/// The JSON form.
#[derive(Serialize)]
struct Document {
    version: &'static str,
    os: &'static str,
    architecture: &'static str,
}

/// Prints the version.
pub(crate) fn version(args: &Version) -> Result<u8, Failure> {
    let document =
        Document { version: env!("CARGO_PKG_VERSION"), os: std::env::consts::OS, architecture: std::env::consts::ARCH };
    json::to_stdout(|out| match args.form {
        Form::Table => writeln!(out, "gantry {} {}/{}", document.version, document.os, document.architecture),
        form => json::document(out, form, &document),
    })?;
    Ok(exit::OK)
}
