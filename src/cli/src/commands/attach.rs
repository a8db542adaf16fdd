//! `gantry attach`.

use gantry_model::AppName;

use crate::context::{self, Context};
use crate::failure::{CliError, Failure, io};
use crate::foreground::{self, Interactive, Shown};

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub(crate) struct Attach {
    /// Id of a running pod, or the beginning of it
    #[arg(value_name = "POD")]
    pod: String,
    /// The app; needed when several take input
    #[arg(long)]
    app: Option<AppName>,
    /// Show output only
    #[arg(long)]
    no_stdin: bool,
}

/// Shows what the pod writes from now on, feeds the app's stdin, and ends with the pod's code.
pub(crate) fn attach(context: &Context, args: &Attach) -> Result<u8, Failure> {
    let engine = context.open("attach")?;
    let id = context::pod(&engine, &args.pod)?;
    let (apps, takers) = foreground::of_manifest(&engine.manifest(id)?);
    if let Some(name) = &args.app
        && !engine.status(id)?.row.apps.iter().any(|app| app.name == *name)
    {
        return Err(CliError::Refused(format!("pod {id} has no app '{name}'")).into());
    }
    let wanted = |taker: &Interactive| args.app.as_ref().is_none_or(|name| taker.app == *name);
    let interactive = takers.into_iter().find(wanted).filter(|_| !args.no_stdin);
    let shown = Shown { id, apps, interactive, own: false };
    // Without a terminal of the app's there is nothing to put back, and the default end is the right one.
    let has_terminal = shown.interactive.as_ref().is_some_and(|interactive| interactive.terminal);
    let signals = if has_terminal { Some(foreground::catch().map_err(io("catch", "signals"))?) } else { None };
    foreground::follow(&engine, &shown, signals)
}
