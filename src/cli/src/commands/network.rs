//! `gantry network`: the configured networks, and the firewall rules of running pods.

use std::io::{self, Write};

use gantry_engine::{Member, Network as Configured};
use gantry_model::query::PodQuery;
use gantry_model::{PhaseName, PodNetwork};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::render::listing::{self, ListFilter, ListOutput, ListedItem, Listing};
use crate::render::table::{Table, terminal_width};
use crate::render::{Indented, OutputFormat, json};

/// The subcommands of `network`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Network {
    /// List networks
    #[command(visible_alias = "ls")]
    List(List),
    /// Show networks and their pods as JSON
    Inspect(Inspect),
    /// Restore the rules, bridges and forwarding of running pods
    Reload,
}

impl RunCommand for Network {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        match self {
            Self::List(args) => list(context, args),
            Self::Inspect(args) => inspect(context, args),
            Self::Reload => reload(context),
        }
    }
}

/// Arguments of `network list`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Values of one key are alternatives; all keys must match. '*' in a name stands for any characters.\n\n\
    Fields of templates: .Name, .Source, .Type, .Interface, .Subnets, .Gateways, .Pods (their number), .Problem; \
    {{json .}} is the whole network. --quiet leaves out networks that cannot be used."
)]
pub(crate) struct List {
    #[command(flatten)]
    output: Listing,
    /// Only networks that match: name=, type= or driver= (of a plugin), pod= or dangling=true|false (without pods)
    #[arg(short = 'f', long, value_parser = parse_filter, value_name = "KEY=VALUE")]
    filter: Vec<ListFilter>,
    /// Sort key; without it, in the order in which networks are considered
    #[arg(long, value_enum, value_name = "KEY")]
    sort: Option<NetworkSort>,
}

/// Sort keys of networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum NetworkSort {
    /// By name
    Name,
    /// By the number of pods, most first
    Pods,
}

/// The fields of a template, in the order of [`template_item`].
const FIELDS: [&str; 8] = ["Name", "Source", "Type", "Interface", "Subnets", "Gateways", "Pods", "Problem"];

fn parse_filter(text: &str) -> Result<ListFilter, String> {
    ListFilter::parse(text, &["name", "type", "driver", "pod", "dangling"])
}

fn is_met(network: &Configured, key: &str, value: &str) -> bool {
    match key {
        "name" => network.name.as_ref().is_some_and(|name| listing::matches_pattern(value, name)),
        "pod" => network.pods.iter().any(|member| member.pod.starts_with(value)),
        "dangling" => network.pods.is_empty() == (value == "true"),
        _ => network.plugins.iter().any(|plugin| plugin == value),
    }
}

fn template_item<'a>(network: &'a Configured, pods: &'a [(&'a str, PodNetwork)]) -> ListedItem<NetworkJson<'a>> {
    let cells = vec![
        network.name.clone().unwrap_or_default(),
        network.source.clone(),
        network.plugins.join(","),
        network.interface.clone().unwrap_or_default(),
        network.subnets.join(","),
        network.gateways.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        network.pods.len().to_string(),
        network.problem.clone().unwrap_or_default(),
    ];
    ListedItem { cells, json: NetworkJson::from_network(network, pods) }
}

/// Arguments of `network inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// Names of networks
    #[arg(value_name = "NETWORK", required = true)]
    networks: Vec<String>,
    #[command(flatten)]
    output: Indented,
}

/// A network as JSON. The field names are stable.
#[derive(Serialize)]
struct NetworkJson<'a> {
    name: Option<&'a str>,
    source: &'a str,
    types: &'a [String],
    built_in: bool,
    cni_versions: &'a [String],
    interface: Option<&'a str>,
    subnets: &'a [String],
    gateways: Vec<json::DisplayJson<std::net::IpAddr>>,
    shadowed_by: Option<&'a str>,
    problem: Option<&'a str>,
    notes: &'a [String],
    pods: Vec<NetworkPodJson<'a>>,
    /// With `inspect` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration: Option<serde_json::Value>,
}

/// A pod of a network: its id, and the fields of `networks` in `gantry inspect`.
#[derive(Serialize)]
struct NetworkPodJson<'a> {
    pod: &'a str,
    #[serde(flatten)]
    network: &'a PodNetwork,
}

