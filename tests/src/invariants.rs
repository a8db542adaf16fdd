//! The invariants of ARCHITECTURE.md that are visible from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::gantry::Gantry;
use crate::wait::within;

/// The time within which the kernel and exiting supervisors must release everything.
const SETTLE: Duration = Duration::from_secs(30);

impl Gantry {
    /// Fails on leftovers: processes, mounts, cgroups and temporary files of this gantry beyond the needs of its
    /// running pods; wrong permissions; any finding of `doctor`.
    ///
    /// # Panics
    /// With the list of all findings.
    #[track_caller]
    pub fn check_invariants(&self) {
        let doctor = self.run(&["doctor", "--deep"]);
        let list = self.list();
        let mut running = BTreeSet::new();
        let mut supervisors = BTreeSet::new();
        for pod in &list {
            let id = pod["id"].as_str().unwrap_or_default();
            self.record_pod_ids(id);
            if pod["phase"] == "running" {
                running.insert(id.to_owned());
                supervisors.insert(self.supervisor(id));
            }
        }
        let mut found = Vec::new();
        // The kernel tears a process down asynchronously: its parent may be notified earlier.
        within(SETTLE, || {
            found = self.leftovers(&running, &supervisors);
            found.is_empty().then_some(())
        });
        found.extend(self.wrong_permissions());
        found.extend(self.torn_logs(&running));
        // A truncated line is only a warning and needs no action.
        if doctor.code != 0 || doctor.stdout.contains("does not end in a whole line") {
            found.push(format!("the doctor found something: {doctor}"));
        }
        assert!(found.is_empty(), "left behind or wrong in {}:\n  {}", self.dir().display(), found.join("\n  "));
    }

    /// The pod's cgroups, in all hierarchies.
    #[must_use]
    pub fn cgroups(&self, pod: &str) -> Vec<PathBuf> {
        cgroups_of(&BTreeSet::from([pod.to_owned()]))
    }

    fn leftovers(&self, running: &BTreeSet<String>, supervisors: &BTreeSet<u32>) -> Vec<String> {
        let mut found = foreign_processes(self.home(), supervisors);
        found.extend(
            lines_with_path("/proc/self/mountinfo", self.home()).into_iter().map(|line| format!("mount: {line}")),
        );
        let over: BTreeSet<String> = self.known_pods().difference(running).cloned().collect();
        found.extend(cgroups_of(&over).into_iter().map(|path| format!("cgroup: {}", path.display())));
        found.extend(self.records(running));
        if running.is_empty() {
            found.extend(self.network_leftovers(&over));
            found
                .extend(files_below(&self.dir().join("net/results")).into_iter().map(|path| leftover("result", &path)));
            let leases = files_below(&self.dir().join("net")).into_iter().filter(|path| is_lease(path));
            found.extend(leases.map(|path| leftover("lease", &path)));
        }
        // A file that replaces another one has this suffix until it is renamed.
        let pods = entries(&self.dir().join("pods"));
        let new =
            pods.iter().flat_map(|pod| entries(pod)).filter(|path| path.extension().is_some_and(|end| end == "new"));
        found.extend(new.map(|path| leftover("temporary file", &path)));
        let tmp = self.dir().join("tmp");
        found.extend(entries(&tmp).into_iter().map(|path| format!("temporary file: {}", path.display())));
        found
    }

    /// Network records of pods that do not run.
    fn records(&self, running: &BTreeSet<String>) -> Vec<String> {
        let pods = entries(&self.dir().join("pods")).into_iter();
        let over = pods.filter(|pod| !running.iter().any(|id| pod.ends_with(id)));
        let records = over.map(|pod| pod.join("network.json")).filter(|path| path.exists());
        records.map(|path| leftover("record of networks", &path)).collect()
    }

    /// Logs of pods that do not run and whose last line is incomplete.
    fn torn_logs(&self, running: &BTreeSet<String>) -> Vec<String> {
        let pods = entries(&self.dir().join("pods")).into_iter();
        let over = pods.filter(|pod| !running.iter().any(|id| pod.ends_with(id)));
        let logs = over
            .flat_map(|pod| files_below(&pod.join("logs")))
            .filter(|path| path.extension().is_some_and(|end| end == "log"));
        logs.filter(|path| {
            let bytes = fs::read(path).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let whole = |line: &str| line.split(' ').nth(2).is_some_and(|tag| tag.starts_with('F'));
            !(text.is_empty() || text.ends_with('\n') && text.lines().last().is_some_and(whole))
        })
        .map(|path| leftover("log without a complete last line", &path))
        .collect()
    }

    fn wrong_permissions(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut check = |path: &Path| {
            // The file was deleted in between.
            let Ok(meta) = fs::symlink_metadata(path) else { return };
            let mode = meta.permissions().mode() & 0o777;
            let fits = if meta.file_type().is_socket() { mode == 0o600 || mode == 0o660 } else { mode & 0o077 == 0 };
            if !fits {
                found.push(format!("permissions {mode:o}: {}", path.display()));
            }
        };
        check(&self.dir());
        for pod in entries(&self.dir().join("pods")) {
            check(&pod);
            entries(&pod).iter().filter(|path| is_socket(path)).for_each(|path| check(path));
            entries(&pod.join("logs")).iter().for_each(|path| check(path));
        }
        found
    }
}

