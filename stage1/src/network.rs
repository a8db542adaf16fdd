//! The pod's network namespace and its networks, as the supervisor has them: made while the host's files and namespaces can
//! still be reached, kept with a way back, taken away after the pod's last process.
//!
//! The way back are two descriptors, of the host's mount and of its network namespace. They must get into no process that
//! an app can look into: they are close-on-exec like all, an app's process closes them before any app runs
//! ([`crate::launcher`]), PID 1 and the carriers of execs close everything.
//!
//! What plugins make takes long and is waited for after the apps are made ([`crate::attaching`]).
//!
//! Killed anywhere in here, the supervisor leaves a record in the pod directory that says what may be there
//! ([`gantry_net::pod`]); the engine has it taken away by `gantry-stage1 network` ([`crate::role`]).

use std::io::Write as _;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gantry_contract::network::{Attached, Host};
use gantry_contract::plan::{Net, Networks, Plan};
use gantry_model::{ErrorKind, Kind as _};
use gantry_net::netlink::sysctl::Sysctl;
use gantry_net::netlink::{Namespace, Socket};
use gantry_net::pod::{self, HeldPorts, unused};
use rustix::fs::{Mode, OFlags};

use crate::attaching::Attaching;
use crate::failure::{self, Attempt, Result};
use crate::sys::{self, Fork};

/// The networks of a pod.
pub(crate) struct Network {
    /// The pod's UUID.
    id: String,
    /// How networks are run here.
    settings: Host,
    /// Whether plugins run some of them.
    plugins: bool,
    /// The pod directory: the descriptor with the lock.
    pod_dir: OwnedFd,
    host_mounts: OwnedFd,
    host: Namespace,
    own: Namespace,
    /// Keeps the host's ports taken.
    held: HeldPorts,
    /// What the pod got.
    attached: Vec<Attached>,
    /// Who attaches the pod while this goes on.
    attaching: Option<Attaching>,
    /// Attaching failed. What was made was taken away, or is left to the engine: it was tried once.
    undone: bool,
    /// Whether this process is still in the host's mount namespace, or again.
    at_home: bool,
}

impl Network {
    /// Whether the networks are still being made.
    pub(crate) fn is_pending(&self) -> bool {
        self.attaching.is_some()
    }

    /// Waits until the networks are there.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let Some(attaching) = self.attaching.take() else { return Ok(()) };
        match attaching.wait()? {
            Ok(made) => (self.attached, self.held) = made,
            Err(why) => {
                self.undone = true;
                return Err(why);
            }
        }
        Ok(())
    }

    /// What the pod got of its networks, in order; nothing while they are pending.
    pub(crate) fn attached(&self) -> &[Attached] {
        &self.attached
    }

    /// The address of the pod's first gateway that is one of this host's: where this gantry's resolver is.
    pub(crate) fn resolver(&self) -> Option<IpAddr> {
        let mut gateways = self.attached.iter().flat_map(|it| &it.addresses).filter_map(|it| it.gateway);
        if !self.settings.resolver {
            return None;
        }
        // To have an address is to be able to bind to it. Another's router (macvlan) is asked nothing.
        self.host.enter(|| Ok(gateways.find(|gateway| UdpSocket::bind((*gateway, 0)).is_ok()))).ok().flatten()
    }

    /// Whether plugins have to be run to take them away.
    pub(crate) fn is_run_by_plugins(&self) -> bool {
        self.plugins
    }

    /// Takes everything away, from the host's namespaces, into which this process goes back for good. Doing it again does
    /// nothing but what was left.
    pub(crate) fn down(&mut self) -> Result<()> {
        // Not ended in the middle: what plugins have answered, they are to be given when they delete.
        let _ = self.wait();
        if self.undone {
            return Ok(());
        }
        if !self.at_home {
            sys::setns(self.host_mounts.as_fd(), libc::CLONE_NEWNS)
                .attempt(|| "cannot go back to the host's mounts to take the pod's networks away")?;
            self.at_home = true;
        }
        sys::setns(self.host.as_fd(), libc::CLONE_NEWNET)
            .attempt(|| "cannot go back to the host's network to take the pod's networks away")?;
        let pod = pod::Pod { id: &self.id, dir: self.pod_dir.as_fd() };
        pod::detach_on(&self.settings, &pod, Some(&self.own)).map_err(|error| failure::of(&error))
    }

    /// Notes that the host's mounts have been left.
    pub(crate) fn left_home(&mut self) {
        self.at_home = false;
    }
}

