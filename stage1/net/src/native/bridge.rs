//! `bridge`: the pods' interfaces are ports of a bridge on the host, whose own interface is their gateway.
//!
//! Several supervisors may create the same bridge at once, and garbage collection may delete a bridge without ports
//! just before a pod becomes its first. So the present state is read and what is missing is created; it does not matter
//! whether another process was faster. If the bridge disappears before the pod is attached, everything starts over.
//!
//! gantry marks a bridge that it created with its alias, and gives it a derived hardware address. (The alias needs a
//! second request: a bridge whose creator was killed in between is recognized by its address.) The bridge is set up
//! last, so a bridge that is up is complete. A bridge without an alias belongs to the administrator or to another
//! program: gantry uses it, and changes only what the configuration requests.
//!
//! Without an MTU in the configuration, a new bridge gets the uplink's, and the veth pairs of its pods the bridge's:
//! all ports of a bridge need the same MTU, since a bridge drops frames that exceed that of the outgoing port. On a
//! foreign bridge, they get at most 1500, and at least 1280 only if the pod has IPv6 addresses, which need that.

use std::cell::Cell;

use super::addresses::assign;
use super::chain::PluginChain;
use super::entries::{HostInterface, RoutedNetwork, add_anti_spoofing};
use super::error::NativeError;
use super::kind::{AddRequest, InterfaceKind, KindProperties};
use super::pod_interface::{self, PodInterface, SetupOptions, derived_mac};
use super::result::{host_side, result_ips};
use super::veth::{self, HostEnd, VethPair};
use super::{Added, Ends, HostNetwork, ports, sysctl, uplink};
use crate::address::{Cidr, IpFamily};
use crate::config::builtin::DEFAULT;
use crate::config::{Bridge, IngressPolicy, Ipam, NetworkConfig, PluginSettings, Source, StaticAddress};
use crate::netlink::address::{Address, Scope};
use crate::netlink::link::create::{self, LinkKind, NewLink};
use crate::netlink::link::port::Port;
use crate::netlink::link::{Change, Link};
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{Mac, Namespace, Setup, Socket};
use crate::nft;
use crate::plugin::{Attachment, NetworkResult};

/// How often to try to attach to a bridge that others delete.
const MAX_ATTEMPTS: u32 = 3;

impl InterfaceKind for Bridge {
    fn obstacle(&self, ipam: Option<&Ipam>) -> Option<String> {
        if self.vlan != 0 || !self.vlan_trunk.is_empty() {
            return Some("a bridge with vlan or vlanTrunk".to_owned());
        }
        if self.disable_container_interface && ipam.is_some() {
            return Some("a bridge with disableContainerInterface and with ipam".to_owned());
        }
        None
    }

    fn add(&self, request: &AddRequest<'_>, ends: &mut Ends<'_>) -> Result<Added, NativeError> {
        let AddRequest { network, chain, attachment } = *request;
        let mut assignment = assign(network, chain, attachment, ends.leases)?;
        if self.is_gateway {
            assignment.complete_gateways();
        }
        if self.is_default_gateway {
            assignment.complete_default_routes();
        }
        let interface = PodInterface::new(chain, attachment, Some(derived_mac(&assignment, attachment)))?;
        let routed = RoutedNetwork { network, chain, masquerade: self.ip_masq };
        let mut entries = routed.entries(HostInterface::OfNetwork(&self.bridge), &assignment);
        ports::add(&mut entries, chain, attachment, &assignment)?;
        let gateway = |ip: &StaticAddress| Cidr::new(ip.gateway?, ip.address.length()).ok();
        let with_gateway = assignment.ips.iter().filter(|_| self.is_gateway);
        let creation = BridgeSetup {
            settings: self,
            gateways: with_gateway.filter_map(gateway).collect(),
            has_v6: assignment.has(IpFamily::V6),
            owner: ends.owner,
            took_over: Cell::new(false),
            network,
        };
        let host_end = HostEnd { port: self.port(chain), limit: interface.ingress, ..HostEnd::default() };
        let (bridge, pair) = creation.attach_to_bridge(ends, attachment, host_end, &interface)?;
        let options = SetupOptions {
            detect_duplicates: self.enable_dad,
            leave_down: self.disable_container_interface,
            gateway_only: false,
        };
        pod_interface::set_up(ends, attachment, &interface, &assignment, options)?;
        add_anti_spoofing(&mut entries, &pair.host_name, interface.mac, &assignment);
        let [host_end, pod_end] = pair.result_interfaces(attachment, &interface);
        let interfaces = vec![host_side(&bridge), host_end, pod_end];
        let ips = result_ips(&assignment, 2);
        let took_over = creation.took_over.get().then(|| self.bridge.clone());
        let result = NetworkResult { interfaces, ips, routes: assignment.routes, dns: assignment.dns };
        Ok(Added { result, entries, took_over })
    }

