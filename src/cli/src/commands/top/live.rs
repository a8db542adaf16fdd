//! `gantry top` without a pod: the live view of all running pods.

use std::cmp::Ordering;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use gantry_engine::{CounterSelection, SampleScope};
use gantry_model::stats::{AppStats, PodStats, ResourceUsage};
use gantry_model::terminal::DEFAULT_SIZE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGCONT, SIGQUIT, SIGWINCH};

use super::cpu_time;
use super::keys::{KeyReader, TopKey};
use crate::commands::stats::{CpuRates, NO_VALUE, Sampling, StatsRow, stats_rows};
use crate::context::Context;
use crate::exit::ExitStatus;
use crate::failure::{Failure, io as io_failure, output};
use crate::relay;
use crate::render::size;
use crate::render::table::Table;
use crate::signals::{ENDING, Signals};
use crate::terminal::{self, FullScreen};

/// Lines above the rows: the summary, the state of the view, an empty line and the header.
const HEAD_LINES: usize = 4;
/// A pod that uses less of a processor is idle: it is shown as 0.0 %.
const MIN_BUSY_PERCENT: f64 = 0.05;

const HELP: [&str; 13] = [
    "Keys:",
    "  P  sort by CPU            M  sort by memory",
    "  N  sort by name           T  sort by CPU time",
    "  r  reverse the order      i  hide idle pods",
    "  a  show apps              Space  refresh now",
    "  arrows, Page, Home, End   scroll",
    "  h  this help              q  quit",
    "",
    "CPU % is of one processor: since the start of the pod in the first sample, then",
    "since the sample before. Memory is the working set, without the page cache that",
    "the kernel reclaims first.",
    "",
    "Press any key to return.",
];

/// The order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SortKey {
    Cpu,
    Memory,
    Name,
    Time,
}

impl SortKey {
    fn label(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Memory => "memory",
            Self::Name => "name",
            Self::Time => "CPU time",
        }
    }
}

/// The effect of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyAction {
    Redraw,
    Refresh,
    Suspend,
    Quit,
}

/// What the order of pods, and of the apps of a pod, depends on.
struct SortedRow<'a> {
    rate: Option<f64>,
    usage: &'a ResourceUsage,
    name: String,
}

impl<'a> SortedRow<'a> {
    fn of_pod(sample: &'a PodStats, rates: &CpuRates) -> Self {
        let name = sample.name.as_ref().map_or_else(|| sample.id.to_string(), ToString::to_string);
        Self { rate: rates.pod(sample), usage: &sample.usage, name }
    }

    fn of_app(sample: &PodStats, app: &'a AppStats, rates: &CpuRates) -> Self {
        Self { rate: rates.app(sample, app), usage: &app.usage, name: app.name.to_string() }
    }
}

/// The state of the view that keys change.
#[derive(Debug)]
struct LiveView {
    sort: SortKey,
    is_reversed: bool,
    hides_idle: bool,
    shows_apps: bool,
    shows_help: bool,
    full: bool,
    /// The first row that is shown.
    offset: usize,
}

impl LiveView {
    fn new(full: bool) -> Self {
        let (sort, offset) = (SortKey::Cpu, 0);
        Self { sort, is_reversed: false, hides_idle: false, shows_apps: false, shows_help: false, full, offset }
    }

