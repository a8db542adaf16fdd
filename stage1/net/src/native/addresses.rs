//! A pod's addresses: leases of host-local, or static addresses from the configuration; with routes and DNS settings.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use gantry_model::id::shown;
use serde_json::Value;

use super::chain::{PluginChain, capability, cni_arg};
use super::error::NativeError;
use super::resolv;
use crate::address::{Cidr, IpFamily, Prefix, from_bits, to_bits};
use crate::config::{Dns, HostLocal, Ipam, NetworkConfig, Route, Source, Static, StaticAddress};
use crate::ipam::{IpamError, MAX_ADDRESSES, Owner, Store, requested_addresses};
use crate::plugin::Attachment;

/// Timeout of the lock of the leases. Garbage collection of a large network holds it for a second.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// In an IPv6 subnet with a longer prefix, an address may be reused before the neighbours' caches have expired.
const MAX_PREFIX6: u8 = 96;

/// The addresses assigned to a pod's interface.
#[derive(Debug, Default)]
pub(super) struct Assignment {
    /// The addresses.
    pub(super) ips: Vec<StaticAddress>,
    /// The routes.
    pub(super) routes: Vec<Route>,
    /// The network's DNS settings.
    pub(super) dns: Dns,
    /// The subnets of the network.
    pub(super) prefixes: BTreeSet<Prefix>,
    /// No address was requested or preferred: all were allocated in turn.
    pub(super) in_turn: bool,
}

impl Assignment {
    /// Whether the pod has an address of the family.
    pub(super) fn has(&self, family: IpFamily) -> bool {
        self.ips.iter().any(|ip| ip.address.family() == family)
    }

    /// The first address of the family.
    pub(super) fn first(&self, family: IpFamily) -> Option<IpAddr> {
        self.ips.iter().map(|ip| ip.address.address()).find(|address| IpFamily::of(*address) == family)
    }

    /// The first gateway of the family.
    pub(super) fn gateway(&self, family: IpFamily) -> Option<IpAddr> {
        self.ips.iter().filter_map(|ip| ip.gateway).find(|gateway| IpFamily::of(*gateway) == family)
    }

    /// Whether neighbours may still have an IPv6 address of the pod in their caches, because it was requested or the
    /// subnet is small.
    pub(super) fn may_be_cached6(&self) -> bool {
        let in_small_subnet = |ip: &StaticAddress| !ip.address.is_ipv4() && ip.address.length() > MAX_PREFIX6;
        !self.in_turn || self.ips.iter().any(in_small_subnet)
    }

    /// All addresses.
    pub(super) fn addresses(&self) -> BTreeSet<IpAddr> {
        self.ips.iter().map(|ip| ip.address.address()).collect()
    }

    /// Sets the first address of the subnet as the gateway of each address without one, as CNI's bridge plugin does.
    pub(super) fn complete_gateways(&mut self) {
        for ip in &mut self.ips {
            let family = ip.address.family();
            // A subnet of one or two addresses has no room for a gateway.
            let too_long = match family {
                IpFamily::V4 => 31,
                IpFamily::V6 => 127,
            };
            if ip.gateway.is_none() && ip.address.length() < too_long {
                ip.gateway = Some(from_bits(to_bits(ip.address.first()) + 1, family));
            }
        }
    }

    /// Adds a default route through the gateway, in each address family that has a gateway and no default route.
    pub(super) fn complete_default_routes(&mut self) {
        for all in [Prefix::ALL_V4, Prefix::ALL_V6] {
            let present = self.routes.iter().any(|route| route.dst.network() == all && route.table.is_none());
            if let (false, Some(gateway), Ok(dst)) = (present, self.gateway(all.family()), Cidr::new(all.first(), 0)) {
                let (mtu, advmss, priority, table, scope) = (None, None, None, None, None);
                self.routes.push(Route { dst, gw: Some(gateway), mtu, advmss, priority, table, scope });
            }
        }
    }
}

/// Assigns the pod's addresses. A network without ipam assigns none.
pub(super) fn assign(
    network: &NetworkConfig,
    chain: &PluginChain<'_>,
    attachment: &Attachment,
    leases: BorrowedFd<'_>,
) -> Result<Assignment, NativeError> {
    let mut assignment = match &chain.main.ipam {
        None => Assignment::default(),
        Some(Ipam::HostLocal(local)) => host_local(network, chain, local, attachment, leases)?,
        Some(Ipam::Static(fixed)) => static_addresses(chain, fixed, attachment)?,
        Some(Ipam::Other(kind)) => return Err(NativeError::unsupported(format!("the ipam plugin '{}'", shown(kind)))),
    };
    if chain.main.ipam.is_some() && assignment.ips.is_empty() {
        return Err(NativeError::invalid("the network has ipam, but no address is configured or requested"));
    }
    if !chain.main.dns.is_empty() {
        assignment.dns = chain.main.dns.clone();
    }
    Ok(assignment)
}

/// Releases the leases that [`assign`] allocated, even partly.
pub(super) fn release(
    network: &NetworkConfig,
    attachment: &Attachment,
    leases: BorrowedFd<'_>,
) -> Result<(), NativeError> {
    let host_local = network.plugins.iter().any(|plugin| matches!(plugin.ipam, Some(Ipam::HostLocal(_))));
    if host_local {
        let owner = Owner::new(&attachment.container_id, &attachment.interface)?;
        Store::open(leases, &network.name, LOCK_TIMEOUT)?.release(&owner)?;
    }
    Ok(())
}

