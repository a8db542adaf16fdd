//! `gantry network`: the networks that are configured on this host, and the firewall's part of them.

use std::io::{self, Write};

use gantry_engine::{Member, Network as Configured};
use gantry_model::PodNetwork;
use gantry_model::query::PodQuery;
use serde::Serialize;

use crate::context::{self, Context};
use crate::exit::{self, Asking};
use crate::failure::Failure;
use crate::render::table::{Table, terminal_width};
use crate::render::{Form, Indented, json, network};

/// What can be done with networks.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Network {
    /// List networks
    #[command(visible_alias = "ls")]
    List(List),
    /// Show all that is known of networks and the pods in them, as JSON
    Inspect(Inspect),
    /// Put back the firewall rules of running pods, whatever has become of them
    Reload,
}

/// Does it.
pub(crate) fn network(context: &Context, network: &Network) -> Result<u8, Failure> {
    match network {
        Network::List(args) => list(context, args),
        Network::Inspect(args) => inspect(context, args),
        Network::Reload => reload(context),
    }
}

/// Arguments of `network list`.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Form of the answer
    #[arg(short = 'o', long = "output", alias = "format", value_enum, default_value_t, value_name = "FORM")]
    form: Form,
    /// No header line
    #[arg(long, alias = "no-headers", alias = "noheading")]
    no_legend: bool,
    /// Names only, of those that pods can have
    #[arg(short = 'q', long)]
    quiet: bool,
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

/// A network as JSON. The names of the fields are a promise.
#[derive(Serialize)]
struct Document<'a> {
    name: Option<&'a str>,
    source: &'a str,
    types: &'a [String],
    built_in: bool,
    cni_versions: &'a [String],
    interface: Option<&'a str>,
    subnets: &'a [String],
    gateways: Vec<json::Text<std::net::IpAddr>>,
    shadowed_by: Option<&'a str>,
    problem: Option<&'a str>,
    notes: &'a [String],
    pods: Vec<Pod<'a>>,
    /// With `inspect` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration: Option<serde_json::Value>,
}

/// A pod of a network: its id, and the fields of `networks` of `gantry inspect`.
#[derive(Serialize)]
struct Pod<'a> {
    pod: &'a str,
    #[serde(flatten)]
    got: network::Document<'a>,
}

/// What the pods of a network got, in the words of the model.
fn got(network: &Configured) -> Vec<(&str, PodNetwork)> {
    let of = |member: &'_ Member| PodNetwork::from(member.attached.clone());
    network.pods.iter().map(|member| (member.pod.as_str(), of(member))).collect()
}