    /// Applies a key; `page` is the number of rows on the screen.
    fn apply_key(&mut self, key: TopKey, page: usize) -> KeyAction {
        if self.shows_help && !matches!(key, TopKey::Control(_)) {
            self.shows_help = false;
            return KeyAction::Redraw;
        }
        match key {
            TopKey::Character('q' | 'Q') | TopKey::Control('c' | 'd') => return KeyAction::Quit,
            TopKey::Control('z') => return KeyAction::Suspend,
            TopKey::Character(' ' | '\n') => return KeyAction::Refresh,
            TopKey::Character('h' | '?') => self.shows_help = true,
            TopKey::Character('P') => self.sort_by(SortKey::Cpu),
            TopKey::Character('M') => self.sort_by(SortKey::Memory),
            TopKey::Character('N') => self.sort_by(SortKey::Name),
            TopKey::Character('T') => self.sort_by(SortKey::Time),
            TopKey::Character('r' | 'R') => self.is_reversed = !self.is_reversed,
            TopKey::Character('i') => self.hides_idle = !self.hides_idle,
            TopKey::Character('a') => self.shows_apps = !self.shows_apps,
            TopKey::Up => self.offset = self.offset.saturating_sub(1),
            TopKey::Down => self.offset = self.offset.saturating_add(1),
            TopKey::PageUp => self.offset = self.offset.saturating_sub(page),
            TopKey::PageDown => self.offset = self.offset.saturating_add(page),
            TopKey::Home => self.offset = 0,
            TopKey::End => self.offset = usize::MAX,
            TopKey::Character(_) | TopKey::Control(_) => {}
        }
        KeyAction::Redraw
    }

    fn sort_by(&mut self, sort: SortKey) {
        (self.sort, self.is_reversed, self.offset) = (sort, false, 0);
    }

    /// Sorts pods, and the apps of each pod: the largest first, names from A. Equal ones stay in the order of their
    /// creation.
    fn sort(&self, samples: &mut [PodStats], rates: &CpuRates) {
        samples.sort_by(|one, other| self.compare(&SortedRow::of_pod(one, rates), &SortedRow::of_pod(other, rates)));
        for sample in samples {
            let mut apps = std::mem::take(&mut sample.apps);
            apps.sort_by(|one, other| {
                let (one, other) = (SortedRow::of_app(sample, one, rates), SortedRow::of_app(sample, other, rates));
                self.compare(&one, &other)
            });
            sample.apps = apps;
        }
    }

    fn compare(&self, one: &SortedRow<'_>, other: &SortedRow<'_>) -> Ordering {
        let order = match self.sort {
            SortKey::Cpu => compare_rates(other.rate, one.rate),
            SortKey::Memory => working_set(other.usage).cmp(&working_set(one.usage)),
            SortKey::Name => one.name.cmp(&other.name),
            SortKey::Time => cpu_ns(other.usage).cmp(&cpu_ns(one.usage)),
        };
        if self.is_reversed { order.reverse() } else { order }
    }

    /// The lines of the screen, each at most as wide as it.
    fn lines(&mut self, samples: &mut [PodStats], rates: &CpuRates, (rows, columns): (usize, usize)) -> Vec<String> {
        if self.shows_help {
            return HELP.iter().map(|line| clip(line, columns)).take(rows).collect();
        }
        self.sort(samples, rates);
        let summary = summary(samples, rates);
        let order = if self.is_reversed { ", reversed" } else { "" };
        let filter = if self.hides_idle { "; without idle pods" } else { "" };
        let state = format!("Sorted by {}{order}{filter}. h: help, q: quit", self.sort.label());
        let shown = stats_rows(samples, rates, self.shows_apps, self.full);
        let is_shown = |row: &&StatsRow<'_>| !self.hides_idle || row.cpu.is_some_and(|cpu| cpu >= MIN_BUSY_PERCENT);
        let mut text = Vec::new();
        // Writing to a buffer does not fail.
        let _infallible = table(shown.iter().filter(is_shown)).write_within(&mut text, true, Some(columns));
        let text = String::from_utf8_lossy(&text);
        let mut body = text.lines();
        let header = body.next().unwrap_or_default();
        let body: Vec<&str> = body.collect();
        // The last page stays full.
        self.offset = self.offset.min(body.len().saturating_sub(page_rows(rows)));
        let head = [summary, state, String::new(), header.to_owned()];
        let lines = head.iter().map(String::as_str).chain(body.into_iter().skip(self.offset));
        lines.map(|line| clip(line, columns)).take(rows).collect()
    }
}

fn page_rows(rows: usize) -> usize {
    rows.saturating_sub(HEAD_LINES).max(1)
}

