//! The heap of a program: dlmalloc behind a lock, and small blocks without a lock for one thread.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{self, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;

/// The heap of a program: dlmalloc behind a lock that spins before it sleeps, and small blocks without a lock for the
/// thread that calls [`Heap::adopt_thread`].
///
/// The lock of dlmalloc's own global allocator is that of musl. A thread that waits for it sleeps at once, and each
/// release then takes a system call: hundreds to thousands in a `list` of 1 000 pods, which two threads read.
pub struct Heap {
    small: SmallBlocks,
    large: Mutex<Dlmalloc>,
}

impl Heap {
    /// An empty heap.
    #[must_use]
    pub const fn empty() -> Self {
        Self { small: SmallBlocks::none(), large: Mutex::new(Dlmalloc::new()) }
    }

    /// Makes the calling thread the owner of the small blocks, which then take no lock. Only the first call has an
    /// effect. Call it from the main thread: the owner must live as long as the process. If there is no memory, nothing
    /// changes. (The heap is static because dlmalloc points into itself.)
    pub fn adopt_thread(&'static self) {
        // SAFETY: the layout is not empty.
        let arena = unsafe { self.lock().malloc(ARENA_SIZE, STEP) };
        if !arena.is_null() && !self.small.open(arena) {
            // SAFETY: it was allocated above with this layout, and is not used.
            unsafe { self.lock().free(arena, ARENA_SIZE, STEP) };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Dlmalloc> {
        self.large.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: an allocation is a block of the arena that is in no list, or dlmalloc's; its address tells which. dlmalloc
// returns null, or memory of the layout that belongs to nothing else until it is freed; the lock excludes other
// threads. Nothing here unwinds, and the lock allocates nothing.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.small.take(layout) {
            Some(block) => block,
            // SAFETY: the caller's contract is the same.
            None => unsafe { self.alloc_large(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.small.take(layout) {
            Some(block) => {
                // SAFETY: the block has at least this size.
                unsafe { block.write_bytes(0, layout.size()) };
                block
            }
            // SAFETY: the caller's contract is the same.
            None => unsafe { self.lock().calloc(layout.size(), layout.align()) },
        }
    }

    unsafe fn dealloc(&self, allocation: *mut u8, layout: Layout) {
        if self.small.contains(allocation) {
            // SAFETY: an allocation in the arena is a block of the class of its size, which the caller gives up.
            unsafe { self.small.put_back(allocation, layout.size()) };
        } else {
            // SAFETY: the caller's contract is the same.
            unsafe { self.dealloc_large(allocation, layout) };
        }
    }

    unsafe fn realloc(&self, allocation: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !self.small.contains(allocation) {
            // SAFETY: the caller's contract is the same.
            return unsafe { self.lock().realloc(allocation, layout.size(), layout.align(), new_size) };
        }
        if new_size <= MAX_SMALL && class(new_size) == class(layout.size()) {
            return allocation;
        }
        // SAFETY: the caller promises a new size that is valid with this alignment. Both allocations have at least as
        // many bytes as are copied, and are disjoint.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(allocation, moved, layout.size().min(new_size));
                self.dealloc(allocation, layout);
            }
            moved
        }
    }
}

// Not inlined: otherwise small allocations would save registers that only the lock needs.
impl Heap {
    /// # Safety
    /// As [`GlobalAlloc::alloc`].
    #[inline(never)]
    unsafe fn alloc_large(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the same.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    /// # Safety
    /// As [`GlobalAlloc::dealloc`], and the allocation is not in the arena.
    #[inline(never)]
    unsafe fn dealloc_large(&self, allocation: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { self.lock().free(allocation, layout.size(), layout.align()) };
    }
}

/// Sizes of small blocks are multiples of this, which is also their alignment, in bytes.
const STEP: usize = 16;

/// The size of the largest small block, in bytes.
const MAX_SMALL: usize = 512;

/// The number of sizes of small blocks.
const CLASSES: usize = MAX_SMALL / STEP;

/// The size of the arena, in bytes. Enough for most commands. When it is used up, dlmalloc serves small allocations,
/// too. Untouched pages take no memory.
const ARENA_SIZE: usize = 1 << 20;

/// The class of blocks for allocations of `size` bytes, at most [`MAX_SMALL`].
const fn class(size: usize) -> usize {
    size.saturating_sub(1) / STEP
}

/// The small blocks of one thread, the owner: blocks of [`CLASSES`] sizes from one arena, with a list of free blocks
/// for each size. A block keeps its size for the life of the process.
///
/// Only the owner uses these lists and the rest of the arena, so their loads and stores are relaxed. Other threads push
/// the blocks that they free to one shared list, which the owner takes over when the arena is used up.
struct SmallBlocks {
    arena: Arena,
    /// The bytes of the arena that were given out as blocks so far.
    used: AtomicUsize,
    /// The first free block of each class.
    free: [AtomicPtr<FreeBlock>; CLASSES],
    /// The first block that another thread has freed.
    freed_by_others: AtomicPtr<FreeBlock>,
}

/// Where the blocks are. Every thread reads this when it frees memory, so it shares no cache line with the lists.
#[repr(align(64))]
struct Arena {
    /// [`thread_mark`] of the owner; 0 before there is one.
    owner: AtomicUsize,
    /// Null before there is an owner.
    start: AtomicPtr<u8>,
    /// In bytes; 0 before there is an owner.
    size: AtomicUsize,
}

/// What a free block contains.
struct FreeBlock {
    next: *mut FreeBlock,
    class: usize,
}

/// Identifies the calling thread among the living ones; not 0. The address of a thread-local constant, which neither
/// allocates nor has a destructor.
fn thread_mark() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| ptr::from_ref(mark).addr())
}

impl SmallBlocks {
    const fn none() -> Self {
        let arena = Arena { owner: AtomicUsize::new(0), start: AtomicPtr::new(null_mut()), size: AtomicUsize::new(0) };
        Self {
            arena,
            used: AtomicUsize::new(0),
            free: [const { AtomicPtr::new(null_mut()) }; CLASSES],
            freed_by_others: AtomicPtr::new(null_mut()),
        }
    }

