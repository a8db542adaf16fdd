//! A running probe of an app's health: a program in the app, or a connection to one of its ports.
//!
//! The app controls the other end. It may reply slowly, without end, or never: every probe has a deadline, output
//! beyond [`MAX_READ`] ends it, and no operation here blocks. A program runs exactly as one of `gantry exec`.
//! Connections are made in the pod's network namespace, which the supervisor is in.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::ProcessExit;
use gantry_contract::control::{Exec, HealthResult, MAX_HEALTH_OUTPUT};
use gantry_model::health::HealthProbe;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::app::App;
use crate::app::exec::{self, PendingExec};
use crate::failure::{Attempt, Result};
use crate::health::printable;
use crate::journal;
use crate::reaper::{Reaper, has_visible_exit, reap};

/// The maximum that is read from a program or a server, in bytes. The program then gets SIGPIPE.
const MAX_READ: usize = 1 << 20;

/// How long a server may send after its status line. A connection that is closed earlier is an error in its log.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of reads before other events are handled.
const MAX_READS: usize = 4;

/// A probe that runs.
pub(crate) struct Probe {
    /// When it times out.
    pub(crate) deadline: Instant,
    io: ProbeIo,
    record: ProbeRecord,
}

/// The part of the result that is known while the probe runs.
struct ProbeRecord {
    /// When it began, in nanoseconds since the epoch.
    started: i64,
    /// The beginning of the output or the reply.
    output: Vec<u8>,
    /// The length of all that was read, in bytes.
    read: usize,
}

/// The descriptors of a probe.
enum ProbeIo {
    /// The program has not been executed yet.
    Pending { exec: PendingExec, output: OwnedFd },
    /// The program runs.
    Program { pid: Pid, pidfd: OwnedFd, output: Option<OwnedFd> },
    /// The connection is being made; then the request is sent.
    Connecting { socket: OwnedFd, request: Option<String> },
    /// The server replies. `is_success`: its status, once it has sent that.
    Reply { socket: OwnedFd, is_success: Option<bool> },
}

/// The state of a probe after an event.
pub(crate) enum ProbeOutcome {
    /// It runs.
    Running(Probe),
    /// It has ended.
    Ended(HealthResult),
}

impl Probe {
    /// Begins a probe of an app that runs. `init` is the pidfd of the pod's PID 1, if any; `null` is the null device.
    ///
    /// # Errors
    /// The result, if the probe failed at once.
    pub(crate) fn begin(
        app: &App,
        init: Option<&OwnedFd>,
        null: &OwnedFd,
        probe: &HealthProbe,
        timeout: Duration,
    ) -> std::result::Result<Self, HealthResult> {
        let started = journal::now();
        let io = match probe {
            HealthProbe::Command(argv) => execute(app, init, null, argv).map_err(|why| why.message),
            HealthProbe::Http { host, port, path } => {
                let request = http_request(*host, *port, path);
                connect(*host, *port, Some(request)).map_err(|errno| cannot_connect(*host, *port, errno))
            }
            HealthProbe::Tcp { host, port } => {
                connect(*host, *port, None).map_err(|errno| cannot_connect(*host, *port, errno))
            }
            HealthProbe::Disabled => Err("the health check is disabled".to_owned()),
        };
        match io {
            Ok(io) => {
                let record = ProbeRecord { started, output: Vec::new(), read: 0 };
                Ok(Self { deadline: Instant::now() + timeout, io, record })
            }
            Err(why) => Err(failed(started, &why)),
        }
    }

    /// Whether its program has not been executed yet.
    pub(crate) fn is_pending(&self) -> bool {
        matches!(self.io, ProbeIo::Pending { .. })
    }

