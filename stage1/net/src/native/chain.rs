//! The plugins of a network by what they do, and whether we can do it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::address::Prefix;
use crate::config::{
    Bandwidth, Bridge, Firewall, Ipam, Macvlan, NetworkConfig, PluginConfig, PluginSettings, Portmap, Tuning,
};
use crate::nft::PREFIXES_LIMIT;
use crate::plugin::Attachment;

/// What nftables keeps of a network's name ([`crate::nft`]).
const LONGEST_NAME: usize = 100;
/// With it the tuning plugin allows some switches only.
const TUNING_ALLOWLIST: &str = "/etc/cni/tuning/allowlist.conf";

/// The plugins of a network: one that makes an interface, and those that change it.
#[derive(Debug)]
pub(super) struct Chain<'a> {
    pub(super) main: &'a PluginConfig,
    pub(super) portmap: Option<&'a PluginConfig>,
    pub(super) firewall: Option<&'a Firewall>,
    pub(super) bandwidth: Option<(&'a PluginConfig, &'a Bandwidth)>,
    pub(super) tuning: Option<(&'a PluginConfig, &'a Tuning)>,
}

impl<'a> Chain<'a> {
    /// Sorts them out; a sentence that says why if there is one we cannot do.
    pub(super) fn of(network: &'a NetworkConfig) -> Result<Self, String> {
        let Some((main, others)) = network.plugins.split_first() else { return Err("it has no plugins".to_owned()) };
        if network.name.len() > LONGEST_NAME {
            return Err(format!("its name is longer than {LONGEST_NAME} bytes"));
        }
        main_obstacle(main)?;
        ipam_obstacle(main)?;
        let mut chain = Self { main, portmap: None, firewall: None, bandwidth: None, tuning: None };
        for plugin in others {
            chain.take(plugin)?;
        }
        chain.fits()?;
        Ok(chain)
    }

    fn take(&mut self, plugin: &'a PluginConfig) -> Result<(), String> {
        let kind = &plugin.kind;
        let twice = match &plugin.settings {
            PluginSettings::Portmap(portmap) => {
                portmap_obstacle(portmap)?;
                self.portmap.replace(plugin).is_some()
            }
            PluginSettings::Firewall(firewall) => {
                firewall_obstacle(firewall)?;
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
                    return Err(format!("tuning with sysctl, where {TUNING_ALLOWLIST} has rules for it"));
                }
                self.tuning.replace((plugin, tuning)).is_some()
            }
            PluginSettings::Other => return Err(format!("the plugin '{kind}'")),
            PluginSettings::Bridge(_)
            | PluginSettings::Ptp(_)
            | PluginSettings::Macvlan(_)
            | PluginSettings::Ipvlan(_)
            | PluginSettings::Loopback => {
                return Err(format!("'{kind}' behind '{}'", self.main.kind));
            }
        };
        if twice { Err(format!("'{kind}' twice")) } else { Ok(()) }
    }

    /// Whether the others go with the main one.
    fn fits(&self) -> Result<(), String> {
        let kind = &self.main.kind;
        let routed = matches!(self.main.settings, PluginSettings::Bridge(_) | PluginSettings::Ptp(_));
        if !routed && self.portmap.is_some() {
            return Err(format!("'portmap' behind '{kind}', whose pods the host does not reach"));
        }
        if !routed && self.bandwidth.is_some() {
            return Err(format!("'bandwidth' behind '{kind}', which has no end on the host"));
        }
        match self.main.settings {
            PluginSettings::Loopback if self.firewall.is_some() => Err(format!("'firewall' behind '{kind}'")),
            PluginSettings::Ipvlan(_) | PluginSettings::Loopback
                if self.tuning.is_some_and(|(_, tuning)| tuning.mac.is_some()) =>
            {
                Err(format!("'tuning' with mac behind '{kind}', whose hardware address cannot be changed"))
            }
            _ => Ok(()),
        }
    }

    /// All plugins that may be asked for a capability's value.
    pub(super) fn askable(&self) -> impl Iterator<Item = &'a PluginConfig> {
        let tuning = self.tuning.map(|(plugin, _)| plugin);
        [Some(self.main), tuning].into_iter().flatten()
    }
}

/// The value of a capability, if the plugin declares that and there is one (CNI specification 1.1.0, section 3).
pub(super) fn capability<'v>(plugin: &PluginConfig, attachment: &'v Attachment, name: &str) -> Option<&'v Value> {
    let declared = plugin.capabilities.get(name).copied().unwrap_or(false);
    attachment.capability_args.get(name).filter(|value| declared && !value.is_null())
}

/// A value of `args.cni`: the runtime's, or else what the configuration says there.
pub(super) fn cni_arg<'v>(plugin: &'v PluginConfig, attachment: &'v Attachment, name: &str) -> Option<&'v Value> {
    let written = || plugin.raw.get("args")?.get("cni")?.get(name);
    attachment.cni_args.get(name).or_else(written).filter(|value| !value.is_null())
}

fn main_obstacle(main: &PluginConfig) -> Result<(), String> {
    match &main.settings {
        PluginSettings::Bridge(Bridge { vlan, vlan_trunk, .. }) if *vlan != 0 || !vlan_trunk.is_empty() => {
            Err("a bridge with vlan or vlanTrunk".to_owned())
        }
        PluginSettings::Bridge(Bridge { disable_container_interface: true, .. }) if main.ipam.is_some() => {
            Err("a bridge with disableContainerInterface and with ipam".to_owned())
        }
        PluginSettings::Ptp(_) if main.ipam.is_none() => Err("a ptp network without ipam".to_owned()),
        PluginSettings::Macvlan(Macvlan { bc_queue_len: Some(_), .. }) => Err("macvlan with bcqueuelen".to_owned()),
        PluginSettings::Bridge(_)
        | PluginSettings::Ptp(_)
        | PluginSettings::Macvlan(_)
        | PluginSettings::Ipvlan(_)
        | PluginSettings::Loopback => Ok(()),
        PluginSettings::Other => Err(format!("the plugin '{}'", main.kind)),
        _ => Err(format!("'{}' without a plugin that makes an interface before it", main.kind)),
    }
}

fn ipam_obstacle(main: &PluginConfig) -> Result<(), String> {
    let most = PREFIXES_LIMIT;
    match &main.ipam {
        Some(Ipam::Other(kind)) => Err(format!("the ipam plugin '{kind}'")),
        Some(Ipam::HostLocal(local)) => {
            let subnets: BTreeSet<Prefix> = local.ranges.iter().flatten().map(|range| range.subnet.network()).collect();
            if subnets.len().max(local.ranges.len()) > most {
                return Err(format!("more than {most} ranges of addresses"));
            }
            Ok(())
        }
        Some(Ipam::Static(fixed)) if fixed.addresses.len() > most => Err(format!("more than {most} addresses")),
        Some(Ipam::Static(_)) | None => Ok(()),
    }
}

fn portmap_obstacle(portmap: &Portmap) -> Result<(), String> {
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

fn firewall_obstacle(firewall: &Firewall) -> Result<(), String> {
    match firewall.backend.as_deref() {
        None | Some("iptables" | "nftables") => {}
        Some(other) => return Err(format!("firewall with the backend '{}'", gantry_model::id::shown(other))),
    }
    if firewall.admin_chain != "CNI-ADMIN" {
        return Err("firewall with iptablesAdminChainName".to_owned());
    }
    Ok(())
}
