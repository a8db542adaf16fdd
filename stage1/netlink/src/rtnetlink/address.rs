//! Addresses of interfaces, IPv4 and IPv6.

use std::net::{IpAddr, Ipv4Addr};

use rustix::io::Errno;

use super::socket::Socket;
use crate::address::Cidr;
use crate::error::{Error, Malformed, Result};
use crate::family::{address, family, octets};
use crate::message::{Batch, F_CREATE, F_EXCL, Message};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;

const IFA_F_NODAD: u32 = 0x02;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_NOPREFIXROUTE: u32 = 0x200;

const IFADDRMSG: usize = 8;

/// How far an address or a route is valid (`rtm_scope`, rtnetlink(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Everywhere.
    #[default]
    Universe,
    /// Within the site.
    Site,
    /// On the network that the interface is on.
    Link,
    /// On this host.
    Host,
    /// Another number.
    Other(u8),
}

impl Scope {
    /// `RT_SCOPE_*`.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Universe => 0,
            Self::Site => 200,
            Self::Link => 253,
            Self::Host => 254,
            Self::Other(number) => number,
        }
    }
}

impl From<u8> for Scope {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Universe,
            200 => Self::Site,
            253 => Self::Link,
            254 => Self::Host,
            other => Self::Other(other),
        }
    }
}

/// An address to be given to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address and the length of its network.
    pub prefix: Cidr,
    /// The other side's address, on a cable of two (`prefix`'s length then says the other side's network).
    pub peer: Option<IpAddr>,
    /// The address that means all stations. IPv4 only.
    pub broadcast: Option<Ipv4Addr>,
    /// How far it is valid. IPv4 only: of IPv6 the kernel sees it in the address.
    pub scope: Scope,
    /// Use it at once (RFC 4429 calls it tentative until nobody else was found to have it, which takes a second). IPv4 always does.
    pub no_dad: bool,
    /// Make no route to its network.
    pub no_prefix_route: bool,
}

impl Address {
    /// As most are: no broadcast address, valid everywhere, and usable at once, since who gives the addresses knows that
    /// nobody else has this one.
    #[must_use]
    pub fn new(prefix: Cidr) -> Self {
        Self { prefix, peer: None, broadcast: None, scope: Scope::Universe, no_dad: true, no_prefix_route: false }
    }

    pub(super) fn flags(&self) -> u32 {
        let no_dad = self.no_dad && !self.prefix.is_ipv4();
        (if no_dad { IFA_F_NODAD } else { 0 }) | (if self.no_prefix_route { IFA_F_NOPREFIXROUTE } else { 0 })
    }

    pub(super) fn head(&self, index: u32) -> [u8; IFADDRMSG] {
        head(family(self.prefix.address()), self.prefix.length(), self.scope, index)
    }

    pub(super) fn write(&self, m: &mut Batch) {
        m.bytes(IFA_LOCAL, &octets(self.prefix.address()));
        m.bytes(IFA_ADDRESS, &octets(self.peer.unwrap_or(self.prefix.address())));
    }

    /// Adds the message that gives it to an interface.
    pub(super) fn push(&self, index: u32, batch: &mut Batch) {
        batch.push(RTM_NEWADDR, F_CREATE | F_EXCL, &self.head(index), |m| {
            self.write(m);
            m.u32(IFA_FLAGS, self.flags());
            if let Some(broadcast) = self.broadcast {
                m.bytes(IFA_BROADCAST, &broadcast.octets());
            }
        });
    }

    pub(super) fn check(&self) -> Result<()> {
        let v4 = self.prefix.is_ipv4();
        let why = if self.peer.is_some_and(|peer| peer.is_ipv4() != v4) {
            "the other side's address is of the other family"
        } else if self.broadcast.is_some() && !v4 {
            "IPv6 has no broadcast"
        } else {
            return Ok(());
        };
        Err(Error::Invalid { what: format!("use the address {}", self.prefix), why: why.to_owned() })
    }
}

/// An address that an interface has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnAddress {
    /// The interface.
    pub index: u32,
    /// What it has.
    pub address: Address,
    /// It cannot be used yet: it is not known whether somebody else has it. IPv6 only.
    pub tentative: bool,
    /// Somebody else has it, and it is not used. IPv6 only.
    pub duplicate: bool,
}

fn head(family: u8, length: u8, scope: Scope, index: u32) -> [u8; IFADDRMSG] {
    let [a, b, c, d] = index.to_ne_bytes();
    // The flags here are of one byte; all of them are in IFA_FLAGS.
    [family, length, 0, scope.number(), a, b, c, d]
}

