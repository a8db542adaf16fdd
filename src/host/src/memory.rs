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

/// Returns the freed memory that the allocator keeps to the kernel: for a process that runs for months. By itself,
/// glibc returns only the end of its first arena, so a peak of allocations stays until the process ends.
pub fn release_freed() {
    sys::trim_heap();
}

/// The anonymous memory of this process in bytes, without what is swapped out (proc_pid_status(5)). `None`: it cannot
/// be read.
#[must_use]
pub fn anonymous_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_counted() {
        let before = anonymous_memory().unwrap();
        let filled = vec![1u8; 32 << 20];
        let with = anonymous_memory().unwrap();
        assert!(with >= before + (24 << 20), "{before}, then {with} with {}", filled.len());
    }
}
