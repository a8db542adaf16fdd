//! An rtnetlink socket: requests out, acknowledgements and dumps in, with sequence numbers and a deadline.
//!
//! The kernel handles a request inside the system call that sends it, and its answer is there when that returns; so an
//! answer is first looked for and only then waited for. What a deadline can bound is the waiting for an answer, not the
//! handling: a request waits for the kernel's own lock (RTNL) as long as others hold it.
//!
//! Extended acknowledgements (the kernel's words) and strict checking (it refuses what it would else ignore, and
//! filters dumps) are on. Both are older than any kernel gantry runs on (4.12 and 4.20).

use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_sys::Socket as Raw;
use netlink_sys::constants::NETLINK_ROUTE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recvfrom, sendto};

use super::error::{Attempt, Error, Malformed, Result};
use super::message::{Batch, F_ACK, F_DUMP, F_DUMP_INTR, Message, NLMSG_DONE, NLMSG_ERROR, next_message};

/// How long an answer may take unless the caller says otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel fills at most so much per datagram of a dump.
const BUFFER: usize = 32 * 1024;
/// A list with more entries than this is not read to its end.
const MOST_ENTRIES: usize = 100_000;
/// How often a dump is tried while the tables change under it.
const DUMPS: u32 = 8;

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
    /// As an error that says what was attempted.
    pub(crate) fn error(self, what: fmt::Arguments<'_>) -> Error {
        Error::Kernel { what: what.to_string(), errno: self.errno, said: self.said }
    }
}

/// A socket and the number of its next request.
pub(crate) struct Channel {
    socket: Raw,
    next: u32,
    timeout: Duration,
    buffer: Vec<u8>,
}

impl Channel {
    /// A socket in the calling thread's network namespace. It stays in there.
    pub(crate) fn open() -> Result<Self> {
        let what = || "open a netlink socket";
        let mut socket = Raw::new(NETLINK_ROUTE).attempt(what)?;
        socket.bind_auto().attempt(what)?;
        socket.set_ext_ack(true).attempt(what)?;
        // Acknowledgements quote no more than the header of what they acknowledge.
        socket.set_cap_ack(true).attempt(what)?;
        socket.set_netlink_get_strict_chk(true).attempt(what)?;
        Ok(Self { socket, next: 1, timeout: TIMEOUT, buffer: vec![0; BUFFER] })
    }

    /// How long to wait for each answer.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// One request that is done or refused; `take` gets what it answers.
    pub(crate) fn request(
        &mut self,
        batch: Batch,
        what: fmt::Arguments<'_>,
        take: &mut dyn FnMut(&Message<'_>) -> std::result::Result<(), Malformed>,
    ) -> Result<()> {
        match self.exchange(batch, what, take)?.into_iter().next() {
            Some(refusal) => Err(refusal.error(what)),
            None => Ok(()),
        }
    }

    /// One request that answers with nothing but its acknowledgement.
    pub(crate) fn order(&mut self, batch: Batch, what: fmt::Arguments<'_>) -> Result<()> {
        self.request(batch, what, &mut |_| Ok(()))
    }

    /// Several requests, sent at once, done in order. One that is refused does not stop those after it.
    pub(crate) fn exchange(
        &mut self,
        batch: Batch,
        what: fmt::Arguments<'_>,
        take: &mut dyn FnMut(&Message<'_>) -> std::result::Result<(), Malformed>,
    ) -> Result<Vec<Refusal>> {
        let count = batch.count();
        // Refusals are always told; so the acknowledgement of the last one says that there are no more.
        let first = self.send(batch, F_ACK, what)?;
        let deadline = Instant::now() + self.timeout;
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
                let ack = message.ack().attempt(|| what)?;
                if ack.errno != 0 {
                    refused.push(Refusal { at, errno: errno(ack.errno), said: ack.text.map(str::to_owned) });
                }
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
        what: fmt::Arguments<'_>,
        parse: &dyn Fn(&Message<'_>) -> std::result::Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>> {
        for _ in 0..DUMPS {
            let mut batch = Batch::new();
            request(&mut batch, F_DUMP);
            if let Some(found) = self.dump_once(batch, what, parse)? {
                return Ok(found);
            }
        }
        Err(Error::Lost { what: what.to_string() })
    }

    /// None if it is inconsistent.
    fn dump_once<T>(
        &mut self,
        batch: Batch,
        what: fmt::Arguments<'_>,
        parse: &dyn Fn(&Message<'_>) -> std::result::Result<Option<T>, Malformed>,
    ) -> Result<Option<Vec<T>>> {
        let number = self.send(batch, 0, what)?;
        let deadline = Instant::now() + self.timeout;
        let (mut found, mut whole) = (Vec::new(), true);
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
                if matches!(message.kind, NLMSG_DONE | NLMSG_ERROR) {
                    let ack = message.ack().attempt(|| what)?;
                    if ack.errno == 0 {
                        return Ok(whole.then_some(found));
                    }
                    let (errno, said) = (errno(ack.errno), ack.text.map(str::to_owned));
                    return Err(Error::Kernel { what: what.to_string(), errno, said });
                }
                if found.len() < MOST_ENTRIES {
                    found.extend(parse(&message).attempt(|| what)?);
                } else {
                    return Err(Error::Kernel {
                        what: what.to_string(),
                        errno: Errno::TOOBIG,
                        said: Some(format!("more than {MOST_ENTRIES} entries")),
                    });
                }
            }
        }
    }

    /// Sends; the number of the first message.
    pub(crate) fn send(&mut self, batch: Batch, last: u16, what: fmt::Arguments<'_>) -> Result<u32> {
        let first = self.next;
        self.next = self.next.wrapping_add(batch.count());
        let bytes = batch.finish(first, last).attempt(|| what)?;
        loop {
            match sendto(self.socket.as_fd(), &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)) {
                Err(Errno::INTR) => {}
                other => return other.attempt(|| what).map(|_| first),
            }
        }
    }

    /// The next datagram from the kernel. Those of other processes, which may write to any netlink socket, are passed over.
    pub(crate) fn receive(&mut self, deadline: Instant, what: fmt::Arguments<'_>) -> Result<&[u8]> {
        let length = loop {
            match recvfrom(self.socket.as_fd(), &mut self.buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, length, sender)) => {
                    let kernel = |from: SocketAddrNetlink| from.pid() == 0;
                    if sender.and_then(|from| from.try_into().ok()).is_some_and(kernel) {
                        break length;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(deadline, what)?,
                Err(Errno::NOBUFS) => return Err(Error::Lost { what: what.to_string() }),
                Err(errno) => return Err(errno).attempt(|| what),
            }
        };
        self.buffer.get(..length).ok_or(Malformed("a datagram longer than 32 KiB")).attempt(|| what)
    }

    fn wait(&self, deadline: Instant, what: fmt::Arguments<'_>) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::TimedOut { what: what.to_string(), after: self.timeout });
        }
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => Ok(()),
            other => other.attempt(|| what).map(|_| ()),
        }
    }
}

/// An error number as the kernel's headers know it; EIO for what none can be.
fn errno(code: i32) -> Errno {
    if (1..4096).contains(&code) { Errno::from_raw_os_error(code) } else { Errno::IO }
}

#[cfg(test)]
mod tests;
