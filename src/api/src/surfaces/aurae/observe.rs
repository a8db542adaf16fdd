//! `observe.Observe`: the state of gantryd, its log, and the output of processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gantry_engine::Observer;
use gantry_model::PhaseName;
use gantry_proto::aurae::meta::AuraeMeta;
use gantry_proto::aurae::observe::observe_server::Observe;
use gantry_proto::aurae::observe::{
    GetAuraeDaemonLogStreamRequest, GetSubProcessStreamRequest, LogChannelType, LogItem, StatusRequest, StatusResponse,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::process_log::{ItemEncoder, process_id};
use crate::bridge::Weight;
use crate::context::Context;
use crate::daemon_log::DaemonLogSlice;
use crate::daemon_log_stream::{DaemonLogSelection, stream_daemon_log};
use crate::logs::stream_logs;
use crate::peer::Peer;
use crate::quota::Quota;
use crate::status;

/// Maximum streams.
const MAX_STREAMS: usize = 1024;
/// The channel of gantryd's own log.
const DAEMON_CHANNEL: &str = "gantryd";

/// See the module.
pub(super) struct ObserveService {
    context: Arc<Context>,
    started: Instant,
    streams: Quota,
}

impl ObserveService {
    /// The service of a server that starts now.
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, started: Instant::now(), streams: Quota::new(MAX_STREAMS) }
    }
}

#[tonic::async_trait]
impl Observe for ObserveService {
    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let up = self.started.elapsed();
        let describe = move |observer: &Observer| describe(observer, up);
        let peer = Peer::of(request.extensions());
        let message = self.context.reader.call(peer, Weight::Light, describe).await?;
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Response::new(StatusResponse { meta: Some(AuraeMeta { name, message }) }))
    }

    type GetAuraeDaemonLogStreamStream = ReceiverStream<Result<LogItem, Status>>;

    async fn get_aurae_daemon_log_stream(
        &self,
        request: Request<GetAuraeDaemonLogStreamRequest>,
    ) -> Result<Response<Self::GetAuraeDaemonLogStreamStream>, Status> {
        let permit = self.streams.acquire(Peer::of(request.extensions()))?;
        let selection = DaemonLogSelection { tail: Some(0), follow: true };
        Ok(Response::new(stream_daemon_log(&self.context, permit, selection, daemon_items)))
    }

    type GetSubProcessStreamStream = ReceiverStream<Result<LogItem, Status>>;

    async fn get_sub_process_stream(
        &self,
        request: Request<GetSubProcessStreamRequest>,
    ) -> Result<Response<Self::GetSubProcessStreamStream>, Status> {
        let permit = self.streams.acquire(Peer::of(request.extensions()))?;
        let GetSubProcessStreamRequest { channel_type, process_id: pid } = request.into_inner();
        let stderr = match LogChannelType::try_from(channel_type) {
            Ok(LogChannelType::ChannelStdout) => false,
            Ok(LogChannelType::ChannelStderr) => true,
            Err(_) => return Err(status::invalid_field("channel_type", &format!("{channel_type} is no channel"))),
        };
        let pid = process_id(pid)?;
        let encoder = ItemEncoder::new(stderr);
        let open = move |observer: &Observer| {
            observer.open_process_logs(pid, stderr).map_err(|error| status::from_error(&error))
        };
        Ok(Response::new(stream_logs(&self.context, permit, true, encoder, open).await?))
    }
}

/// The state of gantryd in a line.
fn describe(observer: &Observer, up: Duration) -> Result<String, Status> {
    let pods = observer.count_pods().map_err(|error| status::from_error(&error))?;
    let pods: u64 = pods.into_iter().filter(|(phase, _)| *phase == PhaseName::Running).map(|(_, count)| count).sum();
    let schedules = observer.schedules().map_err(|error| status::from_error(&error))?;
    let scheduled = schedules.iter().filter(|schedule| schedule.row.enabled).count();
    let (version, up) = (env!("CARGO_PKG_VERSION"), up.as_secs());
    let plural = if pods == 1 { "" } else { "s" };
    Ok(format!("ok, {version}, up {up}s, {pods} pod{plural}, {scheduled} scheduled"))
}

/// The lines of gantryd's log, after a warning with the number of those that the client missed.
fn daemon_items(slice: &DaemonLogSlice) -> Vec<LogItem> {
    let item = |line: String, timestamp| LogItem { channel: DAEMON_CHANNEL.to_owned(), line, timestamp };
    let first = slice.lines.first().map(|line| line.at.seconds()).unwrap_or_default();
    let missed = (slice.missed > 0).then(|| {
        let text = format!("warning: {} lines were dropped: the client reads too slowly", slice.missed);
        item(text, first)
    });
    let lines =
        slice.lines.iter().map(|line| item(String::from_utf8_lossy(&line.text).into_owned(), line.at.seconds()));
    missed.into_iter().chain(lines).collect()
}
