//! `gantry logs`.

use std::io::{self, Write as _};

use clap::ValueEnum;
use gantry_engine::{LineRef, LogQuery, LogSink};
use gantry_model::AppName;
use gantry_model::id::{IdError, shown};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{self, Failure};
use crate::grammar::limit_values as values;
use crate::pods::OnePod;
use crate::printer::Printer;
use crate::relay;
use crate::render::time;

/// Arguments of `logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    pod: OnePod,
    /// Follow the output until the pod has exited
    #[arg(short, long)]
    follow: bool,
    /// Only the last N lines of each app; all or -1: all lines
    #[arg(short = 'n', long, alias = "lines", value_parser = tail, allow_negative_numbers = true, value_name = "N")]
    tail: Option<Tail>,
    /// Only lines since this time: RFC 3339, a local date with or without a time of day, seconds of the epoch, or a
    /// duration ago such as 10m
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only lines before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only these apps
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    app: Vec<AppName>,
    /// Only matching lines: app=NAME, stream=stdout or stream=stderr; values of one key are alternatives
    #[arg(long, value_parser = condition, value_name = "KEY=VALUE")]
    filter: Vec<Condition>,
    /// Prefix every line with its time
    #[arg(short, long)]
    timestamps: bool,
    /// Make the supervisor open the log files anew, after they were renamed, and print nothing
    #[arg(long, conflicts_with_all = ["follow", "tail", "since", "until", "filter", "timestamps"])]
    reopen: bool,
    /// Output format
    #[arg(short = 'o', long = "output", alias = "format", value_enum, default_value_t, value_name = "FORMAT")]
    format: LogFormat,
}

/// The lines that `--tail` selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// All of them.
    All,
    /// The last ones of each app.
    Last(usize),
}

fn tail(text: &str) -> Result<Tail, String> {
    // As in docker, any negative number stands for all lines.
    if text == "all" || text.parse::<i64>().is_ok_and(|lines| lines < 0) {
        return Ok(Tail::All);
    }
    values::number(text, "a number of lines, or all").map(Tail::Last).map_err(values::message)
}

/// A condition of `--filter`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    /// The app has this name.
    App(AppName),
    /// The line was written to standard error (true) or standard output.
    Stderr(bool),
}

fn condition(text: &str) -> Result<Condition, String> {
    match text.split_once('=') {
        Some(("app", name)) => name.parse().map(Condition::App).map_err(|error: IdError| error.to_string()),
        Some(("stream", "stdout")) => Ok(Condition::Stderr(false)),
        Some(("stream", "stderr")) => Ok(Condition::Stderr(true)),
        _ => Err(format!("'{}' is not a filter: expected app=NAME, stream=stdout or stream=stderr", shown(text))),
    }
}

impl Logs {
    fn reopen_logs(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("logs --reopen")?;
        let (id, named) = self.pod.only_app(&engine, None)?;
        let mut apps = self.app.iter().chain(&named).peekable();
        match apps.peek() {
            None => engine.reopen_log(id, None)?,
            Some(_) => apps.try_for_each(|app| engine.reopen_log(id, Some(app)))?,
        }
        Ok(ExitStatus::OK)
    }
}

/// The apps and the stream that the flags select.
fn conditions(args: &Logs) -> (Vec<AppName>, Option<bool>) {
    let mut apps = args.app.clone();
    let mut streams = Vec::new();
    for condition in &args.filter {
        match condition {
            Condition::App(app) => apps.push(app.clone()),
            Condition::Stderr(stderr) => streams.push(*stderr),
        }
    }
    // Both streams together are no restriction.
    let both = streams.contains(&true) && streams.contains(&false);
    (apps, streams.first().copied().filter(|_| !both))
}

/// The output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Text, as the apps wrote it
    #[default]
    Text,
    /// One JSON document per line, all on standard output
    #[value(alias = "json-lines", alias = "jsonl")]
    Json,
}

