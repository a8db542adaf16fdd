//! The networks of this host, for people: each configuration, also those that cannot be used, and the pods in it.

use std::net::IpAddr;

use gantry_contract::network::{Host, Member, Network};

use super::error::{NetworkError, Result};
use super::record::{Record, Records, Standing, boot};
use super::select;
use crate::config::{CatalogEntry, Ipam, NetworkConfig, PluginSettings};

/// All networks, or those configurations that have this name, with their texts.
pub(super) fn networks(host: &Host, name: Option<&str>) -> Result<Vec<Network>> {
    let boot = boot()?;
    let mut records = Records::open(host)?.whole()?;
    records.retain(|record| record.boot == boot && record.state == Standing::Up);
    records.sort_by(|one, other| one.pod.cmp(&other.pod));
    let catalog = select::catalog(host)?;
    let mut all: Vec<Network> = catalog.entries().iter().map(|entry| described(entry, host)).collect();
    forgotten(&mut all, &records);
    for network in all.iter_mut().filter(|network| network.shadowed_by.is_none()) {
        network.pods = members(network.name.as_deref(), &records);
    }
    let Some(name) = name else {
        all.iter_mut().for_each(|network| network.text = None);
        return Ok(all);
    };
    all.retain(|network| network.name.as_deref() == Some(name));
    if all.is_empty() {
        return Err(NetworkError::NotFound { names: vec![gantry_model::id::shown(name)], broken: Vec::new() });
    }
    Ok(all)
}

fn described(entry: &CatalogEntry, host: &Host) -> Network {
    let mut network = match &entry.network {
        Ok(config) => of_config(config, select::plugins_needed(config, host).is_none()),
        Err(error) => Network { problem: Some(error.to_string()), ..Network::default() },
    };
    network.name.clone_from(&entry.name);
    network.source = entry.source.to_string();
    network.shadowed_by = entry.shadowed_by.as_ref().map(ToString::to_string);
    network
}

fn of_config(config: &NetworkConfig, built_in: bool) -> Network {
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
        let interface = match &plugin.settings {
            PluginSettings::Bridge(bridge) => Some(bridge.bridge.clone()),
            PluginSettings::Macvlan(macvlan) => macvlan.master.clone(),
            PluginSettings::Ipvlan(ipvlan) => ipvlan.master.clone(),
            _ => None,
        };
        network.interface = network.interface.or(interface);
        if let Some(ipam) = &plugin.ipam {
            addresses(ipam, &mut network.subnets, &mut network.gateways);
        }
    }
    network
}

fn addresses(ipam: &Ipam, subnets: &mut Vec<String>, gateways: &mut Vec<IpAddr>) {
    let mut add = |subnet: String, gateway: Option<IpAddr>| {
        if !subnets.contains(&subnet) {
            subnets.push(subnet);
        }
        gateways.extend(gateway.filter(|gateway| !gateways.contains(gateway)));
    };
    match ipam {
        Ipam::HostLocal(it) => {
            it.ranges.iter().flatten().for_each(|range| add(range.subnet.to_string(), Some(range.gateway)));
        }
        Ipam::Static(it) => {
            it.addresses.iter().for_each(|entry| add(entry.address.network().to_string(), entry.gateway));
        }
        Ipam::Other(_) => {}
    }
}

/// Networks that pods are in and that are not configured any more.
fn forgotten(all: &mut Vec<Network>, records: &[Record]) {
    for joined in records.iter().flat_map(|record| &record.networks) {
        if all.iter().any(|network| network.name.as_ref() == Some(&joined.name)) {
            continue;
        }
        let mut network = match joined.config() {
            Ok(config) => of_config(&config, !joined.plugins),
            Err(_) => Network { name: Some(joined.name.clone()), ..Network::default() },
        };
        network.source.clone_from(&joined.source);
        network.problem = Some("it is not configured any more: pods that run have it still".into());
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
