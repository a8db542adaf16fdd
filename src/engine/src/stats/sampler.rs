//! Samples the counters of running pods.
//!
//! A command samples once or a few times and opens each file for it. gantryd samples all pods again and again: it holds
//! the descriptors, so that a sample is one pread(2) per file, and of few files of a pod that sleeps (`held`). A pod
//! that ends, or whose app starts again in a new cgroup, has its descriptors closed with the next sample.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gantry_contract::files;
use gantry_host::cgroup::{CgroupSet, CounterFiles, CountersAt, DeviceIo, PressureTime, ReadCounters};
use gantry_host::parallel;
use gantry_host::stamp::FileStamp;
use gantry_model::stats::{
    AppStats, CpuLimitStats, CpuStats, DeviceStats, InterfaceUsage, MemoryStats, PidsStats, PodStats, PressureAverages,
    PressureStats, ResourceUsage, StorageUsage, parse_net_dev,
};
use gantry_model::{AppName, AppState, NetMode, Phase, PodId};
use gantry_store::AppRow;

use super::held::{CgroupReading, HeldCounters};
use crate::PodView;
use crate::pods::storage_limit::{AppProject, find_project};

/// The v1 controllers that have counters.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "memory", "pids", "blkio"];
/// The size of a read of `/proc/PID/net/dev`: a page, the least that the kernel fills.
const NET_DEV_CHUNK: usize = 4 << 10;
/// More than the longest line of it: a name and 16 numbers.
const MAX_NET_DEV_LINE: usize = 512;
/// The time after which limits are read again that gantry did not change itself.
const MAX_LIMITS_AGE: Duration = Duration::from_secs(60);
/// A pod with more interfaces than fit is sampled in part.
const MAX_NET_DEV: usize = 256 << 10;

/// The counters of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterSelection {
    /// CPU time as a whole, working set, memory limit, threads and bytes of block devices: five files per cgroup, six
    /// with a memory limit. The other counters are 0.
    Summary,
    /// All counters.
    All,
}

/// The extent of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleScope {
    /// Pods as a whole.
    Pods,
    /// Pods and each of their apps.
    Apps,
}

/// Takes samples of running pods.
#[derive(Debug)]
pub struct Sampler {
    reader: PodReader,
    /// Whether descriptors are held between samples; if not, files are opened for each sample.
    holds: bool,
    /// Held descriptors.
    held: HashMap<PodId, HeldPod>,
    /// Maximum held descriptors. The files of further pods are opened for each sample.
    max_held: usize,
}

/// Opens and reads the counters of pods; threads share it.
#[derive(Debug)]
struct PodReader {
    roots: Arc<CgroupSet>,
    counters: CounterSelection,
}

/// The descriptors of a pod.
#[derive(Debug)]
struct HeldPod {
    limits: LimitsStamp,
    counters: HeldCounters,
    /// `None`: the pod is in the host's network.
    net_dev: Option<File>,
    /// Those of the last sample.
    interfaces: Vec<InterfaceUsage>,
    /// By the name and the attempt of the app.
    apps: HashMap<(String, u32), HeldApp>,
}

/// The descriptors of an app.
#[derive(Debug)]
struct HeldApp {
    counters: HeldCounters,
    /// `None`: it has no storage limit, or that is not sampled.
    project: Option<AppProject>,
}

/// The state of a pod's limits when they were read.
#[derive(Debug)]
struct LimitsStamp {
    /// `limits.json`, which the supervisor writes when it has changed them.
    record: Option<FileStamp>,
    read: Instant,
}

impl LimitsStamp {
    fn read(view: &PodView) -> Self {
        Self { record: FileStamp::read(&view.dir().join(files::LIMITS)), read: Instant::now() }
    }

    /// Whether the limits may differ now. Other programs change them without a record.
    fn is_outdated(&self, now: &Self) -> bool {
        self.record != now.record || now.read.saturating_duration_since(self.read) >= MAX_LIMITS_AGE
    }
}

impl HeldApp {
    fn descriptor_count(&self) -> usize {
        self.counters.descriptor_count() + usize::from(self.project.is_some())
    }
}

