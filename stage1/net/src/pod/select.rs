//! Selects the networks of a pod: whether gantry or plugins create each, and which one publishes the ports.

use std::net::IpAddr;

use gantry_contract::network::{Bandwidth, GivenNetwork, Host, KubernetesNetworking};
use gantry_contract::plan::Networks;
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::net::MAX_NETWORKS;
use gantry_model::net::{Dns, NetworkRequest, PodPort};
use serde_json::{Map, Value, json};

use super::error::{NetworkError, Result};
use super::record::NetworkRecord;
use crate::address::IpFamily;
use crate::config::{Catalog, ConfigError, Ipam, NetworkConfig, PluginSettings, Source, builtin};
use crate::ipam;
use crate::native;
use crate::plugin;

/// A selected network.
#[derive(Debug, Clone)]
pub(super) struct SelectedNetwork {
    pub(super) network: NetworkConfig,
    pub(super) args: Arguments,
    /// Why its plugins are needed; `None`: gantry creates it.
    pub(super) plugins: Option<String>,
    /// The ports that it publishes.
    pub(super) ports: Vec<PodPort>,
    /// Some of them need a free host port, which is picked first.
    pub(super) picked: bool,
    /// The settings of a Kubernetes pod.
    pub(super) kubernetes: Option<KubernetesNetworking>,
}

/// Keys and values, in order.
type Arguments = Vec<(String, String)>;

/// A set of address families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Families {
    pub(super) v4: bool,
    pub(super) v6: bool,
}

impl Families {
    pub(super) fn from_addresses(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut families = Self::default();
        for address in addresses {
            match IpFamily::of(address) {
                IpFamily::V4 => families.v4 = true,
                IpFamily::V6 => families.v6 = true,
            }
        }
        families
    }

    pub(super) fn contains(self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.v4,
            IpFamily::V6 => self.v6,
        }
    }

    pub(super) fn iter(self) -> impl Iterator<Item = IpFamily> {
        IpFamily::ALL.into_iter().filter(move |family| self.contains(*family))
    }
}

impl std::ops::BitOrAssign for Families {
    fn bitor_assign(&mut self, other: Self) {
        self.v4 |= other.v4;
        self.v6 |= other.v6;
    }
}

/// Reads the catalog of this host.
pub(super) fn catalog(host: &Host) -> Result<Catalog> {
    let dirs: Vec<std::path::PathBuf> = host.config_dirs.iter().map(Into::into).collect();
    Ok(Catalog::read(&dirs)?)
}

/// Selects the networks of a pod, in order.
pub(super) fn select_networks(wanted: &Networks) -> Result<Vec<SelectedNetwork>> {
    let catalog = catalog(&wanted.host)?;
    let given =
        wanted.kubernetes.as_ref().and_then(|settings| settings.network.as_ref()).map(given_network).transpose()?;
    let is_given = |it: &&NetworkRequest| given.as_ref().is_some_and(|given| given.name == it.name);
    check_names(&catalog, wanted.wanted.iter().filter(|it| !is_given(it)))?;
    let mut choices = Vec::new();
    if wanted.all {
        for network in all(catalog, &wanted.wanted)? {
            let args = wanted.wanted.iter().find(|it| it.name == network.name).map(|it| it.args.clone());
            choices.push(choice(network, args.unwrap_or_default(), &wanted.host));
        }
    } else {
        for it in &wanted.wanted {
            let network = match given.clone().filter(|_| is_given(&it)) {
                Some(given) => given,
                None => named(&catalog, &wanted.host, &it.name)?,
            };
            choices.push(choice(network, it.args.clone(), &wanted.host));
        }
    }
    if choices.len() > MAX_NETWORKS {
        let count = choices.len();
        let message =
            format!("a pod can have {MAX_NETWORKS} networks, but {count} were requested: name the ones that it needs");
        return Err(NetworkError::new(ErrorKind::Invalid, message));
    }
    if let Some(kubernetes) = &wanted.kubernetes {
        for choice in &mut choices {
            choice.args.extend(kubernetes.args.iter().cloned());
            choice.kubernetes = Some(KubernetesNetworking::clone(kubernetes));
        }
    }
    choices.iter().filter(|choice| choice.plugins.is_none()).try_for_each(check_arguments)?;
    match assign_ports(&mut choices, &wanted.ports) {
        // The network's agent publishes them itself, or not at all.
        Err(_) if wanted.kubernetes.is_some() => {}
        assigned => assigned?,
    }
    Ok(choices)
}

