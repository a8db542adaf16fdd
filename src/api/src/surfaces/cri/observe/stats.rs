//! ContainerStats, PodSandboxStats and their lists, from the samples that gantryd takes for all surfaces.
//!
//! A list has what runs: what ends while it is sampled is left out.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use gantry_engine::{AppRow, Observer, SampledPod};
use gantry_model::Timestamp;
use gantry_model::stats::{AppStats, DiskUsage, InterfaceUsage, PressureAverages, PressureStats, ResourceUsage};
use gantry_proto::cri::v1::{
    ContainerStats, ContainerStatsFilter, CpuUsage, FilesystemIdentifier, FilesystemUsage, IoUsage,
    LinuxPodSandboxStats, MemoryUsage, NetworkInterfaceUsage, NetworkUsage, PodSandboxStats, PodSandboxStatsFilter,
    ProcessUsage, PsiData, PsiStats, SwapUsage, UInt64Value,
};
use tonic::Status;

use super::super::{containers, sandbox};
use crate::context::Context;
use crate::request::check_text;

/// Maximum age of a sample. A kubelet asks every ten seconds.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The interface that the network of a pod has first.
const DEFAULT_INTERFACE: &str = "eth0";
const LOOPBACK: &str = "lo";

/// The conditions of a list; all of them must hold.
#[derive(Debug, Default)]
pub(in super::super) struct StatsFilter {
    /// The id of a container, or its beginning; of a sandbox for its statistics.
    id: String,
    /// The id of the sandbox of containers, or its beginning.
    sandbox: String,
    labels: HashMap<String, String>,
}

impl StatsFilter {
    /// Reads the filter of a list of containers.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, which names the field.
    pub(in super::super) fn of_containers(filter: Option<ContainerStatsFilter>) -> Result<Self, Status> {
        let ContainerStatsFilter { id, pod_sandbox_id, label_selector } = filter.unwrap_or_default();
        check_text("filter.id", &id)?;
        check_text("filter.pod_sandbox_id", &pod_sandbox_id)?;
        let (id, sandbox) = (id.to_ascii_lowercase(), pod_sandbox_id.to_ascii_lowercase());
        Ok(Self { id, sandbox, labels: label_selector })
    }

    /// Reads the filter of a list of sandboxes.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, which names the field.
    pub(in super::super) fn of_sandboxes(filter: Option<PodSandboxStatsFilter>) -> Result<Self, Status> {
        let PodSandboxStatsFilter { id, label_selector } = filter.unwrap_or_default();
        check_text("filter.id", &id)?;
        Ok(Self { id: id.to_ascii_lowercase(), sandbox: String::new(), labels: label_selector })
    }

    fn matches<'l>(&self, id: &str, label: impl Fn(&str) -> Option<&'l String>) -> bool {
        id.starts_with(&self.id) && self.labels.iter().all(|(key, value)| label(key) == Some(value))
    }
}

/// The statistics of the running containers that a filter selects.
///
/// # Errors
/// The store or the cgroups cannot be read.
pub(in super::super) fn list_containers(
    context: &Context,
    observer: &Observer,
    filter: &StatsFilter,
) -> Result<Vec<ContainerStats>, Status> {
    let samples = context.sample_with_disk(observer, MAX_AGE)?;
    let pods = samples.pods.iter().filter(|pod| sandbox::is_listed(&pod.view.row));
    let pods = pods.filter(|pod| pod.view.row.id.to_string().starts_with(&filter.sandbox));
    let selected = |app: &AppRow| filter.matches(app.id.as_str(), |key| app.labels.get(key));
    Ok(pods.flat_map(|pod| of_containers(pod, selected)).collect())
}

