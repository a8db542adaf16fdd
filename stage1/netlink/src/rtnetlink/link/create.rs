//! Creates interfaces: each with one request, with all its properties, and in its final namespace (with two requests
//! if it has no link-local address).
//!
//! The pod end of a veth pair, and a pod's macvlan or ipvlan, are created inside the pod's namespace under their
//! final name. Nothing is renamed or moved (moving waits for an RCU grace period), and the host's network managers
//! never see the interface.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

use super::{Change, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINKINFO, Link, Named, RTM_NEWLINK, ifinfomsg};
use crate::error::{Error, Result};
use crate::mac::Mac;
use crate::message::{Batch, F_CREATE, F_EXCL};
use crate::namespace::{Namespace, check_name};
use crate::rtnetlink::socket::Socket;

const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_BR_FORWARD_DELAY: u16 = 1;
const IFLA_BR_AGEING_TIME: u16 = 4;
const IFLA_BR_STP_STATE: u16 = 5;
pub(super) const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_MCAST_SNOOPING: u16 = 23;
const IFLA_BR_VLAN_DEFAULT_PVID: u16 = 39;
const IFLA_BR_MULTI_BOOLOPT: u16 = 46;
/// `1 << BR_BOOLOPT_NO_LL_LEARN`, since 5.0.
const NO_LL_LEARN: u32 = 1;
const VETH_INFO_PEER: u16 = 1;
pub(super) const IFLA_MACVLAN_MODE: u16 = 1;
pub(super) const IFLA_IPVLAN_MODE: u16 = 1;

/// An interface to create.
#[derive(Debug, Clone, Copy)]
pub struct NewLink<'a> {
    /// The name.
    pub name: &'a str,
    /// The kind.
    pub kind: LinkKind<'a>,
    /// Other properties: MTU, hardware address, bridge, up … Its `name` is ignored.
    pub with: Change<'a>,
}

/// The kind of an interface.
#[derive(Debug, Clone, Copy)]
pub enum LinkKind<'a> {
    /// A bridge. It forwards immediately (forward delay 0), without spanning tree protocol: gantry creates no loops.
    Bridge(Bridge),
    /// A veth pair, by its first end. Each end has one queue. By default, the kernel allocates one for each possible
    /// processor, and then disables all but one, which waits for an RCU grace period.
    Veth(Peer<'a>),
    /// A macvlan: an interface with a hardware address of its own on its parent's network.
    Macvlan {
        /// The index of the parent interface, in the socket's namespace.
        parent: u32,
        /// The mode.
        mode: MacvlanMode,
    },
    /// An ipvlan: an interface that shares its parent's hardware address.
    Ipvlan {
        /// The index of the parent interface, in the socket's namespace.
        parent: u32,
        /// The mode.
        mode: IpvlanMode,
    },
    /// A dummy interface, which drops all packets.
    Dummy,
}

/// The properties of a bridge. Spanning tree protocol is off, and the bridge learns no addresses from frames to
/// link-local groups (`no_linklocal_learn`): it would do so before any nftables rule sees the frame.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bridge {
    /// VLAN filtering (CNI's `vlan`).
    pub vlan_filtering: bool,
    /// The VLAN of untagged frames; 0 for none. Only with `vlan_filtering`.
    pub default_pvid: Option<u16>,
    /// The ageing time of learned addresses; 300 s by default.
    pub ageing: Option<Duration>,
    /// Multicast snooping; the kernel's default is on.
    pub mcast_snooping: Option<bool>,
}

/// The other end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// The name.
    pub name: &'a str,
    /// Other properties and the namespace. Its `name` is ignored. `up`, `master`, `link_local`, `alias` and `port`
    /// are invalid: the kernel creates this end first and fails with ENOTCONN. Set them with a request in its
    /// namespace.
    pub with: Change<'a>,
}

/// `IFLA_MACVLAN_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacvlanMode {
    /// No traffic between macvlans of the same parent.
    Private = 1,
    /// Traffic between them passes through the external switch, which must reflect it.
    Vepa = 2,
    /// Direct traffic between them.
    Bridge = 4,
    /// Exclusive use of the parent.
    Passthru = 8,
}

/// `IFLA_IPVLAN_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanMode {
    /// Switched by hardware address.
    L2 = 0,
    /// Routed in the parent's namespace.
    L3 = 1,
    /// As L3, with netfilter of the parent's namespace.
    L3s = 2,
}

