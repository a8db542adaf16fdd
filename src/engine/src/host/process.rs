//! Processes identified by pid, start time and boot; waiting with a deadline.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use gantry_model::{BootId, Process, Timestamp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often the exit of a child is polled for which no pidfd could be opened.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The time that the kernel has to end a killed child.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A deadline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// `None`: never.
    at: Option<Instant>,
    /// How long it was away when it was set.
    duration: Duration,
}

impl Deadline {
    /// No deadline.
    pub(crate) const NEVER: Self = Self { at: None, duration: Duration::MAX };

    /// This long from now; never, where the clock cannot represent it.
    pub(crate) fn after(duration: Duration) -> Self {
        Self { at: Instant::now().checked_add(duration), duration }
    }

    /// How long the deadline was away when it was set, for a message.
    pub(crate) fn duration(self) -> Duration {
        self.duration
    }

    /// The time left; `None`: unlimited.
    pub(crate) fn left(self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether it has passed.
    pub(crate) fn passed(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// The earlier of this and `duration` from now.
    pub(crate) fn at_most(self, duration: Duration) -> Self {
        let other = Self::after(duration);
        match (self.at, other.at) {
            (Some(a), Some(b)) if a > b => other,
            (Some(_), _) => self,
            (None, _) => other,
        }
    }
}

/// `None` is never.
impl From<Option<Duration>> for Deadline {
    fn from(duration: Option<Duration>) -> Self {
        duration.map_or(Self::NEVER, Self::after)
    }
}

/// Waits until one of the descriptors is readable or at end of file. Returns which one, or `None` when the deadline
/// passed.
pub(crate) fn readable(fds: &[BorrowedFd<'_>], deadline: Deadline) -> io::Result<Option<usize>> {
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = deadline.left();
        // A time left that a Timespec cannot represent is as good as unlimited.
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) if left.is_some() => return Ok(None),
            Ok(_) => {
                if let Some(at) = polled.iter().position(|fd| !fd.revents().is_empty()) {
                    return Ok(Some(at));
                }
            }
        }
    }
}

/// Waits until a child has exited, and reaps it. False: it still runs at the deadline.
pub(crate) fn wait_for_exit(child: &mut Child, deadline: Deadline) -> bool {
    let pidfd = open_pid(child.id()).ok();
    loop {
        match child.try_wait() {
            Ok(None) if !deadline.passed() => {}
            Ok(None) => return false,
            // An error means that the kernel has reaped it.
            Ok(Some(_)) | Err(_) => return true,
        }
        let polled = pidfd.as_ref().map(|pidfd| readable(&[pidfd.as_fd()], deadline));
        if !matches!(polled, Some(Ok(_))) {
            // No descriptor or no memory is left.
            std::thread::sleep(EXIT_POLL_INTERVAL);
        }
    }
}

/// Makes sure that a child has ended, and reaps it: waits `patience` for it to exit by itself, then kills it. One that
/// the kernel cannot end in time was killed, and executes nothing any more.
pub(crate) fn end_child(child: &mut Child, patience: Duration) {
    if !wait_for_exit(child, Deadline::after(patience)) {
        let _ended_already = child.kill();
        let _reaped_or_still_exiting = wait_for_exit(child, Deadline::after(KILL_TIMEOUT));
    }
}

/// A pidfd of this very process; `None`: it is gone (its pid may be reused).
///
/// The order makes it safe: the pidfd is opened first, then the start time is read. If the pid was reused in between,
/// the start time is that of the other process and does not match.
///
/// # Errors
/// Of pidfd_open(2) and of reading `/proc/PID/stat`: the limit of descriptors is reached, for example. Then the process
/// may live.
pub(crate) fn open(process: &Process, boot: &BootId) -> io::Result<Option<OwnedFd>> {
    if process.boot != *boot {
        return Ok(None);
    }
    let Some(fd) = found(open_pid(process.pid))? else { return Ok(None) };
    Ok((start_ticks(process.pid)? == Some(process.start_ticks)).then_some(fd))
}

