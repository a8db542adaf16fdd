//! Runs a pod in the foreground: prints its output, forwards signals and standard input, and returns its exit code.
//!
//! The calling thread prints the output, which it reads from the supervisor; an app that writes faster blocks. One
//! thread waits for signals, and another forwards standard input if an app takes it. Both end with the process.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gantry_engine::{EndWatch, Ended, Engine, KillError, LogQuery, Options, OutputError, OutputStream, PodError, Show};
use gantry_model::{AppName, ErrorKind, Kind as _, PodId};
use signal_hook::consts::{SIGTERM, SIGWINCH};

use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{Failure, logs, print_stderr};
use crate::live_output::AppNames;
use crate::printer::Printer;
use crate::signals::{self, ENDING, Signals};
use crate::terminal::{self, DetachFilter, DetachKeys, RawMode};
use crate::{live_output, relay};

/// Signals within this time after the first are the same request to stop: timeout(1) signals its child, and then its
/// process group.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// After a requested stop, the time in which the rest of the output has to be read.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// A pod in the foreground.
pub(crate) struct ForegroundPod {
    pub(crate) id: PodId,
    /// Its apps by their numbers in the output. With several, each line of output begins with the app's name.
    pub(crate) apps: BTreeMap<usize, AppName>,
    /// The app that has a terminal or takes standard input.
    pub(crate) interactive: Option<Interactive>,
    /// Whether this command started the pod, and stops it if showing it fails.
    pub(crate) own: bool,
    /// Whether signals to this process are forwarded.
    pub(crate) signals: SignalProxy,
    /// The key sequence to detach.
    pub(crate) detach_keys: DetachKeys,
}

/// Whether signals to this process are forwarded to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalProxy {
    /// SIGINT, SIGTERM and SIGHUP stop the pod; others are sent to its apps.
    On,
    /// Signals have their default effect on this process.
    Off,
}

/// The output and the end of a running pod.
pub(crate) struct LivePod {
    /// `None`: the supervisor is from an older version that does not provide it; the logs are followed instead.
    pub(crate) output: Option<OutputStream>,
    pub(crate) end: EndWatch,
}

/// An app with a terminal or standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interactive {
    pub(crate) app: AppName,
    pub(crate) stdin: bool,
    pub(crate) terminal: bool,
}

/// The apps of a manifest as returned by [`Engine::manifest`]: all of them, by their places, and the interactive ones.
pub(crate) fn manifest_apps(manifest: &serde_json::Value) -> (BTreeMap<usize, AppName>, Vec<Interactive>) {
    let apps = manifest["apps"].as_array().map_or(&[][..], Vec::as_slice);
    let interactive = apps.iter().filter_map(|app| {
        let is = |key: &str| app[key].as_bool().unwrap_or(false);
        let interactive =
            Interactive { app: app["name"].as_str()?.parse().ok()?, stdin: is("stdin"), terminal: is("terminal") };
        (interactive.stdin || interactive.terminal).then_some(interactive)
    });
    let interactive = interactive.collect();
    let named = |(place, app): (usize, &serde_json::Value)| Some((place, app["name"].as_str()?.parse().ok()?));
    (apps.iter().enumerate().filter_map(named).collect(), interactive)
}

/// Requests the output, for the terminal of this process.
pub(crate) fn show_output() -> Show {
    Show::Output { terminal_size: terminal::rows_and_columns() }
}

/// Catches SIGINT, SIGTERM, SIGHUP and SIGWINCH, and with a proxy the signals that can be forwarded.
///
/// # Errors
/// No file descriptors are left.
pub(crate) fn catch(proxy: SignalProxy) -> io::Result<Signals> {
    let passed_on = signals::proxied().filter(|_| proxy == SignalProxy::On);
    Signals::catch(ENDING.into_iter().chain([SIGWINCH]).chain(passed_on))
}

/// Shows a pod until it has exited, and returns its exit code.
///
/// # Errors
/// The pod cannot be shown. If this command started it, it has been stopped.
pub(crate) fn follow(
    engine: &Engine,
    pod: &ForegroundPod,
    live: LivePod,
    signals: Option<Signals>,
) -> Result<ExitStatus, Failure> {
    let outcome = run_attached(engine, pod, live, signals);
    terminal::restore();
    if outcome.is_err() && pod.own {
        // The first failure is the one to report. If stopping fails too, the pod stays in `gantry list`.
        let _still_running = engine.stop(pod.id, engine.stop_grace(pod.id, None));
    }
    outcome
}

