//! GetLogs: the requested logs of a pod, streamed by [`crate::logs`].

use std::sync::Arc;

use gantry_engine::{LogQuery, LogReader, Observer};
use gantry_model::AppName;
use gantry_model::id::shown;
use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::v1alpha::GetLogsRequest;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::log_lines::LineEncoder;
use super::pods;
use crate::context::Context;
use crate::logs::stream_logs;
use crate::quota::QuotaPermit;
use crate::request::{SecondsField, check_text, time_range};
use crate::status::{self, invalid_field};

/// The logs that a request selects.
pub(super) struct LogSelection {
    pod: String,
    app: String,
    query: LogQuery,
}

impl LogSelection {
    /// Translates the request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, which names the field.
    pub(super) fn parse(request: GetLogsRequest) -> Result<Self, Status> {
        let GetLogsRequest { pod_id, app_name, lines, follow, since_time, until_time } = request;
        check_text("pod_id", &pod_id)?;
        check_text("app_name", &app_name)?;
        let (since, until) = time_range(
            SecondsField { name: "since_time", seconds: since_time },
            SecondsField { name: "until_time", seconds: until_time },
        )?;
        let lines =
            usize::try_from(lines).map_err(|_| invalid_field("lines", "a number of lines is not less than 0"))?;
        let tail_total = Some(lines).filter(|lines| *lines > 0);
        let query = LogQuery { since, until, tail_total, follow, ..LogQuery::default() };
        Ok(Self { pod: pod_id, app: app_name, query })
    }

    /// Opens the logs.
    fn open(self, observer: &Observer) -> Result<LogReader, Status> {
        let Self { pod, app, mut query } = self;
        let view = pods::resolve(observer, &pod)?;
        if !app.is_empty() {
            // No app has a text as its name that is not a valid name.
            let none = || Status::not_found(format!("pod {} has no app '{}'", view.row.id, shown(&app)));
            query.apps = vec![app.parse::<AppName>().map_err(|_| none())?];
        }
        observer.open_logs(view.row.id, &query).map_err(|error| status::from_error(&error))
    }
}

/// Starts the stream.
///
/// # Errors
/// No such pod or app, or the logs cannot be read.
pub(super) async fn stream(
    context: &Arc<Context>,
    permit: QuotaPermit,
    selection: LogSelection,
) -> Result<ReceiverStream<Result<Encoded, Status>>, Status> {
    let follow = selection.query.follow;
    stream_logs(context, permit, follow, LineEncoder::new(), |observer| selection.open(observer)).await
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
