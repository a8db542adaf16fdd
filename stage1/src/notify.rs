//! The notification socket of an app (sd_notify(3)): a datagram socket in a directory of the supervisor's tree, which
//! is bind-mounted read-only into the app.
//!
//! The app is hostile. A notification counts only if the kernel names a process of the app's cgroup as its sender; a
//! sender that has exited by then is unknown. Longer ones than systemd accepts are dropped. Descriptors are not
//! received by the supervisor: closing the last reference to a socket with SO_LINGER, or to a file of a FUSE server,
//! may block for as long as the app likes. A process forked for it receives and closes them, which also completes the
//! barrier of sd_notify_barrier(3).

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};

use gantry_contract::control::{MAX_STATUS_TEXT, Notified};
use gantry_model::systemd::{MAX_NOTIFICATION, SdNotify};
use rustix::fs::{AtFlags, CWD, Mode};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketAddrUnix, SocketFlags,
    SocketType, bind, recvmsg, socket_with, sockopt,
};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::failure::{Attempt, Result};
use crate::passing;
use crate::sys::{self, SingleThreaded};

/// The file name of the socket.
const SOCKET: &str = "notify";

/// Maximum number of late notifications that are dropped at the start of an app, so that a process which sends them
/// without pause does not hold up the supervisor. A socket's queue holds fewer (`net.unix.max_dgram_qlen`), unless the
/// host's administrator has raised the limit.
const MAX_LATE: usize = 512;

/// The names that are forwarded. MAINPID is not among them: it would be a number of the pod's PID namespace.
const FORWARDED: [&str; 8] =
    ["READY", "RELOADING", "STOPPING", "STATUS", "ERRNO", "WATCHDOG", "WATCHDOG_USEC", "EXTEND_TIMEOUT_USEC"];

/// The notification socket of an app, and what arrived there since the app's last start.
pub(crate) struct NotifySocket {
    /// Readable when a notification has arrived.
    pub(crate) socket: OwnedFd,
    /// The process that receives a notification with descriptors. Meanwhile the socket is not read.
    pub(crate) receiver: Option<OwnedFd>,
    /// The readiness and the status that the app has reported.
    pub(crate) state: Notified,
}

/// A notification of an app.
pub(crate) struct Notification {
    /// The forwarded assignments, one per line.
    pub(crate) text: String,
    /// Whether it is the first `READY=1` since the app's start.
    pub(crate) makes_ready: bool,
}

/// The directory of an app's socket in the supervisor's tree.
pub(crate) fn directory(app: &str) -> String {
    format!("/bundles/{app}/notify")
}

impl NotifySocket {
    /// Makes the socket of an app.
    pub(crate) fn create(app: &str) -> Result<Self> {
        let what = || format!("cannot make the notification socket of '{app}'");
        let dir = directory(app);
        rustix::fs::mkdirat(CWD, &dir, Mode::RWXU).attempt(what)?;
        let path = format!("{dir}/{SOCKET}");
        let address = SocketAddrUnix::new(path.as_str()).attempt(what)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).attempt(what)?;
        sockopt::set_socket_passcred(&socket, true).attempt(what)?;
        bind(&socket, &address).attempt(what)?;
        // Of any user of the app; mkdir and bind apply the umask.
        for (path, mode) in [(&dir, 0o755), (&path, 0o666)] {
            rustix::fs::chmodat(CWD, path.as_str(), Mode::from_raw_mode(mode), AtFlags::empty()).attempt(what)?;
        }
        Ok(Self { socket, receiver: None, state: Notified::default() })
    }

    /// Receives the next notification, if it is one of this app's processes and says something.
    pub(crate) fn receive(&mut self, pod: &str, app: &str) -> Option<Notification> {
        let mut bytes = [0u8; MAX_NOTIFICATION];
        let peeked = receive_bytes(&self.socket, &mut bytes, RecvFlags::PEEK)?;
        if peeked.has_descriptors {
            self.receiver = fork_receiver(&self.socket);
        }
        // Without a receiver (the process is out of descriptors or processes), blocking is the lesser evil.
        if self.receiver.is_none() {
            let _same_as_peeked = receive_bytes(&self.socket, &mut [0u8; 1], RecvFlags::empty());
        }
        let sender = peeked.sender.filter(|sender| is_member(*sender, pod, app));
        let text = std::str::from_utf8(&bytes[..peeked.length?]).ok()?;
        sender.and_then(|_| self.apply(text))
    }

    /// Forgets what the last start of the app has reported.
    pub(crate) fn reset(&mut self) {
        self.state = Notified::default();
        drop_late(|flags| receive_bytes(&self.socket, &mut [0u8; 1], flags));
    }

    fn apply(&mut self, text: &str) -> Option<Notification> {
        let known: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .filter(|(name, value)| FORWARDED.contains(name) && !value.chars().any(char::is_control))
            .collect();
        let was_ready = self.state.ready;
        for (name, value) in &known {
            match (*name, *value) {
                ("READY", "1") => self.state.ready = true,
                ("STOPPING", "1") => self.state.stopping = true,
                ("STATUS", text) => {
                    self.state.status.clear();
                    self.state.status.push_str(&text[..text.floor_char_boundary(MAX_STATUS_TEXT)]);
                }
                _ => {}
            }
        }
        let lines: Vec<String> = known.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        let text = lines.concat();
        (!text.is_empty()).then_some(Notification { text, makes_ready: self.state.ready && !was_ready })
    }
}

