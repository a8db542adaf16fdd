//! `ptp`: each pod has a veth pair of its own, whose host end is the gateway.
//!
//! The gateway's address is on every such host end, alone (/32, /128), and a host route leads each pod's address to its
//! veth pair. In the pod, all traffic goes to the gateway, even for its own subnet: the other pods are behind the host.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::addresses::assign;
use super::entries::{HostInterface, RoutedNetwork};
use super::error::NativeError;
use super::kind::{AddRequest, InterfaceKind, KindProperties};
use super::pod_interface::{self, PodInterface, SetupOptions, derived_mac};
use super::result::result_ips;
use super::veth::{self, HostEnd, host_interface};
use super::{Added, Ends, ports, sysctl, uplink};
use crate::address::{Cidr, IpFamily};
use crate::config::{Ipam, Ptp};
use crate::netlink::address::Address;
use crate::netlink::route::Route;
use crate::netlink::{Namespace, Setup, Socket};
use crate::nft;
use crate::plugin::{Attachment, NetworkResult};

impl InterfaceKind for Ptp {
    fn obstacle(&self, ipam: Option<&Ipam>) -> Option<String> {
        ipam.is_none().then(|| "a ptp network without ipam".to_owned())
    }

    fn add(&self, request: &AddRequest<'_>, ends: &mut Ends<'_>) -> Result<Added, NativeError> {
        let AddRequest { network, chain, attachment } = *request;
        let assignment = assign(network, chain, attachment, ends.leases)?;
        if let Some(ip) = assignment.ips.iter().find(|ip| ip.gateway.is_none()) {
            let problem = format!("the address {} has no gateway, which a ptp network needs", ip.address);
            return Err(NativeError::invalid(problem));
        }
        let interface = PodInterface::new(chain, attachment, Some(derived_mac(&assignment, attachment)))?;
        let routed = RoutedNetwork { network, chain, masquerade: self.ip_masq };
        let name = host_interface(&attachment.container_id, &attachment.interface);
        let mut entries = routed.entries(HostInterface::OfPod(&name), &assignment);
        ports::add(&mut entries, chain, attachment, &assignment)?;
        let mtu = match self.mtu {
            Some(mtu) => mtu,
            None => uplink::find_mtu(&mut ends.host)?,
        };
        let host_end =
            HostEnd { group: Some(nft::INTERFACE_GROUP), mtu, limit: interface.ingress, ..HostEnd::default() };
        let pair = veth::create(&mut ends.host, ends.pod_namespace, attachment, &host_end, &interface)?;
        // The kernel resolves the pod's address from a link-local address, which is usable at once without DAD.
        let v6 = assignment.has(IpFamily::V6);
        ends.host_namespace.enter(|| sysctl::disable_autoconfiguration(&pair.host_name, v6))?;
        let ips = assignment.ips.iter().map(|ip| (ip.address.address(), ip.gateway));
        let setup = gateways_and_routes(ips, pair.host_index);
        veth::set_up(&mut ends.host, attachment, &host_end, &pair, setup)?;
        let options = SetupOptions { gateway_only: true, ..SetupOptions::default() };
        pod_interface::set_up(ends, attachment, &interface, &assignment, options)?;
        let interfaces = pair.result_interfaces(attachment, &interface).into();
        let ips = result_ips(&assignment, 1);
        let result = NetworkResult { interfaces, ips, routes: assignment.routes, dns: assignment.dns };
        Ok(Added { result, entries, took_over: None })
    }

    fn disconnect(&self, attachment: &Attachment, host: &mut Socket, _: &Namespace) -> Result<(), NativeError> {
        veth::set_host_end_down(host, attachment)
    }

    fn del(&self, attachment: &Attachment, host: &mut Socket) -> Result<(), NativeError> {
        veth::delete_host_end(host, attachment)
    }

    fn describe(&self) -> KindProperties<'_> {
        KindProperties {
            host_interface: None,
            is_forwarded: true,
            masquerades: self.ip_masq,
            has_host_end: true,
            has_firewall: true,
            has_own_mac: true,
            mac: None,
        }
    }
}

/// The gateways' addresses on the host end, and the routes to the pod's addresses. `ips`: each address of the pod with
/// its gateway.
pub(crate) fn gateways_and_routes(
    ips: impl Iterator<Item = (IpAddr, Option<IpAddr>)>,
    host_end: u32,
) -> Setup<'static> {
    let (addresses, gateways): (Vec<IpAddr>, Vec<Option<IpAddr>>) = ips.unzip();
    let gateways: BTreeSet<Cidr> = gateways.into_iter().flatten().map(Cidr::host).collect();
    let route = |address| Route { device: Some(host_end), ..Route::to(Cidr::host(address).network()) };
    Setup {
        addresses: gateways.into_iter().map(Address::new).collect(),
        routes: addresses.into_iter().map(route).collect(),
        ..Setup::default()
    }
}
