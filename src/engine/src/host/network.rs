//! The networks of this host, as far as the engine knows of them: it asks `gantry-stage1 network`
//! ([`gantry_contract::network`]), which knows netlink, nftables and plugins.
//!
//! A supervisor makes its pod's networks and takes them away. What is asked for here is the rest: to take away what a dead
//! supervisor left, by the record in the pod directory; to put our tables right; to sweep what no record accounts for; to
//! show. Killed in the middle, each is done again by the next who comes: the record goes last.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gantry_contract::network::{Answer, Network, Request, What};
use gantry_contract::{files, plan as out};
use gantry_model::net::Wanted;
use gantry_model::{ErrorKind, Kind, NetMode, PodId};
use gantry_store::PodState;
use rustix::fs::MemfdFlags;
use thiserror::Error;

use crate::Engine;
use crate::error::kind_of_word;
use crate::host::process::{self, Deadline};
use crate::pods::plan_net;
use crate::pods::rm::RmError;
use crate::pods::supervisor::{self, Line, printable};

/// The networks that need no configuration.
const BUILT_IN: [&str; 2] = ["default", "default-restricted"];
/// How many plugins may each take as long as they may until one call is given up.
const PLUGINS: u32 = 8;
/// What a call may take beside its plugins.
const SLACK: Duration = Duration::from_secs(30);
/// How long the program may take to go after its answer.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// The longest answer, in bytes.
const MOST_ANSWER: usize = 16 << 20;
/// How much of stderr is kept for a message, in bytes.
const MOST_STDERR: u64 = 2000;

/// Something about networks could not be done.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The program is not there.
    #[error(
        "cannot {what}: there is no gantry-stage1 in {}; install it there, or name it in $GANTRY_STAGE1",
        .places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ")
    )]
    Missing {
        /// What was attempted.
        what: String,
        /// Where it was looked for.
        places: Vec<PathBuf>,
    },
    /// It said why not.
    #[error("cannot {what}: {message}")]
    Failed {
        /// What was attempted.
        what: String,
        /// What sort of failure.
        kind: ErrorKind,
        /// Why: the whole chain.
        message: String,
    },
    /// It ended without an answer.
    #[error(
        "cannot {what}: gantry-stage1 ended without an answer{}",
        supervisor::said(.stderr)
    )]
    Silent {
        /// What was attempted.
        what: String,
        /// The beginning of what it wrote to stderr.
        stderr: String,
    },
    /// It answered something else.
    #[error(
        "cannot {what}: what gantry-stage1 answers is not understood; are gantry and gantry-stage1 of one version?{}",
        .why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
    )]
    Garbled {
        /// What was attempted.
        what: String,
        /// What is wrong with it, unless it is an answer to something else.
        why: Option<String>,
    },
    /// It took too long, and was killed.
    #[error("cannot {what}: it took longer than {seconds} s and was ended; a plugin may hang, 'gantry gc' tries again")]
    TimedOut {
        /// What was attempted.
        what: String,
        /// How long it had.
        seconds: u64,
    },
    /// The system failed.
    #[error("cannot {what}: cannot {attempt}")]
    Io {
        /// What was attempted.
        what: String,
        /// Which part of it.
        attempt: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl Kind for NetworkError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } => ErrorKind::Unavailable,
            Self::Failed { kind, .. } => *kind,
            Self::Silent { .. } | Self::Garbled { .. } => ErrorKind::Internal,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Io { source, .. } => supervisor::kind_of_own(source),
        }
    }
}

