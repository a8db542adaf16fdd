//! Routes, IPv4 and IPv6.

use std::net::IpAddr;

use rustix::io::Errno;

use super::address::Scope;
use super::socket::Socket;
use crate::address::{Cidr, Prefix};
use crate::error::{Error, Malformed, Result};
use crate::family::{AF_INET, AF_INET6, address, family, octets};
use crate::message::{Attributes, Batch, F_CREATE, F_EXCL, Message};

const RTM_NEWROUTE: u16 = 24;
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
/// `RTPROT_STATIC`: set by an administrator, not by the kernel or a routing daemon.
const RTPROT_STATIC: u8 = 4;
/// The kernel's default priority of IPv6 routes (`IP6_RT_PRIO_USER`).
const PRIORITY_V6: u32 = 1024;

const RTMSG: usize = 12;

/// The main routing table (`RT_TABLE_MAIN`).
pub const TABLE_MAIN: u32 = 254;

/// The kernel's treatment of a packet that matches a route (`rtm_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RouteKind {
    /// Forward it.
    #[default]
    Unicast,
    /// Deliver it to this host.
    Local,
    /// Drop it silently.
    Blackhole,
    /// Drop it with an ICMP unreachable.
    Unreachable,
    /// Drop it with an ICMP prohibited.
    Prohibit,
    /// Another value.
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
    /// The destination; [`Prefix::ALL_V4`] and [`Prefix::ALL_V6`] are the default routes.
    pub to: Prefix,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The index of the outgoing interface; by default the kernel finds it by the gateway.
    pub device: Option<u32>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// The scope of the destination; by default global with a gateway, the link without one.
    pub scope: Option<Scope>,
    /// The gateway is on the link even if no address of the interface covers it (`RTNH_F_ONLINK`). Needs `device`.
    pub on_link: bool,
    /// The path MTU in bytes (`RTAX_MTU`).
    pub mtu: Option<u32>,
    /// The advertised TCP maximum segment size in bytes (`RTAX_ADVMSS`).
    pub advmss: Option<u32>,
    /// The metric (ip-route(8)): the lowest wins. By default 0, and 1024 for IPv6.
    pub priority: Option<u32>,
    /// The table; by default [`TABLE_MAIN`].
    pub table: Option<u32>,
    /// The treatment of a packet.
    pub kind: RouteKind,
}

impl Route {
    /// A unicast route to `to`, without other properties.
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

    /// The default route through a gateway and interface.
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
            "an on-link route needs a gateway and an interface"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format_args!("use the route to {}", self.to), why))
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
        // The kernel replaces priority 0 of an IPv6 route by the default.
        let priority = self.priority.unwrap_or(0);
        if priority == 0 && !self.to.is_ipv4() { PRIORITY_V6 } else { priority }
    }

    fn table(&self) -> u32 {
        self.table.unwrap_or(TABLE_MAIN)
    }

    pub(super) fn head(&self, scope: Scope) -> [u8; RTMSG] {
        // `rtm_table` has one byte; RTA_TABLE carries larger numbers (RT_TABLE_COMPAT).
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

    /// Appends the request that adds the route, with these flags.
    pub(super) fn push(&self, flags: u16, batch: &mut Batch) {
        batch.push(RTM_NEWROUTE, flags, &self.head(self.effective_scope()), |m| self.write(m));
    }

    /// Whether both have the same key in a table.
    fn has_same_key(&self, other: &Self) -> bool {
        self.to == other.to && self.table() == other.table() && self.effective_priority() == other.effective_priority()
    }

    /// Whether the existing route `has` has the requested properties.
    fn satisfied_by(&self, has: &Self) -> bool {
        let device = self.device.is_none() || self.device == has.device;
        let source = self.source.is_none() || self.source == has.source;
        let scope = !self.to.is_ipv4() || Some(self.effective_scope()) == has.scope;
        let metrics = self.mtu == has.mtu && self.advmss == has.advmss;
        device && source && scope && metrics && self.gateway == has.gateway && self.kind == has.kind
    }
}

/// Selects routes to list.
#[derive(Debug, Clone, Copy, Default)]
pub struct RouteFilter {
    /// Only IPv4 (true) or IPv6 (false).
    pub v4: Option<bool>,
    /// Only routes through the interface of this index.
    pub device: Option<u32>,
    /// Only routes of this table.
    pub table: Option<u32>,
}

/// A route as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnRoute {
    /// The route.
    pub route: Route,
    /// The origin (`rtm_protocol`): 2 the kernel, 3 the boot, 4 an administrator …
    pub protocol: u8,
    /// `RTNH_F_*` and `RTM_F_*`.
    pub flags: u32,
}

