//! `gantry run`, `gantry prepare` and `gantry run-prepared`.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;

use gantry_engine::{Engine, Prepare, PrepareError, RunOptions, Running, RunningPod, Show};
use gantry_model::spec::VolumeKind;
use gantry_model::{AddedAppSpec, AppSpec, ErrorKind, Kind as _, NetMode, PodId, PodSpec};

use super::fetch::policy;
use crate::commands::RunCommand;
use crate::context::Context;
use crate::environment;
use crate::exit::ExitStatus;
use crate::failure::{CliError, Failure, io, print_stderr, warn};
use crate::foreground::{self, ForegroundPod, Interactive, LivePod, SignalProxy};
use crate::grammar::{IdFile, PodOptions, Pull, Request, networks};
use crate::pods::OnePod;
use crate::progress;
use crate::render::json;
use crate::service_manager::{self, ServiceManager};
use crate::signals::Signals;
use crate::terminal::DetachKeys;

/// Prepares a pod and runs it, in the foreground or detached.
pub(crate) fn run(request: Request) -> Result<ExitStatus, Failure> {
    let ResolvedRequest { context, mut spec, options } = resolve_request(request, "run")?;
    let manager = ServiceManager::connect_for(&mut spec);
    let foreground_pod = foreground_pod(&spec, &options);
    let proxy = signal_proxy(&options);
    let picks = !options.quiet && spec.ports.iter().any(|port| port.host_port == 0);
    let several = spec.apps.len() > 1;
    let progress = progress::ProgressDisplay::new(context.globals.progress, options.quiet);
    let show = if options.detach { Show::No } else { foreground::show_output() };
    let request = Prepare::new(spec, policy(options.pull.unwrap_or_default()), &progress)?
        .named(options.pod_name.clone())
        .to_be_started_early(RunOptions { show, remove: options.remove });
    let engine = context.open_for_fetch("run", |config| set_platform(config, &options))?;
    let pod = engine.create(request).map_err(|error| create_failure(error, &options, several))?;
    let id = pod.id();
    // Until the pod exists, a signal ends this command, and nothing is left. From now on it ends the pod.
    let signals = if options.detach { None } else { Some(foreground::catch(proxy).map_err(io("catch", "signals"))?) };
    save_id(options.id_file.as_ref(), id)?;
    let started = pod.start();
    let started = started.inspect_err(|_| remove_id(options.id_file.as_ref()));
    let mut running = started.map_err(|error| with_hint(error.into(), options.hint.as_deref(), false))?;
    tracing::debug!(pod = %running.id, "the pod is running");
    print_warnings(&running);
    if picks {
        print_published_ports(&running);
    }
    if options.detach {
        return report_and_print_id(&engine, &running, manager);
    }
    if let Some(manager) = manager {
        manager.report_foreground(&mut running);
    }
    follow(&engine, foreground_pod(running.id), running, signals, options.remove)
}

/// Prints the settings of a new pod that have no effect on this host.
fn print_warnings(running: &Running) {
    running.ready.warnings.iter().for_each(|warning| warn(warning));
}

/// Prints the published ports, of which the engine chose some.
fn print_published_ports(running: &Running) {
    for port in running.ready.networks.iter().flat_map(|network| &network.ports) {
        let line = crate::render::network::port_mapping(port);
        print_stderr(&format!("gantry: published {line}\n"));
    }
}

/// Prepares a pod and prints its id.
pub(crate) fn prepare(request: Request) -> Result<ExitStatus, Failure> {
    let ResolvedRequest { context, spec, options } = resolve_request(request, "prepare")?;
    let several = spec.apps.len() > 1;
    let progress = progress::ProgressDisplay::new(context.globals.progress, options.quiet);
    let request =
        Prepare::new(spec, policy(options.pull.unwrap_or(Pull::New)), &progress)?.named(options.pod_name.clone());
    let engine = context.open_for_fetch("prepare", |config| set_platform(config, &options))?;
    let pod = engine.create(request).map_err(|error| create_failure(error, &options, several))?;
    save_id(options.id_file.as_ref(), pod.id())?;
    print_id(pod.prepare().inspect_err(|_| remove_id(options.id_file.as_ref()))?)
}

