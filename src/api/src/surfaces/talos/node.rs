//! The node: what the services share, and the treatment of every call.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use gantry_engine::{Engine, now};
use gantry_model::Timestamp;
use tokio::sync::Semaphore;
use tokio_stream::{Stream, StreamExt as _};
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use super::control::MachineControl;
use super::host::clock::TimeChecks;
use super::own_names::{NodeCertificate, OwnNames};
use super::pod_change::PodChange;
use super::service_ids::ServiceIds;
use super::targets::{NodeMessage, Targets};
use crate::audit::CallNotes;
use crate::bridge::{Bridge, Weight};
use crate::context::Context;
use crate::peer::Peer;
use crate::quota::Quota;
use crate::supervisors::Supervisors;

/// Maximum streams.
const MAX_STREAMS: usize = 1024;
/// Maximum calls that read files, each of which has a thread.
const MAX_FILE_JOBS: usize = 32;
/// Maximum images that are fetched at a time; further calls wait.
const MAX_PULLS: usize = 4;
/// Maximum watches of resources, each of which reads the store after a change.
const MAX_WATCHES: usize = 64;

/// A stream of messages.
pub(super) type MessageStream<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

/// See the module.
pub(super) struct Node {
    pub(super) context: Arc<Context>,
    pub(super) writer: Arc<Bridge<Engine>>,
    pub(super) control: MachineControl,
    certificate: NodeCertificate,
    supervisors: Supervisors,
    /// When gantryd was started.
    pub(super) started: Timestamp,
    pub(super) streams: Quota,
    pub(super) file_jobs: Quota,
    pub(super) pulls: Arc<Semaphore>,
    pub(super) watches: Quota,
    pub(super) time_checks: TimeChecks,
    pub(super) service_ids: Arc<ServiceIds>,
}

impl Node {
    /// The node of a server. Called inside the runtime.
    pub(super) fn new(
        context: Arc<Context>,
        writer: Arc<Bridge<Engine>>,
        control: MachineControl,
        certificate: NodeCertificate,
    ) -> Self {
        Self {
            context,
            writer,
            control,
            certificate,
            supervisors: Supervisors::new(tokio::runtime::Handle::current()),
            started: now(),
            streams: Quota::new(MAX_STREAMS),
            file_jobs: Quota::new(MAX_FILE_JOBS),
            pulls: Arc::new(Semaphore::new(MAX_PULLS)),
            watches: Quota::new(MAX_WATCHES),
            time_checks: TimeChecks::default(),
            service_ids: Arc::default(),
        }
    }

    /// The nodes that a call names.
    ///
    /// # Errors
    /// The errors of [`Targets::parse`], and `RESOURCE_EXHAUSTED` if too many calls wait.
    pub(super) async fn targets(&self, peer: Peer, metadata: &MetadataMap) -> Result<Targets, Status> {
        if !Targets::are_named(metadata) {
            return Ok(Targets::This);
        }
        // The host may have thousands of addresses, and the certificate is a file. Slow work of other calls must not
        // delay this.
        let (metadata, own) = (metadata.clone(), OwnNames::new(self.certificate.clone()));
        self.context.reader.call_without_handle(peer, Weight::Light, move || Targets::parse(&metadata, own)).await
    }

    /// Changes a pod, on a thread of the bridge.
    ///
    /// # Errors
    /// The engine's errors.
    pub(super) async fn change_pod(&self, peer: Peer, change: PodChange) -> Result<(), Status> {
        let supervisors = self.supervisors.clone();
        self.writer.call(peer, change.weight(), move |engine| change.apply(engine, &supervisors)).await
    }

    /// Executes a unary call, unless it names other nodes only, and returns the messages of the reply.
    ///
    /// # Errors
    /// The errors of [`Targets`].
    pub(super) async fn unary<Q, M, F>(
        &self,
        request: Request<Q>,
        call: impl FnOnce(Peer, Q) -> F + Send,
    ) -> Result<Vec<M>, Status>
    where
        Q: Debug + Send,
        M: NodeMessage + Send,
        F: Future<Output = Result<M, Status>> + Send,
    {
        let (metadata, extensions, message) = request.into_parts();
        CallNotes::set_request(&extensions, &message);
        let targets = self.targets(Peer::of(&extensions), &metadata).await?;
        if !targets.include_this_node() {
            CallNotes::set_outcome(&extensions, Err(&Targets::not_forwarded()));
            return targets.replies(None);
        }
        let result = call(Peer::of(&extensions), message).await;
        CallNotes::set_outcome(&extensions, result.as_ref().map(drop));
        targets.replies(Some(result))
    }

    /// Executes a unary call that reads the host, on a thread of the bridge.
    ///
    /// # Errors
    /// The errors of [`Targets`].
    pub(super) async fn read_host<M: NodeMessage + Send + 'static>(
        &self,
        request: Request<()>,
        read: impl FnOnce() -> Result<M, Status> + Send + 'static,
    ) -> Result<Vec<M>, Status> {
        self.unary(request, |peer, ()| self.context.reader.call(peer, Weight::Light, move |_| read())).await
    }

    /// Starts a stream, unless it is asked of other nodes only.
    ///
    /// # Errors
    /// The errors of [`Targets`].
    pub(super) async fn stream<Q, M, S, F>(
        &self,
        request: Request<Q>,
        open: impl FnOnce(Peer, Q) -> F + Send,
    ) -> Result<MessageStream<M>, Status>
    where
        Q: Send,
        M: NodeMessage + Send + 'static,
        S: Stream<Item = Result<M, Status>> + Send + 'static,
        F: Future<Output = Result<S, Status>> + Send,
    {
        let (metadata, extensions, message) = request.into_parts();
        let targets = self.targets(Peer::of(&extensions), &metadata).await?;
        let refusals = tokio_stream::iter(targets.refusals().into_iter().map(Ok));
        if !targets.include_this_node() {
            return Ok(Box::pin(refusals));
        }
        let opened = open(Peer::of(&extensions), message).await;
        let Some(target) = targets.this_node().cloned() else { return Ok(Box::pin(opened?)) };
        Ok(match opened {
            Err(status) => Box::pin(refusals.chain(tokio_stream::once(Ok(target.failure(&status))))),
            Ok(stream) => Box::pin(refusals.chain(stream.map(move |message| {
                Ok(message.map_or_else(|status| target.failure(&status), |message| target.mark(message)))
            }))),
        })
    }
}