/// The network whose configuration is in the plan.
fn given_network(given: &GivenNetwork) -> Result<NetworkConfig> {
    let source = given.source.as_ref().map_or(Source::BuiltIn, |path| Source::File(path.into()));
    Ok(NetworkConfig::parse(&given.text, source)?)
}

/// The types of plugins that a network needs and that no directory has.
pub(super) fn missing_plugins(network: &NetworkConfig, host: &Host) -> Vec<String> {
    if plugins_needed(network, host).is_none() {
        return Vec::new();
    }
    let dirs: Vec<std::path::PathBuf> = host.plugin_dirs.iter().map(Into::into).collect();
    let kinds = network.plugins.iter().map(|plugin| &plugin.kind);
    kinds.filter(|kind| !plugin::is_installed(&dirs, kind)).cloned().collect()
}

/// Fails with all unknown names, as rkt does.
fn check_names<'a>(catalog: &Catalog, wanted: impl Iterator<Item = &'a NetworkRequest>) -> Result<()> {
    let entries = catalog.entries();
    let missing = wanted.filter(|it| !entries.iter().any(|entry| entry.name.as_ref() == Some(&it.name)));
    let names: Vec<String> = missing.map(|it| gantry_model::id::shown(&it.name)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let nameless = entries.iter().filter(|entry| entry.name.is_none());
    let broken: Vec<String> =
        nameless.filter_map(|entry| entry.network.as_ref().err()).map(ToString::to_string).collect();
    Err(NetworkError::no_networks(&names, &broken))
}

fn named(catalog: &Catalog, host: &Host, name: &str) -> Result<NetworkConfig> {
    let entry = catalog.entries().iter().find(|entry| entry.name.as_deref() == Some(name));
    match entry.map(|entry| &entry.network) {
        Some(Ok(network)) => Ok(network.clone()),
        // Read again, because the catalog returns its error only once.
        _ => Ok(self::catalog(host)?.get(name)?),
    }
}

/// All configured networks and the default one, but not the built-in restricted one, which is useful only alone.
fn all(catalog: Catalog, wanted: &[NetworkRequest]) -> std::result::Result<Vec<NetworkConfig>, ConfigError> {
    let mut networks = catalog.all()?;
    networks.retain(|network| {
        network.source != Source::BuiltIn
            || network.name == builtin::DEFAULT
            || wanted.iter().any(|it| it.name == network.name)
    });
    Ok(networks)
}

fn choice(network: NetworkConfig, args: Vec<(String, String)>, host: &Host) -> SelectedNetwork {
    let plugins = plugins_needed(&network, host);
    SelectedNetwork { network, args, plugins, ports: Vec::new(), picked: false, kubernetes: None }
}

/// Why a network needs its plugins; `None`: gantry creates it.
pub(super) fn plugins_needed(network: &NetworkConfig, host: &Host) -> Option<String> {
    if host.use_plugins && network.source != Source::BuiltIn {
        return Some("use-plugins is true in the configuration of gantry".into());
    }
    native::obstacle(network).map(|obstacle| format!("gantry does not support: {obstacle}"))
}

/// The arguments of a network that gantry creates itself. With `IgnoreUnknown` (CNI conventions), others are allowed.
const ARGUMENTS: [&str; 3] = ["IP", "MAC", "IgnoreUnknown"];

/// A further argument of a network with static addresses.
const GATEWAY: &str = "GATEWAY";

/// Fails for an argument that gantry would ignore. Plugins check their arguments themselves.
fn check_arguments(choice: &SelectedNetwork) -> Result<()> {
    if let Some((argument, _)) = choice.args.iter().find(|(_, value)| value.is_empty()) {
        let message = format!("argument '{argument}' of network '{}' has no value", choice.network.name);
        return Err(NetworkError::new(ErrorKind::Invalid, message));
    }
    let lenient = |(key, value): &(String, String)| key == "IgnoreUnknown" && matches!(value.as_str(), "1" | "true");
    if choice.args.iter().any(lenient) {
        return Ok(());
    }
    let is_static = choice.network.plugins.iter().any(|plugin| matches!(plugin.ipam, Some(Ipam::Static(_))));
    let is_known = |key: &str| ARGUMENTS.contains(&key) || is_static && key == GATEWAY;
    match choice.args.iter().find(|(key, _)| !is_known(key)) {
        Some((argument, _)) => {
            let known = if is_static { "IP=ADDRESS, GATEWAY=ADDRESS" } else { "IP=ADDRESS" };
            let message = format!(
                "network '{}' has no argument '{}': {known} and MAC=ADDRESS are its arguments",
                choice.network.name,
                shown(argument)
            );
            Err(NetworkError::new(ErrorKind::Invalid, message))
        }
        None => Ok(()),
    }
}

/// Assigns the ports to the first network that publishes ports and masquerades, else to the first that publishes ports.
fn assign_ports(choices: &mut [SelectedNetwork], ports: &[PodPort]) -> Result<()> {
    if ports.is_empty() {
        return Ok(());
    }
    let best = choices.iter().position(|it| publishes_ports(&it.network) && masquerades(&it.network));
    let best = best.or_else(|| choices.iter().position(|it| publishes_ports(&it.network)));
    match best.and_then(|index| choices.get_mut(index)) {
        Some(choice) => {
            choice.ports = ports.to_vec();
            choice.picked = ports.iter().any(|port| port.host_port == 0);
        }
        None => {
            let names: Vec<&str> = choices.iter().map(|it| it.network.name.as_str()).collect();
            let message = format!(
                "no network of the pod publishes ports ({}): add a network whose configuration lists portmap, or publish no ports",
                names.join(", ")
            );
            return Err(NetworkError::new(ErrorKind::Invalid, message));
        }
    }
    Ok(())
}

fn declares(network: &NetworkConfig, capability: &str) -> bool {
    network.plugins.iter().any(|plugin| plugin.capabilities.get(capability).copied().unwrap_or(false))
}

fn publishes_ports(network: &NetworkConfig) -> bool {
    declares(network, "portMappings")
}

fn masquerades(network: &NetworkConfig) -> bool {
    let is_configured = |raw: &Map<String, Value>| raw.get("ipMasq").and_then(Value::as_bool).unwrap_or(false);
    network.plugins.iter().any(|plugin| match &plugin.settings {
        PluginSettings::Other => is_configured(&plugin.raw),
        settings => native::properties(settings).masquerades,
    })
}

impl SelectedNetwork {
    /// The record of the network.
    pub(super) fn record(&self, index: usize) -> Result<NetworkRecord> {
        let (args, cni_args) = self.arguments()?;
        Ok(NetworkRecord {
            name: self.network.name.clone(),
            interface: format!("eth{index}"),
            plugins: self.plugins.is_some(),
            source: self.network.source.to_string(),
            text: self.network.text.clone(),
            args,
            capability_args: self.capability_args()?,
            cni_args,
        })
    }

    /// The arguments (`CNI_ARGS`) and `args.cni`. Plugins know a single `IP` argument only. Several addresses are
    /// passed in `args.cni.ips` (CNI conventions), which host-local reads.
    fn arguments(&self) -> Result<(Arguments, Map<String, Value>)> {
        let asked = self.requested_texts()?;
        let mut cni_args = Map::new();
        if self.plugins.is_none() || asked.len() < 2 {
            return Ok((self.args.clone(), cni_args));
        }
        cni_args.insert("ips".into(), asked.into());
        let others = self.args.iter().filter(|(key, _)| key != "IP");
        Ok((others.cloned().collect(), cni_args))
    }

    /// The requested addresses as they were given: with their prefix length, which static addresses need and host-local
    /// accepts.
    fn requested_texts(&self) -> Result<Vec<String>> {
        let doing = format!("read the arguments of network '{}'", self.network.name);
        ipam::requested_texts(&self.args).map_err(NetworkError::attempt(doing))
    }

    /// Values of the capabilities that the network declares (CNI conventions).
    fn capability_args(&self) -> Result<Map<String, Value>> {
        let mut values = Map::new();
        if !self.ports.is_empty() {
            values.insert("portMappings".into(), self.ports.iter().flat_map(mappings).collect());
        }
        let by_args = |wanted: &str| self.args.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.clone());
        if declares(&self.network, "ips") {
            let asked = self.requested_texts()?;
            if !asked.is_empty() {
                values.insert("ips".into(), asked.into());
            }
        }
        if let Some(mac) = by_args("MAC").filter(|_| declares(&self.network, "mac")) {
            values.insert("mac".into(), mac.into());
        }
        let kubernetes = self.kubernetes.iter().flat_map(kubernetes_capabilities);
        values.extend(kubernetes.filter(|(name, _)| declares(&self.network, name)));
        Ok(values)
    }

    /// The families in which its ports are held before the pod's addresses are known. If the configuration does not
    /// determine them, a free port is picked for both.
    pub(super) fn held_families(&self) -> Families {
        match self.families() {
            unknown if unknown == Families::default() && self.picked => Families { v4: true, v6: true },
            known => known,
        }
    }

    /// The families of the addresses that the pod will have; none if the configuration does not determine them.
    pub(super) fn families(&self) -> Families {
        let mut families = Families::from_addresses(ipam::requested_addresses(&self.args, None).unwrap_or_default());
        for ipam in self.network.plugins.iter().filter_map(|plugin| plugin.ipam.as_ref()) {
            let addresses: Vec<IpAddr> = match ipam {
                Ipam::HostLocal(it) => it.ranges.iter().flatten().map(|range| range.start).collect(),
                Ipam::Static(it) => it.addresses.iter().map(|entry| entry.address.address()).collect(),
                Ipam::Other(_) => Vec::new(),
            };
            families |= Families::from_addresses(addresses);
        }
        families
    }
}

