//! Messages with descriptors (`SCM_RIGHTS`, unix(7)).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// How many descriptors go with one message at most; the kernel takes 253.
pub(crate) const AT_A_TIME: usize = 128;

/// A message that came.
pub(crate) struct Received {
    /// How many bytes it has; 0 with no descriptors: nothing comes any more.
    pub(crate) bytes: usize,
    /// What came with it, close-on-exec.
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether it has more bytes than there was room for, and they are lost.
    pub(crate) is_cut: bool,
    /// Whether more descriptors came than are here: than [`AT_A_TIME`], or than this process may have open.
    pub(crate) lacks_fds: bool,
}

/// Sends one message with descriptors; there must be a byte for them to go with.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_A_TIME))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::TOOMANYREFS);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL).map(drop)
}

/// Takes the next message.
pub(crate) fn receive(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> rustix::io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_A_TIME))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let came = rustix::io::retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags))?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some);
        }
    }
    Ok(Received {
        bytes: came.bytes,
        fds,
        is_cut: came.flags.contains(ReturnFlags::TRUNC),
        lacks_fds: came.flags.contains(ReturnFlags::CTRUNC),
    })
}
