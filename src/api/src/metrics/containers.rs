//! The metrics of pods and apps, under cAdvisor's names and with the labels that the kubelet gives them.
//!
//! A pod has the label `container=""`, as the cgroup of a Kubernetes pod has; a container that a kubelet made has its
//! name in Kubernetes. Each sample has the time at which the counters were read.

use std::collections::HashMap;

use gantry_engine::{AppRow, PodRow, SampledPod, SampledVolume};
use gantry_model::Timestamp;
use gantry_model::pod_namespace::{KUBERNETES_NAME, KUBERNETES_NAMESPACE};
use gantry_model::stats::{AppStats, DiskUsage, InterfaceUsage, ResourceUsage, TrafficStats};

use super::exposition::{Exposition, Labels, MetricType, MetricValue};
use crate::kubernetes;
use MetricType::{Counter, Gauge, Untyped};
use MetricValue::{Count, Nanoseconds};

/// A pod or an app.
struct Target<'a> {
    labels: Labels,
    usage: &'a ResourceUsage,
    /// `None`: a pod.
    app: Option<&'a AppStats>,
    started: Timestamp,
    sampled: Timestamp,
}

/// The milliseconds of a time, as in samples.
fn milliseconds(time: Timestamp) -> i64 {
    time.0 / 1_000_000
}

/// A metric with one sample per target.
pub(crate) struct TargetMetric {
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    value: fn(&Target<'_>) -> Option<MetricValue>,
}

const fn metric(
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    value: fn(&Target<'_>) -> Option<MetricValue>,
) -> TargetMetric {
    TargetMetric { name, kind, help, value }
}

impl TargetMetric {
    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// What it is.
    pub(crate) fn help(&self) -> &'static str {
        self.help
    }

    /// Whether it only rises.
    pub(crate) fn is_counter(&self) -> bool {
        matches!(self.kind, Counter)
    }

    /// Its value, times in whole seconds; `app` is `None` for a pod.
    pub(crate) fn whole_value(
        &self,
        usage: &ResourceUsage,
        app: Option<&AppStats>,
        started: Timestamp,
        sampled: Timestamp,
    ) -> Option<u64> {
        let value = (self.value)(&Target { labels: Labels::default(), usage, app, started, sampled })?;
        Some(match value {
            Nanoseconds(time) => time / 1_000_000_000,
            Count(value) => value,
        })
    }
}

/// The metrics of pods and apps that have no labels of their own.
pub(crate) fn target_metrics() -> impl Iterator<Item = &'static TargetMetric> {
    TABLES.into_iter().flatten()
}

/// The metrics of the interfaces of pods.
pub(crate) fn interface_metrics() -> impl Iterator<Item = &'static InterfaceMetric> {
    INTERFACE_METRICS.iter()
}

const TABLES: [&[TargetMetric]; 6] =
    [CPU_METRICS, MEMORY_METRICS, PROCESS_METRICS, DISK_METRICS, PRESSURE_METRICS, SPEC_METRICS];

const CPU_METRICS: &[TargetMetric] = &[
    metric("container_cpu_user_seconds_total", Counter, "CPU time in user mode.", |target| {
        Some(Nanoseconds(target.usage.cpu?.user_ns))
    }),
    metric("container_cpu_system_seconds_total", Counter, "CPU time in kernel mode.", |target| {
        Some(Nanoseconds(target.usage.cpu?.system_ns))
    }),
    metric("container_cpu_cfs_periods_total", Counter, "Periods of the CPU limit.", |target| {
        Some(Count(target.usage.cpu?.periods))
    }),
    metric("container_cpu_cfs_throttled_periods_total", Counter, "Periods in which the CPU limit was reached.", |t| {
        Some(Count(t.usage.cpu?.throttled_periods))
    }),
    metric(
        "container_cpu_cfs_throttled_seconds_total",
        Counter,
        "Time that threads waited for the next period.",
        |t| Some(Nanoseconds(t.usage.cpu?.throttled_ns)),
    ),
];