/// Starts a pod without apps and prints its id.
pub(crate) fn sandbox(request: Request) -> Result<ExitStatus, Failure> {
    let ResolvedRequest { context, mut spec, options } = resolve_request(request, "app sandbox")?;
    spec.sandbox = true;
    let progress = progress::ProgressDisplay::new(context.globals.progress, options.quiet);
    let request = Prepare::new(spec, policy(options.pull.unwrap_or_default()), &progress)?
        .named(options.pod_name.clone())
        .to_be_started_early(RunOptions { show: Show::No, remove: options.remove });
    let engine = context.open_for_fetch("app sandbox", |config| set_platform(config, &options))?;
    let pod = engine.create(request)?;
    save_id(options.id_file.as_ref(), pod.id())?;
    let started = pod.start();
    let running = started.inspect_err(|_| remove_id(options.id_file.as_ref()))?;
    print_warnings(&running);
    print_id(running.id)
}

/// Adds an app to a running pod and prints its name.
pub(crate) fn add_app(request: Request) -> Result<ExitStatus, Failure> {
    let target = request.target.clone().unwrap_or_default();
    let ResolvedRequest { context, mut spec, options } = resolve_request(request, "app add")?;
    let Some(app) = spec.apps.pop() else { return Err(Failure::usage("app add: the image is missing")) };
    let progress = progress::ProgressDisplay::new(context.globals.progress, options.quiet);
    let engine = context.open_for_fetch("app add", |config| set_platform(config, &options))?;
    let id = crate::pods::find(&engine, &target)?;
    let name = app.name.clone();
    let added = AddedAppSpec { app, volumes: spec.volumes };
    engine.add_app_and_start(id, added, options.start, policy(options.pull.unwrap_or_default()), &progress)?;
    json::to_stdout(|out| writeln!(out, "{name}"))?;
    Ok(ExitStatus::OK)
}

/// A failure to create a pod, with the hint of the command line where the image is the cause.
fn create_failure(error: PrepareError, options: &PodOptions, several: bool) -> Failure {
    let is_about_image = matches!(error, PrepareError::Fetch { .. });
    match &options.value_hint {
        Some(hint) if is_about_image => Failure::from(error).with_hint(hint.as_str()),
        _ => with_hint(error.into(), options.hint.as_deref(), several && is_about_image),
    }
}

/// Arguments of `run-prepared`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunPrepared {
    #[command(flatten)]
    pod: OnePod,
    /// Networks, as for 'gantry run', instead of those the pod was prepared with; without a value: default
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "default", value_name = "NET,…")]
    net: Vec<String>,
    /// As --net, but the value is required
    #[arg(long, value_name = "NET,…", conflicts_with = "net")]
    network: Vec<String>,
    /// Print the pod's id when its apps have started, and exit
    #[arg(short, long)]
    detach: bool,
    /// Remove the pod when it has exited
    #[arg(long)]
    rm: bool,
    /// Forward signals to the apps
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    sig_proxy: bool,
    /// Key sequence to detach from a terminal; empty: none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    detach_keys: DetachKeys,
}

impl RunPrepared {
    /// All networks of `--net` or `--network`.
    fn networks(&self) -> Result<Option<NetMode>, Failure> {
        let (flag, given) = if self.network.is_empty() { ("--net", &self.net) } else { ("--network", &self.network) };
        Ok(networks(flag, given)?)
    }
}

