//! The layers of one image: fetched and unpacked in parallel, committed from the bottom up.
//!
//! Workers (up to `Config::parallel` threads, joined before this returns) take layers bottom first. Each locks its
//! layer, asks the calling thread whether another process has committed it in the meantime, and unpacks it into a
//! staging directory straight from the source's stream. The calling thread owns the [`Store`]: it commits each run of
//! layers whose parents are committed.
//!
//! Locks: a layer's lock (`Store::lock_layer`, across processes) is held from before the check until the layer is
//! committed. From then on it is shared, and so are the locks of layers that were committed before, until the image is
//! committed: garbage collection removes none of them, and other fetches use them at once. A worker waits only for the
//! lock of its own layer, a finished layer waits only for layers below it, and every fetch starts at the bottom. So the
//! lowest unfinished layer always makes progress, and two fetches of images that share layers cannot deadlock. There is
//! one exception: a fetch that must replace a damaged layer waits, for a minute at most, for the fetches that share its
//! lock. A holder that dies releases its locks; garbage collection removes its staging directories.
//!
//! A holder whose registry sends slowly, perhaps on purpose, must not hold up fetches from other registries: after
//! [`OTHER_FETCH_TIMEOUT`], a fetch gets its layers without their locks. The first fetch that commits such a layer
//! counts. If the layer is collected before the image is committed, because the holder has died, the import begins
//! again.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::Builder;
use std::time::{Duration, Instant};

use gantry_model::{Digest, ErrorKind};
use gantry_store::{LayerLock, LayerRow, SharedLayerLock, Staging, Store, StoreError, Trees};

use crate::caps::{Caps, ImageBytes};
use crate::checked::{Checked, Watch};
use crate::early_sync::{self, Meter, Metered};
use crate::error::FetchError;
use crate::progress::Note;
use crate::source::{Descriptor, Source};
use crate::unpack::{self, Compression, UnpackError, Unpacked};

/// How long after its first wait for another fetch a fetch stops waiting for any, and gets such layers without their
/// locks.
pub(crate) const OTHER_FETCH_TIMEOUT: Duration = Duration::from_secs(600);

/// Timeout of waiting for fetches that use a layer found damaged, which may themselves wait for this one.
const DAMAGED_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of checks, while waiting for another process, for cancellation and for its commit of the layer.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

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
    /// [`OTHER_FETCH_TIMEOUT`].
    pub(crate) other_fetch_timeout: Duration,
}

struct Finished {
    /// `None`: another fetch holds it.
    lock: Option<LayerLock>,
    staging: Staging,
    unpacked: Unpacked,
}

/// The lock that a worker has of its layer.
enum Held {
    /// Exclusive.
    Alone(LayerLock),
    /// Others may use the layer, so it is probably committed.
    Shared(SharedLayerLock),
}

/// The next step for a missing layer.
enum Turn {
    /// Another process has committed it.
    Committed,
    /// To fetch it; without its lock if another fetch holds that for too long.
    Fetch(Option<LayerLock>),
}

