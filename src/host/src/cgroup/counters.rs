//! The counters of a cgroup by held descriptors (a sample is one pread(2) per file), or by its path, each without
//! opening its directories.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::{Cgroup, CgroupSet, ReadCounters};

/// The size of a read. The kernel writes each counter file as one record, which this exceeds.
pub(super) const BUFFER_SIZE: usize = 16 << 10;

/// The files with limits, which change only on request: they are read rarely, and not held.
const LIMIT_FILES: [&str; 9] = [
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
    "cpu.max",
    "cpu.shares",
    "cpu.weight",
    "memory.limit_in_bytes",
    "memory.max",
    "memory.swap.max",
    "pids.max",
];

/// A counter file.
#[derive(Debug)]
struct CounterFile {
    controller: Option<String>,
    name: &'static str,
    content: FileContent,
}

#[derive(Debug)]
enum FileContent {
    /// It does not exist.
    Absent,
    /// It is read again for each sample.
    Counter(OwnedFd),
    /// The text of a limit.
    Limit(Option<String>),
}

/// The files of a cgroup's counters, each opened when it is read first and then held open. Limits are read once, and
/// again after [`Self::forget_limits`].
#[derive(Debug)]
pub struct CounterFiles {
    roots: Arc<CgroupSet>,
    path: String,
    files: RefCell<Vec<CounterFile>>,
}

impl CounterFiles {
    /// The counters of the cgroup at this path below these roots; the path has no symbolic links, as no cgroup has.
    #[must_use]
    pub fn new(roots: Arc<CgroupSet>, path: String) -> Self {
        Self { roots, path, files: RefCell::default() }
    }

    /// The number of descriptors that it holds.
    #[must_use]
    pub fn descriptor_count(&self) -> usize {
        let is_held = |file: &&CounterFile| matches!(file.content, FileContent::Counter(_));
        self.files.borrow().iter().filter(is_held).count()
    }

    /// Whether any file was found. If not, the cgroup does not exist.
    #[must_use]
    pub fn has_files(&self) -> bool {
        self.files.borrow().iter().any(|file| !matches!(file.content, FileContent::Absent))
    }

    /// Has the limits read again.
    pub fn forget_limits(&self) {
        self.files.borrow_mut().retain(|file| !matches!(file.content, FileContent::Limit(_)));
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

    fn open_counter(&self, controller: Option<&str>, name: &'static str) -> io::Result<Option<OwnedFd>> {
        let Some(root) = self.roots.of_counter(controller) else { return Ok(None) };
        let file = open_existing(root, &format!("{}/{name}", self.path))?;
        self.has_files.set(self.has_files.get() || file.is_some());
        Ok(file)
    }
}

/// Reads a counter file of a cgroup; `None` if it is absent or not supported.
pub(super) fn read_once(cgroup: &Cgroup, name: &str) -> io::Result<Option<String>> {
    open_existing(cgroup, name)?.map_or(Ok(None), |file| parse_held(&file, str::to_owned))
}

/// Opens a counter file of a cgroup; `None` if it is absent.
pub(super) fn open_existing(cgroup: &Cgroup, name: &str) -> io::Result<Option<OwnedFd>> {
    match cgroup.open_file(name) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reading fails with ENODEV once the cgroup was removed.
impl ReadCounters for CounterFiles {
    /// The roots, which have the same controllers.
    fn cgroups(&self) -> &CgroupSet {
        &self.roots
    }

    fn open_counter(&self, controller: Option<&str>, name: &'static str) -> io::Result<Option<OwnedFd>> {
        let Some(root) = self.roots.of_counter(controller) else { return Ok(None) };
        open_existing(root, &format!("{}/{name}", self.path))
    }

    fn parse_counter<T>(
        &self,
        controller: Option<&str>,
        name: &'static str,
        parse: impl FnOnce(&str) -> T,
    ) -> io::Result<Option<T>> {
        let mut files = self.files.borrow_mut();
        if let Some(known) = files.iter().find(|file| file.name == name && file.controller.as_deref() == controller) {
            return match &known.content {
                FileContent::Absent => Ok(None),
                FileContent::Counter(file) => parse_held(file, parse),
                FileContent::Limit(text) => Ok(text.as_deref().map(parse)),
            };
        }
        let file = self.open_counter(controller, name)?;
        let text = file.as_ref().map_or(Ok(None), |file| parse_held(file, str::to_owned))?;
        let parsed = text.as_deref().map(parse);
        let content = match file {
            None => FileContent::Absent,
            Some(_) if LIMIT_FILES.contains(&name) => FileContent::Limit(text),
            Some(file) => FileContent::Counter(file),
        };
        files.push(CounterFile { controller: controller.map(str::to_owned), name, content });
        Ok(parsed)
    }
}

/// Parses the text of an open counter file; `None` if the kernel does not support it.
pub(super) fn parse_held<T>(file: &OwnedFd, parse: impl FnOnce(&str) -> T) -> io::Result<Option<T>> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER_SIZE];
    match rustix::io::pread(file.as_fd(), &mut buffer[..], 0).map_err(io::Error::from) {
        Ok((text, _)) => Ok(Some(match std::str::from_utf8(text) {
            Ok(text) => parse(text),
            Err(_) => parse(&String::from_utf8_lossy(text)),
        })),
        Err(error) if is_unsupported(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A kernel started with `psi=0` has the files; reading them fails with EOPNOTSUPP.
fn is_unsupported(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same counters by held files and by files that are opened for each reading.
    #[test]
    fn held_files_are_read_again() {
        let controllers = ["cpu", "cpuacct", "memory", "pids", "blkio"];
        let roots = Arc::new(CgroupSet::open_roots(&controllers).unwrap());
        let held = CounterFiles::new(Arc::clone(&roots), ".".to_owned());
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
        let absent = CounterFiles::new(roots, "no/such/cgroup".to_owned());
        assert!(absent.cpu_total().unwrap().is_none() && !absent.has_files());
        let count = held.descriptor_count();
        held.cpu_usage().unwrap();
        assert!(count > 0 && held.descriptor_count() == count && held.has_files());
    }

    #[test]
    fn limits_are_read_again_on_request() {
        let limit = || CounterFile {
            controller: Some("pids".to_owned()),
            name: "pids.max",
            content: FileContent::Limit(Some("4".to_owned())),
        };
        let held = CounterFiles::new(Arc::new(CgroupSet::from_iter([])), String::new());
        held.files.borrow_mut().push(limit());
        assert_eq!(held.read_counter(Some("pids"), "pids.max").unwrap().as_deref(), Some("4"));
        assert_eq!(held.descriptor_count(), 0);
        held.forget_limits();
        assert_eq!(held.read_counter(Some("pids"), "pids.max").unwrap(), None, "no hierarchy has it");
    }
}
