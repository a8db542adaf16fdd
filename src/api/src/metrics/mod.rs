//! Metrics: what gantryd counts, and the Prometheus text exposition of them at `/metrics`.
//!
//! [`Metrics`] is the one place that records: gantryd has one, which the keeper, the surfaces and the sampler share.
//! Recording is a few atomic additions. `http` serves `/metrics`, `operations` and `containers` write it.

mod containers;
mod exposition;
mod histogram;
pub mod http;
mod operations;

pub(crate) use self::containers::{InterfaceMetric, TargetMetric, device_name, interface_metrics, target_metrics};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gantry_model::EventKind;
use prost::Message as _;
use tonic::Code;

use self::histogram::Histogram;

/// The number of gRPC status codes.
const CODES: usize = 17;

/// An operation of gantryd that is counted and timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reconciling one pod.
    Reconcile,
    /// Reading the rows of active pods.
    ReadRows,
    /// Making commits durable.
    Sync,
    /// Backing up the database.
    Backup,
    /// Collecting garbage of pods.
    CollectPods,
    /// Collecting layers and blobs without an image.
    CollectImages,
    /// Trimming the history of events.
    TrimEvents,
    /// Sampling the counters of all running pods.
    Sample,
    /// Writing the metrics.
    Scrape,
}

impl Operation {
    const ALL: [Self; 9] = [
        Self::Reconcile,
        Self::ReadRows,
        Self::Sync,
        Self::Backup,
        Self::CollectPods,
        Self::CollectImages,
        Self::TrimEvents,
        Self::Sample,
        Self::Scrape,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Reconcile => "reconcile",
            Self::ReadRows => "read-rows",
            Self::Sync => "sync",
            Self::Backup => "backup",
            Self::CollectPods => "collect-pods",
            Self::CollectImages => "collect-images",
            Self::TrimEvents => "trim-events",
            Self::Sample => "sample",
            Self::Scrape => "scrape",
        }
    }
}

/// Something that garbage collection removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Pods.
    Pods,
    /// Layers without an image.
    Layers,
    /// Blobs without an image.
    Blobs,
    /// Bytes of those layers and blobs.
    ImageBytes,
    /// Events beyond the kept ones.
    Events,
}

impl Removal {
    const ALL: [Self; 5] = [Self::Pods, Self::Layers, Self::Blobs, Self::ImageBytes, Self::Events];
}

/// The counts and times of an operation.
#[derive(Debug, Default)]
struct OperationMetrics {
    duration: Histogram,
    failures: AtomicU64,
}

/// The counts and times of a gRPC method.
#[derive(Debug, Default)]
struct MethodMetrics {
    codes: [AtomicU64; CODES],
    duration: Histogram,
}

/// See the module.
#[derive(Debug)]
pub struct Metrics {
    operations: [OperationMetrics; Operation::ALL.len()],
    removed: [AtomicU64; Removal::ALL.len()],
    events: [AtomicU64; EventKind::ALL.len()],
    /// By `package.Service/Method`: the served contracts' only, so that clients cannot add any.
    methods: OnceLock<BTreeMap<String, MethodMetrics>>,
    /// All other methods.
    unknown_method: MethodMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            operations: Default::default(),
            removed: Default::default(),
            events: std::array::from_fn(|_| AtomicU64::new(0)),
            methods: OnceLock::new(),
            unknown_method: MethodMetrics::default(),
        }
    }
}

impl Metrics {
    /// Runs an operation; counts and times it.
    ///
    /// # Errors
    /// The operation's own, which is counted as a failure.
    pub fn time<T, E>(&self, operation: Operation, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let begun = Instant::now();
        let result = run();
        self.record(operation, begun.elapsed(), result.is_ok());
        result
    }

    /// Counts an operation that took this long.
    pub fn record(&self, operation: Operation, duration: Duration, succeeded: bool) {
        let Some(metrics) = self.operations.get(operation as usize) else { return };
        metrics.duration.record(duration);
        if !succeeded {
            metrics.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts what garbage collection removed.
    pub fn count_removed(&self, removal: Removal, count: u64) {
        if let Some(counter) = self.removed.get(removal as usize) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Counts an event that was committed.
    pub(crate) fn count_event(&self, kind: EventKind) {
        let at = EventKind::ALL.iter().position(|known| *known == kind);
        if let Some(counter) = at.and_then(|at| self.events.get(at)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sets the methods that are counted by name: those of these `google.protobuf.FileDescriptorSet`s.
    pub(crate) fn register_methods<'a>(&self, descriptors: impl IntoIterator<Item = &'a [u8]>) {
        let mut methods = BTreeMap::new();
        for set in descriptors {
            // Server reflection reads the same descriptors, and reports a failure.
            let Ok(set) = prost_types::FileDescriptorSet::decode(set) else { continue };
            for file in set.file {
                for service in &file.service {
                    let service_name = format!("{}.{}", file.package(), service.name());
                    let names = service.method.iter().map(|method| format!("{service_name}/{}", method.name()));
                    methods.extend(names.map(|name| (name, MethodMetrics::default())));
                }
            }
        }
        // Only the first server of the process registers its methods; there is one.
        let _already_registered = self.methods.set(methods);
    }

    /// Counts a call of `package.Service/Method` whose response began after this time.
    pub(crate) fn record_call(&self, method: &str, code: Code, duration: Duration) {
        let methods = self.methods.get();
        let metrics = methods.and_then(|methods| methods.get(method)).unwrap_or(&self.unknown_method);
        metrics.duration.record(duration);
        if let Some(counter) = usize::try_from(i32::from(code)).ok().and_then(|code| metrics.codes.get(code)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn operations_and_removals_are_in_order() {
        assert!(Operation::ALL.iter().enumerate().all(|(at, operation)| *operation as usize == at));
        assert!(Removal::ALL.iter().enumerate().all(|(at, removal)| *removal as usize == at));
    }

    #[test]
    fn every_metric_is_in_the_manual() {
        let is_metric = |word: &&str| {
            ["container_", "gantry_", "process_"].iter().any(|prefix| word.starts_with(prefix))
                && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let source = concat!(include_str!("containers.rs"), include_str!("operations.rs"));
        let served: BTreeSet<&str> = source.split('"').filter(is_metric).collect();
        let manual = include_str!("../../../../docs/metrics.md");
        let rows = manual.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let documented: BTreeSet<&str> = rows.filter(is_metric).collect();
        assert_eq!(documented, served);
    }

    #[test]
    fn only_methods_of_the_contracts_have_a_series() {
        let metrics = Metrics::default();
        metrics.register_methods([gantry_proto::talos::DESCRIPTORS]);
        metrics.record_call("machine.MachineService/Stats", Code::NotFound, Duration::from_millis(1));
        metrics.record_call("machine.MachineService/\"x", Code::Unimplemented, Duration::from_millis(1));
        let methods = metrics.methods.get().unwrap();
        assert_eq!(methods["machine.MachineService/Stats"].codes[5].load(Ordering::Relaxed), 1);
        assert!(!methods.contains_key("machine.MachineService/\"x"));
        assert_eq!(metrics.unknown_method.codes[12].load(Ordering::Relaxed), 1);
    }
}
