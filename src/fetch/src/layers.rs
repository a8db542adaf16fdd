//! The layers of one image: fetched and unpacked in parallel, committed from the bottom up.
//!
//! Workers (up to `Config::parallel` threads, joined before this returns) take layers bottom first. Each locks its
//! layer, asks the calling thread whether another process has committed it in the meantime, and unpacks it into a
//! staging directory straight from the source's stream. The calling thread owns the [`Store`]: it commits each run of
//! layers whose parents are committed.
//!
//! Locks: a layer's lock (`Store::lock_layer`, across processes) is held from before the check until the layer is
//! committed. A worker waits only for the lock of its own layer, a finished layer waits only for layers below it, and
//! every fetch starts at the bottom. So the lowest unfinished layer always makes progress, and two fetches of images
//! that share layers cannot deadlock. A holder that dies releases its locks; garbage collection removes its staging
//! directories.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use gantry_model::{Digest, ErrorKind};
use gantry_store::{LayerLock, LayerRow, Staging, Store, StoreError, Trees};

use crate::Caps;
use crate::checked::{Checked, Watch};
use crate::early_sync::{self, Meter, Metered};
use crate::error::FetchError;
use crate::progress::Note;
use crate::source::{Descriptor, Source};
use crate::unpack::{self, Compression, Unpacked};

/// Timeout of waiting for another process that fetches the same layer.
const OTHER_PROCESS_TIMEOUT: Duration = Duration::from_secs(3600);

/// Interval of checks for cancellation while waiting for another process.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A layer that the image needs.
#[derive(Debug, Clone)]
pub(crate) struct LayerPlan {
    pub(crate) blob: Descriptor,
    pub(crate) diff_id: Digest,
    pub(crate) chain: Digest,
    /// The chain ID of the layer below.
    pub(crate) parent: Option<Digest>,
}

/// Shared by the workers.
pub(crate) struct Job<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) caps: &'a Caps,
    pub(crate) parallel: usize,
    pub(crate) plans: &'a [LayerPlan],
    pub(crate) watch: &'a Watch<'a>,
}

struct Finished {
    lock: LayerLock,
    staging: Staging,
    unpacked: Unpacked,
}

enum Event {
    /// A worker holds the lock of a layer and asks whether it has been committed in the meantime. No reply means: give
    /// up.
    Locked { at: usize, there: mpsc::SyncSender<bool> },
    /// A layer has been verified and unpacked.
    Finished { at: usize, layer: Box<Finished> },
    /// A layer failed.
    Failed(FetchError),
}

enum State {
    Missing,
    Present,
    Finished(Box<Finished>),
}

/// Fetches all missing layers into the store.
pub(crate) fn fetch(store: &Store, job: &Job<'_>) -> Result<(), FetchError> {
    let mut states = Vec::with_capacity(job.plans.len());
    for plan in job.plans {
        states.push(if present(store, plan)? { State::Present } else { State::Missing });
    }
    let missing: Vec<usize> = (0..states.len()).filter(|at| matches!(states[*at], State::Missing)).collect();
    for (plan, _) in job.plans.iter().zip(&states).filter(|(_, state)| matches!(state, State::Present)) {
        job.watch.progress.notify(Note::LayerExists { layer: plan.blob.digest.clone() });
    }
    if missing.is_empty() {
        return Ok(());
    }
    let mut committer = Committer { store, plans: job.plans, states, committed: 0, below: Vec::new() };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (send, events) = mpsc::channel();
        let (trees, (meter, due)) = (store.trees(), Meter::new());
        let meter = Arc::new(meter);
        for _ in 0..job.parallel.clamp(1, 16).min(missing.len()) {
            let (trees, meter, send) = (trees.clone(), Arc::clone(&meter), send.clone());
            let (next, missing) = (&next, missing.as_slice());
            scope.spawn(move || work(job, &Hands { trees, meter, send }, next, missing));
        }
        // Both end with the last worker.
        drop((send, meter));
        scope.spawn(move || early_sync::sync(&trees, &due));
        let mut failure = None;
        // Ends when the last worker has ended. After a failure, the events are dropped, together with their locks,
        // staging directories and the reply channels of waiting workers.
        for event in events {
            if failure.is_none()
                && let Err(error) = committer.take(event)
            {
                failure = Some(error);
                job.watch.cancelled.store(true, Ordering::Relaxed);
                job.source.cancel();
            }
        }
        failure.map_or(Ok(()), Err)
    })?;
    if committer.committed == job.plans.len() { Ok(()) } else { Err(FetchError::lost_thread()) }
}

