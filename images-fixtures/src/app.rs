//! Builds the fixture app and the programs for the tests.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// The target of static programs, which need nothing from the image in which they run.
pub const MUSL: &str = "x86_64-unknown-linux-musl";

/// Builds the fixture app with cargo (fast if nothing changed) and returns its path.
///
/// # Errors
/// When cargo fails; its output is in the message.
pub fn build() -> Result<PathBuf> {
    cargo_build(&["-p", "gantry-fixture-app", "--target", MUSL, "--release"], "gantry-fixture-app")
}

/// Updates `<target>/gantry-dev` as `./dev test` does, and returns its path. Prints a notice on standard error before
/// a build, which may take minutes. Safe to call from several processes at a time.
///
/// # Errors
/// When cargo fails, or a program cannot be installed.
pub fn build_set() -> Result<PathBuf> {
    // An error means that standard error is closed; the build continues without the message.
    let _ = writeln!(std::io::stderr(), "building the programs to test (GANTRY_BIN_DIR names built ones)");
    let gantry = cargo_build(&["--workspace", "--bins", "--examples"], "gantry")?;
    let debug = gantry.parent().context("a program without a directory")?;
    let set = debug.parent().context("cargo's target directory")?.join("gantry-dev");
    std::fs::create_dir_all(&set).with_context(|| format!("cannot make {}", set.display()))?;
    let stage1 = cargo_build(&["-p", "gantry-stage1", "--target", MUSL], "gantry-stage1")?;
    let beside = ["gantryd", "gantry-fixtures", "examples/cni-liar"].map(|name| debug.join(name));
    for program in beside.into_iter().chain([gantry, stage1, build()?]) {
        put(&program, &set.join(program.file_name().context("a program without a name")?))?;
    }
    Ok(set)
}

/// Replaces a program by a copy atomically: running processes keep their file. An identical file is kept.
fn put(program: &Path, place: &Path) -> Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    if std::fs::read(place).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let temporary = place.with_extension(format!("{}.new", std::process::id()));
    std::fs::copy(program, &temporary)
        .and_then(|_| std::fs::rename(&temporary, place))
        .with_context(|| format!("cannot copy {} to {}", program.display(), place.display()))
}

/// Runs `cargo build` with these arguments in this workspace and returns the program called `name`. Cargo's own lock
/// makes it safe to call from several processes at a time.
///
/// # Errors
/// When cargo fails, or builds no such program.
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
