//! Interfaces: find, change and delete. [`create`] creates them; [`port`] is an interface as a bridge port.
//!
//! Requests name an interface by index after it was found by name: another interface can take the name.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

pub mod create;
pub mod port;
mod state;

use self::port::Port;
pub use self::state::Link;
pub(crate) use self::state::parse;

use super::socket::Socket;
use crate::channel::Refusal;
use crate::error::{Attempt, Result};
use crate::family::AF_INET6;
use crate::mac::Mac;
use crate::message::Batch;
use crate::namespace::check_name;

pub(crate) const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;

const IFLA_ADDRESS: u16 = 1;
pub(crate) const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_PROTINFO: u16 = 12;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_GROUP: u16 = 27;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
/// Omit the counters of the address families from replies.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

const IFF_UP: u32 = 0x1;
const IFF_PROMISC: u32 = 0x100;
const IFF_ALLMULTI: u32 = 0x200;

const IFINFOMSG: usize = 16;

/// Changes of an interface; None leaves a property unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Change<'a> {
    /// Set it up or down.
    pub up: Option<bool>,
    /// The new name. Kernels before 6.2 require the interface to be down (EBUSY).
    pub name: Option<&'a str>,
    /// The MTU in bytes.
    pub mtu: Option<u32>,
    /// The hardware address.
    pub mac: Option<Mac>,
    /// The index of the bridge to attach to; `Some(0)` detaches the interface from its bridge.
    pub master: Option<u32>,
    /// Promiscuous mode.
    pub promiscuous: Option<bool>,
    /// Receive all multicast packets.
    pub all_multicast: Option<bool>,
    /// The alias (shown by `ip link`), up to 255 bytes; an empty string removes it.
    pub alias: Option<&'a str>,
    /// The length of the transmit queue in packets.
    pub tx_queue_length: Option<u32>,
    /// The interface group, which nftables rules can match (`iifgroup`).
    pub group: Option<u32>,
    /// Generate an IPv6 link-local address when the interface comes up, which is the kernel's default. A bridge port
    /// needs none: with one, it sends packets of its own, which the bridge floods to every other port.
    pub link_local: Option<bool>,
    /// Settings of the bridge port; the interface must be attached to a bridge already.
    pub port: Option<Port>,
    /// The network namespace to move to. The interface loses its addresses, and its index may change.
    pub namespace: Option<BorrowedFd<'a>>,
}

impl Change<'_> {
    fn flags(&self) -> (u32, u32) {
        let mut flags = (0, 0);
        for (wanted, bit) in [(self.up, IFF_UP), (self.promiscuous, IFF_PROMISC), (self.all_multicast, IFF_ALLMULTI)] {
            if let Some(on) = wanted {
                flags = (flags.0 | if on { bit } else { 0 }, flags.1 | bit);
            }
        }
        flags
    }

    /// Whether the kernel accepts all of these changes in the request that creates the interface.
    fn fits_creation(&self) -> bool {
        self.link_local.is_none() && self.alias.is_none() && self.port.is_none()
    }

    /// Appends the requests to a batch.
    pub(super) fn push(&self, named: Named<'_>, batch: &mut Batch) {
        if let Some(on) = self.link_local {
            // In a request of its own, before the rest: within one request, the kernel applies IFLA_AF_SPEC after
            // IFF_UP.
            named.push(batch, RTM_NEWLINK, (0, 0), |m| {
                m.nested(IFLA_AF_SPEC, |m| {
                    m.nested(u16::from(AF_INET6), |m| {
                        m.u8(IFLA_INET6_ADDR_GEN_MODE, u8::from(!on));
                    });
                });
            });
        }
        named.push(batch, RTM_NEWLINK, self.flags(), |m| self.write(m));
    }

    /// Whether the rejection of the link-local setting can be ignored: without IPv6 there are no link-local addresses.
    pub(super) fn tolerates(&self, refusal: &Refusal) -> bool {
        refusal.errno == Errno::AFNOSUPPORT && self.link_local == Some(false)
    }

    fn write(&self, m: &mut Batch) {
        if let Some(name) = self.name {
            m.text(IFLA_IFNAME, name);
        }
        if let Some(mac) = self.mac {
            m.bytes(IFLA_ADDRESS, &mac.0);
        }
        if let Some(alias) = self.alias {
            m.bytes(IFLA_IFALIAS, alias.as_bytes());
        }
        for (kind, value) in [
            (IFLA_MTU, self.mtu),
            (IFLA_MASTER, self.master),
            (IFLA_TXQLEN, self.tx_queue_length),
            (IFLA_GROUP, self.group),
        ] {
            if let Some(value) = value {
                m.u32(kind, value);
            }
        }
        if let Some(port) = self.port {
            m.nested(IFLA_LINKINFO, |m| {
                m.text(IFLA_INFO_SLAVE_KIND, "bridge").nested(IFLA_INFO_SLAVE_DATA, |m| port.write(m));
            });
        }
        if let Some(namespace) = self.namespace {
            m.i32(IFLA_NET_NS_FD, namespace.as_raw_fd());
        }
    }
}

/// How a request names an interface.
#[derive(Debug, Clone, Copy)]
pub(super) enum Named<'a> {
    Index(u32),
    Name(&'a str),
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "interface {index}"),
            Self::Name(name) => write!(f, "the interface {name}"),
        }
    }
}

