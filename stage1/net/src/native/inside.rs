//! The pod's end: what it is to be, its addresses and its routes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use gantry_model::id::shown;

use super::Ends;
use super::addresses::Given;
use super::bandwidth::{self, Limits, bucket};
use super::chain::{Chain, capability, cni_arg};
use super::error::NativeError;
use super::switches::{be, be_if_there};
use crate::address::Cidr;
use crate::config::{PluginSettings, RateLimit, Tuning};
use crate::netlink::address::{Address, Scope};
use crate::netlink::link::Change;
use crate::netlink::route::Route;
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{Mac, NotMac, Setup, Socket};
use crate::plugin::Attachment;

/// How long it may take to find out that nobody else has an address: a second, mostly.
const SETTLE: Duration = Duration::from_secs(10);
const SETTLE_STEP: Duration = Duration::from_millis(20);

/// How the pod's interface is to be.
#[derive(Debug, Clone, Default)]
pub(super) struct Inside {
    /// Its hardware address.
    pub(super) mac: Option<Mac>,
    /// Its MTU, if it is to be another than the other end's.
    pub(super) mtu: Option<u32>,
    promiscuous: Option<bool>,
    all_multicast: Option<bool>,
    tx_queue_length: Option<u32>,
    /// What the pod may receive.
    pub(super) ingress: Option<RateLimit>,
    egress: Option<RateLimit>,
    /// Switches of the pod's namespace, as paths below `/proc/sys/net`.
    sysctls: Vec<(String, String)>,
}

impl Inside {
    /// What the configuration and the runtime want. `derived`: the hardware address if none is asked for.
    pub(super) fn of(chain: &Chain<'_>, attachment: &Attachment, derived: Option<Mac>) -> Result<Self, NativeError> {
        let Limits { ingress, egress } = bandwidth::limits(chain, attachment)?;
        let mut inside = Self { mac: asked_mac(chain, attachment)?.or(derived), ingress, egress, ..Self::default() };
        if let Some((_, tuning)) = chain.tuning {
            inside.mtu = tuning.mtu;
            inside.promiscuous = tuning.promisc;
            inside.all_multicast = tuning.allmulti;
            inside.tx_queue_length = tuning.tx_queue_len;
            inside.sysctls = sysctls(tuning, &attachment.interface);
        }
        Ok(inside)
    }

    fn tune(&self) -> crate::netlink::Result<()> {
        self.sysctls.iter().try_for_each(|(path, value)| Sysctl::Other(path).set(value))
    }

    /// What can be said when it is made.
    pub(super) fn change(&self) -> Change<'static> {
        Change { mac: self.mac, mtu: self.mtu, tx_queue_length: self.tx_queue_length, ..Change::default() }
    }
}

/// The hardware address of an interface: from its first IPv4 address, as CNI's bridge plugin does, or else from whose it is.
pub(super) fn derived_mac(given: &Given, attachment: &Attachment) -> Mac {
    match given.first(true) {
        Some(IpAddr::V4(address)) => Mac::of_ipv4(address),
        _ => Mac::of_id(&format!("{}/{}", attachment.container_id, attachment.interface)),
    }
}

/// Whether whoever had the first IPv4 address before had this hardware address too.
fn is_of_address(mac: Mac, given: &Given) -> bool {
    matches!(given.first(true), Some(IpAddr::V4(address)) if Mac::of_ipv4(address) == mac)
}

/// The hardware address asked for: by the capability `mac`, `args.cni.mac`, `MAC=`, and the configuration of tuning or macvlan, in
/// this order.
fn asked_mac(chain: &Chain<'_>, attachment: &Attachment) -> Result<Option<Mac>, NativeError> {
    let asked = chain.askable().find_map(|plugin| capability(plugin, attachment, "mac"));
    let asked = asked.or_else(|| chain.askable().find_map(|plugin| cni_arg(plugin, attachment, "mac")));
    let by_args = || attachment.args.iter().find(|(key, value)| key == "MAC" && !value.is_empty());
    let text = match asked {
        Some(value) => value.as_str().ok_or_else(|| NativeError::Invalid("'mac' must be a text".to_owned()))?,
        None => match by_args() {
            Some((_, text)) => text,
            None => return Ok(configured_mac(chain).map(Mac)),
        },
    };
    let problem = |what: &str| NativeError::Invalid(format!("the hardware address '{}' {what}", shown(text)));
    if !matches!(chain.main.settings, PluginSettings::Bridge(_) | PluginSettings::Ptp(_) | PluginSettings::Macvlan(_)) {
        return Err(problem("was asked for, and an interface of this network has that of the host's"));
    }
    let mac: Mac = text.parse().map_err(|bad: NotMac| problem(&format!("cannot be: {bad}")))?;
    if mac.0[0] & 1 == 1 || mac.0 == [0; 6] {
        return Err(problem("cannot be: it is a group's, or nobody's"));
    }
    Ok(Some(mac))
}

fn configured_mac(chain: &Chain<'_>) -> Option<[u8; 6]> {
    let tuned = chain.tuning.and_then(|(_, tuning)| tuning.mac);
    match &chain.main.settings {
        PluginSettings::Macvlan(macvlan) => tuned.or(macvlan.mac),
        _ => tuned,
    }
}