    fn disconnect(&self, attachment: &Attachment, host: &mut Socket, _: &Namespace) -> Result<(), NativeError> {
        veth::disable_port(host, attachment)
    }

    fn del(&self, attachment: &Attachment, host: &mut Socket) -> Result<(), NativeError> {
        veth::delete_host_end(host, attachment)
    }

    fn describe(&self) -> KindProperties<'_> {
        KindProperties {
            host_interface: Some(&self.bridge),
            is_forwarded: self.is_gateway || self.ip_masq,
            masquerades: self.ip_masq,
            has_host_end: true,
            has_firewall: true,
            has_own_mac: true,
            mac: None,
        }
    }
}

impl Bridge {
    /// The settings of the pods' bridge ports.
    fn port(&self, chain: &PluginChain<'_>) -> Port {
        let isolated = chain.firewall.is_some_and(|firewall| firewall.ingress_policy == IngressPolicy::Isolated);
        Port {
            hairpin: self.hairpin_mode.then_some(true),
            isolated: (self.port_isolation || isolated).then_some(true),
            ..Port::default()
        }
    }
}

/// The use of a bridge by a network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BridgeUse<'a> {
    /// The name of the bridge.
    pub(crate) name: &'a str,
    /// The bridge has the addresses of the pods' gateways.
    pub(crate) is_gateway: bool,
    /// The settings of the pods' bridge ports.
    pub(crate) port: Port,
}

impl<'a> BridgeUse<'a> {
    pub(super) fn new(bridge: &'a Bridge, chain: &PluginChain<'_>) -> Self {
        Self { name: &bridge.bridge, is_gateway: bridge.is_gateway, port: bridge.port(chain) }
    }
}

/// Creates or completes the bridge of a network: it exists, is up, and has these addresses as the gateway of its pods.
/// `has_v6`: the pods have IPv6 addresses. Returns whether the bridge was taken over from a gantry that is gone, whose
/// tables for it are to be removed.
///
/// # Errors
/// [`NativeError`]; gantry does not create the network on a bridge.
pub(crate) fn restore_bridge(
    network: &NetworkConfig,
    (gateways, has_v6): (Vec<Cidr>, bool),
    host: &mut HostNetwork<'_>,
) -> Result<bool, NativeError> {
    let Some(PluginSettings::Bridge(settings)) = network.plugins.first().map(|plugin| &plugin.settings) else {
        return Err(NativeError::unsupported("its first plugin is not bridge"));
    };
    let setup = BridgeSetup { settings, gateways, has_v6, owner: host.owner, took_over: Cell::new(false), network };
    let bridge = setup.find_or_create(host.socket)?;
    setup.complete(host, bridge)?;
    Ok(setup.took_over.get())
}

/// The derived hardware address of a bridge. Without one, a bridge takes the lowest address of its ports, which changes
/// as pods come and go.
fn bridge_mac(owner: &str, name: &str) -> Mac {
    Mac::from_id(&format!("{owner} {name}"))
}

/// Whether a bridge belongs to this gantry: its alias says so, or its creator was killed before it set the alias.
pub(crate) fn is_owned_by(link: &Link, owner: &str) -> bool {
    let marked = match link.alias.as_deref() {
        Some(alias) => alias == owner,
        None => link.mac == Some(bridge_mac(owner, &link.name)),
    };
    marked && link.kind.as_deref() == Some("bridge")
}

