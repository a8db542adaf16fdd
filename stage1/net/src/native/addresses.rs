//! A pod's addresses: host-local's from the leases, static ones from the configuration; with routes and DNS.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use gantry_model::id::shown;
use serde_json::Value;

use super::chain::{Chain, capability, cni_arg};
use super::error::NativeError;
use super::resolv;
use crate::address::{Cidr, Prefix, of_bits, to_bits};
use crate::config::{Dns, HostLocal, Ipam, NetworkConfig, Route, Source, Static, StaticAddress};
use crate::ipam::{IpamError, MAX_ADDRESSES, Owner, Store, asked_for};
use crate::plugin::Attachment;

/// How long the leases may be locked by others. A sweep of a large network holds them for a second.
const WAIT: Duration = Duration::from_secs(20);

/// A subnet of IPv6 that is longer runs out of addresses, so that they come again before their last owner is forgotten.
const MOST_PREFIX6: u8 = 96;

/// What a pod is given.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// Its addresses.
    pub(super) ips: Vec<StaticAddress>,
    /// Its routes.
    pub(super) routes: Vec<Route>,
    /// What the network says of DNS.
    pub(super) dns: Dns,
    /// The subnets of the network.
    pub(super) prefixes: BTreeSet<Prefix>,
    /// Whether nobody asked for any of the addresses: they were given in turn.
    pub(super) in_turn: bool,
}

impl Given {
    /// Whether it has an address of the family.
    pub(super) fn has(&self, v4: bool) -> bool {
        self.ips.iter().any(|ip| ip.address.is_ipv4() == v4)
    }

    /// The first address of the family.
    pub(super) fn first(&self, v4: bool) -> Option<IpAddr> {
        self.ips.iter().map(|ip| ip.address.address()).find(|address| address.is_ipv4() == v4)
    }

    /// The first gateway of the family.
    pub(super) fn gateway(&self, v4: bool) -> Option<IpAddr> {
        self.ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == v4)
    }

    /// Whether an IPv6 address may be one that another had not long ago: it was asked for, or there are few.
    pub(super) fn may_be_known6(&self) -> bool {
        let few = |ip: &StaticAddress| !ip.address.is_ipv4() && ip.address.length() > MOST_PREFIX6;
        !self.in_turn || self.ips.iter().any(few)
    }

    /// All addresses.
    pub(super) fn addresses(&self) -> BTreeSet<IpAddr> {
        self.ips.iter().map(|ip| ip.address.address()).collect()
    }

    /// The host's side: each address without a gateway gets the first of its subnet, as CNI's bridge plugin does.
    pub(super) fn complete_gateways(&mut self) {
        for ip in &mut self.ips {
            let v4 = ip.address.is_ipv4();
            // A subnet of one or two addresses has no room for a gateway that is not the pod.
            if ip.gateway.is_none() && ip.address.length() < if v4 { 31 } else { 127 } {
                ip.gateway = Some(of_bits(to_bits(ip.address.first()) + 1, v4));
            }
        }
    }

    /// A default route by the gateway, in each family that has a gateway and no default route.
    pub(super) fn complete_default_routes(&mut self) {
        for (v4, all) in [(true, Prefix::ALL_V4), (false, Prefix::ALL_V6)] {
            let there = self.routes.iter().any(|route| route.dst.network() == all && route.table.is_none());
            if let (false, Some(gateway), Ok(dst)) = (there, self.gateway(v4), Cidr::new(all.first(), 0)) {
                let (mtu, advmss, priority, table, scope) = (None, None, None, None, None);
                self.routes.push(Route { dst, gw: Some(gateway), mtu, advmss, priority, table, scope });
            }
        }
    }
}

/// Gives the pod its addresses. A network without ipam has none.
pub(super) fn give(
    network: &NetworkConfig,
    chain: &Chain<'_>,
    attachment: &Attachment,
    leases: BorrowedFd<'_>,
) -> Result<Given, NativeError> {
    let mut given = match &chain.main.ipam {
        None => Given::default(),
        Some(Ipam::HostLocal(local)) => host_local(network, chain, local, attachment, leases)?,
        Some(Ipam::Static(fixed)) => fixed_ones(chain, fixed, attachment)?,
        Some(Ipam::Other(kind)) => return Err(NativeError::Beyond(format!("the ipam plugin '{}'", shown(kind)))),
    };
    if chain.main.ipam.is_some() && given.ips.is_empty() {
        return Err(NativeError::Invalid("the network has ipam, and no address to give".to_owned()));
    }
    if !chain.main.dns.is_empty() {
        given.dns = chain.main.dns.clone();
    }
    Ok(given)
}

/// Takes back what [`give`] gave, or a part of it.
pub(super) fn take_back(
    network: &NetworkConfig,
    attachment: &Attachment,
    leases: BorrowedFd<'_>,
) -> Result<(), NativeError> {
    let host_local = network.plugins.iter().any(|plugin| matches!(plugin.ipam, Some(Ipam::HostLocal(_))));
    if host_local {
        let owner = Owner::new(&attachment.container_id, &attachment.interface)?;
        Store::open(leases, &network.name, WAIT)?.release(&owner)?;
    }
    Ok(())
}