fn leftover(what: &str, path: &Path) -> String {
    format!("{what}: {}", path.display())
}

/// Whether the path is an address lease: a file in a network's directory `addresses`.
fn is_lease(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.ends_with("addresses") || dir.ends_with("owners"))
}

/// All files below a directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut rest) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = rest.pop() {
        for path in entries(&dir) {
            match fs::symlink_metadata(&path) {
                Ok(meta) if meta.is_dir() => rest.push(path),
                Ok(_) => found.push(path),
                // The directory was deleted in between.
                Err(_) => {}
            }
        }
    }
    found
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    // A missing directory counts as empty.
    fs::read_dir(dir).map(|all| all.filter_map(|entry| Some(entry.ok()?.path())).collect()).unwrap_or_default()
}

fn contains(bytes: &[u8], path: &Path) -> bool {
    let needle = path.as_os_str().as_bytes();
    bytes.windows(needle.len()).any(|window| window == needle)
}

fn lines_with_path(file: &str, path: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap_or_default();
    bytes
        .split(|&byte| byte == b'\n')
        .filter(|line| contains(line, path))
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect()
}

/// Processes that refer to the directory and belong neither to a running pod nor to the test itself.
fn foreign_processes(home: &Path, supervisors: &BTreeSet<u32>) -> Vec<String> {
    let parents = parents();
    let of_running_pod = |pid: u32| ancestors(pid, &parents).iter().any(|ancestor| supervisors.contains(ancestor));
    parents
        .keys()
        .filter(|&&pid| pid != std::process::id() && !of_running_pod(pid))
        .filter_map(|&pid| Some(format!("process {pid} ({}): {}", name(pid), find_reference(pid, home)?)))
        .collect()
}

/// The parent of every process of the host.
fn parents() -> BTreeMap<u32, u32> {
    let pids = entries(Path::new("/proc")).into_iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        Some((pid, parent))
    })
    .collect()
}

/// The process itself and all its ancestors.
fn ancestors(pid: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut line = vec![pid];
    while let Some(&parent) = line.last().and_then(|pid| parents.get(pid)) {
        if line.contains(&parent) {
            break;
        }
        line.push(parent);
    }
    line
}

fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// How a process refers to the directory, if it does.
fn find_reference(pid: u32, home: &Path) -> Option<String> {
    let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).is_ok_and(|bytes| contains(&bytes, home));
    let link = |path: &Path| fs::read_link(path).is_ok_and(|target| contains(target.as_os_str().as_bytes(), home));
    let base = PathBuf::from(format!("/proc/{pid}"));
    // The test's own threads and children have TMPDIR in their environment only if the harness set it.
    let files = ["cmdline", "environ", "mountinfo"].into_iter().find(|name| file(name));
    let links = || ["cwd", "root", "exe"].into_iter().find(|name| link(&base.join(name)));
    let fds = || entries(&base.join("fd")).iter().any(|path| link(path)).then_some("fd");
    files.or_else(links).or_else(fds).map(str::to_owned)
}

/// Cgroup directories named after one of these pods, in any hierarchy.
fn cgroups_of(pods: &BTreeSet<String>) -> Vec<PathBuf> {
    /// Deeper than gantry's cgroups, below any cgroup in which the test itself runs.
    const DEPTH: usize = 8;
    let mut found = Vec::new();
    let mut rest = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((dir, depth)) = rest.pop() {
        for path in entries(&dir) {
            if !fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
                continue;
            }
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if pods.iter().any(|pod| name.contains(pod.as_str())) {
                found.push(path);
            } else if depth < DEPTH {
                rest.push((path, depth + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_processes_are_distinguished_from_supervised_ones() {
        let home = tempfile::tempdir().unwrap();
        let start = |command: &mut std::process::Command| command.arg("30").spawn().unwrap();
        let mut by_place = start(std::process::Command::new("sleep").current_dir(home.path()));
        let mut by_word = start(std::process::Command::new("sleep").env("DIR", home.path()));
        let seen = foreign_processes(home.path(), &BTreeSet::new());
        let ours = foreign_processes(home.path(), &BTreeSet::from([by_place.id()]));
        for child in [&mut by_place, &mut by_word] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!((seen.len(), ours.len()), (2, 1), "{seen:?} {ours:?}");
        assert_eq!(foreign_processes(home.path(), &BTreeSet::new()), Vec::<String>::new());
    }

    #[test]
    fn open_files_are_found() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("lock"), b"").unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .stdin(fs::File::open(home.path().join("lock")).unwrap())
            .spawn()
            .unwrap();
        let seen = foreign_processes(home.path(), &BTreeSet::new());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
    }

    #[test]
    fn mounts_are_found() {
        let mounted = lines_with_path("/proc/self/mountinfo", Path::new("/proc"));
        assert!(!mounted.is_empty());
        assert!(lines_with_path("/proc/self/mountinfo", Path::new("/no/such/place")).is_empty());
    }
}
