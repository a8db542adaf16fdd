//! A pod in front of the user: its output as it comes, signals and the keyboard on their way in, its exit code.
//!
//! The output is read from the apps' log files by the thread that called; one thread waits for signals; one more
//! feeds stdin when an app wants it. They end with the process.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use gantry_engine::{Engine, LogQuery, Options};
use gantry_model::{AppName, Phase, PodId, Was};
use signal_hook::consts::SIGWINCH;

use crate::failure::{CliError, Failure, logs};
use crate::printer::Printer;
use crate::signals::{ENDING, Signals};
use crate::terminal::{self, DetachKeys, RawMode};
use crate::{exit, relay};

/// The pod, and how it is shown.
pub(crate) struct Shown {
    pub(crate) id: PodId,
    /// How many apps it has: with more than one, lines say whose they are.
    pub(crate) apps: usize,
    /// The app that has a terminal or takes stdin.
    pub(crate) interactive: Option<Interactive>,
    /// Whether it is ours: what asks us to end, ends it.
    pub(crate) own: bool,
}

/// An app that the user talks to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interactive {
    pub(crate) app: AppName,
    pub(crate) stdin: bool,
    pub(crate) terminal: bool,
}

/// The apps of a manifest (as `Engine::manifest` gives it): how many, and those that take input.
pub(crate) fn of_manifest(manifest: &serde_json::Value) -> (usize, Vec<Interactive>) {
    let apps = manifest["apps"].as_array().map_or(&[][..], Vec::as_slice);
    let interactive = apps.iter().filter_map(|app| {
        let is = |key: &str| app[key].as_bool().unwrap_or(false);
        let interactive =
            Interactive { app: app["name"].as_str()?.parse().ok()?, stdin: is("stdin"), terminal: is("terminal") };
        (interactive.stdin || interactive.terminal).then_some(interactive)
    });
    (apps.len(), interactive.collect())
}

/// Catches what asks a program to end, and changes of the window's size.
///
/// # Errors
/// No descriptors left.
pub(crate) fn catch() -> io::Result<Signals> {
    Signals::catch(&[ENDING[0], ENDING[1], ENDING[2], SIGWINCH])
}

/// Shows a pod until it has ended, and returns its exit code.
///
/// # Errors
/// When the pod is ours, it has been asked to stop by then.
pub(crate) fn follow(engine: &Engine, shown: &Shown, signals: Option<Signals>) -> Result<u8, Failure> {
    let outcome = attached(engine, shown, signals);
    terminal::restore();
    if outcome.is_err() && shown.own {
        // The first failure is the one that is told; should this fail too, the pod shows in `gantry list`.
        let _ = engine.stop(shown.id, engine.options().stop_grace, false);
    }
    outcome
}

fn attached(engine: &Engine, shown: &Shown, signals: Option<Signals>) -> Result<u8, Failure> {
    let channel = match &shown.interactive {
        Some(interactive) => attach(engine, shown.id, interactive)?,
        None => None,
    };
    let keyboard = shown.interactive.as_ref().is_some_and(|interactive| interactive.stdin && interactive.terminal);
    let raw = if keyboard && channel.is_some() { raw_mode()? } else { None };
    let has_terminal = shown.interactive.as_ref().is_some_and(|interactive| interactive.terminal);
    let master = match &channel {
        Some(channel) if has_terminal => {
            terminal::resize(channel);
            Some(channel.try_clone().map_err(crate::failure::io("duplicate", "the terminal of the app"))?)
        }
        _ => None,
    };
    if let Some(signals) = signals {
        let watch = Watch { options: engine.options().clone(), id: shown.id, master, own: shown.own };
        thread("signals", move || watch.run(&signals))?;
    }
    if let (Some(channel), Some(interactive)) = (channel, &shown.interactive)
        && interactive.stdin
    {
        let (id, raw, terminal) = (shown.id, raw.is_some(), interactive.terminal);
        thread("stdin", move || feed(&channel, id, raw, terminal))?;
    }
    print_output(engine, shown)?;
    let code = end(engine, shown.id)?;
    drop(raw);
    Ok(code)
}

fn thread(name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(run);
    spawned.map(drop).map_err(crate::failure::io("start a thread for", name))
}

fn raw_mode() -> Result<Option<RawMode>, Failure> {
    RawMode::enter().map_err(crate::failure::io("make raw", "the terminal"))
}

/// The other end of the app's stdin; `None` when the pod was faster and has ended.
fn attach(engine: &Engine, id: PodId, interactive: &Interactive) -> Result<Option<OwnedFd>, Failure> {
    match engine.attach(id, Some(&interactive.app)) {
        Ok(channel) => Ok(Some(channel)),
        Err(error) => match engine.wait(id, Some(Duration::ZERO))? {
            Some(_) => Ok(None),
            None if app_has_ended(engine, id, &interactive.app)? => Ok(None),
            None => Err(error.into()),
        },
    }
}

