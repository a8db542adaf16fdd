//! `gantry inspect` and `gantry cat-manifest`.

use gantry_engine::PodRow;
use gantry_model::PodNetwork;
use serde::Serialize;

use crate::context::Context;
use crate::exit;
use crate::failure::Failure;
use crate::pods::Pods;
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

/// What is known of a pod, before it is written.
struct Found {
    row: PodRow,
    networks: Vec<PodNetwork>,
    more: serde_json::Value,
}

/// The fields of `status -o json`, and the engine's beside them.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    pod: Document<'a>,
    #[serde(flatten)]
    more: &'a serde_json::Value,
}

/// Prints all that is known of pods: a document, or an array of them where several are named.
pub(crate) fn inspect(context: &Context, args: &Inspect) -> Result<u8, Failure> {
    let engine = context.look()?;
    let mut found = Vec::new();
    let worst = args.pods.each(&engine, context.globals.debug, |id| {
        let row = engine.status(id)?.row;
        let networks = row.networks.read()?;
        found.push(Found { networks, more: engine.inspect(id)?, row });
        Ok(exit::OK)
    })?;
    let whole =
        found.iter().map(|found| Whole { pod: Document::spread(&found.row, &found.networks), more: &found.more });
    json::to_stdout(|out| json::one_or_several(out, args.output.form, args.pods.are_several(), whole))?;
    Ok(worst)
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
    let mut manifests = Vec::new();
    let worst = args.pods.each(&engine, context.globals.debug, |id| {
        manifests.push(if args.appc { engine.appc_manifest(id)? } else { engine.manifest(id)? });
        Ok(exit::OK)
    })?;
    json::to_stdout(|out| json::one_or_several(out, form(args.pretty_print), args.pods.are_several(), &manifests))?;
    Ok(worst)
}

/// The form of one document.
pub(crate) fn form(pretty: bool) -> Form {
    if pretty { Form::JsonPretty } else { Form::Json }
}
