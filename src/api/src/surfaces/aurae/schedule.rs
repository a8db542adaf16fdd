//! `schedule.Schedule` and `schedule.ScheduleExecutable`: commands that are kept running. Each is a schedule without a
//! timer, whose pod has the command as its app.

use std::sync::Arc;

use gantry_engine::{Engine, Observer, ScheduleState, ScheduleView, now, parse_manifest};
use gantry_model::host_command::{COMMAND_ANNOTATION, host_command_spec};
use gantry_model::schedule::validate_comment;
use gantry_model::spec::SpecError;
use gantry_model::{AppState, ScheduleName, quote_command, split_command};
use gantry_proto::aurae::meta::AuraeMeta;
use gantry_proto::aurae::runtime::Executable;
use gantry_proto::aurae::schedule::schedule_executable_server::ScheduleExecutable;
use gantry_proto::aurae::schedule::schedule_server::Schedule;
use gantry_proto::aurae::schedule::{
    ExecutableDestroyResponse, ExecutableDisableResponse, ExecutableEnableResponse, ShowDisabledRequest,
    ShowDisabledResponse, ShowEnabledRequest, ShowEnabledResponse,
};
use tonic::{Extensions, Request, Response, Status};

use super::outcome::describe_outcome;
use crate::audit::CallNotes;
use crate::bridge::{Bridge, Weight};
use crate::context::Context;
use crate::peer::Peer;
use crate::status;

/// See the module.
#[derive(Clone)]
pub(super) struct ScheduleService {
    context: Arc<Context>,
    writer: Arc<Bridge<Engine>>,
}

impl ScheduleService {
    /// The services of a server.
    pub(super) fn new(context: Arc<Context>, writer: Arc<Bridge<Engine>>) -> Self {
        Self { context, writer }
    }

    async fn list(&self, extensions: &Extensions, enabled: bool) -> Result<Vec<Executable>, Status> {
        let list = move |observer: &Observer| list_executables(observer, enabled);
        self.context.reader.call(Peer::of(extensions), Weight::Heavy, list).await
    }
}

#[tonic::async_trait]
impl Schedule for ScheduleService {
    async fn show_enabled(
        &self,
        request: Request<ShowEnabledRequest>,
    ) -> Result<Response<ShowEnabledResponse>, Status> {
        let executables = self.list(request.extensions(), true).await?;
        Ok(Response::new(ShowEnabledResponse { meta: Some(no_remark("")), executables }))
    }

    async fn show_disabled(
        &self,
        request: Request<ShowDisabledRequest>,
    ) -> Result<Response<ShowDisabledResponse>, Status> {
        let executables = self.list(request.extensions(), false).await?;
        Ok(Response::new(ShowDisabledResponse { meta: Some(no_remark("")), executables }))
    }
}

#[tonic::async_trait]
impl ScheduleExecutable for ScheduleService {
    /// Replies as soon as the schedule is durable. gantryd starts the command afterwards.
    async fn enable(&self, request: Request<Executable>) -> Result<Response<ExecutableEnableResponse>, Status> {
        let (_, extensions, executable) = request.into_parts();
        CallNotes::set_request(&extensions, &executable);
        let name = schedule_name(&executable)?;
        let invalid = |error: SpecError| status::invalid_field("command", &error.to_string());
        let words = split_command(&executable.command).map_err(invalid)?;
        let spec = host_command_spec(&executable.command, words).map_err(invalid)?;
        let comment = executable.comment;
        validate_comment(&comment).map_err(|error| status::invalid_field("comment", &error.to_string()))?;
        let meta = AuraeMeta { name: name.to_string(), message: "enabled".to_owned() };
        let enable = move |engine: &Engine| {
            let enabled = engine.enable_schedule(name, spec, None, comment);
            enabled.map_err(|error| status::from_error(&error))
        };
        self.writer.call(Peer::of(&extensions), Weight::Heavy, enable).await?;
        Ok(Response::new(ExecutableEnableResponse { meta: Some(meta) }))
    }

    /// Replies when the command has ended.
    async fn disable(&self, request: Request<Executable>) -> Result<Response<ExecutableDisableResponse>, Status> {
        let (_, extensions, executable) = request.into_parts();
        CallNotes::set_request(&extensions, &executable);
        let name = schedule_name(&executable)?;
        let meta = AuraeMeta { name: name.to_string(), message: "disabled".to_owned() };
        let disable = move |engine: &Engine| engine.disable_schedule(&name).map_err(|error| status::from_error(&error));
        self.writer.call(Peer::of(&extensions), Weight::Stop, disable).await?;
        Ok(Response::new(ExecutableDisableResponse { meta: Some(meta) }))
    }

