//! `gantry fetch`.

use gantry_model::ImageRef;
use std::io::Write as _;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::grammar::Pull;
use crate::progress::ProgressDisplay;
use crate::render::json;

/// Arguments of `fetch`.
#[derive(Debug, clap::Args)]
pub(crate) struct Fetch {
    /// Images: docker://alpine:3.20, registry.example/app@sha256:…, oci:DIR, oci-archive:FILE, docker-archive:FILE, -
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
    /// When to contact the registry
    #[arg(long, alias = "pull", value_enum, default_value_t = Pull::Update, value_name = "WHEN")]
    pull_policy: Pull,
    /// Print full ids (always; accepted for scripts written for rkt)
    #[arg(long, alias = "no-trunc", hide = true)]
    full: bool,
    /// Platform to select from multi-platform images, such as linux/arm64 [default: this host's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    platform: Option<gantry_engine::Platform>,
    /// Let archives take over names of other images in the store
    #[arg(short, long)]
    force: bool,
    /// Suppress progress output
    #[arg(short, long)]
    quiet: bool,
}

/// Fetches every image and prints its id.
impl RunCommand for Fetch {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let references: Vec<ImageRef> = self.images.iter().map(|image| image.parse()).collect::<Result<_, _>>()?;
        if references.iter().filter(|reference| **reference == ImageRef::Stdin).count() > 1 {
            return Err(Failure::usage("standard input can be read only once: '-' is given more than once"));
        }
        let engine = context.open_for_fetch("fetch", |config| {
            config.take_names = self.force;
            config.platform.clone_from(&self.platform);
        })?;
        let progress = ProgressDisplay::new(context.globals.progress, self.quiet);
        let mut stdin = std::io::stdin();
        Ok(context.for_each(&self.images, CommandKind::Action, &mut |image| {
            let reference: ImageRef = image.parse()?;
            let input = (reference == ImageRef::Stdin).then_some(&mut stdin as &mut dyn std::io::Read);
            let fetched = engine.fetch(&reference, policy(self.pull_policy), input, &progress)?;
            let id = &fetched.image.id;
            json::to_stdout(|out| writeln!(out, "{id}"))?;
            Ok(ExitStatus::OK)
        }))
    }
}

/// Converts the flag to the engine's type.
pub(crate) fn policy(pull: Pull) -> gantry_engine::PullPolicy {
    match pull {
        Pull::Never => gantry_engine::PullPolicy::Never,
        Pull::New => gantry_engine::PullPolicy::New,
        Pull::Update => gantry_engine::PullPolicy::Update,
        Pull::Newer => gantry_engine::PullPolicy::Newer,
    }
}
