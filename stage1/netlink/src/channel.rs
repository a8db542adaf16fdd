//! A netlink socket: sends requests, receives acknowledgements and dumps, with sequence numbers and a deadline.
//!
//! Shared by rtnetlink and nfnetlink; the transactions of nfnetlink are in [`crate::nft`].
//!
//! The kernel handles a request within the system call that sends it, so the reply is usually queued when that call
//! returns: receiving tries a non-blocking read before it polls. The deadline bounds the wait for a reply, not the
//! handling of the request: the kernel blocks in sendto() while another process holds its locks (RTNL).
//!
//! Replies left over from an abandoned exchange are drained before the next request, an unfinished dump to its end.
//!
//! Extended acknowledgements are on. Kernels have them since 4.12, older than any that gantry supports.

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink_sys::Socket as Raw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recvfrom, sendto};

use crate::error::{Attempt, Error, Malformed, Result};
use crate::message::{Ack, Batch, F_ACK, F_DUMP, F_DUMP_INTR, Message, NLMSG_DONE, NLMSG_ERROR, next_message};

/// The default timeout of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest datagram of a dump, in bytes: the kernel fills at most 32 KiB (`netlink_recvmsg`).
const MAX_DATAGRAM: usize = 32 * 1024;
/// The send buffer for large batches, in bytes: a batch is one datagram, and a full nftables table takes about half
/// of this.
const MAX_SEND_BUFFER: usize = 64 << 20;
/// The most entries of a dump; a longer one is an error.
const MAX_ENTRIES: usize = 100_000;
/// How often an interrupted dump is repeated.
const MAX_DUMP_ATTEMPTS: u32 = 8;

/// Opens a socket of a protocol (`NETLINK_…`) in the calling thread's network namespace, to which it stays bound.
pub(crate) fn open(protocol: isize, strict: bool) -> Result<OwnedFd> {
    let what = || "open a netlink socket";
    let socket = Raw::new(protocol).attempt(what)?;
    socket.set_ext_ack(true).attempt(what)?;
    // Acknowledgements quote only the request's header, so they fit into the receive buffer whatever was sent.
    socket.set_cap_ack(true).attempt(what)?;
    if strict {
        socket.set_netlink_get_strict_chk(true).attempt(what)?;
    }
    rustix::io::fcntl_dupfd_cloexec(socket.as_fd(), 3).attempt(what)
}

/// A request that the kernel rejected.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The index of the message in its batch.
    pub(crate) at: u32,
    /// The error number.
    pub(crate) errno: Errno,
    /// The text of the extended acknowledgement.
    pub(crate) text: Option<String>,
}

impl Refusal {
    /// The rejection in an acknowledgement; None if the request succeeded.
    pub(crate) fn from_ack(at: u32, ack: Ack<'_>) -> Option<Self> {
        (ack.errno != 0).then(|| Self { at, errno: errno(ack.errno), text: ack.text.map(str::to_owned) })
    }

    /// The error for `what` was attempted.
    pub(crate) fn error(self, what: impl Display) -> Error {
        Error::Kernel { what: what.to_string(), errno: self.errno, text: self.text }
    }
}

/// A socket and the sequence number of the next request.
pub(crate) struct Channel {
    socket: OwnedFd,
    next: u32,
    timeout: Duration,
    buffer: Vec<u8>,
    /// The traffic so far.
    #[cfg(test)]
    pub(crate) traffic: Traffic,
}

/// Counters of a socket, for tests.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) requests: u32,
    pub(crate) sent: usize,
    pub(crate) answers: u32,
    pub(crate) received: usize,
}

