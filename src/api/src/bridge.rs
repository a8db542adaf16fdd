//! From async tasks to the synchronous engine: a few threads, each with an engine handle of its own, and one bounded
//! queue. There are two kinds of handle: [`Observer`], which cannot write, and [`Engine`].
//!
//! A job whose caller has gone away before it starts is skipped. Heavy jobs (long lists, pieces of logs, changes) never
//! occupy all threads, so that a small read does not wait for a large one. A thread opens its handle again after a
//! failure that the handle may have caused, and when the database file was replaced.

use std::collections::VecDeque;
use std::io;
use std::ops::Add;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use gantry_engine::{Engine, Observer, Options};
use tokio::sync::{Semaphore, oneshot};
use tonic::{Code, Status};
use tracing::Span;

use crate::peer::Peer;
use crate::status;

/// Threads of a bridge whose jobs read.
pub(crate) const READERS: usize = 4;
/// Threads of a bridge whose jobs change pods. They wait for supervisors most of the time.
pub(crate) const WRITERS: usize = 8;
/// Maximum calls in the queue. Further ones are refused at once. Half of the queue is closed to TCP clients; calls of
/// root are never refused.
const MAX_WAITING: usize = 1024;
/// Maximum jobs of streams in the queue. Further ones wait outside it, because a stream that was accepted must not fail
/// on account of other clients.
const MAX_WAITING_FOR_STREAMS: usize = 256;

/// The cost of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// A row or a page of rows.
    Light,
    /// Reads that grow with the contents of the store, and changes.
    Heavy,
}

/// The jobs of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct QueueDepth {
    /// Light jobs that wait.
    pub(crate) light: usize,
    /// Heavy jobs that wait.
    pub(crate) heavy: usize,
    /// Heavy jobs under way.
    pub(crate) busy: usize,
}

impl Add for QueueDepth {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { light: self.light + other.light, heavy: self.heavy + other.heavy, busy: self.busy + other.busy }
    }
}

/// A handle to the engine that a worker thread opens and keeps.
pub(crate) trait EngineHandle: Sized + 'static {
    /// Opens the handle.
    ///
    /// # Errors
    /// The status of the engine's error.
    fn open(options: &Options) -> Result<Self, Status>;

    /// Whether the database file is still the one that the handle opened.
    fn is_current(&self) -> bool;
}

impl EngineHandle for Observer {
    fn open(options: &Options) -> Result<Self, Status> {
        Self::open(options.clone()).map_err(|error| status::from_error(&error))
    }

    fn is_current(&self) -> bool {
        Self::is_current(self)
    }
}

impl EngineHandle for Engine {
    fn open(options: &Options) -> Result<Self, Status> {
        Self::open(options.clone()).map_err(|error| status::from_error(&error))
    }

    fn is_current(&self) -> bool {
        // If the file cannot be examined, assume that it was not replaced.
        self.store().is_current().unwrap_or(true)
    }
}

/// The treatment of the handle after a job.
enum HandleUse {
    Keep,
    Reopen,
}

type Job<H> = Box<dyn FnOnce(Result<&H, Status>) -> HandleUse + Send>;

struct Queue<H> {
    light: VecDeque<Job<H>>,
    heavy: VecDeque<Job<H>>,
    /// Heavy jobs under way.
    busy: usize,
    closed: bool,
}

impl<H> Default for Queue<H> {
    fn default() -> Self {
        Self { light: VecDeque::new(), heavy: VecDeque::new(), busy: 0, closed: false }
    }
}

struct Shared<H> {
    queue: Mutex<Queue<H>>,
    more: Condvar,
    options: Options,
    /// Maximum heavy jobs at a time.
    max_heavy: usize,
}

