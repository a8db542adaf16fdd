//! `gantry top`: the processes of a pod, or a live view of all pods.

mod keys;
mod live;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use gantry_engine::{ProcessInfo, list_processes};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{Failure, io as io_failure};
use crate::pods;
use crate::render::table::{Table, terminal_width};
use crate::render::{FormatParser, OutputFormat, json, size};

/// Minimum time between two samples of the live view.
const MIN_DELAY: Duration = Duration::from_millis(100);

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without a pod: a live view of all running pods on the terminal. Keys: q quits, h shows all keys, \
    P, M, N and T sort by CPU, memory, name and CPU time, r reverses the order, i hides idle pods, a shows apps."
)]
pub(crate) struct Top {
    /// Pod: its id, its name, a unique prefix of the id, the name of an app, or the host name [default: a live view of
    /// all running pods]
    #[arg(value_name = "POD")]
    pod: Option<String>,
    /// Time between two samples of the live view [default: 2s]
    #[arg(
        short = 'd', long, alias = "interval", value_parser = crate::commands::stop::parse_duration,
        value_name = "DURATION", conflicts_with = "pod"
    )]
    delay: Option<Duration>,
    /// Omit the header line of the processes
    #[arg(long, alias = "no-headers", alias = "noheading", requires = "pod")]
    no_legend: bool,
    /// Full command lines, and full ids in the live view
    #[arg(long, visible_alias = "no-trunc")]
    full: bool,
    /// Output format of the processes
    #[arg(
        short = 'o',
        long = "output",
        alias = "format",
        value_parser = FormatParser,
        default_value = "table",
        value_name = "FORMAT",
        requires = "pod"
    )]
    output: OutputFormat,
}

/// The default time between two samples.
const DEFAULT_DELAY: Duration = Duration::from_secs(2);

/// Lists the processes of a pod, or shows all pods.
impl RunCommand for Top {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let Some(pod) = &self.pod else {
            if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
                return Err(live::not_a_terminal());
            }
            let delay = self.delay.unwrap_or(DEFAULT_DELAY).max(MIN_DELAY);
            return live::show(context, delay, self.full);
        };
        let engine = context.open_to_read()?;
        let view = engine.status(pods::find(&engine, pod)?)?;
        let processes =
            list_processes(&view).map_err(io_failure("list the processes of pod", view.row.id.to_string()))?;
        json::to_stdout(|out| match self.output {
            OutputFormat::Table => {
                let width = terminal_width().filter(|_| !self.full);
                process_table(processes).write_within(out, !self.no_legend, width)
            }
            format => json::write_items(out, format, processes.iter().map(ProcessJson::from)),
        })?;
        Ok(ExitStatus::OK)
    }
}

/// A process as JSON. The field names are stable.
#[derive(Serialize)]
struct ProcessJson<'a> {
    app: &'a str,
    pid: u32,
    parent_pid: u32,
    user: u32,
    /// The letter of proc_pid_stat(5).
    state: char,
    threads: u64,
    cpu_ms: u64,
    /// Bytes.
    rss: u64,
    command: &'a str,
}

impl<'a> From<&'a ProcessInfo> for ProcessJson<'a> {
    fn from(process: &'a ProcessInfo) -> Self {
        let ProcessInfo { app, pid, parent, user, state, threads, cpu_ms, rss, command } = process;
        Self {
            app: app.as_str(),
            pid: *pid,
            parent_pid: *parent,
            user: *user,
            state: *state,
            threads: *threads,
            cpu_ms: *cpu_ms,
            rss: *rss,
            command,
        }
    }
}

fn process_table(processes: Vec<ProcessInfo>) -> Table {
    let mut table = Table::new(&["APP", "PID", "PPID", "UID", "S", "THREADS", "TIME", "RSS", "COMMAND"]).cutting(&[8]);
    for process in processes {
        table.row([
            process.app.to_string(),
            process.pid.to_string(),
            process.parent.to_string(),
            process.user.to_string(),
            process.state.to_string(),
            process.threads.to_string(),
            cpu_time(process.cpu_ms),
            size::human(process.rss),
            process.command,
        ]);
    }
    table
}

/// `MINUTES:SECONDS.HUNDREDTHS`, as in top(1).
fn cpu_time(milliseconds: u64) -> String {
    let (seconds, hundredths) = (milliseconds / 1000, milliseconds % 1000 / 10);
    format!("{}:{:02}.{hundredths:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    #[test]
    fn cpu_times_are_formatted() {
        for (milliseconds, want) in [(0, "0:00.00"), (1230, "0:01.23"), (3_600_050, "60:00.05")] {
            assert_eq!(super::cpu_time(milliseconds), want);
        }
    }
}
