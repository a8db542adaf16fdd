//! The memory of the supervisor and of the processes that it forks: how it is allocated, and how it is given back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, BufRead, BufReader};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

use super::{ForkedChild, SingleThreaded};

/// The size of an arena, in bytes of address space.
const ARENA_SIZE: usize = 8 << 20;

/// Larger allocations do not come from the arena.
const MAX_IN_ARENA: usize = 64 << 10;

/// [`clear`] returns at least this many bytes of whole pages to the kernel instead of zeroing them.
const MIN_DROP_BYTES: usize = 4 * PAGE;

/// The alignment of every allocation, as malloc(3) has it.
const MIN_ALIGNMENT: usize = 16;

/// The program's allocator. A supervisor allocates from an arena while it starts its pod and, from another one, while
/// it ends its pod; so do the processes that it forks meanwhile, and those that call [`ForkedChild::start_arena`]. The
/// rest comes from the C library.
///
/// musl unmaps memory as soon as it is free and maps it again for the next allocation, and each mapping is copied by
/// each fork. The arena reuses only its last allocation. It zeroes freed memory, so that an idle supervisor can give
/// back the pages ([`ProcessMemory::drop_unused`]).
pub(crate) struct Allocator;

/// The open arena: where it starts, the first free byte, and where it ends. All are null in a process without one.
///
/// There is one thread (`tidy` checks it), so that loads and stores need no order.
static START: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static NEXT: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static END: AtomicUsize = AtomicUsize::new(0);

/// The arena that the supervisor has closed: the address of its first byte, and the address after its last. Its
/// allocations stay valid until they are freed.
static CLOSED_START: AtomicUsize = AtomicUsize::new(0);
static CLOSED_END: AtomicUsize = AtomicUsize::new(0);

impl ForkedChild {
    /// Allocates from an arena from now on, also in processes that this one forks. It is the supervisor's arena if that
    /// is open, otherwise a new one. For processes that end soon and allocate little. Without memory for it, the C
    /// library's allocator remains.
    pub(crate) fn start_arena(&self) {
        open_arena();
    }
}

/// Opens the supervisor's arena, which serves allocations until [`close_supervisor_arena`], or until the process exits.
pub(crate) fn open_supervisor_arena(_: SingleThreaded) {
    open_arena();
}

