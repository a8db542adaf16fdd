//! Deletes stale conntrack entries of published ports (ctnetlink; the kernel's `nfnetlink_conntrack.h`).
//!
//! NAT rules see only the first packet of a connection. A UDP client that sends again within 30 seconds (two minutes
//! after a reply) continues the old flow, to the host or to a dead pod, although the port was published anew. And a
//! pod that was killed leaves TCP entries behind for days, which break clients that reuse the same source port.
//!
//! Call [`delete_stale_flows`] after publishing ports ([`StaleFlows::Redirected`]) and after unpublishing them
//! ([`StaleFlows::ToDeadPod`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;

use super::Protocol;
use super::error::{Error, Result};
use super::socket_cache;
use super::state::{Forward, HostPort};
use super::wire::FIXED;
use crate::channel::Channel;
use crate::error::Malformed;
use crate::family::{address, family};
use crate::message::{Attributes, Batch, F_DUMP, Message};
use crate::namespace::Namespace;
use crate::rtnetlink::Socket;

/// `NFNL_SUBSYS_CTNETLINK`.
const SUBSYSTEM: u16 = 1;
const GET: u16 = SUBSYSTEM << 8 | 1;
const DELETE: u16 = SUBSYSTEM << 8 | 2;
const GET_STATS: u16 = SUBSYSTEM << 8 | 5;
const CTA_STATS_GLOBAL_ENTRIES: u16 = 1;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
const CTA_STATUS_MASK: u16 = 26;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
/// `CTA_FILTER_FLAG(CTA_PROTO_NUM)` and `CTA_FILTER_FLAG(CTA_PROTO_DST_PORT)` (the kernel's `nf_internals.h`).
const FILTER_PROTOCOL: u32 = 1 << 3;
const FILTER_PORT: u32 = 1 << 5;
/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 1 << 5;

/// The timeout of a conntrack dump.
const DUMP_TIMEOUT: Duration = Duration::from_secs(3);
/// The most flows deleted per dump, and the most dumps.
const MAX_FLOWS: usize = 16_384;
const MAX_ROUNDS: u32 = 16;
/// Up to this many entries, one unfiltered dump is cheaper than one per protocol and IP version.
const MAX_UNFILTERED: u32 = 4096;
/// Delete requests per batch; their errors must fit into the receive buffer.
const MAX_DELETES: usize = 64;
const WHAT_COUNT: &str = "count the connections";
const WHAT_LIST: &str = "list the connections of published ports";
const WHAT_FORGET: &str = "delete a connection of a published port";

/// Which flows of published ports are stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StaleFlows {
    /// After ports were published: flows that still go to the host itself or to another pod. UDP only: existing TCP
    /// and SCTP connections continue, and new ones start with a new entry.
    Redirected,
    /// After ports were unpublished because their pod is dead: flows to it through them, of every protocol.
    ToDeadPod,
}

/// Deletes the stale conntrack entries of these ports in a network namespace, and returns their number. The next
/// packet of such a flow passes the NAT rules again.
///
/// Flows that leave or cross the host to the same port elsewhere, and flows to the ports' current destinations, stay.
///
/// Takes about 5 ms, since the kernel walks its whole hash table, and at most 3 s: not for the time-critical path of
/// a start.
///
/// # Errors
/// If the namespace cannot be entered; if the kernel lacks ctnetlink ([`gantry_model::ErrorKind::Unavailable`]) or
/// does not reply in time; if new flows appear faster than they are deleted.
pub fn delete_stale_flows(host: &Namespace, ports: &BTreeMap<HostPort, Forward>, stale: StaleFlows) -> Result<usize> {
    let wanted = |port: &HostPort| stale == StaleFlows::ToDeadPod || port.protocol == Protocol::Udp;
    let ports: BTreeMap<&HostPort, SocketAddr> =
        ports.iter().filter(|(port, _)| wanted(port)).map(|(port, forward)| (port, forward.to)).collect();
    if ports.is_empty() {
        return Ok(0);
    }
    let mut search = Search { ports, stale, local: BTreeSet::new() };
    // The host's addresses matter only for flows without DNAT.
    if stale == StaleFlows::Redirected && search.ports.keys().any(|port| port.address.is_unspecified()) {
        let addresses = Socket::open_in(host)?.addresses(None)?;
        search.local = addresses.into_iter().map(|one| one.address.prefix.address()).collect();
    }
    host.enter(|| Ok(socket_cache::with_socket(|socket| delete_found(&mut search, socket))))?
}

