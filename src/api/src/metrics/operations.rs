//! The metrics of gantryd's own operations.

use std::sync::atomic::Ordering;

use gantry_engine::SampleSet;
use gantry_model::{EventKind, PhaseName};
use tonic::Code;

use super::exposition::{Exposition, Labels, MetricType, MetricValue};
use super::{MethodMetrics, Metrics, Operation, Removal};
use crate::bridge::{QueueDepth, Weight};

impl Metrics {
    /// Writes the counts and times of operations, events and gRPC calls.
    pub(super) fn write(&self, out: &mut Exposition) {
        let mut family = out.family("gantry_build_info", MetricType::Gauge, "The version of gantryd.");
        family.sample(&Labels::default().with("version", env!("CARGO_PKG_VERSION")), MetricValue::Count(1));
        self.write_operations(out);
        let help = "Garbage that was collected.";
        for (removal, counter) in Removal::ALL.iter().zip(&self.removed) {
            let name = match removal {
                Removal::Pods => "gantry_gc_pods_total",
                Removal::Layers => "gantry_gc_layers_total",
                Removal::Blobs => "gantry_gc_blobs_total",
                Removal::ImageBytes => "gantry_gc_image_bytes_total",
                Removal::Events => "gantry_gc_events_total",
            };
            let mut family = out.family(name, MetricType::Counter, help);
            family.sample(&Labels::default(), MetricValue::Count(counter.load(Ordering::Relaxed)));
        }
        let help = "Events since gantryd was started, by any process; image-imported counts pulls and imports.";
        let mut family = out.family("gantry_events_total", MetricType::Counter, help);
        for (kind, counter) in EventKind::ALL.iter().zip(&self.events) {
            let labels = Labels::default().with("kind", kind.as_str());
            family.sample(&labels, MetricValue::Count(counter.load(Ordering::Relaxed)));
        }
        self.write_calls(out);
    }

    fn write_operations(&self, out: &mut Exposition) {
        let labels = |operation: &Operation| Labels::default().with("operation", operation.name());
        let help = "Duration of gantryd's operations.";
        let mut family = out.family("gantry_operation_duration_seconds", MetricType::Histogram, help);
        for (operation, metrics) in Operation::ALL.iter().zip(&self.operations) {
            family.histogram(&labels(operation), &metrics.duration.snapshot());
        }
        let help = "Failures of gantryd's operations.";
        let mut family = out.family("gantry_operation_failures_total", MetricType::Counter, help);
        for (operation, metrics) in Operation::ALL.iter().zip(&self.operations) {
            family.sample(&labels(operation), MetricValue::Count(metrics.failures.load(Ordering::Relaxed)));
        }
    }

    /// Only methods that were called.
    fn write_calls(&self, out: &mut Exposition) {
        let named = self.methods.get().into_iter().flatten();
        let labeled = named.map(|(path, metrics)| {
            let (service, method) = path.rsplit_once('/').unwrap_or(("", path));
            (Labels::default().with("service", service).with("method", method), metrics)
        });
        let unknown = Labels::default().with("service", "unknown").with("method", "unknown");
        let methods: Vec<(Labels, &MethodMetrics)> = labeled.chain([(unknown, &self.unknown_method)]).collect();
        let help = "gRPC calls by method and status code; a stream counts when it begins.";
        let mut family = out.family("gantry_grpc_calls_total", MetricType::Counter, help);
        for (labels, metrics) in &methods {
            for (code, counter) in (0..).zip(&metrics.codes) {
                let count = counter.load(Ordering::Relaxed);
                if count > 0 {
                    family.sample(&labels.with("code", &code_name(code)), MetricValue::Count(count));
                }
            }
        }
        let help = "Time from a gRPC call to the start of its response.";
        let mut family = out.family("gantry_grpc_call_duration_seconds", MetricType::Histogram, help);
        for (labels, metrics) in &methods {
            let snapshot = metrics.duration.snapshot();
            if snapshot.count > 0 {
                family.histogram(labels, &snapshot);
            }
        }
    }
}

