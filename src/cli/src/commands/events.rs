//! `gantry events`: prints the history of events, and follows it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::time::{Duration, Instant};

use gantry_engine::COMMIT_TIMEOUT;
use gantry_engine::Engine;
use gantry_model::query::{EventQuery, PodQuery};
use gantry_model::{Digest, EventRecord, EventSubject, NewEvent, PhaseName, PodId, Timestamp};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::{Context, is_replaced};
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{Failure, io as failed, output};
use crate::relay::Stdout;
use crate::render::json::{self, TimeJson};
use crate::render::{FormatParser, OutputFormat, escape, table, time};

pub(crate) mod filter;

use filter::{Condition, Filter};

/// The number of events read at once.
const PAGE_SIZE: usize = 500;
/// How often a follower reconciles pods and checks its output: neither an unrecorded end of a pod nor the end of the
/// reader commits anything to the database.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(1);
/// A follower reconciles once more this long before its end, because events get the time at which they are noticed.
const FINAL_RECONCILE_LEAD: Duration = Duration::from_millis(100);

/// Arguments of `events`.
#[derive(Debug, clap::Args)]
pub(crate) struct Events {
    /// Follow new events; past events only with --since
    #[arg(short, long)]
    follow: bool,
    /// Only events since this time: RFC 3339, a local date with or without a time of day, seconds of the epoch, or a
    /// duration ago such as 10m
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only events before this time, at which --follow ends
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only matching events: type=pod-exited, id=, name=, pod=, app= or image=; values of one key are alternatives
    #[arg(long, value_parser = filter::parse, value_name = "KEY=VALUE")]
    filter: Vec<Condition>,
    /// Output format; JSON is one document per line
    #[arg(
        short = 'o',
        long = "output",
        alias = "format",
        value_parser = FormatParser,
        default_value = "table",
        value_name = "FORMAT"
    )]
    format: OutputFormat,
    /// Omit the header line
    #[arg(long, alias = "no-headers", alias = "noheading")]
    no_legend: bool,
    /// Full ids
    #[arg(long, visible_alias = "no-trunc")]
    full: bool,
}

/// Prints events and follows them.
impl RunCommand for Events {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let now = gantry_engine::now();
        let at = |text: &Option<String>| text.as_deref().map(|text| time::parse(text, now)).transpose();
        let since = at(&self.since).map_err(Failure::usage)?;
        let until = at(&self.until).map_err(Failure::usage)?;
        if since.zip(until).is_some_and(|(since, until)| until < since) {
            return Err(Failure::usage("--until is before --since"));
        }
        let mut sink = Sink::new(self);
        let mut cursor = None;
        // A follower opens the database again when gantryd has replaced a damaged one by a restored one.
        loop {
            let engine = context.open_to_read()?;
            let mut reader = Reader {
                engine: &engine,
                query: EventQuery { since, until, ..EventQuery::default() },
                filter: Filter::resolve(&self.filter, &engine, self.follow)?,
                cursor: 0,
                reconciler: Reconciler { engine: &engine, debug: context.globals.debug, error: None },
                sink: &mut sink,
            };
            // Pods that exited before now belong to the past, also if their end is recorded only here.
            reader.reconciler.reconcile();
            if !self.follow {
                reader.read(now)?;
                break;
            }
            match reader.follow(now, cursor)? {
                Followed::Over => break,
                Followed::Replaced => cursor = Some(reader.cursor),
            }
        }
        sink.end().map_err(output)?;
        Ok(ExitStatus::OK)
    }
}

/// The end of [`Reader::follow`].
enum Followed {
    /// The time given by `--until` has come.
    Over,
    /// The database was replaced by another one, in which events have higher numbers.
    Replaced,
}

/// Reads the history.
struct Reader<'a> {
    engine: &'a Engine,
    /// Restricts the times only.
    query: EventQuery,
    filter: Filter,
    cursor: u64,
    reconciler: Reconciler<'a>,
    sink: &'a mut Sink,
}

