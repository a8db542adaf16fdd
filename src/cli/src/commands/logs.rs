//! `gantry logs`.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

use gantry_engine::{LogLine, LogQuery};
use gantry_model::AppName;

use crate::context::{self, Context};
use crate::exit;
use crate::failure::{Failure, output};
use crate::foreground::Printer;
use crate::render::time;

/// Arguments of `logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// Id of a pod, or the beginning of it
    #[arg(value_name = "POD")]
    pod: String,
    /// Go on with what comes, until the pod has ended
    #[arg(short, long)]
    follow: bool,
    /// Only the last lines
    #[arg(short = 'n', long, alias = "lines", value_name = "N")]
    tail: Option<usize>,
    /// Only from this time on: RFC 3339, seconds of the epoch, or a duration ago such as 10m
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only up to this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only of these apps
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    app: Vec<AppName>,
    /// Put the time before every line
    #[arg(short, long)]
    timestamps: bool,
}

/// Shows what apps have written: standard output to ours, standard error to ours.
pub(crate) fn logs(context: &Context, args: &Logs) -> Result<u8, Failure> {
    let now = gantry_engine::now();
    let at = |text: &Option<String>| text.as_deref().map(|text| time::parse(text, now)).transpose();
    let query = LogQuery {
        apps: args.app.clone(),
        since: at(&args.since).map_err(Failure::usage)?,
        until: at(&args.until).map_err(Failure::usage)?,
        tail: args.tail,
        follow: args.follow,
    };
    let engine = context.look()?;
    let id = context::pod(&engine, &args.pod)?;
    let apps = engine.status(id)?.row.apps.len();
    let mut sink = Sink::new(apps > 1 && args.app.len() != 1, args.timestamps, args.follow);
    let mut failed = None;
    engine.logs(id, &query, &mut |line| match sink.take(&line) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) => {
            failed = Some(error);
            Ok(ControlFlow::Break(()))
        }
    })?;
    match failed.map_or_else(|| sink.out.flush(), Err) {
        Ok(()) => Ok(exit::OK),
        Err(error) => Err(output(error)),
    }
}

/// Where lines go: buffered, unless somebody watches them come.
struct Sink {
    out: BufWriter<io::StdoutLock<'static>>,
    printer: Printer,
    timestamps: bool,
    follow: bool,
    /// Whether the last piece of each stream ended its line.
    whole: [bool; 2],
}

impl Sink {
    fn new(prefixed: bool, timestamps: bool, follow: bool) -> Self {
        let out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        Self { out, printer: Printer::new(prefixed), timestamps, follow, whole: [true; 2] }
    }

    fn take(&mut self, line: &LogLine) -> io::Result<()> {
        let stamped;
        let whole = &mut self.whole[usize::from(line.stderr)];
        let line = if self.timestamps && *whole {
            let mut text = format!("{} ", line.at.rfc3339()).into_bytes();
            text.extend(&line.text);
            stamped = LogLine { text, ..line.clone() };
            &stamped
        } else {
            line
        };
        *whole = !line.partial;
        let bytes = self.printer.compose(line);
        if line.stderr {
            // In the order in which they were written, where both go to one place.
            self.out.flush()?;
            return io::stderr().write_all(bytes);
        }
        self.out.write_all(bytes)?;
        if self.follow { self.out.flush() } else { Ok(()) }
    }
}
