//! The memory of this process.

use crate::sys;

pub use crate::sys::Heap;

/// Keeps freed memory for the next allocation: for a process that runs for milliseconds. By default, glibc returns the
/// end of the heap when 128 KiB of it are free, and SQLite allocates and frees more with each transaction: two calls of
/// brk(2) and 40 page faults.
pub fn keep_freed() {
    const TRIM_THRESHOLD: i32 = 64 << 20;
    const TOP_PAD: i32 = 512 << 10;
    sys::set_heap_margins(TRIM_THRESHOLD, TOP_PAD);
}

/// Lets threads share as many arenas of the allocator as there are processors: for a process with more threads than
/// that, most of which sleep. By default, glibc gives each thread an arena of its own, up to eight for each processor,
/// and memory that was freed in one serves no other thread. Call it before any thread starts.
pub fn share_arenas() {
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    sys::set_max_arenas(i32::try_from(processors.max(2)).unwrap_or(i32::MAX));
}
