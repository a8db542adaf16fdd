//! `gantry run`, `gantry prepare` and `gantry run-prepared`.

use std::io::Write as _;
use std::path::Path;

use gantry_engine::{Engine, Prepare, PrepareError, RunOptions, Running, Show};
use gantry_model::spec::VolumeKind;
use gantry_model::{AppSpec, ErrorKind, Kind as _, NetMode, PodId, PodSpec};

use super::fetch::policy;
use crate::context::Context;
use crate::failure::{CliError, Failure, io};
use crate::foreground::{self, Interactive, Live, Shown, SignalProxy};
use crate::grammar::{PodOptions, Pull, Request};
use crate::pods::OnePod;
use crate::progress;
use crate::render::json;
use crate::signals::Signals;
use crate::terminal::DetachKeys;
use crate::{environment, exit};

/// Prepares a pod and runs it, in the foreground or detached.
pub(crate) fn run(request: Request) -> Result<u8, Failure> {
    let Made { context, spec, options } = made(request, "run")?;
    let shown = shown(&spec, &options);
    let proxy = proxy(&options);
    let picks = !options.quiet && spec.ports.iter().any(|port| port.host_port == 0);
    let several = spec.apps.len() > 1;
    let progress = progress::Shown::new(context.globals.progress, options.quiet);
    let request = Prepare::new(spec, policy(options.pull.unwrap_or_default()), &progress)?.to_be_started();
    let engine = context.open_for_fetch("run", |config| at_platform(config, &options))?;
    let pod = engine.create(request).map_err(|error| create_failure(error, &options, several))?;
    let id = pod.id();
    // Until the pod exists, a signal ends this command, and nothing is left. From now on it ends the pod.
    let signals = if options.detach { None } else { Some(foreground::catch(proxy).map_err(io("catch", "signals"))?) };
    save_id(options.uuid_file.as_deref(), id)?;
    let show = if options.detach { Show::No } else { foreground::show() };
    let started = pod.start(RunOptions { show, remove: options.remove });
    let running = started.map_err(|error| hinted(error.into(), options.hint.as_deref(), false))?;
    if picks {
        tell_ports(&running);
    }
    if options.detach {
        return print_id(running.id);
    }
    follow(&engine, shown(running.id), running, signals, options.remove)
}

/// Tells on standard error where the ports of a pod are published of which some were picked.
fn tell_ports(running: &Running) {
    for port in running.ready.networks.iter().flat_map(|network| &network.ports).cloned() {
        let line = crate::render::network::arrow(&port.into());
        // As with progress: nowhere to tell that standard error is gone.
        let _ = writeln!(std::io::stderr(), "gantry: published {line}");
    }
}

/// Prepares a pod and prints its id.
pub(crate) fn prepare(request: Request) -> Result<u8, Failure> {
    let Made { context, spec, options } = made(request, "prepare")?;
    let several = spec.apps.len() > 1;
    let progress = progress::Shown::new(context.globals.progress, options.quiet);
    let request = Prepare::new(spec, policy(options.pull.unwrap_or(Pull::New)), &progress)?;
    let engine = context.open_for_fetch("prepare", |config| at_platform(config, &options))?;
    let pod = engine.create(request).map_err(|error| create_failure(error, &options, several))?;
    save_id(options.uuid_file.as_deref(), pod.id())?;
    print_id(pod.prepare()?)
}

/// A failure to create a pod, with the hint of the command line where the image is the cause.
fn create_failure(error: PrepareError, options: &PodOptions, several: bool) -> Failure {
    let is_about_image = matches!(error, PrepareError::Fetch { .. });
    hinted(error.into(), options.hint.as_deref(), several && is_about_image)
}

/// Arguments of `run-prepared`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunPrepared {
    #[command(flatten)]
    pod: OnePod,
    /// The pod's networks, in place of those it was prepared with; as 'gantry run' takes them, alone: default
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "default", value_name = "NET,…")]
    net: Vec<String>,
    /// The same, as docker spells it
    #[arg(long, value_name = "NET,…", conflicts_with = "net")]
    network: Vec<String>,
    /// Print the pod's id when it is ready, and return
    #[arg(short, long)]
    detach: bool,
    /// Remove the pod when it has ended
    #[arg(long)]
    rm: bool,
    /// Whether signals to this command are passed on to the apps
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    sig_proxy: bool,
    /// Keys that leave the pod to itself when it has a terminal; empty: none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    detach_keys: DetachKeys,
}

impl RunPrepared {
    /// The networks that were said, all of them together.
    fn networks(&self) -> Result<Option<NetMode>, Failure> {
        let (flag, said) = if self.network.is_empty() { ("--net", &self.net) } else { ("--network", &self.network) };
        if said.is_empty() {
            return Ok(None);
        }
        let mode = said.join(",").parse::<NetMode>();
        mode.map(Some).map_err(|error| Failure::usage(format!("{flag}: {error}")))
    }
}

/// Runs a prepared pod.
pub(crate) fn run_prepared(context: &Context, args: &RunPrepared) -> Result<u8, Failure> {
    let net = args.networks()?;
    let engine = context.open("run-prepared")?;
    let id = args.pod.only(&engine)?;
    // Before the start: a pod that cannot be shown is not started.
    let (apps, takers) = foreground::of_manifest(&engine.manifest(id)?);
    let proxy = if args.sig_proxy { SignalProxy::On } else { SignalProxy::Off };
    let interactive = takers.into_iter().next();
    let shown = Shown { id, apps, interactive, own: true, signals: proxy, detach_keys: args.detach_keys.clone() };
    if args.detach {
        return print_id(engine.start(id, net, RunOptions { show: Show::No, remove: args.rm })?.id);
    }
    let signals = foreground::catch(proxy).map_err(io("catch", "signals"))?;
    let running = engine.start(id, net, RunOptions { show: foreground::show(), remove: args.rm })?;
    follow(&engine, shown, running, Some(signals), args.rm)
}