const MEMORY_METRICS: &[TargetMetric] = &[
    metric("container_memory_usage_bytes", Gauge, "All charged memory, with page cache.", |target| {
        Some(Count(target.usage.memory?.usage))
    }),
    metric("container_memory_working_set_bytes", Gauge, "Charged memory without inactive page cache.", |target| {
        Some(Count(target.usage.memory?.working_set))
    }),
    metric("container_memory_rss", Gauge, "Anonymous memory in bytes.", |target| Some(Count(target.usage.memory?.rss))),
    metric("container_memory_cache", Gauge, "Page cache in bytes.", |target| Some(Count(target.usage.memory?.cache))),
    metric("container_memory_swap", Gauge, "Swap in bytes.", |target| Some(Count(target.usage.memory?.swap?))),
    metric("container_memory_max_usage_bytes", Gauge, "The highest usage.", |target| {
        Some(Count(target.usage.memory?.peak?))
    }),
    metric("container_memory_failcnt", Untyped, "Allocations that reached the memory limit.", |target| {
        Some(Count(target.usage.memory?.failures))
    }),
    metric("container_oom_events_total", Counter, "Processes that the OOM killer has killed.", |target| {
        Some(Count(target.usage.memory?.oom_kills))
    }),
];

const PROCESS_METRICS: &[TargetMetric] = &[
    metric("container_processes", Gauge, "Processes of the container.", |target| Some(Count(target.app?.processes?))),
    metric("container_threads", Gauge, "Threads of the container.", |target| Some(Count(target.usage.pids?.current))),
    metric("container_threads_max", Gauge, "Limit of threads of the container; 0: none.", |target| {
        Some(Count(target.usage.pids?.limit.unwrap_or(0)))
    }),
    metric("container_start_time_seconds", Gauge, "Time of the start, since the epoch.", |target| {
        Some(Nanoseconds(u64::try_from(target.started.0).ok()?))
    }),
    metric("container_last_seen", Gauge, "Time of the sample, in seconds since the epoch.", |target| {
        Some(Count(u64::try_from(target.sampled.0).ok()? / 1_000_000_000))
    }),
];

const DISK_METRICS: &[TargetMetric] = &[
    metric("container_fs_usage_bytes", Gauge, "Disk space of the writable layer and the logs.", |target| {
        Some(Count(target.app?.disk_bytes()?))
    }),
    metric("container_fs_limit_bytes", Gauge, "The storage limit.", |target| Some(Count(target.app?.storage?.limit))),
];

const PRESSURE_METRICS: &[TargetMetric] = &[
    metric("container_pressure_cpu_waiting_seconds_total", Counter, "Time that tasks waited for the CPU.", |target| {
        Some(Nanoseconds(target.usage.pressure?.cpu_some_ns))
    }),
    metric(
        "container_pressure_memory_waiting_seconds_total",
        Counter,
        "Time that tasks waited for memory.",
        |target| Some(Nanoseconds(target.usage.pressure?.memory_some_ns)),
    ),
    metric("container_pressure_memory_stalled_seconds_total", Counter, "Time that all tasks waited for memory.", |t| {
        Some(Nanoseconds(t.usage.pressure?.memory_full_ns))
    }),
    metric("container_pressure_io_waiting_seconds_total", Counter, "Time that tasks waited for I/O.", |target| {
        Some(Nanoseconds(target.usage.pressure?.io_some_ns))
    }),
    metric("container_pressure_io_stalled_seconds_total", Counter, "Time that all tasks waited for I/O.", |target| {
        Some(Nanoseconds(target.usage.pressure?.io_full_ns))
    }),
];

const SPEC_METRICS: &[TargetMetric] = &[
    metric("container_spec_memory_limit_bytes", Gauge, "The memory limit; 0: none.", |target| {
        Some(Count(target.usage.memory?.limit.unwrap_or(0)))
    }),
    metric("container_spec_cpu_period", Gauge, "The period of the CPU limit in microseconds.", |target| {
        Some(Count(target.app?.cpu_limits?.period_us))
    }),
    metric("container_spec_cpu_quota", Gauge, "The CPU time in each period in microseconds.", |target| {
        Some(Count(target.app?.cpu_limits?.quota_us?))
    }),
    metric("container_spec_cpu_shares", Gauge, "The CPU weight; 1024 by default.", |target| {
        Some(Count(target.app?.cpu_limits?.shares))
    }),
];

/// A metric of an interface.
pub(crate) struct InterfaceMetric {
    name: &'static str,
    help: &'static str,
    is_receive: bool,
    value: fn(&TrafficStats) -> u64,
}

impl InterfaceMetric {
    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// What it is.
    pub(crate) fn help(&self) -> &'static str {
        self.help
    }

    /// Its value.
    pub(crate) fn value_of(&self, interface: &InterfaceUsage) -> u64 {
        (self.value)(if self.is_receive { &interface.receive } else { &interface.transmit })
    }
}

const fn interface_metric(
    name: &'static str,
    help: &'static str,
    is_receive: bool,
    value: fn(&TrafficStats) -> u64,
) -> InterfaceMetric {
    InterfaceMetric { name, help, is_receive, value }
}

