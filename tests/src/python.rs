//! Python programs, for tests that must not use gantry's own code: a gRPC client generated from the .proto files, and
//! direct writes into the database.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::output::Out;
use crate::running::Running;

/// The Python environment of `./dev setup tests`: `GANTRY_TEST_PYTHON`, or `python/bin/python` below cargo's target
/// directory.
///
/// # Panics
/// When it does not exist.
#[must_use]
#[track_caller]
pub fn python() -> PathBuf {
    let named = std::env::var_os("GANTRY_TEST_PYTHON").map(PathBuf::from);
    let target = || std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    let python = named.unwrap_or_else(|| target().join("python/bin/python"));
    assert!(python.exists(), "there is no {}: `./dev setup tests` brings it", python.display());
    python
}

/// A command that runs a program of `tests/python`.
#[must_use]
#[track_caller]
pub fn script(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(python());
    // Keep `__pycache__` out of the source tree.
    command.arg("-B").arg(repository().join("tests/python").join(name)).args(args);
    command
}

/// Runs a program of `tests/python` to its end.
#[track_caller]
pub fn run_script(name: &str, args: &[&str]) -> Out {
    Running::start(&mut script(name, args), false).wait()
}

/// Starts a program of `tests/python` and leaves it running.
#[track_caller]
#[must_use]
pub fn spawn_script(name: &str, args: &[&str]) -> Running {
    Running::start(&mut script(name, args), false)
}

/// The root of the source tree.
#[must_use]
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
