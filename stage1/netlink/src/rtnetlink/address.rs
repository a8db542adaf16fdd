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

/// The scope of an address or a route (`rtm_scope`, rtnetlink(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Global.
    #[default]
    Universe,
    /// The site.
    Site,
    /// The link of the interface.
    Link,
    /// This host.
    Host,
    /// Another value.
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

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The address and its prefix length.
    pub prefix: Cidr,
    /// The address of the other end of a point-to-point link; the prefix length then applies to it.
    pub peer: Option<IpAddr>,
    /// The broadcast address. IPv4 only.
    pub broadcast: Option<Ipv4Addr>,
    /// The scope. IPv4 only: the kernel derives it from an IPv6 address.
    pub scope: Scope,
    /// Skip duplicate address detection (RFC 4862 section 5.4), during which the address is unusable for a second.
    /// IPv4 has none.
    pub no_dad: bool,
    /// Add no route to its network (`IFA_F_NOPREFIXROUTE`).
    pub no_prefix_route: bool,
}

impl Address {
    /// An address without broadcast address, of global scope, and without duplicate address detection: address
    /// management assigns each address once.
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

    /// Appends the request that adds the address to an interface.
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
            "the peer address is of the other family"
        } else if self.broadcast.is_some() && !v4 {
            "IPv6 has no broadcast"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format_args!("use the address {}", self.prefix), why))
    }
}

/// An address as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnAddress {
    /// The index of the interface.
    pub index: u32,
    /// The address.
    pub address: Address,
    /// Duplicate address detection is not finished, so the address is unusable. IPv6 only.
    pub tentative: bool,
    /// Duplicate address detection failed, so the address is unusable. IPv6 only.
    pub duplicate: bool,
}

fn head(family: u8, length: u8, scope: Scope, index: u32) -> [u8; IFADDRMSG] {
    let [a, b, c, d] = index.to_ne_bytes();
    // `ifa_flags` has one byte; IFA_FLAGS carries all flags.
    [family, length, 0, scope.number(), a, b, c, d]
}

/// Parses an RTM_NEWADDR; None for other messages and families.
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
    // IPv6 has IFA_LOCAL only for addresses with a peer.
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
    /// Adds an address to an interface. Succeeds if it exists with the same peer, broadcast address, scope and prefix
    /// route.
    ///
    /// Sends no gratuitous ARP: with the sysctls `arp_notify` and `ndisc_notify`, the kernel announces the interface's
    /// addresses when it comes up.
    ///
    /// # Errors
    /// The address exists with other properties, or is invalid; errors of the kernel: the
    /// interface is gone (ENODEV), IPv6 is disabled (EACCES, EOPNOTSUPP).
    pub fn add_address(&mut self, index: u32, address: &Address) -> Result<()> {
        address.check()?;
        let prefix = address.prefix;
        let mut batch = Batch::new();
        address.push(index, &mut batch);
        let what = format_args!("add the address {prefix} to interface {index}");
        let error = match self.channel().execute(batch, what) {
            Err(error) if error.is(Errno::EXIST) => error,
            other => return other,
        };
        let found = self.addresses(Some(index))?;
        let same = |own: &&OwnAddress| own.address.prefix == prefix && own.address.peer == address.peer;
        match found.iter().find(same) {
            Some(own) => match difference(address, &own.address) {
                None => Ok(()),
                Some(difference) => Err(Error::different(what, difference)),
            },
            None => Err(error),
        }
    }

    /// Deletes an address from an interface. Returns whether both existed.
    ///
    /// # Errors
    /// The address is invalid; errors of the kernel.
    pub fn delete_address(&mut self, index: u32, address: &Address) -> Result<bool> {
        address.check()?;
        let mut batch = Batch::new();
        batch.push(RTM_DELADDR, 0, &address.head(index), |m| address.write(m));
        let what = format_args!("delete the address {} from interface {index}", address.prefix);
        match self.channel().execute(batch, what) {
            Ok(()) => Ok(true),
            Err(Error::Kernel { errno: Errno::ADDRNOTAVAIL | Errno::NODEV, .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// The addresses of an interface, or of all interfaces.
    ///
    /// # Errors
    /// Errors of the kernel. An interface that is gone has no addresses.
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
