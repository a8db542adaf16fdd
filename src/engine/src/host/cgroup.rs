//! Kills the processes in a dead pod's cgroups and removes the cgroups, in every hierarchy: v1, v2, or both (hybrid).
//!
//! A supervisor removes its apps' cgroups when they end; it cannot remove its own, and a killed supervisor removes
//! none. So finalizing a pod does it. Killed half-way, the next reconcile, `rm` or `gc` of the pod repeats it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_model::{ErrorKind, PodId};

use crate::host::process::{self, Deadline};
use crate::{Engine, EngineError};

/// The most cgroups below a pod's that are removed. Apps cannot create any, since their cgroup file systems are
/// read-only.
const MAX_DIRECTORIES: usize = 100_000;

/// A mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// The mount point.
    pub root: PathBuf,
    /// Whether it is cgroup v2.
    pub unified: bool,
    /// The controllers of a v1 hierarchy as the kernel names them (`cpu`, `cpuacct`); empty for v2.
    pub controllers: Vec<String>,
}

/// The cgroup hierarchies in the text of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[must_use]
pub(crate) fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, fs)) = line.split_once(" - ") else { continue };
        let Some(point) = mount.split(' ').nth(4) else { continue };
        let mut fs = fs.split(' ');
        let unified = match fs.next() {
            Some("cgroup2") => true,
            Some("cgroup") => false,
            _ => continue,
        };
        let options = fs.nth(1).unwrap_or("");
        let option = |name: &&str| !matches!(*name, "rw" | "ro" | "xattr" | "noprefix" | "clone_children" | "");
        let controllers =
            if unified { Vec::new() } else { options.split(',').filter(option).map(str::to_owned).collect() };
        let root = PathBuf::from(unescaped(point));
        if found.iter().all(|known| known.root != root) {
            found.push(Hierarchy { root, unified, controllers });
        }
    }
    found
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescaped(text: &str) -> String {
    let mut out = text.to_owned();
    for (code, c) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        out = out.replace(code, c);
    }
    out
}

impl Engine {
    /// The host's hierarchies, read once.
    pub(crate) fn hierarchies(&self) -> &[Hierarchy] {
        self.hierarchies
            .get_or_init(|| hierarchies(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()))
    }

    /// The existing directories of a pod's cgroup.
    pub(crate) fn pod_cgroups(&self, id: PodId) -> Vec<PathBuf> {
        let name = id.to_string();
        let dir = |hierarchy: &Hierarchy| self.cgroup_parent_in(hierarchy).join(&name);
        self.hierarchies().iter().map(dir).filter(|path| path.exists()).collect()
    }

    pub(crate) fn cgroup_parent_in(&self, hierarchy: &Hierarchy) -> PathBuf {
        hierarchy.root.join(self.options.cgroup_parent.trim_start_matches('/'))
    }

