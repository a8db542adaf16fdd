//! Copies a directory tree of an image into a fresh volume, by descriptors, following nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps};

/// How deep it goes: an image can nest without end.
const DEEPEST: usize = 256;

/// Copies what is in `from` into `to`: directories, regular files and symbolic links with owner, mode and times. Other
/// kinds (devices, FIFOs, sockets) are left out: a volume has no use for an image's.
pub(crate) fn tree(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    level(from, to, 0)
}

fn level(from: &OwnedFd, to: &OwnedFd, depth: usize) -> io::Result<()> {
    if depth > DEEPEST {
        return Err(io::Error::other("directories are nested too deep"));
    }
    for entry in Dir::read_from(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700))?;
                let source = rustix::fs::openat(from, name, flags, Mode::empty())?;
                let target = rustix::fs::openat(to, name, flags, Mode::empty())?;
                level(&source, &target, depth + 1)?;
                like(&target, &stat)?;
            }
            FileType::RegularFile => file(from, to, name, &stat)?,
            FileType::Symlink => {
                let text = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&text, to, name)?;
                rustix::fs::chownat(to, name, owner(&stat).0, owner(&stat).1, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn file(from: &OwnedFd, to: &OwnedFd, name: &std::ffi::CStr, stat: &rustix::fs::Stat) -> io::Result<()> {
    let source = rustix::fs::openat(
        from,
        name,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?;
    let (mut reader, mut writer) = (std::fs::File::from(source), std::fs::File::from(target));
    io::copy(&mut reader, &mut writer)?;
    like(OwnedFd::from(writer), stat)
}

fn owner(stat: &rustix::fs::Stat) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    (Some(rustix::fs::Uid::from_raw(stat.st_uid)), Some(rustix::fs::Gid::from_raw(stat.st_gid)))
}

/// Owner before mode: a change of owner clears set-user-ID bits.
fn like(target: impl AsFd, stat: &rustix::fs::Stat) -> io::Result<()> {
    let (uid, gid) = owner(stat);
    rustix::fs::fchown(&target, uid, gid)?;
    rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    let time = |sec, nsec: i64| Timespec { tv_sec: sec, tv_nsec: nsec };
    let times = Timestamps {
        last_access: time(stat.st_atime as _, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime as _, stat.st_mtime_nsec as _),
    };
    rustix::fs::futimens(&target, &times)?;
    Ok(())
}
