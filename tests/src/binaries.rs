//! Finding or building what is tested, once per test process.
//!
//! `GANTRY_BIN_DIR` names a directory with `gantry`, `gantryd`, `gantry-stage1` and `gantry-fixture-app`, for instance an
//! installation. Without it cargo builds them (its own lock makes that safe from many test processes at a time),
//! and hard links beside each other in `<target>/gantry-tests/` stand for an installation: `gantry` looks for the
//! supervisor beside itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use gantry_fixtures::app::{MUSL, build, cargo_build};

/// Where the programs are.
#[derive(Debug)]
pub(crate) struct Binaries {
    /// The command line.
    pub(crate) gantry: PathBuf,
    /// The node daemon.
    pub(crate) gantryd: PathBuf,
    /// The supervisor.
    pub(crate) stage1: PathBuf,
    /// The fixture app, to be run on the host.
    pub(crate) app_program: PathBuf,
    /// The fixture app's bytes.
    pub(crate) app: Vec<u8>,
}

/// The programs of this test process.
///
/// # Panics
/// When they cannot be built.
pub(crate) fn binaries() -> &'static Binaries {
    static BINARIES: OnceLock<Binaries> = OnceLock::new();
    BINARIES.get_or_init(|| match find() {
        Ok(found) => found,
        Err(error) => panic!("the programs to test are not there: {error:#}"),
    })
}

fn find() -> Result<Binaries> {
    let dir = match std::env::var_os("GANTRY_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => install()?,
    };
    let app_program = dir.join("gantry-fixture-app");
    let app = fs::read(&app_program).with_context(|| format!("cannot read {}", app_program.display()))?;
    Ok(Binaries {
        gantry: dir.join("gantry"),
        gantryd: dir.join("gantryd"),
        stage1: dir.join("gantry-stage1"),
        app_program,
        app,
    })
}

/// The CNI plugin that fails, hangs and lies as its configuration says (`stage1/net/examples/cni-liar.rs`).
///
/// # Panics
/// When it cannot be built.
pub(crate) fn liar() -> &'static Path {
    static LIAR: OnceLock<PathBuf> = OnceLock::new();
    LIAR.get_or_init(|| {
        // A built set has it; what is installed has not.
        let built = std::env::var_os("GANTRY_BIN_DIR").map(|dir| PathBuf::from(dir).join("cni-liar"));
        match built
            .filter(|path| path.exists())
            .map_or_else(|| cargo_build(&["-p", "gantry-net", "--example", "cni-liar"], "cni-liar"), Ok)
        {
            Ok(path) => path,
            Err(error) => panic!("the plugin that lies is not there: {error:#}"),
        }
    })
}

fn install() -> Result<PathBuf> {
    let gantry = cargo_build(&["-p", "gantry-cli", "--bin", "gantry"], "gantry")?;
    let gantryd = cargo_build(&["-p", "gantry-daemon", "--bin", "gantryd"], "gantryd")?;
    let stage1 = cargo_build(&["-p", "gantry-stage1", "--target", MUSL], "gantry-stage1")?;
    let app = build()?;
    let dir = gantry.parent().and_then(Path::parent).context("cargo's target directory")?.join("gantry-tests");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for program in [gantry, gantryd, stage1, app] {
        let name = program.file_name().context("a program without a name")?;
        replace_link(&program, &dir.join(name))?;
    }
    Ok(dir)
}

/// Puts a hard link where another may be, at once: other test processes are running what is there.
fn replace_link(program: &Path, place: &Path) -> Result<()> {
    let temporary = place.with_extension(format!("{}.new", std::process::id()));
    fs::hard_link(program, &temporary)
        .and_then(|()| fs::rename(&temporary, place))
        // rename leaves both names when they are the same file already (rename(2)).
        .and_then(|()| if temporary.exists() { fs::remove_file(&temporary) } else { Ok(()) })
        .with_context(|| format!("cannot link {} to {}", place.display(), program.display()))
}