impl Reader<'_> {
    /// Prints the events up to now.
    fn read(&mut self, now: Timestamp) -> Result<(), Failure> {
        let upto = self.engine.events_start(&EventQuery::default(), now)?;
        // Without --since: from the oldest event that is kept.
        let whole = EventQuery { until: Some(now), ..EventQuery::default() };
        let query = if self.query.since.is_some() { &self.query } else { &whole };
        self.cursor = self.engine.events_start(query, now)?;
        self.drain(upto)
    }

    /// Prints the selected past events, then new ones, until the time given by `--until`.
    fn follow(&mut self, now: Timestamp, cursor: Option<u64>) -> Result<Followed, Failure> {
        let waiting = || failed("wait for events in", self.engine.store().layout().root().display().to_string());
        // Watch before the first read, so that no commit between the two is missed.
        let mut commits = self.engine.commits();
        self.cursor = cursor.map_or_else(|| self.engine.events_start(&self.query, now), Ok)?;
        let mut reconciled = Instant::now();
        let mut reconciled_finally = false;
        loop {
            // Check the time first, then read: this prints all events until then.
            let left = self.query.until.map(|until| time_left(until, gantry_engine::now()));
            let over = left.is_some_and(|left| left.is_zero());
            let final_reconcile = left.map(|left| left.saturating_sub(FINAL_RECONCILE_LEAD + COMMIT_TIMEOUT));
            if final_reconcile.is_some_and(|until| until.is_zero()) && !reconciled_finally {
                reconciled_finally = true;
                self.reconciler.reconcile();
            }
            self.drain(u64::MAX)?;
            if over {
                return Ok(Followed::Over);
            }
            let wait = if reconciled_finally { left } else { final_reconcile };
            commits.wait(wait.unwrap_or(RECONCILE_INTERVAL).min(RECONCILE_INTERVAL)).map_err(waiting())?;
            if reconciled.elapsed() >= RECONCILE_INTERVAL {
                reconciled = Instant::now();
                if is_replaced(self.engine) {
                    return Ok(Followed::Replaced);
                }
                self.reconciler.reconcile();
                if stdout_has_no_reader() {
                    return Err(Failure::BrokenPipe);
                }
            }
        }
    }

    /// Prints all events after the cursor up to this number.
    fn drain(&mut self, upto: u64) -> Result<(), Failure> {
        loop {
            let page = self.engine.events_after(self.cursor, PAGE_SIZE)?;
            if let Some(gone) = page.trimmed {
                self.sink.gap(gone).map_err(output)?;
            }
            let wanted = |event: &&EventRecord| self.query.holds(&event.event) && self.filter.holds(&event.event);
            for event in page.events.iter().take_while(|event| event.seq <= upto).filter(wanted) {
                self.sink.show(event).map_err(output)?;
            }
            self.cursor = page.cursor;
            if page.events.is_empty() || page.cursor >= upto {
                return self.sink.out.flush().map_err(output);
            }
            if self.sink.live {
                self.sink.out.flush().map_err(output)?;
            }
        }
    }
}

/// The time until all events before `until` are committed.
fn time_left(until: Timestamp, now: Timestamp) -> Duration {
    until.after(COMMIT_TIMEOUT).since(now)
}

/// Whether the reader of standard output is gone. A write would notice it, but there may be nothing to write.
fn stdout_has_no_reader() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdout = rustix::stdio::stdout();
    let mut fds = [PollFd::from_borrowed_fd(stdout, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|_| fds[0].revents().contains(PollFlags::ERR))
}

/// Reconciles pods, which records events if no gantryd does so.
struct Reconciler<'a> {
    engine: &'a Engine,
    debug: bool,
    /// The error printed last.
    error: Option<String>,
}

impl Reconciler<'_> {
    /// A pod that cannot be reconciled does not prevent the history from being printed: the error is printed once.
    fn reconcile(&mut self) {
        let error = self.engine.list(&PodQuery::in_phases(PhaseName::unfinished())).err().map(Failure::from);
        let text = error.as_ref().and_then(|failure| failure.text(self.debug));
        if let Some(failure) = error.filter(|_| text != self.error) {
            failure.print(self.debug);
        }
        self.error = text;
    }
}

/// An event as JSON. The field names are stable.
#[derive(Serialize)]
struct EventJson<'a> {
    seq: u64,
    boot: &'a str,
    time: TimeJson,
    #[serde(rename = "type")]
    kind: &'static str,
    id: &'a str,
    name: &'a str,
    data: EventDataJson<'a>,
    /// Earlier events were deleted: the highest number of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    trimmed: Option<u64>,
}

/// The data of an event. Numbers are JSON numbers: an exit code has the same type as in `status -o json`.
struct EventDataJson<'a>(&'a BTreeMap<String, String>);

