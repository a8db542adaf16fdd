//! Attaches a pod to its networks in another process, while the supervisor makes the apps: CNI plugins take 100 ms and
//! more.
//!
//! The process is a fork with the namespaces and descriptors that the supervisor has at that time. It sends the result
//! and the descriptors that must stay open: the sockets that hold published ports. It dies with the supervisor; the
//! pod's record then has what it had attached, and the process that detaches the pod waits for a plugin that still runs
//! ([`gantry_net::pod`]).

use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_contract::Failure;
use gantry_model::ErrorKind;
use gantry_model::net::PodNetwork;
use gantry_net::pod::HeldPorts;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};

use crate::failure::{Attempt, Result, failure};
use crate::kernel_costs::finish_in_background;
use crate::passing::{self, MAX_DESCRIPTORS};
use crate::pod::inheritance;
use crate::sys::{self, SingleThreaded};

/// The byte that descriptors are sent with. JSON does not begin with it.
const MARK: u8 = b'+';

/// Timeout of reaping the process after it sent its result or was killed.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The result of attaching, as it is sent.
type AttachResult = std::result::Result<Vec<PodNetwork>, Failure>;

/// A process that attaches the pod. Dropping it kills the process.
pub(crate) struct AttachProcess {
    socket: OwnedFd,
    process: OwnedFd,
    was_reaped: bool,
}

impl AttachProcess {
    /// Runs `attach` in a new process.
    pub(crate) fn start(
        thread: SingleThreaded,
        attach: impl FnOnce() -> Result<(Vec<PodNetwork>, HeldPorts)>,
    ) -> Result<Self> {
        let what = || "cannot start a process for the pod's networks";
        let (socket, its_end) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .attempt(what)?;
        let (socket_number, supervisor) = (std::os::fd::AsRawFd::as_raw_fd(&socket), rustix::process::getpid());
        let pid = sys::fork(thread, 0, |child| {
            // Or the process would not notice the supervisor's death while it sends.
            child.close(&[socket_number]);
            let _kept_without_it = inheritance::reset_oom_score();
            let dies_with_parent = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            if dies_with_parent.is_ok()
                && rustix::process::getppid() == Some(supervisor)
                && let Err(error) = send_result(its_end, attach())
            {
                // The supervisor reports that no result came; its log has the reason.
                tracing::warn!("cannot send the result of attaching the pod: {error}");
            }
            finish_in_background(thread);
            sys::exit_now(0)
        })
        .attempt(what)?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(what)?;
        Ok(Self { socket, process, was_reaped: false })
    }

    /// Waits for the result. This takes as long as the plugins may; the engine's timeout of a start is longer.
    ///
    /// The inner error is that of attaching: then the process has detached what it had attached, or recorded what is
    /// left.
    pub(crate) fn wait(mut self) -> Result<Result<(Vec<PodNetwork>, HeldPorts)>> {
        let received = self.receive_result();
        // Nothing is left for it to do.
        self.reap();
        let (result, sockets) = received?;
        Ok(result.map(|attached| (attached, HeldPorts::from(sockets))))
    }

    fn receive_result(&self) -> Result<(AttachResult, Vec<OwnedFd>)> {
        let (mut text, mut sockets) = (Vec::new(), Vec::new());
        while receive(self.socket.as_fd(), &mut text, &mut sockets)
            .attempt(|| "cannot receive the result of attaching the pod")?
        {}
        if text.is_empty() {
            let why = "the process that attaches the pod to its networks ended without a result";
            return Err(failure(ErrorKind::Internal, why));
        }
        let result: AttachResult = serde_json::from_slice(&text).map_err(|error| {
            failure(ErrorKind::Internal, format!("the result of attaching the pod is damaged: {error}"))
        })?;
        Ok((result, sockets))
    }

    /// Reaps the process when it exits; a process that hangs in the kernel is left after [`EXIT_TIMEOUT`].
    fn reap(&mut self) {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        let _exited_or_late = poll(&mut fds, Some(&EXIT_TIMEOUT));
        // An error means that it was reaped with the supervisor's other children.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        self.was_reaped = !matches!(waitid(WaitId::PidFd(self.process.as_fd()), options), Ok(None));
    }
}

impl Drop for AttachProcess {
    fn drop(&mut self) {
        if !self.was_reaped {
            // It fails only if the process has exited.
            let _already_ended = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
            self.reap();
        }
    }
}

/// Sends the descriptors, then the result.
fn send_result(socket: OwnedFd, result: Result<(Vec<PodNetwork>, HeldPorts)>) -> std::io::Result<()> {
    let (result, held): (AttachResult, HeldPorts) = match result {
        Ok((attached, held)) => (Ok(attached), held),
        Err(failure) => (Err(failure), HeldPorts::default()),
    };
    let sockets: Vec<BorrowedFd<'_>> = held.sockets().collect();
    for fds in sockets.chunks(MAX_DESCRIPTORS) {
        passing::send(&socket, &[MARK], fds, SendFlags::empty())?;
    }
    let text = serde_json::to_vec(&result)?;
    std::fs::File::from(socket).write_all(&text)
}

/// Receives some of the result; returns `false` at its end.
fn receive(socket: BorrowedFd<'_>, text: &mut Vec<u8>, sockets: &mut Vec<OwnedFd>) -> rustix::io::Result<bool> {
    let mut bytes = [0u8; 16 << 10];
    let received = passing::receive(socket, &mut bytes, RecvFlags::empty())?;
    sockets.extend(received.fds);
    let bytes = &bytes[..received.bytes];
    let marks = if text.is_empty() { bytes.iter().take_while(|byte| **byte == MARK).count() } else { 0 };
    text.extend_from_slice(&bytes[marks..]);
    Ok(received.bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(count: usize) -> HeldPorts {
        HeldPorts::from((0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect::<Vec<OwnedFd>>())
    }

    /// Over the socket, without the fork: the test program has threads.
    fn transfer(result: Result<(Vec<PodNetwork>, HeldPorts)>) -> (Vec<u8>, Vec<OwnedFd>) {
        let (own, its) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (mut text, mut sockets) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| send_result(its, result).unwrap());
            while receive(own.as_fd(), &mut text, &mut sockets).unwrap() {}
        });
        (text, sockets)
    }

    #[test]
    fn the_result_arrives_with_all_sockets() {
        let attached = vec![PodNetwork { name: "+".repeat(40_000), ..PodNetwork::default() }];
        for count in [0, 1, MAX_DESCRIPTORS, 3 * MAX_DESCRIPTORS + 1] {
            let (text, sockets) = transfer(Ok((attached.clone(), held(count))));
            let result: AttachResult = serde_json::from_slice(&text).unwrap();
            assert_eq!((result.unwrap(), sockets.len()), (attached.clone(), count));
        }
        let (text, sockets) = transfer(Err(failure(ErrorKind::Busy, "no")));
        let result: AttachResult = serde_json::from_slice(&text).unwrap();
        assert_eq!((result.unwrap_err().message.as_str(), sockets.len()), ("no", 0));
    }
}