fn host_local(
    network: &NetworkConfig,
    chain: &Chain<'_>,
    local: &HostLocal,
    attachment: &Attachment,
    leases: BorrowedFd<'_>,
) -> Result<Given, NativeError> {
    let mut local = local.clone();
    if network.source == Source::BuiltIn && !has_ipv6() {
        without_ipv6(&mut local);
    }
    if let Some(ranges) = capability(chain.main, attachment, "ipRanges") {
        local = local.with_ip_ranges(ranges).map_err(NativeError::Invalid)?;
    }
    let wanted = asked_for(&attachment.args, Some(&asked_ips(chain, attachment)))?;
    let owner = Owner::new(&attachment.container_id, &attachment.interface)?;
    let store = Store::open(leases, &network.name, WAIT)?;
    let assigned = store.allocate(&owner, &local.ranges, &wanted)?;
    let ips = assigned.into_iter().map(|one| StaticAddress { address: one.address, gateway: Some(one.gateway) });
    Ok(Given {
        ips: ips.collect(),
        routes: local.routes,
        dns: local.resolv_conf.as_deref().map(resolv::read).transpose()?.unwrap_or_default(),
        prefixes: local.ranges.iter().flatten().map(|range| range.subnet.network()).collect(),
        in_turn: wanted.is_empty(),
    })
}

/// Whether the kernel has IPv6: not with `ipv6.disable=1`.
fn has_ipv6() -> bool {
    rustix::fs::access("/proc/sys/net/ipv6", rustix::fs::Access::EXISTS).is_ok()
}

/// The built-in networks go without IPv6 where there is none. Who wrote it into a configuration of his own is told that it
/// cannot be.
fn without_ipv6(local: &mut HostLocal) {
    local.ranges.retain(|ranges| ranges.iter().all(|range| range.subnet.is_ipv4()));
    local.routes.retain(|route| route.dst.is_ipv4());
}

/// What the capability `ips` and `args.cni.ips` say, one behind the other.
fn asked_ips(chain: &Chain<'_>, attachment: &Attachment) -> Value {
    let mut all = Vec::new();
    for value in [capability(chain.main, attachment, "ips"), cni_arg(chain.main, attachment, "ips")] {
        match value {
            Some(Value::Array(list)) => all.extend(list.iter().cloned()),
            // Not a list: who reads it says so.
            Some(other) => return other.clone(),
            None => {}
        }
    }
    Value::Array(all)
}

/// As the static plugin: `ips` come in the place of the configured addresses, those of `IP=` besides, and `GATEWAY=` says the
/// gateways of the networks they are in.
fn fixed_ones(chain: &Chain<'_>, fixed: &Static, attachment: &Attachment) -> Result<Given, NativeError> {
    let mut ips = fixed.addresses.clone();
    let asked = capability(chain.main, attachment, "ips").or_else(|| cni_arg(chain.main, attachment, "ips"));
    match asked {
        None => {}
        Some(Value::Array(list)) if list.is_empty() => {}
        Some(Value::Array(list)) => {
            ips = list.iter().map(|text| asked_cidr(text.as_str().unwrap_or_default())).collect::<Result<_, _>>()?;
        }
        Some(_) => return Err(NativeError::Invalid("'ips' must be a list of texts".to_owned())),
    }
    let texts = |key: &'static str| {
        let of_key = attachment.args.iter().filter(move |(name, _)| name == key);
        of_key.flat_map(|(_, value)| value.split(',')).map(str::trim).filter(|text| !text.is_empty())
    };
    for text in texts("IP") {
        ips.push(asked_cidr(text)?);
    }
    for text in texts("GATEWAY") {
        let gateway: IpAddr =
            text.parse().map_err(|_| NativeError::Invalid(format!("GATEWAY={} is not an address", shown(text))))?;
        ips.iter_mut().filter(|ip| ip.address.contains(gateway)).for_each(|ip| ip.gateway = Some(gateway));
    }
    if ips.len() > MAX_ADDRESSES {
        let problem = format!("at most {MAX_ADDRESSES} addresses can be asked for");
        return Err(IpamError::Invalid(problem).into());
    }
    let prefixes = ips.iter().map(|ip| ip.address.network()).collect();
    Ok(Given { ips, routes: fixed.routes.clone(), dns: fixed.dns.clone(), prefixes, in_turn: false })
}

fn asked_cidr(text: &str) -> Result<StaticAddress, NativeError> {
    let problem = || format!("'{}' was asked for, and must be ADDRESS/LENGTH, such as 10.1.0.5/16", shown(text));
    let address = text.parse().map_err(|_| NativeError::Invalid(problem()))?;
    Ok(StaticAddress { address, gateway: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::builtin;

    #[test]
    fn what_is_built_in_can_do_without_ipv6() {
        assert!(has_ipv6());
        for (name, text) in builtin::ALL {
            let network = NetworkConfig::parse(text, Source::BuiltIn).unwrap();
            let Some(Ipam::HostLocal(mut local)) = network.plugins[0].ipam.clone() else { panic!("{name}") };
            let routes = local.routes.len() / 2;
            without_ipv6(&mut local);
            assert_eq!((local.ranges.len(), local.routes.len()), (1, routes), "{name}");
        }
    }
}