/// Opens an arena, unless one is open.
fn open_arena() {
    if !START.load(Relaxed).is_null() {
        return;
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses. A huge page would be zeroed, and charged to the
    // app, at the first byte.
    let arena = unsafe {
        let arena = libc::mmap(null_mut(), ARENA_SIZE, protection, flags | libc::MAP_NORESERVE, -1, 0);
        if arena == libc::MAP_FAILED {
            return;
        }
        libc::madvise(arena, ARENA_SIZE, libc::MADV_NOHUGEPAGE);
        arena.cast::<u8>()
    };
    START.store(arena, Relaxed);
    NEXT.store(arena, Relaxed);
    END.store(arena.addr() + ARENA_SIZE, Relaxed);
}

/// Closes the supervisor's arena and unmaps its unused end. From now on the C library serves allocations. A process
/// closes one arena in its life.
pub(crate) fn close_supervisor_arena(_: SingleThreaded) {
    let (start, next, end) = (START.load(Relaxed), NEXT.load(Relaxed), END.load(Relaxed));
    if start.is_null() || CLOSED_END.load(Relaxed) != 0 {
        return;
    }
    let left = next.map_addr(|next| next.next_multiple_of(PAGE));
    // SAFETY: no allocation is above `next`, and none is made there after this.
    unsafe { libc::munmap(left.cast(), end - left.addr()) };
    CLOSED_START.store(start.addr(), Relaxed);
    CLOSED_END.store(left.addr(), Relaxed);
    START.store(null_mut(), Relaxed);
    NEXT.store(null_mut(), Relaxed);
    END.store(0, Relaxed);
}

/// Takes memory from the arena; `None` if there is none, or too little is left.
fn allocate_in_arena(layout: Layout) -> Option<*mut u8> {
    let next = NEXT.load(Relaxed);
    if next.is_null() || layout.size() > MAX_IN_ARENA {
        return None;
    }
    let padding = next.addr().wrapping_neg() & (layout.align().max(MIN_ALIGNMENT) - 1);
    let left = END.load(Relaxed) - next.addr();
    if padding + layout.size() > left {
        return None;
    }
    let allocated = next.wrapping_add(padding);
    NEXT.store(allocated.wrapping_add(layout.size()), Relaxed);
    Some(allocated)
}

/// Whether this is memory of the open or of the closed arena.
fn is_in_arena(allocated: *mut u8) -> bool {
    (START.load(Relaxed).addr()..END.load(Relaxed)).contains(&allocated.addr())
        || (CLOSED_START.load(Relaxed)..CLOSED_END.load(Relaxed)).contains(&allocated.addr())
}

/// Whether this is the last allocation of the open arena.
fn is_last(allocated: *mut u8, size: usize) -> bool {
    allocated.addr() >= START.load(Relaxed).addr() && allocated.addr() + size == NEXT.load(Relaxed).addr()
}

/// Makes memory of an arena zero. Several whole pages are returned to the kernel instead: most of a message buffer was
/// never used, and zeroing would fault in every page.
///
/// # Safety
/// The range is in an arena, and its contents are not used any more.
unsafe fn clear(start: *mut u8, size: usize) {
    let end = start.addr() + size;
    let whole = Mapping { start: start.addr().next_multiple_of(PAGE), end: end / PAGE * PAGE };
    // SAFETY: the pages are within the range.
    let is_dropped = whole.length() >= MIN_DROP_BYTES && unsafe { whole.drop_pages() };
    let (head, tail) = if is_dropped { (whole.start - start.addr(), end - whole.end) } else { (size, 0) };
    // SAFETY: both parts are within the range.
    unsafe {
        start.write_bytes(0, head);
        start.wrapping_add(size - tail).write_bytes(0, tail);
    }
}

// SAFETY: an allocation is either the C library's, or a range of an arena that is aligned and disjoint from others:
// NEXT moves back only over the last one, when it is freed. They are told apart by the address.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the C library's allocator's condition.
        allocate_in_arena(layout).unwrap_or_else(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // The arena's free memory is zero.
        // SAFETY: as in alloc. The library does not touch pages that the kernel has zeroed.
        allocate_in_arena(layout).unwrap_or_else(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, allocated: *mut u8, layout: Layout) {
        if !is_in_arena(allocated) {
            // SAFETY: it is not in the arena, so the C library has allocated it with this layout.
            return unsafe { System.dealloc(allocated, layout) };
        }
        // SAFETY: it has this size, and the caller uses it no more.
        unsafe { clear(allocated, layout.size()) };
        if is_last(allocated, layout.size()) {
            NEXT.store(allocated, Relaxed);
        }
    }

    unsafe fn realloc(&self, allocated: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_in_arena(allocated) {
            // SAFETY: as in dealloc.
            return unsafe { System.realloc(allocated, layout, size) };
        }
        let (is_last, grows_by) = (is_last(allocated, layout.size()), size.saturating_sub(layout.size()));
        // SAFETY: the range is what the allocation loses; it is empty if the allocation grows.
        unsafe { clear(allocated.wrapping_add(size), layout.size().saturating_sub(size)) };
        let has_room = || size <= MAX_IN_ARENA && grows_by <= END.load(Relaxed) - NEXT.load(Relaxed).addr();
        if grows_by == 0 || is_last && has_room() {
            if is_last {
                NEXT.store(allocated.wrapping_add(size), Relaxed);
            }
            return allocated;
        }
        // SAFETY: the caller promises a size that is valid with this alignment. Both ranges have at least as many bytes
        // as are copied, and are disjoint.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(allocated, moved, layout.size().min(size));
                self.dealloc(allocated, layout);
            }
            moved
        }
    }
}

