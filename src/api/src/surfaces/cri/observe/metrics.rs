//! ListMetricDescriptors and ListPodSandboxMetrics: the metrics of sandboxes and containers under cAdvisor's names,
//! which a kubelet shows at `/metrics/cadvisor`.
//!
//! Values are whole numbers, times in seconds. A metric that the host or the container has no value of is left out, but
//! its descriptor is listed. The descriptors of a metric and its labels come from one table.

use std::time::Duration;

use gantry_engine::{AppDetails, Observer, PodDetails, SampledPod, read_details};
use gantry_model::Timestamp;
use gantry_model::stats::{AppStats, DeviceStats, InterfaceUsage, MemoryStats, ResourceUsage};
use gantry_proto::cri::v1::{ContainerMetrics, Metric, MetricDescriptor, MetricType, PodSandboxMetrics, UInt64Value};
use tonic::Status;

use super::super::{containers, sandbox};
use crate::context::Context;
use crate::metrics::{InterfaceMetric, TargetMetric, device_name, interface_metrics, target_metrics};

/// Maximum age of a sample: a scraper asks every few seconds at most.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The labels of all metrics, as cAdvisor has them in a kubelet.
const BASE_KEYS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];
const SECOND: u64 = 1_000_000_000;

/// Takes the values of the further labels, and the value.
type Emit<'e> = &'e mut dyn FnMut(&[&str], u64);

/// A sandbox or a container.
struct Target<'a> {
    /// The values of [`BASE_KEYS`].
    base: Vec<String>,
    usage: &'a ResourceUsage,
    /// `None`: a sandbox.
    app: Option<&'a AppStats>,
    details: Option<&'a AppDetails>,
    pod: &'a PodDetails,
    started: Timestamp,
    sampled: Timestamp,
}

/// A metric with labels of its own.
struct LabelledMetric {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    keys: &'static [&'static str],
    emit: fn(&Target<'_>, Emit<'_>),
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    keys: &'static [&'static str],
    emit: fn(&Target<'_>, Emit<'_>),
) -> LabelledMetric {
    LabelledMetric { name, help, kind: MetricType::Gauge, keys, emit }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    keys: &'static [&'static str],
    emit: fn(&Target<'_>, Emit<'_>),
) -> LabelledMetric {
    LabelledMetric { name, help, kind: MetricType::Counter, keys, emit }
}

