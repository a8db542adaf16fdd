//! An app's stdio: pipes, or a pseudo-terminal from the app's own /dev/pts.

use std::os::fd::{AsFd as _, OwnedFd};

use gantry_model::ErrorKind;
use gantry_model::terminal::DEFAULT_SIZE;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::termios::Winsize;

use crate::app::launcher::Stdio;
use crate::app::{AppInput, OutputSource};
use crate::failure::{Attempt, Result, failure};
use crate::output::logs::{PartialLine, Stream};
use crate::sys;

/// Both ends of an app's stdio.
pub(crate) struct AppStdio {
    /// The app's ends, until its process has them.
    pub(crate) given: Stdio,
    /// The supervisor's ends of pipes; `None` with a terminal.
    pipes: Option<(Vec<OutputSource>, AppInput)>,
}

impl AppStdio {
    /// Pipes: the app's ends, and the supervisor's.
    pub(crate) fn pipes(given: [OwnedFd; 3], sources: Vec<OutputSource>, input: AppInput) -> Self {
        Self { given: Some(given), pipes: Some((sources, input)) }
    }

    /// A terminal, which the app's process makes.
    pub(crate) fn terminal() -> Self {
        Self { given: None, pipes: None }
    }

    /// The supervisor's ends, once the app's process is made. Its terminal gets this size (rows, columns), or
    /// [`DEFAULT_SIZE`].
    pub(crate) fn supervisor_ends(
        self,
        master: Option<OwnedFd>,
        size: Option<(u16, u16)>,
    ) -> Result<(Vec<OutputSource>, AppInput)> {
        match (self.pipes, master) {
            (Some(ends), _) => Ok(ends),
            (None, Some(master)) => {
                let what = || "cannot set up the app's terminal";
                set_size(&master, size.unwrap_or(DEFAULT_SIZE)).attempt(what)?;
                let reader = rustix::io::fcntl_dupfd_cloexec(&master, 0).attempt(what)?;
                // Clients that attach share this flag: they poll before they write.
                rustix::io::ioctl_fionbio(&reader, true).attempt(what)?;
                let peer = Some(sys::terminal_peer(master.as_fd()).attempt(what)?);
                let source = OutputSource { fd: reader, stream: Stream::Stdout, partial: PartialLine::default(), peer };
                Ok((vec![source], AppInput::Terminal(master)))
            }
            (None, None) => Err(failure(ErrorKind::Internal, "an app has neither pipes nor a terminal")),
        }
    }
}

/// Makes these the stdio of this process.
pub(crate) fn set_stdio([stdin, stdout, stderr]: [&OwnedFd; 3]) -> std::io::Result<()> {
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    Ok(rustix::stdio::dup2_stderr(stderr)?)
}

/// The same descriptors, with the app's null device in place of the host's, whose mode and owner the app could change
/// through /proc/self/fd.
pub(crate) fn replace_null<'a>(given: &'a [OwnedFd; 3], null: &'a OwnedFd) -> std::io::Result<[&'a OwnedFd; 3]> {
    let mut own = [null; 3];
    for (own, fd) in own.iter_mut().zip(given) {
        if !is_null(fd)? {
            *own = fd;
        }
    }
    Ok(own)
}

/// Sets the size of a terminal: rows and columns.
pub(crate) fn set_size(master: &OwnedFd, (rows, columns): (u16, u16)) -> rustix::io::Result<()> {
    rustix::termios::tcsetwinsize(master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
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

/// Opens `null` in the /dev of an app before its program is executed. Programs executed in the app get it instead of
/// the host's.
pub(crate) fn open_null(dev: &OwnedFd) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let null = rustix::fs::openat2(dev, "null", flags, Mode::empty(), ResolveFlags::BENEATH)?;
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