fn delete_found(search: &mut Search<'_>, socket: OwnedFd) -> Result<usize> {
    let mut channel = Channel::new(socket);
    channel.set_timeout(DUMP_TIMEOUT);
    let mut count = 0;
    for _ in 0..MAX_ROUNDS {
        let found = search.find(&mut channel)?;
        for chunk in found.chunks(MAX_DELETES) {
            count += delete(&mut channel, chunk)?;
        }
        if found.len() < MAX_FLOWS {
            return Ok(count);
        }
    }
    Err(Error::Contended { what: "delete all stale connections of published ports".to_owned() })
}

/// The criteria of stale flows.
struct Search<'a> {
    ports: BTreeMap<&'a HostPort, SocketAddr>,
    stale: StaleFlows,
    /// The host's addresses.
    local: BTreeSet<IpAddr>,
}

/// A conntrack entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flow {
    protocol: Protocol,
    /// The original destination.
    to: SocketAddr,
    /// The source of replies: the pod, after DNAT.
    from: SocketAddr,
    handle: Handle,
}

/// Identifies a conntrack entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Handle {
    family: u8,
    /// The attributes of the original direction.
    tuple: Vec<u8>,
    /// The ID, which distinguishes a later entry with the same tuple.
    id: Vec<u8>,
    zone: Option<Vec<u8>>,
}

