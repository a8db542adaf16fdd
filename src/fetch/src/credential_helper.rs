//! Credential helpers (docker-credential-helpers): programs that keep credentials for registries.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Maximum length of a helper's reply in bytes.
const MAX_ANSWER: u64 = 64 << 10;

/// Maximum length of a helper's error in a message, in bytes.
const MAX_ERROR: usize = 200;

/// Timeout of a helper. Some query a keyring; none may prompt.
const HELPER_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs a helper with a timeout.
pub(crate) fn run_helper(name: &str, verb: &'static str, input: &str) -> Result<(bool, Vec<u8>), String> {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        return Err("the name is not made of letters, digits, '-', '_' and '.'".to_owned());
    }
    exchange(Command::new(format!("docker-credential-{name}")).arg(verb), input, HELPER_TIMEOUT)
}

/// What a helper wrote before it failed, to be appended to a message: the first line of its output, which is where the
/// protocol has errors. Empty if there is none.
pub(crate) fn error_text(output: &[u8]) -> String {
    let line = output.trim_ascii_start().split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(&line[..line.len().min(MAX_ERROR)]);
    let line: String = line.trim_end().chars().flat_map(char::escape_debug).collect();
    if line.is_empty() { line } else { format!(": {line}") }
}

/// Runs a program in a process group of its own: its reply to `input`, and whether it succeeded. On a timeout or an
/// error, the group is killed.
fn exchange(command: &mut Command, input: &str, timeout: Duration) -> Result<(bool, Vec<u8>), String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("it cannot be started: {error}"))?;
    let answer = converse(&mut child, input.as_bytes(), timeout);
    if !matches!(answer, Ok(Some(_))) {
        // It fails only if the whole group has ended. The child is not reaped yet: the group is still its own.
        let _already_ended = kill_process_group(Pid::from_child(&child), Signal::KILL);
    }
    let status = child.wait();
    match answer {
        Ok(Some(output)) => match status {
            Ok(status) => Ok((status.success(), output)),
            Err(error) => Err(format!("its answer cannot be read: {error}")),
        },
        Ok(None) => Err(format!("it gave no answer within {} s", timeout.as_secs_f32())),
        Err(error) => Err(format!("its answer cannot be read: {error}")),
    }
}

/// Writes the input and reads the output until the child ends; `None`: it has not ended in time. Its end counts and not
/// that of the output: a descendant may keep the pipe open.
fn converse(child: &mut Child, mut input: &[u8], timeout: Duration) -> io::Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + timeout;
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let (mut stdin, mut stdout) = (child.stdin.take(), child.stdout.take());
    for pipe in stdin.iter().map(AsFd::as_fd).chain(stdout.iter().map(AsFd::as_fd)) {
        rustix::io::ioctl_fionbio(pipe, true)?;
    }
    let mut output = Vec::new();
    loop {
        let mut fds = vec![PollFd::new(&process, PollFlags::IN)];
        fds.extend(stdin.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        fds.extend(stdout.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timespec(left))))? == 0 {
            return Ok(None);
        }
        let has_ended = !fds[0].revents().is_empty();
        if write_some(stdin.as_mut(), &mut input)? {
            stdin = None;
        }
        if read_some(stdout.as_mut(), &mut output)? {
            stdout = None;
        }
        if has_ended {
            return Ok(Some(output));
        }
    }
}

/// Writes what the pipe takes; returns whether it can be closed. A helper that ignores its input closes the pipe; its
/// reply tells whether it succeeded.
fn write_some(pipe: Option<&mut ChildStdin>, input: &mut &[u8]) -> io::Result<bool> {
    let Some(pipe) = pipe else { return Ok(true) };
    while !input.is_empty() {
        match pipe.write(input) {
            Ok(written) => *input = input.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Reads what the pipe has, up to the maximum length of a reply; returns whether the pipe can be closed.
fn read_some(pipe: Option<&mut ChildStdout>, output: &mut Vec<u8>) -> io::Result<bool> {
    let Some(pipe) = pipe else { return Ok(true) };
    let left = MAX_ANSWER.saturating_sub(output.len() as u64);
    match pipe.take(left).read_to_end(output) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(script: &str, input: &str, timeout: Duration) -> Result<(bool, String), String> {
        let (success, output) = exchange(Command::new("/bin/sh").args(["-c", script]), input, timeout)?;
        Ok((success, String::from_utf8(output).unwrap()))
    }

    #[test]
    fn replies_of_helpers_are_read() {
        let long = "x".repeat(100_000);
        for (script, input, want) in [
            ("cat", "key", Ok((true, "key".to_owned()))),
            ("echo no; exit 1", long.as_str(), Ok((false, "no\n".to_owned()))),
            ("cat; cat /dev/zero | tr '\\0' x", "", Ok((false, "x".repeat(65_536)))),
        ] {
            let answer = ask(script, input, HELPER_TIMEOUT);
            match want {
                Ok((false, text)) if text.len() > 100 => {
                    assert_eq!(answer.map(|answer| answer.1), Ok(text), "{script}")
                }
                want => assert_eq!(answer, want, "{script}"),
            }
        }
    }

    #[test]
    fn errors_of_helpers_are_cut_and_escaped() {
        for (output, want) in [
            ("", String::new()),
            (" \n", String::new()),
            ("pass is locked\nand more", ": pass is locked".to_owned()),
            ("\x1b[2J\r\n", ": \\u{1b}[2J".to_owned()),
            (&"x".repeat(300), format!(": {}", "x".repeat(200))),
        ] {
            assert_eq!(error_text(output.as_bytes()), want, "{output:?}");
        }
    }

    #[test]
    fn hanging_helpers_are_killed_with_their_group() {
        let marks = tempfile::tempdir().unwrap();
        let pid = marks.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", pid.display());
        let error = ask(&script, "", Duration::from_secs(5)).unwrap_err();
        assert!(error.contains("no answer within"), "{error}");
        let pid: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        if let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
            let mut ended = [PollFd::new(&process, PollFlags::IN)];
            assert_eq!(poll(&mut ended, Some(&timespec(HELPER_TIMEOUT))), Ok(1), "it was killed");
        }
    }

    /// A keyring daemon, for example, that the helper starts.
    #[test]
    fn descendants_that_hold_the_output_are_ignored() {
        let marks = tempfile::tempdir().unwrap();
        let pid = marks.path().join("pid");
        let script = format!(
            "setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000' & while ! [ -e {0} ]; do :; done; echo reply",
            pid.display()
        );
        let answer = ask(&script, "", HELPER_TIMEOUT);
        let raw: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(raw).unwrap(), Signal::KILL);
        assert_eq!(answer, Ok((true, "reply\n".to_owned())));
    }
}