fn present(store: &Store, plan: &LayerPlan) -> Result<bool, FetchError> {
    Ok(store.sound_layer(&plan.chain).map_err(FetchError::store("look for a layer"))?.is_some())
}

struct Committer<'a> {
    store: &'a Store,
    plans: &'a [LayerPlan],
    states: Vec<State>,
    /// The number of layers from the bottom that are committed.
    committed: usize,
    /// Their directories, topmost first.
    below: Vec<OwnedFd>,
}

impl Committer<'_> {
    fn take(&mut self, event: Event) -> Result<(), FetchError> {
        match event {
            Event::Failed(error) => Err(error),
            Event::Locked { at, there } => {
                let present = present(self.store, &self.plans[at])?;
                if present {
                    self.states[at] = State::Present;
                }
                // The worker waits for nothing but this reply.
                there.send(present).map_err(|_| FetchError::lost_thread())?;
                self.commit()
            }
            Event::Finished { at, layer } => {
                self.states[at] = State::Finished(layer);
                self.commit()
            }
        }
    }

    /// Commits, in one transaction, the layers whose parents are committed.
    fn commit(&mut self) -> Result<(), FetchError> {
        let (mut batch, mut locks) = (Vec::new(), Vec::new());
        let mut at = self.committed;
        while at < self.states.len() {
            match std::mem::replace(&mut self.states[at], State::Present) {
                State::Missing => {
                    self.states[at] = State::Missing;
                    break;
                }
                State::Present => self.open_below(at)?,
                State::Finished(layer) => {
                    let Finished { lock, mut staging, unpacked } = *layer;
                    let row = self.finish(at, &mut staging, unpacked)?;
                    batch.push((staging, row));
                    locks.push(lock);
                }
            }
            at += 1;
        }
        self.committed = at;
        if !batch.is_empty() {
            self.store.commit_layers(batch).map_err(FetchError::CommitLayers)?;
        }
        drop(locks);
        Ok(())
    }

    fn open_below(&mut self, at: usize) -> Result<(), FetchError> {
        use rustix::fs::{Mode, OFlags};
        let chain = &self.plans[at].chain;
        let path = self.store.layout().tree_dir(chain);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => {
                self.below.insert(0, dir);
                Ok(())
            }
            // Garbage collection has removed it: no image referred to it yet.
            Err(rustix::io::Errno::NOENT) => Err(FetchError::LayerGone { layer: chain.clone() }),
            Err(errno) => {
                let source = StoreError::Io { doing: "open", path, source: errno.into() };
                Err(FetchError::store("open a layer")(source))
            }
        }
    }

    fn finish(&mut self, at: usize, staging: &mut Staging, unpacked: Unpacked) -> Result<LayerRow, FetchError> {
        let plan = &self.plans[at];
        let Unpacked { diff_id, size, entries, deferred, mut sums } = unpacked;
        let layer = plan.blob.digest.clone();
        unpack::finish(deferred, staging.dir(), &self.below, &mut sums)
            .map_err(|source| FetchError::failed(format!("cannot unpack layer {}", layer.short()), source))?;
        let copy = staging.dir().try_clone().map_err(|source| {
            let path = staging.path().to_owned();
            FetchError::store("keep a layer open")(StoreError::Io { doing: "open", path, source })
        })?;
        self.below.insert(0, copy);
        staging.set_sums(sums);
        Ok(LayerRow { chain: plan.chain.clone(), diff_id, parent: plan.parent.clone(), size, entries })
    }
}

