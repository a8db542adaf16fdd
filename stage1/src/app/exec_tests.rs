//! Execs that are given up, or whose helper is killed. Shells play the processes.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::io::Errno;

use super::*;

/// An exec whose helper has ended, and whose program's process, if there is one, has this PID. The pipe for errors is
/// at its end, as after a successful execve.
fn pending(program: Option<&Child>) -> PendingExec {
    let mut helper = Command::new("true").spawn().unwrap();
    let helper_pidfd = rustix::process::pidfd_open(pid_of(&helper), PidfdFlags::empty()).unwrap();
    helper.wait().unwrap();
    let (failed, _closed) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    let pid = program.map_or(0, |program| program.id().cast_signed());
    PendingExec {
        helper_pidfd,
        failed,
        deadline: Instant::now() + Duration::from_secs(60),
        program_pid: in_memory("test", &pid.to_ne_bytes()).unwrap().into(),
        permission: rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
        terminal: None,
        program: "program".to_owned(),
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed()).unwrap()
}

fn sleeping() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

#[test]
fn programs_outlive_their_killed_helpers() {
    let mut program = sleeping();
    let (outcome, ending) = pending(Some(&program)).outcome();
    assert_eq!(outcome.map(|process| process.pid).ok(), Some(pid_of(&program)));
    assert_eq!(ending.len(), 1, "the helper");
    assert!(program.try_wait().unwrap().is_none());
    program.kill().unwrap();
    program.wait().unwrap();
}

#[test]
fn helpers_killed_before_their_fork_fail() {
    let (outcome, ending) = pending(None).outcome();
    assert!(outcome.err().unwrap().message.contains("was killed"));
    assert_eq!(ending.len(), 1, "the helper");
}

#[test]
fn programs_of_abandoned_execs_are_killed() {
    let mut program = sleeping();
    assert_eq!(pending(Some(&program)).kill().len(), 2, "the program and the helper");
    assert_eq!(program.wait().unwrap().signal(), Some(9));
}

/// The program's process may appear after the supervisor has looked for it.
#[test]
fn abandoned_execs_permit_nothing() {
    let exec = pending(None);
    let permission = rustix::io::dup(&exec.permission).unwrap();
    exec.kill();
    assert_eq!(rustix::io::read(&permission, &mut [0u8; 8]), Err(Errno::AGAIN));
}

/// The program's process and the supervisor have the same file: its flags are those of both.
#[test]
fn blocking_permissions_do_not_block_a_kill() {
    let mut program = sleeping();
    let exec = pending(Some(&program));
    rustix::io::ioctl_fionbio(&exec.permission, false).unwrap();
    assert_eq!(rustix::io::read(&exec.permission, &mut [0u8; 8]), Ok(8), "it is taken");
    exec.kill();
    assert_eq!(program.wait().unwrap().signal(), Some(9));
}
