//! Making interfaces: each in one request, with everything it is to have, and in the namespace it is to be in (two
//! requests for one without an address of the link).
//!
//! A pod's end of a veth pair, and a pod's macvlan or ipvlan, are made inside the pod's namespace under their final name: nothing is
//! renamed or moved (moving waits for a grace period of RCU), and there is no moment in which the host's programs
//! see a new interface and configure it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;

use super::{Change, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINKINFO, Link, Named, RTM_NEWLINK, ifinfomsg};
use crate::error::{Error, Result};
use crate::mac::Mac;
use crate::message::{Batch, F_CREATE, F_EXCL};
use crate::namespace::{Namespace, check_name};
use crate::rtnetlink::socket::Socket;

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

/// An interface to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewLink<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is.
    pub kind: LinkKind<'a>,
    /// What else it is to have: MTU, hardware address, bridge, up … A `name` in here is ignored.
    pub with: Change<'a>,
}

/// What an interface is.
#[derive(Debug, Clone, Copy)]
pub enum LinkKind<'a> {
    /// A switch. It forwards at once (forward delay 0) and speaks no spanning tree protocol: we make no loops.
    Bridge(Bridge),
    /// One end of a cable; the other end comes with it.
    Veth(Peer<'a>),
    /// A station of its own on another interface's network.
    Macvlan {
        /// The index of that other interface, in the socket's namespace.
        parent: u32,
        /// Which stations it hears.
        mode: MacvlanMode,
    },
    /// Addresses of its own behind another interface's hardware address.
    Ipvlan {
        /// The index of that other interface, in the socket's namespace.
        parent: u32,
        /// Who decides where packets go.
        mode: IpvlanMode,
    },
    /// An interface that leads nowhere.
    Dummy,
}

/// How a bridge is to be. It takes no part in spanning trees, and learns nothing from the frames of such protocols
/// (`no_linklocal_learn`): no rule of nftables sees those before it would.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bridge {
    /// Tell VLANs apart (CNI's `vlan`).
    pub vlan_filtering: bool,
    /// The VLAN of what has no tag; 0 for none. Only with `vlan_filtering`.
    pub default_pvid: Option<u16>,
    /// How long an address that is silent is remembered; 300 s if not said.
    pub ageing: Option<Duration>,
    /// Send groups only where they are asked for; the kernel does if not said.
    pub mcast_snooping: Option<bool>,
}

/// The other end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// Its name.
    pub name: &'a str,
    /// What else it is to have, with the namespace to be made in. A `name` in here is ignored. It can neither be up nor a
    /// port yet, nor say `link_local`, `alias` or `port`: the kernel makes this end first, and would say ENOTCONN. Set it up with a request in its namespace.
    pub with: Change<'a>,
}

/// `IFLA_MACVLAN_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacvlanMode {
    /// No other macvlan of the same parent.
    Private = 1,
    /// Others through the switch outside, if that sends back.
    Vepa = 2,
    /// All.
    Bridge = 4,
    /// It takes the parent over.
    Passthru = 8,
}

/// `IFLA_IPVLAN_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanMode {
    /// By neighbours, as on a cable.
    L2 = 0,
    /// By the parent's routes.
    L3 = 1,
    /// As L3, and the host's firewall sees the packets.
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
                m.nested_behind(VETH_INFO_PEER, &head, |m| Change { name: Some(peer.name), ..peer.with }.write(m));
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