/// Looks for images of the platform that is asked for.
fn at_platform(config: &mut gantry_engine::FetchConfig, options: &crate::grammar::PodOptions) {
    if let Some(platform) = &options.platform {
        config.platform = platform.clone();
    }
}

/// What `run` and `prepare` have in common once the command line is understood.
struct Made {
    context: Context,
    spec: PodSpec,
    options: crate::grammar::PodOptions,
}

fn made(request: Request, command: &'static str) -> Result<Made, Failure> {
    let Request { globals, mut spec, options } = request;
    match &options.pod_manifest {
        Some(path) => spec = manifest(path)?,
        None => environment::apply(&mut spec, &options)?,
    }
    need_host_volumes(&spec)?;
    Ok(Made { context: Context::new(globals, command), spec, options })
}

/// Refuses volumes of the host that are not there, before anything is made of the pod.
fn need_host_volumes(spec: &PodSpec) -> Result<(), Failure> {
    for volume in &spec.volumes {
        let VolumeKind::Host { source, .. } = &volume.kind else { continue };
        if std::fs::metadata(source).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Err(CliError::NoVolumeSource(source.clone()).into());
        }
    }
    Ok(())
}

/// A manifest is at most this long.
const MOST_MANIFEST: u64 = 1 << 20;

fn manifest(path: &Path) -> Result<PodSpec, Failure> {
    use std::io::Read as _;
    let failed = || io("read the pod manifest", path.display().to_string());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed())?;
    file.take(MOST_MANIFEST + 1).read_to_end(&mut bytes).map_err(failed())?;
    if bytes.len() as u64 > MOST_MANIFEST {
        let why = format!("is longer than {MOST_MANIFEST} bytes: it cannot be a pod manifest");
        return Err(CliError::Content { path: path.to_owned(), why }.into());
    }
    Ok(gantry_engine::parse_manifest(&bytes)?)
}

/// How the pod of this specification is shown in the foreground.
fn shown(spec: &PodSpec, options: &PodOptions) -> impl FnOnce(PodId) -> Shown + use<> {
    let wanted = |app: &&AppSpec| app.terminal || app.stdin;
    let interactive = spec.apps.iter().find(wanted).map(|app| Interactive {
        app: app.name.clone(),
        stdin: app.stdin,
        terminal: app.terminal,
    });
    let apps = spec.apps.iter().map(|app| app.name.clone()).collect();
    let (signals, detach_keys) = (proxy(options), options.detach_keys.clone());
    move |id| Shown { id, apps, interactive, own: true, signals, detach_keys }
}

fn proxy(options: &PodOptions) -> SignalProxy {
    if options.no_sig_proxy { SignalProxy::Off } else { SignalProxy::On }
}

fn follow(
    engine: &Engine,
    shown: Shown,
    mut running: Running,
    signals: Option<Signals>,
    remove: bool,
) -> Result<u8, Failure> {
    let id = shown.id;
    let end = running.end.take().map_or_else(|| engine.watch_end(id), Ok)?;
    let live = Live { output: running.output.take(), end };
    let outcome = foreground::follow(engine, &shown, live, signals);
    if remove {
        // With force: should following it have failed, it may still be on its way down.
        match engine.rm(id, true) {
            Ok(()) => {}
            // It was removed at its end, or by another command.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // The first failure is the one that is told.
            Err(error) if outcome.is_ok() => return Err(error.into()),
            Err(_) => {}
        }
    }
    outcome
}

/// Says how a word after the first image was read, where that may be the cause: an image among several that cannot be
/// had, or a command that does not exist.
fn hinted(failure: Failure, hint: Option<&str>, image_of_several: bool) -> Failure {
    match (failure.kind(), hint) {
        (ErrorKind::NotFound | ErrorKind::Invalid, Some(hint)) if image_of_several => failure.with_hint(hint),
        (ErrorKind::CommandNotFound, Some(hint)) => failure.with_hint(hint),
        _ => failure,
    }
}

fn save_id(path: Option<&Path>, id: PodId) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, id.to_string()).map_err(io("write the pod's id to", path.display().to_string()))
}

fn print_id(id: PodId) -> Result<u8, Failure> {
    json::to_stdout(|out| writeln!(out, "{id}"))?;
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(line: &str) -> Result<Option<NetMode>, String> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: RunPrepared,
        }
        let words = std::iter::once("run-prepared").chain(line.split_whitespace());
        let line = <Line as clap::Parser>::try_parse_from(words).map_err(|error| error.to_string())?;
        line.args.networks().map_err(|failure| failure.text(false).unwrap_or_default())
    }

    #[test]
    fn the_networks_of_a_prepared_pod() {
        let rows = [
            ("12", None),
            ("--net 12", Some("default")),
            ("--net=host 12", Some("host")),
            ("12 --network none", Some("none")),
            ("--net=a:IP=10.0.0.2 12 --net --net=b", Some("a:IP=10.0.0.2,default,b")),
        ];
        for (line, want) in rows {
            assert_eq!(net(line), Ok(want.map(|want| want.parse().unwrap())), "{line}");
        }
        for (line, want) in [
            ("12 --net=host --net=a", "--net: 'host' cannot be combined"),
            ("12 --network ../x", "--network: '../x' is not a network's name"),
            ("12 --network x --net=y", "cannot be used with"),
        ] {
            let error = net(line).unwrap_err();
            assert!(error.contains(want), "{line}: {error}");
        }
    }
}