    /// Kills the processes in a dead pod's cgroups and removes them, and the parent when it is empty. The caller holds
    /// the pod's lock, so that no new process enters them.
    ///
    /// # Errors
    /// [`EngineError`] of the first that could not be removed; the others are removed nevertheless.
    pub(crate) fn remove_cgroups(&self, id: PodId) -> Result<(), EngineError> {
        let name = id.to_string();
        let mut first = Ok(());
        // For all together: they have the same processes.
        let deadline = Deadline::after(self.timeouts.cgroups);
        for hierarchy in self.hierarchies() {
            let parent = self.cgroup_parent_in(hierarchy);
            match remove(&parent.join(&name), hierarchy.unified, deadline) {
                Ok(true) => {
                    // Fails while other pods are in it, as intended.
                    let _ = rustix::fs::rmdir(&parent);
                }
                Ok(false) => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        first
    }
}

/// Removes one tree of cgroups; returns whether it existed.
fn remove(path: &Path, unified: bool, deadline: Deadline) -> Result<bool, EngineError> {
    // The usual cases, in one system call: no directory, or an empty one.
    match rustix::fs::rmdir(path) {
        Ok(()) => return Ok(true),
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(_) => {}
    }
    let mut pause = Duration::from_micros(100);
    loop {
        let dirs = tree(path).map_err(|source| io_error("list", path, source))?;
        if dirs.is_empty() {
            return Ok(true);
        }
        kill_all(path, &dirs, unified)?;
        if remove_dirs(&dirs)? {
            return Ok(true);
        }
        if deadline.passed() {
            let pids: Vec<u32> = dirs.iter().flat_map(|dir| pids(dir)).take(10).collect();
            let text = format!(
                "cannot remove cgroup {}: processes in it do not end after SIGKILL; they are stuck in the kernel: {pids:?}",
                path.display()
            );
            return Err(EngineError::new(ErrorKind::Busy, text));
        }
        // A killed process leaves its cgroup when it is reaped; cgroup v1 has no event for that.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// A directory and all below it, deepest last. Empty when it does not exist.
fn tree(top: &Path) -> io::Result<Vec<PathBuf>> {
    let mut dirs = if top.exists() { vec![top.to_owned()] } else { Vec::new() };
    let mut next = 0;
    while next < dirs.len() {
        let entries = match std::fs::read_dir(&dirs[next]) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                next += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
            }
            if dirs.len() > MAX_DIRECTORIES {
                return Err(io::Error::other(format!("more than {MAX_DIRECTORIES} cgroups are below it")));
            }
        }
        next += 1;
    }
    Ok(dirs)
}

/// Whether all have ended.
fn remove_dirs(dirs: &[PathBuf]) -> Result<bool, EngineError> {
    let mut all = true;
    for dir in dirs.iter().rev() {
        match rustix::fs::rmdir(dir) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(rustix::io::Errno::BUSY | rustix::io::Errno::NOTEMPTY) => all = false,
            Err(error) => return Err(io_error("remove", dir, error.into())),
        }
    }
    Ok(all)
}

/// Sends SIGKILL to every process in the cgroups: by `cgroup.kill` (v2, Linux 5.14), else by pid, through a pidfd that
/// is opened before the membership is checked again, so that no other process is hit.
fn kill_all(top: &Path, dirs: &[PathBuf], unified: bool) -> Result<(), EngineError> {
    if unified && std::fs::write(top.join("cgroup.kill"), "1").is_ok() {
        return Ok(());
    }
    for dir in dirs {
        let members = pids(dir);
        if members.is_empty() {
            continue;
        }
        thaw(dir);
        for pid in members {
            let Some(fd) = process::open_pid(pid) else { continue };
            if pids(dir).contains(&pid) {
                process::kill(fd).map_err(|source| io_error("kill the processes of", dir, source))?;
            }
        }
    }
    Ok(())
}

/// Processes in a frozen v1 cgroup do not take SIGKILL until they are thawed. Other hierarchies lack the file.
fn thaw(dir: &Path) {
    let state = dir.join("freezer.state");
    if state.exists() {
        let _shown_as_stuck = std::fs::write(state, "THAWED");
    }
}

fn pids(dir: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect()
}

/// Whether any process is in the cgroup or below it.
pub(crate) fn is_populated(top: &Path) -> bool {
    tree(top).is_ok_and(|dirs| dirs.iter().any(|dir| !pids(dir).is_empty()))
}

fn io_error(attempt: &'static str, path: &Path, source: io::Error) -> EngineError {
    let text = format!("cannot {attempt} cgroup {}", path.display());
    EngineError::new(ErrorKind::of_io(&source), text).caused_by(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:5 master:1 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
50 1 0:40 / /mnt/cgroup rw - tmpfs cgroup rw
";

    #[test]
    fn hierarchies_are_found() {
        let show = |text: &str| -> Vec<String> {
            let all = hierarchies(text);
            all.iter().map(|h| format!("{} {} {}", h.root.display(), h.unified, h.controllers.join("+"))).collect()
        };
        let want = [
            "/sys/fs/cgroup/cpu,cpuacct false cpu+cpuacct",
            "/sys/fs/cgroup/memory false memory",
            "/sys/fs/cgroup/systemd false name=systemd",
            "/sys/fs/cgroup/unified true ",
        ];
        assert_eq!(show(HYBRID), want);
        let pure =
            "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
        assert_eq!(show(pure), ["/sys/fs/cgroup true "]);
        assert_eq!(show("1 2 0:3 / /a\\040b rw - cgroup2 none rw"), ["/a b true "]);
        assert!(show("garbage\n - \n1 2 3 - cgroup").is_empty());
    }

    #[test]
    fn trees_are_removed_deepest_first() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().join("pod");
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        std::fs::create_dir(top.join("d")).unwrap();
        let whenever = Deadline::maybe(None);
        assert!(remove(&top, false, whenever).unwrap());
        assert!(!top.exists());
        assert!(!remove(&top, false, whenever).unwrap(), "it was not there any more");
    }

    /// On a real hierarchy, if a writable one exists.
    #[test]
    fn remaining_processes_of_a_cgroup_are_killed() {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        for hierarchy in hierarchies(&mountinfo) {
            let top = hierarchy.root.join(format!("gantry-test-{}", std::process::id()));
            if std::fs::create_dir(&top).is_err() {
                continue;
            }
            std::fs::create_dir(top.join("app")).unwrap();
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            let joined = std::fs::write(top.join("app/cgroup.procs"), child.id().to_string()).is_ok();
            // A zombie child of this test would keep a v1 cgroup busy: reap it in the meantime.
            let reaper = std::thread::spawn(move || {
                if !joined {
                    child.kill().unwrap();
                }
                child.wait().unwrap()
            });
            assert!(remove(&top, hierarchy.unified, Deadline::maybe(None)).unwrap(), "{}", top.display());
            let status = reaper.join().unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        }
    }
}
