//! From async tasks to the synchronous engine: threads, each with an engine handle of its own, and one bounded queue.
//! There are two kinds of handle: [`Observer`], which cannot write, and [`Engine`].
//!
//! A job whose caller has gone away before it starts is skipped. Each [`Weight`] has a limit of jobs under way, so that
//! a small read does not wait for a large one, and a stop does not wait for starts that hang in a network plugin. A
//! thread is made when a job may begin and all threads are busy; it ends when it has been idle for a while, and its
//! handle is closed with it. A thread opens its handle again after a failure that the handle may have caused, when the
//! database file was replaced, and when the settings were.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_engine::{Engine, Observer, Options};
use tokio::sync::{Semaphore, oneshot};
use tonic::{Code, Status};
use tracing::{Span, warn};

use crate::live_settings::{ApiSettings, LiveSettings};
use crate::peer::Peer;
use crate::status;

/// The threads of a bridge whose jobs read.
pub(crate) const READERS: BridgeThreads = BridgeThreads {
    kept: 4,
    max: 4,
    idle_time: IDLE_TIME,
    max_running: PerWeight { light: 4, heavy: 3, create: 3, start: 3, stop: 3 },
};
/// The threads of a bridge whose jobs change pods. They wait for supervisors and plugins most of the time, and hold
/// SQLite's write lock only for short transactions. There is a thread for each job that may be under way.
pub(crate) const WRITERS: BridgeThreads = BridgeThreads {
    kept: 2,
    max: 64,
    idle_time: IDLE_TIME,
    max_running: PerWeight { light: 4, heavy: 12, create: 16, start: 16, stop: 16 },
};
const _: () = {
    let PerWeight { light, heavy, create, start, stop } = WRITERS.max_running;
    assert!(light + heavy + create + start + stop == WRITERS.max, "a job that may begin lacks a thread");
    assert!(READERS.kept >= 2 && READERS.kept <= READERS.max);
    assert!(WRITERS.kept >= 2 && WRITERS.kept <= WRITERS.max);
};

/// The time after which an idle thread ends: longer than the usual periods of probes, which would open handles anew.
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Maximum calls in the queue. Further ones are refused at once. Half of the queue is closed to TCP clients; calls of
/// root are never refused.
const MAX_WAITING: usize = 1024;
/// Maximum jobs of streams in the queue. Further ones wait outside it, because a stream that was accepted must not fail
/// on account of other clients.
const MAX_WAITING_FOR_STREAMS: usize = 256;

/// The cost of a job, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// A row or a page of rows.
    Light,
    /// Reads that grow with the contents of the store, and changes of pods that run.
    Heavy,
    /// Creates or starts a container, which a large image delays.
    Create,
    /// Starts a pod, which network plugins delay.
    Start,
    /// Stops or removes a pod or an app, which grace periods and network plugins delay.
    Stop,
}

impl Weight {
    /// In the order in which jobs begin when several may.
    pub(crate) const ALL: [Self; 5] = [Self::Light, Self::Stop, Self::Heavy, Self::Create, Self::Start];

    /// Its name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Heavy => "heavy",
            Self::Create => "create",
            Self::Start => "start",
            Self::Stop => "stop",
        }
    }
}

/// A value for each weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PerWeight<T> {
    light: T,
    heavy: T,
    create: T,
    start: T,
    stop: T,
}

impl<T> PerWeight<T> {
    /// The value for this weight.
    pub(crate) fn get(&self, weight: Weight) -> &T {
        match weight {
            Weight::Light => &self.light,
            Weight::Heavy => &self.heavy,
            Weight::Create => &self.create,
            Weight::Start => &self.start,
            Weight::Stop => &self.stop,
        }
    }

    fn get_mut(&mut self, weight: Weight) -> &mut T {
        match weight {
            Weight::Light => &mut self.light,
            Weight::Heavy => &mut self.heavy,
            Weight::Create => &mut self.create,
            Weight::Start => &mut self.start,
            Weight::Stop => &mut self.stop,
        }
    }
}

/// The threads of a bridge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BridgeThreads {
    /// Threads that never end. At least two: with one, light jobs could starve the others.
    kept: usize,
    /// Maximum threads.
    max: usize,
    /// The time after which an idle thread beyond those ends.
    idle_time: Duration,
    /// Maximum jobs under way.
    max_running: PerWeight<usize>,
}

