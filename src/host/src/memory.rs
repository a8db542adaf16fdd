//! The memory of this process.

use crate::sys;

/// Keeps freed memory for the next allocation: for a process that runs for milliseconds. By default, glibc returns the
/// end of the heap when 128 KiB of it are free, and SQLite allocates and frees more with each transaction: two calls of
/// brk(2) and 40 page faults.
pub fn keep_freed() {
    const TRIM_THRESHOLD: i32 = 64 << 20;
    const TOP_PAD: i32 = 512 << 10;
    sys::set_heap_margins(TRIM_THRESHOLD, TOP_PAD);
}
