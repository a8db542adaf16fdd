//! Findings about the host's networks that gantry neither makes nor changes: malformed configurations, firewalls of
//! other programs that drop the packets of pods, and routes that overlap with gantry's networks.

use std::collections::{BTreeMap, BTreeSet};

use gantry_contract::network::Network;
use gantry_model::error::chain;
use gantry_model::net::{NetMode, NetworkRequest};
use gantry_model::{ErrorKind, Kind as _};
use gantry_net::config::{Source, builtin};
use gantry_net::pod::{InvalidConfiguration, NetworkSurvey, RoutedBridge, survey_networks};
use gantry_netlink::address::Prefix;
use gantry_netlink::nft::{self, DroppingChain};
use gantry_netlink::rtnetlink::Socket;
use gantry_netlink::rtnetlink::route::{RouteFilter, RouteKind, TABLE_MAIN};
use gantry_store::Finding;

use super::warn;
use crate::Engine;
use crate::host::interfaces::{NetlinkError, names_by_index};

const AGAIN: &str = "run 'gantry doctor' again when the cause is gone";
/// Shorter prefixes stand for the default route, such as 0.0.0.0/1 and 128.0.0.0/1 of a VPN.
const MIN_PREFIX_LENGTH: u8 = 2;

impl Engine {
    /// Checks the configured networks, and the firewalls and routes of other programs.
    pub(super) fn check_configured_networks(&self, findings: &mut Vec<Finding>) {
        let survey = match survey_networks(&self.network_host()) {
            Ok(survey) => survey,
            Err(error) => return warn(findings, chain(&error), AGAIN),
        };
        let NetworkSurvey { networks, invalid, routed_bridges } = survey;
        let network = &self.options().network;
        report_unusable_defaults(&networks, &network.default, findings);
        report_invalid(&invalid, &network.default, findings);
        match nft::socket().and_then(nft::find_dropping_chains) {
            Ok(chains) => report_dropping_chains(&chains, &routed_bridges, findings),
            // The kernel has no nftables.
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            Err(error) => warn(findings, chain(&error), AGAIN),
        }
        let config_dir = network.config_dirs.first();
        match list_destinations() {
            Ok(routes) => report_overlaps(&routes, &routed_bridges, config_dir.map(String::as_str), findings),
            Err(error) => warn(findings, chain(&error), AGAIN),
        }
    }
}

/// Reports the networks of pods without `--net` that do not exist or cannot be used.
fn report_unusable_defaults(networks: &[Network], default: &NetMode, findings: &mut Vec<Finding>) {
    let (NetMode::Networks(wanted) | NetMode::All(wanted)) = default else { return };
    for NetworkRequest { name, .. } in wanted {
        let mut used = networks.iter().filter(|network| network.shadowed_by.is_none());
        let problem = match used.find(|network| network.name.as_ref() == Some(name)) {
            Some(network) => network.problem.as_deref(),
            None => Some("it does not exist"),
        };
        if let Some(problem) = problem {
            let what = format!("network '{name}' of network.default cannot be used: {problem}");
            let hint = "pods without --net cannot be started: correct network.default in the configuration, or the \
                        network's file; 'gantry network list' lists the networks";
            warn(findings, what, hint);
        }
    }
}

/// Reports malformed configurations, except those of [`report_unusable_defaults`].
fn report_invalid(invalid: &[InvalidConfiguration], default: &NetMode, findings: &mut Vec<Finding>) {
    let of_default = |name: &str| match default {
        NetMode::Networks(wanted) | NetMode::All(wanted) => wanted.iter().any(|it| it.name == name),
        NetMode::None | NetMode::Host => false,
    };
    for InvalidConfiguration { network, problem } in invalid {
        let what = match network.as_deref() {
            Some(name) if of_default(name) => continue,
            Some(name) => format!("pods cannot use the network '{name}': {problem}"),
            None => format!("a network configuration is malformed: {problem}"),
        };
        warn(findings, what, "correct the file, or remove it");
    }
}

/// Reports chains that drop the packets of networks that pods use, and of the default network, which the next pod may.
fn report_dropping_chains(chains: &[DroppingChain], bridges: &[RoutedBridge], findings: &mut Vec<Finding>) {
    let used = || bridges.iter().filter(|it| it.has_pods || it.network == builtin::DEFAULT);
    for dropping in chains {
        // By bridge, which networks may share: whether all of them confine their pods.
        let mut confined: BTreeMap<&str, bool> = BTreeMap::new();
        for it in used().filter(|it| passes(it, dropping.family) && !dropping.names_interface(&it.bridge)) {
            *confined.entry(&it.bridge).or_insert(true) &= it.network == builtin::DEFAULT_RESTRICTED;
        }
        for (bridge, is_confined) in confined {
            warn(findings, dropping_text(dropping, bridge, is_confined), &accept_commands(dropping, bridge));
        }
    }
}

/// Whether packets of the network pass the chains of a family.
fn passes(network: &RoutedBridge, family: &str) -> bool {
    let has = |ipv4| network.subnets.iter().any(|subnet| subnet.is_ipv4() == ipv4);
    match family {
        "ip" => has(true),
        "ip6" => has(false),
        _ => true,
    }
}

/// Pods of a confined network reach no other hosts in any case.
fn dropping_text(dropping: &DroppingChain, bridge: &str, is_confined: bool) -> String {
    let DroppingChain { family, table, chain, .. } = dropping;
    let effect = if is_confined {
        "other hosts may not reach the published ports of its pods"
    } else {
        "its pods may not reach other hosts, nor other hosts their published ports"
    };
    format!(
        "the chain {chain} of the nftables table {family} {table} drops forwarded packets that its rules do not \
         accept, and none of them names the bridge {bridge}: {effect}"
    )
}

