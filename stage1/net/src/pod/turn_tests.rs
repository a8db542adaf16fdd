//! Turns, and processes that outlive those who had them.

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
    drop(Turn::first(dir.as_fd(), "it").unwrap());
    (temp, dir)
}

/// A process that has the lock and nobody who would let go of it.
fn orphan(temp: &tempfile::TempDir, does: &str) -> Child {
    let script = format!("echo; {does}");
    let mut command = Command::new("flock");
    command.arg("-n").arg(temp.path().join(PLUGINS)).args(["sh", "-c", &script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

#[test]
fn nobody_has_a_turn_where_nobody_had_one() {
    let temp = tempfile::tempdir().unwrap();
    let dir: OwnedFd = std::fs::File::open(temp.path()).unwrap().into();
    assert!(Turn::next(dir.as_fd(), "it").unwrap().is_none());
    drop(Turn::first(dir.as_fd(), "it").unwrap());
    assert!(Turn::next(dir.as_fd(), "it").unwrap().is_some());
}

#[test]
fn what_ends_by_itself_is_waited_for() {
    let (temp, dir) = dir();
    let mut orphan = orphan(&temp, "read _; exit 7");
    std::thread::scope(|scope| {
        let turn = scope.spawn(|| Turn::next(dir.as_fd(), "it").unwrap().is_some());
        drop(orphan.stdin.take());
        assert!(turn.join().unwrap());
    });
    assert_eq!(orphan.wait().unwrap().code(), Some(7));
}

#[test]
fn what_goes_on_is_killed_with_what_it_started() {
    let (temp, dir) = dir();
    let mut orphan = orphan(&temp, "setsid sleep 600 & echo $!; wait");
    let mut said = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(orphan.stdout.as_mut().unwrap()), &mut said).unwrap();
    let grandchild = Pid::from_raw(said.trim().parse().unwrap()).unwrap();
    assert!(Turn::next(dir.as_fd(), "it").unwrap().is_some());
    assert_eq!(orphan.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    let deadline = Instant::now() + GONE_WITHIN;
    while rustix::process::test_kill_process(grandchild).is_ok() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(rustix::process::test_kill_process(grandchild).is_err());
}

#[test]
fn what_is_left_behind_on_purpose_lives() {
    let (temp, dir) = dir();
    let turn = Turn::first(dir.as_fd(), "it").unwrap();
    let mut daemon = Command::new("sleep").arg("600").spawn().unwrap();
    drop(turn);
    let begun = Instant::now();
    assert!(Turn::next(dir.as_fd(), "it").unwrap().is_some());
    assert!(begun.elapsed() < PATIENCE);
    // It has the file open, and it is another who has it locked.
    let mut orphan = orphan(&temp, "sleep 600");
    assert!(Turn::next(dir.as_fd(), "it").unwrap().is_some());
    assert_eq!(orphan.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    assert!(daemon.try_wait().unwrap().is_none());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
