//! The pod's network namespace and networks.
//!
//! They are made while the host's files and namespaces are still reachable, and detached after the pod's last process
//! has ended. The state is in the type: [`PendingNetwork`] while CNI plugins run in another process,
//! [`AttachedNetwork`] once the pod is attached; detaching consumes it.
//!
//! To detach, the supervisor returns to the host's namespaces by descriptors of them. No process that an app can trace
//! may have these: they are close-on-exec, the process of an app closes them before any app runs
//! ([`crate::app::launcher`]), and PID 1 and the helpers of execs close all descriptors.
//!
//! A supervisor that is killed leaves a record in the pod directory of everything that the pod may have on the host
//! ([`gantry_net::pod`]); the engine has it removed by `gantry-stage1 network` ([`crate::role`]).

use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use gantry_contract::network::Host;
use gantry_contract::plan::{Net, Networks, Plan};
use gantry_model::{ErrorKind, Kind as _};
use gantry_net::netlink::sysctl::Sysctl;
use gantry_net::netlink::{Namespace, Socket};
use gantry_net::pod::{self, HeldPorts};
use rustix::fs::{Mode, OFlags};

use crate::failure::{self, Attempt, Result};
use crate::pod::attaching::AttachProcess;
use crate::pod::user_namespace::UserNamespace;
use crate::sys::{self, SingleThreaded};

/// The networks of a pod that has some of its own.
pub(crate) enum PodNetwork {
    /// Plugins are attaching the pod.
    Pending(PendingNetwork),
    /// The pod is attached.
    Attached(AttachedNetwork),
}

/// A pod that another process is attaching.
pub(crate) struct PendingNetwork {
    process: AttachProcess,
    namespaces: PodNamespaces,
}

/// A pod that is attached to its networks.
pub(crate) struct AttachedNetwork {
    /// The pod's addresses, routes and DNS settings by network, in order.
    attached: Vec<gantry_model::PodNetwork>,
    /// Sockets that hold the published ports on the host. Never read: dropping it releases the ports.
    _held: HeldPorts,
    namespaces: PodNamespaces,
}

/// The namespaces and settings that detaching a pod needs.
struct PodNamespaces {
    /// The pod's UUID.
    pod: String,
    /// How networks are run on this host.
    settings: Host,
    /// Whether plugins run some of the networks.
    has_plugins: bool,
    /// The pod directory: the descriptor with the lock.
    pod_dir: OwnedFd,
    host_mounts: OwnedFd,
    host: Namespace,
    own: Namespace,
}

/// Waiting for a pending network failed.
pub(crate) struct AttachError {
    /// Why.
    pub(crate) failure: gantry_contract::Failure,
    /// The network to detach, if the process did not say that nothing is left.
    pub(crate) remains: Option<Box<AttachedNetwork>>,
}

impl PodNetwork {
    /// The pod's addresses, routes and DNS settings by network, in order; empty while they are pending.
    pub(crate) fn attached(&self) -> &[gantry_model::PodNetwork] {
        match self {
            Self::Pending(_) => &[],
            Self::Attached(network) => &network.attached,
        }
    }

    /// The address of gantry's resolver for this pod, as far as it is known: the first gateway that is an address of
    /// this host.
    pub(crate) fn resolver(&self) -> Option<IpAddr> {
        match self {
            Self::Pending(_) => None,
            Self::Attached(network) => network.resolver(),
        }
    }

    /// Whether plugins must be run to detach the pod.
    pub(crate) fn has_plugins(&self) -> bool {
        match self {
            Self::Pending(PendingNetwork { namespaces, .. }) | Self::Attached(AttachedNetwork { namespaces, .. }) => {
                namespaces.has_plugins
            }
        }
    }

    /// Detaches the pod. A pending network is waited for: its plugins must not be killed halfway, and their results are
    /// part of the request to delete.
    ///
    /// Afterwards this process is in the host's namespaces.
    pub(crate) fn detach(self) -> Result<()> {
        match self {
            Self::Attached(network) => network.detach(),
            Self::Pending(network) => match network.wait() {
                Ok(network) => network.detach(),
                Err(AttachError { remains, .. }) => remains.map_or(Ok(()), |network| network.detach()),
            },
        }
    }
}

impl PendingNetwork {
    /// Waits until the pod is attached.
    pub(crate) fn wait(self) -> std::result::Result<AttachedNetwork, AttachError> {
        let Self { process, namespaces } = self;
        match process.wait() {
            Ok(Ok((attached, held))) => Ok(AttachedNetwork { attached, _held: held, namespaces }),
            // The process has detached what it had attached, or recorded what is left for the engine.
            Ok(Err(failure)) => Err(AttachError { failure, remains: None }),
            Err(failure) => {
                let remains = AttachedNetwork { attached: Vec::new(), _held: HeldPorts::default(), namespaces };
                Err(AttachError { failure, remains: Some(Box::new(remains)) })
            }
        }
    }
}

