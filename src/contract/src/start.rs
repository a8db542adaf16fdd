//! The supervisor's start reply: ready, or the failure.

use serde::{Deserialize, Serialize};

/// The start reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartReply {
    /// Every app's program was executed.
    Ready(Ready),
    /// The start failed; only the pod directory is left.
    Failed(crate::Failure),
}

/// A running pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The supervisor's PID on the host.
    pub supervisor: u32,
    /// Its start time in clock ticks since boot.
    pub start_ticks: u64,
    /// The pod's PID 1, on the host.
    pub init: u32,
    /// The apps.
    pub apps: Vec<Started>,
    /// The pod's networks, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<gantry_model::PodNetwork>,
    /// Settings of the pod that have no effect on this host, with the cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// An app whose program was executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Its name.
    pub app: String,
    /// The number of the start, from 0.
    pub attempt: u32,
    /// Its PID on the host.
    pub pid: u32,
    /// The time, in nanoseconds since the epoch.
    pub at: i64,
}
