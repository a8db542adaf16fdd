//! The processes of a running pod, as the host sees them.

use std::fs;
use std::io::Read as _;

use gantry_host::cgroup::CgroupSet;
use gantry_model::{AppName, AppState};

use crate::PodView;

/// Clock ticks per second in `/proc/PID/stat` (`USER_HZ`, 100 on every architecture of Linux that gantry runs on).
const TICKS_PER_SECOND: u64 = 100;

/// The most bytes of a command line.
const MAX_COMMAND_LINE: u64 = 4096;

/// A process of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// The app in whose cgroup it is.
    pub app: AppName,
    /// Its PID on the host.
    pub pid: u32,
    /// Its parent's PID on the host.
    pub parent: u32,
    /// Its effective user.
    pub user: u32,
    /// Its state (proc_pid_stat(5), field 3).
    pub state: char,
    /// The number of its threads.
    pub threads: u64,
    /// Its CPU time, in milliseconds.
    pub cpu_ms: u64,
    /// Its resident memory, in bytes.
    pub rss: u64,
    /// Its command line; for a zombie its name in brackets.
    pub command: String,
}

/// The processes of the running apps of a pod, in the order of the apps, then by PID. Processes that end meanwhile are
/// left out.
///
/// # Errors
/// Of opening the cgroup hierarchies.
pub fn list_processes(view: &PodView) -> std::io::Result<Vec<ProcessInfo>> {
    let pod = CgroupSet::open_roots(&["pids", "memory", "cpuacct"])?.open(view.row.cgroup.trim_start_matches('/'))?;
    let mut processes = Vec::new();
    for app in &view.row.apps {
        let AppState::Started { .. } = app.state else { continue };
        let cgroups = pod.open(app.name.as_str())?;
        let Some(cgroup) = cgroups.iter().next() else { continue };
        let mut pids = Vec::new();
        collect_members(&cgroup.path_of(""), &mut pids);
        pids.sort_unstable();
        processes.extend(pids.into_iter().filter_map(|pid| read_process(&app.name, pid)));
    }
    Ok(processes)
}

/// Adds the processes of a cgroup and of those below it, which an app may have made.
pub(super) fn collect_members(dir: &std::path::Path, pids: &mut Vec<u32>) {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid > 0));
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        collect_members(&entry.path(), pids);
    }
}

fn read_process(app: &AppName, pid: u32) -> Option<ProcessInfo> {
    let read = |file: &str| gantry_host::file::read_lossy(format!("/proc/{pid}/{file}")).ok();
    let stat = read("stat")?;
    let (name, fields) = parse_stat(&stat)?;
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let status = read("status")?;
    let value = |key: &str, at: usize| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().nth(at)?.parse::<u64>().ok()
    };
    // The effective user is the second one; a zombie has no memory.
    let (user, resident) = (value("Uid:", 1)?, value("VmRSS:", 0).unwrap_or(0));
    let mut arguments = Vec::new();
    // An app can make its command line megabytes long.
    let read = fs::File::open(format!("/proc/{pid}/cmdline"))
        .and_then(|file| file.take(MAX_COMMAND_LINE).read_to_end(&mut arguments));
    if read.is_err() {
        arguments.clear();
    }
    let arguments = String::from_utf8_lossy(&arguments).trim_end_matches('\0').replace('\0', " ");
    Some(ProcessInfo {
        app: app.clone(),
        pid,
        parent: u32::try_from(number(1)?).ok()?,
        user: u32::try_from(user).ok()?,
        state: fields.first()?.chars().next()?,
        threads: number(17)?,
        cpu_ms: (number(11)? + number(12)?) * (1000 / TICKS_PER_SECOND),
        rss: resident * 1024,
        command: if arguments.is_empty() { format!("[{name}]") } else { arguments },
    })
}

/// The name, and the fields from the third one on. The name is in parentheses and may contain any character.
fn parse_stat(stat: &str) -> Option<(&str, Vec<&str>)> {
    let (before, fields) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    Some((name, fields.split_whitespace().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_its_own_process() {
        let app: AppName = "app".parse().unwrap();
        let process = read_process(&app, std::process::id()).unwrap();
        assert!(process.rss > 0 && process.threads > 0 && process.parent > 0, "{process:?}");
        assert_eq!(parse_stat("7 (a) b) S 1 2"), Some(("a) b", vec!["S", "1", "2"])));
        assert_eq!(parse_stat("7"), None);
    }
}