impl Engine {
    /// The networks that are configured on this host, those that cannot be used included.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn networks(&self) -> Result<Vec<Network>, NetworkError> {
        let call = Call::new("list the networks", What::List);
        match self.network_role(&call)? {
            Answer::Networks(networks) => Ok(networks),
            _ => Err(call.garbled(None)),
        }
    }

    /// All about one network.
    ///
    /// # Errors
    /// [`NetworkError`], also when there is none of this name.
    pub fn network(&self, name: &str) -> Result<Network, NetworkError> {
        let shown = gantry_model::id::shown(name);
        let call = Call::new(format!("look at network '{shown}'"), What::Inspect { name: name.to_owned() });
        match self.network_role(&call)? {
            Answer::Networks(networks) => networks.into_iter().next().ok_or(NetworkError::Failed {
                what: call.doing,
                kind: ErrorKind::NotFound,
                message: "there is no network of this name".to_owned(),
            }),
            _ => Err(call.garbled(None)),
        }
    }

    /// The name of our nftables tables, for who watches them.
    #[must_use]
    pub fn network_table(&self) -> String {
        plan_net::table(self.store.layout().root())
    }

    /// Makes our tables hold what the running pods need, whoever has changed them. Does nothing where no pod ever had a
    /// network.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub fn reload_networks(&self) -> Result<(), NetworkError> {
        if !self.has_networks() {
            return Ok(());
        }
        let call = Call::new("put the rules of the networks in place", What::Reload);
        match self.network_role(&call)? {
            Answer::Done => Ok(()),
            _ => Err(call.garbled(None)),
        }
    }

    /// Removes what belongs to no pod: leases, rules, interfaces, what plugins keep. Tells what it was, a line each; with
    /// `dry_run` it only tells. Does nothing where no pod ever had a network.
    ///
    /// # Errors
    /// [`NetworkError`]; what could be removed was.
    pub fn sweep_networks(&self, dry_run: bool) -> Result<Vec<String>, NetworkError> {
        if !self.has_networks() {
            return Ok(Vec::new());
        }
        let call = Call::new("sweep what dead pods left of their networks", What::Sweep { dry_run });
        match self.network_role(&call)? {
            Answer::Swept(lines) => Ok(lines.iter().map(|line| printable(line)).collect()),
            _ => Err(call.garbled(None)),
        }
    }

    /// What is there that no pod accounts for, and what is missing that one needs.
    pub(crate) fn check_networks(&self) -> Result<Vec<String>, NetworkError> {
        if !self.has_networks() {
            return Ok(Vec::new());
        }
        let call = Call::new("check the networks", What::Check);
        match self.network_role(&call)? {
            Answer::Findings(lines) => Ok(lines.iter().map(|line| printable(line)).collect()),
            _ => Err(call.garbled(None)),
        }
    }

    /// What gantries that are gone have left of their networks on this host, with what removes it.
    pub(crate) fn stray_networks(&self) -> Result<Vec<String>, NetworkError> {
        let call = Call::new("look for networks that other gantries left", What::Strays);
        match self.network_role(&call)? {
            Answer::Findings(lines) => Ok(lines.iter().map(|line| printable(line)).collect()),
            _ => Err(call.garbled(None)),
        }
    }

    /// Takes away what a dead pod has of its networks. The caller holds its lock. Costs one look when it has nothing.
    pub(crate) fn network_down(&self, id: PodId) -> Result<(), NetworkError> {
        self.network_down_within(id, Duration::MAX)
    }

    /// As [`Self::network_down`] for one who has other things to do than to wait for plugins: what was not done in time, or
    /// failed, is left for `gc`, and for `rm`.
    pub(crate) fn network_down_or_leave(&self, id: PodId) {
        if self.writes.get() {
            let _left_for_gc = self.network_down_within(id, self.patience.network);
        }
    }

    fn network_down_within(&self, id: PodId, within: Duration) -> Result<(), NetworkError> {
        if !self.has_network_record(id) {
            return Ok(());
        }
        let what = What::Down { pod: id.to_string() };
        let call = Call { within, ..Call::new(format!("take away the networks of pod {id}"), what) };
        match self.network_role(&call)? {
            Answer::Done => Ok(()),
            _ => Err(call.garbled(None)),
        }
    }

    /// Takes away what a dead pod has of its networks, and gives up what plugins fail to delete: tells it, a line each. For a pod
    /// whose removal failed before, and is to be removed all the same.
    ///
    /// # Errors
    /// [`RmError`]: somebody is at the pod, or what gantry itself has of it cannot be taken away.
    pub fn abandon_networks(&self, id: PodId) -> Result<Vec<String>, RmError> {
        let _lock = match self.lock_patiently(id)? {
            PodState::Free(lock) => lock,
            PodState::Absent => return Ok(Vec::new()),
            PodState::Held => return Err(RmError::Busy(id)),
        };
        if !self.has_network_record(id) {
            return Ok(Vec::new());
        }
        let failed = |source| RmError::Network { id, source };
        let call = Call::new(format!("take away the networks of pod {id}"), What::Abandon { pod: id.to_string() });
        match self.network_role(&call).map_err(failed)? {
            Answer::Abandoned(lines) => Ok(lines.iter().map(|line| printable(line)).collect()),
            _ => Err(failed(call.garbled(None))),
        }
    }

    /// Checks that a pod can be attached to what is asked for, before anything of the pod is made. The built-in networks
    /// without arguments are left to the supervisor: they are what most pods have, and the check costs a process.
    pub(crate) fn check_choice(&self, net: &NetMode) -> Result<(), NetworkError> {
        let plain = |it: &Wanted| BUILT_IN.contains(&it.name.as_str()) && it.args.is_empty();
        match net {
            NetMode::None | NetMode::Host => return Ok(()),
            NetMode::Networks(wanted) if wanted.iter().all(plain) => return Ok(()),
            NetMode::Networks(_) | NetMode::All(_) => {}
        }
        let Ok(out::Net::Networks(networks)) = plan_net::net(net, Vec::new(), self.network_host()) else {
            return Ok(());
        };
        let call = Call::new(format!("use --net={net}"), What::Choose(networks));
        match self.network_role(&call)? {
            Answer::Done => Ok(()),
            _ => Err(call.garbled(None)),
        }
    }

    /// Whether the pod has, or may have, something of a network on the host.
    pub(crate) fn has_network_record(&self, id: PodId) -> bool {
        match std::fs::symlink_metadata(self.pod_dir(id).join(files::NETWORK)) {
            Ok(_) => true,
            // Anything else is for the one to say who has to read it.
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }

    /// Whether a pod of this gantry ever had a network.
    fn has_networks(&self) -> bool {
        self.store.layout().net_dir().exists()
    }

    /// How long plugins may take together.
    pub(crate) fn plugins_limit(&self) -> Duration {
        self.options.network.plugin_limit.saturating_mul(PLUGINS)
    }

    fn network_host(&self) -> gantry_contract::network::Host {
        plan_net::host(&self.options.network, self.store.layout())
    }

    fn network_role(&self, call: &Call) -> Result<Answer, NetworkError> {
        let program = self.stage1().map_err(|places| NetworkError::Missing { what: call.doing.clone(), places })?;
        let mut host = self.network_host();
        // A plugin is ended by the one that started it, which is therefore ended later.
        host.plugin_limit_ms = host.plugin_limit_ms.min(call.plugin_limit_ms());
        let request = Request { host, what: call.what.clone() };
        let request = serde_json::to_vec(&request).map_err(|error| call.garbled(Some(error.to_string())))?;
        let mut asked = Asked::spawn(&program, &request).map_err(|(attempt, source)| call.io(attempt, source))?;
        let limit = self.plugins_limit().saturating_add(SLACK).min(call.within);
        let line = supervisor::read_line(&asked.answer, Deadline::after(limit), MOST_ANSWER);
        // Whatever was heard: nobody is left behind who does something with a pod whose lock we let go.
        asked.end(matches!(line, Ok(Line::Whole(_) | Line::Ended)));
        match line.map_err(|source| call.io("read its answer", source))? {
            Line::Late => Err(NetworkError::TimedOut { what: call.doing.clone(), seconds: limit.as_secs() }),
            Line::Ended => Err(NetworkError::Silent { what: call.doing.clone(), stderr: asked.said() }),
            Line::Whole(bytes) => call.answer(&bytes),
        }
    }
}