/// The memory of this process that can be given back while it idles (proc_pid_smaps(5)). A forked process has the same
/// mappings at the same addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProcessMemory {
    /// Read-only mappings of the program without anonymous pages: each page has the contents of the file. Nothing in
    /// this program makes them writable after startup.
    clean: Vec<Mapping>,
    /// What the C library has allocated.
    heap: Vec<Mapping>,
    /// The lowest address of the stack; 0 if it is unknown.
    stack: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mapping {
    start: usize,
    end: usize,
}

impl Mapping {
    /// In bytes.
    fn length(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Drops the pages: those of a file are read again when they are used, others are then zero. Returns whether the
    /// kernel did.
    ///
    /// # Safety
    /// Nothing may rely on the contents of anonymous pages.
    unsafe fn drop_pages(self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { libc::madvise(self.start as *mut libc::c_void, self.length(), libc::MADV_DONTNEED) == 0 }
    }
}

/// The size of a page. With larger pages, less is given back.
const PAGE: usize = 4096;

/// The buffer for reading the mappings, in bytes.
const SMAPS_BUFFER: usize = 512;

/// The most mappings that the heap has; the pages of others stay.
const MAX_HEAP: usize = 64;

impl ProcessMemory {
    /// The memory of this process; none if it cannot be read.
    pub(crate) fn list() -> Self {
        let thread_pointer = {
            // SAFETY: it returns the address of this thread's errno, which is in the same block as its other variables.
            unsafe { libc::__errno_location() }.addr()
        };
        // Line by line: the whole text would be most of the heap, and a usual buffer would be a tenth of it.
        let smaps = std::fs::File::open("/proc/self/smaps").map(|file| BufReader::with_capacity(SMAPS_BUFFER, file));
        smaps.and_then(|smaps| Self::read(smaps, thread_pointer)).unwrap_or_default()
    }

    /// Drops pages that hold nothing: those of the heap that are zero, those of the program, and those below the frame
    /// of the caller. They come back on demand.
    pub(crate) fn drop_unused(&self) {
        self.drop_zero_pages();
        self.drop_program_and_stack();
    }

    /// Drops the pages of the program, and those below the frame of the caller.
    fn drop_program_and_stack(&self) {
        for mapping in &self.clean {
            // SAFETY: each page has the contents of its file, so no reference can observe a difference.
            unsafe { mapping.drop_pages() };
        }
        let local = 0u8;
        // Neither this frame nor that of the call is larger than a page.
        let stack = Mapping { start: self.stack, end: ((&raw const local).addr() & !(PAGE - 1)).saturating_sub(PAGE) };
        if self.stack > 0 && stack.start < stack.end {
            // SAFETY: it ends below all live frames of the only thread.
            unsafe { stack.drop_pages() };
        }
    }

    /// Drops the pages of the heap that are zero, as the large empty tables of libraries are.
    fn drop_zero_pages(&self) {
        let pages = |mapping: &Mapping| (mapping.start..mapping.end).step_by(PAGE);
        for start in self.heap.iter().flat_map(pages) {
            if is_zero_page(start) {
                // SAFETY: a dropped page of the heap is zero, as this one is.
                unsafe { Mapping { start, end: start + PAGE }.drop_pages() };
            }
        }
    }

    /// Drops the heap and the frames of callers, too, and runs `rest`, which must not use them: nothing that existed
    /// before the fork is used by a forked process that does not return.
    pub(crate) fn drop_all(&self, _: &ForkedChild, rest: fn() -> !) -> ! {
        self.drop_program_and_stack();
        let mut heap = [Mapping::default(); MAX_HEAP];
        let count = self.heap.len().min(MAX_HEAP);
        heap.iter_mut().zip(&self.heap).for_each(|(copy, mapping)| *copy = *mapping);
        // SAFETY: it reads a number that the kernel gave this process: the address of bytes above all frames and below
        // the arguments, which ps(1) reads.
        let above_frames = usize::try_from(unsafe { libc::getauxval(libc::AT_RANDOM) }).unwrap_or(0) & !(PAGE - 1);
        let start = ((&raw const heap).addr() + size_of_val(&heap)).next_multiple_of(PAGE) + PAGE;
        let callers = Mapping { start, end: above_frames };
        for mapping in heap.into_iter().take(count).chain((start < above_frames).then_some(callers)) {
            // SAFETY: this value is not used any more, `rest` captures nothing, and frames below never run again (see
            // `ForkedChild`). The block of the thread's variables is in none of the mappings, this frame neither.
            unsafe { mapping.drop_pages() };
        }
        rest()
    }

