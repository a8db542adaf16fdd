//! The state directory of networks: leases by boot, cached results of plugins, and locks.
//!
//! ```text
//! STATE_DIR/            0700
//!   lock                flock: shared while an interface and its entries are created, exclusive to remove bridges
//!   gc                  flock: shared while plugins add a pod, exclusive to collect garbage; plugins inherit it
//!   forwarding          flock: exclusive while forwarding is enabled
//!   forwarding4, forwarding6   the host's settings before forwarding was enabled (super::forwarding)
//!   results/            crate::plugin::Cache
//!   BOOT_ID/NETWORK/    crate::ipam::Store
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use gantry_contract::network::Host;
use gantry_host::lock::{LockMode, LockedFile};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::error::{NetworkError, Result};
use super::lock_holders::find_lock_holders;
use crate::config::files;
use crate::plugin::{Cache, Runtime};

/// The timeout of the locks of leases and links.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// When to check whether the lock is held by plugins without a supervisor: no garbage collection takes longer.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(12);
/// The maximum size of a small file.
const MAX_SMALL: usize = 256 * 1024;
/// The maximum depth of the directory of leases.
const MAX_DEPTH: u32 = 8;

/// The open state directory.
pub(super) struct StateDir {
    fd: OwnedFd,
    path: String,
}

/// A lock, held until dropped.
pub(super) type Locked = LockedFile<OwnedFd>;

/// The locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    Links,
    Plugins,
    Forwarding,
}

impl Lock {
    fn name(self) -> &'static str {
        match self {
            Self::Links => "lock",
            Self::Plugins => "gc",
            Self::Forwarding => "forwarding",
        }
    }
}