/// What is asked, in the words of messages and of the contract.
struct Call {
    /// As in "list the networks".
    doing: String,
    what: What,
    /// How long it may take, if that is shorter than what plugins may.
    within: Duration,
}

impl Call {
    fn new(doing: impl Into<String>, what: What) -> Self {
        Self { doing: doing.into(), what, within: Duration::MAX }
    }

    /// How long one plugin may take, so that there is time to end it within the time of the call.
    fn plugin_limit_ms(&self) -> u64 {
        u64::try_from(self.within.saturating_sub(self.within / 4).as_millis()).unwrap_or(u64::MAX)
    }

    fn answer(&self, bytes: &[u8]) -> Result<Answer, NetworkError> {
        match serde_json::from_slice(bytes) {
            Ok(Answer::Failed(failure)) => Err(NetworkError::Failed {
                what: self.doing.clone(),
                kind: kind_of_word(&failure.kind),
                message: printable(&failure.message),
            }),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.garbled(Some(error.to_string()))),
        }
    }

    fn garbled(&self, why: Option<String>) -> NetworkError {
        NetworkError::Garbled { what: self.doing.clone(), why }
    }

    fn io(&self, attempt: &'static str, source: io::Error) -> NetworkError {
        NetworkError::Io { what: self.doing.clone(), attempt, source }
    }
}