    fn read(mut smaps: impl BufRead, thread_pointer: usize) -> io::Result<Self> {
        let mut memory = Self::default();
        let mut candidate = None;
        let mut follows_program = false;
        let mut line = String::new();
        while smaps.read_line(&mut line)? > 0 {
            if let Some((mapping, permissions, path)) = parse_header(&line) {
                let is_writable = permissions.contains('w');
                candidate = (path.starts_with('/') && permissions.starts_with('r') && !is_writable).then_some(mapping);
                // Variables of the program that have no initial value follow it without a name.
                let is_allocated = path == "[heap]" || path.is_empty() && !follows_program;
                if is_writable && is_allocated && !(mapping.start..mapping.end).contains(&thread_pointer) {
                    memory.heap.push(mapping);
                }
                if path == "[stack]" {
                    memory.stack = mapping.start;
                }
                follows_program = path.starts_with('/');
            } else if line.split_whitespace().eq(["Anonymous:", "0", "kB"]) {
                memory.clean.extend(candidate.take());
            }
            line.clear();
        }
        Ok(memory)
    }
}

/// Whether there is a page in memory at this address, and it is zero. It was readable when it was listed, but may have
/// been unmapped since: the list itself was made in memory that the C library has unmapped.
fn is_zero_page(start: usize) -> bool {
    let mut residency = 0u8;
    // SAFETY: the address is that of a page; one byte is written for it. Fails with ENOMEM if the page is not mapped.
    let is_mapped = unsafe { libc::mincore(start as *mut libc::c_void, PAGE, &raw mut residency) } == 0;
    if !is_mapped || residency & 1 == 0 {
        return false;
    }
    let words: *const u64 = std::ptr::with_exposed_provenance(start);
    // SAFETY: the whole page is mapped and aligned, and stays so: there is no other thread. A volatile read assumes
    // nothing about the value.
    (0..PAGE / size_of::<u64>()).all(|at| unsafe { words.wrapping_add(at).read_volatile() } == 0)
}

/// The addresses, permissions and path of the first line of a mapping; `None` for any other line.
fn parse_header(line: &str) -> Option<(Mapping, &str, &str)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let mapping = Mapping { start: usize::from_str_radix(start, 16).ok()?, end: usize::from_str_radix(end, 16).ok()? };
    Some((mapping, fields.next()?, fields.nth(3).unwrap_or("")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_apart_by_its_mapping() {
        let smaps = "\
00400000-00410000 r--p 00000000 fe:00 1  /x/stage1
Rss: 64 kB
Anonymous:             0 kB
00410000-00420000 r-xp 00010000 fe:00 1  /x/stage1
Anonymous:             0 kB
00420000-00430000 r--p 00020000 fe:00 1  /x/stage1
Anonymous:             4 kB
00430000-00440000 rw-p 00030000 fe:00 1  /x/stage1
Anonymous:             0 kB
00440000-00450000 rw-p 00000000 00:00 0
Anonymous:             4 kB
00460000-00470000 rw-p 00000000 00:00 0  [heap]
Anonymous:             4 kB
00500000-00510000 r--p 00000000 00:00 0
Anonymous:             0 kB
00520000-00530000 rw-p 00000000 00:00 0
Anonymous:             8 kB
00540000-00550000 rw-p 00000000 00:00 0
Anonymous:             8 kB
7ffe0000-7ffe2000 rw-p 00000000 00:00 0  [stack]
Anonymous:             8 kB
7fff0000-7fff2000 r-xp 00000000 00:00 0  [vdso]
Anonymous:             0 kB
";
        let mapping = |start| Mapping { start, end: start + 0x1_0000 };
        let memory = ProcessMemory::read(smaps.as_bytes(), 0x54_1000).unwrap();
        assert_eq!(memory.clean, [0x40_0000, 0x41_0000].map(mapping));
        assert_eq!(memory.heap, [0x46_0000, 0x52_0000].map(mapping), "neither .bss nor the thread's variables");
        assert_eq!(memory.stack, 0x7ffe_0000);
    }

    #[test]
    fn zero_pages_read_the_same_after_being_dropped() {
        let mut memory = vec![0u8; 8 * PAGE];
        let start = memory.as_mut_ptr().expose_provenance().next_multiple_of(PAGE);
        let at = start - memory.as_ptr().addr();
        // Written, and zero but for one byte.
        memory.fill(0);
        memory[at + 2 * PAGE - 1] = 7;
        let heap = vec![Mapping { start, end: start + 4 * PAGE }];
        let zeros = || [0, 1, 2, 3].map(|page| is_zero_page(start + page * PAGE));
        assert_eq!(zeros(), [true, false, true, true]);
        ProcessMemory { heap, ..ProcessMemory::default() }.drop_zero_pages();
        assert_eq!(zeros(), [false; 4], "the others are not in memory");
        assert_eq!(memory[at + 2 * PAGE - 1], 7);
        memory[at] = 3;
        assert_eq!(memory[at..].iter().filter(|byte| **byte != 0).count(), 2);
    }

    /// Set in a process of [`holds_in_forked_process`].
    const ALONE: &str = "GANTRY_TEST_ARENA";

    /// Asserts that `check` holds in a forked process. A process with other tests would pass on locks that are held, so
    /// this one runs alone.
    fn holds_in_forked_process(test: &str, check: impl FnOnce(&ForkedChild) -> bool) {
        if std::env::var_os(ALONE).is_none() {
            let test = format!("sys::memory::tests::{test}");
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &test, "--test-threads=1"])
                .env(ALONE, "1")
                .output()
                .unwrap();
            assert!(child.status.success(), "{child:?}");
            return;
        }
        // The test's main thread sleeps, and holds no lock.
        let thread = SingleThreaded { thread: std::marker::PhantomData };
        let child = crate::sys::fork(thread, libc::CLONE_NEWUTS, |process| {
            crate::sys::exit_now(if check(&process) { 42 } else { 1 })
        });
        let status = rustix::process::waitpid(child.ok(), rustix::process::WaitOptions::empty()).unwrap().unwrap().1;
        assert_eq!(status.exit_status(), Some(42), "{status:?}");
    }