const INTERFACE_METRICS: &[InterfaceMetric] = &[
    interface_metric("container_network_receive_bytes_total", "Bytes received.", true, |t| t.bytes),
    interface_metric("container_network_receive_packets_total", "Packets received.", true, |t| t.packets),
    interface_metric("container_network_receive_errors_total", "Packets received with errors.", true, |t| t.errors),
    interface_metric("container_network_receive_packets_dropped_total", "Received packets dropped.", true, |t| t.drops),
    interface_metric("container_network_transmit_bytes_total", "Bytes sent.", false, |t| t.bytes),
    interface_metric("container_network_transmit_packets_total", "Packets sent.", false, |t| t.packets),
    interface_metric("container_network_transmit_errors_total", "Errors while sending packets.", false, |t| t.errors),
    interface_metric("container_network_transmit_packets_dropped_total", "Sent packets dropped.", false, |t| t.drops),
];

/// A kind of disk space of an app, by its label.
type DiskKind = (&'static str, fn(&AppStats) -> Option<DiskUsage>);

const DISK_KINDS: [DiskKind; 2] = [("writable-layer", |app| app.disk), ("logs", |app| app.logs)];

/// Writes the disk space that was counted, each with the time of its count.
fn write_disk(out: &mut Exposition, pods: &[SampledPod], targets: &[Target<'_>]) {
    let counts: Vec<(Labels, DiskUsage)> = targets
        .iter()
        .flat_map(|target| DISK_KINDS.iter().map(move |(kind, usage)| (target, kind, usage)))
        .filter_map(|(target, kind, usage)| Some((target.labels.with("kind", kind), usage(target.app?)?)))
        .chain(pods.iter().filter_map(|SampledPod { view, stats, .. }| {
            let labels = labels(&view.row, &view.row.cgroup, &view.row.id.to_string(), "", "");
            Some((labels.with("kind", "volumes"), stats.volumes?))
        }))
        .collect();
    let help = "Counted disk space of a container without a storage limit, or of the volumes that end with the pod.";
    write_counts(out, ["gantry_disk_usage_bytes", "gantry_disk_usage_complete"], help, &counts);
}

/// Writes the disk space of named volumes.
pub(super) fn write_volumes(out: &mut Exposition, volumes: &[SampledVolume]) {
    let labels = |volume: &SampledVolume| Labels::default().with("volume", volume.name.as_str());
    let counts: Vec<(Labels, DiskUsage)> =
        volumes.iter().filter_map(|volume| Some((labels(volume), volume.usage?))).collect();
    let names = ["gantry_volume_usage_bytes", "gantry_volume_usage_complete"];
    write_counts(out, names, "Counted disk space of a named volume.", &counts);
}

/// Writes two metrics: the bytes of counts, and whether all of each tree was counted.
fn write_counts(
    out: &mut Exposition,
    [bytes, complete]: [&'static str; 2],
    help: &str,
    counts: &[(Labels, DiskUsage)],
) {
    let mut family = out.family(bytes, Gauge, help);
    for (labels, usage) in counts {
        family.sample_at(labels, Count(usage.bytes), milliseconds(usage.counted));
    }
    let help = "Whether all of the tree was counted (1); else its bytes are a lower bound (0).";
    let mut family = out.family(complete, Gauge, help);
    for (labels, usage) in counts {
        family.sample_at(labels, Count(usage.is_complete.into()), milliseconds(usage.counted));
    }
}

/// Writes the metrics of these pods and their apps.
pub(super) fn write(out: &mut Exposition, pods: &[SampledPod]) {
    let targets: Vec<Target<'_>> = pods.iter().flat_map(targets).collect();
    let help = "CPU time in user and kernel mode.";
    let mut family = out.family("container_cpu_usage_seconds_total", Counter, help);
    for target in &targets {
        let Some(cpu) = target.usage.cpu else { continue };
        family.sample_at(&target.labels.with("cpu", "total"), Nanoseconds(cpu.total_ns), milliseconds(target.sampled));
    }
    for metric in target_metrics() {
        let mut family = out.family(metric.name, metric.kind, metric.help);
        for target in &targets {
            if let Some(value) = (metric.value)(target) {
                family.sample_at(&target.labels, value, milliseconds(target.sampled));
            }
        }
    }
    write_restarts(out, pods);
    write_disk(out, pods, &targets);
    write_devices(out, &targets);
    write_interfaces(out, pods);
}

/// The pod and its apps.
fn targets(pod: &SampledPod) -> Vec<Target<'_>> {
    let SampledPod { view, stats, .. } = pod;
    let mut targets = vec![Target {
        labels: labels(&view.row, &view.row.cgroup, &view.row.id.to_string(), "", ""),
        usage: &stats.usage,
        app: None,
        started: stats.started,
        sampled: stats.sampled,
    }];
    targets.extend(stats.apps.iter().filter_map(|app| {
        let row = view.row.apps.iter().find(|row| row.name == app.name)?;
        Some(Target {
            labels: app_labels(&view.row, row),
            usage: &app.usage,
            app: Some(app),
            started: app.started,
            sampled: stats.sampled,
        })
    }));
    targets
}

/// Writes how often apps were started again, including apps that wait for their next start.
fn write_restarts(out: &mut Exposition, pods: &[SampledPod]) {
    let help = "Starts of the container after its first one.";
    let mut family = out.family("gantry_container_restarts_total", Counter, help);
    for SampledPod { view, stats, .. } in pods {
        for app in &view.row.apps {
            if let Some(attempt) = app.state.attempt() {
                let labels = app_labels(&view.row, app);
                family.sample_at(&labels, Count(attempt.into()), milliseconds(stats.sampled));
            }
        }
    }
}

fn app_labels(pod: &PodRow, app: &AppRow) -> Labels {
    let cgroup = format!("{}/{}", pod.cgroup, app.name);
    let container = kubernetes::container_name(app).unwrap_or(app.name.as_str());
    labels(pod, &cgroup, &app.id.to_string(), &app.image_name, container)
}

fn labels(pod: &PodRow, id: &str, name: &str, image: &str, container: &str) -> Labels {
    let kubernetes = |key| pod.user_labels.get(key).or_else(|| pod.user_annotations.get(key)).cloned();
    let own_name = || pod.name.as_ref().map_or_else(|| pod.id.to_string(), ToString::to_string);
    let mut labels = Labels::default();
    for (label, value) in [
        ("container", container),
        ("id", id),
        ("image", image),
        ("name", name),
        ("namespace", &kubernetes(KUBERNETES_NAMESPACE).unwrap_or_default()),
        ("pod", &kubernetes(KUBERNETES_NAME).unwrap_or_else(own_name)),
    ] {
        labels.push(label, value);
    }
    labels
}

fn write_devices(out: &mut Exposition, targets: &[Target<'_>]) {
    let mut names = HashMap::new();
    for device in targets.iter().flat_map(|target| target.usage.io.iter().flatten()) {
        let number = (device.major, device.minor);
        names.entry(number).or_insert_with(|| device_name(number));
    }
    type DeviceValue = fn(&gantry_model::stats::DeviceStats) -> u64;
    let metrics: [(&'static str, &str, DeviceValue); 4] = [
        ("container_fs_reads_bytes_total", "Bytes read from block devices.", |io| io.read_bytes),
        ("container_fs_writes_bytes_total", "Bytes written to block devices.", |io| io.written_bytes),
        ("container_fs_reads_total", "Read operations on block devices.", |io| io.reads),
        ("container_fs_writes_total", "Write operations on block devices.", |io| io.writes),
    ];
    for (name, help, value) in metrics {
        let mut family = out.family(name, Counter, help);
        for target in targets {
            for device in target.usage.io.iter().flatten() {
                let Some(label) = names.get(&(device.major, device.minor)) else { continue };
                family.sample_at(
                    &target.labels.with("device", label),
                    Count(value(device)),
                    milliseconds(target.sampled),
                );
            }
        }
    }
}

/// `/dev/NAME` as the kernel names it, or `MAJOR:MINOR` of a device that was removed.
pub(crate) fn device_name((major, minor): (u32, u32)) -> String {
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).unwrap_or_default();
    match text.lines().find_map(|line| line.strip_prefix("DEVNAME=")) {
        Some(name) => format!("/dev/{name}"),
        None => format!("{major}:{minor}"),
    }
}

fn write_interfaces(out: &mut Exposition, pods: &[SampledPod]) {
    let labeled = pods.iter().flat_map(|SampledPod { view, stats, .. }| {
        let pod = labels(&view.row, &view.row.cgroup, &view.row.id.to_string(), "", "");
        stats.interfaces.iter().map(move |interface| (pod.with("interface", &interface.name), interface, stats.sampled))
    });
    let interfaces: Vec<(Labels, &InterfaceUsage, Timestamp)> = labeled.collect();
    for metric in INTERFACE_METRICS {
        let mut family = out.family(metric.name, Counter, metric.help);
        for (labels, interface, sampled) in &interfaces {
            family.sample_at(labels, Count(metric.value_of(interface)), milliseconds(*sampled));
        }
    }
}