/// The result of opening or reading a process; `None`: no process has this pid. pidfd_open(2) then fails with ESRCH, or
/// for the id of a thread with EINVAL or ENOENT; `/proc` with ENOENT or ESRCH.
pub(crate) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::SRCH | Errno::NOENT | Errno::INVAL) => Ok(None),
            _ => Err(error),
        },
    }
}

/// A pidfd of the process that has this pid now: safe for children that were not waited for yet.
///
/// # Errors
/// Of pidfd_open(2); ESRCH for a number that is no pid.
pub(crate) fn open_pid(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Sends SIGKILL. A process that has ended is no failure.
pub(crate) fn kill(pidfd: impl AsFd) -> io::Result<()> {
    match pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether this very process of this boot runs and has not begun to exit, from one read of `/proc/PID/stat`. While it
/// is true, the process has all its descriptors open, and so holds its locks: an exiting process closes them after the
/// kernel has set the flag. False if that cannot be read.
pub(crate) fn is_running(pid: u32, start_ticks: u64) -> bool {
    read_stat(pid).is_ok_and(|stat| stat.is_some_and(|stat| is_running_since(&stat, start_ticks)))
}

/// Whether this file has a record lock (fcntl(2)) that the process with this pid holds: then it lives, because the
/// kernel releases such a lock when its process exits, and no child inherits it. Asking takes no lock.
pub(crate) fn holds_record_lock(pid: u32, file: impl AsFd) -> bool {
    record_lock_holder(file) == Some(pid)
}

/// The process that has a record lock on this file.
fn record_lock_holder(file: impl AsFd) -> Option<u32> {
    let held = rustix::process::fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok().flatten();
    held.and_then(|lock| lock.pid).and_then(|pid| u32::try_from(pid.as_raw_pid()).ok())
}

/// A process that SIGSTOP or a debugger has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoppedProcess {
    /// Its PID.
    pub pid: u32,
}

/// Written after the process was named.
impl fmt::Display for StoppedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is stopped (SIGSTOP, or a debugger): continue it with 'kill -CONT {}'", self.pid)
    }
}

/// The process that has a record lock on this file, if it is stopped now.
pub(crate) fn stopped_lock_holder(file: impl AsFd) -> Option<StoppedProcess> {
    let pid = record_lock_holder(&file)?;
    let stopped = stopped(pid)?;
    // It lives while it has the lock: no other process had its pid.
    (record_lock_holder(&file) == Some(pid)).then_some(stopped)
}

/// The process that has this pid now, if it is stopped. `None` also if that cannot be read.
pub(crate) fn stopped(pid: u32) -> Option<StoppedProcess> {
    let stat = read_stat(pid).ok()??;
    // proc_pid_stat(5): t, of a debugger.
    matches!(state(&stat), Some("T" | "t")).then_some(StoppedProcess { pid })
}

/// The state in a text of `/proc/PID/stat`, its third field.
fn state(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().next()
}

/// Whether a text of `/proc/PID/stat` is of a process that runs and was started at this time.
fn is_running_since(stat: &str, ticks: u64) -> bool {
    let is_zombie = state(stat).is_none_or(|state| matches!(state, "Z" | "X"));
    let is_exiting = gantry_contract::is_exiting(stat) != Some(false);
    !is_zombie && !is_exiting && gantry_contract::start_ticks(stat) == Some(ticks)
}

/// The text of `/proc/PID/stat`; `None`: no process has this pid.
///
/// # Errors
/// Of open(2) and read(2).
pub(crate) fn read_stat(pid: u32) -> io::Result<Option<String>> {
    /// The kernel writes 52 numbers and a name of at most 64 characters.
    const MAX_STAT: usize = 2048;
    let path = format!("/proc/{pid}/stat");
    let mut buffer = [0; MAX_STAT];
    let read = rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        // The kernel formats the whole text for one read.
        .and_then(|file| rustix::io::read(&file, &mut buffer[..]));
    let length = found(read.map_err(io::Error::from))?;
    Ok(length.and_then(|length| buffer.get(..length)).map(|stat| String::from_utf8_lossy(stat).into_owned()))
}

