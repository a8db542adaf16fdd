//! The counters of a cgroup by held descriptors (a sample is one pread(2) per file), or by its path, without opening
//! its directories.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::usage::is_unsupported;
use super::{Cgroup, CgroupSet, ReadCounters};

/// The size of a read. The kernel writes each counter file as one record, which this exceeds.
const BUFFER_SIZE: usize = 16 << 10;

/// A counter file.
#[derive(Debug)]
struct CounterFile {
    controller: Option<String>,
    name: &'static str,
    /// `None`: it does not exist.
    file: Option<OwnedFd>,
}

/// The files of a cgroup's counters, each opened when it is read first and then held open.
#[derive(Debug)]
pub struct CounterFiles {
    cgroups: CgroupSet,
    files: RefCell<Vec<CounterFile>>,
}

impl CounterFiles {
    /// The counters of this cgroup.
    #[must_use]
    pub fn new(cgroups: CgroupSet) -> Self {
        Self { cgroups, files: RefCell::default() }
    }

    /// The number of descriptors that it holds: the directory in each hierarchy, and the files that were read.
    #[must_use]
    pub fn descriptor_count(&self) -> usize {
        self.cgroups.iter().count() + self.files.borrow().iter().filter(|file| file.file.is_some()).count()
    }
}

/// The counters of the cgroup at a path, for one sample: each file is opened, read at once and closed.
#[derive(Debug)]
pub struct CountersAt<'a> {
    roots: &'a CgroupSet,
    path: &'a str,
    has_files: Cell<bool>,
}

impl<'a> CountersAt<'a> {
    /// The counters of the cgroup at this path below these roots; the path has no symbolic links, as no cgroup has.
    #[must_use]
    pub fn new(roots: &'a CgroupSet, path: &'a str) -> Self {
        Self { roots, path, has_files: Cell::new(false) }
    }

    /// Whether any file was found. If not, the cgroup does not exist.
    #[must_use]
    pub fn has_files(&self) -> bool {
        self.has_files.get()
    }
}

impl ReadCounters for CountersAt<'_> {
    /// The roots, which have the same controllers.
    fn cgroups(&self) -> &CgroupSet {
        self.roots
    }

    fn read_counter(&self, controller: Option<&str>, name: &'static str) -> io::Result<Option<String>> {
        let Some(root) = self.roots.of_counter(controller) else { return Ok(None) };
        let text = read_once(root, &format!("{}/{name}", self.path))?;
        self.has_files.set(self.has_files.get() || text.is_some());
        Ok(text)
    }
}

/// Reads a counter file of a cgroup; `None` if it is absent or not supported.
pub(super) fn read_once(cgroup: &Cgroup, name: &str) -> io::Result<Option<String>> {
    match cgroup.open_file(name) {
        Ok(file) => read_held(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reading fails with ENODEV once the cgroup was removed.
impl ReadCounters for CounterFiles {
    fn cgroups(&self) -> &CgroupSet {
        &self.cgroups
    }

    fn read_counter(&self, controller: Option<&str>, name: &'static str) -> io::Result<Option<String>> {
        let Some(cgroup) = self.cgroups.of_counter(controller) else { return Ok(None) };
        let mut files = self.files.borrow_mut();
        if let Some(known) = files.iter().find(|file| file.name == name && file.controller.as_deref() == controller) {
            return known.file.as_ref().map_or(Ok(None), read_held);
        }
        let file = match cgroup.open_file(name) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let text = file.as_ref().map_or(Ok(None), read_held)?;
        files.push(CounterFile { controller: controller.map(str::to_owned), name, file });
        Ok(text)
    }
}

fn read_held(file: &OwnedFd) -> io::Result<Option<String>> {
    let mut buffer = [0; BUFFER_SIZE];
    match rustix::io::pread(file.as_fd(), &mut buffer[..], 0).map_err(io::Error::from) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned())),
        Err(error) if is_unsupported(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same counters by held files and by files that are opened for each reading.
    #[test]
    fn held_files_are_read_again() {
        let controllers = ["cpu", "cpuacct", "memory", "pids", "blkio"];
        let held = CounterFiles::new(CgroupSet::open_roots(&controllers).unwrap());
        let opened = CgroupSet::open_roots(&controllers).unwrap();
        let (first, between, second) = (held.cpu_usage(), opened.cpu_usage(), held.cpu_usage());
        let times = [first, between, second].map(|usage| usage.unwrap().map(|usage| usage.total));
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(held.memory_usage().unwrap().is_some(), opened.memory_usage().unwrap().is_some());
        held.memory_events().unwrap();
        held.pids_usage().unwrap();
        held.io_usage().unwrap();
        held.pressure().unwrap();
        let at = CountersAt::new(&opened, ".");
        assert_eq!(at.cpu_total().unwrap().is_some(), opened.cpu_total().unwrap().is_some());
        assert!(at.has_files());
        let absent = CountersAt::new(&opened, "no/such/cgroup");
        assert!(absent.cpu_total().unwrap().is_none() && !absent.has_files());
        let count = held.descriptor_count();
        held.cpu_usage().unwrap();
        assert!(count > 0 && held.descriptor_count() == count);
    }
}