impl LinkKind<'_> {
    /// `IFLA_INFO_KIND`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Bridge(_) => "bridge",
            Self::Veth(_) => "veth",
            Self::Macvlan { .. } => "macvlan",
            Self::Ipvlan { .. } => "ipvlan",
            Self::Dummy => "dummy",
        }
    }

    fn parent(&self) -> Option<u32> {
        match self {
            Self::Macvlan { parent, .. } | Self::Ipvlan { parent, .. } => Some(*parent),
            _ => None,
        }
    }

    fn mode(&self) -> Option<u32> {
        match self {
            Self::Macvlan { mode, .. } => Some(*mode as u32),
            Self::Ipvlan { mode, .. } => Some(*mode as u32),
            _ => None,
        }
    }

    fn write(&self, m: &mut Batch) {
        match self {
            Self::Bridge(bridge) => bridge.write(m),
            Self::Veth(peer) => {
                let head = ifinfomsg(0, 0, peer.with.flags());
                m.nested_behind(VETH_INFO_PEER, &head, |m| {
                    Change { name: Some(peer.name), ..peer.with }.write(m);
                    write_single_queue(m);
                });
            }
            Self::Macvlan { mode, .. } => {
                m.u32(IFLA_MACVLAN_MODE, *mode as u32);
            }
            Self::Ipvlan { mode, .. } => {
                m.u16(IFLA_IPVLAN_MODE, *mode as u16);
            }
            Self::Dummy => {}
        }
    }
}

fn write_single_queue(m: &mut Batch) {
    m.u32(IFLA_NUM_TX_QUEUES, 1).u32(IFLA_NUM_RX_QUEUES, 1);
}

impl Bridge {
    fn write(&self, m: &mut Batch) {
        m.u32(IFLA_BR_FORWARD_DELAY, 0).u32(IFLA_BR_STP_STATE, 0);
        // `struct br_boolopt_multi`: values and mask.
        m.bytes(IFLA_BR_MULTI_BOOLOPT, [NO_LL_LEARN, NO_LL_LEARN].map(u32::to_ne_bytes).as_flattened());
        if let Some(ageing) = self.ageing {
            // In units of USER_HZ (1/100 s).
            m.u32(IFLA_BR_AGEING_TIME, u32::try_from(ageing.as_millis() / 10).unwrap_or(u32::MAX));
        }
        if let Some(on) = self.mcast_snooping {
            m.u8(IFLA_BR_MCAST_SNOOPING, u8::from(on));
        }
        if self.vlan_filtering {
            m.u8(IFLA_BR_VLAN_FILTERING, 1);
        }
        if let Some(pvid) = self.default_pvid {
            m.u16(IFLA_BR_VLAN_DEFAULT_PVID, pvid);
        }
    }
}

impl NewLink<'_> {
    /// Rejects combinations that the kernel would ignore, or reject without an explanation.
    fn check(&self) -> Result<()> {
        check_name(self.name)?;
        let in_other_namespace = self.with.namespace.is_some();
        let why = match &self.kind {
            LinkKind::Bridge(_) if in_other_namespace => "a bridge must be created by a socket in its own namespace",
            _ if in_other_namespace && !self.with.fits_creation() => {
                "alias, port and link_local can be set only by a socket in its own namespace"
            }
            LinkKind::Veth(Peer { name, with }) => {
                check_name(name)?;
                if with.up != Some(true) && with.master.is_none() && with.fits_creation() {
                    return Ok(());
                }
                "the peer can be set up only after both ends exist"
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(format_args!("create the {} {}", self.kind.as_str(), self.name), why))
    }
}

impl Socket {
    /// Creates an interface. Succeeds if one of this name and kind exists with the same MTU, hardware address,
    /// bridge, parent and mode, of a veth the same other end, and of a bridge VLAN filtering as requested. Then `up`,
    /// the packet modes and the queue length are applied to it; other properties of an existing bridge are left
    /// unchanged.
    ///
    /// # Errors
    /// An interface of this name exists with other properties; errors of the kernel: it lacks
    /// the kind or VLAN filtering (EOPNOTSUPP), the parent is gone (ENODEV), the name is taken in the target namespace
    /// (EEXIST), CAP_NET_ADMIN is missing (EPERM).
    pub fn create_link(&mut self, new: &NewLink<'_>) -> Result<()> {
        new.check()?;
        // The kernel rejects some properties in the creating request: a second request sets them, and then sets it up.
        let Change { up, link_local, alias, port, .. } = new.with;
        let later = Change { up, link_local, alias, port, ..Change::default() };
        if new.with.fits_creation() {
            return self.create_once(new, new.with);
        }
        self.create_once(new, Change { up: None, alias: None, port: None, ..new.with })?;
        self.change_named(Named::Name(new.name), &later)
    }

