//! Routes, IPv4 and IPv6.

use std::net::IpAddr;

use rustix::io::Errno;

use super::address::Scope;
use super::socket::Socket;
use crate::address::{Cidr, Prefix};
use crate::error::{Error, Malformed, Result};
use crate::family::{AF_INET, AF_INET6, address, family, octets};
use crate::message::{Attributes, Batch, F_CREATE, F_EXCL, F_REPLACE, Message};

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

const RTNH_F_ONLINK: u32 = 4;
/// Set by an administrator, as opposed to the kernel or a routing daemon.
const RTPROT_STATIC: u8 = 4;
/// What the kernel makes of no priority for IPv6 (IP6_RT_PRIO_USER).
const PRIORITY_V6: u32 = 1024;

const RTMSG: usize = 12;

/// The table that is looked at unless rules say otherwise (RT_TABLE_MAIN).
pub const TABLE_MAIN: u32 = 254;
/// The table of the host's own addresses (RT_TABLE_LOCAL).
pub const TABLE_LOCAL: u32 = 255;

/// What happens to a packet that takes a route (`rtm_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RouteKind {
    /// It goes out.
    #[default]
    Unicast,
    /// It is for this host.
    Local,
    /// It is thrown away without a word.
    Blackhole,
    /// It is thrown away, and the sender hears that there is no way.
    Unreachable,
    /// It is thrown away, and the sender hears that it is forbidden.
    Prohibit,
    /// Another number.
    Other(u8),
}

impl RouteKind {
    fn number(self) -> u8 {
        match self {
            Self::Unicast => 1,
            Self::Local => 2,
            Self::Blackhole => 6,
            Self::Unreachable => 7,
            Self::Prohibit => 8,
            Self::Other(number) => number,
        }
    }

    fn from_number(number: u8) -> Self {
        [Self::Unicast, Self::Local, Self::Blackhole, Self::Unreachable, Self::Prohibit]
            .into_iter()
            .find(|kind| kind.number() == number)
            .unwrap_or(Self::Other(number))
    }
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Where to; [`Prefix::ALL_V4`] and [`Prefix::ALL_V6`] are the default routes.
    pub to: Prefix,
    /// By which neighbour.
    pub gateway: Option<IpAddr>,
    /// By which interface; the kernel finds it by the gateway if not said.
    pub device: Option<u32>,
    /// The address packets of this host leave with.
    pub source: Option<IpAddr>,
    /// How far the destination is; from the gateway if not said: with one everywhere, without one on the network.
    pub scope: Option<Scope>,
    /// The gateway is on the interface's network even if no address says so. Needs `device`.
    pub on_link: bool,
    /// The longest packet that passes, in bytes (RTAX_MTU).
    pub mtu: Option<u32>,
    /// The longest TCP segment to announce, in bytes (RTAX_ADVMSS).
    pub advmss: Option<u32>,
    /// Of routes to the same place the one with the lowest number is taken ("metric" in ip-route(8)). 0 if not said; 1024 for IPv6.
    pub priority: Option<u32>,
    /// The table; [`TABLE_MAIN`] if not said.
    pub table: Option<u32>,
    /// What happens to a packet.
    pub kind: RouteKind,
}

impl Route {
    /// A route to somewhere, of which nothing else is said yet.
    #[must_use]
    pub fn to(to: Prefix) -> Self {
        Self {
            to,
            gateway: None,
            device: None,
            source: None,
            scope: None,
            on_link: false,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            kind: RouteKind::Unicast,
        }
    }

    /// The default route by this gateway and interface.
    #[must_use]
    pub fn default_by(gateway: IpAddr, device: u32) -> Self {
        let to = if gateway.is_ipv4() { Prefix::ALL_V4 } else { Prefix::ALL_V6 };
        Self { gateway: Some(gateway), device: Some(device), ..Self::to(to) }
    }

    pub(super) fn check(&self) -> Result<()> {
        let v4 = self.to.is_ipv4();
        let other = |address: Option<IpAddr>| address.is_some_and(|address| address.is_ipv4() != v4);
        let why = if other(self.gateway) || other(self.source) {
            "its gateway or source address is of the other family"
        } else if self.on_link && (self.gateway.is_none() || self.device.is_none()) {
            "one to a gateway on the link needs the gateway and the interface"
        } else {
            return Ok(());
        };
        Err(Error::Invalid { what: format!("use the route to {}", self.to), why: why.to_owned() })
    }