    #[test]
    fn arena_serves_a_forked_process() {
        let before = vec![1u8; 100];
        holds_in_forked_process("arena_serves_a_forked_process", |process| {
            process.start_arena();
            let mut texts: Vec<String> = (0..1000).map(|n| format!("text {n}")).collect();
            let in_arena = is_in_arena(texts[0].as_mut_ptr());
            let as_malloc = texts.iter().all(|text| text.as_ptr().addr() % MIN_ALIGNMENT == 0);
            let (mut large, mut aligned) = (vec![0u8; MAX_IN_ARENA + 1], Box::new(Aligned([7; 64])));
            let elsewhere = !is_in_arena(large.as_mut_ptr()) && aligned.0.as_ptr().addr() % 64 == 0;
            aligned.0[0] = 8;
            let mut grown = before;
            grown.extend(std::iter::repeat_n(1, 10_000));
            let whole = texts.iter().enumerate().all(|(n, text)| *text == format!("text {n}"));
            let exhausted: Vec<Vec<u8>> = (0..300).map(|_| vec![5; MAX_IN_ARENA]).collect();
            let kept = exhausted.iter().all(|bytes| bytes.iter().all(|byte| *byte == 5));
            let has_grown = grown.iter().all(|byte| *byte == 1) && grown.len() == 10_100;
            grown.resize(MAX_IN_ARENA + 1, 1);
            let has_left = grown.iter().all(|byte| *byte == 1) && !is_in_arena(grown.as_mut_ptr());
            in_arena && as_malloc && elsewhere && whole && kept && has_grown && has_left
        });
    }

