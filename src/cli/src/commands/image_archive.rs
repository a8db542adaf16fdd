//! `gantry image save` and `gantry image load`.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use gantry_engine::{ArchiveFormat, Engine, LocalImages};
use gantry_host::file::NewFile;
use gantry_model::ImageRef;
use rustix::fs::{Mode, OFlags};

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{self, Failure};
use crate::progress::ProgressDisplay;
use crate::relay::Stdout;
use crate::render::json;

/// Arguments of `image save`.
#[derive(Debug, clap::Args)]
pub(crate) struct Save {
    /// Names or ids of images
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Archive format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: SaveFormat,
}

/// The formats of archives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SaveFormat {
    /// The format of docker save
    #[default]
    #[value(alias = "docker")]
    DockerArchive,
    /// An OCI image layout in a tar file; podman loads it if it has one image with at most one name
    #[value(alias = "oci")]
    OciArchive,
}

/// Arguments of `image load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Load {
    /// Archive to read [default: standard input]
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Let the archive take over names of other images in the store
    #[arg(short, long)]
    force: bool,
    /// Suppress progress output
    #[arg(short, long)]
    quiet: bool,
}

/// Saves images to an archive.
impl RunCommand for Save {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let references: Vec<ImageRef> = self.images.iter().map(|image| image.parse()).collect::<Result<_, _>>()?;
        if self.output.is_none() && io::stdout().is_terminal() {
            return Err(Failure::usage("refusing to write an archive to a terminal: use --output or a pipe"));
        }
        let engine = context.open("image save")?;
        let format = match self.format {
            SaveFormat::DockerArchive => ArchiveFormat::Docker,
            SaveFormat::OciArchive => ArchiveFormat::Oci,
        };
        match &self.output {
            Some(path) => save_to_file(&engine, &references, format, path)?,
            None => {
                let mut out = io::BufWriter::with_capacity(1 << 20, Stdout);
                let saved = engine.image_save(&references, format, &std::env::temp_dir(), &mut out);
                saved.map_err(of_stdout)?;
            }
        }
        Ok(ExitStatus::OK)
    }
}

/// Converts an error of writing to standard output; a closed pipe is reported as for all other output.
fn of_stdout(error: gantry_engine::ImageSaveError) -> Failure {
    match error {
        gantry_engine::ImageSaveError::Export(gantry_engine::ExportError::Write(source)) => failure::output(source),
        error => error.into(),
    }
}

/// Writes a new file, so that an existing one stays until the archive is complete.
fn save_to_file(engine: &Engine, references: &[ImageRef], format: ArchiveFormat, path: &Path) -> Result<(), Failure> {
    let failed = || failure::io("write", path.display().to_string());
    if path.exists() && !path.is_file() {
        // Write directly to a device or FIFO.
        let mut file = File::options().write(true).open(path).map_err(failed())?;
        return Ok(engine.image_save(references, format, &std::env::temp_dir(), &mut file)?);
    }
    let name = path.file_name().ok_or_else(|| Failure::usage("--output needs the name of a file"))?;
    let temporary = format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id());
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(parent, flags, Mode::empty()).map_err(io::Error::from).map_err(failed())?;
    let new = NewFile::create(dir.as_fd(), temporary, Mode::from_raw_mode(0o666));
    let new = new.map_err(io::Error::from).map_err(failed())?;
    let mut out = io::BufWriter::with_capacity(1 << 20, new.file());
    engine.image_save(references, format, parent, &mut out)?;
    out.flush().and_then(|()| out.get_ref().sync_all()).map_err(failed())?;
    drop(out);
    new.publish(name).map_err(io::Error::from).map_err(failed())
}

/// Imports all images of an archive into the store.
impl RunCommand for Load {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        if self.input.is_none() && io::stdin().is_terminal() {
            return Err(Failure::usage("standard input is a terminal: name the archive with --input"));
        }
        let engine = context.open_for_fetch("image load", |config| config.take_names = self.force)?;
        let progress = ProgressDisplay::new(context.globals.progress, self.quiet);
        let mut stdin = io::stdin();
        let images = match &self.input {
            Some(path) => LocalImages::Path(path),
            None => LocalImages::Stream(&mut stdin),
        };
        for fetched in engine.image_load(images, &progress)? {
            let id = fetched?.image.id;
            json::to_stdout(|out| writeln!(out, "{id}"))?;
        }
        Ok(ExitStatus::OK)
    }
}