/// The numbers of jobs of one or more bridges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct QueueDepth {
    /// Jobs that wait.
    pub(crate) waiting: PerWeight<usize>,
    /// Jobs under way.
    pub(crate) running: PerWeight<usize>,
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

/// The jobs of a weight.
struct Lane<H> {
    waiting: VecDeque<Job<H>>,
    /// Those under way.
    running: usize,
}

impl<H> Default for Lane<H> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), running: 0 }
    }
}

struct Queue<H> {
    lanes: PerWeight<Lane<H>>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    closed: bool,
}

impl<H> Default for Queue<H> {
    fn default() -> Self {
        Self { lanes: PerWeight::default(), threads: 0, idle: 0, closed: false }
    }
}

impl<H> Queue<H> {
    fn waiting(&self) -> usize {
        Weight::ALL.into_iter().map(|weight| self.lanes.get(weight).waiting.len()).sum()
    }

    /// The weight of the job that begins next; `None`: none may begin.
    fn next_weight(&self, max_running: &PerWeight<usize>) -> Option<Weight> {
        let may_begin = |weight: &Weight| {
            let lane = self.lanes.get(*weight);
            !lane.waiting.is_empty() && lane.running < *max_running.get(*weight)
        };
        // A weight of which no job is under way comes first, so that light jobs cannot starve the others.
        let is_starved = |weight: &Weight| *weight != Weight::Light && self.lanes.get(*weight).running == 0;
        let mut next = Weight::ALL.into_iter().filter(may_begin);
        next.clone().find(is_starved).or_else(|| next.next())
    }

    fn take(&mut self, max_running: &PerWeight<usize>) -> Option<(Weight, Job<H>)> {
        let weight = self.next_weight(max_running)?;
        let lane = self.lanes.get_mut(weight);
        let job = lane.waiting.pop_front()?;
        lane.running += 1;
        Some((weight, job))
    }
}

struct Shared<H> {
    queue: Mutex<Queue<H>>,
    more: Condvar,
    settings: LiveSettings,
    threads: BridgeThreads,
}

impl<H> Shared<H> {
    fn lock(&self) -> MutexGuard<'_, Queue<H>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job. Returns whether the thread has been idle for so long that it is not needed.
    fn wait<'a>(&self, mut queue: MutexGuard<'a, Queue<H>>) -> (MutexGuard<'a, Queue<H>>, bool) {
        queue.idle += 1;
        let (mut queue, has_expired) = if queue.threads > self.threads.kept {
            let waited = self.more.wait_timeout(queue, self.threads.idle_time);
            let (queue, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            (queue, waited.timed_out())
        } else {
            (self.more.wait(queue).unwrap_or_else(PoisonError::into_inner), false)
        };
        queue.idle -= 1;
        (queue, has_expired)
    }
}

impl<H: EngineHandle> Shared<H> {
    /// Finds a thread for the next job, if one may begin.
    fn find_thread(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue<H>>) {
        if queue.next_weight(&self.threads.max_running).is_none() {
            return;
        }
        if queue.idle > 0 {
            // It may have been woken for another job already: it finds a thread for this one then.
            drop(queue);
            self.more.notify_one();
        } else if queue.threads < self.threads.max {
            queue.threads += 1;
            drop(queue);
            if let Err(error) = self.start_thread() {
                warn!("cannot start a thread for calls, which wait for another one: {error}");
            }
        }
    }

    /// Starts a thread that is counted already.
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new().name("bridge".to_owned()).spawn(move || run_jobs(&shared));
        started.map(drop).inspect_err(|_| self.lock().threads -= 1)
    }
}

/// See the module. Its threads end when it is dropped.
pub(crate) struct Bridge<H> {
    shared: Arc<Shared<H>>,
    streams: Semaphore,
}

