//! Finds or builds the programs under test, once per test process.
//!
//! `GANTRY_BIN_DIR` names a directory with `gantry`, `gantryd`, `gantry-stage1` and `gantry-fixture-app`, for instance
//! an installation. Without it, the set in `<target>/gantry-dev` is brought up to date. `./dev test` builds the same
//! set with the same commands, so nothing is compiled a second time with other features.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};

/// The paths of the programs.
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
        None => gantry_fixtures::app::build_set()?,
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

/// The CNI plugin that fails, hangs and lies as configured (`stage1/net/examples/cni-liar.rs`).
///
/// # Panics
/// When it cannot be built.
pub(crate) fn liar() -> &'static Path {
    static LIAR: OnceLock<PathBuf> = OnceLock::new();
    LIAR.get_or_init(|| {
        // A built set contains the plugin, an installation does not.
        let named = std::env::var_os("GANTRY_BIN_DIR").map(|dir| PathBuf::from(dir).join("cni-liar"));
        match named
            .filter(|path| path.exists())
            .map_or_else(|| gantry_fixtures::app::build_set().map(|dir| dir.join("cni-liar")), Ok)
        {
            Ok(path) => path,
            Err(error) => panic!("the plugin that lies is not there: {error:#}"),
        }
    })
}

/// Copies a program, executable by all.
///
/// Another process writes the file. Had this one it open for writing, a child that another test forks meanwhile would
/// inherit the descriptor until its execve, and executing the program would fail with ETXTBSY.
///
/// # Panics
/// When it cannot be copied.
#[track_caller]
pub fn install_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let result = Command::new("install").args(["-D", "-m", "755"]).args([from, to]).status();
    let is_installed = result.as_ref().is_ok_and(ExitStatus::success);
    assert!(is_installed, "cannot copy {} to {}: {result:?}", from.display(), to.display());
}