/// The statistics of the running container with this id or beginning of it.
///
/// # Errors
/// `NOT_FOUND` if there is no such container, `FAILED_PRECONDITION` if it is not running, and the error of the store or
/// the cgroups if they cannot be read.
pub(in super::super) fn container(context: &Context, observer: &Observer, id: &str) -> Result<ContainerStats, Status> {
    let found = containers::find_running(observer, id)?;
    let samples = context.sample_with_disk(observer, MAX_AGE)?;
    let pod = samples.pod(found.sandbox.id);
    let stats = pod.and_then(|pod| of_containers(pod, |app| app.id == found.app.id).next());
    stats.ok_or_else(|| Status::not_found(format!("container {} has just ended", found.app.id)))
}

/// The statistics of the sandboxes that are ready and that a filter selects.
///
/// # Errors
/// The store or the cgroups cannot be read.
pub(in super::super) fn list_sandboxes(
    context: &Context,
    observer: &Observer,
    filter: &StatsFilter,
) -> Result<Vec<PodSandboxStats>, Status> {
    let samples = context.sample_with_disk(observer, MAX_AGE)?;
    let selected = |pod: &&SampledPod| {
        let row = &pod.view.row;
        filter.matches(&row.id.to_string(), |key| row.user_labels.get(key))
    };
    Ok(samples.pods.iter().filter(selected).filter_map(of_sandbox).collect())
}

/// The statistics of the sandbox with this id or beginning of it.
///
/// # Errors
/// `NOT_FOUND` if there is no such sandbox, `FAILED_PRECONDITION` if it is not ready, and the error of the store or the
/// cgroups if they cannot be read.
pub(in super::super) fn sandbox_stats(
    context: &Context,
    observer: &Observer,
    id: &str,
) -> Result<PodSandboxStats, Status> {
    let row = sandbox::find_shown(observer, id)?;
    let samples = context.sample_with_disk(observer, MAX_AGE)?;
    let stats = samples.pod(row.id).and_then(of_sandbox);
    stats.ok_or_else(|| Status::failed_precondition(format!("sandbox {} is not ready", row.id)))
}

fn of_sandbox(pod: &SampledPod) -> Option<PodSandboxStats> {
    let attributes = sandbox::attributes(&pod.view.row)?;
    let (at, usage) = (pod.stats.sampled, &pod.stats.usage);
    let processes: Vec<u64> = pod.stats.apps.iter().filter_map(|app| app.processes).collect();
    let linux = LinuxPodSandboxStats {
        cpu: cpu(at, usage, pod.rates.pod),
        memory: memory(at, usage),
        network: network(at, &pod.stats.interfaces),
        process: Some(ProcessUsage { timestamp: at.0, process_count: number(processes.iter().sum()) }),
        containers: of_containers(pod, |_| true).collect(),
        io: io(at, usage),
    };
    Some(PodSandboxStats { attributes: Some(attributes), linux: Some(linux), windows: None })
}

/// The statistics of the running containers of a sandbox.
fn of_containers<'a>(
    pod: &'a SampledPod,
    selects: impl Fn(&AppRow) -> bool + 'a,
) -> impl Iterator<Item = ContainerStats> + 'a {
    pod.stats.apps.iter().filter_map(move |app| {
        let row = pod.view.row.apps.iter().find(|row| row.name == app.name).filter(|row| selects(row))?;
        let at = pod.stats.sampled;
        Some(ContainerStats {
            attributes: Some(containers::attributes(row)?),
            cpu: cpu(at, &app.usage, pod.rates.apps.get(&app.name).copied()),
            memory: memory(at, &app.usage),
            writable_layer: writable_layer(at, app, &pod.view.dir()),
            swap: swap(at, &app.usage),
            io: io(at, &app.usage),
        })
    })
}

