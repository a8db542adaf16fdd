//! Gives memory back after a peak. Responses and streams of slow clients may take a hundred MiB for a while; glibc
//! keeps what was freed.

use std::time::{Duration, Instant};

use gantry_host::memory::{anonymous_memory, release_freed};

/// Less memory than this is not worth the search for free pages: gantryd takes about a third when it is idle.
const MIN_MEMORY: u64 = 16 << 20;
/// Time between two looks at the memory. A look reads one file; giving back takes less than a millisecond if nothing
/// is free.
const INTERVAL: Duration = Duration::from_secs(10);

/// When the memory is examined next.
pub(crate) struct HeapTimer {
    due: Instant,
}

impl HeapTimer {
    pub(crate) fn new(now: Instant) -> Self {
        Self { due: now + INTERVAL }
    }

    /// Gives freed memory back to the kernel, if it is time and the process has much.
    pub(crate) fn release_if_due(&mut self, now: Instant) {
        if now < self.due {
            return;
        }
        self.due = now + INTERVAL;
        if anonymous_memory().is_some_and(|bytes| bytes >= MIN_MEMORY) {
            release_freed();
        }
    }
}