/// Parses an RTM_NEWROUTE; None for other messages and families.
pub(super) fn parse_own(message: &Message<'_>) -> std::result::Result<Option<OwnRoute>, Malformed> {
    let Some(route) = parse(message)? else { return Ok(None) };
    let (fixed, _) = message.split(RTMSG)?;
    let [_, _, _, _, _, protocol, _, _, flags @ ..] = fixed else {
        return Err(Malformed("a route without its fixed part"));
    };
    let flags = flags.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    Ok(Some(OwnRoute { route, protocol: *protocol, flags }))
}

/// Parses an RTM_NEWROUTE; None for other messages and families.
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
    /// Adds a route. Succeeds if the same route exists.
    ///
    /// # Errors
    /// Another route to the same destination with the same priority exists; the route is invalid;
    /// errors of the kernel: the gateway is unreachable (ENETUNREACH), the interface is down (ENETDOWN) or gone
    /// (ENODEV).
    pub fn add_route(&mut self, route: &Route) -> Result<()> {
        let error = match self.send_route(route) {
            Err(error) if error.is(Errno::EXIST) => error,
            other => return other,
        };
        let filter = RouteFilter { v4: Some(route.to.is_ipv4()), device: None, table: Some(route.table()) };
        let found = self.routes(&filter)?;
        let mut rivals = found.iter().filter(|has| route.has_same_key(has)).peekable();
        if rivals.peek().is_none() {
            return Err(error);
        }
        if rivals.any(|has| route.satisfied_by(has)) {
            return Ok(());
        }
        let what = format_args!("add the route to {}", route.to);
        Err(Error::different(what, "through another gateway or interface"))
    }

    fn send_route(&mut self, route: &Route) -> Result<()> {
        route.check()?;
        let mut batch = Batch::new();
        route.push(F_CREATE | F_EXCL, &mut batch);
        self.channel().execute(batch, format_args!("add the route to {}", route.to))
    }

    /// The route that the kernel chooses for a packet of this host to an address; None if there is none. Costs one
    /// request, however many routes there are, and does not take the kernel's RTNL lock.
    ///
    /// # Errors
    /// The kernel does not reply in time, or its reply is malformed.
    pub fn route_to(&mut self, address: IpAddr) -> Result<Option<Route>> {
        let to = Cidr::host(address);
        let mut head = [0; RTMSG];
        [head[0], head[1]] = [family(address), to.length()];
        let mut batch = Batch::new();
        batch.push(RTM_GETROUTE, 0, &head, |m| {
            m.bytes(RTA_DST, &octets(address));
        });
        let mut found = None;
        let done = self.channel().request(batch, format_args!("look up the route to {address}"), &mut |message| {
            found = parse(message)?.or(found.take());
            Ok(())
        });
        match done {
            Ok(()) => Ok(found),
            // No route (ENETUNREACH), one that drops packets (EINVAL, EACCES, EHOSTUNREACH), or no such address family.
            Err(Error::Kernel { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// The routes that match a filter. Multipath routes are listed without gateway and interface.
    ///
    /// # Errors
    /// Errors of the kernel; more than 100 000 routes.
    pub fn routes(&mut self, filter: &RouteFilter) -> Result<Vec<Route>> {
        self.dump_routes(filter, &parse, &|route| *route)
    }

    /// Lists routes, with their origins and flags.
    ///
    /// # Errors
    /// As [`Self::routes`].
    pub fn own_routes(&mut self, filter: &RouteFilter) -> Result<Vec<OwnRoute>> {
        self.dump_routes(filter, &parse_own, &|own| own.route)
    }

    fn dump_routes<T>(
        &mut self,
        filter: &RouteFilter,
        parse: &dyn Fn(&Message<'_>) -> std::result::Result<Option<T>, Malformed>,
        route_of: &dyn Fn(&T) -> Route,
    ) -> Result<Vec<T>> {
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
            match self.channel().dump(&request, format_args!("list the routes"), parse) {
                Ok(some) => found.extend(some),
                // The table, the interface or the address family does not exist.
                Err(Error::Kernel { errno: Errno::NOENT | Errno::NODEV | Errno::AFNOSUPPORT, .. }) => {}
                Err(other) => return Err(other),
            }
        }
        found.retain(|found| {
            let route = route_of(found);
            filter.device.is_none_or(|device| route.device == Some(device))
                && filter.table.is_none_or(|table| route.table == Some(table))
        });
        Ok(found)
    }
}
