//! Stats: one sample of each running pod and app: the working set in bytes, and the CPU time since the start in
//! nanoseconds.

use std::time::Duration;

use gantry_engine::{Observer, SampledPod};
use gantry_model::stats::ResourceUsage;
use gantry_proto::talos::common::ContainerDriver;
use gantry_proto::talos::machine::{Stat, Stats, StatsRequest};
use tonic::Status;

use super::names::{self, Namespace};
use crate::context::Context;

/// Maximum age of a sample. Clients compute rates from two calls, a second or more apart.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The rows that a request selects. Pods that do not run have none.
///
/// # Errors
/// `INVALID_ARGUMENT` for the request, and the error of the store or the cgroups if they cannot be read.
pub(super) fn sample(context: &Context, observer: &Observer, request: &StatsRequest) -> Result<Stats, Status> {
    let (namespace, driver) = Namespace::parse(&request.namespace, request.driver)?;
    if namespace == Namespace::System {
        return Ok(Stats { metadata: None, stats: vec![daemon(&namespace)?] });
    }
    let samples = context.sample(observer, MAX_AGE)?;
    let shown = samples.pods.iter().filter(|pod| namespace.contains(&pod.view.row));
    let mut stats: Vec<Stat> = shown.flat_map(|pod| rows(&namespace, driver, pod)).collect();
    stats.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(Stats { metadata: None, stats })
}

/// gantryd itself, from /proc: it may share its cgroup with other programs.
fn daemon(namespace: &Namespace) -> Result<Stat, Status> {
    let read = |error| Status::internal(format!("cannot read /proc/self: {error}"));
    let stat = procfs::process::Process::myself().and_then(|process| process.stat()).map_err(read)?;
    let nanoseconds_per_tick = 1_000_000_000 / procfs::ticks_per_second().max(1);
    Ok(Stat {
        namespace: namespace.name().to_owned(),
        id: names::DAEMON.to_owned(),
        pod_id: names::DAEMON.to_owned(),
        name: names::DAEMON.to_owned(),
        memory_usage: stat.rss.saturating_mul(procfs::page_size()),
        cpu_usage: (stat.utime + stat.stime).saturating_mul(nanoseconds_per_tick),
    })
}

fn rows(namespace: &Namespace, driver: ContainerDriver, pod: &SampledPod) -> Vec<Stat> {
    let SampledPod { view, stats: sample, .. } = pod;
    let pod_id = names::pod_id(&view.row);
    let row = |id: String, name: String, usage: &ResourceUsage| Stat {
        namespace: namespace.name().to_owned(),
        id,
        pod_id: pod_id.clone(),
        name,
        memory_usage: usage.memory.as_ref().map_or(0, |memory| memory.working_set),
        cpu_usage: usage.cpu.as_ref().map_or(0, |cpu| cpu.total_ns),
    };
    let pod = match driver {
        ContainerDriver::Containerd => row(pod_id.clone(), view.row.id.to_string(), &sample.usage),
        // The CRI counts containers; the row of a sandbox is empty.
        ContainerDriver::Cri => row(pod_id.clone(), pod_id.clone(), &ResourceUsage::default()),
    };
    let apps = sample.apps.iter().map(|app| {
        let shown = view.row.apps.iter().find(|row| row.name == app.name).map(names::app_name);
        let name = shown.unwrap_or(app.name.as_str());
        row(names::app_id(&pod_id, name), name.to_owned(), &app.usage)
    });
    std::iter::once(pod).chain(apps).collect()
}
