//! The audit of calls that change something: a line of the log (target `audit`) and an event for each, with its caller,
//! roles, request and outcome. Both are written before the reply is sent. A refused call only has the line, so that a
//! client without rights cannot displace other events.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use gantry_engine::{Engine, now};
use gantry_model::id::shown;
use gantry_model::{EventKind, NewEvent};
use tonic::{Code, Extensions, Status};
use tracing::{info, warn};

use crate::bridge::{Bridge, Weight};
use crate::peer::{Caller, Peer};
use crate::status;

/// Maximum bytes of a request in the log and in an event.
const MAX_REQUEST: usize = 256;

/// A call in progress. One that is dropped, because its client has gone away, has the outcome CANCELLED.
pub(crate) struct AuditedCall {
    /// `None`: it was recorded.
    record: Option<CallRecord>,
    notes: CallNotes,
    writer: Arc<Bridge<Engine>>,
}

/// The notes of the handler of a call. They are among the extensions of its request.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallNotes(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    request: String,
    outcome: Option<Code>,
}

#[derive(Debug)]
struct CallRecord {
    caller: String,
    roles: String,
    method: String,
}

impl CallNotes {
    /// Writes the request into the notes of a call, if it has notes.
    pub(crate) fn set_request(extensions: &Extensions, request: &impl Debug) {
        if let Some(Self(notes)) = extensions.get() {
            let mut text = format!("{request:?}");
            text.truncate(text.floor_char_boundary(MAX_REQUEST));
            notes.lock().unwrap_or_else(PoisonError::into_inner).request = text;
        }
    }

    /// Writes the outcome into the notes of a call, if it has notes. It goes before the status of the reply, because
    /// that of a call with named nodes is always OK.
    pub(crate) fn set_outcome(extensions: &Extensions, result: Result<(), &Status>) {
        if let Some(Self(notes)) = extensions.get() {
            let code = result.map_or_else(Status::code, |()| Code::Ok);
            notes.lock().unwrap_or_else(PoisonError::into_inner).outcome = Some(code);
        }
    }
}

impl AuditedCall {
    /// Begins to audit a call.
    pub(crate) fn new(caller: &Caller, roles: String, method: &str, writer: Arc<Bridge<Engine>>) -> Self {
        let record = CallRecord { caller: caller.to_string(), roles, method: method.to_owned() };
        Self { record: Some(record), notes: CallNotes::default(), writer }
    }

    /// The notes, for the extensions of the request.
    pub(crate) fn notes(&self) -> CallNotes {
        self.notes.clone()
    }

    /// Records the call with the status of its reply. The reply to a call whose deadline has passed cannot wait for the
    /// record: the client would give up before.
    pub(crate) async fn finish(mut self, replied: Code) {
        if replied == Code::DeadlineExceeded {
            return self.record_later(replied);
        }
        let Some(record) = self.record.take() else { return };
        record.write(&self.notes, replied, &self.writer).await;
    }

    /// Records the call in a task of its own.
    fn record_later(&mut self, replied: Code) {
        let (Some(record), Ok(runtime)) = (self.record.take(), tokio::runtime::Handle::try_current()) else { return };
        let (notes, writer) = (self.notes.clone(), Arc::clone(&self.writer));
        runtime.spawn(async move { record.write(&notes, replied, &writer).await });
    }

    /// Logs that the call was refused.
    pub(crate) fn refuse(mut self, status: &Status) {
        if let Some(record) = self.record.take() {
            record.log(status.code(), "");
        }
    }
}

impl Drop for AuditedCall {
    fn drop(&mut self) {
        self.record_later(Code::Cancelled);
    }
}

impl CallRecord {
    fn log(&self, outcome: Code, request: &str) {
        let Self { caller, roles, method } = self;
        info!(target: "audit", peer = %caller, %roles, %method, outcome = name_of(outcome), request = %shown(request), "call");
    }

    async fn write(self, notes: &CallNotes, replied: Code, writer: &Bridge<Engine>) {
        let Notes { request, outcome } = std::mem::take(&mut *notes.0.lock().unwrap_or_else(PoisonError::into_inner));
        let outcome = outcome.unwrap_or(replied);
        self.log(outcome, &request);
        let Self { caller, roles, method } = self;
        let data = [("roles", roles), ("outcome", name_of(outcome).to_owned()), ("request", request)];
        let data: BTreeMap<String, String> = data
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        let event = NewEvent { kind: EventKind::NodeCalled, at: now(), id: method, name: caller, data };
        let record = move |engine: &Engine| engine.record_event(&event).map_err(|error| status::from_error(&error));
        // The record must not be lost because clients fill the queue.
        if let Err(error) = writer.call(Peer::Root, Weight::Light, record).await {
            warn!(target: "audit", "cannot write the event of a call: {}", error.message());
        }
    }
}

/// The name of a code, as in the specification of gRPC.
fn name_of(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
