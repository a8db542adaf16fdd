//! Interfaces: finding, changing and deleting them. [`create`] makes them, [`port`] is about those of a bridge.
//!
//! Interfaces are found by name once and then spoken of by index: a name can be given to another one meanwhile.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

pub mod create;
pub mod port;

use self::port::Port;
use super::channel::Channel;
use super::error::{Error, Malformed, Result};
use super::message::{Attribute, Batch, Message};
use super::namespace::check_name;
use super::prefix::Mac;
use super::socket::Socket;

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
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_STATS_LINK_64: u16 = 1;
/// Leave the counters of the address families out.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

const IFF_UP: u32 = 0x1;
const IFF_LOOPBACK: u32 = 0x8;
const IFF_RUNNING: u32 = 0x40;
const IFF_PROMISC: u32 = 0x100;

const IFINFOMSG: usize = 16;

/// An interface, as the kernel described it at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number; unique within its network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `bridge`, `veth`, `macvlan` …; None for hardware and the loopback interface.
    pub kind: Option<String>,
    /// The index of the bridge it is a port of.
    pub master: Option<u32>,
    /// The index of the interface below (macvlan, ipvlan) or at the other end (veth), in the namespace `netns_id` says.
    pub parent: Option<u32>,
    /// Which namespace `parent` is in, if not in this one: a number that only this namespace knows it by.
    pub netns_id: Option<i32>,
    /// The longest packet, in bytes.
    pub mtu: u32,
    /// The hardware address, where it is one of six bytes.
    pub mac: Option<Mac>,
    /// `IFF_*` of netdevice(7).
    pub flags: u32,
    /// Packets that may wait to be sent.
    pub tx_queue_length: u32,
    /// How it is a port, when `master` is a bridge.
    pub port: Option<Port>,
    /// `IFLA_MACVLAN_MODE` or `IFLA_IPVLAN_MODE`, as a number.
    pub(crate) mode: Option<u32>,
}

impl Link {
    /// Whether it was set up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Whether it is up and its other side is too.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.flags & IFF_RUNNING != 0
    }

    /// Whether it was told to take packets to any hardware address.
    #[must_use]
    pub fn is_promiscuous(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }

    /// Whether it is `lo`.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.flags & IFF_LOOPBACK != 0
    }
}

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
    /// Packets that may wait to be sent.
    pub tx_queue_length: Option<u32>,
    /// The network namespace to move to. What has an address loses it, and the index may become another one.
    pub namespace: Option<BorrowedFd<'a>>,
}

impl Change<'_> {
    fn flags(&self) -> (u32, u32) {
        let mut flags = (0, 0);
        for (wanted, bit) in [(self.up, IFF_UP), (self.promiscuous, IFF_PROMISC)] {
            if let Some(on) = wanted {
                flags = (flags.0 | if on { bit } else { 0 }, flags.1 | bit);
            }
        }
        flags
    }

    fn write(&self, m: &mut Batch) {
        if let Some(name) = self.name {
            m.text(IFLA_IFNAME, name);
        }
        if let Some(mac) = self.mac {
            m.bytes(IFLA_ADDRESS, &mac.0);
        }
        for (kind, value) in [(IFLA_MTU, self.mtu), (IFLA_MASTER, self.master), (IFLA_TXQLEN, self.tx_queue_length)] {
            if let Some(value) = value {
                m.u32(kind, value);
            }
        }
        if let Some(namespace) = self.namespace {
            m.i32(IFLA_NET_NS_FD, namespace.as_raw_fd());
        }
    }
}

/// What passed through an interface since it was made (`struct rtnl_link_stats64`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Bad packets received.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets received and not taken.
    pub rx_dropped: u64,
    /// Packets thrown away on the way out.
    pub tx_dropped: u64,
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

/// An interface out of RTM_NEWLINK; None for other messages.
pub(crate) fn parse(message: &Message<'_>) -> std::result::Result<Option<Link>, Malformed> {
    if message.kind != RTM_NEWLINK {
        return Ok(None);
    }
    let (head, attributes) = message.split(IFINFOMSG)?;
    let word = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let short = Malformed("a link without its fixed part");
    let mut link = Link {
        index: word(4).ok_or(short)?,
        name: String::new(),
        kind: None,
        master: None,
        parent: None,
        netns_id: None,
        mtu: 0,
        mac: None,
        flags: word(8).ok_or(short)?,
        tx_queue_length: 0,
        port: None,
        mode: None,
    };
    for attribute in attributes.iter() {
        match attribute.kind {
            IFLA_IFNAME => link.name = attribute.text().unwrap_or_default().to_owned(),
            IFLA_MTU => link.mtu = attribute.u32().unwrap_or_default(),
            IFLA_LINK => link.parent = attribute.u32().filter(|index| *index != 0),
            IFLA_MASTER => link.master = attribute.u32().filter(|index| *index != 0),
            IFLA_TXQLEN => link.tx_queue_length = attribute.u32().unwrap_or_default(),
            IFLA_LINK_NETNSID => link.netns_id = attribute.i32(),
            IFLA_ADDRESS => link.mac = attribute.payload.try_into().ok().map(Mac),
            IFLA_LINKINFO => parse_info(&attribute, &mut link)?,
            _ => {}
        }
    }
    Ok(Some(link))
}

