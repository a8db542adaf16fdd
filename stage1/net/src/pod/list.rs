//! The networks of this host, for people: each configuration, including unusable ones, and its pods.

use std::net::IpAddr;

use gantry_contract::network::{Host, Member, Network};

use super::error::{NetworkError, Result};
use super::record::{Record, RecordState, Records, boot};
use super::select;
use crate::config::{CatalogEntry, Ipam, NetworkConfig};
use crate::native;

/// All networks, or the configurations of this name with their texts.
pub(super) fn networks(host: &Host, name: Option<&str>) -> Result<Vec<Network>> {
    let boot = boot()?;
    let mut records = Records::open(host)?.valid()?;
    records.retain(|record| record.boot == boot && record.state == RecordState::Up);
    records.sort_by(|one, other| one.pod.cmp(&other.pod));
    let catalog = select::catalog(host)?;
    let mut all: Vec<Network> = catalog.entries().iter().map(|entry| describe_entry(entry, host)).collect();
    add_unconfigured(&mut all, &records);
    for network in all.iter_mut().filter(|network| network.shadowed_by.is_none()) {
        network.pods = members(network.name.as_deref(), &records);
    }
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