impl Bridge {
    fn write(&self, m: &mut Batch) {
        m.u32(IFLA_BR_FORWARD_DELAY, 0).u32(IFLA_BR_STP_STATE, 0);
        // Which are on, and which are said.
        m.bytes(IFLA_BR_MULTI_BOOLOPT, [NO_LL_LEARN, NO_LL_LEARN].map(u32::to_ne_bytes).as_flattened());
        if let Some(ageing) = self.ageing {
            // In hundredths of a second (USER_HZ).
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
    /// What the kernel would take and not do, or refuse without a word of help.
    fn check(&self) -> Result<()> {
        check_name(self.name)?;
        let elsewhere = self.with.namespace.is_some();
        let why = match &self.kind {
            LinkKind::Bridge(_) if elsewhere => "a bridge is made in the namespace that it is to be in",
            _ if elsewhere && !self.with.at_once() => {
                "alias, port and that it has no address of the link can be said only in its own namespace"
            }
            LinkKind::Veth(Peer { name, with }) => {
                check_name(name)?;
                if with.up != Some(true) && with.master.is_none() && with.at_once() {
                    return Ok(());
                }
                "the other end can be set up only when both are there"
            }
            _ => return Ok(()),
        };
        Err(Error::Invalid { what: format!("make the {} {}", self.kind.as_str(), self.name), why: why.to_owned() })
    }
}

impl Socket {
    /// Makes an interface. One that exists under the name and is of the same kind with what was asked for is fine: MTU,
    /// hardware address, bridge, parent and mode are compared, for a veth the other end, and of a bridge whether it tells VLANs
    /// apart. What else is asked of an interface (up, promiscuous, queue) is then changed; what else is asked of a
    /// bridge is left as it is.
    ///
    /// # Errors
    /// [`Error::Different`] when it exists and is another; what the kernel says: it has no such kind or no VLANs (EOPNOTSUPP), the parent
    /// is gone (ENODEV), the name is taken in the namespace it is to be made in (EEXIST), CAP_NET_ADMIN is missing (EPERM).
    pub fn create_link(&mut self, new: &NewLink<'_>) -> Result<()> {
        new.check()?;
        // Some things the kernel does not take for an interface that is not there yet; they come in a second step, and then it
        // comes up.
        let Change { up, link_local, alias, port, .. } = new.with;
        let later = Change { up, link_local, alias, port, ..Change::default() };
        if new.with.at_once() {
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
            m.nested(IFLA_LINKINFO, |m| {
                m.text(IFLA_INFO_KIND, kind).nested(IFLA_INFO_DATA, |m| new.kind.write(m));
            });
        });
        match self.channel().order(batch, format_args!("make the {kind} {}", new.name)) {
            Err(error) if error.is(Errno::EXIST) => match with.namespace {
                Some(namespace) => inside(namespace, |socket| socket.compare(new, with, error)),
                None => self.compare(new, with, error),
            },
            Ok(()) => self.confirm_vlans(new),
            other => other,
        }
    }

    /// A kernel without VLANs on bridges ignores what is said of them.
    fn confirm_vlans(&mut self, new: &NewLink<'_>) -> Result<()> {
        let LinkKind::Bridge(Bridge { vlan_filtering: true, .. }) = new.kind else { return Ok(()) };
        if self.link(new.name)?.is_none_or(|link| link.vlan_filtering == Some(true)) {
            return Ok(());
        }
        self.delete_link_named(new.name)?;
        Err(Error::System { what: format!("make the bridge {} with VLANs", new.name), errno: Errno::NOTSUP })
    }

    /// Whether what exists, in this socket's namespace, is as asked for.
    fn compare(&mut self, new: &NewLink<'_>, with: Change<'_>, error: Error) -> Result<()> {
        let what = || format!("make the {} {}", new.kind.as_str(), new.name);
        let found = self.link(new.name)?;
        // The name of the other end is what was taken.
        let Some(found) = found else { return Err(error) };
        let mut difference = difference(new, &found);
        if let (None, LinkKind::Veth(peer)) = (&difference, &new.kind) {
            let other = match peer.with.namespace {
                Some(namespace) => inside(namespace, |socket| socket.link(peer.name))?,
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
            Some(difference) => Err(Error::Different { what: what(), difference }),
        }
    }
}

fn inside<T>(namespace: BorrowedFd<'_>, work: impl FnOnce(&mut Socket) -> Result<T>) -> Result<T> {
    use crate::error::Attempt;
    let fd = namespace.as_fd().try_clone_to_owned().attempt(|| "copy the descriptor of a network namespace")?;
    work(&mut Socket::open_in(&Namespace::from(fd))?)
}

fn difference(new: &NewLink<'_>, found: &Link) -> Option<String> {
    if found.kind.as_deref() != Some(new.kind.as_str()) {
        return Some(format!("it is a {}", found.kind.as_deref().unwrap_or("device").escape_debug()));
    }
    if new.kind.parent().is_some_and(|parent| found.parent != Some(parent)) {
        return Some("its parent is another interface".to_owned());
    }
    if new.kind.mode().is_some_and(|mode| found.mode != Some(mode)) {
        return Some("its mode is another".to_owned());
    }
    if let LinkKind::Bridge(Bridge { vlan_filtering: true, .. }) = new.kind
        && found.vlan_filtering != Some(true)
    {
        return Some("it does not tell VLANs apart".to_owned());
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
        return Some("it is a port of another bridge, or of none".to_owned());
    }
    None
}