/// Runs a prepared pod.
impl RunCommand for RunPrepared {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let net = self.networks()?;
        let engine = context.open("run-prepared")?;
        let id = self.pod.only(&engine)?;
        // Before the start: a pod whose output cannot be shown is not started.
        let manifest = engine.manifest(id)?;
        let (apps, interactive) = foreground::manifest_apps(&manifest);
        let manager = ServiceManager::connect(service_manager::readiness_sources(&manifest));
        let proxy = if self.sig_proxy { SignalProxy::On } else { SignalProxy::Off };
        let interactive = interactive.into_iter().next();
        let shown =
            ForegroundPod { id, apps, interactive, own: true, signals: proxy, detach_keys: self.detach_keys.clone() };
        if self.detach {
            let running = engine.start(id, net, RunOptions { show: Show::No, remove: self.rm })?;
            print_warnings(&running);
            return report_and_print_id(&engine, &running, manager);
        }
        let signals = foreground::catch(proxy).map_err(io("catch", "signals"))?;
        let mut running = engine.start(id, net, RunOptions { show: foreground::show_output(), remove: self.rm })?;
        print_warnings(&running);
        if let Some(manager) = manager {
            manager.report_foreground(&mut running);
        }
        follow(&engine, shown, running, Some(signals), self.rm)
    }
}

/// Fetches images of the platform given by `--platform`.
fn set_platform(config: &mut gantry_engine::FetchConfig, options: &crate::grammar::PodOptions) {
    config.platform.clone_from(&options.platform);
}

/// A validated request of `run` or `prepare`.
pub(crate) struct ResolvedRequest {
    pub(crate) context: Context,
    pub(crate) spec: PodSpec,
    pub(crate) options: crate::grammar::PodOptions,
}

/// Completes a request: its manifest, its environment, and checks of the host.
pub(crate) fn resolve_request(request: Request, command: &'static str) -> Result<ResolvedRequest, Failure> {
    let Request { globals, target: _, mut spec, options } = request;
    match &options.pod_manifest {
        Some(path) => spec = read_manifest(path)?,
        None => environment::apply(&mut spec, &options)?,
    }
    check_host_volumes(&spec)?;
    check_id_file(&options)?;
    Ok(ResolvedRequest { context: Context::new(globals, command), spec, options })
}

/// Refuses host volumes whose source does not exist, before anything of the pod is created.
fn check_host_volumes(spec: &PodSpec) -> Result<(), Failure> {
    for volume in &spec.volumes {
        let VolumeKind::Host { source, .. } = &volume.kind else { continue };
        if std::fs::metadata(source).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Err(CliError::NoVolumeSource(source.clone()).into());
        }
    }
    Ok(())
}

/// Refuses a file of `--cidfile` that exists, before anything is fetched or created.
fn check_id_file(options: &PodOptions) -> Result<(), Failure> {
    match &options.id_file {
        Some(IdFile::New(path)) if path.symlink_metadata().is_ok() => Err(CliError::IdFileExists(path.clone()).into()),
        _ => Ok(()),
    }
}

/// The maximum size of a pod manifest in bytes.
const MAX_MANIFEST_SIZE: u64 = 1 << 20;

fn read_manifest(path: &Path) -> Result<PodSpec, Failure> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { Path::new("standard input") } else { path };
    let failed = || io("read the pod manifest", name.display().to_string());
    let opened = match is_stdin {
        true => std::io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from),
        false => std::fs::File::open(path),
    };
    let file = opened.map_err(failed())?;
    let bytes = gantry_host::file::read_stream(file, MAX_MANIFEST_SIZE).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            let why = format!("is longer than {MAX_MANIFEST_SIZE} bytes: it cannot be a pod manifest");
            CliError::Content { path: name.to_owned(), why }.into()
        }
        _ => failed()(error),
    })?;
    Ok(gantry_engine::parse_manifest(&bytes)?)
}

/// The foreground view of a pod with this specification.
fn foreground_pod(spec: &PodSpec, options: &PodOptions) -> impl FnOnce(PodId) -> ForegroundPod + use<> {
    let wanted = |app: &&AppSpec| app.options.terminal || app.options.stdin;
    let interactive = spec.apps.iter().find(wanted).map(|app| Interactive {
        app: app.name.clone(),
        stdin: app.options.stdin,
        terminal: app.options.terminal,
    });
    let apps = spec.apps.iter().map(|app| app.name.clone()).enumerate().collect();
    let (signals, detach_keys) = (signal_proxy(options), options.detach_keys.clone());
    move |id| ForegroundPod { id, apps, interactive, own: true, signals, detach_keys }
}