    /// Replies when the command has ended and its pod is removed.
    async fn destroy(&self, request: Request<Executable>) -> Result<Response<ExecutableDestroyResponse>, Status> {
        let (_, extensions, executable) = request.into_parts();
        CallNotes::set_request(&extensions, &executable);
        let name = schedule_name(&executable)?;
        let meta = AuraeMeta { name: name.to_string(), message: "destroyed".to_owned() };
        let destroy = move |engine: &Engine| engine.destroy_schedule(&name).map_err(|error| status::from_error(&error));
        self.writer.call(Peer::of(&extensions), Weight::Stop, destroy).await?;
        Ok(Response::new(ExecutableDestroyResponse { meta: Some(meta) }))
    }
}

/// `-`, as Aurae has it, where there is nothing to remark.
fn no_remark(name: &str) -> AuraeMeta {
    AuraeMeta { name: name.to_owned(), message: "-".to_owned() }
}

/// The identity of an executable: its name, or its command if it has none.
fn schedule_name(executable: &Executable) -> Result<ScheduleName, Status> {
    let named = executable.meta.as_ref().map(|meta| meta.name.trim()).filter(|name| !name.is_empty());
    let (field, text) = match named {
        Some(name) => ("meta.name", name),
        None => ("command", executable.command.trim()),
    };
    if text.is_empty() {
        return Err(status::invalid_field("command", "the command is empty"));
    }
    text.parse().map_err(|error: SpecError| {
        let hint = if named.is_none() { "; give it a short name in meta.name" } else { "" };
        status::invalid_field(field, &format!("{error}{hint}"))
    })
}

/// The schedules that are enabled, or those that are not, by name.
fn list_executables(observer: &Observer, enabled: bool) -> Result<Vec<Executable>, Status> {
    let schedules = observer.schedules().map_err(|error| status::from_error(&error))?;
    Ok(schedules.iter().filter(|schedule| schedule.row.enabled == enabled).map(executable).collect())
}

fn executable(schedule: &ScheduleView) -> Executable {
    let meta = Some(AuraeMeta { name: schedule.row.name.to_string(), message: describe(schedule) });
    Executable { meta, command: command_line(schedule), comment: schedule.row.comment.clone() }
}

/// The command line as it was enabled; of a schedule that the command line has made, its images and arguments.
fn command_line(schedule: &ScheduleView) -> String {
    // A manifest that cannot be read is reported by its start.
    let Ok(spec) = parse_manifest(schedule.row.manifest.as_bytes()) else { return String::new() };
    if let Some(line) = spec.user_annotations.get(COMMAND_ANNOTATION) {
        return line.clone();
    }
    let words = spec.apps.iter().flat_map(|app| {
        let image = app.image.clone().map(String::from);
        image.into_iter().chain(app.exec.clone()).chain(app.args.iter().cloned())
    });
    quote_command(&words.collect::<Vec<_>>())
}

/// The live state: `active pid 123`, `standby: exit status: 1, next start in 4s`, `standby: stopped on request`,
/// `error: …, next start in 4s`, `passive`.
fn describe(schedule: &ScheduleView) -> String {
    let next = schedule.next_start().map(|at| format!(", next start in {}s", at.since(now()).as_secs()));
    let next = next.unwrap_or_default();
    let pid = || match schedule.newest_pod.as_ref()?.apps.first()?.state {
        AppState::Started { pid, .. } => Some(format!("active pid {pid}")),
        // It does not run.
        _ => None,
    };
    match schedule.state() {
        ScheduleState::Active => pid().unwrap_or_else(|| "active".to_owned()),
        ScheduleState::Passive => "passive".to_owned(),
        ScheduleState::Standby if schedule.is_stopped_on_request() => "standby: stopped on request".to_owned(),
        ScheduleState::Standby => format!("standby{next}"),
        ScheduleState::Restarting => match schedule.ended_app() {
            Some(app) => format!("standby: {}{next}", describe_outcome(app.end.how)),
            None => format!("standby{next}"),
        },
        ScheduleState::Failed => format!("error: {}{next}", schedule.failure().unwrap_or_default()),
    }
}
