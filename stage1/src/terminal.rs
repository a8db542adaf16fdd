//! An app's stdio: pipes, or a pseudo-terminal from the app's own /dev/pts.

use std::os::fd::OwnedFd;

use gantry_model::ErrorKind;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use rustix::termios::Winsize;

use crate::app::{AppInput, OutputSource};
use crate::failure::{Attempt, Result, failure};
use crate::logs::{PartialLine, Stream};
use crate::passing;

/// Both ends of an app's stdio.
pub(crate) struct AppStdio {
    /// The app's stdin, stdout and stderr; `None` with a terminal.
    pub(crate) given: Option<(OwnedFd, OwnedFd, OwnedFd)>,
    pipes: Option<(Vec<OutputSource>, AppInput)>,
    console: Option<(String, OwnedFd)>,
}

impl AppStdio {
    /// Pipes: the app's ends, and the supervisor's.
    pub(crate) fn pipes(given: (OwnedFd, OwnedFd, OwnedFd), sources: Vec<OutputSource>, input: AppInput) -> Self {
        Self { given: Some(given), pipes: Some((sources, input)), console: None }
    }

    /// A terminal, with the socket that libcontainer will send its master to.
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

    /// The path of the socket that libcontainer sends the master to.
    pub(crate) fn console_path(&self) -> Option<String> {
        self.console.as_ref().map(|(path, _)| path.clone())
    }

    /// The supervisor's ends, after libcontainer has made the container and before the app is executed. A terminal gets
    /// this size (rows, columns).
    pub(crate) fn supervisor_ends(self, size: Option<(u16, u16)>) -> Result<(Vec<OutputSource>, AppInput)> {
        match (self.pipes, self.console) {
            (Some(ends), _) => Ok(ends),
            (None, Some((path, listener))) => {
                let master = receive_master(&listener)?;
                // It is on the supervisor's tmpfs, which ends with the pod.
                let _best_effort = rustix::fs::unlink(&path);
                let what = || "cannot set up the app's terminal";
                if let Some(size) = size {
                    set_size(&master, size).attempt(what)?;
                }
                let reader = rustix::io::dup(&master).attempt(what)?;
                // Clients that attach share this flag: they poll before they write.
                rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK).attempt(what)?;
                let source = OutputSource { fd: reader, stream: Stream::Stdout, partial: PartialLine::default() };
                Ok((vec![source], AppInput::Terminal(master)))
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

/// Changes the owner of a pipe to this user. A FIFO, which is a file of the host, keeps its owner.
pub(crate) fn give_pipe_to(end: &OwnedFd, uid: u32) -> std::io::Result<()> {
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

/// Opens `/dev/null` of an app that waits for its execve. Programs executed in the app get it instead of the host's,
/// whose mode and owner they could change through /proc/self/fd.
pub(crate) fn open_null(app: Pid) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(format!("/proc/{}/root", app.as_raw_nonzero()), flags, Mode::empty())?;
    // A volume may have any kind of file there: no link is followed, and a FIFO does not block.
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let null = rustix::fs::openat2(&root, "dev/null", flags, Mode::empty(), resolve)?;
    if is_null(&null)? { Ok(null) } else { Err(std::io::Error::other("it is not the null device")) }
}

/// Opens the master of a new pseudo-terminal from inside an app's root. The file system must be devpts: an app could
/// put another file in its place.
pub(crate) fn open_master() -> std::io::Result<OwnedFd> {
    const DEVPTS: u64 = 0x1cd1;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let master = rustix::fs::openat(CWD, "/dev/pts/ptmx", flags, Mode::empty())?;
    if u64::try_from(rustix::fs::fstatfs(&master)?.f_type) != Ok(DEVPTS) {
        return Err(std::io::Error::other("/dev/pts of the app is not a devpts file system"));
    }
    Ok(master)
}
