//! The directory of a store: its small files, its lock and its version.

use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use gantry_host::lock::{LockMode, LockedFile};
use gantry_model::ErrorKind;
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::error::IpamError;
use super::owner::Owner;
use crate::config::files;

const FORMAT: &str = "gantry-leases 1\n";
/// The maximum size of a small file.
const MAX_SMALL: usize = 64 * 1024;
const NEW: &str = ".new";

/// The open directory of a network.
#[derive(Debug)]
pub(super) struct StoreDir {
    pub(super) network: String,
    top: OwnedFd,
    pub(super) owners: OwnedFd,
    pub(super) addresses: OwnedFd,
    lock: OwnedFd,
    /// The number of calls of [`StoreDir::holder`].
    #[cfg(test)]
    pub(super) lookups: std::cell::Cell<usize>,
}

/// The lock, held until dropped.
pub(super) type Locked<'a> = LockedFile<BorrowedFd<'a>>;

/// The inode number of a file in the store, which is one file system.
pub(super) type Inode = u64;

/// The record of an owner.
pub(super) struct Record {
    pub(super) inode: Inode,
    /// Its addresses, not all of which may be linked; `None` if a power loss has damaged the record.
    pub(super) addresses: Option<Vec<IpAddr>>,
}

impl StoreDir {
    /// Opens the network's directory below `data`, creating it if necessary. Fails for another format.
    pub(super) fn open(data: BorrowedFd<'_>, network: &str, wait: Duration) -> Result<Self, IpamError> {
        let failed = |doing: &str, error: io::Error| IpamError::Io {
            doing: doing.to_owned(),
            network: network.to_owned(),
            source: error,
        };
        let top = make_dir(data, network).map_err(|e| failed("create the directory", e))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::openat(&top, "lock", flags, private()).map_err(|e| failed("open the lock", e.into()))?;
        let owners = make_dir(top.as_fd(), "owners").map_err(|e| failed("create the directory 'owners'", e))?;
        let addresses =
            make_dir(top.as_fd(), "addresses").map_err(|e| failed("create the directory 'addresses'", e))?;
        let dirs = Self {
            network: network.to_owned(),
            top,
            owners,
            addresses,
            lock,
            #[cfg(test)]
            lookups: std::cell::Cell::default(),
        };
        match dirs.read_small("format")? {
            Some(text) if text == FORMAT => Ok(dirs),
            // It is missing, or was cut short by a power loss when it was new.
            None => dirs.mark_format(wait),
            Some(text) if FORMAT.starts_with(&text) => dirs.mark_format(wait),
            Some(text) => {
                let found = gantry_model::id::shown(text.trim_end());
                let message = format!("the leases of network '{network}' have the unknown format '{found}'");
                Err(IpamError::Failed { message, kind: ErrorKind::Refused })
            }
        }
    }

    fn mark_format(self, wait: Duration) -> Result<Self, IpamError> {
        let locked = self.lock(wait)?;
        self.write_small("format", FORMAT)?;
        drop(locked);
        Ok(self)
    }

