//! Removes cgroups by path, from outside of the pod.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use super::group::{
    MAX_DEPTH, has_members_below, is_deeper_than, is_removed, kill_members, read_members, remove_children, visit_all,
    visit_tree, write_at,
};

/// The most processes that an error names.
const MAX_NAMED: usize = 10;
/// The back-off between two attempts, doubled each time. A killed process leaves its cgroup when it is reaped, of which
/// cgroup v1 sends no event.
const MIN_BACKOFF: Duration = Duration::from_micros(100);
const MAX_BACKOFF: Duration = Duration::from_millis(20);

/// Kills the processes in a cgroup and in all below it, and removes them; returns whether it existed. The caller sees
/// to it that no process enters meanwhile.
///
/// # Errors
/// Of listing, killing or removing; [`io::ErrorKind::ResourceBusy`] if processes are left after the timeout, or cgroups
/// are nested too deep.
pub fn remove_tree(path: &Path, timeout: Duration) -> io::Result<bool> {
    // The usual cases, in one system call: no directory, or an empty one.
    match rustix::fs::rmdir(path) {
        Ok(()) => return Ok(true),
        Err(Errno::NOENT) => return Ok(false),
        Err(_) => {}
    }
    let Some(top) = open_existing(path)? else { return Ok(true) };
    let begin = Instant::now();
    let mut backoff = MIN_BACKOFF;
    loop {
        // Before the cgroups are listed: a living process could make new ones for ever.
        match kill_tree(top.as_fd()).and_then(|()| Ok(remove_children(top.as_fd(), MAX_DEPTH)?)) {
            Err(error) if !is_removed(&error) => return Err(error),
            Ok(()) | Err(_) => {}
        }
        match rustix::fs::rmdir(path) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::BUSY | Errno::NOTEMPTY) => {}
            Err(error) => return Err(error.into()),
        }
        if begin.elapsed() >= timeout {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, explain_rest(top.as_fd())));
        }
        std::thread::sleep(backoff);
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

/// Why a cgroup is left after the timeout.
fn explain_rest(top: BorrowedFd<'_>) -> String {
    let pids = first_pids(top);
    if pids.is_empty() && is_deeper_than(top, MAX_DEPTH).unwrap_or(false) {
        return format!("cgroups in it are nested more than {MAX_DEPTH} deep; remove the inner ones with rmdir(1)");
    }
    format!("processes in it do not end after SIGKILL; they are stuck in the kernel: {pids:?}")
}

/// Whether a process is in the cgroup or below it. A cgroup that cannot be read counts as empty.
#[must_use]
pub fn has_processes(path: &Path) -> bool {
    let top = open_existing(path).ok().flatten();
    top.is_some_and(|top| has_members_below(top.as_fd()).unwrap_or(false))
}

/// Sends SIGKILL to every process in the cgroups: by `cgroup.kill` (v2, Linux 5.14), or else one by one.
fn kill_tree(top: BorrowedFd<'_>) -> io::Result<()> {
    if write_at(top, "cgroup.kill", "1").is_ok() {
        return Ok(());
    }
    visit_all(top, |dir| {
        if kill_members(dir)? > 0 {
            // In a frozen v1 cgroup, SIGKILL takes effect when it is thawed.
            let _other_hierarchies_lack_the_file = write_at(dir, "freezer.state", "THAWED");
        }
        Ok(())
    })
}

fn first_pids(top: BorrowedFd<'_>) -> Vec<i32> {
    let mut pids: Vec<Pid> = Vec::new();
    let mut collect = |dir: BorrowedFd<'_>| {
        pids.extend(read_members(dir)?);
        Ok(if pids.len() < MAX_NAMED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    };
    let _incomplete_if_it_failed = visit_tree(top, MAX_DEPTH, &mut collect);
    pids.into_iter().take(MAX_NAMED).map(|pid| pid.as_raw_nonzero().get()).collect()
}

fn open_existing(dir: &Path) -> io::Result<Option<OwnedFd>> {
    match rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
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
        let open = open_existing(&top).unwrap().unwrap();
        remove_children(open.as_fd(), 0).unwrap();
        assert!(top.join("a/b").exists() && !top.join("d").exists(), "only the empty ones");
        remove_children(open.as_fd(), MAX_DEPTH).unwrap();
        assert!(!top.join("a").exists());
    }

    #[test]
    fn cgroups_nested_too_deep_are_reported() {
        let temp = tempfile::tempdir().unwrap();
        let nest = |depth| {
            let top = temp.path().join(format!("pod-{depth}"));
            std::fs::create_dir_all(top.join("c/".repeat(depth))).unwrap();
            // Directories without the files of cgroups stay.
            remove_tree(&top, Duration::ZERO).unwrap_err().to_string()
        };
        assert!(nest(MAX_DEPTH + 1).starts_with("cgroups in it are nested"));
        assert!(nest(MAX_DEPTH).starts_with("processes in it"));
    }

    #[test]
    fn threaded_cgroups_have_no_members() {
        for_each_hierarchy("threaded", |cgroup, child| {
            let threads = cgroup.is_v2().then(|| cgroup.create("threads").unwrap());
            if threads.is_some_and(|threads| threads.write("cgroup.type", "threaded").is_ok()) {
                let pid = rustix::process::Pid::from_child(&child);
                assert_eq!(cgroup.members().unwrap(), [pid], "{cgroup}");
                assert_eq!(cgroup.kill_members().unwrap(), 1, "{cgroup}");
            }
            let top = cgroup.path_of("");
            let reaper = reap(child);
            assert!(remove_tree(&top, TIMEOUT).unwrap(), "{}", top.display());
            reaper.join().unwrap();
        });
    }

    #[test]
    fn paths_longer_than_the_kernel_accepts() {
        for_each_hierarchy("long", |cgroup, child| {
            let name = "n".repeat(250);
            let mut dir = rustix::fs::openat(&cgroup, ".", OFlags::DIRECTORY, Mode::empty()).unwrap();
            for _ in 0..18 {
                rustix::fs::mkdirat(&dir, &name, Mode::RWXU).unwrap();
                dir = rustix::fs::openat(&dir, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
            }
            let top = cgroup.path_of("");
            let reaper = reap(child);
            assert!(remove_tree(&top, TIMEOUT).unwrap(), "{cgroup}");
            assert_eq!(reaper.join().unwrap().signal(), Some(9));
            assert!(!remove_tree(&top, TIMEOUT).unwrap(), "it does not exist any more");
        });
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
            let pid = rustix::process::Pid::from_child(&child);
            if nested.add(pid).is_ok() {
                assert_eq!(cgroup.members().unwrap(), [pid], "{cgroup}");
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
