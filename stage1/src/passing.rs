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
    /// How many bytes it has; 0 with no descriptors: nothing comes any more, or an empty message.
    pub(crate) bytes: usize,
    /// What came with it, close-on-exec.
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether it had more than there was room for, bytes or descriptors, and that is lost.
    pub(crate) is_cut: bool,
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

/// Takes the next message. `EMFILE`: it came with more descriptors than this process may have open; it is lost, and they are.
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
    if came.flags.contains(ReturnFlags::CTRUNC) && fds.len() < AT_A_TIME {
        return Err(rustix::io::Errno::MFILE);
    }
    Ok(Received { bytes: came.bytes, fds, is_cut: came.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn what_does_not_fit_is_told() {
        let (one, two) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let fd = std::fs::File::open("/dev/null").unwrap();
        for (said, count, is_cut) in
            [("four", 0, false), ("four", 3, false), ("four", AT_A_TIME, false), ("seventy", 1, true)]
        {
            send(&one, said.as_bytes(), &vec![fd.as_fd(); count], SendFlags::empty()).unwrap();
            let mut bytes = [0; 4];
            let came = receive(&two, &mut bytes, RecvFlags::empty()).unwrap();
            assert_eq!((came.fds.len(), came.is_cut, &bytes[..came.bytes]), (count, is_cut, &said.as_bytes()[..4]));
        }
        let more = vec![fd.as_fd(); AT_A_TIME + 10];
        assert_eq!(send(&one, b"x", &more, SendFlags::empty()).unwrap_err(), rustix::io::Errno::TOOMANYREFS);
        drop(one);
        let end = receive(&two, &mut [0; 4], RecvFlags::empty()).unwrap();
        assert_eq!((end.bytes, end.fds.len()), (0, 0));
    }

    /// In a process of its own: the limit is the whole test program's.
    #[test]
    fn no_descriptor_left_is_an_error() {
        let here = "passing::tests::no_descriptor_left_is_an_error";
        if std::env::var_os("GANTRY_TEST_LIMIT").is_none() {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let output = again.args(["--exact", here]).env("GANTRY_TEST_LIMIT", "1").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        let (one, two) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let fd = std::fs::File::open("/dev/null").unwrap();
        send(&one, b"x", &[fd.as_fd(); 100], SendFlags::empty()).unwrap();
        let limit = rustix::process::Rlimit { current: Some(50), maximum: Some(50) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let error = receive(&two, &mut [0; 4], RecvFlags::empty()).map(|came| came.bytes).unwrap_err();
        assert_eq!(error, rustix::io::Errno::MFILE);
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(open < 45, "what came of it was let go of: {open}");
    }
}