fn signal_proxy(options: &PodOptions) -> SignalProxy {
    if options.no_sig_proxy { SignalProxy::Off } else { SignalProxy::On }
}

fn follow(
    engine: &Engine,
    shown: ForegroundPod,
    mut running: Running,
    signals: Option<Signals>,
    remove: bool,
) -> Result<ExitStatus, Failure> {
    let id = shown.id;
    let end = running.end.take().map_or_else(|| engine.watch_end(id), Ok)?;
    let live = LivePod { output: running.output.take(), end };
    let outcome = foreground::follow(engine, &shown, live, signals);
    if remove {
        // If following it failed, the pod may still be stopping.
        match engine.rm(id, RunningPod::Stop) {
            // Its supervisor may still be exiting: nothing of the pod is left when this command ends.
            Ok(()) => running.reap().map_err(io("wait for", "the pod's supervisor"))?,
            // It was removed at its end, or by another command.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                running.reap().map_err(io("wait for", "the pod's supervisor"))?;
            }
            // The first failure is the one to report.
            Err(error) if outcome.is_ok() => return Err(error.into()),
            Err(_) => {}
        }
    }
    outcome
}

/// Adds how the parser classified the word after the first image, if that may be the cause: one of several images is
/// not available, or the command does not exist.
fn with_hint(failure: Failure, hint: Option<&str>, image_of_several: bool) -> Failure {
    match (failure.kind(), hint) {
        (ErrorKind::NotFound | ErrorKind::Invalid, Some(hint)) if image_of_several => failure.with_hint(hint),
        (ErrorKind::CommandNotFound, Some(hint)) => failure.with_hint(hint),
        _ => failure,
    }
}

fn save_id(file: Option<&IdFile>, id: PodId) -> Result<(), Failure> {
    let (path, written) = match file {
        None => return Ok(()),
        Some(IdFile::Replaced(path)) => (path, std::fs::write(path, id.to_string())),
        // Another command may have made it since the check.
        Some(IdFile::New(path)) => match std::fs::File::create_new(path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(CliError::IdFileExists(path.clone()).into());
            }
            Err(error) => (path, Err(error)),
            Ok(mut created) => {
                let written = created.write_all(id.to_string().as_bytes());
                (path, written.inspect_err(|_| remove_id(file)))
            }
        },
    };
    written.map_err(io("write the pod's id to", path.display().to_string()))
}

/// Removes the file that [`save_id`] created: the pod does not run, and the next such command must not find the file.
fn remove_id(file: Option<&IdFile>) {
    if let Some(IdFile::New(path)) = file {
        // The failure that ends the command is the one to report.
        let _remains = std::fs::remove_file(path);
    }
}

/// Reports a detached pod to the service manager, once it is ready, and prints its id.
fn report_and_print_id(
    engine: &Engine,
    running: &Running,
    manager: Option<ServiceManager>,
) -> Result<ExitStatus, Failure> {
    if let Some(manager) = manager {
        manager.report_detached(engine, running)?;
    }
    print_id(running.id)
}

fn print_id(id: PodId) -> Result<ExitStatus, Failure> {
    json::to_stdout(|out| writeln!(out, "{id}"))?;
    Ok(ExitStatus::OK)
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
    fn net_flags_of_run_prepared_are_parsed() {
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
            ("12 --net=", "--net: it must not be empty"),
            ("12 --net=host --net=a", "--net: 'host' cannot be combined"),
            ("12 --network ../x", "--network: '../x' is not the name of a network"),
            ("12 --network container:x", "--network=container:x is not supported: apps that share a network"),
            ("12 --network x --net=y", "cannot be used with"),
        ] {
            let error = net(line).unwrap_err();
            assert!(error.contains(want), "{line}: {error}");
        }
    }
}