fn parse_info(info: &Attribute<'_>, link: &mut Link) -> std::result::Result<(), Malformed> {
    let info = info.nested()?;
    let text = |kind| info.get(kind).and_then(|attribute| attribute.text());
    link.kind = text(IFLA_INFO_KIND).map(str::to_owned);
    if let Some(data) = info.get(IFLA_INFO_DATA) {
        link.mode = match link.kind.as_deref() {
            Some("macvlan") => data.nested()?.get(create::IFLA_MACVLAN_MODE).and_then(|mode| mode.u32()),
            Some("ipvlan") => data.nested()?.get(create::IFLA_IPVLAN_MODE).and_then(|mode| mode.u16()).map(u32::from),
            _ => None,
        };
    }
    if text(IFLA_INFO_SLAVE_KIND) == Some("bridge")
        && let Some(data) = info.get(IFLA_INFO_SLAVE_DATA)
    {
        link.port = Some(port::parse(&data.nested()?));
    }
    Ok(())
}

impl Socket {
    /// The interface of this name.
    ///
    /// # Errors
    /// A name that none can have; what the kernel says. None is not an error.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        check_name(name)?;
        let mut batch = Batch::new();
        batch.push(RTM_GETLINK, 0, &ifinfomsg(0, 0, (0, 0)), |m| {
            m.text(IFLA_IFNAME, name).u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        });
        one(self.channel(), batch, format_args!("look for the interface {name}"))
    }

    /// The interface of this index.
    ///
    /// # Errors
    /// What the kernel says. None is not an error.
    pub fn link_by_index(&mut self, index: u32) -> Result<Option<Link>> {
        let mut batch = Batch::new();
        batch.push(RTM_GETLINK, 0, &ifinfomsg(0, index, (0, 0)), |m| {
            m.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        });
        one(self.channel(), batch, format_args!("look for interface {index}"))
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
        let mut batch = Batch::new();
        batch.push(RTM_NEWLINK, 0, &ifinfomsg(0, index, change.flags()), |m| change.write(m));
        self.channel().order(batch, format_args!("change interface {index}"))
    }

    /// Sets `lo` up: a new namespace has it down. The kernel gives it its addresses, 127.0.0.1 and ::1.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn loopback_up(&mut self) -> Result<()> {
        let mut batch = Batch::new();
        batch.push(RTM_NEWLINK, 0, &ifinfomsg(0, 0, (IFF_UP, IFF_UP)), |m| {
            m.text(IFLA_IFNAME, "lo");
        });
        self.channel().order(batch, format_args!("bring the loopback interface up"))
    }

    /// Deletes an interface; of a veth pair both ends. Whether it was there.
    ///
    /// The kernel waits for grace periods of RCU here: by far the slowest of these operations (see [`super`]).
    ///
    /// # Errors
    /// What the kernel says: hardware cannot be deleted (EOPNOTSUPP).
    pub fn delete_link(&mut self, index: u32) -> Result<bool> {
        let mut batch = Batch::new();
        batch.push(RTM_DELLINK, 0, &ifinfomsg(0, index, (0, 0)), |_| {});
        gone(self.channel().order(batch, format_args!("delete interface {index}")))
    }

    /// As [`Self::delete_link`], by name.
    ///
    /// # Errors
    /// As [`Self::delete_link`]; a name that none can have.
    pub fn delete_link_named(&mut self, name: &str) -> Result<bool> {
        check_name(name)?;
        let mut batch = Batch::new();
        batch.push(RTM_DELLINK, 0, &ifinfomsg(0, 0, (0, 0)), |m| {
            m.text(IFLA_IFNAME, name);
        });
        gone(self.channel().order(batch, format_args!("delete the interface {name}")))
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

fn parse_statistics(bytes: &[u8]) -> Statistics {
    let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map(u64::from_ne_bytes).unwrap_or_default());
    let mut next = || words.next().unwrap_or_default();
    Statistics {
        rx_packets: next(),
        tx_packets: next(),
        rx_bytes: next(),
        tx_bytes: next(),
        rx_errors: next(),
        tx_errors: next(),
        rx_dropped: next(),
        tx_dropped: next(),
    }
}

fn one(channel: &mut Channel, batch: Batch, what: std::fmt::Arguments<'_>) -> Result<Option<Link>> {
    let mut found = None;
    let done = channel.request(batch, what, &mut |message| {
        found = parse(message)?.or(found.take());
        Ok(())
    });
    none_if(done.map(|()| found), Errno::NODEV)
}

fn none_if<T>(result: Result<Option<T>>, errno: Errno) -> Result<Option<T>> {
    match result {
        Err(error) if error.is(errno) => Ok(None),
        other => other,
    }
}

fn gone(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Error::Kernel { errno: Errno::NODEV, .. }) => Ok(false),
        Err(other) => Err(other),
    }
}
