//! An app of a running pod: what it was made with, its main process, its output.

pub(crate) mod confine;
pub(crate) mod creation;
pub(crate) mod exec;
pub(crate) mod first_apps;
pub(crate) mod launcher;
pub(crate) mod maker;
pub(crate) mod own_namespaces;
pub(crate) mod probe;
pub(crate) mod program;
pub(crate) mod refusal;
pub(crate) mod removal;
pub(crate) mod terminal;
pub(crate) mod ulimits;
pub(crate) mod user;

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::ProcessExit;
use gantry_contract::plan;
use gantry_contract::start::Started;
use gantry_model::namespaces::PidMode;
use rustix::thread::CapabilitySet;

use crate::app::confine::Confinement;
use crate::app::launcher::WaitingProcess;
use crate::app::user::Ids;
use crate::cgroup::AppCgroup;
use crate::cgroup::devices::Device;
use crate::cgroup::oom::OomTracker;
use crate::health::AppHealth;
use crate::journal::now;
use crate::notify::NotifySocket;
use crate::output::foreground::Foregrounds;
use crate::output::logs::{Log, PartialLine, Stream};
use crate::output::pace::Pace;
use crate::supervise::Restarts;
use crate::table::{Table, Token};

/// Time after which the beginning of a line is written to the log as a record of its own.
const PARTIAL_LINE_DELAY: Duration = Duration::from_millis(200);

/// Maximum number of reads from one output before other events are handled.
const MAX_READS: usize = 16;

/// Maximum read from an app with a CPU limit, in bytes: a few lines may use up its share.
const MAX_LIMITED_READ: usize = 8 << 10;

/// Time after which reading from one output ends, so that other events are handled. Bytes do not bound it: a buffer of
/// empty lines becomes as many records, and a slow or busy host takes seconds for what takes milliseconds elsewhere.
const READ_TIME_LIMIT: Duration = Duration::from_millis(5);

/// Minimum size of a read, in bytes.
const MIN_READ: usize = 4 << 10;

/// Maximum size of a read, in bytes: that of the buffer and of a pipe.
pub(crate) const MAX_READ: usize = 64 << 10;

/// An app of the pod.
pub(crate) struct App {
    /// Its part of the plan; `attempt` is that of the log.
    pub(crate) plan: plan::App,
    /// Its root, as mounted in the supervisor's tree (without the volumes).
    pub(crate) root: OwnedFd,
    /// The `/dev/null` of its process, opened before its program was executed: the app may replace the file later.
    pub(crate) null: Option<OwnedFd>,
    /// Its user, groups and home directory.
    pub(crate) ids: Ids,
    /// Its capabilities and system call filters.
    pub(crate) confinement: Confinement,
    /// The devices of the host that it gets.
    pub(crate) devices: Vec<Device>,
    /// Its cgroups.
    pub(crate) cgroup: AppCgroup,
    /// A process that is locked down and waits for its execve.
    pub(crate) waiting: Option<WaitingProcess>,
    /// The pidfd of its main process until that was reaped.
    pub(crate) running: Option<OwnedFd>,
    /// Whether its processes are frozen on request, or about to be.
    pub(crate) is_paused: bool,
    /// The last start. Its PID is for display only: it may be reused after the exit.
    pub(crate) started: Option<Started>,
    /// The exit of the main process of that start.
    pub(crate) exit: Option<ProcessExit>,
    /// Its output.
    pub(crate) output: AppOutput,
    /// The supervisor's end of its stdin, for clients that attach.
    pub(crate) input: AppInput,
    /// How many of its processes the OOM killer had killed before the last start.
    pub(crate) oom_kills_before: u64,
    /// The request to stop it, until its main process has exited.
    pub(crate) stop: Option<StopRequest>,
    /// Its restarts by its policy.
    pub(crate) restarts: Restarts,
    /// The operation on it that is under way.
    pub(crate) operation: Option<Operation>,
    /// Its notification socket, if it has one.
    pub(crate) notify: Option<NotifySocket>,
    /// The volumes that were added to the pod with it.
    pub(crate) volumes: Vec<String>,
    /// The kills of its processes by the OOM killer.
    pub(crate) oom: OomTracker,
    /// Its health, if it has a health check.
    pub(crate) health: Option<Box<AppHealth>>,
    /// The initial size of its terminal (rows, columns).
    pub(crate) terminal_size: Option<(u16, u16)>,
}

