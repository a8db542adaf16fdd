//! Both ends of an app's stdio: pipes, or a pseudo-terminal of the app's own /dev/pts.

use std::os::fd::OwnedFd;

use gantry_model::ErrorKind;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use rustix::termios::Winsize;

use crate::app::{Input, Source};
use crate::failure::{Attempt, Result, failure};
use crate::logs::{Pending, Stream};
use crate::passing;

/// The ends before and after libcontainer took the app's.
pub(crate) struct Ends {
    /// What the app is given; `None` with a terminal.
    pub(crate) given: Option<(OwnedFd, OwnedFd, OwnedFd)>,
    pipes: Option<(Vec<Source>, Input)>,
    console: Option<(String, OwnedFd)>,
}

impl Ends {
    /// Pipes: the app's three, and ours.
    pub(crate) fn pipes(given: (OwnedFd, OwnedFd, OwnedFd), sources: Vec<Source>, input: Input) -> Self {
        Self { given: Some(given), pipes: Some((sources, input)), console: None }
    }

    /// A socket to which libcontainer will send the master of the app's terminal.
    pub(crate) fn terminal(app: &str) -> Result<Self> {
        let what = || "cannot make the console socket";
        let path = format!("/bundles/{app}/console");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).attempt(what)?;
        let address = SocketAddrUnix::new(path.as_str()).attempt(what)?;
        rustix::net::bind(&listener, &address).attempt(what)?;
        rustix::net::listen(&listener, 1).attempt(what)?;
        Ok(Self { given: None, pipes: None, console: Some((path, listener)) })
    }

    /// Where libcontainer sends the master.
    pub(crate) fn console_path(&self) -> Option<String> {
        self.console.as_ref().map(|(path, _)| path.clone())
    }

    /// Our ends, once libcontainer has made the container and before the app starts; a terminal gets this size.
    pub(crate) fn ours(self, size: Option<(u16, u16)>) -> Result<(Vec<Source>, Input)> {
        match (self.pipes, self.console) {
            (Some(ours), _) => Ok(ours),
            (None, Some((path, listener))) => {
                let master = receive_master(&listener)?;
                let _ = rustix::fs::unlink(&path);
                let what = || "cannot set up the app's terminal";
                if let Some(size) = size {
                    set_size(&master, size).attempt(what)?;
                }
                let reader = rustix::io::dup(&master).attempt(what)?;
                // Shared with whoever attaches: they poll before they write.
                rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK).attempt(what)?;
                let source = Source { fd: reader, stream: Stream::Stdout, pending: Pending::default() };
                Ok((vec![source], Input::Terminal(master)))
            }
            (None, None) => Err(failure(ErrorKind::Internal, "an app has neither pipes nor a terminal")),
        }
    }
}

/// Sets the size of a terminal: rows and columns.
pub(crate) fn set_size(master: &OwnedFd, (rows, columns): (u16, u16)) -> rustix::io::Result<()> {
    rustix::termios::tcsetwinsize(master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
}

fn receive_master(listener: &OwnedFd) -> Result<OwnedFd> {
    let what = || "cannot receive the app's terminal";
    let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC).attempt(what)?;
    let received = passing::receive(&socket, &mut [0; 64], RecvFlags::empty()).attempt(what)?;
    received.fds.into_iter().next().ok_or_else(|| failure(ErrorKind::Internal, "libcontainer sent no terminal"))
}

/// Makes a pipe the user's. Only a pipe without a name: a FIFO of the host stays whose it is.
pub(crate) fn give(end: &OwnedFd, uid: u32) -> std::io::Result<()> {
    const PIPEFS: u64 = 0x5049_5045;
    if u64::try_from(rustix::fs::fstatfs(end)?.f_type) == Ok(PIPEFS) {
        rustix::fs::fchown(end, Some(rustix::fs::Uid::from_raw(uid)), None)?;
    }
    Ok(())
}

/// Whether this is the null device.
pub(crate) fn is_null(fd: &OwnedFd) -> std::io::Result<bool> {
    let stat = rustix::fs::fstat(fd)?;
    let device = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice;
    Ok(device && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (1, 3))
}

/// Opens `/dev/null` of an app that waits for its start. Programs executed in the app get it in place of the host's: through
/// /proc/self/fd they could change the mode and the owner of that one, for everybody.
pub(crate) fn open_null(app: Pid) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(format!("/proc/{}/root", app.as_raw_nonzero()), flags, Mode::empty())?;
    // Neither followed nor waited for: a volume may have put anything there.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let null = rustix::fs::openat2(&root, "dev/null", flags, Mode::empty(), resolve)?;
    if is_null(&null)? { Ok(null) } else { Err(std::io::Error::other("it is not the null device")) }
}

/// Opens a new pseudo-terminal from inside an app's root: its master. Only devpts itself is trusted to make one.
pub(crate) fn open_master() -> std::io::Result<OwnedFd> {
    const DEVPTS: u64 = 0x1cd1;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let master = rustix::fs::openat(CWD, "/dev/pts/ptmx", flags, Mode::empty())?;
    if u64::try_from(rustix::fs::fstatfs(&master)?.f_type) != Ok(DEVPTS) {
        return Err(std::io::Error::other("/dev/pts of the app is not a devpts file system"));
    }
    Ok(master)
}