/// The keys of numbers.
const NUMBERS: [&str; 18] = [
    "exit_code",
    "attempt",
    "signal",
    "size",
    "failures",
    "kills",
    "victim_pid",
    "revision",
    // Limits, unless they are `none`.
    "memory",
    "memory_swap",
    "memory_high",
    "memory_reservation",
    "cpu_milli",
    "cpu_quota",
    "cpu_period",
    "cpu_shares",
    "pids",
    "io_weight",
];
/// The keys of booleans.
const BOOLEANS: [&str; 2] = ["oom", "lost"];

impl Serialize for EventDataJson<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap as _;
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            // A value that another version of gantry wrote in another way stays a string.
            let number = NUMBERS.contains(&key.as_str()).then(|| value.parse::<i64>().ok()).flatten();
            let boolean = BOOLEANS.contains(&key.as_str()).then(|| value.parse::<bool>().ok()).flatten();
            match (number, boolean) {
                (Some(number), _) => map.serialize_entry(key, &number)?,
                (_, Some(boolean)) => map.serialize_entry(key, &boolean)?,
                (None, None) => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

/// Prints events.
struct Sink {
    out: BufWriter<Stdout>,
    format: OutputFormat,
    /// Whether the header is still to be written.
    legend: bool,
    full: bool,
    /// Whether events are followed, so that each page is flushed.
    live: bool,
    /// The number of the last deleted event, and whether it was reported.
    gap: Option<(u64, bool)>,
}

const HEADER: [&str; 5] = ["TIME", "TYPE", "ID", "NAME", "DATA"];

impl Sink {
    fn new(args: &Events) -> Self {
        let out = BufWriter::with_capacity(64 << 10, Stdout);
        let legend = args.format == OutputFormat::Table && !args.no_legend;
        Self { out, format: args.format, legend, full: args.full, live: args.follow, gap: None }
    }

    /// Notes that the events after the cursor up to this number were deleted.
    fn gap(&mut self, gone: u64) -> io::Result<()> {
        if self.gap.is_some_and(|(known, _)| known >= gone) {
            return Ok(());
        }
        self.gap = Some((gone, false));
        // A table has no column for it; in JSON the next event carries it.
        if self.format == OutputFormat::Table { self.report_gap() } else { Ok(()) }
    }

    fn report_gap(&mut self) -> io::Result<()> {
        if let Some((gone, reported @ false)) = &mut self.gap {
            *reported = true;
            self.out.flush()?;
            writeln!(io::stderr(), "gantry: events up to number {gone} are missing: the oldest events are deleted")?;
        }
        Ok(())
    }

    fn show(&mut self, event: &EventRecord) -> io::Result<()> {
        self.legend()?;
        if self.format == OutputFormat::Table {
            return table::line(&mut self.out, &cells(event, self.full), &widths(self.full));
        }
        let trimmed = self.gap.as_mut().filter(|(_, reported)| !reported).map(|(gone, reported)| {
            *reported = true;
            *gone
        });
        let NewEvent { kind, at, id, name, data } = &event.event;
        let (seq, boot, time) = (event.seq, event.boot.as_str(), TimeJson(*at));
        let document = EventJson { seq, boot, time, kind: kind.as_str(), id, name, data: EventDataJson(data), trimmed };
        let format = if self.format == OutputFormat::JsonPretty { self.format } else { OutputFormat::JsonLines };
        json::write_document(&mut self.out, format, &document)
    }

    fn legend(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.legend) { table::line(&mut self.out, &HEADER, &widths(self.full)) } else { Ok(()) }
    }

    /// Prints the header if there were no events, and a gap that no event carried.
    fn end(&mut self) -> io::Result<()> {
        self.legend()?;
        self.report_gap()?;
        self.out.flush()
    }
}

/// The widths of the columns: fixed, because events are printed one by one.
fn widths(full: bool) -> [usize; 5] {
    [30, 21, if full { 36 } else { 19 }, 24, 0]
}

/// The cells of an event. The name of a pod is its id and is omitted, as is the id among the data.
fn cells(event: &EventRecord, full: bool) -> [String; 5] {
    let NewEvent { kind, at, id, name, data } = &event.event;
    let shown = |text: &str| escape::text(text).into_owned();
    let fact = |(key, value): (&String, &String)| format!("{key}={}", fact(value, full));
    let data: Vec<_> = data.iter().filter(|(_, value)| *value != id).map(fact).collect();
    [
        at.rfc3339().to_string(),
        kind.as_str().to_owned(),
        // The name of a schedule is its only id.
        shown(&short(id, full || kind.subject() == EventSubject::Schedule)),
        if name == id { String::new() } else { shown(name) },
        shown(&data.join(" ")),
    ]
}

