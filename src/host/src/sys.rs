//! System calls without a safe wrapper in rustix, and the heap of a program. All `unsafe` code of this crate is here,
//! each block with its argument.
#![expect(unsafe_code, reason = "all unsafe code of the crate is in this module")]

#[cfg(all(target_arch = "x86_64", target_env = "musl"))]
mod entry;
mod heap;

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

pub use heap::Heap;
use rustix::ioctl::{Getter, Setter, opcode};
use rustix::mount::{MountAttrFlags, MountPropagationFlags};

/// `quotactl_fd(2)`: the same number on all architectures that gantry is built for.
const SYS_QUOTACTL_FD: libc::c_long = 443;

/// The limits and the usage of a quota: `struct if_nextdqblk` of `linux/quota.h`. `struct if_dqblk` is the same with
/// padding in place of the id.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct QuotaBlock {
    /// The limit, in units of 1 KiB.
    pub(crate) hard_blocks: u64,
    pub(crate) soft_blocks: u64,
    /// Used bytes.
    pub(crate) bytes: u64,
    pub(crate) hard_inodes: u64,
    pub(crate) soft_inodes: u64,
    pub(crate) inodes: u64,
    pub(crate) block_time: u64,
    pub(crate) inode_time: u64,
    /// The fields that Q_SETQUOTA sets (`QIF_…`).
    pub(crate) valid: u32,
    pub(crate) id: u32,
}

/// A quotactl(2) command with a [`QuotaBlock`]: Q_GETQUOTA or Q_SETQUOTA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum QuotaCommand {
    Get = 0x80_0007,
    Set = 0x80_0008,
}

/// Gives SIGCHLD its default action, and ignores SIGXFSZ.
pub(crate) fn set_dispositions() {
    for (signal, action) in [(libc::SIGCHLD, libc::SIG_DFL), (libc::SIGXFSZ, libc::SIG_IGN)] {
        // SAFETY: signal(2) takes two numbers; neither action runs code of this process.
        let _valid_signal = unsafe { libc::signal(signal, action) };
    }
}

/// Sets how many free bytes at the end of the heap glibc keeps, and how many it requests beyond an allocation. Other
/// allocators have no such settings.
pub(crate) fn set_heap_margins(trim_threshold: i32, top_pad: i32) {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_TRIM_THRESHOLD, trim_threshold), (libc::M_TOP_PAD, top_pad)] {
        // SAFETY: mallopt(3) takes two numbers and locks the allocator.
        let _unsupported_without_harm = unsafe { libc::mallopt(parameter, value) };
    }
    #[cfg(not(target_env = "gnu"))]
    let _without_effect = (trim_threshold, top_pad);
}

/// Returns the pages of free memory in all arenas of glibc to the kernel. Other allocators have no such function.
pub(crate) fn trim_heap() {
    // SAFETY: malloc_trim(3) takes a number and locks the arenas; it changes no memory that is allocated.
    #[cfg(target_env = "gnu")]
    let _whether_any = unsafe { libc::malloc_trim(0) };
}

/// Sets the greatest number of arenas of glibc, which threads share then. Other allocators have no such setting.
pub(crate) fn set_max_arenas(count: i32) {
    // SAFETY: mallopt(3) takes two numbers and locks the allocator.
    #[cfg(target_env = "gnu")]
    let _unsupported_without_harm = unsafe { libc::mallopt(libc::M_ARENA_MAX, count) };
    #[cfg(not(target_env = "gnu"))]
    let _without_effect = count;
}

/// Reads or sets the quota of a project on the file system of `fd`.
pub(crate) fn project_quota(
    fd: BorrowedFd<'_>,
    command: QuotaCommand,
    project: u32,
    block: &mut QuotaBlock,
) -> io::Result<()> {
    /// The type of project quotas.
    const PRJQUOTA: u32 = 2;
    let command = (command as u32) << 8 | PRJQUOTA;
    // SAFETY: the kernel reads or writes one `struct if_dqblk`, which is as large as the block, behind the pointer. All
    // bit patterns are valid.
    let result = unsafe {
        libc::syscall(
            SYS_QUOTACTL_FD,
            libc::c_long::from(fd.as_raw_fd()),
            libc::c_ulong::from(command),
            libc::c_ulong::from(project),
            std::ptr::from_mut(block),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The attributes of a file: `struct fsxattr` of `linux/fs.h`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct FileAttributes {
    /// Flags (`FS_XFLAG_…`).
    pub(crate) flags: u32,
    extent_size: u32,
    extents: u32,
    /// The project.
    pub(crate) project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `FS_IOC_FSGETXATTR`.
pub(crate) fn file_attributes(fd: BorrowedFd<'_>) -> io::Result<FileAttributes> {
    // SAFETY: the kernel writes one `struct fsxattr`, of which all bit patterns are valid; the opcode has its size.
    let attributes = unsafe {
        let getter = Getter::<{ opcode::read::<FileAttributes>(b'X', 31) }, FileAttributes>::new();
        rustix::ioctl::ioctl(fd, getter)
    };
    Ok(attributes?)
}

/// `FS_IOC_FSSETXATTR`.
pub(crate) fn set_file_attributes(fd: BorrowedFd<'_>, attributes: FileAttributes) -> io::Result<()> {
    // SAFETY: the kernel reads one `struct fsxattr`; the opcode has its size.
    let result = unsafe {
        let setter = Setter::<{ opcode::write::<FileAttributes>(b'X', 32) }, FileAttributes>::new(attributes);
        rustix::ioctl::ioctl(fd, setter)
    };
    Ok(result?)
}

/// Adds attributes to a mount and sets its propagation, if that is not empty (mount_setattr(2)). `recursive`: also
/// those of the mounts below it.
pub(crate) fn set_mount_attributes(
    mount: BorrowedFd<'_>,
    added: MountAttrFlags,
    propagation: MountPropagationFlags,
    recursive: bool,
) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: added.bits().into(),
        attr_clr: 0,
        propagation: propagation.bits().into(),
        userns_fd: 0,
    };
    let recursive = if recursive { libc::AT_RECURSIVE } else { 0 };
    let flags = libc::c_long::from(libc::AT_EMPTY_PATH | recursive);
    // SAFETY: the descriptor is open for the call, the path is empty and ends with a NUL byte, and the kernel reads one
    // `struct mount_attr`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::c_long::from(mount.as_raw_fd()),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
