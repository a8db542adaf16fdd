//! The plugins of a network by their function, and whether gantry can replace them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::kind::{InterfaceKind, interface_kind};
use crate::address::Prefix;
use crate::config::{Bandwidth, Firewall, Ipam, NetworkConfig, PluginConfig, PluginSettings, Portmap, Tuning};
use crate::nft::PREFIXES_LIMIT;
use crate::plugin::Attachment;

/// The part of a network's name that nftables can store ([`crate::nft`]), in bytes.
const MAX_NAME: usize = 100;
/// If this file exists, the tuning plugin sets only the sysctls that it lists.
const TUNING_ALLOWLIST: &str = "/etc/cni/tuning/allowlist.conf";

/// The plugins of a network: the first creates an interface, the others change it.
#[derive(Debug)]
pub(super) struct PluginChain<'a> {
    pub(super) main: &'a PluginConfig,
    /// The kind of interface that `main` creates.
    pub(super) kind: &'a dyn InterfaceKind,
    pub(super) portmap: Option<&'a PluginConfig>,
    pub(super) firewall: Option<&'a Firewall>,
    pub(super) bandwidth: Option<(&'a PluginConfig, &'a Bandwidth)>,
    pub(super) tuning: Option<(&'a PluginConfig, &'a Tuning)>,
}

impl<'a> PluginChain<'a> {
    /// Sorts the plugins by their function. The error is why gantry cannot replace one of them.
    pub(super) fn new(network: &'a NetworkConfig) -> Result<Self, String> {
        let Some((main, others)) = network.plugins.split_first() else { return Err("it has no plugins".to_owned()) };
        if network.name.len() > MAX_NAME {
            return Err(format!("its name is longer than {MAX_NAME} bytes"));
        }
        let kind = match (interface_kind(&main.settings), &main.settings) {
            (Some(kind), _) => kind,
            (None, PluginSettings::Other) => return Err(format!("the plugin '{}'", main.kind)),
            (None, _) => return Err(format!("'{}' without a plugin that creates an interface before it", main.kind)),
        };
        if let Some(obstacle) = kind.obstacle(main.ipam.as_ref()) {
            return Err(obstacle);
        }
        check_ipam(main)?;
        let mut chain = Self { main, kind, portmap: None, firewall: None, bandwidth: None, tuning: None };
        for plugin in others {
            chain.add_plugin(plugin)?;
        }
        chain.check_combination()?;
        Ok(chain)
    }

    fn add_plugin(&mut self, plugin: &'a PluginConfig) -> Result<(), String> {
        let kind = &plugin.kind;
        if interface_kind(&plugin.settings).is_some() {
            return Err(format!("'{kind}' after '{}'", self.main.kind));
        }
        let twice = match &plugin.settings {
            PluginSettings::Portmap(portmap) => {
                check_portmap(portmap)?;
                self.portmap.replace(plugin).is_some()
            }
            PluginSettings::Firewall(firewall) => {
                check_firewall(firewall)?;
                self.firewall.replace(firewall).is_some()
            }
            PluginSettings::Bandwidth(bandwidth) => {
                if !bandwidth.shaped_subnets.is_empty() || !bandwidth.unshaped_subnets.is_empty() {
                    return Err("bandwidth with shapedSubnets or unshapedSubnets".to_owned());
                }
                self.bandwidth.replace((plugin, bandwidth)).is_some()
            }
            PluginSettings::Tuning(tuning) => {
                if !tuning.sysctl.is_empty() && std::path::Path::new(TUNING_ALLOWLIST).exists() {
                    return Err(format!("tuning with sysctl, which {TUNING_ALLOWLIST} restricts"));
                }
                self.tuning.replace((plugin, tuning)).is_some()
            }
            _ => return Err(format!("the plugin '{kind}'")),
        };
        if twice { Err(format!("'{kind}' twice")) } else { Ok(()) }
    }

    /// Checks that the kind of interface supports the other plugins.
    fn check_combination(&self) -> Result<(), String> {
        let (kind, properties) = (&self.main.kind, self.kind.describe());
        if !properties.has_host_end && self.portmap.is_some() {
            return Err(format!("'portmap' after '{kind}', whose pods the host does not reach"));
        }
        if !properties.has_host_end && self.bandwidth.is_some() {
            return Err(format!("'bandwidth' after '{kind}', which has no interface on the host"));
        }
        if !properties.has_firewall && self.firewall.is_some() {
            return Err(format!("'firewall' after '{kind}'"));
        }
        if !properties.has_own_mac && self.tuning.is_some_and(|(_, tuning)| tuning.mac.is_some()) {
            return Err(format!("'tuning' with mac after '{kind}', whose hardware address cannot be changed"));
        }
        Ok(())
    }

    /// The plugins whose capabilities and arguments gantry evaluates.
    pub(super) fn argument_plugins(&self) -> impl Iterator<Item = &'a PluginConfig> {
        let tuning = self.tuning.map(|(plugin, _)| plugin);
        [Some(self.main), tuning].into_iter().flatten()
    }
}

/// The value of a capability, if the plugin declares it and the runtime has one (CNI specification 1.1.0, section 3).
pub(super) fn capability<'v>(plugin: &PluginConfig, attachment: &'v Attachment, name: &str) -> Option<&'v Value> {
    let declared = plugin.capabilities.get(name).copied().unwrap_or(false);
    attachment.capability_args.get(name).filter(|value| declared && !value.is_null())
}

/// A value of `args.cni`: the runtime's, or else the configuration's.
pub(super) fn cni_arg<'v>(plugin: &'v PluginConfig, attachment: &'v Attachment, name: &str) -> Option<&'v Value> {
    let configured = || plugin.raw.get("args")?.get("cni")?.get(name);
    attachment.cni_args.get(name).or_else(configured).filter(|value| !value.is_null())
}

fn check_ipam(main: &PluginConfig) -> Result<(), String> {
    match &main.ipam {
        Some(Ipam::Other(kind)) => Err(format!("the ipam plugin '{kind}'")),
        Some(Ipam::HostLocal(local)) => {
            let subnets: BTreeSet<Prefix> = local.ranges.iter().flatten().map(|range| range.subnet.network()).collect();
            if subnets.len().max(local.ranges.len()) > PREFIXES_LIMIT {
                return Err(format!("more than {PREFIXES_LIMIT} ranges of addresses"));
            }
            Ok(())
        }
        Some(Ipam::Static(fixed)) if fixed.addresses.len() > PREFIXES_LIMIT => {
            Err(format!("more than {PREFIXES_LIMIT} addresses"))
        }
        Some(Ipam::Static(_)) | None => Ok(()),
    }
}

fn check_portmap(portmap: &Portmap) -> Result<(), String> {
    let key = match portmap {
        Portmap { snat: false, .. } => "snat",
        Portmap { masq_all: true, .. } => "masqAll",
        Portmap { external_set_mark_chain: Some(_), .. } => "externalSetMarkChain",
        Portmap { conditions_v4, .. } if !conditions_v4.is_empty() => "conditionsV4",
        Portmap { conditions_v6, .. } if !conditions_v6.is_empty() => "conditionsV6",
        _ => return Ok(()),
    };
    Err(format!("portmap with {key}"))
}

fn check_firewall(firewall: &Firewall) -> Result<(), String> {
    match firewall.backend.as_deref() {
        None | Some("iptables" | "nftables") => {}
        Some(other) => return Err(format!("firewall with the backend '{}'", gantry_model::id::shown(other))),
    }
    if firewall.admin_chain != "CNI-ADMIN" {
        return Err("firewall with iptablesAdminChainName".to_owned());
    }
    Ok(())
}