/// What demands that an app is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A client.
    Request,
    /// Its health check.
    Health,
}

/// A request to stop an app.
pub(crate) struct StopRequest {
    /// Its cause. A client decides over the health check, also later.
    pub(crate) cause: StopCause,
    /// When its processes are killed; `None`: they were.
    pub(crate) kill_at: Option<Instant>,
    /// The clients that wait for its exit.
    pub(crate) clients: Vec<OwnedFd>,
    /// The start that follows the exit.
    pub(crate) restart: Option<StartRequest>,
}

impl StopRequest {
    /// Whether the app is restarted because it is unhealthy: after the back-off of its restart policy.
    pub(crate) fn restarts_unhealthy(&self) -> bool {
        self.cause == StopCause::Health && self.restart.is_some()
    }
}

/// A request to start an app.
pub(crate) struct StartRequest {
    /// The number of the start.
    pub(crate) attempt: u32,
    /// The client that waits for it; `None`: the restart policy starts it.
    pub(crate) client: Option<OwnedFd>,
}

/// An operation that takes time. An app has at most one.
pub(crate) enum Operation {
    /// The processes that the last start left behind are being killed, and their output is read.
    Clear {
        /// When the operation fails.
        deadline: Instant,
        /// The operation that follows.
        then: NextOperation,
    },
    /// A process is being made for a start.
    Create,
    /// The process was allowed to execute the program.
    Execute {
        /// When the operation fails.
        deadline: Instant,
        /// The request.
        start: StartRequest,
    },
}

/// The operation that follows the end of an app's last processes.
pub(crate) enum NextOperation {
    /// A process is made and executes the program.
    Start(StartRequest),
    /// The app is removed; a client waits for it.
    Remove(OwnedFd),
}

/// The supervisor's end of an app's stdin.
pub(crate) enum AppInput {
    /// The app has /dev/null.
    None,
    /// The writing end of a pipe, until a client takes it.
    Pipe(Option<OwnedFd>),
    /// The master of its terminal.
    Terminal(OwnedFd),
}

/// The output of an app: standard output and error, or a terminal.
pub(crate) struct AppOutput {
    /// The app's number in the output protocol.
    pub(crate) app_number: u16,
    /// The log file.
    pub(crate) log: Log,
    /// The outputs that have not ended.
    pub(crate) sources: Table<OutputSource>,
    /// Whether the beginning of a line is written to the log at once.
    eager: bool,
    /// When the beginnings of incomplete lines are written to the log.
    pub(crate) flush_at: Option<Instant>,
    /// Limits the supervisor's CPU time for this output to the app's limit.
    pub(crate) pace: Pace,
    /// The size of reads.
    read_size: ReadSize,
}

/// The size of reads from an app's outputs: as large as the host can process well within [`READ_TIME_LIMIT`].
#[derive(Debug)]
struct ReadSize(usize);

impl Default for ReadSize {
    fn default() -> Self {
        Self(MAX_READ / 4)
    }
}

impl ReadSize {
    /// Adapts it to a read of `length` bytes that took this time to process.
    fn adapt(&mut self, length: usize, took: Duration) {
        if took > READ_TIME_LIMIT {
            self.0 = (self.0 / 2).max(MIN_READ);
        } else if length >= self.0 && took < READ_TIME_LIMIT / 4 {
            self.0 = (self.0 * 2).min(MAX_READ);
        }
    }
}

