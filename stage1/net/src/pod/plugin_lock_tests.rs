//! The lock of a pod's plugins, and processes that outlive their supervisor.

#![allow(clippy::unwrap_used, reason = "a failure is the failure of the test")]

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal};

use super::*;

fn dir() -> (tempfile::TempDir, OwnedFd) {
    let temp = tempfile::tempdir().unwrap();
    let dir: OwnedFd = std::fs::File::open(temp.path()).unwrap().into();
    drop(PluginLock::create(dir.as_fd(), "it").unwrap());
    (temp, dir)
}

/// A process that holds the lock and has no supervisor.
fn orphan(temp: &tempfile::TempDir, does: &str) -> Child {
    let script = format!("echo; {does}");
    let mut command = Command::new("flock");
    command.arg("-n").arg(temp.path().join(PLUGINS)).args(["sh", "-c", &script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

#[test]
fn without_plugins_there_is_no_lock() {
    let temp = tempfile::tempdir().unwrap();
    let dir: OwnedFd = std::fs::File::open(temp.path()).unwrap().into();
    assert!(PluginLock::open(dir.as_fd(), "it").unwrap().is_none());
    drop(PluginLock::create(dir.as_fd(), "it").unwrap());
    assert!(PluginLock::open(dir.as_fd(), "it").unwrap().is_some());
}

#[test]
fn plugins_may_end_by_themselves() {
    let (temp, dir) = dir();
    let mut orphan = orphan(&temp, "read _; exit 7");
    std::thread::scope(|scope| {
        let lock = scope.spawn(|| PluginLock::open(dir.as_fd(), "it").unwrap().is_some());
        drop(orphan.stdin.take());
        assert!(lock.join().unwrap());
    });
    assert_eq!(orphan.wait().unwrap().code(), Some(7));
}

#[test]
fn plugins_are_killed_with_their_children() {
    let (temp, dir) = dir();
    let mut orphan = orphan(&temp, "setsid sleep 600 & echo $!; wait");
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(orphan.stdout.as_mut().unwrap()), &mut said).unwrap();
    let grandchild = Pid::from_raw(said.trim().parse().unwrap()).unwrap();
    assert!(PluginLock::open(dir.as_fd(), "it").unwrap().is_some());
    assert_eq!(orphan.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    let deadline = Instant::now() + KILL_TIMEOUT;
    while rustix::process::test_kill_process(grandchild).is_ok() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(rustix::process::test_kill_process(grandchild).is_err());
}

#[test]
fn daemons_of_plugins_survive() {
    let (temp, dir) = dir();
    let lock = PluginLock::create(dir.as_fd(), "it").unwrap();
    let mut daemon = Command::new("sleep").arg("600").spawn().unwrap();
    drop(lock);
    let begun = Instant::now();
    assert!(PluginLock::open(dir.as_fd(), "it").unwrap().is_some());
    assert!(begun.elapsed() < ORPHAN_TIMEOUT);
    // It has the file open, but another process holds the lock.
    let mut orphan = orphan(&temp, "sleep 600");
    assert!(PluginLock::open(dir.as_fd(), "it").unwrap().is_some());
    assert_eq!(orphan.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    assert!(daemon.try_wait().unwrap().is_none());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