fn run_attached(
    engine: &Engine,
    pod: &ForegroundPod,
    live: LivePod,
    signals: Option<Signals>,
) -> Result<ExitStatus, Failure> {
    let channel = match &pod.interactive {
        Some(interactive) => attach_stdin(engine, pod.id, interactive)?,
        None => None,
    };
    let keyboard = pod.interactive.as_ref().is_some_and(|interactive| interactive.stdin && interactive.terminal);
    let has_terminal = pod.interactive.as_ref().is_some_and(|interactive| interactive.terminal);
    let raw = match (keyboard && channel.is_some(), has_terminal) {
        (true, _) => RawMode::enter(),
        (false, true) => RawMode::enter_output(),
        (false, false) => Ok(None),
    };
    let raw = raw.map_err(crate::failure::io("make raw", "the terminal"))?;
    let master = match &channel {
        Some(channel) if has_terminal => {
            terminal::resize(channel);
            Some(channel.try_clone().map_err(crate::failure::io("duplicate", "the terminal of the app"))?)
        }
        _ => None,
    };
    let is_shown = Arc::new(AtomicBool::new(false));
    if let Some(signals) = signals {
        let (options, is_shown) = (engine.options().clone(), Arc::clone(&is_shown));
        let watch = SignalWatch { options, id: pod.id, master, proxy: pod.signals, is_shown };
        thread("signals", move || watch.run(signals))?;
    }
    if let (Some(channel), Some(interactive)) = (channel, &pod.interactive)
        && interactive.stdin
    {
        let (id, terminal) = (pod.id, interactive.terminal);
        let keys = if raw.is_some() { Some(pod.detach_keys.clone()) } else { None };
        thread("stdin", move || feed(&channel, id, keys, terminal))?;
    }
    let LivePod { mut output, end } = live;
    let shown = print_output(engine, pod, output.as_mut(), has_terminal);
    is_shown.store(true, Ordering::SeqCst);
    let lost = shown?;
    // After an error nothing reads the output, and it may not close before the supervisor ends.
    let ended = engine.wait_end(end, output.as_ref().filter(|_| lost.is_none()))?;
    tracing::debug!(pod = %pod.id, exit_code = ended.end.exit_code, "the pod exited");
    drop(raw);
    report_out_of_memory(&ended);
    let code = ExitStatus::of_app(ended.end.exit_code);
    match lost.map(Failure::from) {
        Some(failure) if code == ExitStatus::OK => Err(failure),
        Some(failure) => {
            failure.print(false);
            Ok(code)
        }
        None => Ok(code),
    }
}

/// Prints the output until every app has ended. `Some`: the rest of it was lost.
fn print_output(
    engine: &Engine,
    pod: &ForegroundPod,
    output: Option<&mut OutputStream>,
    has_terminal: bool,
) -> Result<Option<OutputError>, Failure> {
    match output {
        Some(output) => {
            let look_up = |number: usize, known: &BTreeMap<usize, AppName>| find_app(engine, pod.id, number, known);
            live_output::show(output, AppNames::new(pod.apps.clone(), &look_up), has_terminal)
        }
        None => print_logs(engine, pod).map(|()| None),
    }
}

/// The name of an app that was added while the pod is shown. After the end of the supervisor: that of the only app that
/// is not known.
fn find_app(engine: &Engine, id: PodId, number: usize, known: &BTreeMap<usize, AppName>) -> Option<AppName> {
    if let Ok(Some(mut apps)) = engine.output_apps(id) {
        return apps.remove(&number);
    }
    let row = engine.status(id).ok()?.row;
    let is_known = |name: &AppName| known.values().any(|known| known == name);
    let mut others = row.apps.into_iter().map(|app| app.name).filter(|name| !is_known(name));
    let first = others.next()?;
    others.next().is_none().then_some(first)
}

/// Reports apps that the OOM killer ended, which could not print an error themselves.
fn report_out_of_memory(ended: &Ended) {
    for app in &ended.out_of_memory {
        print_stderr(&format!("gantry: app '{app}' ran out of memory: the kernel killed one of its processes\n"));
    }
}