    /// Its program, once that was executed.
    pub(crate) fn program(&self) -> Option<BorrowedFd<'_>> {
        match &self.io {
            ProbeIo::Program { pidfd, .. } => Some(pidfd.as_fd()),
            ProbeIo::Pending { .. } | ProbeIo::Connecting { .. } | ProbeIo::Reply { .. } => None,
        }
    }

    /// The descriptor to poll besides [`Self::program`].
    pub(crate) fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.io {
            ProbeIo::Pending { exec, .. } => Some((exec.failed.as_fd(), PollFlags::IN)),
            ProbeIo::Program { output, .. } => output.as_ref().map(|output| (output.as_fd(), PollFlags::IN)),
            ProbeIo::Connecting { socket, .. } => Some((socket.as_fd(), PollFlags::OUT)),
            ProbeIo::Reply { socket, .. } => Some((socket.as_fd(), PollFlags::IN)),
        }
    }

    /// Handles an event of any of its descriptors.
    pub(crate) fn advance(self, buffer: &mut [u8], reaper: &mut Reaper) -> ProbeOutcome {
        let Self { mut deadline, io, mut record } = self;
        let io = match io {
            ProbeIo::Pending { exec, output } => {
                let (outcome, others) = exec.outcome();
                reaper.add_all(others);
                match outcome {
                    Ok(program) => ProbeIo::Program { pid: program.pid, pidfd: program.pidfd, output: Some(output) },
                    Err(why) => return record.fail(&why.message),
                }
            }
            ProbeIo::Program { pid, pidfd, mut output } => {
                if let Some(pipe) = &output
                    && !record.read_some(pipe, buffer)
                {
                    output = None;
                }
                // After its output was read.
                if has_visible_exit(pidfd.as_fd()) {
                    // Before it is reaped: afterwards, its PID may name another process group.
                    kill_group(pid);
                    let code = exit_code(reap(&pidfd).unwrap_or(ProcessExit::KILLED));
                    return ProbeOutcome::Ended(record.result(code == 0, Some(code)));
                }
                ProbeIo::Program { pid, pidfd, output }
            }
            ProbeIo::Connecting { socket, request } => {
                if let Err(errno) = sockopt::socket_error(&socket).and_then(|outcome| outcome) {
                    return record.fail(&format!("cannot connect: {}", std::io::Error::from(errno)));
                }
                let Some(request) = request else {
                    record.output = b"connected".to_vec();
                    return ProbeOutcome::Ended(record.result(true, None));
                };
                // The send buffer of a new connection takes the whole request.
                match rustix::net::send(&socket, request.as_bytes(), SendFlags::NOSIGNAL) {
                    Ok(sent) if sent == request.len() => ProbeIo::Reply { socket, is_success: None },
                    Ok(_) => return record.fail("cannot send the whole request"),
                    Err(errno) => {
                        return record.fail(&format!("cannot send the request: {}", std::io::Error::from(errno)));
                    }
                }
            }
            ProbeIo::Reply { socket, mut is_success } => {
                let is_open = record.read_some(&socket, buffer);
                if is_success.is_none()
                    && let Some(line) = status_line(&record.output, is_open)
                {
                    let status = http_status(line);
                    is_success = Some(status.is_some_and(|status| (200..400).contains(&status)));
                    record.output = match status {
                        Some(_) => line.to_vec(),
                        None => [b"the reply is not HTTP: ", line].concat(),
                    };
                    deadline = deadline.min(Instant::now() + BODY_TIMEOUT);
                }
                match is_success {
                    Some(is_success) if !is_open => return ProbeOutcome::Ended(record.result(is_success, None)),
                    None if !is_open => return record.fail("the server closed the connection without a reply"),
                    _ => ProbeIo::Reply { socket, is_success },
                }
            }
        };
        ProbeOutcome::Running(Self { deadline, io, record })
    }

    /// Ends a probe that is late.
    pub(crate) fn time_out(self, app: &App, timeout: Duration, reaper: &mut Reaper) -> HealthResult {
        if let ProbeIo::Reply { is_success: Some(is_success), .. } = self.io {
            return self.record.result(is_success, None);
        }
        let late = format!("the probe did not end within {}", seconds(timeout));
        let output = match self.record.output.is_empty() {
            true => late,
            false => format!("{late}; its output: {}", String::from_utf8_lossy(&self.record.output)),
        };
        let started = self.record.started;
        self.kill(app, reaper);
        failed(started, &output)
    }

    /// Kills its processes: the program, and every process of its session.
    pub(crate) fn kill(self, app: &App, reaper: &mut Reaper) {
        match self.io {
            ProbeIo::Pending { exec, .. } => reaper.add_all(exec.kill()),
            ProbeIo::Program { pid, pidfd, .. } => {
                kill_group(pid);
                for member in app.cgroup.members() {
                    kill_if_in_session(member, pid);
                }
                reaper.add(pidfd);
            }
            ProbeIo::Connecting { .. } | ProbeIo::Reply { .. } => {}
        }
    }
}

impl ProbeRecord {
    fn result(&self, success: bool, exit_code: Option<i32>) -> HealthResult {
        let output = printable(&self.output);
        HealthResult { started: self.started, ended: journal::now(), success, exit_code, output }
    }

    fn fail(&self, why: &str) -> ProbeOutcome {
        ProbeOutcome::Ended(failed(self.started, why))
    }

