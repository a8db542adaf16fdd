//! `info`: what gantry has found on the host, and what its store holds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gantry_host::cgroup::{Hierarchy, Version};
use gantry_model::PhaseName;
use gantry_model::query::PodQuery;
use gantry_store::Finding;

use crate::host::stage1;
use crate::{Engine, EngineError};

/// A limit on what is read of a file below `/proc` or `/etc`: a host may have many mounts.
const MAX_FILE: u64 = 16 << 20;

/// Facts about the host and the store.
#[derive(Debug, Clone)]
pub struct Info {
    /// The host.
    pub host: HostInfo,
    /// The data directory.
    pub store: StoreInfo,
    /// The version that gantry-stage1 prints; `None` if it cannot be run.
    pub stage1: Option<String>,
    /// The names of the usable networks.
    pub networks: Vec<String>,
    /// What pods lack on this host.
    pub warnings: Vec<Finding>,
}

/// Facts about the host.
#[derive(Debug, Clone)]
pub struct HostInfo {
    /// The name of the host.
    pub hostname: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The machine as uname(2) has it.
    pub architecture: String,
    /// `PRETTY_NAME` of os-release(5).
    pub distribution: Option<String>,
    /// The number of processors.
    pub processors: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of memory that are available without swapping (proc_meminfo(5), `MemAvailable`).
    pub available_memory: u64,
    /// `v1`, `v2` or `hybrid`.
    pub cgroups: &'static str,
    /// The controllers that pods can use.
    pub controllers: Vec<String>,
    /// The security modules that the kernel has loaded.
    pub security_modules: Vec<String>,
}

/// Facts about the data directory.
#[derive(Debug, Clone)]
pub struct StoreInfo {
    /// Its path.
    pub dir: PathBuf,
    /// The type of its file system, as in `/proc/self/mounts`.
    pub file_system: Option<String>,
    /// Bytes of that file system.
    pub size: u64,
    /// Bytes of it that are free for gantry.
    pub free: u64,
    /// The pods by phase.
    pub pods: BTreeMap<PhaseName, usize>,
    /// The number of images.
    pub images: usize,
    /// The number of named volumes.
    pub volumes: usize,
}

impl Engine {
    /// Facts about the host and the store. Starts no program but gantry-stage1, and measures no directories.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn info(&self) -> Result<Info, EngineError> {
        let mut warnings = Vec::new();
        self.check_host(&mut warnings);
        let stage1 = self.stage1().ok().and_then(|program| stage1::version_of(&program).ok());
        // Without them the other facts are still of use; `network list` reports the failure.
        let networks = self.networks().unwrap_or_default().into_iter().filter_map(|network| network.name).collect();
        // A failure is one of the warnings.
        let hierarchies = self.hierarchies().unwrap_or(&[]);
        Ok(Info { host: read_host(hierarchies), store: self.store_info()?, stage1, networks, warnings })
    }

    fn store_info(&self) -> Result<StoreInfo, EngineError> {
        let dir = self.store().layout().root().to_owned();
        let found = rustix::fs::statvfs(&dir).map_err(|errno| {
            let text = format!("cannot read the free space of {}", dir.display());
            EngineError::new(gantry_model::ErrorKind::of_io(&errno.into()), text).caused_by(errno)
        })?;
        let mut pods = BTreeMap::new();
        for view in self.list(&PodQuery::default()).map_err(EngineError::from_cause)? {
            *pods.entry(view.row.phase.name()).or_default() += 1;
        }
        Ok(StoreInfo {
            file_system: file_system_type(&dir),
            size: found.f_blocks.saturating_mul(found.f_frsize),
            free: found.f_bavail.saturating_mul(found.f_frsize),
            pods,
            images: self.image_list().map_err(EngineError::from_cause)?.len(),
            volumes: self.volumes().map_err(EngineError::from_cause)?.len(),
            dir,
        })
    }
}

fn read_host(hierarchies: &[Hierarchy]) -> HostInfo {
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let modules = read("/sys/kernel/security/lsm").unwrap_or_default();
    HostInfo {
        hostname: text(uname.nodename()),
        kernel: text(uname.release()),
        architecture: text(uname.machine()),
        distribution: read("/etc/os-release").as_deref().and_then(pretty_name),
        processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory: kibibytes(&meminfo, "MemTotal:"),
        available_memory: kibibytes(&meminfo, "MemAvailable:"),
        cgroups: cgroup_layout(hierarchies),
        controllers: controllers(hierarchies),
        security_modules: modules.trim().split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
    }
}

fn read(path: &str) -> Option<String> {
    let file = std::fs::File::open(path).ok()?;
    gantry_host::file::read_text(file, MAX_FILE).ok()
}

/// The value of a line `NAME: 123 kB` in bytes.
fn kibibytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
}

/// `PRETTY_NAME` of os-release(5).
fn pretty_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim().trim_matches(['"', '\'']).to_owned())
}

pub(crate) fn cgroup_layout(hierarchies: &[Hierarchy]) -> &'static str {
    let has = |version| hierarchies.iter().any(|hierarchy| hierarchy.version == version);
    match (has(Version::V1), has(Version::V2)) {
        (true, true) => "hybrid",
        (true, false) => "v1",
        (false, true) => "v2",
        (false, false) => "none",
    }
}

/// The controllers of all hierarchies, sorted.
pub(crate) fn controllers(hierarchies: &[Hierarchy]) -> Vec<String> {
    let mut known: Vec<String> = Vec::new();
    for hierarchy in hierarchies {
        known.extend(hierarchy.controllers.iter().cloned());
        if hierarchy.version == Version::V2 {
            let text = std::fs::read_to_string(hierarchy.root.join("cgroup.controllers")).unwrap_or_default();
            known.extend(text.split_ascii_whitespace().map(str::to_owned));
        }
    }
    known.sort();
    known.dedup();
    known
}

/// The type of the file system with the deepest mount point above a path.
fn file_system_type(path: &std::path::Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = gantry_host::file::read_lossy("/proc/self/mounts").ok()?;
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    // Of two mounts on one point, the later one is visible.
    let above = fields.filter(|(target, _)| path.starts_with(target));
    above.max_by_key(|(target, _)| target.len()).map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_files_are_parsed() {
        let meminfo = "MemTotal:       24567 kB\nMemFree:  1 kB\nMemAvailable:   12 kB\n";
        assert_eq!((kibibytes(meminfo, "MemTotal:"), kibibytes(meminfo, "MemAvailable:")), (24567 << 10, 12 << 10));
        assert_eq!(kibibytes("MemTotal: much\n", "MemTotal:"), 0);
        assert_eq!(pretty_name("ID=debian\nPRETTY_NAME=\"Debian 12\"\n").as_deref(), Some("Debian 12"));
        assert_eq!(pretty_name("ID=debian\n"), None);
    }
}