impl StateDir {
    /// Opens the directory, creating it if necessary.
    pub(super) fn open(host: &Host) -> Result<Self> {
        match rustix::fs::mkdir(host.state_dir.as_str(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(NetworkError::io(format!("create the directory {}", host.state_dir))(errno)),
        }
        let opened = files::open_dir(Path::new(&host.state_dir));
        let fd = opened.map_err(NetworkError::io(format!("open the directory {}", host.state_dir)))?;
        Ok(Self { fd, path: host.state_dir.clone() })
    }

    /// Opens the directory if it exists: without it there has never been a network.
    pub(super) fn find(host: &Host) -> Result<Option<Self>> {
        match files::open_dir(Path::new(&host.state_dir)) {
            Ok(fd) => Ok(Some(Self { fd, path: host.state_dir.clone() })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(NetworkError::io(format!("open the directory {}", host.state_dir))(error)),
        }
    }

    /// Opens the directory of the leases of a boot, creating it if necessary.
    pub(super) fn leases(&self, boot: &str) -> Result<OwnedFd> {
        let doing = || format!("create the directory {}/{boot}", self.path);
        match rustix::fs::mkdirat(&self.fd, boot, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(NetworkError::io(doing())(errno)),
        }
        open_beneath(self.fd.as_fd(), boot).map_err(NetworkError::io(doing()))
    }

    /// The networks that have leases of a boot.
    pub(super) fn networks(&self, boot: &str) -> Result<Vec<String>> {
        let dir = match open_beneath(self.fd.as_fd(), boot) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other.map_err(NetworkError::io(format!("open the directory {}/{boot}", self.path)))?,
        };
        Ok(self.directories(&dir)?.into_iter().filter(|name| crate::config::is_name(name)).collect())
    }

    /// Whether pods have leases of a network.
    pub(super) fn has_leases(&self, boot: &str, network: &str) -> Result<bool> {
        let doing = || format!("look for leases of network '{network}'");
        let dir = match open_beneath(self.fd.as_fd(), &format!("{boot}/{network}/addresses")) {
            Err(Errno::NOENT) => return Ok(false),
            other => other.map_err(NetworkError::io(doing()))?,
        };
        for entry in Dir::read_from(&dir).map_err(NetworkError::io(doing()))? {
            if !entry.map_err(NetworkError::io(doing()))?.file_name().to_bytes().starts_with(b".") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The boots that have leases.
    pub(super) fn boots(&self) -> Result<Vec<String>> {
        let boots = self.directories(&self.fd)?.into_iter();
        Ok(boots.filter(|name| is_boot(name)).collect())
    }

    fn directories(&self, parent: &OwnedFd) -> Result<Vec<String>> {
        let doing = || format!("list the directory {}", self.path);
        let mut names = Vec::new();
        for entry in Dir::read_from(parent).map_err(NetworkError::io(doing()))? {
            let entry = entry.map_err(NetworkError::io(doing()))?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if entry.file_type() == FileType::Directory && !name.starts_with('.') {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Removes the leases of an earlier boot.
    pub(super) fn forget_boot(&self, boot: &str) -> Result<()> {
        remove_tree(self.fd.as_fd(), boot, MAX_DEPTH)
            .map_err(NetworkError::io(format!("remove the directory {}/{boot}", self.path)))
    }

    /// A small file of it.
    pub(super) fn small(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let doing = || format!("read {}/{name}", self.path);
        let file = match files::open_file(self.fd.as_fd(), Path::new(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(NetworkError::io(doing()))?,
        };
        files::read(file, MAX_SMALL).map_err(NetworkError::io(doing()))
    }

    /// Writes a small file, in the place of an earlier one. Nothing is synced: the content is valid for one boot only.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let doing = || format!("write {}/{name}", self.path);
        // Two processes may write the same file at once: each has a temporary file, and the last rename wins.
        let new = format!(".{name}.{}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.fd, &new, flags, Mode::RUSR | Mode::WUSR);
        let mut file = std::fs::File::from(fd.map_err(NetworkError::io(doing()))?);
        let written = std::io::Write::write_all(&mut file, bytes);
        let placed = written.and_then(|()| Ok(rustix::fs::renameat(&self.fd, &new, &self.fd, name)?));
        if placed.is_err() {
            // Report the failure to write.
            let _ = rustix::fs::unlinkat(&self.fd, &new, AtFlags::empty());
        }
        placed.map_err(NetworkError::io(doing()))
    }

    /// Removes a small file, which need not exist.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        ignore_missing(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()))
            .map_err(NetworkError::io(format!("remove {}/{name}", self.path)))
    }

    /// The cached results of plugins.
    pub(super) fn cache(&self) -> Result<Cache> {
        let doing = || format!("open what is remembered of plugins in {}", self.path);
        Cache::open(self.fd.as_fd()).map_err(NetworkError::attempt(doing()))
    }

    /// The runtime of plugins.
    pub(super) fn runtime(&self, host: &Host) -> Result<Runtime> {
        let dirs = host.plugin_dirs.iter().map(Into::into).collect();
        Ok(Runtime::new(dirs, self.cache()?, limit(host)))
    }

    /// Waits for a lock.
    pub(super) fn lock(&self, lock: Lock, mode: LockMode, wait: Duration) -> Result<Locked> {
        let path = || format!("{}/{}", self.path, lock.name());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.fd, lock.name(), flags, Mode::RUSR | Mode::WUSR)
            .map_err(NetworkError::io(format!("open {}", path())))?;
        let locked = LockedFile::lock_within(file, mode, wait, |file, elapsed| {
            let orphan = lock == Lock::Plugins && mode == LockMode::Shared && elapsed >= ORPHAN_TIMEOUT;
            if orphan { end_orphans(file) } else { Ok(()) }
        });
        let locked = locked.map_err(NetworkError::io(format!("lock {}", path())))?;
        let locked = locked.ok_or_else(|| NetworkError::Locked { path: path(), seconds: wait.as_secs() })?;
        if lock == Lock::Plugins {
            // A plugin that outlives this process keeps the lock: the list of valid attachments holds until its GC is
            // done.
            locked.make_inheritable().map_err(NetworkError::io(format!("lock {}", path())))?;
        }
        Ok(locked)
    }
}

/// Kills the plugins of a garbage collection whose supervisor is dead: no pod could be attached until they end.
fn end_orphans(file: &OwnedFd) -> std::io::Result<()> {
    let holders = find_lock_holders(file)?;
    if !holders.include_supervisor() {
        holders.kill();
    }
    Ok(())
}

/// The timeout of one plugin.
pub(super) fn limit(host: &Host) -> Duration {
    Duration::from_millis(host.plugin_limit_ms)
}

/// Whether a name is the id of a boot: a UUID in lower case.
fn is_boot(name: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.len() == 36
        && name
            .bytes()
            .enumerate()
            .all(|(at, byte)| if matches!(at, 8 | 13 | 18 | 23) { byte == b'-' } else { hex(byte) })
}

fn open_beneath(dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, name, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// Removes a directory with its contents, without following links. Other processes may do the same at once.
fn remove_tree(parent: BorrowedFd<'_>, name: &str, depth: u32) -> rustix::io::Result<()> {
    let dir = match open_beneath(parent, name) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            let name = name.to_str().map_err(|_| Errno::INVAL)?;
            let depth = depth.checked_sub(1).ok_or(Errno::NAMETOOLONG)?;
            remove_tree(dir.as_fd(), name, depth)?;
        } else {
            ignore_missing(rustix::fs::unlinkat(&dir, name, AtFlags::empty()))?;
        }
    }
    ignore_missing(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
}

fn ignore_missing(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Settings of a host with its files in this directory.
    pub(in crate::pod) fn host(dir: &Path) -> Host {
        Host {
            state_dir: dir.join("net").display().to_string(),
            pods_dir: dir.join("pods").display().to_string(),
            config_dirs: Vec::new(),
            plugin_dirs: Vec::new(),
            table: "gantry".into(),
            use_plugins: false,
            plugin_limit_ms: 1000,
            resolver: false,
        }
    }

    #[test]
    fn only_directories_of_boots_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let host = host(temp.path());
        assert!(StateDir::find(&host).unwrap().is_none());
        let state = StateDir::open(&host).unwrap();
        let old = "0f3a1f3e-6f0d-4f0e-8b89-0123456789ab";
        let leases = state.leases(old).unwrap();
        crate::ipam::Store::open(leases.as_fd(), "net", LOCK_TIMEOUT).unwrap();
        for other in ["results", "0F3a1f3e-6f0d-4f0e-8b89-0123456789ab", "x"] {
            std::fs::create_dir(temp.path().join("net").join(other)).unwrap();
        }
        let outside = temp.path().join("outside");
        std::fs::write(&outside, "stays").unwrap();
        std::os::unix::fs::symlink(&outside, temp.path().join("net").join(old).join("link")).unwrap();
        std::os::unix::fs::symlink("/", temp.path().join("net").join(old).join("net/root")).unwrap();
        assert_eq!(state.boots().unwrap(), [old]);
        assert_eq!(state.networks(old).unwrap(), ["net"]);
        state.forget_boot(old).unwrap();
        state.forget_boot(old).unwrap();
        assert!(state.boots().unwrap().is_empty() && state.networks(old).unwrap().is_empty());
        assert_eq!(std::fs::read_to_string(outside).unwrap(), "stays");
    }

    #[test]
    fn locks_are_shared_or_exclusive_and_time_out() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::open(&host(temp.path())).unwrap();
        let short = Duration::ZERO;
        let one = state.lock(Lock::Links, LockMode::Shared, short).unwrap();
        let _two = state.lock(Lock::Plugins, LockMode::Exclusive, short).unwrap();
        drop(state.lock(Lock::Links, LockMode::Shared, short).unwrap());
        let error = state.lock(Lock::Links, LockMode::Exclusive, short).err().unwrap();
        assert!(matches!(error, NetworkError::Locked { .. }), "{error}");
        drop(one);
        state.lock(Lock::Links, LockMode::Exclusive, short).unwrap();
    }
}
