//! `gantry-fixtures`: writes the standard image, or a big one for measurements.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use gantry_fixtures::{app, big, write_standard};

const USAGE: &str = "\
usage: gantry-fixtures build DIR [--app FILE]
           writes the standard image: DIR/layout, DIR/oci.tar, DIR/docker.tar
       gantry-fixtures big DIR [--bytes N] [--files N] [--layers N] [--level N] [--app FILE]
           writes an OCI layout for measuring (default: 1000000000 bytes, 15000 files, 4 layers, gzip level 6)

The fixture app is built with cargo, unless --app names a file.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("gantry-fixtures: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<String> {
    let [command, dir, options @ ..] = args else { bail!("{USAGE}") };
    if dir.starts_with('-') {
        bail!("{USAGE}");
    }
    let dir = Path::new(dir);
    let options = Options::parse(options)?;
    match command.as_str() {
        "build" => {
            let image =
                write_standard(dir, &options.app()?).with_context(|| format!("cannot write {}", dir.display()))?;
            Ok(image.id())
        }
        "big" => {
            let made = big::write(dir, options.size, Some(&options.app()?))
                .with_context(|| format!("cannot write {}", dir.display()))?;
            Ok(format!("{} ({} bytes, unpacked {})", made.id, made.compressed, made.uncompressed))
        }
        _ => bail!("{USAGE}"),
    }
}

struct Options {
    app: Option<PathBuf>,
    size: big::Size,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self> {
        let size = big::Size { bytes: 1_000_000_000, files: 15_000, layers: 4, level: 6 };
        let mut options = Self { app: None, size };
        for pair in words.chunks(2) {
            let [name, value] = pair else { bail!("{} needs a value\n{USAGE}", pair[0]) };
            let number = || value.parse::<u64>().with_context(|| format!("{name} {value}: not a number"));
            let small = || value.parse::<u32>().with_context(|| format!("{name} {value}: not a number"));
            match name.as_str() {
                "--app" => options.app = Some(value.into()),
                "--bytes" => options.size.bytes = number()?,
                "--files" => options.size.files = small()?,
                "--layers" => options.size.layers = small()?,
                "--level" => options.size.level = small()?,
                _ => bail!("{name}: no such option\n{USAGE}"),
            }
        }
        Ok(options)
    }

    fn app(&self) -> Result<Vec<u8>> {
        let path = self.app.clone().map_or_else(app::build, Ok)?;
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}
