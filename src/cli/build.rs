//! Has `gantry` linked so that it starts quickly: a third of a short command's instructions were the dynamic linker's.

use std::path::PathBuf;
use std::{env, fs, io};

/// A linker script in place of the shared library of stack unwinding: takes the static one, which is smaller than the
/// work of loading the other. The C library stays dynamic: the names of registries are resolved as nsswitch.conf(5)
/// says, which no static program can do.
const LIBGCC: (&str, &str) = ("libgcc_s.so", "INPUT(-lgcc_eh -lgcc)");

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |variable: &str, value: &str| env::var(variable).is_ok_and(|found| found == value);
    if !is("CARGO_CFG_TARGET_OS", "linux") || !is("CARGO_CFG_TARGET_ENV", "gnu") {
        return Ok(());
    }
    let dir = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let (name, script) = LIBGCC;
    fs::write(dir.join(name), script)?;
    println!("cargo::rustc-link-arg-bin=gantry=-L{}", dir.display());
    // Without relocations of its own, which would touch a quarter of the pages that a short command needs.
    println!("cargo::rustc-link-arg-bin=gantry=-no-pie");
    Ok(())
}
