//! memcpy(3) and memmove(3) of gantry and gantry-stage1, in place of musl's.
//!
//! musl uses `rep movsq` for every length, and aligns the destination and copies the rest byte by byte. But most copies
//! are shorter than 16 bytes: these functions copy them by two overlapping moves. This saves a fifth of a command's
//! time outside the kernel.
//!
//! A program gets these functions with `use gantry_memcpy as _`: the linker finds them before those of the C library.
//! Only programs for musl on x86-64 have them; others keep the functions of their C library.
#![cfg(target_arch = "x86_64")]
#![cfg_attr(not(test), no_std)]
// Without this, the compiler may turn memcpy's own loop into a call of memcpy.
#![no_builtins]
#![expect(unsafe_code, reason = "functions of the C library take pointers")]

use core::arch::asm;
use core::arch::x86_64::__m128i as Vector;
use core::mem::MaybeUninit;

/// The length of a vector, in bytes.
const VECTOR: usize = size_of::<Vector>();
/// Copies of this length or more use `rep movsq`, which takes some 40 cycles to begin and then copies whole lines.
const LONG: usize = 1024;
/// A forward copy of at most this length reads everything before it writes.
const READ_FIRST: usize = 4 * VECTOR;

/// memcpy(3).
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes, and they do not overlap.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    // SAFETY: by the caller's promise.
    unsafe { copy_forward(to, from, length) };
    to
}

/// memmove(3).
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes.
#[cfg_attr(target_env = "musl", unsafe(no_mangle))]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    let begins_within = to.addr().wrapping_sub(from.addr()) < length;
    // SAFETY: by the caller's promise. If `to` begins within `from`, only a short copy goes forward.
    unsafe {
        if begins_within && length > READ_FIRST {
            copy_backward(to, from, length);
        } else {
            copy_forward(to, from, length);
        }
    }
    to
}

/// Copies the first bytes first.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes. `to` does not begin within `from`, or `length` is at most
/// [`READ_FIRST`].
#[inline(always)]
unsafe fn copy_forward(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: each access is below `length`.
    unsafe {
        match length {
            0 => {}
            1 => store(to, load::<u8>(from)),
            2..4 => copy_ends::<u16>(to, from, length),
            4..8 => copy_ends::<u32>(to, from, length),
            8..16 => copy_ends::<u64>(to, from, length),
            16..=32 => copy_ends::<Vector>(to, from, length),
            33..=READ_FIRST => copy_ends_of_two(to, from, length),
            LONG.. => copy_words(to, from, length),
            _ => copy_vectors(to, from, length),
        }
    }
}

/// Copies the first and the last `T`, which may overlap.
///
/// # Safety
/// As [`copy_forward`]; `length` is at least that of a `T`, and at most twice that.
#[inline(always)]
unsafe fn copy_ends<T: Copy>(to: *mut u8, from: *const u8, length: usize) {
    let last = length - size_of::<T>();
    // SAFETY: both accesses end at or before `length`.
    unsafe {
        let (begin, end) = (load::<T>(from), load::<T>(from.add(last)));
        store(to, begin);
        store(to.add(last), end);
    }
}

/// Copies the first and the last two vectors.
///
/// # Safety
/// As [`copy_forward`]; `length` is two to four vectors.
#[inline(always)]
unsafe fn copy_ends_of_two(to: *mut u8, from: *const u8, length: usize) {
    let (third, fourth) = (length - 2 * VECTOR, length - VECTOR);
    // SAFETY: each access ends at or before `length`.
    unsafe {
        let (a, b) = (load::<Vector>(from), load::<Vector>(from.add(VECTOR)));
        let (c, d) = (load::<Vector>(from.add(third)), load::<Vector>(from.add(fourth)));
        store(to, a);
        store(to.add(VECTOR), b);
        store(to.add(third), c);
        store(to.add(fourth), d);
    }
}

/// Copies vector by vector.
///
/// # Safety
/// As [`copy_forward`]; `length` is more than one vector.
#[inline(always)]
unsafe fn copy_vectors(to: *mut u8, from: *const u8, length: usize) {
    let last = length - VECTOR;
    // SAFETY: each access ends at or before `length`. What is written was read before.
    unsafe {
        let end = load::<Vector>(from.add(last));
        let mut at = 0;
        while at < last {
            store(to.add(at), load::<Vector>(from.add(at)));
            at += VECTOR;
        }
        store(to.add(last), end);
    }
}

/// Copies by `rep movsq`.
///
/// # Safety
/// As [`copy_forward`]; `length` is at least that of a word.
#[inline(always)]
unsafe fn copy_words(to: *mut u8, from: *const u8, length: usize) {
    const WORD: usize = size_of::<u64>();
    let last = length - WORD;
    // SAFETY: each access ends at or before `length`. The ABI clears the direction flag.
    unsafe {
        let end = load::<u64>(from.add(last));
        asm!(
            "rep movsq",
            inout("rcx") length / WORD => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
        store(to.add(last), end);
    }
}

/// Copies vector by vector, the last bytes first.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes, which are more than one vector. `to` does not begin before
/// `from` and overlap it.
unsafe fn copy_backward(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: each access ends at or before `length`. What is written was read before.
    unsafe {
        let begin = load::<Vector>(from);
        let mut end = length;
        while end > VECTOR {
            end -= VECTOR;
            store(to.add(end), load::<Vector>(from.add(end)));
        }
        store(to, begin);
    }
}

/// Bytes at any address, which may be uninitialized. The compiler turns an access to the field into a move, never into
/// a call of memcpy.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(MaybeUninit<T>);

/// # Safety
/// `from` is readable for the length of a `T`.
#[inline(always)]
unsafe fn load<T: Copy>(from: *const u8) -> MaybeUninit<T> {
    // SAFETY: by the caller's promise.
    unsafe { (*from.cast::<Unaligned<T>>()).0 }
}

/// # Safety
/// `to` is writable for the length of a `T`.
#[inline(always)]
unsafe fn store<T: Copy>(to: *mut u8, value: MaybeUninit<T>) {
    // SAFETY: by the caller's promise.
    unsafe { (*to.cast::<Unaligned<T>>()).0 = value }
}

#[cfg(test)]
mod tests;
