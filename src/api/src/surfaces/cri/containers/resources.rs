//! The resources of a container: limits of its cgroup, and `oom_score_adj`.

use std::collections::HashMap;

use gantry_host::cgroup::{Hierarchy, Version, mounted_hierarchies};
use gantry_model::id::shown;
use gantry_model::spec::{AppSpec, CgroupFile, DEFAULT_CPU_PERIOD, LimitChange};
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
/// `INVALID_ARGUMENT`, with the field and the reason.
pub(super) fn translate(resources: LinuxContainerResources, app: &mut AppSpec) -> Result<(), Status> {
    if resources.oom_score_adj != 0 {
        let adjustment = i32::try_from(resources.oom_score_adj);
        let adjustment =
            adjustment.map_err(|_| invalid_field("config.linux.resources.oom_score_adj", "expected -1000 to 1000"))?;
        app.options.oom_score_adj = Some(adjustment.clamp(-1000, 1000));
    }
    let changes = changes(&resources)?;
    let limits = app.options.limits.changed(&changes);
    app.options.limits = limits.map_err(|error| invalid("config.linux.resources", &error))?;
    Ok(())
}

/// The changes that UpdateContainerResources makes: a field of zero leaves its limit unchanged.
///
/// # Errors
/// `INVALID_ARGUMENT` with the field and the reason, also if the host has no cgroup v2 for a file of `unified`.
pub(super) fn changes(resources: &LinuxContainerResources) -> Result<Vec<LimitChange>, Status> {
    let field = |name: &str| format!("config.linux.resources.{name}");
    let positive =
        |name: &str, value: i64| u64::try_from(value).map_err(|_| invalid_field(&field(name), "it cannot be negative"));
    let mut changes = Vec::new();
    match resources.cpu_quota {
        0 => {}
        ..0 => changes.push(LimitChange::CpuQuota(None)),
        quota => changes.push(LimitChange::CpuQuota(Some(positive("cpu_quota", quota)?))),
    }
    // Also without a quota: it is the period of the present one, and of later ones.
    if resources.cpu_period != 0 {
        let period = positive("cpu_period", resources.cpu_period)?;
        // Kubelets always give the kernel's default, which need not be written.
        changes.push(LimitChange::CpuPeriod((period != DEFAULT_CPU_PERIOD).then_some(period)));
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
    changes.extend(unified(&field("unified"), &resources.unified)?);
    Ok(changes)
}

/// The changes of files of cgroup v2.
fn unified(field: &str, files: &HashMap<String, String>) -> Result<Vec<LimitChange>, Status> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let unread = |error| Status::internal(format!("cannot read the cgroup hierarchies of this host: {error}"));
    let hierarchies = mounted_hierarchies().map_err(unread)?;
    let change = |(name, value): (&String, &String)| {
        let file: CgroupFile = name.parse().map_err(|error| invalid(field, &error))?;
        if !is_in_v2(&file, &hierarchies) {
            return Err(invalid_field(
                field,
                &format!("{} needs cgroup v2, which this host lacks for it", shown(name)),
            ));
        }
        Ok(LimitChange::Unified(file, Some(value.clone())))
    };
    files.iter().map(change).collect()
}

/// Whether containers have this file: v2 is mounted, and no v1 hierarchy has the controller.
fn is_in_v2(file: &CgroupFile, hierarchies: &[Hierarchy]) -> bool {
    let controller = match file.controller() {
        // Its name in v1.
        "io" => "blkio",
        controller => controller,
    };
    hierarchies.iter().any(|hierarchy| hierarchy.version == Version::V2)
        && !hierarchies.iter().any(|hierarchy| hierarchy.has_v1_controller(controller))
}

/// The update with the limit of swap that its limit of memory needs, if it leaves that of swap as it is. The limit of
/// swap counts memory too: it is never the smaller one, and without swap it equals the limit of memory.
pub(super) fn with_swap(old: &LinuxContainerResources, new: LinuxContainerResources) -> LinuxContainerResources {
    let (memory, swap) = (new.memory_limit_in_bytes, old.memory_swap_limit_in_bytes);
    let is_kept = memory == 0 || new.memory_swap_limit_in_bytes != 0 || swap <= 0;
    // A negative limit is none.
    if is_kept || (swap != old.memory_limit_in_bytes && (0..=swap).contains(&memory)) {
        return new;
    }
    LinuxContainerResources { memory_swap_limit_in_bytes: memory.max(-1), ..new }
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

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_host::cgroup::parse_mountinfo;
    use gantry_model::spec::Limits;

    fn cpu(cpu_quota: i64, cpu_period: i64) -> LinuxContainerResources {
        LinuxContainerResources { cpu_quota, cpu_period, ..LinuxContainerResources::default() }
    }

    #[test]
    fn periods_apply_without_a_quota() {
        let (mut limits, mut shown) = (Limits::default(), LinuxContainerResources::default());
        for (update, want) in [
            (cpu(20_000, 100_000), Some((20_000, 100_000))),
            (cpu(0, 50_000), Some((20_000, 50_000))),
            (cpu(-1, 0), None),
        ] {
            limits = limits.changed(&changes(&update).unwrap()).unwrap();
            shown = merged(shown, update);
            assert_eq!(limits.cpu_bandwidth(), want);
            assert_eq!(i64::try_from(limits.cpu_period.unwrap_or(DEFAULT_CPU_PERIOD)), Ok(shown.cpu_period));
        }
        limits = limits.changed(&changes(&cpu(30_000, 0)).unwrap()).unwrap();
        assert_eq!(limits.cpu_bandwidth(), Some((30_000, 50_000)), "the period stays");
        assert!(changes(&cpu(0, -1)).unwrap_err().message().contains("cpu_period"));
    }

    #[test]
    fn swap_follows_memory() {
        let limits = |memory_limit_in_bytes, memory_swap_limit_in_bytes| LinuxContainerResources {
            memory_limit_in_bytes,
            memory_swap_limit_in_bytes,
            ..LinuxContainerResources::default()
        };
        const MIB: i64 = 1 << 20;
        for (old, update, swap) in [
            ((64, 64), (128, 0), 128),
            ((64, 64), (32, 0), 32),
            ((64, 96), (128, 0), 128),
            ((64, 96), (80, 0), 0),
            ((64, 96), (128, 256), 256),
            ((64, 64), (0, 0), 0),
            ((64, 0), (128, 0), 0),
        ] {
            let old = limits(old.0 * MIB, old.1 * MIB);
            let update = with_swap(&old, limits(update.0 * MIB, update.1 * MIB));
            assert_eq!(update.memory_swap_limit_in_bytes, swap * MIB, "{old:?}");
            let limits = Limits::default().changed(&changes(&old).unwrap()).unwrap();
            assert!(limits.changed(&changes(&update).unwrap()).is_ok(), "{old:?}");
        }
        assert_eq!(with_swap(&limits(MIB, MIB), limits(-1, 0)).memory_swap_limit_in_bytes, -1);
        assert_eq!(with_swap(&limits(MIB, -1), limits(2 * MIB, 0)).memory_swap_limit_in_bytes, 0);
    }

    #[test]
    fn unified_files_need_their_controller_in_v2() {
        const V1: &str = "32 31 0:29 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n";
        const V2: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let is_in = |file: &str, mounts: &str| is_in_v2(&file.parse().unwrap(), &parse_mountinfo(mounts));
        assert!(is_in("memory.high", V2) && is_in("io.max", V2));
        assert!(!is_in("memory.high", V1));
        let hybrid = format!("{V1}{V2}");
        assert!(is_in("memory.high", &hybrid) && !is_in("io.max", &hybrid));
    }
}
