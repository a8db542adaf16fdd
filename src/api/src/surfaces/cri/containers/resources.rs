//! The resources of a container: limits of its cgroup, and `oom_score_adj`.

use gantry_engine::model::spec::{AppSpec, LimitChange};
use gantry_proto::cri::v1::{HugepageLimit, LinuxContainerResources};
use tonic::Status;

use super::config::invalid;
use crate::status::invalid_field;

/// The weights that the kernel takes. A kubelet gives 2 to containers without a request, and may give less.
const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;

/// Applies the resources of a new container to the app.
///
/// # Errors
/// INVALID_ARGUMENT: the field and the reason.
pub(super) fn translate(resources: LinuxContainerResources, app: &mut AppSpec) -> Result<(), Status> {
    if resources.oom_score_adj != 0 {
        let adjustment = i32::try_from(resources.oom_score_adj);
        let adjustment =
            adjustment.map_err(|_| invalid_field("config.linux.resources.oom_score_adj", "expected -1000 to 1000"))?;
        app.options.oom_score_adj = Some(adjustment.clamp(-1000, 1000));
    }
    let changes = changes(&resources)?;
    app.options.limits =
        app.options.limits.changed(&changes).map_err(|error| invalid("config.linux.resources", &error))?;
    Ok(())
}

/// The changes that UpdateContainerResources makes: a field of zero leaves its limit unchanged.
///
/// # Errors
/// INVALID_ARGUMENT: the field and the reason.
pub(super) fn changes(resources: &LinuxContainerResources) -> Result<Vec<LimitChange>, Status> {
    let field = |name: &str| format!("config.linux.resources.{name}");
    let positive =
        |name: &str, value: i64| u64::try_from(value).map_err(|_| invalid_field(&field(name), "it cannot be negative"));
    let mut changes = Vec::new();
    match resources.cpu_quota {
        0 => {}
        // The period of no quota means nothing.
        ..0 => changes.extend([LimitChange::CpuQuota(None), LimitChange::CpuPeriod(None)]),
        quota => {
            changes.push(LimitChange::CpuQuota(Some(positive("cpu_quota", quota)?)));
            if resources.cpu_period != 0 {
                changes.push(LimitChange::CpuPeriod(Some(positive("cpu_period", resources.cpu_period)?)));
            }
        }
    }
    if resources.cpu_shares != 0 {
        let shares = positive("cpu_shares", resources.cpu_shares)?;
        changes.push(LimitChange::CpuShares(Some(shares.clamp(MIN_SHARES, MAX_SHARES))));
    }
    match resources.memory_limit_in_bytes {
        0 => {}
        ..0 => changes.push(LimitChange::Memory(None)),
        limit => changes.push(LimitChange::Memory(Some(positive("memory_limit_in_bytes", limit)?))),
    }
    if resources.memory_swap_limit_in_bytes != 0 {
        changes.push(LimitChange::MemorySwap(Some(resources.memory_swap_limit_in_bytes.max(-1))));
    }
    let list = |name: &str, text: &str| text.parse().map(Some).map_err(|error| invalid(&field(name), &error));
    if !resources.cpuset_cpus.is_empty() {
        changes.push(LimitChange::CpusetCpus(list("cpuset_cpus", &resources.cpuset_cpus)?));
    }
    if !resources.cpuset_mems.is_empty() {
        changes.push(LimitChange::CpusetMems(list("cpuset_mems", &resources.cpuset_mems)?));
    }
    for HugepageLimit { page_size, limit } in &resources.hugepage_limits {
        let size = page_size.parse().map_err(|error| invalid(&field("hugepage_limits"), &error))?;
        changes.push(LimitChange::Hugetlb(size, Some(*limit)));
    }
    for (file, value) in &resources.unified {
        let file = file.parse().map_err(|error| invalid(&field("unified"), &error))?;
        changes.push(LimitChange::Unified(file, Some(value.clone())));
    }
    Ok(changes)
}

/// The resources after an update, as ContainerStatus shows them: a field of zero is unchanged.
pub(super) fn merged(old: LinuxContainerResources, new: LinuxContainerResources) -> LinuxContainerResources {
    let number = |old: i64, new: i64| if new == 0 { old } else { new };
    let text = |old: String, new: String| if new.is_empty() { old } else { new };
    let mut unified = old.unified;
    unified.extend(new.unified);
    let mut hugepage_limits = old.hugepage_limits;
    hugepage_limits.retain(|limit| new.hugepage_limits.iter().all(|other| other.page_size != limit.page_size));
    hugepage_limits.extend(new.hugepage_limits);
    LinuxContainerResources {
        cpu_period: number(old.cpu_period, new.cpu_period),
        cpu_quota: number(old.cpu_quota, new.cpu_quota),
        cpu_shares: number(old.cpu_shares, new.cpu_shares),
        memory_limit_in_bytes: number(old.memory_limit_in_bytes, new.memory_limit_in_bytes),
        // The process has it since its start.
        oom_score_adj: old.oom_score_adj,
        cpuset_cpus: text(old.cpuset_cpus, new.cpuset_cpus),
        cpuset_mems: text(old.cpuset_mems, new.cpuset_mems),
        hugepage_limits,
        unified,
        memory_swap_limit_in_bytes: number(old.memory_swap_limit_in_bytes, new.memory_swap_limit_in_bytes),
    }
}