    /// Reads what is available, and keeps the beginning; returns whether more may follow.
    fn read_some(&mut self, fd: &OwnedFd, buffer: &mut [u8]) -> bool {
        for _ in 0..MAX_READS {
            match rustix::io::read(fd, &mut *buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    let room = MAX_HEALTH_OUTPUT.saturating_sub(self.output.len());
                    self.output.extend_from_slice(&buffer[..count.min(room)]);
                    self.read += count;
                    if self.read >= MAX_READ {
                        return false;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

/// The result of a probe that failed for this reason.
fn failed(started: i64, why: &str) -> HealthResult {
    let output = printable(why.as_bytes());
    HealthResult { started, ended: journal::now(), success: false, exit_code: None, output }
}

fn seconds(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{} ms", time.as_millis()),
    }
}

/// Executes a program in the app, as `gantry exec` does, with a pipe as its output and no input.
fn execute(app: &App, init: Option<&OwnedFd>, null: &OwnedFd, argv: &[String]) -> Result<ProbeIo> {
    let what = || "cannot execute the health check";
    let (output, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(what)?;
    rustix::io::ioctl_fionbio(&output, true).attempt(what)?;
    let stdin = rustix::io::fcntl_dupfd_cloexec(null, 0).attempt(what)?;
    let stderr = rustix::io::fcntl_dupfd_cloexec(&writer, 0).attempt(what)?;
    let request = Exec {
        app: app.plan.name.clone(),
        argv: argv.to_vec(),
        env: Vec::new(),
        cwd: None,
        user: None,
        group: None,
        terminal: None,
    };
    let exec = exec::exec(app, init, &request, vec![stdin, writer, stderr])?;
    Ok(ProbeIo::Pending { exec, output })
}

/// Begins to connect; the outcome is known when the socket is writable.
fn connect(host: IpAddr, port: u16, request: Option<String>) -> rustix::io::Result<ProbeIo> {
    let family = if host.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddr::new(host, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(ProbeIo::Connecting { socket, request }),
        Err(errno) => Err(errno),
    }
}

fn cannot_connect(host: IpAddr, port: u16, errno: Errno) -> String {
    format!("cannot connect to {}: {}", SocketAddr::new(host, port), std::io::Error::from(errno))
}

fn http_request(host: IpAddr, port: u16, path: &str) -> String {
    let host = SocketAddr::new(host, port);
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: gantry-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
}

/// The first line of a reply; what there is of it, if no more follows.
fn status_line(reply: &[u8], is_open: bool) -> Option<&[u8]> {
    let end = reply.iter().position(|c| *c == b'\n');
    match end {
        Some(end) => Some(reply[..end].trim_ascii_end()),
        None if (is_open && reply.len() < MAX_HEALTH_OUTPUT) || reply.is_empty() => None,
        None => Some(reply),
    }
}

/// The status code of a status line (RFC 9112, section 4).
fn http_status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let [b'0'..=b'9', b' ', code @ ..] = rest else { return None };
    let (digits, after) = code.split_at_checked(3)?;
    let is_whole = after.first().is_none_or(|c| *c == b' ');
    let status = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (is_whole && digits.iter().all(u8::is_ascii_digit)).then_some(status)
}

fn exit_code(how: ProcessExit) -> i32 {
    match how {
        ProcessExit::Code(code) => i32::from(code),
        ProcessExit::Signal(signal) => 128 + i32::from(signal),
    }
}

/// Kills the process group of a program that started a session and was not reaped yet.
fn kill_group(leader: Pid) {
    // It fails if the group has no process any more.
    let _already_ended = rustix::process::kill_process_group(leader, Signal::KILL);
}

/// Kills a process of the session that `leader` started. The pidfd is opened first: then the PID cannot come to name
/// another process between the check and the signal without the signal failing.
fn kill_if_in_session(process: Pid, leader: Pid) {
    let Ok(pidfd) = rustix::process::pidfd_open(process, PidfdFlags::empty()) else { return };
    if rustix::process::getsid(Some(process)) == Ok(leader) {
        // It fails if the process has exited.
        let _already_ended = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_are_parsed() {
        for (line, want) in [
            ("HTTP/1.1 200 OK", Some(200)),
            ("HTTP/1.0 503 ", Some(503)),
            ("HTTP/1.1 204", Some(204)),
            ("HTTP/2 200", None),
            ("HTTP/1.1 20", None),
            ("HTTP/1.1 2000", None),
            ("HTTP/1.1 +20 OK", None),
            ("220 smtp", None),
            ("", None),
        ] {
            assert_eq!(http_status(line.as_bytes()), want, "{line}");
        }
    }

    #[test]
    fn a_status_line_may_come_in_parts() {
        assert_eq!(status_line(b"HTTP/1.1 200", true), None);
        assert_eq!(status_line(b"HTTP/1.1 200", false), Some(&b"HTTP/1.1 200"[..]));
        assert_eq!(status_line(b"HTTP/1.1 200 OK\r\nA: b\r\n", true), Some(&b"HTTP/1.1 200 OK"[..]));
        assert_eq!(status_line(b"", false), None);
        let endless = vec![b'x'; MAX_HEALTH_OUTPUT];
        assert_eq!(status_line(&endless, true), Some(&endless[..]));
    }
}