/// The id, shortened as in other tables.
fn short(id: &str, full: bool) -> Cow<'_, str> {
    match id.parse::<Digest>() {
        _ if full => id.into(),
        Ok(digest) => format!("{}:{}", digest.algorithm().as_str(), digest.short()).into(),
        // The method of a call.
        Err(_) if id.contains('/') => id.into(),
        Err(_) => id.get(..PodId::SHOWN_DIGITS).unwrap_or(id).into(),
    }
}

/// A value among the data, quoted if it contains separators.
fn fact(value: &str, full: bool) -> Cow<'_, str> {
    if value.is_empty() || value.contains([' ', '"', '=', '\\']) {
        return format!("{value:?}").into();
    }
    if value.parse::<Digest>().is_ok() { short(value, full) } else { value.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::EventKind;

    pub(super) fn event(kind: EventKind, id: &str, name: &str, data: &[(&str, &str)]) -> EventRecord {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let at = Timestamp(1_795_181_696_123_456_789);
        let event = NewEvent { kind, at, id: id.to_owned(), name: name.to_owned(), data };
        EventRecord { seq: 7, boot: "b".to_owned(), event }
    }

    const POD: &str = "6733c088-a507-4694-aabf-ec79c0a8ac9a";

    fn row(event: &EventRecord, full: bool) -> String {
        let mut out = Vec::new();
        table::line(&mut out, &cells(event, full), &widths(full)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_follower_waits_for_late_commits() {
        let at = |ms: i64| Timestamp(ms * 1_000_000);
        for (until, now, want) in [(1000, 400, 630), (1000, 1000, 30), (1000, 1030, 0), (1000, 9000, 0)] {
            assert_eq!(time_left(at(until), at(now)), Duration::from_millis(want), "{until} {now}");
        }
        assert!(!time_left(Timestamp(i64::MAX), at(0)).is_zero());
    }

    #[test]
    fn event_data_has_typed_json_values() {
        let data = [("exit_code", "137"), ("oom", "true"), ("reason", "1"), ("size", "big")];
        let event = event(EventKind::AppExited, POD, "a", &data);
        let json = serde_json::to_string(&EventDataJson(&event.event.data)).unwrap();
        assert_eq!(json, r#"{"exit_code":137,"oom":true,"reason":"1","size":"big"}"#);
    }

    #[test]
    fn long_names_are_separated_from_data() {
        let name = "127.0.0.1:5000/some/long/repository:bookworm";
        let imported = event(EventKind::ImageImported, &format!("sha256:{}", "ab".repeat(32)), name, &[("size", "1")]);
        assert!(row(&imported, false).ends_with(&format!("{name}  size=1\n")), "{}", row(&imported, false));
        assert!(row(&imported, true).contains(&format!("  {name}  size=1")), "{}", row(&imported, true));
    }

    #[test]
    fn events_are_rendered_as_rows() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let exited = event(EventKind::PodExited, POD, POD, &[("exit_code", "3"), ("reason", "app a failed")]);
        let want = format!(
            "2026-11-20T13:34:56.123456789Z  {:<23}{:<21}{:<26}exit_code=3 reason=\"app a failed\"\n",
            "pod-exited", "6733c088", ""
        );
        assert_eq!(row(&exited, false), want);
        assert!(row(&exited, true).contains(&format!("{POD}  ")), "{}", row(&exited, true));
        let app = event(EventKind::AppStarted, POD, "a", &[("image_id", &digest)]);
        assert!(row(&app, false).ends_with("image_id=sha256:abababababab\n"), "{}", row(&app, false));
        assert!(row(&app, true).ends_with(&format!("image_id={digest}\n")), "{}", row(&app, true));
        let image =
            event(EventKind::ImageImported, &digest, "evil\u{1b}[2J\n", &[("image_id", &digest), ("x", "\u{7}=")]);
        let shown = row(&image, false);
        assert!(shown.contains(r"sha256:abababababab  evil\u{1b}[2J\u{a}") && !shown.contains("image_id"), "{shown}");
        assert!(shown.lines().count() == 1 && shown.ends_with("x=\"\\u{7}=\"\n"), "{shown}");
        let nothing = event(EventKind::PodStarted, POD, POD, &[]);
        assert!(row(&nothing, false).ends_with("  6733c088\n"), "no spaces at the end");
    }
}