impl AttachedNetwork {
    fn resolver(&self) -> Option<IpAddr> {
        if !self.namespaces.settings.resolver {
            return None;
        }
        let mut gateways = self.attached.iter().flat_map(|it| &it.addresses).filter_map(|it| it.gateway);
        // Only an address of this host can be bound. The gateway of a macvlan is another machine.
        let own = || Ok(gateways.find(|gateway| UdpSocket::bind((*gateway, 0)).is_ok()));
        self.namespaces.host.enter(own).ok().flatten()
    }

    fn detach(self) -> Result<()> {
        let Self { namespaces, .. } = &self;
        if !is_in_mount_namespace(&namespaces.host_mounts) {
            sys::setns(namespaces.host_mounts.as_fd(), libc::CLONE_NEWNS)
                .attempt(|| "cannot return to the host's mount namespace to detach the pod's networks")?;
        }
        sys::setns(namespaces.host.as_fd(), libc::CLONE_NEWNET)
            .attempt(|| "cannot return to the host's network namespace to detach the pod's networks")?;
        let pod = pod::Pod { id: &namespaces.pod, dir: namespaces.pod_dir.as_fd() };
        pod::detach_on(&namespaces.settings, &pod, Some(&namespaces.own)).map_err(|error| failure::of(&error))
    }
}

/// Whether this process is in that mount namespace. setns(2) to its own one would reset the root of a process in a
/// chroot.
fn is_in_mount_namespace(namespace: &OwnedFd) -> bool {
    let own = open_mount_namespace().and_then(rustix::fs::fstat);
    let wanted = rustix::fs::fstat(namespace);
    matches!((own, wanted), (Ok(own), Ok(wanted)) if (own.st_dev, own.st_ino) == (wanted.st_dev, wanted.st_ino))
}

fn open_mount_namespace() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Enters the pod's network namespace and attaches its networks, or starts to if plugins run some of them. A failure
/// leaves none. `lock` is the pod directory.
///
/// The process that runs the plugins must not be forked into the pod's cgroups: after a failed start, the engine kills
/// every process in them, and that process may still have a bridge to remove.
///
/// `user`: the pod's user namespace, to which its network namespace belongs.
pub(crate) fn enter(
    thread: SingleThreaded,
    plan: &Plan,
    user: Option<&UserNamespace>,
    lock: &OwnedFd,
) -> Result<Option<PodNetwork>> {
    match &plan.net {
        Net::Host => Ok(None),
        Net::None => {
            enter_new_namespace(user)?;
            let up = Socket::open().and_then(|mut socket| socket.loopback_up());
            up.map_err(|error| failure::of(&error))?;
            Ok(None)
        }
        Net::Networks(networks) => attach(thread, plan, user, networks, lock).map(Some),
    }
}

fn attach(
    thread: SingleThreaded,
    plan: &Plan,
    user: Option<&UserNamespace>,
    networks: &Networks,
    lock: &OwnedFd,
) -> Result<PodNetwork> {
    let chosen = pod::select_networks(networks).map_err(|error| failure::of(&error))?;
    let chosen = chosen.preferring(&plan.former_addresses);
    let has_plugins = chosen.runs_plugins();
    let pod_dir = rustix::io::fcntl_dupfd_cloexec(lock, 3).attempt(|| "cannot keep the pod directory open")?;
    let host_mounts = open_mount_namespace().attempt(|| "cannot open the host's mount namespace")?;
    let host = Namespace::own().map_err(|error| failure::of(&error))?;
    enter_new_namespace(user)?;
    let own = Namespace::own().map_err(|error| failure::of(&error))?;
    let (id, settings) = (plan.pod.clone(), networks.host.clone());
    let namespaces = PodNamespaces { pod: id, settings, has_plugins, pod_dir, host_mounts, host, own };
    let attach = || {
        let pod = pod::Pod { id: &namespaces.pod, dir: namespaces.pod_dir.as_fd() };
        let (host, own) = (&namespaces.host, &namespaces.own);
        pod::attach(&pod, &chosen, &pod::Namespaces { host, own, keeper: std::process::id() })
            .map_err(|error| failure::of(&error))
    };
    if has_plugins {
        let process = AttachProcess::start(thread, attach)?;
        return Ok(PodNetwork::Pending(PendingNetwork { process, namespaces }));
    }
    let (attached, held) = attach()?;
    Ok(PodNetwork::Attached(AttachedNetwork { attached, _held: held, namespaces }))
}

fn enter_new_namespace(user: Option<&UserNamespace>) -> Result<()> {
    let entered = user.map_or_else(|| sys::unshare(libc::CLONE_NEWNET), UserNamespace::enter_network);
    entered.attempt(|| "cannot make the pod's network namespace")?;
    for (name, value) in [("ipv4/ip_unprivileged_port_start", "0"), ("ipv4/ping_group_range", "0 2147483647")] {
        match Sysctl::Other(name).set(value) {
            Ok(()) => {}
            // Kernels without IPv4 lack the file.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // Where /proc/sys is read-only, only the pod's root can bind ports below 1024; the pod runs all the same.
            Err(error) => tracing::warn!("{}", gantry_model::error::chain(&error)),
        }
    }
    Ok(())
}
