//! Mounts: the mounted directories of the host, with their sizes.

use gantry_proto::talos::machine::{MountStat, Mounts};
use rustix::fs::OFlags;
use tonic::Status;

/// File systems with a server that may not answer, so that asking for their size can block for ever, and automounts,
/// which opening would mount.
const REMOTE: [&str; 12] =
    ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "autofs", "lustre", "gfs2", "ocfs2", "beegfs"];

fn may_block(kind: &str) -> bool {
    kind.starts_with("fuse") || REMOTE.contains(&kind)
}

/// Reads the mounts in their order. A file system that cannot be examined has size 0, which talosctl hides.
///
/// # Errors
/// `INTERNAL` if the list cannot be read.
pub(in super::super) fn read() -> Result<Mounts, Status> {
    let mounts = procfs::mounts().map_err(super::unreadable("/proc/mounts"))?;
    let stats = mounts.into_iter().filter_map(|mount| {
        let (size, available) = match may_block(&mount.fs_vfstype) {
            true => (0, 0),
            false => sizes(&mount.fs_file)?,
        };
        Some(MountStat { filesystem: mount.fs_spec, size, available, mounted_on: mount.fs_file })
    });
    Ok(Mounts { metadata: None, stats: stats.collect() })
}

/// Total and available bytes of a mounted directory; `None`: the mount is a file.
fn sizes(path: &str) -> Option<(u64, u64)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(path, flags, rustix::fs::Mode::empty()) {
        Ok(dir) => dir,
        Err(rustix::io::Errno::NOTDIR) => return None,
        Err(_) => return Some((0, 0)),
    };
    let found = rustix::fs::fstatvfs(&dir).ok();
    Some(found.map_or((0, 0), |found| {
        (found.f_frsize.saturating_mul(found.f_blocks), found.f_frsize.saturating_mul(found.f_bavail))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_mounted() {
        let mounts = read().unwrap();
        let root = mounts.stats.iter().rfind(|mount| mount.mounted_on == "/").unwrap();
        assert!(root.size >= root.available && root.size > 0);
        assert_eq!(sizes("/proc/self/status"), None);
    }
}