/// An address out of RTM_NEWADDR; None for other messages and other families.
pub(super) fn parse(message: &Message<'_>) -> std::result::Result<Option<OwnAddress>, Malformed> {
    if message.kind != RTM_NEWADDR {
        return Ok(None);
    }
    let (fixed, attributes) = message.split(IFADDRMSG)?;
    let [_, length, flags, scope, index @ ..] = fixed else {
        return Err(Malformed("an address without its fixed part"));
    };
    let index = index.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    let at = |kind| attributes.get(kind).and_then(|attribute| address(&attribute));
    let flags = attributes.get(IFA_FLAGS).and_then(|flags| flags.u32()).unwrap_or_else(|| u32::from(*flags));
    // IPv6 has IFA_LOCAL only with a peer.
    let (Some(own), remote) = (at(IFA_LOCAL).or_else(|| at(IFA_ADDRESS)), at(IFA_ADDRESS)) else { return Ok(None) };
    let broadcast = match at(IFA_BROADCAST) {
        Some(IpAddr::V4(v4)) => Some(v4),
        _ => None,
    };
    let address = Address {
        prefix: Cidr::new(own, *length).map_err(|_| Malformed("an address with a length beyond its bits"))?,
        peer: remote.filter(|remote| *remote != own),
        broadcast,
        scope: Scope::from(*scope),
        no_dad: own.is_ipv4() || flags & IFA_F_NODAD != 0,
        no_prefix_route: flags & IFA_F_NOPREFIXROUTE != 0,
    };
    Ok(Some(OwnAddress {
        index,
        address,
        tentative: flags & IFA_F_TENTATIVE != 0,
        duplicate: flags & IFA_F_DADFAILED != 0,
    }))
}

impl Socket {
    /// Gives an interface an address. One that it has already is fine if peer, broadcast, scope and prefix route are as asked for.
    ///
    /// That others learn of it at once is the business of the sysctl `arp_notify` (with `ndisc_notify` for IPv6): with it the kernel itself sends
    /// gratuitous ARP when an interface comes up or changes its hardware address, so none is sent from here.
    ///
    /// # Errors
    /// [`Error::Different`] when it has it otherwise; [`Error::Invalid`]; what the kernel says: the interface is gone (ENODEV), IPv6 is off (EACCES, EOPNOTSUPP).
    pub fn add_address(&mut self, index: u32, address: &Address) -> Result<()> {
        address.check()?;
        let prefix = address.prefix;
        let mut batch = Batch::new();
        address.push(index, &mut batch);
        let what = format_args!("give interface {index} the address {prefix}");
        let error = match self.channel().order(batch, what) {
            Err(error) if error.is(Errno::EXIST) => error,
            other => return other,
        };
        let found = self.addresses(Some(index))?;
        let same = |own: &&OwnAddress| own.address.prefix == prefix && own.address.peer == address.peer;
        match found.iter().find(same) {
            Some(own) => match difference(address, &own.address) {
                None => Ok(()),
                Some(difference) => Err(Error::Different { what: what.to_string(), difference: difference.to_owned() }),
            },
            None => Err(error),
        }
    }

    /// Takes an address from an interface. Whether it was there; one without its interface was not.
    ///
    /// # Errors
    /// [`Error::Invalid`]; what the kernel says.
    pub fn delete_address(&mut self, index: u32, address: &Address) -> Result<bool> {
        address.check()?;
        let mut batch = Batch::new();
        batch.push(RTM_DELADDR, 0, &address.head(index), |m| address.write(m));
        let what = format_args!("take the address {} from interface {index}", address.prefix);
        match self.channel().order(batch, what) {
            Ok(()) => Ok(true),
            Err(Error::Kernel { errno: Errno::ADDRNOTAVAIL | Errno::NODEV, .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// The addresses of an interface, or of all.
    ///
    /// # Errors
    /// What the kernel says. An interface that is gone has none.
    pub fn addresses(&mut self, index: Option<u32>) -> Result<Vec<OwnAddress>> {
        let fixed = head(0, 0, Scope::Universe, index.unwrap_or(0));
        let request = |batch: &mut Batch, flags: u16| batch.push(RTM_GETADDR, flags, &fixed, |_| {});
        match self.channel().dump(&request, format_args!("list the addresses"), &parse) {
            Err(error) if error.is(Errno::NODEV) => Ok(Vec::new()),
            Ok(mut found) => {
                found.retain(|own| index.is_none_or(|index| own.index == index));
                Ok(found)
            }
            other => other,
        }
    }
}

fn difference(want: &Address, has: &Address) -> Option<&'static str> {
    let v4 = want.prefix.is_ipv4();
    if want.broadcast != has.broadcast {
        return Some("with another broadcast address");
    }
    if v4 && want.scope != has.scope {
        return Some("with another scope");
    }
    (want.no_prefix_route != has.no_prefix_route).then_some("with or without a route to its network")
}