/// The name of a status code, as in other gRPC exporters: `OK`, `NotFound`.
fn code_name(code: i32) -> String {
    match Code::from_i32(code) {
        Code::Ok => "OK".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Writes the number of pods by state.
pub(super) fn write_pods(out: &mut Exposition, counts: &[(PhaseName, u64)]) {
    let mut family = out.family("gantry_pods", MetricType::Gauge, "Pods by state.");
    // Pods that are being deleted are counted as garbage.
    for state in PhaseName::ALL.into_iter().filter(|name| *name != PhaseName::Deleting) {
        let count = counts.iter().find(|(name, _)| *name == state).map_or(0, |(_, count)| *count);
        family.sample(&Labels::default().with("state", state.as_str()), MetricValue::Count(count));
    }
}

/// Writes the depths of the queues between calls and the engine, by their names.
pub(super) fn write_queues(out: &mut Exposition, queues: &[(&str, QueueDepth)]) {
    let mut write = |name, help, count: fn(&QueueDepth, Weight) -> usize| {
        let mut family = out.family(name, MetricType::Gauge, help);
        for (queue, depth) in queues {
            for weight in Weight::ALL {
                let labels = Labels::default().with("queue", queue).with("weight", weight.name());
                family.sample(&labels, MetricValue::Count(count(depth, weight) as u64));
            }
        }
    };
    let help = "Jobs that wait for a thread of the engine.";
    write("gantry_queue_length", help, |depth, weight| *depth.waiting.get(weight));
    let help = "Jobs that run on a thread of the engine.";
    write("gantry_queue_running", help, |depth, weight| *depth.running.get(weight));
    let help = "Jobs of all weights but 'light' that run on a thread of the engine.";
    let mut family = out.family("gantry_queue_running_heavy", MetricType::Gauge, help);
    for (name, depth) in queues {
        let weights = Weight::ALL.into_iter().filter(|weight| *weight != Weight::Light);
        let running: usize = weights.map(|weight| *depth.running.get(weight)).sum();
        family.sample(&Labels::default().with("queue", name), MetricValue::Count(running as u64));
    }
}

/// Writes the state of the sampler.
pub(super) fn write_sampler(out: &mut Exposition, samples: &SampleSet) {
    let help = "Age of the sample of all containers in this reply.";
    let mut family = out.family("gantry_sampler_age_seconds", MetricType::Gauge, help);
    let age = u64::try_from(samples.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    family.sample(&Labels::default(), MetricValue::Nanoseconds(age));
    let help = "Duration of the last sample of all containers.";
    let mut family = out.family("gantry_sampler_duration_seconds", MetricType::Gauge, help);
    let duration = u64::try_from(samples.duration.as_nanos()).unwrap_or(u64::MAX);
    family.sample(&Labels::default(), MetricValue::Nanoseconds(duration));
    let mut family =
        out.family("gantry_sampler_descriptors", MetricType::Gauge, "Descriptors that the sampler holds open.");
    family.sample(&Labels::default(), MetricValue::Count(samples.descriptors as u64));
}

/// Writes gantryd's own use of resources, under the names of Prometheus' client libraries.
pub(super) fn write_process(out: &mut Exposition) {
    let Ok(process) = procfs::process::Process::myself() else { return };
    let Ok(stat) = process.stat() else { return };
    let ticks = procfs::ticks_per_second().max(1);
    let none = Labels::default();
    let help = "CPU time of gantryd in user and kernel mode.";
    let mut family = out.family("process_cpu_seconds_total", MetricType::Counter, help);
    let nanoseconds = (stat.utime + stat.stime).saturating_mul(1_000_000_000 / ticks);
    family.sample(&none, MetricValue::Nanoseconds(nanoseconds));
    if let Ok(boot) = procfs::boot_time_secs() {
        let help = "Start time of gantryd since the Unix epoch.";
        let mut family = out.family("process_start_time_seconds", MetricType::Gauge, help);
        family.sample(&none, MetricValue::Nanoseconds(start_time(boot, stat.starttime, ticks)));
    }
    let mut family = out.family("process_virtual_memory_bytes", MetricType::Gauge, "Virtual memory of gantryd.");
    family.sample(&none, MetricValue::Count(stat.vsize));
    let mut family = out.family("process_resident_memory_bytes", MetricType::Gauge, "Resident memory of gantryd.");
    family.sample(&none, MetricValue::Count(stat.rss.saturating_mul(procfs::page_size())));
    if let Ok(count) = process.fd_count() {
        let mut family = out.family("process_open_fds", MetricType::Gauge, "Open descriptors of gantryd.");
        family.sample(&none, MetricValue::Count(count as u64));
    }
    if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        let mut family = out.family("process_max_fds", MetricType::Gauge, "Maximum descriptors of gantryd.");
        family.sample(&none, MetricValue::Count(limit));
    }
}

/// The nanoseconds from 1970 to a start, which was this many clock ticks after the boot, itself in seconds.
fn start_time(boot: u64, started: u64, ticks_per_second: u64) -> u64 {
    let since_boot = started.saturating_mul(1_000_000_000 / ticks_per_second);
    boot.saturating_mul(1_000_000_000).saturating_add(since_boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_metrics_have_the_common_names() {
        let mut out = Exposition::default();
        write_process(&mut out);
        let text = out.into_text();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name}: {text}")).parse::<f64>().unwrap()
        };
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        let names = ["process_cpu_seconds_total", "process_start_time_seconds", "process_open_fds", "process_max_fds"];
        for name in names {
            assert!(value(name) >= 0.0, "{name}");
        }
        assert_eq!(start_time(1_700_000_000, 250, 100), 1_700_000_002_500_000_000);
    }
}
