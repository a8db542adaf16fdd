//! The networks of this host, for people: each configuration, including unusable ones, and its pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use gantry_contract::network::{Host, Member, Network};

use super::error::{NetworkError, Result};
use super::record::{Record, Records, boot};
use super::select;
use crate::config::{Catalog, CatalogEntry, Ipam, NetworkConfig, PluginSettings, Source};
use crate::native;
use crate::netlink::Prefix;

/// All networks, or the configurations of this name with their texts.
pub(super) fn networks(host: &Host, name: Option<&str>) -> Result<Vec<Network>> {
    let mut all = describe(host, &select::catalog(host)?, &records_up(host)?);
    let Some(name) = name else {
        all.iter_mut().for_each(|network| network.text = None);
        return Ok(all);
    };
    all.retain(|network| network.name.as_deref() == Some(name));
    if all.is_empty() {
        return Err(NetworkError::no_networks(&[gantry_model::id::shown(name)], &[]));
    }
    Ok(all)
}

fn describe(host: &Host, catalog: &Catalog, records: &[Record]) -> Vec<Network> {
    let mut all: Vec<Network> = catalog.entries().iter().map(|entry| describe_entry(entry, host)).collect();
    add_unconfigured(&mut all, records);
    for network in all.iter_mut().filter(|network| network.shadowed_by.is_none()) {
        network.pods = members(network.name.as_deref(), records);
    }
    all
}

/// The records of the pods that are up, by pod. The record of a pod whose supervisor was killed remains until a command
/// detaches the pod.
fn records_up(host: &Host) -> Result<Vec<Record>> {
    let (boot, records) = (boot()?, Records::open(host)?);
    let mut up = Vec::new();
    for record in records.valid()? {
        if record.is_up(&boot) && !records.is_dead(&record.pod)? {
            up.push(record);
        }
    }
    up.sort_by(|one, other| one.pod.cmp(&other.pod));
    Ok(up)
}

fn describe_entry(entry: &CatalogEntry, host: &Host) -> Network {
    let mut network = match &entry.network {
        Ok(config) => describe_config(config, select::plugins_needed(config, host).is_none()),
        Err(error) => Network { problem: Some(error.to_string()), ..Network::default() },
    };
    network.name.clone_from(&entry.name);
    network.source = entry.source.to_string();
    network.shadowed_by = entry.shadowed_by.as_ref().map(ToString::to_string);
    network
}

fn describe_config(config: &NetworkConfig, built_in: bool) -> Network {
    let mut network = Network {
        name: Some(config.name.clone()),
        source: config.source.to_string(),
        plugins: config.plugins.iter().map(|plugin| plugin.kind.clone()).collect(),
        built_in,
        cni_versions: config.cni_versions.iter().map(ToString::to_string).collect(),
        notes: config.notes.clone(),
        text: Some(config.text.clone()),
        ..Network::default()
    };
    for plugin in &config.plugins {
        let interface = native::properties(&plugin.settings).host_interface.map(str::to_owned);
        network.interface = network.interface.or(interface);
        if let Some(ipam) = &plugin.ipam {
            addresses(ipam, &mut network.subnets, &mut network.gateways);
        }
    }
    network
}

fn addresses(ipam: &Ipam, subnets: &mut Vec<String>, gateways: &mut Vec<IpAddr>) {
    for (subnet, gateway) in ranges(ipam) {
        let subnet = subnet.to_string();
        if !subnets.contains(&subnet) {
            subnets.push(subnet);
        }
        gateways.extend(gateway.filter(|gateway| !gateways.contains(gateway)));
    }
}

/// Subnets and their gateways.
fn ranges(ipam: &Ipam) -> Vec<(Prefix, Option<IpAddr>)> {
    match ipam {
        Ipam::HostLocal(it) => {
            it.ranges.iter().flatten().map(|range| (range.subnet.network(), Some(range.gateway))).collect()
        }
        Ipam::Static(it) => it.addresses.iter().map(|entry| (entry.address.network(), entry.gateway)).collect(),
        Ipam::Other(_) => Vec::new(),
    }
}

