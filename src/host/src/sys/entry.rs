//! The entry point of the static `gantry`, in place of the C library's `_start`.
//!
//! A position-independent static program relocates itself at its start. This writes to each of some 70 pages of data,
//! one page fault each: a tenth of the time of `gantry version`. One madvise(2) maps them in half of that time.

/// Maps the pages that the C library relocates, then does what the C library's entry point does. Without
/// `MADV_POPULATE_WRITE` (Linux 5.14), the relocation maps them.
///
/// # Safety
/// Only the kernel may enter it, with the stack of a new program.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn gantry_entry() -> ! {
    // SAFETY: the C library's entry point uses rsp alone, and the registers that are changed here are free in a new
    // program, except rdx. The range, from the page of .init_array to the end of .data, is writable.
    core::arch::naked_asm!(
        "lea rdi, [rip + __init_array_start]",
        "and rdi, -{page}",
        "lea rsi, [rip + _edata]",
        "sub rsi, rdi",
        "mov edx, {populate_write}",
        "mov eax, {madvise}",
        "syscall",
        // By the ABI, a function to call at exit; the kernel passes none.
        "xor edx, edx",
        "jmp _start",
        page = const 4096,
        populate_write = const libc::MADV_POPULATE_WRITE,
        madvise = const libc::SYS_madvise,
    )
}
