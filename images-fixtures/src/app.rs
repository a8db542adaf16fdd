//! Finding and building the fixture app.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// The target whose programs need nothing from the image they run in.
pub const MUSL: &str = "x86_64-unknown-linux-musl";

/// Builds the fixture app with cargo (fast when nothing changed) and returns where it is.
///
/// # Errors
/// When cargo fails; its output is in the message.
pub fn build() -> Result<PathBuf> {
    cargo_build(&["-p", "gantry-fixture-app", "--target", MUSL, "--release"], "gantry-fixture-app")
}

/// Runs `cargo build` with these arguments in this workspace and returns the program called `name`. Cargo's own
/// lock makes it safe to call from several processes at a time.
///
/// # Errors
/// When cargo fails, or makes no such program.
pub fn cargo_build(arguments: &[&str], name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--message-format=json-render-diagnostics"])
        .args(arguments)
        .current_dir(workspace)
        .stdin(Stdio::null())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo build {}: {}\n{}", arguments.join(" "), output.status, String::from_utf8_lossy(&output.stderr));
    }
    for line in output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let message: serde_json::Value = serde_json::from_slice(line).context("cargo's message is not JSON")?;
        if message["target"]["name"] == name
            && let Some(path) = message["executable"].as_str()
        {
            return Ok(PathBuf::from(path));
        }
    }
    bail!("cargo build {} made no program called {name}", arguments.join(" "))
}
