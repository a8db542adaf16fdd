//! `bridge`: pods on a switch of the host's, whose own interface is their gateway.
//!
//! Several supervisors may make the same bridge at once, and a sweep may delete one that has no port while a pod is about to
//! become its first. So what is there is looked at, what is missing is made, somebody else being faster is fine; and
//! when the bridge goes away before the pod is on it, all begins once more.
//!
//! A bridge that we made says so in its alias, and has a hardware address that only ours has (the alias comes in a second
//! request: what was killed between is known by it). It is set up last, so that one that is up was finished. A bridge
//! without an alias is the administrator's, or another program's: it is used, and only what the configuration asks for is
//! changed.

use std::cell::Cell;

use super::addresses::{Given, give};
use super::cable::{self, Cable, Outside};
use super::chain::Chain;
use super::entries::{Routed, guard};
use super::error::NativeError;
use super::inside::{self, How, Inside, derived_mac};
use super::result::{at_host, ips};
use super::{Added, Ends, ports, switches};
use crate::address::Cidr;
use crate::config::{Bridge, IngressPolicy, NetworkConfig, StaticAddress};
use crate::netlink::address::{Address, Scope};
use crate::netlink::link::create::{self, LinkKind, NewLink};
use crate::netlink::link::port::Port;
use crate::netlink::link::{Change, Link};
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{Mac, Setup, Socket};
use crate::nft;
use crate::plugin::{Attachment, NetworkResult};

/// How often it is tried to become a port of a bridge that others delete.
const ATTEMPTS: u32 = 3;

pub(super) fn add(
    network: &NetworkConfig,
    chain: &Chain<'_>,
    wanted: &Bridge,
    attachment: &Attachment,
    ends: &mut Ends<'_>,
) -> Result<Added, NativeError> {
    let mut given = give(network, chain, attachment, ends.leases)?;
    if wanted.is_gateway {
        given.complete_gateways();
    }
    if wanted.is_default_gateway {
        given.complete_default_routes();
    }
    let inside = Inside::of(chain, attachment, Some(derived_mac(&given, attachment)))?;
    let routed = Routed { network, chain, masquerade: wanted.ip_masq };
    let mut entries = routed.entries(&wanted.bridge, &given, false);
    ports::add(&mut entries, chain, attachment, &given)?;
    let plan = Plan { wanted, given: &given, owner: ends.owner, took_over: Cell::new(false) };
    let isolated = chain.firewall.is_some_and(|firewall| firewall.ingress_policy == IngressPolicy::Isolated);
    let port = Port {
        hairpin: wanted.hairpin_mode.then_some(true),
        isolated: (wanted.port_isolation || isolated).then_some(true),
        ..Port::default()
    };
    let outside = Outside { port, ..Outside::new(wanted.mtu, inside.ingress) };
    let (bridge, cable) = plan.plug(ends, attachment, outside, &inside)?;
    let how = How { dad: wanted.enable_dad, down: wanted.disable_container_interface, alone: false };
    inside::finish(ends, attachment, &inside, &given, how)?;
    guard(&mut entries, &cable.name, inside.mac, &given);
    let [at_bridge, in_pod] = cable.ends(attachment, &inside);
    let interfaces = vec![at_host(&bridge), at_bridge, in_pod];
    let ips = ips(&given, 2);
    let took_over = plan.took_over.get().then(|| wanted.bridge.clone());
    let result = NetworkResult { interfaces, ips, routes: given.routes, dns: given.dns };
    Ok(Added { result, entries, took_over })
}

/// A bridge's hardware address of its own: else it has the lowest of its ports', and another with each pod.
fn mac(owner: &str, name: &str) -> Mac {
    Mac::of_id(&format!("{owner} {name}"))
}

/// Whether a bridge was made by this gantry: it says so, or whoever made it was killed before that was said.
pub(crate) fn is_of(link: &Link, owner: &str) -> bool {
    let marked = match link.alias.as_deref() {
        Some(alias) => alias == owner,
        None => link.mac == Some(mac(owner, &link.name)),
    };
    marked && link.kind.as_deref() == Some("bridge")
}

/// Whether a bridge's owner is gone: its state directory does not exist, and no pod is on the bridge. The directory alone does not
/// tell: that of a gantry in a container may be out of sight.
pub(crate) fn is_abandoned(host: &mut Socket, bridge: &Link, owner: &str) -> Result<bool, crate::netlink::Error> {
    let gone = std::fs::symlink_metadata(owner).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    Ok(gone && host.ports(bridge.index)?.is_empty())
}

/// What the bridge is to be.
struct Plan<'a> {
    wanted: &'a Bridge,
    given: &'a Given,
    owner: &'a str,
    /// Whether it was another gantry's, which is gone.
    took_over: Cell<bool>,
}