/// Goes into the pod's network namespace, and makes its networks there if it has some, or begins to: those that plugins
/// make are pending. What fails leaves none. `lock` is the pod directory.
pub(crate) fn enter(plan: &Plan, lock: &OwnedFd) -> Result<Option<Network>> {
    match &plan.net {
        Net::Host => Ok(None),
        Net::None => {
            new_namespace()?;
            let up = Socket::open().and_then(|mut socket| socket.loopback_up());
            up.map_err(|error| failure::of(&error))?;
            Ok(None)
        }
        Net::Networks(networks) => attach(plan, networks, lock).map(Some),
    }
}

fn attach(plan: &Plan, networks: &Networks, lock: &OwnedFd) -> Result<Network> {
    let chosen = pod::select_networks(networks).map_err(|error| failure::of(&error))?;
    let pod_dir = rustix::io::fcntl_dupfd_cloexec(lock, 3).attempt(|| "cannot keep the pod directory open")?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let host_mounts = rustix::fs::open("/proc/self/ns/mnt", flags, Mode::empty())
        .attempt(|| "cannot keep a way back to the host's mounts")?;
    let host = Namespace::own().map_err(|error| failure::of(&error))?;
    new_namespace()?;
    let own = Namespace::own().map_err(|error| failure::of(&error))?;
    let pod = pod::Pod { id: &plan.pod, dir: pod_dir.as_fd() };
    let namespaces = pod::Namespaces { host: &host, own: &own, keeper: std::process::id() };
    let attach = || pod::attach(&pod, &chosen, &namespaces).map_err(|error| failure::of(&error));
    let plugins = chosen.runs_plugins();
    let (attaching, (attached, held)) =
        if plugins { (Some(Attaching::begin(attach)?), Default::default()) } else { (None, attach()?) };
    let (id, settings) = (plan.pod.clone(), networks.host.clone());
    Ok(Network {
        id,
        settings,
        plugins,
        pod_dir,
        host_mounts,
        host,
        own,
        held,
        attached,
        attaching,
        undone: false,
        at_home: true,
    })
}

/// Has another process do what the kernel takes long for, so that who waits for the end of this one waits for nothing of it: close
/// the sockets of nftables that are open yet (a grace period of RCU), and remove the bridge and the rules that no pod needs
/// any more (two of them).
pub(crate) fn finish_elsewhere() {
    let (sockets, mut left) = (gantry_net::nft::kept::take(), unused::take_shared());
    left.retain(unused::SharedResources::may_be_unused);
    if sockets.is_empty() && left.is_empty() {
        return;
    }
    // Without it the end of this process closes them, late.
    let Ok((reader, writer)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return };
    let Ok(open) = sys::descriptors() else { return };
    match sys::fork(0) {
        Ok(Fork::Child) => {
            let namespaces = left.iter().map(|left| left.descriptor().as_raw_fd());
            let stay: Vec<_> = sockets.iter().chain([&writer]).map(AsRawFd::as_raw_fd).chain(namespaces).collect();
            let rest: Vec<_> = open.into_iter().chain(0..3).filter(|fd| !stay.contains(fd)).collect();
            sys::close_all_of(&rest);
            let _ = rustix::io::write(&writer, b"1");
            drop(writer);
            if !left.is_empty() {
                std::thread::sleep(unused::LINGER);
            }
            for left in &left {
                // Nobody listens any more. What is left is seen to by the next pod that ends, and by gc.
                let _ = left.remove(unused::LOCK_TIMEOUT);
            }
            sys::exit_now(0);
        }
        Ok(Fork::Parent(_)) => {
            drop(writer);
            // The lock on the pod directory must not live on in the other.
            let _ = rustix::io::retry_on_intr(|| rustix::io::read(&reader, &mut [0u8; 1]));
        }
        Err(_) => {}
    }
}

fn new_namespace() -> Result<()> {
    sys::unshare(libc::CLONE_NEWNET).attempt(|| "cannot make the pod's network namespace")?;
    for (switch, value) in [("ipv4/ip_unprivileged_port_start", "0"), ("ipv4/ping_group_range", "0 2147483647")] {
        match Sysctl::Other(switch).set(value) {
            Ok(()) => {}
            // Kernels without IPv4 have no such ports.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // Where /proc is read-only only root of the pod can bind ports below 1024; the pod runs all the same.
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "gantry-stage1: {}", failure::chain(&error));
            }
        }
    }
    Ok(())
}
