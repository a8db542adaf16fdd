//! `macvlan`, `ipvlan`: pods on the network of a parent interface. Their packets do not pass through the host's stack,
//! so the firewall has no entries for them, and the kernel deletes the interfaces with the pod's namespace.

use std::os::fd::AsFd;

use super::addresses::assign;
use super::error::NativeError;
use super::kind::{AddRequest, InterfaceKind, KindProperties};
use super::pod_interface::{self, PodInterface, SetupOptions, derived_mac, set_down};
use super::result::{pod_side, result_ips};
use super::{Added, Ends};
use crate::address::Prefix;
use crate::config::{Ipam, Ipvlan, IpvlanMode, Macvlan, MacvlanMode};
use crate::netlink::link::create::{self, LinkKind, NewLink};
use crate::netlink::link::{Change, Link};
use crate::netlink::route::{RouteFilter, TABLE_MAIN};
use crate::netlink::{Namespace, Socket};
use crate::nft::Entries;
use crate::plugin::{Attachment, NetworkResult};

/// The parent interface (`master` in CNI).
struct Parent<'a> {
    /// `None`: the interface of the default route.
    name: Option<&'a str>,
    /// It is in the pod's network namespace.
    in_pod: bool,
    mtu: Option<u32>,
}

impl InterfaceKind for Macvlan {
    fn obstacle(&self, _: Option<&Ipam>) -> Option<String> {
        self.bc_queue_len.map(|_| "macvlan with bcqueuelen".to_owned())
    }

    fn add(&self, request: &AddRequest<'_>, ends: &mut Ends<'_>) -> Result<Added, NativeError> {
        let mode = match self.mode {
            MacvlanMode::Bridge => create::MacvlanMode::Bridge,
            MacvlanMode::Private => create::MacvlanMode::Private,
            MacvlanMode::Vepa => create::MacvlanMode::Vepa,
            MacvlanMode::Passthru => create::MacvlanMode::Passthru,
        };
        let parent = Parent { name: self.master.as_deref(), in_pod: self.link_in_container, mtu: self.mtu };
        add_to_parent(request, ends, &parent, &|parent| LinkKind::Macvlan { parent, mode })
    }

    fn disconnect(&self, attachment: &Attachment, _: &mut Socket, pod: &Namespace) -> Result<(), NativeError> {
        set_pod_end_down(attachment, pod)
    }

    fn del(&self, _: &Attachment, _: &mut Socket) -> Result<(), NativeError> {
        Ok(())
    }

    fn describe(&self) -> KindProperties<'_> {
        KindProperties {
            host_interface: self.master.as_deref(),
            has_firewall: true,
            has_own_mac: true,
            mac: self.mac,
            ..KindProperties::default()
        }
    }
}

impl InterfaceKind for Ipvlan {
    fn obstacle(&self, _: Option<&Ipam>) -> Option<String> {
        None
    }

    fn add(&self, request: &AddRequest<'_>, ends: &mut Ends<'_>) -> Result<Added, NativeError> {
        let mode = match self.mode {
            IpvlanMode::L2 => create::IpvlanMode::L2,
            IpvlanMode::L3 => create::IpvlanMode::L3,
            IpvlanMode::L3s => create::IpvlanMode::L3s,
        };
        let parent = Parent { name: self.master.as_deref(), in_pod: self.link_in_container, mtu: self.mtu };
        add_to_parent(request, ends, &parent, &|parent| LinkKind::Ipvlan { parent, mode })
    }

    fn disconnect(&self, attachment: &Attachment, _: &mut Socket, pod: &Namespace) -> Result<(), NativeError> {
        set_pod_end_down(attachment, pod)
    }

    fn del(&self, _: &Attachment, _: &mut Socket) -> Result<(), NativeError> {
        Ok(())
    }

    fn describe(&self) -> KindProperties<'_> {
        KindProperties { host_interface: self.master.as_deref(), has_firewall: true, ..KindProperties::default() }
    }
}

fn add_to_parent(
    request: &AddRequest<'_>,
    ends: &mut Ends<'_>,
    parent: &Parent<'_>,
    kind: &dyn Fn(u32) -> LinkKind<'static>,
) -> Result<Added, NativeError> {
    let AddRequest { network, chain, attachment } = *request;
    let assignment = assign(network, chain, attachment, ends.leases)?;
    let parent_link = parent.find(if parent.in_pod { &mut ends.pod } else { &mut ends.host })?;
    let kind = kind(parent_link.index);
    // An ipvlan interface has its parent's hardware address.
    let derived = match kind {
        LinkKind::Macvlan { .. } if !assignment.ips.is_empty() => Some(derived_mac(&assignment, attachment)),
        // The kernel chooses the address.
        _ => None,
    };
    let interface = PodInterface::new(chain, attachment, derived)?;
    let mtu = interface.mtu.or(parent.mtu);
    if let Some(mtu) = mtu.filter(|mtu| *mtu > parent_link.mtu) {
        let problem = format!("the MTU {mtu} exceeds the MTU {} of {}", parent_link.mtu, parent_link.name);
        return Err(NativeError::invalid(problem));
    }
    let namespace = (!parent.in_pod).then(|| ends.pod_namespace.as_fd());
    let with = Change { namespace, mtu, ..interface.change() };
    let name = &attachment.interface;
    // Created from the namespace that the parent is in.
    let socket = if parent.in_pod { &mut ends.pod } else { &mut ends.host };
    socket.create_link(&NewLink { name, kind, with })?;
    pod_interface::set_up(ends, attachment, &interface, &assignment, SetupOptions::default())?;
    let link = ends.pod.link(name)?.ok_or_else(|| NativeError::vanished(name))?;
    let ips = result_ips(&assignment, 0);
    let interfaces = vec![pod_side(&link, attachment)];
    let result = NetworkResult { interfaces, ips, routes: assignment.routes, dns: assignment.dns };
    Ok(Added { result, entries: Entries::new(), took_over: None })
}

/// Sets the pod's interface down, if it exists.
fn set_pod_end_down(attachment: &Attachment, pod: &Namespace) -> Result<(), NativeError> {
    let mut socket = Socket::open_in(pod)?;
    match socket.index(&attachment.interface)? {
        Some(index) => set_down(&mut socket, index),
        None => Ok(()),
    }
}

impl Parent<'_> {
    /// Finds the interface by its name, or by the default route of IPv4, then of IPv6.
    fn find(&self, socket: &mut Socket) -> Result<Link, NativeError> {
        if let Some(name) = self.name {
            return socket.link(name)?.ok_or_else(|| NativeError::no_parent(name));
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
        Err(NativeError::no_default_route())
    }
}