impl HeldPod {
    fn forget_outdated_limits(&mut self, view: &PodView) {
        let now = LimitsStamp::read(view);
        if self.limits.is_outdated(&now) {
            self.limits = now;
            self.counters.forget_limits();
            self.apps.values_mut().for_each(|app| app.counters.forget_limits());
        }
    }

    fn descriptor_count(&self) -> usize {
        let apps: usize = self.apps.values().map(HeldApp::descriptor_count).sum();
        self.counters.descriptor_count() + usize::from(self.net_dev.is_some()) + apps
    }
}

impl Sampler {
    /// A sampler that opens files for each sample.
    ///
    /// # Errors
    /// Of opening the cgroup hierarchies.
    pub fn open() -> io::Result<Self> {
        let reader =
            PodReader { roots: Arc::new(CgroupSet::open_roots(&CONTROLLERS)?), counters: CounterSelection::All };
        Ok(Self { reader, holds: false, held: HashMap::new(), max_held: 0 })
    }

    /// The same sampler, which holds at most `max` descriptors between samples. They number some 13 per pod and per
    /// app.
    #[must_use]
    pub fn holding_descriptors(self, max: usize) -> Self {
        Self { holds: true, max_held: max, ..self }
    }

    /// The same sampler, which reads these counters only.
    #[must_use]
    pub fn reading(self, counters: CounterSelection) -> Self {
        Self { reader: PodReader { counters, ..self.reader }, ..self }
    }

    /// The number of descriptors that it holds between samples.
    #[must_use]
    pub fn held_descriptors(&self) -> usize {
        self.held.values().map(HeldPod::descriptor_count).sum()
    }

    /// Samples the pods that `produce` passes to its argument, as a whole and without holding descriptors, while it
    /// goes on. Returns its result, and each pod with its sample; `None`: it has ended.
    pub(super) fn sample_fed<P>(
        &self,
        produce: impl FnOnce(&mut dyn FnMut(PodView)) -> P,
    ) -> (P, Vec<(PodView, Option<PodStats>)>) {
        let (reader, parents) = (&self.reader, ParentCgroups::default());
        let read = |view: PodView| {
            // Reading fails if the pod has ended.
            let stats = reader.sample_once(&view, SampleScope::Pods, &parents).ok().flatten();
            (view, stats)
        };
        parallel::map_fed(read, produce)
    }

    /// Samples the running ones of these pods. A pod or app that ends meanwhile is left out.
    pub fn sample(&mut self, views: &[PodView], scope: SampleScope) -> Vec<PodStats> {
        if !self.holds {
            let parents = ParentCgroups::default();
            // Reading fails if the pod has ended.
            let read = |view: &PodView| self.reader.sample_once(view, scope, &parents).ok().flatten();
            return parallel::map(views, read).into_iter().flatten().collect();
        }
        let mut held = std::mem::take(&mut self.held);
        let mut samples = Vec::with_capacity(views.len());
        let mut descriptors = 0;
        let mut kept = HashMap::with_capacity(held.len());
        for view in views {
            let known = held.remove(&view.row.id);
            // Reading fails if the pod has ended.
            let Ok(Some((sample, pod))) = self.reader.sample_pod(view, known, scope) else { continue };
            samples.push(sample);
            let count = pod.descriptor_count();
            if descriptors + count <= self.max_held {
                descriptors += count;
                kept.insert(view.row.id, pod);
            }
        }
        self.held = kept;
        samples
    }
}

/// The parents of cgroups, by their paths: usually a single one. A path below an open directory is shorter for the
/// kernel to walk.
#[derive(Debug, Default)]
struct ParentCgroups(Mutex<HashMap<String, Option<Arc<CgroupSet>>>>);

impl ParentCgroups {
    /// The cgroup at this path, opened once; `None`: it cannot be opened.
    fn open(&self, roots: &CgroupSet, path: &str) -> Option<Arc<CgroupSet>> {
        // After a panic, the map is still whole.
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = opened.get(path) {
            return known.clone();
        }
        let parent = roots.open(path).ok().map(Arc::new);
        opened.insert(path.to_owned(), parent.clone());
        parent
    }
}