/// The commands of the program to which the table belongs.
fn accept_commands(dropping: &DroppingChain, bridge: &str) -> String {
    let DroppingChain { family, table, chain, chains, .. } = dropping;
    let has = |name: &str| chains.contains(name);
    if table == "firewalld" {
        return format!(
            "run 'firewall-cmd --permanent --zone=trusted --add-interface={bridge}' and 'firewall-cmd --reload'"
        );
    }
    if has("ufw-user-forward") || has("ufw6-user-forward") {
        return format!("run 'ufw route allow in on {bridge}' and 'ufw route allow out on {bridge}'");
    }
    let iptables = match *family {
        "ip" => "iptables",
        "ip6" => "ip6tables",
        _ => "",
    };
    if table == "filter" && chain == "FORWARD" && !iptables.is_empty() {
        let chain = if has("DOCKER-USER") { "DOCKER-USER" } else { "FORWARD" };
        return format!(
            "run '{iptables} -I {chain} -i {bridge} -j ACCEPT' and '{iptables} -I {chain} -o {bridge} -j ACCEPT'"
        );
    }
    let insert = format!("nft insert rule {family} {table} {chain}");
    format!("run '{insert} iifname {bridge} accept' and '{insert} oifname {bridge} accept'")
}

/// The destinations of the main routing table, with the names of their interfaces.
fn list_destinations() -> Result<BTreeSet<(Prefix, String)>, NetlinkError> {
    let mut socket = Socket::open()?;
    let names = names_by_index(&mut socket)?;
    let routes = socket.routes(&RouteFilter { table: Some(TABLE_MAIN), ..RouteFilter::default() })?;
    let unicast = routes.into_iter().filter(|route| route.kind == RouteKind::Unicast);
    Ok(unicast.filter_map(|route| Some((route.to, names.get(&route.device?)?.clone()))).collect())
}

fn report_overlaps(
    routes: &BTreeSet<(Prefix, String)>,
    bridges: &[RoutedBridge],
    config_dir: Option<&str>,
    findings: &mut Vec<Finding>,
) {
    for RoutedBridge { network, bridge, subnets, source, .. } in bridges {
        let others = routes.iter().filter(|(to, interface)| to.length() >= MIN_PREFIX_LENGTH && interface != bridge);
        for (to, interface) in others {
            for subnet in subnets.iter().filter(|subnet| subnet.overlaps(to)) {
                let what = format!(
                    "the subnet {subnet} of network '{network}' overlaps with the route to {to} by {interface}: \
                     only one of the two receives packets to the addresses that they share"
                );
                warn(findings, what, &subnet_hint(network, source, config_dir));
            }
        }
    }
}

/// How to change the subnet of a network.
fn subnet_hint(network: &str, source: &Source, config_dir: Option<&str>) -> String {
    let dir = match (source, config_dir) {
        (Source::File(path), _) => return format!("choose another subnet in {}", path.display()),
        (Source::BuiltIn, Some(dir)) => dir,
        (Source::BuiltIn, None) => "a directory, name it in config-dirs under [network] of the configuration",
    };
    format!("put the configuration that 'gantry network inspect {network}' shows into {dir}, and choose another subnet")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn routed(subnets: &[&str]) -> RoutedBridge {
        RoutedBridge {
            network: "default".to_owned(),
            bridge: "gantry0".to_owned(),
            subnets: subnets.iter().map(|text| prefix(text)).collect(),
            source: Source::BuiltIn,
            has_pods: false,
        }
    }

    #[test]
    fn only_chains_of_its_families_concern_a_network() {
        let (v4, v6) = (routed(&["10.121.0.0/16"]), routed(&["fd67::/64"]));
        assert!(passes(&v4, "ip") && passes(&v4, "inet") && !passes(&v4, "ip6"));
        assert!(passes(&v6, "ip6") && passes(&v6, "inet") && !passes(&v6, "ip"));
    }

    #[test]
    fn hints_name_the_file_of_a_network() {
        let hint = |source, dir| subnet_hint("lan", &source, dir);
        let file = || Source::File("/etc/gantry/net.d/lan.conf".into());
        assert_eq!(hint(file(), Some("/etc/gantry/net.d")), "choose another subnet in /etc/gantry/net.d/lan.conf");
        assert!(hint(Source::BuiltIn, Some("/etc/gantry/net.d")).contains("shows into /etc/gantry/net.d, and"));
        assert!(hint(Source::BuiltIn, None).contains("config-dirs"));
    }

    #[test]
    fn only_foreign_routes_overlap() {
        let bridge = routed(&["10.121.0.0/16", "fd67::/64"]);
        let overlaps = |to: &str, interface: &str| {
            let mut findings = Vec::new();
            let routes = BTreeSet::from([(prefix(to), interface.to_owned())]);
            report_overlaps(&routes, std::slice::from_ref(&bridge), None, &mut findings);
            !findings.is_empty()
        };
        assert!(overlaps("10.0.0.0/8", "eth0") && overlaps("10.121.7.0/24", "eth0") && overlaps("fd67::7/128", "eth0"));
        assert!(!overlaps("10.121.0.0/16", "gantry0"), "its own");
        assert!(!overlaps("10.122.0.0/16", "eth0"));
        assert!(!overlaps("0.0.0.0/0", "eth0") && !overlaps("0.0.0.0/1", "tun0"), "default routes");
    }
}