    /// Makes the calling thread the owner, and `start` the arena; false if there is an owner. The arena has
    /// [`ARENA_SIZE`] bytes, is aligned to [`STEP`], and is used for nothing else.
    fn open(&self, start: *mut u8) -> bool {
        if self.arena.owner.compare_exchange(0, thread_mark(), Relaxed, Relaxed).is_err() {
            return false;
        }
        self.arena.start.store(start, Relaxed);
        self.arena.size.store(ARENA_SIZE, Release);
        true
    }

    /// Whether this is a block of the arena.
    fn contains(&self, allocation: *mut u8) -> bool {
        // The size is stored last: a thread that sees it also sees the start.
        let size = self.arena.size.load(Acquire);
        allocation.addr().wrapping_sub(self.arena.start.load(Relaxed).addr()) < size
    }

    /// Whether the calling thread is the owner.
    fn is_owner(&self) -> bool {
        self.arena.owner.load(Relaxed) == thread_mark()
    }

    /// A block for the calling thread; none if it is not the owner, the layout is not small, or the arena is used up.
    fn take(&self, layout: Layout) -> Option<*mut u8> {
        if layout.size() > MAX_SMALL || layout.align() > STEP || !self.is_owner() {
            return None;
        }
        let class = class(layout.size());
        // SAFETY: the calling thread is the owner.
        unsafe { self.take_free(class).or_else(|| self.carve(class)) }
    }

    /// The first free block of a class.
    ///
    /// # Safety
    /// The calling thread is the owner.
    unsafe fn take_free(&self, class: usize) -> Option<*mut u8> {
        let first = self.free[class].load(Relaxed);
        if first.is_null() {
            return None;
        }
        // SAFETY: blocks in the list are free, and only the owner, which is this thread, uses the list.
        self.free[class].store(unsafe { (*first).next }, Relaxed);
        Some(first.cast())
    }

    /// A new block of a class from the rest of the arena, or one that another thread has freed.
    ///
    /// # Safety
    /// The calling thread is the owner.
    unsafe fn carve(&self, class: usize) -> Option<*mut u8> {
        let (used, size) = (self.used.load(Relaxed), (class + 1) * STEP);
        if size <= self.arena.size.load(Relaxed) - used {
            self.used.store(used + size, Relaxed);
            return Some(self.arena.start.load(Relaxed).wrapping_add(used));
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.take_over();
            self.take_free(class)
        }
    }