/// One output of an app.
pub(crate) struct OutputSource {
    /// The reading end, non-blocking.
    pub(crate) fd: OwnedFd,
    /// Standard output or error.
    pub(crate) stream: Stream,
    /// The beginning of a line without its newline.
    pub(crate) partial: PartialLine,
    /// The slave end of a terminal, until the main process exits. Without it, the master would report the end of the
    /// output whenever no process has the terminal open.
    pub(crate) peer: Option<OwnedFd>,
}

impl AppOutput {
    /// The output of an app without a process.
    fn new(app: &plan::App, app_number: u16, log: Log, now: Instant) -> Self {
        Self {
            app_number,
            log,
            sources: Table::default(),
            eager: app.options.terminal || app.options.stdin,
            flush_at: None,
            pace: Pace::new(app.options.limits.cpu_limit_milli(), now),
            read_size: ReadSize::default(),
        }
    }

    /// Reads available output for the foregrounds and the log; returns whether the output has ended. It stops after
    /// [`MAX_READS`] reads or [`READ_TIME_LIMIT`], so that an app that writes without pause does not starve other
    /// events, and as soon as a foreground is blocked.
    pub(crate) fn pump(
        &mut self,
        token: Token<OutputSource>,
        foregrounds: &mut Foregrounds,
        buffer: &mut [u8],
    ) -> bool {
        let (reads, max_size) = if self.pace.is_limited() { (1, MAX_LIMITED_READ) } else { (MAX_READS, MAX_READ) };
        let deadline = Instant::now() + READ_TIME_LIMIT;
        let Some(source) = self.sources.get_mut(token) else { return true };
        let (mut has_ended, mut is_empty) = (false, false);
        for _ in 0..reads {
            if foregrounds.blocks_app(self.app_number) {
                break;
            }
            let begin = Instant::now();
            if begin >= deadline {
                break;
            }
            let size = self.read_size.0.min(max_size).min(buffer.len());
            match rustix::io::read(&source.fd, &mut buffer[..size]) {
                // The master of a terminal that no process has open reports EIO.
                Ok(0) | Err(rustix::io::Errno::IO) => {
                    self.log.end(source.stream, &mut source.partial, now());
                    has_ended = true;
                    break;
                }
                Ok(n) => {
                    foregrounds.send(self.app_number, source.stream, &buffer[..n]);
                    self.log.append(source.stream, &mut source.partial, &buffer[..n], now(), self.eager);
                    self.read_size.adapt(n, begin.elapsed());
                }
                Err(rustix::io::Errno::INTR) => {}
                // The output is empty for now.
                Err(_) => {
                    is_empty = true;
                    break;
                }
            }
        }
        self.log.flush();
        if is_empty {
            self.log.release_buffer();
        }
        self.flush_at = match self.sources.values().any(|source| source.partial.is_pending()) {
            true => self.flush_at.or_else(|| Some(Instant::now() + PARTIAL_LINE_DELAY)),
            false => None,
        };
        has_ended
    }

    /// Writes overdue beginnings of lines to the log: its readers see prompts and progress.
    pub(crate) fn flush_late_lines(&mut self, now_at: Instant) {
        if self.flush_at.is_some_and(|flush_at| flush_at <= now_at) {
            self.flush_at = None;
            for source in self.sources.values_mut() {
                self.log.write(source.stream, &mut source.partial, &[], now(), true);
            }
        }
    }

    /// Closes the slave ends of terminals: their output ends with the processes that have them open.
    pub(crate) fn release_terminals(&mut self) {
        for source in self.sources.values_mut() {
            source.peer = None;
        }
    }

