//! Which networks a pod gets, who makes each (gantry or its plugins), and which of them forwards its ports.

use std::net::IpAddr;

use gantry_contract::network::Host;
use gantry_contract::plan::{Networks, Port, Wanted};
use gantry_model::net::MAX_NETWORKS;
use serde_json::{Map, Value, json};

use super::error::{NetworkError, Result};
use super::record::Joined;
use crate::config::{Catalog, ConfigError, Ipam, NetworkConfig, PluginSettings, Source, builtin};
use crate::ipam;
use crate::native;

/// A network that was chosen.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub(super) network: NetworkConfig,
    pub(super) args: Arguments,
    /// Why its plugins make it; None: gantry does.
    pub(super) plugins: Option<String>,
    /// The ports it forwards.
    pub(super) ports: Vec<Port>,
    /// Whether some of them are free ports of the host, which are picked first.
    pub(super) picked: bool,
}

/// Keys and values, in order.
type Arguments = Vec<(String, String)>;

/// Which of the two kinds of addresses there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Families {
    pub(super) v4: bool,
    pub(super) v6: bool,
}

impl Families {
    pub(super) fn of(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut families = Self::default();
        for address in addresses {
            families.v4 |= address.is_ipv4();
            families.v6 |= address.is_ipv6();
        }
        families
    }
}

/// Reads the catalog of a host.
pub(super) fn catalog(host: &Host) -> Result<Catalog> {
    let dirs: Vec<std::path::PathBuf> = host.config_dirs.iter().map(Into::into).collect();
    Ok(Catalog::read(&dirs)?)
}

/// The networks of a pod, in order.
pub(super) fn choose(wanted: &Networks) -> Result<Vec<Choice>> {
    let catalog = catalog(&wanted.host)?;
    check_names(&catalog, &wanted.wanted)?;
    let mut choices = Vec::new();
    if wanted.all {
        for network in all(catalog, &wanted.wanted)? {
            let args = wanted.wanted.iter().find(|it| it.name == network.name).map(|it| it.args.clone());
            choices.push(choice(network, args.unwrap_or_default(), &wanted.host));
        }
    } else {
        for it in &wanted.wanted {
            choices.push(choice(named(&catalog, &wanted.host, &it.name)?, it.args.clone(), &wanted.host));
        }
    }
    if choices.len() > MAX_NETWORKS {
        return Err(NetworkError::TooMany { count: choices.len(), most: MAX_NETWORKS });
    }
    choices.iter().filter(|choice| choice.plugins.is_none()).try_for_each(check_arguments)?;
    give_ports(&mut choices, &wanted.ports)?;
    Ok(choices)
}

