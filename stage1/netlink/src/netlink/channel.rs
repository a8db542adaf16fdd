//! A netlink socket: requests out, acknowledgements and dumps in, with sequence numbers and a deadline.
//!
//! rtnetlink and nfnetlink share it; what only the latter does (transactions) is in [`crate::nft`].
//!
//! The kernel handles a request inside the system call that sends it, and its answer is there when that returns; so an
//! answer is first looked for and only then waited for. What a deadline can bound is the waiting for an answer, not the
//! handling: a request waits for the kernel's own locks (RTNL) as long as others hold them.
//!
//! What is left of an exchange that was given up is thrown away before the next request, an unfinished dump to its end.
//!
//! Extended acknowledgements (the kernel's words) are on. They are older than any kernel gantry runs on (4.12).

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink_sys::Socket as Raw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recvfrom, sendto};

use super::error::{Attempt, Error, Malformed, Result};
use super::message::{Ack, Batch, F_ACK, F_DUMP, F_DUMP_INTR, Message, NLMSG_DONE, NLMSG_ERROR, next_message};

/// How long an answer may take unless the caller says otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel fills at most so much per datagram.
const BUFFER: usize = 32 * 1024;
/// Several requests are one datagram. The largest of this crate (a whole table of nftables) takes about half of this.
const SEND_BUFFER: usize = 64 << 20;
/// A list with more entries than this is not read to its end.
const MOST_ENTRIES: usize = 100_000;
/// How often a dump is tried while the tables change under it.
const DUMPS: u32 = 8;

/// Opens a socket of this protocol (`NETLINK_…`) in the calling thread's network namespace. It stays in there.
pub(crate) fn open(protocol: isize, strict: bool) -> Result<OwnedFd> {
    let what = || "open a netlink socket";
    let socket = Raw::new(protocol).attempt(what)?;
    socket.set_ext_ack(true).attempt(what)?;
    // Acknowledgements quote no more than the header of what they acknowledge.
    socket.set_cap_ack(true).attempt(what)?;
    if strict {
        socket.set_netlink_get_strict_chk(true).attempt(what)?;
    }
    rustix::io::fcntl_dupfd_cloexec(socket.as_fd(), 3).attempt(what)
}

/// What the kernel refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Which message of the batch, from 0.
    pub(crate) at: u32,
    /// Why.
    pub(crate) errno: Errno,
    /// Why, in the kernel's words.
    pub(crate) said: Option<String>,
}

impl Refusal {
    /// What an acknowledgement refuses; None if it refuses nothing.
    pub(crate) fn of(at: u32, ack: Ack<'_>) -> Option<Self> {
        (ack.errno != 0).then(|| Self { at, errno: errno(ack.errno), said: ack.text.map(str::to_owned) })
    }

    /// As an error that says what was attempted.
    pub(crate) fn error(self, what: impl Display) -> Error {
        Error::Kernel { what: what.to_string(), errno: self.errno, said: self.said }
    }
}

/// A socket and the number of its next request.
pub(crate) struct Channel {
    socket: OwnedFd,
    next: u32,
    timeout: Duration,
    buffer: Vec<u8>,
    /// What was said so far.
    #[cfg(test)]
    pub(crate) said: Said,
}

/// How much went over a socket.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) requests: u32,
    pub(crate) sent: usize,
    pub(crate) answers: u32,
    pub(crate) received: usize,
}

