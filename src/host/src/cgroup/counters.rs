//! The counters of a cgroup by held descriptors: a sample is one pread(2) per file.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::usage::is_unsupported;
use super::{CgroupSet, ReadCounters};

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
        let count = held.descriptor_count();
        held.cpu_usage().unwrap();
        assert!(count > 0 && held.descriptor_count() == count);
    }
}