/// The sample of an app; `None` if it does not run.
fn app_stats(app: &AppRow, reading: CgroupReading, storage: Option<StorageUsage>) -> Option<AppStats> {
    let AppState::Started { at, pid, attempt } = app.state else { return None };
    let CgroupReading { usage, cpu_limits, processes } = reading;
    Some(AppStats {
        name: app.name.clone(),
        image: app.image.clone(),
        image_name: app.image_name.clone(),
        attempt,
        pid,
        started: at,
        usage,
        storage,
        disk: None,
        logs: None,
        cpu_limits,
        processes,
    })
}

impl PodReader {
    /// Samples a pod without holding descriptors; `None` if it does not run.
    fn sample_once(&self, view: &PodView, scope: SampleScope, parents: &ParentCgroups) -> io::Result<Option<PodStats>> {
        let Phase::Running { since, supervisor } = &view.row.phase else { return Ok(None) };
        let path = view.row.cgroup.trim_start_matches('/');
        let parent = path.rsplit_once('/').and_then(|(parent, name)| Some((parents.open(&self.roots, parent)?, name)));
        let (parent, path) = parent.as_ref().map_or((&*self.roots, path), |(parent, name)| (&**parent, *name));
        let usage = self.read_usage_at(parent, path)?;
        let interfaces = self.read_interfaces_once(view, supervisor.pid)?;
        let mut apps = Vec::new();
        for app in view.row.apps.iter().filter(|_| scope == SampleScope::Apps) {
            let AppState::Started { .. } = app.state else { continue };
            // It has ended, or starts again.
            let Ok(usage) = self.read_usage_at(parent, &format!("{path}/{}", app.name)) else { continue };
            let storage = self.find_project(view, &app.name)?.and_then(|project| project.usage().ok().flatten());
            let reading = CgroupReading { usage, ..CgroupReading::default() };
            apps.extend(app_stats(app, reading, storage));
        }
        Ok(Some(PodStats {
            id: view.row.id,
            name: view.row.name.clone(),
            started: *since,
            sampled: gantry_store::now(),
            usage,
            interfaces,
            apps,
            volumes: None,
        }))
    }

    /// A pod without a network has a loopback interface only, which no sum has: it is not read for a summary.
    fn read_interfaces_once(&self, view: &PodView, supervisor: u32) -> io::Result<Vec<InterfaceUsage>> {
        if self.counters == CounterSelection::Summary && view.row.net == NetMode::None {
            return Ok(vec![InterfaceUsage { name: "lo".to_owned(), ..InterfaceUsage::default() }]);
        }
        open_net_dev(view, supervisor)?.as_ref().map_or_else(|| Ok(Vec::new()), read_interfaces)
    }