impl Plan<'_> {
    /// The bridge as it is to be, and the cable on it.
    fn plug(
        &self,
        ends: &mut Ends<'_>,
        attachment: &Attachment,
        outside: Outside,
        inside: &Inside,
    ) -> Result<(Link, Cable), NativeError> {
        for _ in 1..ATTEMPTS {
            let mut seen = None;
            let error = match self.plug_once(ends, attachment, (outside, inside), &mut seen) {
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
            // It may have become a port just before.
            cable::delete(&mut ends.host, attachment)?;
        }
        self.plug_once(ends, attachment, (outside, inside), &mut None)
    }

    /// `seen` is the bridge that was found or made.
    fn plug_once(
        &self,
        ends: &mut Ends<'_>,
        attachment: &Attachment,
        (outside, inside): (Outside, &Inside),
        seen: &mut Option<u32>,
    ) -> Result<(Link, Cable), NativeError> {
        let bridge = self.look(&mut ends.host)?;
        *seen = Some(bridge.index);
        self.finish(ends, &bridge)?;
        let outside = Outside { master: Some(bridge.index), ..outside };
        let cable = cable::make(&mut ends.host, ends.pod_namespace, attachment, &outside, inside)?;
        cable::raise(&mut ends.host, attachment, &outside, &cable, Setup::default())?;
        Ok((bridge, cable))
    }

    /// The bridge, made if it is not there.
    fn look(&self, host: &mut Socket) -> Result<Link, NativeError> {
        let name = &self.wanted.bridge;
        let found = match host.link(name)? {
            Some(found) => found,
            None => {
                let group = Some(nft::INTERFACE_GROUP);
                let with = Change { mac: Some(self.mac()), mtu: self.wanted.mtu, group, ..Change::default() };
                let made = host.create_link(&NewLink { name, kind: LinkKind::Bridge(create::Bridge::default()), with });
                match (made, host.link(name)?) {
                    // Somebody else may have made it meanwhile, in whatever way: what counts is what is there.
                    (_, Some(found)) => found,
                    (Err(error), None) => return Err(error.into()),
                    (Ok(()), None) => return Err(NativeError::Gone { name: name.clone() }),
                }
            }
        };
        if found.kind.as_deref() != Some("bridge") {
            let kind = found.kind.unwrap_or_else(|| "a device".to_owned());
            return Err(NativeError::NoBridge { name: name.clone(), kind });
        }
        match found.alias.as_deref() {
            // The others write a path too; what else people write means nothing to us.
            Some(alias) if alias != self.owner && alias.starts_with('/') => {
                if !is_abandoned(host, &found, alias)? {
                    return Err(NativeError::Foreign { bridge: name.clone(), owner: alias.to_owned() });
                }
                let group = Some(nft::INTERFACE_GROUP);
                host.change_link(found.index, &Change { alias: Some(self.owner), group, ..Change::default() })?;
                self.took_over.set(true);
                Ok(Link { alias: Some(self.owner.to_owned()), ..found })
            }
            _ => Ok(found),
        }
    }

    fn mac(&self) -> Mac {
        mac(self.owner, &self.wanted.bridge)
    }

    /// All that it may lack. Of a bridge that is as it should be, only its addresses are asked for.
    fn finish(&self, ends: &mut Ends<'_>, bridge: &Link) -> Result<(), NativeError> {
        let name = &bridge.name;
        let marked = bridge.alias.as_deref() == Some(self.owner);
        let ours = is_of(bridge, self.owner);
        let (up, v6) = (bridge.is_up(), self.given.has(false));
        if ours && !up {
            ends.host_namespace.enter(|| switches::quiet(name, v6))?;
        }
        let promiscuous = (self.wanted.promisc_mode && !bridge.is_promiscuous()).then_some(true);
        let alias = (ours && !marked).then_some(self.owner);
        if promiscuous.is_some() || alias.is_some() || !up {
            let change = Change { up: Some(true), promiscuous, alias, ..Change::default() };
            ends.host.change_link(bridge.index, &change)?;
        }
        if self.wanted.is_gateway { self.give_gateways(ends, bridge) } else { Ok(()) }
    }

    /// The gateways' addresses.
    fn give_gateways(&self, ends: &mut Ends<'_>, bridge: &Link) -> Result<(), NativeError> {
        let host = &mut ends.host;
        let gateway = |ip: &StaticAddress| Cidr::new(ip.gateway?, ip.address.length()).ok();
        let wanted: Vec<Cidr> = self.given.ips.iter().filter_map(gateway).collect();
        let there = host.addresses(Some(bridge.index))?;
        for wants in wanted.iter().filter(|wants| !there.iter().any(|own| own.address.prefix == **wants)) {
            // Several of IPv6 go together, if their networks do not overlap. As CNI's bridge plugin has it.
            let clashes = |has: Cidr| {
                let overlap = has.contains(wants.address()) || wants.contains(has.address());
                has.is_ipv4() == wants.is_ipv4() && (has.is_ipv4() || overlap)
            };
            for own in &there {
                let has = own.address.prefix;
                if own.address.scope == Scope::Link || wanted.contains(&has) || !clashes(has) {
                    continue;
                }
                if !self.wanted.force_address {
                    return Err(NativeError::OtherAddress { bridge: bridge.name.clone(), has, wants: *wants });
                }
                host.delete_address(bridge.index, &own.address)?;
            }
            if !wants.is_ipv4() {
                // Who turned IPv6 off on all interfaces took their addresses away.
                ends.host_namespace.enter(|| switches::be(Sysctl::DisableV6(&bridge.name), "0"))?;
            }
            host.add_address(bridge.index, &Address::new(*wants))?;
        }
        Ok(())
    }
}