    #[test]
    fn arena_reuses_zeroed_memory() {
        holds_in_forked_process("arena_reuses_zeroed_memory", |process| {
            process.start_arena();
            let freed = vec![9u8; 100];
            let place = freed.as_ptr().addr();
            drop(freed);
            let mut shrunk = vec![0u8; 100];
            let reused = shrunk.as_ptr().addr() == place && shrunk.iter().all(|byte| *byte == 0);
            shrunk.fill(9);
            shrunk.truncate(16);
            shrunk.shrink_to_fit();
            let behind = Box::new([0u8; 84]);
            let follows = behind.as_ptr().addr() == place + 16 && *behind == [0; 84];
            // Not the last allocation any more.
            shrunk.truncate(4);
            shrunk.shrink_to_fit();
            reused && follows && shrunk.as_ptr().addr() == place && shrunk == [9; 4]
        });
    }

    #[test]
    fn arena_gives_back_freed_pages() {
        holds_in_forked_process("arena_gives_back_freed_pages", |process| {
            process.start_arena();
            let before = [9u8; 100].to_vec();
            let large = vec![9u8; MIN_DROP_BYTES + 2 * PAGE];
            let (start, end) = (large.as_ptr().addr(), large.as_ptr().addr() + large.len());
            let behind = [9u8; 100].to_vec();
            drop(large);
            let mut residency = [1u8; 16];
            let first = start.next_multiple_of(PAGE);
            // SAFETY: the pages are mapped; one byte is written for each.
            let listed = unsafe { libc::mincore(first as *mut libc::c_void, MIN_DROP_BYTES, residency.as_mut_ptr()) };
            let dropped = listed == 0 && residency[..MIN_DROP_BYTES / PAGE].iter().all(|page| page & 1 == 0);
            let byte = |at: usize| std::ptr::with_exposed_provenance::<u8>(at);
            // SAFETY: mapped memory of the arena, which has no other user.
            let zero = (start..end).all(|at| unsafe { byte(at).read_volatile() } == 0);
            dropped && zero && before.iter().chain(&behind).all(|byte| *byte == 9)
        });
    }

    #[test]
    fn closed_arena_keeps_what_is_used() {
        holds_in_forked_process("closed_arena_keeps_what_is_used", |process| {
            process.start_arena();
            let (mut freed, mut kept) = (vec![9u8; 3 * PAGE], vec![3u8; PAGE]);
            let page = (freed.as_ptr().addr() + 100).next_multiple_of(PAGE);
            let was_used = !is_zero_page(page);
            freed.truncate(100);
            freed.shrink_to_fit();
            close_supervisor_arena(SingleThreaded { thread: std::marker::PhantomData });
            let mut other = vec![4u8; 100];
            let (in_arena, elsewhere) = (is_in_arena(kept.as_mut_ptr()), !is_in_arena(other.as_mut_ptr()));
            kept.extend(std::iter::repeat_n(3, PAGE));
            let moved = !is_in_arena(kept.as_mut_ptr()) && kept.iter().all(|byte| *byte == 3);
            // A second arena opens while the closed one still has allocations.
            process.start_arena();
            let mut last = vec![0u8; PAGE];
            let opened = is_in_arena(last.as_mut_ptr()) && last.iter().all(|byte| *byte == 0);
            let intact = freed.iter().all(|byte| *byte == 9) && other.iter().all(|byte| *byte == 4);
            was_used && is_zero_page(page) && in_arena && elsewhere && moved && opened && intact
        });
    }

    #[repr(align(64))]
    struct Aligned([u8; 64]);
}
