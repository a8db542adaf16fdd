//! `gantry generate`: systemd units that run pods.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_model::PodName;
use gantry_model::systemd::SdNotify;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{CliError, Failure, io, print_stderr};
use crate::pod_file::{self, PodFile};
use crate::render::{escape, json};
use crate::units::{self, PodService, RestartCondition};
use crate::{foreground, pods, service_manager};

/// The maximum size of a pod file in bytes.
const MAX_POD_FILE_SIZE: u64 = 1 << 20;

/// The grace of a pod's apps where the configuration cannot be read: early in the boot, when generators run.
const FALLBACK_GRACE: Duration = Duration::from_secs(10);

/// The subcommands of `generate`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Generate {
    /// Print a systemd service that runs a new pod like this one
    Systemd(Systemd),
    /// Make systemd services of the pod files in a directory: a systemd generator
    Units(Units),
}

impl RunCommand for Generate {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        match self {
            Self::Systemd(args) => args.generate(context),
            Self::Units(args) => args.generate(context),
        }
    }
}

/// Arguments of `generate systemd`.
#[derive(Debug, clap::Args)]
pub(crate) struct Systemd {
    /// Pod: its id, its name, a unique prefix of the id, the name of an app, or the host name
    #[arg(value_name = "POD")]
    pod: String,
    /// Name of the service and of its pods (default: the pod's name, or pod-ID)
    #[arg(long, value_name = "NAME")]
    name: Option<PodName>,
    /// Write the service to DIR/NAME.service and print the path
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// When systemd restarts the service
    #[arg(long, value_enum, default_value_t, value_name = "POLICY")]
    restart_policy: RestartCondition,
}

impl Systemd {
    fn generate(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let id = pods::find(&engine, &self.pod)?;
        let manifest = engine.manifest(id)?;
        if let Some(interactive) = foreground::manifest_apps(&manifest).1.first() {
            let why = "has a terminal or takes standard input, which a service does not have";
            return Err(CliError::Refused(format!("app '{}' {why}", interactive.app)).into());
        }
        let name = match (&self.name, engine.status(id)?.row.name) {
            (Some(name), _) => name.to_string(),
            (None, Some(name)) => name.to_string(),
            (None, None) => format!("pod-{}", id.short()),
        };
        let sources = service_manager::readiness_sources(&manifest);
        let text = format!("{manifest:#}");
        let service = PodService {
            name: &name,
            source: "'gantry generate systemd'",
            program: &program()?,
            global_flags: &global_flags(context)?,
            words: &[format!("--pod-name={name}"), "--pod-manifest=/dev/stdin".to_owned()],
            input: Some(&text),
            notifies: sources.is_empty() || sources.iter().any(|(_, source)| *source != SdNotify::None),
            grace: engine.stop_grace(id, None),
            restart: self.restart_policy,
            unit_lines: &[],
            service_lines: &[],
            install_lines: &["WantedBy=multi-user.target".to_owned()],
        };
        let shown = match &self.files {
            None => service.text(),
            Some(dir) => {
                let file = format!("{name}.service");
                let written = units::write_file(dir, &file, &service.text());
                let path = written.map_err(io("write", dir.join(&file).display().to_string()))?;
                format!("{}\n", path.display())
            }
        };
        json::to_stdout(|out| out.write_all(shown.as_bytes()))?;
        Ok(ExitStatus::OK)
    }
}

/// Arguments of `generate units`.
#[derive(Debug, clap::Args)]
pub(crate) struct Units {
    /// Directory of the pod files, NAME.pod
    // Not `dir`: that is the global flag.
    #[arg(value_name = "DIR")]
    pod_files: PathBuf,
    /// Directory to write NAME.service to, with the links of [Install]
    #[arg(value_name = "OUT")]
    out: PathBuf,
}

impl Units {
    /// Makes a service of each file; those with mistakes are reported, and the others still follow.
    fn generate(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let entries = match std::fs::read_dir(&self.pod_files) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ExitStatus::OK),
            entries => entries.map_err(io("read", self.pod_files.display().to_string()))?,
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "pod"));
        paths.sort();
        let mut code = ExitStatus::OK;
        for path in paths {
            if let Err(why) = self.generate_one(context, &path) {
                print_stderr(&format!("gantry: {}\n", escape::text(&why)));
                code = ExitStatus::FAILED;
            }
        }
        Ok(code)
    }

    fn generate_one(&self, context: &Context, path: &Path) -> Result<(), String> {
        let shown = path.display();
        let fail = |error: std::io::Error| format!("{shown}: {error}");
        let name = path.file_stem().and_then(|stem| stem.to_str()).ok_or(format!("{shown}: its name is not UTF-8"))?;
        let file = std::fs::File::open(path).map_err(fail)?;
        let text = gantry_host::file::read_text(file, MAX_POD_FILE_SIZE).map_err(fail)?;
        let pod = pod_file::parse(&text, name).map_err(|error| format!("{shown}:{}: {}", error.line, error.why))?;
        let text = self.service_text(context, path, name, &pod).map_err(fail)?;
        let service = format!("{name}.service");
        units::write_file(&self.out, &service, &text).map_err(fail)?;
        for dir in &pod.wanted_by {
            let dir = self.out.join(dir);
            std::fs::create_dir_all(&dir).map_err(fail)?;
            match symlink(format!("../{service}"), dir.join(&service)) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                linked => linked.map_err(fail)?,
            }
        }
        Ok(())
    }

    fn service_text(&self, context: &Context, path: &Path, name: &str, pod: &PodFile) -> std::io::Result<String> {
        let source_path = format!("SourcePath={}", std::path::absolute(path)?.display()).replace('%', "%%");
        let unit_lines: Vec<String> = std::iter::once(source_path).chain(pod.unit.iter().cloned()).collect();
        let service = PodService {
            name,
            source: "'gantry generate units'",
            program: &std::env::current_exe()?,
            global_flags: &units::global_flags(&context.globals)?,
            words: &pod.words,
            input: None,
            notifies: pod.notifies,
            grace: pod
                .stop_timeout_ms
                .map_or(Duration::ZERO, Duration::from_millis)
                .max(context.options().map_or(FALLBACK_GRACE, |options| options.stop_grace)),
            restart: RestartCondition::default(),
            unit_lines: &unit_lines,
            service_lines: &pod.service,
            install_lines: &[],
        };
        Ok(service.text())
    }
}

fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(io("find", "the program of gantry"))
}

fn global_flags(context: &Context) -> Result<Vec<String>, Failure> {
    units::global_flags(&context.globals).map_err(io("find", "the data directory"))
}
