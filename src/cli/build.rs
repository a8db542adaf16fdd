//! Has `gantry` linked so that it starts quickly.

use std::path::PathBuf;
use std::{env, fs, io};

/// A linker script in place of the shared library of stack unwinding: takes the static one, which is smaller than the
/// work of loading the other. The C library stays dynamic: the names of registries are resolved as nsswitch.conf(5)
/// says, which no static program can do.
const LIBGCC: (&str, &str) = ("libgcc_s.so", "INPUT(-lgcc_eh -lgcc)");

/// The order of the functions of short commands, which `./dev link-order` writes.
const ORDER: &str = "link-order.ld";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={ORDER}");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    match (variable("CARGO_CFG_TARGET_OS").as_str(), variable("CARGO_CFG_TARGET_ENV").as_str()) {
        ("linux", "gnu") => link_static_unwinder(),
        // Unoptimized builds inline nothing, so the order of functions does not fit them.
        ("linux", "musl") if variable("PROFILE") == "release" => {
            link_in_order(&variable("CARGO_MANIFEST_DIR"));
            let relocates_itself = variable("CARGO_ENCODED_RUSTFLAGS").contains("relocation-model=pic");
            if relocates_itself && variable("CARGO_CFG_TARGET_ARCH") == "x86_64" {
                set_entry_point();
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Links the unwinder statically, without PIE: the dynamic linker took a third of a short command's instructions.
fn link_static_unwinder() -> io::Result<()> {
    let dir = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let (name, script) = LIBGCC;
    fs::write(dir.join(name), script)?;
    println!("cargo::rustc-link-arg-bin=gantry=-L{}", dir.display());
    // Without relocations of its own, which would touch a quarter of the pages that a short command needs.
    println!("cargo::rustc-link-arg-bin=gantry=-no-pie");
    Ok(())
}

/// Enters the program by the function of `src/host/src/sys/entry.rs`.
fn set_entry_point() {
    println!("cargo::rustc-link-arg-bin=gantry=-Wl,--entry=gantry_entry,--require-defined=gantry_entry");
}

/// Groups the functions of short commands, for fewer page faults, and packs relative relocations (DT_RELR, which musl
/// has since 1.2.4; Rust brings a newer one): 4 KiB in place of 390. mold and gold cannot insert sections.
fn link_in_order(crate_dir: &str) {
    println!("cargo::rustc-link-arg-bin=gantry=-T{crate_dir}/{ORDER}");
    println!("cargo::rustc-link-arg-bin=gantry=-Wl,-z,pack-relative-relocs");
}