    pub(super) fn effective_scope(&self) -> Scope {
        let near = self.gateway.is_none() && self.to.is_ipv4();
        self.scope.unwrap_or(match self.kind {
            RouteKind::Local => Scope::Host,
            RouteKind::Unicast if near => Scope::Link,
            _ => Scope::Universe,
        })
    }

    fn effective_priority(&self) -> u32 {
        // The kernel takes an IPv6 route's 0 as "not said".
        let priority = self.priority.unwrap_or(0);
        if priority == 0 && !self.to.is_ipv4() { PRIORITY_V6 } else { priority }
    }

    fn table(&self) -> u32 {
        self.table.unwrap_or(TABLE_MAIN)
    }

    pub(super) fn head(&self, scope: Scope) -> [u8; RTMSG] {
        // A table beyond 255 is in RTA_TABLE alone (RT_TABLE_COMPAT here).
        let table = u8::try_from(self.table()).unwrap_or(252);
        let flags = if self.on_link { RTNH_F_ONLINK } else { 0 };
        let [a, b, c, d] = flags.to_ne_bytes();
        let family = family(self.to.first());
        [family, self.to.length(), 0, 0, table, RTPROT_STATIC, scope.number(), self.kind.number(), a, b, c, d]
    }

    pub(super) fn write(&self, m: &mut Batch) {
        if self.to.length() > 0 {
            m.bytes(RTA_DST, &octets(self.to.first()));
        }
        for (kind, address) in [(RTA_GATEWAY, self.gateway), (RTA_PREFSRC, self.source)] {
            if let Some(address) = address {
                m.bytes(kind, &octets(address));
            }
        }
        for (kind, value) in [(RTA_OIF, self.device), (RTA_PRIORITY, self.priority), (RTA_TABLE, Some(self.table()))] {
            if let Some(value) = value {
                m.u32(kind, value);
            }
        }
        if self.mtu.or(self.advmss).is_some() {
            m.nested(RTA_METRICS, |m| {
                for (kind, value) in [(RTAX_MTU, self.mtu), (RTAX_ADVMSS, self.advmss)] {
                    if let Some(value) = value {
                        m.u32(kind, value);
                    }
                }
            });
        }
    }

    /// Adds the message that adds it, with these flags besides.
    pub(super) fn push(&self, flags: u16, batch: &mut Batch) {
        batch.push(RTM_NEWROUTE, flags, &self.head(self.effective_scope()), |m| self.write(m));
    }

    /// Whether both would be the same entry of a table.
    fn same_place(&self, other: &Self) -> bool {
        self.to == other.to && self.table() == other.table() && self.effective_priority() == other.effective_priority()
    }

    /// Whether `has` does what this asks for.
    fn satisfied_by(&self, has: &Self) -> bool {
        let device = self.device.is_none() || self.device == has.device;
        let source = self.source.is_none() || self.source == has.source;
        let scope = !self.to.is_ipv4() || Some(self.effective_scope()) == has.scope;
        let metrics = self.mtu == has.mtu && self.advmss == has.advmss;
        device && source && scope && metrics && self.gateway == has.gateway && self.kind == has.kind
    }
}

/// Which routes to list.
#[derive(Debug, Clone, Copy, Default)]
pub struct RouteFilter {
    /// Those of IPv4 (true) or IPv6 (false).
    pub v4: Option<bool>,
    /// Those by this interface.
    pub device: Option<u32>,
    /// Those of this table; of all if not said.
    pub table: Option<u32>,
}

/// A route out of RTM_NEWROUTE; None for other messages and other families.
pub(super) fn parse(message: &Message<'_>) -> std::result::Result<Option<Route>, Malformed> {
    if message.kind != RTM_NEWROUTE {
        return Ok(None);
    }
    let (fixed, attributes) = message.split(RTMSG)?;
    let [family, length, _, _, table, _, scope, kind, flags @ ..] = fixed else {
        return Err(Malformed("a route without its fixed part"));
    };
    let everywhere = match *family {
        AF_INET => Prefix::ALL_V4,
        AF_INET6 => Prefix::ALL_V6,
        _ => return Ok(None),
    };
    let flags = flags.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    let word = |kind| attributes.get(kind).and_then(|attribute| attribute.u32());
    let at = |kind| attributes.get(kind).and_then(|attribute| address(&attribute));
    let metrics = attributes.get(RTA_METRICS).map_or(Ok(Attributes::default()), |metrics| metrics.nested())?;
    let metric = |kind| metrics.get(kind).and_then(|attribute| attribute.u32());
    let to = Cidr::new(at(RTA_DST).unwrap_or(everywhere.first()), *length);
    let to = to.map_err(|_| Malformed("a route with a length beyond its address"))?;
    Ok(Some(Route {
        to: to.network(),
        gateway: at(RTA_GATEWAY),
        device: word(RTA_OIF),
        source: at(RTA_PREFSRC),
        scope: Some(Scope::from(*scope)),
        on_link: flags & RTNH_F_ONLINK != 0,
        mtu: metric(RTAX_MTU),
        advmss: metric(RTAX_ADVMSS),
        priority: word(RTA_PRIORITY),
        table: Some(word(RTA_TABLE).unwrap_or_else(|| u32::from(*table))),
        kind: RouteKind::from_number(*kind),
    }))
}

