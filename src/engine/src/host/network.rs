//! The networks of this host.
//!
//! Listing them reads configurations and records, in this process. Everything that needs netlink, nftables or plugins
//! is done by `gantry-stage1 network` ([`gantry_contract::network`]): removing the resources of a dead supervisor, by
//! the record in the pod directory; restoring the nftables tables; collecting resources without a record; checks. A
//! supervisor attaches and detaches its own pod.
//!
//! Each request is idempotent: after a kill half-way, the next caller repeats it. The record is deleted last.

use std::io::{self, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use gantry_contract::network::{Network, NetworkOperation, Reply, Request};
use gantry_contract::{files, plan as out};
use gantry_host::file::{in_memory, is_absent, read_truncated};
use gantry_model::id::shown;
use gantry_model::net::NetworkRequest;
use gantry_model::{ErrorKind, Kind, NetMode, PodId};
use gantry_netlink::nft;
use gantry_store::PodState;

use crate::Engine;
use crate::error::EngineError;
use crate::host::process::{self, Deadline};
use crate::host::stage1::{self, Attempt, EXIT_TIMEOUT, Executable, Line, printable};
use crate::pods::plan_net;
use crate::pods::rm::RmError;

pub use gantry_netlink::nft::{Change as FirewallChange, Monitor as FirewallMonitor, TablePart as FirewallPart};

/// The `comm` of the one program of this installation that changes the tables.
const STAGE1_COMM: &str = "gantry-stage1";
/// The networks that need no configuration.
const BUILT_IN: [&str; 2] = ["default", "default-restricted"];
/// The timeout of a request is this many times the limit of one plugin,
const PLUGINS: u32 = 8;
/// and this much more.
const SLACK: Duration = Duration::from_secs(30);
/// The longest reply, in bytes.
const MAX_ANSWER: usize = 16 << 20;
/// The maximum size of the part of stderr that a message keeps, in bytes.
const MAX_STDERR: u64 = 2000;

impl Engine {
    /// The configured networks of this host, including unusable ones.
    ///
    /// # Errors
    /// The records of pods cannot be read.
    pub fn networks(&self) -> Result<Vec<Network>, EngineError> {
        self.described_networks(None, || "cannot list the networks".to_owned())
    }

    /// One network, with the text of its configuration.
    ///
    /// # Errors
    /// The records of pods cannot be read, or no network has this name.
    pub fn network(&self, name: &str) -> Result<Network, EngineError> {
        let doing = || format!("cannot inspect network '{}'", shown(name));
        let found = self.described_networks(Some(name), doing)?.into_iter().next();
        found.ok_or_else(|| EngineError::new(ErrorKind::NotFound, format!("{}: there is none of this name", doing())))
    }

    fn described_networks(&self, name: Option<&str>, doing: impl Fn() -> String) -> Result<Vec<Network>, EngineError> {
        gantry_net::pod::list_networks(&self.network_host(), name)
            .map_err(|error| EngineError::new(error.kind(), doing()).caused_by(error))
    }

    /// Subscribes to changes of this installation's nftables tables that programs other than gantry-stage1 make.
    ///
    /// # Errors
    /// The kernel refuses the subscription.
    pub fn watch_firewall(&self) -> Result<FirewallMonitor, EngineError> {
        let table = plan_net::table(self.store.layout().root());
        let monitor = nft::socket().and_then(|socket| FirewallMonitor::open(socket, &table, &[STAGE1_COMM]));
        monitor.map_err(|error| EngineError::new(error.kind(), "cannot watch nftables").caused_by(error))
    }

    /// Restores nftables, bridges and host ends to the needs of the running pods. Returns a line for each defect that
    /// only the user can repair. Does nothing on a host where no pod ever had a network.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn reload_networks(&self) -> Result<Vec<String>, EngineError> {
        if !self.has_networks() {
            return Ok(Vec::new());
        }
        let call = Call::new("restore the networks of the running pods", NetworkOperation::Reload);
        match self.network_role(&call)? {
            Reply::Findings(lines) => Ok(lines.iter().map(|line| printable(line)).collect()),
            Reply::Done | Reply::Swept(_) | Reply::Abandoned(_) | Reply::Failed(_) => {
                Err(call.attempt.not_understood(None))
            }
        }
    }

    /// Collects garbage of networks: leases, rules, interfaces and plugin state that belong to no pod. Returns a line
    /// for each; with `dry_run` nothing is removed. Does nothing on a host where no pod ever had a network.
    ///
    /// # Errors
    /// [`EngineError`]; everything removable was removed.
    pub fn sweep_networks(&self, dry_run: bool) -> Result<Vec<String>, EngineError> {
        if !self.has_networks() {
            return Ok(Vec::new());
        }
        let call = Call::new("remove what dead pods left of their networks", NetworkOperation::Sweep { dry_run });
        match self.network_role(&call)? {
            Reply::Swept(lines) => Ok(lines.iter().map(|line| printable(line)).collect()),
            Reply::Done | Reply::Abandoned(_) | Reply::Findings(_) | Reply::Failed(_) => {
                Err(call.attempt.not_understood(None))
            }
        }
    }

    /// Leaks, which no pod accounts for, and missing resources that pods need.
    pub(crate) fn check_networks(&self) -> Result<Vec<String>, EngineError> {
        if !self.has_networks() {
            return Ok(Vec::new());
        }
        let call = Call::new("check the networks", NetworkOperation::Check);
        match self.network_role(&call)? {
            Reply::Findings(lines) => Ok(lines.iter().map(|line| printable(line)).collect()),
            Reply::Done | Reply::Swept(_) | Reply::Abandoned(_) | Reply::Failed(_) => {
                Err(call.attempt.not_understood(None))
            }
        }
    }

    /// The leftovers of gantry installations that no longer exist in the networks of this host, and the commands that
    /// remove them.
    pub(crate) fn stray_networks(&self) -> Result<Vec<String>, EngineError> {
        let call = Call::new("find networks that other installations left", NetworkOperation::Strays);
        match self.network_role(&call)? {
            Reply::Findings(lines) => Ok(lines.iter().map(|line| printable(line)).collect()),
            Reply::Done | Reply::Swept(_) | Reply::Abandoned(_) | Reply::Failed(_) => {
                Err(call.attempt.not_understood(None))
            }
        }
    }

    /// Removes the network resources of a dead pod. The caller holds its lock. Costs one stat(2) if there are none.
    pub(crate) fn network_down(&self, id: PodId) -> Result<(), EngineError> {
        self.network_down_within(id, Duration::MAX)
    }

    /// As [`Self::network_down`], within the engine's timeout. Failures are left for `gc` and `rm`.
    pub(crate) fn network_down_or_leave(&self, id: PodId) {
        if self.row_writes.are_enabled() {
            let _left_for_gc = self.network_down_within(id, self.timeouts.network);
        }
    }

    fn network_down_within(&self, id: PodId, within: Duration) -> Result<(), EngineError> {
        if !self.has_network_record(id) {
            return Ok(());
        }
        let what = NetworkOperation::Down { pod: id.to_string() };
        let call = Call { within, ..Call::new(format!("remove the networks of pod {id}"), what) };
        match self.network_role(&call)? {
            Reply::Done => Ok(()),
            Reply::Swept(_) | Reply::Abandoned(_) | Reply::Findings(_) | Reply::Failed(_) => {
                Err(call.attempt.not_understood(None))
            }
        }
    }

    /// Removes the network resources of a dead pod, and abandons attachments that plugins fail to delete: returns a
    /// line for each. For a pod whose removal failed and that is to be removed nevertheless.
    ///
    /// # Errors
    /// [`RmError`]: another process owns the pod, or gantry's own part of its networks cannot be removed.
    pub fn abandon_networks(&self, id: PodId) -> Result<Vec<String>, RmError> {
        let _lock = match self.lock_in_time(id)? {
            PodState::Free(lock) => lock,
            PodState::Absent => return Ok(Vec::new()),
            PodState::Held => return Err(RmError::Busy(id)),
        };
        if !self.has_network_record(id) {
            return Ok(Vec::new());
        }
        let failed = |source| RmError::Network { id, source };
        let call =
            Call::new(format!("remove the networks of pod {id}"), NetworkOperation::Abandon { pod: id.to_string() });
        match self.network_role(&call).map_err(failed)? {
            Reply::Abandoned(lines) => Ok(lines.iter().map(|line| printable(line)).collect()),
            Reply::Done | Reply::Swept(_) | Reply::Findings(_) | Reply::Failed(_) => {
                Err(failed(call.attempt.not_understood(None)))
            }
        }
    }

    /// Checks that a pod can be attached to these networks, before any part of the pod is created. The built-in
    /// networks without arguments are left to the supervisor: most pods have these, and the check costs a process.
    pub(crate) fn check_choice(&self, net: &NetMode) -> Result<(), EngineError> {
        let plain = |it: &NetworkRequest| BUILT_IN.contains(&it.name.as_str()) && it.args.is_empty();
        match net {
            NetMode::None | NetMode::Host => return Ok(()),
            NetMode::Networks(wanted) if wanted.iter().all(plain) => return Ok(()),
            NetMode::Networks(_) | NetMode::All(_) => {}
        }
        let Ok(out::Net::Networks(networks)) = plan_net::net(net, Vec::new(), self.network_host()) else {
            return Ok(());
        };
        let call = Call::new(format!("use --net={net}"), NetworkOperation::Choose(networks));
        match self.network_role(&call)? {
            Reply::Done => Ok(()),
            Reply::Swept(_) | Reply::Abandoned(_) | Reply::Findings(_) | Reply::Failed(_) => {
                Err(call.attempt.not_understood(None))
            }
        }
    }

    /// Checks that these networks are configured. Reads configurations only, so a plugin that fails is not found.
    ///
    /// # Errors
    /// [`EngineError`], with what is wrong with the first of them.
    pub(crate) fn check_configured(&self, net: &NetMode) -> Result<(), EngineError> {
        let (NetMode::Networks(wanted) | NetMode::All(wanted)) = net else { return Ok(()) };
        let configured = wanted.iter().filter(|it| !BUILT_IN.contains(&it.name.as_str()));
        for NetworkRequest { name, .. } in configured {
            let network = self.network(name)?;
            if let Some(problem) = network.problem {
                let text = format!("network '{}' cannot be used: {problem}", shown(name));
                return Err(EngineError::new(ErrorKind::Unavailable, text));
            }
        }
        Ok(())
    }

    /// Whether the pod has, or may have, resources of a network on the host.
    pub(crate) fn has_network_record(&self, id: PodId) -> bool {
        match std::fs::symlink_metadata(self.pod_dir(id).join(files::NETWORK)) {
            Ok(_) => true,
            // Any other failure is reported by the code that reads the record.
            Err(error) => !is_absent(&error),
        }
    }

    /// Whether a pod of this installation ever had a network.
    fn has_networks(&self) -> bool {
        self.store.layout().net_dir().exists()
    }

    /// The time limit of all plugins together.
    pub(crate) fn plugins_limit(&self) -> Duration {
        self.options.network.plugin_limit.saturating_mul(PLUGINS)
    }

    pub(crate) fn network_host(&self) -> gantry_contract::network::Host {
        plan_net::host(&self.options.network, self.store.layout())
    }

    fn network_role(&self, call: &Call) -> Result<Reply, EngineError> {
        let attempt = &call.attempt;
        let program = self.stage1().map_err(|places| attempt.missing(&places))?;
        let mut host = self.network_host();
        // gantry-stage1 kills a plugin that hangs. It must have time for that before it is killed itself.
        host.plugin_limit_ms = host.plugin_limit_ms.min(call.plugin_limit_ms());
        let request = Request { host, what: call.what.clone() };
        let request = serde_json::to_vec(&request).map_err(|error| attempt.not_understood(Some(error)))?;
        let mut role = NetworkRole::spawn(&program, &request).map_err(|(what, source)| attempt.io(what, source))?;
        let limit = self.plugins_limit().saturating_add(SLACK).min(call.within);
        let line = stage1::read_line(&role.answer, Deadline::after(limit), MAX_ANSWER);
        // Whatever was read, the process must end before this one releases the pod's lock.
        let has_replied = matches!(line, Ok(Line::Whole(_) | Line::Ended));
        process::end_child(&mut role.child, if has_replied { EXIT_TIMEOUT } else { Duration::ZERO });
        match line.map_err(|source| attempt.io("read its reply", source))? {
            Line::Late => {
                let seconds = limit.as_secs();
                let problem = format!(
                    "it took longer than {seconds} s and was killed; a plugin may hang, 'gantry gc' tries again"
                );
                Err(attempt.timed_out(&problem))
            }
            Line::Ended => Err(attempt.silent(&role.stderr())),
            Line::Whole(bytes) => match serde_json::from_slice(&bytes) {
                Ok(Reply::Failed(failure)) => Err(attempt.failed(&failure)),
                Ok(answer) => Ok(answer),
                Err(error) => Err(attempt.not_understood(Some(error))),
            },
        }
    }
}

