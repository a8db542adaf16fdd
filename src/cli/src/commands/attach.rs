//! `gantry attach`.

use gantry_engine::PodView;
use gantry_model::{AppName, AppState, Phase};

use crate::context::Context;
use crate::failure::{CliError, Failure, io};
use crate::foreground::{self, Interactive, Live, Shown, SignalProxy};
use crate::pods::OnePod;
use crate::terminal::DetachKeys;

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    pod: OnePod,
    /// The app; needed when several take input
    #[arg(long)]
    app: Option<AppName>,
    /// Show output only
    #[arg(long)]
    no_stdin: bool,
    /// Keys that leave an app that has a terminal; empty: none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    detach_keys: DetachKeys,
}

/// Shows what the pod writes from now on, feeds the app's stdin, and ends with the pod's code.
pub(crate) fn attach(context: &Context, args: &Attach) -> Result<u8, Failure> {
    let engine = context.open("attach")?;
    let id = args.pod.only(&engine)?;
    let (apps, takers) = foreground::of_manifest(&engine.manifest(id)?);
    check(&engine.status(id)?, args.app.as_ref())?;
    let wanted = |taker: &Interactive| args.app.as_ref().is_none_or(|name| taker.app == *name);
    let interactive = takers.into_iter().find(wanted).filter(|_| !args.no_stdin);
    let (signals, detach_keys) = (SignalProxy::Off, args.detach_keys.clone());
    let shown = Shown { id, apps, interactive, own: false, signals, detach_keys };
    // Without a terminal of the app's there is nothing to put back, and the default end is the right one.
    let has_terminal = shown.interactive.as_ref().is_some_and(|interactive| interactive.terminal);
    let signals = match has_terminal {
        true => Some(foreground::catch(signals).map_err(io("catch", "signals"))?),
        false => None,
    };
    let live = Live { end: engine.watch_end(id)?, output: engine.output(id)? };
    foreground::follow(&engine, &shown, live, signals)
}

/// Whether there is something to attach to.
fn check(pod: &PodView, app: Option<&AppName>) -> Result<(), Failure> {
    let id = pod.row.id;
    let refused = |why: String| Err(CliError::Refused(why).into());
    if let Some(code) = pod.exit_code() {
        return refused(format!("pod {id} has ended, with exit code {code}: 'gantry logs {id}' shows what it wrote"));
    }
    if !matches!(pod.row.phase, Phase::Running { .. }) {
        return refused(format!("pod {id} is {}: only a running pod can be attached to", pod.row.phase.name()));
    }
    let Some(name) = app else { return Ok(()) };
    match pod.row.apps.iter().find(|app| app.name == *name).map(|app| app.state) {
        None => refused(format!("pod {id} has no app '{name}'")),
        Some(AppState::Exited { end, .. }) => {
            let code = end.how.exit_code();
            refused(format!(
                "app '{name}' of pod {id} has ended, with exit code {code}: 'gantry logs --app={name} {id}' shows what it wrote"
            ))
        }
        Some(_) => Ok(()),
    }
}