#[allow(clippy::unnecessary_wraps, reason = "the fields of messages are options")]
fn number(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

fn cpu(at: Timestamp, usage: &ResourceUsage, rate: Option<u64>) -> Option<CpuUsage> {
    let cpu = usage.cpu.as_ref()?;
    Some(CpuUsage {
        timestamp: at.0,
        usage_core_nano_seconds: number(cpu.total_ns),
        usage_nano_cores: rate.and_then(number),
        psi: usage.pressure.map(|it| psi(it.cpu_some_ns, it.cpu_full_ns, averages(&it, 0))),
    })
}

fn memory(at: Timestamp, usage: &ResourceUsage) -> Option<MemoryUsage> {
    let memory = usage.memory.as_ref()?;
    Some(MemoryUsage {
        timestamp: at.0,
        working_set_bytes: number(memory.working_set),
        // Without a limit, nothing is known to be available.
        available_bytes: memory.limit.and_then(|limit| number(limit.saturating_sub(memory.working_set))),
        usage_bytes: number(memory.usage),
        rss_bytes: number(memory.rss),
        page_faults: number(memory.page_faults),
        major_page_faults: number(memory.major_page_faults),
        psi: usage.pressure.map(|it| psi(it.memory_some_ns, it.memory_full_ns, averages(&it, 1))),
    })
}

fn swap(at: Timestamp, usage: &ResourceUsage) -> Option<SwapUsage> {
    let memory = usage.memory.as_ref()?;
    let used = memory.swap?;
    Some(SwapUsage {
        timestamp: at.0,
        swap_available_bytes: memory.swap_limit.and_then(|limit| number(limit.saturating_sub(used))),
        swap_usage_bytes: number(used),
    })
}

fn io(at: Timestamp, usage: &ResourceUsage) -> Option<IoUsage> {
    let it = usage.pressure?;
    Some(IoUsage { timestamp: at.0, psi: Some(psi(it.io_some_ns, it.io_full_ns, averages(&it, 2))) })
}

fn averages(pressure: &PressureStats, resource: usize) -> PressureAverages {
    pressure.averages.get(resource).copied().unwrap_or_default()
}

fn psi(some_ns: u64, full_ns: u64, averages: PressureAverages) -> PsiStats {
    let data = |total, hundredths: [u32; 3]| {
        let [avg10, avg60, avg300] = hundredths.map(|value| f64::from(value) / 100.0);
        PsiData { total, avg10, avg60, avg300 }
    };
    PsiStats { full: Some(data(full_ns, averages.full)), some: Some(data(some_ns, averages.some)) }
}

/// The writable layer as it was counted last, or as the file system counts it for the storage limit.
fn writable_layer(at: Timestamp, app: &AppStats, pod_dir: &Path) -> Option<FilesystemUsage> {
    let usage = match (app.storage, app.disk) {
        (Some(storage), _) => {
            DiskUsage { bytes: storage.bytes, inodes: storage.inodes, is_complete: true, counted: at }
        }
        (None, disk) => disk?,
    };
    let mountpoint = pod_dir.parent().unwrap_or(pod_dir).display().to_string();
    Some(FilesystemUsage {
        timestamp: usage.counted.0,
        fs_id: Some(FilesystemIdentifier { mountpoint }),
        used_bytes: number(usage.bytes),
        inodes_used: number(usage.inodes),
    })
}

/// `None`: the sandbox is in the network of the host.
fn network(at: Timestamp, interfaces: &[InterfaceUsage]) -> Option<NetworkUsage> {
    if interfaces.is_empty() {
        return None;
    }
    let usage = |interface: &InterfaceUsage| NetworkInterfaceUsage {
        name: interface.name.clone(),
        rx_bytes: number(interface.receive.bytes),
        rx_errors: number(interface.receive.errors),
        tx_bytes: number(interface.transmit.bytes),
        tx_errors: number(interface.transmit.errors),
    };
    let is_default = |interface: &&InterfaceUsage| interface.name == DEFAULT_INTERFACE;
    let others = interfaces.iter().filter(|it| !is_default(it) && it.name != LOOPBACK);
    Some(NetworkUsage {
        timestamp: at.0,
        default_interface: interfaces.iter().find(is_default).map(usage),
        interfaces: others.map(usage).collect(),
    })
}