impl Named<'_> {
    /// Appends a message about the interface.
    fn push(self, batch: &mut Batch, kind: u16, flags: (u32, u32), attributes: impl FnOnce(&mut Batch)) {
        let index = if let Self::Index(index) = self { index } else { 0 };
        batch.push(kind, 0, &ifinfomsg(0, index, flags), |m| {
            if let Self::Name(name) = self {
                m.text(IFLA_IFNAME, name);
            }
            attributes(m);
        });
    }
}

/// `struct ifinfomsg`: family, index, flags and the mask of flags to change.
fn ifinfomsg(family: u8, index: u32, flags: (u32, u32)) -> [u8; IFINFOMSG] {
    let mut head = [0; IFINFOMSG];
    head[0] = family;
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&flags.0.to_ne_bytes());
    head[12..16].copy_from_slice(&flags.1.to_ne_bytes());
    head
}

impl Socket {
    /// The interface of this name, if it exists.
    ///
    /// # Errors
    /// If the name is invalid; errors of the kernel.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        check_name(name)?;
        self.find_link(Named::Name(name))
    }

    /// The index of the interface of this name, if it exists. Cheaper than [`Self::link`]: SIOCGIFINDEX
    /// (netdevice(7)) does not take the kernel's RTNL lock.
    ///
    /// # Errors
    /// If the name is invalid; errors of the kernel.
    pub fn index(&mut self, name: &str) -> Result<Option<u32>> {
        check_name(name)?;
        match rustix::net::netdevice::name_to_index(&*self.channel(), name) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV) => Ok(None),
            Err(errno) => Err(errno).attempt(|| format!("look for the interface {name}")),
        }
    }

    /// The interface of this index, if it exists.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn link_by_index(&mut self, index: u32) -> Result<Option<Link>> {
        self.find_link(Named::Index(index))
    }

    fn find_link(&mut self, named: Named<'_>) -> Result<Option<Link>> {
        let mut batch = Batch::new();
        named.push(&mut batch, RTM_GETLINK, (0, 0), |m| {
            m.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        });
        let mut found = None;
        let done = self.channel().request(batch, format_args!("look for {named}"), &mut |message| {
            found = parse(message)?.or(found.take());
            Ok(())
        });
        none_if(done.map(|()| found), Errno::NODEV)
    }

    /// All interfaces of the namespace.
    ///
    /// # Errors
    /// Errors of the kernel; more than 100 000 interfaces.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        self.list_links(None)
    }

    /// The ports of the bridge of this index.
    ///
    /// # Errors
    /// As [`Self::links`].
    pub fn ports(&mut self, bridge: u32) -> Result<Vec<Link>> {
        self.list_links(Some(bridge))
    }

    fn list_links(&mut self, master: Option<u32>) -> Result<Vec<Link>> {
        let request = |batch: &mut Batch, flags: u16| {
            batch.push(RTM_GETLINK, flags, &ifinfomsg(0, 0, (0, 0)), |m| {
                m.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
                if let Some(master) = master {
                    m.u32(IFLA_MASTER, master);
                }
            });
        };
        let mut found = self.channel().dump(&request, format_args!("list the interfaces"), &parse)?;
        found.retain(|link| master.is_none() || link.master == master);
        Ok(found)
    }

    /// Changes an interface. Idempotent.
    ///
    /// # Errors
    /// Errors of the kernel: the interface is gone (ENODEV), the MTU is out of range (EINVAL), the name is taken
    /// (EEXIST). The kernel applies the changes one by one and does not revert those before the rejected one.
    pub fn change_link(&mut self, index: u32, change: &Change<'_>) -> Result<()> {
        if let Some(name) = change.name {
            check_name(name)?;
        }
        self.change_named(Named::Index(index), change)
    }

    fn change_named(&mut self, named: Named<'_>, change: &Change<'_>) -> Result<()> {
        let mut batch = Batch::new();
        change.push(named, &mut batch);
        let last = batch.count() - 1;
        let what = format_args!("change {named}");
        let refused = self.channel().exchange(batch, what, &mut |_| Ok(()))?;
        match refused.into_iter().find(|refusal| !(refusal.at < last && change.tolerates(refusal))) {
            Some(refusal) => Err(refusal.error(what)),
            None => Ok(()),
        }
    }

    /// Sets `lo` up, which is down in a new namespace. The kernel adds 127.0.0.1 and ::1.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn loopback_up(&mut self) -> Result<()> {
        self.change_named(Named::Name("lo"), &Change { up: Some(true), ..Change::default() })
    }

    /// Deletes an interface, and with one end of a veth pair the other. Returns whether it existed.
    ///
    /// By far the slowest of these operations: the kernel waits for RCU grace periods (see [`super`]).
    ///
    /// # Errors
    /// Errors of the kernel: hardware cannot be deleted (EOPNOTSUPP).
    pub fn delete_link(&mut self, index: u32) -> Result<bool> {
        self.delete_named(Named::Index(index))
    }

    /// As [`Self::delete_link`], by name.
    ///
    /// # Errors
    /// As [`Self::delete_link`]; if the name is invalid.
    pub fn delete_link_named(&mut self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.delete_named(Named::Name(name))
    }

    fn delete_named(&mut self, named: Named<'_>) -> Result<bool> {
        let mut batch = Batch::new();
        named.push(&mut batch, RTM_DELLINK, (0, 0), |_| {});
        match self.channel().execute(batch, format_args!("delete {named}")) {
            Ok(()) => Ok(true),
            Err(error) if error.is(Errno::NODEV) => Ok(false),
            Err(other) => Err(other),
        }
    }
}

fn none_if<T>(result: Result<Option<T>>, errno: Errno) -> Result<Option<T>> {
    match result {
        Err(error) if error.is(errno) => Ok(None),
        other => other,
    }
}