fn thread(name: &'static str, run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(run);
    spawned.map(drop).map_err(crate::failure::io("start a thread for", name))
}

/// Connects to the app's terminal or standard input. `None`: the app has exited already.
fn attach_stdin(engine: &Engine, id: PodId, interactive: &Interactive) -> Result<Option<OwnedFd>, Failure> {
    match engine.attach(id, Some(&interactive.app), false) {
        Ok(channel) => Ok(Some(channel)),
        Err(error) => match engine.wait(id, Some(Duration::ZERO)) {
            // A pod of `run --rm` that has ended is removed by the first command that notices, such as this one.
            Ok(Some(_)) | Err(PodError::NotFound(_)) => Ok(None),
            Ok(None) if app_has_ended(engine, id, &interactive.app)? => Ok(None),
            Ok(None) => Err(error.into()),
            Err(error) => Err(error.into()),
        },
    }
}

fn app_has_ended(engine: &Engine, id: PodId, app: &AppName) -> Result<bool, Failure> {
    let view = match engine.status(id) {
        Err(PodError::NotFound(_)) => return Ok(true),
        view => view?,
    };
    let state = view.row.apps.iter().find(|row| row.name == *app).map(|row| row.state);
    Ok(matches!(state, Some(gantry_model::AppState::Exited { .. })))
}

/// Handles signals to this process.
struct SignalWatch {
    options: Options,
    id: PodId,
    master: Option<OwnedFd>,
    proxy: SignalProxy,
    /// Whether all output has been printed, or printing it has failed.
    is_shown: Arc<AtomicBool>,
}

impl SignalWatch {
    fn run(self, mut signals: Signals) {
        let mut first_request = None;
        loop {
            for signal in signals.wait() {
                match (signal, &self.master, self.proxy) {
                    (SIGWINCH, Some(master), _) => terminal::resize(master),
                    // The kernel sends SIGWINCH to the foreground process group of a resized terminal. It is not
                    // forwarded: httpd and nginx take it as a request to stop.
                    (SIGWINCH, None, _) if terminal::is_any() => {}
                    (_, _, SignalProxy::On) if ENDING.contains(&signal) => {
                        self.request_stop(&mut first_request);
                    }
                    (_, _, SignalProxy::On) => self.pass_on(signal),
                    (SIGWINCH, _, SignalProxy::Off) => {}
                    (_, _, SignalProxy::Off) => terminal::restore_and_exit(ExitStatus::of_signal(signal)),
                }
            }
        }
    }

    fn pass_on(&self, signal: i32) {
        let Ok(number) = u8::try_from(signal) else { return };
        tracing::debug!(pod = %self.id, signal, "forward a signal");
        let sent =
            Engine::open(self.options.clone()).map_err(Failure::from).map(|engine| engine.kill(self.id, None, number));
        match sent {
            Ok(Ok(()) | Err(KillError::NotRunning { .. })) => {}
            // The apps have exited; the rest of their output is being printed.
            Ok(Err(error)) if error.kind() == ErrorKind::Refused => {}
            Ok(Err(error)) => Failure::from(error).print(false),
            Err(failure) => failure.print(false),
        }
    }

    /// The first request stops the pod, a later one kills it.
    fn request_stop(&self, first: &mut Option<Instant>) {
        match first {
            None => {
                *first = Some(Instant::now());
                self.stop(false);
            }
            Some(at) if at.elapsed() < SAME_REQUEST => {}
            Some(_) => self.stop(true),
        }
    }

    /// Stops the pod in a thread of its own, so that further signals are handled.
    fn stop(&self, force: bool) {
        let (options, id, is_shown) = (self.options.clone(), self.id, Arc::clone(&self.is_shown));
        tracing::debug!(pod = %id, force, "stop the pod");
        let started = thread("stop", move || match stop_pod(options, id, force) {
            Ok(ended) => exit_unless_shown(id, ExitStatus::of_app(ended.end.exit_code), &is_shown),
            // A pod of `run --rm` may have ended, and been removed, before the signal was handled.
            Err(failure) if failure.kind() == ErrorKind::NotFound => {
                exit_unless_shown(id, ExitStatus::of_signal(SIGTERM), &is_shown);
            }
            Err(failure) => failure.print(false),
        });
        if let Err(failure) = started {
            failure.print(false);
        }
    }
}

