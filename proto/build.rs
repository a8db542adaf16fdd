//! Compiles the contracts with a compiler written in Rust, so that a build needs no protoc.

use std::error::Error;
use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    rkt(&out)
}

/// Generates messages and client; in the server, lists and streams return messages that are encoded already (see
/// `src/encoded.rs`).
fn rkt(out: &std::path::Path) -> Result<(), Box<dyn Error>> {
    const FILE: &str = "rkt/v1alpha/api.proto";
    println!("cargo::rerun-if-changed={FILE}");
    let files = protox::compile([FILE], ["."])?;
    std::fs::write(out.join("rkt.bin"), files.encode_to_vec())?;

    let client = out.join("client");
    std::fs::create_dir_all(&client)?;
    tonic_prost_build::configure().build_server(false).out_dir(&client).compile_fds(files.clone())?;

    let server = out.join("server");
    std::fs::create_dir_all(&server)?;
    tonic_prost_build::configure()
        .build_client(false)
        .out_dir(&server)
        .extern_path(".v1alpha", "crate::rkt::v1alpha")
        .extern_path(".v1alpha.GetLogsResponse", "crate::encoded::Encoded")
        .extern_path(".v1alpha.ListenEventsResponse", "crate::encoded::Encoded")
        .extern_path(".v1alpha.ListPodsResponse", "crate::encoded::Encoded")
        .extern_path(".v1alpha.ListImagesResponse", "crate::encoded::Encoded")
        .compile_fds(files)?;
    Ok(())
}