/// Whether a bridge's owner is gone: its state directory does not exist, and the bridge has no port. A missing
/// directory alone proves nothing: that of a gantry in a container may not be visible here.
pub(crate) fn is_abandoned(host: &mut Socket, bridge: &Link, owner: &str) -> Result<bool, crate::netlink::Error> {
    let gone = std::fs::symlink_metadata(owner).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    Ok(gone && host.ports(bridge.index)?.is_empty())
}

/// The creation of a bridge, as far as it does not exist.
struct BridgeSetup<'a> {
    settings: &'a Bridge,
    /// The addresses that the bridge has as a gateway.
    gateways: Vec<Cidr>,
    /// Pods have IPv6 addresses.
    has_v6: bool,
    owner: &'a str,
    /// The bridge was taken over from a gantry that is gone.
    took_over: Cell<bool>,
    network: &'a NetworkConfig,
}

impl BridgeSetup<'_> {
    fn is_built_in(&self) -> bool {
        self.network.source == Source::BuiltIn
    }

    /// Creates the bridge, if necessary, and a veth pair whose host end is a port of it.
    fn attach_to_bridge(
        &self,
        ends: &mut Ends<'_>,
        attachment: &Attachment,
        host_end: HostEnd,
        interface: &PodInterface,
    ) -> Result<(Link, VethPair), NativeError> {
        for _ in 1..MAX_ATTEMPTS {
            let mut seen = None;
            let error = match self.try_attach(ends, attachment, (host_end, interface), &mut seen) {
                Err(error) => error,
                done => return done,
            };
            let gone = match seen {
                Some(index) => ends.host.link_by_index(index)?.is_none(),
                None => false,
            };
            if !gone {
                return Err(error);
            }
            // The veth pair may have become a port just before.
            veth::delete_host_end(&mut ends.host, attachment)?;
        }
        self.try_attach(ends, attachment, (host_end, interface), &mut None)
    }

    /// `seen` is the index of the bridge that was found or created.
    fn try_attach(
        &self,
        ends: &mut Ends<'_>,
        attachment: &Attachment,
        (host_end, interface): (HostEnd, &PodInterface),
        seen: &mut Option<u32>,
    ) -> Result<(Link, VethPair), NativeError> {
        let bridge = self.find_or_create(&mut ends.host)?;
        *seen = Some(bridge.index);
        let bridge = self.complete(&mut ends.host_network(), bridge)?;
        let mtu = match self.settings.mtu {
            Some(mtu) => mtu,
            None if is_owned_by(&bridge, self.owner) || self.has_v6 => uplink::clamp_mtu(bridge.mtu),
            // On a foreign bridge, pods without IPv6 addresses may have less than IPv6 needs.
            None => uplink::limit_mtu(bridge.mtu),
        };
        let host_end = HostEnd { master: Some(bridge.index), mtu, ..host_end };
        let pair = veth::create(&mut ends.host, ends.pod_namespace, attachment, &host_end, interface)?;
        veth::set_up(&mut ends.host, attachment, &host_end, &pair, Setup::default())?;
        Ok((bridge, pair))
    }

    fn find_or_create(&self, host: &mut Socket) -> Result<Link, NativeError> {
        let name = &self.settings.bridge;
        let link = match host.link(name)? {
            Some(link) => link,
            None => {
                let group = Some(nft::INTERFACE_GROUP);
                let mac = Some(bridge_mac(self.owner, name));
                let with = Change { mac, mtu: self.settings.mtu, group, ..Change::default() };
                // A bridge without snooping floods multicast, so no pod can divert that of others by IGMP or MLD
                // queries. With snooping, it would join the All-Snoopers group (RFC 4286), and the host would track its
                // report as a connection for 10 minutes.
                let mcast_snooping = self.is_built_in().then_some(false);
                let kind = LinkKind::Bridge(create::Bridge { mcast_snooping, ..create::Bridge::default() });
                let created = host.create_link(&NewLink { name, kind, with });
                match (created, host.link(name)?) {
                    // Another process may have created it in the meantime, whatever the outcome here.
                    (_, Some(link)) => link,
                    (Err(error), None) => return Err(error.into()),
                    (Ok(()), None) => return Err(NativeError::vanished(name)),
                }
            }
        };
        if link.kind.as_deref() != Some("bridge") {
            let kind = link.kind.unwrap_or_else(|| "a device".to_owned());
            return Err(NativeError::not_a_bridge(name, &kind));
        }
        match link.alias.as_deref() {
            // Every gantry sets a path. An alias of another form is the administrator's.
            Some(alias) if alias != self.owner && alias.starts_with('/') => {
                if !is_abandoned(host, &link, alias)? {
                    return Err(NativeError::foreign_bridge(name, alias));
                }
                let group = Some(nft::INTERFACE_GROUP);
                host.change_link(link.index, &Change { alias: Some(self.owner), group, ..Change::default() })?;
                self.took_over.set(true);
                Ok(Link { alias: Some(self.owner.to_owned()), ..link })
            }
            _ => Ok(link),
        }
    }

    /// Sets what the bridge lacks. Of a bridge that is complete, only the addresses are read.
    fn complete(&self, host: &mut HostNetwork<'_>, mut bridge: Link) -> Result<Link, NativeError> {
        let marked = bridge.alias.as_deref() == Some(self.owner);
        let owned = is_owned_by(&bridge, self.owner);
        let up = bridge.is_up();
        let mut mtu = None;
        if owned && !up {
            host.namespace.enter(|| sysctl::disable_autoconfiguration(&bridge.name, self.has_v6))?;
            if self.settings.mtu.is_none() {
                // Not at creation: the kernel keeps only an MTU that was set afterwards. It replaces any other by the
                // lowest of the ports, and by its default after the last port has gone.
                mtu = Some(uplink::find_mtu(host.socket)?).filter(|mtu| *mtu != bridge.mtu);
            }
        }
        let promiscuous = (self.settings.promisc_mode && !bridge.is_promiscuous()).then_some(true);
        let alias = (owned && !marked).then_some(self.owner);
        if promiscuous.is_some() || alias.is_some() || !up {
            let change = Change { up: Some(true), promiscuous, alias, mtu, ..Change::default() };
            host.socket.change_link(bridge.index, &change)?;
        }
        bridge.mtu = mtu.unwrap_or(bridge.mtu);
        if !self.gateways.is_empty() {
            self.assign_gateways(host, &bridge)?;
        }
        Ok(bridge)
    }

    /// Assigns the gateways' addresses to the bridge.
    fn assign_gateways(&self, host: &mut HostNetwork<'_>, bridge: &Link) -> Result<(), NativeError> {
        // The bridge of the built-in network `default` has a gateway for each range that running pods have addresses
        // of: that of the pod CIDR changes.
        let is_default = self.is_built_in() && self.network.name == DEFAULT;
        let present = host.socket.addresses(Some(bridge.index))?;
        for gateway in self.gateways.iter().filter(|gateway| !present.iter().any(|own| own.address.prefix == **gateway))
        {
            // Several IPv6 addresses are fine if their networks do not overlap, as in CNI's bridge plugin.
            let conflicts = |other: Cidr| {
                let overlap = other.contains(gateway.address()) || gateway.contains(other.address());
                other.is_ipv4() == gateway.is_ipv4() && ((other.is_ipv4() && !is_default) || overlap)
            };
            for own in &present {
                let other = own.address.prefix;
                if own.address.scope == Scope::Link || self.gateways.contains(&other) || !conflicts(other) {
                    continue;
                }
                if !self.settings.force_address {
                    return Err(NativeError::other_address(&bridge.name, other, *gateway));
                }
                host.socket.delete_address(bridge.index, &own.address)?;
            }
            if !gateway.is_ipv4() {
                // disable_ipv6 on all interfaces has removed the address and prevents a new one.
                host.namespace.enter(|| sysctl::ensure(Sysctl::DisableV6(&bridge.name), "0"))?;
            }
            host.socket.add_address(bridge.index, &Address::new(*gateway))?;
        }
        Ok(())
    }
}