/// The attachments of pods to a network.
fn attachments(network: &Configured) -> Vec<(&str, PodNetwork)> {
    let of = |member: &'_ Member| member.attached.clone();
    network.pods.iter().map(|member| (member.pod.as_str(), of(member))).collect()
}

impl<'a> NetworkJson<'a> {
    fn from_network(network: &'a Configured, pods: &'a [(&'a str, PodNetwork)]) -> Self {
        Self {
            name: network.name.as_deref(),
            source: &network.source,
            types: &network.plugins,
            built_in: network.built_in,
            cni_versions: &network.cni_versions,
            interface: network.interface.as_deref(),
            subnets: &network.subnets,
            gateways: network.gateways.iter().copied().map(json::DisplayJson).collect(),
            shadowed_by: network.shadowed_by.as_deref(),
            problem: network.problem.as_deref(),
            notes: &network.notes,
            pods: pods.iter().map(|(pod, network)| NetworkPodJson { pod, network }).collect(),
            configuration: network.text.as_deref().map(configuration),
        }
    }
}

/// The configuration as JSON; as a string if it is not valid JSON.
fn configuration(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// Lists networks.
fn list(context: &Context, args: &List) -> Result<ExitStatus, Failure> {
    let mut networks = context.open_to_read()?.networks()?;
    networks.retain(|network| listing::matches_all(&args.filter, |key, value| is_met(network, key, value)));
    match args.sort {
        None => {}
        Some(NetworkSort::Name) => networks.sort_by(|a, b| a.name.cmp(&b.name)),
        Some(NetworkSort::Pods) => networks.sort_by_key(|network| std::cmp::Reverse(network.pods.len())),
    }
    let pods: Vec<_> = networks.iter().map(attachments).collect();
    let with_pods = || networks.iter().zip(&pods);
    match args.output.parse_output(&FIELDS)? {
        ListOutput::Quiet => {
            json::to_stdout(|out| usable(&networks).try_for_each(|name| writeln!(out, "{name}")))?;
        }
        ListOutput::Format(OutputFormat::Table) => {
            let width = terminal_width().filter(|_| !args.output.full);
            json::to_stdout(|out| table(out, &networks, !args.output.no_legend, width))?;
        }
        ListOutput::Format(format) => json::to_stdout(|out| {
            let documents = with_pods().map(|(network, pods)| NetworkJson::from_network(network, pods));
            json::write_items(out, format, documents)
        })?,
        ListOutput::Template(template) => {
            listing::write_template(&template, with_pods().map(|(network, pods)| template_item(network, pods)))?;
        }
    }
    Ok(ExitStatus::OK)
}

/// The names that `--net` accepts.
fn usable(networks: &[Configured]) -> impl Iterator<Item = &str> {
    let usable = |network: &&Configured| network.problem.is_none() && network.shadowed_by.is_none();
    networks.iter().filter(usable).filter_map(|network| network.name.as_deref())
}

fn table(out: &mut dyn Write, networks: &[Configured], legend: bool, width: Option<usize>) -> io::Result<()> {
    let mut table = Table::new(&["NAME", "SOURCE", "TYPE", "SUBNETS", "PODS", "PROBLEM"]);
    for network in networks {
        let shadowed = network.shadowed_by.as_ref().map(|by| format!("not used: {by} has the same name"));
        table.row([
            network.name.clone().unwrap_or_else(|| "-".to_owned()),
            network.source.clone(),
            network.plugins.join(","),
            network.subnets.join(","),
            network.pods.len().to_string(),
            network.problem.clone().or(shadowed).unwrap_or_default(),
        ]);
    }
    // The problem is never truncated: it is what the operator acts on.
    table.cutting(&[1, 2, 3]).write_within(out, legend, width)
}

/// Prints a network as a JSON document; several networks as an array.
fn inspect(context: &Context, args: &Inspect) -> Result<ExitStatus, Failure> {
    let engine = context.open_to_read()?;
    let mut found = Vec::new();
    let worst = context.for_each(&args.networks, CommandKind::Query, &mut |name| {
        found.push(engine.network(name)?);
        Ok(ExitStatus::OK)
    });
    let pods: Vec<_> = found.iter().map(attachments).collect();
    let documents = found.iter().zip(&pods).map(|(network, pods)| NetworkJson::from_network(network, pods));
    json::to_stdout(|out| json::write_one_or_several(out, args.output.format, args.networks.len() > 1, documents))?;
    Ok(worst)
}

/// Restores the networks of all running pods and prints their number.
fn reload(context: &Context) -> Result<ExitStatus, Failure> {
    let engine = context.open("network reload")?;
    let unrepaired = engine.reload_networks()?;
    if !unrepaired.is_empty() {
        return Ok(context.report(unrepaired.into_iter().map(Failure::usage), CommandKind::Action));
    }
    let running = engine.list(&PodQuery { phases: vec![PhaseName::Running], ..PodQuery::default() })?;
    let pods = running.iter().filter(|pod| !pod.row.networks.is_empty()).count();
    json::to_stdout(|out| writeln!(out, "{}", reloaded(pods)))?;
    Ok(ExitStatus::OK)
}

fn reloaded(pods: usize) -> String {
    match pods {
        0 => "reloaded: no running pod has a network of its own".to_owned(),
        1 => "reloaded the network of 1 running pod".to_owned(),
        _ => format!("reloaded the networks of {pods} running pods"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks() -> [Configured; 3] {
        let default = Configured {
            name: Some("default".into()),
            source: "built in".into(),
            plugins: ["bridge", "portmap"].map(str::to_owned).into(),
            built_in: true,
            cni_versions: vec!["1.0.0".into()],
            interface: Some("gantry0".into()),
            subnets: vec!["10.121.0.0/16".into()],
            gateways: vec!["10.121.0.1".parse().unwrap()],
            pods: vec![Member { pod: "6733c088".into(), ..Member::default() }],
            ..Configured::default()
        };
        let shadowed = Configured {
            name: Some("default".into()),
            source: "/etc/cni/net.d/1.conflist".into(),
            plugins: vec!["ptp".into()],
            shadowed_by: Some("built in".into()),
            ..Configured::default()
        };
        let source = "/etc/cni/net.d/2.conflist".into();
        [default, shadowed, Configured { source, problem: Some("it is no\u{1b} JSON".into()), ..Configured::default() }]
    }

    #[test]
    fn networks_are_rendered_as_a_table() {
        let mut out = Vec::new();
        table(&mut out, &networks(), true, None).unwrap();
        let want = "NAME     SOURCE                     TYPE            SUBNETS        PODS  PROBLEM\n\
                    default  built in                   bridge,portmap  10.121.0.0/16  1\n\
                    default  /etc/cni/net.d/1.conflist  ptp                            0     not used: built in has the same name\n\
                    -        /etc/cni/net.d/2.conflist                                 0     it is no\\u{1b} JSON\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        assert_eq!(usable(&networks()).collect::<Vec<_>>(), ["default"]);
    }

    #[test]
    fn json_field_names_are_stable() {
        let [mut network, ..] = networks();
        let pods = attachments(&network);
        let json = serde_json::to_string(&NetworkJson::from_network(&network, &pods)).unwrap();
        let want = r#"{"name":"default","source":"built in","types":["bridge","portmap"],"built_in":true,"cni_versions":["1.0.0"],"interface":"gantry0","subnets":["10.121.0.0/16"],"gateways":["10.121.0.1"],"shadowed_by":null,"problem":null,"notes":[],"pods":[{"pod":"6733c088","name":"","interface":"","mac":null,"addresses":[],"routes":[],"dns":{"servers":[],"search":[],"options":[],"domain":null},"ports":[]}]}"#;
        assert_eq!(json, want);
        for (text, want) in [(r#"{"a":1}"#, serde_json::json!({"a": 1})), ("{", "{".into())] {
            network.text = Some(text.into());
            let json = serde_json::to_value(NetworkJson::from_network(&network, &[])).unwrap();
            assert_eq!(json["configuration"], want);
        }
    }

    #[test]
    fn reload_reports_the_number_of_pods() {
        assert_eq!(reloaded(0), "reloaded: no running pod has a network of its own");
        assert_eq!(reloaded(1), "reloaded the network of 1 running pod");
        assert_eq!(reloaded(2), "reloaded the networks of 2 running pods");
    }
}