    /// Whether output can be read, or has ended and this was not noticed yet.
    pub(crate) fn is_readable(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let sources = self.sources.values().map(|source| PollFd::new(&source.fd, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = sources.collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // After an error nothing is known to be readable.
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Reads available output and closes every source. Called when their writers have ended or hang in the kernel.
    pub(crate) fn close(&mut self, foregrounds: &mut Foregrounds, buffer: &mut [u8]) {
        for token in self.sources.tokens() {
            self.pump(token, foregrounds, buffer);
            if let Some(source) = self.sources.get_mut(token) {
                // Output that a blocked foreground does not read any more is at least in the log.
                read_rest(&source.fd, buffer, |bytes| {
                    self.log.write(source.stream, &mut source.partial, bytes, now(), self.eager);
                });
                self.log.end(source.stream, &mut source.partial, now());
            }
        }
        self.sources.clear();
    }
}

/// Reads what an output holds now. A process outside the app may still write to it: another app may have opened it in
/// /proc, or received it through a socket.
fn read_rest(output: &OwnedFd, buffer: &mut [u8], mut take: impl FnMut(&[u8])) {
    let held = rustix::io::ioctl_fionread(output).map_or(0, |held| usize::try_from(held).unwrap_or(usize::MAX));
    // A terminal does not count what was written but not processed yet.
    let mut left = held.max(MAX_READ);
    while left > 0 {
        let size = left.min(buffer.len());
        let Ok(length @ 1..) = rustix::io::retry_on_intr(|| rustix::io::read(output, &mut buffer[..size])) else {
            return;
        };
        take(&buffer[..length]);
        left -= length;
    }
}

impl App {
    /// Whether processes of it may be in the PID namespace of the host.
    pub(crate) fn may_outlive_init(&self) -> bool {
        self.confinement.namespaces.pid == PidMode::Host || self.plan.options.pid_target.is_some()
    }

    /// Whether it may trace processes of other apps, and has any process.
    pub(crate) fn is_tracer(&self) -> bool {
        self.confinement.capabilities.contains(CapabilitySet::SYS_PTRACE) && !self.cgroup.is_empty()
    }

    /// Sends a signal, by its number, to the main process; returns whether that runs.
    pub(crate) fn signal(&self, number: u8) -> bool {
        self.running.as_ref().is_some_and(|pidfd| crate::sys::send_signal(pidfd.as_fd(), number).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_of_output_is_read_once() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let size = rustix::pipe::fcntl_setpipe_size(&writer, 4 * MAX_READ).unwrap();
        let text: Vec<u8> = (0..size - 1).map(|i| u8::try_from(i % 251).unwrap()).collect();
        assert_eq!(rustix::io::write(&writer, &text), Ok(text.len()));
        let mut read = Vec::new();
        read_rest(&reader, &mut [0; 1000], |bytes| read.extend_from_slice(bytes));
        assert!(read == text, "{} of {} bytes", read.len(), text.len());
    }

    #[test]
    fn writers_outside_cannot_prolong_the_rest() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let mut read = 0;
        read_rest(&reader, &mut [0; 1000], |_| panic!("it is empty"));
        assert_eq!(rustix::io::write(&writer, b"x"), Ok(1));
        read_rest(&reader, &mut [0; 1000], |bytes| {
            read += bytes.len();
            assert_eq!(rustix::io::write(&writer, &[b'x'; 1000]), Ok(1000), "as soon as it has room");
        });
        assert_eq!(read, MAX_READ);
    }

    #[test]
    fn reads_shrink_on_slow_hosts_and_grow_back() {
        let (slow, fast) = (READ_TIME_LIMIT * 100, READ_TIME_LIMIT / 100);
        let mut size = ReadSize::default();
        for _ in 0..10 {
            size.adapt(size.0, slow);
        }
        assert_eq!(size.0, MIN_READ);
        size.adapt(MIN_READ / 2, fast);
        assert_eq!(size.0, MIN_READ, "there was no more to read");
        size.adapt(MIN_READ, READ_TIME_LIMIT / 2);
        assert_eq!(size.0, MIN_READ, "twice as much would take too long");
        for _ in 0..10 {
            size.adapt(size.0, fast);
        }
        assert_eq!(size.0, MAX_READ);
    }
}
