//! `gantry fetch`.

use gantry_model::ImageRef;

use crate::context::{self, Context};
use crate::exit::Asking;
use crate::failure::Failure;
use crate::grammar::Pull;
use crate::progress::Shown;
use crate::render::json;

/// Arguments of `fetch`.
#[derive(Debug, clap::Args)]
pub(crate) struct Fetch {
    /// Images: docker://alpine:3.20, registry.example/app@sha256:…, oci:DIR, oci-archive:FILE, docker-archive:FILE, -
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
    /// When to ask the registry
    #[arg(long, alias = "pull", value_enum, default_value_t = Pull::Update, value_name = "WHEN")]
    pull_policy: Pull,
    /// Print whole ids; they always are (accepted for the sake of rkt's scripts)
    #[arg(long, alias = "no-trunc", hide = true)]
    full: bool,
    /// Platform of the images where there is a choice, such as linux/arm64 [default: this host's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    platform: Option<gantry_engine::Platform>,
    /// Let archives take names that belong to other images in the store
    #[arg(short, long)]
    force: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// Fetches every image and prints its id.
pub(crate) fn fetch(context: &Context, args: &Fetch) -> Result<u8, Failure> {
    let references: Vec<ImageRef> = args.images.iter().map(|image| image.parse()).collect::<Result<_, _>>()?;
    if references.iter().filter(|reference| **reference == ImageRef::Stdin).count() > 1 {
        return Err(Failure::usage("standard input can be one image only: '-' stands there more than once"));
    }
    let engine = context.open_for_fetch("fetch", |config| {
        config.take_names = args.force;
        if let Some(platform) = &args.platform {
            config.platform = platform.clone();
        }
    })?;
    let progress = Shown::new(context.globals.progress, args.quiet);
    let mut stdin = std::io::stdin();
    Ok(context::each(&args.images, context.globals.debug, Asking::Action, &mut |image| {
        let reference: ImageRef = image.parse()?;
        let input = (reference == ImageRef::Stdin).then_some(&mut stdin as &mut dyn std::io::Read);
        let fetched = engine.fetch(&reference, policy(args.pull_policy), input, &progress)?;
        let id = &fetched.image.id;
        json::to_stdout(|out| writeln!(out, "{id}"))?;
        Ok(crate::exit::OK)
    }))
}

/// The engine's word for it.
pub(crate) fn policy(pull: Pull) -> gantry_engine::PullPolicy {
    match pull {
        Pull::Never => gantry_engine::PullPolicy::Never,
        Pull::New => gantry_engine::PullPolicy::New,
        Pull::Update => gantry_engine::PullPolicy::Update,
        Pull::Newer => gantry_engine::PullPolicy::Newer,
    }
}
