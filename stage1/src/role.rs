//! `gantry-stage1 network`: works on the host's networks, without a running pod, for the engine
//! ([`gantry_contract::network`]). It reads one request and writes one reply; the exit code is 0 if the reply was
//! written.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use gantry_contract::Failure;
use gantry_contract::network::{Host, NetworkOperation, Reply, Request};
use gantry_host::file::read_stream;
use gantry_model::id::shown;
use gantry_model::{ErrorKind, PodId};
use gantry_net::pod::{self, NetworkError, Pod, unused};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use std::os::fd::AsFd as _;

use crate::failure::{self, Attempt, Result, failure};
use crate::reexec;
use crate::sys::InheritedFds;

/// Maximum size of a request, in bytes.
const MAX_REQUEST: u64 = 1 << 20;

/// Timeout of the lock on links. Pods that end hold it for a moment each.
const LINKS_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads a request from stdin, fulfils it, and writes the reply.
pub(crate) fn run() -> ExitCode {
    let answer = prepare().and_then(|()| fulfil(&read_request()?));
    // The engine waits for the reply, with the lock of the dead pod held. So this does not wait long for plugins of
    // another pod that hold the lock on links. What is left is removed by gc.
    for left in unused::take_shared() {
        let _left_for_gc = left.remove(LINKS_TIMEOUT);
    }
    write_reply(&answer.unwrap_or_else(Reply::Failed))
}

/// Makes the process independent of the caller's descriptors, which plugins must not get, and dependent on its life.
fn prepare() -> Result<()> {
    reexec::ensure_read_only()?;
    InheritedFds::list().attempt(|| "cannot list inherited descriptors")?.close();
    die_with_caller()
}

/// The caller holds the pod's lock for this process, which therefore must not outlive it: the pod could be started
/// again.
fn die_with_caller() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).attempt(|| "cannot watch the caller")?;
    // The caller may have died before; then the pipe for the reply has no reader.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let out = std::io::stdout();
    let mut fds = [PollFd::from_borrowed_fd(out.as_fd(), PollFlags::empty())];
    let ready = poll(&mut fds, Some(&now)).attempt(|| "cannot watch the caller")?;
    if ready > 0 && fds[0].revents().contains(PollFlags::ERR) {
        return Err(failure(ErrorKind::Refused, "the caller has exited"));
    }
    Ok(())
}

fn read_request() -> Result<Request> {
    let bytes = read_stream(std::io::stdin().lock(), MAX_REQUEST).attempt(|| "cannot read the request")?;
    serde_json::from_slice(&bytes)
        .map_err(|error| failure(ErrorKind::Invalid, format!("the request is damaged: {error}")))
}

fn fulfil(request: &Request) -> Result<Reply> {
    let host = &request.host;
    let done = match &request.what {
        NetworkOperation::Down { pod } => {
            return with_pod_dir(host, pod, |pod| pod::detach_on(host, pod, None)).map(|_| Reply::Done);
        }
        NetworkOperation::Abandon { pod } => {
            return with_pod_dir(host, pod, |pod| pod::abandon_on(host, pod))
                .map(|left| Reply::Abandoned(left.unwrap_or_default()));
        }
        NetworkOperation::Choose(networks) => pod::select_networks(networks).map(|_| Reply::Done),
        NetworkOperation::Reload => pod::reload(host).map(Reply::Findings),
        NetworkOperation::Sweep { dry_run } => pod::collect_garbage(host, *dry_run).map(Reply::Swept),
        NetworkOperation::Strays => pod::find_orphans(host).map(Reply::Findings),
        NetworkOperation::Check => pod::check(host).map(Reply::Findings),
    };
    done.map_err(|error: NetworkError| failure::of(&error))
}

/// Runs `work` with a pod's directory; returns `None` if the directory does not exist: then the pod has no networks.
fn with_pod_dir<T>(
    host: &Host,
    pod: &str,
    work: impl FnOnce(&Pod<'_>) -> std::result::Result<T, NetworkError>,
) -> Result<Option<T>> {
    let what = || format!("cannot detach pod '{}' from its networks", shown(pod));
    let id: PodId = pod.parse().map_err(|error| failure(ErrorKind::Invalid, format!("{}: {error}", what())))?;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let pods = rustix::fs::open(&host.pods_dir, flags, Mode::empty());
    let dir = match pods.and_then(|pods| rustix::fs::openat(&pods, id.to_string(), flags, Mode::empty())) {
        Ok(dir) => dir,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error).attempt(what),
    };
    let id = id.to_string();
    work(&Pod { id: &id, dir: dir.as_fd() }).map(Some).map_err(|error| failure::of(&error))
}

fn write_reply(answer: &Reply) -> ExitCode {
    let line = serde_json::to_vec(answer).or_else(|error| {
        let message = format!("the reply cannot be encoded: {error}");
        serde_json::to_vec(&Reply::Failed(Failure { kind: ErrorKind::Internal, message, app: None }))
    });
    let mut out = std::io::stdout().lock();
    let written = line.map_err(std::io::Error::from).and_then(|mut line| {
        line.push(b'\n');
        out.write_all(&line)?;
        out.flush()
    });
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
