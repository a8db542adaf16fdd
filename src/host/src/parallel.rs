//! Work on many items that waits for nothing but the kernel, on all processors.

use std::num::NonZero;
use std::thread;

/// Fewer items than this are not worth a thread.
const MIN_ITEMS_PER_THREAD: usize = 32;
/// Maximum threads: reading cgroups and `/proc` takes locks of the kernel, which more threads wait for.
const MAX_THREADS: usize = 4;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_kept() {
        for length in [0, 1, 31, 64, 65, 1000] {
            let items: Vec<usize> = (0..length).collect();
            assert_eq!(map(&items, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        }
    }
}
