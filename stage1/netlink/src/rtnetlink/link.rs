//! Interfaces: finding, changing and deleting them. [`create`] makes them, [`port`] is about those of a bridge.
//!
//! Interfaces are found by name once and then spoken of by index: a name can be given to another one meanwhile.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

pub mod create;
pub mod port;
mod state;

use self::port::Port;
pub(crate) use self::state::parse;
use self::state::parse_statistics;
pub use self::state::{Link, Statistics};

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
const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;

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
const IFLA_STATS_LINK_64: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
/// Leave the counters of the address families out.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

const IFF_UP: u32 = 0x1;
const IFF_PROMISC: u32 = 0x100;
const IFF_ALLMULTI: u32 = 0x200;

const IFINFOMSG: usize = 16;

/// What to change on an interface; None leaves a thing as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Change<'a> {
    /// Up or down.
    pub up: Option<bool>,
    /// Another name. Kernels before 6.2 want it down for that (EBUSY).
    pub name: Option<&'a str>,
    /// The longest packet, in bytes.
    pub mtu: Option<u32>,
    /// The hardware address.
    pub mac: Option<Mac>,
    /// The bridge to be a port of, by index; `Some(0)` takes it out of the one it is in.
    pub master: Option<u32>,
    /// Take packets to any hardware address.
    pub promiscuous: Option<bool>,
    /// Take packets to any group.
    pub all_multicast: Option<bool>,
    /// A text for people and programs (`ip link` shows it), up to 255 bytes; an empty one removes it.
    pub alias: Option<&'a str>,
    /// Packets that may wait to be sent.
    pub tx_queue_length: Option<u32>,
    /// The number of a group of interfaces, which rules of nftables can match (`iifgroup`).
    pub group: Option<u32>,
    /// Give itself an IPv6 address of the link (fe80::…) when it comes up; the kernel does if not said. A port of a bridge needs
    /// none, and without one it sends no packets of its own, which the bridge would copy to every other port.
    pub link_local: Option<bool>,
    /// What it is to be as a port of a bridge, which it is already.
    pub port: Option<Port>,
    /// The network namespace to move to. What has an address loses it, and the index may become another one.
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

    /// Whether all of it can be said of an interface that is not there yet.
    fn at_once(&self) -> bool {
        self.link_local.is_none() && self.alias.is_none() && self.port.is_none()
    }

    /// Adds the messages that do it to a batch.
    pub(super) fn push(&self, named: Named<'_>, batch: &mut Batch) {
        if let Some(on) = self.link_local {
            // By itself and first: the kernel would look at it only after it has set the interface up.
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

    /// Whether it does not matter that the first message of two was refused: where there is no IPv6, there are no addresses of
    /// the link either.
    pub(super) fn excuses(&self, refusal: &Refusal) -> bool {
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

/// How an interface is named in a request.
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
    /// Adds a message about it.
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

/// The fixed part of a message about interfaces: family, index, flags and which flags to change.
fn ifinfomsg(family: u8, index: u32, flags: (u32, u32)) -> [u8; IFINFOMSG] {
    let mut head = [0; IFINFOMSG];
    head[0] = family;
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&flags.0.to_ne_bytes());
    head[12..16].copy_from_slice(&flags.1.to_ne_bytes());
    head
}

impl Socket {
    /// The interface of this name.
    ///
    /// # Errors
    /// A name that none can have; what the kernel says. None is not an error.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        check_name(name)?;
        self.find_link(Named::Name(name))
    }

    /// The index of the interface of this name. Cheaper than [`Self::link`], which waits for the kernel's lock of all changes
    /// (RTNL): this does not (SIOCGIFINDEX, netdevice(7)).
    ///
    /// # Errors
    /// A name that none can have; what the kernel says. None is not an error.
    pub fn index(&mut self, name: &str) -> Result<Option<u32>> {
        check_name(name)?;
        match rustix::net::netdevice::name_to_index(&*self.channel(), name) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV) => Ok(None),
            Err(errno) => Err(errno).attempt(|| format!("look for the interface {name}")),
        }
    }

    /// The interface of this index.
    ///
    /// # Errors
    /// What the kernel says. None is not an error.
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

    /// Every interface of the namespace.
    ///
    /// # Errors
    /// What the kernel says; more than 100 000 of them.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        self.list_links(None)
    }

    /// The ports of a bridge, by its index.
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

    /// Changes an interface, all in one request; what is so already stays so.
    ///
    /// # Errors
    /// What the kernel says: it is gone (ENODEV), an MTU that the kind cannot have (EINVAL), a name that is taken (EEXIST).
    /// Things are changed one after the other: what came before the refused one has been changed.
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
        match refused.into_iter().find(|refusal| !(refusal.at < last && change.excuses(refusal))) {
            Some(refusal) => Err(refusal.error(what)),
            None => Ok(()),
        }
    }

    /// Sets `lo` up: a new namespace has it down. The kernel gives it its addresses, 127.0.0.1 and ::1.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn loopback_up(&mut self) -> Result<()> {
        self.change_named(Named::Name("lo"), &Change { up: Some(true), ..Change::default() })
    }

    /// Deletes an interface; of a veth pair both ends. Whether it was there.
    ///
    /// The kernel waits for grace periods of RCU here: by far the slowest of these operations (see [`super`]).
    ///
    /// # Errors
    /// What the kernel says: hardware cannot be deleted (EOPNOTSUPP).
    pub fn delete_link(&mut self, index: u32) -> Result<bool> {
        self.delete_named(Named::Index(index))
    }

    /// As [`Self::delete_link`], by name.
    ///
    /// # Errors
    /// As [`Self::delete_link`]; a name that none can have.
    pub fn delete_link_named(&mut self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.delete_named(Named::Name(name))
    }

    fn delete_named(&mut self, named: Named<'_>) -> Result<bool> {
        let mut batch = Batch::new();
        named.push(&mut batch, RTM_DELLINK, (0, 0), |_| {});
        match self.channel().order(batch, format_args!("delete {named}")) {
            Ok(()) => Ok(true),
            Err(error) if error.is(Errno::NODEV) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// What passed through an interface; None if it is gone.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn statistics(&mut self, index: u32) -> Result<Option<Statistics>> {
        let mut head = [0; 12];
        head[4..8].copy_from_slice(&index.to_ne_bytes());
        head[8..12].copy_from_slice(&(1u32 << (IFLA_STATS_LINK_64 - 1)).to_ne_bytes());
        let mut batch = Batch::new();
        batch.push(RTM_GETSTATS, 0, &head, |_| {});
        let mut found = None;
        let done =
            self.channel().request(batch, format_args!("read the counters of interface {index}"), &mut |message| {
                if message.kind == RTM_NEWSTATS {
                    let (_, attributes) = message.split(12)?;
                    found = attributes.get(IFLA_STATS_LINK_64).map(|counters| parse_statistics(counters.payload));
                }
                Ok(())
            });
        none_if(done.map(|()| found), Errno::NODEV)
    }
}

fn none_if<T>(result: Result<Option<T>>, errno: Errno) -> Result<Option<T>> {
    match result {
        Err(error) if error.is(errno) => Ok(None),
        other => other,
    }
}