fn stop_pod(options: Options, id: PodId, force: bool) -> Result<Ended, Failure> {
    let engine = Engine::open(options).map_err(|error| Failure::from(error).not_a_missing_object())?;
    // A pod of `run --rm` may be removed at its end.
    let end = engine.watch_end(id);
    let grace = if force { Duration::ZERO } else { engine.stop_grace(id, None) };
    engine.stop(id, grace)?;
    Ok(engine.wait_end(end?, None)?)
}

/// Exits when the output of a pod that has ended is not read in time: the thread that prints it may block for ever.
fn exit_unless_shown(id: PodId, code: ExitStatus, is_shown: &AtomicBool) {
    std::thread::sleep(UNREAD_TIMEOUT);
    if is_shown.load(Ordering::SeqCst) {
        // It ends by itself when it has removed what it has to.
        return;
    }
    terminal::restore();
    let lost = Failure::from(OutputError::Cut(id));
    let code = if code == ExitStatus::OK { lost.exit_status(CommandKind::Action) } else { code };
    if relay::is_writable(rustix::stdio::stderr()) {
        lost.print(false);
    }
    std::process::exit(code.into());
}

/// Forwards standard input to the app until either ends. With `keys`, the user can detach by typing them.
fn feed(channel: &OwnedFd, id: PodId, keys: Option<DetachKeys>, terminal: bool) {
    let mut filter = keys.map(DetachFilter::new);
    let mut chunk = vec![0; 64 << 10];
    let mut last = None;
    loop {
        let count = match rustix::io::read(rustix::stdio::stdin(), &mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => continue,
            Err(rustix::io::Errno::AGAIN) => {
                let stdin = rustix::stdio::stdin();
                let mut fds = [rustix::event::PollFd::from_borrowed_fd(stdin, rustix::event::PollFlags::IN)];
                // After an interruption, too, the next step is to read again.
                let _read_again = rustix::event::poll(&mut fds, None);
                continue;
            }
            // The terminal has hung up.
            Err(_) => break,
        };
        let (passed, detach) = match &mut filter {
            Some(filter) => filter.pass(&chunk[..count]),
            None => (chunk[..count].to_vec(), false),
        };
        last = passed.last().copied().or(last);
        if relay::write_all(channel.as_fd(), &passed).is_err() {
            // The app takes no more input.
            return;
        }
        if detach {
            terminal::restore();
            print_stderr(&format!("gantry: detached from pod {id}, which continues to run\n"));
            std::process::exit(ExitStatus::OK.into());
        }
    }
    if terminal {
        let _app_may_be_gone = relay::write_all(channel.as_fd(), terminal::end_of_input(last));
    }
    // For a pipe, dropping the channel is the end of file.
}

/// Prints what the apps log from now on, until the pod has exited.
fn print_logs(engine: &Engine, pod: &ForegroundPod) -> Result<(), Failure> {
    let query = LogQuery { follow: true, tail: Some(0), ..LogQuery::default() };
    engine.logs(pod.id, &query, &mut Printer::new(pod.apps.len() > 1)).map_err(logs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interactive_apps_of_a_manifest_are_found() {
        let app =
            |name: &str| gantry_model::AppSpec::new(name.parse().unwrap(), gantry_model::RequestedImage::new("x"));
        let mut spec = gantry_model::PodSpec { apps: vec![app("a"), app("b")], ..gantry_model::PodSpec::default() };
        let names: BTreeMap<usize, AppName> =
            ["a", "b"].map(|name| name.parse().unwrap()).into_iter().enumerate().collect();
        assert_eq!(manifest_apps(&gantry_engine::manifest_to_value(&spec)), (names.clone(), Vec::new()));
        spec.apps[1].options.terminal = true;
        let b = Interactive { app: "b".parse().unwrap(), stdin: false, terminal: true };
        assert_eq!(manifest_apps(&gantry_engine::manifest_to_value(&spec)), (names, vec![b]));
        assert_eq!(manifest_apps(&serde_json::Value::Null), (BTreeMap::new(), Vec::new()));
    }
}
