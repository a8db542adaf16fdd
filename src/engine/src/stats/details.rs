//! What gantryd's samples leave out because it takes a walk through `/proc`: open files, sockets, limits of the main
//! process, and the kernel memory of cgroup v1. Read on request.

use std::fs;
use std::path::Path;

use gantry_host::cgroup::CgroupSet;
use gantry_model::{AppName, AppState};

use super::processes::collect_members;
use crate::PodView;

/// The most open files of an app that are looked at; more are a lower bound. Bounds the time for a hostile app.
const MAX_FILES: u64 = 100_000;

/// The details of a running pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodDetails {
    /// The file system of its directory, which has the writable layers of its apps.
    pub file_system: Option<FileSystemSpace>,
    /// Its running apps.
    pub apps: Vec<AppDetails>,
}

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// Its device: major and minor number.
    pub device: (u32, u32),
    /// Its size in bytes.
    pub bytes: u64,
    /// Its inodes; 0: it has no table of them.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

/// Counts of a running app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppDetails {
    /// The app.
    pub name: AppName,
    /// Open files of its processes.
    pub open_files: u64,
    /// Those that are sockets.
    pub sockets: u64,
    /// The limit of open files of its main process; `None`: unlimited.
    pub open_files_limit: Option<u64>,
    /// The memory that the kernel uses for it, in bytes; `None`: the kernel does not count it.
    pub kernel_memory: Option<u64>,
}

/// Reads the details of a running pod. An app that ends meanwhile is left out.
///
/// # Errors
/// Of opening the cgroup hierarchies.
pub fn read_details(view: &PodView) -> std::io::Result<PodDetails> {
    let pod = CgroupSet::open_roots(&["memory", "pids"])?.open(view.row.cgroup.trim_start_matches('/'))?;
    let mut apps = Vec::new();
    for app in &view.row.apps {
        let AppState::Started { pid, .. } = app.state else { continue };
        let Ok(cgroups) = pod.open(app.name.as_str()) else { continue };
        let Some(cgroup) = cgroups.iter().next() else { continue };
        let mut pids = Vec::new();
        collect_members(&cgroup.path_of(""), &mut pids);
        let (mut open_files, mut sockets) = (0, 0);
        for pid in pids {
            count_files(Path::new(&format!("/proc/{pid}/fd")), &mut open_files, &mut sockets);
        }
        apps.push(AppDetails {
            name: app.name.clone(),
            open_files,
            sockets,
            open_files_limit: open_files_limit(pid),
            kernel_memory: kernel_memory(&cgroups),
        });
    }
    Ok(PodDetails { file_system: file_system_of(&view.dir()).ok(), apps })
}

fn file_system_of(dir: &Path) -> std::io::Result<FileSystemSpace> {
    let (stat, space) = (rustix::fs::stat(dir)?, rustix::fs::statvfs(dir)?);
    Ok(FileSystemSpace {
        device: (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)),
        bytes: space.f_blocks.saturating_mul(space.f_frsize),
        inodes: space.f_files,
        free_inodes: space.f_ffree,
    })
}

fn count_files(dir: &Path, open_files: &mut u64, sockets: &mut u64) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if *open_files >= MAX_FILES {
            return;
        }
        *open_files += 1;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        *sockets += u64::from(target.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
    }
}

/// The soft limit in `/proc/PID/limits`; `None`: unlimited, or the process has ended.
fn open_files_limit(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn kernel_memory(cgroups: &CgroupSet) -> Option<u64> {
    if let Some(v1) = cgroups.v1("memory") {
        return v1.read("memory.kmem.usage_in_bytes").ok()?.trim().parse().ok();
    }
    let stat = cgroups.v2()?.read("memory.stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("kernel ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_own_files_are_counted() {
        let _socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let (mut files, mut sockets) = (0, 0);
        count_files(Path::new("/proc/self/fd"), &mut files, &mut sockets);
        assert!(sockets >= 1 && files > sockets, "{files} {sockets}");
        assert!(open_files_limit(std::process::id()).is_none_or(|limit| limit >= files));
    }
}