/// A `gantry-stage1 network` that runs.
struct Asked {
    child: Child,
    answer: std::os::fd::OwnedFd,
    stderr: std::fs::File,
}

impl Asked {
    /// It dies with the calling thread, which therefore has to wait for it: it works under a lock that is ours.
    fn spawn(program: &std::path::Path, request: &[u8]) -> Result<Self, (&'static str, io::Error)> {
        let keep = |source: io::Error| ("make a file in memory", source);
        let mut input = memory(c"request").map_err(keep)?;
        input.write_all(request).and_then(|()| input.rewind()).map_err(keep)?;
        let stderr = memory(c"stderr").map_err(keep)?;
        let mut command = Command::new(program);
        command
            .arg("network")
            .env_clear()
            .env("PATH", supervisor::PATH)
            .env("HOME", "/root")
            .current_dir("/")
            .process_group(0)
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().map_err(keep)?);
        let mut child = supervisor::alone(|| command.spawn()).map_err(|source| ("execute gantry-stage1", source))?;
        match child.stdout.take() {
            Some(answer) => Ok(Self { child, answer: answer.into(), stderr }),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                Err(("hear gantry-stage1", io::Error::from(io::ErrorKind::BrokenPipe)))
            }
        }
    }

    /// Makes sure that it is gone, and reaps it; one that has answered is given some time to go by itself.
    fn end(&mut self, answered: bool) {
        let pidfd = process::open_pid(self.child.id());
        let gone = |within| match &pidfd {
            Some(fd) => {
                matches!(process::readable(&[std::os::fd::AsFd::as_fd(fd)], Deadline::after(within)), Ok(Some(_)))
            }
            None => false,
        };
        if !(answered && gone(GONE_WITHIN)) {
            let _ = self.child.kill();
        }
        if gone(GONE_WITHIN) {
            let _ = self.child.wait();
        }
    }

    fn said(&mut self) -> String {
        let mut text = Vec::new();
        let read = self.stderr.rewind().and_then(|()| (&self.stderr).take(MOST_STDERR).read_to_end(&mut text));
        if read.is_err() { String::new() } else { printable(String::from_utf8_lossy(&text).trim()) }
    }
}

/// A file without a name: what is in it needs nobody who feeds or drains a pipe.
fn memory(name: &std::ffi::CStr) -> io::Result<std::fs::File> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
