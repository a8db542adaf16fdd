//! `gantry stats`.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use gantry_engine::{CounterSelection, Engine, PodView, SampleScope, Sampler};
use gantry_model::query::PodQuery;
use gantry_model::stats::{AppStats, InterfaceUsage, PodStats, ResourceUsage};
use gantry_model::{PhaseName, PodId, Timestamp};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::pods;
use crate::render::json::{DisplayJson, TimeJson};
use crate::render::table::{Table, terminal_width};
use crate::render::template::{ListFormat, TemplateItem};
use crate::render::{OutputFormat, json, size};

/// Moves the cursor to the upper left corner and clears the screen (ECMA-48).
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";
/// Minimum time between two samples.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Arguments of `stats`.
#[derive(Debug, clap::Args)]
#[command(after_help = "CPU % is of one processor: since the start of the pod in the first sample, then since the \
    sample before. Memory is the working set: without the page cache that the kernel reclaims first. \
    The limit of a pod is that of --pod-memory; --apps also shows those of its apps.\n\n\
    Fields of templates: .ID, .Name, .App, .CPUPerc, .MemUsage, .MemPerc, .NetIO, .BlockIO, .PIDs; {{json .}} is the \
    whole sample.")]
pub(crate) struct Stats {
    /// Pods [default: all running pods]
    #[arg(value_name = "POD")]
    pods: Vec<String>,
    /// Print one sample and exit
    #[arg(long)]
    no_stream: bool,
    /// Also print the apps of each pod
    #[arg(long)]
    apps: bool,
    /// Time between two samples
    #[arg(long, short = 'i', value_parser = super::stop::parse_duration, default_value = "2s", value_name = "DURATION")]
    interval: Duration,
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, default_value_t, value_name = "FORMAT", conflicts_with = "format")]
    output: OutputFormat,
    /// A template such as '{{.ID}} {{.CPUPerc}}', printed once per line
    #[arg(long, value_parser = parse_format, value_name = "TEMPLATE")]
    format: Option<ListFormat>,
    /// Omit the header line
    #[arg(long, alias = "no-headers", alias = "noheading")]
    no_legend: bool,
    /// Full ids
    #[arg(long, visible_alias = "no-trunc")]
    full: bool,
    /// No effect, accepted for docker's 'stats -a': pods that do not run use nothing
    #[arg(long, short)]
    all: bool,
}

/// The fields of templates, in the order of [`StatsRow::field`].
const FIELDS: [&str; 9] = ["ID", "Name", "App", "CPUPerc", "MemUsage", "MemPerc", "NetIO", "BlockIO", "PIDs"];

fn parse_format(text: &str) -> Result<ListFormat, String> {
    ListFormat::parse(text, &FIELDS)
}

/// Prints what running pods use.
impl RunCommand for Stats {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let mut engine = context.open_to_read()?;
        let ids = self.pods.iter().map(|pod| pods::find(&engine, pod)).collect::<Result<Vec<_>, _>>()?;
        let mut sampling = Sampling::start(ids, self.scope(), self.counters())?;
        let is_screen = !self.no_stream && self.is_table() && io::stdout().is_terminal();
        loop {
            let (samples, rates) = sampling.take(&engine)?;
            self.print(&samples, &rates, is_screen)?;
            if self.no_stream {
                return Ok(ExitStatus::OK);
            }
            std::thread::sleep(self.interval.max(MIN_INTERVAL));
            context.reopen_if_replaced(&mut engine)?;
        }
    }
}

impl Stats {
    fn format(&self) -> ListFormat {
        ListFormat::or_output(self.format.as_ref(), self.output)
    }

    fn is_table(&self) -> bool {
        self.format() == ListFormat::Named(OutputFormat::Table)
    }

    fn scope(&self) -> SampleScope {
        // JSON is for programs: complete.
        match self.apps || !self.is_table() {
            true => SampleScope::Apps,
            false => SampleScope::Pods,
        }
    }

    /// The counters that are printed.
    fn counters(&self) -> CounterSelection {
        match self.is_table() {
            true => CounterSelection::Summary,
            false => CounterSelection::All,
        }
    }

