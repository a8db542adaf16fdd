//! `ptp`: a cable for each pod, with the gateway at its other end.
//!
//! The gateway's address is on every such cable, alone (/32, /128), and a route of the host leads each pod's address to its
//! cable. In the pod all goes to the gateway, its own subnet too: those there are behind the host.

use super::addresses::{Given, give};
use super::cable::{self, Outside, host_interface};
use super::chain::Chain;
use super::entries::Routed;
use super::error::NativeError;
use super::inside::{self, How, Inside, derived_mac};
use super::result::ips;
use super::{Added, Ends, ports, switches};
use crate::address::Cidr;
use crate::config::{NetworkConfig, Ptp};
use crate::netlink::Setup;
use crate::netlink::address::Address;
use crate::netlink::route::Route;
use crate::nft;
use crate::plugin::{Attachment, NetworkResult};

pub(super) fn add(
    network: &NetworkConfig,
    chain: &Chain<'_>,
    wanted: &Ptp,
    attachment: &Attachment,
    ends: &mut Ends<'_>,
) -> Result<Added, NativeError> {
    let given = give(network, chain, attachment, ends.leases)?;
    if let Some(ip) = given.ips.iter().find(|ip| ip.gateway.is_none()) {
        return Err(NativeError::Invalid(format!(
            "the address {} has no gateway, which a ptp network needs",
            ip.address
        )));
    }
    let inside = Inside::of(chain, attachment, Some(derived_mac(&given, attachment)))?;
    let routed = Routed { network, chain, masquerade: wanted.ip_masq };
    let name = host_interface(&attachment.container_id, &attachment.interface);
    let mut entries = routed.entries(&name, &given, true);
    ports::add(&mut entries, chain, attachment, &given)?;
    let outside = Outside { group: Some(nft::INTERFACE_GROUP), ..Outside::new(wanted.mtu, inside.ingress) };
    let cable = cable::make(&mut ends.host, ends.pod_namespace, attachment, &outside, &inside)?;
    // The kernel asks for the pod's address by an address of the link, which it has at once so.
    ends.host_namespace.enter(|| switches::quiet(&cable.name, given.has(false)))?;
    cable::raise(&mut ends.host, attachment, &outside, &cable, to_pod(&given, cable.index))?;
    let how = How { alone: true, ..How::default() };
    inside::finish(ends, attachment, &inside, &given, how)?;
    let interfaces = cable.ends(attachment, &inside).into();
    let ips = ips(&given, 1);
    let result = NetworkResult { interfaces, ips, routes: given.routes, dns: given.dns };
    Ok(Added { result, entries, took_over: None })
}

/// The gateways' addresses and the routes to the pod's.
fn to_pod(given: &Given, cable: u32) -> Setup<'static> {
    let mut gateways: Vec<Cidr> = given.ips.iter().filter_map(|ip| ip.gateway).map(Cidr::host).collect();
    gateways.sort_unstable();
    gateways.dedup();
    let route = |address| Route { device: Some(cable), ..Route::to(Cidr::host(address).network()) };
    Setup {
        addresses: gateways.into_iter().map(Address::new).collect(),
        routes: given.ips.iter().map(|ip| route(ip.address.address())).collect(),
        ..Setup::default()
    }
}
