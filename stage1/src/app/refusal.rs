//! Reports to the supervisor why a process could not execute its program.
//!
//! Before its seccomp filter is loaded, the process sends a text. After that it must not allocate (the app's filter may
//! deny mmap), so it sends the failed step and the error number, and the supervisor formats the message.

use std::io;
use std::os::fd::AsFd;

use gantry_contract::Failure;
use gantry_model::ErrorKind;
use rustix::io::Errno;

use crate::app::program;
use crate::failure::failure;

/// A step of a process after its filter is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The helper of an exec forks the program's process.
    Fork,
    /// The program's process starts a session, with its terminal if it has one.
    Session,
    /// It loads the app's own filter.
    Filter,
    /// It executes the program.
    Execve,
}

const STEPS: [Step; 4] = [Step::Fork, Step::Session, Step::Filter, Step::Execve];

/// The first byte of a step and an error number; no text begins with it.
const MARK: u8 = 0;

/// Sends the reason why a program is not executed, as text.
pub(crate) fn send(channel: impl AsFd, why: &Failure) {
    let _supervisor_has_gone = rustix::io::write(channel, format!("{}\t{}", why.kind.as_str(), why.message).as_bytes());
}

/// Sends the failed step, without allocating.
pub(crate) fn send_step(channel: impl AsFd, step: Step, error: &io::Error) {
    let [a, b, c, d] = error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
    let _supervisor_has_gone = rustix::io::write(channel, &[MARK, step as u8, a, b, c, d]);
}

/// The failure that a process reported for the program with this name.
pub(crate) fn read(report: &[u8], program: &str) -> Failure {
    if let &[MARK, step, a, b, c, d] = report {
        let errno = Errno::from_raw_os_error(i32::from_ne_bytes([a, b, c, d]));
        return step_failure(STEPS.get(usize::from(step)).copied(), errno, program);
    }
    let text = String::from_utf8_lossy(report);
    let (kind, message) = text.split_once('\t').unwrap_or(("internal", &text));
    Failure { kind: ErrorKind::from_word(kind), message: message.to_owned(), app: None }
}

fn step_failure(step: Option<Step>, errno: Errno, program: &str) -> Failure {
    let shown = gantry_model::id::shown(program);
    let what = match step {
        Some(Step::Execve) if errno == Errno::NOENT => {
            // The file exists, since it was found before. So its interpreter is missing.
            let why = "the interpreter or loader it names is not in the image";
            return failure(ErrorKind::CommandNotFound, format!("cannot execute '{shown}': {why}"));
        }
        Some(Step::Execve) => return program::unexecutable(&shown, errno),
        Some(Step::Fork) if errno == Errno::AGAIN => {
            let why = "the app's limit of processes is reached; exec needs room for two for a moment";
            return failure(ErrorKind::Exhausted, format!("cannot start a process in the app: {why}"));
        }
        Some(Step::Fork) => "start a process in the app",
        Some(Step::Session) => "start a session",
        Some(Step::Filter) => "load the app's seccomp filter",
        None => "confine the app",
    };
    let error = io::Error::from(errno);
    failure(ErrorKind::of_io(&error), format!("cannot {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(by: impl FnOnce(&std::os::fd::OwnedFd)) -> Failure {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        by(&writer);
        drop(writer);
        let mut bytes = [0; 4096];
        let length = rustix::io::read(&reader, &mut bytes).unwrap();
        read(&bytes[..length], "prog")
    }

    #[test]
    fn start_errors_are_classified() {
        let text = report(|pipe| send(pipe, &failure(ErrorKind::Invalid, "no\tway")));
        assert_eq!((text.kind.as_str(), text.message.as_str()), ("invalid", "no\tway"));
        for (step, errno, kind, message) in [
            (Step::Execve, libc::ENOENT, "command-not-found", "cannot execute 'prog': the interpreter"),
            (Step::Execve, libc::EACCES, "command-not-executable", "cannot execute 'prog': it is not executable"),
            (Step::Fork, libc::EAGAIN, "", "cannot start a process in the app: "),
            (Step::Session, libc::EPERM, "", "cannot start a session: "),
            (Step::Filter, libc::EINVAL, "", "cannot load the app's seccomp filter: "),
        ] {
            let failure = report(|pipe| send_step(pipe, step, &io::Error::from_raw_os_error(errno)));
            assert!(failure.message.starts_with(message), "{step:?}: {}", failure.message);
            assert!(kind.is_empty() || failure.kind.as_str() == kind, "{step:?}: {}", failure.kind.as_str());
        }
        assert_eq!(read(b"garbage", "prog").kind, ErrorKind::Internal);
    }
}
