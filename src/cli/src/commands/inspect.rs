//! `gantry inspect` and `gantry cat-manifest`.

use serde::Serialize;

use crate::context::{self, Context, Pods};
use crate::exit::{self, Asking};
use crate::failure::Failure;
use crate::render::pod::Document;
use crate::render::{Form, Indented, json};

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pods: Pods,
    #[command(flatten)]
    output: Indented,
}

/// The fields of `status -o json`, and the engine's beside them.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    pod: Document<'a>,
    #[serde(flatten)]
    more: serde_json::Value,
}

/// Prints all that is known of pods, one document each.
pub(crate) fn inspect(context: &Context, args: &Inspect) -> Result<u8, Failure> {
    let engine = context.look()?;
    args.pods.each(context.globals.debug, Asking::Existence, |text| {
        let id = context::pod(&engine, text)?;
        let view = engine.status(id)?;
        let networks = view.row.networks.read()?;
        let document = Whole { pod: Document::spread(&view.row, &networks), more: engine.inspect(id)? };
        json::to_stdout(|out| json::document(out, args.output.form, &document))?;
        Ok(exit::OK)
    })
}

/// Arguments of `cat-manifest`.
#[derive(Debug, clap::Args)]
pub(crate) struct CatManifest {
    #[command(flatten)]
    pods: Pods,
    /// Indent it
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pretty_print: bool,
    /// In the form of appc, as rkt's clients read it from gantryd
    #[arg(long)]
    appc: bool,
}

/// Prints pods' manifests: what `--pod-manifest` takes.
pub(crate) fn cat_manifest(context: &Context, args: &CatManifest) -> Result<u8, Failure> {
    let engine = context.look()?;
    args.pods.each(context.globals.debug, Asking::Existence, |text| {
        let id = context::pod(&engine, text)?;
        let document = if args.appc { engine.appc_manifest(id)? } else { engine.manifest(id)? };
        json::to_stdout(|out| json::document(out, form(args.pretty_print), &document))?;
        Ok(exit::OK)
    })
}

/// The form of one document.
pub(crate) fn form(pretty: bool) -> Form {
    if pretty { Form::JsonPretty } else { Form::Json }
}
