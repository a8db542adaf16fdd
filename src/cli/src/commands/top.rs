//! `gantry top`.

use gantry_engine::list_processes;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{self, CommandKind};
use crate::failure::{Failure, io};
use crate::pods;
use crate::render::table::{Table, terminal_width};
use crate::render::{json, size};

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Pod: its id, its name, a unique prefix of the id, the name of an app, or the host name
    #[arg(value_name = "POD")]
    pod: String,
    /// Omit the header line
    #[arg(long, alias = "no-headers", alias = "noheading")]
    no_legend: bool,
    /// Full command lines
    #[arg(long, visible_alias = "no-trunc")]
    full: bool,
}

/// Lists the processes of a pod.
impl RunCommand for Top {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<u8, Failure> {
        let engine = context.open_to_read()?;
        let view = engine.status(pods::find(&engine, &self.pod)?)?;
        let processes = list_processes(&view).map_err(io("list the processes of pod", view.row.id.to_string()))?;
        let mut table =
            Table::new(&["APP", "PID", "PPID", "UID", "S", "THREADS", "TIME", "RSS", "COMMAND"]).cutting(&[8]);
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
        let width = terminal_width().filter(|_| !self.full);
        json::to_stdout(|out| table.write_within(out, !self.no_legend, width))?;
        Ok(exit::OK)
    }
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