/// `net.ipv4.conf.IFNAME.rp_filter` or `net/ipv4/conf/eth0.1/rp_filter`: below `/proc/sys/net`, with the interface's name.
fn sysctls(tuning: &Tuning, interface: &str) -> Vec<(String, String)> {
    let path = |name: &str| {
        let separator = if name.contains('/') { '/' } else { '.' };
        let parts = name.split(separator).skip(1);
        parts.map(|part| if part == "IFNAME" { interface } else { part }).collect::<Vec<_>>().join("/")
    };
    tuning.sysctl.iter().map(|(name, value)| (path(name), value.clone())).collect()
}

/// How the addresses are given.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct How {
    /// Wait until it is known that nobody else has an IPv6 address.
    pub(super) dad: bool,
    /// The pod is alone behind its gateway: everything goes there, its own subnet too.
    pub(super) alone: bool,
    /// Leave it down.
    pub(super) down: bool,
}

/// Finishes the pod's interface, which is there and down: switches, limit, up, addresses, routes.
pub(super) fn finish(
    ends: &mut Ends<'_>,
    attachment: &Attachment,
    inside: &Inside,
    given: &Given,
    how: How,
) -> Result<(), NativeError> {
    let name = &attachment.interface;
    let index = ends.pod.index(name)?.ok_or_else(|| NativeError::Gone { name: name.clone() })?;
    ends.pod_namespace.enter(|| {
        be_if_there(Sysctl::AcceptRa(name), "0")?;
        be_if_there(Sysctl::AcceptDad(name), if how.dad { "1" } else { "0" })?;
        // Who had the address before had another hardware address, perhaps: neighbours are told. It is not done for nothing: a
        // bridge takes it to every pod, and each takes its time to read it.
        if inside.mac.is_none_or(|mac| !is_of_address(mac, given)) {
            be(Sysctl::ArpNotify(name), "1")?;
        }
        if given.may_be_known6() {
            be_if_there(Sysctl::NdiscNotify(name), "1")?;
        }
        if given.has(false) {
            be(Sysctl::DisableV6(name), "0")?;
        }
        inside.tune()
    })?;
    if let Some(limit) = inside.egress {
        ends.pod.limit_rate(index, &bucket(limit))?;
    }
    let change = Change {
        up: Some(!how.down),
        promiscuous: inside.promiscuous,
        all_multicast: inside.all_multicast,
        ..Change::default()
    };
    // As in the plugins.
    let mut setup = Setup { change, first_route_wins: true, ..Setup::default() };
    if !how.down {
        setup.addresses = addresses(given, how);
        setup.routes = routes(given, how, index);
    }
    ends.pod.set_up(index, &setup)?;
    if how.dad && given.has(false) {
        settle(&mut ends.pod, index)?;
    }
    Ok(())
}

/// Waits until it is known of all addresses whether somebody else has them.
fn settle(pod: &mut Socket, index: u32) -> Result<(), NativeError> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let own = pod.addresses(Some(index))?;
        if let Some(taken) = own.iter().find(|own| own.duplicate) {
            let address = taken.address.prefix.address();
            return Err(NativeError::Invalid(format!("somebody on the network has the address {address} already")));
        }
        let Some(tentative) = own.iter().find(|own| own.tentative) else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(NativeError::Tentative { address: tentative.address.prefix, seconds: SETTLE.as_secs() });
        }
        std::thread::sleep(SETTLE_STEP);
    }
}

fn addresses(given: &Given, how: How) -> Vec<Address> {
    let one = |prefix| Address { no_dad: !how.dad, no_prefix_route: how.alone, ..Address::new(prefix) };
    given.ips.iter().map(|ip| one(ip.address)).collect()
}

fn routes(given: &Given, how: How, index: u32) -> Vec<Route> {
    let mut routes = Vec::new();
    for ip in given.ips.iter().filter(|_| how.alone) {
        let Some(gateway) = ip.gateway else { continue };
        let source = Some(ip.address.address());
        let to_gateway = Cidr::host(gateway).network();
        let scope = gateway.is_ipv4().then_some(Scope::Link);
        routes.push(Route { device: Some(index), source, scope, ..Route::to(to_gateway) });
        let subnet = ip.address.network();
        if subnet != to_gateway {
            let by_gateway = Route { gateway: Some(gateway), ..Route::to(subnet) };
            routes.push(Route { device: Some(index), source, ..by_gateway });
        }
    }
    routes.extend(given.routes.iter().map(|route| {
        let to = route.dst.network();
        let scope = route.scope.map(Scope::from);
        // What is on the link goes by nobody.
        let near = scope.is_some_and(|scope| scope.number() >= Scope::Link.number());
        let by = given.gateway(to.is_ipv4()).filter(|_| !near);
        Route {
            gateway: route.gw.or(by),
            device: Some(index),
            scope,
            mtu: route.mtu,
            advmss: route.advmss,
            priority: route.priority,
            table: route.table,
            ..Route::to(to)
        }
    }));
    routes
}

/// Sets the switches of the pod's namespace that the configuration asks for.
pub(super) fn tune(ends: &Ends<'_>, inside: &Inside) -> Result<(), NativeError> {
    Ok(ends.pod_namespace.enter(|| inside.tune())?)
}
