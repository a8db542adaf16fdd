//! The counters of a cgroup whose files are held open, and how many of them a sample reads.
//!
//! Most apps of a node sleep most of the time. A cgroup is at rest when no process of it has run between two readings
//! that are equal. While it stays at rest, a sample reads four files only: CPU time, memory, threads and bytes of block
//! devices. At least one of them changes when a process of it runs, when memory is charged or reclaimed, or when the
//! kernel writes back its pages. Pressure is read as well until its averages have decayed. All else is read again with
//! the limits, at least once a minute: the kernel may, for example, age page cache without a process.

use std::io;
use std::time::Duration;

use gantry_host::cgroup::{CounterFiles, DeviceIo, ReadCounters as _};
use gantry_model::stats::{CpuLimitStats, PressureAverages, PressureStats, ResourceUsage};

use super::sampler::read_pressure;

/// A reading of all counters of a cgroup.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct CgroupReading {
    pub(super) usage: ResourceUsage,
    /// Of an app.
    pub(super) cpu_limits: Option<CpuLimitStats>,
    /// Of an app.
    pub(super) processes: Option<u64>,
}

impl CgroupReading {
    fn without_averages(&self) -> Self {
        let pressure = self.usage.pressure.map(without_averages);
        Self { usage: ResourceUsage { pressure, ..self.usage.clone() }, ..self.clone() }
    }
}

fn without_averages(pressure: PressureStats) -> PressureStats {
    PressureStats { averages: [PressureAverages::default(); 3], ..pressure }
}

/// What changes when something happens in a cgroup, besides its CPU time.
#[derive(Debug, Clone, PartialEq)]
struct LifeSigns {
    memory: u64,
    threads: u64,
    io: Vec<DeviceIo>,
}

/// The files of a cgroup, and their last whole reading.
#[derive(Debug)]
pub(super) struct HeldCounters {
    files: CounterFiles,
    cpu: Option<Duration>,
    last: Option<LastReading>,
}

#[derive(Debug)]
struct LastReading {
    reading: CgroupReading,
    /// `None`: a process has run since the reading before, or the host lacks a counter.
    signs: Option<LifeSigns>,
    is_at_rest: bool,
}

impl HeldCounters {
    pub(super) fn new(files: CounterFiles) -> Self {
        Self { files, cpu: None, last: None }
    }

    pub(super) fn descriptor_count(&self) -> usize {
        self.files.descriptor_count()
    }

    /// Has everything read again, limits included.
    pub(super) fn forget_limits(&mut self) {
        self.files.forget_limits();
        // Equal to it, the next reading leaves the cgroup at rest.
        if let Some(last) = &mut self.last {
            last.is_at_rest = false;
        }
    }

    /// The counters now, and whether no process of the cgroup has run since they were read before.
    pub(super) fn read(
        &mut self,
        read_all: impl FnOnce(&CounterFiles) -> io::Result<CgroupReading>,
    ) -> io::Result<(CgroupReading, bool)> {
        let signs = self.life_signs()?;
        if let Some(last) = self.last.as_mut().filter(|last| last.is_at_rest && signs.is_some() && last.signs == signs)
            && last.renew_averages(&self.files)?
        {
            return Ok((last.reading.clone(), true));
        }
        let reading = read_all(&self.files)?;
        let is_equal =
            |last: &LastReading| last.signs == signs && last.reading.without_averages() == reading.without_averages();
        let is_at_rest = signs.is_some() && self.last.as_ref().is_some_and(is_equal);
        self.last = Some(LastReading { reading: reading.clone(), signs, is_at_rest });
        Ok((reading, false))
    }

    /// `None`: a process has run since the last call, or the host lacks a counter.
    fn life_signs(&mut self) -> io::Result<Option<LifeSigns>> {
        let cpu = self.files.cpu_total()?;
        if std::mem::replace(&mut self.cpu, cpu) != cpu || cpu.is_none() {
            return Ok(None);
        }
        let Some(memory) = self.files.memory_current()? else { return Ok(None) };
        let Some(threads) = self.files.pids_current()? else { return Ok(None) };
        let Some(io) = self.files.io_bytes()? else { return Ok(None) };
        Ok(Some(LifeSigns { memory, threads, io }))
    }
}

impl LastReading {
    /// Reads the pressure if its averages have not decayed. `false`: there was some.
    fn renew_averages(&mut self, files: &CounterFiles) -> io::Result<bool> {
        let Some(before) = self.reading.usage.pressure else { return Ok(true) };
        if before == without_averages(before) {
            return Ok(true);
        }
        let now = read_pressure(files)?;
        if now.map(without_averages) != Some(without_averages(before)) {
            return Ok(false);
        }
        self.reading.usage.pressure = now;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use gantry_host::cgroup::CgroupSet;

    use super::*;

    #[test]
    fn a_sleeping_cgroup_is_not_read_again() {
        let name = format!("gantry-held-{}", std::process::id());
        let roots = CgroupSet::open_roots(&["cpuacct", "memory", "pids", "blkio"]).unwrap();
        for root in roots.iter() {
            root.create(&name).unwrap();
        }
        let roots = Arc::new(roots);
        let mut held = HeldCounters::new(CounterFiles::new(Arc::clone(&roots), name.clone()));
        let mut has_slept = || held.read(|_| Ok(CgroupReading::default())).unwrap().1;
        if has_slept() || has_slept() || has_slept() {
            // On v2, the root may not delegate the controllers, and nothing is known then.
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            for root in roots.iter() {
                std::fs::write(root.path_of(&name).join("cgroup.procs"), child.id().to_string()).unwrap();
            }
            drop(child.stdin.take());
            child.wait().unwrap();
            assert!(!has_slept(), "a process has run");
            assert!(!has_slept(), "two readings have to be equal");
            assert!(has_slept());
            held.forget_limits();
            let mut has_slept = || held.read(|_| Ok(CgroupReading::default())).unwrap().1;
            assert!(!has_slept(), "the limits are read");
            assert!(has_slept());
        }
        for root in roots.iter() {
            root.remove(&name).unwrap();
        }
    }
}
