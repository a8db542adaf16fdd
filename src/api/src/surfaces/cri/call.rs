//! A call of a client of the CRI. Its work is done on the threads of a bridge.

use std::sync::Arc;

use gantry_engine::{Engine, Observer};
use tonic::{Request, Status};

use crate::bridge::{Bridge, Weight};
use crate::context::Context;
use crate::peer::Peer;

/// See the module.
pub(super) struct Call<'a, M> {
    context: &'a Arc<Context>,
    writer: &'a Bridge<Engine>,
    /// The client.
    pub(super) peer: Peer,
    /// Its request, or what was read of it.
    pub(super) message: M,
}

impl<'a, M: Send + 'static> Call<'a, M> {
    /// The call of this request.
    pub(super) fn new(context: &'a Arc<Context>, writer: &'a Bridge<Engine>, request: Request<M>) -> Self {
        let (_, extensions, message) = request.into_parts();
        Self { context, writer, peer: Peer::of(&extensions), message }
    }

    /// The same call with what the message says.
    pub(super) fn map<N>(self, read: impl FnOnce(M) -> N) -> Call<'a, N> {
        let Self { context, writer, peer, message } = self;
        Call { context, writer, peer, message: read(message) }
    }

    /// The same, if the message is valid.
    ///
    /// # Errors
    /// The status of the check.
    pub(super) fn try_map<N>(self, check: impl FnOnce(M) -> Result<N, Status>) -> Result<Call<'a, N>, Status> {
        let Self { context, writer, peer, message } = self;
        Ok(Call { context, writer, peer, message: check(message)? })
    }

    /// Runs a job that reads.
    ///
    /// # Errors
    /// The job's own error, and the errors of [`Bridge::call`].
    pub(super) async fn read<T: Send + 'static>(
        self,
        weight: Weight,
        job: impl FnOnce(&Observer, M) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let Self { context, peer, message, .. } = self;
        let job = move |observer: &Observer| job(observer, message);
        context.reader.call(peer, weight, job).await
    }

    /// Runs a job that reads the counters of pods.
    ///
    /// # Errors
    /// The job's own error, and the errors of [`Bridge::call`].
    pub(super) async fn sample<T: Send + 'static>(
        self,
        job: impl FnOnce(&Context, &Observer, M) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let context = Arc::clone(self.context);
        self.read(Weight::Heavy, move |observer, message| job(&context, observer, message)).await
    }

    /// Runs a job that may write.
    ///
    /// # Errors
    /// The job's own error, and the errors of [`Bridge::call`].
    pub(super) async fn write<T: Send + 'static>(
        self,
        weight: Weight,
        job: impl FnOnce(&Engine, M) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let Self { writer, peer, message, .. } = self;
        let job = move |engine: &Engine| job(engine, message);
        writer.call(peer, weight, job).await
    }
}