/// Fails with all names that no network has, as rkt does.
fn check_names(catalog: &Catalog, wanted: &[Wanted]) -> Result<()> {
    let entries = catalog.entries();
    let missing = wanted.iter().filter(|it| !entries.iter().any(|entry| entry.name.as_ref() == Some(&it.name)));
    let names: Vec<String> = missing.map(|it| gantry_model::id::shown(&it.name)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let nameless = entries.iter().filter(|entry| entry.name.is_none());
    let broken = nameless.filter_map(|entry| entry.network.as_ref().err()).map(ToString::to_string).collect();
    Err(NetworkError::NotFound { names, broken })
}

fn named(catalog: &Catalog, host: &Host, name: &str) -> Result<NetworkConfig> {
    let entry = catalog.entries().iter().find(|entry| entry.name.as_deref() == Some(name));
    match entry.map(|entry| &entry.network) {
        Some(Ok(network)) => Ok(network.clone()),
        // Read again: an error is given away once.
        _ => Ok(self::catalog(host)?.get(name)?),
    }
}

/// Every network that is configured, and the default one. The restricted one that is built in is not: it is for those who
/// want nothing but it.
fn all(catalog: Catalog, wanted: &[Wanted]) -> std::result::Result<Vec<NetworkConfig>, ConfigError> {
    let mut networks = catalog.all()?;
    networks.retain(|network| {
        network.source != Source::BuiltIn
            || network.name == builtin::DEFAULT
            || wanted.iter().any(|it| it.name == network.name)
    });
    Ok(networks)
}

fn choice(network: NetworkConfig, args: Vec<(String, String)>, host: &Host) -> Choice {
    let plugins = plugins_needed(&network, host);
    Choice { network, args, plugins, ports: Vec::new(), picked: false }
}

/// Why a network is made by its plugins; None: gantry makes it.
pub(super) fn plugins_needed(network: &NetworkConfig, host: &Host) -> Option<String> {
    if host.use_plugins && network.source != Source::BuiltIn {
        return Some("use-plugins is true in the configuration of gantry".into());
    }
    native::obstacle(network).map(|what| format!("gantry itself cannot: {what}"))
}

/// The arguments of a network that gantry makes itself. `IgnoreUnknown` is of the CNI conventions: with it others may be there.
const ARGUMENTS: [&str; 3] = ["IP", "MAC", "IgnoreUnknown"];

/// Fails for an argument that gantry would ignore. What plugins know is theirs to say.
fn check_arguments(choice: &Choice) -> Result<()> {
    let network = || choice.network.name.clone();
    if let Some((argument, _)) = choice.args.iter().find(|(_, value)| value.is_empty()) {
        return Err(NetworkError::EmptyArgument { network: network(), argument: argument.clone() });
    }
    let lenient = |(key, value): &(String, String)| key == "IgnoreUnknown" && matches!(value.as_str(), "1" | "true");
    if choice.args.iter().any(lenient) {
        return Ok(());
    }
    match choice.args.iter().find(|(key, _)| !ARGUMENTS.contains(&key.as_str())) {
        Some((argument, _)) => {
            let known = "IP=ADDRESS and MAC=ADDRESS";
            Err(NetworkError::UnknownArgument { network: network(), argument: argument.clone(), known })
        }
        None => Ok(()),
    }
}

/// The ports go to the first network that forwards and masquerades, else to the first that forwards.
fn give_ports(choices: &mut [Choice], ports: &[Port]) -> Result<()> {
    if ports.is_empty() {
        return Ok(());
    }
    let best = choices.iter().position(|it| forwards(&it.network) && masquerades(&it.network));
    let best = best.or_else(|| choices.iter().position(|it| forwards(&it.network)));
    match best.and_then(|index| choices.get_mut(index)) {
        Some(choice) => {
            choice.ports = ports.to_vec();
            choice.picked = ports.iter().any(|port| port.host_port == 0);
        }
        None => {
            let names: Vec<&str> = choices.iter().map(|it| it.network.name.as_str()).collect();
            return Err(NetworkError::NoForwarder { networks: names.join(", ") });
        }
    }
    Ok(())
}

fn declares(network: &NetworkConfig, capability: &str) -> bool {
    network.plugins.iter().any(|plugin| plugin.capabilities.get(capability).copied().unwrap_or(false))
}

fn forwards(network: &NetworkConfig) -> bool {
    declares(network, "portMappings")
}

fn masquerades(network: &NetworkConfig) -> bool {
    let says = |raw: &Map<String, Value>| raw.get("ipMasq").and_then(Value::as_bool).unwrap_or(false);
    network.plugins.iter().any(|plugin| match &plugin.settings {
        PluginSettings::Bridge(bridge) => bridge.ip_masq,
        PluginSettings::Ptp(ptp) => ptp.ip_masq,
        PluginSettings::Other => says(&plugin.raw),
        _ => false,
    })
}

impl Choice {
    /// What the record says of it.
    pub(super) fn joined(&self, index: usize) -> Result<Joined> {
        let (args, cni_args) = self.arguments()?;
        Ok(Joined {
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

    /// The arguments (`CNI_ARGS`) and what goes into `args.cni`. A plugin knows one `IP` only: several go the other way the
    /// conventions have, and which host-local reads.
    fn arguments(&self) -> Result<(Arguments, Map<String, Value>)> {
        let asked = self.addresses_asked_for()?;
        let mut cni_args = Map::new();
        if self.plugins.is_none() || asked.len() < 2 {
            return Ok((self.args.clone(), cni_args));
        }
        cni_args.insert("ips".into(), asked.iter().map(ToString::to_string).collect());
        let others = self.args.iter().filter(|(key, _)| key != "IP");
        Ok((others.cloned().collect(), cni_args))
    }

    fn addresses_asked_for(&self) -> Result<Vec<IpAddr>> {
        let doing = || format!("read the arguments of network '{}'", self.network.name);
        ipam::asked_for(&self.args, None)
            .map_err(|source| NetworkError::Leases { doing: doing(), source: Box::new(source) })
    }

    /// Values of the capabilities that the network declares (CNI conventions).
    fn capability_args(&self) -> Result<Map<String, Value>> {
        let mut values = Map::new();
        if !self.ports.is_empty() {
            values.insert("portMappings".into(), self.ports.iter().flat_map(mappings).collect());
        }
        let by_args = |wanted: &str| self.args.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.clone());
        if declares(&self.network, "ips") {
            let asked = self.addresses_asked_for()?;
            if !asked.is_empty() {
                values.insert("ips".into(), asked.iter().map(ToString::to_string).collect());
            }
        }
        if let Some(mac) = by_args("MAC").filter(|_| declares(&self.network, "mac")) {
            values.insert("mac".into(), mac.into());
        }
        Ok(values)
    }

    /// For which families its ports are held before it is known which addresses the pod has. A free port is picked for both, where
    /// the configuration does not tell.
    pub(super) fn held_families(&self) -> Families {
        match self.families() {
            unknown if unknown == Families::default() && self.picked => Families { v4: true, v6: true },
            known => known,
        }
    }

    /// Which addresses the pod will have, where the configuration tells: none, where it does not.
    pub(super) fn families(&self) -> Families {
        let mut families = Families::of(self.addresses_asked_for().unwrap_or_default());
        for ipam in self.network.plugins.iter().filter_map(|plugin| plugin.ipam.as_ref()) {
            let addresses: Vec<IpAddr> = match ipam {
                Ipam::HostLocal(it) => it.ranges.iter().flatten().map(|range| range.start).collect(),
                Ipam::Static(it) => it.addresses.iter().map(|entry| entry.address.address()).collect(),
                Ipam::Other(_) => Vec::new(),
            };
            let more = Families::of(addresses);
            families = Families { v4: families.v4 | more.v4, v6: families.v6 | more.v6 };
        }
        families
    }
}

fn mappings(port: &Port) -> impl Iterator<Item = Value> + '_ {
    (0..port.count).map(move |offset| {
        let mut mapping = json!({
            "hostPort": port.host_port.saturating_add(offset),
            "containerPort": port.pod_port.saturating_add(offset),
            "protocol": gantry_model::net::Protocol::from(port.protocol).as_str(),
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