impl<H: EngineHandle> Bridge<H> {
    /// Starts the threads that are kept.
    ///
    /// # Errors
    /// The process can start no more threads.
    pub(crate) fn start(settings: LiveSettings, threads: BridgeThreads) -> io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Condvar::new(), settings, threads });
        let bridge = Self { shared, streams: Semaphore::new(MAX_WAITING_FOR_STREAMS) };
        for _ in 0..threads.kept {
            bridge.shared.lock().threads += 1;
            bridge.shared.start_thread()?;
        }
        Ok(bridge)
    }

    /// Adds the numbers of jobs that wait or run.
    pub(crate) fn add_depth(&self, depth: &mut QueueDepth) {
        let queue = self.shared.lock();
        for weight in Weight::ALL {
            let lane = queue.lanes.get(weight);
            *depth.waiting.get_mut(weight) += lane.waiting.len();
            *depth.running.get_mut(weight) += lane.running;
        }
    }

    /// Runs a job on a thread of the bridge.
    ///
    /// # Errors
    /// The job's own error, `RESOURCE_EXHAUSTED` if too many jobs wait, and `INTERNAL` if the job panics.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        peer: Peer,
        weight: Weight,
        job: impl FnOnce(&H) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.submit(weight, max_waiting(peer), |handle| handle.and_then(job)).await
    }

    /// Runs a job that needs no handle, also when none can be opened.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn call_without_handle<T: Send + 'static>(
        &self,
        peer: Peer,
        weight: Weight,
        job: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        self.submit(weight, max_waiting(peer), |_| job()).await
    }

    /// Runs a job of a stream, however many calls wait.
    ///
    /// # Errors
    /// The job's own error, and `INTERNAL` if the job panics.
    pub(crate) async fn call_for_stream<T: Send + 'static>(
        &self,
        weight: Weight,
        job: impl FnOnce(&H) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        // Fails only if the semaphore is closed, which does not happen.
        let _permit = self.streams.acquire().await.map_err(|_| status::draining())?;
        self.submit(weight, usize::MAX, |handle| handle.and_then(job)).await
    }

    async fn submit<T: Send + 'static>(
        &self,
        weight: Weight,
        max_waiting: usize,
        job: impl FnOnce(Result<&H, Status>) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (reply, replied) = oneshot::channel();
        let span = Span::current();
        let job: Job<H> = Box::new(move |handle| {
            if reply.is_closed() {
                return HandleUse::Keep;
            }
            let result = span.in_scope(|| job(handle));
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
        if queue.waiting() >= max_waiting {
            return Err(Status::resource_exhausted("too many calls at once: try again later"));
        }
        queue.lanes.get_mut(weight).waiting.push_back(job);
        self.shared.find_thread(queue);
        Ok(())
    }
}

impl<H> Drop for Bridge<H> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        let dropped = Weight::ALL.map(|weight| std::mem::take(&mut queue.lanes.get_mut(weight).waiting));
        drop(queue);
        self.shared.more.notify_all();
        // Outside the lock: this wakes their callers.
        drop(dropped);
    }
}

/// Maximum calls in the queue when this client adds one.
fn max_waiting(peer: Peer) -> usize {
    match peer {
        Peer::Network => MAX_WAITING / 2,
        Peer::Certificate { .. } | Peer::User { .. } => MAX_WAITING,
        Peer::Root => usize::MAX,
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
fn run_jobs<H: EngineHandle>(shared: &Arc<Shared<H>>) {
    let mut kept: Option<(Arc<ApiSettings>, H)> = None;
    let mut done_weight = None;
    while let Some((weight, job)) = next_job(shared, done_weight) {
        let settings = shared.settings.current();
        let is_current = |(of, handle): &(Arc<ApiSettings>, H)| Arc::ptr_eq(of, &settings) && handle.is_current();
        let handle = match kept.take().filter(is_current) {
            Some((_, handle)) => Ok(handle),
            None => H::open(&settings.options),
        };
        // The panic hook logs a panic. It drops the sender of the reply, which fails the call, and its handle is not
        // used again.
        let done = catch_unwind(AssertUnwindSafe(|| job(handle.as_ref().map_err(Status::clone))));
        if matches!(done, Ok(HandleUse::Keep)) {
            kept = handle.ok().map(|handle| (settings, handle));
        }
        done_weight = Some(weight);
    }
}

/// The next job, after one of weight `done` if there was one. `None`: the thread is to end.
fn next_job<H: EngineHandle>(shared: &Arc<Shared<H>>, done: Option<Weight>) -> Option<(Weight, Job<H>)> {
    let mut queue = shared.lock();
    if let Some(weight) = done {
        queue.lanes.get_mut(weight).running -= 1;
    }
    let mut has_expired = false;
    loop {
        if let Some(taken) = queue.take(&shared.threads.max_running) {
            shared.find_thread(queue);
            return Some(taken);
        }
        if queue.closed || (has_expired && queue.threads > shared.threads.kept) {
            queue.threads -= 1;
            return None;
        }
        (queue, has_expired) = shared.wait(queue);
    }
}

#[cfg(test)]
#[path = "bridge_tests.rs"]
mod tests;
