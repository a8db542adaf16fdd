//! From tasks to the engine, which is synchronous: a few threads, each with an observer of its own, and one bounded
//! queue.
//!
//! A job whose caller has gone away before it began is not done. Heavy jobs (long lists, pieces of logs) never take all
//! threads, so that a small question does not wait for a big one. An observer is opened again after a failure that may
//! be its own, and when another file lies where its database was.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use gantry_engine::{Observer, Options};
use tokio::sync::{Semaphore, oneshot};
use tonic::{Code, Status};

use crate::peer::Peer;
use crate::status;

/// How many threads there are.
const WORKERS: usize = 4;
/// How many of them may do something heavy at a time.
const HEAVY: usize = WORKERS - 1;
/// How many calls may wait. Calls beyond that are refused at once: waiting would only make it worse. Half of these places
/// are not for clients over TCP; calls of root are never refused.
const MAX_WAITING: usize = 1024;
/// How many jobs of streams may wait besides. Further ones wait for their turn, because a stream that was accepted is not
/// to end for others' sake.
const MOST_OF_STREAMS: usize = 256;

/// How much work a job may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// A row or a page of them.
    Light,
    /// Reads that grow with what is stored.
    Heavy,
}

/// How observers are opened.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// For the engine.
    pub(crate) options: Options,
}

impl Source {
    /// Opens an observer.
    pub(crate) fn open(&self) -> Result<Observer, Status> {
        Observer::open(self.options.clone()).map_err(|error| status::of(&error))
    }
}

/// What a job says of its observer afterwards.
enum After {
    Keep,
    Reopen,
}

type Work = Box<dyn FnOnce(Result<&Observer, Status>) -> After + Send>;

#[derive(Default)]
struct Queue {
    light: VecDeque<Work>,
    heavy: VecDeque<Work>,
    /// How many heavy ones are being done.
    busy: usize,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
    source: Source,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module. Its threads end when it is dropped.
pub(crate) struct Bridge {
    shared: Arc<Shared>,
    streams: Semaphore,
}

impl Bridge {
    /// Starts the threads.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(crate) fn start(source: Source) -> io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Condvar::new(), source });
        let bridge = Self { shared, streams: Semaphore::new(MOST_OF_STREAMS) };
        for number in 0..WORKERS {
            let shared = Arc::clone(&bridge.shared);
            std::thread::Builder::new().name(format!("bridge-{number}")).spawn(move || work(&shared))?;
        }
        Ok(bridge)
    }

    /// Has a job done.
    ///
    /// # Errors
    /// The job's own; RESOURCE_EXHAUSTED when too many wait; INTERNAL when it panicked.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        peer: Peer,
        weight: Weight,
        job: impl FnOnce(&Observer) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let max_waiting = match peer {
            Peer::Network => MAX_WAITING / 2,
            Peer::User { .. } => MAX_WAITING,
            Peer::Root => usize::MAX,
        };
        self.have_done(weight, max_waiting, job).await
    }

    /// Has a job of a stream done, however many calls there are.
    ///
    /// # Errors
    /// The job's own; INTERNAL when it panicked.
    pub(crate) async fn ask_for_stream<T: Send + 'static>(
        &self,
        weight: Weight,
        job: impl FnOnce(&Observer) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        // Fails when they are closed, which nobody does.
        let _turn = self.streams.acquire().await.map_err(|_| status::ending())?;
        self.have_done(weight, usize::MAX, job).await
    }

    async fn have_done<T: Send + 'static>(
        &self,
        weight: Weight,
        most_waiting: usize,
        job: impl FnOnce(&Observer) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (answer, answered) = oneshot::channel();
        let work: Work = Box::new(move |observer| {
            if answer.is_closed() {
                return After::Keep;
            }
            let result = observer.and_then(job);
            let after = after(&result);
            // Fails when nobody waits any more.
            let _ = answer.send(result);
            after
        });
        self.put(weight, most_waiting, work)?;
        answered.await.unwrap_or_else(|_| Err(Status::internal("this call failed inside gantryd; its log says more")))
    }

    fn put(&self, weight: Weight, most_waiting: usize, work: Work) -> Result<(), Status> {
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(status::ending());
        }
        if queue.light.len() + queue.heavy.len() >= most_waiting {
            return Err(Status::resource_exhausted("too many calls at once: try again later"));
        }
        match weight {
            Weight::Light => queue.light.push_back(work),
            Weight::Heavy => queue.heavy.push_back(work),
        }
        drop(queue);
        self.shared.more.notify_one();
        Ok(())
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        let dropped = (std::mem::take(&mut queue.light), std::mem::take(&mut queue.heavy));
        drop(queue);
        self.shared.more.notify_all();
        // Outside the lock: their callers are woken.
        drop(dropped);
    }
}

/// Whether the failure may be the observer's: a database that went away, was damaged, or misbehaves.
fn after<T>(result: &Result<T, Status>) -> After {
    match result.as_ref().map_err(Status::code) {
        Err(Code::Internal | Code::DataLoss | Code::Unavailable | Code::PermissionDenied | Code::Unknown) => {
            After::Reopen
        }
        Ok(_) | Err(_) => After::Keep,
    }
}

/// One thread.
fn work(shared: &Shared) {
    let mut kept: Option<Observer> = None;
    while let Some((weight, work)) = next(shared) {
        let observer = kept.take().filter(Observer::is_current).map_or_else(|| shared.source.open(), Ok);
        // A panic is printed by the hook. Its caller hears of it because the answer's sender is dropped, and what it
        // left in the observer is not used again.
        let done = catch_unwind(AssertUnwindSafe(|| work(observer.as_ref().map_err(Status::clone))));
        if matches!(done, Ok(After::Keep)) {
            kept = observer.ok();
        }
        if weight == Weight::Heavy {
            shared.lock().busy -= 1;
            shared.more.notify_one();
        }
    }
}

/// The next job, the small ones first but for one thread; `None` at the end.
fn next(shared: &Shared) -> Option<(Weight, Work)> {
    let mut queue = shared.lock();
    loop {
        // One thread is for big work as long as there is any, so that small questions never keep it waiting for ever.
        if (queue.busy > 0 || queue.heavy.is_empty())
            && let Some(work) = queue.light.pop_front()
        {
            return Some((Weight::Light, work));
        }
        if queue.busy < HEAVY
            && let Some(work) = queue.heavy.pop_front()
        {
            queue.busy += 1;
            return Some((Weight::Heavy, work));
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
