//! `gantry info`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gantry_engine::{Finding, Info as EngineInfo};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::ExitStatus;
use crate::failure::Failure;
use crate::render::{OutputFlag, OutputFormat, escape, json, size};

/// Arguments of `info`.
#[derive(Debug, clap::Args)]
pub(crate) struct Info {
    #[command(flatten)]
    output: OutputFlag,
}

/// Facts about the host and the store as JSON. The field names are stable.
#[derive(Serialize)]
struct InfoJson<'a> {
    host: HostJson<'a>,
    store: StoreJson<'a>,
    version: VersionsJson<'a>,
    networks: &'a [String],
    warnings: Vec<&'a str>,
}

#[derive(Serialize)]
struct HostJson<'a> {
    hostname: &'a str,
    distribution: Option<&'a str>,
    kernel: &'a str,
    architecture: &'a str,
    processors: usize,
    memory: u64,
    memory_available: u64,
    cgroups: &'a str,
    controllers: &'a [String],
    security_modules: &'a [String],
}

#[derive(Serialize)]
struct StoreJson<'a> {
    dir: String,
    file_system: Option<&'a str>,
    size: u64,
    free: u64,
    pods: BTreeMap<&'static str, usize>,
    images: usize,
    volumes: usize,
}

#[derive(Serialize)]
struct VersionsJson<'a> {
    gantry: &'static str,
    stage1: Option<&'a str>,
}

/// Prints what gantry has found on the host, and what its store holds.
impl RunCommand for Info {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let info = context.open_to_read()?.info()?;
        json::to_stdout(|out| match self.output.format {
            OutputFormat::Table => write_text(out, &info),
            format => json::write_document(out, format, &document(&info)),
        })?;
        Ok(ExitStatus::OK)
    }
}

fn document(info: &EngineInfo) -> InfoJson<'_> {
    let (host, store) = (&info.host, &info.store);
    InfoJson {
        host: HostJson {
            hostname: &host.hostname,
            distribution: host.distribution.as_deref(),
            kernel: &host.kernel,
            architecture: &host.architecture,
            processors: host.processors,
            memory: host.memory,
            memory_available: host.available_memory,
            cgroups: host.cgroups,
            controllers: &host.controllers,
            security_modules: &host.security_modules,
        },
        store: StoreJson {
            dir: store.dir.display().to_string(),
            file_system: store.file_system.as_deref(),
            size: store.size,
            free: store.free,
            pods: store.pods.iter().map(|(phase, count)| (phase.as_str(), *count)).collect(),
            images: store.images,
            volumes: store.volumes,
        },
        version: VersionsJson { gantry: env!("CARGO_PKG_VERSION"), stage1: info.stage1.as_deref() },
        networks: &info.networks,
        warnings: info.warnings.iter().map(|finding| finding.what.as_str()).collect(),
    }
}

fn write_text(out: &mut dyn Write, info: &EngineInfo) -> io::Result<()> {
    let (host, store) = (&info.host, &info.store);
    let pods: Vec<String> = store.pods.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    let free = format!("{} of {}", size::human(store.free), size::human(store.size));
    let memory = format!("{}, {} available", size::human(host.memory), size::human(host.available_memory));
    let lines = [
        ("Host", host.hostname.clone()),
        ("Distribution", host.distribution.clone().unwrap_or_default()),
        ("Kernel", format!("{} {}", host.kernel, host.architecture)),
        ("Processors", host.processors.to_string()),
        ("Memory", memory),
        ("Cgroups", format!("{} ({})", host.cgroups, host.controllers.join(", "))),
        ("Security", host.security_modules.join(", ")),
        ("Data", format!("{} ({})", store.dir.display(), store.file_system.as_deref().unwrap_or("unknown"))),
        ("Free", free),
        ("Pods", if pods.is_empty() { "none".to_owned() } else { pods.join(", ") }),
        ("Images", store.images.to_string()),
        ("Volumes", store.volumes.to_string()),
        ("Networks", info.networks.join(", ")),
        ("Version", env!("CARGO_PKG_VERSION").to_owned()),
        ("Supervisor", info.stage1.clone().unwrap_or_else(|| "not found".to_owned())),
    ];
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        writeln!(out, "{name:<14}{}", escape::text(value))?;
    }
    info.warnings.iter().try_for_each(|warning| write_warning(out, warning))
}

fn write_warning(out: &mut dyn Write, finding: &Finding) -> io::Result<()> {
    writeln!(out, "{:<14}{}", "Warning", escape::text(&finding.what))
}