fn compare_rates(one: Option<f64>, other: Option<f64>) -> Ordering {
    one.unwrap_or(0.0).total_cmp(&other.unwrap_or(0.0))
}

fn working_set(usage: &ResourceUsage) -> u64 {
    usage.memory.map_or(0, |memory| memory.working_set)
}

fn cpu_ns(usage: &ResourceUsage) -> u64 {
    usage.cpu.map_or(0, |cpu| cpu.total_ns)
}

fn summary(samples: &[PodStats], rates: &CpuRates) -> String {
    let apps: usize = samples.iter().map(|sample| sample.apps.len()).sum();
    // The sum of no numbers is -0.0.
    let cpu = samples.iter().filter_map(|sample| rates.pod(sample)).fold(0.0, |sum, rate| sum + rate);
    let memory: u64 = samples.iter().map(|sample| working_set(&sample.usage)).sum();
    format!("{} pods, {apps} apps; CPU {cpu:.1}%, memory {}", samples.len(), size::human(memory))
}

fn table<'a>(rows: impl Iterator<Item = &'a StatsRow<'a>>) -> Table {
    let mut table =
        Table::new(&["UUID", "NAME", "APP", "CPU %", "TIME", "MEMORY", "MEM %", "NET I/O", "BLOCK I/O", "PIDS"])
            .cutting(&[1, 2]);
    for row in rows {
        let time = row.usage.cpu.map_or_else(|| NO_VALUE.to_owned(), |cpu| cpu_time(cpu.total_ns / 1_000_000));
        table.row([
            row.id.clone(),
            row.name.clone(),
            row.app.clone(),
            row.cpu_percent(),
            time,
            row.memory().0,
            row.memory_percent(),
            row.network(),
            row.block(),
            row.pids(),
        ]);
    }
    table
}

/// The beginning of a line that fits into this many columns.
fn clip(line: &str, columns: usize) -> String {
    line.chars().take(columns).collect()
}

/// Writes the lines over the old ones, so that nothing flickers (ECMA-48: CUP, EL, ED, SGR 7).
fn draw(lines: &[String], is_table: bool) -> io::Result<()> {
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let (on, off) = if is_table && at + 1 == HEAD_LINES { ("\x1b[7m", "\x1b[0m") } else { ("", "") };
        text.push_str(&format!("\x1b[{};1H{on}{line}{off}\x1b[K", at + 1));
    }
    match lines.len() {
        0 => text.push_str("\x1b[2J"),
        // Below the last line; on a full screen the cursor stays in it, and nothing is below.
        count => text.push_str(&format!("\x1b[{};1H", count + 1)),
    }
    let (rows, _) = screen_size();
    if lines.len() < rows {
        text.push_str("\x1b[J");
    }
    relay::write_all(rustix::stdio::stdout(), text.as_bytes())
}

/// Rows and columns of the screen.
fn screen_size() -> (usize, usize) {
    let (rows, columns) = terminal::rows_and_columns().unwrap_or(DEFAULT_SIZE);
    (rows.into(), columns.into())
}

