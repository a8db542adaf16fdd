//! Messages with descriptors (`SCM_RIGHTS`, unix(7)).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors in one message: the kernel's limit (`SCM_MAX_FD`).
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// A received message.
pub(crate) struct Received {
    /// Its length in bytes. 0 with no descriptors: the end of a stream, or an empty message.
    pub(crate) bytes: usize,
    /// Its descriptors, close-on-exec.
    pub(crate) fds: Vec<OwnedFd>,
    /// Whether bytes or descriptors were lost because the buffer was too small.
    pub(crate) is_truncated: bool,
}

/// Sends one message with descriptors. The kernel requires at least one byte with them.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::TOOMANYREFS);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL).map(drop)
}

/// Receives the next message. `EMFILE`: it had more descriptors than this process may open; the message is lost.
pub(crate) fn receive(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> rustix::io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::io::retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags))?;
    let mut fds = Vec::new();
    for ancillary_message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = ancillary_message {
            fds.extend(descriptors);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) && fds.len() < MAX_DESCRIPTORS {
        return Err(rustix::io::Errno::MFILE);
    }
    let is_truncated = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Received { bytes: message.bytes, fds, is_truncated })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn truncation_is_reported() {
        let (one, two) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let fd = std::fs::File::open("/dev/null").unwrap();
        for (text, count, is_truncated) in
            [("four", 0, false), ("four", 3, false), ("four", MAX_DESCRIPTORS, false), ("seventy", 1, true)]
        {
            send(&one, text.as_bytes(), &vec![fd.as_fd(); count], SendFlags::empty()).unwrap();
            let mut bytes = [0; 4];
            let received = receive(&two, &mut bytes, RecvFlags::empty()).unwrap();
            assert_eq!(
                (received.fds.len(), received.is_truncated, &bytes[..received.bytes]),
                (count, is_truncated, &text.as_bytes()[..4])
            );
        }
        let more = vec![fd.as_fd(); MAX_DESCRIPTORS + 10];
        assert_eq!(send(&one, b"x", &more, SendFlags::empty()).unwrap_err(), rustix::io::Errno::TOOMANYREFS);
        drop(one);
        let end = receive(&two, &mut [0; 4], RecvFlags::empty()).unwrap();
        assert_eq!((end.bytes, end.fds.len()), (0, 0));
    }

    /// Runs in a process of its own, because the limit applies to the whole test program.
    #[test]
    fn descriptor_exhaustion_is_an_error() {
        let here = "passing::tests::descriptor_exhaustion_is_an_error";
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
        let error = receive(&two, &mut [0; 4], RecvFlags::empty()).map(|received| received.bytes).unwrap_err();
        assert_eq!(error, rustix::io::Errno::MFILE);
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(open < 45, "the received descriptors were closed: {open}");
    }
}