/// The capabilities `bandwidth` and `dns` (CNI conventions), as far as the pod has values for them.
fn kubernetes_capabilities(settings: &KubernetesNetworking) -> impl Iterator<Item = (String, Value)> + use<> {
    let KubernetesNetworking { network: _, args: _, bandwidth: Bandwidth { ingress, egress }, dns } = settings;
    let mut limits = Map::new();
    for (direction, rate) in [("ingress", ingress), ("egress", egress)] {
        if let Some(rate) = rate {
            limits.insert(format!("{direction}Rate"), (*rate).into());
            limits.insert(format!("{direction}Burst"), burst(*rate).into());
        }
    }
    let bandwidth = (!limits.is_empty()).then(|| ("bandwidth".to_owned(), Value::Object(limits)));
    let dns = dns.as_ref().map(|Dns { servers, search, options, domain: _ }| {
        ("dns".to_owned(), json!({ "servers": servers, "searches": search, "options": options }))
    });
    bandwidth.into_iter().chain(dns)
}

/// The size of the bucket for a rate, in bits: what passes in 100 ms, and at least four packets as large as they get
/// before segmentation.
fn burst(rate: u64) -> u64 {
    const LARGEST_PACKET: u64 = 64 * 1024 * 8;
    (rate / 10).clamp(4 * LARGEST_PACKET, u32::MAX.into())
}

fn mappings(port: &PodPort) -> impl Iterator<Item = Value> + '_ {
    (0..port.count).map(move |offset| {
        let mut mapping = json!({
            "hostPort": port.host_port.saturating_add(offset),
            "containerPort": port.pod_port.saturating_add(offset),
            "protocol": port.protocol.as_str(),
        });
        if let (Some(address), Some(object)) = (port.host_ip, mapping.as_object_mut()) {
            object.insert("hostIP".into(), address.to_string().into());
        }
        mapping
    })
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;
