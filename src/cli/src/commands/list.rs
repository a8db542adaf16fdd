//! `gantry list`.

use gantry_engine::PodRow;
use gantry_model::query::PodQuery;
use gantry_model::{AppName, Phase, Timestamp};

use crate::context::Context;
use crate::exit;
use crate::failure::Failure;
use crate::render::network::{self, Families};
use crate::render::pod::{self, Document};
use crate::render::table::Table;
use crate::render::{Form, Output, json, time};

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    output: Output,
    /// Only pods in these phases: embryo, preparing, aborted-prepare, prepared, running, exited, garbage, deleting
    #[arg(long, alias = "state", value_delimiter = ',', value_parser = phase, value_name = "PHASE,…")]
    phase: Vec<&'static str>,
    /// Only pods that have an app of this name
    #[arg(long, value_name = "NAME")]
    app: Option<AppName>,
    /// All pods are listed; for hands used to 'ps -a'
    #[arg(long, short, hide = true)]
    all: bool,
}

fn phase(text: &str) -> Result<&'static str, String> {
    let known = Phase::NAMES.into_iter().find(|name| *name == text);
    known.ok_or_else(|| {
        format!("'{}' is not a phase: expected one of {}", gantry_model::id::shown(text), Phase::NAMES.join(", "))
    })
}

/// Lists pods.
pub(crate) fn list(context: &Context, args: &List) -> Result<u8, Failure> {
    let engine = context.look()?;
    let query = PodQuery { phases: args.phase.clone(), app: args.app.clone(), ..PodQuery::default() };
    let pods = engine.list(&query)?;
    let rows = || pods.iter().map(|pod| &pod.row);
    match args.output.form {
        _ if args.output.quiet => {
            json::to_stdout(|out| rows().try_for_each(|row| writeln!(out, "{}", shown_id(row, args.output.full))))?;
        }
        Form::Table => {
            let table = table(rows(), &args.output, gantry_engine::now())?;
            json::to_stdout(|out| table.write(out, !args.output.no_legend))?;
        }
        Form::JsonPretty => {
            let networks = rows().map(|row| row.networks.read()).collect::<Result<Vec<_>, _>>()?;
            let documents = rows().zip(&networks).map(|(row, networks)| Document::spread(row, networks));
            json::to_stdout(|out| json::items(out, args.output.form, documents))?;
        }
        form => json::to_stdout(|out| json::items(out, form, rows().map(Document::of)))?,
    }
    // The process ends, and with it all that many pods take.
    std::mem::forget(pods);
    Ok(exit::OK)
}

/// The beginning of an id as tables show it; scripts that ask for ids only get enough to go on with.
fn shown_id(row: &PodRow, full: bool) -> String {
    let mut id = row.id.to_string();
    if !full {
        id.truncate(8);
    }
    id
}

/// One line per app; the pod's columns stand on its first line only, as rkt does it.
fn table<'a>(rows: impl Iterator<Item = &'a PodRow>, output: &Output, now: Timestamp) -> Result<Table, Failure> {
    let mut table = Table::new(if output.full {
        &["UUID", "APP", "IMAGE NAME", "IMAGE ID", "STATE", "CREATED", "STARTED", "NETWORKS", "PORTS"]
    } else {
        &["UUID", "APP", "IMAGE NAME", "STATE", "CREATED", "STARTED", "NETWORKS", "PORTS"]
    });
    let shown_time = |at: Timestamp| if output.full { at.rfc3339().to_string() } else { time::relative(now, at) };
    let families = if output.full { Families::Both } else { Families::One };
    for row in rows {
        let run = pod::run(&row.phase);
        let mut of_pod = vec![shown_state(row)];
        of_pod.push(shown_time(row.created));
        of_pod.push(run.started.map(shown_time).unwrap_or_default());
        of_pod.push(network::text(row, families)?);
        of_pod.push(network::published(row)?);
        let mut id = shown_id(row, output.full);
        for app in &row.apps {
            let mut cells = vec![std::mem::take(&mut id), app.name.to_string(), app.image_name.clone()];
            if output.full {
                cells.push(format!("{}:{}", app.image.algorithm().as_str(), app.image.short()));
            }
            cells.append(&mut of_pod);
            table.row(cells);
        }
    }
    Ok(table)
}

fn shown_state(row: &PodRow) -> String {
    match pod::run(&row.phase).end {
        Some(end) if end.exit_code != 0 => format!("{} ({})", row.phase.name(), end.exit_code),
        _ => row.phase.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::pod::tests::ended;

    #[test]
    fn pods_as_a_table() {
        let output = |full| Output { form: Form::Table, no_legend: false, full, quiet: false };
        let mut out = Vec::new();
        let ended = table([ended()].iter(), &output(false), Timestamp(61_000_000_000)).unwrap();
        ended.write(&mut out, true).unwrap();
        let want = "UUID      APP  IMAGE NAME     STATE         CREATED       STARTED       NETWORKS  PORTS\n\
                    6733c088  a    evil\\u{1b}[2J  exited (139)  1 minute ago  1 minute ago  none\n          \
                    b    evil\\u{1b}[2J\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        let mut out = Vec::new();
        table([].iter(), &output(true), Timestamp(0)).unwrap().write(&mut out, true).unwrap();
        assert!(out.starts_with(b"UUID  APP"), "a header also when there is nothing");
    }

    #[test]
    fn phases_are_the_models() {
        for name in Phase::NAMES {
            assert_eq!(phase(name), Ok(name));
        }
        assert!(phase("Running").is_err());
    }
}