    fn print(&self, samples: &[PodStats], rates: &CpuRates, is_screen: bool) -> Result<(), Failure> {
        let rows = || stats_rows(samples, rates, self.apps, self.full);
        json::to_stdout(|out| match self.format() {
            ListFormat::Template(template) => rows().iter().try_for_each(|row| template.write(out, row)),
            ListFormat::Named(OutputFormat::Table) => {
                if is_screen {
                    out.write_all(CLEAR_SCREEN.as_bytes())?;
                }
                let width = terminal_width().filter(|_| !self.full);
                stats_table(&rows()).write_within(out, !self.no_legend, width)
            }
            ListFormat::Named(output) => {
                let items = samples.iter().map(|sample| PodStatsJson::from_sample(sample, rates.pod(sample)));
                json::write_items(out, output, items)
            }
        })
    }
}

/// Samples of the selected pods, and the CPU time of the sample before.
pub(crate) struct Sampling {
    ids: Vec<PodId>,
    scope: SampleScope,
    sampler: Sampler,
    before: HashMap<(PodId, String), (Timestamp, u64)>,
}

/// CPU usage of pods and apps, in percent of one processor. The name of a pod's own usage is empty.
#[derive(Debug, Default)]
pub(crate) struct CpuRates(HashMap<(PodId, String), f64>);

impl CpuRates {
    pub(crate) fn pod(&self, sample: &PodStats) -> Option<f64> {
        self.0.get(&(sample.id, String::new())).copied()
    }

    pub(crate) fn app(&self, sample: &PodStats, app: &AppStats) -> Option<f64> {
        self.0.get(&(sample.id, app.name.to_string())).copied()
    }
}

impl Sampling {
    /// Samples these pods, or all running ones.
    pub(crate) fn start(ids: Vec<PodId>, scope: SampleScope, counters: CounterSelection) -> Result<Self, Failure> {
        let sampler =
            Sampler::open().map_err(crate::failure::io("open the cgroups of", "this host"))?.reading(counters);
        Ok(Self { ids, scope, sampler, before: HashMap::new() })
    }

    /// The next sample.
    pub(crate) fn take(&mut self, engine: &Engine) -> Result<(Vec<PodStats>, CpuRates), Failure> {
        let samples = match (&self.ids[..], self.scope) {
            ([], SampleScope::Pods) => engine.sample_running_pods(&mut self.sampler)?,
            ([], SampleScope::Apps) => {
                self.sampler.sample(&engine.list(&PodQuery::in_phases([PhaseName::Running]))?, self.scope)
            }
            (ids, scope) => {
                let views: Vec<PodView> = ids.iter().map(|id| engine.status(*id)).collect::<Result<_, _>>()?;
                self.sampler.sample(&views, scope)
            }
        };
        let (mut rates, mut latest) = (HashMap::new(), HashMap::new());
        for sample in &samples {
            let mut add = |name: String, started: Timestamp, usage: &ResourceUsage| {
                let Some(cpu) = usage.cpu else { return };
                let key = (sample.id, name);
                let (since, spent) = self.before.get(&key).copied().unwrap_or((started, 0));
                let elapsed = sample.sampled.since(since).as_secs_f64();
                if elapsed > 0.0 {
                    // A counter that has decreased is that of another start.
                    let used = Duration::from_nanos(cpu.total_ns.saturating_sub(spent)).as_secs_f64();
                    rates.insert(key.clone(), 100.0 * used / elapsed);
                }
                latest.insert(key, (sample.sampled, cpu.total_ns));
            };
            add(String::new(), sample.started, &sample.usage);
            for app in &sample.apps {
                add(app.name.to_string(), app.started, &app.usage);
            }
        }
        self.before = latest;
        Ok((samples, CpuRates(rates)))
    }
}

/// A line of the table.
pub(crate) struct StatsRow<'a> {
    sample: &'a PodStats,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) app: String,
    pub(crate) cpu: Option<f64>,
    pub(crate) usage: &'a ResourceUsage,
    /// Of the pod; apps share its network.
    is_pod: bool,
}

/// One line per pod, and with `apps` one per app below it.
pub(crate) fn stats_rows<'a>(samples: &'a [PodStats], rates: &CpuRates, apps: bool, full: bool) -> Vec<StatsRow<'a>> {
    let mut rows = Vec::new();
    for sample in samples {
        let id = if full { sample.id.to_string() } else { sample.id.short() };
        let name = sample.name.as_ref().map(ToString::to_string).unwrap_or_default();
        let shown = if apps { &sample.apps[..] } else { &[] };
        rows.push(StatsRow {
            sample,
            id: id.clone(),
            name: name.clone(),
            app: String::new(),
            cpu: rates.pod(sample),
            usage: &sample.usage,
            is_pod: true,
        });
        rows.extend(shown.iter().map(|app| StatsRow {
            sample,
            id: id.clone(),
            name: name.clone(),
            app: app.name.to_string(),
            cpu: rates.app(sample, app),
            usage: &app.usage,
            is_pod: false,
        }));
    }
    rows
}