/// Prints the output of apps: their standard output to standard output, and their standard error to standard error.
impl RunCommand for Logs {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        if self.reopen {
            return self.reopen_logs(context);
        }
        let now = gantry_engine::now();
        let at = |text: &Option<String>| text.as_deref().map(|text| time::parse(text, now)).transpose();
        let engine = context.open_to_read()?;
        let (id, named) = self.pod.only_app(&engine, None)?;
        let (mut apps, stderr) = conditions(self);
        apps.extend(named);
        let several = apps.len() != 1;
        let query = LogQuery {
            apps,
            stderr,
            since: at(&self.since).map_err(Failure::usage)?,
            until: at(&self.until).map_err(Failure::usage)?,
            tail: match self.tail {
                Some(Tail::Last(lines)) => Some(lines),
                Some(Tail::All) | None => None,
            },
            tail_total: None,
            attempt: None,
            follow: self.follow,
        };
        let mut text = Printer::new(several && engine.status(id)?.row.apps.len() > 1).with_timestamps(self.timestamps);
        let mut json = JsonLines::default();
        let sink: &mut dyn LogSink = match self.format {
            LogFormat::Text => &mut text,
            LogFormat::Json => &mut json,
        };
        engine.logs(id, &query, sink).map_err(failure::logs)?;
        Ok(ExitStatus::OK)
    }
}

/// Lines are collected up to this size, then written at once.
const CHUNK: usize = 64 << 10;

/// Prints lines as JSON, one document each.
#[derive(Default)]
struct JsonLines {
    held: Vec<u8>,
}

/// A line, or a part of one, as JSON. The field names are stable.
#[derive(Serialize)]
struct LogLineJson<'a> {
    time: &'a str,
    app: &'a str,
    stream: &'static str,
    /// Whether it ends without a newline.
    partial: bool,
    text: &'a str,
}

impl JsonLines {
    fn compose(&mut self, line: LineRef<'_>) -> io::Result<()> {
        let time = line.at.rfc3339();
        let document = LogLineJson {
            time: time.as_str(),
            app: line.app.as_str(),
            stream: if line.stderr { "stderr" } else { "stdout" },
            partial: line.partial,
            text: &String::from_utf8_lossy(line.text),
        };
        serde_json::to_writer(&mut self.held, &document)?;
        self.held.write_all(b"\n")
    }
}

impl LogSink for JsonLines {
    fn line(&mut self, line: LineRef<'_>) -> io::Result<()> {
        self.compose(line)?;
        if self.held.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = relay::write_all(rustix::stdio::stdout(), &self.held);
        self.held.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_parsed() {
        let web: AppName = "web".parse().unwrap();
        let (app, out, err) = (Condition::App(web), Condition::Stderr(false), Condition::Stderr(true));
        for (text, want) in [("app=web", Some(app)), ("stream=stdout", Some(out)), ("stream=stderr", Some(err))] {
            assert_eq!(condition(text).ok(), want, "{text}");
        }
        for text in ["", "app", "app=", "app=A", "stream=", "stream=stdin", "pod=1", "\u{1b}[2J=1"] {
            let why = condition(text).unwrap_err();
            assert!(!why.contains('\u{1b}'), "{why}");
        }
    }

    #[test]
    fn tails_are_numbers_or_all() {
        for (text, want) in [("0", Tail::Last(0)), ("7", Tail::Last(7)), ("all", Tail::All), ("-1", Tail::All)] {
            assert_eq!(tail(text), Ok(want), "{text}");
        }
        for text in ["", "x", "+1", "1.5", "-", "-x"] {
            assert_eq!(tail(text), Err(format!("'{text}' is not a number of lines, or all")));
        }
    }

    #[test]
    fn lines_are_rendered_as_json() {
        let app = "web".parse().unwrap();
        let at = gantry_model::Timestamp(1_500_000_000);
        let mut documents = JsonLines::default();
        for (stderr, partial, text) in [(false, false, &b"a \"b\"\0"[..]), (true, true, b"\xff\n")] {
            documents.compose(LineRef { app: &app, at, stderr, piece: partial, partial, text }).unwrap();
        }
        let time = "1970-01-01T00:00:01.500000000Z";
        let want = format!(
            "{{\"time\":\"{time}\",\"app\":\"web\",\"stream\":\"stdout\",\"partial\":false,\"text\":\"a \\\"b\\\"\\u0000\"}}\n\
             {{\"time\":\"{time}\",\"app\":\"web\",\"stream\":\"stderr\",\"partial\":true,\"text\":\"\u{fffd}\\n\"}}\n"
        );
        assert_eq!(String::from_utf8(documents.held).unwrap(), want);
    }
}