impl Search<'_> {
    /// The stale flows, at most [`MAX_FLOWS`].
    ///
    /// A dump walks the kernel's whole hash table (5 ms at the usual size), and can filter for one protocol and IP
    /// version. A table with few entries is therefore dumped once and filtered here.
    fn find(&self, channel: &mut Channel) -> Result<Vec<Handle>> {
        let mut found = Vec::new();
        let entries = count(channel)?;
        let kinds: BTreeSet<_> = match entries {
            0 => return Ok(found),
            1..=MAX_UNFILTERED => [None].into(),
            _ => self.ports.keys().map(|port| Some((port.protocol, family(port.address)))).collect(),
        };
        for kind in kinds {
            let mut batch = Batch::new();
            match kind {
                Some((protocol, version)) => self.write_dump_request(protocol, version, &mut batch),
                None => batch.push(GET, F_DUMP, &[0; FIXED], |_| {}),
            }
            channel.dump_once(batch, WHAT_LIST, &mut |message| -> Result<()> {
                let flow = Flow::read(message).map_err(|Malformed(why)| Error::malformed(WHAT_LIST, why))?;
                if found.len() < MAX_FLOWS
                    && let Some(flow) = flow
                    && self.is_stale(&flow)
                {
                    found.push(flow.handle);
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// Appends a filtered dump request. Linux filters by protocol and port since 5.8, by status since 5.15; older
    /// kernels ignore the filter.
    fn write_dump_request(&self, protocol: Protocol, version: u8, batch: &mut Batch) {
        let of_kind = |port: &&&HostPort| port.protocol == protocol && family(port.address) == version;
        let mut numbers = self.ports.keys().filter(of_kind).map(|port| port.port);
        let first = numbers.next();
        let only = first.filter(|first| numbers.all(|number| number == *first));
        batch.push(GET, F_DUMP, &[version, 0, 0, 0], |batch| {
            batch.nested(CTA_TUPLE_ORIG, |tuple| {
                tuple.nested(CTA_TUPLE_PROTO, |proto| {
                    proto.u8(CTA_PROTO_NUM, protocol.number());
                    if let Some(port) = only {
                        proto.bytes(CTA_PROTO_DST_PORT, &port.to_be_bytes());
                    }
                });
            });
            batch.nested(CTA_FILTER, |filter| {
                let port = if only.is_some() { FILTER_PORT } else { 0 };
                filter.u32(CTA_FILTER_ORIG_FLAGS, FILTER_PROTOCOL | port);
            });
            if self.stale == StaleFlows::ToDeadPod {
                batch.be32(CTA_STATUS, STATUS_DNAT).be32(CTA_STATUS_MASK, STATUS_DNAT);
            }
        });
    }

    fn is_stale(&self, flow: &Flow) -> bool {
        let on = |address| {
            let port = HostPort { address, protocol: flow.protocol, port: flow.to.port() };
            self.ports.get(&port).copied()
        };
        let any: IpAddr = match flow.to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let Some(destination) = on(flow.to.ip()).or_else(|| on(any)) else { return false };
        let changed = flow.from != flow.to;
        match self.stale {
            StaleFlows::ToDeadPod => changed && flow.from == destination,
            StaleFlows::Redirected => {
                flow.from != destination && (on(flow.to.ip()).is_some() || self.is_local(flow.to.ip()))
            }
        }
    }

    /// Whether the NAT rules treat the address as local: `::1` is excluded.
    fn is_local(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(four) => four.is_loopback() || self.local.contains(&address),
            IpAddr::V6(six) => !six.is_loopback() && self.local.contains(&address),
        }
    }
}

impl Flow {
    /// Parses an entry; None if its protocol cannot be published.
    fn read(message: &Message<'_>) -> std::result::Result<Option<Self>, Malformed> {
        let (_, attributes) = message.split(FIXED)?;
        let (Some(first), Some(answer)) = (attributes.get(CTA_TUPLE_ORIG), attributes.get(CTA_TUPLE_REPLY)) else {
            return Ok(None);
        };
        let (to, from) = (End::read(first.nested()?, true)?, End::read(answer.nested()?, false)?);
        let (Some(to), Some(from), Some(id)) = (to, from, attributes.get(CTA_ID)) else { return Ok(None) };
        let handle = Handle {
            family: family(to.address.ip()),
            tuple: first.payload.to_vec(),
            id: id.payload.to_vec(),
            zone: attributes.get(CTA_ZONE).map(|zone| zone.payload.to_vec()),
        };
        Ok(Some(Self { protocol: to.protocol, to: to.address, from: from.address, handle }))
    }
}

/// The address and port of one end of a direction.
struct End {
    protocol: Protocol,
    address: SocketAddr,
}

impl End {
    fn read(tuple: Attributes<'_>, destination: bool) -> std::result::Result<Option<Self>, Malformed> {
        let (Some(ip), Some(proto)) = (tuple.get(CTA_TUPLE_IP), tuple.get(CTA_TUPLE_PROTO)) else { return Ok(None) };
        let (ip, proto) = (ip.nested()?, proto.nested()?);
        let (four, six, port) = if destination {
            (CTA_IP_V4_DST, CTA_IP_V6_DST, CTA_PROTO_DST_PORT)
        } else {
            (CTA_IP_V4_SRC, CTA_IP_V6_SRC, CTA_PROTO_SRC_PORT)
        };
        let number = proto.get(CTA_PROTO_NUM).and_then(|number| number.payload.first().copied());
        let protocol = number.and_then(Protocol::of_number);
        let port = proto.get(port).and_then(|port| <[u8; 2]>::try_from(port.payload).ok()).map(u16::from_be_bytes);
        let ip = ip.get(four).or_else(|| ip.get(six)).and_then(|ip| address(&ip));
        let (Some(protocol), Some(port), Some(ip)) = (protocol, port, ip) else { return Ok(None) };
        Ok(Some(Self { protocol, address: SocketAddr::new(ip, port) }))
    }
}

/// The number of conntrack entries of the namespace.
fn count(channel: &mut Channel) -> Result<u32> {
    let mut batch = Batch::new();
    batch.push(GET_STATS, 0, &[0; FIXED], |_| {});
    let mut entries = None;
    channel.request(batch, WHAT_COUNT, &mut |message| {
        let (_, attributes) = message.split(FIXED)?;
        entries = attributes.get(CTA_STATS_GLOBAL_ENTRIES).and_then(|entries| entries.be32());
        Ok(())
    })?;
    entries.ok_or_else(|| Error::malformed(WHAT_COUNT, "a reply without the number"))
}

/// Deletes entries and returns how many existed. Tolerates entries that are gone, and busy ones, which a flow table
/// owns.
fn delete(channel: &mut Channel, handles: &[Handle]) -> Result<usize> {
    let mut batch = Batch::new();
    for handle in handles {
        batch.push(DELETE, 0, &[handle.family, 0, 0, 0], |batch| {
            batch.nested(CTA_TUPLE_ORIG, |tuple| {
                tuple.raw(&handle.tuple);
            });
            batch.bytes(CTA_ID, &handle.id);
            if let Some(zone) = &handle.zone {
                batch.bytes(CTA_ZONE, zone);
            }
        });
    }
    let refused = channel.exchange(batch, WHAT_FORGET, &mut |_| Ok(()))?;
    let gone = refused.len();
    match refused.into_iter().find(|refusal| !matches!(refusal.errno, Errno::NOENT | Errno::BUSY)) {
        Some(refusal) => Err(refusal.error(WHAT_FORGET).into()),
        None => Ok(handles.len().saturating_sub(gone)),
    }
}

/// Parses any bytes and classifies the flow, for tests.
#[cfg(test)]
pub(super) fn judge(bytes: &[u8]) {
    let message = Message { kind: GET, flags: 0, number: 1, payload: bytes };
    let search = Search { ports: BTreeMap::new(), stale: StaleFlows::ToDeadPod, local: BTreeSet::new() };
    if let Ok(Some(flow)) = Flow::read(&message) {
        let _ = search.is_stale(&flow);
    }
}