impl Channel {
    /// Over a socket that [`open`] made.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            next: 1,
            timeout: TIMEOUT,
            buffer: vec![0; BUFFER],
            #[cfg(test)]
            said: Said::default(),
        }
    }

    /// How long to wait for each answer.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Until when to wait for the answer to a request that is sent now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// One request that is done or refused; `take` gets what it answers.
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

    /// One request that answers with nothing but its acknowledgement.
    pub(crate) fn order(&mut self, batch: Batch, what: impl Display + Copy) -> Result<()> {
        self.request(batch, what, &mut |_| Ok(()))
    }

    /// Several requests, sent at once, done in order. One that is refused does not stop those after it.
    pub(crate) fn exchange(
        &mut self,
        batch: Batch,
        what: impl Display + Copy,
        take: &mut dyn FnMut(&Message<'_>) -> std::result::Result<(), Malformed>,
    ) -> Result<Vec<Refusal>> {
        let count = batch.count();
        // Refusals are always told; so the acknowledgement of the last one says that there are no more.
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
                refused.extend(Refusal::of(at, message.ack().attempt(|| what)?));
                if at + 1 == count {
                    return Ok(refused);
                }
            }
        }
    }

    /// A list. Read again when the tables changed meanwhile, so that it shows one moment.
    pub(crate) fn dump<T>(
        &mut self,
        request: &dyn Fn(&mut Batch, u16),
        what: impl Display + Copy,
        parse: &dyn Fn(&Message<'_>) -> std::result::Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>> {
        for _ in 0..DUMPS {
            let mut batch = Batch::new();
            request(&mut batch, F_DUMP);
            let mut found = Vec::new();
            let whole = self.dump_once(batch, what, &mut |message| {
                if found.len() < MOST_ENTRIES {
                    found.extend(parse(message).attempt(|| what)?);
                    return Ok(());
                }
                let said = Some(format!("more than {MOST_ENTRIES} entries"));
                Err(Error::Kernel { what: what.to_string(), errno: Errno::TOOBIG, said })
            })?;
            if whole {
                return Ok(found);
            }
        }
        Err(Error::Lost { what: what.to_string() })
    }

    /// Asks for a list (with [`F_DUMP`]), and gives each of its entries to `each`. False if it changed while it was read.
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
                // The end of the dump is still to come: the next one must not begin before.
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
                return match Refusal::of(0, message.ack().attempt(|| what)?) {
                    None => Ok(whole),
                    // So much changed that it could not go on.
                    Some(Refusal { errno: Errno::INTR | Errno::AGAIN, .. }) => Ok(false),
                    Some(refusal) => Err(refusal.error(what).into()),
                };
            }
        }
    }

    /// Sends, with the flags of `last` added to the last message; the number of the first one.
    pub(crate) fn send(&mut self, batch: Batch, last: u16, what: impl Display + Copy) -> Result<u32> {
        self.drain(what)?;
        let first = self.next;
        self.next = self.next.wrapping_add(batch.count());
        let bytes = batch.finish(first, last).attempt(|| what)?;
        #[cfg(test)]
        {
            self.said.requests += self.next.wrapping_sub(first);
            self.said.sent += bytes.len();
        }
        let mut grown = false;
        loop {
            match sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)) {
                Err(Errno::INTR) => {}
                // A datagram may be as long as a large table; what that takes is taken only then.
                Err(Errno::MSGSIZE) if !grown => {
                    rustix::net::sockopt::set_socket_send_buffer_size_force(&self.socket, SEND_BUFFER)
                        .attempt(|| what)?;
                    grown = true;
                }
                other => return other.attempt(|| what).map(|_| first),
            }
        }
    }

    /// Throws away what is left of an exchange that was given up, and that some of it was lost.
    fn drain(&mut self, what: impl Display + Copy) -> Result<()> {
        loop {
            match self.take(what) {
                Ok(Some(_)) | Err(Error::Lost { .. }) => {}
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next datagram from the kernel, waited for.
    pub(crate) fn receive(&mut self, deadline: Instant, what: impl Display + Copy) -> Result<&[u8]> {
        let length = loop {
            if let Some(length) = self.take(what)? {
                break length;
            }
            if !self.readable(deadline, what)? {
                return Err(Error::TimedOut { what: what.to_string(), after: self.timeout });
            }
        };
        Ok(self.buffer.get(..length).unwrap_or_default())
    }

    /// The next datagram from the kernel, if it is there.
    pub(crate) fn received(&mut self, what: impl Display + Copy) -> Result<Option<&[u8]>> {
        let length = self.take(what)?;
        Ok(length.and_then(|length| self.buffer.get(..length)))
    }

    /// Takes a datagram into the buffer: its length; None when there is none. Those of other processes, which may write to any
    /// netlink socket, are passed over.
    fn take(&mut self, what: impl Display + Copy) -> Result<Option<usize>> {
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
                        self.said.answers += 1;
                        self.said.received += length;
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

    /// Waits until there is something to receive; false at the deadline.
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

/// An error number as the kernel's headers know it; EIO for what none can be.
fn errno(code: i32) -> Errno {
    if (1..4096).contains(&code) { Errno::from_raw_os_error(code) } else { Errno::IO }
}

#[cfg(test)]
mod tests;
