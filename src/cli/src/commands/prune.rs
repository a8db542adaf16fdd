//! `gantry prune`.

use std::io::{self, BufRead as _, IsTerminal as _, Write};
use std::time::Duration;

use gantry_engine::{Engine, ImageRow, PodRow, PruneOptions, PruneReport, VolumeRow};
use gantry_model::id::shown;
use gantry_model::{PodId, Timestamp};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::render::json::{self, DisplayJson};
use crate::render::{OutputFlag, OutputFormat, size};

/// Arguments of `prune`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Pods that run or are prepared, and what they use, are never removed. 'gantry gc' does the same \
    for pods whose grace period is over, without asking."
)]
pub(crate) struct Prune {
    /// Remove all images that no pod uses, not only those without a name
    #[arg(short, long)]
    all: bool,
    /// Also remove named volumes that no pod mounts, with their data
    #[arg(long)]
    volumes: bool,
    /// Only objects that match: until=24h (ended, last used or created before), label=NAME[=VALUE], label!=NAME[=VALUE]
    /// (pods and volumes)
    #[arg(long = "filter", value_name = "KEY=VALUE", value_parser = parse_filter)]
    filters: Vec<PruneFilter>,
    /// Do not ask
    #[arg(short, long, visible_short_alias = 'y', alias = "yes")]
    force: bool,
    /// Show what would be removed; remove nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputFlag,
}

/// A condition on what is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PruneFilter {
    /// Not in use for this long.
    Age(Duration),
    /// It has this label, with this value if one is given; or has it not.
    Label { name: String, value: Option<String>, is_present: bool },
}

fn parse_filter(text: &str) -> Result<PruneFilter, String> {
    let expected = || format!("'{}': expected until=DURATION, label=NAME[=VALUE] or label!=NAME[=VALUE]", shown(text));
    if let Some(age) = text.strip_prefix("until=") {
        return super::stop::parse_duration(age).map(PruneFilter::Age);
    }
    let present = text.strip_prefix("label=").map(|label| (label, true));
    let (label, is_present) =
        present.or_else(|| text.strip_prefix("label!=").map(|label| (label, false))).ok_or_else(expected)?;
    let (name, value) = match label.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (label, None),
    };
    if name.is_empty() {
        return Err(expected());
    }
    Ok(PruneFilter::Label { name: name.to_owned(), value, is_present })
}

impl PruneFilter {
    fn is_met(&self, since: Timestamp, label: impl Fn(&str) -> Option<String>) -> bool {
        match self {
            Self::Age(age) => gantry_engine::now().since(since) >= *age,
            Self::Label { name, value, is_present } => {
                let found = label(name);
                let matches = found.is_some() && value.as_ref().is_none_or(|value| found.as_ref() == Some(value));
                matches == *is_present
            }
        }
    }
}

/// What was removed, as JSON. The field names are stable.
#[derive(Serialize)]
struct PruneJson<'a> {
    pods: Vec<DisplayJson<PodId>>,
    images: Vec<String>,
    volumes: Vec<&'a str>,
    bytes: u64,
    done: bool,
}

/// Removes what is not in use, and prints it.
impl RunCommand for Prune {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("prune")?;
        if !self.dry_run && !self.force && !self.confirm()? {
            return Ok(ExitStatus::OK);
        }
        let report = self.prune(&engine)?;
        json::to_stdout(|out| match self.output.format {
            OutputFormat::Table => write_report(out, &report, self.dry_run),
            format => json::write_document(out, format, &self.document(&report)),
        })?;
        Ok(context.report(report.failures, CommandKind::Action))
    }
}

impl Prune {
    fn prune(&self, engine: &Engine) -> Result<PruneReport, Failure> {
        let all = |since: Timestamp, label: &dyn Fn(&str) -> Option<String>| {
            self.filters.iter().all(|filter| filter.is_met(since, label))
        };
        let has_labels = self.filters.iter().any(|filter| matches!(filter, PruneFilter::Label { .. }));
        let end = |row: &PodRow| row.phase.end().map_or(row.created, |(at, _)| at);
        let options = PruneOptions {
            pods: &|row| all(end(row), &|name| row.user_labels.get(name).cloned()),
            // Labels are of pods and volumes: with a condition on them, images stay.
            images: &|row: &ImageRow| {
                !has_labels && (self.all || row.names.is_empty()) && all(row.last_used, &|_| None)
            },
            volumes: &|row: &VolumeRow| self.volumes && all(row.created, &|name| row.labels.get(name).cloned()),
            dry_run: self.dry_run,
        };
        Ok(engine.prune(&options)?)
    }

    fn confirm(&self) -> Result<bool, Failure> {
        need_terminal()?;
        let images = if self.all { "all images that no pod uses" } else { "images without a name" };
        let volumes = if self.volumes { ", and volumes that no pod mounts" } else { "" };
        ask(&format!("Remove all pods that have ended, {images}{volumes}?"))
    }

    fn document<'a>(&self, report: &'a PruneReport) -> PruneJson<'a> {
        PruneJson {
            pods: report.pods.iter().copied().map(DisplayJson).collect(),
            images: report.images.iter().map(|image| image.id.to_string()).collect(),
            volumes: report.volumes.iter().map(gantry_model::VolumeName::as_str).collect(),
            bytes: report.bytes,
            done: !self.dry_run,
        }
    }
}

/// Fails if standard input is not a terminal.
pub(super) fn need_terminal() -> Result<(), Failure> {
    match io::stdin().is_terminal() {
        true => Ok(()),
        false => Err(Failure::usage("standard input is not a terminal: give --force, or --dry-run to see what goes")),
    }
}

/// Asks on the terminal. Returns whether the answer is yes.
pub(super) fn ask(question: &str) -> Result<bool, Failure> {
    let failed = |error: io::Error| Failure::usage(format!("cannot ask on the terminal: {error}"));
    let mut stderr = io::stderr();
    write!(stderr, "{question} [y/N] ").map_err(failed)?;
    stderr.flush().map_err(failed)?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(failed)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn write_report(out: &mut dyn Write, report: &PruneReport, dry_run: bool) -> io::Result<()> {
    let lead = if dry_run { "would remove" } else { "removed" };
    report.pods.iter().try_for_each(|pod| writeln!(out, "{lead} pod {pod}"))?;
    report.images.iter().try_for_each(|image| writeln!(out, "{lead} image {}", image.id))?;
    report.volumes.iter().try_for_each(|volume| writeln!(out, "{lead} volume {volume}"))?;
    let freed = if dry_run { "reclaimable" } else { "freed" };
    writeln!(out, "{freed}: {}", size::human(report.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_select_by_age_and_label() {
        let label = |name: &str| (name == "tier").then(|| "web".to_owned());
        for (text, want) in [
            ("until=1h", true),
            ("label=tier", true),
            ("label=tier=web", true),
            ("label=tier=db", false),
            ("label=other", false),
            ("label!=tier", false),
            ("label!=tier=db", true),
            ("label!=other", true),
        ] {
            assert_eq!(parse_filter(text).unwrap().is_met(Timestamp(0), label), want, "{text}");
        }
        let now = gantry_engine::now();
        assert!(!parse_filter("until=1h").unwrap().is_met(now, label));
        for text in ["", "until", "until=soon", "label=", "label!=", "state=exited"] {
            assert!(parse_filter(text).is_err(), "{text}");
        }
    }
}
