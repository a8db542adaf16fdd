//! SQLite's memory in the allocator of the program. All `unsafe` code of this crate is here, each block with its
//! argument.
#![expect(unsafe_code, reason = "all unsafe code of the crate is in this module")]

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Once;

use rusqlite::ffi::{SQLITE_CONFIG_MALLOC, SQLITE_OK, sqlite3_config, sqlite3_mem_methods};

/// In front of each allocation: its size, without the header. SQLite asks for it, and Rust's allocator needs it.
const HEADER: usize = size_of::<usize>();

/// Makes SQLite use the allocator of the program; without effect once SQLite is in use.
///
/// The static programs have another allocator than musl's, which maps and unmaps pages for most allocations of SQLite:
/// 130 system calls a command, and as many page faults. SQLite must not be used by another thread at the same time.
#[cfg_attr(not(target_env = "musl"), expect(dead_code, reason = "the other allocators are good enough"))]
pub(crate) fn share_allocator() {
    static CONFIGURED: Once = Once::new();
    CONFIGURED.call_once(|| {
        let methods = sqlite3_mem_methods {
            xMalloc: Some(allocate),
            xFree: Some(free),
            xRealloc: Some(resize),
            xSize: Some(size),
            xRoundup: Some(round_up),
            xInit: Some(initialize),
            xShutdown: Some(shut_down),
            pAppData: null_mut(),
        };
        // SAFETY: SQLite copies the methods. It changes nothing if it is initialized already.
        let _without_effect_if_in_use = unsafe { sqlite3_config(SQLITE_CONFIG_MALLOC, &raw const methods) };
    });
}

/// The layout of an allocation with its header.
fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEADER)?, align_of::<usize>()).ok()
}

/// The start and the layout of an allocation of [`allocate`] or [`resize`].
///
/// # Safety
/// The allocation is one of these, and was not freed.
unsafe fn whole(allocation: *mut c_void) -> (*mut u8, usize, Option<Layout>) {
    // SAFETY: the header is in front of the allocation, aligned as a usize.
    let (start, size) = unsafe {
        let start = allocation.cast::<u8>().sub(HEADER);
        (start, start.cast::<usize>().read())
    };
    (start, size, layout(size))
}

/// Writes the header of an allocation that begins at `start`, and returns what follows it.
///
/// # Safety
/// `start` is null, or has the layout of this size.
unsafe fn with_header(start: *mut u8, size: usize) -> *mut c_void {
    if start.is_null() {
        return null_mut();
    }
    // SAFETY: the layout begins with a usize, and is aligned to it.
    unsafe {
        start.cast::<usize>().write(size);
        start.add(HEADER).cast()
    }
}

extern "C" fn allocate(size: c_int) -> *mut c_void {
    let Some((size, layout)) = usize::try_from(size).ok().and_then(|size| Some((size, layout(size)?))) else {
        return null_mut();
    };
    // SAFETY: the layout is not empty, and is that of this size.
    unsafe { with_header(alloc(layout), size) }
}

unsafe extern "C" fn free(allocation: *mut c_void) {
    // SAFETY: SQLite frees what it has allocated, once.
    if let (start, _, Some(layout)) = unsafe { whole(allocation) } {
        // SAFETY: as above, and the layout is that of the allocation.
        unsafe { dealloc(start, layout) };
    }
}

unsafe extern "C" fn resize(allocation: *mut c_void, size: c_int) -> *mut c_void {
    // SAFETY: SQLite resizes what it has allocated.
    let (start, _, old) = unsafe { whole(allocation) };
    let new = usize::try_from(size).ok().and_then(|size| Some((size, layout(size)?)));
    let (Some(old), Some((size, new))) = (old, new) else { return null_mut() };
    // SAFETY: the old layout is that of the allocation, and the new one is not empty and has the same alignment.
    unsafe { with_header(realloc(start, old, new.size()), size) }
}

unsafe extern "C" fn size(allocation: *mut c_void) -> c_int {
    if allocation.is_null() {
        return 0;
    }
    // SAFETY: SQLite asks for what it has allocated.
    let (_, size, _) = unsafe { whole(allocation) };
    c_int::try_from(size).unwrap_or(c_int::MAX)
}

extern "C" fn round_up(size: c_int) -> c_int {
    size.saturating_add(7) & !7
}

extern "C" fn initialize(_: *mut c_void) -> c_int {
    SQLITE_OK
}

extern "C" fn shut_down(_: *mut c_void) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_keep_their_content_and_size() {
        let first = allocate(5);
        // SAFETY: five bytes are allocated, then 70 000, of which the first five are kept; it is freed once.
        unsafe {
            first.cast::<u8>().write_bytes(7, 5);
            assert_eq!((first as usize % 8, size(first)), (0, 5));
            let larger = resize(first, 70_000);
            assert_eq!(size(larger), 70_000);
            assert_eq!(std::slice::from_raw_parts(larger.cast::<u8>(), 5), [7; 5]);
            free(larger);
            assert_eq!(size(null_mut()), 0);
        }
        assert!(allocate(-1).is_null());
        assert_eq!([0, 1, 8, 9].map(|size| round_up(size)), [0, 8, 8, 16]);
    }
}