enum Event {
    /// A worker holds the lock of a layer and asks whether it has been committed in the meantime. If not, the lock
    /// comes back. No reply means: give up.
    Locked { at: usize, lock: Held, reply: mpsc::SyncSender<Option<Held>> },
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

/// Fetches all missing layers into the store. While the locks that it returns are held, no layer is collected, but for
/// one whose lock another fetch held and has released since.
pub(crate) fn fetch(store: &Store, job: &Job<'_>) -> Result<Vec<SharedLayerLock>, FetchError> {
    let trees = store.trees();
    let (mut states, mut kept) = (Vec::with_capacity(job.plans.len()), Vec::new());
    for plan in job.plans {
        // The lock first: a layer that is present without it may be collected at once.
        match trees.try_share_layer(&plan.chain).map_err(FetchError::store("lock a layer"))? {
            Some(lock) if present(store, plan)? => {
                kept.push(lock);
                states.push(State::Present);
            }
            _ => states.push(State::Missing),
        }
    }
    let missing: Vec<usize> = (0..states.len()).filter(|at| matches!(states[*at], State::Missing)).collect();
    for (plan, _) in job.plans.iter().zip(&states).filter(|(_, state)| matches!(state, State::Present)) {
        job.watch.progress.notify(Note::LayerExists { layer: plan.blob.digest.clone() });
    }
    if missing.is_empty() {
        return Ok(kept);
    }
    let mut committer = Committer { store, job, trees, states, committed: 0, below: Vec::new(), kept };
    let (next, waiting_since, image_bytes) = (AtomicUsize::new(0), OnceLock::new(), ImageBytes::new(job.caps));
    std::thread::scope(|scope| {
        let (send, events) = mpsc::channel();
        let (trees, (meter, due)) = (store.trees(), Meter::new());
        let (meter, mut failure) = (Arc::new(meter), None);
        for number in 0..job.parallel.clamp(1, 16).min(missing.len()) {
            let (trees, meter, send) = (trees.clone(), Arc::clone(&meter), send.clone());
            let (next, missing) = (&next, missing.as_slice());
            let (waiting_since, image_bytes) = (&waiting_since, &image_bytes);
            let hands = Hands { trees, meter, send, waiting_since, image_bytes };
            let started = Builder::new().spawn_scoped(scope, move || work(job, &hands, next, missing));
            // The limit of threads is reached: those that run take more layers each.
            if let Err(error) = started {
                failure = (number == 0).then(|| no_thread(&error));
                break;
            }
        }
        // Both end with the last worker.
        drop((send, meter));
        let _without_early_syncs = Builder::new().spawn_scoped(scope, move || early_sync::sync(&trees, &due));
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
    if committer.committed == job.plans.len() { Ok(committer.kept) } else { Err(FetchError::lost_thread()) }
}

fn no_thread(error: &std::io::Error) -> FetchError {
    FetchError::refused(ErrorKind::Exhausted, format!("cannot start a thread that unpacks layers: {error}"))
}

fn present(store: &Store, plan: &LayerPlan) -> Result<bool, FetchError> {
    Ok(store.sound_layer(&plan.chain).map_err(FetchError::store("look for a layer"))?.is_some())
}

struct Committer<'a> {
    store: &'a Store,
    job: &'a Job<'a>,
    trees: Trees,
    states: Vec<State>,
    /// The number of layers from the bottom that are committed.
    committed: usize,
    /// Their directories, topmost first.
    below: Vec<OwnedFd>,
    /// The locks of the layers that are committed.
    kept: Vec<SharedLayerLock>,
}

impl Committer<'_> {
    fn take(&mut self, event: Event) -> Result<(), FetchError> {
        match event {
            Event::Failed(error) => Err(error),
            Event::Locked { at, lock, reply } => {
                let back = if present(self.store, &self.job.plans[at])? {
                    self.keep(lock)?;
                    self.states[at] = State::Present;
                    None
                } else {
                    Some(lock)
                };
                // The worker waits for nothing but this reply.
                reply.send(back).map_err(|_| FetchError::lost_thread())?;
                self.commit()
            }
            Event::Finished { at, layer } => {
                self.states[at] = State::Finished(layer);
                self.commit()
            }
        }
    }

    /// Keeps a committed layer until the image is committed.
    fn keep(&mut self, lock: Held) -> Result<(), FetchError> {
        self.kept.push(match lock {
            Held::Alone(lock) => self.trees.share(lock).map_err(FetchError::store("share the lock of a layer"))?,
            Held::Shared(lock) => lock,
        });
        Ok(())
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
                    locks.extend(lock);
                }
            }
            at += 1;
        }
        self.committed = at;
        if !batch.is_empty() {
            // While another fetch holds the lock of one of these layers, nothing collects it.
            self.kept.extend(self.store.commit_layers(batch).map_err(FetchError::CommitLayers)?);
        }
        locks.into_iter().try_for_each(|lock| self.keep(Held::Alone(lock)))
    }

    fn open_below(&mut self, at: usize) -> Result<(), FetchError> {
        use rustix::fs::{Mode, OFlags};
        let chain = &self.job.plans[at].chain;
        let path = self.store.layout().tree_dir(chain);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => {
                self.below.insert(0, dir);
                Ok(())
            }
            // Its lock is held, so only damage to the store can have removed it.
            Err(rustix::io::Errno::NOENT) => Err(FetchError::LayerGone { layer: chain.clone() }),
            Err(errno) => {
                let source = StoreError::Io { doing: "open", path, source: errno.into() };
                Err(FetchError::store("open a layer")(source))
            }
        }
    }

    fn finish(&mut self, at: usize, staging: &mut Staging, mut unpacked: Unpacked) -> Result<LayerRow, FetchError> {
        let plan = &self.job.plans[at];
        let layer = plan.blob.digest.clone();
        let cancelled = || self.job.watch.is_cancelled();
        unpack::finish(&mut unpacked, staging.dir(), &self.below, self.job.caps, &cancelled).map_err(|source| {
            match source {
                UnpackError::Cancelled => FetchError::Cancelled { layer },
                source => FetchError::failed(format!("cannot unpack layer {}", layer.short()), source),
            }
        })?;
        let Unpacked { diff_id, size, entries, deferred: _, sums } = unpacked;
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
struct Hands<'a> {
    trees: Trees,
    meter: Arc<Meter>,
    send: mpsc::Sender<Event>,
    /// When a worker of this fetch first waited for another fetch.
    waiting_since: &'a OnceLock<Instant>,
    image_bytes: &'a ImageBytes,
}