/// The networks of this host, from one reading of the configurations and records.
#[derive(Debug)]
pub struct NetworkSurvey {
    /// All networks.
    pub networks: Vec<Network>,
    /// The configurations that pods cannot use, without those that another one of the same name replaces.
    pub invalid: Vec<InvalidConfiguration>,
    /// The networks that gantry creates itself on a bridge, and whose pods the host routes for.
    pub routed_bridges: Vec<RoutedBridge>,
}

pub(super) fn survey(host: &Host) -> Result<NetworkSurvey> {
    let (catalog, records) = (select::catalog(host)?, records_up(host)?);
    Ok(NetworkSurvey {
        networks: describe(host, &catalog, &records),
        invalid: invalid_configurations(&catalog),
        routed_bridges: routed_bridges(host, &catalog, &records),
    })
}

/// A configuration that pods cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidConfiguration {
    /// The network's name, if it could be read.
    pub network: Option<String>,
    /// The file and the problem.
    pub problem: String,
}

fn invalid_configurations(catalog: &Catalog) -> Vec<InvalidConfiguration> {
    let used = catalog.entries().iter().filter(|entry| entry.shadowed_by.is_none());
    let invalid = used.filter_map(|entry| {
        let problem = entry.network.as_ref().err()?.to_string();
        Some(InvalidConfiguration { network: entry.name.clone(), problem })
    });
    invalid.collect()
}

/// A network that gantry creates itself on a bridge, and whose pods the host routes for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedBridge {
    /// The network's name.
    pub network: String,
    /// The name of the bridge, which exists while pods use it.
    pub bridge: String,
    /// The network's subnets.
    pub subnets: Vec<Prefix>,
    /// Where its configuration comes from.
    pub source: Source,
    /// Whether pods are attached to it.
    pub has_pods: bool,
}

fn routed_bridges(host: &Host, catalog: &Catalog, records: &[Record]) -> Vec<RoutedBridge> {
    let used: BTreeSet<&str> =
        records.iter().flat_map(|record| &record.networks).map(|network| network.name.as_str()).collect();
    let mut bridges = Vec::new();
    for entry in catalog.entries().iter().filter(|entry| entry.shadowed_by.is_none()) {
        // `invalid_configurations` returns those that cannot be used.
        let Ok(config) = &entry.network else { continue };
        let Some(PluginSettings::Bridge(bridge)) = config.plugins.first().map(|plugin| &plugin.settings) else {
            continue;
        };
        if select::plugins_needed(config, host).is_some() || !native::is_forwarded(config) {
            continue;
        }
        let ipams = config.plugins.iter().filter_map(|plugin| plugin.ipam.as_ref());
        let subnets: BTreeSet<Prefix> = ipams.flat_map(ranges).map(|(subnet, _)| subnet).collect();
        bridges.push(RoutedBridge {
            network: config.name.clone(),
            bridge: bridge.bridge.clone(),
            subnets: subnets.into_iter().collect(),
            source: config.source.clone(),
            has_pods: used.contains(config.name.as_str()),
        });
    }
    bridges
}

/// Adds networks that pods are attached to but that are no longer configured.
fn add_unconfigured(all: &mut Vec<Network>, records: &[Record]) {
    for recorded in records.iter().flat_map(|record| &record.networks) {
        if all.iter().any(|network| network.name.as_ref() == Some(&recorded.name)) {
            continue;
        }
        let mut network = match recorded.config() {
            Ok(config) => describe_config(&config, !recorded.plugins),
            Err(_) => Network { name: Some(recorded.name.clone()), ..Network::default() },
        };
        network.source.clone_from(&recorded.source);
        network.problem = Some("it is no longer configured: only running pods are attached to it".into());
        all.push(network);
    }
}

fn members(name: Option<&str>, records: &[Record]) -> Vec<Member> {
    let mut members = Vec::new();
    for record in records {
        for attached in record.attached.iter().filter(|attached| Some(attached.name.as_str()) == name) {
            members.push(Member { pod: record.pod.clone(), attached: attached.clone() });
        }
    }
    members
}
