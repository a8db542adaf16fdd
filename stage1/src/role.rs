//! `gantry-stage1 network`: what concerns the networks of this host and no running pod, for the engine
//! ([`gantry_contract::network`]). A request comes in, an answer goes out; the exit code is 0 whenever there was one.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use gantry_contract::Failure;
use gantry_contract::network::{Answer, Host, Request, What};
use gantry_model::id::shown;
use gantry_model::{ErrorKind, PodId};
use gantry_net::pod::{self, NetworkError, Pod, unused};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use std::os::fd::AsFd as _;

use crate::failure::{self, Attempt, Result, failure};
use crate::{reexec, sys};

/// The longest request, in bytes.
const MOST_REQUEST: u64 = 1 << 20;

/// How long to wait for the lock of the links: pods that end hold it for a moment each.
const LINKS_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes the request from stdin, does what it says, answers.
pub(crate) fn run() -> ExitCode {
    let answer = prepare().and_then(|()| fulfil(&read()?));
    // The engine waits for the answer and holds the lock of the dead pod, so plugins of another pod that hold the lock of the links
    // are not waited for. What is left, also after a failure, is removed by gc.
    unused::take_shared().iter().for_each(|left| drop(left.remove(LINKS_TIMEOUT)));
    say(&answer.unwrap_or_else(Answer::Failed))
}

/// Plugins get none of the caller's descriptors.
fn prepare() -> Result<()> {
    reexec::ensure_read_only()?;
    sys::close_from(3).attempt(|| "cannot close inherited descriptors")?;
    stay_only_while_asked()
}

/// Who asks holds the pod's lock for what is done here, so this process must not outlive it: the pod could be started anew
/// meanwhile.
fn stay_only_while_asked() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).attempt(|| "cannot watch who asks")?;
    // It may have died before that was said; then nobody is there to read the answer.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let out = std::io::stdout();
    let mut fds = [PollFd::from_borrowed_fd(out.as_fd(), PollFlags::empty())];
    let ready = poll(&mut fds, Some(&now)).attempt(|| "cannot look at who asks")?;
    if ready > 0 && fds[0].revents().contains(PollFlags::ERR) {
        return Err(failure(ErrorKind::Refused, "nobody is there to be answered"));
    }
    Ok(())
}

fn read() -> Result<Request> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(MOST_REQUEST).read_to_end(&mut bytes).attempt(|| "cannot read the request")?;
    serde_json::from_slice(&bytes)
        .map_err(|error| failure(ErrorKind::Invalid, format!("the request is damaged: {error}")))
}

fn fulfil(request: &Request) -> Result<Answer> {
    let host = &request.host;
    let done = match &request.what {
        What::Down { pod } => {
            return in_dir_of(host, pod, |pod| pod::detach_on(host, pod, None)).map(|_| Answer::Done);
        }
        What::Abandon { pod } => {
            return in_dir_of(host, pod, |pod| pod::abandon_on(host, pod))
                .map(|left| Answer::Abandoned(left.unwrap_or_default()));
        }
        What::Choose(networks) => pod::select_networks(networks).map(|_| Answer::Done),
        What::Reload => pod::reload(host).map(|()| Answer::Done),
        What::Sweep { dry_run } => pod::collect_garbage(host, *dry_run).map(Answer::Swept),
        What::Strays => pod::find_orphans(host).map(Answer::Findings),
        What::Check => pod::check(host).map(Answer::Findings),
    };
    done.map_err(|error: NetworkError| failure::of(&error))
}

/// Does something with a pod's networks; `None` where its directory is gone: then it has none.
fn in_dir_of<T>(
    host: &Host,
    pod: &str,
    work: impl FnOnce(&Pod<'_>) -> std::result::Result<T, NetworkError>,
) -> Result<Option<T>> {
    let what = || format!("cannot take away the networks of pod '{}'", shown(pod));
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

fn say(answer: &Answer) -> ExitCode {
    let line = serde_json::to_vec(answer).or_else(|error| {
        let message = format!("the answer cannot be written: {error}");
        serde_json::to_vec(&Answer::Failed(Failure { kind: "internal".to_owned(), message, app: None }))
    });
    let mut out = std::io::stdout().lock();
    let said = line.map_err(std::io::Error::from).and_then(|mut line| {
        line.push(b'\n');
        out.write_all(&line)?;
        out.flush()
    });
    if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