/// Shows the view until a key or a signal ends it.
pub(super) fn show(context: &Context, delay: Duration, full: bool) -> Result<ExitStatus, Failure> {
    let mut engine = context.open_to_read()?;
    let caught = ENDING.into_iter().chain([SIGQUIT, SIGWINCH, SIGCONT]);
    // Before the screen changes, so that no signal can leave it changed.
    let mut signals = Signals::catch(caught).map_err(io_failure("catch", "signals"))?;
    let mut sampling = Sampling::start(Vec::new(), SampleScope::Apps, CounterSelection::Summary)?;
    let enter = || match FullScreen::enter().map_err(io_failure("change the mode of", "the terminal"))? {
        Some(screen) => Ok(screen),
        None => Err(not_a_terminal()),
    };
    let mut screen = enter()?;
    let (mut view, mut keys) = (LiveView::new(full), KeyReader::default());
    let (mut samples, mut rates) = sampling.take(&engine)?;
    let mut next = Instant::now() + delay;
    loop {
        let size = screen_size();
        let lines = view.lines(&mut samples, &rates, size);
        draw(&lines, !view.shows_help).map_err(output)?;
        let is_readable = wait(&signals, next).map_err(io_failure("wait for", "the terminal"))?;
        for signal in signals.pending() {
            match signal {
                // The next round draws for the new size.
                SIGWINCH => {}
                // Another process may have changed the terminal meanwhile.
                SIGCONT => {
                    drop(screen);
                    screen = enter()?;
                }
                ending => {
                    drop(screen);
                    return Ok(ExitStatus::of_signal(ending));
                }
            }
        }
        let mut is_due = Instant::now() >= next;
        if is_readable {
            let mut bytes = [0; 256];
            let count = rustix::io::read(rustix::stdio::stdin(), &mut bytes).unwrap_or(0);
            if count == 0 {
                // The terminal has hung up.
                return Ok(ExitStatus::OK);
            }
            for key in keys.read(bytes.get(..count).unwrap_or_default()) {
                match view.apply_key(key, page_rows(size.0)) {
                    KeyAction::Redraw => {}
                    KeyAction::Refresh => is_due = true,
                    KeyAction::Quit => return Ok(ExitStatus::OK),
                    KeyAction::Suspend => {
                        drop(screen);
                        // SIGCONT continues here.
                        kill_process(getpid(), Signal::STOP).map_err(io_failure("suspend", "this process"))?;
                        screen = enter()?;
                    }
                }
            }
        }
        if is_due {
            context.reopen_if_replaced(&mut engine)?;
            (samples, rates) = sampling.take(&engine)?;
            next = Instant::now() + delay;
        }
    }
}

/// The view needs a terminal for its keys and its screen.
pub(super) fn not_a_terminal() -> Failure {
    Failure::usage("the live view needs a terminal: 'gantry stats' prints samples, 'gantry top POD' lists processes")
}

/// Waits for a key or a signal until this time; returns whether standard input is readable.
fn wait(signals: &Signals, until: Instant) -> io::Result<bool> {
    let stdin = rustix::stdio::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    let left = until.saturating_duration_since(Instant::now());
    let timeout =
        Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(left.subsec_nanos()) };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => Ok(fds.first().is_some_and(|fd| !fd.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pods_use_no_processor() {
        assert_eq!(summary(&[], &CpuRates::default()), "0 pods, 0 apps; CPU 0.0%, memory 0B");
    }

    #[test]
    fn keys_change_the_view() {
        let mut view = LiveView::new(false);
        for (key, want) in [
            ('M', (SortKey::Memory, false)),
            ('r', (SortKey::Memory, true)),
            ('N', (SortKey::Name, false)),
            ('T', (SortKey::Time, false)),
            ('P', (SortKey::Cpu, false)),
        ] {
            assert_eq!(view.apply_key(TopKey::Character(key), 10), KeyAction::Redraw);
            assert_eq!((view.sort, view.is_reversed), want, "{key}");
        }
        for (key, want) in [(TopKey::PageDown, 10), (TopKey::Down, 11), (TopKey::PageUp, 1), (TopKey::Home, 0)] {
            view.apply_key(key, 10);
            assert_eq!(view.offset, want, "{key:?}");
        }
        // Any key leaves the help, also one that would quit.
        view.apply_key(TopKey::Character('h'), 10);
        assert_eq!(view.apply_key(TopKey::Character('q'), 10), KeyAction::Redraw);
        assert!(!view.shows_help);
        for (key, want) in [
            (TopKey::Character('q'), KeyAction::Quit),
            (TopKey::Control('c'), KeyAction::Quit),
            (TopKey::Control('z'), KeyAction::Suspend),
            (TopKey::Character(' '), KeyAction::Refresh),
        ] {
            assert_eq!(view.apply_key(key, 10), want);
        }
    }
}
