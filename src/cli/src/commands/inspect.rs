//! `gantry inspect` and `gantry cat-manifest`.

use gantry_engine::PodRow;
use gantry_model::PodNetwork;
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::pods::Pods;
use crate::render::pod::PodJson;
use crate::render::{Indented, OutputFormat, json};

/// Arguments of `inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pods: Pods,
    #[command(flatten)]
    output: Indented,
}

/// A pod, read from the store.
struct InspectedPod {
    row: Box<PodRow>,
    networks: Vec<PodNetwork>,
    more: serde_json::Value,
}

/// The fields of `status -o json` and those of [`gantry_engine::Engine::inspect`].
#[derive(Serialize)]
struct InspectJson<'a> {
    #[serde(flatten)]
    pod: PodJson<'a>,
    #[serde(flatten)]
    more: &'a serde_json::Value,
}

/// Prints the complete record of a pod as a JSON document; of several pods as an array.
impl RunCommand for Inspect {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let mut found = Vec::new();
        let worst = self.pods.for_each(context, &engine, |id| {
            let row = engine.status(id)?.row;
            let networks = row.networks.read()?;
            found.push(InspectedPod { networks, more: engine.inspect(id)?, row });
            Ok(ExitStatus::OK)
        })?;
        let whole = found
            .iter()
            .map(|found| InspectJson { pod: PodJson::with_networks(&found.row, &found.networks), more: &found.more });
        json::to_stdout(|out| json::write_one_or_several(out, self.output.format, self.pods.are_several(), whole))?;
        Ok(worst)
    }
}

/// Arguments of `cat-manifest`.
#[derive(Debug, clap::Args)]
pub(crate) struct CatManifest {
    #[command(flatten)]
    pods: Pods,
    #[command(flatten)]
    manifest: ManifestFlags,
}

/// The flags of commands that print manifests.
#[derive(Debug, clap::Args)]
pub(crate) struct ManifestFlags {
    /// Indent the output
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pretty_print: bool,
    /// Print an appc manifest, as gantryd's rkt API returns it
    #[arg(long)]
    pub(crate) appc: bool,
}

impl ManifestFlags {
    /// JSON with or without indentation.
    pub(crate) fn format(&self) -> OutputFormat {
        if self.pretty_print { OutputFormat::JsonPretty } else { OutputFormat::Json }
    }
}

/// Prints the manifests of pods, in the format that `--pod-manifest` reads.
impl RunCommand for CatManifest {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let mut manifests = Vec::new();
        let worst = self.pods.for_each(context, &engine, |id| {
            manifests.push(if self.manifest.appc { engine.appc_manifest(id)? } else { engine.manifest(id)? });
            Ok(ExitStatus::OK)
        })?;
        json::to_stdout(|out| {
            json::write_one_or_several(out, self.manifest.format(), self.pods.are_several(), &manifests)
        })?;
        Ok(worst)
    }
}
