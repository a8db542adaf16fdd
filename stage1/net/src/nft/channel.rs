//! The netlink socket: a request, its answers, and a deadline.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink_sys::Socket;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags};

use crate::netlink::message::{Batch, F_DUMP, F_DUMP_INTR, Message, NLMSG_DONE, NLMSG_ERROR, next_message};

use super::error::{Attempt, Error, Result};
use super::wire::{self, Transaction};

/// `NETLINK_NETFILTER`.
const NETFILTER: isize = 12;
/// How long the kernel may take to answer. It does so before the request returns; what it takes longer for is memory.
const LIMIT: Duration = Duration::from_secs(5);
/// A transaction is one datagram. The largest table this crate makes takes about half of this.
const SEND_BUFFER: usize = 64 << 20;
/// The kernel answers and notifies in datagrams of up to this length.
const DATAGRAM: usize = 32 << 10;

/// Opens a socket to the nftables of the network namespace this thread is in. It stays with that one, wherever the thread goes.
pub fn socket() -> Result<OwnedFd> {
    let what = "open a socket to nftables";
    let socket = Socket::new(NETFILTER).attempt(what)?;
    // Explanations of errors, and errors that do not quote the request. Kernels that have nftables have both.
    socket.set_ext_ack(true).attempt(what)?;
    socket.set_cap_ack(true).attempt(what)?;
    rustix::io::fcntl_dupfd_cloexec(socket.as_fd(), 3).attempt(what)
}

/// What became of a question.
pub(super) enum Answer<'a> {
    Message(Message<'a>),
    Failure(Errno),
}

