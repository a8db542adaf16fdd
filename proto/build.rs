//! Compiles the contracts with a compiler written in Rust, so that a build needs no protoc.

use std::error::Error;
use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    rkt(&out)?;
    talos(&out)?;
    aurae(&out)?;
    cri(&out)
}

/// Generates messages and client; in the server, lists, streams and InspectPod return messages that are encoded already
/// (see `src/encoded.rs`).
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
        .extern_path(".v1alpha.InspectPodResponse", "crate::encoded::Encoded")
        .extern_path(".v1alpha.ListPodsResponse", "crate::encoded::Encoded")
        .extern_path(".v1alpha.ListImagesResponse", "crate::encoded::Encoded")
        .compile_fds(files)?;
    Ok(())
}

/// Generates messages and servers of the Talos node API, all releases from one set of types: the messages of
/// `os.OSService` (Talos 0.6) are those of `machine.MachineService` on the wire.
fn talos(out: &std::path::Path) -> Result<(), Box<dyn Error>> {
    const PACKAGES: [&str; 10] =
        ["cluster", "health", "inspect", "machine", "network", "os", "resource", "securityapi", "storage", "time"];
    let files = PACKAGES.map(|package| format!("talos/{package}.proto"));
    println!("cargo::rerun-if-changed=talos");
    println!("cargo::rerun-if-changed=google");
    let files = protox::compile(files, ["."])?;
    std::fs::write(out.join("talos.bin"), files.encode_to_vec())?;

    let generated = out.join("talos");
    std::fs::create_dir_all(&generated)?;
    let os = files.file.iter().filter(|file| file.package() == "os");
    let messages = os.flat_map(|file| file.message_type.iter().map(prost_types::DescriptorProto::name));
    let config = tonic_prost_build::configure().build_client(false).out_dir(&generated);
    messages
        .fold(config, |config, name| {
            config.extern_path(format!(".os.{name}"), format!("crate::talos::machine::{name}"))
        })
        .compile_fds(files.clone())?;
    Ok(())
}

/// Generates messages and servers of Aurae v0.
fn aurae(out: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let files = ["meta", "observe", "runtime", "schedule"].map(|package| format!("aurae/{package}.proto"));
    println!("cargo::rerun-if-changed=aurae");
    let files = protox::compile(files, ["."])?;
    std::fs::write(out.join("aurae.bin"), files.encode_to_vec())?;

    let generated = out.join("aurae");
    std::fs::create_dir_all(&generated)?;
    tonic_prost_build::configure().build_client(false).out_dir(&generated).compile_fds(files)?;
    Ok(())
}

/// Generates messages and servers of the Kubernetes CRI. Calls without an implementation answer UNIMPLEMENTED.
fn cri(out: &std::path::Path) -> Result<(), Box<dyn Error>> {
    const FILE: &str = "cri/api.proto";
    println!("cargo::rerun-if-changed={FILE}");
    let files = protox::compile([FILE], ["."])?;
    std::fs::write(out.join("cri.bin"), files.encode_to_vec())?;

    let generated = out.join("cri");
    std::fs::create_dir_all(&generated)?;
    let config = tonic_prost_build::configure().build_client(false).generate_default_stubs(true);
    config.out_dir(&generated).compile_fds(files)?;
    Ok(())
}
