//! `gantry doctor`.

use gantry_engine::{Finding, Severity};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::{Context, check_dir, need_root};
use crate::exit::ExitStatus;
use crate::failure::Failure;
use crate::render::{OutputFlag, OutputFormat, escape, json};

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Also read every page of the database, every blob and every file of the layers
    #[arg(long)]
    deep: bool,
    #[command(flatten)]
    output: OutputFlag,
}

/// A finding as JSON.
#[derive(Serialize)]
struct FindingJson<'a> {
    severity: &'static str,
    what: &'a str,
    hint: &'a str,
}

/// Prints problems and what to do about them. Exits with code 1 if there are errors.
impl RunCommand for Doctor {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        need_root("doctor")?;
        let settings = context.settings()?;
        check_dir(&settings.options.dir)?;
        let certificates = gantry_engine::examine_certificates(&settings);
        let mut findings = gantry_engine::examine(settings.options, self.deep)?;
        findings.extend(certificates);
        json::to_stdout(|out| match self.output.format {
            OutputFormat::Table => write_findings(out, &findings),
            format => json::write_items(out, format, findings.iter().map(finding_json)),
        })?;
        Ok(if findings.iter().any(|finding| is_error(finding.severity)) {
            ExitStatus::NOT_FOUND
        } else {
            ExitStatus::OK
        })
    }
}

fn write_findings(out: &mut dyn std::io::Write, findings: &[Finding]) -> std::io::Result<()> {
    if findings.is_empty() {
        return writeln!(out, "all is well");
    }
    for finding in findings {
        writeln!(out, "{}: {}", severity(finding.severity), escape::text(&finding.what))?;
        if !finding.hint.is_empty() {
            writeln!(out, "  {}", escape::text(&finding.hint))?;
        }
    }
    Ok(())
}

fn finding_json(finding: &Finding) -> FindingJson<'_> {
    FindingJson { severity: severity(finding.severity), what: &finding.what, hint: &finding.hint }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

fn is_error(severity: Severity) -> bool {
    match severity {
        Severity::Warning => false,
        Severity::Error => true,
    }
}