/// The table of these lines.
pub(crate) fn stats_table(rows: &[StatsRow<'_>]) -> Table {
    let mut table =
        Table::new(&["UUID", "NAME", "APP", "CPU %", "MEMORY", "LIMIT", "MEM %", "NET I/O", "BLOCK I/O", "PIDS"])
            .cutting(&[1, 2]);
    for row in rows {
        let (usage, limit) = row.memory();
        table.row([
            row.id.clone(),
            row.name.clone(),
            row.app.clone(),
            row.cpu_percent(),
            usage,
            limit,
            row.memory_percent(),
            row.network(),
            row.block(),
            row.pids(),
        ]);
    }
    table
}

/// The cell of a counter that the host does not have, or that is not an app's own.
pub(crate) const NO_VALUE: &str = "-";

impl StatsRow<'_> {
    pub(crate) fn cpu_percent(&self) -> String {
        self.cpu.map_or_else(|| NO_VALUE.to_owned(), |percent| format!("{percent:.1}%"))
    }

    pub(crate) fn memory(&self) -> (String, String) {
        let memory = self.usage.memory;
        let shown = |bytes: Option<u64>| bytes.map_or_else(|| NO_VALUE.to_owned(), size::human);
        (shown(memory.map(|memory| memory.working_set)), shown(memory.and_then(|memory| memory.limit)))
    }

    pub(crate) fn memory_percent(&self) -> String {
        let share = self.usage.memory.and_then(|memory| {
            let limit = memory.limit.filter(|limit| *limit > 0)?;
            // Tenths of a percent, rounded.
            Some((u128::from(memory.working_set) * 1000 + u128::from(limit) / 2) / u128::from(limit))
        });
        share.map_or_else(|| NO_VALUE.to_owned(), |tenths| format!("{}.{}%", tenths / 10, tenths % 10))
    }

    pub(crate) fn network(&self) -> String {
        if !self.is_pod || self.sample.interfaces.is_empty() {
            return NO_VALUE.to_owned();
        }
        let (received, sent) = self.sample.network_bytes();
        format!("{} / {}", size::human(received), size::human(sent))
    }

    pub(crate) fn block(&self) -> String {
        if self.usage.io.is_none() {
            return NO_VALUE.to_owned();
        }
        let (read, written) = self.usage.io_bytes();
        format!("{} / {}", size::human(read), size::human(written))
    }

    pub(crate) fn pids(&self) -> String {
        self.usage.pids.map_or_else(|| NO_VALUE.to_owned(), |pids| pids.current.to_string())
    }
}

impl TemplateItem for StatsRow<'_> {
    fn field(&self, number: usize) -> String {
        match number {
            0 => self.id.clone(),
            1 => self.name.clone(),
            2 => self.app.clone(),
            3 => self.cpu_percent(),
            4 => {
                let (usage, limit) = self.memory();
                format!("{usage} / {limit}")
            }
            5 => self.memory_percent(),
            6 => self.network(),
            7 => self.block(),
            _ => self.pids(),
        }
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer(out, &PodStatsJson::from_sample(self.sample, self.cpu.filter(|_| self.is_pod)))?;
        Ok(())
    }
}

/// A sample in JSON.
#[derive(Serialize)]
struct PodStatsJson<'a> {
    id: DisplayJson<PodId>,
    name: Option<String>,
    sampled_at: TimeJson,
    cpu_percent: Option<f64>,
    #[serde(flatten)]
    usage: &'a ResourceUsage,
    interfaces: &'a [InterfaceUsage],
    apps: &'a [AppStats],
}

impl<'a> PodStatsJson<'a> {
    fn from_sample(sample: &'a PodStats, cpu_percent: Option<f64>) -> Self {
        Self {
            id: DisplayJson(sample.id),
            name: sample.name.as_ref().map(ToString::to_string),
            sampled_at: TimeJson(sample.sampled),
            cpu_percent,
            usage: &sample.usage,
            interfaces: &sample.interfaces,
            apps: &sample.apps,
        }
    }
}