const LABELLED: &[LabelledMetric] = &[
    counter("container_cpu_usage_seconds_total", "CPU time in user and kernel mode.", &["cpu"], |target, emit| {
        if let Some(cpu) = target.usage.cpu {
            emit(&["total"], cpu.total_ns / SECOND);
        }
    }),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Time that all tasks waited for the CPU.",
        &[],
        |target, emit| {
            if let Some(pressure) = target.usage.pressure {
                emit(&[], pressure.cpu_full_ns / SECOND);
            }
        },
    ),
    gauge("container_memory_swap", "Swap in bytes; 0 without swap accounting.", &[], |target, emit| {
        if let Some(memory) = target.usage.memory {
            emit(&[], memory.swap.unwrap_or(0));
        }
    }),
    gauge("container_memory_mapped_file", "Mapped files in bytes.", &[], |target, emit| {
        if let Some(memory) = target.usage.memory {
            emit(&[], memory.mapped_file);
        }
    }),
    gauge("container_memory_kernel_usage", "Memory that the kernel uses for the container.", &[], |target, emit| {
        if let Some(bytes) = target.details.and_then(|details| details.kernel_memory) {
            emit(&[], bytes);
        }
    }),
    counter(
        "container_memory_failures_total",
        "Page faults; major ones read from a disk.",
        &["failure_type", "scope"],
        |target, emit| {
            if let Some(MemoryStats { page_faults, major_page_faults, .. }) = target.usage.memory {
                emit(&["pgfault", "hierarchy"], page_faults);
                emit(&["pgmajfault", "hierarchy"], major_page_faults);
            }
        },
    ),
    gauge("container_spec_memory_swap_limit_bytes", "The limit of swap; 0: none.", &[], |target, emit| {
        if let Some(memory) = target.usage.memory {
            emit(&[], memory.swap_limit.unwrap_or(0));
        }
    }),
    gauge("container_file_descriptors", "Open files of the container.", &[], |target, emit| {
        if let Some(details) = target.details {
            emit(&[], details.open_files);
        }
    }),
    gauge("container_sockets", "Open sockets of the container.", &[], |target, emit| {
        if let Some(details) = target.details {
            emit(&[], details.sockets);
        }
    }),
    gauge(
        "container_ulimits_soft",
        "Soft limits of the main process; a limit that is left out is unlimited.",
        &["ulimit"],
        |target, emit| {
            if let Some(limit) = target.details.and_then(|details| details.open_files_limit) {
                emit(&["max_open_files"], limit);
            }
        },
    ),
    gauge("container_fs_usage_bytes", "Disk space of the writable layer and the logs.", &["device"], |target, emit| {
        if let Some(bytes) = target.app.and_then(AppStats::disk_bytes) {
            with_device(target, |device| emit(&[device], bytes));
        }
    }),
    gauge(
        "container_fs_limit_bytes",
        "The storage limit, or the size of the file system.",
        &["device"],
        |target, emit| {
            let limit = target.app.and_then(|app| app.storage).map(|storage| storage.limit);
            if let (Some(_), Some(space)) = (target.app, &target.pod.file_system) {
                with_device(target, |device| emit(&[device], limit.unwrap_or(space.bytes)));
            }
        },
    ),
    gauge("container_fs_inodes_total", "Inodes of the file system.", &["device"], |target, emit| {
        if let (Some(_), Some(space)) = (target.app, &target.pod.file_system) {
            with_device(target, |device| emit(&[device], space.inodes));
        }
    }),
    gauge("container_fs_inodes_free", "Free inodes of the file system.", &["device"], |target, emit| {
        if let (Some(_), Some(space)) = (target.app, &target.pod.file_system) {
            with_device(target, |device| emit(&[device], space.free_inodes));
        }
    }),
    counter("container_fs_reads_bytes_total", "Bytes read from block devices.", &["device"], |target, emit| {
        each_device(target, |device, io| emit(&[device], io.read_bytes));
    }),
    counter("container_fs_writes_bytes_total", "Bytes written to block devices.", &["device"], |target, emit| {
        each_device(target, |device, io| emit(&[device], io.written_bytes));
    }),
    counter("container_fs_reads_total", "Read operations on block devices.", &["device"], |target, emit| {
        each_device(target, |device, io| emit(&[device], io.reads));
    }),
    counter("container_fs_writes_total", "Write operations on block devices.", &["device"], |target, emit| {
        each_device(target, |device, io| emit(&[device], io.writes));
    }),
    counter(
        "container_blkio_device_usage_total",
        "Bytes of block devices by operation.",
        &["device", "major", "minor", "operation"],
        |target, emit| {
            each_device(target, |device, io| {
                let (major, minor) = (io.major.to_string(), io.minor.to_string());
                emit(&[device, &major, &minor, "Read"], io.read_bytes);
                emit(&[device, &major, &minor, "Write"], io.written_bytes);
            });
        },
    ),
];

/// The file system of the container's files, by its device.
fn with_device(target: &Target<'_>, mut emit: impl FnMut(&str)) {
    if let Some(space) = &target.pod.file_system {
        emit(&device_name(space.device));
    }
}

fn each_device(target: &Target<'_>, mut emit: impl FnMut(&str, &DeviceStats)) {
    for io in target.usage.io.iter().flatten() {
        emit(&device_name((io.major, io.minor)), io);
    }
}

/// The metrics without labels of their own that `/metrics` has, too. Those of file systems have a device here.
fn plain() -> impl Iterator<Item = &'static TargetMetric> {
    let is_shared = |metric: &&TargetMetric| {
        metric.name().starts_with("container_") && !LABELLED.iter().any(|labelled| labelled.name == metric.name())
    };
    target_metrics().filter(is_shared)
}

/// The descriptors of all metrics.
pub(in super::super) fn descriptors() -> Vec<MetricDescriptor> {
    let descriptor = |name: &str, help: &str, keys: &[&str]| MetricDescriptor {
        name: name.to_owned(),
        help: help.to_owned(),
        label_keys: BASE_KEYS.iter().chain(keys).map(|key| (*key).to_owned()).collect(),
    };
    let plain = plain().map(|metric| descriptor(metric.name(), metric.help(), &[]));
    let labelled = LABELLED.iter().map(|metric| descriptor(metric.name, metric.help, metric.keys));
    let interfaces = interface_metrics().map(|metric| descriptor(metric.name(), metric.help(), &["interface"]));
    plain.chain(labelled).chain(interfaces).collect()
}