/// A received message, without its bytes.
struct Peeked {
    /// Its length; `None`: it was longer than the buffer.
    length: Option<usize>,
    sender: Option<Pid>,
    has_descriptors: bool,
}

/// Drops the notifications of the last start.
fn drop_late(mut receive: impl FnMut(RecvFlags) -> Option<Peeked>) {
    for _ in 0..MAX_LATE {
        let Some(late) = receive(RecvFlags::PEEK) else { return };
        if late.has_descriptors {
            // Left in the queue: its sender has ended, so that it will be dropped.
            break;
        }
        let _of_the_last_start = receive(RecvFlags::empty());
    }
}

/// Receives a message, without its descriptors: the kernel drops them.
fn receive_bytes(socket: &OwnedFd, bytes: &mut [u8], flags: RecvFlags) -> Option<Peeked> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut parts = [std::io::IoSliceMut::new(bytes)];
    let message = rustix::io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut ancillary, flags)).ok()?;
    let sender = ancillary.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid),
        _ => None,
    });
    let length = (!message.flags.contains(ReturnFlags::TRUNC)).then_some(message.bytes);
    Some(Peeked { length, sender, has_descriptors: message.flags.contains(ReturnFlags::CTRUNC) })
}

/// Forks a process that receives the next message with its descriptors, and closes them by its exit.
fn fork_receiver(socket: &OwnedFd) -> Option<OwnedFd> {
    let thread = SingleThreaded::check().ok()?;
    let pid = sys::fork(thread, 0, |process| {
        let _best_effort = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // It may hang for long: copies of other descriptors would keep pipes and connections open.
        if process.close_all_but(&[socket.as_raw_fd()]).is_err() {
            sys::exit_now(1);
        }
        let received = passing::receive(socket, &mut [0u8; 1], RecvFlags::DONTWAIT);
        sys::exit_now(u8::from(matches!(received, Err(error) if error != Errno::AGAIN)).into())
    });
    rustix::process::pidfd_open(pid.ok()?, PidfdFlags::empty()).ok()
}

/// Whether a process is in the cgroup of an app, or below it.
fn is_member(process: Pid, pod: &str, app: &str) -> bool {
    let path = format!("/proc/{}/cgroup", process.as_raw_nonzero());
    std::fs::read_to_string(path).is_ok_and(|text| is_in_cgroup(&text, pod, app))
}

/// The same for the text of its `/proc/PID/cgroup`. The first element with the pod's ID is the pod's cgroup: an app
/// that manages its cgroups may name some of its own after the pod and another app.
fn is_in_cgroup(text: &str, pod: &str, app: &str) -> bool {
    let pod = format!("/{pod}/");
    text.lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .any(|path| path.split_once(&pod).is_some_and(|(_, below)| below.split('/').next() == Some(app)))
}

/// Whether an app has a notification socket.
pub(crate) fn has_socket(app: &gantry_contract::plan::App) -> bool {
    app.options.sdnotify == SdNotify::App
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> NotifySocket {
        let (socket, _) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        NotifySocket { socket, receiver: None, state: Notified::default() }
    }

    #[test]
    fn assignments_are_filtered_and_capped() {
        let mut socket = socket();
        let notification = socket.apply("READY=1\nMAINPID=7\nSTATUS=loaded\nnonsense\nX_FOO=1\nFDSTORE=1").unwrap();
        assert!(notification.makes_ready);
        assert_eq!(notification.text, "READY=1\nSTATUS=loaded\n");
        assert!(!socket.apply("READY=1").unwrap().makes_ready, "only the first one");
        let long = format!("STATUS={}", "ä".repeat(MAX_STATUS_TEXT));
        socket.apply(&long).unwrap();
        assert_eq!(socket.state.status.len(), MAX_STATUS_TEXT);
        assert!(socket.apply("STATUS=a\u{1b}[2J").is_none());
        assert!(socket.apply("").is_none());
    }

    #[test]
    fn a_flood_does_not_hold_up_a_start() {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        let mut socket = NotifySocket { socket: ours, receiver: None, state: Notified::default() };
        rustix::net::send(&theirs, b"READY=1", rustix::net::SendFlags::NOSIGNAL).unwrap();
        socket.reset();
        assert!(receive_bytes(&socket.socket, &mut [0], RecvFlags::PEEK).is_none(), "the late one is dropped");
        let mut dropped = 0;
        drop_late(|flags| {
            dropped += usize::from(!flags.contains(RecvFlags::PEEK));
            Some(Peeked { length: Some(1), sender: None, has_descriptors: false })
        });
        assert_eq!(dropped, MAX_LATE, "of a queue that is never empty");
    }

    #[test]
    fn senders_of_other_cgroups_are_recognized() {
        let text = |path: &str| format!("4:memory:{path}\n0::{path}\n");
        for (path, want) in [
            ("/gantry/p/a", true),
            ("/gantry/p/a/init.scope", true),
            ("/gantry/p/ab", false),
            ("/gantry/p/b", false),
            ("/gantry/p/b/_delegated/p/a", false),
            ("/container/gantry/p/a", true),
            ("/gantry/p", false),
            ("/", false),
        ] {
            assert_eq!(is_in_cgroup(&text(path), "p", "a"), want, "{path}");
        }
    }
}