/// What a worker works with.
struct Hands {
    trees: Trees,
    meter: Arc<Meter>,
    send: mpsc::Sender<Event>,
}

/// The loop of a worker: one layer after the other, until none is left or one failed.
fn work(job: &Job<'_>, hands: &Hands, next: &AtomicUsize, missing: &[usize]) {
    while let Some(&at) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
        let event = match one(job, hands, at) {
            Ok(Some(layer)) => Event::Finished { at, layer: Box::new(layer) },
            Ok(None) => continue,
            Err(error) => Event::Failed(error),
        };
        let failed = matches!(event, Event::Failed(_));
        // The receiver outlives the workers.
        if hands.send.send(event).is_err() || failed {
            return;
        }
    }
}

/// Fetches one layer; `None` if another process has committed it.
fn one(job: &Job<'_>, hands: &Hands, at: usize) -> Result<Option<Finished>, FetchError> {
    let plan = &job.plans[at];
    let blob = &plan.blob;
    let layer = || blob.digest.clone();
    let lock = lock(job, &hands.trees, plan)?;
    let (there, answer) = mpsc::sync_channel(1);
    hands.send.send(Event::Locked { at, there }).map_err(|_| FetchError::lost_thread())?;
    match answer.recv() {
        Ok(true) => {
            job.watch.progress.notify(Note::LayerExists { layer: layer() });
            return Ok(None);
        }
        Ok(false) => {}
        Err(_) => return Err(FetchError::Cancelled { layer: layer() }),
    }
    let staging = hands.trees.stage_layer(&lock).map_err(FetchError::store("make a directory for a layer"))?;
    job.watch.progress.notify(Note::Layer { layer: layer(), total: Some(blob.size) });
    let stream = job.source.open(blob, 0).map_err(|error| FetchError::layer_source(&plan.blob.digest, error))?;
    let mut checked = Checked::new(stream, blob, job.watch);
    let mut metered = Metered { inner: &mut checked, meter: &hands.meter };
    let result = unpack::layer(&mut metered, Compression::Auto, staging.dir(), job.caps);
    let unpacked = checked.conclude(result)?;
    if unpacked.diff_id != plan.diff_id {
        let (layer, got, want) = (layer(), unpacked.diff_id, &plan.diff_id);
        return Err(FetchError::refused(
            ErrorKind::Damaged,
            format!("layer {} unpacks to {got}, but the image configuration says {want}", layer.short()),
        ));
    }
    job.watch.progress.notify(Note::LayerDone { layer: layer() });
    Ok(Some(Finished { lock, staging, unpacked }))
}

fn lock(job: &Job<'_>, trees: &Trees, plan: &LayerPlan) -> Result<LayerLock, FetchError> {
    let begun = Instant::now();
    let mut told = false;
    let mut waiting = || {
        if !std::mem::replace(&mut told, true) {
            job.watch.progress.notify(Note::Waiting { layer: plan.blob.digest.clone() });
        }
    };
    loop {
        if job.watch.cancelled.load(Ordering::Relaxed) {
            return Err(FetchError::Cancelled { layer: plan.blob.digest.clone() });
        }
        match trees.lock_layer(&plan.chain, CANCEL_CHECK_INTERVAL, &mut waiting) {
            Err(StoreError::Locked { .. }) if begun.elapsed() < OTHER_PROCESS_TIMEOUT => {}
            Err(StoreError::Locked { .. }) => {
                let (layer, minutes) = (plan.blob.digest.short(), begun.elapsed().as_secs() / 60);
                return Err(FetchError::refused(
                    ErrorKind::Busy,
                    format!(
                        "another process has been fetching layer {layer} for more than {minutes} minutes; try again later"
                    ),
                ));
            }
            other => return other.map_err(FetchError::store("lock a layer")),
        }
    }
}