fn host_local(
    network: &NetworkConfig,
    chain: &PluginChain<'_>,
    local: &HostLocal,
    attachment: &Attachment,
    leases: BorrowedFd<'_>,
) -> Result<Assignment, NativeError> {
    let mut local = local.clone();
    if network.source == Source::BuiltIn && !has_ipv6() {
        remove_ipv6(&mut local);
    }
    if let Some(ranges) = capability(chain.main, attachment, "ipRanges") {
        local = local.with_ip_ranges(ranges).map_err(NativeError::invalid)?;
    }
    let requested = requested_addresses(&attachment.args, Some(&requested_ips(chain, attachment)))?;
    let owner = Owner::new(&attachment.container_id, &attachment.interface)?;
    let store = Store::open(leases, &network.name, LOCK_TIMEOUT)?;
    let preferred = &attachment.preferred_addresses;
    let assigned = store.allocate_preferring(&owner, &local.ranges, &requested, preferred)?;
    let has_preferred = assigned.iter().any(|one| preferred.contains(&one.address.address()));
    let ips = assigned.into_iter().map(|one| StaticAddress { address: one.address, gateway: Some(one.gateway) });
    Ok(Assignment {
        ips: ips.collect(),
        routes: local.routes,
        dns: local.resolv_conf.as_deref().map(resolv::read).transpose()?.unwrap_or_default(),
        prefixes: local.ranges.iter().flatten().map(|range| range.subnet.network()).collect(),
        in_turn: requested.is_empty() && !has_preferred,
    })
}

/// Whether the kernel has IPv6; it has not with `ipv6.disable=1`.
fn has_ipv6() -> bool {
    rustix::fs::access("/proc/sys/net/ipv6", rustix::fs::Access::EXISTS).is_ok()
}

/// Removes IPv6 from a built-in network on a kernel without IPv6. With IPv6 in an administrator's configuration, the
/// pod fails to start.
fn remove_ipv6(local: &mut HostLocal) {
    local.ranges.retain(|ranges| ranges.iter().all(|range| range.subnet.is_ipv4()));
    local.routes.retain(|route| route.dst.is_ipv4());
}

/// The addresses in the capability `ips` and in `args.cni.ips`, one after the other.
fn requested_ips(chain: &PluginChain<'_>, attachment: &Attachment) -> Value {
    let mut all = Vec::new();
    for value in [capability(chain.main, attachment, "ips"), cni_arg(chain.main, attachment, "ips")] {
        match value {
            Some(Value::Array(list)) => all.extend(list.iter().cloned()),
            // Not a list: `requested_addresses` reports it.
            Some(other) => return other.clone(),
            None => {}
        }
    }
    Value::Array(all)
}

/// As in the static plugin, `ips` replaces the configured addresses, `IP=` adds to them, and `GATEWAY=` sets the
/// gateways of their networks. An address that is requested in both ways is assigned once.
fn static_addresses(
    chain: &PluginChain<'_>,
    fixed: &Static,
    attachment: &Attachment,
) -> Result<Assignment, NativeError> {
    let mut ips = fixed.addresses.clone();
    let requested = capability(chain.main, attachment, "ips").or_else(|| cni_arg(chain.main, attachment, "ips"));
    match requested {
        None => {}
        Some(Value::Array(list)) if list.is_empty() => {}
        Some(Value::Array(list)) => {
            ips =
                list.iter().map(|text| parse_requested(text.as_str().unwrap_or_default())).collect::<Result<_, _>>()?;
        }
        Some(_) => return Err(NativeError::invalid("'ips' must be a list of strings")),
    }
    let texts = |key: &'static str| {
        let of_key = attachment.args.iter().filter(move |(name, _)| name == key);
        of_key.flat_map(|(_, value)| value.split(',')).map(str::trim).filter(|text| !text.is_empty())
    };
    for text in texts("IP") {
        let requested = parse_requested(text)?;
        if !ips.iter().any(|ip| ip.address == requested.address) {
            ips.push(requested);
        }
    }
    for text in texts("GATEWAY") {
        let gateway: IpAddr =
            text.parse().map_err(|_| NativeError::invalid(format!("GATEWAY={} is not an address", shown(text))))?;
        ips.iter_mut().filter(|ip| ip.address.contains(gateway)).for_each(|ip| ip.gateway = Some(gateway));
    }
    if ips.len() > MAX_ADDRESSES {
        let problem = format!("at most {MAX_ADDRESSES} addresses can be requested");
        return Err(IpamError::Invalid(problem).into());
    }
    let prefixes = ips.iter().map(|ip| ip.address.network()).collect();
    Ok(Assignment { ips, routes: fixed.routes.clone(), dns: fixed.dns.clone(), prefixes, in_turn: false })
}

fn parse_requested(text: &str) -> Result<StaticAddress, NativeError> {
    let problem = || format!("the requested address '{}' must be ADDRESS/LENGTH, such as 10.1.0.5/16", shown(text));
    let address = text.parse().map_err(|_| NativeError::invalid(problem()))?;
    Ok(StaticAddress { address, gateway: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::builtin;

    #[test]
    fn built_in_networks_work_without_ipv6() {
        assert!(has_ipv6());
        for (name, text) in builtin::ALL {
            let network = NetworkConfig::parse(text, Source::BuiltIn).unwrap();
            let Some(Ipam::HostLocal(mut local)) = network.plugins[0].ipam.clone() else { panic!("{name}") };
            let routes = local.routes.len() / 2;
            remove_ipv6(&mut local);
            assert_eq!((local.ranges.len(), local.routes.len()), (1, routes), "{name}");
        }
    }
}
