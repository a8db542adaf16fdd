//! Removes cgroups by path, from outside of the pod.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::group::{is_removed, kill_members, parse_pids, read_at, write_at};

/// The most cgroups below one that is removed.
const MAX_DIRECTORIES: usize = 100_000;
/// The back-off between two attempts, doubled each time. A killed process leaves its cgroup when it is reaped, of which
/// cgroup v1 sends no event.
const MIN_BACKOFF: Duration = Duration::from_micros(100);
const MAX_BACKOFF: Duration = Duration::from_millis(20);

/// Kills the processes in a cgroup and in all below it, and removes them; returns whether it existed. The caller sees
/// to it that no process enters meanwhile.
///
/// # Errors
/// Of listing, killing or removing; [`io::ErrorKind::ResourceBusy`] if processes are left after the timeout.
pub fn remove_tree(path: &Path, timeout: Duration) -> io::Result<bool> {
    // The usual cases, in one system call: no directory, or an empty one.
    match rustix::fs::rmdir(path) {
        Ok(()) => return Ok(true),
        Err(Errno::NOENT) => return Ok(false),
        Err(_) => {}
    }
    let begin = Instant::now();
    let mut backoff = MIN_BACKOFF;
    loop {
        let dirs = list_tree(path)?;
        if dirs.is_empty() {
            return Ok(true);
        }
        kill_tree(path, &dirs)?;
        if remove_dirs(&dirs)? {
            return Ok(true);
        }
        if begin.elapsed() >= timeout {
            let pids: Vec<i32> = dirs.iter().flat_map(|dir| pids(dir)).take(10).collect();
            let text = format!("processes in it do not end after SIGKILL; they are stuck in the kernel: {pids:?}");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        std::thread::sleep(backoff);
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// Whether a process is in the cgroup or below it. A cgroup that cannot be read counts as empty.
#[must_use]
pub fn has_processes(path: &Path) -> bool {
    list_tree(path).is_ok_and(|dirs| dirs.iter().any(|dir| !pids(dir).is_empty()))
}

/// A directory and all below it, deepest last. Empty if it does not exist.
fn list_tree(top: &Path) -> io::Result<Vec<PathBuf>> {
    let mut dirs = if top.exists() { vec![top.to_owned()] } else { Vec::new() };
    let mut next = 0;
    while let Some(dir) = dirs.get(next) {
        next += 1;
        let children = match std::fs::read_dir(dir) {
            Ok(children) => children,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for child in children {
            let child = child?;
            if child.file_type()?.is_dir() {
                dirs.push(child.path());
            }
            if dirs.len() > MAX_DIRECTORIES {
                return Err(io::Error::other(format!("more than {MAX_DIRECTORIES} cgroups are below it")));
            }
        }
    }
    Ok(dirs)
}

/// Whether all are removed.
fn remove_dirs(dirs: &[PathBuf]) -> io::Result<bool> {
    let mut all = true;
    for dir in dirs.iter().rev() {
        match rustix::fs::rmdir(dir) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::BUSY | Errno::NOTEMPTY) => all = false,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(all)
}

/// Sends SIGKILL to every process in the cgroups: by `cgroup.kill` (v2, Linux 5.14), or else one by one.
fn kill_tree(top: &Path, dirs: &[PathBuf]) -> io::Result<()> {
    let Some(top) = open_existing(top)? else { return Ok(()) };
    if write_at(top.as_fd(), "cgroup.kill", "1").is_ok() {
        return Ok(());
    }
    for dir in dirs {
        let Some(dir) = open_existing(dir)? else { continue };
        match kill_members(dir.as_fd()) {
            Ok(0) => {}
            // In a frozen v1 cgroup, SIGKILL takes effect when it is thawed. Other hierarchies lack the file.
            Ok(_) => drop(write_at(dir.as_fd(), "freezer.state", "THAWED")),
            // It was removed meanwhile.
            Err(error) if is_removed(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn open_existing(dir: &Path) -> io::Result<Option<OwnedFd>> {
    match rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn pids(dir: &Path) -> Vec<i32> {
    let text = open_existing(dir).ok().flatten().and_then(|dir| read_at(dir.as_fd(), "cgroup.procs").ok());
    parse_pids(&text.unwrap_or_default()).into_iter().map(|pid| pid.as_raw_nonzero().get()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};
    use std::sync::Arc;

    use super::*;
    use crate::cgroup::{Cgroup, CgroupSet, mounted_hierarchies};

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn trees_are_removed_deepest_first() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().join("pod");
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        std::fs::create_dir(top.join("d")).unwrap();
        assert!(!remove_dirs(std::slice::from_ref(&top)).unwrap());
        let dirs = list_tree(&top).unwrap();
        assert!(remove_dirs(&dirs).unwrap());
        assert!(!top.exists());
        assert!(!remove_tree(&top, TIMEOUT).unwrap(), "it does not exist any more");
    }

    /// Creates a cgroup with a process in each hierarchy that is writable, and calls the test with both.
    fn for_each_hierarchy(name: &str, test: impl Fn(Cgroup, Child)) {
        for hierarchy in mounted_hierarchies().unwrap() {
            let Ok(root) = Arc::new(hierarchy).open_root() else { continue };
            let Ok(cgroup) = root.create(&format!("gantry-test-{name}-{}/app", std::process::id())) else { continue };
            // A new cpuset has no processors, and v2 may be without threads to run.
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let pid = rustix::process::Pid::from_child(&child);
            if cgroup.add(pid).is_ok() {
                test(cgroup, child);
            } else {
                let mut child = child;
                child.kill().unwrap();
                child.wait().unwrap();
            }
            remove_tree(&root.path_of(&format!("gantry-test-{name}-{}", std::process::id())), TIMEOUT).unwrap();
        }
    }

    /// A zombie child of this test keeps a v1 cgroup busy: waits for it in the meantime.
    fn reap(mut child: Child) -> std::thread::JoinHandle<std::process::ExitStatus> {
        std::thread::spawn(move || child.wait().unwrap())
    }

    #[test]
    fn kills_the_processes_of_a_removed_cgroup() {
        for_each_hierarchy("remove", |cgroup, child| {
            let top = cgroup.path_of("").parent().unwrap().to_owned();
            assert!(has_processes(&top), "{cgroup}");
            let reaper = reap(child);
            assert!(remove_tree(&top, TIMEOUT).unwrap(), "{cgroup}");
            assert_eq!(reaper.join().unwrap().signal(), Some(9));
            assert!(!has_processes(&top));
        });
    }

    /// A program may make cgroups in its own.
    #[test]
    fn processes_in_nested_cgroups_count() {
        for_each_hierarchy("nested", |cgroup, child| {
            let nested = cgroup.create("a/b").unwrap();
            // A new cpuset has no processors.
            if nested.add(rustix::process::Pid::from_child(&child)).is_ok() {
                let top = cgroup.path_of("");
                let (parent, name) = (top.parent().unwrap().to_owned(), "app");
                let above = Arc::new(cgroup.hierarchy().clone()).open_root().unwrap();
                let above = above.create(parent.strip_prefix(above.path_of("")).unwrap().to_str().unwrap()).unwrap();
                let set = CgroupSet::from_iter([cgroup]);
                assert!(set.has_members().unwrap(), "{}", top.display());
                assert_eq!(above.remove_tree(name), Err(Errno::BUSY), "{}", top.display());
                let reaper = reap(child);
                set.kill().unwrap();
                assert_eq!(reaper.join().unwrap().signal(), Some(9), "{}", top.display());
                gantry_tests::wait_for("the cgroup to be empty", || (!set.has_members().unwrap()).then_some(()));
                // A pod that starts has empty cgroups.
                assert_eq!(above.remove(name), Err(Errno::BUSY), "it has empty cgroups");
                assert!(top.join("a/b").exists());
                above.remove_tree(name).unwrap();
                assert!(!top.exists());
            } else {
                let mut child = child;
                child.kill().unwrap();
                child.wait().unwrap();
            }
        });
    }

    #[test]
    fn freezes_and_kills_in_every_hierarchy() {
        for_each_hierarchy("freeze", |cgroup, child| {
            let top = cgroup.path_of("");
            let pid = rustix::process::Pid::from_child(&child);
            assert_eq!(cgroup.members().unwrap(), [pid]);
            let set = CgroupSet::from_iter([cgroup]);
            if set.set_frozen(true).is_ok() {
                let what = format!("{} to be frozen", top.display());
                gantry_tests::wait_for(&what, || set.is_frozen().unwrap().then_some(()));
            }
            let reaper = reap(child);
            set.kill().unwrap();
            assert_eq!(reaper.join().unwrap().signal(), Some(9), "{}", top.display());
            assert!(!set.has_members().unwrap());
        });
    }
}