    /// Takes the lock.
    pub(super) fn lock(&self, wait: Duration) -> Result<Locked<'_>, IpamError> {
        let locked = LockedFile::lock_within(self.lock.as_fd(), LockMode::Exclusive, wait, |_, _| Ok(()));
        let locked = locked.map_err(|error| self.failed("take the lock", error))?;
        locked.ok_or_else(|| {
            let (network, seconds) = (&self.network, wait.as_secs());
            let message =
                format!("the addresses of network '{network}' were locked by another process for {seconds} s");
            IpamError::Failed { message, kind: ErrorKind::TimedOut }
        })
    }

    pub(super) fn failed(&self, doing: &str, error: impl Into<io::Error>) -> IpamError {
        IpamError::Io { doing: doing.to_owned(), network: self.network.clone(), source: error.into() }
    }

    /// Reads a small file; `None` if it is missing. Invalid UTF-8 reads as empty.
    pub(super) fn read_small(&self, name: &str) -> Result<Option<String>, IpamError> {
        Ok(self.read(self.top.as_fd(), name)?.map(|bytes| String::from_utf8(bytes).unwrap_or_default()))
    }

    fn read(&self, dir: BorrowedFd<'_>, name: &str) -> Result<Option<Vec<u8>>, IpamError> {
        let file = match files::open_file(dir, Path::new(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| self.failed(&format!("open '{name}'"), e))?,
        };
        let bytes = files::read(file, MAX_SMALL).map_err(|e| self.failed(&format!("read '{name}'"), e))?;
        Ok(Some(bytes.unwrap_or_default()))
    }

    /// Writes a small file in one call. If the writer is killed before it truncates the file, the end of the old text
    /// stays.
    pub(super) fn write_small(&self, name: &str, text: &str) -> Result<(), IpamError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let what = |e: Errno| self.failed(&format!("write '{name}'"), e);
        let fd = rustix::fs::openat(&self.top, name, flags, private()).map_err(what)?;
        let written = rustix::io::pwrite(&fd, text.as_bytes(), 0).map_err(what)?;
        if written < text.len() {
            return Err(what(Errno::NOSPC));
        }
        rustix::fs::ftruncate(&fd, text.len() as u64).map_err(what)
    }

    /// Removes the marks of exhausted sets, because an address is about to be released.
    pub(super) fn clear_exhausted(&self) -> Result<(), IpamError> {
        let names = files::names(&self.top, MAX_SMALL).map_err(|e| self.failed("list the directory", e))?;
        let full = names.unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
        for name in full.filter(|name| name.starts_with("full.")) {
            self.unlink(self.top.as_fd(), &name)?;
        }
        Ok(())
    }

    /// Reads the record of an owner, if there is one.
    pub(super) fn read_record(&self, owner: &Owner) -> Result<Option<Record>, IpamError> {
        let name = owner.file_name();
        let Some(inode) = self.inode(self.owners.as_fd(), &name)? else { return Ok(None) };
        let text = String::from_utf8(self.read(self.owners.as_fd(), &name)?.unwrap_or_default()).unwrap_or_default();
        let addresses: Option<Vec<IpAddr>> = text.lines().map(|line| line.parse().ok()).collect();
        let addresses = addresses.filter(|list| !list.is_empty() && text.ends_with('\n'));
        Ok(Some(Record { inode, addresses }))
    }

    /// Writes an owner's record atomically.
    pub(super) fn write_record(&self, owner: &Owner, addresses: &[IpAddr]) -> Result<(), IpamError> {
        let doing = || format!("write the record of {owner}");
        // A new file each time: addresses may link to the old one.
        self.remove_temporary()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.owners, NEW, flags, private()).map_err(|e| self.failed(&doing(), e))?;
        let text: String = addresses.iter().map(|address| format!("{address}\n")).collect();
        std::fs::File::from(fd).write_all(text.as_bytes()).map_err(|e| self.failed(&doing(), e))?;
        rustix::fs::renameat(&self.owners, NEW, &self.owners, owner.file_name()).map_err(|e| self.failed(&doing(), e))
    }

    /// Removes the temporary file of a killed writer.
    pub(super) fn remove_temporary(&self) -> Result<(), IpamError> {
        self.unlink(self.owners.as_fd(), NEW)
    }

    /// Leases an address to the owner. `false`: it is already leased.
    pub(super) fn link(&self, owner: &Owner, address: IpAddr) -> Result<bool, IpamError> {
        let to = address.to_string();
        match rustix::fs::linkat(&self.owners, owner.file_name(), &self.addresses, to, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(self.failed(&format!("link address {address}"), error)),
        }
    }

    /// The record that an address links to; `None` if the address is free.
    pub(super) fn holder(&self, address: IpAddr) -> Result<Option<Inode>, IpamError> {
        #[cfg(test)]
        self.lookups.set(self.lookups.get() + 1);
        self.inode(self.addresses.as_fd(), &address.to_string())
    }

    pub(super) fn inode(&self, dir: BorrowedFd<'_>, name: &str) -> Result<Option<Inode>, IpamError> {
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.st_ino)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed(&format!("stat '{name}'"), error)),
        }
    }

    /// Removes a file, if it exists.
    pub(super) fn unlink(&self, dir: BorrowedFd<'_>, name: &str) -> Result<(), IpamError> {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.failed(&format!("remove '{name}'"), error)),
        }
    }
}

fn private() -> Mode {
    Mode::RUSR | Mode::WUSR
}

fn make_dir(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)?)
}