impl Socket {
    /// Adds a route. One that exists and does the same is fine.
    ///
    /// # Errors
    /// [`Error::Different`] when there is another one to the same place with the same priority; [`Error::Invalid`]; what the kernel
    /// says: nobody knows the way to the gateway (ENETUNREACH), the interface is down (ENETDOWN) or gone (ENODEV).
    pub fn add_route(&mut self, route: &Route) -> Result<()> {
        let error = match self.send_route(route, F_CREATE | F_EXCL) {
            Err(error) if error.is(Errno::EXIST) => error,
            other => return other,
        };
        let filter = RouteFilter { v4: Some(route.to.is_ipv4()), device: None, table: Some(route.table()) };
        let found = self.routes(&filter)?;
        let mut rivals = found.iter().filter(|has| route.same_place(has)).peekable();
        if rivals.peek().is_none() {
            return Err(error);
        }
        if rivals.any(|has| route.satisfied_by(has)) {
            return Ok(());
        }
        let what = format!("add the route to {}", route.to);
        Err(Error::Different { what, difference: "by another way".to_owned() })
    }

    /// Adds a route in the place of any to the same place with the same priority.
    ///
    /// # Errors
    /// As [`Self::add_route`].
    pub fn replace_route(&mut self, route: &Route) -> Result<()> {
        self.send_route(route, F_CREATE | F_REPLACE)
    }

    fn send_route(&mut self, route: &Route, flags: u16) -> Result<()> {
        route.check()?;
        let mut batch = Batch::new();
        route.push(flags, &mut batch);
        self.channel().order(batch, format_args!("add the route to {}", route.to))
    }

    /// Deletes a route: the first one that has all that is said. Whether there was one.
    ///
    /// # Errors
    /// [`Error::Invalid`]; what the kernel says.
    pub fn delete_route(&mut self, route: &Route) -> Result<bool> {
        route.check()?;
        // RT_SCOPE_NOWHERE: of any scope.
        let scope = route.scope.unwrap_or(Scope::Other(255));
        let mut batch = Batch::new();
        batch.push(RTM_DELROUTE, 0, &any_protocol(route.head(scope)), |m| route.write(m));
        match self.channel().order(batch, format_args!("delete the route to {}", route.to)) {
            Ok(()) => Ok(true),
            Err(Error::Kernel { errno: Errno::SRCH | Errno::NODEV, .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// The routes a filter lets through. A route by several ways at once has neither gateway nor interface here.
    ///
    /// # Errors
    /// What the kernel says; more than 100 000 of them.
    pub fn routes(&mut self, filter: &RouteFilter) -> Result<Vec<Route>> {
        let mut found = Vec::new();
        for family in [AF_INET, AF_INET6] {
            if filter.v4.is_some_and(|v4| v4 != (family == AF_INET)) {
                continue;
            }
            let mut head = [0; RTMSG];
            head[0] = family;
            let request = |batch: &mut Batch, flags: u16| {
                batch.push(RTM_GETROUTE, flags, &head, |m| {
                    for (kind, value) in [(RTA_TABLE, filter.table), (RTA_OIF, filter.device)] {
                        if let Some(value) = value {
                            m.u32(kind, value);
                        }
                    }
                });
            };
            match self.channel().dump(&request, format_args!("list the routes"), &parse) {
                Ok(some) => found.extend(some),
                // No such table, no such interface, no such family: no routes.
                Err(Error::Kernel { errno: Errno::NOENT | Errno::NODEV | Errno::AFNOSUPPORT, .. }) => {}
                Err(other) => return Err(other),
            }
        }
        found.retain(|route| {
            filter.device.is_none_or(|device| route.device == Some(device))
                && filter.table.is_none_or(|table| route.table == Some(table))
        });
        Ok(found)
    }
}

/// Routes of whoever made them: to be deleted, one need not be ours.
fn any_protocol(mut head: [u8; RTMSG]) -> [u8; RTMSG] {
    head[5] = 0;
    head
}