/// The metrics of all sandboxes that are ready, and of their running containers.
///
/// # Errors
/// The store or the cgroups cannot be read.
pub(in super::super) fn list(context: &Context, observer: &Observer) -> Result<Vec<PodSandboxMetrics>, Status> {
    let samples = context.sample_with_disk(observer, MAX_AGE)?;
    Ok(samples.pods.iter().filter_map(of_sandbox).collect())
}

fn of_sandbox(pod: &SampledPod) -> Option<PodSandboxMetrics> {
    let row = &pod.view.row;
    let metadata = sandbox::attributes(row)?.metadata.unwrap_or_default();
    // A pod that ends meanwhile has none.
    let details = read_details(&pod.view).unwrap_or_default();
    let base = |container: &str, cgroup: &str, image: &str, name: &str| {
        let values = [container, cgroup, image, name, &metadata.namespace, &metadata.name];
        values.map(str::to_owned).to_vec()
    };
    let id = row.id.to_string();
    let target = Target {
        base: base("", &row.cgroup, "", &id),
        usage: &pod.stats.usage,
        app: None,
        details: None,
        pod: &details,
        started: pod.stats.started,
        sampled: pod.stats.sampled,
    };
    let mut metrics = values(&target);
    metrics.extend(interface_metrics().flat_map(|metric| of_interfaces(metric, pod, &target.base)));
    let container_metrics = pod.stats.apps.iter().filter_map(|app| {
        let app_row = row.apps.iter().find(|row| row.name == app.name)?;
        let attributes = containers::attributes(app_row)?;
        let container = attributes.metadata.unwrap_or_default().name;
        let cgroup = format!("{}/{}", row.cgroup, app.name);
        let target = Target {
            base: base(&container, &cgroup, &app.image_name, &attributes.id),
            usage: &app.usage,
            app: Some(app),
            details: details.apps.iter().find(|details| details.name == app.name),
            started: app.started,
            ..target
        };
        Some(ContainerMetrics { container_id: attributes.id, metrics: values(&target) })
    });
    let container_metrics = container_metrics.collect();
    Some(PodSandboxMetrics { pod_sandbox_id: id, metrics, container_metrics })
}

fn values(target: &Target<'_>) -> Vec<Metric> {
    let mut metrics = Vec::new();
    let mut push = |name: &str, kind: MetricType, more: &[&str], value: u64| {
        let more = more.iter().map(|value| (*value).to_owned());
        metrics.push(Metric {
            name: name.to_owned(),
            timestamp: target.sampled.0,
            metric_type: kind.into(),
            label_values: target.base.iter().cloned().chain(more).collect(),
            value: Some(UInt64Value { value }),
        });
    };
    for metric in plain() {
        let kind = if metric.is_counter() { MetricType::Counter } else { MetricType::Gauge };
        if let Some(value) = metric.whole_value(target.usage, target.app, target.started, target.sampled) {
            push(metric.name(), kind, &[], value);
        }
    }
    for metric in LABELLED {
        (metric.emit)(target, &mut |more, value| push(metric.name, metric.kind, more, value));
    }
    metrics
}

fn of_interfaces(metric: &'static InterfaceMetric, pod: &SampledPod, base: &[String]) -> Vec<Metric> {
    let value = |interface: &InterfaceUsage| Metric {
        name: metric.name().to_owned(),
        timestamp: pod.stats.sampled.0,
        metric_type: MetricType::Counter.into(),
        label_values: base.iter().cloned().chain([interface.name.clone()]).collect(),
        value: Some(UInt64Value { value: metric.value_of(interface) }),
    };
    pod.stats.interfaces.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_complete_and_unique() {
        let all = descriptors();
        let names: std::collections::BTreeSet<_> = all.iter().map(|descriptor| &descriptor.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|it| !it.help.is_empty() && it.label_keys.len() >= BASE_KEYS.len()));
        assert!(names.iter().all(|name| name.starts_with("container_")), "{names:?}");
    }
}