impl Channel {
    /// A channel over a socket from [`open`].
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            next: 1,
            timeout: REPLY_TIMEOUT,
            buffer: vec![0; MAX_DATAGRAM],
            #[cfg(test)]
            traffic: Traffic::default(),
        }
    }

    /// Sets the timeout of each reply.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The deadline for the reply to a request sent now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Sends one request and returns when it is acknowledged; `take` receives the other replies.
    pub(crate) fn request(
        &mut self,
        batch: Batch,
        what: impl Display + Copy,
        take: &mut dyn FnMut(&Message<'_>) -> std::result::Result<(), Malformed>,
    ) -> Result<()> {
        match self.exchange(batch, what, take)?.into_iter().next() {
            Some(refusal) => Err(refusal.error(what)),
            None => Ok(()),
        }
    }

    /// Sends one request whose only reply is its acknowledgement.
    pub(crate) fn execute(&mut self, batch: Batch, what: impl Display + Copy) -> Result<()> {
        self.request(batch, what, &mut |_| Ok(()))
    }

    /// Sends several requests with one system call. The kernel handles them in order; a rejected one does not stop
    /// the rest.
    pub(crate) fn exchange(
        &mut self,
        batch: Batch,
        what: impl Display + Copy,
        take: &mut dyn FnMut(&Message<'_>) -> std::result::Result<(), Malformed>,
    ) -> Result<Vec<Refusal>> {
        let count = batch.count();
        // The kernel always reports errors, so only the last request asks for an acknowledgement: it ends the exchange.
        let first = self.send(batch, F_ACK, what)?;
        let deadline = self.deadline();
        let mut refused = Vec::new();
        loop {
            let mut rest = self.receive(deadline, what)?;
            while let Some(message) = next_message(&mut rest).attempt(|| what)? {
                let at = message.number.wrapping_sub(first);
                if at >= count {
                    continue;
                }
                if message.kind != NLMSG_ERROR {
                    take(&message).attempt(|| what)?;
                    continue;
                }
                refused.extend(Refusal::from_ack(at, message.ack().attempt(|| what)?));
                if at + 1 == count {
                    return Ok(refused);
                }
            }
        }
    }

    /// Dumps all objects of a kind, and repeats a dump that was interrupted by a change, so the result is consistent.
    pub(crate) fn dump<T>(
        &mut self,
        request: &dyn Fn(&mut Batch, u16),
        what: impl Display + Copy,
        parse: &dyn Fn(&Message<'_>) -> std::result::Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>> {
        for _ in 0..MAX_DUMP_ATTEMPTS {
            let mut batch = Batch::new();
            request(&mut batch, F_DUMP);
            let mut found = Vec::new();
            let whole = self.dump_once(batch, what, &mut |message| {
                if found.len() < MAX_ENTRIES {
                    found.extend(parse(message).attempt(|| what)?);
                    return Ok(());
                }
                let text = Some(format!("more than {MAX_ENTRIES} entries"));
                Err(Error::Kernel { what: what.to_string(), errno: Errno::TOOBIG, text })
            })?;
            if whole {
                return Ok(found);
            }
        }
        Err(Error::Lost { what: what.to_string() })
    }

    /// Sends a dump request (with [`F_DUMP`]) and passes each entry to `each`. False if a change interrupted the dump.
    pub(crate) fn dump_once<E: From<Error>>(
        &mut self,
        batch: Batch,
        what: impl Display + Copy,
        each: &mut dyn FnMut(&Message<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<bool, E> {
        let number = self.send(batch, 0, what)?;
        let deadline = self.deadline();
        let mut whole = true;
        loop {
            let mut rest = match self.receive(deadline, what) {
                // The dump must be read to its end before the next request.
                Err(Error::Lost { .. }) => {
                    whole = false;
                    continue;
                }
                other => other?,
            };
            while let Some(message) = next_message(&mut rest).attempt(|| what)? {
                if message.number != number {
                    continue;
                }
                whole &= message.flags & F_DUMP_INTR == 0;
                if !matches!(message.kind, NLMSG_DONE | NLMSG_ERROR) {
                    each(&message)?;
                    continue;
                }
                return match Refusal::from_ack(0, message.ack().attempt(|| what)?) {
                    None => Ok(whole),
                    // The kernel aborted the dump because too much changed.
                    Some(Refusal { errno: Errno::INTR | Errno::AGAIN, .. }) => Ok(false),
                    Some(refusal) => Err(refusal.error(what).into()),
                };
            }
        }
    }

    /// Sends a batch, with the flags `last` added to its last message. Returns the sequence number of the first
    /// message.
    pub(crate) fn send(&mut self, batch: Batch, last: u16, what: impl Display + Copy) -> Result<u32> {
        self.drain(what)?;
        let first = self.next;
        self.next = self.next.wrapping_add(batch.count());
        let bytes = batch.finish(first, last).attempt(|| what)?;
        #[cfg(test)]
        {
            self.traffic.requests += self.next.wrapping_sub(first);
            self.traffic.sent += bytes.len();
        }
        let mut grown = false;
        loop {
            match sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)) {
                Err(Errno::INTR) => {}
                // The batch exceeds the socket's send buffer: enlarge it once.
                Err(Errno::MSGSIZE) if !grown => {
                    rustix::net::sockopt::set_socket_send_buffer_size_force(&self.socket, MAX_SEND_BUFFER)
                        .attempt(|| what)?;
                    grown = true;
                }
                other => return other.attempt(|| what).map(|_| first),
            }
        }
    }

    /// Discards the replies of an abandoned exchange, and a pending ENOBUFS.
    fn drain(&mut self, what: impl Display + Copy) -> Result<()> {
        loop {
            match self.receive_into_buffer(what) {
                Ok(Some(_)) | Err(Error::Lost { .. }) => {}
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next datagram from the kernel.
    pub(crate) fn receive(&mut self, deadline: Instant, what: impl Display + Copy) -> Result<&[u8]> {
        let length = loop {
            if let Some(length) = self.receive_into_buffer(what)? {
                break length;
            }
            if !self.readable(deadline, what)? {
                return Err(Error::timed_out(what, self.timeout));
            }
        };
        Ok(self.buffer.get(..length).unwrap_or_default())
    }

    /// The next datagram from the kernel, if one is queued.
    pub(crate) fn try_receive(&mut self, what: impl Display + Copy) -> Result<Option<&[u8]>> {
        let length = self.receive_into_buffer(what)?;
        Ok(length.and_then(|length| self.buffer.get(..length)))
    }

    /// Receives a datagram into the buffer and returns its length; None if none is queued. Skips datagrams from other
    /// processes: netlink lets any process send to any socket (the sender's port is then not 0).
    fn receive_into_buffer(&mut self, what: impl Display + Copy) -> Result<Option<usize>> {
        loop {
            match recvfrom(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, length, sender)) => {
                    let kernel = |from: SocketAddrNetlink| from.pid() == 0;
                    if !sender.and_then(|from| from.try_into().ok()).is_some_and(kernel) {
                        continue;
                    }
                    if length > self.buffer.len() {
                        return Err(Malformed("a datagram longer than 32 KiB")).attempt(|| what);
                    }
                    #[cfg(test)]
                    {
                        self.traffic.answers += 1;
                        self.traffic.received += length;
                    }
                    return Ok(Some(length));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::NOBUFS) => return Err(Error::Lost { what: what.to_string() }),
                Err(errno) => return Err(errno).attempt(|| what),
            }
        }
    }

    /// Waits until the socket is readable; false at the deadline.
    pub(crate) fn readable(&self, deadline: Instant, what: impl Display + Copy) -> Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                other => return other.attempt(|| what).map(|ready| ready > 0),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The error number, or EIO if the code is outside the kernel's range.
fn errno(code: i32) -> Errno {
    if (1..4096).contains(&code) { Errno::from_raw_os_error(code) } else { Errno::IO }
}

#[cfg(test)]
mod tests;