impl<'a> Document<'a> {
    fn of(network: &'a Configured, pods: &'a [(&'a str, PodNetwork)]) -> Self {
        Self {
            name: network.name.as_deref(),
            source: &network.source,
            types: &network.plugins,
            built_in: network.built_in,
            cni_versions: &network.cni_versions,
            interface: network.interface.as_deref(),
            subnets: &network.subnets,
            gateways: network.gateways.iter().copied().map(json::Text).collect(),
            shadowed_by: network.shadowed_by.as_deref(),
            problem: network.problem.as_deref(),
            notes: &network.notes,
            pods: pods.iter().map(|(pod, got)| Pod { pod, got: network::Document::of(got) }).collect(),
            configuration: network.text.as_deref().map(configuration),
        }
    }
}

/// A configuration as JSON, or as the text that it is when it is none.
fn configuration(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// Lists networks.
fn list(context: &Context, args: &List) -> Result<u8, Failure> {
    let networks = context.look()?.networks()?;
    json::to_stdout(|out| match args.form {
        _ if args.quiet => usable(&networks).try_for_each(|name| writeln!(out, "{name}")),
        Form::Table => table(out, &networks, !args.no_legend, terminal_width()),
        form => {
            let pods: Vec<_> = networks.iter().map(got).collect();
            json::items(out, form, networks.iter().zip(&pods).map(|(network, pods)| Document::of(network, pods)))
        }
    })?;
    Ok(exit::OK)
}

/// The names that `--net` takes.
fn usable(networks: &[Configured]) -> impl Iterator<Item = &str> {
    let usable = |network: &&Configured| network.problem.is_none() && network.shadowed_by.is_none();
    networks.iter().filter(usable).filter_map(|network| network.name.as_deref())
}

fn table(out: &mut dyn Write, networks: &[Configured], legend: bool, width: Option<usize>) -> io::Result<()> {
    let mut table = Table::new(&["NAME", "SOURCE", "TYPE", "SUBNETS", "PODS", "PROBLEM"]);
    for network in networks {
        let shadowed = network.shadowed_by.as_ref().map(|by| format!("not used: {by} has its name"));
        table.row([
            network.name.clone().unwrap_or_else(|| "-".to_owned()),
            network.source.clone(),
            network.plugins.join(","),
            network.subnets.join(","),
            network.pods.len().to_string(),
            network.problem.clone().or(shadowed).unwrap_or_default(),
        ]);
    }
    // A problem is shown whole: it is what to act on.
    table.cutting(&[1, 2, 3]).write_within(out, legend, width)
}

/// Prints all that is known of networks, one document each.
fn inspect(context: &Context, args: &Inspect) -> Result<u8, Failure> {
    let engine = context.look()?;
    Ok(context::each(&args.networks, context.globals.debug, Asking::Existence, &mut |name| {
        let network = engine.network(name)?;
        let pods = got(&network);
        json::to_stdout(|out| json::document(out, args.output.form, &Document::of(&network, &pods)))?;
        Ok(exit::OK)
    }))
}

/// Makes the firewall table hold what the running pods need, and says for how many that is.
fn reload(context: &Context) -> Result<u8, Failure> {
    let engine = context.open("network reload")?;
    engine.reload_networks()?;
    let running = engine.list(&PodQuery { phases: vec!["running"], ..PodQuery::default() })?;
    let pods = running.iter().filter(|pod| !pod.row.networks.is_empty()).count();
    json::to_stdout(|out| writeln!(out, "{}", reloaded(pods)))?;
    Ok(exit::OK)
}

fn reloaded(pods: usize) -> String {
    match pods {
        0 => "reloaded: no running pod needs firewall rules".to_owned(),
        1 => "reloaded: the firewall rules of 1 running pod are in place".to_owned(),
        _ => format!("reloaded: the firewall rules of {pods} running pods are in place"),
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
    fn networks_as_a_table() {
        let mut out = Vec::new();
        table(&mut out, &networks(), true, None).unwrap();
        let want = "NAME     SOURCE                     TYPE            SUBNETS        PODS  PROBLEM\n\
                    default  built in                   bridge,portmap  10.121.0.0/16  1\n\
                    default  /etc/cni/net.d/1.conflist  ptp                            0     not used: built in has its name\n\
                    -        /etc/cni/net.d/2.conflist                                 0     it is no\\u{1b} JSON\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        assert_eq!(usable(&networks()).collect::<Vec<_>>(), ["default"]);
    }

    #[test]
    fn the_names_of_the_fields_are_a_promise() {
        let [mut network, ..] = networks();
        let pods = got(&network);
        let json = serde_json::to_string(&Document::of(&network, &pods)).unwrap();
        let want = r#"{"name":"default","source":"built in","types":["bridge","portmap"],"built_in":true,"cni_versions":["1.0.0"],"interface":"gantry0","subnets":["10.121.0.0/16"],"gateways":["10.121.0.1"],"shadowed_by":null,"problem":null,"notes":[],"pods":[{"pod":"6733c088","name":"","interface":"","mac":null,"addresses":[],"routes":[],"dns":{"servers":[],"search":[],"options":[],"domain":null},"ports":[]}]}"#;
        assert_eq!(json, want);
        for (text, want) in [(r#"{"a":1}"#, serde_json::json!({"a": 1})), ("{", "{".into())] {
            network.text = Some(text.into());
            let json = serde_json::to_value(Document::of(&network, &[])).unwrap();
            assert_eq!(json["configuration"], want);
        }
    }

    #[test]
    fn what_reload_says() {
        assert_eq!(reloaded(0), "reloaded: no running pod needs firewall rules");
        assert!(reloaded(1).contains("1 running pod are") && reloaded(2).contains("2 running pods are"));
    }
}
