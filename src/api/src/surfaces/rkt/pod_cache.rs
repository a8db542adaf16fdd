//! Responses to InspectPod that still hold. A response is found only as long as nothing was committed since it was
//! made and the files of the pod are the same ([`CommitCounter`], [`PodFilesStamp`]). So it is never older than a
//! commit that ended before the call.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_engine::{CommitCounter, Options, PodFilesStamp};
use gantry_proto::encoded::Encoded;

/// Maximum bytes of all responses, each with [`OVERHEAD`].
const MAX_CACHE: usize = 16 << 20;
/// The approximate size of an entry without its response.
const OVERHEAD: usize = 384;
/// Characters of a whole id. Responses to shorter ones are not kept.
const ID: usize = 36;

/// What a response depends on beside the state of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Request {
    /// The pod's id, as requested.
    pub(super) id: String,
    /// Whether the response has the values of environment variables.
    pub(super) shows_secrets: bool,
}

/// A response and the state of the files from which it was made.
#[derive(Debug)]
pub(super) struct Inspected {
    pub(super) response: Encoded,
    pub(super) dir: PathBuf,
    pub(super) stamp: PodFilesStamp,
}

/// The state of the database in which a response was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch(u64);

/// See the module.
pub(super) struct PodCache {
    options: Options,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    counter: Option<CommitCounter>,
    /// The count of commits when all entries held.
    count: Option<i64>,
    /// The number of times that all entries were dropped.
    epoch: u64,
    pods: HashMap<Request, Arc<Inspected>>,
    bytes: usize,
}

impl PodCache {
    /// An empty cache for the pods of this data directory.
    pub(super) fn new(options: Options) -> Self {
        Self { options, entries: Mutex::default() }
    }

    /// The response to this request, if it is known and still holds. Blocks no longer than a few system calls.
    pub(super) fn find(&self, request: &Request) -> Option<Encoded> {
        let inspected = {
            let mut entries = self.lock();
            if !entries.pods.contains_key(request) {
                return None;
            }
            entries.drop_outdated();
            Arc::clone(entries.pods.get(request)?)
        };
        (PodFilesStamp::read(&inspected.dir)? == inspected.stamp).then(|| inspected.response.clone())
    }

    /// The state of the database now, for a response that is about to be made. `None`: it cannot be kept. May block for
    /// as long as opening the database does.
    pub(super) fn begin(&self) -> Option<Epoch> {
        let is_open = self.lock().counter.is_some();
        let opened = if is_open { None } else { Some(CommitCounter::open(&self.options).ok()?) };
        let mut entries = self.lock();
        if let Some(opened) = opened {
            entries.counter = Some(opened);
            entries.clear();
        }
        entries.drop_outdated();
        entries.counter.as_ref().map(|_| Epoch(entries.epoch))
    }

    /// Keeps a response that was made after [`Self::begin`].
    pub(super) fn keep(&self, epoch: Epoch, request: Request, inspected: Inspected) {
        let mut entries = self.lock();
        if entries.epoch == epoch.0 && request.id.len() == ID {
            entries.insert(request, inspected);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// Drops all entries if anything was committed since they were made.
    fn drop_outdated(&mut self) {
        let count = self.counter.as_ref().and_then(CommitCounter::count);
        if count.is_none() {
            // Opened again for the next response.
            self.counter = None;
        }
        if count.is_none() || count != self.count {
            self.clear();
            self.count = count;
        }
    }

    fn clear(&mut self) {
        self.pods.clear();
        (self.bytes, self.count) = (0, None);
        self.epoch += 1;
    }

    /// Evicts arbitrary entries: clients that ask for more pods than fit ask for them in turn.
    fn insert(&mut self, request: Request, inspected: Inspected) {
        let size = inspected.size();
        if size > MAX_CACHE / 16 {
            return;
        }
        if let Some(old) = self.pods.insert(request, Arc::new(inspected)) {
            self.bytes -= old.size();
        }
        self.bytes += size;
        while self.bytes > MAX_CACHE {
            let Some(other) = self.pods.keys().next().cloned() else { break };
            self.bytes -= self.pods.remove(&other).map_or(0, |old| old.size());
        }
    }
}

impl Inspected {
    fn size(&self) -> usize {
        self.response.0.len() + OVERHEAD
    }
}

#[cfg(test)]
#[path = "pod_cache_tests.rs"]
mod tests;
