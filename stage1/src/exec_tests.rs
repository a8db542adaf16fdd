//! An exec whose helper is killed, and messages from processes that are not the helper. Shells play the processes.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;

struct Fixture {
    pending: PendingExec,
    /// The end of the socket that the helper and the program's process have.
    their_end: OwnedFd,
    helper: Child,
}

/// A child of this process that writes `bytes` (octal escapes of printf(1)) to the socket and then runs `command`.
fn spawn(their_end: &OwnedFd, bytes: &str, command: &str) -> Child {
    let script = format!("printf '{bytes}' >&0; {command}");
    let stdin = Stdio::from(rustix::io::dup(their_end).unwrap());
    Command::new("sh").args(["-c", &script]).stdin(stdin).stdout(Stdio::null()).spawn().unwrap()
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed()).unwrap()
}

fn escaped_pid(child: &Child) -> String {
    child.id().to_ne_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect()
}

/// An exec whose helper sends `bytes` and exits. The pipe for errors is at its end, as after a successful execve.
fn fixture(messages: OwnedFd, their_end: OwnedFd, bytes: &str) -> Fixture {
    let command = if bytes.is_empty() { "exit 0" } else { "exec sleep 0" };
    let helper = spawn(&their_end, bytes, command);
    let helper_pidfd = rustix::process::pidfd_open(pid_of(&helper), PidfdFlags::empty()).unwrap();
    let (failed, _closed) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    let pending = PendingExec {
        helper: pid_of(&helper),
        helper_pidfd,
        failed,
        deadline: Instant::now() + Duration::from_secs(60),
        messages,
        program: "program".to_owned(),
    };
    Fixture { pending, their_end, helper }
}

fn socket() -> (OwnedFd, OwnedFd) {
    let (messages, their_end) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_passcred(&messages, true).unwrap();
    (messages, their_end)
}

fn wait_for_message(messages: &OwnedFd) {
    assert_eq!(poll(&mut [PollFd::new(messages, PollFlags::IN)], None).unwrap(), 1);
}

#[test]
fn programs_of_killed_helpers_are_killed() {
    let (messages, their_end) = socket();
    let mut program = spawn(&their_end, "+", "exec sleep 1000");
    wait_for_message(&messages);
    let mut fixture = fixture(messages, their_end, "");
    fixture.helper.wait().unwrap();
    let (outcome, ending) = fixture.pending.outcome();
    assert_eq!(outcome.err().map(|failure| failure.kind).as_deref(), Some("internal"));
    assert_eq!(ending.len(), 2, "the program and the helper");
    assert_eq!(program.wait().unwrap().signal(), Some(9));
}

#[test]
fn only_helper_messages_identify_the_program() {
    let (messages, their_end) = socket();
    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    // First the program's process names another one, which does not count.
    let mut program = spawn(&their_end, &escaped_pid(&bystander), "exec sleep 1000");
    wait_for_message(&messages);
    let mut completed = fixture(messages, their_end, &escaped_pid(&program));
    completed.helper.wait().unwrap();
    let (outcome, ending) = completed.pending.outcome();
    assert_eq!(outcome.map(|process| process.pid).ok(), Some(pid_of(&program)));
    assert_eq!(ending.len(), 1, "the helper");
    assert!(program.try_wait().unwrap().is_none() && bystander.try_wait().unwrap().is_none());
    program.kill().unwrap();
    program.wait().unwrap();

    let (messages, their_end) = socket();
    let mut program = spawn(&their_end, &escaped_pid(&bystander), "exec sleep 1000");
    wait_for_message(&messages);
    let mut fixture = fixture(messages, their_end, "");
    fixture.helper.wait().unwrap();
    drop(fixture.pending.kill());
    assert_eq!(program.wait().unwrap().signal(), Some(9), "the sender is killed, not the process it named");
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn abandoned_execs_receive_nothing() {
    let (messages, their_end) = socket();
    let mut fixture = fixture(messages, their_end, "");
    let messages = fixture.pending.read_messages();
    assert_eq!(messages.first_sender, None);
    let sent = rustix::net::send(&fixture.their_end, b"+", SendFlags::NOSIGNAL);
    assert_eq!(sent, Err(Errno::PIPE), "the socket is shut down");
    drop(fixture.pending.kill());
    assert!(rustix::net::send(&fixture.their_end, b"+", SendFlags::NOSIGNAL).is_err(), "the socket is closed");
    fixture.helper.wait().unwrap();
}
