//! Work that mostly waits for the kernel, by several threads: on many items, or of two kinds at once.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Fewer items than this are not worth a thread.
const MIN_ITEMS_PER_THREAD: usize = 32;
/// The items that are fed to a thread at once: each batch wakes one, which costs as much as ten items.
const FED_BATCH: usize = 128;
/// Maximum threads: reading cgroups and `/proc` takes locks of the kernel, which more threads wait for.
const MAX_THREADS: usize = 4;
/// The stack of a thread of [`run_beside`], in bytes.
const STACK: usize = 256 << 10;

/// Runs `aside` in a thread of its own while `here` runs in this one. If no thread can be had, `aside` runs afterwards.
pub fn run_beside<A: Send, H>(aside: impl Fn() -> A + Sync, here: impl FnOnce() -> H) -> (A, H) {
    thread::scope(|scope| {
        let started = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, &aside);
        let here = here();
        match started.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(aside)) => (aside, here),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            // The limit of threads is reached.
            Err(_) => (aside(), here),
        }
    })
}

/// Maps items in their order: by several threads if they are many and the process has several processors.
pub fn map<T: Sync, R: Send>(items: &[T], convert: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let most = items.len() / MIN_ITEMS_PER_THREAD;
    if most < 2 {
        return items.iter().map(convert).collect();
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS).min(most);
    let convert = &convert;
    let convert_all = move |items: &[T]| -> Vec<R> { items.iter().map(convert).collect() };
    let mut chunks = items.chunks(items.len().div_ceil(threads));
    let own = chunks.next().unwrap_or_default();
    thread::scope(|scope| {
        let start = |chunk| (chunk, thread::Builder::new().spawn_scoped(scope, move || convert_all(chunk)));
        let started: Vec<_> = chunks.map(start).collect();
        let mut converted = convert_all(own);
        for (chunk, thread) in started {
            match thread.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(part)) => converted.extend(part),
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // The limit of threads is reached.
                Err(_) => converted.extend(convert_all(chunk)),
            }
        }
        converted
    })
}

/// Batches of items that one thread makes and several convert, with their numbers.
#[derive(Debug)]
struct Queue<T> {
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState<T> {
    batches: VecDeque<(usize, Vec<T>)>,
    is_closed: bool,
}

impl<T> Queue<T> {
    fn new() -> Self {
        let state = QueueState { batches: VecDeque::new(), is_closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// After a panic, the state is still whole.
    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, number: usize, batch: Vec<T>) {
        self.lock().batches.push_back((number, batch));
        self.changed.notify_one();
    }

    /// Waits for a batch; `None` after the last one.
    fn take(&self) -> Option<(usize, Vec<T>)> {
        let waits = |state: &mut QueueState<T>| state.batches.is_empty() && !state.is_closed;
        let state = self.changed.wait_while(self.lock(), waits);
        state.unwrap_or_else(PoisonError::into_inner).batches.pop_front()
    }
}

/// Closes a queue when it is dropped, also by a panic: other threads wait for that.
struct Closing<'a, T>(&'a Queue<T>);

impl<T> Drop for Closing<'_, T> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

/// Maps the items that `produce` passes to its argument, keeping their order: other threads map while `produce` runs,
/// and this one helps afterwards. Returns the result of `produce`, too.
pub fn map_fed<T: Send, R: Send, P>(
    convert: impl Fn(T) -> R + Sync,
    produce: impl FnOnce(&mut dyn FnMut(T)) -> P,
) -> (P, Vec<R>) {
    let queue = Queue::new();
    let convert_batch =
        |(number, batch): (usize, Vec<T>)| (number, batch.into_iter().map(&convert).collect::<Vec<R>>());
    let convert_batches = || std::iter::from_fn(|| queue.take()).map(convert_batch).collect::<Vec<_>>();
    thread::scope(|scope| {
        let closing = Closing(&queue);
        let (mut threads, mut batch, mut number) = (Vec::new(), Vec::new(), 0);
        let produced = produce(&mut |item| {
            batch.push(item);
            if batch.len() < FED_BATCH {
                return;
            }
            queue.push(number, std::mem::replace(&mut batch, Vec::with_capacity(FED_BATCH)));
            if number == 0 {
                let others = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS) - 1;
                // Without threads, this one converts all.
                let start = |_| thread::Builder::new().spawn_scoped(scope, convert_batches).ok();
                threads.extend((0..others).filter_map(start));
            }
            number += 1;
        });
        queue.push(number, batch);
        drop(closing);
        let mut parts = convert_batches();
        for thread in threads {
            parts.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        parts.sort_by_key(|(number, _)| *number);
        (produced, parts.into_iter().flat_map(|(_, part)| part).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_work_run() {
        let turn = std::sync::Barrier::new(2);
        let work = || {
            turn.wait();
            1
        };
        assert_eq!(run_beside(work, work), (1, 1));
    }

    #[test]
    fn the_order_is_kept() {
        for length in [0, 1, 31, 64, 65, 1000] {
            let items: Vec<usize> = (0..length).collect();
            assert_eq!(map(&items, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn fed_items_keep_their_order() {
        for length in [0, 1, FED_BATCH, FED_BATCH + 1, 1000] {
            let feed = |feed: &mut dyn FnMut(usize)| {
                (0..length).for_each(feed);
                "done"
            };
            assert_eq!(map_fed(|item| item * 2, feed), ("done", (0..length).map(|item| item * 2).collect()));
        }
    }

    #[test]
    fn a_panic_ends_the_threads() {
        let feed = |feed: &mut dyn FnMut(usize)| {
            (0..2 * FED_BATCH).for_each(feed);
            panic!("expected");
        };
        let result = std::panic::catch_unwind(|| map_fed(|item| item, feed));
        assert!(result.is_err());
    }
}
