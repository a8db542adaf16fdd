//! `macvlan`, `ipvlan`: pods as stations on the network of an interface, and `loopback`. The host has no part in what they send,
//! so the tables hold nothing for them, and they go with the pod's namespace.

use std::os::fd::AsFd;

use super::addresses::give;
use super::chain::Chain;
use super::error::NativeError;
use super::inside::{self, How, Inside, derived_mac};
use super::result::{at_pod, ips};
use super::{Added, Ends};
use crate::address::{Cidr, Prefix};
use crate::config::{Ipvlan, IpvlanMode, Macvlan, MacvlanMode, NetworkConfig};
use crate::netlink::Socket;
use crate::netlink::link::create::{self, LinkKind, NewLink};
use crate::netlink::link::{Change, Link};
use crate::netlink::route::{RouteFilter, TABLE_MAIN};
use crate::nft::Entries;
use crate::plugin::{Address, Attachment, NetworkResult};

/// The interface that is sat on.
struct Master<'a> {
    name: Option<&'a str>,
    in_pod: bool,
    mtu: Option<u32>,
}

pub(super) fn macvlan(
    network: &NetworkConfig,
    chain: &Chain<'_>,
    wanted: &Macvlan,
    attachment: &Attachment,
    ends: &mut Ends<'_>,
) -> Result<Added, NativeError> {
    let mode = match wanted.mode {
        MacvlanMode::Bridge => create::MacvlanMode::Bridge,
        MacvlanMode::Private => create::MacvlanMode::Private,
        MacvlanMode::Vepa => create::MacvlanMode::Vepa,
        MacvlanMode::Passthru => create::MacvlanMode::Passthru,
    };
    let master = Master { name: wanted.master.as_deref(), in_pod: wanted.link_in_container, mtu: wanted.mtu };
    station(network, chain, attachment, ends, (&master, &|parent| LinkKind::Macvlan { parent, mode }))
}

pub(super) fn ipvlan(
    network: &NetworkConfig,
    chain: &Chain<'_>,
    wanted: &Ipvlan,
    attachment: &Attachment,
    ends: &mut Ends<'_>,
) -> Result<Added, NativeError> {
    let mode = match wanted.mode {
        IpvlanMode::L2 => create::IpvlanMode::L2,
        IpvlanMode::L3 => create::IpvlanMode::L3,
        IpvlanMode::L3s => create::IpvlanMode::L3s,
    };
    let master = Master { name: wanted.master.as_deref(), in_pod: wanted.link_in_container, mtu: wanted.mtu };
    station(network, chain, attachment, ends, (&master, &|parent| LinkKind::Ipvlan { parent, mode }))
}

type Kind<'k> = &'k dyn Fn(u32) -> LinkKind<'static>;

fn station(
    network: &NetworkConfig,
    chain: &Chain<'_>,
    attachment: &Attachment,
    ends: &mut Ends<'_>,
    (master, kind): (&Master<'_>, Kind<'_>),
) -> Result<Added, NativeError> {
    let given = give(network, chain, attachment, ends.leases)?;
    let socket = if master.in_pod { &mut ends.pod } else { &mut ends.host };
    let parent = master.find(socket)?;
    let kind = kind(parent.index);
    // An ipvlan has its master's hardware address.
    let derived = match kind {
        LinkKind::Macvlan { .. } if !given.ips.is_empty() => Some(derived_mac(&given, attachment)),
        _ => None,
    };
    let inside = Inside::of(chain, attachment, derived)?;
    let mtu = inside.mtu.or(master.mtu);
    if let Some(mtu) = mtu.filter(|mtu| *mtu > parent.mtu) {
        let problem = format!("the MTU {mtu} is more than that of {}, {}", parent.name, parent.mtu);
        return Err(NativeError::Invalid(problem));
    }
    let namespace = (!master.in_pod).then(|| ends.pod_namespace.as_fd());
    let with = Change { namespace, mtu, ..inside.change() };
    socket.create_link(&NewLink { name: &attachment.interface, kind, with })?;
    inside::finish(ends, attachment, &inside, &given, How::default())?;
    let name = &attachment.interface;
    let link = ends.pod.link(name)?.ok_or_else(|| NativeError::Gone { name: name.clone() })?;
    let ips = ips(&given, 0);
    let result =
        NetworkResult { interfaces: vec![at_pod(&link, attachment)], ips, routes: given.routes, dns: given.dns };
    Ok(Added { result, entries: Entries::new(), took_over: None })
}

impl Master<'_> {
    /// The interface of the name, or that of the default route, IPv4's before IPv6's.
    fn find(&self, socket: &mut Socket) -> Result<Link, NativeError> {
        if let Some(name) = self.name {
            return socket.link(name)?.ok_or_else(|| NativeError::NoMaster { name: name.to_owned() });
        }
        for (v4, all) in [(true, Prefix::ALL_V4), (false, Prefix::ALL_V6)] {
            let routes = socket.routes(&RouteFilter { v4: Some(v4), device: None, table: Some(TABLE_MAIN) })?;
            let defaults = routes.iter().filter(|route| route.to == all);
            let best = defaults.filter(|route| route.device.is_some()).min_by_key(|route| route.priority.unwrap_or(0));
            if let Some(index) = best.and_then(|route| route.device)
                && let Some(link) = socket.link_by_index(index)?
            {
                return Ok(link);
            }
        }
        Err(NativeError::NoDefaultRoute)
    }
}

/// `lo`, whatever name is asked for.
pub(super) fn loopback(chain: &Chain<'_>, attachment: &Attachment, ends: &mut Ends<'_>) -> Result<Added, NativeError> {
    let attachment = &Attachment { interface: "lo".to_owned(), ..attachment.clone() };
    inside::tune(ends, &Inside::of(chain, attachment, None)?)?;
    ends.pod.loopback_up()?;
    let Some(link) = ends.pod.link("lo")? else { return Err(NativeError::Gone { name: "lo".to_owned() }) };
    let own = ends.pod.addresses(Some(link.index))?;
    let address = |prefix: Cidr| Address { address: prefix, gateway: None, interface: Some(0) };
    let result = NetworkResult {
        interfaces: vec![at_pod(&link, attachment)],
        ips: own.iter().map(|own| address(own.address.prefix)).collect(),
        ..NetworkResult::default()
    };
    Ok(Added { result, entries: Entries::new(), took_over: None })
}
