//! `gantry image save` and `gantry image load`: images to and from archives.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use gantry_engine::{ArchiveFormat, Engine};
use gantry_model::ImageRef;

use crate::context::Context;
use crate::exit;
use crate::failure::{self, Failure};
use crate::progress::Shown;
use crate::render::json;

/// Arguments of `image save`.
#[derive(Debug, clap::Args)]
pub(crate) struct Save {
    /// Names or ids of images
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
    /// File to write; standard output without it
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Kind of archive
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    format: SaveFormat,
}

/// The kinds of archives that can be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SaveFormat {
    /// What docker save writes
    #[default]
    #[value(alias = "docker")]
    DockerArchive,
    /// An OCI image layout in a tar file
    #[value(alias = "oci")]
    OciArchive,
}

/// Arguments of `image load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Load {
    /// Archive to read; standard input without it
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Let the archive take names that belong to other images in the store
    #[arg(short, long)]
    force: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// Writes images into an archive.
pub(crate) fn save(context: &Context, args: &Save) -> Result<u8, Failure> {
    let references: Vec<ImageRef> = args.images.iter().map(|image| image.parse()).collect::<Result<_, _>>()?;
    if args.output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::usage("an archive is not for a terminal: write it to a file with --output, or pipe it"));
    }
    let engine = context.open("image save")?;
    let format = match args.format {
        SaveFormat::DockerArchive => ArchiveFormat::Docker,
        SaveFormat::OciArchive => ArchiveFormat::Oci,
    };
    match &args.output {
        Some(path) => save_to_file(&engine, &references, format, path)?,
        None => {
            let mut out = io::BufWriter::with_capacity(1 << 20, io::stdout().lock());
            let saved = engine.image_save(&references, format, &mut out);
            saved.map_err(of_stdout)?;
        }
    }
    Ok(exit::OK)
}

/// Converts an error of writing to standard output; a closed pipe is reported as for all other output.
fn of_stdout(error: gantry_engine::ImageSaveError) -> Failure {
    match error {
        gantry_engine::ImageSaveError::Export(gantry_engine::ExportError::Write(source)) => failure::output(source),
        error => error.into(),
    }
}

/// Writes a temporary file and renames it, so that an existing file stays until the archive is complete.
fn save_to_file(engine: &Engine, references: &[ImageRef], format: ArchiveFormat, path: &Path) -> Result<(), Failure> {
    let failed = || failure::io("write", path.display().to_string());
    if path.exists() && !path.is_file() {
        // Write directly to a device or FIFO.
        let mut file = File::options().write(true).open(path).map_err(failed())?;
        return Ok(engine.image_save(references, format, &mut file)?);
    }
    let name = path.file_name().ok_or_else(|| Failure::usage("--output needs the name of a file"))?;
    let temporary = path.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let file = File::create_new(&temporary).map_err(failed())?;
    let mut out = io::BufWriter::with_capacity(1 << 20, file);
    let saved = engine.image_save(references, format, &mut out).map_err(Failure::from).and_then(|()| {
        out.flush().and_then(|()| out.get_ref().sync_all()).map_err(failed())?;
        std::fs::rename(&temporary, path).map_err(failed())
    });
    if saved.is_err() {
        // Report the first failure.
        let _ = std::fs::remove_file(&temporary);
    }
    saved
}

/// Imports an archive into the store: docker's spelling of `gantry fetch` for archives.
pub(crate) fn load(context: &Context, args: &Load) -> Result<u8, Failure> {
    let reference = args.input.as_ref().map_or(ImageRef::Stdin, |path| ImageRef::Path(path.clone()));
    if reference == ImageRef::Stdin && io::stdin().is_terminal() {
        return Err(Failure::usage("standard input is a terminal: name the archive with --input"));
    }
    let engine = context.open_for_fetch("image load", |config| config.take_names = args.force)?;
    let progress = Shown::new(context.globals.progress, args.quiet);
    let mut stdin = io::stdin();
    let input = (reference == ImageRef::Stdin).then_some(&mut stdin as &mut dyn io::Read);
    let fetched = engine.fetch(&reference, gantry_engine::PullPolicy::New, input, &progress)?;
    json::to_stdout(|out| writeln!(out, "{}", fetched.image.id))?;
    Ok(exit::OK)
}