/// The start time of a process in clock ticks since boot (proc_pid_stat(5), field 22).
fn start_ticks(pid: u32) -> io::Result<Option<u64>> {
    Ok(read_stat(pid)?.and_then(|stat| gantry_contract::start_ticks(&stat)))
}

/// The approximate time of this boot, by the present wall clock.
pub(crate) fn booted_at() -> Timestamp {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up = Duration::new(u64::try_from(up.tv_sec).unwrap_or(0), u32::try_from(up.tv_nsec).unwrap_or(0));
    gantry_store::now().before(up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_identified_by_start_time() {
        let boot = BootId("this".to_owned());
        let pid = std::process::id();
        let start_ticks = start_ticks(pid).unwrap().unwrap();
        let me = Process { pid, start_ticks, boot: boot.clone() };
        assert!(open(&me, &boot).unwrap().is_some());
        assert!(open(&Process { start_ticks: start_ticks + 1, ..me.clone() }, &boot).unwrap().is_none());
        assert!(open(&me, &BootId("another".to_owned())).unwrap().is_none());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(open(&Process { pid: child.id(), ..me }, &boot).unwrap().is_none());
    }

    #[test]
    fn a_thread_is_no_process() {
        let (send, receive) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ended = wait.recv();
        });
        let pid = u32::try_from(receive.recv().unwrap()).unwrap();
        let boot = BootId("this".to_owned());
        let start_ticks = start_ticks(pid).unwrap().unwrap();
        assert!(open(&Process { pid, start_ticks, boot: boot.clone() }, &boot).unwrap().is_none());
        drop(done);
        thread.join().unwrap();
    }

    /// In a process of its own, because other tests need descriptors.
    #[test]
    fn without_descriptors_no_process_is_gone() {
        const ALONE: &str = "GANTRY_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(ALONE).is_none() {
            let name = "host::process::tests::without_descriptors_no_process_is_gone";
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
            return;
        }
        let boot = BootId("this".to_owned());
        let pid = std::process::id();
        let me = Process { pid, start_ticks: start_ticks(pid).unwrap().unwrap(), boot: boot.clone() };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let mut open_files = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            open_files.push(file);
        }
        let is_refused = || open(&me, &boot).is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::MFILE));
        assert!(is_refused(), "no descriptor for the process");
        assert!(!wait_for_exit(&mut child, Deadline::after(EXIT_POLL_INTERVAL)));
        child.kill().unwrap();
        assert!(wait_for_exit(&mut child, Deadline::after(Duration::from_secs(60))));
        open_files.pop();
        assert!(is_refused(), "no descriptor for its start time");
        open_files.pop();
        assert!(open(&me, &boot).unwrap().is_some());
    }

    #[test]
    fn a_process_that_exits_does_not_run() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let ticks = start_ticks(pid).unwrap().unwrap();
        assert!(is_running(pid, ticks));
        assert!(!is_running(pid, ticks + 1));
        child.kill().unwrap();
        readable(&[open_pid(pid).unwrap().as_fd()], Deadline::NEVER).unwrap();
        assert!(!is_running(pid, ticks), "a zombie runs");
        child.wait().unwrap();
        assert!(!is_running(pid, ticks));
        let stat = |state: &str, flags: u32| {
            format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 299 62 0 0 0 0 0 0 20 0 1 0 55 7235856 1669\n")
        };
        assert!(is_running_since(&stat("S", 4_194_560), 55));
        assert!(!is_running_since(&stat("S", 4_194_564), 55), "it exits");
        assert!(!is_running_since("", 0) && !is_running_since("7 (a) S", 0));
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        let soon = Deadline::after(Duration::from_millis(5));
        assert_eq!(readable(&[reading.as_fd()], soon).unwrap(), None);
        rustix::io::write(&writing, b"x").unwrap();
        assert_eq!(readable(&[reading.as_fd()], Deadline::NEVER).unwrap(), Some(0));
    }
}
