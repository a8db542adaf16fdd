//! Has `gantry-stage1` linked so that it starts quickly.

use std::env;

/// The order of the functions that a pod's start executes, which `./dev link-order` writes.
const ORDER: &str = "link-order.ld";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={ORDER}");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    // Unoptimized builds inline nothing, so the order does not fit them.
    if variable("CARGO_CFG_TARGET_ENV") == "musl" && variable("PROFILE") == "release" {
        let crate_dir = variable("CARGO_MANIFEST_DIR");
        println!("cargo::rustc-link-arg-bin=gantry-stage1=-T{crate_dir}/{ORDER}");
    }
}