    fn read_usage_at(&self, parent: &CgroupSet, path: &str) -> io::Result<ResourceUsage> {
        let counters = CountersAt::new(parent, path);
        let usage = self.read_usage(&counters)?;
        if counters.has_files() { Ok(usage) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn sample_pod(
        &self,
        view: &PodView,
        known: Option<HeldPod>,
        scope: SampleScope,
    ) -> io::Result<Option<(PodStats, HeldPod)>> {
        let Phase::Running { since, supervisor } = &view.row.phase else { return Ok(None) };
        let mut pod = match known {
            Some(pod) => pod,
            None => self.open_pod(view, supervisor.pid)?,
        };
        pod.forget_outdated_limits(view);
        let mut apps = Vec::new();
        if scope == SampleScope::Apps {
            let mut former = std::mem::take(&mut pod.apps);
            for app in &view.row.apps {
                let AppState::Started { attempt, .. } = app.state else { continue };
                let key = (app.name.to_string(), attempt);
                let mut held = match former.remove(&key) {
                    Some(held) => held,
                    None => self.open_app(view, &app.name)?,
                };
                // It has ended, or starts again.
                let Ok((reading, _)) = held.counters.read(|files| self.read_app(files)) else { continue };
                // The limit may have been removed with the app.
                let storage = held.project.as_ref().and_then(|project| project.usage().ok().flatten());
                pod.apps.insert(key, held);
                apps.extend(app_stats(app, reading, storage));
            }
        }
        let (reading, has_slept) = pod.counters.read(|files| self.read_pod(files))?;
        if let Some(net_dev) = &pod.net_dev
            // Without a network, only its own processes reach its loopback interface.
            && !(has_slept && view.row.net == NetMode::None)
        {
            pod.interfaces = read_interfaces(net_dev)?;
        }
        let sample = PodStats {
            id: view.row.id,
            name: view.row.name.clone(),
            started: *since,
            sampled: gantry_store::now(),
            usage: reading.usage,
            interfaces: pod.interfaces.clone(),
            apps,
            volumes: None,
        };
        Ok(Some((sample, pod)))
    }

    fn read_pod(&self, counters: &CounterFiles) -> io::Result<CgroupReading> {
        let usage = self.read_usage(counters)?;
        match counters.has_files() {
            true => Ok(CgroupReading { usage, cpu_limits: None, processes: None }),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn read_app(&self, counters: &CounterFiles) -> io::Result<CgroupReading> {
        let reading = self.read_pod(counters)?;
        let (cpu_limits, processes) = match self.counters {
            CounterSelection::All => read_details(counters),
            CounterSelection::Summary => (None, None),
        };
        Ok(CgroupReading { cpu_limits, processes, ..reading })
    }

    fn read_usage(&self, counters: &impl ReadCounters) -> io::Result<ResourceUsage> {
        match self.counters {
            CounterSelection::Summary => read_summary(counters),
            CounterSelection::All => read_usage(counters),
        }
    }

    fn open_app(&self, view: &PodView, app: &AppName) -> io::Result<HeldApp> {
        let path = format!("{}/{app}", view.row.cgroup.trim_start_matches('/'));
        let counters = CounterFiles::new(Arc::clone(&self.roots), path);
        Ok(HeldApp { counters: HeldCounters::new(counters), project: self.find_project(view, app)? })
    }

    /// The project of an app with a storage limit, if that is sampled.
    fn find_project(&self, view: &PodView, app: &AppName) -> io::Result<Option<AppProject>> {
        match self.counters {
            CounterSelection::Summary => Ok(None),
            CounterSelection::All => find_project(&view.dir(), app.as_str()),
        }
    }

    fn open_pod(&self, view: &PodView, supervisor: u32) -> io::Result<HeldPod> {
        let path = view.row.cgroup.trim_start_matches('/').to_owned();
        let counters = CounterFiles::new(Arc::clone(&self.roots), path);
        Ok(HeldPod {
            limits: LimitsStamp::read(view),
            counters: HeldCounters::new(counters),
            net_dev: open_net_dev(view, supervisor)?,
            interfaces: Vec::new(),
            apps: HashMap::new(),
        })
    }
}

/// Opens the list of interfaces of a pod; `None`: it is in the host's network. Opening it binds the file to the pod's
/// network namespace. The row was reconciled before, and a reused pid shows in the pod's cgroup, which is gone then.
fn open_net_dev(view: &PodView, supervisor: u32) -> io::Result<Option<File>> {
    match view.row.net {
        NetMode::Host => Ok(None),
        NetMode::None | NetMode::Networks(_) | NetMode::All(_) => {
            File::open(format!("/proc/{supervisor}/net/dev")).map(Some)
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads the CPU limits and the number of processes of an app.
fn read_details(counters: &CounterFiles) -> (Option<CpuLimitStats>, Option<u64>) {
    let microseconds = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    // Reading fails if the app has ended; its usage was read before.
    let limits = counters.cpu_limits().ok().flatten().map(|limits| CpuLimitStats {
        period_us: microseconds(limits.period),
        quota_us: limits.quota.map(microseconds),
        shares: limits.shares,
    });
    (limits, counters.process_count().ok().flatten())
}

fn read_summary(counters: &impl ReadCounters) -> io::Result<ResourceUsage> {
    let cpu = counters.cpu_total()?.map(|total| CpuStats { total_ns: nanoseconds(total), ..CpuStats::default() });
    let memory = counters.memory_summary()?.map(|memory| MemoryStats {
        usage: memory.current,
        working_set: memory.current.saturating_sub(memory.inactive_file),
        rss: memory.anonymous,
        cache: memory.file,
        limit: memory.limit,
        ..MemoryStats::default()
    });
    let pids = counters.pids_current()?.map(|current| PidsStats { current, limit: None });
    let io = counters.io_bytes()?.map(device_stats);
    Ok(ResourceUsage { cpu, memory, pids, io, pressure: None })
}

fn device_stats(devices: Vec<DeviceIo>) -> Vec<DeviceStats> {
    let device = |io: DeviceIo| DeviceStats {
        major: io.device.0,
        minor: io.device.1,
        read_bytes: io.read_bytes,
        written_bytes: io.written_bytes,
        reads: io.reads,
        writes: io.writes,
    };
    devices.into_iter().map(device).collect()
}

fn read_usage(counters: &impl ReadCounters) -> io::Result<ResourceUsage> {
    let cpu = counters.cpu_usage()?.map(|cpu| CpuStats {
        total_ns: nanoseconds(cpu.total),
        user_ns: nanoseconds(cpu.user),
        system_ns: nanoseconds(cpu.system),
        periods: cpu.periods,
        throttled_periods: cpu.throttled_periods,
        throttled_ns: nanoseconds(cpu.throttled),
    });
    let memory = match counters.memory_usage()? {
        None => None,
        Some(memory) => {
            let events = counters.memory_events()?.unwrap_or_default();
            Some(MemoryStats {
                usage: memory.current,
                working_set: memory.current.saturating_sub(memory.inactive_file),
                rss: memory.anonymous,
                cache: memory.file,
                swap: memory.swap,
                limit: memory.limit,
                peak: memory.peak,
                failures: events.limit_hits,
                oom_kills: events.oom_kills,
                mapped_file: memory.mapped_file,
                swap_limit: memory.swap_limit,
                page_faults: memory.page_faults,
                major_page_faults: memory.major_page_faults,
            })
        }
    };
    let pids = counters.pids_usage()?.map(|pids| PidsStats { current: pids.current, limit: pids.limit });
    let io = counters.io_usage()?.map(device_stats);
    Ok(ResourceUsage { cpu, memory, pids, io, pressure: read_pressure(counters)? })
}

pub(super) fn read_pressure(counters: &impl ReadCounters) -> io::Result<Option<PressureStats>> {
    let averages =
        |some: PressureTime, full: PressureTime| PressureAverages { some: some.averages, full: full.averages };
    Ok(counters.pressure()?.map(|it| PressureStats {
        cpu_some_ns: nanoseconds(it.cpu_some.total),
        memory_some_ns: nanoseconds(it.memory_some.total),
        memory_full_ns: nanoseconds(it.memory_full.total),
        io_some_ns: nanoseconds(it.io_some.total),
        io_full_ns: nanoseconds(it.io_full.total),
        cpu_full_ns: nanoseconds(it.cpu_full.total),
        averages: [
            averages(it.cpu_some, it.cpu_full),
            averages(it.memory_some, it.memory_full),
            averages(it.io_some, it.io_full),
        ],
    }))
}

fn read_interfaces(net_dev: &File) -> io::Result<Vec<InterfaceUsage>> {
    let (mut text, mut chunk) = (Vec::new(), [0; NET_DEV_CHUNK]);
    while text.len() < MAX_NET_DEV {
        let length = rustix::io::pread(net_dev.as_fd(), &mut chunk[..], text.len() as u64)?;
        text.extend_from_slice(chunk.get(..length).unwrap_or_default());
        // The kernel returns whole lines, as many as fit.
        if length < NET_DEV_CHUNK - MAX_NET_DEV_LINE {
            break;
        }
    }
    Ok(parse_net_dev(&String::from_utf8_lossy(&text)))
}