impl<H> Shared<H> {
    fn lock(&self) -> MutexGuard<'_, Queue<H>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module. Its threads end when it is dropped.
pub(crate) struct Bridge<H> {
    shared: Arc<Shared<H>>,
    streams: Semaphore,
}

impl<H: EngineHandle> Bridge<H> {
    /// Starts this many threads, at least two.
    ///
    /// # Errors
    /// The process can start no more threads.
    pub(crate) fn start(options: Options, workers: usize) -> io::Result<Self> {
        let max_heavy = workers - 1;
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Condvar::new(), options, max_heavy });
        let bridge = Self { shared, streams: Semaphore::new(MAX_WAITING_FOR_STREAMS) };
        for number in 0..workers {
            let shared = Arc::clone(&bridge.shared);
            std::thread::Builder::new().name(format!("bridge-{number}")).spawn(move || run_jobs(&shared))?;
        }
        Ok(bridge)
    }

    /// The number of jobs that wait or run.
    pub(crate) fn depth(&self) -> QueueDepth {
        let queue = self.shared.lock();
        QueueDepth { light: queue.light.len(), heavy: queue.heavy.len(), busy: queue.busy }
    }

    /// Runs a job on a thread of the bridge.
    ///
    /// # Errors
    /// The job's own error; RESOURCE_EXHAUSTED when too many wait; INTERNAL when it panicked.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        peer: Peer,
        weight: Weight,
        job: impl FnOnce(&H) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let max_waiting = match peer {
            Peer::Network => MAX_WAITING / 2,
            Peer::Certificate { .. } | Peer::User { .. } => MAX_WAITING,
            Peer::Root => usize::MAX,
        };
        self.submit(weight, max_waiting, job).await
    }

    /// Runs a job of a stream, however many calls wait.
    ///
    /// # Errors
    /// The job's own; INTERNAL when it panicked.
    pub(crate) async fn call_for_stream<T: Send + 'static>(
        &self,
        weight: Weight,
        job: impl FnOnce(&H) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        // Fails only if the semaphore is closed, which does not happen.
        let _permit = self.streams.acquire().await.map_err(|_| status::draining())?;
        self.submit(weight, usize::MAX, job).await
    }

    async fn submit<T: Send + 'static>(
        &self,
        weight: Weight,
        max_waiting: usize,
        job: impl FnOnce(&H) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (reply, replied) = oneshot::channel();
        let span = Span::current();
        let job: Job<H> = Box::new(move |handle| {
            if reply.is_closed() {
                return HandleUse::Keep;
            }
            let result = span.in_scope(|| handle.and_then(job));
            let handle_use = handle_use_after(&result);
            let _caller_may_have_gone = reply.send(result);
            handle_use
        });
        self.enqueue(weight, max_waiting, job)?;
        replied.await.unwrap_or_else(|_| Err(Status::internal("this call failed inside gantryd; its log says more")))
    }

    fn enqueue(&self, weight: Weight, max_waiting: usize, job: Job<H>) -> Result<(), Status> {
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(status::draining());
        }
        if queue.light.len() + queue.heavy.len() >= max_waiting {
            return Err(Status::resource_exhausted("too many calls at once: try again later"));
        }
        match weight {
            Weight::Light => queue.light.push_back(job),
            Weight::Heavy => queue.heavy.push_back(job),
        }
        drop(queue);
        self.shared.more.notify_one();
        Ok(())
    }
}

impl<H> Drop for Bridge<H> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        let dropped = (std::mem::take(&mut queue.light), std::mem::take(&mut queue.heavy));
        drop(queue);
        self.shared.more.notify_all();
        // Outside the lock: this wakes their callers.
        drop(dropped);
    }
}

/// Reopens the handle after a failure that it may have caused: a database that disappeared, was damaged, or misbehaves.
fn handle_use_after<T>(result: &Result<T, Status>) -> HandleUse {
    match result.as_ref().map_err(Status::code) {
        Err(Code::Internal | Code::DataLoss | Code::Unavailable | Code::PermissionDenied | Code::Unknown) => {
            HandleUse::Reopen
        }
        Ok(_) | Err(_) => HandleUse::Keep,
    }
}

/// One thread.
fn run_jobs<H: EngineHandle>(shared: &Shared<H>) {
    let mut kept: Option<H> = None;
    while let Some((weight, job)) = next_job(shared) {
        let handle = kept.take().filter(H::is_current).map_or_else(|| H::open(&shared.options), Ok);
        // The panic hook logs a panic. It drops the sender of the reply, which fails the call, and its handle is not
        // used again.
        let done = catch_unwind(AssertUnwindSafe(|| job(handle.as_ref().map_err(Status::clone))));
        if matches!(done, Ok(HandleUse::Keep)) {
            kept = handle.ok();
        }
        if weight == Weight::Heavy {
            shared.lock().busy -= 1;
            shared.more.notify_one();
        }
    }
}

/// The next job: light ones first, except on one thread. `None` at the end.
fn next_job<H>(shared: &Shared<H>) -> Option<(Weight, Job<H>)> {
    let mut queue = shared.lock();
    loop {
        // One thread serves heavy jobs as long as there are any, so that light ones cannot starve them.
        if (queue.busy > 0 || queue.heavy.is_empty())
            && let Some(job) = queue.light.pop_front()
        {
            return Some((Weight::Light, job));
        }
        if queue.busy < shared.max_heavy
            && let Some(job) = queue.heavy.pop_front()
        {
            queue.busy += 1;
            return Some((Weight::Heavy, job));
        }
        if queue.closed {
            return None;
        }
        queue = shared.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
#[path = "bridge_tests.rs"]
mod tests;