/// One request to `gantry-stage1 network`.
struct Call {
    attempt: Attempt,
    what: NetworkOperation,
    /// The time limit, if it is shorter than that of the plugins.
    within: Duration,
}

impl Call {
    fn new(doing: impl Into<String>, what: NetworkOperation) -> Self {
        Self { attempt: Attempt(doing.into()), what, within: Duration::MAX }
    }

    /// The time limit of one plugin, so that there is time to kill it within the time of the call.
    fn plugin_limit_ms(&self) -> u64 {
        gantry_model::quantity::milliseconds(self.within.saturating_sub(self.within / 4))
    }
}

/// A running `gantry-stage1 network`.
struct NetworkRole {
    child: Child,
    answer: std::os::fd::OwnedFd,
    stderr: std::fs::File,
}

impl NetworkRole {
    /// The process dies with the calling thread (`PR_SET_PDEATHSIG`): it works under a lock of that thread, which
    /// therefore waits for it.
    fn spawn(program: &std::path::Path, request: &[u8]) -> Result<Self, (&'static str, io::Error)> {
        let keep = |source: io::Error| ("make a file in memory", source);
        let input = in_memory("request", request).map_err(keep)?;
        let stderr = in_memory("stderr", b"").map_err(keep)?;
        let executable = Executable::new(program);
        let mut command = executable.command();
        command
            .arg("network")
            .env_clear()
            .env("PATH", stage1::PATH)
            .env("HOME", "/root")
            .current_dir("/")
            .process_group(0)
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().map_err(keep)?);
        let mut child =
            stage1::spawn_exclusively(|| command.spawn()).map_err(|source| ("execute gantry-stage1", source))?;
        match child.stdout.take() {
            Some(answer) => Ok(Self { child, answer: answer.into(), stderr }),
            None => {
                let _ended_already = child.kill();
                let _reaped_already = child.wait();
                Err(("read from gantry-stage1", io::Error::from(io::ErrorKind::BrokenPipe)))
            }
        }
    }

    /// The beginning of the process's stderr.
    fn stderr(&mut self) -> String {
        let text = self.stderr.rewind().and_then(|()| read_truncated(&self.stderr, MAX_STDERR)).unwrap_or_default();
        printable(String::from_utf8_lossy(&text).trim())
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
