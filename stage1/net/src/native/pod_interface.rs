//! The pod's interface: its settings, addresses and routes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use gantry_model::id::shown;
use rustix::io::Errno;

use super::Ends;
use super::addresses::Assignment;
use super::bandwidth::{self, Limits, bucket};
use super::chain::{PluginChain, capability, cni_arg};
use super::error::NativeError;
use super::kind::properties;
use super::sysctl::{ensure, ensure_if_present};
use crate::address::{Cidr, IpFamily};
use crate::config::{RateLimit, Tuning};
use crate::netlink::address::{Address, Scope};
use crate::netlink::link::Change;
use crate::netlink::route::Route;
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{Mac, NotMac, Setup, Socket};
use crate::plugin::Attachment;

/// Timeout of duplicate address detection, which usually takes a second.
const DAD_TIMEOUT: Duration = Duration::from_secs(10);
const DAD_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Settings of the pod's interface.
#[derive(Debug, Clone, Default)]
pub(super) struct PodInterface {
    /// Its hardware address.
    pub(super) mac: Option<Mac>,
    /// Its MTU, if it differs from the host end's.
    pub(super) mtu: Option<u32>,
    promiscuous: Option<bool>,
    all_multicast: Option<bool>,
    tx_queue_length: Option<u32>,
    /// Limit of the traffic that the pod receives.
    pub(super) ingress: Option<RateLimit>,
    egress: Option<RateLimit>,
    /// Sysctls of the pod's namespace, as paths below `/proc/sys/net`.
    sysctls: Vec<(String, String)>,
}

impl PodInterface {
    /// The settings from the configuration and the runtime. `derived`: the hardware address if none is requested.
    pub(super) fn new(
        chain: &PluginChain<'_>,
        attachment: &Attachment,
        derived: Option<Mac>,
    ) -> Result<Self, NativeError> {
        let Limits { ingress, egress } = bandwidth::limits(chain, attachment)?;
        let mut interface =
            Self { mac: requested_mac(chain, attachment)?.or(derived), ingress, egress, ..Self::default() };
        if let Some((_, tuning)) = chain.tuning {
            interface.mtu = tuning.mtu;
            interface.promiscuous = tuning.promisc;
            interface.all_multicast = tuning.allmulti;
            interface.tx_queue_length = tuning.tx_queue_len;
            interface.sysctls = sysctl_paths(tuning, &attachment.interface);
        }
        Ok(interface)
    }

    fn set_sysctls(&self) -> crate::netlink::Result<()> {
        self.sysctls.iter().try_for_each(|(path, value)| Sysctl::Other(path).set(value))
    }

    /// The properties that are set at creation.
    pub(super) fn change(&self) -> Change<'static> {
        Change { mac: self.mac, mtu: self.mtu, tx_queue_length: self.tx_queue_length, ..Change::default() }
    }
}

/// The derived hardware address of an interface: from its first IPv4 address, as in CNI's bridge plugin, or else from
/// pod and interface name.
pub(super) fn derived_mac(assignment: &Assignment, attachment: &Attachment) -> Mac {
    match assignment.first(IpFamily::V4) {
        Some(IpAddr::V4(address)) => Mac::from_ipv4(address),
        _ => Mac::from_id(&format!("{}/{}", attachment.container_id, attachment.interface)),
    }
}

/// Whether the previous owner of the first IPv4 address had the same hardware address.
fn is_derived_from_address(mac: Mac, assignment: &Assignment) -> bool {
    matches!(assignment.first(IpFamily::V4), Some(IpAddr::V4(address)) if Mac::from_ipv4(address) == mac)
}

/// The requested hardware address: from the capability `mac`, `args.cni.mac`, `MAC=`, or the configuration of tuning or
/// macvlan, in this order.
fn requested_mac(chain: &PluginChain<'_>, attachment: &Attachment) -> Result<Option<Mac>, NativeError> {
    let requested = chain.argument_plugins().find_map(|plugin| capability(plugin, attachment, "mac"));
    let requested =
        requested.or_else(|| chain.argument_plugins().find_map(|plugin| cni_arg(plugin, attachment, "mac")));
    let by_args = || attachment.args.iter().find(|(key, value)| key == "MAC" && !value.is_empty());
    let text = match requested {
        Some(value) => value.as_str().ok_or_else(|| NativeError::invalid("'mac' must be a string"))?,
        None => match by_args() {
            Some((_, text)) => text,
            None => return Ok(configured_mac(chain).map(Mac)),
        },
    };
    let problem = |what: &str| NativeError::invalid(format!("the hardware address '{}' {what}", shown(text)));
    if !chain.kind.describe().has_own_mac {
        return Err(problem("was requested, but interfaces of this network have that of the parent interface"));
    }
    let mac: Mac = text.parse().map_err(|bad: NotMac| problem(&format!("is invalid: {bad}")))?;
    // The lowest bit of the first byte marks group addresses (IEEE 802).
    if mac.0[0] & 1 == 1 || mac.0 == [0; 6] {
        return Err(problem("is invalid: it is a group address or zero"));
    }
    Ok(Some(mac))
}

fn configured_mac(chain: &PluginChain<'_>) -> Option<[u8; 6]> {
    chain.tuning.and_then(|(_, tuning)| tuning.mac).or(properties(&chain.main.settings).mac)
}