    fn create_once(&mut self, new: &NewLink<'_>, with: Change<'_>) -> Result<()> {
        let kind = new.kind.as_str();
        let mut batch = Batch::new();
        batch.push(RTM_NEWLINK, F_CREATE | F_EXCL, &ifinfomsg(0, 0, with.flags()), |m| {
            Change { name: Some(new.name), ..with }.write(m);
            if let Some(parent) = new.kind.parent() {
                m.u32(IFLA_LINK, parent);
            }
            if matches!(new.kind, LinkKind::Veth(_)) {
                write_single_queue(m);
            }
            m.nested(IFLA_LINKINFO, |m| {
                m.text(IFLA_INFO_KIND, kind).nested(IFLA_INFO_DATA, |m| new.kind.write(m));
            });
        });
        match self.channel().execute(batch, format_args!("create the {kind} {}", new.name)) {
            Err(error) if error.is(Errno::EXIST) => match with.namespace {
                Some(namespace) => with_socket_in(namespace, |socket| socket.compare(new, with, error)),
                None => self.compare(new, with, error),
            },
            Ok(()) => self.confirm_vlans(new),
            other => other,
        }
    }

    /// Checks VLAN filtering, which a kernel without CONFIG_BRIDGE_VLAN_FILTERING ignores.
    fn confirm_vlans(&mut self, new: &NewLink<'_>) -> Result<()> {
        let LinkKind::Bridge(Bridge { vlan_filtering: true, .. }) = new.kind else { return Ok(()) };
        if self.link(new.name)?.is_none_or(|link| link.vlan_filtering == Some(true)) {
            return Ok(());
        }
        self.delete_link_named(new.name)?;
        Err(Error::System { what: format!("create the bridge {} with VLAN filtering", new.name), errno: Errno::NOTSUP })
    }

    /// Compares the existing interface, in this socket's namespace, with the request.
    fn compare(&mut self, new: &NewLink<'_>, with: Change<'_>, error: Error) -> Result<()> {
        let what = || format!("create the {} {}", new.kind.as_str(), new.name);
        let found = self.link(new.name)?;
        // The name that is already in use is that of the other end.
        let Some(found) = found else { return Err(error) };
        let mut difference = difference(new, &found);
        if let (None, LinkKind::Veth(peer)) = (&difference, &new.kind) {
            let other = match peer.with.namespace {
                Some(namespace) => with_socket_in(namespace, |socket| socket.link(peer.name))?,
                None => self.link(peer.name)?,
            };
            difference = match other {
                Some(other) if found.parent == Some(other.index) => changed(&peer.with, &other),
                _ => Some(format!("its other end is not {}", peer.name)),
            };
        }
        let rest = Change {
            up: with.up,
            promiscuous: with.promiscuous,
            all_multicast: with.all_multicast,
            tx_queue_length: with.tx_queue_length,
            ..Change::default()
        };
        match difference {
            None => self.change_named(Named::Index(found.index), &rest),
            Some(difference) => Err(Error::different(what(), &difference)),
        }
    }
}

fn with_socket_in<T>(namespace: BorrowedFd<'_>, work: impl FnOnce(&mut Socket) -> Result<T>) -> Result<T> {
    use crate::error::Attempt;
    let fd = namespace.as_fd().try_clone_to_owned().attempt(|| "copy the descriptor of a network namespace")?;
    work(&mut Socket::open_in(&Namespace::from(fd))?)
}

fn difference(new: &NewLink<'_>, found: &Link) -> Option<String> {
    if found.kind.as_deref() != Some(new.kind.as_str()) {
        return Some(format!("it is a {}", found.kind.as_deref().unwrap_or("device").escape_debug()));
    }
    if new.kind.parent().is_some_and(|parent| found.parent != Some(parent)) {
        return Some("it has another parent interface".to_owned());
    }
    if new.kind.mode().is_some_and(|mode| found.mode != Some(mode)) {
        return Some("it has another mode".to_owned());
    }
    if let LinkKind::Bridge(Bridge { vlan_filtering: true, .. }) = new.kind
        && found.vlan_filtering != Some(true)
    {
        return Some("its VLAN filtering is off".to_owned());
    }
    changed(&new.with, found)
}

fn changed(with: &Change<'_>, found: &Link) -> Option<String> {
    if let Some(mtu) = with.mtu.filter(|mtu| *mtu != found.mtu) {
        return Some(format!("its MTU is {}, not {mtu}", found.mtu));
    }
    if let Some(mac) = with.mac.filter(|mac| Some(*mac) != found.mac) {
        let has = found.mac.map_or_else(|| "none".to_owned(), |mac: Mac| mac.to_string());
        return Some(format!("its hardware address is {has}, not {mac}"));
    }
    if with.master.is_some_and(|master| found.master.unwrap_or(0) != master) {
        return Some("it is not attached to the requested bridge".to_owned());
    }
    None
}
