//! Limits in the JSON of the pod manifest, of an app or of the pod.

use std::collections::BTreeMap;

use gantry_model::spec::{self, CgroupFile, CpusetList, HugePageSize};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The fields of [`spec::Limits`], of which an unknown one is an error and an unset one is left out.
#[derive(Default, Serialize, Deserialize)]
#[serde(remote = "spec::Limits", deny_unknown_fields, default)]
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
    #[serde(skip_serializing_if = "Vec::is_empty", with = "io_devices")]
    io_devices: Vec<spec::DeviceIoLimits>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    hugetlb: BTreeMap<HugePageSize, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unified: BTreeMap<CgroupFile, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "spec::DeviceIoLimits", deny_unknown_fields)]
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

/// A list of devices, for serde's `with`.
mod io_devices {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Device(#[serde(with = "DeviceIoLimits")] spec::DeviceIoLimits);

    pub(super) fn serialize<S: Serializer>(devices: &[spec::DeviceIoLimits], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(devices.iter().cloned().map(Device))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<spec::DeviceIoLimits>, D::Error> {
        let devices = Vec::<Device>::deserialize(deserializer)?;
        Ok(devices.into_iter().map(|Device(device)| device).collect())
    }
}

/// For serde's `with`.
pub(super) fn serialize<S: Serializer>(limits: &spec::Limits, serializer: S) -> Result<S::Ok, S::Error> {
    Limits::serialize(limits, serializer)
}

/// For serde's `with`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<spec::Limits, D::Error> {
    Limits::deserialize(deserializer)
}

/// As JSON.
pub(super) fn to_value(limits: &spec::Limits) -> serde_json::Value {
    // Plain data with string keys: it does not fail.
    serialize(limits, serde_json::value::Serializer).unwrap_or_default()
}