/// The loop of a worker: one layer after the other, until none is left or one failed.
fn work(job: &Job<'_>, hands: &Hands<'_>, next: &AtomicUsize, missing: &[usize]) {
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
fn one(job: &Job<'_>, hands: &Hands<'_>, at: usize) -> Result<Option<Finished>, FetchError> {
    let plan = &job.plans[at];
    let blob = &plan.blob;
    let layer = || blob.digest.clone();
    let lock = match lock(job, hands, at)? {
        Turn::Fetch(lock) => lock,
        Turn::Committed => {
            job.watch.progress.notify(Note::LayerExists { layer: layer() });
            return Ok(None);
        }
    };
    let staging = match &lock {
        Some(lock) => hands.trees.stage_layer(lock),
        None => hands.trees.stage_unlocked_layer(&plan.chain),
    };
    let staging = staging.map_err(FetchError::store("make a directory for a layer"))?;
    job.watch.progress.notify(Note::Layer { layer: layer(), total: Some(blob.size) });
    let stream = job.source.open(blob, 0).map_err(|error| FetchError::layer_source(&plan.blob.digest, error))?;
    let mut checked = Checked::new(stream, blob, job.watch);
    let mut metered = Metered { inner: &mut checked, meter: &hands.meter };
    let result = unpack::layer(&mut metered, Compression::Auto, staging.dir(), job.caps, hands.image_bytes);
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

/// Locks a missing layer. While another fetch holds it, waits until [`Job::other_fetch_timeout`] has passed.
fn lock(job: &Job<'_>, hands: &Hands<'_>, at: usize) -> Result<Turn, FetchError> {
    let layer = &job.plans[at].blob.digest;
    let mut shared_since = None;
    let mut is_reported = false;
    let mut waiting = || {
        if !std::mem::replace(&mut is_reported, true) {
            job.watch.progress.notify(Note::Waiting { layer: layer.clone() });
        }
    };
    loop {
        if job.watch.is_cancelled() {
            return Err(FetchError::Cancelled { layer: layer.clone() });
        }
        let held = try_lock(&hands.trees, &job.plans[at].chain, &mut waiting)?;
        match held.map(|lock| ask(hands, layer, at, lock)).transpose()? {
            Some(None) => return Ok(Turn::Committed),
            Some(Some(Held::Alone(lock))) => return Ok(Turn::Fetch(Some(lock))),
            Some(Some(Held::Shared(_))) => {
                let since: Instant = *shared_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= DAMAGED_TIMEOUT {
                    return Err(busy(layer, since.elapsed()));
                }
            }
            None => {
                shared_since = None;
                if hands.waiting_since.get_or_init(Instant::now).elapsed() >= job.other_fetch_timeout {
                    return Ok(Turn::Fetch(None));
                }
            }
        }
    }
}

/// Locks a layer, or shares the lock of another process that has committed it; `None` if neither is possible yet.
fn try_lock(trees: &Trees, chain: &Digest, waiting: &mut dyn FnMut()) -> Result<Option<Held>, FetchError> {
    let failed = || FetchError::store("lock a layer");
    match trees.lock_layer(chain, CHECK_INTERVAL, waiting) {
        Ok(lock) => Ok(Some(Held::Alone(lock))),
        Err(StoreError::Locked { .. }) => Ok(trees.try_share_layer(chain).map_err(failed())?.map(Held::Shared)),
        Err(error) => Err(failed()(error)),
    }
}

/// Hands the lock to the committer, which keeps it if the layer is committed and returns it if not.
fn ask(hands: &Hands<'_>, layer: &Digest, at: usize, lock: Held) -> Result<Option<Held>, FetchError> {
    let (reply, answer) = mpsc::sync_channel(1);
    hands.send.send(Event::Locked { at, lock, reply }).map_err(|_| FetchError::lost_thread())?;
    answer.recv().map_err(|_| FetchError::Cancelled { layer: layer.clone() })
}

/// Other fetches have used a damaged layer for too long.
fn busy(layer: &Digest, after: Duration) -> FetchError {
    let (layer, minutes) = (layer.short(), after.as_secs() / 60);
    let message =
        format!("other fetches have used layer {layer}, which is damaged, for {minutes} min; try again later");
    FetchError::refused(ErrorKind::Busy, message)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicBool, AtomicU64};

    use gantry_model::Kind as _;
    use gantry_model::id::Algorithm;
    use tempfile::TempDir;

    use super::*;
    use crate::cancellation::Cancellation;
    use crate::progress::{Progress, Silent};
    use crate::source::{RootDocument, SourceError, digest_of};
    use crate::unpack::tests::build::Tar;

    const DEADLINE: Duration = Duration::from_secs(20);

    /// Three layers, in a store of their own.
    struct Home {
        dir: TempDir,
        tars: Vec<Vec<u8>>,
        plans: Vec<LayerPlan>,
        caps: Caps,
    }

    impl Home {
        fn new() -> Self {
            let tars: Vec<_> = ["1", "2", "3"].iter().map(|name| Tar::default().file(name, b"x").end()).collect();
            let mut plans: Vec<LayerPlan> = Vec::new();
            for tar in &tars {
                let diff_id = digest_of(Algorithm::Sha256, tar);
                let parent = plans.last().map(|plan| plan.chain.clone());
                let chained = |parent: &Digest| digest_of(Algorithm::Sha256, format!("{parent} {diff_id}").as_bytes());
                let chain = parent.as_ref().map_or_else(|| diff_id.clone(), chained);
                let blob = Descriptor {
                    media_type: String::new(),
                    digest: diff_id.clone(),
                    size: tar.len() as u64,
                    platform: None,
                    annotations: Default::default(),
                };
                plans.push(LayerPlan { blob, diff_id, chain, parent });
            }
            Self { dir: tempfile::tempdir().unwrap(), tars, plans, caps: Caps::default() }
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("data")
        }

        fn store(&self) -> Store {
            Store::open(&self.path()).unwrap()
        }

        fn source(&self) -> SweepingSource<'_> {
            SweepingSource { data: self.path(), tars: &self.tars, opened: AtomicU64::new(0), swept: AtomicU64::new(0) }
        }

        /// A fetch of the lowest `n` layers, one after the other.
        fn job<'a>(&'a self, source: &'a SweepingSource<'a>, n: usize, watch: &'a Watch<'a>) -> Job<'a> {
            Job {
                source,
                caps: &self.caps,
                parallel: 1,
                plans: &self.plans[..n],
                watch,
                other_fetch_timeout: OTHER_FETCH_TIMEOUT,
            }
        }
    }

    /// Collects garbage whenever a layer is opened.
    struct SweepingSource<'a> {
        data: PathBuf,
        tars: &'a [Vec<u8>],
        opened: AtomicU64,
        swept: AtomicU64,
    }

    impl Source for SweepingSource<'_> {
        fn root(&self) -> Result<RootDocument, SourceError> {
            unreachable!("only layers are fetched")
        }

        fn document(&self, _: &Descriptor) -> Result<Vec<u8>, SourceError> {
            unreachable!("only layers are fetched")
        }

        fn open(&self, d: &Descriptor, _: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
            self.opened.fetch_add(1, Ordering::Relaxed);
            self.swept.fetch_add(swept(&self.data), Ordering::Relaxed);
            let tar = self.tars.iter().find(|tar| digest_of(Algorithm::Sha256, tar) == d.digest).unwrap();
            Ok(Box::new(tar.as_slice()))
        }
    }

    /// The number of layers that a garbage collection deletes.
    fn swept(data: &Path) -> u64 {
        Store::open(data).unwrap().sweep_images().unwrap().layers
    }

    /// Calls its function when a fetch begins to wait for another one.
    struct OnWait<F>(F);

    impl<F: Fn() + Sync> Progress for OnWait<F> {
        fn notify(&self, note: Note) {
            if matches!(note, Note::Waiting { .. }) {
                (self.0)();
            }
        }
    }

    fn watch<'a>(progress: &'a dyn Progress, cancellation: Option<&'a Cancellation>) -> Watch<'a> {
        Watch { progress, cancellation, cancelled: AtomicBool::new(false), read: AtomicU64::new(0) }
    }

    #[test]
    fn layers_of_a_running_fetch_are_not_collected() {
        let home = Home::new();
        let (store, source, watch) = (home.store(), home.source(), watch(&Silent, None));
        // The lowest layer is left by a fetch that did not come to its end.
        drop(fetch(&store, &home.job(&source, 1, &watch)).unwrap());
        let locks = fetch(&store, &home.job(&source, 3, &watch)).unwrap();
        assert_eq!(source.opened.load(Ordering::Relaxed), 3);
        assert_eq!((source.swept.load(Ordering::Relaxed), swept(&home.path())), (0, 0));
        drop(locks);
        assert_eq!(swept(&home.path()), 3);
    }

    #[test]
    fn layers_of_an_image_are_limited_together() {
        let mut home = Home::new();
        home.caps.max_image_bytes = home.tars[..2].iter().map(|tar| tar.len() as u64).sum();
        let (store, source, watch) = (home.store(), home.source(), watch(&Silent, None));
        let failed = fetch(&store, &home.job(&source, 3, &watch)).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Exhausted, "{failed:?}");
        let text = gantry_model::error::chain(&failed);
        let limit =
            format!("the image is too large: its layers unpack to more than {} bytes", home.caps.max_image_bytes);
        assert!(text.contains(&limit), "{text}");
        drop(fetch(&store, &home.job(&source, 2, &Watch { cancelled: AtomicBool::new(false), ..watch })).unwrap());
    }

    #[test]
    fn layers_that_another_fetch_has_committed_are_shared() {
        let home = Home::new();
        let (store, plan) = (home.store(), &home.plans[0]);
        let lock = store.lock_layer(&plan.chain, DEADLINE, &mut || {}).unwrap();
        std::thread::scope(|scope| {
            let (told, heard) = mpsc::channel();
            let home = &home;
            let other = scope.spawn(move || {
                let (store, source) = (home.store(), home.source());
                let progress = OnWait(move || told.send(()).unwrap());
                let locks = fetch(&store, &home.job(&source, 1, &watch(&progress, None))).unwrap();
                (locks.len(), source.opened.load(Ordering::Relaxed))
            });
            heard.recv().unwrap();
            let LayerPlan { chain, diff_id, .. } = plan.clone();
            let row = LayerRow { chain, diff_id, parent: None, size: 0, entries: 0 };
            store.commit_layers(vec![(store.stage_layer(&lock).unwrap(), row)]).unwrap();
            let _held_until_the_other_has_it = store.trees().share(lock).unwrap();
            assert_eq!(other.join().unwrap(), (1, 0));
        });
    }

    #[test]
    fn fetches_wait_for_others_with_limited_patience() {
        let home = Home::new();
        let (store, source, watch) = (home.store(), home.source(), watch(&Silent, None));
        let plan = &home.plans[0];
        let lock = store.lock_layer(&plan.chain, DEADLINE, &mut || {}).unwrap();
        let impatient = Job { other_fetch_timeout: Duration::ZERO, ..home.job(&source, 3, &watch) };
        let locks = fetch(&store, &impatient).unwrap();
        assert_eq!((locks.len(), source.opened.load(Ordering::Relaxed)), (2, 3), "the other one is held");
        assert_eq!(swept(&home.path()), 0);
        // The other fetch comes to its end: the layer stays as it was committed first.
        let LayerPlan { chain, diff_id, .. } = plan.clone();
        let row = LayerRow { chain, diff_id, parent: None, size: 0, entries: 0 };
        let path = store.layout().tree_dir(&row.chain).join("1");
        store.commit_layers(vec![(store.stage_layer(&lock).unwrap(), row)]).unwrap();
        assert!(path.exists(), "{}", path.display());
    }

    #[test]
    fn cancelled_fetches_stop_waiting_for_others() {
        let home = Home::new();
        let (store, source, cancellation) = (home.store(), home.source(), Cancellation::default());
        let _lock = store.lock_layer(&home.plans[0].chain, DEADLINE, &mut || {}).unwrap();
        let progress = OnWait(|| cancellation.raise());
        let failed = fetch(&store, &home.job(&source, 3, &watch(&progress, Some(&cancellation)))).unwrap_err();
        assert!(matches!(failed, FetchError::Cancelled { .. }), "{failed:?}");
    }
}