    /// Moves the blocks that other threads have freed to the lists of their classes.
    ///
    /// # Safety
    /// The calling thread is the owner.
    #[cold]
    #[inline(never)]
    unsafe fn take_over(&self) {
        if self.freed_by_others.load(Relaxed).is_null() {
            return;
        }
        let mut next = self.freed_by_others.swap(null_mut(), Acquire);
        while !next.is_null() {
            let block = next;
            // SAFETY: the swap took the whole list, whose blocks are free and have their class in them; the calling
            // thread is the owner.
            unsafe {
                next = (*block).next;
                self.push(block, (*block).class);
            }
        }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// It is in the arena, was allocated for `size` bytes, and is no longer used.
    unsafe fn put_back(&self, block: *mut u8, size: usize) {
        let (block, class) = (block.cast::<FreeBlock>(), class(size));
        // SAFETY: the caller's promise.
        unsafe { if self.is_owner() { self.push(block, class) } else { self.hand_over(block, class) } }
    }

    /// Frees a block of the owner in another thread.
    ///
    /// # Safety
    /// The block is free and in no list.
    #[cold]
    #[inline(never)]
    unsafe fn hand_over(&self, block: *mut FreeBlock, class: usize) {
        let mut next = self.freed_by_others.load(Relaxed);
        loop {
            // SAFETY: every block has room for this, and is aligned for it.
            unsafe { block.write(FreeBlock { next, class }) };
            // No ABA: the owner takes only the whole list.
            match self.freed_by_others.compare_exchange_weak(next, block, Release, Relaxed) {
                Ok(_) => return,
                Err(first) => next = first,
            }
        }
    }

    /// Puts a block into the list of its class.
    ///
    /// # Safety
    /// The calling thread is the owner, and the block is free and in no list.
    unsafe fn push(&self, block: *mut FreeBlock, class: usize) {
        // SAFETY: every block has room for a pointer, and is aligned for it.
        unsafe { (&raw mut (*block).next).write(self.free[class].load(Relaxed)) };
        self.free[class].store(block, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// A heap whose small blocks belong to this thread.
    fn adopted() -> &'static Heap {
        let heap: &'static Heap = Box::leak(Box::new(Heap::empty()));
        heap.adopt_thread();
        heap
    }

    /// An allocation filled with one byte. Its pointer may be sent to other threads.
    struct Filled {
        start: *mut u8,
        size: usize,
        byte: u8,
    }

    // SAFETY: the allocation has one user at a time.
    unsafe impl Send for Filled {}

    impl Filled {
        fn new(heap: &Heap, size: usize, byte: u8) -> Self {
            // SAFETY: the layout is not empty, and the allocation has its size.
            unsafe {
                let start = heap.alloc(layout(size));
                assert!(start.addr().is_multiple_of(8));
                start.write_bytes(byte, size);
                Self { start, size, byte }
            }
        }

        fn check(&self, length: usize) {
            // SAFETY: it has at least this length.
            let contents = unsafe { std::slice::from_raw_parts(self.start, length) };
            assert!(contents.iter().all(|found| *found == self.byte), "{} bytes of {}", self.size, self.byte);
        }

        /// Checks that resizing keeps the contents, then fills the rest.
        fn resize(&mut self, heap: &Heap, size: usize) {
            // SAFETY: it was allocated with this layout.
            self.start = unsafe { heap.realloc(self.start, layout(self.size), size) };
            let kept = self.size.min(size);
            self.size = size;
            self.check(kept);
            // SAFETY: it has this size now.
            unsafe { self.start.write_bytes(self.byte, size) };
        }

        fn free(self, heap: &Heap) {
            self.check(self.size);
            // SAFETY: it was allocated with this layout, and is freed once.
            unsafe { heap.dealloc(self.start, layout(self.size)) };
        }

        fn is_small(&self, heap: &Heap) -> bool {
            heap.small.contains(self.start)
        }
    }

    #[test]
    fn the_owner_reuses_blocks_of_equal_size() {
        let heap = adopted();
        let (first, second) = (Filled::new(heap, 40, 1), Filled::new(heap, 48, 2));
        assert!(first.is_small(heap) && second.is_small(heap) && first.start != second.start);
        let free = first.start.addr();
        first.free(heap);
        assert_ne!(Filled::new(heap, 49, 3).start.addr(), free, "another class");
        assert_eq!(Filled::new(heap, 33, 4).start.addr(), free);
        second.free(heap);
    }

    #[test]
    fn zeroed_blocks_are_zero_after_reuse() {
        let heap = adopted();
        let dirty = Filled::new(heap, 64, 0xff);
        let free = dirty.start.addr();
        dirty.free(heap);
        // SAFETY: the layout is not empty.
        let start = unsafe { heap.alloc_zeroed(layout(64)) };
        assert_eq!(start.addr(), free);
        Filled { start, size: 64, byte: 0 }.free(heap);
    }

    #[test]
    fn resizing_keeps_the_contents() {
        let heap = adopted();
        let mut resized = Filled::new(heap, 1, 7);
        let first = resized.start;
        let mut neighbours = Vec::new();
        for (i, size) in [16, 17, 512, 513, 100_000, 512, 30].into_iter().enumerate() {
            resized.resize(heap, size);
            assert_eq!(resized.start == first, size == 16, "{size} bytes");
            neighbours.extend([16, 32, size].map(|size| Filled::new(heap, size, i as u8)));
        }
        resized.free(heap);
        for neighbour in neighbours {
            neighbour.free(heap);
        }
    }

    #[test]
    fn allocations_of_before_the_adoption_stay_valid() {
        let heap: &'static Heap = Box::leak(Box::new(Heap::empty()));
        let (mut resized, freed) = (Filled::new(heap, 40, 1), Filled::new(heap, 40, 2));
        heap.adopt_thread();
        resized.resize(heap, 60);
        assert!(!resized.is_small(heap) && !freed.is_small(heap));
        freed.free(heap);
        resized.free(heap);
    }

    #[test]
    fn other_threads_allocate_from_dlmalloc() {
        let heap = adopted();
        let mut block = Filled::new(heap, 40, 1);
        thread::scope(|scope| {
            scope.spawn(move || {
                heap.adopt_thread();
                let other = Filled::new(heap, 40, 2);
                assert!(block.is_small(heap) && !other.is_small(heap));
                block.resize(heap, 80);
                assert!(!block.is_small(heap), "moved by the other thread");
                block.free(heap);
                other.free(heap);
            });
        });
        assert!(Filled::new(heap, 40, 3).is_small(heap), "the first thread is still the owner");
    }

    #[test]
    fn large_and_aligned_allocations_come_from_dlmalloc() {
        let heap = adopted();
        let large = Filled::new(heap, MAX_SMALL + 1, 1);
        assert!(!large.is_small(heap));
        large.free(heap);
        let aligned = Layout::from_size_align(64, 64).unwrap();
        // SAFETY: the layout is not empty, and the allocation is freed once.
        unsafe {
            let allocation = heap.alloc(aligned);
            assert!(allocation.addr().is_multiple_of(64) && !heap.small.contains(allocation));
            heap.dealloc(allocation, aligned);
        }
    }

    #[test]
    fn a_full_arena_takes_over_blocks_freed_elsewhere() {
        let heap = adopted();
        let blocks: Vec<_> = (0..ARENA_SIZE / 256).map(|i| Filled::new(heap, 256, i as u8)).collect();
        assert!(!Filled::new(heap, 16, 9).is_small(heap), "the arena is used up");
        let all: Vec<_> = blocks.iter().map(|block| block.start.addr()).collect();
        thread::scope(|scope| drop(scope.spawn(move || blocks.into_iter().for_each(|block| block.free(heap)))));
        let mut again: Vec<_> = (0..all.len()).map(|i| Filled::new(heap, 250, i as u8).start.addr()).collect();
        again.sort_unstable();
        assert_eq!(again, all);
    }

    #[test]
    fn blocks_are_taken_over_while_others_are_freed() {
        let heap = adopted();
        let mut live: Vec<_> = (0..ARENA_SIZE / 64).map(|i| Filled::new(heap, 64, i as u8)).collect();
        thread::scope(|scope| {
            let senders: Vec<_> = (0..2)
                .map(|_| {
                    let (send, receive) = std::sync::mpsc::sync_channel::<Filled>(16);
                    scope.spawn(move || receive.into_iter().for_each(|block| block.free(heap)));
                    send
                })
                .collect();
            for i in 0..4 * live.len() {
                let at = i % live.len();
                let block = std::mem::replace(&mut live[at], Filled::new(heap, 50 + i % 15, i as u8));
                senders[i % 2].send(block).unwrap();
            }
        });
        assert!(live.iter().any(|block| block.is_small(heap)));
        for block in live {
            block.free(heap);
        }
    }
}
