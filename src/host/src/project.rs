//! Project quotas: limits of the space that directory trees use, on xfs mounted with `prjquota`, and on ext4 with the
//! features `project` and `quota`, mounted with `prjquota`.
//!
//! A directory has a project id, which the files created in it inherit. The file system counts the blocks and inodes of
//! each project; beyond its limit, writing fails with EDQUOT or ENOSPC.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys::{self, QuotaBlock, QuotaCommand};

/// Files created in the directory get its project.
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
/// [`QuotaBlock::valid`]: the limits of blocks and of inodes are set.
const QIF_LIMITS: u32 = 1 | 4;
/// The unit of the limits of blocks.
const QUOTA_BLOCK: u64 = 1024;

/// The usage and the limit of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProjectUsage {
    /// Used bytes.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
    /// The limit of bytes; `None`: no limit.
    pub limit: Option<u64>,
}

/// Opens a directory for the functions of this module.
///
/// # Errors
/// Of open(2).
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// The usage of a project on the file system of the directory.
///
/// # Errors
/// Of quotactl_fd(2): ESRCH, ENOSYS, ENOTTY, EOPNOTSUPP or EINVAL where the file system has no project quotas.
pub fn usage(dir: impl AsFd, project: u32) -> io::Result<ProjectUsage> {
    let mut block = QuotaBlock::default();
    match sys::project_quota(dir.as_fd(), QuotaCommand::Get, project, &mut block) {
        Ok(()) => {}
        // xfs: the project has no record.
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => return Ok(ProjectUsage::default()),
        Err(error) => return Err(error),
    }
    let limit = block.hard_blocks.saturating_mul(QUOTA_BLOCK);
    Ok(ProjectUsage { bytes: block.bytes, inodes: block.inodes, limit: (limit > 0).then_some(limit) })
}

/// Sets the limit of bytes of a project, rounded up to KiB; `None` removes it.
///
/// # Errors
/// Of quotactl_fd(2).
pub fn set_limit(dir: impl AsFd, project: u32, bytes: Option<u64>) -> io::Result<()> {
    let hard_blocks = bytes.map_or(0, |bytes| bytes.div_ceil(QUOTA_BLOCK));
    let mut block = QuotaBlock { hard_blocks, valid: QIF_LIMITS, ..QuotaBlock::default() };
    sys::project_quota(dir.as_fd(), QuotaCommand::Set, project, &mut block)
}

/// Gives an empty directory a project, which the files created in it inherit.
///
/// # Errors
/// Of ioctl(2).
pub fn assign(dir: impl AsFd, project: u32) -> io::Result<()> {
    let mut attributes = sys::file_attributes(dir.as_fd())?;
    attributes.flags |= FS_XFLAG_PROJINHERIT;
    attributes.project = project;
    sys::set_file_attributes(dir.as_fd(), attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_project_quotas_is_recognized() {
        let proc = open_directory(Path::new("/proc")).unwrap();
        assert!(usage(&proc, 1).is_err() && set_limit(&proc, 1, Some(1)).is_err() && assign(&proc, 1).is_err());
    }

    #[test]
    fn kernel_structures_have_their_sizes() {
        assert_eq!((size_of::<QuotaBlock>(), size_of::<sys::FileAttributes>()), (72, 28));
    }
}