fn app_has_ended(engine: &Engine, id: PodId, app: &AppName) -> Result<bool, Failure> {
    let view = engine.status(id)?;
    let state = view.row.apps.iter().find(|row| row.name == *app).map(|row| row.state);
    Ok(matches!(state, Some(gantry_model::AppState::Exited { .. })))
}

/// Waits for the end of the pod and says its exit code.
pub(crate) fn end(engine: &Engine, id: PodId) -> Result<u8, Failure> {
    let view = engine.wait(id, None)?;
    match view.map(|view| view.row.phase) {
        Some(Phase::Exited { end, .. } | Phase::Garbage { was: Was::Exited { end, .. }, .. }) => {
            Ok(exit::of_app(end.exit_code))
        }
        Some(phase) => {
            Err(CliError::Refused(format!("pod {id} was waited for and is {}: it never ran", phase.name())).into())
        }
        None => Err(CliError::Refused(format!("pod {id} is gone: its exit code is not known")).into()),
    }
}

/// What happens when signals come.
struct Watch {
    options: Options,
    id: PodId,
    master: Option<OwnedFd>,
    own: bool,
}

impl Watch {
    fn run(self, signals: &Signals) {
        let mut asked = false;
        loop {
            for signal in signals.wait() {
                if signal == SIGWINCH {
                    if let Some(master) = &self.master {
                        terminal::resize(master);
                    }
                } else if self.own {
                    // The second one means it.
                    self.stop(asked);
                    asked = true;
                } else {
                    terminal::restore();
                    std::process::exit(exit::of_signal(signal).into());
                }
            }
        }
    }

    /// Stops the pod from a thread of its own, so that the next signal is heard.
    fn stop(&self, force: bool) {
        let (options, id) = (self.options.clone(), self.id);
        let started = thread("stop", move || {
            let grace = options.stop_grace;
            let stopped = Engine::open(options).map_err(Failure::from);
            if let Err(failure) = stopped.and_then(|engine| Ok(engine.stop(id, grace, force).map(drop)?)) {
                failure.print(false);
            }
        });
        if let Err(failure) = started {
            failure.print(false);
        }
    }
}

/// The end of input on a terminal.
const CTRL_D: u8 = 0x04;

/// Feeds our stdin to the app until it ends or nobody wants it any more.
fn feed(channel: &OwnedFd, id: PodId, raw: bool, terminal: bool) {
    let mut keys = DetachKeys::default();
    let mut chunk = vec![0; 64 << 10];
    loop {
        let count = match rustix::io::read(rustix::stdio::stdin(), &mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::AGAIN) => {
                let stdin = rustix::stdio::stdin();
                let mut fds = [rustix::event::PollFd::from_borrowed_fd(stdin, rustix::event::PollFlags::IN)];
                // Looked at again either way.
                let _ = rustix::event::poll(&mut fds, None);
                continue;
            }
            // Our terminal has hung up: the end of input.
            Err(_) => break,
        };
        let (passed, detach) = if raw { keys.pass(&chunk[..count]) } else { (chunk[..count].to_vec(), false) };
        if relay::write_all(channel.as_fd(), &passed).is_err() {
            // The app takes no more input.
            return;
        }
        if detach {
            terminal::restore();
            // Nowhere to tell that standard error is gone.
            let _ = writeln!(io::stderr(), "gantry: detached from pod {id}, which runs on");
            std::process::exit(exit::OK.into());
        }
    }
    if terminal {
        // A terminal has no end that could be closed; this is how one is typed. The app may be gone: then so is this.
        let _ = relay::write_all(channel.as_fd(), &[CTRL_D]);
    }
    // For a pipe, dropping the channel is the app's end of file.
}

/// Prints what the apps write until the pod has ended.
fn print_output(engine: &Engine, shown: &Shown) -> Result<(), Failure> {
    // Whoever attaches sees what comes from now on; whoever runs a pod sees all of it.
    let tail = if shown.own { None } else { Some(0) };
    let query = LogQuery { follow: true, tail, ..LogQuery::default() };
    engine.logs(shown.id, &query, &mut Printer::new(shown.apps > 1)).map_err(logs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_say_who_takes_input() {
        let app = |name: &str| gantry_model::AppSpec::new(name.parse().unwrap(), "x".into());
        let mut spec = gantry_model::PodSpec { apps: vec![app("a"), app("b")], ..gantry_model::PodSpec::default() };
        assert_eq!(of_manifest(&gantry_engine::manifest::to_value(&spec)), (2, Vec::new()));
        spec.apps[1].terminal = true;
        let b = Interactive { app: "b".parse().unwrap(), stdin: false, terminal: true };
        assert_eq!(of_manifest(&gantry_engine::manifest::to_value(&spec)), (2, vec![b]));
        assert_eq!(of_manifest(&serde_json::Value::Null), (0, Vec::new()));
    }
}
