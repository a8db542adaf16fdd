//! `gantry doctor`.

use gantry_engine::{Finding, Severity};
use serde::Serialize;

use crate::context::{Context, need_root};
use crate::exit;
use crate::failure::Failure;
use crate::render::{Form, escape, json};

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Read every page of the database, every blob and every file of the layers
    #[arg(long)]
    deep: bool,
    /// Form of the answer
    #[arg(short = 'o', long = "output", alias = "format", value_enum, default_value_t, value_name = "FORM")]
    form: Form,
}

/// One finding as JSON.
#[derive(Serialize)]
struct Document<'a> {
    severity: &'static str,
    what: &'a str,
    hint: &'a str,
}

/// Says what is wrong, and what to do about it. Code 1 when something is.
pub(crate) fn doctor(context: &Context, args: &Doctor) -> Result<u8, Failure> {
    need_root("doctor")?;
    let findings = gantry_engine::examine(context.options()?, args.deep)?;
    json::to_stdout(|out| match args.form {
        Form::Table => lines(out, &findings),
        form => json::items(out, form, findings.iter().map(document)),
    })?;
    Ok(if findings.iter().any(|finding| is_wrong(finding.severity)) { exit::NO } else { exit::OK })
}

fn lines(out: &mut dyn std::io::Write, findings: &[Finding]) -> std::io::Result<()> {
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

fn document(finding: &Finding) -> Document<'_> {
    Document { severity: severity(finding.severity), what: &finding.what, hint: &finding.hint }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

fn is_wrong(severity: Severity) -> bool {
    match severity {
        Severity::Warning => false,
        Severity::Error => true,
    }
}
