//! Attaching a pod to its networks in a process beside the supervisor, which makes the apps meanwhile: plugins take 100 ms
//! and more.
//!
//! The process is a fork, with the namespaces and descriptors that the supervisor has then. It says what came of it and hands over
//! what must stay open, the sockets on the host's ports. It dies with the supervisor; what it had begun is in the pod's record,
//! and a plugin that runs yet is waited for by whoever takes it away ([`gantry_net::pod`]).

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_contract::Failure;
use gantry_contract::network::Attached;
use gantry_model::ErrorKind;
use gantry_net::pod::HeldPorts;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};

use crate::failure::{Attempt, Result, failure};
use crate::network::finish_elsewhere;
use crate::passing::{self, MAX_DESCRIPTORS};
use crate::sys::{self, Fork};

/// What descriptors go with. An answer begins with something else.
const MARK: u8 = b'+';

/// How long one that has said all, or was killed, may take to be gone, in seconds.
const GONE_WITHIN: i64 = 5;

/// What the process says.
type Said = std::result::Result<Vec<Attached>, Failure>;

/// A process that attaches the pod. Dropped, it is ended.
pub(crate) struct Attaching {
    socket: OwnedFd,
    process: OwnedFd,
    /// Whether it has ended and was reaped.
    gone: bool,
}

impl Attaching {
    /// Begins the work in another process.
    pub(crate) fn begin(work: impl FnOnce() -> Result<(Vec<Attached>, HeldPorts)>) -> Result<Self> {
        let what = || "cannot start a process for the pod's networks";
        let (socket, its) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .attempt(what)?;
        let supervisor = rustix::process::getpid();
        match sys::fork(0).attempt(what)? {
            Fork::Child => {
                drop(socket);
                let dies_too = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                if dies_too.is_ok()
                    && rustix::process::getppid() == Some(supervisor)
                    && let Err(error) = tell(its, work())
                {
                    // The supervisor takes silence for a failure, and this is in its log.
                    let _ = writeln!(std::io::stderr(), "gantry-stage1: cannot hand over the networks: {error}");
                }
                finish_elsewhere();
                sys::exit_now(0)
            }
            Fork::Parent(pid) => {
                let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(what)?;
                Ok(Self { socket, process, gone: false })
            }
        }
    }

    /// Waits for what came of it. It takes as long as plugins may; the engine does not wait for a start any longer.
    /// An error within is its own: then it has taken away what it made, or said in the pod's record what is left.
    pub(crate) fn wait(mut self) -> Result<Result<(Vec<Attached>, HeldPorts)>> {
        let heard = self.hear();
        // It has nothing left to do but end.
        self.reap();
        let (said, sockets) = heard?;
        Ok(said.map(|attached| (attached, HeldPorts::from(sockets))))
    }

    fn hear(&self) -> Result<(Said, Vec<OwnedFd>)> {
        let mut text = Vec::new();
        let mut sockets = Vec::new();
        while receive(self.socket.as_fd(), &mut text, &mut sockets)
            .attempt(|| "cannot hear what came of the pod's networks")?
        {}
        if text.is_empty() {
            return Err(failure(ErrorKind::Internal, "the process that makes the pod's networks ended without a word"));
        }
        let said: Said = serde_json::from_slice(&text).map_err(|error| {
            failure(ErrorKind::Internal, format!("what came of the pod's networks is damaged: {error}"))
        })?;
        Ok((said, sockets))
    }

    /// Waits until it is gone; not for one that hangs in the kernel.
    fn reap(&mut self) {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: GONE_WITHIN, tv_nsec: 0 }));
        // It may be reaped already, with the rest of the supervisor's children.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        self.gone = !matches!(waitid(WaitId::PidFd(self.process.as_fd()), options), Ok(None));
    }
}

impl Drop for Attaching {
    fn drop(&mut self) {
        if !self.gone {
            let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
            self.reap();
        }
    }
}

/// Says what came of it, after the descriptors.
fn tell(socket: OwnedFd, came: Result<(Vec<Attached>, HeldPorts)>) -> std::io::Result<()> {
    let (said, held): (Said, HeldPorts) = match came {
        Ok((attached, held)) => (Ok(attached), held),
        Err(why) => (Err(why), HeldPorts::default()),
    };
    let sockets: Vec<BorrowedFd<'_>> = held.sockets().collect();
    for fds in sockets.chunks(MAX_DESCRIPTORS) {
        passing::send(&socket, &[MARK], fds, SendFlags::empty())?;
    }
    let text = serde_json::to_vec(&said)?;
    std::fs::File::from(socket).write_all(&text)
}

/// Takes what comes next; `false`: that was all.
fn receive(socket: BorrowedFd<'_>, text: &mut Vec<u8>, sockets: &mut Vec<OwnedFd>) -> rustix::io::Result<bool> {
    let mut bytes = [0u8; 16 << 10];
    let received = passing::receive(socket, &mut bytes, RecvFlags::empty())?;
    sockets.extend(received.fds);
    let said = &bytes[..received.bytes];
    let marks = if text.is_empty() { said.iter().take_while(|byte| **byte == MARK).count() } else { 0 };
    text.extend_from_slice(&said[marks..]);
    Ok(received.bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(count: usize) -> HeldPorts {
        HeldPorts::from((0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect::<Vec<OwnedFd>>())
    }

    /// Over the socket, without the fork: the test program has threads.
    fn hear(came: Result<(Vec<Attached>, HeldPorts)>) -> (Vec<u8>, Vec<OwnedFd>) {
        let (ours, its) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (mut text, mut sockets) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| tell(its, came).unwrap());
            while receive(ours.as_fd(), &mut text, &mut sockets).unwrap() {}
        });
        (text, sockets)
    }

    #[test]
    fn what_came_of_it_is_heard_with_all_sockets() {
        let attached = vec![Attached { name: "+".repeat(40_000), ..Attached::default() }];
        for count in [0, 1, MAX_DESCRIPTORS, 3 * MAX_DESCRIPTORS + 1] {
            let (text, sockets) = hear(Ok((attached.clone(), held(count))));
            let said: Said = serde_json::from_slice(&text).unwrap();
            assert_eq!((said.unwrap(), sockets.len()), (attached.clone(), count));
        }
        let (text, sockets) = hear(Err(failure(ErrorKind::Busy, "no")));
        let said: Said = serde_json::from_slice(&text).unwrap();
        assert_eq!((said.unwrap_err().message.as_str(), sockets.len()), ("no", 0));
    }
}