/// A socket with its numbering.
pub(super) struct Channel {
    socket: OwnedFd,
    number: u32,
    buffer: Vec<u8>,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, number: 0, buffer: vec![0; DATAGRAM] }
    }

    /// Makes a transaction. The kernel answers when all of it is made, or none.
    pub(super) fn transact(&mut self, transaction: Transaction<'_>, what: &str) -> Result<()> {
        let first = self.next_number();
        let (bytes, labels) = transaction.finish(first).map_err(|why| Error::malformed(what, why))?;
        self.number = self.number.wrapping_add(u32::try_from(labels.len()).unwrap_or(u32::MAX)).wrapping_add(2);
        self.send(&bytes, what)?;
        let mut failure = None;
        let mut answered = false;
        let deadline = Instant::now() + LIMIT;
        // Every answer is there once the first is. The first failure is the cause of others.
        while let Some(length) = receive(&self.socket, &mut self.buffer, !answered, deadline, what)? {
            let mut datagram = self.buffer.get(..length).unwrap_or_default();
            while let Some(message) = next_message(&mut datagram).map_err(|why| Error::malformed(what, why))? {
                if message.kind != NLMSG_ERROR {
                    continue;
                }
                answered = true;
                let ack = message.ack().map_err(|why| Error::malformed(what, why))?;
                if ack.errno != 0 && failure.is_none() {
                    // The number of the transaction's begin is one before those of its messages.
                    let at = message.number.wrapping_sub(first).wrapping_sub(1) as usize;
                    let what = labels.get(at).cloned().unwrap_or_else(|| what.to_owned());
                    let errno = errno_of(ack.errno);
                    failure = Some(Error::Kernel { what, errno, said: ack.text.map(str::to_owned) });
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Asks questions of which each has one answer.
    pub(super) fn ask(
        &mut self,
        batch: Batch,
        what: &str,
        mut each: impl FnMut(Answer<'_>) -> Result<()>,
    ) -> Result<()> {
        let count = batch.count();
        if count == 0 {
            return Ok(());
        }
        let first = self.next_number();
        let bytes = batch.finish(first, 0).map_err(|why| Error::malformed(what, why))?;
        self.number = self.number.wrapping_add(count);
        self.send(&bytes, what)?;
        let deadline = Instant::now() + LIMIT;
        let mut missing = count;
        while missing > 0 {
            let Some(length) = receive(&self.socket, &mut self.buffer, true, deadline, what)? else { break };
            let mut datagram = self.buffer.get(..length).unwrap_or_default();
            while let Some(message) = next_message(&mut datagram).map_err(|why| Error::malformed(what, why))? {
                let at = message.number.wrapping_sub(first);
                if at >= count {
                    continue;
                }
                missing = missing.saturating_sub(1);
                if message.kind != NLMSG_ERROR {
                    each(Answer::Message(message))?;
                    continue;
                }
                let ack = message.ack().map_err(|why| Error::malformed(what, why))?;
                each(Answer::Failure(errno_of(ack.errno)))?;
            }
        }
        Ok(())
    }

    /// Asks for a list. False if it changed while it was read.
    pub(super) fn dump(
        &mut self,
        kind: u16,
        what: &str,
        attributes: impl FnOnce(&mut Batch),
        mut each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<bool> {
        let number = self.next_number();
        let mut batch = Batch::new();
        wire::question(&mut batch, kind, F_DUMP, attributes);
        let bytes = batch.finish(number, 0).map_err(|why| Error::malformed(what, why))?;
        self.send(&bytes, what)?;
        let deadline = Instant::now() + LIMIT;
        let mut whole = true;
        while let Some(length) = receive(&self.socket, &mut self.buffer, true, deadline, what)? {
            let mut datagram = self.buffer.get(..length).unwrap_or_default();
            while let Some(message) = next_message(&mut datagram).map_err(|why| Error::malformed(what, why))? {
                if message.number != number {
                    continue;
                }
                whole &= message.flags & F_DUMP_INTR == 0;
                if message.kind != NLMSG_ERROR && message.kind != NLMSG_DONE {
                    each(&message)?;
                    continue;
                }
                let ack = message.ack().map_err(|why| Error::malformed(what, why))?;
                if ack.errno == 0 {
                    return Ok(whole);
                }
                return match errno_of(ack.errno) {
                    // Something changed so much that it could not go on.
                    Errno::INTR | Errno::AGAIN => Ok(false),
                    errno => Err(Error::Kernel { what: what.to_owned(), errno, said: ack.text.map(str::to_owned) }),
                };
            }
        }
        Ok(false)
    }

    fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    fn send(&mut self, bytes: &[u8], what: &str) -> Result<()> {
        self.drain(what)?;
        let kernel = SocketAddrNetlink::new(0, 0);
        let mut grown = false;
        loop {
            match rustix::net::sendto(&self.socket, bytes, SendFlags::empty(), &kernel) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::MSGSIZE) if !grown => {
                    self.grow(what)?;
                    grown = true;
                }
                Err(errno) => return Err(Error::System { what: what.to_owned(), errno }),
            }
        }
    }

    /// Throws away what is left of an exchange that was given up, and that some of it was lost.
    fn drain(&mut self, what: &str) -> Result<()> {
        let now = Instant::now();
        loop {
            match receive(&self.socket, &mut self.buffer, false, now, what) {
                Ok(Some(_)) | Err(Error::System { errno: Errno::NOBUFS, .. }) => {}
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Lets a datagram be as long as a large table; what it takes is taken only then.
    fn grow(&self, what: &str) -> Result<()> {
        rustix::net::sockopt::set_socket_send_buffer_size_force(&self.socket, SEND_BUFFER).attempt(what)
    }
}

/// An error number of the kernel's; what cannot be one is EIO.
fn errno_of(number: i32) -> Errno {
    if (1..4096).contains(&number) { Errno::from_raw_os_error(number) } else { Errno::IO }
}

/// Waits for a datagram and takes it; None when there is none (by the deadline, if this is not to wait). Only the kernel's are taken.
pub(super) fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
    wait: bool,
    deadline: Instant,
    what: &str,
) -> Result<Option<usize>> {
    loop {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        match rustix::net::recvfrom(socket, &mut *buffer, flags) {
            Ok((_, length, from)) => {
                let kernel =
                    from.and_then(|from| SocketAddrNetlink::try_from(from).ok()).is_some_and(|from| from.pid() == 0);
                if length > buffer.len() {
                    return Err(Error::malformed(what, format!("an answer of {length} bytes")));
                }
                if kernel {
                    return Ok(Some(length));
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if !wait => return Ok(None),
            Err(Errno::AGAIN) => {
                if !readable(socket, deadline, what)? {
                    return Err(Error::TimedOut { what: what.to_owned(), after: LIMIT });
                }
            }
            Err(errno) => return Err(Error::System { what: what.to_owned(), errno }),
        }
    }
}

/// Waits until there is something to receive; false at the deadline.
pub(super) fn readable(socket: &OwnedFd, deadline: Instant, what: &str) -> Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::System { what: what.to_owned(), errno }),
        }
    }
}
