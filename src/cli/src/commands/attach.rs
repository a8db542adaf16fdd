//! `gantry attach`.

use gantry_engine::PodView;
use gantry_model::{AppName, AppState, Phase};

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::ExitStatus;
use crate::failure::{CliError, Failure, io};
use crate::foreground::{self, ForegroundPod, Interactive, LivePod, SignalProxy};
use crate::pods::OnePod;
use crate::terminal::DetachKeys;

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    pod: OnePod,
    /// The app; required if several take input
    #[arg(long)]
    app: Option<AppName>,
    /// Show output only
    #[arg(long)]
    no_stdin: bool,
    /// Key sequence to detach from a terminal; empty: none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    detach_keys: DetachKeys,
}

/// Prints the output of the pod from now on, forwards standard input to the app, and exits with the pod's code.
impl RunCommand for Attach {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("attach")?;
        let (id, app) = self.pod.only_app(&engine, self.app.as_ref())?;
        let (in_manifest, interactive) = foreground::manifest_apps(&engine.manifest(id)?);
        check_attachable(&engine.status(id)?, app.as_ref())?;
        let wanted = |candidate: &Interactive| app.as_ref().is_none_or(|name| candidate.app == *name);
        let interactive = interactive.into_iter().find(wanted).filter(|_| !self.no_stdin);
        let (signals, detach_keys) = (SignalProxy::Off, self.detach_keys.clone());
        // Without a terminal there is no mode to restore, so the default action of signals is right.
        let has_terminal = interactive.as_ref().is_some_and(|interactive| interactive.terminal);
        let caught = match has_terminal {
            true => Some(foreground::catch(signals).map_err(io("catch", "signals"))?),
            false => None,
        };
        let live = LivePod { end: engine.watch_end(id)?, output: engine.output(id)? };
        // After apps were added and removed, their numbers are not their places. An older supervisor does not know
        // them, and one that has just ended cannot be asked.
        let apps = engine.output_apps(id).ok().flatten().unwrap_or(in_manifest);
        let shown = ForegroundPod { id, apps, interactive, own: false, signals, detach_keys };
        foreground::follow(&engine, &shown, live, caught)
    }
}

/// Refuses pods and apps that are not running.
fn check_attachable(pod: &PodView, app: Option<&AppName>) -> Result<(), Failure> {
    let id = pod.row.id;
    let refused = |why: String| Err(CliError::Refused(why).into());
    if let Some(code) = pod.exit_code() {
        return refused(format!("pod {id} has exited with code {code}: 'gantry logs {id}' shows its output"));
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
                "app '{name}' of pod {id} has exited with code {code}: 'gantry logs --app={name} {id}' shows its output"
            ))
        }
        Some(state @ (AppState::Creating | AppState::Created)) => {
            let state = state.name();
            refused(format!("app '{name}' of pod {id} is {state}: only a running app can be attached to"))
        }
        Some(AppState::Waiting | AppState::Started { .. }) => Ok(()),
    }
}
