//! Calls that read the host, most of them from /proc.

pub(super) mod block_devices;
pub(super) mod clock;
pub(super) mod cpu;
pub(super) mod devices;
pub(super) mod kernel_log;
pub(super) mod memory;
pub(super) mod mounts;
pub(super) mod network;
pub(super) mod processes;

use gantry_proto::talos::machine::{FeaturesInfo, Hostname, LoadAvg, PlatformInfo, Version, VersionInfo};
use procfs::Current as _;
use tonic::Status;

/// The status of a file of /proc that cannot be read.
fn unreadable(file: &'static str) -> impl Fn(procfs::ProcError) -> Status {
    move |error| Status::internal(format!("cannot read {file}: {error}"))
}

/// Hostname.
pub(super) fn hostname() -> Hostname {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Hostname { metadata: None, hostname: name }
}

/// LoadAvg.
pub(super) fn load_average() -> Result<LoadAvg, Status> {
    let load = procfs::LoadAverage::current().map_err(unreadable("/proc/loadavg"))?;
    Ok(LoadAvg { metadata: None, load1: load.one.into(), load5: load.five.into(), load15: load.fifteen.into() })
}

/// Version: that of gantry.
pub(super) fn version() -> Version {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Version {
        metadata: None,
        version: Some(VersionInfo {
            tag: concat!("v", env!("CARGO_PKG_VERSION")).to_owned(),
            os: std::env::consts::OS.to_owned(),
            arch: arch.to_owned(),
            ..VersionInfo::default()
        }),
        platform: Some(PlatformInfo { name: "gantry".to_owned(), mode: "container".to_owned() }),
        features: Some(FeaturesInfo { rbac: true }),
    }
}
