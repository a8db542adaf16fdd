//! Limits in the JSON of the pod manifest, of an app or of the pod.

use std::collections::BTreeMap;

use gantry_model::spec::{self, CgroupFile, CpusetList, HugePageSize};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_swap: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_high: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_reservation: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_milli: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_quota: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_period: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_shares: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpuset_cpus: Option<CpusetList>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpuset_mems: Option<CpusetList>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pids: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    io_weight: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    io_devices: Vec<DeviceIoLimits>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    hugetlb: BTreeMap<HugePageSize, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unified: BTreeMap<CgroupFile, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceIoLimits {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_bps: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    write_bps: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_iops: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    write_iops: Option<u64>,
}

/// For serde's `with`.
pub(super) fn serialize<S: Serializer>(limits: &spec::Limits, serializer: S) -> Result<S::Ok, S::Error> {
    let spec::Limits {
        memory,
        memory_swap,
        memory_high,
        memory_reservation,
        cpu_milli,
        cpu_quota,
        cpu_period,
        cpu_shares,
        cpuset_cpus,
        cpuset_mems,
        pids,
        io_weight,
        io_devices,
        hugetlb,
        unified,
    } = limits.clone();
    let device = |device: spec::DeviceIoLimits| {
        let spec::DeviceIoLimits { path, read_bps, write_bps, read_iops, write_iops } = device;
        DeviceIoLimits { path, read_bps, write_bps, read_iops, write_iops }
    };
    let io_devices = io_devices.into_iter().map(device).collect();
    let json = Limits {
        memory,
        memory_swap,
        memory_high,
        memory_reservation,
        cpu_milli,
        cpu_quota,
        cpu_period,
        cpu_shares,
        cpuset_cpus,
        cpuset_mems,
        pids,
        io_weight,
        io_devices,
        hugetlb,
        unified,
    };
    json.serialize(serializer)
}

/// For serde's `with`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<spec::Limits, D::Error> {
    let Limits {
        memory,
        memory_swap,
        memory_high,
        memory_reservation,
        cpu_milli,
        cpu_quota,
        cpu_period,
        cpu_shares,
        cpuset_cpus,
        cpuset_mems,
        pids,
        io_weight,
        io_devices,
        hugetlb,
        unified,
    } = Limits::deserialize(deserializer)?;
    let device = |device: DeviceIoLimits| {
        let DeviceIoLimits { path, read_bps, write_bps, read_iops, write_iops } = device;
        spec::DeviceIoLimits { path, read_bps, write_bps, read_iops, write_iops }
    };
    let io_devices = io_devices.into_iter().map(device).collect();
    Ok(spec::Limits {
        memory,
        memory_swap,
        memory_high,
        memory_reservation,
        cpu_milli,
        cpu_quota,
        cpu_period,
        cpu_shares,
        cpuset_cpus,
        cpuset_mems,
        pids,
        io_weight,
        io_devices,
        hugetlb,
        unified,
    })
}

/// As JSON.
pub(super) fn to_value(limits: &spec::Limits) -> serde_json::Value {
    // Plain data with string keys: it does not fail.
    serialize(limits, serde_json::value::Serializer).unwrap_or_default()
}