/// The sysctls of tuning as paths below `/proc/sys/net`: `net.ipv4.conf.IFNAME.rp_filter` or
/// `net/ipv4/conf/eth0.1/rp_filter`, where the interface's name replaces `IFNAME`.
fn sysctl_paths(tuning: &Tuning, interface: &str) -> Vec<(String, String)> {
    let path = |name: &str| {
        let separator = if name.contains('/') { '/' } else { '.' };
        let parts = name.split(separator).skip(1);
        parts.map(|part| if part == "IFNAME" { interface } else { part }).collect::<Vec<_>>().join("/")
    };
    tuning.sysctl.iter().map(|(name, value)| (path(name), value.clone())).collect()
}

/// How the interface is set up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SetupOptions {
    /// Wait for the duplicate address detection of IPv6 (RFC 4862, section 5.4).
    pub(super) detect_duplicates: bool,
    /// All traffic goes through the gateway, even for the pod's own subnet.
    pub(super) gateway_only: bool,
    /// Leave the interface down.
    pub(super) leave_down: bool,
}

/// Sets up the pod's interface, which exists and is down: sysctls, rate limit, state, addresses, routes.
pub(super) fn set_up(
    ends: &mut Ends<'_>,
    attachment: &Attachment,
    interface: &PodInterface,
    assignment: &Assignment,
    options: SetupOptions,
) -> Result<(), NativeError> {
    let name = &attachment.interface;
    let index = ends.pod.index(name)?.ok_or_else(|| NativeError::vanished(name))?;
    ends.pod_namespace.enter(|| {
        ensure_if_present(Sysctl::AcceptRa(name), "0")?;
        ensure_if_present(Sysctl::AcceptDad(name), if options.detect_duplicates { "1" } else { "0" })?;
        // If the previous owner of the address may have had another hardware address, the kernel announces the new one.
        // Otherwise it does not: a bridge floods the announcement to every pod, and each takes time to receive it.
        if interface.mac.is_none_or(|mac| !is_derived_from_address(mac, assignment)) {
            ensure(Sysctl::ArpNotify(name), "1")?;
        }
        if assignment.may_be_cached6() {
            ensure_if_present(Sysctl::NdiscNotify(name), "1")?;
        }
        if assignment.has(IpFamily::V6) {
            ensure(Sysctl::DisableV6(name), "0")?;
        }
        interface.set_sysctls()
    })?;
    if let Some(limit) = interface.egress {
        ends.pod.limit_rate(index, &bucket(limit))?;
    }
    let change = Change {
        up: Some(!options.leave_down),
        promiscuous: interface.promiscuous,
        all_multicast: interface.all_multicast,
        ..Change::default()
    };
    // As in the plugins, a later route to the same destination is ignored.
    let mut setup = Setup { change, first_route_wins: true, ..Setup::default() };
    if !options.leave_down {
        setup.addresses = interface_addresses(assignment, options);
        setup.routes = interface_routes(assignment, options, index);
    }
    ends.pod.set_up(index, &setup)?;
    if options.detect_duplicates && assignment.has(IpFamily::V6) {
        wait_for_duplicate_detection(&mut ends.pod, index)?;
    }
    Ok(())
}

/// Waits until no address is tentative (RFC 4862, section 5.4).
fn wait_for_duplicate_detection(pod: &mut Socket, index: u32) -> Result<(), NativeError> {
    let deadline = Instant::now() + DAD_TIMEOUT;
    loop {
        let own = pod.addresses(Some(index))?;
        if let Some(taken) = own.iter().find(|own| own.duplicate) {
            let address = taken.address.prefix.address();
            return Err(NativeError::invalid(format!("another host of the network uses the address {address}")));
        }
        let Some(tentative) = own.iter().find(|own| own.tentative) else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(NativeError::tentative(tentative.address.prefix, DAD_TIMEOUT));
        }
        std::thread::sleep(DAD_POLL_INTERVAL);
    }
}

fn interface_addresses(assignment: &Assignment, options: SetupOptions) -> Vec<Address> {
    let (no_dad, no_prefix_route) = (!options.detect_duplicates, options.gateway_only);
    let one = |prefix| Address { no_dad, no_prefix_route, ..Address::new(prefix) };
    assignment.ips.iter().map(|ip| one(ip.address)).collect()
}

fn interface_routes(assignment: &Assignment, options: SetupOptions, index: u32) -> Vec<Route> {
    let mut routes = Vec::new();
    for ip in assignment.ips.iter().filter(|_| options.gateway_only) {
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
    routes.extend(assignment.routes.iter().map(|route| {
        let to = route.dst.network();
        let scope = route.scope.map(Scope::from);
        // Destinations on the link have no next hop.
        let on_link = scope.is_some_and(|scope| scope.number() >= Scope::Link.number());
        let default_gateway = assignment.gateway(to.family()).filter(|_| !on_link);
        Route {
            gateway: route.gw.or(default_gateway),
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

/// Sets the sysctls of the pod's namespace that the configuration requests.
pub(super) fn set_sysctls(ends: &Ends<'_>, interface: &PodInterface) -> Result<(), NativeError> {
    Ok(ends.pod_namespace.enter(|| interface.set_sysctls())?)
}

/// Sets an interface down that the kernel may delete meanwhile.
pub(super) fn set_down(socket: &mut Socket, index: u32) -> Result<(), NativeError> {
    match socket.change_link(index, &Change { up: Some(false), ..Change::default() }) {
        Err(error) if error.errno() == Some(Errno::NODEV) => Ok(()),
        result => Ok(result?),
    }
}
